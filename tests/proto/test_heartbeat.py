from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jetsync._proto.heartbeat import HeartbeatWatch
from jetsync.testing import ManualClock


@pytest.fixture
def clock():
    """A clock that is moved by hand."""
    return ManualClock()


class TestHeartbeatWatch:
    def test_two_intervals(self, clock):
        """Two intervals of silence are a miss, a moment less is none."""
        watch = HeartbeatWatch(5.0, clock())
        assert watch.due() == clock() + 10.0
        assert not watch.missed(clock.advance(9.75))
        assert watch.missed(clock.advance(0.25))
        assert watch.silence(clock()) == 10.0

    def test_signs_of_life(self, clock):
        """Each sign of life starts the silence anew."""
        watch = HeartbeatWatch(5.0, clock())
        for _ in range(5):
            watch.restart(clock.advance(9.0))
            assert not watch.missed(clock())
            assert watch.silence(clock()) == 0.0
        assert watch.missed(clock.advance(10.0))

    @pytest.mark.parametrize("interval", [None, 0, 0.0])
    def test_off(self, clock, interval):
        """Without an interval nothing is ever missed."""
        watch = HeartbeatWatch(interval, clock())
        assert watch.due() is None
        assert not watch.missed(clock.advance(1e9))

    def test_restarted(self, clock):
        """Where silence meant nothing, it is counted anew."""
        watch = HeartbeatWatch(5.0, clock())
        clock.advance(60.0)
        watch.restart(clock())
        assert watch.due() == clock() + 10.0
        assert not watch.missed(clock.advance(9.5))
        assert watch.missed(clock.advance(0.5))

    def test_repr(self, clock):
        """The repr says whether it watches."""
        watch = HeartbeatWatch(0.5, clock())
        assert repr(watch) == "<HeartbeatWatch on interval=0.5>"
        assert repr(HeartbeatWatch(None, clock())) == "<HeartbeatWatch off interval=0>"

    @given(st.floats(0.1, 60.0), st.lists(st.floats(0.0, 100.0)))
    @settings(max_examples=50, deadline=None)
    def test_missed_from_when_it_is_due(self, interval, steps):
        """A miss is found at the moment that was announced, and not before."""
        clock = ManualClock()
        watch = HeartbeatWatch(interval, clock())
        for step in steps:
            due = watch.due()
            clock.advance(step)
            assert watch.missed(clock()) is (clock() >= due)
            watch.restart(clock())
