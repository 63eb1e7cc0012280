"""
Core NATS subscriptions: messages as an iterator.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from typing import TYPE_CHECKING, Final

from jetsync import events
from jetsync._base import log as _log
from jetsync._base.deadline import Deadline, as_seconds
from jetsync._base.locks import refuse_reentry, take
from jetsync._io.connection import raise_failure
from jetsync._io.mailbox import Mailbox
from jetsync.errors import ConnectionClosedError, HandleClosedError, SlowConsumerError
from jetsync.values.message import Message

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Self

    from jetsync._base.deadline import Seconds
    from jetsync._io.connection import Connection
    from jetsync.values.frame import Frame

__all__ = ["Subscription"]

MAX_PENDING: Final = 65_536
"""Messages that a subscription buffers."""

MAX_PENDING_BYTES: Final = 64 << 20
"""Bytes that a subscription buffers: 64 MiB, as much as a server keeps for a slow client."""

TURN: Final = 3600.0
"""Seconds of one turn of an unbounded wait; an iteration takes as many turns as it needs."""


LINGER: Final = 5.0
"""Seconds for which messages that were on their way still arrive after an unsubscribe."""


_logger = _log.get_logger("jetsync.subscription")


class BoundedMailbox(Mailbox):
    """
    A mailbox that keeps the oldest messages up to a limit, and drops newer ones.

    A server sends whatever is published to the subject, so only the client can set a limit.
    """

    __slots__ = (
        "_arrived",
        "_max_bytes",
        "_max_count",
        "_report",
        "_reported",
        "_taken",
        "dropped",
        "slow",
    )

    def __init__(
        self,
        interest: bytes,
        max_count: int,
        max_bytes: int,
        report: Callable[[], Callable[[int], None] | None],
    ) -> None:
        """*report* is a weak reference, as the connection holds the mailbox until it is left."""
        super().__init__(interest)
        self.push = self._push
        self.dropped = 0
        self._max_count = max_count
        self._max_bytes = max_bytes
        self._report = report
        self._reported = 0
        self.slow = False
        """Whether messages were dropped that the user does not know of."""
        # Two counters: the reading thread writes one, the thread that takes messages the other.
        self._arrived = self._taken = 0

    @property
    def ready(self) -> bool:
        return self.slow or super().ready

    def _push(self, frame: Frame) -> None:
        # Not a function of its own, as a call costs more than the rest.
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
        """Report messages that were dropped, unless the last report was not read; then wake."""
        if self.dropped > self._reported and not self.slow:
            self.slow = True
            report = self._report()
            if report is not None:
                report(self.dropped - self._reported)
        super().wake()

    def take(self) -> Frame:
        """Take the oldest message."""
        frame = self.frames.popleft()
        self._taken += len(frame[0]) + len(frame[3]) + len(frame[2] or b"")
        return frame

    def take_dropped(self) -> int:
        """Return how many messages were dropped since the last call."""
        # Lowered first: messages that are dropped meanwhile raise it again.
        self.slow = False
        before, self._reported = self._reported, self.dropped
        return self._reported - before


class Subscription:
    """
    A core NATS subscription: iterate over it, or ask for the next message.

    The iteration ends when the subscription or the client is closed by this process, and raises if
    the server refuses the subject or the connection ends for good. Several threads may take from
    one subscription; each message goes to one of them.

    The subscription buffers messages up to the limits of :meth:`Client.subscribe`. If the buffer is
    full, it drops newer messages. The next call then raises SlowConsumerError once, with the number
    of dropped messages, and the calls after it return the buffered messages. To go on after the
    error in a loop, start another loop over the same subscription.

    A subscription that is no longer referenced unsubscribes.
    """

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
        self._on_close = on_close
        self.subject = subject
        self.queue = queue
        self._closed = False
        self._draining = False
        # A mailbox has one waiting thread at a time; the others queue up here.
        self._turn = threading.RLock()
        self._box = BoundedMailbox(
            subject.encode(), max_pending, max_pending_bytes, weakref.WeakMethod(self._report_drop)
        )
        self._sid, line = connection.listen(self._box, b"" if queue is None else queue.encode())
        try:
            connection.lane.write(line, connection.deadline(None))
        except BaseException:
            connection.lane.unsubscribe(self._sid)
            raise

    def __del__(self) -> None:
        # Neither waits nor fails.
        if getattr(self, "_sid", None) is not None:
            self._connection.lane.unsubscribe(self._sid)

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
        while True:
            message = self._take(Deadline.after(TURN))
            if message is not None:
                return message
            if self._is_over():
                raise StopIteration

    def next(self, *, timeout: Seconds | None = None) -> Message | None:
        """
        Return the next message, or None when none came in time.

        Args:
            timeout: Seconds to wait; None is the client's ``request_timeout``, 0 only looks.

        Raises:
            HandleClosedError: The subscription was closed, which drops the messages that were not
                taken, or it was drained and has no message left.
            SlowConsumerError: Messages were dropped since the last call; call again to go on.
            PermissionDeniedError: The server refuses the subject.
            ConnectionClosedError: The client is closed.
        """
        message = self._take(self._connection.deadline(timeout))
        if message is None and self._is_over():
            self._connection.check()
            raise HandleClosedError("subscription")
        return message

    @property
    def pending(self) -> int:
        """How many messages wait to be taken."""
        return len(self._box.frames)

    @property
    def dropped(self) -> int:
        """How many messages were dropped because the buffer was full."""
        return self._box.dropped

    def close(self) -> None:
        """Unsubscribe, drop what was not taken, and wake who waits; safe to repeat. Any thread."""
        self._box.frames.clear()
        self._box.take_dropped()
        self.drain()

    def unsubscribe_nowait(self, linger: Seconds = LINGER) -> None:
        """
        Unsubscribe, and still take what the server had sent before; safe to repeat. Any thread.

        After a flush all of that is here; :meth:`drain` then lets the iteration end.

        Args:
            linger: Seconds for which messages may still arrive.
        """
        self._connection.lane.unsubscribe(self._sid, grace=as_seconds(linger, "linger"))

    def drain(self) -> None:
        """Unsubscribe; the iteration goes on until the messages that are here have been taken."""
        if not self._closed:
            self._closed = True
            self._connection.lane.unsubscribe(self._sid)
            self._box.fail(HandleClosedError("subscription"))
            self._connection.lane.wake_reader()
            self._on_close(self)

    def _take(self, deadline: Deadline) -> Message | None:
        box = self._box
        # In a forked child the turn may be held by a thread that does not exist.
        self._connection.check_process()
        refuse_reentry(self._turn)
        taken: list[bool] = []
        try:
            if not take(self._turn, taken, deadline.remaining()):
                return None
            while True:
                if box.slow and (dropped := box.take_dropped()):
                    self._emit_drop(dropped)
                    raise SlowConsumerError(self.subject, dropped)
                with contextlib.suppress(IndexError):  # Empty, perhaps closed at this moment.
                    return Message(*box.take(), self._connection)
                if box.failure is not None:
                    if self._is_over():
                        return None
                    raise_failure(box.failure)
                box.take_lost()
                self._connection.check()
                if not self._connection.lane.wait(box, deadline):
                    return None
        finally:
            if True in taken:
                self._turn.release()

    def _is_over(self) -> bool:
        """Whether there is nothing left of a subscription that this process closed."""
        failure = self._box.failure
        closed_here = isinstance(failure, HandleClosedError) or (
            isinstance(failure, ConnectionClosedError) and failure.__cause__ is None
        )
        return closed_here and not self._box.frames

    def _report_drop(self, dropped: int) -> None:
        """Report that messages are being dropped; called by the reading thread."""
        self._emit_drop(dropped)
        # Log handlers are code of the application, which must not run under the read lock.
        self._connection.lane.later(0.0, _log_drop, self.subject, dropped)

    def _emit_drop(self, dropped: int) -> None:
        self._connection.emit(events.SlowConsumerEvent(subject=self.subject, dropped=dropped))


def _log_drop(subject: str, dropped: int) -> None:
    _logger.warning(_log.SLOW_CONSUMER, subject=subject, dropped=dropped)
