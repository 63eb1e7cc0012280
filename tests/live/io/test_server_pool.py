"""
The servers that a client may connect to: which one is next, how long it waits, and who decides.
"""

from __future__ import annotations

import bisect
import contextlib
import functools
import pickle
import select
import socket
import subprocess
import sys
import threading
import time

import pytest

import jetsync
from helpers.fake_server import FakeServer, info
from helpers.waiting import at_some_pace, eventually
from jetsync.devserver import DevServer
from jetsync.testing import CutProxy, HookRecorder

pytestmark = pytest.mark.usefixtures("two")

QUICK = {"reconnect_wait": 0.05, "request_timeout": 20}


@pytest.fixture
def two(nats_server):
    """
    Two ways to one server, which can be cut.
    """
    with CutProxy(nats_server.url) as one, CutProxy(nats_server.url) as other:
        yield one, other


@pytest.fixture
def recorder():
    """
    Records the events.
    """
    return HookRecorder("jetsync_status")


def errors_of(recorder):
    """
    The texts of the errors that events have reported.
    """
    events = [call["event"] for call in recorder.calls]
    return [str(event.error) for event in events if isinstance(event, jetsync.AsyncErrorEvent)]


def urls_of(client):
    """
    The addresses of a client's pool.
    """
    return {server.url for server in client.server_pool}


class TestSetServerPool:
    def test_the_next_connection_uses_the_new_servers(self, two):
        """
        After the pool was replaced, the connection stays, and the next one goes to a new server.
        """
        one, other = two
        with jetsync.connect(one.url, **QUICK) as client:
            assert client.server_pool == (jetsync.PoolServer(url=one.url),)
            client.set_server_pool([other.url])
            client.flush()
            assert client.server.url == one.url
            assert urls_of(client) == {other.url}
            client.reconnect()
            assert client.server.url == other.url
            assert client.options.server_list() == [other.url]

    def test_a_lost_client_finds_new_servers(self, two):
        """
        A client that cannot reach any of its servers connects to one that it is given.
        """
        one, other = two
        with jetsync.connect(
            one.url, reconnect_wait=600, reconnect_jitter=0, request_timeout=20
        ) as client:
            one.refuse()
            one.cut()
            # The next attempt would be made in ten minutes.
            eventually(lambda: not client.is_connected)
            client.set_server_pool(other.url)
            eventually(lambda: client.is_connected)
            assert client.server.url == other.url
            assert client.server_pool[0].attempts == 0

    def test_logins(self):
        """
        A login in one of the new URLs is for that server, and is not in the pool.
        """
        config = {"authorization": {"timeout": 30, "user": "ann", "password": "s3cret"}}
        with (
            DevServer(jetstream=False, config=config) as server,
            jetsync.connect(server.url, user="ann", password="s3cret", **QUICK) as client,
        ):
            client.set_server_pool(server.url.replace("//", "//bob:w0rd@"))
            assert "w0rd" not in repr(client.server_pool)
            client.reconnect()
        with (
            DevServer(jetstream=False, config=config) as server,
            DevServer(jetstream=False, config=config) as other,
            jetsync.connect(server.url.replace("//", "//ann:s3cret@"), **QUICK) as client,
        ):
            client.set_server_pool([other.url.replace("//", "//ann:s3cret@")])
            client.reconnect()
            assert client.server.url == other.url

    @pytest.mark.parametrize(
        "servers",
        ["", [], ["nats://:1"], "http://h", "ws://h", ["wss://h"], "nats://a,ws://b", 7, [1]],
    )
    def test_servers_that_cannot_be_used(self, two, servers):
        """
        Servers that cannot be used raise an error, and nothing changes.
        """
        with jetsync.connect(two[0].url, **QUICK) as client:
            with pytest.raises((jetsync.InvalidArgumentError, jetsync.InvalidTypeError)):
                client.set_server_pool(servers)
            assert urls_of(client) == {two[0].url}
            client.reconnect()

    def test_a_closed_client(self, two):
        """
        A closed client raises ConnectionClosedError.
        """
        client = jetsync.connect(two[0].url)
        client.close()
        with pytest.raises(jetsync.ConnectionClosedError):
            client.set_server_pool(two[1].url)

    @pytest.mark.parametrize("ignore", [True, False])
    def test_announced_servers(self, nats_server, ignore):
        """
        The pool has the announced servers, marked as such, unless the option ignores them.
        """
        with FakeServer(nats_server.port) as fake:
            fake.plays.append((info(connect_urls=["127.0.0.1:1"]), "PONG"))
            with jetsync.connect(fake.url, ignore_discovered_servers=ignore, **QUICK) as client:
                found = [one for one in client.server_pool if one.is_discovered]
                expected = [jetsync.PoolServer(url="nats://127.0.0.1:1", is_discovered=True)]
                assert found == ([] if ignore else expected)
                fake.cut()


def second(servers, info, log):
    """
    Choose the last server of the pool, by name.
    """
    log.append((servers, info))
    return max(servers, key=lambda server: server.url)


class TestChooseServer:
    def test_the_choice_is_used(self, two):
        """
        The function gets the servers and the last INFO, and the client uses its choice.
        """
        log = []
        urls = [proxy.url for proxy in two]
        with jetsync.connect(
            urls, choose_server=lambda *found: second(*found, log), **QUICK
        ) as client:
            assert log == []
            for turn in range(3):
                client.reconnect()
                assert client.server.url == max(urls)
                servers, server = log[turn]
                assert {one.url for one in servers} == set(urls)
                assert server.server_id == client.server.server_id

    def test_it_is_called_for_each_attempt(self, two):
        """
        The function is called before each attempt, and sees how many have failed.
        """
        one, _ = two
        attempts = []

        def choose(servers, _):
            attempts.append(servers[0].attempts)
            return servers[0], 0.01

        with jetsync.connect(one.url, choose_server=choose, **QUICK) as client:
            one.refuse()
            one.cut()
            eventually(lambda: len(attempts) > 4)
            one.accept()
            eventually(lambda: client.is_connected)
            assert attempts == list(range(len(attempts)))

    def test_a_wait(self, two):
        """
        The function may return the seconds to wait in place of the usual wait.
        """
        made = []

        def choose(servers, _):
            made.append(1)
            return servers[0], 600.0 if len(made) == 1 else 0.0

        with jetsync.connect(two[0].url, choose_server=choose, **QUICK) as client:
            with pytest.raises(jetsync.DisconnectedError):
                client.reconnect(timeout=0.3)
            assert made == [1]

    def test_a_pool_that_is_replaced_meanwhile(self, two):
        """
        If the pool is replaced while the function runs, the client tries the new servers at once.
        """
        one, other = two
        called, go, replaced = (threading.Event() for _ in range(3))

        def choose(servers, _):
            called.set()
            assert go.wait(30)
            return servers[0]

        with jetsync.connect(
            one.url, choose_server=choose, reconnect_wait=600, reconnect_jitter=0
        ) as client:
            one.refuse()
            one.cut()
            assert called.wait(30)
            client.set_server_pool(other.url)
            client._connection.lane.later(0.0, replaced.set)
            assert replaced.wait(30)
            go.set()
            eventually(lambda: client.is_connected)
            assert client.server.url == other.url

    @pytest.mark.parametrize(
        ("result", "problem"),
        [
            ("nats://127.0.0.1:1", "it must return one of the servers.*not str"),
            (jetsync.PoolServer(url="nats://127.0.0.1:1"), "127.0.0.1:1 is not one of the servers"),
            ((None, 1), "not NoneType"),
            ((1, 2, 3), "not tuple"),
            ("wait", "the wait of choose_server"),
            (ZeroDivisionError("s3cret"), r"it raised ZeroDivisionError in .*pool.py, line \d+;"),
            (TimeoutError("s3cret"), "it raised TimeoutError in"),
            (SystemExit(3), "unexpected SystemExit"),
        ],
    )
    def test_a_function_that_fails(self, two, recorder, result, problem):
        """
        If the function raises or returns anything else, an event says so, and the client chooses.
        """

        def choose(servers, _):
            if isinstance(result, BaseException):
                raise result
            return (servers[0], -1) if result == "wait" else result

        with jetsync.connect(
            two[0].url, choose_server=choose, plugins=[recorder], **QUICK
        ) as client:
            client.reconnect()
            eventually(lambda: errors_of(recorder))
            (text,) = errors_of(recorder)
            name = f"{__name__}.{choose.__qualname__}"
            assert text.startswith(f"connect(choose_server={name}): ")
            assert text.endswith("; jetsync chooses the server")
            assert "s3cret" not in text
            with pytest.raises(AssertionError, match=problem):
                raise AssertionError(text)

    @pytest.mark.parametrize("make", [lambda bad: bad, functools.partial], ids=["plain", "partial"])
    def test_a_function_with_other_arguments(self, two, recorder, make):
        """
        If the function does not take the arguments, the event names it and what it gets.
        """

        def choose(servers):
            return servers[0]

        made = make(choose)
        name = f"{__name__}.{choose.__qualname__}" if made is choose else "functools.partial"
        with jetsync.connect(two[0].url, choose_server=made, plugins=[recorder], **QUICK) as client:
            client.reconnect()
            eventually(lambda: errors_of(recorder))
        assert errors_of(recorder)[0] == (
            f"connect(choose_server={name}): it raised TypeError when it was called with the"
            " servers and the last ServerInfo; jetsync chooses the server"
        )

    def test_none_is_the_default(self, two, recorder):
        """
        If the function returns None, the client chooses, and no event reports anything.
        """
        with jetsync.connect(
            two[0].url, choose_server=lambda *_: None, plugins=[recorder], **QUICK
        ) as client:
            client.reconnect()
            assert errors_of(recorder) == []

    def test_a_function_that_hangs(self, two, recorder):
        """
        A function that never returns costs its time once, does not block the background thread, and
        does not keep the client from reconnecting.
        """
        calls, go = [], threading.Event()

        def choose(servers, _):
            calls.append(1)
            go.wait(60)

        with jetsync.connect(
            two[0].url, choose_server=choose, plugins=[recorder], connect_timeout=2, **QUICK
        ) as client:
            for expected in ("it has not returned within 2 s", "an earlier call has not returned"):
                recorder.clear()
                client.reconnect()
                eventually(lambda: errors_of(recorder))
                assert expected in errors_of(recorder)[0]
            assert calls == [1]
            go.set()

    def test_options_with_a_function(self):
        """
        Options with a function of a module can be pickled; others raise an error that names it.
        """
        options = jetsync.ConnectOptions(choose_server=second)
        assert pickle.loads(pickle.dumps(options)) == options
        with pytest.raises(jetsync.ConfigurationError, match="choose_server"):
            pickle.dumps(jetsync.ConnectOptions(choose_server=lambda *_: None))
        with pytest.raises(jetsync.InvalidTypeError, match="choose_server"):
            jetsync.ConnectOptions(choose_server="nats://h")


class Storm:
    """
    A port that a server has left: it records when each connection is attempted, and ends it.
    """

    def __init__(self, count):
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=4 * count)
        self.port = self._listener.getsockname()[1]
        self.moments = []
        self._sockets = []
        self.open = threading.Event()
        self.open.set()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join(30)
        for sock in (self._listener, *self._sockets):
            sock.close()

    def _run(self):
        poll = select.poll()
        poll.register(self._listener, select.POLLIN)
        peers = {}
        while not self._stop.is_set():
            for fd, _ in poll.poll(50):
                if fd == self._listener.fileno():
                    sock, _ = self._listener.accept()
                    if not self.open.is_set():
                        self.moments.append(time.monotonic())
                        sock.close()
                        continue
                    self._sockets.append(sock)
                    peers[sock.fileno()] = sock
                    poll.register(sock, select.POLLIN)
                    sock.sendall(info())
                    continue
                with contextlib.suppress(OSError):
                    data = peers[fd].recv(1 << 16)
                    if b"PING\r\n" in data:
                        peers[fd].sendall(b"PONG\r\n" * data.count(b"PING\r\n"))
                    elif not data:
                        poll.unregister(fd)

    def die(self):
        """
        End all connections at once, and refuse new ones.
        """
        self.open.clear()
        for sock in self._sockets:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)


CLIENTS = """if True:
    import sys
    import jetsync

    url, count, pace = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    options = jetsync.ConnectOptions(servers=url, loop="asyncio", connect_timeout=60)
    options = options.evolve(
        reconnect_wait=options.reconnect_wait * pace,
        max_reconnect_wait=options.max_reconnect_wait * pace,
    )
    clients = [jetsync.connect(options=options) for _ in range(count)]
    print("connected", flush=True)
    sys.stdin.read()
    for client in clients:
        client.close(timeout=0.1)
"""


# It asserts times, which a busy machine could miss. `tests/proto` does so without a server.
@pytest.mark.soak
def test_a_storm_of_500_clients():
    """
    If the server of 500 clients dies, at most a tenth of them try to connect in any 100 ms, and
    after 10 s the rate is at most half.
    """
    programs, count = 4, 500

    def attempt(pace):
        with Storm(count) as storm, contextlib.ExitStack() as stack:
            url = f"nats://127.0.0.1:{storm.port}"
            command = [sys.executable, "-c", CLIENTS, url, str(count // programs), str(pace)]
            running = [
                stack.enter_context(
                    subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
                )
                for _ in range(programs)
            ]
            stack.callback(lambda: [program.stdin.close() for program in running])
            for program in running:
                assert program.stdout.readline() == b"connected\n"
            begin = time.monotonic()
            storm.die()
            # No event shows that enough time has passed for the rates.
            time.sleep(20 * pace)
            moments = sorted((moment - begin) / pace for moment in storm.moments)
        most = max(
            bisect.bisect(moments, first + 0.1) - index for index, first in enumerate(moments)
        )
        early, late = bisect.bisect(moments, 10), bisect.bisect(moments, 20)
        assert most <= count / 10
        assert early >= count
        assert 0 < late - early <= early / 2

    at_some_pace(attempt)
