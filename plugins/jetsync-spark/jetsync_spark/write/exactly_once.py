"""
Write each row exactly once, in chunks that are stored together with a ledger entry.

Invariants:

- A chunk expects the ledger sequence that this run read last. The server rejects it if another run
  has stored anything since.
- If an ack is lost, the ledger shows whether the chunk is stored.
- Rows are skipped only after their fingerprint matched the ledger.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import jetsync
from jetsync_spark.common.clients import context_of, stream_of
from jetsync_spark.common.dead_letters import DeadLetter
from jetsync_spark.common.errors import OptionError, explain
from jetsync_spark.common.retry import Retry
from jetsync_spark.write.changes import Conflict, compare, conflict_error, conflict_text
from jetsync_spark.write.invalid import find_faults, is_fault
from jetsync_spark.write.ledger import Fingerprint, Ledger, LedgerEntry
from jetsync_spark.write.plan import check_streams

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from jetsync_spark.common.task import Task
    from jetsync_spark.write.chunks import Chunks
    from jetsync_spark.write.invalid import InvalidRows
    from jetsync_spark.write.plan import Plan
    from jetsync_spark.write.written import Written

__all__ = ["ExactlyOnce", "ledger_key", "ledger_prefix", "ledger_subjects"]

_T = TypeVar("_T")


def ledger_key(plan: Plan, task: Task) -> tuple[str, int]:
    """
    Return the key of the ledger and the number of the micro-batch.

    Raises:
        OptionError: The write has no identity that another run of it would share.
    """
    label, number = plan.options.write_id, plan.options.batch_id
    if label is not None and number is not None:
        if task.batch not in {None, number}:
            raise OptionError(
                f"batchId is {number}, but Spark writes micro-batch {task.batch}",
                option="batchId",
                cure="leave it out, or give the number that Spark passes to foreachBatch",
            )
        return label, number
    if task.query is not None and task.batch is not None:
        # Batch writes from foreachBatch are covered too. Their job changes when Spark repeats them.
        return (f"{task.query}-{label}" if label else task.query), task.batch
    if label is None:
        raise OptionError(
            "mode exactlyonce cannot identify this write, because Spark does not tell its tasks a "
            "streaming query",
            option="writeId",
            cure="in a batch job set a writeId that stays the same when the job runs again; in "
            "foreachBatch over Spark Connect set a writeId, and batchId to the number of the "
            "micro-batch; threads of foreachBatch need pyspark.inheritable_thread_target",
        )
    return label, 0


def ledger_prefix(stream: jetsync.Stream, plan: Plan, key: str) -> str:
    """
    Return the prefix of a ledger's subjects, including its key.

    An existing ledger keeps its prefix, even if the stream now has a better one.

    Raises:
        JetSyncError: The stream's leader did not answer.
    """
    if len(plan.ledgers) == 1:
        return f"{plan.ledgers[0]}.{key}"
    return ledger_subjects(stream, plan, key)[0]


def ledger_subjects(stream: jetsync.Stream, plan: Plan, key: str) -> tuple[str, Mapping[str, int]]:
    """
    Return the prefix of a ledger's subjects, including its key, and its subjects.

    The stream's leader answers. There is at most one subject per partition that ever existed, and
    one of the driver.

    Raises: as :func:`ledger_prefix`.
    """
    for prefix in plan.ledgers:
        subjects = stream.info(subjects_filter=f"{prefix}.{key}.*").state.subjects
        if subjects:
            return f"{prefix}.{key}", subjects
    return f"{plan.ledgers[0]}.{key}", {}


class ExactlyOnce:
    """
    Writes one partition of one micro-batch. Not thread-safe.
    """

    def __init__(
        self,
        client: jetsync.Client,
        plan: Plan,
        task: Task,
        retry: Retry,
        *,
        invalid: InvalidRows | None = None,
    ) -> None:
        self._invalid = invalid
        self._client = client
        self._js = context_of(plan.settings, client)
        self._plan = plan
        self._options = plan.options
        self._task = task
        self._retry = retry
        self._key, self._batch = ledger_key(plan, task)
        self._by = f"{plan.job}-{task.task_attempt}"
        self._ledger: Ledger
        self._stream: jetsync.Stream
        self._last = 0
        """The last known sequence of the ledger."""

        self._rows = Fingerprint()
        """The fingerprint of the rows that were read."""

    def run(self, chunks: Chunks, written: Written) -> None:
        """
        Store the rows that are not stored yet.

        Raises:
            OvertakenError: Another run has written the partition.
            LayoutError: The rows differ from those that the ledger counts.
            LedgerRemovedError: The ledger was removed during the write.
            JetStreamSparkError: The server rejected the rows.
        """
        entry = self._find()
        self._ledger.check(entry, self._batch)
        if entry is not None and entry.batch == self._batch:
            more = self._skip(chunks, entry, written)
        else:
            more = True
        while more:
            # The last message of the batch is the ledger entry.
            chunk, more = chunks.take(self._options.chunk_size - 1)
            self._rows.add(chunk)
            if chunk:
                self._store(chunk, self._entry(done=not more), written)

    def _find(self) -> LedgerEntry | None:
        """Find the ledger, and return its last entry."""
        plan, name = self._plan, self._options.stream
        stream = self._retrying(lambda: stream_of(plan.settings, self._client, name))
        self._stream = stream

        def read(place: str) -> LedgerEntry | None:
            subject = f"{place}.{self._task.partition}"
            self._ledger = Ledger(stream, subject, rollup=plan.rollup)
            entry, self._last = self._read()
            return entry

        # A task of a running query needs only this request.
        first = f"{plan.ledgers[0]}.{self._key}"
        entry = read(first)
        if entry is None:
            place = self._retrying(lambda: ledger_prefix(stream, plan, self._key))
            if place != first:
                entry = read(place)
        return entry

    def _skip(self, chunks: Chunks, entry: LedgerEntry, written: Written) -> bool:
        """Skip stored rows. Return whether there are more."""
        more = True
        while more and self._rows.rows < entry.rows:
            left = entry.rows - self._rows.rows
            chunk, more = chunks.take(min(left, self._options.chunk_size))
            self._rows.add(chunk)
            written.skipped += len(chunk) - self._letters_in(chunk)
        self._ledger.check_replay(entry, self._rows, more=more)
        return more

    def _entry(self, *, done: bool) -> LedgerEntry:
        return LedgerEntry(
            key=self._key,
            batch=self._batch,
            partition=self._task.partition,
            rows=self._rows.rows,
            done=done,
            order=self._rows.order,
            total=self._rows.total,
            by=self._by,
        )

    def _store(self, chunk: list[Any], entry: LedgerEntry, written: Written) -> None:
        """
        Store a chunk with its entry of the ledger.
        """
        message = self._ledger.message(entry, self._last)
        while True:
            try:
                ack = self._js.publish_batch([*chunk, message], timeout=self._options.ack_timeout)
            except (jetsync.WrongLastSequenceError, jetsync.DuplicateMessageIdError) as error:
                # The cause is a lost ack, another run, or an expectation of a row.
                if not self._is_stored(entry):
                    if self._options.bucket is None:
                        raise self._refused(error, chunk, entry) from error
                    chunk = self._without_conflicts(chunk, error, entry)
                    continue
            except jetsync.PublishOutcomeUnknownError as error:
                if not self._retry.wait_after(error):
                    raise self._refused(error, chunk, entry) from error
                if not self._is_stored(entry):
                    # If the lost chunk arrives late, the server rejects it, as the ledger moved on.
                    continue
            except jetsync.JetSyncError as error:
                if self._retry.wait_after(error):
                    continue
                if self._invalid is not None and is_fault(error):
                    chunk = self._without_faults(chunk, error, entry)
                    continue
                raise self._refused(error, chunk, entry) from error
            else:
                check_streams(self._plan, (ack.stream,))
                self._last = ack.sequence
            self._retry.reset()
            rows = len(chunk) - self._letters_in(chunk)
            if rows:
                written.note(rows, self._last - len(chunk), self._last - 1)
            return

    def _without_faults(
        self, chunk: list[Any], error: jetsync.JetSyncError, entry: LedgerEntry
    ) -> list[Any]:
        """
        Return a chunk in which the messages are replaced for which it was refused.

        The ledger counts them as rows, because its fingerprint must not depend on plugins.
        """
        assert self._invalid is not None
        timeout = self._options.ack_timeout
        faults = self._retrying(lambda: find_faults(self._js, chunk, timeout))
        letters = [place for place in faults if type(chunk[place]) is DeadLetter]
        if not faults or letters:
            # The server refuses what the client accepts, or a plugin refuses dead letters.
            raise self._refused(faults[letters[0]] if letters else error, chunk, entry)
        kept: list[Any] = []
        first = entry.rows - len(chunk)
        for place, message in enumerate(chunk):
            if place in faults:
                row = self._invalid.row_of(first + place)
                kept += self._invalid.reject(row, message, faults[place])
            else:
                kept.append(message)
        return kept

    def _without_conflicts(
        self, chunk: list[Any], error: jetsync.JetSyncError, entry: LedgerEntry
    ) -> list[Any]:
        """
        Return a chunk without the changes whose keys have other revisions than they expect.

        The ledger counts them as rows, because a replay must not depend on the bucket.
        """
        kept: list[Any] = []
        first, partition = entry.rows - len(chunk), self._task.partition
        for place, message in enumerate(chunk):
            if type(message) is tuple or message.expect is None:
                kept.append(message)
                continue
            why, revision = self._compare(message)
            if why is Conflict.NONE:
                kept.append(message)
            elif self._invalid is None:
                raise conflict_error(
                    message, revision, partition, first + place, policies="skip"
                ) from error
            else:
                row = self._invalid.row_of(first + place)
                reason = ValueError(conflict_text(message, revision))
                kept += self._invalid.reject(row, message, reason)
        if len(kept) == len(chunk) and not self._retry.wait_after(
            # The leader was storing another change of a key.
            jetsync.TemporarilyUnavailableError()
        ):
            raise self._refused(error, chunk, entry) from error
        return kept

    def _compare(self, message: jetsync.OutboundMessage) -> tuple[Conflict, int]:
        timeout = self._options.ack_timeout
        return self._retrying(lambda: compare(self._stream, message, timeout))

    def _letters_in(self, chunk: list[Any]) -> int:
        if self._plan.dead_letters is None:
            return 0
        return sum(type(message) is DeadLetter for message in chunk)

    def _is_stored(self, mine: LedgerEntry) -> bool:
        """
        Return whether the ledger has this run's entry.

        Raises:
            OvertakenError: The ledger has an entry of another run.
            LedgerRemovedError: The ledger has no entry any more.
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

    def _refused(
        self, error: jetsync.JetSyncError, chunk: list[Any], entry: LedgerEntry
    ) -> Exception:
        end = entry.rows
        doing = (
            f"rows {end - len(chunk)} to {end - 1} of partition {self._task.partition} of "
            f"micro-batch {self._batch} were not stored"
        )
        if isinstance(error, jetsync.PublishOutcomeUnknownError):
            doing = doing.replace("were not stored", "may be stored, which the next run finds out")
        return explain(error, doing, stream=self._options.stream)

    def _read(self) -> tuple[LedgerEntry | None, int]:
        return self._retrying(lambda: self._ledger.read(self._options.ack_timeout))

    def _retrying(self, ask: Callable[[], _T]) -> _T:
        """Retry a request until the server answers."""
        # This has its own time limit: a server that answers may still reject chunks.
        stream = self._options.stream
        doing = f"writing partition {self._task.partition} to stream {stream} failed"
        return Retry(self._options.retry_timeout).call(ask, doing, stream)
