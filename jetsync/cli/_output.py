"""
Output of commands: lines and tables for people, JSON for programs.

Commands print only through this module. Most of the text comes from servers and publishers, so each
function escapes control characters and prints the markup of rich literally.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import functools
import io
import json
import os
import sys
import unicodedata
from typing import TYPE_CHECKING, Any, BinaryIO, Final, Literal, NamedTuple, TypeVar

import click

from jetsync._base.files import replaceable
from jetsync.errors import JetSyncError

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from rich.console import Console
    from rich.text import Text

    from jetsync.values.headers import Headers

T = TypeVar("T")

# Columns of output that is not a terminal: enough for complete names in files.
_FILE_WIDTH: Final = 400

_ACTIVE: Final = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""
Categories of characters that a terminal may act on or not show: controls, formats such as those
that change the direction of the text, separators of lines and paragraphs, and lone surrogates,
which are bytes that are not UTF-8.
"""

_NAMED: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}

NAME: Final = "cyan"
GOOD: Final = "green"
WARNING: Final = "yellow"
ERROR: Final = "red"
"""The styles of what commands print, as in rich."""


class Styled(NamedTuple):
    """
    A part of a line with its style.
    """

    text: object
    style: str


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
force_option = click.option(
    "-f", "--force", "-y", "--yes", "force", is_flag=True, help="Do not ask."
)

dry_run_option = click.option(
    "--dry-run", is_flag=True, help="Show what would change, and change nothing."
)


def console(*, err: bool = False) -> Console:
    """
    Return a console on standard output, or on standard error.

    It has colours on a terminal, unless NO_COLOR is set. It is made for each call, because tests
    and pipes replace standard output.
    """
    from rich.console import Console

    made = Console(highlight=False, stderr=err)
    return made if made.is_terminal else Console(highlight=False, stderr=err, width=_FILE_WIDTH)


@contextlib.contextmanager
def until_output_closes() -> Iterator[None]:
    """
    End the block without an error if standard output is closed.
    """
    try:
        yield
    except OSError as error:
        # Windows has another error for it.
        if not isinstance(error, BrokenPipeError) and (
            sys.platform != "win32" or error.errno != errno.EINVAL
        ):
            raise
        without_output()


def without_output() -> None:
    """
    Discard what standard output could not write. Python would complain once more when it flushes at
    the end.
    """
    with contextlib.suppress(io.UnsupportedOperation):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextlib.contextmanager
def until_ctrl_c() -> Iterator[None]:
    """
    End the block without an error at Ctrl-C, or if standard output is closed.
    """
    with contextlib.suppress(KeyboardInterrupt), until_output_closes():
        yield


@contextlib.contextmanager
def readable_files(path: Path | None = None) -> Iterator[None]:
    """
    Report a file that cannot be read or written as one line.

    Args:
        path: The file or folder. Python's error about a full disk does not name it.
    """
    try:
        yield
    except OSError as error:
        if isinstance(error, JetSyncError):
            raise
        name = path if error.filename is None else error.filename
        where = "" if name is None else f"{os.fspath(name)!r}: "
        raise click.ClickException(f"{where}{error.strerror or error}") from error


def check_output(path: Path, *, force: bool) -> None:
    """
    Refuse a path that a result cannot replace, before the work begins.
    """
    with readable_files(path):
        replaceable(path)
    if not force and os.path.lexists(path):
        raise click.ClickException(f"{str(path)!r} exists already: use --force")


def shown_file(path: Path) -> str:
    """
    Return a file that was written, and where it is if its name is a symbolic link.
    """
    return f"{path}, a link to {os.path.realpath(path)}" if path.is_symlink() else str(path)


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


def print_each(items: Iterable[T], show: Callable[[T], object], count: int | None = None) -> None:
    """
    Print items as they come, and end after *count* of them.
    """
    for number, item in enumerate(items, 1):
        show(item)
        sys.stdout.flush()
        if number == count:
            return


def say(*parts: object | Styled, style: str = "", lines: bool = False, err: bool = False) -> None:
    """
    Print a line of text.

    Args:
        parts: The text, which may be untrusted. A part may have a style of its own.
        style: The style on a terminal, as in rich.
        lines: Whether to keep line ends and tabs.
        err: Whether to print to standard error.
    """
    shown = [
        (visible(str(text), lines=lines), own)
        for text, own in (part if isinstance(part, Styled) else (part, style) for part in parts)
    ]
    if any(own for _, own in shown) and (out := console(err=err)).is_terminal:
        from rich.text import Text

        out.print(Text.assemble(*shown), soft_wrap=True)
    else:
        click.echo("".join(text for text, _ in shown), err=err)


def warn(text: object) -> None:
    """
    Print a warning on standard error.
    """
    say(text, style=WARNING, err=True)


def show_error(error: click.ClickException) -> None:
    """
    Print an error as click does, on standard error, with the line about the error in red.
    """
    if isinstance(error, getattr(click.exceptions, "NoArgsIsHelpError", ())):
        # Its text is the help of a group.
        say(error.format_message(), lines=True, err=True)
        return
    context = error.ctx if isinstance(error, click.UsageError) else None
    if context is not None:
        say(context.get_usage(), lines=True, err=True)
        say(f"Try '{context.command_path} --help' for help.\n", lines=True, err=True)
    say(f"Error: {error.format_message()}", style=ERROR, lines=True, err=True)


def confirm(question: str, *, force: bool, as_json: bool = False) -> None:
    """
    Ask whether to continue, unless --yes is given. End the command unless the answer is yes.

    Without a terminal, the command fails, because a script has to pass --yes. With --json it
    fails, too, because the output has to be JSON alone.
    """
    if force:
        return
    if as_json:
        raise click.UsageError("With --json there is no question: add --yes.")
    if sys.stdin is None or not sys.stdin.isatty():
        raise click.ClickException("there is no terminal to ask for confirmation: add --yes")
    click.confirm(visible(question), abort=True)


@contextlib.contextmanager
def progress(
    title: str, total: int | None, *, in_bytes: bool = False
) -> Iterator[Callable[..., None]]:
    """
    Show a progress bar on standard error, and remove it at the end.

    Yields a function that takes what `Progress.update` of rich does, such as `completed`. If
    standard error is not a terminal, it does nothing.

    Args:
        title: What is done.
        total: The number that completes the bar, or None if it is not known yet.
        in_bytes: Whether the numbers are bytes. Then the bar shows the rate, too.
    """
    out = console(err=True)
    if not out.is_interactive:
        yield lambda **_: None
        return
    from rich import progress as bars

    counts = (
        (bars.DownloadColumn(binary_units=True), bars.TransferSpeedColumn())
        if in_bytes
        else (bars.MofNCompleteColumn(),)
    )
    columns = (bars.TextColumn("{task.description:<14}"), bars.BarColumn(), *counts)
    with bars.Progress(*columns, console=out, transient=True) as bar:
        yield functools.partial(bar.update, bar.add_task(title, total=total))


def read_input(given: str | None, what: str) -> bytes | str:
    """
    Return an argument, or standard input if the argument is missing or is `-`.

    Args:
        given: The argument.
        what: What it is, for a hint if standard input is a terminal.
    """
    if given is not None and given != "-":
        return given
    return open_input(what).read()


def open_input(what: str) -> BinaryIO:
    """
    Return standard input as a binary file. On a terminal, print a hint about *what* to type.
    """
    if sys.stdin is None:
        raise click.ClickException(f"cannot read {what}: standard input is closed")
    if sys.stdin.isatty():
        end = "Ctrl-Z and Enter" if sys.platform == "win32" else "Ctrl-D"
        say(f"type {what}, and end it with {end}", err=True)
    return sys.stdin.buffer


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


def message_dict(  # noqa: PLR0917 - the order in which it is printed.
    stream: str, sequence: int, subject: str, time: dt.datetime, headers: Headers, data: bytes
) -> dict[str, Any]:
    """
    Return a message for JSON. The payload is text if it is UTF-8, and base64 otherwise.
    """
    return {
        "stream": stream,
        "sequence": sequence,
        "subject": subject,
        "time": time.isoformat(),
        "headers": headers.to_dict(),
        **text_or_base64("data", data),
    }


def text_or_base64(name: str, data: bytes) -> dict[str, str]:
    """
    Return a field of JSON for bytes: text if they are UTF-8, and base64 otherwise.
    """
    try:
        return {name: data.decode("utf-8")}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode("ascii")}


def show_line(number: int, time: dt.datetime, name: str, *rest: str | Styled) -> None:
    """
    Print a message, a key or an object as one line.

    Args:
        number: Its sequence or its revision.
        time: When it was stored.
        name: Its subject, key or name.
        rest: What follows.
    """
    local = time.astimezone().isoformat(sep=" ", timespec="milliseconds")
    say(f"{number}  {local}  ", Styled(name, NAME), "  ", *rest)


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
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    right = set(numbers)
    for place, column in enumerate(columns):
        justify: Literal["right", "left"] = "right" if column in right else "left"
        # The first column has the names. Long ones are wrapped, because users copy them.
        style = "" if place else NAME
        table.add_column(literal(column), justify=justify, style=style, overflow="fold")
    for row in rows:
        table.add_row(*map(literal, row))
    console().print(table)


def attributes(found: object, *names: str) -> dict[str, Any]:
    """
    Return attributes of an object for JSON, under their names.
    """
    return {name: getattr(found, name) for name in names}


def print_list(
    found: Sequence[T],
    *,
    as_json: bool,
    as_dict: Callable[[T], Any],
    row: Callable[[T], dict[str, object]],
    numbers: Iterable[str],
    nothing: str,
) -> None:
    """
    Print what a command lists: as JSON, or as a table.

    Args:
        found: The items.
        as_json: Whether to print JSON.
        as_dict: Returns an item for JSON.
        row: Returns the cells of an item by the headings of their columns.
        numbers: The headings of the columns to align to the right.
        nothing: What to print in place of an empty table.
    """
    if as_json:
        print_json([as_dict(item) for item in found])
    elif not found:
        say(nothing)
    else:
        rows = [row(item) for item in found]
        print_table(rows[0], (each.values() for each in rows), numbers=numbers)


def print_result(value: Any, text: str, *, as_json: bool) -> None:
    """
    Print what a command made or changed: as JSON, or as a line.
    """
    if as_json:
        print_json(value)
    else:
        say(text, style=GOOD)


def check_form(what: str, *, raw: bool, as_json: bool) -> None:
    """
    Refuse --raw together with --json.
    """
    if raw and as_json:
        raise click.UsageError(f"--raw prints only the {what}: leave out --json.")


def print_item(
    pairs: Iterable[tuple[str, object]], data: bytes, value: Any, *, raw: bool, as_json: bool
) -> None:
    """
    Print a message or a key with its payload: the bytes alone, as JSON, or for people.
    """
    if raw:
        write_raw(data)
    elif as_json:
        print_json(value)
    else:
        print_pairs(pairs)
        say()
        say(payload(data), lines=True)


def print_pairs(pairs: Iterable[tuple[str, object]]) -> None:
    """
    Print names and values in two columns. Names without a value are left out.
    """
    from rich.table import Table

    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold")
    table.add_column()
    for name, value in pairs:
        if value is not None and value not in ("", ()):
            table.add_row(literal(name), literal(value))
    console().print(table)


def size(count: float) -> str:
    """
    Return a number of bytes with a unit.
    """
    if count < 0:
        return "unlimited"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if count < 1024 or unit == "TiB":
            break
        count /= 1024
    return f"{count:.1f}".removesuffix(".0") + f" {unit}"


def duration(seconds: float) -> str:
    """
    Return a duration as people write it, such as `1h30m`.
    """
    if 0 < seconds < 1:
        return f"{seconds * 1000:g}ms"
    text, left = "", round(seconds, 9)
    for unit, length in (("d", 86_400), ("h", 3600), ("m", 60)):
        count, left = divmod(left, length)
        if count:
            text += f"{count:.0f}{unit}"
    # A rest of a long duration may have the rounding error of the whole.
    rest = f"{round(left, 6):g}s"
    return text + rest if rest != "0s" or not text else text


def optional(show: Callable[[T], str], value: T | None) -> str | None:
    """
    Return a value as *show* writes it, or None for :func:`print_pairs` if there is none.
    """
    return None if value is None else show(value)


def counted(count: int, what: str) -> str:
    """
    Return a number with the word for what was counted, which gets an `s` in the plural.
    """
    return f"{count:,} {what}" + ("" if count == 1 else "s")


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


def literal(cell: object) -> Text:
    """
    Return text for rich that is printed literally, with control characters escaped.
    """
    from rich.text import Text

    text, style = cell if isinstance(cell, Styled) else (cell, "")
    return Text(visible(str(text)), style)
