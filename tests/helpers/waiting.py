"""
Waiting in tests: for what has no event to wait for, and no longer than it may take.

A test says what a quiet machine needs. A loaded one, on which other processes have the processors,
is late by more than that, now and then by a second: all upper limits have ``LATE`` seconds more.
"""

from __future__ import annotations

import contextlib
import os
import time

LATE = float(os.environ.get("JETSYNC_TEST_LATE", "2.5"))
"""Seconds by which a machine may be late; 0 holds a quiet one to its word."""

CLUSTER_CLIENT = {"reconnect_wait": 0.05, "request_timeout": 20.0}
"""Options of a client of a cluster: what was just made may have no leader yet, which is silent."""


def eventually(check, timeout=10.0):
    """
    Wait until *check* returns something true, and return that.
    """
    end = time.monotonic() + timeout + LATE
    while not (found := check()):
        assert time.monotonic() < end, f"not within {timeout:g} s"
        time.sleep(0.005)
    return found


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
