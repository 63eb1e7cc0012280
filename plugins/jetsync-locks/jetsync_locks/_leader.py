"""
A leader: one of many programs runs a function.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import jetsync
from jetsync_locks._errors import AcquireCancelledError, AlreadyHeldError, LeaseLostError
from jetsync_locks._lease import Lease
from jetsync_locks._record import check_name
from jetsync_locks._settings import LEASE, check_function, check_handle, settings_of
from jetsync_locks._term import Term

if TYPE_CHECKING:
    from collections.abc import Callable

    from jetsync import KeyValue
    from jetsync.typing import Seconds

__all__ = ["Leader"]

T = TypeVar("T")

_logger = jetsync.get_logger("jetsync_locks")


class Leader:
    """
    Run a function in one of many programs at a time.

    Each program makes a Leader of the same name and calls :meth:`run`. One of them becomes the
    leader, and the others wait in a queue. If the leader crashes, the next one follows within the
    time-to-live of the lease.

    Args:
        bucket: A key-value bucket with ``history=1`` and a ``limit_marker_ttl``.
        name: The name, as for :class:`Lock`. A lock of the same name is independent of it.
        lease: As for :class:`Lock`.
        margin: As for :class:`Lock`.
        on_lost: As for :class:`Lock`.

    Raises:
        jetsync.InvalidArgumentError, jetsync.InvalidTypeError: A value is invalid.
    """

    # Threads: any. `_lock` protects `_lease` and is never held during a request. `_is_stopping` is
    # set and read in one step.

    def __init__(
        self,
        bucket: KeyValue,
        name: str,
        *,
        lease: Seconds = LEASE,
        margin: Seconds | None = None,
        on_lost: Callable[[LeaseLostError], object] | None = None,
    ) -> None:
        check_handle(bucket)
        settings_of(lease, margin, on_lost)
        self._bucket = bucket
        self._name = check_name("name", name)
        self._options: dict[str, Any] = {"lease": lease, "margin": margin, "on_lost": on_lost}
        self._lock = jetsync.interrupt_safe_lock()
        self._lease: Lease | None = None
        self._term: Term | None = None
        self._fence = 0
        # Set by `stop`, also before a run, because a signal may come that early.
        self._is_stopping = False

    def __repr__(self) -> str:
        return f"<Leader {self._name!r} in {self._bucket.bucket!r} {self._term or 'no term'}>"

    @property
    def name(self) -> str:
        """The name."""
        return self._name

    @property
    def term(self) -> Term | None:
        """The current term; None if this object does not lead."""
        return self._term

    def run(self, work: Callable[[Term], T], *, timeout: Seconds | None = None) -> T | None:
        """
        Wait to become the leader, call *work* with the term, and return its result.

        *work* should return soon after ``term.lost`` is set. If the lease was lost meanwhile, the
        result is dropped, and this program waits to become the leader again. Any other end of
        *work* gives the lease back. Returns None if :meth:`stop` was called before or while
        waiting.

        Args:
            work: A function of the :class:`Term`.
            timeout: Seconds to wait for each term. The default is no limit.

        Raises:
            AcquireTimeoutError: Another program was the leader until the timeout.
            AlreadyHeldError: Another call of this object runs.
            Exception: What *work* raises, except LeaseLostError after the lease was lost.
        """
        check_function("work", work)
        lease = Lease(
            self._bucket, self._name, kind="leader", limit=1, timeout=timeout, **self._options
        )
        try:
            with self._lock:
                if self._lease is not None:
                    raise AlreadyHeldError(self._name, "another thread calls run()")
                self._lease = lease
            if self._is_stopping:
                lease.cancel()
            while True:
                try:
                    with lease:
                        return self._lead(lease, work)
                except AcquireCancelledError:
                    return None
                except LeaseLostError as error:
                    if error.name != self._name or error.fence != self._fence:
                        # A lock that the work uses.
                        raise
                    _logger.warning("A leader is replaced", name=self._name, reason=error.reason)
        finally:
            if self._lease is lease:
                self._is_stopping = False
                self._lease = None

    def stop(self) -> None:
        """
        Let :meth:`run` end: a call that waits returns None within a second, and the term is asked
        to end. If no call runs, the next one returns None at once.

        Any thread and signal handlers may call this. It does not wait.
        """
        # Before it looks for a lease, which `run` stores before it looks for this.
        self._is_stopping = True
        lease, term = self._lease, self._term
        if lease is not None:
            lease.cancel()
        if term is not None:
            term.stop()

    def _lead(self, lease: Lease, work: Callable[[Term], T]) -> T | None:
        """
        Run one term.
        """
        term = Term(lease)
        self._fence = term.fence
        try:
            self._term = term
            # `stop` may have been called before there was a term.
            return None if lease.cancelled else work(term)
        finally:
            self._term = None
