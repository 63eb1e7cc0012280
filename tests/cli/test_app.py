"""
The command line, as far as it works without a server.
"""

from __future__ import annotations

import contextlib
import errno
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import attrs
import click
import pytest

import jetsync
from helpers.commands import NO_SERVER
from jetsync import cli, errors
from jetsync._base import speedups
from jetsync.cli import _output, _suggestions, doctor
from jetsync.cli._app import COMMANDS, PLUGIN_COMMANDS, readable_errors
from jetsync.cli._app import jetsync as app
from jetsync.cli._connection import COMMAND
from jetsync.errors import ApiError, InvalidArgumentError

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10, where pytest itself brings this one
    import tomli as tomllib

ROOT = Path(__file__).parents[2]


class TestMain:
    def test_without_the_extra_one_line_names_the_package(self, monkeypatch):
        """
        Without click and rich, the command prints a sentence instead of a traceback.
        """
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)

        with pytest.raises(SystemExit) as caught:
            cli.main()

        assert caught.value.code == (
            "jetsync: the command line needs click and rich:"
            " install the extra, as in python -m pip install 'jetsync[cli]'"
        )

    def test_runs_as_a_module(self):
        """
        `python -m jetsync` is the same command.
        """
        done = subprocess.run(
            [sys.executable, "-m", "jetsync", "--version"],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )

        assert done.stdout == f"jetsync {jetsync.__version__}\n"

    def test_characters_that_the_encoding_lacks_are_escaped(self):
        """
        Output to a file or pipe on Windows has a code page, which lacks most characters.
        """
        code = (
            "from jetsync.cli import _app, main\n"
            "_app.jetsync = lambda **_: print('two chairs \N{RIGHTWARDS ARROW}')\n"
            "main()"
        )

        done = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONIOENCODING": "cp1252"},
            capture_output=True,
            timeout=60,
            check=True,
        )

        assert done.stdout.split(b"\\")[1].strip() == b"u2192"

    @pytest.mark.parametrize(
        ("platform", "number", "ends"),
        [
            ("win32", errno.EINVAL, True),
            ("linux", errno.EINVAL, False),
            ("linux", errno.EPIPE, True),
        ],
    )
    def test_a_closed_pipe_ends_the_output(self, monkeypatch, platform, number, ends):
        """
        A reader that has gone ends the output without an error; Windows has its own error for it.
        """
        system = SimpleNamespace(platform=platform, stdout=SimpleNamespace(fileno=lambda: 1))
        monkeypatch.setattr(_output, "sys", system)
        monkeypatch.setattr(_output.os, "open", lambda *_: 0)
        monkeypatch.setattr(_output.os, "dup2", lambda *_: None)

        fails = contextlib.nullcontext() if ends else pytest.raises(OSError, match="pipe")
        with fails, _output.until_output_closes():
            raise OSError(number, "pipe")

    def test_importing_the_package_imports_neither_click_nor_rich(self):
        """
        The library does not import click and rich, which only the command line needs.
        """
        code = "import sys, jetsync, jetsync.cli; sys.exit('click' in sys.modules)"

        subprocess.run([sys.executable, "-c", code], timeout=60, check=True)

    @pytest.mark.usefixtures("own_commands")
    def test_help_lists_every_command(self, run):
        """
        The help lists each command with a line about it.
        """
        result = run("--help")

        assert result.exit_code == 0
        lines = result.output.partition("Commands:\n")[2].splitlines()
        assert [line.split()[0] for line in lines] == sorted(COMMANDS)
        assert all(len(line.split()) > 2 for line in lines)

    def test_help_imports_no_command(self):
        """
        The help is quick: it imports neither the modules of commands nor rich.
        """
        code = (
            "import sys\n"
            "from jetsync.cli._app import jetsync\n"
            "try: jetsync(['--help'])\n"
            "except SystemExit: pass\n"
            "names = sys.modules.keys()\n"
            "print([n for n in names if n.startswith('jetsync.cli.') and '._' not in n])\n"
            "print('rich.console' in names)"
        )

        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
        )

        assert done.stdout.splitlines()[-2:] == ["[]", "False"]

    @pytest.mark.usefixtures("own_commands")
    def test_every_option_and_argument_is_explained(self):
        """
        Every option of every command has a help text, and every command names its arguments in its
        own.
        """
        missing = []

        def walk(command, path):
            context = click.Context(command)
            for parameter in command.params:
                if isinstance(parameter, click.Option):
                    if not parameter.help:
                        missing.append((path, parameter.opts))
                    continue
                (shown,) = parameter.get_usage_pieces(context)
                if shown.strip("[].") not in (command.help or ""):
                    missing.append((path, parameter.name))
            if isinstance(command, click.Group):
                for name in command.list_commands(context):
                    walk(command.get_command(context, name), f"{path} {name}")

        walk(app, "jetsync")
        assert missing == []

    @pytest.mark.parametrize("command", sorted(COMMANDS))
    def test_every_command_has_help(self, run, command):
        """
        Help needs no connection.
        """
        result = run(command, "-h")

        assert result.exit_code == 0
        assert result.output.startswith(f"Usage: jetsync {command}")

    def test_an_unknown_command(self, run):
        """
        An unknown command is a usage error, which suggests the nearest command.
        """
        result = run("publish")

        assert result.exit_code == 2
        assert result.output.endswith("No such command 'publish'. Did you mean 'pub'?\n")
        assert run("xyz").output.endswith("No such command 'xyz'.\n")

    @pytest.mark.parametrize(
        ("arguments", "suggestion"),
        [
            (["sub"], "The nats command line has it: nats sub"),
            (["context"], "The nats command line has it: nats context"),
            (["stream", "gaps"], "The nats command line has it: nats stream gaps"),
            (["consumer", "unpin"], "The nats command line has it: nats consumer unpin"),
            (["kv", "edit"], "The nats command line has it: nats kv edit"),
            (["stream", "update"], "Did you mean 'edit'?"),
            (["dead", "retry"], "Did you mean 'replay'?"),
            (["stream", "new"], "Did you mean 'add'?"),
            (["consumer", "del"], "Did you mean 'rm'?"),
            (["kv", "info"], "Did you mean 'status'?"),
            (["kv", "puts"], "Did you mean 'put'?"),
            (["obj"], "Did you mean 'object'?"),
            (["object", "delete"], "Did you mean 'rm'?"),
        ],
    )
    def test_commands_of_the_nats_command_line(self, run, arguments, suggestion):
        """
        For a command of the `nats` command line, the error names that, or our name of the command.
        """
        result = run(*arguments, "ORDERS")

        assert result.exit_code == 2
        assert result.output.endswith(f"No such command {arguments[-1]!r}. {suggestion}\n")

    def test_suggestions_name_no_command_of_our_own(self):
        """
        Other names lead to commands that exist, and no command is said to be elsewhere.
        """
        context = click.Context(app)
        for name, words in _suggestions._ELSEWHERE.items():
            group = app if name == "jetsync" else app.get_command(context, name)
            own = set(group.list_commands(context))
            assert own & set(words.split()) == set()
            # Such as `stream backup`: then the group has to be there.
            names = {words.split()[0] for words in _suggestions._OTHER_NAMES[name].values()}
            assert names <= own
            assert own & set(_suggestions._OTHER_NAMES[name]) == set()

    @pytest.mark.parametrize("arguments", [(), ("stream",)])
    def test_no_command(self, run, arguments):
        """
        A group without a command prints its help.
        """
        result = run(*arguments)

        assert result.exit_code in {0, 2}
        assert result.output.startswith("Usage: ")
        assert "Commands:\n" in result.output
        assert "Error" not in result.output

    def test_connection_options_come_last(self, run):
        """
        The help of a command begins with its own options.
        """
        own, _, connection = run("stream", "add", "-h").output.partition("Connection:\n")

        assert "--max-age DURATION" in own
        assert "--creds FILE" in connection
        assert "--creds" not in own

    def test_help_explains_the_units(self, run):
        """
        The help says what DURATION and SIZE are, and points to the `nats` command line.
        """
        text = " ".join(run("--help").output.split())

        assert "1h30m" in text
        assert "512KB" in text
        assert "`nats` command line" in text


class TestErrors:
    @pytest.mark.parametrize(
        "arguments",
        [
            ("pub", "a", "b", "--server", NO_SERVER),
            ("get", "S", "1", "-s", NO_SERVER),
            ("stream", "ls", "-s", NO_SERVER),
            ("consumer", "info", "S", "C", "-s", NO_SERVER),
        ],
    )
    def test_no_connection_is_one_line(self, run, arguments):
        """
        An error of jetsync prints one line without a traceback, and exits with status 1.
        """
        result = run(*arguments, "--timeout", "5")

        assert result.exit_code == 1
        assert result.output.startswith("Error: ")
        assert result.output.count("\n") == 1
        assert isinstance(result.exception, SystemExit)

    def test_doctor_without_a_connection_as_json(self, run):
        """
        With --json the output is JSON even if there is nothing to report.
        """
        result = run("doctor", NO_SERVER, "--json")

        assert result.exit_code == 1
        report = json.loads(result.output)
        assert report["ok"] is False
        assert len(report["problems"]) == 1
        assert report["client"]["jetsync"] == jetsync.__version__
        assert report["client"]["variant"] == speedups.VARIANT
        assert report["client"]["nats_py"] == importlib.metadata.version("nats-py")
        assert isinstance(report["client"]["plugins"], list)

    def test_doctor_shows_the_installation_before_it_connects(self, run, monkeypatch):
        """
        Without a connection, doctor shows the versions and plugins, and then the error.
        """
        plugin = importlib.metadata.EntryPoint("sample", f"{__name__}:Sample", "jetsync.plugins")
        monkeypatch.setattr(doctor, "installed_plugins", lambda: {"sample": plugin})
        result = run("doctor", NO_SERVER)

        assert result.exit_code == 1
        *shown, error = result.output.strip().splitlines()
        values = dict(line.split(None, 1) for line in shown if line.strip())
        assert values["jetsync"].strip() == jetsync.__version__
        assert values["Python"].strip().startswith(platform.python_version())
        assert values["nats-py"].strip() == importlib.metadata.version("nats-py")
        assert values["event"].split()[1] in {"uvloop", "asyncio"}
        assert values["login"].strip() == "none"
        assert values["plugins"].startswith("sample ")
        assert error.startswith("Error: ")

    def test_doctor_says_if_a_login_cannot_be_read(self, run, tmp_path):
        """
        Without a connection, doctor shows what is wrong with the login.
        """
        result = run("doctor", NO_SERVER, "--creds", str(tmp_path / "absent"), "--json")

        assert "absent' cannot be read" in json.loads(result.output)["client"]["login"]

    @pytest.mark.parametrize(
        ("variant", "advice"), [("compiled", None), ("Python (not compiled)", "install it")]
    )
    def test_doctor_says_which_variant_runs(self, capsys, monkeypatch, variant, advice):
        """
        Doctor shows whether the compiled core runs, and how to get it if not.
        """
        monkeypatch.setattr(speedups, "VARIANT", variant)
        monkeypatch.setattr(speedups, "advice", lambda: advice)
        doctor.show_installation(doctor.installation(jetsync.ConnectOptions(loop="asyncio")))

        output = capsys.readouterr().out
        assert re.search(r"^variant +(.*?) *$", output, re.MULTILINE)[1] == variant
        assert (re.search(r"^ +install it *$", output, re.MULTILINE) is None) is (advice is None)

    def test_doctor_names_servers_that_are_not_healthy(self, capsys):
        """
        The problems of a system account's report are the servers that are not healthy.
        """
        named = [
            jetsync.Varz(server=jetsync.ServerIdentity(name=name, ver="2.15.1")) for name in "abc"
        ]
        healths = [
            jetsync.Healthz(status="ok"),
            jetsync.Healthz(status="unavailable", error="no leader"),
            None,
        ]
        report = doctor.Report(
            server=jetsync.ServerInfo(),
            tls=False,
            rtt=0.001,
            level=0,
            account=None,
            jetstream="no JetStream here",
            verdicts=(),
            servers=tuple(zip(named, healths, strict=True)),
        )
        doctor.show(report)

        shown = capsys.readouterr().out
        assert report.problems == [
            "server b is not healthy: no leader",
            "server c is not healthy: no answer",
        ]
        assert re.findall(
            r"^([abc]) +2\.15\.1 +(ok|no leader|no answer) ", shown, re.MULTILINE
        ) == [
            ("a", "ok"),
            ("b", "no leader"),
            ("c", "no answer"),
        ]
        listed = report.as_json(report.problems)["servers"]
        assert [each["healthy"] for each in listed] == [True, False, False]
        assert attrs.evolve(report, servers=()).problems == ["no JetStream here"]

    @pytest.mark.parametrize(
        ("version", "shown"), [("2.16.4", "2.16.4"), ("2.17.0", "2.17.0 (tested: 2.10 to 2.16)")]
    )
    def test_doctor_says_if_nats_py_was_not_tested(self, capsys, version, shown):
        """
        A nats-py that is newer than the tested ones is shown with those.
        """
        client = doctor.installation(jetsync.ConnectOptions(loop="asyncio"))
        doctor.show_installation({**client, "nats_py": version})

        output = capsys.readouterr().out
        assert re.search(r"^nats-py +(.*?) *$", output, re.MULTILINE)[1] == shown
        assert re.search(r"^event loop +asyncio *$", output, re.MULTILINE)

    @pytest.mark.parametrize(
        ("arguments", "text"),
        [
            (("pub", "a", "b", "-H", "no colon"), "not of the form 'Name: value'"),
            (("pub", "a", "b", "-H", ": value"), "not of the form 'Name: value'"),
            (
                ("pub", "a", "b", "--ttl", "soon"),
                "1h30m or 7d, or 'never'",
            ),
            (("get", "S"), "Give SEQUENCE, --last SUBJECT, --next SUBJECT or --at TIME."),
            (("get", "S", "1", "--last", "a"), "Give SEQUENCE, --last SUBJECT"),
            (("get", "S", "1", "--seq", "1"), "Give SEQUENCE, --last SUBJECT"),
            (("get", "S", "1", "--from", "1"), "--from needs --next"),
            (("get", "S", "--at", "soon"), "neither a time"),
            (("get", "S", "--at", "99999999999999d"), "neither a time"),
            (("get", "S", "0"), "0 is not in the range"),
            (("tail", "S", "--new", "--last", "0"), "Give one of --last, --seq, --since and --new"),
            (("tail", "S", "--seq", "1", "--since", "1h"), "Give one of --last"),
            (("tail", "S", "--raw", "--json"), "--raw prints only payloads"),
            (("tail", "S", "--count", "0"), "0 is not in the range"),
            (("query", "select 1", "--format", "parquet"), "Parquet needs a file"),
            (("query", "select 1", "-o", "a.txt"), "Give --format csv, json or parquet"),
            (("query", "select 1", "--seq", "1", "--since", "1h"), "Give one of --seq and --since"),
            (("query", "select 1", "--limit", "0"), "0 is not in the range"),
            (("doctor", "--require", "teleport"), "'teleport' is not one of"),
            (("stream", "ls", "--timeout", "0"), "'0' is not longer than 0"),
            (("stream", "add", "S", "--max-age", "1x"), "'1x' is not a duration such as"),
            (("stream", "add", "S", "--max-bytes", "1XB"), "'1XB' is not a size such as"),
            (("kv", "add", "B", "--history", "65"), "65 is not in the range"),
            (("consumer", "add", "S", "C", "--seq", "1", "--since", "1h"), "Give one of --deliver"),
            (
                ("consumer", "add", "S", "C", "--ack-wait", "1s", "--backoff", "1s"),
                "Give one of --ack-wait",
            ),
            (("consumer", "add", "S", "C", "--backoff", "1s,x"), "'x' is not a duration"),
            (("consumer", "next", "S", "C", "--delay", "1s"), "--delay needs --ack nak"),
            (("consumer", "next", "S", "C", "--raw", "--json"), "--raw prints only payloads"),
            (("consumer", "add", "S", "C", "--backoff", ""), "Invalid value for '--backoff'"),
            (("get", "S", "1", "--raw", "--json"), "--raw prints only the payload"),
            (("kv", "get", "B", "k", "--raw", "--json"), "--raw prints only the value"),
            (("kv", "watch", "B", "--history", "--updates-only"), "--updates-only excludes"),
            (("stream", "add", "S", "--subjects", " , "), "give one or more, separated by commas"),
            (("stream", "purge", "S", "--keep", "1", "--sequence", "2"), "Give one of --keep"),
            (("pub", "a", "b", "--count", "0"), "0 is not in the range"),
            (("bench", "fly"), "'fly' is not one of"),
            (("bench", "--size", "-1"), "--size needs a size of 0 or more"),
            (("bench", "--msgs", "3", "--threads", "4"), "4 threads need at least 4 messages"),
        ],
    )
    def test_usage_errors_need_no_server(self, run, arguments, text):
        """
        Invalid options are reported before anything is connected.
        """
        result = run(*arguments)

        assert result.exit_code == 2
        assert text in result.output

    def test_query_without_the_extra(self, run, monkeypatch):
        """
        Without DuckDB, `query` names the extra that installs it.
        """
        monkeypatch.setitem(sys.modules, "duckdb", None)
        result = run("query", "select 1")

        assert result.exit_code == 1
        assert result.output == "Error: SQL needs the extra: pip install 'jetsync[query]'\n"

    def test_an_unknown_context(self, run, tmp_path):
        """
        An unknown context is an error of one line.
        """
        result = run("stream", "ls", "--context", "missing", env={"XDG_CONFIG_HOME": str(tmp_path)})

        assert result.exit_code == 1
        assert "missing" in result.output


def shown(error, command=None):
    """
    Return the text of an error as a command prints it.
    """
    context = click.Context(app)
    if command is not None:
        group, _, name = command.partition(" ")
        found = app.get_command(context, group)
        context.meta[COMMAND] = found.get_command(context, name) if name else found

    def fail():
        with readable_errors(context):
            raise error

    with pytest.raises(click.ClickException) as caught:
        fail()
    return caught.value.message


class TestAdvice:
    @pytest.mark.parametrize(
        ("command", "error", "text"),
        [
            (
                "stream add",
                errors.SubjectOverlapError(stream="S"),
                "`jetsync stream ls --subject SUBJECT` lists the streams that have a subject",
            ),
            (
                "stream add",
                errors.MessageTtlDisabledError(stream="S"),
                "give the stream --ttl with `jetsync stream edit`",
            ),
            ("query", errors.DirectNotSupportedError("S"), "give the stream --direct with"),
            (
                "pub",
                errors.PublishOutcomeUnknownError("a", msg_id="m"),
                "repeating it with --msg-id 'm' is safe",
            ),
            ("pub", errors.PublishOutcomeUnknownError("a"), "repeating it without --msg-id"),
            (
                "stream ls",
                errors.AuthenticationError("the client sent no user, token or key"),
                "sent only to the server that the environment names",
            ),
            ("consumer next", errors.AcksNotWantedError("c", stream="S"), "use --ack none"),
            (
                "kv get",
                InvalidArgumentError("tls_key needs tls_cert"),
                "--tls-key needs --tls-cert",
            ),
            ("stream add", InvalidArgumentError("max_age is bad"), "--max-age is bad"),
            ("stream add", InvalidArgumentError("stream 'max_age' $max_age"), "'max_age' $max_age"),
        ],
    )
    def test_errors_speak_of_commands(self, command, error, text):
        """
        An error names commands and options instead of functions and fields.
        """
        assert text in shown(error, command)

    @pytest.mark.parametrize("kind", sorted(set(ApiError.classes.values()), key=str))
    def test_no_advice_names_a_function(self, kind):
        """
        No advice of a server's error names a function of Python or its arguments.
        """
        for stream in ("S", "KV_B", "OBJ_B"):
            said = shown(kind(stream=stream))
            assert re.search(r"[a-z_]\(|=True|=\.\.\.|create_or_update", said) is None, said


class TestErrorText:
    EVIL = "\x1b[2J\x9b\u202e"

    @pytest.mark.parametrize(
        "arguments",
        [
            (f"--{EVIL}",),
            (f"cmd{EVIL}",),
            ("get", "S", EVIL),
            ("get", f"S{EVIL}", "1", "-s", NO_SERVER),
            ("stream", "ls", "-s", EVIL),
            ("stream", "ls", "-s", f"{NO_SERVER}/{EVIL}"),
            ("pub", "a", "b", "-H", EVIL),
            ("plugins", EVIL),
        ],
    )
    def test_control_characters_that_an_error_quotes_are_escaped(self, run, arguments):
        """
        Text that an error quotes is escaped, too.
        """
        result = run(*arguments)

        assert result.exit_code != 0
        assert "Error: " in result.output
        assert not set(self.EVIL[0] + self.EVIL[4:]) & set(result.output)

    def test_text_of_a_server(self, run, monkeypatch):
        """
        An error that quotes a server stays one line, and markup in it is literal.
        """

        def fail(**_options):
            raise jetsync.ConnectError("no \x1b[31m[red]\nError: forged")

        monkeypatch.setattr(jetsync, "connect", fail)

        assert run("stream", "ls").output == "Error: no \\x1b[31m[red]\\nError: forged\n"
        problems = json.loads(run("doctor", "--json").output)["problems"]
        assert problems == ["no \x1b[31m[red]\nError: forged"]

    @pytest.mark.parametrize(
        "url",
        [
            "nats://u:hunter2@127.0.0.1:1",
            "nats://hunter2@127.0.0.1:1",
            "nats://u:hunter2",
            "u:hunter2@127.0.0.1:x",
            "//u:hunter2@127.0.0.1",
            "nats://u:hunter2@",
            "http://127.0.0.1?token=hunter2",
            "nats://127.0.0.1:1?token=hunter2",
            "nats://a:1#u:hunter2@127.0.0.1",
        ],
    )
    def test_no_command_shows_the_secret_of_a_url(self, run, url):
        """
        No command shows the secret of a URL, wherever the URL was given.
        """
        for arguments in (
            ("stream", "ls", "-s", url),
            ("doctor", url),
            ("doctor", url, "--json"),
            ("doctor", NO_SERVER, url),
            ("stream", url),
            (url,),
        ):
            result = run(*arguments)
            # click 8.1 takes an unknown command that begins with // for an option: it shows the
            # help, and its exit code is 0.
            assert result.exit_code != 0 or result.output.startswith("Usage: ")
            assert "hunter2" not in result.output
        assert "hunter2" not in run("stream", "ls", env={"NATS_URL": url}).output


class TestDocumentation:
    PAGES = sorted((ROOT / "docs").rglob("*.md")) + sorted(ROOT.glob("*.md"))

    @pytest.mark.skipif(not (ROOT / "plugins").is_dir(), reason="the sdist has no plugins")
    def test_commands_on_pages_are_valid(self, monkeypatch):
        """
        Every command of a page that begins with a prompt exists and takes these options.

        This includes the commands of the plugins of this repository, which need not be installed.
        """
        entries = {}
        for file in ROOT.glob("plugins/*/pyproject.toml"):
            project = tomllib.loads(file.read_text("utf-8"))["project"]
            commands = project.get("entry-points", {}).get(PLUGIN_COMMANDS, {})
            for name, value in commands.items():
                monkeypatch.syspath_prepend(file.parent)
                entries[name] = importlib.metadata.EntryPoint(name, value, PLUGIN_COMMANDS)
        monkeypatch.setattr("jetsync.cli._app.plugin_commands", lambda: entries)
        lines = [
            line
            for page in self.PAGES
            for line in re.findall(r"^\$ jetsync (.+)$", page.read_text("utf-8"), re.MULTILINE)
        ]

        for line in lines:
            # A pipe leads to another command.
            words = shlex.split(line.split(" | ")[0])
            command = app
            context = click.Context(app, info_name="jetsync")
            while isinstance(command, click.Group):
                found = command.get_command(context, words.pop(0))
                assert found is not None, line
                command = found
            with command.make_context(command.name, words, parent=context):
                pass
        assert len(lines) > 10
