"""
TLS, logins and permissions on real servers, with certificates and keys made for the test.
"""

from __future__ import annotations

import http.server
import logging
import os
import pickle
import shutil
import ssl
import threading
import time
import traceback
from pathlib import Path

import pytest

import jetsync
from helpers.connections import connection_of
from helpers.waiting import at_some_pace, eventually, timed
from jetsync.devserver import DevServer
from jetsync.testing import HookRecorder

pytest.importorskip("cryptography.x509")
nkeys = pytest.importorskip("nkeys")

from cryptography.hazmat.primitives import serialization  # noqa: E402

from helpers.certificates import Authority, tls_block  # noqa: E402
from helpers.credentials import CREDENTIALS, Operator, new_key, token_until  # noqa: E402

PASSWORD = "pa55-w0rd-of-ann"
TOKEN = "t0ken-that-nobody-may-see"


def works(client):
    """
    Return whether a message reaches the server and returns.
    """
    with client.subscribe("_roundtrip") as subscription:
        client.publish("_roundtrip", b"x" * 300_000)
        return subscription.next(timeout=20).data == b"x" * 300_000


def encrypted(server, client):
    """
    Return whether the server reports TLS for the client's connection.
    """
    cid = client.server.client_id
    connections = server.monitor("connz")["connections"]
    return "tls_version" in next(entry for entry in connections if entry["cid"] == cid)


# Certificates.


@pytest.fixture(scope="module")
def ours(tmp_path_factory):
    """
    The authority that issues the servers' certificates.
    """
    return Authority(tmp_path_factory.mktemp("ours"), "ours")


@pytest.fixture(scope="module")
def theirs(tmp_path_factory):
    """
    An authority that is not trusted.
    """
    return Authority(tmp_path_factory.mktemp("theirs"), "theirs")


@pytest.fixture(scope="module")
def tls_server(ours):
    """
    A server that requires TLS.
    """
    with DevServer(config={"tls": tls_block(ours.issue("plain"))}) as server:
        yield server


def secure(server):
    """
    Return the URL of a server with the scheme for TLS.
    """
    return server.url.replace("nats://", "tls://")


@pytest.mark.parametrize("loop", ["asyncio", "auto"])
class TestTls:
    def test_a_trusted_server(self, tls_server, ours, loop):
        """
        With the authority given, everything works over TLS, including large messages and JetStream.
        """
        with jetsync.connect(secure(tls_server), tls_ca=ours.path, loop=loop) as client:
            assert works(client)
            js = client.jetstream()
            stream = js.create_or_update_stream("S", subjects=["s"])
            stream.purge()
            report = js.publish_many(("s", b"%d" % number) for number in range(2000))
            assert report.count == 2000
            consumer = stream.create_or_update_consumer(loop)
            got = [message.data for message in consumer.fetch(1000, expires=10)]
            assert got == [b"%d" % number for number in range(1000)]
            assert encrypted(tls_server, client)

    def test_the_server_alone_may_ask_for_tls(self, tls_server, ours, loop):
        """
        A nats:// URL is enough if the server requires TLS and its authority is known.
        """
        with jetsync.connect(tls_server.url, tls_ca=ours.path, loop=loop) as client:
            assert works(client)

    def test_a_context_of_the_users_own(self, tls_server, ours, loop):
        """
        An SSLContext is used unchanged.
        """
        context = ssl.create_default_context(cafile=ours.path)
        with jetsync.connect(tls_server.url, tls=context, loop=loop) as client:
            assert works(client)

    def test_tls_first(self, ours, loop):
        """
        tls_first works with a server with handshake_first. With one without it, connecting fails
        promptly.
        """
        config = {"tls": tls_block(ours.issue("first"), handshake_first=True)}
        with DevServer(config=config) as server:
            options = {"tls_ca": ours.path, "loop": loop}
            with jetsync.connect(secure(server), tls_first=True, **options) as client:
                assert works(client)
            with pytest.raises(jetsync.ConnectError):
                jetsync.connect(secure(server), connect_timeout=0.5, **options)

    def test_mutual_tls(self, ours, theirs, loop):
        """
        A server that verifies its clients accepts our certificate. It refuses a client without one
        or with one of another authority.
        """
        config = {"tls": tls_block(ours.issue("mutual"), verify=True, ca_file=ours.path)}
        with DevServer(config=config) as server:
            options = {"tls_ca": ours.path, "loop": loop, "connect_timeout": 20}
            good, key = ours.issue("client", hosts=())
            with jetsync.connect(server.url, tls_cert=good, tls_key=key, **options) as client:
                assert works(client)
            bad, key = theirs.issue("stranger", hosts=())
            for login in ({}, {"tls_cert": bad, "tls_key": key}):
                with timed(0.0, 1.5), pytest.raises(jetsync.ConnectError):
                    jetsync.connect(server.url, **options, **login)

    def test_reconnecting_is_secure_too(self, ours, loop):
        """
        After a restart the connection uses TLS again and has its subscriptions.
        """
        with DevServer(config={"tls": tls_block(ours.issue("again"))}) as server:
            options = {"tls_ca": ours.path, "reconnect_wait": 0.05, "loop": loop}
            with (
                jetsync.connect(server.url, **options) as client,
                client.subscribe("a") as subscription,
            ):
                server.restart()
                eventually(lambda: client.statistics().reconnects == 1)
                client.publish("a", b"1")
                assert subscription.next(timeout=10).data == b"1"
                assert works(client)


class Files:
    """
    The files of a client and of its server, which change over time.
    """

    def __init__(self, folder):
        self.ca, self.cert, self.key = (str(folder / name) for name in ("ca", "cert", "key"))
        self.server = [str(folder / name) for name in ("server-cert", "server-key")]
        self._folder = folder
        self._round = 0

    def renew(self):
        """
        Issue everything by another authority.
        """
        self._round += 1
        folder = self._folder / str(self._round)
        folder.mkdir()
        authority = Authority(folder, "authority")
        sources = [authority.path, *authority.issue("client", hosts=()), *authority.issue("server")]
        for source, target in zip(
            sources, (self.ca, self.cert, self.key, *self.server), strict=True
        ):
            shutil.copy(source, target)

    def block(self):
        """
        The server's configuration: it verifies clients.
        """
        return {"tls": tls_block(self.server, verify=True, ca_file=self.ca)}

    @property
    def options(self):
        return {"tls_ca": self.ca, "tls_cert": self.cert, "tls_key": self.key}


@pytest.fixture
def files(tmp_path):
    """
    Files of one authority, which another one replaces later.
    """
    files = Files(tmp_path)
    files.renew()
    return files


class TestRenewed:
    """Each attempt to connect reads the TLS files, as they are at that moment."""

    @pytest.fixture(params=["tls", "wss"])
    def port(self, request, files):
        """
        A server that verifies clients, and its URL for TCP or WebSocket.
        """
        block = files.block()
        if request.param == "wss":
            pytest.importorskip("aiohttp")
            block = {"websocket": {"port": -1, **block}}
        with DevServer(jetstream=False, config=block) as server:
            port = server.ports()["websocket"] if request.param == "wss" else server.port
            yield server, f"{request.param}://127.0.0.1:{port}"

    def test_reconnects_use_renewed_files(self, port, files, tmp_path, monkeypatch):
        """
        After all files were renewed and the server restarted, the client reconnects by itself, and
        also if it is asked to. Relative paths keep their meaning if the program changes its folder.
        """
        server, url = port
        monkeypatch.chdir(tmp_path)
        options = {name: os.path.relpath(path) for name, path in files.options.items()}
        with jetsync.connect(url, reconnect_wait=0.05, **options) as client:
            monkeypatch.chdir("/")
            files.renew()
            server.restart()
            eventually(lambda: client.statistics().reconnects == 1)
            assert works(client)
            client.reconnect(timeout=20)
            assert client.statistics().reconnects == 2

    @pytest.mark.parametrize("broken", ["tls_ca", "tls_cert", "tls_key"])
    @pytest.mark.parametrize("how", ["missing", "half", "other"])
    def test_broken_files(self, tls_server, files, ours, broken, how):
        """
        While a file is missing, half written or not renewed, an event names it, and the client
        keeps trying until the file is complete.
        """
        if (broken, how) == ("tls_ca", "other"):
            pytest.skip("another authority is complete")
        path = files.options[broken]
        shutil.copy(ours.path, files.ca)
        recorder = HookRecorder("jetsync_status")
        with jetsync.connect(
            tls_server.url, plugins=[recorder], reconnect_wait=0.05, **files.options
        ) as client:
            complete = Path(path).read_bytes()
            if how == "missing":
                Path(path).unlink()
            elif how == "half":
                Path(path).write_bytes(complete[: len(complete) // 2])
            else:
                shutil.copy(files.server[broken == "tls_key"], path)
            with pytest.raises(jetsync.DisconnectedError, match=f"{broken} .*{path}"):
                client.reconnect(timeout=0.5)
            failed = [call["event"] for call in recorder.calls]
            assert any(
                isinstance(event, jetsync.AsyncErrorEvent)
                and isinstance(event.error, jetsync.ConnectError)
                and path in str(event.error)
                for event in failed
            )
            Path(path).write_bytes(complete)
            client.reconnect(timeout=20)
            assert works(client)

    def test_an_encrypted_key_asks_nothing_on_the_terminal(self, ours, tmp_path):
        """
        An encrypted private key raises an error at once that names it and suggests an SSLContext.
        """
        cert, key = ours.issue("encrypted", hosts=())
        locked = tmp_path / "locked.key"
        locked.write_bytes(
            serialization.load_pem_private_key(Path(key).read_bytes(), None).private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.BestAvailableEncryption(b"secret"),
            )
        )
        with pytest.raises(jetsync.ConfigurationError, match=r"locked\.key.*encrypted.*SSLContext"):
            jetsync.connect("tls://127.0.0.1:1", tls_cert=cert, tls_key=locked)

    def test_a_context_of_the_program(self, files):
        """
        The program loads renewed files into its own context, and the next connection uses them.
        """
        context = ssl.create_default_context(cafile=files.ca)
        context.load_cert_chain(files.cert, files.key)
        with (
            DevServer(jetstream=False, config=files.block()) as server,
            jetsync.connect(server.url, tls=context, reconnect_wait=0.05) as client,
        ):
            files.renew()
            context.load_verify_locations(files.ca)
            context.load_cert_chain(files.cert, files.key)
            server.restart()
            eventually(lambda: client.statistics().reconnects == 1)
            assert works(client)


class TestUntrusted:
    @pytest.mark.parametrize(
        ("hosts", "days", "reason"),
        [
            (["example.com", "127.0.0.2"], (-1, 1), "(?i)hostname|ip address|mismatch|verify"),
            (["127.0.0.1"], (-3, -2), "(?i)expired|verify"),
        ],
        ids=["wrong host", "expired"],
    )
    def test_a_certificate_that_does_not_fit(self, ours, hosts, days, reason):
        """
        A certificate that is for another host or has expired raises ConnectError promptly, with the
        reason.
        """
        pair = ours.issue("bad", hosts=hosts, begin=days[0], end=days[1])
        with (
            DevServer(jetstream=False, config={"tls": tls_block(pair)}) as server,
            timed(0.0, 1.5),
            pytest.raises(jetsync.ConnectError, match=reason),
        ):
            jetsync.connect(server.url, tls_ca=ours.path)

    @pytest.mark.parametrize("ca", ["other", "system"])
    def test_a_server_of_an_unknown_authority_is_refused_promptly(self, tls_server, theirs, ca):
        """
        A server whose authority is neither the given one nor the system's is refused promptly.
        """
        with timed(0.0, 1.5), pytest.raises(jetsync.ConnectError, match=r"(?i)certificate"):
            jetsync.connect(secure(tls_server), tls_ca=theirs.path if ca == "other" else None)

    def test_tls_hostname(self, ours):
        """
        tls_hostname is the name that the certificate must be for.
        """
        pair = ours.issue("named", hosts=["nats.example.com"])
        with DevServer(jetstream=False, config={"tls": tls_block(pair)}) as server:
            for name, good in (("nats.example.com", True), ("other.example.com", False)):
                options = {"tls_ca": ours.path, "tls_hostname": name}
                if good:
                    with jetsync.connect(server.url, **options) as client:
                        assert works(client)
                else:
                    with pytest.raises(jetsync.ConnectError):
                        jetsync.connect(server.url, **options)

    @pytest.mark.parametrize("how", ["scheme", "authority", "mixed", "mixed with a login"])
    def test_a_server_without_tls_gets_no_password(self, ours, how):
        """
        If the client asks for TLS, also for one server only, it never sends its login without it.
        """
        config = {"authorization": {"timeout": 30, "user": "ann", "password": PASSWORD}}
        with DevServer(jetstream=False, config=config) as server:
            login = {"user": "ann", "password": PASSWORD}
            url, ca = (secure(server), None) if how == "scheme" else (server.url, ours.path)
            if how == "mixed":
                url, ca = ["tls://127.0.0.1:1", server.url], None
            elif how == "mixed with a login":
                url, ca, login = f"tls://127.0.0.1:1,ann:{PASSWORD}@{server.url[7:]}", None, {}
            with timed(0.0, 1.5), pytest.raises(jetsync.ConnectError, match="TLS"):
                jetsync.connect(url, tls_ca=ca, **login)

    def test_tls_that_is_only_offered_is_taken(self, ours):
        """
        A server that offers TLS uses it for clients that ask for it, and plain TCP for others.
        """
        config = {"tls": tls_block(ours.issue("both")), "allow_non_tls": True}
        with DevServer(jetstream=False, config=config) as server:
            for options, expected in (({"tls_ca": ours.path}, True), ({}, False)):
                with jetsync.connect(server.url, **options) as client:
                    assert works(client)
                    assert encrypted(server, client) == expected


# Logins.


class TestHints:
    """
    TLS errors are the same over TCP and WebSocket: the plain reason, and a suggestion.
    """

    @staticmethod
    def reason(url, **options):
        """
        Return the text of the error of a failing connect.
        """
        with pytest.raises(jetsync.ConnectError) as caught:
            jetsync.connect(url, **options)
        return str(caught.value)

    @staticmethod
    def urls(server):
        return server.url.replace("nats://", "tls://"), websocket_url(server, "wss")

    def test_errors_of_certificates_suggest_the_missing_option(self, ours, theirs):
        """
        The error of an unknown authority suggests tls_ca, and of a missing client certificate
        tls_cert.
        """
        pytest.importorskip("aiohttp")
        block = tls_block(ours.issue("hints"), verify=True, ca_file=ours.path)
        config = {"tls": block, "websocket": {"port": -1, "tls": block}}
        with DevServer(jetstream=False, config=config) as server:
            for url in self.urls(server):
                text = self.reason(url, tls_ca=theirs.path)
                assert text.startswith("TLS handshake failed: unable to get local issuer")
                assert "tls_ca" in text
                text = self.reason(url, tls_ca=ours.path)
                assert "tls_cert and tls_key" in text

    def test_the_wrong_port(self):
        """
        The error says if the port does not speak TLS, or does not speak WebSocket.
        """
        pytest.importorskip("aiohttp")
        config = {"websocket": {"port": -1, "no_tls": True}}
        with DevServer(jetstream=False, config=config) as server:
            tls, wss = self.urls(server)
            assert "does not speak TLS here" in self.reason(tls, tls_first=True)
            assert "does not speak TLS here" in self.reason(wss)
            assert "check the port" in self.reason(server.url.replace("nats", "ws"))

    def test_a_server_that_starts_tls_at_once(self, ours):
        """
        If tls_first is missing, the error mentions it.
        """
        config = {"tls": tls_block(ours.issue("first"), handshake_first=True)}
        with DevServer(jetstream=False, config=config) as server:

            def attempt(pace):
                options = {"tls_ca": ours.path, "connect_timeout": 0.5 * pace}
                assert "use tls_first" in self.reason(server.url, **options)

            at_some_pace(attempt)


def websocket_url(server, scheme):
    """
    The URL of a server's WebSocket port.
    """
    return f"{scheme}://127.0.0.1:{server.ports()['websocket']}"


@pytest.fixture(scope="module")
def login_server():
    """
    A server with one user with a password and one with an nkey.
    """
    user, public = new_key(nkeys.PREFIX_BYTE_USER)
    users = [{"user": "ann", "password": PASSWORD}, {"nkey": public}]
    with DevServer(
        jetstream=False, config={"authorization": {"timeout": 30, "users": users}}
    ) as server:
        server.seed = user.seed.decode()
        yield server


@pytest.fixture(scope="module")
def token_server():
    """
    A server that requires a token.
    """
    with DevServer(
        jetstream=False, config={"authorization": {"timeout": 30, "token": TOKEN}}
    ) as server:
        yield server


@pytest.fixture(scope="module")
def operator():
    """
    An operator and a server that trusts it.
    """
    operator = Operator()
    with DevServer(config=operator.config, start_timeout=60) as server:
        operator.server = server
        yield operator


def refused(*arguments, **options):
    """
    Connect with a login that is refused, and return the error, which must be raised at once.
    """
    with timed(0.0, 1.5), pytest.raises(jetsync.AuthenticationError) as caught:
        jetsync.connect(*arguments, **options)
    return caught.value


class TestLogin:
    def test_user_and_password_work_as_options_and_in_the_url(self, login_server):
        """
        They work as options and in the URL. A wrong password, a wrong user and no login are refused
        at once.
        """
        url = login_server.url
        with jetsync.connect(url, user="ann", password=PASSWORD) as client:
            assert works(client)
        inside = url.replace("nats://", f"nats://ann:{PASSWORD}@")
        with jetsync.connect(inside) as client:
            assert works(client)
            assert client.server.url == url
        for login in ({"user": "ann", "password": "x"}, {"user": "bob", "password": PASSWORD}, {}):
            refused(url, **login)
        refused(url.replace("nats://", "nats://ann:wrong@"))

    def test_a_token_works_as_an_option_and_in_the_url(self, token_server):
        """
        A token works as an option and in the URL.
        """
        url = token_server.url
        with jetsync.connect(url, token=TOKEN) as client:
            assert works(client)
        with jetsync.connect(url.replace("nats://", f"nats://{TOKEN}@")) as client:
            assert works(client)
        refused(url, token="another")
        refused(url)

    def test_a_seed_or_its_file_signs_the_nonce_of_the_server(self, login_server, tmp_path):
        """
        A seed, or a file with one, signs the server's nonce; another key is refused.
        """
        path = tmp_path / "user.nk"
        path.write_text(f"{login_server.seed}\n")
        for given in (login_server.seed, str(path)):
            with jetsync.connect(login_server.url, nkey_seed=given) as client:
                assert works(client)
        other, _ = new_key(nkeys.PREFIX_BYTE_USER)
        refused(login_server.url, nkey_seed=other.seed.decode())

    def test_credentials_file(self, operator, tmp_path):
        """
        A JWT and a seed in one file, in the format of the nats tools, open the account with
        JetStream.
        """
        path = tmp_path / "user.creds"
        operator.credentials(path)
        with jetsync.connect(operator.server.url, credentials=path) as client:
            assert works(client)
            assert client.server.raw["auth_required"]
            js = client.jetstream()
            js.create_stream("S", subjects=["s"], storage="memory")
            assert js.publish("s", b"1").sequence == 1
            js.delete_stream("S")

    def test_credentials_of_another_operator(self, operator, tmp_path):
        """
        A user whose account the server does not know is refused.
        """
        path = tmp_path / "stranger.creds"
        Operator().credentials(path)
        refused(operator.server.url, credentials=path)

    def test_reconnecting_logs_in_again(self, tmp_path):
        """
        After a restart of the server, the client signs the new nonce.
        """
        operator = Operator()
        path = tmp_path / "user.creds"
        operator.credentials(path)
        with (
            DevServer(config=operator.config) as server,
            jetsync.connect(server.url, credentials=path, reconnect_wait=0.05) as client,
        ):
            server.restart()
            eventually(lambda: client.statistics().reconnects == 1)
            assert client.jetstream().account_info(timeout=10).streams == 0

    def test_a_login_that_expires_ends_the_connection(self, tmp_path, caplog):
        """
        The server disconnects a user whose JWT expires. Waiting calls raise the reason at once.
        """
        operator = Operator()
        path = tmp_path / "short.creds"
        user, public = new_key(nkeys.PREFIX_BYTE_USER)
        nats = {"type": "user", "subs": -1, "data": -1, "payload": -1}
        short = token_until(public, operator.account_key, nats, time.time() + 6)
        path.write_text(CREDENTIALS.format(jwt=short, seed=user.seed.decode()))
        with (
            DevServer(config=operator.config) as server,
            jetsync.connect(server.url, credentials=path, reconnect_wait=0.05) as client,
        ):
            subscription = client.subscribe("a")
            with pytest.raises(jetsync.ConnectionClosedError) as caught:
                subscription.next(timeout=30)
            assert client.is_closed
            # The error has the last refusal. If the server has forgotten the expiry by the second
            # attempt, the error is a plain violation, and the log has the first one.
            assert "expired" in f"{caught.value} {caplog.text}".lower()
            assert any(text in str(caught.value) for text in ("Expired", "Authorization Violation"))


# Permissions.


@pytest.fixture(scope="module")
def guarded():
    """
    A server with a user with nearly all permissions and one with few.
    """
    denied = [
        "forbidden.>",
        "$JS.API.CONSUMER.MSG.NEXT.S.closed",
        "$JS.API.STREAM.DELETE.>",
        "$JS.ACK.S.mute.>",
    ]
    little = {
        "publish": {"deny": denied},
        "subscribe": {"deny": ["secret.>", "secret"]},
    }
    inbox = {"subscribe": {"allow": ["_MINE.>"]}}
    users = [
        {"user": "all", "password": "p"},
        {"user": "little", "password": "p", "permissions": little},
        {"user": "inbox", "password": "p", "permissions": inbox},
    ]
    with (
        DevServer(config={"authorization": {"timeout": 30, "users": users}}) as server,
        jetsync.connect(server.url, user="all", password="p") as client,
    ):
        js = client.jetstream()
        stream = js.create_stream("S", subjects=["s", "forbidden.s"], storage="memory")
        for name in ("open", "closed", "mute"):
            stream.create_consumer(name)
        js.publish("s", b"1")
        yield server


@pytest.fixture
def recorder():
    """
    A plugin that records status events.
    """
    return HookRecorder("jetsync_status")


@pytest.fixture
def little(guarded, recorder):
    """
    A client of the restricted user; its connection must survive all calls.
    """
    with jetsync.connect(guarded.url, user="little", password="p", plugins=[recorder]) as client:
        yield client
        client.flush()
        assert client.statistics().reconnects == 0


def denied(call):
    """
    Make a denied call, and return the error, which must be raised at once.
    """
    with timed(0.0, 1.0), pytest.raises(jetsync.PermissionDeniedError) as caught:
        call()
    return caught.value.subject, caught.value.operation


class TestPermissions:
    def test_a_denied_request_fails_at_once_with_its_subject(self, little):
        """
        A denied request raises an error with the subject at once instead of timing out.
        """
        call = lambda: little.request("forbidden.a", timeout=5)  # noqa: E731
        assert denied(call) == ("forbidden.a", "publish")

    def test_jetstream_publish(self, little):
        """
        The error says that the message is not stored and why, rather than that its outcome is
        unknown.
        """
        js = little.jetstream()
        assert denied(lambda: js.publish("forbidden.s", timeout=5)) == ("forbidden.s", "publish")
        assert js.publish("s", b"2").sequence > 1

    def test_only_denied_messages_of_publish_many_fail(self, little):
        """
        Only the denied messages fail, each with its error, without waiting for the timeout.
        """
        messages = [("s", b"a"), ("forbidden.s", b"b"), ("s", b"c"), ("forbidden.s", b"d")]
        with timed(0.0, 1.5), pytest.raises(jetsync.PublishManyError) as caught:
            little.jetstream().publish_many(messages, ack_timeout=5)
        report = caught.value.report
        assert report.count == 2
        assert [(type(f.error), f.message.data) for f in report.failures] == [
            (jetsync.PermissionDeniedError, b"b"),
            (jetsync.PermissionDeniedError, b"d"),
        ]

    def test_core_publish(self, little, recorder):
        """
        The call does not wait, so the next flush raises the denial, and one event reports it.
        """
        for number in range(1, 22):
            little.publish("forbidden.a", b"x")
            assert denied(little.flush) == ("forbidden.a", "publish")
            little.flush()
            # The event of this message, so that a second one is seen in the next round.
            eventually(lambda number=number: len(recorder.calls) >= number)
        seen = [call["event"] for call in recorder.calls]
        assert [(e.kind.value, e.subject, e.operation) for e in seen] == [
            ("permission_denied", "forbidden.a", "publish")
        ] * 21

    def test_a_flush_names_the_first_refused_message(self, little):
        """
        One flush raises one error, and the other messages have arrived.
        """
        with little.subscribe("public") as others:
            for subject in ("public", "forbidden.a", "forbidden.b", "public"):
                little.publish(subject)
            assert denied(little.flush) == ("forbidden.a", "publish")
            assert [others.next(timeout=20).subject for _ in range(2)] == ["public"] * 2
            little.flush()

    def test_calls_that_flush_by_themselves(self, little):
        """
        Only flush raises a refused core message. Measuring a round trip does not.
        """
        little.publish("forbidden.a")
        assert little.rtt() > 0
        assert denied(little.flush) == ("forbidden.a", "publish")

    @pytest.mark.parametrize("end", ["close", "drain"])
    def test_a_refused_core_message_does_not_disturb_the_close(self, guarded, end):
        """
        The end of a client raises nothing about a refused core message, and closes the client.
        """
        with jetsync.connect(guarded.url, user="little", password="p") as client:
            client.publish("forbidden.a")
            getattr(client, end)()
            assert client.is_closed

    def test_a_flush_does_not_repeat_the_errors_of_calls(self, little):
        """
        A denied request or JetStream publish has raised its error already.
        """
        little.publish("public")
        assert denied(lambda: little.request("forbidden.a", timeout=5))
        assert denied(lambda: little.jetstream().publish("forbidden.s", timeout=5))
        little.flush()

    @pytest.mark.parametrize("queue", [None, "workers"])
    def test_a_denied_subscription_ends_its_iteration(self, little, queue):
        """
        next() and an iteration end with the error of the subscription.
        """
        for take in (lambda sub: sub.next(timeout=20), list):
            with little.subscribe("secret.a", queue=queue) as subscription:
                assert denied(lambda: take(subscription)) == ("secret.a", "subscribe")  # noqa: B023
        with little.subscribe("public") as others:
            little.publish("public", b"1")
            assert others.next(timeout=20).data == b"1"

    def test_a_denied_pull_ends_at_once_with_its_error(self, little):
        """
        A denied pull ends at once with its error, and other consumers continue.
        """
        stream = little.jetstream().stream("S")
        consumer = stream.consumer("closed")
        subject = "$JS.API.CONSUMER.MSG.NEXT.S.closed"
        assert denied(lambda: consumer.next(expires=20)) == (subject, "publish")
        assert denied(lambda: list(consumer.fetch(5, expires=20))) == (subject, "publish")
        assert stream.consumer("open").next(expires=20).data == b"1"

    def test_the_error_names_the_denied_api_subject(self, little):
        """
        The error names the denied API subject.
        """
        subject = "$JS.API.STREAM.DELETE.S"
        assert denied(lambda: little.jetstream().delete_stream("S")) == (subject, "publish")

    def test_a_denied_acknowledgement_is_an_error_of_ack_sync(self, little):
        """
        ack_sync raises an error if the acknowledgement is denied.
        """
        message = little.jetstream().consumer("S", "mute").next(expires=20)
        subject, operation = denied(lambda: message.ack_sync(timeout=5))
        assert (subject, operation) == (message.reply, "publish")

    def test_without_the_required_inbox_prefix_calls_fail_at_once(self, guarded):
        """
        If replies need a prefix, a client without it gets an error at once, and one with it works.
        """
        login = {"user": "inbox", "password": "p"}
        with jetsync.connect(guarded.url, **login) as client:
            subject, operation = denied(client.jetstream().account_info)
            assert (subject.startswith("_INBOX."), operation) == (True, "subscribe")
            assert denied(lambda: client.jetstream().publish("s")) == (subject, operation)
        with jetsync.connect(guarded.url, inbox_prefix="_MINE", **login) as client:
            assert client.jetstream().account_info().streams == 1
            assert client.jetstream().consumer("S", "open").info().name == "open"
            # Other tests may have taken the first message.
            client.jetstream().publish("s", b"2")
            assert len(list(client.jetstream().consumer("S", "open").fetch(1, expires=5))) == 1

    def test_one_denial_does_not_end_another_call(self, little):
        """
        Concurrent calls on allowed subjects get their answers.
        """
        with little.subscribe("slow") as asked:
            future = []

            def answer():
                future.append(little.request("slow", timeout=5).data)

            thread = threading.Thread(target=answer)
            thread.start()
            request = asked.next(timeout=20)
            denied(lambda: little.request("forbidden.b", timeout=5))
            little.publish(request.reply, b"yes")
            thread.join(5)
            assert future == [b"yes"]


# Secrets.


def shown(error):
    """
    Return everything that an error shows: its texts, those of its causes, and the traceback.
    """
    texts = ["".join(traceback.format_exception(error)), repr(error), str(error)]
    texts.append(repr(vars(error)))
    return "\n".join(texts)


class NotFound(http.server.BaseHTTPRequestHandler):
    """
    An HTTP server without any page.
    """

    def do_GET(self):
        self.send_error(404)

    def log_message(self, *_arguments):
        pass


class TestSecrets:
    def test_nothing_shows_them(self, login_server, token_server, operator, tmp_path, caplog):
        """
        Logs, reprs, events, errors, their causes and tracebacks contain no password, token or seed,
        whether the login works or not.
        """
        path = tmp_path / "user.creds"
        seed = operator.credentials(path)
        jwt = path.read_text().splitlines()[1]
        bad_seed = new_key(nkeys.PREFIX_BYTE_USER)[0].seed.decode()
        named = login_server.url.replace("nats://", f"nats://ann:{PASSWORD}@")
        tokened = token_server.url.replace("nats://", f"nats://{TOKEN}@")
        dead = f"nats://ann:{PASSWORD}@127.0.0.1:1"
        texts = []
        logins = [
            (login_server, {"user": "ann", "password": PASSWORD}),
            (login_server, {"user": "bob", "password": PASSWORD}),
            (login_server, {"servers": named}),
            (login_server, {"servers": named.replace("ann", "bob")}),
            (login_server, {"servers": dead, "connect_timeout": 0.3}),
            (login_server, {"servers": [dead, named]}),
            (
                login_server,
                {"servers": dead, "connect_timeout": 0.3, "retry_on_failed_connect": True},
            ),
            (login_server, {"servers": f"nats://ann:{PASSWORD}@no.such.host.invalid:4222"}),
            (login_server, {"nkey_seed": login_server.seed}),
            (login_server, {"nkey_seed": bad_seed}),
            (login_server, {"token": TOKEN}),
            (token_server, {"token": TOKEN}),
            (token_server, {"servers": tokened}),
            (operator.server, {"credentials": path}),
            (operator.server, {"token": TOKEN}),
            (login_server, {"user": "ann", "password": lambda: PASSWORD}),
            (login_server, {"user": lambda: "bob", "password": lambda: PASSWORD}),
        ]
        outcomes = []
        with caplog.at_level(logging.DEBUG):
            for server, fields in logins:
                recorder = HookRecorder("jetsync_status")
                options = jetsync.ConnectOptions(**{"servers": server.url, **fields})
                texts.append(repr(options))
                texts.append(str(options))
                try:
                    with jetsync.connect(options=options, plugins=[recorder]) as client:
                        client.publish("a")
                        client.flush()
                        texts += [repr(client), str(client), repr(client.server), client.server.url]
                        texts += [repr(client.options), repr(connection_of(client).session._bridge)]
                    outcomes.append("connected")
                except jetsync.ConnectError as error:
                    texts.append(shown(error))
                    texts.append(repr(pickle.loads(pickle.dumps(error))))
                    outcomes.append(type(error).__name__)
                texts += [repr(call["event"]) for call in recorder.calls]
        expected = ["connected", "AuthenticationError", "connected", "AuthenticationError"]
        expected += ["ConnectError", "connected", "ConnectTimeoutError", "ConnectError"]
        expected += ["connected", "AuthenticationError", "AuthenticationError"]
        expected += ["connected", "connected", "connected", "AuthenticationError"]
        expected += ["connected", "AuthenticationError"]
        assert outcomes == expected
        texts.append(caplog.text)
        texts += [repr(vars(record)) for record in caplog.records]
        everything = "\n".join(texts)
        for secret in (PASSWORD, TOKEN, seed, jwt, bad_seed, login_server.seed):
            assert secret not in everything, everything[everything.index(secret) - 500 :][:700]

    # Newer versions of aiohttp have renamed an argument that nats-py 2.16 passes.
    @pytest.mark.filterwarnings("ignore:parameter 'timeout' of type:DeprecationWarning")
    @pytest.mark.parametrize(
        "form",
        [
            "ws://{address}/?token={secret}",
            "ws://u:{secret}@{address}/path?token={secret}",
            "wss://{address}?token={secret}",
            "nats://u:{secret}@{address}",
            "nats://u:{secret}@127.0.0.1:1,nats://{secret}@{address}",
        ],
    )
    def test_a_server_that_is_no_nats_server(self, form, caplog):
        """
        Errors, their causes and logs of a failed handshake show no secret of any form of URL.
        """
        pytest.importorskip("aiohttp")
        # Tracebacks contain lines of this file, so the secret is assembled at run time.
        secret = "2retnuh"[::-1]
        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), NotFound) as web:
            thread = threading.Thread(target=web.serve_forever, args=(0.01,))
            thread.start()
            url = form.format(address=f"127.0.0.1:{web.server_port}", secret=secret)
            with caplog.at_level(logging.DEBUG), pytest.raises(jetsync.ConnectError) as caught:
                jetsync.connect(url, connect_timeout=1)
            web.shutdown()
            thread.join()
        logged = "".join(repr(vars(record)) for record in caplog.records)
        assert secret not in shown(caught.value) + caplog.text + logged

    def test_options_travel_with_their_secrets(self, login_server):
        """
        Options that were pickled and unpickled still log in.
        """
        options = jetsync.ConnectOptions(servers=login_server.url, user="ann", password=PASSWORD)
        with jetsync.connect(options=pickle.loads(pickle.dumps(options))) as client:
            assert works(client)
