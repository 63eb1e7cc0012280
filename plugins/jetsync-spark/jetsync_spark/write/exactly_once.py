"""
Writing each row once: chunks that are stored together with a ledger, or not at all.

Invariants
- A chunk is sent with the sequence that the ledger had when this run read it last. So no other run
  has stored anything between, whatever becomes of an answer.
- An answer that is lost is never guessed: the ledger says whether the chunk is there.
- Rows are skipped only after they were found to be those that the ledger counts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import jetsync
from jetsync_spark.common.errors import OptionError, explain
from jetsync_spark.common.retry import Patience
from jetsync_spark.write.ledger import Fingerprint, Ledger, LedgerEntry, ledger_message
from jetsync_spark.write.plan import check_streams

if TYPE_CHECKING:
    from collections.abc import Callable

    from jetsync_spark.common.task import Task
    from jetsync_spark.write.chunks import Chunks
    from jetsync_spark.write.plan import Plan
    from jetsync_spark.write.written import Written

__all__ = ["ExactlyOnce", "ledger_key", "ledger_place"]

_T = TypeVar("_T")


def ledger_key(plan: Plan, task: Task) -> tuple[str, int]:
    """
    Return what a ledger is kept under, and the number of the micro-batch.

    Raises:
        OptionError: there is nothing that another run of the same write would know it by.
    """
    label = plan.options.write_id
    if task.query is not None and task.batch is not None:
        # Also for batch writes from foreachBatch, whose jobs are others when Spark repeats them.
        return (f"{task.query}-{label}" if label else task.query), task.batch
    if label is None:
        raise OptionError(
            "mode exactlyonce does not know what this write is, as it runs in no streaming query",
            option="writeId",
            cure="give a writeId that is the same whenever the job is run again, or write from "
            "foreachBatch, in whose threads only pyspark.inheritable_thread_target knows the query",
        )
    return label, 0


def ledger_place(stream: jetsync.Stream, plan: Plan, key: str) -> str:
    """
    Return what the subjects of a ledger begin with, its key included.

    A ledger that is there stays where it is, also when the stream has got a better place since.

    Raises:
        JetSyncError: the stream's leader did not answer.
    """
    if len(plan.ledgers) > 1:
        for prefix in plan.ledgers:
            if stream.info(subjects_filter=f"{prefix}.{key}.*").state.subjects:
                return f"{prefix}.{key}"
    return f"{plan.ledgers[0]}.{key}"


class ExactlyOnce:
    """
    The writing of one partition of one micro-batch; not synchronised.
    """

    def __init__(self, js: jetsync.JetStream, plan: Plan, task: Task, patience: Patience) -> None:
        self._js = js
        self._plan = plan
        self._options = plan.options
        self._task = task
        self._patience = patience
        self._key, self._batch = ledger_key(plan, task)
        self._by = f"{plan.job}-{task.task_attempt}"
        self._ledger: Ledger
        self._last = 0
        """The sequence of the ledger's last message, as far as this run knows."""

        self._rows = Fingerprint()
        """Of the rows that are stored."""

    def run(self, chunks: Chunks, written: Written) -> None:
        """
        Store the rows that are not stored.

        Raises:
            OvertakenError: another run has written since.
            LayoutError: the rows are not those that were written before.
            LedgerRemovedError: somebody has removed the ledger meanwhile.
            JetStreamSparkError: the server refused them.
        """
        name = self._options.stream
        stream = self._bearing(lambda: self._js.stream(name))
        place = self._bearing(lambda: ledger_place(stream, self._plan, self._key))
        self._ledger = Ledger(stream, f"{place}.{self._task.partition}", name)
        entry, self._last = self._read()
        before = self._ledger.check(entry, self._batch)
        if entry is not None and entry.batch == self._batch:
            more = self._skip(chunks, entry)
            written.skipped = before
        else:
            more = True
        while more:
            # One less than a batch takes: the last message of it is the ledger's.
            chunk, more = chunks.take(self._options.chunk_size - 1)
            if chunk:
                first = self._store(chunk, done=not more)
                written.note(len(chunk), first, first + len(chunk) - 1)

    def _skip(self, chunks: Chunks, entry: LedgerEntry) -> bool:
        """Pass over rows that are stored; return whether there are more."""
        more = True
        while more and self._rows.rows < entry.rows:
            left = entry.rows - self._rows.rows
            chunk, more = chunks.take(min(left, self._options.chunk_size))
            self._rows.add(chunk)
        self._ledger.check_replay(entry, self._rows, more=more)
        return more

    def _store(self, chunk: list[Any], *, done: bool) -> int:
        """Store a chunk; return the sequence of its first message."""
        self._rows.add(chunk)
        entry = LedgerEntry(
            key=self._key,
            batch=self._batch,
            partition=self._task.partition,
            rows=self._rows.rows,
            done=done,
            order=self._rows.order,
            total=self._rows.total,
            by=self._by,
        )
        message = ledger_message(self._ledger.subject, entry.to_bytes(), self._last)
        while True:
            try:
                ack = self._js.publish_batch([*chunk, message], timeout=self._options.ack_timeout)
            except (jetsync.WrongLastSequenceError, jetsync.DuplicateMessageIdError) as error:
                # Of an attempt whose answer was lost, of another run, or of a row's own condition.
                if not self._is_stored(entry):
                    raise self._refused(error, chunk) from error
            except jetsync.PublishOutcomeUnknownError as error:
                if not self._patience.bear(error):
                    raise self._refused(error, chunk) from error
                if not self._is_stored(entry):
                    # Should that one come late, it is refused: the next one moves the ledger on.
                    continue
            except jetsync.JetSyncError as error:
                if self._patience.bear(error):
                    continue
                raise self._refused(error, chunk) from error
            else:
                check_streams(self._plan, (ack.stream,))
                self._last = ack.sequence
            self._patience.went_well()
            return self._last - len(chunk)

    def _is_stored(self, mine: LedgerEntry) -> bool:
        """
        Return whether the ledger has this run's entry.

        Raises:
            OvertakenError: it has another one than the one before.
            LedgerRemovedError: it has none any more.
        """
        entry, sequence = self._read()
        if entry == mine:
            self._last = sequence
            return True
        if entry is None and self._last:
            raise self._ledger.removed()
        if sequence != self._last:
            raise self._ledger.overtaken(entry)
        return False

    def _refused(self, error: jetsync.JetSyncError, chunk: list[Any]) -> Exception:
        end = self._rows.rows
        doing = (
            f"rows {end - len(chunk)} to {end - 1} of partition {self._task.partition} of "
            f"micro-batch {self._batch} were not stored"
        )
        if isinstance(error, jetsync.PublishOutcomeUnknownError):
            doing = doing.replace("were not stored", "may be stored, which the next run finds out")
        return explain(error, doing, stream=self._options.stream)

    def _read(self) -> tuple[LedgerEntry | None, int]:
        return self._bearing(lambda: self._ledger.read(self._options.ack_timeout))

    def _bearing(self, ask: Callable[[], _T]) -> _T:
        """Ask a server until it answers."""
        # A server that answers this may still not take a chunk: its time goes on.
        patience = Patience(self._options.retry_timeout)
        while True:
            try:
                return ask()
            except jetsync.JetSyncError as error:
                if not patience.bear(error):
                    raise
