"""
The command group: the list of commands, and the handling of errors.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import importlib
import re
from typing import TYPE_CHECKING, Any, Final

import click

import jetsync as package
from jetsync.cli._output import say, show_error, visible, without_output
from jetsync.cli._signals import ends_interrupt
from jetsync.cli._suggestions import SuggestingGroup
from jetsync.errors import DevServerError, JetSyncError
from jetsync.errors.texts import redact_text

if TYPE_CHECKING:
    from collections.abc import Iterator
    from importlib.metadata import EntryPoint

    from click.shell_completion import CompletionItem

COMMANDS: Final = {
    "bench": "Measure how fast a server stores and delivers messages.",
    "check": "Compare streams, consumers and servers with limits.",
    "completion": "Install completion for bash, zsh or fish.",
    "consumer": "List, show, add, edit, read, pause, reset and remove consumers.",
    "dead": "List, show, put back and remove dead letters.",
    "doctor": "Show this installation, and what a server supports.",
    "export": "Serve the figures of streams and consumers to Prometheus.",
    "get": "Show one message of a stream.",
    "kv": "Create, list, read, change and watch key-value buckets.",
    "object": "Put, get, list, remove and watch objects in object stores.",
    "permissions": "Print the permissions that a program needs.",
    "plugins": "List the installed plugins and their hooks.",
    "pub": "Publish messages, and print where they are stored.",
    "query": "Answer SQL over streams and key-value buckets.",
    "server": "Run a nats-server with JetStream until Ctrl-C.",
    "stream": "List, find, show, add, edit, empty and remove streams.",
    "tail": "Print the messages of a stream as they are stored.",
    "top": "Show streams and consumers with their rates and lag, live.",
}
"""
The line about each command in `jetsync --help`, which imports none of them. The command is in the
module of its name, under its name. Plugins add commands by entry points.
"""

PLUGIN_COMMANDS: Final = "jetsync.commands"
"""The group of entry points with the commands of plugins."""

_ADVICE: Final = {
    "use create_or_update_stream to change it": "`jetsync stream info` shows it, "
    "`jetsync stream edit` changes it, and `jetsync stream rm` removes it",
    "use create_or_update_consumer to change it": "`jetsync consumer info` shows it, "
    "`jetsync consumer edit` changes it, and `jetsync consumer rm` removes it",
    "use create_or_update_key_value to change it": "`jetsync kv status` shows it, "
    "`nats kv edit` changes it, and `jetsync kv rm` removes it",
    "use create_or_update_object_store to change it": "`jetsync object info` shows it, "
    "and `jetsync object rm` removes it",
    "the stream needs allow_msg_ttl=True": "give the stream --ttl with `jetsync stream edit`",
    "the stream needs allow_atomic=True": "give the stream --atomic with `jetsync stream edit`",
    "the stream needs allow_batched=True": "give the stream --batched with `jetsync stream edit`",
    "the stream needs allow_msg_schedules=True": "give the stream --schedules with "
    "`jetsync stream edit`",
    "the bucket needs limit_marker_ttl": "create the bucket with --limit-marker-ttl",
    "stream_names(subject=...) lists the streams that have a subject": "`jetsync stream ls "
    "--subject SUBJECT` lists the streams that have a subject",
    "needs allow_direct=True on the stream": "give the stream --direct with `jetsync stream edit`",
    "also set duplicate_window to at most max_age": "also set --duplicate-window to at most "
    "--max-age",
    "give the authority of its certificate as tls_ca": "name its authority with --tls-ca",
    "give that as tls_hostname": "use that name in the URL",
    "check the port, and tls_first if given": "check the port",
    "with message.headers.forwardable()": "without the headers that servers set",
    "use tls_first": "use a context of the nats command line with TLS first",
    "for a login with a seed alone use nkey_seed": "for a login with a seed alone use --nkey",
    "to sign without a seed use nkey_signature": "it needs both",
    "repeating it without a msg_id": "repeating it without --msg-id",
    "repeating it with msg_id": "repeating it with --msg-id",
    "(its ack_policy is 'none')": "(it was created with --ack none): use --ack none",
    "the client sent no user, token or key": "the client sent no user, token or key (a login of "
    "the environment is sent only to the server that the environment names)",
    "password needs user;": "--password needs --user;",
    "is a server running there?": "is a server running there? `jetsync server` starts one",
}
"""What errors advise in terms of Python, and in terms of commands."""


_STREAM_ERRORS: Final = frozenset({errno.EBADF, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.ENOSPC})
"""Errors of a file that the user has redirected standard input or output to, and of a terminal."""


class Commands(SuggestingGroup):
    """
    Import each command when it is called, and print errors of jetsync as one line.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return sorted(COMMANDS.keys() | plugin_commands())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's signature
        if cmd_name not in COMMANDS:
            entry = plugin_commands().get(cmd_name)
            return None if entry is None else load_command(entry)
        module = importlib.import_module(f"jetsync.cli.{cmd_name}")
        command = getattr(module, cmd_name)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's signature
        with formatter.section("Commands"):
            formatter.write_dl(sorted(all_commands().items()))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem[Any]]:
        from click.shell_completion import CompletionItem

        commands = all_commands().items()
        found = {name: about for name, about in commands if name.startswith(incomplete)}
        items = [CompletionItem(name, help=about) for name, about in sorted(found.items())]
        return items + click.Command.shell_complete(self, ctx, incomplete)

    def make_context(self, *arguments: Any, **extra: Any) -> click.Context:
        with readable_errors():
            return super().make_context(*arguments, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        with ends_interrupt(), readable_errors(ctx):
            return super().invoke(ctx)


def plugin_commands() -> dict[str, EntryPoint]:
    """
    Return the entry points of the commands of installed plugins by name, without importing them.

    No plugin replaces a command of jetsync. If several plugins have a command of the same name, the
    first one counts.
    """
    # `jetsync --version` and jetsync's own commands do not need it.
    import importlib.metadata

    entries = importlib.metadata.entry_points(group=PLUGIN_COMMANDS)
    return {entry.name: entry for entry in reversed([*entries]) if entry.name not in COMMANDS}


def load_command(entry: EntryPoint) -> click.Command:
    """
    Import the command of a plugin.

    Raises:
        ClickException: It cannot be imported, or is no command of click.
    """
    owner = f"the command {entry.name!r} of {_owner(entry)}"
    try:
        command = entry.load()
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise click.ClickException(f"{owner} cannot be loaded: {reason}") from error
    if not isinstance(command, click.Command):
        raise click.ClickException(f"{owner} is no command of click but {command!r}")
    return command


def all_commands() -> dict[str, str]:
    """
    Return a line about each command. For a command of a plugin, it is the summary of the plugin.
    """
    found = dict(COMMANDS)
    for name, entry in plugin_commands().items():
        summary = None if entry.dist is None else entry.dist.metadata["Summary"]
        found[name] = f"{summary or 'A command of ' + _owner(entry)}"
    return found


def _owner(entry: EntryPoint) -> str:
    return entry.value if entry.dist is None else entry.dist.name


@contextlib.contextmanager
def readable_errors(ctx: click.Context | None = None) -> Iterator[None]:
    """
    Print an error of jetsync, or of standard input or output, as one line, without control
    characters and secrets.

    Args:
        ctx: The context of the group, to name options of the command that fails.
    """
    try:
        yield
    except JetSyncError as error:
        # Only these have lines of their own: those of a log.
        text = visible(str(error), lines=isinstance(error, DevServerError))
        for advice, command in _ADVICE.items():
            text = text.replace(advice, command)
        # Here, because it imports the client, which `jetsync --version` does not need.
        from jetsync.cli._connection import COMMAND

        if ctx is not None and COMMAND in ctx.meta:
            text = with_options(text, ctx.meta[COMMAND])
        raise coloured(click.ClickException(text)) from error
    except click.ClickException as error:
        text = error.message
        if isinstance(error, click.UsageError):
            # The message quotes the argument, which may be a URL with a password.
            text = redact_text(text)
        # The attribute is declared as final.
        vars(error)["message"] = visible(text, lines=True)
        coloured(error)
        raise
    except OSError as error:
        if error.errno not in _STREAM_ERRORS or error.filename is not None:
            # Also that of a closed pipe: click ends the command without a line.
            raise
        without_output()
        text = visible(f"standard input or output: {error.strerror or error}")
        raise coloured(click.ClickException(text)) from error


def with_options(text: str, command: click.Command) -> str:
    """
    Return the text of an error with the options of a command in place of fields, as in
    `--max-age` for `max_age`.
    """
    for option in command.params:
        name = option.name or ""
        # Other names are also ordinary words.
        if isinstance(option, click.Option) and "_" in name:
            text = re.sub(rf"(?<![\w'\".$/-]){name}(=True)?(?![\w'\".(])", option.opts[-1], text)
    return text


def coloured(error: click.ClickException) -> click.ClickException:
    """
    Let an error print itself in colour.
    """
    vars(error)["show"] = functools.partial(show_error, error)
    return error


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

    This command covers everyday work with streams, consumers and buckets. For everything else, such
    as accounts, clusters and core NATS, use the `nats` command line. Both read the same
    contexts and environment variables.

    Commands connect to --server, or use the saved context of --context, or these environment
    variables: NATS_URL, NATS_CONTEXT, NATS_USER, NATS_PASSWORD, NATS_TOKEN, NATS_CREDS, NATS_NKEY,
    NATS_CA, NATS_CERT and NATS_KEY. The default server is nats://127.0.0.1:4222. These options
    follow the command: `jetsync stream ls --server URL`. If the environment names a server, its
    login and files are not used for another one in --server.

    DURATION is a time such as 250ms, 90s, 1h30m or 7d. SIZE is a number of bytes such as 512KB or
    1GB.
    """
