"""
Removing jobs that no worker has started.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jetsync
from jetsync_queue import names as headers_of
from jetsync_queue.names import untoken
from jetsync_queue.records import CANCELLED, finished

if TYPE_CHECKING:
    from jetsync_queue.core import Core


def cancel(core: Core, job: str, sequence: int | None, *, scheduled_only: bool = False) -> bool:
    """
    Remove a job from the server; return whether there was one.

    Args:
        core: The queue.
        job: The token of the job.
        sequence: Where it was stored. Default: looked for among the waiting jobs.
        scheduled_only: Do not look at the waiting jobs.
    """
    subjects = (core.names.scheduled(job), core.names.retrying(job))
    removed = [subject for subject in subjects if _remove_last(core, subject)]
    if not removed and (scheduled_only or not _remove_waiting(core, job, sequence)):
        return False
    if core.results or core.track:
        _record_end(core, job)
    return True


def _remove_last(core: Core, subject: str) -> bool:
    """Remove the message of a subject that has only one."""
    try:
        last = core.stream.get_last(subject, direct=False)
    except jetsync.MessageNotFoundError:
        return False
    return _remove(core, last)


def _remove(core: Core, message: jetsync.StoredMessage) -> bool:
    try:
        core.stream.delete_message(message.sequence)
    except jetsync.MessageNotFoundError:
        return False
    core.forget_data(message)
    return True


def _remove_waiting(core: Core, job: str, sequence: int | None) -> bool:
    """Remove a job that was available already."""
    wanted = untoken(job)
    if sequence is not None:
        try:
            found = core.stream.get_message(sequence, direct=False)
        except jetsync.MessageNotFoundError:
            found = None
        if found is not None and found.headers.get(headers_of.ID) == wanted:
            return _remove(core, found)
    # It was put by another program, or became available after a delay.
    removed = False
    for message in core.stream.scan(subject=core.names.all_waiting):
        if message.headers.get(headers_of.ID) == wanted:
            removed |= _remove(core, message)
    return removed


def _record_end(core: Core, job: str) -> None:
    """Record that a job was cancelled, so that nobody waits for its result."""

    def cancelled(record: dict[str, Any]) -> dict[str, Any]:
        return record | finished(CANCELLED, attempts=record.get("attempts", 0))

    core.records.update(job, cancelled, new={})
