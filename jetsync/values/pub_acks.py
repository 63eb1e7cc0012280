"""
What a publish returns: acks, and the reports of many messages.
"""

from __future__ import annotations

import attrs

from jetsync._base.html import html_table
from jetsync.values.outbound import OutboundMessage

__all__ = ["BatchAck", "PubAck", "PublishFailure", "PublishReport"]


@attrs.frozen(slots=True)
class PubAck:
    """
    The server's confirmation that a message is stored.
    """

    stream: str
    """The stream that stored it."""
    sequence: int
    """The sequence in the stream. For a duplicate, the sequence of the stored message."""
    duplicate: bool = False
    """Whether the stream had a message with the same id and dropped this one."""
    domain: str | None = None
    """The JetStream domain, if the server has one."""
    value: int | None = None
    """The counter after the increment, on counter streams."""
    batch_id: str | None = None
    """The id of the batch that the message committed."""
    batch_size: int | None = None
    """The number of messages in that batch."""


@attrs.frozen(slots=True)
class BatchAck:
    """
    The server's confirmation that a batch is stored (ADR-50).
    """

    stream: str
    """The stream that stored it."""
    sequence: int
    """The sequence of the last message; 0 if the server did not report it."""
    batch_id: str
    """The id of the stored batch."""
    size: int
    """The number of messages, except those that are known not to be stored."""
    first_sequence: int | None = None
    """
    The sequence of the first message of an atomic batch, whose messages are stored without a gap.
    ``None`` after fast ingest, or if the server did not report it.
    """
    lost: int = 0
    """The messages of a fast batch that were lost or refused. Always 0 for an atomic batch."""
    duplicate: bool = False
    """
    Whether an earlier attempt was stored and the batch was sent again. The sequences and the id are
    those of the earlier attempt, read from the stream.
    """


@attrs.frozen(slots=True)
class PublishFailure:
    """
    A message of a bulk publish that was not acknowledged.
    """

    index: int
    """Its position in the iterable, from 0."""
    message: OutboundMessage
    """The message."""
    error: Exception
    """Why the message failed."""


@attrs.frozen(slots=True)
class PublishReport:
    """
    The outcome of a bulk publish.
    """

    # For notebooks.
    _repr_html_ = html_table

    count: int
    """The number of acknowledged messages, including duplicates."""
    duplicates: int
    """How many of them the stream already had."""
    first_sequence: int | None
    """The lowest acknowledged sequence; ``None`` if no message was acknowledged."""
    last_sequence: int | None
    """The highest acknowledged sequence; ``None`` if no message was acknowledged."""
    failures: tuple[PublishFailure, ...] = ()
    """The messages that were not acknowledged, in the order of the iterable."""
    exhausted: bool = True
    """
    Whether the whole iterable was read. ``publish_many`` stops reading after too many failures.
    """
    streams: frozenset[str] = attrs.field(default=frozenset(), eq=False)
    """The streams that acknowledged messages. The subject of a message decides its stream."""
    resume_at: int = attrs.field(default=0, eq=False)
    """
    The position in the iterable of ``publish_many`` up to which every message is stored: that of
    the first failure, or the number of all messages. Later messages may be stored, too.
    """
