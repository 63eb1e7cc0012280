"""
Headers about the payload: the schema that wrote it, that it is empty on purpose, and its errors.
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
"""The header with the ID of the schema with which the message was encoded."""

SCHEMA_VIOLATION: Final = "Schema-Violation"
"""The header with which ``receive="mark"`` marks a message that violates its contract."""

# Headers of servers and key-value buckets.
OPERATION: Final = "KV-Operation"
TOMBSTONES: Final = frozenset({"DEL", "PURGE"})
EMPTY_ON_PURPOSE: Final = ("Nats-Incr", "Nats-Marker-Reason")
SCHEDULE_TARGET: Final = "Nats-Schedule-Target"
SCHEDULE_SOURCE: Final = "Nats-Schedule-Source"


class Mark(str):
    """
    The value of a mark. Its type distinguishes it from headers that were sent.
    """

    __slots__ = ()


def violation_of(message: jetsync.Message | jetsync.StoredMessage) -> ViolationError | None:
    """
    Return the error of a message that was received with ``receive="mark"``, or None.

    The mark is a header, which any client can send. Programs without the plugin must not trust it.
    """
    said = message.headers.get(SCHEMA_VIOLATION)
    if said is None:
        return None
    try:
        found = json.loads(said)
        violations = [Violation(str(path), str(reason)) for path, reason in found["violations"]]
        return ViolationError(message.subject, str(found["contract"]), violations)
    except (ValueError, TypeError, KeyError, IndexError, RecursionError):
        return ViolationError(message.subject, "unknown", [Violation("$", said)])


def is_message(subject: object, headers: object) -> bool:
    return isinstance(subject, str) and (
        not headers or isinstance(headers, (Mapping, jetsync.Headers))
    )


def bytes_of(data: object) -> bytes | bytearray | None:
    """Return a payload's bytes, or None if the client will reject its type."""
    if isinstance(data, (bytes, bytearray)):
        return data
    if isinstance(data, str):
        # The client rejects text that is not valid UTF-8.
        return data.encode("utf-8", "replace")
    return bytes(data) if isinstance(data, memoryview) else None


def header_of(headers: HeadersInput, name: str) -> str | None:
    value = headers.get(name)
    if value is None or isinstance(value, str):
        return value
    return value[0] if value else None


def is_tombstone(headers: HeadersInput) -> bool:
    """
    Return whether the headers explain an empty payload.

    They do for key deletions, counter increments and markers of the server. Messages with a payload
    are always checked, so that a header cannot bypass a contract.
    """
    return header_of(headers, OPERATION) in TOMBSTONES or any(
        header_of(headers, name) is not None for name in EMPTY_ON_PURPOSE
    )


def is_empty_on_purpose(message: jetsync.Message | jetsync.StoredMessage) -> bool:
    """
    Return whether a received message has no payload to check: it is empty on purpose, or the server
    omitted the payload.
    """
    return not message.data and (is_tombstone(message.headers) or message.omitted_bytes is not None)


def is_forged(headers: jetsync.Headers) -> bool:
    """Return whether the message was sent with a mark."""
    return any(not isinstance(each, Mark) for each in headers.get_all(SCHEMA_VIOLATION))


def marked(
    message: jetsync.Message | jetsync.StoredMessage, error: ViolationError | None
) -> jetsync.Message | jetsync.StoredMessage:
    """Return a message with a mark, or without one."""
    headers = message.headers.copy()
    headers.discard(SCHEMA_VIOLATION)
    if error is not None:
        violations = [(each.path, each.reason) for each in error.violations]
        said = {"contract": error.contract, "violations": violations}
        headers[SCHEMA_VIOLATION] = Mark(json.dumps(said))
    return message.replace(headers=headers)
