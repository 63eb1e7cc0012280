"""
The picture of the demo: the totals in the bucket for each week of the year.
"""

from __future__ import annotations

import math
from collections import defaultdict
from datetime import date, timedelta
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from jetsync_spark.demo.data import Totals

__all__ = ["draw"]

SHOWN: Final = 5
"""Carriers with a colour, which are those with the most flights; others are grey."""

FEWEST: Final = 10
"""The flights in a week that a mean needs to be drawn: a few late flights would hide all others."""

_METADATA: Final = ("Creator", "Date", "Format", "Type")
"""The metadata of an SVG."""


def draw(totals: Mapping[str, Totals], path: Path, *, note: str) -> None:
    """
    Save the mean delay of each carrier in each week.

    Args:
        totals: The totals by key of the bucket.
        path: The file; its suffix selects the format.
        note: A line below the picture.
    """
    # Imported here, because it takes a second. The object interface needs no display.
    import matplotlib as mpl
    import numpy as np
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    means: dict[tuple[str, date], float] = {}
    flights: dict[str, int] = defaultdict(int)
    found = set()
    for key, each in totals.items():
        week = date.fromisoformat(key.partition(".")[2])
        found.add(week)
        flights[each.airline] += each.flights
        if each.mean is not None and each.arrived >= FEWEST:
            means[each.airline, week] = each.mean
    busiest = sorted(flights, key=lambda airline: -flights[airline])
    # A line has a gap where a week is missing.
    weeks = [
        min(found) + timedelta(days=days)
        for days in range(0, (max(found) - min(found)).days + 1, 7)
    ]
    # Text stays text in the file.
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "jetsync"}):
        figure = Figure(figsize=(9, 4.8), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.add_subplot()
        axes.axhline(0, color="0.6", linewidth=0.8)
        for airline in reversed(busiest):
            known = airline in busiest[:SHOWN]
            axes.plot(
                np.array(weeks, dtype="datetime64[D]"),
                [means.get((airline, week), math.nan) for week in weeks],
                color=f"C{busiest.index(airline)}" if known else "0.87",
                linewidth=1.6 if known else 0.8,
                label=airline if known else None,
                zorder=2 if known else 1,
            )
        axes.set_title("Mean arrival delay per week, as the key-value bucket has it")
        axes.set_ylabel("minutes")
        left_out = f"weeks with fewer than {FEWEST} arrivals of an airline are left out"
        axes.set_xlabel("\n".join(filter(None, [left_out, note])), color="0.4")
        axes.spines[["top", "right"]].set_visible(False)
        handles, labels = axes.get_legend_handles_labels()
        figure.legend(
            handles[::-1], labels[::-1], loc="outside lower center", ncols=3, frameon=False
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        # The same totals make the same file.
        metadata = dict.fromkeys(_METADATA) if path.suffix == ".svg" else None
        figure.savefig(path, dpi=120, metadata=metadata)
