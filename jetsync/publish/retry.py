"""
Retries: whether a message may be sent again, and whether plugins want it.

``one.py`` counts the attempts of a single message, and ``flight.py`` those of many. The table in
``_proto/outcome.py`` says after which failures another attempt may follow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from jetsync._hooks.errors import PluginError
from jetsync._proto.outcome import Ending
from jetsync.errors import PublishOutcomeUnknownError, RequestTimeoutError
from jetsync.events import RetryEvent
from jetsync.values.outbound import OutboundMessage, coerce_outbound

if TYPE_CHECKING:
    from jetsync._api.context import Context
    from jetsync._base.deadline import Deadline
    from jetsync._hooks.manager import Plugins
    from jetsync._proto.outcome import OutcomeRule
    from jetsync.events import BatchCommitOperation, Operation, PublishOperation


def is_safe_to_retry(item: object) -> bool:
    """
    Return whether a message with an unknown outcome may be sent again.

    With a message id the stream drops the copy within its duplicate window. With a condition on the
    stream's last sequence it refuses the copy for ever, because that sequence never decreases.
    Conditions on a subject's last sequence or on the last id are not enough. They hold again once
    the first copy is removed, for example because a worker acknowledged it.
    """
    if not isinstance(item, OutboundMessage):
        return False
    expected = None if item.expect is None else item.expect.last_sequence
    return item.msg_id is not None or expected is not None


def error_of(
    rule: OutcomeRule, item: object, failure: Exception | str | None, timeout: float
) -> Exception:
    """
    Return the error of a message from the rule for its last attempt.

    Args:
        rule: The rule.
        item: The message: an ``OutboundMessage`` or a tuple.
        failure: Why the attempt failed; None if there was no ack within *timeout* seconds.
        timeout: Seconds.
    """
    if rule.ending is not Ending.UNKNOWN or isinstance(failure, PublishOutcomeUnknownError):
        assert isinstance(failure, Exception)
        return failure
    reason = None
    if rule.earlier:
        reason = f"an earlier attempt got no answer, and the last one failed: {failure}"
    elif failure is not None and not isinstance(failure, RequestTimeoutError):
        reason = str(failure)
    message = coerce_outbound(item)
    error = PublishOutcomeUnknownError(
        message.subject,
        msg_id=message.msg_id,
        timeout=timeout if reason is None else None,
        reason=reason,
    )
    error.__cause__ = failure if isinstance(failure, Exception) else None
    return error


def ask_retry(
    plugins: Plugins, operation: Operation, error: Exception, attempt: int
) -> float | None:
    """
    Ask the plugins, which implement the hook, for the seconds until the next attempt.

    Raises:
        PluginError: A plugin failed, and nothing is stored.
        PublishOutcomeUnknownError: *error* itself, if a plugin failed when it was asked about it.
            The PluginError is its cause.
    """
    assert plugins.retry is not None
    try:
        return plugins.retry(operation, error, attempt)
    except PluginError as failed:
        if isinstance(error, PublishOutcomeUnknownError):
            raise error from failed
        raise


def next_delay(
    context: Context,
    operation: PublishOperation | BatchCommitOperation | None,
    error: Exception,
    deadline: Deadline,
    *,
    attempt: int,
    delay: float | None,
) -> float | None:
    """
    Return the seconds until another attempt, and emit the event about it; None if there is none.

    Args:
        context: Context of the operation.
        operation: The operation for plugins; None without plugins.
        error: Why the last attempt failed.
        deadline: Deadline of all attempts together.
        attempt: The number of the last attempt, counted from 1.
        delay: Seconds until the next attempt by the built-in rule; None gives up. A plugin decides
            instead if one implements the hook.
    """
    plugins = context.plugins
    if operation is not None and plugins.retry is not None:
        operation = attrs.evolve(operation, elapsed=deadline.total - deadline.remaining())
        delay = ask_retry(plugins, operation, error, attempt)
    if delay is None or delay >= deadline.remaining():
        return None
    if operation is not None and plugins.status is not None:
        plugins.status(
            RetryEvent(
                stream=operation.stream,
                operation=operation.name,
                subject=operation.subject,
                attempts=attempt,
                delay=delay,
                error=error,
            )
        )
    return delay


def wait_for_retry(
    context: Context,
    operation: PublishOperation | BatchCommitOperation | None,
    error: Exception,
    deadline: Deadline,
    *,
    attempt: int,
    delay: float | None,
) -> None:
    """Wait before another attempt, or raise *error* if there is none; see :func:`next_delay`."""
    delay = next_delay(context, operation, error, deadline, attempt=attempt, delay=delay)
    if delay is None:
        raise error
    # If the client is closed meanwhile, the next attempt raises.
    context.connection.closing.wait(delay)
