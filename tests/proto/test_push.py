from __future__ import annotations

import json

import pytest

from jetsync import errors
from jetsync._proto.push import QUIET, PushEngine, PushOptions
from jetsync.events import PullOutcome
from jetsync.testing import ManualClock

SUBJECT = b"deliver"
ANSWERS = b"_INBOX.p."
FLOW = b"$JS.FC.S.C.abcd"
GONE = b'{"error":{"code":404,"err_code":10014,"description":"consumer not found"}}'


def message(number, header=None):
    """Return a message that is the consumer's delivery with this number."""
    return (b"orders.new", b"$JS.ACK.S.C.1.%d.%d.1.0" % (number, number), header, b"%d" % number)


def status(text, *headers, reply=b""):
    """Return a status on the deliver subject."""
    lines = [f"NATS/1.0 {text}", *headers, "", ""]
    return (SUBJECT, reply, "\r\n".join(lines).encode(), b"")


def heartbeat(last=0, stalled=None):
    """Return a heartbeat with the number of the last delivery."""
    headers = [f"Nats-Last-Consumer: {last}", f"Nats-Last-Stream: {last}"]
    if stalled is not None:
        headers.append(f"Nats-Consumer-Stalled: {stalled}")
    return status("100 Idle Heartbeat", *headers)


def request(reply=FLOW):
    """Return a flow control request."""
    return status("100 FlowControl Request", reply=reply)


class Rig:
    """An engine with a clock, whose subscription was sent."""

    def __init__(self, **changes):
        plain = {
            "stream": "S",
            "consumer": "C",
            "deliver_subject": "deliver",
            "deliver_group": None,
            "expires": 30.0,
            "heartbeat": 5.0,
        }
        self.clock = ManualClock()
        self.engine = PushEngine(ANSWERS, PushOptions(**{**plain, **changes}))
        self.engine.back(self.clock())
        self.engine.subscribed(self.clock())

    def receive(self, *frames):
        return self.engine.receive(list(frames), self.clock())

    def take(self, count):
        return [self.engine.buffer.popleft() for _ in range(count)]

    def answer(self):
        """Send the answer that is due, and return its subject."""
        subject = self.engine.answer_due()
        if subject is not None:
            self.engine.answered()
        return subject

    def probe(self):
        return self.engine.probe_due(self.clock())


class TestFlowControl:
    def test_an_answer_follows_the_messages_before_the_request(self):
        """A request is answered once the last message before it was taken, and not earlier."""
        rig = Rig()
        rig.receive(message(1), message(2), request(), message(3))
        assert (rig.answer(), rig.engine.low_mark()) == (None, 1)
        rig.take(1)
        assert rig.answer() is None
        rig.take(1)
        assert rig.engine.low_mark() == len(rig.engine.buffer) == 1
        assert [rig.answer(), rig.answer()] == [FLOW, None]
        assert rig.engine.low_mark() == -1

    def test_a_request_after_all_messages_were_taken_is_answered_at_once(self):
        """If nothing is buffered, the request is answered when it arrives."""
        rig = Rig()
        rig.receive(message(1))
        rig.take(1)
        rig.receive(request())
        assert rig.answer() == FLOW

    def test_parked_messages_are_not_taken(self):
        """A message that waits for another one of its subject delays the answer."""
        rig = Rig()
        rig.receive(message(1), message(2), request())
        for frame in rig.take(2):
            rig.engine.park(frame)
        assert (rig.answer(), rig.engine.low_mark()) == (None, -1)
        rig.engine.unpark(message(1))
        assert rig.answer() is None
        rig.engine.unpark(message(2))
        assert rig.answer() == FLOW

    def test_a_heartbeat_that_names_a_waiting_request_changes_nothing(self):
        """While the request waits, the server's heartbeats name it; it is still held back."""
        rig = Rig()
        rig.receive(message(1), request(), message(2))
        rig.receive(heartbeat(2, FLOW.decode()))
        assert rig.answer() is None
        rig.take(1)
        assert [rig.answer(), rig.answer()] == [FLOW, None]

    def test_a_lost_answer_is_repeated(self):
        """A heartbeat names a request that was answered: the answer was lost and is repeated."""
        rig = Rig()
        rig.receive(request())
        assert rig.answer() == FLOW
        rig.receive(heartbeat(0, FLOW.decode()))
        assert [rig.answer(), rig.answer()] == [FLOW, None]

    def test_a_lost_request_is_answered_after_the_messages_before_it(self):
        """A heartbeat names a request that never arrived. It counts from the heartbeat on."""
        rig = Rig()
        rig.receive(message(1), heartbeat(1, FLOW.decode()))
        assert rig.answer() is None
        rig.take(1)
        assert rig.answer() == FLOW

    def test_only_the_newest_request_is_answered(self):
        """The server ignores the answer to an older request, so none is sent."""
        rig = Rig()
        rig.receive(message(1), request(b"$JS.FC.S.C.old"), message(2), request())
        rig.take(1)
        assert rig.answer() is None
        rig.take(1)
        assert [rig.answer(), rig.answer()] == [FLOW, None]

    def test_a_waiting_request_survives_a_lost_connection(self):
        """The server still waits for the answer after a reconnect."""
        rig = Rig()
        rig.receive(message(1), request())
        rig.engine.lost(1, rig.clock())
        rig.take(1)
        assert rig.answer() == FLOW

    @pytest.mark.parametrize(
        "reply",
        [
            b"$JS.API.STREAM.DELETE.S",
            b"orders.new",
            b"$JS.FC.a b 0",
            b"$JS.FC.>",
            b"$JS.FC..x",
            b"$JS.FC.\xff.*",
        ],
    )
    def test_no_other_subject_is_answered(self, reply):
        """Any client may publish to the deliver subject, but only flow control is answered."""
        rig = Rig()
        rig.receive(request(reply), heartbeat(0, reply.decode("ascii", "replace")))
        assert rig.answer() is None

    def test_a_request_without_a_reply_subject_is_ignored(self):
        """A request that names no subject cannot be answered."""
        rig = Rig()
        assert rig.receive(request(b"")) == []
        assert rig.answer() is None

    def test_at_the_end_the_waiting_request_is_answered(self):
        """The next subscriber must not find a server that waits for an answer."""
        rig = Rig()
        rig.receive(message(1), request(), message(2))
        rig.engine.drain()
        # The thread that takes the last message has to notice the end.
        assert rig.engine.low_mark() == 0
        assert [rig.engine.last_answer(), rig.engine.last_answer()] == [FLOW, None]

    def test_an_answer_that_becomes_due_meanwhile_is_looked_for_at_once(self):
        """If another thread takes the last message before the request, there is no wait."""
        rig = Rig()
        rig.receive(message(1), request())
        assert rig.engine.next_look() > 0.0
        rig.take(1)
        assert rig.engine.next_look() == 0.0


class TestMessages:
    def test_messages_and_statuses_are_told_apart(self):
        """Messages with any headers arrive; those of other clients are dropped and counted."""
        rig = Rig()
        own = [
            message(1, b"NATS/1.0\r\na: b\r\n\r\n"),
            (SUBJECT, b"$JS.ACK.S.C.1.2.2.1.0", b"NATS/1.0 409 Consumer Deleted\r\n\r\n", b""),
            (SUBJECT, b"$JS.ACK.d.h.S.C.1.3.3.1.0", None, b""),
            message(4),
        ]
        foreign = [
            (SUBJECT, b"", b"NATS/1.0\r\na: b\r\n\r\n", b"core"),
            (SUBJECT, b"", b"NATS/1.0 abc\r\n\r\n", b""),
            (SUBJECT, b"$JS.ACK.S.D.1.1.1.1.0", None, b""),
            (SUBJECT, b"", None, b"+ACK"),
        ]
        mixed = [*own[:1], *foreign[:2], *own[1:], *foreign[2:]]
        assert rig.receive(*mixed, heartbeat(4)) == []
        assert rig.take(4) == own
        assert rig.engine.error is None
        assert rig.engine.strays.report() == {"foreign": 4, "surplus": 0}
        assert rig.engine.sift([*mixed, heartbeat(4)]) == [*own, heartbeat(4)]
        assert rig.engine.sifted.report() == {"foreign": 4, "surplus": 0}

    def test_messages_of_other_clients_are_no_sign_of_life(self):
        """Silence of the server is noticed although other clients publish."""
        rig = Rig()
        rig.receive(message(1))
        for _ in range(3):
            rig.clock.advance(4)
            rig.receive((SUBJECT, b"", None, b"core"))
        assert rig.engine.look(rig.clock()) == 12

    def test_messages_beyond_the_limit_are_refused(self):
        """After `stop_after` messages it ends, and gives the others back."""
        rig = Rig(stop_after=2)
        rig.receive(message(1), message(2), heartbeat(3), message(3))
        assert rig.engine.is_ending
        assert (len(rig.engine.buffer), rig.engine.take_refused()) == (2, [message(3)])

    def test_a_status_that_ends_the_consumption(self):
        """If the server says that the consumer is deleted, the consumption ends."""
        rig = Rig()
        ((found, outcome),) = rig.receive(message(1), status("409 Consumer Deleted"))
        assert (found.code, outcome) == (409, PullOutcome.FAILED)
        assert isinstance(rig.engine.error, errors.ConsumerDeletedError)
        assert len(rig.engine.buffer) == 1

    @pytest.mark.parametrize("text", ["409 Leadership Change", "409 Who Knows", "503", "418 Tea"])
    def test_other_statuses_change_nothing(self, text):
        """Other statuses are reported, and messages may still follow."""
        rig = Rig()
        ((_, outcome),) = rig.receive(status(text))
        assert outcome is PullOutcome.IGNORED
        assert rig.engine.error is None


class TestGaps:
    def test_a_gap_is_counted(self):
        """Deliveries that did not arrive are lost, as a message after them or a heartbeat shows."""
        rig = Rig(delivered=0)
        rig.receive(message(1), message(2))
        assert rig.engine.lost_messages == 0
        rig.receive(message(5), message(6))
        assert rig.engine.lost_messages == 2
        rig.receive(heartbeat(7))
        assert rig.engine.lost_messages == 3
        rig.receive(heartbeat(7), message(8))
        assert rig.engine.lost_messages == 3

    def test_messages_before_the_first_one_count(self):
        """The number of the last delivery before the subscription is known."""
        rig = Rig(delivered=10)
        rig.receive(message(12))
        assert rig.engine.lost_messages == 1

    @pytest.mark.parametrize("number", ["x", "-1", "", "9" * 30, "²"])
    def test_numbers_that_are_none(self, number):
        """A heartbeat with a number that cannot be read is only a heartbeat."""
        rig = Rig(delivered=0)
        rig.receive(message(1), heartbeat(number))
        assert rig.engine.lost_messages == 0

    def test_a_consumer_that_was_reset(self):
        """If the server counts from the start again, nothing is lost."""
        rig = Rig(delivered=0)
        rig.receive(message(1), message(2), message(3))
        rig.receive(message(1), message(2))
        assert rig.engine.lost_messages == 0

    def test_gaps_without_meaning(self):
        """If messages are redelivered or shared, a gap does not show a loss."""
        rig = Rig()
        rig.receive(message(1))
        rig.receive(message(9), heartbeat(20))
        assert rig.engine.lost_messages == 0


class TestSilence:
    def test_two_missed_heartbeats(self):
        """Two missed heartbeats are reported, and the server is asked for the consumer."""
        rig = Rig()
        assert rig.engine.next_look() == rig.clock() + 10.0
        rig.clock.advance(9.9)
        assert (rig.engine.look(rig.clock()), rig.probe()) == (None, None)
        rig.clock.advance(0.1)
        assert rig.engine.look(rig.clock()) == pytest.approx(10.0)
        assert rig.engine.misses == 1
        assert rig.probe() == b"_INBOX.p.1"
        assert rig.probe() is None
        rig.clock.advance(10.0)
        assert rig.engine.look(rig.clock()) == pytest.approx(20.0)
        assert rig.probe() == b"_INBOX.p.2"

    @pytest.mark.parametrize("frame", [message(1), heartbeat(0), request()])
    def test_any_frame_ends_the_silence(self, frame):
        """Messages and statuses show that the server is alive."""
        rig = Rig()
        rig.clock.advance(10.0)
        assert rig.engine.look(rig.clock()) == pytest.approx(10.0)
        rig.clock.advance(3.0)
        rig.receive(frame)
        rig.clock.advance(9.0)
        assert rig.engine.look(rig.clock()) is None
        rig.clock.advance(2.0)
        assert rig.engine.look(rig.clock()) == pytest.approx(11.0)

    def test_without_heartbeats_silence_is_normal(self):
        """Without heartbeats nothing is missed, but the consumer is looked for now and then."""
        rig = Rig(heartbeat=0.0)
        rig.clock.advance(2 * QUIET)
        assert rig.engine.look(rig.clock()) is None
        assert (rig.engine.misses, rig.probe()) == (0, b"_INBOX.p.1")

    def test_silence_counts_from_the_subscription(self):
        """Before the subscription was sent, the server sends nothing."""
        engine = PushEngine(ANSWERS, Rig().engine.options)
        assert (engine.next_look(), engine.look(1000.0)) == (None, None)
        engine.subscribed(1000.0)
        assert engine.next_look() == 1010.0

    def test_frames_that_nobody_read_are_no_silence(self):
        """If no thread was driving for long, silence counts from its return, once per frame."""
        rig = Rig()
        for excused in (True, False, True):
            rig.engine.leave(rig.clock())
            rig.clock.advance(60)
            rig.engine.back(rig.clock())
            assert (rig.engine.look(rig.clock()) is None) is excused
            if not excused:
                rig.receive(heartbeat(0))

    def test_a_lost_connection_is_no_silence(self):
        """After a reconnect, silence counts from then on, however long the reconnect took."""
        rig = Rig()
        rig.clock.advance(9)
        rig.engine.lost(1, rig.clock())
        rig.clock.advance(60)
        assert (rig.engine.next_look(), rig.engine.look(rig.clock())) == (None, None)
        for silent_for in (9, 1):
            rig.engine.subscribed(rig.clock())
            rig.clock.advance(silent_for)
        assert (rig.engine.look(rig.clock()), rig.engine.misses) == (10.0, 1)

    def test_a_question_on_a_lost_connection(self):
        """The answer to a question is not waited for after its connection was lost."""
        rig = Rig(heartbeat=0.1)
        for number in (b"1", b"2"):
            rig.clock.advance(0.2)
            rig.engine.look(rig.clock())
            assert rig.probe() == ANSWERS + number
            rig.engine.lost(1, rig.clock())
            rig.engine.subscribed(rig.clock())

    def ask(self, answer, header=None, **changes):
        """Return a rig that was silent and got an answer to its probe."""
        rig = Rig(**changes)
        rig.clock.advance(10)
        rig.engine.look(rig.clock())
        rig.receive((rig.probe(), b"", header, answer))
        return rig

    def test_a_consumer_that_is_gone(self):
        """If the consumer does not exist, the consumption ends with that error."""
        assert isinstance(self.ask(GONE).engine.error, errors.ConsumerNotFoundError)

    @pytest.mark.parametrize(
        "answer",
        [
            json.dumps({"config": {"deliver_subject": "deliver"}}).encode(),
            b"{}",
            b"",
            b'{"error":{"code":503,"err_code":10008,"description":"temporarily unavailable"}}',
        ],
    )
    def test_a_consumer_that_may_exist(self, answer):
        """If the consumer exists, or no server knows, the consumption continues."""
        assert self.ask(answer).engine.error is None

    def test_no_server_answers(self):
        """If no server answers, the consumption continues."""
        assert self.ask(b"", b"NATS/1.0 503\r\n\r\n").engine.error is None

    @pytest.mark.parametrize(
        "config",
        [{}, {"deliver_subject": "other"}, {"deliver_subject": "deliver", "deliver_group": "g"}],
    )
    def test_a_consumer_that_delivers_elsewhere(self, config):
        """If the consumer delivers to another subject or group, no message would ever arrive."""
        error = self.ask(json.dumps({"config": config}).encode()).engine.error
        assert isinstance(error, errors.ConsumptionClosedError)

    def test_the_answer_for_a_member_of_a_group(self):
        """A consumer with a group that still has it is in order."""
        config = {"deliver_subject": "deliver", "deliver_group": "g"}
        rig = self.ask(json.dumps({"config": config}).encode(), deliver_group="g")
        assert rig.engine.error is None
