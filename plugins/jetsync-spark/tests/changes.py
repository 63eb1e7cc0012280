"""
Rows that change a key-value bucket.
"""

import pytest
from writing import in_task

from jetsync_spark.write import partition as writing

Row = pytest.importorskip("pyspark.sql").Row

DELETE = {"KV-Operation": "DEL"}
PURGE = {"KV-Operation": "PURGE", "Nats-Rollup": "sub"}


def change(key, value=None, operation=None, ttl=None, expected=None):
    """
    Return the columns of a change.
    """
    return {
        "key": key,
        "value": value,
        "operation": operation,
        "ttl": ttl,
        "expected_revision": expected,
    }


def write(plan, values, *, batch=0, partition=0):
    """
    Write rows, given as mappings, as a task does.
    """
    with in_task(partition=partition, query="q", batch=batch, task_attempt=batch):
        return writing.write_rows(plan, [Row(**each) for each in values])


def table(bucket):
    """
    Return the values of all keys but those of the ledger.
    """
    return {
        key: bytes(entry.value)
        for key, entry in bucket.get_many([">"]).items()
        if not key.startswith("_ledger.")
    }
