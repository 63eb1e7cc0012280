"""
The output for hostile data that reached a real server over a plain socket.
"""

from __future__ import annotations

import base64
import json
import socket
import unicodedata

import attrs
import pytest
from click.testing import CliRunner

import jetsync
from jetsync.cli import doctor
from jetsync.cli._app import jetsync as app
from jetsync.devserver import DevServer

EVIL = "\x1b]0;t\x07\x1b[2J\x7f\x9b31m\u202egnp\u2066\u200f\u061c[red][/]\\"
"""Terminal controls, bidirectional controls and rich markup that are valid in a subject."""

EVIL_TEXT = f"{EVIL}:smile:\u2028\r\nError: forged\tx"
"""The same with line separators, for text that need not be a valid subject."""


class Publisher:
    """
    Requests to a server that bypass the checks of the client.
    """

    def __init__(self, server):
        self.socket = socket.create_connection(("127.0.0.1", server.ports()["nats"]), timeout=10)
        self.lines = self.socket.makefile("rwb")
        self.lines.readline()
        self.lines.write(b'CONNECT {"verbose":false,"headers":true}\r\nSUB reply 1\r\n')

    def close(self):
        self.lines.close()
        self.socket.close()

    def request(self, subject, payload, headers=b""):
        """
        Publish a message and return the answer's JSON.
        """
        command = b"HPUB" if headers else b"PUB"
        lengths = (
            b"%d %d" % (len(headers), len(headers + payload)) if headers else b"%d" % len(payload)
        )
        line = b"%b %b reply %b\r\n" % (command, subject.encode(), lengths)
        self.lines.write(line + headers + payload + b"\r\n")
        self.lines.flush()
        while not (line := self.lines.readline()).startswith(b"MSG"):
            assert not line.startswith(b"-ERR"), line
        return json.loads(self.lines.read(int(line.split()[-1]) + 2))

    def api(self, endpoint, **request):
        """
        Make a successful request of the JetStream API.
        """
        answer = self.request(f"$JS.API.{endpoint}", json.dumps(request).encode())
        assert "error" not in answer, answer
        return answer


@pytest.fixture(scope="module")
def server():
    """
    A server with a hostile stream, consumer and bucket.
    """
    with DevServer() as server:
        publisher = Publisher(server)
        common = {"storage": "memory", "description": EVIL_TEXT, "allow_direct": True}
        publisher.api("STREAM.CREATE.S", name="S", subjects=[f"s.{EVIL}.>"], **common)
        publisher.request(
            f"s.{EVIL}.a",
            EVIL_TEXT.encode() + b"\xff",
            f"NATS/1.0\r\nName{EVIL}: value{EVIL}:smile:\u2028\r\n\r\n".encode(),
        )
        config = {
            "name": "C",
            "durable_name": "C",
            "description": EVIL_TEXT,
            "filter_subject": f"s.{EVIL}.>",
            "ack_policy": "explicit",
        }
        publisher.api("CONSUMER.CREATE.S.C", stream_name="S", config=config)
        publisher.api(
            "STREAM.CREATE.KV_B",
            name="KV_B",
            subjects=["$KV.B.>"],
            max_msgs_per_subject=5,
            allow_rollup_hdrs=True,
            **common,
        )
        publisher.request(f"$KV.B.k{EVIL}", EVIL_TEXT.encode() + b"\xff")
        publisher.request("$KV.B.plain", EVIL_TEXT.encode())
        publisher.close()
        yield server


@pytest.fixture
def run(server, monkeypatch):
    """
    Run a command, check that its output only prints on a terminal, and return it.
    """
    monkeypatch.delenv("NATS_CONTEXT", raising=False)
    monkeypatch.setenv("NATS_URL", server.url)

    def run(*arguments, fails=0, **options):
        done = CliRunner().invoke(app, arguments, **options)
        assert done.exit_code == fails, done.output
        acting = {
            each
            for each in done.output.replace("\n", "").replace("\t", "")
            if unicodedata.category(each) in {"Cc", "Cf", "Cs", "Zl", "Zp"}
        }
        assert not acting
        return done.output

    return run


LITERAL = "gnp\\u2066\\u200f\\u061c[red][/]\\"


class TestHostileData:
    @pytest.mark.parametrize(
        ("arguments", "times"),
        [
            (("get", "S", "1"), 4),
            (("tail", "S", "--no-follow"), 2),
            (("tail", "S", "--no-follow", "--headers"), 4),
            (("stream", "ls"), 1),
            (("stream", "info", "S", "--subjects", ">"), 2),
            (("stream", "subjects", "S"), 0),
            (("stream", "report", "--interval", "0"), 0),
            (("stream", "edit", "S", "--description", "", "--dry-run"), 1),
            (("consumer", "report", "--interval", "0"), 0),
            (("consumer", "edit", "S", "C", "--filter", "s.x", "--dry-run"), 1),
            (("top", "--interval", "100ms"), 0),
            (("dead", "ls", "S"), 0),
            (("consumer", "ls", "S"), 0),
            (("consumer", "info", "S", "C"), 2),
            (("kv", "ls"), 0),
            (("kv", "status", "B"), 1),
            (("kv", "get", "B", "plain"), 1),
            (("kv", "history", "B", "plain"), 1),
            (("kv", "keys", "B"), 0),
            (("kv", "watch", "B", "--no-follow"), 1),
            (("doctor",), 0),
        ],
    )
    def test_for_people(self, run, arguments, times):
        """
        Every command shows control characters as escapes, and markup and emoji names literally.
        """
        output = run(*arguments)
        assert output.count(LITERAL) == times
        assert output.count("\\x1b[2J\\x7f\\x9b31m\\u202e") == times

    @pytest.mark.parametrize("arguments", [("get", "S", "1"), ("tail", "S", "--no-follow")])
    def test_messages_as_json(self, run, arguments):
        """
        The JSON is harmless too, and contains exactly the stored text.
        """
        message = json.loads(run(*arguments, "--json"))
        assert message["subject"] == f"s.{EVIL}.a"
        assert list(message["headers"]) == [f"Name{EVIL}"]
        assert base64.b64decode(message["data_base64"]) == EVIL_TEXT.encode() + b"\xff"

    @pytest.mark.parametrize("arguments", [("stream", "info", "S"), ("consumer", "info", "S", "C")])
    def test_configurations_as_json(self, run, arguments):
        """
        A description is returned unchanged.
        """
        assert json.loads(run(*arguments, "--json"))["config"]["description"] == EVIL_TEXT

    def test_entries_as_json(self, run):
        """
        Values are returned unchanged; subjects that cannot be keys are left out.
        """
        assert json.loads(run("kv", "keys", "B", "--json")) == ["plain"]
        assert json.loads(run("kv", "get", "B", "plain", "--json"))["value"] == EVIL_TEXT
        lines = run("kv", "watch", "B", "--no-follow", "--json").splitlines()
        assert [json.loads(line)["key"] for line in lines] == ["plain"]

    @pytest.mark.parametrize("as_json", [False, True])
    def test_the_description_of_a_server(self, run, server, monkeypatch, as_json):
        """
        Names, versions and reasons that a server sends are escaped, too.
        """
        found = doctor.examine(jetsync.ConnectOptions(servers=server.url))
        names = dict.fromkeys(("version", "server_name", "cluster", "url"), EVIL_TEXT)
        info = attrs.evolve(found.server, **names)
        report = attrs.evolve(found, server=info, jetstream=EVIL_TEXT)
        monkeypatch.setattr(doctor, "examine", lambda _options: report)
        output = run("doctor", *(["--json"] if as_json else []), fails=1)
        if as_json:
            assert json.loads(output)["server"]["version"] == EVIL_TEXT
        else:
            assert output.count(LITERAL) == 6

    def test_raw_output_has_exactly_the_stored_bytes(self, server, run):
        """
        Raw output to a file or a pipe has exactly the stored bytes.
        """
        done = CliRunner().invoke(app, ("get", "S", "1", "--raw"), env={"NATS_URL": server.url})
        assert done.stdout_bytes == EVIL_TEXT.encode() + b"\xff"

    @pytest.mark.parametrize(
        "arguments",
        [
            ("get", EVIL, "1"),
            ("stream", "info", EVIL),
            ("stream", "rm", EVIL, "-f"),
            ("stream", "create", EVIL),
            ("consumer", "info", "S", EVIL),
            ("consumer", "rm", "S", EVIL, "-f"),
            ("kv", "get", "B", EVIL),
            ("kv", "status", EVIL),
            ("kv", "add", EVIL),
            ("pub", f"nobody.{EVIL}", "x"),
            ("stream", "edit", EVIL, "--ttl", "-y"),
            ("consumer", "edit", "S", EVIL, "--max-batch", "1", "-y"),
            ("consumer", "pause", "S", EVIL, "1h"),
            ("consumer", "reset", "S", EVIL, "-y"),
            ("kv", "revert", "B", EVIL, "1", "-y"),
            ("dead", "replay", EVIL, "--all", "-y"),
            ("top", EVIL),
            ("tail", "S", "--subject", EVIL, "--no-follow", "--count", "x"),
        ],
    )
    def test_errors_escape_the_names_that_they_quote(self, run, arguments):
        """
        Errors that quote a name escape it.
        """
        fails = 2 if arguments[-1] == "x" and arguments[0] == "tail" else 1
        assert "Error: " in run(*arguments, fails=fails)
