"""
A publisher: many messages in flight, from any number of threads, each with a future.

Publishing threads encode and send; one worker thread per publisher reads the acks, completes
futures and calls ``on_report``. The window is shared under one lock, which is never held while a
user's code runs.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Final, Literal

import attrs

from jetsync import _log
from jetsync._deadline import Deadline, as_seconds
from jetsync._session import raise_failure
from jetsync.errors import (
    HandleClosedError,
    PublishManyError,
    WaitTimeoutError,
)
from jetsync.outbound import (
    Expect,
    OutboundMessage,
    PubAck,
    PublishFailure,
    PublishReport,
)
from jetsync.publish._window import Window, WindowOptions

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Self

    from jetsync._session import JetStreamSession
    from jetsync.typing import HeadersInput, Payload, Seconds

__all__ = ["DeliveryReport", "PublishFuture", "Publisher", "PublisherStatistics"]

KEPT_FAILURES: Final = 1000
"""Failures that nobody asked about which a publisher keeps for the error at its end."""

_logger = _log.get_logger("publisher")


@attrs.frozen
class DeliveryReport:
    """
    How the publishing of one message ended.
    """

    message: OutboundMessage
    ack: PubAck | None
    """The stream's acknowledgement; None when there is none."""

    error: Exception | None
    """Why there is none: the same errors as of a single publish."""


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
    """How often ``on_report`` or a callback of a future raised."""


class PublishFuture:
    """
    The outcome of one message, once it is known. Any thread.
    """

    __slots__ = ("_ack", "_callbacks", "_condition", "_done", "_error", "message", "observed")

    def __init__(self, message: OutboundMessage, condition: threading.Condition) -> None:
        self.message = message
        """The message, as the plugins left it."""

        self.observed = False
        """Whether anybody has asked for the outcome."""

        # One condition for all futures of a publisher: making one each would cost more than the
        # publish.
        self._condition = condition
        self._callbacks: list[Callable[[PublishFuture], object]] = []
        self._ack: PubAck | None = None
        self._error: Exception | None = None
        self._done = False

    def __repr__(self) -> str:
        state = "pending" if not self._done else "failed" if self._error else "stored"
        return f"<PublishFuture {self.message.subject} {state}>"

    def done(self) -> bool:
        """Return whether the outcome is known."""
        return self._done

    def result(self, timeout: Seconds | None = None) -> PubAck:
        """
        Wait for the acknowledgement and return it, or raise why there is none.

        Args:
            timeout: Seconds to wait; None waits until the outcome is known, which the publisher's
                ``ack_timeout`` bounds.

        Raises:
            WaitTimeoutError: The outcome is not known yet.
            PublishError, ApiError, DisconnectedError: As of a single publish.
        """
        error = self.exception(timeout)
        if error is not None:
            raise_failure(error)
        assert self._ack is not None
        return self._ack

    def exception(self, timeout: Seconds | None = None) -> Exception | None:
        """
        Wait for the outcome and return the error, None if the message is stored.

        Args:
            timeout: As for :meth:`result`.

        Raises:
            WaitTimeoutError: The outcome is not known yet.
        """
        self.observed = True
        with self._condition:
            seconds = None if timeout is None else as_seconds(timeout)
            if not self._condition.wait_for(self.done, seconds):
                raise WaitTimeoutError("the acknowledgement", seconds or 0.0)
        return self._error

    def add_done_callback(self, callback: Callable[[PublishFuture], object]) -> None:
        """
        Have *callback* called with this future once the outcome is known.

        It runs in the publisher's thread, or at once in this one if the outcome is known already.
        What it raises is logged.
        """
        self.observed = True
        with self._condition:
            if not self._done:
                self._callbacks.append(callback)
                return
        callback(self)

    def settle_nowait(self, ack: PubAck | None, error: Exception | None) -> None:
        """Set the outcome; the publisher holds the condition's lock and notifies."""
        self._ack, self._error, self._done = ack, error, True

    def take_callbacks(self) -> list[Callable[[PublishFuture], object]]:
        """Return the callbacks, once."""
        callbacks, self._callbacks = self._callbacks, []
        return callbacks


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
        session: JetStreamSession,
        options: WindowOptions,
        on_report: Callable[[DeliveryReport], object] | None,
    ) -> None:
        self._session = session
        self._options = options
        self._on_report = on_report
        self._window = Window(session, options, keep_acks=True)
        self._window.open()
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        """Something ended, or there is something to wait for, or the publisher closes."""

        self._futures: dict[int, PublishFuture] = {}
        self._number = 0
        self._closing = False
        self._idle = True
        """Whether the worker waits for something to do, rather than for acks."""

        self._duplicates = self._acknowledged = self._failed = self._report_errors = 0
        self._unobserved: list[tuple[int, PublishFuture]] = []
        self._worker = threading.Thread(target=self._work, name="jetsync-publisher", daemon=True)
        self._worker.start()

    def __repr__(self) -> str:
        state = "closed" if self._closing else "open"
        return f"<Publisher {state} pending={self.pending} of {self._options.size}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(_raise=kind is None)

    @property
    def pending(self) -> int:
        """How many messages have not ended yet."""
        return len(self._futures)

    def statistics(self) -> PublisherStatistics:
        """Return the counters as they are now."""
        with self._lock:
            return PublisherStatistics(
                published=self._number,
                acknowledged=self._acknowledged,
                duplicates=self._duplicates,
                failed=self._failed,
                pending=len(self._futures),
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

        Waits while the window is full, which the ``ack_timeout`` of the oldest message bounds.

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
        """
        self._session.core.check()
        message = OutboundMessage(subject, data, headers, msg_id, ttl, expect)
        window = self._window
        # Plugins run without the lock.
        message = window.prepared(message)
        with self._lock:
            self._wait_room()
            number = self._number
            block = window.enter(number, message)
            self._number += 1
            future = self._futures[number] = PublishFuture(message, self._changed)
        # Sent without the lock: this may wait for a connection, and acks have to be settled
        # meanwhile.
        try:
            epoch = self._session.lane.post(block, self._options.ack_timeout)
        except BaseException:
            with self._changed:
                del window.pipeline.flying[number], self._futures[number]
                self._changed.notify_all()
            raise
        with self._changed:
            window.written((number,), epoch)
            if self._idle:
                self._changed.notify_all()
        return future

    def flush(self, timeout: Seconds | None = None) -> int:
        """
        Wait until every message published so far has ended; return how many have not.

        Args:
            timeout: Seconds to wait; None waits for all, which ``ack_timeout`` bounds.

        Raises:
            ConnectionClosedError: The client was closed.
        """
        self._session.core.check()
        seconds = None if timeout is None else as_seconds(timeout)
        with self._changed:
            last = self._number
            # Futures are kept in the order of publishing, so the first one tells.
            self._changed.wait_for(lambda: next(iter(self._futures), last) >= last, seconds)
            return sum(number < last for number in self._futures)

    def close(self, timeout: Seconds | None = None, *, _raise: bool = True) -> None:
        """
        Wait until all messages have ended, and stop; safe to repeat.

        Args:
            timeout: Seconds to wait; None waits for all, which ``ack_timeout`` bounds. Messages
                that have not
                ended by then fail as unknown.

        Raises:
            PublishManyError: Messages failed that nobody asked about.
        """
        seconds = None if timeout is None else as_seconds(timeout)
        with self._changed:
            if self._closing:
                return
            self._changed.wait_for(lambda: not self._futures, seconds)
            self._closing = True
            self._changed.notify_all()
        self._window.box.fail(HandleClosedError("publisher"))
        self._session.lane.nudge()
        if threading.current_thread() is not self._worker:
            self._worker.join(self._options.ack_timeout)
        self._window.close()
        unobserved = [entry for entry in self._unobserved if not entry[1].observed]
        if unobserved and _raise:
            raise PublishManyError(self._report(unobserved))

    def _wait_room(self) -> None:
        """Wait until the window has room; the lock is held."""
        while not self._closing and self._window.room <= 0:
            self._changed.wait(self._options.ack_timeout)
            self._session.core.check()
        if self._closing:
            raise HandleClosedError("publisher")

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
            failures=tuple(failures),
        )

    # The worker thread.

    def _work(self) -> None:
        """Read acks as long as there is something to wait for; ends with the publisher."""
        lane, window = self._session.lane, self._window
        while True:
            with self._changed:
                # Without a due time nothing is on its way: idle, or about to be sent.
                while (due := window.due()) is None:
                    if self._closing and not self._futures:
                        return
                    self._idle = True
                    self._changed.wait()
                self._idle = False
            lane.wait(window.box, Deadline(due, self._options.ack_timeout))
            self._settle()

    def _settle(self) -> None:
        """Complete what has ended: decide under the lock, tell the user without it."""
        window = self._window
        ended: list[PublishFuture] = []
        with self._changed:
            window.settle()
            acked, window.pipeline.acked = window.pipeline.acked, []
            failures, window.failures = window.failures, []
            for number, _, ack in acked:
                self._acknowledged += 1
                self._duplicates += ack.duplicate
                ended.append(self._end(number, ack, None))
            for number, _, error in failures:
                self._failed += 1
                future = self._end(number, None, error)
                ended.append(future)
                if self._on_report is None and len(self._unobserved) < KEPT_FAILURES:
                    self._unobserved.append((number, future))
            self._changed.notify_all()
        for future in ended:
            self._tell(future)

    def _end(self, number: int, ack: PubAck | None, error: Exception | None) -> PublishFuture:
        """Take a message out of the books; the lock is held."""
        future = self._futures.pop(number)
        future.settle_nowait(ack, error)
        return future

    def _tell(self, future: PublishFuture) -> None:
        calls: list[tuple[Callable[[Any], object], Any]] = [
            (callback, future) for callback in future.take_callbacks()
        ]
        if self._on_report is not None:
            error = future._error  # noqa: SLF001 - asking for it would count as observing.
            report = DeliveryReport(future.message, future._ack, error)  # noqa: SLF001
            calls.append((self._on_report, report))
        for call, argument in calls:
            try:
                call(argument)
            except Exception:
                self._report_errors += 1
                _logger.exception(_log.CALLBACK_FAILED, subject=future.message.subject)
