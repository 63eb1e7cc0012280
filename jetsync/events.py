"""
The status events and operations that hooks receive, as frozen values.

A hook takes one object instead of several arguments, so that a later version can add a field
without breaking existing plugins. The objects hold no connection and no lock. Plugins may keep
them, compare them and send them to another process.
"""

from __future__ import annotations

import enum
import re
from typing import Literal, TypeAlias

import attrs

__all__ = [
    "AsyncErrorEvent",
    "BatchAbandonedEvent",
    "BatchCommitOperation",
    "BatchGapEvent",
    "ClosedEvent",
    "DeadLetterEvent",
    "DirectReadOperation",
    "DisconnectedEvent",
    "FetchOperation",
    "FilterOutsideSubjectsEvent",
    "HandlerErrorEvent",
    "HeartbeatMissedEvent",
    "LameDuckEvent",
    "MessagesLostEvent",
    "Operation",
    "OrderedResetEvent",
    "PermissionDeniedEvent",
    "PublishCountsEvent",
    "PublishOperation",
    "PullOutcome",
    "PullStatusEvent",
    "ReconnectedEvent",
    "RetryEvent",
    "ServersDiscoveredEvent",
    "SlowConsumerEvent",
    "StatusEvent",
    "StatusKind",
    "StrayMessagesEvent",
    "TtlRaisedEvent",
]


ResetReason: TypeAlias = Literal["gap", "gone", "silent", "reconnected", "reused"]


class StatusKind(str, enum.Enum):
    """
    The kind of a status event. The values are stable and can be used as metric labels.
    """

    PULL_STATUS = "pull_status"
    """The server answered a pull with a status line."""

    HEARTBEAT_MISSED = "heartbeat_missed"
    """Neither a message nor a heartbeat arrived for two heartbeat intervals."""

    MESSAGES_LOST = "messages_lost"
    """Messages of a push consumer without acks did not reach the client."""

    STRAY_MESSAGES = "stray_messages"
    """Messages arrived on a consumer's inbox that are not handed out."""

    DISCONNECTED = "disconnected"
    """The connection was lost."""

    RECONNECTED = "reconnected"
    """The client has reconnected."""

    CLOSED = "closed"
    """The client is closed."""

    LAME_DUCK = "lame_duck"
    """The server is about to shut down."""

    SERVERS_DISCOVERED = "servers_discovered"
    """The server named other servers of its cluster."""

    SLOW_CONSUMER = "slow_consumer"
    """Messages of a subscription were dropped."""

    PERMISSION_DENIED = "permission_denied"
    """The server denied the permission to publish or subscribe to a subject."""

    ASYNC_ERROR = "async_error"
    """The server or the connection reported an error that belongs to no call."""

    HANDLER_ERROR = "handler_error"
    """A message handler raised."""

    DEAD_LETTER = "dead_letter"
    """A message became a dead letter, or its dead letter could not be stored."""

    ORDERED_RESET = "ordered_reset"
    """An ordered consumer has replaced its consumer on the server."""

    BATCH_ABANDONED = "batch_abandoned"
    """The server dropped an atomic batch."""

    BATCH_GAP = "batch_gap"
    """Messages of a fast-ingest batch are not stored."""

    TTL_RAISED = "ttl_raised"
    """The server stores a longer time-to-live than the message asks for."""

    FILTER_OUTSIDE_SUBJECTS = "filter_outside_subjects"
    """A consumer was created with a filter that matches no subject of the stream."""

    RETRY = "retry"
    """A failed operation will be tried again."""

    PUBLISH_COUNTS = "publish_counts"
    """Messages of a bulk publish were stored or have failed."""


class PullOutcome(str, enum.Enum):
    """
    The effect of a status line on its pull.
    """

    IGNORED = "ignored"
    """No effect: the pull continues, or had already received all messages."""

    ENDED = "ended"
    """The pull ended normally: there were no messages, it expired, or it was complete."""

    RETRIED = "retried"
    """The pull ended for a temporary reason, such as a new leader; another pull follows."""

    FAILED = "failed"
    """The pull ended and the caller gets an error."""


# --------------------------------------------------------------------------------------------------
# Status events, for jetsync_status
# --------------------------------------------------------------------------------------------------


def _kind_of(event: StatusEvent) -> StatusKind:
    name = type(event).__name__.removesuffix("Event")
    return StatusKind[re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).upper()]


@attrs.frozen(kw_only=True)
class StatusEvent:
    """
    The common fields of all status events.
    """

    kind: StatusKind = attrs.field(default=attrs.Factory(_kind_of, takes_self=True), init=False)
    """The kind of event. Each class has its own, such as `PULL_STATUS` for `PullStatusEvent`."""

    stream: str | None = None
    """The stream's name; `None` if the event concerns the connection."""

    consumer: str | None = None
    """The consumer's name, or `None`."""


@attrs.frozen(kw_only=True)
class PullStatusEvent(StatusEvent):
    """
    The server answered a pull with a status line, such as ``404 No Messages``.

    Every status except heartbeats is reported, even if the call returns normally, as for an empty
    fetch. This includes statuses of push consumers. A status that arrives after a complete fetch is
    reported by the next fetch.
    """

    code: int
    """The status code: 404, 408, 409, 423, 503, ..."""

    description: str
    """The status line's text, as the server sent it."""

    outcome: PullOutcome
    """The effect on the pull."""

    pending_messages: int | None = None
    """Messages that were still outstanding, if the server said so."""

    pending_bytes: int | None = None
    """Bytes that were still outstanding, if the server said so."""


@attrs.frozen(kw_only=True)
class HeartbeatMissedEvent(StatusEvent):
    """
    Neither a message nor a heartbeat of a pull or a push consumer arrived for two intervals.
    """

    heartbeat: float
    """The requested heartbeat interval in seconds."""

    silent_for: float
    """Seconds since the last message, heartbeat or other status."""


@attrs.frozen(kw_only=True)
class MessagesLostEvent(StatusEvent):
    """
    Messages of a push consumer did not reach the client, and the server will not send them again.

    jetsync notices this if the consumer has the ``ack_policy`` none and no ``deliver_group``. The
    usual reason is a lost connection.
    """

    messages: int
    """How many messages are lost."""


@attrs.frozen(kw_only=True)
class StrayMessagesEvent(StatusEvent):
    """
    Messages arrived where a consumer delivers, or for a read of a stream, and jetsync did not hand
    them out.

    Emitted for the first one, and then at most every 10 seconds. The usual reason is another client
    that publishes to the inbox of this one. Permissions can prevent that.
    """

    reason: Literal["foreign", "surplus"]
    """
    `foreign`: they are not messages of this consumer, or no answers to the read. `surplus`: they
    are messages of the consumer, by their form, but no pull had asked for them.
    """

    messages: int
    """How many there were since the previous event of this reader."""

    subject: str
    """The subject of the first one."""

    reply: str
    """The reply subject of the first one; `""` if it had none."""

    redelivered: bool
    """
    Whether the server redelivers those that it had sent, because the consumer wants
    acknowledgements. Otherwise they are lost. An ordered consumer reads lost messages again.
    """


@attrs.frozen(kw_only=True)
class DisconnectedEvent(StatusEvent):
    """
    The connection was lost; the client reconnects.
    """

    server: str | None = None
    """The URL of the server, without user name and password."""

    error: BaseException | None = None
    """The reason, if it is known."""


@attrs.frozen(kw_only=True)
class ReconnectedEvent(StatusEvent):
    """
    The client has reconnected and restored its subscriptions.
    """

    server: str | None = None
    """The URL of the server that the client is now connected to."""

    reconnects: int = 0
    """How often the client has reconnected, including this time."""


@attrs.frozen(kw_only=True)
class ClosedEvent(StatusEvent):
    """
    The client is closed, or could not connect. No further event follows.
    """

    error: BaseException | None = None
    """Why the client gave up; `None` if your code closed the client."""


@attrs.frozen(kw_only=True)
class LameDuckEvent(StatusEvent):
    """
    The connected server is about to shut down and asks its clients to move to another server.
    """

    server: str | None = None
    """The URL of the server that is about to shut down."""


@attrs.frozen(kw_only=True)
class ServersDiscoveredEvent(StatusEvent):
    """
    The server announced servers of its cluster that the client did not know.
    """

    servers: tuple[str, ...]
    """The URLs of the new servers."""


@attrs.frozen(kw_only=True)
class SlowConsumerEvent(StatusEvent):
    """
    A subscription drops messages because its buffer is full.

    Emitted when the first message is dropped, and again with SlowConsumerError. For a consumption
    from a push consumer without flow control, emitted once, when it ends.
    """

    subject: str
    """The subject that is subscribed to."""

    dropped: int
    """How many messages the subscription has dropped since the last SlowConsumerError."""


@attrs.frozen(kw_only=True)
class PermissionDeniedEvent(StatusEvent):
    """
    The server denied this user the permission to publish or subscribe to a subject.
    """

    subject: str
    """The denied subject."""

    operation: Literal["publish", "subscribe"]
    """The denied operation."""


@attrs.frozen(kw_only=True)
class AsyncErrorEvent(StatusEvent):
    """
    An error occurred that belongs to no call, so no call raises it.
    """

    error: BaseException
    """The error, an exception of `jetsync`."""


@attrs.frozen(kw_only=True)
class HandlerErrorEvent(StatusEvent):
    """
    A message handler raised an exception, or a plugin refused a message before its handler ran.

    After an exception of the handler, the consumption continues unless ``on_error`` is ``"stop"``.
    """

    error: BaseException
    """The exception."""

    subject: str | None = None
    """The message's subject; `None` if a plugin raised before the handler got a message."""

    sequence: int | None = None
    """The message's stream sequence."""


@attrs.frozen(kw_only=True)
class DeadLetterEvent(StatusEvent):
    """
    A message was given up, and its dead letter is stored. If not, *error* says why.

    If the dead letter is not stored, the message is not terminated. ``Stream.dead_letters`` tries
    again, and so does the next delivery if there is one.
    """

    subject: str
    """The message's subject."""

    sequence: int
    """The message's stream sequence."""

    deliveries: int
    """How many times the message was delivered."""

    reason: str
    """Why it was given up."""

    dead_letter: str
    """The subject of the dead letter."""

    error: Exception | None = None
    """Why the dead letter is not stored, or not known to be stored; ``None`` if it is stored."""


@attrs.frozen(kw_only=True)
class OrderedResetEvent(StatusEvent):
    """
    An ordered consumer has replaced its consumer on the server. Your code still gets every message.

    `consumer` is the name of the new consumer.
    """

    before: str
    """The name of the replaced consumer."""

    reason: ResetReason
    """
    Why jetsync replaced the consumer:

    - `gap`: A message did not reach the client.
    - `gone`: The consumer was deleted.
    - `silent`: The server sent no heartbeats.
    - `reconnected`: The client has reconnected.
    - `reused`: The ordered consumer was used before, and messages sent for that use were left over.
    """

    last_sequence: int | None
    """
    The new consumer continues after this stream sequence. `None` means that your code has not
    received a message yet, so the new consumer begins where the first one did.
    """

    attempts: int
    """How many attempts the replacement took."""


@attrs.frozen(kw_only=True)
class BatchAbandonedEvent(StatusEvent):
    """
    The server dropped an atomic batch of this client and stored none of its messages.

    Servers report this in advisories, so the user needs permission to subscribe to
    ``$JS.EVENT.ADVISORY.STREAM.BATCH_ABANDONED.*``.
    """

    batch_id: str
    """The batch's id."""

    reason: str
    """
    The server's reason: `timeout` (idle for too long), `incomplete`, `large` or `unsupported`.
    """


@attrs.frozen(kw_only=True)
class BatchGapEvent(StatusEvent):
    """
    Messages of a fast-ingest batch are not stored (`gap="ok"`).

    The batch continues, unless *error* is an error of the whole batch. In that case it is unknown
    which of these messages are stored.
    """

    batch_id: str
    """The batch's id."""

    first: int
    """The number of the first lost message. The first message of the batch has number 1."""

    last: int
    """The number of the last lost message."""

    error: Exception | None = None
    """
    The error if the server refused the messages, or that of a batch that failed. `None` if the
    messages never reached the server.
    """


@attrs.frozen(kw_only=True)
class TtlRaisedEvent(StatusEvent):
    """
    The server stores a longer time-to-live than the message asks for.

    A stream with ``subject_delete_marker_ttl`` increases shorter times-to-live to that value,
    unless ``max_msgs_per_subject`` is 1 (ADR-43).
    """

    subject: str
    """The message's subject."""

    asked: float
    """The requested time-to-live, in seconds."""

    stored: float
    """The time-to-live that the server stores, in seconds."""


@attrs.frozen(kw_only=True)
class FilterOutsideSubjectsEvent(StatusEvent):
    """
    A consumer's filter lies outside the stream's subjects.

    Servers accept such a consumer, but this filter matches no new message.
    """

    filters: tuple[str, ...]
    """The filters that match none of the stream's subjects."""

    subjects: tuple[str, ...]
    """The stream's subjects."""


@attrs.frozen(kw_only=True)
class RetryEvent(StatusEvent):
    """
    jetsync will send messages or a batch again, because a plugin or the built-in rule decided so.

    jetsync emits one event for all messages of a bulk publish that failed at the same time.
    """

    operation: str
    """
    The name of the operation that is retried: `publish`, `publish_many`, `publisher`, `put` or
    `batch_commit`.
    """

    subject: str | None = None
    """The message's subject. For several messages, the subject of the first."""

    messages: int = 1
    """How many messages are sent again."""

    attempts: int
    """How many attempts have failed so far. For several messages, the highest number."""

    delay: float
    """Seconds until the next attempt. For several messages, the shortest delay."""

    error: Exception
    """The error of the last attempt. For several messages, the error of the first."""


@attrs.frozen(kw_only=True)
class PublishCountsEvent(StatusEvent):
    """
    Messages of a `publish_many` call or of a `Publisher` were stored or have failed.

    jetsync emits this event at most a second after the first of these messages, and before the
    wrappers of `jetsync_publish` end. Each message is counted in one event. `stream` is a stream
    that stored messages of the call or publisher, and None if none has stored any so far.
    """

    publish: PublishOperation
    """The same object that `jetsync_publish` received."""

    acknowledged: int
    """Messages that a stream has stored, including duplicates."""

    duplicates: int
    """Messages whose id the stream already knew, so that it did not store them again."""

    failed: int
    """Messages with an error, including those whose outcome is unknown."""

    unknown: int
    """
    Messages whose outcome is unknown. After Ctrl-C in `publish_many`, these include the messages in
    flight.
    """

    error: Exception | None = None
    """The error of the first of the failed messages."""


# --------------------------------------------------------------------------------------------------
# Operations, for the wrapper hooks and jetsync_retry
# --------------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class Operation:
    """
    The common fields of all operations.
    """

    name: str
    """The name of the operation. It is stable and can be used for spans and metric labels."""

    stream: str | None = None
    """
    The stream's name, if the client knows it. For a publish, the client knows it only if ``expect``
    names a stream.
    """

    timeout: float | None = None
    """
    The time limit in seconds for all attempts together. In a bulk publish, the limit for each
    attempt.
    """

    elapsed: float = 0.0
    """
    Seconds since the operation began, for `jetsync_retry`; 0 for other hooks. For a message of a
    bulk publish, the time counts from its first failure. If that failure was a missing ack, the
    time counts from the moment the message was sent.
    """


@attrs.frozen(kw_only=True)
class PublishOperation(Operation):
    """
    One publish, one call of `publish_many`, one `Publisher` from its creation to its end, or the
    chunks of one object (`put`).

    `jetsync_prepare_message` runs inside the operation, so the fields have the caller's values,
    without changes that plugins make.
    """

    name: Literal["publish", "publish_many", "publisher", "put"] = "publish"

    subject: str | None = None
    """The message's subject; `None` for a bulk publish."""

    messages: int | None = 1
    """The number of messages; `None` for a bulk publish, which does not know it at its start."""

    window: int | None = None
    """The maximum number of messages in flight; `None` for a single publish."""

    has_message_ids: bool = False
    """
    Whether every message has an id, so that a retry cannot store it twice. For `jetsync_retry` this
    includes ids that plugins have added.
    """

    dead_letter_headers: tuple[tuple[str, str], ...] | None = attrs.field(default=None, repr=False)
    """
    The headers of a dead letter as pairs, among them those of the message that it is a copy of;
    `None` for other messages. Plugins do not prepare a dead letter.
    """


@attrs.frozen(kw_only=True)
class BatchCommitOperation(Operation):
    """
    The commit of an atomic or a fast batch.
    """

    name: str = attrs.field(default="batch_commit", init=False)

    kind: Literal["atomic", "fast"] = "atomic"
    """The kind of batch."""

    batch_id: str
    """The batch's id. Each further attempt of the operation uses another id."""

    size: int
    """The number of messages, including the final message of the commit."""

    subject: str | None = None
    """The final message's subject; `None` if the commit adds no message."""


@attrs.frozen(kw_only=True)
class FetchOperation(Operation):
    """
    A fetch, a next, or one pull of a consume.
    """

    name: Literal["fetch", "next", "consume"] = "fetch"

    stream: str
    consumer: str
    """The consumer's name."""

    max_messages: int | None = None
    """The maximum number of messages that the pull requests."""

    max_bytes: int | None = None
    """The maximum number of bytes that the pull requests."""

    expires: float | None = None
    """Seconds for which the server keeps the pull open; `None` for a pull that does not wait."""

    heartbeat: float | None = None
    """Seconds between the server's heartbeats."""

    group: str | None = None
    """The priority group."""


@attrs.frozen(kw_only=True)
class DirectReadOperation(Operation):
    """
    One request that reads stored messages without a consumer (ADR-31).
    """

    name: str = "direct_read"
    """
    The name of the reading method: `get_message`, `get_last`, `get_next`, `get_at`, `get_batch`,
    `get_last_for`, `scan`, `get_object`.
    """

    stream: str
    subjects: tuple[str, ...] = ()
    """The requested subjects or filters."""

    sequence: int | None = None
    """The requested stream sequence, or the one at which the read starts."""

    batch: int | None = None
    """The maximum number of messages to read; `None` for a single message."""

    max_bytes: int | None = None
    """The maximum number of bytes to read."""
