"""
Warn about times-to-live that the server raises (ADR-43).

A stream with limit markers and several messages per subject stores no message for a shorter time
than its markers. The server does not report this, so a key with a time-to-live of one second may
live for a minute.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from jetsync._base import log as _log
from jetsync._base.deadline import as_seconds
from jetsync.events import TtlRaisedEvent
from jetsync.values.ttl import NEVER

if TYPE_CHECKING:
    from jetsync._api.context import Context
    from jetsync._base.deadline import Seconds
    from jetsync.values.stream_config import StreamConfig

_logger = _log.get_logger("jetsync.publish")


def report_raised_ttl(
    context: Context,
    config: StreamConfig | None,
    subject: str,
    ttl: Seconds | Literal["never"] | None,
) -> None:
    """
    Log and report that a stored message will live longer than its time-to-live.

    Args:
        context: Context of the publish.
        config: The cached configuration of the stream. None looks for it, without a request.
        subject: Subject of the message.
        ttl: The requested time-to-live, already validated.
    """
    if config is None:
        known = context.streams.kept(subject, context.lane.epoch)
        config = None if known is None else known.config
    if config is None or ttl is None or ttl == NEVER or config.max_msgs_per_subject == 1:
        return
    asked, floor = as_seconds(ttl, "ttl"), config.subject_delete_marker_ttl
    if not floor or asked >= floor:
        return
    _logger.warning(_log.TTL_RAISED, stream=config.name, subject=subject, asked=asked, stored=floor)
    if context.plugins.status is not None:
        context.plugins.status(
            TtlRaisedEvent(stream=config.name, subject=subject, asked=asked, stored=floor)
        )
