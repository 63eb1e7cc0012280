"""
`jetsync pub`: publish messages.
"""

from __future__ import annotations

import datetime as dt
import time
from typing import TYPE_CHECKING, Any, Final, Literal

import attrs
import click

import jetsync
from jetsync.cli._connection import Command, jetstream
from jetsync.cli._output import (
    GOOD,
    WARNING,
    attributes,
    duration,
    json_option,
    open_input,
    print_json,
    progress,
    read_input,
    say,
    warn,
)
from jetsync.cli._units import (
    combined,
    header_of,
    moment_of,
    number_option,
    positive_seconds_of,
    seconds_of,
    ttl_option,
)
from jetsync.values.headers import Headers

if TYPE_CHECKING:
    from collections.abc import Iterator

STEP = 1000
"""Messages between two updates of the progress bar."""

NUMBER = "{{Count}}"
"""The text that --count replaces with the number of the message."""


def schedule_of(text: str) -> dict[str, Any]:
    """
    Parse a schedule: `@at TIME`, `@in DURATION`, `@every DURATION`, or a cron expression.
    """
    kind, _, rest = text.partition(" ")
    if kind == "@at":
        return {"at": moment_of(rest)}
    if kind == "@in":
        wait = dt.timedelta(seconds=seconds_of(rest))
        return {"at": dt.datetime.now(dt.timezone.utc) + wait}
    if kind == "@every":
        return {"every": positive_seconds_of(rest)}
    return {"cron": text}


schedule_options: Final = combined(
    click.option(
        "--schedule",
        "when",
        type=schedule_of,
        metavar="WHEN",
        help="Publish later: '@at 2026-08-06T18:00', '@in 10m', '@every 1h', '@daily', or a cron"
        " expression of six fields that begins with seconds.",
    ),
    click.option("--target", metavar="SUBJECT", help="With --schedule: publish to SUBJECT."),
    click.option("--time-zone", metavar="NAME", help="Time zone of a cron expression."),
    click.option(
        "--source",
        metavar="SUBJECT",
        help="Publish the last message of SUBJECT, and DATA only if there is none.",
    ),
    click.option("--rollup", is_flag=True, help="Replace the earlier messages of --target."),
)
"""The options for messages that the server publishes later."""


@click.command(cls=Command)
@click.argument("subject")
@click.argument("data", required=False)
@click.option(
    "-H",
    "--header",
    "headers",
    multiple=True,
    type=header_of,
    metavar="'NAME: VALUE'",
    help="Add a header. May be repeated.",
)
@click.option(
    "--msg-id", metavar="ID", help="Message ID. A message with the same ID is not stored again."
)
@ttl_option
@number_option("--count", help="Publish N messages with many in flight, and show the progress.")
@click.option("--lines", is_flag=True, help="Publish each line of standard input as a message.")
@schedule_options
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
    lines: bool,
    as_json: bool,
    **schedule: Any,
) -> None:
    """
    Publish one message to SUBJECT, and print its stream and sequence.

    If DATA is left out or is `-`, the payload is read from standard input.

    With --count, jetsync publishes N messages and prints how many are stored. It replaces {{Count}}
    with the number of the message, from 1, in SUBJECT, DATA and --msg-id. With --lines, it does so
    for each line of standard input, and sends the lines as they arrive.

    With --schedule, the server stores the message under SUBJECT, and publishes it to --target later
    or repeatedly. A new schedule on SUBJECT replaces it.
    """
    if lines and (data is not None or count is not None):
        raise click.UsageError("--lines reads standard input: leave out DATA and --count.")
    if schedule["when"] is None:
        if any(schedule.values()):
            raise click.UsageError("--target, --time-zone, --source and --rollup need --schedule.")
    elif count is not None or lines:
        raise click.UsageError("--schedule stores one message: leave out --count and --lines.")
    elif schedule["target"] is None:
        raise click.UsageError("--schedule needs --target.")
    payload = b"" if lines else read_input(data, "the payload")
    named = Headers(headers) if headers else None
    message = jetsync.OutboundMessage(subject, payload, named, msg_id=msg_id, ttl=ttl)
    js = jetstream(options)
    if schedule["when"] is not None:
        publish_later(js, message, as_json=as_json, **schedule)
    elif lines:
        publish_lines(js, message, as_json=as_json)
    elif count is not None:
        publish_many(js, message, count, as_json=as_json)
    else:
        publish_one(js, message, as_json=as_json)


def publish_one(js: jetsync.JetStream, message: jetsync.OutboundMessage, *, as_json: bool) -> None:
    """
    Publish one message and print where it is stored.
    """
    ack = js.publish(**given(message))
    show_ack(ack, "stored", as_json=as_json)


def given(message: jetsync.OutboundMessage) -> dict[str, Any]:
    """
    Return the message as keywords of a call that publishes it.
    """
    return {
        "subject": message.subject,
        "data": message.data,
        "headers": message.headers,
        "msg_id": message.msg_id,
        "ttl": message.ttl,
    }


def show_ack(ack: jetsync.PubAck, what: str, *, as_json: bool) -> None:
    """
    Print where a message is stored.
    """
    if as_json:
        print_json(attributes(ack, "stream", "sequence", "duplicate", "domain"))
    elif ack.duplicate:
        say(f"duplicate: {ack.stream} has it at {ack.sequence}", style=WARNING)
    else:
        say(f"{what} in {ack.stream} at {ack.sequence}", style=GOOD)


def publish_later(
    js: jetsync.JetStream,
    message: jetsync.OutboundMessage,
    *,
    when: dict[str, Any],
    as_json: bool,
    **how: Any,
) -> None:
    """
    Have the server publish a message later or repeatedly, and print where the schedule is stored.
    """
    ack = js.schedule(**given(message), **when, **how)
    show_ack(ack, "scheduled", as_json=as_json)


@attrs.define
class Tally:
    """
    What has become of many messages.
    """

    streams: set[str] = attrs.field(factory=set)
    count: int = 0
    """Stored messages, with duplicates."""

    duplicates: int = 0
    first_sequence: int | None = None
    last_sequence: int | None = None
    failures: int = 0
    error: Exception | None = None
    """The first one."""

    def note(self, report: jetsync.DeliveryReport) -> None:
        """
        Count a message. The thread of a publisher calls this.
        """
        ack = report.ack
        if ack is None:
            self.failures += 1
            self.error = self.error or report.error
            return
        self.streams.add(ack.stream)
        self.count += 1
        self.duplicates += ack.duplicate
        self.first_sequence = min(self.first_sequence or ack.sequence, ack.sequence)
        self.last_sequence = max(self.last_sequence or ack.sequence, ack.sequence)


def publish_lines(
    js: jetsync.JetStream, message: jetsync.OutboundMessage, *, as_json: bool
) -> None:
    """
    Publish each line of standard input, and print how many are stored.

    A publisher sends a line when it arrives; `publish_many` would wait for more.
    """
    begin, tally = time.monotonic(), Tally()
    file = open_input("the messages, one to a line")
    try:
        with (
            progress("publish", None) as show_progress,
            js.publisher(on_report=tally.note) as publisher,
        ):
            for number, line in enumerate(file, 1):
                each = numbered(message, number)
                publisher.publish(
                    each.subject,
                    line.removesuffix(b"\n").removesuffix(b"\r"),
                    headers=each.headers,
                    msg_id=each.msg_id,
                    ttl=each.ttl,
                )
                if number % STEP == 0:
                    show_progress(completed=number)
    except BaseException:
        if tally.count:
            warn(f"{tally.count:,} messages are stored")
        raise
    show_report(tally, time.monotonic() - begin, as_json=as_json)
    if tally.failures:
        total = tally.count + tally.failures
        raise click.ClickException(
            f"{tally.failures:,} of {total:,} messages are not stored; the first error: "
            f"{tally.error}"
        )


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
    show_report(report, time.monotonic() - begin, as_json=as_json)


def show_report(report: jetsync.PublishReport | Tally, seconds: float, *, as_json: bool) -> None:
    """
    Print how many messages are stored.
    """
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
    where = f" in {', '.join(streams)}" if streams else ""
    say(f"stored {stored:,} messages{where} {speed}", style=GOOD)
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
