"""
The test kit itself: clock, scripted transport, hook recorder, proxy, and the pytest plugin.
"""

from __future__ import annotations

import socket
import threading
import time
from pathlib import Path

import pluggy
import pytest

import jetsync.hookspecs
import jetsync.testing
from jetsync.testing import (
    Command,
    CutProxy,
    HookRecorder,
    ManualClock,
    ProxyStatistics,
    ScriptedTransport,
    eventually,
)
from jetsync.testing._recorder import HOOKS

pytest_plugins = ["pytester"]


class TestManualClock:
    def test_moves_only_on_request(self):
        """The time is constant until the test advances it."""
        clock = ManualClock(5)
        assert (clock(), clock()) == (5.0, 5.0)
        assert clock.advance(1.5) == 6.5
        assert clock() == clock.now == 6.5

    def test_never_goes_back(self):
        """A negative step is refused."""
        with pytest.raises(ValueError, match="does not go back"):
            ManualClock().advance(-1)


class TestEventually:
    def test_returns_what_is_true(self):
        """The function is called until it returns something true, which is the result."""
        results = iter([None, 0, "there", "not asked for"])

        assert eventually(lambda: next(results)) == "there"

    def test_fails_after_the_timeout(self):
        """A condition that stays false fails the test; the function is called at least once."""
        asked = []

        with pytest.raises(AssertionError, match=r"not within 0\.01 s"):
            eventually(lambda: asked.append(1), timeout=0.01)
        assert asked


class TestScriptedTransport:
    def test_routes_by_subject(self):
        """A frame goes to every subscription whose subject matches."""
        transport = ScriptedTransport()
        got: list = []
        transport.subscribe("_INBOX.a.*", got.append)
        transport.subscribe("other", got.append)
        assert transport.deliver("_INBOX.a.1", b"x", reply="r", headers={"A": "b"}) == 1
        assert got == [(b"_INBOX.a.1", b"r", b"NATS/1.0\r\nA: b\r\n\r\n", b"x")]

    def test_routes_by_id(self):
        """
        Messages of a pull have the stream's subject, so only the id connects them to the pull.
        """
        transport = ScriptedTransport()
        got: list = []
        sid = transport.subscribe("_INBOX.a", got.append)
        assert transport.deliver("orders.1") == 0
        assert transport.deliver("orders.1", sid=sid) == 1
        transport.unsubscribe(sid)
        assert transport.deliver("orders.1", sid=sid) == 0
        assert [frame[0] for frame in got] == [b"orders.1"]
        assert transport.subscriptions == {}

    def test_records_commands(self):
        """Written bytes are kept, and parsed as commands."""
        transport = ScriptedTransport()
        transport.write(b"PUB a.b 2\r\nhi\r\nHPUB a r 12 14\r\nNATS/1.0\r\n\r\nhi\r\nPING\r\n")
        transport.write(b"SUB a.* queue 7\r\nUNSUB 7 5\r\nPUB a r 0\r\n\r\n")
        assert transport.commands == [
            Command("PUB", "a.b", data=b"hi"),
            Command("PUB", "a", "r", b"NATS/1.0\r\n\r\n", b"hi"),
            Command("PING"),
            Command("SUB", "a.*", data=b"queue", sid="7"),
            Command("UNSUB", data=b"5", sid="7"),
            Command("PUB", "a", "r"),
        ]
        assert [command.subject for command in transport.published("a")] == ["a", "a"]
        assert transport.commands[1].headers.items() == []

    def test_half_a_command(self):
        """A command that is written in pieces is parsed once it is whole."""
        transport = ScriptedTransport()
        for byte in b"PUB a 3\r\n\r\nx\r\n":
            transport.write(bytes([byte]))
        assert transport.commands == [Command("PUB", "a", data=b"\r\nx")]
        transport.write(b"PI")
        transport.clear()
        transport.write(b"NG\r\n")
        assert transport.commands == [Command("PING")]

    @pytest.mark.parametrize("data", [b"\r\n", b"MSG a 1 0\r\n\r\n", b"PUB a 1\r\nxyz\r\n"])
    def test_invalid_bytes(self, data):
        """Bytes that a client would never write raise at once."""
        with pytest.raises(ValueError, match=r"."):
            ScriptedTransport().write(data)

    def test_scripted_answers(self):
        """A function acts as the server: it gets the command, and its frames are delivered."""
        transport = ScriptedTransport()
        got: list = []
        transport.subscribe("_INBOX.>", got.append)
        transport.on("orders.*", lambda c: [(c.reply.encode(), b"", None, c.data.upper())])
        transport.on(">", lambda c: None)
        transport.write(b"PUB orders.1 _INBOX.1 2\r\nhi\r\nPUB x _INBOX.2 2\r\nhi\r\n")
        assert got == [(b"_INBOX.1", b"", None, b"HI")]

    @pytest.mark.parametrize(
        ("wanted", "subject", "expected"),
        [
            ("a.b", "a.b", True),
            ("a.b", "a.c", False),
            ("a.*", "a.b", True),
            ("a.*", "a.b.c", False),
            ("a.>", "a.b.c", True),
            ("a.>", "a", False),
            ("a.b", "a", False),
            (">", "a", True),
        ],
    )
    def test_subjects_of_a_script_match_as_in_a_server(self, wanted, subject, expected):
        """Subjects match as they do in a server."""
        transport = ScriptedTransport()
        transport.subscribe(wanted, lambda frame: None)
        assert transport.deliver(subject) == expected


@pytest.fixture
def manager():
    """
    A plugin manager that knows the hooks of jetsync.
    """
    manager = pluggy.PluginManager("jetsync")
    manager.add_hookspecs(jetsync.hookspecs)
    return manager


class TestHookRecorder:
    def test_implements_every_hook(self, manager):
        """The recorder implements every existing hook and nothing else."""
        manager.register(HookRecorder())
        manager.check_pending()
        specified = {name for name in vars(jetsync.hookspecs) if name.startswith("jetsync_")}
        assert set(HOOKS) == specified
        assert all(getattr(manager.hook, name).get_hookimpls() for name in HOOKS)

    def test_implements_the_given_hooks(self, manager):
        """A hook that was not requested has no implementation."""
        manager.register(HookRecorder("jetsync_status"))
        implemented = [name for name in HOOKS if getattr(manager.hook, name).get_hookimpls()]
        assert implemented == ["jetsync_status"]

    def test_unknown_hook(self):
        """A misspelt hook raises an error, because it would never record a call."""
        with pytest.raises(ValueError, match="jetsync_statuses"):
            HookRecorder("jetsync_statuses")

    def test_records_calls_in_order(self, manager):
        """Each call is recorded with its arguments and its thread, and changes nothing."""
        recorder = HookRecorder()
        manager.register(recorder)
        assert manager.hook.jetsync_prepare_message(message="m") == []
        assert manager.hook.jetsync_retry(operation="o", error=OSError(), attempt=1) is None
        manager.hook.jetsync_ttl_marker(message="m", reason="r")
        assert recorder.names == [
            "jetsync_prepare_message",
            "jetsync_retry",
            "jetsync_ttl_marker",
        ]
        assert recorder.of("jetsync_ttl_marker")[0]["reason"] == "r"
        assert {call.thread for call in recorder} == {threading.current_thread().name}
        recorder.clear()
        assert len(recorder) == 0

    def test_records_outcomes(self, manager):
        """A wrapper's call has the operation's result or error, which passes through."""

        class Operation:
            @jetsync.hookspecs.hookimpl
            def jetsync_publish(self, operation):
                if operation == "bad":
                    raise OSError("broken")
                return "ack"

        recorder = HookRecorder("jetsync_publish")
        manager.register(Operation())
        manager.register(recorder)
        assert manager.hook.jetsync_publish(operation="good") == ["ack"]
        with pytest.raises(OSError, match="broken"):
            manager.hook.jetsync_publish(operation="bad")
        good, bad = recorder.calls
        assert (good.result, good.error, good.finished) == (["ack"], None, True)
        assert isinstance(bad.error, OSError)

    def test_wait_for(self, manager):
        """A test can wait for a call that another thread makes."""
        recorder = HookRecorder()
        manager.register(recorder)
        thread = threading.Thread(target=manager.hook.jetsync_status, kwargs={"event": "e"})
        thread.start()
        assert recorder.wait_for("jetsync_status")[0]["event"] == "e"
        thread.join()
        with pytest.raises(TimeoutError, match="called 1 times"):
            recorder.wait_for("jetsync_status", 2, timeout=0.01)


class EchoServer:
    """
    Accept connections, send received bytes back, and count them.
    """

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.received = bytearray()
        self._threads: list[threading.Thread] = []
        self._acceptor = threading.Thread(target=self._accept)
        self._acceptor.start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._echo, args=(connection,))
            thread.start()
            self._threads.append(thread)

    def _echo(self, connection: socket.socket) -> None:
        with connection:
            try:
                while data := connection.recv(65536):
                    self.received += data
                    connection.sendall(data)
            except OSError:
                pass

    def close(self) -> None:
        """Wait until all received bytes have been read."""
        if self._listener.fileno() < 0:
            return
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._acceptor.join()
        for thread in self._threads:
            thread.join()


@pytest.fixture
def echo():
    """
    A server that sends all bytes back.
    """
    server = EchoServer()
    yield server
    server.close()


@pytest.fixture
def proxy(echo):
    """
    A proxy in front of the echo server.
    """
    with CutProxy(echo.port) as proxy:
        yield proxy


@pytest.fixture
def connection(proxy):
    """
    A connection through the proxy.
    """
    with socket.create_connection(("127.0.0.1", proxy.port), 5) as connection:
        yield connection


def receive(connection: socket.socket, size: int) -> bytes:
    """Read that many bytes, or those until the end of the stream."""
    data = b""
    while len(data) < size:
        more = connection.recv(size - len(data))
        if not more:
            break
        data += more
    return data


def flood(connection: socket.socket) -> None:
    """Send more than all buffers between the sockets can hold."""
    for _ in range(1000):
        connection.sendall(b"x" * 65536)


class TestCutProxy:
    def test_bytes_pass_unchanged_and_are_counted(self, proxy, connection):
        """Bytes pass unchanged in both directions and are counted."""
        data = bytes(range(256)) * 4096
        sender = threading.Thread(target=connection.sendall, args=(data,))
        sender.start()
        assert receive(connection, len(data)) == data
        sender.join()
        assert proxy.statistics() == ProxyStatistics(
            accepted=1, open=1, cuts=0, bytes_to_server=len(data), bytes_to_client=len(data)
        )
        assert proxy.url.endswith(f":{proxy.port}")

    def test_a_cut_closes_open_connections_and_the_next_one_works(self, proxy, connection):
        """Cutting closes open connections; the next one works."""
        connection.sendall(b"x")
        assert receive(connection, 1) == b"x"
        assert proxy.cut() == 1
        assert proxy.wait_cuts(1)
        assert connection.recv(1) == b""
        with socket.create_connection(("127.0.0.1", proxy.port), 5) as again:
            again.sendall(b"y")
            assert receive(again, 1) == b"y"
        assert proxy.statistics().accepted == 2

    def test_cut_with_reset(self, proxy, connection):
        """A reset looks like a crashed peer."""
        connection.sendall(b"x")
        assert receive(connection, 1) == b"x"
        proxy.cut(reset=True)
        with pytest.raises(ConnectionResetError):
            connection.recv(1)

    @pytest.mark.parametrize("size", [0, 1, 1000, 100_000])
    def test_cut_after_bytes_to_the_server(self, proxy, connection, echo, size):
        """Exactly that many bytes reach the server, then the connection is closed; only once."""
        proxy.cut_after(to_server=size)
        with pytest.raises(OSError, match=r"."):
            flood(connection)
        assert proxy.wait_cuts(1)
        with socket.create_connection(("127.0.0.1", proxy.port), 5) as again:
            again.sendall(b"y" * 10)
            assert receive(again, 10) == b"y" * 10
        # Each of the two connections has a thread, and either may be faster.
        echo.close()
        assert (echo.received.count(b"x"), echo.received.count(b"y")) == (size, 10)
        assert proxy.statistics().cuts == 1

    @pytest.mark.parametrize("size", [0, 5, 5000])
    def test_cut_after_bytes_to_the_client(self, proxy, connection, size):
        """Exactly that many bytes reach the client, then its stream ends."""
        proxy.cut_after(to_client=size)
        connection.sendall(b"x" * 10_000)
        assert receive(connection, 10_000) == b"x" * size
        assert proxy.wait_cuts(1)

    def test_take_a_cut_back(self, proxy, connection):
        """A cut that is armed can be disarmed."""
        proxy.cut_after(to_client=1)
        proxy.cut_after()
        connection.sendall(b"xyz")
        assert receive(connection, 3) == b"xyz"

    @pytest.mark.parametrize("direction", ["to_server", "to_client", None])
    def test_a_paused_direction_holds_bytes_until_it_is_resumed(self, proxy, connection, direction):
        """A paused direction holds bytes until it is resumed; the connection stays open."""
        proxy.pause(direction)
        connection.sendall(b"x")
        connection.settimeout(0.05)
        with pytest.raises(TimeoutError):
            connection.recv(1)
        proxy.resume(direction)
        connection.settimeout(5)
        assert connection.recv(1) == b"x"

    def test_pause_presses_back(self, proxy, connection):
        """Full buffers stop a sender into a paused direction."""
        proxy.pause("to_server")
        connection.settimeout(0.1)
        with pytest.raises(TimeoutError):
            flood(connection)

    def test_a_frozen_connection_stays_open_and_silent(self, proxy, connection):
        """A frozen connection stays open and silent for its whole life; the next one works."""
        connection.sendall(b"x")
        assert receive(connection, 1) == b"x"
        assert proxy.freeze() == 1
        connection.sendall(b"y")
        with socket.create_connection(("127.0.0.1", proxy.port), 5) as again:
            again.sendall(b"z")
            assert receive(again, 1) == b"z"
        connection.settimeout(0.05)
        with pytest.raises(TimeoutError):
            connection.recv(1)
        assert proxy.cut() >= 1
        connection.settimeout(5)
        assert connection.recv(1) == b""

    def test_bytes_are_delayed_in_order_until_the_delay_is_removed(self, proxy, connection):
        """Bytes are delayed by at least the given time, in order, until the delay is removed."""
        proxy.delay(0.1, "to_client")
        begin = time.monotonic()
        connection.sendall(b"a")
        connection.sendall(b"b")
        assert receive(connection, 2) == b"ab"
        assert time.monotonic() - begin >= 0.1
        proxy.delay(0)
        connection.sendall(b"c")
        assert receive(connection, 1) == b"c"

    def test_new_connections_can_be_refused_while_open_ones_continue(self, proxy, connection):
        """New connections can be refused while open ones continue; the proxy keeps its port."""
        connection.sendall(b"x")
        assert receive(connection, 1) == b"x"
        proxy.refuse()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", proxy.port), 5)
        connection.sendall(b"y")
        assert receive(connection, 1) == b"y"
        proxy.accept()
        socket.create_connection(("127.0.0.1", proxy.port), 5).close()
        assert proxy.wait_accepted(2)

    def test_end_of_stream_passes(self, proxy, connection, echo):
        """When the client closes, the proxy closes after delivering all sent bytes."""
        connection.sendall(b"x" * 1000)
        assert receive(connection, 1000) == b"x" * 1000
        connection.close()
        deadline = time.monotonic() + 5
        while proxy.statistics().open and time.monotonic() < deadline:
            time.sleep(0.001)
        assert proxy.statistics().open == 0
        assert proxy.statistics().cuts == 0

    def test_a_proxy_without_a_server_accepts_and_closes(self):
        """If there is no server to connect to, a connection is accepted and closed."""
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
        with (
            CutProxy(f"nats://127.0.0.1:{port},nats://127.0.0.1:1") as proxy,
            socket.create_connection(("127.0.0.1", proxy.port), 5) as connection,
        ):
            assert connection.recv(1) == b""

    def test_not_running(self, echo):
        """A proxy that does not run raises an error; closing twice is harmless."""
        proxy = CutProxy(echo.port)
        with pytest.raises(RuntimeError, match="not running"):
            proxy.cut()
        proxy.start()
        proxy.start()
        proxy.close()
        proxy.close()


class TestPlugin:
    def test_fixtures_are_offered(self, pytester, monkeypatch):
        """A user's suite has the three fixtures without an import."""
        # Loaded by name, because the entry point only exists if jetsync is installed.
        monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
        monkeypatch.setenv("PYTHONPATH", str(Path(jetsync.testing.__file__).parents[2]))
        pytester.makepyfile("def test_nothing(): pass")
        result = pytester.runpytest_subprocess("-p", "jetsync.testing.plugin", "--fixtures")
        result.stdout.fnmatch_lines_random(["nats_server*", "js*", "stream*"])

    @pytest.mark.parametrize("options", [(), ("-v",)])
    def test_the_header_names_the_variant_on_demand(self, pytester, monkeypatch, options):
        """With -v, the header says which variant of jetsync runs."""
        monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
        monkeypatch.setenv("PYTHONPATH", str(Path(jetsync.testing.__file__).parents[2]))
        monkeypatch.setenv("JETSYNC_SPEEDUPS", "0")
        pytester.makepyfile("def test_nothing(): pass")
        result = pytester.runpytest_subprocess("-p", "jetsync.testing.plugin", *options)
        line = f"jetsync: {jetsync.__version__}, Python (JETSYNC_SPEEDUPS=0)"
        assert (line in result.outlines) is bool(options)
