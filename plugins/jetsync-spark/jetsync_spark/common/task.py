"""
Where code runs: which task of which query, as far as Spark tells.
"""

from __future__ import annotations

import os

import attrs

__all__ = ["Task", "application", "this_task"]


@attrs.frozen(kw_only=True)
class Task:
    """
    A run of a task on a partition.
    """

    partition: int = 0
    """Which partition, from 0."""

    attempt: int = 0
    """How often it was tried before."""

    task_attempt: int = 0
    """A number that no other run in this application has."""

    query: str | None = None
    """Id of the streaming query, which is kept in its checkpoint; None in batch jobs."""

    batch: int | None = None
    """Number of the micro-batch; None in batch jobs."""


def this_task() -> Task:
    """
    Return the task that this code runs in; one of number 0 outside of Spark.
    """
    try:
        from pyspark import TaskContext
    except ImportError:
        return Task()
    context = TaskContext.get()
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


def application() -> str:
    """
    Return a name for what connects here, for the operators of a server.

    On the driver that is the application's id. Workers are not told it.
    """
    try:
        from pyspark.sql import SparkSession

        session = SparkSession.getActiveSession()
        if session is not None:
            return str(session.sparkContext.applicationId)
    except Exception:  # noqa: BLE001 - no PySpark, no session, or Spark Connect: it is only a name.
        return f"pid{os.getpid()}"
    return f"pid{os.getpid()}"
