"""
jetsync without Spark, in processes of its own: ``python -m benchmarks.spark.plain JOB URL ...``.

It connects, says that it is ready, works when a line comes, and says when it has done so.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import jetsync

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Plain"]


class Plain:
    """
    Processes that work at the same time.

    Args:
        processes: How many.
        job: ``publish``, ``batches`` or ``scan``.
        arguments: Of the job.
    """

    def __init__(self, processes: int, job: str, *arguments: object) -> None:
        command = [sys.executable, "-m", __spec__.name, job, *map(str, arguments)]
        self._processes = [
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            for _ in range(processes)
        ]
        for each in self._processes:
            self._line(each)

    def run(self) -> float:
        """
        Let them work, and return the seconds until all have done.
        """
        begin = time.perf_counter()
        for each in self._processes:
            assert each.stdin is not None
            each.stdin.write("go\n")
            each.stdin.flush()
        for each in self._processes:
            self._line(each)
        return time.perf_counter() - begin

    def close(self) -> None:
        """
        End them.
        """
        for each in self._processes:
            each.communicate()

    @staticmethod
    def _line(process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        if not process.stdout.readline():
            raise RuntimeError(f"a process of plain Python ended with {process.wait()}")


def publish(js: jetsync.JetStream, stream: str, rows: str, size: str) -> None:
    """
    Publish rows by ``publish_many``, to the subjects that the DataFrame has.
    """
    del stream
    subjects = itertools.cycle([f"bench.{number}" for number in range(16)])
    payload = b"x" * int(size)
    js.publish_many((next(subjects), payload) for _ in range(int(rows)))


def batches(js: jetsync.JetStream, stream: str, rows: str, size: str) -> None:
    """
    Publish rows by ``publish_batch``, in chunks of 1000.
    """
    del stream
    payload = b"x" * int(size)
    for first in range(0, int(rows), 1000):
        chunk = range(first, min(first + 1000, int(rows)))
        js.publish_batch((f"bench.{number % 16}", payload) for number in chunk)


def scan(js: jetsync.JetStream, stream: str, rows: str) -> None:
    """
    Read a stream from its beginning to its end.
    """
    count = sum(1 for _ in js.stream(stream).scan())
    if count != int(rows):
        raise RuntimeError(f"{count} messages read, not {rows}")


def main(job: str, url: str, *arguments: str) -> None:
    """
    Do a job for each line.
    """
    jobs: dict[str, Callable[..., None]] = {"publish": publish, "batches": batches, "scan": scan}
    with jetsync.connect(url) as client:
        js = client.jetstream()
        print("ready", flush=True)
        for _ in sys.stdin:
            jobs[job](js, *arguments)
            print("done", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
