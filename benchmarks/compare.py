"""
Compare jetsync with its peers, row by row: ``python -m benchmarks [--rows publish,fetch] ...``.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.measure import Settings, run_row
from benchmarks.rows import ROWS
from benchmarks.table import render, to_json
from jetsync.devserver import DevServer

if TYPE_CHECKING:
    from collections.abc import Sequence


def arguments(given: Sequence[str]) -> argparse.Namespace:
    """
    Read the command line.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the messages, 3 rounds")
    parser.add_argument("--rows", help=f"comma-separated: {','.join(row.name for row in ROWS)}")
    parser.add_argument("--contenders", help="comma-separated parts of their labels")
    parser.add_argument("--rounds", type=int, help="how often each contender has its turn (5)")
    parser.add_argument("--single", type=int, help="messages published one at a time (3000)")
    parser.add_argument("--bulk", type=int, help="messages of the other rows (100000)")
    parser.add_argument("--size", type=int, default=128, help="payload bytes (128)")
    parser.add_argument("--window", type=int, default=4096, help="unacknowledged publishes (4096)")
    parser.add_argument("--batch", type=int, default=1000, help="messages per fetch (1000)")
    parser.add_argument("--storage", choices=["file", "memory"], default="file")
    parser.add_argument("--server", help="nats-server version (the installed one)")
    parser.add_argument("--json", type=Path, help="write all samples to this file, too")
    return parser.parse_args(given)


def main(given: Sequence[str]) -> int:
    """
    Run the rows that were asked for and print their tables.
    """
    asked = arguments(given)
    known = [row.name for row in ROWS]
    names = []
    for name in asked.rows.split(",") if asked.rows else known:
        # The rows of a group begin with its name.
        found = [name] if name in known else [row for row in known if row.startswith(f"{name}_")]
        if not found:
            print(f"there is no row {name}", file=sys.stderr)
            return 2
        names += found
    settings = Settings(
        rounds=asked.rounds or (3 if asked.quick else 5),
        single=asked.single or (300 if asked.quick else 3_000),
        bulk=asked.bulk or (10_000 if asked.quick else 100_000),
        size=asked.size,
        window=asked.window,
        batch=asked.batch,
        storage=asked.storage,
    )
    parts = asked.contenders.split(",") if asked.contenders else [""]
    tables = []
    with DevServer(asked.server) as server:
        print(
            f"nats-server {server.version}, Python {platform.python_version()}, "
            f"{os.cpu_count()} cores; x: how many times as fast, above 1 is faster"
        )
        for row in ROWS:
            if row.name not in names:
                continue
            contenders = [
                contender
                for contender in row.contenders
                if any(part in contender.label for part in parts)
            ]
            results = run_row(server.url, row, contenders, settings, progress)
            count = settings.count(row)
            heading = (
                f"\n{row.title}: {count:,} x {settings.size} bytes, {settings.storage} storage, "
                f"median of {settings.rounds} rounds"
            )
            print(render(row, results, heading), flush=True)
            tables.append(to_json(row, results))
        if asked.json:
            run = {"server": server.version, "settings": vars(settings), "rows": tables}
            asked.json.write_text(json.dumps(run, indent=2) + "\n")
    return 0


def progress(text: str) -> None:
    """
    Say what is going on, where somebody may be looking.
    """
    if sys.stderr.isatty():
        print(f"\r{text}\x1b[K", end="\r", file=sys.stderr, flush=True)
