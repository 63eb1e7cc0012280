"""
Flower shows workers and tasks, and controls them.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest
from waiting import free_port
from workers import HERE, WorkerProcess

from jetsync.testing import eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.live

pytest.importorskip("flower")


@pytest.fixture
def ask(url: str) -> Iterator[Callable[..., Any]]:
    """
    A function that calls the API of a Flower.
    """
    port = free_port()
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "celery", "--app", "program", "flower"),
            *(f"--port={port}", "--address=127.0.0.1"),
        ],
        cwd=HERE,
        env={**os.environ, "BROKER": url, "FLOWER_UNAUTHENTICATED_API": "true"},
    )

    def ask(path: str, method: str = "GET", **data: object) -> Any:
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/api/{path}",
            data=json.dumps(data).encode() if method == "POST" else None,
            method=method,
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)

    try:
        yield ask
    finally:
        process.terminate()
        process.wait(30)


def test_flower_shows_workers_and_tasks(
    url: str, ask: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    It shows a worker with its queues, tasks with their results, and sends and revokes tasks.
    """
    monkeypatch.setenv("BROKER", url)
    program = importlib.reload(importlib.import_module("program"))

    def workers() -> Any:
        try:
            return ask("workers?refresh=1")
        except (urllib.error.URLError, ConnectionError):
            return None  # It starts.

    def result_of_task() -> Any:
        # Flower sees only tasks that run after it has subscribed.
        task_id = program.add.delay(1, 2).id
        program.app.AsyncResult(task_id).get(timeout=60)
        return ask("tasks").get(task_id, {}).get("result")

    with WorkerProcess(url, "-P", "solo", "--task-events", "--hostname", "w"):
        (name,) = found = eventually(workers)
        assert [each["name"] for each in found[name]["active_queues"]] == ["celery"]
        assert eventually(result_of_task) == "3"
        assert ask("task/apply/program.add", "POST", args=[3, 4])["result"] == 7
        later = program.add.apply_async((1, 1), countdown=86_400)
        ask(f"task/revoke/{later.id}", "POST")
        eventually(lambda: later.state == "REVOKED")
    program.app.close()
    program.app.backend.values.close()
