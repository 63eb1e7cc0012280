"""
When a request with many answers ends, with a clock that only the test advances.
"""

from __future__ import annotations

import pytest

from jetsync._proto.many_answers import Gathering
from jetsync.testing import ManualClock


@pytest.fixture
def clock():
    """A clock that stands at 1000 seconds."""
    return ManualClock()


def answered(count, clock, **limits):
    """Return a request of ten seconds with that many answers."""
    made = Gathering(clock() + 10.0, **limits)
    for _ in range(count):
        made.answered(b"", {}, 1)
    return made


def ended(made):
    """Return why the request has ended, once all answers were taken."""
    made.emptied()
    return made.reason


def test_the_first_answer_may_take_all_the_time(clock):
    """A stall does not limit the wait for the first answer."""
    made = answered(0, clock, stall=1.0)
    assert made.wait(clock()) == clock() + 10.0
    made.silent()
    assert ended(made) == "timeout"


def test_a_stall_begins_after_the_first_answer(clock):
    """After an answer, the next wait is as long as the stall."""
    made = answered(1, clock, stall=1.0)
    clock.advance(5.0)
    assert made.wait(clock()) == clock() + 1.0
    made.silent()
    assert ended(made) == "stall"


@pytest.mark.parametrize("stall", [2.0, 2.5, 100.0])
def test_a_stall_never_exceeds_the_time_that_is_left(clock, stall):
    """A stall that reaches to the time limit or beyond it ends with the time limit."""
    made = answered(3, clock, stall=stall)
    clock.advance(8.0)
    assert made.wait(clock()) == clock() + 2.0
    made.silent()
    assert ended(made) == "timeout"


def test_the_limit_of_a_wait_is_that_of_the_last_one(clock):
    """Each wait decides anew whether its end is a stall or the time limit."""
    made = answered(1, clock, stall=1.0)
    made.wait(clock())
    clock.advance(9.5)
    made.answered(b"", {}, 1)
    assert made.wait(clock()) == clock() + 0.5
    made.silent()
    assert ended(made) == "timeout"


def test_without_a_stall_only_the_time_limit_counts(clock):
    """Without a stall, every wait ends with the time limit."""
    made = answered(4, clock)
    clock.advance(3.0)
    assert made.wait(clock()) == clock() + 7.0


def test_the_count_ends_it(clock):
    """The last of the wanted answers ends the request."""
    made = answered(2, clock, limit=3)
    assert made.reason is None
    made.answered(b"", {}, 1)
    assert (made.reason, made.count) == ("count", 3)


def test_the_sentinel_is_no_answer(clock):
    """The sentinel ends the request and is not counted."""
    made = answered(2, clock, limit=3)
    made.found_sentinel()
    assert (made.reason, made.count) == ("sentinel", 2)


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        (Gathering.silent, "timeout"),
        (Gathering.lost, "disconnected"),
        (Gathering.client_closed, "closed"),
    ],
)
def test_what_has_arrived_can_still_be_taken(clock, event, reason):
    """It has not ended before the answers that had arrived are taken, and the first cause stays."""
    made = answered(1, clock)
    event(made)
    made.lost()
    made.client_closed()
    made.answered(b"", {}, 1)
    assert (made.reason, made.ending, made.count) == (None, reason, 2)
    assert ended(made) == reason


def test_the_count_may_end_it_after_a_loss(clock):
    """If the rest of the wanted answers had arrived before a loss, the reason is the count."""
    made = answered(1, clock, limit=2)
    made.lost()
    made.answered(b"", {}, 1)
    assert ended(made) == "count"


@pytest.mark.parametrize("is_over", [False, True])
def test_closing_keeps_an_earlier_reason(clock, is_over):
    """The caller ends an open request, and changes nothing about one that has ended."""
    made = answered(1, clock, limit=1 if is_over else 2)
    made.close()
    assert made.reason == ("count" if is_over else "closed")
