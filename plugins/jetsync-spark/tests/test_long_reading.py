"""
A streaming query that runs for long, and one whose driver is killed repeatedly.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pyspark
import pytest
from sessions import session
from streams_to_read import extend, numbered
from waiting import eventually
from writing import lost_and_twice

import jetsync
import jetsync_spark
from jetsync.devserver import DevServer
from jetsync_spark.common.errors import java_missing

pytest.importorskip("pyspark.sql.datasource", reason="PySpark 3.5 has no data sources in Python")

pytestmark = [
    pytest.mark.live,
    pytest.mark.spark,
    pytest.mark.soak,
    pytest.mark.skipif(java_missing() is not None, reason=str(java_missing())),
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc"),
]

BATCHES = int(os.environ.get("JETSYNC_SPARK_BATCHES", "500"))
_logger = logging.getLogger("tests")
KILLS = int(os.environ.get("JETSYNC_SPARK_KILLS", "5"))
CHECKPOINTS = "org.apache.spark.sql.execution.streaming.checkpointing"
# Without Hadoop's libraries, Spark otherwise starts `readlink` and `chmod` many times for each
# micro-batch, which takes about a fifth of its time.
QUICK = {
    "spark__hadoop__fs__file__impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    "spark__sql__streaming__checkpoint__fileChecksum__enabled": "false",
    "spark__sql__streaming__checkpointFileManagerClass": (
        f"{CHECKPOINTS}.FileSystemBasedCheckpointFileManager"
    ),
}


def workers(pid):
    """
    Return the memory in KiB of each Python process below one, by purpose.
    """
    children = {}
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, IndexError):
            if entry.name.isdigit():
                parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
                children.setdefault(parent, []).append(entry)
    found = {}
    left = [pid]
    while left:
        for entry in children.get(left.pop(), ()):
            left.append(int(entry.name))
            with contextlib.suppress(OSError, StopIteration):
                line = (entry / "cmdline").read_text().replace("\0", " ")
                if "pyspark" in line:
                    found[int(entry.name), line.split()[-1]] = memory(entry.name)
    return found


def memory(pid):
    """
    Return the memory of a process in KiB.
    """
    status = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(each for each in status if each.startswith("VmRSS")).split()[1])


# An hour, and more for a campaign of many micro-batches.
@pytest.mark.timeout(3600 + 2 * BATCHES)
@pytest.mark.parametrize("sink", ["foreachBatch", "exactlyonce"])
def test_many_batches(tmp_path, sink):
    """
    Memory and requests for each micro-batch stay constant, connections are few, and an idle query
    sends few requests.
    """
    with DevServer() as server, jetsync.connect(server.url) as client:
        js = client.jetstream()
        with numbered(js, 0) as stream:
            # The class has another name in earlier versions.
            spark = session("local[2]", **(QUICK if pyspark.__version__ >= "4.3" else {}))
            try:
                run_batches(server, client, stream, spark, tmp_path, sink)
            finally:
                spark.stop()


class CountingSink:
    """
    Counts the rows of micro-batches.
    """

    def __init__(self):
        self._rows = 0

    def start(self, frame, checkpoint):
        """Start a query that counts the rows of a DataFrame."""
        writer = frame.writeStream.foreachBatch(self._count)
        return writer.option("checkpointLocation", checkpoint).start()

    def check(self, rows):
        """Check that there were so many rows."""
        assert self._rows == rows

    def _count(self, rows, _batch):
        self._rows += rows.count()


class StreamSink:
    """
    Writes rows to a stream, each exactly once.
    """

    def __init__(self, server, js):
        self._options = {"servers": server.url, "stream": "OUT", "mode": "exactlyonce"}
        self._target = js.create_stream(
            "OUT",
            subjects=["OUT.>", "ledger.OUT.>"],
            storage="memory",
            allow_atomic=True,
            allow_direct=True,
            allow_rollup_hdrs=True,
        )

    def start(self, frame, checkpoint):
        """Start a query that writes the rows of a DataFrame."""
        writer = frame.selectExpr("'OUT.a' as subject", "data").writeStream.format("jetstream")
        return writer.options(**self._options).option("checkpointLocation", checkpoint).start()

    def check(self, rows):
        """Check that there were so many rows."""
        assert lost_and_twice(self._target, rows) == (0, 0)


def run_batches(server, client, stream, spark, folder, kind):
    """
    Read that many micro-batches of a few messages each, and measure the processes meanwhile.
    """
    js = client.jetstream()
    java = spark._jvm.java.lang.ProcessHandle.current().pid()
    reader = spark.readStream.format("jetstream").option("servers", server.url)
    reader = reader.option("stream", stream.name).option("startingOffsets", "earliest")
    frame = reader.option("maxOffsetsPerTrigger", "20").option("minPartitions", "2").load()
    sink = CountingSink() if kind == "foreachBatch" else StreamSink(server, js)
    query = sink.start(frame, str(folder / "checkpoint"))
    sizes, requests = [], []
    connections = batches = 0
    try:
        for _ in range(10):
            began, sent = time.monotonic(), server.monitor("varz")["in_msgs"]
            extend(js, stream, 2 * BATCHES)
            done = wait_read(query, stream.info().state.last_seq + 1)
            seconds, more = time.monotonic() - began, done - batches
            sent = server.monitor("varz")["in_msgs"] - sent - 2 * BATCHES
            batches = done
            requests.append(sent / more)
            connections = max(connections, server.monitor("connz")["num_connections"] - 1)
            sizes.append(workers(java))
            _logger.info(
                "%s batches, %.3f s and %.2f messages to the server each, %s connections, "
                "%s KiB of Java, KiB of Python: %s",
                *(batches, seconds / more, requests[-1], connections, memory(java), sizes[-1]),
            )
        sink.check(20 * BATCHES)
        assert batches >= BATCHES
        # Two workers for tasks, twice as many to write, one planner, and those with which Spark
        # plans and commits.
        assert connections <= (8 if kind == "foreachBatch" else 10)
        assert requests[-1] <= 1.1 * requests[2] + 1
        same = sizes[2].keys() & sizes[-1].keys()
        assert any("python_streaming_source_runner" in name for _, name in same)
        for process in same:
            assert sizes[-1][process] <= 1.1 * sizes[2][process] + 5_000, process
        with client.subscribe("$JS.API.>") as api:
            client.flush()
            began = time.monotonic()
            assert not query.awaitTermination(5)
            client.flush()
            seconds = time.monotonic() - began
            asked = sum(1 for _ in iter(lambda: api.next(timeout=0.1), None))
        _logger.info("%s requests a second with nothing to do", asked / seconds)
        assert asked < 10 * seconds
    finally:
        query.stop()


def wait_read(query, end):
    """
    Wait until a query has read its stream up to a sequence, and return the number of micro-batches.
    """
    until = time.monotonic() + 600 + BATCHES
    while True:
        assert not query.awaitTermination(0.5)
        found = jetsync_spark.progress(query)
        if found is not None and found.streams[0].end >= end:
            # Without rows, it is the next micro-batch.
            return found.batch + (found.rows > 0)
        assert time.monotonic() < until, found


@pytest.mark.parametrize("begins", ["latest", "earliest"])
def test_killed_drivers(tmp_path, begins):
    """
    Drivers that are killed at any moment, also in the first batch, lose and repeat nothing.
    """
    chance = random.Random(begins)
    stop = threading.Event()
    with DevServer() as server, jetsync.connect(server.url) as client:
        js = client.jetstream()
        with numbered(js, 500) as stream:

            def publish():
                with jetsync.connect(server.url) as other:
                    while not stop.wait(0.5):
                        extend(other.jetstream(), stream, 20)

            def ended():
                stop.set()
                publisher.join()

            publisher = threading.Thread(target=publish)
            publisher.start()
            options = json.dumps({"startingOffsets": begins, "maxOffsetsPerTrigger": "300"})
            arguments = [server.url, stream.name, str(tmp_path), options]
            try:
                for _ in range(KILLS):
                    # During its start, in its first batch, or some batches later.
                    wanted = len([*tmp_path.glob("*.json")]) + chance.choice([0, 0, 1, 2, 4])
                    with running(tmp_path, arguments) as job:
                        wait_for_files(tmp_path, wanted, job)
                        time.sleep(chance.uniform(0.0, 1.0))
                while not caught_up(tmp_path, arguments, stream, ended):
                    pass
            finally:
                ended()
            rows = rows_of(tmp_path)[stream.name]
            assert rows == [*range(rows[0], stream.info().state.last_seq + 1)]
            if begins == "earliest":
                assert rows[0] == 1
            _logger.info("%s rows, %s batches", len(rows), len([*tmp_path.glob("*.json")]))


def caught_up(folder, arguments, stream, ended):
    """
    Run the job until it has read all messages; return False if it ended before.

    The publisher continues until the job has read a message, because it may begin with the latest.
    """
    end = time.monotonic() + 400
    with running(folder, arguments) as job:
        while job.poll() is None:
            assert time.monotonic() < end
            time.sleep(0.5)
            rows = rows_of(folder).get(stream.name)
            if rows:
                ended()
                if rows[-1] == stream.info().state.last_seq:
                    return True
    return False


@contextlib.contextmanager
def running(folder, arguments):
    """
    Run the job during the block and kill it then, its JVM first or last.
    """
    pids = folder / "pids"
    pids.unlink(missing_ok=True)
    job = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("reading_job.py")), *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )
    try:
        eventually(lambda: pids.exists() or job.poll() is not None, 300)
        assert job.poll() is None
        yield job
    finally:
        for pid in reversed(json.loads(pids.read_text("utf-8"))) if pids.exists() else [job.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        job.wait(30)


def wait_for_files(folder, wanted, job):
    """
    Wait until that many files exist; return False if the job ended before.

    Spark gives its Python processes ten seconds to start, and a query fails if one takes longer.
    """
    end = time.monotonic() + 300
    while len([*folder.glob("*.json")]) < wanted:
        if job.poll() is not None:
            return False
        assert time.monotonic() < end
        time.sleep(0.05)
    return True


def rows_of(folder):
    """
    Return the sequences in all files by stream, counting each batch once.
    """
    found = {}
    for path in sorted(folder.glob("*.json"), key=lambda path: int(path.stem)):
        for stream, sequence in json.loads(path.read_text("utf-8")):
            found.setdefault(stream, []).append(sequence)
    return found


def test_killed_drivers_of_several_streams(tmp_path, unique):
    """
    Drivers that read a pattern of streams lose and repeat nothing, while streams are created.

    One stream gets many messages, one few, and a new one begins between two drivers.
    """
    chance = random.Random("several")
    stop = threading.Event()
    made = []
    with DevServer() as server, jetsync.connect(server.url) as client:
        js = client.jetstream()

        def add():
            name = f"{unique}_{len(made)}"
            made.append(js.create_stream(name, subjects=[f"{name}.>"], allow_direct=True))
            extend(js, made[-1], 10)

        def publish():
            with jetsync.connect(server.url) as other:
                while not stop.wait(0.5):
                    for number, stream in enumerate([*made]):
                        extend(other.jetstream(), stream, 1 if number else 50)

        add()
        add()
        publisher = threading.Thread(target=publish)
        publisher.start()
        options = json.dumps({"startingOffsets": "earliest", "maxOffsetsPerTrigger": "500"})
        arguments = [server.url, f"{unique}_*", str(tmp_path), options]
        try:
            for _ in range(KILLS):
                wanted = len([*tmp_path.glob("*.json")]) + chance.choice([0, 1, 2, 4])
                with running(tmp_path, arguments) as job:
                    wait_for_files(tmp_path, wanted, job)
                    time.sleep(chance.uniform(0.0, 1.0))
                add()
            stop.set()
            publisher.join()
            expected = {each.name: [*range(1, each.info().state.last_seq + 1)] for each in made}
            end = time.monotonic() + 600
            while rows_of(tmp_path) != expected:
                assert time.monotonic() < end, {
                    stream: (len(rows), len(expected[stream]))
                    for stream, rows in rows_of(tmp_path).items()
                }
                with running(tmp_path, arguments) as job:
                    while job.poll() is None and rows_of(tmp_path) != expected:
                        assert time.monotonic() < end
                        time.sleep(0.5)
            _logger.info("%s batches, %s streams", len([*tmp_path.glob("*.json")]), len(made))
        finally:
            stop.set()
            publisher.join()


@pytest.mark.skipif(pyspark.__version__ < "4.2", reason="consumers need PySpark 4.2")
@pytest.mark.parametrize("subjects", [1, 2])
def test_killed_drivers_of_a_work_queue(tmp_path, subjects):
    """
    Drivers that read a work queue lose and repeat nothing, and acknowledge everything.
    """
    chance = random.Random("queue")
    stop = threading.Event()
    with (
        DevServer() as server,
        jetsync.connect(server.url) as client,
        numbered(client.jetstream(), 0, retention="workqueue") as stream,
    ):

        def publish():
            with jetsync.connect(server.url) as other:
                while not stop.wait(0.2):
                    extend(other.jetstream(), stream, 20, subjects=subjects)

        publisher = threading.Thread(target=publish)
        publisher.start()
        asked = {
            "consumer": "spark",
            "subjectFilter": f"{stream.name}.0",
            "ackWait": "5s",
            "maxOffsetsPerTrigger": "300",
            "minPartitions": "2",
        }
        arguments = [server.url, stream.name, str(tmp_path), json.dumps(asked)]
        try:
            for _ in range(KILLS):
                wanted = len([*tmp_path.glob("*.json")]) + chance.choice([0, 0, 1, 2, 4])
                with running(tmp_path, arguments) as job:
                    wait_for_files(tmp_path, wanted, job)
                    time.sleep(chance.uniform(0.0, 1.0))
        finally:
            stop.set()
            publisher.join()
        last = stream.info().state.last_seq
        left = last - last // subjects
        end = time.monotonic() + 400
        while stream.info().state.messages > left:
            assert time.monotonic() < end
            with running(tmp_path, arguments) as job:
                while job.poll() is None and stream.info().state.messages > left:
                    assert time.monotonic() < end
                    time.sleep(0.5)
        assert sorted(rows_of(tmp_path)[stream.name]) == [*range(subjects, last + 1, subjects)]
        _logger.info("%s rows, %s batches", last // subjects, len([*tmp_path.glob("*.json")]))
