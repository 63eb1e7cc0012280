from __future__ import annotations

import re

import pytest


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_children_of_every_start_method_store_their_messages(start, stream, ended_well, method):
    """
    Child processes of every start method store messages and keep their exit codes.

    The parent process has a client all the time, which works afterwards.
    """
    program = start("jobs", method)

    assert program.wait() == 0, program.output
    ended_well(program)
    assert "stored 60\n" in program.output
    codes = [int(code) for code in re.findall(r"exit code (-?\d+)", program.output)]
    assert codes == [3, 5, 7] if method == "fork" else codes == [3, 5]
    assert stream.info().state.messages == 63
