"""
What `jetsync top` draws: two tables that fit the screen.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import attrs

from jetsync.cli._output import ERROR, NAME, counted, duration, literal, size
from jetsync.cli._reports import ago, copies, in_order, last_ack, rate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text

Row = dict[str, Any]
"""A stream or a consumer, as `--json` prints it."""

SORTS: Final = ("lag", "rate", "name")
"""The orders of the rows."""

FRAME: Final = 7
"""The lines of a screen without rows."""

FEWEST: Final = 3
"""Lines for the streams at least."""


@attrs.frozen
class Column:
    """
    A column of numbers.
    """

    title: str
    width: int
    cell: Callable[[Row], object]
    least: int = 0
    """How many columns a screen needs to show it."""


STREAMS: Final = (
    Column("messages", 8, lambda row: compact(row["messages"]), least=60),
    Column("size", 9, lambda row: size(row["bytes"]), least=70),
    Column("msgs/s", 8, lambda row: rate(row["messages_per_second"])),
    Column("consumers", 9, lambda row: compact(row["consumers"]), least=70),
    Column("lag", 7, lambda row: compact(row["lag"]) if row["consumers"] else ""),
    Column("copies", 11, copies, least=100),
    Column("idle", 5, lambda row: ago(row["idle_seconds"]), least=50),
)
CONSUMERS: Final = (
    Column("lag", 7, lambda row: compact(row["lag"])),
    Column("unacked", 7, lambda row: compact(row["unacknowledged"]), least=70),
    Column("redelivered", 11, lambda row: compact(row["redelivered"]), least=100),
    Column("pulls", 6, lambda row: compact(row["waiting_pulls"]), least=100),
    Column("msgs/s", 8, lambda row: rate(row["messages_per_second"])),
    Column("last ack", 8, last_ack, least=60),
)


@attrs.frozen
class View:
    """
    What the screen shows of one round.
    """

    streams: list[Row]
    consumers: list[Row]
    requests: int
    seconds: float
    """How long the requests took."""

    waiting: int = 0
    """Streams whose consumers are from an earlier round, because of the limit of requests."""

    at: dt.datetime = attrs.field(factory=lambda: dt.datetime.now().astimezone())


@attrs.frozen
class Screenful:
    """
    A view on a screen of some size.
    """

    title: str
    view: View
    sort: str
    offset: int
    """How many consumers are above the first one that is shown."""

    status: str
    """What is wrong at the moment; empty if nothing is."""

    width: int
    height: int

    @property
    def room(self) -> tuple[int, int]:
        """
        The lines for streams and for consumers.
        """
        free = max(self.height - FRAME, 2)
        streams, consumers = len(self.view.streams), len(self.view.consumers)
        for_streams = max(min(streams, max(free // 3, FEWEST, free - consumers)), 1)
        return for_streams, max(free - for_streams, 1)

    @property
    def page(self) -> int:
        """
        How many consumers the screen shows.
        """
        return self.room[1]

    @property
    def last_offset(self) -> int:
        """
        The largest useful offset.
        """
        return max(len(self.view.consumers) - self.page, 0)

    def content(self) -> RenderableType:
        """
        Return what rich draws.
        """
        from rich.console import Group

        streams = in_order(self.view.streams, self.sort)
        consumers = in_order(self.view.consumers, self.sort)
        for_streams, for_consumers = self.room
        keys = [f"q quit   s sort, now by {self.sort}"]
        if self.last_offset:
            arrows = "\N{UPWARDS ARROW} \N{DOWNWARDS ARROW}"
            last = min(self.offset + for_consumers, len(consumers))
            keys.append(f"{arrows} consumers {self.offset + 1:,} to {last:,} of {len(consumers):,}")
        if for_streams < len(streams):
            keys.append(f"{for_streams:,} of {len(streams):,} streams")
        return Group(
            line(self.title, "bold"),
            line(self._totals()),
            line(""),
            self._table(("stream",), STREAMS, streams[:for_streams]),
            line(""),
            self._table(
                ("consumer", "stream"),
                CONSUMERS,
                consumers[self.offset : self.offset + for_consumers],
            ),
            line(self.status, ERROR) if self.status else line("   ".join(keys), "dim"),
        )

    def _totals(self) -> str:
        view = self.view
        stored = sum(row["messages_per_second"] or 0 for row in view.streams)
        delivered = sum(row["messages_per_second"] or 0 for row in view.consumers)
        waiting = sum(row["lag"] for row in view.consumers)
        parts = [
            f"{view.at:%H:%M:%S}",
            f"stored {rate(stored)}/s",
            f"delivered {rate(delivered)}/s",
            f"lag {compact(waiting)}",
            f"{counted(view.requests, 'request')} in {duration(round(view.seconds, 3))}",
        ]
        if view.waiting:
            parts.append(f"consumers of {counted(view.waiting, 'stream')} from earlier")
        return "   ".join(parts)

    def _table(self, names: Sequence[str], columns: Sequence[Column], rows: Sequence[Row]) -> Table:
        from rich.table import Table

        made = Table(box=None, pad_edge=False, expand=True, header_style="bold")
        for place, name in enumerate(names):
            style = "" if place else NAME
            made.add_column(name, ratio=1, no_wrap=True, overflow="ellipsis", style=style)
        chosen = [column for column in columns if self.width >= column.least]
        for column in chosen:
            made.add_column(column.title, width=column.width, justify="right", no_wrap=True)
        for row in rows:
            cells = [row[name] for name in names]
            made.add_row(*map(literal, [*cells, *(column.cell(row) for column in chosen)]))
        if not rows:
            made.add_row(literal("none"))
        return made


def line(text: str, style: str = "") -> Text:
    """
    Return a line that is cut off at the edge of the screen.
    """
    made = literal(text)
    made.stylize(style)
    made.no_wrap, made.overflow = True, "ellipsis"
    return made


def compact(count: int) -> str:
    """
    Return a number in at most 7 characters.
    """
    if count < 1_000_000:
        return f"{count:,}"
    number, unit = (count / 10**6, "M") if count < 10**9 else (count / 10**9, "G")
    return f"{number:.2f}{unit}" if number < 100 else f"{number:,.0f}{unit}"
