"""
Measure single publishes from several threads at once: ``python -m benchmarks latency [options]``.

Each call waits for its ack. Half of the rows have a bulk publisher in the same process.
"""

from __future__ import annotations

import argparse
import os
import platform
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.compare import progress
from benchmarks.measure import Result, Settings, run_row
from benchmarks.rows import JETSYNC_UVLOOP, NATS_PY_UVLOOP, NATSRPY, Contender, Row
from benchmarks.table import aligned, micro, save, to_json
from jetsync.devserver import DevServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

CALLERS = (1, 4, 16)

CONTENDERS = (
    Contender("raw socket, one per thread", "raw_socket"),
    Contender("raw socket, one for all", "raw_socket", {"one": True}),
    NATS_PY_UVLOOP,
    NATSRPY,
    JETSYNC_UVLOOP,
)
TWO_CLIENTS = Contender("jetsync, two clients", "jetsync", {"loop": "uvloop", "two": True})

ROWS = tuple(
    Row(
        f"latency_{callers}{'_bulk' if bulk else ''}",
        f"publish from {callers} threads{', beside a bulk publish' if bulk else ''}",
        "publish",
        latency=True,
        extra=(*CONTENDERS, TWO_CLIENTS) if bulk else CONTENDERS,
        own=True,
        work="concurrent",
        options={"callers": callers, "bulk": bulk},
    )
    for bulk in (False, True)
    for callers in CALLERS
)

HEAD = ("threads", "", "calls/s", "p50", "p99", "p99.9", "bulk msg/s")


def arguments(given: Sequence[str]) -> argparse.Namespace:
    """
    Read the command line.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks latency", description=__doc__)
    add_arguments(parser, calls=4000)
    parser.add_argument("--window", type=int, default=4000, help="of the bulk publish (4000)")
    return parser.parse_args(given)


def add_arguments(parser: argparse.ArgumentParser, *, calls: int) -> None:
    """
    Add the arguments of every command that measures calls from several threads.
    """
    parser.add_argument("--rounds", type=int, default=3, help="turns of each contender (3)")
    parser.add_argument("--calls", type=int, default=calls, help=f"calls of all threads ({calls})")
    parser.add_argument("--size", type=int, default=128, help="payload bytes (128)")
    parser.add_argument("--storage", choices=["file", "memory"], default="file")
    parser.add_argument("--contenders", default="", help="comma-separated parts of their labels")
    parser.add_argument("--server", help="nats-server version (the installed one)")
    parser.add_argument("--json", type=Path, help="write all samples to this file, too")


def main(given: Sequence[str]) -> int:
    """
    Run all rows and print a table without a bulk publisher and one with it.
    """
    asked = arguments(given)
    tables = {"publish": False, "publish, beside a bulk publish": True}
    run(asked, ROWS, lambda row: row.contenders, "bulk", tables, window=asked.window)
    return 0


def run(
    asked: argparse.Namespace,
    rows: Sequence[Row],
    contenders: Callable[[Row], Iterable[Contender]],
    option: str,
    tables: Mapping[str, object],
    *,
    window: int,
) -> None:
    """
    Run rows on one server, and print a table for each value of an option of theirs.

    Args:
        asked: What the command line says.
        rows: The rows.
        contenders: Returns those of a row.
        option: The name of the option.
        tables: Its values, by the titles of their tables.
        window: How many messages of a bulk publish are in flight.
    """
    settings = Settings(
        rounds=asked.rounds,
        single=asked.calls,
        bulk=asked.calls,
        size=asked.size,
        window=window,
        batch=1,
        storage=asked.storage,
    )
    parts = asked.contenders.split(",")
    measured = []
    with DevServer(asked.server) as server:
        machine = f"Python {platform.python_version()}, {os.cpu_count()} cores"
        print(f"nats-server {server.version}, {machine}, {settings.size} bytes", flush=True)
        for row in rows:
            chosen = [each for each in contenders(row) if any(part in each.label for part in parts)]
            measured.append((row, run_row(server, row, chosen, settings, progress)))
        for title, value in tables.items():
            some = [(row, results) for row, results in measured if row.options[option] == value]
            print(f"\n{title}: median of {settings.rounds} rounds\n{render(some)}")
        if asked.json:
            save(
                asked.json,
                server.version,
                machine,
                settings,
                [to_json(row, results) for row, results in measured],
            )


def render(rows: Sequence[tuple[Row, Sequence[Result]]]) -> str:
    """
    Return the table of some rows.
    """
    lines, notes = [list(HEAD)], []
    for row, results in rows:
        for result in results:
            label = result.contender.label
            if result.note:
                notes.append(f"  {row.name}, {label}: {result.note}")
            if not result.samples:
                continue
            values = [result.p50, result.p99, result.p999]
            bulk = "" if result.background is None else f"{result.background:,.0f}"
            cells = [f"{result.rate:,.0f}", *map(micro, values), bulk]
            lines.append([str(row.options["callers"]), label, *cells])
    return "\n".join([*aligned(lines, 2), *notes])
