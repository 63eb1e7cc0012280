"""
A clock that moves only when a test says so.
"""

from __future__ import annotations


class ManualClock:
    """
    Stand in for ``time.monotonic``: calling it returns the time, `advance` moves it.

    Args:
        now: The time it starts at, in seconds. Not 0, so that an engine that takes 0 for "never" is
            found out.
    """

    def __init__(self, now: float = 1000.0) -> None:
        self.now = float(now)

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> float:
        """
        Move the clock forward and return the new time.

        Raises:
            ValueError: *seconds* is negative; a monotonic clock never goes back.
        """
        if seconds < 0:
            raise ValueError(f"a monotonic clock does not go back by {-seconds} s")
        self.now += seconds
        return self.now

    def __repr__(self) -> str:
        return f"<ManualClock {self.now:.3f}>"
