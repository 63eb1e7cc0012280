from __future__ import annotations

import json
from collections import Counter

import attrs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from jetsync._proto.open_pulls import OpenPulls
from jetsync._proto.origin import Origin
from jetsync._proto.pins import drop_pin, learn_pin
from jetsync._proto.pull_request import Priorities, PullRequest
from jetsync._proto.status import Effect
from jetsync.testing import ManualClock
from jetsync.values.frame import message_size

INBOX = b"_INBOX.p"
HEADER = b"NATS/1.0\r\nA: b\r\n\r\n"
HEARTBEAT = b"NATS/1.0 100 Idle Heartbeat\r\nNats-Last-Consumer: 1\r\n\r\n"
EXPIRED = (
    b"NATS/1.0 408 Request Timeout\r\nNats-Pending-Messages: 9\r\nNats-Pending-Bytes: 9\r\n\r\n"
)
DELETED = b"NATS/1.0 409 Consumer Deleted\r\n\r\n"
LEADERSHIP = b"NATS/1.0 409 Leadership Change\r\n\r\n"
SHUTDOWN = (
    b"NATS/1.0 409 Server Shutdown\r\nNats-Pending-Messages: 9\r\nNats-Pending-Bytes: 9\r\n\r\n"
)
ABSENT = b"NATS/1.0 503\r\nNats-Subject: x\r\n\r\n"
NEW_NOTE = b"NATS/1.0 299 Something New\r\n\r\n"
NEW_FAULT = b"NATS/1.0 499 Something New\r\n\r\n"
ENDING = [EXPIRED, DELETED, LEADERSHIP, SHUTDOWN, ABSENT, NEW_FAULT]


def message(size=20, header=None):
    """Return a message of a size, as servers count it."""
    reply = b"$JS.ACK.S.C."
    data = b"x" * (size - 2 - len(reply) - len(header or b""))
    frame = (b"or", reply, header, data)
    assert message_size(frame) == size
    return frame


def ended(messages, size=0):
    """Return the status of an expired pull with these remaining counts."""
    text = "NATS/1.0 408 Request Timeout\r\nNats-Pending-Messages: %d\r\nNats-Pending-Bytes: %d"
    return (text % (messages, size)).encode() + b"\r\n\r\n"


def status(pull, block):
    """Return a status on a pull's own subject."""
    return (pull.subject, b"", block, b"")


@pytest.fixture
def clock():
    """A clock that the test moves."""
    return ManualClock()


@pytest.fixture
def engine():
    """An engine without a pull."""
    return OpenPulls(INBOX, Origin("S", "C"))


@pytest.fixture
def pull(engine, clock):
    """Send a pull for ten messages."""
    return engine.open(PullRequest(max_messages=10, expires=5.0, heartbeat=1.0), clock())


class TestRequest:
    def test_only_fields_that_are_set_are_sent(self):
        """Only fields that are set are sent, with times in nanoseconds."""
        assert PullRequest(max_messages=1, expires=0.5).wire == b'{"batch":1,"expires":500000000}'

    def test_every_option_of_a_pull_sets_its_field(self):
        """Every option sets its field."""
        request = PullRequest(
            max_messages=10,
            expires=30.0,
            max_bytes=1000,
            heartbeat=5.0,
            no_wait=True,
            priorities=Priorities("A", 0, 7, 0),
            pin_id="pin",
        )
        assert json.loads(request.wire) == {
            "batch": 10,
            "expires": 30_000_000_000,
            "max_bytes": 1000,
            "no_wait": True,
            "idle_heartbeat": 5_000_000_000,
            "group": "A",
            "min_pending": 0,
            "min_ack_pending": 7,
            "priority": 0,
            "id": "pin",
        }

    def test_made_once(self):
        """The JSON is made once, and again for a changed request."""
        request = PullRequest(max_messages=1, expires=1.0)
        assert request.wire is request.wire
        changed = attrs.evolve(request, max_messages=2)
        assert json.loads(changed.wire)["batch"] == 2

    @pytest.mark.parametrize(("seconds", "sent"), [(0.1 + 0.2, 300_000_000), (1e-9, 1)])
    def test_seconds_are_sent_as_the_intended_decimal_number(self, seconds, sent):
        """Seconds that are not exact in binary are sent as the intended decimal number."""
        assert json.loads(PullRequest(max_messages=1, expires=seconds).wire)["expires"] == sent

    def test_without_expiry(self):
        """A pull that never expires has no expiry field."""
        assert json.loads(PullRequest(max_messages=1, expires=0.0).wire) == {"batch": 1}


def that_ended(received):
    """
    Return the statuses that ended a pull, each with its pull.
    """
    return [(status, pull) for status, pull in received.statuses if pull is not None]


class TestMessages:
    def test_messages_of_a_pull_are_passed_on_and_counted(self, engine, pull, clock):
        """Messages are passed on unchanged and counted."""
        frames = [message(), message(header=HEADER, size=60)]
        received = engine.receive(frames, clock())
        assert list(received.messages) == frames
        assert not that_ended(received)
        assert (engine.pending_messages, engine.pending_bytes) == (8, 0)
        assert repr(engine) == "<OpenPulls open=1 messages=8 bytes=0>"

    def test_a_filled_pull_has_ended(self, engine, pull, clock):
        """A filled pull has ended: servers send nothing more for it."""
        engine.receive([message()] * 9, clock())
        assert not engine.is_idle
        engine.receive([message()], clock())
        assert engine.is_idle
        assert engine.pending_messages == 0

    @pytest.mark.parametrize("header", [None, HEADER])
    def test_subject_reply_headers_and_payload_count_as_bytes(self, engine, clock, header):
        """Subject, reply subject, header block and payload count towards the requested bytes."""
        engine.open(PullRequest(max_messages=100, expires=1.0, max_bytes=100), clock())
        engine.receive([message(60, header)], clock())
        assert (engine.pending_messages, engine.pending_bytes) == (99, 40)

    def test_exact_fit(self, engine, clock):
        """A pull that is filled to the exact byte ends without a status."""
        engine.open(PullRequest(max_messages=100, expires=1.0, max_bytes=92), clock())
        engine.receive([message(92)], clock())
        assert engine.is_idle

    def test_measured_size(self):
        """A message that servers count as 92 bytes has 92 bytes (facts, 3.5)."""
        assert message_size((b"ab", b"r" * 40, None, b"x" * 50)) == 92
        assert message_size((b"ab", b"r" * 40, HEADER, b"x" * 50)) == 92 + len(HEADER)

    def test_oldest_first(self, engine, clock):
        """Messages are counted against the oldest pull that has room."""
        first = engine.open(PullRequest(max_messages=2, expires=1.0), clock())
        second = engine.open(PullRequest(max_messages=2, expires=1.0), clock())
        engine.receive([message()], clock())
        assert (first.messages, second.messages) == (1, 2)
        engine.receive([message()] * 2, clock())
        assert (first.messages, second.messages) == (0, 1)
        assert engine.pending_messages == 1

    def test_the_answers_to_each_pull_have_their_own_subject(self, engine, clock):
        """The answers to each pull have their own subject below the inbox."""
        subjects = [
            engine.open(PullRequest(max_messages=1, expires=1.0), clock()).subject for _ in range(3)
        ]
        assert subjects == [b"_INBOX.p.1", b"_INBOX.p.2", b"_INBOX.p.3"]

    @pytest.mark.parametrize("rest", [[], [(INBOX + b".x", b"", HEARTBEAT, b"")]])
    def test_messages_beyond_the_request_are_surplus(self, engine, pull, clock, rest):
        """Messages that no pull asked for are set aside, and no count becomes negative."""
        frames = [message(20 + number) for number in range(13)]
        received = engine.receive(frames + rest, clock())
        assert (list(received.messages), list(received.surplus)) == (frames[:10], frames[10:])
        assert (engine.pending_messages, engine.is_idle) == (0, True)
        assert engine.strays.fresh
        assert engine.strays.report() == {"foreign": 0, "surplus": 3}
        assert list(engine.receive(frames[:1], clock()).surplus) == frames[:1]

    def test_bytes_beyond_the_request_are_surplus(self, engine, clock):
        """A pull with a limit of bytes takes the message that reaches it, and no other one."""
        engine.open(PullRequest(max_messages=10, max_bytes=100, expires=5.0), clock())
        received = engine.receive([message(60)] * 4, clock())
        assert (len(received.messages), len(received.surplus)) == (2, 2)

    @pytest.mark.parametrize("own", [b"", b"A: b\r\n"])
    def test_the_header_of_a_pinned_client_is_not_counted(self, engine, clock, own):
        """A pull is full when its messages are, without the header that the server adds last."""
        size = 60 + (len(own) + 12 if own else 0)
        # So many that the size of an empty header would make a difference, too.
        engine.open(PullRequest(max_messages=20, max_bytes=9 * size, expires=5.0), clock())
        header = b"NATS/1.0\r\n" + own + b"Nats-Pin-Id: abc\r\n\r\n"
        pinned = message(60 + len(header), header)
        received = engine.receive([pinned] * 10, clock())
        assert (len(received.messages), len(received.surplus)) == (9, 1)

    @pytest.mark.parametrize(("max_bytes", "most"), [(None, 4), (1000, 4), (50, 2)])
    @pytest.mark.parametrize("way", ["lost", "expired", "cleared", "refused for its group"])
    def test_a_pull_that_ended_silently_may_still_be_served(
        self, engine, clock, way, max_bytes, most
    ):
        """Messages of a pull without a status are accepted later, up to what it had asked for."""
        pull = engine.open(PullRequest(max_messages=4, max_bytes=max_bytes, expires=1.0), clock())
        engine.sent(pull, 1)
        if way == "lost":
            engine.lost(1)
        elif way == "expired":
            engine.expire(clock.advance(10))
        elif way == "cleared":
            engine.clear()
        else:
            refusal = b"NATS/1.0 400 Bad Request - Priority Group missing\r\n\r\n"
            engine.receive([status(pull, refusal)], clock())
        assert engine.is_idle
        received = engine.receive([message()] * 6, clock())
        assert (len(received.messages), len(received.surplus)) == (most, 6 - most)

    @pytest.mark.parametrize(("max_bytes", "most"), [(None, 12), (1000, 12), (50, 6)])
    def test_all_pulls_of_lost_connections_may_be_served(self, engine, clock, max_bytes, most):
        """A server that kept the pulls of several lost connections may serve all of them."""
        request = PullRequest(max_messages=4, max_bytes=max_bytes, expires=30.0)
        for epoch in (1, 2, 3):
            engine.sent(engine.open(request, clock.advance(1)), epoch)
            engine.lost(epoch)
        kept = len(engine.sift([message()] * 20))
        received = engine.receive([message()] * 20, clock())
        assert (len(received.messages), len(received.surplus)) == (most, 20 - most)
        assert most <= kept <= 12
        assert engine.receive([message()], clock()).messages == []

    def test_pulls_of_lost_connections_are_forgotten(self, engine, clock):
        """A pull of a lost connection counts no longer if it ended a minute ago."""
        request = PullRequest(max_messages=4, expires=30.0)
        for epoch, seconds in ((1, 0), (2, 89), (3, 1)):
            engine.sent(engine.open(request, clock.advance(seconds)), epoch)
            engine.lost(epoch)
        received = engine.receive([message()] * 20, clock())
        assert len(received.messages) == 8

    @pytest.mark.parametrize("block", [None, HEADER, b"N\r\na: bc\r\n\r\n", b""])
    @pytest.mark.parametrize(
        "reply",
        [
            b"",
            b"reply",
            b"$JS.ACK.S.D.1.1.1.1.0",
            b"$JS.ACK.T.C.1.1.1.1.0",
            b"$JS.ACK.d.h.S.D.1.1.1.1.0",
            b"$JS.ACK.S.C",
        ],
    )
    def test_foreign_frames_are_dropped(self, engine, pull, clock, block, reply):
        """Frames without an ack subject of the consumer are no messages and no sign of life."""
        heard = engine.heard
        foreign = (pull.subject, reply, block, b"+ACK")
        received = engine.receive([foreign], clock.advance(1))
        assert (received.messages, received.surplus, received.alive) == ([], [], False)
        assert (engine.heard, engine.pending_messages) == (heard, 10)
        received = engine.receive([foreign, message(), foreign], clock())
        assert (received.messages, received.alive) == ([message()], True)
        assert engine.heard == clock()
        assert engine.strays.report() == {"foreign": 3, "surplus": 0}
        assert engine.strays.samples == {"foreign": foreign[:2]}

    @pytest.mark.parametrize(("max_bytes", "most"), [(None, 10), (200, 10), (130, 6)])
    def test_a_full_inbox_keeps_what_was_asked_for(self, engine, clock, max_bytes, most):
        """A sifted inbox keeps messages up to the limits, a status once, and answers about it."""
        pull = engine.open(PullRequest(max_messages=10, max_bytes=max_bytes, expires=5), clock())
        foreign = (pull.subject, b"", None, b"+ACK")
        answer = (INBOX + b".i1", b"", None, b"{}")
        end = status(pull, EXPIRED)
        frames = [foreign, message(), answer, foreign, *[message()] * 12, end, end, answer, foreign]
        assert engine.sift(frames) == [message(), answer, *[message()] * (most - 1), end]
        assert (engine.pending_messages, engine.strays.fresh) == (10, False)
        assert engine.sifted.report() == {"foreign": 5, "surplus": 13 - most}

    def test_a_flood_of_statuses_is_dropped(self, engine, pull):
        """Of different statuses, a sifted inbox keeps as many as a server could send."""
        frames = [status(pull, b"NATS/1.0 408 %d\r\n\r\n" % number) for number in range(2000)]
        assert engine.sift(frames) == frames[:1000]
        frames = [status(pull, b"NATS/1.0 408 %d\r\n" % size + bytes(9**6)) for size in range(3)]
        assert engine.sift(frames) == frames[:1]


class TestStatuses:
    @pytest.mark.parametrize("block", ENDING)
    def test_ends_its_pull(self, engine, pull, clock, block):
        """A status that ends its pull leaves nothing pending, with or without counts."""
        received = engine.receive([message(), status(pull, block)], clock())
        assert len(received.messages) == 1
        ((found, _),) = that_ended(received)
        assert found.effect is not Effect.ALIVE
        assert (engine.is_idle, engine.pending_messages) == (True, 0)

    @pytest.mark.parametrize("block", [HEARTBEAT, NEW_NOTE])
    def test_a_heartbeat_changes_nothing_and_is_not_passed_on(self, engine, pull, clock, block):
        """A heartbeat, or an unknown note, changes nothing and is not passed on."""
        received = engine.receive([status(pull, block), message()], clock())
        assert (len(received.messages), list(that_ended(received))) == (1, [])
        assert engine.pending_messages == 9

    def test_the_second_status_of_a_pull_is_ignored(self, engine, pull, clock):
        """The second of two statuses for one pull is ignored, in one block or in two."""
        received = engine.receive([status(pull, SHUTDOWN), status(pull, LEADERSHIP)], clock())
        assert [found.description for found, _ in that_ended(received)] == ["Server Shutdown"]
        second = engine.open(PullRequest(max_messages=5, expires=1.0), clock())
        received = engine.receive([status(pull, LEADERSHIP), message()], clock())
        assert not that_ended(received)
        assert second.messages == engine.pending_messages == 4

    def test_a_status_that_belongs_to_no_pull_is_dropped(self, engine, pull, clock):
        """A status below the inbox that belongs to no pull is dropped."""
        stranger = (INBOX + b".99", b"", EXPIRED, b"")
        received = engine.receive([stranger, message()], clock())
        assert (len(received.messages), list(that_ended(received))) == (1, [])
        assert engine.pending_messages == 9

    def test_frames_before_a_status_count_before_it(self, engine, clock):
        """Frames before a status count before it, and frames after it count after it."""
        first = engine.open(PullRequest(max_messages=2, expires=1.0), clock())
        second = engine.open(PullRequest(max_messages=5, expires=1.0), clock())
        frames = [message(), status(first, ended(1)), message(), message()]
        received = engine.receive(frames, clock())
        assert len(received.messages) == 3
        assert second.messages == engine.pending_messages == 3

    def test_messages_with_headers(self, engine, pull, clock):
        """A message with headers is not a status, whatever its headers are."""
        block = b"NATS/1.0\r\nStatus: 409\r\nNats-Pending-Messages: 5\r\n\r\n"
        received = engine.receive([message(80, block), message(60, HEADER)], clock())
        assert (len(received.messages), list(that_ended(received))) == (2, [])


class TestConnections:
    def test_a_loss_ends_only_the_pulls_of_that_connection(self, engine, clock):
        """A loss ends the pulls that were sent on that connection, and no others."""
        request = PullRequest(max_messages=5, expires=1.0)
        old, new, unsent = (engine.open(request, clock()) for _ in range(3))
        engine.sent(old, 1)
        engine.sent(new, 2)
        assert engine.lost(1) == [old]
        assert engine.pending_messages == 10
        assert engine.lost(1) == []
        assert engine.lost(2) == [new]
        assert engine.lost(99) == []
        engine.remove(unsent)
        engine.remove(unsent)
        assert engine.is_idle

    def test_late_status(self, engine, pull, clock):
        """A status of a pull that ended with its connection is ignored."""
        engine.sent(pull, 1)
        engine.lost(1)
        assert not that_ended(engine.receive([status(pull, EXPIRED)], clock()))


class TestHeartbeats:
    def test_watched_as_asked(self, engine, pull, clock):
        """
        Two intervals of a pull without a frame are a miss; any frame shows that the server works.
        """
        assert engine.next_miss() == clock() + 2.0
        for frame in (message(), status(pull, HEARTBEAT), (INBOX + b".9", b"", EXPIRED, b"")):
            clock.advance(1.75)
            engine.receive([frame], clock())
            assert not engine.missed(clock())
        assert engine.missed(clock.advance(2.0))

    def test_silence_does_not_count_without_heartbeats(self, engine, clock):
        """Silence does not count for a pull without heartbeats."""
        engine.open(PullRequest(max_messages=1, expires=1.0), clock())
        assert engine.next_miss() is None
        assert not engine.missed(clock.advance(1e9))

    @given(st.floats(0.1, 60.0), st.lists(st.floats(0.0, 100.0)))
    @settings(max_examples=50, deadline=None)
    def test_missed_from_when_it_is_due(self, interval, steps):
        """A miss is found at the announced moment, and not before."""
        clock, engine = ManualClock(), OpenPulls(INBOX, Origin("S", "C"))
        engine.open(PullRequest(max_messages=9, expires=1.0, heartbeat=interval), clock())
        for step in steps:
            due = engine.next_miss()
            assert engine.missed(clock.advance(step)) is (clock() >= due)
            engine.heard = clock()


class TestSeveral:
    """Servers serve several pulls in turn, so only the end of one reveals what it has left."""

    def test_more_was_left_than_counted(self, engine, clock):
        """Messages that were counted for a pull and not delivered by it came from the others."""
        first = engine.open(PullRequest(max_messages=10, expires=1.0), clock())
        second = engine.open(PullRequest(max_messages=10, expires=1.0), clock())
        engine.receive([message()] * 8, clock())
        assert (first.messages, second.messages) == (2, 10)
        engine.receive([status(first, ended(6))], clock())
        assert second.messages == engine.pending_messages == 6

    def test_less_was_left_than_counted(self, engine, clock):
        """Messages that a pull delivered beyond its count were wrongly counted for the others."""
        first = engine.open(PullRequest(max_messages=10, expires=1.0), clock())
        second = engine.open(PullRequest(max_messages=10, expires=1.0), clock())
        engine.receive([message()] * 8, clock())
        engine.receive([status(second, ended(6))], clock())
        assert first.messages == engine.pending_messages == 6

    def test_full_by_count_only(self, engine, clock):
        """A pull that is full by our count may end with a rest."""
        first = engine.open(PullRequest(max_messages=4, expires=1.0), clock())
        second = engine.open(PullRequest(max_messages=4, expires=1.0), clock())
        engine.receive([message()] * 4, clock())
        assert (first.messages, first.subject in engine) == (0, True)
        ((found, _),) = that_ended(engine.receive([status(first, ended(2))], clock()))
        assert (found.code, second.messages) == (408, 2)

    def test_room_again(self, engine, clock):
        """A pull that was full by our count has room again if another one delivered its part."""
        first = engine.open(PullRequest(max_messages=4, expires=1.0), clock())
        second = engine.open(PullRequest(max_messages=4, expires=1.0), clock())
        engine.receive([message()] * 4, clock())
        engine.receive([status(second, ended(2))], clock())
        assert (first.messages, engine.pending_messages, engine.is_idle) == (2, 2, False)

    def test_a_full_one_is_remembered_while_others_are_open(self, engine, clock):
        """The end of one pull does not hide how much another one has left, until all are over."""
        first, second, third = (
            engine.open(PullRequest(max_messages=2, expires=1.0), clock()) for _ in range(3)
        )
        engine.receive([message()] * 3, clock())
        engine.receive([status(second, ended(1))], clock())
        assert (first.messages, third.messages) == (0, 2)
        engine.receive([status(first, ended(1))], clock())
        assert third.messages == engine.pending_messages == 1
        engine.receive([status(third, ended(1))], clock())
        assert not engine._full

    def test_the_counts_of_bytes_are_corrected_too(self, engine, clock):
        """The counts of bytes are corrected in the same way."""
        request = PullRequest(max_messages=100, expires=1.0, max_bytes=100)
        first, second = (engine.open(request, clock()) for _ in range(2))
        engine.receive([message(40)] * 3, clock())
        assert (first.size, second.size) == (0, 80)
        engine.receive([status(first, ended(99, 60))], clock())
        assert second.size == engine.pending_bytes == 20

    def test_a_refused_pull_delivered_nothing(self, engine, clock):
        """A refused pull delivered nothing, whatever was counted for it."""
        first = engine.open(PullRequest(max_messages=10, expires=1.0), clock())
        second = engine.open(PullRequest(max_messages=10, expires=1.0), clock())
        engine.receive([message()] * 4, clock())
        engine.receive([status(first, ABSENT)], clock())
        assert second.messages == 6

    def test_all_full(self, engine, clock):
        """If nothing is left, all pulls are full in truth, and a late status is ignored."""
        pulls = [engine.open(PullRequest(max_messages=2, expires=1.0), clock()) for _ in range(3)]
        engine.receive([message()] * 6, clock())
        assert engine.is_idle
        assert not any(pull.subject in engine for pull in pulls)

    def test_a_pull_without_a_status_is_removed_after_its_expiry(self, engine, clock):
        """A pull without a status is removed 2 seconds after its expiry."""
        old = engine.open(PullRequest(max_messages=4, expires=1.0), clock())
        assert engine.next_expiry() == clock() + 3.0
        clock.advance(1.0)
        engine.open(PullRequest(max_messages=4, expires=1.0), clock())
        assert engine.expire(clock.advance(1.9)) == []
        assert engine.expire(clock.advance(0.1)) == [old]
        assert engine.pending_messages == 4
        engine.clear()
        assert (engine.is_idle, engine.next_expiry()) == (True, None)

    def test_pulls_that_are_full_by_our_count_are_forgotten(self, engine, clock):
        """Pulls that are full by our count are forgotten after a while."""
        for _ in range(5000):
            engine.open(PullRequest(max_messages=1, expires=1.0), clock())
        engine.open(PullRequest(max_messages=9000, expires=1.0), clock())
        engine.receive([message()] * 5000, clock())
        assert engine.pending_messages == 9000
        assert len(engine._full) <= 1024


class TestPins:
    def request(self, pin):
        return PullRequest(max_messages=1, expires=1.0, priorities=Priorities("A"), pin_id=pin)

    def test_the_newest_message_gives_the_group_its_pin_id(self):
        """The newest message with a pin id gives the group its id."""
        pins = {}
        headers = [b"NATS/1.0\r\nNats-Pin-Id: %b\r\n\r\n" % pin for pin in (b"old", b"new")]
        learn_pin(pins, "A", [message(100, header) for header in (*headers, HEADER, None)])
        assert pins == {"A": "new"}

    def test_a_refused_pin_id_is_forgotten(self):
        """A refused id is forgotten; an id that arrived since then is kept."""
        pins = {"A": "new", "B": "pin"}
        for pin in ("old", "pin"):
            drop_pin(pins, self.request(pin))
        assert pins == {"A": "new", "B": "pin"}
        drop_pin(pins, self.request("new"))
        assert pins == {"B": "pin"}


class PullMachine(RuleBasedStateMachine):
    """
    Any number of pulls, blocks of messages, statuses with true or false counts, and losses.
    """

    def __init__(self):
        super().__init__()
        self.engine = OpenPulls(INBOX, Origin("S", "C"))
        self.clock = ManualClock()
        self.pulls = {}
        self.told = set()
        self.epoch = 0

    @rule(
        messages=st.integers(1, 12),
        max_bytes=st.none() | st.integers(1, 30).map(lambda count: count * 10),
        sent=st.booleans(),
    )
    def open(self, messages, max_bytes, sent):
        request = PullRequest(max_messages=messages, expires=1.0, max_bytes=max_bytes)
        pull = self.engine.open(request, self.clock())
        if sent:
            self.epoch = max(self.epoch, 1)
            self.engine.sent(pull, self.epoch)
        self.pulls[pull.subject] = pull

    @rule(data=st.data())
    def receive(self, data):
        """Return a block of arbitrary frames."""
        frames, messages = [], []
        kinds = st.sampled_from(["message"] * 3 + ["status", "stranger", "foreign"])
        drawn = data.draw(st.lists(kinds, max_size=12))
        for kind in drawn:
            if kind == "foreign":
                frame = (INBOX + b".1", b"", data.draw(st.sampled_from([None, HEADER])), b"")
            elif kind == "message":
                size = data.draw(st.integers(2, 6)) * 10
                frame = message(size, HEADER if size >= 40 and data.draw(st.booleans()) else None)
                messages.append(frame)
            else:
                subjects = list(self.pulls) if kind == "status" else [INBOX + b".x"]
                if not subjects:
                    continue
                counted = ended(data.draw(st.integers(0, 15)), data.draw(st.integers(0, 300)))
                block = data.draw(st.sampled_from([*ENDING, HEARTBEAT, NEW_NOTE, counted]))
                frame = (data.draw(st.sampled_from(subjects)), b"", block, b"")
            frames.append(frame)
        known = [subject for subject in self.pulls if subject in self.engine]
        late = [pull.messages for pull in self.engine._late]
        room = self.engine.pending_messages + sum(late)
        received = self.engine.receive(frames, self.clock())
        assert Counter([*received.messages, *received.surplus]) == Counter(messages)
        if not {"status", "stranger"} & {*drawn}:
            assert len(received.messages) <= room
            assert [*received.messages, *received.surplus] == messages
        for _, pull in that_ended(received):
            assert pull.subject in known
            assert pull.subject not in self.engine
            assert pull.subject not in self.told
            self.told.add(pull.subject)

    @precondition(lambda self: self.epoch)
    @rule()
    def lose(self):
        for pull in self.engine.lost(self.epoch):
            assert 0 < pull.epoch <= self.epoch
        assert all(not 0 < pull.epoch <= self.epoch for pull in self.engine._pulls())
        self.epoch += 1

    @rule(data=st.data(), seconds=st.floats(0, 2))
    def expire(self, data, seconds):
        self.engine.expire(self.clock.advance(seconds))

    @precondition(lambda self: self.pulls)
    @rule(data=st.data())
    def cancel(self, data):
        pull = data.draw(st.sampled_from(list(self.pulls.values())))
        self.engine.remove(pull)
        assert pull.subject not in self.engine

    @invariant()
    def within_bounds(self):
        """The pending counts are never negative and never more than requested."""
        known = self.engine._pulls()
        assert self.engine.pending_messages >= 0
        assert self.engine.pending_bytes >= 0
        for pull in known:
            assert 0 <= pull.messages <= pull.request.max_messages
            assert pull.size is None or 0 <= pull.size <= pull.request.max_bytes
            assert pull.is_full is (pull.subject in self.engine._full)
        assert self.engine.is_idle is (not self.engine._open)
        assert known or not self.engine._full


TestAnything = PullMachine.TestCase
TestAnything.settings = settings(
    max_examples=40,
    stateful_step_count=20,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
