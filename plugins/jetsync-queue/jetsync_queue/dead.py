"""
Dead jobs: those that were given up. They stay in the stream until they are retried or removed.
"""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any, Final

import attrs

import jetsync
from jetsync_queue import names as headers_of
from jetsync_queue import records
from jetsync_queue.core import job_headers
from jetsync_queue.names import checked_token, token, untoken

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jetsync_queue.core import Core

__all__ = ["DeadJob"]

LONGEST_REASON: Final = 500


@attrs.frozen
class DeadJob:
    """
    A job that was given up.
    """

    id: str
    """The id."""

    reason: str
    """Why it was given up, in one line."""

    attempts: int
    """How many attempts failed."""

    priority: int
    """The priority."""

    died: dt.datetime
    """When it was given up, in UTC."""

    sequence: int
    """The stream sequence of the dead job."""

    data: Any = attrs.field(repr=False)
    """The data; None if it was in the object store and is gone."""


def bury(
    core: Core, message: jetsync.Message, job: str, *, priority: int, reason: str, attempts: int
) -> None:
    """
    Store a copy of a job among the dead jobs.
    """
    headers = job_headers(message)
    headers[headers_of.ATTEMPT] = str(attempts)
    headers[headers_of.PRIORITY] = str(priority)
    line = "".join(letter if letter.isprintable() else " " for letter in reason)
    headers[headers_of.REASON] = line.encode("utf-8", "replace").decode()[:LONGEST_REASON].strip()
    dead = core.names.dead(job)
    # The same if it is repeated, because the worker died before it terminated the job.
    msg_id = f"{dead}#{message.sequence}"
    try:
        core.js.publish(dead, message.data, headers=headers, msg_id=msg_id)
    except jetsync.MaxPayloadError:
        headers[headers_of.OBJECT] = core.objects.put(f"{core.names.queue}/{job}", message.data)
        core.js.publish(dead, b"", headers=headers, msg_id=msg_id)


def dead_jobs(core: Core, limit: int | None) -> list[DeadJob]:
    """
    Return the dead jobs, oldest first.
    """
    found: list[DeadJob] = []
    for message in _messages(core, None):
        if limit is not None and len(found) >= limit:
            break
        headers = message.headers
        try:
            data = core.decoded(message)
        except (jetsync.ObjectNotFoundError, jetsync.ObjectStoreNotFoundError):
            data = None
        found.append(
            DeadJob(
                id=_id(message),
                reason=headers.get(headers_of.REASON, ""),
                attempts=int(headers.get(headers_of.ATTEMPT, "1")),
                priority=int(headers.get(headers_of.PRIORITY, "0")),
                died=message.timestamp,
                sequence=message.sequence,
                data=data,
            )
        )
    return found


def retry_dead(core: Core, job_id: str | None) -> int:
    """
    Put dead jobs back; return how many.
    """
    moved = 0
    for message in _messages(core, job_id):
        headers = job_headers(message)
        priority = int(headers.pop(headers_of.PRIORITY, "0"))
        for name in (headers_of.ATTEMPT, headers_of.REASON, headers_of.EXPIRES):
            headers.pop(name, None)
        job = token(_id(message))
        if core.results or headers_of.TRACKED in headers:
            # Before the job, because a worker drops a tracked job that has ended.
            core.records.update(job, _waiting_again, new={})
        core.publish(
            bytes(message.data),
            headers,
            job=job,
            priority=priority,
            msg_id=f"{core.names.dead(job)}#{message.sequence}/again",
        )
        moved += _delete(core, message)
    return moved


def _waiting_again(record: dict[str, Any]) -> dict[str, Any]:
    """Return the record of a dead job as that of one that waits."""
    return record | {"state": records.WAITING, "attempts": 0, "sequence": None}


def delete_dead(core: Core, job_id: str | None) -> int:
    """
    Remove dead jobs; return how many.
    """
    removed = 0
    for message in _messages(core, job_id):
        if _delete(core, message):
            core.forget_data(message)
            removed += 1
    return removed


def _messages(core: Core, job_id: str | None) -> Iterator[jetsync.StoredMessage]:
    job = "*" if job_id is None else checked_token("job_id", job_id)
    yield from core.stream.scan(subject=core.names.dead(job))


def _id(message: jetsync.StoredMessage) -> str:
    return message.headers.get(headers_of.ID) or untoken(message.subject.rpartition(".")[2])


def _delete(core: Core, message: jetsync.StoredMessage) -> bool:
    try:
        core.stream.delete_message(message.sequence)
    except jetsync.MessageNotFoundError:
        # Another program was faster.
        return False
    return True
