"""
What commands of plugins are made with, so that they look and behave as those of jetsync.

A plugin adds a command with an entry point in the group `jetsync.commands`. Its name is that of the
command, and its object is what :func:`command` or :func:`group` returns. jetsync imports it when
the command is called. The package needs the extra `cli` of jetsync.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import click

from jetsync.cli import _output
from jetsync.cli._connection import Command, Group, connect
from jetsync.cli._output import print_json, print_pairs, print_table, read_input, say, warn
from jetsync.cli._units import header_of, positive_seconds_of

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "command",
    "connect",
    "group",
    "header_of",
    "json_option",
    "positive_seconds_of",
    "print_json",
    "print_pairs",
    "print_table",
    "read_input",
    "say",
    "warn",
]

F = TypeVar("F", bound="Callable[..., Any]")


def command(
    name: str | None = None, **settings: Any
) -> Callable[[Callable[..., Any]], click.Command]:
    """
    Make a function a command with the connection options, such as ``--server`` and ``--context``.

    The function gets an argument ``options`` for :func:`connect`. If it raises an error of jetsync,
    one line on standard error says so, and the exit status is 1.

    Args:
        name: The name of the command. Default: that of the function.
        settings: Further arguments of ``click.command``.
    """
    return click.command(name, cls=Command, **settings)


def group(name: str | None = None, **settings: Any) -> Callable[[Callable[..., Any]], click.Group]:
    """
    Make a function a group of such commands, which its method ``command`` adds.

    Args:
        name: The name of the group. Default: that of the function.
        settings: Further arguments of ``click.group``.
    """
    return click.group(name, cls=Group, **settings)


def json_option(function: F) -> F:
    """
    Add the option ``--json`` to a command. Its function gets an argument ``as_json``.
    """
    return _output.json_option(function)
