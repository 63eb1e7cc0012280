"""
Writing processes that are killed, or stopped and resumed too late, at random moments.

A child process does the work of a driver and its tasks: micro-batches of two partitions each, and a
file for each committed one. The same number of kills would take Spark itself a quarter of an hour,
see `test_faults.py`.
"""

import collections
import contextlib
import os
import random
import signal
import time

import pytest
from children import end, start
from waiting import eventually
from writing import payloads, plan_for, rows_of, run

from jetsync_spark.write.ledger import OvertakenError
from jetsync_spark.write.options import EXACTLY_ONCE

ROWS = 600
"""Rows of a partition."""

OVERTAKEN = 7
"""The status of a child that was refused."""


def write_on(server, name, commits, until):
    """
    Write all micro-batches that are not committed, like a driver that is restarted.
    """
    plan = plan_for(server, name, mode=EXACTLY_ONCE, chunk_size=50)
    for batch in range(len(list(commits.iterdir())), until):
        for partition in range(2):
            first = (2 * batch + partition) * ROWS
            run(plan, rows_of(name, ROWS, first=first), partition=partition, batch=batch)
        # Fails if another process has committed it.
        (commits / str(batch)).touch(exist_ok=False)


def try_to_write(*work):
    """
    Write, and return the status of the process.
    """
    try:
        write_on(*work)
    except (OvertakenError, FileExistsError):
        return OVERTAKEN
    return 0


# Newer Pythons warn of forks in processes with threads; these children use none of the parent's.
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize(
    "rollup", [False, pytest.param(True, marks=pytest.mark.soak)], ids=["kept", "rolled up"]
)
def test_each_row_is_stored_once(nats_server, target, tmp_path, rollup):
    """
    At twenty-five random moments of one run: no row is lost, and none is stored twice.

    On a stream that allows rollups, one message of the ledger remains for each partition.
    """
    target.update(allow_rollup_hdrs=rollup)
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")  # noqa: T201 - shown when it fails.
    random.seed(seed)
    commits = tmp_path / "commits"
    commits.mkdir()

    def has_written(before, until):
        return target.info().state.last_seq > before or len(list(commits.iterdir())) == until

    until = 10
    happened = collections.Counter()
    while happened["killed"] + happened["stopped"] < 25:
        before = target.info().state.last_seq
        child = start(try_to_write, nats_server, target.name, commits, until)
        try:
            eventually(lambda before=before, until=until: has_written(before, until), 60)
            time.sleep(random.random() * 0.05)
            if random.random() < 0.3:
                os.kill(child, signal.SIGSTOP)
                other = start(try_to_write, nats_server, target.name, commits, until)
                assert end(other) == 0
                os.kill(child, signal.SIGCONT)
                status = end(child)
                assert status in {0, OVERTAKEN}
                happened["refused" if status else "in time"] += 1
                happened["stopped"] += 1
            else:
                os.kill(child, signal.SIGKILL)
                happened["killed"] += end(child) < 0
        except BaseException:
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(child, signal.SIGKILL)
                end(child)
            raise
        if len(list(commits.iterdir())) == until:
            until += 10
    assert end(start(try_to_write, nats_server, target.name, commits, until)) == 0

    print(dict(happened), until, "micro-batches")  # noqa: T201 - as above.
    found = collections.Counter(payloads(target))
    expected = {data for _, data in rows_of(target.name, until * 2 * ROWS)}
    assert set(found) == expected
    assert len(found) == sum(found.values())
    ledger = target.info(subjects_filter=f"ledger.{target.name}.>").state.subjects
    assert (list(ledger.values()) == [1, 1]) == rollup
