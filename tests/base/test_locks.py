"""
Locks and latches that a signal handler may meet.
"""

from __future__ import annotations

import ast
import re
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec, module_from_spec
from pathlib import Path

import pytest

import jetsync
from helpers.forks import run_in_child
from helpers.interrupts import handled_at, interrupted_at, is_locked
from helpers.waiting import eventually
from jetsync._base import locks
from jetsync._base.deadline import NO_WAIT, Deadline
from jetsync._base.locks import (
    Latch,
    Level,
    Locked,
    LongLock,
    flag_lock,
    interrupt_safe_lock,
    refuse_reentry,
    short_lock,
)

KINDS = [
    "flag_lock()",
    "interrupt_safe_lock()",
    "short_lock()",
    "LongLock(Level.HANDLE)",
    "Locked(LongLock(Level.HANDLE), Deadline.after(100))",
]
"""Expressions that make all kinds of locks that ``with`` may take."""

SIGNALLED = """
import signal, sys
from jetsync._base.locks import *
from jetsync._base.locks import Deadline

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
        held += repr(getattr(lock, "_lock", lock)).startswith("<locked")
print(held)
"""
"""Print how many of 1,000 signals at random moments leave a lock held."""


def is_held(lock):
    """
    Return whether a thread holds a lock of any kind.
    """
    return is_locked(lock._lock if isinstance(lock, Locked) else lock)


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
            assert not is_held(lock), step
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

    def test_locked(self):
        """
        Any thread can see whether another one holds a flag lock.
        """
        lock = flag_lock()
        with ThreadPoolExecutor(1) as pool:
            with lock:
                assert pool.submit(lock.locked).result(5)
            assert not pool.submit(lock.locked).result(5)

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
    @pytest.mark.parametrize("kind", ["flag_lock", "interrupt_safe_lock", "short_lock"])
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
        assert type(copy.flag_lock()) is type(threading.Lock())


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


class TestLongLock:
    def test_a_turn(self):
        """
        A thread that asks for its own turn again is refused at once, and keeps the turn.
        """
        lock = LongLock(Level.TURN)
        with Locked(lock, Deadline.after(5)):
            with pytest.raises(jetsync.CallInSignalHandlerError), Locked(lock, Deadline.after(5)):
                pass
            with pytest.raises(jetsync.CallInSignalHandlerError), lock:
                pass
            with ThreadPoolExecutor(1) as pool:
                assert not pool.submit(lock.enter, NO_WAIT).result(5)
        assert "unlocked" in repr(lock)

    def test_the_deadline(self):
        """
        A wait for the lock ends by its deadline, with an error that says what was waited for.
        """
        lock = LongLock(Level.HANDLE)
        with lock, ThreadPoolExecutor(1) as pool:
            turn = Locked(lock, Deadline.after(0.1), "the test")
            error = pool.submit(turn.__enter__).exception(5)
        assert isinstance(error, jetsync.WaitTimeoutError)
        assert "the test" in str(error)

    def test_a_long_wait_is_many_short_ones(self, monkeypatch):
        """
        A signal does not end the wait for a lock on Windows, so no wait is long.
        """
        waits = []

        def take(lock, taken, seconds):
            waits.append(seconds)
            taken.append(len(waits) == 3)
            return taken[-1]

        monkeypatch.setattr(locks, "take", take)
        lock = LongLock(Level.HANDLE)
        with lock, ThreadPoolExecutor(1) as pool:
            assert pool.submit(lock.take, [], None).result(5)
        assert waits == [locks.SIGNAL_CHECK] * 3

    @pytest.mark.parametrize("use", [Locked, lambda lock, _: lock])
    def test_ctrl_c_in_a_turn(self, use):
        """
        Ctrl-C at any step of taking or returning a turn leaves the lock free.
        """

        def take_turn(lock):
            with use(lock, Deadline.after(5)):
                pass

        step, ended = 0, False
        while not ended:
            step += 1
            lock = LongLock(Level.HANDLE)
            ended = interrupted_at(step, lambda: take_turn(lock))  # noqa: B023
            assert not is_locked(lock), step

    @pytest.mark.parametrize(
        ("inner", "outer"),
        [
            (short_lock, Level.HANDLE),
            (short_lock, Level.TURN),
            (lambda: LongLock(Level.HANDLE), Level.TURN),
        ],
    )
    def test_a_lock_whose_holder_waits_for_ours_is_refused(self, inner, outer):
        """
        A call that holds a lower lock is refused a lock whose holder waits for that lower lock.
        """
        lower, higher = inner(), LongLock(outer)

        def holder():
            with higher:
                held.set()
                with lower:
                    pass

        held = threading.Event()
        with ThreadPoolExecutor(1) as pool:
            # As a signal handler that interrupts the holder of the lower lock.
            with lower:
                held_by_other = pool.submit(holder)
                assert held.wait(5)
                # First with a limit: if nothing is refused, the test fails instead of hanging.
                with pytest.raises(jetsync.CallInSignalHandlerError):
                    higher.enter(Deadline.after(5))
                with pytest.raises(jetsync.CallInSignalHandlerError):
                    higher.enter()
                assert not higher.enter(NO_WAIT)
            held_by_other.result(5)
            with higher:
                pass

    def test_a_free_lock_is_taken_in_any_order(self):
        """
        A call that holds a lower lock takes a free lock, because it does not wait for it.
        """
        higher = LongLock(Level.TURN)
        with short_lock(), higher:
            assert higher.held_here()
        assert not is_locked(higher)

    def test_the_socket_is_left_before_a_wait(self):
        """
        The call that another thread needs is made before a wait, but not if the call does not wait.
        """
        calls = []
        lock = LongLock(Level.TURN, lambda: calls.append("prepared"))
        with lock:
            pass
        with ThreadPoolExecutor(1) as pool, lock:
            assert not pool.submit(lock.enter, NO_WAIT).result(5)
            assert not calls
            assert not pool.submit(lock.enter, Deadline.after(0.01)).result(5)
        assert calls == ["prepared"]

    def test_a_forked_child_forgets_the_locks_of_its_parent(self):
        """
        A thread of the child that gets the identity of one of the parent holds none of its locks.
        """
        lower, higher = short_lock(), LongLock(Level.HANDLE)

        def check():
            assert not any(locks._locks.values())
            locks.refuse_deadlock(Level.TURN)

        with lower, higher:
            assert run_in_child(check) == 0
            with pytest.raises(jetsync.CallInSignalHandlerError):
                locks.refuse_deadlock(Level.TURN)

    def test_a_lock_that_is_gone_is_forgotten(self):
        """
        A lock leaves the list of locks with its handle.
        """
        before = {level: len(known) for level, known in locks._locks.items()}
        kept = [LongLock(Level.HANDLE), short_lock()]
        assert [len(known) for known in locks._locks.values()] == [n + 1 for n in before.values()]
        del kept
        assert {level: len(known) for level, known in locks._locks.items()} == before


BARE = {
    ("jetsync/_base/locks.py", "Lock"): "makes the locks, and latches, which `with` never takes",
    ("jetsync/_base/locks.py", "RLock"): "makes the locks",
    ("jetsync/_io/reader.py", "RLock"): "`with` never takes it",
    ("jetsync/_io/wakeups.py", "Lock"): "`with` never takes it",
    ("jetsync/consume/handlers.py", "Lock"): "only threads that no signal interrupts take it",
    ("jetsync/testing/_forwarder.py", "Condition"): "`with` takes its lock",
    ("jetsync/testing/_recorder.py", "Condition"): "`with` takes its lock",
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
    named = {ast.unparse(call).removeprefix("threading.") for call in calls}
    return named & kinds


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


UNLEVELED = {
    ("_io/reader.py", "RLock"): "the read lock: threads try it, and the loop waits 1 s at most",
    ("_io/wakeups.py", "Lock"): "a signal: one thread waits for another one to release it",
    ("consume/handlers.py", "Lock"): "only threads of jetsync take it, which no signal interrupts",
}
"""Locks without a level, and why they need none."""


def test_every_lock_has_a_level():
    """
    A lock of a module that signal handlers reach is a short or a long lock.
    """
    package = Path(jetsync.__file__).parent
    found = set()
    for path in package.rglob("*.py"):
        where = path.relative_to(package).as_posix()
        if where.startswith(("cli/", "devserver/", "testing/")) or where == "_base/locks.py":
            continue
        for kind in re.findall(
            r"threading\.(R?Lock|Condition|Semaphore|Event)\(", path.read_text()
        ):
            found.add((where, kind))
    assert found == set(UNLEVELED)


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
