"""
Read NATS JetStream into Apache Spark and write Spark rows to it, without a JAR.

Layout:

- ``source`` is the data source ``jetstream`` and ``registration`` makes it known to a session.
- ``read`` and ``write`` implement both directions. They do not import each other.
- ``monitor`` reports what running queries have read.
- ``common`` is what all use: options, connections, errors, retries and subjects.
- ``demo`` is the pipeline that ``python -m jetsync_spark.demo`` runs.

PySpark and PyArrow are imported on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from jetsync_spark.monitor.listener import ProgressListener
    from jetsync_spark.monitor.values import QueryProgress, StreamProgress, progress
    from jetsync_spark.registration import register
    from jetsync_spark.source import JetStreamDataSource
    from jetsync_spark.write.arrow import publish_arrow
    from jetsync_spark.write.batches import exactly_once
    from jetsync_spark.write.sink import JetStreamSink

__version__ = "0.1.0"

__all__ = [
    "JetStreamDataSource",
    "JetStreamSink",
    "ProgressListener",
    "QueryProgress",
    "StreamProgress",
    "exactly_once",
    "progress",
    "publish_arrow",
    "register",
]

_PLACES: Final = {
    "JetStreamDataSource": "source",
    "JetStreamSink": "write.sink",
    "ProgressListener": "monitor.listener",
    "QueryProgress": "monitor.values",
    "StreamProgress": "monitor.values",
    "exactly_once": "write.batches",
    "progress": "monitor.values",
    "publish_arrow": "write.arrow",
    "register": "registration",
}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(f"{__name__}.{_PLACES[name]}"), name)
    except ModuleNotFoundError as error:
        if error.name != "pyspark":
            raise
        raise ModuleNotFoundError(
            "jetsync_spark needs PySpark, which this Python does not have: use the Python of your"
            " cluster, or run python -m pip install 'jetsync-spark[pyspark]'",
            name=error.name,
        ) from None


def __dir__() -> list[str]:
    return sorted(__all__)
