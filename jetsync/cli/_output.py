"""
What commands print: tables for people, JSON for programs.

Subjects, headers and payloads are other people's. Characters of theirs that would move the cursor,
change colours or turn the direction of the text are shown as escapes, never sent to a terminal.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
from typing import TYPE_CHECKING, Any, Final

import click
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Iterable, Iterator

# Where the output is not a terminal there is no width to fit: names are not cut for a file.
_UNBOUNDED: Final = 400

_UNSEEN: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""
Control characters, those that turn the direction of the text, and halves of characters: bytes of a
subject that is no UTF-8.
"""

_NAMED: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def console() -> Console:
    """
    Return a console on standard output; made per call, since tests and pipes replace that.
    """
    made = Console(highlight=False)
    return made if made.is_terminal else Console(highlight=False, width=_UNBOUNDED)


@contextlib.contextmanager
def until_nobody_reads() -> Iterator[None]:
    """
    End the block quietly where Ctrl-C comes, or where what reads standard output has gone.
    """
    try:
        yield
    except KeyboardInterrupt:
        pass
    except BrokenPipeError:
        # Python would complain once more when it flushes at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def print_json(value: Any) -> None:
    """
    Print a value as JSON, indented.
    """
    click.echo(_json(value, indent=2))


def print_json_line(value: Any) -> None:
    """
    Print a value as JSON on a line of its own.
    """
    click.echo(_json(value))


def visible(text: str, *, lines: bool = False) -> str:
    """
    Return text with escapes for what a terminal would act on.

    Args:
        text: Whatever somebody has published.
        lines: Whether line ends and tabs stay.
    """

    def escape(found: re.Match[str]) -> str:
        character = found.group()
        if character in _NAMED:
            return character if lines and character != "\r" else _NAMED[character]
        number = ord(character)
        return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}"

    return _UNSEEN.sub(escape, text)


def payload(data: bytes, *, lines: bool = False) -> str:
    """
    Return a payload as text that can be shown; bytes that are no UTF-8 are escapes.
    """
    return visible(data.decode("utf-8", "backslashreplace"), lines=lines)


def write_raw(data: bytes) -> None:
    """
    Write bytes to standard output as they are; to a terminal, as text that can be shown.
    """
    if sys.stdout.isatty():
        click.echo(payload(data, lines=True), nl=False)
    else:
        sys.stdout.buffer.write(data)
    sys.stdout.flush()


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


def _json(value: Any, indent: int | None = None) -> str:
    text = json.dumps(value, indent=indent, ensure_ascii=False, default=str)
    # What JSON lets pass and a terminal does not; line ends are those of the indentation.
    return _UNSEEN.sub(lambda found: _json_escape(found.group()), text)


def _json_escape(character: str) -> str:
    return character if character == "\n" else f"\\u{ord(character):04x}"


def _escaped(cell: object) -> str:
    from rich.markup import escape

    return escape(visible(str(cell)))
