"""
Invalid rows and messages in a Spark session: the data source, ``foreachBatch`` and the sinks.
"""

import collections

import pyspark
import pytest

import jetsync
import jetsync_spark

pytestmark = [
    pytest.mark.spark,
    pytest.mark.live,
    pytest.mark.skipif(
        pyspark.__version__ < "4.2", reason="needs Arrow writers and Spark's limits"
    ),
]


@pytest.fixture(scope="module", autouse=True)
def registered(spark):
    """
    The session knows the format.
    """
    jetsync_spark.register(spark)


@pytest.fixture
def dead(js, unique):
    """
    A stream of dead letters.
    """
    yield js.create_stream(f"{unique}-DEAD", subjects=[f"dead.{unique}"], allow_direct=True)
    js.delete_stream(f"{unique}-DEAD")


@pytest.fixture
def source(js, unique):
    """
    A stream with 300 documents, of which every seventh is no JSON, and every eleventh has a null.
    """
    stream = js.create_stream(f"{unique}-IN", subjects=[f"in.{unique}"], allow_direct=True)
    js.publish_many((f"in.{unique}", payload(n)) for n in range(300))
    yield stream
    js.delete_stream(stream.name)


def payload(number):
    """
    Return the payload of a message.
    """
    if number % 7 == 0:
        return b"%d oops" % number
    return b'{"id": %d, "to": %s}' % (number, b"null" if number % 11 == 0 else b'"a"')


VALID = [n for n in range(300) if n % 7 and n % 11]
NO_JSON = [n for n in range(300) if n % 7 == 0]
NO_SUBJECT = [n for n in range(300) if n % 7 and n % 11 == 0]


def numbers(messages):
    """
    Return how often each number is in the payloads of messages.
    """
    return collections.Counter(int(bytes(each.data).split()[0]) for each in messages)


def options_of(server, target, mode):
    """
    Return the options of a write.
    """
    return {
        "servers": server.url,
        "stream": target.name,
        "mode": mode,
        "onInvalidRow": "deadLetter",
        "deadLetterSubject": f"{target.name}.dead",
    }


def documents(reader, server, source, dead):
    """
    Return a DataFrame of rows to write.
    """
    return (
        reader.format("jetstream")
        .options(
            servers=server.url,
            stream=source.name,
            startingOffsets="earliest",
            onInvalidMessage="deadLetter",
            deadLetterSubject=dead.info().config.subjects[0],
        )
        .schema("json struct<id: bigint, to: string>")
        .load()
    )


@pytest.mark.parametrize("way", ["data source", "exactly_once", "foreachBatch"])
def test_a_query_with_invalid_rows_and_messages(
    spark, nats_server, source, dead, target, tmp_path, way
):
    """
    Each valid row is stored once, and each other one is one dead letter, also when the micro-batch
    is repeated.
    """
    name = target.name
    frame = documents(spark.readStream, nats_server, source, dead).selectExpr(
        f"'{name}.' || json.to as subject", "cast(json.id as string) as data"
    )

    def save(df, _batch):
        df.write.format("jetstream").mode("append").options(
            **options_of(nats_server, target, "exactlyonce")
        ).save()

    for _ in range(2):
        writer = frame.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
        if way == "data source":
            writer = writer.format("jetstream").options(
                **options_of(nats_server, target, "exactlyonce")
            )
        elif way == "foreachBatch":
            writer = writer.foreachBatch(save)
        else:
            writer = writer.foreachBatch(
                jetsync_spark.exactly_once(
                    jetsync.ConnectOptions(servers=nats_server.url),
                    stream=name,
                    on_invalid_row="deadLetter",
                    dead_letter_subject=f"{name}.dead",
                )
            )
        writer.trigger(availableNow=True).start().awaitTermination()
        # The driver died before Spark noted the micro-batch.
        for file in (tmp_path / "checkpoint" / "commits").iterdir():
            file.unlink()

    assert numbers(target.scan(subject=f"{name}.a")) == collections.Counter(VALID)
    assert numbers(target.scan(subject=f"{name}.dead")) == collections.Counter(NO_SUBJECT)
    assert numbers(dead.scan()) == collections.Counter(NO_JSON)


def test_the_sinks_count_invalid_rows(spark, nats_server, options, target):
    """
    The counts of publish_arrow have the invalid rows, and JetStreamSink leaves them out.
    """
    rows = spark.range(100, numPartitions=2).selectExpr(
        f"if(id % 10 = 0, null, '{target.name}.a') as subject", "cast(id as string) as data"
    )

    counts = jetsync_spark.publish_arrow(rows, options, stream=target.name, on_invalid_row="skip")
    found = counts.collect()
    rows.foreachPartition(
        jetsync_spark.JetStreamSink(options, stream=target.name, on_invalid_row="skip")
    )

    assert [(row.rows, row.stored, row.invalid) for row in found] == [(50, 45, 5)] * 2
    assert target.info().state.messages == 180


def test_one_bad_row_among_many(spark, nats_server, target):
    """
    By default the job fails, and its retries store few rows twice.
    """
    rows = spark.range(5000, numPartitions=2).selectExpr(
        f"if(id = 4000, null, '{target.name}.a') as subject", "cast(id as string) as data"
    )

    with pytest.raises(Exception, match="row 1500 of partition 1: the subject is null"):
        rows.write.format("jetstream").mode("append").options(
            servers=nats_server.url, stream=target.name
        ).save()

    assert target.info().state.messages <= 2500
