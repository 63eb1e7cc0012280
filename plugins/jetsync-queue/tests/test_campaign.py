"""
Long runs: workers killed at random, long jobs, many delayed jobs. They print their figures.
"""

from __future__ import annotations

import collections
import os
import random
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import jetsync
from jetsync.devserver import DevServer
from jetsync_queue import WorkQueue

pytestmark = [pytest.mark.soak, pytest.mark.live, pytest.mark.timeout(1200)]

SCRIPT = Path(__file__).parent / "campaign_worker.py"
JOBS = int(os.environ.get("JETSYNC_QUEUE_JOBS", "20000"))
KILL_EVERY = 4.0
LAST = 1.0
"""Seconds before a kill in which a job that runs twice was begun or done."""


class Process:
    """
    A worker process with its log.
    """

    def __init__(self, server, prefix, folder, number, results):
        self.log = folder / f"{number}.log"
        self.log.touch()
        command = [sys.executable, str(SCRIPT), server.url, prefix, str(self.log), results]
        self.process = subprocess.Popen(command)
        self.killed_at = None

    def kill(self):
        """
        Kill the process, and note when.
        """
        self.process.kill()
        self.process.wait()
        self.killed_at = time.time()

    def lines(self):
        """
        Yield time, kind and job of each line.
        """
        for line in self.log.read_text().splitlines():
            moment, kind, job = line.split()
            yield float(moment), kind, int(job)


@pytest.mark.parametrize("results", ["1", "0"])
def test_no_job_is_lost_when_workers_are_killed(results, tmp_path):
    """
    Every job is done. A job is done twice only if its worker was killed after the work and before
    the server had the acknowledgement.
    """
    with DevServer() as server, jetsync.connect(server.url) as client:
        queue = WorkQueue.open(
            client.jetstream(), "work", prefix="soak", priorities=3, results=results == "1"
        )
        thirds = range(3)
        for third in thirds:
            numbers = [number for number in range(JOBS) if number % 3 == third]
            half = len(numbers) // 2
            queue.put_many(numbers[:half], priority=third)
            queue.put_many(numbers[half:], priority=third, delay=random.uniform(1, 20))
        began = time.monotonic()
        number, workers = 4, [Process(server, "soak", tmp_path, each, results) for each in range(4)]
        everyone, kills = list(workers), 0
        while (counts := queue.statistics()).open:
            assert time.monotonic() - began < 900, counts
            if counts.open < 2000:
                # Without kills, so that the run ends.
                time.sleep(1)
                continue
            time.sleep(random.uniform(0.5, 1.5) * KILL_EVERY / 2)
            place = random.randrange(4)
            workers[place].kill()
            kills += 1
            workers[place] = Process(server, "soak", tmp_path, number, results)
            everyone.append(workers[place])
            number += 1
        took = time.monotonic() - began
        for worker in workers:
            worker.process.send_signal(signal.SIGTERM)
        assert [worker.process.wait(60) for worker in workers] == [0] * 4
        assert queue.dead() == []

    done, begun = collections.defaultdict(list), collections.Counter()
    for worker in everyone:
        for moment, kind, job in worker.lines():
            begun[job] += kind == "begin"
            if kind == "end":
                done[job].append((moment, worker.killed_at))
    twice = {job: sorted(ends) for job, ends in done.items() if len(ends) > 1}
    unexplained = {
        job: ends
        for job, ends in twice.items()
        for moment, killed_at in ends[:-1]
        if killed_at is None or killed_at - moment > LAST
    }
    retried = sum(job % 50 == 0 for job in range(JOBS))
    again = sum(begun.values()) - JOBS - retried
    report(
        f"\n{JOBS} jobs, results={results}, {took:.0f} s, {kills} kills, lost {JOBS - len(done)}, "
        f"done twice {len(twice)}, begun again {again}, unexplained {len(unexplained)}"
    )
    assert sorted(done) == list(range(JOBS))
    assert unexplained == {}


def test_a_job_longer_than_the_ack_wait_by_twenty_times_runs_once(open_queue):
    """
    With two workers that have nothing else to do.
    """
    queue, runs = open_queue(ack_wait=2), []

    def long(job):
        runs.append((job.id, job.deliveries))
        time.sleep(40)
        return "done"

    job = queue.put(1)
    with queue.worker(long), queue.worker(long):
        assert job.result(timeout=120) == "done"
    assert runs == [(job.id, 1)]


def test_delayed_jobs_need_no_memory_in_a_worker():
    """
    100,000 jobs for tomorrow: the worker's memory stays, and one that is cancelled is gone.
    """
    with DevServer() as server, jetsync.connect(server.url) as client:
        queue = WorkQueue.open(client.jetstream(), "work", prefix="eta")
        with queue.worker(lambda job: job.data) as worker:
            queue.put("warm").result(timeout=30)
            before = memory()
            began = time.monotonic()
            number = 0
            while number < 100_000 and time.monotonic() - began < 60:
                jobs = queue.put_many(({"number": each} for each in range(5000)), delay=86_400)
                number += 5000
            took = time.monotonic() - began
            after = memory()
            began = time.monotonic()
            assert jobs[17].cancel()
            cancelled = time.monotonic() - began
            assert queue.statistics().scheduled == number - 1
            assert not jobs[17].cancel()
            assert queue.put("still works").result(timeout=30) == "still works"
            assert worker.statistics.succeeded == 2
    report(
        f"\n{number} delayed jobs put in {took:.1f} s, memory {before} to {after} MiB, "
        f"cancelled in {cancelled * 1000:.1f} ms"
    )
    assert after - before < 30


def report(text):
    """
    Show figures; pytest needs -s.
    """
    sys.stdout.write(text + "\n")


def memory():
    """
    Return the resident memory of this process in MiB.
    """
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() // 2**20


@pytest.mark.parametrize("results", [True, False])
@pytest.mark.parametrize("threads", [1, 8])
def test_rate(results, threads):
    """
    Jobs per second of one worker process.
    """
    with DevServer() as server, jetsync.connect(server.url) as client:
        queue = WorkQueue.open(client.jetstream(), "work", prefix="rate", results=results)
        count = 5000
        began = time.monotonic()
        queue.put_many(range(count))
        put = time.monotonic() - began
        done, left = threading.Event(), iter(range(count - 1))

        def handle(job):
            if next(left, None) is None:
                done.set()

        began, cpu = time.monotonic(), time.process_time()
        with queue.worker(handle, threads=threads):
            assert done.wait(300)
        took = time.monotonic() - began
        used = time.process_time() - cpu
        waits = []
        with queue.worker(lambda _: None, threads=threads):
            for _ in range(200 if results else 0):
                start = time.perf_counter()
                queue.put(1).result(timeout=30)
                waits.append((time.perf_counter() - start) * 1000)
    waits.sort()
    p50, p99 = (waits[len(waits) // 2], waits[len(waits) * 99 // 100]) if waits else (0, 0)
    report(
        f"\nresults={results} threads={threads}: put {count / put:.0f}/s, done {count / took:.0f}/s"
        f", {used / count * 1e6:.0f} us CPU a job, put().result() p50 {p50:.1f} p99 {p99:.1f} ms"
    )
