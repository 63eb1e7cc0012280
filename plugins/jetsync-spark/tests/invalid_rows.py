"""
Writing rows of which some are invalid, as tasks do.
"""

import pyarrow as pa
import pytest
from writing import in_task, plan_for

import jetsync
from jetsync_spark.write import partition as writing

Row = pytest.importorskip("pyspark.sql").Row

MODES = ("atleastonce", "atomic", "exactlyonce")
in_each_mode = pytest.mark.parametrize("mode", MODES)
both_ways = pytest.mark.parametrize("way", ["rows", "batches"])

REASON = "Jetsync-Dead-Letter-Reason"


def write(plan, values, way="batches", *, batch=0, partition=0):
    """
    Write rows, given as mappings, as a task does.
    """
    with in_task(partition=partition, query="q", batch=batch):
        if way == "rows":
            return writing.write_rows(plan, [Row(**each) for each in values])
        return writing.write_batches(plan, [pa.RecordBatch.from_pylist(values)])


def good_and_bad(stream, count, bad):
    """
    Return rows of which some have a subject that their stream does not capture.
    """
    return [
        {"subject": "elsewhere" if n in bad else f"{stream}.a", "data": b"%d" % n}
        for n in range(count)
    ]


def stored(stream):
    """
    Return the payloads of rows in order, and the dead letters.
    """
    letters = [each for each in stream.scan() if each.subject == f"{stream.name}.dead"]
    rows = [
        int(each.data)
        for each in stream.scan()
        if each.subject != f"{stream.name}.dead" and not each.subject.startswith("ledger.")
    ]
    return rows, letters


def plan_maker(server, target):
    """
    Return a factory of plans for a stream.
    """

    def make(mode="atleastonce", policy="skip", columns=None, **options):
        if policy == "deadLetter":
            options.setdefault("dead_letter_subject", f"{target.name}.dead")
        return plan_for(
            server, target.name, mode=mode, columns=columns, on_invalid_row=policy, **options
        )

    return make


class Picky:
    """
    A plugin that refuses some messages.
    """

    name = "picky"

    @jetsync.hookimpl
    def jetsync_prepare_message(self, message):
        if message.data == b"bad" and "Jetsync-Dead-Letter-Reason" not in (message.headers or {}):
            raise ValueError("bad payload")

    def __eq__(self, other):
        return type(other) is type(self)

    def __hash__(self):
        return 7


class Strict(Picky):
    """
    A plugin that refuses dead letters, too.
    """

    name = "strict"

    @jetsync.hookimpl
    def jetsync_prepare_message(self, message):
        if message.data == b"bad":
            raise ValueError("bad payload")


class Broken(Picky):
    """
    A plugin with an error.
    """

    name = "broken"

    @jetsync.hookimpl
    def jetsync_prepare_message(self, message):
        raise RuntimeError("Broken")
