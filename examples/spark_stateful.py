"""
Orders and payments from two streams, joined by time, and stored exactly once in a key-value bucket.

    python -m pip install . './plugins/jetsync-spark[pyspark]'     # and Java 17 or newer
    jetsync server &
    python examples/spark_stateful.py

An order that is paid within an hour is stored as paid, and every other one as unpaid. Kill the
program as often as you like and start it again: each order is stored once. It also runs on a
cluster (`spark-submit --master spark://...`) and with Spark Connect (`SPARK_REMOTE=sc://...`). The
folder `spark-stateful` is the checkpoint, so all hosts of a cluster have to share it.
"""

from __future__ import annotations

import json
import os
from datetime import datetime, timedelta, timezone
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name.

import jetsync
import jetsync_spark

SERVER = os.environ.get("NATS_URL", "nats://127.0.0.1:4222")
CHECKPOINT = Path("spark-stateful").resolve()
ORDERS = 300

client = jetsync.connect(SERVER)
js = client.jetstream()
orders = js.create_stream("ORDERS", subjects=["orders.>"], allow_direct=True)
payments = js.create_stream("PAYMENTS", subjects=["payments.>"], allow_direct=True)
try:
    states = js.key_value("order-states")
except jetsync.BucketNotFoundError:
    # The history shows that no order is stored twice. `atomic` is for the exactly-once writer. Its
    # ledger is in the bucket's stream too, below a subject that is no key.
    states = js.create_key_value("order-states", history=3, atomic=True)
    js.update_stream("KV_order-states", subjects=["$KV.order-states.>", "ledger.order-states.>"])

# 1. An order each minute. Two of three are paid, some of these too late.

START = datetime(2026, 1, 1, tzinfo=timezone.utc)


def message(order: int, minute: int) -> bytes:
    """
    Return the payload of an order or of its payment.
    """
    return json.dumps({"order": order, "at": str(START + timedelta(minutes=minute))}).encode()


def late(order: int) -> int:
    """
    Return how many minutes after an order it is paid.
    """
    return order * 7 % 80


if orders.info().state.messages == 0:
    js.publish_many((f"orders.{n}", message(n, n)) for n in range(ORDERS))
    js.publish_many((f"payments.{n}", message(n, n + late(n))) for n in range(ORDERS) if n % 3)
# Spark decides about unpaid orders when both streams have reached a later time, and after a restart
# only when there are new messages. The last order of each stream stays undecided.
tomorrow = ORDERS + 24 * 60
js.publish("orders.last", message(-1, tomorrow))
js.publish("payments.last", message(-2, tomorrow))

# 2. Both streams -> join with state -> bucket.

spark = SparkSession.builder.config("spark.sql.shuffle.partitions", "2").getOrCreate()


def read(stream: str, order: str, time: str) -> DataFrame:
    """
    Return the orders or the payments, which may arrive up to ten minutes late.
    """
    return (
        spark.readStream.format("jetstream")
        .options(servers=SERVER, stream=stream, startingOffsets="earliest")
        .option("maxOffsetsPerTrigger", 200)
        .load()
        .select(F.from_json(F.col("data").cast("string"), "order int, at timestamp").alias("row"))
        .select(F.col("row.order").alias(order), F.col("row.at").alias(time))
        .withWatermark(time, "10 minutes")
    )


joined = (
    read("ORDERS", "order", "placed")
    .join(
        read("PAYMENTS", "paid_order", "paid"),
        F.expr("paid_order = order and paid between placed and placed + interval 60 minutes"),
        "leftOuter",
    )
    .select(
        "order",
        F.when(F.col("paid").isNull(), "unpaid").otherwise("paid").alias("state"),
    )
)

store = jetsync_spark.exactly_once(
    jetsync.ConnectOptions(servers=SERVER),
    stream="KV_order-states",
    subject="$KV.order-states.{order}",
    data="state",
    write_id="order-states",  # names the query over Spark Connect
)


def store_sorted(batch: DataFrame, number: int) -> None:
    """
    Store a micro-batch.

    The rows have passed a shuffle, so a replay may have another order. Sorting restores it.
    """
    store(batch.sortWithinPartitions("order"), number)


query = (
    joined.writeStream.foreachBatch(store_sorted)
    .option("checkpointLocation", str(CHECKPOINT))
    .queryName("order-states")
    .start()
)
# In production the query would not stop. The trigger `availableNow` is no alternative with PySpark
# 4.0 and 4.1: it would end the query before Spark decides about the unpaid orders.
query.processAllAvailable()
query.stop()

# 3. The result.

print(jetsync_spark.progress(query))
found = states.get_many("*")
paid = sum(entry.value == b"paid" for entry in found.values())
print(f"{paid} of {len(found)} orders are paid")
assert paid == sum(late(n) <= 60 for n in range(ORDERS) if n % 3)
assert len(found) == ORDERS
assert all(len(list(states.history(key))) == 1 for key in found)
client.close()
