"""
The configuration of a consumer, every field of servers 2.10 to 2.15.

Field names are the server's own. A field that is ``None`` is not set and not sent: the server uses
its default on create, and on update too, for an update replaces the whole configuration. The one
exception is ``ack_policy``, which is sent as ``explicit`` unless it is set: the server's default,
``none``, loses whatever a crashed reader had taken.
"""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict

import attrs

from jetsync._base.fields import Choice, checked, choose, duration, durations
from jetsync.values.codec import ConfigModel

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
    Where in the stream a consumer begins.
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
    """Each message on its own. What jetsync asks for unless told otherwise."""
    ALL = "all"
    """An acknowledgement covers all messages before it."""
    NONE = "none"
    """Not at all; a message counts as done once it was sent."""
    FLOW_CONTROL = "flow_control"
    """By the flow control of a push consumer. Server 2.14 and later."""


class ReplayPolicy(Choice):
    """
    How fast stored messages are delivered.
    """

    INSTANT = "instant"
    """As fast as they can be. The server's default."""
    ORIGINAL = "original"
    """At the pace at which they were stored."""


class PriorityPolicy(Choice):
    """
    How the pulls of a priority group share a consumer, on servers from 2.11 up.
    """

    NONE = "none"
    """Evenly. A server does not echo this word."""
    OVERFLOW = "overflow"
    """A pull is served only while enough is pending."""
    PINNED_CLIENT = "pinned_client"
    """One client gets everything until it stops pulling."""
    PRIORITIZED = "prioritized"
    """The pull with the lowest number comes first. Server 2.12 and later."""


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
    What a consumer is; see the module for what ``None`` means.

    Enumerations take their plain string too, durations take seconds or a ``timedelta`` and hold
    float seconds. A value of a wrong type is refused here, before anything is sent.
    """

    durable_name: str | None = None
    """Name of a consumer that stays until it is deleted. Can not be changed."""

    name: str | None = None
    """
    Name of a consumer; without ``durable_name`` it goes after ``inactive_threshold``. One is made
    up where both are missing.
    """

    description: str | None = None
    """Free text, up to 4 KiB."""

    deliver_policy: DeliverPolicy | None = attrs.field(default=None, converter=_deliver_policy)
    """Where in the stream to begin. Can not be changed."""

    opt_start_seq: int | None = None
    """First sequence, with ``deliver_policy`` by_start_sequence."""

    opt_start_time: dt.datetime | None = None
    """Time of the first message, aware, with ``deliver_policy`` by_start_time."""

    ack_policy: AckPolicy | None = attrs.field(default=None, converter=_ack_policy)
    """How messages are acknowledged; ``None`` means explicit. Can not be changed."""

    ack_wait: float | None = attrs.field(default=None, converter=duration)
    """
    Seconds until an unacknowledged message is delivered again; the server's default is 30. Where
    ``backoff`` is set its first entry counts instead.
    """

    max_deliver: int | None = None
    """Times that a message is delivered at most; -1 for no limit."""

    backoff: list[float] | None = attrs.field(default=None, converter=durations)
    """Seconds before each redelivery; the last one repeats. At most ``max_deliver`` entries."""

    filter_subject: str | None = None
    """Deliver only messages under this subject or wildcard."""

    filter_subjects: list[str] | None = None
    """Several of those, which may not overlap. Instead of ``filter_subject``."""

    replay_policy: ReplayPolicy | None = attrs.field(default=None, converter=_replay_policy)
    """How fast stored messages are delivered."""

    rate_limit_bps: int | None = None
    """Bits per second at most; push consumers only."""

    sample_freq: str | None = None
    """Share of acknowledgements to send advisories about, such as ``"50%"``."""

    max_waiting: int | None = None
    """Pulls that may wait at one time; the server's default is 512."""

    max_ack_pending: int | None = None
    """Messages that may be unacknowledged at one time; the default is 1000, -1 is no limit."""

    flow_control: bool | None = None
    """Let the server pace a push consumer."""

    headers_only: bool | None = None
    """Deliver headers and the payload's size, not the payload."""

    max_batch: int | None = None
    """Messages that one pull may ask for."""

    max_expires: float | None = attrs.field(default=None, converter=duration)
    """Seconds that one pull may wait."""

    max_bytes: int | None = None
    """Bytes that one pull may ask for."""

    deliver_subject: str | None = None
    """Subject of a push consumer; a consumer without one is pulled from."""

    deliver_group: str | None = None
    """Queue group of a push consumer."""

    idle_heartbeat: float | None = attrs.field(default=None, converter=duration)
    """Seconds between the heartbeats of a push consumer."""

    inactive_threshold: float | None = attrs.field(default=None, converter=duration)
    """
    Seconds without activity until the consumer is removed. The server's default is 5, and never
    for one with a ``durable_name``.
    """

    num_replicas: int | None = None
    """Servers that keep its state; 0 means as many as the stream's."""

    mem_storage: bool | None = None
    """Keep its state in memory even where the stream is on disk."""

    metadata: dict[str, str] | None = None
    """Free key-value pairs. Servers from 2.11 up add some of their own under ``_nats.``."""

    pause_until: dt.datetime | None = None
    """Deliver nothing until then, an aware time. Server 2.11 and later."""

    priority_groups: list[str] | None = None
    """Groups that pulls must name. Server 2.11 and later."""

    priority_policy: PriorityPolicy | None = attrs.field(default=None, converter=_priority_policy)
    """How those pulls share the consumer. Server 2.11 and later."""

    priority_timeout: float | None = attrs.field(default=None, converter=duration)
    """Seconds without a pull until another client is pinned. Server 2.11 and later."""

    direct: bool | None = None
    """Used by servers among themselves for mirrors and sources."""

    sourcing: bool | None = None
    """The consumer serves a mirror or source. Server 2.14 and later."""
