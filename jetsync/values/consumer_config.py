"""
The configuration of a consumer, every field of servers 2.10 to 2.15.

Field names are those of the server. Fields that are ``None`` are not sent, and the server uses its
defaults. An update replaces the whole configuration, so this applies to updates too. The exception
is ``ack_policy``, which is sent as ``explicit`` by default: with the server's default, ``none``, a
crashed reader loses the messages it has received.
"""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict

import attrs

from jetsync._base.fields import Choice, checked, choose, duration, durations
from jetsync.values.codec import COUNT, UNSIGNED, ConfigModel

if TYPE_CHECKING:
    from collections.abc import Iterable

    from jetsync._base.deadline import Seconds

__all__ = [
    "AckPolicy",
    "ConsumerConfig",
    "ConsumerFields",
    "DeliverPolicy",
    "PriorityPolicy",
    "ReplayPolicy",
]


class DeliverPolicy(Choice):
    """
    Where in the stream a consumer starts.
    """

    ALL = "all"
    """At the first message. The server's default."""
    LAST = "last"
    """At the last message."""
    NEW = "new"
    """After the last message."""
    BY_START_SEQUENCE = "by_start_sequence"
    """At ``opt_start_seq``."""
    BY_START_TIME = "by_start_time"
    """At ``opt_start_time``."""
    LAST_PER_SUBJECT = "last_per_subject"
    """At the last message of each subject that the filter matches."""


class AckPolicy(Choice):
    """
    How messages are acknowledged.
    """

    EXPLICIT = "explicit"
    """Each message separately. jetsync's default."""
    ALL = "all"
    """An ack also covers all earlier messages."""
    NONE = "none"
    """Without acks: the server treats a message as acknowledged when it has sent it."""
    FLOW_CONTROL = "flow_control"
    """By flow control of a push consumer. Server 2.14 and later."""


class ReplayPolicy(Choice):
    """
    How fast stored messages are delivered.
    """

    INSTANT = "instant"
    """As fast as possible. The server's default."""
    ORIGINAL = "original"
    """At the pace at which they were stored."""


class PriorityPolicy(Choice):
    """
    How the pulls of a priority group share a consumer. Server 2.11 and later.
    """

    NONE = "none"
    """Evenly. Servers omit this value in their answers."""
    OVERFLOW = "overflow"
    """A pull is served only while enough messages or acknowledgements are pending."""
    PINNED_CLIENT = "pinned_client"
    """One client, the *pinned* client, gets all messages until it stops pulling."""
    PRIORITIZED = "prioritized"
    """The pull with the lowest ``priority`` is served first. Server 2.12 and later."""


DeliverPolicyInput: TypeAlias = (
    DeliverPolicy
    | Literal["all", "last", "new", "by_start_sequence", "by_start_time", "last_per_subject"]
)


def _deliver_policy(value: DeliverPolicyInput | None) -> DeliverPolicy | None:
    return choose(DeliverPolicy, value)


AckPolicyInput: TypeAlias = AckPolicy | Literal["explicit", "all", "none", "flow_control"]


def _ack_policy(value: AckPolicyInput | None) -> AckPolicy | None:
    return choose(AckPolicy, value)


ReplayPolicyInput: TypeAlias = ReplayPolicy | Literal["instant", "original"]


def _replay_policy(value: ReplayPolicyInput | None) -> ReplayPolicy | None:
    return choose(ReplayPolicy, value)


PriorityPolicyInput: TypeAlias = (
    PriorityPolicy | Literal["none", "overflow", "pinned_client", "prioritized"]
)


def _priority_policy(value: PriorityPolicyInput | None) -> PriorityPolicy | None:
    return choose(PriorityPolicy, value)


class ConsumerFields(TypedDict, total=False):
    """
    The fields of :class:`ConsumerConfig` as keywords, for type checkers.
    """

    durable_name: str | None
    name: str | None
    description: str | None
    deliver_policy: DeliverPolicyInput | None
    opt_start_seq: int | None
    opt_start_time: dt.datetime | None
    ack_policy: AckPolicyInput | None
    ack_wait: Seconds | None
    max_deliver: int | None
    backoff: Iterable[Seconds] | None
    filter_subject: str | None
    filter_subjects: list[str] | None
    replay_policy: ReplayPolicyInput | None
    rate_limit_bps: int | None
    sample_freq: str | None
    max_waiting: int | None
    max_ack_pending: int | None
    flow_control: bool | None
    headers_only: bool | None
    max_batch: int | None
    max_expires: Seconds | None
    max_bytes: int | None
    deliver_subject: str | None
    deliver_group: str | None
    idle_heartbeat: Seconds | None
    inactive_threshold: Seconds | None
    num_replicas: int | None
    mem_storage: bool | None
    metadata: dict[str, str] | None
    pause_until: dt.datetime | None
    priority_groups: list[str] | None
    priority_policy: PriorityPolicyInput | None
    priority_timeout: Seconds | None
    direct: bool | None
    sourcing: bool | None
    extra: dict[str, Any]


@attrs.define(kw_only=True, repr=False, field_transformer=checked)
class ConsumerConfig(ConfigModel):
    """
    The configuration of a consumer. Fields that are ``None`` are not sent, except ``ack_policy``.

    Fields whose type is an enumeration also accept its values as strings. Fields with a duration
    accept seconds or a ``timedelta``, and store it as seconds (``float``). Values of a wrong type
    raise an error here, before anything is sent.
    """

    durable_name: str | None = None
    """Name of a consumer that stays until it is deleted. Cannot be changed."""

    name: str | None = None
    """
    Name of the consumer. Without ``durable_name`` the consumer is ephemeral: the server deletes it
    after ``inactive_threshold``. jetsync creates a random name if both are missing.
    """

    description: str | None = None
    """Free text, up to 4 KiB."""

    deliver_policy: DeliverPolicy | None = attrs.field(default=None, converter=_deliver_policy)
    """Where in the stream to start. Cannot be changed."""

    opt_start_seq: int | None = attrs.field(default=None, metadata=UNSIGNED)
    """Stream sequence to start at, with ``deliver_policy`` by_start_sequence."""

    opt_start_time: dt.datetime | None = None
    """Time to start at, as an aware datetime, with ``deliver_policy`` by_start_time."""

    ack_policy: AckPolicy | None = attrs.field(default=None, converter=_ack_policy)
    """How messages are acknowledged; ``None`` means explicit. Cannot be changed."""

    ack_wait: float | None = attrs.field(default=None, converter=duration)
    """
    Seconds after which the server redelivers an unacknowledged message. The server's default is 30.
    If ``backoff`` is set, its first entry applies instead.
    """

    max_deliver: int | None = None
    """Maximum number of deliveries of a message; -1 for no limit."""

    backoff: list[float] | None = attrs.field(default=None, converter=durations)
    """Seconds before each redelivery; the last one repeats. At most ``max_deliver`` entries."""

    filter_subject: str | None = None
    """Deliver only messages of this subject or wildcard."""

    filter_subjects: list[str] | None = None
    """
    Several subjects or wildcards, which must not overlap. Cannot be combined with
    ``filter_subject``.
    """

    replay_policy: ReplayPolicy | None = attrs.field(default=None, converter=_replay_policy)
    """How fast stored messages are delivered."""

    rate_limit_bps: int | None = attrs.field(default=None, metadata=UNSIGNED)
    """Maximum bits per second, for push consumers only."""

    sample_freq: str | None = None
    """
    Share of acks, such as ``"50%"``, for which the server publishes an event. The subject begins
    with ``$JS.EVENT.METRIC.CONSUMER.ACK``.
    """

    max_waiting: int | None = attrs.field(default=None, metadata=COUNT)
    """Maximum number of pulls that wait at the server. The server's default is 512."""

    max_ack_pending: int | None = None
    """
    Maximum number of unacknowledged messages. The server's default is 1,000; -1 means no limit.
    """

    flow_control: bool | None = None
    """
    Stop sending to a push consumer until its client has answered. Needs ``idle_heartbeat``.
    """

    headers_only: bool | None = None
    """Deliver the headers and the size of the payload, without the payload."""

    max_batch: int | None = attrs.field(default=None, metadata=COUNT)
    """Maximum number of messages per pull."""

    max_expires: float | None = attrs.field(default=None, converter=duration)
    """Maximum expiry of a pull, in seconds."""

    max_bytes: int | None = attrs.field(default=None, metadata=COUNT)
    """Maximum number of bytes per pull."""

    deliver_subject: str | None = None
    """
    The subject that a push consumer delivers to, outside of the stream's subjects. Without it, the
    consumer is a pull consumer.
    """

    deliver_group: str | None = None
    """The queue group whose members share the messages of a push consumer."""

    idle_heartbeat: float | None = attrs.field(default=None, converter=duration)
    """
    Seconds between the heartbeats of a push consumer, from 0.1. Without heartbeats, jetsync learns
    only after a minute of silence that the consumer was deleted.
    """

    inactive_threshold: float | None = attrs.field(default=None, converter=duration)
    """
    Seconds of inactivity after which the server deletes the consumer. The server's default is 5, or
    never if the consumer has a ``durable_name``.
    """

    num_replicas: int | None = attrs.field(default=None, metadata=COUNT)
    """Number of replicas of the consumer's state; 0 means as many as the stream has."""

    mem_storage: bool | None = None
    """Keep the consumer's state in memory even if the stream is on disk."""

    metadata: dict[str, str] | None = None
    """Any key-value pairs. Server 2.11 and later add some of their own under ``_nats.``."""

    pause_until: dt.datetime | None = None
    """Pause the delivery until this time, an aware datetime. Server 2.11 and later."""

    priority_groups: list[str] | None = None
    """Groups that pulls must name. Server 2.11 and later."""

    priority_policy: PriorityPolicy | None = attrs.field(default=None, converter=_priority_policy)
    """How pulls of a group share the consumer. Server 2.11 and later."""

    priority_timeout: float | None = attrs.field(default=None, converter=duration)
    """
    With ``pinned_client``: seconds without a pull of the pinned client, after which the server pins
    another client. Server 2.11 and later.
    """

    direct: bool | None = None
    """Used internally by servers, for mirrors and sources."""

    sourcing: bool | None = None
    """The consumer serves a mirror or source. Server 2.14 and later."""
