"""
Send real data through a server and back, compare speeds, and draw a picture.

README.md says how to run it.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import json
import os
import platform
import sys
from collections import defaultdict
from itertools import islice, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn
from rich.table import Table
from rich.text import Text

import jetsync
from flights import compare, moment
from flights.data import FLIGHTS, Digest, Tally, airlines, flights
from jetsync.devserver import DevServer

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from matplotlib.axes import Axes
    from rich.progress import Task, TaskID

__all__ = ["demo"]

STREAM: Final = "FLIGHTS"
SPEED_STREAM: Final = "FLIGHTS_SPEED"
DAY_STREAM: Final = "FLIGHTS_BY_AIRCRAFT"
STATUS_STREAM: Final = "FLIGHTS_STATUS"
BUCKET: Final = "flights_now"
DAY: Final = "2013-1-1"
"""
The day whose flights are written as atomic batches and read back as of 18:00. It is the first one,
because --limit keeps the first flights.
"""

DESCRIPTION: Final = "made by examples/flights"
"""The description of a stream that an earlier demo left, and that may be replaced."""

BATCH: Final = 5000
"""Messages per fetch, acknowledged in one write."""

STEP: Final = 1000
"""Messages between two updates of a progress bar."""

INSTALL: Final = (
    "in a clone of jetsync, python -m pip install '.[server]' -r examples/flights/requirements.txt"
)
"""Installs everything that the program needs."""

console = Console(highlight=False, markup=False, emoji=False)


class Rate(ProgressColumn):
    """
    Messages per second, over all the time so far.
    """

    def render(self, task: Task) -> Text:
        """
        Return the rate as text.
        """
        seconds = task.finished_time if task.finished else task.elapsed
        if not seconds or not task.completed:
            return Text("")
        return Text(f"{task.completed / seconds:>9,.0f} msgs/s", style="cyan")


@click.command()
@click.option("--server", metavar="URL", help="Use this server instead of a temporary one.")
@click.option("--limit", type=click.IntRange(1), metavar="N", help="Use only the first N flights.")
@click.option("--keep", is_flag=True, help="Leave the stream on the server given with --server.")
@click.option(
    "--picture",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    default=Path("flights.png"),
    show_default=True,
    help="File of the picture.",
)
def demo(
    server: str | None,
    limit: int | None,
    keep: bool,  # noqa: FBT001 - click's signature
    picture: Path,
) -> None:
    """
    Send 336,776 records of real flights through a server and back.

    The demo publishes every flight that left New York in 2013, reads all of them back through a
    durable consumer, and compares the count and a digest. It measures jetsync and nats-py with
    some of the messages. A picture shows both results. Then the demo writes the flights of one day
    as atomic batches, one per aircraft, and makes one batch fail. Finally it reads where the
    aircraft were at 18:00, changes several keys of a bucket in one transaction, and watches a key
    expire.
    """
    try:
        as_it_should = fly(server, limit, keep=keep, picture=picture)
    except jetsync.JetSyncError as error:
        raise click.ClickException(str(error)) from error
    except ModuleNotFoundError as error:
        raise click.ClickException(f"{error.name} is not installed: {INSTALL}") from error
    sys.exit(not as_it_should)


def fly(server: str | None, limit: int | None, *, keep: bool, picture: Path) -> bool:
    """
    Run all parts, and return whether all results are as expected.
    """
    expected = min(limit or FLIGHTS, FLIGHTS)
    # Missing packages are reported now, not after the work.
    airlines()
    importlib.import_module("matplotlib")
    sent, received, tally = Digest(), Digest(), Tally()

    with contextlib.ExitStack() as stack:
        if server is None:
            own = stack.enter_context(DevServer())
            server = own.url
        client = stack.enter_context(jetsync.connect(server, name="flights"))
        say(f"nats-server {client.server.version} at {client.server.url}")
        js = client.jetstream()
        for name in (STREAM, SPEED_STREAM, DAY_STREAM, STATUS_STREAM, f"KV_{BUCKET}"):
            remove(js, name)
        part(
            "There and back",
            "Every flight that left New York in 2013 is a message. All are stored in a stream",
            "on disk and fetched by a durable consumer. These rates include reading the file",
            "and the checksum of each message.",
        )
        try:
            stream = make_stream(js, STREAM, "flights.>", storage="file", allow_direct=True)
            columns = [TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), Rate()]
            with Progress(*columns, console=console) as progress:
                bar = progress.add_task("publish", total=expected)
                left = publish(js, sent, limit, progress, bar)
                bar = progress.add_task("fetch", total=sent.count)
                fetch(stream, received, tally, progress, bar)
            statuses = read_day(stream)
        finally:
            if not keep:
                remove(js, STREAM)

        same = sent == received
        result(
            f"{sent.count:,} out, {received.count:,} back, digests {'equal' if same else 'DIFFER'}",
            good=same,
        )
        if same:
            say("So nothing was lost, changed or stored twice.")
        part("What came back")
        show(tally)
        speeds = race(client, server, limit)
        lost = "Nothing was lost" if same else "MESSAGES DIFFER"
        lost += f"\n{sent.count:,} flights sent, {received.count:,} received"
        footer = measured_on(client, compared=bool(speeds))
        draw(tally, left, speeds, picture, title=lost, footer=footer)
        as_it_should = batches(js, limit, keep=keep)
        as_it_should &= the_past(js, statuses, keep=keep)

    say()
    say(f"picture: {picture.resolve()}")
    return same and as_it_should and sent.count == expected


def part(title: str, *lines: str) -> None:
    """
    Print the title of a part of the demo, and what it shows, in lines that fit 80 columns.
    """
    say()
    say(title, style="bold")
    for line in lines:
        say(line)


def say(line: str = "", style: str | None = None) -> None:
    """
    Print a line, without breaking it.
    """
    console.print(line, style=style, soft_wrap=True)


def result(line: str, *, good: bool) -> None:
    """
    Print a result.
    """
    say(f"{'ok   ' if good else 'WRONG'} {line}", style="green" if good else "red")


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """
    Print rows under columns: names in the first, and numbers in the others.
    """
    table = Table(box=None, pad_edge=False, header_style="bold")
    names, *numbers = columns
    table.add_column(names, style="cyan")
    for column in numbers:
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(*row)
    console.print(table)


def remove(js: jetsync.JetStream, name: str) -> None:
    """
    Delete the stream of an earlier demo. Raise if another stream has that name.
    """
    with contextlib.suppress(jetsync.StreamNotFoundError):
        left = js.stream(name)
        if left.cached_info.config.description != DESCRIPTION:
            raise click.ClickException(f"the server has a stream {name} that is not the demo's")
        left.delete()


def make_stream(
    js: jetsync.JetStream,
    name: str,
    subjects: str,
    *,
    storage: Literal["file", "memory"],
    **options: Any,
) -> jetsync.Stream:
    """
    Create a stream that a later demo recognises by its description.
    """
    return js.create_stream(
        name,
        description=DESCRIPTION,
        subjects=[subjects],
        storage=storage,
        **options,
    )


def publish(
    js: jetsync.JetStream, sent: Digest, limit: int | None, progress: Progress, task: TaskID
) -> list[int]:
    """
    Publish the flights while the file is read, and return the departures in each hour of the day.
    """
    left = [0] * 24

    def noted() -> Iterator[jetsync.OutboundMessage]:
        for flight in flights(limit):
            sent.add(flight.subject, flight.data)
            if flight.hour is not None:
                left[flight.hour] += 1
            yield jetsync.OutboundMessage(flight.subject, flight.data, msg_id=flight.msg_id)
            if sent.count % STEP == 0:
                progress.update(task, completed=sent.count)

    report = js.publish_many(noted())
    progress.update(task, completed=report.count)
    return left


def fetch(
    stream: jetsync.Stream, received: Digest, tally: Tally, progress: Progress, task: TaskID
) -> None:
    """
    Read the stream through a durable consumer to its end.
    """
    worker = stream.create_consumer("demo", max_ack_pending=2 * BATCH, ack_wait=120)
    waiting = worker.cached_info.num_pending
    while received.count < waiting:
        before = received.count
        # Not more messages than there are, or the last fetch would wait.
        batch = worker.fetch(min(BATCH, waiting - before), expires=5)
        for message in batch:
            received.add(message.subject, message.data)
            tally.add(message.data)
            if received.count % STEP == 0:
                progress.update(task, completed=received.count)
        batch.ack()
        if received.count == before:
            # The comparison below reports what is missing.
            break
    progress.update(task, completed=received.count)


def race(client: jetsync.Client, server: str, limit: int | None) -> list[compare.Speed]:
    """
    Measure jetsync and nats-py, print their speeds and return them. Return nothing if nats-py
    fails.
    """
    messages = [
        (f"speed.{flight.subject}", flight.data) for flight in islice(flights(limit), compare.COUNT)
    ]
    part(
        "How fast, compared with nats-py",
        f"The first {len(messages):,} of these messages, without any other work. Both clients use",
        f"this server in turns, in {compare.ROUNDS} rounds. The result is the median.",
    )
    js = client.jetstream()
    try:
        stream = make_stream(js, SPEED_STREAM, "speed.>", storage="file")
        speeds = compare.compare(client, server, stream, messages)
    except compare.NatsPyError as error:
        say(f"no comparison, because nats-py failed: {error}", style="yellow")
        return []
    finally:
        remove(js, SPEED_STREAM)
    print_table(
        ("", "jetsync", "nats-py", "jetsync is"),
        (
            (
                speed.task,
                f"{speed.jetsync:,.0f} msgs/s",
                f"{speed.nats_py:,.0f} msgs/s",
                f"{speed.ratio:.1f} times as fast",
            )
            for speed in speeds
        ),
    )
    return speeds


def measured_on(client: jetsync.Client, *, compared: bool) -> str:
    """
    Return the versions and the machine of the measurement.
    """
    peer = f" nats-py {importlib.metadata.version('nats-py')}," if compared else ""
    return (
        f"jetsync {jetsync.__version__},{peer}"
        f" nats-server {client.server.version}, Python {platform.python_version()},"
        f" {os.cpu_count()} cores"
    )


def batches(js: jetsync.JetStream, limit: int | None, *, keep: bool) -> bool:
    """
    Write the flights of a day as atomic batches, and return whether all is as expected.
    """
    part("Atomic batches", "The server stores all messages of a batch, or none of them.")
    try:
        # On disk, each batch would cost the server some milliseconds.
        stream = make_stream(js, DAY_STREAM, "aircraft.>", storage="memory", allow_atomic=True)
        aircraft = flights_by_aircraft(limit)
        return write_day(js, stream, aircraft) and fail_on_purpose(js, stream, next(iter(aircraft)))
    except jetsync.NotSupportedError as error:
        say(f"no atomic batches: {error}")
        # An old server may have created the stream.
        keep = False
        return True
    finally:
        if not keep:
            remove(js, DAY_STREAM)


def flights_by_aircraft(limit: int | None) -> dict[str, list[bytes]]:
    """
    Return the flights of the day, collected under a subject per aircraft.
    """
    collected = defaultdict(list)
    for flight in takewhile(lambda flight: flight.msg_id.startswith(f"{DAY}."), flights(limit)):
        tail_number = json.loads(flight.data)["tailnum"] or "unknown"
        collected[f"aircraft.{tail_number}"].append(flight.data)
    return dict(collected)


def write_day(
    js: jetsync.JetStream,
    stream: jetsync.Stream,
    aircraft: dict[str, list[bytes]],
) -> bool:
    """
    Store the flights of each aircraft in one batch, and count the stored messages.
    """
    for subject, rows in aircraft.items():
        js.publish_batch((subject, row) for row in rows)
    flown = sum(map(len, aircraft.values()))
    stored = stream.info().state.messages
    result(
        f"{flown:,} flights of {DAY} in {len(aircraft):,} batches, one per aircraft:"
        f" {stored:,} stored",
        good=stored == flown,
    )
    return stored == flown


def fail_on_purpose(js: jetsync.JetStream, stream: jetsync.Stream, known: str) -> bool:
    """
    Commit a batch with a condition that fails, and check that nothing is stored.
    """
    before = stream.info().state.messages
    outcome = "no error"
    try:
        with js.atomic_batch() as batch:
            batch.add("aircraft.new.1", b"maiden flight")
            # The expectation fails: this aircraft has flown before.
            batch.add(known, b"maiden flight", expect=jetsync.Expect(last_subject_sequence=0))
            batch.add("aircraft.new.2", b"maiden flight")
    except jetsync.WrongLastSequenceError as error:
        outcome = type(error).__name__
    more = stream.info().state.messages - before
    result(
        f"3 in a batch with a condition that fails: {outcome}, {more} stored",
        good=more == 0,
    )
    return more == 0


def read_day(stream: jetsync.Stream) -> list[moment.Status]:
    """
    Return the events of the day, or nothing if the server has no direct batch reads.
    """
    try:
        return moment.statuses_of_day(stream, DAY)
    except jetsync.NotSupportedError as error:
        say(f"no direct reads: {error}")
        return []


def the_past(js: jetsync.JetStream, statuses: list[moment.Status], *, keep: bool) -> bool:
    """
    Read the state at 18:00, change keys together and let one expire. Return whether all is as
    expected.
    """
    if not statuses:
        return True
    part(
        "The past, and a key-value bucket",
        "One read returns the last message of each subject as of an earlier time, here",
        f"where each aircraft was at 18:00 on {DAY}. Keys of a bucket can expire.",
        "Watches see that as MaxAge. A transaction changes all of its keys or none.",
    )
    try:
        stream = make_stream(js, STATUS_STREAM, "status.*", storage="memory", allow_direct=True)
        found, expected = moment.at_six(js, stream, statuses)
        flying = sum(text.startswith("in the air") for text in found.values())
        right = found == expected
        result(
            f"{len(found):,} aircraft at 18:00, {flying:,} of them in the air"
            f"{', as in the data' if right else ', UNLIKE the data'}",
            good=right,
        )
        bucket = js.create_key_value(
            BUCKET, description=DESCRIPTION, storage="memory", limit_marker_ttl=60
        )
        seen = moment.expire(bucket)
        as_expected = seen == ["PUT", jetsync.MarkerReason.MAX_AGE.value]
        result(
            f"a key with a lifetime of {moment.KEPT} s: its watch saw {', then '.join(seen)}",
            good=as_expected,
        )
        aircraft = sorted({status.aircraft for status in statuses})[:3]
        together = moment.change_together(js.update_key_value(BUCKET, atomic=True), aircraft)
        result(
            f"{len(aircraft)} keys changed in one transaction: {', '.join(aircraft)}",
            good=together,
        )
    except jetsync.NotSupportedError as error:
        say(f"no transactions: {error}")
        keep = False
        return True
    else:
        return right and as_expected and together
    finally:
        if not keep:
            remove(js, STATUS_STREAM)
            remove(js, f"KV_{BUCKET}")


def show(tally: Tally) -> None:
    """
    Print the flights and the mean arrival delay of each carrier, the busiest first.
    """
    names = airlines()

    def row(carrier: str, count: int) -> tuple[str, str, str]:
        delay = tally.mean_arrival_delay(carrier)
        shown = "none arrived" if delay is None else f"{delay:+.1f} min"
        return names.get(carrier, carrier), f"{count:,}", shown

    print_table(
        ("carrier", "flights", "mean arrival delay"),
        (row(*each) for each in tally.flights.most_common()),
    )


def draw(
    tally: Tally,
    left: list[int],
    speeds: list[compare.Speed],
    path: Path,
    *,
    title: str,
    footer: str,
) -> None:
    """
    Save a picture of the speeds, if there are any, and of the departures per hour as published and
    as received.
    """
    # Imported here: it takes a second, and only this function needs it. The object interface
    # draws into a file without a display.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.8), layout="constrained")
    FigureCanvasAgg(figure)
    if speeds:
        fast, whole = figure.subplots(1, 2, width_ratios=(5, 6))
        draw_speeds(fast, speeds)
    else:
        whole = figure.subplots()

    below = [0] * 24
    colors = ("#0b7285", "#22b8cf", "#99e9f2")
    for (airport, departures), color in zip(sorted(tally.departures.items()), colors, strict=False):
        whole.bar(range(24), departures, 0.85, below, color=color, label=f"received, {airport}")
        below = [low + high for low, high in zip(below, departures, strict=True)]
    whole.stairs(left, [hour - 0.5 for hour in range(25)], color="black", label="sent")
    whole.set_xlabel("hour of departure")
    whole.set_ylabel("flights")
    whole.set_xticks(range(0, 24, 2))
    whole.yaxis.set_major_formatter("{x:,.0f}")
    whole.spines[["top", "right"]].set_visible(False)
    whole.legend(
        frameon=False, fontsize="small", ncols=4, loc="upper center", bbox_to_anchor=(0.5, -0.16)
    )
    whole.set_title(title, fontsize="medium")

    figure.supxlabel(footer, color="0.4", fontsize="small")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120, format="png")


def draw_speeds(axes: Axes, speeds: list[compare.Speed]) -> None:
    """
    Draw the speeds of both clients as bars.
    """
    for place, speed in enumerate(speeds):
        for shift, rate, color, text in (
            (-0.2, speed.jetsync, "#1f6feb", f"jetsync, {speed.ratio:.1f} times as fast"),
            (0.2, speed.nats_py, "#afb8c1", "nats-py"),
        ):
            bar = axes.barh(place + shift, rate, 0.36, color=color)
            axes.bar_label(bar, [f"{rate:,.0f}\n{text}"], padding=4, fontsize="small")
    axes.set_yticks(range(len(speeds)), [speed.task.replace(" ", "\n") for speed in speeds])
    axes.invert_yaxis()
    axes.margins(x=0.55)
    axes.set_xticks([])
    axes.spines[["top", "right", "bottom"]].set_visible(False)
    axes.set_title("How fast\nmessages per second, on one server in one run", fontsize="medium")


if __name__ == "__main__":
    demo()
