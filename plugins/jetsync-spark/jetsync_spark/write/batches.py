"""
Streaming queries that store each row once, with ``foreachBatch``. Needs Spark 3.5 or newer.

The driver records the number of partitions in the ledger before the first row. A replay with
another number of partitions is rejected before it stores anything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jetsync
from jetsync_spark.common.errors import OptionError, require_pandas, require_pyarrow
from jetsync_spark.common.task import Task, application
from jetsync_spark.write import layout
from jetsync_spark.write.arrow import publish_planned
from jetsync_spark.write.columns import types_of
from jetsync_spark.write.plan import columns_of, make_plan
from jetsync_spark.write.sink import write_options

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame


__all__ = ["exactly_once"]

_logger = jetsync.get_logger("jetsync.spark.batches")


def exactly_once(
    options: jetsync.ConnectOptions,
    *,
    stream: str,
    subject: str = "subject",
    data: str = "data",
    headers: str | None = None,
    msg_id: str | None = None,
    ttl: str | None = None,
    expected_sequence: str | None = None,
    **settings: Any,
) -> Callable[[DataFrame, int], None]:
    """
    Return a function for ``writeStream.foreachBatch`` that stores each row once.

    It works like ``mode="exactlyonce"`` of the data source. In addition, it rejects a replay with
    another number of partitions before it stores a row.

    Args:
        options: How to connect.
        stream: Name of the stream. It needs ``allow_atomic`` and a subject for the ledger.
        subject: As for :class:`JetStreamSink`, like the following arguments.
        data: The column of the payload.
        headers: The column of the headers.
        msg_id: The column of the message IDs.
        ttl: The column of the times-to-live.
        expected_sequence: The column of the expected last sequences.
        settings: Other fields of the writer's options, such as ``retry_timeout``. ``write_id``
            distinguishes several writes of one query.

    Raises:
        OptionError: An argument is invalid, or arguments exclude each other.
    """
    require_pyarrow()
    require_pandas()
    write = write_options(stream=stream, mode="exactlyonce", **settings)
    columns = columns_of(
        subject,
        constant=False,
        data=data,
        headers=headers,
        msg_id=msg_id,
        ttl=ttl,
        expected_sequence=expected_sequence,
    )

    def write_batch(df: DataFrame, batch_id: int) -> None:
        plan = make_plan(
            options,
            write,
            columns,
            types=types_of(df.schema),
            retry_timeout=write.retry_timeout,
            application=application(),
        )
        task = Task(query=_query_of(df), batch=batch_id)
        # If the DataFrame is shuffled, this runs the stages before the shuffle.
        partitions = df.rdd.getNumPartitions()
        layout.record_partitions(plan, task, partitions)
        written = publish_planned(df, plan).collect()
        _logger.info(
            "batch_written",
            stream=stream,
            batch=batch_id,
            partitions=partitions,
            rows=sum(row.rows for row in written),
            stored=sum(row.stored for row in written),
        )

    return write_batch


def _query_of(df: DataFrame) -> str:
    query = layout.planned_task(df).query
    if query is None:
        raise OptionError(
            "exactly_once was called outside of a streaming query",
            cure="pass it to writeStream.foreachBatch; for a batch job use mode exactlyonce with a "
            "write_id",
        )
    return query
