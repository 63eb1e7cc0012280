"""
What the planner of micro-batches and the reader around it tell each other.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final

import attrs

from jetsync_spark.read.offsets import Stored

__all__ = ["AGAIN", "Again", "Awaited", "Compare", "Limit", "Look", "Wanted"]


class Again(enum.Enum):
    """
    The type of :data:`AGAIN`.
    """

    AGAIN = enum.auto()


AGAIN: Final = Again.AGAIN
"""The streams have to be asked again, because one of them lags."""


@attrs.frozen
class Awaited:
    """
    What can change a plan without a batch.
    """

    messages: Mapping[str, int]
    """For each stream the sequence from which a message is new."""

    until: float | None = None
    """The time at which the batch is large enough. None if it needs a message."""


@attrs.frozen
class Limit:
    """
    The maximum of a batch. None means no limit.
    """

    sequences: int | None = None
    """Its sequences."""

    bytes: int | None = None
    """Its estimated bytes."""


@attrs.frozen
class Wanted:
    """
    The streams to ask for.
    """

    streams: frozenset[str]
    """Their names."""

    discover: bool
    """Whether to look for streams that match a pattern, too."""


@attrs.frozen
class Look:
    """
    A question for the first message of a stream that matches a filter.
    """

    stream: str
    """The stream."""

    start: int
    """The first sequence."""


@attrs.frozen
class Compare:
    """
    A question whether a stream continues the sequences of a position.
    """

    stream: str
    """The stream."""

    was: str
    """When the stream of the position was created."""

    created: str
    """When the stream was created that there is now."""

    next: int
    """The position."""

    last: Stored | None
    """A message of the stream of the position. None if none is known."""

    @property
    def is_same(self) -> bool:
        """
        Whether both were created at the same time.
        """
        return self.was == self.created
