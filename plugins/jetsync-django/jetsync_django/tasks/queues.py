"""
The queues that this process has opened.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import jetsync
from jetsync_django.connections import shared_client
from jetsync_queue import WorkQueue

if TYPE_CHECKING:
    from collections.abc import Callable

    from jetsync_django.tasks.options import TaskOptions

__all__ = ["open_queue", "with_queue"]

T = TypeVar("T")

# Django makes a backend for each thread.
_opened: dict[tuple[TaskOptions, str], tuple[jetsync.Client, WorkQueue]] = {}

# Errors after which nothing is stored, because the stream or the bucket is gone. Those in memory go
# with their server.
GONE = (
    jetsync.BucketNotFoundError,
    jetsync.NoStreamResponseError,
    jetsync.StreamNotFoundError,
)


def open_queue(options: TaskOptions, name: str) -> WorkQueue:
    """
    Return a queue of the backend; the first call opens it, or makes it if it is missing.

    Threads may call it at the same time. A child of a fork uses the queue over a connection of its
    own.
    """
    client = shared_client(options.connect)
    kept = _opened.get((options, name))
    if kept is not None and kept[0] is client:
        return kept[1]
    # It is the first call, or other code has closed the client.
    found = WorkQueue.open(
        client.jetstream(),
        name,
        prefix=options.prefix,
        priorities=len(options.priorities),
        track=True,
        result_ttl=options.result_ttl,
        ack_wait=options.ack_wait,
        storage=options.storage,
        num_replicas=options.num_replicas,
    )
    _opened[options, name] = client, found
    return found


def with_queue(options: TaskOptions, name: str, call: Callable[[WorkQueue], T]) -> T:
    """
    Call a function with a queue, and once more if its stream was missing and is made again.
    """
    try:
        return call(open_queue(options, name))
    except GONE:
        _opened.pop((options, name), None)
    return call(open_queue(options, name))
