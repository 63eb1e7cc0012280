"""
The writers of the data source: what Spark calls on the driver and in tasks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql import datasource
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

import jetsync
from jetsync_spark.common.clients import lend
from jetsync_spark.common.errors import OptionError, require_pyarrow
from jetsync_spark.common.options import ConnectSettings, check_names, read_settings
from jetsync_spark.common.retry import Patience
from jetsync_spark.common.task import Task, this_task
from jetsync_spark.write.columns import types_of
from jetsync_spark.write.exactly_once import ledger_key, ledger_place
from jetsync_spark.write.ledger import LayoutError, LedgerEntry
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
    What a task tells the driver.
    """

    def __init__(self, written: Written, task: Task) -> None:
        super().__init__()
        self.written = written
        self.task = task


def plan_of(
    options: Mapping[str, str], schema: StructType, *, overwrite: bool, patience: bool
) -> Plan:
    """
    Check all that can be checked on the driver, and return what tasks have to know.

    Args:
        options: From Spark.
        schema: Of the rows.
        overwrite: Whether the rows are to take the place of others.
        patience: Whether to wait for servers that are away.

    Raises:
        JetStreamSparkError: the write can not work.
    """
    require_pyarrow()
    if overwrite:
        raise OptionError(
            "a stream can not be overwritten", option="mode", cure='use .mode("append")'
        )
    check_names(options, ConnectSettings, WriteOptions)
    settings = read_settings(ConnectSettings, options)
    write = read_settings(WriteOptions, options)
    return make_plan(
        settings,
        write,
        columns_of(write.subject, constant=True),
        types=types_of(schema),
        all_used=True,
        patience=write.retry_timeout if patience else 0.0,
        application="batch",
    )


class BatchWriter(DataSourceArrowWriter):
    """
    Write a DataFrame.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> None:
        self._plan = plan_of(options, schema, overwrite=overwrite, patience=False)

    def write(self, iterator: Iterator[Any]) -> CommitMessage:
        """
        Write a partition, in a task.
        """
        return CommitMessage(write_batches(self._plan, iterator), this_task())

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """
        Check that the ledger has no rows of partitions that this run of the write has not.

        Raises:
            LayoutError: it has; the job fails, and all of its rows are stored.
        """
        _check_layout(self._plan, messages)
        _log_written("committed", self._plan, messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """
        Log what stays in the stream: nothing can take it back.
        """
        _log_written("aborted", self._plan, messages)


class StreamWriter(_StreamBase):
    """
    Write the micro-batches of a query.

    Spark makes a new one for each micro-batch and for each commit.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> None:
        self._plan = plan_of(options, schema, overwrite=overwrite, patience=True)

    def write(self, iterator: Iterator[Any]) -> CommitMessage:
        """
        Write a partition of a micro-batch, in a task.
        """
        write = write_batches if _ARROW_STREAMS else write_rows
        return CommitMessage(write(self._plan, iterator), this_task())

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name.
        """
        Check that the ledger has no rows of partitions that this run of the micro-batch has not.

        Raises:
            LayoutError: it has; the query stops, and the micro-batch is not committed.
        """
        _check_layout(self._plan, messages)
        _log_written("committed", self._plan, messages, batch=batchId)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name.
        """
        Log what stays in the stream: nothing can take it back.
        """
        _log_written("aborted", self._plan, messages, batch=batchId)


def _check_layout(plan: Plan, messages: Sequence[WriterCommitMessage | None]) -> None:
    """
    Raise if the ledger has rows of this write in partitions that there are not.
    """
    task = next((each.task for each in messages if isinstance(each, CommitMessage)), None)
    if plan.options.mode != EXACTLY_ONCE or task is None:
        return
    partitions = len(messages)
    key, batch = ledger_key(plan, task)
    name = plan.options.stream

    def check() -> None:
        with lend(plan.settings, plan.connection_name(Task(query=task.query))) as client:
            stream = client.jetstream().stream(name)
            prefix = ledger_place(stream, plan, key)
            # Of the leader, and no more than one number for each partition that ever was.
            subjects = stream.info(subjects_filter=f"{prefix}.*").state.subjects or {}
            for subject in subjects:
                last = subject.rpartition(".")[2]
                if not last.isdigit() or int(last) < partitions:
                    continue
                found = stream.get_last(subject, direct=False)
                entry = LedgerEntry.from_bytes(bytes(found.data), subject)
                if entry.batch == batch:
                    raise _other_layout(entry, partitions, name, subject)

    Patience(plan.options.retry_timeout).keep_trying(check, "checking the ledger failed", name)


def _other_layout(entry: LedgerEntry, partitions: int, stream: str, subject: str) -> LayoutError:
    return LayoutError(
        f"micro-batch {entry.batch} of {entry.key} came in {partitions} partitions, and an earlier "
        f"run of it had stored {entry.rows} rows as partition {entry.partition}: all rows are "
        "stored, and these may be there twice",
        stream=stream,
        subject=subject,
        cure="look for rows that are there twice; going back to the partitions of the first run "
        "may be refused, too, and then only another ledgerSubject goes on, which writes these rows "
        "again; exactly_once of this package refuses such a run before it stores a row",
    )


def _log_written(
    event: str, plan: Plan, messages: Sequence[WriterCommitMessage | None], **more: Any
) -> None:
    done = [each.written for each in messages if isinstance(each, CommitMessage)]
    firsts = [each.first_sequence for each in done if each.first_sequence is not None]
    lasts = [each.last_sequence for each in done if each.last_sequence is not None]
    _logger.info(
        event,
        stream=plan.options.stream,
        mode=plan.options.mode,
        partitions=len(done),
        rows=sum(each.rows for each in done),
        stored=sum(each.stored for each in done),
        skipped=sum(each.skipped for each in done),
        first_sequence=min(firsts, default=None),
        last_sequence=max(lasts, default=None),
        **more,
    )
