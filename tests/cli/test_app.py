"""
The command line, as far as it works without a server.
"""

from __future__ import annotations

import contextlib
import datetime as dt
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
import types
import unicodedata
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import attrs
import click
import pytest
from click.testing import CliRunner

import jetsync
from jetsync import cli, errors
from jetsync._base import speedups
from jetsync.cli import _features, _output, _specifications, _suggestions, doctor
from jetsync.cli._app import COMMANDS, PLUGIN_COMMANDS, readable_errors
from jetsync.cli._app import jetsync as app
from jetsync.cli._config_options import read_changes, read_config
from jetsync.cli._connection import COMMAND, make_options
from jetsync.cli._features import FEATURES, missing, verdicts
from jetsync.cli._output import message_dict
from jetsync.errors import ApiError, ConfigurationError, InvalidArgumentError
from jetsync.hookspecs import hookimpl

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10, where pytest itself brings this one
    import tomli as tomllib

ROOT = Path(__file__).parents[2]

NO_SERVER = "nats://127.0.0.1:1"
"""An address where nothing listens: port 1 is reserved."""


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
def run(monkeypatch):
    """
    Run a command in an environment without any NATS variable; a function from arguments.
    """
    for variable in ("NATS_URL", "NATS_CONTEXT", "NATS_USER", "NATS_PASSWORD", "NATS_TOKEN"):
        monkeypatch.delenv(variable, raising=False)
    for variable in ("NATS_CREDS", "NATS_NKEY", "JETSYNC_PLUGINS", "JETSYNC_BLOCK_PLUGINS"):
        monkeypatch.delenv(variable, raising=False)

    def run(*arguments, **options):
        return CliRunner().invoke(app, arguments, **options)

    return run


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


class TestConnection:
    @pytest.fixture(autouse=True)
    def environment(self, monkeypatch):
        """
        Start from an environment with a server and a login.
        """
        monkeypatch.delenv("NATS_CONTEXT", raising=False)
        monkeypatch.setenv("NATS_URL", "nats://one:4222")
        monkeypatch.setenv("NATS_USER", "ann")
        monkeypatch.setenv("NATS_PASSWORD", "secret")

    def test_the_environment_counts(self):
        """
        Without options, the environment variables apply.
        """
        options = make_options()

        assert options.server_list() == ["nats://one:4222"]
        assert (options.user, options.password) == ("ann", "secret")
        assert options.name == "jetsync command line"

    def test_options_go_over_the_environment(self):
        """
        The command line takes precedence over the environment.
        """
        options = make_options(
            servers="nats://two:4222", jetstream_domain="hub", tls_ca="ca.pem", timeout=1.5
        )

        assert options.server_list() == ["nats://two:4222"]
        assert options.jetstream_domain == "hub"
        assert options.tls_ca == "ca.pem"
        assert (options.connect_timeout, options.request_timeout) == (1.5, 1.5)

    @pytest.mark.parametrize(
        ("url", "server", "used"),
        [
            ("nats://one:4222", "nats://two:4222", False),
            ("nats://one:4222", "nats://one:4223", False),
            ("nats://one:4222", "nats://one,nats://two", False),
            ("nats://one:4222", "one", True),
            ("nats://one:4222", "nats://bob:b@one:4222", True),
            ("nats://one,nats://two", "nats://two:4222", True),
            ("", "nats://two:4222", True),
        ],
    )
    def test_a_login_belongs_to_the_server_of_its_source(self, monkeypatch, url, server, used):
        """
        Another server than that of NATS_URL does not get the login of the environment.
        """
        monkeypatch.setenv("NATS_URL", url)
        monkeypatch.setenv("NATS_CERT", "/cert")

        options = make_options(servers=server)

        found = (options.user, options.password, options.tls_cert)
        assert found == (("ann", "secret", "/cert") if used else (None, None, None))

    def test_a_context_of_the_environment_is_not_used_for_another_server(
        self, tmp_path, monkeypatch
    ):
        """
        The login of the context in NATS_CONTEXT does not go to another server, either.
        """
        monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
        monkeypatch.setenv("NATS_CONTEXT", "prod")
        for variable in ("NATS_URL", "NATS_USER", "NATS_PASSWORD"):
            monkeypatch.delenv(variable)
        folder = tmp_path / "nats" / "context"
        folder.mkdir(parents=True)
        (folder / "prod.json").write_text('{"token": "t"}')

        assert make_options(servers="nats://two").token is None
        assert make_options(servers="nats://127.0.0.1").token == "t"
        assert make_options().server_list() == ["nats://127.0.0.1:4222"]

    def test_a_certificate_is_replaced_with_its_key(self, monkeypatch):
        """
        A certificate on the command line is not used with the key of the environment.
        """
        monkeypatch.setenv("NATS_CERT", "/cert")
        monkeypatch.setenv("NATS_KEY", "/key")
        monkeypatch.setenv("NATS_CA", "/ca")

        options = make_options(tls_cert="own.pem")

        assert (options.tls_cert, options.tls_key, options.tls_ca) == ("own.pem", None, "/ca")

    def test_a_login_is_replaced_as_a_whole(self):
        """
        A token on the command line replaces a user and password of the environment.
        """
        options = make_options(token="t")

        assert (options.token, options.user, options.password) == ("t", None, None)

    def test_a_user_alone_keeps_the_password(self):
        """
        A user on the command line keeps the password of the environment, where it is safer.
        """
        options = make_options(user="bob")

        assert (options.user, options.password) == ("bob", "secret")

    def test_a_context_replaces_the_environment(self, tmp_path, monkeypatch):
        """
        A context replaces all settings of the environment.
        """
        monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
        folder = tmp_path / "nats" / "context"
        folder.mkdir(parents=True)
        (folder / "prod.json").write_text('{"url": "nats://prod:4222", "token": "t"}')

        options = make_options(context="prod", jetstream_domain="hub")

        assert options.server_list() == ["nats://prod:4222"]
        assert (options.user, options.token, options.jetstream_domain) == (None, "t", "hub")

    def test_bad_settings_are_refused(self, tmp_path, monkeypatch):
        """
        Options and contexts are checked as in a program.
        """
        monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))

        with pytest.raises(ConfigurationError):
            make_options(context="missing")
        with pytest.raises(InvalidArgumentError):
            make_options(servers="http://one")


class TestFeatures:
    EVERYWHERE = ("direct_get",)
    SINCE_211 = (
        *("direct_batch", "direct_multi", "message_ttl", "limit_markers", "pause"),
        "priority_groups",
    )
    SINCE_212 = ("prioritized", "atomic_batch", "counters", "schedules")
    SINCE_2121 = ("batch_message_ids",)
    SINCE_214 = ("batch_eob", "fast_ingest", "reset")

    @pytest.mark.parametrize(
        ("version", "level", "works"),
        [
            ("2.10.26", 0, EVERYWHERE),
            ("2.11.11", 1, EVERYWHERE + SINCE_211),
            ("2.12.0", 2, EVERYWHERE + SINCE_211 + SINCE_212),
            ("2.12.8", 3, EVERYWHERE + SINCE_211 + SINCE_212 + SINCE_2121),
            ("2.14.6", 4, EVERYWHERE + SINCE_211 + SINCE_212 + SINCE_2121 + SINCE_214),
            ("2.15.1", 5, _features.NAMES),
            ("2.16.0-RC.1", 6, _features.NAMES),
        ],
    )
    def test_features_of_each_server(self, version, level, works):
        """
        The features of each server version, as they were measured.
        """
        found = verdicts(version, level)

        assert {verdict.feature.name for verdict in found if verdict.works} == set(works)
        assert all(verdict.why for verdict in found if not verdict.works)

    def test_level_counts_where_servers_differ(self):
        """
        A new server in front of an old JetStream has only the features of the old one.
        """
        by_name = {verdict.feature.name: verdict for verdict in verdicts("2.15.1", 1)}

        assert not by_name["fast_ingest"].works
        assert by_name["fast_ingest"].why == (
            "needs nats-server 2.14 (API level 4), this is 2.15.1 (API level 1)"
        )

    def test_a_feature_with_known_faults_is_marked(self):
        """
        A feature that works with known faults is marked.
        """
        by_name = {verdict.feature.name: verdict for verdict in verdicts("2.12.1", 2)}

        assert by_name["atomic_batch"].works
        assert by_name["atomic_batch"].why.startswith("before 2.12.5: ")

    def test_the_version_that_mends_a_feature_is_not_marked(self):
        """
        The version from which a feature has no known faults is not marked.
        """
        by_name = {verdict.feature.name: verdict for verdict in verdicts("2.12.5", 3)}

        assert by_name["atomic_batch"].works
        assert not by_name["atomic_batch"].why

    def test_without_jetstream_nothing_works(self):
        """
        All features have the same reason.
        """
        found = verdicts("2.15.1", 5, jetstream="off")

        assert {(verdict.works, verdict.why) for verdict in found} == {(False, "off")}

    @pytest.mark.parametrize(
        ("version", "works", "notes"),
        [
            ("2.9.0", [1, 21, 85, 2, 5], {"DG-78 (server 2.10, 2.11 only)"}),
            ("2.10.26", [1, 21, 105, 33, 5], {"SC-70, SC-85 (server 2.11)"}),
            ("2.11.11", [1, 21, 107, 74, 45], {"DG-58, DG-72 (server 2.12)"}),
            ("2.12.0", [37, 21, 107, 75, 45], {"DG-78 (server 2.10, 2.11 only)"}),
            ("2.12.1", [43, 21, 107, 75, 45], {"AB-35 (server 2.12.0 only)"}),
            ("2.14.0-RC.1", [50, 72, 107, 75, 45], {"SC-69, SC-84 (no server)"}),
            ("2.16.0", [50, 72, 107, 75, 45], {"SC-69, SC-84 (no server)"}),
        ],
    )
    def test_clauses_of_each_server(self, version, works, notes):
        """
        Of each specification, a server can do the clauses of its version and of earlier ones.
        """
        found = _specifications.coverage(version)

        assert [each.works for each in found] == works
        shown = {part for each in found for part in each.note.removeprefix("not ").split("; ")}
        assert notes <= shown

    def test_the_newest_servers_lack_only_what_no_new_server_does(self):
        """
        From 2.14 on, the missing clauses are those of no server and those of old servers only.
        """
        found = _specifications.coverage("2.14.0")

        assert {
            servers for each in found for servers, _ in each.missing if not servers.endswith("only")
        } == {"none"}
        (fast,) = (each for each in found if each.title == "ADR-50, fast ingest")
        assert (fast.missing, fast.note) == ((), "")

    def test_missing_clauses_as_json(self):
        """
        The JSON has each id of a missing clause, and the servers that can do it.
        """
        found = _specifications.Coverage(
            "ADR-0, sample", 9, (("2.14.0", "X-01, X-08 to X-10"), ("none", "X-12"))
        )

        assert found.note == "not X-01, X-08 to X-10 (server 2.14.0); X-12 (no server)"
        assert found.as_json() == {
            "specification": "ADR-0, sample",
            "clauses": 9,
            "works": 4,
            "missing": [
                {"clauses": ["X-01", "X-08", "X-09", "X-10"], "needs": "nats-server 2.14.0"},
                {"clauses": ["X-12"], "needs": None},
            ],
        }

    def test_the_page_shows_the_clauses_of_a_server(self):
        """
        The example of the documentation is what doctor prints about this version.
        """
        page = ROOT / "docs" / "command-line.md"
        lines = re.findall(
            r"^(ADR-\d+, .*?) {2,}(\d+ of \d+) +(.*)$", page.read_text("utf-8"), re.MULTILINE
        )

        assert lines == [
            (each.title, f"{each.works} of {each.clauses}", each.note)
            for each in _specifications.coverage("2.12.8")
            if "fast" not in each.title
        ]

    def test_missing_features(self):
        """
        Only the required features count.
        """
        found = verdicts("2.12.8", 3)

        assert missing(found, ()) == ()
        assert missing(found, ("fast_ingest", "atomic_batch")) == ("fast_ingest",)

    @pytest.mark.parametrize(("version", "works"), [("2.14.0-RC.3", True), ("dev", False)])
    def test_a_pre_release_counts_as_its_release(self, version, works):
        """
        A pre-release counts as its release. Text that is not a version is older than every version.
        """
        assert {verdict.works for verdict in verdicts(version, 4)} == {works}

    def test_names_are_unique(self):
        """
        Each name for `--require` means one feature.
        """
        assert len({feature.name for feature in FEATURES}) == len(FEATURES)


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


class TestStreamOptions:
    @pytest.fixture
    def created(self, run, monkeypatch):
        """A function that returns the configuration with which a command creates a stream."""
        configs = []

        def create_stream(config):
            configs.append(config)
            return SimpleNamespace(cached_info=jetsync.StreamInfo(config=config))

        js = SimpleNamespace(create_stream=create_stream)
        monkeypatch.setattr("jetsync.cli.stream.jetstream", lambda _: js)

        def call(*arguments):
            assert run("stream", "add", *arguments).exit_code == 0
            return configs.pop()

        return call

    def test_nothing_given(self, created):
        """
        Only the given options are sent; the subjects follow from the name.
        """
        assert created("S") == jetsync.StreamConfig(name="S", subjects=["S.>"])

    def test_everything_given(self, created):
        """
        Options are fields of a configuration under shorter names.
        """
        flags = ("--direct", "--atomic", "--batched", "--ttl")
        limits = ("--storage", "memory", "--max-age", "60s", "--replicas", "3")

        config = created("S", "--subjects", "a.>, b,", *limits, *flags)

        assert config == jetsync.StreamConfig(
            name="S",
            subjects=["a.>", "b"],
            storage="memory",
            max_age=60.0,
            num_replicas=3,
            allow_direct=True,
            allow_atomic=True,
            allow_batched=True,
            allow_msg_ttl=True,
        )

    @pytest.mark.parametrize("wrapped", [False, True])
    def test_a_configuration_is_read_as_servers_take_it(self, tmp_path, wrapped):
        """
        Durations are nanoseconds, as servers take them; the output of `stream info --json` works
        too.
        """
        config = {"name": "S", "subjects": ["s.>"], "max_age": 60_000_000_000}
        path = tmp_path / "config.json"
        path.write_text(json.dumps({"config": config} if wrapped else config))

        read = read_config(path, jetsync.StreamConfig)

        assert (read.name, read.subjects, read.max_age) == ("S", ["s.>"], 60.0)

    @pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
    def test_changes_are_read_once(self, tmp_path):
        """
        The file of an edit may be a pipe: its fields, also those that are null, are read once.
        """
        path = tmp_path / "pipe"
        os.mkfifo(path)
        text = '{"max_msgs": 5, "description": null}'
        with ThreadPoolExecutor(1) as pool:
            written = pool.submit(path.write_text, text)
            config, cleared = read_changes(path, jetsync.StreamConfig)
            written.result(30)

        assert (config.max_msgs, cleared) == (5, {"description": None})

    @pytest.mark.parametrize("text", ["name: S", "[" * 100_000])
    def test_a_configuration_that_is_not_json(self, run, tmp_path, text):
        """
        The error names the file.
        """
        path = tmp_path / "config.json"
        path.write_text(text)

        result = run("stream", "create", "S", "--config", str(path), "-s", NO_SERVER)

        assert result.exit_code == 1
        assert "is not JSON" in result.output


class TestVisible:
    @pytest.mark.parametrize(
        ("text", "shown"),
        [
            ("plain, ü and 漢字", "plain, ü and 漢字"),
            ("\x1b[31mred", "\\x1b[31mred"),
            ("a\x00\x07\x7f", "a\\x00\\x07\\x7f"),
            ("\x9b2J", "\\x9b2J"),
            ("\u202egnp.exe", "\\u202egnp.exe"),
            ("one\r\ntwo\t3", "one\\r\\ntwo\\t3"),
            ("\udcff", "\\udcff"),
            ("\u2028\u200b\ufeff\u200f", "\\u2028\\u200b\\ufeff\\u200f"),
            ("\U000e0041", "\\U000e0041"),
            ("a\xa0b\u3000c", "a\xa0b\u3000c"),
        ],
    )
    def test_control_characters_are_shown_as_escapes(self, text, shown):
        """
        Characters that a terminal would act on are shown as escapes.
        """
        assert _output.visible(text) == shown

    def test_line_ends_and_tabs_stay_in_a_text_of_several_lines(self):
        """
        In a text of several lines, line ends and tabs stay; a lone carriage return does not.
        """
        assert _output.visible("a\tb\nc\rd", lines=True) == "a\tb\nc\\rd"

    def test_bytes_that_are_not_text_are_shown_as_escapes(self):
        """
        Bytes that are not text are shown as escapes.
        """
        assert _output.visible(_output.payload(b"\xff\x1bz")) == "\\xff\\x1bz"

    def test_tables_and_json(self, capsys):
        """
        Both outputs escape control characters in foreign text, and JSON keeps the value.
        """
        evil = "\x1b]0;title\x07 \x9b2J \u202e \udcff \u2028 \U000e0041 [red]:smile:[/] \\"
        _output.print_table(("a",), [(evil,)])
        _output.print_pairs([(evil, evil)])
        _output.say(evil)
        _output.say(evil, style="bold")
        _output.print_json({"evil": evil})
        _output.print_json_line({"evil": evil})

        lines = capsys.readouterr().out
        assert not any(
            unicodedata.category(each) in {"Cc", "Cf", "Cs", "Zl", "Zp"}
            for each in lines.replace("\n", "")
        )
        assert lines.count("[red]:smile:[/]") == 7
        assert json.loads(lines.splitlines()[-1]) == {"evil": evil}

    def test_raw_to_a_terminal(self, monkeypatch, capfd):
        """
        A terminal gets no raw bytes, other outputs do.
        """
        _output.write_raw(b"\x1b[31m\n")
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
        _output.write_raw(b"\x1b[31m\n")

        assert capfd.readouterr().out == "\x1b[31m\n\\x1b[31m\n"


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


class TestOutput:
    def test_everything_is_printed_by_the_output_module(self):
        """
        Only the output module prints, so no command can forget to escape.
        """
        folder = Path(cli.__file__).parent
        calls = re.compile(r"\b(?:click\.(?:s?echo|secho|confirm|prompt)|(?<![\w.])print)\(")
        printing = {path.name for path in folder.glob("*.py") if calls.search(path.read_text())}
        assert printing == {"_output.py"}

    @pytest.mark.parametrize(
        ("count", "text"),
        [
            (-1, "unlimited"),
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1 KiB"),
            (1536 * 1024, "1.5 MiB"),
            (5 * 1024**3, "5 GiB"),
            (5 * 1024**4, "5 TiB"),
            (5 * 1024**5, "5120 TiB"),
        ],
    )
    def test_bytes_are_shown_in_the_largest_unit_that_fits(self, count, text):
        """
        Bytes are shown in the largest unit that fits.
        """
        assert _output.size(count) == text

    @pytest.mark.parametrize(
        ("seconds", "text"),
        [
            (0, "0s"),
            (0.25, "250ms"),
            (1.5, "1.5s"),
            (90, "1m30s"),
            (5400, "1h30m"),
            (7 * 86_400, "7d"),
            (86_401.1, "1d1.1s"),
        ],
    )
    def test_durations_are_shown_as_they_may_be_written(self, seconds, text):
        """
        Durations are shown as they may be written.
        """
        assert _output.duration(seconds) == text

    def test_a_limit_of_minus_one_is_shown_as_no_limit(self):
        """
        Minus one is shown as no limit.
        """
        assert _output.limit(-1) == "unlimited"
        assert _output.limit(12_345) == "12,345"

    def test_text_of_others_is_no_markup(self, capsys):
        """
        Subjects and payloads are printed literally, and not cut if the output is not a terminal.
        """
        long = "x" * 200

        _output.print_table(("a", "b"), [("[bold]not[/bold]", long)])
        _output.print_pairs([("name", "[red]"), ("nothing", None), ("empty", "")])

        output = capsys.readouterr().out
        assert "[bold]not[/bold]" in output
        assert long in output
        assert "[red]" in output
        assert "nothing" not in output
        assert "empty" not in output


class TestDocumentation:
    PAGES = sorted((ROOT / "docs").rglob("*.md")) + sorted(ROOT.glob("*.md"))

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


def test_json_of_a_message_reads_its_headers_once(monkeypatch):
    """
    The JSON of a message has all headers, without a search for each of their names.
    """
    monkeypatch.delattr(jetsync.Headers, "get_all")
    headers = jetsync.Headers((f"H{number % 9_000}", str(number)) for number in range(9_500))
    time = dt.datetime(2026, 8, 6, tzinfo=dt.timezone.utc)

    found = message_dict("S", 1, "s", time, headers, b"")["headers"]

    assert len(found) == 9_000
    assert (found["H0"], found["H600"]) == (["0", "9000"], ["600"])
