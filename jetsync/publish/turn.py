"""
Taking a lock within a deadline, without losing it to Ctrl-C.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from jetsync._base.locks import refuse_reentry
from jetsync.errors import WaitTimeoutError

if TYPE_CHECKING:
    import threading

    from jetsync._base.deadline import Deadline

_AT_ONCE: Final = (False,)


class Turn:
    """
    The lock of a handle that several threads share, taken within a deadline; a context manager.

    Args:
        lock: The lock.
        deadline: How long to wait for it.
        what: What the error calls it.

    Raises:
        WaitTimeoutError: Another thread had it all the time.
        CallInSignalHandlerError: This is a signal handler, and its own thread has the lock.
    """

    __slots__ = ("_deadline", "_lock", "_taken", "_what")

    def __init__(
        self, lock: threading.RLock, deadline: Deadline, what: str = "the publisher's turn"
    ) -> None:
        self._lock = lock
        self._deadline = deadline
        self._what = what
        self._taken: list[bool] = []

    def __enter__(self) -> None:
        refuse_reentry(self._lock)
        # Ctrl-C never comes inside of one call into C, so that call takes the lock and notes it.
        taken, lock = self._taken, self._lock
        try:
            taken.extend(map(lock.acquire, _AT_ONCE))
            if True not in taken:
                taken.extend(map(lock.acquire, (True,), (self._deadline.remaining(),)))
        except BaseException:
            self.__exit__()
            raise
        if True not in taken:
            raise WaitTimeoutError(self._what, self._deadline.total)

    def __exit__(self, *_: object) -> None:
        if True in self._taken:
            self._lock.release()
