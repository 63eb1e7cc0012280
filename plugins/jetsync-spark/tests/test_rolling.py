"""
Spark jobs while the servers of a cluster restart one by one, and while a single server is away.

No job may fail: the sessions try each task only once. ``JETSYNC_SPARK_ROUNDS`` is the number of
rounds of the soak test, in each of which every server restarts.
"""

import collections
import itertools
import os
import random
import shutil
import tempfile
import threading
import time

import pyspark
import pytest
from sessions import session
from waiting import eventually
from writing import payloads

import jetsync
import jetsync_spark
from jetsync import testing
from jetsync.devserver import DevServer
from jetsync_spark.common.errors import java_missing

pytest.importorskip("pyspark.sql.datasource", reason="PySpark 3.5 has no data sources in Python")

pytestmark = [pytest.mark.live, pytest.mark.spark]

ROUNDS = int(os.environ.get("JETSYNC_SPARK_ROUNDS", "10"))

ROWS = 200
"""Rows of each write."""

DOWN = 2.0
"""Seconds for which a server of the cluster is away."""

LATE = "Python worker failed to connect back"
"""Spark gives up if a new process of Python takes more than 10 s to start on a busy machine."""

AWAY = 5.0
"""Seconds for which a single server is away."""

HAS_QUEUES = tuple(map(int, pyspark.__version__.split(".")[:2])) >= (4, 2)
"""Whether this PySpark reads work queues."""


@pytest.fixture(scope="module")
def spark():
    """
    A session that tries each task once.
    """
    missing = java_missing()
    if missing:
        pytest.skip(missing)
    made = session("local[2]")
    yield made
    made.stop()


class Jobs:
    """
    One job of each kind, on streams of its own.

    Args:
        spark: The session.
        server: The server or the cluster.
        replicas: How many servers have each stream.
    """

    def __init__(self, spark, server, replicas):
        self.spark = spark
        self.server = server
        self.url = server.url
        """Where the next jobs connect."""

        self.written = collections.Counter()
        """How many rows were written to each stream."""

        with jetsync.connect(server.url, request_timeout=30) as client:
            js = client.jetstream()
            for name in ("IN", "PLAIN", "ATOMIC", "ONCE", "BATCHES", "SINK"):
                js.create_stream(
                    name,
                    subjects=[f"{name}.>", f"ledger.{name}.>"],
                    num_replicas=replicas,
                    allow_atomic=True,
                    allow_direct=True,
                )
            # It is read by a consumer, and has one replica: while its server restarts, it is
            # offline.
            js.create_stream("SINGLE", subjects=["SINGLE.>"], num_replicas=1)
            js.create_stream(
                "JOBS", subjects=["JOBS.>"], num_replicas=replicas, retention="workqueue"
            )
            bucket = js.create_key_value("users", history=5, num_replicas=replicas)
            for number in range(20):
                bucket.put(f"key{number}", b"1")
            for name in ("IN", "SINGLE"):
                js.publish_many((f"{name}.x", b"%d" % number) for number in range(ROWS))

    def all(self):
        """Return the jobs by their names."""
        found = {
            name.removeprefix("job_"): getattr(self, name)
            for name in dir(self)
            if name.startswith("job_")
        }
        if not HAS_QUEUES:
            del found["work_queue"]
        return found

    @property
    def options(self):
        """The connection options of a program."""
        return jetsync.ConnectOptions(servers=self.url)

    def job_read(self):
        """Read a stream."""
        frame = self._read(stream="IN")
        assert frame.count() == ROWS
        assert self._read(stream="IN", startingTimestamp=0, subjectFilter="IN.x").count() == ROWS

    def job_read_by_consumer(self):
        """Read a stream without direct gets and with one replica."""
        assert self._read(stream="SINGLE").count() == ROWS

    def job_bucket(self):
        """Read a bucket, now and at a revision."""
        assert self._read(bucket="users").count() == 20
        assert self._read(bucket="users", atRevision=10).count() == 10

    def job_write(self):
        """Write a batch at least once."""
        self._write(self._rows("PLAIN"), stream="PLAIN")

    def job_write_atomic(self):
        """Write a batch in atomic chunks."""
        self._write(self._rows("ATOMIC"), stream="ATOMIC", mode="atomic", chunkSize=50)

    def job_write_exactly_once(self):
        """Write a batch with a ledger."""
        name = f"w{self.written['ONCE']}"
        self._write(
            self._rows("ONCE"), stream="ONCE", mode="exactlyonce", writeId=name, chunkSize=50
        )

    def job_publish_arrow(self):
        """Write with `publish_arrow`."""
        jetsync_spark.publish_arrow(self._rows("PLAIN"), self.options, stream="PLAIN").collect()

    def job_publish_arrow_exactly_once(self):
        """Write with `publish_arrow` and a ledger, which also records the partitions."""
        jetsync_spark.publish_arrow(
            self._rows("ONCE"),
            self.options,
            stream="ONCE",
            mode="exactlyonce",
            write_id=f"a{self.written['ONCE']}",
        ).collect()

    def job_sink(self):
        """Write with `JetStreamSink`."""
        sink = jetsync_spark.JetStreamSink(self.options, stream="PLAIN")
        rows = self._rows("PLAIN")
        sink.check(rows)
        rows.foreachPartition(sink)

    def job_foreach_batch_with_the_format(self):
        """Write micro-batches with the format, by ``foreachBatch``."""

        def write(frame, _batch):
            self._write(frame, stream="BATCHES")

        self._run(lambda writer: writer.foreachBatch(write), "BATCHES")

    def job_foreach_batch_exactly_once(self):
        """Write micro-batches with `exactly_once`."""
        write = jetsync_spark.exactly_once(self.options, stream="ONCE")
        self._run(lambda writer: writer.foreachBatch(write), "ONCE")

    def job_streaming_sink(self):
        """Write micro-batches with the sink, whose commits check the ledger."""
        self._run(
            lambda writer: writer.format("jetstream").options(
                servers=self.url, stream="SINK", mode="exactlyonce", chunkSize=50
            ),
            "SINK",
        )

    def job_work_queue(self):
        """Read messages of a work queue."""
        self._write(self.spark.sql("select 'JOBS.x' as subject, 'a' as data"), stream="JOBS")
        frame = self._stream(stream="JOBS", consumer="spark", ackWait="60s")
        self._finish(frame.writeStream.format("noop"))

    def _rows(self, stream):
        first = self.written[stream]
        self.written[stream] += ROWS
        return self.spark.range(first, first + ROWS, numPartitions=2).selectExpr(
            f"'{stream}.x' as subject", "cast(id as string) as data"
        )

    def _read(self, **options):
        reader = self.spark.read.format("jetstream").option("servers", self.url)
        return reader.options(**options).load()

    def _stream(self, **options):
        reader = self.spark.readStream.format("jetstream").option("servers", self.url)
        return reader.options(**options).load()

    def _write(self, rows, **options):
        writer = rows.write.format("jetstream").mode("append")
        writer.options(servers=self.url, **options).save()

    def _run(self, target, stream):
        """Run a query from the input to a stream, with a new checkpoint, in two micro-batches."""
        first = self.written[stream]
        self.written[stream] += ROWS
        frame = self._stream(
            stream="IN", startingOffsets="earliest", maxOffsetsPerTrigger=ROWS // 2
        ).selectExpr(
            f"'{stream}.x' as subject",
            f"cast({first} + cast(cast(data as string) as int) as string) as data",
        )
        self._finish(target(frame.writeStream))

    def _finish(self, writer):
        folder = tempfile.mkdtemp()
        try:
            query = writer.option("checkpointLocation", folder).trigger(availableNow=True).start()
            query.awaitTermination()
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def check(self):
        """Check that all rows are stored, once where that is promised."""
        with jetsync.connect(self.server.url, request_timeout=30) as client:
            js = client.jetstream()
            for name, count in self.written.items():
                found = collections.Counter(payloads(js.stream(name)))
                assert set(found) == {b"%d" % number for number in range(count)}, name
                if name in {"ONCE", "SINK"}:
                    assert sum(found.values()) == count, name


class Rounds(threading.Thread):
    """
    Restarts the servers of a cluster one by one, each while another job runs.

    As in an upgrade, a server is restarted when the last one is healthy, so its replicas are
    current. In every second round, the servers are killed, so that their leaders are missing for
    seconds. The job knows only the address of this server.
    """

    def __init__(self, cluster, count, later):
        super().__init__(daemon=True)
        self.cluster = cluster
        self.count = count
        self.later = later
        """Maximum seconds between the begin of a job and a restart."""

        self.begun = threading.Semaphore(0)
        """Released when a job begins."""

        self.url = cluster.urls[0]
        """The server that restarts next."""

        self.restarts = 0
        self.error = None

    def run(self):
        """Restart all servers, that many times."""
        try:
            for number in range(self.count):
                for index in range(3):
                    self.url = self.cluster.urls[index]
                    self.begun.acquire()
                    # Any phase of a job may meet the restart.
                    time.sleep(random.random() * self.later)
                    (self.cluster.kill if number % 2 else self.cluster.stop)(index)
                    # As long as an upgrade takes at least.
                    time.sleep(DOWN)
                    self.cluster.start(index)
                    testing.eventually(lambda index=index: self._is_healthy(index), timeout=120)
                    self.restarts += 1
        except Exception as error:  # noqa: BLE001 - the test raises it.
            self.error = error

    def _is_healthy(self, index):
        try:
            return self.cluster.monitor("healthz", index).get("status") == "ok"
        except jetsync.DevServerError:
            return False


def report(restarting, durations, failures):
    """
    Print what has happened, which pytest shows with -s or if the test fails.
    """
    jobs = sum(map(len, durations.values()))
    print(f"{restarting.restarts} restarts, {jobs} jobs, {len(failures)} failed")  # noqa: T201
    for name, seconds in sorted(durations.items()):
        each = ", ".join(f"{one:.1f}" for one in seconds)
        print(f"{name}: {each} s")  # noqa: T201


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("rounds", "some", "later"),
    [
        (1, ("write", "publish_arrow", "foreach_batch_with_the_format", "bucket"), 0.0),
        pytest.param(ROUNDS, (), 3.0, marks=pytest.mark.soak),
    ],
    ids=["short", "soak"],
)
def test_no_job_fails_while_the_servers_of_a_cluster_restart(spark, rounds, some, later):
    """
    Reads, writes of all kinds, tables of buckets and queries run in turn: none fails, no row is
    lost, and none is stored twice where that is promised.
    """
    failures, durations = [], collections.defaultdict(list)
    with DevServer(cluster=3) as cluster:
        jobs = Jobs(spark, cluster, 3)
        # So that Spark has started its workers when the first server restarts.
        jobs.job_write()
        restarting = Rounds(cluster, rounds, later)
        restarting.start()
        for name in itertools.cycle(some or jobs.all()):
            if not restarting.is_alive() and len(durations) == len(some or jobs.all()):
                break
            jobs.url = restarting.url
            restarting.begun.release()
            began, before = time.monotonic(), jobs.written.copy()
            try:
                jobs.all()[name]()
            except Exception as error:  # noqa: BLE001 - the test reports all of them.
                if LATE in str(error):
                    # Before it has called anything of this package.
                    jobs.written = before
                    continue
                failures.append(f"{name}: {error}")
            durations[name].append(time.monotonic() - began)
        report(restarting, durations, failures)
        if restarting.error is not None:
            raise restarting.error
        assert not failures
        jobs.check()


@pytest.mark.parametrize(
    "name",
    [
        "write",
        *(
            pytest.param(name, marks=pytest.mark.soak)
            for name in (
                "read",
                "read_by_consumer",
                "bucket",
                "write_atomic",
                "write_exactly_once",
                "publish_arrow",
                "publish_arrow_exactly_once",
                "sink",
                "foreach_batch_with_the_format",
                "foreach_batch_exactly_once",
                "streaming_sink",
            )
        ),
    ],
)
def test_a_job_starts_while_the_server_is_away(spark, name):
    """
    The job waits and succeeds, if the server is back after 5 seconds.
    """
    with DevServer() as server:
        jobs = Jobs(spark, server, 1)
        server.stop()
        # Longer than several attempts to connect, and than a planner that does not wait.
        back = threading.Timer(AWAY, server.start)
        began = time.monotonic()
        back.start()
        try:
            jobs.all()[name]()
        finally:
            back.join()
        assert time.monotonic() - began >= AWAY
        eventually(lambda: server.pids)
        jobs.check()
