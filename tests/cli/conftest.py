"""
Fixtures of the tests of the command line.
"""

from __future__ import annotations

import pytest

from jetsync.cli import _app


@pytest.fixture
def own_commands(monkeypatch):
    """
    Leave out the commands of plugins that are installed.
    """
    monkeypatch.setattr(_app, "plugin_commands", dict)
