"""
What a task can not see: in how many partitions a write comes.

The driver writes it to a plan in the ledger before the first row, so that a run in other partitions
is refused before it has stored anything.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import jetsync
from jetsync_spark.common.clients import lend
from jetsync_spark.common.errors import JetStreamSparkError
from jetsync_spark.common.retry import Patience
from jetsync_spark.common.task import Task
from jetsync_spark.write.exactly_once import ledger_key, ledger_place
from jetsync_spark.write.ledger import LayoutError, OvertakenError, ledger_message

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from jetsync_spark.write.plan import Plan

__all__ = ["agree", "planned_task"]


def planned_task(df: DataFrame) -> Task:
    """
    Return what is known on the driver of the tasks that will compute a DataFrame.
    """
    context = df.sparkSession.sparkContext
    batch = context.getLocalProperty("streaming.sql.batchId")
    return Task(
        query=context.getLocalProperty("sql.streaming.queryId") or None,
        batch=int(batch) if batch else None,
    )


def agree(plan: Plan, task: Task, partitions: int) -> None:
    """
    Write the number of partitions of a write to the ledger, or compare it with what is there.

    Raises:
        LayoutError: an earlier run of it had another number.
        OvertakenError: the ledger is at a later micro-batch, or another driver writes it.
    """
    key, batch = ledger_key(plan, task)
    name = plan.options.stream
    patience = Patience(plan.options.retry_timeout)

    def compare_or_write() -> None:
        with lend(plan.settings, plan.connection_name(task)) as client:
            js = client.jetstream()
            stream = js.stream(name)
            subject = f"{ledger_place(stream, plan, key)}.plan"
            known, sequence = _read(stream, subject)
            if known is not None and known[0] >= batch:
                _compare(known, (batch, partitions), key, name, subject)
                return
            said = json.dumps(
                {"v": 1, "batch": batch, "partitions": partitions}, separators=(",", ":")
            )
            message = ledger_message(subject, said.encode(), sequence)
            js.publish(
                message.subject,
                message.data,
                headers=message.headers,
                expect=message.expect,
                timeout=plan.options.ack_timeout,
            )

    while True:
        try:
            return patience.keep_trying(compare_or_write, "planning a micro-batch failed", name)
        except JetStreamSparkError as error:
            # An answer that was lost, or another driver: what is there says which.
            moved_on = isinstance(error.__cause__, jetsync.WrongLastSequenceError)
            if not moved_on or not patience.bear(jetsync.TemporarilyUnavailableError()):
                raise


def _read(stream: jetsync.Stream, subject: str) -> tuple[tuple[int, int] | None, int]:
    try:
        found = stream.get_last(subject, direct=False)
    except jetsync.MessageNotFoundError:
        return None, 0
    try:
        said = json.loads(bytes(found.data))
        return (int(said["batch"]), int(said["partitions"])), found.sequence
    except (ValueError, TypeError, KeyError):
        raise JetStreamSparkError(
            "the last plan of the ledger is none that this package wrote",
            stream=stream.name,
            subject=subject,
            cure="set another ledgerSubject, or update jetsync-spark",
        ) from None


def _compare(
    known: tuple[int, int], mine: tuple[int, int], key: str, stream: str, subject: str
) -> None:
    if known == mine:
        return
    if known[0] > mine[0]:
        raise OvertakenError(
            f"this is micro-batch {mine[0]} of {key}, and the ledger is at {known[0]}",
            stream=stream,
            subject=subject,
            cure="if an older checkpoint was restored, use the newest one, or another "
            "ledger_subject, which writes the rows again; else stop the other driver",
        )
    raise LayoutError(
        f"micro-batch {mine[0]} of {key} comes in {mine[1]} partitions, and was begun in "
        f"{known[1]}; nothing of this run is stored",
        stream=stream,
        subject=subject,
        cure="restart with the minPartitions and settings of the first run of this micro-batch, "
        "until it is committed",
    )
