"""
The idle heartbeats of a pull.

Every frame that arrives for the pull is a sign of life. Two intervals without one are a miss
(ADR-37). Pulls end with their connection, so nothing is watched without a connection.
"""

from __future__ import annotations


class HeartbeatWatch:
    """
    Tell when a pull has been silent for too long.

    Args:
        interval: Seconds between the heartbeats that the server was asked for; None or 0 for none.
    """

    __slots__ = ("_last", "interval")

    def __init__(self, interval: float | None, now: float) -> None:
        self.interval: float = interval or 0.0
        self._last = now

    def __repr__(self) -> str:
        state = "on" if self.interval else "off"
        return f"<HeartbeatWatch {state} interval={self.interval:g}>"

    def restart(self, now: float) -> None:
        """Count the silence from now on, after a sign of life or because it meant nothing."""
        self._last = now

    def due(self) -> float | None:
        """Return the moment of the next miss; None without heartbeats."""
        if not self.interval:
            return None
        return self._last + 2.0 * self.interval

    def silence(self, now: float) -> float:
        """Return the seconds since the last sign of life."""
        return now - self._last

    def missed(self, now: float) -> bool:
        """Return whether two intervals have passed in silence."""
        due = self.due()
        return due is not None and now >= due
