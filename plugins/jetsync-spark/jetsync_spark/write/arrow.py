"""
Whole DataFrames into a stream by record batches: the way for volume; Spark 3.5 and newer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import attrs

from jetsync_spark.common.errors import require_pandas, require_pyarrow
from jetsync_spark.common.task import application
from jetsync_spark.write import layout
from jetsync_spark.write.columns import types_of
from jetsync_spark.write.options import EXACTLY_ONCE
from jetsync_spark.write.partition import write_batches
from jetsync_spark.write.plan import columns_of, make_plan
from jetsync_spark.write.sink import write_options

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from pyspark.sql import DataFrame

    import jetsync
    from jetsync_spark.write.plan import Plan

__all__ = ["publish_arrow"]

COUNTS: Final = (
    "partition int, rows long, stored long, duplicates long, skipped long, "
    "first_sequence long, last_sequence long"
)
"""Columns of what a write returns."""


def publish_arrow(
    df: DataFrame,
    options: jetsync.ConnectOptions,
    *,
    stream: str,
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
    Return a DataFrame that publishes *df* when it is computed, with a row of counts per partition.

    Nothing is written before an action computes it, and each action writes again. Use ``collect``:
    actions that need not all rows, such as ``first``, ``take`` and ``show``, write some partitions
    only, and say nothing. What can be checked is checked here, and in mode ``exactlyonce`` the
    number of partitions is written to the ledger, so that a run in another number is refused before
    a row of it is stored.

    Args:
        df: The rows; columns that are not asked for are left out.
        options: How to connect.
        stream: Name of the stream.
        subject: As for :class:`JetStreamSink`, and so are all others.
        data: The column of the payload.
        headers: The column of the headers.
        msg_id: The column of the ids.
        ttl: The column of the times-to-live.
        expected_sequence: The column of the sequences that subjects have to have.
        mode: ``atleastonce``, ``atomic`` or ``exactlyonce``.
        settings: Other options of the data source's writer, by their names in Python.

    Returns:
        ``partition, rows, stored, duplicates, skipped, first_sequence, last_sequence``.

    Raises:
        JetStreamSparkError: the stream or the columns make it impossible.
    """
    require_pyarrow()
    require_pandas()
    columns = attrs.evolve(
        columns_of(subject, constant=False),
        data=data,
        headers=headers,
        msg_id=msg_id,
        ttl=ttl,
        expected_sequence=expected_sequence,
    )
    plan = make_plan(
        options,
        write_options(stream=stream, mode=mode, **settings),
        columns,
        types=types_of(df.schema),
        application=application(),
    )
    if plan.options.mode == EXACTLY_ONCE:
        # Of a shuffled DataFrame this runs what comes before the shuffle.
        layout.agree(plan, layout.planned_task(df), df.rdd.getNumPartitions())
    return publish_planned(df, plan)


def publish_planned(df: DataFrame, plan: Plan) -> DataFrame:
    """
    Return a DataFrame that writes *df* as planned when it is computed.
    """
    # Spark reads no columns that nobody uses.
    used = list(dict.fromkeys(plan.columns.used()))
    quoted = ["`" + name.replace("`", "``") + "`" for name in used]
    return df.select(*quoted).mapInArrow(_writer(plan), COUNTS)


def _writer(plan: Plan) -> Callable[[Iterable[Any]], Iterator[Any]]:
    # Spark shows the name of the function in plans, and nothing of what it holds.
    def publish_to_jetstream(batches: Iterable[Any]) -> Iterator[Any]:
        import pyarrow as pa

        counts = attrs.asdict(write_batches(plan, batches))
        names = [column.split(" ")[0] for column in COUNTS.split(", ")]
        kinds = [pa.int32()] + [pa.int64()] * (len(names) - 1)
        columns = [pa.array([counts[name]], kind) for name, kind in zip(names, kinds, strict=True)]
        yield pa.RecordBatch.from_arrays(columns, names=names)

    return publish_to_jetstream
