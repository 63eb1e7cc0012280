"""
`jetsync plugins`: what is installed, and which hooks each one implements.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Any, Final

import click

from jetsync._hooks.manager import InstalledPlugin, Plugins, declared_hooks, installed_plugins
from jetsync.cli._output import json_option, print_json, print_table, say
from jetsync.errors import ConfigurationError, JetSyncError

UNCONFIGURED: Final = "unconfigured"
"""State of a plugin that has to be configured, and cannot be used by its name before."""


@click.command()
@json_option
def plugins(*, as_json: bool) -> None:
    """
    List the installed plugins and the hooks that they implement.

    Each one is loaded to see whether it can be. Plugins that JETSYNC_PLUGINS adds to every client
    are marked `added`, those that JETSYNC_BLOCK_PLUGINS leaves out `blocked`, and those that have
    to be configured before they can be used `unconfigured`; what is missing stands behind what they
    implement. The exit status is 1 where one is broken, or is added and cannot be used.
    """
    rows = [describe(plugin) for plugin in installed_plugins()]
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
                    "; ".join(filter(None, (", ".join(row["hooks"]), row.get("error")))),
                )
                for row in rows
            ),
        )
    if any(row.get("error") and row["state"] != UNCONFIGURED for row in rows):
        sys.exit(1)


def describe(plugin: InstalledPlugin) -> dict[str, Any]:
    """
    Load one plugin on its own and say what it is.
    """
    row: dict[str, Any] = {
        "name": plugin.name,
        "distribution": plugin.distribution,
        "version": plugin.version,
        "entry_point": plugin.value,
        "state": "installed",
        "hooks": [],
    }
    if plugin.name in _names("JETSYNC_PLUGINS"):
        row["state"] = "added"
    if plugin.name in _names("JETSYNC_BLOCK_PLUGINS"):
        # Not loaded: that may be the reason for which it is blocked.
        row["state"] = "blocked"
        return row
    try:
        (info,) = Plugins.load([plugin.name], {}).infos
    except JetSyncError as error:
        row["error"] = str(error)
        with contextlib.suppress(JetSyncError):
            row["hooks"] = list(declared_hooks(plugin.name))
        if row["state"] == "installed" and type(error.__cause__) is ConfigurationError:
            # It says so itself, and nobody has asked for it. A more special error would say that
            # its configuration is wrong.
            row["state"] = UNCONFIGURED
    else:
        row["hooks"] = list(info.hooks)
    return row


def _names(variable: str) -> set[str]:
    return {name.strip() for name in os.environ.get(variable, "").split(",")} - {""}
