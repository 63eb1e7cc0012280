"""
Connections that have become silent without being closed.
"""

from __future__ import annotations

import contextlib
import time

import pytest

import jetsync
from helpers.connections import client_of
from helpers.streams import fill
from helpers.waiting import at_some_pace, eventually, timed
from jetsync._io.connection import Connection
from jetsync._io.session import Session
from jetsync.testing import CutProxy

PING_INTERVAL = 60.0
"""Seconds between the pings that a client sends anyway; two may stay unanswered."""


@pytest.fixture
def probes(monkeypatch):
    """
    The times at which the client probed a late connection.
    """
    times = []
    monkeypatch.setattr(Connection, "probe", lambda _: times.append(time.monotonic()))
    return times


@pytest.fixture
def js(proxy):
    """
    JetStream through the proxy.
    """
    with jetsync.connect(proxy.url) as client:
        yield client.jetstream(timeout=20)
        proxy.resume()


@pytest.fixture
def stream(js, unique):
    """
    A stream that accepts fast ingest.
    """
    yield js.create_stream(unique, subjects=[f"{unique}.>"], storage="memory", allow_batched=True)
    js.delete_stream(unique, timeout=20)


def publish_many(js, subject):
    """
    Publish a message with others in flight.
    """
    js.publish_many([(subject, b"late")], ack_timeout=0.5, retries=0)


def publisher(js, subject):
    """
    Publish a message with a publisher.
    """
    with js.publisher(ack_timeout=0.5, retries=0) as publisher:
        publisher.publish(subject, b"late").result()


class TestProbe:
    """A wait that ends without the expected frame probes the connection."""

    @pytest.mark.parametrize("options", [{"heartbeat": 0.5}, {"heartbeat": 0}])
    def test_a_fetch_probes_if_the_pull_does_not_end(self, proxy, stream, probes, options):
        """
        A fetch probes after two missed heartbeats, or if the server does not end the pull.
        """
        consumer = stream.create_consumer("C")
        batch = consumer.fetch(1, expires=1.5, **options)
        proxy.pause()
        with pytest.raises((jetsync.NoHeartbeatError, jetsync.RequestTimeoutError)):
            list(batch)
        assert len(probes) == 1
        proxy.resume()

    @pytest.mark.parametrize("ordered", [False, True])
    def test_a_consumption_probes_after_two_missed_heartbeats(self, proxy, stream, probes, ordered):
        """
        A consumption probes after two missed heartbeats.
        """
        source = stream.ordered_consumer() if ordered else stream.create_consumer("C")
        with source.consume(expires=2, heartbeat=0.5) as messages:
            assert messages.next(timeout=0) is None
            proxy.pause()
            assert messages.next(timeout=2) is None
            assert probes
            proxy.resume()

    @pytest.mark.parametrize("publish", [publish_many, publisher])
    def test_a_window_probes_if_an_ack_is_late(self, proxy, js, stream, probes, publish):
        """
        A window probes if an ack is late.
        """
        proxy.pause()
        with pytest.raises((jetsync.PublishManyError, jetsync.PublishOutcomeUnknownError)):
            publish(js, f"{stream.name}.a")
        assert probes
        proxy.resume()

    def test_a_fast_publisher_probes_if_nothing_is_answered(self, proxy, js, stream, probes):
        """
        A fast publisher probes if a batch does not begin, or the commit is not answered.
        """
        subject = f"{stream.name}.a"
        with contextlib.suppress(jetsync.JetSyncError), js.fast_publisher(timeout=20) as late:
            late.add(subject)
            proxy.pause()
            with pytest.raises(jetsync.PublishOutcomeUnknownError):
                late.commit(timeout=0.5)
        assert len(probes) == 1
        late = js.fast_publisher(timeout=0.5)
        with pytest.raises(jetsync.PublishOutcomeUnknownError):
            late.add(subject)
        assert len(probes) == 2
        proxy.resume()

    def test_a_flush_probes_if_its_pong_is_late(self, proxy, js, probes, monkeypatch):
        """
        A flush probes if the server does not confirm it in time.
        """
        client = client_of(js)
        monkeypatch.setattr(Session, "probe", lambda _: probes.append(time.monotonic()))
        proxy.pause()
        with pytest.raises(jetsync.WaitTimeoutError):
            client.flush(timeout=0.1)
        assert len(probes) == 1
        proxy.resume()

    def test_nothing_is_late(self, js, stream, probes):
        """
        The connection is not probed while all answers are in time.
        """
        subject = f"{stream.name}.a"

        def attempt(pace):
            probes.clear()
            stream.purge()
            fill(js, stream, 3)
            js.publish_many([(subject, b"4")], ack_timeout=0.5 * pace, retries=0)
            consumer = stream.create_consumer(f"C{pace}")
            assert len(list(consumer.fetch(10, expires=2 * pace, heartbeat=0.5 * pace))) == 4
            assert not probes

        at_some_pace(attempt)


class TestReconnect:
    """The client reconnects long before its regular pings would detect the loss."""

    @pytest.fixture
    def silenced(self, nats_server, unique):
        """
        A client whose connection can be silenced, while another path to the server stays open.
        """
        with CutProxy(nats_server.url) as one, CutProxy(nats_server.url) as other:
            by_url = {proxy.url: proxy for proxy in (one, other)}
            with jetsync.connect(
                list(by_url), reconnect_wait=0.05, connect_timeout=4, ping_interval=PING_INTERVAL
            ) as client:
                js = client.jetstream(timeout=20)
                stream = js.create_stream(unique, subjects=[unique], storage="memory")

                def silence():
                    by_url[client.server.url].pause()

                yield client, stream, silence
                for proxy in by_url.values():
                    proxy.resume()
                js.delete_stream(unique, timeout=20)

    def test_under_consume(self, silenced, nats_server, unique):
        """
        A consumption continues over another connection without losing a message.
        """
        client, stream, silence = silenced
        # The server may deliver the message on the silent connection, and again after this time.
        consumer = stream.create_consumer("C", ack_wait=1)
        with consumer.consume(expires=4, heartbeat=1) as messages:
            assert messages.next(timeout=0) is None
            silence()
            with jetsync.connect(nats_server.url) as publishing:
                publishing.jetstream().publish(unique, b"1")
            with timed(0, PING_INTERVAL / 2):
                assert messages.next(timeout=PING_INTERVAL).data == b"1"
        assert client.statistics().reconnects == 1

    def test_under_publish(self, silenced, unique):
        """
        After the first publish without an ack, the next ones work again.
        """
        client, _stream, silence = silenced
        js = client.jetstream()
        silence()
        with timed(0, PING_INTERVAL / 2):
            with pytest.raises(jetsync.PublishOutcomeUnknownError):
                js.publish(unique, b"1", timeout=2)
            eventually(lambda: client.statistics().reconnects == 1, PING_INTERVAL / 3)
            js.publish(unique, b"2", timeout=20)


WAIT = 2
"""Seconds of a wait, which is repeated on a machine that is late: far more than the pings need."""


def watch(js, stream):
    """
    Wait for changes of a bucket.
    """
    with js.create_or_update_key_value("silent", storage="memory").watch() as changes:
        yield lambda: changes.next(timeout=WAIT)


def consume(js, stream):
    """
    Wait for messages of a consumption.
    """
    with stream.create_consumer("C").consume() as messages:
        yield lambda: messages.next(timeout=WAIT)


def ordered(js, stream):
    """
    Wait for messages of an ordered consumption.
    """
    with stream.ordered_consumer().consume() as messages:
        yield lambda: messages.next(timeout=WAIT)


def fetch(js, stream):
    """
    Wait for the messages of a fetch.
    """
    consumer = stream.create_consumer("C")
    yield lambda: list(consumer.fetch(1, expires=WAIT))


def subscription(js, stream):
    """
    Wait for messages of a core subscription.
    """
    with client_of(js).subscribe("quiet") as messages:
        yield lambda: messages.next(timeout=WAIT)


def flush(js, stream):
    """
    Flush again and again, with timeouts that are too short for an answer.
    """
    yield lambda: client_of(js).flush(timeout=0.01)


def request(js, stream):
    """
    Wait for the answer to a request.
    """
    yield lambda: js.account_info(timeout=WAIT)


def idle(js, stream):
    """
    Call nothing.
    """
    yield lambda: time.sleep(0.05)


@pytest.mark.parametrize(
    "wait", [consume, ordered, watch, fetch, subscription, flush, request, idle]
)
def test_pings_detect_silence_under_every_wait(proxy, unique, wait, caplog):
    """
    Whatever the threads wait for, the pings of the client detect a silent connection.
    """
    with jetsync.connect(proxy.url, ping_interval=0.2, reconnect_wait=0.05) as client:
        js = client.jetstream(timeout=20)
        stream = js.create_stream(unique, subjects=[unique], storage="memory")
        waiting = contextlib.contextmanager(wait)(js, stream)
        with contextlib.suppress(jetsync.JetSyncError), waiting as call:
            proxy.pause()
            before = client.statistics().reconnects

            def detected():
                with contextlib.suppress(jetsync.JetSyncError):
                    call()
                return "silent" in caplog.text

            eventually(detected)
            proxy.resume()
            eventually(lambda: client.statistics().reconnects > before)
        js.delete_stream(unique, timeout=20)
