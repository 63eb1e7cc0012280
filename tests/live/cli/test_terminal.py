"""
The command line in a terminal: colours, and completion in bash.
"""

from __future__ import annotations

import re
import shutil
import sys

import pytest
from click.testing import CliRunner

from jetsync.cli._app import jetsync as app

NO_SERVER = "nats://127.0.0.1:1"

COLOUR = re.compile(r"\x1b\[[\d;]*3[0-7]m")
RED, YELLOW, GREEN = "\x1b[31m", "\x1b[33m", "\x1b[32m"


@pytest.fixture
def terminal(pseudo_terminal):
    """
    Start a process in a pseudo-terminal; a function from arguments.
    """
    return pseudo_terminal


COMMANDS = """
import contextlib, sys
from jetsync.cli import main
for line in sys.argv[1:]:
    print(f"\\n$ {line}", flush=True)
    sys.argv = ["jetsync", *line.split()]
    with contextlib.suppress(SystemExit):
        main()
"""


@pytest.fixture
def printed(terminal):
    """
    Run some commands in one interpreter, which takes a while to start, and return their output.
    """

    def run(*lines, **variables):
        text = terminal(sys.executable, "-c", COMMANDS, *lines, **variables).read_all()
        _, *outputs = re.split(r"^\$ .*\n", text.replace("\r\n", "\n"), flags=re.MULTILINE)
        assert len(outputs) == len(lines), text
        return outputs

    return run


class TestColours:
    def test_on_a_terminal(self, printed, stream):
        """
        Errors are red, results green and warnings yellow.
        """
        publish = f"pub {stream.name}.a x --msg-id 1"

        no_server, usage, stored, duplicate = printed(
            f"stream ls -s {NO_SERVER}", "stream ls --nonsense", publish, publish
        )

        assert f"{RED}Error: " in no_server
        assert usage.startswith("Usage: jetsync stream ls")
        assert f"{RED}Error: " in usage
        assert f"{GREEN}stored in" in stored
        assert f"{YELLOW}duplicate" in duplicate

    def test_no_color(self, printed, stream):
        """
        With NO_COLOR, nothing has a colour.
        """
        publish = f"pub {stream.name}.a x --msg-id 1"

        outputs = printed(publish, publish, "stream ls", "stream info MISSING", NO_COLOR="1")

        assert all(outputs)
        assert not COLOUR.search("".join(outputs))

    def test_no_terminal(self, stream):
        """
        A file or a pipe gets neither colours nor other escapes.
        """
        run = CliRunner()
        for command in (("pub", f"{stream.name}.a", "x"), ("stream", "ls"), ("doctor",)):
            assert "\x1b" not in run.invoke(app, command).output

    def test_the_progress_of_pub_count_is_gone_at_the_end(self, terminal, stream):
        """
        On a terminal, `pub --count` shows its progress, which is gone at the end.
        """
        text = terminal("jetsync", "pub", f"{stream.name}.a", "x", "--count", "50").read_all()

        assert re.search("publish +.*50/50", text)
        assert "stored 50 messages" in text.splitlines()[-1]

    def test_the_progress_of_objects_is_gone_at_the_end(self, terminal, js, unique, tmp_path):
        """
        On a terminal, `object put` and `object get` show the bytes that are done and their rate.
        """
        js.create_object_store(unique, storage="memory")
        file = tmp_path / "in"
        file.write_bytes(bytes(3 << 20))
        try:
            put = terminal("jetsync", "object", "put", unique, "a", str(file)).read_all()
            got = terminal("jetsync", "object", "get", unique, "a", f"{file}.out").read_all()
        finally:
            js.delete_object_store(unique)

        assert re.search(r"put +.*3\.0/3\.0 MiB", put)
        assert "stored a in" in put.splitlines()[-1]
        assert re.search(r"get +.*3\.0/3\.0 MiB", got)
        assert "wrote" in got.splitlines()[-1]


class TestInput:
    def test_a_payload_that_is_typed(self, terminal, stream):
        """
        Without DATA, the command says that it waits for the payload.
        """
        started = terminal("jetsync", "pub", f"{stream.name}.a")
        started.read_until("type the payload, and end it with Ctrl-D")
        started.type("two chairs\n\x04")

        assert "stored in" in started.read_all()
        assert stream.get_message(1).data == b"two chairs\n"


@pytest.mark.thorough
class TestCompletion:
    @pytest.fixture
    def bash(self, terminal, environment, js, stream):
        """
        An interactive bash whose completion was installed by the command.
        """
        path = shutil.which("bash")
        if path is None:
            pytest.skip("there is no bash")
        assert "wrote " in terminal("jetsync", "completion", "bash").read_all()
        started = terminal(path, "-i", INPUTRC="/dev/null", PS1="$ ", HISTFILE="")
        started.type("bind 'set enable-bracketed-paste off'; echo re''ady\n")
        started.read_until("ready\r\n")
        return started

    def completed(self, bash, text, wanted):
        """
        Type a text and a tab, wait for what bash completes, and clear the line.
        """
        bash.text = ""
        bash.type(f"{text}\t")
        bash.read_until(wanted)
        bash.type("\x15")

    def test_bash_completes_commands_and_names(self, bash, js, stream, unique):
        """
        Bash completes commands and the names of streams, consumers and buckets.
        """
        stream.create_consumer("worker_of_tests")
        js.create_key_value(f"bucket_{unique}", storage="memory")

        self.completed(bash, "jetsync doc", "jetsync doctor ")
        self.completed(bash, f"jetsync stream info {stream.name[:-1]}", f"info {stream.name} ")
        self.completed(bash, f"jetsync consumer next {stream.name} work", "worker_of_tests ")
        self.completed(bash, f"jetsync kv get bucket_{unique[:-1]}", f"bucket_{unique} ")
        js.delete_key_value(f"bucket_{unique}")

    def test_installing_twice(self, terminal, tmp_path):
        """
        The line in .bashrc is added once, and what is there stays.
        """
        startup = tmp_path / ".bashrc"
        startup.write_text("alias ll='ls -l'")

        first = terminal("jetsync", "completion", SHELL="/bin/bash").read_all()
        second = terminal("jetsync", "completion", "bash").read_all()

        assert "added a line to" in first
        assert "found its line in" in second
        lines = startup.read_text().splitlines()
        assert lines[0] == "alias ll='ls -l'"
        assert len(lines) == 2
        assert (tmp_path / ".local/share/jetsync/completion.bash").is_file()
