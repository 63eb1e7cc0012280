"""
The shared part of consumptions: who drives the engine, and how threads wait for messages.

A consumption has no thread of its own. The thread that finds the buffer empty becomes the leader.
It reads the socket and sends the pulls that are due, while the other threads wait for the messages
that it brings. A thread that takes a message and finds the buffer low drives the engine once, to
send the next pull.

Invariants
- One thread at a time drives the engine. Messages are taken from the buffer without any lock.
- The lock is never held while code of the application runs, or while waiting for the connection.
- A thread that leads or waits does not wait a second time in a signal handler, because it would
  wait for itself.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Final

from jetsync._base.deadline import Deadline
from jetsync._base.locks import Latch, owner_check, refuse_reentry
from jetsync._io.connection import raise_failure
from jetsync._io.mailbox import Signal
from jetsync.consume.acks import give_back, message_maker
from jetsync.consume.driver import ConsumeDriver
from jetsync.consume.handlers import HandlerPool
from jetsync.errors import ConflictingUseError, ConnectionClosedError, ForkedProcessError

if TYPE_CHECKING:
    from jetsync._api.context import Context
    from jetsync._proto.consume import ConsumeOptions
    from jetsync._proto.pins import Pins
    from jetsync.consume.handlers import HandlerOptions
    from jetsync.values.frame import Frame

# Seconds that a client which closes or drains leaves to a thread that is not done yet.
CLOSING_WAIT: Final = 1.0

# Seconds between two checks for the end of a consumption from which no thread takes messages.
END_POLL: Final = 0.2

ALREADY_WAITING: Final = "this thread already waits for a message of this consumption"


def is_own_close(error: BaseException | None) -> bool:
    """Return whether *error* only says that the application closed the client."""
    return isinstance(error, ConnectionClosedError) and error.__cause__ is None


class _Claim:
    """A thread's claim to lead or to wait, which only that thread withdraws."""

    __slots__ = ("released", "signal", "thread")

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        # Wakes the thread while it waits.
        self.signal = Signal()
        # Whether it was withdrawn completely, which Ctrl-C may interrupt.
        self.released = False


class ConsumptionCore:
    """
    A buffer of messages that is kept filled, for any number of threads that take from it.

    Args:
        context: The context that the messages are pulled through.
        options: What to pull.
        acked: Whether the consumer wants acknowledgements.
        ack_all: Whether each acknowledgement covers all earlier messages.
        recovers: Whether lost connections and missed heartbeats are waited out. Otherwise they end
            it with NoHeartbeatError.
        handler: How to call the handler, if there is one.
        pins: The pin ids of the consumer's priority groups.
    """

    def __init__(
        self,
        context: Context,
        options: ConsumeOptions,
        *,
        acked: bool = True,
        ack_all: bool = False,
        recovers: bool = True,
        handler: HandlerOptions | None = None,
        pins: Pins | None = None,
    ) -> None:
        context.connection.check()
        self.context = context
        self.options = options
        self._acked = acked
        self._ack_all = ack_all
        self.driver: ConsumeDriver = ConsumeDriver(
            context, options, acked=acked, recovers=recovers, pins=pins
        )
        self.engine: Final = self.driver.engine
        self.buffer: deque[Frame] = self.engine.buffer
        self.make: Final = message_maker(context, acked=acked, ack_all=ack_all)
        # The number of buffered messages at which a pull may be due.
        self.low: int = -1
        # Guards `_leader` and `_waiting`.
        self._lock = threading.RLock()
        self._locked_here = owner_check(self._lock)
        self._waiting: deque[_Claim] = deque()
        self._leader: _Claim | None = None
        # Whether messages that were not taken are given back.
        self.closing: bool = False
        self.error_raised: bool = False
        self.over: Latch = Latch()
        # Set once a thread has asked for another message and learned that there is none.
        self.end_seen: Latch = Latch()
        self.pool: HandlerPool | None = None if handler is None else HandlerPool(self, handler)
        self.refill()
        if self.pool is not None:
            self.pool.start()
        context.connection.consumptions.add(self)

    def __del__(self) -> None:
        # No thread can be driving, because it would hold a reference.
        driver = getattr(self, "driver", None)
        if driver is not None:
            with contextlib.suppress(Exception):  # A plugin around a pull may raise.
                driver.close(keep=False)

    # How it ends.

    @property
    def closed(self) -> bool:
        """Whether it has ended, and all messages were taken and handled."""
        if self.pool is not None:
            return self.pool.done.is_set()
        if not self.over.is_set():
            # It may have ended while no thread took messages.
            self.refill()
        return self.over.is_set()

    @property
    def error(self) -> BaseException | None:
        """Why it ended; None if it has not, or if the application ended it."""
        return None if is_own_close(self.engine.error) else self.engine.error

    def close(self) -> None:
        """End it and give back what was not taken; never waits."""
        self.closing = True
        self.drain()

    def drain(self) -> None:
        """Send no more pulls; never waits."""
        # Set first, so that a thread that drives at the moment sends no more pulls.
        self.engine.draining = True
        self._wake_driver()

    def wait(self, until: Deadline) -> bool:
        """Wait until it has ended, and return whether it has."""
        if self.pool is not None:
            if self.pool.is_own_thread():
                raise ConflictingUseError("a handler cannot wait for itself to return")
            return self.pool.done.wait(until.remaining())
        while not self.closed:
            if self._claimed_here():
                raise ConflictingUseError(ALREADY_WAITING)
            if until.expired():
                return False
            # Polled, because perhaps no thread takes messages and would see the end.
            self.over.wait(min(until.remaining(), END_POLL))
        return True

    def settle(self, deadline: Deadline) -> bool:
        """
        Wait until all messages were handled, as far as this can be seen; for a client that drains.

        A thread that took the last message is known to be done when it asks for another one. It may
        never do that, so the wait for it is short.
        """
        if self.pool is not None and self.pool.is_own_thread():
            return True
        if self._claimed_here() or not self.wait(deadline):
            return False
        if self.pool is None and self.engine.admitted:
            self.end_seen.wait(deadline.at_most(CLOSING_WAIT).remaining())
        return True

    def end_with_client(self) -> None:
        """End it because its client is being closed; threads in ``next`` get that as the error."""
        self.engine.fail(ConnectionClosedError())
        self.close()
        if self.pool is not None:
            self.pool.give_back_parked()

    def wait_until_given_back(self, deadline: Deadline) -> None:
        """Wait until the driving thread has ended it, unless that is this thread."""
        if not self._claimed_here():
            self.over.wait(deadline.at_most(CLOSING_WAIT).remaining())

    def after_fork(self) -> None:
        """
        End it in a forked child, because its messages belong to the parent process.

        Takes no lock. All locks are replaced: threads that do not exist here may hold the old ones.
        """
        self._lock = threading.RLock()
        self._locked_here = owner_check(self._lock)
        self._waiting = deque()
        self._leader = None
        self.buffer = self.engine.buffer = deque()
        self.driver.is_open = False
        self.engine.fail(ForkedProcessError())
        self.over = Latch()
        self.over.set()
        if self.pool is not None:
            self.pool.after_fork()

    def raise_error(self, *, iterating: bool) -> None:
        """Raise what ended it, once."""
        error = self.engine.error
        if not isinstance(error, Exception):
            return
        with self._lock:
            raised, self.error_raised = self.error_raised, True
        if not raised and not (iterating and is_own_close(error)):
            raise_failure(error)

    # Messages.

    def take_now(self) -> Frame | None:
        """Return the frame of the next message if it is in the buffer."""
        try:
            return self.buffer.popleft()
        except IndexError:
            return None

    def take_frame(self, deadline: Deadline | None) -> Frame | None:
        """Return the frame of the next message; None at the end or at the deadline."""
        while (frame := self.take_now()) is None:
            if not self.wait_for_frame(deadline):
                return None
        return frame

    def refill_if_low(self) -> None:
        """Drive the engine if a pull may be due; to be called after a message was taken."""
        if len(self.buffer) <= self.low:
            self.refill()

    def park(self, messages: int, size: int) -> None:
        """Count messages that were taken as if they were still buffered, or no longer."""
        engine = self.engine
        with self._lock:
            engine.parked += messages
            engine.parked_bytes += size
        if messages < 0 and len(self.buffer) <= engine.low_mark():
            # The leader may be in a long wait, because no pull was due.
            self._wake_driver()

    def give_back(self, frames: list[Frame]) -> None:
        """Have messages that were taken redelivered at once."""
        if self._acked:
            give_back(self.context.lane, frames)

    def make_failed(self, error: BaseException) -> None:
        """End it if the next acknowledgement would also cover the message that a plugin refused."""
        if self._ack_all:
            self.error_raised = True
            self.engine.fail(error)
            self.close()

    # Leading and waiting.

    def wait_for_frame(self, deadline: Deadline | None) -> bool:
        """
        Wait until the buffer has a message; return False at the end or at the deadline.

        Leads if no other thread does.
        """
        self.context.connection.check_process()
        claim, lock, buffer = _Claim(), self._lock, self.buffer
        until = Deadline.after(None) if deadline is None else deadline
        while not buffer:
            claim.released = False
            try:
                refuse_reentry(lock)
                with lock:
                    if buffer:
                        return True
                    if self.over.is_set():
                        self.end_seen.set()
                        return False
                    if self._claimed_here():
                        # In a plugin, or in a signal handler.
                        raise ConflictingUseError(ALREADY_WAITING)
                    if self._leader is None:
                        self._leader = claim
                    elif until.expired():
                        return False
                    else:
                        self._waiting.append(claim)
                if self._leader is claim:
                    self._lead(until)
                    # Here, too: Ctrl-C at the first step of the call below would leave it undone.
                    self._release(claim)
                else:
                    claim.signal.wait(until.remaining())
                    self._release(claim)
                    continue
            except BaseException:
                # This thread may just have been woken to lead.
                self._release(claim)
                self._wake(1)
                raise
            finally:
                if not claim.released:
                    self._release(claim)
            if not buffer and not self.over.is_set() and until.expired():
                return False
        return True

    def _lead(self, until: Deadline) -> None:
        """Drive until there is a message, or until the end or the deadline."""
        engine = self.engine
        engine.back(time.monotonic())
        try:
            while True:
                self._drive()
                if self.buffer or self.over.is_set():
                    return
                if until.expired():
                    return
                self.driver.wait(until)
        finally:
            engine.leave(time.monotonic())

    def refill(self) -> None:
        """Drive once, unless another thread leads."""
        if self._locked_here():
            # In a signal handler. The interrupted call drives when it releases the lock.
            return
        claim = _Claim()
        try:
            with self._lock:
                if self._leader is not None:
                    return
                self._leader = claim
            self.engine.back(time.monotonic())
            self._drive()
            self.engine.leave(time.monotonic())
            self._release(claim)
        finally:
            if not claim.released:
                self._release(claim)

    def _drive(self) -> None:
        """Do what is due; the calling thread leads."""
        engine, driver = self.engine, self.driver
        try:
            if not self.closing:
                driver.step()
        except Exception as error:  # noqa: BLE001 - of a plugin. Pulling cannot continue after it.
            engine.fail(error)
        if driver.is_open and (self.closing or engine.is_ending):
            driver.close(keep=not self.closing)
        elif self.closing and self.buffer:
            driver.discard()
        self.low = engine.low_mark()
        if not driver.is_open and not self.buffer and not self.over.is_set():
            self.over.set()
            with self._lock:
                self._wake(len(self._waiting))

    def _claimed_here(self) -> bool:
        """Return whether the calling thread leads or waits, further up its stack."""
        me, leader = threading.get_ident(), self._leader
        if leader is not None and leader.thread == me:
            return True
        return any(claim.thread == me for claim in list(self._waiting))

    def _wake_driver(self) -> None:
        """Have the leader look for changes, or drive if there is no leader."""
        self.driver.wake()
        self.refill()

    def _release(self, claim: _Claim) -> None:
        """Withdraw *claim*, and have another thread lead if it led; safe to repeat."""
        with self._lock:
            if self._waiting:
                with contextlib.suppress(ValueError):
                    self._waiting.remove(claim)
            if self._leader is claim:
                self._leader = None
                if self._waiting:
                    self._wake(len(self.buffer) + 1)
            idle = self._leader is None
        if idle and self.driver.is_open and (self.closing or self.engine.draining):
            # Another call asked for the end while this thread was about to stop driving.
            self.refill()
        claim.released = True

    def _wake(self, count: int) -> None:
        """Wake up to *count* waiting threads."""
        with contextlib.suppress(IndexError):
            for _ in range(count):
                self._waiting.popleft().signal.set()
