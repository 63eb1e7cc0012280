"""
How a range of a stream is split into parts.

This module does no I/O. Both ends of a part are fixed, so that any process that reads it again gets
the same messages.
"""

from __future__ import annotations

import itertools
from typing import Final

import attrs

__all__ = ["DEFAULT_PARTS", "LARGEST", "SMALLEST", "Range", "cut", "parts_for"]

SMALLEST: Final = 50_000
"""
Minimum sequences per part, unless more parts are requested. Reading them takes about 0.2 s, and
starting a task 0.05 s.
"""

DEFAULT_PARTS: Final = 16
"""
Default number of parts. It does not depend on the number of cores: a batch that is planned again on
another machine must be split in the same way, because exactly-once writers identify partitions by
their number.
"""

LARGEST: Final = 1_000_000
"""Default maximum sequences per part, which bounds what a retry reads again."""


@attrs.frozen
class Range:
    """
    A part of a stream, for one task.
    """

    stream: str
    """The stream."""

    created: str
    """When the stream was created, to detect a new stream with the same name."""

    start: int
    """The first sequence."""

    end: int
    """The sequence after the last one."""

    def __len__(self) -> int:
        return max(0, self.end - self.start)


def parts_for(
    length: int,
    *,
    messages: int | None = None,
    least: int | None = None,
    most_each: int | None = None,
) -> int:
    """
    Return the number of parts for a range.

    Args:
        length: The number of sequences.
        messages: The number of messages, if known. It may be much smaller than *length*.
        least: The minimum number of parts.
        most_each: The maximum sequences per part.
    """
    if length <= 0:
        return 0
    rows = length if messages is None else min(length, messages)
    parts = least or min(DEFAULT_PARTS, _up(rows, SMALLEST))
    parts = max(parts, _up(rows, LARGEST) if most_each is None else _up(length, most_each))
    return max(1, min(parts, length))


def cut(stream: str, created: str, start: int, end: int, parts: int) -> list[Range]:
    """
    Split the sequences from *start* to before *end* into parts of nearly equal length.
    """
    length = end - start
    if length <= 0:
        return []
    bounds = [start + length * part // parts for part in range(parts + 1)]
    return [
        Range(stream, created, low, high) for low, high in itertools.pairwise(bounds) if low < high
    ]


def _up(number: int, by: int) -> int:
    return -(-number // by)
