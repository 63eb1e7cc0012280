"""
The handle of a job that was put.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from jetsync_queue import records
from jetsync_queue.errors import (
    JobCancelledError,
    JobExpiredError,
    JobFailedError,
    NoResultsError,
    ResultTimeoutError,
)
from jetsync_queue.removal import cancel
from jetsync_queue.times import seconds

if TYPE_CHECKING:
    import datetime as dt

    import jetsync
    from jetsync_queue.core import Core
    from jetsync_queue.records import JobStatus

__all__ = ["Job"]

DEFAULT_TIMEOUT = 30.0

SHORTEST_REQUEST = 1.0
"""Seconds for each request, also if the caller does not want to wait."""


class Job:
    """
    A job in a queue; made by :meth:`WorkQueue.put` and :meth:`WorkQueue.job`. Thread-safe.
    """

    # Threads: any. Locks: none; nothing is changed.

    def __init__(
        self, core: Core, job_id: str, token: str, ack: jetsync.PubAck | None, *, duplicate: bool
    ) -> None:
        self._core = core
        self._id = job_id
        self._token = token
        self._sequence = None if ack is None or duplicate else ack.sequence
        self._duplicate = duplicate

    def __repr__(self) -> str:
        return f"<Job {self._id!r} of queue {self._core.name!r}>"

    @property
    def id(self) -> str:
        """The id."""
        return self._id

    @property
    def queue(self) -> str:
        """The name of the queue."""
        return self._core.name

    @property
    def sequence(self) -> int | None:
        """The stream sequence at which the job was stored; None if this handle did not store it."""
        return self._sequence

    @property
    def duplicate(self) -> bool:
        """Whether ``put`` stored nothing, because the queue has or had a job with this id."""
        return self._duplicate

    def cancel(self, *, scheduled_only: bool = False) -> bool:
        """
        Remove the job from the server; see :meth:`WorkQueue.cancel`.

        Args:
            scheduled_only: Remove it only if it has a delay, or waits for its next attempt.
        """
        return cancel(self._core, self._token, self._sequence, scheduled_only=scheduled_only)

    def status(self) -> JobStatus | None:
        """
        Return what is known about the job; None if nothing is: it has not ended and is not tracked,
        or its record has expired.
        """
        return self._status(timeout=None)

    def result(self, *, timeout: float | dt.timedelta | None = None) -> Any:
        """
        Wait for the end of the job, and return what its handler returned.

        Args:
            timeout: Seconds to wait, also for a server. Default: 30. Each request gets at least 1.

        Raises:
            JobFailedError: The job has failed for good.
            JobCancelledError: It was cancelled.
            JobExpiredError: A worker found that it had expired.
            ResultTimeoutError: It has not ended in time. Or its result has expired, or the server
                has removed the job because it had expired.
            NoResultsError: The queue was opened with ``results=False``.
            DisconnectedError, RequestTimeoutError: There was no server to ask in time.
        """
        if not self._core.results:
            raise NoResultsError(self._core.name)
        limit = DEFAULT_TIMEOUT if timeout is None else seconds("timeout", timeout)
        end = time.monotonic() + limit
        found = self._status(timeout=max(limit, SHORTEST_REQUEST))
        if found is None or not found.is_finished:
            found = self._wait(limit, end)
        if found.state == records.SUCCEEDED:
            return found.value
        if found.state == records.CANCELLED:
            raise JobCancelledError(self._id)
        if found.state == records.EXPIRED:
            raise JobExpiredError(self._id)
        last = found.errors[-1] if found.errors else None
        reason = "unknown" if last is None else f"{last.type}: {last.message}"
        raise JobFailedError(self._id, reason, found.attempts)

    def _status(self, *, timeout: float | None) -> JobStatus | None:
        found = self._core.records.read(self._token, timeout=timeout)
        return None if found is None else self._core.records.status(self._id, found)

    def _wait(self, limit: float, end: float) -> JobStatus:
        """Wait until a record says that the job has ended."""
        core = self._core
        key = core.names.record(self._token)
        timeout = max(end - time.monotonic(), SHORTEST_REQUEST)
        with core.bucket.watch(key, ignore_deletes=True, timeout=timeout) as watch:
            while True:
                entry = watch.next(timeout=max(end - time.monotonic(), 0.0))
                if entry is None:
                    raise ResultTimeoutError(self._id, limit)
                found = core.records.status(self._id, entry.json())
                if found.is_finished:
                    return found
