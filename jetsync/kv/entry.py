"""
One revision of a key.
"""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any, Final, Generic, Literal

import attrs

from jetsync._base.integers import read_digits
from jetsync._base.makers import maker
from jetsync._proto.keys import STREAM_PREFIX, KeyOperation, operation_of
from jetsync.errors import DecodeError
from jetsync.values.headers import KV_OPERATION
from jetsync.values.json_payloads import parse_json
from jetsync.values.stored import quick_parts, time_of
from jetsync.values.ttl import MARKER_LINE, MarkerReason

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    from jetsync.values.message import Message
    from jetsync.values.stored import StoredMessage

    ValueT = TypeVar("ValueT", default=bytes)
else:
    # Python has defaults of type variables from 3.13 on. Only type checkers use them.
    from typing import TypeVar

    ValueT = TypeVar("ValueT")

__all__ = ["Entry"]

ORDINARY: Final = 9
"""Tokens of the reply subject of a message, unless its server adds domain and account."""

# Without one of these in its header block, an entry is a put. Most entries are, and to parse the
# headers takes as long as the rest.
_OPERATION_LINE: Final = f"\r\n{KV_OPERATION}:".encode()


@attrs.frozen(slots=True)
class Entry(Generic[ValueT]):
    """
    A revision of a key: a value, or a delete or purge marker (ADR-8).
    """

    bucket: str
    """The bucket."""

    key: str
    """The key."""

    value: ValueT
    """
    The value: bytes, or what the bucket's codec makes of them. ``b""`` for markers, and in a watch
    with ``meta_only``.
    """

    revision: int
    """The revision. Every change of any key in the bucket increases it."""

    created: dt.datetime
    """When the revision was stored, in UTC."""

    operation: KeyOperation = KeyOperation.PUT
    """The change: a put, delete or purge."""

    delta: int = 0
    """For a watch: how many further entries were pending when the server sent this one."""

    marker: MarkerReason | None = None
    """Why the server created this marker; None if a client made the change (ADR-43)."""

    ttl: float | Literal["never"] | None = None
    """The time-to-live in seconds, ``"never"``, or None if that of the bucket applies."""

    @property
    def is_deleted(self) -> bool:
        """Whether this is a marker."""
        return self.operation is not KeyOperation.PUT

    def json(self) -> Any:
        """
        Return the value of the JSON document that the entry holds. Each call parses it.

        Raises:
            DecodeError: The value is not JSON, or the entry is a marker. The error names the
                bucket, the key and the revision.
        """
        if not isinstance(self.value, bytes):
            raise self._undecodable("the bucket's codec has decoded it already: use entry.value")
        return parse_json(self.value, self._undecodable)

    def _undecodable(self, reason: str) -> DecodeError:
        return DecodeError(
            "value",
            reason,
            stream=STREAM_PREFIX + self.bucket,
            sequence=self.revision,
            bucket=self.bucket,
            key=self.key,
        )


_make: Final = maker(Entry, tuple(attrs.fields_dict(Entry)))


def stored_entry(bucket: str, key: str, message: StoredMessage) -> Entry:
    """Return the entry in a stored message of the bucket."""
    sequence, moment, has_headers = quick_parts(message)
    if not has_headers:
        return _make(bucket, key, message.data, sequence, moment, KeyOperation.PUT, 0, None, None)
    operation, marker = operation_of(message.headers)
    return _make(bucket, key, message.data, sequence, moment, operation, 0, marker, message.ttl)


def delivered_entry(bucket: str, key: str, message: Message) -> Entry:
    """Return the entry in a consumer's message."""
    # A watch calls this tens of thousands of times per second, so only the needed parts are parsed.
    tokens = message.raw_reply.split(b".")
    if len(tokens) == ORDINARY:
        sequence, timestamp, pending = map(read_digits, (tokens[5], tokens[7], tokens[8]))
    else:
        said = message.metadata
        sequence, timestamp, pending = said.stream_sequence, said.timestamp_ns, said.pending
    operation, marker, block = KeyOperation.PUT, None, message.raw_headers
    if block is not None and (_OPERATION_LINE in block or MARKER_LINE in block):
        operation, marker = operation_of(message.headers)
    return _make(
        bucket,
        key,
        message.data,
        sequence,
        time_of(timestamp),
        operation,
        pending,
        marker,
        None if block is None else message.ttl,
    )
