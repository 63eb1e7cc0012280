"""
The time during which a leader or a job holds its lease.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jetsync_locks._errors import LeaseLostError
from jetsync_locks._lost import Lost

if TYPE_CHECKING:
    from jetsync_locks._lease import Lease

__all__ = ["Term"]


class Term:
    """
    The time during which a function has the lease. :class:`Leader` and :class:`Once` make it.

    Any thread may use it.
    """

    def __init__(self, lease: Lease) -> None:
        self._lease = lease
        self._is_stopping = False
        self._fence = lease.fence
        self._held = held = lease.lost
        self._lost = Lost(lambda: self._is_stopping or held.is_set(), after=held)

    def __repr__(self) -> str:
        return f"<Term {self._lease.name!r} fence={self._fence}>"

    @property
    def fence(self) -> int:
        """The number of the term. Each later one has a higher number."""
        return self._fence

    @property
    def lost(self) -> Lost:
        """An event that is set when the lease is lost, and when ``stop`` asks the work to end."""
        return self._lost

    @property
    def stopping(self) -> bool:
        """Whether ``stop`` was called. The lease is still held then."""
        return self._is_stopping

    def check(self) -> None:
        """
        Raise LeaseLostError if the lease is lost. Reads the clock, and sends nothing.

        Raises:
            LeaseLostError: The lease is lost.
            NotHeldError: The function has returned.
        """
        if self._held.is_set():
            # Also if this program leads again, with another lease.
            raise LeaseLostError(self._lease.name, fence=self._fence, reason="the term is over")
        self._lease.check()

    def stop(self) -> None:
        """
        Set :attr:`lost`, so that the work ends. The lease is held until it has.
        """
        self._is_stopping = True
        self._lost.announce()
