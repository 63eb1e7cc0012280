"""
Fixtures of the plugin's tests; `nats_server`, `js` and `stream` are those of `jetsync.testing`.
"""

from __future__ import annotations

import contextlib
import threading
import uuid

import pytest

import jetsync
from jetsync_queue import WorkQueue


@pytest.fixture
def open_queue(js):
    """
    A factory of queues with a prefix of their own, which are removed afterwards.
    """
    prefix = "test" + uuid.uuid4().hex[:12]

    def open_queue(name="mail", **options):
        options = {"priorities": 2, "storage": "memory", "prefix": prefix, **options}
        return WorkQueue.open(js, name, **options)

    yield open_queue
    with contextlib.suppress(jetsync.StreamNotFoundError):
        js.delete_stream(f"QUEUE_{prefix}")
    with contextlib.suppress(jetsync.BucketNotFoundError):
        js.delete_key_value(f"QUEUE_{prefix}")
    for kind in ("jobs", "results"):
        with contextlib.suppress(jetsync.ObjectStoreNotFoundError):
            js.delete_object_store(f"QUEUE_{prefix}_{kind}")


@pytest.fixture
def queue(open_queue):
    """
    A queue with two priorities.
    """
    return open_queue()


@pytest.fixture(autouse=True)
def no_threads_are_left():
    """
    No thread of the plugin is left at the end of a test.
    """
    yield
    left = [each for each in threading.enumerate() if each.name.startswith("jetsync-queue")]
    for thread in left:
        thread.join(10)
    assert [thread.name for thread in left if thread.is_alive()] == []
