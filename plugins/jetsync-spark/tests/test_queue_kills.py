"""
Queries with a consumer that are killed at random moments.

A child process does the work of a driver and its tasks, and keeps the checkpoint as Spark does: the
offset before a batch runs, and a commit after it. `test_long_reading.py` does the same with Spark.
"""

import contextlib
import json
import os
import random
import signal
import time

import pytest
from children import end, start
from streams_to_read import extend, numbered
from waiting import eventually

import jetsync
from jetsync_spark.common.options import ConnectSettings, read_settings
from jetsync_spark.read.options import ReadOptions

pytest.importorskip("pyspark.sql.streaming.datasource", reason="consumers need PySpark 4.2")

from queries import SCHEMA, Rows

from jetsync_spark.read.work_queue import QueueReader

pytestmark = pytest.mark.live

KILLS = 25


class Checkpoint:
    """
    A folder with the offsets, the rows and the commits of a query.
    """

    def __init__(self, folder):
        self.folder = folder

    def write(self, kind, number, value):
        """Write a file in one step."""
        unfinished = self.folder / "unfinished"
        unfinished.write_text(json.dumps(value), "utf-8")
        unfinished.replace(self.folder / f"{number}.{kind}")

    def read(self, kind):
        """Return the contents of all files of a kind."""
        count = len([*self.folder.glob(f"*.{kind}")])
        return [
            json.loads((self.folder / f"{number}.{kind}").read_text("utf-8"))
            for number in range(count)
        ]


def query(options, checkpoint):
    """
    Run micro-batches until killed.
    """
    reader = QueueReader(
        read_settings(ConnectSettings, options), read_settings(ReadOptions, options), SCHEMA, 2
    )
    offsets, commits = checkpoint.read("offset"), len(checkpoint.read("commit"))
    while True:
        start = offsets[commits - 1] if commits else reader.initialOffset()
        if commits == len(offsets):
            end = reader.latestOffset(start, Rows(40))
            if end == start:
                continue
            checkpoint.write("offset", commits, end)
            offsets.append(end)
        rows = [
            sequence
            for part in reader.partitions(start, offsets[commits])
            for batch in reader.read(part)
            for sequence in batch.column("sequence").to_pylist()
        ]
        known = checkpoint.read("rows")[commits:]
        assert known in ([], [rows]), "a batch that ran again has other rows"
        checkpoint.write("rows", commits, rows)
        checkpoint.write("commit", commits, None)
        commits += 1


def kill(child):
    """
    Kill a process, which must not have failed before.
    """
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)
    assert end(child) == -signal.SIGKILL


# Newer Pythons warn of forks in processes with threads; these children use none of the parent's.
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("subjects", [1, 3], ids=["all", "a part"])
def test_each_message_is_in_one_batch(nats_server, js, tmp_path, subjects):
    """
    At random moments of one run: no message is lost, and none is in two batches.
    """
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")  # noqa: T201 - shown when it fails.
    chance = random.Random(seed)
    checkpoint = Checkpoint(tmp_path)

    def committed():
        return len([*tmp_path.glob("*.commit")])

    with numbered(js, 0, retention="workqueue") as stream:
        options = {
            "servers": nats_server.url,
            "stream": stream.name,
            "consumer": "spark",
            "ackWait": "1s",
            "minPartitions": "2",
            "subjectFilter": f"{stream.name}.0",
        }
        for _ in range(KILLS):
            extend(js, stream, 60, subjects=subjects)
            child = start(query, options, checkpoint)
            try:
                wanted = committed() + chance.choice([0, 0, 1, 2])
                until = time.monotonic() + 1.0
                eventually(lambda w=wanted, u=until: committed() >= w or time.monotonic() > u)
                time.sleep(chance.random() * 0.1)
            finally:
                kill(child)
        expected = [*range(subjects, KILLS * 60 + 1, subjects)]
        child = start(query, options, checkpoint)
        try:
            eventually(lambda: sum(map(len, checkpoint.read("rows"))) >= len(expected), 60)
            eventually(lambda: stream.info().state.messages == KILLS * 60 - len(expected), 60)
        finally:
            kill(child)
        rows = [sequence for batch in checkpoint.read("rows") for sequence in batch]
        assert sorted(rows) == expected
        assert committed() > 5
        with pytest.raises(jetsync.MessageNotFoundError):
            stream.get_next(f"{stream.name}.0", 1, direct=False)
