"""
Rules for locks that a signal handler may meet.

Python runs a signal handler in the main thread, between two steps of whatever that thread is doing.
If the interrupted call holds a lock, a call that the handler makes must not wait for that lock: the
interrupted call cannot continue, and release it, before the handler returns. Every lock that a
public call takes is therefore a ``threading.RLock``, which knows its owner, and is entered so::

    refuse_reentry(self._lock)
    with self._lock:
        ...

The check is a statement of its own because Ctrl-C may strike at any step of Python code. ``with``
and a lock that is written in C leave no step in which the lock is taken and nobody would release
it; a Python ``__enter__`` would.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any

from jetsync.errors import CallInSignalHandlerError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["Latch", "held_here", "keep_interrupts", "owner_check", "refuse_reentry"]


def owner_check(lock: Any) -> Callable[[], bool]:
    """Return a function that tells whether the calling thread holds *lock*, an ``RLock``."""
    # Not public, but `threading.Condition` relies on it in every version of Python.
    is_owned: Callable[[], bool] = lock._is_owned  # noqa: SLF001
    return is_owned


def held_here(lock: Any) -> bool:
    """Return whether the calling thread holds *lock*, an ``RLock``."""
    return owner_check(lock)()


def refuse_reentry(lock: Any) -> None:
    """
    Raise CallInSignalHandlerError if the calling thread holds *lock*, an ``RLock``.
    """
    if held_here(lock):
        raise CallInSignalHandlerError


class Latch:
    """
    A flag that is set once and stays set, as a ``threading.Event`` that a signal handler may use.

    An event guards its flag with a lock. A handler that interrupts ``set`` or ``wait`` and uses the
    same event would wait for that lock for ever.
    """

    __slots__ = ("_is_set", "_waiting")

    def __init__(self) -> None:
        self._is_set = False
        self._waiting: list[threading.Lock] = []
        """What each waiting thread waits for: a lock that :meth:`set` releases."""

    def is_set(self) -> bool:
        """Return whether the flag is set."""
        return self._is_set

    def set(self) -> None:
        """Set the flag and wake all threads that wait; safe to repeat."""
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
            # Looked at after the lock can be seen: `set` looks for locks after setting the flag.
            if not self._is_set:
                lock.acquire(timeout=max(timeout, 0.0))
        finally:
            if lock in self._waiting:  # Unless Ctrl-C came before.
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
