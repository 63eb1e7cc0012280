"""
`jetsync get`: one message of a stream.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from jetsync.cli._connection import Command, jetstream
from jetsync.cli._name_completion import stream_argument
from jetsync.cli._output import (
    check_form,
    json_option,
    message_dict,
    moment,
    print_item,
)
from jetsync.cli._units import moment_of, number_option

if TYPE_CHECKING:
    import datetime as dt

    import jetsync


@click.command(cls=Command)
@stream_argument
@click.argument("sequence", type=click.IntRange(min=1), required=False)
@number_option("--seq", help="The same as SEQUENCE.")
@click.option("--last", metavar="SUBJECT", help="Show the last message of SUBJECT.")
@click.option("--next", "following", metavar="SUBJECT", help="Show the first message of SUBJECT.")
@number_option("--from", "start", help="With --next: start at sequence N.")
@click.option(
    "--at",
    type=moment_of,
    metavar="TIME",
    help="Show the first message since TIME: 2026-08-06T18:00, or 1h30m for an age.",
)
@click.option("--raw", is_flag=True, help="Print only the bytes of the payload.")
@json_option
def get(
    *,
    options: jetsync.ConnectOptions,
    stream: str,
    sequence: int | None,
    seq: int | None,
    last: str | None,
    following: str | None,
    start: int | None,
    at: dt.datetime | None,
    raw: bool,
    as_json: bool,
) -> None:
    """
    Show one message of STREAM, by SEQUENCE or by an option.
    """
    if sum(way is not None for way in (sequence, seq, last, following, at)) != 1:
        raise click.UsageError("Give SEQUENCE, --last SUBJECT, --next SUBJECT or --at TIME.")
    if start is not None and following is None:
        raise click.UsageError("--from needs --next.")
    check_form("payload", raw=raw, as_json=as_json)
    number = seq if sequence is None else sequence
    found = jetstream(options).stream(stream)
    if last is not None:
        message = found.get_last(last)
    elif following is not None:
        message = found.get_next(following, start or 1)
    elif at is not None:
        message = found.get_at(at)
    else:
        assert number is not None
        message = found.get_message(number)
    pairs = [
        ("stream", message.stream),
        ("sequence", message.sequence),
        ("subject", message.subject),
        ("time", moment(message.timestamp)),
        ("marker", message.marker and message.marker.value),
        *((f"header {name}", value) for name, value in message.headers.items()),
    ]
    fields = (message.stream, message.sequence, message.subject, message.timestamp)
    shown = message_dict(*fields, message.headers, message.data)
    print_item(pairs, message.data, shown, raw=raw, as_json=as_json)
