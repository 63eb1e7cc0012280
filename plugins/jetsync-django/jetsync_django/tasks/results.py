"""
Results of Django from what the queue knows about a job.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from django.utils.module_loading import import_string

from jetsync_django.tasks.api import (
    Task,
    TaskError,
    TaskResult,
    TaskResultDoesNotExist,
    TaskResultStatus,
)

if TYPE_CHECKING:
    import datetime as dt

    from jetsync_queue import JobStatus

__all__ = ["PRIORITY", "TASK", "load_task", "result_of", "set_fields"]

TASK: Final = "Django-Task"
"""The header with the path of the task's function."""

PRIORITY: Final = "Django-Priority"
"""The header with the task's priority, of which the queue knows only the step."""

# Type checkers without Django's plugin do not know what the names of its enums are.
STATES: Final[dict[str, Any]] = {
    "waiting": TaskResultStatus.READY,
    "running": TaskResultStatus.RUNNING,
    # It is ready to be executed again.
    "retrying": TaskResultStatus.READY,
    "succeeded": TaskResultStatus.SUCCESSFUL,
    "dead": TaskResultStatus.FAILED,
    "cancelled": TaskResultStatus.FAILED,
    "expired": TaskResultStatus.FAILED,
}


def load_task(
    headers: dict[str, str], queue: str, backend: str, run_after: dt.datetime | None = None
) -> Task[Any, Any]:
    """
    Import the task that the headers of a job name.

    Raises:
        ImportError: This program has no such task.
    """
    path = headers[TASK]
    task = import_string(path)
    if not isinstance(task, Task):
        # For the caller, it is like a task that is missing.
        raise ImportError(f"{path} is no task, but {type(task).__name__}")  # noqa: TRY004
    priority = int(headers.get(PRIORITY) or 0)
    return task.using(priority=priority, queue_name=queue, backend=backend, run_after=run_after)


def result_of(status: JobStatus, queue: str, backend: str) -> TaskResult[Any, Any]:
    """
    Return the result for a job.

    Raises:
        TaskResultDoesNotExist: The job is none of Django's, or its record has expired.
        ImportError: This program does not have its task.
    """
    if TASK not in status.headers:
        raise TaskResultDoesNotExist(status.id)
    arguments = status.data or {}
    result: TaskResult[Any, Any] = TaskResult(
        task=load_task(status.headers, queue, backend, status.run_after),
        id=status.id,
        status=STATES[status.state],
        enqueued_at=status.enqueued,
        started_at=status.started,
        finished_at=status.finished,
        last_attempted_at=status.started,
        args=arguments.get("args", []),
        kwargs=arguments.get("kwargs", {}),
        backend=backend,
        errors=[
            TaskError(exception_class_path=each.type, traceback=each.traceback)
            for each in status.errors
        ],
        worker_ids=list(status.workers),
    )
    set_fields(result, _return_value=status.value)
    return result


def set_fields(result: TaskResult[Any, Any], **fields: object) -> None:
    """
    Change fields of a result, which is frozen, as Django's own backends do.
    """
    for name, value in fields.items():
        object.__setattr__(result, name, value)
