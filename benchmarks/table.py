"""
Show results: ratios first, times beside them.

A ratio says how many times as fast a contender is: above 1 is faster. The nats-py that is compared
with is the better of its lines in that table.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from benchmarks.rows import JETSYNC, JETSYNC_PURE, JETSYNC_UVLOOP

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from benchmarks.measure import Result, Settings
    from benchmarks.rows import Row

LATENCY_HEAD = (
    "",
    "p50",
    "x nats-py",
    "x raw",
    "p99",
    "x nats-py",
    "x raw",
    "CPU/msg",
    "x nats-py",
)
OWN_HEAD = ("", "msg/s", "x first", "CPU/msg", "x first")
RATE_HEAD = ("", "msg/s", "x nats-py", "x raw", "CPU/msg", "x nats-py", "x raw")


def first(results: Sequence[Result], speed: Callable[[Result], float | None]) -> float | None:
    """
    Return the speed of the first line, for rows whose lines are compared with that.
    """
    return speed(results[0]) if results else None


def best(
    results: Sequence[Result], peer: str, speed: Callable[[Result], float | None]
) -> float | None:
    """
    Return the highest speed among the lines of one peer.
    """
    speeds = [speed(result) for result in results if result.contender.peer == peer]
    return max((value for value in speeds if value is not None), default=None)


def p50_speed(result: Result) -> float | None:
    """
    Return median calls per second.
    """
    return None if result.p50 is None else 1 / result.p50


def p99_speed(result: Result) -> float | None:
    """
    Return slow calls per second.
    """
    return None if result.p99 is None else 1 / result.p99


def cpu_speed(result: Result) -> float | None:
    """
    Return messages per CPU second.
    """
    return None if not result.cpu else 1 / result.cpu


def rate_speed(result: Result) -> float | None:
    """
    Return messages per second.
    """
    return result.rate


def render(row: Row, results: Sequence[Result], heading: str) -> str:
    """
    Return the table of one row.
    """

    def ratios(result: Result, speed: Callable[[Result], float | None], *peers: str) -> list[str]:
        own = speed(result)
        cells = []
        for peer in peers:
            other = first(results, speed) if row.own else best(results, peer, speed)
            cells.append("-" if own is None or other is None else f"{own / other:.2f}")
        return cells

    both = ("first",) if row.own else ("nats_py", "raw_socket")
    head = LATENCY_HEAD if row.latency else OWN_HEAD if row.own else RATE_HEAD
    lines = [list(head)]
    notes = []
    for result in results:
        label = result.contender.label
        if not result.samples:
            notes.append(f"  {label}: {result.note}")
            continue
        if result.note:
            notes.append(f"  {label}: stopped early: {result.note}")
        cpu = [micro(result.cpu)]
        if row.latency:
            cells = [micro(result.p50), *ratios(result, p50_speed, *both)]
            cells += [micro(result.p99), *ratios(result, p99_speed, *both)]
            cells += [*cpu, *ratios(result, cpu_speed, "nats_py")]
        else:
            cells = [f"{result.rate:,.0f}", *ratios(result, rate_speed, *both)]
            cells += [*cpu, *ratios(result, cpu_speed, *both)]
        lines.append([label, *cells])
    return "\n".join([heading, *aligned(lines), *notes])


def summary(rows: Sequence[tuple[Row, Sequence[Result]]]) -> str:
    """
    Return one line per row: jetsync, its speed beside the raw socket and nats-py, and the CPU time
    of both variants of jetsync.

    It is jetsync on uvloop, or on asyncio's own loop if uvloop is not installed.
    """
    lines = [["", "jetsync", "raw socket", "share of raw", "x nats-py", "CPU/msg", "pure Python"]]
    for row, results in rows:
        speed = p50_speed if row.latency else rate_speed
        raw, nats_py = (best(results, peer, speed) for peer in ("raw_socket", "nats_py"))
        by = {result.contender.label: result for result in results if result.samples}
        used = by.get(JETSYNC_UVLOOP.label) or by.get(JETSYNC.label)
        pure = by.get(JETSYNC_PURE.label)
        own = used and speed(used)

        def shown(value: float | None, *, latency: bool = row.latency) -> str:
            if not value:
                return "-"
            return micro(1 / value) if latency else f"{value:,.0f} msg/s"

        ratios = [f"{own / other:.2f}" if own and other else "-" for other in (raw, nats_py)]
        cpu = [micro(result and result.cpu) for result in (used, pure)]
        lines.append([row.name, shown(own), shown(raw), *ratios, *cpu])
    return "\n".join(aligned(lines))


def cpu(rows: Sequence[tuple[Row, Sequence[Result]]]) -> str:
    """
    Return one line per row: the CPU time of each contender and of the server for one message.
    """
    labels = list(dict.fromkeys(r.contender.label for _, results in rows for r in results))
    lines = [["client + server, us", *labels]]
    for row, results in rows:
        by = {result.contender.label: result for result in results if result.samples}
        cells = [row.name]
        for found in map(by.get, labels):
            times = [] if found is None else [tenths(found.cpu), tenths(found.server_cpu)]
            cells.append(" + ".join(times) or "-")
        lines.append(cells)
    return "\n".join(aligned(lines))


def tenths(seconds: float | None) -> str:
    """
    Return a time in microseconds, without the unit.
    """
    return "?" if seconds is None else f"{seconds * 1e6:.1f}"


def aligned(lines: Sequence[Sequence[str]], left: int = 1) -> list[str]:
    """
    Return the lines of a table, of which the first *left* columns are flush left.
    """
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if place < left else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]


def to_json(row: Row, results: Sequence[Result]) -> dict[str, Any]:
    """
    Return everything about one row, single samples included.
    """
    speed = p50_speed if row.latency else rate_speed
    nats_py, raw = (best(results, peer, speed) for peer in ("nats_py", "raw_socket"))
    base = first(results, speed)
    lines = []
    for result in results:
        own = speed(result)
        lines.append(
            {
                "contender": result.contender.label,
                "note": result.note,
                "rate": result.rate,
                "p50": result.p50,
                "p99": result.p99,
                "p999": result.p999,
                "background": result.background,
                "cpu_per_message": result.cpu,
                "server_per_message": result.server_cpu,
                "times_nats_py": own / nats_py if own and nats_py else None,
                "times_raw": own / raw if own and raw else None,
                "times_first": own / base if row.own and own and base else None,
                "samples": [vars(sample) for sample in result.samples],
            }
        )
    return {"row": row.name, "title": row.title, "lines": lines}


def save(
    path: Path, server: str, machine: str, settings: Settings, rows: Sequence[dict[str, Any]]
) -> None:
    """
    Write a run to a file, from which `page` and `picture` read it.
    """
    run = {"server": server, "machine": machine, "settings": vars(settings), "rows": rows}
    path.write_text(json.dumps(run, indent=1) + "\n")


def micro(seconds: float | None) -> str:
    """
    Return a time in microseconds.
    """
    return "-" if seconds is None else f"{seconds * 1e6:.1f} us"
