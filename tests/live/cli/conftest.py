"""
Fixtures of the command line's live tests.
"""

from __future__ import annotations

import os
import sys

import click.testing
import pytest


@pytest.fixture
def terminal(monkeypatch):
    """
    The input of commands comes from a terminal.
    """
    monkeypatch.setattr(
        click.testing._NamedTextIOWrapper, "isatty", lambda self: self.name == "<stdin>"
    )


@pytest.fixture
def environment(nats_server, tmp_path):
    """
    The environment of a user: a home of their own, `jetsync` on the path, and the shared server.
    """
    folder = tmp_path / "bin"
    folder.mkdir()
    script = folder / "jetsync"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m jetsync "$@"\n')
    script.chmod(0o755)
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("NATS_", "XDG_", "JETSYNC_", "COMP_"))
        and name not in {"NO_COLOR", "COLUMNS", "LINES"}
    }
    return {
        **kept,
        "HOME": str(tmp_path),
        "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "TERM": "xterm-256color",
        "NATS_URL": nats_server.url,
        "JETSYNC_COMPLETION_TIMEOUT": "60",
    }


@pytest.fixture
def pseudo_terminal(environment):
    """
    Start a process in a pseudo-terminal; a function from arguments.
    """
    # Windows has no pseudo-terminals of this kind.
    from helpers.terminals import Terminal

    started = []

    def start(*command, size=(80, 24), **variables):
        started.append(Terminal(*command, env={**environment, **variables}, size=size))
        return started[-1]

    yield start
    for each in started:
        each.close()
