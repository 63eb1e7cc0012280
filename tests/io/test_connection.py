from __future__ import annotations

import itertools
import json
import sys
import threading
import types

import pytest

from jetsync import events
from jetsync._base.deadline import Deadline
from jetsync._base.failures import raise_failure
from jetsync._hooks.manager import Plugins
from jetsync._io.connection import Connection
from jetsync._io.mailbox import Mailbox
from jetsync._io.outbox import LaneState
from jetsync._io.probe import PING_WAIT, Probe
from jetsync._io.session import Session
from jetsync._io.translate import parse_denied
from jetsync.errors import (
    ConnectError,
    ConnectionClosedError,
    ConnectionLostError,
    DisconnectedError,
    ForkedProcessError,
    MaxPayloadError,
    NoRespondersError,
    PermissionDeniedError,
    ProtocolError,
    RequestTimeoutError,
)
from jetsync.options import ConnectOptions
from jetsync.values.server_info import ServerInfo, decode_json, encode_json, parse_info

NO_RESPONDERS = b"NATS/1.0 503\r\nNats-Subject: x\r\n\r\n"


def soon(seconds=10.0):
    """A deadline."""
    return Deadline.after(seconds)


class StubLane:
    """A lane whose server is the test: the writing thread calls ``answer`` with each block."""

    def __init__(self):
        self.state = LaneState.OPEN
        self.epoch = 1
        self.lost_epoch = 0
        self.unprocessed = b""
        self.bytes_in, self.strays = 5, 3
        self.written, self.posted, self.boxes = [], [], {}
        self.wake_ups = 0
        self.busy_here = False
        self.answer = lambda block: None
        self.outbox = types.SimpleNamespace(
            why_down=None,
            reason=None,
            writes_here=lambda: False,
            bytes_out=7,
            size=0,
            can_send=True,
            wait_open=lambda deadline: self.epoch,
        )
        self.subscriptions = self.reader = self
        self._sids = itertools.count(1_000_000)

    def new_sid(self):
        return b"%d" % next(self._sids)

    def listen(self, sid, box, queue=b""):
        self.boxes[sid] = box
        return b"SUB %b %b %b\r\n" % (box.interest, queue, sid)

    def receivers(self):
        return list(self.boxes.values())

    def count(self):
        return len(self.boxes)

    def why_lost(self, epoch):
        return None

    def check(self, *, while_closing=False):
        if self.outbox.reason is not None:
            raise_failure(self.outbox.reason)

    def write(self, block, deadline, epoch=None, *, pong=None, **options):
        if self.outbox.reason is not None:
            raise_failure(self.outbox.reason)
        self.written.append(block)
        self.answer(block)
        return self.epoch

    def ack(self, reply, timeout):
        if self.outbox.reason is not None:
            raise_failure(self.outbox.reason)
        self.posted.append((reply, timeout))

    def wait(self, receiver, deadline, until=None):
        return receiver.ready

    def wake_reader(self):
        self.wake_ups += 1

    def later(self, seconds, call, *arguments):
        """Do nothing: the stub has no loop."""

    def close(self, reason):
        self.state, self.outbox.reason = LaneState.CLOSED, reason


class Watcher:
    """A dispatcher that records the events."""

    def __init__(self):
        self.events = []

    def emit_later(self, event):
        self.events.append(event)

    def close(self, timeout):
        pass


@pytest.fixture
def connection():
    """A connection on a lane that is a stub."""
    connection = Connection(ConnectOptions(loop="asyncio"), Plugins(dispatcher=Watcher()))
    connection.session.lane = connection.session.state.lane = connection.lane = StubLane()
    connection.lane.subscriptions.listen(connection.lane.subscriptions.new_sid(), connection.router)
    return connection


@pytest.fixture
def replies(connection):
    """Answer each request with the next item of this list."""
    replies = []

    def answer(block):
        reply = block.split(b" ")[2]
        header, data = replies.pop(0)
        connection.router.push((reply, b"", header, data))
        connection.router.wake()

    connection.lane.answer = answer
    return replies


class TestParseInfo:
    def test_the_fields_of_an_info_line_are_decoded(self):
        """The fields of an INFO line are decoded, and the original is kept."""
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

    def test_fields_that_an_old_server_omits_mean_no_feature(self):
        """An old server sends fewer fields, and missing ones mean that it lacks the feature."""
        info = parse_info(b'INFO {"version":"2.10.26"}\r\n', None)
        assert (info.api_level, info.headers, info.jetstream, info.url) == (0, False, False, None)
        assert info.max_payload == 1 << 20

    @pytest.mark.parametrize(
        ("version", "numbers"), [("2.12.0-RC.3", (2, 12, 0)), ("", ()), ("2.x.1", (2, 1))]
    )
    def test_a_pre_release_of_a_server_compares_like_its_release(self, version, numbers):
        """A pre-release compares like its release."""
        assert ServerInfo(version=version).version_tuple == numbers

    @pytest.mark.parametrize("line", [b"INFO", b"INFO []", b"INFO {", b"INFO \xff{}"])
    def test_bytes_that_are_no_info_line_are_a_protocol_error(self, line):
        """Bytes that are not an INFO line are a protocol error."""
        with pytest.raises(ProtocolError):
            parse_info(line, None)

    def test_encode_json(self):
        """Values are encoded without white space, as UTF-8; others raise an error of Python."""
        assert encode_json({"a": ["é", 1, None]}) == '{"a":["é",1,null]}'.encode()
        for value, error in [("\ud800", ValueError), (b"", TypeError), ({(): 1}, TypeError)]:
            with pytest.raises(error):
                encode_json(value)

    def test_decode_json(self):
        """A JSON object is decoded. Anything else is a protocol error that shows its start."""
        assert decode_json(b'{"a":1}') == {"a": 1}
        assert decode_json(b' \n{"a": 1}\r\n') == {"a": 1}
        for data in (b"", b"[]", b"x" * 1000, b'"a"', b'{"a":1}x', b'{"a":1}{"b":2}'):
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
    def test_only_the_two_permission_errors_are_parsed(self, text, found):
        """The two permission errors are parsed, and no other texts."""
        assert parse_denied(text) == found


class TestAsk:
    def test_a_request_is_one_block_with_its_own_reply_subject(self, connection, replies):
        """A request is one block with its own reply subject, and its answer is a frame."""
        replies += [(None, b"one"), (b"NATS/1.0\r\nA: b\r\n\r\n", b"two")]
        assert connection.exchange(b"a.b", None, b"xy", soon())[3] == b"one"
        assert connection.exchange(b"a.b", None, b"", soon())[2:] == (
            b"NATS/1.0\r\nA: b\r\n\r\n",
            b"two",
        )
        inbox = connection.inbox.encode()
        assert connection.lane.written == [
            b"PUB a.b %b.1 2\r\nxy\r\n" % inbox,
            b"PUB a.b %b.2 0\r\n\r\n" % inbox,
        ]

    def test_a_request_may_have_headers(self, connection, replies):
        """A request may have headers."""
        replies.append((None, b""))
        connection.exchange(b"a", b"NATS/1.0\r\n\r\n", b"x", soon())
        assert connection.lane.written[0].startswith(b"HPUB a ")

    @pytest.mark.parametrize("header", [NO_RESPONDERS, b"NATS/1.0 503\r\n\r\n"])
    def test_a_503_is_an_error_only_without_a_payload(self, connection, replies, header):
        """A 503 without a payload is an error. With a payload it is an answer."""
        replies += [(header, b""), (header, b"{}")]
        with pytest.raises(NoRespondersError) as caught:
            connection.exchange(b"a", None, b"", soon())
        assert caught.value.subject == "a"
        assert connection.exchange(b"a", None, b"", soon())[3] == b"{}"

    def test_a_request_without_an_answer_times_out(self, connection):
        """A request without an answer times out."""
        with pytest.raises(RequestTimeoutError) as caught:
            connection.exchange(b"a", None, b"", soon(0.5))
        assert (caught.value.subject, caught.value.timeout) == ("a", 0.5)
        assert connection.router.pending() == 0

    def test_a_request_says_that_its_connection_was_lost(self, connection):
        """The error states that the connection was lost during the wait."""
        connection.lane.answer = lambda block: setattr(connection.lane, "lost_epoch", 1)
        with pytest.raises(ConnectionLostError, match="'a'"):
            connection.exchange(b"a", None, b"", soon())
        assert connection.router.pending() == 0

    def test_lost_after_the_answer(self, connection, replies):
        """An answer that arrived before the loss is returned."""
        replies.append((None, b"x"))
        given = connection.lane.answer

        def answer(block):
            given(block)
            connection.router.lost(1)
            connection.lane.lost_epoch = 1

        connection.lane.answer = answer
        assert connection.exchange(b"a", None, b"", soon())[3] == b"x"

    @pytest.mark.parametrize("ask", [None, lambda: 0.0])
    def test_a_late_answer_after_a_request_that_was_not_processed(self, connection, ask):
        """
        A request that a lost connection has not carried is sent again, also if its answer is late.
        """
        lane = connection.lane

        def answer(block):
            reply = block.split()[2]
            lane.epoch = len(lane.written)
            if lane.epoch == 1:
                lane.lost_epoch, lane.unprocessed = 1, reply
            elif lane.epoch == 3:
                connection.router.push((reply, b"", None, b"x"))
                connection.router.wake()

        lane.answer = answer
        assert connection.exchange(b"a", None, b"", soon(), late=0.0, ask=ask)[3] == b"x"
        assert len(lane.written) == 3

    def test_a_read_whose_connection_is_lost_each_time(self, connection):
        """
        A server that drops each connection at once does not exhaust the stack of the caller.
        """
        lane, attempts = connection.lane, 2 * sys.getrecursionlimit()

        def answer(block):
            lane.epoch = len(lane.written)
            if lane.epoch < attempts:
                lane.lost_epoch = lane.epoch
            else:
                connection.router.push((block.split()[2], b"", None, b"x"))
                connection.router.wake()

        lane.answer = answer
        assert connection.exchange(b"a", None, b"", soon(60.0), late=60.0)[3] == b"x"
        assert len(lane.written) == attempts
        assert connection.router.pending() == 0

    def test_a_permission_error_ends_the_request_that_it_names(self, connection):
        """A permission error ends the request whose subject it names."""
        connection.lane.answer = lambda block: connection.session.state.on_server_error(
            "-ERR 'Permissions Violation for Publish to \"a\"'"
        )
        with pytest.raises(PermissionDeniedError) as caught:
            connection.exchange(b"a", None, b"", soon())
        assert (caught.value.subject, caught.value.operation) == ("a", "publish")
        with pytest.raises(RequestTimeoutError):
            connection.exchange(b"b", None, b"", soon())

    def test_the_error_says_that_the_call_was_closed_in_flight(self, connection):
        """
        The error distinguishes a client that was closed during the call from one closed before.
        """
        cause = ValueError("why")

        def close(block):
            error = ConnectionClosedError("it is over")
            error.__cause__ = cause
            connection.router.fail(error)

        connection.lane.answer = close
        with pytest.raises(ConnectionClosedError, match="it is over") as caught:
            connection.exchange(b"a", None, b"", soon())
        assert caught.value.sent
        assert caught.value.__cause__ is cause

    def test_not_written(self, connection):
        """A request that could not be written leaves no waiter in the mailbox."""

        def fail(block):
            raise DisconnectedError(timeout=1.0)

        connection.lane.answer = fail
        with pytest.raises(DisconnectedError):
            connection.exchange(b"a", None, b"", soon())
        assert connection.router.pending() == 0

    def test_a_request_over_the_servers_limit_is_not_sent(self, connection):
        """A request larger than the server's limit is refused before it is sent."""
        connection.session.state.on_info(ServerInfo(max_payload=4))
        with pytest.raises(MaxPayloadError) as caught:
            connection.exchange(b"a", None, b"12345", soon())
        assert (caught.value.size, caught.value.limit) == (5, 4)
        assert connection.lane.written == []
        connection.check_size(4)
        connection.session.state.on_info(ServerInfo(max_payload=5))
        connection.check_size(5)

    def test_each_caller_gets_its_own_error_of_a_closed_connection(self, connection):
        """A closed connection raises a new copy of its error to each caller."""
        connection.session.state.on_closed(ValueError("why"))
        errors = []
        for call in (connection.check, lambda: connection.exchange(b"a", None, b"", soon())) * 2:
            with pytest.raises(ConnectionClosedError, match="why") as caught:
                call()
            errors.append(caught.value)
        assert len(set(map(id, errors))) == 4
        assert not connection.is_connected
        assert connection.state == "closed"

    def test_a_forked_child_sends_no_request(self, connection):
        """A forked child sends nothing."""
        connection.session.forked = True
        connection.lane.outbox.reason = ForkedProcessError()
        message = types.SimpleNamespace(raw_reply=b"r")
        for call in (
            connection.check,
            lambda: connection.exchange(b"a", None, b"", soon()),
            lambda: connection.exchange(b"a", None, b"", soon()),
            lambda: connection.acknowledge(message, b"+ACK"),
            lambda: connection.acknowledge_sync(message, b"+ACK", 1),
        ):
            with pytest.raises(ForkedProcessError):
                call()
        assert connection.lane.written == connection.lane.posted == []
        assert not connection.is_connected
        assert connection.state == "forked"
        connection.close(1.0)
        assert connection.lane.state is LaneState.OPEN


class TestAcks:
    def test_an_ack_is_collected_and_waits_for_a_connection(self, connection):
        """An ack is collected, and waits for a connection as long as a request would."""
        connection.acknowledge(types.SimpleNamespace(raw_reply=b"$JS.ACK.x"), b"+ACK")
        assert connection.lane.posted == [(b"$JS.ACK.x", 5.0)]

    def test_everything_but_acks_is_written_at_once(self, connection):
        """Everything else is written at once."""
        connection.acknowledge(types.SimpleNamespace(raw_reply=b"$JS.ACK.x"), b"-NAK")
        assert connection.lane.written == [b"PUB $JS.ACK.x  4\r\n-NAK\r\n"]

    def test_an_ack_that_is_a_request_gets_an_empty_answer(self, connection, replies):
        """An ack may be a request, whose empty answer confirms that it was stored."""
        replies.append((None, b""))
        connection.acknowledge_sync(types.SimpleNamespace(raw_reply=b"$JS.ACK.x"), b"+ACK", None)
        expected = b"PUB $JS.ACK.x %b.1 4\r\n+ACK\r\n" % connection.inbox.encode()
        assert connection.lane.written == [expected]


class ProbedLane(StubLane):
    """A lane that records delayed calls, and the bytes that the server's system confirmed."""

    def __init__(self):
        super().__init__()
        self.calls, self.aborted, self.confirmed, self.input = [], 0, 0, False
        self.outbox.bytes_out = 1000

    def later(self, seconds, call, *arguments):
        self.calls.append((seconds, call, arguments))

    def run(self):
        """Make the next delayed call, and return its delay in seconds."""
        seconds, call, arguments = self.calls.pop(0)
        call(*arguments)
        return seconds

    def delivered(self):
        return self.confirmed

    def has_input(self):
        return self.input

    def abort(self):
        self.aborted += 1


def probed(connection):
    """Give a connection a lane that can be probed."""
    connection.session.lane = connection.session.state.lane = connection.lane = ProbedLane()
    return connection.lane


class TestProbe:
    @pytest.fixture
    def lane(self, connection):
        """The lane of a connection that has just been probed."""
        lane = probed(connection)
        connection.probe()
        connection.probe()
        assert lane.run() == 0.0
        assert lane.written == [b"PING\r\n"]
        return lane

    def test_a_connection_that_stays_silent_is_dropped(self, lane):
        """If no PING is answered within the probe's time, the connection is dropped."""
        assert lane.run() == PING_WAIT
        assert (lane.aborted, lane.written) == (0, [b"PING\r\n"] * 2)
        assert lane.run() == PING_WAIT
        assert (lane.aborted, lane.calls) == (1, [])

    @pytest.mark.parametrize("pings", [0, 1])
    @pytest.mark.parametrize("sign", [{"bytes_in": 6}, {"input": True}, {"epoch": 2}])
    def test_received_bytes_show_that_the_peer_is_alive(self, lane, sign, pings):
        """Received bytes, whether read or not, and a new connection show that the peer is alive."""
        for _ in range(pings):
            lane.run()
        for name, value in sign.items():
            setattr(lane, name, value)
        lane.run()
        assert (lane.aborted, lane.calls) == (0, [])

    def test_an_answer_during_the_write(self, connection, monkeypatch):
        """Another thread may read the PONG before the write of the PING returns."""
        lane = probed(connection)

        def write(*_, **__):
            lane.bytes_in += 6

        monkeypatch.setattr(lane, "write", write)
        connection.probe()
        lane.run()
        lane.run()
        assert lane.aborted == 0

    def test_a_long_upload(self, lane):
        """While the server's system confirms bytes, the PING may still be queued in the upload."""
        for confirmed in (100, 200, 300):
            lane.confirmed = confirmed
            lane.run()
            assert lane.aborted == 0
        lane.run()
        lane.run()
        assert lane.aborted == 1

    def test_an_upload_that_waits_in_the_client(self, connection):
        """Bytes that the socket has not taken yet belong to the upload, too."""
        lane = probed(connection)
        lane.confirmed, lane.outbox.size = lane.outbox.bytes_out, 500
        connection.probe()
        lane.run()
        for confirmed in (1100, 1200, 1300):
            lane.confirmed = confirmed
            lane.run()
        assert lane.aborted == 0

    def test_later_writes(self, connection):
        """What was sent after the PING does not count as progress."""
        lane = probed(connection)
        lane.confirmed = lane.outbox.bytes_out
        connection.probe()
        lane.run()
        lane.confirmed += 50
        lane.run()
        lane.run()
        assert (lane.aborted, lane.calls) == (1, [])

    @pytest.mark.parametrize(
        ("options", "times"),
        [
            ({}, [30, 0, 1, 1]),
            ({"ping_interval": 5, "max_outstanding_pings": 4}, [5, 0, 1, 1, 1, 1]),
            ({"ping_interval": 0.25}, [0.25, 0, 0.25, 0.25]),
        ],
    )
    def test_a_watched_connection(self, options, times):
        """
        Whatever the threads wait for, a silent connection ends ``ping_interval`` and a second for
        each of ``max_outstanding_pings`` after its last byte.
        """
        lane, passed = ProbedLane(), []
        Probe(ConnectOptions(**options)).watch(lane, "nats://a:1")
        while not lane.aborted:
            # The next probe follows the one that ends the connection.
            lane.calls.sort(key=lambda call: call[1].__name__ == "_tick")
            passed.append(lane.run())
        assert passed == times

    def test_each_connection_is_watched_until_its_end(self, connection):
        """A connection is probed every ``ping_interval`` seconds, and its successor likewise."""
        lane = probed(connection)
        lane.open = lambda: None
        connection.session.state.on_connected()
        assert lane.run() == 30
        assert sorted(call[0] for call in lane.calls) == [0, 30]
        lane.epoch += 1
        while lane.calls:
            lane.run()
        connection.session.state.on_connected()
        assert [call[0] for call in lane.calls] == [30]


class TestListener:
    def test_each_reason_once(self, connection, caplog):
        """Each reason why connecting fails is logged once, and kept for errors."""
        connection.session.state.on_disconnected()
        for reason in ("one", "one", "two"):
            connection.session.state.on_error(ConnectError(reason))
        assert [record.fields["reason"] for record in caplog.records] == ["one", "two"]
        assert connection.lane.outbox.why_down == "two"

    def test_server_errors(self, connection):
        """Mailboxes learn of refusals, and the reading thread wakes up."""
        box, other = Mailbox(b"a"), Mailbox(b"b", collect_denials=True)
        connection.lane.subscriptions.listen(b"1", box)
        connection.lane.subscriptions.listen(b"2", other)
        connection.session.state.on_server_error(
            "-ERR 'Permissions Violation for Subscription to \"a\"'"
        )
        assert isinstance(box.failure, PermissionDeniedError)
        assert (other.failure, connection.router.failure) == (None, None)
        connection.session.state.on_server_error(
            "-ERR 'Permissions Violation for Publish to \"c\"'"
        )
        ((subject, error),) = other.take_denials()
        assert (subject, error.operation) == (b"c", "publish")
        assert connection.lane.wake_ups == 2
        connection.session.state.on_server_error("-ERR 'Stale Connection'")
        assert [type(event) for event in connection.plugins.dispatcher.events] == [
            events.PermissionDeniedEvent,
            events.PermissionDeniedEvent,
        ]

    def test_denied_inbox(self, connection):
        """Without permission for the reply subscription, every request fails."""
        interest = connection.router.interest.decode()
        connection.session.state.on_server_error(
            f"-ERR 'Permissions Violation for Subscription to \"{interest}\"'"
        )
        with pytest.raises(PermissionDeniedError):
            connection.exchange(b"a", None, b"", soon())

    def test_plugins_get_losses_and_reconnects_in_pairs(self, connection):
        """Plugins get losses and reconnects in pairs. The first connection is no event."""
        lane = connection.lane
        lane.epoch = 0

        def open_lane():
            lane.epoch += 1

        lane.open = open_lane
        connection.session.state.on_connected()
        for _ in range(2):
            connection.session.state.on_disconnected()
            connection.session.state.on_disconnected()
            connection.session.state.on_connected()
        told = [type(event) for event in connection.plugins.dispatcher.events]
        assert told == [events.DisconnectedEvent, events.ReconnectedEvent] * 2
        assert connection.statistics().reconnects == 2

    def test_closed_once(self, connection):
        """Plugins get one event about the end, whatever causes it, and no event after it."""
        connection.session.state.on_closed(None)
        connection.session.state.on_closed(ValueError("again"))
        connection.session.state.on_disconnected()
        (event,) = connection.plugins.dispatcher.events
        assert (type(event), event.error) == (events.ClosedEvent, None)

    def test_closed_after_an_interrupt(self, connection):
        """A close that Ctrl-C interrupted can be repeated."""

        def interrupted(deadline, while_closing):
            raise KeyboardInterrupt

        connection.session.flush = interrupted
        with pytest.raises(KeyboardInterrupt):
            connection.close(1)
        assert not connection.closed.is_set()
        connection.session.flush = lambda deadline, while_closing: 0.0
        connection.close(1)
        assert connection.closed.is_set()

    def test_plugins_get_server_errors_that_belong_to_no_call(self, connection):
        """
        Plugins get server errors that belong to no call. Lost connections have their own events.
        """
        connection.session.state.on_error(OSError("reset"))
        connection.session.state.on_error(EOFError())
        connection.session.state.on_error(ValueError("odd"))
        (event,) = connection.plugins.dispatcher.events
        assert type(event) is events.AsyncErrorEvent

    def test_the_counters_of_a_connection_come_from_the_lane(self, connection):
        """The counters come from the lane."""
        found = connection.statistics()
        assert (found.bytes_in, found.bytes_out, found.strays) == (5, 7, 3)
        assert (found.requests_in_flight, found.subscriptions) == (0, 1)


class TestSession:
    @pytest.mark.parametrize("had_tls", [True, False])
    def test_a_forked_child_requires_tls_like_its_parent(self, had_tls):
        """The session of a child requires TLS if its parent had a connection with TLS."""
        options = ConnectOptions(loop="asyncio")
        parent = Session(options, Plugins())
        parent.state.had_tls = had_tls
        assert Session(options, Plugins(), parent).state.had_tls is had_tls


class TestNames:
    def test_each_inbox_is_new_and_starts_with_the_prefix(self, connection):
        """Inboxes start with the connection's prefix, and each is new, in any thread."""
        found = []
        threads = [
            threading.Thread(
                target=lambda: found.extend(connection.new_inbox() for _ in range(500))
            )
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(set(found)) == 2000
        assert all(one.startswith(f"{connection.inbox}-") for one in found)

    def test_no_two_connections_share_an_inbox_prefix(self):
        """The inbox has the configured prefix, and no two connections share one."""
        options = ConnectOptions(inbox_prefix="_I.me", loop="asyncio")
        first, second = (Connection(options, Plugins.load((), {})) for _ in range(2))
        assert first.inbox.startswith("_I.me.")
        assert first.inbox != second.inbox
