"""
The command line against real servers.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading

import pytest
from click.testing import CliRunner

import jetsync
from jetsync.cli._app import jetsync as app
from jetsync.devserver import DevServer


@pytest.fixture
def run(nats_server, monkeypatch):
    """
    Run a command against the shared server; a function from arguments.
    """
    monkeypatch.delenv("NATS_CONTEXT", raising=False)
    monkeypatch.setenv("NATS_URL", nats_server.url)

    def run(*arguments, **options):
        return CliRunner().invoke(app, arguments, **options)

    return run


def checked(result):
    """
    Return the output of a command that has to succeed.
    """
    assert result.exit_code == 0, result.output
    return result.output


class TestMessages:
    def test_pub_and_get(self, run, stream):
        """
        What was published is shown as it was stored.
        """
        subject = f"{stream.name}.a"

        output = checked(run("pub", subject, "hello", "-H", "Kind: [test]", "-H", "Kind: 2"))

        assert output == f"stored in {stream.name} at 1\n"
        shown = checked(run("get", stream.name, "1"))
        assert f"subject      {subject}" in shown
        assert [line.split() for line in shown.splitlines() if line.startswith("header")] == [
            ["header", "Kind", "[test]"],
            ["header", "Kind", "2"],
        ]
        assert shown.endswith("\nhello\n")

    def test_pub_twice_with_one_id(self, run, stream):
        """
        The second one is a duplicate, and says where the first one is.
        """
        arguments = ("pub", f"{stream.name}.a", "x", "--msg-id", "1")
        checked(run(*arguments))

        assert checked(run(*arguments)) == f"duplicate: {stream.name} has it at 1\n"
        assert json.loads(checked(run(*arguments, "--json")))["duplicate"] is True

    def test_pub_reads_standard_input(self, run, stream):
        """
        Without DATA, and with `-`, the payload comes from standard input, byte by byte.
        """
        checked(run("pub", f"{stream.name}.a", input=b"\x00\xff"))
        checked(run("pub", f"{stream.name}.b", "-", input=b"b"))

        assert run("get", stream.name, "1", "--raw").stdout_bytes == b"\x00\xff"
        first = json.loads(checked(run("get", stream.name, "1", "--json")))
        assert first["data_base64"] == "AP8="
        last = json.loads(checked(run("get", stream.name, "--last", f"{stream.name}.b", "--json")))
        assert (last["sequence"], last["data"]) == (2, "b")

    def test_pub_with_a_time_to_live(self, run, js, unique):
        """
        The time to live is stored with the message.
        """
        js.create_stream(name=unique, subjects=[unique], allow_msg_ttl=True, storage="memory")

        checked(run("pub", unique, "x", "--ttl", "60"))
        checked(run("pub", unique, "x", "--ttl", "never"))

        headers = [
            json.loads(checked(run("get", unique, number, "--json")))["headers"]
            for number in ("1", "2")
        ]
        assert headers == [{"Nats-TTL": ["60"]}, {"Nats-TTL": ["never"]}]
        js.delete_stream(unique)

    def test_what_is_not_there(self, run, stream):
        """
        A missing message, stream and subject are errors of one line.
        """
        for arguments in (
            ("get", stream.name, "9"),
            ("get", "MISSING", "1"),
            ("pub", f"nobody.{stream.name}", "x"),
        ):
            result = run(*arguments)
            assert result.exit_code == 1
            assert result.output.startswith("Error: ")
            assert result.output.count("\n") == 1


class TestStreams:
    def test_create_show_list_purge_remove(self, run, unique):
        """
        The life of a stream.
        """
        output = checked(
            run("stream", "create", unique, "--subjects", f"{unique}.>", "--storage", "memory")
        )
        assert output == f"created {unique} for {unique}.>\n"
        for number in range(3):
            checked(run("pub", f"{unique}.{number}", "x"))

        (row,) = [
            line.split()
            for line in checked(run("stream", "ls", "--subject", f"{unique}.1")).splitlines()[1:]
        ]
        assert row[:3] == [unique, f"{unique}.>", "3"]
        shown = checked(run("stream", "info", unique, "--subjects", ">"))
        assert f"{unique}.2         1" in shown
        info = json.loads(checked(run("stream", "info", unique, "--json")))
        assert info["state"]["messages"] == 3

        assert checked(run("stream", "purge", unique, "--keep", "1", "-f")) == (
            f"removed 2 messages from {unique}\n"
        )
        refused = run("stream", "rm", unique, input="n\n")
        assert refused.exit_code == 1
        output = checked(run("stream", "rm", unique, input="y\n"))
        assert output.endswith(f"removed {unique} with 1 messages\n")
        assert run("stream", "info", unique).exit_code == 1
        assert unique not in checked(run("stream", "ls"))

    def test_create_from_a_configuration(self, run, unique, tmp_path):
        """
        A stream is made again from what `stream info --json` has printed.
        """
        flags = ("--direct", "--atomic", "--ttl", "--max-age", "60", "--storage", "memory")
        checked(run("stream", "create", unique, *flags))
        path = tmp_path / "stream.json"
        path.write_text(checked(run("stream", "info", unique, "--json")))
        checked(run("stream", "rm", unique, "-f"))

        made = json.loads(
            checked(run("stream", "create", unique, "--config", str(path), "--json"))
        )["config"]

        assert made["max_age"] == 60_000_000_000
        assert (made["allow_direct"], made["allow_atomic"], made["allow_msg_ttl"]) == (True,) * 3
        assert "allows   " in checked(run("stream", "info", unique))
        checked(run("stream", "rm", unique, "-f"))

    def test_purge_asks(self, run, stream):
        """
        Nothing is removed unless it is confirmed.
        """
        checked(run("pub", f"{stream.name}.a", "x"))

        assert run("stream", "purge", stream.name, input="n\n").exit_code == 1
        assert stream.info().state.messages == 1
        checked(run("stream", "purge", stream.name, "--subject", f"{stream.name}.a", input="y\n"))
        assert stream.info().state.messages == 0


class TestConsumers:
    def test_list_show_remove(self, run, stream):
        """
        The consumers of a stream.
        """
        assert checked(run("consumer", "ls", stream.name)) == f"{stream.name} has no consumers.\n"
        stream.create_consumer(durable_name="worker", filter_subject=f"{stream.name}.a")
        checked(run("pub", f"{stream.name}.a", "x"))

        rows = checked(run("consumer", "ls", stream.name)).splitlines()
        assert rows[1].split()[:5] == ["worker", "1", "0", "0", "0"]
        (listed,) = json.loads(checked(run("consumer", "ls", stream.name, "--json")))
        assert listed["name"] == "worker"
        shown = checked(run("consumer", "info", stream.name, "worker"))
        assert f"filters             {stream.name}.a" in shown or f"{stream.name}.a" in shown
        info = json.loads(checked(run("consumer", "info", stream.name, "worker", "--json")))
        assert info["num_pending"] == 1

        assert run("consumer", "rm", stream.name, "worker", input="n\n").exit_code == 1
        assert checked(run("consumer", "rm", stream.name, "worker", "-f")) == (
            f"removed the consumer worker of {stream.name}\n"
        )
        assert run("consumer", "info", stream.name, "worker").exit_code == 1


class TestDoctor:
    def test_the_newest_server_has_everything(self, run, nats_server):
        """
        Server, account and features are shown, and the exit status is 0.
        """
        output = checked(run("doctor", nats_server.url))

        assert f"nats-server {nats_server.version}" in output
        assert "fast ingest" in output
        assert " no " not in output

    def test_as_json(self, run, nats_server):
        """
        A program finds the same as JSON.
        """
        report = json.loads(checked(run("doctor", "--json", "--require", "fast_ingest")))

        assert report["ok"] is True
        assert report["server"]["version"] == nats_server.version
        assert report["api_level"] >= 5
        assert 0 < report["rtt_ms"] < 1000
        assert report["account"]["limits"]["max_streams"] == -1
        assert all(feature["works"] for feature in report["features"])

    def test_a_server_without_jetstream(self, run):
        """
        Without JetStream the exit status is 1, and every feature says why.
        """
        with DevServer(jetstream=False) as server:
            result = run("doctor", server.url, "--json")

        report = json.loads(result.output)
        assert result.exit_code == 1
        (problem,) = report["problems"]
        assert "JetStream" in problem
        assert {feature["why"] for feature in report["features"]} == {problem}
        assert not any(feature["works"] for feature in report["features"])

    @pytest.mark.versions
    @pytest.mark.parametrize("version", ["2.10.26", "2.11.11", "2.12.8", "2.14.6"])
    def test_older_servers(self, run, server_for, version):
        """
        What the table says of a version is what a server of that version does.
        """
        server = server_for(version)
        report = json.loads(checked(run("doctor", server.url, "--json")))
        works = {feature["feature"]: feature["works"] for feature in report["features"]}

        assert report["server"]["version"] == version
        with jetsync.connect(server.url) as client:
            js = client.jetstream()
            assert works == {**works, **kept_by(js)}
            stream = js.create_stream(name="PROBE", subjects=["probe"], storage="memory")
            stream.create_consumer(durable_name="C")
            assert works["reset"] == answers(client, "$JS.API.CONSUMER.RESET.PROBE.C")
            assert works["pause"] == answers(client, "$JS.API.CONSUMER.PAUSE.PROBE.C")
            stream.delete()

    def test_a_required_feature_that_is_missing(self, run, server_for):
        """
        The exit status is 1 where a feature is required that does not work.
        """
        server = server_for("2.12.8")

        result = run("doctor", server.url, "--require", "batch_eob", "--require", "atomic_batch")

        assert result.exit_code == 1
        assert "problem: batch_eob does not work\n" in result.output
        assert "needs nats-server 2.14 (API level 4), this is 2.12.8 (API level 3)" in result.output

    test_a_required_feature_that_is_missing = pytest.mark.versions(
        test_a_required_feature_that_is_missing
    )


def kept_by(js):
    """
    Try the features that are switched on in a stream's configuration, and say which were kept.
    """
    switches = {
        "message_ttl": {"allow_msg_ttl": True},
        "limit_markers": {"subject_delete_marker_ttl": 1.0, "allow_rollup_hdrs": True},
        "atomic_batch": {"allow_atomic": True},
        "fast_ingest": {"allow_batched": True},
        "counters": {"allow_msg_counter": True},
        "schedules": {"allow_msg_schedules": True},
    }
    kept = {}
    for feature, fields in switches.items():
        try:
            js.create_stream(name="PROBE", subjects=["probe"], storage="memory", **fields)
            kept[feature] = True
        except jetsync.JetSyncError:
            kept[feature] = False
        if "PROBE" in js.stream_names():
            js.delete_stream("PROBE")
    return kept


def answers(client, subject):
    """
    Tell whether the server offers an API subject at all; it is silent about others.
    """
    try:
        client.request(subject, b"{}", timeout=2)
    except (jetsync.NoRespondersError, jetsync.RequestTimeoutError):
        return False
    return True


class TestServer:
    @pytest.fixture
    def start(self):
        """
        Start `jetsync server` in a process of its own; a function from arguments.
        """
        started = []

        def start(*arguments):
            process = subprocess.Popen(
                [sys.executable, "-m", "jetsync", "server", *arguments],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )
            started.append(process)
            return process

        yield start
        for process in started:
            process.kill()
            process.communicate()

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_runs_until_it_is_interrupted(self, start, number, tmp_path):
        """
        The first line is the URL; Ctrl-C and SIGTERM end it with status 0 and stop the server.
        """
        process = start("--port", "0", "--store", str(tmp_path / "store"))
        url = process.stdout.readline().strip()

        with jetsync.connect(url) as client:
            client.jetstream().create_stream(name="KEPT", subjects=["kept"])
        process.send_signal(number)
        _, errors = process.communicate(timeout=30)

        assert process.returncode == 0, errors
        assert errors.endswith("stopped\n")
        with pytest.raises(jetsync.ConnectError):
            jetsync.connect(url, connect_timeout=2)
        with (
            DevServer(store=tmp_path / "store") as server,
            jetsync.connect(server.url) as client,
        ):
            assert client.jetstream().stream("KEPT").name == "KEPT"

    def test_a_server_that_ends_by_itself(self, start):
        """
        Where the server dies, so does the command, with its log.
        """
        process = start("--port", "0")
        url = process.stdout.readline().strip()
        pid = server_pid(process.pid)
        watch = threading.Thread(target=process.wait, args=(30,))
        watch.start()

        os.kill(pid, signal.SIGKILL)
        watch.join()

        _, errors = process.communicate(timeout=30)
        assert process.returncode == 1
        assert "nats-server ended by itself" in errors
        assert url.startswith("nats://127.0.0.1:")


def server_pid(parent):
    """
    Find the server that a process has started.
    """
    children = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(parent)], capture_output=True, text=True, check=True
    )
    (pid,) = children.stdout.split()
    return int(pid)
