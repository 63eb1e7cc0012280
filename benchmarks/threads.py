"""
Measure single calls from 1 to 64 threads at once: ``python -m benchmarks threads [options]``.

Each call waits for its answer: the ack of a publish, or the last message of a subject.
"""

from __future__ import annotations

import argparse
import os
import platform
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.compare import progress
from benchmarks.latency import render
from benchmarks.measure import Settings, run_row
from benchmarks.rows import (
    JETSYNC_UVLOOP,
    NATS_GO,
    NATS_PY_UVLOOP,
    NATSIO,
    NATSRPY,
    WORKER,
    Contender,
    Row,
    present,
)
from benchmarks.table import save, to_json
from jetsync.devserver import DevServer

if TYPE_CHECKING:
    from collections.abc import Sequence

CALLERS = (1, 4, 16, 64)
CALLS = ("publish", "get_last")

EACH = Contender("jetsync, a client per thread", "jetsync", {"loop": "uvloop", "each": True})

CONTENDERS = (
    Contender("raw socket, one per thread", "raw_socket"),
    NATS_PY_UVLOOP,
    NATSRPY,
    NATSIO,
    NATS_GO,
    JETSYNC_UVLOOP,
    EACH,
)

ROWS = tuple(
    Row(
        f"threads_{call}_{callers}",
        f"{call} from {callers} threads",
        "direct" if call == "get_last" else "publish",
        latency=True,
        stream_config={"allow_direct": True},
        extra=CONTENDERS,
        own=True,
        work="concurrent",
        options={"callers": callers, "bulk": False, "call": call},
    )
    for call in CALLS
    for callers in CALLERS
)


def arguments(given: Sequence[str]) -> argparse.Namespace:
    """
    Read the command line.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks threads", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="turns of each contender (3)")
    parser.add_argument("--calls", type=int, default=8000, help="calls of all threads (8000)")
    parser.add_argument("--size", type=int, default=128, help="payload bytes (128)")
    parser.add_argument("--storage", choices=["file", "memory"], default="file")
    parser.add_argument("--contenders", default="", help="comma-separated parts of their labels")
    parser.add_argument(
        "--python",
        action="append",
        default=[],
        metavar="NAME=PATH",
        help="another interpreter that has what jetsync needs; may be repeated",
    )
    parser.add_argument("--go", help="the program of nats.go; see README.md")
    parser.add_argument("--natsio", help="an interpreter that has natsio (this one)")
    parser.add_argument("--server", help="nats-server version (the installed one)")
    parser.add_argument("--json", type=Path, help="write all samples to this file, too")
    return parser.parse_args(given)


def others(pythons: Sequence[str]) -> list[Contender]:
    """
    Return jetsync with other interpreters, which are given as ``NAME=PATH``.
    """
    found = []
    for python in pythons:
        name, _, path = python.partition("=")
        for each in (JETSYNC_UVLOOP, EACH):
            label = f"{each.label.removesuffix(', uvloop')}, Python {name}"
            # An interpreter may lack uvloop.
            options = {**each.options, "loop": "auto"}
            found.append(replace(each, label=label, options=options, command=(path, *WORKER)))
    return found


def main(given: Sequence[str]) -> int:
    """
    Run all rows and print a table for each call.
    """
    asked = arguments(given)
    settings = Settings(
        rounds=asked.rounds,
        single=asked.calls,
        bulk=asked.calls,
        size=asked.size,
        window=1,
        batch=1,
        storage=asked.storage,
    )
    parts = asked.contenders.split(",")
    measured = []
    with DevServer(asked.server) as server:
        machine = f"Python {platform.python_version()}, {os.cpu_count()} cores"
        print(f"nats-server {server.version}, {machine}, {settings.size} bytes", flush=True)
        for row in ROWS:
            full = replace(row, extra=(*row.extra, *others(asked.python)))
            all_of_them = present(full.contenders, go=asked.go, natsio=asked.natsio)
            chosen = [each for each in all_of_them if any(part in each.label for part in parts)]
            measured.append((row, run_row(server, row, chosen, settings, progress)))
        for call in CALLS:
            some = [(row, results) for row, results in measured if row.options["call"] == call]
            print(f"\n{call}: median of {settings.rounds} rounds\n{render(some)}")
        if asked.json:
            save(
                asked.json,
                server.version,
                machine,
                settings,
                [to_json(row, results) for row, results in measured],
            )
    return 0
