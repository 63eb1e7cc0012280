"""
The fetch engine, without a server and with a manual clock. ``test_judge.py`` has the statuses.
"""

from __future__ import annotations

import json
import types

import pytest

from jetsync import errors
from jetsync._proto.fetch import NO_WAIT_SILENCE, ORDERED_REFUSALS, SECOND_PULL, FetchEngine
from jetsync._proto.open_pulls import GRACE, OpenPulls
from jetsync._proto.origin import Origin
from jetsync._proto.pull_request import Priorities, PullRequest
from jetsync._proto.pulling import PULL_RETRY_WAIT, PULL_RETRY_WAIT_LIMIT
from jetsync.events import PullOutcome
from jetsync.testing import ManualClock

HEARTBEAT = b"NATS/1.0 100 Idle Heartbeat\r\n\r\n"
GONE = b'{"error":{"code":404,"err_code":10014,"description":"consumer not found"}}'
BUSY = b'{"error":{"code":503,"err_code":10008,"description":"JetStream system unavailable"}}'
PIN = b"NATS/1.0\r\nNats-Pin-Id: %b\r\n\r\n"


def message(size=40, header=None):
    """
    Return a message of a size, as servers count it without a pin id.
    """
    reply = b"$JS.ACK.S.C."
    return (b"or", reply, header, b"x" * (size - 2 - len(reply)))


def info(pending=5, waiting=1, ack_pending=0, **config):
    """
    Return a consumer info reply.
    """
    paused = config.pop("paused", False)
    found = {
        "stream_name": "S",
        "name": "C",
        "created": "2024-01-01T00:00:00Z",
        "config": {"ack_policy": "explicit", **config},
        "delivered": {"consumer_seq": 0, "stream_seq": 0},
        "ack_floor": {"consumer_seq": 0, "stream_seq": 0},
        "num_pending": pending,
        "num_waiting": waiting,
        "num_ack_pending": ack_pending,
        "num_redelivered": 0,
        "paused": paused,
    }
    return json.dumps(found).encode()


# All messages are in order.
IN_ORDER = types.SimpleNamespace(admit=lambda frames: frames, has_gap=False)


class Rig:
    """
    An engine with a clock and the pulls that it sent.
    """

    def __init__(self, *, wait=30.0, acked=True, ordered=False, pins=None, **changes):
        self.clock = ManualClock()
        self.pins = {} if pins is None else pins
        plain = {"max_messages": 10, "expires": wait}
        self.request = PullRequest(**{**plain, **changes})
        self.engine = FetchEngine(
            OpenPulls(b"_INBOX.c", Origin("S", "C")),
            self.request,
            self.pins,
            now=self.clock(),
            wait=wait,
            subject=b"NEXT",
            acked=acked,
            order=IN_ORDER if ordered else None,
        )
        self.pulls = []
        self.open(self.request)

    def open(self, request):
        pull = self.engine.pulls.open(request, self.clock())
        self.engine.pulls.sent(pull, 1)
        self.pulls.append(pull)

    def send(self):
        """
        Send the pull that is due, and return its request; None if none is due.
        """
        request = self.engine.next_pull(self.clock())
        if request is not None:
            self.open(request)
        return request

    def receive(self, *frames):
        return self.engine.receive(list(frames), self.clock())

    def status(self, line, *, pull=None):
        """
        Pass a status of the last pull or another one, and return the outcome.
        """
        header = f"NATS/1.0 {line}\r\n\r\n".encode()
        ((_, outcome),) = self.receive(((pull or self.pulls[-1]).subject, b"", header, b""))
        return outcome

    def look(self):
        return self.engine.look(self.clock())

    def lost(self, epoch=1):
        self.engine.lost(epoch, self.clock())

    def answer(self, data, *, header=None):
        """
        Answer the probe that is due.
        """
        reply = self.engine.probe_due(self.clock())
        assert reply is not None
        return self.receive((reply, b"", header, data))

    def in_(self, seconds):
        """
        Return the moment that is *seconds* after the start.
        """
        return pytest.approx(1000.0 + seconds)


class TestEnding:
    def test_all_messages(self):
        """A fetch ends when all messages have arrived, and its inbox can be used again."""
        rig = Rig(max_messages=3)
        rig.receive(message(), message())
        assert not rig.engine.is_ending
        assert not rig.engine.is_due
        rig.receive(message())
        assert rig.engine.is_ending
        assert (rig.engine.admitted, len(rig.engine.buffer)) == (3, 3)
        assert rig.engine.status is None
        assert not rig.engine.may_be_served
        assert rig.send() is None

    def test_surplus_is_refused(self):
        """Messages beyond the pulls are set aside."""
        rig = Rig(max_messages=2)
        rig.receive(*[message()] * 5)
        assert len(rig.engine.buffer) == 2
        assert len(rig.engine.refused) == 3

    def test_all_bytes(self):
        """A fetch ends when all bytes have arrived."""
        rig = Rig(max_bytes=100)
        rig.receive(message(60))
        assert not rig.engine.is_ending
        rig.receive(message(40))
        assert rig.engine.is_ending
        assert not rig.engine.may_be_served

    def test_the_pin_id_does_not_count_as_bytes(self):
        """A fetch of a pinned client counts bytes as the server does, without its header."""
        rig = Rig(max_bytes=100, priorities=Priorities("A"))
        rig.receive(message(60, PIN % b"id"))
        assert not rig.engine.is_ending
        rig.lost()
        assert rig.send().max_bytes == 40
        rig.receive(message(40, PIN % b"id"))
        assert rig.engine.is_ending
        assert len(rig.engine.buffer) == 2

    def test_a_status_that_ends_it_is_kept(self):
        """The status that ended the fetch is its status."""
        rig = Rig()
        assert rig.status("408 Request Timeout") is PullOutcome.ENDED
        assert rig.engine.is_ending
        assert (rig.engine.status.code, rig.engine.error) == (408, None)
        assert not rig.engine.may_be_served

    def test_a_fault(self):
        """A fault ends the fetch with its error, after the messages that arrived."""
        rig = Rig()
        rig.receive(message())
        assert rig.status("409 Consumer Deleted") is PullOutcome.FAILED
        error = rig.engine.error
        assert isinstance(error, errors.ConsumerDeletedError)
        assert (error.stream, error.consumer) == ("S", "C")
        assert len(rig.engine.buffer) == 1

    def test_a_status_of_an_old_pull_is_ignored(self):
        """A second status of one pull changes nothing."""
        rig = Rig()
        old = rig.pulls[0]
        rig.status("409 Leadership Change")
        rig.clock.advance(PULL_RETRY_WAIT)
        assert rig.send()
        assert rig.status("409 Consumer Deleted", pull=old) is PullOutcome.IGNORED
        assert not rig.engine.is_ending

    def test_no_answer_at_all(self):
        """A server that never answers ends the fetch some time after its end."""
        rig = Rig(wait=1.0)
        assert rig.engine.next_look() == rig.in_(1.0 + GRACE)
        rig.clock.advance(1.0 + GRACE - 0.01)
        assert rig.look() is None
        assert rig.engine.error is None
        rig.clock.advance(0.02)
        assert rig.look() is None
        assert isinstance(rig.engine.error, errors.RequestTimeoutError)
        assert "NEXT" in str(rig.engine.error)
        assert f"{1.0 + GRACE:g}" in str(rig.engine.error)
        assert rig.engine.may_be_served

    def test_it_is_ended_by_its_user(self):
        """A fetch that is ended sends no more pulls and no probes."""
        rig = Rig()
        rig.status("503")
        rig.engine.drain()
        rig.clock.advance(1.0)
        assert rig.send() is None
        assert rig.engine.probe_due(rig.clock()) is None


class TestHeartbeats:
    def test_two_missed_heartbeats_end_it(self):
        """Two missed heartbeats end a fetch with an error."""
        rig = Rig(heartbeat=1.0)
        assert rig.engine.heartbeat == 1.0
        rig.clock.advance(0.5)
        rig.receive((rig.pulls[0].subject, b"", HEARTBEAT, b""))
        assert rig.engine.next_look() == rig.in_(2.5)
        rig.clock.advance(1.9)
        assert rig.look() is None
        rig.clock.advance(0.2)
        assert rig.look() == pytest.approx(2.1)
        assert isinstance(rig.engine.error, errors.NoHeartbeatError)
        assert rig.engine.misses == 1

    def test_silence_without_a_pull_means_nothing(self):
        """No heartbeats are missed during a pause."""
        rig = Rig(heartbeat=0.01)
        rig.status("409 Leadership Change")
        rig.clock.advance(0.05)
        assert rig.look() is None
        assert rig.engine.error is None

    def test_without_heartbeats(self):
        """A fetch without heartbeats has an interval of 0, and only the end of its time counts."""
        rig = Rig()
        assert rig.engine.heartbeat == 0.0
        rig.clock.advance(29.0)
        assert rig.look() is None
        assert rig.engine.error is None


class TestRetries:
    def test_the_rest_after_a_pause(self):
        """After a temporary status, a pull for the rest is sent after a pause."""
        rig = Rig(heartbeat=10.0)
        rig.receive(*[message()] * 4)
        rig.clock.advance(20.0)
        assert rig.status("409 Leadership Change") is PullOutcome.RETRIED
        assert rig.engine.is_due
        assert rig.engine.status.code == 409
        assert rig.engine.next_look() == rig.in_(20.0 + PULL_RETRY_WAIT)
        assert rig.send() is None
        rig.clock.advance(PULL_RETRY_WAIT)
        request = rig.send()
        assert request.max_messages == 6
        assert request.expires == pytest.approx(10.0 - PULL_RETRY_WAIT)
        # It could not be missed twice in the time that is left.
        assert request.heartbeat is None
        assert rig.engine.status is None

    def test_pauses_grow_up_to_a_limit(self):
        """Each refusal in a row doubles the pause, and a message begins again."""
        rig = Rig()
        pauses = []
        for _ in range(6):
            rig.status("409 Leadership Change")
            pauses.append(round(rig.engine.not_before - rig.clock(), 3))
            rig.clock.advance(pauses[-1])
            assert rig.send()
        assert pauses == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
        assert pauses[-1] == PULL_RETRY_WAIT_LIMIT
        assert rig.engine.refusals == 6
        rig.receive(message())
        assert rig.engine.refusals == 0
        rig.status("409 Leadership Change")
        assert rig.engine.not_before == pytest.approx(rig.clock() + PULL_RETRY_WAIT)

    def test_a_pause_ends_with_the_time(self):
        """A fetch whose time is shorter than the pause ends at its time."""
        rig = Rig(wait=0.05)
        rig.status("409 Leadership Change")
        assert rig.engine.next_look() == rig.in_(0.05)
        rig.clock.advance(0.06)
        assert rig.send() is None
        assert rig.engine.is_ending
        assert (rig.engine.status.code, rig.engine.error) == (409, None)

    def test_too_little_time_for_another_pull(self):
        """A fetch ends if the time that is left is too short for a pull."""
        rig = Rig(wait=PULL_RETRY_WAIT + 0.005)
        rig.status("409 Leadership Change")
        rig.clock.advance(PULL_RETRY_WAIT)
        assert rig.send() is None
        assert rig.engine.is_ending

    def test_a_pin_id_that_was_refused(self):
        """A pull that was refused for its pin id is repeated at once without it."""
        rig = Rig(pins={"A": "old"}, priorities=Priorities("A"), pin_id="old")
        assert rig.status("423 Nats-Wrong-Pin-Id") is PullOutcome.RETRIED
        assert rig.pins == {}
        request = rig.send()
        assert (request.max_messages, request.pin_id) == (10, None)
        # It was not refused for an id, so the next one waits.
        rig.status("423 Nats-Wrong-Pin-Id")
        assert rig.send() is None

    def test_a_newer_pin_id(self):
        """A newer pin id of the consumer is kept and sent."""
        rig = Rig(pins={"A": "old"}, priorities=Priorities("A"), pin_id="old")
        rig.pins["A"] = "new"
        rig.status("423 Nats-Wrong-Pin-Id")
        assert rig.send().pin_id == "new"

    def test_a_pin_id_that_arrives(self):
        """The pin id of a message is kept for all users of the consumer, only in a group."""
        rig = Rig(priorities=Priorities("A"))
        rig.receive(message(header=PIN % b"id"))
        assert rig.pins == {"A": "id"}
        plain = Rig()
        plain.receive(message(header=PIN % b"id"))
        assert plain.pins == {}


class TestAbsent:
    def test_the_consumer_is_gone(self):
        """A fetch without an answer asks for the consumer, and ends if it is gone."""
        rig = Rig()
        assert rig.status("503") is PullOutcome.RETRIED
        rig.answer(GONE)
        assert isinstance(rig.engine.error, errors.ConsumerNotFoundError)
        assert rig.send() is None

    @pytest.mark.parametrize("data", [b"", BUSY, info()])
    def test_the_consumer_may_exist(self, data):
        """A fetch continues if the consumer exists, or if no server knows."""
        rig = Rig()
        rig.status("503")
        rig.answer(data, header=None if data else b"NATS/1.0 503\r\n\r\n")
        rig.clock.advance(PULL_RETRY_WAIT)
        assert rig.send()
        assert not rig.engine.is_ending

    def test_a_malformed_answer(self):
        """An answer that is no JSON ends the fetch with an error."""
        rig = Rig()
        rig.status("503")
        rig.answer(b"{")
        assert isinstance(rig.engine.error, errors.ProtocolError)

    def test_it_stays_absent(self):
        """A fetch whose last pull no server answered ends with an error at its time."""
        rig = Rig(wait=0.05)
        rig.status("503")
        rig.clock.advance(0.06)
        assert rig.send() is None
        assert isinstance(rig.engine.error, errors.ConsumerUnavailableError)
        assert rig.engine.status.code == 503

    @pytest.mark.parametrize("no_wait", [False, True])
    @pytest.mark.parametrize("ordered", [False, True])
    def test_an_ordered_fetch(self, ordered, no_wait):
        """A fetch of an ordered consumer ends early, so that its consumer is replaced."""
        rig = Rig(ordered=ordered, no_wait=no_wait)
        for number in range(1, ORDERED_REFUSALS + 1):
            assert not rig.engine.is_ending
            outcome = rig.status("503")
            is_last = ordered and number == ORDERED_REFUSALS
            assert outcome is (PullOutcome.FAILED if is_last else PullOutcome.RETRIED)
            rig.clock.advance(PULL_RETRY_WAIT_LIMIT)
            assert bool(rig.send()) is not is_last
        assert isinstance(rig.engine.error, errors.ConsumerUnavailableError) is ordered

    def test_another_reason_counts_later(self):
        """If a later pull is lost with its connection, the fetch ends without an error."""
        rig = Rig(wait=1.0)
        rig.status("503")
        rig.clock.advance(PULL_RETRY_WAIT)
        assert rig.send()
        rig.lost()
        rig.clock.advance(1.0)
        assert rig.send() is None
        assert (rig.engine.status, rig.engine.error) == (None, None)
        assert rig.engine.is_ending


class TestConnections:
    def test_the_rest_at_once(self):
        """If the connection is lost, a pull for the rest is due at once."""
        rig = Rig()
        rig.receive(*[message()] * 4)
        rig.lost()
        assert rig.engine.is_due
        assert rig.engine.may_be_served
        assert rig.engine.next_look() <= rig.clock()
        assert rig.send().max_messages == 6

    def test_a_pause_is_kept_without_a_loss_of_its_pull(self):
        """A loss while no pull is open does not end a pause."""
        rig = Rig()
        rig.status("409 Server Shutdown")
        rig.lost()
        assert rig.send() is None
        assert not rig.engine.gave_up

    def test_a_pull_on_a_newer_connection(self):
        """A pull that was sent on a newer connection stays open."""
        rig = Rig()
        rig.engine.pulls.sent(rig.pulls[0], 2)
        rig.lost(1)
        assert not rig.engine.is_due

    @pytest.mark.parametrize("status", [None, "409 Server Shutdown"])
    def test_an_ordered_fetch(self, status):
        """A fetch of an ordered consumer ends with the connection that its pull needs."""
        rig = Rig(ordered=True)
        if status is not None:
            rig.status(status)
        rig.lost()
        assert isinstance(rig.engine.error, errors.NoHeartbeatError)

    def test_a_complete_fetch_needs_no_connection(self):
        """A loss after the last message is no error."""
        rig = Rig(max_messages=1, ordered=True)
        rig.receive(message())
        rig.lost()
        assert rig.engine.error is None

    def test_a_message_that_is_larger_than_the_limit(self):
        """Without a lost pull, the fetch keeps what the server counts differently."""
        rig = Rig(max_bytes=100)
        rig.receive(message(150))
        assert (rig.engine.admitted, rig.engine.refused) == (1, [])

    def test_late_messages_beyond_the_limit_are_refused(self):
        """If the lost pull is served, too, the fetch ends and refuses what exceeds its limit."""
        rig = Rig(max_messages=3)
        rig.receive(message())
        rig.lost()
        rig.send()
        rig.receive(*[message()] * 4)
        assert (rig.engine.admitted, len(rig.engine.refused)) == (3, 2)
        assert rig.engine.is_ending
        assert rig.engine.may_be_served

    def test_late_messages_beyond_the_bytes_are_refused(self):
        """The limit of bytes counts late messages, too."""
        rig = Rig(max_messages=9, max_bytes=100)
        rig.receive(message(30))
        rig.lost()
        rig.send()
        rig.receive(*[message(30)] * 3)
        assert (rig.engine.admitted, len(rig.engine.refused)) == (3, 1)
        assert rig.engine.is_ending

    def test_late_messages_without_acks_are_kept(self):
        """Without acks, the server would not redeliver them, so the fetch keeps all of them."""
        rig = Rig(max_messages=3, acked=False)
        rig.receive(message())
        rig.lost()
        rig.send()
        rig.receive(*[message()] * 4)
        assert (rig.engine.admitted, rig.engine.refused) == (5, [])
        assert rig.engine.is_ending


class TestNoWait:
    def rig(self, **changes):
        return Rig(**{"no_wait": True, "expires": 0.0, "wait": 5.0, **changes})

    def test_three_pulls(self):
        """
        The second pull waits for a moment. If it is cut off, the third one fetches the rest.
        """
        rig = self.rig()
        assert rig.status("404 No Messages") is PullOutcome.RETRIED
        second = rig.send()
        assert (second.no_wait, second.expires, second.max_messages) == (True, SECOND_PULL, 10)
        rig.receive(message())
        assert rig.status("408 Request Timeout") is PullOutcome.RETRIED
        third = rig.send()
        assert (third.no_wait, third.expires, third.max_messages) == (True, 0.0, 9)
        assert rig.status("404 No Messages") is PullOutcome.ENDED
        assert rig.engine.is_ending

    def test_the_next_consumer_gets_as_many_pulls(self):
        """If an ordered consumer is replaced, the pulls of the last one do not count."""
        rig = self.rig(ordered=True)
        rig.status("404 No Messages")
        assert rig.send().expires == SECOND_PULL
        rig.engine.restart(OpenPulls(b"_INBOX.d", Origin("S", "D")), rig.clock())
        assert rig.send().expires == 0.0
        assert rig.status("404 No Messages") is PullOutcome.RETRIED
        assert rig.send().expires == SECOND_PULL

    def test_the_same_pull_after_a_temporary_status(self):
        """A temporary status does not use up a pull."""
        rig = self.rig()
        rig.status("409 Leadership Change")
        rig.clock.advance(PULL_RETRY_WAIT)
        assert rig.send().expires == 0.0
        # Silence counts from the new pull.
        assert rig.engine.next_look() == rig.in_(PULL_RETRY_WAIT + NO_WAIT_SILENCE)
        assert rig.status("404 No Messages") is PullOutcome.RETRIED

    def silent(self, **changes):
        """
        Return a rig whose server keeps the pull and says nothing.
        """
        rig = self.rig(**changes)
        assert rig.engine.next_look() == rig.in_(NO_WAIT_SILENCE)
        rig.clock.advance(NO_WAIT_SILENCE)
        assert rig.look() is None
        return rig

    def test_no_question_too_early(self):
        """The server is only asked after a silence, which each message ends."""
        rig = self.rig()
        rig.clock.advance(NO_WAIT_SILENCE - 0.01)
        rig.receive(message())
        rig.clock.advance(0.02)
        rig.look()
        assert rig.engine.probe_due(rig.clock()) is None
        assert rig.engine.next_look() == rig.in_(2 * NO_WAIT_SILENCE - 0.01)
        rig.clock.advance(NO_WAIT_SILENCE)
        rig.look()
        assert rig.engine.probe_due(rig.clock()) is not None

    def test_a_fetch_that_waits_asks_nothing(self):
        """Without `no_wait`, silence is normal."""
        rig = Rig()
        rig.clock.advance(1.0)
        rig.look()
        assert rig.engine.probe_due(rig.clock()) is None

    @pytest.mark.parametrize(
        "answer",
        [
            info(pending=0),
            info(ack_pending=2, max_ack_pending=2),
            info(paused=True),
        ],
    )
    def test_the_consumer_cannot_deliver(self, answer):
        """The fetch ends without an error if its consumer cannot deliver now."""
        rig = self.silent()
        rig.answer(answer)
        assert rig.engine.is_ending
        assert rig.engine.error is None
        assert rig.engine.may_be_served

    def test_a_group_ends_at_once(self):
        """In a group, another client may be preferred, so the fetch ends."""
        rig = self.silent(priorities=Priorities("A"))
        rig.answer(info())
        assert rig.engine.is_ending

    @pytest.mark.parametrize(
        "answer",
        [info(), info(ack_pending=1, max_ack_pending=2), info(ack_pending=9, max_ack_pending=-1)],
    )
    def test_the_consumer_will_deliver(self, answer):
        """The fetch waits if its consumer knows the pull and can deliver."""
        rig = self.silent()
        rig.answer(answer)
        assert not rig.engine.is_ending
        assert not rig.engine.is_due

    def test_a_pull_that_was_dropped(self):
        """If the consumer knows no pull, the fetch sends another one."""
        rig = self.silent()
        rig.answer(info(waiting=0))
        assert rig.engine.is_due
        assert rig.engine.gave_up
        assert rig.send().max_messages == 10

    def test_a_pull_that_was_dropped_at_the_end(self):
        """Without time for another pull, the open one is kept."""
        rig = self.silent(wait=NO_WAIT_SILENCE)
        rig.answer(info(waiting=0))
        assert not rig.engine.is_due

    def test_the_consumer_is_gone(self):
        """The fetch ends with an error if its consumer is gone."""
        rig = self.silent()
        rig.answer(GONE)
        assert isinstance(rig.engine.error, errors.ConsumerNotFoundError)

    @pytest.mark.parametrize("data", [b"", BUSY])
    def test_no_server_knows(self, data):
        """The fetch waits and asks again if no server knows the consumer."""
        rig = self.silent()
        rig.answer(data)
        assert not rig.engine.is_ending
        rig.clock.advance(NO_WAIT_SILENCE)
        rig.look()
        assert rig.engine.probe_due(rig.clock()) is not None

    def test_a_malformed_answer(self):
        """An answer that is no consumer info ends the fetch with an error, after its messages."""
        rig = self.silent()
        rig.answer(b'{"stream_name": "S", "num_pending": "many"}')
        assert isinstance(rig.engine.error, errors.ProtocolError)

    def test_messages_came_meanwhile(self):
        """An answer means nothing if a message has arrived after the question."""
        rig = self.silent()
        reply = rig.engine.probe_due(rig.clock())
        rig.clock.advance(0.01)
        rig.receive(message())
        rig.receive((reply, b"", None, info(pending=0)))
        assert not rig.engine.is_ending

    def test_messages_came_before(self):
        """An answer counts if the last message has arrived before the question."""
        rig = self.rig()
        rig.clock.advance(0.01)
        rig.receive(message())
        rig.clock.advance(NO_WAIT_SILENCE)
        rig.look()
        rig.answer(info(pending=0))
        assert rig.engine.is_ending

    def test_an_answer_after_the_pull(self):
        """An answer means nothing once the pull that it is about has ended."""
        rig = self.silent()
        reply = rig.engine.probe_due(rig.clock())
        rig.status("404 No Messages")
        rig.receive((reply, b"", None, info(pending=0)))
        assert rig.engine.is_due
        rig.clock.advance(0.001)
        assert rig.send()

    def test_a_late_answer_to_an_earlier_fetch(self):
        """An answer to a question of an earlier fetch on the same inbox means nothing."""
        rig = self.silent()
        reply = rig.engine.probe_due(rig.clock())
        rig.engine.pulls.probe.reset()
        rig.receive((reply, b"", None, info(pending=0)))
        assert not rig.engine.is_ending
        assert not rig.engine.buffer

    def test_the_question_is_lost_with_the_connection(self):
        """After another connection, the server is asked again at once."""
        rig = self.silent()
        assert rig.engine.probe_due(rig.clock()) is not None
        rig.lost()
        rig.send()
        rig.clock.advance(NO_WAIT_SILENCE)
        rig.look()
        assert rig.engine.probe_due(rig.clock()) is not None


class TestInboxes:
    def test_an_interrupted_fetch(self):
        """The inbox of a fetch that Ctrl-C interrupts is not used again, even in a pause."""
        rig = Rig()
        rig.status("409 Leadership Change")
        assert rig.engine.may_be_served
        rig.engine.drain()
        assert not rig.engine.may_be_served

    def test_an_invalid_group(self):
        """Servers before 2.14 refuse a pull for its group and still serve it."""
        rig = Rig(priorities=Priorities("A"))
        assert rig.status("400 Bad Request - Invalid Priority Group") is PullOutcome.FAILED
        assert rig.engine.may_be_served


class TestAway:
    @pytest.mark.parametrize("heartbeat", [5.0, None])
    def test_silence_does_not_count_while_no_thread_reads(self, heartbeat):
        """
        Silence counts from the moment at which a thread reads again, if there are heartbeats.
        """
        rig = Rig(heartbeat=heartbeat)
        rig.engine.leave(rig.clock())
        rig.clock.advance(20.0)
        rig.engine.back(rig.clock())
        assert rig.look() is None
        assert rig.engine.error is None
        rig.clock.advance(10.0)
        assert (rig.look() is None) is (heartbeat is None)

    def test_an_interrupted_step(self):
        """
        After an interrupt inside a step, messages may still arrive, though no pull is open.
        """
        rig = Rig()
        rig.engine.pulls.remove(*rig.pulls)
        rig.engine.interrupted(errors.HandleClosedError("batch"))
        assert rig.engine.is_ending
        assert rig.engine.may_be_served

    def test_lost_connections_are_counted(self):
        """
        The engine counts the lost connections.
        """
        rig = Rig()
        rig.lost(1)
        rig.lost(2)
        assert rig.engine.losses == 2
