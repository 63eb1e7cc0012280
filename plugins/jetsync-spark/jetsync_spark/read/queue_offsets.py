"""
The offsets of a query that reads through a durable consumer.

This module does no I/O. An offset holds the messages of its batch and nothing about earlier
batches, because these are acknowledged before the next batch is planned. It also holds the
consumer's filters and the parts, so that a batch that is planned again has the same rows in the
same partitions.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import attrs

from jetsync_spark.common.errors import JetStreamSparkError
from jetsync_spark.read.deliveries import Run, Runs
from jetsync_spark.read.offsets import CONSUMER

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["QueueOffset", "QueuePart"]


@attrs.frozen
class QueuePart:
    """
    A part of a batch, for one task.
    """

    stream: str
    """The stream."""

    created: str
    """When the stream was created, to detect a new stream with the same name."""

    filters: tuple[str, ...]
    """The filters of the consumer. Empty for all messages."""

    runs: Runs
    """The messages."""


@attrs.frozen
class QueueOffset:
    """
    The end of a batch.
    """

    stream: str
    """The stream."""

    created: str
    """When the stream was created."""

    consumer: str
    """The name of the consumer."""

    made: str
    """When the consumer was created."""

    filters: tuple[str, ...] = ()
    """The filters of the consumer."""

    parts: tuple[Runs, ...] = ()
    """The messages of the batch, by part. Empty at the start of a query."""

    @property
    def runs(self) -> Runs:
        """
        All messages of the batch.
        """
        return Runs(tuple(itertools.chain.from_iterable(part.runs for part in self.parts)))

    def tasks(self) -> list[QueuePart]:
        """
        Return what each task of the batch reads.
        """
        return [QueuePart(self.stream, self.created, self.filters, runs) for runs in self.parts]

    def to_json(self) -> dict[str, Any]:
        """
        Return the offset for Spark. The order of the keys never changes.
        """
        return {
            "v": CONSUMER,
            "stream": self.stream,
            "created": self.created,
            "consumer": self.consumer,
            "made": self.made,
            "filters": list(self.filters),
            "parts": [[_shown(run) for run in part.runs] for part in self.parts],
        }

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> QueueOffset:
        """
        Parse an offset from a checkpoint.

        Raises:
            JetStreamSparkError: The offset is malformed, or of a query that reads no consumer.
        """
        try:
            if given["v"] != CONSUMER:
                raise JetStreamSparkError(
                    "the checkpoint is of a query without option consumer",
                    cure="leave out the option consumer, or start with a new checkpoint",
                )
            return cls(
                str(given["stream"]),
                str(given["created"]),
                str(given["consumer"]),
                str(given["made"]),
                tuple(map(str, given["filters"])),
                tuple(Runs(tuple(map(_run_of, part))) for part in given["parts"]),
            )
        except (AttributeError, KeyError, TypeError, ValueError):
            raise JetStreamSparkError(
                f"the checkpoint has an offset that this version cannot parse: {given}",
                cure="use the version that wrote it, or start with a new checkpoint",
            ) from None


def _shown(run: Run) -> list[int]:
    """Return a run as JSON. The count is left out if it follows from the sequences."""
    return [run.first, run.last] if run.is_dense else [run.first, run.last, run.count]


def _run_of(given: list[int]) -> Run:
    first, last, *count = map(int, given)
    return Run(first, last, count[0] if count else last - first + 1)
