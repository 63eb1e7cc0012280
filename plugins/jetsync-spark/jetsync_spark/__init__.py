"""
Apache Spark and NATS JetStream, in both directions, without a JAR.

General layout, lowest first; a file imports only from those before it:

- vocabulary: ``_faults`` (every text that a Spark user sees), ``_options``, ``_read_options``,
  ``_write_options``, ``_task`` (where code runs);
- connections: ``_clients``, one per worker process and options;
- writing: ``_template``, ``_columns``, ``_rows``, ``_arrow_rows`` (what becomes of a row),
  ``_planning`` (what is checked before), ``_ledger``, ``_writing`` (the one core of all writers);
- reading: ``_ranges``, ``_offsets`` (numbers only), ``_tables`` (Arrow), ``_origin`` (the stream as
  it is), ``_reading`` (the one core of all readers), ``reader``, ``stream_reader``,
  ``bucket_table``;
- what users hold: ``sink``, ``arrow``, ``batches``, ``writer``, ``source``;
- ``demo``, the pipeline that ``jetsync demo --spark`` runs.

Nothing of PySpark or PyArrow is imported before it is used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from jetsync_spark.arrow import publish_arrow
    from jetsync_spark.batches import exactly_once
    from jetsync_spark.registration import register
    from jetsync_spark.sink import JetStreamSink
    from jetsync_spark.source import JetStreamDataSource

__version__ = "0.1.0"

__all__ = [
    "JetStreamDataSource",
    "JetStreamSink",
    "exactly_once",
    "publish_arrow",
    "register",
]

_PLACES: Final = {
    "JetStreamDataSource": "source",
    "JetStreamSink": "sink",
    "exactly_once": "batches",
    "publish_arrow": "arrow",
    "register": "registration",
}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_PLACES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
