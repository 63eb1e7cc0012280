"""
The replies to single requests.

All requests of a connection share one reply subject with a wildcard. The :class:`ReplyRouter`
receives for it and gives each reply to the :class:`Waiter` of its request. Delivering never blocks.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from typing import TYPE_CHECKING, Final

from jetsync._base.locks import Signal
from jetsync.errors import PermissionDeniedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from jetsync.values.frame import Frame

# Seconds after a refusal until the server is asked again. Each attempt is a round trip, and the
# server reports each refusal in its log.
REFUSED_PAUSE: Final = 1.0


class Waiter:
    """
    The receiver of one reply.

    Threads: one thread waits, the reading thread delivers, and the loop thread reports losses.
    Locks: none; ``ready`` is set before the waiting thread is woken. If two threads each set one
    attribute and then read the other one, at least one of them sees the change. Without the GIL,
    this holds because setting an attribute locks the object.

    Args:
        subject: The subject of the request. If the server refuses it, the waiter fails.
        in_batch: Whether the request is a message of a batch.
    """

    __slots__ = ("_signal", "epoch", "failure", "in_batch", "is_lost", "ready", "reply", "subject")

    def __init__(self, subject: bytes, in_batch: bool = False) -> None:  # noqa: FBT001, FBT002
        self.subject: bytes = subject
        self.in_batch: bool = in_batch
        self._signal: Signal | None = None
        # The connection that the request was written on, 0 before that.
        self.epoch: int = 0
        self.reply: Frame | None = None
        self.failure: Exception | None = None
        self.is_lost: bool = False
        # Whether a wait is over: there is a reply or a failure, or the connection was lost.
        self.ready: bool = False

    @property
    def signal(self) -> Signal:
        """The flag that is set once the wait is over; one thread may use it."""
        # Created when it is needed, because a thread that reads its own reply needs none. Either
        # this sees that the wait is over, or the thread that ends the wait sees the flag.
        signal = self._signal
        if signal is None:
            signal = self._signal = Signal()
            if self.ready:
                signal.set()
        return signal

    @property
    def may_be_refused(self) -> bool:
        """Whether the server may still refuse the request."""
        if self.reply is not None or self.is_lost:
            return False
        failure = self.failure
        denied = isinstance(failure, PermissionDeniedError) and failure.operation == "publish"
        return not denied

    def _end(self) -> None:
        """End the wait and wake the waiting thread."""
        self.ready = True
        if self._signal is not None:
            self._signal.set()

    def deliver(self, frame: Frame) -> None:
        """Take the reply and wake the waiting thread."""
        self.reply = frame
        # As `_end`, without a call, because every reply passes here.
        self.ready = True
        if self._signal is not None:
            self._signal.set()

    def lost(self, epoch: int) -> None:
        """End the wait if the request was written on connection *epoch* or an earlier one."""
        if self.reply is None and 0 < self.epoch <= epoch:
            self.is_lost = True
            self._end()

    def fail(self, error: Exception) -> None:
        """End the wait with *error*; the first error stays."""
        if self.failure is None:
            self.failure = error
        self._end()


class ReplyRouter:
    """
    The receiver of ``<inbox>.*``. It gives each reply to the waiter whose token ends its subject.

    Threads: any thread registers and forgets, the reading thread pushes and wakes, and the loop
    thread reports losses and refusals.
    Locks: none; the dictionary changes by single calls into C.

    The server may refuse the subscription at any time, because permissions change. Then the replies
    to requests in flight are lost, and no request is sent until the server accepts it again.
    """

    def __init__(self, inbox: bytes) -> None:
        self._prefix = inbox + b"."
        self._waiters: dict[bytes, Waiter] = {}
        self._tokens = itertools.count(1)
        self._frames: deque[Frame] = deque()
        self.push: Callable[[Frame], object] = self._frames.append
        self.express: Callable[[bytes, int], int] | None = None
        # Set once: the client is closed.
        self.failure: Exception | None = None
        # Why the server does not accept the subscription; set and cleared by the loop thread.
        self.refusal: PermissionDeniedError | None = None
        # The SUB line.
        self.line: bytes = b""
        # Whether the lane has written the line again after the refusal, on another connection.
        self._is_rewritten = False
        # When the server may be asked again.
        self._ask_at = 0.0

    @property
    def interest(self) -> bytes:
        """The subject to subscribe to."""
        return self._prefix + b"*"

    def register(self, waiter: Waiter) -> bytes:
        """Return the reply subject for *waiter*. Check :attr:`refusal` after this."""
        subject = b"%b%x" % (self._prefix, next(self._tokens))
        self._waiters[subject] = waiter
        if self.failure is not None:
            waiter.fail(self.failure)
        return subject

    def forget(self, reply_subject: bytes) -> None:
        """Drop a waiter; a reply that still arrives is ignored."""
        self._waiters.pop(reply_subject, None)

    def wake(self) -> None:
        """Give every reply that has arrived to its waiter; called by the reading thread."""
        frames, waiters = self._frames, self._waiters
        while frames:
            frame = frames.popleft()
            waiter = waiters.pop(frame[0], None)
            if waiter is not None:
                waiter.deliver(frame)

    def lost(self, epoch: int) -> None:
        """Tell all waiters. Requests that are not written yet wait for the next connection."""
        self._is_rewritten, self._ask_at = True, 0.0
        for waiter in list(self._waiters.values()):
            waiter.lost(epoch)

    def fail(self, error: Exception) -> None:
        """Fail all waiters, and all that register later."""
        if self.failure is None:
            self.failure = error
        for waiter in list(self._waiters.values()):
            waiter.fail(error)

    def denied(self, operation: str, subject: bytes, _error: Exception) -> bool:
        """
        Fail all requests if *subject* is the reply subscription itself.

        Returns whether the server has refused a subscription.
        """
        if operation == "subscribe" and subject == self.interest:
            self._lose_all(subject.decode())
        return operation == "subscribe"

    def in_flight(self, subject: bytes) -> list[Waiter]:
        """Return the requests on *subject* that wait for their replies."""
        waiters = list(self._waiters.values())
        return [one for one in waiters if one.subject == subject and one.may_be_refused]

    def refuse(self, waiters: list[Waiter], error: Exception) -> None:
        """Fail requests that the server has refused."""
        for waiter in waiters:
            waiter.fail(error)

    def _lose_all(self, subject: str) -> None:
        """Fail all waiters, because the replies to the requests in flight are lost."""
        self._is_rewritten, self._ask_at = False, time.monotonic() + REFUSED_PAUSE
        # Before the waiters: one that registers after this sees it.
        self.refusal = PermissionDeniedError(subject, "subscribe")
        error = PermissionDeniedError(subject, "subscribe", sent=True)
        for waiter in list(self._waiters.values()):
            waiter.fail(error)

    def ask_again(self) -> bytes | None:
        """
        Return what to write to subscribe again after a refusal; None if it is too early.

        For one caller at a time: the others get None for :data:`REFUSED_PAUSE` seconds. If two ask
        at the same moment, the server ignores the second line.
        """
        now = time.monotonic()
        if now < self._ask_at:
            return None
        self._ask_at = now + REFUSED_PAUSE
        return b"" if self._is_rewritten else self.line

    async def accept(self, refusal: PermissionDeniedError) -> PermissionDeniedError | None:
        """Forget *refusal*, or return a later one; loop thread."""
        if self.refusal is refusal:
            self.refusal = None
        return self.refusal

    def pending(self) -> int:
        """Return how many requests wait for a reply."""
        return len(self._waiters)
