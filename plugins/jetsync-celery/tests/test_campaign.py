"""
Workers are killed and servers are restarted, again and again: no task is lost.

``CELERY_CAMPAIGN_TASKS`` tasks are sent, but none after ``CELERY_CAMPAIGN_SECONDS``.
``CELERY_CAMPAIGN_ACK_WAIT`` is the ack wait in seconds.
"""

from __future__ import annotations

import importlib
import os
import random
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from campaign import Campaign, Outage
from workers import WorkerProcess

from jetsync.devserver import DevServer

if TYPE_CHECKING:
    from pathlib import Path

TASKS = int(os.environ.get("CELERY_CAMPAIGN_TASKS", "3000"))
LIMIT = float(os.environ.get("CELERY_CAMPAIGN_SECONDS", "900"))
ACK_WAIT = float(os.environ.get("CELERY_CAMPAIGN_ACK_WAIT", "3"))

SECONDS = (0.02, 5.0)
"""Seconds that tasks take. One of `LONG` takes the longer time."""

LONG = 200

WORKERS = 4

PAUSES = (2.0, 5.0)
"""Least and most seconds between two faults."""

OUTAGES = (0.5, 8.0)
"""Least and most seconds for which a server is down."""

EVERY = 5
"""One of this many faults is that of a server."""

OPEN = 2000
"""Most tasks that wait."""

LAST = 300.0
"""Seconds for the tasks that wait when no more are sent."""

pytestmark = [pytest.mark.live, pytest.mark.soak, pytest.mark.timeout(LIMIT + LAST + 120.0)]


@pytest.mark.parametrize("servers", [1, 3])
def test_no_task_is_lost_when_workers_and_servers_are_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, servers: int
) -> None:
    """
    Every task is done, and each that ran twice did so because of a kill.
    """
    log = tmp_path / "log"
    log.touch()
    campaign = Campaign(log, ACK_WAIT, servers)
    sent: list[str] = []
    is_over = threading.Event()
    with DevServer(cluster=servers) as server:
        url = ";".join(each.replace("nats://", "jetstream://") for each in server.urls)
        monkeypatch.setenv("BROKER", url)
        monkeypatch.setenv("ACKS", str(log))
        monkeypatch.setenv("OPTIONS", "{}")
        program = importlib.reload(importlib.import_module("program"))
        program.app.conf.update(options(servers))
        sender = threading.Thread(target=send, args=(program, campaign, sent, is_over), daemon=True)
        sender.start()
        workers = Workers(url, tmp_path, servers)
        began = time.monotonic()
        try:
            cause_faults(campaign, server, workers, sent, is_over)
        finally:
            is_over.set()
            workers.stop()
        sender.join(30.0)
        program.app.close()
        program.app.backend.values.close()

    took = time.monotonic() - began
    repeats = list(campaign.repeats())
    for repeat in repeats:
        print(repeat)  # noqa: T201
    print(  # noqa: T201
        f"{len(campaign.ended)} of {len(sent)} tasks done, {len(campaign.kills)} workers killed, "
        f"{len(campaign.outages)} servers killed and started again, {took:.0f} s; "
        f"ran again: {dict(Counter(repeat.reason for repeat in repeats))}"
    )
    assert set(sent) == campaign.ended
    assert campaign.outages
    assert [repeat for repeat in repeats if repeat.reason is None] == [], (campaign, tmp_path)


class Workers:
    """
    The workers that run, each with a number and a log of its own.
    """

    def __init__(self, url: str, folder: Path, servers: int) -> None:
        self._url = url
        self._folder = folder
        self._servers = servers
        self._count = 0
        self._running: list[WorkerProcess] = []
        for _ in range(WORKERS):
            self._start()

    def kill_one(self, dice: random.Random) -> tuple[int, float]:
        """Kill a worker and start another one; return its process group, and when it died."""
        victim = self._running.pop(dice.randrange(len(self._running)))
        moment = time.time()
        victim.kill()
        self._start()
        return victim.group, moment

    def stop(self) -> None:
        """End all workers as SIGTERM does."""
        for each in self._running:
            each.terminate()
        for each in self._running:
            each.stop()

    def _start(self) -> None:
        name = f"w{self._count}"
        self._count += 1
        arguments = ["-P", "prefork", "--concurrency", 2, "--hostname", name]
        arguments += ["--logfile", self._folder / f"{name}.log"]
        self._running.append(WorkerProcess(self._url, *arguments, **options(self._servers)))


def options(servers: int) -> dict[str, Any]:
    """
    Return the settings of Celery.
    """
    return {
        "task_acks_late": True,
        "worker_prefetch_multiplier": 4,
        "task_ignore_result": True,
        "broker_transport_options": {"ack_wait": ACK_WAIT, "num_replicas": servers},
        "result_backend_transport_options": {"num_replicas": servers},
    }


def cause_faults(
    campaign: Campaign,
    server: DevServer,
    workers: Workers,
    sent: list[str],
    is_over: threading.Event,
) -> None:
    """
    Kill workers and servers until all tasks are done. No more are sent when the time is over.
    """
    dice = random.Random(1)
    began = time.monotonic()
    faults = 0
    while len(campaign.ended) < (len(sent) if is_over.is_set() else TASKS):
        took = time.monotonic() - began
        if took > LIMIT:
            is_over.set()
        assert took < LIMIT + LAST, set(sent) - campaign.ended
        # The time between two kills is the subject.
        time.sleep(dice.uniform(*PAUSES))
        campaign.read()
        faults += 1
        if faults % EVERY:
            group, moment = workers.kill_one(dice)
            campaign.kills[group] = moment
            continue
        victim = len(campaign.outages) % len(server.urls)
        since = time.time()
        server.kill(victim)
        time.sleep(dice.uniform(*OUTAGES))
        server.start(victim)
        campaign.outages.append(Outage(since, time.time()))
    # The acknowledgements of the last ones.
    time.sleep(1.0)
    campaign.read()


def send(program: Any, campaign: Campaign, sent: list[str], is_over: threading.Event) -> None:
    """
    Send all tasks. What could not be sent, because the server is away, is sent again.
    """
    number = 0
    while number < TASKS and not is_over.is_set():
        if number - len(campaign.ended) > OPEN:
            is_over.wait(0.1)
            continue
        arguments = (str(campaign.log), SECONDS[number % LONG == 0])
        try:
            program.mark.apply_async(arguments, task_id=f"task{number}")
        except program.mark.OperationalError:
            time.sleep(0.5)
            continue
        sent.append(f"task{number}")
        number += 1
