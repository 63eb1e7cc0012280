"""
Waiting in tests: for what has no event to wait for, and no longer than it may take.
"""

from __future__ import annotations

import contextlib
import time


def eventually(check, timeout=10.0):
    """
    Wait until *check* returns something true, and return that.
    """
    end = time.monotonic() + timeout
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
        assert least <= seconds <= most, f"took {seconds:.3f} s"
