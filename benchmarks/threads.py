"""
Measure single calls from 1 to 64 threads at once: ``python -m benchmarks threads [options]``.

Each call waits for its answer: the ack of a publish, or the last message of a subject.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import TYPE_CHECKING

from benchmarks.latency import add_arguments, run
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
    add_arguments(parser, calls=8000)
    parser.add_argument(
        "--python",
        action="append",
        default=[],
        metavar="NAME=PATH",
        help="another interpreter that has what jetsync needs; may be repeated",
    )
    parser.add_argument("--go", help="the program of nats.go; see README.md")
    parser.add_argument("--natsio", help="an interpreter that has natsio (this one)")
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

    def contenders(row: Row) -> list[Contender]:
        full = replace(row, extra=(*row.extra, *others(asked.python)))
        return present(full.contenders, go=asked.go, natsio=asked.natsio)

    run(asked, ROWS, contenders, "call", {call: call for call in CALLS}, window=1)
    return 0
