"""
Errors that refer to a batch or to a report of a bulk publish.

They are not in ``jetsync.errors``, because that package imports no other part of jetsync.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jetsync.errors import (
    InvalidArgumentError,
    InvalidTypeError,
    PublishError,
    PublishOutcomeUnknownError,
)
from jetsync.errors.texts import shown_seconds

if TYPE_CHECKING:
    from jetsync.publish.atomic import AtomicBatch
    from jetsync.values.pub_acks import PublishReport

__all__ = ["BatchOutcomeUnknownError", "PublishManyError"]


class BatchOutcomeUnknownError(PublishOutcomeUnknownError):
    """
    The commit of a batch was sent, but no ack arrived. Either the whole batch is stored, or none.

    If every message has an id, ``batch.resend()`` sends the batch again, and the stream stores it
    only once. Otherwise it raises InvalidArgumentError. Pickling drops ``batch``.
    """

    def __init__(
        self,
        subject: str,
        *,
        batch_id: str | None = None,
        has_message_ids: bool = False,
        timeout: float | None = None,
        reason: str | None = None,
    ) -> None:
        why = reason or "no ack came"
        if timeout is not None:
            why += f" within {shown_seconds(timeout)}"
        advice = "sending it again may store it twice, because not every message has a msg_id"
        if has_message_ids:
            advice = "batch.resend() is safe within the duplicate window"
        PublishError.__init__(
            self, f"outcome of batch {batch_id!r} is unknown: {why}; {advice}", subject=subject
        )
        self.msg_id: str | None = None
        self.batch_id = batch_id
        self.has_message_ids = has_message_ids
        self.timeout = timeout
        self.reason = reason
        self.batch: AtomicBatch | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        rebuild, (cls, args, state) = super().__reduce__()
        return rebuild, (cls, args, {**state, "batch": None})


class PublishManyError(PublishError):
    """
    Some messages of a bulk publish failed; ``report`` lists them and counts the others.

    If your iterable or ``on_ack`` raises the PublishManyError of another call, that error is the
    ``__cause__`` of this one. ``report`` is about the outer call, and may have no failures.
    """

    def __init__(self, report: PublishReport) -> None:
        failures = report.failures
        total = report.count + len(failures)
        what = "message was" if total == 1 else "messages were"
        unsent = (InvalidArgumentError, InvalidTypeError)
        if all(isinstance(failure.error, unsent) for failure in failures):
            outcome = "invalid and not sent"
        else:
            outcome = "not acknowledged"
        text = f"the iterable or on_ack raised PublishManyError; {total} {what} acknowledged"
        if failures:
            text = f"{len(failures)} of {total} {what} {outcome}"
            text += f"; the first is messages[{failures[0].index}]: {failures[0].error}"
        if not report.exhausted:
            text += "; the rest of the iterable was not read"
        super().__init__(text, subject=failures[0].message.subject if failures else None)
        self.report = report
