"""
The command `jetsync plugins`.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import sys
import types

import pytest

import jetsync
from jetsync.hookspecs import hookimpl


class Sample:
    """
    A plugin with two hooks.
    """

    @hookimpl
    def jetsync_status(self, event):
        pass

    @hookimpl
    def jetsync_prepare_message(self, message):
        pass


@pytest.fixture
def install(monkeypatch):
    """
    Install plugins for one test; a function from names and targets.
    """

    def install(**targets):
        module = types.ModuleType("pkg_of_plugins")
        for name, target in targets.items():
            if target is not None:
                setattr(module, name, target)
        monkeypatch.setitem(sys.modules, module.__name__, module)
        found = [
            importlib.metadata.EntryPoint(name, f"{module.__name__}:{name}", "jetsync")
            for name in targets
        ]
        monkeypatch.setattr(
            importlib.metadata, "entry_points", lambda group: importlib.metadata.EntryPoints(found)
        )

    return install


class TestPlugins:
    def test_none_installed(self, run, install):
        """
        An empty list is printed as a sentence, or as an empty JSON list.
        """
        install()

        assert run("plugins").output == "No plugins are installed.\n"
        assert json.loads(run("plugins", "--json").output) == []

    def test_lists_the_hooks_of_each(self, run, install):
        """
        Each plugin is listed with the hooks that it implements.
        """
        install(retry=Sample, otel=Sample)

        result = run("plugins")

        assert result.exit_code == 0
        assert [line.split() for line in result.output.splitlines()] == [
            ["plugin", "version", "state", "hooks"],
            ["otel", "installed", "jetsync_prepare_message,", "jetsync_status"],
            ["retry", "installed", "jetsync_prepare_message,", "jetsync_status"],
        ]

    def test_added_and_blocked(self, run, install):
        """
        Added and blocked plugins are marked; one that is added and missing is an error.
        """
        install(retry=Sample, otel=None)

        result = run(
            "plugins",
            "--json",
            env={"JETSYNC_PLUGINS": "retry, gone", "JETSYNC_BLOCK_PLUGINS": "otel"},
        )

        rows = {row["name"]: row for row in json.loads(result.output)}
        assert {name: row["state"] for name, row in rows.items()} == {
            "gone": "added",
            "otel": "blocked",
            "retry": "added",
        }
        assert rows["gone"]["error"] == "not installed"
        assert rows["otel"]["hooks"] == []
        assert result.exit_code == 1

    def test_one_that_is_added_and_blocked_need_not_be_there(self, run, install):
        """
        Clients do not look for it either.
        """
        install()

        result = run("plugins", env={"JETSYNC_PLUGINS": "gone", "JETSYNC_BLOCK_PLUGINS": "gone"})

        assert (result.exit_code, result.output) == (0, "No plugins are installed.\n")

    def test_one_that_can_not_be_loaded(self, run, install):
        """
        The reason is printed instead of the hooks, and the exit status is not 0.
        """
        install(broken=None)

        result = run("plugins")

        assert result.exit_code == 1
        assert "'broken' (pkg_of_plugins:broken) cannot be loaded" in result.output

    def test_one_that_has_to_be_configured(self, run, install):
        """
        The plugin is fine: its hooks are listed, followed by the missing configuration.
        """

        class Unset(Sample):
            def __init__(self):
                raise jetsync.ConfigurationError("set $UNSET")

        install(unset=Unset)

        result = run("plugins")
        (row,) = json.loads(run("plugins", "--json").output)

        assert result.exit_code == 0
        assert "jetsync_prepare_message, jetsync_status; " in result.output
        assert row["state"] == "unconfigured"
        assert "set $UNSET" in row["error"]
        assert row["hooks"] == ["jetsync_prepare_message", "jetsync_status"]
        assert run("plugins", env={"JETSYNC_BLOCK_PLUGINS": "unset"}).exit_code == 0

    def test_one_that_every_client_asks_for_has_to_be_configured(self, run, install):
        """
        No client could be made, so the exit status is not 0.
        """

        class Unset(Sample):
            def __init__(self):
                raise jetsync.ConfigurationError("set $UNSET")

        install(unset=Unset)

        result = run("plugins", "--json", env={"JETSYNC_PLUGINS": "unset"})

        assert result.exit_code == 1
        (row,) = json.loads(result.output)
        assert row["state"] == "added"
        assert "set $UNSET" in row["error"]

    @pytest.mark.parametrize("base", [RuntimeError, jetsync.ConfigurationError])
    def test_one_that_fails_in_other_ways(self, run, install, base):
        """
        A plugin that is broken or configured wrongly is reported as an error.
        """

        class OtherError(base):
            pass

        class Broken(Sample):
            def __init__(self):
                raise OtherError("no idea")

        install(broken=Broken)

        assert run("plugins").exit_code == 1
