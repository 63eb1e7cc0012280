"""
The progress of queries, and their connections.
"""

import contextlib
import json
import math
import os
from collections import Counter
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from waiting import eventually

import jetsync
import jetsync_spark
from jetsync_spark.common.errors import JetStreamSparkError

pytest.importorskip("pyspark.sql.datasource", reason="PySpark 3.5 has no data sources in Python")

from jetsync_spark.monitor.values import progress_of


def offset(streams):
    """
    Return an offset from ends by stream, each with the start of its micro-batch.
    """
    places = {
        name: {"created": "2026", "seq": end, "from": start}
        for name, (start, end) in streams.items()
    }
    if len(places) > 1:
        return json.dumps({"v": 2, "streams": places})
    ((name, place),) = places.items()
    return json.dumps({"v": 1, "stream": name, **place})


def report(*sources, **more):
    """
    Return what Spark reports about a micro-batch that read these sources.

    Each source is its start, its end and the latest offset.
    """
    return {
        "id": "an-id",
        "runId": "a-run",
        "name": None,
        "batchId": 7,
        "timestamp": "2026-11-23T03:57:34.085Z",
        "batchDuration": 500,
        "numInputRows": 100,
        "inputRowsPerSecond": math.nan,
        "processedRowsPerSecond": 200.0,
        "sources": [
            {"description": "Object@1", "startOffset": one, "endOffset": two, "latestOffset": three}
            for one, two, three in sources
        ],
        **more,
    }


class TestReports:
    def test_offsets_of_pyspark_40(self):
        """
        PySpark 4.0 reports the repr of an offset instead of its JSON, and the end twice.
        """
        start, end = (json.loads(offset({"A": place})) for place in [(1, 101), (101, 201)])
        end["parts"] = 1

        (stream,) = progress_of(report((repr(start), repr(end), repr(end)))).streams

        assert (stream.start, stream.end, stream.last) == (101, 201, None)

    def test_one_stream(self):
        """
        Sequences are counted from the micro-batch's start, and the backlog to the stream's end.
        """
        start, end = offset({"A": (1, 101)}), offset({"A": (101, 201)})

        found = progress_of(report((start, end, offset({"A": (1, 251)}))))

        (stream,) = found.streams
        assert (stream.start, stream.end, stream.last) == (101, 201, 250)
        assert (stream.sequences, stream.backlog) == (100, 50)
        assert (found.seconds, found.rows, found.rate, found.input_rate) == (0.5, 100, 200.0, 0.0)
        assert found.backlog == 50
        assert str(found) == (
            "query an-id, micro-batch 7: 100 rows in 0.500 s; stream A up to 200, backlog 50"
        )

    def test_a_line_for_a_log_is_short(self):
        """
        Of many streams, it has those with the largest backlog.
        """
        start, end = ({f"S{n}": (1, 11) for n in range(300)} for _ in range(2))
        last = {f"S{n}": (1, 11 + n) for n in range(300)}

        found = progress_of(report((offset(start), offset(end), offset(last))))

        text = str(found)
        total = sum(range(300))
        assert f"300 streams, backlog {total}; the 8 largest backlogs; stream S299 up to" in text
        assert text.count("; stream ") == 8

    def test_the_backlog_of_a_query_is_the_sum_of_its_streams(self):
        """
        Each stream of each source has its own progress. The query's backlog is their sum.
        """
        both = offset({"A": (1, 11), "B": (5, 6)})
        latest = offset({"A": (1, 21), "B": (1, 9)})
        other = offset({"C": (1, 2)})

        found = progress_of(report((None, both, latest), (None, other, other)))

        assert {each.stream: each.backlog for each in found.streams} == {"A": 10, "B": 3, "C": 0}
        assert found.backlog == 13

    def test_parsed_offsets(self):
        """
        Spark Connect reports some offsets as parsed JSON.
        """
        end = json.loads(offset({"A": (1, 11)}))

        (stream,) = progress_of(report((None, end, end))).streams

        assert stream.end == 11

    def test_figures_of_spark_connect(self):
        """
        Spark Connect reports the rows and rates of each source only, and NaN as text.
        """
        end = offset({"A": (1, 11)})
        reported = report((None, end, end), (None, end, end))
        figures = {"numInputRows": 50, "inputRowsPerSecond": "NaN", "processedRowsPerSecond": 100.0}
        for name in figures:
            reported[name] = None
        for source in reported["sources"]:
            source.update(figures)

        found = progress_of(reported)

        assert (found.rows, found.input_rate, found.rate) == (100, 0.0, 200.0)

    def test_a_consumer(self):
        """
        A query with a consumer reports the sequences of its batch. Its backlog is unknown.
        """
        names = {"v": 3, "stream": "A", "created": "2026", "consumer": "c", "made": "2026"}
        start = json.dumps({**names, "filters": [], "parts": []})
        end = json.dumps({**names, "filters": [], "parts": [[[5, 9]], [[11, 20, 3]]]})

        (read,) = progress_of(report((start, end, None))).streams
        idle = progress_of(report((end, end, None)))

        assert (read.stream, read.start, read.end, read.last) == ("A", 5, 21, None)
        assert (idle.streams[0].sequences, idle.backlog) == (0, None)
        assert progress_of(report((start, start, None))).streams == ()

    def test_an_idle_query(self):
        """
        A report without a micro-batch has no sequences.
        """
        end = offset({"A": (1, 11)})

        (stream,) = progress_of(report((end, end, end))).streams

        assert stream.sequences == 0

    @pytest.mark.parametrize("text", ["None", "null", None, "5", 5, '{"logOffset": 3}'])
    def test_other_sources(self, text):
        """
        Sources of other formats have rows, but no streams.
        """
        found = progress_of(report((text, text, text)))

        assert found.streams == ()
        assert (found.rows, found.backlog) == (100, 0)

    @pytest.mark.parametrize("mark", [{"parts": 2}, {"guessed": True}])
    def test_an_unknown_end(self, mark):
        """
        PySpark 4.0 and 4.1 report the end of the micro-batch as that of the stream, so the backlog
        is unknown.
        """
        end = json.dumps(json.loads(offset({"A": (1, 11)})) | mark)

        found = progress_of(report((None, end, end)))

        assert found.backlog is None
        assert "backlog unknown" in str(found)


def role_of(port, server):
    """
    Return the module that the process with this connection to a server runs, and its process ID.
    """
    ends = [f"0100007F:{each:04X}" for each in (port, urlsplit(server.url).port)]
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    sockets = {f"socket:[{line.split()[9]}]" for line in lines if line.split()[1:3] == ends}
    for entry in Path("/proc").glob("[0-9]*/fd/*"):
        # Processes end, and close files, meanwhile.
        with contextlib.suppress(OSError):
            if str(entry.readlink()) in sockets:
                process = entry.parents[1]
                line = (process / "cmdline").read_bytes().decode().strip("\0").split("\0")
                return line[-1].rpartition(".")[2], int(process.name)
    raise AssertionError(f"no process has port {port}")


@pytest.fixture(scope="module")
def metrics():
    """
    A reader of metrics and its provider.
    """
    pytest.importorskip("opentelemetry.sdk")
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    reader = InMemoryMetricReader()
    return reader, MeterProvider([reader], shutdown_on_exit=False)


@pytest.fixture(scope="module")
def options(nats_server):
    """
    How to connect.
    """
    return jetsync.ConnectOptions(servers=nats_server.url)


@pytest.fixture(scope="module")
def reports():
    """
    What the listener has reported.
    """
    return []


@pytest.fixture(scope="module")
def query(spark, nats_server, options, reports, metrics, tmp_path_factory):
    """
    A query that has copied 100 messages in two micro-batches, and is idle.
    """

    def note(found):
        reports.append(found)
        raise RuntimeError("an error of the function")

    listener = jetsync_spark.ProgressListener(note, options=options, meter_provider=metrics[1])
    spark.streams.addListener(listener)
    with jetsync.connect(nats_server.url) as client:
        js = client.jetstream()
        js.create_stream("PROGRESS", subjects=["progress.>"], allow_direct=True)
        js.create_stream("COPY", subjects=["copy.>", "ledger.copy.>"], allow_atomic=True)
        js.publish_many((f"progress.{n}", b"x") for n in range(50))
        query = (
            spark.readStream.format("jetstream")
            .options(servers=nats_server.url, stream="PROGRESS", startingOffsets="earliest")
            .options(minPartitions=2)
            .load()
            .selectExpr("'copy.x' as subject", "data")
            .writeStream.format("jetstream")
            .options(servers=nats_server.url, stream="COPY", mode="exactlyonce")
            .option("checkpointLocation", str(tmp_path_factory.mktemp("checkpoint")))
            .queryName("copying")
            .start()
        )
        query.processAllAvailable()
        js.publish_many((f"progress.{n}", b"x") for n in range(50))
        query.processAllAvailable()
        yield query
        query.stop()
        spark.streams.removeListener(listener)
        js.delete_stream("PROGRESS")
        js.delete_stream("COPY")


@pytest.mark.live
@pytest.mark.spark
class TestQuery:
    def points(self, metrics, name):
        """
        Return the data points of a metric, with their labels.
        """
        data = metrics[0].get_metrics_data()
        return [
            (dict(point.attributes), point)
            for resource in (data.resource_metrics if data else ())
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name == name
            for point in metric.data.data_points
        ]

    def test_each_process_of_spark_has_at_most_one_connection(self, query, nats_server):
        """
        Each Python process of Spark has at most one connection: each worker, the source's planner
        and the sink's committer. Processes that plan writes close theirs.
        """

        def named():
            found = nats_server.monitor("connz?limit=1000")["connections"]
            return [each for each in found if each.get("name", "").startswith("jetsync-spark-")]

        names = [each["name"] for each in named()]
        assert "jetsync-spark-plan-PROGRESS" in names
        assert "jetsync-spark-batch-plan" not in names
        found = [role_of(each["port"], nats_server) for each in named()]
        # This process has connections of its own, also of other test files.
        roles = [each for each in found if each[1] != os.getpid()]
        assert len(set(roles)) == len(roles)
        count = Counter(role for role, _ in roles)
        assert count.pop("worker") >= 2
        assert count == {"python_streaming_source_runner": 1, "python_streaming_sink_runner": 1}

    def test_the_last_micro_batch_reads_the_second_half(self, query):
        """
        The last micro-batch has read the second half of the stream.
        """
        found = jetsync_spark.progress(query)

        (stream,) = found.streams
        assert (found.name, found.batch, found.rows) == ("copying", 1, 50)
        assert (stream.stream, stream.start, stream.end) == ("PROGRESS", 51, 101)

    def test_a_listener_that_raises_gets_each_micro_batch(self, query, reports):
        """
        The listener's function gets each micro-batch, although it raises an error.
        """
        eventually(lambda: len(reports) >= 2, 60)

        assert [each.batch for each in reports[:2]] == [0, 1]
        assert [each.streams[0].end for each in reports[:2]] == [51, 101]
        assert {each.id for each in reports} == {str(query.id)}

    def test_rows_and_durations_are_counted_per_query(self, query, reports, metrics):
        """
        Rows and durations are counted per query, and the backlog is asked from the server.
        """
        eventually(lambda: len(reports) >= 2, 60)

        def rows():
            found = self.points(metrics, "jetsync.spark.rows")
            return found and found[0][1].value == 100 and found[0][0]

        assert eventually(rows, 60) == {"jetsync.spark.query": "copying"}
        ((_, duration),) = self.points(metrics, "jetsync.spark.batch.duration")
        assert duration.count == 2
        ((labels, backlog),) = self.points(metrics, "jetsync.spark.backlog")
        assert labels == {
            "jetsync.spark.query": "copying",
            "messaging.destination.name": "PROGRESS",
        }
        assert backlog.value == 0

    def test_a_stopped_query(self, query, js, options, metrics):
        """
        The server says how far a query is behind that no longer runs, and metrics forget the query.
        """
        query.stop()
        for n in range(5):
            js.publish(f"progress.{n}", b"y")

        assert jetsync_spark.progress(query, options).backlog == 5
        eventually(lambda: not self.points(metrics, "jetsync.spark.backlog"), 60)

    def test_progress_without_a_server_is_an_error_that_says_so(self, query):
        """
        If the server cannot be asked, the error says so.
        """
        nowhere = jetsync.ConnectOptions(servers="nats://127.0.0.1:1", connect_timeout=1)

        with pytest.raises(JetStreamSparkError, match=r"127\.0\.0\.1:1"):
            jetsync_spark.progress(query, nowhere)
