"""
ADR-50, fast ingest: one test for each clause, by its id.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import attrs
import pytest

import jetsync
from helpers.fast_publishers import end_on_server, ranges, unread
from helpers.streams import answered, payloads
from helpers.waiting import CLUSTER_CLIENT, eventually, holds
from helpers.wire import HOLD, Wire
from jetsync import Expect
from jetsync.devserver import DevServer
from jetsync.publish import fast_link, fast_stream

everywhere = pytest.mark.parametrize("rig", ["2.14.6", None], indirect=True)

START, APPEND, COMMIT, END, PING = range(5)


@attrs.frozen
class Place:
    """
    What the reply subject of a fast message says.
    """

    prefix: str
    batch: str
    flow: int
    gap: str
    sequence: int
    operation: int


def place(frame):
    """
    Parse a reply subject; it must have the pattern.
    """
    prefix, batch, flow, gap, sequence, operation, end = frame.reply.rsplit(".", 6)
    assert end == "$FI"
    return Place(prefix, batch, int(flow), gap, int(sequence), int(operation))


def is_fast(frame):
    """
    Return whether a frame is a message of a fast batch.
    """
    return frame.verb == "PUB" and frame.reply.endswith(".$FI")


def fast_frames(rig):
    """
    Return the messages of fast batches that were sent, pings and commits included.
    """
    return [frame for frame in rig.wire.published() if is_fast(frame)]


def places(rig):
    """
    Return sequence and operation of what was sent.
    """
    return [(each.sequence, each.operation) for each in map(place, fast_frames(rig))]


def answers(rig):
    """
    Return the server's answers to fast messages, as JSON.
    """
    return [frame.json() for frame in rig.wire.answers() if frame.subject.endswith(".$FI")]


def lose(rig, *sequences):
    """
    Lose messages with these sequences on their way to the server.
    """
    rig.wire.drop_sent = lambda frame: (
        is_fast(frame) and place(frame).sequence in sequences and place(frame).operation != PING
    )


def refused(rig, error):
    """
    Check the error that the first message of a publisher raises, and return it.
    """
    with pytest.raises(error) as caught:
        rig.js.fast_publisher().add(rig("a"), b"x")
    return caught.value


class TestFrames:
    @pytest.mark.clause("FI-10", "FI-11", "FI-12", "FI-14", "FI-18", "FI-22")
    @everywhere
    @pytest.mark.parametrize("gap", ["ok", "fail"])
    def test_reply_subjects(self, rig, gap):
        """
        The first message has operation 0 and sequence 1, and later ones have operation 1 and the
        next sequences. The end has operation 3 and is not stored. All repeat id, flow and gap.
        """
        stream = rig.stream(allow_batched=True)
        with rig.js.fast_publisher(gap=gap, flow=20) as publisher:
            for number in range(3):
                publisher.add(rig("a"), b"%d" % number)
        sent = [place(frame) for frame in fast_frames(rig)]
        assert [(each.sequence, each.operation) for each in sent] == [
            (1, START),
            (2, APPEND),
            (3, APPEND),
            (4, END),
        ]
        assert {(each.flow, each.gap, each.batch) for each in sent} == {
            (20, gap, publisher.ack.batch_id)
        }
        assert 0 < len(publisher.ack.batch_id) <= 64
        assert payloads(stream) == [b"0", b"1", b"2"]

    @pytest.mark.clause("FI-13", "FI-29", "FI-46", "FI-63")
    @everywhere
    def test_a_commit_with_a_message(self, rig):
        """
        A commit with a message has operation 2 and is stored. Its answer is a pub ack with the id
        and the count, without the ``type`` that flow acks have.
        """
        stream = rig.stream(allow_batched=True)
        publisher = rig.js.fast_publisher(flow=2)
        for number in range(4):
            publisher.add(rig("a"), b"%d" % number)
        eventually(lambda: publisher.statistics().pending == 0 or len(answers(rig)) >= 3)
        ack = publisher.commit(rig("a"), b"4")
        assert places(rig)[-1] == (5, COMMIT)
        *acks, last = answers(rig)
        assert {tuple(sorted(each)) for each in acks} == {("msgs", "seq", "type")}
        assert {each["type"] for each in acks} == {"ack"}
        assert last == {"stream": rig.name, "seq": 5, "batch": ack.batch_id, "count": 5}
        assert (ack.stream, ack.sequence, ack.size, ack.lost) == (rig.name, 5, 5, 0)
        assert payloads(stream) == [b"0", b"1", b"2", b"3", b"4"]
        assert stream.get_message(5).headers.get("Nats-Batch-Commit") is None

    @pytest.mark.clause("FI-52")
    @everywhere
    def test_a_first_message_that_commits(self, rig):
        """
        If the first message commits, the only answer is the pub ack.
        """
        stream = rig.stream(allow_batched=True)
        ack = rig.js.fast_publisher().commit(rig("a"), b"1")
        assert places(rig) == [(1, COMMIT)]
        assert answers(rig) == [{"stream": rig.name, "seq": 1, "batch": ack.batch_id, "count": 1}]
        assert payloads(stream) == [b"1"]

    @pytest.mark.clause("FI-06", "FI-17")
    @everywhere
    def test_one_subscription_for_the_whole_batch(self, rig):
        """
        There is one subscription, below which each message has a reply subject of its own.
        """
        rig.stream(allow_batched=True)
        rig.wire.clear()
        with rig.js.fast_publisher() as publisher:
            publisher.add_many((rig("a"), b"%d" % number) for number in range(50))
        sent = fast_frames(rig)
        (prefix,) = {place(frame).prefix for frame in sent}
        subscribed = [frame.subject for frame in rig.wire.sent if frame.verb == "SUB"]
        assert subscribed.count(f"{prefix}.>") == 1
        assert [s for s in subscribed if prefix in s] == [f"{prefix}.>"]
        assert len({frame.reply for frame in sent}) == len(sent) == 51

    @pytest.mark.clause("FI-09")
    @everywhere
    def test_the_inbox_is_its_own_and_dropped_after_an_error(self, rig):
        """
        The inbox is not the one for requests, and jetsync unsubscribes after an error.
        """
        stream = rig.stream(allow_batched=True)
        before = rig.client.statistics().subscriptions
        lose(rig, 2)
        publisher = rig.js.fast_publisher()
        publisher.add(rig("a"), b"1")
        publisher.add(rig("a"), b"2")
        publisher.add(rig("a"), b"3")
        with pytest.raises(jetsync.BatchGapError):
            publisher.commit()
        prefix = place(fast_frames(rig)[0]).prefix
        asked = {frame.reply for frame in rig.wire.published("$JS.API.>")}
        assert asked
        assert [reply for reply in asked if reply.startswith(prefix)] == []
        assert rig.client.statistics().subscriptions == before
        subscribed = next(frame for frame in rig.wire.sent if frame.subject == f"{prefix}.>")
        number = subscribed.data.split()[-1]
        rig.client.flush()
        ended = [frame.data.split()[0] for frame in rig.wire.sent if frame.verb == "UNSUB"]
        assert number in ended
        assert payloads(stream) == [b"1"]

    @pytest.mark.clause("FI-19")
    @everywhere
    def test_nothing_is_sent_before_the_first_answer(self, rig):
        """
        Until the first message is answered, nothing else is sent, also by other threads.
        """
        stream = rig.stream(allow_batched=True)
        publisher, gate = rig.js.fast_publisher(), threading.Event()

        def wait_for_gate(frame):
            if frame.subject.endswith(".$FI"):
                gate.wait(30)

        rig.wire.drop_received = wait_for_gate
        with ThreadPoolExecutor(3) as pool:
            calls = [pool.submit(publisher.add, rig("a"), b"x", timeout=20) for _ in range(2)]
            calls.append(pool.submit(publisher.add_many, [(rig("a"), b"x")] * 5, timeout=20))
            eventually(lambda: len(fast_frames(rig)) == 1)
            holds(lambda: len(fast_frames(rig)) == 1)
            gate.set()
            for call in calls:
                call.result(30)
        publisher.commit()
        assert len(payloads(stream)) == 7


class TestFlow:
    @pytest.mark.clause("FI-21", "FI-24", "FI-30", "FI-31")
    @everywhere
    def test_the_server_sets_the_flow(self, rig):
        """
        The first answer sets the flow, and each ack changes it, up to what was asked for. A second
        publisher of the stream starts low.
        """
        rig.stream(allow_batched=True)
        first = rig.js.fast_publisher(flow=100)
        first.add(rig("a"), b"x")
        assert answers(rig) == [{"type": "ack", "seq": 0, "msgs": 100}]
        assert first.statistics().flow == 100
        rig.wire.clear()
        second = rig.js.fast_publisher(flow=100)
        second.add(rig("a"), b"x")
        assert answers(rig)[0]["msgs"] < 100
        second.add_many((rig("a"), b"x") for _ in range(1000))
        flows = [each["msgs"] for each in answers(rig) if each.get("type") == "ack"]
        assert len(set(flows)) > 1
        assert max(flows) <= 100
        second.commit()
        assert (
            second.statistics().flow
            == [each["msgs"] for each in answers(rig) if each.get("type") == "ack"][-1]
        )
        first.commit()

    @pytest.mark.clause("FI-08", "FI-44", "FI-45", "FI-50")
    @everywhere
    @pytest.mark.parametrize("outstanding", [1, 2, 3, None])
    def test_how_many_messages_are_in_flight(self, rig, outstanding):
        """
        Without acks, jetsync sends flow times outstanding acks, without a wait, and then waits for
        as long as the program says. The default is 2, and 0 and 4 are refused.
        """
        rig.stream(allow_batched=True)
        options = {} if outstanding is None else {"max_outstanding_acks": outstanding}
        publisher = rig.js.fast_publisher(flow=5, **options)
        publisher.add(rig("a"), b"0")
        # The acks are lost from here on.
        rig.wire.drop_received = lambda frame: frame.subject.endswith(".$FI")
        most = 5 * (outstanding or 2)
        for number in range(1, most):
            publisher.add(rig("a"), b"%d" % number, timeout=20)
        assert publisher.statistics().pending == most
        with pytest.raises(jetsync.WaitTimeoutError):
            publisher.add(rig("a"), b"too much", timeout=0.3)
        sent = [seq for seq, operation in places(rig) if operation != PING]
        assert sent == list(range(1, most + 1))
        rig.wire.drop_received = lambda _frame: False
        assert publisher.add(rig("a"), b"last", timeout=20) == most + 1
        assert publisher.commit().size == most + 1
        for wrong in (0, 4):
            with pytest.raises(jetsync.InvalidArgumentError, match="max_outstanding_acks"):
                rig.js.fast_publisher(max_outstanding_acks=wrong)

    @pytest.mark.clause("FI-25")
    @everywhere
    def test_an_ack_covers_all_earlier_ones(self, rig):
        """
        If one ack is lost, the next one confirms its messages, too, and nothing waits.
        """
        rig.stream(allow_batched=True)
        publisher = rig.js.fast_publisher(flow=2, max_outstanding_acks=3)
        rig.wire.drop_received = lambda frame: (
            frame.subject.endswith(".$FI") and frame.json().get("seq") == 2
        )
        for number in range(4):
            publisher.add(rig("a"), b"%d" % number)
        eventually(lambda: {2, 4} <= {each["seq"] for each in answers(rig)})
        eventually(lambda: unread(publisher) or publisher.acknowledged)
        publisher.add(rig("a"), b"x" * 5000)
        assert publisher.acknowledged == 4
        assert publisher.commit().size == 5
        assert publisher.statistics().pings == 0

    @pytest.mark.clause("FI-72")
    @everywhere
    def test_an_ack_for_each_flow(self, rig):
        """
        The server acknowledges each *flow* messages.
        """
        rig.stream(allow_batched=True)
        with rig.js.fast_publisher(flow=10) as publisher:
            publisher.add_many((rig("a"), b"x") for _ in range(100))
        acks = [each["seq"] for each in answers(rig) if each.get("type") == "ack"]
        assert acks == list(range(0, 101, 10))

    @pytest.mark.clause("FI-47", "FI-49")
    @everywhere
    @pytest.mark.parametrize("gap", ["ok", "fail"])
    def test_what_an_ack_confirms(self, rig, gap):
        """
        The program learns the number of each message and how many are acknowledged: all up to the
        ack with ``fail``, and all but the lost ones with ``ok``.
        """
        stream = rig.stream(allow_batched=True)
        publisher = rig.js.fast_publisher(gap=gap, flow=10)
        if gap == "ok":
            lose(rig, 4, 5)
        numbers = [publisher.add(rig("a"), b"%d" % n, timeout=20) for n in range(1, 26)]
        assert numbers == list(range(1, 26))
        eventually(lambda: stream.info().state.messages == 25 - 2 * (gap == "ok"))
        eventually(lambda: any(each.get("seq") == 20 for each in answers(rig)))
        # The answers are read by the next call.
        eventually(lambda: unread(publisher))
        assert publisher.add(rig("a"), b"x" * 5000) == 26
        assert publisher.acknowledged == 20 - 2 * (gap == "ok")
        stored = [int(data) for data in payloads(stream)[: publisher.acknowledged]]
        assert stored == [n for n in range(1, 21) if gap == "fail" or n not in {4, 5}]
        publisher.close()

    @pytest.mark.clause("FI-53")
    @everywhere
    def test_a_commit_passes_over_flow_acks(self, rig):
        """
        Flow acks that arrive while a commit waits are read, and the commit returns the pub ack.
        """
        rig.stream(allow_batched=True)
        publisher, gate = rig.js.fast_publisher(flow=2, max_outstanding_acks=3), threading.Event()
        publisher.add(rig("a"), b"0")

        def wait_for_gate(frame):
            if frame.subject.endswith(".$FI"):
                gate.wait(30)

        rig.wire.drop_received = wait_for_gate
        for number in range(1, 5):
            publisher.add(rig("a"), b"%d" % number)
        with ThreadPoolExecutor(1) as pool:
            commit = pool.submit(publisher.commit, timeout=20)
            eventually(lambda: places(rig)[-1] == (6, END))
            gate.set()
            ack = commit.result(30)
        kinds = [each.get("type") for each in answers(rig)]
        assert kinds == ["ack", "ack", "ack", None]
        assert (ack.size, publisher.acknowledged) == (5, 5)


class TestPings:
    @pytest.mark.clause("FI-15", "FI-28")
    @everywhere
    def test_a_ping_has_the_highest_sequence_and_uses_none(self, rig, monkeypatch):
        """
        A ping has operation 4 and the sequence of the last message. The next message has the
        sequence after that, and the server reports no gap.
        """
        stream = rig.stream(allow_batched=True)
        monkeypatch.setattr(fast_link, "PING_AFTER", 0.05)
        publisher = rig.js.fast_publisher()
        for number in (1, 2, 3):
            publisher.add(rig("a"), b"%d" % number)
        eventually(lambda: any(operation == PING for _, operation in places(rig)))
        assert publisher.add(rig("a"), b"4") == 4
        assert publisher.commit().size == 4
        sent = [each for each in places(rig) if each[1] != PING]
        assert sent == [(1, START), (2, APPEND), (3, APPEND), (4, APPEND), (5, END)]
        highest, pings = 0, 0
        for sequence, operation in places(rig):
            if operation == PING:
                assert sequence == highest
                pings += 1
            else:
                highest = sequence
        assert pings == publisher.statistics().pings > 0
        assert [each for each in answers(rig) if each.get("type") == "gap"] == []
        assert payloads(stream) == [b"1", b"2", b"3", b"4"]

    @pytest.mark.clause("FI-27")
    @everywhere
    def test_a_ping_gets_over_lost_acks_and_finds_gaps(self, rig):
        """
        If acks are lost, a ping repeats the latest one, and the publisher continues. The answer to
        a ping reports a gap at the end.
        """
        stream = rig.stream(allow_batched=True)
        events = []
        publisher = rig.js.fast_publisher(
            gap="ok", on_gap=events.append, flow=2, max_outstanding_acks=1
        )
        publisher.add(rig("a"), b"1")
        acks = []

        def drop_first_ack(frame):
            if frame.subject.endswith(".$FI") and not acks and frame.json().get("seq") == 2:
                acks.append(frame)
                return True
            return False

        rig.wire.drop_received = drop_first_ack
        publisher.add(rig("a"), b"2")
        assert publisher.add(rig("a"), b"3", timeout=20) == 3
        assert acks
        assert publisher.statistics().pings >= 1
        # The last message before the wait is lost, so that only a ping can notice it.
        lose(rig, 4)
        publisher.add(rig("a"), b"4")
        publisher.add(rig("a"), b"5", timeout=20)
        assert ranges(events) == [(4, 4)]
        ack = publisher.commit()
        assert (ack.size, ack.lost) == (4, 1)
        assert payloads(stream) == [b"1", b"2", b"3", b"5"]


class TestGaps:
    @pytest.mark.clause("FI-02", "FI-33", "FI-34", "FI-35", "FI-39")
    @everywhere
    def test_a_gap_with_ok_is_reported_at_once(self, rig):
        """
        With ``ok``, the server reports a gap at once, with the first missing sequence and the one
        that arrived. The batch continues, and neither the flow nor the acknowledged number changes.
        """
        stream = rig.stream(allow_batched=True)
        events = []
        publisher = rig.js.fast_publisher(gap="ok", on_gap=events.append, flow=100)
        publisher.add(rig("a"), b"1")
        flow = publisher.statistics().flow
        lose(rig, 3, 4)
        for number in range(2, 6):
            publisher.add(rig("a"), b"%d" % number)
        gap = {"type": "gap", "last_seq": 3, "seq": 5}
        eventually(lambda: gap in answers(rig))
        eventually(lambda: unread(publisher))
        publisher.add(rig("a"), b"x" * 5000)
        assert ranges(events) == [(3, 4)]
        assert publisher.acknowledged == 0
        assert publisher.statistics().flow == flow == 100
        ack = publisher.commit()
        assert (ack.size, ack.lost) == (4, 2)
        assert payloads(stream)[:-1] == [b"1", b"2", b"5"]

    @pytest.mark.clause("FI-36")
    @everywhere
    def test_a_gap_that_arrives_after_later_acks(self, rig):
        """
        A gap that acks have overtaken is reported, and its message is no longer acknowledged.
        """
        stream = rig.stream(allow_batched=True)
        events = []
        publisher = rig.js.fast_publisher(gap="ok", on_gap=events.append, flow=10)
        publisher.add(rig("a"), b"1")
        lose(rig, 3)
        rig.wire.drop_received = lambda frame: (
            HOLD if frame.subject.endswith(".$FI") and frame.json().get("type") == "gap" else False
        )
        for number in range(2, 22):
            publisher.add(rig("a"), b"%d" % number, timeout=20)
        eventually(lambda: any(each.get("seq") == 20 for each in answers(rig)))
        eventually(lambda: unread(publisher))
        publisher.add(rig("a"), b"x" * 5000)
        assert (events, publisher.acknowledged) == ([], 20)
        rig.wire.release()
        eventually(lambda: unread(publisher))
        publisher.add(rig("a"), b"y" * 5000)
        assert (ranges(events), publisher.acknowledged) == ([(3, 3)], 19)
        ack = publisher.commit()
        assert (ack.size, ack.lost) == (22, 1)
        assert stream.info().state.messages == 22

    @pytest.mark.clause("FI-37", "FI-38", "FI-48")
    @everywhere
    def test_a_gap_with_fail_ends_the_batch(self, rig):
        """
        With ``fail``, the server sends the gap and then, before any commit, a pub ack whose count
        is the last sequence before it. The client raises the gap and sends no further message.
        """
        stream = rig.stream(allow_batched=True)
        publisher = rig.js.fast_publisher(gap="fail")
        lose(rig, 3)
        for number in range(1, 5):
            publisher.add(rig("a"), b"%d" % number)
        eventually(lambda: any("batch" in each for each in answers(rig)))
        gap, end = answers(rig)[1:3]
        assert gap == {"type": "gap", "last_seq": 3, "seq": 4}
        assert (end["stream"], end["count"]) == (rig.name, 2)
        eventually(lambda: len(unread(publisher)) >= 2)
        with pytest.raises(jetsync.BatchGapError) as caught:
            publisher.add(rig("a"), b"5")
        assert (caught.value.first_missing, caught.value.sequence) == (3, 4)
        assert publisher.acknowledged == 2
        with pytest.raises(jetsync.BatchClosedError):
            publisher.add(rig("a"), b"6")
        publisher.close()
        rig.client.flush()
        # An empty message of operation 3 frees the place of the batch at the server.
        sent = [frame.data for frame in fast_frames(rig) if place(frame).operation != END]
        assert sent == [b"1", b"2", b"3", b"4"]
        assert payloads(stream) == [b"1", b"2"]

    @pytest.mark.clause("FI-32")
    def test_another_gap_mode_is_refused(self, rig):
        """
        The client sends no other mode than ``ok`` and ``fail``.
        """
        rig.stream(allow_batched=True)
        rig.wire.clear()
        for wrong in ("maybe", "", "OK"):
            with pytest.raises(jetsync.InvalidArgumentError, match="gap"):
                rig.js.fast_publisher(gap=wrong)
        rig.client.flush()
        assert rig.wire.published() == []

    @pytest.mark.clause("FI-51")
    def test_on_gap_runs_in_the_next_call(self, rig):
        """
        A gap that has arrived is reported in the thread of the next call, and not before.
        """
        rig.stream(allow_batched=True)
        seen = []
        publisher = rig.js.fast_publisher(
            gap="ok", on_gap=lambda event: seen.append((event.first, threading.get_ident()))
        )
        lose(rig, 2)
        for number in (1, 2, 3):
            publisher.add(rig("a"), b"%d" % number)
        eventually(lambda: unread(publisher))
        holds(lambda: seen == [])
        publisher.add(rig("a"), b"x" * 5000)
        assert seen == [(2, threading.get_ident())]
        publisher.close()

    @pytest.mark.clause("FI-07", "FI-42", "FI-58", "FI-60")
    @everywhere
    def test_a_failed_expectation_with_fail_ends_the_batch(self, rig):
        """
        The server names the message and the error. The next call raises that, also before the
        commit, and nothing after the message is stored.
        """
        stream = rig.stream(allow_batched=True)
        publisher = rig.js.fast_publisher(gap="fail")
        publisher.add(rig("a"), b"1")
        publisher.add(rig("a"), b"2", expect=Expect(last_sequence=77))
        publisher.add(rig("a"), b"3")
        found = eventually(lambda: [each for each in answers(rig) if each.get("type") == "err"])
        assert (found[0]["seq"], found[0]["error"]["err_code"]) == (2, 10071)
        eventually(lambda: unread(publisher))
        with pytest.raises(jetsync.WrongLastSequenceError) as caught:
            publisher.add(rig("a"), b"x" * 5000)
        assert caught.value.last_sequence == 1
        assert publisher.acknowledged == 1
        assert payloads(stream) == [b"1"]

    @pytest.mark.clause("FI-43", "FI-58", "FI-60")
    @everywhere
    def test_a_failed_expectation_with_ok_is_reported(self, rig):
        """
        With ``ok``, the event has the number of the message and its error, and the rest is stored.
        """
        stream = rig.stream(allow_batched=True)
        events = []
        with rig.js.fast_publisher(gap="ok", on_gap=events.append) as publisher:
            publisher.add(rig("a"), b"1")
            number = publisher.add(rig("a"), b"2", expect=Expect(last_sequence=77))
            publisher.add(rig("a"), b"3")
        (found,) = [each for each in answers(rig) if each.get("type") == "err"]
        assert (found["seq"], found["error"]["err_code"]) == (2, 10071)
        assert ranges(events) == [(number, number)] == [(2, 2)]
        assert isinstance(events[0].error, jetsync.WrongLastSequenceError)
        assert (publisher.ack.size, publisher.ack.lost, publisher.acknowledged) == (2, 1, 2)
        assert payloads(stream) == [b"1", b"3"]

    @pytest.mark.clause("FI-59")
    @everywhere
    @pytest.mark.parametrize("gap", ["ok", "fail"])
    def test_a_batch_of_one_message_whose_expectation_fails(self, rig, gap):
        """
        With ``fail``, the answer is a pub ack with the error, which is raised. With ``ok``, servers
        report the error and count nothing, and the message is lost.
        """
        stream = rig.stream(allow_batched=True)
        publisher, wrong = rig.js.fast_publisher(gap=gap), Expect(last_sequence=77)
        if gap == "fail":
            with pytest.raises(jetsync.WrongLastSequenceError):
                publisher.commit(rig("a"), b"1", expect=wrong)
            answer = answers(rig)[0]
            assert "type" not in answer
            assert answer["error"]["err_code"] == 10071
        else:
            ack = publisher.commit(rig("a"), b"1", expect=wrong)
            assert (ack.size, ack.lost) == (0, 1)
            error, last = answers(rig)
            assert (error["type"], last["count"]) == ("err", 0)
        assert payloads(stream) == []


class TestErrors:
    @pytest.mark.clause("FI-20", "FI-54")
    @everywhere
    def test_a_stream_without_fast_batches(self, rig, monkeypatch):
        """
        The answer to the first message says that the stream has no fast batches. jetsync raises
        that, and knows it before if the configuration shows it.
        """
        stream = rig.stream()
        error = refused(rig, jetsync.FastPublishDisabledError)
        assert error.err_code == 10205
        assert fast_frames(rig) == []
        monkeypatch.setattr(fast_stream, "require_fast", lambda *_, **__: None)
        error = refused(rig, jetsync.FastPublishDisabledError)
        assert (error.code, error.err_code) == (400, 10205)
        assert places(rig) == [(1, START)]
        assert payloads(stream) == []

    @pytest.mark.clause("FI-20")
    @pytest.mark.parametrize("rig", ["2.12.8"], indirect=True)
    def test_a_server_without_fast_batches(self, rig, monkeypatch):
        """
        If a server stores the first message as an ordinary one, its answer ends the publisher.
        """
        stream = rig.stream()
        refused(rig, jetsync.NotSupportedError)
        assert fast_frames(rig) == []
        monkeypatch.setattr(fast_stream, "require_fast", lambda *_, **__: None)
        refused(rig, jetsync.NotSupportedError)
        assert places(rig) == [(1, START)]
        assert len(payloads(stream)) == 1

    @pytest.mark.clause("FI-16", "FI-55", "FI-56")
    @everywhere
    @pytest.mark.parametrize(
        ("part", "error", "err_code"),
        [
            ("gap", jetsync.FastPatternInvalidError, 10206),
            ("operation", jetsync.FastPatternInvalidError, 10206),
            ("id", jetsync.FastBatchIdInvalidError, 10207),
        ],
    )
    def test_reply_subjects_that_jetsync_never_sends(self, rig, part, error, err_code, monkeypatch):
        """
        The server's refusals of a wrong pattern, of an unknown operation and of a long id have
        classes of their own.
        """
        stream = rig.stream(allow_batched=True)
        publisher = rig.js.fast_publisher()
        engine = publisher._link.engine
        if part == "gap":
            engine._around_id = (engine._around_id[0], b".500.maybe.")
        elif part == "id":
            engine._token = "x" * 65
        else:
            monkeypatch.setitem(fast_link.SUFFIX, START, b".9.$FI")
            monkeypatch.setattr("jetsync._proto.fastingest._OPS", {b"9": START})
        with pytest.raises(error) as caught:
            publisher.add(rig("a"), b"x")
        assert (caught.value.code, caught.value.err_code) == (400, err_code)
        assert payloads(stream) == []

    @pytest.mark.clause("FI-57")
    @everywhere
    def test_a_batch_that_the_server_does_not_know(self, rig):
        """
        If the server does not know the batch any more, the next call says so, and leaves the
        outcome of the message open.
        """
        rig.stream(allow_batched=True)
        publisher = rig.js.fast_publisher()
        publisher.add(rig("a"), b"1")
        end_on_server(rig.js, publisher, 2)
        publisher.add(rig("a"), b"2")
        with pytest.raises(jetsync.PublishOutcomeUnknownError, match="no such batch") as caught:
            eventually(lambda: publisher.add(rig("a"), b"3") > 100)
        cause = caught.value.__cause__
        assert isinstance(cause, jetsync.FastBatchUnknownError)
        assert (cause.code, cause.err_code) == (400, 10208)

    @pytest.mark.clause("FI-64")
    @everywhere
    def test_a_stream_has_at_most_a_thousand_open_batches(self, rig):
        """
        The server refuses the batch after 1,000 open ones with an error of its own.
        """
        rig.stream(allow_batched=True)
        publishers = [rig.js.fast_publisher(flow=1) for _ in range(1000)]
        for publisher in publishers:
            publisher.add(rig("a"), b"x")
        error = refused(rig, jetsync.FastTooManyInflightError)
        assert (error.code, error.err_code) == (429, 10211)
        publishers.pop().commit()
        publishers.append(rig.js.fast_publisher(flow=1))
        publishers[-1].add(rig("a"), b"x")
        for publisher in publishers:
            publisher.commit()

    @pytest.mark.clause("FI-65")
    @pytest.mark.parametrize("version", [pytest.param("2.14.6", marks=pytest.mark.versions), None])
    def test_a_server_has_a_limit_of_open_batches(self, version):
        """
        The server refuses a batch on any stream while it has as many as it allows.
        """
        limits = {"batch": {"max_inflight_total": 3}}
        with (
            DevServer(version, config={"jetstream": {"limits": limits}}) as server,
            jetsync.connect(server.url) as client,
        ):
            js = client.jetstream()
            for name in ("a", "b"):
                js.create_stream(name, subjects=[name], storage="memory", allow_batched=True)
            publishers = [js.fast_publisher() for _ in range(3)]
            for publisher, name in zip(publishers, ("a", "b", "a"), strict=True):
                publisher.add(name, b"x")
            with pytest.raises(jetsync.FastTooManyInflightError) as caught:
                js.fast_publisher().add("b", b"x")
            assert (caught.value.code, caught.value.err_code) == (429, 10211)
            publishers[0].commit()
            js.fast_publisher().commit("b", b"x")
            for publisher in publishers[1:]:
                publisher.commit()


@pytest.mark.cluster
@pytest.mark.thorough
class TestLeaders:
    @pytest.mark.clause("FI-05", "FI-40", "FI-41")
    @pytest.mark.parametrize("version", [pytest.param("2.14.6", marks=pytest.mark.versions), None])
    def test_a_gap_over_a_change_of_the_leader(self, version):
        """
        After a change of the leader, the new one reports a message that was lost meanwhile. With
        ``ok`` the batch continues, and with ``fail`` it ends with the messages before the gap.
        """
        with (
            DevServer(version, cluster=3) as servers,
            Wire(servers.urls[0]) as wire,
            jetsync.connect(wire.url, **CLUSTER_CLIENT) as client,
        ):
            rig = SimpleNamespace(wire=wire)
            js = client.jetstream()
            streams = [
                js.create_stream(
                    name,
                    subjects=[f"{name}.a"],
                    num_replicas=3,
                    storage="memory",
                    allow_batched=True,
                )
                for name in ("ok", "fail")
            ]
            events = []
            lenient = js.fast_publisher(gap="ok", on_gap=events.append, timeout=20)
            strict = js.fast_publisher(gap="fail", timeout=20)
            publishers = {"ok": lenient, "fail": strict}
            for number in range(1, 4):
                for name, publisher in publishers.items():
                    publisher.add(f"{name}.a", b"%d" % number)
            eventually(lambda: [stream.info().state.messages for stream in streams] == [3, 3])
            lose(rig, 4)
            for name, publisher in publishers.items():
                publisher.add(f"{name}.a", b"4")
                before = js.stream(name).info().cluster.leader
                client.request(f"$JS.API.STREAM.LEADER.STEPDOWN.{name}", timeout=20)
                eventually(
                    lambda name=name, before=before: leader_of(js, name) not in {None, before}
                )
            for name, publisher in publishers.items():
                publisher.add(f"{name}.a", b"5", timeout=20)
            # The gap, and the end of the batch.
            eventually(lambda: len(unread(strict)) >= 2, 30)
            with pytest.raises(jetsync.BatchGapError) as caught:
                strict.add("fail.a", b"6")
            assert caught.value.first_missing == 4
            assert strict.acknowledged == 3
            for number in (6, 7):
                lenient.add("ok.a", b"%d" % number, timeout=20)
            ack = lenient.commit()
            assert ranges(events)[0][0] == 4
            stored = [int(data) for data in payloads(streams[0])]
            lost = {n for first, last in ranges(events) for n in range(first, last + 1)}
            assert set(stored) == set(range(1, 8)) - lost
            assert ack.size == len(stored)
            assert [int(data) for data in payloads(streams[1])] == [1, 2, 3]


def leader_of(js, name):
    """
    Return the leader of a stream, as it says itself; None without one.
    """
    found = answered(lambda: js.stream(name).info(timeout=5))
    return found and found.cluster.leader


class TestStreams:
    @pytest.mark.clause("FI-67", "FI-68", "FI-69")
    @everywhere
    def test_the_setting_is_off_and_can_be_switched(self, rig):
        """
        ``allow_batched`` is off by default, an update switches it on and off, and it makes the
        stream require API level 4.
        """
        stream = rig.stream()
        assert not stream.info().config.allow_batched
        refused(rig, jetsync.FastPublishDisabledError)
        stream.update(allow_batched=True)
        info = stream.info()
        assert info.config.allow_batched is True
        assert info.config.metadata["_nats.req.level"] == "4"
        assert rig.js.fast_publisher().commit(rig("a"), b"1").size == 1
        stream.update(allow_batched=False)
        assert not stream.info().config.allow_batched
        refused(rig, jetsync.FastPublishDisabledError)

    @pytest.mark.clause("FI-66")
    @everywhere
    def test_a_stream_that_persists_later_takes_fast_batches(self, rig):
        """
        ``persist_mode`` may be ``async``.
        """
        stream = rig.stream(storage="file", persist_mode="async", allow_batched=True)
        with rig.js.fast_publisher() as publisher:
            publisher.add_many((rig("a"), b"%d" % number) for number in range(5))
        assert publisher.ack.size == 5
        assert len(payloads(stream)) == 5

    @pytest.mark.clause("FI-70", "FI-71")
    @everywhere
    def test_copies(self, rig):
        """
        A mirror cannot have the setting, and a stream with sources can.
        """
        rig.stream()
        source = jetsync.StreamSource(rig.name)
        with pytest.raises(jetsync.MirrorFastPublishError) as caught:
            rig.js.create_stream(
                f"{rig.name}-M", mirror=source, storage="memory", allow_batched=True
            )
        assert (caught.value.code, caught.value.err_code) == (400, 10209)
        copy = rig.js.create_stream(
            f"{rig.name}-S",
            sources=[source],
            subjects=[f"{rig.name}-S.>"],
            storage="memory",
            allow_batched=True,
        )
        assert rig.js.fast_publisher().commit(f"{rig.name}-S.a", b"1").size == 1
        assert payloads(copy) == [b"1"]
