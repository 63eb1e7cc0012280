"""
Wait for new messages of streams without asking for them repeatedly.

An ordered consumer per stream waits on the server for the next message and sends its headers. It
costs the server one heartbeat every 5 seconds while there are no messages. If the planner is
killed, the server deletes the consumer after :data:`INACTIVE` seconds.

A consumer stays in place while a query reads batches. Afterwards it skips the messages of these
batches, or is replaced if there were many of them.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import attrs

import jetsync
from jetsync_spark.common.subjects import without_covered

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Arrivals"]

INACTIVE: Final = 30.0
"""Seconds without a pull after which the server deletes a consumer."""

BUFFER: Final = 100
"""Headers of messages that a consumer sends ahead."""

SKIPPED: Final = 500
"""Sequences that a consumer skips at most. Beyond that another consumer is cheaper."""

PAUSE: Final = 2.0
"""Minimum seconds between two consumers of a stream."""

REFUSED: Final = 60.0
"""Seconds until another attempt if a stream limits its consumers, or the server rejects one."""

MOST: Final = 16
"""Maximum number of streams with consumers."""

SLICE: Final = 0.02
"""Seconds for which one of several streams is waited for before the others are checked."""

_logger = jetsync.get_logger("jetsync.spark.arrivals")


@attrs.define(eq=False)
class _Watch:
    """
    A consumer that waits for the next message of a stream.
    """

    client: jetsync.Client
    consumer: jetsync.OrderedConsumer
    reading: jetsync.OrderedConsumption
    position: int
    """The sequence of the last message that it has delivered or skipped."""

    def arrives(self, sequence: int, seconds: float) -> bool:
        """
        Return whether a message from *sequence* on has arrived or arrives in time.

        Raises:
            JetSyncError: The consumer has failed.
        """
        while self.position < sequence:
            message = self.reading.next(timeout=seconds)
            if message is None:
                if self.reading.closed:
                    raise jetsync.ConsumptionClosedError
                return False
            self.position = message.metadata.stream_sequence
        return True

    def close(self) -> None:
        """
        Delete the consumer, unless its client is closed.
        """
        try:
            self.consumer.close(timeout=1.0)
        except jetsync.JetSyncError as error:
            _logger.debug("consumer_left", reason=str(error))


class Arrivals:
    """
    Waits for new messages of streams.

    Not thread-safe. A pickled copy has no consumers.

    Args:
        filters: The subjects of the messages. Empty for all.
    """

    def __init__(self, filters: tuple[str, ...]) -> None:
        self._filters = filters
        self._watches: dict[str, _Watch] = {}
        self._not_before: dict[str, float] = {}
        """When another consumer of a stream may be created."""

    def __reduce__(self) -> tuple[type[Arrivals], tuple[tuple[str, ...]]]:
        return Arrivals, (self._filters,)

    def wait(
        self, client: jetsync.Client, expected: Mapping[str, int], seconds: float
    ) -> bool | None:
        """
        Wait until a stream has a message from a sequence on.

        Args:
            client: The client of the consumers.
            expected: For each stream the sequence.
            seconds: How long to wait.

        Returns:
            True if there is such a message, False if there is none yet, and None, at once, if the
            streams have to be asked instead.
        """
        for stream in [*self._watches]:
            if stream not in expected or self._watches[stream].client is not client:
                self._drop(stream)
        if not expected or len(expected) > MOST:
            return None
        end = time.monotonic() + seconds
        for stream, sequence in expected.items():
            if not self._watches_from(client, stream, sequence):
                return None
        first = next(iter(expected))
        while True:
            left = max(0.0, end - time.monotonic())
            for stream, sequence in expected.items():
                part = min(left, SLICE) if len(expected) > 1 else left
                try:
                    if self._watches[stream].arrives(sequence, part if stream == first else 0.0):
                        return True
                except jetsync.JetSyncError as error:
                    _logger.info("consumer_lost", stream=stream, reason=str(error))
                    self._drop(stream)
                    if isinstance(error, jetsync.PermissionDeniedError):
                        self._not_before[stream] = time.monotonic() + REFUSED
                    return True
            if not left:
                return False

    def _watches_from(self, client: jetsync.Client, stream: str, sequence: int) -> bool:
        """Return whether a consumer waits for a message from a sequence on. Create one if not."""
        watch = self._watches.get(stream)
        if watch is not None and sequence - watch.position <= SKIPPED:
            return True
        now = time.monotonic()
        if now < self._not_before.get(stream, 0.0):
            return False
        self._drop(stream)
        self._not_before[stream] = now + PAUSE
        try:
            handle = client.jetstream().stream(stream)
            if (handle.config.max_consumers or 0) > 0:
                # The place may be meant for another consumer.
                self._not_before[stream] = now + REFUSED
                return False
            consumer = handle.ordered_consumer(
                filter_subjects=without_covered(self._filters) or None,
                opt_start_seq=sequence,
                headers_only=True,
                inactive_threshold=INACTIVE,
                max_reset_attempts=1,
            )
            reading = consumer.consume(max_messages=BUFFER)
        except jetsync.JetSyncError as error:
            _logger.info("polling", stream=stream, reason=str(error))
            self._not_before[stream] = now + REFUSED
            return False
        self._watches[stream] = _Watch(client, consumer, reading, sequence - 1)
        return True

    def _drop(self, stream: str) -> None:
        watch = self._watches.pop(stream, None)
        if watch is not None:
            watch.close()
