"""
Check that the server and the stream support a batch, before sending it.

Servers before 2.12 drop ``allow_atomic`` and servers before 2.14 drop ``allow_batched``. They store
the messages of a batch one by one. The configuration that the server returns for the stream is the
only reliable sign (ADR-50; seen on servers 2.10 to 2.15).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jetsync import errors
from jetsync.values.server_versions import ATOMIC_LEVEL, BROKEN_ATOMIC, FAST_LEVEL

if TYPE_CHECKING:
    from collections.abc import Callable

    from jetsync._api.context import Context
    from jetsync._api.known_streams import KnownStream
    from jetsync._base.deadline import Deadline


def require_atomic(known: KnownStream, context: Context, *, broken_servers: bool) -> None:
    """
    Raise unless *known* stores atomic batches and acknowledges them.

    Args:
        known: The stream.
        context: Has the version of the connected server, if the stream has none.
        broken_servers: Whether to accept servers whose batches are known to be broken.

    Raises:
        NotSupportedError: The server is too old, or the stream sends no acks.
        AtomicPublishDisabledError: The stream does not allow it.
    """
    version = known.version or context.server.version
    if version in BROKEN_ATOMIC and not broken_servers:
        raise errors.NotSupportedError(
            "an atomic batch",
            needs=f"server 2.12.5 or later, because this one {BROKEN_ATOMIC[version]} "
            "(broken_servers=True uses it anyway)",
            server=version,
        )
    if known.level < ATOMIC_LEVEL:
        raise errors.NotSupportedError(
            "an atomic batch", needs="server 2.12 or later", server=version
        )
    if not known.config.allow_atomic:
        raise errors.AtomicPublishDisabledError(
            description="atomic publish is disabled: the stream needs allow_atomic=True",
            stream=known.name,
        )
    if known.config.no_ack:
        raise _no_acks("an atomic batch", known)


def require_fast(known: KnownStream, context: Context) -> None:
    """
    Raise unless *known* supports fast ingest.

    Raises:
        NotSupportedError: The server is too old, or the stream sends no acks.
        FastPublishDisabledError: The stream does not allow it.
    """
    if known.level < FAST_LEVEL:
        version = known.version or context.server.version
        raise errors.NotSupportedError("fast ingest", needs="server 2.14 or later", server=version)
    if not known.config.allow_batched:
        raise errors.FastPublishDisabledError(
            description="batch publish is disabled: the stream needs allow_batched=True",
            stream=known.name,
        )
    if known.config.no_ack:
        raise _no_acks("fast ingest", known)


def _no_acks(feature: str, known: KnownStream) -> errors.NotSupportedError:
    return errors.NotSupportedError(
        feature, needs=f"acks, but stream {known.name!r} has no_ack=True"
    )


def stream_for(
    subject: str, known: KnownStream, context: Context, deadline: Deadline
) -> KnownStream:
    """
    Return *known* if it stores *subject*; otherwise look the stream of *subject* up and return it.

    Raises:
        InvalidSubjectError: Another stream stores *subject*.
    """
    if known.takes(subject):
        return known
    # The stream may have been given more subjects since it was looked up.
    now = context.streams.find(subject, deadline, fresh=True)
    check_same_stream(subject, known, now)
    return now


def check_same_stream(subject: str, known: KnownStream, other: KnownStream) -> None:
    """Raise InvalidSubjectError if *subject* belongs to *other* and that is not *known*."""
    if other.name != known.name:
        raise errors.InvalidSubjectError(
            subject,
            f"it belongs to stream {other.name!r}, but the batch belongs to {known.name!r}",
        )


def find_capable(
    find: Callable[..., KnownStream],
    require: Callable[[KnownStream], None],
    name: str,
    deadline: Deadline,
) -> KnownStream:
    """Return the stream that *find* finds by *name*, and raise unless *require* accepts it."""
    known = find(name, deadline)
    try:
        require(known)
    except (
        errors.NotSupportedError,
        errors.AtomicPublishDisabledError,
        errors.FastPublishDisabledError,
    ):
        # The stream may have been reconfigured since jetsync looked it up.
        known = find(name, deadline, fresh=True)
        require(known)
    return known
