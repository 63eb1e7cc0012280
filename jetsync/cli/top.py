"""
`jetsync top`: streams and consumers with their rates and lag, live on a terminal.
"""

from __future__ import annotations

import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

import attrs
import click

import jetsync
from jetsync._base.locks import SIGNAL_CHECK
from jetsync.cli._connection import Command, jetstream
from jetsync.cli._name_completion import stream_names
from jetsync.cli._output import console, duration, json_option, print_json, say, until_ctrl_c
from jetsync.cli._reports import (
    consumer_rows,
    measured,
    print_consumers,
    print_streams,
    stream_rows,
)
from jetsync.cli._samples import Sampler
from jetsync.cli._screen import END, Screen, full_screen
from jetsync.cli._top_view import SORTS, Screenful, View
from jetsync.cli._units import duration_option, number_option

if TYPE_CHECKING:
    from concurrent.futures import Future

SHORTEST: Final = 0.1
"""The shortest interval in seconds."""

WHILE_ASKING: Final = 0.02
"""Seconds between two looks whether the server has answered."""


@click.command(cls=Command)
@click.argument("streams", nargs=-1, shell_complete=stream_names)
@duration_option("--interval", default="2s", show_default=True, help="How often to ask the server.")
@number_option(
    "--max-requests",
    default=50,
    show_default=True,
    help="Ask for consumers with at most N requests each time. The others wait for their turn.",
)
@click.option(
    "--sort",
    type=click.Choice(SORTS),
    default="lag",
    show_default=True,
    help="Begin with the largest lag or rate, or sort by name.",
)
@json_option
def top(
    *,
    options: jetsync.ConnectOptions,
    streams: tuple[str, ...],
    interval: float,
    max_requests: int,
    sort: str,
    as_json: bool,
) -> None:
    """
    Show streams and consumers with their rates and lag until `q` or Ctrl-C.

    STREAMS selects streams. The default is all of them. One request asks for 256 streams, or for
    256 consumers of a stream. The key `s` changes the order, and the cursor keys scroll through the
    consumers. In a file or a pipe, and with --json, the command measures once and ends.
    """
    if interval < SHORTEST:
        raise click.UsageError(f"--interval needs at least {duration(SHORTEST)}.")
    names = frozenset(streams)
    if as_json or not sys.stdout.isatty() or console().is_dumb_terminal:
        sampler = measured(Sampler(jetstream(options), names=names), interval)
        found = stream_rows(sampler, sort), consumer_rows(sampler, sort)
        if as_json:
            print_json({"streams": found[0], "consumers": found[1]})
        else:
            print_streams(found[0])
            say()
            print_consumers(found[1])
        return
    # The pool waits for its thread, whose request ends when the client closes. The connection has
    # no `Notices`, because they would print on the screen.
    with (
        until_ctrl_c(),
        ThreadPoolExecutor(1, "top") as pool,
        jetsync.connect(options=options) as client,
    ):
        sampler = Sampler(client.jetstream(), names=names, budget=max_requests)
        first = look(sampler)
        with full_screen(console()) as screen:
            Top(client, sampler, screen, first, interval, sort).run(pool)


def look(sampler: Sampler) -> View:
    """
    Ask the server, and return what to show.
    """
    begin = time.monotonic()
    sampler.round()
    return View(
        stream_rows(sampler, "name"),
        consumer_rows(sampler, "name"),
        sampler.requests,
        time.monotonic() - begin,
        len(sampler.waiting),
    )


@attrs.define
class Top:
    """
    The live screen. A thread of its own asks the server, so keys work while a server is slow.
    """

    client: jetsync.Client
    sampler: Sampler
    screen: Screen
    view: View
    interval: float
    sort: str
    offset: int = 0
    problem: str = ""
    """Why the last round has no answer."""

    def run(self, pool: ThreadPoolExecutor) -> None:
        """
        Show the screen until the user ends it.
        """
        asking: Future[View] | None = None
        drawn: Screenful | None = None
        due = time.monotonic() + self.interval
        while True:
            shown = self.screenful()
            if shown != drawn:
                self.screen.show(shown.content())
                drawn = shown
            now = time.monotonic()
            if asking is None and now >= due:
                asking, due = pool.submit(look, self.sampler), now + self.interval
            if asking is not None and asking.done():
                self._take(asking)
                asking = None
            # The system may give a signal to another thread, which does not end this wait.
            wait = WHILE_ASKING if asking else min(max(due - now, 0.0), SIGNAL_CHECK)
            for key in self.screen.keys(wait):
                if key in {"q", "Q", END}:
                    return
                self._press(key, shown)

    def screenful(self) -> Screenful:
        """
        Return what the screen is to show now.
        """
        server = self.client.server
        title = f"nats-server {server.version} at {server.url}"
        lost = "" if self.client.is_connected else "the connection is lost; reconnecting"
        return Screenful(
            title, self.view, self.sort, self.offset, lost or self.problem, *self.screen.size
        )

    def _take(self, asked: Future[View]) -> None:
        try:
            self.view, self.problem = asked.result(), ""
        except jetsync.JetSyncError as error:
            self.problem = str(error)

    def _press(self, key: str, shown: Screenful) -> None:
        steps = {"up": -1, "k": -1, "down": 1, "j": 1}
        steps |= {"page up": -shown.page, "page down": shown.page, " ": shown.page}
        if key == "s":
            self.sort = SORTS[(SORTS.index(self.sort) + 1) % len(SORTS)]
            self.offset = 0
        elif key in {"home", "end"}:
            self.offset = 0 if key == "home" else shown.last_offset
        elif key in steps:
            self.offset = min(max(self.offset + steps[key], 0), shown.last_offset)
