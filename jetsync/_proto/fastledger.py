"""
What became of the messages of fast ingest (ADR-50): how many are confirmed, lost or in flight.

What lives here: counts, and which messages are known to be lost. What may not: what servers say and
when they are asked, which is :mod:`jetsync._proto.fastingest`'s.

A message is known by its *number*, counted from 1 over the whole publisher, and by its *sequence*,
counted from 1 within its batch.
"""

from __future__ import annotations

from typing import Final

import attrs

KEPT_GONE: Final = 4096
"""
How far behind the last ack a message can still be told lost: such news may be overtaken by acks
while the leader changes.
"""


@attrs.frozen(slots=True)
class Gap:
    """
    Messages that are not stored, or of which it is not known.
    """

    batch_id: str
    first: int
    last: int
    """Numbers of the first and the last one."""

    error: Exception | None
    """Why, where the server said."""


class Ledger:
    """
    Count the messages of one publisher: each is confirmed, lost or in flight, and lost only once.
    """

    __slots__ = (
        "_before",
        "_gone",
        "_gone_ahead",
        "_gone_covered",
        "base",
        "batch_id",
        "covered",
        "gaps",
        "lost",
        "sent",
    )

    def __init__(self) -> None:
        self.batch_id = ""
        self.base = 0
        """How many messages the batches before had."""

        self.sent = 0
        """The sequence of the last message that was sent."""

        self.covered = 0
        """The sequence up to which the server has confirmed everything."""

        self.lost = 0
        """How many messages are not stored, or not known to be."""

        self.gaps: list[Gap] = []
        """What got lost since its owner emptied this."""

        self._before = 0
        """How many messages of the batches before were confirmed."""

        self._gone: set[int] = set()
        """Sequences that are lost or refused, as far as they may be told so again."""

        self._gone_covered = 0
        self._gone_ahead = 0
        """How many of them the server's confirmation comprises, and how many it does not yet."""

    def __repr__(self) -> str:
        return f"<Ledger sent={self.sent} covered={self.covered} lost={self.lost}>"

    @property
    def added(self) -> int:
        """How many messages were sent, in all batches."""
        return self.base + self.sent

    @property
    def acknowledged(self) -> int:
        """How many messages the server has confirmed, in all batches."""
        return self._before + self.covered - self._gone_covered

    @property
    def flying(self) -> int:
        """How many messages nothing is known of yet."""
        return self.sent - self.covered - self._gone_ahead

    def cover(self, seq: int) -> None:
        """Take everything up to *seq* for confirmed, except what is known to be lost."""
        covered, gone = self.covered, self._gone
        if seq <= covered:
            return
        if gone:
            now_covered = sum(covered < each <= seq for each in gone)
            self._gone_covered += now_covered
            self._gone_ahead -= now_covered
            if len(gone) > KEPT_GONE and min(gone) <= seq - KEPT_GONE:
                self._gone = {each for each in gone if each > seq - KEPT_GONE}
        self.covered = seq

    def lose(self, first: int, last: int, error: Exception | None) -> None:
        """Enter lost messages, and report those that were not known to be."""
        gone, covered = self._gone, self.covered
        run: list[int] = []
        for seq in range(max(first, covered - KEPT_GONE + 1, 1), min(last, self.sent) + 1):
            if seq in gone:
                self._report(run, error)
                continue
            gone.add(seq)
            run.append(seq)
            if seq <= covered:
                self._gone_covered += 1
            else:
                self._gone_ahead += 1
        self._report(run, error)

    def _report(self, run: list[int], error: Exception | None) -> None:
        if run:
            self.lost += len(run)
            first, last = self.base + run[0], self.base + run[-1]
            self.gaps.append(Gap(self.batch_id, first, last, error))
            run.clear()

    def close_batch(self, error: Exception | None) -> None:
        """Give up what is in flight, and count the next batch from 1."""
        self.lose(self.covered + 1, self.sent, error)
        self._before = self.acknowledged
        self.base += self.sent
        self.sent = self.covered = self._gone_covered = self._gone_ahead = 0
        self._gone.clear()
