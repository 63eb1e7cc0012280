"""
The status events and operations that hooks receive, as frozen values.

A hook takes one object instead of several arguments, so that a later version can add a field
without breaking existing plugins. The objects hold no connection and no lock. Plugins may keep
them, compare them and send them to another process.
"""

from __future__ import annotations

import enum
from typing import Literal, TypeAlias

import attrs

__all__ = [
    "AsyncErrorEvent",
    "BatchAbandonedEvent",
    "BatchCommitOperation",
    "BatchGapEvent",
    "ClosedEvent",
    "DirectReadOperation",
    "DisconnectedEvent",
    "FetchOperation",
    "FilterOutsideSubjectsEvent",
    "HandlerErrorEvent",
    "HeartbeatMissedEvent",
    "LameDuckEvent",
    "Operation",
    "OrderedResetEvent",
    "PermissionDeniedEvent",
    "PublishOperation",
    "PullOutcome",
    "PullStatusEvent",
    "ReconnectedEvent",
    "RetryEvent",
    "ServersDiscoveredEvent",
    "SlowConsumerEvent",
    "StatusEvent",
    "StatusKind",
    "TtlRaisedEvent",
    "WindowResult",
]


ResetReason: TypeAlias = Literal["gap", "gone", "silent", "reconnected", "reused"]


class StatusKind(str, enum.Enum):
    """
    The kind of a status event. The values are stable and can be used as metric labels.
    """

    PULL_STATUS = "pull_status"
    HEARTBEAT_MISSED = "heartbeat_missed"
    DISCONNECTED = "disconnected"
    RECONNECTED = "reconnected"
    CLOSED = "closed"
    LAME_DUCK = "lame_duck"
    SERVERS_DISCOVERED = "servers_discovered"
    SLOW_CONSUMER = "slow_consumer"
    PERMISSION_DENIED = "permission_denied"
    ASYNC_ERROR = "async_error"
    HANDLER_ERROR = "handler_error"
    ORDERED_RESET = "ordered_reset"
    BATCH_ABANDONED = "batch_abandoned"
    BATCH_GAP = "batch_gap"
    TTL_RAISED = "ttl_raised"
    FILTER_OUTSIDE_SUBJECTS = "filter_outside_subjects"
    RETRY = "retry"


class PullOutcome(str, enum.Enum):
    """
    The effect of a status line on its pull.
    """

    IGNORED = "ignored"
    """None: the pull continues, or it had already received everything."""

    ENDED = "ended"
    """The pull ended normally: no messages, expired, or complete."""

    RETRIED = "retried"
    """The pull ended for a temporary reason, such as a new leader; another pull follows."""

    FAILED = "failed"
    """The pull ended and the caller gets an error."""


# --------------------------------------------------------------------------------------------------
# Status events, for jetsync_status
# --------------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class StatusEvent:
    """
    The common fields of all status events.
    """

    kind: StatusKind
    """The kind of event, fixed for each subclass."""

    stream: str | None = None
    """The stream's name; `None` if the event concerns the connection."""

    consumer: str | None = None
    """The consumer's name, or `None`."""


@attrs.frozen(kw_only=True)
class PullStatusEvent(StatusEvent):
    """
    A status line answered a pull.

    Every status except heartbeats is reported, also if the call returns normally, as an empty fetch
    does. A status that arrives after a complete fetch is reported by the next fetch.
    """

    kind: StatusKind = attrs.field(default=StatusKind.PULL_STATUS, init=False)

    code: int
    """The status code: 404, 408, 409, 423, 503, ..."""

    description: str
    """The status line's text, as the server sent it."""

    outcome: PullOutcome
    """What the status did to the pull."""

    pending_messages: int | None = None
    """Messages that were still outstanding, if the server said so."""

    pending_bytes: int | None = None
    """Bytes that were still outstanding, if the server said so."""


@attrs.frozen(kw_only=True)
class HeartbeatMissedEvent(StatusEvent):
    """
    No heartbeat of a pull arrived for two intervals.
    """

    kind: StatusKind = attrs.field(default=StatusKind.HEARTBEAT_MISSED, init=False)

    heartbeat: float
    """The requested interval in seconds."""

    silent_for: float
    """The seconds without a frame."""


@attrs.frozen(kw_only=True)
class DisconnectedEvent(StatusEvent):
    """
    The connection was lost; the client reconnects.
    """

    kind: StatusKind = attrs.field(default=StatusKind.DISCONNECTED, init=False)

    server: str | None = None
    """The URL of that server, without user name and password."""

    error: BaseException | None = None
    """The reason, if it is known."""


@attrs.frozen(kw_only=True)
class ReconnectedEvent(StatusEvent):
    """
    The client has reconnected and restored its subscriptions.
    """

    kind: StatusKind = attrs.field(default=StatusKind.RECONNECTED, init=False)

    server: str | None = None
    """The URL of the new server, which may be another one."""

    reconnects: int = 0
    """How often the client has reconnected, including this time."""


@attrs.frozen(kw_only=True)
class ClosedEvent(StatusEvent):
    """
    The connection is closed for good, or could not be made. No event follows.
    """

    kind: StatusKind = attrs.field(default=StatusKind.CLOSED, init=False)

    error: BaseException | None = None
    """Why the client gave up; `None` if your code closed it."""


@attrs.frozen(kw_only=True)
class LameDuckEvent(StatusEvent):
    """
    Report that the connected server is about to shut down and asks its clients to move.
    """

    kind: StatusKind = attrs.field(default=StatusKind.LAME_DUCK, init=False)

    server: str | None = None
    """The URL of the server that will go."""


@attrs.frozen(kw_only=True)
class ServersDiscoveredEvent(StatusEvent):
    """
    Report servers of the cluster that the client did not know before.
    """

    kind: StatusKind = attrs.field(default=StatusKind.SERVERS_DISCOVERED, init=False)

    servers: tuple[str, ...]
    """The URLs of the new ones."""


@attrs.frozen(kw_only=True)
class SlowConsumerEvent(StatusEvent):
    """
    Report that a subscription drops messages because its buffer is full.

    Emitted when the first message is dropped, and again with SlowConsumerError.
    """

    kind: StatusKind = attrs.field(default=StatusKind.SLOW_CONSUMER, init=False)

    subject: str
    """The subscription's subject."""

    dropped: int
    """How many messages the subscription has dropped since the last SlowConsumerError."""


@attrs.frozen(kw_only=True)
class PermissionDeniedEvent(StatusEvent):
    """
    Report that the server refused a subject to this user.
    """

    kind: StatusKind = attrs.field(default=StatusKind.PERMISSION_DENIED, init=False)

    subject: str
    """The subject that was refused."""

    operation: Literal["publish", "subscribe"]
    """What was refused on it."""


@attrs.frozen(kw_only=True)
class AsyncErrorEvent(StatusEvent):
    """
    Report an error that belongs to no call that is waiting.
    """

    kind: StatusKind = attrs.field(default=StatusKind.ASYNC_ERROR, init=False)

    error: BaseException
    """The error, one of `jetsync`'s own."""


@attrs.frozen(kw_only=True)
class HandlerErrorEvent(StatusEvent):
    """
    Report what a message handler raised; the consumption goes on unless its policy is to stop.
    """

    kind: StatusKind = attrs.field(default=StatusKind.HANDLER_ERROR, init=False)

    error: BaseException
    """What was raised."""

    subject: str | None = None
    """The message's subject; `None` if a plugin raised before there was a message to handle."""

    sequence: int | None = None
    """The message's place in the stream."""


@attrs.frozen(kw_only=True)
class OrderedResetEvent(StatusEvent):
    """
    Report that the consumer behind an ordered consumer was made again; nothing was lost.

    `consumer` is the name of the new one.
    """

    kind: StatusKind = attrs.field(default=StatusKind.ORDERED_RESET, init=False)

    before: str
    """The name of the consumer whose place it takes."""

    reason: ResetReason
    """
    Why: a message was lost on the way, the consumer was deleted, its server gave no sign of life,
    there is another connection, or what it had sent was left by the use before.
    """

    last_sequence: int | None
    """
    The stream sequence behind which it goes on; `None` where nothing was given out so far, so that
    it begins where the first one did.
    """

    attempts: int
    """How many attempts that took."""


@attrs.frozen(kw_only=True)
class BatchAbandonedEvent(StatusEvent):
    """
    Report that the server gave up an atomic batch of this client; nothing of it is stored.

    Servers tell this in an advisory, so it comes only where the user may subscribe to those.
    """

    kind: StatusKind = attrs.field(default=StatusKind.BATCH_ABANDONED, init=False)

    batch_id: str
    """The batch's id."""

    reason: str
    """
    The server's word: `timeout` (it lay idle too long), `incomplete`, `large`, `unsupported`.
    """


@attrs.frozen(kw_only=True)
class BatchGapEvent(StatusEvent):
    """
    Report messages of a fast batch that are not stored, while the batch goes on (`gap="ok"`).
    """

    kind: StatusKind = attrs.field(default=StatusKind.BATCH_GAP, init=False)

    batch_id: str
    """The batch's id."""

    first: int
    """The first of them, counted from 1 in the order in which they were added."""

    last: int
    """The last of them."""

    error: Exception | None = None
    """Why, where the server refused them; `None` where they were lost on the way."""


@attrs.frozen(kw_only=True)
class TtlRaisedEvent(StatusEvent):
    """
    Warn that the server stores a longer time to live than the message asks for.

    A stream with limit markers raises every shorter time to live to the markers' own (ADR-43).
    """

    kind: StatusKind = attrs.field(default=StatusKind.TTL_RAISED, init=False)

    subject: str
    """The message's subject."""

    asked: float
    """The time to live that was asked for, in seconds."""

    stored: float
    """The time to live that the server stores instead, in seconds."""


@attrs.frozen(kw_only=True)
class FilterOutsideSubjectsEvent(StatusEvent):
    """
    Warn that a consumer's filter lies outside the stream's subjects.

    Servers accept such a consumer, and it never gets a message.
    """

    kind: StatusKind = attrs.field(default=StatusKind.FILTER_OUTSIDE_SUBJECTS, init=False)

    filters: tuple[str, ...]
    """The filters that no subject of the stream can match."""

    subjects: tuple[str, ...]
    """The stream's subjects."""


@attrs.frozen(kw_only=True)
class RetryEvent(StatusEvent):
    """
    Report that messages or a batch are sent again, by a plugin's word or the built-in rule.

    One event for all messages of a window whose attempts failed at the same time.
    """

    kind: StatusKind = attrs.field(default=StatusKind.RETRY, init=False)

    operation: str
    """What is tried again: the operation's name, `publish` or `batch_commit`."""

    subject: str | None = None
    """The message's subject; of several messages the first one's."""

    messages: int = 1
    """How many messages are sent again."""

    attempts: int
    """How many attempts have failed so far; of several messages the most."""

    delay: float
    """The seconds until the next attempt; of several messages the least."""

    error: Exception
    """Why the last attempt failed; of several messages the first one's."""


# --------------------------------------------------------------------------------------------------
# Operations: what the wrapper hooks and jetsync_retry are given
# --------------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class Operation:
    """
    Hold what every operation has: a stable name, the stream if known, and its time limit.
    """

    name: str
    """What is being done, fit for a span's name or a metric's label."""

    stream: str | None = None
    """
    The stream's name where the client knows it. A publish does not, unless the message expects one.
    """

    timeout: float | None = None
    """The operation's time limit in seconds, over all attempts; in a window that of each one."""

    elapsed: float = 0.0
    """
    How many seconds ago it began, for `jetsync_retry`; 0 for other hooks. A message of a window
    begins when its first attempt fails, or was sent where no answer came in time.
    """


@attrs.frozen(kw_only=True)
class PublishOperation(Operation):
    """
    One publish, or one window of a bulk publish.

    `jetsync_prepare_message` runs inside the operation, so these are the values of the caller, not
    those of the plugins.
    """

    name: str = attrs.field(default="publish", init=False)

    subject: str | None = None
    """The message's subject; `None` for a window."""

    messages: int | None = 1
    """The number of messages; `None` if it is not known yet."""

    window: int | None = None
    """The most messages in flight; `None` for a single publish."""

    has_message_ids: bool = False
    """
    Whether every message has an id, so that a retry cannot store it twice. For `jetsync_retry` this
    includes ids that plugins have added.
    """


@attrs.frozen(kw_only=True)
class WindowResult:
    """
    The outcome of one window of a bulk publish, for `jetsync_publish`.
    """

    messages: int
    """The number of messages, including those that were refused before they were sent."""

    failed: int = 0
    """
    The number of failed messages. A message that was sent again and fails after its window has
    ended is counted in the next one.
    """

    error: Exception | None = None
    """The error of the first failure, or else the error that ended the call."""

    stream: str | None = None
    """A stream that stored messages; `None` if there is none so far."""

    @property
    def acknowledged(self) -> int:
        """The number of acknowledged messages."""
        return max(self.messages - self.failed, 0)


@attrs.frozen(kw_only=True)
class BatchCommitOperation(Operation):
    """
    Describe the commit of an atomic or a fast batch.
    """

    name: str = attrs.field(default="batch_commit", init=False)

    kind: Literal["atomic", "fast"] = "atomic"
    """Which of the two."""

    batch_id: str
    """The batch's id; each further attempt within the operation has an id of its own."""

    size: int
    """How many messages the batch has, the one that commits it included where there is one."""

    subject: str | None = None
    """The final message's subject; `None` where the batch ends without one."""


@attrs.frozen(kw_only=True)
class FetchOperation(Operation):
    """
    Describe a fetch, a next, or one pull of a consume.
    """

    name: Literal["fetch", "next", "consume"] = "fetch"

    stream: str
    consumer: str
    """The consumer's name."""

    max_messages: int | None = None
    """How many messages are asked for at most."""

    max_bytes: int | None = None
    """How many bytes are asked for at most."""

    expires: float | None = None
    """How long the server keeps the pull open, in seconds; `None` for a pull that does not wait."""

    heartbeat: float | None = None
    """The interval of the server's signs of life, in seconds."""

    group: str | None = None
    """The priority group."""


@attrs.frozen(kw_only=True)
class DirectReadOperation(Operation):
    """
    Describe one request that reads stored messages without a consumer (ADR-31).
    """

    name: str = "direct_read"
    """
    The method that reads: `get_message`, `get_last`, `get_next`, `get_at`, `get_batch`,
    `get_last_for`, `scan`.
    """

    stream: str
    subjects: tuple[str, ...] = ()
    """The subjects or filters that are asked for."""

    sequence: int | None = None
    """The stream sequence that is asked for or that the read starts from."""

    batch: int | None = None
    """How many messages are asked for at most; `None` for a single one."""

    max_bytes: int | None = None
    """How many bytes are asked for at most."""
