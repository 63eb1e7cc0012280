from __future__ import annotations

import heapq
import itertools
import json
import random

import attrs
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from helpers.examples import RUNS
from jetsync import BatchGapEvent, errors
from jetsync._proto.fastingest import (
    ACK_TIMEOUT,
    ASK_WAIT_LIMIT,
    LOSS_HORIZON,
    OP_APPEND,
    OP_COMMIT,
    OP_END,
    OP_PING,
    OP_START,
    PHASES,
    SUFFIX,
    Event,
    FastIngest,
    Ledger,
    Phase,
)
from jetsync.testing import ManualClock

INBOX = b"_INBOX.f"
NO_RESPONDERS = b"NATS/1.0 503\r\nNats-Subject: x\r\n\r\n"
NOW = 100.0


def wrong_sequence():
    """An error of one message, as servers write it."""
    return {"code": 400, "err_code": 10071, "description": "wrong last sequence: 438"}


def unknown_id():
    """Return a server's answer about a batch that it does not know."""
    return {"code": 400, "err_code": 10208, "description": "batch publish ID unknown"}


def too_large():
    """Return an error in the place of an ack."""
    return {"code": 400, "err_code": 10054, "description": "message size exceeds maximum allowed"}


def dump(**fields):
    """JSON as servers write it."""
    return json.dumps(fields, separators=(",", ":")).encode()


def gap(batch_id, first, last):
    """A gap for which the server gave no reason."""
    return BatchGapEvent(stream="S", batch_id=batch_id, first=first, last=last)


def refusal(error):
    """An ack that is an error."""
    return dump(error=error, stream="S", seq=0)


class Talk:
    """
    An engine with a server that answers its messages one at a time.
    """

    def __init__(self, *, gap="ok", flow=10, outstanding=2, open_with=None):
        self.engine = FastIngest(
            INBOX, "b", flow=flow, max_outstanding_acks=outstanding, gap_ok=gap == "ok"
        )
        self.ledger = self.engine.ledger
        self.now = NOW
        if open_with is not None:
            self.begin()
            self.ack(0, open_with, op=OP_START)

    def begin(self):
        self.engine.open("S")
        self.engine.start(self.now, "s.x")

    def say(self, data, seq=1, op=OP_APPEND, header=None):
        """Return a reply to the message with this sequence."""
        subject = self.engine.prefix + b"%d" % seq + SUFFIX[op]
        self.engine.receive((subject, b"", header, data), self.now)

    def ack(self, seq, flow, op=OP_APPEND):
        self.say(dump(type="ack", seq=seq, msgs=flow), max(seq, 1), op)

    def gap(self, first, seq, op=OP_APPEND):
        self.say(dump(type="gap", last_seq=first, seq=seq), seq, op)

    def error(self, seq, op=OP_APPEND):
        self.say(dump(type="err", seq=seq, error=wrong_sequence()), seq, op)

    def no_leader(self, seq, op=OP_APPEND):
        self.say(b"", seq, op, NO_RESPONDERS)

    def end(self, count, sequence=50, **more):
        self.say(dump(stream="S", seq=sequence, batch=self.ledger.batch_id, count=count, **more))

    def send(self, count):
        for _ in range(count):
            self.engine.claim(self.now, "s.x")

    def lost_numbers(self):
        return [(gap.first, gap.last) for gap in self.engine.ledger.gaps]


class TestStart:
    def test_reply_subject(self):
        """
        The reply subject has inbox, id, flow and gap mode, followed by sequence and operation.
        """
        talk = Talk(flow=500)
        assert talk.engine.batch_id == "b1"
        talk.begin()
        assert talk.engine.batch_id == "b1"
        assert talk.engine.prefix == b"_INBOX.f.b1.500.ok."
        assert SUFFIX[OP_START] == b".0.$FI"
        assert SUFFIX[OP_PING] == b".4.$FI"
        strict = Talk(gap="fail", flow=7)
        strict.begin()
        assert strict.engine.prefix == b"_INBOX.f.b1.7.fail."

    def test_waits_for_the_first_answer(self):
        """No message follows the first one until its answer, which sets the flow."""
        talk = Talk(flow=500)
        talk.begin()
        assert (talk.engine.phase, talk.engine.room) == (Phase.STARTING, 0)
        talk.ack(0, 30, op=OP_START)
        assert (talk.engine.phase, talk.engine.flow) == (Phase.OPEN, 30)
        assert talk.engine.room == 59
        assert repr(talk.engine) == "<FastIngest open in_flight=1 acknowledged=0 lost=0>"

    @pytest.mark.parametrize(
        ("err_code", "expected"),
        [
            (10205, errors.FastPublishDisabledError),
            (10211, errors.FastTooManyInflightError),
            (10071, errors.WrongLastSequenceError),
        ],
    )
    def test_a_refused_first_message_starts_a_new_batch(self, err_code, expected):
        """If the first message is refused, the next one starts a new batch."""
        talk = Talk()
        talk.begin()
        talk.say(refusal({"code": 400, "err_code": err_code, "description": "no"}), 1, OP_START)
        assert talk.engine.phase is Phase.NEW
        assert isinstance(talk.engine.take_refusal(), expected)
        assert (talk.ledger.sent, talk.engine.batch_id) == (0, "b2")
        talk.begin()
        talk.ack(0, 5, op=OP_START)
        assert (talk.engine.phase, talk.ledger.sent) == (Phase.OPEN, 1)
        assert talk.engine.batch_id == "b2"

    def test_a_first_message_without_a_leader_is_not_stored(self):
        """Without a leader, the first message is certainly not stored."""
        talk = Talk()
        talk.begin()
        talk.no_leader(1, OP_START)
        assert isinstance(talk.engine.take_refusal(), errors.NoStreamResponseError)
        assert (talk.engine.phase, talk.ledger.sent) == (Phase.NEW, 0)

    def test_connection_lost(self):
        """
        If the connection is lost before the answer, the outcome of the first message is unknown.
        """
        talk = Talk()
        talk.begin()
        talk.engine.lost_connection()
        assert isinstance(talk.engine.take_refusal(), errors.PublishOutcomeUnknownError)
        assert talk.engine.phase is Phase.NEW

    def test_a_denied_subject_begins_no_batch(self):
        """A denied subject begins no batch."""
        talk = Talk()
        talk.begin()
        denial = errors.PermissionDeniedError("s.x", "publish")
        talk.engine.denied(denial)
        assert talk.engine.take_refusal() is denial
        assert talk.engine.phase is Phase.NEW

    @pytest.mark.parametrize("timeout", [None, 5.0])
    def test_a_start_without_an_answer(self, timeout):
        """The outcome of the first message is unknown if no call waits for its answer any more."""
        talk = Talk()
        talk.begin()
        talk.engine.unanswered(timeout=timeout)
        error = talk.engine.take_refusal()
        assert isinstance(error, errors.PublishOutcomeUnknownError)
        assert error.timeout == timeout
        assert ("closed" in str(error)) is (timeout is None)
        assert talk.engine.phase is Phase.NEW

    @pytest.mark.parametrize("open_with", [None, 10])
    def test_a_subject_that_may_be_denied(self, open_with):
        """If the server does not say which message it refused, the outcome is unknown."""
        talk = Talk(open_with=open_with) if open_with else Talk()
        if not open_with:
            talk.begin()
        denial = errors.PermissionDeniedError("s.x", "publish", sent=True)
        talk.engine.denied(denial)
        assert isinstance(talk.engine.failure, errors.PublishOutcomeUnknownError)
        assert talk.engine.failure.__cause__ is denial

    def test_a_server_that_does_not_know(self):
        """
        An ordinary ack means that the server stored the message singly, so no message follows.
        """
        talk = Talk()
        talk.begin()
        talk.say(b'{"stream":"S", "seq":9}', 1, OP_START)
        refused = talk.engine.take_refusal()
        assert isinstance(refused, errors.NotSupportedError)
        assert "sequence 9" in str(refused)
        assert talk.engine.phase is Phase.NEW

    def test_a_message_that_was_not_sent_is_not_counted(self):
        """A message that was certainly not sent is not counted."""
        talk = Talk()
        talk.begin()
        talk.engine.unsent()
        assert (talk.engine.phase, talk.ledger.sent) == (Phase.NEW, 0)


def fail_open():
    """Return an open batch that has failed, and that the server has not ended yet."""
    talk = Talk(gap="fail", open_with=10)
    talk.gap(1, 2)
    return talk


def after(talk, *calls):
    """Return *talk* after calls of its engine."""
    for name, *arguments in calls:
        getattr(talk.engine, name)(*arguments)
    return talk


def in_phase(name):
    """Return a batch without gaps in the phase of a row of the table."""
    talk = Talk(gap="fail", open_with=None if name in {"new", "starting", "alone"} else 10)
    if name == "starting":
        talk.begin()
    elif name == "paused":
        talk.no_leader(1)
    elif name in {"committing", "done"}:
        talk.engine.commit(NOW)
    elif name == "alone":
        after(talk, ("open", "S"), ("commit", NOW, "s.x"))
    elif name == "ending":
        talk = fail_open()
    elif name in {"failed", "closed"}:
        talk.engine.fail(errors.BatchClosedError())
    elif name == "given_up":
        talk.engine.abandoned()
    if name == "done":
        talk.end(1)
    elif name == "closed":
        talk.engine.take_failure()
    return talk


def disabled():
    """Return an answer that ends each batch of the stream."""
    return refusal({"code": 400, "err_code": 10205, "description": "disabled"})


EVENTS = {
    "start": lambda talk: talk.engine.start(NOW, "s.x"),
    "unsent": lambda talk: talk.engine.unsent(),
    "ack": lambda talk: talk.ack(1, 10),
    "ping": lambda talk: talk.ack(1, 10, op=OP_PING),
    "no_leader": lambda talk: talk.no_leader(1),
    "commit": lambda talk: talk.engine.commit(NOW),
    "end": lambda talk: talk.end(talk.ledger.sent),
    "gap": lambda talk: talk.gap(1, 2),
    "disabled": lambda talk: talk.say(disabled()),
    "lost": lambda talk: talk.engine.lost_connection(),
    "interrupt": lambda talk: talk.engine.interrupted(),
    "abandoned": lambda talk: talk.engine.abandoned(),
    "raised": lambda talk: talk.engine.take_failure(),
    "not_raised": lambda talk: talk.engine.not_raised(),
}
"""What may happen, and how."""

PHASE_TABLE = """
           start    unsent ack    ping no_leader commit     end    gap    disabled lost   interrupt abandoned raised not_raised
new        starting .      .      .    .         committing .      .      .        .      failed    closed    .      .
starting   .        new    open   open new       .          failed ending new      new    failed    closed    .      .
open       .        .      .      .    paused    committing failed ending failed   failed failed    closed    .      .
paused     .        .      .      open .         .          failed ending failed   failed failed    closed    .      .
committing .        open   .      .    .         .          done   ending failed   failed failed    closed    .      .
alone      .        new    .      .    .         .          done   ending failed   failed failed    closed    .      .
done       .        .      .      .    .         .          .      .      .        .      .         .         .      .
ending     .        .      .      .    .         .          failed .      failed   .      .         failed    closed .
failed     .        .      .      .    .         .          .      .      .        .      .         .         closed .
closed     .        .      .      .    .         .          .      .      .        .      .         .         .      failed
given_up   .        .      .      .    .         .          .      .      .        .      .         .         .      .
"""  # noqa: E501 - a table
"""The phase after each event; a dot if it stays. `alone` commits a first message."""

HEAD, *ROWS = (line.split() for line in PHASE_TABLE.strip().splitlines())
PAIRS = [(row[0], event, cell) for row in ROWS for event, cell in zip(HEAD, row[1:], strict=True)]


class TestPhases:
    @pytest.mark.parametrize(("name", "event", "expected"), PAIRS)
    def test_each_event_in_each_phase(self, name, event, expected):
        """Each event has one effect on each phase."""
        talk = in_phase(name)
        before = talk.engine.phase
        EVENTS[event](talk)
        assert talk.engine.phase is (before if expected == "." else Phase(expected))

    def test_the_table_has_each_transition(self, monkeypatch):
        """The tests above make each transition of the engine's table, in each phase."""
        made, happened = set(), FastIngest._happened

        def note(engine, event):
            made.add((event, engine.phase))
            happened(engine, event)

        monkeypatch.setattr(FastIngest, "_happened", note)
        for name, event, _ in PAIRS:
            EVENTS[event](in_phase(name))
        assert {row[0] for row in ROWS} >= {phase.value for phase in Phase}
        assert made >= {(event, phase) for event in Event for phase in PHASES[event]}


class TestFlow:
    def test_acks_cover_and_steer(self):
        """An ack covers all earlier messages and changes the flow; a stale one does neither."""
        talk = Talk(open_with=4)
        talk.send(7)
        assert (talk.engine.room, talk.ledger.in_flight) == (0, 8)
        talk.ack(8, 6)
        assert (talk.engine.room, talk.ledger.acknowledged) == (12, 8)
        talk.ack(4, 100)
        assert (talk.engine.flow, talk.ledger.acknowledged) == (6, 8)

    def test_a_flow_that_shrinks_leaves_messages_in_flight(self):
        """After the flow shrinks, more messages may be in flight than it allows."""
        talk = Talk(open_with=100)
        talk.send(199)
        talk.ack(100, 10)
        assert talk.engine.room == 20 - 100

    @pytest.mark.parametrize("flow", [0, -1, 1 << 40])
    def test_an_invalid_flow_is_replaced_by_a_valid_one(self, flow):
        """An invalid flow is replaced by a valid one."""
        talk = Talk(open_with=flow)
        assert 1 <= talk.engine.flow < 1 << 16

    def test_never_beyond_what_was_sent(self):
        """An ack cannot confirm messages that were not sent."""
        talk = Talk(open_with=5)
        talk.send(2)
        talk.ack(500, 5)
        assert (talk.ledger.acknowledged, talk.ledger.in_flight) == (3, 0)

    def test_replies_of_other_batches_change_nothing(self):
        """Replies of other batches, to other subjects and of unknown types change nothing."""
        talk = Talk(open_with=5)
        talk.send(4)
        before = repr(talk.engine)
        prefix = talk.engine.prefix
        good = dump(type="ack", seq=5, msgs=9)
        for subject in (
            b"_INBOX.f.b0.10.ok.5.1.$FI",
            b"_INBOX.f",
            prefix,
            prefix + b"5",
            prefix + b"x.1.$FI",
            prefix + b"5.x.$FI",
        ):
            talk.engine.receive((subject, b"", None, good), NOW)
        for junk in (b"{}", b'{"type":"what"}', b'{"type":"gap"}'):
            talk.say(junk, 5)
        assert repr(talk.engine) == before

    @pytest.mark.parametrize(
        "junk",
        [
            b"",
            b"{",
            b"[]",
            b'"x"',
            b"[" * 100_000,
            b'{"type":"ack","seq":"5","msgs":9}',
            b'{"type":"ack","seq":true,"msgs":9}',
            b'{"type":"ack","seq":-1,"msgs":9}',
            b'{"type":"ack","seq":5,"msgs":1e400}',
            b'{"error":"text"}',
        ],
    )
    def test_an_invalid_answer_ends_the_fast_batch(self, junk):
        """An invalid answer ends the batch, whose messages may be stored."""
        talk = Talk(open_with=5)
        talk.send(4)
        talk.say(junk, 5)
        assert talk.engine.phase is Phase.FAILED
        assert isinstance(talk.engine.failure, errors.PublishOutcomeUnknownError)
        assert isinstance(talk.engine.failure.__cause__, errors.ProtocolError)

    def test_refused_messages_are_not_in_flight(self):
        """Servers never ack refused messages: a full window of them must not stall."""
        talk = Talk(open_with=5)
        talk.send(9)
        assert talk.engine.room == 0
        for seq in range(2, 11):
            talk.error(seq)
        assert (talk.engine.room, talk.ledger.lost) == (9, 9)
        talk.send(9)
        talk.ack(15, 5)
        assert (talk.ledger.acknowledged, talk.ledger.in_flight) == (6, 4)

    def test_ping_when_an_ack_is_late(self):
        """The engine pings after a second without an ack, and after each further second."""
        talk = Talk(open_with=2)
        talk.send(3)
        assert talk.engine.next_timeout() == NOW + ACK_TIMEOUT
        assert talk.engine.poll(NOW + ACK_TIMEOUT - 0.01) is None
        assert talk.engine.poll(NOW + ACK_TIMEOUT) == (OP_PING, 4)
        assert talk.engine.poll(NOW + ACK_TIMEOUT) is None
        assert talk.engine.poll(NOW + 2 * ACK_TIMEOUT) == (OP_PING, 4)
        talk.ack(2, 2, op=OP_PING)
        assert (talk.engine.room, talk.engine.pings) == (2, 2)


class TestGapOk:
    def test_lost_messages_are_reported_once_by_number(self):
        """Lost messages are reported once, by number, and not counted as confirmed."""
        talk = Talk(open_with=10)
        talk.send(5)
        talk.gap(3, 5)
        talk.gap(3, 5)
        assert list(talk.ledger.gaps) == [gap("b1", 3, 4)]
        assert (talk.ledger.lost, talk.ledger.in_flight) == (2, 4)
        talk.ack(6, 10)
        assert (talk.ledger.acknowledged, talk.ledger.in_flight) == (4, 0)

    def test_only_new_runs_of_repeated_gaps_are_passed_on(self):
        """If the server reports gaps in parts and repeatedly, only new runs are passed on."""
        talk = Talk(open_with=20)
        talk.send(19)
        talk.error(5)
        talk.gap(3, 9)
        talk.gap(2, 12)
        assert talk.lost_numbers() == [(5, 5), (3, 4), (6, 8), (2, 2), (9, 11)]
        assert talk.ledger.lost == 10

    def test_reported_late(self):
        """A loss that is reported after the ack that covers it withdraws the confirmation."""
        talk = Talk(open_with=10)
        talk.send(9)
        talk.ack(10, 10)
        talk.error(7)
        assert (talk.ledger.acknowledged, talk.ledger.lost, talk.ledger.in_flight) == (9, 1, 0)
        talk.error(7)
        assert talk.ledger.lost == 1

    def test_the_gap_after_an_error_is_not_reported_twice(self):
        """
        An error in the place of an ack is about its message; the gap after it is not reported
        twice.
        """
        talk = Talk(open_with=10)
        talk.send(3)
        talk.say(refusal(too_large()), 3)
        talk.gap(3, 4)
        ((gap),) = talk.ledger.gaps
        assert (gap.first, gap.last) == (3, 3)
        assert isinstance(gap.error, errors.MessageTooLargeError)

    def test_a_gap_is_cut_off_at_the_sent_messages(self):
        """A gap beyond the sent messages is cut off there; one that goes backwards is ignored."""
        talk = Talk(open_with=10)
        talk.send(3)
        talk.gap(4, 2)
        talk.gap(0, 2)
        assert talk.lost_numbers() == []
        talk.gap(3, 9)
        assert talk.lost_numbers() == [(3, 4)]

    def test_nothing_is_sent_until_a_ping_is_answered(self):
        """Without a leader, nothing is sent until a ping is answered."""
        talk = Talk(open_with=10)
        talk.send(4)
        talk.no_leader(4)
        talk.no_leader(5)
        assert talk.engine.next_timeout() == NOW + 0.1
        assert (talk.engine.phase, talk.engine.room) == (Phase.PAUSED, 0)
        assert talk.engine.poll(NOW + 1) == (OP_PING, 5)
        talk.ack(1, 10)
        assert talk.engine.phase is Phase.PAUSED
        talk.gap(4, 6, op=OP_PING)
        talk.ack(3, 10, op=OP_PING)
        assert talk.engine.phase is Phase.OPEN
        assert talk.lost_numbers() == [(4, 5)]
        assert talk.engine.room == 20

    def test_a_lost_connection_ends_the_batch_and_leaves_a_gap(self):
        """A lost connection ends the batch, and the messages in flight are reported as a gap."""
        talk = Talk(open_with=10)
        talk.send(14)
        talk.ack(10, 10)
        talk.error(12)
        talk.engine.lost_connection()
        failure = talk.engine.failure
        assert isinstance(failure, errors.PublishOutcomeUnknownError)
        assert "10 of 15 messages" in str(failure)
        assert talk.lost_numbers() == [(12, 12), (11, 11), (13, 15)]
        assert talk.ledger.gaps[-1].error is failure
        assert (talk.ledger.acknowledged, talk.ledger.lost, talk.ledger.in_flight) == (10, 5, 0)

    def test_a_server_that_does_not_answer_is_pinged_less_often(self):
        """A server that does not answer is pinged less and less often, at least once a second."""
        talk = Talk(open_with=10)
        talk.send(4)
        talk.no_leader(4)
        waits, last = [], NOW
        for _ in range(7):
            due = talk.engine.next_timeout()
            waits.append(round(due - last, 3))
            assert talk.engine.poll(due) == (OP_PING, 5)
            talk.now = last = due
            talk.no_leader(5, OP_PING)
        assert waits == [0.1, 0.1, 0.2, 0.4, 0.8, ASK_WAIT_LIMIT, ASK_WAIT_LIMIT]

    @pytest.mark.parametrize("op", [OP_APPEND, OP_PING])
    def test_unconfirmed_messages_of_a_forgotten_batch_are_lost(self, op):
        """
        If the server forgot a batch, it has failed, and unconfirmed messages are reported as a gap.
        """
        talk = Talk(open_with=10)
        talk.send(14)
        talk.ack(10, 10)
        talk.error(12)
        talk.say(refusal(unknown_id()), 15, op)
        failure = talk.engine.failure
        assert isinstance(failure, errors.PublishOutcomeUnknownError)
        assert isinstance(failure.__cause__, errors.FastBatchUnknownError)
        assert talk.lost_numbers() == [(12, 12), (11, 11), (13, 15)]
        assert (talk.ledger.acknowledged, talk.ledger.lost, talk.ledger.sent) == (10, 5, 15)

    def test_ping_that_begins_a_batch(self):
        """A gap from the first message on also means that the server has forgotten the batch."""
        talk = Talk(open_with=10)
        talk.gap(1, 2, op=OP_PING)
        assert talk.engine.phase is Phase.FAILED
        assert isinstance(talk.engine.failure.__cause__, errors.FastBatchUnknownError)

    def test_an_ended_batch_stored_only_what_its_ack_counts(self):
        """If the server ends a batch, messages that its ack does not count are not stored."""
        talk = Talk(open_with=10)
        talk.send(9)
        talk.end(7)
        assert isinstance(talk.engine.failure, errors.BatchClosedError)
        assert talk.lost_numbers() == [(8, 10)]
        assert talk.ledger.acknowledged == 7

    def test_ping_refused(self):
        """A server that refuses a ping is pinged again."""
        talk = Talk(open_with=10)
        busy = {"code": 503, "err_code": 10023, "description": "insufficient resources"}
        talk.say(refusal(busy), 1, OP_PING)
        assert talk.engine.phase is Phase.PAUSED
        assert talk.ledger.lost == 0

    @pytest.mark.parametrize("code", [10205, 10206, 10207])
    def test_a_stream_that_stops_accepting_batches_ends_the_batch(self, code):
        """If the stream no longer accepts batches, the batch ends."""
        talk = Talk(open_with=10)
        talk.send(2)
        talk.say(refusal({"code": 400, "err_code": code, "description": "no"}), 2)
        assert talk.engine.failure.err_code == code
        assert talk.ledger.lost == 3

    def test_a_denied_subject_ends_the_publisher(self):
        """A denied subject ends the publisher."""
        talk = Talk(open_with=10)
        denial = errors.PermissionDeniedError("s.y", "publish")
        talk.engine.denied(denial)
        assert (talk.engine.phase, talk.engine.failure) == (Phase.FAILED, denial)

    def test_stored_singly(self):
        """A new server without fast ingest ends the publisher."""
        talk = Talk(open_with=10)
        talk.send(1)
        talk.say(b'{"stream":"S", "seq":9}', 2)
        assert isinstance(talk.engine.failure, errors.NotSupportedError)


class TestGapFail:
    def test_a_gap_ends_the_batch_and_says_what_is_stored(self):
        """A gap ends the batch, and the server states what it has stored before."""
        talk = Talk(gap="fail", open_with=10)
        talk.send(5)
        talk.gap(3, 5)
        failure = talk.engine.failure
        assert isinstance(failure, errors.BatchGapError)
        assert (failure.first_missing, failure.sequence, failure.batch_id) == (3, 5, "b1")
        assert (talk.engine.phase, talk.engine.room) == (Phase.ENDING, 0)
        talk.ack(1, 10)
        talk.end(2)
        talk.say(refusal(unknown_id()), 6)
        assert talk.engine.phase is Phase.FAILED
        assert (talk.ledger.acknowledged, talk.engine.failure) == (2, failure)

    def test_an_error_of_one_message_ends_a_batch_with_fail(self):
        """An error of one message ends the batch."""
        talk = Talk(gap="fail", open_with=10)
        talk.send(5)
        talk.error(4)
        assert isinstance(talk.engine.failure, errors.WrongLastSequenceError)
        talk.error(5)
        talk.gap(5, 7)
        talk.say(refusal(unknown_id()), 6)
        assert talk.engine.phase is Phase.FAILED

    @pytest.mark.parametrize("error", [wrong_sequence(), too_large()])
    def test_an_error_in_the_place_of_an_ack_ends_the_batch(self, error):
        """An error in the place of an ack ends the batch; the server's end follows later."""
        talk = Talk(gap="fail", open_with=10)
        talk.send(1)
        talk.say(refusal(error), 2)
        assert talk.engine.failure.err_code == error["err_code"]
        assert talk.engine.phase is Phase.ENDING
        talk.gap(2, 4)
        talk.end(1)
        assert talk.engine.phase is Phase.FAILED
        assert (talk.ledger.acknowledged, talk.ledger.lost) == (1, 0)

    @pytest.mark.parametrize("is_early", [True, False])
    def test_nothing_is_confirmed_after_a_refused_message(self, is_early):
        """Servers confirm later messages together with a refused one, but the engine does not."""
        talk = Talk(gap="fail", open_with=2)
        talk.send(5)
        talk.ack(4, 2)
        if is_early:
            talk.ack(6, 2)
        talk.say(refusal(wrong_sequence()), 5)
        talk.ack(6, 2)
        talk.end(6)
        assert isinstance(talk.engine.failure, errors.WrongLastSequenceError)
        assert talk.engine.phase is Phase.FAILED
        assert (talk.ledger.acknowledged, talk.ledger.lost) == (4, 0)

    def test_no_answer_is_awaited_after_a_refusal_of_the_batch(self):
        """If a refusal ends the batch, no further answer is awaited."""
        talk = Talk(gap="fail", open_with=10)
        talk.send(1)
        talk.say(refusal({"code": 400, "err_code": 10205, "description": "disabled"}), 2)
        assert isinstance(talk.engine.failure, errors.FastPublishDisabledError)
        assert talk.engine.phase is Phase.FAILED

    def test_a_lost_connection_ends_the_batch_as_confirmed(self):
        """A lost connection ends the batch, and the error states how much is confirmed."""
        talk = Talk(gap="fail", open_with=10)
        talk.send(14)
        talk.ack(10, 10)
        talk.engine.lost_connection()
        assert isinstance(talk.engine.failure, errors.PublishOutcomeUnknownError)
        assert "10 of 15 messages" in str(talk.engine.failure)

    def test_a_server_that_forgot_a_batch_with_fail_ends_it(self):
        """A server that has forgotten the batch ends it."""
        talk = Talk(gap="fail", open_with=10)
        talk.send(1)
        talk.say(refusal(unknown_id()), 2)
        assert isinstance(talk.engine.failure, errors.PublishOutcomeUnknownError)
        assert isinstance(talk.engine.failure.__cause__, errors.FastBatchUnknownError)

    def test_a_ping_reveals_the_gap_of_a_lost_leader(self):
        """Without a leader, a ping reveals the gap."""
        talk = Talk(gap="fail", open_with=10)
        talk.send(4)
        talk.no_leader(4)
        assert talk.engine.failure is None
        assert talk.engine.poll(NOW + 0.1) == (OP_PING, 5)
        talk.gap(4, 6, op=OP_PING)
        assert talk.engine.failure.first_missing == 4

    def test_an_end_that_was_not_requested_is_accepted(self):
        """The engine accepts an end that it did not request."""
        talk = Talk(gap="fail", open_with=10)
        talk.send(4)
        talk.end(3)
        assert isinstance(talk.engine.failure, errors.BatchClosedError)
        assert talk.ledger.acknowledged == 3


class TestCommit:
    @pytest.mark.parametrize("gap", ["ok", "fail"])
    def test_with_a_message(self, gap):
        """The last message commits, and its ack ends the batch."""
        talk = Talk(gap=gap, open_with=10)
        talk.send(1)
        assert talk.engine.commit(NOW, "s.x") == 3
        talk.end(3, 77)
        engine = talk.engine
        assert (engine.phase, talk.ledger.stream, engine.ack.sequence) == (Phase.DONE, "S", 77)
        assert (talk.ledger.acknowledged, talk.ledger.lost, engine.next_timeout()) == (3, 0, None)
        talk.end(2, 99)
        talk.error(2)
        assert (engine.ack.sequence, talk.ledger.lost) == (77, 0)

    def test_without_a_message(self):
        """The end of a batch has a sequence but is not a message."""
        talk = Talk(open_with=10)
        talk.send(2)
        assert talk.engine.commit(NOW) == 4
        talk.end(3)
        assert (talk.engine.phase, talk.ledger.sent, talk.ledger.lost) == (Phase.DONE, 3, 0)

    def test_a_batch_of_one_message_begins_and_ends_with_it(self):
        """A batch of one message begins and ends with that message."""
        talk = Talk()
        talk.engine.open("S")
        assert talk.engine.commit(NOW, "s.x") == 1
        assert talk.engine.next_timeout() is None
        talk.end(1, 9, duplicate=True)
        assert talk.engine.phase is Phase.DONE
        assert (talk.engine.ack.sequence, talk.engine.ack.duplicate) == (9, True)

    def test_a_lost_connection_leaves_the_outcome_of_a_commit_unknown(self):
        """If the connection is lost before the answer to the commit, its outcome is unknown."""
        talk = Talk(gap="fail", open_with=10)
        talk.engine.commit(NOW, "s.x")
        talk.engine.lost_connection("the reason")
        assert isinstance(talk.engine.failure, errors.PublishOutcomeUnknownError)
        assert "before the commit was answered: the reason; 0 of 2" in str(talk.engine.failure)

    def test_a_refused_last_message_still_commits_the_others(self):
        """If the last message is refused, the others are committed."""
        talk = Talk(open_with=10)
        talk.send(1)
        talk.engine.commit(NOW, "s.x")
        talk.error(3, op=OP_COMMIT)
        talk.end(2)
        assert (talk.engine.phase, talk.lost_numbers()) == (Phase.DONE, [(3, 3)])
        strict = Talk(gap="fail", open_with=10)
        strict.engine.commit(NOW, "s.x")
        strict.error(2, op=OP_COMMIT)
        strict.end(1)
        assert isinstance(strict.engine.failure, errors.WrongLastSequenceError)
        assert strict.ledger.acknowledged == 1

    def test_commit_refused(self):
        """A commit that is refused fails in both modes."""
        talk = Talk(open_with=10)
        talk.engine.commit(NOW, "s.x")
        talk.say(refusal(too_large()), 2, OP_COMMIT)
        assert isinstance(talk.engine.failure, errors.MessageTooLargeError)

    def test_no_stream_took_it(self):
        """
        After a 503 the commit is sent again with the same sequence, so its outcome is not in doubt.
        """
        talk = Talk(open_with=10)
        seq = talk.engine.commit(NOW)
        talk.no_leader(seq, OP_END)
        assert talk.engine.poll(NOW) is None
        assert talk.engine.next_timeout() == NOW + 0.1
        assert talk.engine.poll(NOW + 0.1) == (OP_COMMIT, seq)
        talk.end(1)
        assert talk.engine.phase is Phase.DONE

    @pytest.mark.parametrize("answers", ["none", "no_leader", "no_leader, sent again"])
    def test_unanswered(self, answers):
        """
        If no answer comes, the outcome is unknown unless no stream took any copy of the commit.
        """
        talk = Talk(open_with=10)
        seq = talk.engine.commit(NOW)
        if answers != "none":
            talk.no_leader(seq, OP_END)
        if "again" in answers:
            talk.engine.poll(NOW + 0.1)
        cause = errors.DisconnectedError()
        talk.engine.unanswered(error=cause)
        certain = answers == "no_leader"
        expected = errors.NoStreamResponseError if certain else errors.PublishOutcomeUnknownError
        assert (talk.engine.phase, type(talk.engine.failure)) == (Phase.FAILED, expected)
        assert talk.engine.failure.__cause__ is cause

    def test_answer_lost(self):
        """The engine pings up to the message before; if the batch is open, it commits again."""
        talk = Talk(open_with=10)
        talk.send(3)
        seq = talk.engine.commit(NOW, "s.x")
        due = talk.engine.next_timeout()
        assert due == NOW + ACK_TIMEOUT
        assert talk.engine.poll(due) == (OP_PING, 4)
        talk.now = due
        talk.ack(0, 10, op=OP_PING)
        assert talk.engine.poll(due) == (OP_COMMIT, seq)
        talk.end(5)
        assert (talk.engine.phase, talk.ledger.lost) == (Phase.DONE, 0)

    def test_an_earlier_ping_does_not_repeat_the_commit(self):
        """The answer to a ping that was sent before the commit does not repeat the commit."""
        talk = Talk(open_with=10)
        talk.send(3)
        talk.engine.ping()
        talk.engine.commit(NOW, "s.x")
        talk.ack(0, 10, op=OP_PING)
        assert talk.engine.poll(NOW) is None
        assert talk.engine.next_timeout() == NOW + ACK_TIMEOUT
        talk.end(5)
        assert (talk.engine.phase, talk.ledger.lost) == (Phase.DONE, 0)

    def test_answer_lost_and_batch_forgotten(self):
        """If the server no longer knows the batch, the outcome is unknown."""
        talk = Talk(open_with=10)
        talk.send(3)
        talk.engine.commit(NOW, "s.x")
        talk.engine.poll(NOW + ACK_TIMEOUT)
        talk.say(refusal(unknown_id()), 4, OP_PING)
        assert isinstance(talk.engine.failure, errors.PublishOutcomeUnknownError)
        assert isinstance(talk.engine.failure.__cause__, errors.FastBatchUnknownError)

    def test_messages_that_the_final_ack_does_not_count_are_lost(self):
        """Messages that the final ack does not count are not stored."""
        talk = Talk(open_with=10)
        talk.send(4)
        talk.engine.commit(NOW)
        talk.end(3)
        assert (talk.engine.phase, talk.lost_numbers()) == (Phase.DONE, [(4, 5)])
        strict = Talk(gap="fail", open_with=10)
        strict.send(4)
        strict.engine.commit(NOW)
        strict.end(3)
        assert (strict.engine.failure.first_missing, strict.engine.failure.sequence) == (4, 6)

    def test_take_back(self):
        """A commit that was certainly not sent can be repeated."""
        talk = Talk(open_with=10)
        talk.engine.commit(NOW, "s.x")
        talk.engine.unsent()
        assert (talk.engine.phase, talk.ledger.sent) == (Phase.OPEN, 1)
        alone = Talk()
        alone.engine.open("S")
        alone.engine.commit(NOW, "s.x")
        alone.engine.unsent()
        assert (alone.engine.phase, alone.ledger.sent) == (Phase.NEW, 0)

    def test_a_waiting_caller_may_give_up_the_batch(self):
        """A waiting caller may end the batch."""
        talk = Talk(open_with=10)
        talk.engine.commit(NOW)
        error = errors.PublishOutcomeUnknownError("s.x", timeout=5.0)
        talk.engine.fail(error)
        assert (talk.engine.phase, talk.engine.failure) == (Phase.FAILED, error)


class TestLedger:
    def test_only_the_latest_refusals_are_remembered(self):
        """Only the latest refusals are remembered."""
        ledger = Ledger()
        for seq in range(1, 40_001):
            ledger.staged(seq)
            if seq % 2:
                ledger.lose(seq, seq, None)
                ledger.gaps.clear()
            if seq % 500 == 0:
                ledger.cover(seq)
        assert (ledger.lost, ledger.acknowledged, ledger.in_flight) == (20_000, 20_000, 0)
        assert len(ledger._lost_seqs) <= 2 * LOSS_HORIZON
        ledger.lose(1, 3, None)
        assert ledger.lost == 20_000


# ----------------------------------------------------------------------------------------------
# Against a server with all known answers, over a network with all known faults


@attrs.define
class Faults:
    """
    The probability of each fault, for each message.
    """

    drop: float = 0.0
    """A message to the server is lost."""
    refuse: float = 0.0
    """The server refuses the message."""
    reset: float = 0.0
    """The leader steps down; for a moment there is no leader."""
    forget: float = 0.0
    """All batches are forgotten, for instance by a restart."""
    cut: float = 0.0
    """The connection is lost, with everything in flight."""
    mute: float = 0.0
    """A reply is lost."""
    double: float = 0.0
    """A reply arrives twice."""
    shuffle: float = 0.0
    """Later replies overtake a reply."""


@attrs.define
class Batch:
    """
    A batch as a server knows it.
    """

    gap_ok: bool
    most: int
    flow: int
    seen: int = 0
    stored: int = 0
    told: int = 0
    last: float = 0.0


class Server:
    """
    A stream's leader, modelled on the facts about 2.14.6 and 2.15.1.
    """

    def __init__(self, chance, clock, faults):
        self.chance = chance
        self.clock = clock
        self.faults = faults
        self.batches = {}
        self.stored = []
        """Numbers of stored messages, in order."""
        self.leaderless_until = 0.0

    def take(self, reply, number):
        """Process one message; yield its replies."""
        _, _, batch_id, flow, gap, seq, op, _ = reply.split(".")
        seq, op = int(seq), int(op)
        if self.clock() < self.leaderless_until:
            yield None
            return
        faults, chance = self.faults, self.chance.random
        if chance() < faults.reset:
            self.leaderless_until = self.clock() + self.chance.choice([0.01, 0.3, 3.0])
        if chance() < faults.forget:
            self.batches.clear()
        batch = self.batches.get(batch_id)
        if batch is not None and self.clock() - batch.last >= 10.0:
            del self.batches[batch_id]
            batch = None
        refuse = chance() < faults.refuse and op != OP_PING
        if refuse and self.chance.random() < 0.3:
            yield refusal(too_large())
            return
        if batch is None:
            if seq != 1:
                yield refusal(unknown_id())
                return
            most = min(int(flow), 500)
            batch = Batch(gap == "ok", most, self.chance.randint(1, most))
            self.batches[batch_id] = batch
        batch.last = self.clock()
        yield from self._process(batch_id, batch, seq, op, number, refuse)

    def _process(self, batch_id, batch, seq, op, number, refuse):
        if op == OP_PING:
            if seq > batch.seen:
                yield dump(type="gap", last_seq=batch.seen + 1, seq=seq + 1)
                if not batch.gap_ok:
                    yield self._end(batch_id, batch)
                    return
                batch.seen = batch.stored = seq
            yield from self._flow(batch)
            yield dump(type="ack", seq=batch.told, msgs=batch.flow)
            return
        if seq != batch.seen + 1:
            if seq > batch.seen:
                yield dump(type="gap", last_seq=batch.seen + 1, seq=seq)
            if seq <= batch.seen or not batch.gap_ok:
                yield self._end(batch_id, batch)
                return
        batch.seen = seq
        if op == OP_END:
            batch.seen -= 1
            yield self._end(batch_id, batch)
            return
        if seq == 1 and op != OP_COMMIT:
            yield dump(type="ack", seq=0, msgs=batch.flow)
        if refuse:
            if not batch.gap_ok and seq == 1:
                del self.batches[batch_id]
                yield refusal(wrong_sequence())
                return
            yield dump(type="err", seq=seq, error=wrong_sequence())
            if not batch.gap_ok or op == OP_COMMIT:
                batch.seen -= 1
                yield self._end(batch_id, batch)
            return
        self.stored.append(number)
        batch.stored = seq
        if op == OP_COMMIT:
            yield self._end(batch_id, batch)
            return
        yield from self._flow(batch)

    def _flow(self, batch):
        if batch.stored >= batch.told + batch.flow:
            batch.told += (batch.stored - batch.told) // batch.flow * batch.flow
            batch.flow = self.chance.randint(1, batch.most)
            yield dump(type="ack", seq=batch.told, msgs=batch.flow)

    def _end(self, batch_id, batch):
        del self.batches[batch_id]
        return dump(stream="S", seq=len(self.stored), batch=batch_id, count=batch.seen)


class World:
    """
    One publisher, one server and the network between them; runs until the publisher has ended.
    """

    ASK_WAIT_LIMIT = 60.0
    """Seconds after which the publisher stops waiting, as a handle does at its deadline."""

    def __init__(self, seed, faults, *, gap, flow, outstanding, count, store):
        self.chance = random.Random(seed)
        self.clock = ManualClock()
        self.faults = faults
        self.server = Server(self.chance, self.clock, faults)
        self.engine = FastIngest(
            INBOX, "b", flow=flow, max_outstanding_acks=outstanding, gap_ok=gap == "ok"
        )
        self.ledger = self.engine.ledger
        self.count = count
        self.store = store
        self.events = []
        self.ties = itertools.count()
        self.connection = 0
        self.lost = {}
        self.replies_end = 0.0

    def run(self):
        """Publish all and commit; return the phase at the end."""
        while self.ledger.sent < self.count and self._turn():
            pass
        if not self.engine.is_over:
            self._commit()
        self._check()
        return self.engine.phase

    def _turn(self):
        engine = self.engine
        if engine.is_over:
            return False
        if engine.phase is Phase.NEW:
            engine.open("S")
            number = self.ledger.sent + 1
            engine.start(self.clock(), "s.x")
            self._send(1, OP_START, number)
            end = self.clock() + self.ASK_WAIT_LIMIT
            while engine.phase is Phase.STARTING:
                self._pass_time(end)
                if self.clock() >= end and engine.phase is Phase.STARTING:
                    engine.stop(errors.WaitTimeoutError("the answer", 60.0))
        elif engine.room > 0 and self.ledger.sent < self.count:
            self._send_some(min(engine.room, self.count - self.ledger.sent))
        else:
            self._wait(lambda: engine.is_over or engine.room > 0)
        return not engine.is_over

    def _send_some(self, most):
        engine = self.engine
        count = self.chance.randint(1, most)
        first = self.ledger.sent + 1
        for _ in range(count):
            engine.claim(self.clock(), "s.x")
        assert self.ledger.in_flight <= engine.flow * engine._outstanding
        for seq in range(first, first + count):
            self._send(seq, OP_APPEND, seq)
        if self.chance.random() < 0.2:
            self._pass_time(self.clock() + self.chance.choice([0.001, 0.5, 2.0]))

    def _commit(self):
        engine = self.engine
        if engine.phase is Phase.PAUSED:
            self._wait(lambda: engine.phase is not Phase.PAUSED)
        if engine.phase is Phase.NEW and not self.store:
            return
        if engine.phase is Phase.NEW:
            engine.open("S")
        if engine.is_over:
            return
        op = OP_COMMIT if self.store else OP_END
        self.final = self.ledger.sent + 1
        self._send(engine.commit(self.clock(), "s.x" if self.store else None), op, self.final)
        end = self.clock() + self.ASK_WAIT_LIMIT
        while engine.phase is Phase.COMMITTING:
            self._pass_time(min(end, engine.next_timeout() or end))
            self._ask(op)
            if self.clock() >= end and engine.phase is Phase.COMMITTING:
                engine.fail(errors.PublishOutcomeUnknownError("s.x"))

    def _wait(self, done):
        """Wait for room as a handle does; end if none can come."""
        engine, end = self.engine, self.clock() + self.ASK_WAIT_LIMIT
        while not done() and not engine.is_over:
            self._pass_time(min(end, engine.next_timeout()))
            self._ask()
            if self.clock() >= end:
                engine.fail(errors.WaitTimeoutError("room", self.ASK_WAIT_LIMIT))

    def _ask(self, commit=None):
        """Send a ping, or the commit again, if the engine wants it."""
        match self.engine.poll(self.clock()):
            case (op, seq):
                assert seq >= 1
                is_ping = op == OP_PING
                self._send(seq, op if is_ping else commit, None if is_ping else self.final)

    # The network.

    def _send(self, seq, op, number):
        """Write one message; it and its replies take a random time."""
        reply = (self.engine.prefix + b"%d" % seq + SUFFIX[op]).decode()
        chance = self.chance.random
        if chance() < self.faults.cut:
            self.connection += 1
            self._later(0.01, self._cut)
            return
        if chance() < self.faults.drop:
            return
        for data in list(self.server.take(reply, number)):
            if chance() < self.faults.mute:
                continue
            header = NO_RESPONDERS if data is None else None
            frame = (reply.encode(), b"", header, data or b"")
            for _ in range(2 if chance() < self.faults.double else 1):
                delay = 0.001
                if chance() < self.faults.shuffle:
                    delay = self.chance.choice([0.002, 0.05, 3.0])
                self._later(delay, self._deliver, frame, self.connection)

    def _later(self, delay, call, *arguments):
        heapq.heappush(self.events, (self.clock() + delay, next(self.ties), call, arguments))

    def _deliver(self, frame, connection):
        if connection == self.connection:
            self.engine.receive(frame, self.clock())
            self._collect()

    def _cut(self):
        self.engine.lost_connection()
        self._collect()

    def _pass_time(self, until):
        """Process the next event, or let the time until then pass."""
        if self.events and self.events[0][0] <= until:
            at, _, call, arguments = heapq.heappop(self.events)
            self.clock.advance(max(at - self.clock(), 0.0))
            call(*arguments)
        elif until > self.clock():
            self.clock.advance(until - self.clock())

    # The conditions.

    def _collect(self):
        """Take the losses that are reported: in range, and never twice."""
        for gap in self.ledger.gaps:
            assert 1 <= gap.first <= gap.last <= self.ledger.sent
            for number in range(gap.first, gap.last + 1):
                assert number not in self.lost
                self.lost[number] = gap
        self.ledger.gaps.clear()
        ledger = self.ledger
        assert ledger.lost == len(self.lost)
        assert ledger.in_flight >= 0
        assert ledger.acknowledged + ledger.in_flight + ledger.lost == ledger.sent

    def _check(self):
        ledger, engine = self.ledger, self.engine
        self._collect()
        # Messages of an abandoned first send get new numbers, so they may be stored twice.
        if engine.phase is Phase.DONE:
            assert ledger.in_flight == 0
            assert ledger.acknowledged == ledger.sent - ledger.lost
            assert ledger.sent == self.count + self.store


def counts():
    """Sizes of a run: mostly small ones with all edge cases, and some larger."""
    return st.one_of(st.integers(1, 12), st.integers(1, 80))


def world(seed, faults, **more):
    """Return a run with these faults."""
    return World(seed, faults, **more)


runs = {
    "seed": st.integers(0, 2**32 - 1),
    "flow": st.sampled_from([1, 2, 3, 10, 500]),
    "outstanding": st.integers(1, 3),
    "count": counts(),
    "store": st.booleans(),
}
many = settings(
    max_examples=RUNS * 26 // 100,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    database=None,
)


class TestRuns:
    """
    10,400 runs against a server that behaves at random.
    """

    @many
    @given(**runs)
    def test_every_message_is_stored_once_whatever_the_flow(self, **how):
        """Whatever the flow is, every message is stored once and in order, in both modes."""
        for gap in ("ok", "fail"):
            run = world(how["seed"], Faults(), gap=gap, **_without(how, "seed"))
            assert run.run() is Phase.DONE
            assert run.server.stored == list(range(1, how["count"] + how["store"] + 1))
            assert run.lost == {}
            assert run.engine.ack.sequence == len(run.server.stored)

    @many
    @given(fault=st.sampled_from([0.02, 0.2]), **runs)
    @example(fault=0.2, seed=3, flow=2, outstanding=1, count=12, store=True)
    def test_messages_not_reported_as_lost_are_stored_once(self, fault, **how):
        """
        If replies arrive in order, messages not reported as lost are stored once, and reported ones
        are not stored, unless the server had forgotten the batch.
        """
        rates = random.Random(how["seed"])
        kinds = ("drop", "refuse", "reset", "forget")
        faults = Faults(**{kind: rates.choice([0.0, 0.0, fault]) for kind in kinds})
        run = world(how["seed"], faults, gap="ok", **_without(how, "seed"))
        phase = run.run()
        stored = run.server.stored
        if not faults.forget:
            assert len(set(stored)) == len(stored)
        if phase is not Phase.DONE:
            return
        assert set(stored) >= set(range(1, run.ledger.sent + 1)) - set(run.lost)
        unsure = {
            number
            for number, gap in run.lost.items()
            if isinstance(gap.error, errors.FastBatchUnknownError)
        }
        assert not (set(run.lost) - unsure) & set(stored)

    @many
    @given(fault=st.sampled_from([0.02, 0.2]), **runs)
    def test_without_gaps_all_are_stored_or_the_batch_fails(self, fault, **how):
        """
        If gaps are not allowed, either all messages are stored, or the batch fails and the
        confirmed ones are stored.
        """
        rates = random.Random(how["seed"])
        kinds = ("drop", "refuse", "reset", "forget", "cut", "mute", "double")
        faults = Faults(**{kind: rates.choice([0.0, 0.0, fault]) for kind in kinds})
        run = world(how["seed"], faults, gap="fail", **_without(how, "seed"))
        phase = run.run()
        stored = set(run.server.stored)
        assert phase in {Phase.DONE, Phase.ENDING, Phase.FAILED, Phase.NEW}
        if phase is Phase.DONE:
            assert stored == set(range(1, how["count"] + how["store"] + 1))
        assert stored >= set(range(1, run.ledger.acknowledged + 1))
        assert run.lost == {}

    @many
    @given(fault=st.sampled_from([0.02, 0.2]), gap=st.sampled_from(["ok", "fail"]), **runs)
    def test_the_flow_is_kept_whatever_is_lost_late_or_doubled(self, fault, gap, **how):
        """
        Whatever is lost, late, doubled or overtaken, the flow is kept, no message is counted twice,
        and the batch ends.
        """
        rates = random.Random(how["seed"])
        names = [field.name for field in attrs.fields(Faults)]
        faults = Faults(**{kind: rates.choice([0.0, fault]) for kind in names})
        run = world(how["seed"], faults, gap=gap, **_without(how, "seed"))
        assert run.run() in {Phase.DONE, Phase.ENDING, Phase.FAILED, Phase.NEW}


def _without(how, *names):
    return {name: value for name, value in how.items() if name not in names}


class TestInterrupted:
    @pytest.mark.parametrize("phase", ["starting", "open", "committing"])
    def test_an_interrupted_call_leaves_the_outcome_unknown(self, phase):
        """After an interrupted call the batch has failed, and what was sent is unknown."""
        talk = Talk(open_with=None if phase == "starting" else 10)
        if phase == "starting":
            talk.begin()
        if phase == "committing":
            talk.engine.commit(NOW)
        talk.engine.interrupted()
        assert isinstance(talk.engine.failure, errors.PublishOutcomeUnknownError)
        assert talk.lost_numbers() == [(1, 1)]

    def test_a_publisher_that_was_interrupted_before_it_sent_anything_is_closed(self):
        """After an interrupt before the first message, the publisher is closed."""
        talk = Talk()
        talk.engine.interrupted()
        assert isinstance(talk.engine.failure, errors.BatchClosedError)
        assert talk.lost_numbers() == []

    def test_an_interrupt_after_the_end_changes_nothing(self):
        """A batch that was committed stays committed."""
        talk = Talk(open_with=10)
        talk.engine.commit(NOW)
        talk.end(1)
        talk.engine.interrupted()
        assert (talk.engine.phase, talk.engine.ack.size) == (Phase.DONE, 1)
