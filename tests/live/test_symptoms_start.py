"""
Symptoms of programs that do not start or do not connect, and of servers that fail.

`docs/howto/symptoms.md` has the words that each test sees.
"""

from __future__ import annotations

import datetime as dt
import logging
import socket
import subprocess
import sys

import pytest

import jetsync
from helpers.certificates import Authority, tls_block
from helpers.exits import run_to_exit
from helpers.lacking import needs_fork
from helpers.symptoms import names, shows
from helpers.waiting import CLUSTER_CLIENT, eventually
from jetsync.devserver import DevServer


def unused_url():
    """
    Return an address at which no server listens.
    """
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        return f"nats://127.0.0.1:{unused.getsockname()[1]}"


class TestInstall:
    def test_no_distribution(self, tmp_path):
        """
        Without a package for this Python, pip says that there is no matching distribution.
        """
        pip = [sys.executable, "-m", "pip", "install", "--no-index", "--ignore-installed"]
        command = [*pip, "--target", str(tmp_path), "--disable-pip-version-check", "jetsync"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if "No module named pip" in done.stderr:
            pytest.skip("this environment has no pip")
        words = "No matching distribution found for jetsync"
        shows(words, done.stderr, words)

    def test_names_of_nats_py(self, js, unique):
        """
        The names of nats-py do not exist, and a result cannot be awaited.
        """
        heading = "'JetStream' object has no attribute 'add_stream'"
        with pytest.raises(AttributeError) as caught:
            js.add_stream(unique)
        shows(heading, caught.value, heading)
        js.create_stream(unique, subjects=[unique], storage="memory")

        async def publish():
            await js.publish(unique, b"")

        with pytest.raises(TypeError) as caught:
            publish().send(None)
        shows(
            heading, str(caught.value).replace('"', "'"), "object PubAck can't be used in 'await'"
        )


class TestConnect:
    def test_no_server(self):
        """
        Without a server, `connect` asks whether one is running.
        """
        with pytest.raises(jetsync.ConnectError) as caught:
            jetsync.connect(unused_url())
        heading = "ConnectError: connection refused"
        shows(heading, caught.value, "connection refused", "is a server running there?")

    def test_a_wrong_login(self):
        """
        The error of a refused login says what the client has sent.
        """
        heading = "AuthenticationError: Authorization Violation"
        block = {"timeout": 30, "user": "u", "password": "p"}
        with DevServer(jetstream=False, config={"authorization": block}) as server:
            for options, sent in (
                ({"user": "u", "password": "x"}, "the client sent a user and a password"),
                ({}, "the client sent no user, token or key"),
            ):
                with pytest.raises(jetsync.AuthenticationError) as caught:
                    jetsync.connect(server.url, **options)
                shows(heading, caught.value, "Authorization Violation", sent)

    def test_a_certificate_that_is_not_trusted(self, tmp_path):
        """
        The client refuses a certificate of an authority that it does not know.
        """
        pair = Authority(tmp_path, "theirs").issue("server")
        with (
            DevServer(jetstream=False, config={"tls": tls_block(pair)}) as server,
            pytest.raises(jetsync.ConnectError) as caught,
        ):
            jetsync.connect(server.url.replace("nats://", "tls://"))
        reason = "unable to get local issuer certificate"
        shows("TLS handshake failed", caught.value, "TLS handshake failed", reason, "tls_ca")

    def test_jetstream_is_not_enabled(self):
        """
        On a server without JetStream, requests say so, and a publish finds no stream.
        """
        heading = "JetStreamNotEnabledError"
        with (
            DevServer(jetstream=False) as server,
            jetsync.connect(server.url) as client,
        ):
            js = client.jetstream()
            with pytest.raises(jetsync.JetStreamNotEnabledError) as caught:
                js.create_stream("ORDERS", subjects=["orders.>"])
            shows(heading, caught.value, "no server with JetStream answers")
            with pytest.raises(jetsync.NoStreamResponseError) as caught:
                js.publish("orders.eu", b"")
            shows(heading, caught.value)

    @needs_fork
    def test_a_forked_process(self, nats_server):
        """
        A forked child cannot use the client of its parent.
        """
        script = """
            client = jetsync.connect(sys.argv[1])
            child = os.fork()
            if child == 0:
                try:
                    client.flush()
                except jetsync.JetSyncError as error:
                    os.write(2, repr(error).encode())
                os._exit(0)
            os.waitpid(child, 0)
            client.close()
        """
        _, errors, _ = run_to_exit(script, nats_server.url)
        shows("ForkedProcessError", errors, "ForkedProcessError", "after_fork='reconnect'")


class TestFailingServers:
    @pytest.mark.thorough
    def test_a_leader_that_fails(self):
        """
        Until a cluster has elected another leader, requests fail.
        """
        heading = "RequestTimeoutError after a change of the leader"
        with DevServer(cluster=3) as server:
            with jetsync.connect(server.urls, **CLUSTER_CLIENT) as client:
                js = client.jetstream(timeout=20)
                js.create_stream("ORDERS", subjects=["orders.>"], num_replicas=3)
            leader = server.wait_stream_leader("ORDERS")
            others = [url for number, url in enumerate(server.urls) if number != leader]
            with jetsync.connect(others, **CLUSTER_CLIENT) as client:
                stream = client.jetstream().stream("ORDERS")
                server.kill(leader)
                temporary = (jetsync.RequestTimeoutError, jetsync.TemporarilyUnavailableError)
                with pytest.raises(temporary) as caught:
                    stream.purge(timeout=0.5)
                shows(heading, caught.value)
                # It ends when there is another leader.
                assert stream.info(timeout=30).cluster.leader is not None
        names(heading, "stream.info().cluster", "leader")

    def test_no_connection(self, caplog):
        """
        A call that had no connection within its deadline has sent nothing.
        """
        heading = "DisconnectedError: nothing was sent"
        caplog.set_level(logging.INFO, "jetsync")
        with DevServer() as server, jetsync.connect(server.url, reconnect_wait=0.05) as client:
            js = client.jetstream()
            server.kill()
            eventually(lambda: "reconnect_failed" in caplog.text)
            with pytest.raises(jetsync.DisconnectedError) as caught:
                js.publish("orders.eu", b"", timeout=0.2)
        shows(heading, caught.value, "nothing was sent")
        shows(heading, caplog.text, "disconnected", "reconnect_failed")

    @pytest.mark.thorough
    def test_an_open_publisher_at_exit(self, nats_server, client, unique):
        """
        A program that ends with an open publisher says what may not be stored.
        """
        heading = "messages of a publisher may not be stored"
        script = """
            publisher = jetsync.connect(sys.argv[1]).jetstream().publisher()
            for number in range(10):
                publisher.publish(sys.argv[2])
        """
        # A subscriber that does not answer takes the place of a server that has failed.
        with client.subscribe(unique):
            client.flush()
            _, errors, _ = run_to_exit(script, nats_server.url, unique)
        shows(heading, errors, "jetsync: at exit: 10 messages of a publisher may not be stored")


class TestTimes:
    def test_a_datetime_without_a_zone(self, stream):
        """
        A time without a time zone is refused.
        """
        with pytest.raises(jetsync.InvalidArgumentError) as caught:
            stream.get_at(dt.datetime(2026, 1, 1))  # noqa: DTZ001
        words = "a naive datetime is a different time on another machine"
        shows("needs a time zone", str(caught.value), "needs a time zone", words)

    def test_nanoseconds(self, stream):
        """
        A number that looks like another unit is refused.
        """
        with pytest.raises(jetsync.InvalidArgumentError) as caught:
            stream.create_consumer("worker", ack_wait=30_000_000_000)
        words = "ack_wait must be seconds or a timedelta, and 30000000000 looks like nanoseconds"
        shows("looks like nanoseconds", str(caught.value), words)

    def test_a_clock_that_is_ahead(self, js, stream):
        """
        To a client whose clock is ahead, a stream has no message since a minute ago.
        """
        heading = "No message since a time, although there are some"
        js.publish(f"{stream.name}.a", b"")
        minute = dt.timedelta(minutes=1)
        fast = dt.datetime.now(dt.timezone.utc) + 5 * minute
        with pytest.raises(jetsync.MessageNotFoundError) as caught:
            stream.get_at(fast - minute)
        shows(heading, caught.value, "no message since")
        stored = stream.get_last(f"{stream.name}.a").timestamp
        assert fast - stored > 4 * minute
        names(heading, "`timestamp`", "`get_at`")
