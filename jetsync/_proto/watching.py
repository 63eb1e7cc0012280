"""
When the initial entries of a watch are complete, and when the server is asked whether they are.

The code here does no I/O and reads no clock.

Each entry tells how many follow it when its server sends it. So the initial entries usually end at
one that none follows. But if a key changes before its initial entry was sent, many buckets no
longer have that entry. The server then sends only the change, in its place among the changes of
other keys and new keys. If keys change faster than they are taken, some entry always follows.
Therefore the initial entries are also counted. If none follows before all of them have arrived, the
watch asks for the last revision in the bucket, because servers count changes late.
"""

from __future__ import annotations

import math
from typing import Final, Literal

# Seconds without an entry after which a watch asks the server whether its initial entries are
# complete. Each entry tells how many follow it. So the watch only has to ask if the following
# entries were removed in the meantime, or if the consumer was recreated.
QUIET: Final = 0.25

# The same after a nudge, at most once for each initial entry. A nudge gets the server past one
# removed entry, so with 0.25 seconds 30 of them took 7.4 s.
NUDGED: Final = 0.01

# The initial entries end once this many times their number have arrived, even if some of them have
# not.
MOST: Final = 4


class WatchEngine:
    """
    Count the entries of one watch until the initial ones are complete.

    Args:
        there: The number of initial entries, as the server counted them.
        before: The last revision in the bucket just before the consumer was created.
        complete: Whether the caller waits for all of them, also if changes arrive faster than they
            are taken.
    """

    def __init__(self, there: int, before: int, *, complete: bool = False) -> None:
        # 0 once it is no longer known.
        self._there = there
        self._before = before
        self._most = math.inf if complete else MOST
        # The last revision in the bucket when the server first said that it has sent everything,
        # although not all initial entries have arrived. The missing ones arrive up to it.
        self._goal: int | None = None
        # The entries that have arrived, and those of them that are certainly initial ones.
        self._taken = self._taken_initial = 0
        self._nudges = 0
        self._revision = 0
        #: Whether all initial entries have arrived.
        self.current: bool = not there
        #: Seconds without an entry after which the server is asked.
        self.quiet: float = QUIET

    def take(self, revision: int, following: int) -> bool:
        """
        Count an entry. Return whether the last revision is needed, see :meth:`learn_last`.

        Args:
            revision: The revision.
            following: How many entries follow, as the server counts them.
        """
        if self.current:
            return False
        self._revision = revision
        self._taken += 1
        # A later revision does not show whether its key existed at the start.
        self._taken_initial += revision <= self._before
        if self._there and (
            self._taken_initial >= self._there
            or self._taken >= self._most * self._there
            or (self._goal is not None and revision >= self._goal)
        ):
            self.current = True
            return False
        return not following and self._end()

    def recreate(self) -> None:
        """Count no more: another consumer may send more than one revision of a key."""
        self._there = 0

    def repeat(self) -> None:
        """Count no more, and expect the initial entries that were not handed out again."""
        self._there = 0
        self.current = False

    def look(
        self, pending: int, sent: tuple[int, int], arrived: tuple[int, int]
    ) -> Literal["nudge", "last"] | None:
        """
        Decide what to do after the server has described the consumer.

        - ``nudge``: have the server look for entries again. Servers stop sending the last entries
          of keys at one that was removed meanwhile (seen on 2.15.1). They continue when a change, a
          heartbeat or a pull arrives.
        - ``last``: the last revision is needed, see :meth:`learn_last`.

        Args:
            pending: How many entries the server has not sent yet.
            sent: The consumer sequence and the stream sequence up to which it has sent entries.
            arrived: The same for the entries that have arrived.
        """
        if pending:
            self._nudges += 1
            self.quiet = NUDGED if self._nudges < self._there else QUIET
            return "nudge"
        # After a purge, the consumer's position may be after messages that it never sent.
        if sent[0] > arrived[0] and sent[1] > arrived[1]:
            return None
        if self._goal is not None:
            self.current = True
            return None
        self.quiet = QUIET
        return "last" if self._end() else None

    def learn_last(self, revision: int | None) -> None:
        """Learn the last revision in the bucket; None if the server did not say."""
        self._goal = revision
        self.current = revision is None or self._revision >= revision

    def _end(self) -> bool:
        """
        End, as no entry follows. Return whether changes may be missing among the entries.

        If a key changes, servers count its old revision as removed before they count the new one
        as pending. So for a moment they say that nothing is pending (seen on 2.15.1).
        """
        if self._goal is None and self._there:
            return True
        self.current = self._goal is None or self._revision >= self._goal
        return False
