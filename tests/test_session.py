from __future__ import annotations

import copy
import itertools
import json
import threading
import types

import pytest

from jetsync import events
from jetsync._base.deadline import Deadline
from jetsync._hooks.manager import Plugins
from jetsync._io.connection import (
    ClosedInFlightError,
    JetStreamSession,
    Session,
    nats_arguments,
    parse_denied,
    raise_failure,
)
from jetsync._io.mailbox import Mailbox
from jetsync._io.outbox import LaneState
from jetsync.errors import (
    ConnectionClosedError,
    ConnectionLostError,
    DisconnectedError,
    ForkedProcessError,
    MaxPayloadError,
    NoRespondersError,
    PermissionDeniedError,
    ProtocolError,
    RequestTimeoutError,
    StreamNotFoundError,
)
from jetsync.options import ConnectOptions
from jetsync.values.server_info import ServerInfo, decode_json, parse_info

SEED = "SU" + "A" * 56
NO_RESPONDERS = b"NATS/1.0 503\r\nNats-Subject: x\r\n\r\n"


def soon(seconds=10.0):
    """A deadline."""
    return Deadline.after(seconds)


class StubLane:
    """A lane whose server is the test: ``answer`` is called with each block, in the writer."""

    def __init__(self):
        self.state = LaneState.OPEN
        self.epoch = 1
        self.lost_epoch = 0
        self.reason = None
        self.bytes_in, self.bytes_out, self.strays = 5, 7, 3
        self.written, self.posted, self.boxes = [], [], {}
        self.nudges = 0
        self.busy_here = False
        self.answer = lambda block: None
        self._sids = itertools.count(1_000_000)

    def new_sid(self):
        return b"%d" % next(self._sids)

    def listen(self, sid, box, subject, queue=b""):
        self.boxes[sid] = box
        return b"SUB %b %b %b\r\n" % (subject, queue, sid)

    def receivers(self):
        return list(self.boxes.values())

    def write(self, block, deadline, epoch=None):
        self.written.append(block)
        self.answer(block)
        return self.epoch

    def post(self, block, timeout, *, lazy=False):
        self.posted.append((block, timeout))
        return self.epoch

    def wait(self, receiver, deadline):
        return receiver.ready

    def nudge(self):
        self.nudges += 1

    def later(self, seconds, call, *arguments):
        """Leave it to a loop that the stub does not have."""

    def is_busy_here(self):
        return self.busy_here

    def reads_here(self):
        return False

    def close(self, reason):
        self.state, self.reason = LaneState.CLOSED, reason


class Watcher:
    """A dispatcher that keeps the events."""

    def __init__(self):
        self.events = []

    def emit_later(self, event):
        self.events.append(event)

    def close(self, timeout):
        pass


@pytest.fixture
def session():
    """A session on a lane that is a stub."""
    session = Session(ConnectOptions(loop="asyncio"), Plugins.load((), {}))
    session.lane = StubLane()
    session.plugins.dispatcher = Watcher()
    session.lane.listen(session.lane.new_sid(), session.router, session.router.interest)
    return session


@pytest.fixture
def replies(session):
    """Answer every request with what is in this list, one after the other."""
    replies = []

    def answer(block):
        reply = block.split(b" ")[2]
        header, data = replies.pop(0)
        session.router.push((reply, b"", header, data))
        session.router.wake()

    session.lane.answer = answer
    return replies


class TestParseInfo:
    def test_all(self):
        """What a server says of itself is read, and kept whole."""
        raw = {
            "server_id": "NA",
            "server_name": "n1",
            "version": "2.15.1",
            "api_lvl": 5,
            "max_payload": 512,
            "cluster": "C",
            "client_id": 9,
            "headers": True,
            "jetstream": True,
            "domain": "hub",
            "ldm": True,
            "xkey": "X",
        }
        info = parse_info(b"INFO " + json.dumps(raw).encode() + b" \r\n", "nats://h:1")
        assert info == ServerInfo(
            version="2.15.1",
            api_level=5,
            max_payload=512,
            server_id="NA",
            server_name="n1",
            cluster="C",
            url="nats://h:1",
            client_id=9,
            headers=True,
            jetstream=True,
            domain="hub",
            lame_duck=True,
            raw=raw,
        )
        assert info.version_tuple == (2, 15, 1)
        assert "xkey" not in repr(info)

    def test_least(self):
        """An old server says little; what it does not say it does not have."""
        info = parse_info(b'INFO {"version":"2.10.26"}\r\n', None)
        assert (info.api_level, info.headers, info.jetstream, info.url) == (0, False, False, None)
        assert info.max_payload == 1 << 20

    @pytest.mark.parametrize(
        ("version", "numbers"), [("2.12.0-RC.3", (2, 12, 0)), ("", ()), ("2.x.1", (2, 1))]
    )
    def test_versions(self, version, numbers):
        """A pre-release compares as its release."""
        assert ServerInfo(version=version).version_tuple == numbers

    @pytest.mark.parametrize("line", [b"INFO", b"INFO []", b"INFO {", b"INFO \xff{}"])
    def test_garbage(self, line):
        """What is no INFO line is a protocol error."""
        with pytest.raises(ProtocolError):
            parse_info(line, None)

    def test_decode_json(self):
        """A JSON object is read, anything else is a protocol error that shows its start."""
        assert decode_json(b'{"a":1}') == {"a": 1}
        for data in (b"", b"[]", b"x" * 1000, b'"a"'):
            with pytest.raises(ProtocolError) as caught:
                decode_json(data)
            assert len(str(caught.value)) < 200


class TestParseDenied:
    @pytest.mark.parametrize(
        ("text", "found"),
        [
            ("-ERR 'Permissions Violation for Publish to \"a.b\"'", ("publish", "a.b")),
            ("-ERR 'Permissions Violation for Subscription to \"a.>\"'", ("subscribe", "a.>")),
            (
                '-ERR \'Permissions Violation for Subscription to "a" using queue "q"\'',
                ("subscribe", "a"),
            ),
            (
                "-ERR 'Permissions Violation for Publish to \"$JS.API.INFO\"'\r\n",
                ("publish", "$JS.API.INFO"),
            ),
            ("-ERR 'Permissions Violation for Publish with Reply of \"x\"'", None),
            ("-ERR 'Permissions Violation for Publish to \"a", None),
            ("-ERR 'Stale Connection'", None),
            ("", None),
        ],
    )
    def test_texts(self, text, found):
        """The two texts about permissions are understood, and no others."""
        assert parse_denied(text) == found


class TestNatsArguments:
    def test_defaults(self, monkeypatch):
        """Without options nats-py gets ours, not its own."""
        monkeypatch.delenv("NATS_URL", raising=False)
        assert nats_arguments(ConnectOptions()) == {
            "servers": ["nats://127.0.0.1:4222"],
            "name": None,
            "tls": None,
            "tls_hostname": None,
            "tls_handshake_first": False,
            "inbox_prefix": "_INBOX",
            "connect_timeout": 6.0,
            "reconnect_time_wait": 1.0,
            "allow_reconnect": True,
            "max_reconnect_attempts": -1,
            "ping_interval": 30.0,
            "max_outstanding_pings": 2,
            "no_echo": False,
        }

    @pytest.mark.parametrize(
        ("options", "given"),
        [
            ({"name": "n"}, {"name": "n"}),
            ({"inbox_prefix": "_I.me"}, {"inbox_prefix": "_I.me"}),
            ({"max_reconnects": 0}, {"allow_reconnect": False, "max_reconnect_attempts": 0}),
            ({"max_reconnects": 7}, {"allow_reconnect": True, "max_reconnect_attempts": 7}),
            ({"reconnect_wait": 0.25}, {"reconnect_time_wait": 0.25}),
            ({"ping_interval": 3, "max_outstanding_pings": 1}, {"ping_interval": 3.0}),
            ({"echo": False}, {"no_echo": True}),
            ({"connect_timeout": 2}, {"connect_timeout": 3.0}),
            ({"servers": "h,nats://i:1"}, {"servers": ["nats://h:4222", "nats://i:1"]}),
        ],
    )
    def test_each(self, options, given):
        """Each option has its argument."""
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
            {"nkey_seed": SEED},
        ],
    )
    def test_no_login(self, options):
        """nats-py is not told how jetsync logs in."""
        found = nats_arguments(ConnectOptions(**{"servers": "h", **options}))
        assert found == nats_arguments(ConnectOptions(servers="h"))

    def test_tls(self):
        """A scheme that asks for TLS brings a context along."""
        found = nats_arguments(ConnectOptions(servers="tls://h", tls_hostname="x", tls_first=True))
        assert found["tls"] is not None
        assert (found["tls_hostname"], found["tls_handshake_first"]) == ("x", True)


class TestAsk:
    def test_request(self, session, replies):
        """A request is one block with a reply subject of its own; its answer is a frame."""
        replies += [(None, b"one"), (b"NATS/1.0\r\nA: b\r\n\r\n", b"two")]
        assert session.request("a.b", b"xy", soon())[3] == b"one"
        assert session.request("a.b", b"", soon())[2:] == (b"NATS/1.0\r\nA: b\r\n\r\n", b"two")
        inbox = session.inbox.encode()
        assert session.lane.written == [
            b"PUB a.b %b.1 2\r\nxy\r\n" % inbox,
            b"PUB a.b %b.2 0\r\n\r\n" % inbox,
        ]

    def test_headers(self, session, replies):
        """A request may have headers."""
        replies.append((None, b""))
        session.ask(b"a", b"NATS/1.0\r\n\r\n", b"x", soon())
        assert session.lane.written[0].startswith(b"HPUB a ")

    @pytest.mark.parametrize("header", [NO_RESPONDERS, b"NATS/1.0 503\r\n\r\n"])
    def test_no_responders(self, session, replies, header):
        """A 503 without a payload is nobody's answer; with one it is an answer."""
        replies += [(header, b""), (header, b"{}")]
        with pytest.raises(NoRespondersError) as caught:
            session.request("a", b"", soon())
        assert caught.value.subject == "a"
        assert session.request("a", b"", soon())[3] == b"{}"

    def test_raw(self, session, replies):
        """Who asks for the frame gets it, whatever its status."""
        replies.append((NO_RESPONDERS, b""))
        assert session.ask(b"a", None, b"", soon())[2] == NO_RESPONDERS

    def test_timeout(self, session):
        """Silence is a time-out."""
        with pytest.raises(RequestTimeoutError) as caught:
            session.request("a", b"", soon(0.5))
        assert (caught.value.subject, caught.value.timeout) == ("a", 0.5)
        assert session.router.pending() == 0

    def test_lost(self, session):
        """A connection that was lost while waiting is said to be so."""
        session.lane.answer = lambda block: setattr(session.lane, "lost_epoch", 1)
        with pytest.raises(ConnectionLostError, match="'a'"):
            session.request("a", b"", soon())
        assert session.router.pending() == 0

    def test_lost_after_the_answer(self, session, replies):
        """An answer that came before the loss is an answer."""
        replies.append((None, b"x"))
        given = session.lane.answer

        def answer(block):
            given(block)
            session.router.lost(1)
            session.lane.lost_epoch = 1

        session.lane.answer = answer
        assert session.request("a", b"", soon())[3] == b"x"

    def test_denied(self, session):
        """A permission error is given to the request that it is about."""
        session.lane.answer = lambda block: session.on_server_error(
            "-ERR 'Permissions Violation for Publish to \"a\"'"
        )
        with pytest.raises(PermissionDeniedError) as caught:
            session.request("a", b"", soon())
        assert (caught.value.subject, caught.value.operation) == ("a", "publish")
        with pytest.raises(RequestTimeoutError):
            session.request("b", b"", soon())

    def test_closed_in_flight(self, session):
        """A client that is closed meanwhile is told apart from one that was closed before."""
        cause = ValueError("why")

        def close(block):
            error = ConnectionClosedError("it is over")
            error.__cause__ = cause
            session.router.fail(error)

        session.lane.answer = close
        with pytest.raises(ClosedInFlightError, match="it is over") as caught:
            session.request("a", b"", soon())
        assert caught.value.__cause__ is cause

    def test_not_written(self, session):
        """A request that could not be written leaves nothing behind."""

        def fail(block):
            raise DisconnectedError(timeout=1.0)

        session.lane.answer = fail
        with pytest.raises(DisconnectedError):
            session.request("a", b"", soon())
        assert session.router.pending() == 0

    def test_size(self, session):
        """A request larger than the server takes is refused before it is sent."""
        session.on_info(b'INFO {"max_payload":4}\r\n')
        with pytest.raises(MaxPayloadError) as caught:
            session.request("a", b"12345", soon())
        assert (caught.value.size, caught.value.limit) == (5, 4)
        assert session.lane.written == []
        session.check_size(4)
        session.on_info(b'INFO {"max_payload":5}\r\n')
        session.check_size(5)

    def test_closed(self, session):
        """A closed session raises a fresh copy of its reason to each caller."""
        session.on_closed(ValueError("why"))
        errors = []
        for call in (session.check, lambda: session.request("a", b"", soon())) * 2:
            with pytest.raises(ConnectionClosedError, match="why") as caught:
                call()
            errors.append(caught.value)
        assert len(set(map(id, errors))) == 4
        assert not session.is_connected
        assert session.state == "closed"

    def test_forked(self, session):
        """In a forked child nothing is sent."""
        session._bridge.forked = True
        message = types.SimpleNamespace(raw_reply=b"r")
        for call in (
            session.check,
            lambda: session.request("a", b"", soon()),
            lambda: session.ask(b"a", None, b"", soon()),
            lambda: session.acknowledge(message, b"+ACK"),
            lambda: session.acknowledge_sync(message, b"+ACK", 1),
        ):
            with pytest.raises(ForkedProcessError):
                call()
        assert session.lane.written == session.lane.posted == []
        assert not session.is_connected
        assert session.state == "forked"
        session.close(1.0)
        assert session.lane.state is LaneState.OPEN


class TestAcks:
    def test_soon(self, session):
        """An ack is posted, within the time of a request."""
        session.acknowledge(types.SimpleNamespace(raw_reply=b"$JS.ACK.x"), b"+ACK")
        assert session.lane.posted == [(b"PUB $JS.ACK.x  4\r\n+ACK\r\n", 5.0)]

    def test_sync(self, session, replies):
        """An ack may be a request, whose empty answer says that it was stored."""
        replies.append((None, b""))
        session.acknowledge_sync(types.SimpleNamespace(raw_reply=b"$JS.ACK.x"), b"+ACK", None)
        expected = b"PUB $JS.ACK.x %b.1 4\r\n+ACK\r\n" % session.inbox.encode()
        assert session.lane.written == [expected]


class TestListener:
    def test_server_errors(self, session):
        """Mailboxes hear what was refused, and the reading thread looks up."""
        box, other = Mailbox(b"a"), Mailbox(b"b", hears_denials=True)
        session.open_box(b"a", box)
        session.open_box(b"b", other)
        session.on_server_error("-ERR 'Permissions Violation for Subscription to \"a\"'")
        assert isinstance(box.failure, PermissionDeniedError)
        assert (other.failure, session.router.failure) == (None, None)
        session.on_server_error("-ERR 'Permissions Violation for Publish to \"c\"'")
        ((subject, error),) = other.take_denials()
        assert (subject, error.operation) == (b"c", "publish")
        assert session.lane.nudges == 2
        session.on_server_error("-ERR 'Stale Connection'")
        assert [type(event) for event in session.plugins.dispatcher.events] == [
            events.PermissionDeniedEvent,
            events.PermissionDeniedEvent,
        ]

    def test_denied_inbox(self, session):
        """Without the reply subscription no request can be answered."""
        interest = session.router.interest.decode()
        session.on_server_error(f"-ERR 'Permissions Violation for Subscription to \"{interest}\"'")
        with pytest.raises(PermissionDeniedError):
            session.request("a", b"", soon())

    def test_connections(self, session):
        """Losses and reconnects are told in pairs, the first connection not at all."""
        lane = session.lane
        lane.epoch = 0

        def open_lane():
            lane.epoch += 1

        lane.open = open_lane
        session.on_connected()
        for _ in range(2):
            session.on_disconnected()
            session.on_disconnected()
            session.on_connected()
        told = [type(event) for event in session.plugins.dispatcher.events]
        assert told == [events.DisconnectedEvent, events.ReconnectedEvent] * 2
        assert session.reconnects == session.statistics().reconnects == 2

    def test_closed_once(self, session):
        """The end is told once, whoever brings it, and nothing is told after it."""
        session.on_closed(None)
        session.on_closed(ValueError("again"))
        session.on_disconnected()
        (event,) = session.plugins.dispatcher.events
        assert (type(event), event.error) == (events.ClosedEvent, None)

    def test_closed_by_a_signal_handler(self, session):
        """A close in the midst of a close of the same thread leaves it to that one."""
        session.flush = lambda deadline: session.close(1)
        session.close(1)
        assert session.closed.is_set()

    def test_closed_after_an_interrupt(self, session):
        """A close that Ctrl-C ended can be repeated."""

        def interrupted(deadline):
            raise KeyboardInterrupt

        session.flush = interrupted
        with pytest.raises(KeyboardInterrupt):
            session.close(1)
        assert not session.closed.is_set()
        session.flush = lambda deadline: 0.0
        session.close(1)
        assert session.closed.is_set()

    def test_errors(self, session):
        """Errors of no call are told; the ends of connections have events of their own."""
        session.on_error(OSError("reset"))
        session.on_error(EOFError())
        session.on_error(ValueError("odd"))
        (event,) = session.plugins.dispatcher.events
        assert type(event) is events.AsyncErrorEvent

    def test_info(self, session):
        """The server's words are parsed when somebody asks, and once."""
        session.on_info(b'INFO {"version":"2.14.0"}\r\n')
        assert session.server.version == "2.14.0"
        assert session.server is session.server
        session.on_info(b'INFO {"version":"2.15.1"}\r\n')
        assert session.server.version == "2.15.1"

    def test_statistics(self, session):
        """The counters are the lane's."""
        found = session.statistics()
        assert (found.bytes_in, found.bytes_out, found.strays) == (5, 7, 3)
        assert (found.requests_in_flight, found.subscriptions) == (0, 1)


class TestNames:
    def test_inboxes(self, session):
        """Inboxes begin with the session's, and each is new, in any thread."""
        found = []
        threads = [
            threading.Thread(target=lambda: found.extend(session.new_inbox() for _ in range(500)))
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(set(found)) == 2000
        assert all(one.startswith(f"{session.inbox}-") for one in found)

    def test_prefix(self):
        """The inbox has the prefix that was asked for, and no two sessions share one."""
        options = ConnectOptions(inbox_prefix="_I.me", loop="asyncio")
        first, second = (Session(options, Plugins.load((), {})) for _ in range(2))
        assert first.inbox.startswith("_I.me.")
        assert first.inbox != second.inbox

    def test_open_box(self, session):
        """A box is routed before its line is written, so that no frame is missed."""
        box = Mailbox(b"x")
        sid, line = session.open_box(b"x", box, b"q")
        assert session.lane.boxes[sid] is box
        assert line == b"SUB x q %b\r\n" % sid


class TestApi:
    @pytest.fixture
    def api(self, session):
        """The API as one context sees it."""
        return JetStreamSession(session, prefix="$JS.hub.API", domain="hub", default_timeout=3.0)

    @pytest.mark.parametrize(
        ("body", "sent"),
        [
            (None, b""),
            (b"raw", b"raw"),
            ({}, b"{}"),
            ({"a": [1, None], "ü": "é"}, '{"a":[1,null],"ü":"é"}'.encode()),
        ],
    )
    def test_request(self, api, session, replies, body, sent):
        """A request goes to the context's prefix, with a body that is short JSON or as given."""
        replies.append((None, b'{"type":"x","ok":true}'))
        assert api.api("STREAM.INFO.S", body, soon()) == {"type": "x", "ok": True}
        (block,) = session.lane.written
        assert block.startswith(b"PUB $JS.hub.API.STREAM.INFO.S ")
        assert block.endswith(b" %d\r\n%b\r\n" % (len(sent), sent))

    def test_error(self, api, replies):
        """An error is raised by its code."""
        error = {"code": 404, "err_code": 10059, "description": "stream not found"}
        replies.append((None, json.dumps({"type": "x", "error": error}).encode()))
        with pytest.raises(StreamNotFoundError) as caught:
            api.api("STREAM.INFO.S", None, soon())
        assert (caught.value.code, caught.value.err_code) == (404, 10059)

    def test_nonsense(self, api, replies):
        """An answer that is no JSON object is a protocol error."""
        replies += [(None, b"+OK"), (None, b"[]")]
        for _ in range(2):
            with pytest.raises(ProtocolError):
                api.api("INFO", None, soon())

    def test_deadlines(self, api, session):
        """A call without a time has the context's, an ack the client's."""
        assert api.deadline(None).total == 3.0
        assert api.deadline(0.5).total == 0.5
        assert session.deadline(None).total == 5.0
        assert (api.lane, api.plugins) == (session.lane, session.plugins)


class TestRaiseFailure:
    def test_copies(self):
        """Each thread gets an error of its own, with the same data and cause."""
        failure = PermissionDeniedError("a", "publish")
        failure.__cause__ = ValueError("why")
        found = []
        for _ in range(2):
            with pytest.raises(PermissionDeniedError) as caught:
                raise_failure(failure)
            found.append(caught.value)
        assert found[0] is not found[1]
        assert found[0] is not failure
        assert failure.__traceback__ is None
        assert found[0].__dict__ == failure.__dict__
        assert found[0].__cause__ is failure.__cause__
        assert str(copy.copy(failure)) == str(failure)
