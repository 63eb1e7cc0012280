"""
Errors of locks.
"""

from __future__ import annotations

import jetsync

__all__ = [
    "AcquireCancelledError",
    "AcquireTimeoutError",
    "AlreadyHeldError",
    "LeaseLostError",
    "NotHeldError",
]


class LeaseLostError(jetsync.JetSyncError):
    """
    The lease has ended without a release, so another program may hold the lock now.

    ``name`` is the name of the lock, ``fence`` the number of the lost lease and ``reason`` says why
    it was lost.
    """

    def __init__(self, name: str, *, fence: int, reason: str) -> None:
        super().__init__(
            f"the lease of {name!r} with fence {fence} is lost: {reason}; stop the protected work,"
            " because another program may hold the lock"
        )
        self.name = name
        self.fence = fence
        self.reason = reason


class AcquireTimeoutError(jetsync.JetSyncError, TimeoutError):
    """
    Other programs held the lock, or the server did not answer, until the timeout.

    ``timeout`` is in seconds. ``reason`` says what the call waited for.
    """

    def __init__(self, name: str, *, timeout: float, reason: str) -> None:
        super().__init__(f"{name!r} was not acquired within {timeout:g} s: {reason}")
        self.name = name
        self.timeout = timeout
        self.reason = reason


class AcquireCancelledError(jetsync.JetSyncError):
    """
    The wait for the lock was ended by ``cancel`` or ``stop``.
    """

    def __init__(self, name: str) -> None:
        super().__init__(f"the wait for {name!r} was cancelled")
        self.name = name


class AlreadyHeldError(jetsync.JetSyncError, RuntimeError):
    """
    The object is in use, or this thread already holds the lock. Locks are not re-entrant.
    """

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"{name!r} cannot be acquired again: {reason}")
        self.name = name
        self.reason = reason


class NotHeldError(jetsync.JetSyncError, RuntimeError):
    """
    The call needs a lock that was acquired and not released.
    """

    def __init__(self, name: str) -> None:
        super().__init__(f"{name!r} is not held by this object: call acquire(), or use `with`")
        self.name = name
