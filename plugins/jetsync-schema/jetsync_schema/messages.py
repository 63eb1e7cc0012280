"""
What messages say about their documents, in headers: which schema wrote them, that there is none on
purpose, and what is wrong with them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import jetsync
from jetsync_schema.errors import Violation, ViolationError

if TYPE_CHECKING:
    from jetsync.typing import HeadersInput

__all__ = ["SCHEMA_ID", "SCHEMA_VIOLATION", "violation_of"]

SCHEMA_ID: Final = "Schema-Id"
"""Header that says which schema wrote a message, where a contract has several."""

SCHEMA_VIOLATION: Final = "Schema-Violation"
"""Header that a message gets that was read, and breaks its contract; never sent."""

# Headers of servers and key-value buckets.
OPERATION: Final = "KV-Operation"
TOMBSTONES: Final = frozenset({"DEL", "PURGE"})
EMPTY_ON_PURPOSE: Final = ("Nats-Incr", "Nats-Marker-Reason")
SCHEDULE_TARGET: Final = "Nats-Schedule-Target"
SCHEDULE_SOURCE: Final = "Nats-Schedule-Source"
SIZE: Final = "Nats-Msg-Size"
"""Header in which a consumer with ``headers_only`` tells the size of what it leaves out."""


class Mark(str):
    """
    The text of a mark, by which it differs from what others wrote into that header.
    """

    __slots__ = ()


def violation_of(message: jetsync.Message | jetsync.StoredMessage) -> ViolationError | None:
    """
    Return what is wrong with a message that was read with ``receive="mark"``; None if nothing is.

    The mark is a header. A program without the plugin must not believe one that it finds: anybody
    can send it.
    """
    said = message.headers.get(SCHEMA_VIOLATION)
    if said is None:
        return None
    try:
        found = json.loads(said)
        violations = [Violation(str(path), str(reason)) for path, reason in found["violations"]]
        return ViolationError(message.subject, str(found["contract"]), violations)
    except (ValueError, TypeError, KeyError, IndexError):
        return ViolationError(message.subject, "unknown", [Violation("$", said)])


def is_message(subject: object, headers: object) -> bool:
    return isinstance(subject, str) and (
        not headers or isinstance(headers, (Mapping, jetsync.Headers))
    )


def bytes_of(data: object) -> bytes | bytearray | None:
    """Return a payload's bytes, None if it is no payload, which the client refuses."""
    if isinstance(data, (bytes, bytearray)):
        return data
    if isinstance(data, str):
        # What has no UTF-8 form the client refuses, too.
        return data.encode("utf-8", "replace")
    return bytes(data) if isinstance(data, memoryview) else None


def header_of(headers: HeadersInput, name: str) -> str | None:
    value = headers.get(name)
    if value is None or isinstance(value, str):
        return value
    return value[0] if value else None


def is_tombstone(headers: HeadersInput) -> bool:
    """
    Return whether a message without a payload is meant to have none.

    That is so for what deletes a key, for what increments a counter, and for the markers of the
    servers. With a payload none of them is: nobody gets past a contract by a header.
    """
    return header_of(headers, OPERATION) in TOMBSTONES or any(
        header_of(headers, name) is not None for name in EMPTY_ON_PURPOSE
    )


def is_empty_on_purpose(message: jetsync.Message | jetsync.StoredMessage) -> bool:
    """
    Return whether a message that was read has no payload that could be checked: it is meant to have
    none, or the server has left it out.
    """
    return not message.data and (is_tombstone(message.headers) or is_left_out(message.headers))


def is_left_out(headers: jetsync.Headers) -> bool:
    # The last one, as the server's own comes behind those of the message.
    return headers.get_last(SIZE) not in {None, "0"}


def is_forged(headers: jetsync.Headers) -> bool:
    """Return whether somebody else wrote into the header that marks are in."""
    return any(not isinstance(each, Mark) for each in headers.get_all(SCHEMA_VIOLATION))


def marked(
    message: jetsync.Message | jetsync.StoredMessage, error: ViolationError | None
) -> jetsync.Message | jetsync.StoredMessage:
    """Return a message with a mark, or without one."""
    headers = message.headers
    if isinstance(message, jetsync.StoredMessage):
        # It never changes, so it is another one.
        headers = headers.copy()
    headers.discard(SCHEMA_VIOLATION)
    if error is not None:
        violations = [(each.path, each.reason) for each in error.violations]
        said = {"contract": error.contract, "violations": violations}
        headers[SCHEMA_VIOLATION] = Mark(json.dumps(said))
    if isinstance(message, jetsync.StoredMessage):
        return jetsync.StoredMessage(
            message.stream,
            message.subject,
            message.sequence,
            message.timestamp_ns,
            headers,
            message.data,
        )
    return message
