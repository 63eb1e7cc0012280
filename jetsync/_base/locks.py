"""
Locks that a signal handler may use.

Python runs a signal handler in the main thread, between two steps of the code that it interrupts.
If that code holds a lock, a call of the handler must not wait for it: the interrupted code cannot
release the lock before the handler returns. So every lock that a public call takes is a
``threading.RLock``, which knows its owner, and is taken like this::

    refuse_reentry(self._lock)
    with self._lock:
        ...

The check is a statement of its own because Ctrl-C may strike at any step of Python code. ``with``
and a lock that is written in C leave no step at which the lock is taken and would not be released.
``lock.acquire()`` followed by ``try`` has such a step, and so has an ``__exit__`` in Python.
To take a lock within a deadline, use :func:`take` or :class:`Locked`.
"""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING, Any, Final

from jetsync._base.deadline import Deadline
from jetsync.errors import CallInSignalHandlerError, WaitTimeoutError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


# Seconds between two checks of a latch during a wait that the latch cannot end.
POLL: Final = 0.1

# Longest wait in one call of the operating system, in seconds. If a signal arrives shortly before
# such a call of the main thread, Python runs the signal's handler only after the call. On Python
# 3.10, 3 of 90 programs that waited for a handler without a limit missed a SIGTERM.
SIGNAL_CHECK: Final = 0.5


def owner_check(lock: Any) -> Callable[[], bool]:
    """Return a function that tells whether the calling thread holds *lock*, an ``RLock``."""
    # Not public, but `threading.Condition` relies on it in every version of Python.
    is_owned: Callable[[], bool] = lock._is_owned  # noqa: SLF001
    return is_owned


def held_here(lock: Any) -> bool:
    """Return whether the calling thread holds *lock*, an ``RLock``."""
    return bool(lock._is_owned())  # noqa: SLF001 - as in owner_check


def refuse_reentry(lock: Any) -> None:
    """
    Raise CallInSignalHandlerError if the calling thread holds *lock*, an ``RLock``.
    """
    if lock._is_owned():  # noqa: SLF001 - as in owner_check
        raise CallInSignalHandlerError


def take(lock: Any, taken: list[bool], seconds: float = 0.0) -> bool:
    """
    Take *lock* within *seconds*, append whether that succeeded to *taken*, and return it.

    Call it inside a ``try`` whose ``finally`` releases the lock if ``True in taken``.
    """
    # Ctrl-C never strikes inside one call into C, so this call takes the lock and records that.
    taken.extend(map(lock.acquire, (True,), (seconds,)))
    return True in taken


class Locked:
    """
    Hold the lock of an object that several threads share; a context manager.

    Any number of calls may use one at the same time if it was made with seconds.

    Args:
        lock: The lock.
        deadline: How long to wait for it: a deadline, or seconds for each use.
        what: What the error says that the call waited for.

    Raises:
        WaitTimeoutError: Another thread held the lock until the deadline.
        CallInSignalHandlerError: This is a signal handler, and its own thread holds the lock.
    """

    __slots__ = ("__exit__", "_deadline", "_lock", "_what")

    __exit__: Callable[..., None]

    def __init__(
        self,
        lock: threading.RLock,
        deadline: Deadline | float,
        what: str = "another call on the publisher",
    ) -> None:
        # The lock's own method, which is written in C: Ctrl-C may strike in a Python function.
        self.__exit__ = lock.__exit__
        self._lock = lock
        self._deadline = deadline
        self._what = what

    def __enter__(self) -> None:
        lock, deadline = self._lock, self._deadline
        if lock._is_owned():  # type: ignore[attr-defined]  # noqa: SLF001 - as in owner_check
            raise CallInSignalHandlerError
        taken: list[bool] = []
        try:
            # As in `take`. Most locks are free, and then the remaining time does not matter.
            taken.extend(map(lock.acquire, (False,)))
            if True not in taken:
                if not isinstance(deadline, Deadline):
                    deadline = Deadline.after(deadline)
                if not take(lock, taken, deadline.remaining()):
                    raise WaitTimeoutError(self._what, deadline.total)
        except BaseException:
            if True in taken:
                self._lock.release()
            raise


class Latch:
    """
    A flag that is set once and stays set: a ``threading.Event`` that a signal handler may use.

    An event guards its flag with a lock. A handler that interrupts ``set`` or ``wait`` and uses the
    same event would wait for that lock forever.
    """

    __slots__ = ("_is_set", "_waiting")

    def __init__(self) -> None:
        self._is_set = False
        # A lock for each waiting thread, which `set` releases.
        self._waiting: list[threading.Lock] = []

    def is_set(self) -> bool:
        """Return whether the flag is set."""
        return self._is_set

    def set(self) -> None:
        """Set the flag and wake all waiting threads. Can be called repeatedly."""
        self._is_set = True
        for lock in list(self._waiting):
            with contextlib.suppress(RuntimeError):  # Another call of `set` released it.
                lock.release()

    def wait(self, timeout: float = threading.TIMEOUT_MAX) -> bool:
        """Wait up to *timeout* seconds and return whether the flag is set."""
        if self._is_set:
            return True
        lock = threading.Lock()
        lock.acquire()
        try:
            self._waiting.append(lock)
            until = time.monotonic() + timeout
            # Checked after the lock is listed: `set` sets the flag before it reads the list.
            while not self._is_set:
                left = max(until - time.monotonic(), 0.0)
                if lock.acquire(timeout=min(left, SIGNAL_CHECK)) or left <= SIGNAL_CHECK:
                    break
        finally:
            if lock in self._waiting:  # Unless Ctrl-C struck before.
                self._waiting.remove(lock)
        return self._is_set


@contextlib.contextmanager
def keep_interrupts() -> Iterator[None]:
    """
    Raise KeyboardInterrupt where the standard library loses it.

    If Ctrl-C strikes inside ``threading.Condition.wait``, which ``Event.wait`` and ``Thread.start``
    use, the condition may release its lock twice, and "release unlocked lock" hides the interrupt.
    """
    try:
        yield
    except RuntimeError as error:
        if isinstance(error.__context__, KeyboardInterrupt):
            raise error.__context__ from None
        raise


class UnlessSet(Deadline):
    """
    A deadline that expires early when a latch is set. Waiters must poll it.

    Args:
        at: The moment, in terms of ``time.monotonic()``.
        total: How long the whole call may take, in seconds, for errors.
        latch: The latch.
        grace: How long it still lasts once the latch is set, in seconds.
    """

    __slots__ = ("_grace", "latch")

    def __init__(self, at: float, total: float, latch: Latch, grace: float = 0.0) -> None:
        super().__init__(at, total)
        self.latch = latch
        # None once it has shortened the time.
        self._grace: float | None = grace

    def _see_latch(self) -> None:
        if self._grace is not None and self.latch.is_set():
            self.at, self._grace = min(self.at, time.monotonic() + self._grace), None

    def remaining(self) -> float:
        """Return the seconds until the next check, 0 once it has expired."""
        self._see_latch()
        return min(super().remaining(), POLL)

    def expired(self) -> bool:
        """Return whether the time is over, or was ended by the latch."""
        self._see_latch()
        return super().expired()
