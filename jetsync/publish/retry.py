"""
Decide whether a message may be sent again.

A message that no stream took (503) is not stored and may always be sent again. A message whose
outcome is unknown may be stored already, so another attempt is only safe if the stream cannot store
it twice. Once unknown, an outcome stays unknown: the failure of a later attempt says nothing about
the earlier one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jetsync._hooks.errors import PluginError
from jetsync.errors import PublishOutcomeUnknownError
from jetsync.events import RetryEvent
from jetsync.values.outbound import OutboundMessage

if TYPE_CHECKING:
    from collections.abc import Callable

    from jetsync._hooks.manager import Plugins
    from jetsync.events import Operation


def is_repeatable(item: object) -> bool:
    """
    Return whether a message with an unknown outcome may be sent again.

    With a message id the stream drops the copy within its duplicate window. With a condition on the
    stream's last sequence it refuses the copy for ever, because that sequence never decreases.
    Conditions on a subject's last sequence or on the last id are not enough: they hold again once
    the first copy is removed, for example because a worker acknowledged it.
    """
    if not isinstance(item, OutboundMessage):
        return False
    expected = None if item.expect is None else item.expect.last_sequence
    return item.msg_id is not None or expected is not None


def still_unknown(message: OutboundMessage, certain: Exception) -> PublishOutcomeUnknownError:
    """Make the error of a message whose last attempt failed after one with unknown outcome."""
    error = PublishOutcomeUnknownError(
        message.subject,
        msg_id=message.msg_id,
        reason=f"an earlier attempt got no answer, and the last one failed: {certain}",
    )
    error.__cause__ = certain
    return error


def ask_retry(
    retry: Callable[[Operation, Exception, int], float | None],
    operation: Operation,
    error: Exception,
    attempt: int,
) -> float | None:
    """
    Ask the plugins for the seconds until the next attempt; None gives up.

    Raises:
        PluginError: A plugin failed, and nothing is stored.
        PublishOutcomeUnknownError: *error* itself, if a plugin failed after it. The PluginError is
            its cause.
    """
    try:
        return retry(operation, error, attempt)
    except PluginError as failed:
        if isinstance(error, PublishOutcomeUnknownError):
            raise error from failed
        raise


def report_retry(
    plugins: Plugins,
    operation: str,
    subject: str | None,
    error: Exception,
    *,
    attempts: int,
    delay: float,
    stream: str | None = None,
    messages: int = 1,
) -> None:
    """Tell the plugins that an operation, or messages of a window, will be sent again."""
    if plugins.status is not None:
        plugins.status(
            RetryEvent(
                stream=stream,
                operation=operation,
                subject=subject,
                messages=messages,
                attempts=attempts,
                delay=delay,
                error=error,
            )
        )
