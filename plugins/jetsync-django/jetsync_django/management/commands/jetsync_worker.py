"""
The command `manage.py jetsync_worker`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError

import jetsync
from jetsync_django.tasks.api import task_backends
from jetsync_django.tasks.backend import JetStreamBackend
from jetsync_django.tasks.queues import open_queue
from jetsync_django.tasks.workers import UnfinishedTasksError, Workers

if TYPE_CHECKING:
    from django.core.management.base import CommandParser

__all__ = ["Command"]


class Command(BaseCommand):
    """Run tasks of a backend until SIGTERM or Ctrl-C."""

    help = "Run tasks until SIGTERM or Ctrl-C. Then the tasks that run are finished."

    def add_arguments(self, parser: CommandParser) -> None:
        """Define the options."""
        parser.add_argument(
            "--backend", default="default", help="the alias in TASKS; default: default"
        )
        parser.add_argument(
            "--queue-name",
            action="append",
            metavar="NAME",
            help="a queue, may be repeated; default: all queues of the backend",
        )
        parser.add_argument(
            "--threads",
            type=int,
            default=1,
            metavar="N",
            help="how many tasks of each queue run at the same time; default: 1",
        )
        parser.add_argument(
            "--stop-timeout",
            type=float,
            default=300.0,
            metavar="SECONDS",
            help="how long to wait for running tasks after a signal; default: 300",
        )
        parser.add_argument(
            "--worker-id", metavar="ID", help="the name in results; default: host and process"
        )
        parser.add_argument(
            "--batch", action="store_true", help="end when no task is waiting or running"
        )

    def handle(self, *_args: Any, **options: Any) -> None:
        """Check the settings and the server, and run the workers."""
        backend = _backend(options["backend"])
        names = _queue_names(backend, options["queue_name"])
        if options["threads"] < 1:
            raise CommandError(f"--threads must be at least 1, not {options['threads']}")
        if not options["stop_timeout"] >= 0:
            raise CommandError(f"--stop-timeout cannot be {options['stop_timeout']}")
        workers = Workers(backend, names, options["threads"], options["worker_id"])
        try:
            for name in names:
                open_queue(backend.task_options, name)
            self.stdout.write(f"Running tasks of {', '.join(names)}. Stop with Ctrl-C.")
            workers.run(stop_timeout=options["stop_timeout"], batch=options["batch"])
        except ImproperlyConfigured as error:
            raise CommandError(str(error)) from error
        except jetsync.JetSyncError as error:
            raise CommandError(f"{type(error).__name__}: {error}") from error
        except UnfinishedTasksError as error:
            raise CommandError(str(error)) from error


def _backend(alias: str) -> JetStreamBackend:
    """Return the backend with an alias."""
    try:
        found = task_backends[alias]
    except ImproperlyConfigured as error:
        raise CommandError(str(error)) from error
    if not isinstance(found, JetStreamBackend):
        raise CommandError(
            f"TASKS[{alias!r}] is a {type(found).__name__}, whose tasks need another worker"
        )
    return found


def _queue_names(backend: JetStreamBackend, given: list[str] | None) -> list[str]:
    """Return the queues to work on."""
    names = sorted(set(given or backend.queues))
    if not names:
        raise CommandError("the backend has no QUEUES: name them with --queue-name")
    unknown = sorted(set(names) - backend.queues) if backend.queues else []
    if unknown:
        raise CommandError(
            f"the backend has no queue {', '.join(unknown)}: QUEUES are"
            f" {', '.join(sorted(backend.queues))}"
        )
    return names
