from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from jetsync import errors
from jetsync._proto.pipeline import Pipeline, Tally
from jetsync.testing import ManualClock
from jetsync.values.pub_acks import PubAck

# The tests run over both variants of the functions that have compiled twins.
pytestmark = pytest.mark.usefixtures("variant")

PREFIX = b"_INBOX.w."
NO_RESPONDERS = b"NATS/1.0 503\r\nNats-Subject: x\r\n\r\n"
EVER = 1 << 62


def answer(number, data, header=None):
    """Return the frame that answers a message."""
    return (PREFIX + b"%d" % number, b"", header, data)


def ack(number, sequence, **more):
    """Return an acknowledgement as servers write it."""
    fields = {"stream": "S", "seq": sequence, **more}
    return answer(number, json.dumps(fields, separators=(",", ":")).encode())


def refusal(number):
    """Return the answer that no stream took the message."""
    return answer(number, b"", NO_RESPONDERS)


def denial(number):
    """Return an error of the stream."""
    error = {"code": 400, "err_code": 10071, "description": "wrong last sequence: 3"}
    return answer(number, json.dumps({"error": error, "stream": "S", "seq": 0}).encode())


def send(pipeline, numbers, epoch=1, due=10.0, size=0):
    """Put messages in flight as their sender does. Each item contains its number."""
    pipeline.enter((number, f"m{number}") for number in numbers)
    pipeline.sent(numbers, epoch, due, size)


@pytest.fixture
def pipeline():
    """A pipeline that only counts."""
    return Pipeline(PREFIX)


@pytest.fixture
def keeping():
    """A pipeline that keeps the acks."""
    return Pipeline(PREFIX, keep_acks=True)


class TestSize:
    def test_whole_blocks_count(self, pipeline):
        """The bytes of a block count until all of its messages have ended, in any order."""
        for start in (0, 2, 4):
            send(pipeline, range(start, start + 2), size=100)
        pipeline.receive([ack(2, 1), ack(3, 2), ack(0, 3)])
        assert pipeline.next_timeout() == 10.0
        assert pipeline.size == 300
        pipeline.prune()
        assert pipeline.size == 200
        pipeline.receive([ack(1, 4)])
        assert pipeline.next_timeout() == 10.0
        assert pipeline.size == 100
        send(pipeline, (6,), due=20.0, size=50)
        assert pipeline.size == 150
        pipeline.lost(1)
        assert pipeline.size == 0


class TestReceive:
    def test_acks_are_counted_with_the_range_of_their_sequences(self, pipeline):
        """Acks are counted, with the range of their sequences, in any order."""
        send(pipeline, range(5))
        pipeline.receive([ack(1, 12), ack(0, 11), ack(4, 15)])
        assert pipeline.tally == Tally(3, 0, 11, 15)
        assert sorted(pipeline.in_flight) == [2, 3]
        assert repr(pipeline) == "<Pipeline in_flight=2 acked=3>"
        pipeline.receive([ack(2, 1), ack(3, 20)])
        assert pipeline.tally == Tally(5, 0, 1, 20)
        assert (pipeline.in_flight, pipeline.failed, pipeline.refused) == ({}, [], [])
        assert pipeline.acked == []

    def test_acks_can_be_collected_with_their_messages(self, keeping):
        """Acks can be collected, each with its message."""
        send(keeping, range(3))
        keeping.receive([ack(2, 7), ack(0, 8, duplicate=True)])
        keeping.receive([[(b"1", b"9")]])
        assert [(item, keeping.full_ack(ack)) for item, ack in keeping.acked] == [
            ("m2", PubAck("S", 7)),
            ("m0", PubAck("S", 8, duplicate=True)),
            ("m1", PubAck("S", 9)),
        ]
        assert keeping.plain == b'{"stream":"S","seq":'
        assert keeping.tally == Tally(3, 1, 7, 9)

    def test_a_duplicate_is_counted_as_such(self, pipeline):
        """A duplicate is counted as such, also between plain acks."""
        send(pipeline, range(3))
        pipeline.receive([ack(0, 1), ack(1, 1, duplicate=True), ack(2, 2)])
        assert pipeline.tally == Tally(3, 1, 1, 2)

    def test_the_prefix_of_plain_acks_is_that_of_the_last_stream(self, pipeline):
        """The prefix of plain acks is that of the last stream."""
        assert pipeline.plain == b""
        send(pipeline, range(4))
        pipeline.receive([ack(0, 1)])
        assert pipeline.plain == b'{"stream":"S","seq":'
        pipeline.receive([answer(1, b'{"stream":"T", "seq":9}'), ack(2, 3)])
        assert pipeline.tally.count == 3
        assert pipeline.plain == b'{"stream":"S","seq":'

    def test_only_like_plain(self, pipeline):
        """An ack that only starts like a plain one is parsed in full."""
        send(pipeline, range(4))
        more = b'{"stream":"S","seq":2,"duplicate": true}'
        broken = b'{"stream":"S","seq":3'
        pipeline.receive([ack(0, 1), answer(1, more), answer(2, broken + b"xy"), answer(3, broken)])
        assert pipeline.tally == Tally(2, 1, 1, 2)
        assert [number for number, _, _ in pipeline.failed] == [2, 3]

    @pytest.mark.parametrize("last", [b"}", b"]", b"x", b""])
    @pytest.mark.parametrize("sequence", [b"", b"-1", b"+1", b"1_0", b"0x1", b"\xd9\xa1"])
    def test_a_sequence_that_is_none(self, pipeline, sequence, last):
        """An ack that starts like a plain one and has no sequence is parsed in full."""
        send(pipeline, range(2))
        pipeline.receive([ack(0, 1), answer(1, b'{"stream":"S","seq":' + sequence + last)])
        assert pipeline.tally == Tally(1, 0, 1, 1)
        ((number, _, error),) = pipeline.failed
        assert (number, type(error)) == (1, errors.ProtocolError)

    @pytest.mark.parametrize("number", [10**18, 10**19 - 1, 10**19, (1 << 64) + 1, 10**20 - 1])
    def test_huge_numbers(self, keeping, number):
        """Numbers of up to 20 digits are numbers of messages, and longer ones are not."""
        send(keeping, [0, number, 10 * number])
        keeping.receive([ack(0, 1), ack(number, 2)])
        assert keeping.tally == Tally(2, 0, 1, 2)
        keeping.receive([ack(10**20, 3)])
        assert list(keeping.in_flight) == [10 * number]

    @pytest.mark.parametrize("sequence", [10**18, 10**19 - 1, 10**19, (1 << 64) - 1])
    @pytest.mark.parametrize("keeps", [True, False])
    def test_huge_sequences(self, sequence, keeps):
        """A sequence may be any unsigned integer of 64 bits."""
        pipeline = Pipeline(PREFIX, keep_acks=keeps)
        send(pipeline, range(3))
        pipeline.receive([ack(0, 1), ack(1, sequence), ack(2, 2)])
        assert pipeline.tally == Tally(3, 0, 1, sequence)
        acks = [pipeline.full_ack(each) for _, each in pipeline.take_acked()]
        assert acks == [PubAck("S", each) for each in (1, sequence, 2)] * keeps

    def test_no_64_bits(self, pipeline):
        """An ack with a larger sequence is no ack, so the outcome of its message is unknown."""
        send(pipeline, range(2))
        pipeline.receive([ack(0, 1), ack(1, 1 << 64)])
        assert [type(error) for _, _, error in pipeline.failed] == [errors.ProtocolError]

    def test_a_message_that_is_none(self, keeping):
        """A message that is None leaves, and is not counted."""
        keeping.enter([(1, None), (2, "two"), (3, None)])
        keeping.receive([ack(1, 5), [(b"1", b"6"), (b"3", b"7"), (b"2", b"8")]])
        assert keeping.in_flight == {}
        assert keeping.tally == Tally(1, 0, 8, 8)
        assert keeping.take_acked() == [("two", 8)]

    def test_no_number(self, pipeline):
        """A plain ack whose subject does not end in a number is ignored."""
        send(pipeline, range(2))
        pipeline.receive([ack(0, 1)])
        pipeline.receive([(PREFIX + b"x1", b"", None, b'{"stream":"S","seq":2}'), ack(1, 3)])
        assert pipeline.tally.count == 2

    def test_runs_of_plain_acks_are_counted_like_single_ones(self, pipeline):
        """Runs of plain acks are counted like single ones, without messages that have ended."""
        send(pipeline, range(4))
        pipeline.receive([ack(0, 5)])
        pipeline.receive([[(b"0", b"99"), (b"3", b"8"), (b"1", b"4"), (b"77", b"1")]])
        assert pipeline.tally == Tally(3, 0, 4, 8)
        assert list(pipeline.in_flight) == [2]
        pipeline.receive([[(b"3", b"100")]])
        assert pipeline.tally == Tally(3, 0, 4, 8)

    def test_an_error_of_the_stream_ends_its_message(self, pipeline):
        """An error of the stream ends its message with that error."""
        send(pipeline, range(2))
        pipeline.receive([denial(1)])
        ((number, item, error),) = pipeline.failed
        assert (number, item, type(error)) == (1, "m1", errors.WrongLastSequenceError)
        assert list(pipeline.in_flight) == [0]

    @pytest.mark.parametrize(
        ("data", "header"),
        [
            (b"", None),
            (b"+OK", None),
            (b"{}", None),
            (b"", b"NATS/1.0 408\r\n\r\n"),
            (b"", b"NATS/1.0 what\r\n\r\n"),
        ],
    )
    def test_an_answer_that_cannot_be_parsed_ends_its_message(self, pipeline, data, header):
        """An answer that cannot be parsed ends its message with a ProtocolError."""
        send(pipeline, range(1))
        pipeline.receive([answer(0, data, header)])
        ((number, _, error),) = pipeline.failed
        assert (number, type(error)) == (0, errors.ProtocolError)
        assert pipeline.in_flight == {}

    def test_an_answer_to_an_ended_message_is_ignored(self, pipeline):
        """An answer to a message that has ended, or that was never sent, is ignored."""
        send(pipeline, range(1))
        pipeline.receive([ack(0, 1)])
        pipeline.receive([ack(0, 2), denial(0), refusal(0), ack(5, 3)])
        assert pipeline.tally == Tally(1, 0, 1, 1)
        assert (pipeline.failed, pipeline.refused) == ([], [])

    def test_give_up(self):
        """The owner learns of a message that times out while it is still in flight."""
        told = []
        pipeline = Pipeline(PREFIX, give_up=lambda item: told.append((item, *pipeline.in_flight)))
        send(pipeline, (1,))
        pipeline.expire(EVER)
        assert told == [("m1", 1)]
        assert not pipeline.in_flight

    def test_refused_messages_end_if_they_are_in_flight(self, pipeline):
        """Messages that the server refuses end if they are in flight."""
        send(pipeline, range(4))
        error = errors.PermissionDeniedError("odd", "publish")
        pipeline.deny([-1, 1, 3, 5], error)
        assert pipeline.failed == [(1, "m1", error), (3, "m3", error)]
        assert list(pipeline.in_flight) == [0, 2]


class TestRefused:
    def test_may_go_again(self, pipeline):
        """A message that no stream took is not in flight, and may be sent again."""
        send(pipeline, range(2))
        pipeline.receive([refusal(0), ack(1, 1)])
        assert pipeline.refused == [(0, "m0")]
        assert (pipeline.in_flight, pipeline.failed) == ({}, [])
        pipeline.taken()
        send(pipeline, (2,), due=20.0)
        pipeline.receive([ack(0, 7), ack(2, 2)])
        assert pipeline.tally == Tally(2, 0, 1, 2)

    def test_nothing_is_kept(self, pipeline):
        """Messages that were sent again and acknowledged leave no state."""
        for number in range(0, 100, 2):
            send(pipeline, (number,), due=number)
            pipeline.receive([refusal(number)])
            send(pipeline, (number + 1,), due=number + 1.0)
            pipeline.receive([ack(number + 1, number + 1)])
        assert pipeline.next_timeout() is None
        assert not pipeline._blocks


class TestTime:
    def test_messages_without_an_ack_in_time_end_as_unknown(self, pipeline):
        """Messages without an ack in time end as unknown."""
        send(pipeline, range(3), due=10.0)
        send(pipeline, range(3, 5), due=11.0)
        pipeline.receive([ack(1, 1)])
        assert pipeline.next_timeout() == 10.0
        pipeline.expire(9.5)
        assert pipeline.failed == []
        pipeline.expire(10.0)
        assert pipeline.failed == [(0, "m0", None), (2, "m2", None)]
        assert pipeline.next_timeout() == 11.0

    def test_nothing_is_due_if_nothing_is_in_flight(self, pipeline):
        """There is no time-out if nothing is in flight. Blocks that are done do not count."""
        assert pipeline.next_timeout() is None
        send(pipeline, range(2), due=10.0)
        send(pipeline, range(2, 4), due=11.0)
        pipeline.receive([ack(0, 1), ack(1, 2)])
        assert pipeline.next_timeout() == 11.0
        pipeline.receive([ack(3, 3)])
        assert pipeline.next_timeout() == 11.0
        pipeline.receive([ack(2, 4)])
        assert pipeline.next_timeout() is None

    def test_a_loss_ends_the_messages_of_older_connections(self, pipeline):
        """A loss ends the messages of that connection and of older ones."""
        send(pipeline, range(2), epoch=1)
        send(pipeline, range(2, 4), epoch=3)
        send(pipeline, range(4, 6), epoch=2)
        pipeline.lost(2)
        assert [number for number, _, _ in pipeline.failed] == [0, 1, 4, 5]
        assert list(pipeline.in_flight) == [2, 3]
        pipeline.lost(2)
        assert len(pipeline.failed) == 4


class PipelineMachine(RuleBasedStateMachine):
    """
    Send, answer, lose and time out messages in any order. Each ends exactly once.
    """

    @initialize(keep=st.booleans())
    def start(self, keep):
        self.keep = keep
        self.pipeline = Pipeline(PREFIX, keep_acks=keep)
        self.clock = ManualClock()
        self.epoch = 1
        self.sequence = 0
        self.total = 0
        self.flying = {}
        self.refused = set()
        self.again = set()
        self.acked = {}
        self.failed = {}

    def end(self, number, book, what):
        assert number not in self.acked
        assert number not in self.failed
        book[number] = what

    def collect(self):
        """Compare the messages that have ended with the expected ones."""
        for number, item, error in self.pipeline.failed:
            assert item == f"m{number}"
            assert number in self.failed
            assert self.failed[number] in {None, type(error)}
            self.failed[number] = type(error)
        counts = [number for number, _, _ in self.pipeline.failed]
        assert len(set(counts)) == len(counts)
        self.reported.update(counts)
        self.pipeline.failed.clear()
        assert set(self.failed) == self.reported

    @property
    def reported(self):
        return self.__dict__.setdefault("_reported", set())

    @precondition(lambda self: len(self.flying) <= 45)
    @rule(count=st.integers(1, 5))
    def send_some(self, count):
        self.send(count)

    def send(self, count):
        numbers = range(self.total, self.total + count)
        send(self.pipeline, numbers, self.epoch, self.clock() + 10.0)
        for number in numbers:
            self.flying[number] = (self.epoch, self.clock() + 10.0)
        self.total += count

    @precondition(lambda self: self.total)
    @rule(data=st.data())
    def answers(self, data):
        """Answer messages in flight, refused, ended and unknown ones."""
        numbers = st.integers(max(0, self.total - 12), self.total)
        kinds = st.sampled_from(["plain", "plain", "plain", "duplicate", "503", "error", "junk"])
        frames = []
        for number, kind in data.draw(st.lists(st.tuples(numbers, kinds), max_size=10)):
            self.sequence += 1
            frames.append(
                {
                    "plain": ack(number, self.sequence),
                    "duplicate": ack(number, self.sequence, duplicate=True),
                    "503": refusal(number),
                    "error": denial(number),
                    "junk": answer(number, b""),
                }[kind]
            )
            if number not in self.flying:
                continue
            del self.flying[number]
            if kind == "503":
                self.refused.add(number)
            elif kind == "error":
                self.end(number, self.failed, errors.WrongLastSequenceError)
            elif kind == "junk":
                self.end(number, self.failed, errors.ProtocolError)
            else:
                self.end(number, self.acked, self.sequence)
        self.pipeline.receive(frames)
        self.collect()

    @precondition(lambda self: self.total and not self.keep)
    @rule(data=st.data())
    def run_of_acks(self, data):
        numbers = data.draw(st.lists(st.integers(max(0, self.total - 8), self.total)))
        run = []
        for number in numbers:
            self.sequence += 1
            run.append((b"%d" % number, b"%d" % self.sequence))
            if self.flying.pop(number, None):
                self.end(number, self.acked, self.sequence)
        self.pipeline.receive([run])

    @precondition(lambda self: self.refused)
    @rule(data=st.data())
    def send_again(self, data):
        number = data.draw(st.sampled_from(sorted(self.refused)))
        self.refused.discard(number)
        self.again.add(number)
        self.pipeline.refused.remove((number, f"m{number}"))
        self.send(1)

    @precondition(lambda self: self.refused)
    @rule()
    def give_refused_up(self):
        """Stop retrying."""
        for number, _ in self.pipeline.refused:
            self.refused.remove(number)
            self.end(number, self.failed, None)
            self.reported.add(number)
        self.pipeline.refused.clear()

    @rule(behind=st.integers(0, 1))
    def lose(self, behind):
        lost = self.epoch - behind
        for number in [n for n, (epoch, _) in self.flying.items() if epoch <= lost]:
            del self.flying[number]
            self.end(number, self.failed, type(None))
        self.pipeline.lost(lost)
        self.epoch += 1
        self.collect()

    @rule(seconds=st.integers(0, 12))
    def time_passes(self, seconds):
        now = self.clock.advance(seconds)
        for number in [n for n, (_, due) in self.flying.items() if due <= now]:
            del self.flying[number]
            self.end(number, self.failed, type(None))
        self.pipeline.expire(now)
        self.collect()

    @rule(digit=st.integers(0, 9))
    def deny(self, digit):
        denied = [n for n in self.flying if n % 10 == digit]
        for number in denied:
            del self.flying[number]
            self.end(number, self.failed, errors.PermissionDeniedError)
        error = errors.PermissionDeniedError(str(digit), "publish")
        self.pipeline.deny(denied, error)
        self.collect()

    @invariant()
    def nothing_is_lost(self):
        """Every message is in flight, refused, or has ended; the counts agree."""
        assert set(self.pipeline.in_flight) == set(self.flying)
        assert {number for number, _ in self.pipeline.refused} == self.refused
        ended = len(self.acked) + len(self.failed)
        assert len(self.flying) + len(self.refused) + len(self.again) + ended == self.total

    @invariant()
    def tally_agrees(self):
        """Count and range match the acks."""
        tally = self.pipeline.tally
        assert tally.count == len(self.acked)
        assert tally.first_sequence == min(self.acked.values(), default=None)
        assert tally.last_sequence == max(self.acked.values(), default=None)
        if self.keep:
            full_ack = self.pipeline.full_ack
            kept = {int(item[1:]): full_ack(ack).sequence for item, ack in self.pipeline.acked}
            assert kept == self.acked

    @invariant()
    def due_in_time(self):
        """While something is in flight, the time-out is known and not too late."""
        due = self.pipeline.next_timeout()
        assert (due is None) is (not self.flying)
        assert due is None or due <= min(moment for _, moment in self.flying.values())

    def teardown(self):
        if "pipeline" not in self.__dict__:
            return
        self.pipeline.lost(EVER)
        for number in self.flying:
            self.end(number, self.failed, type(None))
        self.collect()
        assert self.pipeline.in_flight == {}
        assert self.pipeline.next_timeout() is None


def test_anything():
    """Whatever happens to the messages, each ends exactly once."""
    run_state_machine_as_test(
        PipelineMachine,
        settings=settings(
            max_examples=40,
            stateful_step_count=20,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow],
        ),
    )
