"""
Arguments that are rejected before anything is sent, calls that an object's state forbids, and data
that your code cannot read.
"""

from __future__ import annotations

import typing as _t

from jetsync.errors.base import JetSyncError
from jetsync.errors.texts import shown_seconds as _shown_seconds


class InvalidArgumentError(JetSyncError, ValueError):
    """
    An argument has an invalid value. Nothing was sent.

    ``argument`` is the name of the argument, if one argument is to blame.
    """

    def __init__(self, message: str, *, argument: str | None = None) -> None:
        super().__init__(message)
        self.argument = argument


class InvalidSubjectError(InvalidArgumentError):
    """
    The subject or subject filter is invalid for every server.
    """

    def __init__(self, subject: str, reason: str) -> None:
        super().__init__(f"invalid subject {subject!r}: {reason}", argument="subject")
        self.subject = subject
        self.reason = reason


class InvalidNameError(InvalidArgumentError):
    """
    The name of a stream, consumer, domain, queue group, bucket or key is not valid.

    ``kind`` is the kind of object, such as ``"stream"``.
    """

    def __init__(self, kind: str, name: str, reason: str) -> None:
        super().__init__(f"invalid {kind} name {name!r}: {reason}", argument=kind)
        self.kind = kind
        self.name = name
        self.reason = reason


class InvalidBucketError(InvalidNameError):
    """
    The name is not valid for a key-value bucket, or belongs to a stream that is not a bucket.
    """

    def __init__(self, name: str, reason: str = "use letters, digits, '-' and '_'") -> None:
        super().__init__("bucket", name, reason)


class InvalidKeyError(InvalidNameError):
    """
    The key or key pattern is not valid in a key-value bucket.
    """

    def __init__(self, name: str, reason: str) -> None:
        super().__init__("key", name, reason)


class InvalidHeaderError(InvalidArgumentError):
    """
    A header name or value would corrupt the headers, for example because it contains a line end.
    """

    def __init__(self, name: str, reason: str) -> None:
        # The message leaves out the value, because headers often carry tokens.
        super().__init__(f"invalid header {name!r}: {reason}", argument="headers")
        self.name = name
        self.reason = reason


class BatchRuleError(InvalidHeaderError):
    """
    An atomic batch does not allow this header, or not on this message. The batch is unchanged.
    """


class InvalidTtlError(InvalidArgumentError):
    """
    A time-to-live is invalid, or the bucket keeps more than one revision per key.

    A valid time-to-live is ``"never"`` or a duration that is neither shorter than 1 second nor too
    long for servers. A bucket with ``history`` above 1 does not allow a time-to-live when a key is
    replaced. ``reason`` says what is wrong.
    """

    def __init__(
        self, value: object, reason: str = 'give seconds >= 1, a timedelta or "never"'
    ) -> None:
        super().__init__(f"invalid ttl {value!r}: {reason}", argument="ttl")
        # Only the repr is kept, because the value may be an object that cannot be pickled.
        self.value: str = repr(value)
        self.reason = reason


class MaxPayloadError(InvalidArgumentError):
    """
    Headers and payload exceed the server's ``max_payload``. Nothing of the message was stored.

    jetsync does not send such a message, unless the server has lowered its limit without notice.
    Then the server refuses it and ends the connection. ``size`` and ``limit`` are in bytes.
    """

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(
            f"headers and payload have {size} bytes, but the server's max_payload is {limit}",
            argument="data",
        )
        self.size = size
        self.limit = limit


class MaxControlLineError(InvalidArgumentError):
    """
    The subject makes the protocol line longer than servers accept. Nothing was sent.

    ``size`` and ``limit`` are in bytes. The line also contains the reply subject and the queue.
    """

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(
            f"the subject is too long: with the reply subject and queue, the protocol line has "
            f"{size} bytes, but servers accept {limit}",
            argument="subject",
        )
        self.size = size
        self.limit = limit


class InvalidTypeError(JetSyncError, TypeError):
    """
    An argument has the wrong type. Nothing was sent.

    ``argument`` is the name of the argument, if one argument is to blame.
    """

    def __init__(self, message: str, *, argument: str | None = None) -> None:
        super().__init__(message)
        self.argument = argument


class ConfigurationError(JetSyncError):
    """
    An environment variable, file, plugin or optional package is missing or cannot be used.
    """


class CallInSignalHandlerError(JetSyncError, RuntimeError):
    """
    A signal handler interrupted a jetsync call and made another one that would wait.

    In a signal handler that interrupts a call of jetsync, a call that would wait raises this error
    immediately and sends nothing, and every other call works. Set a flag in the handler and make
    the call after the handler has returned.
    """

    _default_text = (
        "this signal handler interrupted another jetsync call of the same thread; "
        "set a flag in the handler and make the call after it has returned"
    )


class WaitTimeoutError(JetSyncError, TimeoutError):
    """
    A wait inside this process timed out. Operations that were already started continue.

    You can repeat the call, unless its description says otherwise. ``timeout`` is in seconds.
    """

    def __init__(self, what: str, timeout: float) -> None:
        super().__init__(f"timed out after {_shown_seconds(timeout)} waiting for {what}")
        self.what = what
        self.timeout = timeout


class NotSupportedError(JetSyncError):
    """
    The server is too old for the call or for an option, or the stream does not allow the call.
    """

    def __init__(self, feature: str, *, needs: str, server: str | None = None) -> None:
        text = f"{feature} is not supported: needs {needs}"
        super().__init__(text if server is None else f"{text}, the server is {server}")
        self.feature = feature
        self.needs = needs
        self.server = server


class DirectNotSupportedError(NotSupportedError):
    """
    The stream does not allow direct gets.
    """

    def __init__(self, stream: str, *, needs: str = "allow_direct=True on the stream") -> None:
        super().__init__(f"direct get from stream {stream!r}", needs=needs)
        self.stream = stream


class IncompleteMirrorError(DirectNotSupportedError):
    """
    A mirror that may lack messages answered a direct get of the stream.

    The server lets every mirror of a stream answer its direct gets. Read the stream with a consumer
    instead. To read a mirror that has a filter, use the mirror's name. ``mirror`` is the mirror's
    name, or None if the answers do not contain it.
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
    The message did not come from a JetStream consumer, so it has no metadata and takes no acks.
    """

    def __init__(self, subject: str, reply: str) -> None:
        super().__init__(
            f"message on {subject!r} is not from a JetStream consumer (reply {reply!r})"
        )
        self.subject = subject
        self.reply = reply


class MessageAlreadyAckedError(JetSyncError):
    """
    The message was already acknowledged, negatively acknowledged or terminated.
    """

    def __init__(self, subject: str, reply: str) -> None:
        super().__init__(f"message on {subject!r} is already acknowledged (reply {reply!r})")
        self.subject = subject
        self.reply = reply


class DecodeError(JetSyncError, ValueError):
    """
    The payload of a message, or the key or value of a key-value entry, cannot be decoded.

    ``what`` is ``"payload"``, ``"key"`` or ``"value"``, and ``reason`` says what is wrong, without
    quoting the data. ``stream`` and ``sequence`` are None if the message is not from a stream.
    ``bucket`` and ``key`` are those of an entry, whose revision is ``sequence``. If its key cannot
    be decoded, ``key`` is the stored key. ``subject`` is None if only the entry is known.
    """

    def __init__(
        self,
        what: str,
        reason: str,
        *,
        subject: str | None = None,
        stream: str | None = None,
        sequence: int | None = None,
        bucket: str | None = None,
        key: str | None = None,
    ) -> None:
        if bucket is not None:
            of = "" if what == "key" else "the value of "
            which = f"{of}key {key!r} in bucket {bucket!r}, revision {sequence}"
        elif stream is not None:
            which = f"the {what} of message {sequence} on {subject!r} in stream {stream!r}"
        else:
            which = f"the {what} of the message on {subject!r}"
        super().__init__(f"cannot decode {which}: {reason}")
        self.what = what
        self.reason = reason
        self.subject = subject
        self.stream = stream
        self.sequence = sequence
        self.bucket = bucket
        self.key = key


class CopiedMessageError(JetSyncError):
    """
    The message is a copy, and only the original can be acknowledged.
    """

    def __init__(self, subject: str, reply: str) -> None:
        super().__init__(
            f"message on {subject!r} is a copy: acknowledge the original, in the process that "
            f"received it (reply {reply!r})"
        )
        self.subject = subject
        self.reply = reply


class AcksNotWantedError(JetSyncError):
    """
    The consumer's ack policy is ``none``, so its messages take no acks.
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
    The object is closed and takes no more calls.

    ``what`` names the kind of object, and ``reason`` says why it is closed, if that is known.
    """

    _kind: _t.ClassVar[str] = "handle"

    def __init__(self, what: str | None = None, *, reason: str | None = None) -> None:
        self.what: str = what or self._kind
        self.reason = reason
        super().__init__(f"the {self.what} is closed" + (f": {reason}" if reason else ""))


class ConsumptionClosedError(HandleClosedError):
    """
    The consumption was stopped or drained and yields no more messages.
    """

    _kind = "consumption"


class FileClosedError(HandleClosedError, ValueError):
    """
    The file is closed. It is also a ValueError, which programs expect from files.
    """

    _kind = "file"


class BatchClosedError(HandleClosedError):
    """
    The batch or transaction was committed, discarded or rejected, and takes no more messages.
    """

    _kind = "batch"


class ConflictingUseError(JetSyncError, RuntimeError):
    """
    The object's state, or another call that uses it, does not allow this call.
    """


class ConsumerInUseError(ConflictingUseError):
    """
    The push consumer already has a subscriber, and no ``deliver_group`` to share it.

    The server would send each message to both subscribers.
    """

    def __init__(self, consumer: str, *, stream: str) -> None:
        super().__init__(
            f"push consumer {consumer!r} of stream {stream!r} already has a subscriber; give it a "
            "deliver_group to share its messages, or use a pull consumer"
        )
        self.consumer = consumer
        self.stream = stream


class ResetAttemptsExceededError(JetSyncError):
    """
    An ordered consumer could not be recreated within the permitted number of attempts.
    """

    def __init__(self, stream: str, attempts: int) -> None:
        super().__init__(f"ordered consumer on stream {stream!r} gave up after {attempts} attempts")
        self.stream = stream
        self.attempts = attempts


class DevServerError(JetSyncError):
    """
    jetsync could not find, start or stop a local nats-server.
    """
