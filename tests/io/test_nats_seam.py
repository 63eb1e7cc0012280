from __future__ import annotations

import abc
import ast
import asyncio
import importlib.metadata
import inspect
import json
import os
import re
import socket
import ssl
import subprocess
import sys
import threading
from urllib.parse import urlparse

import anyio
import nats.aio.client
import nats.aio.transport
import nats.errors
import pytest
from packaging.requirements import Requirement

from helpers.scripted_server import INFO, LONG, ScriptedServer, until
from jetsync._io import nats_seam as _transport
from jetsync._io.mailbox import Mailbox
from jetsync._io.nats_seam import NatsConnection, nats_arguments
from jetsync._io.transport import LaneTransport
from jetsync._io.websocket import WebSocketLaneTransport
from jetsync.errors import (
    AuthenticationError,
    ConnectError,
)
from jetsync.options import ConnectOptions


class Listener:
    """Records the calls of the connection."""

    def __init__(self):
        self.notes = []
        self.connection = None
        self.had_tls = False

    def on_connected(self):
        self.notes.append("connected")
        self.connection.lane.open()

    def on_disconnected(self):
        self.notes.append("disconnected")

    def on_closed(self, cause):
        self.notes.append("closed")

    def on_lame_duck(self):
        self.notes.append("lame duck")

    def on_discovered(self, urls):
        self.notes.append(urls)

    def on_info(self, server):
        self.server = server
        self.notes.append(f"info {server.server_id}")

    def on_server_error(self, text):
        self.notes.append(text)

    def on_error(self, error, target=None):
        self.notes.append(error)


def run(main):
    """Run a coroutine function with a time limit, in the loop that jetsync uses."""

    async def limited():
        return await asyncio.wait_for(main(), LONG)

    return anyio.run(limited, backend_options={"loop_factory": asyncio.SelectorEventLoop})


async def eventually(condition):
    """Return once the loop makes a condition true."""
    await asyncio.to_thread(until, condition)


def connection_of(listener, *servers, **changes):
    """Return a connection to these servers, not started, that calls this listener."""
    options = ConnectOptions(servers=[one.url for one in servers], reconnect_wait=0, **changes)
    listener.connection = NatsConnection(listener, options)
    return listener.connection


class TestSeam:
    """The private parts of nats-py that jetsync needs; a version that changes them fails here."""

    def test_transport_methods(self):
        """nats-py's transport has the methods that ours has, and no others."""
        assert nats.aio.transport.Transport.__abstractmethods__ == {
            "connect",
            "connect_tls",
            "write",
            "writelines",
            "read",
            "readline",
            "drain",
            "wait_closed",
            "close",
            "at_eof",
            "__bool__",
        }

    @pytest.mark.parametrize("ours", [LaneTransport, WebSocketLaneTransport])
    @pytest.mark.parametrize("name", sorted(nats.aio.transport.Transport.__abstractmethods__))
    def test_our_transport_accepts_the_arguments_of_nats_py(self, ours, name):
        """Each method accepts nats-py's arguments, and is a coroutine if nats-py awaits it."""
        theirs = getattr(nats.aio.transport.Transport, name)
        mine = getattr(ours, name)
        assert list(inspect.signature(mine).parameters) == list(
            inspect.signature(theirs).parameters
        )
        assert inspect.iscoroutinefunction(mine) is inspect.iscoroutinefunction(theirs)

    def test_a_new_client_of_nats_py_has_the_options_we_read(self):
        """A new client has no transport, and has the options that jetsync reads."""
        client = nats.aio.client.Client()
        assert client._transport is None
        assert isinstance(client.options, dict)

    def test_attempt_reconnect(self):
        """The task of a reconnect is a coroutine without arguments."""
        method = nats.aio.client.Client._attempt_reconnect
        assert list(inspect.signature(method).parameters) == ["self"]
        assert inspect.iscoroutinefunction(method)

    def test_list_is_complete(self):
        """The list at the top of the file names every private attribute of nats-py in use."""
        tree = ast.parse(inspect.getsource(_transport))
        used = {
            node.attr
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute)
            and ast.unparse(node.value) in {"self._client", "super()"}
            and re.match("_[a-z]", node.attr)
        }
        # super() may also be nats-py's transport, which has no private attributes.
        assert used == set(re.findall(r"``Client\.(_\w+)``", _transport.__doc__))

    def test_nats_py_has_the_properties_we_read(self):
        """The public properties that jetsync reads exist."""
        client = nats.aio.client.Client()
        assert isinstance(type(client).last_error, property)


class TestNatsPyVersion:
    """The check of nats-py when jetsync is imported."""

    CLIENT = nats.aio.client.Client
    TRANSPORT = nats.aio.transport.Transport

    @pytest.mark.parametrize("version", ["2.10.0", "2.16.0", "2.17.0", "2.100.0rc1", "0.0.0", "?"])
    def test_a_version_that_lacks_nothing_is_accepted(self, version):
        """A nats-py with all names is accepted, also if it is newer or its version is unknown."""
        _transport.check_nats_py(version, self.CLIENT, self.TRANSPORT)

    @pytest.mark.parametrize("version", ["2.9.1", "1.9.9"])
    def test_an_older_version_is_refused(self, version):
        """A nats-py that is too old is refused. The error names both versions and a command."""
        with pytest.raises(ImportError) as caught:
            _transport.check_nats_py(version, self.CLIENT, self.TRANSPORT)
        assert str(caught.value) == (
            f"jetsync was tested with nats-py 2.10 to 2.16. nats-py {version} is too old."
            " Install another version: python -m pip install 'nats-py>=2.10,<2.17'"
        )

    def test_a_renamed_method(self):
        """A nats-py without a name that the seam uses is refused, and the error names it."""
        with pytest.raises(
            ImportError, match=r"nats-py 2\.17\.0 has no Client\._attempt_reconnect"
        ):
            _transport.check_nats_py("2.17.0", type("Client", (), {}), self.TRANSPORT)

    def test_a_renamed_argument_and_attribute(self):
        """Arguments of connect and the attribute of the transport are checked, too."""

        class Renamed(self.CLIENT):
            def __init__(self):
                self._carrier = None

            async def connect(self, *, hosts, error_cb):
                pass

        with pytest.raises(ImportError) as caught:
            _transport.check_nats_py("2.17.0", Renamed, self.TRANSPORT)
        assert "has no Client._transport" in str(caught.value)
        assert "has no argument servers of Client.connect" in str(caught.value)
        assert "error_cb" not in str(caught.value)

    def test_a_new_method_of_the_transport(self):
        """A nats-py that calls another method of its transport is refused."""

        class Transport(self.TRANSPORT):
            @abc.abstractmethod
            def pause(self):
                pass

        with pytest.raises(ImportError, match=r"needs the method Transport\.pause\."):
            _transport.check_nats_py("2.17.0", self.CLIENT, Transport)

    def test_the_import_checks_the_installed_version(self, tmp_path):
        """`import jetsync` fails with this error if the installed nats-py is too old."""
        program = """if True:
            import nats.aio.client
            nats.aio.client.__version__ = "2.9.1"
            import jetsync
            jetsync.Client
        """
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=False
        )
        assert done.returncode == 1
        assert "ImportError: jetsync was tested with nats-py 2.10 to 2.16." in done.stderr

    def test_the_bounds_are_those_of_the_metadata(self):
        """The metadata requires the oldest version, and no version that the check would accept."""
        requires = map(Requirement, importlib.metadata.requires("jetsync"))
        (nats_py,) = (str(each.specifier) for each in requires if each.name == "nats-py")
        major, minor = _transport.OLDEST
        assert set(nats_py.split(",")) == {f">={major}.{minor}", f"<{major + 1}"}

    def test_the_checked_arguments_are_those_in_use(self):
        """The check knows each argument that the seam passes to nats-py's connect."""
        callbacks = {name for name in _transport.CONNECT_ARGUMENTS if name.endswith("_cb")}
        assert set(nats_arguments(ConnectOptions())) == _transport.CONNECT_ARGUMENTS - callbacks
        assert all(f"{name}=" in inspect.getsource(NatsConnection.start) for name in callbacks)


class TestConnection:
    def test_nats_py_connects_through_our_transport(self, server):
        """nats-py makes a connection through jetsync's transport; the listener is called once."""

        async def main():
            listener = Listener()
            connection = connection_of(listener, server)
            await connection.start()
            assert connection._client._transport is connection.transport
            assert listener.server.url == server.url
            assert listener.notes == ["info S", "connected"]
            await connection.flush(LONG)
            await connection.stop()
            await eventually(lambda: "closed" in listener.notes)
            assert connection.lane.reader._gate is None

        run(main)
        assert json.loads(server.lines(b"CONNECT")[0][8:])["headers"] is True
        assert len(server.lines(b"PING")) == 2
        assert len(server.peers) == 1

    @pytest.mark.parametrize("manner", ["slam", "silent", "mute"])
    def test_first_connect_is_one_attempt(self, server, manner):
        """A server that does not greet is tried once, not for minutes."""
        server.manners = [manner] * 3

        async def main():
            listener = Listener()
            connection = connection_of(listener, server, connect_timeout=0.05)
            with pytest.raises(ConnectError):
                await connection.start()
            assert "connected" not in listener.notes
            assert connection.last_failure[1] is not None

        run(main)
        until(lambda: server.peers and server.peers[0].ended.is_set(), "the end")
        assert len(server.peers) == 1

    def test_refused_login(self, server):
        """A refused login raises its own error, also where other failures would be retried."""
        server.manners = ["refuse"] * 3

        async def main():
            listener = Listener()
            connection = connection_of(listener, server, retry_on_failed_connect=True)
            with pytest.raises(AuthenticationError) as caught:
                await connection.start()
            # Without a login, that is what most often is wrong.
            assert str(caught.value) == (
                f"Authorization Violation; the client sent no user, token or key ({server.url})"
            )
            # It is not about any subscription.
            assert listener.notes == []

        run(main)
        assert len(server.peers) == 1

    def test_attempts_continue_until_a_server_greets(self, server):
        """With the option, attempts continue until a server greets."""
        server.manners = ["slam", "slam"]

        async def main():
            listener = Listener()
            connection = connection_of(listener, server, retry_on_failed_connect=True)
            await connection.start()
            assert listener.notes[-1] == "connected"
            await connection.stop()

        run(main)
        assert len(server.peers) == 3

    def test_the_same_transport_reconnects_after_a_loss(self, server):
        """After a loss the same transport reconnects, and the listener gets both events."""

        async def main():
            listener = Listener()
            connection = connection_of(listener, server)
            box = Mailbox(b"a")
            connection.lane.subscriptions.listen(b"1000000", box)
            await connection.start()
            transport = connection.transport
            await asyncio.to_thread(server.peers[0].close)
            await eventually(lambda: listener.notes.count("connected") == 2)
            assert connection._client._transport is transport
            assert [note for note in listener.notes if "connected" in str(note)] == [
                "connected",
                "disconnected",
                "connected",
            ]
            assert box.take_lost() == 1
            await connection.flush(LONG)
            await connection.stop()

        run(main)
        assert server.lines(b"SUB", 0) == server.lines(b"SUB", 1) == [b"SUB a  1000000"]

    @pytest.mark.parametrize("manner", ["silent", "mute", "slam"])
    def test_half_made_connections_are_closed(self, server, manner):
        """A failed handshake closes its connection before the next attempt, without leftovers."""

        async def main():
            listener = Listener()
            connection = connection_of(
                listener, server, connect_timeout=0.5, retry_on_failed_connect=True
            )
            await connection.start()
            made = len(server.peers)
            server.manners = [manner]
            await asyncio.to_thread(server.peers[-1].close)
            await eventually(lambda: listener.notes.count("connected") == 2)
            # On a busy machine, more attempts than this one may have failed.
            assert len(server.peers) >= made + 2
            for failed in server.peers[made:-1]:
                assert await asyncio.to_thread(failed.ended.wait, LONG)
            assert not server.peers[-1].ended.is_set()
            assert connection.lane.epoch == 2
            await connection.stop()

        run(main)

    def test_not_a_nats_server(self, server):
        """The error of a server with another protocol shows its first line."""
        server.manners = ["silent"]

        async def main():
            connecting = asyncio.ensure_future(connection_of(Listener(), server).start())
            await eventually(lambda: server.peers)
            server.peers[0].send(b"SSH-2.0-OpenSSH\r\n")
            with pytest.raises(ConnectError, match="not a NATS server: the first line is b'SSH"):
                await connecting

        run(main)

    def test_listed_servers(self, server):
        """
        Servers that a server lists are used after it has accepted the login, and cause no event.
        """
        listed = ScriptedServer()
        server.info["connect_urls"] = [f"127.0.0.1:{listed.port}"]
        server.manners = ["greet", "refuse", "refuse"]

        async def main():
            listener = Listener()
            connection = connection_of(listener, server, retry_refused_logins=True)
            server.info, info = INFO, server.info
            await connection.start()
            server.info = info
            await asyncio.to_thread(server.peers[0].close)
            await eventually(lambda: listener.notes.count("connected") == 2)
            assert len(server.peers) == 4
            assert listed.peers == []
            await eventually(lambda: len(connection.pool.servers) == 2)
            await asyncio.to_thread(server.close)
            await eventually(lambda: listener.notes.count("connected") == 3)
            assert listener.server.url == listed.url
            assert not [note for note in listener.notes if isinstance(note, tuple)]
            await connection.stop()

        run(main)
        listed.close()

    def test_login_of_the_environment(self, server, monkeypatch):
        """Every connection uses the login of the first $NATS_URL, even if the variable changes."""
        monkeypatch.setenv("NATS_URL", server.url.replace("//", "//app:secret@"))

        async def main():
            listener = Listener()
            listener.connection = connection = NatsConnection(
                listener, ConnectOptions(reconnect_wait=0)
            )
            await connection.start()
            monkeypatch.delenv("NATS_URL")
            await asyncio.to_thread(server.peers[0].close)
            await eventually(lambda: listener.notes.count("connected") == 2)
            await connection.stop()

        run(main)
        for peer in (0, 1):
            (line,) = server.lines(b"CONNECT", peer)
            assert b'"user": "app", "pass": "secret"' in line

    def test_a_seed_in_a_relative_file(self, server, tmp_path, monkeypatch):
        """A relative path of a seed keeps its meaning if the program changes its folder."""
        seed = "SU" + "A" * 56
        (tmp_path / "user.nk").write_text(seed, "utf-8")
        monkeypatch.chdir(tmp_path)

        async def main():
            return [
                connection_of(Listener(), server, nkey_seed=given).transport._options
                for given in ("user.nk", seed)
            ]

        options = run(main)
        monkeypatch.chdir("/")
        assert [each.nkey_text() for each in options] == [seed, seed]

    @pytest.mark.parametrize("listed", [False, True])
    def test_a_login_of_new_servers(self, server, listed):
        """
        A server that left the pool during its handshake does not get the login of the new ones, and
        neither does a server that it has announced.
        """
        other = ScriptedServer()
        server.info["connect_urls"] = [f"127.0.0.1:{other.port}"] if listed else []
        server.manners = ["greet", *(["slam"] * 9 if listed else ["silent"])]
        other.manners = ["silent"]
        tried, number = (other, 0) if listed else (server, 1)

        async def main():
            connection = connection_of(Listener(), server)
            await connection.start()
            await asyncio.to_thread(server.peers[0].close)
            await eventually(lambda: len(tried.peers) > number)
            connection.transport.set_servers("nats://ann:s3cret@127.0.0.1:1")
            tried.peers[number].send(b"INFO " + json.dumps(INFO).encode() + b"\r\n")
            await eventually(lambda: tried.lines(b"CONNECT", number))
            await connection.stop()

        run(main)
        (line,) = tried.lines(b"CONNECT", number)
        other.close()
        assert b"s3cret" not in line

    def test_a_login_that_hangs(self, server):
        """
        While a callable of the login does not return, attempts fail and say why, and the callable
        is not called again.
        """
        calls, go = [], threading.Event()

        def password():
            calls.append(1)
            if len(calls) == 2:
                go.wait(LONG)
            return "secret"

        async def main():
            listener = Listener()
            connection = connection_of(listener, server, user="app", password=password)
            await connection.start()
            connection.transport._budget, budget = 0.1, connection.transport._budget
            await asyncio.to_thread(server.peers[0].close)
            reason = "the callables and files of the options gave no login within 0.1 s"
            await eventually(lambda: [str(note) for note in listener.notes].count(reason) > 2)
            assert len(calls) == 2
            connection.transport._budget = budget
            go.set()
            await eventually(lambda: listener.notes.count("connected") == 2)
            assert len(calls) == 3
            await connection.stop()

        run(main)

    def test_addresses_that_do_not_work(self, server, monkeypatch):
        """
        A host's address that the system does not know or that is silent costs its share of the
        time, and the next one is tried. The lookup does not keep the interpreter alive.
        """
        tried, daemons = [], []

        def addresses(host, port, *, flags, **_):
            if flags & socket.AI_NUMERICHOST:
                raise socket.gaierror
            daemons.append(threading.current_thread().daemon)
            good = socket.SOCK_STREAM, 0, "", ("127.0.0.1", port)
            return [(9999, *good), (socket.AF_INET, *good), (socket.AF_INET, *good)]

        monkeypatch.setattr(socket, "getaddrinfo", addresses)

        async def main():
            connection = connection_of(Listener(), server, connect_timeout=10.0)
            transport = connection.transport
            wait = transport._wait_socket

            async def wait_second(*, writing):
                if writing:
                    tried.append(transport._sock)
                if len(tried) == 1:
                    await asyncio.get_running_loop().create_future()
                await wait(writing=writing)

            transport._wait_socket = wait_second
            await connection.start()
            await connection.stop()

        run(main)
        assert len(tried) == 2
        assert tried[0].fileno() == -1
        assert daemons == [True]

    @pytest.mark.parametrize(
        ("text", "ends"),
        [
            ('Permissions Violation for Publish to "a"', False),
            ("maximum subscriptions exceeded", False),
            ("Stale Connection", True),
        ],
    )
    def test_reason_of_the_end(self, server, text, ends):
        """The last error is the reason of the end only if the server closes after such an error."""
        causes = []

        async def main():
            listener = Listener()
            listener.on_closed = causes.append
            connection = connection_of(listener, server, max_reconnects=0)
            await connection.start()
            server.peers[0].send(f"-ERR '{text}'\r\n".encode())
            await eventually(lambda: f"-ERR '{text}'" in listener.notes)
            await asyncio.to_thread(server.peers[0].close)
            await eventually(lambda: causes)
            await connection.stop()

        run(main)
        assert (text in str(causes[0])) is ends
        assert ("the connection was lost, and max_reconnects is 0" in str(causes[0])) is not ends

    def test_a_client_that_may_not_reconnect_tries_each_server(self, server):
        """With max_reconnects=0, the first connect tries each server once, and names them all."""

        async def main():
            other = ScriptedServer()
            try:
                server.manners, other.manners = ["slam"], ["slam"]
                connection = connection_of(Listener(), server, other, max_reconnects=0)
                with pytest.raises(ConnectError) as caught:
                    await connection.start()
            finally:
                await asyncio.to_thread(other.close)
            assert server.url in str(caught.value)
            assert other.url in str(caught.value)

        run(main)

    def test_a_flood_of_pings(self, server):
        """PINGs that arrive together get one answer, so that a flood does not fill the memory."""

        async def main():
            connection = connection_of(Listener(), server)
            await connection.start()
            server.peers[0].send(b"PING\r\n" * 1000)
            await eventually(lambda: server.lines(b"PONG"))
            await connection.flush(LONG)
            await connection.stop()

        run(main)
        assert len(server.lines(b"PONG")) < 1000

    def test_a_ping_of_nats_py(self, server):
        """
        nats-py sends a PING each week. It gets an answer without the server, whose answers belong
        to the PINGs of jetsync.
        """

        async def main():
            connection = connection_of(Listener(), server)
            await connection.start()
            sent = len(server.lines(b"PING"))
            answer = asyncio.get_running_loop().create_future()
            await connection._client._send_ping(answer)
            await asyncio.wait_for(answer, LONG)
            await connection.flush(LONG)
            assert len(server.lines(b"PING")) == sent + 1
            await connection.stop()

        run(main)

    def test_server_errors_and_news(self, server):
        """The listener gets the server's errors and INFO; an error does not end the client."""

        async def main():
            listener = Listener()
            connection = connection_of(listener, server)
            await connection.start()
            news = {**INFO, "server_id": "T", "ldm": True, "connect_urls": ["10.0.0.1:4222"]}
            server.peers[0].send(b"INFO " + json.dumps(news).encode() + b"\r\n")
            await eventually(lambda: "lame duck" in listener.notes)
            assert listener.notes[2] == "info T"
            found = [note for note in listener.notes if isinstance(note, tuple)]
            assert found == [("nats://10.0.0.1:4222",)]
            denied = "-ERR 'Permissions Violation for Publish to \"a\"'"
            server.peers[0].send(denied.encode() + b"\r\n")
            server.peers[0].send(b"-ERR 'maximum subscriptions exceeded'\r\n")
            await eventually(lambda: "-ERR 'maximum subscriptions exceeded'" in listener.notes)
            assert denied in listener.notes
            await connection.flush(LONG)
            assert "closed" not in listener.notes
            await connection.stop()

        run(main)

    def test_flush_of_a_lost_connection(self, server):
        """A flush ends with its connection if that is lost before the PONG."""

        async def main():
            listener = Listener()
            connection = connection_of(listener, server)
            await connection.start()
            pings = len(server.lines(b"PING"))
            server.answers_ping = False
            flushing = asyncio.ensure_future(connection.flush(10 * LONG))
            await eventually(lambda: len(server.lines(b"PING")) > pings)
            server.answers_ping = True
            await asyncio.to_thread(server.peers[0].close)
            await flushing
            await connection.stop()

        run(main)

    def test_no_connection_after_the_end(self, server):
        """
        Attempts of nats-py during a close have no effect, at whichever step they are.
        """

        async def main():
            connection = connection_of(Listener(), server)
            await connection.start()
            await connection.stop()
            transport = connection.transport
            with pytest.raises(asyncio.CancelledError):
                await transport.connect(urlparse(server.url), 1024, LONG)
            with pytest.raises(asyncio.CancelledError):
                await transport.readline()

        run(main)
        assert len(server.peers) == 1

    def test_closing_while_a_step_waits(self, server):
        """
        The loop does not watch a socket that was closed during its handshake, whose step ends; the
        next socket of that number stays watched.
        """
        server.manners = ["silent"]

        async def main():
            loop = asyncio.get_running_loop()
            transport = connection_of(Listener(), server).transport
            await transport.connect(urlparse(server.url), 1024, LONG)
            step = asyncio.ensure_future(transport.readline())
            for _ in range(10):
                await asyncio.sleep(0)
            # An accept() that begins later would reserve the number of the closed socket.
            await eventually(lambda: server.peers)
            server._listener.shutdown(socket.SHUT_RDWR)
            await asyncio.to_thread(server._threads[0].join)
            fd = transport._sock.fileno()
            ours, theirs = socket.socketpair()
            with ours, theirs:
                transport.close()
                assert not loop.remove_reader(fd)
                os.dup2(ours.fileno(), fd)
                loop.add_reader(fd, lambda: None)
                with pytest.raises(ConnectError):
                    await step
                assert loop.remove_reader(fd)
                os.close(fd)

        run(main)

    def test_the_end_while_dialling(self, server):
        """If the client is closed at the moment when a socket connects, the socket is closed."""
        dialled = []

        async def main():
            transport = connection_of(Listener(), server).transport
            dial = transport._dial_one

            async def dial_late(*address):
                await dial(*address)
                dialled.append(transport._sock)
                transport.finish()

            transport._dial_one = dial_late
            with pytest.raises(asyncio.CancelledError):
                await transport.connect(urlparse(server.url), 1024, LONG)

        run(main)
        assert dialled[0].fileno() == -1


class TestNatsArguments:
    def test_nats_py_gets_the_defaults_of_jetsync(self, monkeypatch):
        """Without options, nats-py gets jetsync's defaults instead of its own."""
        monkeypatch.delenv("NATS_URL", raising=False)
        found = nats_arguments(ConnectOptions())
        # The transport makes a context of its own for each attempt.
        assert found.pop("tls").verify_mode is ssl.CERT_REQUIRED
        assert found == {
            "servers": ["nats://pool.invalid:4222"],
            "name": None,
            "tls_hostname": None,
            "tls_handshake_first": False,
            "inbox_prefix": "_INBOX",
            "connect_timeout": 6.0,
            "reconnect_time_wait": 0.0,
            "max_reconnect_attempts": -1,
            "ping_interval": 604800.0,
            "no_echo": False,
        }

    @pytest.mark.parametrize(
        ("options", "given"),
        [
            ({"name": "n"}, {"name": "n"}),
            ({"inbox_prefix": "_I.me"}, {"inbox_prefix": "_I.me"}),
            # The pool waits and counts.
            ({"max_reconnects": 7}, {"max_reconnect_attempts": -1}),
            ({"reconnect_wait": 0.25}, {"reconnect_time_wait": 0.0}),
            ({"echo": False}, {"no_echo": True}),
            ({"connect_timeout": 2}, {"connect_timeout": 3.0}),
            ({"servers": "h,nats://i:1"}, {"servers": ["nats://pool.invalid:4222"]}),
        ],
    )
    def test_each_option_sets_its_argument_of_nats_py(self, options, given):
        """Each option sets its argument."""
        found = nats_arguments(ConnectOptions(**{"servers": "h", **options}))
        assert {name: found[name] for name in given} == given

    @pytest.mark.parametrize(
        "options",
        [
            {"servers": "nats://u:s3cret@h"},
            {"servers": "nats://s3cret@h"},
            {"user": "u", "password": "s3cret"},
            {"token": "s3cret"},
            {"credentials": "/s3cret.creds"},
            {"nkey_seed": "SU" + "A" * 56},
        ],
    )
    def test_no_login(self, options):
        """The options for nats-py contain no login."""
        found = nats_arguments(ConnectOptions(**{"servers": "h", **options}))
        without = nats_arguments(ConnectOptions(servers="h"))
        assert {**found, "tls": None} == {**without, "tls": None}

    def test_nats_py_gets_the_options_of_the_handshake(self):
        """nats-py gets the name in the certificate, and whether TLS comes first."""
        found = nats_arguments(ConnectOptions(servers="tls://h", tls_hostname="x", tls_first=True))
        assert (found["tls_hostname"], found["tls_handshake_first"]) == ("x", True)
