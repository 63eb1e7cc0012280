"""
What a server says about a consumer.

Field names are the server's own. These are values from one moment: nothing in here changes.
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
    A place in the consumer's own counting and in the stream's.
    """

    consumer_seq: int = 0
    """How many deliveries there were up to here, redeliveries included."""

    stream_seq: int = 0
    """Sequence of the message in the stream."""

    last_active: dt.datetime | None = None
    """When it last moved; ``None`` if it never did."""


@attrs.frozen(kw_only=True)
class PriorityGroupState(WireModel):
    """
    Who is pinned to a priority group; server 2.11 and later.
    """

    group: str = ""
    """Name of the group."""

    pinned_client_id: str | None = None
    """Id that the pinned client sends with its pulls; ``None`` while nobody is pinned."""

    pinned_ts: dt.datetime | None = None
    """Since when it is pinned."""


@attrs.frozen(kw_only=True)
class ConsumerInfo(WireModel):
    """
    A consumer as the server describes it.
    """

    stream_name: str = ""
    """Name of the stream."""

    name: str = ""
    """Name of the consumer."""

    created: dt.datetime | None = None
    """When it was made."""

    config: ConsumerConfig = attrs.field(factory=ConsumerConfig)
    """The configuration, with the server's defaults filled in."""

    delivered: SequenceInfo = attrs.field(factory=SequenceInfo)
    """The last delivery."""

    ack_floor: SequenceInfo = attrs.field(factory=SequenceInfo)
    """Everything up to here is acknowledged."""

    num_ack_pending: int = 0
    """Messages that were delivered and not acknowledged."""

    num_redelivered: int = 0
    """Messages among those that were delivered more than once."""

    num_waiting: int = 0
    """Pulls that wait."""

    num_pending: int = 0
    """Messages that are still to be delivered."""

    cluster: ClusterInfo | None = None
    """Where the consumer lives."""

    push_bound: bool = False
    """Whether somebody listens to a push consumer."""

    paused: bool = False
    """Whether it is paused. Server 2.11 and later."""

    pause_remaining: float | None = None
    """Seconds until it goes on; ``None`` unless paused. Server 2.11 and later."""

    ts: dt.datetime | None = None
    """When the server gathered this."""

    priority_groups: list[PriorityGroupState] = attrs.field(factory=list)
    """State of each priority group. Server 2.11 and later."""


@attrs.frozen(kw_only=True)
class PauseState(WireModel):
    """
    What a server answers to a pause or resume; server 2.11 and later.
    """

    paused: bool = False
    """Whether the consumer is paused now. A pause until a time that has passed does not pause."""

    pause_until: dt.datetime | None = None
    """Until when; ``None`` if it is not paused."""

    pause_remaining: float | None = None
    """Seconds until it goes on; ``None`` unless paused."""


@attrs.frozen(kw_only=True)
class ConsumerReset:
    """
    Where a consumer begins again after a reset; server 2.14 and later.
    """

    reset_seq: int
    """Stream sequence of the next message that will be delivered, or a later one if it is gone."""

    info: ConsumerInfo
    """The consumer after the reset."""
