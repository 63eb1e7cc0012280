"""
Flights through Spark into JetStream, and mean delays per week back into a key-value bucket.

    python -m pip install . './plugins/jetsync-spark[demo]'     # and Java 17 or newer
    jetsync server &
    python examples/spark_pipeline.py

End it as rudely as you like and start it again: it goes on from its checkpoint, in the folder
`spark-pipeline`, and every flight counts once. `python -m jetsync_spark.demo` does that by
itself, and checks the sums.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it.

import jetsync
import jetsync_spark
from jetsync_spark.demo.data import FLIGHTS, unpack

SERVER = os.environ.get("NATS_URL", "nats://127.0.0.1:4222")
COUNT = int(sys.argv[1]) if len(sys.argv) > 1 else FLIGHTS
FOLDER = Path("spark-pipeline")

spark = (
    SparkSession.builder.master("local[2]")
    .config("spark.sql.shuffle.partitions", "2")
    .config("spark.sql.session.timeZone", "UTC")
    .getOrCreate()
)
spark.sparkContext.setLogLevel("ERROR")

client = jetsync.connect(SERVER)
js = client.jetstream()
js.create_stream(
    "FLIGHTS",
    subjects=["flights.>", "ledger.flights.>"],
    allow_atomic=True,  # for mode exactlyonce, which keeps its ledger below ledger.flights
    allow_direct=True,  # for reading
)
js.create_key_value("airlines")
delays = js.create_key_value("delays", atomic=True)

# 1. Files -> Spark -> JetStream. Airlines row by row: a bucket is a stream, its keys are subjects.

FOLDER.mkdir(exist_ok=True)
unpack(FOLDER, COUNT)
spark.read.csv(f"{FOLDER}/airlines.csv", header=True).foreachPartition(
    jetsync_spark.JetStreamSink(
        jetsync.ConnectOptions(servers=SERVER),
        stream="KV_airlines",
        subject="$KV.airlines.{carrier}",
        data="name",
    )
)

# Flights by record batches. The write has an id: run again, it stores nothing twice.
flights = spark.read.csv(f"{FOLDER}/flights.csv", header=True, nullValue="NA", inferSchema=True)
(
    flights.select("origin", "carrier", F.to_json(F.struct("*")).alias("data"))
    .write.format("jetstream")
    .mode("append")
    .option("servers", SERVER)
    .option("stream", "FLIGHTS")
    .option("subject", "flights.{origin}.{carrier}")
    .option("mode", "exactlyonce")
    .option("writeId", "flights-2013")
    .save()
)

# 2. JetStream -> streaming query -> bucket, in one transaction for each micro-batch.

airlines = (
    spark.read.format("jetstream")
    .option("servers", SERVER)
    .option("bucket", "airlines")
    .load()
    .selectExpr("key as carrier", "cast(value as string) as airline")
)
weekly = (
    spark.readStream.format("jetstream")
    .option("servers", SERVER)
    .option("stream", "FLIGHTS")
    .option("subjectFilter", "flights.>")
    .option("startingOffsets", "earliest")
    .option("maxOffsetsPerTrigger", max(COUNT // 8, 1))
    .load()
    .select(
        F.from_json(
            F.col("data").cast("string"), "carrier string, time_hour timestamp, arr_delay int"
        ).alias("flight")
    )
    .select("flight.*")
    .join(F.broadcast(airlines), "carrier")
    .groupBy(F.window("time_hour", "7 days"), "carrier", "airline")
    .agg(F.count("*").alias("flights"), F.mean("arr_delay").alias("mean_delay"))
    .withColumn("week", F.date_format("window.start", "yyyy-MM-dd"))
)


def store(changed: DataFrame, batch: int) -> None:
    """
    Put the weeks that a micro-batch changed, all or none; done twice it changes nothing.
    """
    with delays.atomic() as transaction:
        for row in changed.collect():
            value = {name: row[name] for name in ("airline", "flights", "mean_delay")}
            transaction.put(f"{row.carrier}.{row.week}", json.dumps(value))
    print(f"micro-batch {batch}")


query = (
    weekly.writeStream.outputMode("update")
    .option("checkpointLocation", str(FOLDER / "checkpoint"))
    .foreachBatch(store)
    .start()
)
query.processAllAvailable()
query.stop()

weeks = delays.get_many("UA.*")
for key in sorted(weeks)[:5]:
    print(key, weeks[key].value.decode())
print(
    sum(json.loads(entry.value)["flights"] for entry in delays.get_many("*.*").values()), "flights"
)

client.close()
spark.stop()
