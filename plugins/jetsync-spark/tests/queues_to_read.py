"""
Queries that read through durable consumers, without Spark.
"""

import contextlib

import pytest
from streams_to_read import numbered
from waiting import eventually

from jetsync_spark.common.options import ConnectSettings, read_settings
from jetsync_spark.read.options import ReadOptions

pytest.importorskip("pyspark.sql.streaming.datasource", reason="consumers need PySpark 4.2")

from queries import EVERYTHING, SCHEMA, Query

from jetsync_spark.read import work_queue
from jetsync_spark.read.work_queue import QueueReader


class QueueQuery(Query):
    """
    Spark's calls of a reader with a consumer.
    """

    reader = None

    def start(self):
        """Start the query, or restart it from its checkpoint. The process before it has ended."""
        self.stop()
        self.settings = read_settings(ConnectSettings, self.options)
        self.reader = QueueReader(
            self.settings, read_settings(ReadOptions, self.options), SCHEMA, 2
        )

    def stop(self):
        """End the process of the planner."""
        if self.reader is not None:
            self.reader.stop()

    def begin(self):
        """Return the start of the next batch, which is the initial offset at first."""
        return self.ends[-1] if self.ends else self.through_json(self.reader.initialOffset())


def be_impatient(monkeypatch):
    """
    Do not wait for messages that a test has not published.
    """
    monkeypatch.setattr(work_queue, "WAIT", 0.01)
    monkeypatch.setattr(work_queue, "CHECK", 0.0)


@contextlib.contextmanager
def queries_on(server):
    """
    Yield a factory of queries, which are stopped afterwards.
    """
    made = []

    def start(stream, **options):
        made.append(QueueQuery(server, stream, **{"consumer": "spark", **options}))
        return made[-1]

    try:
        yield start
    finally:
        for query in made:
            query.stop()


def queue(js, count, **config):
    """
    Make a work queue with numbered messages.
    """
    return numbered(js, count, retention="workqueue", **config)


def stored(stream):
    """
    Return the number of messages in a stream.
    """
    return stream.info().state.messages


def next_batch(query, limit=EVERYTHING):
    """
    Wait for a batch, and return its sequences.
    """
    eventually(lambda: query.plan(limit))
    return query.read()


def batches(query, count):
    """
    Wait for batches with that many messages, and return their sequences.
    """
    found = []
    while len(found) < count:
        found += next_batch(query)
    return found
