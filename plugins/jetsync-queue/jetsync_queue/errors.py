"""
The errors of work queues.
"""

from __future__ import annotations

import jetsync

__all__ = [
    "JobCancelledError",
    "JobExpiredError",
    "JobFailedError",
    "JobTimeoutError",
    "NoResultsError",
    "QueueError",
    "ReceiverClosedError",
    "ResultTimeoutError",
    "Retry",
]


class QueueError(jetsync.JetSyncError):
    """
    The base class of the errors below.
    """


class JobFailedError(QueueError):
    """
    The job was given up: its last attempt failed, or the handler gave it up.
    """

    def __init__(self, job_id: str, reason: str, attempts: int) -> None:
        super().__init__(f"job {job_id!r} failed after {attempts} attempts: {reason}")
        self.job_id = job_id
        self.reason = reason
        self.attempts = attempts


class JobCancelledError(QueueError):
    """
    The job was cancelled before a worker took it.
    """

    def __init__(self, job_id: str) -> None:
        super().__init__(f"job {job_id!r} was cancelled")
        self.job_id = job_id


class JobExpiredError(QueueError):
    """
    The job was not started within its ``expires``.
    """

    def __init__(self, job_id: str) -> None:
        super().__init__(f"job {job_id!r} expired before a worker started it")
        self.job_id = job_id


class JobTimeoutError(QueueError, TimeoutError):
    """
    An attempt took longer than the ``timeout`` of the worker. Raised inside the handler.
    """

    _default_text = "the job took longer than the time limit of its worker"


class ResultTimeoutError(QueueError, TimeoutError):
    """
    The job has no result yet. It may still wait or run, and you can ask again.
    """

    def __init__(self, job_id: str, timeout: float) -> None:
        super().__init__(f"job {job_id!r} has no result after {timeout:g} seconds")
        self.job_id = job_id


class NoResultsError(QueueError):
    """
    The queue was opened with ``results=False``, so there is no result to wait for.
    """

    def __init__(self, queue: str) -> None:
        super().__init__(f"queue {queue!r} was opened with results=False: it stores no results")


class ReceiverClosedError(QueueError):
    """
    The receiver is closed, or its client is closed or stops. There will be no further job.
    """

    _default_text = "the receiver is closed, so it takes no further jobs"


class Retry(Exception):  # noqa: N818 - it is a decision of the handler, not an error.
    """
    Raise it in a handler to ask for another attempt, which is not limited by ``retries``.

    Args:
        reason: Why, for the log and the record of the job.
        delay: Seconds until the next attempt. Default: that of the worker's ``wait``.
    """

    def __init__(self, reason: str = "", *, delay: float | None = None) -> None:
        super().__init__(reason)
        self.delay = delay
