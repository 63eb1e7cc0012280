"""
Subscriptions, connections and logins that servers refuse, temporarily or permanently.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import socket
import time

import pytest

from helpers.fake_server import HEARD, FakeServer, info
from helpers.waiting import eventually

pytest.importorskip("cryptography.x509")
nkeys = pytest.importorskip("nkeys")

import jetsync  # noqa: E402
from helpers.credentials import CREDENTIALS, Operator, new_key, token_until  # noqa: E402
from jetsync.devserver import DevServer  # noqa: E402
from jetsync.testing import HookRecorder  # noqa: E402

QUICK = {"reconnect_wait": 0.05, "max_reconnect_wait": 0.05, "connect_timeout": 6.0}
REFUSAL = (info(), HEARD, b"-ERR 'Authorization Violation'\r\n")
LIMIT = (info(), HEARD, b"-ERR 'maximum connections exceeded'\r\n")


def events(recorder, kind):
    """
    The events of one kind so far.
    """
    return [call["event"] for call in recorder.calls if call["event"].kind.value == kind]


class TestSubscriptionLimit:
    @pytest.fixture
    def limited(self):
        """
        A server that allows each connection three subscriptions.
        """
        with DevServer(jetstream=False, config={"max_subscriptions": 3}) as server:
            yield server

    def test_the_subscription_ends(self, limited):
        """
        The subscription beyond the limit ends with SubscriptionLimitError. The client stays
        connected, and other subscriptions continue.
        """
        recorder = HookRecorder("jetsync_status")
        with jetsync.connect(limited.url, plugins=[recorder], **QUICK) as client:
            good = [client.subscribe(name) for name in "ab"]
            client.flush()
            bad = client.subscribe("c")
            with pytest.raises(jetsync.SubscriptionLimitError, match="'c'") as caught:
                bad.next(timeout=20)
            assert caught.value.subject == "c"
            for name, subscription in zip("ab", good, strict=True):
                client.publish(name, name.encode())
                assert subscription.next(timeout=20).data == name.encode()
            with pytest.raises(jetsync.NoRespondersError):
                client.request("nobody", timeout=5)
            assert client.statistics().reconnects == 0
            (event,) = eventually(lambda: events(recorder, "async_error"))
            assert isinstance(event.error, jetsync.SubscriptionLimitError)

    def test_there_is_room_again(self, limited):
        """
        After another subscription has ended, a new one works.
        """
        with jetsync.connect(limited.url, **QUICK) as client:
            first, _ = (client.subscribe(name) for name in "ab")
            client.flush()
            bad = client.subscribe("c")
            with pytest.raises(jetsync.SubscriptionLimitError):
                bad.next(timeout=20)
            bad.close()
            first.close()
            client.flush()
            with client.subscribe("c") as again:
                client.publish("c", b"1")
                assert again.next(timeout=20).data == b"1"
            assert client.statistics().reconnects == 0

    def test_after_a_reconnect(self, limited):
        """
        A reconnect does not repeat the refused subscription.
        """
        with (
            FakeServer(limited.port) as impostor,
            jetsync.connect(impostor.url, **QUICK) as client,
        ):
            good = [client.subscribe(name) for name in "ab"]
            client.flush()
            bad = client.subscribe("c")
            with pytest.raises(jetsync.SubscriptionLimitError):
                bad.next(timeout=20)
            impostor.cut()
            eventually(lambda: client.statistics().reconnects == 1)
            client.flush()
            for name, subscription in zip("ab", good, strict=True):
                client.publish(name, name.encode())
                assert subscription.next(timeout=20).data == name.encode()
            assert client.is_connected

    def test_many_at_once(self, limited):
        """
        If many are made together, each one beyond the limit ends with the error, and no other.
        """
        with (
            jetsync.connect(limited.url, **QUICK) as client,
            contextlib.ExitStack() as stack,
        ):
            made = [stack.enter_context(client.subscribe(f"s.{n}")) for n in range(8)]
            client.flush()
            for subscription in made[2:]:
                with pytest.raises(jetsync.SubscriptionLimitError):
                    subscription.next(timeout=20)
            for number, subscription in enumerate(made[:2]):
                client.publish(f"s.{number}", b"1")
                assert subscription.next(timeout=20).data == b"1"


def connection_of_another(port):
    """Return a socket whose connection the server has accepted, or None."""
    other = socket.create_connection(("127.0.0.1", port))
    # A refusal may reset the connection.
    with contextlib.suppress(ConnectionError), other.makefile("rb") as lines:
        other.sendall(b"CONNECT {}\r\nPING\r\n")
        for line in lines:
            if line == b"PONG\r\n":
                return other
    other.close()
    return None


class TestConnectionLimit:
    def test_reconnecting_until_there_is_room(self):
        """
        If the server refuses a client because of too many connections, the client retries later.
        """
        config = {"max_connections": 2}
        with (
            DevServer(jetstream=False, config=config) as server,
            FakeServer(server.port) as impostor,
            jetsync.connect(impostor.url, **QUICK) as client,
            client.subscribe("a") as subscription,
        ):
            client.flush()
            with contextlib.ExitStack() as stack:
                impostor.hold()
                impostor.cut()
                eventually(lambda: not client.is_connected)
                # The server may notice late that the client's connection is gone.
                for _ in range(2):
                    stack.enter_context(eventually(lambda: connection_of_another(server.port)))
                with pytest.raises(jetsync.ConnectError, match="maximum connections exceeded"):
                    jetsync.connect(server.url)
                impostor.release()
                # More often than a login may be refused.
                refused = "maximum connections exceeded"
                eventually(lambda: server.log().count(refused) > 5)
                assert not client.is_closed
            eventually(lambda: client.statistics().reconnects == 1)
            client.publish("a", b"1")
            assert subscription.next(timeout=20).data == b"1"

    def test_many_refusals(self, nats_server):
        """
        Refusals for too many connections do not count as refused logins, however many there are.
        """
        with (
            FakeServer(nats_server.port) as impostor,
            jetsync.connect(impostor.url, user="u", password="p", **QUICK) as client,
        ):
            impostor.plays.extend([LIMIT] * 5)
            impostor.cut()
            eventually(lambda: client.statistics().reconnects == 1)


class TestExpiredLogin:
    @pytest.mark.parametrize("renewed", ["in time", "late"])
    def test_a_renewed_login_is_read_again(self, tmp_path, renewed):
        """
        When the server ends a connection because the JWT has expired, the client reads the
        credentials file again and reconnects.
        """
        operator = Operator()
        path = tmp_path / "short.creds"
        user, public = new_key(nkeys.PREFIX_BYTE_USER)
        nats = {"type": "user", "subs": -1, "data": -1, "payload": -1}

        def renew(seconds):
            jwt = token_until(public, operator.account_key, nats, time.time() + seconds)
            text = CREDENTIALS.format(jwt=jwt, seed=user.seed.decode())
            # Atomically: a reader never sees half a file.
            fresh = tmp_path / "fresh"
            fresh.write_text(text)
            fresh.replace(path)

        renew(6)
        options = {**QUICK, "retry_refused_logins": renewed == "late"}
        with (
            DevServer(config=operator.config) as server,
            jetsync.connect(server.url, credentials=path, **options) as client,
            client.subscribe("a") as subscription,
        ):
            client.flush()
            if renewed == "in time":
                renew(3600)
                eventually(lambda: client.statistics().reconnects == 1)
            else:
                eventually(lambda: not client.is_connected)
                eventually(lambda: server.log().count("authentication error") > 3)
                assert not client.is_closed
                renew(3600)
                eventually(lambda: client.is_connected and client.rtt())
            client.publish("a", b"1")
            assert subscription.next(timeout=20).data == b"1"


class TestRefusedLogin:
    def reopened(self, first, password):
        """
        A server on the port of a stopped one, with another password.
        """
        config = {"authorization": {"timeout": 30, "user": "ann", "password": password}}
        return DevServer(jetstream=False, config=config, port=first.port)

    @pytest.fixture
    def server(self):
        """
        A server that accepts the password "right".
        """
        config = {"authorization": {"timeout": 30, "user": "ann", "password": "right"}}
        with DevServer(jetstream=False, config=config) as server:
            yield server

    def test_twice_by_the_same_server(self, server):
        """
        The client gives up, logs why, and wakes waiting calls.
        """
        recorder = HookRecorder("jetsync_status")
        login = {"user": "ann", "password": "right"}
        with (
            FakeServer(server.port) as impostor,
            jetsync.connect(impostor.url, plugins=[recorder], **login, **QUICK) as client,
            concurrent.futures.ThreadPoolExecutor(3) as pool,
        ):
            subscription = client.subscribe("a")
            other = client.subscribe("b")
            client.flush()
            waiting = [pool.submit(one.next, timeout=30) for one in (subscription, other)]
            impostor.hold()
            impostor.cut()
            eventually(lambda: not client.is_connected)
            waiting.append(pool.submit(client.flush, timeout=30))
            impostor.plays.clear()
            server.stop()
            with self.reopened(server, "changed") as changed:
                impostor.release()
                for one in waiting:
                    error = one.exception(20)
                    assert type(error) is jetsync.ConnectionClosedError
                    assert "Authorization Violation" in str(error)
                    assert isinstance(error.__cause__, jetsync.AuthenticationError)
                assert client.is_closed
                (closed,) = eventually(lambda: events(recorder, "closed"))
                assert isinstance(closed.error.__cause__, jetsync.AuthenticationError)
                assert changed.log().count("uthorization") <= 3
            server.start()

    def test_one_refused_login_does_not_close_the_client(self, nats_server):
        """
        One refused login, at whichever server, does not close the client.
        """
        login = {"user": "u", "password": "p"}
        with (
            FakeServer(nats_server.port) as impostor,
            jetsync.connect(impostor.url, **login, **QUICK) as client,
        ):
            for turn in range(1, 4):
                impostor.plays.append(REFUSAL)
                impostor.cut()
                eventually(lambda: client.statistics().reconnects == turn)  # noqa: B023
            assert client.rtt() > 0.0

    def test_by_several_servers(self, nats_server):
        """
        Each server may refuse the login once before the client gives up.
        """
        login = {"user": "u", "password": "p"}
        with (
            FakeServer(nats_server.port) as first,
            FakeServer(nats_server.port) as second,
            jetsync.connect([first.url, second.url], **login, **QUICK) as client,
        ):
            for impostor in (first, second):
                impostor.plays.append(REFUSAL)
                impostor.hold()
            for impostor in (first, second):
                impostor.cut()
            eventually(lambda: first.heard and second.heard)
            for impostor in (first, second):
                impostor.release()
            eventually(lambda: client.statistics().reconnects == 1)

    def test_unless_configured_otherwise(self, server):
        """
        With retry_refused_logins the client reconnects once its login is accepted again.
        """
        login = {"user": "ann", "password": "right", "retry_refused_logins": True}
        with jetsync.connect(server.url, **login, **QUICK) as client:
            server.stop()
            with self.reopened(server, "changed") as changed:
                eventually(lambda: changed.log().count("authentication error") > 4)
                assert not client.is_closed
            server.start()
            eventually(lambda: client.statistics().reconnects == 1)
            assert client.rtt() > 0.0
