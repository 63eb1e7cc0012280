"""
`jetsync export`: the figures of streams and consumers for Prometheus.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import attrs
import click

from jetsync._base.deadline import Deadline
from jetsync._base.locks import interrupt_safe_lock
from jetsync.cli._connection import Command, connect
from jetsync.cli._output import say, warn
from jetsync.cli._prometheus import families, library
from jetsync.cli._units import age_option
from jetsync.errors import JetSyncError
from jetsync.monitoring import Monitor, Reading, samples
from jetsync.monitoring.monitor import LOOKUPS, Names

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import jetsync


def address_of(text: str) -> tuple[str, int]:
    """
    Parse an address to listen on: `HOST:PORT`, or `[HOST]:PORT` for IPv6.
    """
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise click.BadParameter(f"{text!r} is not an address such as 127.0.0.1:9100")
    return host.removeprefix("[").removesuffix("]"), int(port)


@click.command(cls=Command)
@click.option(
    "--listen",
    type=address_of,
    metavar="HOST:PORT",
    default="127.0.0.1:9100",
    show_default=True,
    help="Address for Prometheus. Port 0 takes a free port.",
)
@click.option(
    "--stream",
    "streams",
    multiple=True,
    metavar="NAME",
    default=("*",),
    help="Only streams of this name, in which * stands for any text. May be repeated.",
)
@click.option(
    "--consumer",
    "consumers",
    multiple=True,
    metavar="NAME",
    default=("*",),
    help="Only consumers of this name, likewise.",
)
@click.option("--ephemeral", is_flag=True, help="Also consumers that are not durable.")
@click.option("--no-account", is_flag=True, help="Leave out the use and limits of the account.")
@click.option(
    "--lookups",
    type=click.IntRange(min=0),
    metavar="N",
    default=LOOKUPS,
    show_default=True,
    help="Read at most N messages for a scrape, to tell the age of unacknowledged ones.",
)
@age_option(
    "--interval",
    default="1s",
    show_default=True,
    help="Scrapes within this time of a reading get the same figures.",
)
def export(
    *,
    options: jetsync.ConnectOptions,
    listen: tuple[str, int],
    streams: tuple[str, ...],
    consumers: tuple[str, ...],
    ephemeral: bool,
    no_account: bool,
    lookups: int,
    interval: float,
) -> None:
    """
    Serve the figures of streams and consumers to Prometheus.

    The first line of the output is the URL. Each scrape asks the server, and ends within --timeout.
    If the server does not answer, the scrape has only `jetsync_up 0`, so the command also starts
    without a server.
    """
    prometheus = library()
    # Wrong names are an error at once, not at each scrape.
    Names("stream", streams)
    Names("consumer", consumers)
    source = Source(
        options,
        lambda js: Monitor(
            js,
            streams=streams,
            consumers=consumers,
            ephemeral=ephemeral,
            account=not no_account,
            lookups=lookups,
        ),
        interval=interval,
    )
    registry = prometheus.CollectorRegistry(auto_describe=False)
    registry.register(source)
    host, port = listen
    try:
        server, thread = prometheus.start_http_server(port, host, registry)
    except OSError as error:
        raise click.ClickException(
            f"cannot listen on {host}:{port}: {error.strerror or error}"
        ) from error
    try:
        shown = f"[{host}]" if ":" in host else host
        say(f"http://{shown}:{server.server_port}/metrics")
        say("press Ctrl-C to stop", err=True)
        while thread.is_alive():
            # On Windows, Ctrl-C has to wait for the end of this call.
            thread.join(1)
    except KeyboardInterrupt:
        say("stopped", err=True)
    finally:
        server.shutdown()
        server.server_close()
        source.close()


class Source:
    """
    A collector of the library. It connects when it is first asked, and again after the connection
    was closed for good. Threads may share it.

    Args:
        options: The connection.
        make: Makes the monitor of a connection.
        interval: How many seconds a reading serves.
    """

    def __init__(
        self,
        options: jetsync.ConnectOptions,
        make: Callable[[jetsync.JetStream], Monitor],
        *,
        interval: float,
    ) -> None:
        self._options = options
        self._make = make
        self._interval = interval
        # Scrapes at the same time share a reading.
        self._lock = interrupt_safe_lock()
        self._client: jetsync.Client | None = None
        self._monitor: Monitor | None = None
        self._reading: Reading | None = None
        self._read_at = 0.0
        self._failure: str | None = None

    def collect(self) -> Iterator[Any]:
        """
        Yield the families of metrics.
        """
        return families(samples(self._current()))

    def close(self) -> None:
        """
        Close the connection.
        """
        client, self._client = self._client, None
        if client is not None:
            client.close(timeout=self._options.request_timeout)

    def _current(self) -> Reading:
        with self._lock:
            if self._reading is None or time.monotonic() - self._read_at >= self._interval:
                self._reading = self._read(Deadline.after(self._options.request_timeout))
                self._read_at = time.monotonic()
                self._report(self._reading)
            return self._reading

    def _read(self, deadline: Deadline) -> Reading:
        try:
            if self._client is None or self._client.is_closed:
                timeout = min(self._options.connect_timeout, deadline.remaining())
                self._client = connect(attrs.evolve(self._options, connect_timeout=timeout))
                self._monitor = self._make(self._client.jetstream())
            assert self._monitor is not None
            # A reading may take twice its timeout.
            return self._monitor.read(timeout=max(deadline.remaining() / 2, 0.001))
        except JetSyncError as error:
            return Reading(error=error)

    def _report(self, reading: Reading) -> None:
        failure = None if reading.error is None else str(reading.error)
        if failure is not None and self._failure is None:
            warn(f"no figures: {failure}")
        elif failure is None and self._failure is not None:
            warn("the server answers again")
        self._failure = failure
