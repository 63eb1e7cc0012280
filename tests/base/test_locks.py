"""
Locks and latches that a signal handler may meet.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from interrupts import handled_at, interrupted_at, is_locked
from waiting import eventually

import jetsync
from jetsync._base import locks
from jetsync._base.deadline import Deadline
from jetsync._base.locks import Latch, Locked, refuse_reentry


class TestRefuseReentry:
    def test_the_owner(self):
        """
        Only the thread that holds the lock is refused; others wait.
        """
        lock = threading.RLock()
        refuse_reentry(lock)
        with lock:
            with pytest.raises(jetsync.CallInSignalHandlerError):
                refuse_reentry(lock)
            with ThreadPoolExecutor(1) as pool:
                pool.submit(refuse_reentry, lock).result(5)
        refuse_reentry(lock)

    def test_a_turn(self):
        """
        A thread that asks for its own turn again is refused at once, and keeps the turn.
        """
        lock = threading.RLock()
        with Locked(lock, Deadline.after(5)):
            with pytest.raises(jetsync.CallInSignalHandlerError), Locked(lock, Deadline.after(5)):
                pass
            with ThreadPoolExecutor(1) as pool:
                assert not pool.submit(lock.acquire, blocking=False).result(5)
        assert "unlocked" in repr(lock)

    def test_seconds(self):
        """
        A context manager with seconds is reusable, and waits that long each time.
        """
        locked = Locked(threading.RLock(), 0.1, "the test")
        for _ in range(2):
            with locked, ThreadPoolExecutor(1) as pool:
                error = pool.submit(locked.__enter__).exception(5)
                assert isinstance(error, jetsync.WaitTimeoutError)
                assert "the test" in str(error)

    def test_ctrl_c_in_a_turn(self):
        """
        Ctrl-C at any step of taking or returning a turn leaves the lock free.
        """

        def use(lock):
            with Locked(lock, Deadline.after(5)):
                pass

        step, ended = 0, False
        while not ended:
            step += 1
            lock = threading.RLock()
            ended = interrupted_at(step, lambda: use(lock))  # noqa: B023
            assert not is_locked(lock), step


class TestLatch:
    def test_wakes_all(self):
        """
        All waiting threads are woken, and later waits return at once.
        """
        latch = Latch()
        assert not latch.wait(0)
        with ThreadPoolExecutor(3) as pool:
            waits = [pool.submit(latch.wait, 10) for _ in range(3)]
            eventually(lambda: len(latch._waiting) == 3)
            latch.set()
            assert all(wait.result(5) for wait in waits)
        latch.set()
        assert latch.is_set()
        assert latch.wait()

    def test_waits_in_steps(self, monkeypatch):
        """
        A long wait consists of short ones, so that Python can run signal handlers in between.
        """
        monkeypatch.setattr(locks, "SIGNAL_CHECK", 0.01)
        latch = Latch()
        begin = time.monotonic()
        assert not latch.wait(0.05)
        assert time.monotonic() - begin >= 0.05
        with ThreadPoolExecutor(1) as pool:
            wait = pool.submit(latch.wait)
            eventually(lambda: latch._waiting)
            assert not wait.done()
            latch.set()
            assert wait.result(5)
        assert not latch._waiting

    @pytest.mark.parametrize("inner", ["set", "wait"])
    @pytest.mark.parametrize("outer", ["set", "wait"])
    def test_in_a_signal_handler(self, outer, inner):
        """
        A signal handler may set it and wait for it, whatever call the handler interrupts.
        """
        calls = {"set": lambda latch: latch.set(), "wait": lambda latch: latch.wait(0.001)}
        ended, step = False, 0
        while not ended:
            step += 1
            latch = Latch()
            with ThreadPoolExecutor(1) as pool:
                waiting = pool.submit(latch.wait, 10)
                eventually(lambda: latch._waiting)  # noqa: B023
                ended, _ = handled_at(
                    step,
                    lambda: calls[outer](latch),  # noqa: B023
                    lambda: calls[inner](latch),  # noqa: B023
                )
                latch.set()
                assert waiting.result(5)
            assert not latch._waiting
        assert step > 2

    def test_ctrl_c(self):
        """
        An interrupted wait leaves no state in the latch.
        """
        latch, step, ended = Latch(), 0, False
        while not ended:
            step += 1
            ended = interrupted_at(step, lambda: latch.wait(0.001))
        assert not latch._waiting
