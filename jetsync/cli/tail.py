"""
`jetsync tail`: print the messages of a stream as they are stored.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

import click

from jetsync.cli._connection import Command, connect
from jetsync.cli._name_completion import stream_argument
from jetsync.cli._output import (
    WARNING,
    Styled,
    message_dict,
    payload,
    print_each,
    print_json_line,
    say,
    show_line,
    until_ctrl_c,
    write_raw,
)
from jetsync.cli._units import combined, number_option, since_option
from jetsync.errors import ConsumptionClosedError, StreamNotFoundError
from jetsync.values.consumer_config import DeliverPolicy
from jetsync.values.stream_config import RetentionPolicy

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable, Generator

    import jetsync

USUAL: Final = 10
"""Default number of stored messages to show first."""

# One wait for a message, in seconds; the loop around it makes it endless.
_MESSAGE_WAIT: Final = 3.0


show_options: Final = combined(
    click.option("--headers", is_flag=True, help="Also show headers."),
    click.option(
        "--raw",
        is_flag=True,
        help="Print only the bytes of payloads, each followed by a newline.",
    ),
    click.option("--json", "as_json", is_flag=True, help="Print JSON, one message to a line."),
)
"""The options of :func:`show_of`."""


@click.command(cls=Command)
@stream_argument
@click.option(
    "--subject",
    "subjects",
    multiple=True,
    metavar="FILTER",
    help="Print only messages whose subject matches FILTER. May be repeated.",
)
@number_option(
    "--last",
    type=click.IntRange(min=0),
    help=f"Begin with the last N messages.  [default: {USUAL}]",
)
@number_option("--seq", help="Begin at sequence N.")
@since_option
@click.option("--new", is_flag=True, help="Begin with the next message.")
@number_option("--count", help="End after N messages.")
@click.option("--no-follow", is_flag=True, help="End after the stored messages.")
@show_options
def tail(
    *,
    options: jetsync.ConnectOptions,
    stream: str,
    subjects: tuple[str, ...],
    count: int | None,
    no_follow: bool,
    headers: bool,
    raw: bool,
    as_json: bool,
    **start: Any,
) -> None:
    """
    Print the messages of STREAM as they are stored, one per line, until Ctrl-C.

    If the connection is lost, the command reconnects and continues without a gap. It ends if STREAM
    is removed.
    """
    if sum(way is not None and way is not False for way in start.values()) > 1:
        raise click.UsageError("Give one of --last, --seq, --since and --new.")
    show = show_of(headers=headers, raw=raw, as_json=as_json)
    found = follow(options, stream, subjects, count, no_follow=no_follow, **start)
    with until_ctrl_c(), contextlib.closing(found) as messages:
        print_each(messages, show)


def follow(
    options: jetsync.ConnectOptions,
    stream: str,
    subjects: tuple[str, ...],
    count: int | None,
    *,
    no_follow: bool,
    last: int | None,
    seq: int | None,
    since: dt.datetime | None,
    new: bool,
) -> Generator[jetsync.Message, None, None]:
    """
    Yield the messages to print.
    """
    with connect(options) as client:
        found = client.jetstream().stream(stream)
        if found.cached_info.config.retention is RetentionPolicy.WORKQUEUE:
            raise click.ClickException(
                f"{stream!r} is a work queue, and only its own consumers can follow it: "
                f"`jetsync get {stream} --next '>'` shows its first message"
            )
        where: dict[str, Any] = {"filter_subjects": list(subjects) or None}
        if seq is not None:
            where["opt_start_seq"] = seq
        elif since is not None:
            where["opt_start_time"] = since
        elif new:
            where["deliver_policy"] = DeliverPolicy.NEW
        else:
            where["opt_start_seq"] = start_of_last(found, where, USUAL if last is None else last)
        with found.ordered_consumer(**where) as ordered:
            if no_follow:
                there = ordered.cached_info.num_pending
                count = there if count is None else min(count, there)
            if count == 0:
                return
            with ordered.consume(stop_after=count) as messages:
                rest = where
                while True:
                    try:
                        message = messages.next(timeout=_MESSAGE_WAIT)
                    except ConsumptionClosedError:
                        return
                    except StreamNotFoundError as error:
                        # Without the consumer, which the user did not create.
                        why = error.description
                        raise StreamNotFoundError(description=why, stream=stream) from error
                    if message is not None:
                        rest = where_after(message, where)
                        yield message
                    elif no_follow and not pending(found, rest):
                        # The others were removed meanwhile. Without a connection, this raises.
                        return


def where_after(message: jetsync.Message, where: dict[str, Any]) -> dict[str, Any]:
    """
    Return where the messages after one begin, for an ordered consumer with the same subjects.
    """
    following = message.metadata.stream_sequence + 1
    return {"filter_subjects": where["filter_subjects"], "opt_start_seq": following}


def pending(stream: jetsync.Stream, where: dict[str, Any]) -> int:
    """
    Return how many messages an ordered consumer would deliver.
    """
    with stream.ordered_consumer(**where) as ordered:
        return ordered.cached_info.num_pending


def start_of_last(stream: jetsync.Stream, where: dict[str, Any], wanted: int) -> int:
    """
    Return the sequence of the first of the last messages of some subjects.

    A consumer that begins at a sequence knows how many messages follow. Some sequences have no
    message, or one with another subject, so the sequence is found by bisection.
    """

    def pending_from(sequence: int) -> int:
        return pending(stream, {**where, "opt_start_seq": sequence})

    state = stream.info().state
    first, high, step = max(state.first_seq, 1), state.last_seq + 1, wanted
    if wanted == 0:
        return high
    low = max(high - step, first)
    while (there := pending_from(low)) < wanted and low > first:
        step *= 8
        high, low = low, max(low - step, first)
    if there <= wanted:
        return low
    # There are too many from `low` on, and too few from `high` on.
    while high - low > 1:
        middle = (low + high) // 2
        if pending_from(middle) >= wanted:
            low = middle
        else:
            high = middle
    return low


def show_of(*, headers: bool, raw: bool, as_json: bool) -> Callable[[jetsync.Message], None]:
    """
    Return the function that prints a message as the options say.
    """
    if raw and (as_json or headers):
        raise click.UsageError("--raw prints only payloads: leave out --json and --headers.")
    return show_raw if raw else show_json if as_json else show_all if headers else show_message


def show_message(message: jetsync.Message) -> None:
    """
    Print a message as one line.
    """
    about = message.metadata
    mark = "" if message.marker is None else f"[{message.marker.value}]  "
    rest = (Styled(mark, WARNING), payload(message.data))
    show_line(about.stream_sequence, about.timestamp, message.subject, *rest)


def show_all(message: jetsync.Message) -> None:
    """
    Print a message as one line, and a line for each header.
    """
    show_message(message)
    for name, value in message.headers.items():
        say(f"    {name}: {value}")


def show_json(message: jetsync.Message) -> None:
    """
    Print a message as one line of JSON.
    """
    about = message.metadata
    fields = (about.stream, about.stream_sequence, message.subject, about.timestamp)
    print_json_line(message_dict(*fields, message.headers, message.data))


def show_raw(message: jetsync.Message) -> None:
    """
    Print a payload alone.
    """
    write_raw(message.data + b"\n")
