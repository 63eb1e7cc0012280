"""
The watch over handlers that take too long: one thread for all endpoints of a service.

Python cannot end a thread, so a handler over its time goes on and keeps its thread. The caller gets
an answer in time, and the late result is dropped.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final, Protocol

import jetsync

if TYPE_CHECKING:
    from collections.abc import Callable

NEVER: Final = float("inf")


class Limited(Protocol):
    """
    Something with a time limit.
    """

    ends: float
    """When its time is over, as of ``time.monotonic``."""

    def expire(self) -> None:
        """Handle that its time is over, in the thread of the watch. Must not raise."""


class Watch:
    """
    Calls ``expire`` of what is over its time.

    The thread sleeps until the earliest end that it knows. Work that ends later does not wake it,
    so that a request costs two changes of a dictionary.

    Threads: the workers add and remove. The thread of the watch calls ``expire``.
    Locks: ``_lock`` protects ``_stopped``. ``_wakes`` is written by the thread of the watch
    before it reads ``_running``, and read by workers after they have added to it. So either the
    thread sees the work, or the worker sees that the thread sleeps too long, and wakes it.
    """

    def __init__(self, start: Callable[[threading.Thread], object]) -> None:
        self._running: dict[int, Limited] = {}
        self._lock = jetsync.interrupt_safe_lock()
        self._changed = threading.Condition(self._lock)
        self._wakes = NEVER
        self._stopped = False
        self.thread = threading.Thread(target=self._run, name="jetsync-service-limits", daemon=True)
        start(self.thread)

    def add(self, work: Limited) -> None:
        """
        Begin to watch *work*.
        """
        self._running[id(work)] = work
        if work.ends < self._wakes:
            with self._lock:
                self._changed.notify()

    def remove(self, work: Limited) -> None:
        """
        Watch *work* no more.
        """
        self._running.pop(id(work), None)

    def stop(self) -> None:
        """
        End the thread.
        """
        with self._lock:
            self._stopped = True
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._lock:
                if self._stopped:
                    return
                # Before the look at what runs, see above.
                self._wakes = NEVER
                running = list(self._running.values())
                self._wakes = earliest = min((work.ends for work in running), default=NEVER)
                now = time.monotonic()
                if earliest > now:
                    self._changed.wait(None if earliest == NEVER else earliest - now)
                    continue
            for work in running:
                if work.ends <= now:
                    self.remove(work)
                    work.expire()
