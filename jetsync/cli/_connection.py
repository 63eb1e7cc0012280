"""
The connection options of all commands. They take precedence over the environment.
"""

from __future__ import annotations

from typing import Any, Final

import click

import jetsync
from jetsync.cli._output import duration, warn
from jetsync.cli._suggestions import SuggestingGroup
from jetsync.cli._units import positive_seconds_of
from jetsync.options import TOGETHER
from jetsync.values.server_urls import address, read_servers

COMMAND: Final = "jetsync.cli.command"
"""The command that runs, in the data that contexts of click share."""

CONNECTION: Final = (
    click.Option(
        ["-s", "--server", "servers"],
        metavar="URL",
        help="Server URL, or several separated by commas.",
    ),
    click.Option(["--context"], metavar="NAME", help="Saved context of the nats command line."),
    click.Option(["--user"], metavar="NAME", help="User name."),
    click.Option(["--password"], metavar="TEXT", help="Password. NATS_PASSWORD is safer."),
    click.Option(["--token"], metavar="TEXT", help="Token. NATS_TOKEN is safer."),
    click.Option(["--creds", "credentials"], metavar="FILE", help="Credentials file."),
    click.Option(["--nkey", "nkey_seed"], metavar="FILE", help="File with the seed of an NKey."),
    click.Option(
        ["--tls-ca"], metavar="FILE", help="File with trusted certificate authorities (PEM)."
    ),
    click.Option(["--tls-cert"], metavar="FILE", help="File with the client's certificate (PEM)."),
    click.Option(
        ["--tls-key"], metavar="FILE", help="File with the key of that certificate (PEM)."
    ),
    click.Option(["--domain", "jetstream_domain"], metavar="NAME", help="JetStream domain."),
    click.Option(
        ["--timeout"],
        type=positive_seconds_of,
        metavar="DURATION",
        help="How long to wait for the connection and for each answer.  [default: 5s]",
    ),
)

FIELDS: Final = tuple(str(option.name) for option in CONNECTION)
"""The arguments of :func:`make_options`."""


class Command(click.Command):
    """
    A command with the connection options. Its function gets them as one argument `options`.

    The command line takes precedence over the context, and the context over the environment. A
    login on the command line replaces the complete login of the context and the environment. If the
    environment names a server, its options are not used for another one.
    """

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.params = [*self.params, *CONNECTION]

    def invoke(self, ctx: click.Context) -> Any:
        """
        Run the command, and let the group know its options if it fails.
        """
        ctx.meta[COMMAND] = self
        fields = {name: ctx.params.pop(name) for name in FIELDS}
        ctx.params["options"] = make_options(**fields)
        return super().invoke(ctx)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """
        Write the connection options after the others, under a heading of their own.
        """
        sections: dict[str, list[tuple[str, str]]] = {"Options": [], "Connection": []}
        for option in self.get_params(ctx):
            record = option.get_help_record(ctx)
            if isinstance(option, click.Option) and record is not None:
                sections["Connection" if option in CONNECTION else "Options"].append(record)
        for title, records in sections.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


class Group(SuggestingGroup):
    """
    A group of such commands.
    """

    command_class = Command


def make_options(
    *, context: str | None = None, timeout: float | None = None, **fields: str | None
) -> jetsync.ConnectOptions:
    """
    Make connection options from the command line.

    Raises:
        ConfigurationError: The environment or the context is invalid.

        InvalidArgumentError: An option is invalid.
    """
    changes: dict[str, Any] = {name: text for name, text in fields.items() if text is not None}
    if context is not None:
        options = jetsync.ConnectOptions.from_context(context)
    else:
        options = jetsync.ConnectOptions.from_env()
        if "servers" in changes and not _is_server_of(options, changes["servers"]):
            # Its password is for the server that it names.
            options = jetsync.ConnectOptions()
    if changes.get("user") is not None and changes.get("password") is None:
        # With --user alone, the password may be in the environment.
        changes["password"] = options.password
    for group in TOGETHER:
        if any(name in changes for name in group):
            changes = {**dict.fromkeys(group), **changes}
    if timeout is not None:
        changes |= {"connect_timeout": timeout, "request_timeout": timeout}
    return options.evolve(name=options.name or "jetsync command line", **changes)


def _is_server_of(options: jetsync.ConnectOptions, given: str) -> bool:
    """
    Return whether options are for a server from the command line: they name it, or none.
    """
    if options.servers is None:
        return True
    own = {address(url) for url in options.server_list()}
    return own >= {address(url) for url in read_servers(given)}


def connect(options: jetsync.ConnectOptions) -> jetsync.Client:
    """
    Connect, as a context manager, and print warnings.
    """
    return jetsync.connect(options=options, plugins=[Notices()])


def jetstream(options: jetsync.ConnectOptions) -> jetsync.JetStream:
    """
    Connect until the command ends.
    """
    return click.get_current_context().with_resource(connect(options)).jetstream()


class Notices:
    """
    A plugin that prints on standard error what the user should know while a command runs.
    """

    def __init__(self) -> None:
        self._warned: set[str] = set()

    @jetsync.hookimpl
    def jetsync_status(self, event: jetsync.StatusEvent) -> None:
        """Report lost connections, and what the server does differently from what was asked."""
        if event.kind is jetsync.StatusKind.DISCONNECTED:
            warn("the connection was lost; reconnecting")
        elif event.kind is jetsync.StatusKind.RECONNECTED:
            warn("reconnected")
        elif isinstance(event, jetsync.FilterOutsideSubjectsEvent):
            filters = ", ".join(event.filters)
            self._warn_once(
                f"the stream has no subject that matches {filters}: it stores no more such messages"
            )
        elif isinstance(event, jetsync.TtlRaisedEvent):
            asked, stored = duration(event.asked), duration(event.stored)
            self._warn_once(f"the stream keeps messages for {stored} instead of {asked}")

    def _warn_once(self, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            warn(text)
