"""
Work queues on JetStream: durable jobs with priorities, delays, retries, results and dead jobs.
"""

from jetsync_queue.dead import DeadJob
from jetsync_queue.delivery import Delivery
from jetsync_queue.errors import (
    JobCancelledError,
    JobExpiredError,
    JobFailedError,
    JobTimeoutError,
    NoResultsError,
    QueueError,
    ReceiverClosedError,
    ResultTimeoutError,
    Retry,
)
from jetsync_queue.job import Job
from jetsync_queue.names import token, untoken
from jetsync_queue.queue import WorkQueue
from jetsync_queue.receiver import Receiver
from jetsync_queue.records import JobError, JobStatus
from jetsync_queue.statistics import QueueStatistics
from jetsync_queue.worker import Worker, WorkerStatistics

__all__ = [
    "DeadJob",
    "Delivery",
    "Job",
    "JobCancelledError",
    "JobError",
    "JobExpiredError",
    "JobFailedError",
    "JobStatus",
    "JobTimeoutError",
    "NoResultsError",
    "QueueError",
    "QueueStatistics",
    "Receiver",
    "ReceiverClosedError",
    "ResultTimeoutError",
    "Retry",
    "WorkQueue",
    "Worker",
    "WorkerStatistics",
    "token",
    "untoken",
]
