"""
Publish many messages with a window of acknowledgements, from one thread.

The calling thread does all the work: it encodes a block, writes it, and reads the acks that have
    come while it waits for room. Time-outs and lost connections are settled block by block; nothing
    is dropped, and nothing is reported that is not known (see :mod:`jetsync._proto.pipeline`).
"""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from jetsync import events
from jetsync._deadline import Deadline
from jetsync._handoff import Mailbox
from jetsync._proto.pipeline import Pipeline
from jetsync.errors import (
    ConnectionClosedError,
    DisconnectedError,
    JetSyncError,
    NoStreamResponseError,
    ProtocolError,
    PublishManyError,
    PublishOutcomeUnknownError,
)
from jetsync.outbound import OutboundMessage, PublishFailure, PublishReport, coerce_outbound
from jetsync.publish._encode import Encoder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from jetsync._hookcalls import Entered
    from jetsync._session import JetStreamSession
    from jetsync.outbound import PubAck

BLOCK_MESSAGES: Final = 512
"""
Messages encoded into one write at most. Fewer cost more system calls; more let the server wait.
"""

BLOCK_BYTES: Final = 128 << 10
"""
Bytes of one write after which no further message is added: 128 KiB, half of what a socket takes at
once.
"""

RETRIES: Final = 2
RETRY_WAIT: Final = 0.25
"""Seconds before a message that no stream took is sent again, as for a single publish."""


class BulkPublish:
    """
    One call of ``publish_many``.
    """

    def __init__(
        self,
        session: JetStreamSession,
        *,
        window: int,
        ack_timeout: float,
        on_ack: Callable[[OutboundMessage, PubAck], object] | None,
    ) -> None:
        core = session.core
        self._session = session
        self._lane = core.lane
        self._window = window
        self._ack_timeout = ack_timeout
        inbox = core.new_inbox().encode()
        self._prefix = inbox + b"."
        self._box = Mailbox(inbox + b".*", hears_denials=True)
        self._sid, self._line = core.open_box(self._box.interest, self._box)

        def report(_: int, item: Any, ack: PubAck) -> None:
            assert on_ack is not None
            on_ack(coerce_outbound(item), ack)

        self._pipeline: Pipeline[Any] = Pipeline(
            self._prefix, window, None if on_ack is None else report
        )
        self._encoder = Encoder(core)
        self._failures: list[PublishFailure] = []
        self._number = 0
        self._retry: deque[tuple[float, int, Any]] = deque()
        self._attempts: dict[int, int] = {}
        self._windows: deque[tuple[int, Entered]] = deque()
        """Windows that plugins wrap: the count of settled messages at which each ends."""

    def run(self, messages: Iterable[Any]) -> PublishReport:
        """Publish all, settle all, and return or raise the report."""
        source = iter(messages)
        broken: BaseException | None = None
        try:
            try:
                self._send_all(source)
            except Exception as error:  # noqa: BLE001 - raised again below, once all is settled.
                broken = error
            self._settle_all()
        finally:
            self._lane.leave(self._sid)
            self._leave_windows(broken, everything=True)
        report = self._report()
        if broken is not None and not isinstance(broken, _StoppedError):
            raise broken
        if report.failures:
            raise PublishManyError(report)
        return report

    # Sending.

    def _send_all(self, source: Iterator[Any]) -> None:
        exhausted = False
        while not exhausted:
            self._take_answers()
            self._send_refused_again()
            room = self._pipeline.room
            # A handful of free places is not worth a write: it would make blocks shrink to nothing.
            if room < min(BLOCK_MESSAGES, self._window) // 2 and self._pipeline.flying:
                self._wait()
                continue
            exhausted = self._send_block(source, min(room, BLOCK_MESSAGES))
            if len(self._failures) >= self._window:
                # Whatever is wrong, it is not one message: what was not taken from the iterable
                # stays there.
                raise _StoppedError

    def _send_block(self, source: Iterator[Any], most: int) -> bool:
        """Encode and write one block; return whether the source is exhausted."""
        encode, prefix, flying = self._encoder.encode, self._prefix, self._pipeline.flying
        number = first = self._number
        pieces = [self._line]
        size = 0
        exhausted = True
        self._enter_window()
        try:
            for item in source:
                try:
                    piece = encode(item, b"%b%d" % (prefix, number))
                except (JetSyncError, ValueError, TypeError) as error:
                    self._fail(number, item, error)
                else:
                    flying[number] = item
                    pieces.append(piece)
                    size += len(piece)
                number += 1
                if number - first >= most or size >= BLOCK_BYTES:
                    exhausted = False
                    break
        finally:
            # Also when the source raised: what it gave before is published.
            self._number = number
            if number > first:
                self._write(b"".join(pieces), range(first, number))
        return exhausted

    def _write(self, block: bytes, numbers: range) -> None:
        try:
            epoch = self._lane.write(block, Deadline.after(self._ack_timeout))
        except (DisconnectedError, ConnectionClosedError) as error:
            for number in numbers:
                if number in self._pipeline.flying:
                    self._fail(number, self._pipeline.flying.pop(number), error)
            raise _StoppedError from error
        self._line = b""
        self._pipeline.sent(numbers, epoch, time.monotonic() + self._ack_timeout)
        if self._lane.lost_epoch >= epoch:
            self._box.lost(self._lane.lost_epoch)

    def _send_refused_again(self) -> None:
        now = time.monotonic()
        while self._retry and self._retry[0][0] <= now:
            _, number, item = self._retry.popleft()
            block = self._encoder.encode(item, b"%b%d" % (self._prefix, number))
            epoch = self._lane.write(block, Deadline.after(self._ack_timeout))
            self._pipeline.again(number, item, epoch, now + self._ack_timeout)

    # Settling.

    def _settle_all(self) -> None:
        """Wait until every message has ended; each ends by its block's time."""
        while self._pipeline.flying or self._retry:
            self._take_answers()
            self._send_refused_again()
            if self._pipeline.flying or self._retry:
                self._wait()
        self._take_answers()

    def _wait(self) -> None:
        """Wait for an answer, or for the moment at which something is given up or sent again."""
        due = self._pipeline.due()
        if self._retry and (due is None or self._retry[0][0] < due):
            due = self._retry[0][0]
        if due is not None:
            self._lane.wait(self._box, Deadline(due, self._ack_timeout))
        self._pipeline.expire(time.monotonic())

    def _take_answers(self) -> None:
        """Account for everything that has happened so far."""
        box, pipeline = self._box, self._pipeline
        frames = box.drain()
        if frames:
            pipeline.settle(frames)
        for subject, denial in box.take_denials():
            pipeline.deny(subject.decode(), denial, lambda item: coerce_outbound(item).subject)
        lost = box.take_lost()
        if lost:
            pipeline.lost(lost)
        if box.failure is not None:
            pipeline.lost(1 << 62)
        if pipeline.refused:
            self._on_refused()
        if pipeline.failed:
            self._on_failed()
        if self._windows:
            self._leave_windows(None)

    def _on_refused(self) -> None:
        """Schedule what no stream took, or fail it."""
        due = time.monotonic() + RETRY_WAIT
        for number, item in self._pipeline.refused:
            attempts = self._attempts[number] = self._attempts.get(number, 0) + 1
            if attempts <= RETRIES and self._box.failure is None:
                self._retry.append((due, number, item))
            else:
                del self._attempts[number]
                subject = coerce_outbound(item).subject
                self._fail(number, item, NoStreamResponseError(subject, attempts=attempts))
        self._pipeline.refused.clear()

    def _on_failed(self) -> None:
        reason = "the connection was lost" if self._box.lost_epoch else None
        for number, item, error in self._pipeline.failed:
            if error is not None and not isinstance(error, ProtocolError):
                self._fail(number, item, error)
                continue
            message = coerce_outbound(item)
            unknown = PublishOutcomeUnknownError(
                message.subject,
                msg_id=message.msg_id,
                timeout=None if reason or error else self._ack_timeout,
                reason=reason if error is None else str(error),
            )
            unknown.__cause__ = error
            self._fail(number, item, unknown)
        self._pipeline.failed.clear()

    def _fail(self, number: int, item: Any, error: Exception) -> None:
        try:
            message = coerce_outbound(item)
        except JetSyncError:
            message = OutboundMessage(subject="", data=b"")
        self._failures.append(PublishFailure(number, message, error))

    def _report(self) -> PublishReport:
        tally = self._pipeline.tally
        return PublishReport(
            count=tally.count,
            duplicates=tally.duplicates,
            first_sequence=tally.first_sequence,
            last_sequence=tally.last_sequence,
            failures=tuple(sorted(self._failures, key=lambda failure: failure.index)),
        )

    # Plugins around windows.

    def _enter_window(self) -> None:
        """Enter the wrappers of the next window, when the last one has been filled."""
        enter = self._session.plugins.enter_publish
        if enter is None or (self._windows and self._number < self._windows[-1][0]):
            return
        operation = events.PublishOperation(
            messages=None, window=self._window, timeout=self._ack_timeout
        )
        self._windows.append((self._number + self._window, enter(operation)))

    def _leave_windows(self, error: BaseException | None, *, everything: bool = False) -> None:
        """Leave the wrappers of the windows whose messages have all ended."""
        settled = self._number - len(self._pipeline.flying) - len(self._retry)
        while self._windows and (everything or self._windows[0][0] <= settled):
            _, entered = self._windows.popleft()
            entered.leave(None, error)


class _StoppedError(Exception):
    """No further message is taken from the iterable; the failures say why."""
