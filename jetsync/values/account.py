"""
What a server says about an account: what it uses, what it may use, and which API level answered.
"""

from __future__ import annotations

import attrs

from jetsync.values.codec import WireModel

__all__ = ["AccountInfo", "AccountLimits", "AccountTier", "ApiStats"]


@attrs.frozen(kw_only=True)
class AccountLimits(WireModel):
    """
    What an account may use; -1 means no limit.
    """

    max_memory: int = -1
    """Bytes in memory."""

    max_storage: int = -1
    """Bytes on disk."""

    max_streams: int = -1
    """Streams."""

    max_consumers: int = -1
    """Consumers."""

    max_ack_pending: int = -1
    """Messages that a consumer may have unacknowledged."""

    memory_max_stream_bytes: int = -1
    """Bytes of one stream in memory."""

    storage_max_stream_bytes: int = -1
    """Bytes of one stream on disk."""

    max_bytes_required: bool = False
    """Whether every stream must have ``max_bytes``."""


@attrs.frozen(kw_only=True)
class ApiStats(WireModel):
    """
    The JetStream API as the answering server sees it.
    """

    level: int = 0
    """API level of that server; 0 before 2.11. Another server may answer the next request."""

    total: int = 0
    """Requests since the server started."""

    errors: int = 0
    """Requests among those that were answered with an error."""

    inflight: int = 0
    """Requests being served. Server 2.11 and later."""


@attrs.frozen(kw_only=True)
class AccountTier(WireModel):
    """
    What an account uses and may use in one tier, such as ``R3``.
    """

    memory: int = 0
    """Bytes in memory."""

    storage: int = 0
    """Bytes on disk."""

    reserved_memory: int = 0
    """Bytes of memory set aside by the ``max_bytes`` of streams."""

    reserved_storage: int = 0
    """Bytes of disk set aside likewise."""

    streams: int = 0
    """Streams."""

    consumers: int = 0
    """Consumers."""

    limits: AccountLimits = attrs.field(factory=AccountLimits)
    """What it may use; not set in the totals of an account that has tiers."""


@attrs.frozen(kw_only=True)
class AccountInfo(AccountTier):
    """
    An account as the server describes it; in an account with tiers these are the totals.
    """

    domain: str | None = None
    """JetStream domain of the server that answered."""

    api: ApiStats = attrs.field(factory=ApiStats)
    """The API, with its level."""

    tiers: dict[str, AccountTier] = attrs.field(factory=dict)
    """Each tier by its name; empty where the account has none."""
