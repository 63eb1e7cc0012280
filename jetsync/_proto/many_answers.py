"""
When a request with many answers ends, and why (ADR-47).

The time limit covers the whole request. A stall is the longest wait between two answers, so it
starts after the first one. The time that the caller takes between two answers is no part of it.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

Reason: TypeAlias = Literal["count", "timeout", "stall", "sentinel", "disconnected", "closed"]


class Gathering:
    """
    The answers to one request.

    An answer that has arrived is handed out even if the time is over. So the caller tells the
    engine why no more answers arrive, takes those that are left, and calls :meth:`emptied`.

    Args:
        end: When the request ends at the latest.
        stall: Seconds between two answers at most; None for no such limit.
        limit: How many answers to take at most; None for no limit.
    """

    def __init__(self, end: float, stall: float | None = None, limit: int | None = None) -> None:
        self._end = end
        self._stall = stall
        self._limit = limit
        # What it means if nothing arrives during the current wait.
        self._silence: Reason = "timeout"
        #: How many answers were taken.
        self.count: int = 0
        #: Whether the server can no longer refuse the request.
        self.settled: bool = False
        #: Why no more answers will arrive; None while they may.
        self.ending: Reason | None = None
        #: Why the request has ended; None while there may be answers to take.
        self.reason: Reason | None = None

    def wait(self, now: float) -> float:
        """Return when a wait for the next answer that begins now has to end."""
        if self._stall is not None and self.count and now + self._stall < self._end:
            self._silence = "stall"
            return now + self._stall
        self._silence = "timeout"
        return self._end

    def answered(self, answer: object, held: dict[int, Any], me: int) -> None:
        """Count an answer that was taken, and hold it for a thread."""
        self.settled = True
        count = self.count + 1
        # No call between the two, so that no signal handler runs.
        held[me], self.count = answer, count
        if count == self._limit:
            self.reason = "count"

    def found_sentinel(self) -> None:
        """End with the message that the caller waited for; it does not count as an answer."""
        self.settled = True
        self.reason = "sentinel"

    def settle(self) -> None:
        """Note that the server has refused the request, or knows no responders."""
        self.settled = True

    def silent(self) -> None:
        """Note that nothing arrived until the end of the last wait."""
        self._stop(self._silence)

    def lost(self) -> None:
        """Note that the connection is gone, and with it all answers that were in flight."""
        self.settled = True
        self._stop("disconnected")

    def client_closed(self) -> None:
        """Note that the client is closed."""
        self._stop("closed")

    def emptied(self) -> None:
        """End, because no more answers will arrive and all of them were taken."""
        self.reason = self.reason or self.ending

    def close(self) -> None:
        """End, because the caller wants no more answers."""
        self._stop("closed")
        self.reason = self.reason or "closed"

    def _stop(self, reason: Reason) -> None:
        self.ending = self.ending or reason
