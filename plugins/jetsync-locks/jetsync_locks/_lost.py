"""
The event that a lease is lost.
"""

from __future__ import annotations

import contextlib
import math
import queue
from typing import TYPE_CHECKING, Final

from jetsync_locks._clock import now
from jetsync_locks._settings import timeout_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from jetsync.typing import Seconds

SLICE: Final = 1.0
"""
Longest wait in seconds. The waits of Python do not count the time of a suspension, so the clock is
read at least this often.
"""


class Lost:
    """
    An event that is set when a lease is lost, and stays set. Thread-safe.

    It has the methods of ``threading.Event`` that wait and ask. :meth:`is_set` also reads the
    clock, so it is right at once after the process was stopped.
    """

    # Threads: any, also signal handlers. No lock: a flag, and one queue per waiting thread.

    def __init__(self, is_over: Callable[[], bool], *, after: Lost | None = None) -> None:
        self._is_over = is_over
        self._flag = False
        self._waiting: list[queue.SimpleQueue[None]] = []
        # Those that are set when this one is.
        self._followers: list[Lost] = []
        if after is not None:
            after.lead(self)

    def __repr__(self) -> str:
        return f"<Lost {'set' if self.is_set() else 'not set'}>"

    def is_set(self) -> bool:
        """
        Return whether the lease is lost.
        """
        # It stays set after a release, which ends the lease that `_is_over` judges.
        self._flag = self._flag or self._is_over()
        return self._flag

    def wait(self, timeout: Seconds | None = None) -> bool:
        """
        Wait until the lease is lost, and return whether it is.

        Args:
            timeout: Seconds to wait. The default is no limit.
        """
        until = now() + timeout_of(timeout)
        mine: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._waiting.append(mine)
        try:
            while not self.is_set():
                left = until - now()
                if left <= 0:
                    return False
                wait_for(mine, left)
            return True
        finally:
            self._waiting.remove(mine)

    def lead(self, follower: Lost) -> None:
        """
        Set another event when this one is set.
        """
        self._followers.append(follower)

    def announce(self) -> None:
        """
        Set the event and wake all waiting threads.
        """
        self._flag = True
        for waiting in list(self._waiting):
            waiting.put(None)
        for follower in list(self._followers):
            follower.announce()


def wait_for(inbox: queue.SimpleQueue[None], seconds: float) -> None:
    """
    Wait for an item, for at most *seconds* and at most SLICE.
    """
    # `get` refuses an infinite timeout.
    wait = SLICE if seconds == math.inf else min(max(seconds, 0.0), SLICE)
    with contextlib.suppress(queue.Empty):
        inbox.get(timeout=wait)
