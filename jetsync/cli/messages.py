"""
`jetsync pub`: publish one message.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Literal

import click

from jetsync.cli._connection import connect, connection_options
from jetsync.cli._output import json_option, print_json, say
from jetsync.values.headers import Headers

if TYPE_CHECKING:
    import jetsync


def header(text: str) -> tuple[str, str]:
    """
    Parse a header such as `Name: value`.
    """
    name, colon, value = text.partition(":")
    if not colon or not name.strip():
        raise click.BadParameter(f"{text!r} is not of the form 'Name: value'")
    return name.strip(), value.strip()


def time_to_live(text: str) -> float | Literal["never"]:
    """
    Parse a time-to-live: seconds, or `never`.
    """
    if text == "never":
        return "never"
    try:
        return float(text)
    except ValueError:
        reason = f"{text!r} is neither a number of seconds nor 'never'"
        raise click.BadParameter(reason) from None


@click.command()
@click.argument("subject")
@click.argument("data", required=False)
@click.option("-H", "--header", "headers", multiple=True, type=header, metavar="'NAME: VALUE'")
@click.option(
    "--msg-id", metavar="ID", help="Message ID. A message with the same ID is not stored again."
)
@click.option("--ttl", type=time_to_live, metavar="SECONDS", help="Time-to-live, or 'never'.")
@json_option
@connection_options
def pub(
    *,
    options: jetsync.ConnectOptions,
    subject: str,
    data: str | None,
    headers: tuple[tuple[str, str], ...],
    msg_id: str | None,
    ttl: float | Literal["never"] | None,
    as_json: bool,
) -> None:
    """
    Publish one message to SUBJECT, and print its stream and sequence.

    If DATA is left out or is `-`, the payload is read from standard input.
    """
    payload: bytes | str
    payload = sys.stdin.buffer.read() if data is None or data == "-" else data
    named = Headers()
    for name, value in headers:
        named.add(name, value)
    with connect(options) as client:
        ack = client.jetstream().publish(
            subject, payload, headers=named if headers else None, msg_id=msg_id, ttl=ttl
        )
    if as_json:
        print_json(
            {
                "stream": ack.stream,
                "sequence": ack.sequence,
                "duplicate": ack.duplicate,
                "domain": ack.domain,
            }
        )
    elif ack.duplicate:
        say(f"duplicate: {ack.stream} has it at {ack.sequence}")
    else:
        say(f"stored in {ack.stream} at {ack.sequence}")
