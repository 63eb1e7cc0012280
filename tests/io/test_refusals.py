"""
Which messages a refusal of the server is about.
"""

from __future__ import annotations

import pytest

from jetsync._io import refusals as module
from jetsync._io.mailbox import Mailbox
from jetsync._io.outbox import LaneState
from jetsync._io.refusals import Refusals
from jetsync._io.replies import ReplyRouter, Waiter
from jetsync.errors import DisconnectedError, PermissionDeniedError

DENIED = PermissionDeniedError("x", "publish")


class FakeLane:
    """
    A lane that keeps what it is to call later.
    """

    def __init__(self):
        self.subscriptions = self.reader = self
        self.router = ReplyRouter(b"i")
        self.box = Mailbox(b"w.*", collect_denials=True)
        self.epoch = 1
        self.lost_epoch = 0
        self.state = LaneState.OPEN
        self.calls = []
        self.pongs = []
        self.failure = None

    def receivers(self):
        return [self.router, self.box]

    def later(self, seconds, call, *arguments):
        self.calls.append((call, arguments))

    def run(self):
        calls, self.calls = self.calls, []
        for call, arguments in calls:
            call(*arguments)

    def wake_reader(self):
        pass

    def write(self, block, deadline, pong):
        if self.failure is not None:
            raise self.failure
        self.pongs.append(pong)

    def request(self, subject=b"x", *, in_batch=False):
        waiter = Waiter(subject, in_batch)
        self.reply = self.router.register(waiter)
        return waiter


@pytest.fixture
def lane():
    """A lane with a router and a window."""
    return FakeLane()


@pytest.fixture
def refusals():
    """Refusals without any message."""
    return Refusals(5.0)


def test_the_only_message(refusals, lane):
    """The only message in flight on a subject is refused at once, and no other subject is."""
    refused, other = lane.request(), lane.request(b"y")
    assert refusals.note(DENIED, lane) == (True, DENIED)
    assert (refused.failure, other.failure) == (DENIED, None)
    assert not lane.calls


def test_a_refusal_without_a_message_in_flight_is_not_kept(refusals, lane):
    """A refusal is not kept if no message is in flight that it may be about."""
    assert refusals.note(DENIED, lane) == (False, DENIED)
    first, second = lane.request(), lane.request()
    refusals.note(DENIED, lane)
    assert first.failure is second.failure is None


def test_as_many_refusals_as_messages(refusals, lane):
    """Messages of several senders are refused once there are as many refusals."""
    first, second = lane.request(), lane.request()
    lane.box.find_messages = lambda subject: [7, 8]
    for _ in range(3):
        refusals.note(DENIED, lane)
    lane.run()
    assert first.failure is None
    refusals.note(DENIED, lane)
    lane.run()
    assert first.failure is second.failure is DENIED
    assert lane.box.take_denials() == [([7, 8], DENIED)]


def test_an_answer_to_the_other_message(refusals, lane):
    """The message that is left without an answer is the refused one."""
    refused, stored = lane.request(), lane.request()
    refusals.note(DENIED, lane)
    assert refused.failure is None
    lane.router.push((lane.reply, b"", None, b"ack"))
    lane.router.wake()
    lane.run()
    assert (refused.failure, stored.failure) == (DENIED, None)


def test_too_few_refusals(refusals, lane, monkeypatch):
    """If too few refusals come, the outcome of all these messages is unknown."""
    monkeypatch.setattr(module, "PATIENCE", 0.0)
    waiters = [lane.request(), lane.request()]
    refusals.note(DENIED, lane)
    assert [waiter.failure.sent for waiter in waiters] == [True, True]
    late = lane.request()
    refusals.note(DENIED, lane)
    assert late.failure.sent


def test_a_lost_connection(refusals, lane):
    """A refusal says nothing about the messages of the next connection."""
    waiters = [lane.request(), lane.request()]
    refusals.note(DENIED, lane)
    lane.lost_epoch = 1
    lane.router.lost(1)
    lane.run()
    lane.epoch = 2
    refusals.note(DENIED, lane)
    assert [waiter.failure for waiter in waiters] == [None, None]


def answer(lane):
    """Answer the PING."""
    [pong] = lane.pongs
    lane.pongs.clear()
    pong.deliver((b"", b"", None, b""))


def test_a_message_that_nobody_counts(refusals, lane):
    """A refusal that may be about such a message leaves doubt until the server has answered."""
    refusals.add(b"x")
    waiter = lane.request()
    known, error = refusals.note(DENIED, lane)
    assert known
    assert error.sent
    assert waiter.failure is error
    again = lane.request()
    refusals.note(DENIED, lane)
    assert again.failure.sent
    # The second refusal came while the subject was being forgotten, so its doubt lasts longer.
    for _ in range(2):
        lane.run()
        answer(lane)
        lane.run()
        lane.run()
        last = lane.request()
        refusals.note(DENIED, lane)
    assert last.failure is DENIED


def test_a_lost_connection_answers_nothing(refusals, lane):
    """If the connection of the PING is lost, the doubt ends as well."""
    refusals.add(b"x")
    refusals.note(DENIED, lane)
    lane.run()
    [pong] = lane.pongs
    pong.epoch = 1
    pong.lost(1)
    lane.run()
    lane.run()
    refusals.note(DENIED, lane)
    assert refusals.note(DENIED, lane) == (False, DENIED)


def test_a_refusal_that_came_before_the_pong(refusals, lane):
    """The loop may see that the PONG has arrived before it handles an earlier refusal."""
    refusals.add(b"x")
    refusals.note(DENIED, lane)
    lane.run()
    answer(lane)
    lane.run()
    waiter = lane.request()
    refusals.note(DENIED, lane)
    assert waiter.failure.sent


@pytest.fixture
def few(monkeypatch):
    """A limit of two subjects."""
    monkeypatch.setattr(module, "MOST_SUBJECTS", 2)


def publish(refusals, lane, *subjects):
    """Note core messages, as the client does."""
    for subject in subjects:
        refusals.add(subject)
        refusals.make_room(lane)


def test_many_subjects(refusals, lane, few):
    """Old subjects are forgotten once the server has answered, and others are never in doubt."""
    publish(refusals, lane, b"a", b"b", b"x")
    lane.run()
    other = lane.request(b"y")
    refusals.note(PermissionDeniedError("y", "publish"), lane)
    assert not other.failure.sent
    lane.run()
    answer(lane)
    lane.run()
    lane.run()
    waiter = lane.request()
    refusals.note(DENIED, lane)
    assert waiter.failure is DENIED
    assert not lane.calls


def test_too_many_subjects(refusals, lane, few):
    """If more are added before the old ones are forgotten, every refusal is in doubt."""
    publish(refusals, lane, b"a", b"b", b"c")
    lane.run()
    publish(refusals, lane, b"d", b"e", b"f")
    assert len(refusals.untracked) == 1
    waiter = lane.request()
    refusals.note(DENIED, lane)
    assert waiter.failure.sent


def test_a_ping_that_cannot_be_sent(refusals, lane):
    """Without room for a PING, the doubt stays, and the PING is sent later."""
    refusals.add(b"x")
    refusals.note(DENIED, lane)
    lane.failure = DisconnectedError()
    lane.run()
    lane.failure = None
    waiter = lane.request()
    refusals.note(DENIED, lane)
    assert waiter.failure.sent
    lane.run()
    assert len(lane.pongs) == 1


def test_one_batch(refusals, lane):
    """One refusal is enough for the only batch on a subject."""
    refusals.batches["1"] = lambda subject: subject == b"x"
    waiter = lane.request(in_batch=True)
    refusals.note(DENIED, lane)
    assert waiter.failure is DENIED


def test_a_batch_and_a_message(refusals, lane):
    """A refusal that may be about a batch is not certain for anybody."""
    refusals.batches["1"] = lambda subject: subject == b"x"
    committing, waiter = lane.request(in_batch=True), lane.request()
    _, error = refusals.note(DENIED, lane)
    assert error.sent
    assert committing.failure is waiter.failure is error
