"""
Messages and their acknowledgements on real servers.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

import jetsync
from helpers.connections import client_of, connection_of
from helpers.interrupts import interrupted_at, shows_holder
from helpers.streams import fill, numbers
from helpers.traffic import sent_nothing
from helpers.waiting import eventually, timed, unless_late
from jetsync.devserver import DevServer
from jetsync.testing import HookRecorder

VERSIONS = ["2.10.26", "2.11.11", "2.12.8", "2.14.6", None]
"""Servers from the oldest to the newest, which is None."""


def pending(consumer):
    """
    How many messages of a consumer are delivered and not acknowledged, as the server sees it.
    """
    return consumer.info().num_ack_pending


def record_writes(monkeypatch, lane, writes):
    """
    Record the blocks that are written on a lane in *writes*.
    """
    write = lane.write

    def noted(block, *arguments, **options):
        writes.append(block)
        return write(block, *arguments, **options)

    monkeypatch.setattr(lane, "write", noted)


@pytest.fixture
def wire(nats_server, stream):
    """
    A subscription of another client to all acknowledgements of the test's stream.
    """
    with (
        jetsync.connect(nats_server.url) as client,
        client.subscribe(f"$JS.ACK.{stream.name}.>") as wire,
    ):
        client.flush()
        yield wire


@pytest.fixture
def fragile(victim):
    """
    JetStream on the server that may be stopped, over a client that does not wait for long.
    """
    with jetsync.connect(victim.url, reconnect_wait=0.05, request_timeout=0.3) as client:
        yield client.jetstream(timeout=10)


class TestOnTheWire:
    @pytest.mark.parametrize(
        ("call", "body"),
        [
            (lambda message: message.ack(), b"+ACK"),
            (lambda message: message.ack_sync(), b"+ACK"),
            (lambda message: message.nak(), b"-NAK"),
            (lambda message: message.nak(0.123), b'-NAK {"delay": 123000000}'),
            (lambda message: message.nak(60), b'-NAK {"delay": 60000000000}'),
            (lambda message: message.in_progress(), b"+WPI"),
            (lambda message: message.term(), b"+TERM"),
            (lambda message: message.term("why"), b"+TERM why"),
            (lambda message: message.term(""), b"+TERM"),
        ],
    )
    def test_each_acknowledgement_goes_to_its_reply_subject(
        self, js, stream, worker, wire, call, body
    ):
        """
        Each acknowledgement goes to the message's reply subject with its body.
        """
        fill(js, stream, 1)
        message = worker.next(5)
        call(message)
        heard = wire.next(timeout=5)
        assert (heard.subject, heard.data) == (message.reply, body)

    def test_a_batch_is_one_write(self, client, js, stream, worker, wire, monkeypatch):
        """
        batch.ack() writes all acknowledgements at once and returns how many they were.
        """
        fill(js, stream, 100)
        batch = worker.fetch(100)
        messages = list(batch)
        writes = []
        record_writes(monkeypatch, connection_of(client).lane, writes)
        assert batch.ack() == 100
        assert len(writes) == 1
        heard = [wire.next(timeout=5) for _ in range(100)]
        assert [m.subject for m in heard] == [m.reply for m in messages]
        assert {m.data for m in heard} == {b"+ACK"}
        assert all(message.is_acked for message in messages)

    def test_a_batch_that_one_ack_covers(self, client, js, stream, wire):
        """
        With the policy "all", a batch sends one ack: that of its last message in the stream.
        """
        worker = stream.create_consumer("all", ack_policy="all")
        fill(js, stream, 50)
        batch = worker.fetch(50, expires=5)
        messages = list(batch)
        messages[7].nak()
        assert batch.ack() == 49
        # The server passes this on after the acks that were sent before it.
        client.publish(f"$JS.ACK.{stream.name}.end", b"end")
        heard = []
        while (message := wire.next(timeout=30)).data != b"end":
            heard.append(message)
        assert [m.subject for m in heard if m.data == b"+ACK"] == [messages[-1].reply]
        eventually(lambda: worker.info().num_ack_pending == 0)
        assert all(message.is_acked for message in messages)
        assert batch.ack() == 0

    def test_many_are_one_write_of_each_client(self, nats_server, js, stream, wire, monkeypatch):
        """
        ack_many acknowledges messages of several consumers at once, for each client in one write.
        """
        fill(js, stream, 40)
        with jetsync.connect(nats_server.url) as other:
            first = stream.create_consumer("first")
            second = stream.create_consumer("second")
            abroad = other.jetstream().consumer(stream.name, "second")
            messages = [*first.fetch(40), *second.fetch(20), *abroad.fetch(20)]
            writes = []
            for lane in (connection_of(js).lane, connection_of(other).lane):
                record_writes(monkeypatch, lane, writes)
            assert jetsync.ack_many(iter(messages)) == 80
            assert len(writes) == 2
            heard = [wire.next(timeout=5) for _ in range(80)]
            assert {m.subject for m in heard} == {m.reply for m in messages}
            assert {m.data for m in heard} == {b"+ACK"}
            assert all(message.is_acked for message in messages)
            eventually(lambda: pending(first) == pending(second) == 0)
        assert jetsync.ack_many([]) == 0

    def test_what_cannot_be_sent(self, js, stream, worker, client):
        """
        Wrong delays and reasons are refused, nothing is sent, and the message stays open.
        """
        fill(js, stream, 1)
        message = worker.next(5)
        before = client.statistics().bytes_out
        for call in (
            lambda: message.nak(-1),
            lambda: message.nak(float("nan")),
            lambda: message.term("two\r\nlines"),
            lambda: message.ack_sync(timeout=-1),
        ):
            with pytest.raises(jetsync.InvalidArgumentError):
                call()
        for call in (lambda: message.nak("1"), lambda: message.term(5)):
            with pytest.raises(jetsync.InvalidTypeError):
                call()
        assert sent_nothing(client, before)
        message.ack_sync()


def handle(worker, count, **options):
    """
    Have a handler take messages until it has had *count* of them.
    """
    with worker.consume(**options, stop_after=count) as running:
        assert running.wait(timeout=60)


def acknowledge_during_requests(client, worker, count):
    """
    Acknowledge one by one while other threads send requests, which the same writes may carry.
    """
    over = threading.Event()

    def ask():
        while not over.is_set():
            client.flush(timeout=60)

    with ThreadPoolExecutor(3) as pool:
        asking = [pool.submit(ask) for _ in range(3)]
        try:
            for message in worker.fetch(count, expires=60):
                message.ack()
        finally:
            over.set()
        for each in asking:
            each.result()


WAYS = {
    "ack": lambda _, worker, count: [m.ack() for m in worker.fetch(count, expires=60)],
    "ack of a loop": lambda _, worker, count: [
        m.ack() for m in itertools.islice(worker.consume(), count)
    ],
    "ack of next": lambda _, worker, count: [worker.next(60).ack() for _ in range(count)],
    "ack_sync": lambda _, worker, count: [m.ack_sync() for m in worker.fetch(count, expires=60)],
    "term": lambda _, worker, count: [m.term() for m in worker.fetch(count, expires=60)],
    "ack_many": lambda _, worker, count: jetsync.ack_many(worker.fetch(count, expires=60)),
    "batch": lambda _, worker, count: acknowledge_batch(worker.fetch(count, expires=60)),
    "handler": lambda _, worker, count: handle(worker, count, handler=lambda m: m.ack()),
    "handler, auto": lambda _, worker, count: handle(
        worker, count, handler=lambda m: None, ack="auto", threads=2
    ),
    "during requests": acknowledge_during_requests,
}
"""The ways to acknowledge many messages."""


def acknowledge_batch(batch):
    """
    Take all messages of a batch and acknowledge them together.
    """
    list(batch)
    return batch.ack()


class TestEffect:
    @pytest.mark.parametrize("way", WAYS)
    def test_each_acknowledgement_arrives(self, client, js, stream, way):
        """
        The server gets each of many acknowledgements, without a redelivery.
        """
        count = 300
        worker = stream.create_consumer("worker", ack_wait=600, max_ack_pending=-1)
        fill(js, stream, count)
        WAYS[way](client, worker, count)
        eventually(lambda: worker.info().ack_floor.stream_seq == count)
        info = worker.info()
        assert (info.num_ack_pending, info.num_pending, info.num_redelivered) == (0, 0, 0)

    @pytest.mark.versions
    @pytest.mark.parametrize("version", VERSIONS)
    def test_every_server_knows_ack_nak_and_term(self, server_for, nats_server, unique, version):
        """
        Acknowledged and terminated messages are done. Nakked ones are redelivered, at once or
        later.
        """
        server = nats_server if version is None else server_for(version)
        with jetsync.connect(server.url) as client:
            js = client.jetstream()
            stream = js.create_stream(unique, subjects=[f"{unique}.>"], storage="memory")
            worker = stream.create_consumer("worker")
            fill(js, stream, 5)
            ack, confirmed, nak, delayed, term = worker.fetch(5)
            ack.ack()
            confirmed.ack_sync()
            delayed_at = time.monotonic()
            nak.nak()
            delayed.nak(0.3)
            term.term("no use")
            again = worker.next(5)
            # Both are redelivered, the delayed one last.
            assert (int(again.data), again.metadata.delivered) == (2, 2)
            again.ack()
            with timed(0, 0.6):
                again = worker.next(30)
            assert time.monotonic() - delayed_at >= 0.3
            assert (int(again.data), again.metadata.delivered) == (3, 2)
            again.ack_sync()
            assert (pending(worker), worker.info().ack_floor.stream_seq) == (0, 5)
            js.delete_stream(unique)

    def test_a_confirmed_ack_is_stored(self, js, stream, worker):
        """
        Once ack_sync returns, the server counts the message as done.
        """
        fill(js, stream, 20)
        for left in range(19, -1, -1):
            worker.next(5).ack_sync()
            assert worker.info().ack_floor.stream_seq == 20 - left
            assert pending(worker) == 0

    def test_acks_of_a_loop_arrive(self, js, stream, worker):
        """
        All acknowledgements of a loop arrive, although no call waits for them.
        """
        fill(js, stream, 5000)
        for message in worker.fetch(5000, expires=10):
            message.ack()
        eventually(lambda: worker.info().ack_floor.stream_seq == 5000)
        assert pending(worker) == 0

    def test_after_a_connection_that_another_thread_was_reading(self, nats_server, js, stream):
        """
        An ack on the next connection is sent within a moment, without another call.
        """
        stream.create_consumer("worker", ack_wait=60)
        fill(js, stream, 5)
        stream.create_consumer("idle", filter_subject=f"{stream.name}.none")
        with jetsync.connect(nats_server.url, reconnect_wait=0.02) as client:
            own = client.jetstream().stream(stream.name)
            messages = list(own.consumer("worker").fetch(5, expires=30))
            lane = connection_of(client).lane
            with ThreadPoolExecutor(1) as pool:
                waiting = pool.submit(own.consumer("idle").next, 120)
                eventually(lambda: shows_holder(lane.reader._read_lock))
                taken = []
                for message in messages:
                    epoch = lane.epoch
                    lane.abort()
                    eventually(
                        lambda epoch=epoch: (
                            lane.epoch > epoch and shows_holder(lane.reader._read_lock)
                        )
                    )
                    start = time.monotonic()
                    message.ack()
                    eventually(lambda: not lane.outbox.acks)
                    taken.append(time.monotonic() - start)
                    if taken[-1] < 1.0:
                        break
                # The first PING of the server, which also sends acks, comes after about 2 s. A busy
                # machine may be as late, but not each time.
                assert min(taken) < 1.0
                js.publish(f"{stream.name}.none")
                assert waiting.result(30) is not None

    def test_work_in_progress(self, js, stream):
        """
        A message whose ack wait is restarted is delivered once.
        """
        worker = stream.create_consumer("worker", ack_wait=5)
        fill(js, stream, 1)
        message = worker.next(5)
        # Longer than the ack wait. A busy machine may be late by seconds.
        for _ in range(6):
            message.in_progress()
            # A busy server may be late to end the pull.
            with contextlib.suppress(jetsync.RequestTimeoutError):
                assert worker.next(1) is None
        message.ack_sync()
        assert worker.info().delivered.consumer_seq == 1

    def test_without_an_ack_it_is_redelivered(self, js, stream):
        """
        After its ack wait the message is delivered a second time, and can then be acknowledged.
        """
        worker = stream.create_consumer("worker", ack_wait=0.3)
        filled = time.monotonic()
        fill(js, stream, 1)
        first = worker.next(5)
        second = worker.next(10)
        assert time.monotonic() - filled >= 0.3
        assert (first.metadata.delivered, second.metadata.delivered) == (1, 2)
        assert first.sequence == second.sequence
        second.ack_sync()
        assert pending(worker) == 0

    def test_a_terminated_message(self, client, js, stream):
        """
        A terminated message is not redelivered, and the advisory has the reason.
        """
        worker = stream.create_consumer("worker", ack_wait=0.2)
        subject = f"$JS.EVENT.ADVISORY.CONSUMER.MSG_TERMINATED.{stream.name}.worker"
        with client.subscribe(subject) as advisories:
            fill(js, stream, 1)
            worker.next(5).term("wrong format")
            advisory = json.loads(advisories.next(timeout=5).data)
        assert (advisory["reason"], advisory["stream_seq"]) == ("wrong format", 1)
        assert unless_late(lambda: worker.next(0.4)) is None
        assert pending(worker) == 0

    def test_a_batch_that_is_acknowledged_in_parts(self, js, stream, worker):
        """
        batch.ack() leaves out finished messages, and a later call acknowledges those yielded since.
        """
        fill(js, stream, 10)
        batch = worker.fetch(10)
        messages = iter(batch)
        first = [next(messages) for _ in range(6)]
        first[0].ack()
        first[1].term()
        first[2].nak(60)
        assert batch.ack() == 3
        assert batch.ack() == 0
        assert len(list(messages)) == 4
        assert batch.ack() == 4
        eventually(lambda: pending(worker) == 1)
        for message in first:
            with pytest.raises(jetsync.MessageAlreadyAckedError):
                message.ack()

    def test_an_interrupted_batch_acknowledges_only_what_was_yielded(self, js, stream):
        """
        If Ctrl-C strikes inside the iteration, a message that was taken is given back.
        """
        step, over = 1, False
        while not over:
            worker = stream.create_consumer(f"c{step}")
            fill(js, stream, 5)
            batch = worker.fetch(5, expires=5)
            messages, got = iter(batch), []
            got.append(next(messages))
            # Not `next`: after an interrupt at its end, nobody knows that the message was taken.
            take = messages.__next__
            over = interrupted_at(step, lambda got=got, take=take: got.append(take()))
            yielded = len(got)
            batch.close()
            assert batch.ack() == yielded
            assert len(list(worker.fetch(5 - yielded, expires=5))) == 5 - yielded
            stream.delete_consumer(worker.name)
            stream.purge()
            step += 1
        assert step > 2

    def test_a_batch_that_another_thread_closes_acknowledges_what_was_yielded(
        self, js, stream, worker, monkeypatch
    ):
        """
        While another thread gives the rest of a batch back, none of it is acknowledged.
        """
        fill(js, stream, 10)
        batch = worker.fetch(10, expires=5)
        next(messages := iter(batch))
        acked = []

        target = batch._fetch.core.target
        give_back = target.give_back

        def watched(frames):
            acked.append(batch.ack())
            give_back(frames)
            acked.append(batch.ack())

        monkeypatch.setattr(target, "give_back", watched)
        batch.close()
        del messages
        assert sum(acked) == 1
        assert len(list(worker.fetch(9, expires=5))) == 9

    @pytest.mark.parametrize("leave", ["break", "close"])
    def test_a_batch_that_is_left_early(self, js, stream, worker, leave):
        """
        batch.ack() acknowledges the messages that were yielded. The others are redelivered at once.
        """
        fill(js, stream, 10)
        with worker.fetch(10, expires=5) as batch:
            for number, message in enumerate(batch):
                if number == 3:
                    last = message.sequence
                    if leave == "close":
                        batch.close()
                    break
        assert batch.ack() == 4
        assert [message.sequence for message in worker.fetch(6, expires=5)] == [
            *range(last + 1, last + 7)
        ]

    def test_a_batch_without_iteration(self, js, stream, worker):
        """
        Only messages that were yielded are acknowledged.
        """
        fill(js, stream, 3)
        with worker.fetch(3, expires=5) as batch:
            eventually(lambda: pending(worker) == 3)
            assert batch.ack() == 0
        again = list(worker.fetch(3, expires=5))
        assert sorted(numbers(again)) == [0, 1, 2]


class TestOnce:
    def test_a_second_acknowledgement_is_refused(self, js, stream, worker):
        """
        After a message was finished, each further ack, nak or term raises an error that names it.
        """
        fill(js, stream, 4)
        ends = (
            lambda message: message.ack(),
            lambda message: message.ack_sync(),
            lambda message: message.nak(60),
            lambda message: message.term(),
        )
        for end in ends:
            message = worker.next(5)
            message.in_progress()
            end(message)
            for again in (*ends, lambda message: message.in_progress()):
                with pytest.raises(jetsync.MessageAlreadyAckedError, match=r"T.+\.A"):
                    again(message)

    @pytest.mark.parametrize(
        ("spoil", "error"),
        [
            (lambda messages, _: messages[3].ack(), jetsync.MessageAlreadyAckedError),
            (lambda messages, _: messages.append(messages[0]), jetsync.MessageAlreadyAckedError),
            (lambda messages, _: messages.append(b"5"), jetsync.InvalidTypeError),
            (
                lambda messages, others: messages.append(others["core"]),
                jetsync.NotJetStreamMessageError,
            ),
            (
                lambda messages, others: messages.append(others["unacked"]),
                jetsync.AcksNotWantedError,
            ),
            (
                lambda messages, others: messages.append(others["ordered"]),
                jetsync.AcksNotWantedError,
            ),
        ],
        ids=["acked", "twice", "no message", "core", "no acks", "ordered"],
    )
    def test_many_of_which_one_can_not_be(self, client, js, stream, worker, spoil, error):
        """
        If one message cannot be acknowledged, ack_many sends nothing, and the others stay open.
        """
        fill(js, stream, 5)
        with client.subscribe(f"core.{stream.name}") as core, stream.ordered_consumer() as ordered:
            client.publish(f"core.{stream.name}", b"")
            unacked = stream.create_consumer("unacked", ack_policy="none")
            others = {
                "core": core.next(timeout=5),
                "unacked": unacked.next(5),
                "ordered": ordered.next(5),
            }
        messages = list(worker.fetch(5))
        spoil(messages, others)
        acked = {id(m) for m in messages if isinstance(m, jetsync.Message) and m.is_acked}
        client.flush()
        before = client.statistics().bytes_out
        with pytest.raises(error):
            jetsync.ack_many(messages)
        assert sent_nothing(client, before)
        rest = [m for m in messages[:5] if id(m) not in acked]
        assert jetsync.ack_many(rest) == len(rest)
        eventually(lambda: pending(worker) == 0)

    def test_a_consumer_that_takes_no_acks(self, js, stream):
        """
        With the policy "none", ack_sync and batch.ack raise an error, and ack does no harm.
        """
        fill(js, stream, 2)
        unacked = stream.create_consumer("unacked", ack_policy="none")
        batch = unacked.fetch(2)
        first, second = batch
        with pytest.raises(jetsync.AcksNotWantedError, match="unacked"):
            first.ack_sync()
        with pytest.raises(jetsync.AcksNotWantedError):
            batch.ack()
        first.ack()
        second.ack()

    @pytest.mark.parametrize("answer", ["ack", "nak", "term", "in_progress"])
    def test_the_first_ignored_answer_is_reported(self, nats_server, js, stream, caplog, answer):
        """
        With the policy "none", the first ack of a handle is logged and reported as an event.
        """
        fill(js, stream, 3)
        recorder = HookRecorder("jetsync_status")
        with jetsync.connect(nats_server.url, plugins=[recorder]) as client:
            handle = client.jetstream().stream(stream.name)
            for message in handle.create_consumer("deaf", ack_policy="none").fetch(3):
                getattr(message, answer)()
            eventually(lambda: recorder.calls)
        (seen,) = [call["event"] for call in recorder.calls if call["event"].kind == "async_error"]
        assert isinstance(seen.error, jetsync.AcksNotWantedError)
        assert (seen.error.stream, seen.error.consumer) == (stream.name, "deaf")
        logged = [record for record in caplog.records if "ack_ignored" in record.getMessage()]
        assert len(logged) == 1

    @pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
    @pytest.mark.parametrize("fails", [False, True])
    def test_ignored_answers_of_a_handler_are_reported(
        self, nats_server, js, stream, caplog, fails
    ):
        """
        With the policy "none", a handler with ack="auto" has its first ack or nak reported.
        """
        fill(js, stream, 3)
        recorder = HookRecorder("jetsync_status")

        def handler(message):
            if fails:
                raise ValueError

        with jetsync.connect(nats_server.url, plugins=[recorder]) as client:
            handle = client.jetstream().stream(stream.name)
            deaf = handle.create_consumer("deaf", ack_policy="none")
            deaf.consume(handler, ack="auto", stop_after=3).wait(timeout=20)
            eventually(lambda: "async_error" in [one["event"].kind for one in recorder.calls])
        (seen,) = [call["event"] for call in recorder.calls if call["event"].kind == "async_error"]
        assert isinstance(seen.error, jetsync.AcksNotWantedError)
        assert (seen.error.stream, seen.error.consumer) == (stream.name, "deaf")
        assert caplog.text.count("ack_ignored") == 1

    def test_a_deleted_consumer(self, js, stream, worker):
        """
        ack_sync raises an error if the consumer is gone.
        """
        fill(js, stream, 1)
        message = worker.next(5)
        worker.delete()
        with pytest.raises(jetsync.NoRespondersError):
            message.ack_sync()
        assert not message.is_acked

    def test_threads_that_acknowledge_the_same_message(self, js, stream, worker):
        """
        If threads acknowledge the same message, exactly one of them succeeds.
        """
        fill(js, stream, 50)
        with ThreadPoolExecutor(8) as pool:
            for message in worker.fetch(50):

                def ack(_, message=message):
                    try:
                        message.ack()
                    except jetsync.MessageAlreadyAckedError:
                        return 0
                    return 1

                assert sum(pool.map(ack, range(8))) == 1
        eventually(lambda: pending(worker) == 0)

    def test_messages_that_no_consumer_delivered(self, client, unique):
        """
        Messages that are not from a consumer cannot be acknowledged.
        """
        with client.subscribe(unique) as messages:
            client.publish(unique, b"plain")
            client.publish(unique, b"asks", reply="somewhere")
            for message in (messages.next(timeout=5), messages.next(timeout=5)):
                for call in (
                    message.ack,
                    message.ack_sync,
                    message.nak,
                    message.term,
                    message.in_progress,
                    lambda message=message: message.metadata,
                ):
                    with pytest.raises(jetsync.NotJetStreamMessageError):
                        call()
                assert not message.is_acked


class TestWithoutAServer:
    def test_an_unconfirmed_ack_sync_can_be_repeated(self, victim, fragile, unique):
        """
        If ack_sync gets no confirmation, the message stays open, and the call can be repeated.
        """
        stream = fragile.create_stream(unique, subjects=[f"{unique}.>"], storage="memory")
        worker = stream.create_consumer("worker")
        fill(fragile, stream, 1)
        message = worker.next(5)
        victim.pause()
        try:
            with timed(0.2, 0.5), pytest.raises(jetsync.RequestTimeoutError):
                message.ack_sync(timeout=0.2)
            assert not message.is_acked
        finally:
            victim.resume()
        message.ack_sync(timeout=20)
        assert (message.is_acked, pending(worker)) == (True, 0)
        fragile.delete_stream(unique)

    def test_acks_while_the_connection_is_lost(self, victim, fragile, unique):
        """
        Without a connection, acks fail in time, and work again once the server is back.
        """
        stream = fragile.create_stream(unique, subjects=[f"{unique}.>"])
        worker = stream.create_consumer("worker")
        fill(fragile, stream, 6)
        one, two, *_ = worker.fetch(2)
        batch = worker.fetch(4)
        assert len(list(batch)) == 4
        victim.stop()
        try:
            eventually(lambda: not client_of(fragile).is_connected)
            with timed(0.2, 0.6), pytest.raises(jetsync.DisconnectedError):
                one.ack()
            with timed(0.1, 0.4), pytest.raises(jetsync.DisconnectedError):
                two.ack_sync(timeout=0.1)
            with timed(0.2, 0.6), pytest.raises(jetsync.DisconnectedError):
                batch.ack()
            with timed(0.1, 0.4), pytest.raises(jetsync.DisconnectedError):
                jetsync.ack_many([one, two], timeout=0.1)
            assert not one.is_acked
            assert not two.is_acked
        finally:
            victim.start()
        eventually(lambda: client_of(fragile).is_connected)
        one.ack()
        two.ack_sync(timeout=20)
        assert batch.ack() == 4
        eventually(lambda: pending(worker) == 0)
        assert worker.info().ack_floor.stream_seq == 6
        fragile.delete_stream(unique)

    def test_a_closed_client(self, victim, unique):
        """
        An ack of a closed client raises an error, and the message is not marked as acknowledged.
        """
        with jetsync.connect(victim.url) as client:
            js = client.jetstream()
            stream = js.create_stream(unique, subjects=[f"{unique}.>"], storage="memory")
            worker = stream.create_consumer("worker")
            fill(js, stream, 1)
            batch = worker.fetch(1)
            (message,) = batch
        calls = (message.ack, message.ack_sync, message.nak, message.term, batch.ack)
        for call in (*calls, lambda: jetsync.ack_many([message])):
            with pytest.raises(jetsync.ConnectionClosedError):
                call()
        assert not message.is_acked

    def test_acks_before_closing_are_sent(self, victim, fragile, unique):
        """
        Acknowledgements that were collected are sent when the client closes.
        """
        stream = fragile.create_stream(unique, subjects=[f"{unique}.>"], storage="memory")
        stream.create_consumer("worker")
        fill(fragile, stream, 500)
        with jetsync.connect(victim.url) as client:
            for message in client.jetstream().consumer(unique, "worker").fetch(500):
                message.ack()
        eventually(lambda: fragile.consumer(unique, "worker").info().ack_floor.stream_seq == 500)
        fragile.delete_stream(unique)


class TestMessage:
    @pytest.mark.versions
    @pytest.mark.parametrize("version", VERSIONS)
    def test_where_a_message_is_from(self, server_for, nats_server, unique, version):
        """
        Stream, consumer, sequences, counts and time are read from the reply subject.
        """
        server = nats_server if version is None else server_for(version)
        with jetsync.connect(server.url) as client:
            js = client.jetstream()
            stream = js.create_stream(unique, subjects=[f"{unique}.>"], storage="memory")
            worker = stream.create_consumer("worker")
            before = time.time_ns()
            fill(js, stream, 3)
            after = time.time_ns()
            worker.next(5)
            message = worker.next(5)
            said = message.metadata
            assert (said.stream, said.consumer, said.domain) == (unique, "worker", None)
            assert (said.stream_sequence, said.consumer_sequence) == (2, 2)
            assert (said.delivered, said.pending) == (1, 1)
            assert before - 10**9 < said.timestamp_ns < after + 10**9
            assert said.timestamp.tzinfo is not None
            assert message.sequence == 2
            js.delete_stream(unique)

    def test_the_long_form_of_the_reply_subject(self, unique):
        """
        Messages whose reply subject has a domain and an account are parsed and acknowledged.
        """
        text = "feature_flags { js_ack_fc_v2: true }\njetstream { domain: hub }\n"
        with DevServer(config=text) as server, jetsync.connect(server.url) as client:
            js = client.jetstream(domain="hub")
            stream = js.create_stream(unique, subjects=[f"{unique}.>"], storage="memory")
            worker = stream.create_consumer("worker")
            fill(js, stream, 2)
            message = worker.next(5)
            assert message.reply.count(".") == 10
            said = message.metadata
            assert (said.stream, said.consumer, said.domain) == (unique, "worker", "hub")
            assert (said.stream_sequence, said.delivered, said.pending) == (1, 1, 1)
            message.ack_sync()
            assert pending(worker) == 0
            batch = worker.fetch(1)
            assert len(list(batch)) == 1
            assert batch.ack() == 1
            eventually(lambda: pending(worker) == 0)

    def test_payloads_of_every_size(self, client, js, stream, worker):
        """
        Payloads from empty to the largest that the server accepts arrive, with and without headers.
        """
        limit = client.server.max_payload
        header = len(b"NATS/1.0\r\nA: b\r\n\r\n")
        sizes = [0, 1, 2, 127, 128, 4095, 4096, 65_535, 65_536, 131_072, 500_000, limit - header]
        pattern = bytes(range(251)) * (limit // 251 + 1)
        for size in sizes:
            js.publish(f"{stream.name}.A", pattern[:size])
            js.publish(f"{stream.name}.A", pattern[:size], headers={"A": "b"})
        batch = worker.fetch(2 * len(sizes), expires=20)
        for position, message in enumerate(batch):
            size = sizes[position // 2]
            assert len(message.data) == size
            assert message.data == pattern[:size]
            assert dict(message.headers.items()) == ({"A": "b"} if position % 2 else {})
        assert batch.ack() == 2 * len(sizes)
        eventually(lambda: pending(worker) == 0)
