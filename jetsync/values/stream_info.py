"""
What a server says about a stream.

Field names are the server's own. These are values from one moment: nothing in here changes.
"""

from __future__ import annotations

import datetime as dt
from typing import Any

import attrs

from jetsync.values.codec import WireModel
from jetsync.values.stream_config import ExternalStream, StreamConfig, SubjectTransform

__all__ = [
    "ClusterInfo",
    "LostStreamData",
    "PeerInfo",
    "StreamAlternate",
    "StreamInfo",
    "StreamSourceInfo",
    "StreamState",
]


@attrs.frozen(kw_only=True)
class LostStreamData(WireModel):
    """
    What a stream could not read back from its files.
    """

    msgs: list[int] | None = None
    """Sequences of the lost messages."""

    bytes: int = 0
    """How many bytes they had."""


@attrs.frozen(kw_only=True)
class StreamState(WireModel):
    """
    What is in a stream.
    """

    messages: int = 0
    """Messages in the stream."""

    bytes: int = 0
    """Bytes that they take."""

    first_seq: int = 0
    """Sequence of the first message; one past the last in a stream that was emptied."""

    first_ts: dt.datetime | None = None
    """When the first message was stored; ``None`` in an empty stream."""

    last_seq: int = 0
    """Sequence of the last message, removed or not; 0 if there never was one."""

    last_ts: dt.datetime | None = None
    """When it was stored; ``None`` if there never was one."""

    num_subjects: int = 0
    """Different subjects in the stream."""

    subjects: dict[str, int] = attrs.field(factory=dict)
    """Messages per subject, only where the request had a ``subjects_filter``."""

    num_deleted: int = 0
    """Messages that are missing between the first and the last."""

    deleted: list[int] = attrs.field(factory=list)
    """Their sequences, only where the request had ``deleted_details``."""

    lost: LostStreamData | None = None
    """What could not be read back, if anything."""

    consumer_count: int = 0
    """Consumers of the stream."""


@attrs.frozen(kw_only=True)
class PeerInfo(WireModel):
    """
    One follower of a replicated stream or consumer.
    """

    name: str = ""
    """Name of the server."""

    current: bool = False
    """Whether it was seen recently and has caught up."""

    offline: bool = False
    """Whether it was not seen recently."""

    active: float | None = None
    """Seconds since it was last active; ``None`` for never."""

    lag: int = 0
    """Operations that it is behind."""

    peer: str = ""
    """Unique id of the server."""

    pending: bool = False
    """Whether it is assigned and has not joined yet. Server 2.15 and later."""


@attrs.frozen(kw_only=True)
class ClusterInfo(WireModel):
    """
    Where a stream or consumer lives.
    """

    name: str | None = None
    """Name of the cluster; ``None`` on a single server."""

    leader: str | None = None
    """Name of the leading server; ``None`` while there is none."""

    replicas: list[PeerInfo] = attrs.field(factory=list)
    """The followers."""

    raft_group: str | None = None
    """Name of the Raft group. Server 2.11 and later."""

    leader_since: dt.datetime | None = None
    """Since when the leader leads. Server 2.12 and later."""

    system_account: bool = False
    """Whether replication goes through the system account. Server 2.12 and later."""

    traffic_account: str | None = None
    """Account that replication goes through. Server 2.12 and later."""

    desired: dict[str, Any] | None = None
    """Where a move of the stream or consumer is heading. Server 2.15 and later."""


@attrs.frozen(kw_only=True)
class StreamSourceInfo(WireModel):
    """
    How far a mirror or source has come.
    """

    name: str = ""
    """Name of the other stream."""

    external: ExternalStream | None = None
    """Where it is, if not in this account and domain."""

    lag: int = 0
    """Messages that are still to come."""

    active: float | None = None
    """Seconds since something came; ``None`` if nothing ever did."""

    error: dict[str, Any] | None = None
    """The last error: ``code``, ``err_code``, ``description``."""

    filter_subject: str | None = None
    """The filter that is applied."""

    subject_transforms: list[SubjectTransform] | None = None
    """How subjects are rewritten on the way."""


@attrs.frozen(kw_only=True)
class StreamAlternate(WireModel):
    """
    A mirror that may be read instead.
    """

    name: str = ""
    """Name of the mirror."""

    domain: str | None = None
    """Its JetStream domain."""

    cluster: str | None = None
    """Its cluster."""


@attrs.frozen(kw_only=True)
class StreamInfo(WireModel):
    """
    A stream as the server describes it.
    """

    config: StreamConfig = attrs.field(factory=StreamConfig)
    """The configuration, with the server's defaults filled in."""

    created: dt.datetime | None = None
    """When the stream was made."""

    state: StreamState = attrs.field(factory=StreamState)
    """What is in it."""

    domain: str | None = None
    """JetStream domain of the server that answered."""

    cluster: ClusterInfo | None = None
    """Where the stream lives."""

    mirror: StreamSourceInfo | None = None
    """How far it has come, if it is a mirror."""

    sources: list[StreamSourceInfo] = attrs.field(factory=list)
    """How far each source has come."""

    alternates: list[StreamAlternate] = attrs.field(factory=list)
    """Mirrors that may be read instead, the nearest first."""

    ts: dt.datetime | None = None
    """When the server gathered this. Server 2.10 and later."""
