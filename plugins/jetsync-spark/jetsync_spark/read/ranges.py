"""
How a stretch of a stream is cut into parts.

Pure: numbers in, numbers out. A part is a range of sequences with both ends fixed, so that reading
it again, in whatever process, gives the same messages.
"""

from __future__ import annotations

import itertools
from typing import Final

import attrs

__all__ = ["LARGEST", "SMALLEST", "USUAL", "Range", "cut", "parts_for"]

SMALLEST: Final = 50_000
"""
Sequences of a part at least, unless more parts are asked for: a fifth of a second of reading, where
starting a task takes a twentieth.
"""

USUAL: Final = 16
"""
Into how many parts a stretch is cut unless something is asked for. Not the number of cores, which
differs between machines: a batch that is planned again, after a restart elsewhere, is to be cut as
it was, or writers that know partitions by their number can not tell what they have written.
"""

LARGEST: Final = 1_000_000
"""Sequences of a part at most, unless something else is asked for: what a retry reads again."""


@attrs.frozen
class Range:
    """
    A part of a stream, for one task.
    """

    stream: str
    """The stream."""

    created: str
    """When the stream was made: one of the same name that was made later is another one."""

    start: int
    """The first sequence."""

    end: int
    """The sequence behind the last one."""

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
    Return into how many parts to cut so many sequences.

    Args:
        length: How many sequences there are.
        messages: How many messages are known to be in them, where that may be far fewer.
        least: How many parts are asked for.
        most_each: How many sequences a part may have.
    """
    if length <= 0:
        return 0
    rows = length if messages is None else min(length, messages)
    parts = least or min(USUAL, _up(rows, SMALLEST))
    parts = max(parts, _up(rows, LARGEST) if most_each is None else _up(length, most_each))
    return max(1, min(parts, length))


def cut(stream: str, created: str, start: int, end: int, parts: int) -> list[Range]:
    """
    Cut the sequences from *start* to before *end* into so many parts of nearly equal length.
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
