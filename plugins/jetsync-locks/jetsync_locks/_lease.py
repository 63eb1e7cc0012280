"""
The common base of locks and semaphores: a lease that is acquired, renewed and released.
"""

from __future__ import annotations

import os
import weakref
from typing import TYPE_CHECKING, Final

import jetsync
from jetsync_locks._clock import now
from jetsync_locks._errors import (
    AcquireCancelledError,
    AcquireTimeoutError,
    AlreadyHeldError,
    LeaseLostError,
    NotHeldError,
)
from jetsync_locks._record import check_name
from jetsync_locks._settings import (
    LEASE,
    check_bucket,
    check_handle,
    seconds_of,
    settings_of,
    timeout_of,
)
from jetsync_locks._ticket import Ticket
from jetsync_locks._turn import READING, Turn

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Self

    from jetsync import KeyValue
    from jetsync.typing import Seconds
    from jetsync_locks._lost import Lost

__all__ = ["Lease"]

GIVING_UP: Final = 1.0
"""Seconds for which a call that fails waits until its ticket is withdrawn."""

# The ticket that holds each exclusive lock in this process, to recognise a thread that would wait
# for itself.
_held: weakref.WeakValueDictionary[tuple[object, ...], Ticket] = weakref.WeakValueDictionary()


class Lease:
    """
    The common base of :class:`Lock` and :class:`Semaphore`. Programs create one of these.

    A ``with`` block acquires the lease and releases it. A background thread renews it meanwhile.
    One object has one lease at a time, and any thread may release or check it. To share a lock
    between threads, give each thread an object of its own.

    If the lease is lost, :attr:`lost` is set, *on_lost* is called, and :meth:`check` and
    :meth:`release` raise LeaseLostError. This happens at least *margin* seconds before another
    program can get the lease.

    Args:
        bucket: A key-value bucket with ``history=1`` and a ``limit_marker_ttl``.
        name: The name: letters, digits and ``-_=/``, with single dots between parts.
        kind: The first part of the keys. Leases of different kinds are independent.
        limit: How many objects may hold a lease of this name at the same time.
        lease: Time-to-live in whole seconds, at least 2.
        margin: How many seconds earlier the holder considers the lease lost. The default is a tenth
            of the lease.
        timeout: Default timeout of :meth:`acquire` in seconds. None waits without a limit.
        on_lost: Called with a LeaseLostError, in the background thread, if the lease is lost.
    """

    # Threads: any. `_lock` protects `_ticket`, and is never held during a request.

    # Also there if an argument is refused.
    _ticket: Ticket | None = None

    def __init__(
        self,
        bucket: KeyValue,
        name: str,
        *,
        kind: str,
        limit: int,
        lease: Seconds = LEASE,
        margin: Seconds | None = None,
        timeout: Seconds | None = None,
        on_lost: Callable[[LeaseLostError], object] | None = None,
    ) -> None:
        check_handle(bucket)
        self._bucket = bucket
        self._name = check_name("name", name)
        self._limit = limit
        self._settings = settings_of(lease, margin, on_lost)
        self._timeout = timeout_of(timeout)
        self._prefix = f"{kind}.{name}"
        self._lock = jetsync.interrupt_safe_lock()
        self._is_checked = False
        self._is_cancelled = False

    def __repr__(self) -> str:
        state = "held" if self.held else "not held"
        return f"<{type(self).__name__} {self._name!r} in {self._bucket.bucket!r} {state}>"

    def __enter__(self) -> Self:
        return self.acquire()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            self.release()
        except (LeaseLostError, NotHeldError):
            # The block's own error says more.
            if kind is None:
                raise

    def __del__(self) -> None:
        ticket = self._ticket
        if ticket is not None and ticket.in_use and ticket.pid == os.getpid():
            ticket.end()

    @property
    def name(self) -> str:
        """The name."""
        return self._name

    @property
    def limit(self) -> int:
        """How many objects may hold a lease of this name at the same time."""
        return self._limit

    @property
    def cancelled(self) -> bool:
        """Whether :meth:`cancel` was called."""
        return self._is_cancelled

    @property
    def held(self) -> bool:
        """Whether this object holds the lease now, by the clock of this process."""
        ticket = self._ticket
        return (
            ticket is not None and ticket.acquired and ticket.is_valid and ticket.pid == os.getpid()
        )

    @property
    def fence(self) -> int:
        """
        The number of this lease. Each later holder of the lock has a higher one.

        It is the revision of the bucket that put this object into the queue, and stays the same
        while the lease is renewed. Raises NotHeldError if the lease is not acquired.
        """
        return self._current().number

    @property
    def lost(self) -> Lost:
        """
        An event that is set when the lease is lost, with ``is_set()`` and ``wait(timeout)``.

        A release does not set it. Raises NotHeldError if the lease is not acquired.
        """
        return self._current().lost

    @property
    def remaining(self) -> float:
        """
        Seconds for which the lease lasts if it is not renewed; 0 if it is lost.

        Raises NotHeldError if the lease is not acquired.
        """
        return self._current().remaining

    def check(self) -> None:
        """
        Raise LeaseLostError if the lease is lost. Reads the clock, and sends nothing.

        Call it before each step of the protected work. A step that follows may still run late, if
        the process is stopped in between; only a fence protects against that.

        Raises:
            LeaseLostError: The lease is lost.
            NotHeldError: The lease is not acquired, or was released.
            jetsync.ForkedProcessError: The parent process holds it.
        """
        ticket = self._current()
        if not ticket.is_valid:
            raise ticket.lost_error()

    def acquire(self, *, timeout: Seconds | None = None) -> Self:
        """
        Wait for the lease, and return this object.

        Objects get the lease in the order in which they asked for it. If this process is stopped
        for longer than *lease* while it waits, it loses its place and goes to the end of the queue.
        After an error or Ctrl-C, the object can be used again.

        Args:
            timeout: Seconds to wait. The default is that of the object. 0 fails at once if others
                hold the lease, but waits up to 5 seconds for each answer of the server.

        Raises:
            AcquireTimeoutError: The time is up.
            AcquireCancelledError: :meth:`cancel` was called.
            AlreadyHeldError: This object is in use, or the thread holds the lock already.
            jetsync.ConfigurationError: The bucket cannot hold leases.
            jetsync.ConnectionClosedError, jetsync.BucketNotFoundError, ...: There is no server to
                ask.
        """
        seconds = self._timeout if timeout is None else seconds_of("timeout", timeout)
        until = now() + seconds
        self._check_self()
        while True:
            if self._is_cancelled:
                raise AcquireCancelledError(self._name)
            ticket = Ticket(
                self._bucket, self._prefix, self._name, self._settings, limit=self._limit
            )
            turn = Turn(self._bucket, f"{self._prefix}.*", ticket, self._limit)
            try:
                self._enter(ticket)
                # Without time to wait, requests still need some.
                patience = READING if seconds == 0 else max(until - now(), 0.0)
                stored = ticket.wait_stored(patience)
                if stored and turn.wait(until) and self._hold(ticket, renew=turn.waited):
                    return self
                if self._is_cancelled:
                    raise AcquireCancelledError(self._name)
                if now() >= until:
                    raise AcquireTimeoutError(self._name, timeout=seconds, reason=turn.reason)
                ticket.end()
                ticket.wait_over(GIVING_UP)
            except Exception:
                ticket.end()
                ticket.wait_over(GIVING_UP)
                raise
            except BaseException:
                # Ctrl-C: the thread of the ticket removes it.
                ticket.end()
                raise

    def cancel(self) -> None:
        """
        End the wait in :meth:`acquire` with AcquireCancelledError, within a second.

        Later calls of :meth:`acquire` raise it at once. A lease that is held stays held. Any thread
        and signal handlers may call this. It does not wait.
        """
        self._is_cancelled = True
        ticket = self._ticket
        if ticket is not None and not ticket.acquired and ticket.pid == os.getpid():
            ticket.end()

    def release(self, *, timeout: Seconds = READING) -> bool:
        """
        Give the lease back, and return whether the server has confirmed it.

        If it has not, the outcome is unknown. The background thread then repeats the release until
        the lease ends, and others wait that long at most.

        Args:
            timeout: Seconds to wait for the server. The default is 5.

        Raises:
            LeaseLostError: The lease was lost before. It counts as released.
            NotHeldError: The lease is not acquired.
            jetsync.ForkedProcessError: The parent process holds it.
        """
        seconds = seconds_of("timeout", timeout)
        ticket = self._current()
        was_valid = ticket.is_valid
        ticket.end()
        confirmed = ticket.wait_over(seconds)
        if not was_valid:
            raise ticket.lost_error()
        return confirmed

    def _current(self) -> Ticket:
        """
        Return the ticket that holds or held the lease.
        """
        ticket = self._ticket
        if ticket is None or not ticket.acquired:
            raise NotHeldError(self._name)
        if ticket.pid != os.getpid():
            raise jetsync.ForkedProcessError(
                f"the parent process holds {self._name!r}: connect and acquire it in the child"
            )
        return ticket

    def _check_self(self) -> None:
        """
        Refuse a bucket that cannot hold leases, and a thread that would wait for itself.
        """
        if not self._is_checked:
            check_bucket(self._bucket, self._settings.lease)
            self._is_checked = True

    def _enter(self, ticket: Ticket) -> None:
        """
        Start a ticket, unless this object or its thread has one.
        """
        if self._limit == 1:
            other = _held.get(self._place)
            if (
                other is not None
                and other.pid == ticket.pid
                and other.owner is ticket.owner
                and other.acquired
                and other.is_valid
            ):
                raise AlreadyHeldError(self._name, "this thread already holds it")
        with self._lock:
            before = self._ticket
            if before is not None and before.in_use and before.pid == ticket.pid:
                verb = "holds it" if before.acquired else "waits for it"
                raise AlreadyHeldError(
                    self._name,
                    f"this object {verb} in thread {before.owner.name!r}; give each thread an"
                    " object of its own",
                )
            self._ticket = ticket
            ticket.start()

    @property
    def _place(self) -> tuple[object, ...]:
        """What identifies the lock in this process."""
        return self._bucket.stream.name, self._bucket.stream.cached_info.created, self._prefix

    def _hold(self, ticket: Ticket, *, renew: bool) -> bool:
        """
        Note that this object holds the lease, unless it has ended by now.
        """
        ticket.hold(renew=renew)
        if not ticket.is_valid:
            return False
        if self._limit == 1:
            _held[self._place] = ticket
        return True
