"""
A publisher: many messages in flight, from any number of threads, each with a future.

Publishing threads encode messages and stage them in the window, without a lock; one worker thread
per publisher reads the acks, completes futures and calls what users gave. Who writes what is
staged, with the lock: a publishing thread, when a block is full, when it waits, or when messages
are rare; otherwise the worker, which is then attentive and looks every ``BLOCK_DELAY`` seconds.

Invariants
- A message is staged, or the call of ``publish`` raises and nothing of it is sent. Once staged it
  ends exactly once, through its future.
- What is in flight is never more than the window; threads that come at the same moment may stage
  one message each beyond it.
- The lock is never held while a thread waits for the connection or while a user's code runs.
- The worker never waits for the connection: what is in flight is settled whatever becomes of it.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any, Final, Literal

import attrs

from jetsync import events
from jetsync._base import log as _log
from jetsync._base.deadline import Deadline
from jetsync._base.locks import Latch, held_here, keep_interrupts, refuse_reentry, take
from jetsync._io.connection import raise_failure
from jetsync._io.mailbox import Notifier, Signal
from jetsync.errors import HandleClosedError, PublishOutcomeUnknownError
from jetsync.publish.encode import BLOCK_MESSAGES
from jetsync.publish.errors import PublishManyError
from jetsync.publish.future import DeliveryReport, FutureOwner, PublishFuture
from jetsync.publish.hooks import HookedWindow, PublishHooks
from jetsync.publish.staged_window import CollectingWindow
from jetsync.values.outbound import (
    Expect,
    OutboundMessage,
    PubAck,
    PublishFailure,
    PublishReport,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Self

    from jetsync._api.context import Context
    from jetsync._base.deadline import Seconds
    from jetsync.publish.staged_window import Staged
    from jetsync.publish.window import WindowOptions
    from jetsync.values.headers import HeadersInput
    from jetsync.values.outbound import Payload

__all__ = ["DeliveryReport", "PublishFuture", "Publisher", "PublisherStatistics"]

KEPT_FAILURES: Final = 1000
"""Failures that nobody asked about which a publisher keeps for the error at its end."""

BLOCK_DELAY: Final = 0.001
"""
Seconds for which a message may wait for others to be written with, while many are published.

Measured with 128 bytes on two cores: 5.2 us of CPU for a message that is written in a block, 10.6
us for one that is written by itself.
"""

LAST_WORDS: Final = 1.0
"""Seconds that callbacks may still take when the time to close is over."""

_logger = _log.get_logger("jetsync.publisher")


@attrs.frozen
class PublisherStatistics:
    """
    What went through a publisher.
    """

    published: int
    acknowledged: int
    duplicates: int
    failed: int
    pending: int
    """Messages that have not ended yet."""

    report_errors: int
    """How often ``on_report``, a callback of a future or a plugin around a window raised."""


class Publisher:
    """
    Publish with many messages in flight; use as a context manager.

    Any number of threads may publish; messages of one thread to one subject are stored in its
    order, unless no stream took one and it was sent again. Leaving the context waits until all have
    ended, and raises PublishManyError if some failed that nobody asked about, neither by a future's
    outcome nor by ``on_report``.
    """

    def __init__(
        self,
        context: Context,
        options: WindowOptions,
        on_report: Callable[[DeliveryReport], object] | None,
    ) -> None:
        self._connection = context.connection
        self._lane = context.lane
        self._options = options
        self._on_report = on_report
        self._window = CollectingWindow(context, options)
        self._hooks = PublishHooks(context.plugins, options.size)
        self._hooked = self._hooks.active
        self._lock = threading.RLock()
        self._work = Signal()
        """There is something to wait for, or the publisher closes."""

        self._roomy = options.size - max(min(BLOCK_MESSAGES, options.size) // 2, 1)
        """
        With how many messages in the window those who wait for room are woken: for a handful of
        places each of them would cost more than it brings.
        """

        self._room = Notifier()
        """The window has room, or the publisher closes."""

        self._ended = Notifier()
        """Messages have ended."""

        self._futures: dict[int, PublishFuture] = self._window.tokens
        """Messages that have a number and have not ended."""

        self._left = Latch()
        """
        Set as the worker ends. A signal handler that interrupts ``Thread.join`` and joins the same
        thread may wait for its own thread.
        """

        self._stopped: Exception | None = None
        """Why no message is taken any more."""

        self._idle = False
        """Whether the worker waits for something to do, rather than for acks."""

        self._attentive = False
        """Whether the worker flushes the window within ``BLOCK_DELAY`` seconds."""

        self._telling = False
        """Whether the worker runs a user's code, which may take its time."""

        self._written = 0.0
        """When a message was written by itself."""

        self._looked_at = 0
        """The window's next number, when the worker looked last."""

        self._failed = self._report_errors = 0
        self._unobserved: list[tuple[int, PublishFuture]] = []
        self._owner = FutureOwner(self._lock, self._hurry, self._refuse_wait)
        # The client may be closed while the worker has nothing to wait for.
        self._window.box.on_failure = lambda _: self._work.set()
        try:
            self._window.open()
        except BaseException:
            self._window.close()
            raise
        self._worker = threading.Thread(target=self._run, name="jetsync-publisher", daemon=True)
        with keep_interrupts():
            self._worker.start()

    def __repr__(self) -> str:
        state = "open" if self._stopped is None else "closed"
        return f"<Publisher {state} pending={self.pending} of {self._options.size}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(_raise=kind is None)

    @property
    def pending(self) -> int:
        """How many messages have not ended yet."""
        return self._window.open_count

    def statistics(self) -> PublisherStatistics:
        """Return the counters as they are now."""
        refuse_reentry(self._lock)
        with self._lock:
            tally, pending = self._window.pipeline.tally, self._window.open_count
            return PublisherStatistics(
                published=tally.count + self._failed + pending,
                acknowledged=tally.count,
                duplicates=tally.duplicates,
                failed=self._failed,
                pending=pending,
                report_errors=self._report_errors,
            )

    def publish(
        self,
        subject: str,
        data: Payload = b"",
        *,
        headers: HeadersInput | None = None,
        msg_id: str | None = None,
        ttl: Seconds | Literal["never"] | None = None,
        expect: Expect | None = None,
    ) -> PublishFuture:
        """
        Send a message and return the future of its outcome.

        Waits while the window is full, which the ``ack_timeout`` of the oldest message bounds, and
        then up to ``ack_timeout`` for a connection. Any thread. After Ctrl-C the outcome is
        unknown.

        Args:
            subject: The subject; its stream is found by it.
            data: The payload; text is sent as UTF-8.
            headers: Headers; never changed.
            msg_id: Id by which the stream drops duplicates within its duplicate window.
            ttl: Time-to-live: seconds from 1 up, a ``timedelta`` or ``"never"`` (ADR-43).
            expect: Under which conditions to store it.

        Raises:
            InvalidArgumentError, InvalidTypeError: The message cannot be sent; nothing was.
            DisconnectedError, ConnectionClosedError: There was no connection in time; nothing was
                sent.
            HandleClosedError: The publisher is closed.
            PluginError: A plugin vetoed the message; nothing was sent.
            WaitTimeoutError: The window is full, and this is a callback in the publisher's own
                thread, which would wait for itself.
        """
        self._connection.check()
        # Most messages are no more than a pair, which costs less to make and to encode.
        item: Any = (subject, data)
        if headers is not None or msg_id is not None or ttl is not None or expect is not None:
            item = OutboundMessage(subject, data, headers, msg_id, ttl, expect)
        if self._hooked:
            return self._send_hooked(item)
        return self._send(item, None)

    def _send_hooked(self, item: Any) -> PublishFuture:
        """Send a message that plugins look at, in a window that they may wrap."""
        hooks = self._hooks
        hooked = hooks.join(self._operation) if hooks.wraps else None
        try:
            return self._send(hooks.prepared_in(hooked, item), hooked)
        except BaseException as error:
            if hooked is not None:
                hooks.part(hooked, error)
                with self._lock:
                    self._wake_worker()
            raise

    def _operation(self) -> events.PublishOperation:
        """Describe a window to plugins."""
        return events.PublishOperation(
            messages=None, window=self._options.size, timeout=self._options.ack_timeout
        )

    def _send(self, item: Any, hooked: HookedWindow | None) -> PublishFuture:
        """Stage a message and return its future; waits for room and for a connection."""
        window = self._window
        future = PublishFuture(self._owner, item, hooked)
        deadline: Deadline | None = None
        while True:
            if (
                self._stopped is not None
                or len(window.tokens) + len(window.staged) >= self._options.size
                or window.numbered_bytes + window.staged_bytes >= self._options.max_bytes
            ):
                self._wait_room()
            entry = window.stage(item, future)
            if entry is not None:
                break
            # Without the lock, as what is in flight has to be settled meanwhile.
            deadline = deadline or Deadline.after(self._options.ack_timeout)
            self._lane.write(b"", deadline)
        # Both are looked at after the message was staged: whoever changes them looks there after.
        if self._stopped is not None and not held_here(self._lock):
            self._withdraw(entry)
        if not self._attentive or window.is_block:
            self._look_after()
        return future

    def _look_after(self) -> None:
        """Write the staged messages here, unless another call is already writing."""
        lock = self._lock
        if held_here(lock):
            # A signal handler that interrupted such a call. The worker finds the message.
            self._wake_worker()
        elif not self._attentive:
            with lock:
                self._write_or_wake()
        else:
            taken: list[bool] = []
            try:
                if take(lock, taken):
                    self._window.flush()
            finally:
                if True in taken:
                    lock.release()

    def _withdraw(self, entry: Staged) -> None:
        """Take back what came as the publisher was closed, unless it has gone out already."""
        with self._lock:
            try:
                self._window.staged.remove(entry)
            except ValueError:
                return
            self._ended.notify()
        assert self._stopped is not None
        raise_failure(self._stopped)

    def _write_or_wake(self) -> None:
        """See to a message that the worker does not look for; the lock is held."""
        now = time.monotonic()
        if now - self._written > BLOCK_DELAY or self._telling:
            self._written = now
            self._hurry()
        else:
            # One soon after another: there may be many.
            self._attentive = True
            self._wake_worker()

    def _hurry(self) -> None:
        """Have what is staged written and looked after; the lock is held."""
        if self._idle:
            # First, so that Ctrl-C in the write leaves nothing in flight that nobody looks after.
            self._work.set()
        self._window.flush()

    def _refuse_wait(self) -> None:
        """Raise in a signal handler that interrupted the call that reads the acks."""
        if threading.get_ident() != self._owner.thread:
            self._lane.prepare_wait()

    def _wait_room(self) -> None:
        """Wait until the window has room, or raise why no message is taken any more."""
        while True:
            refuse_reentry(self._lock)
            with self._lock:
                if self._stopped is not None:
                    raise_failure(self._stopped)
                if self._window.open_count < self._options.size and not self._window.is_full:
                    return
                self._owner.check_thread("room in the window")
                self._hurry()
                self._refuse_wait()
                room = self._room.listen()
            room.wait(threading.TIMEOUT_MAX)
            self._connection.check()

    def _wait_ended(self, is_over: Callable[[], bool], deadline: Deadline | None) -> None:
        """Wait until enough messages have ended, or for as long as there is time."""
        while True:
            seconds = threading.TIMEOUT_MAX if deadline is None else deadline.remaining()
            with self._lock:
                # Who has no time left does not listen: somebody who polls would leave a signal
                # behind each time.
                if is_over() or seconds <= 0.0:
                    return
                self._refuse_wait()
                ended = self._ended.listen()
            ended.wait(seconds)

    def flush(self, *, timeout: Seconds | None = None) -> int:
        """
        Wait until every message published so far has ended; return how many have not.

        In a callback, which runs in the thread that would have to end them, it does not wait.

        Args:
            timeout: Seconds to wait; None waits for all, which ``ack_timeout`` bounds.

        Raises:
            ConnectionClosedError: The client was closed.
        """
        self._connection.check()
        window = self._window
        deadline = None if timeout is None else Deadline.after(timeout)
        if threading.get_ident() == self._owner.thread:
            deadline = Deadline.after(0.0)
        refuse_reentry(self._lock)
        self._hooks.cut()
        with self._lock:
            window.flush()
            self._wake_worker()
            last = window.number + len(window.staged)

        # Futures are kept in the order of their numbers, so the first one tells.
        def is_over() -> bool:
            return window.number >= last and next(iter(self._futures), last) >= last

        self._wait_ended(is_over, deadline)
        with self._lock:
            return sum(number < last for number in self._futures) + max(0, last - window.number)

    def close(self, *, timeout: Seconds | None = None, _raise: bool = True) -> None:
        """
        Take no more messages, wait until all have ended, and stop; safe to repeat.

        In a callback, which runs in the thread that would have to end them, it does not wait: the
        publisher then stops by itself.

        Args:
            timeout: Seconds to wait; None waits for all, which ``ack_timeout`` bounds. Messages
                that have not ended by then fail as unknown.

        Raises:
            PublishManyError: Messages failed that nobody asked about.
        """
        deadline = None if timeout is None else Deadline.after(timeout)
        if self._connection.state == "forked":
            # The worker, and perhaps the lock's owner, are in the parent.
            return
        refuse_reentry(self._lock)
        with self._lock:
            self._stopped = self._stopped or HandleClosedError("publisher")
            self._room.notify()
            self._wake_worker()
        if threading.get_ident() == self._owner.thread:
            return
        self._wait_ended(lambda: not self._window.open_count, deadline)
        self._window.box.fail(HandleClosedError("publisher"))
        self._lane.wake_reader()
        # Without a timeout, also callbacks are waited for.
        seconds = threading.TIMEOUT_MAX
        if deadline is not None:
            seconds = max(deadline.remaining(), LAST_WORDS)
        if self._left.wait(seconds):
            self._worker.join(LAST_WORDS)
        unobserved = [entry for entry in self._unobserved if not entry[1].observed]
        self._unobserved.clear()
        if unobserved and _raise:
            raise PublishManyError(self._report(unobserved))

    def _report(self, unobserved: list[tuple[int, PublishFuture]]) -> PublishReport:
        tally = self._window.pipeline.tally
        failures = []
        for number, future in unobserved:
            error = future.exception()
            assert error is not None
            failures.append(PublishFailure(number, future.message, error))
        return PublishReport(
            count=tally.count,
            duplicates=tally.duplicates,
            first_sequence=tally.first_sequence,
            last_sequence=tally.last_sequence,
            failures=tuple(sorted(failures, key=lambda failure: failure.index)),
            streams=frozenset(tally.streams),
        )

    def _wake_worker(self) -> None:
        """End the worker's wait, for acks or for something to do; the lock is held."""
        if self._idle:
            self._work.set()
        else:
            self._lane.interrupt(self._window.box)

    # The worker thread.

    def _run(self) -> None:
        """Read acks as long as there is something to wait for; ends with the publisher."""
        self._owner.thread = threading.get_ident()
        try:
            while (due := self._next_due()) is not None:
                self._lane.wait(self._window.box, Deadline(due, self._options.ack_timeout))
                self._settle()
                self._leave_windows()
        except BaseException as error:
            self._abandon(error)
            raise
        finally:
            self._window.close()
            self._left.set()

    def _abandon(self, error: BaseException) -> None:
        """End all that is open, as the worker cannot go on: nobody may wait for ever."""
        with self._lock:
            self._stopped = HandleClosedError("publisher", reason=repr(error))
            staged = self._window.staged
            open_futures = [*self._futures.values(), *(token for _, token, _ in staged)]
            del staged[: len(open_futures) - len(self._futures)]
            for future in open_futures:
                message = future.message
                future.settle_nowait(
                    PublishOutcomeUnknownError(
                        message.subject, msg_id=message.msg_id, reason=str(self._stopped)
                    )
                )
            self._failed += len(open_futures)
            self._futures.clear()
            self._room.notify()
            self._ended.notify()

    def _next_due(self) -> float | None:
        """
        Return until when to wait for acks, None at the end; waits while there is nothing to do.
        """
        while True:
            with self._lock:
                self._telling = self._idle = False
                due = self._look()
                if not self._idle:
                    return due
            self._work.wait(threading.TIMEOUT_MAX)

    def _look(self) -> float | None:
        """Do what :meth:`_next_due` does, but do not wait; the lock is held."""
        window, hooks = self._window, self._hooks
        while True:
            window.flush()
            due = 0.0 if window.failures else window.due()
            self._attentive = window.number != self._looked_at
            if self._attentive:
                self._looked_at = window.number
                soon = time.monotonic() + BLOCK_DELAY
                return soon if due is None else min(due, soon)
            if due is not None:
                if window.staged and window.room > 0:
                    continue
                return due
            # From here on nothing will be in flight, if there is a reason. Who has staged a message
            # before it was set, or before the worker ceased to be attentive, relies on being found
            # here.
            self._stopped = self._stopped or window.box.failure
            if window.staged:
                continue
            if self._stopped is not None and hooks.close():
                return None
            if hooks.over:
                return 0.0
            self._idle = True
            return None

    def _settle(self) -> None:
        """Complete what has ended: decide under the lock, tell the user without it."""
        window = self._window
        with self._lock:
            setbacks = window.account()
            ended = self._take_ended()
        self._tell(ended)
        if setbacks:
            window.judge(setbacks)
            with self._lock:
                window.schedule(setbacks)
                ended = self._take_ended()
            self._tell(ended)

    def _take_ended(self) -> list[PublishFuture]:
        """Take what has ended out of the books and set the futures; the lock is held."""
        window = self._window
        acked, window.pipeline.acked = window.pipeline.acked, []
        failures, window.failures = window.failures, []
        ended: list[PublishFuture] = []
        for number, _, ack in acked:
            self._end(number, ack, ended)
        for number, _, error in failures:
            future = self._end(number, error, ended)
            if future is not None and self._on_report is None:
                self._keep_failure(number, future)
        self._failed += len(failures)
        if self._window.open_count <= self._roomy:
            self._room.notify()
        self._ended.notify()
        told = ended if self._on_report is not None else [f for f in ended if f.callbacks]
        if told:
            self._attentive, self._telling = False, True
            self._window.flush()
        return told

    def _end(
        self, number: int, outcome: PubAck | Exception, ended: list[PublishFuture]
    ) -> PublishFuture | None:
        """Take one message out of the books; the lock is held."""
        future = self._futures.pop(number, None)
        # There is none if Ctrl-C came between sending and its entry.
        if future is not None:
            future.settle_nowait(outcome)
            ended.append(future)
            if future.hooked is not None:
                self._hooks.part(future.hooked, outcome)
        return future

    def _keep_failure(self, number: int, future: PublishFuture) -> None:
        """Keep a failure until somebody asks about it, or the publisher ends; the lock is held."""
        kept = self._unobserved
        if len(kept) >= KEPT_FAILURES:
            kept[:] = [entry for entry in kept if not entry[1].observed]
        if len(kept) < KEPT_FAILURES:
            kept.append((number, future))

    def _tell(self, ended: list[PublishFuture]) -> None:
        """Call what users gave; the lock is not held."""
        on_report = self._on_report
        for future in ended:
            if on_report is not None:
                self._guard(on_report, future.report())
            if future.callbacks is not None:
                for callback in future.callbacks:
                    self._guard(callback, future)

    def _guard(self, call: Callable[..., object], *arguments: object) -> None:
        """Call what a user gave; whatever it raises, the messages behind it still have to end."""
        try:
            call(*arguments)
        except BaseException:
            # Also of sys.exit, which would end this thread only, and nobody would see it.
            self._report_errors += 1
            _logger.exception(_log.CALLBACK_FAILED)

    def _leave_windows(self) -> None:
        """Leave the wrappers of windows whose messages have ended."""
        if self._hooks.wraps:
            for window in self._hooks.take_over():
                self._guard(window.leave)
