"""
How the ranges of streams are split into parts, and how tasks share the parts of many streams.

This module does no I/O. Both ends of a part are fixed, so that any process that reads it again gets
the same messages.
"""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Final, TypeAlias

import attrs

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "DEFAULT_PARTS",
    "LARGEST",
    "LARGEST_BYTES",
    "SMALLEST",
    "Range",
    "TaskRanges",
    "cut",
    "default_parts",
    "divide",
    "group",
    "parts_by_bytes",
    "parts_for",
    "parts_of",
    "shares",
    "tasks_of",
    "up_to",
]

SMALLEST: Final = 50_000
"""
Minimum sequences per part, unless more parts are requested. Reading them takes about 0.2 s, and
starting a task 0.05 s.
"""

DEFAULT_PARTS: Final = 16
"""
Default number of parts, if the number of cores is not known or may change. A batch query that is
run again on another machine must be split in the same way, because exactly-once writers identify
partitions by their number. Micro-batches record their number of parts instead.
"""

PER_CORE: Final = 2
"""Parts of a micro-batch for each task that runs at once, because some parts take longer."""

PER_STREAM: Final = 1_000
"""
Sequences that take as long to read as the requests for one more stream, if many streams are read.
"""

LARGEST: Final = 1_000_000
"""Default maximum sequences per part, which bounds what a retry reads again."""

LARGEST_BYTES: Final = 128 << 20
"""Default maximum bytes per part of a micro-batch, as for Spark's files."""


@attrs.frozen
class Range:
    """
    A part of a stream. One task reads all of it.
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


TaskRanges: TypeAlias = "tuple[Range, ...]"
"""What one task reads, in turn. Only small parts of several streams share a task."""


def parts_for(
    length: int,
    *,
    messages: int | None = None,
    least: int | None = None,
    most_each: int | None = None,
    default: int = DEFAULT_PARTS,
) -> int:
    """
    Return the number of parts for a range.

    Args:
        length: The number of sequences.
        messages: The number of messages, if known. It may be much smaller than *length*.
        least: The minimum number of parts.
        most_each: The maximum sequences per part.
        default: The number of parts of a long range, if there is no minimum.
    """
    if length <= 0:
        return 0
    rows = length if messages is None else min(length, messages)
    parts = least or min(default, _up(rows, SMALLEST))
    parts = max(parts, _up(rows, LARGEST) if most_each is None else _up(length, most_each))
    return max(1, min(parts, length))


def parts_of(
    lengths: Sequence[int],
    *,
    messages: Sequence[int] | None = None,
    least: int | None = None,
    most_each: int | None = None,
    default: int = DEFAULT_PARTS,
) -> list[int]:
    """
    Return the number of parts for each of several ranges.

    The ranges share the parts in proportion to their messages. Each has at least one part, unless
    it is empty.

    Args: as :func:`parts_for`, for each range.
    """
    rows = [
        max(0, length if messages is None else min(length, messages[number]))
        for number, length in enumerate(lengths)
    ]
    wanted = parts_for(
        sum(max(0, length) for length in lengths),
        messages=sum(rows),
        least=least,
        most_each=most_each,
        default=default,
    )
    return [
        parts_for(
            length,
            messages=few,
            least=max(1, _up(wanted * few, max(1, sum(rows)))) if len(lengths) > 1 else wanted,
            most_each=most_each,
        )
        for length, few in zip(lengths, rows, strict=True)
    ]


def parts_by_bytes(parts: Sequence[int], sizes: Sequence[float], most_each: float) -> list[int]:
    """
    Return the number of parts for each of several ranges, so that no part is too large.

    Args:
        parts: The number of parts without a limit of their sizes.
        sizes: The bytes of the ranges.
        most_each: The maximum bytes per part.
    """
    return [
        max(count, math.ceil(size / most_each)) if count else 0
        for count, size in zip(parts, sizes, strict=True)
    ]


def divide(
    lengths: Sequence[int],
    *,
    messages: Sequence[int] | None = None,
    sizes: Sequence[float] | None = None,
    least: int | None = None,
    most_each: int | None = None,
    most_bytes_each: float = math.inf,
    default: int = DEFAULT_PARTS,
) -> tuple[list[int], tuple[int, ...] | None]:
    """
    Return the number of parts for each of several ranges, and how many parts each task reads.

    Args: as :func:`parts_of`, :func:`parts_by_bytes` and :func:`tasks_of`.
    """
    parts = parts_of(lengths, messages=messages, least=least, most_each=most_each, default=default)
    if sizes is not None:
        parts = parts_by_bytes(parts, sizes, most_bytes_each)
    tasks = tasks_of(
        parts,
        lengths,
        least=max(default, least or 0),
        messages=messages,
        sizes=sizes,
        most_each=most_each,
        most_bytes_each=most_bytes_each,
    )
    return parts, tasks


def tasks_of(
    parts: Sequence[int],
    lengths: Sequence[int],
    *,
    least: int,
    messages: Sequence[int] | None = None,
    sizes: Sequence[float] | None = None,
    most_each: int | None = None,
    most_bytes_each: float = math.inf,
) -> tuple[int, ...] | None:
    """
    Return how many successive parts each task reads. None if each task reads one part.

    Starting a task takes much longer than reading a few messages, so if there are more parts than
    tasks are needed, each task reads about the same share of them.

    Args:
        parts: The number of parts of each of several ranges.
        lengths: The numbers of sequences of the ranges.
        least: The number of tasks below which no task reads several parts.
        messages: The numbers of messages, if known.
        sizes: The bytes of the ranges, if known.
        most_each: The maximum sequences per task that reads several parts.
        most_bytes_each: The maximum bytes of such a task.
    """
    counts = [max(0, min(count, length)) for count, length in zip(parts, lengths, strict=True)]
    if sum(counts) <= least:
        return None
    # A limit that a user has set counts sequences, as in `parts_for`.
    most, rows = (LARGEST, messages or lengths) if most_each is None else (most_each, lengths)
    each = [
        (row / count, size / count)
        for count, row, size in zip(counts, rows, sizes or [0.0] * len(counts), strict=True)
        for _ in range(count)
    ]
    share = (sum(length for length, _ in each) + PER_STREAM * len(each)) / least
    tasks = [0]
    sequences = bytes_ = 0.0
    for place, (length, size) in enumerate(each):
        sequences += length
        bytes_ += size
        is_full = (
            sequences > most
            or bytes_ > most_bytes_each
            or sequences + PER_STREAM * (tasks[-1] + 1) > share
            or len(tasks) + len(each) - place <= least
        )
        if tasks[-1] and is_full:
            tasks.append(0)
            sequences, bytes_ = length, size
        tasks[-1] += 1
    return None if len(tasks) == len(each) else tuple(tasks)


def group(ranges: Sequence[Range], tasks: Sequence[int] | None) -> list[TaskRanges]:
    """
    Return what each task reads.

    Args:
        ranges: The parts of all ranges.
        tasks: How many parts each task reads (:func:`tasks_of`).
    """
    left = iter(ranges)
    found = [tuple(itertools.islice(left, count)) for count in tasks or ()]
    return [each for each in found if each] + [(part,) for part in left]


def shares(lengths: Sequence[int], most: int) -> list[int]:
    """
    Return how much of each length to take, so that the sum is about *most*.

    The shares are proportional to the lengths, and each length that is not 0 gets at least 1. As
    Spark does for Kafka, shares are rounded down, unless they are less than 1.
    """
    total = sum(lengths)
    if total <= most:
        return list(lengths)
    return [min(length, max(1, most * length // total)) for length in lengths]


def default_parts(parallelism: int | None) -> int:
    """
    Return the default number of parts of a micro-batch.

    Args:
        parallelism: How many tasks the cluster runs at once. None if that is not known.
    """
    return DEFAULT_PARTS if parallelism is None else PER_CORE * parallelism


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


def up_to(part: Range, end: int) -> Range:
    """
    Return a part without the sequences from *end* on.
    """
    return part if part.end <= end else attrs.evolve(part, end=end)


def _up(number: int, by: int) -> int:
    return -(-number // by)
