"""
The writers of the data source, which Spark calls on the driver and in tasks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql import datasource
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

import jetsync
from jetsync_spark.common.errors import JetStreamSparkError, OptionError, require_pyarrow
from jetsync_spark.common.options import ConnectSettings, check_names, read_settings
from jetsync_spark.common.task import Task, this_task
from jetsync_spark.write.columns import types_of
from jetsync_spark.write.commit_check import check_layout
from jetsync_spark.write.metrics import count_written
from jetsync_spark.write.options import EXACTLY_ONCE, WriteOptions
from jetsync_spark.write.partition import write_batches, write_rows
from jetsync_spark.write.plan import columns_of, make_plan

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql.types import StructType

    from jetsync_spark.write.plan import Plan
    from jetsync_spark.write.written import Written

__all__ = ["BatchWriter", "CommitMessage", "StreamWriter"]

# Streaming writers take record batches from Spark 4.1 on, and rows before.
_ARROW_STREAMS = hasattr(datasource, "DataSourceStreamArrowWriter")
_StreamBase: Any = (
    datasource.DataSourceStreamArrowWriter if _ARROW_STREAMS else datasource.DataSourceStreamWriter
)

_logger = jetsync.get_logger("jetsync.spark.writer")


class CommitMessage(WriterCommitMessage):
    """
    What a task reports to the driver.
    """

    def __init__(self, written: Written, task: Task) -> None:
        super().__init__()
        self.written = written
        self.task = task


def plan_of(
    options: Mapping[str, str], schema: StructType, *, overwrite: bool, append: str
) -> Plan:
    """
    Check a write on the driver, and return the plan for the tasks.

    Args:
        options: The options from Spark.
        schema: The schema of the rows.
        overwrite: Whether the write should replace existing rows, which is not possible.
        append: How to write rows without that.

    Raises:
        JetStreamSparkError: The write is not possible.
    """
    require_pyarrow()
    if overwrite:
        raise _no_overwrite(options, append)
    check_names(options, ConnectSettings, WriteOptions)
    settings = read_settings(ConnectSettings, options)
    write = read_settings(WriteOptions, options)
    return make_plan(
        settings,
        write,
        columns_of(write.subject, constant=True, bucket=write.bucket),
        types=types_of(schema),
        all_used=True,
        application="batch",
        keep=False,
    )


def _no_overwrite(options: Mapping[str, str], append: str) -> OptionError:
    """Return the error of a write that should replace what is stored."""
    if "bucket" in options:
        return OptionError(
            "a bucket cannot be overwritten as a whole",
            cure=f"{append}. Each row replaces the value of its key, or removes the key if the "
            "column operation is DEL",
        )
    return OptionError("a stream cannot be overwritten", cure=append)


class BatchWriter(DataSourceArrowWriter):
    """
    Writes a DataFrame.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> None:
        append = 'use .mode("append"), or INSERT INTO in SQL'
        self._plan = plan_of(options, schema, overwrite=overwrite, append=append)

    def write(self, iterator: Iterator[Any]) -> CommitMessage:
        """
        Write a partition in a task.
        """
        return CommitMessage(write_batches(self._plan, iterator), this_task())

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """
        Check that the ledger has no partitions that this run does not have.

        Raises:
            LayoutError: It has such partitions. The job fails, although all of its rows are stored.
        """
        _check_layout(self._plan, messages)
        _log_written("committed", self._plan, messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """
        Log the counts of the stored rows, which stay in the stream.
        """
        _log_written("aborted", self._plan, messages)


class StreamWriter(_StreamBase):
    """
    Writes the micro-batches of a query.

    Spark creates a new writer for each micro-batch and for each commit.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> None:
        append = (
            'use .outputMode("append"), or write the rows of each micro-batch in foreachBatch with '
            "jetsync_spark.exactly_once, which takes all output modes"
        )
        self._plan = plan_of(options, schema, overwrite=overwrite, append=append)

    def write(self, iterator: Iterator[Any]) -> CommitMessage:
        """
        Write a partition of a micro-batch in a task.
        """
        write = write_batches if _ARROW_STREAMS else write_rows
        return CommitMessage(write(self._plan, iterator), this_task())

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name.
        """
        Check that tasks have written, and that the ledger has no other partitions.

        Raises:
            JetStreamSparkError: The trigger is continuous, and no task has written.
            LayoutError: It has such partitions. The query stops without committing the micro-batch.
        """
        if not all(isinstance(each, CommitMessage) for each in messages):
            # Spark calls this only if all tasks have ended. In continuous processing it drops the
            # rows of Python sinks, without an error, and then calls this.
            raise JetStreamSparkError(
                "continuous processing does not give the rows to a sink in Python, so none of them "
                "is stored",
                stream=self._plan.options.stream,
                cure='stop the query, and start it with another trigger, such as processingTime="1 '
                'second", and with a new checkpoint',
            )
        _check_layout(self._plan, messages)
        _log_written("committed", self._plan, messages, batch=batchId)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name.
        """
        Log the counts of the stored rows, which stay in the stream.
        """
        _log_written("aborted", self._plan, messages, batch=batchId)


def _check_layout(plan: Plan, messages: Sequence[WriterCommitMessage | None]) -> None:
    """
    Raise if the ledger has rows of this write in partitions that do not exist in this run.
    """
    done = [each for each in messages if isinstance(each, CommitMessage)]
    if plan.options.mode == EXACTLY_ONCE and done:
        has_rows = any(each.written.rows for each in done)
        check_layout(plan, done[0].task, len(messages), has_rows=has_rows)


def _log_written(
    event: str, plan: Plan, messages: Sequence[WriterCommitMessage | None], **more: Any
) -> None:
    reports = [each for each in messages if isinstance(each, CommitMessage)]
    done = [each.written for each in reports]
    query = next((each.task.query for each in reports), None) or plan.options.write_id
    firsts = [each.first_sequence for each in done if each.first_sequence is not None]
    lasts = [each.last_sequence for each in done if each.last_sequence is not None]
    _logger.info(
        event,
        stream=plan.options.stream,
        mode=plan.options.mode,
        partitions=len(done),
        rows=sum(each.rows for each in done),
        **count_written(plan.options.stream, query, done),
        first_sequence=min(firsts, default=None),
        last_sequence=max(lasts, default=None),
        **more,
    )
