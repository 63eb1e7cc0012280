"""
Commands of plugins, as far as they work without a server.
"""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

import jetsync
from jetsync.cli import commands
from jetsync.cli._app import jetsync as app

DISTRIBUTION = """
Metadata-Version: 2.1
Name: jetsync-sample
Version: 1
Summary: Samples for jetsync
"""

MODULE = """
from jetsync.cli import commands

@commands.group()
def sample():
    "Show samples."

@sample.command()
@commands.json_option
def ls(options, as_json):
    "List the samples."
    commands.say(options.servers or options.name)
"""


@pytest.fixture
def path(tmp_path, monkeypatch):
    """
    A folder with a distribution that has the commands `sample`, `broken`, `text` and `pub`.
    """
    folder = tmp_path / "jetsync_sample-1.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(DISTRIBUTION.lstrip(), "utf-8")
    points = {
        "sample": "jetsync_sample:sample",
        "broken": "jetsync_absent:x",
        "text": "jetsync_sample:__name__",
        "pub": "jetsync_sample:sample",
    }
    lines = [f"{name} = {value}" for name, value in points.items()]
    (folder / "entry_points.txt").write_text("\n".join(["[jetsync.commands]", *lines]), "utf-8")
    (tmp_path / "jetsync_sample.py").write_text(MODULE, "utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    sys.modules.pop("jetsync_sample", None)


def run(*arguments):
    """
    Run a command, and return its output and exit status.
    """
    return CliRunner().invoke(app, arguments)


def test_a_command_of_a_plugin_runs(path):
    """
    An entry point in the group `jetsync.commands` adds a command, with the options of connections.
    """
    assert run("sample", "ls", "--server", "nats://a:1").output == "nats://a:1\n"
    assert "--json" in run("sample", "ls", "--help").output


def test_the_help_has_the_summary_of_the_plugin_and_imports_nothing(path):
    """
    `jetsync --help` lists the command with the summary of its distribution, and does not import it.
    """
    lines = run("--help").output.splitlines()

    assert [line.split(maxsplit=1)[1] for line in lines if line.startswith("  sample")] == [
        "Samples for jetsync"
    ]
    assert "jetsync_sample" not in sys.modules


def test_no_plugin_replaces_a_command(path):
    """
    A command of jetsync stays what it is, whatever plugins are installed.
    """
    assert "Publish one message" in run("pub", "--help").output


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("broken", "cannot be loaded: ModuleNotFoundError: No module named 'jetsync_absent'"),
        ("text", "is no command of click but 'jetsync_sample'"),
    ],
)
def test_a_command_that_cannot_be_loaded(path, name, reason):
    """
    The error names the command, its distribution and the reason.
    """
    result = run(name)

    assert result.exit_code == 1
    assert result.output == f"Error: the command {name!r} of jetsync-sample {reason}\n"


def test_the_version_looks_for_no_plugin():
    """
    `jetsync --version`, and a command of jetsync, do not look for the commands of plugins.
    """
    code = (
        "import importlib.metadata as metadata, sys\n"
        "metadata.entry_points = lambda **_: sys.exit('looked')\n"
        "from jetsync.cli._app import jetsync\n"
        "jetsync(sys.argv[1:])"
    )

    for arguments in (["--version"], ["completion", "--help"]):
        subprocess.run([sys.executable, "-c", code, *arguments], timeout=60, check=True)


def test_the_completion_lists_it(path):
    """
    Completion suggests the commands of plugins.
    """
    found = app.shell_complete(click.Context(app), "samp")

    assert [(item.value, item.help) for item in found] == [("sample", "Samples for jetsync")]


def test_an_error_of_jetsync_is_a_line(path):
    """
    A command of a plugin reports the errors of jetsync as jetsync's own commands do.
    """

    @commands.command()
    def fails(options):
        raise jetsync.InvalidArgumentError("max_age is wrong")

    entry = importlib.metadata.EntryPoint("fails", "jetsync_sample:fails", "jetsync.commands")
    sys.modules["jetsync_sample"] = type(sys)("jetsync_sample")
    sys.modules["jetsync_sample"].fails = fails
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(importlib.metadata, "entry_points", lambda **_: [entry])
        result = run("fails")

    assert (result.exit_code, result.output) == (1, "Error: max_age is wrong\n")


@pytest.mark.parametrize("name", ["queue", "services"])
def test_a_plugin_that_is_not_installed(monkeypatch, name):
    """
    For a command of a plugin of this repository, the error names the plugin to install.
    """
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda **_: [])

    result = run(name)

    assert result.exit_code == 2
    assert result.output.endswith(
        f"No such command {name!r}. Install jetsync-{name}, which has it.\n"
    )
