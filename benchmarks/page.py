"""
Put the figures of saved runs into a page: ``python -m benchmarks page RUN.json [RUN.json ...]``.

Each table goes between two comments, such as ``<!-- jobs -->`` and ``<!-- jobs end -->``. A run of
``python -m benchmarks`` gives ``jobs`` and ``variants``, and with ``--go`` also ``go`` and ``cpu``.
A run with ``--rows plugins`` gives ``plugins``. A run of ``python -m benchmarks latency`` gives
``latency`` and ``latency_bulk``, and one of ``python -m benchmarks threads`` gives
``threads_publish`` and ``threads_get_last``.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.rows import (
    JETSYNC_PURE,
    JETSYNC_UVLOOP,
    NATS_GO,
    NATS_PY_UVLOOP,
    NATSIO,
    NATSRPY,
    RAW,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

PAGE = Path(__file__).parents[1] / "docs" / "performance.md"

OWN, PURE = JETSYNC_UVLOOP.label, JETSYNC_PURE.label


def main(given: Sequence[str]) -> int:
    """
    Write the tables of all runs into the page.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks page", description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path, help="files that were written with --json")
    parser.add_argument("--page", type=Path, default=PAGE, help="the page (docs/performance.md)")
    asked = parser.parse_args(given)
    text = asked.page.read_text("utf-8")
    for path in asked.runs:
        for name, lines in tables(json.loads(path.read_text("utf-8"))).items():
            begin, end = f"<!-- {name} -->", f"<!-- {name} end -->"
            new = "\n".join([begin, "", *lines, "", end])
            text, count = re.subn(f"{begin}.*?{end}", lambda _: new, text, flags=re.DOTALL)  # noqa: B023
            print(f"{path}: {name}{'' if count else ' has no place in the page'}")
    asked.page.write_text(text, "utf-8")
    return 0


def tables(run: dict[str, Any]) -> dict[str, list[str]]:
    """
    Return the tables of one run by their names.
    """
    settings = run["settings"]
    note = (
        f"{run['machine'].capitalize()}, nats-server {run['server']}, {settings['size']} bytes, "
        f"{settings['storage']} storage, median of {settings['rounds']} rounds."
    )
    rows = run["rows"]
    if rows[0]["row"].startswith("latency"):
        return {
            "latency": [*latencies([row for row in rows if "_bulk" not in row["row"]]), "", note],
            "latency_bulk": latencies([row for row in rows if "_bulk" in row["row"]]),
        }
    if rows[0]["row"].startswith("plugins"):
        return {"plugins": [*plugins(rows), "", note]}
    if rows[0]["row"].startswith("threads"):
        return {
            f"threads_{call}": [*latencies([row for row in rows if call in row["row"]]), "", note]
            for call in ("publish", "get_last")
        }
    found = {
        "jobs": (jobs, {OWN, RAW.label}),
        "variants": (variants, {OWN, PURE}),
        "go": (go, {OWN, PURE, RAW.label, NATS_GO.label}),
        "cpu": (cpu, {NATS_GO.label}),
    }
    return {
        name: [*make(rows), "", note]
        for name, (make, needed) in found.items()
        if all(needed <= {line["contender"] for line in row["lines"]} for row in rows)
    }


def markdown(head: Sequence[str], lines: Sequence[Sequence[str]], left: int = 1) -> list[str]:
    """
    Return a table, of which the first *left* columns are flush left.
    """
    rule = ["---" if place < left else "---:" for place in range(len(head))]
    return [f"| {' | '.join(cells)} |" for cells in (head, rule, *lines)]


def jobs(rows: Sequence[dict[str, Any]]) -> list[str]:
    """
    Return a line per row: jetsync, the raw socket, and the ratios.
    """
    lines = []
    for row in rows:
        by = {line["contender"]: line for line in row["lines"]}
        own, raw = by[OWN], by[RAW.label]
        if own["p50"] is None:
            cells = [f"{each['rate']:,.0f}\N{NO-BREAK SPACE}msg/s" for each in (own, raw)]
        else:
            cells = [f"{each['p50'] * 1e6:.0f}\N{NO-BREAK SPACE}µs" for each in (own, raw)]
        lines.append(
            [
                f"`{row['row']}`",
                row["title"],
                *cells,
                ratio(own["times_raw"]),
                ratio(own["times_nats_py"]),
                f"{own['cpu_per_message'] * 1e6:.1f}\N{NO-BREAK SPACE}µs",
            ]
        )
    head = ["row", "job", "jetsync", "raw socket", "share of raw", "x nats-py", "CPU"]
    return markdown(head, lines, 2)


def variants(rows: Sequence[dict[str, Any]]) -> list[str]:
    """
    Return a line per row: the CPU time per message of both variants, and how they compare.
    """
    lines = []
    for row in rows:
        by = {line["contender"]: line for line in row["lines"]}
        own, pure = by[OWN], by[PURE]
        cpu = [line["cpu_per_message"] for line in (own, pure)]
        times = [f"{each * 1e6:.2f}\N{NO-BREAK SPACE}µs" for each in cpu]
        lines.append([f"`{row['row']}`", *times, ratio(cpu[0] / cpu[1])])
    head = ["row", "CPU, compiled", "CPU, pure Python", "share of CPU"]
    return markdown(head, lines)


def cpu(rows: Sequence[dict[str, Any]]) -> list[str]:
    """
    Return a line per row: the CPU time of each contender and of the server for one message.
    """
    names = {
        OWN: "jetsync",
        PURE: "pure Python",
        RAW.label: "raw socket",
        NATS_GO.label: "nats.go",
        NATS_PY_UVLOOP.label: "nats-py",
        NATSRPY.label: "natsrpy",
        NATSIO.label: "natsio",
    }
    lines = []
    for row in rows:
        by = {line["contender"]: line for line in row["lines"] if line["rate"] is not None}
        cells = [f"`{row['row']}`"]
        for line in map(by.get, names):
            times = [line[key] for key in ("cpu_per_message", "server_per_message")] if line else []
            cells.append(" + ".join(f"{each * 1e6:.1f}" for each in times if each is not None))
        lines.append(cells)
    return markdown(["row", *names.values()], lines)


def go(rows: Sequence[dict[str, Any]]) -> list[str]:
    """
    Return a line per row: how many times as fast as nats.go the others are.
    """
    labels = OWN, PURE, RAW.label
    lines = []
    for row in rows:
        by = {line["contender"]: speed(line) for line in row["lines"] if line["rate"] is not None}
        ratios = [ratio(by[label] / by[NATS_GO.label]) for label in labels]
        lines.append([f"`{row['row']}`", *ratios])
    return markdown(["row", "jetsync", "pure Python", "raw socket"], lines)


def speed(line: dict[str, Any]) -> float:
    """
    Return the rate of a line, or that of calls that each take the median.
    """
    return float(line["rate"] if line["p50"] is None else 1 / line["p50"])


def latencies(rows: Sequence[dict[str, Any]]) -> list[str]:
    """
    Return a line per number of threads and contender.
    """
    lines = []
    for row in rows:
        for line in row["lines"]:
            if line["rate"] is None:
                continue
            times = [line["p50"], line["p99"], line["p999"]]
            lines.append(
                [
                    re.sub(r"\D", "", row["row"]),
                    line["contender"],
                    f"{line['rate']:,.0f}",
                    *("-" if each is None else f"{each * 1e3:.2f}" for each in times),
                    *([f"{line['background']:,.0f}"] if line["background"] else []),
                ]
            )
    head = ["threads", "", "calls/s", "p50, ms", "p99, ms", "p99.9, ms"]
    return markdown(head if len(lines[0]) == len(head) else [*head, "bulk msg/s"], lines, 2)


def plugins(rows: Sequence[dict[str, Any]]) -> list[str]:
    """
    Return a line per set of plugins, with the rate and the CPU of each row.
    """
    lines: dict[str, list[str]] = {}
    for row in rows:
        for line in row["lines"]:
            if line["rate"] is not None and not line["contender"].startswith("raw socket"):
                lines.setdefault(line["contender"], []).extend(
                    [
                        ratio(line["times_first"]),
                        f"{line['cpu_per_message'] * 1e6:.1f}\N{NO-BREAK SPACE}µs",
                    ]
                )
    head = [""]
    for row in rows:
        head += [f"`{row['row'].removeprefix('plugins_')}`", "CPU"]
    return markdown(head, [[name, *cells] for name, cells in lines.items()])


def ratio(value: float | None) -> str:
    """
    Return a ratio with two decimals.
    """
    return "" if value is None else f"{value:.2f}"
