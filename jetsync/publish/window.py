"""
The window of messages in flight that ``publish_many`` and ``Publisher`` build on.

The window owns the reply subscription, the messages in flight, and the retries of messages that no
stream took. It starts no threads and takes no locks; its owner does.

``publish_many`` encodes blocks and writes them. A ``Publisher`` gets its messages one by one and
stages them, because a write costs more than encoding a message. Both stage retries. With a lock per
message, four threads are a fifth slower than one: the thread that gets the lock still has to wait
for the GIL. So staging appends to a list, which needs no lock, and messages get their numbers when
a block is written. Any thread may stage a message. The owner calls everything else. A ``Publisher``
has the turn meanwhile, unless it waits for acks or plugins run.
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
from jetsync._io.mailbox import Listener, Mailbox
from jetsync._io.outbox import LaneState
from jetsync._proto.ack_runs import ack_taker
from jetsync._proto.outcome import Again, Cause, cause_of, outcome_of
from jetsync._proto.pipeline import Pipeline
from jetsync.publish.encode import BLOCK_MESSAGES, Encoded, Encoder
from jetsync.publish.future import PublishFuture
from jetsync.publish.retry import ask_retry, error_of, is_safe_to_retry
from jetsync.publish.ttl_floor import RaisedTtls
from jetsync.values.outbound import OutboundMessage, payload_bytes, subject_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jetsync._api.context import Context
    from jetsync._base.deadline import Seconds
    from jetsync._proto.outcome import OutcomeRule
    from jetsync.values.outbound import PubAck

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

# A name of its own, because Python 3.11 needs 70 ns to read a member of an enum from its class.
_OPEN: Final = LaneState.OPEN


def _retry_wait(value: Seconds) -> float:
    return as_seconds(value, "retry_wait")


@attrs.frozen
class WindowOptions:
    """
    The options of one window.
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

    # The number of its first attempt, which is also its place in a report.
    number: int
    entry: Any
    # When the first attempt failed or, if it timed out, when it was sent.
    began: float
    attempts: int = 0
    # The error of the message if it is not sent again.
    error: Exception = attrs.field(init=False)
    # When it is sent again; infinite before that is decided, and if it is not.
    due: float = math.inf
    # The encoded message.
    encoded: Encoded | None = None

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
        return self.number, self.entry, error_of(rule, self.item, failure, 0.0)


class Window:
    """
    Send messages, match their acks and retry.

    An entry stands for a message in flight. The entries of ``publish_many`` are the items that it
    was given: an ``OutboundMessage`` or a tuple. Those of a ``Publisher`` are futures. A message
    whose first attempt failed has a :class:`RetryEntry`.
    """

    # Threads: the one of `publish_many`, or those that have the turn of the publisher. Any thread
    # calls `stage`. The worker of a `Publisher` calls `wait`, `decide_retries` and `close` without
    # the turn. The loop thread calls `box.find_messages`.
    # Locks: none of its own.

    def __init__(
        self,
        context: Context,
        options: WindowOptions,
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
        self.box: Mailbox = Mailbox(
            inbox + b".*", collect_denials=True, while_closing=while_closing
        )
        self._listener = Listener(self._lane, self.box)
        refusals = self._refusals = connection.refusals
        self.pipeline: Pipeline[Any] = Pipeline(
            self.prefix,
            keep_acks=keep_acks,
            give_up=lambda entry: refusals.add(_subject(entry).encode()),
        )
        # The staged messages that are being written, and the number of the first one. The mailbox
        # refers to this list, too.
        self._writing: list[tuple[list[Any], int]] = [([], 0)]
        self.box.find_messages = partial(_find_messages, self._writing, self.pipeline.in_flight)
        # The connection whose limits the encoder knows.
        self._epoch = connection.lane.epoch
        self.encoder: Encoder = Encoder(connection)
        self._plain = b""
        self._raised_ttls = RaisedTtls(context, later=True)
        # Messages that failed, with their numbers and errors. The owner empties it.
        self.failures: list[tuple[int, Any, Exception]] = []
        # Failed messages that wait for their retry, the next one first.
        self.waiting: list[RetryEntry] = []
        self._has_retried = False
        # Messages without a number, oldest first.
        self.staged: list[PublishFuture | RetryEntry] = []
        # The number that the next staged message gets when it is written.
        self.number: int = 0
        # Their approximate size: it is too small if several threads stage at the same moment.
        self.staged_bytes: int = 0
        # Since when staged messages could not be written; 0 if they could.
        self.stalled: float = 0.0

    @property
    def open_count(self) -> int:
        """How many messages have not ended."""
        return len(self.pipeline.in_flight) + len(self.waiting) + len(self.staged)

    @property
    def room(self) -> int:
        """How many staged messages may be sent now."""
        return self.options.size - len(self.pipeline.in_flight) - len(self.waiting)

    def entries(self) -> list[Any]:
        """Return the entries of the messages that have not ended."""
        entries = [*self.pipeline.in_flight.values(), *self.waiting, *self.staged]
        return [entry.entry if isinstance(entry, RetryEntry) else entry for entry in entries]

    def first_open(self, end: int) -> int:
        """Return the place in the iterable of the first message that has not ended, or *end*."""
        in_flight = self.pipeline.in_flight
        if not self._has_retried and not self.waiting:
            # They are in the order of the iterable.
            return next(iter(in_flight), end)
        found = [_index(number, entry) for number, entry in in_flight.items()]
        return min([*found, *(_index(0, entry) for entry in (*self.waiting, *self.staged)), end])

    def interrupted(self) -> list[tuple[int, Any, Exception]]:
        """Return the messages that have not ended as failures, for a call that ends early."""
        found: list[tuple[int, Any, Exception]] = []
        for number, entry in self.pipeline.in_flight.items():
            retry = _retry_entry(entry, number, 0.0)
            *_, error = retry.failed(CALL_INTERRUPTED, Cause.INTERRUPTED, sent=True)
            found.append((retry.number, retry.item, error))
        # The error of the last attempt says whether one of these may be stored.
        retries = [each for each in (*self.waiting, *self.staged) if isinstance(each, RetryEntry)]
        return found + [(each.number, each.item, each.error) for each in retries]

    @property
    def is_full(self) -> bool:
        """Whether no more bytes may be sent now. A block counts until all its messages ended."""
        size = self.staged_bytes
        if self.waiting:
            size += sum([_size(message) for message in self.waiting])
        return self.pipeline.size + size >= self.options.max_bytes

    def open(self) -> None:
        """Subscribe to the acks now; :meth:`write` does it with the first block."""
        self._lane.write(self._listener.line, Deadline.after(self.options.ack_timeout))
        self._listener.line = b""

    def close(self) -> None:
        """End the reply subscription, and mark the messages in flight as untracked."""
        self._forget_messages()
        self._listener.end()

    def write(self, block: bytes, numbers: range) -> None:
        """
        Write the block of *numbers*, whose entries are in flight already.

        Raises:
            DisconnectedError, ConnectionClosedError: Nothing was sent; all messages of the block
                have failed with this error.
        """
        deadline = Deadline.after(self.options.ack_timeout)
        try:
            while True:
                try:
                    subscribed = self._listener.line + block
                    last = b"%b%d" % (self.prefix, numbers[-1])
                    epoch = self._lane.write(subscribed, deadline, epoch=self._epoch, request=last)
                    break
                except errors.ConnectionLostError:
                    if self._renew(self._lane.outbox.wait_open(deadline)):
                        block = self._encode_again(numbers)
        except (errors.DisconnectedError, errors.ConnectionClosedError) as error:
            taken = self.pipeline.take_back(numbers)
            self.failures += [(number, entry, error) for number, entry in taken]
            raise
        self._listener.line = b""
        due = time.monotonic() + self.options.ack_timeout
        self.pipeline.sent(numbers, epoch, due, len(block))

    def _renew(self, epoch: int) -> bool:
        """
        Adopt the limits of the connection *epoch*; return whether messages must be encoded again.

        The new server may have a lower ``max_payload``. It would close the connection for good over
        a larger message, so such messages fail.
        """
        self._epoch = epoch
        if not self.encoder.renew():
            return False
        self._check_staged()
        return True

    def _encode_again(self, numbers: range) -> bytes:
        """Encode the block of *numbers* again; fail the messages that cannot be sent any more."""
        pipeline, pieces = self.pipeline, []
        for number in numbers:
            if number in pipeline.in_flight:
                try:
                    pieces.append(
                        self.encoder.frame(pipeline.in_flight[number], self.prefix, number)
                    )
                except errors.JetSyncError as error:
                    ((_, entry),) = pipeline.take_back((number,))
                    self.failures.append((number, entry, error))
        return b"".join(pieces)

    # Messages that come one by one, and retries.

    def stage(self, future: PublishFuture) -> bool:
        """
        Check and stage a message; return False if there is no connection now. Any thread.

        Raises: as for :meth:`Encoder.encode`; the message is not staged.
        """
        if self._lane.outbox.state is not _OPEN:
            return False
        item, encoder = future.item, self.encoder
        # Plain pairs with a known subject are encoded when they are written.
        if (
            type(item) is tuple
            and len(item) == 2
            and type(item[1]) is bytes
            and type(item[0]) is str
            and item[0] in encoder.targets
            and len(item[1]) <= encoder.limit
        ):
            self.staged_bytes += len(item[1])
        else:
            future.encoded = encoder.encode(item)
            self.staged_bytes += _size(future)
        self.staged.append(future)
        return True

    def flush(self) -> None:
        """
        Write the staged messages for which the window has room.

        Without a connection, or in a signal handler that cannot write, they stay staged.
        """
        if not self.staged:
            self.stalled = 0.0
            # Threads count without the turn, so another one may have added to an old
            # count.
            self.staged_bytes = 0
            return
        while self.staged and (room := self.room) > 0:
            if not self._write_staged(self.staged[: min(room, BLOCK_MESSAGES)]):
                break
        self.staged_bytes = sum([_size(future) for future in self.staged])

    def _write_staged(self, chunk: list[PublishFuture | RetryEntry]) -> bool:
        """Write the oldest staged messages; return whether to continue with the next ones."""
        lane, block, epoch = self._lane, b"", self._epoch
        first = self.number
        try:
            if epoch != lane.epoch and self._renew(lane.epoch):
                return True
            block = self._frames(chunk, first)
            self._writing[0] = chunk, first
            epoch = lane.write(
                block,
                NO_WAIT,
                epoch=self._epoch,
                while_closing=self.box.while_closing,
                request=b"%b%d" % (self.prefix, first + len(chunk) - 1),
            )
            self._enter(chunk, first, epoch, len(block))
        except (
            errors.DisconnectedError,
            errors.ConnectionLostError,
            errors.ConnectionClosedError,
            errors.CallInSignalHandlerError,
        ):
            self._writing[0] = [], 0
            self.stalled = self.stalled or time.monotonic()
            return False
        except BaseException:
            # Ctrl-C. If it interrupted the write, the lane ends the connection, and the server may
            # have received any part of the block. So only the bookkeeping is repeated.
            if block:
                self._enter(chunk, first, epoch, len(block))
            raise
        self.stalled = 0.0
        return True

    def _frames(self, chunk: list[PublishFuture | RetryEntry], first: int) -> bytes:
        encoder, prefix, frames = self.encoder, self.prefix, []
        pub, targets = encoder.pub, encoder.targets
        for number, future in enumerate(chunk, first):
            encoded = future.encoded
            if encoded is None:
                subject, data = future.item
                target = targets.get(subject) or subject.encode()
                frames.append(pub % (target, prefix, number, len(data), data))
            else:
                frames.append(encoder.framed(encoded, prefix, number))
        return b"".join(frames)

    def _enter(
        self, chunk: list[PublishFuture | RetryEntry], first: int, epoch: int, size: int
    ) -> None:
        """Record that the oldest staged messages were written on the connection *epoch*."""
        if self.number != first:
            return
        numbers = range(first, first + len(chunk))
        self.pipeline.enter(zip(numbers, chunk, strict=True))
        if self.staged[:1] == chunk[:1]:
            del self.staged[: len(chunk)]
        self._writing[0] = [], 0
        self.pipeline.sent(numbers, epoch, time.monotonic() + self.options.ack_timeout, size)
        # This line comes last: if Ctrl-C arrives before it, the whole method is repeated.
        self.number = numbers.stop

    def _check_staged(self) -> None:
        """Encode staged messages again; fail those that cannot be sent any more."""
        for entry in self.staged[:]:
            try:
                entry.encoded = self.encoder.encode(entry.item)
            except errors.JetSyncError as error:
                self._fail_staged([entry], error)

    def _fail_staged(self, entries: list[PublishFuture | RetryEntry], error: Exception) -> None:
        """Fail staged messages; they were not sent."""
        for entry in entries:
            self.staged.remove(entry)
            retry = _retry_entry(entry, self.number, 0.0)
            self.failures.append(retry.failed(error, cause_of(error)[0]))
            self.number += 1
        self.stalled = 0.0

    def _forget_messages(self) -> None:
        """Mark the messages in flight as untracked: no caller will read their answers."""
        for subject in {_subject(entry) for entry in self.pipeline.in_flight.values()}:
            self._refusals.add(subject.encode())

    def abandon(self, error: Exception) -> None:
        """End all messages after a bug in the owner; those that were sent may be stored."""
        self._forget_messages()
        in_flight = [entry for _, entry in self.pipeline.take_back(list(self.pipeline.in_flight))]
        # A write that was interrupted may have sent these.
        sent = set(map(id, (*in_flight, *self._writing[0][0])))
        for entry in [*in_flight, *self.waiting, *self.staged]:
            retry = _retry_entry(entry, self.number, 0.0)
            self.failures.append(retry.failed(error, Cause.INTERRUPTED, sent=id(entry) in sent))
        self.waiting.clear()
        self.staged.clear()

    # Answers and retries.

    def due(self) -> float | None:
        """Return when :meth:`settle` is due even if no answer arrives; None if it is not."""
        due = self.pipeline.next_timeout()
        if self.waiting and (due is None or self.waiting[0].due < due):
            due = self.waiting[0].due
        if self.stalled and self.staged:
            poll = time.monotonic() + CONNECTION_POLL
            due = poll if due is None else min(due, poll)
        return due

    def wait(self, due: float) -> None:
        """Wait for an answer or an interrupt, at most until *due*."""
        self._lane.wait(self.box, Deadline(due, self.options.ack_timeout))

    def settle(self) -> None:
        """
        End the messages whose outcome is known, decide about retries, and send those that are due.

        Calls plugins. A ``Publisher`` takes the three steps itself: it has the turn
        during the first and the last, but not while plugins run.
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
        if pipeline.plain != self._plain:
            self._plain = pipeline.plain
            box.express = ack_taker(box.push, self.prefix, self._listener.sid, self._plain)
        for numbers, denial in box.take_denials():
            pipeline.deny(numbers, denial)
        if lost:
            pipeline.lost(lost)
        if failure is not None:
            pipeline.lost(EVERY_EPOCH)
            waiting, self.waiting = self.waiting, []
            self.failures += [(message.number, message.entry, message.error) for message in waiting]
        now = time.monotonic()
        pipeline.expire(now)
        if pipeline.failed or pipeline.refused:
            self._on_failed(now, lost)
        if self.waiting:
            self._stage_retries(now)
        if self.staged:
            self.flush()
            if failure is not None:
                self._fail_staged(self.staged[:], failure)
            elif self.stalled and self.stalled + self.options.ack_timeout <= now:
                self._fail_staged(
                    self.staged[:], errors.DisconnectedError(timeout=self.options.ack_timeout)
                )
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
        why, failure = self._lane.why_lost(lost), self.box.failure
        reason = failure or (errors.ConnectionLostError(reason=why) if lost else None)
        unanswered = Cause.CLOSED if failure else Cause.LOST if lost else Cause.SILENT
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
            self.failures.append((retry.number, retry.entry, error))

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
                self.failures.append((message.number, message.entry, message.error))
            else:
                waiting.append(message)
        self.waiting = waiting

    def _stage_retries(self, now: float) -> None:
        """Stage the messages whose retry is due, in front of the others."""
        due: list[RetryEntry] = []
        for message in [message for message in self.waiting if message.due <= now]:
            self.waiting.remove(message)
            try:
                message.encoded = self.encoder.encode(message.item)
            except errors.JetSyncError as error:
                self.failures.append(message.failed(error, Cause.INVALID))
            else:
                due.append(message)
        self.staged[:0] = due
        self._has_retried = True


def _retry_entry(entry: Any, number: int, began: float) -> RetryEntry:
    return entry if isinstance(entry, RetryEntry) else RetryEntry(number, entry, began)


def _index(number: int, entry: Any) -> int:
    """Return the place of an entry in the iterable; its number, unless it was sent again."""
    return entry.number if isinstance(entry, RetryEntry) else number


def _item(entry: Any) -> Any:
    """Return the message of an entry: an ``OutboundMessage`` or a tuple."""
    return entry.item if isinstance(entry, (PublishFuture, RetryEntry)) else entry


def _subject(entry: Any) -> str:
    return subject_of(_item(entry))


def _find_messages(
    writing: list[tuple[list[Any], int]], in_flight: Mapping[int, Any], subject: bytes
) -> list[int]:
    """Return the numbers of the messages to *subject* that wait for acks; any thread."""
    name = subject.decode()
    # In this order: messages move from one to the other.
    entries = dict(enumerate(*writing[0]))
    entries.update(dict(in_flight))
    return [number for number, entry in entries.items() if _subject(entry) == name]


def _size(entry: PublishFuture | RetryEntry) -> int:
    """Return how many bytes of a message are sent, without the subject."""
    if entry.encoded is not None:
        return len(entry.encoded[1]) + len(entry.encoded[2])
    item = entry.item
    return len(payload_bytes(item[1] if isinstance(item, tuple) else item.data))
