"""
Waiting for conditions that have no event, and limits on how long something may take.

A test states the time that an idle machine needs. All upper limits are extended by ``LATE``
seconds, because a busy machine may not run a process or a server for seconds.
"""

from __future__ import annotations

import contextlib
import linecache
import os
import re
import sys
import time

import pytest

import jetsync
from helpers.interrupts import shows_holder
from jetsync import testing

LATE = float(os.environ.get("JETSYNC_TEST_LATE", "6.0"))
"""Seconds by which a machine may be late; 0 removes the allowance."""

CLUSTER_CLIENT = {"reconnect_wait": 0.05, "max_reconnect_wait": 0.5, "request_timeout": 20.0}
"""Options of a client of a cluster: a stream without a leader does not answer requests."""

_WAITS = re.compile(r"\b(wait|acquire|poll|select|sleep|get(?=.timeout))\(")


def eventually(check, timeout=10.0):
    """
    Wait until *check* returns something true, and return that.
    """
    return testing.eventually(check, timeout=timeout + LATE)


def holds(check, seconds=0.1):
    """
    Assert that *check* stays true for a while. No event shows that nothing happens.
    """
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        assert check()
        time.sleep(0.005)
    assert check()


def at_some_pace(attempt):
    """
    Call *attempt* with 1, and if it fails with 2, 4, 8 and 16, by which it multiplies its times.

    For tests of times that the server keeps: it does not wait for a process that is late. A defect
    fails at each pace.
    """
    failures = []
    for pace in (1, 2, 4, 8, 16):
        try:
            return attempt(pace)
        except (AssertionError, jetsync.JetSyncError, pytest.fail.Exception) as error:
            failures.append(error)
    # The first failure is the context of the last one, so that a report shows both.
    raise failures[-1] from failures[0]


def unless_late(call):
    """
    Call again, up to four times, if the server did not end a pull within two seconds of its time.
    """
    for _ in range(4):
        with contextlib.suppress(jetsync.RequestTimeoutError):
            return call()
    return call()


def blocked(pool, count=1):
    """
    Wait until *count* threads of an executor wait inside calls of jetsync.
    """
    eventually(lambda: sum(map(_waits, list(pool._threads))) >= count)


def _waits(thread):
    frame = sys._current_frames().get(thread.ident)
    while frame is not None and f"{os.sep}jetsync{os.sep}" not in frame.f_code.co_filename:
        frame = frame.f_back
    if frame is None:
        return False
    return bool(_WAITS.search(linecache.getline(frame.f_code.co_filename, frame.f_lineno)))


@contextlib.contextmanager
def timed(least, most):
    """
    Assert that the block takes between *least* and *most* seconds, whether it raises or not.
    """
    start = time.monotonic()
    try:
        yield
    finally:
        seconds = time.monotonic() - start
        assert least <= seconds <= most + LATE, f"took {seconds:.3f} s"


def is_led(messages):
    """Whether a thread drives a consumption, which means that it waits for messages."""
    return shows_holder(messages._core.reading.turn._lock)
