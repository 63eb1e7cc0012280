"""
What may be sent again, and what is known of a message that was.

A message that no stream took (503) is not stored, and may always be sent again. One whose outcome
is unknown may be stored already: only what keeps the stream from storing it twice makes another
attempt harmless. Once an outcome is unknown it stays so: whatever a later attempt meets, it says
nothing of the one before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from jetsync._hooks.errors import PluginError
from jetsync.errors import PublishOutcomeUnknownError
from jetsync.events import RetryEvent
from jetsync.values.outbound import OutboundMessage, coerce_outbound

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from jetsync._hooks.manager import Plugins
    from jetsync.events import Operation


@attrs.define(eq=False)
class Setback:
    """
    A message of a window whose last attempt failed, and what is to become of it.
    """

    number: int
    item: Any
    """The message, or what stands for it."""

    attempts: int
    began: float
    """When the first attempt failed, or was made where it got no answer in time."""

    error: Exception
    """What it fails with if it is not sent again."""

    size: int
    """Bytes of its payload."""

    unknown: bool = False
    """Whether one of its attempts may have been stored."""

    delay: float | None = None
    """Seconds until it is sent again; None to give up."""

    due: float = 0.0
    until: float = 0.0
    """When it fails for want of a connection."""


def is_repeatable(item: object) -> bool:
    """
    Return whether a message may be sent again while it is unknown if the stream has it.

    A message id makes the stream drop the copy, within its duplicate window. A condition on the
    stream's last sequence makes it refuse the copy for good, as that never goes back. Conditions on
    a subject's last sequence or on the last id do not: they are true again once the first copy is
    removed, by a worker that has acknowledged it for example.
    """
    if not isinstance(item, OutboundMessage):
        return False
    expected = None if item.expect is None else item.expect.last_sequence
    return item.msg_id is not None or expected is not None


def still_unknown(message: OutboundMessage, certain: Exception) -> PublishOutcomeUnknownError:
    """Make the error of a message whose last attempt failed, and an earlier one is unknown."""
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
    Ask the plugins for the seconds until the next attempt; None is to give up.

    Raises:
        PluginError: A plugin has failed, and nothing is stored.
        PublishOutcomeUnknownError: *error* itself, as whatever a plugin does, the outcome of what
            was sent is unknown; the PluginError is its cause.
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
) -> None:
    """Tell the plugins that an operation is tried again."""
    if plugins.status is not None:
        plugins.status(
            RetryEvent(
                stream=stream,
                operation=operation,
                subject=subject,
                attempts=attempts,
                delay=delay,
                error=error,
            )
        )


def report_retries(plugins: Plugins, judged: Sequence[Setback]) -> None:
    """Tell the plugins, in one event, which of these messages of a window are sent again."""
    again = [message for message in judged if message.delay is not None]
    if plugins.status is not None and again:
        plugins.status(
            RetryEvent(
                operation="publish",
                subject=coerce_outbound(again[0].item).subject,
                messages=len(again),
                attempts=max(message.attempts for message in again),
                delay=min(message.delay or 0.0 for message in again),
                error=again[0].error,
            )
        )
