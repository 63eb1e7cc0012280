"""
Wait for new messages of streams without asking for them repeatedly.

An ordered consumer per stream waits on the server for the next message and sends its headers. While
there are no messages, the server sends a heartbeat every 5 seconds, or every 30 seconds if there
are many consumers. If the planner is killed, the server deletes the consumer after
:data:`INACTIVE` seconds, or :data:`LONG_INACTIVE` if there are many.

There is no cheaper way to wait for many streams. A subscription to their subjects would get no
messages that come from other streams. It would also hide from publishers that a stream has no
leader: the server reports "no responders" only if a subject has no subscriber at all.

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
    from collections.abc import Callable, Mapping

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

FEW: Final = 16
"""
Consumers that one call creates at most. For more streams, several calls are needed, so that each
call is short.
"""

LONG_PULL: Final = 600.0
"""Seconds of a pull if there are more consumers."""

LONG_HEARTBEAT: Final = 30.0
"""Seconds between two heartbeats then."""

LONG_INACTIVE: Final = 300.0
"""Seconds until a consumer is deleted then. jetsync sends a pull in each third of this time."""

SLICE: Final = 0.02
"""Seconds for which one of several streams is waited for before the others are checked."""

ROUND: Final = 1.0
"""
Seconds after which all streams are checked, so that their pulls are renewed. They are checked
earlier only if something has arrived, because checking 500 streams takes several milliseconds.
"""

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

        self._checked: Mapping[str, int] | None = None
        """What was expected when all streams were checked last."""

        self._received = 0
        """The bytes that the client had received then."""

        self._check_at = 0.0
        """When they have to be checked again."""

    def __reduce__(self) -> tuple[type[Arrivals], tuple[tuple[str, ...]]]:
        return Arrivals, (self._filters,)

    def wait(
        self,
        client: jetsync.Client,
        expected: Mapping[str, int],
        seconds: float,
        find: Callable[[str], jetsync.Stream] | None = None,
    ) -> bool | None:
        """
        Wait until a stream has a message from a sequence on.

        Args:
            client: The client of the consumers.
            expected: For each stream the sequence.
            seconds: How long to wait.
            find: Returns a stream. None asks the server.

        Returns:
            True if there is such a message, False if there is none yet, and None, at once, if the
            streams have to be asked instead.
        """
        for stream in [*self._watches]:
            if stream not in expected or self._watches[stream].client is not client:
                self._drop(stream)
        if not expected:
            return None
        end = time.monotonic() + seconds
        if not self._watches_all(expected, client, find or client.jetstream().stream):
            return None
        first = next(iter(expected))
        longest = SLICE if len(expected) > 1 else seconds
        while True:
            left = max(0.0, end - time.monotonic())
            if self._arrives(first, expected[first], min(left, longest)):
                return True
            if self._should_check(client, expected) and any(
                self._arrives(*each, 0.0) for each in expected.items()
            ):
                self._checked = None
                return True
            if not left:
                return False

    def _should_check(self, client: jetsync.Client, expected: Mapping[str, int]) -> bool:
        """Return whether to check all streams, because something has arrived or time has passed."""
        received, now = client.statistics().bytes_in, time.monotonic()
        if expected == self._checked and received == self._received and now < self._check_at:
            return False
        self._checked, self._received, self._check_at = expected, received, now + ROUND
        return True

    def _arrives(self, stream: str, sequence: int, seconds: float) -> bool:
        """Return whether a message has arrived or the consumer was lost."""
        try:
            return self._watches[stream].arrives(sequence, seconds)
        except jetsync.JetSyncError as error:
            _logger.info("consumer_lost", stream=stream, reason=str(error))
            self._drop(stream)
            if isinstance(error, jetsync.PermissionDeniedError):
                self._not_before[stream] = time.monotonic() + REFUSED
            return True

    def _watches_all(
        self,
        expected: Mapping[str, int],
        client: jetsync.Client,
        find: Callable[[str], jetsync.Stream],
    ) -> bool:
        """Return whether consumers wait for all messages. Create some of those that are missing."""
        many, made = len(expected) > FEW, 0
        for stream, sequence in expected.items():
            if self._is_watched(stream, sequence):
                continue
            if made == FEW:
                return False
            watch = self._watch(find, stream, sequence, many=many)
            if watch is None:
                return False
            self._watches[stream] = _Watch(client, *watch, sequence - 1)
            made += 1
        return True

    def _is_watched(self, stream: str, sequence: int) -> bool:
        watch = self._watches.get(stream)
        return watch is not None and sequence - watch.position <= SKIPPED

    def _watch(
        self, find: Callable[[str], jetsync.Stream], stream: str, sequence: int, *, many: bool
    ) -> tuple[jetsync.OrderedConsumer, jetsync.OrderedConsumption] | None:
        """Create a consumer that waits for a message from a sequence on, unless it may not."""
        now = time.monotonic()
        if now < self._not_before.get(stream, 0.0):
            return None
        self._drop(stream)
        self._not_before[stream] = now + PAUSE
        try:
            handle = find(stream)
            if (handle.config.max_consumers or 0) > 0:
                # The place may be meant for another consumer.
                self._not_before[stream] = now + REFUSED
                return None
            consumer = handle.ordered_consumer(
                filter_subjects=without_covered(self._filters) or None,
                opt_start_seq=sequence,
                headers_only=True,
                inactive_threshold=LONG_INACTIVE if many else INACTIVE,
                max_reset_attempts=1,
            )
            return consumer, consumer.consume(
                max_messages=BUFFER,
                expires=LONG_PULL if many else None,
                heartbeat=LONG_HEARTBEAT if many else None,
            )
        except jetsync.JetSyncError as error:
            _logger.info("polling", stream=stream, reason=str(error))
            self._not_before[stream] = now + REFUSED
            return None

    def _drop(self, stream: str) -> None:
        watch = self._watches.pop(stream, None)
        if watch is not None:
            watch.close()
