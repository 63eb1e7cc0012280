"""
A clock that only tests advance.
"""

from __future__ import annotations

from jetsync._base.reprs import tolerant_repr


@tolerant_repr
class ManualClock:
    """
    Replace ``time.monotonic``. Calling the object returns the time, and `advance` moves it.

    Args:
        now: The start time in seconds. The default is not 0, so that tests detect code that uses 0
            for "never".
    """

    def __init__(self, now: float = 1000.0) -> None:
        self.now: float = float(now)

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> float:
        """
        Move the clock forward and return the new time.

        Raises:
            ValueError: *seconds* is negative. A monotonic clock never goes back.
        """
        if seconds < 0:
            raise ValueError(f"a monotonic clock does not go back: advance({seconds})")
        self.now += seconds
        return self.now

    def __repr__(self) -> str:
        return f"<ManualClock {self.now:.3f}>"
