"""
Turns: who may use a handle, and what a signal handler may do meanwhile.
"""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import jetsync
from helpers.interrupts import handled_at, interrupted_at, is_locked, steps_of
from jetsync._base import turn as turns
from jetsync._base.deadline import FOREVER, Deadline
from jetsync._base.locks import short_lock
from jetsync._base.turn import Turn, is_inside, outside, refuse_inside, refuse_request, waiting

STRESS = Path(__file__).parents[1] / "helpers" / "turn_stress.py"


class TestRun:
    def test_the_result_and_the_arguments(self):
        """
        The result and the errors of the work reach the caller, and the turn is free afterwards.
        """
        turn = Turn()
        assert turn.run(FOREVER, divmod, 7, 2) == (3, 1)
        with pytest.raises(ZeroDivisionError):
            turn.run(FOREVER, divmod, 7, 0)
        assert not is_locked(turn._lock)
        assert not is_inside()

    def test_the_deadline(self):
        """
        A wait for the turn ends by its deadline, with an error that says what was waited for.
        """
        turn = Turn("the test")

        def held():
            assert pool.submit(turn.attempt, bool).result(5) is False
            return pool.submit(turn.run, Deadline.after(0.01), bool).exception(5)

        error = jetsync.WaitTimeoutError
        with ThreadPoolExecutor(1) as pool:
            late = turn.run(FOREVER, held)
        assert isinstance(late, error)
        assert "the test" in str(late)

    def test_another_thread_waits(self):
        """
        A thread that waits for the turn gets it when the other thread leaves.
        """
        turn, entered = Turn(), threading.Event()

        def held():
            waiting = pool.submit(turn.run, FOREVER, entered.set)
            assert not entered.is_set()
            return waiting

        with ThreadPoolExecutor(1) as pool:
            turn.run(FOREVER, held).result(5)
        assert entered.is_set()

    def test_a_long_wait_is_many_short_ones(self, monkeypatch):
        """
        A signal does not end the wait for a lock on Windows, so no wait is long.
        """
        monkeypatch.setattr(turns, "SIGNAL_CHECK", 0.001)
        turn, waits = Turn(), []

        class Counted(Deadline):
            def expired(self):
                waits.append(1)
                if len(waits) == 3:
                    left.set()
                return super().expired()

        left = threading.Event()
        with ThreadPoolExecutor(1) as pool:
            until = Counted(Deadline.after(30).at, 30)

            def held():
                waiting = pool.submit(turn.run, until, bool, 1)
                assert left.wait(10)
                return waiting

            assert turn.run(FOREVER, held).result(10)

    @pytest.mark.parametrize("work", [lambda: len(""), lambda: int("")], ids=["returns", "raises"])
    @pytest.mark.parametrize("tries", [False, True])
    def test_ctrl_c_at_any_step(self, work, tries):
        """
        Ctrl-C at any step leaves the turn free, and the thread outside.
        """

        def use():
            with contextlib.suppress(ValueError):
                turn.attempt(work) if tries else turn.run(FOREVER, work)

        step, ended = 0, False
        while not ended:
            step += 1
            turn = Turn()
            ended = interrupted_at(step, use)
            assert not is_locked(turn._lock), step
            assert not is_inside(), step
        assert step > 3


class TestSignalHandlers:
    def inside(self, handler):
        """
        Run a handler in the middle of the three kinds of calls.
        """
        turn = Turn()
        for call in (
            lambda: turn.run(FOREVER, handler),
            lambda: waiting(handler),
            lambda: turn.run(FOREVER, lambda: waiting(handler)),
        ):
            call()
        return turn

    def test_a_call_that_waits_is_refused(self):
        """
        Inside a call, a handler can neither use a handle, nor wait for another thread.
        """
        refused = []

        def handler():
            for call in (lambda: Turn().run(FOREVER, bool), refuse_inside):
                with pytest.raises(jetsync.CallInSignalHandlerError):
                    call()
                refused.append(1)

        self.inside(handler)
        assert len(refused) == 6

    def test_no_request_inside_a_wait(self):
        """
        A handler that interrupted a wait waits for no answer.
        """

        def handler():
            for call in (refuse_request, lambda: waiting(bool)):
                with pytest.raises(jetsync.CallInSignalHandlerError):
                    call()
            return True

        assert waiting(handler)
        assert Turn().run(FOREVER, waiting, handler)

    def test_a_call_that_never_waits_may_try(self):
        """
        A handler may try a free turn without waiting, but not that of the interrupted call.
        """
        turn, free = Turn(), Turn()

        def handler():
            assert free.attempt(bool)
            assert not turn.attempt(bool)
            return True

        assert turn.run(FOREVER, handler)
        assert turn.run(FOREVER, waiting, handler)

    def test_the_mark_after_an_inner_call(self):
        """
        After an inner call, the outer one is still marked.
        """

        def outer():
            assert Turn().attempt(bool)
            waiting(bool)
            with pytest.raises(jetsync.CallInSignalHandlerError):
                refuse_inside()
            return True

        assert Turn().run(FOREVER, outer)
        assert not is_inside()

    def test_each_step_of_a_call_that_waits(self):
        """
        The mark is right at each step of a call in a turn, also around its waits.
        """
        turn = Turn()

        def work():
            waiting(bool)
            return turn.owned()

        for step in range(1, steps_of(lambda: turn.run(FOREVER, work)) + 1):
            seen = []
            handled_at(
                step,
                lambda: turn.run(FOREVER, work),
                lambda seen=seen: seen.append((turn.owned(), is_inside())),
            )
            assert all(inside == owned for owned, inside in seen), step

    def test_at_any_step(self):
        """
        Whatever step a handler interrupts, its call either works or is refused at once.
        """
        step, ended, outcomes = 0, False, set()

        def handler():
            try:
                turn.run(FOREVER, bool)
                outcomes.add("works")
            except jetsync.CallInSignalHandlerError:
                outcomes.add("refused")

        while not ended:
            step += 1
            turn = Turn()
            ended, result = handled_at(step, lambda: turn.run(FOREVER, max, 1, 2), handler)  # noqa: B023
            assert result == 2
            assert not is_locked(turn._lock)
        assert outcomes == {"works", "refused"}

    def test_a_short_lock_counts(self):
        """
        A handler that interrupted the holder of a short lock waits for no turn and no thread.
        """
        turn = Turn()

        def held():
            with short_lock():
                for call in (refuse_inside, lambda: turn.run(Deadline.after(30), bool)):
                    with pytest.raises(jetsync.CallInSignalHandlerError):
                        call()
                assert not turn.attempt(bool)
            return True

        with ThreadPoolExecutor(1) as pool:
            assert turn.run(FOREVER, lambda: pool.submit(held).result(5))

    def test_a_free_turn_is_taken_under_a_short_lock(self):
        """
        A call that holds a short lock takes a free turn, because it does not wait for it.
        """
        with short_lock():
            assert Turn().run(FOREVER, bool, 1)

    @pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="there are no timers with signals")
    @pytest.mark.parametrize(
        "interrupts", [2_000, pytest.param(40_000, marks=pytest.mark.thorough)]
    )
    def test_at_random_moments(self, interrupts):
        """
        Signals at random moments find the right mark each time, and leave no turn taken.
        """
        done = subprocess.run(
            [sys.executable, STRESS, str(interrupts), "200"],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.stderr == ""
        result = json.loads(done.stdout)
        assert result["wrong"] == []
        assert result["rival"]
        assert all(result["seen"].values())


class TestOutside:
    def test_code_of_the_application(self):
        """
        A hook inside a call may use other handles, wait, and have other threads use them.
        """
        turn, other = Turn(), Turn()

        def hook(number):
            assert not is_inside()
            refuse_inside()
            waiting(bool)
            return other.run(FOREVER, divmod, number, 2)

        assert turn.run(FOREVER, outside, hook, 7) == (3, 1)

    def test_the_own_handle(self):
        """
        A hook that uses the handle that calls it gets an error that says so.
        """
        turn = Turn("another call on the test")

        def hook():
            with pytest.raises(jetsync.ConflictingUseError, match="call on the test"):
                turn.run(FOREVER, bool)
            return not turn.attempt(bool)

        assert turn.run(FOREVER, outside, hook)

    @pytest.mark.parametrize("work", [lambda: len(""), lambda: int("")], ids=["returns", "raises"])
    def test_ctrl_c_at_any_step(self, work):
        """
        After Ctrl-C at any step of a hook, the call that made it is marked until it ends.
        """
        seen = []

        def call():
            try:
                outside(work)
            except ValueError:
                pass
            finally:
                seen.append(is_inside())

        step, ended = 0, False
        while not ended:
            step += 1
            turn = Turn()
            ended = interrupted_at(step, lambda: turn.run(FOREVER, call))  # noqa: B023
            assert not is_locked(turn._lock), step
            assert not is_inside(), step
        assert step > 4
        assert seen[-1]
