"""
The options of an atomic batch, and the steps after a failed commit.

A batch is always sent again as a whole, with another id. This happens only if none of its messages
can be stored already, or if message ids prevent the stream from storing them twice.

Three files share the decisions after a lost commit ack. ``_proto/batch.py`` decides whether the
outcome is unknown. ``atomic.py`` decides whether to send the batch again or to raise. If the stream
then refuses the ids as duplicates, this file decides whether the earlier attempt was stored.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Literal

import attrs
from attrs.validators import optional

from jetsync import errors
from jetsync._api.known_streams import KnownStream
from jetsync._api.messages import leader_get
from jetsync._base.deadline import Deadline, Seconds
from jetsync._base.fields import wrong_type
from jetsync.publish.errors import BatchOutcomeUnknownError
from jetsync.values import headers as names
from jetsync.values.outbound import BatchAck
from jetsync.values.ttl import ttl_header

if TYPE_CHECKING:
    from jetsync._api.context import Context
    from jetsync.publish.atomic import AtomicBatch
    from jetsync.publish.atomic_attempt import BatchAttempt

# Bytes of a batch id (ADR-50).
MAX_ID_BYTES: Final = 64

NO_STREAM: Final = (errors.NoStreamResponseError, errors.TemporarilyUnavailableError)

# After these errors nothing of a batch is stored, and another attempt may succeed.
SAFE_TO_REPEAT: Final = (
    *NO_STREAM,
    errors.TooManyInflightError,
    errors.BatchIncompleteError,
    errors.ConnectionLostError,
    errors.DisconnectedError,
)


def _check_batch_id(_options: object, _field: object, value: Any) -> None:
    if not isinstance(value, str):
        raise wrong_type("batch_id", "a str", value)
    # With an empty id the server would store the messages one by one.
    if not 0 < len(value.encode("utf-8", "replace")) <= MAX_ID_BYTES:
        raise errors.InvalidArgumentError(
            f"batch_id must have 1 to {MAX_ID_BYTES} bytes", argument="batch_id"
        )
    if not value.isprintable() or value != value.strip():
        raise errors.InvalidArgumentError(
            f"batch_id {value!r} has control characters or surrounding spaces",
            argument="batch_id",
        )


def _check_ttl(_options: object, _field: object, value: Seconds | Literal["never"]) -> None:
    ttl_header(value)


@attrs.frozen(kw_only=True)
class AtomicOptions:
    """The options of one atomic batch; see :meth:`jetsync.JetStream.atomic_batch`."""

    # Seconds for each call.
    timeout: float
    batch_id: str | None = attrs.field(default=None, validator=optional(_check_batch_id))
    ack_first: bool = True
    ack_every: int = 0
    ttl: Seconds | Literal["never"] | None = attrs.field(
        default=None, validator=optional(_check_ttl)
    )
    broken_servers: bool = False
    # Looks up the stream of the batch by the subject of its first message; None asks the server.
    find_stream: Callable[[str, Deadline], KnownStream] | None = None
    # How often a batch is sent again if no stream answered, and the seconds before each attempt.
    retries: int = 0
    retry_wait: float = 0.25


def find_stored(
    context: Context, attempt: BatchAttempt, ids: set[str], deadline: Deadline
) -> BatchAck | None:
    """
    Return the ack of an earlier attempt if the stream has its messages; None if unsure.

    Stored messages carry the id of their batch and have consecutive sequences.

    Args:
        context: Context of the batch.
        attempt: The last attempt.
        ids: The ids of all attempts.
        deadline: Deadline of the call.
    """
    engine, stream = attempt.engine, attempt.known.name
    size = len(engine.items)
    for subject in dict.fromkeys((engine.items[-1][0], engine.items[0][0])):
        # A message that cannot be read, or that another publisher wrote, proves nothing.
        with contextlib.suppress(errors.JetSyncError, KeyError, ValueError):
            message = leader_get(context, stream, {"last_by_subj": subject.decode()}, deadline)
            batch_id = message.headers.get(names.BATCH_ID, "")
            if batch_id in ids:
                first = message.sequence - int(message.headers[names.BATCH_SEQUENCE]) + 1
                ack = BatchAck(stream, first + size - 1, batch_id, size, first, duplicate=True)
                engine.found_stored(ack)
                return ack
    return None


def batch_still_unknown(
    batch: AtomicBatch, attempt: BatchAttempt | None, certain: Exception, reason: str | None = None
) -> BatchOutcomeUnknownError:
    """Return the error of a batch whose last attempt failed after one with unknown outcome."""
    assert attempt is not None
    attempt.engine.in_doubt()
    error = BatchOutcomeUnknownError(
        attempt.engine.items[-1][0].decode(),
        batch_id=attempt.id,
        # A batch without ids is not sent again after an unknown outcome.
        has_message_ids=True,
        reason="an earlier attempt got no answer, and "
        + (reason or f"the last one failed: {certain}"),
    )
    error.batch = batch
    error.__cause__ = certain
    return error
