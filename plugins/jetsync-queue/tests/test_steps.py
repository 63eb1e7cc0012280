"""
How long a receiver waits for a server that is asked whether it is there.
"""

from __future__ import annotations

import pytest

from jetsync_queue.steps import ANSWER, LATE_ANSWER, patience_after


@pytest.mark.parametrize(("answer", "patience"), [(0.001, ANSWER), (0.1, 0.4), (4.0, LATE_ANSWER)])
def test_a_server_gets_four_times_as_long_as_before_within_limits(answer, patience):
    """
    A very late answer does not make the next silence block the reports of progress for long.
    """
    assert patience_after(answer) == pytest.approx(patience)
