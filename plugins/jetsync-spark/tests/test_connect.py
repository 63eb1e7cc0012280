"""
All modes, sinks and helpers over Spark Connect, with a server in a process of its own.

Starting a query takes many seconds, so that all but one of them are left to `-m soak`.
"""

import time
from pathlib import Path

import pytest
from writing import ids

import jetsync
import jetsync_spark
from jetsync_spark.common.errors import OptionError, java_missing
from jetsync_spark.write import layout

pytest.importorskip("pyspark.sql.datasource", reason="PySpark 3.5 has no data sources in Python")
pytest.importorskip("grpc", reason="Spark Connect needs grpcio")
pytest.importorskip("grpc_status", reason="Spark Connect needs grpcio-status")

from connect_server import ConnectServer, connected

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(900),
    pytest.mark.skipif(java_missing() is not None, reason=str(java_missing())),
]


PAGE = Path(__file__).parents[3] / "docs" / "plugins" / "spark" / "connect.md"


@pytest.fixture(scope="module")
def connect_server(tmp_path_factory):
    """
    A server of Spark Connect, one for all of these tests.
    """
    with ConnectServer(tmp_path_factory.mktemp("connect")) as server:
        yield server


@pytest.fixture(scope="module")
def spark(connect_server):
    """
    A session on this server.
    """
    with connected(connect_server) as session:
        yield session


@pytest.fixture
def rows(spark, target):
    """
    A hundred rows in three partitions.
    """
    return spark.range(100, numPartitions=3).selectExpr(
        f"concat('{target.name}.a', id % 7) as subject", "cast(id as string) as data"
    )


def named(mode):
    """
    Return the options of a batch write in a mode.
    """
    return {"write_id": "load"} if mode == "exactlyonce" else {}


STARTS = pytest.mark.flaky(reruns=3, only_rerun=["failed to connect back"])
"""
Repeats a test that starts a query. Spark gives a Python process ten seconds to start, which is not
enough on a very busy machine.
"""

# Over Connect, only the identity of a write differs between the modes.
MODES = [
    pytest.param("atleastonce", marks=pytest.mark.soak),
    pytest.param("atomic", marks=pytest.mark.soak),
    "exactlyonce",
]


class TestBatches:
    @pytest.mark.parametrize("mode", MODES)
    def test_a_named_write_over_connect_stores_each_row_once(
        self, spark, rows, nats_server, target, mode
    ):
        """
        The format is found by its name. A named write that runs twice stores each row once.
        """
        at = {"servers": nats_server.url, "stream": target.name}
        out = rows.write.format("jetstream").mode("append").options(**at, mode=mode)
        if mode == "exactlyonce":
            out = out.option("writeId", "load")
            out.save()
        out.save()

        assert ids(target) == list(range(100))
        back = spark.read.format("jetstream").options(**at, minPartitions=2).load()
        assert back.filter("subject like '%.a3'").count() == 14

    def test_a_program_may_register_the_format_again(self, spark, nats_server, target, js):
        """
        A program may register the format, even if the server has found it.
        """
        js.publish(f"{target.name}.a", "1")
        for _ in range(2):
            jetsync_spark.register(spark)

        at = {"servers": nats_server.url, "stream": target.name}
        (row,) = spark.read.format("jetstream").options(**at).load().collect()
        assert bytes(row.data) == b"1"

    @pytest.mark.parametrize("mode", MODES)
    def test_publish_arrow(self, rows, options, target, mode):
        """
        There is one row of counts per partition, and a named write stores each row once.
        """
        for run in range(1 + (mode == "exactlyonce")):
            counts = jetsync_spark.publish_arrow(
                rows, options, stream=target.name, mode=mode, **named(mode)
            )
            found = counts.collect()
            assert sorted(row.partition for row in found) == [0, 1, 2]
            assert sum(row.stored for row in found) == (0 if run else 100)

        assert ids(target) == list(range(100))

    @pytest.mark.parametrize("mode", MODES)
    def test_each_partition(self, rows, options, target, mode):
        """
        ``foreachPartition`` takes the sink.
        """
        sink = jetsync_spark.JetStreamSink(options, stream=target.name, mode=mode, **named(mode))
        sink.check(rows)
        rows.foreachPartition(sink)

        assert ids(target) == list(range(100))

    def test_other_partitions_are_rejected(self, rows, options, target):
        """
        A run with another number of partitions stores no row. Partitions without rows count.
        """

        def write(rows):
            return jetsync_spark.publish_arrow(
                rows, options, stream=target.name, mode="exactlyonce", write_id="load"
            )

        write(rows.filter("data < '1'"))
        before = target.info().state.messages
        with pytest.raises(Exception, match="has 2 partitions, but its first run had 3"):
            write(rows.coalesce(2))

        assert target.info().state.messages == before == 1

    def test_partitions_are_counted(self, spark):
        """
        The count includes partitions without rows, and those that are not computed to their end.
        """
        rows = spark.range(400_000, numPartitions=3).selectExpr("cast(id as string) as data")

        assert layout.count_partitions(rows) == 3
        assert layout.count_partitions(rows.filter("data < '0'")) == 3

    def test_a_write_without_a_name_is_rejected(self, rows, options, target):
        """
        The error says what to pass.
        """
        with pytest.raises(OptionError, match="in a batch job set a write_id"):
            jetsync_spark.publish_arrow(rows, options, stream=target.name, mode="exactlyonce")

        assert target.info().state.messages == 0


@pytest.fixture
def source(js, unique):
    """
    A stream with a hundred numbers; removed afterwards.
    """
    stream = js.create_stream(f"{unique}-in", subjects=[f"{unique}-in.>"], allow_direct=True)
    js.publish_many((f"{stream.name}.a", str(number)) for number in range(100))
    yield stream
    js.delete_stream(stream.name)


@pytest.fixture
def copying(spark, nats_server, source, tmp_path):
    """
    A function that reads the source in micro-batches of sixty rows, and starts a query that writes
    them, with one checkpoint.
    """

    def start(write):
        rows = (
            spark.readStream.format("jetstream")
            .options(servers=nats_server.url, stream=source.name, startingOffsets="earliest")
            .options(minPartitions=2, maxOffsetsPerTrigger=60)
            .load()
            .select("data")
        )
        query = (
            write(rows.writeStream)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(600)
        return query

    return start


def forget_commit(folder):
    """
    Remove the record of the last micro-batch, as if the driver had died before it was written.
    """
    commits = [
        path for path in (folder / "checkpoint" / "commits").iterdir() if path.name.isdigit()
    ]
    last = max(commits, key=lambda path: int(path.name))
    last.unlink()
    last.with_name(f".{last.name}.crc").unlink(missing_ok=True)


class TestMicroBatches:
    @STARTS
    @pytest.mark.soak
    def test_a_data_source_over_connect_knows_its_micro_batch(self, copying, nats_server, target):
        """
        The data source knows the query and the micro-batch, and its progress has the rows.
        """
        query = copying(
            lambda out: out.format("jetstream").options(
                servers=nats_server.url,
                stream=target.name,
                subject=f"{target.name}.x",
                mode="exactlyonce",
            )
        )

        assert ids(target) == list(range(100))
        # Before PySpark 4.2, the only micro-batch has all rows.
        assert jetsync_spark.progress(query).rows in {40, 100}

    @STARTS
    @pytest.mark.soak
    def test_foreach_batch(self, copying, options, target, tmp_path):
        """
        The write ID and the number of the micro-batch identify the rows of a query that is started
        again. Without the number, writes are rejected, because each micro-batch would count as a
        repetition of the first one.
        """
        name, url, errors = target.name, options.servers, tmp_path / "errors"
        once = jetsync_spark.exactly_once(
            options, stream=name, subject=f"{name}.{{a}}", write_id="a"
        )

        def each(df, number):
            rows = df.selectExpr("data", "'a' as a", "'b' as b", "'c' as c")
            common = {"stream": name, "mode": "exactlyonce"}
            for make in (
                lambda **more: jetsync_spark.JetStreamSink(options, **common, **more),
                lambda **more: jetsync_spark.publish_arrow(rows, options, **common, **more),
            ):
                try:
                    make(write_id="b")
                except OptionError as error:
                    with errors.open("a") as file:
                        file.write(f"{error}\n")
            once(rows, number)
            jetsync_spark.publish_arrow(
                rows, options, subject=f"{name}.{{b}}", write_id="b", batch_id=number, **common
            ).collect()
            rows.foreachPartition(
                jetsync_spark.JetStreamSink(
                    options, subject=f"{name}.{{c}}", write_id="c", batch_id=number, **common
                )
            )
            df.write.format("jetstream").mode("append").options(
                servers=url, subject=f"{name}.d", writeId="d", batchId=number, **common
            ).save()

        copying(lambda out: out.foreachBatch(each))
        forget_commit(tmp_path)
        copying(lambda out: out.foreachBatch(each))

        assert target.info(subjects_filter=f"{name}.>").state.subjects == {
            f"{name}.{letter}": 100 for letter in "abcd"
        }
        assert sorted(target.info(subjects_filter="ledger.>").state.subjects) == [
            f"ledger.{name}.{each}"
            for each in ["a.0", "a.1", "a.plan", "b.0", "b.1", "b.plan", "c.0", "c.1", "d.0", "d.1"]
        ]
        assert len(set(errors.read_text().splitlines())) == 1
        assert "set batch_id to the number that foreachBatch passes" in errors.read_text()

    def test_exactly_once_needs_a_name(self, spark, options):
        """
        The error comes before the query starts.
        """
        assert spark.version
        with pytest.raises(OptionError, match="set a write_id that no other query"):
            jetsync_spark.exactly_once(options, stream="S")


@STARTS
def test_the_page_of_jetsync_spark_runs_over_connect(
    connect_server, spark, js, nats_server, monkeypatch
):
    """
    The blocks of the documentation's page run without an error.
    """
    doc_pages = pytest.importorskip("helpers.doc_pages", reason="only in the repository")
    assert spark.version
    monkeypatch.setenv("NATS_URL", nats_server.url)
    monkeypatch.setenv("SPARK_REMOTE", connect_server.url)
    try:
        exec(compile(doc_pages.script_of(PAGE), PAGE, "exec"), {"__name__": "page_connect"})
    finally:
        for name in js.stream_names():
            js.delete_stream(name)


@STARTS
@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", ["exactly_once", "jetstream"])
def test_killed_servers_store_each_row_once(kind, js, nats_server, target, tmp_path):
    """
    A server dies with its driver, its executor and its Pythons while a query writes, three times.
    The next server continues the query from the checkpoint.
    """
    count, kills = 12_000, 3
    source = js.create_stream(f"{target.name}-in", subjects=[f"{target.name}-in.>"])
    js.publish_many((f"{source.name}.a", str(number)) for number in range(count))
    options = jetsync.ConnectOptions(servers=nats_server.url)
    once = jetsync_spark.exactly_once(
        options, stream=target.name, subject=f"{target.name}.{{x}}", write_id="copy", chunk_size=100
    )

    def start(spark):
        rows = (
            spark.readStream.format("jetstream")
            .options(servers=nats_server.url, stream=source.name, startingOffsets="earliest")
            .options(minPartitions=2, maxOffsetsPerTrigger=1000)
            .load()
            .selectExpr("data", "'x' as x")
        )
        if kind == "exactly_once":
            out = rows.writeStream.foreachBatch(once)
        else:
            out = (
                rows.select("data")
                .writeStream.format("jetstream")
                .options(
                    servers=nats_server.url,
                    stream=target.name,
                    subject=f"{target.name}.x",
                    mode="exactlyonce",
                    chunkSize=100,
                )
            )
        return out.option("checkpointLocation", str(tmp_path / "checkpoint")).start()

    def missing():
        rows = target.info(subjects_filter=f"{target.name}.x").state.subjects or {}
        return count - sum(rows.values())

    stored = []
    for run in range(kills + 1):
        folder = tmp_path / f"server{run}"
        folder.mkdir()
        before = target.info().state.last_seq
        with ConnectServer(folder) as server, connected(server) as spark:
            query = start(spark)
            if run == kills:
                query.processAllAvailable()
                query.stop()
                break
            # The first micro-batch of PySpark 4.0 and 4.1 has all rows, so a run may store all.
            while target.info().state.last_seq <= before + 1500 and missing():
                if query.exception() is not None:
                    raise query.exception()
                time.sleep(0.05)
            # Another moment of a micro-batch each time.
            time.sleep(0.13 * run)
            server.kill()
            # Otherwise PySpark tries for minutes to tell the server.
            spark.release_session_on_close = False
        stored.append(target.info().state.last_seq)
    print(stored)  # noqa: T201 - shown with -rP.
    js.delete_stream(source.name)

    assert ids(target) == list(range(count))
