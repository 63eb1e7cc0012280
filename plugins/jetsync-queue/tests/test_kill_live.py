"""
Workers that are killed at each step: no job is lost, and the jobs that run twice are known.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from jetsync_queue import JobFailedError

pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL"),
]

SCRIPT = Path(__file__).parent / "kill_worker.py"


def kill_at(step, server, prefix, log):
    """
    Run a worker that dies at a step.
    """
    command = [sys.executable, str(SCRIPT), server.url, prefix, step, str(log)]
    done = subprocess.run(command, timeout=60, capture_output=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()


@pytest.mark.parametrize(
    ("step", "began", "ended", "runs"),
    [
        ("fetched", 0, 0, 1),
        ("begun", 1, 0, 1),
        ("worked", 1, 1, 1),
        ("result", 1, 1, 1),
    ],
)
def test_a_job_whose_worker_was_killed_is_done(
    step, began, ended, runs, open_queue, nats_server, tmp_path
):
    """
    Another worker gets it once the ack wait is over. It runs twice only if it had begun before.
    """
    queue, log, found = open_queue(ack_wait=1), tmp_path / "log", []
    job = queue.put("x", priority=1)
    log.touch()
    kill_at(step, nats_server, queue.prefix, log)
    began_at = time.monotonic()
    done = []
    with queue.worker(lambda job: done.append(job.data) or len(found)) as worker:
        while worker.statistics.succeeded < runs:
            assert time.monotonic() - began_at < 30
        job.result(timeout=30)

    lines = log.read_text().splitlines()
    assert (lines.count("begin x"), lines.count("end x")) == (began, ended)
    assert done == ["x"] * runs
    assert queue.statistics().open == 0


def test_a_job_that_was_acknowledged_in_the_last_milliseconds_may_run_again(
    open_queue, nats_server, tmp_path
):
    """
    The acknowledgement may be lost with the process. The result is there in any case.
    """
    queue, log = open_queue(ack_wait=1), tmp_path / "log"
    job = queue.put("x")
    kill_at("acked", nats_server, queue.prefix, log)

    assert job.result(timeout=30) == "x"
    with queue.worker(lambda job: job.data) as worker:
        while queue.statistics().open:
            pass
    assert worker.statistics.succeeded <= 1


def test_a_worker_killed_after_it_stored_the_retry(open_queue, nats_server, tmp_path):
    """
    The job fails again, and its next attempt is stored only once.
    """
    queue, log, attempts = open_queue(ack_wait=1), tmp_path / "log", []
    job = queue.put("x")
    kill_at("retry", nats_server, queue.prefix, log)

    def handle(job):
        attempts.append(job.attempt)
        if job.attempt == 1:
            raise ValueError("fails again")
        return job.data

    with queue.worker(handle, retries=1, wait=0.1):
        assert job.result(timeout=30) == "x"
        while queue.statistics().open:
            pass
    assert sorted(attempts) == [1, 2]
    assert queue.dead() == []


@pytest.mark.parametrize("step", ["buried", "dead-result"])
def test_a_worker_killed_after_it_gave_up_a_job(step, open_queue, nats_server, tmp_path):
    """
    The job dies once.
    """
    queue = open_queue(ack_wait=1)
    job = queue.put("x")
    kill_at(step, nats_server, queue.prefix, tmp_path / "log")
    with queue.worker(lambda _: 1 / 0):
        while queue.statistics().open:
            pass
        with pytest.raises(JobFailedError):
            job.result(timeout=30)
    assert [dead.id for dead in queue.dead()] == [job.id]


def test_a_job_that_kills_its_workers_is_given_up(open_queue, nats_server, tmp_path):
    """
    It dies after its crashes, so that it does not kill all workers.
    """
    queue, log = open_queue(ack_wait=1), tmp_path / "log"
    job = queue.put("x")
    for _ in range(3):
        kill_at("begun", nats_server, queue.prefix, log)
    with queue.worker(lambda job: job.data, crashes=1), pytest.raises(JobFailedError):
        job.result(timeout=30)

    assert "workers died" in queue.dead()[0].reason
    assert log.read_text().splitlines() == ["begin x"] * 3
