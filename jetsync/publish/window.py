"""
A window of publishes in flight: what ``publish_many`` and a publisher have in common.

The window owns a reply subscription, the books of what is in flight, and the rule for messages that
no stream took. It makes no threads and takes no locks: its owner brings them.
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
    Setback,
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

DEFAULT_WINDOW: Final = 4096
"""
Messages in flight at most: enough to hide a round trip, few enough to settle soon after a loss.
"""

DEFAULT_WINDOW_BYTES: Final = 32 << 20
"""
Bytes in flight at most: 32 MiB.

A stream refuses messages (429, err_code 10167) when 128 MiB wait to be stored in it, unless
configured otherwise. This leaves room for other publishers.
"""

EVERY_EPOCH: Final = 1 << 62
"""An epoch above every other: all that is in flight is lost."""

CONNECTION_POLL: Final = 0.05
"""Seconds between looks for a connection on which to send a refused message again."""


@attrs.frozen(kw_only=True)
class WindowOptions:
    """
    How a window behaves.
    """

    size: int = DEFAULT_WINDOW
    max_bytes: int = DEFAULT_WINDOW_BYTES
    ack_timeout: float
    """Seconds to wait for each ack, and for a connection."""

    retries: int = 2
    """How often a message that no stream took is sent again."""

    retry_wait: float = 0.25
    """Seconds before each of these."""


class Window:
    """
    What is in flight, and its way out; not synchronised.

    Items are what stands for a message: an ``OutboundMessage`` or a tuple.
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
        self._epoch = connection.lane.epoch
        """The connection whose limits the encoder knows."""

        self.encoder: Encoder = Encoder(connection)
        self._outgrown = False
        """Whether there are blocks that were encoded when the server took larger messages."""

        self._plain = b""
        self.failures: list[tuple[int, Any, Exception]] = []
        """Messages that ended badly, with the reason; the owner empties it."""

        self._setbacks: list[Setback] = []
        """What is to be judged."""

        self._again: list[Setback] = []
        """What waits to be sent again, the next one first."""

        self._tried: dict[int, Setback] = {}
        """What became of the attempt before, of messages in flight that were sent again."""

    @property
    def unsettled(self) -> int:
        """How many messages have not ended yet."""
        return len(self.pipeline.flying) + len(self._again)

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
        """Bytes in flight, approximately. A block counts until all its messages are settled."""
        return self.pipeline.size + sum([message.size for message in self._again])

    def close(self) -> None:
        """Leave the reply subscription."""
        self._lane.unsubscribe(self._sid)

    def write(self, block: bytes, numbers: range) -> None:
        """
        Write the blocks of *numbers*, joined.

        Raises:
            DisconnectedError, ConnectionClosedError: Nothing was sent; the messages have failed
                with it.
        """
        try:
            epoch = self._send(block, numbers, Deadline.after(self.options.ack_timeout))
        except (DisconnectedError, ConnectionClosedError) as error:
            self.fail_unsent(numbers, error)
            raise
        except BaseException as interrupt:
            self.fail_unsent(numbers, DisconnectedError(reason=f"interrupted by {interrupt!r}"))
            raise
        self.written(numbers, epoch, len(block))

    def _send(self, block: bytes, numbers: range, deadline: Deadline) -> int:
        """
        Write the blocks of *numbers*, joined, and return the epoch; what is too large now fails.

        A server that gets more than it takes closes the connection for good, and the next one may
        take less than the one for which the blocks were encoded.
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
        """Take the limits of the connection *epoch*."""
        self._epoch = epoch
        if self.encoder.renew():
            self._outgrown = True

    def _encode_again(self, numbers: range) -> bytes:
        """Return the blocks of *numbers* anew; fail those that cannot be sent any more."""
        flying, pieces = self.pipeline.flying, []
        for number in numbers:
            if number in flying:
                try:
                    pieces.append(self.encoder.frame(flying[number], self.prefix, number))
                except JetSyncError as error:
                    self.failures.append((number, flying.pop(number), error))
        return b"".join(pieces)

    def open(self) -> None:
        """
        Subscribe to the acks now, for an owner that does not use :meth:`write`.
        """
        self._lane.write(self._line, Deadline.after(self.options.ack_timeout))
        self._line = b""

    def written(self, numbers: range, epoch: int, size: int) -> None:
        """Note that messages of *size* bytes went out on the connection *epoch*."""
        self._line = b""
        self.pipeline.sent(numbers, epoch, time.monotonic() + self.options.ack_timeout, size)
        if self._lane.lost_epoch >= epoch:
            self.box.lost(self._lane.lost_epoch)

    def fail_unsent(self, numbers: range, error: Exception) -> None:
        """Fail messages of which nothing was sent."""
        flying = self.pipeline.flying
        for number in numbers:
            if number in flying:
                self.failures.append((number, flying.pop(number), error))

    def due(self) -> float | None:
        """Return the moment at which :meth:`settle` has something to do even if nothing comes."""
        due = self.pipeline.due()
        if self._again and (due is None or self._again[0].due < due):
            due = self._again[0].due
        return due

    def settle(self) -> None:
        """
        Account for all that has come or come to nothing, and send again what is due.

        Asks plugins. An owner with a lock takes the steps one by one, as it holds the lock for the
        first and the last and lets go of it for the one between.
        """
        setbacks = self.account()
        if setbacks:
            self.judge(setbacks)
            self.schedule(setbacks)

    def account(self) -> list[Setback]:
        """
        Do what :meth:`settle` does, but return what may be sent again; runs nothing of a user's.
        """
        box, pipeline = self.box, self.pipeline
        box.clear_interrupt()
        # Looked at first: whatever came before the loss has been drained when it is accounted for.
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
            self._give_up_again()
        pipeline.expire(time.monotonic())
        if pipeline.failed:
            self._on_failed(lost=bool(lost))
        if self._again:
            self._send_again()
        if pipeline.refused or self._tried:
            self._on_refused()
        setbacks, self._setbacks = self._setbacks, []
        return setbacks

    def _take_acks(self) -> None:
        single = []
        for acks in self.box.drain_acks():
            if isinstance(acks, list):
                self.pipeline.settle_run(acks)
            else:
                single.append(acks)
        self.pipeline.settle(single)

    def _on_refused(self) -> None:
        """Take what no stream took, and forget about what has ended."""
        for number, item in self.pipeline.refused:
            before = self._tried.pop(number, None)
            attempts = 1 if before is None else before.attempts + 1
            error: Exception = NoStreamResponseError(subject_of(item), attempts=attempts)
            if before is not None and before.unknown:
                error = still_unknown(coerce_outbound(item), error)
            self._set_back(number, item, before, error)
        self.pipeline.refused.clear()
        flying = self.pipeline.flying
        for number in [number for number in self._tried if number not in flying]:
            del self._tried[number]

    def _set_back(
        self, number: int, item: Any, before: Setback | None, error: Exception, ago: float = 0.0
    ) -> None:
        """Have a message judged whose attempt, made *ago* seconds ago, failed with *error*."""
        unknown = isinstance(error, PublishOutcomeUnknownError)
        if before is None:
            began = time.monotonic() - ago
            size = len(payload_bytes(item[1] if isinstance(item, tuple) else item.data))
            setback = Setback(number, item, 1, began, error, size, unknown=unknown)
        else:
            setback = before
            setback.attempts, setback.error, setback.unknown = before.attempts + 1, error, unknown
            setback.delay = None
        self._setbacks.append(setback)

    def judge(self, setbacks: list[Setback]) -> None:
        """Decide which messages are sent again, and when; runs plugins."""
        options, retry = self.options, self._plugins.retry
        for message in setbacks:
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
        report_retries(self._plugins, setbacks)

    def schedule(self, setbacks: list[Setback]) -> None:
        """Have messages sent again as it was decided, and fail the others."""
        now = time.monotonic()
        for message in setbacks:
            if message.delay is None or self.box.failure is not None:
                self.failures.append((message.number, message.item, message.error))
            else:
                message.due = now + message.delay
                message.until = message.due + self.options.ack_timeout
                self._again.append(message)
        self._sort_again()

    def _sort_again(self) -> None:
        """Put what waits in order: a plugin may choose other delays than the built-in rule."""
        self._again.sort(key=operator.attrgetter("due"))

    def _give_up_again(self) -> None:
        """Fail what waits to be sent again, with what is known of it."""
        self.failures += [(message.number, message.item, message.error) for message in self._again]
        self._again.clear()

    def _send_again(self) -> None:
        now = time.monotonic()
        due = [message for message in self._again if message.due <= now]
        self._again = [message for message in self._again if message.due > now]
        if due and self._lane.epoch != self._epoch:
            self._renew(self._lane.epoch)
        for place, message in enumerate(due):
            number, item = message.number, message.item
            try:
                block = self.encoder.frame(item, self.prefix, number)
                epoch = self._lane.post(block, 0.0, epoch=self._epoch)
            except (DisconnectedError, ConnectionLostError):
                # None of the others would fare better.
                self._wait_for_connection(due[place:], now)
                return
            except JetSyncError as error:
                self._fail(number, item, error, message)
            else:
                self._tried[number] = message
                due_at = now + self.options.ack_timeout
                self.pipeline.again(number, item, epoch, due_at, len(block))

    def _wait_for_connection(self, messages: list[Setback], now: float) -> None:
        """Look again soon, or fail what has waited long enough."""
        for message in messages:
            if now < message.until:
                message.due = now + CONNECTION_POLL
                self._again.append(message)
            else:
                subject = subject_of(message.item)
                missed = DisconnectedError(timeout=self.options.ack_timeout, subject=subject)
                self._fail(message.number, message.item, missed, message)
        self._sort_again()

    def _on_failed(self, *, lost: bool) -> None:
        """Give each failure its error."""
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
                    self._set_back(number, item, before, unknown, ago)
                else:
                    self.failures.append((number, item, unknown))
            else:
                self._fail(number, item, error, before)
        self.pipeline.failed.clear()

    def _fail(self, number: int, item: Any, error: Exception, before: Setback | None) -> None:
        """Fail a message whose last attempt came to nothing for certain."""
        if before is not None and before.unknown:
            error = still_unknown(coerce_outbound(item), error)
        self.failures.append((number, item, error))

    def _unknown(
        self, message: OutboundMessage, error: Exception | None, *, lost: bool
    ) -> PublishOutcomeUnknownError:
        """Make the error of a message that may be stored or not."""
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
