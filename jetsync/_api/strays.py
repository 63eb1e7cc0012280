"""
Reports about frames that arrived for a read and were not handed out.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from jetsync import events
from jetsync._base.log import get_logger
from jetsync._proto.origin import REASONS

if TYPE_CHECKING:
    from jetsync._io.connection import Connection
    from jetsync._proto.origin import Strays

# Seconds between two reports of one reader, because strays may arrive in a flood.
EVERY: Final = 10.0

# How many characters of a subject a report shows.
SHOWN: Final = 256

_logger = get_logger("jetsync.strays")


class StrayReports:
    """
    The reports of one reader, at most one in :data:`EVERY` seconds.

    Threads: any.
    Locks: none; if two threads report at the same moment, both reports may appear.

    Args:
        connection: Its connection.
        stream: The stream that is read.
        consumer: The consumer, if there is one.
        acked: Whether the server redelivers surplus messages.
    """

    __slots__ = ("_acked", "_connection", "_not_before", "_where")

    def __init__(
        self, connection: Connection, stream: str, consumer: str | None = None, *, acked: bool
    ) -> None:
        self._connection = connection
        self._where = {"stream": stream, "consumer": consumer}
        self._acked = acked
        self._not_before = 0.0

    def report(self, *strays: Strays) -> None:
        """Log and emit how many there were since the last report, unless that was just now."""
        now = time.monotonic()
        if now < self._not_before:
            return
        self._not_before = now + EVERY
        counts = [each.report() for each in strays]
        for reason in REASONS:
            count = sum([each[reason] for each in counts])
            if not count:
                continue
            sample = next(each.samples[reason] for each in strays if reason in each.samples)
            subject, reply = (each.decode("utf-8", "replace")[:SHOWN] for each in sample)
            event = events.StrayMessagesEvent(
                **self._where,
                reason=reason,
                messages=count,
                subject=subject,
                reply=reply,
                redelivered=reason == "surplus" and self._acked,
            )
            _logger.warning(
                "stray_messages",
                **self._where,
                reason=reason,
                messages=count,
                subject=subject,
                reply=reply,
            )
            self._connection.emit(event)
