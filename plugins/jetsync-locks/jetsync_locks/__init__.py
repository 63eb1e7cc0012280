"""
Locks, semaphores, leaders and jobs that run once, on a key-value bucket of NATS JetStream.

All of them are leases: a key with a time-to-live that a background thread renews. `Lock` has one
holder, `Semaphore` a limited number. `Leader` runs a function in one of many programs, and `Once`
runs a job once per period.
"""

from __future__ import annotations

from jetsync_locks._errors import (
    AcquireCancelledError,
    AcquireTimeoutError,
    AlreadyHeldError,
    LeaseLostError,
    NotHeldError,
)
from jetsync_locks._leader import Leader
from jetsync_locks._lease import Lease
from jetsync_locks._lock import Lock, Semaphore
from jetsync_locks._lost import Lost
from jetsync_locks._once import Once
from jetsync_locks._term import Term

__all__ = [
    "AcquireCancelledError",
    "AcquireTimeoutError",
    "AlreadyHeldError",
    "Leader",
    "Lease",
    "LeaseLostError",
    "Lock",
    "Lost",
    "NotHeldError",
    "Once",
    "Semaphore",
    "Term",
]
