"""
Decide after a failed commit whether an atomic batch may be sent again, and whether it was stored.

To *resend* a batch is to send it again as a whole, with another id. ``AtomicBatch.resend`` does
that, and so does each retry of a commit. It happens only if none of its messages can be stored
already, or if message ids prevent the stream from storing them twice.

The table in ``_proto/outcome.py`` says whether the outcome of an attempt is unknown, and whether
the batch may be sent again. ``atomic_attempt.py`` records the first, and this file decides by the
second. If the stream then refuses the ids as duplicates, this file decides whether an earlier
attempt was stored. ``atomic.py`` sends the batch.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import attrs

from jetsync import errors
from jetsync._api.messages import leader_get
from jetsync._proto.outcome import Ending, cause_of, outcome_of
from jetsync.publish.errors import BatchOutcomeUnknownError
from jetsync.values import headers as names
from jetsync.values.outbound import BatchAck

if TYPE_CHECKING:
    from jetsync._api.context import Context
    from jetsync._base.deadline import Deadline
    from jetsync.publish.atomic import AtomicBatch
    from jetsync.publish.atomic_attempt import BatchAttempt


@attrs.frozen
class RetryableFailure:
    """
    Why an attempt failed, if the batch may be sent again.
    """

    # For plugins, and for the caller if there is no other attempt.
    error: errors.JetSyncError
    # Whether the options say how often the batch is sent again.
    is_counted: bool = False
    # Whether to send the batch again without a pause. Such an attempt does not count as a retry.
    at_once: bool = False


def retryable_failure(
    error: errors.JetSyncError,
    batch: AtomicBatch,
    attempt: BatchAttempt | None,
    number: int,
    deadline: Deadline,
    *,
    earlier: bool,
) -> RetryableFailure:
    """
    Return the failure of an attempt if the batch may be sent again; raise its error if not.

    Args:
        error: The error of the attempt.
        batch: The batch.
        attempt: The attempt; None if it failed before it began.
        number: Its number, counted from 1.
        deadline: Deadline of all attempts together.
        earlier: Whether an earlier one may have been stored although no answer came.
    """
    failure, is_unknown, is_safe = error, False, False
    if isinstance(error, BatchOutcomeUnknownError):
        error.batch, is_unknown, is_safe = batch, True, error.has_message_ids
    cause, _ = cause_of(error)
    rule = outcome_of(cause, sent=is_unknown, earlier=earlier, safe=is_safe)
    if isinstance(error, errors.NoStreamResponseError):
        failure = errors.NoStreamResponseError(error.subject or "", attempts=number)
    if rule.ending is Ending.UNKNOWN and not is_unknown:
        failure = _still_unknown(batch, attempt, failure)
    if not rule.may_repeat_batch:
        raise failure from failure.__cause__
    # If the connection was lost between two steps of the call, nothing was sent. The lookup of the
    # stream waits for the next connection.
    unsent = isinstance(error, errors.ConnectionLostError) and not error.sent
    at_once = unsent and attempt is not None and attempt.whole and not deadline.expired()
    return RetryableFailure(failure, is_counted=rule.counts_batch, at_once=at_once)


def ack_of_earlier_attempt(
    error: errors.DuplicateMessageIdError,
    batch: AtomicBatch,
    attempt: BatchAttempt,
    context: Context,
    deadline: Deadline,
) -> BatchAck:
    """
    Return the ack of an earlier attempt whose answer was lost, after the stream refused an id.

    Args:
        error: The refusal.
        batch: The batch.
        attempt: The last attempt.
        context: Context of the batch.
        deadline: Deadline of the call.

    Raises:
        BatchOutcomeUnknownError: Another publisher may have used the id.
    """
    ack = _find_stored(context, attempt, deadline)
    if ack is None:
        raise _still_unknown(
            batch, attempt, error, "an id is in the stream already, perhaps from another message"
        ) from error
    return ack


def _find_stored(context: Context, attempt: BatchAttempt, deadline: Deadline) -> BatchAck | None:
    """
    Return the ack of an earlier attempt if the stream has its messages; None if unsure.

    Stored messages carry the id of their batch and have consecutive sequences.

    Args:
        context: Context of the batch.
        attempt: The last attempt.
        deadline: Deadline of the call.
    """
    engine, stream = attempt.engine, attempt.known.name
    size, items = engine.size, attempt.items()
    for subject in dict.fromkeys((items[-1][0], items[0][0])):
        # A message that cannot be read, or that another publisher wrote, proves nothing.
        with contextlib.suppress(errors.JetSyncError, KeyError, ValueError):
            message = leader_get(context, stream, {"last_by_subj": subject.decode()}, deadline)
            batch_id = message.headers.get(names.BATCH_ID, "")
            if batch_id in engine.ids:
                first = message.sequence - int(message.headers[names.BATCH_SEQUENCE]) + 1
                ack = BatchAck(stream, first + size - 1, batch_id, size, first, duplicate=True)
                engine.found_stored(ack)
                return ack
    return None


def _still_unknown(
    batch: AtomicBatch, attempt: BatchAttempt | None, certain: Exception, reason: str | None = None
) -> BatchOutcomeUnknownError:
    """Return the error of a batch whose last attempt failed after one with unknown outcome."""
    assert attempt is not None
    attempt.engine.in_doubt()
    error = BatchOutcomeUnknownError(
        attempt.items()[-1][0].decode(),
        batch_id=attempt.id,
        # A batch without ids is not sent again after an unknown outcome.
        has_message_ids=True,
        reason="an earlier attempt got no answer, and "
        + (reason or f"the last one failed: {certain}"),
    )
    error.batch = batch
    error.__cause__ = certain
    return error
