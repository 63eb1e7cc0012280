"""
`jetsync pub`: publish messages.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Literal

import click

import jetsync
from jetsync.cli._connection import Command, jetstream
from jetsync.cli._output import (
    GOOD,
    WARNING,
    attributes,
    duration,
    json_option,
    print_json,
    progress,
    read_input,
    say,
)
from jetsync.cli._units import number_option, ttl_option
from jetsync.values.headers import Headers

if TYPE_CHECKING:
    from collections.abc import Iterator

STEP = 1000
"""Messages between two updates of the progress bar."""

NUMBER = "{{Count}}"
"""The text that --count replaces with the number of the message."""


def header(text: str) -> tuple[str, str]:
    """
    Parse a header such as `Name: value`.
    """
    name, colon, value = text.partition(":")
    if not colon or not name.strip():
        raise click.BadParameter(f"{text!r} is not of the form 'Name: value'")
    return name.strip(), value.strip()


@click.command(cls=Command)
@click.argument("subject")
@click.argument("data", required=False)
@click.option(
    "-H",
    "--header",
    "headers",
    multiple=True,
    type=header,
    metavar="'NAME: VALUE'",
    help="Add a header. May be repeated.",
)
@click.option(
    "--msg-id", metavar="ID", help="Message ID. A message with the same ID is not stored again."
)
@ttl_option
@number_option("--count", help="Publish N messages with many in flight, and show the progress.")
@json_option
def pub(
    *,
    options: jetsync.ConnectOptions,
    subject: str,
    data: str | None,
    headers: tuple[tuple[str, str], ...],
    msg_id: str | None,
    ttl: float | Literal["never"] | None,
    count: int | None,
    as_json: bool,
) -> None:
    """
    Publish one message to SUBJECT, and print its stream and sequence.

    If DATA is left out or is `-`, the payload is read from standard input.

    With --count, jetsync publishes N messages and prints how many are stored. It replaces {{Count}}
    with the number of the message, from 1, in SUBJECT, DATA and --msg-id.
    """
    payload = read_input(data, "the payload")
    named = Headers()
    for name, value in headers:
        named.add(name, value)
    message = jetsync.OutboundMessage(
        subject, payload, named if headers else None, msg_id=msg_id, ttl=ttl
    )
    if count is None:
        publish_one(jetstream(options), message, as_json=as_json)
    else:
        publish_many(jetstream(options), message, count, as_json=as_json)


def publish_one(js: jetsync.JetStream, message: jetsync.OutboundMessage, *, as_json: bool) -> None:
    """
    Publish one message and print where it is stored.
    """
    ack = js.publish(
        message.subject,
        message.data,
        headers=message.headers,
        msg_id=message.msg_id,
        ttl=message.ttl,
    )
    if as_json:
        print_json(attributes(ack, "stream", "sequence", "duplicate", "domain"))
    elif ack.duplicate:
        say(f"duplicate: {ack.stream} has it at {ack.sequence}", style=WARNING)
    else:
        say(f"stored in {ack.stream} at {ack.sequence}", style=GOOD)


def publish_many(
    js: jetsync.JetStream, message: jetsync.OutboundMessage, count: int, *, as_json: bool
) -> None:
    """
    Publish numbered messages and print how many are stored.

    Raises:
        PublishManyError: Some are not stored.
    """
    begin = time.monotonic()
    with progress("publish", count) as show_progress:

        def messages() -> Iterator[jetsync.OutboundMessage]:
            for number in range(1, count + 1):
                yield numbered(message, number)
                if number % STEP == 0:
                    show_progress(completed=number)

        report = js.publish_many(messages())
        show_progress(completed=count)
    seconds = time.monotonic() - begin
    streams = sorted(report.streams)
    if as_json:
        print_json(
            {
                "streams": streams,
                **attributes(report, "count", "duplicates", "first_sequence", "last_sequence"),
                "seconds": round(seconds, 6),
            }
        )
        return
    stored = report.count - report.duplicates
    speed = f"in {duration(round(seconds, 3))}, {report.count / max(seconds, 1e-6):,.0f} msgs/s"
    say(f"stored {stored:,} messages in {', '.join(streams)} {speed}", style=GOOD)
    if report.duplicates:
        say(f"{report.duplicates:,} duplicates were not stored again", style=WARNING)


def numbered(message: jetsync.OutboundMessage, number: int) -> jetsync.OutboundMessage:
    """
    Return a message with its number in place of `{{Count}}`.
    """

    def fill(text: Any) -> Any:
        if isinstance(text, bytes):
            return text.replace(NUMBER.encode(), b"%d" % number)
        return text and text.replace(NUMBER, str(number))

    return jetsync.OutboundMessage(
        fill(message.subject),
        fill(message.data),
        message.headers,
        msg_id=fill(message.msg_id),
        ttl=message.ttl,
    )
