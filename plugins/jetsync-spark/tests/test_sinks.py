import datetime as dt
import itertools
import os
import pickle
import signal
from concurrent import futures

import pyspark
import pytest
from writing import ids

import jetsync
import jetsync_spark
from jetsync_spark.common.errors import JetStreamSparkError, OptionError

pytestmark = pytest.mark.spark


@pytest.fixture
def rows(spark, target):
    """
    A thousand rows in four partitions.
    """
    return spark.range(1000, numPartitions=4).selectExpr(
        f"concat('{target.name}.a', id % 7) as subject",
        "cast(id as string) as data",
        "cast(id % 3 as string) as origin",
        "id % 5 as carrier",
    )


class TestSink:
    def test_each_partition_is_published(self, rows, options, target):
        """
        Columns are found by name, and all rows are stored when the job ends.
        """
        rows.foreachPartition(jetsync_spark.JetStreamSink(options, stream=target.name))

        assert ids(target) == list(range(1000))
        assert target.get_message(1).subject.startswith(f"{target.name}.a")

    @pytest.mark.parametrize("mode", ["atomic", "exactlyonce"])
    def test_other_modes(self, rows, options, target, mode):
        """
        The modes use chunks, and a ledger under the name of the write.
        """
        named = {"write_id": "load"} if mode == "exactlyonce" else {}
        sink = jetsync_spark.JetStreamSink(options, stream=target.name, mode=mode, **named)

        rows.foreachPartition(sink)
        if named:
            rows.foreachPartition(sink)

        assert ids(target) == list(range(1000))

    @pytest.mark.parametrize("mode", ["atomic", "exactlyonce"])
    def test_tasks_that_fail_or_run_twice_store_each_row_once(self, rows, options, target, mode):
        """
        One task fails after a hundred rows, and the worker of another is killed after as many. Mode
        exactlyonce also gets a task that runs twice at the same time. An incomplete chunk stores
        nothing.
        """
        more = {"write_id": "load", "chunk_size": 50} if mode == "exactlyonce" else {}
        sink = jetsync_spark.JetStreamSink(options, stream=target.name, mode=mode, **more)

        def dying(rows, *, killed):
            yield from itertools.islice(rows, 100)
            if killed:
                os.kill(os.getpid(), signal.SIGKILL)
            raise ZeroDivisionError

        def task(rows):
            context = pyspark.TaskContext.get()
            partition = context.partitionId()
            if partition in {1, 3} and context.attemptNumber() == 0:
                return sink(dying(rows, killed=partition == 3))
            if partition != 2 or mode == "atomic":
                return sink(rows)
            rows = list(rows)
            with futures.ThreadPoolExecutor(2) as pool:
                runs = [pool.submit(sink, rows) for _ in range(2)]
            errors = [run.exception() for run in runs if run.exception() is not None]
            assert len(errors) < 2
            assert all("10071" in str(error) for error in errors)
            return None

        rows.foreachPartition(task)

        assert ids(target) == list(range(1000))

    def test_fast_ingest(self, rows, options, target):
        """
        Rows are acknowledged by the hundred.
        """
        sink = jetsync_spark.JetStreamSink(options, stream=target.name, fast_ingest=True)

        rows.foreachPartition(sink)

        assert ids(target) == list(range(1000))

    def test_a_subject_is_made_of_columns(self, rows, options, target):
        """
        Each column in braces becomes one token.
        """
        subject = f"{target.name}.{{origin}}.{{carrier}}"

        rows.foreachPartition(
            jetsync_spark.JetStreamSink(options, stream=target.name, subject=subject)
        )

        found = target.info(subjects_filter=">").state.subjects
        assert set(found) == {f"{target.name}.{o}.{c}" for o in range(3) for c in range(5)}

    def test_a_function_makes_messages(self, rows, options, target):
        """
        The function returns a message or a tuple.
        """
        name = target.name

        def message(row):
            if row.data.endswith("0"):
                return jetsync.OutboundMessage(f"{name}.x", row.data, {"zero": "yes"})
            return f"{name}.y", row.data

        rows.foreachPartition(jetsync_spark.JetStreamSink(options, stream=name, message=message))

        assert ids(target) == list(range(1000))
        assert target.get_last(f"{name}.x").headers["zero"] == "yes"

    def test_columns_are_checked_on_the_driver(self, rows, options, target):
        """
        Invalid columns are reported before a job runs.
        """
        jetsync_spark.JetStreamSink(options, stream=target.name).check(rows)

        for bad, said in (
            ({"data": "payload"}, "no column payload: the columns are carrier, data"),
            ({"subject": "topic"}, "no column topic"),
            ({"subject": "elsewhere.{origin}"}, r"does not capture this subject .*elsewhere"),
            ({"data": "carrier"}, "column carrier has the type bigint: make it binary"),
        ):
            sink = jetsync_spark.JetStreamSink(options, stream=target.name, **bad)
            with pytest.raises(JetStreamSparkError, match=said):
                sink.check(rows)

    def test_a_sink_can_be_pickled(self, options):
        """
        A sink is pickled for each task, and its repr shows no password.
        """
        secret = options.evolve(user="me", password="s3cret")
        sink = jetsync_spark.JetStreamSink(secret, stream="S")

        assert "s3cret" not in repr(pickle.loads(pickle.dumps(sink)))

    def test_an_unknown_argument_is_named(self, options):
        """
        A misspelt argument is refused.
        """
        with pytest.raises(OptionError, match="no argument windw"):
            jetsync_spark.JetStreamSink(options, stream="S", windw=5)


class TestArrow:
    def test_counts_are_returned(self, rows, options, target):
        """
        There is one row per partition, with the counts and the stream.
        """
        counts = jetsync_spark.publish_arrow(rows, options, stream=target.name)

        assert target.info().state.messages == 0
        found = counts.collect()
        assert ids(target) == list(range(1000))
        assert sorted(row.partition for row in found) == [0, 1, 2, 3]
        assert sum(row.stored for row in found) == sum(row.rows for row in found) == 1000
        assert min(row.first_sequence for row in found) == 1
        assert max(row.last_sequence for row in found) == 1000

    def test_an_arrow_sink_accepts_large_types(self, spark, rows, options, target):
        """
        Sessions may be configured to use large_string and large_binary.
        """
        name = "spark.sql.execution.arrow.useLargeVarTypes"
        spark.conf.set(name, "true")
        try:
            jetsync_spark.publish_arrow(rows, options, stream=target.name).collect()
        finally:
            spark.conf.unset(name)

        assert ids(target) == list(range(1000))

    def test_rows_and_batches_make_the_same_messages(self, spark, options, target):
        """
        All columns, including nulls, give the same messages both ways.
        """
        query = f"""
            select '{target.name}.' || n as subject, cast(n as binary) as data,
                map('a', array('1', '2'), 'b', array('3')) as headers,
                'WAY' || n as msg_id, 'never' as ttl, cast(0 as decimal(20,0)) as expected_sequence
            from values ('x'), ('y') as t(n)
            union all
            select '{target.name}.null', null, null, null, null, null
            """
        found = []
        for way in ("row", "bat"):
            rows = spark.sql(query.replace("WAY", way))
            if way == "row":
                rows.foreachPartition(jetsync_spark.JetStreamSink(options, stream=target.name))
            else:
                jetsync_spark.publish_arrow(rows, options, stream=target.name).collect()
            found.append(
                sorted(
                    (
                        m.subject,
                        bytes(m.data),
                        [v.replace(way, "id-") for _, v in m.headers.items()],
                    )
                    for m in target.scan()
                )
            )
            target.purge()

        assert found[0] == found[1]
        assert (f"{target.name}.null", b"", []) in found[0]
        assert found[0][1][2] == ["1", "2", "3", "id-x", "never", "0"]

    def test_structs_and_kafkas_headers(self, spark, options, target):
        """
        Rows and batches reach nested fields, accept Kafka's headers, and match names in any case.
        """
        rows = spark.sql(
            """
            select named_struct('code', 'UA', 'at', named_struct('gate', 7)) as Carrier,
                'x' as DATA, array(
                    named_struct('key', 'a', 'value', cast('1' as binary)),
                    named_struct('key', 'b', 'value', cast(null as binary)),
                    named_struct('key', 'a', 'value', cast('2' as binary))
                ) as headers
            """
        )
        subject = f"{target.name}.{{carrier.code}}.{{carrier.at.gate}}"
        given = {"stream": target.name, "subject": subject}

        rows.foreachPartition(jetsync_spark.JetStreamSink(options, **given))
        jetsync_spark.publish_arrow(rows, options, **given).collect()
        if pyspark.__version__ >= "4":
            jetsync_spark.register(spark)
            writer = rows.write.format("jetstream").mode("append")
            writer.options(servers=options.servers, **given).save()

        messages = list(target.scan())
        assert len(messages) == (3 if pyspark.__version__ >= "4" else 2)
        for message in messages:
            assert message.subject == f"{target.name}.UA.7"
            assert message.headers.items() == [("a", "1"), ("a", "2")]

    def test_a_session_may_distinguish_case(self, spark, rows, options, target):
        """
        Functions follow the session's setting.
        """
        rows = rows.withColumnRenamed("data", "Data").limit(10)
        given = {"stream": target.name}
        jetsync_spark.publish_arrow(rows, options, **given).collect()
        rows.foreachPartition(jetsync_spark.JetStreamSink(options, **given))
        assert target.info().state.messages == 20

        spark.conf.set("spark.sql.caseSensitive", "true")
        try:
            with pytest.raises(OptionError, match="no column data: the columns are Data"):
                jetsync_spark.publish_arrow(rows, options, **given)
            sink = jetsync_spark.JetStreamSink(options, **given)
            with pytest.raises(OptionError, match="no column data"):
                sink.check(rows)
            with pytest.raises(Exception, match="no column data"):
                rows.foreachPartition(sink)
        finally:
            spark.conf.unset("spark.sql.caseSensitive")

    def test_types_in_subjects_and_times_to_live(self, spark, options, target):
        """
        Rows and batches write dates, booleans and numbers in the same way; intervals are durations.
        """
        rows = spark.createDataFrame(
            [(dt.date(2026, 1, 2), True, 7, b"x", dt.timedelta(hours=1))],
            "day date, flag boolean, number int, data binary, ttl interval day to second",
        )
        subject = f"{target.name}.{{day}}.{{flag}}.{{number}}"

        rows.foreachPartition(
            jetsync_spark.JetStreamSink(options, stream=target.name, subject=subject)
        )
        jetsync_spark.publish_arrow(rows, options, stream=target.name, subject=subject).collect()

        messages = list(target.scan())
        assert [m.subject for m in messages] == [f"{target.name}.2026-01-02.true.7"] * 2
        assert [m.headers["Nats-TTL"] for m in messages] == ["3600"] * 2

    def test_a_row_that_can_not_be_stored_is_named(self, spark, options, target):
        """
        Spark keeps the text of the error, which has the row, the subject and the advice.
        """
        rows = spark.sql("select 'elsewhere' as subject, 'x' as data").coalesce(1)

        with pytest.raises(Exception, match=r"row 0 of partition 0: .*does not capture") as caught:
            jetsync_spark.publish_arrow(rows, options, stream=target.name).collect()

        assert "subject elsewhere): add the subject to the stream" in str(caught.value)
