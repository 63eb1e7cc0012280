"""
Locks that a signal handler may use.

Python runs a signal handler in the main thread, between two steps of the code that it interrupts.
If that code holds a lock, no call of the handler may wait for it, because the interrupted code
cannot release the lock before the handler returns. Nor may a call of the handler wait for another
thread that waits for such a lock. Two kinds of locks make that certain:

- The holder of a *short lock* (:func:`short_lock`) waits for nothing. So a call may wait for one,
  unless its own thread holds it (:func:`refuse_reentry`).
- The holder of a *long lock* (:class:`LongLock`) may wait for short locks, for the connection and
  for answers. So a call waits for one only if its own thread holds no short lock. Long locks have a
  level, and their holders wait only for locks of a lower level.

No code of jetsync breaks this order by itself, so a call that would break it was made by a signal
handler or by a finalizer. It raises CallInSignalHandlerError.

Ctrl-C may strike at any step of Python code. ``with`` and a lock of this module leave no step at
which the lock is taken and would not be released. ``lock.acquire()`` followed by ``try`` has such a
step. So have an ``__exit__`` in Python, a ``threading.Condition`` and, on Python 3.14, ``with`` and
any lock of ``threading``. To take a lock without ``with``, use :func:`take`.
"""

from __future__ import annotations

import contextlib
import enum
import math
import os
import sys
import threading
import time
import weakref
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


class Level(enum.IntEnum):
    """
    The order in which one thread may wait for locks: the highest first.
    """

    SHORT = 1
    """Guards a few fields, or the socket."""

    HANDLE = 2
    """Guards a handle while it changes, writes and waits for answers. No plugin runs under it."""

    TURN = 3
    """Lets one thread at a time use a handle. Plugins, which use other handles, run under it."""


# Arguments for one try to take a lock.
_NO_WAIT: Final = (False,)

# Weak references to the locks that a thread must not hold while it waits for a higher one.
_locks: dict[Level, set[weakref.ref[Any]]] = {Level.SHORT: set(), Level.HANDLE: set()}


def _forget_locks() -> None:
    """
    Forget the locks of the parent in a forked child.

    A thread of the child may get the identity of a thread of the parent, and would seem to hold
    the locks that this thread held.
    """
    for known in _locks.values():
        known.clear()


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

    _new_lock = _new_rlock = _Lock
else:
    _new_lock, _new_rlock = threading.Lock, threading.RLock


def interrupt_safe_lock() -> threading.RLock:
    """
    Return a ``threading.RLock`` that Ctrl-C never leaves held, if it is taken by ``with``.

    On Python 3.14, Ctrl-C may leave the locks of ``threading`` held after their ``with`` block, so
    that other threads wait for them forever. Use this lock in plugins, because jetsync calls hooks
    in the thread that Ctrl-C strikes. On other versions of Python it is a plain ``RLock``.

    A signal handler may take the lock again while its own thread holds it.
    """
    return _new_rlock()


def flag_lock() -> threading.Lock:
    """
    Return a lock that is taken by ``with``, and whose ``locked()`` any thread may call.
    """
    return _new_lock()


def short_lock() -> threading.RLock:
    """Return a lock whose holder must not wait for another lock, thread, or answer."""
    lock, known = _new_rlock(), _locks[Level.SHORT]
    known.add(weakref.ref(lock, known.discard))
    return lock


def refuse_deadlock(level: Level) -> None:
    """
    Raise CallInSignalHandlerError if the calling thread holds a lock below *level*.

    Call this before you wait for a thread that may hold a lock of this level.
    """
    for each, references in _locks.items():
        if each < level:
            for reference in list(references):
                lock = reference()
                if lock is not None and lock._is_owned():  # noqa: SLF001 - as in owner_check
                    raise CallInSignalHandlerError


def take(lock: Any, taken: list[bool], seconds: float = 0.0) -> bool:
    """
    Take *lock* within *seconds*, append whether that succeeded to *taken*, and return it.

    Call it inside a ``try`` whose ``finally`` releases the lock if ``True in taken``.
    """
    # Ctrl-C never strikes inside one call into C, so this call takes the lock and records that.
    taken.extend(map(lock.acquire, (True,), (seconds,)))
    return True in taken


class LongLock:
    """
    A lock whose holder may wait. ``with`` waits for it without a limit.

    Args:
        level: The level of the lock; not ``SHORT``.
        prepare_wait: Called before the lock is waited for. If its holder waits for answers, this
            lets another thread read the socket.

    Raises:
        CallInSignalHandlerError: This is a signal handler. Its own thread holds the lock, or the
            thread that holds it may wait for the interrupted call.
    """

    __slots__ = ("__exit__", "_level", "_prepare_wait", "_rlock", "held_here", "release")

    __exit__: Callable[..., None]

    def __init__(self, level: Level, prepare_wait: Callable[[], None] | None = None) -> None:
        self._rlock = rlock = threading.RLock()
        if level is Level.HANDLE:
            known = _locks[level]
            known.add(weakref.ref(rlock, known.discard))
        # The lock's own methods, which are written in C: Ctrl-C may strike in a Python function.
        self.__exit__ = rlock.__exit__
        self.release: Callable[[], None] = rlock.release
        self.held_here: Callable[[], bool] = rlock._is_owned  # type: ignore[attr-defined]  # noqa: SLF001 - as in owner_check
        self._level = level
        self._prepare_wait = prepare_wait

    def __repr__(self) -> str:
        return repr(self._rlock)

    def enter(self, deadline: Deadline | None = None) -> bool:
        """Take the lock, and return whether that succeeded within *deadline*."""
        if self.held_here():
            raise CallInSignalHandlerError
        taken: list[bool] = []
        try:
            # As in `take`. Most locks are free, and then neither the order nor the time matters.
            taken.extend(map(self._rlock.acquire, _NO_WAIT))
            if True not in taken:
                self._wait(taken, deadline)
        except BaseException:
            if True in taken:
                self.release()
            raise
        return True in taken

    __enter__ = enter

    def take(self, taken: list[bool], deadline: Deadline | None) -> bool:
        """
        Take the lock, append whether that succeeded to *taken*, and return it, as :func:`take`.

        None has no limit. The calling thread may hold the lock already.
        """
        taken.extend(map(self._rlock.acquire, _NO_WAIT))
        if True not in taken:
            self._wait(taken, deadline)
        return True in taken

    def _wait(self, taken: list[bool], deadline: Deadline | None) -> None:
        seconds = math.inf if deadline is None else deadline.remaining()
        if seconds:
            refuse_deadlock(self._level)
            if self._prepare_wait is not None:
                self._prepare_wait()
            until = time.monotonic() + seconds
            # In slices, because a signal does not end the wait for a lock on Windows.
            while not take(self._rlock, taken, min(seconds, SIGNAL_CHECK)):
                seconds = until - time.monotonic()
                if seconds <= 0.0:
                    break


class Locked:
    """
    Hold a long lock that was waited for within a deadline; a context manager.

    Args:
        lock: The lock.
        deadline: How long to wait for it.
        what: What the error says that the call waited for.

    Raises:
        WaitTimeoutError: Another thread held the lock until the deadline.
        CallInSignalHandlerError: As for :class:`LongLock`.
    """

    __slots__ = ("__exit__", "_deadline", "_lock", "_what")

    __exit__: Callable[..., None]

    def __init__(
        self, lock: LongLock, deadline: Deadline, what: str = "another call on the publisher"
    ) -> None:
        self.__exit__ = lock.__exit__
        self._lock = lock
        self._deadline = deadline
        self._what = what

    def __enter__(self) -> None:
        lock = self._lock
        if lock.held_here():
            raise CallInSignalHandlerError
        taken: list[bool] = []
        try:
            # Python 3.10 runs signal handlers after a call of a Python function, and after a jump,
            # so both are in this block.
            if not lock.take(taken, self._deadline):
                raise WaitTimeoutError(self._what, self._deadline.total)
        except BaseException:
            if True in taken:
                lock.release()
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
