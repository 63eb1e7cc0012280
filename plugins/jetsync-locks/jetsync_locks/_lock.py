"""
Locks and semaphores.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jetsync
from jetsync_locks._lease import Lease
from jetsync_locks._settings import LEASE

if TYPE_CHECKING:
    from collections.abc import Callable

    from jetsync import KeyValue
    from jetsync.typing import Seconds
    from jetsync_locks._errors import LeaseLostError

__all__ = ["Lock", "Semaphore"]


class Lock(Lease):
    """
    A lock that one program at a time holds, on all machines that use the bucket.

    Args:
        bucket: A key-value bucket with ``history=1`` and a ``limit_marker_ttl``.
        name: The name of the lock: letters, digits and ``-_=/``, with single dots between parts.
        lease: Time-to-live in whole seconds, at least 2. If the holder crashes, the next one gets
            the lock within this time. The default is 15.
        margin: How many seconds earlier the holder considers the lease lost. The clocks of the
            servers must agree within this time. The default is a tenth of the lease.
        timeout: Default timeout of :meth:`acquire` and of ``with``, in seconds. None waits without
            a limit.
        on_lost: Called with a LeaseLostError, in the background thread, if the lease is lost.

    Raises:
        jetsync.InvalidArgumentError, jetsync.InvalidTypeError: A value is invalid.
    """

    def __init__(
        self,
        bucket: KeyValue,
        name: str,
        *,
        lease: Seconds = LEASE,
        margin: Seconds | None = None,
        timeout: Seconds | None = None,
        on_lost: Callable[[LeaseLostError], object] | None = None,
    ) -> None:
        super().__init__(
            bucket,
            name,
            kind="lock",
            limit=1,
            lease=lease,
            margin=margin,
            timeout=timeout,
            on_lost=on_lost,
        )


class Semaphore(Lease):
    """
    A limited number of permits. Each object takes one of them.

    All programs have to use the same *limit*. If they do not, each counts up to its own.

    Args:
        bucket: A key-value bucket with ``history=1`` and a ``limit_marker_ttl``.
        name: The name, as for :class:`Lock`. A lock of the same name is independent of it.
        limit: How many objects may hold a permit at the same time.
        lease: As for :class:`Lock`.
        margin: As for :class:`Lock`.
        timeout: As for :class:`Lock`.
        on_lost: As for :class:`Lock`.

    Raises:
        jetsync.InvalidArgumentError, jetsync.InvalidTypeError: A value is invalid.
    """

    def __init__(
        self,
        bucket: KeyValue,
        name: str,
        limit: int,
        *,
        lease: Seconds = LEASE,
        margin: Seconds | None = None,
        timeout: Seconds | None = None,
        on_lost: Callable[[LeaseLostError], object] | None = None,
    ) -> None:
        super().__init__(
            bucket,
            name,
            kind="semaphore",
            limit=_checked_limit(limit),
            lease=lease,
            margin=margin,
            timeout=timeout,
            on_lost=on_lost,
        )


def _checked_limit(limit: Any) -> int:
    if isinstance(limit, bool) or not isinstance(limit, int):
        raise jetsync.InvalidTypeError(f"limit must be a number, not {limit!r}", argument="limit")
    if limit < 1:
        raise jetsync.InvalidArgumentError(
            f"limit must be at least 1, not {limit}", argument="limit"
        )
    return limit
