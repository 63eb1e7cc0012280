"""
The picture of the publishing rows, from runs that were saved with ``--json``, one per size.

``python -m benchmarks.picture 16.json 128.json --output rates.svg`` draws a panel per run: for each
way of publishing a bar for jetsync, before that of the raw socket. The same figures are printed as
a table.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

RAW = "raw socket"
JETSYNC = "jetsync, uvloop"

WAYS = (
    ("publish", "publish", JETSYNC),
    ("publisher", "publisher", JETSYNC),
    ("publish_many", "publish_many", JETSYNC),
    ("publish_batch", "publish_batch", JETSYNC),
    ("fast_publisher", "fast_add_many", JETSYNC),
)
"""Names in the picture, with the row and its line that is compared with the raw socket's."""

ONE_BY_ONE = (
    ("batch.add", "atomic_add", JETSYNC),
    ("fast.add", "fast_add", JETSYNC),
)
"""Rows that only the table has."""

WIDTH = 760
COLUMNS = 2
PANEL_WIDTH = WIDTH // COLUMNS
NAMES = 112
"""Pixels for the names of the ways."""

VALUES = 104
"""Pixels for the figures after the bars."""

BAR, STEP, HEAD = 15, 24, 42
PANEL_HEIGHT = HEAD + STEP * len(WAYS) + 12
LEGEND = 30

STYLE = """
text { font: 12px system-ui, sans-serif; fill: #24292f; }
.size { font-weight: 600; font-size: 13px; }
.value { fill: #57606a; font-size: 11px; }
.raw { fill: #d8dee4; }
.jetsync { fill: #1f6feb; }
""".strip()


@dataclass(frozen=True)
class Bar:
    """
    Hold one way of publishing at one size, in messages per second.
    """

    name: str
    jetsync: float
    raw: float


@dataclass(frozen=True)
class Panel:
    """
    Hold one run.
    """

    size: int
    bars: Sequence[Bar]
    """Those of the picture."""

    more: Sequence[Bar]
    """Those of the table alone."""


def panel_of(run: dict[str, Any]) -> Panel:
    """
    Pick the lines that are drawn from a saved run; rows that it does not have are left out.
    """
    rows = {
        row["row"]: {line["contender"]: line["rate"] for line in row["lines"]}
        for row in run["rows"]
    }

    def bars(ways: Sequence[tuple[str, str, str]]) -> list[Bar]:
        return [
            Bar(name, rows[row][line], rows[row][RAW])
            for name, row, line in ways
            if rows.get(row, {}).get(line) and rows[row].get(RAW)
        ]

    return Panel(run["settings"]["size"], bars(WAYS), bars(ONE_BY_ONE))


def size_text(size: int) -> str:
    """
    Return a payload size as people say it.
    """
    if size >= 1024 and size % 1024 == 0:
        return f"{size // 1024} KiB"
    return f"{size} bytes"


def short(rate: float) -> str:
    """
    Return a rate with the digits that mean something.
    """
    return f"{rate / 1000:,.0f}k" if rate >= 10_000 else f"{rate / 1000:,.1f}k"


def draw(panels: Sequence[Panel]) -> str:
    """
    Return the picture as SVG. Each panel has a scale of its own, which begins at 0.
    """
    lines = -(-len(panels) // COLUMNS)
    height = lines * PANEL_HEIGHT + LEGEND
    box = f'viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
    pieces = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {box} role="img">',
        "<title>Messages per second by way of publishing and payload size</title>",
        f"<style>{STYLE}</style>",
        f'<rect width="{WIDTH}" height="{height}" rx="6" fill="#ffffff"/>',
    ]
    for place, panel in enumerate(panels):
        down, right = divmod(place, COLUMNS)
        pieces += _panel(panel, right * PANEL_WIDTH, down * PANEL_HEIGHT)
    base = lines * PANEL_HEIGHT + 14
    for left, kind, text in (
        (16, "jetsync", "jetsync, messages per second"),
        (226, "raw", "raw socket; the last figure is jetsync's share of it"),
    ):
        pieces.append(
            f'<rect class="{kind}" x="{left}" y="{base - 10}" width="12" height="12"/>'
            f'<text x="{left + 18}" y="{base}">{escape(text)}</text>'
        )
    pieces.append("</svg>")
    return "\n".join(pieces) + "\n"


def _panel(panel: Panel, left: int, top: int) -> list[str]:
    room = PANEL_WIDTH - NAMES - VALUES
    most = max(max(bar.jetsync, bar.raw) for bar in panel.bars)
    pieces = [f'<text class="size" x="{left + 16}" y="{top + 26}">{size_text(panel.size)}</text>']
    for number, bar in enumerate(panel.bars):
        y = top + HEAD + number * STEP
        raw, own = (max(rate / most * room, 1.0) for rate in (bar.raw, bar.jetsync))
        start, middle = left + NAMES, y + BAR - 3
        value = f"{short(bar.jetsync)}/s, {bar.jetsync / bar.raw:.2f}"
        pieces += [
            f'<text x="{start - 8}" y="{middle}" text-anchor="end">{escape(bar.name)}</text>',
            f'<rect class="raw" x="{start}" y="{y}" width="{raw:.1f}" height="{BAR}"/>',
            f'<rect class="jetsync" x="{start}" y="{y + 3}" width="{own:.1f}" height="{BAR - 6}"/>',
            f'<text class="value" x="{start + max(raw, own) + 6:.1f}" y="{middle}">{value}</text>',
        ]
    return pieces


def table(panels: Sequence[Panel]) -> str:
    """
    Return the figures as a table in Markdown.
    """
    head = ["", *(size_text(panel.size) for panel in panels)]
    lines = [head, ["---", *("---:" for _ in panels)]]
    for name, _, _ in (*WAYS, *ONE_BY_ONE):
        cells = []
        for panel in panels:
            bar = next((bar for bar in (*panel.bars, *panel.more) if bar.name == name), None)
            cells.append("" if bar is None else f"{bar.jetsync:,.0f} ({bar.jetsync / bar.raw:.2f})")
        lines.append([f"`{name}`", *cells])
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def main() -> int:
    """
    Draw what was asked for, and print the table.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks.picture", description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path, help="files of `python -m benchmarks --json`")
    parser.add_argument("--output", type=Path, default=Path("rates.svg"), help="(rates.svg)")
    asked = parser.parse_args()
    panels = [panel_of(json.loads(path.read_text("utf-8"))) for path in asked.runs]
    empty = [str(path) for path, panel in zip(asked.runs, panels, strict=True) if not panel.bars]
    if empty:
        print(f"no row of publishing in {', '.join(empty)}", file=sys.stderr)
        return 2
    panels.sort(key=lambda panel: panel.size)
    asked.output.write_text(draw(panels), "utf-8")
    print(table(panels))
    return 0


if __name__ == "__main__":
    sys.exit(main())
