"""
The workers of a process: one for each queue, until a signal stops them.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import attrs

from jetsync_django.connections import shared_client
from jetsync_django.tasks.backend import JetStreamBackend
from jetsync_django.tasks.queues import open_queue
from jetsync_django.tasks.running import TaskRunner

if TYPE_CHECKING:
    import jetsync
    from jetsync_queue import Worker, WorkQueue

__all__ = ["UnfinishedTasksError", "Workers"]

# Seconds between two looks at the workers, and at the queues with `batch`.
LOOK: Final = 0.25


class UnfinishedTasksError(Exception):
    """
    Tasks did not end in time after a signal. The server gives them to other workers.
    """


@attrs.frozen
class Workers:
    """
    The workers of some queues of a backend. Use :meth:`run` once, in the main thread.
    """

    backend: JetStreamBackend
    names: Sequence[str]
    threads: int
    worker_id: str | None = None

    def run(self, *, stop_timeout: float, batch: bool = False) -> None:
        """
        Run tasks until SIGTERM or Ctrl-C, then start no further ones and wait for those that run.

        A second signal ends the program at once. Then the server gives the tasks that still ran to
        other workers.

        Args:
            stop_timeout: Seconds for which running tasks are waited for.
            batch: Return as soon as no task waits or runs.

        Raises:
            SystemExit: After a signal, with the status 0.
            UnfinishedTasksError: A task did not end in time.
            JetSyncError: What ended a worker, for example that its stream was deleted.
        """
        options = self.backend.task_options
        client = shared_client(options.connect)
        queues = [open_queue(options, name) for name in self.names]
        worker_id = self.worker_id or f"{socket.gethostname()}-{os.getpid()}"
        workers = [
            queue.worker(
                TaskRunner(self.backend, queue, worker_id),
                threads=self.threads,
                retries=options.retries,
                wait=options.retry_wait,
                timeout=options.timeout,
                name=worker_id,
            )
            for queue in queues
        ]
        with client.stop_on_signal(timeout=stop_timeout + 5.0, exit_code=0) as stop:
            try:
                for worker in workers:
                    worker.start()
                _wait(workers, stop, queues if batch else ())
            finally:
                # All of them stop to take tasks before any of them is waited for.
                for worker in workers:
                    worker.request_stop()
                limit = time.monotonic() + stop_timeout
                done = [
                    worker.stop(timeout=max(limit - time.monotonic(), 0.0)) for worker in workers
                ]
            # The end of the block raises SystemExit after a signal, unless the block raises.
            for worker in workers:
                if worker.error is not None:
                    raise worker.error
            if not all(done):
                raise UnfinishedTasksError(
                    f"Some tasks did not end in {stop_timeout:g} seconds. The server gives them to"
                    " other workers."
                )


def _wait(workers: Sequence[Worker], stop: jetsync.StopSignal, batch: Sequence[WorkQueue]) -> None:
    """Wait for a signal, for the end of a worker, or until the queues of a batch are empty."""
    while not stop.wait(timeout=LOOK):
        if any(worker.wait(timeout=0.0) for worker in workers):
            return
        if batch and not any(_has_tasks(queue) for queue in batch):
            return


def _has_tasks(queue: WorkQueue) -> bool:
    found = queue.statistics()
    return bool(found.waiting or found.running)
