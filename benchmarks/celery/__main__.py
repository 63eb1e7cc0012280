"""
The command: ``python -m benchmarks.celery [--rounds 3] [--tasks 3000] [--json FILE]``.

It needs jetsync-celery, psutil, redis-py, and the servers of Redis and RabbitMQ. Those that are
missing are left out. In each round the brokers take turns, and each begins empty.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from benchmarks.celery.brokers import BROKERS, Broker, installed

if TYPE_CHECKING:
    from collections.abc import Callable

WAIT = 300.0
WARM_UP = 50


def cpu_of(pid: int) -> float:
    """
    Return the CPU seconds of a process, with the children that it has.
    """
    tree = [process := psutil.Process(pid), *process.children(recursive=True)]
    return sum(sum(each.cpu_times()[:2]) for each in tree)


def memory_of(pid: int) -> float:
    """
    Return the resident memory of a process and its children in MiB.
    """
    tree = [process := psutil.Process(pid), *process.children(recursive=True)]
    return sum(each.memory_info().rss for each in tree) / (1 << 20)


def timed(call: Callable[[], Any]) -> float:
    """
    Return how many seconds a call takes.
    """
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def measure(broker: Broker, worker: int, tasks: int) -> dict[str, float]:
    """
    Send tasks to a worker that runs, and return the figures.
    """
    from benchmarks.celery.app import add, done, note

    for number in range(WARM_UP):
        assert add.delay(number, 1).get(timeout=WAIT) == number + 1

    def spent() -> tuple[float, float]:
        return cpu_of(worker), cpu_of(broker.pid)

    calls = sorted(
        timed(lambda number=number: add.delay(number, 1).get(timeout=WAIT))
        for number in range(tasks // 5)
    )
    figures = {
        "get_p50_ms": 1e3 * statistics.median(calls),
        "get_p99_ms": 1e3 * calls[len(calls) * 99 // 100],
    }

    before, began = spent(), time.perf_counter()
    results = [add.delay(number, 1) for number in range(tasks)]
    sent = time.perf_counter()
    for number, result in enumerate(results):
        assert result.get(timeout=WAIT) == number + 1
    end = time.perf_counter()
    of_worker, of_broker = (after - old for after, old in zip(spent(), before, strict=True))
    figures["delay_rate"] = tasks / (sent - began)
    figures["rate_with_results"] = tasks / (end - began)
    figures["worker_cpu_ms"] = 1e3 * of_worker / tasks
    figures["broker_cpu_ms"] = 1e3 * of_broker / tasks

    began = time.perf_counter()
    for number in range(tasks):
        note.delay(number)
    # The queue is in order, so that they were taken before this one.
    assert done.delay().get(timeout=WAIT)
    figures["rate_without_results"] = tasks / (time.perf_counter() - began)
    figures["broker_memory_mib"] = memory_of(broker.pid)
    return figures


def worker_command() -> list[str]:
    """
    Return the command of a worker with two processes.
    """
    app = "benchmarks.celery.app"
    return [sys.executable, "-m", "celery", "-A", app, "worker", "-c", "2", "-l", "WARNING"]


def run_one(name: str, tasks: int) -> dict[str, float]:
    """
    Measure one broker once; the sending program is a process of its own.
    """
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
        BROKERS[name](Path(folder)) as broker,
    ):
        os.environ.update(BROKER=broker.url, BACKEND=broker.backend)
        with subprocess.Popen(worker_command()) as worker:
            try:
                return measure(broker, worker.pid, tasks)
            finally:
                worker.terminate()


def main() -> None:
    """
    Run the rounds, and print a table of medians.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks.celery", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tasks", type=int, default=3000)
    parser.add_argument("--json", type=Path, help="save every sample in this file")
    parser.add_argument("--only", choices=BROKERS, help="measure one broker in this process")
    options = parser.parse_args()
    if options.only:
        print(json.dumps(run_one(options.only, options.tasks)))
        return
    names = installed()
    samples: dict[str, dict[str, list[float]]] = {name: defaultdict(list) for name in names}
    for turn in range(options.rounds):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            command = [sys.executable, "-m", "benchmarks.celery", "--only", name]
            done = subprocess.run(
                [*command, "--tasks", str(options.tasks)],
                stdout=subprocess.PIPE,
                text=True,
                check=True,
            )
            for key, value in json.loads(done.stdout.splitlines()[-1]).items():
                samples[name][key].append(value)
            print(turn + 1, name, done.stdout.splitlines()[-1], file=sys.stderr, flush=True)
    if options.json:
        options.json.write_text(json.dumps(samples, indent=1))
    print(f"{'median of ' + str(options.rounds) + ' rounds':24}", *(f"{n:>12}" for n in names))
    for key in samples[names[0]]:
        values = (statistics.median(samples[name][key]) for name in names)
        print(f"{key:24}", *(f"{value:12.2f}" for value in values))


if __name__ == "__main__":
    main()
