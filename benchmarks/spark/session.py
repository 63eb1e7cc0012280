"""
The Spark session of the benchmarks, and the CPU time of what it starts.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import attrs
from pyspark.sql import SparkSession

import jetsync_spark
from benchmarks.spark import tasks

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["KINDS", "PROCESSES", "cpu_seconds", "session", "worker_seconds"]

ROOT: Final = Path(__file__).parents[2]
PROCESSES: Final = 2
"""Threads of Spark, and processes of plain Python that publish beside it."""

KINDS: Final = ("java", "python", "server")
"""The programs whose CPU time is shown: Spark, its workers and plain Python, and nats-server."""

KIND_OF: Final = {"java": "java", "nats-server": "server"}
"""The kind of a process by its name. All others are Python."""

WORKER: Final = "pyspark.daemon pyspark.worker"
"""In the command of the workers for tasks. Those that plan have another one."""


@contextlib.contextmanager
def session(folder: str, threads: int = PROCESSES) -> Iterator[SparkSession]:
    """
    Yield a session that runs so many tasks at once, with its tables in *folder*.
    """
    # Workers have to find these modules, and to be this interpreter.
    paths = [str(ROOT), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.master(f"local[{threads}]")
        .appName("benchmarks")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.warehouse.dir", folder)
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    jetsync_spark.register(spark)
    spark.dataSource.register(tasks.Ceiling)
    try:
        yield spark
    finally:
        spark.stop()


@attrs.frozen
class Process:
    """
    A process that this one has started, however far down.
    """

    name: str
    parent: str
    seconds: float
    """The CPU time of its threads, and of children that have ended."""

    command: str


def cpu_seconds() -> dict[str, float]:
    """
    Return the CPU time of this process and all that it started.
    """
    sums = dict.fromkeys(KINDS, 0.0)
    for each in _processes().values():
        sums[KIND_OF.get(each.name, "python")] += each.seconds
    return sums


def worker_seconds() -> list[float]:
    """
    Return the CPU time of each Python worker that runs tasks.
    """
    found = _processes()
    # The daemon of the workers has the same command. Its parent is Java.
    return [
        each.seconds
        for each in found.values()
        if WORKER in each.command and WORKER in found[each.parent].command
    ]


def _processes() -> dict[str, Process]:
    """Return this process and all that it started, by their ids; Linux only."""
    known: dict[str, Process] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            # The name is in brackets and may contain spaces.
            before, _, after = (folder / "stat").read_text().rpartition(")")
            fields = after.split()
            known[folder.name] = Process(
                before.partition("(")[2],
                fields[1],
                sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK"),
                (folder / "cmdline").read_text().replace("\0", " "),
            )
    own = {str(os.getpid())}
    while more := {pid for pid, each in known.items() if each.parent in own} - own:
        own |= more
    return {pid: known[pid] for pid in own}
