"""
The description of a stream in the server's answers.

The fields have the names of the server. The objects are snapshots and never change.
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
    Messages that the server could not read back from a stream's files.
    """

    msgs: list[int] | None = None
    """Sequences of the lost messages."""

    bytes: int = 0
    """Size of these messages in bytes."""


@attrs.frozen(kw_only=True)
class StreamState(WireModel):
    """
    The contents of a stream, as counts and sequences.
    """

    messages: int = 0
    """Messages in the stream."""

    bytes: int = 0
    """Size of these messages in bytes."""

    first_seq: int = 0
    """Sequence of the first message. If all messages were removed, this is ``last_seq + 1``."""

    first_ts: dt.datetime | None = None
    """When the first message was stored; ``None`` in an empty stream."""

    last_seq: int = 0
    """Sequence of the last message, even if it was removed; 0 if the stream never had one."""

    last_ts: dt.datetime | None = None
    """When the last message was stored; ``None`` if the stream never had one."""

    num_subjects: int = 0
    """Number of different subjects in the stream."""

    subjects: dict[str, int] = attrs.field(factory=dict)
    """Messages per subject. Only present if the request had a ``subjects_filter``."""

    num_deleted: int = 0
    """Number of sequences between ``first_seq`` and ``last_seq`` that have no message."""

    deleted: list[int] = attrs.field(factory=list)
    """The sequences without a message. Only present if the request had ``deleted_details``."""

    lost: LostStreamData | None = None
    """Messages that the server could not read back; ``None`` if there are none."""

    consumer_count: int = 0
    """Number of consumers."""


@attrs.frozen(kw_only=True)
class PeerInfo(WireModel):
    """
    One follower of a replicated stream or consumer.
    """

    name: str = ""
    """Name of the server."""

    current: bool = False
    """Whether the follower was seen recently and is up to date."""

    offline: bool = False
    """Whether the follower has not been seen recently."""

    active: float | None = None
    """Seconds since the follower was last active; ``None`` if it never was."""

    lag: int = 0
    """How many operations of the leader the follower still has to apply."""

    peer: str = ""
    """Unique id of the server."""

    pending: bool = False
    """Whether the server is assigned to the group but has not joined yet. Server 2.15 and later."""


@attrs.frozen(kw_only=True)
class ClusterInfo(WireModel):
    """
    The cluster, leader and followers of a stream or consumer.
    """

    name: str | None = None
    """Name of the cluster; ``None`` on a single server."""

    leader: str | None = None
    """Name of the leader; ``None`` while there is none."""

    replicas: list[PeerInfo] = attrs.field(factory=list)
    """The followers."""

    raft_group: str | None = None
    """Name of the Raft group. Server 2.11 and later."""

    leader_since: dt.datetime | None = None
    """When the leader was elected. Server 2.12 and later."""

    system_account: bool = False
    """Whether replication uses the system account. Server 2.12 and later."""

    traffic_account: str | None = None
    """The account that replication uses. Server 2.12 and later."""

    desired: dict[str, Any] | None = None
    """The target of a move of the stream or consumer. Server 2.15 and later."""


@attrs.frozen(kw_only=True)
class StreamSourceInfo(WireModel):
    """
    The progress of a mirror or source.
    """

    name: str = ""
    """Name of the stream that is copied."""

    external: ExternalStream | None = None
    """The location of that stream, if it is in another account or domain."""

    lag: int = 0
    """How many messages are not copied yet."""

    active: float | None = None
    """Seconds since anything arrived from that stream; ``None`` if nothing ever did."""

    error: dict[str, Any] | None = None
    """The last error: ``code``, ``err_code``, ``description``."""

    filter_subject: str | None = None
    """The subject or wildcard that is copied."""

    subject_transforms: list[SubjectTransform] | None = None
    """How subjects are rewritten when messages are copied."""


@attrs.frozen(kw_only=True)
class StreamAlternate(WireModel):
    """
    A stream that has the same messages: the stream itself or a mirror.
    """

    name: str = ""
    """Name of the stream or mirror."""

    domain: str | None = None
    """Its JetStream domain."""

    cluster: str | None = None
    """Its cluster."""


@attrs.frozen(kw_only=True)
class StreamInfo(WireModel):
    """
    The server's description of a stream.
    """

    config: StreamConfig = attrs.field(factory=StreamConfig)
    """The configuration, with the server's defaults filled in."""

    created: dt.datetime | None = None
    """When the stream was created."""

    state: StreamState = attrs.field(factory=StreamState)
    """The contents of the stream."""

    domain: str | None = None
    """JetStream domain of the server that answered."""

    cluster: ClusterInfo | None = None
    """The stream's cluster, leader and followers."""

    mirror: StreamSourceInfo | None = None
    """The progress of the copy, if the stream is a mirror."""

    sources: list[StreamSourceInfo] = attrs.field(factory=list)
    """The progress of each source."""

    alternates: list[StreamAlternate] = attrs.field(factory=list)
    """In a cluster: the stream and its mirrors, nearest first. Empty if there is no mirror."""

    ts: dt.datetime | None = None
    """When the server collected these values. Server 2.10 and later."""
