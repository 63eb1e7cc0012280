"""
Locks and latches that a signal handler may meet.
"""

from __future__ import annotations

import ast
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec, module_from_spec
from pathlib import Path
from types import SimpleNamespace

import pytest

import jetsync
from helpers.forks import run_in_child
from helpers.interrupts import handled_at, interrupted_at, is_locked
from helpers.waiting import eventually
from jetsync._base import locks
from jetsync._base.locks import (
    SIGNAL_CHECK,
    Latch,
    Signal,
    SleepingLock,
    holds_short_lock,
    interrupt_safe_lock,
    refuse_reentry,
    short_lock,
    use_if_free,
)

KINDS = [
    "interrupt_safe_lock()",
    "short_lock()",
]
"""Expressions that make all kinds of locks that ``with`` may take."""

SIGNALLED = """
import signal, sys
from jetsync._base.locks import *

class Struck(Exception):
    pass

def use(lock):
    while True:
        with lock:
            pass

def strike(number, frame):
    while frame is not None:
        if frame.f_code is use.__code__:
            signal.setitimer(signal.ITIMER_REAL, 0)
            raise Struck
        frame = frame.f_back

signal.signal(signal.SIGALRM, strike)
held = 0
for _ in range(1000):
    lock = eval(sys.argv[1])
    signal.setitimer(signal.ITIMER_REAL, 1e-4, 1e-4)
    try:
        use(lock)
    except Struck:
        held += repr(lock).startswith("<locked")
print(held)
"""
"""Print how many of 1,000 signals at random moments leave a lock held."""


class TestEveryKind:
    @pytest.mark.parametrize("kind", KINDS)
    def test_ctrl_c_at_any_step(self, kind):
        """
        Ctrl-C at any step of a block that takes a lock leaves the lock free.
        """

        def use(lock):
            with lock:
                len("")

        step, ended = 0, False
        while not ended:
            step += 1
            lock = eval(kind)
            ended = interrupted_at(step, lambda: use(lock))  # noqa: B023
            assert not is_locked(lock), step
        assert step > 4

    @pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="there are no timers with signals")
    @pytest.mark.parametrize("kind", KINDS)
    def test_signals(self, kind):
        """
        Signals whose handler raises, at random moments, leave no lock held.
        """
        done = subprocess.run(
            [sys.executable, "-c", SIGNALLED, kind], capture_output=True, text=True, check=False
        )
        assert (done.stdout, done.stderr) == ("0\n", "")

    def test_in_an_own_block(self):
        """
        The holder may take an interrupt-safe lock again, and Ctrl-C then leaves it held once.
        """

        def use():
            with lock:
                pass

        lock = interrupt_safe_lock()
        step, ended = 0, False
        while not ended:
            step += 1
            with lock:
                ended = interrupted_at(step, use)
                assert is_locked(lock), step
            assert not is_locked(lock), step


def locks_for(version, monkeypatch):
    """
    Return a copy of the module as it would be on another version of Python.
    """
    spec = find_spec(locks.__name__)
    copy = module_from_spec(spec)
    with monkeypatch.context() as patches:
        patches.setattr(sys, "version_info", version)
        spec.loader.exec_module(copy)
    return copy


class TestLockOfPython314:
    @pytest.mark.parametrize("kind", ["interrupt_safe_lock", "short_lock"])
    @pytest.mark.parametrize("taken_before", [False, True])
    def test_ctrl_c_after_the_lock_was_taken(self, monkeypatch, kind, taken_before):
        """
        Ctrl-C at the end of the call into C that takes the lock undoes that call alone.
        """
        lock = getattr(locks_for((3, 14, 0), monkeypatch), kind)()
        assert isinstance(lock, type(threading.RLock()))
        if taken_before:
            lock.acquire()

        def enter():
            lock.__enter__()

        step, ended = 0, False
        while not ended:
            step += 1
            ended = interrupted_at(step, enter)
            if not ended:
                assert is_locked(lock) == taken_before, step
        assert step > 2
        lock.release()

    @pytest.mark.parametrize("version", [(3, 13, 9), (3, 15, 2), (3, 16, 0)])
    def test_other_versions_use_the_locks_of_threading(self, monkeypatch, version):
        """
        Other versions of Python use the locks of ``threading``, which are faster.
        """
        copy = locks_for(version, monkeypatch)
        assert type(copy.short_lock()) is type(threading.RLock())


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


class TestShortLocks:
    def test_a_forked_child_forgets_the_locks_of_its_parent(self):
        """
        A thread of the child that gets the identity of one of the parent holds none of its locks.
        """

        def check():
            assert not holds_short_lock()

        with short_lock():
            assert run_in_child(check) == 0
            assert holds_short_lock()
        assert not holds_short_lock()

    def test_a_lock_of_another_thread_is_not_held_here(self):
        """
        Only the thread that holds a short lock is said to hold one.
        """
        with short_lock(), ThreadPoolExecutor(1) as pool:
            assert not pool.submit(holds_short_lock).result(5)

    def test_a_lock_that_is_gone_is_forgotten(self):
        """
        A lock leaves the list of locks with its handle.
        """
        before = len(locks._short_locks)
        kept = short_lock()
        assert len(locks._short_locks) == before + 1
        del kept
        assert len(locks._short_locks) == before


class TestUseIfFree:
    def test_a_free_lock(self):
        """
        The work runs with the lock, which is free afterwards, and its result reaches the caller.
        """
        lock = short_lock()
        assert use_if_free(lock, lambda: is_locked(lock)) is True
        assert use_if_free(lock, divmod, 7, 2) == (3, 1)
        assert not is_locked(lock)

    def test_a_lock_of_the_calling_thread(self):
        """
        A lock that the calling thread has is not free: a signal handler may interrupt its block.
        """
        lock = short_lock()
        with lock:
            assert use_if_free(lock, divmod, 7, 2) is None
            assert is_locked(lock)
        assert not is_locked(lock)

    def test_a_lock_of_another_thread(self):
        """
        If another thread has the lock, the work is not called, and that thread keeps the lock.
        """
        lock = short_lock()
        with ThreadPoolExecutor(1) as pool, lock:
            assert pool.submit(use_if_free, lock, divmod, 7, 2).result(5) is None
            assert is_locked(lock)
        assert not is_locked(lock)

    def test_ctrl_c_at_any_step(self):
        """
        Ctrl-C at any step leaves the lock free.
        """
        step, ended = 0, False
        while not ended:
            step += 1
            lock = short_lock()
            ended = interrupted_at(step, lambda: use_if_free(lock, lambda: len("")))  # noqa: B023
            assert not is_locked(lock), step
        assert step > 4

    def test_ctrl_c_while_another_thread_has_it(self):
        """
        Ctrl-C at any step of a call that does not get the lock leaves it to its holder.
        """
        lock = short_lock()
        step, ended = 0, False

        def attempt():
            nonlocal step, ended
            while not ended:
                step += 1
                ended = interrupted_at(step, lambda: use_if_free(lock, len, ""))
                assert is_locked(lock), step

        with ThreadPoolExecutor(1) as pool, lock:
            pool.submit(attempt).result(5)
        assert step > 2


BARE = {
    ("jetsync/_base/locks.py", "Lock"): "makes the locks of signals, which `with` never takes",
    ("jetsync/_base/locks.py", "RLock"): "makes the locks",
    ("jetsync/_base/turn.py", "RLock"): "only threads that no signal interrupts take it by `with`",
    ("jetsync/_io/reader.py", "RLock"): "`with` never takes it",
    ("jetsync/consume/handlers.py", "Lock"): "only threads that no signal interrupts take it",
    ("jetsync/testing/_forwarder.py", "Condition"): "`with` takes its lock",
    ("jetsync/testing/_recorder.py", "Condition"): "`with` takes its lock",
    ("plugins/jetsync-celery/jetsync_celery/answers.py", "Condition"): "`with` takes its lock",
    ("plugins/jetsync-queue/jetsync_queue/intake.py", "Condition"): "`with` takes its lock",
    ("plugins/jetsync-queue/jetsync_queue/limits.py", "Condition"): "`with` takes its lock",
    ("plugins/jetsync-queue/jetsync_queue/worker.py", "Condition"): "`with` takes its lock",
    ("plugins/jetsync-services/jetsync_services/endpoint.py", "Lock"): "`with` never takes it",
    (
        "plugins/jetsync-services/jetsync_services/limits.py",
        "Condition",
    ): "`with` takes its lock",
    (
        "plugins/jetsync-schema/jetsync_schema/registry/bucket.py",
        "Condition",
    ): "`with` takes its lock",
}
"""Locks of ``threading`` in the packages, and why Ctrl-C cannot leave them held."""


def locks_of_threading(source: str) -> set[str]:
    """
    Return the kinds of locks that a module takes from ``threading``.
    """
    kinds = {"Barrier", "BoundedSemaphore", "Condition", "Lock", "RLock", "Semaphore"}
    tree = ast.parse(source)
    # Annotations name a type and make no lock.
    calls = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
    plain = {call.id for call in calls if isinstance(call, ast.Name)}
    dotted = {call.attr for call in calls if isinstance(call, ast.Attribute) and is_threading(call)}
    return (plain | dotted) & kinds


def is_threading(node: ast.Attribute) -> bool:
    """
    Return whether an attribute is one of the module ``threading``.
    """
    return isinstance(node.value, ast.Name) and node.value.id == "threading"


def test_with_takes_no_lock_of_threading():
    """
    The packages take locks that Ctrl-C cannot leave held, on every version of Python.
    """
    root = Path(__file__).parents[2]
    found = {
        (path.relative_to(root).as_posix(), kind)
        for pattern in ("jetsync", "plugins/*/jetsync_*", "examples/*/jetsync_*")
        for folder in root.glob(pattern)
        for path in folder.rglob("*.py")
        for kind in locks_of_threading(path.read_text("utf-8"))
    }
    # An sdist has no plugins.
    assert found == {(path, kind) for path, kind in BARE if (root / path).exists()}


@pytest.mark.parametrize(
    ("source", "kinds"),
    [
        ("with threading.Lock(): pass", {"Lock"}),
        ("def make(lock: threading.RLock): return Condition()", {"Condition"}),
        ("lock = _make.Lock()", set()),
    ],
)
def test_locks_of_threading_are_found(source, kinds):
    """
    The rule finds locks that are made, with and without the name of their module.
    """
    assert locks_of_threading(source) == kinds


OTHERS = {
    ("_io/reader.py", "RLock"): "the read lock: threads try it, and the loop waits 1 s at most",
    ("consume/handlers.py", "Lock"): "only threads of jetsync take it, which no signal interrupts",
}
"""Locks that are neither short nor a turn, and why that is safe."""


def test_every_lock_is_short_or_a_turn():
    """
    A lock of a module that signal handlers reach is a short lock or a turn.
    """
    package = Path(jetsync.__file__).parent
    found = set()
    for path in package.rglob("*.py"):
        where = path.relative_to(package).as_posix()
        if where.startswith(("cli/", "devserver/", "testing/")) or where in {
            "_base/locks.py",
            "_base/turn.py",
        }:
            continue
        for kind in re.findall(
            r"threading\.(R?Lock|Condition|Semaphore|Event)\(", path.read_text()
        ):
            found.add((where, kind))
    assert found == set(OTHERS)


@pytest.fixture(params=[threading.Lock, SleepingLock])
def new_signal(request, monkeypatch):
    """Return Signal with the locks of this Python, and with those of Pythons without the GIL."""
    monkeypatch.setattr(locks, "_new_flag", request.param)
    return Signal


class TestSignal:
    def test_remembered_once(self, new_signal):
        """A raise while no thread waits ends the next wait, and only that one."""
        signal = new_signal()
        assert signal.wait(0) is False
        signal.set()
        signal.set()
        assert signal.wait(0) is True
        assert signal.wait(0) is False

    def test_a_raised_signal_wakes_the_waiting_thread(self, new_signal):
        """A raise wakes the thread that waits."""
        signal, result = new_signal(), []
        thread = threading.Thread(target=lambda: result.append(signal.wait(10.0)))
        thread.start()
        signal.set()
        thread.join(10.0)
        assert result == [True]

    @pytest.mark.skipif(sys.platform == "win32", reason="Windows has no timers of signals")
    def test_a_handler_that_outlasts_the_wait_does_not_extend_it(self):
        """
        A wait ends after a signal handler that ran past its timeout.

        `SimpleQueue.get` would never end on Python 3.10 to 3.12.
        """
        script = """
            import signal, time
            from jetsync._base.locks import Signal
            signal.signal(signal.SIGALRM, lambda *_: time.sleep(0.3))
            signal.setitimer(signal.ITIMER_REAL, 0.1)
            print(Signal().wait(0.2))
        """
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(script)],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        assert (done.stdout, done.stderr) == ("False\n", "")

    @pytest.mark.parametrize(("answers", "expected"), [((0, 0, 0), False), ((0, 1), True)])
    def test_windows_waits_in_slices(self, monkeypatch, answers, expected):
        """On Windows a long wait is many short ones, because Ctrl-C interrupts none of them."""
        slices = []
        signal = Signal()

        def acquire(timeout):
            slices.append(timeout)
            return bool(answers[len(slices) - 1])

        signal._lock = SimpleNamespace(acquire=acquire)
        monkeypatch.setattr(locks, "sys", SimpleNamespace(platform="win32"))

        assert signal.wait(2.25 * SIGNAL_CHECK) is expected

        assert slices == [SIGNAL_CHECK, SIGNAL_CHECK, 0.25 * SIGNAL_CHECK][: len(answers)]

    def test_a_deadline_that_has_passed_ends_the_wait_at_once(self, new_signal):
        """A deadline that has passed ends the wait at once."""
        assert new_signal().wait(-1.0) is False


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

    def test_set_while_a_wait_begins(self, monkeypatch):
        """
        If another thread sets it before the waiting thread is listed, that thread does not wait.
        """

        class Listed(list):
            def append(self, signal):
                latch.set()
                super().append(signal)

        latch = Latch()
        monkeypatch.setattr(latch, "_waiting", Listed())
        begin = time.monotonic()
        assert latch.wait(10)
        assert time.monotonic() - begin < 5

    def test_waits_in_steps(self, monkeypatch):
        """
        A long wait consists of short ones, so that Python can run signal handlers in between.
        """
        monkeypatch.setattr(locks, "SIGNAL_CHECK", 0.01)
        latch = Latch()
        begin = time.monotonic()
        assert not latch.wait(0.05)
        assert time.monotonic() - begin >= 0.05 - time.get_clock_info("monotonic").resolution
        with ThreadPoolExecutor(1) as pool:
            wait = pool.submit(latch.wait)
            eventually(lambda: latch._waiting)
            assert not wait.done()
            latch.set()
            assert wait.result(5)
        assert not latch._waiting

    @pytest.mark.parametrize("inner", ["set", "wait"])
    @pytest.mark.parametrize("outer", ["set", "wait"])
    def test_a_signal_handler_may_set_a_latch_and_wait_for_it(self, outer, inner):
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

    def test_an_interrupted_wait_leaves_no_state_in_the_latch(self):
        """
        An interrupted wait leaves no state in the latch.
        """
        latch, step, ended = Latch(), 0, False
        while not ended:
            step += 1
            ended = interrupted_at(step, lambda: latch.wait(0.001))
        assert not latch._waiting
