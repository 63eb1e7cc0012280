"""
Fast ingest: reports of lost and refused messages.
"""

from __future__ import annotations

import contextlib

import pytest

import jetsync
from helpers.connections import answers
from helpers.fast_publishers import fast, lose, ranges, stored_in, subscriptions, unread
from helpers.interrupts import interrupted_at
from helpers.streams import fast_stream
from helpers.waiting import eventually
from jetsync import BatchAck, BatchGapEvent, Expect
from jetsync._proto.fastingest import FastIngest
from jetsync.testing import HookRecorder


class TestGaps:
    @pytest.mark.parametrize("how", ["add", "commit", "exit"])
    def test_a_gap_in_fail_raises_with_the_missing_numbers(self, js, stream, how):
        """
        If the sequences 1, 2, 5 and 6 arrive in ``fail``, the first two are stored. The next call
        raises with the missing ones, and later calls say that the batch has ended.
        """
        subject = f"{stream.name}.a"
        publisher = fast(js)
        publisher.add(subject, b"1")
        publisher.add(subject, b"2")
        lose(publisher, 2)
        assert publisher.add(subject, b"5") == 5
        publisher.add(subject, b"6")
        # The gap, the commit of the messages before it, and the refusal of 6.
        eventually(lambda: len(unread(publisher)) == 3)
        calls = {
            "add": lambda: publisher.add(subject, b"7"),
            "commit": publisher.commit,
            "exit": publisher.close,
        }
        with pytest.raises(jetsync.BatchGapError) as caught:
            calls[how]()
        assert (caught.value.first_missing, caught.value.sequence) == (3, 5)
        assert publisher.acknowledged == 2
        assert publisher.ack is None
        with pytest.raises(jetsync.BatchClosedError):
            publisher.add(subject, b"8")
        publisher.close()
        assert stored_in(stream) == [1, 2]

    def test_a_gap_in_ok_is_reported_and_the_rest_is_stored(self, nats_server, unique):
        """
        In ``ok``, the gap is reported, four messages are stored, and the commit counts these rather
        than the server's number.
        """
        events = []
        recorder = HookRecorder("jetsync_status")
        with jetsync.connect(nats_server.url, plugins=[recorder]) as client:
            js = client.jetstream()
            stream = fast_stream(js, unique)
            subject = f"{unique}.a"
            publisher = fast(js, gap="ok", on_gap=events.append)
            publisher.add(subject, b"1", msg_id="one")
            publisher.add(subject, b"2")
            lose(publisher, 2)
            publisher.add(subject, b"5")
            publisher.add(subject, b"1", msg_id="one")
            ack = publisher.commit()
            batch = ack.batch_id
            assert ack == BatchAck(unique, 3, batch, 4, lost=2)
            gap = BatchGapEvent(stream=unique, batch_id=batch, first=3, last=4)
            assert events == [gap]
            assert stored_in(stream) == [1, 2, 5]
            told = lambda: [  # noqa: E731
                call["event"]
                for call in recorder.of("jetsync_status")
                if isinstance(call["event"], BatchGapEvent)
            ]
            assert eventually(told) == [gap]
            js.delete_stream(unique)

    def test_ctrl_c_while_answers_are_read(self, js, stream, monkeypatch):
        """
        After Ctrl-C, the next call raises that the batch has ended. The messages in flight are a
        gap, so no answer that was lost matters.
        """
        subject = f"{stream.name}.a"
        events = []
        publisher = fast(js, gap="ok", on_gap=events.append)
        publisher.add(subject, b"1")
        lose(publisher, 2)
        publisher.add(subject, b"4")
        eventually(lambda: unread(publisher))
        receive, left = FastIngest._receive, [None]

        def receives(*arguments):
            if left:
                left.pop()
                raise KeyboardInterrupt
            receive(*arguments)

        monkeypatch.setattr(FastIngest, "_receive", receives)
        with pytest.raises(KeyboardInterrupt):
            publisher.add(subject, b"5")
        with pytest.raises(jetsync.PublishOutcomeUnknownError, match="interrupted") as caught:
            publisher.commit()
        assert (ranges(events), events[0].error) == ([(1, 4)], caught.value)
        assert stored_in(stream) == [1, 4]

    @pytest.mark.thorough
    @pytest.mark.parametrize("gap", ["ok", "fail"])
    def test_ctrl_c_at_any_step_ends_the_batch_and_hides_no_loss(self, nats_server, stream, gap):
        """
        After Ctrl-C at any step, the publisher closes, and what it reports as stored is stored.
        """
        subject = f"{stream.name}.a"
        lost, payloads = set(), []
        options = {"on_gap": lambda event: lost.update(range(event.first, event.last + 1))}

        def add_and_commit(publisher):
            for number in range(1, 7):
                publisher.add(subject, b"%d" % number)
            publisher.add_many([(subject, b"7"), (subject, b"8")])
            publisher.commit()

        with jetsync.connect(nats_server.url, reconnect_wait=0.01) as client:
            js = client.jetstream()
            before = subscriptions(client)
            step, ended = 0, False
            while not ended:
                step += 1
                lost.clear()
                stream.purge()
                publisher = fast(js, gap=gap, flow=3, **(options if gap == "ok" else {}))
                ended = interrupted_at(step, lambda made=publisher: add_and_commit(made))
                with contextlib.suppress(jetsync.PublishError, jetsync.BatchClosedError):
                    publisher.close()
                with pytest.raises(jetsync.BatchClosedError):
                    publisher.add(subject, b"9")
                payloads = stored_in(stream)
                if gap == "ok":
                    count = publisher.statistics().added
                    assert set(range(1, count + 1)) - lost <= set(payloads), step
                confirmed = publisher.acknowledged
                assert set(range(1, confirmed + 1)) - lost <= set(payloads), step
                # An interrupt in the middle of a write ends the connection.
                eventually(lambda: answers(client))
            assert payloads == list(range(1, 9))
            eventually(lambda: subscriptions(client) == before)
        assert step > 100

    def test_on_gap_runs_without_the_lock(self, js, stream):
        """
        ``on_gap`` may use the publisher. If it raises, the publisher stays usable.
        """
        subject = f"{stream.name}.a"
        seen = []

        def on_gap(event):
            seen.append((event.first, event.last, publisher.add(subject, b"100")))
            raise LookupError

        publisher = fast(js, gap="ok", on_gap=on_gap)
        publisher.add(subject, b"1")
        lose(publisher, 1)
        publisher.add(subject, b"3")
        eventually(lambda: unread(publisher))
        publisher.add(subject, b"4")
        assert seen == [(2, 2, 5)]
        ack = publisher.commit()
        assert (ack.size, ack.lost) == (4, 1)
        assert publisher.statistics().callback_errors == 1
        assert stored_in(stream) == [1, 3, 4, 100]

    def test_error_of_one_message(self, js, stream):
        """
        In ``ok``, a refused message is reported with the server's error. In ``fail``, it ends the
        batch.
        """
        subject = f"{stream.name}.a"
        events = []
        with fast(js, gap="ok", on_gap=events.append) as publisher:
            publisher.add(subject, b"0")
            publisher.add(subject, b"1", expect=Expect(last_sequence=77))
            publisher.add(subject, b"2")
        assert ranges(events) == [(2, 2)]
        assert isinstance(events[0].error, jetsync.WrongLastSequenceError)
        assert (publisher.ack.size, publisher.ack.lost) == (2, 1)
        strict = fast(js)
        strict.add(subject, b"3")
        strict.add(subject, b"4", expect=Expect(last_sequence=77))
        with pytest.raises(jetsync.WrongLastSequenceError):
            strict.commit(subject, b"5")
        assert strict.acknowledged == 1
        assert stored_in(stream) == [0, 2, 3]

    def test_error_of_the_first_message(self, js, stream):
        """
        In ``fail``, the error of the first message ends the batch before it begins. In ``ok``, it
        counts like any other.
        """
        subject = f"{stream.name}.a"
        wrong = Expect(last_sequence=77)
        strict = fast(js)
        strict.add(subject, b"0", expect=wrong)
        with pytest.raises(jetsync.WrongLastSequenceError):
            strict.commit()
        events = []
        with fast(js, gap="ok", on_gap=events.append) as publisher:
            publisher.add(subject, b"0", expect=wrong)
            publisher.add(subject, b"1")
        assert ranges(events) == [(1, 1)]
        assert publisher.ack.size == 1
        assert 1 in stored_in(stream)

    def test_error_of_the_commit(self, js, stream):
        """
        In ``ok`` the batch is committed without its last message; in ``fail`` the error is raised.
        """
        subject = f"{stream.name}.a"
        wrong = Expect(last_sequence=77)
        events = []
        publisher = fast(js, gap="ok", on_gap=events.append)
        publisher.add(subject, b"0")
        ack = publisher.commit(subject, b"1", expect=wrong)
        assert (ack.size, ack.lost, ranges(events)) == (1, 1, [(2, 2)])
        strict = fast(js)
        strict.add(subject, b"2")
        with pytest.raises(jetsync.WrongLastSequenceError):
            strict.commit(subject, b"3", expect=wrong)
        for gap in ("ok", "fail"):
            with contextlib.suppress(jetsync.WrongLastSequenceError):
                alone = fast(js, gap=gap).commit(subject, b"4", expect=wrong)
                assert (gap, alone.size, alone.lost, alone.sequence) == ("ok", 0, 1, 0)
        assert stored_in(stream) == [0, 2]

    def test_in_ok_a_message_that_is_too_large_is_lost_alone(self, js, unique):
        """
        A message that is too large for the stream is lost alone, and reported once.
        """
        stream = fast_stream(js, unique, max_msg_size=100)
        events = []
        with fast(js, gap="ok", on_gap=events.append) as publisher:
            publisher.add(f"{unique}.a", b"0")
            publisher.add(f"{unique}.a", bytes(200))
            publisher.add(f"{unique}.a", b"2")
        assert ranges(events) == [(2, 2)]
        assert isinstance(events[0].error, jetsync.MessageTooLargeError)
        assert publisher.ack.size == 2
        strict = fast(js)
        strict.add(f"{unique}.a", b"3")
        strict.add(f"{unique}.a", bytes(200))
        with pytest.raises(jetsync.MessageTooLargeError):
            strict.commit()
        assert stored_in(stream) == [0, 2, 3]
        js.delete_stream(unique)

    def test_full_stream(self, js, unique):
        """
        A full stream refuses each message. So many errors neither stall the publisher nor
        accumulate.
        """
        stream = fast_stream(js, unique, max_msgs=3, discard="new")
        events = []
        with fast(js, gap="ok", on_gap=events.append, flow=10) as publisher:
            publisher.add_many((f"{unique}.a", b"%d" % n) for n in range(500))
        assert (publisher.ack.size, publisher.ack.lost) == (3, 497)
        assert sum(event.last - event.first + 1 for event in events) == 497
        assert {type(event.error) for event in events} == {jetsync.StreamFullError}
        assert publisher.statistics().pings == 0
        assert stored_in(stream) == [0, 1, 2]
        strict = fast(js, flow=10)
        with pytest.raises(jetsync.StreamFullError):
            strict.add_many((f"{unique}.a", b"%d" % n) for n in range(500))
        js.delete_stream(unique)
