"""
A task that stores an order.
"""

from __future__ import annotations

import functools
import threading

from celery import Celery, Task

import jetsync

app = Celery("tasks")
app.config_from_object("celeryconfig")


_lock = threading.Lock()


@functools.cache
def connect() -> jetsync.JetStream:
    """
    Connect, once in each process.
    """
    return jetsync.connect().jetstream()


def jetstream() -> jetsync.JetStream:
    """
    Return the JetStream context of this process. Concurrent tasks share it.
    """
    with _lock:
        return connect()


@app.task(
    bind=True,
    acks_late=True,
    reject_on_worker_lost=True,
    autoretry_for=(ConnectionError, TimeoutError),
    retry_backoff=True,
    max_retries=10,
)
def store_order(self: Task, region: str, text: str) -> int:
    """
    Publish an order. A retry has the same id, so the order is not stored again.
    """
    ack = jetstream().publish(f"orders.{region}", text, msg_id=self.request.id)
    return ack.sequence
