"""
A key-value bucket as a table, with one row per key that has a value, in one snapshot.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

from pyspark.sql.datasource import DataSourceReader, InputPartition

from jetsync_spark.common.errors import OptionError
from jetsync_spark.common.keys import LEDGER_KEY
from jetsync_spark.common.retry import ask_with_retry
from jetsync_spark.common.task import application
from jetsync_spark.read.origin import sequence_at
from jetsync_spark.read.tables import BUCKET_COLUMNS, Table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql.types import StructType

    import jetsync
    from jetsync_spark.common.options import ConnectSettings
    from jetsync_spark.read.options import ReadOptions

__all__ = ["BucketReader"]

_ResultT = TypeVar("_ResultT")

_LEDGER: Final = f"{LEDGER_KEY}."
# The keys of the ledger of mode exactlyonce are skipped, unless the query asks for them.

_ROWS: Final = 5000
"""Rows per record batch."""


class BucketReader(DataSourceReader):
    """
    Reads a snapshot of a bucket in one task.

    If the options name a time or revision, the snapshot's revision is fixed when the query is
    planned. Otherwise the snapshot is taken during the read. A bucket with one revision per key
    supports only that.
    """

    def __init__(self, settings: ConnectSettings, options: ReadOptions, schema: StructType) -> None:
        self._settings = settings
        self._options = options
        self._table = Table(schema, BUCKET_COLUMNS)

    def partitions(self) -> list[InputPartition]:
        """
        Return the one part, with the revision to read: 0 for an empty table, None for now.
        """
        return [InputPartition(self._ask(self._moment, "planning to read the bucket failed"))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """
        Yield the rows.
        """
        revision: int | None = partition.value
        if revision == 0:
            return
        entries = self._ask(
            lambda bucket: self._entries(bucket, revision), "reading the bucket failed"
        )
        for start in range(0, len(entries), _ROWS):
            yield self._table.of_entries(entries[start : start + _ROWS])

    def _entries(self, bucket: jetsync.KeyValue, revision: int | None) -> Sequence[jetsync.Entry]:
        keys = self._options.keys or (">",)
        found = bucket.get_many(keys, revision, timeout=self._options.retry_timeout)
        if any(each.startswith(_LEDGER) for each in keys):
            return list(found.values())
        return [entry for key, entry in found.items() if not key.startswith(_LEDGER)]

    def _moment(self, bucket: jetsync.KeyValue) -> int | None:
        options = self._options
        info = bucket.stream.cached_info
        last, asked = info.state.last_seq, options.at_revision
        if asked is not None:
            if asked > last:
                raise OptionError(
                    f"bucket {options.source} ends at revision {last}, before atRevision {asked}",
                    option="atRevision",
                    cure="give an existing revision, or leave it out",
                )
        elif options.at_timestamp is None:
            return None
        else:
            found = sequence_at(bucket.stream, options.at_timestamp)
            if found is None:
                return last
            asked = found - 1
        if asked < last and info.config.max_msgs_per_subject == 1:
            name = "atTimestamp" if options.at_revision is None else "atRevision"
            raise OptionError(
                f"bucket {options.source} keeps one revision per key: values of revision {asked} "
                "are gone if their keys were written since",
                option=name,
                cure=f"leave out {name}, or set a history on the bucket for future reads",
            )
        return asked

    def _ask(self, call: Callable[[jetsync.KeyValue], _ResultT], doing: str) -> _ResultT:
        name = self._options.source
        return ask_with_retry(
            self._settings,
            f"jetsync-spark-{application()}-bucket-{name}",
            lambda js: call(js.key_value(name)),
            self._options.retry_timeout,
            doing,
            name,
        )
