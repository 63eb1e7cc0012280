"""
Every error that jetsync raises, as one tree.

Nothing of the libraries below reaches a user except as ``__cause__``. An error takes its data as
named arguments, keeps them as attributes and composes its own text; it can be pickled and copied,
and never contains a secret::

    JetSyncError
    ├── InvalidArgumentError (ValueError)     local misuse: nothing was sent
    │   ├── InvalidSubjectError
    │   ├── InvalidNameError
    │   │   ├── InvalidBucketError
    │   │   └── InvalidKeyError
    │   ├── InvalidHeaderError
    │   │   └── BatchRuleError                a header that an atomic batch can not have
    │   ├── InvalidTtlError
    │   ├── MaxControlLineError
    │   └── MaxPayloadError
    ├── InvalidTypeError (TypeError)
    ├── ConfigurationError                    environment, context file, optional dependency
    ├── TransportError                        the connection, not JetStream
    │   ├── ConnectError (ConnectionError)
    │   │   ├── ConnectTimeoutError (TimeoutError)
    │   │   └── AuthenticationError
    │   ├── ConnectionClosedError (ConnectionError)
    │   ├── DisconnectedError (ConnectionError, TimeoutError)
    │   ├── ConnectionLostError (ConnectionError)
    │   ├── NoRespondersError
    │   ├── PermissionDeniedError (PermissionError)
    │   ├── SubscriptionLimitError
    │   ├── SlowConsumerError
    │   └── ForkedProcessError (RuntimeError)
    ├── CallInSignalHandlerError (RuntimeError)   a handler interrupted a call of its own thread
    ├── RequestTimeoutError (TimeoutError)    no answer to a request that stores nothing
    ├── WaitTimeoutError (TimeoutError)       a local wait ended, the handle is sound
    ├── ProtocolError                         an answer that cannot be understood
    ├── PublishError
    │   ├── NoStreamResponseError             not stored
    │   ├── PublishOutcomeUnknownError (TimeoutError)
    │   │   └── BatchOutcomeUnknownError      carries the batch; in publish.errors
    │   ├── PublishManyError                  carries the report; in publish.errors
    │   ├── BatchGapError                     fast ingest lost messages
    │   └── AtomicityError                    a batch was stored message by message
    ├── ApiError                              a server's answer, by err_code: ERROR_CLASSES
    ├── StatusError                           a status line that ends a pull or a direct get
    │   ├── ConsumerDeletedError, NotPullConsumerError, ConsumerUnavailableError
    │   ├── MaxRequestBatchError, MaxRequestMaxBytesError, MaxRequestExpiresError
    │   ├── MaxWaitingError, MessageSizeExceedsMaxBytesError
    │   ├── LeadershipChangeError, ServerShutdownError
    │   ├── BadPullRequestError
    │   │   └── InvalidGroupError
    │   ├── PinIdMismatchError, RequiredApiLevelError, NoHeartbeatError
    │   ├── BadDirectRequestError, TooManySubjectsError
    │   └── UnknownStatusError
    ├── NotSupportedError                     the server is too old, or the stream forbids it
    │   └── DirectNotSupportedError
    │       └── IncompleteMirrorError
    ├── NotJetStreamMessageError
    ├── MessageAlreadyAckedError
    ├── AcksNotWantedError
    ├── HandleClosedError                     a handle that has ended
    │   ├── ConsumptionClosedError
    │   └── BatchClosedError
    ├── ConflictingUseError (RuntimeError)
    ├── ResetAttemptsExceededError            an ordered consumer that gave up
    ├── KeyNotFoundError (KeyError)
    ├── KeysVanishedError                     a read of many keys at a moment that is gone
    ├── PluginError                           may carry a report; in _hooks.errors
    └── DevServerError
"""

from __future__ import annotations

import re
import reprlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from collections.abc import Sequence

_SCHEME = re.compile(r"\s*[A-Za-z][A-Za-z0-9+.-]*://")
_NEXT_URL = re.compile(r",(?=\s*[A-Za-z][A-Za-z0-9+.-]*://)")
_QUERY = re.compile("[?#]")
_HOST = re.compile(r"(?:\[[0-9A-Fa-f:.%]+\]|[\w.-]*)(?::\d{0,5})?/?")
_HOST_AND_PATH = re.compile(rf"{_HOST.pattern}(?:(?<=/)[^:]*)?")
_LIKE_URL = re.compile(
    # A URL without the punctuation behind it, or a word with an "@".
    r"[A-Za-z][A-Za-z0-9+.-]*://\S*?(?=[)'\",;:.]*(?:\s|$))|(?:(?!://)\S)*@\S*"
)

__all__ = [
    "AcksNotWantedError",
    "ApiError",
    "ApiLevelRequiredError",
    "AtomicPublishDisabledError",
    "AtomicityError",
    "AuthenticationError",
    "BadDirectRequestError",
    "BadPullRequestError",
    "BadRequestError",
    "BatchClosedError",
    "BatchCommitInvalidError",
    "BatchGapError",
    "BatchIdInvalidError",
    "BatchIncompleteError",
    "BatchRuleError",
    "BatchSequenceMissingError",
    "BatchTooLargeError",
    "BatchUnsupportedHeaderError",
    "BucketNotFoundError",
    "CallInSignalHandlerError",
    "ConfigurationError",
    "ConflictingUseError",
    "ConnectError",
    "ConnectTimeoutError",
    "ConnectionClosedError",
    "ConnectionLostError",
    "ConsumerConfigInvalidError",
    "ConsumerDeletedError",
    "ConsumerDoesNotExistError",
    "ConsumerExistsError",
    "ConsumerNotFoundError",
    "ConsumerUnavailableError",
    "ConsumptionClosedError",
    "CounterDisabledError",
    "CounterIncrementInvalidError",
    "CounterIncrementMissingError",
    "CounterPayloadError",
    "DevServerError",
    "DirectNotSupportedError",
    "DisconnectedError",
    "DuplicateFilterSubjectsError",
    "DuplicateMessageIdError",
    "DuplicateMessageInProcessError",
    "EmptyFilterSubjectError",
    "FastBatchIdInvalidError",
    "FastBatchUnknownError",
    "FastPatternInvalidError",
    "FastPublishDisabledError",
    "FastTooManyInflightError",
    "FlowControlAckPolicyError",
    "ForkedProcessError",
    "HandleClosedError",
    "IncompleteMirrorError",
    "InsufficientResourcesError",
    "InvalidArgumentError",
    "InvalidBucketError",
    "InvalidGroupError",
    "InvalidHeaderError",
    "InvalidJsonError",
    "InvalidKeyError",
    "InvalidNameError",
    "InvalidResetError",
    "InvalidSubjectError",
    "InvalidTtlError",
    "InvalidTypeError",
    "JetStreamNotEnabledError",
    "JetSyncError",
    "KeyExistsError",
    "KeyNotFoundError",
    "KeysVanishedError",
    "LeadershipChangeError",
    "MaxConsumersError",
    "MaxControlLineError",
    "MaxMessagesError",
    "MaxPayloadError",
    "MaxRequestBatchError",
    "MaxRequestExpiresError",
    "MaxRequestMaxBytesError",
    "MaxStreamsError",
    "MaxWaitingError",
    "MessageAlreadyAckedError",
    "MessageNotFoundError",
    "MessageSizeExceedsMaxBytesError",
    "MessageTooLargeError",
    "MessageTtlDisabledError",
    "MessageTtlInvalidError",
    "MirrorAtomicError",
    "MirrorFastPublishError",
    "MissingExpectedSequenceError",
    "NoHeartbeatError",
    "NoRespondersError",
    "NoStreamResponseError",
    "NotJetStreamMessageError",
    "NotPullConsumerError",
    "NotSupportedError",
    "OverlappingFilterSubjectsError",
    "PermissionDeniedError",
    "PinIdMismatchError",
    "PriorityGroupNameError",
    "PriorityGroupNotFoundError",
    "PriorityGroupWithoutPolicyError",
    "PriorityPolicyWithoutGroupError",
    "ProtocolError",
    "PublishError",
    "PublishOutcomeUnknownError",
    "PushWithPriorityGroupError",
    "RequestTimeoutError",
    "RequiredApiLevelError",
    "ResetAttemptsExceededError",
    "RollupNotPermittedError",
    "SchedulePatternInvalidError",
    "ScheduleRollupInvalidError",
    "ScheduleSourceInvalidError",
    "ScheduleTargetInvalidError",
    "ScheduleTimeZoneInvalidError",
    "ScheduleTtlInvalidError",
    "SchedulesDisabledError",
    "ServerShutdownError",
    "SlowConsumerError",
    "StatusError",
    "StreamConfigInvalidError",
    "StreamNameInUseError",
    "StreamNotFoundError",
    "StreamSealedError",
    "SubjectCheckUnavailableError",
    "SubjectOverlapError",
    "SubscriptionLimitError",
    "TemporarilyUnavailableError",
    "TooManyInflightError",
    "TooManyRequestsError",
    "TooManySubjectsError",
    "TransportError",
    "UnknownStatusError",
    "WaitTimeoutError",
    "WrongLastMessageIdError",
    "WrongLastRevisionError",
    "WrongLastSequenceError",
    "WrongStreamError",
]


def redact_url(url: str) -> str:
    """
    Return the URL, or comma-separated URLs, without secrets, so that it may be shown or logged.

    User name, password and token become ``***``, and so do query and fragment. Only what is
    certainly a host, a port or the path of a WebSocket URL is kept. Of a URL that cannot be
    divided safely only the scheme is kept.
    """
    return ",".join(_redact_one(one) for one in _NEXT_URL.split(url))


def _redact_one(url: str) -> str:
    found = _SCHEME.match(url)
    scheme = "" if found is None else found[0]
    login, at, rest = url[len(scheme) :].rpartition("@")
    found = _QUERY.search(rest)
    hosts, mark = (rest, "") if found is None else (rest[: found.start()], found[0])
    # Other schemes have no path, so a "/" is part of a token.
    shape = _HOST_AND_PATH if scheme.strip().lower() in {"ws://", "wss://"} else _HOST
    # With a "?" before the "@", the "@" may be part of the query, and what follows it of a secret.
    if _QUERY.search(login) or not all(shape.fullmatch(host.strip()) for host in hosts.split(",")):
        return f"{scheme}***"
    shown = f"{scheme}***@{hosts}" if at else f"{scheme}{hosts}"
    return f"{shown}{mark}***" if mark else shown


def redact_text(text: str) -> str:
    """
    Return a text in which :func:`redact_url` was applied to each word that may be a URL.
    """
    return _LIKE_URL.sub(lambda found: redact_url(found[0]), text)


def _rebuild(cls: type[JetSyncError], args: tuple[Any, ...], state: dict[str, Any]) -> JetSyncError:
    """
    Make an error anew from its pickled state.

    The constructor is passed by on purpose: it takes data and composes the text, which both are in
    the state already.
    """
    error = cls.__new__(cls)
    error.args = args
    error.__dict__.update(state)
    return error


class JetSyncError(Exception):
    """
    The root of every error that jetsync raises.
    """

    def __init__(self, message: str = "") -> None:
        super().__init__(message)

    def __str__(self) -> str:
        # KeyError would show the repr of the text and OSError looks at errno first. One rule for
        # the whole tree.
        return str(self.args[0]) if self.args else ""

    def __reduce__(self) -> tuple[Any, ...]:
        # BaseException rebuilds with cls(*args) and OSError drops what it does not know. Neither
        # fits keyword data.
        return _rebuild, (type(self), self.args, dict(self.__dict__))


# ------------------------------------------------------------------------------------------------
# Local misuse


class InvalidArgumentError(JetSyncError, ValueError):
    """
    An argument has a value that can not work; nothing was sent.
    """

    def __init__(self, message: str = "invalid argument", *, argument: str | None = None) -> None:
        super().__init__(message)
        self.argument = argument


class InvalidSubjectError(InvalidArgumentError):
    """
    A subject or a subject filter that no server would take.
    """

    def __init__(self, subject: str, reason: str = "not a valid subject") -> None:
        super().__init__(f"invalid subject {subject!r}: {reason}", argument="subject")
        self.subject = subject
        self.reason = reason


class InvalidNameError(InvalidArgumentError):
    """
    A name of a stream, consumer, domain, bucket or key that contains what names may not contain.
    """

    def __init__(self, kind: str, name: str, reason: str = "not a valid name") -> None:
        super().__init__(f"invalid {kind} name {name!r}: {reason}", argument=kind)
        self.kind = kind
        self.name = name
        self.reason = reason


class InvalidBucketError(InvalidNameError):
    """
    A name that no key-value bucket can have, or the name of a stream that is no bucket.
    """

    def __init__(self, name: str, reason: str = "use letters, digits, '-' and '_'") -> None:
        super().__init__("bucket", name, reason)


class InvalidKeyError(InvalidNameError):
    """
    A key, or a pattern of keys, that no key-value bucket can have.
    """

    def __init__(self, name: str, reason: str = "not a valid key") -> None:
        super().__init__("key", name, reason)


class InvalidHeaderError(InvalidArgumentError):
    """
    A header name or value that would break the header block, such as one with a line end in it.
    """

    def __init__(self, name: str, reason: str = "not a valid header") -> None:
        # The value is left out: headers carry tokens often enough.
        super().__init__(f"invalid header {name!r}: {reason}", argument="headers")
        self.name = name
        self.reason = reason


class BatchRuleError(InvalidHeaderError):
    """
    A header that a message of an atomic batch can not have, or not at this place; the batch is as
    it was before.
    """

    def __init__(self, name: str, reason: str = "not in an atomic batch") -> None:
        super().__init__(name, reason)


class InvalidTtlError(InvalidArgumentError):
    """
    A message time-to-live that is neither whole seconds from 1 up nor ``"never"``.
    """

    def __init__(
        self, value: object, reason: str = 'give seconds >= 1, a timedelta or "never"'
    ) -> None:
        # Only the text is kept: the value may be anything at all, an object that can not be pickled
        # included.
        super().__init__(f"invalid ttl {value!r}: {reason}", argument="ttl")
        self.value = repr(value)
        self.reason = reason


class MaxPayloadError(InvalidArgumentError):
    """
    Headers and payload together are larger than the server takes; the connection is not touched.
    """

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(
            f"headers and payload take {size} bytes, the server's max_payload is {limit}",
            argument="data",
        )
        self.size = size
        self.limit = limit


class MaxControlLineError(InvalidArgumentError):
    """
    Subject, reply subject and queue together are longer than a server takes; nothing was sent.

    ``size`` and ``limit`` are bytes of the protocol line.
    """

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(
            f"the subject is too long: with the reply subject or queue, the line has {size} bytes,"
            f" and servers take {limit}",
            argument="subject",
        )
        self.size = size
        self.limit = limit


class InvalidTypeError(JetSyncError, TypeError):
    """
    An argument is of a type that has no meaning here; nothing was sent.
    """

    def __init__(self, message: str = "invalid type", *, argument: str | None = None) -> None:
        super().__init__(message)
        self.argument = argument


class ConfigurationError(JetSyncError):
    """
    The environment, a saved context or an optional dependency is not what the options ask for.
    """


# ------------------------------------------------------------------------------------------------
# The connection


class TransportError(JetSyncError):
    """
    Something is wrong with the connection or with core NATS; JetStream was not reached.
    """


class ConnectError(TransportError, ConnectionError):
    """
    No connection could be made.
    """

    def __init__(self, reason: str = "can not connect", *, server: str | None = None) -> None:
        self.server = None if server is None else redact_url(server)
        super().__init__(reason if self.server is None else f"{reason} ({self.server})")
        self.reason = reason


class ConnectTimeoutError(ConnectError, TimeoutError):
    """
    No connection could be made within ``connect_timeout``, which is a total over all servers and
    tries.
    """

    def __init__(
        self, timeout: float, *, server: str | None = None, reason: str | None = None
    ) -> None:
        text = f"no connection within {timeout:g} s"
        super().__init__(text if reason is None else f"{text}: {reason}", server=server)
        self.timeout = timeout


class AuthenticationError(ConnectError):
    """
    The server refused the login or let it expire, or jetsync could not make the login.
    """


class ConnectionClosedError(TransportError, ConnectionError):
    """
    The client was closed, before or during this call.
    """

    def __init__(self, message: str = "the client is closed") -> None:
        super().__init__(message)


class DisconnectedError(TransportError, ConnectionError, TimeoutError):
    """
    There was no connection until the deadline passed; nothing of this call was sent.
    """

    def __init__(
        self,
        *,
        timeout: float | None = None,
        subject: str | None = None,
        reason: str | None = None,
        last_attempt: str | None = None,
    ) -> None:
        text = "disconnected: " + (reason or "no connection to a server")
        if timeout is not None:
            text += f" within {timeout:g} s"
        if subject is not None:
            text += f" (subject {subject!r})"
        if last_attempt is not None:
            text += f"; the last attempt to connect failed: {last_attempt}"
        super().__init__(f"{text}; nothing was sent")
        self.timeout = timeout
        self.subject = subject
        self.reason = reason
        self.last_attempt = last_attempt


class ConnectionLostError(TransportError, ConnectionError):
    """
    The connection was lost while this call waited for its answer; the call stores nothing and may
    be repeated.
    """

    def __init__(self, *, subject: str | None = None, reason: str | None = None) -> None:
        text = "the connection was lost while waiting for the answer"
        if subject is not None:
            text += f" to a request on {subject!r}"
        super().__init__(text if reason is None else f"{text}: {reason}")
        self.subject = subject
        self.reason = reason


class NoRespondersError(TransportError):
    """
    Nobody listens on the subject of a request.
    """

    def __init__(self, subject: str) -> None:
        super().__init__(f"no responders on {subject!r}")
        self.subject = subject


class PermissionDeniedError(TransportError, PermissionError):
    """
    The server does not let this user publish or subscribe to the subject.
    """

    def __init__(self, subject: str, operation: str) -> None:
        super().__init__(f"permission denied: may not {operation} to {subject!r}")
        self.subject = subject
        self.operation = operation


class SlowConsumerError(TransportError):
    """
    A subscription dropped messages because its buffer was full; it stays open.

    ``dropped`` is how many messages it dropped since the last such error.
    """

    def __init__(self, subject: str, dropped: int) -> None:
        super().__init__(
            f"slow consumer: the subscription to {subject!r} dropped {dropped} messages;"
            " take messages faster, or raise max_pending and max_pending_bytes"
        )
        self.subject = subject
        self.dropped = dropped


class ForkedProcessError(TransportError, RuntimeError):
    """
    A client is used in a process forked from the one that made it; connect again in the child.
    """

    def __init__(
        self, message: str = "this client belongs to the parent process: connect again in the child"
    ) -> None:
        super().__init__(message)


class CallInSignalHandlerError(JetSyncError, RuntimeError):
    """
    A signal handler made a call that needs a lock of the call it interrupted.

    The handler interrupted another jetsync call of the same thread, and that call holds something
    which the new call needs. Nothing was sent. Set a flag in the handler and act on it after the
    handler has returned, or make the call in another thread.
    """

    def __init__(
        self,
        message: str = (
            "this signal handler interrupted another jetsync call of the same thread; "
            "set a flag in the handler and make the call after it has returned"
        ),
    ) -> None:
        super().__init__(message)


class SubscriptionLimitError(TransportError):
    """
    The server refused a subscription because the connection or the account has too many.
    """

    def __init__(self, subject: str, reason: str = "maximum subscriptions exceeded") -> None:
        super().__init__(f"the server refused the subscription to {subject!r}: {reason}")
        self.subject = subject
        self.reason = reason


class RequestTimeoutError(JetSyncError, TimeoutError):
    """
    No answer came within the deadline to a request that stores nothing.
    """

    def __init__(self, subject: str, timeout: float, *, what: str | None = None) -> None:
        super().__init__(f"{what or f'no answer on {subject!r}'} within {timeout:g} s")
        self.subject = subject
        self.timeout = timeout


class WaitTimeoutError(JetSyncError, TimeoutError):
    """
    A wait inside this process ended at its timeout; what was waited for goes on and may be waited
    for again.
    """

    def __init__(self, what: str, timeout: float) -> None:
        super().__init__(f"{what} was not there within {timeout:g} s")
        self.what = what
        self.timeout = timeout


class ProtocolError(JetSyncError):
    """
    A server or a header block said something that can not be understood.
    """


# ------------------------------------------------------------------------------------------------
# Publishing


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


# ------------------------------------------------------------------------------------------------
# Answers of the JetStream API and of publishes


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
        self.last_sequence = _trailing_number(self.description)


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
        self.limit = _trailing_number(self.description)


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


def _trailing_number(text: str) -> int | None:
    found = re.search(r"(?<![0-9])([0-9]{1,20})\s*$", text)
    return int(found[1]) if found else None


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


# Key-value. These name the bucket or the key where the server names a stream or a subject; they
# have no codes of their own, and stand behind the table for that.


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


# ------------------------------------------------------------------------------------------------
# Status lines of pulls and direct gets


class StatusError(JetSyncError):
    """
    A status line that ends a pull or a direct get with a fault.
    """

    #: Code and text where the client finds the fault by itself. Code 0 never comes from a server.
    usual: ClassVar[tuple[int, str]] = (0, "fault")

    def __init__(
        self,
        *,
        code: int | None = None,
        description: str | None = None,
        consumer: str | None = None,
        stream: str | None = None,
    ) -> None:
        self.code = self.usual[0] if code is None else code
        self.description = self.usual[1] if description is None else description
        self.consumer = consumer
        self.stream = stream
        text = f"{self.code} {self.description}".strip() if self.code else self.description
        where = [f"stream {stream!r}"] if stream is not None else []
        where += [f"consumer {consumer!r}"] if consumer is not None else []
        super().__init__(f"{text} ({', '.join(where)})" if where else text)


class ConsumerDeletedError(StatusError):
    """
    The consumer, or its stream, was deleted while a pull waited.
    """

    usual = (409, "Consumer Deleted")


class NotPullConsumerError(StatusError):
    """
    The consumer is a push consumer and can not be pulled from.
    """

    usual = (409, "Consumer is push based")


class ConsumerUnavailableError(StatusError):
    """
    Nobody answers for the consumer: it is gone, or it has no leader at the moment.
    """

    usual = (503, "No Responders")


class _LimitStatusError(StatusError):
    """
    A status whose text ends with the limit that was exceeded.
    """

    def __init__(
        self,
        *,
        code: int | None = None,
        description: str | None = None,
        consumer: str | None = None,
        stream: str | None = None,
    ) -> None:
        super().__init__(code=code, description=description, consumer=consumer, stream=stream)
        self.limit = _trailing_number(self.description)


class MaxRequestBatchError(_LimitStatusError):
    """
    The pull asked for more messages than the consumer's ``max_batch``; ``limit`` is that number.
    """

    usual = (409, "Exceeded MaxRequestBatch")


class MaxRequestMaxBytesError(_LimitStatusError):
    """
    The pull asked for more bytes than the consumer's ``max_bytes``; ``limit`` is that number.
    """

    usual = (409, "Exceeded MaxRequestMaxBytes")


class MaxRequestExpiresError(StatusError):
    """
    The pull would live longer than the consumer's ``max_expires``; ``limit`` is the server's text,
    such as ``"2s"``.
    """

    usual = (409, "Exceeded MaxRequestExpires")

    def __init__(
        self,
        *,
        code: int | None = None,
        description: str | None = None,
        consumer: str | None = None,
        stream: str | None = None,
    ) -> None:
        super().__init__(code=code, description=description, consumer=consumer, stream=stream)
        found = re.search(r" of (\S+)\s*$", self.description)
        self.limit: str | None = found[1] if found else None


class MaxWaitingError(StatusError):
    """
    The consumer has as many waiting pulls as it takes.
    """

    usual = (409, "Exceeded MaxWaiting")


class MessageSizeExceedsMaxBytesError(StatusError):
    """
    The next message alone is larger than the pull's byte limit; repeating the pull would not end.
    """

    usual = (409, "Message Size Exceeds MaxBytes")


class LeadershipChangeError(StatusError):
    """
    The consumer moved to another server; pull again.
    """

    usual = (409, "Leadership Change")


class ServerShutdownError(StatusError):
    """
    The server of the consumer is shutting down; pull again.
    """

    usual = (409, "Server Shutdown")


class BadPullRequestError(StatusError):
    """
    The server could not use the pull request.
    """

    usual = (400, "Bad Request")


class InvalidGroupError(BadPullRequestError):
    """
    The priority group of a pull is missing, unknown, or does not fit the consumer's policy.
    """

    usual = (400, "Bad Request - Invalid Priority Group")


class PinIdMismatchError(StatusError):
    """
    Another client is pinned to the priority group.
    """

    usual = (423, "Nats-Wrong-Pin-Id")


class RequiredApiLevelError(StatusError):
    """
    The request demanded an API level that the server does not have.
    """

    usual = (412, "Required Api Level")


class NoHeartbeatError(StatusError):
    """
    Neither messages nor heartbeats came for two heartbeat times: the pull, the server or the way to
        it is dead.
    """

    usual = (0, "no heartbeat received")


class BadDirectRequestError(StatusError):
    """
    The server could not use a direct get request.
    """

    usual = (408, "Bad Request")


class TooManySubjectsError(StatusError):
    """
    More subjects match than one direct get may resolve; only narrower filters help.
    """

    usual = (413, "Too Many Results")


class UnknownStatusError(StatusError):
    """
    A status line that jetsync does not know.
    """

    usual = (0, "unknown status")


# ------------------------------------------------------------------------------------------------
# Handles, messages, plugins


class NotSupportedError(JetSyncError):
    """
    The server, or the stream on it, can not do what was asked.
    """

    def __init__(self, feature: str, *, needs: str, server: str | None = None) -> None:
        text = f"{feature} is not supported: needs {needs}"
        super().__init__(text if server is None else f"{text}, the server is {server}")
        self.feature = feature
        self.needs = needs
        self.server = server


class DirectNotSupportedError(NotSupportedError):
    """
    The stream does not allow direct gets, or nobody answers them.
    """

    def __init__(self, stream: str, *, needs: str = "allow_direct on the stream") -> None:
        super().__init__(f"direct get from stream {stream!r}", needs=needs)
        self.stream = stream


class IncompleteMirrorError(DirectNotSupportedError):
    """
    A mirror that has less than its stream, or may have, answers the direct gets of that stream, so
    that they would leave messages out; ``mirror`` is ``None`` where answers do not tell their name.

    Servers have every mirror answer. A consumer reads the stream itself; and a mirror with a filter
    of its own can be read by its own name.
    """

    def __init__(self, stream: str, mirror: str | None = None) -> None:
        who = "a mirror or replica" if mirror is None else f"mirror {mirror!r}"
        super().__init__(
            stream,
            needs=f"answers of the stream itself, but {who} answers, which has less: "
            "read it with a consumer",
        )
        self.mirror = mirror


class NotJetStreamMessageError(JetSyncError):
    """
    The message did not come from a JetStream consumer, so there is nothing to acknowledge and no
    metadata.
    """

    def __init__(self, subject: str, reply: str = "") -> None:
        super().__init__(
            f"message on {subject!r} is not from a JetStream consumer (reply {reply!r})"
        )
        self.subject = subject
        self.reply = reply


class MessageAlreadyAckedError(JetSyncError):
    """
    The message was already acknowledged, refused or terminated.
    """

    def __init__(self, subject: str, reply: str = "") -> None:
        super().__init__(f"message on {subject!r} is already acknowledged (reply {reply!r})")
        self.subject = subject
        self.reply = reply


class AcksNotWantedError(JetSyncError):
    """
    The consumer takes no acknowledgements; to servers its messages are done once they were sent.
    """

    def __init__(self, consumer: str, *, stream: str) -> None:
        super().__init__(
            f"consumer {consumer!r} of stream {stream!r} takes no acknowledgements (its ack_policy "
            "is 'none')"
        )
        self.consumer = consumer
        self.stream = stream


class HandleClosedError(JetSyncError):
    """
    The handle has ended and takes no more calls.
    """

    def __init__(self, what: str = "handle", *, reason: str | None = None) -> None:
        super().__init__(
            f"the {what} is closed" if reason is None else f"the {what} is closed: {reason}"
        )
        self.what = what
        self.reason = reason


class ConsumptionClosedError(HandleClosedError):
    """
    The consumption was stopped or drained and yields no more messages.
    """

    def __init__(self, what: str = "consumption", *, reason: str | None = None) -> None:
        super().__init__(what, reason=reason)


class BatchClosedError(HandleClosedError):
    """
    The batch was committed, discarded or refused and takes no more messages.
    """

    def __init__(self, what: str = "batch", *, reason: str | None = None) -> None:
        super().__init__(what, reason=reason)


class ConflictingUseError(JetSyncError, RuntimeError):
    """
    The handle is in use by another call in a way that shuts this one out.
    """


class ResetAttemptsExceededError(JetSyncError):
    """
    An ordered consumer could not be made again as often as it was allowed to try.
    """

    def __init__(self, stream: str, attempts: int) -> None:
        super().__init__(f"ordered consumer on stream {stream!r} gave up after {attempts} attempts")
        self.stream = stream
        self.attempts = attempts


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


class DevServerError(JetSyncError):
    """
    A local nats-server could not be found, started or stopped.
    """
