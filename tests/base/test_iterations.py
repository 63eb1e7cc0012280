"""
Iterations that only one thread at a time may run.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from jetsync import ConflictingUseError
from jetsync._base.iterations import one_at_a_time


def test_two_threads():
    """A second thread gets an error, and the first one gets all items."""
    running, go_on = threading.Event(), threading.Event()

    def items():
        yield 1
        running.set()
        go_on.wait(10)
        yield 2

    shared = items()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(list, one_at_a_time(shared, "scan"))
        assert running.wait(10)
        with pytest.raises(ConflictingUseError, match="of this scan"):
            next(one_at_a_time(shared, "scan"))
        go_on.set()
        assert waiting.result(10) == [1, 2]


def test_its_own_errors():
    """An error of the generator itself is raised as it is."""

    def items():
        yield 1
        raise ValueError("of a plugin")

    with pytest.raises(ValueError, match="of a plugin"):
        list(one_at_a_time(items(), "scan"))


def test_left():
    """An iteration that the caller has left can be continued."""
    shared = iter(range(5))
    generator = (number for number in shared)
    for number in one_at_a_time(generator, "scan"):
        if number == 1:
            break
    assert list(one_at_a_time(generator, "scan")) == [2, 3, 4]
