"""
The time limit of an attempt.

Python cannot end a thread. It can raise an exception in one at its next step of Python code, so a
handler that computes, or that waits in short steps, ends at its limit. A handler that waits inside
a call of the operating system does not, and is abandoned after a grace time.
"""

from __future__ import annotations

import ctypes
import threading
import time
from typing import TYPE_CHECKING

import jetsync
from jetsync_queue.errors import JobTimeoutError

if TYPE_CHECKING:
    from collections.abc import Callable

    from jetsync_queue.delivery import Delivery


class Attempt:
    """
    One call of the handler.

    Threads: that of the handler, and the clock. Locks: ``_lock`` makes the end of the call and the
    interruption two separate steps.
    """

    def __init__(self, delivery: Delivery, timeout: float | None, grace: float) -> None:
        self.delivery = delivery
        self._lock = jetsync.interrupt_safe_lock()
        self.thread = threading.current_thread()
        self._limits = [] if timeout is None else [timeout + grace, timeout]
        self._began = time.monotonic()
        self._is_interrupted = False
        self.is_over: bool = False
        self.is_abandoned: bool = False

    @property
    def due(self) -> float | None:
        """When the clock has to act; None if it has nothing to do."""
        return None if self.is_over or not self._limits else self._began + self._limits[-1]

    def call(self, handler: Callable[[Delivery], object]) -> tuple[object, BaseException | None]:
        """Call the handler; return its value and its error."""
        value: object = None
        try:
            try:
                value = handler(self.delivery)
            finally:
                self._finish()
        except BaseException as error:  # noqa: BLE001 - the worker decides.
            self.is_over = True
            return None, error
        return value, None

    def _finish(self) -> None:
        """Keep the clock from raising, and drop an exception that has not been raised yet."""
        with self._lock:
            self.is_over = True
        if self._is_interrupted:
            raise_in(self.thread, None)

    def act(self) -> bool:
        """Interrupt the handler, or give it up: then return True."""
        with self._lock:
            if self.is_over or not self._limits:
                return False
            self._limits.pop()
            if self._is_interrupted:
                self.is_abandoned = True
            else:
                self._is_interrupted = True
                raise_in(self.thread, JobTimeoutError)
            return self.is_abandoned


class Clock:
    """
    The thread that watches the attempts of one worker.

    Threads: its own, and those of the handlers. Locks: ``_lock`` protects the attempts.
    """

    def __init__(self, on_abandon: Callable[[Attempt], object]) -> None:
        self._on_abandon = on_abandon
        self._lock = jetsync.interrupt_safe_lock()
        self._changed = threading.Condition(self._lock)
        self._attempts: set[Attempt] = set()
        self._is_stopped = False
        self.thread = threading.Thread(target=self._run, name="jetsync-queue-clock", daemon=True)

    def watch(self, attempt: Attempt) -> None:
        """Begin to watch an attempt."""
        with self._lock:
            self._attempts.add(attempt)
            self._changed.notify()

    def forget(self, attempt: Attempt) -> None:
        """End watching an attempt."""
        with self._lock:
            self._attempts.discard(attempt)

    def stop(self) -> None:
        """End the thread."""
        with self._lock:
            self._is_stopped = True
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._lock:
                dues = [each.due for each in self._attempts]
                next_due = min((due for due in dues if due is not None), default=None)
                wait = None if next_due is None else next_due - time.monotonic()
                # The end may have been asked for before this thread waited.
                if not self._is_stopped and (wait is None or wait > 0.0):
                    self._changed.wait(wait)
                if self._is_stopped:
                    return
                now = time.monotonic()
                late = [each for each in self._attempts if each.due is not None and each.due <= now]
            for attempt in late:
                if attempt.act():
                    self._on_abandon(attempt)


def raise_in(thread: threading.Thread, error: type[BaseException] | None) -> None:
    """
    Raise an exception in another thread at its next step; None takes back one that is not raised.
    """
    ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(thread.ident or 0), None if error is None else ctypes.py_object(error)
    )
