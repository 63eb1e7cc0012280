"""
Tasks of writers without Spark, and the contents of their streams.
"""

from __future__ import annotations

import collections
import contextlib
import uuid
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

import attrs

from jetsync_spark.common.clients import forget
from jetsync_spark.common.options import ConnectSettings
from jetsync_spark.common.task import Task
from jetsync_spark.write import exactly_once
from jetsync_spark.write import partition as writing
from jetsync_spark.write.columns import Columns
from jetsync_spark.write.options import WriteOptions
from jetsync_spark.write.plan import make_plan

__all__ = [
    "again",
    "entries",
    "in_task",
    "lost_and_twice",
    "payloads",
    "plan_for",
    "restarting",
    "rows_of",
    "run",
]


def plan_for(server, stream, *, columns=None, **options):
    """
    Plan a write to a stream.
    """
    options.setdefault("retry_timeout", 20.0)
    return make_plan(
        ConnectSettings(servers=server.url),
        WriteOptions(stream=stream, **options),
        columns or Columns(),
    )


def again(plan):
    """
    Return the plan of the same write by another job.
    """
    return attrs.evolve(plan, job=uuid.uuid4().hex)


@contextlib.contextmanager
def restarting(server, plan):
    """
    Yield a function that kills a server. It is started again while the writer continues.
    """
    with ThreadPoolExecutor(1) as pool:

        def restart():
            server.kill()
            pool.submit(server.restart)

        try:
            yield restart
        finally:
            pool.shutdown()
            forget(plan.settings)


@contextlib.contextmanager
def in_task(**fields):
    """
    Make the code believe that it runs in a task.
    """
    task = Task(**fields)
    with mock.patch.object(writing, "this_task", return_value=task):
        yield task


def rows_of(stream, count, first=0):
    """
    Return rows as (subject, payload) pairs, each with a different payload.
    """
    return [(f"{stream}.a{row % 7}", b"row-%d" % row) for row in range(first, first + count)]


def run(plan, messages, *, partition=0, attempt=0, query="q", batch=0):
    """
    Write messages as a task does.
    """
    task_attempt = (batch * 100 + partition) * 10 + attempt
    with in_task(
        partition=partition, attempt=attempt, task_attempt=task_attempt, query=query, batch=batch
    ):
        return writing.write_messages(plan, iter(messages))


def payloads(stream):
    """
    Return all payloads of a stream in order, without those of ledgers.
    """
    return [
        bytes(message.data)
        for message in stream.scan()
        if not message.subject.startswith("ledger.")
    ]


def lost_and_twice(stream, count):
    """
    Return the numbers of rows that are missing, and that are there more than once.
    """
    found = collections.Counter(payloads(stream))
    return count - len(found), sum(found.values()) - len(found)


def ids(stream):
    """
    Return the numbers in the rows of a stream.
    """
    return sorted(int(data) for data in payloads(stream))


def entries(stream, ledger):
    """
    Return the ledger's entries in order.
    """
    return [
        exactly_once.LedgerEntry.from_bytes(bytes(message.data), message.subject)
        for message in stream.scan(subject=ledger)
    ]
