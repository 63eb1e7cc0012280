"""
Running a task: what a thread of a worker does with a job.
"""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING, Any

import attrs
from django.db import close_old_connections, reset_queries
from django.utils import timezone

import jetsync
from jetsync_django.tasks.api import (
    TaskContext,
    TaskError,
    TaskResult,
    normalize_json,
    task_finished,
    task_started,
)
from jetsync_django.tasks.backend import JetStreamBackend
from jetsync_django.tasks.results import STATES, load_task, result_of, set_fields
from jetsync_queue import Retry, WorkQueue

if TYPE_CHECKING:
    from jetsync_queue import Delivery

__all__ = ["TaskRunner"]


class TaskExitError(Exception):
    """
    A task raised SystemExit or another exception that would end the worker.
    """


@attrs.frozen
class TaskRunner:
    """
    The handler of a queue, which runs the tasks of its jobs. Threads may call it at the same time.
    """

    backend: JetStreamBackend
    queue: WorkQueue
    worker_id: str

    def __call__(self, delivery: Delivery) -> Any:
        """
        Run a task, and return its value.

        Raises:
            Exception: What the task raised, or ImportError if this program does not have it.
        """
        # The connections to databases belong to the thread. One that broke, or that is as old as
        # CONN_MAX_AGE, is replaced, as for each request.
        reset_queries()
        close_old_connections()
        try:
            result = self._result(delivery)
            try:
                return self._call(result)
            except BaseException as error:
                if self._is_last(delivery, error):
                    self._finish(result, error)
                if isinstance(error, Exception):
                    raise
                raise TaskExitError(f"the task raised {type(error).__name__}") from error
        finally:
            close_old_connections()

    def _is_last(self, delivery: Delivery, error: BaseException) -> bool:
        """Return whether the task gets no further attempt after an error."""
        if isinstance(error, jetsync.DeadLetter):
            return True
        retries = self.backend.task_options.retries
        return not isinstance(error, Retry) and delivery.attempt > retries

    def _result(self, delivery: Delivery) -> TaskResult[Any, Any]:
        """Return the result of a task that runs now."""
        if delivery.attempt > 1 or delivery.deliveries > 1:
            # Earlier attempts may have left errors.
            status = self.queue.status(delivery.id)
            if status is not None and status.workers:
                result = result_of(status, self.queue.name, self.backend.alias)
                # A record has no arguments that are larger than a message.
                set_fields(result, args=delivery.data["args"], kwargs=delivery.data["kwargs"])
                return result
        now = timezone.now()
        return TaskResult(
            task=load_task(delivery.headers, self.queue.name, self.backend.alias),
            id=delivery.id,
            status=STATES["running"],
            enqueued_at=delivery.enqueued,
            started_at=now,
            finished_at=None,
            last_attempted_at=now,
            args=delivery.data["args"],
            kwargs=delivery.data["kwargs"],
            backend=self.backend.alias,
            errors=[],
            worker_ids=[self.worker_id],
        )

    def _call(self, result: TaskResult[Any, Any]) -> Any:
        """Call the function of a task, and return its value as JSON has it."""
        task = result.task
        # A receiver that raises must not fail the task; Django logs its error.
        task_started.send_robust(type(self.backend), task_result=result)
        context: list[Any] = [TaskContext(task_result=result)] if task.takes_context else []
        value = normalize_json(task.call(*context, *result.args, **result.kwargs))
        set_fields(result, _return_value=value)
        self._finish(result, None)
        return value

    def _finish(self, result: TaskResult[Any, Any], error: BaseException | None) -> None:
        """Report the end of a task to the receivers of the signal."""
        state = "succeeded"
        if error is not None:
            state = "dead"
            kind = type(error)
            path = f"{kind.__module__}.{kind.__qualname__}"
            text = "".join(traceback.format_exception(error))
            result.errors.append(TaskError(exception_class_path=path, traceback=text))
        set_fields(result, status=STATES[state], finished_at=timezone.now())
        task_finished.send_robust(type(self.backend), task_result=result)
