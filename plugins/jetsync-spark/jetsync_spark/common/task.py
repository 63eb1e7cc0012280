"""
The task and query that the current code runs in.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import attrs

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = [
    "Task",
    "application",
    "in_foreach_batch",
    "over_connect",
    "this_task",
]


@attrs.frozen(kw_only=True)
class Task:
    """
    One attempt of a task to process a partition.
    """

    partition: int = 0
    """The number of the partition, from 0."""

    attempt: int = 0
    """The number of earlier attempts."""

    task_attempt: int = 0
    """A number that is unique in the application."""

    query: str | None = None
    """The ID of the streaming query, from its checkpoint. None in batch jobs."""

    batch: int | None = None
    """The number of the micro-batch. None in batch jobs."""


def this_task() -> Task:
    """
    Return the current task, or a task 0 outside of Spark.
    """
    context = _context()
    if context is None:
        return Task()
    batch = context.getLocalProperty("streaming.sql.batchId")
    return Task(
        partition=context.partitionId(),
        attempt=context.attemptNumber(),
        task_attempt=context.taskAttemptId(),
        query=context.getLocalProperty("sql.streaming.queryId") or None,
        batch=int(batch) if batch else None,
    )


def _context() -> Any:
    """Return Spark's context of the current task, or None."""
    try:
        from pyspark import TaskContext
    except ImportError:
        return None
    return TaskContext.get()


def over_connect(df: DataFrame) -> bool:
    """
    Return whether a DataFrame belongs to a session of Spark Connect.

    Such a session has neither a Spark context nor RDDs. In ``foreachBatch``, its jobs do not know
    the streaming query and the micro-batch.
    """
    return type(df).__module__.startswith("pyspark.sql.connect.")


def in_foreach_batch() -> bool:
    """
    Return whether a server of Spark Connect calls this code in ``foreachBatch``, or in a listener.
    """
    # The server's address for the processes in which it calls functions of a query. Spark 3.5 to
    # 4.3 give it to no other process.
    return "SPARK_CONNECT_LOCAL_URL" in os.environ


def application() -> str:
    """
    Return the application's name for connections, so that operators can recognise them.

    On the driver this is the application ID. Workers do not know it and use their process ID.
    """
    try:
        from pyspark.sql import SparkSession

        session = SparkSession.getActiveSession()
        if session is not None:
            return str(session.sparkContext.applicationId)
    except Exception:  # noqa: BLE001 - no PySpark, no session, or Spark Connect: it is only a name.
        return f"pid{os.getpid()}"
    return f"pid{os.getpid()}"
