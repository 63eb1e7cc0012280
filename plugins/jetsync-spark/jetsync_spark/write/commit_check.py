"""
The check before a write is committed: no rows of it are in partitions that this run does not have.

An earlier run may have had more partitions and have stored rows in them. Only the driver knows the
number of partitions, and Spark tells it when all tasks have ended. The check costs a constant
number of requests, whatever the ledger has from earlier micro-batches:

- If the ledger has no more subjects than this run has partitions, the list of subjects is enough.
- Otherwise the last entries of the other subjects are read, up to 1,024 with a request. The process
  then remembers up to which sequence it has read. Later checks read only the entries after it.

Why this finds every entry:

- Spark begins a micro-batch after it has committed the one before. So all entries of a micro-batch
  are stored after the check of an earlier one. A check uses what it remembers only for a later
  micro-batch. If one is repeated, or an older checkpoint is restored, everything is read again.
- A replica that lags has the entries up to some sequence, because it applies them in order. Before
  the last entry of a replica counts as the end, the leader is asked for entries after it. A read of
  last entries is one of the state at the leader's last sequence, and a replica that has not reached
  this sequence is asked again.
- Without direct gets, or without permission for them, the leader is asked for each entry.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs

import jetsync
from jetsync_spark.common.clients import Settings, stream_of
from jetsync_spark.common.retry import retry_with_client
from jetsync_spark.common.task import Task
from jetsync_spark.write.exactly_once import ledger_key, ledger_subjects
from jetsync_spark.write.ledger import LayoutError, LedgerEntry

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from jetsync_spark.write.plan import Plan

__all__ = ["check_layout"]

EVERYTHING: Final = 1 << 40
"""More messages than a ledger has."""

KNOWN: Final = 256
"""Maximum ledgers that a process remembers. A driver writes few queries."""

_NO_DIRECT_GETS: Final = (jetsync.NotSupportedError, jetsync.PermissionDeniedError)

_logger = jetsync.get_logger("jetsync.spark.commits")


@attrs.frozen
class _Checked:
    """
    Up to where a ledger was checked.
    """

    prefix: str
    """The prefix of its subjects, including its key."""

    batch: int
    """The last micro-batch that was checked."""

    sequence: int
    """Entries up to this sequence belong to this micro-batch or to earlier ones."""


_checked: dict[tuple[Settings, str, str], _Checked] = {}
"""By connection, stream and key of the ledger. Spark commits in one thread of a process."""


def check_layout(plan: Plan, task: Task, partitions: int, *, has_rows: bool) -> None:
    """
    Raise if the ledger has rows of this write in partitions that do not exist in this run.

    Args:
        plan: The plan of the write.
        task: One of its tasks.
        partitions: The number of partitions of this run.
        has_rows: Whether any of them has rows.

    Raises:
        LayoutError: The ledger has such rows.
        JetStreamSparkError: The stream's leader did not answer.
    """
    key, batch = ledger_key(plan, task)
    name = plan.options.stream
    place = (plan.settings, name, key)

    def check(client: jetsync.Client) -> None:
        stream = stream_of(plan.settings, client, name)
        known, found = _checked.get(place), None
        if known is not None and known.batch < batch:
            found = _check_new(stream, known, batch, partitions)
            if found is None and not has_rows:
                return
        if found is None:
            # Also if the rows of this run have no entries where they are expected: the stream
            # or its ledger is another one.
            found = _check_all(stream, plan, key, batch, partitions)
        if len(_checked) >= KNOWN:
            _checked.clear()
        if found is None:
            _checked.pop(place, None)
        else:
            _checked[place] = found

    retry_with_client(
        plan.settings,
        plan.connection_name(Task(query=task.query)),
        check,
        plan.options.retry_timeout,
        "checking the ledger failed",
        name,
    )


def _check_new(
    stream: jetsync.Stream, known: _Checked, batch: int, partitions: int
) -> _Checked | None:
    """Check the entries since the last check. Return None if there are none, or too new ones."""
    last, ahead = None, False
    for message in _entries_after(stream, f"{known.prefix}.*", known.sequence):
        if _is_left(message.subject, partitions):
            ahead |= _check_entry(stream, message, batch, partitions)
        last = message.sequence
    return None if last is None or ahead else _Checked(known.prefix, batch, last)


def _check_all(
    stream: jetsync.Stream, plan: Plan, key: str, batch: int, partitions: int
) -> _Checked | None:
    """
    Check the last entry of each other partition.

    Return None if there is no such partition, or if one has an entry of a later micro-batch. Such
    entries exist if an older checkpoint was restored, and later checks have to read them again.
    """
    prefix, subjects = ledger_subjects(stream, plan, key)
    left = [subject for subject in subjects if _is_left(subject, partitions)]
    if not left:
        return None
    last, ahead = stream.cached_info.state.last_seq, False
    for message in _last_entries(stream, left, last):
        ahead |= _check_entry(stream, message, batch, partitions)
    return None if ahead else _Checked(prefix, batch, last)


def _is_left(subject: str, partitions: int) -> bool:
    """Return whether a subject of a ledger belongs to a partition that this run does not have."""
    number = subject.rpartition(".")[2]
    return number.isdecimal() and int(number) >= partitions


def _check_entry(
    stream: jetsync.Stream, message: jetsync.StoredMessage, batch: int, partitions: int
) -> bool:
    """Raise if an entry belongs to the micro-batch. Return whether it belongs to a later one."""
    entry = LedgerEntry.from_bytes(bytes(message.data), message.subject)
    if entry.batch == batch:
        raise _other_layout(entry, partitions, stream.name, message.subject)
    return entry.batch > batch


def _entries_after(
    stream: jetsync.Stream, subject: str, sequence: int
) -> Iterator[jetsync.StoredMessage]:
    """Yield the entries after a sequence."""
    position = sequence + 1
    try:
        for message in stream.get_batch(EVERYTHING, sequence=position, subject=subject):
            position = message.sequence + 1
            yield message
    except _NO_DIRECT_GETS as error:
        _logger.debug("asking_the_leader", stream=stream.name, reason=str(error))
    else:
        return
    while True:
        try:
            message = stream.get_next(subject, position, direct=False)
        except jetsync.MessageNotFoundError:
            return
        position = message.sequence + 1
        yield message


def _last_entries(
    stream: jetsync.Stream, subjects: Iterable[str], last: int
) -> Iterator[jetsync.StoredMessage]:
    """Yield the entries that were the last at a sequence of the stream, or that replaced these."""
    left = dict.fromkeys(subjects)
    try:
        for message in stream.get_last_for(list(left), up_to_sequence=last):
            yield message
            left.pop(message.subject, None)
        # Later entries have replaced the others. Those replaced before the read are not `missing`.
    except _NO_DIRECT_GETS as error:
        _logger.debug("asking_the_leader", stream=stream.name, reason=str(error))
    for subject in left:
        yield stream.get_last(subject, direct=False)


def _other_layout(entry: LedgerEntry, partitions: int, stream: str, subject: str) -> LayoutError:
    return LayoutError(
        f"micro-batch {entry.batch} of {entry.key} has {partitions} partitions, but an earlier run "
        f"had stored {entry.rows} rows as partition {entry.partition}: all rows are stored, and "
        "these may be stored twice",
        stream=stream,
        subject=subject,
        cure="check for duplicate rows; a run with the first number of partitions may be rejected "
        "too, and then only another writeId works, which writes these rows again; "
        "exactly_once rejects such a run before it stores a row",
    )
