"""
Workers of all pools run tasks, and answer remote control.
"""

from __future__ import annotations

import importlib
import time
from typing import TYPE_CHECKING, Any

import pytest
from celery import chain, chord, group
from workers import WorkerProcess

from jetsync.testing import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import ModuleType

pytestmark = pytest.mark.live

POOLS = {
    "prefork": ["-P", "prefork", "--concurrency", 2],
    "threads": ["-P", "threads", "--concurrency", 2],
    "solo": ["-P", "solo"],
    "gevent": ["-P", "gevent", "--concurrency", 4],
    "one": ["-P", "prefork", "--concurrency", 1],
}

ONE_BY_ONE = {"task_acks_late": True, "worker_prefetch_multiplier": 1}


@pytest.fixture
def program(url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """
    The app of the tests, in this process.
    """
    monkeypatch.setenv("BROKER", url)
    module = importlib.import_module("program")
    module = importlib.reload(module)
    yield module
    module.app.close()
    module.app.backend.values.close()


@pytest.fixture
def worker(url: str) -> Iterator[WorkerProcess]:
    """
    A worker with two processes that sends events.
    """
    with WorkerProcess(url, *POOLS["prefork"], "--task-events") as process:
        yield process


@pytest.mark.parametrize("pool", ["prefork", "threads", "solo", "gevent"])
def test_each_pool_runs_tasks_and_returns_results(url: str, program: Any, pool: str) -> None:
    """
    A worker of each pool runs tasks whose results arrive, and ends without an error.
    """
    if pool == "gevent":
        pytest.importorskip("gevent")
    with WorkerProcess(url, *POOLS[pool]) as worker:
        results = group(program.add.s(n, n) for n in range(10))().get(timeout=30)
        log = worker.stop()

    assert results == [2 * n for n in range(10)]
    assert "Traceback" not in log
    assert "ERROR" not in log


def test_what_celery_offers_works(program: Any, worker: WorkerProcess) -> None:
    """
    Chains, chords, retries, countdowns, expiry, remote control, revoking and events work.
    """
    app = program.app
    events: list[str] = []
    with app.connection() as connection:
        receiver = app.events.Receiver(
            connection, handlers={"*": lambda event: events.append(event["type"])}
        )
        captured = receiver.itercapture(limit=None, timeout=60, wakeup=False)
        next(captured)  # A heartbeat.
        assert program.add.delay(1, 2).get(timeout=60) == 3
        for _ in captured:
            if "task-succeeded" in events:
                break

    assert chain(program.add.s(1, 2), program.add.s(3))().get(timeout=60) == 6
    assert chord((program.add.s(n, n) for n in range(20)), program.total.s())().get(
        timeout=60
    ) == sum(2 * n for n in range(20))
    assert program.fail_twice.delay().get(timeout=60) == 2

    began = time.monotonic()
    later = program.add.apply_async((1, 1), countdown=2)
    assert later.get(timeout=60) == 2
    assert time.monotonic() - began >= 1.0

    (answer,) = app.control.ping(timeout=5, limit=1)
    assert list(answer.values()) == [{"ok": "pong"}]

    tomorrow = program.add.apply_async((1, 1), countdown=86_400)
    app.control.revoke(tomorrow.id)
    eventually(lambda: tomorrow.state == "REVOKED", timeout=60)


def test_tasks_with_an_eta_wait_on_the_server_and_are_revoked_there(program: Any) -> None:
    """
    No worker holds them, and one that is revoked is gone at once.
    """
    tomorrow = [program.add.apply_async((1, n), countdown=86_400) for n in range(3)]
    with program.app.connection() as connection:
        connection.connect()
        queue = connection.transport.work_queue("celery")
        assert queue.statistics().scheduled == 3

        program.app.control.revoke([tomorrow[0].id, tomorrow[2].id])
        assert queue.statistics().scheduled == 1
    assert [each.state for each in tomorrow] == ["REVOKED", "PENDING", "REVOKED"]


@pytest.mark.parametrize("waits", [4, pytest.param(20, marks=pytest.mark.soak)])
def test_a_task_that_takes_much_longer_than_the_ack_wait_runs_once(
    url: str, program: Any, tmp_path: Path, waits: int
) -> None:
    """
    A task that takes many times the ack wait runs once, though a second worker is idle.
    """
    options = {**ONE_BY_ONE, "broker_transport_options": {"ack_wait": 1.0}}
    log = tmp_path / "log"
    with (
        WorkerProcess(url, *POOLS["one"], "--hostname", "a", **options),
        WorkerProcess(url, *POOLS["one"], "--hostname", "b", **options),
    ):
        # The time is the subject.
        program.write.delay(str(log), seconds=float(waits)).get(timeout=60)

    assert words(log) == ["start", "end"]


def test_a_task_of_a_killed_worker_runs_again_soon(url: str, program: Any, tmp_path: Path) -> None:
    """
    A task whose worker is killed runs on another one after the ack wait.
    """
    options = {**ONE_BY_ONE, "broker_transport_options": {"ack_wait": 2.0}}
    log, gate = tmp_path / "log", tmp_path / "gate"
    first = WorkerProcess(url, *POOLS["one"], "--hostname", "a", **options)
    first.wait_for(" ready.")
    result = program.write.delay(str(log), str(gate))
    eventually(log.exists)
    first.kill()
    gate.touch()
    with WorkerProcess(url, *POOLS["one"], "--hostname", "b", **options):
        result.get(timeout=60)

    assert words(log) == ["start", "start", "end"]


def test_prefetched_tasks_go_to_another_worker_when_one_stops(
    url: str, program: Any, tmp_path: Path
) -> None:
    """
    A worker that stops finishes the task that it runs, and gives the others back.
    """
    options = {"task_acks_late": True, "worker_prefetch_multiplier": 4}
    log, gate = tmp_path / "log", tmp_path / "gate"
    with WorkerProcess(url, *POOLS["one"], "--hostname", "a", **options) as first:
        slow = program.write.delay(str(log), str(gate))
        eventually(log.exists)
        others = [program.whoami.delay() for _ in range(3)]
        first.wait_for_times("whoami", 3)
        with WorkerProcess(url, *POOLS["one"], "--hostname", "b", **options):
            first.terminate()
            first.wait_for("Warm shutdown")
            gate.touch()
            names = {result.get(timeout=60) for result in others}
            slow.get(timeout=60)

    assert names == {"celery@b"}
    assert words(log) == ["start", "end"]


def words(log: Path) -> list[str]:
    """
    Return what the task has written, without the process.
    """
    return [line.split()[0] for line in log.read_text().splitlines()]
