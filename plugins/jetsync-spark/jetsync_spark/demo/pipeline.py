"""
The Spark part of the demo: flights into JetStream, and their weekly totals into a bucket.

Each stage is a process with a Spark session on two threads, so that one can be killed without the
other. Only public names of jetsync and jetsync_spark are used.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name.

import jetsync
import jetsync_spark
from jetsync_spark.demo.data import WEEK, key_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming import StreamingQuery

__all__ = [
    "AIRLINES",
    "DELAYS",
    "PROGRESS",
    "STREAM",
    "WeeklyTotals",
    "publish",
    "session",
    "start",
    "weekly_delays",
]

STREAM: Final = "SPARK_FLIGHTS"
AIRLINES: Final = "spark_airlines"
DELAYS: Final = "spark_delays"

PROGRESS: Final = "micro-batch"
"""The key with the micro-batch that the bucket contains; all other keys are totals."""

FLIGHT: Final = "carrier string, time_hour timestamp, arr_delay int"
"""The fields of a flight that the query needs."""


def session(stage: str) -> SparkSession:
    """
    Start a Spark session on two threads of this machine.

    Args:
        stage: The stage, for the name of the application.
    """
    spark = (
        SparkSession.builder.master("local[2]")
        .appName(f"jetsync-demo-{stage}")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    jetsync_spark.register(spark)
    return spark


def publish(spark: SparkSession, server: str, folder: Path) -> None:
    """
    Store the airlines in a bucket and the flights in a stream, each once, also in repeated runs.

    Args:
        spark: The session.
        server: URL of the server, on which stream and buckets exist.
        folder: The folder with the data.
    """
    options = jetsync.ConnectOptions(servers=server)

    # A bucket is a stream, and its keys are subjects.
    airlines = spark.read.csv(str(folder / "airlines.csv"), header=True)
    airlines.foreachPartition(
        jetsync_spark.JetStreamSink(
            options, stream=f"KV_{AIRLINES}", subject=f"$KV.{AIRLINES}.{{carrier}}", data="name"
        )
    )

    flights = spark.read.csv(
        str(folder / "flights.csv"), header=True, nullValue="NA", inferSchema=True
    )
    day = F.concat_ws("-", "year", "month", "day")
    messages = flights.select(
        "origin",
        "carrier",
        F.to_json(F.struct("*")).alias("data"),
        F.concat_ws(".", day, "origin", "carrier", "flight").alias("msg_id"),
    )
    subject = "flights.{origin}.{carrier}"

    # Newark's flights are written row by row: their ids prevent duplicates if a task runs twice.
    messages.where("origin = 'EWR'").foreachPartition(
        jetsync_spark.JetStreamSink(options, stream=STREAM, subject=subject, msg_id="msg_id")
    )

    # All others are written as record batches: a ledger in the stream records stored chunks.
    (
        messages.where("origin != 'EWR'")
        .drop("msg_id")
        .write.format("jetstream")
        .mode("append")
        .option("servers", server)
        .option("stream", STREAM)
        .option("subject", subject)
        .option("mode", "exactlyonce")
        .option("writeId", "flights-2013")
        .save()
    )


def weekly_delays(spark: SparkSession, server: str, per_batch: int) -> DataFrame:
    """
    Return the streaming DataFrame of the weekly totals of each carrier.

    Args:
        spark: The session.
        server: URL of the server.
        per_batch: The maximum number of messages in a micro-batch.
    """
    stream = (
        spark.readStream.format("jetstream")
        .option("servers", server)
        .option("stream", STREAM)
        # The ledger of the writer above is in the same stream.
        .option("subjectFilter", "flights.>")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", per_batch)
        .load()
    )
    airlines = (
        spark.read.format("jetstream")
        .option("servers", server)
        .option("bucket", AIRLINES)
        .load()
        .select(F.col("key").alias("carrier"), F.col("value").cast("string").alias("airline"))
    )
    flights = stream.select(F.from_json(F.col("data").cast("string"), FLIGHT).alias("flight"))
    # There is no watermark: the file is not in order of time, and every flight counts.
    return (
        flights.select("flight.*")
        .join(F.broadcast(airlines), "carrier")
        .groupBy(F.window("time_hour", f"{WEEK} seconds"), "carrier", "airline")
        .agg(
            F.count("*").alias("flights"),
            F.count("arr_delay").alias("arrived"),
            F.coalesce(F.sum("arr_delay"), F.lit(0)).alias("minutes"),
        )
        # As text, because the value of a timestamp in a row depends on the driver's time zone.
        .withColumn("week", F.date_format("window.start", "yyyy-MM-dd"))
        .drop("window")
    )


class WeeklyTotals:
    """
    Stores in a bucket the totals that a micro-batch changed; pass it to ``foreachBatch``.

    Each micro-batch is one transaction, so readers of the bucket see all of it or nothing. The
    transaction contains the number of the micro-batch. A repeated micro-batch is therefore
    recognised, and a driver that was replaced cannot overwrite later totals.

    Args:
        bucket: The bucket.
    """

    def __init__(self, bucket: jetsync.KeyValue) -> None:
        self._bucket = bucket

    def __call__(self, changed: DataFrame, batch: int) -> None:
        """
        Store the totals of a micro-batch, unless they are stored.

        Raises:
            jetsync.WrongLastRevisionError: Another driver has written since.
        """
        # Compute the totals even if they are stored, because Spark keeps its state only then.
        rows = changed.collect()
        try:
            entry = self._bucket.get(PROGRESS)
        except jetsync.KeyNotFoundError:
            before, revision = -1, 0
        else:
            before, revision = json.loads(entry.value)["batch"], entry.revision
        if batch <= before:
            print(f"micro-batch {batch}: the bucket has it already", flush=True)
            return
        with self._bucket.atomic() as transaction:
            for row in rows:
                transaction.put(key_of(row.carrier, row.week), json.dumps(_value_of(row)))
            done = {"batch": batch, "windows": len(rows)}
            transaction.update(PROGRESS, json.dumps(done), last=revision)


def _value_of(row: Any) -> dict[str, object]:
    mean = round(row.minutes / row.arrived, 2) if row.arrived else None
    totals = {name: row[name] for name in ("airline", "flights", "arrived", "minutes")}
    return {**totals, "mean_delay": mean}


def start(
    spark: SparkSession, server: str, totals: WeeklyTotals, checkpoint: Path, per_batch: int
) -> StreamingQuery:
    """
    Start the streaming query, or continue it from its checkpoint.

    Args:
        spark: The session.
        server: URL of the server.
        totals: Stores the totals.
        checkpoint: The folder for Spark's checkpoint.
        per_batch: The maximum number of messages in a micro-batch.
    """
    return (
        weekly_delays(spark, server, per_batch)
        .writeStream.outputMode("update")
        .option("checkpointLocation", str(checkpoint))
        .foreachBatch(totals)
        .start()
    )


def main(stage: str, server: str, folder: str, per_batch: str = "1") -> None:
    """
    Run one stage: ``publish`` the flights, or compute the ``totals`` of all published ones.
    """
    spark = session(stage)
    spark.sparkContext.setLogLevel("ERROR")
    if stage == "publish":
        publish(spark, server, Path(folder))
    else:
        with jetsync.connect(server, name="jetsync demo, totals") as client:
            totals = WeeklyTotals(client.jetstream().key_value(DELAYS))
            query = start(spark, server, totals, Path(folder) / "checkpoint", int(per_batch))
            query.processAllAvailable()
            query.stop()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
