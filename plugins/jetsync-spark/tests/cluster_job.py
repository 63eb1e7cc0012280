"""
A streaming query from one stream to another, which `spark-submit` runs without the tests' modules.

The argument is JSON: ``urls``, ``source``, ``target``, ``checkpoint``, ``most`` (messages in a
micro-batch) and ``origins``, a file for the paths from which the executors import the plugin.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

QUICK = {"requestTimeoutMs": 2000, "connectTimeoutMs": 2000, "retryTimeoutMs": 5000}
"""A partition that lasts longer than the retries fails tasks. A shorter one delays them."""


def origin(_):
    """
    Return the path of the plugin and of the interpreter in a task.
    """
    import jetsync_spark

    return f"{jetsync_spark.__file__} {sys.executable}"


def finish(spark, job):
    """
    Run the query until all messages are in the target. Return whether it has ended well.
    """
    common = {"servers": ",".join(job["urls"]), **QUICK}
    query = (
        spark.readStream.format("jetstream")
        .options(**common, stream=job["source"], startingOffsets="earliest")
        .options(minPartitions=4, maxOffsetsPerTrigger=job["most"])
        .load()
        .selectExpr(f"'{job['target']}.' || (sequence % 7) as subject", "data")
        .writeStream.format("jetstream")
        .options(**common, stream=job["target"], mode="exactlyonce", ackTimeoutMs=2000)
        .option("checkpointLocation", job["checkpoint"])
        .trigger(availableNow=True)
        .start()
    )
    try:
        query.awaitTermination()
    except StreamingQueryException as error:
        # Spark gives a planning worker ten seconds to start, too few on a busy machine.
        if "failed to connect back" not in str(error):
            raise
        print("The query starts again:", error)  # noqa: T201 - for the log.
        return False
    return True


def main(job):
    """
    Note where the plugin comes from, and run the query.
    """
    spark = SparkSession.builder.appName("jetsync-cluster").getOrCreate()
    spark.sparkContext.setLogLevel("WARN")
    origins = spark.sparkContext.parallelize(range(8), 8).map(origin).collect()
    Path(job["origins"]).write_text("\n".join(sorted(set(origins))))
    while not finish(spark, job):
        pass
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
