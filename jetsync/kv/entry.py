"""
One revision of a key, as every way of reading a bucket gives it.
"""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Final, Literal

import attrs

from jetsync._base.integers import read_digits
from jetsync._proto.kv import KeyOperation, operation_of
from jetsync.values.stored import time_of
from jetsync.values.ttl import MarkerReason

if TYPE_CHECKING:
    from jetsync.values.message import Message
    from jetsync.values.stored import StoredMessage

__all__ = ["Entry"]

ORDINARY: Final = 9
"""Tokens of the reply subject of a message, unless its server adds domain and account."""


@attrs.frozen(slots=True)
class Entry:
    """
    A revision of a key: its value, or that it was deleted (ADR-8).
    """

    bucket: str
    """The bucket."""

    key: str
    """The key."""

    value: bytes
    """The value; empty for an operation other than a put, and where only names were asked for."""

    revision: int
    """The place in the bucket: it grows with every change of any key."""

    created: dt.datetime
    """When it was stored, in UTC."""

    operation: KeyOperation = KeyOperation.PUT
    """What it did to the key."""

    delta: int = 0
    """How many entries were still to come behind this one as the server sent it, in a watch."""

    marker: MarkerReason | None = None
    """Why the server itself made this entry, None where a client did (ADR-43)."""

    ttl: float | Literal["never"] | None = None
    """Its time-to-live in seconds, ``"never"``, or None for that of the bucket."""

    @property
    def is_deleted(self) -> bool:
        """Whether it says that the key has no value any more."""
        return self.operation is not KeyOperation.PUT


def stored_entry(bucket: str, key: str, message: StoredMessage) -> Entry:
    """Return the entry that a message of the bucket is."""
    sequence, created = message.sequence, message.timestamp
    headers = message.headers
    if not headers:
        return Entry(bucket, key, message.data, sequence, created)
    operation, marker = operation_of(headers)
    return Entry(bucket, key, message.data, sequence, created, operation, 0, marker, message.ttl)


def delivered_entry(bucket: str, key: str, message: Message) -> Entry:
    """Return the entry that a consumer's message is."""
    # Some ten thousand a second: only what an entry needs is looked at.
    tokens = message.raw_reply.split(b".")
    if len(tokens) == ORDINARY:
        sequence, timestamp, pending = map(read_digits, (tokens[5], tokens[7], tokens[8]))
    else:
        said = message.metadata
        sequence, timestamp, pending = said.stream_sequence, said.timestamp_ns, said.pending
    headers = message.headers
    operation, marker = operation_of(headers)
    return Entry(
        bucket,
        key,
        message.data,
        sequence,
        time_of(timestamp),
        operation,
        pending,
        marker,
        message.ttl if headers else None,
    )
