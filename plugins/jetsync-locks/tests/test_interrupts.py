"""
Ctrl-C, signal handlers and forks.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

import pytest

import jetsync
from jetsync.testing import eventually
from jetsync_locks import Lock, NotHeldError

pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(sys.platform == "win32", reason="needs signals to threads"),
]


@pytest.fixture(autouse=True)
def ctrl_c():
    """
    Let SIGINT raise KeyboardInterrupt, also if the tests run in the background of a shell.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def interrupt_when(check, ended: threading.Event) -> threading.Thread:
    """
    Send Ctrl-C to the main thread once a condition is met, until an event is set.

    One is not enough: Python drops the exception if it arrives in a finalizer.
    """

    def wait() -> None:
        eventually(check)
        while not ended.is_set():
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
            ended.wait(5)

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


def test_ctrl_c_while_waiting_leaves_the_queue(bucket, another):
    """
    Ctrl-C ends the wait, the ticket is withdrawn, and the object can be used again.
    """
    holder = Lock(bucket, "a")
    thread = threading.Thread(target=holder.acquire)
    thread.start()
    thread.join()
    lock = Lock(another, "a")
    ended = threading.Event()
    interrupter = interrupt_when(lambda: bucket.stream.info().state.consumer_count == 1, ended)
    with pytest.raises(KeyboardInterrupt):
        lock.acquire()
    ended.set()
    interrupter.join()
    eventually(lambda: len(bucket.keys()) == 1)
    assert not lock.held
    holder.release()
    with lock:
        assert lock.held


def test_ctrl_c_at_random_moments_leaves_a_usable_lock(bucket):
    """
    After Ctrl-C at any moment of acquire and release, the lock is free or the object says that it
    holds it.
    """
    lock = Lock(bucket, "a", timeout=30)
    interrupted = 0
    for number in range(40):
        timer = threading.Timer(
            0.0005 * number,
            lambda: signal.pthread_kill(threading.main_thread().ident, signal.SIGINT),
        )
        try:
            timer.start()
            while timer.is_alive():
                with lock:
                    lock.check()
            timer.join()
            time.sleep(0)
        except KeyboardInterrupt:
            interrupted += 1
            timer.join()
            if lock.held:
                lock.release()
    assert interrupted > 20
    with Lock(bucket, "a", timeout=30):
        pass


def test_a_signal_handler_may_release_and_cancel(bucket, another):
    """
    A handler may release a lock, and end the wait for another one.
    """
    holder = Lock(bucket, "a")
    thread = threading.Thread(target=holder.acquire)
    thread.start()
    thread.join()
    mine, waiting = Lock(bucket, "b").acquire(), Lock(another, "a")

    def handle(*_: object) -> None:
        mine.release()
        waiting.cancel()

    before = signal.signal(signal.SIGUSR1, handle)
    try:
        interrupter = threading.Thread(
            target=lambda: (
                eventually(lambda: bucket.stream.info().state.consumer_count == 1),
                signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1),
            )
        )
        interrupter.start()
        with pytest.raises(jetsync.JetSyncError, match="was cancelled"):
            waiting.acquire()
        interrupter.join()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert not mine.held
    holder.release()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_child_process_does_not_hold_the_lock_of_its_parent(bucket):
    """
    In a forked child, the lock is not held, and its calls say why. The parent keeps it.
    """
    lock = Lock(bucket, "a").acquire()
    read, write = os.pipe()
    child = os.fork()
    if not child:
        said = []
        for call in (lock.check, lock.release, lock.acquire):
            try:
                call()
            except (jetsync.ForkedProcessError, NotHeldError) as error:
                said.append(type(error).__name__)
        os.write(write, f"{lock.held} {' '.join(said)}".encode())
        os._exit(0)
    os.waitpid(child, 0)

    assert os.read(read, 1000) == b"False " + b" ".join([b"ForkedProcessError"] * 3)
    assert lock.held
    assert lock.release() is True
