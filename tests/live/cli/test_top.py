"""
`jetsync top` on a terminal, in a pipe and as JSON.
"""

from __future__ import annotations

import json
import os
import signal
import sys

import pytest
from click.testing import CliRunner

from jetsync._api.context import Context
from jetsync.cli._app import jetsync as app
from jetsync.cli._samples import Sampler
from jetsync.testing import CutProxy

termios = pytest.importorskip("termios", reason="needs the terminals of POSIX systems")

SCREEN, NO_SCREEN = "\x1b[?1049h", "\x1b[?1049l"
CURSOR = "\x1b[?25h"


@pytest.fixture
def run(nats_server, monkeypatch):
    """
    Run a command against the shared server; a function from arguments.
    """
    monkeypatch.delenv("NATS_CONTEXT", raising=False)
    monkeypatch.setenv("NATS_URL", nats_server.url)
    return lambda *arguments, **options: CliRunner().invoke(app, arguments, **options)


def check_restored(terminal):
    """
    Check that the terminal is as it was before the command.
    """
    assert terminal.text.index(SCREEN) < terminal.text.rindex(NO_SCREEN)
    assert terminal.text.rindex(NO_SCREEN) < len(terminal.text)
    assert CURSOR in terminal.text
    assert terminal.modes() == terminal.modes_before


OWN_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execvp(sys.argv[1], sys.argv[1:])
"""
"""Runs a command that gets signals from the keys of its terminal."""


class TestScreen:
    @pytest.fixture
    def top(self, pseudo_terminal, stream):
        """
        Start the command on a stream with two consumers, and wait for the screen.
        """
        stream.create_consumer("worker")
        stream.create_consumer("other")

        def top(**options):
            command = ("jetsync", "top", stream.name, "--interval", "200ms")
            started = pseudo_terminal(sys.executable, "-c", OWN_TERMINAL, *command, **options)
            started.read_until("q quit")
            return started

        return top

    def test_q_ends_it(self, top, js, stream):
        """
        New messages appear on the screen. The key q ends the command with status 0.
        """
        started = top()
        js.publish_many((f"{stream.name}.a", b"x") for _ in range(4321))
        started.read_until("4,321")
        started.type("q")

        assert "Traceback" not in started.read_all()
        assert started.process.returncode == 0
        check_restored(started)

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_signals_end_it(self, top, number):
        """
        Ctrl-C and SIGTERM leave the terminal as it was, and the exit status is 0.
        """
        started = top()
        started.process.send_signal(number)

        assert "Traceback" not in started.read_all()
        assert started.process.returncode == 0
        check_restored(started)

    def test_keys_of_the_terminal(self, top):
        """
        Ctrl-C works as typed. Ctrl-Z is off, because it would stop the command in the middle of its
        screen.
        """
        started = top()
        keys = started.modes()[6]
        assert keys[termios.VSUSP] == bytes([os.fpathconf(started.control, "PC_VDISABLE")])
        assert keys[termios.VINTR] == b"\x03"
        started.type("\x03")

        started.read_all()
        assert started.process.returncode == 0
        check_restored(started)

    def test_keys_sort_and_scroll(self, pseudo_terminal, stream):
        """
        The key s changes the order, and the cursor keys scroll through the consumers.
        """
        for number in range(40):
            stream.create_consumer(f"worker-{number:02}")
        started = pseudo_terminal("jetsync", "top", stream.name, "--interval", "1h")
        started.read_until("consumers 1 to 16 of 40")
        started.type("\x1b[B")
        started.read_until("consumers 2 to 17 of 40")
        started.type("\x1b[F")
        started.read_until("worker-39")
        started.type("\x1b[Hs")
        started.read_until("now by rate   ↑ ↓ consumers 1 to 16 of 40")
        started.type("q")
        started.read_all()
        check_restored(started)

    def test_a_window_that_changes_its_size(self, top):
        """
        After a change of the window, the tables have its columns.
        """
        started = top(size=(80, 24))
        assert "redelivered" not in started.text
        started.resize(120, 30)

        started.read_until("redelivered")

    def test_a_lost_connection_is_shown(self, pseudo_terminal, nats_server, stream):
        """
        If the connection is lost, the screen says so, and continues when it is back.
        """
        with CutProxy(nats_server.url) as proxy:
            started = pseudo_terminal(
                "jetsync", "top", stream.name, "--interval", "200ms", NATS_URL=proxy.url
            )
            started.read_until("q quit")
            proxy.refuse()
            proxy.cut()
            started.read_until("the connection is lost; reconnecting")
            started.text = ""
            proxy.accept()
            started.read_until("q quit")
            started.type("q")
            started.read_all()
        assert started.process.returncode == 0
        assert started.modes() == started.modes_before

    def test_a_stream_that_is_removed_is_shown(self, top, js, stream):
        """
        An error of a later answer is on the screen, and the command continues.
        """
        started = top()
        js.delete_stream(stream.name)
        started.read_until("not found")
        started.type("q")

        started.read_all()
        assert started.process.returncode == 0

    def test_a_failure_leaves_the_terminal_as_it_was(self, pseudo_terminal):
        """
        An error before the first answer is a line, without a screen.
        """
        started = pseudo_terminal("jetsync", "top", "MISSING")

        assert "Error: stream 'MISSING' not found" in started.read_all()
        assert SCREEN not in started.text
        assert started.process.returncode == 1

    def test_input_that_is_no_terminal(self, stream, pseudo_terminal):
        """
        Without a keyboard, the screen works, and Ctrl-C ends it.
        """
        command = f"exec jetsync top {stream.name} --interval 200ms </dev/null"
        started = pseudo_terminal("/bin/sh", "-c", command)
        started.read_until("q quit")
        started.process.send_signal(signal.SIGINT)

        started.read_all()
        assert started.process.returncode == 0
        assert NO_SCREEN in started.text


class TestOnce:
    def test_in_a_pipe(self, run, js, stream):
        """
        In a pipe, the command prints two tables and ends.
        """
        stream.create_consumer("worker")
        js.publish_many((f"{stream.name}.a", b"x") for _ in range(12))

        result = run("top", stream.name, "--interval", "100ms")

        assert result.exit_code == 0
        streams, consumers = result.output.split("\n\n")
        assert streams.splitlines()[1].split()[:2] == [stream.name, "12"]
        assert consumers.splitlines()[1].split()[:3] == ["worker", stream.name, "12"]

    def test_as_json(self, run, stream):
        """
        With --json, the output has the streams and the consumers.
        """
        stream.create_consumer("worker")

        report = json.loads(run("top", stream.name, "--interval", "100ms", "--json").output)

        assert [each["stream"] for each in report["streams"]] == [stream.name]
        (consumer,) = report["consumers"]
        assert (consumer["consumer"], consumer["lag"], consumer["messages_per_second"]) == (
            "worker",
            0,
            0,
        )

    def test_an_interval_that_is_too_short(self, run):
        """
        An interval below 0.1 seconds is a usage error.
        """
        assert run("top", "--interval", "50ms").exit_code == 2


class TestRequests:
    def test_a_thousand_consumers_need_few_requests(self, js, monkeypatch, stream):
        """
        One request asks for 256 consumers.
        """
        for number in range(1000):
            stream.create_consumer(f"worker-{number}", mem_storage=True)
        sampler = Sampler(js, names=frozenset({stream.name}))
        asked, api = [], Context.api

        def counted(self, endpoint, *arguments, **options):
            asked.append(endpoint)
            return api(self, endpoint, *arguments, **options)

        monkeypatch.setattr(Context, "api", counted)
        sampler.round()

        assert len(sampler.consumers[stream.name]) == 1000
        assert len(asked) == sampler.requests == 5

    def test_a_budget_takes_the_streams_in_turn(self, js, unique):
        """
        The streams that a round leaves out are the first of the next round.
        """
        names = [f"{unique}-{letter}" for letter in "abc"]
        for name in names:
            js.create_stream(name, subjects=[name], storage="memory").create_consumer("worker")
        sampler = Sampler(js, names=frozenset(names), budget=2)
        try:
            sampler.round()
            assert sampler.waiting == names[2:]
            assert not sampler.consumers[names[2]]
            sampler.round()
            assert sampler.waiting == names[1:2]
            assert all(sampler.consumers[name] for name in names)
        finally:
            for name in names:
                js.delete_stream(name)
