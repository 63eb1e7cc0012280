"""
Fixtures of the tests of the command line.
"""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from jetsync.cli import _app


@pytest.fixture
def own_commands(monkeypatch):
    """
    Leave out the commands of plugins that are installed.
    """
    monkeypatch.setattr(_app, "plugin_commands", dict)


@pytest.fixture
def run(monkeypatch):
    """
    Run a command in an environment without any NATS variable; a function from arguments.
    """
    for variable in ("NATS_URL", "NATS_CONTEXT", "NATS_USER", "NATS_PASSWORD", "NATS_TOKEN"):
        monkeypatch.delenv(variable, raising=False)
    for variable in ("NATS_CREDS", "NATS_NKEY", "JETSYNC_PLUGINS", "JETSYNC_BLOCK_PLUGINS"):
        monkeypatch.delenv(variable, raising=False)

    def run(*arguments, **options):
        return CliRunner().invoke(_app.jetsync, arguments, **options)

    return run
