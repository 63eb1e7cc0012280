"""
The window of messages in flight that ``publish_many`` and ``Publisher`` build on.

The window owns the reply subscription, the pipeline of messages in flight, and the retries of
messages that no stream took. It starts no threads and takes no locks; its owner does.
"""

from __future__ import annotations

import operator
import time
from typing import TYPE_CHECKING, Any, Final

import attrs

from jetsync import events
from jetsync._base.deadline import Deadline
from jetsync._io.mailbox import Mailbox
from jetsync._proto.pipeline import Pipeline
from jetsync.errors import (
    ConnectionClosedError,
    ConnectionLostError,
    DisconnectedError,
    JetSyncError,
    NoStreamResponseError,
    ProtocolError,
    PublishOutcomeUnknownError,
)
from jetsync.publish.encode import Encoder
from jetsync.publish.retry import (
    FailedAttempt,
    ask_retry,
    is_repeatable,
    report_retries,
    still_unknown,
)
from jetsync.values.outbound import (
    OutboundMessage,
    coerce_outbound,
    payload_bytes,
    subject_of,
)

if TYPE_CHECKING:
    from jetsync._api.context import Context

# Messages in flight at most: enough to hide a round trip, few enough to settle soon after a loss.
DEFAULT_WINDOW: Final = 4096

# Bytes in flight at most: 32 MiB. By default, a stream refuses messages (429, err_code 10167) while
# 128 MiB wait to be stored, so this leaves room for other publishers.
DEFAULT_WINDOW_BYTES: Final = 32 << 20

# An epoch above every other: every message in flight is lost.
EVERY_EPOCH: Final = 1 << 62

# Seconds between two attempts to find a connection for messages that wait for their retry.
CONNECTION_POLL: Final = 0.05


@attrs.frozen(kw_only=True)
class WindowOptions:
    """
    The options of one window.
    """

    size: int = DEFAULT_WINDOW
    max_bytes: int = DEFAULT_WINDOW_BYTES
    # Seconds to wait for each ack, and for a connection.
    ack_timeout: float
    # How often a message that no stream took is sent again, and the seconds before each attempt.
    retries: int = 2
    retry_wait: float = 0.25


class Window:
    """
    Send messages, match their acks and retry. Not thread-safe.

    An item is an ``OutboundMessage`` or a tuple.
    """

    def __init__(self, context: Context, options: WindowOptions, *, keep_acks: bool) -> None:
        connection = context.connection
        self.options = options
        self._plugins = context.plugins
        self._lane = connection.lane
        self._probe = connection.probe
        inbox = connection.new_inbox().encode()
        self.prefix: bytes = inbox + b"."
        self.box: Mailbox = Mailbox(inbox + b".*", collect_denials=True)
        self._sid, self._line = connection.listen(self.box)
        self.pipeline: Pipeline[Any] = Pipeline(self.prefix, options.size, keep_acks=keep_acks)
        # The connection whose limits the encoder knows.
        self._epoch = connection.lane.epoch
        self.encoder: Encoder = Encoder(connection)
        # Whether blocks were encoded for a server with higher limits.
        self._outgrown = False
        self._plain = b""
        # Messages that failed, with their errors. The owner empties it.
        self.failures: list[tuple[int, Any, Exception]] = []
        # Failed attempts that have to be decided on.
        self._failed_attempts: list[FailedAttempt] = []
        # Messages that wait for their retry, the next one first.
        self._waiting: list[FailedAttempt] = []
        # The previous attempt of messages that are in flight again.
        self._tried: dict[int, FailedAttempt] = {}

    @property
    def unsettled(self) -> int:
        """How many messages have not ended."""
        return len(self.pipeline.flying) + len(self._waiting)

    @property
    def room(self) -> int:
        """How many more messages may be sent now."""
        return self.options.size - self.unsettled

    @property
    def is_full(self) -> bool:
        """Whether no more bytes may be sent now."""
        if self.open_bytes < self.options.max_bytes:
            return False
        self.pipeline.prune()
        return self.open_bytes >= self.options.max_bytes

    @property
    def open_bytes(self) -> int:
        """Bytes in flight, approximately: a block counts until all its messages have ended."""
        return self.pipeline.size + sum([message.size for message in self._waiting])

    def close(self) -> None:
        """End the reply subscription."""
        self._lane.unsubscribe(self._sid)

    def write(self, block: bytes, numbers: range) -> None:
        """
        Write the block of *numbers*.

        Raises:
            DisconnectedError, ConnectionClosedError: Nothing was sent; all messages of the block
                have failed with this error.
        """
        try:
            epoch = self._send(block, numbers, Deadline.after(self.options.ack_timeout))
        except (DisconnectedError, ConnectionClosedError) as error:
            self.fail_unsent(numbers, error)
            raise
        except BaseException as interrupt:
            self.fail_unsent(numbers, DisconnectedError(reason=f"interrupted by {interrupt!r}"))
            raise
        self._line = b""
        due = time.monotonic() + self.options.ack_timeout
        self.pipeline.sent(numbers, epoch, due, len(block))
        if self._lane.lost_epoch >= epoch:
            self.box.lost(self._lane.lost_epoch)

    def _send(self, block: bytes, numbers: range, deadline: Deadline) -> int:
        """
        Write the block of *numbers* and return the epoch.

        After a reconnect the new server may have a lower ``max_payload``. It would close the
        connection for good over a larger message, so the block is encoded again and such messages
        fail.
        """
        while True:
            if self._outgrown:
                block = self._encode_again(numbers)
            try:
                epoch = self._lane.write(self._line + block, deadline, epoch=self._epoch)
            except ConnectionLostError:
                self._renew(self._lane.write(b"", deadline))
            else:
                self._outgrown = False
                return epoch

    def _renew(self, epoch: int) -> None:
        """Adopt the limits of the connection *epoch*."""
        self._epoch = epoch
        if self.encoder.renew():
            self._outgrown = True

    def _encode_again(self, numbers: range) -> bytes:
        """Encode the block of *numbers* again; fail the messages that cannot be sent any more."""
        flying, pieces = self.pipeline.flying, []
        for number in numbers:
            if number in flying:
                try:
                    pieces.append(self.encoder.frame(flying[number], self.prefix, number))
                except JetSyncError as error:
                    self.failures.append((number, flying.pop(number), error))
        return b"".join(pieces)

    def open(self) -> None:
        """Subscribe to the acks now; :meth:`write` does it with the first block."""
        self._lane.write(self._line, Deadline.after(self.options.ack_timeout))
        self._line = b""

    def fail_unsent(self, numbers: range, error: Exception) -> None:
        """Fail messages that were not sent."""
        flying = self.pipeline.flying
        for number in numbers:
            if number in flying:
                self.failures.append((number, flying.pop(number), error))

    def due(self) -> float | None:
        """Return when :meth:`settle` is due even if no answer arrives; None if it is not."""
        due = self.pipeline.due()
        if self._waiting and (due is None or self._waiting[0].due < due):
            due = self._waiting[0].due
        return due

    def settle(self) -> None:
        """
        Process acks, losses and time-outs, and send the retries that are due.

        Calls plugins. An owner with a lock takes the three steps itself: it holds the lock during
        the first and the last, but not while plugins run.
        """
        failed_attempts = self.account()
        if failed_attempts:
            self.decide_retries(failed_attempts)
            self.schedule_retries(failed_attempts)

    def account(self) -> list[FailedAttempt]:
        """Do the first step of :meth:`settle`; return the attempts to decide on."""
        box, pipeline = self.box, self.pipeline
        box.clear_interrupt()
        # Read first, so that every ack that arrived before the loss is processed before the loss.
        lost, failure = box.take_lost(), box.failure
        self._take_acks()
        plain = pipeline.plain or pipeline.kept_plain
        if plain != self._plain:
            self._plain = plain
            box.read_runs(self._sid, plain)
        for subject, denial in box.take_denials():
            pipeline.deny(subject.decode(), denial, subject_of)
        if lost:
            pipeline.lost(lost)
        if failure is not None:
            pipeline.lost(EVERY_EPOCH)
            waiting, self._waiting = self._waiting, []
            self.failures += [(message.number, message.item, message.error) for message in waiting]
        pipeline.expire(time.monotonic())
        if pipeline.failed:
            self._on_failed(lost=bool(lost))
        if self._waiting:
            self._send_retries()
        if pipeline.refused or self._tried:
            self._on_refused()
        failed_attempts, self._failed_attempts = self._failed_attempts, []
        return failed_attempts

    def _take_acks(self) -> None:
        single = []
        for acks in self.box.drain_acks():
            if isinstance(acks, list):
                self.pipeline.settle_run(acks)
            else:
                single.append(acks)
        self.pipeline.settle(single)

    def _on_refused(self) -> None:
        """Turn 503 answers into failed attempts, and forget retries that have ended."""
        for number, item in self.pipeline.refused:
            before = self._tried.pop(number, None)
            attempts = 1 if before is None else before.attempts + 1
            error: Exception = NoStreamResponseError(subject_of(item), attempts=attempts)
            if before is not None and before.unknown:
                error = still_unknown(coerce_outbound(item), error)
            self._add_failed_attempt(number, item, before, error)
        self.pipeline.refused.clear()
        flying = self.pipeline.flying
        for number in [number for number in self._tried if number not in flying]:
            del self._tried[number]

    def _add_failed_attempt(
        self,
        number: int,
        item: Any,
        before: FailedAttempt | None,
        error: Exception,
        ago: float = 0.0,
    ) -> None:
        """Add an attempt that was made *ago* seconds ago and failed with *error*."""
        unknown = isinstance(error, PublishOutcomeUnknownError)
        if before is None:
            began = time.monotonic() - ago
            size = len(payload_bytes(item[1] if isinstance(item, tuple) else item.data))
            attempt = FailedAttempt(number, item, 1, began, error, size, unknown=unknown)
        else:
            attempt = before
            attempt.attempts, attempt.error, attempt.unknown = before.attempts + 1, error, unknown
            attempt.delay = None
        self._failed_attempts.append(attempt)

    def decide_retries(self, failed_attempts: list[FailedAttempt]) -> None:
        """Set the delay of each message that will be sent again; calls plugins."""
        options, retry = self.options, self._plugins.retry
        for message in failed_attempts:
            if retry is None:
                if message.attempts <= options.retries:
                    message.delay = options.retry_wait
                continue
            item = message.item
            operation = events.PublishOperation(
                subject=subject_of(item),
                window=options.size,
                timeout=options.ack_timeout,
                elapsed=time.monotonic() - message.began,
                has_message_ids=isinstance(item, OutboundMessage) and item.msg_id is not None,
            )
            try:
                message.delay = ask_retry(retry, operation, message.error, message.attempts)
            except JetSyncError as veto:
                message.error = veto
        report_retries(self._plugins, failed_attempts)

    def schedule_retries(self, failed_attempts: list[FailedAttempt]) -> None:
        """Queue the messages that have a delay, and fail the others."""
        now = time.monotonic()
        for message in failed_attempts:
            if message.delay is None or self.box.failure is not None:
                self.failures.append((message.number, message.item, message.error))
            else:
                message.due = now + message.delay
                message.until = message.due + self.options.ack_timeout
                self._waiting.append(message)
        self._waiting.sort(key=operator.attrgetter("due"))

    def _send_retries(self) -> None:
        now = time.monotonic()
        due = [message for message in self._waiting if message.due <= now]
        self._waiting = [message for message in self._waiting if message.due > now]
        if due and self._lane.epoch != self._epoch:
            self._renew(self._lane.epoch)
        for place, message in enumerate(due):
            number, item = message.number, message.item
            try:
                block = self.encoder.frame(item, self.prefix, number)
                epoch = self._lane.post(block, 0.0, epoch=self._epoch)
            except (DisconnectedError, ConnectionLostError):
                # The others would fail in the same way.
                self._wait_for_connection(due[place:], now)
                return
            except JetSyncError as error:
                self._fail(number, item, error, message)
            else:
                self._tried[number] = message
                due_at = now + self.options.ack_timeout
                self.pipeline.resent(number, item, epoch, due_at, len(block))

    def _wait_for_connection(self, messages: list[FailedAttempt], now: float) -> None:
        """Try these messages again soon, or fail them if they have waited for ``ack_timeout``."""
        for message in messages:
            if now < message.until:
                message.due = now + CONNECTION_POLL
                self._waiting.append(message)
            else:
                subject = subject_of(message.item)
                missed = DisconnectedError(timeout=self.options.ack_timeout, subject=subject)
                self._fail(message.number, message.item, missed, message)
        self._waiting.sort(key=operator.attrgetter("due"))

    def _on_failed(self, *, lost: bool) -> None:
        """Turn lost, expired and refused messages into failures or failed attempts."""
        if not lost and any(error is None for _, _, error in self.pipeline.failed):
            # No ack came in time.
            self._probe()
        repeats = self._plugins.retry is not None and self.box.failure is None
        for number, item, error in self.pipeline.failed:
            before = self._tried.pop(number, None)
            if error is None or isinstance(error, ProtocolError):
                unknown = self._unknown(coerce_outbound(item), error, lost=lost)
                if repeats and is_repeatable(item):
                    ago = 0.0 if lost or error is not None else self.options.ack_timeout
                    self._add_failed_attempt(number, item, before, unknown, ago)
                else:
                    self.failures.append((number, item, unknown))
            else:
                self._fail(number, item, error, before)
        self.pipeline.failed.clear()

    def _fail(self, number: int, item: Any, error: Exception, before: FailedAttempt | None) -> None:
        """Fail a message whose last attempt certainly stored nothing."""
        if before is not None and before.unknown:
            error = still_unknown(coerce_outbound(item), error)
        self.failures.append((number, item, error))

    def _unknown(
        self, message: OutboundMessage, error: Exception | None, *, lost: bool
    ) -> PublishOutcomeUnknownError:
        """Make the error of a message that may or may not be stored."""
        reason = "the connection was lost" if lost else None
        if self.box.failure is not None:
            reason = str(self.box.failure)
        unknown = PublishOutcomeUnknownError(
            message.subject,
            msg_id=message.msg_id,
            timeout=None if reason or error else self.options.ack_timeout,
            reason=reason if error is None else str(error),
        )
        unknown.__cause__ = error or self.box.failure
        return unknown
