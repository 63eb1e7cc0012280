"""
Consuming: messages without end, pulled ahead into a buffer that is kept filled.

A :class:`Consumption` is an iterator that any number of threads may share. No thread stands behind
it: the thread that finds the buffer empty leads, that is, it reads the socket and sends the pulls
that are due, and the others wait for what it brings; a thread that takes a message and finds the
buffer low has a quick look and sends the next pull on its way.

Invariants
- One thread at a time drives the engine: the leader, or who closes. Messages are taken from the
  buffer without any lock.
- Nothing of a user's and nothing that waits for the connection runs under the lock.
- A thread that leads or waits does not wait once more in a signal handler, which would wait for its
  own thread.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Final

import attrs

from jetsync._base.deadline import Deadline
from jetsync._base.locks import Latch, held_here, refuse_reentry
from jetsync._io.connection import raise_failure
from jetsync._io.mailbox import Signal
from jetsync._proto import frames
from jetsync.consume.acks import answer_soon
from jetsync.consume.driver import ConsumeDriver
from jetsync.consume.handlers import HandlerPool
from jetsync.consume.inbox import give_back, message_maker
from jetsync.errors import (
    ConflictingUseError,
    ConnectionClosedError,
    ConsumptionClosedError,
    ForkedProcessError,
    WaitTimeoutError,
)
from jetsync.values.message import ACK, IN_PROGRESS

if TYPE_CHECKING:
    from typing_extensions import Self

    from jetsync._api.context import Context
    from jetsync._base.deadline import Seconds
    from jetsync._proto.consume import ConsumeOptions
    from jetsync._proto.pins import Pins
    from jetsync.consume.handlers import HandlerOptions
    from jetsync.events import StatusEvent
    from jetsync.values.frame import Frame
    from jetsync.values.message import Message

__all__ = ["Consumption", "ConsumptionStatistics"]

LAST_TURN: Final = 1.0
"""Seconds that a client that drains leaves to the thread that took the last message."""

LOOK: Final = 0.2
"""Seconds between two looks at whether a consumption has ended, where nobody takes messages."""

FOREVER: Final = 1e9
"""Seconds of a wait without a bound."""

TURN: Final = 3600.0
"""Seconds of one turn of an unbounded wait; an iteration takes as many turns as it needs."""


@attrs.frozen
class ConsumptionStatistics:
    """
    What went through a consumption, and what is on its way.
    """

    received: int
    """Messages that have come."""

    buffered: int
    """Messages that have come and were not taken yet."""

    pending: int
    """Messages that open pulls may still bring; of pulls by bytes, what they may at most."""

    pending_bytes: int
    """Bytes that open pulls may still bring, where they have a bound."""

    pulls: int
    """Pulls that were sent."""

    heartbeats_missed: int
    """How often two heartbeats in a row did not come."""

    connections_lost: int
    """How often the connection was lost."""


def is_own_close(error: BaseException | None) -> bool:
    """Return whether an error says that the client was closed by its user, which is no fault."""
    return isinstance(error, ConnectionClosedError) and error.__cause__ is None


class _Taken(threading.local):
    """
    What the thread that looks took last; a thread that ends takes it along, unacknowledged.
    """

    message: Message | None = None


class _Lead:
    """
    One turn of one thread at driving the engine; whoever took it, and nobody else, ends it.
    """

    __slots__ = ("signal", "thread")

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self.signal = Signal()
        """Wakes the thread while it waits for its turn."""


class Consumption:
    """
    The messages of a consumer, one after the other, without end; made by ``Consumer.consume``.

    Iterate over it, from as many threads as you like: each message goes to one of them. Lost
    connections, servers that shut down and leaders that change are waited out. The iteration ends
    after :meth:`stop`, :meth:`drain`, ``stop_after`` messages or the end of the client; it raises,
    once, what makes going on impossible, such as ConsumerDeletedError. As a context manager it is
    stopped at the end of the block. One that nobody holds any more is stopped too.

    With a handler, threads of its own take the messages: it goes on whether somebody holds it or
    not, and the end of a ``with`` block waits for handlers that are at work.
    """

    def __init__(
        self,
        context: Context,
        options: ConsumeOptions,
        *,
        acked: bool = True,
        ack_all: bool = False,
        auto_ack: bool = False,
        handler: HandlerOptions | None = None,
        pins: Pins | None = None,
    ) -> None:
        context.connection.check()
        self._context = context
        self.options = options
        self._acked = acked
        self._ack_all = ack_all
        self._auto_ack = auto_ack
        self._driver = ConsumeDriver(context, options, acked=acked, pins=pins)
        self._engine = self._driver.engine
        self._buffer = self._engine.buffer
        self.make = message_maker(context, acked=acked, ack_all=ack_all)
        self._low = -1
        """At how many messages in the buffer there may be something to do."""

        self._turn = threading.RLock()
        """Guards who leads and who waits."""

        self._waiting: deque[_Lead] = deque()
        """Threads that wait for messages, or to lead."""

        self._leader: _Lead | None = None
        """The turn of the thread that drives the engine, None if none does."""

        self._stopping = False
        self._told = False
        """Whether the error was raised."""

        self._over = Latch()
        self._seen = Latch()
        """Set once somebody has come back for another message and learned that it is over."""

        self._taken = _Taken()
        """The message that each thread took last, where it is acknowledged for it."""

        self._pool = None if handler is None else HandlerPool(self, handler)
        self._refill()
        if self._pool is not None:
            self._pool.start()
        context.connection.consumptions.add(self)

    def __del__(self) -> None:
        # Nobody can be driving, as that would hold it.
        driver = getattr(self, "_driver", None)
        if driver is not None:
            with contextlib.suppress(Exception):  # A plugin around a pull may raise.
                driver.close(keep=False)

    def __repr__(self) -> str:
        options = self.options
        over = self._over if self._pool is None else self._pool.done
        state = "closed" if over.is_set() else "ending" if self._engine.is_ending else "open"
        return (
            f"<Consumption {options.stream}/{options.consumer} {state} "
            f"received={self._engine.admitted} buffered={len(self._buffer)}>"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None and self._auto_ack:
            self._ack_taken()
        self.stop()
        if self._pool is not None and not self._pool.is_own_thread():
            self._pool.done.wait()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Message:
        if self._pool is not None:
            raise ConflictingUseError("the messages of this consumption go to its handler")
        if self._auto_ack:
            self._ack_taken()
        try:
            frame = self._buffer.popleft()
        except IndexError:
            found = self.take_frame(None)
            if found is None:
                self._raise_error(iterating=True)
                raise StopIteration from None
            frame = found
        if len(self._buffer) <= self._low:
            self._refill()
        try:
            message = self.make(frame)
        except BaseException as error:
            self._told |= self.refused(error)
            raise
        if self._auto_ack:
            self._taken.message = message
        return message

    def next(self, timeout: Seconds | None = None) -> Message:
        """
        Return the next message.

        Args:
            timeout: Seconds to wait; None is the consumption's *expires*, 0 only looks.

        Raises:
            WaitTimeoutError: None came in time; the consumption goes on.
            ConsumptionClosedError: It has ended, and all that came was taken.
            JetSyncError: What ended it, once.
        """
        deadline = Deadline.after(self.options.expires if timeout is None else timeout)
        if self._pool is not None:
            raise ConflictingUseError("the messages of this consumption go to its handler")
        if self._auto_ack:
            self._ack_taken()
        frame = self.take_frame(deadline)
        if frame is None:
            self._raise_error(iterating=False)
            error = self._engine.error
            raise ConsumptionClosedError(reason=None if error is None else str(error))
        self.refill_if_low()
        try:
            message = self.make(frame)
        except BaseException as error:
            self._told |= self.refused(error)
            raise
        if self._auto_ack:
            self._taken.message = message
        return message

    # How it ends.

    @property
    def closed(self) -> bool:
        """Whether it has ended, and all that came was taken, and handled if there is a handler."""
        if self._pool is not None:
            return self._pool.done.is_set()
        if not self._over.is_set():
            # The end may have come while nobody took messages.
            self._refill()
        return self._over.is_set()

    @property
    def error(self) -> BaseException | None:
        """What made it end, None if it goes on or was ended in an ordinary way."""
        error = self._engine.error
        return None if is_own_close(error) else error

    def stop(self) -> None:
        """
        End it, and give back what was not taken, so that the server delivers it again at once.

        Safe to repeat, from any thread and in a signal handler; whoever waits for a message is
        woken. Does not wait, see :meth:`wait`.
        """
        self._stopping = True
        # Whoever drives sends no pull from now on, wherever it is.
        self._engine.draining = True
        self._interfere()

    def drain(self) -> None:
        """
        Pull no more; the iteration ends once what is here has been taken.

        Safe to repeat, from any thread. Does not wait, see :meth:`wait`. What is still on its way
        is given back.
        """
        self._engine.draining = True
        self._interfere()

    def wait(self, timeout: Seconds | None = None) -> bool:
        """
        Wait until it has ended and all that came was taken; return whether that is so.

        With a handler, until its last call has returned.

        Args:
            timeout: Seconds to wait; None waits as long as it takes.

        Raises:
            ConflictingUseError: This is the handler, or a signal handler that interrupted a call
                for a message. It would wait for itself.
        """
        until = Deadline.after(FOREVER if timeout is None else timeout)
        if self._pool is not None:
            if self._pool.is_own_thread():
                raise ConflictingUseError("a handler can not wait for itself to return")
            return self._pool.done.wait(until.remaining())
        while not self.closed:
            if self._is_mine():
                raise ConflictingUseError("this thread waits for a message already")
            if until.expired():
                return False
            # Perhaps nobody takes messages, who would see the end.
            self._over.wait(min(until.remaining(), LOOK))
        return True

    def statistics(self) -> ConsumptionStatistics:
        """Return the counters as they are now."""
        engine, pulls = self._engine, self._engine.pulls
        return ConsumptionStatistics(
            received=engine.admitted,
            buffered=len(self._buffer),
            pending=pulls.pending_messages,
            pending_bytes=pulls.pending_bytes,
            pulls=pulls.opened,
            heartbeats_missed=engine.misses,
            connections_lost=self._driver.losses,
        )

    def settle(self, deadline: Deadline) -> bool:
        """
        Wait until all that came was handled, as far as that can be seen; for a client that drains.

        A thread that took the last message of an iterator is done with it when it comes back for
        another one; whether it will, nobody knows.
        """
        if self._pool is not None and self._pool.is_own_thread():
            return True
        if self._is_mine() or not self.wait(deadline.remaining()):
            return False
        if self._pool is None and self._engine.admitted:
            self._seen.wait(deadline.at_most(LAST_TURN).remaining())
        return True

    def end_with_client(self) -> None:
        """Stop it, as its client is being closed; those that wait in ``next`` are told that."""
        self._engine.fail(ConnectionClosedError())
        self.stop()
        if self._pool is not None:
            self._pool.give_back_waiting()

    def wait_until_given_back(self, deadline: Deadline) -> None:
        """Wait until a thread that drives has stopped it, unless that is this one."""
        if not self._is_mine():
            self._over.wait(deadline.at_most(LAST_TURN).remaining())

    def after_fork(self) -> None:
        """
        End it in a forked child: what has come is the parent's to handle. Takes no lock.
        """
        self._turn = threading.RLock()
        self._waiting = deque()
        self._leader = None
        self._taken = _Taken()
        self._buffer = self._engine.buffer = deque()
        self._driver.is_open = False
        self._engine.fail(ForkedProcessError())
        # New ones, as threads that do not exist here may hold the locks of the others.
        self._over = Latch()
        self._over.set()
        if self._pool is not None:
            self._pool.after_fork()

    # For handlers and other handles of the package.

    @property
    def is_stopping(self) -> bool:
        """Whether what was not taken is to be given back."""
        return self._stopping

    def answer(self, message: Message, body: bytes) -> None:
        """Acknowledge or refuse a message for its user; never waits for a connection."""
        answer_soon(self._context.lane, message, body)

    @property
    def epoch(self) -> int:
        """The number of the connection."""
        return self._context.lane.epoch

    def prolong(self, replies: list[bytes]) -> None:
        """Start the ack wait anew for these messages, and for all that was not taken yet."""
        # What has come and nobody has looked at is in the buffer after that.
        self._refill()
        replies = replies + [frame[1] for frame in self._engine.snapshot()]
        if replies:
            block = b"".join([frames.pub(reply, b"", IN_PROGRESS) for reply in replies])
            self._context.lane.post_nowait(block)

    def take_frame(self, deadline: Deadline | None) -> Frame | None:
        """Return the next message's frame, None at the end; raises WaitTimeoutError."""
        while True:
            try:
                return self._buffer.popleft()
            except IndexError:
                # That is no part of what goes wrong in the wait.
                pass
            if not self.wait_for_frame(deadline):
                return None

    def take_now(self) -> Frame | None:
        """Return the next message's frame if it is here."""
        try:
            return self._buffer.popleft()
        except IndexError:
            return None

    def refill_if_low(self) -> None:
        """Have a look at what is due, if that may be anything; belongs behind every taking."""
        if len(self._buffer) <= self._low:
            self._refill()

    def set_aside(self, messages: int, size: int) -> None:
        """Count messages that were taken as if they were not, until they are handled."""
        engine = self._engine
        with self._turn:
            engine.aside += messages
            engine.aside_bytes += size
        if messages < 0 and len(self._buffer) <= engine.low_mark():
            # Whoever leads may sleep for long, as nothing was due.
            self._interfere()

    def give_back(self, unused: list[Frame]) -> None:
        """Have messages that were taken delivered again at once."""
        if self._acked:
            give_back(self._context.lane, unused)

    def fail(self, error: Exception | BaseException) -> None:
        """Note why it ends, unless there was a reason before."""
        self._engine.fail(error)

    def tell(self, event: StatusEvent) -> None:
        """Tell the plugins, in this thread."""
        if self._context.plugins.status is not None:
            self._context.plugins.status(event)

    def refused(self, error: BaseException) -> bool:
        """
        Learn that a plugin refused a message; return whether that is the end.

        It is where acknowledging a later one would acknowledge this one too.
        """
        if self._ack_all:
            self.fail(error)
            self.stop()
        return self._ack_all

    # Who drives.

    def wait_for_frame(self, deadline: Deadline | None) -> bool:
        """
        Wait until there is a message to take, return False at the end; raises WaitTimeoutError.

        Leads if nobody else does.
        """
        self._context.connection.check_process()
        lead, turn, buffer = _Lead(), self._turn, self._buffer
        while not buffer:
            try:
                refuse_reentry(turn)
                with turn:
                    if buffer:
                        return True
                    if self._over.is_set():
                        self._seen.set()
                        return False
                    if self._is_mine():
                        # In a plugin, or in a signal handler.
                        raise ConflictingUseError("this thread waits for a message already")
                    if self._leader is None:
                        self._leader = lead
                    elif deadline is not None and deadline.expired():
                        raise WaitTimeoutError("a message", deadline.total)
                    else:
                        self._waiting.append(lead)
                if self._leader is lead:
                    self._lead(deadline)
                    # Here, too: Ctrl-C at the first step of the call below would leave it undone.
                    self._release(lead)
                else:
                    lead.signal.wait(TURN if deadline is None else deadline.remaining())
                    self._release(lead)
                    continue
            except BaseException:
                # Perhaps this thread was woken to lead.
                self._release(lead)
                self._wake(1)
                raise
            finally:
                self._release(lead)
            if deadline is None or buffer or self._over.is_set():
                continue
            if deadline.expired():
                raise WaitTimeoutError("a message", deadline.total)
        return True

    def _lead(self, deadline: Deadline | None) -> None:
        """Drive until there are messages, it is over, or the deadline is."""
        engine, driver = self._engine, self._driver
        engine.back(time.monotonic())
        try:
            while True:
                self._drive()
                if self._buffer or self._over.is_set():
                    return
                until = Deadline.after(TURN) if deadline is None else deadline
                if until.expired():
                    return
                driver.wait(until)
        finally:
            engine.leave(time.monotonic())

    def _is_mine(self) -> bool:
        """Return whether the calling thread leads or waits, further up its stack."""
        me, leader = threading.get_ident(), self._leader
        if leader is not None and leader.thread == me:
            return True
        return any(lead.thread == me for lead in list(self._waiting))

    def _refill(self) -> None:
        """Have a look at what there is to do, unless another thread does."""
        if held_here(self._turn):
            # In a signal handler: the interrupted call looks when it lets go of the lock.
            return
        lead = _Lead()
        try:
            with self._turn:
                if self._leader is not None:
                    return
                self._leader = lead
            self._engine.back(time.monotonic())
            self._drive()
            self._engine.leave(time.monotonic())
            self._release(lead)
        finally:
            self._release(lead)

    def _interfere(self) -> None:
        """Have the leader look at what has changed, or be it."""
        self._driver.wake()
        self._refill()

    def _release(self, lead: _Lead) -> None:
        """Lead and wait no longer, if this is the turn at which that was done."""
        with self._turn:
            with contextlib.suppress(ValueError):
                self._waiting.remove(lead)
            if self._leader is lead:
                self._leader = None
                self._wake(len(self._buffer) + 1)
            if self._leader is not None:
                return
        if self._driver.is_open and (self._stopping or self._engine.draining):
            # Asked for while this thread was about to leave.
            self._refill()

    def _drive(self) -> None:
        """Do what there is to do; this thread leads."""
        engine, driver = self._engine, self._driver
        try:
            if not self._stopping:
                driver.turn()
        except Exception as error:  # noqa: BLE001 - of a plugin; nobody could go on after it.
            engine.fail(error)
        if driver.is_open and (self._stopping or engine.is_ending):
            driver.close(keep=not self._stopping)
        elif self._stopping and self._buffer:
            driver.discard()
        self._low = engine.low_mark()
        if not driver.is_open and not self._buffer and not self._over.is_set():
            self._over.set()
            with self._turn:
                self._wake(len(self._waiting))

    def _wake(self, count: int) -> None:
        """Wake so many of the threads that wait."""
        with contextlib.suppress(IndexError):
            for _ in range(count):
                self._waiting.popleft().signal.set()

    def _raise_error(self, *, iterating: bool) -> None:
        """Raise what ended it, unless it was raised before."""
        error = self._engine.error
        if not isinstance(error, Exception):
            return
        with self._turn:
            told, self._told = self._told, True
        if not told and not (iterating and is_own_close(error)):
            raise_failure(error)

    def _ack_taken(self) -> None:
        """Acknowledge the message that this thread took last, soon and together with others."""
        message, self._taken.message = self._taken.message, None
        if message is not None and not message.is_acked:
            self.answer(message, ACK)
