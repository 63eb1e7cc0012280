"""
Core NATS subscriptions: messages as an iterator.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from jetsync import events
from jetsync._deadline import Deadline, as_seconds
from jetsync._handoff import Mailbox
from jetsync._locks import refuse_reentry
from jetsync._session import raise_failure
from jetsync.errors import ConnectionClosedError, HandleClosedError
from jetsync.message import Message

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Self

    from jetsync._session import Session
    from jetsync.typing import Seconds

__all__ = ["Subscription"]

PENDING_LIMIT: Final = 65_536
"""Messages that may wait to be taken; what comes beyond is dropped, counted and reported."""

TURN: Final = 3600.0
"""Seconds of one turn of an unbounded wait; an iteration takes as many turns as it needs."""


LINGER: Final = 5.0
"""Seconds for which messages that were on their way still arrive after an unsubscribe."""


class BoundedMailbox(Mailbox):
    """
    A mailbox that drops what comes while nobody takes what came before.

    Nothing bounds what a core subscription may be sent, other than what a pull asked for.
    """

    __slots__ = ("_on_drop", "dropped", "limit")

    def __init__(self, interest: bytes, limit: int, on_drop: Callable[[int], None]) -> None:
        super().__init__(interest)
        self.limit = limit
        self.dropped = 0
        self._on_drop = on_drop

    def wake(self) -> None:
        """Keep the oldest messages up to the limit, and wake who waits."""
        excess = len(self.frames) - self.limit
        if excess > 0:
            for _ in range(excess):
                self.frames.pop()
            self.dropped += excess
            self._on_drop(self.dropped)
        super().wake()


class Subscription:
    """
    A core NATS subscription: iterate over it, or ask for the next message.

    The iteration ends when the subscription or the client is closed by this process, and raises if
    the server refuses the subject or the connection ends for good. Several threads may take from
    one subscription; each message goes to one of them. Messages wait here until somebody takes
    them, up to 65,536; what comes beyond is dropped, counted in :attr:`dropped` and reported as a
    slow-consumer event.
    """

    def __init__(
        self,
        session: Session,
        subject: str,
        queue: str | None,
        on_close: Callable[[Subscription], None],
    ) -> None:
        self._session = session
        self._on_close = on_close
        self.subject = subject
        self.queue = queue
        self._closed = False
        self._draining = False
        # A mailbox has one waiting thread at a time; the others queue up here.
        self._turn = threading.RLock()
        self._box = BoundedMailbox(subject.encode(), PENDING_LIMIT, self._report_drop)
        self._sid, line = session.open_box(
            self._box.interest, self._box, b"" if queue is None else queue.encode()
        )
        try:
            session.lane.write(line, session.deadline(None))
        except BaseException:
            session.lane.leave(self._sid)
            raise

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

    def next(self, timeout: Seconds | None = None) -> Message | None:
        """
        Return the next message, or None when none came in time.

        Args:
            timeout: Seconds to wait; None is the client's ``request_timeout``, 0 only looks.

        Raises:
            HandleClosedError: The subscription was closed and has no message left.
            PermissionDeniedError: The server refuses the subject.
            ConnectionClosedError: The client is closed.
        """
        message = self._take(self._session.deadline(timeout))
        if message is None and self._is_over():
            self._session.check()
            raise HandleClosedError("subscription")
        return message

    @property
    def pending(self) -> int:
        """How many messages wait to be taken."""
        return len(self._box.frames)

    @property
    def dropped(self) -> int:
        """How many messages were dropped because nobody took them in time."""
        return self._box.dropped

    def close(self) -> None:
        """Unsubscribe, drop what was not taken, and wake who waits; safe to repeat. Any thread."""
        self._box.frames.clear()
        self.drain()

    def unsubscribe_nowait(self, linger: Seconds = LINGER) -> None:
        """
        Unsubscribe, and still take what the server had sent before; safe to repeat. Any thread.

        After a flush all of that is here; :meth:`drain` then lets the iteration end.

        Args:
            linger: Seconds for which messages may still arrive.
        """
        self._session.lane.leave(self._sid, linger=as_seconds(linger, "linger"))

    def drain(self) -> None:
        """Unsubscribe; the iteration goes on until the messages that are here have been taken."""
        if not self._closed:
            self._closed = True
            self._session.lane.leave(self._sid)
            self._box.fail(HandleClosedError("subscription"))
            self._session.lane.nudge()
            self._on_close(self)

    def _take(self, deadline: Deadline) -> Message | None:
        box = self._box
        # In a forked child the turn may be held by a thread that does not exist.
        self._session.check_process()
        refuse_reentry(self._turn)
        if not self._turn.acquire(timeout=deadline.remaining()):
            return None
        try:
            while not box.frames:
                if box.failure is not None:
                    if self._is_over():
                        return None
                    raise_failure(box.failure)
                box.take_lost()
                self._session.check()
                if not self._session.lane.wait(box, deadline):
                    return None
            return Message(*box.frames.popleft(), self._session)
        finally:
            self._turn.release()

    def _is_over(self) -> bool:
        """Whether there is nothing left of a subscription that this process closed."""
        failure = self._box.failure
        closed_here = isinstance(failure, HandleClosedError) or (
            isinstance(failure, ConnectionClosedError) and failure.__cause__ is None
        )
        return closed_here and not self._box.frames

    def _report_drop(self, dropped: int) -> None:
        self._session.emit(events.SlowConsumerEvent(subject=self.subject, dropped=dropped))
