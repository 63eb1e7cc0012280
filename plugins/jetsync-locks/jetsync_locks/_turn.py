"""
Waiting for the turn of a ticket.

A ticket has its turn when fewer than `limit` tickets with lower numbers are left. It reads the
queue, and then watches the tickets just before it, so a release wakes `limit` waiters at most.

Servers up to 2.14.5 leave a key out of an answer if it changes in the moment between two steps of
the read: its old revision is gone, and its new one is too late. So before it holds, a ticket reads
the queue twice. Both answers can only lack a ticket that was renewed in both moments. This is
impossible if both reads together take less than the time that programs leave between two renewals.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Final

import jetsync
from jetsync_locks._clock import now
from jetsync_locks._lost import SLICE
from jetsync_locks._record import rival_of
from jetsync_locks._ticket import SPACING, TRANSIENT, pauses

if TYPE_CHECKING:
    from jetsync import Entry, KeyValue
    from jetsync.kv.watch import Watch
    from jetsync_locks._record import Rival
    from jetsync_locks._ticket import Ticket

READING: Final = 5.0
"""Maximum seconds for one read."""

LATE: Final = 1.0
"""Seconds after the end of another ticket's lease, at which its marker is overdue."""


class Turn:
    """
    The wait of one ticket for its turn. One thread uses it.
    """

    def __init__(self, bucket: KeyValue, pattern: str, ticket: Ticket, limit: int) -> None:
        self._bucket = bucket
        self._pattern = pattern
        self._ticket = ticket
        self._limit = limit
        self.waited = False
        """Whether other tickets came before this one."""
        self.reason = "the server did not answer"
        """What the wait is for."""

    def wait(self, until: float) -> bool:
        """
        Wait for the turn, and return whether it has come.

        It has not if the ticket was lost, or if *until* has passed on the clock of leases.

        Raises:
            jetsync.JetSyncError: The bucket cannot be read.
        """
        pause = pauses(0.005)
        while self._ticket.is_valid:
            try:
                begin = now()
                lower = self._lower(until)
                if lower is not None and len(lower) < self._limit:
                    lower = self._lower(until)
                    if lower is not None and len(lower) < self._limit:
                        if now() - begin < SPACING:
                            return True
                        lower, self.reason = None, f"two reads took longer than {SPACING} s"
                if lower is not None:
                    self.reason = f"held by others ({len(lower)} before this one)"
                    self.waited = True
                    if now() >= until:
                        return False
                    if self._watch(lower, until):
                        return True
                    # Another ticket has gone, and the rest has to be read again.
                    pause = pauses(0.005)
            except TRANSIENT as error:
                self.reason = str(error)
                lower = None
            except jetsync.HandleClosedError as error:
                self.reason = str(error)
                lower = None
            if now() >= until:
                return False
            if lower is None:
                time.sleep(min(next(pause), max(until - now(), 0.0)))
        return False

    def _lower(self, until: float) -> list[Rival] | None:
        """
        Read the tickets with lower numbers, in order; None if a replica does not know ours yet.

        A replica that has our ticket also has every earlier one that has not ended, because it
        stores the changes of a stream in order.
        """
        ticket = self._ticket
        timeout = min(READING, until - now()) if until > now() else READING
        entries = self._bucket.get_many(self._pattern, timeout=timeout)
        mine = entries.pop(ticket.key, None)
        if mine is None or rival_of(mine).nonce != ticket.nonce:
            self.reason = "a replica is behind"
            return None
        return sorted(
            rival for rival in map(rival_of, entries.values()) if rival.number < ticket.number
        )

    def _watch(self, lower: list[Rival], until: float) -> bool:
        """
        Watch the tickets just before ours until one ends.

        Returns whether this makes it our turn. If not, the queue has to be read again.
        """
        before = {rival.key: rival for rival in lower[-self._limit :]}
        timeout = min(READING, max(until - now(), 0.1))
        watch = self._bucket.watch(*before, timeout=timeout)
        is_turn = False
        try:
            is_turn = self._follow(watch, before, until)
        finally:
            if is_turn:
                self._ticket.keep_watch(watch)
            else:
                with contextlib.suppress(jetsync.JetSyncError):
                    watch.close()
        return is_turn

    def _follow(self, watch: Watch, before: dict[str, Rival], until: float) -> bool:
        """
        Take the entries of the watched tickets until one has ended.

        Args:
            watch: The watch.
            before: The watched tickets by key.
            until: When to give up.
        """
        # Whether the watched ticket holds, so that ours is the next.
        is_next = False
        expected = {}
        for entry in watch.initial(timeout=READING):
            rival = before[entry.key]
            if _has_ended(entry, rival):
                return is_next
            expected[entry.key] = now() + rival.lease + LATE
            is_next = is_next or self._is_next(entry)
        if expected.keys() != before.keys():
            # It has ended, and its marker has expired. Or the answer is old.
            return False
        while self._ticket.is_valid:
            at = now()
            if at >= until or at >= min(expected.values()):
                return False
            wait = min(until, *expected.values()) - at
            changed = watch.next(timeout=min(wait, SLICE))
            if changed is None:
                continue
            if _has_ended(changed, before[changed.key]):
                return is_next
            expected[changed.key] = now() + before[changed.key].lease + LATE
            is_next = is_next or self._is_next(changed)
        return False

    def _is_next(self, entry: Entry) -> bool:
        """
        Return whether all tickets before the one of an entry have ended, because it holds.
        """
        return self._limit == 1 and not entry.is_deleted and rival_of(entry).holds


def _has_ended(entry: Entry, rival: Rival) -> bool:
    """
    Return whether an entry proves that a ticket has ended.

    A watch may begin with entries that are older than what was read before.
    """
    if entry.revision <= rival.revision:
        return False
    return entry.is_deleted or rival_of(entry).nonce != rival.nonce
