"""
What commands print: tables for people, JSON for programs.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import click
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Iterable

# Where the output is not a terminal there is no width to fit: names are not cut for a file.
_UNBOUNDED: Final = 400

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def console() -> Console:
    """
    Return a console on standard output; made per call, since tests and pipes replace that.
    """
    made = Console(highlight=False)
    return made if made.is_terminal else Console(highlight=False, width=_UNBOUNDED)


def print_json(value: Any) -> None:
    """
    Print a value as JSON, indented.
    """
    click.echo(json.dumps(value, indent=2, ensure_ascii=False, default=str))


def print_table(
    columns: Iterable[str], rows: Iterable[Iterable[object]], *, numbers: Iterable[str] = ()
) -> None:
    """
    Print rows under columns.

    Args:
        columns: headings.

        rows: cells; text is printed as it is, markup in it does not count.

        numbers: the columns that are aligned to the right.
    """
    table = Table(box=None, pad_edge=False, header_style="bold")
    right = set(numbers)
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left")
    for row in rows:
        table.add_row(*(_escaped(cell) for cell in row))
    console().print(table)


def print_pairs(pairs: Iterable[tuple[str, object]]) -> None:
    """
    Print names and values in two columns, without those that have no value.
    """
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold")
    table.add_column()
    for name, value in pairs:
        if value is not None and value not in ("", ()):
            table.add_row(name, _escaped(value))
    console().print(table)


def size(count: float) -> str:
    """
    Return a number of bytes as people read it.
    """
    if count < 0:
        return "unlimited"
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def limit(count: int) -> str:
    """
    Return a limit as people read it.
    """
    return "unlimited" if count < 0 else f"{count:,}"


def moment(time: dt.datetime | None) -> str | None:
    """
    Return a time to the second, with its zone.
    """
    return None if time is None else time.isoformat(sep=" ", timespec="seconds")


def _escaped(cell: object) -> str:
    from rich.markup import escape

    return escape(str(cell))
