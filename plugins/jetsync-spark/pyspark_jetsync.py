"""
Lets Spark find ``format("jetstream")`` without a call of ``jetsync_spark.register``.

If a format is not built in, Spark imports each top-level module named ``pyspark_*`` and takes the
class ``DefaultSource`` from it. A module that raises breaks the lookup of every Python data source
in the session. So this import never fails: without Python data sources (PySpark 3.5, or no
pyarrow), there is no ``DefaultSource``.
"""

from __future__ import annotations

try:
    from jetsync_spark.source import JetStreamDataSource as DefaultSource
except Exception:  # noqa: BLE001 - no error may break other data sources.
    __all__: list[str] = []
else:
    __all__ = ["DefaultSource"]
