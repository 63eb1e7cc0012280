from __future__ import annotations

import datetime as dt
import math
import threading

import pytest

from jetsync._base import deadline as _deadline
from jetsync._base.deadline import Deadline, as_seconds
from jetsync.errors import InvalidArgumentError, InvalidTypeError


@pytest.fixture
def clock(monkeypatch):
    """A clock that the test moves."""

    class Clock:
        now = 100.0

    monkeypatch.setattr(_deadline.time, "monotonic", lambda: Clock.now)
    return Clock


class TestAsSeconds:
    @pytest.mark.parametrize(
        ("value", "seconds"),
        [(0, 0.0), (1, 1.0), (0.25, 0.25), (dt.timedelta(minutes=1, milliseconds=5), 60.005)],
    )
    def test_numbers_and_timedeltas_become_float_seconds(self, value, seconds):
        """Numbers and timedeltas become float seconds."""
        found = as_seconds(value)
        assert found == seconds
        assert type(found) is float

    @pytest.mark.parametrize(
        "value", [-1, -0.001, math.inf, -math.inf, math.nan, 10**400, dt.timedelta(seconds=-1)]
    )
    def test_negative_and_infinite_durations_are_refused(self, value):
        """Negative and infinite durations are refused, and the error names the argument."""
        with pytest.raises(InvalidArgumentError, match="expires") as caught:
            as_seconds(value, "expires")
        assert caught.value.argument == "expires"

    @pytest.mark.parametrize("value", [1_000_000_000, 30_000_000_000, 1e300])
    def test_a_duration_that_looks_like_nanoseconds_is_refused(self, value):
        """
        A number that looks like nanoseconds is refused; a timedelta of that length is accepted.
        """
        with pytest.raises(
            InvalidArgumentError, match=r"expires must be seconds.*nanoseconds"
        ) as caught:
            as_seconds(value, "expires")
        assert f"and {value} looks like nanoseconds" in str(caught.value)
        assert as_seconds(dt.timedelta(days=36500), "expires") == 36500 * 86400.0

    @pytest.mark.parametrize("value", [1e-10, 5e-324])
    def test_too_short_for_the_wire(self, value):
        """A shorter duration would reach the server as 0, which means something else."""
        with pytest.raises(InvalidArgumentError, match=r"expires must be seconds.*less than"):
            as_seconds(value, "expires")
        assert as_seconds(1e-9) == 1e-9

    @pytest.mark.parametrize("value", ["1", None, True, b"1", [1]])
    def test_booleans_and_texts_are_no_durations(self, value):
        """Anything that is not a number or timedelta is refused, including booleans."""
        with pytest.raises(InvalidTypeError, match="expires"):
            as_seconds(value, "expires")

    def test_the_minimum_of_a_duration_is_inclusive(self):
        """The minimum is inclusive."""
        assert as_seconds(1, minimum=1) == 1
        with pytest.raises(InvalidArgumentError, match=">= 1"):
            as_seconds(0.999, minimum=1)


class TestDeadline:
    def test_counts_down(self, clock):
        """The remaining time shrinks with the monotonic clock and is never negative."""
        deadline = Deadline.after(dt.timedelta(seconds=2))
        assert (deadline.at, deadline.total) == (102.0, 2.0)
        assert deadline.remaining() == 2.0
        clock.now = 101.5
        assert deadline.remaining() == 0.5
        assert not deadline.expired()
        clock.now = 102.0
        assert deadline.expired()
        clock.now = 110.0
        assert deadline.remaining() == 0.0

    def test_zero_has_expired(self, clock):
        """A deadline of 0 seconds has already passed."""
        assert Deadline.after(0).expired()

    def test_for_ever(self):
        """A timeout that is longer than a lock can wait becomes the longest one."""
        deadline = Deadline.after(dt.timedelta.max)
        assert deadline.total == dt.timedelta.max.total_seconds()
        assert min(9e8, threading.TIMEOUT_MAX) <= deadline.remaining() <= threading.TIMEOUT_MAX

    def test_a_lock_can_wait_for_the_remaining_time(self, monkeypatch):
        """The remaining time is never longer than a lock can wait, which is 49 days on Windows."""
        monkeypatch.setattr(_deadline, "LONGEST_WAIT", 4294967.0)
        assert Deadline.after(None).remaining() == 4294967.0
        assert not Deadline.after(None).expired()

    def test_none_is_for_ever(self):
        """Without a number of seconds the deadline never passes."""
        remaining = Deadline.after(None).remaining()
        assert min(9e8, threading.TIMEOUT_MAX) <= remaining <= threading.TIMEOUT_MAX

    def test_the_remaining_time_is_a_timeout(self, clock):
        """Less time than the shortest duration counts as none."""
        deadline = Deadline.after(1)
        clock.now = math.nextafter(deadline.at, 0)
        assert deadline.remaining() == 0.0

    def test_at_most(self, clock):
        """A step with its own limit never gets more time than the call has left."""
        deadline = Deadline.after(10)
        assert deadline.at_most(3).remaining() == 3.0
        assert deadline.at_most(30) is deadline

    def test_the_repr_shows_the_remaining_and_the_whole_time(self, clock):
        """The repr shows the remaining and the whole time."""
        assert repr(Deadline.after(5)) == "<Deadline 5.000 s of 5 s left>"

    def test_is_checked_when_made(self):
        """A deadline cannot be made from an invalid duration."""
        with pytest.raises(InvalidArgumentError):
            Deadline.after(-1)
