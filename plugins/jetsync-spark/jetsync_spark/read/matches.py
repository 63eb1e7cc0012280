"""
Which messages of streams match the filters of a query, as far as the planner has to know it.

This module does no I/O.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs

from jetsync_spark.read.origin import Origin
from jetsync_spark.read.planning import Look

if TYPE_CHECKING:
    from collections.abc import Collection

__all__ = ["Matches", "Step"]

SKIPPED: Final = 10_000
"""Minimum sequences without a match that an empty batch skips."""


@attrs.frozen
class Match:
    """
    What is known about the messages of a stream that match a filter.
    """

    created: str
    """When the stream was created."""

    first: int
    """No message between the last batch and this sequence matches."""

    is_match: bool
    """Whether a message with this sequence matches."""


@attrs.frozen
class Step:
    """
    What the next batch may read of one stream.
    """

    origin: Origin
    """The stream."""

    begins: int
    """Where the batch begins."""

    first: int
    """The first sequence that matters. A limit counts from there."""

    end: int
    """The sequence after the last one, without a limit."""

    lost: bool = False
    """Whether messages are missing, so that the offset has to move."""


class Matches:
    """
    The first matching messages of streams. Not thread-safe.

    Args:
        filters: The filters of the query. Without filters, nothing is asked for.
    """

    def __init__(self, filters: tuple[str, ...]) -> None:
        self._filters = filters
        self._known: dict[str, Match] = {}

    def keep(self, streams: Collection[str]) -> None:
        """
        Forget all other streams.
        """
        self._known = {each: match for each, match in self._known.items() if each in streams}

    def forget(self, stream: str) -> None:
        """
        Forget a stream, whose sequences may be used again.
        """
        self._known.pop(stream, None)

    def found(self, origin: Origin, sequence: int | None) -> None:
        """
        Note the answer to a question: the sequence of the message, or None if there is none.
        """
        self._known[origin.stream] = (
            Match(origin.created, origin.next, is_match=False)
            if sequence is None
            else Match(origin.created, sequence, is_match=True)
        )

    def looks(self, steps: list[Step]) -> tuple[Look, ...]:
        """Return the questions whose answers :meth:`of_steps` needs."""
        if not self._filters:
            return ()
        looks = []
        for step in steps:
            match = self._of(step.origin)
            if match is None or match.first < step.begins:
                start = step.begins
            elif match.is_match or match.first >= step.end:
                continue
            else:
                start = match.first
            if start < step.end:
                looks.append(Look(step.origin.stream, start))
        return tuple(looks)

    def of_steps(self, steps: list[Step]) -> list[Step]:
        """
        Return the steps that have a message which matches a filter, from this message on.

        A span without such a message is not a batch. It becomes part of the next one, unless it is
        in the older half of its stream, where a limit of the stream may soon remove messages. There
        it is skipped, if need be by an empty batch.
        """
        if not self._filters:
            return steps
        found = []
        for step in steps:
            first = min(max(step.begins, self.searched(step.origin)), step.end)
            is_old = 2 * step.begins < step.origin.first + step.origin.next
            if first < step.end or (is_old and first - step.begins >= SKIPPED):
                begins = first if is_old else step.begins
                found.append(attrs.evolve(step, begins=begins, first=first))
        return found

    def _of(self, origin: Origin) -> Match | None:
        match = self._known.get(origin.stream)
        return match if match is not None and match.created == origin.created else None

    def searched(self, origin: Origin) -> int:
        """Return the sequence before which no message matches a filter, or 0."""
        match = self._of(origin)
        return 0 if match is None else match.first
