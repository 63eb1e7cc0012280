"""
Spark queries whose streams are restored, renamed, mirrored or moved to another cluster.
"""

import collections
import json

import pytest
from backups import backup_of, restore
from streams_to_read import extend, numbered
from waiting import eventually

import jetsync
from jetsync.devserver import DevServer

pytest.importorskip("pyspark.sql.datasource", reason="PySpark 3.5 has no data sources in Python")

from pyspark.errors import StreamingQueryException

from jetsync_spark.read.triggers import TELLS_START

pytestmark = [pytest.mark.live, pytest.mark.spark]

SEVERAL_BATCHES = "spark.sql.streaming.triggerAvailableNowWrapper.enabled"
"""The setting of PySpark 4.0 and 4.1 for runs of several micro-batches."""


class Job:
    """
    A query with a checkpoint, which counts how often each sequence was committed.
    """

    def __init__(self, spark, folder, **options):
        self.options = {"startingOffsets": "earliest", **options}
        self._spark = spark
        self._folder = folder
        self._batches = {}
        self._fails = False

    def run(self, *, fails=False, **options):
        """Read what there is. If it fails, the last micro-batch is planned and not committed."""
        self.options.update(options)
        self._fails = fails
        frame = self._spark.readStream.format("jetstream").options(**self.options).load()
        writer = frame.select("sequence").writeStream.foreachBatch(self._take)
        writer = writer.option("checkpointLocation", str(self._folder))
        query = writer.trigger(availableNow=True).start()
        try:
            query.awaitTermination(120)
        finally:
            query.stop()

    def _take(self, frame, batch):
        rows = [row.sequence for row in frame.collect()]
        if self._fails:
            raise RuntimeError("the sink failed")
        self._batches[batch] = rows

    @property
    def counts(self):
        """How often each sequence was read, without micro-batches that were not committed."""
        return collections.Counter(each for rows in self._batches.values() for each in rows)


@pytest.fixture
def client(nats_server):
    """
    A client of the server.
    """
    with jetsync.connect(nats_server.url) as client:
        yield client


@pytest.fixture
def stream(js):
    """
    A stream with 300 messages that can be backed up.
    """
    with numbered(js, 300, storage="file") as stream:
        yield stream


@pytest.fixture(scope="module", autouse=True)
def several_batches(spark):
    """
    Without the setting, a run after a failure only repeats the micro-batch that failed.
    """
    if not TELLS_START:
        spark.conf.set(SEVERAL_BATCHES, "true")


@pytest.fixture
def job(spark, nats_server, js, stream, tmp_path):
    """
    A query that has read 300 messages, and failed in a micro-batch with 100 more.
    """
    job = Job(spark, tmp_path, servers=nats_server.url, stream=stream.name)
    job.run()
    extend(js, stream, 100)
    with pytest.raises(StreamingQueryException, match="the sink failed"):
        job.run(fails=True)
    assert len(job.counts) == 300
    return job


def test_a_restored_stream(client, js, stream, job):
    """A query continues after a restore: nothing is lost, and nothing is read twice."""
    backup = backup_of(client, stream.name)
    stream.delete()
    restore(client, backup)
    extend(js, stream, 50)
    job.run()
    assert job.counts == dict.fromkeys(range(1, 451), 1)


def test_an_older_backup(client, js, stream, job):
    """The error says what each choice does, and newer reads each message once."""
    job.run()
    backup = backup_of(client, stream.name)
    extend(js, stream, 20)
    job.run()
    stream.delete()
    restore(client, backup)
    extend(js, stream, 50)
    with pytest.raises(StreamingQueryException) as caught:
        job.run()
    text = str(caught.value)
    assert "its message 420 is from 2" in text
    assert "onReplacedStream. With newer, it continues at the first message that is newer" in text
    job.run(onReplacedStream="newer")
    # The new messages have the sequences of those that the backup lacks.
    assert job.counts == {**dict.fromkeys(range(1, 451), 1), **dict.fromkeys(range(401, 421), 2)}


def test_a_mirror(js, stream, job):
    """A query continues at a mirror."""
    name = f"{stream.name}_M"
    mirror = js.create_stream(name, mirror=jetsync.StreamSource(stream.name), allow_direct=True)
    try:
        extend(js, stream, 50)
        eventually(lambda: mirror.info().state.last_seq == 450)
        job.run(stream=name, movedStreams=json.dumps({stream.name: name}))
        assert job.counts == dict.fromkeys(range(1, 451), 1)
    finally:
        mirror.delete()


def test_a_renamed_stream(client, js, stream, job):
    """A query continues at a backup that was restored with another name."""
    backup, name = backup_of(client, stream.name), f"{stream.name}_2"
    stream.delete()
    restore(client, backup, name=name)
    with pytest.raises(StreamingQueryException, match="if the stream was moved, name it"):
        job.run(stream=name)
    job.run(movedStreams=json.dumps({stream.name: name}))
    assert job.counts == dict.fromkeys(range(1, 401), 1)
    js.delete_stream(name)


def test_another_cluster(client, stream, job):
    """A query continues on another cluster."""
    with DevServer() as other, jetsync.connect(other.url) as there:
        restore(there, backup_of(client, stream.name))
        js = there.jetstream()
        extend(js, js.stream(stream.name), 50)
        job.run(servers=other.url)
        assert job.counts == dict.fromkeys(range(1, 451), 1)


@pytest.mark.skipif(TELLS_START, reason="PySpark 4.2 always runs several micro-batches")
def test_runs_of_one_micro_batch(spark, js, stream, job):
    """Without the setting, the run after a failure repeats its rows, and the next one reads on."""
    extend(js, stream, 50)
    spark.conf.set(SEVERAL_BATCHES, "false")
    try:
        job.run()
        assert job.counts == dict.fromkeys(range(1, 401), 1)
        job.run()
        assert job.counts == dict.fromkeys(range(1, 451), 1)
    finally:
        spark.conf.set(SEVERAL_BATCHES, "true")
