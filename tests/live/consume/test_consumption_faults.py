"""
Consumptions without a connection, with plugins that refuse messages, in forks and closed clients.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

import jetsync
from helpers.connections import connection_of
from helpers.interrupts import Interrupt
from helpers.lacking import needs_fork
from helpers.waiting import at_some_pace, eventually, is_led, timed
from jetsync.consume.feed import Feed


def fill(js, stream, count, start=0):
    """
    Publish *count* messages with their numbers as payload.
    """
    js.publish_many((f"{stream.name}.A", b"%d" % number) for number in range(start, start + count))


def arrived(messages, count):
    """
    Wait until so many messages have arrived. Drive the consumption, since perhaps no thread does.
    """
    eventually(lambda: messages._core.refill() or messages.statistics().received == count)


@pytest.fixture
def distant(proxy):
    """
    A client behind the proxy.
    """
    with jetsync.connect(proxy.url, reconnect_wait=0.05) as client:
        yield client


@contextlib.contextmanager
def cut_off(proxy, client):
    """
    Keep a client without a connection.
    """
    proxy.refuse()
    proxy.cut()
    try:
        eventually(lambda: not client.is_connected)
        yield
    finally:
        proxy.accept()
    eventually(lambda: client.is_connected)


@pytest.mark.parametrize(
    "call",
    [lambda messages: messages.next(timeout=0), lambda messages: messages._core.refill()],
    ids=["next", "refill"],
)
def test_a_drain_while_another_call_stops_driving(js, stream, monkeypatch, call):
    """
    If a consumption drains when the driving thread is about to stop, that thread ends the pulls.
    """
    messages = stream.create_consumer("worker").consume()
    engine = type(messages._core.engine)
    leave, left = engine.leave, [None]

    def leaves(self, now):
        leave(self, now)
        if left:
            left.pop()
            with ThreadPoolExecutor(1) as pool:
                pool.submit(messages.drain).result(20)

    monkeypatch.setattr(engine, "leave", leaves)
    assert messages._core.is_open
    with contextlib.suppress(jetsync.ConsumptionClosedError):
        call(messages)
    assert not messages._core.is_open


def test_pulls_of_several_lost_connections(proxy, distant, js, stream):
    """
    A server that kept the pulls of several lost connections serves all of them, and no message of
    them is given back.
    """
    stream.create_consumer("worker")
    worker, delivered = distant.jetstream().consumer(stream.name, "worker"), []
    options = {"max_messages": 20, "threshold_messages": 0}
    with worker.consume(
        lambda message: delivered.append(message.metadata.delivered), **options
    ) as messages:
        pulls = messages._core.engine.pulls
        for number in (1, 2, 3):
            eventually(lambda count=number: pulls.opened == count)
            distant.flush()
            proxy.cut()
            eventually(lambda count=number: distant.statistics().reconnects == count)
        eventually(lambda: pulls.opened == 4)
        distant.flush()
        fill(js, stream, 80)
        eventually(lambda: len(delivered) >= 80)
    assert set(delivered) == {1}


class TestAnswersWithoutAConnection:
    """
    Acks and naks without a connection are sent on the next one.
    """

    @pytest.fixture
    def there(self, distant, stream):
        """
        The consumer's handle of the client that is cut off, and one of another client.
        """
        near = stream.create_consumer("worker", ack_wait=60)
        return distant.jetstream().consumer(stream.name, "worker"), near

    def test_acknowledged_by_the_handler_form(self, proxy, distant, js, stream, there):
        """
        Ten messages are handled once each, and acknowledged.
        """
        worker, near = there
        fill(js, stream, 10)
        gate, numbers = threading.Event(), []

        def handler(message):
            gate.wait(60)
            numbers.append(int(message.data))

        running = worker.consume(handler, ack="auto")
        try:
            arrived(running, 10)
            with cut_off(proxy, distant):
                gate.set()
                eventually(lambda: len(numbers) == 10)
            eventually(lambda: near.info().ack_floor.stream_seq == 10)
        finally:
            gate.set()
            running.close()
        assert running.wait(timeout=20)
        assert numbers == list(range(10))

    def test_acknowledged_by_the_iterator(self, proxy, distant, js, stream, there):
        """
        Taking the next message does not wait for the connection, and all messages are acknowledged.
        """
        worker, near = there
        fill(js, stream, 3)
        with worker.consume(ack="auto") as messages:
            next(messages)
            arrived(messages, 3)
            with cut_off(proxy, distant), timed(0, 1):
                assert [int(messages.next(timeout=20).data) for _ in range(2)] == [1, 2]
        eventually(lambda: near.info().ack_floor.stream_seq == 3)

    def test_messages_given_back_offline_are_redelivered_early(
        self, proxy, distant, js, stream, there
    ):
        """
        Messages that a close gives back are redelivered long before the ack wait is over.
        """
        worker, near = there
        fill(js, stream, 5)
        messages = worker.consume()
        next(messages).ack_sync()
        arrived(messages, 5)
        with cut_off(proxy, distant):
            messages.close()
            assert messages.closed
        with near.consume() as again:
            assert sorted(int(again.next(timeout=20).data) for _ in range(4)) == [1, 2, 3, 4]


class TestOrderedConsumers:
    def test_stopped_while_the_server_is_paused(self, proxy, distant, js, stream):
        """
        close() wakes a thread that waits while the consumer is replaced.
        """
        fill(js, stream, 1)
        ordered = distant.jetstream().stream(stream.name).ordered_consumer()
        messages = ordered.consume(heartbeat=0.5, expires=2)
        assert next(messages).data == b"0"
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(list, messages)
            try:
                proxy.pause()
                eventually(connection_of(distant).router.pending)
                with timed(0, 0.5):
                    messages.close()
                    assert waiting.result(10) == []
            finally:
                proxy.resume()
        ordered.close()

    def test_an_ordered_consumer_closed_offline_is_deleted_later(self, proxy, distant, js, stream):
        """
        The consumer is deleted on the server as soon as there is a connection.
        """
        fill(js, stream, 1)
        ordered = distant.jetstream().stream(stream.name).ordered_consumer()
        assert ordered.next(10).data == b"0"
        with cut_off(proxy, distant):
            ordered.close(timeout=0.1)
            assert list(stream.consumer_names()) == [ordered.name]
        eventually(lambda: list(stream.consumer_names()) == [])


def test_an_exception_of_a_signal_handler_reaches_the_interrupted_call(js, stream, monkeypatch):
    """
    A time limit that strikes while a call receives is raised by this call, not by another one.
    """
    consumer = stream.create_consumer("worker")
    # Without a message, a call takes its first step with a heartbeat.
    with consumer.consume(expires=1) as messages:
        Interrupt(monkeypatch, Feed, "step", LookupError)
        with pytest.raises(LookupError):
            messages.next(timeout=20)
        with pytest.raises(jetsync.ConsumptionClosedError, match="interrupted"):
            messages.next(timeout=20)


class TestRefusingPlugins:
    @pytest.fixture
    def picky(self, nats_server):
        """
        JetStream over a client with a plugin that refuses each message the first time it sees it.
        """

        class Picky:
            def __init__(self):
                self.seen = set()

            @jetsync.hookimpl
            def jetsync_message_received(self, message):
                if message.data not in self.seen:
                    self.seen.add(message.data)
                    raise ValueError("no")

        with jetsync.connect(nats_server.url, plugins=[Picky()]) as client:
            yield client.jetstream()

    @pytest.mark.parametrize("way", ["fetch", "iterator", "handler"])
    def test_a_message_that_a_plugin_refused_is_redelivered_at_once(self, picky, js, stream, way):
        """
        A message that a plugin refused is redelivered at once, not after the ack wait.
        """
        stream.create_consumer("worker", ack_wait=60)
        worker = picky.consumer(stream.name, "worker")
        fill(js, stream, 3)
        got, end = [], time.monotonic() + 20
        with contextlib.ExitStack() as stack:
            if way == "handler":
                stack.enter_context(worker.consume(got.append, ack="auto"))
                eventually(lambda: len(got) == 3)
            elif way == "iterator":
                messages = stack.enter_context(worker.consume())
            while len(got) < 3 and time.monotonic() < end:
                with contextlib.suppress(jetsync.PluginError):
                    if way == "fetch":
                        got += list(worker.fetch(1, expires=5))
                    else:
                        got.append(messages.next(timeout=5))
                        got[-1].ack()
        assert {int(message.data) for message in got} == {0, 1, 2}

    def test_an_ordered_consumer_repeats_the_refused_message(self, picky, js, stream):
        """
        The next use of an ordered consumer begins with the message that a plugin refused.
        """
        fill(js, stream, 4)
        got = []
        with picky.stream(stream.name).ordered_consumer() as ordered:
            for _ in range(4):
                messages = ordered.consume()
                with pytest.raises(jetsync.PluginError):
                    messages.next(timeout=10)
                assert messages.closed
                got.append(int(ordered.next(10).data))
            assert ordered.statistics().delivered == 4
        assert got == [0, 1, 2, 3]


class TestEndedInAHook:
    @pytest.mark.parametrize("end", ["close", "drain"])
    def test_the_driver_keeps_driving(self, nats_server, stream, monkeypatch, end):
        """
        If a hook ends the consumption, no other thread drives meanwhile, and no more pulls are
        sent.
        """

        def attempt(pace):
            inside, most = [], []

            def watched(feed, now):
                inside.append(threading.get_ident())
                most.append(len(inside))
                try:
                    return step(feed, now)
                finally:
                    inside.pop()

            class Ender:
                @jetsync.hookimpl
                def jetsync_status(self, event):
                    if isinstance(event, jetsync.PullStatusEvent):
                        getattr(messages, end)()
                        with pytest.raises(jetsync.ConflictingUseError):
                            messages.next(timeout=5)
                        told.set()

            monkeypatch.setattr(Feed, "step", watched)
            told = threading.Event()
            with jetsync.connect(nats_server.url, plugins=[Ender()]) as client:
                worker = client.jetstream().consumer(stream.name, "worker")
                messages = worker.consume(expires=pace)
                with ThreadPoolExecutor(3) as pool:
                    parts = [pool.submit(list, messages) for _ in range(3)]
                    assert [part.result(60) for part in parts] == [[], [], []]
                assert told.is_set()
                assert messages.closed
                assert messages.statistics().pulls == 1
            assert max(most) == 1

        stream.create_consumer("worker")
        step = Feed.step
        at_some_pace(attempt)


class TestEndOfTheClient:
    @pytest.mark.parametrize("shape", ["iterator", "handler", "ordered"])
    def test_another_client_gets_the_buffered_messages_at_once(
        self, nats_server, js, stream, shape, caplog
    ):
        """
        Another client gets the buffered messages at once, and closing the own client is no error.
        """
        worker = stream.create_consumer("worker", ack_wait=60)
        fill(js, stream, 20)
        gate = threading.Event()
        options = {
            "iterator": {},
            "handler": {"handler": lambda message: gate.wait(60)},
            "ordered": {"handler": lambda message: gate.wait(60), "ordered_by": "subject"},
        }
        try:
            with jetsync.connect(nats_server.url) as client:
                mine = client.jetstream().consumer(stream.name, "worker")
                messages = mine.consume(**options[shape])
                if shape == "iterator":
                    next(messages)
                arrived(messages, 20)
            with worker.consume() as rest:
                assert sorted(int(rest.next(timeout=20).data) for _ in range(19)) == [*range(1, 20)]
        finally:
            gate.set()
        assert messages.wait(timeout=20)
        assert messages.error is None
        assert "consumption_ended" not in caplog.text

    def test_while_another_thread_waits(self, nats_server, js, stream):
        """
        The buffered messages are given back before the connection is closed.
        """
        worker = stream.create_consumer("worker", ack_wait=60)
        client = jetsync.connect(nats_server.url)
        messages = client.jetstream().consumer(stream.name, "worker").consume()
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(messages.next, timeout=20)
            eventually(lambda: is_led(messages))
            client.close()
            assert isinstance(waiting.exception(10), jetsync.ConnectionClosedError)
        assert worker.info().num_waiting == 0


class TestNobodyIterates:
    def test_the_end_is_seen(self, js, stream):
        """
        wait() and closed notice that the consumer was deleted, although no thread takes messages.
        """
        worker = stream.create_consumer("worker")
        waited, looked = worker.consume(), worker.consume()
        assert not waited.wait(timeout=0.1)
        worker.delete()
        assert waited.wait(timeout=10)
        eventually(lambda: looked.closed)
        assert isinstance(waited.error, jetsync.ConsumerDeletedError)
        assert isinstance(looked.error, jetsync.ConsumerDeletedError)


FORK = """
import os, sys, threading
import jetsync

client = jetsync.connect(sys.argv[1])
worker = client.jetstream().consumer(sys.argv[2], "worker")
messages = worker.consume()
next(messages)
ordered = client.jetstream().stream(sys.argv[2]).ordered_consumer().consume()
next(ordered)
while messages.statistics().received < 10:
    # Looks at what has come.
    messages.wait(timeout=0.01)
gate = threading.Event()
with worker.consume(lambda message: gate.wait(60)) as running:
    pid = os.fork()
    if pid:
        assert os.waitpid(pid, 0)[1] == 0
        gate.set()
        print("parent", [int(next(messages).data) for _ in range(9)])
    else:
        for call in (
            lambda: next(messages),
            lambda: messages.next(timeout=1),
            lambda: list(messages),
            lambda: ordered.wait(timeout=5),
        ):
            try:
                print("child got", call())
            except jetsync.ForkedProcessError:
                print("child refused")
        print("child", messages.wait(), running.wait(), type(running.error).__name__)
if not pid:
    print("child left", flush=True)
    os._exit(0)
"""


@needs_fork
def test_a_forked_child_gets_no_message_of_its_parent(nats_server, js, stream):
    """
    A forked child gets no message of its parent, and does not wait for the parent's threads.
    """
    stream.create_consumer("worker")
    fill(js, stream, 10)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORK, nats_server.url, stream.name],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(done.stdout.splitlines()) == [
        "child True True ForkedProcessError",
        "child left",
        *["child refused"] * 4,
        "parent [1, 2, 3, 4, 5, 6, 7, 8, 9]",
    ]
