"""
A campaign with members that come, go, are killed and paused; see campaign.py.
"""

from __future__ import annotations

import os

import pytest

pytestmark = [pytest.mark.live, pytest.mark.soak]


@pytest.mark.timeout(1800)
@pytest.mark.skipif(os.name == "nt", reason="Windows cannot stop processes with signals")
def test_no_message_is_lost_or_out_of_order():
    """
    Every message is handled, each key in order, and each repetition has a reason.
    """
    from campaign import run

    found = run(int(os.environ.get("JETSYNC_GROUPS_MESSAGES", "50000")), 120)
    assert (found["missing"], found["out of order"], found["left"]) == (0, 0, 0)
    assert found["unexplained"] == found["errors"] == []
    assert "two live members" not in found["overlaps"]
