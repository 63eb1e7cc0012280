"""
`jetsync server`: a real nats-server in the foreground.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from jetsync.cli._output import say
from jetsync.devserver import DevServer
from jetsync.errors import DevServerError

DEFAULT_PORT: Final = 4222

# One wait for the end of the server, in seconds; the loop around it makes it endless.
_EXIT_WAIT: Final = 60.0


@click.command()
@click.option(
    "--version", metavar="V", help="Version, such as 2.10.26. The default is the installed one."
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    metavar="N",
    default=DEFAULT_PORT,
    show_default=True,
    help="Port of the server, or 0 for a free one.",
)
@click.option(
    "--store",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder to keep JetStream's files in.  [default: a temporary folder]",
)
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    help="More configuration, such as TLS and logins: a file in the server's language.",
)
def server(version: str | None, port: int, store: Path | None, config: Path | None) -> None:
    """
    Run a nats-server with JetStream until Ctrl-C.

    The first line of the output is its URL. The server listens on 127.0.0.1 only. The options take
    precedence over the client port and the store of --config, and its monitoring port is ignored.
    """
    try:
        with DevServer(version, config=config, store=store, port=port or None) as running:
            say(running.url)
            where = "a temporary folder" if store is None else str(store.resolve())
            say(f"nats-server {running.version}, JetStream in {where}", err=True)
            say("press Ctrl-C to stop", err=True)
            while not has_ended(running):
                pass
            raise click.ClickException(f"nats-server ended by itself\n{running.log()}")
    except KeyboardInterrupt:
        say("stopped", err=True)


def has_ended(running: DevServer) -> bool:
    """
    Wait briefly for the server's process to end, and return whether it has.
    """
    try:
        running.wait_exit(timeout=_EXIT_WAIT)
    except DevServerError:
        return False
    return True
