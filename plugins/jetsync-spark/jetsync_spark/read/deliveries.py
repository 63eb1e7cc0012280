"""
Messages that a consumer has delivered to a query, and the batches that are made of them.

This module does no I/O. A batch is a set of stream sequences. It is stored as *runs*: a run has the
first sequence, the last sequence and the number of messages. A part of a batch reads all messages
of its runs that match the consumer's filters, so the messages between two messages of a run must
belong to the same batch. That is so in two cases:

- The sequences are adjacent.
- The server delivered both messages for the first time, one directly after the other. A consumer
  passes each sequence once and in order, so it has skipped only messages that match no filter, and
  messages that were removed.

If one query reads a consumer alone, a batch is therefore one run for each part, whatever the other
subjects of the stream are. If several clients share a consumer, the runs are short, and the number
of runs limits the batch.
"""

from __future__ import annotations

import bisect
import itertools
from array import array
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

import attrs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

__all__ = ["Delivered", "Deliveries", "Run", "Runs", "runs_of"]

MOST_RUNS: Final = 1000
"""Maximum runs of a batch, about 20 kB in the checkpoint."""

EARLIER: Final = 256
"""
Batches before the last one whose messages are recognised if they are redelivered. Spark plans at
most four batches per second, and messages are redelivered after one minute by default.
"""


class Delivered(NamedTuple):
    """
    A message that the server has delivered, without its payload.
    """

    sequence: int
    """The sequence in the stream."""

    position: int
    """The sequence among the deliveries of the consumer."""

    is_first: bool
    """Whether the server had not delivered the message before."""


@attrs.frozen
class Run:
    """
    Messages of a batch with no other message of the consumer between them.
    """

    first: int
    """The first sequence."""

    last: int
    """The last sequence, inclusive."""

    count: int
    """The number of messages."""

    @property
    def is_dense(self) -> bool:
        """
        Whether each sequence of the run is a message of it.
        """
        return self.last - self.first + 1 == self.count


@attrs.frozen
class Runs:
    """
    A set of sequences as runs in ascending order.
    """

    runs: tuple[Run, ...] = ()

    def __contains__(self, sequence: int) -> bool:
        return self.include(sequence, sequence)

    def __len__(self) -> int:
        return sum(run.count for run in self.runs)

    @property
    def bounds(self) -> tuple[int, int]:
        """
        The first and the last sequence.
        """
        return self.runs[0].first, self.runs[-1].last

    def include(self, first: int, last: int) -> bool:
        """
        Return whether one run has all messages between two sequences, inclusive.
        """
        place = bisect.bisect_right(self.runs, first, key=lambda run: run.first) - 1
        return place >= 0 and last <= self.runs[place].last

    def apart(self, distance: int) -> Iterator[Runs]:
        """
        Yield sets of runs between which there are at most *distance* sequences.
        """
        near: list[Run] = []
        for run in self.runs:
            if near and run.first - near[-1].last > distance:
                yield Runs(tuple(near))
                near = []
            near.append(run)
        if near:
            yield Runs(tuple(near))


def runs_of(delivered: Sequence[Delivered], *, skips_others: bool = True) -> list[Run]:
    """
    Return the runs of some messages, which are in ascending order of their sequences.

    Args:
        delivered: The messages.
        skips_others: Whether the consumer has skipped only messages that match no filter.
    """
    found: list[Run] = []
    for before, each in itertools.pairwise([None, *delivered]):
        assert each is not None
        is_next = before is not None and (
            each.sequence == before.sequence + 1
            or (
                skips_others
                and each.is_first
                and before.is_first
                and each.position == before.position + 1
            )
        )
        if is_next:
            run = found[-1]
            found[-1] = Run(run.first, each.sequence, run.count + 1)
        else:
            found.append(Run(each.sequence, each.sequence, 1))
    return found


class Deliveries:
    """
    The messages that a consumer has delivered and that are not yet acknowledged.

    A message is *held* until it is in a batch. The next batch is made after the last one was
    committed, so there is at most one batch that is not yet committed.

    Not thread-safe.
    """

    def __init__(self) -> None:
        self._held: dict[int, Delivered] = {}
        self._batch = array("Q")
        self._committed = Runs()
        self._earlier: deque[Runs] = deque(maxlen=EARLIER)
        """The batches that were committed before."""

        self._again: list[int] = []

    def __len__(self) -> int:
        """Return the number of held messages."""
        return len(self._held)

    @property
    def batch(self) -> array[int]:
        """
        The sequences of the batch.
        """
        return self._batch

    @property
    def unacknowledged(self) -> array[int]:
        """
        The sequences of the batch and the held messages.
        """
        return self._batch + array("Q", self._held)

    def add(self, delivered: Iterable[Delivered]) -> None:
        """
        Hold messages that the server has delivered. A redelivered message is held once.

        Messages of committed batches are not held, because they have to be acknowledged again.
        """
        for each in delivered:
            if self._is_committed(each):
                self._again.append(each.sequence)
            else:
                self._held.setdefault(each.sequence, each)

    def take_again(self) -> list[int]:
        """
        Return the sequences of committed messages that were delivered again since the last call.
        """
        again, self._again = self._again, []
        return again

    def plan(
        self, most: int, parts_for: Callable[[int], int], *, skips_others: bool = True
    ) -> tuple[Runs, ...]:
        """
        Make a batch of held messages, and return its parts.

        Args:
            most: The maximum number of messages.
            parts_for: Returns the number of parts for a number of messages.
            skips_others: As for :func:`runs_of`.
        """
        chosen = sorted(self._held.values())[:most]
        runs = runs_of(chosen, skips_others=skips_others)
        if len(runs) > MOST_RUNS:
            del chosen[sum(run.count for run in runs[:MOST_RUNS]) :]
        for each in chosen:
            del self._held[each.sequence]
        self._batch = array("Q", [each.sequence for each in chosen])
        count, parts = len(chosen), parts_for(len(chosen))
        bounds = [count * part // parts for part in range(parts + 1)] if count else []
        return tuple(
            Runs(tuple(runs_of(chosen[low:high], skips_others=skips_others)))
            for low, high in itertools.pairwise(bounds)
        )

    def adopt(self, sequences: Iterable[int]) -> None:
        """
        Note the messages of a batch that another process has planned.
        """
        self._batch = array("Q", sequences)
        for sequence in self._batch:
            self._held.pop(sequence, None)

    def commit(self, runs: Runs) -> None:
        """
        Note that the batch is committed and acknowledged.

        Args:
            runs: The messages of the batch. Empty to forget earlier batches too.
        """
        self._batch = array("Q")
        if runs.runs:
            self._earlier.append(self._committed)
        else:
            self._earlier.clear()
        self._committed = runs
        for sequence in [each for each in self._held if each in runs]:
            self._again.append(sequence)
            del self._held[sequence]

    def clear(self) -> None:
        """
        Forget all messages, because the consumer was created again.
        """
        self._held.clear()
        self._again.clear()
        self._earlier.clear()
        self._batch = array("Q")

    def _is_committed(self, message: Delivered) -> bool:
        # The server may lose an acknowledgement of an earlier batch if a server of the cluster
        # fails. It then redelivers the message.
        return message.sequence in self._committed or (
            not message.is_first and any(message.sequence in runs for runs in self._earlier)
        )
