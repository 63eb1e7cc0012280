from __future__ import annotations

import contextlib
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec, module_from_spec
from types import SimpleNamespace

import pytest

from jetsync._base import deadline, stop_signal
from jetsync._base.stop_signal import STOP_SIGNALS, StopSignal
from jetsync.errors import ConflictingUseError, InvalidArgumentError

SIGNALS = (signal.SIGTERM, signal.SIGINT)


@pytest.fixture
def calls():
    """
    The calls that a block has made, in order.
    """
    return []


@pytest.fixture
def block(calls):
    """
    A factory of a block that records its calls.
    """

    def block(exit_code=None, timeout=600.0):
        return StopSignal(
            SIGNALS,
            exit_code,
            timeout,
            on_change=calls.append,
            on_timeout=lambda: calls.append("late"),
            on_end=lambda seconds: calls.append("end"),
        )

    return block


@pytest.fixture(autouse=True)
def clock(monkeypatch, calls):
    """
    The time of deadlines, which a test moves.
    """

    def sleep(seconds):
        calls.append(f"slept {seconds:g}")
        clock.now += seconds

    clock = SimpleNamespace(now=1000.0, monotonic=lambda: clock.now, sleep=sleep)
    for module in (deadline, stop_signal):
        monkeypatch.setattr(module, "time", clock)
    return clock


@pytest.fixture(autouse=True)
def _restored():
    """
    Each block restores the handlers that were there before.
    """
    before = [signal.getsignal(number) for number in SIGNALS]
    yield
    assert [signal.getsignal(number) for number in SIGNALS] == before


def test_the_default_signals():
    """
    The default is SIGTERM and SIGINT, and Ctrl-Break where it exists.
    """
    windows = [signal.SIGBREAK] if hasattr(signal, "SIGBREAK") else []
    assert [signal.SIGTERM, signal.SIGINT, *windows] == [*STOP_SIGNALS]


def test_ctrl_break_is_a_default_signal_where_it_exists(monkeypatch):
    """
    On Windows, Ctrl-Break ends a program, too.
    """
    monkeypatch.setattr(signal, "SIGBREAK", 21, raising=False)
    spec = find_spec("jetsync._base.stop_signal")
    copy = module_from_spec(spec)
    spec.loader.exec_module(copy)
    assert copy.STOP_SIGNALS == (signal.SIGTERM, signal.SIGINT, 21)


def test_without_a_signal(block, calls):
    """
    Nothing happens at the end of the block.
    """
    with block() as stop:
        assert (stop.signal, stop.is_set(), stop.wait(timeout=0.0)) == (None, False, False)
        assert repr(stop) == "<StopSignal waits for SIGTERM, SIGINT>"
    assert calls == [False]


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal(block, calls, number):
    """
    The block continues after the signal, and its end raises SystemExit.
    """

    def program():
        with block() as stop:
            signal.raise_signal(number)
            assert stop.wait(timeout=0.0)
            assert (stop.signal, stop.is_set(), calls) == (number, True, [True])

    with pytest.raises(SystemExit) as caught:
        program()
    assert (caught.value.code, calls) == (128 + number, [True, "end", "slept 0.5", False])


def test_the_time_after_a_signal(block, calls):
    """
    The time runs from the signal, and its end is reported once.
    """

    def program():
        with block(timeout=0.1):
            signal.raise_signal(signal.SIGTERM)
            until = time.monotonic() + 60
            while calls != [True, "late"] and time.monotonic() < until:
                time.sleep(0.01)

    with pytest.raises(SystemExit):
        program()
    assert calls == [True, "late", "end", "slept 0.5", False]


def test_an_exit_code(block):
    """
    The application chooses the exit status.
    """
    with pytest.raises(SystemExit) as caught, block(exit_code=0):
        signal.raise_signal(signal.SIGTERM)
    assert caught.value.code == 0


@pytest.mark.parametrize("number", SIGNALS)
def test_signals_just_after_the_first_one_are_ignored(block, calls, clock, number):
    """
    Within half a second, further signals change nothing: a supervisor may send its signal twice.
    """

    def program():
        with block() as stop:
            signal.raise_signal(signal.SIGTERM)
            for later in (0.0, 0.1, 0.39):
                clock.now += later
                signal.raise_signal(number)
            assert (stop.signal, calls) == (signal.SIGTERM, [True])

    with pytest.raises(SystemExit) as caught:
        program()
    # The previous handler is not back before the half second is over.
    slept = "slept 0.01"
    assert (caught.value.code, calls) == (128 + signal.SIGTERM, [True, "end", slept, False])


def test_a_signal_that_interrupts_the_handler_of_the_first_one_is_ignored(calls):
    """
    Both signals may have arrived before Python calls the first handler.
    """

    def on_change(is_set):
        calls.append(is_set)
        if is_set:
            signal.raise_signal(signal.SIGINT)

    def program():
        with StopSignal(
            SIGNALS, None, 600.0, on_change=on_change, on_timeout=print, on_end=calls.append
        ):
            signal.raise_signal(signal.SIGTERM)

    with pytest.raises(SystemExit) as caught:
        program()
    assert (caught.value.code, calls[-1]) == (128 + signal.SIGTERM, False)


def test_a_second_signal_interrupts_the_block(block, calls, clock):
    """
    A second signal, half a second after the first one or later, interrupts the block.
    """

    def program():
        with block():
            signal.raise_signal(signal.SIGTERM)
            clock.now += 0.5
            signal.raise_signal(signal.SIGINT)
            pytest.fail("not interrupted")

    with pytest.raises(SystemExit) as caught:
        program()
    assert (caught.value.code, calls) == (130, [True, False])


def test_an_exception(block, calls):
    """
    An exception leaves the block as it is, and nothing is drained. The end of the block still waits
    for a signal that follows the first one closely.
    """

    def program():
        with block():
            signal.raise_signal(signal.SIGTERM)
            raise KeyError

    with pytest.raises(KeyError):
        program()
    assert calls == [True, "slept 0.5", False]


def test_a_signal_stops_all_nested_blocks(block, calls):
    """
    The signal stops the block of each client, from the inside out, and the innermost status counts.
    """

    def program():
        with block() as outer, block(exit_code=7) as inner:
            signal.raise_signal(signal.SIGTERM)
            assert (outer.signal, inner.signal) == (signal.SIGTERM, signal.SIGTERM)
            assert calls == [True, True]

    with pytest.raises(SystemExit) as caught:
        program()
    assert (caught.value.code, calls[2:]) == (7, ["end", "slept 0.5", False, "end", False])


def test_a_second_signal_interrupts_nested_blocks(block, calls, clock):
    """
    A second signal ends all blocks at once, and none of them is drained.
    """

    def program():
        with block(), block():
            signal.raise_signal(signal.SIGTERM)
            clock.now += 0.5
            signal.raise_signal(signal.SIGTERM)
            pytest.fail("not interrupted")

    with pytest.raises(SystemExit):
        program()
    assert calls == [True, True, False, False]


def test_a_previous_handler_of_the_program_is_not_called(block):
    """
    Only blocks call each other: a handler of the program itself might end it.
    """
    before = signal.signal(signal.SIGTERM, lambda *_: pytest.fail("called"))
    try:
        with pytest.raises(SystemExit), block():
            signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="Windows has no SIGKILL")
def test_a_signal_that_no_program_can_handle(calls):
    """
    SIGKILL is refused, and the handlers of the other signals are as before.
    """
    stop = StopSignal(
        (signal.SIGTERM, signal.SIGKILL),
        None,
        600.0,
        on_change=calls.append,
        on_timeout=print,
        on_end=print,
    )
    with pytest.raises(InvalidArgumentError, match="no program can handle SIGKILL"):
        stop.__enter__()
    assert calls == [False]


def test_a_waiting_thread(block):
    """
    The signal wakes threads that wait for it.
    """
    with ThreadPoolExecutor(1) as pool, contextlib.suppress(SystemExit), block() as stop:
        waiting = pool.submit(stop.wait, timeout=10)
        signal.raise_signal(signal.SIGTERM)
        assert waiting.result(5)


def test_another_thread(block):
    """
    Only the main thread can handle signals.
    """
    with ThreadPoolExecutor(1) as pool:
        caught = pool.submit(block().__enter__).exception(5)
    assert isinstance(caught, ConflictingUseError)
    assert "main thread" in str(caught)
    assert threading.current_thread() is threading.main_thread()
