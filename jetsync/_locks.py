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
from typing import TYPE_CHECKING, Any

from jetsync.errors import CallInSignalHandlerError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["held_here", "keep_interrupts", "owner_check", "refuse_reentry"]


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
