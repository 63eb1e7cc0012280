"""
The data source ``jetstream``, which creates readers and writers.

It needs PySpark 4.0 or newer. Spark creates it in separate workers and passes options with
lower-case names and text values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from jetsync_spark.common.errors import require_pyarrow
from jetsync_spark.common.options import ConnectSettings, check_names, read_settings
from jetsync_spark.read.options import ReadOptions

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType

__all__ = ["JetStreamDataSource"]


class JetStreamDataSource(DataSource):
    """
    ``format("jetstream")``: reads and writes streams and key-value buckets.
    """

    parallelism: int | None = None
    """How many tasks the session runs at the same time. None if that is not known."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        require_pyarrow()

    @classmethod
    def name(cls) -> str:
        """
        Return the name of the format.
        """
        return "jetstream"

    # Reading

    def schema(self) -> str:
        """
        Return the default columns.
        """
        from jetsync_spark.read.tables import BUCKET_COLUMNS, STREAM_COLUMNS, schema_text

        _, options = self._reading()
        if options.bucket is not None:
            return schema_text(BUCKET_COLUMNS)
        unasked = ["server_headers", "json"]
        if not options.include_headers:
            unasked.append("headers")
        if not options.timestamp_nanos:
            unasked.append("timestamp_ns")
        return schema_text(STREAM_COLUMNS, unasked)

    def reader(self, schema: StructType) -> DataSourceReader:
        """
        Return the batch reader.
        """
        from jetsync_spark.read.batch import StreamBatchReader
        from jetsync_spark.read.bucket import BucketReader
        from jetsync_spark.read.documents import check_messages
        from jetsync_spark.read.tables import STREAM_COLUMNS, Table

        settings, options = self._reading()
        if options.bucket is not None:
            return BucketReader(settings, options, schema)
        made = StreamBatchReader(settings, options, schema)
        check_messages(settings, options, Table(schema, STREAM_COLUMNS))
        return made

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name.
        """
        Return the reader of micro-batches.
        """
        from jetsync_spark.read.documents import check_messages
        from jetsync_spark.read.micro_batch import StreamMicroBatchReader
        from jetsync_spark.read.tables import STREAM_COLUMNS, Table
        from jetsync_spark.read.work_queue import QueueReader

        settings, options = self._reading()
        kind = StreamMicroBatchReader if options.consumer is None else QueueReader
        made = kind(settings, options, schema, self.parallelism)
        check_messages(settings, options, Table(schema, STREAM_COLUMNS))
        return made

    # Writing

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: FBT001 - Spark's.
        """
        Return the batch writer.
        """
        from jetsync_spark.write.writers import BatchWriter

        return BatchWriter(self.options, schema, overwrite=overwrite)

    def streamWriter(  # noqa: N802 - Spark's name.
        self,
        schema: StructType,
        overwrite: bool,  # noqa: FBT001 - as above.
    ) -> DataSourceStreamWriter:
        """
        Return the writer of micro-batches.
        """
        from jetsync_spark.write.writers import StreamWriter

        return StreamWriter(self.options, schema, overwrite=overwrite)

    def _reading(self) -> tuple[ConnectSettings, ReadOptions]:
        check_names(self.options, ConnectSettings, ReadOptions)
        return (
            read_settings(ConnectSettings, self.options),
            read_settings(ReadOptions, self.options),
        )
