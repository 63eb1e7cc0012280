"""
The accounts of fast ingest (ADR-50): which messages are confirmed, lost or in flight.

Answers and pings are the business of :mod:`jetsync._proto.fastingest`. A message has a *number*,
counted from 1 over the whole publisher, and a *sequence*, counted from 1 within its batch.
"""

from __future__ import annotations

from typing import Final

import attrs

# How far behind the last ack a message can still be reported lost. Acks may overtake such reports
# while the leader changes.
LOSS_HORIZON: Final = 4096


@attrs.frozen(slots=True)
class Gap:
    """Messages that are not stored, or not known to be stored."""

    batch_id: str
    # Numbers of the first and the last message.
    first: int
    last: int
    # The reason, if the server gave one.
    error: Exception | None


class Ledger:
    """
    Counts the messages of one publisher: confirmed, lost or in flight, and each lost only once.
    """

    __slots__ = (
        "_before",
        "_lost_ahead",
        "_lost_covered",
        "_lost_seqs",
        "base",
        "batch_id",
        "covered",
        "gaps",
        "lost",
        "sent",
    )

    def __init__(self) -> None:
        self.batch_id: str = ""
        # Messages of earlier batches, and how many of them were confirmed.
        self.base: int = 0
        self._before = 0
        # The sequence of the last message sent, and the one up to which the server has confirmed.
        self.sent: int = 0
        self.covered: int = 0
        # Messages that are not stored, or not known to be stored.
        self.lost: int = 0
        # Losses since the owner emptied this list.
        self.gaps: list[Gap] = []
        # Sequences that are lost or refused, as far back as they may be reported again, and how
        # many of them are below and above the sequence that the server has confirmed.
        self._lost_seqs: set[int] = set()
        self._lost_covered = 0
        self._lost_ahead = 0

    def __repr__(self) -> str:
        return f"<Ledger sent={self.sent} covered={self.covered} lost={self.lost}>"

    @property
    def added(self) -> int:
        """The number of messages sent, in all batches."""
        return self.base + self.sent

    @property
    def acknowledged(self) -> int:
        """The number of messages that the server has confirmed, in all batches."""
        return self._before + self.covered - self._lost_covered

    @property
    def in_flight(self) -> int:
        """The number of messages that are neither confirmed nor lost."""
        return self.sent - self.covered - self._lost_ahead

    def cover(self, seq: int) -> None:
        """Confirm everything up to *seq* except what is known to be lost."""
        covered, lost = self.covered, self._lost_seqs
        if seq <= covered:
            return
        if lost:
            now_covered = sum(covered < each <= seq for each in lost)
            self._lost_covered += now_covered
            self._lost_ahead -= now_covered
            if len(lost) > LOSS_HORIZON and min(lost) <= seq - LOSS_HORIZON:
                self._lost_seqs = {each for each in lost if each > seq - LOSS_HORIZON}
        self.covered = seq

    def lose(self, first: int, last: int, error: Exception | None) -> None:
        """Record lost messages, and report those that were not known to be lost."""
        lost, covered = self._lost_seqs, self.covered
        run: list[int] = []
        for seq in range(max(first, covered - LOSS_HORIZON + 1, 1), min(last, self.sent) + 1):
            if seq in lost:
                self._report(run, error)
                continue
            lost.add(seq)
            run.append(seq)
            if seq <= covered:
                self._lost_covered += 1
            else:
                self._lost_ahead += 1
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
        self.sent = self.covered = self._lost_covered = self._lost_ahead = 0
        self._lost_seqs.clear()
