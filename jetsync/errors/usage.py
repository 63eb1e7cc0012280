"""
Misuse found before anything is sent, and calls on handles and messages that cannot take them.
"""

from __future__ import annotations

from jetsync.errors.base import JetSyncError


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


class WaitTimeoutError(JetSyncError, TimeoutError):
    """
    A wait inside this process ended at its timeout; what was waited for goes on and may be waited
    for again.
    """

    def __init__(self, what: str, timeout: float) -> None:
        super().__init__(f"{what} was not there within {timeout:g} s")
        self.what = what
        self.timeout = timeout


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


class DevServerError(JetSyncError):
    """
    A local nats-server could not be found, started or stopped.
    """
