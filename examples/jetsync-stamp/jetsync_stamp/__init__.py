"""
Marks messages of jetsync with their sender, and measures their age.
"""

from __future__ import annotations

from jetsync_stamp._ages import AgeStatistics
from jetsync_stamp._stamp import PROGRAM, TIME, NotOwnedError, Stamp

__all__ = ["PROGRAM", "TIME", "AgeStatistics", "NotOwnedError", "Stamp"]
