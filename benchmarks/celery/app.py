"""
The app of the worker and of the program that sends: ``BROKER`` and ``BACKEND`` are its URLs.
"""

from __future__ import annotations

import os

from celery import Celery

import jetsync_celery  # noqa: F401 - adds the scheme of the URL.

app = Celery("app", broker=os.environ["BROKER"], backend=os.environ["BACKEND"])
app.conf.update(
    task_acks_late=True,
    broker_connection_retry_on_startup=True,
    worker_hijack_root_logger=False,
)


@app.task
def add(x: int, y: int) -> int:
    """
    Return the sum; the result is stored.
    """
    return x + y


@app.task(ignore_result=True)
def note(number: int) -> None:
    """
    Do nothing, and store no result.
    """


@app.task
def done() -> bool:
    """
    Say that the tasks before it were taken.
    """
    return True
