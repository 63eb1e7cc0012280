"""
Waiting between the attempts of a call.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from jetsync import NoStreamResponseError
from jetsync._base.deadline import Deadline
from jetsync.publish.retry import wait_for_retry


class Closing:
    """
    Notes how long calls wait for the client to close.
    """

    def __init__(self):
        self.waits = []

    def wait(self, seconds):
        self.waits.append(seconds)


@pytest.fixture
def closing():
    """
    What ends the pause if the client is closed.
    """
    return Closing()


def wait(closing, delay, left):
    """
    Wait before the second attempt of a call without plugins that has *left* seconds.
    """
    context = SimpleNamespace(
        plugins=SimpleNamespace(retry=None, status=None),
        connection=SimpleNamespace(closing=closing),
    )
    error = NoStreamResponseError("orders")
    wait_for_retry(context, None, error, Deadline.after(left), attempt=1, delay=delay)


def test_the_pause_before_another_attempt_lasts_the_delay(closing):
    """
    The call waits for the delay, unless the client is closed meanwhile.
    """
    wait(closing, 0.25, 5.0)
    assert closing.waits == [0.25]


@pytest.mark.parametrize(("delay", "left"), [(None, 5.0), (5.0, 5.0), (6.0, 5.0)])
def test_without_time_for_another_attempt_the_error_is_raised_at_once(closing, delay, left):
    """
    If no attempt follows or it would come after the deadline, nothing is waited for.
    """
    with pytest.raises(NoStreamResponseError):
        wait(closing, delay, left)
    assert closing.waits == []
