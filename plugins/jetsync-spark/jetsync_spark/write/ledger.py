"""
The ledger of a partition: what of a micro-batch is in the stream already.

A message on a subject of its own, in the same stream and in the same atomic batch as the rows that
it counts, guarded by the sequence that the subject had before. So rows and count are stored
together or not at all, and of two tasks that write the same partition at the same time one is
refused (err_code 10071). What the ledger says is read from the stream's leader.

The ledger holds a fingerprint of the rows, so that a replay with other rows, in other partitions or
in another order stops the query rather than to lose or repeat rows.
"""

from __future__ import annotations

import hashlib
import json
from array import array
from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

import attrs

import jetsync
from jetsync_spark.common.errors import JetStreamSparkError
from jetsync_spark.common.headers import LEDGER

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


def ledger_message(subject: str, data: bytes, expected: int) -> jetsync.OutboundMessage:
    """
    Return a message of a ledger, which readers know by its header.

    Args:
        subject: Of the ledger.
        data: The payload, JSON that begins with the version.
        expected: The sequence that the subject has to have.
    """
    expect = jetsync.Expect(last_subject_sequence=expected)
    return jetsync.OutboundMessage(subject, data, {LEDGER: "spark"}, expect=expect)


class OvertakenError(JetStreamSparkError):
    """
    Another task has written this partition, or a later micro-batch of it; nothing was stored.
    """


class LayoutError(JetStreamSparkError):
    """
    A replay brings other rows, or in other partitions, than those that the ledger counts.
    """


class LedgerRemovedError(JetStreamSparkError):
    """
    The ledger was removed while it was in use: nothing knows any more what is stored.
    """


@attrs.frozen(kw_only=True)
class LedgerEntry:
    """
    How far a partition of a micro-batch is written.
    """

    key: str
    """The query, or the name of the write."""

    batch: int
    partition: int
    rows: int
    """How many of its rows are stored, from the first one."""

    done: bool
    """Whether these are all."""

    order: str
    """Fingerprint of these rows in their order."""

    total: int
    """Fingerprint of these rows in any order."""

    by: str
    """The run of the task that wrote it."""

    def to_bytes(self) -> bytes:
        """
        Return the payload of a ledger message.
        """
        return json.dumps({"v": VERSION, **attrs.asdict(self)}, separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, data: bytes, subject: str) -> Self:
        """
        Read the payload of a ledger message.

        Raises:
            JetStreamSparkError: it is none, or of a newer version.
        """
        try:
            fields: dict[str, Any] = json.loads(data)
            version = fields.pop("v")
            if version == VERSION:
                return cls(**fields)
            what = f"the ledger has version {version}, not {VERSION}"
        except (ValueError, TypeError, KeyError, AttributeError):
            what = "the last message of the ledger is none that this package wrote"
        raise JetStreamSparkError(
            what, subject=subject, cure="set another ledgerSubject, or update jetsync-spark"
        )


class Fingerprint:
    """
    A fingerprint of rows, in their order and in any; not synchronised.
    """

    def __init__(self) -> None:
        self.rows = 0
        self.total = 0
        self._order = hashlib.blake2b(digest_size=12)
        self._seeds: dict[str, int] = {}

    @property
    def order(self) -> str:
        """The fingerprint of the rows in their order."""
        return self._order.hexdigest()

    def add(self, messages: Sequence[Any]) -> None:
        """
        Add messages, as they are published.
        """
        sums = array("I", map(self._sum, messages))
        self.rows += len(sums)
        self.total = (self.total + sum(sums)) & 0xFFFFFFFFFFFFFFFF
        self._order.update(sums.tobytes())

    def _sum(self, message: Any) -> int:
        if type(message) is tuple:
            subject, data = message[0], message[1]
            more = message[2:]
        else:
            subject, data = message.subject, message.data
            more = (message.headers, message.msg_id, message.ttl)
        try:
            seed = self._seeds[subject]
        except KeyError:
            if len(self._seeds) >= KNOWN:
                self._seeds.clear()
            seed = self._seeds[subject] = crc32(subject.encode() + b"\n")
        if isinstance(data, str):
            data = data.encode()
        found = crc32(data, seed)
        if any(each is not None for each in more):
            found = crc32(repr(more).encode(), found)
        return found


class Ledger:
    """
    The ledger messages of one partition of one query; reads, and says what goes on.
    """

    def __init__(self, stream: jetsync.Stream, subject: str, name: str) -> None:
        self._stream = stream
        self.subject = subject
        self._name = name

    def read(self, timeout: float) -> tuple[LedgerEntry | None, int]:
        """
        Return the last entry and its sequence; ``(None, 0)`` when there is none.

        Raises:
            JetSyncError: the stream's leader did not answer.
        """
        try:
            found = self._stream.get_last(self.subject, direct=False, timeout=timeout)
        except jetsync.MessageNotFoundError:
            return None, 0
        return LedgerEntry.from_bytes(bytes(found.data), self.subject), found.sequence

    def check(self, entry: LedgerEntry | None, batch: int) -> int:
        """
        Return how many rows of the micro-batch are stored already.

        Raises:
            OvertakenError: the ledger is at a later micro-batch.
            LayoutError: an earlier micro-batch was committed without all rows of this partition.
        """
        if entry is None:
            return 0
        if entry.batch > batch:
            raise OvertakenError(
                f"this task writes micro-batch {batch} of {entry.key}, and the ledger is at "
                f"{entry.batch}",
                stream=self._name,
                subject=self.subject,
                err_code=10071,
                cure="if this is a task that Spark gave up there is nothing to do; if an older "
                "checkpoint was restored, use the newest one, or another ledgerSubject, which "
                "writes the rows again",
            )
        if entry.batch == batch:
            return entry.rows
        if not entry.done:
            raise LayoutError(
                f"micro-batch {entry.batch} of {entry.key} was committed with {entry.rows} rows of "
                f"partition {entry.partition} that its replay wrote from other partitions",
                stream=self._name,
                subject=self.subject,
                cure="look for rows that are there twice, then use a new checkpoint or another "
                "ledgerSubject",
            )
        return 0

    def check_replay(self, entry: LedgerEntry, rows: Fingerprint, *, more: bool) -> None:
        """
        Refuse to go on after rows that are not those that the ledger counts.

        Args:
            entry: The entry of this micro-batch.
            rows: Of the rows that are skipped.
            more: Whether there are rows behind them.

        Raises:
            LayoutError: they differ.
        """
        if rows.rows < entry.rows:
            what = f"has {rows.rows} rows and the ledger counts {entry.rows}"
        elif entry.done and more:
            what = f"has more than the {entry.rows} rows that were written"
        elif not entry.done and not more:
            what = f"ends after the {entry.rows} rows of which more were to come"
        elif entry.done and rows.total != entry.total:
            what = f"has {rows.rows} rows, as before, but others"
        elif not entry.done and rows.order != entry.order:
            what = f"begins with other rows than the {entry.rows} that were written"
        else:
            return
        raise LayoutError(
            f"partition {entry.partition} of micro-batch {entry.batch} of {entry.key} {what}",
            stream=self._name,
            subject=self.subject,
            cure="rows have to come in the same order and partitions each time, which they do not "
            "after a shuffle; restart with the minPartitions, settings and code of the first run "
            "of this micro-batch, which is refused as well if a run between has stored rows in "
            "other partitions; several writes in one micro-batch need a writeId each",
        )

    def removed(self) -> LedgerRemovedError:
        """
        Return the error of a task whose ledger is gone.
        """
        return LedgerRemovedError(
            "the ledger was removed while this task wrote, by a purge, a limit of the stream or "
            "another program",
            stream=self._name,
            subject=self.subject,
            cure="what runs again, as Spark's next run of this task, is stored again: look for "
            "rows that are there twice, and keep purges and limits off the ledger",
        )

    def overtaken(self, entry: LedgerEntry | None) -> OvertakenError:
        """
        Return the error of a task that another one has overtaken.
        """
        where = "nothing" if entry is None else f"{entry.rows} rows of micro-batch {entry.batch}"
        return OvertakenError(
            f"another run of this task writes the same partition, and the ledger has {where}",
            stream=self._name,
            subject=self.subject,
            err_code=10071,
            cure="nothing is to be done: nothing of it was stored twice, and Spark goes on with "
            "the other run or tries again",
        )
