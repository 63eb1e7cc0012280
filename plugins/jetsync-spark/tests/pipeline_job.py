"""
A streaming query from one stream to another, as a separate program that tests may kill.

The argument is JSON: ``master``, ``url``, ``source``, ``target``, ``mode``, ``checkpoint``,
``partitions``, ``most`` (messages in a micro-batch), ``reading`` and ``writing`` (more options),
``subject`` (an expression) and ``config`` of Spark. The program ends when all messages of the
source are in the target. If the query fails, the status is 3 and the error is the last line.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from pathlib import Path

from pyspark.errors import StreamingQueryException
from sessions import session

from jetsync_spark.source import JetStreamDataSource
from jetsync_spark.write.writers import StreamWriter

DIE = "JETSYNC_TEST_DIE_IN_COMMIT"
"""Variable with the path of a file; while the file exists, the driver dies in a commit, once."""


class DyingWriter(StreamWriter):
    """
    Kills the driver after a micro-batch is written and before Spark has noted it.
    """

    def commit(self, messages, batchId):  # noqa: N803 - Spark's name.
        super().commit(messages, batchId)
        file = Path(os.environ[DIE])
        if batchId >= 1 and file.exists():
            file.unlink()
            # A worker's parent is the daemon, whose parent is the JVM.
            status = Path(f"/proc/{os.getppid()}/stat").read_text()
            os.kill(int(status.rpartition(")")[2].split()[1]), signal.SIGKILL)


class DyingSource(JetStreamDataSource):
    """
    The data source, with a driver that dies.
    """

    @classmethod
    def name(cls):
        return "jetstream-dying"

    def streamWriter(self, schema, overwrite):  # noqa: N802 - as above.
        return DyingWriter(self.options, schema, overwrite=overwrite)


def main(job):
    """
    Run the query to its end.
    """
    spark = session(job["master"], **job.get("config", {}))
    spark.dataSource.register(JetStreamDataSource)
    spark.dataSource.register(DyingSource)
    rows = (
        spark.readStream.format("jetstream")
        .options(servers=job["url"], stream=job["source"], **job["reading"])
        .options(minPartitions=job["partitions"], maxOffsetsPerTrigger=job["most"])
        .load()
    )
    query = (
        rows.selectExpr(f"{job['subject']} as subject", "data")
        .writeStream.format("jetstream-dying" if DIE in os.environ else "jetstream")
        .options(servers=job["url"], stream=job["target"], mode=job["mode"], **job["writing"])
        .option("checkpointLocation", job["checkpoint"])
        .trigger(availableNow=True)
        .start()
    )
    try:
        query.awaitTermination()
    except StreamingQueryException as error:
        text = " ".join(str(error).split())
        with contextlib.suppress(OSError):
            Path(job["checkpoint"]).with_suffix(".error").write_text(text)
        os._exit(3)
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
