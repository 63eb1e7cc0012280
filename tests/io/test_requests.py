"""
Requests of a connection to a server of which tests write each line.
"""

from __future__ import annotations

import socket
import threading
import time

import pytest

from helpers.scripted_server import LONG, until
from jetsync._base.deadline import Deadline
from jetsync._hooks.manager import Plugins
from jetsync._io import replies as _replies
from jetsync._io.connection import Connection
from jetsync._io.mailbox import Mailbox
from jetsync._proto import frames
from jetsync.client import Client
from jetsync.errors import (
    ConnectionClosedError,
    ConnectionLostError,
    ConnectTimeoutError,
    NoRespondersError,
    PermissionDeniedError,
    RequestTimeoutError,
)
from jetsync.options import ConnectOptions


@pytest.fixture
def connection(server):
    """A connection on the scripted server."""
    options = ConnectOptions(servers=server.url, loop="asyncio", reconnect_wait=0)
    connection = Connection(options, Plugins.load((), {}))
    connection.connect()
    yield connection
    connection.close(LONG)


def inbox_id(peer):
    """Return the id of the reply subscription, which is the first of a connection."""
    return next(line for line in peer.lines if line.startswith(b"SUB")).split()[-1]


def deny_inbox(connection):
    """Return the line by which a server refuses the reply subscription."""
    interest = connection.router.interest
    return b"-ERR 'Permissions Violation for Subscription to \"%b\"'\r\n" % interest


def reply_to(peer, words, payload):
    """Answer a publish on its reply subject."""
    block = (words[2], inbox_id(peer), len(payload), payload)
    peer.send(b"MSG %b %b %d\r\n%b\r\n" % block)


class TestConnectionOnTheWire:
    def test_all_requests_share_one_subscription(self, connection, server):
        """All requests share one subscription for their answers."""
        server.on_publish = lambda peer, words, payload: reply_to(peer, words, payload[::-1])
        for text in (b"abc", b"", b"xyz"):
            frame = connection.exchange(b"a.b", None, text, Deadline.after(LONG))
            assert frame[3] == text[::-1]
        (line,) = server.lines(b"SUB")
        assert line.startswith(b"SUB %b.*  " % connection.inbox.encode())
        assert connection.statistics().requests_in_flight == 0
        assert connection.server.max_payload == 1000

    def test_a_request_without_a_subscriber_raises_no_responders(self, connection, server):
        """If no client serves the subject, the request raises NoRespondersError."""

        def refuse(peer, words, payload):
            block = b"NATS/1.0 503\r\nNats-Subject: a\r\n\r\n"
            sizes = [len(block)] * 2
            peer.send(b"HMSG %b %b %d %d\r\n%b\r\n" % (words[2], inbox_id(peer), *sizes, block))

        server.on_publish = refuse
        with pytest.raises(NoRespondersError, match="'a'"):
            connection.exchange(b"a", None, b"", Deadline.after(LONG))

    def test_a_request_on_a_denied_subject_ends_at_once(self, connection, server):
        """A request whose subject is denied ends at once, although its own thread reads."""

        def deny(peer, words, payload):
            peer.send(b"-ERR 'Permissions Violation for Publish to \"%b\"'\r\n" % words[1])

        server.on_publish = deny
        started = time.monotonic()
        with pytest.raises(PermissionDeniedError) as caught:
            connection.exchange(b"a.b", None, b"", Deadline.after(LONG))
        assert time.monotonic() - started < LONG / 2
        assert (caught.value.subject, caught.value.operation) == ("a.b", "publish")
        assert connection.is_connected

    def test_denied_inbox_in_flight(self, connection, server):
        """If the reply subscription is denied, a request in flight was sent, and later ones not."""
        server.on_publish = lambda peer, words, payload: peer.send(deny_inbox(connection))
        with pytest.raises(PermissionDeniedError, match="the reply to the request is lost") as sent:
            connection.exchange(b"a", None, b"", Deadline.after(LONG))
        assert (sent.value.operation, sent.value.sent) == ("subscribe", True)
        for _ in range(3):
            with pytest.raises(PermissionDeniedError) as refused:
                connection.exchange(b"a", None, b"", Deadline.after(LONG))
            assert (refused.value.operation, refused.value.sent) == ("subscribe", False)
        assert len(server.lines(b"PUB")) == len(server.lines(b"SUB")) == 1
        assert connection.statistics().requests_in_flight == 0

    def test_denied_inbox_again(self, connection, server, monkeypatch):
        """After a pause, a request subscribes again first, and is only sent if that is allowed."""
        monkeypatch.setattr(_replies, "REFUSED_PAUSE", 0.0)
        server.on_publish = lambda peer, words, payload: reply_to(peer, words, b"x")
        server.answers["SUB"] = deny_inbox(connection)
        server.peers[0].send(deny_inbox(connection))
        until(lambda: connection.router.refusal)
        for _ in range(20):
            with pytest.raises(PermissionDeniedError) as refused:
                connection.exchange(b"a", None, b"", Deadline.after(LONG))
            assert not refused.value.sent
        assert not server.lines(b"PUB")
        server.answers.clear()
        assert connection.exchange(b"a", None, b"", Deadline.after(LONG))[3] == b"x"
        (line,) = set(server.lines(b"SUB"))
        assert line.startswith(b"SUB %b.*  " % connection.inbox.encode())

    def test_denied_inbox_after_a_reconnect(self, connection, server):
        """A refusal ends with its connection, whose subscription is not written twice."""
        server.on_publish = lambda peer, words, payload: reply_to(peer, words, b"x")
        server.peers[0].send(deny_inbox(connection))
        until(lambda: connection.router.refusal)
        connection.reconnect(Deadline.after(LONG))
        assert connection.exchange(b"a", None, b"", Deadline.after(LONG))[3] == b"x"
        assert len(server.peers) == 2
        assert len(server.lines(b"SUB")) == 1

    def test_denied_inbox_without_an_answer(self, connection, server, monkeypatch):
        """If the server does not answer whether it accepts replies again, nothing is sent."""
        monkeypatch.setattr(_replies, "REFUSED_PAUSE", 0.0)
        server.peers[0].send(deny_inbox(connection))
        until(lambda: connection.router.refusal)
        server.answers_ping = False
        with pytest.raises(PermissionDeniedError) as refused:
            connection.exchange(b"a", None, b"", Deadline.after(0.03))
        assert not refused.value.sent
        assert not server.lines(b"PUB")
        connection.close(0.0)

    def test_a_request_ends_at_its_deadline_and_leaves_no_waiter(self, connection):
        """A request without an answer ends at its deadline, and leaves no waiter."""
        with pytest.raises(RequestTimeoutError) as caught:
            connection.exchange(b"a", None, b"", Deadline.after(0.03))
        assert (caught.value.subject, caught.value.timeout) == ("a", 0.03)
        assert connection.statistics().requests_in_flight == 0

    def test_a_lost_connection_ends_a_request_at_once(self, connection, server):
        """A lost connection ends a request at once; the next one uses the new connection."""
        server.on_publish = lambda peer, words, payload: peer.sock.shutdown(socket.SHUT_RDWR)
        started = time.monotonic()
        with pytest.raises(ConnectionLostError):
            connection.exchange(b"a", None, b"", Deadline.after(LONG))
        assert time.monotonic() - started < LONG / 2
        server.on_publish = lambda peer, words, payload: reply_to(peer, words, b"back")
        assert connection.exchange(b"a", None, b"", Deadline.after(LONG))[3] == b"back"
        assert connection.statistics().reconnects == 1

    def test_closing_ends_the_requests_in_flight(self, connection, server):
        """Closing ends the requests that are in flight."""
        asked = threading.Event()
        server.on_publish = lambda peer, words, payload: asked.set()
        errors = []

        def ask():
            try:
                connection.exchange(b"a", None, b"", Deadline.after(LONG))
            except ConnectionClosedError as error:
                errors.append(error)

        thread = threading.Thread(target=ask)
        thread.start()
        assert asked.wait(LONG)
        connection.close(LONG)
        thread.join(LONG)
        assert len(errors) == 1
        with pytest.raises(ConnectionClosedError):
            connection.exchange(b"a", None, b"", Deadline.after(LONG))
        connection.close(LONG)

    def test_interrupted_close(self, connection, monkeypatch):
        """If Ctrl-C interrupts a close, the loop closes the connection and ends the thread."""

        def interrupted(deadline, while_closing):
            raise KeyboardInterrupt

        monkeypatch.setattr(connection.session, "flush", interrupted)
        with pytest.raises(KeyboardInterrupt):
            Client(connection).close(timeout=LONG)
        assert connection.closed.wait(LONG)
        until(lambda: not connection.session._bridge._thread.is_alive(), "the end of the thread")

    def test_late_frame(self, connection, server):
        """A mailbox that lingers after its end still gets frames in flight."""
        box = Mailbox(b"x")
        sid = connection.lane.subscriptions.new_sid()
        line = connection.lane.subscriptions.listen(sid, box)
        connection.lane.write(line + frames.pub(b"go", b"", b""), Deadline.after(LONG))
        until(lambda: server.lines(b"SUB x"), "the subscription")
        connection.lane.subscriptions.unsubscribe(sid, grace=LONG)
        server.peers[0].send(b"MSG x %b 0\r\n\r\n" % sid)
        until(lambda: box.frames, "the frame")
        until(lambda: server.lines(b"UNSUB") == [b"UNSUB " + sid], "the end")

    def test_all_attempts_of_the_first_connect_share_a_budget(self, server):
        """The first connect has one budget for all attempts, and leaves no thread."""
        server.manners = ["silent"] * 50
        before = set(threading.enumerate())
        options = ConnectOptions(
            servers=server.url,
            connect_timeout=0.1,
            retry_on_failed_connect=True,
            reconnect_wait=0,
            loop="asyncio",
        )
        connection = Connection(options, Plugins.load((), {}))
        started = time.monotonic()
        with pytest.raises(ConnectTimeoutError) as caught:
            connection.connect()
        assert 0.09 <= time.monotonic() - started < LONG / 2
        assert caught.value.timeout == 0.1
        ours = {one for one in set(threading.enumerate()) - before if "jetsync" in one.name}
        assert ours == set()
