"""
What PySpark 4.2 tells a streaming source: limits, ends that are fixed, and where a batch begins.
"""

from __future__ import annotations

try:
    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow

    TELLS_START = True
except ImportError:  # PySpark before 4.2

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """
        Placeholder for the class of PySpark 4.2.
        """

    TELLS_START = False

__all__ = ["TELLS_START", "SupportsTriggerAvailableNow"]
