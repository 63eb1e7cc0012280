"""
Time that jetsync does not wait for: a wait that brings nothing moves its clock instead.

The length of a call is then the sum of its waits, however busy the machine is. It is exact, and a
test does not spend it.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import pkgutil
import queue
import select
import sys
import threading
import time
from typing import TYPE_CHECKING

import jetsync
from jetsync._io import bridge

if TYPE_CHECKING:
    import asyncio

SLICE = 0.004
"""Seconds for which a wait is real before it may be skipped."""

TURNS = 3
"""
How often an event loop has to turn before a wait for it may be skipped.

It takes a call in the first one, begins it in the second, and the third shows that it has ended or
waits itself.
"""

PATIENCE = 30.0
"""
Seconds to wait for threads that neither wait nor end, as on a busy machine.

All waits after a `skip` have them together, so that a defect makes a test fail and not hang.
"""

LONGEST_END = 60.0
"""Seconds for a thread to end while its waits are skipped."""

STEP = 1e-6
"""Seconds between two looks at the clock, so that a loop that only looks at it ends."""

MANY = 1000
"""Looks at the clock after which the step has doubled, so that such a loop ends soon."""

OUTSIDE = {"__main__", "cli", "devserver", "testing"}
"""The packages and modules whose waits stay real."""


class SkippedTime:
    """
    Stands for ``time``, ``threading``, ``queue`` and ``select`` in the modules of jetsync.

    Use it before the client is made, because locks are made with the objects that they guard. Waits
    are skipped between `skip` and the end of `measuring`. The event loop of a connection keeps to
    the real time.
    """

    def __init__(self) -> None:
        self._skipping = False
        # How far this clock is ahead of the real one; while it skips, what it shows instead of it.
        self._ahead = self._shown = self._begin = 0.0
        # Until when waits are patient, in real time.
        self._patient_until = 0.0
        self._steps = itertools.count(1)
        # The threads that wait, and when their waits end; and all threads that have waited.
        self._ends: dict[threading.Thread, float] = {}
        self._threads: set[threading.Thread] = set()
        # The thread of which one wait is interrupted, and how many waits there are up to it.
        self._victim: threading.Thread | None = None
        self._left = 0

    def install(self, monkeypatch) -> None:
        """Replace the modules for which this stands in those of jetsync."""
        for found in pkgutil.iter_modules(jetsync.__path__):
            if found.name not in OUTSIDE:
                import_all(f"jetsync.{found.name}")
        ours = {
            time: _Times(self),
            threading: _Threads(self),
            queue: _Queues(self),
            select: _Polls(self),
        }
        for name, module in list(sys.modules.items()):
            if name.startswith("jetsync.") and name.split(".")[1] not in OUTSIDE:
                for real, replacement in ours.items():
                    if getattr(module, real.__name__, None) is real:
                        monkeypatch.setattr(module, real.__name__, replacement)

    def monotonic(self) -> float:
        """Return the time: the real one and all that was skipped, or a clock that stands still."""
        # No lock: finalizers may ask for the time at any moment.
        if self._skipping:
            looks = next(self._steps)
            return self._shown + STEP * looks * (1.0 + looks / MANY)
        return time.monotonic() + self._ahead

    @contextlib.contextmanager
    def measuring(self):
        """
        Yield a function that returns the seconds since `skip`; the waits are real again afterwards.

        This thread is taken to be busy unless it waits, so that others do not skip ahead of it.
        """
        me = threading.current_thread()
        self._threads.add(me)
        try:
            yield lambda: self.monotonic() - self._begin if self._skipping else 0.0
        finally:
            self._ahead = max(self._ahead, self.monotonic() - time.monotonic())
            self._skipping = False
            self._threads.discard(me)

    def skip(self, seconds: float = 0.0) -> None:
        """Let the clock stand still except for waits, after *seconds* have passed; any thread."""
        self._begin = self.monotonic()
        self._shown = self._begin + seconds
        self._steps = itertools.count(1)
        self._patient_until = time.monotonic() + PATIENCE
        self._skipping = True

    def end(self, thread: threading.Thread) -> None:
        """Wait until a thread ends, and skip its waits meanwhile."""
        self._threads.discard(threading.current_thread())
        thread.join(LONGEST_END)
        assert not thread.is_alive(), f"{thread.name} has not ended"

    def interrupt_wait(self, number: int) -> None:
        """
        Raise KeyboardInterrupt in one of the next waits of this thread, counted from 1.

        So does Ctrl-C in the system call of the wait.
        """
        self._left = number
        self._victim = threading.current_thread()

    def forget_interrupt(self) -> bool:
        """Return whether `interrupt_wait` has raised; if not, it will not."""
        victim, self._victim = self._victim, None
        return victim is None

    def waits(self, thread: threading.Thread) -> bool:
        """Return whether a thread waits."""
        return thread in self._ends

    def wait(self, seconds: float, attempt):
        """
        Return what *attempt* returns once that is true, or at the end of the wait.

        Args:
            seconds: How long to wait, on this clock.
            attempt: Waits up to a number of real seconds.
        """
        me = threading.current_thread()
        if me.name.startswith("jetsync-io"):
            return attempt(seconds)
        came = attempt(0.0)
        if came or seconds <= 0.0:
            return came
        if me is self._victim:
            self._left -= 1
            if not self._left:
                self._victim = None
                raise KeyboardInterrupt
        end = self.monotonic() + seconds
        outer = self._ends.get(me)
        self._threads.add(me)
        self._ends[me] = end
        loops = _LoopTurns()
        try:
            while True:
                came = attempt(min(SLICE, seconds))
                if came or self.monotonic() >= end:
                    return came
                is_next = loops.are_over() and self._is_next(me)
                if self._skipping and (is_next or time.monotonic() > self._patient_until):
                    self._shown = max(self._shown, end)
        finally:
            # A signal handler may wait inside a wait.
            if outer is None:
                del self._ends[me]
            else:
                self._ends[me] = outer

    def _is_next(self, me: threading.Thread) -> bool:
        """Return whether all other threads wait too, and none of their waits ends earlier."""
        ends = dict(self._ends)
        threads = [thread for thread in self._threads.copy() if thread.is_alive()]
        return all(ends.get(thread, 0.0) >= ends[me] for thread in threads)


def import_all(name: str) -> None:
    """Import a module, and all modules of a package."""
    module = importlib.import_module(name)
    for found in pkgutil.iter_modules(getattr(module, "__path__", [])):
        import_all(f"{name}.{found.name}")


class _LoopTurns:
    """
    Whether the event loops have done what they were asked to do before a wait; one thread.

    On a busy machine a loop may not run for longer than `SLICE`.
    """

    def __init__(self) -> None:
        self._pending: set[asyncio.AbstractEventLoop] | None = None

    def are_over(self) -> bool:
        """Return whether each loop has turned `TURNS` times since the first call."""
        if self._pending is None:
            self._pending = {each._loop for each in list(bridge._live) if each._loop is not None}
            for loop in self._pending.copy():
                self._turn(loop, TURNS)
        return not self._pending

    def _turn(self, loop: asyncio.AbstractEventLoop, left: int) -> None:
        try:
            if not left:
                self._pending.discard(loop)
            else:
                loop.call_soon_threadsafe(self._turn, loop, left - 1)
        except RuntimeError:  # The loop is closed.
            self._pending.discard(loop)


class _Module:
    """A module with some names of our own."""

    def __init__(self, module) -> None:
        self._module = module

    def __getattr__(self, name: str) -> object:
        return getattr(self._module, name)


class _Times(_Module):
    def __init__(self, clock: SkippedTime) -> None:
        super().__init__(time)
        self.monotonic = clock.monotonic
        self._clock = clock

    def sleep(self, seconds: float) -> None:
        self._clock.wait(seconds, time.sleep)


class _Threads(_Module):
    def __init__(self, clock: SkippedTime) -> None:
        super().__init__(threading)

        class Lock:
            def __init__(self) -> None:
                self._real = threading.Lock()
                self.release = self._real.release
                self.locked = self._real.locked
                self.__exit__ = self._real.__exit__

            def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
                return acquire(self._real.acquire, blocking, timeout)

            def __enter__(self) -> bool:
                return self.acquire()

            def __exit__(self, *_: object) -> None:
                self.release()

        class RLock(type(threading.RLock())):
            def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
                return acquire(super().acquire, blocking, timeout)

        class Event(threading.Event):
            def wait(self, timeout: float | None = None) -> bool:
                return clock.wait(
                    threading.TIMEOUT_MAX if timeout is None else timeout, super().wait
                )

        class Thread(threading.Thread):
            def join(self, timeout: float | None = None) -> None:
                def join(seconds: float) -> bool:
                    threading.Thread.join(self, seconds)
                    return not self.is_alive()

                clock.wait(threading.TIMEOUT_MAX if timeout is None else timeout, join)

        def acquire(real, blocking: bool, timeout: float) -> bool:
            if not blocking:
                return real(False)
            if timeout < 0:
                timeout = threading.TIMEOUT_MAX
            return clock.wait(timeout, lambda seconds: real(True, seconds))

        self.Lock, self.RLock, self.Event, self.Thread = Lock, RLock, Event, Thread


class _Queues(_Module):
    def __init__(self, clock: SkippedTime) -> None:
        super().__init__(queue)

        class SimpleQueue(queue.SimpleQueue):
            def get(self, block: bool = True, timeout: float | None = None) -> object:
                take = super().get

                def attempt(seconds: float) -> list[object]:
                    with contextlib.suppress(queue.Empty):
                        return [take(timeout=seconds)]
                    return []

                if not block or timeout is None:
                    return take(block)
                for item in clock.wait(timeout, attempt):
                    return item
                raise queue.Empty

        self.SimpleQueue = SimpleQueue


class _Polls(_Module):
    def __init__(self, clock: SkippedTime) -> None:
        super().__init__(select)

        class Poll:
            def __init__(self) -> None:
                self._real = select.poll()
                self.register = self._real.register

            def poll(self, milliseconds: float) -> list[tuple[int, int]]:
                return clock.wait(
                    milliseconds / 1000.0, lambda seconds: self._real.poll(seconds * 1000.0)
                )

        self.poll = Poll
