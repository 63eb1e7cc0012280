"""
The clock of leases: it never goes back, and it continues while the machine is suspended.
"""

from __future__ import annotations

import time
from typing import Final

# CLOCK_BOOTTIME of Linux includes the time of a suspension, and so does CLOCK_MONOTONIC of macOS,
# unlike time.monotonic() of either. Windows has neither name; its monotonic clock includes it.
_CLOCK: Final[int | None] = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC", None))


def now() -> float:
    """
    Return the seconds on the clock of leases. Only differences have a meaning.
    """
    return time.monotonic() if _CLOCK is None else time.clock_gettime(_CLOCK)
