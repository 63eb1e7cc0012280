from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetsync._proto.ordered import LONGEST_PAUSE, OrderedCursor, read_reply
from jetsync.errors import ProtocolError


def cursor(**wanted):
    """Return a cursor whose first consumer has been created."""
    made = OrderedCursor(wanted, "R")
    made.next_config(None)
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
        config = OrderedCursor({"filter_subject": "a.>"}, "R").next_config(None)
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
        config = OrderedCursor({}, "R", None).next_config(None)
        assert "num_replicas" not in config

    def test_before_any_message(self):
        """
        Before any message, the next consumer has the user's start.
        """
        config = cursor(deliver_policy="by_start_sequence", opt_start_seq=3).next_config(None)
        assert (config["name"], config["opt_start_seq"]) == ("R_2", 3)

    def test_after_the_last_message(self):
        """
        The next consumer begins after the last message, whatever the deliver policy.
        """
        made = cursor(deliver_policy="last_per_subject", filter_subjects=["a", "b"])
        config = made.next_config(7)
        assert config["deliver_policy"] == "by_start_sequence"
        assert config["opt_start_seq"] == 8
        assert config["filter_subjects"] == ["a", "b"]

    @pytest.mark.parametrize("policy", ["new", "last"])
    def test_new_keeps_its_start(self, policy):
        """
        With "new" and "last", the next consumer begins where the first one did.
        """
        made = OrderedCursor({"deliver_policy": policy}, "R")
        made.next_config(None)
        assert made.made(0) == 0
        assert made.next_config(0)["opt_start_seq"] == 1
        assert made.made(41) is None


def frames(*replies):
    """Return messages with these reply subjects."""
    return [(b"subject", subject, None, b"") for subject in replies]


def admit(made, *replies):
    """Return which of some messages, by their reply subjects, continue the sequence."""
    return [frame[1] for frame in made.admit(frames(*replies))]


class TestOrder:
    @pytest.mark.parametrize("numbers", [b"x.1", b"1.x", b"1.", b"-1.1", b"1.-2"])
    def test_a_malformed_sequence(self, numbers):
        """
        A reply subject with a sequence that is no number is a protocol error, not a gap.
        """
        with pytest.raises(ProtocolError):
            admit(cursor(), b"$JS.ACK.S.R_1.1.%b.1700000000.0" % numbers)

    @pytest.mark.parametrize("head", [b"$JS.ACK", b"$JS.ACK._.hash"])
    @pytest.mark.parametrize("size", [1, 3])
    def test_in_order(self, head, size):
        """
        Holes in the stream sequence are no gaps, because filters cause them.
        """
        made = cursor()
        replies = [reply(sequence, n, head=head) for n, sequence in enumerate([3, 4, 9], 1)]
        for start in range(0, 3, size):
            run = replies[start : start + size]
            assert admit(made, *run) == run
        assert not made.has_gap

    def test_a_gap_stays_one(self):
        """
        After a gap, nothing continues the sequence until there is another consumer.
        """
        made = cursor()
        assert admit(made, reply(1, 1), reply(3, 3), reply(4, 4)) == [reply(1, 1)]
        assert made.has_gap
        assert admit(made, reply(2, 2)) == []
        assert made.next_config(1)["opt_start_seq"] == 2
        assert not made.has_gap
        assert admit(made, reply(2, 1, "R_2")) == [reply(2, 1, "R_2")]

    def test_repeated_and_foreign_messages(self):
        """
        Messages of another consumer and repeated messages are dropped.
        """
        made = cursor()
        made.next_config(5)
        assert admit(made, reply(6, 2)) == []
        assert admit(made, reply(5, 1, "R_2")) == []
        assert admit(made, reply(6, 2, "R_2")) == [reply(6, 2, "R_2")]
        assert not made.has_gap

    def test_a_run_that_begins_before_the_position(self):
        """
        Messages up to the position are dropped, also at the beginning of a run.
        """
        made = cursor()
        made.next_config(5)
        run = [reply(sequence, n, "R_2") for n, sequence in enumerate([4, 5, 6, 7], 1)]
        assert admit(made, *run) == run[2:]

    @given(st.lists(st.sampled_from(["send", "lose", "delete"]), max_size=60))
    def test_whatever_is_lost(self, happenings):
        """
        All messages arrive once and in order, whatever is lost or deleted.
        """
        made, got = cursor(), []
        start, sent = 1, 0
        steps = itertools.chain(happenings, itertools.repeat("send", 70))
        for step in steps:
            if step != "delete":
                sent += 1
                if step == "send":
                    admitted = admit(made, reply(start + sent - 1, sent, made.name))
                    got += [read_reply(subject).stream_sequence for subject in admitted]
            if step == "delete" or made.has_gap:
                last = got[-1] if got else None
                start, sent = made.next_config(last).get("opt_start_seq", 1), 0
        assert got == list(range(1, len(got) + 1))
        assert len(got) >= 8

    SENT = st.lists(
        st.tuples(st.integers(1, 3), st.sampled_from(["", "", "", "lose", "repeat", "swap"])),
        max_size=300,
    )

    @given(SENT, st.integers(1, 200))
    def test_like_one_at_a_time(self, sent, size):
        """
        Runs are admitted like single messages, whatever is lost or repeated.
        """
        sequence, replies = 0, []
        for number, (step, happening) in enumerate(sent, 1):
            sequence += step
            copies = {"lose": 0, "repeat": 2}.get(happening, 1)
            replies += [reply(sequence, number)] * copies
            if happening == "swap":
                replies[-2:] = reversed(replies[-2:])
        single, runs = cursor(), cursor()
        one_by_one = [each for subject in replies for each in admit(single, subject)]
        in_runs = []
        for start in range(0, len(replies), size):
            in_runs += admit(runs, *replies[start : start + size])
        assert in_runs == one_by_one
        assert runs.has_gap is single.has_gap


def test_pauses_grow_until_a_message_comes():
    """
    The first attempt has no pause. Later pauses grow up to a limit.
    """
    made = cursor()
    pauses = [made.pause() for _ in range(9)]
    assert pauses[:4] == [0.0, 0.1, 0.2, 0.4]
    assert pauses[-1] == LONGEST_PAUSE
    admit(made, reply(1, 1))
    assert made.pause() == 0.0


def test_failures_in_a_row():
    """
    Failures in a row count from 1 again after a consumer was created.
    """
    made = cursor()
    assert [made.failed(), made.failed()] == [1, 2]
    made.made(0)
    assert made.failed() == 1
