"""
Writing a key-value bucket as a table in a Spark session.
"""

import pytest

import jetsync_spark

pytest.importorskip("pyspark.sql.datasource", reason="PySpark 3.5 has no data sources in Python")

pytestmark = pytest.mark.spark


@pytest.fixture
def bucket(js, unique):
    """
    A bucket, which is removed afterwards.
    """
    yield js.create_key_value(unique, history=5, atomic=True)
    js.delete_key_value(unique)


@pytest.fixture
def write(nats_server, bucket):
    """
    A function that writes rows to the bucket.
    """

    def save(rows, save_mode="append", **options):
        out = rows.write.format("jetstream").mode(save_mode)
        out.options(servers=nats_server.url, bucket=bucket.bucket, **options).save()

    return save


@pytest.fixture
def read(spark, nats_server, bucket):
    """
    The bucket as a table.
    """
    source = spark.read.format("jetstream")
    return source.options(servers=nats_server.url, bucket=bucket.bucket)


def table(bucket):
    """
    Return the values of all keys but those of the ledger.
    """
    found = bucket.get_many([">"])
    return {key: bytes(found[key].value) for key in found if not key.startswith("_ledger.")}


def test_a_table_is_written_and_read(spark, bucket, read, write):
    """
    Rows set and delete keys. The table that is read can be written again, on condition that its
    revisions are still the same.
    """
    bucket.put("old", b"x")
    write(
        spark.sql(
            "SELECT * FROM VALUES ('a', '1', 'PUT'), ('b', '2', NULL), ('old', NULL, 'DEL')"
            " AS t(key, value, operation)"
        )
    )
    assert table(bucket) == {"a": b"1", "b": b"2"}

    changed = read.load().selectExpr(
        "key", "concat(value, X'21') AS value", "operation", "revision AS expected_revision"
    )
    changed = spark.createDataFrame(changed.collect(), changed.schema)
    bucket.put("b", b"other")
    write(changed, onInvalidRow="skip")

    assert table(bucket) == {"a": b"1!", "b": b"other"}


def test_a_named_write_is_stored_once(spark, bucket, read, write):
    """
    The ledger is in the bucket, where a table does not show it.
    """
    rows = spark.range(3000, numPartitions=2).selectExpr(
        "concat('k', id % 10) AS key", "cast(id AS string) AS value"
    )
    for _ in range(2):
        write(rows, mode="exactlyonce", writeId="load")

    assert bucket.stream.info().state.last_seq < 3020
    assert len(bucket.keys()) == 12
    assert sorted(row.key for row in read.load().collect()) == [f"k{n}" for n in range(10)]
    assert read.option("keys", "_ledger.>").load().count() == 2


def test_arrow(spark, bucket, options):
    """
    The functions take the bucket in place of a stream, and ignore further columns.
    """
    rows = spark.sql("SELECT 'a' AS key, '1' AS value, 7 AS other")

    (counts,) = jetsync_spark.publish_arrow(rows, options, bucket=bucket.bucket).collect()
    rows.foreachPartition(jetsync_spark.JetStreamSink(options, bucket=bucket.bucket))

    assert counts.stored == 1
    assert [bytes(each.value) for each in bucket.history("a")] == [b"1", b"1"]


@pytest.mark.parametrize(
    ("save_mode", "rows", "said"),
    [
        ("overwrite", "SELECT 'a' AS key, '1' AS value", "a bucket cannot be overwritten"),
        ("append", "SELECT 'a b' AS key, '1' AS value", "the key has a character"),
        ("append", "SELECT 'a' AS key, '1' AS value, 2 AS x", "no use for column x"),
    ],
)
def test_invalid_writes(spark, bucket, write, save_mode, rows, said):
    """
    The error says what to do, and nothing is stored.
    """
    with pytest.raises(Exception, match=said):
        write(spark.sql(rows), save_mode)

    assert bucket.stream.info().state.last_seq == 0


class TestQueries:
    def test_rows_are_upserted(self, spark, js, nats_server, bucket, tmp_path, target):
        """
        A streaming query in output mode append sets the values of keys.
        """
        js.publish_many((f"{target.name}.k{n % 3}", str(n)) for n in range(9))
        source = spark.readStream.format("jetstream").options(
            servers=nats_server.url, stream=target.name, startingOffsets="earliest", minPartitions=1
        )

        query = (
            source.load()
            .selectExpr("split(subject, '[.]')[1] AS key", "data AS value")
            .writeStream.format("jetstream")
            .options(servers=nats_server.url, bucket=bucket.bucket, mode="exactlyonce")
            .option("checkpointLocation", str(tmp_path))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(120)

        assert table(bucket) == {"k0": b"6", "k1": b"7", "k2": b"8"}

    def test_spark_does_not_let_a_python_sink_have_update_mode(
        self, spark, nats_server, bucket, tmp_path, target
    ):
        """
        If a version of Spark does, the documentation and the sink have to follow.
        """
        source = spark.readStream.format("jetstream").options(
            servers=nats_server.url, stream=target.name, startingOffsets="earliest"
        )
        counts = source.load().groupBy("subject").count()
        out = counts.selectExpr("'a' AS key", "cast(count AS string) AS value").writeStream
        out = out.format("jetstream").outputMode("update").trigger(availableNow=True)
        out = out.options(servers=nats_server.url, bucket=bucket.bucket)

        with pytest.raises(Exception, match=r"does not support Update mode"):
            out.option("checkpointLocation", str(tmp_path)).start().awaitTermination(120)
