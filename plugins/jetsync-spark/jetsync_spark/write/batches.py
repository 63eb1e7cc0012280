"""
Streaming queries that store each row once, by ``foreachBatch``; Spark 3.5 and newer.

What a task can not see, the number of partitions, is known on the driver: it is written to a plan
in the ledger before the first row, so that a replay in other partitions is refused before it has
stored anything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

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

    As ``mode="exactlyonce"`` of the data source does, and beyond that it refuses a replay in
    another number of partitions before a row of it is stored.

    Args:
        options: How to connect.
        stream: Name of the stream; it needs ``allow_atomic`` and subjects for the ledger.
        subject: As for :class:`JetStreamSink`, and so are all others.
        data: The column of the payload.
        headers: The column of the headers.
        msg_id: The column of the ids.
        ttl: The column of the times-to-live.
        expected_sequence: The column of the sequences that subjects have to have.
        settings: Other options of the data source's writer, by their names in Python;
            ``write_id`` tells several writes of one query apart.

    Raises:
        OptionError: they can not work together.
    """
    require_pyarrow()
    require_pandas()
    write = write_options(stream=stream, mode="exactlyonce", **settings)
    columns = attrs.evolve(
        columns_of(subject, constant=False),
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
            patience=write.retry_timeout,
            application=application(),
        )
        task = Task(query=_query_of(df), batch=batch_id)
        # Of a shuffled DataFrame this runs what comes before the shuffle.
        partitions = df.rdd.getNumPartitions()
        layout.agree(plan, task, partitions)
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
            cure="give it to writeStream.foreachBatch; for a batch job use mode exactlyonce with a "
            "write_id",
        )
    return query
