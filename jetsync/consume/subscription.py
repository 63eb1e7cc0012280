"""
Core NATS subscriptions: messages as an iterator.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final, TypeVar

from jetsync import errors, events
from jetsync._base.deadline import FOREVER, Deadline, as_seconds
from jetsync._base.dropped import disown, when_dropped
from jetsync._base.failures import raise_failure
from jetsync._base.iterations import one_by_one
from jetsync._base.log import get_logger
from jetsync._base.pickling import refuse_copy
from jetsync._io.listener import Listener
from jetsync._io.mailbox import Mailbox
from jetsync.consume.reading import Reading, is_own_close
from jetsync.values.message import Message

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Self

    from jetsync._base.deadline import Seconds
    from jetsync._io.connection import Connection
    from jetsync._io.lane import Lane
    from jetsync.values.frame import Frame

__all__ = ["Subscription"]

# The default limits of a subscription's buffer, in messages and bytes. A server buffers as many
# bytes for a slow client.
MAX_PENDING: Final = 65_536
MAX_PENDING_BYTES: Final = 64 << 20

# Seconds for which messages that are in flight still arrive after an unsubscribe.
UNSUBSCRIBE_GRACE: Final = 5.0

T = TypeVar("T")

_logger = get_logger("jetsync.subscription")


class BoundedMailbox(Mailbox):
    """
    A mailbox that keeps the oldest messages up to a limit, and drops newer ones.

    The server sends every message that is published to the subject, so only the client can limit
    them.

    Threads: the one that reads the socket pushes messages. The one that has the reading turn takes
    them.
    Locks: none of its own; each counter has one writer.
    """

    def __init__(
        self,
        interest: bytes,
        reports: DropReports,
        max_count: int = MAX_PENDING,
        max_bytes: int = MAX_PENDING_BYTES,
    ) -> None:
        super().__init__(interest, collect_denials=reports.is_request, sink=self._push)
        self.dropped: int = 0
        self._max_count = max_count
        self._max_bytes = max_bytes
        self._reports = reports
        self._reported = 0
        # Whether messages were dropped and no call has raised an error for them yet.
        self.slow: bool = False
        # Bytes. The reading thread writes one counter, the thread that takes messages the other.
        self._arrived = self._taken = 0
        self._oldest = one_by_one(deque.popleft, self.frames)

    @property
    def ready(self) -> bool:
        return self.slow or super().ready

    def _push(self, frame: Frame) -> None:
        # Inlined, because a call costs more than the rest.
        size = len(frame[0]) + len(frame[3]) + len(frame[2] or b"")
        kept = len(self.frames)
        # One message is always kept, however large it is.
        if kept and (
            kept >= self._max_count or self._arrived - self._taken + size > self._max_bytes
        ):
            self.dropped += 1
        else:
            self._arrived += size
            self.frames.append(frame)

    def wake(self) -> None:
        """Report dropped messages, unless an earlier report is unread, and wake the thread."""
        if self.dropped > self._reported and not self.slow:
            self.slow = True
            self._reports.began(self.dropped - self._reported)
        super().wake()

    def receive(self, held: dict[int, Any], me: int, wait: Callable[[T], bool], until: T) -> bool:
        """
        Move the oldest message to ``held[me]``, unless there is one, and return whether there is.

        Calls *wait* with *until* as long as there is none, and ends if it returns false.

        Raises:
            SlowConsumerError: Messages were dropped since the last call.
        """
        while me not in held:
            if self.slow and (dropped := self.take_dropped()):
                raise self._reports.error(dropped)
            try:
                frame = self.frames[0]
                size = len(frame[0]) + len(frame[3]) + len(frame[2] or b"")
                for frame in self._oldest:
                    # No signal handler runs before the return, because nothing is called.
                    held[me] = frame
                    self._taken += size
                    return True
            except IndexError:  # Empty, or closed at this moment.
                pass
            if not wait(until):
                return False
        return True

    def take_dropped(self) -> int:
        """Return how many messages were dropped since the last call."""
        # Cleared first, because messages that are dropped meanwhile set it again.
        self.slow = False
        before, self._reported = self._reported, self.dropped
        return self._reported - before


class DropReports:
    """
    Reports the messages that a :class:`BoundedMailbox` dropped, as events, errors and in the log.

    Threads: any.
    Locks: none.

    Args:
        connection: The connection.
        subject: The subject in the reports.
        is_request: Whether the messages are answers to a request.
    """

    def __init__(self, connection: Connection, subject: str, *, is_request: bool = False) -> None:
        self.is_request = is_request
        self._connection = connection
        self._subject = subject

    def began(self, dropped: int) -> None:
        """Report that messages are being dropped; called by the reading thread."""
        self._emit(dropped)
        # Log handlers are code of the application and must not run under the read lock.
        self._connection.lane.later(0.0, _log_drop, self._subject, dropped)

    def error(self, dropped: int) -> errors.SlowConsumerError:
        """Report dropped messages to the plugins, and return the error for the caller."""
        self._emit(dropped)
        return errors.SlowConsumerError(self._subject, dropped, is_request=self.is_request)

    def _emit(self, dropped: int) -> None:
        self._connection.emit(events.SlowConsumerEvent(subject=self._subject, dropped=dropped))


class Subscription:
    """
    A core NATS subscription: iterate over it, or ask for the next message.

    The iteration ends when this process closes the subscription or the client. It raises if the
    server refuses the subject or the connection cannot be restored. Several threads may take
    messages, and each message goes to one of the threads.

    The subscription buffers messages up to the limits of :meth:`Client.subscribe`. If the buffer is
    full, it drops newer messages. The next call then raises SlowConsumerError once, with the number
    of dropped messages, and the calls after it return the buffered messages. A loop over the
    subscription ends with this error. To continue, start another loop over it.

    If your program drops its last reference to an open subscription, jetsync unsubscribes and emits
    a ResourceWarning.
    """

    # Threads: any, and signal handlers.
    # Locks: the thread that takes a message has the turn of `_reading`. `_closed` needs
    # none, because it is only ever set.

    __reduce__ = refuse_copy

    def __init__(
        self,
        connection: Connection,
        subject: str,
        queue: str | None,
        on_close: Callable[[Subscription], object],
        *,
        max_pending: int = MAX_PENDING,
        max_pending_bytes: int = MAX_PENDING_BYTES,
    ) -> None:
        self._connection = connection
        self._lane = connection.lane
        self._on_close = on_close
        self.subject = subject
        self.queue = queue
        self._closed = False
        self._reading = Reading("subscription", connection)
        reports = DropReports(connection, subject)
        self._box = BoundedMailbox(subject.encode(), reports, max_pending, max_pending_bytes)
        group = b"" if queue is None else queue.encode()
        self._listener = listener = Listener(self._lane, self._box, group)
        try:
            self._lane.write(listener.line, connection.deadline(None))
        except errors.JetSyncError:
            # After Ctrl-C, the listener unsubscribes, because it is dropped.
            listener.end()
            raise
        name = f"subscription to {subject!r}"
        self._dropped = when_dropped(self, name, _unsubscribe, self._lane, listener)
        disown(self._lane.later, self)

    def __repr__(self) -> str:
        state = "closed" if self._closed else "open"
        return (
            f"<Subscription {self.subject} {state} pending={self.pending} dropped={self.dropped}>"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Message:
        for message in map(self._reading.take, (self._receive,), (FOREVER,)):
            return message
        raise StopIteration

    def next(self, *, timeout: Seconds | None = None) -> Message | None:
        """
        Return the next message, or None if none arrives in time.

        Args:
            timeout: Seconds to wait. Default: the client's ``request_timeout``. 0 returns only a
                message that has already arrived.

        Raises:
            HandleClosedError: The subscription was closed, or it was drained and has no message
                left.
            SlowConsumerError: Messages were dropped since the last call. Call again to continue.
            PermissionDeniedError: The server refuses the subject.
            ConnectionClosedError: The client is closed.
        """
        deadline = self._connection.deadline(timeout)
        for message in map(self._reading.take, (self._receive,), (deadline,)):
            return message
        if self._is_over():
            if not self._connection.stopping:
                self._lane.check()
            self._reading.end_next()
        return None

    @property
    def pending(self) -> int:
        """How many messages have arrived and were not taken yet."""
        return len(self._box.frames)

    @property
    def dropped(self) -> int:
        """How many messages were dropped because the buffer was full."""
        return self._box.dropped

    def close(self) -> None:
        """
        Unsubscribe and drop the messages that were not taken.

        Threads that wait for a message are woken. Thread-safe and safe to repeat.
        """
        self._box.frames.clear()
        # Messages that were dropped before do not matter any more, so no call raises for them.
        self._box.take_dropped()
        self.drain()

    def unsubscribe_nowait(self, *, grace: Seconds = UNSUBSCRIBE_GRACE) -> None:
        """
        Unsubscribe, but still accept the messages that are in flight.

        Call ``flush`` of the client to wait until they have arrived. Then call :meth:`drain` to
        end the iteration after them. Thread-safe and safe to repeat.

        Args:
            grace: Seconds for which messages are accepted.
        """
        self._listener.end(grace=as_seconds(grace, "grace"))

    def drain(self) -> None:
        """
        Unsubscribe, and end the iteration once all messages that have arrived are taken.

        Does not wait. Thread-safe and safe to repeat.
        """
        if not self._closed:
            self._closed = True
            self._dropped.detach()
            # The other members of a queue group get the next messages.
            self._listener.end(is_urgent=True)
            self._box.fail(errors.HandleClosedError("subscription"))
            self._lane.reader.wake_reader()
            self._on_close(self)

    def _receive(self, deadline: Deadline, me: int) -> Message | None:
        """Hold and return the next message; None at the end or at the deadline. In the turn."""
        held: dict[int, Frame] = self._reading.held
        if not self._box.receive(held, me, self._wait, deadline):
            return None
        return Message(*held[me], self._connection)

    def _wait(self, deadline: Deadline) -> bool:
        """Wait for a message, unless this process closed it; raise if it failed."""
        if self._box.failure is None:
            self._box.take_lost()
            self._lane.check()
            return self._lane.wait(self._box, deadline)
        if not self._is_over():
            raise_failure(self._box.failure)
        return False

    def _is_over(self) -> bool:
        """Return whether this process closed it and all messages were taken."""
        failure = self._box.failure
        closed_here = isinstance(failure, errors.HandleClosedError) or is_own_close(failure)
        return closed_here and not self._box.frames


def _unsubscribe(lane: Lane, listener: Listener) -> bool:
    """Return whether a dropped subscription was open; never waits."""
    is_open = lane.outbox.reason is None
    listener.end(is_urgent=True)
    return is_open


def _log_drop(subject: str, dropped: int) -> None:
    _logger.warning("slow_consumer", subject=subject, dropped=dropped)
