"""
Write the messages of a partition to a stream, in one of three modes. All writers use this.

When a call returns, all outcomes are known, because Spark may end its workers at any time.
Temporary errors are retried for ``retryTimeoutMs``.
"""

from __future__ import annotations

from itertools import chain, compress, count
from typing import TYPE_CHECKING, Any, Final

import attrs

import jetsync
from jetsync_spark.common.clients import client_for, context_of, lend
from jetsync_spark.common.errors import JetStreamSparkError, RowError, explain
from jetsync_spark.common.retry import TEMPORARY, Retry
from jetsync_spark.common.subjects import StreamSubjects
from jetsync_spark.common.task import this_task
from jetsync_spark.write.chunks import Chunks
from jetsync_spark.write.exactly_once import ExactlyOnce
from jetsync_spark.write.options import ATOMIC, EXACTLY_ONCE
from jetsync_spark.write.plan import check_streams
from jetsync_spark.write.rows import Checks, made_messages, row_messages
from jetsync_spark.write.written import Written

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from jetsync_spark.common.task import Task
    from jetsync_spark.write.plan import Plan

__all__ = ["write_batches", "write_messages", "write_rows"]

FLOW: Final = 500
"""Messages per ack of fast ingest."""

_logger = jetsync.get_logger("jetsync.spark.writing")


def write_rows(plan: Plan, rows: Iterable[Any]) -> Written:
    """
    Write Spark rows in a task.

    Raises:
        JetStreamSparkError: The write failed. The guarantee of the mode still holds.
    """

    def messages(checks: Checks) -> Iterator[Any]:
        if plan.make is not None:
            return made_messages(rows, plan.make, checks)
        return row_messages(rows, plan.columns, checks)

    return _write(plan, messages)


def write_messages(plan: Plan, messages: Iterator[Any]) -> Written:
    """
    Write messages in a task.

    Raises: as :func:`write_rows`.
    """
    return _write(plan, lambda _checks: messages)


def write_batches(plan: Plan, batches: Iterable[Any]) -> Written:
    """
    Write record batches in a task.

    Raises: as :func:`write_rows`.
    """
    from jetsync_spark.write.arrow_rows import batch_messages

    return _write(plan, lambda checks: batch_messages(batches, plan.columns, checks))


def _write(plan: Plan, make: Callable[[Checks], Iterator[Any]]) -> Written:
    task = this_task()
    written = Written(partition=task.partition)
    stream = plan.options.stream
    messages = make(Checks(StreamSubjects(plan.subjects), stream, task.partition))
    # Counts the messages without a Python call for each.
    counter = count(1)
    retry = Retry(plan.options.retry_timeout)
    _wait_connected(plan, task, retry)
    with lend(plan.settings, plan.connection_name(task)) as client:
        job = _Job(client, plan, task, retry, written)
        try:
            job.run(compress(messages, counter))
        except jetsync.JetSyncError as error:
            if isinstance(error, JetStreamSparkError):
                raise
            doing = f"writing partition {task.partition} to stream {stream} failed"
            raise explain(error, doing, stream=stream) from error
    written.rows = next(counter) - 1
    _logger.info("written", stream=stream, mode=plan.options.mode, **attrs.asdict(written))
    return written


def _wait_connected(plan: Plan, task: Task, retry: Retry) -> None:
    retry.call(lambda: client_for(plan.settings, plan.connection_name(task)), "connecting failed")
    retry.reset()


class _Job:
    """
    The write of one task.
    """

    def __init__(
        self,
        client: jetsync.Client,
        plan: Plan,
        task: Task,
        retry: Retry,
        written: Written,
    ) -> None:
        self._client = client
        self._js = context_of(plan.settings, client)
        self._plan = plan
        self._options = plan.options
        self._task = task
        self._retry = retry
        self._written = written

    def run(self, source: Iterator[Any]) -> None:
        """Write all messages and wait for their outcomes."""
        mode = self._options.mode
        if mode == EXACTLY_ONCE:
            once = ExactlyOnce(self._client, self._plan, self._task, self._retry)
            once.run(Chunks(source), self._written)
        elif mode == ATOMIC:
            self._atomic(Chunks(source))
        elif self._options.fast_ingest:
            self._fast(source)
        else:
            self._windowed(source)

    def _windowed(self, source: Iterator[Any]) -> None:
        """Publish with a window, and retry messages that may not be stored."""
        messages: Iterable[Any] = source
        numbers: list[int] = []
        taken = 0
        while True:
            try:
                report = self._js.publish_many(
                    messages,
                    window=self._options.max_in_flight,
                    ack_timeout=self._options.ack_timeout,
                )
            except jetsync.PublishManyError as error:
                report = error.report
            self._written.note(
                report.count, report.first_sequence, report.last_sequence, report.duplicates
            )
            check_streams(self._plan, report.streams)
            if not report.failures:
                return
            if report.count:
                self._retry.reset()
            rows = [
                numbers[failure.index]
                if failure.index < len(numbers)
                else taken + failure.index - len(numbers)
                for failure in report.failures
            ]
            self._wait_after(report.failures, rows)
            taken += report.count + len(report.failures) - len(numbers)
            numbers = rows
            again = [failure.message for failure in report.failures]
            # After many failures the window stops reading the source. The rest follows.
            messages = chain(again, source)

    def _wait_after(self, failures: tuple[jetsync.PublishFailure, ...], rows: list[int]) -> None:
        """Wait before failed messages are retried, or raise the first permanent error."""
        stream, partition = self._options.stream, self._task.partition
        for failure, row in zip(failures, rows, strict=True):
            if not isinstance(failure.error, TEMPORARY):
                raise explain(
                    failure.error,
                    f"row {row} of partition {partition} could not be stored",
                    stream=stream,
                    subject=failure.message.subject,
                ) from failure.error
        first = failures[0]
        if not self._retry.wait_after(first.error):
            raise explain(
                first.error,
                f"{len(failures)} rows of partition {partition}, the first of them row {rows[0]}, "
                "could not be stored",
                stream=stream,
                subject=first.message.subject,
            ) from first.error

    def _fast(self, source: Iterator[Any]) -> None:
        """Publish with fast ingest. If it fails, another run writes the rows again."""
        outstanding = max(self._options.max_in_flight // FLOW, 1)
        first = next(source, None)
        if first is None:
            return
        with self._js.fast_publisher(
            max_outstanding_acks=outstanding, timeout=self._options.ack_timeout
        ) as fast:
            fast.add_many(chain((first,), source))
        assert fast.ack is not None
        check_streams(self._plan, (fast.ack.stream,))
        self._written.note(fast.ack.size, None, fast.ack.sequence or None)

    def _atomic(self, chunks: Chunks) -> None:
        """Publish atomic chunks, and retry those that may not be stored."""
        more = True
        while more:
            chunk, more = chunks.take(self._options.chunk_size)
            if not chunk:
                return
            self._refuse_ids(chunk, chunks.taken - len(chunk))
            while True:
                try:
                    ack = self._js.publish_batch(chunk, timeout=self._options.ack_timeout)
                except jetsync.JetSyncError as error:
                    if self._retry.wait_after(error):
                        continue
                    first = chunks.taken - len(chunk)
                    raise explain(
                        error,
                        f"rows {first} to {chunks.taken - 1} of partition {self._task.partition} "
                        "were not stored",
                        stream=self._options.stream,
                    ) from error
                break
            self._retry.reset()
            check_streams(self._plan, (ack.stream,))
            self._written.note(ack.size, ack.first_sequence, ack.sequence)

    def _refuse_ids(self, chunk: list[Any], first: int) -> None:
        """
        Reject messages with IDs, because the stream would reject stored chunks of another run.
        """
        for row, message in enumerate(chunk, first):
            if type(message) is not tuple and message.msg_id is not None:
                raise RowError(
                    "it has a msg_id, which mode atomic cannot write again after a failure",
                    partition=self._task.partition,
                    row=row,
                    cure="leave it out, or use mode atleastonce, which stores an id once",
                )
