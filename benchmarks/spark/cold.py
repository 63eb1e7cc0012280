"""
The CPU time of the first task of a Python worker: ``python -m benchmarks.spark.cold``, 3 minutes.

Spark ends workers that are idle for a minute, so many tasks begin in a new one. Each round starts
the session again, so that the workers are new.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from typing import TYPE_CHECKING, Final

import jetsync
from benchmarks.spark.session import PROCESSES, session, worker_seconds
from jetsync.devserver import DevServer

if TYPE_CHECKING:
    from collections.abc import Mapping

STREAM: Final = "BENCH_COLD"
ROWS: Final = 100


def first_task(folder: str, form: str, options: Mapping[str, object]) -> float:
    """
    Return the seconds of CPU of a new worker that reads a few rows.
    """
    with session(folder) as spark:
        rows = spark.read.format(form).options(**options).load()
        rows.write.format("noop").mode("overwrite").save()
        return statistics.mean(worker_seconds())


def main() -> int:
    """
    Measure both sources in turns and print the medians.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spark.cold", description=__doc__)
    parser.add_argument("--rounds", type=int, default=7, help="(%(default)s)")
    rounds = parser.parse_args().rounds
    with (
        tempfile.TemporaryDirectory() as folder,
        DevServer() as server,
        jetsync.connect(server.url, name="benchmarks.spark") as client,
    ):
        js = client.jetstream()
        js.create_stream(STREAM, subjects=["cold"], allow_direct=True)
        js.publish_many(("cold", b"x" * 128) for _ in range(ROWS))
        lines = {
            "ceiling: read": ("ceiling", {"size": 128, "rows": ROWS, "partitions": PROCESSES}),
            "read": (
                "jetstream",
                {"servers": server.url, "stream": STREAM, "minPartitions": PROCESSES},
            ),
        }
        samples: dict[str, list[float]] = {label: [] for label in lines}
        for _ in range(rounds):
            for label, (form, options) in lines.items():
                samples[label].append(first_task(folder, form, options))
    print("CPU seconds of a worker after its first task, medians of the rounds")
    for label, each in samples.items():
        shown = ", ".join(f"{sample:.2f}" for sample in each)
        print(f"{label:<16}{statistics.median(each):>6.2f}    {shown}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
