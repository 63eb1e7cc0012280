"""
Changes of a key-value bucket: puts, deletes and purges, possibly only at an expected revision.

A change is a message on the subject of its key (ADR-8). Its headers mark deletes and purges.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any, Final

import jetsync
from jetsync_spark.common.errors import RowError
from jetsync_spark.common.headers import ROLLUP
from jetsync_spark.write.columns import OF_BUCKETS

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "ChangeError",
    "Conflict",
    "as_change",
    "compare",
    "conflict_error",
    "conflict_text",
    "parts_of",
    "subject_of",
    "waits_for_key",
]

OPERATION: Final = "KV-Operation"
"""The header of deletes and purges."""

_DELETE: Final = {OPERATION: jetsync.KeyOperation.DELETE.value}
_PURGE: Final = {OPERATION: jetsync.KeyOperation.PURGE.value, ROLLUP: "sub"}
_MARKERS: Final[Mapping[str, dict[str, str] | None]] = {
    "PUT": None,
    "DEL": _DELETE,
    "DELETE": _DELETE,
    "PURGE": _PURGE,
}
"""The headers of each operation. The source returns ``PUT``, ``DEL`` and ``PURGE``."""


class ChangeError(ValueError):
    """
    A row that is not a valid change of a bucket.
    """

    def __init__(self, what: str, cure: str) -> None:
        super().__init__(what)
        self.cure = cure


def as_change(
    message: jetsync.OutboundMessage, operation: str | None, *, is_null: bool, has_history: bool
) -> jetsync.OutboundMessage:
    """
    Make a message with the value of a row a change of a key.

    Args:
        message: A message without headers.
        operation: What it does. None sets the value.
        is_null: Whether the value of the row is null.
        has_history: Whether the bucket keeps several revisions of a key.

    Raises:
        ChangeError: The row is not a valid change.
    """
    try:
        marker = None if operation is None else _MARKERS[operation.upper()]
    except KeyError:
        raise ChangeError(
            f"the operation is {operation!r}", "give PUT, DEL or PURGE, or null for PUT"
        ) from None
    if marker is not None:
        if marker is _DELETE and message.ttl is not None:
            raise ChangeError(
                "a delete marker cannot have a time-to-live", "leave it null, or use PURGE"
            )
        message.data, message.headers = b"", marker
        return message
    if is_null:
        raise ChangeError(
            "the value is null", "give a value, or set a column operation to DEL to delete the key"
        )
    if has_history and message.ttl not in {None, "never"} and not _creates(message):
        raise ChangeError(
            "the bucket keeps earlier revisions, so the previous value would reappear after the "
            "time-to-live",
            "use a bucket with history=1, or write new keys only, with expected_revision 0",
        )
    return message


def _creates(message: jetsync.OutboundMessage) -> bool:
    return message.expect is not None and message.expect.last_subject_sequence == 0


def subject_of(message: Any) -> str:
    """
    Return the subject of a message.
    """
    subject: str = message[0] if type(message) is tuple else message.subject
    return subject


def waits_for_key(message: Any) -> bool:
    """
    Return whether a change cannot follow another one of its key in one atomic batch.

    The server compares expectations and purges with the state before the batch (ADR-50).
    """
    if type(message) is tuple:
        return False
    return message.expect is not None or ROLLUP in (message.headers or {})


class Conflict(enum.Enum):
    """
    Why the server refused a change at an expected revision.
    """

    NONE = enum.auto()
    """The key has the expected revision. The leader was storing another change of it."""

    STORED = enum.auto()
    """The last revision of the key is this change, which an earlier attempt may have stored."""

    OTHER = enum.auto()
    """The key has another revision."""


def compare(
    stream: jetsync.Stream, message: jetsync.OutboundMessage, timeout: float
) -> tuple[Conflict, int]:
    """
    Compare a refused change with the last revision of its key, which the leader is asked for.

    Returns:
        The reason, and the revision of the key, or 0 if it has none.

    Raises:
        JetSyncError: The leader did not answer.
    """
    assert message.expect is not None
    try:
        found = stream.get_last(message.subject, direct=False, timeout=timeout)
    except jetsync.MessageNotFoundError:
        found = None
    revision = 0 if found is None else found.sequence
    if revision == message.expect.last_subject_sequence:
        return Conflict.NONE, revision
    if found is not None and bytes(found.data) == bytes(memoryview(_encoded(message.data))):
        mine = jetsync.Headers(message.headers or {}).get(OPERATION)
        if found.headers.get(OPERATION) == mine:
            return Conflict.STORED, revision
    return Conflict.OTHER, revision


def conflict_text(message: jetsync.OutboundMessage, revision: int) -> str:
    """
    Return why a change was refused.
    """
    assert message.expect is not None
    # The subject is $KV.<bucket>.<key>.
    key = message.subject.split(".", 2)[2]
    has = f"has revision {revision}" if revision else "has no revision"
    return f"key {key!r} {has}, and the row expects {message.expect.last_subject_sequence}"


def conflict_error(
    message: jetsync.OutboundMessage,
    revision: int,
    partition: int,
    row: int,
    policies: str = "skip or deadLetter",
) -> RowError:
    """
    Return the error of a row whose change was refused.

    Args:
        message: The change.
        revision: The revision that its key has.
        partition: The number of the partition.
        row: The number of the row.
        policies: The other values that the option ``onInvalidRow`` may have.
    """
    return RowError(
        conflict_text(message, revision),
        partition=partition,
        row=row,
        column=OF_BUCKETS["expected_sequence"],
        cure="read the bucket again, and compute the row from the revision that the key has now; "
        f"or set onInvalidRow to {policies}",
    )


def parts_of(message: jetsync.OutboundMessage) -> dict[str, Any]:
    """
    Return the columns of a change, other than its key and value.
    """
    expect = message.expect
    return {
        "operation": jetsync.Headers(message.headers or {}).get(OPERATION),
        "ttl": message.ttl,
        "expected_revision": None if expect is None else expect.last_subject_sequence,
    }


def _encoded(data: Any) -> Any:
    return data.encode() if isinstance(data, str) else data
