"""
A write from one stream to another with one late commit, as a separate program.

The argument is JSON as for ``pipeline_job.py``, with ``way``, one of `WAYS`, and ``notes``, a
folder. When all rows are written, the program creates a file ``written`` there. Spark then keeps
running for its tasks until a file ``end`` exists.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import late_commits
from sessions import session
from waiting import eventually

import jetsync
import jetsync_spark

PATIENT = 600.0
"""Seconds for an acknowledgement: the delayed commit is in time."""


def by_data_source(spark, job):
    """
    Write a DataFrame by the data source.
    """
    writer = writing(job, rows(job, spark.read).write).option("writeId", "load")
    writer.mode("append").save()


def by_stream(spark, job):
    """
    Write micro-batches by the data source.
    """
    finish(job, writing(job, rows(job, spark.readStream).writeStream))


def by_sink(spark, job):
    """
    Write a DataFrame by ``foreachPartition``.
    """
    sink = jetsync_spark.JetStreamSink(
        connecting(job),
        stream=job["target"],
        mode=job["mode"],
        write_id="load",
        ack_timeout=PATIENT,
    )
    rows(job, spark.read).foreachPartition(sink)


def by_batches(spark, job):
    """
    Write micro-batches by ``foreachBatch``.
    """
    write = jetsync_spark.exactly_once(connecting(job), stream=job["target"], ack_timeout=PATIENT)
    finish(job, rows(job, spark.readStream).writeStream.foreachBatch(write))


WAYS = {
    "data source": by_data_source,
    "stream": by_stream,
    "foreachPartition": by_sink,
    "foreachBatch": by_batches,
}


def connecting(job):
    """
    Return how to connect, with the plugin.
    """
    return jetsync.ConnectOptions(servers=job["url"], plugins=[late_commits.NAME])


def rows(job, reader):
    """
    Return the rows to write.
    """
    reader = reader.format("jetstream").options(servers=job["url"], stream=job["source"])
    reader = reader.options(startingOffsets="earliest", minPartitions=job["partitions"])
    if "Stream" in type(reader).__name__:
        reader = reader.option("maxOffsetsPerTrigger", job["most"])
    return reader.load().selectExpr(f"'{job['target']}.' || (sequence % 7) as subject", "data")


def writing(job, writer):
    """
    Return the options of the data source's writer.
    """
    return (
        writer.format("jetstream")
        .options(servers=job["url"], stream=job["target"], mode=job["mode"])
        .options(plugins=late_commits.NAME, ackTimeoutMs=int(PATIENT * 1000))
    )


def finish(job, writer):
    """
    Run a query until all rows are written.
    """
    writer = writer.option("checkpointLocation", job["checkpoint"]).trigger(availableNow=True)
    writer.start().awaitTermination()


def main(job):
    """
    Write, and wait.
    """
    # Imported here, because the tests read the names of the ways even if Spark has no data sources.
    from jetsync_spark.source import JetStreamDataSource

    spark = session(job["master"], **job["config"])
    spark.dataSource.register(JetStreamDataSource)
    WAYS[job["way"]](spark, job)
    notes = Path(job["notes"])
    (notes / "written").touch()
    eventually((notes / "end").exists, 1200)
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
