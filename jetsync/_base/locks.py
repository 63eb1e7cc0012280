"""
Locks and flags that a signal handler may use.

The holder of a *short lock* (:func:`short_lock`) waits for nothing. So a call may wait for one,
unless its own thread holds it (:func:`refuse_reentry`). Whoever may wait while it uses a handle
takes a turn instead: see :mod:`jetsync._base.turn`.

``with`` and a lock of this module leave no step at which Ctrl-C leaves the lock held, unless the
block raises. To use a lock only if it is free, call :func:`use_if_free`.
"""

from __future__ import annotations

import contextlib
import os
import queue
import sys
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any, Final, TypeVar

from jetsync._base.deadline import Deadline
from jetsync.errors import CallInSignalHandlerError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

T = TypeVar("T")

# Seconds between two checks of a latch during a wait that the latch cannot end.
POLL: Final = 0.1

# Longest wait in one call of the operating system, in seconds. If a signal arrives shortly before
# such a call of the main thread, Python runs the signal's handler only after the call. On Python
# 3.10, 3 of 90 programs that waited for a handler without a limit missed a SIGTERM.
SIGNAL_CHECK: Final = 0.5


def refuse_reentry(lock: Any) -> None:
    """
    Raise CallInSignalHandlerError if the calling thread holds *lock*, an ``RLock``.
    """
    # Not public, but `threading.Condition` relies on it in every version of Python.
    if lock._is_owned():  # noqa: SLF001
        raise CallInSignalHandlerError


# Weak references to the short locks of this process.
_short_locks: set[weakref.ref[Any]] = set()


def _forget_locks() -> None:
    """
    Forget the locks of the parent in a forked child.

    A thread of the child may get the identity of a thread of the parent, and would seem to hold
    the locks that this thread held.
    """
    _short_locks.clear()


if hasattr(os, "register_at_fork"):  # Not on Windows.
    os.register_at_fork(after_in_child=_forget_locks)


if sys.version_info >= (3, 14) and sys.version_info < (3, 15, 2):

    class _Lock(type(threading.RLock())):
        """
        A lock for the Pythons that run signal handlers between ``__enter__`` in C and the block.

        These Pythons run signal handlers after each call of a function written in C. The call of
        ``__enter__`` is no part of the block, so ``with`` would not release the lock (CPython issue
        148874). They do not run handlers when a Python function returns. ``__exit__`` stays in C.
        """

        __slots__ = ()

        def __enter__(self) -> bool:
            try:
                return self.acquire()
            except BaseException:
                # Either `acquire` took the lock, or the lock belongs to another thread.
                if self._is_owned():
                    self.release()
                raise

    _new_rlock = _Lock
else:
    _new_rlock = threading.RLock


def interrupt_safe_lock() -> threading.RLock:
    """
    Return a ``threading.RLock`` that Ctrl-C never leaves held, if it is taken by ``with``.

    On Python 3.14, Ctrl-C may leave the locks of ``threading`` held after their ``with`` block, so
    that other threads wait for them forever. Use this lock in plugins, because jetsync calls hooks
    in the thread that Ctrl-C strikes. On other versions of Python it is a plain ``RLock``.

    A signal handler may take the lock again while its own thread holds it.
    """
    return _new_rlock()


def short_lock() -> threading.RLock:
    """Return a lock whose holder must not wait for another lock, thread, or answer."""
    lock = _new_rlock()
    _short_locks.add(weakref.ref(lock, _short_locks.discard))
    return lock


def holds_short_lock() -> bool:
    """Return whether the calling thread holds a short lock."""
    for reference in list(_short_locks):
        lock = reference()
        if lock is not None and lock._is_owned():  # noqa: SLF001 - as in refuse_reentry
            return True
    return False


def use_if_free(lock: Any, work: Callable[..., T], *arguments: Any) -> T | None:
    """
    Call *work* with *lock*, an ``RLock``, and return its result; None if any thread has it.

    That may be the calling thread, if this is a signal handler or a finalizer. Ctrl-C leaves the
    lock free at any step. On Python 3.10, *work* must raise nothing else.
    """
    if lock._is_owned():  # noqa: SLF001 - as in refuse_reentry
        return None
    try:
        if lock.acquire(False):
            return work(*arguments)
    finally:
        # Nothing is called before the release, or Ctrl-C could strike. The lock itself knows
        # whether this thread has it.
        try:  # noqa: SIM105 - as above
            lock.release()
        except RuntimeError:
            pass  # Another thread has it.
    return None


class SleepingLock:
    """
    A lock without an owner, for which a thread sleeps at once.

    Threads: any thread.
    Locks: none; the lock is free while the queue has an item.

    Without the GIL, a thread asks 40 times for a lock of ``threading`` before it sleeps. With such
    locks, 16 threads that publish made half as many calls per second, for twice the CPU time.
    """

    __slots__ = ("_items",)

    def __init__(self) -> None:
        self._items: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._items.put(None)

    def acquire(self, *, timeout: float) -> bool:
        """Wait up to *timeout* seconds for the lock, and return whether this thread has it."""
        try:
            self._items.get(timeout=timeout)
        except queue.Empty:
            return False
        return True

    def release(self) -> None:
        """
        Free the lock if it is held.

        If it is released again before the woken thread runs, the lock may be taken twice.
        """
        if self._items.empty():
            self._items.put(None)


HAS_GIL: Final = getattr(sys, "_is_gil_enabled", lambda: True)()


def _new_flag() -> Any:
    """
    Return the lock of a :class:`Signal`.

    With the GIL, it is not a queue. Before Python 3.13, `SimpleQueue.get` never ends if a signal
    handler runs until its timeout is over. Pythons without the GIL are newer.
    """
    return threading.Lock() if HAS_GIL else SleepingLock()


class Signal:
    """
    A flag that one thread waits for and any thread sets.

    Threads: any thread.
    Locks: the flag is a lock: it is held while the flag is not set.

    It is cheaper than an event or a condition. A flag that is set while no thread waits ends the
    next wait. If it is set twice before the woken thread runs, it may end two waits.
    """

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = _new_flag()
        self._lock.acquire(timeout=0.0)

    def set(self) -> None:
        """Wake the waiting thread, or let the next wait return at once; any thread."""
        # Releasing a lock of threading twice raises: the flag is set already. Asking first would be
        # a race, and contextlib.suppress costs more than the release.
        try:  # noqa: SIM105
            self._lock.release()
        except RuntimeError:
            pass

    def wait(self, timeout: float) -> bool:
        """Wait up to *timeout* seconds, return whether the flag was set, and clear it."""
        # On Windows, a signal does not interrupt the wait.
        while sys.platform == "win32" and timeout > SIGNAL_CHECK:
            if self._lock.acquire(timeout=SIGNAL_CHECK):
                return True
            timeout -= SIGNAL_CHECK
        return bool(self._lock.acquire(timeout=max(timeout, 0.0)))


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


class Latch:
    """
    A flag that is set once and stays set: a ``threading.Event`` that a signal handler may use.

    An event guards its flag with a lock. A handler that interrupts ``set`` or ``wait`` and uses the
    same event would wait for that lock forever.
    """

    __slots__ = ("_is_set", "_waiting")

    def __init__(self) -> None:
        self._is_set = False
        # The flag of each waiting thread.
        self._waiting: list[Signal] = []

    def is_set(self) -> bool:
        """Return whether the flag is set."""
        return self._is_set

    def set(self) -> None:
        """Set the flag and wake all waiting threads. Can be called repeatedly."""
        self._is_set = True
        for signal in list(self._waiting):
            signal.set()

    def wait(self, timeout: float = threading.TIMEOUT_MAX) -> bool:
        """Wait up to *timeout* seconds and return whether the flag is set."""
        if self._is_set:
            return True
        signal = Signal()
        try:
            self._waiting.append(signal)
            until = time.monotonic() + timeout
            # Checked after the signal is listed: `set` sets the flag before it reads the list.
            while not self._is_set:
                left = until - time.monotonic()
                if signal.wait(min(left, SIGNAL_CHECK)) or left <= SIGNAL_CHECK:
                    break
        finally:
            if signal in self._waiting:  # Unless Ctrl-C struck before.
                self._waiting.remove(signal)
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
