"""
The picture of the start page: jetsync and nats.go next to nats-py.

``python -m benchmarks.speed`` draws ``docs/speed.svg`` from ``results/jobs.json``, a run of
``python -m benchmarks`` with ``--go``.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from html import escape
from pathlib import Path

from benchmarks.rows import JETSYNC_UVLOOP, NATS_GO

ROOT = Path(__file__).parents[1]
RUN = ROOT / "benchmarks" / "results" / "jobs.json"
PICTURE = ROOT / "docs" / "speed.svg"

JOBS = {
    "publish_many": "publish many",
    "publisher": "publish, with futures",
    "fetch_ack": "fetch and ack",
    "consume_ack": "consume and ack",
    "ordered": "read in order",
    "publish": "publish one by one",
}
"""Rows of the benchmarks, with their names in the picture."""

WIDTH, NAMES, VALUES = 520, 160, 44
BAR, GAP, HEAD, LEGEND = 13, 13, 44, 34

STYLE = """
text { font: 13px system-ui, sans-serif; fill: #1f2328; }
.title { font-weight: 600; font-size: 14px; }
.value { font-size: 11px; }
.card { fill: #ffffff; stroke: #d1d9e0; }
.jetsync { fill: #1f6feb; }
.go { fill: #3fa7a0; }
.py { fill: #b1bac4; }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3; }
.card { fill: #161b22; stroke: #3d444d; }
.jetsync { fill: #4c8dff; }
.go { fill: #3fa7a0; }
.py { fill: #6e7681; }
}
""".strip()


@dataclass(frozen=True)
class Job:
    """
    Hold how many times as fast as nats-py both others are.
    """

    name: str
    jetsync: float
    go: float


def jobs() -> list[Job]:
    """
    Return the jobs of the picture.
    """
    run = json.loads(RUN.read_text("utf-8"))
    times = {
        (row["row"], line["contender"]): line["times_nats_py"]
        for row in run["rows"]
        for line in row["lines"]
    }
    return [
        Job(name, times[row, JETSYNC_UVLOOP.label], times[row, NATS_GO.label])
        for row, name in JOBS.items()
    ]


def draw(found: list[Job]) -> str:
    """
    Return the picture as SVG. It has colours for light and dark screens.
    """
    step = 3 * BAR + GAP
    height = HEAD + step * len(found) + LEGEND
    scale = (WIDTH - NAMES - VALUES) / max(max(job.jetsync, job.go) for job in found)
    box = f'viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
    pieces = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {box} role="img">',
        "<title>How many times as fast as nats-py jetsync and nats.go are</title>",
        f"<style>{STYLE}</style>",
        f'<rect class="card" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="8"/>',
        '<text class="title" x="16" y="28">Speed, nats-py = 1</text>',
    ]
    for place, job in enumerate(found):
        top = HEAD + place * step
        middle = top + 1.5 * BAR + 4
        pieces.append(
            f'<text x="{NAMES - 10}" y="{middle:g}" text-anchor="end">{escape(job.name)}</text>'
        )
        bars = [("jetsync", job.jetsync), ("go", job.go), ("py", 1.0)]
        for number, (kind, value) in enumerate(bars):
            y, length = top + number * BAR, value * scale
            end, line = NAMES + length + 5, y + BAR - 3
            pieces += [
                f'<rect class="{kind}" x="{NAMES}" y="{y}" width="{length:.1f}" height="11"/>',
                f'<text class="value" x="{end:.1f}" y="{line}">{value:.1f}</text>',
            ]
    base = height - 16
    legend = [(150, "jetsync", "jetsync"), (250, "go", "nats.go"), (350, "py", "nats-py")]
    for left, kind, name in legend:
        pieces += [
            f'<rect class="{kind}" x="{left}" y="{base - 10}" width="12" height="12"/>',
            f'<text x="{left + 18}" y="{base}">{name}</text>',
        ]
    return "\n".join([*pieces, "</svg>", ""])


def main() -> int:
    """
    Write the picture.
    """
    PICTURE.write_text(draw(jobs()), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
