"""
Messages in flight: ``publish_many`` and ``Publisher`` use a flight to send them.

A flight owns the reply subscription, the messages in flight, and the retries of messages that no
stream took. It starts no threads. Its only lock is that of its stage.

``publish_many`` encodes blocks and sends them. A ``Publisher`` gets its messages one by one, and
its stage collects them, because a write costs more than encoding a message. Any thread may stage
messages. The owner calls everything else. A ``Publisher`` has the turn meanwhile, unless it waits
for acks or plugins run.
"""

from __future__ import annotations

import math
import operator
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal

import attrs

from jetsync import errors, events
from jetsync._base.deadline import NO_WAIT, Deadline, as_seconds
from jetsync._base.fields import check_count
from jetsync._io.listener import Listener
from jetsync._io.mailbox import Mailbox
from jetsync._io.outbox import OUT_LIMIT, LaneState
from jetsync._proto.ack_runs import ack_taker
from jetsync._proto.outcome import Again, Cause, cause_of, outcome_of
from jetsync._proto.pipeline import Pipeline
from jetsync.publish.encode import BLOCK_BYTES, BLOCK_MESSAGES, Encoder
from jetsync.publish.future import PublishFuture
from jetsync.publish.retry import ask_retry, error_of, is_safe_to_retry
from jetsync.publish.stage import Stage
from jetsync.publish.ttl_floor import RaisedTtls
from jetsync.values.outbound import OutboundMessage, payload_bytes, subject_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from jetsync._api.context import Context
    from jetsync._base.deadline import Seconds
    from jetsync._proto.outcome import OutcomeRule
    from jetsync.values.pub_acks import PubAck

# Messages in flight at most: enough to hide a round trip, few enough to settle soon after a loss.
DEFAULT_WINDOW: Final = 4096

# Bytes in flight at most: 32 MiB. By default, a stream refuses messages (429, err_code 10167) while
# 128 MiB wait to be stored, so this leaves room for other publishers.
DEFAULT_WINDOW_BYTES: Final = 32 << 20

# An epoch above every other: every message in flight is lost.
EVERY_EPOCH: Final = 1 << 62

# Why the outcome of the messages in flight is unknown after Ctrl-C.
CALL_INTERRUPTED: Final = "the call was interrupted"

# Seconds between two attempts to find a connection for messages that wait for one.
CONNECTION_POLL: Final = 0.05

# The number of the first retry. No flight has as many messages, so the numbers of retries and of
# messages never collide.
FIRST_RETRY: Final = 1 << 40

# The largest message that `Stage.stage` takes: bytes of headers and payload together. It bounds the
# bytes that may be staged without a look at the limit.
SMALL_IN_FLIGHT: Final = 4 * BLOCK_BYTES // BLOCK_MESSAGES

# After these errors of a write, nothing was sent.
NOT_SENT: Final = (
    errors.DisconnectedError,
    errors.ConnectionLostError,
    errors.ConnectionClosedError,
    errors.CallInSignalHandlerError,
)

# A name of its own, because Python 3.11 needs 70 ns to read a member of an enum from its class.
_OPEN: Final = LaneState.OPEN


def _retry_wait(value: Seconds) -> float:
    return as_seconds(value, "retry_wait")


@attrs.frozen
class FlightOptions:
    """
    The options of one flight.
    """

    # Seconds to wait for each ack, and for a connection.
    ack_timeout: float
    size: int = DEFAULT_WINDOW
    max_bytes: int = DEFAULT_WINDOW_BYTES
    # How often a message that no stream took is sent again, and the seconds before each attempt.
    retries: int = 2
    retry_wait: float = attrs.field(default=0.25, converter=_retry_wait)
    # The name of the operation for plugins.
    name: Literal["publish_many", "publisher"] = "publish_many"

    def __attrs_post_init__(self) -> None:
        check_count("window", self.size, 1)
        check_count("window_bytes", self.max_bytes, 1)
        check_count("retries", self.retries, 0)

    def operation(self) -> events.PublishOperation:
        """Describe the bulk publish to plugins."""
        return events.PublishOperation(
            name=self.name, messages=None, window=self.size, timeout=self.ack_timeout
        )


@attrs.define(eq=False)
class RetryEntry:
    """
    The entry of a message that may be sent again, or was. It replaces the first entry.
    """

    # Its place in a report: the number of its first attempt, counted from 0.
    index: int
    entry: Any
    # When the first attempt failed or, if it timed out, when it was sent.
    began: float
    attempts: int = 0
    # The error of the message if it is not sent again.
    error: Exception = attrs.field(init=False)
    # When it is sent again; infinite before that is decided, and if it is not.
    due: float = math.inf

    @property
    def item(self) -> Any:
        """The message: an ``OutboundMessage`` or a tuple."""
        return _item(self.entry)

    def outcome_of(self, cause: Cause, *, sent: bool) -> OutcomeRule:
        """Return the rule for the last attempt."""
        earlier = self.attempts > 0 and isinstance(self.error, errors.PublishOutcomeUnknownError)
        return outcome_of(cause, sent=sent, earlier=earlier, safe=is_safe_to_retry(self.item))

    def failed(
        self, failure: Exception | str, cause: Cause, *, sent: bool = False
    ) -> tuple[int, Any, Exception]:
        """Return an entry of ``failures`` for a message that is not sent again."""
        rule = self.outcome_of(cause, sent=sent)
        return self.index, self.entry, error_of(rule, self.item, failure, 0.0)


class Flight:
    """
    Send messages, match their acks and retry.

    An entry stands for a message in flight. The entries of ``publish_many`` are the items that it
    was given: an ``OutboundMessage`` or a tuple. Those of a ``Publisher`` are futures. A message
    whose first attempt failed has a :class:`RetryEntry`. Messages have numbers from 1 on.
    """

    # Threads: the one of `publish_many`, or those that have the turn of the publisher. Any thread
    # calls `stage.stage` and `add`. The worker of a `Publisher` calls `wait`, `decide_retries` and
    # `close` without the turn. The loop thread calls `box.find_messages`, and `stage.stop` when a
    # connection is lost.
    # Locks: none of its own but that of its stage.

    def __init__(
        self,
        context: Context,
        options: FlightOptions,
        *,
        keep_acks: bool,
        while_closing: bool = False,
    ) -> None:
        connection = context.connection
        self.options = options
        self._plugins = context.plugins
        self._lane = connection.lane
        self._probe = connection.probe
        inbox = connection.new_inbox().encode()
        self.prefix: bytes = inbox + b"."
        self.encoder: Encoder = Encoder(connection)
        self.stage: Stage = Stage(self.encoder.targets, b"")
        self.stage.begin(self.prefix)
        self.box: FlightMailbox = FlightMailbox(
            inbox + b".*", self.stage, while_closing=while_closing
        )
        self._listener = Listener(self._lane, self.box)
        refusals = self._refusals = connection.refusals
        self.pipeline: Pipeline[Any] = Pipeline(
            self.prefix,
            keep_acks=keep_acks,
            give_up=lambda entry: refusals.add(_subject(entry).encode()),
        )
        self.box.find_messages = partial(_find_messages, self.pipeline.in_flight)
        # The connection whose limits the encoder knows, and the last message that was staged for an
        # earlier server.
        self._epoch = connection.lane.epoch
        self._stale = 0
        self._raised_ttls = RaisedTtls(context, later=True)
        # Messages that failed, with their places and errors. The owner empties it.
        self.failures: list[tuple[int, Any, Exception]] = []
        # Failed messages that wait for their retry, the next one first.
        self.waiting: list[RetryEntry] = []
        self._next_retry = FIRST_RETRY
        # The numbers and the size of the block that is written now. An interrupt leaves them.
        self._writing: tuple[range, int] | None = None
        # Since when messages could not be written; 0 if they could.
        self.stalled: float = 0.0
        # Whether no more messages may be staged.
        self.is_ended: bool = False

    @property
    def open_count(self) -> int:
        """How many messages have not ended."""
        return len(self.pipeline.in_flight) + len(self.waiting) + self.stage.fresh

    def entries(self) -> list[Any]:
        """Return the entries of the messages that are written or wait for their retry."""
        entries = [*self.pipeline.in_flight.values(), *self.waiting]
        return [entry.entry if isinstance(entry, RetryEntry) else entry for entry in entries]

    def first_open(self, end: int) -> int:
        """Return the place in the iterable of the first message that has not ended, or *end*."""
        in_flight = self.pipeline.in_flight
        if not self._has_retried and not self.waiting:
            # They are in the order of the iterable.
            return next(iter(in_flight), end + 1) - 1
        found = [_index(number, entry) for number, entry in in_flight.items()]
        return min([*found, *(entry.index for entry in self.waiting), end])

    @property
    def _has_retried(self) -> bool:
        return self._next_retry > FIRST_RETRY

    def interrupted(self) -> list[tuple[int, Any, Exception]]:
        """Return the messages that have not ended as failures, for a call that ends early."""
        found: list[tuple[int, Any, Exception]] = []
        for number, entry in self.pipeline.in_flight.items():
            retry = _retry_entry(entry, number, 0.0)
            *_, error = retry.failed(CALL_INTERRUPTED, Cause.INTERRUPTED, sent=True)
            found.append((retry.index, retry.item, error))
        # The error of the last attempt says whether one of these may be stored.
        return found + [(each.index, each.item, each.error) for each in self.waiting]

    @property
    def is_full(self) -> bool:
        """Whether no more bytes may be sent now. A block counts until all its messages ended."""
        size = self.pipeline.size + self.stage.size
        if self.waiting:
            size += sum([_size(message.item) for message in self.waiting])
        return size >= self.options.max_bytes

    def open(self) -> None:
        """Subscribe to the acks now; :meth:`write` does it with the first block."""
        self._lane.write(self._listener.line, Deadline.after(self.options.ack_timeout))
        self._listener.line = b""

    def close(self) -> None:
        """End the reply subscription, and mark the messages in flight as untracked."""
        self._forget_messages()
        self._listener.end()

    def send(self, *, may_wait: bool = True) -> None:
        """
        Write the staged messages, and wait for a connection if there is none.

        Args:
            may_wait: If not, messages that cannot be written at once fail, and this raises nothing.

        Raises:
            DisconnectedError, ConnectionClosedError: Nothing was sent; all these messages have
                failed with this error.
        """
        stage = self.stage
        deadline = Deadline.after(self.options.ack_timeout) if may_wait else NO_WAIT
        block, numbers = self._take_staged()
        try:
            while block:
                try:
                    self._write(block, numbers, deadline)
                    break
                except errors.ConnectionLostError:
                    if self._renew(self._lane.outbox.wait_open(deadline)):
                        block = self._encode_again(numbers)
        except (errors.DisconnectedError, errors.ConnectionClosedError) as error:
            self._fail(numbers, error)
            if may_wait:
                raise
        finally:
            stage.written()
            # The stage stays closed, and drops what was written.
            stage.permit(0, 0)

    def _write(self, block: bytes, numbers: range, deadline: Deadline) -> None:
        """
        Write the block of *numbers* on the connection whose limits the encoder knows.

        Raises: as for :meth:`Outbox.write`; nothing was sent.
        """
        self._end_write()
        self._writing = numbers, len(block)
        try:
            self._lane.write(
                self._listener.line + block,
                deadline,
                epoch=self._epoch,
                while_closing=self.box.while_closing,
                request=b"%b%d" % (self.prefix, numbers[-1]),
            )
        except NOT_SENT:
            self._writing = None
            raise
        self._listener.line = b""
        self._end_write()

    def _end_write(self) -> None:
        """
        Record that a block was written, unless nothing is written.

        If Ctrl-C has interrupted a write, the lane ends the connection, and the server may have
        received any part of the block. So the next step does this, and it may do it twice.
        """
        if self._writing is not None:
            numbers, size = self._writing
            due = time.monotonic() + self.options.ack_timeout
            self.pipeline.sent(numbers, self._epoch, due, size)
            if numbers.start < FIRST_RETRY:
                self.stage.written()
            self.stalled = 0.0
            self._writing = None

    def _renew(self, epoch: int) -> bool:
        """
        Adopt the limits of the connection *epoch*; return whether messages must be encoded again.

        The new server may have a lower ``max_payload``. It would close the connection for good over
        a larger message, so such messages fail.
        """
        self._epoch = epoch
        if not self.encoder.renew():
            return False
        # The next call of `permit` opens the stage for messages that the server accepts.
        self.stage.stop()
        self._stale = self.stage.last
        return True

    def _encode_again(self, numbers: range) -> bytes:
        """Encode the block of *numbers* again; fail the messages that cannot be sent any more."""
        in_flight, pieces = self.pipeline.in_flight, []
        for number in numbers:
            if number in in_flight:
                try:
                    item = _item(in_flight[number])
                    pieces.append(self.encoder.frame(item, self.prefix, number))
                except errors.JetSyncError as error:
                    self._fail([number], error)
        return b"".join(pieces)

    def _fail(self, numbers: Iterable[int], error: Exception) -> None:
        """Fail messages that were not sent; their numbers are in flight."""
        cause, _ = cause_of(error)
        for number, entry in self.pipeline.take_back(numbers):
            retry = _retry_entry(entry, number, 0.0)
            self.failures.append(retry.failed(error, cause))

    # Messages that come one by one.

    def add(self, future: PublishFuture) -> int:
        """
        Check and stage a message of any size; return 0 if there is no connection now. Any thread.

        Raises: as for :meth:`Encoder.encode`; the message is not staged.
        """
        if self._lane.outbox.state is not _OPEN:
            return 0
        target, header, payload, _ = self.encoder.encode(future.item)
        return self.stage.add(target, payload, header, future)

    def flush(self) -> None:
        """
        Write the staged messages, and let other threads stage more.

        Without a connection, or in a signal handler that cannot write, they stay staged.
        """
        self._end_write()
        self.permit()
        outbox = self._lane.outbox
        if self.stalled and not (outbox.can_send and outbox.size < OUT_LIMIT):
            # To try it, all staged messages would be copied.
            return
        block, numbers = self._take_staged()
        if block:
            if numbers.start <= self._stale:
                block = self._encode_again(numbers)
            try:
                self._write(block, numbers, NO_WAIT)
            except NOT_SENT:
                self.stalled = self.stalled or time.monotonic()

    def permit(self) -> None:
        """Let other threads stage messages for which there is room."""
        stage, options = self.stage, self.options
        if self._epoch != self._lane.epoch:
            self._renew(self._lane.epoch)
        if not self._may_stage():
            stage.stop()
            return
        room = options.max_bytes - self.pipeline.size - stage.size
        room -= sum([_size(message.item) for message in self.waiting])
        places = options.size - len(self.pipeline.in_flight) - len(self.waiting)
        # The number of the last message that was taken, and so is in flight or has ended.
        last = stage.done + stage.taken
        stage.permit(
            last + min(places, room // SMALL_IN_FLIGHT), min(SMALL_IN_FLIGHT, self.encoder.limit)
        )
        if not self._may_stage():
            # The connection was lost meanwhile.
            stage.stop()

    def _may_stage(self) -> bool:
        is_open = self._lane.outbox.state is _OPEN and self.box.failure is None
        return is_open and not self.is_ended

    def end(self) -> None:
        """Let no more messages be staged."""
        self.is_ended = True
        self.stage.stop()

    def _take_staged(self) -> tuple[bytes, range]:
        """Put the staged messages in flight; return their frames and numbers."""
        stage = self.stage
        block = self.pipeline.enter_staged(stage.take)
        return block, range(stage.done + 1, stage.done + stage.taken + 1)

    def _fail_unsent(self, error: Exception) -> None:
        """Fail the messages that could not be written."""
        stage = self.stage
        _, numbers = self._take_staged()
        self._fail(numbers, error)
        stage.written()
        soon = time.monotonic() + CONNECTION_POLL
        for retry in [retry for retry in self.waiting if retry.due <= soon]:
            self.waiting.remove(retry)
            self.failures.append(retry.failed(error, cause_of(error)[0]))
        self.stalled = 0.0

    def _forget_messages(self) -> None:
        """Mark the messages in flight as untracked: no caller will read their answers."""
        for subject in {_subject(entry) for entry in self.pipeline.in_flight.values()}:
            self._refusals.add(subject.encode())

    def abandon(self, error: Exception) -> None:
        """End all messages after a bug in the owner; those that were sent may be stored."""
        self.stage.close()
        self._forget_messages()
        pipeline, (_, unsent) = self.pipeline, self._take_staged()
        if self._writing is None:
            # Otherwise, a write that was interrupted may have sent these.
            self._fail_interrupted(pipeline.take_back(unsent), error, sent=False)
        self._fail_interrupted(pipeline.take_back(list(pipeline.in_flight)), error, sent=True)
        waiting, self.waiting = self.waiting, []
        self._fail_interrupted([(0, retry) for retry in waiting], error, sent=False)
        self._writing = None
        self.stage.written()

    def _fail_interrupted(
        self, messages: Iterable[tuple[int, Any]], error: Exception, *, sent: bool
    ) -> None:
        for number, entry in messages:
            retry = _retry_entry(entry, number, 0.0)
            self.failures.append(retry.failed(error, Cause.INTERRUPTED, sent=sent))

    # Answers and retries.

    def due(self) -> float | None:
        """Return when :meth:`settle` is due even if no answer arrives; None if it is not."""
        due = self.pipeline.next_timeout()
        if self.waiting and (due is None or self.waiting[0].due < due):
            due = self.waiting[0].due
        if self.stalled and self.stage.count:
            poll = time.monotonic() + CONNECTION_POLL
            due = poll if due is None else min(due, poll)
        return due

    def wait(self, due: float) -> None:
        """Wait for an answer or an interrupt, at most until *due*."""
        self._lane.wait(self.box, Deadline(due, self.options.ack_timeout))

    def settle(self) -> None:
        """
        End the messages whose outcome is known, decide about retries, and send those that are due.

        Calls plugins. A ``Publisher`` takes the three steps itself: it has the turn during the
        first and the last, but not while plugins run.
        """
        failed = self.process_outcomes()
        if failed:
            self.decide_retries(failed)
            self.schedule_retries()

    def process_outcomes(self) -> list[RetryEntry]:
        """
        Process acks, refusals, losses and time-outs; write staged messages and retries that are
        due.

        The first step of :meth:`settle`. Returns the failed messages that :meth:`decide_retries`
        has to decide on.
        """
        self._end_write()
        box, pipeline = self.box, self.pipeline
        box.interrupted = False
        # Read first, so that every ack that arrived before the loss is processed before the loss.
        lost, failure = box.take_lost(), box.failure
        # The acks of a message with a time-to-live are read one by one.
        if self.encoder.has_ttl:
            pipeline.keep_acks()
        pipeline.receive(box.drain())
        if self.encoder.has_ttl:
            self._raised_ttls.check([_item(entry) for entry, _ in pipeline.acked])
        if pipeline.plain != box.plain:
            box.plain = pipeline.plain
            box.express = ack_taker(box.push, self.prefix, self._listener.sid, box.plain)
        for numbers, denial in box.take_denials():
            pipeline.deny(numbers, denial)
        if lost:
            pipeline.lost(lost)
        if failure is not None:
            pipeline.lost(EVERY_EPOCH)
            waiting, self.waiting = self.waiting, []
            self.failures += [(message.index, message.entry, message.error) for message in waiting]
        now = time.monotonic()
        pipeline.expire(now)
        if pipeline.failed or pipeline.refused:
            self._on_failed(now, lost)
        if self.waiting:
            self._send_retries(now)
        if self.stage.count:
            self.flush()
        if failure is not None:
            self._fail_unsent(failure)
        elif self.stalled and self.stalled + self.options.ack_timeout <= now:
            self._fail_unsent(errors.DisconnectedError(timeout=self.options.ack_timeout))
        return [message for message in self.waiting if message.due == math.inf]

    def take_acked(self) -> list[tuple[Any, PubAck | int]]:
        """Return the entries of the acknowledged messages, and forget them."""
        acked = self.pipeline.take_acked()
        if not self._has_retried:
            return acked
        return [
            (entry.entry if isinstance(entry, RetryEntry) else entry, ack) for entry, ack in acked
        ]

    def _on_failed(self, now: float, lost: int) -> None:
        """Turn lost, expired and refused messages into failures or retries."""
        pipeline = self.pipeline
        if not lost and any(error is None for _, _, error in pipeline.failed):
            # No ack came in time.
            self._probe()
        why = self._lane.why_lost(lost)
        unanswered, reason = Cause.SILENT, self.box.failure
        if reason is not None:
            unanswered = Cause.CLOSED
        elif lost:
            unanswered, reason = Cause.LOST, errors.ConnectionLostError(reason=why)
        for number, entry, error in pipeline.failed:
            retry = _retry_entry(entry, number, now)
            if error is not None:
                cause, sent = cause_of(error)
                self._decide(retry, retry.outcome_of(cause, sent=sent), error)
            elif lost and self._lane.unprocessed == b"%b%d" % (self.prefix, number):
                refused = errors.ConnectionLostError(reason=why, sent=False)
                self._decide(retry, retry.outcome_of(Cause.UNPROCESSED, sent=False), refused)
            else:
                if unanswered is Cause.SILENT and not retry.attempts:
                    retry.began -= self.options.ack_timeout
                self._decide(retry, retry.outcome_of(unanswered, sent=True), reason)
        for number, entry in pipeline.refused:
            retry = _retry_entry(entry, number, now)
            refusal = errors.NoStreamResponseError(
                subject_of(retry.item), attempts=retry.attempts + 1
            )
            self._decide(retry, retry.outcome_of(Cause.NO_STREAM, sent=True), refusal)
        pipeline.taken()

    def _decide(self, retry: RetryEntry, rule: OutcomeRule, failure: Exception | None) -> None:
        """End a message after an attempt failed, or note that another one may follow."""
        error = error_of(rule, retry.item, failure, self.options.ack_timeout)
        if rule.again is Again.ONCE and not retry.attempts:
            # If this message was the one that was too large, encoding it for the next server fails
            # with that server's limit.
            retry.attempts, retry.error, retry.due = 1, error, 0.0
            self.waiting.append(retry)
        elif self.box.failure is None and (
            rule.again is Again.COUNTED or (rule.may_repeat_message and self._plugins.retry)
        ):
            self._add_retry(retry, error)
        else:
            self.failures.append((retry.index, retry.entry, error))

    def _add_retry(self, retry: RetryEntry, error: Exception) -> None:
        retry.attempts += 1
        retry.error, retry.due = error, math.inf
        self.waiting.append(retry)

    def decide_retries(self, messages: list[RetryEntry]) -> None:
        """Set when each message is sent again, if it is; calls plugins."""
        options, plugins = self.options, self._plugins
        delays: dict[RetryEntry, float] = {}
        for message in messages:
            delay = options.retry_wait if message.attempts <= options.retries else None
            if plugins.retry is not None:
                item = message.item
                operation = events.PublishOperation(
                    name=options.name,
                    subject=subject_of(item),
                    window=options.size,
                    timeout=options.ack_timeout,
                    elapsed=time.monotonic() - message.began,
                    has_message_ids=isinstance(item, OutboundMessage) and item.msg_id is not None,
                )
                try:
                    delay = ask_retry(plugins, operation, message.error, message.attempts)
                except errors.JetSyncError as veto:
                    message.error, delay = veto, None
            if delay is not None:
                delays[message] = delay
        if delays and plugins.status is not None:
            first = next(iter(delays))
            plugins.status(
                events.RetryEvent(
                    operation=options.name,
                    subject=subject_of(first.item),
                    messages=len(delays),
                    attempts=max(message.attempts for message in delays),
                    delay=min(delays.values()),
                    error=first.error,
                )
            )
        now = time.monotonic()
        for message, delay in delays.items():
            message.due = now + delay

    def schedule_retries(self) -> None:
        """Fail the messages that are not sent again, and sort the others."""
        waiting: list[RetryEntry] = []
        for message in sorted(self.waiting, key=operator.attrgetter("due")):
            if message.due == math.inf or self.box.failure is not None:
                self.failures.append((message.index, message.entry, message.error))
            else:
                waiting.append(message)
        self.waiting = waiting

    def _send_retries(self, now: float) -> None:
        """Send the messages whose retry is due."""
        pipeline, frames = self.pipeline, []
        first = number = self._next_retry
        for message in [message for message in self.waiting if message.due <= now]:
            try:
                frames.append(self.encoder.frame(message.item, self.prefix, number))
            except errors.JetSyncError as error:
                self.failures.append(message.failed(error, Cause.INVALID))
            else:
                pipeline.enter([(number, message)])
                number = self._next_retry = number + 1
            self.waiting.remove(message)
        if not frames:
            return
        numbers = range(first, number)
        try:
            if self._epoch != self._lane.epoch and self._renew(self._lane.epoch):
                frames = [self._encode_again(numbers)]
            self._write(b"".join(frames), numbers, NO_WAIT)
        except NOT_SENT:
            self.stalled = self.stalled or now
            unsent = [message for _, message in pipeline.take_back(numbers)]
            for message in unsent:
                message.due = now + CONNECTION_POLL
            self.waiting[:0] = unsent


class FlightMailbox(Mailbox):
    """
    The acks of one flight. Without a connection, no more messages are staged.
    """

    def __init__(self, interest: bytes, stage: Stage, *, while_closing: bool) -> None:
        super().__init__(interest, collect_denials=True, while_closing=while_closing)
        # How plain acks start for which `express` is set.
        self.plain: bytes = b""
        self._stage = stage

    def lost(self, epoch: int) -> None:
        """Record a lost connection, and have messages wait for the next one."""
        self._stage.stop()
        super().lost(epoch)

    def wake(self) -> None:
        """Wake the waiting thread; after a failure, let no more messages be staged."""
        # A fork sets the failure without a call of `fail`.
        if self.failure is not None:
            self._stage.stop()
        self.signal.set()


def _retry_entry(entry: Any, number: int, began: float) -> RetryEntry:
    return entry if isinstance(entry, RetryEntry) else RetryEntry(number - 1, entry, began)


def _index(number: int, entry: Any) -> int:
    """Return the place of an entry in a report; its number, unless it was sent again."""
    return entry.index if isinstance(entry, RetryEntry) else number - 1


def _item(entry: Any) -> Any:
    """Return the message of an entry: an ``OutboundMessage`` or a tuple."""
    return entry.item if isinstance(entry, (PublishFuture, RetryEntry)) else entry


def _subject(entry: Any) -> str:
    return subject_of(_item(entry))


def _find_messages(in_flight: Mapping[int, Any], subject: bytes) -> list[int]:
    """Return the numbers of the messages to *subject* that wait for acks; any thread."""
    name = subject.decode()
    return [number for number, entry in dict(in_flight).items() if _subject(entry) == name]


def _size(item: Any) -> int:
    """Return how many bytes of a message are sent, without the subject and the headers."""
    return len(payload_bytes(item[1] if isinstance(item, tuple) else item.data))
