"""
The steps after a failed commit of an atomic batch.

A batch is always sent again as a whole, with another id. This happens only if none of its messages
can be stored already, or if message ids prevent the stream from storing them twice.

Three files share the decisions after a lost commit ack. ``_proto/batch.py`` decides whether the
outcome is unknown. ``atomic.py`` decides whether to send the batch again or to raise. If the stream
then refuses the ids as duplicates, this file decides whether the earlier attempt was stored.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

from jetsync import errors
from jetsync._api.messages import leader_get
from jetsync.publish.errors import BatchOutcomeUnknownError
from jetsync.values import headers as names
from jetsync.values.outbound import BatchAck

if TYPE_CHECKING:
    from jetsync._api.context import Context
    from jetsync._base.deadline import Deadline
    from jetsync.publish.atomic import AtomicBatch
    from jetsync.publish.atomic_attempt import BatchAttempt

NO_STREAM: Final = (errors.NoStreamResponseError, errors.TemporarilyUnavailableError)

# After these errors nothing of a batch is stored, and another attempt may succeed.
SAFE_TO_REPEAT: Final = (
    *NO_STREAM,
    errors.TooManyInflightError,
    errors.BatchIncompleteError,
    errors.ConnectionLostError,
    errors.DisconnectedError,
)


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
