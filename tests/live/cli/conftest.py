"""
Fixtures of the command line's live tests.
"""

from __future__ import annotations

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
