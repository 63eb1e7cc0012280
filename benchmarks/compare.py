"""
Compare jetsync with its peers, row by row: ``python -m benchmarks [--rows publish,fetch] ...``.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.measure import Settings, run_row
from benchmarks.rows import JOBS, ROWS, present
from benchmarks.table import cpu, render, save, summary, to_json
from jetsync._base import speedups
from jetsync.devserver import DevServer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.rows import Row


def arguments(given: Sequence[str]) -> argparse.Namespace:
    """
    Read the command line.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the messages, 3 rounds")
    names = ",".join(row.name for row in ROWS)
    parser.add_argument("--rows", help=f"all, or comma-separated (the first {len(JOBS)}): {names}")
    parser.add_argument("--contenders", help="comma-separated parts of their labels")
    parser.add_argument("--rounds", type=int, help="how often each contender has its turn (5)")
    parser.add_argument("--single", type=int, help="messages published one at a time (3000)")
    parser.add_argument("--bulk", type=int, help="messages of the other rows (100000)")
    parser.add_argument("--size", type=int, default=128, help="payload bytes (128)")
    parser.add_argument("--window", type=int, default=4096, help="unacknowledged publishes (4096)")
    parser.add_argument("--batch", type=int, default=1000, help="messages per fetch (1000)")
    parser.add_argument("--storage", choices=["file", "memory"], default="file")
    parser.add_argument("--server", help="nats-server version (the installed one)")
    parser.add_argument("--go", help="the program of nats.go; see README.md")
    parser.add_argument("--natsio", help="an interpreter that has natsio (this one)")
    parser.add_argument("--json", type=Path, help="write all samples to this file, too")
    return parser.parse_args(given)


def main(given: Sequence[str]) -> int:
    """
    Run the rows that were asked for and print their tables.
    """
    asked = arguments(given)
    rows = JOBS if asked.rows is None else ROWS if asked.rows == "all" else find(asked.rows)
    settings = Settings(
        rounds=asked.rounds or (3 if asked.quick else 5),
        single=asked.single or (300 if asked.quick else 3_000),
        bulk=asked.bulk or (10_000 if asked.quick else 100_000),
        size=asked.size,
        window=asked.window,
        batch=asked.batch,
        storage=asked.storage,
    )
    machine = f"Python {platform.python_version()}, {os.cpu_count()} cores"
    variant = f"jetsync: {speedups.VARIANT}"
    parts = asked.contenders.split(",") if asked.contenders else [""]
    tables, measured = [], []
    with DevServer(asked.server) as server:
        print(
            f"nats-server {server.version}, {machine}, {variant}; "
            "x: how many times as fast, above 1 is faster"
        )
        for row in rows:
            contenders = [
                contender
                for contender in present(row.contenders, go=asked.go, natsio=asked.natsio)
                if any(part in contender.label for part in parts)
            ]
            results = run_row(server, row, contenders, settings, progress)
            count = settings.count(row)
            heading = (
                f"\n{row.title}: {count:,} x {settings.size} bytes, {settings.storage} storage, "
                f"median of {settings.rounds} rounds"
            )
            print(render(row, results, heading), flush=True)
            tables.append(to_json(row, results))
            if not row.own:
                measured.append((row, results))
        if measured:
            print(f"\n{summary(measured)}\n\n{cpu(measured)}")
        if asked.json:
            save(asked.json, server.version, machine, settings, tables)
    return 0


def find(names: str) -> list[Row]:
    """
    Return the rows with these names, or whose names begin with one of them and an underscore.
    """
    found: list[Row] = []
    for name in names.split(","):
        some = [row for row in ROWS if row.name == name]
        some = some or [row for row in ROWS if row.name.startswith(f"{name}_")]
        if not some:
            sys.exit(f"there is no row {name}")
        found += some
    return found


def progress(text: str) -> None:
    """
    Show the progress if stderr is a terminal.
    """
    if sys.stderr.isatty():
        print(f"\r{text}\x1b[K", end="\r", file=sys.stderr, flush=True)
