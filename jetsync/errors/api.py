"""
Errors that a server answers with, and publishes without an answer.

The server identifies an API error by its ``err_code``. ``ApiError.classes`` maps it to a class, and
``from_api_error`` in ``jetsync/errors/answers.py`` makes the error of an answer.
"""

from __future__ import annotations

import typing as _t

from jetsync.errors.base import JetSyncError
from jetsync.errors.texts import shown_seconds as _shown_seconds
from jetsync.errors.texts import trailing_number as _trailing_number

if _t.TYPE_CHECKING:
    from collections import abc as _abc

    import typing_extensions as _te

# The streams of key-value buckets have this prefix (ADR-8), and those of object stores (ADR-20).
_BUCKET_PREFIX: _t.Final = "KV_"
_OBJECTS_PREFIX: _t.Final = "OBJ_"


class _Fields(_t.TypedDict, total=False):
    code: int | None
    err_code: int | None
    description: str | None
    stream: str | None
    consumer: str | None


class ApiError(JetSyncError):
    """
    A server answered with an error. The subclass depends on ``err_code``.

    For codes without a subclass, jetsync raises ApiError. ``stream`` and ``consumer``
    are names. They are None if the request concerned none, or if the server's answer does not show
    which.
    """

    classes: _t.ClassVar[dict[int, type[ApiError]]] = {}
    """The class for each ``err_code``. Do not change it."""

    _usual: _t.ClassVar[tuple[int, int, str]] = (500, 0, "JetStream error")
    _common_advice: _t.ClassVar[str | None] = None
    _bucket_advice: _t.ClassVar[str | None] = None
    _objects_advice: _t.ClassVar[str | None] = None

    def __init__(
        self,
        *,
        code: int | None = None,
        err_code: int | None = None,
        description: str | None = None,
        stream: str | None = None,
        consumer: str | None = None,
    ) -> None:
        self.code: int = self._usual[0] if code is None else code
        self.err_code: int = self._usual[1] if err_code is None else err_code
        self.description: str = self._usual[2] if description is None else description
        self.stream = stream
        self.consumer = consumer
        numbers = f"{self.code}, err_code {self.err_code}" if self.err_code else f"{self.code}"
        advice = self._advice()
        advice = "" if advice is None else f"; {advice}"
        super().__init__(f"{self._named()} ({numbers}){advice}")

    def __init_subclass__(
        cls,
        *,
        usual: tuple[int, int, str] | tuple[int, int] | None = None,
        also: tuple[int, ...] = (),
        advice: str | None = None,
        bucket_advice: str | None = None,
        objects_advice: str | None = None,
    ) -> None:
        """
        Register the class for an ``err_code``.

        Args:
            usual: Status code, ``err_code`` and description of errors that jetsync itself raises,
                for example if a direct get answers 404 without an ``err_code``. The default
                description is that of the base class.
            also: Other codes that share the class.
            advice: What the user can do, for the end of the text.
            bucket_advice: The same if the stream stores a key-value bucket.
            objects_advice: The same if the stream stores an object store.
        """
        if advice is not None:
            cls._common_advice = advice
        if bucket_advice is not None:
            cls._bucket_advice = bucket_advice
        if objects_advice is not None:
            cls._objects_advice = objects_advice
        if usual is not None:
            cls._usual = (*usual[:2], usual[2] if len(usual) > 2 else cls._usual[2])
            cls.classes.update(dict.fromkeys((usual[1], *also), cls))

    def _advice(self) -> str | None:
        stream, advice = self.stream or "", None
        if stream.startswith(_BUCKET_PREFIX):
            advice = self._bucket_advice
        elif stream.startswith(_OBJECTS_PREFIX):
            advice = self._objects_advice
        return advice or self._common_advice

    def _named(self) -> str:
        """
        Return the description with the names of the stream and the consumer.
        """
        text = self.description
        if self.stream is not None and text == "stream not found":
            return f"stream {self.stream!r} not found"
        if self.consumer is not None:
            where = "" if self.stream is None else f" on stream {self.stream!r}"
            if text.startswith("consumer "):
                return f"consumer {self.consumer!r} {text[9:]}{where}"
            return f"consumer {self.consumer!r}{where}: {text}"
        if self.stream is None:
            return text
        if self.stream.startswith(_BUCKET_PREFIX):
            return f"bucket {self.stream.removeprefix(_BUCKET_PREFIX)!r}: {text}"
        if self.stream.startswith(_OBJECTS_PREFIX):
            return f"object store {self.stream.removeprefix(_OBJECTS_PREFIX)!r}: {text}"
        return f"stream {self.stream!r}: {text}"


class BadRequestError(ApiError, usual=(400, 10003, "bad request")):
    """
    The request contradicts itself. For example, it purges by sequence and by count.
    """


class InvalidJsonError(ApiError, usual=(400, 10025, "invalid JSON")):
    """
    The server could not parse the request. Servers from 2.12 up also reject unknown fields.
    """


class JetStreamNotEnabledError(
    ApiError, usual=(503, 10039, "JetStream not enabled for account"), also=(10076,)
):
    """
    JetStream is not enabled on the server or for the account.
    """


class TemporarilyUnavailableError(
    ApiError, usual=(503, 10008, "JetStream temporarily unavailable")
):
    """
    The JetStream cluster has no leader at the moment. Try again.
    """


class InsufficientResourcesError(
    ApiError, usual=(503, 10023, "insufficient resources"), also=(10002, 10028, 10047)
):
    """
    The account or the server has too little memory or disk space left for the request.
    """


class ClusterRescueError(ApiError, usual=(400, 10224, "JetStream system rescue not applied")):
    """
    The system account asked a cluster without a majority to continue, and the server refused.
    """


class TooManyRequestsError(ApiError, usual=(429, 10167, "too many requests")):
    """
    The server is overloaded. Try again later.
    """


class ApiLevelRequiredError(ApiError, usual=(412, 10185, "JetStream minimum api level required")):
    """
    The request needs an API level that the server does not have.
    """


class MaxStreamsError(ApiError, usual=(400, 10027, "maximum number of streams reached")):
    """
    The account has reached its maximum number of streams.
    """


class StreamNotFoundError(ApiError, usual=(404, 10059, "stream not found")):
    """
    The stream does not exist.
    """


class StreamNameInUseError(
    ApiError,
    usual=(400, 10058, "stream name already in use"),
    advice="use create_or_update_stream to change it",
    bucket_advice="use create_or_update_key_value to change it",
    objects_advice="use create_or_update_object_store to change it",
):
    """
    A stream with this name and another configuration exists.
    """


class SubjectOverlapError(
    ApiError,
    usual=(400, 10065, "subjects overlap with an existing stream"),
    advice="stream_names(subject=...) lists the streams that have a subject",
):
    """
    Another stream already stores messages of one of the subjects.
    """


class StreamConfigInvalidError(
    ApiError,
    usual=(500, 10052, "stream configuration is invalid"),
    # The consumers that mirrors and sources name.
    also=(10213, 10214, 10215, 10216, 10217),
):
    """
    The server rejected the stream configuration. The description says why.
    """

    def _advice(self) -> str | None:
        if self.description.startswith("duplicates window can not be larger"):
            return "also set duplicate_window to at most max_age"
        return super()._advice()


class StreamSealedError(ApiError, usual=(400, 10109, "invalid operation on sealed stream")):
    """
    The stream is sealed and cannot change.
    """


class StreamReconfigureInProgressError(
    ApiError, usual=(400, 10226, "stream reconfiguration already in progress")
):
    """
    The server is still moving or scaling the stream, or changing its retention. Try again later.
    """


class MirrorAtomicError(StreamConfigInvalidError, usual=(400, 10198)):
    """
    A mirror cannot allow atomic batches.
    """


class MirrorFastPublishError(StreamConfigInvalidError, usual=(400, 10209)):
    """
    A mirror cannot allow fast ingest.
    """


class MessageNotFoundError(ApiError, usual=(404, 10037, "no message found")):
    """
    The stream has no message with that sequence, subject or time.
    """

    def _named(self) -> str:
        where = "" if self.stream is None else f" in stream {self.stream!r}"
        return f"{self.description}{where}"


class ConsumerNotFoundError(ApiError, usual=(404, 10014, "consumer not found")):
    """
    The consumer does not exist.
    """


class ConsumerExistsError(
    ApiError,
    usual=(400, 10148, "consumer already exists"),
    advice="use create_or_update_consumer to change it",
):
    """
    A consumer with this name and another configuration exists.
    """


class ConsumerDoesNotExistError(ConsumerNotFoundError, usual=(400, 10149)):
    """
    The consumer to update does not exist.
    """


class MaxConsumersError(ApiError, usual=(400, 10026, "maximum consumers limit reached")):
    """
    The stream or account has reached its maximum number of consumers.
    """


class ConsumerConfigInvalidError(
    ApiError,
    usual=(500, 10012, "consumer configuration is invalid"),
    # A pinned TTL without a priority policy, and what the ack policy `flow_control` excludes.
    also=(10197, 10219, 10220, 10221, 10222),
):
    """
    The server rejected the consumer configuration, or a change to a field that cannot change.
    """


class DuplicateFilterSubjectsError(ConsumerConfigInvalidError, usual=(400, 10136)):
    """
    Both ``filter_subject`` and ``filter_subjects`` were given.
    """


class OverlappingFilterSubjectsError(ConsumerConfigInvalidError, usual=(400, 10138)):
    """
    Two filters of the consumer match the same subjects.
    """


class EmptyFilterSubjectError(ConsumerConfigInvalidError, usual=(400, 10139)):
    """
    One of the consumer's filters is empty.
    """


class PriorityPolicyWithoutGroupError(ConsumerConfigInvalidError, usual=(400, 10159)):
    """
    The configuration has a priority policy but no priority group.
    """


class PriorityGroupNotFoundError(ApiError, usual=(400, 10160, "priority group does not exist")):
    """
    The consumer has no priority group with this name.
    """


class PriorityGroupNameError(ConsumerConfigInvalidError, usual=(400, 10162)):
    """
    The name of a priority group has forbidden characters or more than 16 characters.
    """


class PushWithPriorityGroupError(ConsumerConfigInvalidError, usual=(400, 10178)):
    """
    A push consumer cannot have priority groups.
    """


class PriorityGroupWithoutPolicyError(ConsumerConfigInvalidError, usual=(400, 10196)):
    """
    The configuration has priority groups but no priority policy.
    """


class FlowControlAckPolicyError(ConsumerConfigInvalidError, usual=(400, 10218)):
    """
    Only push consumers can have the ack policy ``flow_control``.
    """


class InvalidResetError(ApiError, usual=(400, 10204, "invalid reset")):
    """
    The consumer cannot be reset to that sequence.
    """


class StreamIdentityMismatchError(
    ApiError, usual=(400, 10225, "consumer's stream identity does not match")
):
    """
    The consumer was requested for a stream that has since been deleted and created again.
    """


class MessageTooLargeError(ApiError, usual=(400, 10054, "message size exceeds maximum allowed")):
    """
    The message is larger than the stream's ``max_msg_size``.
    """


class StreamFullError(
    ApiError,
    usual=(503, 10077, "maximum messages exceeded"),
    bucket_advice="raise max_bytes, or remove keys with stream.purge",
    objects_advice="raise max_bytes, delete objects, or remove old marks with purge_deletes",
):
    """
    The stream refuses the message because it is full. The description names the limit, for example
    ``maximum bytes exceeded``.
    """


class RollupNotPermittedError(ApiError, usual=(500, 10111, "rollup not permitted")):
    """
    The stream does not allow the header ``Nats-Rollup``, or a batch does not allow it on this
    message.
    """


class WrongStreamError(ApiError, usual=(400, 10060, "expected stream does not match")):
    """
    The message reached a stream other than the expected one.
    """


class WrongLastMessageIdError(ApiError, usual=(400, 10070, "wrong last msg ID")):
    """
    The stream's last message ID is not the expected one.
    """


class WrongLastSequenceError(ApiError, usual=(400, 10071, "wrong last sequence"), also=(10164,)):
    """
    The last sequence of the stream or subject is not the expected one.
    """

    last_sequence: int | None
    """The actual last sequence, or None if the server did not send it."""

    def __init__(self, **fields: _te.Unpack[_Fields]) -> None:
        super().__init__(**fields)
        self.last_sequence = _trailing_number(self.description)


class SubjectCheckUnavailableError(
    ApiError, usual=(503, 10163, "last sequence by subject unavailable")
):
    """
    The server cannot check the subject's expected last sequence at the moment. Try again.
    """


class MissingExpectedSequenceError(ApiError, usual=(400, 10193, "missing expected sequence")):
    """
    The message names a subject to check, but not the sequence expected on it.
    """


class DuplicateMessageInProcessError(
    ApiError, usual=(409, 10158, "duplicate message id is in process")
):
    """
    The server is storing a message with the same ID at this moment.
    """


class MessageTtlInvalidError(ApiError, usual=(400, 10165, "invalid per-message TTL")):
    """
    The server rejected the message's time-to-live.
    """


class MessageTtlDisabledError(
    ApiError,
    usual=(400, 10166, "per-message TTL is disabled"),
    advice="the stream needs allow_msg_ttl=True",
    bucket_advice="the bucket needs limit_marker_ttl",
):
    """
    The stream does not allow a time-to-live per message (``allow_msg_ttl``).
    """


class CounterDisabledError(ApiError, usual=(400, 10168, "message counters is disabled")):
    """
    The stream does not allow counters (``allow_msg_counter``).
    """


class CounterIncrementMissingError(
    ApiError, usual=(400, 10169, "message counter increment is missing")
):
    """
    A message to a counter stream has no increment.
    """


class CounterPayloadError(ApiError, usual=(400, 10170, "message counter has payload")):
    """
    A message to a counter stream has a payload.
    """


class CounterIncrementInvalidError(ApiError, usual=(400, 10171, "invalid counter increment")):
    """
    The increment of a counter is not an integer.
    """


class SchedulesDisabledError(ApiError, usual=(400, 10188, "message schedules is disabled")):
    """
    The stream does not allow message schedules (``allow_msg_schedules``).
    """


class SchedulePatternInvalidError(ApiError, usual=(400, 10189, "message schedule is invalid")):
    """
    The server cannot parse the schedule, or it repeats more often than once a second.
    """


class ScheduleTargetInvalidError(ApiError, usual=(400, 10190, "schedule target is invalid")):
    """
    The schedule's target is missing, outside the stream, or the schedule's own subject.
    """


class ScheduleTtlInvalidError(ApiError, usual=(400, 10191, "schedule TTL is invalid")):
    """
    The time-to-live of the scheduled messages is invalid.
    """


class ScheduleRollupInvalidError(ApiError, usual=(400, 10192, "schedule rollup is invalid")):
    """
    A schedule allows only the roll-up ``sub``, which replaces earlier messages on its target.
    """


class ScheduleSourceInvalidError(ApiError, usual=(400, 10203, "schedule source is invalid")):
    """
    The schedule's source is outside the stream, or is the subject of the schedule or its target.
    """


class ScheduleTimeZoneInvalidError(ApiError, usual=(400, 10223, "schedule time zone is invalid")):
    """
    The server does not know the schedule's time zone.
    """


class ScheduleSchedulerInvalidError(
    ApiError,
    usual=(400, 10212, "message schedules invalid scheduler"),
    advice="publish a copy of a scheduled message with message.headers.forwardable()",
):
    """
    The message has ``Nats-Scheduler`` or ``Nats-Schedule-Next``, but does not end a schedule.

    Servers add these headers to the messages that they publish for a schedule.
    """


class StreamSourceHeaderError(
    ApiError,
    usual=(400, 10227, "message stream source header is not allowed"),
    advice="publish a copy of a received message with message.headers.forwardable()",
):
    """
    The message has the header ``Nats-Stream-Source``, which only servers may set.

    Servers add it to the messages that a stream gets from its sources. Servers from 2.15 refuse it
    in a publish.
    """


class AtomicPublishDisabledError(ApiError, usual=(400, 10174, "atomic publish is disabled")):
    """
    The stream does not allow atomic batches (``allow_atomic``).
    """


class BatchSequenceMissingError(ApiError, usual=(400, 10175, "atomic publish sequence is missing")):
    """
    A message of a batch has no valid batch sequence.
    """


class BatchIncompleteError(ApiError, usual=(400, 10176, "atomic publish batch is incomplete")):
    """
    The server does not have the whole batch.

    Either a message was lost, the batch was idle for too long, the server restarted, or the batch
    had already ended. The stream has none of its messages. ``reason`` says what jetsync knows about
    the cause.
    """

    def __init__(self, *, reason: str | None = None, **fields: _te.Unpack[_Fields]) -> None:
        super().__init__(**fields)
        self.reason = reason
        if reason is not None:
            self.args: tuple[_t.Any, ...] = (f"{self}: {reason}",)


class BatchUnsupportedHeaderError(
    ApiError, usual=(400, 10177, "atomic publish unsupported header")
):
    """
    A message of a batch has a header that batches do not allow.
    """


class BatchIdInvalidError(ApiError, usual=(400, 10179, "atomic publish batch ID is invalid")):
    """
    The batch ID is longer than 64 bytes.
    """


class BatchTooLargeError(ApiError, usual=(400, 10199, "atomic publish batch is too large")):
    """
    The batch has more messages than the server accepts.
    """

    @property
    def limit(self) -> int | None:
        """
        The server's limit in messages, or None if the server did not send it.
        """
        return _trailing_number(self.description)


class BatchCommitInvalidError(ApiError, usual=(400, 10200, "atomic publish commit is invalid")):
    """
    The server does not know this way to commit a batch.
    """


class DuplicateMessageIdError(ApiError, usual=(400, 10201, "batch has a duplicate message id")):
    """
    A message ID of the batch is already stored, or occurs twice in the batch. Nothing was stored.
    """


class TooManyInflightError(ApiError, usual=(429, 10210, "atomic publish too many inflight")):
    """
    The stream or server has too many open batches.
    """


class FastTooManyInflightError(TooManyInflightError, usual=(429, 10211)):
    """
    The stream has too many open fast-ingest batches.
    """


class FastPublishDisabledError(ApiError, usual=(400, 10205, "batch publish is disabled")):
    """
    The stream does not allow fast ingest (``allow_batched``).
    """


class FastPatternInvalidError(ApiError, usual=(400, 10206, "batch publish pattern is invalid")):
    """
    The server cannot parse the reply subject of a fast-ingest message.
    """


class FastBatchIdInvalidError(ApiError, usual=(400, 10207, "batch publish ID is invalid")):
    """
    The fast-ingest batch ID is longer than 64 bytes.
    """


class FastBatchUnknownError(ApiError, usual=(400, 10208, "batch publish ID unknown")):
    """
    The fast-ingest batch has ended, timed out, or never started.
    """


# Key-value errors name the bucket and the key instead of the stream and the subject.


class BucketNotFoundError(StreamNotFoundError):
    """
    The bucket does not exist, or it was deleted and created again during a watch.
    """

    def __init__(self, bucket: str, *, reason: str | None = None) -> None:
        why = "" if reason is None else f": {reason}"
        super().__init__(description=f"bucket {bucket!r} not found{why}", stream=f"KV_{bucket}")
        self.args: tuple[_t.Any, ...] = (self.description,)
        self.bucket = bucket
        self.reason = reason


class WrongLastRevisionError(WrongLastSequenceError):
    """
    A key is not at the expected revision. Nothing was changed.

    The server also refuses a change while it stores another one of the same key. jetsync then waits
    for the new revision. If the key still has the expected revision at the deadline,
    ``last_sequence`` equals ``expected``, and you can repeat the call.

    ``last_sequence`` is the key's revision: 0 if the key has none, None if jetsync does not know
    it. ``key`` is None if a transaction failed and jetsync could not find out which key caused it.
    """

    def __init__(
        self,
        bucket: str,
        key: str | None = None,
        *,
        expected: int | None = None,
        last_sequence: int | None = None,
    ) -> None:
        at = "the expected revision" if expected is None else f"revision {expected}"
        what = "a key" if key is None else f"key {key!r}"
        text = f"{what} of bucket {bucket!r} is not at {at}"
        if last_sequence is not None and last_sequence == expected:
            text = f"{what} of bucket {bucket!r} is still at {at}; another change is in progress"
        elif last_sequence is not None:
            text += f": it is at {last_sequence}" if last_sequence else ": it does not exist"
        super().__init__(description=text, stream=f"KV_{bucket}")
        self.args: tuple[_t.Any, ...] = (text,)
        self.bucket = bucket
        self.key = key
        self.expected = expected
        self.last_sequence = last_sequence


class KeyExistsError(WrongLastRevisionError):
    """
    The key to create already has a value. Nothing was changed.
    """

    def __init__(self, bucket: str, key: str, *, last_sequence: int | None = None) -> None:
        super().__init__(bucket, key, expected=0, last_sequence=last_sequence)
        at = "" if last_sequence is None else f" at revision {last_sequence}"
        self.description: str = f"key {key!r} of bucket {bucket!r} already has a value{at}"
        self.args: tuple[_t.Any, ...] = (self.description,)


class KeyNotFoundError(JetSyncError, KeyError):
    """
    The key has no value in the bucket, or the given revision is not one of its values.

    ``deleted_at`` is the revision of the marker that ended the value, and ``reason`` is
    ``"deleted"``, ``"purged"`` or ``"expired"``. Both are None if the bucket has no marker.
    """

    def __init__(
        self,
        bucket: str,
        key: str,
        *,
        revision: int | None = None,
        deleted_at: int | None = None,
        reason: str | None = None,
    ) -> None:
        at = "" if revision is None else f" at revision {revision}"
        text = f"key {key!r} not found{at} in bucket {bucket!r}"
        if deleted_at is not None:
            text += f": {reason or 'deleted'} at revision {deleted_at}"
        super().__init__(text)
        self.bucket = bucket
        self.key = key
        self.revision = revision
        self.deleted_at = deleted_at
        self.reason = reason


class KeysVanishedError(JetSyncError):
    """
    A snapshot is incomplete, because some of its values were replaced while jetsync read them.
    """

    def __init__(
        self, bucket: str, keys: _abc.Sequence[str], *, revision: int | None = None
    ) -> None:
        names = ", ".join(map(repr, keys[:5])) + (", ..." if len(keys) > 5 else "")
        at = "the time of the snapshot" if revision is None else f"revision {revision}"
        super().__init__(
            f"bucket {bucket!r} no longer has the values that {len(keys)} keys had at {at}: {names}"
        )
        self.bucket = bucket
        self.keys: tuple[str, ...] = tuple(keys)
        self.revision = revision


# Publishes.


class PublishError(JetSyncError):
    """
    A publish was not acknowledged.
    """

    def __init__(self, message: str, *, subject: str | None = None) -> None:
        super().__init__(message)
        self.subject = subject


class NoStreamResponseError(PublishError):
    """
    No stream stores the subject, or the stream has no leader at the moment.

    The message was not stored.
    """

    def __init__(self, subject: str, *, attempts: int = 1, argument: str | None = None) -> None:
        tries = "1 attempt" if attempts == 1 else f"{attempts} attempts"
        super().__init__(
            f"no response from a stream on {subject!r} after {tries}: "
            "no stream has this subject, or its leader is away"
            if argument is None
            else f"{argument}: no stream stores {subject!r}; create the stream first",
            subject=subject,
        )
        self.attempts = attempts


class PublishOutcomeUnknownError(PublishError, TimeoutError):
    """
    The message was sent, but no ack arrived. It may or may not be stored.

    If the server has refused this message or another one to the same subject, ``__cause__`` is
    that PermissionDeniedError. ``timeout`` is in seconds.
    """

    def __init__(
        self,
        subject: str,
        *,
        msg_id: str | None = None,
        timeout: float | None = None,
        reason: str | None = None,
    ) -> None:
        why = reason or "no acknowledgement came"
        if timeout is not None:
            why += f" within {_shown_seconds(timeout)}"
        advice = "repeating it without a msg_id may store it twice"
        if msg_id is not None:
            advice = f"repeating it with msg_id {msg_id!r} is safe within the duplicate window"
        super().__init__(
            f"outcome of the publish to {subject!r} is unknown: {why}; {advice}", subject=subject
        )
        self.msg_id = msg_id
        self.timeout = timeout
        self.reason = reason


class BatchGapError(PublishError):
    """
    A fast-ingest batch does not allow gaps, and some of its messages did not reach the server.

    ``first_missing`` is the batch sequence of the first lost message and ``sequence`` that of the
    message that arrived instead.
    """

    def __init__(self, first_missing: int, sequence: int, *, batch_id: str | None = None) -> None:
        super().__init__(
            f"batch messages {first_missing} to {sequence - 1} were lost, {sequence} arrived"
        )
        self.first_missing = first_missing
        self.sequence = sequence
        self.batch_id = batch_id


class AtomicityError(PublishError):
    """
    The server did not treat the messages as an atomic batch, and stored some or all of them.

    ``sequence`` is the stream sequence of the last message that was stored, if the server said so.
    """

    def __init__(
        self, batch_id: str, *, stream: str | None = None, sequence: int | None = None
    ) -> None:
        where = "" if stream is None else f" in stream {stream!r}"
        where += "" if sequence is None else f" up to sequence {sequence}"
        super().__init__(
            f"batch {batch_id!r} was not treated as a batch: messages are stored{where}"
        )
        self.batch_id = batch_id
        self.stream = stream
        self.sequence = sequence
