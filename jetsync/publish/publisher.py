"""
A publisher keeps many messages in flight, from any number of threads, each with a future.

Publishing threads stage messages in the flight without the turn of the publisher. One worker thread
per publisher reads the acks, completes futures and calls the user's callbacks. Staged messages are
written in the turn. A publishing thread writes them if a block is full, if it has
to wait, or if messages are rare. Otherwise the worker does so every ``BLOCK_DELAY`` seconds.

Invariants
- Either a message is staged, or ``publish`` raises and nothing is sent. A staged message ends
  exactly once, through its future.
- The flight limits the messages in flight. Threads that publish at the same moment may exceed it by
  one message each.
- No thread has the turn while it waits for the connection or runs a user's code.
- The worker never waits for the connection, so messages in flight end even without one.
"""

from __future__ import annotations

import math
import threading
import time
import weakref
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

import attrs

from jetsync import errors
from jetsync._base.deadline import FOREVER, Deadline
from jetsync._base.dropped import when_dropped
from jetsync._base.failures import raise_failure
from jetsync._base.html import html_table
from jetsync._base.locks import SIGNAL_CHECK, Latch, Notifier, Signal
from jetsync._base.log import get_logger
from jetsync._base.pickling import refuse_copy
from jetsync._base.turn import Turn, refuse_inside, waiting
from jetsync._hooks.calls import FaultLog
from jetsync._hooks.errors import PluginError
from jetsync.publish.encode import BLOCK_BYTES, BLOCK_MESSAGES
from jetsync.publish.errors import PublishManyError
from jetsync.publish.flight import Flight
from jetsync.publish.future import DeliveryReport, FutureOwner, PublishFuture
from jetsync.publish.hooks import BulkHooks, refuse_staging
from jetsync.values.outbound import Expect, OutboundMessage
from jetsync.values.pub_acks import PublishFailure

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Self

    from jetsync._api.context import Context
    from jetsync._base.deadline import Seconds
    from jetsync.publish.flight import FlightOptions
    from jetsync.values.headers import HeadersInput
    from jetsync.values.outbound import Payload

T = TypeVar("T")

__all__ = ["DeliveryReport", "PublishFuture", "Publisher", "PublisherStatistics"]

# The most unobserved failures that a publisher keeps for the error that ``close`` raises.
KEPT_FAILURES: Final = 1000

# While many messages are published, a message may wait this many seconds to share a write. Measured
# with 128 bytes on two cores: 5.2 us of CPU per message in a block, 10.6 us for a single message.
BLOCK_DELAY: Final = 0.001

# Seconds that a publishing thread waits for the turn before it leaves a full block to the
# worker.
LOCK_WAIT: Final = 0.002

# Seconds for which ``close`` waits for callbacks after its timeout.
CALLBACK_TIME: Final = 1.0

_logger = get_logger("jetsync.publisher")


@attrs.frozen
class PublisherStatistics:
    """
    Counters of a publisher.
    """

    # For notebooks.
    _repr_html_ = html_table

    published: int
    """Messages that were passed to the publisher."""

    acknowledged: int
    """Messages that a stream has stored, including duplicates."""

    duplicates: int
    """Messages whose id the stream already knew, so that it did not store them again."""

    failed: int
    """Messages with an error, including those whose outcome is unknown."""

    pending: int
    """Messages whose outcome is not known yet."""

    report_errors: int
    """How often ``on_report``, a plugin or a callback of a future raised."""


@attrs.define(eq=False)
class Counters:
    """
    The counters of a publisher's worker, which needs them even after the publisher was dropped.
    """

    faults: FaultLog
    failed: int = 0
    report_errors: int = 0

    def statistics(self, flight: Flight) -> PublisherStatistics:
        """
        Return the counters and those of the publisher's flight; any thread.
        """
        tally, pending = flight.pipeline.tally, flight.open_count
        return PublisherStatistics(
            published=tally.count + self.failed + pending,
            acknowledged=tally.count,
            duplicates=tally.duplicates,
            failed=self.failed,
            pending=pending,
            report_errors=self.report_errors,
        )

    def guard(self, call: Callable[..., object], *arguments: object) -> None:
        """Call user code. Whatever it raises, the following messages still have to end."""
        try:
            call(*arguments)
        except BaseException as error:
            # SystemExit is caught too, because it would silently end only this thread.
            self.report_errors += 1
            if isinstance(error, PluginError):
                self.faults.report(error.plugin, error.hook, error)
            else:
                _logger.exception("callback_failed")


class Publisher:
    """
    Publish with many messages in flight. Use it as a context manager.

    Any number of threads may publish. The stream stores the messages of one thread to one subject
    in the order of its calls. If no stream responds to a message, jetsync sends it again, which may
    change the order. The end of the ``with`` block waits until all messages are stored or have
    failed. It raises PublishManyError if messages failed and your code neither asked for their
    outcomes nor gave ``on_report``. If the publisher is still open when the client closes or the
    interpreter exits, jetsync waits for its messages too.
    """

    # Threads: any, and the worker, which reads acks and calls plugins and callbacks.
    # Locks: the publisher turn, `_turn`, protects the flight and the outcomes of futures. `publish`
    # stages without it. Plugins and callbacks run without it.

    __reduce__ = refuse_copy

    def __init__(
        self,
        context: Context,
        options: FlightOptions,
        on_report: Callable[[DeliveryReport], object] | None,
    ) -> None:
        self._lane = context.lane
        self._on_report = on_report
        flight = self._flight = Flight(context, options, keep_acks=True, while_closing=True)
        pipeline = flight.pipeline
        self._counters = Counters(context.plugins.faults)
        self._hooks = BulkHooks(context.plugins)
        self._turn = Turn("another call on the publisher")
        self._owner = FutureOwner(self._in_turn, self._wait, pipeline.full_ack)
        # Set if messages are in flight, or if the publisher closes.
        self._work = work = Signal()
        # Notified if the window has room for half a block, or if the publisher closes. Waking
        # threads for a few free places costs more than it gains.
        self._room = Notifier()
        # Notified if messages have ended.
        self._ended = Notifier()
        # Set when the worker ends. ``Thread.join`` is not enough: a signal handler that interrupts
        # it and joins the same thread may wait for itself.
        self._worker_ended = Latch()
        # Why no more messages are accepted.
        self._stopped: Exception | None = None
        # Whether the worker waits for messages rather than for acks.
        self._idle = False
        # A thread that stages a message with this number, or a later one, writes. 0 while messages
        # are rare. Otherwise, the worker flushes every ``BLOCK_DELAY`` seconds, and this is the
        # last number of a full block; infinite if a thread did not get the turn to write it.
        self._write_at: float = 0
        # Whether the worker runs a user's code, which may be slow.
        self._in_callback = False
        # When a publishing thread last wrote a single message.
        self._written = 0.0
        # The last message that was written at the worker's last flush.
        self._flushed_number = 0
        self._unobserved: list[tuple[int, PublishFuture]] = []
        # Wake an idle worker if the client is closed.
        flight.box.on_failure = lambda _: work.set()
        # The worker refers to the publisher only while it works, so that the garbage collector can
        # end a publisher that the application has dropped.
        self._worker = threading.Thread(
            target=partial(
                _run,
                weakref.ref(self),
                flight,
                hooks=self._hooks,
                counters=self._counters,
                work=work,
                ended=self._worker_ended,
            ),
            name="jetsync-publisher",
            daemon=True,
        )
        self._hooks.begin(options.operation, pipeline.tally)
        # Stages what `publish` may stage without a further step.
        self._stage = refuse_staging if self._hooks.changes_messages else flight.stage.stage
        try:
            flight.open()
            flight.permit()
            # Before the worker starts: if Ctrl-C strikes afterwards, the caller never gets the
            # publisher, and the worker has to end nevertheless.
            when_dropped(self, "publisher", _release, work, self._worker_ended)
            context.connection.start_threads(self._worker)
        except BaseException as error:
            flight.close()
            self._hooks.leave(None, error)
            raise
        context.connection.writers.add(self)

    def __repr__(self) -> str:
        state = "open" if self._stopped is None else "closed"
        return f"<Publisher {state} pending={self.pending} of {self._flight.options.size}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self._close(None)

    @property
    def pending(self) -> int:
        """How many messages have no known outcome yet."""
        return self._flight.open_count

    def statistics(self) -> PublisherStatistics:
        """Return the current counters."""
        if self._lane.forked:
            raise errors.ForkedProcessError
        return self._counters.statistics(self._flight)

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

        If as many messages or bytes are in flight as ``window`` and ``window_bytes`` of
        :meth:`JetStream.publisher` allow, the call waits until a message is acknowledged or has
        failed. It waits at most for the ``ack_timeout`` of the oldest message. If there is no
        connection, the call also waits for one, for up to ``ack_timeout``. Thread-safe. After
        Ctrl-C the outcome is unknown.

        Args:
            subject: The subject, which selects the stream.
            data: The payload. Text is sent as UTF-8.
            headers: The headers. jetsync does not change this object.
            msg_id: Id for duplicate detection. The stream stores only the first message with an id
                within its duplicate window.
            ttl: Time-to-live: seconds or a ``timedelta``, at least 1 second, or ``"never"``
                (ADR-43).
            expect: Conditions for storing the message.

        Raises:
            InvalidArgumentError, InvalidTypeError: The message is invalid; nothing was sent.
            DisconnectedError, ConnectionClosedError: There was no connection in time, or the client
                is closed; nothing was sent.
            HandleClosedError: The publisher is closed.
            PluginError: A plugin vetoed the message; nothing was sent.
            WaitTimeoutError: The window is full, and the caller is a callback. Callbacks run in the
                publisher's own thread, which would wait for itself. Nothing was sent.
            CallInSignalHandlerError: The window is full, and this signal handler interrupted a call
                of jetsync; nothing was sent.
        """
        # A pair costs less to create and to encode, and is enough for most messages.
        future = PublishFuture(self._owner, (subject, data))
        if headers is not None or msg_id is not None or ttl is not None or expect is not None:
            future.item = OutboundMessage(subject, data, headers, msg_id, ttl, expect)
        elif number := self._stage(subject, data, b"", future):
            # Read `_write_at` only now that the message is staged. A thread that sets it looks for
            # staged messages afterwards, so no message is overlooked.
            if number >= self._write_at:
                self._flush_staged()
            return future
        if self._hooks.changes_messages:
            self._lane.check()
            future.item = self._hooks.prepared(future.item)
        return self._send(future)

    def _send(self, future: PublishFuture) -> PublishFuture:
        """Stage a message and return its future; wait for room and for a connection."""
        flight = self._flight
        deadline: Deadline | None = None
        while True:
            if self._stopped is not None or not self._has_room():
                self._wait_room()
            number = flight.add(future)
            if number:
                break
            self._lane.check()
            # Wait without the turn, because the worker needs it for the messages in flight.
            deadline = deadline or Deadline.after(self._flight.options.ack_timeout)
            self._lane.outbox.wait_open(deadline)
            self._in_turn(flight.permit)
        # As in `publish`.
        if number >= self._write_at or flight.stage.size >= BLOCK_BYTES:
            self._flush_staged()
        return future

    def _flush_staged(self) -> None:
        """Write the staged messages, or leave that to the worker if messages are frequent."""
        try:
            if self._write_at == 0:
                self._turn.run(FOREVER, self._flush_rare)
            elif self._write_at < math.inf:
                # A short wait, because the worker may need the GIL to leave it.
                self._turn.run(Deadline.after(LOCK_WAIT), self._flush)
        except errors.WaitTimeoutError:
            # Trying again with each message would double the cost of publishing meanwhile.
            self._write_at = math.inf
        except errors.CallInSignalHandlerError:
            # This signal handler interrupted a call that has the turn, or one that the worker waits
            # for. The worker will write.
            self._nudge_worker()
        if self._in_callback and self._write_at == math.inf:
            # Meanwhile, the worker has left its work for the code of a callback.
            self._write_at = 0
            self._flush_staged()

    def _flush(self) -> None:
        """Write the staged messages; in the turn."""
        flight = self._flight
        flight.flush()
        if flight.stalled and not self._in_callback:
            # The worker tries again. Each try copies all messages that wait.
            self._write_at = math.inf
            self._wake_worker()
        elif self._write_at:
            self._write_at = flight.stage.done + BLOCK_MESSAGES

    def _flush_rare(self) -> None:
        """Write the staged messages, unless they have become frequent; in the turn."""
        now = time.monotonic()
        if now - self._written > BLOCK_DELAY or self._in_callback:
            self._written = now
            self._flush_now()
        else:
            # The second message within the delay: many more may follow.
            self._write_at = self._flight.stage.done + BLOCK_MESSAGES
            self._wake_worker()

    def _flush_now(self) -> None:
        """
        Write the staged messages, and make sure that the worker reads the acks.

        In the turn.
        """
        if self._idle:
            # Set before the write: if Ctrl-C interrupts it, the worker still ends these messages.
            self._work.set()
        self._flush()

    def _wait(
        self,
        is_over: Callable[[], bool],
        notifier: Notifier | PublishFuture,
        deadline: Deadline,
        what: str | None = None,
    ) -> None:
        """
        Wait until *is_over* returns true, checked after each notification, or until the deadline.

        Raises:
            WaitTimeoutError: This is the publisher's own thread, and only it can provide *what*.
            CallInSignalHandlerError: This signal handler interrupted a call of jetsync.
        """
        is_worker = self._is_worker()

        def listen() -> Signal | None:
            self._flush_now()
            # Before a signal is added, or each poll with a timeout of 0 would leave one.
            return None if is_over() or deadline.expired() else notifier.listen()

        while not is_over():
            if is_worker and what is not None:
                raise errors.WaitTimeoutError(f"{what}, which only this thread can provide", 0.0)
            # The worker calls plugins and callbacks, which may wait for other handles.
            refuse_inside()
            signal = self._in_turn(listen)
            if signal is None:
                return
            while not waiting(signal.wait, min(deadline.remaining(), SIGNAL_CHECK)):
                if deadline.expired():
                    break

    def _in_turn(self, work: Callable[..., T], *arguments: Any) -> T:
        """Call *work* in the turn; raises in a forked child, where no thread may leave it."""
        if self._lane.forked:
            raise errors.ForkedProcessError
        return self._turn.run(FOREVER, work, *arguments)

    def _is_worker(self) -> bool:
        return threading.get_ident() == self._worker.ident

    def _wait_room(self) -> None:
        """Wait until the window has room; raise if the publisher is closed."""

        def has_room() -> bool:
            if self._stopped is not None:
                raise_failure(self._stopped)
            if self._flight.is_full and self._turn.owned():
                self._flight.pipeline.prune()
            return self._has_room()

        self._lane.check()
        self._wait(has_room, self._room, FOREVER, "room in the window")
        self._lane.check()

    def _has_room(self) -> bool:
        flight = self._flight
        return flight.open_count < self._flight.options.size and not flight.is_full

    def flush(self, *, timeout: Seconds | None = None) -> int:
        """
        Wait until all messages so far are stored or have failed. Return how many are pending.

        In a callback this does not wait, because the thread of the callback also reads the acks.

        Args:
            timeout: Seconds to wait. None waits for all messages, at most ``ack_timeout`` each.

        Raises:
            ConnectionClosedError: The client was closed.
        """
        self._lane.check()
        flight = self._flight
        deadline = Deadline.after(0.0 if self._is_worker() else timeout)

        def begin() -> list[Any]:
            self._flush()
            self._wake_worker()
            return flight.entries()

        pending = self._in_turn(begin)

        def is_over() -> bool:
            while pending and pending[-1].done():
                pending.pop()
            return not pending

        self._wait(is_over, self._ended, deadline)
        return sum([not future.done() for future in pending])

    def close(self, *, timeout: Seconds | None = None) -> None:
        """
        Accept no more messages, wait until all are stored or have failed, and stop.

        Safe to repeat. In a callback this does not wait, because the thread of the callback also
        reads the acks. The publisher then stops by itself.

        Args:
            timeout: Seconds to wait. None waits for all messages, at most ``ack_timeout`` each.
                The outcome of messages that are still pending then is unknown.

        Raises:
            PublishManyError: Messages failed, and your code neither asked for their outcomes nor
                gave ``on_report``.
        """
        failures = self._close(timeout)
        if failures:
            raise PublishManyError(self._flight.pipeline.tally.report(failures))

    def _close(self, timeout: Seconds | None) -> list[PublishFailure]:
        """Close, and return the failures that ``close`` raises."""
        deadline = Deadline.after(timeout)
        if self._lane.forked:
            # The worker, and perhaps the thread that has the turn, are in the parent.
            return []
        self._end(deadline, errors.HandleClosedError("publisher"))
        if self._is_worker():
            return []
        failures = self._unobserved_failures()
        self._unobserved.clear()
        return failures

    def begin_finish(self) -> None:
        """Wake the calls that wait for room, because the client begins to close."""
        self._stop(errors.ConnectionClosedError())

    def finish(self, deadline: Deadline) -> str | None:
        """
        Close because the client or the interpreter ends; return a warning if messages may be lost.

        A later ``close`` still raises the errors.
        """
        failed = self._counters.failed
        try:
            self._end(deadline, errors.ConnectionClosedError(), callback_time=0.1)
        except Exception as error:  # noqa: BLE001 - reported
            return f"a publisher could not be closed: {error}"
        failures = self._unobserved_failures()
        count = max(self._counters.failed - failed, len(failures)) + self.pending
        if not count:
            return None
        text = f"{count} message{'s' if count > 1 else ''} of a publisher may not be stored"
        return f"{text}; the first error: {failures[0].error}" if failures else text

    def _unobserved_failures(self) -> list[PublishFailure]:
        return [
            PublishFailure(number, future.message, future.outcome)
            for number, future in self._unobserved
            if not future.observed and isinstance(future.outcome, Exception)
        ]

    def _end(
        self,
        deadline: Deadline,
        reason: Exception,
        callback_time: float = CALLBACK_TIME,
    ) -> None:
        """Accept no more messages, wait for those that were accepted, and end the worker."""
        refuse_inside()
        self._stop(reason)
        if self._is_worker():
            return
        self._wait(lambda: not self._flight.open_count, self._ended, deadline)
        # The worker ends when its mailbox has failed and all messages have ended.
        self._flight.box.fail(reason)
        self._lane.reader.wake_reader()
        if waiting(self._worker_ended.wait, max(deadline.remaining(), callback_time)):
            self._worker.join(CALLBACK_TIME)

    def _stop(self, reason: Exception) -> None:
        """Accept no more messages because of *reason*; never waits."""

        def stop() -> None:
            self._stopped = self._stopped or reason
            self._flight.end()
            self._room.notify()
            self._wake_worker()

        self._in_turn(stop)

    def _wake_worker(self) -> None:
        """End the worker's current wait; in the turn."""
        if self._idle:
            self._work.set()
        else:
            self._lane.interrupt(self._flight.box)

    def _nudge_worker(self) -> None:
        """As :meth:`_wake_worker`, without the turn."""
        # Both, because the worker may become idle at this moment.
        self._work.set()
        self._lane.interrupt(self._flight.box)

    # The worker thread.

    def _abandon(self, error: BaseException) -> None:
        """End all messages after an error in the worker, so that no thread waits for ever."""

        def abandon() -> None:
            self._stopped = errors.HandleClosedError("publisher", reason=repr(error))
            self._flight.end()
            self._flight.abandon(self._stopped)
            self._room.notify()

        self._turn.run(FOREVER, abandon)
        self._complete()

    def _step(self) -> float | None:
        """
        Do what is due, flush, and return when the next step is due.

        Infinity means that all messages have ended, and None that the worker can end.
        """
        self._settle()
        while True:
            due = self._turn.run(FOREVER, self._flush_due)
            if due is None or due >= 0.0:
                return due

    def _flush_due(self) -> float | None:
        """
        Do the work of :meth:`_step` in the turn.

        A negative result means that threads have staged messages meanwhile.
        """
        flight = self._flight
        stage = flight.stage
        self._in_callback = self._idle = False
        flight.flush()
        due = 0.0 if flight.failures else flight.due()
        if stage.done != self._flushed_number:
            self._flushed_number = stage.done
            self._write_at = stage.done + BLOCK_MESSAGES
            soon = time.monotonic() + BLOCK_DELAY
            return soon if due is None else min(due, soon)
        # Without staged messages, this thread may soon be idle, and tries nothing again.
        self._write_at = math.inf if flight.stalled and stage.count else 0
        if due is not None:
            return -1.0 if stage.count and not flight.stalled else due
        # Set `_stopped` before looking for staged messages. A thread may have staged one before
        # this line, or while the worker still flushed regularly, and relies on the worker to write
        # it.
        self._stopped = self._stopped or flight.box.failure
        if self._stopped is not None:
            flight.end()
            # Waits for a thread that is staging a message. Later ones are refused.
            stage.close()
        if stage.count:
            return -1.0
        if self._stopped is not None:
            return None
        self._idle = True
        return math.inf

    def _settle(self) -> None:
        """Process acks and retries; call plugins and the user's code without the turn."""
        flight = self._flight
        failed_attempts = self._turn.run(FOREVER, flight.process_outcomes)
        self._complete()
        if failed_attempts:
            flight.decide_retries(failed_attempts)
            self._turn.run(FOREVER, flight.schedule_retries)
            self._complete()

    def _complete(self) -> None:
        """
        Complete the futures of ended messages, then call their callbacks.

        The callbacks are called without the turn.
        """
        on_report, reports = self._on_report, self._hooks.reports
        observed, report_due = self._turn.run(FOREVER, self._end_messages)
        guard = self._counters.guard
        if reports is not None and report_due:
            guard(reports.send)
        for future in observed:
            if on_report is not None:
                guard(on_report, future.report())
            for callback in future.callbacks or ():
                guard(callback, future)

    def _end_messages(self) -> tuple[list[PublishFuture], bool]:
        """
        Complete the futures of ended messages, in the turn.

        Returns those with callbacks, and whether a report to plugins is due.
        """
        flight, on_report, reports = self._flight, self._on_report, self._hooks.reports
        acked = flight.take_acked()
        failures, flight.failures = flight.failures, []
        ended = [*acked, *[(future, error) for _, future, error in failures]]
        observed: list[PublishFuture] = []
        for future, outcome in ended:
            future.outcome = outcome
            if on_report is not None or future.callbacks:
                observed.append(future)
            if future.notifier is not None:
                future.notifier.notify()
        report_due = reports is not None and reports.note(error for *_, error in failures)
        if on_report is None:
            for number, future, _ in failures:
                self._keep_failure(number, future)
        self._counters.failed += len(failures)
        size = self._flight.options.size
        if flight.open_count <= size - max(min(BLOCK_MESSAGES, size) // 2, 1):
            self._room.notify()
        self._ended.notify()
        if observed or report_due:
            # In this order, see `_flush_staged`.
            self._in_callback = True
            self._write_at = 0
            flight.flush()
        return observed, report_due

    def _keep_failure(self, number: int, future: PublishFuture) -> None:
        """
        Keep a failure until its future is observed or the publisher ends.

        In the turn.
        """
        kept = self._unobserved
        if len(kept) >= KEPT_FAILURES:
            kept[:] = [entry for entry in kept if not entry[1].observed]
        if len(kept) < KEPT_FAILURES:
            kept.append((number, future))


def _run(
    owner: weakref.ref[Publisher],
    flight: Flight,
    *,
    hooks: BulkHooks,
    counters: Counters,
    work: Signal,
    ended: Latch,
) -> None:
    """Process the acks of a publisher until it ends or was dropped."""
    dropped, broken = False, None
    reports = hooks.reports
    try:
        while (publisher := owner()) is not None:
            due = publisher._step()  # noqa: SLF001 - the publisher's own thread
            del publisher
            if due is None:
                break
            # A report is due while the worker is idle, too.
            until = due if reports is None else min(due, reports.due)
            if due < math.inf:
                flight.wait(until)
            else:
                work.wait(min(until - time.monotonic(), threading.TIMEOUT_MAX))
        else:
            dropped = True
    except BaseException as error:
        broken = error
        publisher = owner()
        if publisher is not None:
            publisher._abandon(error)  # noqa: SLF001 - as above
        raise
    finally:
        flight.close()
        if reports is not None:
            counters.guard(reports.send)
        counters.guard(hooks.leave, counters.statistics(flight), broken)
        if not dropped:
            ended.set()


def _release(work: Signal, ended: Latch) -> bool:
    """End the worker of a dropped publisher; return whether the publisher was still open."""
    work.set()
    return not ended.is_set()
