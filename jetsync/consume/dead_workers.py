"""
Dead letters of messages whose workers died: ``Stream.dead_letters``.

After the last delivery, only the server knows that a message was given up. It says so once, in an
advisory. A work queue keeps such a message, so that a scan finds it later. The engine in
``_proto/dead_letters.py`` decides.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any, Final

from jetsync import errors
from jetsync._api import consumers as _consumer_admin
from jetsync._api import streams as _stream_admin
from jetsync._api.mirrors import TRANSIENT
from jetsync._api.replica_or_leader import leader_get
from jetsync._base.deadline import as_seconds
from jetsync._base.integers import read_count
from jetsync._base.iterations import Iteration
from jetsync._base.log import get_logger
from jetsync._proto import frames
from jetsync._proto.dead_letters import DeadLetterEngine, last_settled
from jetsync.consume.auto_acks import KEEP_ACKS, answer_soon
from jetsync.consume.consumer import Consumer
from jetsync.consume.dead_letters import check_target, store
from jetsync.consume.ordered import open_ordered
from jetsync.consume.reading import is_own_close
from jetsync.consume.subscription import Subscription
from jetsync.values.consumer_config import AckPolicy, ConsumerConfig
from jetsync.values.dead_letter import CONSUMER, STREAM, dead_letter, letter_id
from jetsync.values.headers import MSG_ID
from jetsync.values.message import ACK, TERM
from jetsync.values.server_info import decode_json
from jetsync.values.stream_config import RetentionPolicy
from jetsync.values.subjects import validate_name, validate_subject

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from jetsync._api.context import Context
    from jetsync._base.deadline import Deadline, Seconds
    from jetsync.consume.consumption import Consumption
    from jetsync.consume.ordered import OrderedConsumer
    from jetsync.values.consumer_info import ConsumerInfo
    from jetsync.values.message import Message
    from jetsync.values.stored import StoredMessage

ADVISORY: Final = "$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES"

# How many dead letters to ask for at a time, to learn which messages have one.
PAGE: Final = 1000

# Longest wait for an advisory, in seconds, before the connection is looked at again. Advisories are
# lost while the client is disconnected.
LONGEST_WAIT: Final = 1.0

_logger = get_logger("jetsync.dead_letters")


def open_dead_letters(
    context: Context,
    stream: str,
    consumer: str,
    subject: str,
    deadline: Deadline,
    *,
    advisories: str | None,
    idle: Seconds | None,
) -> Iterator[StoredMessage]:
    """Check the arguments, and return the iterator of ``Stream.dead_letters``."""
    validate_name("consumer", consumer)
    validate_subject(subject)
    if advisories is not None:
        validate_name("stream", advisories)
    seconds = math.inf if idle is None else as_seconds(idle, "idle")
    info = _consumer_admin.info(context, stream, consumer, deadline)
    if info.config.ack_policy is not AckPolicy.EXPLICIT or (info.config.max_deliver or 0) < 1:
        raise errors.InvalidArgumentError(
            f"consumer {consumer!r} needs ack_policy='explicit' and a max_deliver of at least 1: "
            "without them, the server never gives a message up",
            argument="consumer",
        )
    known = check_target(context, stream, info.config, subject, deadline, argument="subject")
    retention = _stream_admin.info(context, stream, deadline).config.retention
    reader: Consumer | None = None
    topic = f"{ADVISORY}.{stream}.{consumer}"
    if advisories is not None:
        if not context.streams.named(advisories, deadline, fresh=True).takes(topic):
            raise errors.InvalidArgumentError(
                f"stream {advisories!r} does not store {topic!r}", argument="advisories"
            )
        # With the length, because both names may have hyphens.
        wanted = ConsumerConfig(
            durable_name=f"dead-letters-{len(stream)}-{stream}-{consumer}", filter_subject=topic
        )
        made = _consumer_admin.create(context, advisories, wanted, deadline)
        reader = Consumer(context, advisories, made)
    run = _Run(
        context,
        info,
        subject,
        target=None if known is None else known.name,
        is_queue=retention is RetentionPolicy.WORKQUEUE,
    )
    return Iteration(run.letters(topic, reader, seconds), "iterator of dead letters")


class _Run:
    """
    One iteration over the messages that become dead letters because their workers died.

    Threads: the one that iterates; :class:`Iteration` lets in one call at a time.
    Locks: none.
    """

    def __init__(
        self,
        context: Context,
        info: ConsumerInfo,
        subject: str,
        *,
        target: str | None,
        is_queue: bool,
    ) -> None:
        self._context = context
        self._stream = info.stream_name
        self._consumer = info.name
        self._config = info.config
        self._subject = subject
        # The stream of the dead letters.
        self._target = target
        self._is_queue = is_queue
        # Whether a stream stores the advisories.
        self._is_kept = False
        self._engine = DeadLetterEngine(time.monotonic())
        # The ids of the dead letters of this consumer.
        self._ids: set[str] = set()
        self._reader: OrderedConsumer | None = None
        # How often each message was delivered, and the stored advisories about it.
        self._deliveries: dict[int, int] = {}
        self._to_ack: dict[int, list[Message]] = {}

    def letters(
        self, topic: str, reader: Consumer | None, idle: float
    ) -> Generator[StoredMessage, None, None]:
        """Yield each message after its dead letter was stored."""
        context, engine = self._context, self._engine
        self._is_kept = reader is not None
        source = _listen(context, topic) if reader is None else reader.consume()
        try:
            epoch, last = context.lane.epoch, time.monotonic()
            hint = reader is None and not self._is_queue
            while not context.connection.stopping:
                now = time.monotonic()
                if epoch != context.lane.epoch:
                    epoch = context.lane.epoch
                    engine.look_again(now)
                if engine.next_scan <= now:
                    self._scan(hint=hint)
                    hint = False
                sequence = engine.next_due(time.monotonic())
                if sequence is not None:
                    message = self._copy(sequence)
                    if message is not None:
                        yield message
                        last = time.monotonic()
                    continue
                now = time.monotonic()
                until = last + idle if engine.is_quiet else math.inf
                wakes = min(engine.wakes_at(), until)
                if now >= until or not self._wait(source, min(max(wakes - now, 0.0), LONGEST_WAIT)):
                    return
        except errors.ConnectionClosedError as error:
            if not is_own_close(error):
                raise
        finally:
            source.close()
            if self._reader is not None:
                self._reader.close()

    def _wait(self, source: Subscription | Consumption, seconds: float) -> bool:
        """Wait for an advisory; return False if the client ends."""
        try:
            message = source.next(timeout=seconds)
        except errors.SlowConsumerError:
            self._engine.look_again(time.monotonic())
            return True
        except errors.HandleClosedError:
            return False
        if message is not None:
            self._take(message)
        return True

    def _take(self, message: Message) -> None:
        """Note what an advisory says."""
        try:
            advisory = decode_json(message.data)
            # From 1, because servers refuse to look up sequence 0.
            sequence = 1 + read_count(advisory.get("stream_seq", 0) - 1, "stream_seq")
            deliveries = read_count(advisory.get("deliveries"), "deliveries")
        except (errors.ProtocolError, TypeError):
            # Any client may publish to the subject of advisories, unless permissions prevent it.
            _logger.warning("advisory_invalid", subject=message.subject)
            if self._is_kept:
                answer_soon(self._context.lane, message, TERM + b" not an advisory")
            return
        self._deliveries[sequence] = deliveries
        if self._is_kept:
            self._to_ack.setdefault(sequence, []).append(message)
        self._engine.advised(sequence, time.monotonic())

    def _scan(self, *, hint: bool) -> None:
        """Look for messages that no advisory told about; with *hint*, only whether there may be."""
        context, engine = self._context, self._engine
        found: list[int] = []
        try:
            deadline = context.deadline(None)
            info = _consumer_admin.info(context, self._stream, self._consumer, deadline)
            if self._is_queue:
                last = last_settled(
                    info.num_ack_pending, info.delivered.stream_seq, info.ack_floor.stream_seq
                )
                for subject in self._config.filter_subjects or [self._config.filter_subject or ">"]:
                    found += self._stored_up_to(last, subject)
            elif hint and info.num_redelivered > info.num_ack_pending:
                _logger.warning(
                    "dead_letters_may_be_missing",
                    stream=self._stream,
                    consumer=self._consumer,
                    messages=info.num_redelivered - info.num_ack_pending,
                )
        except (errors.ConnectionClosedError, errors.PermissionDeniedError):
            raise
        except TRANSIENT:
            engine.scan_failed(time.monotonic())
        else:
            engine.scanned(found, time.monotonic())

    def _stored_up_to(self, last: int, subject: str) -> Iterator[int]:
        """Yield the sequences of a subject's messages that the stream still has."""
        after = 0
        while after < last:
            request = {"seq": after + 1, "next_by_subj": subject}
            try:
                message = leader_get(
                    self._context, self._stream, request, self._context.deadline(None)
                )
            except errors.MessageNotFoundError:
                return
            after = message.sequence
            if after <= last:
                yield after

    def _copy(self, sequence: int) -> StoredMessage | None:
        """Store the dead letter of a message, and terminate it; return it if that was needed."""
        context, engine = self._context, self._engine
        try:
            if self._is_ahead(sequence):
                self._end(sequence)
                return None
            self._learn()
            message = leader_get(context, self._stream, {"seq": sequence}, context.deadline(None))
        except errors.MessageNotFoundError:
            if not self._has_letter(sequence):
                # It was deleted, or the stream's limits removed it.
                _logger.warning(
                    "dead_letter_gone",
                    stream=self._stream,
                    consumer=self._consumer,
                    sequence=sequence,
                )
            self._end(sequence)
            return None
        except (errors.ConnectionClosedError, errors.PermissionDeniedError):
            raise
        except TRANSIENT:
            engine.failed(sequence, time.monotonic())
            return None
        deliveries = self._deliveries.get(sequence, self._config.max_deliver or 0)
        about: dict[str, Any] = {
            "stream": self._stream,
            "consumer": self._consumer,
            "subject": message.subject,
            "sequence": sequence,
            "deliveries": deliveries,
            # A worker may have died, or stopped before its handler got the message.
            "reason": f"delivered {deliveries} times, never acknowledged",
        }
        letter = dead_letter(
            self._subject,
            **about,
            timestamp_ns=message.timestamp_ns,
            raw_headers=message.raw_headers,
            data=message.data,
        )
        is_new = letter.msg_id not in self._ids
        if is_new:
            ack = store(context, letter, about)
            if ack is None:
                engine.failed(sequence, time.monotonic())
                return None
            is_new = not ack.duplicate
        # The server takes any number of a delivery for a message that is not pending. Without this,
        # a work queue would keep the message.
        subject = (
            f"$JS.ACK.{self._stream}.{self._consumer}.{deliveries}.{sequence}.0."
            f"{message.timestamp_ns}.0"
        )
        block = frames.pub(subject.encode(), b"", TERM + b" dead letter")
        context.lane.post_nowait(block, keep=KEEP_ACKS)
        self._end(sequence)
        return message if is_new else None

    def _is_ahead(self, sequence: int) -> bool:
        """
        Return whether the consumer has yet to deliver a message, so that no worker has failed.

        The advisory then tells about an earlier consumer of that name, or about this one before it
        was reset. Termination would take the message from the workers.
        """
        context, stream, consumer = self._context, self._stream, self._consumer
        info = _consumer_admin.info(context, stream, consumer, context.deadline(None))
        is_ahead = sequence > info.delivered.stream_seq
        if is_ahead:
            _logger.warning(
                "advisory_outdated", stream=stream, consumer=consumer, sequence=sequence
            )
        return is_ahead

    def _has_letter(self, sequence: int) -> bool:
        """Return whether a message that is gone has a dead letter: a worker may have stored it."""
        start = letter_id(self._stream, self._consumer, sequence)
        return any(each.startswith(start) for each in self._ids)

    def _end(self, sequence: int) -> None:
        """Forget a message, and acknowledge the stored advisories about it."""
        self._engine.ended(sequence)
        self._deliveries.pop(sequence, None)
        for message in self._to_ack.pop(sequence, ()):
            answer_soon(self._context.lane, message, ACK)

    def _learn(self) -> None:
        """
        Read which messages have a dead letter already.

        A worker may have died after it had stored one, longer ago than the duplicate window.
        """
        if self._target is None:
            return
        context = self._context
        try:
            if self._reader is None:
                deadline = context.deadline(None)
                self._reader = open_ordered(
                    context,
                    self._target,
                    _stream_admin.info(context, self._target, deadline),
                    deadline,
                    self._subject,
                    headers_only=True,
                )
            mine = (self._stream, self._consumer)
            while letters := list(self._reader.fetch(PAGE, no_wait=True)):
                for found in (letter.headers for letter in letters):
                    if (found.get(STREAM), found.get(CONSUMER)) == mine:
                        self._ids.add(str(found.get(MSG_ID)))
        except errors.PermissionDeniedError:
            self._target = None
        except TRANSIENT:
            raise
        except errors.ApiError:
            # A work queue allows no such consumer. Then only the ids prevent a second dead letter.
            self._target = None


def _listen(context: Context, topic: str) -> Subscription:
    """Subscribe to advisories; the subscription ends with the client, as those of users do."""
    connection = context.connection
    connection.check()
    subscription = Subscription(connection, topic, None, connection.subscriptions.discard)
    connection.subscriptions.add(subscription)
    if connection.stopping:
        subscription.drain()
    return subscription
