"""
A Celery app that the tests run in processes of their own: ``celery -A program worker``.

``BROKER`` is its URL, and ``OPTIONS`` a JSON object with further settings of Celery. ``ACKS`` names
a file for lines about acknowledgements.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from celery import Celery

import jetsync_celery  # noqa: F401 - adds the scheme of the URL.
import jetsync_queue

app = Celery("program", broker=os.environ["BROKER"], backend=os.environ["BROKER"])
app.conf.update(
    broker_connection_retry_on_startup=True,
    worker_hijack_root_logger=False,
    **json.loads(os.environ.get("OPTIONS", "{}")),
)


@app.task
def add(x: int, y: int) -> int:
    """Return the sum."""
    return x + y


@app.task
def total(numbers: list[int]) -> int:
    """Return the sum of a chord's parts."""
    return sum(numbers)


@app.task
def write(path: str, gate: str | None = None, seconds: float = 0.0) -> None:
    """Write a line to a file at the start, and at the end, after a time or when a file exists."""
    with Path(path).open("a") as file:
        file.write(f"start {os.getpid()}\n")
        file.flush()
        time.sleep(seconds)
        while gate is not None and not Path(gate).exists():
            time.sleep(0.01)
        file.write(f"end {os.getpid()}\n")


@app.task(bind=True)
def mark(self: Any, path: str, seconds: float = 0.0) -> None:
    """Write lines at the start and the end."""
    is_redelivered = self.request.delivery_info.get("redelivered") or False
    write_line(path, "start", self.request.id, is_redelivered)
    time.sleep(seconds)
    write_line(path, "end", self.request.id, is_redelivered)


def write_line(path: str, what: str, task_id: str, is_redelivered: bool) -> None:
    """Add what happened, when, in which process group and to which task."""
    with Path(path).open("a") as file:
        file.write(f"{what} {time.time()} {os.getpgrp()} {task_id} {is_redelivered}\n")


def write_acks(path: str) -> None:
    """Add a line for each acknowledgement that was sent."""
    ack = jetsync_queue.Delivery.ack

    def acknowledge(self: Any, *args: Any, **kwargs: Any) -> None:
        ack(self, *args, **kwargs)
        write_line(path, "ack", self.id, self.deliveries > 1)

    jetsync_queue.Delivery.ack = acknowledge  # type: ignore[method-assign]


if "ACKS" in os.environ:
    write_acks(os.environ["ACKS"])


@app.task(bind=True)
def fail_twice(self: Any) -> int:
    """Succeed at the third attempt."""
    if self.request.retries < 2:
        raise self.retry(countdown=0)
    return int(self.request.retries)


@app.task(bind=True)
def whoami(self: Any) -> str:
    """Return the name of the worker."""
    return str(self.request.hostname)
