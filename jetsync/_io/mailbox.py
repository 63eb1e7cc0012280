"""
Receivers: they pass frames from the thread that reads the socket to the thread that waits.

- A :class:`Waiter` gets the reply to one request.
- A :class:`Mailbox` queues the frames of one subscription.
- The :class:`ReplyRouter` receives for the reply subject that all requests of a connection share.
  It gives each reply to its waiter.

Delivering never blocks and never runs code of the application. The reading thread wakes a receiver
once for each block of frames that it read, not once for each frame. A mailbox has no limit of its
own: a pull asks for so many messages, and a publish window has a size.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections import deque
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from jetsync.errors import PermissionDeniedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from jetsync._io.lane import Lane
    from jetsync.values.frame import Frame

# Each publisher of a client gets the refused publishes of all of them, so the limit is higher than
# the size of a window by default.
KEPT_DENIALS: Final = 8192

# Seconds after a refusal until the server is asked again. Each attempt is a round trip, and the
# server reports each refusal in its log.
REFUSED_PAUSE: Final = 1.0


class Signal:
    """
    A flag that one thread waits for and any thread sets.

    It is cheaper than an event or a condition. A flag that is set while no thread waits ends the
    next wait.
    """

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def set(self) -> None:
        """Wake the waiting thread, or let the next wait return at once; any thread."""
        # Releasing twice raises: the flag is set already. Asking first would be a race, and
        # contextlib.suppress costs more than the release.
        try:  # noqa: SIM105
            self._lock.release()
        except RuntimeError:
            pass

    def wait(self, timeout: float) -> bool:
        """Wait up to *timeout* seconds, return whether the flag was set, and clear it."""
        return self._lock.acquire(timeout=max(timeout, 0.0))


class Notifier:
    """
    Wakes all threads that wait; the owner guards it with a lock.

    This is not a ``threading.Condition``: if Ctrl-C strikes while a condition releases its lock,
    the lock is released twice, and a RuntimeError replaces the KeyboardInterrupt.
    """

    __slots__ = ("_signals",)

    def __init__(self) -> None:
        self._signals: list[Signal] = []

    def listen(self) -> Signal:
        """Return a flag that the next :meth:`notify` sets. Wait for it without the owner's lock."""
        signal = Signal()
        self._signals.append(signal)
        return signal

    def forget(self, signal: Signal) -> None:
        """Drop what :meth:`listen` returned, because its thread has stopped waiting."""
        with contextlib.suppress(ValueError):  # It is being set at this moment.
            self._signals.remove(signal)

    def notify(self) -> None:
        """Wake all threads that have called :meth:`listen`."""
        signals, self._signals = self._signals, []
        for signal in signals:
            signal.set()


class Waiter:
    """
    The receiver of one reply.

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
        return not (isinstance(failure, PermissionDeniedError) and failure.operation == "publish")

    def _end(self) -> None:
        """End the wait and wake the waiting thread."""
        self.ready = True
        if self._signal is not None:
            self._signal.set()

    def deliver(self, frame: Frame) -> None:
        """Take the reply and wake the waiting thread."""
        self.reply = frame
        self._end()

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


class Mailbox:
    """
    The queue of one subscription.

    The reading thread pushes frames, and one thread at a time drains them.

    Args:
        interest: The subject that is subscribed to. If the server refuses it, the mailbox fails.
        collect_denials: Whether to keep the publishes that the server refuses, for an owner who
            knows which of them are its own.
        while_closing: Whether a client that closes lets the owner finish before it ends the wait.
    """

    def __init__(
        self,
        interest: bytes = b"",
        *,
        collect_denials: bool = False,
        while_closing: bool = False,
    ) -> None:
        self.interest: bytes = interest
        self.signal: Signal = Signal()
        self.frames: deque[Frame] = deque()
        self.push: Callable[[Any], object] = self.frames.append
        # The owner sets it to get frames of a known shape in runs, which :meth:`drain` returns.
        self.express: Callable[[bytes, int], int] | None = None
        self.while_closing: bool = while_closing
        # Set once: after that, nothing arrives any more.
        self.failure: Exception | None = None
        # Called after each failure, in any thread. It must not block.
        self.on_failure: Callable[[Exception], object] | None = None
        # The highest connection epoch that was lost, and the highest that the owner has seen.
        self.lost_epoch: int = 0
        self._seen_epoch = 0
        # Whether the owner has something else to do; the owner clears it.
        self.interrupted: bool = False
        self._denials: deque[Any] = deque(maxlen=KEPT_DENIALS if collect_denials else 0)
        # Returns the numbers of the messages to a subject that wait for acks; any thread. It must
        # not refer to the owner.
        self.find_messages: Callable[[bytes], list[int]] | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.interest.decode()} frames={len(self.frames)}>"

    @property
    def ready(self) -> bool:
        """Whether a wait is over."""
        return bool(
            self.frames
            or self.lost_epoch > self._seen_epoch
            or self._denials
            or self.interrupted
            or self.failure is not None
        )

    def wake(self) -> None:
        """Wake the waiting thread; called after frames were pushed."""
        self.signal.set()

    def interrupt(self) -> None:
        """
        End the wait because the owner has something else to do; any thread.

        Call :meth:`jetsync._io.lane.Lane.interrupt` if the owner may be reading the socket.
        """
        self.interrupted = True
        self.wake()

    def lost(self, epoch: int) -> None:
        """Note that connection *epoch* is gone with everything that was in flight on it."""
        self.lost_epoch = epoch
        self.wake()

    def take_lost(self) -> int:
        """Return the epoch of the last loss, or 0 if there was none since the last call."""
        if self.lost_epoch > self._seen_epoch:
            self._seen_epoch = self.lost_epoch
            return self.lost_epoch
        return 0

    def fail(self, error: Exception) -> None:
        """End every wait, now and later, with *error*; the first error stays."""
        if self.failure is None:
            self.failure = error
        self.wake()
        if self.on_failure is not None:
            self.on_failure(error)

    def denied(self, operation: str, subject: bytes, error: Exception) -> bool:
        """
        Note that the server refused *subject* to this connection; return whether that ends a wait.

        A refused subscription ends its mailbox. A refused publish is kept if the owner wants that.
        """
        if operation == "subscribe":
            if subject == self.interest:
                self.fail(error)
                return True
        elif self._denials.maxlen and self.find_messages is None:
            # The owner knows whether it has published to that subject.
            self.refuse(subject, error)
        return False

    def in_flight(self, subject: bytes) -> list[int]:
        """Return the numbers of the messages to *subject* that wait for acks."""
        return [] if self.find_messages is None else self.find_messages(subject)

    def refuse(self, concerned: bytes | list[int], error: Exception) -> None:
        """Note that the server refused a subject or, if they are known, messages."""
        self._denials.append((concerned, error))
        self.wake()

    def take_denials(self) -> list[tuple[Any, PermissionDeniedError]]:
        """Take the refused publishes: their subject, or the numbers of the messages."""
        return take_all(self._denials) if self._denials else []

    def drain(self) -> list[Any]:
        """Take all frames, and the runs of ``express``, oldest first; never blocks."""
        return take_all(self.frames)


class Listener:
    """
    The subscription of a mailbox. It ends when its owner drops it, unless :meth:`end` came first.

    So Ctrl-C leaves no subscription behind, wherever it interrupts the owner. The lane would write
    such a subscription again after each reconnect. The lane refers to the mailbox, so the mailbox
    must not refer to the owner.
    """

    __slots__ = ("__weakref__", "_lane", "line", "sid")

    def __init__(self, lane: Lane, box: Mailbox, queue: bytes = b"") -> None:
        self._lane = lane
        self.sid: bytes = lane.new_sid()
        lane.end_with(self)
        # The SUB line. The owner writes it before its first block, and then empties it.
        self.line: bytes = lane.listen(self.sid, box, queue)

    def end(self, *, grace: float = 0.0) -> None:
        """Unsubscribe, as :meth:`Lane.unsubscribe` does."""
        self._lane.unsubscribe(self.sid, grace=grace)


class ReplyRouter:
    """
    The receiver of ``<inbox>.*``. It gives each reply to the waiter whose token ends its subject.

    Registering and forgetting take no lock: both are single operations on a dictionary.

    The server may refuse the subscription, also later, when its permissions have changed. The
    replies to requests in flight are then lost. No request is sent until the server accepts it.
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
            self._refused(subject.decode())
        return operation == "subscribe"

    def in_flight(self, subject: bytes) -> list[Waiter]:
        """Return the requests on *subject* that wait for their replies."""
        waiters = list(self._waiters.values())
        return [one for one in waiters if one.subject == subject and one.may_be_refused]

    def refuse(self, waiters: list[Waiter], error: Exception) -> None:
        """Fail requests that the server has refused."""
        for waiter in waiters:
            waiter.fail(error)

    def _refused(self, subject: str) -> None:
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

        For one caller at a time: the others get None for :data:`REFUSED_PAUSE` seconds.
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


def take_all(queue: deque[Any]) -> list[Any]:
    """Take everything out of *queue*, while other threads may append or take; never blocks."""
    taken: list[Any] = []
    # Not contextlib.suppress, which costs more than the rest.
    try:  # noqa: SIM105
        # Only as many as are there now, because another thread may append all the time.
        taken.extend(islice(iter(queue.popleft, None), len(queue)))
    except IndexError:  # Another thread has taken some. The list keeps what it got.
        pass
    return taken
