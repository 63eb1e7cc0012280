from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetsync._proto.ordered import LONGEST_PAUSE, OrderedCursor
from jetsync.errors import ProtocolError


def cursor(**wanted):
    """Return a cursor whose first consumer has been created."""
    made = OrderedCursor(wanted, "R")
    made.next_config()
    made.made(0)
    return made


def reply(stream, consumer, name="R_1", head=b"$JS.ACK"):
    """Return the reply subject of a message with these sequences."""
    return b"%b.S.%b.1.%d.%d.1700000000.0" % (head, name.encode(), stream, consumer)


class TestConfig:
    def test_of_every_consumer(self):
        """
        Consumers need no acknowledgements and are kept in memory.
        """
        config = OrderedCursor({"filter_subject": "a.>"}, "R").next_config()
        assert config == {
            "name": "R_1",
            "ack_policy": "none",
            "mem_storage": True,
            "num_replicas": 1,
            "max_deliver": 1,
            "inactive_threshold": 300_000_000_000,
            "filter_subject": "a.>",
        }

    def test_of_every_consumer_of_a_stream_with_interest(self):
        """
        The server may decide how many replicas a consumer has.
        """
        config = OrderedCursor({}, "R", None).next_config()
        assert "num_replicas" not in config

    def test_before_any_message(self):
        """
        Before any message, the next consumer has the user's start.
        """
        config = cursor(deliver_policy="by_start_sequence", opt_start_seq=3).next_config()
        assert (config["name"], config["opt_start_seq"]) == ("R_2", 3)

    def test_after_the_last_message(self):
        """
        The next consumer begins after the last message, whatever the deliver policy.
        """
        made = cursor(deliver_policy="last_per_subject", filter_subjects=["a", "b"])
        assert made.take(reply(7, 1)) == "next"
        config = made.next_config()
        assert config["deliver_policy"] == "by_start_sequence"
        assert config["opt_start_seq"] == 8
        assert config["filter_subjects"] == ["a", "b"]

    @pytest.mark.parametrize("policy", ["new", "last"])
    def test_new_keeps_its_start(self, policy):
        """
        With "new" and "last", the next consumer begins where the first one did.
        """
        made = OrderedCursor({"deliver_policy": policy}, "R")
        made.next_config()
        made.made(41)
        assert made.next_config()["opt_start_seq"] == 42
        made.made(41)


class TestOrder:
    @pytest.mark.parametrize("numbers", [b"x.1", b"1.x", b"1.", b"-1.1", b"1.-2"])
    def test_a_malformed_sequence(self, numbers):
        """
        A reply subject with a sequence that is no number is a protocol error, not a gap.
        """
        with pytest.raises(ProtocolError):
            cursor().take(b"$JS.ACK.S.R_1.1.%b.1700000000.0" % numbers)

    @pytest.mark.parametrize("head", [b"$JS.ACK", b"$JS.ACK._.hash"])
    def test_in_order(self, head):
        """
        Holes in the stream sequence are no gaps, because filters cause them.
        """
        made = cursor()
        for number, sequence in enumerate([3, 4, 9], 1):
            assert made.take(reply(sequence, number, head=head)) == "next"
        assert (made.last, made.delivered) == (9, 3)

    def test_a_gap_stays_one(self):
        made = cursor()
        made.take(reply(1, 1))
        assert made.take(reply(3, 3)) == "gap"
        assert made.take(reply(4, 4)) == "gap"
        assert made.last == 1

    def test_repeated_and_foreign_messages(self):
        """
        Messages of another consumer and repeated messages are dropped.
        """
        made = cursor()
        made.take(reply(5, 1))
        made.next_config()
        assert made.take(reply(6, 2)) == "duplicate"
        assert made.take(reply(5, 1, "R_2")) == "duplicate"
        assert made.take(reply(6, 2, "R_2")) == "next"

    @given(st.lists(st.sampled_from(["send", "lose", "delete"]), max_size=60))
    def test_whatever_is_lost(self, happenings):
        """
        All messages arrive once and in order, whatever is lost or deleted.
        """
        made, got = cursor(), []
        start, sent = 1, 0
        steps = itertools.chain(happenings, itertools.repeat("send", 70))
        for step in steps:
            order = "next"
            if step != "delete":
                sent += 1
                if step == "send":
                    order = made.take(reply(start + sent - 1, sent, made.name))
                    if order == "next":
                        got.append(made.last)
            if step == "delete" or order == "gap":
                start, sent = made.next_config().get("opt_start_seq", 1), 0
        assert got == list(range(1, len(got) + 1))
        assert len(got) >= 8


class TestLookAhead:
    SENT = st.lists(st.tuples(st.integers(1, 3), st.sampled_from(["", "lose", "repeat", "swap"])))

    @given(SENT, st.integers(1, 9))
    def test_like_one_at_a_time(self, sent, size):
        """
        A run that was checked at once is taken like single messages, whatever is lost or repeated.
        """
        sequence, replies = 0, []
        for number, (step, happening) in enumerate(sent, 1):
            sequence += step
            copies = {"lose": 0, "repeat": 2}.get(happening, 1)
            replies += [reply(sequence, number)] * copies
            if happening == "swap":
                replies[-2:] = reversed(replies[-2:])
        single, ahead = cursor(), cursor()
        for start in range(0, len(replies), size):
            run = replies[start : start + size]
            ahead.look_ahead(run)
            for subject in run:
                assert ahead.take(subject) == single.take(subject)
                assert (ahead.last, ahead.delivered) == (single.last, single.delivered)

    def test_a_run_ends_where_a_number_gets_longer(self):
        """
        Messages before a sequence with more digits are a run, and those after it are the next one.
        """
        made = cursor()
        replies = [reply(sequence, sequence - 6) for sequence in range(7, 13)]
        made.look_ahead(replies)
        assert made.ahead == replies[2::-1]
        assert [made.take(each) for each in replies[:3]] == ["next"] * 3
        made.look_ahead(replies[3:])
        assert made.ahead == replies[:2:-1]

    def test_whole_runs(self):
        """
        Messages in order are recognised as a run, and those of another consumer are not.
        """
        made = cursor()
        made.look_ahead([])
        first, second = reply(4, 1), reply(6, 2)
        made.look_ahead([first, second])
        assert made.take(first) == "next"
        assert made.ahead == [second]
        made.next_config()
        assert made.ahead == []
        made.look_ahead([reply(5, 1, "R_2"), reply(6, 2)])
        made.look_ahead([reply(4, 1, "R_2"), reply(6, 2, "R_2")])
        assert made.ahead == []

    def test_a_message_that_disappears(self):
        """
        A message that is lost after it was checked is a gap.
        """
        made = cursor()
        run = [reply(sequence, sequence) for sequence in (1, 2, 3)]
        made.look_ahead(run)
        assert [made.take(run[0]), made.take(run[2]), made.take(run[2])] == ["next", "gap", "gap"]
        assert (made.last, made.delivered) == (1, 1)

    def test_the_rest_of_the_run_after_a_put_back_are_gaps(self):
        """
        After a message was put back, the rest of its run are gaps.
        """
        made = cursor()
        first, before = reply(4, 1), made.position
        made.look_ahead([first, reply(6, 2)])
        made.take(first)
        made.go_back(before)
        assert (made.last, made.delivered) == (None, 0)
        made.look_ahead([reply(6, 2)])
        assert made.take(reply(6, 2)) == "gap"


def test_messages_after_one_that_was_put_back_are_gaps():
    """
    The next consumer delivers a message that was put back, and later messages are gaps.
    """
    it = cursor()
    assert it.take(reply(5, 1)) == "next"
    before = it.position
    assert it.take(reply(7, 2)) == "next"
    it.go_back(before)
    it.go_back(before)
    assert (it.last, it.delivered) == (5, 1)
    assert it.take(reply(8, 3)) == "gap"
    assert it.next_config()["opt_start_seq"] == 6


@pytest.mark.parametrize("ahead", [False, True])
def test_the_time_of_the_position(ahead):
    """
    The position has the time of the last message, and none before the first one.
    """
    it = cursor()
    it.made(7)
    assert it.last_time is None
    first, second = reply(5, 1), reply(6, 2)
    assert it.take(first) == "next"
    assert it.last_time == 1_700_000_000
    if ahead:
        it.look_ahead([second])
    before = it.position
    assert it.take(second) == "next"
    it.go_back(before)
    assert (it.last, it.last_time) == (5, 1_700_000_000)


def test_pauses_grow_until_a_message_comes():
    """
    The first attempt has no pause. Later pauses grow up to a limit.
    """
    made = cursor()
    pauses = [made.pause() for _ in range(9)]
    assert pauses[:4] == [0.0, 0.1, 0.2, 0.4]
    assert pauses[-1] == LONGEST_PAUSE
    made.take(reply(1, 1))
    assert made.pause() == 0.0


def test_failures_in_a_row():
    """
    Failures in a row count from 1 again after a consumer was created.
    """
    made = cursor()
    assert [made.failed(), made.failed()] == [1, 2]
    made.made(0)
    assert made.failed() == 1
