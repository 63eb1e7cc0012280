"""
The counts of an endpoint, which are exact under threads.
"""

from __future__ import annotations

import attrs

import jetsync


@attrs.frozen
class Snapshot:
    """
    The counts at one moment.
    """

    requests: int
    errors: int
    last_error: str
    nanoseconds: int


class Counts:
    """
    Counts requests, and how many are in the endpoint.

    Threads: the one that receives requests, the workers, the watch over time limits, and callers.
    Locks: its own protects all counts. It is held for a few steps only.
    """

    def __init__(self) -> None:
        self._lock = jetsync.interrupt_safe_lock()
        self._requests = self._errors = self._nanoseconds = 0
        self._last_error = ""
        self._held = 0

    def enter(self, most: int) -> bool:
        """
        Count a request that waits or is handled, unless there are *most* of them.
        """
        with self._lock:
            if self._held >= most:
                return False
            self._held += 1
            return True

    def leave(self) -> None:
        """
        Forget a request that was let in, because its thread is free again.
        """
        with self._lock:
            self._held -= 1

    @property
    def held(self) -> int:
        """How many requests wait or are handled."""
        return self._held

    def add(self, nanoseconds: int, error: str | None) -> None:
        """
        Count a request that is over.

        Args:
            nanoseconds: The time in its handler.
            error: Its error, as in ``"404:no such item"``.
        """
        with self._lock:
            self._requests += 1
            self._nanoseconds += nanoseconds
            if error is not None:
                self._errors += 1
                self._last_error = error

    def fail(self, error: str) -> None:
        """
        Count the error of a request that was counted, because its answer could not be sent.
        """
        with self._lock:
            self._errors += 1
            self._last_error = error

    def snapshot(self) -> Snapshot:
        """
        Return the counts.
        """
        with self._lock:
            return Snapshot(self._requests, self._errors, self._last_error, self._nanoseconds)

    def reset(self) -> None:
        """
        Set the counts to 0.
        """
        with self._lock:
            self._requests = self._errors = self._nanoseconds = 0
            self._last_error = ""
