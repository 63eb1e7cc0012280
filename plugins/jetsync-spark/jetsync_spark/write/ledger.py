"""
The ledger of a partition, which counts the rows of a micro-batch that are already stored.

An entry is a message on its own subject. It is in the same stream and the same atomic batch as the
rows that it counts, and expects the subject's last sequence. Rows and count are therefore stored
together or not at all. If two tasks write the same partition at the same time, the server rejects
one of them (err_code 10071). The ledger is read from the stream's leader.

The ledger holds a fingerprint of the rows. If a replay has other rows, other partitions or another
order, the query stops instead of losing or duplicating rows.
"""

from __future__ import annotations

import hashlib
import json
from array import array
from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

import attrs

import jetsync
from jetsync_spark.common.dead_letters import DeadLetter, origin_of
from jetsync_spark.common.errors import JetStreamSparkError
from jetsync_spark.common.headers import LEDGER, ROLLUP

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Self

__all__ = [
    "Fingerprint",
    "LayoutError",
    "Ledger",
    "LedgerEntry",
    "LedgerRemovedError",
    "OvertakenError",
    "ledger_message",
]

VERSION: Final = 1

KNOWN: Final = 65536


def ledger_message(
    subject: str, data: bytes, expected: int, *, rollup: bool
) -> jetsync.OutboundMessage:
    """
    Return a ledger message, which readers recognise by its header.

    Args:
        subject: The subject of the ledger.
        data: The payload: JSON that starts with the version.
        expected: The expected last sequence of the subject.
        rollup: Whether the message replaces the earlier ones on its subject, which the stream has
            to allow. Only the last one is needed.
    """
    headers = {LEDGER: "spark"}
    if rollup:
        headers[ROLLUP] = "sub"
    expect = jetsync.Expect(last_subject_sequence=expected)
    return jetsync.OutboundMessage(subject, data, headers, expect=expect)


class OvertakenError(JetStreamSparkError):
    """
    Another task has written this partition or a later micro-batch. Nothing was stored.
    """


class LayoutError(JetStreamSparkError):
    """
    A replay has other rows or other partitions than the ledger.
    """


class LedgerRemovedError(JetStreamSparkError):
    """
    The ledger was removed during a write, so it is not known which rows are stored.
    """


@attrs.frozen(kw_only=True)
class LedgerEntry:
    """
    How many rows of a partition are stored.
    """

    key: str
    """The ID of the query, or the name of the write."""

    batch: int
    partition: int
    rows: int
    """The number of stored rows, counted from the first."""

    done: bool
    """Whether all rows are stored."""

    order: str
    """Fingerprint of the rows in their order."""

    total: int
    """Fingerprint of the rows in any order."""

    by: str
    """The run of the task that wrote the entry."""

    def to_bytes(self) -> bytes:
        """
        Return the payload of a ledger message.
        """
        return json.dumps({"v": VERSION, **attrs.asdict(self)}, separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, data: bytes, subject: str) -> Self:
        """
        Parse the payload of a ledger message.

        Raises:
            JetStreamSparkError: The payload is malformed, or of a newer version.
        """
        try:
            fields: dict[str, Any] = json.loads(data)
            version = fields.pop("v")
            if version == VERSION:
                return cls(**fields)
            what = f"the ledger has version {version}, not {VERSION}"
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            what = "the last message of the ledger was not written by jetsync-spark"
        raise JetStreamSparkError(
            what, subject=subject, cure="set another writeId, or update jetsync-spark"
        )


class _Seeds(dict[str, int]):
    """
    The checksums of subjects, with which those of their messages begin.
    """

    def __missing__(self, subject: str) -> int:
        if len(self) >= KNOWN:
            self.clear()
        seed = self[subject] = crc32(subject.encode() + b"\n")
        return seed


class Fingerprint:
    """
    A fingerprint of rows, both in their order and in any order. Not thread-safe.
    """

    def __init__(self) -> None:
        self.rows = 0
        self.total = 0
        self._order = hashlib.blake2b(digest_size=12)
        self._seeds = _Seeds()

    @property
    def order(self) -> str:
        """The fingerprint of the rows in their order."""
        return self._order.hexdigest()

    def add(self, messages: Sequence[Any]) -> None:
        """
        Add messages, as they are published.
        """
        seeds = self._seeds
        try:
            # Most chunks have only pairs of a subject and bytes. A call per row takes four times
            # as long.
            sums = array("I", [crc32(data, seeds[subject]) for subject, data in messages])
        except (TypeError, ValueError):
            sums = array("I", map(self._sum, messages))
        self.rows += len(sums)
        self.total = (self.total + sum(sums)) & 0xFFFFFFFFFFFFFFFF
        self._order.update(sums.tobytes())

    def _sum(self, message: Any) -> int:
        if type(message) is tuple:
            subject, data = message[0], message[1]
            more = message[2:]
        elif type(message) is DeadLetter:
            subject, data, more = message.subject, message.data, origin_of(message)
        else:
            subject, data = message.subject, message.data
            more = (message.headers, message.msg_id, message.ttl)
        if isinstance(data, str):
            data = data.encode()
        found = crc32(data, self._seeds[subject])
        if any(each is not None for each in more):
            found = crc32(repr(more).encode(), found)
        return found


class Ledger:
    """
    The ledger messages of one partition of one query.
    """

    def __init__(self, stream: jetsync.Stream, subject: str, *, rollup: bool) -> None:
        self._stream = stream
        self.subject = subject
        self._name = stream.name
        self._rollup = rollup

    def read(self, timeout: float) -> tuple[LedgerEntry | None, int]:
        """
        Return the last entry and its sequence, or ``(None, 0)``.

        Raises:
            JetSyncError: The stream's leader did not answer.
        """
        try:
            found = self._stream.get_last(self.subject, direct=False, timeout=timeout)
        except jetsync.MessageNotFoundError:
            return None, 0
        return LedgerEntry.from_bytes(bytes(found.data), self.subject), found.sequence

    def message(self, entry: LedgerEntry, expected: int) -> jetsync.OutboundMessage:
        """
        Return the message of an entry, which expects the last sequence of the ledger.
        """
        return ledger_message(self.subject, entry.to_bytes(), expected, rollup=self._rollup)

    def check(self, entry: LedgerEntry | None, batch: int) -> int:
        """
        Return the number of rows of the micro-batch that are already stored.

        Raises:
            OvertakenError: The ledger is at a later micro-batch.
            LayoutError: An earlier micro-batch was committed without all rows of this partition.
        """
        if entry is None:
            return 0
        if entry.batch > batch:
            raise OvertakenError(
                f"this task writes micro-batch {batch} of {entry.key}, but the ledger is at "
                f"{entry.batch}",
                stream=self._name,
                subject=self.subject,
                err_code=10071,
                cure="if Spark has abandoned this task, there is nothing to do; if an older "
                "checkpoint was restored, use the newest one, or another writeId, which writes "
                "the rows again",
            )
        if entry.batch == batch:
            return entry.rows
        if not entry.done:
            raise LayoutError(
                f"micro-batch {entry.batch} of {entry.key} was committed with {entry.rows} rows of "
                f"partition {entry.partition} that its replay wrote from other partitions",
                stream=self._name,
                subject=self.subject,
                cure="check for duplicate rows, then use a new checkpoint or another writeId",
            )
        return 0

    def check_replay(self, entry: LedgerEntry, rows: Fingerprint, *, more: bool) -> None:
        """
        Check that the skipped rows are those that the ledger counts.

        Args:
            entry: The entry of this micro-batch.
            rows: The fingerprint of the skipped rows.
            more: Whether there are rows after them.

        Raises:
            LayoutError: The rows differ.
        """
        if rows.rows < entry.rows:
            what = f"has {rows.rows} rows, but the ledger counts {entry.rows}"
        elif entry.done and more:
            what = f"has more than the {entry.rows} rows that were written"
        elif not entry.done and not more:
            what = f"ends after {entry.rows} rows, although the first run had more"
        elif entry.done and rows.total != entry.total:
            what = f"has {rows.rows} rows like the first run, but different ones"
        elif not entry.done and rows.order != entry.order:
            what = f"begins with other rows than the {entry.rows} that were written"
        else:
            return
        raise LayoutError(
            f"partition {entry.partition} of micro-batch {entry.batch} of {entry.key} {what}",
            stream=self._name,
            subject=self.subject,
            cure="each run needs the same rows in the same order and partitions, which a shuffle "
            "changes; restart with the minPartitions, settings and code of the first run "
            "of this micro-batch, which is refused as well if a run between has stored rows in "
            "other partitions; several writes in one micro-batch need a writeId each, and those "
            "in foreachBatch over Spark Connect also a batchId",
        )

    def removed(self) -> LedgerRemovedError:
        """
        Return the error of a task whose ledger was removed.
        """
        return LedgerRemovedError(
            "the ledger was removed while this task wrote, by a purge, a limit of the stream or "
            "another program",
            stream=self._name,
            subject=self.subject,
            cure="the next run of this task stores its rows again: check for duplicate rows, and "
            "exclude the ledger from purges and limits",
        )

    def overtaken(self, entry: LedgerEntry | None) -> OvertakenError:
        """
        Return the error of a task whose partition another task has written.
        """
        where = "nothing" if entry is None else f"{entry.rows} rows of micro-batch {entry.batch}"
        return OvertakenError(
            f"another run of this task writes the same partition, and the ledger has {where}",
            stream=self._name,
            subject=self.subject,
            err_code=10071,
            cure="there is nothing to do: no row was stored twice, and Spark continues with the "
            "other run or retries",
        )
