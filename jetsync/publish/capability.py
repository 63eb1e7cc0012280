"""
Check, before sending, that the server supports what a message or batch asks for.

Servers before 2.12 drop ``allow_atomic`` and servers before 2.14 ``allow_batched``, and store the
messages of a batch one by one; what they echo of a stream's configuration is the only sure sign.
Sources: facts about servers 2.10 to 2.15; ADR-50.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from jetsync.errors import (
    AtomicPublishDisabledError,
    FastPublishDisabledError,
    NotSupportedError,
)
from jetsync.values.echo import EXPECTED_SUBJECT_NEED, TTL_NEED, require

if TYPE_CHECKING:
    from jetsync._api.known_streams import KnownStream
    from jetsync.values.outbound import OutboundMessage
    from jetsync.values.server_info import ServerInfo

ATOMIC_LEVEL: Final = 2
"""API level from which servers have atomic batches."""

MARKER_LEVEL: Final = 4
"""API level from which a batch can be committed without a message, and may change counters."""

FAST_LEVEL: Final = 4
"""API level from which servers have fast ingest."""

BROKEN: Final = {
    "2.12.0": "checks the expectations of all messages against the last one's subject",
    "2.12.1": "commits a batch without a message that it refused",
}
"""Servers whose atomic batches are not atomic, and why."""


def require_message(message: OutboundMessage, server: ServerInfo) -> None:
    """
    Raise unless the server knows the headers of a message that older ones ignore.

    Args:
        message: The message.
        server: The server that the client is connected to.

    Raises:
        NotSupportedError: It is too old for a time-to-live, or for a condition on another subject.
    """
    if message.ttl is not None:
        require("a time-to-live of a message", TTL_NEED, server.version)
    if message.expect is not None and message.expect.last_subject_sequence_subject is not None:
        require("last_subject_sequence_subject", EXPECTED_SUBJECT_NEED, server.version)


def require_atomic(known: KnownStream, server: str, *, broken_servers: bool) -> None:
    """
    Raise unless *known* takes atomic batches whole and confirms them.

    Args:
        known: The stream.
        server: Version of the connected server, for the text where the stream does not tell.
        broken_servers: Whether servers are used whose batches are known to break.

    Raises:
        NotSupportedError: The server, or the stream without acks, cannot do it.
        AtomicPublishDisabledError: The stream could, and does not allow it.
    """
    version = known.version or server
    if known.level < ATOMIC_LEVEL:
        raise NotSupportedError("an atomic batch", needs="server 2.12 or later", server=version)
    if version in BROKEN and not broken_servers:
        raise NotSupportedError(
            "an atomic batch",
            needs=f"server 2.12.5 or later, as this one {BROKEN[version]} "
            "(broken_servers=True to use it all the same)",
            server=version,
        )
    if not known.config.allow_atomic:
        raise AtomicPublishDisabledError(
            description="atomic publish is disabled: the stream needs allow_atomic=True",
            stream=known.name,
        )
    _require_acks("an atomic batch", known)


def require_fast(known: KnownStream, server: str) -> None:
    """
    Raise unless *known* takes fast ingest.

    Raises:
        NotSupportedError: The server, or the stream without acks, cannot do it.
        FastPublishDisabledError: The stream could, and does not allow it.
    """
    if known.level < FAST_LEVEL:
        raise NotSupportedError(
            "fast ingest", needs="server 2.14 or later", server=known.version or server
        )
    if not known.config.allow_batched:
        raise FastPublishDisabledError(
            description="batch publish is disabled: the stream needs allow_batched=True",
            stream=known.name,
        )
    _require_acks("fast ingest", known)


def _require_acks(feature: str, known: KnownStream) -> None:
    if known.config.no_ack:
        raise NotSupportedError(feature, needs=f"acks, which stream {known.name!r} does not send")
