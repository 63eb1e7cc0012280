"""
A ticket: a place in the queue of a lock, which a background thread writes, renews and removes.

All writes are made by the ticket's own thread, so Ctrl-C in the thread that uses the lock cannot
interrupt one. A write is conditional on the last revision of the key, and each ticket has a key of
its own. So a ticket that has ended cannot come back, and a repeated write is not stored twice.
"""

from __future__ import annotations

import contextlib
import os
import queue
import random
import secrets
import threading
import time
from typing import TYPE_CHECKING, Final

import attrs

import jetsync
from jetsync_locks._clock import now
from jetsync_locks._errors import LeaseLostError
from jetsync_locks._lost import Lost, wait_for
from jetsync_locks._record import Record

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jetsync import Entry, KeyValue
    from jetsync.kv.watch import Watch
    from jetsync_locks._settings import Settings

_logger = jetsync.get_logger("jetsync_locks")

MARKER_TTL: Final = 2
"""
Seconds for which a released key leaves a marker. The next holder sees it in its watch. Each read of
a queue returns the markers, so they should not be kept long.
"""

SPACING: Final = 0.5
"""
Seconds between the answer to a write of a ticket and its next renewal, also the one that tells the
next in the queue that this ticket holds. Shorter uses of a lock save this write.
"""

FIRST_PAUSE: Final = 0.05
LONGEST_PAUSE: Final = 0.5
"""Seconds between attempts, which are doubled from the first to the longest."""

TRANSIENT: Final = (
    jetsync.PublishOutcomeUnknownError,
    jetsync.NoStreamResponseError,
    jetsync.RequestTimeoutError,
    jetsync.ConnectionLostError,
    jetsync.DisconnectedError,
    jetsync.NoRespondersError,
    jetsync.TemporarilyUnavailableError,
    jetsync.InsufficientResourcesError,
    jetsync.SubjectCheckUnavailableError,
    jetsync.TooManyRequestsError,
)
"""Errors after which another attempt may succeed."""

FINAL: Final = (
    jetsync.ConnectionClosedError,
    jetsync.ForkedProcessError,
    jetsync.BucketNotFoundError,
)
"""Errors after which no attempt can succeed."""


class _GoneError(Exception):
    """
    The server does not have the ticket any more.
    """


def pauses(first: float = FIRST_PAUSE) -> Iterator[float]:
    """
    Yield the seconds between attempts, with a random part so that programs do not keep in step.
    """
    pause = first
    while True:
        yield pause * random.uniform(0.5, 1.0)
        pause = min(pause * 2, LONGEST_PAUSE)


class Ticket:
    """
    A place in the queue of a lock. It holds the lock when too few tickets come before it.
    """

    # Threads: the ticket's own thread writes `number`, `_revision`, `_valid_until` and `_unsure`.
    # Any thread reads them, and calls `end` and `hold`, which only set flags and put an item into a
    # queue. So signal handlers and finalizers may call them, too.

    def __init__(
        self,
        bucket: KeyValue,
        prefix: str,
        name: str,
        settings: Settings,
        *,
        limit: int,
    ) -> None:
        self.pid: Final = os.getpid()
        self.owner: Final = threading.current_thread()
        """The thread that acquires the lock."""
        self.key: Final = f"{prefix}.{secrets.token_hex(8)}"
        """The key, which no other ticket uses, before or after."""
        self.name: Final = name
        self.number = 0
        """The first revision of the key, which orders tickets. 0 until it is known."""
        self.lost: Final = Lost(self._is_expired)
        self.acquired = False
        """Whether a caller has the lock and has not released it."""
        self.confirmed = False
        """Whether the server has confirmed that the ticket is gone."""
        self.reason = "the process was stopped, or no renewal was confirmed in time"
        """Why the lease was lost."""
        self._bucket: Final = bucket
        self._settings: Final = settings
        self._record = Record(
            holder=f"{os.uname().nodename if hasattr(os, 'uname') else 'host'}:{self.pid}",
            lease=settings.lease,
            limit=limit,
        )
        self._revision = 0
        # Whether a write may be stored whose outcome is unknown.
        self._unsure = False
        self._valid_until = 0.0
        # When the last write that is stored was sent.
        self._sent = 0.0
        self._renew_at = 0.0
        # No renewal is sent before this time.
        self._not_before = 0.0
        self._holds = False
        self._promoted = False
        self._ending = False
        # Whether the ticket is withdrawn, or the attempt was given up.
        self._over = False
        self._inbox: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._is_stored = False
        self._error: BaseException | None = None
        self._watches: list[Watch] = []
        self._thread = threading.Thread(
            target=self._main, name=f"jetsync-locks {self.key}", daemon=True
        )

    # Called by the thread that uses the lock

    def start(self) -> None:
        """
        Start the thread that writes the ticket.
        """
        self._thread.start()

    @property
    def in_use(self) -> bool:
        """Whether the ticket was started and its end was not asked for."""
        return self._thread.ident is not None and not self._ending

    @property
    def is_stored(self) -> bool:
        """Whether the server has confirmed the ticket."""
        return self._is_stored

    @property
    def remaining(self) -> float:
        """Seconds until the lease ends unless it is renewed; 0 if it has ended."""
        return 0.0 if self.lost.is_set() else max(self._valid_until - now(), 0.0)

    @property
    def is_valid(self) -> bool:
        """Whether the ticket is certainly on the server now, by the clock of this process."""
        return not self._ending and self._is_stored and not self.lost.is_set()

    def wait_stored(self, timeout: float) -> bool:
        """
        Wait until the ticket is stored, and return whether it is.

        Raises:
            jetsync.JetSyncError: It cannot be stored.
        """
        until = now() + timeout
        while not (self._is_stored or self._over or self._error):
            left = until - now()
            if left <= 0:
                return False
            wait_for(self._answers, left)
        if self._error is not None:
            raise self._error
        return self._is_stored

    def hold(self, *, renew: bool) -> None:
        """
        Record that the ticket holds the lock.

        Args:
            renew: Whether to renew the lease now, and so tell the next in the queue.
        """
        self._holds, self._promoted = True, renew
        self.acquired = True
        if renew:
            self._inbox.put(None)

    def keep_watch(self, watch: Watch) -> None:
        """
        Let the ticket's thread close a watch at its end, so that no caller waits for it.
        """
        self._watches.append(watch)

    def end(self) -> None:
        """
        Ask the thread to withdraw the ticket. Does not wait.
        """
        self.acquired = False
        self._ending = True
        self._inbox.put(None)

    def wait_over(self, timeout: float) -> bool:
        """
        Wait until the ticket is withdrawn; return whether the server has confirmed it.
        """
        if threading.current_thread() is self._thread:
            # The function on_lost has called this. The thread continues when it returns.
            return False
        until = now() + timeout
        while not self._over and self._thread.ident is not None:
            left = until - now()
            if left <= 0:
                return False
            wait_for(self._answers, left)
        if self._thread.ident is not None:
            self._thread.join(max(until - now(), 0.0))
        return self.confirmed

    def lost_error(self) -> LeaseLostError:
        """
        Return the error for a lost lease.
        """
        return LeaseLostError(self.name, fence=self.number, reason=self.reason)

    def _is_expired(self) -> bool:
        # After a release, the lease is not lost.
        return self._is_stored and not self._ending and now() >= self._valid_until

    # The thread

    def _main(self) -> None:
        try:
            self._store()
            self._answers.put(None)
            if self._is_stored:
                self._keep()
        except BaseException as error:  # noqa: BLE001 - raised by the thread that waits
            self._error = error
            self._answers.put(None)
            if self._is_stored:
                self._lose(f"the background thread failed: {error!r}")
        finally:
            try:
                self._withdraw()
            finally:
                self._over = True
                self._answers.put(None)
                for watch in self._watches:
                    with contextlib.suppress(jetsync.JetSyncError):
                        watch.close()

    def _store(self) -> None:
        """
        Write the ticket for the first time, as often as it takes.
        """
        pause = pauses()
        sent = 0.0
        while not self._ending:
            if not self._unsure:
                sent = now()
            try:
                revision = self._bucket.update(
                    self.key,
                    self._record.encode(),
                    last=0,
                    ttl=self._settings.lease,
                    timeout=self._settings.attempt,
                )
            except jetsync.WrongLastRevisionError:
                # An earlier attempt was stored, or will be in a moment.
                self._unsure = True
                found = self._stored_before()
                if found is None:
                    if now() - sent > self._settings.lease:
                        # It has expired, and a key is not used again.
                        return
                    wait_for(self._inbox, next(pause))
                    continue
                revision = found
            except TRANSIENT as error:
                if isinstance(error.__cause__, jetsync.PermissionDeniedError):
                    raise
                # After the other errors, nothing is stored.
                timed_out = jetsync.PublishOutcomeUnknownError, jetsync.RequestTimeoutError
                self._unsure = self._unsure or isinstance(error, timed_out)
                wait_for(self._inbox, next(pause))
                continue
            self.number = revision
            self._adopt(revision, sent)
            self._is_stored = True
            return

    def _stored_before(self) -> int | None:
        """
        Return the revision of this ticket, or None if the leader does not know one.
        """
        try:
            entry = self._look()
        except TRANSIENT:
            return None
        return None if entry is None else entry.revision

    def _adopt(self, revision: int, sent: float) -> None:
        """
        Note a write that is stored.
        """
        self._revision, self._unsure, self._sent = revision, False, sent
        self._not_before = now() + SPACING
        self._renew_at = max(sent + self._settings.interval, self._not_before)
        self._valid_until = sent + self._settings.valid

    def _keep(self) -> None:
        """
        Renew the ticket until its end is asked for, or it is lost.
        """
        while not self._ending:
            at = now()
            if at >= self._valid_until:
                self._lose(self.reason)
                return
            due = self._not_before if self._promoted else self._renew_at
            if at < due:
                wait_for(self._inbox, min(due, self._valid_until) - at)
                continue
            try:
                self._renew()
            except _GoneError as error:
                # Nothing is left to withdraw.
                self._revision, self._unsure = 0, False
                self._lose(str(error))
                return
        if self._promoted and self._not_before <= now() < self._valid_until:
            # Otherwise the next in the queue would have to read all of it.
            with contextlib.suppress(_GoneError):
                self._renew()
        if self.lost.is_set():
            # A release has noticed it before this thread.
            self._lose(self.reason)

    def _renew(self) -> None:
        """
        Renew the ticket once, with as many attempts as there is time for.
        """
        self._promoted = False
        record = attrs.evolve(
            self._record,
            renewal=self._record.renewal + 1,
            ticket=self.number,
            holds=self._holds,
        )
        sent, pause = now(), pauses()
        while now() < self._valid_until:
            revision = self._write(record)
            if revision is None and self._ending:
                return
            if revision is None:
                wait_for(self._inbox, min(next(pause), self._valid_until - now()))
                continue
            # An answer that arrives after the end of the lease does not bring it back.
            if now() < self._valid_until:
                self._record = record
                self._adopt(revision, sent)
            else:
                self._revision = revision
            return

    def _write(self, record: Record) -> int | None:
        """
        Write a renewal and return its revision; None if it is not known to be stored.
        """
        timeout = max(min(self._settings.attempt, self._valid_until - now()), 0.001)
        try:
            return self._bucket.update(
                self.key,
                record.encode(),
                last=self._revision,
                ttl=self._settings.lease,
                timeout=timeout,
            )
        except jetsync.WrongLastRevisionError:
            pass
        except FINAL as error:
            raise _GoneError(str(error)) from error
        except jetsync.JetSyncError as error:
            _logger.debug("A lease was not renewed", name=self.name, reason=str(error))
            self._unsure = True
            return None
        try:
            entry = self._look()
        except jetsync.JetSyncError:
            self._unsure = True
            return None
        if entry is None:
            raise _GoneError("the server has removed it")
        if entry.revision == self._revision:
            # Refused because of an earlier attempt that is not stored yet.
            return None
        return entry.revision

    def _look(self) -> Entry | None:
        """
        Ask the leader for the value of the key.
        """
        return self._bucket.get(
            self.key, default=None, direct=False, timeout=self._settings.attempt
        )

    def _lose(self, reason: str) -> None:
        """
        Tell everyone that the lease is lost.
        """
        self.reason = reason
        self.lost.announce()
        if not self._holds:
            return
        _logger.warning("A lease was lost", name=self.name, fence=self.number, reason=reason)
        if self._settings.on_lost is not None:
            try:
                self._settings.on_lost(self.lost_error())
            except Exception:
                _logger.exception("The function on_lost raised an error", name=self.name)

    def _withdraw(self) -> None:
        """
        Remove the ticket from the server, until the server removes it itself.
        """
        if not (self._revision or self._unsure):
            self.confirmed = True
            return
        give_up = (self._sent or now()) + self._settings.lease
        pause = pauses()
        while True:
            try:
                if self._unsure:
                    entry = self._look()
                    if entry is None and self._is_stored:
                        self.confirmed = True
                        return
                    # Without an entry, the marker keeps a first write from being stored later.
                    self._revision = 0 if entry is None else entry.revision
                    self._unsure = False
                self._bucket.purge(
                    self.key,
                    ttl=MARKER_TTL,
                    last=self._revision,
                    timeout=self._settings.attempt,
                )
                self.confirmed = True
                return
            except FINAL:
                return
            except jetsync.JetSyncError:
                self._unsure = True
            if now() >= give_up:
                if not self._holds:
                    return
                _logger.warning("The server did not confirm a release", name=self.name)
                return
            time.sleep(next(pause))
