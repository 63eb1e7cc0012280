from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import os
import subprocess
import sys
import textwrap
import threading
import time
import warnings

import pytest

from helpers.interrupts import interrupted_at
from helpers.waiting import eventually
from jetsync._base.deadline import Deadline
from jetsync._base.locks import Latch, Signal
from jetsync._io import bridge as _bridge
from jetsync._io.bridge import EXIT_BUDGET, Bridge
from jetsync.errors import (
    ConfigurationError,
    ConnectionClosedError,
    ForkedProcessError,
    WaitTimeoutError,
)

LONG = 10.0


def soon(seconds=LONG):
    """A deadline."""
    return Deadline.after(seconds)


def nothing(*_):
    """Do nothing at exit or fork."""


async def answer(value):
    """Return the argument."""
    return value


async def for_ever():
    """Never return."""
    await asyncio.Event().wait()


@pytest.fixture
def bridge():
    """A bridge that runs."""
    bridge = Bridge("asyncio")
    bridge.start(nothing, nothing, soon())
    yield bridge
    bridge.stop(LONG)
    assert not bridge._thread.is_alive()


class Endless:
    """A coroutine that never ends, and records its start and its cancellation."""

    def __init__(self):
        self.began, self.cancelled = threading.Event(), threading.Event()

    async def __call__(self):
        self.began.set()
        try:
            await for_ever()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise


class TestLife:
    def test_start_and_stop(self):
        """The thread is a daemon. It runs after start and has ended after stop."""
        bridge = Bridge("asyncio")
        bridge.start(nothing, nothing, soon())
        assert bridge._thread.is_alive()
        assert bridge._thread.daemon
        assert repr(bridge) == f"<Bridge {bridge._thread.name} running uvloop=False>"
        bridge.stop(LONG)
        bridge.stop(LONG)
        assert not bridge._thread.is_alive()
        assert repr(bridge) == f"<Bridge {bridge._thread.name} stopped uvloop=False>"
        with pytest.raises(ConnectionClosedError):
            bridge.call(answer, 1, deadline=soon())

    def test_stop_cancels(self):
        """Stopping the bridge cancels running coroutines and wakes their callers."""
        bridge, endless = Bridge("asyncio"), Endless()
        bridge.start(nothing, nothing, soon())
        with pytest.raises(WaitTimeoutError):
            bridge.call(endless, deadline=soon(0.01))
        other = Endless()
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            call = pool.submit(bridge.call, other, deadline=soon())
            assert other.began.wait(LONG)
            bridge.stop(LONG)
            assert isinstance(call.exception(LONG), ConnectionClosedError)
        assert other.cancelled.is_set()

    def test_each_thread_of_a_bridge_has_its_own_name(self):
        """Each thread has its own name, so that stacks can be assigned to clients."""
        names = [Bridge("asyncio")._thread.name for _ in range(2)]
        assert len(set(names)) == 2
        assert all(name.startswith("jetsync-io-") for name in names)

    def test_the_default_loop_is_not_used(self, monkeypatch):
        """The loop can watch sockets, which the default loop of Windows cannot."""
        monkeypatch.setattr(asyncio.events, "new_event_loop", asyncio.AbstractEventLoop)
        bridge = Bridge("asyncio")
        try:
            bridge.start(nothing, nothing, soon())
            assert isinstance(bridge._loop, asyncio.SelectorEventLoop)
        finally:
            bridge.stop(LONG)

    def test_ctrl_c_at_any_step_of_a_start(self):
        """After Ctrl-C at any step of the start, a stop ends the thread."""
        step, ended = 0, False
        while not ended:
            step += 1
            bridge = Bridge("asyncio")
            deadline = soon()
            ended = interrupted_at(step, lambda: bridge.start(nothing, nothing, deadline))  # noqa: B023
            bridge.stop(LONG)
            eventually(lambda: not bridge._thread.is_alive())  # noqa: B023
            assert bridge not in _bridge._live
        assert step > 5

    def test_failed_start(self, monkeypatch):
        """If the loop cannot run, start raises the reason."""

        def run(*_, **__):
            raise OSError("no file descriptors left")

        monkeypatch.setattr(_bridge.anyio, "run", run)
        bridge = Bridge("asyncio")
        with pytest.raises(OSError, match="no file descriptors left"):
            bridge.start(nothing, nothing, soon())
        assert bridge not in _bridge._live


class TestLoop:
    def test_uvloop_is_used_unless_asyncio_is_asked_for(self, monkeypatch):
        """The bridge uses uvloop if it is installed, unless the caller asks for asyncio."""
        monkeypatch.setattr(_bridge.importlib.util, "find_spec", lambda _: object())
        assert [Bridge(loop)._use_uvloop for loop in ("auto", "asyncio", "uvloop")] == [
            True,
            False,
            True,
        ]
        monkeypatch.setattr(_bridge.importlib.util, "find_spec", lambda _: None)
        assert not Bridge("auto")._use_uvloop
        with pytest.raises(ConfigurationError, match="uvloop"):
            Bridge("uvloop")

    def test_replaced_threads(self, monkeypatch):
        """Without real threads, as under gevent, the bridge uses asyncio's loop."""
        pytest.importorskip("uvloop")
        monkeypatch.setattr(_bridge._thread, "start_new_thread", lambda *_: None)
        assert not Bridge("auto")._use_uvloop
        with pytest.raises(ConfigurationError, match="gevent"):
            Bridge("uvloop")

    def test_the_bridge_uses_the_chosen_loop(self):
        """The bridge uses the loop that was chosen."""
        uvloop = pytest.importorskip("uvloop")

        async def loop():
            return asyncio.get_running_loop()

        bridge = Bridge("uvloop")
        bridge.start(nothing, nothing, soon())
        try:
            assert isinstance(bridge.call(loop, deadline=soon()), uvloop.Loop)
        finally:
            bridge.stop(LONG)

    def test_errors_are_logged(self, bridge, caplog, capfd):
        """Errors in callbacks of the loop are logged, and nothing is written to stderr."""

        def fail():
            raise ValueError("in a callback")

        async def schedule():
            asyncio.get_running_loop().call_soon(fail)
            await asyncio.sleep(0)
            await asyncio.sleep(0)

        bridge.call(schedule, deadline=soon())
        assert "bridge.loop_error" in caplog.text
        assert "in a callback" in caplog.text
        assert capfd.readouterr().err == ""


class TestCall:
    def test_a_call_returns_what_the_coroutine_returns(self, bridge):
        """A call runs in the thread and returns what the coroutine returns."""

        async def where(*values):
            return threading.current_thread(), values

        assert bridge.call(where, 1, 2, deadline=soon()) == (bridge._thread, (1, 2))

    @pytest.mark.parametrize("error", [ValueError("x"), TimeoutError("mine"), KeyError("k")])
    def test_an_error_of_a_coroutine_is_raised_unchanged(self, bridge, error):
        """An error of the coroutine is raised unchanged, including its own timeout."""

        async def fail():
            raise error

        with pytest.raises(type(error)) as caught:
            bridge.call(fail, deadline=soon())
        assert caught.value is error

    def test_a_call_of_the_bridge_ends_at_its_deadline(self, bridge):
        """A call ends at its deadline and cancels the coroutine."""
        endless = Endless()
        started = time.monotonic()
        with pytest.raises(WaitTimeoutError) as caught:
            bridge.call(endless, deadline=soon(0.03))
        assert 0.03 <= time.monotonic() - started < LONG
        assert caught.value.timeout == 0.03
        assert endless.cancelled.wait(LONG)
        assert bridge.call(answer, 5, deadline=soon()) == 5

    def test_deadline_that_is_over(self, bridge):
        """A coroutine starts even if no time is left, so that it can clean up."""
        endless = Endless()
        with pytest.raises(WaitTimeoutError):
            bridge.call(endless, deadline=soon(0))
        assert endless.cancelled.wait(LONG)

    def test_answer_at_the_deadline(self, bridge, monkeypatch):
        """An answer that arrives exactly at the deadline is returned."""

        class Late(Signal):
            def wait(self, timeout):
                super().wait(LONG)
                return False

        monkeypatch.setattr(_bridge, "Signal", Late)
        assert bridge.call(answer, 5, deadline=soon()) == 5

    def test_an_interrupted_caller_cancels_its_coroutine(self, bridge, monkeypatch):
        """A caller that is interrupted cancels its coroutine."""
        endless = Endless()

        class Interrupted(Latch):
            def wait(self, timeout):
                assert endless.began.wait(LONG)
                raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(_bridge, "Latch", Interrupted)
            with pytest.raises(KeyboardInterrupt):
                bridge.call(endless, deadline=soon())
        assert endless.cancelled.wait(LONG)
        assert bridge.call(answer, 5, deadline=soon()) == 5

    def test_an_error_of_a_spawned_coroutine_is_logged(self, bridge, caplog):
        """A coroutine may be started without waiting for it, and its error is logged."""
        endless, failing = Endless(), Endless()

        async def fail():
            failing.began.set()
            raise ValueError("in no call")

        bridge.spawn(fail)
        bridge.spawn(endless)
        assert failing.began.wait(LONG)
        assert endless.began.wait(LONG)
        bridge.stop(LONG)
        assert endless.cancelled.is_set()
        (record,) = caplog.records
        assert record.event == "bridge.loop_error"
        assert str(record.exc_info[1]) == "in no call"
        bridge.spawn(endless)

    def test_many_threads_may_call_the_bridge_at_once(self, bridge):
        """Any number of threads may make calls at the same time."""
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            calls = [
                pool.submit(bridge.call, answer, number, deadline=soon()) for number in range(200)
            ]
            assert [call.result(LONG) for call in calls] == list(range(200))

    def test_a_task_that_never_took_a_step_does_not_keep_its_caller(self, bridge):
        """
        A call ends when the loop ends, even if its task was cancelled before its first step.
        """

        async def begin():
            call = _bridge._Call(for_ever, ())
            bridge._calls.add(call)
            bridge._begin(call)
            call.task.cancel()
            return call

        call = bridge.call(begin, deadline=soon())
        bridge.stop(LONG)
        assert call.over.wait(LONG)
        assert isinstance(call.error, ConnectionClosedError)


class TestExit:
    def test_forgotten_ones_are_closed(self, bridge, monkeypatch):
        """At exit, each running bridge closes, and all of them share one budget."""
        budgets = []
        other, stopped = Bridge("asyncio"), Bridge("asyncio")

        def fail(_):
            raise ValueError("cannot close")

        monkeypatch.setattr(bridge, "_at_exit", budgets.append)
        for one in (other, stopped):
            one.start(fail if one is other else budgets.append, nothing, soon())
        stopped.stop(LONG)
        _bridge._close_at_exit()
        other.stop(LONG)
        assert len(budgets) == 1
        assert 0 < budgets[0] <= EXIT_BUDGET

    def test_forgotten_is_freed(self):
        """The list of bridges to close at exit does not keep an unreferenced bridge alive."""
        before = len(_bridge._live)
        bridge = Bridge("asyncio")
        bridge.start(nothing, nothing, soon())
        assert len(_bridge._live) == before + 1
        bridge.stop(LONG)
        del bridge
        gc.collect()
        assert len(_bridge._live) == before

    def test_program_ends(self):
        """A program that never stops its bridge ends at once and silently, after closing."""
        program = """
            import asyncio
            from jetsync._io.bridge import Bridge
            from jetsync._base.deadline import Deadline

            async def for_ever():
                await asyncio.Event().wait()

            def close(budget):
                bridge.call(asyncio.sleep, 0, deadline=Deadline.after(budget))
                print("closed")

            bridge = Bridge("asyncio")
            bridge.start(close, lambda: None, Deadline.after(10.0))
            bridge.spawn(for_ever)
        """
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(program)],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, "closed\n", "")


def in_child(function):
    """Fork, call a function in the child, and return the text that it returns there."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        # The warning is about threads, and the test checks that the child has none.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if not pid:
        try:
            text = function()
        except BaseException as error:  # noqa: BLE001 - reported to the parent.
            text = repr(error)
        os.write(writing, text.encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as file:
        text = file.read()
    os.waitpid(pid, 0)
    return text


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
class TestFork:
    def test_a_bridge_in_a_forked_child_raises_at_once(self, bridge):
        """The child's copy raises ForkedProcessError at once, without waiting."""

        def child():
            assert bridge.forked
            assert "forked" in repr(bridge)
            try:
                bridge.call(answer, 1, deadline=soon())
            except ForkedProcessError as error:
                bridge.stop(LONG)
                _bridge._close_at_exit()
                return str(error)
            return "it worked"

        assert in_child(child) == str(ForkedProcessError())
        assert not bridge.forked
        assert bridge.call(answer, 1, deadline=soon()) == 1

    def test_owner_is_called(self, bridge):
        """The fork calls the owner in the child, and not in the parent."""
        told = []
        bridge._at_fork = lambda: told.append(os.getpid())

        def child():
            return str(told == [os.getpid()])

        assert in_child(child) == "True"
        assert told == []

    def test_stopped_ones(self):
        """A fork ignores a bridge that was stopped before."""
        bridge = Bridge("asyncio")
        bridge.start(nothing, nothing, soon())
        bridge.stop(LONG)
        assert in_child(lambda: str(bridge.forked)) == "False"

    def test_new_one_in_the_child(self, bridge):
        """The child may start its own bridge."""

        def child():
            own = Bridge("asyncio")
            own.start(nothing, nothing, soon())
            found = own.call(answer, "works", deadline=soon())
            own.stop(LONG)
            return found

        assert in_child(child) == "works"
