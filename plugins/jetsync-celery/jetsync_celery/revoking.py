"""
Revoked tasks of the future.

Celery tells its workers about a revoked task, and each keeps the id in memory. The server holds
tasks with an ETA, and not a worker, so the task is also removed there.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import celery

import jetsync
from jetsync_celery.results import JetStreamBackend

if TYPE_CHECKING:
    from collections.abc import Callable

_logger = jetsync.get_logger("jetsync.celery")


def cancel_revoked(data: bytes, cancel: Callable[[str], bool]) -> list[str]:
    """
    Remove the tasks that a message of remote control revokes, and return the ids of those removed.

    Args:
        data: The body of the message.
        cancel: Removes the task with an id, if it waits for its ETA; returns whether it did.
    """
    try:
        message = json.loads(data)
        if message.get("method") != "revoke":
            return []
        given = message["arguments"]["task_id"]
    except (ValueError, LookupError, AttributeError, TypeError):
        return []
    ids = [given] if isinstance(given, str) else list(given)
    removed = [task_id for task_id in ids if cancel(task_id)]
    for task_id in removed:
        _logger.info("celery_task_cancelled", task_id=task_id)
        _store_revoked(task_id)
    return removed


def _store_revoked(task_id: str) -> None:
    """Store the state REVOKED, which no worker does for a task that it never sees."""
    backend = celery.current_app.backend
    if isinstance(backend, JetStreamBackend):
        backend.mark_as_revoked(task_id, "revoked")
