"""
What makes Spark find ``format("jetstream")`` without a call of ``jetsync_spark.register``.

Spark imports each top-level package named ``pyspark_*`` when a format is looked up that is not
built in, and takes the class ``DefaultSource`` from it. One that raises breaks the look-up of every
Python data source in the session. So importing this never fails: where the data source cannot be
had (PySpark 3.5, no pyarrow), there is no ``DefaultSource``.
"""

from __future__ import annotations

try:
    from jetsync_spark.source import JetStreamDataSource as DefaultSource
except Exception:  # noqa: BLE001 - whatever it is, other data sources must go on working.
    __all__: list[str] = []
else:
    __all__ = ["DefaultSource"]
