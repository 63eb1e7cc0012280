"""
WebSocket connections: the same behaviour over ws:// and wss://.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import datetime as dt
import ipaddress
import socket
import threading
from unittest import mock
from urllib.parse import urlparse

import pytest

import jetsync
from helpers.waiting import eventually, timed
from jetsync._io.nats_seam import NatsConnection
from jetsync.devserver import DevServer
from jetsync.testing import HookRecorder

pytest.importorskip("aiohttp")
x509 = pytest.importorskip("cryptography.x509")

from cryptography.hazmat.primitives import hashes, serialization  # noqa: E402
from cryptography.hazmat.primitives.asymmetric import ec  # noqa: E402

from helpers.certificates import Authority, tls_block  # noqa: E402


def self_signed(folder):
    """
    Make a self-signed certificate for 127.0.0.1; return the paths of it and its key.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "websocket")])
    now = dt.datetime.now(dt.timezone.utc)
    host = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([host]), critical=False)
        .sign(key, hashes.SHA256())
    )
    secret = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    paths = folder / "certificate.pem", folder / "key.pem"
    paths[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    paths[1].write_bytes(secret)
    return tuple(map(str, paths))


class Door:
    """
    A server with WebSocket, and the client options for it.
    """

    def __init__(self, server, scheme, options):
        self.server = server
        self.scheme = scheme
        self.url = f"{scheme}://127.0.0.1:{server.ports()['websocket']}"
        self.options = {"reconnect_wait": 0.05, **options}

    def connect(self, **options):
        return jetsync.connect(self.url, **self.options, **options)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """
    A certificate and its key.
    """
    return self_signed(tmp_path_factory.mktemp("wss"))


@pytest.fixture(scope="module", params=["ws", "wss"])
def door(request, certificate):
    """
    A server with a WebSocket port, with and without TLS.
    """
    if request.param == "ws":
        block, options = {"port": -1, "no_tls": True}, {}
    else:
        path, key = certificate
        block = {"port": -1, "tls": {"cert_file": path, "key_file": key}}
        options = {"tls_ca": path}
    with DevServer(config={"websocket": block}) as server:
        yield Door(server, request.param, options)


@pytest.fixture
def client(door):
    """
    A WebSocket client.
    """
    with door.connect() as client:
        yield client


class TestTraffic:
    def test_core_messages_with_headers_and_large_payloads_arrive(self, door, client, unique):
        """
        Publish, subscribe and request, with headers and a payload of many frames.
        """
        assert client.server.url == door.url
        data = bytes(range(256)) * 3000
        with client.subscribe(unique) as subscription:
            client.publish(unique, data, headers={"A": "é"}, reply="r")
            message = subscription.next(timeout=20)
        assert (message.data, message.headers["A"], message.reply) == (data, "é", "r")
        with pytest.raises(jetsync.NoRespondersError):
            client.request(unique, timeout=5)
        assert client.rtt() > 0.0

    def test_publishes_fetches_and_direct_gets_work_over_websocket(self, client, unique):
        """
        A stream, many publishes, a fetch with acknowledgements, and a direct get.
        """
        js = client.jetstream()
        stream = js.create_stream(unique, subjects=[unique], storage="memory")
        consumer = stream.create_consumer("c")
        report = js.publish_many((unique, b"%d" % number) for number in range(1000))
        assert report.count == 1000
        batch = consumer.fetch(1000, expires=10)
        assert [message.data for message in batch] == [b"%d" % n for n in range(1000)]
        assert batch.ack() == 1000
        eventually(lambda: consumer.info().num_ack_pending == 0)
        assert stream.get_last(unique).data == b"999"
        js.delete_stream(unique)

    def test_answers_over_websocket_go_to_the_threads_that_asked(self, client, unique):
        """
        Answers go to the threads that asked.
        """
        js = client.jetstream()
        stream = js.create_stream(unique, subjects=[f"{unique}.*"], storage="memory")

        def work(number):
            for turn in range(20):
                data = b"%d-%d" % (number, turn)
                ack = js.publish(f"{unique}.{number}", data, timeout=20)
                assert stream.get_message(ack.sequence, timeout=20).data == data

        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            list(pool.map(work, range(8)))
        assert stream.info().state.messages == 160
        js.delete_stream(unique)

    def test_larger_than_the_limit(self, client, unique):
        """
        The client refuses the message, and the connection stays.
        """
        with pytest.raises(jetsync.MaxPayloadError):
            client.publish(unique, b"x" * (client.server.max_payload + 1))
        client.publish(unique, b"x" * client.server.max_payload)
        client.flush()
        assert client.statistics().reconnects == 0


class TestLife:
    def test_subscriptions_work_again_after_a_restart(self, door):
        """
        After a restart the subscriptions work again; there is one event for the loss and one for
        the reconnect.
        """
        recorder = HookRecorder("jetsync_status")
        with door.connect(plugins=[recorder]) as client, client.subscribe("a") as subscription:
            door.server.restart()
            eventually(lambda: client.statistics().reconnects == 1)
            client.publish("a", b"1")
            assert subscription.next(timeout=10).data == b"1"
            assert client.jetstream().account_info(timeout=10).streams == 0
            eventually(
                lambda: (
                    [call["event"].kind.value for call in recorder.calls]
                    == ["disconnected", "reconnected"]
                )
            )

    def test_a_request_in_flight_ends_with_the_connection(self, door):
        """
        A request raises ConnectionLostError at once.
        """
        with (
            jetsync.connect(door.server.url) as other,
            other.subscribe("quiet"),
            door.connect() as client,
            concurrent.futures.ThreadPoolExecutor(1) as pool,
        ):
            other.flush()
            waiting = pool.submit(client.request, "quiet", timeout=30)
            eventually(lambda: client.statistics().requests_in_flight)
            door.server.kill()
            try:
                with pytest.raises(jetsync.ConnectionLostError):
                    waiting.result(10)
            finally:
                door.server.start()

    def test_closing_over_websocket_sends_messages_and_wakes_calls(self, door, unique):
        """
        Accepted messages are sent, waiting calls are woken, and no thread is left.
        """
        before = set(threading.enumerate())
        with jetsync.connect(door.server.url) as other, other.subscribe(unique) as subscription:
            other.flush()
            client = door.connect()
            quiet = client.subscribe("nothing")
            with concurrent.futures.ThreadPoolExecutor(1) as pool:
                waiting = pool.submit(quiet.next, timeout=30)
                for number in range(300):
                    client.publish(unique, b"%d" % number)
                client.close()
                assert isinstance(waiting.exception(10), jetsync.ConnectionClosedError)
            assert [subscription.next(timeout=20).data for _ in range(300)] == [
                b"%d" % number for number in range(300)
            ]
        eventually(lambda: set(threading.enumerate()) == before, 5)

    def test_no_websocket(self, door):
        """
        connect() raises ConnectError in time if nothing listens, or if the port is not a WebSocket.
        """
        plain = door.server.url.replace("nats://", f"{door.scheme}://")
        for url in (f"{door.scheme}://127.0.0.1:1", plain):
            with timed(0.0, 1.5), pytest.raises(jetsync.ConnectError):
                jetsync.connect(url, connect_timeout=20, **door.options)


def test_an_unknown_authority_ends_the_websocket_promptly(door, tmp_path):
    """
    A certificate that is not trusted ends the attempt promptly.
    """
    if door.scheme == "ws":
        pytest.skip("there is no certificate in the clear")
    path, _ = self_signed(tmp_path)
    with timed(0.0, 2.0), pytest.raises(jetsync.ConnectError, match=r"(?i)certificate"):
        jetsync.connect(door.url, tls_ca=path)


def test_user_and_password_work_over_websocket():
    """
    A login works over WebSocket as over TCP, and a wrong one is refused at once.
    """
    config = {
        "authorization": {"timeout": 30, "user": "ann", "password": "right"},
        "websocket": {"port": -1, "no_tls": True},
    }
    with DevServer(jetstream=False, config=config) as server:
        url = f"ws://127.0.0.1:{server.ports()['websocket']}"
        with jetsync.connect(url, user="ann", password="right") as client:
            client.flush()
        with timed(0.0, 1.5), pytest.raises(jetsync.AuthenticationError):
            jetsync.connect(url, user="ann", password="wrong")


@pytest.fixture
def silent():
    """
    A port that accepts connections and sends nothing.
    """
    with socket.create_server(("127.0.0.1", 0)) as hole:
        yield f"ws://127.0.0.1:{hole.getsockname()[1]}"


def ws_urls(cluster, count=3):
    """
    The WebSocket addresses of a cluster.
    """
    return [f"ws://127.0.0.1:{cluster.ports(index)['websocket']}" for index in range(count)]


@pytest.fixture
def cluster():
    """
    Three servers with WebSocket ports.
    """
    config = {"websocket": {"port": -1, "no_tls": True}}
    with DevServer(jetstream=False, cluster=3, config=config) as cluster:
        yield cluster


class TestInTheClear:
    """A client that asks for TLS never logs in without it."""

    @pytest.mark.parametrize("order", [1, -1])
    def test_a_list_with_both_schemes(self, order):
        """
        With wss:// and ws:// in one list, connect() raises before it opens a connection.
        """
        with socket.create_server(("127.0.0.1", 0)) as plain:
            urls = ["wss://127.0.0.1:1", f"ws://u:p@127.0.0.1:{plain.getsockname()[1]}"]
            with pytest.raises(jetsync.InvalidArgumentError, match="use wss:// for all"):
                jetsync.connect(urls[::order], user="u", password="p")
            plain.setblocking(False)
            with pytest.raises(BlockingIOError):
                plain.accept()

    @pytest.mark.parametrize("earlier", [True, False])
    def test_an_address_without_tls_is_never_dialled(self, earlier):
        """
        If the options or an earlier connection used TLS, the transport refuses ws://.
        """

        async def attempt(url):
            options = jetsync.ConnectOptions(servers=f"{'ws' if earlier else 'wss'}://a")
            transport = NatsConnection(mock.Mock(had_tls=earlier), options).transport
            # As if it had come into the pool in some way.
            transport.next_server.pool.replace([url])
            with pytest.raises(jetsync.ConnectError, match="use wss://"):
                await transport.connect(urlparse(url), 1024, 20)

        with socket.create_server(("127.0.0.1", 0)) as plain:
            asyncio.run(attempt(f"ws://127.0.0.1:{plain.getsockname()[1]}"))
            plain.setblocking(False)
            with pytest.raises(BlockingIOError):
                plain.accept()


class TestHandshake:
    def test_a_redirect_is_not_followed(self):
        """
        A redirect is not followed, and no login is sent.
        """
        with (
            socket.create_server(("127.0.0.1", 0)) as target,
            socket.create_server(("127.0.0.1", 0)) as first,
            concurrent.futures.ThreadPoolExecutor(1) as pool,
        ):
            location = f"http://127.0.0.1:{target.getsockname()[1]}/"

            def redirect():
                sock, _ = first.accept()
                with sock:
                    sock.recv(1 << 16)
                    answer = f"HTTP/1.1 302 Found\r\nLocation: {location}\r\nContent-Length: 0\r\n"
                    sock.sendall(answer.encode() + b"\r\n")

            answering = pool.submit(redirect)
            url = f"ws://127.0.0.1:{first.getsockname()[1]}"
            with pytest.raises(jetsync.ConnectError, match="redirects"):
                jetsync.connect(url, user="u", password="p", connect_timeout=20)
            answering.result(20)
            target.setblocking(False)
            with pytest.raises(BlockingIOError):
                target.accept()

    def test_the_certificate_of_a_wss_server_is_for_tls_hostname(self, tmp_path):
        """
        The certificate of a wss server must be for tls_hostname.
        """
        authority = Authority(tmp_path, "ours")
        block = tls_block(authority.issue("server", hosts=("nats.internal",)))
        config = {"websocket": {"port": -1, "tls": block}}
        with DevServer(jetstream=False, config=config) as server:
            url = f"wss://127.0.0.1:{server.ports()['websocket']}"
            with jetsync.connect(
                url, tls_ca=authority.path, tls_hostname="nats.internal"
            ) as client:
                client.flush()
            with pytest.raises(jetsync.ConnectError):
                jetsync.connect(url, tls_ca=authority.path, tls_hostname="other.internal")


class TestCluster:
    def test_a_silent_first_server(self, cluster, silent):
        """
        A silent server costs its share of the timeout, and the next one is used.
        """
        urls = [silent, *ws_urls(cluster)[:2]]
        with timed(0.0, 20), jetsync.connect(urls, connect_timeout=20) as client:
            assert client.server.url in urls[1:]

    def test_another_node_takes_over_despite_a_silent_server(self, cluster, silent):
        """
        After its node dies, the client soon connects to one of two healthy nodes, despite a silent
        server in the list.
        """
        urls = [silent, *ws_urls(cluster)]
        options = {"reconnect_wait": 0.05, "connect_timeout": 12}
        with jetsync.connect(urls, **options) as client, client.subscribe("a") as subscription:
            cluster.kill(urls.index(client.server.url) - 1)
            # The client may try the silent and the dead server first.
            eventually(lambda: client.statistics().reconnects == 1, 20)
            client.publish("a", b"1")
            assert subscription.next(timeout=20).data == b"1"
            assert client.server.url in urls[1:]

    def test_discovered_servers_get_the_scheme_of_the_connection(self, cluster):
        """
        Announced servers get the scheme of the connection, and are used.
        """
        recorder = HookRecorder("jetsync_status")
        first, second, third = ws_urls(cluster)
        cluster.stop(2)
        # A client that connects before the first node has noticed the third would already know it.
        eventually(lambda: len(cluster.monitor("varz")["connect_urls"]) == 2)
        with jetsync.connect(first, plugins=[recorder], reconnect_wait=0.05) as client:
            cluster.start(2, wait=False)
            eventually(lambda: [call["event"].kind.value for call in recorder.calls])
            client.flush()
            events = [call["event"] for call in recorder.calls]
            assert [event.servers for event in events] == [(third,)]
            cluster.kill(0)
            eventually(lambda: client.statistics().reconnects == 1)
            assert client.server.url in {second, third}
            assert client.rtt() > 0.0
