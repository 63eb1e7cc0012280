"""
Completion, as far as it works without a server.
"""

from __future__ import annotations

import os
import shutil
import socket
import sys
from typing import Final

import click
import pytest
from click.testing import CliRunner

from jetsync.cli import _name_completion
from jetsync.cli._app import jetsync as app

NO_SERVER = "nats://127.0.0.1:1"


@pytest.fixture
def run(monkeypatch, tmp_path):
    """
    Run a command in a home of its own; a function from arguments.
    """
    for variable in ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "ZDOTDIR", "NATS_CONTEXT", "SHELL"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NATS_URL", NO_SERVER)

    def run(*arguments, **options):
        return CliRunner().invoke(app, arguments, prog_name="jetsync", **options)

    return run


def complete(run, *words, **env):
    """
    Return what a shell is offered for the last word.
    """
    env |= {
        "_JETSYNC_COMPLETE": "bash_complete",
        "COMP_WORDS": " ".join(("jetsync", *words)),
        "COMP_CWORD": str(len(words)),
    }
    # The output includes stderr, so a line of an error would be one more word.
    result = run(env=env)
    return [line.partition(",")[2] for line in result.output.splitlines() if line]


class TestInstall:
    def test_fish_reads_the_completion_by_itself(self, run, tmp_path):
        """
        Fish reads the file by itself.
        """
        result = run("completion", "fish")

        assert result.exit_code == 0
        path = tmp_path / ".config/fish/completions/jetsync.fish"
        assert "complete --no-files --command jetsync" in path.read_text()
        assert "start a new fish" in result.output

    @pytest.mark.skipif(sys.platform == "win32", reason="needs the files of POSIX systems")
    @pytest.mark.parametrize("name", [".local/share/jetsync/completion.bash", ".bashrc"])
    def test_what_is_not_a_file_is_refused(self, run, tmp_path, name):
        """
        The command writes neither its script nor the line into a device, and writes nothing else.
        """
        device = tmp_path / name
        device.parent.mkdir(parents=True, exist_ok=True)
        device.symlink_to(os.devnull)
        before = list(tmp_path.rglob("*"))

        result = run("completion", "bash")

        assert result.exit_code == 1
        assert "completion is not installed" in result.output
        assert "not a regular file" in result.output
        assert list(tmp_path.rglob("*")) == before

    def test_the_script_turns_completion_on_and_zshrc_reads_it(self, run, tmp_path):
        """
        The script makes sure that completion is on, and .zshrc reads it.
        """
        assert run("completion", env={"SHELL": "/usr/bin/zsh"}).exit_code == 0

        path = tmp_path / ".local/share/jetsync/completion.zsh"
        assert "compinit" in path.read_text().splitlines()[0]
        assert (tmp_path / ".zshrc").read_text() == f". {path}  # completion of jetsync\n"

    def test_an_unknown_shell(self, run):
        """
        Without a known shell in $SHELL, the command asks for its name.
        """
        result = run("completion", env={"SHELL": "/bin/dash"})

        assert result.exit_code == 2
        assert "Name the shell: bash, zsh or fish." in result.output

    @pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
    def test_a_folder_that_cannot_be_written(self, run, tmp_path):
        """
        The error is one line.
        """
        (tmp_path / ".local").write_text("a file")

        result = run("completion", "bash")

        assert result.exit_code == 1
        assert result.output.startswith("Error: completion is not installed: ")
        assert result.output.count("\n") == 1
        assert not (tmp_path / ".bashrc").exists()

    def test_showing_installs_nothing(self, run, tmp_path):
        """
        --show prints the script.
        """
        assert "#compdef jetsync" in run("completion", "zsh", "--show").output
        assert list(tmp_path.iterdir()) == []


FREE: Final = {
    *("FILE", "KEY", "VALUE", "PATTERNS", "NAMES", "SHELL", "URL", "SQL", "SUBJECT", "DATA"),
    *("SEQUENCE", "SEQUENCES", "REVISION", "FILTER", "UNTIL", "TESTS", "DIR"),
}
"""Arguments that are no names of streams, consumers or buckets."""

NEW_NAMES: Final = {"consumer add", "kv add", "object add", "stream add", "stream create"}
"""Commands whose name is that of something new."""

OBJECTS: Final = {"object get", "object info", "object put", "object rm"}
"""Commands with the name of an object."""


def arguments(command, path=""):
    """
    Yield each argument of all commands, with the name of its command.
    """
    context = click.Context(command)
    for parameter in command.params:
        if isinstance(parameter, click.Argument):
            yield path.strip(), parameter
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            yield from arguments(command.get_command(context, name), f"{path} {name}")


class TestWords:
    @pytest.mark.usefixtures("own_commands")
    def test_every_name_is_completed(self):
        """
        Each argument that is the name of a stream, a consumer or a bucket is completed.
        """
        without = [
            (path, argument.name)
            for path, argument in arguments(app)
            if argument._custom_shell_complete is None
            and (argument.metavar or argument.name.upper()).strip("[].") not in FREE
            and not (path in NEW_NAMES and argument.name in {"name", "bucket"})
            and not (path in OBJECTS and argument.name == "name")
            # These commands ask no server.
            and not path.startswith("permissions ")
        ]

        assert without == []

    def test_commands_and_options(self, run):
        """
        Commands and options need no server.
        """
        assert complete(run, "con") == ["consumer"]
        assert complete(run, "stream", "add", "S", "--stor") == ["--storage"]
        assert complete(run, "stream", "add", "S", "--storage", "f") == ["file"]

    def test_completion_without_a_server_prints_no_names(self, run):
        """
        Without a server, names are left out and nothing is printed.
        """
        assert complete(run, "stream", "info", "") == []
        assert complete(run, "consumer", "info", "S", "") == []
        assert complete(run, "kv", "get", "B") == []

    def test_a_server_that_does_not_answer(self, run):
        """
        A server that accepts connections and says nothing means no names, after a short time.
        """
        with socket.create_server(("127.0.0.1", 0)) as silent:
            port = silent.getsockname()[1]
            url = {"NATS_URL": f"nats://127.0.0.1:{port}", "JETSYNC_COMPLETION_TIMEOUT": "0.2"}

            assert complete(run, "stream", "info", "", **url) == []

    @pytest.mark.parametrize(
        "env",
        [{"NATS_URL": "http://x"}, {"NATS_CONTEXT": "no"}, {"JETSYNC_COMPLETION_TIMEOUT": "x"}],
    )
    def test_wrong_settings(self, run, env):
        """
        Wrong settings are reported by commands, not while you type.
        """
        assert complete(run, "stream", "info", "", **env) == []

    def test_names_that_a_shell_would_run(self, run, monkeypatch):
        """
        Names that a shell might not take literally are left out.
        """

        class Client:
            def __enter__(self):
                return self

            def __exit__(self, *_):
                pass

            def jetstream(self):
                return self

            def stream_names(self):
                return ["a", "A-b_1=", "$(id)", "a;b", "-f", "a b", "`id`", "a\x1b[2J", "b", "a\n"]

        monkeypatch.setattr(_name_completion, "connect", lambda _options: Client())

        assert complete(run, "stream", "info", "") == ["A-b_1=", "a", "b"]
        assert complete(run, "stream", "info", "a") == ["a"]
