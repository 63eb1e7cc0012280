"""
The description of an account in the server's answers: usage, limits and API level.
"""

from __future__ import annotations

import attrs

from jetsync.values.codec import WireModel

__all__ = ["AccountInfo", "AccountLimits", "AccountTier", "ApiStats"]


@attrs.frozen(kw_only=True)
class AccountLimits(WireModel):
    """
    The limits of an account; -1 means no limit.
    """

    max_memory: int = -1
    """Maximum number of bytes in memory."""

    max_storage: int = -1
    """Maximum number of bytes on disk."""

    max_streams: int = -1
    """Maximum number of streams."""

    max_consumers: int = -1
    """Maximum number of consumers."""

    max_ack_pending: int = -1
    """Maximum number of unacknowledged messages of one consumer."""

    memory_max_stream_bytes: int = -1
    """Maximum size of one stream in memory, in bytes."""

    storage_max_stream_bytes: int = -1
    """Maximum size of one stream on disk, in bytes."""

    max_bytes_required: bool = False
    """Whether every stream must have ``max_bytes``."""


@attrs.frozen(kw_only=True)
class ApiStats(WireModel):
    """
    The API level and request counts of the server that answered.
    """

    level: int = 0
    """API level of that server; 0 before 2.11. Another server may answer the next request."""

    total: int = 0
    """Requests since the server started."""

    errors: int = 0
    """How many of the requests in ``total`` the server answered with an error."""

    inflight: int = 0
    """Requests in progress. Server 2.11 and later."""


@attrs.frozen(kw_only=True)
class AccountTier(WireModel):
    """
    Usage and limits of an account in one tier, such as ``R3`` for streams with three replicas.
    """

    memory: int = 0
    """Bytes in memory."""

    storage: int = 0
    """Bytes on disk."""

    reserved_memory: int = 0
    """Bytes in memory that are reserved by the ``max_bytes`` of streams."""

    reserved_storage: int = 0
    """Bytes on disk that are reserved by the ``max_bytes`` of streams."""

    streams: int = 0
    """Number of streams."""

    consumers: int = 0
    """Number of consumers."""

    limits: AccountLimits = attrs.field(factory=AccountLimits)
    """The limits. In an account with tiers, only those of the tiers are set."""


@attrs.frozen(kw_only=True)
class AccountInfo(AccountTier):
    """
    The server's description of an account. If the account has tiers, the numbers are the totals.
    """

    domain: str | None = None
    """JetStream domain of the server that answered."""

    api: ApiStats = attrs.field(factory=ApiStats)
    """The API level and request counts of the server that answered."""

    tiers: dict[str, AccountTier] = attrs.field(factory=dict)
    """The tiers by name; empty if the account has none."""
