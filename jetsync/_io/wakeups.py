"""
Wake threads that wait for another thread, and have the loop thread call something.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from typing import TYPE_CHECKING, Any

from jetsync._base.locks import SIGNAL_CHECK

if TYPE_CHECKING:
    from collections.abc import Callable


class Signal:
    """
    A flag that one thread waits for and any thread sets.

    Threads: any thread.
    Locks: the flag is a lock: it is held while the flag is not set.

    It is cheaper than an event or a condition. A flag that is set while no thread waits ends the
    next wait.
    """

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def set(self) -> None:
        """Wake the waiting thread, or let the next wait return at once; any thread."""
        # Releasing twice raises: the flag is set already. Asking first would be a race, and
        # contextlib.suppress costs more than the release.
        try:  # noqa: SIM105
            self._lock.release()
        except RuntimeError:
            pass

    def wait(self, timeout: float) -> bool:
        """Wait up to *timeout* seconds, return whether the flag was set, and clear it."""
        # On Windows, a signal does not interrupt the wait for a lock.
        while sys.platform == "win32" and timeout > SIGNAL_CHECK:
            if self._lock.acquire(timeout=SIGNAL_CHECK):
                return True
            timeout -= SIGNAL_CHECK
        return self._lock.acquire(timeout=max(timeout, 0.0))


class Notifier:
    """
    Wakes all threads that wait.

    Threads: any thread.
    Locks: one of the owner, which every caller but :meth:`forget` holds.

    This is not a ``threading.Condition``: if Ctrl-C strikes while a condition releases its lock,
    the lock is released twice, and a RuntimeError replaces the KeyboardInterrupt.
    """

    __slots__ = ("_signals",)

    def __init__(self) -> None:
        self._signals: list[Signal] = []

    def listen(self) -> Signal:
        """Return a flag that the next :meth:`notify` sets. Wait for it without the owner's lock."""
        signal = Signal()
        self._signals.append(signal)
        return signal

    def forget(self, signal: Signal) -> None:
        """Drop what :meth:`listen` returned, because its thread has stopped waiting."""
        with contextlib.suppress(ValueError):  # It is being set at this moment.
            self._signals.remove(signal)

    def notify(self) -> None:
        """Wake all threads that have called :meth:`listen`."""
        signals, self._signals = self._signals, []
        for signal in signals:
            signal.set()


class Reminder:
    """
    A call that the loop makes soon, once for all who ask before it begins.

    Threads: any thread asks; the loop thread makes the call, which clears ``due`` first.
    Locks: none.

    Args:
        schedule: Has the loop make the call.
        arguments: The arguments of *schedule*.
        options: Its keyword arguments.
    """

    __slots__ = ("_schedule", "due")

    def __init__(self, schedule: Callable[..., object], *arguments: Any, **options: Any) -> None:
        self._schedule = functools.partial(schedule, *arguments, **options)
        # Whether the call was asked for and has not begun.
        self.due: bool = False

    def ask(self) -> None:
        """Have the loop make the call, unless it is due already; any thread, never waits."""
        if self.due:
            return
        try:
            # First, or the call might begin before and clear it in vain.
            self.due = True
            self._schedule()
        except RuntimeError:
            pass  # The loop is closed.
        except BaseException:
            # Ctrl-C: one call too many does no harm, but one must come.
            self.due = False
            raise
