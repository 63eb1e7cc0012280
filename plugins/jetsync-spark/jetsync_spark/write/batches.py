"""
Streaming queries that store each row once, with ``foreachBatch``. Needs Spark 3.5 or newer.

The driver records the number of partitions in the ledger before the first row. A replay with
another number of partitions is rejected before it stores anything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

import jetsync
from jetsync_spark.common.errors import OptionError, require_pandas, require_pyarrow
from jetsync_spark.common.names import is_case_sensitive
from jetsync_spark.common.options import errors_for_programs
from jetsync_spark.common.task import Task, application, over_connect
from jetsync_spark.write import layout
from jetsync_spark.write.arrow import publish_planned, used_columns
from jetsync_spark.write.columns import types_of
from jetsync_spark.write.ledger import LayoutError
from jetsync_spark.write.metrics import count_written
from jetsync_spark.write.plan import columns_of, make_plan
from jetsync_spark.write.sink import write_options

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame

    from jetsync_spark.write.options import WriteOptions


__all__ = ["exactly_once"]

_logger = jetsync.get_logger("jetsync.spark.batches")


@errors_for_programs()
def exactly_once(
    options: jetsync.ConnectOptions,
    *,
    stream: str = "",
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

    It works like ``mode="exactlyonce"`` of the data source. In addition, if a replay has
    another number of partitions than the first run, the function rejects it before it stores a row.

    Spark Connect does not report which query a batch belongs to. There, ``write_id`` identifies the
    query: no other query that writes to this stream may use it, and it has to stay the same after a
    restart.

    Args:
        options: How to connect.
        stream: Name of the stream. It needs ``allow_atomic`` and a subject for the ledger: the
            messages that count the stored rows. Leave it out with ``bucket="name"``, as for
            :class:`JetStreamSink`. The bucket needs ``atomic``.
        subject: This and the following column arguments are the same as for
            :class:`JetStreamSink`.
        data: The column of the payload.
        headers: The column of the headers.
        msg_id: The column of the message IDs.
        ttl: The column of the times-to-live.
        expected_sequence: The column of the expected last sequences.
        settings: Other fields of the writer's options, such as ``retry_timeout`` and
            ``on_invalid_row``. ``write_id`` distinguishes several writes of one query, and is
            required over Spark Connect.

    Raises:
        OptionError: An argument is invalid, or arguments exclude each other.
    """
    from pyspark.sql.utils import is_remote

    require_pyarrow()
    require_pandas()
    write = write_options(stream=stream, mode="exactlyonce", **settings)
    if write.batch_id is not None:
        raise OptionError(
            "exactly_once gets the number of the micro-batch from Spark",
            option="batch_id",
            cure="leave it out",
        )
    if is_remote():
        _require_name(write)
    columns = columns_of(
        subject,
        constant=False,
        bucket=write.bucket,
        data=data,
        headers=headers,
        msg_id=msg_id,
        ttl=ttl,
        expected_sequence=expected_sequence,
    )

    def store(df: DataFrame, batch_id: int) -> None:
        identified, task = _identify(df, batch_id, write)
        plan = make_plan(
            options,
            identified,
            attrs.evolve(columns, case_sensitive=is_case_sensitive(df.sparkSession)),
            types=types_of(df.schema),
            application=application(),
        )
        rows = used_columns(df, plan)
        partitions = layout.count_partitions(rows)
        layout.record_partitions(plan, task, partitions)
        written = publish_planned(rows, plan).collect()
        if over_connect(df) and len(written) != partitions:
            # Another job counted them.
            raise LayoutError(
                f"micro-batch {batch_id} was written in {len(written)} partitions, but "
                f"{partitions} were counted",
                stream=write.stream,
                cure="check for duplicate rows, and disable spark.sql.adaptive.enabled",
            )
        _logger.info(
            "batch_written",
            stream=write.stream,
            batch=batch_id,
            partitions=partitions,
            rows=sum(row.rows for row in written),
            **count_written(write.stream, task.query or write.write_id, written),
        )

    def write_batch(df: DataFrame, batch_id: int) -> None:
        with errors_for_programs():
            store(df, batch_id)

    return write_batch


def _identify(df: DataFrame, batch_id: int, write: WriteOptions) -> tuple[WriteOptions, Task]:
    """
    Return the options and the task that identify a micro-batch after a restart too.

    Raises:
        OptionError: The query is not known.
    """
    if not over_connect(df):
        query = layout.planned_task(df).query
        if query is None:
            raise OptionError(
                "exactly_once was called outside of a streaming query",
                cure="pass it to writeStream.foreachBatch; for a batch job use mode exactlyonce "
                "with a write_id",
            )
        return write, Task(query=query, batch=batch_id)
    _require_name(write)
    return attrs.evolve(write, batch_id=batch_id), Task()


def _require_name(write: WriteOptions) -> None:
    if write.write_id is None:
        raise OptionError(
            "exactly_once cannot identify the query, which Spark Connect does not tell",
            option="write_id",
            cure="set a write_id that no other query of the stream uses, and that stays the same "
            "when the query restarts",
        )
