"""
Answers of the JetStream API, publishes that were not acknowledged, and key-value errors.
"""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from jetsync.errors.base import JetSyncError, trailing_number
from jetsync.errors.transport import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Sequence


class ApiError(JetSyncError):
    """
    A server answered with an error; the class is chosen by ``err_code``, unknown codes stay plain.
    """

    #: What servers send for this class: status code, error code, description. Used where the client
    #: finds the same fault by another way, for instance a direct get that says 404 without an error
    #: code.
    usual: ClassVar[tuple[int, int, str]] = (500, 0, "JetStream error")

    def __init__(
        self,
        *,
        code: int | None = None,
        err_code: int | None = None,
        description: str | None = None,
        stream: str | None = None,
    ) -> None:
        self.code = self.usual[0] if code is None else code
        self.err_code = self.usual[1] if err_code is None else err_code
        self.description = self.usual[2] if description is None else description
        self.stream = stream
        where = "" if stream is None else f", stream {stream!r}"
        super().__init__(f"{self.description} (code {self.code}, err_code {self.err_code}{where})")


class BadRequestError(ApiError):
    """
    The request makes no sense to the server, for instance a purge with both a sequence and a keep
    count.
    """

    usual = (400, 10003, "bad request")


class InvalidJsonError(ApiError):
    """
    The server could not read the request; since 2.12 also for a field it does not know.
    """

    usual = (400, 10025, "invalid JSON")


class JetStreamNotEnabledError(ApiError):
    """
    The server or the account has no JetStream.
    """

    usual = (503, 10039, "JetStream not enabled for account")


class TemporarilyUnavailableError(ApiError):
    """
    The JetStream cluster has no leader at the moment; try again.
    """

    usual = (503, 10008, "JetStream system temporarily unavailable")


class InsufficientResourcesError(ApiError):
    """
    The account or the server has no room left for what was asked.
    """

    usual = (503, 10023, "insufficient resources")


class TooManyRequestsError(ApiError):
    """
    The server sheds load; try again later.
    """

    usual = (429, 10167, "too many requests")


class ApiLevelRequiredError(ApiError):
    """
    The request demanded an API level that the server does not have.
    """

    usual = (412, 10185, "JetStream minimum api level required")


class MaxStreamsError(ApiError):
    """
    The account may not have more streams.
    """

    usual = (400, 10027, "maximum number of streams reached")


class StreamNotFoundError(ApiError):
    """
    The stream does not exist.
    """

    usual = (404, 10059, "stream not found")


class StreamNameInUseError(ApiError):
    """
    A stream of that name exists with another configuration.
    """

    usual = (400, 10058, "stream name already in use with a different configuration")


class SubjectOverlapError(ApiError):
    """
    Another stream already takes one of the subjects.
    """

    usual = (400, 10065, "subjects overlap with an existing stream")


class StreamConfigInvalidError(ApiError):
    """
    The stream configuration contradicts itself; the description says where.
    """

    usual = (500, 10052, "stream configuration is invalid")


class StreamSealedError(ApiError):
    """
    The stream is sealed and takes no more changes.
    """

    usual = (400, 10109, "invalid operation on sealed stream")


class MirrorAtomicError(StreamConfigInvalidError):
    """
    A mirror can not allow atomic batches.
    """

    usual = (400, 10198, "stream mirrors can not also use atomic publishing")


class MirrorFastPublishError(StreamConfigInvalidError):
    """
    A mirror can not allow fast ingest.
    """

    usual = (400, 10209, "stream mirrors can not also use batch publishing")


class MessageNotFoundError(ApiError):
    """
    There is no message at that sequence, subject or time.
    """

    usual = (404, 10037, "no message found")


class ConsumerNotFoundError(ApiError):
    """
    The consumer does not exist.
    """

    usual = (404, 10014, "consumer not found")


class ConsumerExistsError(ApiError):
    """
    A consumer of that name exists with another configuration.
    """

    usual = (400, 10148, "consumer already exists")


class ConsumerDoesNotExistError(ConsumerNotFoundError):
    """
    The consumer that was to be updated does not exist.
    """

    usual = (400, 10149, "consumer does not exist")


class MaxConsumersError(ApiError):
    """
    The stream or account may not have more consumers.
    """

    usual = (400, 10026, "maximum consumers limit reached")


class ConsumerConfigInvalidError(ApiError):
    """
    The consumer configuration was refused, for instance a change to a field that can not change.
    """

    usual = (500, 10012, "consumer configuration is invalid")


class DuplicateFilterSubjectsError(ConsumerConfigInvalidError):
    """
    Both ``filter_subject`` and ``filter_subjects`` were given.
    """

    usual = (400, 10136, "consumer cannot have both FilterSubject and FilterSubjects specified")


class OverlappingFilterSubjectsError(ConsumerConfigInvalidError):
    """
    Two filters of the consumer match the same subjects.
    """

    usual = (400, 10138, "consumer subject filters cannot overlap")


class EmptyFilterSubjectError(ConsumerConfigInvalidError):
    """
    One of the filters of the consumer is empty.
    """

    usual = (400, 10139, "consumer filter in FilterSubjects cannot be empty")


class PriorityPolicyWithoutGroupError(ConsumerConfigInvalidError):
    """
    A priority policy was set without a priority group.
    """

    usual = (400, 10159, "setting PriorityPolicy requires at least one PriorityGroup to be set")


class PriorityGroupNotFoundError(ApiError):
    """
    The consumer has no priority group of that name.
    """

    usual = (400, 10160, "provided priority group does not exist for this consumer")


class PriorityGroupNameError(ConsumerConfigInvalidError):
    """
    The name of a priority group has forbidden characters or more than 16 of them.
    """

    usual = (400, 10162, "invalid priority group name")


class PushWithPriorityGroupError(ConsumerConfigInvalidError):
    """
    A push consumer can not have priority groups.
    """

    usual = (400, 10178, "priority groups can not be used with push consumers")


class PriorityGroupWithoutPolicyError(ConsumerConfigInvalidError):
    """
    Priority groups were set without a priority policy.
    """

    usual = (400, 10196, "priority groups need a priority policy")


class FlowControlAckPolicyError(ConsumerConfigInvalidError):
    """
    The ack policy ``flow_control`` is for push consumers only.
    """

    usual = (400, 10218, "flow control ack policy needs a push consumer")


class InvalidResetError(ApiError):
    """
    A consumer can not be reset to that sequence.
    """

    usual = (400, 10204, "invalid reset")


class MessageTooLargeError(ApiError):
    """
    The message is larger than the stream's ``max_msg_size``.
    """

    usual = (400, 10054, "message size exceeds maximum allowed")


class MaxMessagesError(ApiError):
    """
    The stream is at one of its limits and discards new messages; the description names the limit.
    """

    usual = (503, 10077, "maximum messages exceeded")


class RollupNotPermittedError(ApiError):
    """
    The stream does not allow roll-ups, or not at this place of a batch.
    """

    usual = (500, 10111, "rollup not permitted")


class WrongStreamError(ApiError):
    """
    The message went to another stream than the one expected.
    """

    usual = (400, 10060, "expected stream does not match")


class WrongLastMessageIdError(ApiError):
    """
    The last message id of the stream is not the one expected.
    """

    usual = (400, 10070, "wrong last msg ID")


class WrongLastSequenceError(ApiError):
    """
    The last sequence of the stream or subject is not the one expected; ``last_sequence`` is the
    real one where known.
    """

    usual = (400, 10071, "wrong last sequence")

    def __init__(
        self,
        *,
        code: int | None = None,
        err_code: int | None = None,
        description: str | None = None,
        stream: str | None = None,
    ) -> None:
        super().__init__(code=code, err_code=err_code, description=description, stream=stream)
        self.last_sequence = trailing_number(self.description)


class SubjectCheckUnavailableError(ApiError):
    """
    The expected last sequence of the subject can not be checked at the moment; try again.
    """

    usual = (503, 10163, "last sequence by subject temporarily unavailable")


class MissingExpectedSequenceError(ApiError):
    """
    A subject to check was given without the sequence expected on it.
    """

    usual = (400, 10193, "missing sequence for expected last sequence per subject")


class DuplicateMessageInProcessError(ApiError):
    """
    A message with the same id is being stored right now.
    """

    usual = (409, 10158, "duplicate message id is in process")


class MessageTtlInvalidError(ApiError):
    """
    The server can not use the message's time-to-live.
    """

    usual = (400, 10165, "invalid per-message TTL")


class MessageTtlDisabledError(ApiError):
    """
    The stream does not allow a time-to-live per message (``allow_msg_ttl``).
    """

    usual = (400, 10166, "per-message TTL is disabled")


class CounterDisabledError(ApiError):
    """
    The stream does not hold counters (``allow_msg_counter``).
    """

    usual = (400, 10168, "message counters is disabled")


class CounterIncrementMissingError(ApiError):
    """
    A message to a counter stream has no increment.
    """

    usual = (400, 10169, "message counter increment is missing")


class CounterPayloadError(ApiError):
    """
    A message to a counter stream has a payload.
    """

    usual = (400, 10170, "message counter has payload")


class CounterIncrementInvalidError(ApiError):
    """
    The increment of a counter is not an integer.
    """

    usual = (400, 10171, "message counter increment is invalid")


class SchedulesDisabledError(ApiError):
    """
    The stream does not allow message schedules (``allow_msg_schedules``).
    """

    usual = (400, 10188, "message schedules is disabled")


class SchedulePatternInvalidError(ApiError):
    """
    The schedule can not be read, or repeats faster than once a second.
    """

    usual = (400, 10189, "message schedules pattern is invalid")


class ScheduleTargetInvalidError(ApiError):
    """
    The target of a schedule is missing, outside the stream, or the schedule's own subject.
    """

    usual = (400, 10190, "message schedules target is invalid")


class ScheduleTtlInvalidError(ApiError):
    """
    The time-to-live of scheduled messages is invalid.
    """

    usual = (400, 10191, "message schedules invalid per-message TTL")


class ScheduleRollupInvalidError(ApiError):
    """
    A schedule may replace the messages of its target's subject, ``sub``, and nothing else.
    """

    usual = (400, 10192, "message schedules invalid rollup")


class ScheduleSourceInvalidError(ApiError):
    """
    The source of a schedule is outside the stream, or the schedule's or target's own subject.
    """

    usual = (400, 10203, "message schedules source is invalid")


class ScheduleTimeZoneInvalidError(ApiError):
    """
    The server does not know the schedule's time zone.
    """

    usual = (400, 10223, "message schedules time zone is invalid")


class AtomicPublishDisabledError(ApiError):
    """
    The stream does not take atomic batches (``allow_atomic``).
    """

    usual = (400, 10174, "atomic publish is disabled")


class BatchSequenceMissingError(ApiError):
    """
    A message of a batch carries no usable batch sequence.
    """

    usual = (400, 10175, "atomic publish sequence is missing")


class BatchIncompleteError(ApiError):
    """
    The server does not have the whole batch: a gap, an idle time-out, a restart, or a batch that
        has already ended.
    """

    usual = (400, 10176, "atomic publish batch is incomplete")

    def __init__(
        self,
        *,
        code: int | None = None,
        err_code: int | None = None,
        description: str | None = None,
        stream: str | None = None,
        reason: str | None = None,
    ) -> None:
        super().__init__(code=code, err_code=err_code, description=description, stream=stream)
        #: What the client knows about the cause, for instance that the batch lay idle too long.
        self.reason = reason
        if reason is not None:
            self.args = (f"{self}: {reason}",)


class BatchUnsupportedHeaderError(ApiError):
    """
    A message of a batch carries a header that batches can not have.
    """

    usual = (400, 10177, "atomic publish unsupported header used")


class BatchIdInvalidError(ApiError):
    """
    The batch id is longer than 64 bytes.
    """

    usual = (400, 10179, "atomic publish batch ID is invalid")


class BatchTooLargeError(ApiError):
    """
    The batch has more messages than the server takes; ``limit`` is the server's number.
    """

    usual = (400, 10199, "atomic publish batch is too large")

    def __init__(
        self,
        *,
        code: int | None = None,
        err_code: int | None = None,
        description: str | None = None,
        stream: str | None = None,
    ) -> None:
        super().__init__(code=code, err_code=err_code, description=description, stream=stream)
        self.limit = trailing_number(self.description)


class BatchCommitInvalidError(ApiError):
    """
    The server does not know that way to commit a batch.
    """

    usual = (400, 10200, "atomic publish batch commit is invalid")


class DuplicateMessageIdError(ApiError):
    """
    A message id of the batch was already stored, or is twice in the batch; nothing of the batch was
    stored.
    """

    usual = (400, 10201, "atomic publish batch contains duplicate message id")


class TooManyInflightError(ApiError):
    """
    Too many batches are open on the stream or server.
    """

    usual = (429, 10210, "atomic publish too many inflight")


class FastTooManyInflightError(TooManyInflightError):
    """
    Too many fast-ingest batches are open on the stream.
    """

    usual = (429, 10211, "batch publish too many inflight")


class FastPublishDisabledError(ApiError):
    """
    The stream does not take fast ingest (``allow_batched``).
    """

    usual = (400, 10205, "batch publish is disabled")


class FastPatternInvalidError(ApiError):
    """
    The server could not read the reply subject of a fast-ingest message.
    """

    usual = (400, 10206, "batch publish pattern is invalid")


class FastBatchIdInvalidError(ApiError):
    """
    The id of a fast-ingest batch is longer than 64 bytes.
    """

    usual = (400, 10207, "batch publish ID is invalid")


class FastBatchUnknownError(ApiError):
    """
    The fast-ingest batch has ended, timed out, or never began.
    """

    usual = (400, 10208, "batch publish ID unknown")


def _all_subclasses(cls: type[ApiError]) -> list[type[ApiError]]:
    found: list[type[ApiError]] = []
    for child in cls.__subclasses__():
        found += [child, *_all_subclasses(child)]
    return found


#: Which class stands for which ``err_code``. Codes that share a class with another are named; the
#: rest is ``usual``.
ERROR_CLASSES: Mapping[int, type[ApiError]] = {
    **{cls.usual[1]: cls for cls in _all_subclasses(ApiError)},
    10002: InsufficientResourcesError,
    10028: InsufficientResourcesError,
    10047: InsufficientResourcesError,
    10076: JetStreamNotEnabledError,
    10164: WrongLastSequenceError,
}


class BucketNotFoundError(StreamNotFoundError):
    """
    There is no bucket of that name, or not the one that was watched, as ``reason`` says then.
    """

    def __init__(self, bucket: str, *, reason: str | None = None) -> None:
        why = "" if reason is None else f": {reason}"
        super().__init__(description=f"bucket {bucket!r} not found{why}", stream=f"KV_{bucket}")
        self.args = (self.description,)
        self.bucket = bucket
        self.reason = reason


class WrongLastRevisionError(WrongLastSequenceError):
    """
    A key is not at the revision that a change expects; nothing was changed.

    ``last_sequence`` is the revision that it is at, 0 where there is none and None where that is
    not known. Of a transaction, ``key`` is None if it could not be found out which one it was.
    """

    def __init__(
        self,
        bucket: str,
        key: str | None = None,
        *,
        expected: int | None = None,
        last_sequence: int | None = None,
    ) -> None:
        what = "a key" if key is None else f"key {key!r}"
        text = f"{what} of bucket {bucket!r} is not at the revision expected"
        if expected is not None:
            text = f"{what} of bucket {bucket!r} is not at revision {expected}"
        if last_sequence is not None:
            text += f": it is at {last_sequence}" if last_sequence else ": it does not exist"
        super().__init__(description=text, stream=f"KV_{bucket}")
        # The server's text is about sequences, and its code the same for all of them.
        self.args = (text,)
        self.bucket = bucket
        self.key = key
        self.expected = expected
        self.last_sequence = last_sequence


class KeyExistsError(WrongLastRevisionError):
    """
    The key that was to be created has a value already; nothing was changed.
    """

    def __init__(self, bucket: str, key: str, *, last_sequence: int | None = None) -> None:
        super().__init__(bucket, key, expected=0, last_sequence=last_sequence)
        at = "" if last_sequence is None else f" at revision {last_sequence}"
        self.description = f"key {key!r} of bucket {bucket!r} has a value already{at}"
        self.args = (self.description,)


class KeyNotFoundError(JetSyncError, KeyError):
    """
    The bucket has no value under that key, or not at that revision: there never was one, or it was
    deleted, or it expired.
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
        text = f"no key {key!r}{at} in bucket {bucket!r}"
        if deleted_at is not None:
            text += f": {reason or 'deleted'} at revision {deleted_at}"
        super().__init__(text)
        self.bucket = bucket
        self.key = key
        self.revision = revision
        #: The revision of the marker that says so, where there is one.
        self.deleted_at = deleted_at
        #: ``"deleted"``, ``"purged"`` or ``"expired"``, where there is such a marker.
        self.reason = reason


class KeysVanishedError(JetSyncError):
    """
    Values of the moment that was asked for are not in the bucket any more, as newer ones have taken
    their place.
    """

    def __init__(self, bucket: str, keys: Sequence[str], *, revision: int | None = None) -> None:
        names = ", ".join(map(repr, keys[:5])) + (", ..." if len(keys) > 5 else "")
        at = "the moment asked for" if revision is None else f"revision {revision}"
        super().__init__(
            f"{len(keys)} keys of bucket {bucket!r} had values at {at} that are gone: {names}"
        )
        self.bucket = bucket
        self.keys = tuple(keys)
        self.revision = revision


def from_api_error(error: Mapping[str, Any], stream: str | None = None) -> ApiError:
    """
    Make the error that a server's ``error`` object stands for; do not raise it.

    Args:
        error: The object under ``error`` in an API answer or a publish acknowledgement. Missing
            fields are tolerated.
        stream: The stream the answer is about, where known.

    Raises:
        ProtocolError: *error* is not an object.
    """
    if not isinstance(error, Mapping):
        raise ProtocolError(f"the error of an answer is no JSON object: {reprlib.repr(error)}")
    code = _as_int(error.get("code"), 500)
    err_code = _as_int(error.get("err_code"), 0)
    said = error.get("description")
    description = said if isinstance(said, str) and said else None
    cls = ERROR_CLASSES.get(err_code, ApiError)
    return cls(code=code, err_code=err_code, description=description, stream=stream)


def _as_int(value: object, default: int) -> int:
    return value if type(value) is int and 0 <= value < 1 << 31 else default


class PublishError(JetSyncError):
    """
    A publish did not end with an acknowledgement.
    """

    def __init__(self, message: str = "publish failed", *, subject: str | None = None) -> None:
        super().__init__(message)
        self.subject = subject


class NoStreamResponseError(PublishError):
    """
    No stream takes the subject, or its stream has no leader at the moment; the message was not
    stored.
    """

    def __init__(self, subject: str, *, attempts: int = 1) -> None:
        tries = "1 attempt" if attempts == 1 else f"{attempts} attempts"
        super().__init__(f"no response from a stream on {subject!r} after {tries}", subject=subject)
        self.attempts = attempts


class PublishOutcomeUnknownError(PublishError, TimeoutError):
    """
    The message was sent and no acknowledgement came: whether it was stored is unknown.
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
            why += f" within {timeout:g} s"
        advice = "repeat it without a msg_id and it may be stored twice"
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
    Messages of a fast-ingest batch were lost on the way and the batch was to fail on gaps.
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
    The server does not know batches and stored messages of one singly: what is named here is in the
    stream.
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
