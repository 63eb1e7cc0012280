"""
Fetching on real servers: what a fetch returns, when it ends, and which errors it raises.

Some tests repeat a race many times. They are short by default. ``JETSYNC_TEST_FULL=1`` gives them
as many rounds as it takes to be sure.
"""

from __future__ import annotations

import contextlib
import gc
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor, wait

import pytest

import jetsync
from helpers.connections import client_of, connection_of
from helpers.consuming import seen
from helpers.domains import domain_link
from helpers.interrupts import interrupted_at
from helpers.streams import fill, fill_in_trouble, numbers
from helpers.traffic import sent_nothing
from helpers.waiting import CLUSTER_CLIENT, LATE, at_some_pace, eventually, timed, unless_late
from jetsync._base.deadline import Deadline
from jetsync._proto.open_pulls import OpenPulls
from jetsync.consume.handlers import HandlerPool
from jetsync.consume.pull_feed import PullFeed
from jetsync.devserver import DevServer
from jetsync.events import PullOutcome
from jetsync.testing import CutProxy, HookRecorder
from jetsync.values.headers import parse_status

FULL = os.environ.get("JETSYNC_TEST_FULL", "") not in {"", "0"}
ORPHAN_ROUNDS = 30 if FULL else 10
DEADLINE_ROUNDS = 200 if FULL else 40

VERSIONS = ["2.10.26", "2.11.11", "2.12.8", "2.14.6", None]
"""Servers whose statuses differ; None is the newest."""


def check_resumed(first, rest, count):
    """
    Check the messages of a fetch of *count* over a restart after *first*.

    A server stores its deliveries, and tells its replicas, a moment after them. So the last
    messages before its end may be delivered again.
    """
    again = [number for number in rest if number < len(first)]
    assert first == list(range(len(first)))
    assert again == list(range(len(first) - len(again), len(first)))
    assert [n for n in rest if n >= len(first)] == list(range(len(first), count - len(again)))


def collect(batch):
    """
    Iterate to the end; return the messages and the error that ended it, None if there was none.
    """
    messages = []
    try:
        messages.extend(batch)
    except jetsync.JetSyncError as error:
        return messages, error
    return messages, None


def statuses(recorder):
    """
    The pull statuses that a recorder saw: code and outcome.
    """
    return [(event.code, event.outcome) for event in pull_events(recorder)]


def pull_events(recorder):
    """
    The events of pulls that a recorder saw.
    """
    return seen(recorder, "pull_status")


def remove(js, name):
    """
    Delete a stream unless the test did so itself.
    """
    with contextlib.suppress(jetsync.StreamNotFoundError):
        js.delete_stream(name)


@pytest.fixture(scope="module")
def cluster():
    """
    Three servers; each test leaves them running.
    """
    with DevServer(cluster=3) as servers:
        yield servers


@pytest.fixture
def on_version(server_for, nats_server, unique):
    """
    A factory of a context and a stream in memory on it, by server version.
    """
    with contextlib.ExitStack() as stack:

        def on_version(version, **options):
            server = nats_server if version is None else server_for(version)
            js = stack.enter_context(jetsync.connect(server.url, **options)).jetstream()
            stream = js.create_stream(
                unique, subjects=[f"{unique}.>"], storage="memory", duplicate_window=1
            )
            stack.callback(remove, js, unique)
            return js, stream

        yield on_version


class TestFetch:
    def test_enough_messages(self, js, stream, worker):
        """
        A fetch of five returns the five messages that are there, in order, without a wait.
        """
        fill(js, stream, 5)
        with timed(0.0, 0.5):
            messages = list(worker.fetch(5))
        assert numbers(messages) == [0, 1, 2, 3, 4]
        assert [m.metadata.consumer_sequence for m in messages] == [1, 2, 3, 4, 5]
        assert worker.info().num_ack_pending == 5

    def test_fewer_are_there(self, js, stream):
        """
        The fetch waits for more and ends without an error.
        """
        fill(js, stream, 3)

        def attempt():
            worker = stream.create_consumer()
            with timed(0.3, 0.9):
                batch = worker.fetch(10, expires=0.4)
                assert numbers(batch) == [0, 1, 2]
            assert (batch.received, batch.status.code) == (3, 408)

        unless_late(attempt)

    def test_nothing_is_there(self, worker):
        """
        An empty fetch ends without an error after its time.
        """

        def attempt():
            with timed(0.05, 0.3):
                assert list(worker.fetch(5, expires=0.05)) == []

        unless_late(attempt)

    def test_messages_come_as_they_arrive(self, js, stream, worker):
        """
        The first message is yielded while the fetch waits for the second.
        """
        messages = iter(worker.fetch(2, expires=10))
        fill(js, stream, 1)
        with timed(0.0, 0.5):
            assert next(messages).data == b"0"
        fill(js, stream, 1, start=1)
        with timed(0.0, 0.5):
            assert numbers(messages) == [1]

    def test_a_large_batch_is_complete_and_in_order(self, js, stream):
        """
        A large batch is complete and in order, and no message arrives twice.
        """
        fill(js, stream, 20_000)
        reader = stream.create_consumer(ack_policy="none")
        messages = list(reader.fetch(20_000, expires=10))
        assert numbers(messages) == list(range(20_000))
        assert {message.metadata.delivered for message in messages[::1000]} == {1}

    def test_a_batch_is_iterated_once(self, js, stream, worker):
        """
        A second iteration of a batch that has ended yields nothing.
        """
        fill(js, stream, 3)
        batch = worker.fetch(2)
        assert numbers(batch) == [0, 1]
        assert numbers(batch) == []
        assert "ended" in repr(batch)

    def test_threads_share_a_consumer(self, js, stream, worker):
        """
        Four threads fetch 25 of 100 messages each, and no message arrives twice.
        """
        fill(js, stream, 100)
        with ThreadPoolExecutor(4) as pool:
            fetched = list(pool.map(lambda _: numbers(worker.fetch(25, expires=20)), range(4)))
        assert [len(part) for part in fetched] == [25] * 4
        assert sorted(number for part in fetched for number in part) == list(range(100))

    def test_a_fetch_ends_at_once_if_its_client_is_closed(self, nats_server, stream, worker):
        """
        A fetch ends at once if its client is closed, with an error that says so.
        """
        client = jetsync.connect(nats_server.url)
        other = client.jetstream().consumer(stream.name, "worker")
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(collect, other.fetch(1, expires=20))
            eventually(lambda: worker.info().num_waiting == 1)
            client.close()
            with timed(0.0, 1.0):
                messages, error = waiting.result(20)
        assert (messages, type(error)) == ([], jetsync.ConnectionClosedError)
        with pytest.raises(jetsync.ConnectionClosedError):
            other.fetch(1)

    @pytest.mark.parametrize("taken", [0, 2])
    def test_a_client_that_is_closed_gives_the_rest_back(self, nats_server, js, stream, taken):
        """
        If a client is closed, the server redelivers the messages of its open batches at once.
        """
        worker = stream.create_consumer("slow", ack_wait=300)
        fill(js, stream, 5)
        with jetsync.connect(nats_server.url) as client:
            batch = client.jetstream().consumer(stream.name, "slow").fetch(5, expires=20)
            messages = iter(batch)
            for _ in range(taken):
                next(messages).ack()
            eventually(lambda: worker.info().num_ack_pending == 5 - taken)
            client.close()
            with pytest.raises(jetsync.ConnectionClosedError):
                next(messages)
        rest = numbers(worker.fetch(5 - taken, expires=20))
        assert sorted(rest) == [*range(taken, 5)]

    @pytest.mark.parametrize("end", [jetsync.Client.close, jetsync.Client.drain])
    @pytest.mark.parametrize(("asked", "taken"), [(5, 0), (5, 2), (9, 0), (9, 2)])
    def test_a_closed_client_loses_no_message_without_acks(
        self, nats_server, js, stream, end, asked, taken
    ):
        """
        If the consumer wants no acks, an open batch still yields what has arrived.
        """
        stream.create_consumer("plain", ack_policy="none")
        fill(js, stream, 5)
        with jetsync.connect(nats_server.url) as client:
            batch = client.jetstream().consumer(stream.name, "plain").fetch(asked, expires=20)
            messages = iter(batch)
            found = [int(next(messages).data) for _ in range(taken)]
            core = batch._fetch.core

            def are_there():
                client.flush()
                return len(core.feed.box.frames) + len(core.buffer) == 5 - taken

            eventually(are_there)
            end(client)
        rest, error = collect(messages)
        assert found + numbers(rest) == [0, 1, 2, 3, 4]
        is_cut = asked == 9 and end is jetsync.Client.close
        assert isinstance(error, jetsync.ConnectionClosedError) is is_cut

    @pytest.mark.parametrize("policy", ["explicit", "none"])
    def test_a_loop_that_closes_its_client_at_the_last_message(
        self, nats_server, js, stream, policy
    ):
        """
        A batch whose messages were all taken ends without an error.
        """
        stream.create_consumer("worker", ack_policy=policy)
        fill(js, stream, 3)
        client = jetsync.connect(nats_server.url)
        found = []
        for message in client.jetstream().consumer(stream.name, "worker").fetch(3, expires=20):
            found.append(int(message.data))
            if len(found) == 3:
                client.close()
        assert found == [0, 1, 2]

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
    def test_a_forked_child_yields_no_message_of_its_parent(self, js, stream, worker):
        """
        In a forked child, a batch of the parent raises ForkedProcessError, also if it has messages.
        """
        fill(js, stream, 3)
        messages = iter(worker.fetch(3, expires=20))
        assert next(messages).data == b"0"
        child = os.fork()
        if child == 0:
            code = 1
            try:
                next(messages)
            except jetsync.ForkedProcessError:
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert numbers(messages) == [1, 2]


class TestNext:
    def test_none_when_nothing_came(self, worker):
        """
        next() returns None after its time, and not much later.
        """

        def attempt():
            with timed(0.05, 0.3):
                assert worker.next(0.05) is None

        unless_late(attempt)

    def test_a_message_that_comes_meanwhile(self, js, stream, worker):
        """
        A message that arrives during next() is returned at once.
        """
        timer = threading.Timer(0.1, fill, (js, stream, 1))
        timer.start()
        with timed(0.0, 1.0):
            assert worker.next(30).data == b"0"
        timer.join()

    def test_the_consumer_is_deleted_meanwhile(self, stream, worker):
        """
        next() raises an error if the consumer is deleted during the wait.
        """
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(worker.next, 20)
            eventually(lambda: stream.consumer("worker").info().num_waiting == 1)
            stream.delete_consumer("worker")
            with timed(0.0, 1.0), pytest.raises(jetsync.ConsumerDeletedError) as caught:
                waiting.result(20)
        assert (caught.value.consumer, caught.value.stream) == ("worker", stream.name)

    def test_a_thousand_in_order(self, js, stream, worker):
        """
        next() returns a thousand messages one after the other, each of them once.
        """
        fill(js, stream, 1000)
        got = []
        for _ in range(1000):
            message = worker.next(20)
            message.ack()
            got.append(int(message.data))
        assert got == list(range(1000))


def seconds_of_nothing(worker):
    """
    Return how long a fetch with no_wait takes that finds nothing. One that waits takes 2 seconds.
    """
    began = time.monotonic()
    assert list(worker.fetch(10, no_wait=True)) == []
    return time.monotonic() - began


class TestNoWait:
    @pytest.mark.versions
    @pytest.mark.parametrize("version", VERSIONS)
    def test_it_takes_available_messages(self, on_version, version):
        """
        A fetch with no_wait returns none, some or all messages that are there, and waits for no
        others.
        """
        recorder = HookRecorder("jetsync_status")
        js, stream = on_version(version, plugins=[recorder])
        worker = stream.create_consumer("worker")
        assert min([seconds_of_nothing(worker) for _ in range(5)]) < 1.0
        fill(js, stream, 5)
        assert numbers(worker.fetch(10, no_wait=True)) == [0, 1, 2, 3, 4]
        fill(js, stream, 10)
        assert len(list(worker.fetch(10, no_wait=True))) == 10
        # 2.10 ends an incomplete batch with 408, the others with 404; a complete one needs no end.
        end = 408 if version == "2.10.26" else 404
        nothing = [(404, PullOutcome.RETRIED), (408, PullOutcome.ENDED)]
        assert statuses(recorder)[:10] == nothing * 5
        # A consumer may learn of a message late, and first answer that it has nothing.
        # If the second pull is cut off on a busy machine, a third one follows and finds nothing.
        rest = [each for each in statuses(recorder)[10:] if each[1] is not PullOutcome.RETRIED]
        assert rest in ([(end, PullOutcome.ENDED)], [(404, PullOutcome.ENDED)])

    @pytest.mark.versions
    @pytest.mark.parametrize("version", VERSIONS)
    def test_a_new_message_is_found(self, on_version, version):
        """
        A message whose publish was acknowledged is found, although its consumer may learn of it
        later.
        """
        recorder = HookRecorder("jetsync_status")
        js, stream = on_version(version, plugins=[recorder])
        worker = stream.create_consumer("worker", ack_policy="none")
        for turn in range(300):
            js.publish(f"{stream.name}.A", b"%d" % turn)
            recorder.clear()
            if (found := numbers(worker.fetch(10, no_wait=True))) != [turn]:
                # On a busy machine, the second pull may find nothing either.
                assert found == []
                assert [code for code, _ in statuses(recorder)] == [404, 408]
                assert numbers(worker.fetch(1, expires=20)) == [turn]

    @pytest.mark.versions
    @pytest.mark.parametrize("version", VERSIONS)
    def test_a_large_batch_is_complete(self, on_version, version):
        """
        A large batch is not cut off, unlike with a pull that expires.
        """
        js, stream = on_version(version)
        fill(js, stream, 30_000)
        reader = stream.create_consumer(ack_policy="none")
        assert numbers(reader.fetch(50_000, no_wait=True)) == list(range(30_000))

    @pytest.mark.versions
    @pytest.mark.parametrize("version", VERSIONS)
    def test_it_ends_while_too_many_acks_are_pending(self, on_version, version):
        """
        The fetch ends although servers send no status while max_ack_pending is reached.
        """
        js, stream = on_version(version)
        worker = stream.create_consumer("worker", max_ack_pending=5)
        fill(js, stream, 12)
        with timed(0.0, 0.5):
            first = list(worker.fetch(10, no_wait=True))
        assert numbers(first) == [0, 1, 2, 3, 4]
        with timed(0.0, 0.5):
            assert list(worker.fetch(10, no_wait=True)) == []
        # The pulls that the server kept have ended, so they take no later messages.
        for message in first:
            message.ack_sync()
        again = worker.fetch(10, expires=20)
        assert [next(iter(again)).metadata.stream_sequence for _ in range(1)] == [6]
        eventually(lambda: worker.info().num_waiting == 0)

    def test_refused_messages_count_as_there(self, js, stream, worker):
        """
        A fetch with no_wait returns messages that were given back.
        """
        fill(js, stream, 2)
        for message in worker.fetch(2):
            message.nak()
        again = eventually(lambda: list(worker.fetch(10, no_wait=True)))
        assert {message.metadata.delivered for message in again} == {2}

    def test_a_consumer_that_is_gone(self, stream, worker):
        """
        A fetch with no_wait from a deleted consumer raises an error, and does not return nothing.
        """
        stream.delete_consumer("worker")
        with timed(0.0, 1.0), pytest.raises(jetsync.ConsumerNotFoundError):
            list(worker.fetch(5, no_wait=True))


class TestNothingIsLost:
    def test_no_pull_is_left(self, js, stream, worker):
        """
        After empty fetches, each message goes to the next call.
        """
        forms = [
            lambda: worker.fetch(1, expires=20),
            lambda: worker.fetch(10, no_wait=True),
            lambda: worker.fetch(10, expires=20),
        ]
        for turn in range(ORPHAN_ROUNDS):
            assert unless_late(lambda: list(worker.fetch(1, expires=0.1))) == []
            fill(js, stream, 1, start=turn)
            with timed(0.0, 0.5):
                for message in forms[turn % 3]():
                    assert (int(message.data), message.metadata.delivered) == (turn, 1)
                    message.ack()
                    break
                else:
                    pytest.fail(f"no message in round {turn}")
        eventually(lambda: worker.info().num_waiting == 0)

    def test_a_message_that_arrives_at_the_deadline(self, js, stream, worker):
        """
        The message is returned by the call or by the next one, from its first delivery.
        """
        subject = f"{stream.name}.A"
        expires = 0.1
        late = 0
        with ThreadPoolExecutor(1) as pool:
            for turn in range(DEADLINE_ROUNDS):
                moment = time.monotonic() + expires + (turn % 21 - 10) * 0.0001

                def publish(moment=moment, turn=turn):
                    # The message has to arrive at the moment at which the fetch expires.
                    time.sleep(max(0.0, moment - time.monotonic()))
                    js.publish(subject, b"%d" % turn)

                published = pool.submit(publish)
                try:
                    messages = list(worker.fetch(1, expires=expires))
                except jetsync.RequestTimeoutError:
                    # A busy server sent the message or the end of the pull too late.
                    published.result()
                    stream.purge()
                    late += 1
                    continue
                published.result()
                messages = messages or list(worker.fetch(1, expires=20))
                assert numbers(messages) == [turn]
                assert messages[0].metadata.delivered == 1
                messages[0].ack()
        assert late < DEADLINE_ROUNDS // 4

    @pytest.mark.parametrize("leave", ["break", "close", "with", "raise", "drop", "next"])
    def test_the_rest_of_a_batch_left_early_is_given_back(self, js, stream, worker, leave):
        """
        Whichever way a batch is left early, the next fetch gets the rest within a second.
        """
        fill(js, stream, 10)
        batch = worker.fetch(20, expires=30)
        eventually(lambda: worker.info().num_ack_pending == 10)
        taken = []
        if leave == "break":
            for message in batch:
                taken.append(message)
                if len(taken) == 3:
                    break
        elif leave == "close":
            messages = iter(batch)
            taken = [next(messages) for _ in range(3)]
            batch.close()
        elif leave == "with":
            with batch:
                pass
        elif leave == "raise":
            with pytest.raises(LookupError):  # noqa: PT012 - the test is about the loop.
                for message in batch:
                    taken.append(message)
                    if len(taken) == 3:
                        raise LookupError
        elif leave == "next":
            taken = [next(iter(batch))]
        else:
            del batch
            gc.collect()
        for message in taken:
            message.ack()
        with timed(0.0, 1.0):
            rest = list(worker.fetch(10 - len(taken), expires=20))
        assert sorted(numbers(rest)) == list(range(len(taken), 10))
        assert {message.metadata.delivered for message in rest} == {2}

    def test_the_rest_is_given_back_in_order(self, js, stream, worker):
        """
        Messages that were taken from the socket are redelivered before those that came later.
        """
        fill(js, stream, 5)
        taken = []
        for message in worker.fetch(20, expires=30):
            message.ack()
            taken.append(message)
            if len(taken) == 2:
                fill(js, stream, 5, start=5)
                eventually(lambda: worker.info().num_ack_pending == 8)
                break
        rest = numbers(worker.fetch(8, expires=20))
        # Servers may send the first one later.
        rest.remove(2)
        assert rest == [*range(3, 10)]

    def test_messages_for_an_abandoned_fetch(self, js, stream, worker):
        """
        The pull of an abandoned fetch ends, so other fetches get later messages from their first
        delivery.
        """
        with worker.fetch(100, expires=30):
            eventually(lambda: worker.info().num_waiting == 1)
        eventually(lambda: worker.info().num_waiting == 0)
        fill(js, stream, 5)
        with timed(0.0, 1.0):
            messages = list(worker.fetch(5, expires=20))
        assert numbers(messages) == [0, 1, 2, 3, 4]
        assert {message.metadata.delivered for message in messages} == {1}

    def test_a_fetch_may_be_dropped_in_the_middle_of_a_write(self, client, js, stream, worker):
        """
        The garbage collector may drop a fetch in a thread that holds the write lock.
        """
        fill(js, stream, 5)
        dropped = [worker.fetch(5, expires=30)]
        eventually(lambda: worker.info().num_ack_pending == 5)

        def drop_in_a_write():
            with connection_of(client).lane.outbox.write_lock:
                dropped.clear()

        thread = threading.Thread(target=drop_in_a_write, daemon=True)
        thread.start()
        thread.join(20)
        assert not thread.is_alive()
        with timed(0.0, 1.0):
            assert sorted(numbers(worker.fetch(5, expires=20))) == [0, 1, 2, 3, 4]

    def test_an_abandoned_fetch_leaves_no_subscription(self, client, js, stream, worker):
        """
        Fetches of one thread share a subscription, and an abandoned fetch unsubscribes its own.
        """
        fill(js, stream, 50)
        before = client.statistics().subscriptions
        for _ in range(10):
            assert len(list(worker.fetch(2))) == 2
        assert client.statistics().subscriptions == before + 1
        for _ in worker.fetch(100, expires=30):
            break
        fill(js, stream, 5)
        assert len(list(worker.fetch(5, expires=20))) == 5
        # One is in use again, and one still waits for messages in flight.
        assert client.statistics().subscriptions <= before + 2
        worker.delete()

    @pytest.mark.parametrize("policy", ["explicit", "none"])
    def test_ctrl_c_at_any_step_of_close_leaves_no_pull_that_takes_messages(
        self, nats_server, js, stream, policy
    ):
        """
        Wherever Ctrl-C strikes while a batch with an open pull is closed, later fetches get the
        messages that are stored afterwards.
        """
        step, ended = 0, False
        # An interrupt may end the connection.
        with jetsync.connect(nats_server.url, reconnect_wait=0.01) as client:
            own = client.jetstream().stream(stream.name)
            worker = own.create_consumer("own", ack_policy=policy, ack_wait=300)

            def take():
                found = list(worker.fetch(1, expires=5))
                if policy == "explicit":
                    for message in found:
                        message.ack()
                return numbers(found)

            while not ended:
                step += 1
                batch = worker.fetch(2, expires=300)
                fill(js, stream, 1, start=-step)
                # Kept, because a batch whose iteration is dropped is closed.
                messages = iter(batch)
                message = next(messages)
                if policy == "explicit":
                    message.ack()
                ended = interrupted_at(step, batch.close)
                del batch, messages, message
                # The traceback of the interrupt may be part of a cycle.
                gc.collect()
                # From another client, whose connection is not interrupted.
                eventually(lambda: stream.consumer("own").info().num_waiting == 0)
                fill(js, stream, 1, start=step)
                eventually(lambda number=step: number in take())

    @pytest.mark.parametrize(
        ("call", "owner", "name"),
        [
            ("fetch", OpenPulls, "sent"),
            ("next", OpenPulls, "sent"),
            ("consume", OpenPulls, "sent"),
            ("handle", OpenPulls, "sent"),
            ("handle", HandlerPool, "start"),
        ],
    )
    def test_ctrl_c_after_the_pull_leaves_none_open(
        self, js, stream, worker, monkeypatch, call, owner, name
    ):
        """
        If Ctrl-C strikes in a call that has sent its pull, the next fetch gets the messages, also
        while the exception is still handled.
        """
        calls = {
            "fetch": lambda: worker.fetch(1, expires=300),
            "next": lambda: worker.next(300),
            "consume": lambda: worker.consume(expires=300),
            "handle": lambda: worker.consume(lambda message: message.ack(), expires=300),
        }
        method = getattr(owner, name)

        def interrupt(*arguments):
            monkeypatch.undo()
            method(*arguments)
            raise KeyboardInterrupt

        monkeypatch.setattr(owner, name, interrupt)
        with pytest.raises(KeyboardInterrupt) as caught:
            calls[call]()
        fill(js, stream, 1)
        assert numbers(worker.fetch(1, expires=20)) == [0]
        eventually(lambda: worker.info().num_waiting == 0)
        # Its traceback keeps what the call has made.
        assert caught.tb is not None


class TestGone:
    @pytest.mark.versions
    @pytest.mark.parametrize("version", VERSIONS)
    @pytest.mark.parametrize("what", ["consumer", "stream"])
    def test_deleted_during_a_fetch(self, on_version, version, what):
        """
        A deletion during a fetch raises an error at once, after the messages that arrived.
        """
        js, stream = on_version(version)
        worker = stream.create_consumer("worker")
        fill(js, stream, 5)
        batch = worker.fetch(10, expires=20)
        timer = threading.Timer(0.2, worker.delete if what == "consumer" else stream.delete)
        timer.start()
        with timed(0.0, 1.0):
            messages, error = collect(batch)
        timer.join()
        assert numbers(messages) == [0, 1, 2, 3, 4]
        assert isinstance(error, jetsync.ConsumerDeletedError)
        assert (error.code, error.consumer, error.stream) == (409, "worker", stream.name)

    @pytest.mark.versions
    @pytest.mark.parametrize("version", VERSIONS)
    def test_gone_before_a_fetch(self, on_version, version):
        """
        The error tells whether the consumer or the stream was deleted before the fetch.
        """
        _, stream = on_version(version)
        worker = stream.create_consumer("worker")
        stream.delete_consumer("worker")
        with timed(0.0, 1.0), pytest.raises(jetsync.ConsumerNotFoundError) as caught:
            list(worker.fetch(1, expires=10))
        assert caught.value.stream == stream.name
        with timed(0.0, 1.0), pytest.raises(jetsync.ConsumerNotFoundError):
            worker.next(10)
        stream.delete()
        with timed(0.0, 1.0), pytest.raises(jetsync.StreamNotFoundError):
            worker.next(10)

    def test_a_consumer_that_comes_back(self, js, stream, worker):
        """
        A handle works again after a consumer with the same name was created.
        """
        stream.delete_consumer("worker")
        with pytest.raises(jetsync.ConsumerNotFoundError):
            worker.next(10)
        stream.create_consumer("worker")
        fill(js, stream, 1)
        assert worker.next(10).data == b"0"

    def test_fetch_of_a_push_consumer_sends_nothing(self, client, stream):
        """
        fetch() of a push consumer raises an error before anything is sent.
        """
        pushed = stream.create_consumer("pushed", deliver_subject="somewhere")
        before = client.statistics().bytes_out
        for call in (lambda: pushed.fetch(1), lambda: pushed.next(1)):
            with pytest.raises(jetsync.NotPullConsumerError):
                call()
        assert sent_nothing(client, before)

    def test_a_consumer_that_was_replaced_by_a_push_consumer(self, stream, worker):
        """
        If a push consumer has taken the name, the server's refusal raises the same error.
        """
        stream.delete_consumer("worker")
        stream.create_consumer("worker", deliver_subject="somewhere")
        with pytest.raises(jetsync.NotPullConsumerError) as caught:
            list(worker.fetch(1, expires=20))
        assert (caught.value.consumer, caught.value.stream) == ("worker", stream.name)

    def test_no_answer_while_a_cluster_has_no_leader(self, nats_server, stream, worker):
        """
        A fetch continues if no server answers whether the consumer exists.
        """
        recorder = HookRecorder("jetsync_status")
        with jetsync.connect(nats_server.url, plugins=[recorder]) as client:
            elsewhere = client.jetstream(prefix="nobody.listens.here")._context
            lost = jetsync.Consumer(elsewhere, stream.name, worker.cached_info)
            with pytest.raises(jetsync.ConsumerUnavailableError, match="503 no server answers"):
                list(lost.fetch(1, expires=0.5))
        first, second, *_ = statuses(recorder)
        assert first == second == (503, PullOutcome.RETRIED)


class TestBytes:
    @pytest.fixture
    def five(self, js, stream):
        """
        Five messages, and the size of each as servers count it.
        """
        fill(js, stream, 5)
        first = stream.create_consumer("sized0", ack_policy="none").next(20)
        return len(first.subject) + len(first.reply) + len(first.data)

    @pytest.fixture
    def sized(self, stream, five):
        """
        A factory of fetches with a limit in bytes, each from a consumer of its own.
        """
        made = iter(range(1, 9))

        def sized(sizes, **options):
            consumer = stream.create_consumer(f"sized{next(made)}", ack_policy="none")
            return consumer.fetch(max_bytes=round(sizes * five), **options)

        return sized

    def test_an_exact_fit_ends_at_once(self, nats_server, client, sized):
        """
        A fetch that fits exactly ends at once, although the server sends no status.
        """
        with jetsync.connect(nats_server.url) as other:
            wire = other.subscribe(f"{client.options.inbox_prefix}.>")
            other.flush()
            batch = sized(5, expires=20)
            with timed(0.0, 0.5):
                assert numbers(batch) == [0, 1, 2, 3, 4]
            assert batch.status is None
            # A fetch that does end with a status shows that the recorder would have seen one.
            assert len(list(sized(4.2, expires=20))) == 4
            heard = []
            while (409, "Message Size Exceeds MaxBytes") not in heard:
                message = wire.next(timeout=5)
                block = message.raw_headers
                if block is not None and message.subject.startswith(connection_of(client).inbox):
                    heard.append(parse_status(block))
            assert len(heard) == 1

    def test_the_next_message_does_not_fit(self, sized):
        """
        The fetch returns the four messages that fit, and the status states the limit.
        """
        batch = sized(4.2, expires=20)
        with timed(0.0, 0.5):
            assert numbers(batch) == [0, 1, 2, 3]
        assert batch.status.code == 409
        assert batch.status.description == "Message Size Exceeds MaxBytes"

    def test_the_first_message_does_not_fit(self, sized):
        """
        If the first message does not fit, the batch is empty, and the status says why.
        """
        batch = sized(0.5, expires=20)
        with timed(0.0, 0.5):
            assert list(batch) == []
        assert batch.status.description == "Message Size Exceeds MaxBytes"
        error = batch.status.error("S", "C")
        assert isinstance(error, jetsync.MessageSizeExceedsMaxBytesError)

    def test_more_bytes_than_there_are(self, sized):
        """
        The fetch returns all messages when its time is over.
        """
        with timed(0.05, 0.5):
            batch = sized(50, expires=0.1)
            assert numbers(batch) == [0, 1, 2, 3, 4]
        assert batch.status.code == 408

    def test_messages_and_bytes_together(self, sized):
        """
        The limit that is reached first ends the batch at once.
        """
        with timed(0.0, 0.5):
            assert numbers(sized(50, max_messages=3, expires=20)) == [0, 1, 2]
        with timed(0.0, 0.5):
            assert numbers(sized(2, max_messages=50, expires=20)) == [0, 1]

    def test_the_header_block_is_part_of_the_size_of_a_message(self, js, stream):
        """
        The header block is part of a message's size.
        """
        js.publish(f"{stream.name}.A", b"12345", headers={"A": "b"})
        first = stream.create_consumer("sized0", ack_policy="none").next(20)
        block = len(b"NATS/1.0\r\nA: b\r\n\r\n")
        size = len(first.subject) + len(first.reply) + block + 5
        for extra, count in ((0, 1), (-1, 0)):
            consumer = stream.create_consumer(f"sized{count + 1}", ack_policy="none")
            with timed(0.0, 0.5):
                assert len(list(consumer.fetch(max_bytes=size + extra, expires=20))) == count


class TestLimits:
    @pytest.mark.parametrize(
        ("limits", "options", "error", "limit"),
        [
            ({"max_batch": 10}, {"max_messages": 11}, jetsync.MaxRequestBatchError, 10),
            (
                {"max_expires": 2},
                {"max_messages": 1, "expires": 20},
                jetsync.MaxRequestExpiresError,
                "2s",
            ),
            ({"max_bytes": 1000}, {"max_bytes": 1001}, jetsync.MaxRequestMaxBytesError, 1000),
        ],
    )
    def test_the_consumers_own(self, js, stream, limits, options, error, limit):
        """
        The error for more than the consumer allows has the limit.
        """
        limited = stream.create_consumer("limited", **limits)
        with timed(0.0, 0.5), pytest.raises(error) as caught:
            list(limited.fetch(**{"expires": 2, **options}))
        assert (caught.value.limit, caught.value.code) == (limit, 409)
        assert (caught.value.consumer, caught.value.stream) == ("limited", stream.name)
        fill(js, stream, 1)
        allowed = {"max_messages": 1, "expires": 2, "max_bytes": None}
        assert numbers(limited.fetch(**allowed)) == [0]

    @pytest.mark.versions
    @pytest.mark.parametrize("version", VERSIONS)
    def test_too_many_pulls_wait(self, on_version, version):
        """
        The second fetch is refused, and the first one continues.
        """
        js, stream = on_version(version)
        narrow = stream.create_consumer("narrow", max_waiting=1)
        # Not long enough for heartbeats by default.
        first = narrow.fetch(1, expires=9)
        with timed(0.0, 0.5), pytest.raises(jetsync.MaxWaitingError):
            list(narrow.fetch(1, expires=9))
        fill(js, stream, 1)
        assert numbers(first) == [0]

    @pytest.mark.versions
    @pytest.mark.parametrize("version", ["2.10.26", "2.11.11", None])
    def test_too_many_pulls_wait_and_heartbeats_were_asked_for(self, on_version, version):
        """
        Servers from 2.11 on drop such a pull silently, and missing heartbeats end the fetch.
        """
        _, stream = on_version(version)
        narrow = stream.create_consumer("narrow", max_waiting=1)
        with narrow.fetch(1, expires=60):
            most = 0.5 if version == "2.10.26" else 1.6
            error = jetsync.MaxWaitingError if most == 0.5 else jetsync.NoHeartbeatError
            with timed(0.0, most), pytest.raises(error):
                list(narrow.fetch(1, expires=60, heartbeat=0.5))

    def test_options_that_make_no_sense(self, client, worker):
        """
        Invalid options raise an error before a byte is sent.
        """
        before = client.statistics().bytes_out
        for fields in (
            {},
            {"max_messages": 0},
            {"max_messages": -1},
            {"max_bytes": 0},
            {"max_messages": 1, "expires": 0},
            {"max_messages": 1, "expires": -1},
            {"max_messages": 1, "expires": float("nan")},
            {"max_messages": 1, "expires": 4, "heartbeat": 2.1},
            {"max_messages": 1, "expires": 4, "heartbeat": -1},
            {"max_messages": 1, "expires": 4, "heartbeat": 0.1},
            {"max_messages": 1, "no_wait": True, "heartbeat": 1},
            {"max_messages": 1, "priority": 10},
            {"max_messages": 1, "priority": -1},
            {"max_messages": 1, "min_pending": 0},
            {"max_messages": 1, "min_ack_pending": -5},
        ):
            with pytest.raises(ValueError, match=r"."):
                worker.fetch(**fields)
        for fields in (
            {"max_messages": "1"},
            {"max_messages": 1.5},
            {"max_messages": True},
            {"max_messages": 1, "expires": "1"},
            {"max_messages": 1, "group": 5},
        ):
            with pytest.raises(TypeError):
                worker.fetch(**fields)
        assert sent_nothing(client, before)


class TestHeartbeats:
    def test_a_quiet_stream(self, worker):
        """
        A fetch from a quiet stream lasts until its time is over, because heartbeats arrive.
        """

        def attempt(pace):
            with timed(1.5 * pace, 2.0 * pace):
                assert list(worker.fetch(1, expires=1.6 * pace, heartbeat=0.5 * pace)) == []

        at_some_pace(attempt)

    def test_two_missed_heartbeats_end_the_fetch(self, victim, unique):
        """
        Two missed heartbeats end the fetch after the messages that arrived, and are reported.
        """
        recorder = HookRecorder("jetsync_status")
        with jetsync.connect(victim.url, plugins=[recorder]) as client:
            js = client.jetstream()
            stream = js.create_stream(unique, subjects=[f"{unique}.>"], storage="memory")
            worker = stream.create_consumer("worker")
            fill(js, stream, 2)
            messages = iter(worker.fetch(10, expires=60, heartbeat=0.5))
            assert [int(next(messages).data) for _ in range(2)] == [0, 1]
            victim.pause()
            try:
                with timed(0.0, 1.6), pytest.raises(jetsync.NoHeartbeatError) as caught:
                    next(messages)
            finally:
                victim.resume()
            assert (caught.value.consumer, caught.value.stream) == ("worker", unique)
            _, call = recorder.wait_for("jetsync_status", 2)  # The first one counts the publishes.
            event = call["event"]
            assert (event.kind.value, event.heartbeat) == ("heartbeat_missed", 0.5)
            assert 0.9 <= event.silent_for <= 1.6 + LATE
            js.delete_stream(unique)

    def test_without_heartbeats_the_end_is_bounded_too(self, victim, fragile, unique):
        """
        A fetch without heartbeats from a server that hangs ends two seconds after its time.
        """
        stream = fragile.create_stream(unique, subjects=[f"{unique}.>"], storage="memory")
        worker = stream.create_consumer("worker")
        victim.pause()
        try:
            with timed(2.2, 2.8), pytest.raises(jetsync.RequestTimeoutError):
                list(worker.fetch(1, expires=0.3))
        finally:
            victim.resume()
        fragile.delete_stream(unique)


class TestConnection:
    @pytest.mark.versions
    @pytest.mark.parametrize("version", VERSIONS)
    def test_a_restart_during_a_fetch(self, version, unique):
        """
        A fetch continues after a restart of the server, and gets the remaining messages.
        """
        recorder = HookRecorder("jetsync_status")
        with (
            DevServer(version) as server,
            jetsync.connect(server.url, reconnect_wait=0.05, plugins=[recorder]) as client,
        ):
            js = client.jetstream()
            stream = js.create_stream(unique, subjects=[f"{unique}.>"])
            worker = stream.create_consumer("worker")
            fill(js, stream, 10)
            messages = iter(worker.fetch(30, expires=20))
            got = [int(next(messages).data) for _ in range(10)]
            with ThreadPoolExecutor(1) as pool:
                rest = pool.submit(numbers, messages)
                server.restart()
                fill_in_trouble(js, stream, 20, start=10)
                check_resumed(got, rest.result(20), 30)
            # The server ended the pull before it closed the connection. After the restart, the
            # consumer may have no leader yet.
            first, *later = statuses(recorder)
            assert first == (409, PullOutcome.RETRIED)
            assert set(later) <= {(503, PullOutcome.RETRIED)}

    def test_a_fetch_keeps_its_time_over_a_restart(self, victim, fragile, unique):
        """
        A fetch ends at its time, however long the connection was lost.
        """
        stream = fragile.create_stream(unique, subjects=[f"{unique}.>"])
        fill(fragile, stream, 2)

        def attempt():
            worker = stream.create_consumer()
            timer = threading.Timer(1.6, victim.start)
            try:
                with timed(5.9, 6.6):
                    messages = iter(worker.fetch(10, expires=6))
                    assert [int(next(messages).data) for _ in range(2)] == [0, 1]
                    victim.stop()
                    timer.start()
                    assert list(messages) == []
            finally:
                timer.join()

        unless_late(attempt)
        fragile.delete_stream(unique)

    def test_a_server_that_does_not_come_back(self, victim, fragile, unique):
        """
        The fetch raises an error after the messages that arrived, and later the handle works again.
        """
        stream = fragile.create_stream(unique, subjects=[f"{unique}.>"])
        worker = stream.create_consumer("worker", ack_wait=1)
        fill(fragile, stream, 3)
        messages = iter(worker.fetch(10, expires=5))
        assert [int(next(messages).data) for _ in range(3)] == [0, 1, 2]
        victim.stop()
        try:
            with timed(0.0, 5.1), pytest.raises(jetsync.DisconnectedError):
                next(messages)
            with timed(0.2, 0.5), pytest.raises(jetsync.DisconnectedError):
                worker.fetch(1, expires=0.2)
        finally:
            victim.start()
        again = list(worker.fetch(3, expires=30))
        assert sorted(numbers(again)) == [0, 1, 2]
        # The server may have stopped before it stored the deliveries.
        assert {message.metadata.delivered for message in again} <= {1, 2}
        fragile.delete_stream(unique)

    def test_a_fetch_waits_for_the_connection(self, victim, fragile, unique):
        """
        A fetch waits for a connection within its time, and the pull gets the remaining time.
        """
        stream = fragile.create_stream(unique, subjects=[f"{unique}.>"])
        worker = stream.create_consumer("worker")

        def attempt():
            victim.stop()
            eventually(lambda: not client_of(fragile).is_connected)
            timer = threading.Timer(0.5, victim.start)
            timer.start()
            try:
                with timed(5.8, 6.4):
                    assert list(worker.fetch(1, expires=6)) == []
            finally:
                timer.join()

        unless_late(attempt)
        fragile.delete_stream(unique)

    def test_subjects_that_the_user_may_not_use(self, unique, monkeypatch):
        """
        A pull or an inbox that the server refuses ends the fetch at once.
        """
        # Reply subjects that can be named in the server's configuration.
        monkeypatch.setattr("jetsync._io.session.secrets.token_hex", lambda size: "0")
        deny_pull = {"publish": {"deny": ["$JS.API.CONSUMER.MSG.NEXT.>"]}}
        deny_inbox = {"subscribe": {"deny": ["mine.0-1.*"]}}
        users = [
            {"user": "pull", "password": "p", "permissions": deny_pull},
            {"user": "inbox", "password": "p", "permissions": deny_inbox},
        ]
        with DevServer(config={"authorization": {"timeout": 30, "users": users}}) as server:
            for user, operation in (("pull", "publish"), ("inbox", "subscribe")):
                with jetsync.connect(
                    server.url, user=user, password="p", inbox_prefix="mine"
                ) as client:
                    js = client.jetstream()
                    stream = js.create_or_update_stream(unique, subjects=[f"{unique}.>"])
                    worker = stream.create_or_update_consumer("worker")
                    with timed(0.0, 1.0), pytest.raises(jetsync.PermissionDeniedError) as caught:
                        list(worker.fetch(1, expires=20))
                    assert caught.value.operation == operation


@pytest.mark.cluster
class TestCluster:
    @pytest.fixture
    def replicated(self, cluster, unique):
        """
        A context on one server, a stream of three replicas, its consumer and a recorder.
        """
        recorder = HookRecorder("jetsync_status")
        with jetsync.connect(cluster.url, plugins=[recorder], **CLUSTER_CLIENT) as client:
            js = client.jetstream()
            stream = js.create_stream(unique, subjects=[f"{unique}.>"], num_replicas=3)
            worker = stream.create_consumer("worker")
            yield client, js, stream, worker, recorder
            js.delete_stream(unique)

    @staticmethod
    def step_down(client, stream):
        """
        Have the leader of the consumer step down.
        """
        subject = f"$JS.API.CONSUMER.LEADER.STEPDOWN.{stream.name}.worker"
        # There may be no leader yet that could.
        eventually(lambda: b'"success":true' in client.request(subject).data, 30)

    def test_the_consumers_leader_steps_down_during_a_fetch(self, replicated):
        """
        The fetch continues with the new leader and returns each message once.
        """
        client, js, stream, worker, recorder = replicated
        fill_in_trouble(js, stream, 10)
        messages = iter(worker.fetch(30, expires=20))
        got = [int(next(messages).data) for _ in range(10)]
        with ThreadPoolExecutor(1) as pool:
            rest = pool.submit(numbers, messages)
            self.step_down(client, stream)
            fill_in_trouble(js, stream, 20, start=10)
            check_resumed(got, rest.result(20), 30)
        assert (409, PullOutcome.RETRIED) in statuses(recorder)
        assert {outcome for _, outcome in statuses(recorder)} == {PullOutcome.RETRIED}

    def test_a_fetch_while_there_is_no_leader(self, replicated, monkeypatch):
        """
        A fetch right after a step-down returns the messages that are there.
        """
        # Servers of a busy machine may need longer than two seconds to elect a leader.
        monkeypatch.setattr("jetsync.consume.options.NO_WAIT_LIMIT", 30.0)
        client, js, stream, worker, _ = replicated
        fill_in_trouble(js, stream, 15)
        got = []
        for _ in range(3):
            self.step_down(client, stream)
            part = numbers(worker.fetch(5, no_wait=True))
            assert len(part) == 5
            got += part
        # A new leader may not know the latest deliveries of the previous one.
        assert sorted(set(got)) == list(range(len(set(got))))

    def test_the_leaders_server_shuts_down_during_a_fetch(self, cluster, replicated):
        """
        The server sends two statuses for one pull, and each message arrives once.
        """
        client, js, stream, worker, recorder = replicated
        here = cluster.urls.index(f"nats://{client.server.url.rpartition('/')[2]}")
        fill_in_trouble(js, stream, 5)

        def leader():
            # During the election no server answers, or one that has just become the leader.
            with contextlib.suppress(jetsync.RequestTimeoutError, jetsync.ApiError):
                found = worker.info(timeout=5).cluster
                return found and found.leader
            return None

        name = client.server.server_name
        while (found := eventually(leader, 60)) == name:
            self.step_down(client, stream)
        index = int(found.rpartition("-")[2])
        assert index != here
        messages = iter(worker.fetch(10, expires=20))
        got = [int(next(messages).data) for _ in range(5)]
        with ThreadPoolExecutor(1) as pool:
            rest = pool.submit(numbers, messages)
            cluster.stop(index)
            fill_in_trouble(js, stream, 5, start=5)
            rest = rest.result(30)
        cluster.start(index)
        check_resumed(got, rest, 10)
        assert (409, PullOutcome.RETRIED) in statuses(recorder)
        assert client.statistics().reconnects == 0


class TestStatuses:
    def test_a_status_is_reported_also_when_the_call_returns_normally(self, nats_server, stream):
        """
        Statuses are reported for an empty fetch, an empty next, and a batch that ended early.
        """
        recorder = HookRecorder("jetsync_status")
        with jetsync.connect(nats_server.url, plugins=[recorder]) as client:
            js = client.jetstream()
            worker = stream.create_consumer("worker")
            reader = js.consumer(stream.name, worker.name)

            def attempt():
                recorder.clear()
                assert list(reader.fetch(2, expires=0.05)) == []
                assert reader.next(0.05) is None

            unless_late(attempt)
            assert list(reader.fetch(2, no_wait=True)) == []
            fill(js, stream, 2)
            assert list(reader.fetch(2, max_bytes=10, expires=20)) == []
            assert len(list(reader.fetch(2, expires=20))) == 2
            events = pull_events(recorder)
        assert [(e.code, e.description, e.pending_messages) for e in events] == [
            (408, "Request Timeout", 2),
            (408, "Request Timeout", 1),
            (404, "No Messages", None),
            (408, "Request Timeout", 2),
            (409, "Message Size Exceeds MaxBytes", 2),
        ]
        assert {(e.stream, e.consumer) for e in events} == {(stream.name, "worker")}
        # A pull that found no message is followed by a second one.
        ended = [e.outcome is PullOutcome.ENDED for e in events]
        assert ended == [True, True, False, True, True]

    def test_an_error_is_reported_too(self, nats_server, stream):
        """
        An error status is reported as an event with its outcome, and raised as an error.
        """
        recorder = HookRecorder("jetsync_status")
        with jetsync.connect(nats_server.url, plugins=[recorder]) as client:
            limited = stream.create_consumer("limited", max_batch=1)
            reader = client.jetstream().consumer(stream.name, limited.name)
            with pytest.raises(jetsync.MaxRequestBatchError):
                list(reader.fetch(2, expires=20))
            assert statuses(recorder) == [(409, PullOutcome.FAILED)]

    def test_status_lines_with_and_without_headers(self):
        """
        A status line is split into code, description and headers. A message has no status.
        """
        parse = jetsync.Headers.parse
        code, description, headers = parse(b"NATS/1.0 503\r\nNats-Subject: x\r\n\r\n")
        assert (code, description, dict(headers.items())) == (503, "", {"Nats-Subject": "x"})
        code, description, headers = parse(
            b"NATS/1.0 100 Idle Heartbeat\r\nNats-Last-Consumer: 5\r\nNats-Last-Stream: 7\r\n\r\n"
        )
        assert (code, description, headers["Nats-Last-Stream"]) == (100, "Idle Heartbeat", "7")
        code, description, headers = parse(b"NATS/1.0\r\nA: b\r\n\r\n")
        assert (code, description, dict(headers.items())) == (None, "", {"A": "b"})
        assert parse_status(b"NATS/1.0 404 No Messages\r\n\r\n") == (404, "No Messages")


class TestDomains:
    def test_a_domain_that_is_out_of_reach_is_waited_for(self, nats_server, client, js, stream):
        """
        A fetch continues when the link to its domain is back, and otherwise lasts until its end.
        """
        hub = client.jetstream(domain="hub")
        stream.create_consumer("worker")
        with domain_link(nats_server.url):
            consumer = hub.consumer(stream.name, "worker")
        fill(js, stream, 1)
        with timed(0.5, 1.0), pytest.raises(jetsync.ConsumerUnavailableError):
            list(consumer.fetch(1, expires=0.5))
        batch = consumer.fetch(1, expires=20.0)
        with ThreadPoolExecutor(1) as pool:
            fetched = pool.submit(list, batch)
            with domain_link(nats_server.url):
                assert len(fetched.result(20.0)) == 1

    def test_a_consumer_that_does_not_exist_is_named(self, stream):
        """
        A fetch from a deleted consumer names the consumer and its stream.
        """
        consumer = stream.create_consumer("worker")
        stream.delete_consumer("worker")
        name = f"consumer 'worker' not found on stream '{stream.name}'"
        with pytest.raises(jetsync.ConsumerNotFoundError, match=name):
            list(consumer.fetch(1, expires=20))


class TestThreads:
    def test_a_second_thread_that_iterates(self, js, stream, worker):
        """
        A thread that iterates over a batch of another thread gets ConflictingUseError at once.
        """
        fill(js, stream, 1)
        batch = worker.fetch(5, expires=60)
        taken, go_on = threading.Event(), threading.Event()

        def first():
            for message in batch:
                message.ack()
                taken.set()
                assert go_on.wait(30)

        with ThreadPoolExecutor(2) as pool:
            iterating = pool.submit(first)
            assert taken.wait(10)
            second = pool.submit(list, batch)
            # The first thread continues while the second one would wait for a message.
            done, _ = wait([second], timeout=8)
            go_on.set()
            assert done
            with pytest.raises(jetsync.ConflictingUseError):
                second.result(0)
            batch.close()
            assert iterating.result(20) is None

    def test_closing_a_batch_wakes_the_thread_that_waits(self, js, stream, worker):
        """
        A thread that waits for a message of the batch is woken.
        """
        batch = worker.fetch(5, expires=20)
        with ThreadPoolExecutor(1) as pool, timed(0.0, 5.0):
            waiting = pool.submit(list, batch)
            eventually(lambda: batch._running().is_running)
            batch.close()
            assert waiting.result(20) == []

    def test_closed_while_the_connection_is_lost(self, nats_server, stream, worker):
        """
        The thread is also woken while it waits for a connection to pull again.
        """
        with CutProxy(nats_server.url) as proxy, jetsync.connect(proxy.url) as client:
            batch = client.jetstream().consumer(stream.name, "worker").fetch(5, expires=20)
            with ThreadPoolExecutor(1) as pool:
                waiting = pool.submit(list, batch)
                eventually(lambda: batch._running().is_running)
                proxy.refuse()
                proxy.cut()
                eventually(lambda: not client.is_connected)
                time.sleep(0.2)
                with timed(0.0, 2.0):
                    batch.close()
                    assert waiting.result(20) == []
                proxy.accept()

    @pytest.mark.parametrize("limits", [{"max_messages": 5}, {"max_bytes": 500}])
    def test_no_more_than_asked_for_after_a_lost_connection(
        self, nats_server, js, stream, worker, limits
    ):
        """
        A server that serves the pulls of both connections does not make the batch longer.

        It redelivers the other messages at once, and the next batch gets only its own.
        """
        with CutProxy(nats_server.url) as proxy, jetsync.connect(proxy.url) as client:
            consumer = client.jetstream().consumer(stream.name, "worker")
            with ThreadPoolExecutor(1) as pool:
                fetching = pool.submit(lambda: [*consumer.fetch(**limits, expires=20)])
                eventually(lambda: worker.info().num_waiting == 1)
                proxy.cut()
                # Asked meanwhile, the server would notice that the pull has no subscription.
                eventually(lambda: client.statistics().reconnects == 1)
                client.flush()
                eventually(lambda: worker.info().num_waiting == 2)
                fill(js, stream, 30)
                first = fetching.result(20)
            # Its name is as long, because the name is in each reply subject and counts as bytes.
            usual = [*stream.create_consumer("second").fetch(**limits, expires=20)]
            # The numbers in the reply subject have more digits if the lost pull was served first,
            # and fewer if the server delivers while the stream is filled.
            assert abs(len(first) - len(usual)) <= ("max_bytes" in limits)
            assert [m.sequence for m in first] == [*range(1, len(first) + 1)]
            second = [*consumer.fetch(30 - len(first), expires=10)]
            assert sorted(m.sequence for m in second) == [*range(len(first) + 1, 31)]

    def test_no_more_than_asked_for_from_a_server_that_is_late(
        self, js, stream, worker, monkeypatch
    ):
        """
        A fetch with no_wait keeps to its limit if the server looks at its first pull too late.
        """
        # Its feed is used again, so the server knows the subscription.
        assert not list(worker.fetch(1, no_wait=True))
        fill(js, stream, 10)
        pull, late = PullFeed.pull, []

        def pulls(feed, request):
            lane = feed.lane
            if late:
                lane.write(late.pop(), Deadline.after(20))
                monkeypatch.setattr(PullFeed, "pull", pull)
                return pull(feed, request)
            with monkeypatch.context() as patch:
                patch.setattr(lane, "write", lambda block, _: late.append(block) or lane.epoch)
                return pull(feed, request)

        monkeypatch.setattr(PullFeed, "pull", pulls)
        assert numbers(worker.fetch(5, no_wait=True)) == [0, 1, 2, 3, 4]
        assert sorted(numbers(worker.fetch(5, expires=20))) == [5, 6, 7, 8, 9]

    def test_closing_a_batch_while_it_is_read_raises_nothing(self, js, stream, worker):
        """
        A thread that closes the batch while another one takes its messages raises nothing.
        """
        for _ in range(100):
            fill(js, stream, 20)
            batch = worker.fetch(20, expires=20)
            with ThreadPoolExecutor(1) as pool:
                iterating = pool.submit(list, batch)
                batch.close()
                iterating.result(20)


class TestMemory:
    @pytest.mark.parametrize(("policy", "limit"), [("none", 300), ("explicit", 4500)])
    def test_messages_that_are_done(self, client, js, stream, policy, limit):
        """
        A batch holds few messages that cannot be acknowledged, or were acknowledged.
        """

        def messages():
            return sum(type(each) is jetsync.Message for each in gc.get_objects())

        limits = {} if policy == "none" else {"max_ack_pending": -1}
        worker = stream.create_consumer("one", ack_policy=policy, **limits)
        fill(js, stream, 10_000)
        # Tests before this one may have left some.
        gc.collect()
        before = messages()
        batch, most = worker.fetch(10_000, expires=10), 0
        if policy == "explicit":
            # No wait divides the batch.
            eventually(lambda: worker.info().num_ack_pending == 10_000)
            client.flush()
        for number, message in enumerate(batch):
            if policy == "explicit":
                message.ack()
            if number % 2500 == 2499:
                most = max(most, messages() - before)
        assert most <= limit

    def test_ack_covers_a_long_batch(self, js, stream):
        """
        The acknowledgement of a batch covers all messages that were not acknowledged before.
        """
        worker = stream.create_consumer("one", max_ack_pending=-1)
        fill(js, stream, 10_000)
        batch = worker.fetch(10_000, expires=10)
        for number, message in enumerate(batch):
            if number % 2:
                message.ack()
        assert batch.ack() == 5000
        eventually(lambda: worker.info().num_ack_pending == 0)

    def test_none_of_them_is_acknowledged(self, js, stream):
        """
        The error that a batch cannot be acknowledged names the consumer.
        """
        worker = stream.create_consumer("one", ack_policy="none")
        assert worker.fetch(5, no_wait=True).ack() == 0
        fill(js, stream, 1)
        batch = worker.fetch(1, expires=20)
        assert len(list(batch)) == 1
        with pytest.raises(jetsync.AcksNotWantedError, match="one"):
            batch.ack()
