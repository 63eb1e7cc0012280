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
from jetsync_spark.common.clients import context_of, stream_of
from jetsync_spark.common.dead_letters import FAIL, DeadLetter, store_dead_letters
from jetsync_spark.common.errors import JetStreamSparkError, RowError, explain
from jetsync_spark.common.retry import Retry, is_temporary, lend_with_retry
from jetsync_spark.common.subjects import StreamSubjects
from jetsync_spark.common.task import this_task
from jetsync_spark.write.buckets import KeyChecks
from jetsync_spark.write.changes import (
    Conflict,
    compare,
    conflict_error,
    conflict_text,
    subject_of,
)
from jetsync_spark.write.checks import Checks
from jetsync_spark.write.chunks import CHUNK_BYTES, Chunks
from jetsync_spark.write.exactly_once import ExactlyOnce
from jetsync_spark.write.invalid import InvalidRows, find_faults, is_fault
from jetsync_spark.write.options import ATOMIC, EXACTLY_ONCE
from jetsync_spark.write.plan import check_dead_letters, check_streams
from jetsync_spark.write.rows import made_messages, row_messages
from jetsync_spark.write.written import Written

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from jetsync_spark.common.task import Task
    from jetsync_spark.write.plan import Plan

__all__ = ["write_batches", "write_messages", "write_rows"]

FLOW: Final = 500
"""Messages per ack of fast ingest."""

OUTSTANDING: Final = 3
"""How many acks of fast ingest may be outstanding (ADR-50)."""

LETTERS: Final = 1000
"""Dead letters that are collected before they are stored."""

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
    # Counts the messages without a Python call for each.
    counter = count(1)
    retry = Retry(plan.options.retry_timeout)
    with lend_with_retry(plan.settings, plan.connection_name(task), retry) as client:
        largest = client.server.max_payload
        invalid = None
        if plan.options.on_invalid_row != FAIL:
            invalid = InvalidRows(plan, task, largest)
        if plan.max_size is not None:
            largest = min(largest, plan.max_size)
        messages = make(_checks(plan, task, largest, invalid))
        job = _Job(client, plan, task, retry, written, invalid=invalid)
        try:
            job.run(messages, counter)
        except jetsync.JetSyncError as error:
            if isinstance(error, JetStreamSparkError):
                raise
            doing = f"writing partition {task.partition} to stream {stream} failed"
            raise explain(error, doing, stream=stream) from error
    written.rows = next(counter) - 1
    if invalid is not None:
        written.rows += invalid.missing
        written.invalid = invalid.count
        invalid.log(stream=stream, partition=task.partition)
    _logger.info("written", stream=stream, mode=plan.options.mode, **attrs.asdict(written))
    return written


def _checks(plan: Plan, task: Task, largest: int, invalid: InvalidRows | None) -> Checks:
    bucket = plan.options.bucket
    if bucket is not None:
        return KeyChecks(bucket, task.partition, largest=largest, invalid=invalid)
    return Checks(
        StreamSubjects(plan.subjects),
        plan.options.stream,
        task.partition,
        streams={name: StreamSubjects(filters) for name, filters in plan.streams},
        largest=largest,
        invalid=invalid,
    )


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
        *,
        invalid: InvalidRows | None = None,
    ) -> None:
        self._client = client
        self._js = context_of(plan.settings, client)
        self._plan = plan
        self._options = plan.options
        self._task = task
        self._retry = retry
        self._written = written
        self._invalid = invalid
        self._of_keys = plan.options.bucket is not None
        self._letters: list[DeadLetter] = []
        """Dead letters that are not stored yet."""

        self._taken = 0
        """The number of messages that were taken from the source."""

    def run(self, messages: Iterator[Any], counter: Iterator[int]) -> None:
        """
        Write all messages and wait for their outcomes.

        Args:
            messages: The messages, and dead letters among them.
            counter: Is advanced for each message.
        """
        mode = self._options.mode
        if mode == EXACTLY_ONCE:
            once = ExactlyOnce(
                self._client, self._plan, self._task, self._retry, invalid=self._invalid
            )
            chunks = Chunks(compress(messages, counter), of_keys=self._of_keys)
            once.run(chunks, self._written)
            return
        write = self._fast if self._options.fast_ingest else self._windowed
        if self._of_keys:
            write = self._in_order
        if mode == ATOMIC:
            write = self._atomic
        if self._plan.dead_letters is None:
            write(compress(messages, counter))
            return
        while True:
            # Dead letters are stored between parts of the source, so that they do not fill the
            # memory, and because they may be in another stream.
            part = _Part(messages, self._letters)
            write(compress(part, counter))
            self._store_letters()
            if part.is_last:
                return

    def _store_letters(self) -> None:
        """Store the dead letters that were collected."""

        def check(report: jetsync.PublishReport) -> None:
            check_dead_letters(self._plan, report.streams)
            if report.failures:
                self._wait_after(report.failures, None)

        timeout = self._options.ack_timeout
        store_dead_letters(self._js, self._letters, check, ack_timeout=timeout)
        self._letters.clear()

    def _limit_letters(self) -> None:
        """Store the dead letters of refused messages if they are many, to limit the memory."""
        if len(self._letters) >= LETTERS or sum(map(_size, self._letters)) >= CHUNK_BYTES:
            self._store_letters()

    def _windowed(self, source: Iterator[Any]) -> None:
        """Publish with a window, and retry messages that may not be stored."""
        messages: Iterable[Any] = source
        again: list[Any] = []
        numbers: list[int] = []
        taken = self._taken
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
            places = [
                numbers[failure.index]
                if failure.index < len(numbers)
                else taken + failure.index - len(numbers)
                for failure in report.failures
            ]
            read = report.count + len(report.failures)
            taken += max(0, read - len(numbers))
            self._taken = taken
            if not report.failures:
                return
            if report.count:
                self._retry.reset()
            failures, places = self._without_invalid(report.failures, places)
            self._limit_letters()
            if failures:
                self._wait_after(failures, places)
            elif report.exhausted:
                return
            # After many failures, publish_many reads no further messages, not even all of those
            # that it gets again.
            numbers = places + numbers[read:]
            again = [*(failure.message for failure in failures), *again[read:]]
            messages = chain(again, source)

    def _in_order(self, source: Iterator[Any]) -> None:
        """Publish changes of a bucket, so that those of a key keep their order."""
        # A plugin that retries a message sends it after later ones of the same call.
        retries = any("jetsync_retry" in plugin.hooks for plugin in self._client.plugins)
        chunks, more = Chunks(source, each_key_once=retries), True
        while more:
            # Waiting for the outcome of a part takes one round trip in thousands of rows.
            part, more = chunks.take(self._options.max_in_flight)
            left = list(enumerate(part, self._taken))
            self._taken += len(part)
            while left:
                left = self._publish_changes(left)

    def _publish_changes(self, changes: list[tuple[int, Any]]) -> list[tuple[int, Any]]:
        """
        Publish changes with their places among the messages. Return those to publish again.

        If a change may not be stored, the later ones of its key are published again after it.
        """
        try:
            report = self._js.publish_many(
                [message for _, message in changes],
                window=self._options.max_in_flight,
                ack_timeout=self._options.ack_timeout,
                # It would send a message again after later ones.
                retries=0,
            )
        except jetsync.PublishManyError as error:
            report = error.report
        self._written.note(
            report.count, report.first_sequence, report.last_sequence, report.duplicates
        )
        check_streams(self._plan, report.streams)
        if report.count:
            self._retry.reset()
        again: list[tuple[jetsync.PublishFailure, int]] = []
        first: dict[str, int] = {}
        settled: set[int] = set()
        for failure in sorted(report.failures, key=lambda each: each.index):
            place, subject = changes[failure.index][0], failure.message.subject
            cause = self._retryable(failure, place, after_other=subject in first)
            if cause is None:
                settled.add(place)
            else:
                first.setdefault(subject, place)
                again.append((attrs.evolve(failure, error=cause), place))
        self._limit_letters()
        if again:
            self._wait_after([failure for failure, _ in again], [place for _, place in again])
        read = report.count + len(report.failures)
        left = [
            (place, message)
            for number, (place, message) in enumerate(changes)
            if number >= read
            or (place >= first.get(subject_of(message), self._taken) and place not in settled)
        ]
        # They are counted when they are stored again.
        self._written.stored -= len(left) - len(again) - (len(changes) - read)
        return left

    def _retryable(
        self, failure: jetsync.PublishFailure, place: int, *, after_other: bool
    ) -> Exception | None:
        """
        Return the error of a change to publish again. Return None if it is stored or rejected.

        Args:
            failure: The change, which was not acknowledged.
            place: Its place among the messages.
            after_other: Whether an earlier change of the key is published again.

        Raises:
            RowError: The key has another revision than the row expects, and such rows fail.
        """
        error, message = failure.error, failure.message
        if isinstance(error, jetsync.WrongLastSequenceError):
            if after_other:
                return jetsync.TemporarilyUnavailableError()
            timeout = self._options.ack_timeout
            doing = "reading the revision of a key failed"
            settings, stream = self._plan.settings, self._options.stream
            why, revision = self._retry.call(
                lambda: compare(stream_of(settings, self._client, stream), message, timeout),
                doing,
                stream,
            )
            if why is Conflict.STORED:
                self._written.duplicates += 1
                return None
            if why is Conflict.NONE:
                return jetsync.TemporarilyUnavailableError()
            if self._invalid is None:
                partition, row = self._task.partition, self._row(place)
                raise conflict_error(message, revision, partition, row) from error
            error = ValueError(conflict_text(message, revision))
        elif self._invalid is None or not is_fault(error):
            return error
        self._letters += self._invalid.reject(self._row(place), message, error)
        return None

    def _without_invalid(
        self, failures: Sequence[jetsync.PublishFailure], places: list[int]
    ) -> tuple[Sequence[jetsync.PublishFailure], list[int]]:
        """Reject messages that were refused. Return the other failures and their places."""
        invalid = self._invalid
        if invalid is None:
            return failures, places
        left = []
        for failure, place in zip(failures, places, strict=True):
            if is_fault(failure.error):
                row = invalid.row_of(place)
                self._letters += invalid.reject(row, failure.message, failure.error)
            else:
                left.append((failure, place))
        return [failure for failure, _ in left], [place for _, place in left]

    def _row(self, place: int) -> int:
        """Return the number of the row of a message."""
        return place if self._invalid is None else self._invalid.row_of(place)

    def _wait_after(
        self, failures: Sequence[jetsync.PublishFailure], places: list[int] | None
    ) -> None:
        """
        Wait before failed messages are retried, or raise the first permanent error.

        Args:
            failures: The messages and their errors.
            places: The places of rows among the messages, or None for dead letters.
        """
        stream, partition = self._options.stream, self._task.partition
        for number, failure in enumerate(failures):
            if not is_temporary(failure.error):
                what = "a dead letter" if places is None else f"row {self._row(places[number])}"
                raise explain(
                    failure.error,
                    f"{what} of partition {partition} could not be stored",
                    stream=stream,
                    subject=failure.message.subject,
                ) from failure.error
        first = failures[0]
        if not self._retry.wait_after(first.error):
            what = (
                f"{len(failures)} dead letters of partition {partition}"
                if places is None
                else f"{len(failures)} rows of partition {partition}, the first of them row "
                f"{self._row(places[0])},"
            )
            raise explain(
                first.error,
                f"{what} could not be stored",
                stream=stream,
                subject=first.message.subject,
            ) from first.error

    def _fast(self, source: Iterator[Any]) -> None:
        """Publish with fast ingest. If it fails later than at its start, another run repeats it."""
        outstanding = min(max(self._options.max_in_flight // FLOW, 1), OUTSTANDING)
        first = next(source, None)
        if first is None:
            return
        is_begun = False
        while not is_begun:
            try:
                with self._js.fast_publisher(
                    max_outstanding_acks=outstanding, timeout=self._options.ack_timeout
                ) as fast:
                    # This waits until the server has accepted the batch.
                    fast.add_many((first,))
                    is_begun = True
                    fast.add_many(source)
            except jetsync.JetSyncError as error:
                if is_begun or not self._retry.wait_after(error):
                    raise
        assert fast.ack is not None
        check_streams(self._plan, (fast.ack.stream,))
        self._written.note(fast.ack.size, None, fast.ack.sequence or None)

    def _atomic(self, source: Iterator[Any]) -> None:
        """Publish atomic chunks, and retry those that may not be stored."""
        chunks = Chunks(source, of_keys=self._of_keys)
        more = True
        while more:
            chunk, more = chunks.take(self._options.chunk_size)
            if not chunk:
                return
            first = self._taken
            self._taken += len(chunk)
            self._refuse_ids(chunk, first)
            self._store_chunk(chunk, first)

    def _store_chunk(self, chunk: list[Any], first: int) -> None:
        """Publish an atomic chunk. *first* is the place of its first message."""
        end = self._taken
        places: Sequence[int] = range(first, end)
        while chunk:
            try:
                ack = self._js.publish_batch(chunk, timeout=self._options.ack_timeout)
            except jetsync.JetSyncError as error:
                if self._retry.wait_after(error):
                    continue
                if self._invalid is not None and is_fault(error):
                    chunk, places = self._without_faults(chunk, places, error)
                    self._limit_letters()
                    continue
                raise explain(
                    error,
                    f"rows {self._row(first)} to {self._row(end - 1)} of partition "
                    f"{self._task.partition} were not stored",
                    stream=self._options.stream,
                ) from error
            self._retry.reset()
            check_streams(self._plan, (ack.stream,))
            self._written.note(ack.size, ack.first_sequence, ack.sequence)
            return

    def _without_faults(
        self, chunk: list[Any], places: Sequence[int], error: jetsync.JetSyncError
    ) -> tuple[list[Any], Sequence[int]]:
        """Reject the messages for which a chunk was refused. Return the others and their places."""
        assert self._invalid is not None
        timeout = self._options.ack_timeout
        faults = self._retry.call(
            lambda: find_faults(self._js, chunk, timeout), "checking rows failed"
        )
        if not faults:
            # The server refuses what the client accepts.
            raise error
        for number, fault in faults.items():
            row = self._invalid.row_of(places[number])
            self._letters += self._invalid.reject(row, chunk[number], fault)
        left = [number for number in range(len(chunk)) if number not in faults]
        return [chunk[number] for number in left], [places[number] for number in left]

    def _refuse_ids(self, chunk: list[Any], first: int) -> None:
        """
        Reject messages with IDs, because the stream would reject stored chunks of another run.
        """
        for place, message in enumerate(chunk, first):
            if type(message) is not tuple and message.msg_id is not None:
                raise RowError(
                    "it has a msg_id, which mode atomic cannot write again after a failure",
                    partition=self._task.partition,
                    row=self._row(place),
                    cure="leave it out, or use mode atleastonce, which stores an id once",
                )


class _Part:
    """
    The messages of a source up to a number of dead letters, which are collected.
    """

    def __init__(self, source: Iterator[Any], letters: list[DeadLetter]) -> None:
        self._source = source
        self._letters = letters
        self.is_last = False

    def __iter__(self) -> Iterator[Any]:
        size = 0
        for message in self._source:
            if type(message) is not DeadLetter:
                yield message
                continue
            self._letters.append(message)
            size += _size(message)
            if len(self._letters) >= LETTERS or size >= CHUNK_BYTES:
                return
        self.is_last = True


def _size(letter: DeadLetter) -> int:
    return len(letter.data)
