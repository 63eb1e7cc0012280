from __future__ import annotations

import types

import pytest

from jetsync._api import strays
from jetsync._api.strays import StrayReports
from jetsync._proto.origin import Strays
from jetsync.testing import ManualClock


@pytest.fixture
def clock(monkeypatch):
    """A clock that the test moves."""
    clock = ManualClock()
    monkeypatch.setattr(strays.time, "monotonic", clock)
    return clock


def test_a_flood_is_reported_now_and_then(clock):
    """The first frame is reported at once, and all later ones together after ten seconds."""
    events, found = [], Strays()
    reports = StrayReports(types.SimpleNamespace(emit=events.append), "S", "C", acked=True)
    clock.advance(100)
    for _ in range(50):
        found.note("foreign", [(b"a", b"b", None, b"")])
        reports.report(found)
    assert [event.messages for event in events] == [1]
    clock.advance(10)
    found.note("surplus", [(b"c" * 1000, b"\xff", None, b"")])
    reports.report(found)
    assert [event.messages for event in events] == [1, 49, 1]
    assert [event.redelivered for event in events] == [False, False, True]
    assert (len(events[2].subject), events[2].reply) == (256, "\ufffd")
