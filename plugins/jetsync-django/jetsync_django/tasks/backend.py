"""
The backend: what `task.enqueue` and `task.get_result` call.
"""

from __future__ import annotations

import functools
import uuid
from typing import TYPE_CHECKING, Any, Final

from django.apps import apps
from django.core import checks
from django.core.exceptions import ImproperlyConfigured
from django.db import connections, transaction
from django.utils import timezone
from django.utils.module_loading import import_string

import jetsync
from jetsync_django.tasks.api import (
    BaseTaskBackend,
    InvalidTask,
    Task,
    TaskResult,
    TaskResultDoesNotExist,
    normalize_json,
    task_enqueued,
)
from jetsync_django.tasks.options import TaskOptions
from jetsync_django.tasks.priorities import step_of
from jetsync_django.tasks.queues import with_queue
from jetsync_django.tasks.results import PRIORITY, STATES, TASK, result_of, set_fields
from jetsync_queue import token, untoken

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["JetStreamBackend"]

# How often a task is put if it is not known whether the server has stored it.
ATTEMPTS: Final = 3


class JetStreamBackend(BaseTaskBackend):
    """
    Runs tasks of Django in workers on JetStream.

    Set ``BACKEND`` to ``"jetsync_django.JetStreamBackend"``. Tasks wait on the server until a
    worker, ``manage.py jetsync_worker``, runs them. The methods are those of Django's task
    backends. Any number of threads may use a backend. All backends with the same ``SERVERS`` share
    one connection of the process, which the first call opens, also after a fork.
    """

    supports_defer = True
    """Tasks may have ``run_after``."""
    supports_async_task = True
    """Tasks may be coroutine functions."""
    supports_get_result = True
    """Every process can get the result of a task by its id."""
    supports_priority = True
    """Tasks may have a priority."""

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        self._given = params.get("OPTIONS", {})

    @functools.cached_property
    def task_options(self) -> TaskOptions:
        """
        The checked options.

        Raises:
            ImproperlyConfigured: An option is unknown or invalid.
        """
        return TaskOptions.of(self._given, self.alias)

    def enqueue(
        self, task: Task[Any, Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> TaskResult[Any, Any]:
        """
        Store a task, and return its result, which is not finished yet.

        Inside a database transaction, the task is stored when the transaction commits, and not at
        all if it is rolled back. Without one, or with the option ``ENQUEUE_ON_COMMIT`` off, the
        server has confirmed the task when the call returns. If it is not known whether the server
        has stored the task, the call repeats it, which cannot store it twice.

        Raises:
            InvalidTask, TypeError, ValueError: The task or an argument is invalid. Nothing was
                sent.
            ConnectError, PublishError, ...: The task was not stored. If the transaction had
                committed already, the error is raised after the commit.
            PublishOutcomeUnknownError: The task may be stored or not.
        """
        self.validate_task(task)
        _check_importable(task)
        options = self.task_options
        # Checked and copied now, because an error after the commit would come too late.
        given: Any = normalize_json({"args": list(args), "kwargs": dict(kwargs)})
        result: TaskResult[Any, Any] = TaskResult(
            task=task,
            id=f"{uuid.uuid4().hex}-{token(task.queue_name)}",
            status=STATES["waiting"],
            enqueued_at=None,
            started_at=None,
            finished_at=None,
            last_attempted_at=None,
            args=given["args"],
            kwargs=given["kwargs"],
            backend=self.alias,
            errors=[],
            worker_ids=[],
        )
        in_transaction = connections[options.database].in_atomic_block
        if options.enqueue_on_commit and in_transaction:
            transaction.on_commit(functools.partial(self._put, result), using=options.database)
        else:
            self._put(result)
        return result

    def _put(self, result: TaskResult[Any, Any]) -> None:
        """Store a task on the server."""
        task, options = result.task, self.task_options
        run_after = task.run_after
        if run_after is not None and timezone.is_naive(run_after):
            run_after = timezone.make_aware(run_after)
        put = functools.partial(
            with_queue,
            options,
            task.queue_name,
            lambda queue: queue.put(
                {"args": result.args, "kwargs": result.kwargs},
                at=run_after,
                priority=step_of(task.priority, options.priorities),
                job_id=result.id,
                headers={TASK: task.module_path, PRIORITY: str(task.priority)},
            ),
        )
        for _ in range(ATTEMPTS - 1):
            try:
                put()
            except jetsync.PublishOutcomeUnknownError:
                continue
            break
        else:
            put()
        set_fields(result, enqueued_at=timezone.now())
        task_enqueued.send(type(self), task_result=result)

    def get_result(self, result_id: str) -> TaskResult[Any, Any]:
        """
        Return the result of a task, as the server has it now.

        Raises:
            TaskResultDoesNotExist: There is no such task: its transaction has not committed, or its
                record is older than ``RESULT_TTL``.
            ImportError: This program does not have the task.
        """
        _, _, name = str(result_id).partition("-")
        try:
            queue_name = untoken(name)
        except ValueError:
            raise TaskResultDoesNotExist(result_id) from None
        if not queue_name or (self.queues and queue_name not in self.queues):
            raise TaskResultDoesNotExist(result_id)
        try:
            status = with_queue(
                self.task_options, queue_name, lambda queue: queue.status(result_id)
            )
        except jetsync.InvalidArgumentError:
            status = None
        if status is None:
            raise TaskResultDoesNotExist(result_id)
        return result_of(status, queue_name, self.alias)

    def check(self, **kwargs: Any) -> list[checks.CheckMessage]:
        """
        Check the options of the backend. This sends nothing.
        """
        found = list(super().check(**kwargs))
        try:
            self.task_options  # noqa: B018 - reading it checks it
        except ImproperlyConfigured as error:
            found.append(checks.Error(str(error), id="jetsync_django.E001"))
        if not apps.is_installed("jetsync_django"):
            found.append(
                checks.Warning(
                    "the command jetsync_worker is missing",
                    hint="Add 'jetsync_django' to INSTALLED_APPS.",
                    id="jetsync_django.W001",
                )
            )
        return found


def _check_importable(task: Task[Any, Any]) -> None:
    """
    Raise InvalidTask if a worker could not import the task.
    """
    try:
        found = import_string(task.module_path)
    except ImportError:
        found = None
    if not isinstance(found, Task) or found.func is not task.func:
        raise InvalidTask(
            f"Workers cannot import the task as {task.module_path}: give the task the name of its"
            " function."
        )
