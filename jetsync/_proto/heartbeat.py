"""
The watch over idle heartbeats of a pull.

Any frame that comes for the pull is a sign of life. Two intervals without one are a miss (ADR-37).
Pulls end with their connection, so that nothing is watched while there is none.
"""

from __future__ import annotations


class HeartbeatWatch:
    """
    Say when a pull has been silent for too long.

    Args:
        interval: Seconds between heartbeats as asked of the server; None or 0 watches nothing.
    """

    __slots__ = ("_last", "interval")

    def __init__(self, interval: float | None, now: float) -> None:
        self.interval = interval or 0.0
        self._last = now

    def __repr__(self) -> str:
        state = "on" if self.interval else "off"
        return f"<HeartbeatWatch {state} interval={self.interval:g}>"

    def beat(self, now: float) -> None:
        """Note a sign of life."""
        self._last = now

    def restart(self, now: float) -> None:
        """Count the silence from now on: what went before means nothing."""
        self._last = now

    def due(self) -> float | None:
        """Return the moment at which a miss has to be looked for, None if there is none."""
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
