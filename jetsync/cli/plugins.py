"""
`jetsync plugins`: what is installed, and which hooks each one implements.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TYPE_CHECKING, Any, Final

import click

from jetsync._hooks.manager import Plugins, declared_hooks, installed_plugins
from jetsync.cli._output import ERROR, Styled, json_option, print_json, print_table, say
from jetsync.errors import ConfigurationError, JetSyncError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

UNCONFIGURED: Final = "unconfigured"
"""The state of a plugin that cannot be loaded by name before it is configured."""


@click.command()
@json_option
def plugins(*, as_json: bool) -> None:
    """
    List the installed plugins and the hooks that they implement.

    The command loads each plugin. The state `added` means that JETSYNC_PLUGINS adds the plugin to
    every client, and `blocked` that JETSYNC_BLOCK_PLUGINS leaves it out. A plugin that is
    `unconfigured` needs configuration first. Its line names what is missing. The exit status is 1
    if a plugin is broken, or is added and cannot be used.
    """
    rows = [describe(plugin) for plugin in installed_plugins().values()]
    missing = sorted(
        _names("JETSYNC_PLUGINS") - _names("JETSYNC_BLOCK_PLUGINS") - {row["name"] for row in rows}
    )
    rows += [
        {"name": name, "state": "added", "hooks": [], "error": "not installed"} for name in missing
    ]
    if as_json:
        print_json(rows)
    elif not rows:
        say("No plugins are installed.")
    else:
        print_table(
            ("plugin", "version", "state", "hooks"),
            (
                (
                    row["name"],
                    row.get("version") or "",
                    row["state"],
                    Styled(
                        "; ".join(filter(None, (", ".join(row["hooks"]), row.get("error")))),
                        ERROR if broken(row) else "",
                    ),
                )
                for row in rows
            ),
        )
    if any(map(broken, rows)):
        sys.exit(1)


def broken(row: dict[str, Any]) -> bool:
    """
    Return whether a plugin cannot be used, for a reason other than missing configuration.
    """
    return bool(row.get("error")) and row["state"] != UNCONFIGURED


def describe(plugin: EntryPoint) -> dict[str, Any]:
    """
    Load one plugin and describe it.
    """
    row: dict[str, Any] = {
        "name": plugin.name,
        "distribution": None if plugin.dist is None else plugin.dist.name,
        "version": None if plugin.dist is None else plugin.dist.version,
        "entry_point": plugin.value,
        "state": "installed",
        "hooks": [],
    }
    if plugin.name in _names("JETSYNC_PLUGINS"):
        row["state"] = "added"
    if plugin.name in _names("JETSYNC_BLOCK_PLUGINS"):
        # It is not loaded, because loading it may be why it is blocked.
        row["state"] = "blocked"
        return row
    try:
        (info,) = Plugins.load([plugin.name], {}).infos
    except JetSyncError as error:
        row["error"] = str(error)
        with contextlib.suppress(JetSyncError):
            row["hooks"] = list(declared_hooks(plugin.name))
        if row["state"] == "installed" and type(error.__cause__) is ConfigurationError:
            # The plugin itself raised it. A subclass would mean that its configuration is wrong.
            row["state"] = UNCONFIGURED
    else:
        row["hooks"] = list(info.hooks)
    return row


def _names(variable: str) -> set[str]:
    return {name.strip() for name in os.environ.get(variable, "").split(",")} - {""}
