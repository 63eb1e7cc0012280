"""
The number of partitions of a write, which only the driver knows.

The driver records it in the ledger before the first row. A run with another number of partitions is
rejected before it stores anything.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import jetsync
from jetsync_spark.common.clients import context_of, lend, stream_of
from jetsync_spark.common.errors import JetStreamSparkError
from jetsync_spark.common.headers import LEDGER
from jetsync_spark.common.retry import Retry
from jetsync_spark.common.task import Task, over_connect, this_task
from jetsync_spark.write.exactly_once import ledger_key, ledger_prefix
from jetsync_spark.write.ledger import LayoutError, OvertakenError, ledger_message

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark.sql import DataFrame

    from jetsync_spark.write.plan import Plan

__all__ = ["count_partitions", "planned_task", "record_partitions"]

COUNTED_ROWS: Final = 50_000
"""Rows of a partition that are computed to count partitions over Spark Connect."""


def planned_task(df: DataFrame) -> Task:
    """
    Return the query and micro-batch of a DataFrame, as known on the driver.

    Spark Connect does not tell them.
    """
    if over_connect(df):
        return Task()
    context = df.sparkSession.sparkContext
    batch = context.getLocalProperty("streaming.sql.batchId")
    return Task(
        query=context.getLocalProperty("sql.streaming.queryId") or None,
        batch=int(batch) if batch else None,
    )


def count_partitions(df: DataFrame) -> int:
    """
    Return the number of partitions of a DataFrame.

    If the DataFrame is shuffled, this runs the stages before the shuffle. Over Spark Connect, which
    has no RDDs, it runs a job that computes up to 50,000 rows of each partition.
    """
    if over_connect(df):
        return len(df.mapInArrow(_one_row, "partition int").collect())
    partitions: int = df.rdd.getNumPartitions()
    return partitions


def _one_row(batches: Iterable[Any]) -> Iterator[Any]:
    import pyarrow as pa

    # Spark kills the Python workers of a task that leaves rows. Starting others takes about as long
    # as computing this many rows.
    rows = 0
    for batch in batches:
        rows += batch.num_rows
        if rows >= COUNTED_ROWS:
            break
    yield pa.RecordBatch.from_pydict({"partition": pa.array([this_task().partition], pa.int32())})


def record_partitions(plan: Plan, task: Task, partitions: int) -> None:
    """
    Record the number of partitions in the ledger, or compare it with the recorded number.

    Raises:
        LayoutError: An earlier run had another number of partitions.
        OvertakenError: The ledger is at a later micro-batch, or another driver writes it.
    """
    key, batch = ledger_key(plan, task)
    name = plan.options.stream
    retry = Retry(plan.options.retry_timeout)

    def compare_or_write() -> None:
        with lend(plan.settings, plan.connection_name(task)) as client:
            js = context_of(plan.settings, client)
            stream = stream_of(plan.settings, client, name)
            prefix = ledger_prefix(stream, plan, key)
            subject = f"{prefix}.plan"
            known, sequence = _read(stream, subject)
            if known is not None and known[0] >= batch:
                _compare(known, (batch, partitions), key, name, subject)
                return
            said = json.dumps(
                {"v": 1, "batch": batch, "partitions": partitions}, separators=(",", ":")
            )
            messages = [ledger_message(subject, said.encode(), sequence, rollup=plan.rollup)]
            if plan.rollup and not sequence and not stream.info().state.messages:
                # The next plan removes this one. If it were the first message of the stream, a
                # reader would take it for a lost one.
                messages.insert(
                    0, jetsync.OutboundMessage(f"{prefix}.begin", b"", {LEDGER: "spark"})
                )
            js.publish_batch(messages, timeout=plan.options.ack_timeout)

    while True:
        try:
            return retry.call(compare_or_write, "planning a micro-batch failed", name)
        except JetStreamSparkError as error:
            # An ack was lost or another driver wrote. The recorded number shows which.
            moved_on = isinstance(error.__cause__, jetsync.WrongLastSequenceError)
            if not moved_on or not retry.wait_after(jetsync.TemporarilyUnavailableError()):
                raise


def _read(stream: jetsync.Stream, subject: str) -> tuple[tuple[int, int] | None, int]:
    try:
        found = stream.get_last(subject, direct=False)
    except jetsync.MessageNotFoundError:
        return None, 0
    try:
        said = json.loads(bytes(found.data))
        return (int(said["batch"]), int(said["partitions"])), found.sequence
    except (ValueError, TypeError, KeyError, RecursionError):
        raise JetStreamSparkError(
            "the last plan of the ledger was not written by jetsync-spark",
            stream=stream.name,
            subject=subject,
            cure="set another writeId, or update jetsync-spark",
        ) from None


def _compare(
    known: tuple[int, int], mine: tuple[int, int], key: str, stream: str, subject: str
) -> None:
    if known == mine:
        return
    if known[0] > mine[0]:
        raise OvertakenError(
            f"this is micro-batch {mine[0]} of {key}, but the ledger is at {known[0]}",
            stream=stream,
            subject=subject,
            cure="if an older checkpoint was restored, use the newest one, or another "
            "writeId, which writes the rows again; else stop the other driver",
        )
    raise LayoutError(
        f"micro-batch {mine[0]} of {key} has {mine[1]} partitions, but its first run had "
        f"{known[1]}; nothing of this run is stored",
        stream=stream,
        subject=subject,
        cure="restart with the minPartitions and settings of the first run of this micro-batch, "
        "until it is committed",
    )
