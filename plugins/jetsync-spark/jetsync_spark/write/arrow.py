"""
Publish DataFrames as record batches, which is the fastest way. Needs Spark 3.5 or newer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import attrs

from jetsync_spark.common.errors import require_pandas, require_pyarrow
from jetsync_spark.common.names import is_case_sensitive
from jetsync_spark.common.options import errors_for_programs
from jetsync_spark.common.task import application
from jetsync_spark.write import layout
from jetsync_spark.write.columns import types_of
from jetsync_spark.write.options import EXACTLY_ONCE
from jetsync_spark.write.partition import write_batches
from jetsync_spark.write.plan import columns_of, make_plan
from jetsync_spark.write.sink import check_batch, write_options

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from pyspark.sql import DataFrame

    import jetsync
    from jetsync_spark.write.plan import Plan

__all__ = ["publish_arrow"]

COUNTS: Final = (
    "partition int, rows long, stored long, duplicates long, skipped long, invalid long, "
    "first_sequence long, last_sequence long"
)
"""The columns of the result of a write."""


@errors_for_programs()
def publish_arrow(
    df: DataFrame,
    options: jetsync.ConnectOptions,
    *,
    stream: str = "",
    subject: str = "subject",
    data: str = "data",
    headers: str | None = None,
    msg_id: str | None = None,
    ttl: str | None = None,
    expected_sequence: str | None = None,
    mode: str = "atleastonce",
    **settings: Any,
) -> DataFrame:
    """
    Return a DataFrame with a row of counts per partition. Collecting it publishes *df*.

    No row is written until an action computes the result, and each action writes again. Use
    ``collect``. Actions that do not need all rows, such as ``first``, ``take`` and ``show``, write
    only some partitions, without an error. The call itself checks the stream and the columns. In
    mode ``exactlyonce`` it also records the number of partitions in the ledger, whose messages
    count the stored rows. A later run with another number is rejected before it stores a row.

    Args:
        df: The rows. They may have further columns, which are ignored.
        options: How to connect.
        stream: Name of the stream, or of several streams with commas between them. Leave it out
            with ``bucket="name"``, as for :class:`JetStreamSink`.
        subject: This and the following column arguments are the same as for
            :class:`JetStreamSink`.
        data: The column of the payload.
        headers: The column of the headers.
        msg_id: The column of the message IDs.
        ttl: The column of the times-to-live.
        expected_sequence: The column of the expected last sequences.
        mode: ``atleastonce``, ``atomic`` or ``exactlyonce``.
        settings: Other fields of the writer's options, such as ``retry_timeout`` and
            ``on_invalid_row``. In ``foreachBatch`` over Spark Connect, mode ``exactlyonce`` needs a
            ``write_id`` and a ``batch_id``, which is the number that Spark passes.

    Returns:
        A DataFrame with the columns ``partition``, ``rows``, ``stored``, ``duplicates``,
        ``skipped``, ``invalid``, ``first_sequence`` and ``last_sequence``. ``duplicates`` are
        messages that the stream already had, by their ID. ``skipped`` are rows that an earlier run
        had stored, according to the ledger. ``invalid`` are rows that ``on_invalid_row`` left out
        or replaced by dead letters.

    Raises:
        JetStreamSparkError: The write is not possible.
    """
    require_pyarrow()
    require_pandas()
    write = write_options(stream=stream, mode=mode, **settings)
    columns = columns_of(
        subject,
        constant=False,
        bucket=write.bucket,
        data=data,
        headers=headers,
        msg_id=msg_id,
        ttl=ttl,
        expected_sequence=expected_sequence,
        case_sensitive=is_case_sensitive(df.sparkSession),
    )
    check_batch(write)
    plan = make_plan(
        options,
        write,
        columns,
        types=types_of(df.schema),
        application=application(),
    )
    rows = used_columns(df, plan)
    if plan.options.mode == EXACTLY_ONCE:
        layout.record_partitions(plan, layout.planned_task(df), layout.count_partitions(rows))
    return publish_planned(rows, plan)


def used_columns(df: DataFrame, plan: Plan) -> DataFrame:
    """
    Return a DataFrame with the columns that a write uses. Spark does not compute the others.
    """
    used = list(dict.fromkeys(plan.columns.used()))
    return df.select(*("`" + name.replace("`", "``") + "`" for name in used))


def publish_planned(rows: DataFrame, plan: Plan) -> DataFrame:
    """
    Return a DataFrame that writes the used columns when it is computed.
    """
    return rows.mapInArrow(_writer(plan), COUNTS)


def _writer(plan: Plan) -> Callable[[Iterable[Any]], Iterator[Any]]:
    def publish_to_jetstream(batches: Iterable[Any]) -> Iterator[Any]:
        import pyarrow as pa

        with errors_for_programs():
            counts = attrs.asdict(write_batches(plan, batches))
        names = [column.split(" ")[0] for column in COUNTS.split(", ")]
        kinds = [pa.int32()] + [pa.int64()] * (len(names) - 1)
        columns = [pa.array([counts[name]], kind) for name, kind in zip(names, kinds, strict=True)]
        yield pa.RecordBatch.from_arrays(columns, names=names)

    # Spark shows this name in plans.
    publish_to_jetstream.__name__ = f"publish_to_{plan.options.stream}"
    return publish_to_jetstream
