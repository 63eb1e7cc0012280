"""
The limits of an attempt, without a server.
"""

from __future__ import annotations

import queue
import threading

from jetsync_queue import JobTimeoutError
from jetsync_queue.limits import Attempt, Clock


def test_a_handler_is_interrupted_at_its_time_limit(monkeypatch):
    """
    The exception ends the call, and then the clock has nothing more to do.
    """
    monkeypatch.setattr("time.monotonic", lambda: 1000.0)
    attempts = queue.SimpleQueue()

    def spin(_):
        attempts.put(None)
        while True:
            pass

    def run():
        attempt = Attempt(None, 5.0, 2.0)
        attempts.put(attempt)
        attempts.put(attempt.call(spin))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    attempt = attempts.get(timeout=30)
    assert attempts.get(timeout=30) is None
    assert attempt.due == 1005.0
    assert not attempt.act()
    thread.join(30)
    value, error = attempts.get(timeout=30)
    assert value is None
    assert isinstance(error, JobTimeoutError)
    assert attempt.due is None
    assert not attempt.act()


def test_a_handler_that_does_not_end_is_given_up_after_the_grace(monkeypatch):
    """
    The grace follows the time limit. A handler that has ended is never given up.
    """
    monkeypatch.setattr("time.monotonic", lambda: 1000.0)
    raised = []
    monkeypatch.setattr("jetsync_queue.limits.raise_in", lambda *given: raised.append(given[1]))
    attempt = Attempt(None, 5.0, 2.0)
    assert not attempt.act()
    assert attempt.due == 1007.0
    assert attempt.act()
    assert attempt.is_abandoned
    assert attempt.due is None
    assert not attempt.act()
    assert raised == [JobTimeoutError]


def test_a_clock_ends_that_was_stopped_before_it_began_to_wait():
    """
    A worker waits for the clock without a limit when it stops.
    """
    clock = Clock(lambda _: None)
    clock.stop()
    clock.thread.start()
    clock.thread.join(10)

    assert not clock.thread.is_alive()
