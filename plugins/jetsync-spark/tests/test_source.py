"""
The data source in a Spark session: batches, buckets, micro-batches.

Nothing here registers the data source: Spark finds it.
"""

import concurrent.futures
import datetime as dt
import gc
import itertools
import threading
import time

import pytest
from sessions import session
from streams_to_read import extend, numbered
from waiting import eventually

import jetsync
import jetsync_spark
from jetsync_spark.common.clients import client_for, forget
from jetsync_spark.common.errors import java_missing

pytest.importorskip("pyspark.sql.datasource", reason="PySpark 3.5 has no data sources in Python")

import pyspark
from pyspark.errors import AnalysisException, PythonException, StreamingQueryException
from pyspark.sql import functions as f

pytestmark = [pytest.mark.live, pytest.mark.spark]

ADMISSION = tuple(map(int, pyspark.__version__.split(".")[:2])) >= (4, 2)
"""Whether Spark tells a source how much to read."""


@pytest.fixture(scope="module")
def spark():
    """
    A session that tries each task twice.
    """
    missing = java_missing()
    if missing:
        pytest.skip(missing)
    made = session("local[2,2]")
    yield made
    made.stop()


@pytest.fixture
def load(spark, nats_server):
    """
    A reader of batches.
    """

    def load(stream=None, schema=None, **options):
        reader = spark.read.format("jetstream").option("servers", nats_server.url)
        if stream is not None:
            reader = reader.option("stream", getattr(stream, "name", stream))
        if schema is not None:
            reader = reader.schema(schema)
        return reader.options(**options).load()

    return load


def numbers(frame):
    """List the sequences of a data frame; the payload of each row is its sequence."""
    rows = frame.select("sequence", f.col("data").cast("string").alias("data")).collect()
    assert all(int(row.data.split(" ")[0]) == row.sequence for row in rows)
    return sorted(row.sequence for row in rows)


class TestBatch:
    def test_a_row_of_a_batch_has_headers_only_on_request(self, js, load):
        """A row has the fields of its message, and headers on request."""
        with numbered(js, 0) as stream:
            js.publish(
                f"{stream.name}.a",
                b"\x00\xff",
                headers=jetsync.Headers([("A", "1"), ("b", "2"), ("A", "3")]),
            )
            js.publish(f"{stream.name}.b", b"")
            plain = load(stream)
            assert plain.columns == ["subject", "data", "stream", "sequence", "timestamp"]
            frame = load(stream, includeHeaders=True, timestampNanos=True)
            first, second = frame.orderBy("sequence").collect()
            assert frame.columns[2] == "headers"
            assert frame.columns[-1] == "timestamp_ns"
            assert bytes(first.data) == b"\x00\xff"
            assert first.headers == {"A": ["1", "3"], "b": ["2"]}
            assert (second.subject, second.headers, bytes(second.data)) == (
                f"{stream.name}.b", {}, b"",
            )  # fmt: skip
            assert (second.stream, second.sequence) == (stream.name, 2)
            there = stream.get_message(2)
            assert second.timestamp_ns == there.timestamp_ns
            moment = frame.select(f.unix_micros("timestamp")).orderBy("sequence").collect()[1][0]
            assert moment == there.timestamp_ns // 1000

    def test_some_columns(self, spark, js, load):
        """The schema may have some columns in another order, and large types."""
        spark.conf.set("spark.sql.execution.arrow.useLargeVarTypes", "true")
        try:
            with numbered(js, 30) as stream:
                frame = load(stream, "sequence long, data binary", minPartitions=3)
                assert frame.columns == ["sequence", "data"]
                assert numbers(frame) == [*range(1, 31)]
        finally:
            spark.conf.unset("spark.sql.execution.arrow.useLargeVarTypes")

    def test_one_frame_many_queries(self, js, load):
        """Neither filters of one query nor later messages affect another query."""
        with numbered(js, 100) as stream:
            frame = load(stream, endingOffsets='{"seq": 101}', maxRecordsPerPartition=30)
            assert frame.rdd.getNumPartitions() == 4
            assert frame.filter("sequence >= 51").count() == 50
            extend(js, stream, 20)
            assert frame.count() == 100
            parts = frame.filter("sequence >= 21").union(frame.filter("sequence < 21"))
            assert numbers(parts) == [*range(1, 101)]
            joined = frame.alias("a").join(frame.alias("b"), "sequence")
            assert joined.count() == 100

    def test_options_select_the_range_and_the_subjects(self, js, load):
        """Options select the range and the subjects."""
        with numbered(js, 40, subjects=2) as stream:
            stream.delete_message(7)
            some = {"startingOffsets": '{"seq": 5}', "endingOffsets": '{"seq": 11}'}
            assert numbers(load(stream, **some)) == [5, 6, 8, 9, 10]
            assert numbers(load(stream, subjectFilter=f"{stream.name}.1", **some)) == [5, 9]
            milliseconds = stream.get_message(40).timestamp_ns // 1_000_000
            after = load(stream, startingTimestamp=milliseconds + 1,
                         startingOffsetsByTimestampStrategy="latest")  # fmt: skip
            assert numbers(after) == []
            before = load(stream, endingTimestamp=milliseconds + 1)
            assert len(numbers(before)) == 39
        with numbered(js, 0) as stream:
            assert numbers(load(stream)) == []

    def test_a_stream_without_direct_gets_is_read_by_consumers(self, js, load):
        """A stream without direct gets is read by consumers, which are deleted afterwards."""
        with numbered(js, 50, allow_direct=False) as stream:
            assert numbers(load(stream, minPartitions=2)) == [*range(1, 51)]
            eventually(lambda: not list(stream.consumer_names()))

    def test_a_task_fails_half_way(self, js, load):
        """A repeated task reads the same messages."""
        with numbered(js, 1000) as stream:

            def fragile(batches):
                from pyspark import TaskContext

                context = TaskContext.get()
                for count, batch in enumerate(batches):
                    if count == 1 and context.attemptNumber() == 0 and context.partitionId() == 1:
                        raise OSError("half-way")
                    yield batch

            frame = load(stream, "sequence long, data binary", minPartitions=4, fetchBatch=100)
            again = frame.mapInArrow(fragile, frame.schema)
            assert numbers(again) == [*range(1, 1001)]
            assert numbers(frame) == [*range(1, 1001)]

    def test_two_queries_at_once(self, js, load):
        """Readers that share workers do not get each other's messages."""
        with (
            numbered(js, 3000) as one,
            numbered(js, 2000, allow_direct=False) as other,
            concurrent.futures.ThreadPoolExecutor(4) as threads,
        ):
            frames = [load(each, minPartitions=3) for each in (one, other, one, other)]
            found = list(threads.map(numbers, frames))
            assert [len(each) for each in found] == [3000, 2000, 3000, 2000]
            assert {frozenset(each) for each in found} == {
                frozenset(range(1, 3001)), frozenset(range(1, 2001)),
            }  # fmt: skip

    def test_a_limit_stops_early(self, js, load):
        """A reader that stops early leaves no subscription, and other readers continue."""
        with numbered(js, 20_000) as stream:
            frame = load(stream, fetchBatch=100)
            assert len(frame.limit(3).collect()) == 3
            assert frame.count() == 20_000


class TestRefused:
    @pytest.mark.parametrize(
        ("options", "said"),
        [
            ({"stream": "no_such"}, r"'no_such'.*10059.*create the stream"),
            ({"strem": "S"}, "no option strem: did you mean stream"),
            ({"bucket": "no_such"}, "no_such"),
            ({"stream": "S", "password": "s3cret"}, "option password would expose a secret"),
        ],
    )
    def test_invalid_options_are_refused_when_a_read_is_planned(self, load, options, said):
        """Invalid options are refused at planning, in one sentence."""
        with pytest.raises(AnalysisException, match=said) as caught:
            load(**options).collect()
        assert "s3cret" not in str(caught.value)

    def test_removed_after_planning(self, js, load):
        """A task raises an error about missing messages, or reads the existing ones."""
        with numbered(js, 50) as stream:
            strict, lenient = load(stream), load(stream, failOnDataLoss="false")
            if pyspark.__version__ < "4.1":
                pytest.skip("Spark 4.0 plans each query again")
            assert strict.count() == lenient.count() == 50
            stream.purge(sequence=41)
            with pytest.raises(
                PythonException, match="sequences 1 to 40 are missing, and the stream begins at 41"
            ):
                strict.collect()
            assert numbers(lenient) == [*range(41, 51)]


class TestBucket:
    def test_a_bucket_is_a_table_with_a_row_for_each_key(self, js, load, unique):
        """The table has a row for each key with a value, as a consistent snapshot."""
        kv = js.create_key_value(unique, history=5, storage="memory")
        try:
            for number in range(6):
                kv.put(f"k.{number % 3}", f"v{number}")
            third = kv.get("k.2").created
            kv.delete("k.1")

            def table(**options):
                rows = load(bucket=unique, **options).orderBy("key").collect()
                return [(row.key, bytes(row.value).decode(), row.revision) for row in rows]

            assert load(bucket=unique).columns == [
                "key", "value", "revision", "created", "operation",
            ]  # fmt: skip
            assert table() == [("k.0", "v3", 4), ("k.2", "v5", 6)]
            assert table(atRevision=4) == [("k.0", "v3", 4), ("k.1", "v1", 2), ("k.2", "v2", 3)]
            assert table(keys="k.2,x.*") == [("k.2", "v5", 6)]
            assert table(keys="x") == []
            later = int((third + dt.timedelta(seconds=60)).timestamp() * 1000)
            assert table(atTimestamp=later) == table()
            assert table(atTimestamp=1000) == []
            frame = load(None, "revision long, key string", bucket=unique)
            assert sorted(map(tuple, frame.collect())) == [(4, "k.0"), (6, "k.2")]
        finally:
            js.delete_key_value(unique)

    def test_an_empty_one(self, js, load, unique):
        """An empty bucket has no rows."""
        js.create_key_value(unique, storage="memory")
        assert load(bucket=unique).collect() == []
        with pytest.raises(Exception, match="ends at revision 0, before atRevision 5"):
            load(bucket=unique, atRevision=5).collect()
        js.delete_key_value(unique)


class Batches:
    """
    The micro-batches of a query, as ``foreachBatch`` gets them.
    """

    def __init__(self, spark, server, stream, checkpoint, **options):
        self.found = {}
        self.fails = False
        self._reader = (
            spark.readStream.format("jetstream")
            .option("servers", server.url)
            .option("stream", stream.name)
            .options(**options)
        )
        self._checkpoint = str(checkpoint)

    def _take(self, frame, batch):
        rows = numbers(frame)
        if rows and self.fails:
            self.fails = False
            raise OSError("the sink failed")
        self.found[batch] = rows

    def start(self, **trigger):
        """Start the query."""
        writer = self._reader.load().writeStream.foreachBatch(self._take)
        if trigger:
            writer = writer.trigger(**trigger)
        return writer.option("checkpointLocation", self._checkpoint).start()

    def run(self):
        """Run the query over the present messages; return all batches so far."""
        self.begin(availableNow=True)
        return self.found

    def begin(self, until=None, **trigger):
        """Start the query, wait for a condition or for its end, and return it."""
        end = time.monotonic() + 240
        while True:
            query = self.start(**trigger)
            try:
                while not (until and until()) and not query.awaitTermination(0.1):
                    assert time.monotonic() < end
            except StreamingQueryException as error:
                # Spark gives a Python process ten seconds to start, which a busy machine may need.
                if "failed to connect back" not in str(error) or time.monotonic() > end:
                    raise
            else:
                return query


@pytest.fixture
def batches(spark, nats_server, tmp_path):
    """
    A factory of queries with a checkpoint per test.
    """
    return lambda stream, **options: Batches(
        spark, nats_server, stream, tmp_path / "checkpoint", **options
    )


class TestStreaming:
    def test_from_checkpoint_to_checkpoint(self, js, batches):
        """The next run begins at the end of the last one, and no batch exceeds the limit."""
        with numbered(js, 50) as stream:
            query = batches(stream, startingOffsets="earliest", maxOffsetsPerTrigger=20)
            query.run()
            assert [n for rows in query.found.values() for n in rows] == [*range(1, 51)]
            if ADMISSION:
                assert [*map(len, query.found.values())] == [20, 20, 10]
            extend(js, stream, 15)
            query.run()
            last = max(query.found)
            assert query.found[last] == [*range(51, 66)]
            query.run()
            assert [n for rows in query.found.values() for n in rows] == [*range(1, 66)]
            # If Spark does not say where a batch begins, an empty batch is no error.
            assert max(query.found) in ([last] if ADMISSION else [last, last + 1])

    def test_it_ends_though_more_comes(self, js, nats_server, batches):
        """A query over the present messages ends while a publisher continues."""
        stop = threading.Event()
        with numbered(js, 100) as stream, jetsync.connect(nats_server.url) as client:

            def publish():
                while not stop.wait(0.05):
                    extend(client.jetstream(), stream, 1)

            publisher = threading.Thread(target=publish)
            publisher.start()
            try:
                query = batches(stream, startingOffsets="earliest", maxOffsetsPerTrigger=60)
                query.run()
            finally:
                stop.set()
                publisher.join()
            found = [n for rows in query.found.values() for n in rows]
            assert found == [*range(1, len(found) + 1)]
            assert 100 <= len(found) < stream.info().state.last_seq

    def test_a_batch_of_the_latest_fails(self, js, batches):
        """Messages between start and failure are in the repeated batch."""
        with numbered(js, 10) as stream:
            query = batches(stream)
            query.fails = True
            # The first batch is empty, and ends at the start of the query.
            running = query.begin(lambda: query.found)
            try:
                extend(js, stream, 5)
                with pytest.raises(StreamingQueryException, match="the sink failed"):
                    running.awaitTermination(60)
            finally:
                running.stop()
            extend(js, stream, 7)
            query.run()
            if not ADMISSION:
                # There it ends with the repeated batch.
                query.run()
            found = list(itertools.chain(*query.found.values()))
            assert found == [*range(11, 23)]
            assert len(query.found[1]) <= 5

    def test_purged_unread(self, js, batches):
        """The query ends with both numbers and advice; without failOnDataLoss it continues."""
        with numbered(js, 50) as stream:
            query = batches(stream, startingOffsets='{"seq": 21}')
            query.run()
            extend(js, stream, 20)
            stream.purge(sequence=61)
            with pytest.raises(
                StreamingQueryException,
                match=r"sequences 51 to 60 are missing, and .* begins at 61.*failOnDataLoss",
            ):
                query.run()
            lenient = batches(stream, failOnDataLoss="false")
            assert list(itertools.chain(*lenient.run().values())) == [*range(61, 71)]

    def test_an_idle_query_sends_few_requests(self, js, nats_server, batches):
        """An idle query sends less than ten requests a second, and reports its position."""
        with numbered(js, 30) as stream, jetsync.connect(nats_server.url) as client:
            query = batches(stream, startingOffsets="earliest")
            running = query.begin(lambda: query.found)
            try:
                eventually(lambda: running.status["isTriggerActive"] is False, 60)
                with client.subscribe("$JS.API.>") as api:
                    client.flush()
                    began = time.monotonic()
                    assert not running.awaitTermination(2)
                    client.flush()
                    seconds = time.monotonic() - began
                    asked = sum(1 for _ in iter(lambda: api.next(timeout=0.1), None))
                assert asked < 10 * seconds
                (source,) = eventually(lambda: running.lastProgress, 60)["sources"]
                assert '"seq": 31' in str(source["endOffset"]).replace("'", '"')
            finally:
                running.stop()


def test_registered_twice(spark, js, load):
    """Registering is not necessary, and harmless."""
    jetsync_spark.register(spark)
    jetsync_spark.register(spark)
    with numbered(js, 5) as stream:
        assert numbers(load(stream)) == [1, 2, 3, 4, 5]


def test_other_functions_of_a_worker_are_not_affected(spark, nats_server):
    """A task leaves the garbage collection of its worker as it is, which other functions share."""
    options = jetsync.ConnectOptions(servers=nats_server.url)

    def connect(_):
        forget(options, client_for(options))
        yield gc.isenabled(), gc.get_freeze_count()

    (after,) = spark.sparkContext.parallelize([0], 1).mapPartitions(connect).collect()

    assert after == (True, 0)
