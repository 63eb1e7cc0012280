"""
Waiting in tests for conditions that have no event.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

_PAUSE: Final = 0.005
"""Seconds between two calls."""


def eventually(check: Callable[[], T], *, timeout: float = 30.0) -> T:
    """
    Call a function until it returns a true value, and return that value.

    `eventually` calls the function every 5 ms in this thread, and does not catch its exceptions.
    For example, ``eventually(lambda: stream.info().state.messages == 3)`` waits for three messages.

    Args:
        check: The function.
        timeout: Seconds until the test fails. Allow for a busy machine: a passing test does not
            wait that long.

    Raises:
        AssertionError: The function returned no true value within the timeout.
    """
    end = time.monotonic() + timeout
    while not (found := check()):
        if time.monotonic() >= end:
            raise AssertionError(f"not within {timeout:g} s")
        time.sleep(_PAUSE)
    return found
