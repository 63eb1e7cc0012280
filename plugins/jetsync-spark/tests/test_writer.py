import concurrent.futures
import decimal

import pyspark
import pytest
from waiting import eventually
from writing import entries, ids

import jetsync
import jetsync_spark
from jetsync_spark.write.ledger import LayoutError

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(pyspark.__version__ < "4", reason="data sources need PySpark 4.0"),
]


@pytest.fixture(scope="module", autouse=True)
def registered(spark):
    """
    The session knows the format.
    """
    jetsync_spark.register(spark)


@pytest.fixture
def rows(spark, target):
    """
    A thousand rows in four partitions.
    """
    return spark.range(1000, numPartitions=4).selectExpr(
        f"concat('{target.name}.a', id % 7) as subject", "cast(id as string) as data"
    )


class TestBatch:
    @pytest.mark.parametrize("mode", ["atleastonce", "atomic"])
    def test_each_row_is_stored(self, rows, nats_server, target, mode):
        """
        In each mode, every row is stored.
        """
        writer = rows.write.format("jetstream").mode("append").option("servers", nats_server.url)

        writer.option("stream", target.name).option("mode", mode).save()

        assert ids(target) == list(range(1000))

    def test_a_named_write_is_stored_once(self, rows, nats_server, target):
        """
        A named write is stored once, however often its job runs; without a name it is refused.
        """
        for name in ("one", "one", "two"):
            rows.write.format("jetstream").mode("append").options(
                servers=nats_server.url, stream=target.name, mode="exactlyonce", writeId=name
            ).save()
        assert ids(target) == sorted([*range(1000), *range(1000)])

        with pytest.raises(Exception, match="set a writeId"):
            rows.write.format("jetstream").mode("append").options(
                servers=nats_server.url, stream=target.name, mode="exactlyonce"
            ).save()
        assert len(ids(target)) == 2000

    def test_one_subject_for_all(self, rows, nats_server, target):
        """
        The option replaces the column.
        """
        rows.select("data").write.format("jetstream").mode("append").options(
            servers=nats_server.url, stream=target.name, subject=f"{target.name}.x"
        ).save()

        assert target.info(subjects_filter=">").state.subjects == {f"{target.name}.x": 1000}

    def test_a_batch_with_large_types_is_written(self, spark, rows, nats_server, target):
        """
        Sessions may be configured to use large_string and large_binary.
        """
        name = "spark.sql.execution.arrow.useLargeVarTypes"
        spark.conf.set(name, "true")
        try:
            rows.write.format("jetstream").mode("append").options(
                servers=nats_server.url, stream=target.name
            ).save()
        finally:
            spark.conf.unset(name)

        assert ids(target) == list(range(1000))

    def test_all_columns_survive_writing_and_reading(self, spark, nats_server, target):
        """
        All columns survive, with headers of several values and a null payload, which becomes empty.
        """
        name = target.name
        rows = spark.createDataFrame(
            [
                (
                    f"{name}.a",
                    b"\x00\xff",
                    {"k": ["1", "2"], "l": [""]},
                    "id-a",
                    3600,
                    decimal.Decimal(0),
                ),
                (f"{name}.b", None, None, None, None, None),
            ],
            "subject string, data binary, headers map<string,array<string>>, msg_id string, "
            "ttl int, expected_sequence decimal(20,0)",
        )
        rows.coalesce(1).write.format("jetstream").mode("append").options(
            servers=nats_server.url, stream=name
        ).save()

        read = spark.read.format("jetstream").options(servers=nats_server.url, stream=name)
        asked = read.schema(
            "subject string, data binary, headers map<string,array<string>>, "
            "server_headers map<string,array<string>>"
        )
        found = {row.subject: row for row in asked.load().collect()}

        first, second = found[f"{name}.a"], found[f"{name}.b"]
        assert bytes(first.data) == b"\x00\xff"
        assert first.headers == {"k": ["1", "2"], "l": [""]}
        assert first.server_headers == {
            "Nats-Msg-Id": ["id-a"],
            "Nats-TTL": ["3600"],
            "Nats-Expected-Last-Subject-Sequence": ["0"],
        }
        assert bytes(second.data) == b""
        assert not second.headers
        assert read.option("includeHeaders", "true").load().columns[2] == "headers"

    def test_a_sequence_has_all_its_bits(self, spark, nats_server, target):
        """
        A sequence beyond Spark's bigint is a decimal, and the server compares all of its bits.
        """
        rows = spark.sql(
            f"select '{target.name}.a' as subject, 'x' as data, "
            "cast(18446744073709551615 as decimal(20,0)) as expected_sequence"
        )

        with pytest.raises(Exception, match="err_code 10071"):
            rows.write.format("jetstream").mode("append").options(
                servers=nats_server.url, stream=target.name
            ).save()

    def test_invalid_writes_are_refused_at_planning(self, rows, nats_server, target):
        """
        Spark keeps the text: one sentence with the cause, the stream and the advice.
        """
        good = {"servers": nats_server.url, "stream": target.name}
        for options, mode, said in (
            ({"stream": "NONE"}, "append", r"NONE.* create the stream, or correct the option"),
            ({}, "overwrite", "cannot be overwritten: use .mode"),
        ):
            writer = rows.write.format("jetstream").mode(mode)
            with pytest.raises(Exception, match=said):
                writer.options(**{**good, **options}).save()

        assert target.info().state.messages == 0


def test_a_named_write_by_batches_has_its_partitions(rows, nats_server, target):
    """
    Another number of partitions is refused before a row is stored.
    """
    options = jetsync.ConnectOptions(servers=nats_server.url)

    def publish(frame):
        return jetsync_spark.publish_arrow(
            frame, options, stream=target.name, mode="exactlyonce", write_id="load"
        ).collect()

    assert sum(row.stored for row in publish(rows)) == 1000
    assert sum(row.skipped for row in publish(rows)) == 1000
    with pytest.raises(LayoutError, match="of load has 2 partitions, but its first run had 4"):
        publish(rows.coalesce(2))
    assert ids(target) == list(range(1000))


class TestStreaming:
    def query(self, spark, folder, target, server, **options):
        """
        Start a query that writes a text file in each micro-batch, and wait for its end.
        """
        source = spark.readStream.option("maxFilesPerTrigger", 1).text(str(folder / "in"))
        options = {"servers": server.url, "stream": target.name, **options}
        query = (
            source.selectExpr(f"'{target.name}.t' as subject", "value as data")
            .writeStream.format("jetstream")
            .options(**options)
            .option("checkpointLocation", str(folder / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(120)
        assert query.exception() is None
        return query

    def add(self, folder, *numbers):
        """
        Add text files with ten lines each.
        """
        (folder / "in").mkdir(exist_ok=True)
        for number in numbers:
            lines = "\n".join(str(number * 10 + line) for line in range(10))
            (folder / "in" / f"{number}.txt").write_text(lines)

    @pytest.mark.parametrize("mode", ["atleastonce", "exactlyonce"])
    def test_micro_batches_are_stored(self, spark, nats_server, target, tmp_path, mode):
        """
        The micro-batches of a restarted query are stored, too.
        """
        self.add(tmp_path, 0, 1)
        self.query(spark, tmp_path, target, nats_server, mode=mode)
        self.add(tmp_path, 2)
        self.query(spark, tmp_path, target, nats_server, mode=mode)

        assert ids(target) == list(range(30))

    @pytest.mark.soak
    def test_continuous_processing_commits_nothing(self, spark, nats_server, target, tmp_path):
        """
        Spark gives the sink no rows, ignores its error, and does not end the query.
        """
        query = (
            spark.readStream.format("rate")
            .options(rowsPerSecond=10, numPartitions=1)
            .load()
            .selectExpr(f"'{target.name}.t' as subject", "cast(value as string) as data")
            .writeStream.format("jetstream")
            .options(servers=nats_server.url, stream=target.name)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(continuous="1 second")
            .start()
        )
        try:
            # The epoch after the one whose commit failed.
            eventually((tmp_path / "checkpoint" / "offsets" / "1").exists, 200)
            assert query.exception() is None
            assert [*(tmp_path / "checkpoint" / "commits").iterdir()] == []
        finally:
            query.stop()

        assert target.info().state.messages == 0

    def test_a_micro_batch_whose_commit_was_lost_is_skipped(
        self, spark, nats_server, target, tmp_path
    ):
        """
        The driver died before Spark's own commit: the same micro-batch is repeated.
        """
        self.add(tmp_path, 0, 1)
        self.query(spark, tmp_path, target, nats_server, mode="exactlyonce")
        for file in (tmp_path / "checkpoint" / "commits").glob("*1*"):
            file.unlink()
        self.query(spark, tmp_path, target, nats_server, mode="exactlyonce")

        assert ids(target) == list(range(20))
        assert {entry.batch for entry in entries(target, "ledger.>")} == {0, 1}

    @pytest.mark.parametrize("where", ["itself", "its thread", "a thread"])
    def test_a_batch_write_in_foreach_batch_is_repeated(
        self, spark, nats_server, target, tmp_path, where
    ):
        """
        The driver died before Spark noted the micro-batch: the repeated write stores nothing.

        A thread that does not know the query may not write.
        """
        self.add(tmp_path, 0)
        failing = [True]

        def save(df):
            # This makes the session that knows the format the current one of the thread.
            df.sparkSession.createDataFrame([(1,)], "a int")
            df.write.format("jetstream").mode("append").options(
                servers=nats_server.url, stream=target.name, mode="exactlyonce"
            ).save()

        def write(df, _batch):
            if where == "itself":
                save(df)
            else:
                knowing = pyspark.inheritable_thread_target(df.sparkSession)
                threads.submit(knowing(save) if where == "its thread" else save, df).result()
            if failing:
                raise ZeroDivisionError(failing.pop())

        def run():
            return (
                spark.readStream.text(str(tmp_path / "in"))
                .selectExpr(f"'{target.name}.t' as subject", "value as data")
                .writeStream.foreachBatch(write)
                .option("checkpointLocation", str(tmp_path / "checkpoint"))
                .trigger(availableNow=True)
                .start()
            )

        with concurrent.futures.ThreadPoolExecutor(1) as threads:
            if where == "a thread":
                with pytest.raises(Exception, match="set a writeId"):
                    run().awaitTermination(120)
                assert ids(target) == []
                return
            with pytest.raises(Exception, match="ZeroDivisionError"):
                run().awaitTermination(120)
            assert run().awaitTermination(120)

        assert ids(target) == list(range(10))
        assert {entry.batch for entry in entries(target, "ledger.>")} == {0}

    def test_foreach_batch_stores_each_row_once(self, spark, nats_server, target, tmp_path):
        """
        The ledger has the number of partitions, so that another one is refused before writing.
        """
        options = jetsync.ConnectOptions(servers=nats_server.url)
        write = jetsync_spark.exactly_once(options, stream=target.name)
        self.add(tmp_path, 0, 1)

        def run(parts):
            return (
                spark.readStream.option("maxFilesPerTrigger", 1)
                .text(str(tmp_path / "in"))
                .selectExpr(f"'{target.name}.t' as subject", "value as data")
                .writeStream.foreachBatch(lambda df, batch: write(df.repartition(parts), batch))
                .option("checkpointLocation", str(tmp_path / "checkpoint"))
                .trigger(availableNow=True)
                .start()
            )

        assert run(1).awaitTermination(120)
        for file in (tmp_path / "checkpoint" / "commits").glob("*1*"):
            file.unlink()
        assert run(1).awaitTermination(120)
        assert ids(target) == list(range(20))

        for file in (tmp_path / "checkpoint" / "commits").glob("*1*"):
            file.unlink()
        with pytest.raises(Exception, match="has 3 partitions, but its first run had 1"):
            run(3).awaitTermination(120)
        assert ids(target) == list(range(20))


class TestSql:
    def test_a_view_has_options(self, spark, nats_server, target):
        """
        A temporary view keeps its options, for reading and for writing. Names match in any case.
        """
        given = f"servers '{nats_server.url}', stream '{target.name}'"
        spark.sql(
            f"create or replace temporary view flights (Subject string, DATA binary) "
            f"using jetstream options ({given})"
        )

        spark.sql(f"insert into flights values ('{target.name}.a', cast('1' as binary))")

        assert ids(target) == [1]
        (row,) = spark.sql("select subject, cast(data as string) from flights").collect()
        assert tuple(row) == (f"{target.name}.a", "1")

    def test_a_table_gets_options_with_each_statement(self, spark, nats_server, target, unique):
        """
        Spark does not pass the options of a table to its source, and the error says what to do.
        """
        given = f"'servers' = '{nats_server.url}', 'stream' = '{target.name}'"
        spark.sql(
            f"create table {unique} (subject string, data binary) using jetstream "
            f"options ({given.replace('=', '')})"
        )
        try:
            insert = f"select '{target.name}.a', cast('1' as binary)"
            once = f"with ({given}, 'mode' = 'exactlyonce', 'writeId' = 'load')"
            for _ in range(2):
                spark.sql(f"insert into {unique} {once} {insert}")
            found = spark.sql(f"select * from {unique} with ({given}, 'includeLedger' = 'true')")
            assert found.count() == 2
            found = spark.sql(f"select cast(data as string) from {unique} with ({given})")
            assert [row.data for row in found.collect()] == ["1"]

            for statement in (f"select * from {unique}", f"insert into {unique} {insert}"):
                with pytest.raises(Exception, match=r"servers is missing.* FROM t WITH \("):
                    spark.sql(statement).collect()
        finally:
            spark.sql(f"drop table {unique}")
        assert ids(target) == [1]
