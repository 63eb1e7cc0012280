"""
Streaming queries without Spark: the calls that it makes of a reader.
"""

from __future__ import annotations

import json
import pickle

from pyspark.sql.types import BinaryType, LongType, StructField, StructType

from jetsync_spark.common.options import ConnectSettings, read_settings
from jetsync_spark.read.micro_batch import StreamMicroBatchReader
from jetsync_spark.read.options import ReadOptions

SCHEMA = StructType([StructField("sequence", LongType()), StructField("data", BinaryType())])


class Rows:
    """
    The limit of a batch, as Spark 4.2 has it.
    """

    def __init__(self, most):
        self.max_rows = most


EVERYTHING = object()
"""The limit of a batch without one."""


class Query:
    """
    Spark's calls of a reader, with the checkpoint that it keeps.
    """

    def __init__(self, server, stream, ends=(), **options):
        name = stream if isinstance(stream, str) else stream.name
        self.options = {"servers": server.url, "stream": name, **options}
        self.ends = [*ends]
        self.start()

    def start(self):
        """Start the query, or restart it from its checkpoint."""
        self.reader = StreamMicroBatchReader(
            read_settings(ConnectSettings, self.options),
            read_settings(ReadOptions, self.options),
            SCHEMA,
        )

    def through_json(self, offset):
        """Keep an offset, as a checkpoint does."""
        return json.loads(json.dumps(offset))

    def begin(self):
        """Return the start of the next batch, as Spark determines it."""
        # Spark asks twice.
        self.reader.initialOffset()
        return self.ends[-1] if self.ends else self.through_json(self.reader.initialOffset())

    def plan(self, limit=EVERYTHING):
        """Plan a batch and log its end; return whether it has messages."""
        begin = self.begin()
        end = self.reader.latestOffset(begin, limit)
        if end == begin:
            assert json.dumps(end) == json.dumps(begin)
            return False
        self.ends.append(self.through_json(end))
        return True

    def parts(self, batch=-1):
        """Return the parts of a planned batch."""
        batch %= len(self.ends)
        start = self.ends[batch - 1] if batch else self.through_json(self.reader.initialOffset())
        return self.reader.partitions(start, self.ends[batch])

    def read(self, batch=-1):
        """Return the sequences of a planned batch."""
        reader = pickle.loads(pickle.dumps(self.reader))
        return [
            sequence
            for part in self.parts(batch)
            for rows in reader.read(pickle.loads(pickle.dumps(part)))
            for sequence in rows.column("sequence").to_pylist()
        ]

    def ranges(self, batch=-1):
        """Return the stream, the start and the end of each range of a planned batch."""
        found = [part.value for part in self.parts(batch)]
        return [(part.stream, part.start, part.end) for ranges in found for part in ranges]

    def all(self, limit=EVERYTHING):
        """Plan and read until there are no new messages; return the batches."""
        found = []
        while self.plan(limit):
            found.append(self.read())
        return found
