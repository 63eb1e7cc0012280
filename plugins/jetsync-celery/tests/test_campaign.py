"""
Workers are killed and the server is restarted, again and again: no task is lost.

``CELERY_CAMPAIGN_TASKS`` is the number of tasks.
"""

from __future__ import annotations

import importlib
import os
import random
import threading
import time
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import attrs
import pytest
from workers import WorkerProcess

from jetsync.devserver import DevServer

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.live, pytest.mark.soak, pytest.mark.timeout(1200)]

TASKS = int(os.environ.get("CELERY_CAMPAIGN_TASKS", "5000"))
ACK_WAIT = 3.0
SECONDS = 0.02
LIMIT = 900.0

FLUSH = 0.5
"""Seconds before a kill of the server in which an acknowledgement may not have been stored."""

AFTERWARDS = 10.0
"""Seconds after an outage in which a worker may still run what it had fetched before it."""

OPTIONS: dict[str, Any] = {
    "task_acks_late": True,
    "worker_prefetch_multiplier": 4,
    "task_ignore_result": True,
    "broker_transport_options": {"ack_wait": ACK_WAIT},
}


@attrs.define
class Campaign:
    """
    What was done to the workers and the server.
    """

    kills: dict[int, float] = attrs.field(factory=dict)
    """The process groups that were killed, and when."""

    outages: list[tuple[float, float]] = attrs.field(factory=list)
    """When the server was killed, and when it answered again."""


@attrs.frozen
class Run:
    """
    A start of a task, and its end if it had one.
    """

    started: float
    group: int
    ended: float | None


def test_no_task_is_lost_when_workers_and_the_server_are_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Every task is done, and each that ran twice did so because of a kill before its acknowledgement.
    """
    log = tmp_path / "log"
    log.touch()
    campaign = Campaign()
    sent: list[str] = []
    dice = random.Random(1)
    with DevServer() as server:
        url = server.url.replace("nats://", "jetstream://")
        monkeypatch.setenv("BROKER", url)
        program = importlib.reload(importlib.import_module("program"))
        workers = [new_worker(url, each) for each in range(2)]
        count = len(workers)
        sender = threading.Thread(target=send, args=(program, str(log), sent), daemon=True)
        sender.start()
        began = time.monotonic()
        try:
            while len(ended := {name for name, runs in read(log).items() if is_done(runs)}) < TASKS:
                assert time.monotonic() - began < LIMIT, TASKS - len(ended)
                # The time between two kills is the subject.
                time.sleep(dice.uniform(3.0, 6.0))
                if len(ended) > TASKS * (len(campaign.outages) + 1) / 3 and len(ended) < TASKS:
                    killed = time.time()
                    server.kill()
                    time.sleep(dice.uniform(0.5, 8.0))
                    server.start()
                    campaign.outages.append((killed, time.time()))
                    continue
                victim = workers.pop(dice.randrange(len(workers)))
                campaign.kills[victim.group] = time.time()
                victim.kill()
                workers.append(new_worker(url, count))
                count += 1
        finally:
            logs = [worker.stop() for worker in workers]
        sender.join(10.0)
        program.app.close()
        program.app.backend.values.close()

    runs = read(log)
    reasons: dict[str, int] = defaultdict(int)
    unexplained = []
    for name, found in runs.items():
        for run in found[:-1]:
            reason = reason_of(run, campaign)
            reasons[reason] += 1
            if reason == "none":
                unexplained.append((name, found))
    print(  # noqa: T201
        f"{len(runs)} tasks, {len(campaign.kills)} workers killed, {len(campaign.outages)} restarts"
        f" of the server, {time.monotonic() - began:.0f} s; ran again: {dict(reasons)}"
    )
    assert set(sent) == set(runs)
    assert len(sent) == TASKS
    assert campaign.outages
    (tmp_path / "workers.log").write_text("".join(logs))
    if unexplained:
        pytest.fail(f"{unexplained}, {campaign}; the logs are in {tmp_path}")


def new_worker(url: str, number: int) -> WorkerProcess:
    """
    Start a worker with two processes.
    """
    return WorkerProcess(
        url, "-P", "prefork", "--concurrency", 2, "--hostname", f"w{number}", **OPTIONS
    )


def send(program: Any, log: str, sent: list[str]) -> None:
    """
    Send all tasks. What could not be sent, because the server is away, is sent again.
    """
    for number in range(TASKS):
        while True:
            try:
                program.mark.apply_async((log, SECONDS), task_id=f"task{number}")
                break
            except program.mark.OperationalError:
                time.sleep(0.5)
        sent.append(f"task{number}")


def read(log: Path) -> dict[str, list[Run]]:
    """
    Return the runs of each task, in the order of their starts.
    """
    runs: dict[str, list[Run]] = defaultdict(list)
    for line in log.read_text().splitlines():
        what, moment, group, name = line.split()
        if what == "start":
            runs[name].append(Run(float(moment), int(group), None))
        else:
            found = runs[name]
            place = next(at for at, run in enumerate(found) if run.group == int(group))
            found[place] = attrs.evolve(found[place], ended=float(moment))
    return runs


def is_done(runs: list[Run]) -> bool:
    """
    Return whether a task has ended.
    """
    return any(run.ended is not None for run in runs)


def reason_of(run: Run, campaign: Campaign) -> str:
    """
    Return why a task ran again after this run.
    """
    killed = campaign.kills.get(run.group, float("-inf"))
    ended = run.ended if run.ended is not None else float("inf")
    if any(since - FLUSH <= ended and run.started <= until for since, until in campaign.outages):
        return "the server was killed before the acknowledgement"
    if killed + FLUSH >= run.started and killed <= ended + FLUSH:
        return "its worker was killed before the acknowledgement"
    for since, until in campaign.outages:
        # The server has given the tasks to another worker, but the first one still has them.
        if until + FLUSH - since >= ACK_WAIT and since <= run.started <= until + AFTERWARDS:
            return "a worker was without the server for longer than the ack wait"
    return "none"
