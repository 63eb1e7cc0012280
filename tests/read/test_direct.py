from __future__ import annotations

import pytest

from helpers.interrupts import interrupted_at
from helpers.stored_pages import said
from jetsync._base.iterations import Iteration
from jetsync.errors import HandleClosedError
from jetsync.read import direct
from jetsync.values.stored import StoredPage


def test_ctrl_c_at_any_step_of_a_batch():
    """After Ctrl-C at any step, the pages have no gap, or a call says that some may be missing."""
    pytest.importorskip("pyarrow")
    made = [StoredPage([said(number, b"2026-11-20T16:38:28Z")]) for number in range(4)]
    ends = set()
    step, over = 0, False

    def take():
        for batch in batches:
            # No call, so that the interrupt loses no batch that was returned.
            taken[:] = batch
            return

    while not over:
        step += 1
        pages = Iteration((page for page in made), "scan")
        batches, taken = direct._record_batches(pages, ["sequence"]), []
        over = interrupted_at(step, take)
        begun = len(taken)
        try:
            rest = [page[0].sequence for page in pages]
            ends.add("continued")
        except HandleClosedError:
            ends.add("interrupted")
        else:
            assert rest == [*range(begun, 4)], step
    assert ends == {"continued", "interrupted"}
