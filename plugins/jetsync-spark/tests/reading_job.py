"""
A streaming query that writes each micro-batch to its own file, until it is killed.

Arguments: the server, the streams, a folder for checkpoint and files, options as JSON.
"""

import json
import os
import sys
from pathlib import Path

from sessions import session


def main(server, stream, folder, options):
    """
    Read until killed; the file ``pids`` lists the processes to kill.
    """
    spark = session("local[2]")
    made = Path(folder)

    def write(frame, batch):
        rows = sorted((row.stream, row.sequence) for row in frame.collect())
        # A batch that is run again replaces its earlier file.
        unfinished = made / f"{batch}.unfinished"
        unfinished.write_text(json.dumps(rows), "utf-8")
        unfinished.replace(made / f"{batch}.json")

    reader = spark.readStream.format("jetstream").option("servers", server)
    frame = reader.option("stream", stream).options(**json.loads(options)).load()
    java = spark._jvm.java.lang.ProcessHandle.current().pid()
    pids = made / "pids.unfinished"
    pids.write_text(json.dumps([os.getpid(), java]), "utf-8")
    pids.replace(made / "pids")
    query = frame.writeStream.foreachBatch(write)
    query.option("checkpointLocation", str(made / "checkpoint")).start().awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
