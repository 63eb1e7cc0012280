"""
The description of a consumer in the server's answers.

The fields have the same names as in those answers. The objects are snapshots and never change.
"""

from __future__ import annotations

import datetime as dt

import attrs

from jetsync.values.codec import WireModel
from jetsync.values.consumer_config import ConsumerConfig
from jetsync.values.stream_info import ClusterInfo

__all__ = ["ConsumerInfo", "ConsumerReset", "PauseState", "PriorityGroupState", "SequenceInfo"]


@attrs.frozen(kw_only=True)
class SequenceInfo(WireModel):
    """
    A position, as a consumer sequence and a stream sequence.
    """

    consumer_seq: int = 0
    """Number of deliveries up to this position, including redeliveries."""

    stream_seq: int = 0
    """Sequence of the message in the stream."""

    last_active: dt.datetime | None = None
    """When the position last changed; ``None`` if it never did."""


@attrs.frozen(kw_only=True)
class PriorityGroupState(WireModel):
    """
    The pinned client of a priority group. It gets all messages of the group. Server 2.11 and later.
    """

    group: str = ""
    """Name of the group."""

    pinned_client_id: str | None = None
    """Id that the pinned client sends with its pulls; ``None`` while no client is pinned."""

    pinned_ts: dt.datetime | None = None
    """When the client was pinned."""


@attrs.frozen(kw_only=True)
class ConsumerInfo(WireModel):
    """
    The server's description of a consumer.
    """

    stream_name: str = ""
    """Name of the stream."""

    name: str = ""
    """Name of the consumer."""

    created: dt.datetime | None = None
    """When the consumer was created."""

    config: ConsumerConfig = attrs.field(factory=ConsumerConfig)
    """The configuration, with the server's defaults filled in."""

    delivered: SequenceInfo = attrs.field(factory=SequenceInfo)
    """The position of the last delivery."""

    ack_floor: SequenceInfo = attrs.field(factory=SequenceInfo)
    """All messages up to this position are acknowledged."""

    num_ack_pending: int = 0
    """Messages that were delivered and are not acknowledged yet."""

    num_redelivered: int = 0
    """How many of the messages in ``num_ack_pending`` were delivered more than once."""

    num_waiting: int = 0
    """Number of pulls that wait at the server."""

    num_pending: int = 0
    """Messages that the consumer has not delivered yet."""

    cluster: ClusterInfo | None = None
    """The consumer's cluster, leader and followers."""

    push_bound: bool = False
    """For a push consumer, whether a client is subscribed."""

    paused: bool = False
    """Whether the consumer is paused. Server 2.11 and later."""

    pause_remaining: float | None = None
    """Seconds until delivery resumes; ``None`` unless paused. Server 2.11 and later."""

    ts: dt.datetime | None = None
    """When the server collected these values."""

    priority_groups: list[PriorityGroupState] = attrs.field(factory=list)
    """State of each priority group. Server 2.11 and later."""


@attrs.frozen(kw_only=True)
class PauseState(WireModel):
    """
    The server's answer to a pause or resume; server 2.11 and later.
    """

    paused: bool = False
    """Whether the consumer is paused now. A time in the past does not pause it."""

    pause_until: dt.datetime | None = None
    """When delivery resumes; ``None`` unless paused."""

    pause_remaining: float | None = None
    """Seconds until delivery resumes; ``None`` unless paused."""


@attrs.frozen(kw_only=True)
class ConsumerReset:
    """
    The server's answer to a reset; server 2.14 and later.
    """

    reset_seq: int
    """Stream sequence of the next delivery. If that message is gone, a later one is delivered."""

    info: ConsumerInfo
    """The consumer after the reset."""
