"""
What servers answer to requests of the system account.

The fields have the same names as in those answers. The most used ones are typed, and ``extra`` has
all others. Durations that servers send as text, such as ``1h2m``, stay text.
"""

from __future__ import annotations

import datetime as dt
from typing import Any

import attrs

from jetsync.values.account import ApiStats
from jetsync.values.codec import WireModel
from jetsync.values.consumer_info import ConsumerInfo
from jetsync.values.stream_config import StreamConfig
from jetsync.values.stream_info import ClusterInfo, StreamState

__all__ = [
    "ConnectionDetail",
    "Connz",
    "Healthz",
    "Jsz",
    "JszAccount",
    "JszStream",
    "ServerIdentity",
    "ServerReport",
    "Statsz",
    "Subsz",
    "SubszSubscription",
    "Traffic",
    "Varz",
]


@attrs.frozen(kw_only=True)
class ServerIdentity(WireModel):
    """
    The server that sent an answer.
    """

    name: str = ""
    """Name from the server's configuration; its id if it has none."""

    id: str = ""
    """Id that the server creates when it starts."""

    cluster: str | None = None
    """Name of the cluster; ``None`` if there is none."""

    domain: str | None = None
    """JetStream domain."""

    ver: str = ""
    """Version."""

    tags: list[str] = attrs.field(factory=list)
    """Tags from the server's configuration."""

    jetstream: bool = False
    """Whether JetStream is enabled on this server."""

    time: dt.datetime | None = None
    """When the server sent the answer."""


@attrs.frozen(kw_only=True)
class ServerReport(WireModel):
    """
    The base of all answers.
    """

    server: ServerIdentity = attrs.field(factory=ServerIdentity)
    """The server that sent the answer."""


@attrs.frozen(kw_only=True)
class Varz(ServerReport):
    """
    General information about a server.
    """

    version: str = ""
    """Version."""

    start: dt.datetime | None = None
    """When the server started."""

    now: dt.datetime | None = None
    """When the server collected these values."""

    uptime: str = ""
    """Time since the start, as text."""

    cores: int = 0
    """Number of processors."""

    cpu: float = 0.0
    """Load in percent of one processor."""

    mem: int = 0
    """Bytes of memory in use."""

    connections: int = 0
    """Open client connections."""

    total_connections: int = 0
    """Client connections since the start."""

    subscriptions: int = 0
    """Number of subscriptions."""

    in_msgs: int = 0
    """Messages received since the start."""

    out_msgs: int = 0
    """Messages sent since the start."""

    in_bytes: int = 0
    """Bytes received since the start."""

    out_bytes: int = 0
    """Bytes sent since the start."""

    slow_consumers: int = 0
    """How often the server disconnected a client that was too slow."""

    system_account: str | None = None
    """The system account."""

    @property
    def sync_always(self) -> bool | None:
        """
        Whether the disk has each message before the server acknowledges it, because its
        configuration has ``sync_interval: always``; None without JetStream.
        """
        config = self._store()
        return None if config is None else config.get("sync_always") is True

    @property
    def sync_interval(self) -> float | None:
        """
        Seconds after which the disk has a message at the latest, unless :attr:`sync_always`; None
        without JetStream.
        """
        interval = (self._store() or {}).get("sync_interval")
        return interval / 1e9 if isinstance(interval, int) else None

    def _store(self) -> dict[str, Any] | None:
        """Return the configuration of JetStream on the server; None if there is none."""
        jetstream = self.extra.get("jetstream")
        config = jetstream.get("config") if isinstance(jetstream, dict) else None
        return config if isinstance(config, dict) else None


@attrs.frozen(kw_only=True)
class Traffic(WireModel):
    """
    Messages and bytes since the server's start.
    """

    msgs: int = 0
    """Number of messages."""

    bytes: int = 0
    """Number of bytes."""


@attrs.frozen(kw_only=True)
class Statsz(ServerReport):
    """
    The statistics that a server also publishes regularly.
    """

    start: dt.datetime | None = None
    """When the server started."""

    cpu: float = 0.0
    """Load in percent of one processor."""

    mem: int = 0
    """Bytes of memory in use."""

    connections: int = 0
    """Open client connections."""

    active_accounts: int = 0
    """Accounts with client connections."""

    subscriptions: int = 0
    """Number of subscriptions."""

    sent: Traffic = attrs.field(factory=Traffic)
    """What the server sent, also to other servers."""

    received: Traffic = attrs.field(factory=Traffic)
    """What the server received, also from other servers."""

    slow_consumers: int = 0
    """How often the server disconnected a client that was too slow."""

    active_servers: int = 0
    """How many servers this server knows, itself included."""


@attrs.frozen(kw_only=True)
class ConnectionDetail(WireModel):
    """
    One client connection.
    """

    cid: int = 0
    """Number of the connection on its server."""

    ip: str = ""
    """Address of the client."""

    port: int = 0
    """Port of the client."""

    name: str | None = None
    """Name that the client sent."""

    lang: str | None = None
    """Language of the client."""

    account: str | None = None
    """Account."""

    authorized_user: str | None = None
    """User."""

    start: dt.datetime | None = None
    """When the client connected."""

    last_activity: dt.datetime | None = None
    """When the client or the server last sent a message."""

    stop: dt.datetime | None = None
    """When the connection was closed; ``None`` if it is open."""

    reason: str | None = None
    """Why it was closed."""

    rtt: str | None = None
    """Round-trip time, as text."""

    idle: str = ""
    """Time since the last message, as text."""

    pending_bytes: int = 0
    """Bytes that the server has not sent yet."""

    in_msgs: int = 0
    """Messages from the client."""

    out_msgs: int = 0
    """Messages to the client."""

    in_bytes: int = 0
    """Bytes from the client."""

    out_bytes: int = 0
    """Bytes to the client."""

    subscriptions: int = 0
    """Number of subscriptions."""

    subscriptions_list: list[str] = attrs.field(factory=list)
    """Their subjects, if the request asked for them."""


@attrs.frozen(kw_only=True)
class Connz(ServerReport):
    """
    The client connections of a server, in pages.
    """

    total: int = 0
    """How many connections match the request."""

    offset: int = 0
    """How many connections were left out before this page."""

    limit: int = 0
    """How many connections a page may have."""

    connections: list[ConnectionDetail] = attrs.field(factory=list)
    """The connections."""


@attrs.frozen(kw_only=True)
class SubszSubscription(WireModel):
    """
    One subscription.
    """

    account: str | None = None
    """Account."""

    subject: str = ""
    """Subject."""

    qgroup: str | None = None
    """Queue group."""

    msgs: int = 0
    """Messages that were sent to it."""

    cid: int = 0
    """Number of the connection on its server."""


@attrs.frozen(kw_only=True)
class Subsz(ServerReport):
    """
    The subscriptions of a server.
    """

    num_subscriptions: int = 0
    """Number of subscriptions."""

    total: int = 0
    """How many subscriptions match the request. 0 if it did not ask for a list."""

    offset: int = 0
    """How many subscriptions were left out before this page."""

    limit: int = 0
    """How many subscriptions a page may have."""

    subscriptions_list: list[SubszSubscription] = attrs.field(factory=list)
    """The subscriptions, if the request asked for them."""


@attrs.frozen(kw_only=True)
class JszStream(WireModel):
    """
    One stream on a server.
    """

    name: str = ""
    """Name of the stream."""

    created: dt.datetime | None = None
    """When it was created."""

    cluster: ClusterInfo | None = None
    """Its cluster, leader and followers."""

    config: StreamConfig | None = None
    """Its configuration, if the request asked for it."""

    state: StreamState = attrs.field(factory=StreamState)
    """Its messages, as this server knows them."""

    consumer_detail: list[ConsumerInfo] = attrs.field(factory=list)
    """Its consumers, if the request asked for them."""


@attrs.frozen(kw_only=True)
class JszAccount(WireModel):
    """
    One account with JetStream on a server.
    """

    name: str = ""
    """Name of the account."""

    memory: int = 0
    """Bytes in memory."""

    storage: int = 0
    """Bytes on disk."""

    api: ApiStats = attrs.field(factory=ApiStats)
    """Request counts."""

    stream_detail: list[JszStream] = attrs.field(factory=list)
    """Its streams on this server, if the request asked for them."""


@attrs.frozen(kw_only=True)
class Jsz(ServerReport):
    """
    JetStream on a server.
    """

    disabled: bool = False
    """Whether the server has no JetStream."""

    memory: int = 0
    """Bytes in memory."""

    storage: int = 0
    """Bytes on disk."""

    accounts: int = 0
    """Number of accounts with JetStream."""

    ha_assets: int = 0
    """Replicated streams and consumers on this server, and the cluster's own group."""

    api: ApiStats = attrs.field(factory=ApiStats)
    """The API level and request counts of the server."""

    streams: int = 0
    """Number of streams."""

    consumers: int = 0
    """Number of consumers."""

    messages: int = 0
    """Number of messages in these streams."""

    bytes: int = 0
    """Number of bytes in these streams."""

    meta_cluster: ClusterInfo | None = None
    """The servers with JetStream, and the one that leads them; ``None`` without a cluster."""

    account_details: list[JszAccount] = attrs.field(factory=list)
    """The accounts, if the request asked for them."""


@attrs.frozen(kw_only=True)
class Healthz(ServerReport):
    """
    Whether a server is healthy.
    """

    status: str = ""
    """``ok``, or another word such as ``unavailable``."""

    status_code: int = 0
    """The HTTP status that the monitoring port would return; 200 if the server is healthy."""

    error: str | None = None
    """Why the server is not healthy."""

    @property
    def ok(self) -> bool:
        """Whether the server is healthy."""
        return self.status == "ok"
