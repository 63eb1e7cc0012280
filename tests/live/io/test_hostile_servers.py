"""
Hostile servers: a man in the middle before TLS or the login, and junk during reconnects.
"""

from __future__ import annotations

import json

import nats.aio.client
import pytest

from helpers.connections import connection_of
from helpers.fake_server import HEARD, RELAY, FakeServer, info
from helpers.waiting import at_some_pace, eventually

pytest.importorskip("cryptography.x509")

import jetsync
from helpers.certificates import Authority, tls_block
from jetsync.devserver import DevServer
from jetsync.testing import HookRecorder

QUICK = {"reconnect_wait": 0.02, "max_reconnect_wait": 0.02, "connect_timeout": 6.0}

MODES = {
    "tls": ({}, {}),
    "tls_first": ({"handshake_first": True}, {"tls_first": True}),
    "handshake_first auto": ({"handshake_first": "auto"}, {}),
    "handshake_first auto, tls_first": ({"handshake_first": "auto"}, {"tls_first": True}),
}
"""Additions to the server's ``tls`` block, and further options of the client."""


@pytest.fixture(scope="module")
def ours(tmp_path_factory):
    """
    The authority that issues the honest servers' certificates.
    """
    return Authority(tmp_path_factory.mktemp("ours"), "ours")


@pytest.fixture(scope="module", params=MODES)
def honest(request, ours):
    """
    A server that requires TLS, and the client options for it.
    """
    block, options = MODES[request.param]
    config = {"tls": tls_block(ours.issue(request.param.replace(" ", "-")), **block)}
    with DevServer(jetstream=False, config=config) as server:
        server.options = {"tls_ca": ours.path, **options, **QUICK}
        yield server


@pytest.fixture(scope="module")
def plain():
    """
    A server without TLS.
    """
    with DevServer() as server:
        yield server


def forged(client, payload=b"EVIL"):
    """
    Messages for each subscription of a client, as if the attacker could guess the ids.
    """
    return b"".join(
        b"MSG payments %b %d\r\n%b\r\n" % (sid, len(payload), payload)
        for sid in connection_of(client).lane.subscriptions.boxes
    )


def attack(impostor, client, subscription, *plays, lose=None):
    """
    Cut the connection, let the impostor answer, and check that the client rejects it.
    """
    before = client.server.server_id
    reconnects = client.statistics().reconnects
    impostor.hold()
    impostor.heard.clear()
    impostor.plays.extend(plays)
    (lose or impostor.cut)()
    eventually(lambda: len(impostor.heard) == len(plays))
    assert not client.is_connected
    assert client.server.server_id == before
    assert subscription.pending == 0
    impostor.release()
    eventually(lambda: client.is_connected)
    assert client.statistics().reconnects == reconnects + 1
    assert client.server.server_name != "evil"
    client.publish("payments", b"honest")
    assert subscription.next(timeout=20).data == b"honest"


def tls_attacks(client):
    """
    Scripts of an impostor that pretends that TLS follows, by name.
    """
    first, second = info(tls_required=True), info(tls_required=True, server_id="EVIL2")
    return {
        "message in the same segment": (first + forged(client),),
        "message in a later segment": (first, HEARD, forged(client)),
        "INFO in the same segment": (first + second,),
        "INFO in a later segment": (first, HEARD, second),
        "PONG and message": (first + b"PONG\r\n" + forged(client),),
        "half a line": (first + b"MSG paym",),
    }


def relayed_attacks(messages):
    """
    Scripts that add to the first line of the server, and then relay its handshake.
    """
    first, second = info(tls_required=True), info(tls_required=True, server_id="EVIL2")
    added = [
        messages,
        second,
        b"PONG\r\n" + messages,
        second + b"PONG\r\n" + messages,
        b"+OK\r\n",
        b"PING\r\n",
        b"-ERR 'Authorization Violation'\r\n",
        b"\r\n",
        b"MSG paym",
    ]
    return [(first + each, RELAY) for each in added]


def downgrades(client):
    """
    Scripts of an impostor without TLS, by name.
    """
    return {
        "no TLS": (info(tls_required=False), HEARD, b"PONG\r\n" + forged(client)),
        "TLS is not mentioned": (info(), HEARD, b"PONG\r\n" + forged(client)),
        "no TLS, PONG at once": (info(tls_required=False) + b"PONG\r\n" + forged(client),),
        "TLS is null": (info(tls_required=None), HEARD, b"PONG\r\n" + forged(client)),
    }


@pytest.mark.thorough
class TestPlaintextBeforeTls:
    def test_on_reconnect(self, honest):
        """
        Bytes before the TLS handshake are neither delivered nor believed, and no login is sent. The
        client reconnects to the honest server.
        """
        with (
            FakeServer(honest.port) as impostor,
            jetsync.connect(impostor.url, user="u", password="p", **honest.options) as client,
            client.subscribe("payments") as subscription,
        ):
            client.flush()
            for play in (*tls_attacks(client).values(), *downgrades(client).values()):
                attack(impostor, client, subscription, play)
                assert b"CONNECT" not in impostor.heard[0], play
            plays = (*tls_attacks(client).values(), *downgrades(client).values())
            attack(impostor, client, subscription, *plays)
            assert b"CONNECT" not in b"".join(impostor.heard)

    def test_before_a_relayed_handshake(self, honest):
        """
        The same holds if the attacker then relays the handshake of the honest server.
        """
        if "tls_first" in honest.options:
            pytest.skip("the server sends its first line over TLS")
        with (
            FakeServer(honest.port) as impostor,
            jetsync.connect(impostor.url, **honest.options) as client,
            client.subscribe("payments") as subscription,
        ):
            client.flush()
            plays = relayed_attacks(forged(client))
            attack(impostor, client, subscription, *plays)
            # The same on a first connection.
            for play in plays:
                impostor.plays.append(play)
                with pytest.raises(jetsync.ConnectError, match="plaintext"):
                    jetsync.connect(impostor.url, **honest.options)

    def test_on_the_first_connect(self, honest):
        """
        The first connection also skips the impostor.
        """
        with FakeServer(honest.port) as impostor:
            play = (info(tls_required=True) + b"PONG\r\n",)
            impostor.plays.append(play)
            with pytest.raises(jetsync.ConnectError):
                jetsync.connect(impostor.url, **honest.options)
            impostor.plays.append(play)
            both = f"{impostor.url},{honest.url}"
            with jetsync.connect(both, **honest.options) as client:
                assert client.server.server_name != "evil"
            assert b"CONNECT" not in b"".join(impostor.heard)

    def test_tls_that_only_the_server_asks_for(self, ours, monkeypatch):
        """
        The same holds if only the first server asked for TLS: the client refuses later servers
        without it.
        """
        monkeypatch.setenv("SSL_CERT_FILE", ours.path)
        config = {"tls": tls_block(ours.issue("alone"))}
        with (
            DevServer(jetstream=False, config=config) as server,
            FakeServer(server.port) as impostor,
            jetsync.connect(impostor.url, **QUICK) as client,
            client.subscribe("payments") as subscription,
        ):
            client.flush()
            plays = (*tls_attacks(client).values(), *downgrades(client).values())
            attack(impostor, client, subscription, *plays)
            assert b"CONNECT" not in b"".join(impostor.heard)

    def test_tls_of_the_parent_process(self, ours, monkeypatch):
        """
        After a connection with TLS, a forked child that connects again refuses one without it.
        """
        monkeypatch.setenv("SSL_CERT_FILE", ours.path)
        config = {"tls": tls_block(ours.issue("parent"))}
        with (
            DevServer(jetstream=False, config=config) as server,
            FakeServer(server.port) as impostor,
            jetsync.connect(impostor.url, after_fork="reconnect", user="u", **QUICK) as client,
        ):
            parent = connection_of(client).session
            # As in a child, which would share the sockets of this test.
            parent.forked = True
            for play in downgrades(client).values():
                impostor.plays.append(play)
                with pytest.raises(jetsync.ConnectError, match="TLS"):
                    client.flush()
            parent.forked = False
            eventually(lambda: len(impostor.heard) == len(downgrades(client)))
            assert not any(b"CONNECT" in heard for heard in impostor.heard)

    def test_a_server_announced_before_tls_is_not_trusted_more(self, ours):
        """
        An announced server is trusted no more than the one that announced it.
        """
        # The cluster's second server is reached through the impostor, whose address both announce.
        with FakeServer(0) as impostor:
            config = {
                "tls": tls_block(ours.issue("member")),
                "client_advertise": f"127.0.0.1:{impostor.port}",
            }
            with DevServer(jetstream=False, cluster=2, config=config) as cluster:
                first, second = cluster.urls
                impostor._target = int(second.rpartition(":")[2])
                with (
                    jetsync.connect(first, tls_ca=ours.path, **QUICK) as client,
                    client.subscribe("payments") as subscription,
                ):
                    client.flush()
                    plays = (*tls_attacks(client).values(), *downgrades(client).values())
                    attack(impostor, client, subscription, *plays, lose=lambda: cluster.kill(0))
                    assert b"CONNECT" not in b"".join(impostor.heard)
                    assert client.server.url == impostor.url


ANNOUNCEMENTS = {
    "in the handshake": lambda line: (line, HEARD, b"PONG\r\n", "PONG"),
    "with the PONG": lambda line: (info(), HEARD, line + b"PONG\r\n", "PONG"),
    "later": lambda line: (info(), HEARD, b"PONG\r\n" + line, "PONG"),
}
"""Scripts of a server whose INFO line lists the servers of a cluster, by the time of the line."""


class TestAnnouncedServers:
    """Without TLS, an INFO line is enough to lead a client to any server."""

    @pytest.fixture(params=ANNOUNCEMENTS)
    def lure(self, request, plain):
        """
        A server that lists an attacker as a server of its cluster, and the attacker.
        """
        with FakeServer(plain.port) as impostor, FakeServer(plain.port) as attacker:
            line = info(connect_urls=[f"127.0.0.1:{attacker.port}"])
            impostor.plays.append(ANNOUNCEMENTS[request.param](line))
            yield impostor, attacker

    def lose(self, client, impostor):
        """
        End the connection and refuse the next five attempts.
        """
        client.flush()
        impostor.plays.extend([(b"-ERR 'maximum connections exceeded'\r\n",)] * 5)
        impostor.cut()

    def test_are_used(self, lure):
        """
        By default, a server that is listed by another one gets the login.
        """
        impostor, attacker = lure
        login = {"user": "app", "password": "s3cret"}
        attacker.plays.append((info(), HEARD, b"-ERR 'thank you'\r\n"))
        with jetsync.connect(impostor.url, **login, **QUICK) as client:
            self.lose(client, impostor)
            eventually(lambda: attacker.heard)
            eventually(lambda: client.is_connected)

        assert b"s3cret" in attacker.heard[0]

    def test_are_ignored(self, lure):
        """
        With ignore_discovered_servers, the client connects only to its own servers. It reports no
        others.
        """
        impostor, attacker = lure
        recorder = HookRecorder()
        login = {"user": "app", "password": "s3cret", "ignore_discovered_servers": True}
        with jetsync.connect(impostor.url, plugins=[recorder], **login, **QUICK) as client:
            self.lose(client, impostor)
            eventually(lambda: len(impostor.heard) == 6)
            eventually(lambda: client.is_connected)
            assert client.server.url == impostor.url
            assert connection_of(client).session._nats._client.discovered_servers == []
            client.flush()

        assert attacker._sockets == []
        assert attacker.heard == []
        events = [call["event"].kind.value for call in recorder.calls if "event" in call.arguments]
        assert "reconnected" in events
        assert "servers_discovered" not in events


class TestBeforeTheLogin:
    def test_messages_and_infos(self, plain):
        """
        Without TLS, too, nothing is delivered or believed before the server has accepted the login.
        """
        with (
            FakeServer(plain.port) as impostor,
            jetsync.connect(impostor.url, **QUICK) as client,
            client.subscribe("payments") as subscription,
        ):
            client.flush()
            evil = forged(client)
            attack(
                impostor,
                client,
                subscription,
                (info() + evil,),
                (info(), HEARD, evil + b"PONG\r\n"),
                (info(), HEARD, info(server_id="EVIL2") + evil + b"PONG\r\n"),
                (info(), HEARD, info(server_id="EVIL2") + b"-ERR 'no'\r\n"),
                (evil + info(),),
                (b"PONG\r\n" + info(),),
                (b"+OK\r\n",),
            )

    def test_a_consumption_gets_no_message_from_before_the_login(self, plain, unique):
        """
        A consumption gets no forged message either, and continues with the honest server.
        """
        with (
            FakeServer(plain.port) as impostor,
            jetsync.connect(impostor.url, **QUICK) as client,
            client.subscribe("payments") as subscription,
        ):
            js = client.jetstream()
            stream = js.create_stream(unique, subjects=[unique], storage="memory")
            with stream.create_consumer(name="c").consume() as messages:
                js.publish(unique, b"1")
                assert next(messages).data == b"1"
                evil = forged(client)
                attack(impostor, client, subscription, (info(), HEARD, evil + b"PONG\r\n"))
                js.publish(unique, b"2")
                assert next(messages).data == b"2"
            js.delete_stream(unique)


class TestJunkOnReconnect:
    @pytest.mark.parametrize(
        "play",
        [
            (b"INFO null\r\n", "PONG"),
            (b"INFO [1]\r\n", "PONG"),
            (b"INFO 7\r\n", "PONG"),
            (b"INFO {\r\n", "PONG"),
            (b"INFO \xff\r\n", "PONG"),
            (b"INFO " + b"[" * 100_000 + b"\r\n", "PONG"),
            (b"INFO\r\n", "PONG"),
            (b"INFO {}", "PONG"),
            (b"\r\n", "PONG"),
            (b"HTTP/1.1 400 Bad Request\r\n\r\n", "PONG"),
            (b"x" * (2 << 20), "PONG"),
            (b"", b""),
            (info(max_payload="x"), "PONG"),
            (info(max_payload=-1), "PONG"),
            (info(nonce=5), "PONG"),
            (info(headers="no"), "PONG"),
            (info(version=7), "PONG"),
            (info(server_id=["x"]), "PONG"),
            (info(nonce=7), "PONG"),
        ],
        ids=lambda play: repr(play[0][:60]),
    )
    def test_the_next_attempt_follows(self, plain, play):
        """
        If the first line is not a valid INFO, that attempt fails and is reported, and the next one
        follows.
        """

        def attempt(pace):
            recorder = HookRecorder("jetsync_status")
            options = {**QUICK, "connect_timeout": 0.3 * pace}
            with (
                FakeServer(plain.port) as impostor,
                jetsync.connect(impostor.url, plugins=[recorder], **options) as client,
                client.subscribe("payments") as subscription,
            ):
                client.flush()
                attack(impostor, client, subscription, play)
                eventually(lambda: "async_error" in kinds(recorder))

        at_some_pace(attempt)

    @pytest.mark.parametrize(
        "urls",
        [
            ["127.0.0.1:1", "[::1:4222"],
            ["127.0.0.1:port"],
            ["127.0.0.1:99999"],
            ["127.0.0.1"],
            [""],
            [None, 7, {}],
            "127.0.0.1:4222",
            {"a": 1},
            ["user:pass@evil:1", "evil:1/path", "evil:1?x", "evil:1#x", "e vil:1"],
        ],
        ids=json.dumps,
    )
    def test_servers_that_cannot_be_dialled(self, plain, urls):
        """
        Invalid announced addresses are left out, and the connection is made.
        """
        with (
            FakeServer(plain.port) as impostor,
            jetsync.connect(impostor.url, **QUICK) as client,
            client.subscribe("payments") as subscription,
        ):
            impostor.plays.append((info(connect_urls=urls), "PONG"))
            impostor.cut()
            eventually(lambda: client.statistics().reconnects == 1)
            assert client.server.server_name == "evil"
            impostor.cut()
            eventually(lambda: client.statistics().reconnects == 2)
            client.publish("payments", b"honest")
            assert subscription.next(timeout=20).data == b"honest"

    def test_unexpected_errors(self, plain, monkeypatch, caplog):
        """
        An unexpected error of an attempt is logged and reported, and the next attempt follows.
        """
        attempt, errors = nats.aio.client.Client._process_connect_init, [KeyError("odd")] * 3

        async def fail(self):
            if errors:
                raise errors.pop()
            await attempt(self)

        recorder = HookRecorder("jetsync_status")
        with (
            FakeServer(plain.port) as impostor,
            jetsync.connect(impostor.url, plugins=[recorder], **QUICK) as client,
            client.subscribe("payments") as subscription,
        ):
            monkeypatch.setattr(nats.aio.client.Client, "_process_connect_init", fail)
            impostor.cut()
            eventually(lambda: client.statistics().reconnects == 1)
            client.publish("payments", b"honest")
            assert subscription.next(timeout=20).data == b"honest"
            eventually(lambda: kinds(recorder).count("async_error") == 3)
            assert kinds(recorder).count("disconnected") == 1
        assert caplog.text.count("Traceback") == 3

    def test_giving_up(self, plain, monkeypatch):
        """
        If all attempts fail with unexpected errors, the client closes and wakes waiting calls.
        """

        async def fail(self):
            raise KeyError("odd")

        with (
            FakeServer(plain.port) as impostor,
            jetsync.connect(impostor.url, max_reconnects=2, **QUICK) as client,
            client.subscribe("payments") as subscription,
        ):
            monkeypatch.setattr(nats.aio.client.Client, "_process_connect_init", fail)
            impostor.cut()
            with pytest.raises(jetsync.ConnectionClosedError):
                subscription.next(timeout=20)
            assert client.is_closed
            with pytest.raises(jetsync.ConnectionClosedError):
                client.publish("payments", b"1")


def kinds(recorder):
    """
    The kinds of the events so far.
    """
    return [call["event"].kind.value for call in recorder.calls]
