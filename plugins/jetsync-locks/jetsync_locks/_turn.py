"""
Waiting for the turn of a ticket.

A ticket has its turn when fewer than `limit` tickets with lower numbers are left. It asks the
leader which keys there are, and then watches the tickets just before it, so a release wakes `limit`
waiters at most.

The list of keys is one step on the server. A replica does not have to be asked whether a ticket is
left: one that was down may lack tickets that exist, and keep others that ended long ago.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Final

import jetsync
from jetsync_locks._clock import now
from jetsync_locks._lost import SLICE
from jetsync_locks._record import rival_of
from jetsync_locks._ticket import TRANSIENT, pauses

if TYPE_CHECKING:
    from jetsync import Entry, KeyValue
    from jetsync.kv.watch import Watch
    from jetsync_locks._record import Rival
    from jetsync_locks._ticket import Ticket

READING: Final = 5.0
"""Maximum seconds for one read."""

REPLICA: Final = 1.0
"""Maximum seconds for the answer of a replica, if the leader can be asked as well."""

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
        self._stream = bucket.stream
        self._root = f"$KV.{bucket.bucket}."
        # The lower tickets by key; None until they were read once. Later there are only fewer.
        self._lower: dict[str, Rival] | None = None
        # Whether a watch has waited for a ticket for longer than its lease.
        self._is_overdue = False
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
            lower = None
            try:
                lower = self._read(until)
                if lower is not None:
                    if len(lower) < self._limit:
                        return True
                    self.reason = f"held by others ({len(lower)} before this one)"
                    self.waited = True
                    if now() >= until:
                        return False
                    if self._watch(lower, until):
                        return True
                    # Another ticket has gone, and the rest has to be read again.
                    pause = pauses(0.005)
            except (*TRANSIENT, jetsync.HandleClosedError) as error:
                self.reason = str(error)
                lower = None
            if now() >= until:
                return False
            if lower is None:
                time.sleep(min(next(pause), max(until - now(), 0.0)))
        return False

    def _read(self, until: float) -> list[Rival] | None:
        """
        Return the lower tickets that are left, in order; None if this is not known.
        """
        timeout = min(READING, until - now()) if until > now() else READING
        try:
            info = self._stream.info(subjects_filter=self._root + self._pattern, timeout=timeout)
        except jetsync.StreamNotFoundError as error:
            raise jetsync.BucketNotFoundError(self._bucket.bucket) from error
        if info.cluster is not None and not info.cluster.leader:
            # Then any replica answers.
            self.reason = "the bucket has no leader"
            return None
        left = {subject.removeprefix(self._root) for subject in info.state.subjects}
        if self._ticket.key not in left:
            self.reason = "the leader does not list the ticket (does the bucket have a codec?)"
            return None
        left.discard(self._ticket.key)
        if self._lower is not None:
            left &= self._lower.keys()
        found = self._resolve(left, timeout)
        if found is None:
            self.reason = "a ticket has gone during the read"
            return None
        self._lower = {rival.key: rival for rival in found if rival.number < self._ticket.number}
        return sorted(self._lower.values())

    def _resolve(self, keys: set[str], timeout: float) -> list[Rival] | None:
        """
        Return the tickets that have a value; None if a key has gone.

        Any replica may answer, because keys are not used again: a marker is the end, and a value
        has the number. If the value is old, the watch says whether the ticket has ended. The leader
        is asked for keys that the replica does not know, and after a watch that said nothing.
        """
        messages = {}
        if keys and not self._is_overdue:
            # A replica that is stopped does not answer.
            with contextlib.suppress(*TRANSIENT):
                batch = self._stream.get_last_for(
                    [self._root + key for key in keys], reread=True, timeout=min(timeout, REPLICA)
                )
                messages = {message.subject: message for message in batch}
        rivals = []
        for key in keys:
            subject = self._root + key
            try:
                message = messages.get(subject) or self._stream.get_last(
                    subject, direct=False, timeout=timeout
                )
            except jetsync.MessageNotFoundError:
                return None
            if message.data:
                entry = jetsync.Entry(
                    self._bucket.bucket, key, message.data, message.sequence, message.timestamp
                )
                rivals.append(rival_of(entry))
        self._is_overdue = False
        return rivals

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
            if entry.is_deleted:
                return is_next
            expected[entry.key] = now() + before[entry.key].lease + LATE
            is_next = is_next or self._is_next(entry)
        if expected.keys() != before.keys():
            # It has ended, and its marker has expired. Or the replica of the watch is behind.
            self._is_overdue = True
            return False
        while self._ticket.is_valid:
            at = now()
            if at >= until:
                return False
            if at >= min(expected.values()):
                self._is_overdue = True
                return False
            wait = min(until, *expected.values()) - at
            changed = watch.next(timeout=min(wait, SLICE))
            if changed is None:
                continue
            if changed.is_deleted:
                return is_next
            expected[changed.key] = now() + before[changed.key].lease + LATE
            is_next = is_next or self._is_next(changed)
        return False

    def _is_next(self, entry: Entry) -> bool:
        """
        Return whether all tickets before the one of an entry have ended, because it holds.
        """
        return self._limit == 1 and rival_of(entry).holds
