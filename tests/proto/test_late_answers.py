"""
When a request without an answer is sent again.
"""

from __future__ import annotations

import pytest

from jetsync._proto.late_answers import LATE, next_attempt


def attempts(timeout, late=LATE):
    """
    The moments of all attempts of a call, in seconds since the first.
    """
    moments, now = [0.0], late
    while now < timeout:
        moments.append(now)
        now += next_attempt(now, late)
    return moments


def test_a_late_answer_is_asked_for_every_second_at_first():
    """
    A call with the default timeout asks again about every second.
    """
    assert attempts(5.0) == [0.0, 1.0, 2.0, 3.0, 4.0]


@pytest.mark.parametrize(
    ("timeout", "most"), [(0.5, 1), (1.0, 1), (5.0, 5), (15.0, 10), (60.0, 17), (3600.0, 35)]
)
def test_the_number_of_requests_is_bounded(timeout, most):
    """
    The waits grow, so that a call with a long timeout sends few more requests.
    """
    assert len(attempts(timeout)) == most


def test_a_slow_request_is_asked_for_less_often():
    """
    If the first attempt had half of the time, there is one other attempt.
    """
    assert attempts(30.0, late=15.0) == [0.0, 15.0]
