"""
Output of commands: lines and tables for people, JSON for programs.

Commands print only through this module. Most of the text comes from servers and publishers, so each
function escapes control characters and prints the markup of rich literally.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import unicodedata
from typing import TYPE_CHECKING, Any, Final

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable, Iterable, Iterator

# Columns of output that is not a terminal: enough for complete names in files.
_FILE_WIDTH: Final = 400

_ACTIVE: Final = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""
Categories of characters that a terminal may act on or not show: controls, formats such as those
that change the direction of the text, separators of lines and paragraphs, and lone surrogates,
which are bytes that are not UTF-8.
"""

_NAMED: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def console() -> Console:
    """
    Return a console on standard output. It is made for each call, because tests and pipes replace
    standard output.
    """
    made = Console(highlight=False)
    return made if made.is_terminal else Console(highlight=False, width=_FILE_WIDTH)


@contextlib.contextmanager
def until_output_closes() -> Iterator[None]:
    """
    End the block without an error on Ctrl-C, or if standard output is closed.
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


def say(
    text: object = "", *, style: str | None = None, lines: bool = False, err: bool = False
) -> None:
    """
    Print a line of text.

    Args:
        text: The text, which may be untrusted.
        style: The style on a terminal, as in rich.
        lines: Whether to keep line ends and tabs.
        err: Whether to print to standard error.
    """
    shown = visible(str(text), lines=lines)
    if style is None:
        click.echo(shown, err=err)
    else:
        console().print(Text(shown, style), soft_wrap=True)


def confirm(question: str) -> None:
    """
    Ask whether to continue, and end the command unless the answer is yes.

    Without a terminal, the command fails, because a script has to pass --force.
    """
    if not sys.stdin.isatty():
        raise click.ClickException("there is no terminal to ask for confirmation: use --force")
    click.confirm(visible(question), abort=True)


def visible(text: str, *, lines: bool = False) -> str:
    """
    Return text with control characters escaped.

    Args:
        text: Untrusted text.
        lines: Whether to keep line ends and tabs.
    """
    return _replaced(text, _escape, keep="\n\t" if lines else "")


def _replaced(text: str, escape: Callable[[str], str], *, keep: str) -> str:
    if text.isprintable():
        return text
    return "".join(
        escape(each)
        if not each.isprintable() and unicodedata.category(each) in _ACTIVE and each not in keep
        else each
        for each in text
    )


def _escape(character: str) -> str:
    if character in _NAMED:
        return _NAMED[character]
    number = ord(character)
    if number < 0x100:
        return f"\\x{number:02x}"
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


def payload(data: bytes) -> str:
    """
    Return a payload as text, with bytes that are not UTF-8 escaped.
    """
    return data.decode("utf-8", "backslashreplace")


def write_raw(data: bytes) -> None:
    """
    Write bytes to standard output unchanged, or as visible text to a terminal.
    """
    if sys.stdout.isatty():
        click.echo(visible(payload(data), lines=True), nl=False)
    else:
        sys.stdout.buffer.write(data)
    sys.stdout.flush()


def print_table(
    columns: Iterable[str], rows: Iterable[Iterable[object]], *, numbers: Iterable[str] = ()
) -> None:
    """
    Print rows under columns.

    Args:
        columns: The headings.
        rows: The cells of each row. Markup in their text is printed literally.
        numbers: The headings of the columns to align to the right.
    """
    table = Table(box=None, pad_edge=False, header_style="bold")
    right = set(numbers)
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left")
    for row in rows:
        table.add_row(*map(_literal, row))
    console().print(table)


def print_pairs(pairs: Iterable[tuple[str, object]]) -> None:
    """
    Print names and values in two columns. Names without a value are left out.
    """
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold")
    table.add_column()
    for name, value in pairs:
        if value is not None and value not in ("", ()):
            table.add_row(_literal(name), _literal(value))
    console().print(table)


def size(count: float) -> str:
    """
    Return a number of bytes with a unit.
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
    # JSON allows characters that a terminal acts on. Line ends come only from the indentation,
    # because JSON escapes those in values.
    return _replaced(text, lambda each: json.dumps(each)[1:-1], keep="\n")


def _literal(cell: object) -> Text:
    return Text(visible(str(cell)))
