"""
Warn about times-to-live that the server raises (ADR-43).

A stream with limit markers and several messages per subject stores no message for a shorter time
than its markers. The server does not report this, so a key with a time-to-live of one second may
live for a minute.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal

from jetsync._base.deadline import as_seconds
from jetsync._base.log import get_logger
from jetsync.events import TtlRaisedEvent
from jetsync.values.ttl import NEVER

if TYPE_CHECKING:
    from collections.abc import Iterable

    from jetsync._api.context import Context
    from jetsync._base.deadline import Seconds
    from jetsync.values.stream_config import StreamConfig

_logger = get_logger("jetsync.publish")


# How many times-to-live of one publisher are remembered.
KEPT_TTLS: Final = 100


class RaisedTtls:
    """
    Reports each time-to-live of one publisher that the server raises, once. Any thread.

    A report for each message would be a flood.

    Args:
        context: Context of the publisher.
        later: Whether the caller holds a lock, so that plugins must not run in its thread.
    """

    def __init__(self, context: Context, *, later: bool = False) -> None:
        self._context = context
        self._later = later
        self._reported: set[Any] = set()

    def check(self, items: Iterable[Any]) -> None:
        """Report the raised times-to-live of *items*, which have been sent."""
        for item in items:
            # Most items are tuples, for which `getattr` would cost a tenth of sending them.
            ttl = None if type(item) is tuple else getattr(item, "ttl", None)
            if ttl is not None and ttl not in self._reported:
                if len(self._reported) >= KEPT_TTLS:
                    self._reported.clear()
                self._reported.add(ttl)
                report_raised_ttl(self._context, None, item.subject, ttl, later=self._later)


def report_raised_ttl(
    context: Context,
    config: StreamConfig | None,
    subject: str,
    ttl: Seconds | Literal["never"] | None,
    *,
    later: bool = False,
) -> None:
    """
    Log and report that a stored message will live longer than its time-to-live.

    Args:
        context: Context of the publish.
        config: The configuration of the stream. If it is None and not cached, the thread that
            delivers events to plugins asks for it. Without plugins there is no request.
        subject: Subject of the message.
        ttl: The requested time-to-live, already validated.
        later: Whether that thread makes the report even if the configuration is known.
    """
    if config is None:
        known = context.streams.kept(subject, context.lane.epoch)
        config = None if known is None else known.config
    if config is None or later:
        context.connection.emit(partial(_find_raised, context, config, subject, ttl))
        return
    event = _raised(config, subject, ttl)
    if event is not None and context.plugins.status is not None:
        context.plugins.status(event)


def _find_raised(
    context: Context,
    config: StreamConfig | None,
    subject: str,
    ttl: Seconds | Literal["never"] | None,
) -> TtlRaisedEvent | None:
    if config is None:
        known = context.streams.find_once(subject)
        config = None if known is None else known.config
    return None if config is None else _raised(config, subject, ttl)


def _raised(
    config: StreamConfig, subject: str, ttl: Seconds | Literal["never"] | None
) -> TtlRaisedEvent | None:
    if ttl is None or ttl == NEVER or config.max_msgs_per_subject == 1:
        return None
    asked, floor = as_seconds(ttl, "ttl"), config.subject_delete_marker_ttl
    if not floor or asked >= floor:
        return None
    _logger.warning("ttl_raised", stream=config.name, subject=subject, asked=asked, stored=floor)
    return TtlRaisedEvent(stream=config.name, subject=subject, asked=asked, stored=floor)
