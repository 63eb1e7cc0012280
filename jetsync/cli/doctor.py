"""
`jetsync doctor`: what a server supports, and why a feature does not work there.
"""

from __future__ import annotations

import importlib.metadata
import platform
import statistics
import sys
from itertools import starmap
from typing import Any, Final

import attrs
import click

import jetsync
from jetsync._base import speedups
from jetsync._hooks.manager import installed_plugins
from jetsync._io.bridge import choose_uvloop
from jetsync._io.login import make_login
from jetsync._io.nats_seam import NEWEST, TESTED, minor_version
from jetsync._io.tls import asks_tls
from jetsync.cli._connection import Command, connect
from jetsync.cli._features import NAMES, Verdict, missing, verdicts
from jetsync.cli._output import (
    ERROR,
    GOOD,
    WARNING,
    Styled,
    attributes,
    duration,
    json_option,
    limit,
    print_json,
    print_pairs,
    print_table,
    say,
    size,
)
from jetsync.cli._specifications import Coverage, coverage
from jetsync.cli.plugins import describe
from jetsync.errors import (
    ApiError,
    JetSyncError,
    NoRespondersError,
    PermissionDeniedError,
    RequestTimeoutError,
)
from jetsync.values.codec import to_wire

# Enough for a median that one slow answer does not move.
_PINGS: Final = 5

# Seconds to wait for another server of a cluster, which may be far away.
_STALL: Final = 1.0

_SYSTEM_ACCOUNT: Final = "this user belongs to the system account, which has no JetStream"

# An acknowledgement says nothing about the disk, so users should know where to look.
_UNKNOWN_SYNC: Final = "not shown to this user; run doctor as a user of the system account"


Servers = tuple[tuple[jetsync.Varz, jetsync.Healthz | None], ...]
"""Servers and their health, which is `None` if the server did not answer that question."""


@attrs.frozen
class Report:
    """
    The result of examining a server.
    """

    server: jetsync.ServerInfo
    tls: bool
    """Whether the connection uses TLS."""

    rtt: float
    """The median of some round trips, in seconds."""

    level: int
    """The API level of the server that answers JetStream requests."""

    account: jetsync.AccountInfo | None
    jetstream: str | None
    """Why there is no JetStream; `None` if there is."""

    verdicts: tuple[Verdict, ...]

    servers: Servers = ()
    """All servers, if the user belongs to the system account."""

    specifications: tuple[Coverage, ...] = ()
    """What the server can do of each specification; empty if there is no JetStream."""

    @property
    def problems(self) -> list[str]:
        """
        What is wrong.
        """
        if self.servers:
            return unhealthy(self.servers)
        return [] if self.jetstream is None else [self.jetstream]

    def as_json(self, problems: list[str]) -> dict[str, Any]:
        """
        Return it as `--json` prints it.
        """
        server = self.server
        return {
            "ok": not problems,
            "problems": problems,
            "server": {
                **attributes(server, "url", "version"),
                "name": server.server_name,
                "id": server.server_id,
                **attributes(server, "cluster", "max_payload", "lame_duck"),
            },
            "tls": self.tls,
            "rtt_ms": round(self.rtt * 1000, 3),
            "api_level": self.level,
            "account": None if self.account is None else to_wire(self.account),
            "features": [verdict.as_json() for verdict in self.verdicts],
            "specifications": [each.as_json() for each in self.specifications],
            **({"servers": [*starmap(_server_as_json, self.servers)]} if self.servers else {}),
        }


@click.command(cls=Command)
@click.argument("url", required=False)
@click.option(
    "--require",
    "required",
    multiple=True,
    type=click.Choice(NAMES),
    metavar="FEATURE",
    help=f"Exit with 1 unless this feature works: {', '.join(NAMES)}. May be repeated.",
)
@json_option
def doctor(
    *,
    options: jetsync.ConnectOptions,
    url: str | None,
    required: tuple[str, ...],
    as_json: bool,
) -> None:
    """
    Show this installation, and what the server at URL supports.

    The report begins with jetsync, whether its compiled core runs, Python, nats-py, the event loop,
    the kind of login and the plugins, also if there is no connection. It continues with the server,
    TLS, the round-trip time, the account and its limits, which features of JetStream work, and why
    the others do not. It ends with the clauses of the specifications that the server cannot do.
    Nothing is created on the server.
    The exit status is 1 if there is no connection or no JetStream, or if a feature that --require
    names does not work.

    In a cluster, the report is about the server that answered. Others may run another version. If
    the user belongs to the system account, the report lists all servers with their health, and
    whether the disk has a message before it is acknowledged (`disk sync`: `always`, or how often
    the server writes to the disk). That account has no JetStream, so the exit status then depends
    on the health of the servers instead.
    """
    if url is not None:
        options = options.evolve(servers=url)
    client = installation(options)
    if not as_json:
        show_installation(client)
    try:
        report = examine(options)
    except JetSyncError as error:
        if as_json:
            print_json({"ok": False, "problems": [str(error)], "client": client})
            sys.exit(1)
        raise
    problems = report.problems
    problems += [f"{name} does not work" for name in missing(report.verdicts, required)]
    if as_json:
        print_json({**report.as_json(problems), "client": client})
    else:
        show(report)
        for problem in problems:
            say(f"problem: {problem}", style=ERROR, err=True)
    if problems:
        sys.exit(1)


def installation(options: jetsync.ConnectOptions) -> dict[str, Any]:
    """
    Return the versions of jetsync and of what it runs on, and the kind of login, as `--json` does.
    """
    try:
        uvloop = choose_uvloop(options.loop)
        loop = f"uvloop {importlib.metadata.version('uvloop')}" if uvloop else "asyncio"
    except JetSyncError as error:
        loop = str(error)
    try:
        # Any nonce: without one, there would be no key.
        sent = make_login(options, options.server_list()[0], "nonce")
        login = sent.kind if sent.fields else None
    except JetSyncError as error:
        login = str(error)
    return {
        "jetsync": jetsync.__version__,
        "variant": speedups.VARIANT,
        "python": f"{platform.python_version()} ({platform.python_implementation()})",
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "nats_py": importlib.metadata.version("nats-py"),
        "event_loop": loop,
        "login": login,
        "plugins": [describe(plugin) for plugin in installed_plugins().values()],
    }


def show_installation(client: dict[str, Any]) -> None:
    """
    Print the same for people.
    """
    tested = (minor_version(client["nats_py"]) or NEWEST) <= NEWEST
    plugins = [
        f"{row['name']} {row.get('version') or ''} ({row['state']})" for row in client["plugins"]
    ]
    print_pairs(
        [
            ("jetsync", client["jetsync"]),
            ("variant", client["variant"]),
            ("", speedups.advice()),
            ("Python", client["python"]),
            ("system", client["system"]),
            ("nats-py", client["nats_py"] + ("" if tested else f" (tested: {TESTED})")),
            ("event loop", client["event_loop"]),
            ("login", client["login"] or "none"),
            ("plugins", ", ".join(plugins) or "none installed"),
        ]
    )
    say()


def examine(options: jetsync.ConnectOptions) -> Report:
    """
    Connect and examine the server.
    """
    with connect(options) as client:
        rtt = statistics.median(client.rtt() for _ in range(_PINGS))
        account, jetstream = None, None
        servers: Servers = ()
        try:
            account = client.jetstream().account_info()
        except (ApiError, NoRespondersError) as error:
            # JetStream is off on the server or for the account, or the domain is wrong.
            servers = ask_servers(client)
            jetstream = _SYSTEM_ACCOUNT if servers else str(error)
        server = client.server
        level = server.api_level if account is None else account.api.level
        return Report(
            server=server,
            # The connection fails if one of the two asks for TLS and the other offers none.
            tls=server.raw.get("tls_required") is True or asks_tls(options),
            rtt=rtt,
            level=level,
            account=account,
            jetstream=jetstream,
            verdicts=verdicts(server.version, level, jetstream=jetstream),
            servers=servers,
            specifications=coverage(server.version) if jetstream is None else (),
        )


def ask_servers(client: jetsync.Client) -> Servers:
    """
    Return all servers and their health; nothing if the user may not ask them.
    """
    try:
        found = client.system(stall=_STALL).varz()
        healthy = client.system(stall=_STALL, servers=len(found)).healthz()
    except (ApiError, NoRespondersError, PermissionDeniedError, RequestTimeoutError):
        return ()
    by_id = {each.server.id: each for each in healthy}
    return tuple((each, by_id.get(each.server.id)) for each in found)


def unhealthy(servers: Servers) -> list[str]:
    """
    Return what is wrong with each server that is not healthy.
    """
    return [
        f"server {varz.server.name} is not healthy: {_health(health)}"
        for varz, health in servers
        if _health(health) != "ok"
    ]


def _health(health: jetsync.Healthz | None) -> str:
    if health is None:
        return "no answer"
    return "ok" if health.ok else health.error or health.status


def _sync(varz: jetsync.Varz) -> str:
    """Return when the disk of a server has a message; empty without JetStream."""
    if varz.sync_always:
        return "always"
    return "" if varz.sync_interval is None else f"every {duration(varz.sync_interval)}"


def _server_as_json(varz: jetsync.Varz, health: jetsync.Healthz | None) -> dict[str, Any]:
    return {
        "name": varz.server.name,
        "id": varz.server.id,
        "cluster": varz.server.cluster,
        "version": varz.server.ver,
        "jetstream": varz.server.jetstream,
        "healthy": _health(health) == "ok",
        "health": _health(health),
        "sync_always": varz.sync_always,
        "sync_interval": varz.sync_interval,
        "uptime": varz.uptime,
        "connections": varz.connections,
        "memory": varz.mem,
        "cpu": varz.cpu,
    }


def show(report: Report) -> None:
    """
    Print the report for people.
    """
    server, account = report.server, report.account
    print_pairs(
        [
            ("server", f"{server.url}  nats-server {server.version}"),
            ("name", server.server_name if server.server_name != server.server_id else None),
            ("cluster", server.cluster),
            ("TLS", "yes" if report.tls else "not used"),
            ("round trip", f"{report.rtt * 1000:.2f} ms"),
            ("max payload", size(server.max_payload)),
            ("lame duck", "yes, it is about to shut down" if server.lame_duck else None),
            ("JetStream", report.jetstream or f"API level {report.level}"),
        ]
    )
    if account is not None:
        say()
        limits = account.limits
        print_pairs([("domain", account.domain), ("disk sync", _UNKNOWN_SYNC)])
        print_table(
            ("account", "used", "limit"),
            [
                ("memory", size(account.memory), size(limits.max_memory)),
                ("storage", size(account.storage), size(limits.max_storage)),
                ("streams", f"{account.streams:,}", limit(limits.max_streams)),
                ("consumers", f"{account.consumers:,}", limit(limits.max_consumers)),
            ],
            numbers=("used", "limit"),
        )
    if report.servers:
        say()
        print_table(
            (
                *("servers", "version", "cluster", "health", "disk sync", "uptime"),
                *("connections", "memory", "load"),
            ),
            (
                (
                    varz.server.name,
                    varz.server.ver,
                    varz.server.cluster or "",
                    Styled(_health(health), GOOD if _health(health) == "ok" else ERROR),
                    _sync(varz),
                    varz.uptime,
                    f"{varz.connections:,}",
                    size(varz.mem),
                    f"{varz.cpu:.0f} %",
                )
                for varz, health in report.servers
            ),
            numbers=("connections", "memory", "load"),
        )
    say()
    print_table(
        ("feature", "--require", "works", "note"),
        (
            (
                verdict.feature.title,
                verdict.feature.name,
                Styled("yes", GOOD) if verdict.works else Styled("no", ERROR),
                Styled(verdict.why, WARNING),
            )
            for verdict in report.verdicts
        ),
    )
    if report.specifications:
        say()
        print_table(
            ("specification", "clauses", "note"),
            (
                (each.title, f"{each.works} of {each.clauses}", Styled(each.note, WARNING))
                for each in report.specifications
            ),
        )
