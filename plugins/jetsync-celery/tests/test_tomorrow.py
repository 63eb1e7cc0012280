"""
Very many tasks of tomorrow cost a worker no memory.

``CELERY_TOMORROW_TASKS`` is the number of tasks.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from workers import WorkerProcess

if TYPE_CHECKING:
    from jetsync.devserver import DevServer

pytestmark = [pytest.mark.live, pytest.mark.soak, pytest.mark.timeout(1200)]

TASKS = int(os.environ.get("CELERY_TOMORROW_TASKS", "20000"))
DAY = 86_400

SLACK = 8.0
"""MiB that a worker may grow, because it also counts events and heartbeats."""


def test_tasks_of_tomorrow_wait_on_the_server_alone(
    nats_server: DevServer, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Worker memory is flat, the worker still does other tasks, and revoking one removes it.
    """
    monkeypatch.setenv("BROKER", url)
    program = importlib.reload(importlib.import_module("program"))
    (server,) = nats_server.pids
    with WorkerProcess(url, "-P", "prefork", "--concurrency", 2) as worker:
        assert program.add.delay(1, 2).get(timeout=60) == 3
        before, server_before = memory(worker.group), memory_of(server)
        began = time.monotonic()
        with ThreadPoolExecutor(8) as pool:
            sent = list(
                pool.map(lambda n: program.add.apply_async((1, n), countdown=DAY), range(TASKS))
            )
        seconds = time.monotonic() - began
        assert program.add.delay(1, 2).get(timeout=60) == 3
        after, server_after = memory(worker.group), memory_of(server)
        with program.app.connection() as connection:
            connection.connect()
            queue = connection.transport.work_queue("celery")
            assert queue.statistics().scheduled == TASKS
            began = time.monotonic()
            program.app.control.revoke(sent[TASKS // 2].id)
            revoked = time.monotonic() - began
            assert queue.statistics().scheduled == TASKS - 1
        assert sent[TASKS // 2].state == "REVOKED"
    program.app.close()
    program.app.backend.values.close()
    print(  # noqa: T201
        f"{TASKS} tasks in {seconds:.0f} s; worker {before:.1f} to {after:.1f} MiB, server"
        f" {server_before:.1f} to {server_after:.1f} MiB, revoked in {1000 * revoked:.0f} ms"
    )
    assert after < before + SLACK


def memory(group: int) -> float:
    """
    Return the MiB of all processes of a group.
    """
    found = subprocess.run(
        ["ps", "-o", "pid=", "-g", str(group)], capture_output=True, text=True, check=True
    )
    return sum(memory_of(int(pid)) for pid in found.stdout.split())


def memory_of(pid: int) -> float:
    """
    Return the MiB of a process.
    """
    found = subprocess.run(
        ["ps", "-o", "rss=", "-p", str(pid)], capture_output=True, text=True, check=True
    )
    return int(found.stdout) / 1024
