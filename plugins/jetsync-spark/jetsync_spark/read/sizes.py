"""
Estimates of how many bytes a part of a stream has, from what servers report.

This module does no I/O. A server reports how many bytes a stream has in all. Whenever the state of
a stream arrives, the bytes that it has grown by belong to the sequences that were added since. The
messages before the first state are taken as equally large. If messages were removed meanwhile, the
new ones are taken to be as large as all others.

The bytes are those of the stored messages, with subjects, headers and about 30 bytes for each.
"""

from __future__ import annotations

import bisect
from typing import Final

import attrs

from jetsync_spark.read.origin import Origin

__all__ = ["Sizes"]

MARKS: Final = 64
"""Maximum sequences of a stream for which the bytes before them are kept."""


@attrs.define
class _Known:
    """
    The bytes of a stream before some of its sequences.
    """

    last: Origin
    """The state that was seen last."""

    marks: list[tuple[int, float]]
    """Sequences, and the bytes of the messages before each."""


class Sizes:
    """
    The estimated bytes of streams. Not thread-safe.
    """

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}

    def saw(self, origin: Origin) -> None:
        """
        Note the state of a stream.
        """
        known = self._known.get(origin.stream)
        if (
            known is None
            or known.last.created != origin.created
            or origin.next < known.last.next
            or origin.first > known.last.next
        ):
            marks = [(origin.first, 0.0), (origin.next, float(origin.bytes))]
            self._known[origin.stream] = _Known(origin, marks)
            return
        last, marks = known.last, known.marks
        added = origin.next - last.next
        if added:
            grown = float(origin.bytes - last.bytes)
            if origin.messages - last.messages != added:
                grown = added * origin.bytes / max(1, origin.next - origin.first)
            marks.append((origin.next, marks[-1][1] + max(0.0, grown)))
            if len(marks) > MARKS:
                del marks[1:-1:2]
        known.last = origin

    def between(self, stream: str, start: int, end: int) -> float:
        """
        Return the bytes of the messages from *start* to before *end*.
        """
        marks = self._known[stream].marks
        return max(0.0, _before(marks, end) - _before(marks, start))

    def end_of(self, stream: str, start: int, size: float) -> int:
        """
        Return the sequence up to which messages from *start* on have a number of bytes.
        """
        marks = self._known[stream].marks
        wanted = _before(marks, start) + size
        place = bisect.bisect_right(marks, wanted, key=lambda mark: mark[1])
        if place == len(marks):
            return max(start, marks[-1][0])
        (low, before), (high, after) = marks[max(0, place - 1)], marks[place]
        if place == 0 or after == before:
            return max(start, high)
        return max(start, low + int((high - low) * (wanted - before) / (after - before)))


def _before(marks: list[tuple[int, float]], sequence: int) -> float:
    """Return the bytes before a sequence. Between two marks, messages are equally large."""
    place = bisect.bisect_right(marks, sequence, key=lambda mark: mark[0])
    if place == 0:
        return 0.0
    if place == len(marks):
        return marks[-1][1]
    (low, before), (high, after) = marks[place - 1], marks[place]
    return before + (after - before) * (sequence - low) / (high - low)
