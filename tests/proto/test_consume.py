from __future__ import annotations

import json
from collections import deque

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helpers.consuming import options
from helpers.examples import RUNS
from jetsync import errors
from jetsync._proto.consume import ConsumeEngine
from jetsync._proto.consumer_probe import read_gone
from jetsync._proto.open_pulls import OpenPulls
from jetsync._proto.origin import Origin
from jetsync._proto.pull_request import Priorities
from jetsync._proto.pull_size import UNBOUNDED_BATCH
from jetsync.events import PullOutcome
from jetsync.testing import ManualClock
from jetsync.values.frame import message_size

INBOX = b"_INBOX.c"
HEARTBEAT = b"NATS/1.0 100 Idle Heartbeat\r\nNats-Last-Consumer: 1\r\n\r\n"
GONE = b'{"error":{"code":404,"err_code":10014,"description":"consumer not found"}}'
WELL = b'{"name":"C","num_waiting":0}'


def block(text, messages=None, size=None):
    """Return a status's header block, with or without the server's counts."""
    counts = ""
    if messages is not None:
        counts = f"Nats-Pending-Messages: {messages}\r\nNats-Pending-Bytes: {size or 0}\r\n"
    return f"NATS/1.0 {text}\r\n{counts}\r\n".encode()


def message(number=0, size=40, header=None):
    """Return a message of a size, as servers count it."""
    data = b"%d" % number
    reply = b"$JS.ACK.S.C."
    rest = size - 2 - len(reply) - len(header or b"") - len(data)
    return (b"or", reply, header, data + b" " * rest)


class Rig:
    """An engine with a clock and the pulls that it sent."""

    def __init__(self, **changes):
        self.clock = ManualClock()
        self.pins = {}
        pulls = OpenPulls(INBOX, Origin("S", "C"))
        self.engine = ConsumeEngine(pulls, options(**changes), self.pins)
        self.engine.back(self.clock())
        self.pulls = []

    def send(self):
        """Send the pull that is due, and return it."""
        sent = []
        while (request := self.engine.next_pull(self.clock())) is not None:
            pull = self.engine.pulls.open(request, self.clock())
            self.engine.pulls.sent(pull, 1)
            sent.append(pull)
        self.pulls += sent
        return sent

    def asked(self):
        """Send the pulls that are due, and return how many messages each requests."""
        return [pull.request.max_messages for pull in self.send()]

    def receive(self, *frames):
        return self.engine.receive(list(frames), self.clock())

    def status(self, text, *counts, pull=None):
        """Pass a status of the last pull or another one, and return the outcome."""
        pull = pull or self.pulls[-1]
        ((_, outcome),) = self.receive((pull.subject, b"", block(text, *counts), b""))
        return outcome

    def take(self, count):
        for _ in range(count):
            self.engine.buffer.popleft()


class TestFilling:
    def test_the_buffer_is_filled_to_its_limit(self):
        """At the threshold a pull is due, for as much as the buffer lacks."""
        rig = Rig()
        assert rig.asked() == [10]
        rig.receive(*[message()] * 10)
        assert (rig.asked(), rig.engine.low_mark()) == ([], 5)
        rig.take(4)
        assert rig.asked() == []
        rig.take(1)
        assert rig.asked() == [5]
        assert rig.engine.low_mark() == 0
        rig.take(1)
        rig.receive(message())
        assert rig.asked() == []

    def test_pulls_that_ask_for_the_same_share_their_json(self):
        """The JSON of a pull is made once, also for several consumptions."""
        one, other, longer = Rig(), Rig(), Rig(expires=60.0)
        ((first,), (second,), (third,)) = one.send(), other.send(), longer.send()
        assert first.request.wire is second.request.wire
        assert third.request.wire != first.request.wire

    def test_a_buffer_of_one_message_pulls_one_at_a_time(self):
        """With a buffer of one message, each pull requests one."""
        rig = Rig(max_messages=1, threshold=0)
        for _ in range(3):
            assert rig.asked() == [1]
            rig.receive(message())
            assert (rig.asked(), rig.engine.low_mark()) == ([], 0)
            rig.take(1)

    def test_buffered_messages_count(self):
        """If no messages are taken, no further pull is sent."""
        rig = Rig()
        rig.send()
        rig.receive(*[message()] * 10)
        rig.clock.advance(1000)
        assert rig.engine.look(rig.clock()) is None
        assert rig.asked() == []

    def test_messages_count_until_they_are_handled(self):
        """
        With a handler, a limit in messages also counts those that its threads have taken.
        """
        rig = Rig(max_messages=3, threshold=3, threads=3)
        assert rig.asked() == [3]
        rig.receive(*[message()] * 3)
        for worker in range(3):
            rig.engine.note_busy(worker)
            rig.take(1)
        assert (rig.asked(), rig.engine.low_mark()) == ([], 0)
        rig.engine.note_idle(0)
        assert rig.engine.low_mark() == 1
        assert rig.asked() == [1]
        # Two are being handled, and one is on its way.
        assert rig.engine.low_mark() == 0
        rig.engine.note_idle(1)
        assert rig.asked() == [1]

    def test_a_thread_that_takes_the_next_message_stays_busy(self):
        """
        A thread that takes one message after the other counts once, and the buffer shrinks.
        """
        rig = Rig(max_messages=9, threshold=5, threads=1)
        assert rig.asked() == [9]
        rig.receive(*[message()] * 9)
        rig.engine.note_busy(0)
        rig.take(4)
        assert (rig.asked(), rig.engine.low_mark(), len(rig.engine.buffer)) == ([], 4, 5)
        rig.take(1)
        assert rig.asked() == [4]

    def test_bytes_that_are_being_handled_do_not_count(self):
        """
        With a handler, a limit in bytes does not count the messages that its threads have taken.
        """
        rig = Rig(max_messages=UNBOUNDED_BATCH, max_bytes=400, threshold=200, threads=3)
        rig.send()
        rig.receive(*[message()] * 10)
        rig.engine.note_busy(0)
        rig.take(10)
        assert len(rig.asked()) == 1

    @pytest.mark.parametrize(
        "limits", [{}, {"max_messages": UNBOUNDED_BATCH, "max_bytes": 400, "threshold": 200}]
    )
    def test_parked_messages_count(self, limits):
        """A message that was taken and parked counts as if it were still in the buffer."""
        rig = Rig(**limits)
        rig.send()
        rig.receive(*[message()] * 10)
        taken = [rig.engine.buffer.popleft() for _ in range(5)]
        for frame in taken:
            rig.engine.park(frame)
        assert (rig.asked(), rig.engine.low_mark()) == ([], 0)
        for frame in taken:
            rig.engine.unpark(frame)
        assert rig.engine.low_mark() == 5
        assert len(rig.asked()) == 1

    def test_bytes_are_counted_as_servers_do(self):
        """Bytes are counted as servers do, and requested up to the limit."""
        rig = Rig(max_messages=UNBOUNDED_BATCH, max_bytes=400, threshold=200)
        (pull,) = rig.send()
        assert (pull.request.max_messages, pull.request.max_bytes) == (UNBOUNDED_BATCH, 400)
        rig.receive(*[message(size=100)] * 3)
        assert rig.send() == []
        # 300 are buffered and 100 in flight: down to one message, which is 100 and 100.
        assert rig.engine.low_mark() == 1
        rig.take(2)
        (pull,) = rig.send()
        assert pull.request.max_bytes == 200

    def test_a_message_that_did_not_fit_the_rest_of_a_pull(self):
        """At the threshold a pull is due, because it asks for more than that rest."""
        rig = Rig(max_messages=UNBOUNDED_BATCH, max_bytes=400, threshold=200)
        rig.send()
        rig.receive(*[message(size=90)] * 4)
        rig.status("409 Message Size Exceeds MaxBytes", UNBOUNDED_BATCH - 4, 40)
        assert (rig.send(), rig.engine.low_mark()) == ([], 2)
        rig.take(2)
        (pull,) = rig.send()
        assert pull.request.max_bytes == 220

    def test_a_pull_that_delivered_nothing(self):
        """The next pull asks for as much as possible, not for a few bytes more."""
        rig = Rig(max_messages=UNBOUNDED_BATCH, max_bytes=400, threshold=200)
        rig.send()
        rig.receive(*[message(size=90)] * 4)
        size = "409 Message Size Exceeds MaxBytes"
        rig.status(size, UNBOUNDED_BATCH - 4, 40)
        rig.take(2)
        rig.send()
        assert rig.status(size, UNBOUNDED_BATCH, 220) is PullOutcome.ENDED
        rig.take(1)
        assert (rig.send(), rig.engine.low_mark()) == ([], 0)
        rig.take(1)
        (pull,) = rig.send()
        assert pull.request.max_bytes == 400

    def test_a_message_that_does_not_fit_yet(self):
        """The next pull waits until it asks for more, so that refusals do not repeat quickly."""
        rig = Rig(max_messages=UNBOUNDED_BATCH, max_bytes=400, threshold=200)
        rig.send()
        rig.receive(*[message(size=100)])
        size = "409 Message Size Exceeds MaxBytes"
        assert rig.status(size, UNBOUNDED_BATCH - 1, 300) is PullOutcome.ENDED
        assert (rig.send(), rig.engine.low_mark()) == ([], 0)
        rig.take(1)
        (pull,) = rig.send()
        assert pull.request.max_bytes == 400

    def test_a_message_that_never_fits(self):
        """A message that is larger than the whole buffer ends the consumption."""
        rig = Rig(max_messages=UNBOUNDED_BATCH, max_bytes=400, threshold=200)
        rig.send()
        size = "409 Message Size Exceeds MaxBytes"
        assert rig.status(size, UNBOUNDED_BATCH, 400) is PullOutcome.FAILED
        assert isinstance(rig.engine.error, errors.MessageSizeExceedsMaxBytesError)

    def test_pulls_request_no_more_than_stop_after_leaves(self):
        """
        Pulls request no more messages than ``stop_after`` leaves, and further messages are refused.
        """
        rig = Rig(stop_after=13)
        assert rig.asked() == [10]
        rig.receive(*[message()] * 10)
        rig.take(10)
        assert rig.asked() == [3]
        rig.receive(*[message(number) for number in range(4)])
        assert (len(rig.engine.buffer), rig.engine.is_ending) == (3, True)
        assert rig.engine.take_refused() == [message(3)]
        assert rig.asked() == []

    def test_the_limit_of_the_consumer(self):
        """Pulls keep to the consumer's limit, which a refusal reveals."""
        assert Rig(max_batch=2).asked() == [2, 2, 2]
        rig = Rig()
        rig.send()
        assert rig.status("409 Exceeded MaxRequestBatch of 4") is PullOutcome.RETRIED
        assert rig.asked() == []
        rig.clock.advance(0.1)
        assert rig.asked() == [4, 4]


class TestEnding:
    def test_no_pull_follows_a_drain(self):
        """A draining engine sends no pull, and its messages can still be taken."""
        rig = Rig()
        rig.send()
        rig.receive(message(1), message(2))
        rig.engine.drain()
        assert (rig.asked(), rig.engine.is_ending) == ([], True)
        assert rig.engine.take_all() == [message(1), message(2)]
        assert rig.engine.take_all() == []

    def test_refused_messages_are_taken_once(self):
        """Messages beyond ``stop_after`` are given out once, to be given back to the server."""
        rig = Rig(stop_after=1)
        rig.send()
        rig.receive(message(1), message(2))
        assert rig.engine.take_refused() == [message(2)]
        assert rig.engine.take_refused() == []
        assert rig.engine.take_all() == [message(1)]

    def test_closing_takes_what_is_left(self):
        """All messages that were not handed out are taken at once, the refused ones first."""
        rig = Rig(stop_after=1)
        rig.send()
        rig.receive(message(1), message(2))
        assert rig.engine.take_all() == [message(2), message(1)]
        assert rig.engine.take_all() == []

    def test_a_forked_child_has_no_messages(self):
        """In a forked child the engine ends with the error and hands out no message."""
        rig = Rig()
        rig.send()
        rig.receive(message())
        error = errors.ForkedProcessError()
        rig.engine.after_fork(error)
        assert (rig.engine.error, rig.engine.take_all(), rig.asked()) == (error, [], [])
        with pytest.raises(IndexError):
            rig.engine.buffer.popleft()


class TestStatuses:
    @pytest.mark.parametrize(
        ("text", "kind"),
        [
            ("409 Consumer Deleted", errors.ConsumerDeletedError),
            ("409 Consumer is push based", errors.NotPullConsumerError),
            ("400 Bad Request - Priority Group missing", errors.InvalidGroupError),
            ("400 Bad Request", errors.BadPullRequestError),
            ("412 Required Api Level", errors.RequiredApiLevelError),
        ],
    )
    def test_a_permanent_refusal_ends_the_consumption(self, text, kind):
        """A permanent refusal ends the consumption, and buffered messages can still be taken."""
        rig = Rig()
        rig.send()
        rig.receive(message())
        assert rig.status(text) is PullOutcome.FAILED
        assert type(rig.engine.error) is kind
        assert (len(rig.engine.buffer), rig.asked(), rig.engine.low_mark()) == (1, [], 0)

    @pytest.mark.parametrize(
        "text",
        [
            "409 Leadership Change",
            "409 Server Shutdown",
            "409 Exceeded MaxWaiting",
            "409 Exceeded MaxRequestExpires of 2s",
            "499 Something New",
        ],
    )
    def test_temporary_refusals(self, text):
        """After a temporary refusal there is a pause, which grows until messages arrive."""
        rig = Rig()
        pauses = []
        for _ in range(6):
            assert rig.asked() == [10]
            assert rig.status(text) is PullOutcome.RETRIED
            start = rig.clock()
            assert rig.engine.next_pull(start) is None
            rig.clock.advance(rig.engine.next_look() - start)
            rig.engine.look(rig.clock())
            pauses.append(round(rig.clock() - start, 3))
        assert pauses == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
        rig.send()
        rig.receive(message())
        rig.status(text)
        assert round(rig.engine.next_look() - rig.clock(), 3) == 0.1

    def test_several_at_once(self):
        """A new leader ends all pulls at once, which causes only one pause."""
        rig = Rig(max_batch=2)
        pulls = rig.send()
        for pull in pulls:
            rig.status("409 Leadership Change", pull=pull)
        rig.clock.advance(0.1)
        assert rig.asked() == [2, 2, 2]

    def test_an_expired_pull_is_replaced_at_once(self):
        """
        A pull that expires is followed by another one at once, for as much as the buffer lacks.
        """
        rig = Rig()
        rig.send()
        rig.receive(*[message()] * 3)
        rig.clock.advance(30.0)
        assert rig.status("408 Request Timeout", 7, 0) is PullOutcome.ENDED
        assert rig.asked() == [7]

    def test_expired_at_once(self):
        """A pull that ends empty long before its time is followed by a pause."""
        rig = Rig()
        rig.send()
        assert rig.status("408 Request Timeout", 10, 0) is PullOutcome.ENDED
        assert rig.asked() == []
        rig.clock.advance(0.1)
        assert rig.asked() == [10]

    def test_a_wait_that_is_over(self):
        """After the wait that follows a refused pull, no other look is due."""
        rig = Rig()
        rig.send()
        rig.status("503")
        rig.clock.advance(rig.engine.next_look() - rig.clock())
        assert rig.engine.look(rig.clock()) is None
        assert rig.engine.next_look() is None

    def test_without_responders_the_info_is_requested_once(self):
        """If no server answers, the consumer's info is requested once per attempt."""
        rig = Rig()
        rig.send()
        assert rig.status("503") is PullOutcome.RETRIED
        subject = rig.engine.probe_due(rig.clock())
        assert subject.startswith(INBOX + b".i")
        assert rig.engine.probe_due(rig.clock()) is None
        rig.receive((subject, b"", block("503"), b""))
        rig.clock.advance(0.1)
        assert rig.asked() == [10]
        rig.status("503")
        assert rig.engine.probe_due(rig.clock()) not in {None, subject}

    def test_a_consumption_of_a_deleted_consumer_ends(self):
        """A consumer or a stream that no longer exists ends the consumption."""
        rig = Rig()
        rig.send()
        rig.status("503")
        rig.receive((rig.engine.probe_due(rig.clock()), b"", None, GONE))
        assert isinstance(rig.engine.error, errors.ConsumerNotFoundError)
        stream = b'{"error":{"code":404,"err_code":10059,"description":"stream not found"}}'
        assert isinstance(read_gone(stream), errors.StreamNotFoundError)

    @pytest.mark.parametrize("answer", [WELL, b"", b'{"error":{}}', b'{"error":null}'])
    def test_not_gone(self, answer):
        """After any other answer, the consumer may still exist."""
        assert read_gone(answer) is None

    @pytest.mark.parametrize("answer", [b"{", b"[]", b'{"error":1}', b"[" * 100_000, b"\xff"])
    def test_an_invalid_answer(self, answer):
        """An invalid answer ends the consumption."""
        rig = Rig()
        rig.send()
        rig.status("503")
        rig.receive((rig.engine.probe_due(rig.clock()), b"", None, answer))
        assert isinstance(rig.engine.error, errors.ProtocolError)


class TestSilence:
    def test_a_miss(self):
        """Two missed heartbeats are reported, and the consumer's info is requested."""
        rig = Rig()
        rig.send()
        rig.clock.advance(9.9)
        assert rig.engine.look(rig.clock()) is None
        assert rig.engine.next_look() == rig.pulls[0].opened + 10.0
        rig.clock.advance(0.1)
        assert rig.engine.look(rig.clock()) == pytest.approx(10.0)
        assert rig.engine.misses == 1
        assert rig.engine.probe_due(rig.clock()) is not None
        assert rig.engine.look(rig.clock()) is None
        rig.clock.advance(10.0)
        assert rig.engine.look(rig.clock()) == pytest.approx(20.0)

    def test_forgotten_pulls(self):
        """If the consumer exists and its pulls stay silent, the server has lost them."""
        rig = Rig()
        rig.send()
        rig.clock.advance(10.0)
        rig.engine.look(rig.clock())
        rig.receive((rig.engine.probe_due(rig.clock()), b"", None, WELL))
        rig.clock.advance(0.9)
        rig.engine.look(rig.clock())
        assert rig.asked() == []
        rig.clock.advance(0.1)
        rig.engine.look(rig.clock())
        assert rig.asked() == [10]

    def test_a_late_sign_of_life(self):
        """A paused server keeps its pulls."""
        rig = Rig()
        (pull,) = rig.send()
        rig.clock.advance(10.0)
        rig.engine.look(rig.clock())
        probe = rig.engine.probe_due(rig.clock())
        rig.receive((probe, b"", None, WELL), (pull.subject, b"", HEARTBEAT, b""))
        rig.clock.advance(6.0)
        rig.engine.look(rig.clock())
        assert (rig.asked(), rig.engine.pulls.pending_messages) == ([], 10)

    def test_well_without_silence(self):
        """An info request after a 503 does not decide about a pull that was sent meanwhile."""
        rig = Rig()
        rig.send()
        assert rig.status("503") is PullOutcome.RETRIED
        probe = rig.engine.probe_due(rig.clock())
        rig.clock.advance(1.0)
        rig.send()
        rig.receive((probe, b"", None, WELL))
        rig.clock.advance(1.0)
        rig.engine.look(rig.clock())
        assert (rig.asked(), rig.engine.pulls.pending_messages) == ([], 10)

    def test_silence_does_not_count_while_the_driver_is_away(self):
        """Silence does not count while the driver was away."""
        rig = Rig()
        rig.send()
        rig.engine.leave(rig.clock())
        rig.clock.advance(20.0)
        rig.engine.back(rig.clock())
        assert rig.engine.look(rig.clock()) is None
        rig.clock.advance(10.0)
        assert rig.engine.look(rig.clock()) is not None

    def test_away_repeatedly(self):
        """A lost pull is also noticed by a driver that only runs now and then."""
        rig = Rig()
        rig.send()
        for _ in range(4):
            rig.engine.leave(rig.clock())
            rig.clock.advance(6.0)
            rig.engine.back(rig.clock())
            if rig.engine.look(rig.clock()) is not None:
                break
        assert rig.engine.misses == 1

    def test_nothing_is_open(self):
        """Without an open pull, silence does not count."""
        rig = Rig()
        rig.send()
        rig.receive(*[message()] * 10)
        rig.clock.advance(60.0)
        assert rig.engine.look(rig.clock()) is None

    def test_a_pull_without_a_status(self):
        """A pull without a status is removed some time after it expired."""
        rig = Rig()
        rig.send()
        rig.engine.leave(rig.clock())
        rig.clock.advance(32.0)
        rig.engine.back(rig.clock())
        assert rig.engine.look(rig.clock()) is None
        assert rig.asked() == [10]


class TestConnections:
    def test_a_loss(self):
        """All pulls end with their connection, and one new pull replaces them."""
        rig = Rig(max_batch=None)
        rig.send()
        rig.receive(*[message()] * 7)
        rig.take(7)
        assert rig.asked() == [7]
        rig.engine.lost(1, rig.clock())
        assert rig.engine.pulls.is_idle
        assert rig.engine.pulls.pending_messages == 0
        assert rig.asked() == [10]

    def test_a_refused_pull_is_sent_at_once_on_the_next_connection(self):
        """The wait after a refused pull ends with its connection."""
        rig = Rig()
        rig.send()
        rig.status("503")
        assert rig.asked() == []
        assert rig.engine.next_look() > rig.clock()
        rig.engine.lost(1, rig.clock())
        assert rig.engine.next_look() is None
        assert rig.asked() == [10]


class TestLimits:
    def test_a_shorter_time(self):
        """
        A refusal reveals the consumer's limit for the expiry, and the heartbeat is at most half.
        """
        rig = Rig()
        rig.send()
        assert rig.status("409 Exceeded MaxRequestExpires of 2s") is PullOutcome.RETRIED
        assert rig.engine.refusals == 1
        rig.clock.advance(1.0)
        (pull,) = rig.send()
        assert (pull.request.expires, pull.request.heartbeat) == (2.0, 1.0)
        rig.receive(message())
        assert rig.engine.refusals == 0


class TestPins:
    HEADER = b"NATS/1.0\r\nNats-Pin-Id: forged\r\nNats-Pin-Id: real\r\n\r\n"

    def pinned(self, header=HEADER):
        rig = Rig(priorities=Priorities("A"))
        rig.send()
        rig.receive(*[message(size=100, header=header)] * 10)
        rig.take(10)
        return rig

    @pytest.mark.parametrize("header", [HEADER, b"NATS/1.0\r\nA: bNats-Pin-Id: real\r\n\r\n"])
    def test_every_pull_has_the_first_pin_id_of_the_server(self, header):
        """
        Every pull after the server's first pin id contains it, also if it follows an open line.
        """
        rig = self.pinned(header)
        (pull,) = rig.send()
        assert json.loads(pull.request.wire)["id"] == "real"
        assert json.loads(rig.pulls[0].request.wire).get("id") is None
        # All uses of the consumer share it.
        assert rig.pins == {"A": "real"}

    def test_pulls_drop_the_pin_once_another_client_has_it(self):
        """Once another client is pinned, pulls continue without the id at once."""
        rig = self.pinned()
        rig.send()
        assert rig.status("423 Nats-Wrong-Pin-Id", 10, 0) is PullOutcome.RETRIED
        (pull,) = rig.send()
        assert "id" not in json.loads(pull.request.wire)
        assert rig.engine.error is None

    def test_only_in_groups(self):
        """Without a group, the header is the publisher's and ignored."""
        rig = Rig()
        rig.send()
        rig.receive(*[message(size=100, header=self.HEADER)] * 10)
        assert rig.pins == {}


class Server:
    """
    A server that serves its waiting pulls in turn, one message each, and always tells the truth.
    """

    def __init__(self, total, sizes):
        self.stored = deque((number, sizes[number % len(sizes)]) for number in range(total))
        self.waiting = deque()
        self.wire = []

    def outstanding(self):
        return sum(pull["messages"] for pull in self.waiting)

    def outstanding_bytes(self):
        return sum(pull["size"] or 0 for pull in self.waiting)

    def take(self, pull, now):
        request = pull.request
        entry = {"pull": pull, "messages": request.max_messages, "size": request.max_bytes}
        self.waiting.append({**entry, "until": now + request.expires})

    def say(self, entry, text, *, counts):
        pending = (entry["messages"], entry["size"] or 0) if counts else ()
        self.wire.append((entry["pull"].subject, b"", block(text, *pending), b""))

    def deliver(self, count):
        """Deliver up to that many messages."""
        while count and self.stored and self.waiting:
            number, size = self.stored[0]
            entry = self.waiting.popleft()
            if entry["size"] is not None and size > entry["size"]:
                self.say(entry, "409 Message Size Exceeds MaxBytes", counts=True)
                continue
            self.stored.popleft()
            self.wire.append(message(number, size))
            count -= 1
            entry["messages"] -= 1
            if entry["size"] is not None:
                entry["size"] -= size
            if entry["messages"] == 0 and entry["size"]:
                self.say(entry, "409 Batch Completed", counts=True)
            elif entry["messages"] and entry["size"] != 0:
                self.waiting.append(entry)

    def expire(self, now):
        for entry in [entry for entry in self.waiting if now >= entry["until"]]:
            self.waiting.remove(entry)
            self.say(entry, "408 Request Timeout", counts=True)

    def beat(self):
        self.wire += [(entry["pull"].subject, b"", HEARTBEAT, b"") for entry in self.waiting]

    def end_all(self, text, *, counts, twice=False):
        for entry in self.waiting:
            self.say(entry, text, counts=counts)
            if twice:
                self.say(entry, "409 Leadership Change", counts=False)
        self.waiting.clear()


class World:
    """
    An engine and a server whose events a sequence of bytes selects, in any order.
    """

    def __init__(self, tape):
        self.tape = iter(tape)
        limit = self.draw(9) + 1
        by_bytes = self.draw(3) == 0
        sizes = [20 + 10 * self.draw(5) for _ in range(3)]
        changes = {"max_messages": limit, "threshold": self.draw(limit)}
        if by_bytes:
            largest = max(60, 60 * limit)
            changes = {"max_messages": UNBOUNDED_BATCH, "max_bytes": largest}
            changes["threshold"] = self.draw(largest)
        self.stop_after = self.draw(30) + 1 if self.draw(3) == 0 else None
        self.total = 40
        self.server = Server(self.total, sizes)
        self.rig = Rig(**changes, stop_after=self.stop_after)
        self.engine = self.rig.engine
        self.limit = self.engine.options.max_bytes or limit
        self.by_bytes = by_bytes
        self.honest = True
        """Whether every pull that was lost had a status. Otherwise counts are guesses."""

        self.taken = []

    def draw(self, bound):
        return next(self.tape, 0) % bound

    def check(self):
        """The conditions that hold at every moment."""
        engine, server = self.engine, self.server
        pulls = engine.pulls
        in_wire = [frame for frame in server.wire if frame[1]]
        if self.by_bytes:
            held = sum(map(message_size, engine.buffer), engine.parked_bytes)
            pending = pulls.pending_bytes
            truth = held + sum(map(message_size, in_wire)) + server.outstanding_bytes()
        else:
            held = len(engine.buffer)
            pending = pulls.pending_messages
            truth = held + len(in_wire) + server.outstanding()
        assert pending >= 0
        assert held + pending <= self.limit or not self.honest
        if self.honest:
            assert truth <= self.limit
        for pull in pulls._pulls():
            assert 0 <= pull.messages <= pull.request.max_messages
            assert pull.size is None or 0 <= pull.size <= pull.request.max_bytes
        if self.stop_after is not None:
            assert engine.admitted <= self.stop_after
        assert engine.low_mark() >= -1

    def send(self, refuse=None):
        for pull in self.rig.send():
            if refuse is None:
                self.server.take(pull, self.rig.clock())
            elif refuse:
                entry = {"pull": pull, "messages": 0, "size": 0}
                self.server.say(entry, refuse, counts=False)
            else:
                self.honest = False
        probe = self.engine.probe_due(self.rig.clock())
        if probe is not None and refuse is None:
            self.server.wire.append((probe, b"", None, WELL))

    def read(self, count=None):
        wire = self.server.wire
        count = len(wire) if count is None else count
        frames, self.server.wire = wire[:count], wire[count:]
        if frames:
            self.engine.receive(frames, self.rig.clock())

    def take(self, count):
        for _ in range(min(count, len(self.engine.buffer))):
            frame = self.engine.buffer.popleft()
            self.taken.append(int(frame[3]))

    def pass_time(self, seconds):
        self.rig.clock.advance(seconds)
        self.server.expire(self.rig.clock())
        if seconds >= 5.0:
            self.server.beat()

    def step(self):
        action = self.draw(16)
        if action <= 3:
            self.send()
        elif action <= 5:
            self.server.deliver(self.draw(6) + 1)
        elif action <= 7:
            self.read(self.draw(6) + 1)
        elif action == 8:
            self.read()
        elif action <= 10:
            self.take(self.draw(6) + 1)
        elif action == 11:
            self.pass_time((0.05, 1.0, 10.0, 31.0)[self.draw(4)])
        elif action == 12:
            self.read()
            self.engine.look(self.rig.clock())
        else:
            self.trouble(self.draw(6))

    def trouble(self, kind):
        server = self.server
        if kind == 0:
            server.end_all("409 Leadership Change", counts=False)
        elif kind == 1:
            server.end_all("409 Server Shutdown", counts=True, twice=True)
        elif kind == 2:
            refusal = ("503", "409 Exceeded MaxWaiting", "499 New")[self.draw(2)]
            self.send(refusal)
        elif kind == 3:
            # The connection is lost, with everything in flight.
            server.waiting.clear()
            lost = [int(frame[3]) for frame in server.wire if frame[1]]
            server.wire = []
            sizes = dict.fromkeys(lost, 20)
            server.stored.extendleft(sorted(sizes.items(), reverse=True))
            self.engine.lost(1, self.rig.clock())
        elif kind == 4:
            # A status of a pull that ended long ago, and one of an unknown pull.
            for number in (1, 99_999):
                subject = b"%b.%d" % (INBOX, number)
                if self.engine.pulls.opened and subject not in self.engine.pulls:
                    server.wire.append((subject, b"", block("408 Request Timeout", 5, 50), b""))
        # A leader that steps down forgets the newest pull silently.
        elif server.waiting:
            server.waiting.pop()
            self.honest = False

    def finish(self):
        """Once all faults are over, all messages arrive within a bounded time."""
        wanted = self.total if self.stop_after is None else min(self.stop_after, self.total)
        for _ in range(400):
            if len(self.taken) >= wanted:
                break
            self.read()
            self.engine.look(self.rig.clock())
            self.send()
            self.server.deliver(8)
            self.read()
            self.take(8)
            self.check()
            moment = self.engine.next_look()
            if not self.server.stored or not self.server.waiting:
                self.pass_time(max((moment or 0) - self.rig.clock(), 0.05))
        assert self.engine.error is None
        assert sorted(set(self.taken)) == sorted(self.taken)
        assert len(self.taken) == wanted
        if self.stop_after is None:
            assert sorted(self.taken) == list(range(self.total))


@given(st.binary(min_size=20, max_size=200))
@settings(
    max_examples=RUNS,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
def test_all_messages_arrive_within_the_limit_whatever_happens(tape):
    """
    Whatever happens, the messages in flight and in the buffer keep to the limit, and all stored
    messages arrive.
    """
    world = World(tape)
    for _ in range(len(tape) // 2):
        world.step()
        world.check()
    world.finish()


class TestLastDeliveries:
    """Messages that the server would give up if they were given back."""

    REPLY = "$JS.ACK.S.C.%d.%d.1.1700000000000000000.0"

    def frame(self, delivered, sequence):
        return (b"or", (self.REPLY % (delivered, sequence)).encode(), None, b"x")

    def rig(self, **changes):
        rig = Rig(**changes)
        rig.send()
        rig.receive(*[self.frame(2 + n % 2, n) for n in range(1, 5)])
        return rig

    def test_they_stay_in_the_buffer(self):
        """
        If a handler takes the messages, those on their last delivery are not given back.
        """
        rig = self.rig(threads=1, max_deliver=3)
        given = rig.engine.take_all()
        assert given == [self.frame(2, 2), self.frame(2, 4)]
        assert list(rig.engine.buffer) == [self.frame(3, 1), self.frame(3, 3)]

    @pytest.mark.parametrize("limit", [0, -1, 4])
    def test_others_are_given_back(self, limit):
        """
        Without a limit of deliveries, or below it, all messages are given back.
        """
        rig = self.rig(threads=1, max_deliver=limit)
        assert len(rig.engine.take_all()) == 4
        assert not rig.engine.buffer

    def test_an_error_gives_all_back(self):
        """
        After an error, no handler may start with another message.
        """
        rig = self.rig(threads=1, max_deliver=3)
        rig.engine.fail(errors.ConnectionClosedError())
        assert len(rig.engine.take_all()) == 4
