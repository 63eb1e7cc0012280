"""
Handlers that give messages up, on real servers.
"""

from __future__ import annotations

import logging
import threading

import pytest

import jetsync
from helpers.streams import memory_stream, messages_in
from helpers.waiting import eventually, holds
from jetsync.testing import HookRecorder

# Handlers raise here, and jetsync reports that as Python does for threads.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")

LONG = 60.0
"""An `ack_wait` that no test waits for."""


@pytest.fixture
def dead(js, unique):
    """
    The stream of the dead letters.
    """
    made = memory_stream(js, f"{unique}-DEAD")
    yield made
    js.delete_stream(made.name)


@pytest.fixture
def target(dead):
    """
    The subject of the dead letters.
    """
    return f"{dead.name}.orders"


@pytest.fixture
def worker(stream):
    """
    A consumer that gets each message three times.
    """
    return stream.create_consumer("worker", max_deliver=3, ack_wait=LONG)


@pytest.fixture
def recorded(nats_server):
    """
    A context with a recorder of its hooks.
    """
    recorder = HookRecorder("jetsync_status", "jetsync_publish", "jetsync_prepare_message")
    with jetsync.connect(nats_server.url, plugins=[recorder]) as client:
        yield client.jetstream(), recorder


def of_kind(recorder, kind):
    """
    The events of one class that a recorder saw.
    """
    events = [call["event"] for call in recorder.of("jetsync_status")]
    return [event for event in events if isinstance(event, kind)]


def give_up(message):
    """A handler that gives each message up."""
    raise jetsync.DeadLetter(f"cannot handle {message.data.decode()}")


def fail(message):
    """A handler that always fails."""
    raise ValueError(f"no price for {message.data.decode()}")


def letters(dead, count):
    """Wait for dead letters, and return them."""
    eventually(lambda: dead.info().state.messages >= count)
    return messages_in(dead)


def is_settled(consumer):
    """Whether no message of a consumer is in flight."""
    info = consumer.info()
    return info.num_ack_pending == info.num_pending == 0


def is_settled_up_to(consumer, sequence):
    """Whether all messages up to a sequence are acknowledged, and no other was delivered."""
    info = consumer.info()
    return info.num_ack_pending == 0 and info.ack_floor.stream_seq == sequence


class TestGivingUp:
    def test_the_last_delivery_fails(self, js, stream, worker, dead, target):
        """
        A message whose last delivery fails has one dead letter and is terminated.
        """
        js.publish(f"{stream.name}.eu", b"a sofa", headers={"Trace": "7"}, msg_id="order-1")
        with worker.consume(fail, ack="auto", dead_letter=target) as running:
            (letter,) = letters(dead, 1)
            eventually(lambda: is_settled(worker))
            assert running.statistics().failures == 3
        assert (letter.subject, letter.data) == (target, b"a sofa")
        found = letter.headers
        assert found["Trace"] == "7"
        assert found["Jetsync-Dead-Letter-Header-Nats-Msg-Id"] == "order-1"
        assert found["Jetsync-Dead-Letter-Stream"] == stream.name
        assert found["Jetsync-Dead-Letter-Sequence"] == "1"
        assert found["Jetsync-Dead-Letter-Subject"] == f"{stream.name}.eu"
        assert found["Jetsync-Dead-Letter-Deliveries"] == "3"
        assert found["Jetsync-Dead-Letter-Consumer"] == "worker"
        assert found["Jetsync-Dead-Letter-Reason"] == "ValueError: no price for a sofa"

    def test_the_handler_gives_up(self, js, stream, worker, dead, target):
        """
        A handler that raises `DeadLetter` gives a message up at once; the others are handled.
        """
        handled = []

        def handler(message):
            if message.data == b"2":
                give_up(message)
            handled.append(message.data)

        js.publish_many((f"{stream.name}.a", b"%d" % n) for n in range(5))
        running = worker.consume(handler, ack="auto", dead_letter=target, stop_after=5)
        assert running.wait(timeout=20)
        (letter,) = letters(dead, 1)
        assert letter.headers["Jetsync-Dead-Letter-Deliveries"] == "1"
        assert letter.headers["Jetsync-Dead-Letter-Reason"] == "cannot handle 2"
        assert handled == [b"0", b"1", b"3", b"4"]
        eventually(lambda: is_settled(worker))

    def test_on_a_work_queue_the_message_is_removed(self, js, unique, dead, target):
        """
        A work queue no longer has a message that has a dead letter.
        """
        queue = memory_stream(js, unique, retention="workqueue")
        worker = queue.create_consumer("worker", max_deliver=1, ack_wait=LONG)
        js.publish(f"{unique}.a", b"x")
        with worker.consume(fail, ack="auto", dead_letter=target):
            letters(dead, 1)
            eventually(lambda: queue.info().state.messages == 0)

    def test_it_is_stored_once(self, js, stream, dead, target):
        """
        A message that is given up again, because its termination was lost, has one dead letter.
        """
        js.publish(f"{stream.name}.a", b"x")
        for _ in range(2):
            # A new consumer gets the message again, as if the termination had been lost.
            worker = stream.create_consumer("worker", max_deliver=3, ack_wait=LONG)
            running = worker.consume(give_up, ack="auto", dead_letter=target, stop_after=1)
            assert running.wait(timeout=20)
            stream.delete_consumer("worker")
        assert len(letters(dead, 1)) == 1

    def test_what_the_handler_has_answered_stays_so(self, js, stream, worker, dead, target):
        """
        A message that the handler has acknowledged before it raised gets no dead letter.
        """
        js.publish(f"{stream.name}.a", b"x")

        def handler(message):
            message.ack()
            give_up(message)

        running = worker.consume(handler, ack="auto", dead_letter=target, stop_after=1)
        assert running.wait(timeout=20)
        eventually(lambda: is_settled(worker))
        assert running.statistics().failures == 1
        assert dead.info().state.messages == 0

    def test_on_error_stop_goes_on_after_a_dead_letter(self, js, stream, dead, target):
        """
        With `on_error="stop"`, the consumption continues if the dead letter is stored.
        """
        worker = stream.create_consumer("worker", max_deliver=1, ack_wait=LONG)
        js.publish_many((f"{stream.name}.a", b"%d" % n) for n in range(3))
        running = worker.consume(
            fail, ack="auto", on_error="stop", dead_letter=target, stop_after=3
        )
        assert running.wait(timeout=20)
        assert running.error is None
        assert len(letters(dead, 3)) == 3

    def test_put_back(self, js, stream, worker, dead, target):
        """
        `replay` puts a dead letter back once, however often it is called.
        """
        js.publish(f"{stream.name}.eu", b"x", headers={"Trace": "7"}, msg_id="order-1")
        running = worker.consume(give_up, ack="auto", dead_letter=target, stop_after=1)
        assert running.wait(timeout=20)
        (letter,) = letters(dead, 1)
        for duplicates in (0, 1):
            assert js.publish_many([jetsync.replay(letter)]).duplicates == duplicates
        again = worker.next(expires=10)
        assert (again.subject, again.data, again.sequence) == (f"{stream.name}.eu", b"x", 2)
        assert again.headers["Trace"] == "7"


class Gate:
    """
    A handler that waits until it is told to return, and notes what it got.
    """

    def __init__(self):
        self.opened = threading.Event()
        self.handled = []

    def __call__(self, message):
        self.handled.append((int(message.data), message.metadata.delivered))
        assert self.opened.wait(60)


class TestHealthyMessages:
    @pytest.mark.parametrize("threads", [1, 3])
    def test_restarts_use_no_delivery(self, js, stream, target, threads):
        """
        However often consumptions are closed, messages that no handler has got keep all deliveries.
        """
        worker = stream.create_consumer("worker", max_deliver=3, ack_wait=LONG)
        js.publish_many((f"{stream.name}.a", b"%d" % n) for n in range(6 * threads))
        for run in range(1, 6):
            gate = Gate()
            with worker.consume(gate, ack="auto", dead_letter=target, threads=threads) as running:
                eventually(lambda: len(gate.handled) == threads)  # noqa: B023
                # The server delivers no message that no thread is ready for.
                holds(lambda: worker.info().num_ack_pending == threads)
                running.close()
                gate.opened.set()
            eventually(lambda: is_settled_up_to(worker, run * threads))  # noqa: B023
            assert {delivered for _, delivered in gate.handled} == {1}
        assert worker.info().num_pending == threads

    def test_the_next_message_comes_when_a_thread_is_ready(self, js, stream, worker, target):
        """
        A thread whose handler has returned gets the next message while the others are busy.
        """
        js.publish_many((f"{stream.name}.a", b"%d" % n) for n in range(10))
        gate, handled = threading.Event(), []

        def handler(message):
            handled.append(int(message.data))
            if message.data == b"0":
                assert gate.wait(60)

        with worker.consume(handler, ack="auto", dead_letter=target, threads=2):
            eventually(lambda: len(handled) == 10)
            gate.set()
        assert sorted(handled) == list(range(10))

    def test_a_thread_that_becomes_ready_is_pulled_for_at_once(self, js, stream, worker, target):
        """
        If a handler returns while another thread waits for a message, a pull for both is open.
        """
        gate = Gate()
        limits = {"expires": 120, "heartbeat": 30}  # Nothing else ends a wait before these.
        with worker.consume(gate, ack="auto", dead_letter=target, threads=2, **limits) as running:
            js.publish(f"{stream.name}.a", b"0")
            eventually(lambda: gate.handled and running.statistics().pending == 1)
            gate.opened.set()
            eventually(lambda: running.statistics().pending == 2)

    @pytest.mark.parametrize("ordered_by", [None, "subject"])
    def test_close_handles_messages_on_their_last_delivery(
        self, js, stream, dead, target, ordered_by
    ):
        """
        A closed consumption handles the messages on their last delivery, and gives the others back.
        """
        worker = stream.create_consumer("worker", max_deliver=2, ack_wait=LONG)
        js.publish_many((f"{stream.name}.a", b"%d" % n) for n in range(6))
        for message in worker.fetch(3):
            message.nak()
        gate = Gate()
        running = worker.consume(
            gate, ack="auto", dead_letter=target, max_messages=10, ordered_by=ordered_by
        )
        eventually(lambda: gate.handled and running.statistics().received == 6)
        running.close()
        gate.opened.set()
        assert running.wait(timeout=20)
        assert sorted(gate.handled) == [(0, 2), (1, 2), (2, 2)]
        rest = [(int(m.data), m.metadata.delivered) for m in worker.fetch(3, expires=10)]
        assert sorted(rest) == [(3, 2), (4, 2), (5, 2)]
        assert dead.info().state.messages == 0

    def test_an_error_that_ends_it_handles_no_other_message(self, js, stream, target):
        """
        With `on_error="stop"`, no handler starts after a failure, not even for a last delivery.
        """
        worker = stream.create_consumer("worker", max_deliver=2, ack_wait=LONG)
        js.publish_many((f"{stream.name}.a", b"%d" % n) for n in range(3))
        for message in worker.fetch(3):
            message.nak()
        gate, handled = threading.Event(), []

        def handler(message):
            handled.append(message.data)
            assert gate.wait(60)
            raise ValueError("stop here")

        running = worker.consume(handler, ack="auto", max_messages=10, on_error="stop")
        eventually(lambda: handled and running.statistics().received == 3)
        gate.set()
        assert running.wait(timeout=20)
        assert len(handled) == 1

    @pytest.mark.parametrize(
        ("fields", "options", "advice"),
        [
            ({}, {"handler": give_up, "max_messages": 3}, "; leave max_messages"),
            ({}, {"handler": give_up, "max_bytes": 1000}, "; leave max_messages"),
            ({}, {}, "; give a handler"),
            ({"deliver_subject": "_INBOX.x"}, {"handler": give_up}, "lower max_ack_pending"),
            ({}, {"handler": give_up}, None),
            ({}, {"handler": give_up, "threads": 3, "max_messages": 3}, None),
            ({"ack_policy": "none"}, {"max_messages": 3}, None),
            ({"max_deliver": None}, {"handler": give_up, "max_messages": 3}, None),
        ],
    )
    def test_larger_buffers_are_warned_about(self, stream, caplog, fields, options, advice):
        """
        The log says once why a buffer that is larger than necessary uses up deliveries.
        """
        worker = stream.create_consumer("worker", **{"max_deliver": 3, **fields})
        with caplog.at_level(logging.WARNING, "jetsync"):
            for _ in range(2):
                with worker.consume(**options):
                    pass
        found = [record.fields for record in caplog.records]
        assert [advice in each["reason"] for each in found] == ([] if advice is None else [True])
        assert all(each["consumer"] == "worker" and each["max_deliver"] == 3 for each in found)


class TestTrouble:
    def test_no_dead_letter_no_termination(self, js, stream, dead, target, caplog):
        """
        If the dead letter is not stored after the last delivery, the message is left alone.
        """
        worker = stream.create_consumer("worker", max_deliver=1, ack_wait=LONG)
        running = worker.consume(fail, ack="auto", dead_letter=target, stop_after=1)
        js.delete_stream(dead.name)
        js.publish(f"{stream.name}.a", b"secret payload")
        with caplog.at_level(logging.INFO, "jetsync"):
            assert running.wait(timeout=40)
        holds(lambda: worker.info().num_ack_pending == 1)
        memory_stream(js, dead.name)
        (record,) = [each for each in caplog.records if "dead_letter_failed" in each.message]
        assert "secret" not in record.message

    def test_a_message_with_deliveries_left_is_redelivered(self, js, stream, worker, dead, target):
        """
        If the dead letter is not stored and there are deliveries left, the message comes again.
        """
        missing = threading.Event()

        def handler(message):
            if message.metadata.delivered == 2:
                memory_stream(js, dead.name)
                missing.set()
            give_up(message)

        with worker.consume(handler, ack="auto", dead_letter=target):
            js.delete_stream(dead.name)
            js.publish(f"{stream.name}.a", b"x")
            assert missing.wait(60)
            (letter,) = letters(dead, 1)
            assert letter.headers["Jetsync-Dead-Letter-Deliveries"] == "2"
            eventually(lambda: is_settled(worker))

    def test_a_message_that_a_plugin_refuses(self, nats_server, stream, dead, target):
        """
        A message that a plugin refuses each time gets a dead letter, with its bytes as stored.
        """

        class Decrypting:
            @jetsync.hookimpl
            def jetsync_message_received(self, message):
                raise ValueError("no key")

        stream.create_consumer("worker", max_deliver=2, ack_wait=LONG)
        with jetsync.connect(nats_server.url, plugins=[Decrypting()]) as client:
            js = client.jetstream()
            worker = js.consumer(stream.name, "worker")
            js.publish(f"{stream.name}.a", b"\x01\x02")
            with worker.consume(fail, ack="auto", dead_letter=target):
                (letter,) = letters(dead, 1)
                assert letter.data == b"\x01\x02"
                assert "no key" in letter.headers["Jetsync-Dead-Letter-Reason"]


class TestChecks:
    def test_no_stream_stores_the_subject(self, worker, unique):
        """
        A subject that no stream stores is refused. The error names the argument and the remedy.
        """
        subject = f"nowhere.{unique}"
        text = f"dead_letter: no stream stores '{subject}'; create the stream first"
        with pytest.raises(jetsync.NoStreamResponseError, match=text):
            worker.consume(fail, ack="auto", dead_letter=subject)

    def test_a_consumer_must_not_get_its_dead_letters(self, js, stream, worker, dead):
        """
        A subject that the consumer reads itself is refused. Another one of its stream is allowed.
        """
        subject = f"{stream.name}.dead"
        with pytest.raises(
            jetsync.InvalidArgumentError, match="get its own dead letters"
        ) as caught:
            worker.consume(fail, ack="auto", dead_letter=subject)
        assert caught.value.argument == "dead_letter"
        filtered = stream.create_consumer("filtered", filter_subject=f"{stream.name}.new")
        filtered.consume(fail, ack="auto", dead_letter=subject).close()
        others = stream.create_consumer(
            "others", filter_subjects=[f"{stream.name}.new", f"{stream.name}.old"]
        )
        others.consume(fail, ack="auto", dead_letter=subject).close()
        several = [f"{stream.name}.new", f"{stream.name}.dead"]
        greedy = stream.create_consumer("greedy", filter_subjects=several)
        with pytest.raises(jetsync.InvalidArgumentError, match="get its own dead letters"):
            greedy.consume(fail, ack="auto", dead_letter=subject)

    def test_a_consumer_without_max_deliver_is_warned_about(self, stream, worker, target, caplog):
        """
        The log warns if only `DeadLetter` gives a message up, as the consumer has no `max_deliver`.
        """
        endless = stream.create_consumer("endless")
        with caplog.at_level(logging.WARNING, "jetsync"):
            worker.consume(fail, ack="auto", dead_letter=target).close()
            assert not caplog.records
            endless.consume(fail, ack="auto", dead_letter=target).close()
        (record,) = caplog.records
        assert record.message == (
            f"dead_letter_without_max_deliver consumer='endless' stream={stream.name!r}"
        )

    @pytest.mark.parametrize(("field", "problem"), [("no_ack", "no acks"), ("sealed", "is sealed")])
    def test_a_stream_that_cannot_keep_them(self, worker, dead, target, field, problem):
        """
        A stream that confirms nothing, or takes nothing, is refused.
        """
        dead.update(**{field: True})
        with pytest.raises(jetsync.InvalidArgumentError, match=problem):
            worker.consume(fail, ack="auto", dead_letter=target)


class TestReports:
    def test_events_and_hooks(self, recorded, stream, worker, dead, target):
        """
        Plugins get an event for each dead letter and wrap its publish. They do not prepare it.
        """
        js, recorder = recorded
        js.publish(f"{stream.name}.a", b"x")
        recorder.clear()
        running = js.consumer(stream.name, "worker").consume(
            give_up, ack="auto", dead_letter=target, stop_after=1
        )
        assert running.wait(timeout=20)
        (event,) = of_kind(recorder, jetsync.DeadLetterEvent)
        assert event == jetsync.DeadLetterEvent(
            stream=stream.name,
            consumer="worker",
            subject=f"{stream.name}.a",
            sequence=1,
            deliveries=1,
            reason="cannot handle x",
            dead_letter=target,
        )
        assert not of_kind(recorder, jetsync.HandlerErrorEvent)
        assert [call["operation"].subject for call in recorder.of("jetsync_publish")] == [target]
        assert not recorder.of("jetsync_prepare_message")

    def test_the_log_has_neither_reason_nor_payload(self, js, stream, worker, dead, target, caplog):
        """
        The log names the message, and neither its payload nor the reason.
        """
        js.publish(f"{stream.name}.a", b"secret")
        with caplog.at_level(logging.INFO, "jetsync"):
            running = worker.consume(give_up, ack="auto", dead_letter=target, stop_after=1)
            assert running.wait(timeout=20)
        (record,) = [each for each in caplog.records if "dead_letter_stored" in each.message]
        assert f"dead_letter={target!r}" in record.message
        assert "secret" not in caplog.text
