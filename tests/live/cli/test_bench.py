"""
`jetsync bench` on real servers. No test asserts a speed.
"""

from __future__ import annotations

import json
import signal

import pytest
from click.testing import CliRunner

import jetsync
from helpers.commands import running
from jetsync._base import speedups
from jetsync.cli import _bench_tests, _signals, bench
from jetsync.cli._app import jetsync as app
from jetsync.devserver import DevServer

ALL = ["publish one", "publish many", "publisher", "atomic batches", "fast ingest"]
ALL += ["fetch", "consume", "scan", "kv put", "kv get"]


@pytest.fixture
def run(nats_server, monkeypatch):
    """
    Run the command against the shared server; a function from arguments.
    """
    monkeypatch.delenv("NATS_CONTEXT", raising=False)
    monkeypatch.setenv("NATS_URL", nats_server.url)

    def run(*arguments, **options):
        return CliRunner().invoke(app, ("bench", *arguments), **options)

    return run


def left(js):
    """
    Return the streams that a bench has left.
    """
    return [name for name in js.stream_names() if _bench_tests.NAME in name]


def test_every_test_as_json(run, js):
    """
    Every test sends and reads all messages, and removes its stream.
    """
    result = run("--msgs", "200", "--batch", "10", "--clients", "2", "--threads", "2", "--json")

    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert report["server"]["temporary"] is False
    assert report["client"]["variant"] == speedups.VARIANT
    assert report["settings"]["threads"] == 2
    assert [each["test"] for each in report["results"]] == ALL
    for each in report["results"]:
        assert each["messages"] == 200
        assert each["seconds"] > 0
        assert each["note"] is None
    measured = {each["test"]: each for each in report["results"] if each["p50_ms"]}
    assert set(measured) == {*ALL} - {"publish many", "fast ingest", "consume", "scan"}
    # A percentile of fewer than 100 calls would be their maximum.
    assert measured["publish one"]["p99_ms"] >= measured["publish one"]["p50_ms"]
    assert measured["fetch"]["p99_ms"] is None
    assert left(js) == []


@pytest.mark.parametrize(
    ("count", "median", "high"), [(1, 1, None), (2, 1, None), (99, 50, None), (100, 50, 99)]
)
def test_p99_needs_100_calls(count, median, high):
    """
    p50 is the time within which half of the calls ended, and p99 needs 100 calls.
    """
    result = bench.Result(bench.TESTS[0], 0, count, times=list(range(count, 0, -1)))

    assert (result.percentile(50), result.percentile(99)) == (median, high)


def test_the_table_has_a_line_for_each_test_and_size(run, js):
    """
    The table has a line for each test and size. Standard error names the server and the variant.
    """
    sizes = ("--size", "1KB", "--size", "0", "--storage", "memory")
    result = run("many", "scan", "--msgs", "10", *sizes)

    assert result.exit_code == 0, result.output
    head, *rows = result.stdout.splitlines()
    assert head.split()[:5] == ["test", "size", "messages", "time", "msgs/s"]
    assert rows[0].split()[:5] == ["publish", "many", "1", "KiB", "10"]
    assert len(rows) == 4
    server, client = result.stderr.splitlines()
    assert server.startswith("nats-server ")
    assert client == f"jetsync {jetsync.__version__}, {speedups.VARIANT}"
    assert left(js) == []


def test_a_server_of_its_own(run, monkeypatch):
    """
    Without a server, the command starts one.
    """
    monkeypatch.delenv("NATS_URL")

    result = run("many", "--msgs", "10")

    assert result.exit_code == 0, result.output
    assert result.stderr.splitlines()[0].endswith(", started for these tests")


@pytest.mark.thorough
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_benchmark_and_removes_its_stream(nats_server, js, number):
    """
    Ctrl-C and SIGTERM end the threads, and the stream is removed.
    """
    command = ("bench", "pub", "--msgs", "100000000", "--threads", "3")
    with (
        jetsync.connect(nats_server.url) as client,
        client.subscribe("*.a") as messages,
        running(*command, NATS_URL=nats_server.url) as process,
    ):
        # Messages of the bench arrive, so its threads are at work.
        while not messages.next(timeout=60).subject.startswith(_bench_tests.NAME):
            pass
        process.send_signal(number)
        out, errors = process.communicate(timeout=60)

    assert process.returncode == 1
    assert out == ""
    assert errors.splitlines()[-1] == "Aborted!"
    assert "Traceback" not in errors
    assert left(js) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("is_ending", [False, True])
def test_interrupted_while_the_stream_is_removed(run, js, monkeypatch, number, is_ending):
    """
    A signal during the removal, the first or a second one, takes effect after it.
    """
    measure, delete_stream = bench.measure, jetsync.JetStream.delete_stream
    deleted = []

    def interrupted_measure(*arguments):
        if is_ending:
            signal.raise_signal(number)
        return measure(*arguments)

    def interrupted_delete(*arguments):
        signal.raise_signal(number)
        delete_stream(*arguments)
        signal.raise_signal(number)
        deleted.append(arguments)

    monkeypatch.setattr(bench, "measure", interrupted_measure)
    monkeypatch.setattr(jetsync.JetStream, "delete_stream", interrupted_delete)
    before = [signal.getsignal(each) for each in _signals.INTERRUPTS]

    result = run("many", "scan", "--msgs", "10")

    assert result.exit_code == 1
    assert result.stderr.splitlines()[-1] == "Aborted!"
    assert len(deleted) == 1
    assert left(js) == []
    assert [signal.getsignal(each) for each in _signals.INTERRUPTS] == before


def test_a_failure_removes_the_stream(run, js):
    """
    A payload that is too large is one line, and nothing is left on the server.
    """
    result = run("pub", "--size", "64MB", "--msgs", "1")

    assert result.exit_code == 1
    assert result.stderr.splitlines()[-1].startswith("Error: ")
    assert left(js) == []


def test_a_failure_after_which_the_stream_cannot_be_removed(run, tmp_path):
    """
    The error is the first one, and a warning names the stream that may be left.
    """
    file = tmp_path / "nats.conf"
    file.write_text(
        'authorization { users: [{ user: app, password: s3cret, permissions: { publish: "a" } }] }'
    )
    with DevServer(config=file) as server:
        url = server.url.replace("//", "//app:s3cret@")
        result = run("pub", "--msgs", "1", "-s", url)

    assert result.exit_code == 1
    *_, warning, error = result.stderr.splitlines()
    assert warning.startswith(f"the stream {_bench_tests.NAME}")
    assert "may be left on the server: permission denied" in warning
    assert error.startswith("Error: permission denied: may not publish to '$JS.API.STREAM.CREATE.")


@pytest.mark.versions
def test_tests_that_an_old_server_lacks_say_so(run, server_for):
    """
    Tests that the server does not support say so, and the others run.
    """
    server = server_for("2.10.26")

    result = run("--msgs", "20", "--batch", "10", "--json", "-s", server.url)

    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)["results"]
    assert [each["test"] for each in found] == ALL
    missing = {each["test"]: each["note"] for each in found if each["seconds"] is None}
    assert set(missing) == {"atomic batches", "fast ingest", "scan"}
    assert all(missing.values())
    with jetsync.connect(server.url) as client:
        assert left(client.jetstream()) == []
