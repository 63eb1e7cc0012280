"""
Consuming on real servers: acknowledgements, plugins, processes and clients that go wrong.
"""

from __future__ import annotations

import threading
import time

import pytest
from patience import eventually

import jetsync
from jetsync.devserver import DevServer


def fill(js, stream, count, start=0):
    """
    Publish *count* messages with their numbers as payload.
    """
    js.publish_many((f"{stream.name}.A", b"%d" % number) for number in range(start, start + count))


@pytest.fixture(scope="module")
def mortal():
    """
    A server that tests may stop; each test leaves it running.
    """
    with DevServer() as server:
        yield server


@pytest.fixture
def lasting(mortal, unique):
    """
    A client of the server that may be stopped, a stream in a file, its consumer.
    """
    with jetsync.connect(mortal.url, reconnect_wait=0.05) as client:
        js = client.jetstream()
        stream = js.create_stream(name=unique, subjects=[f"{unique}.>"])
        yield client, js, stream, stream.create_consumer(durable_name="worker", ack_wait=60)
        js.delete_stream(unique)


class TestAnswersWithoutAConnection:
    """
    What was handled, or given back, while there is no connection is told once there is one.
    """

    def test_acknowledged_by_the_handler_form(self, mortal, lasting):
        """
        All ten are handled once, and acknowledged.
        """
        client, js, stream, worker = lasting
        fill(js, stream, 10)
        gate, numbers = threading.Event(), []

        def handler(message):
            gate.wait(20)
            numbers.append(int(message.data))

        running = worker.consume(handler, ack="auto")
        try:
            eventually(lambda: running.statistics().received == 10)
            mortal.stop()
            eventually(lambda: not client.is_connected)
            gate.set()
            eventually(lambda: len(numbers) == 10)
        finally:
            gate.set()
            mortal.start()
        eventually(lambda: client.is_connected)
        eventually(lambda: worker.info(timeout=10).ack_floor.stream_seq == 10)
        running.stop()
        assert running.wait(5)
        assert numbers == list(range(10))

    def test_acknowledged_by_the_iterator(self, mortal, lasting):
        """
        The next message is not waited for any longer than it has to be, and all are acknowledged.
        """
        client, js, stream, worker = lasting
        fill(js, stream, 3)
        with worker.consume(ack="auto") as messages:
            next(messages)
            eventually(lambda: messages.statistics().received == 3)
            mortal.stop()
            try:
                eventually(lambda: not client.is_connected)
                start = time.monotonic()
                assert [int(messages.next(1).data) for _ in range(2)] == [1, 2]
                assert time.monotonic() - start < 4
            finally:
                mortal.start()
            eventually(lambda: client.is_connected)
        eventually(lambda: worker.info(timeout=10).ack_floor.stream_seq == 3)

    def test_given_back(self, mortal, lasting):
        """
        What a stop gives back meanwhile comes again long before the ack wait is over.
        """
        client, js, stream, worker = lasting
        fill(js, stream, 5)
        messages = worker.consume()
        next(messages).ack_sync()
        eventually(lambda: messages.statistics().received == 5)
        mortal.stop()
        try:
            eventually(lambda: not client.is_connected)
            messages.stop()
            assert messages.closed
        finally:
            mortal.start()
        eventually(lambda: client.is_connected)
        with worker.consume() as again:
            assert sorted(int(again.next(20).data) for _ in range(4)) == [1, 2, 3, 4]


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

    def test_ordered(self, picky, js, stream):
        """
        An ordered consumer leaves out no message that a plugin refused: the next use has it.
        """
        fill(js, stream, 4)
        got = []
        with picky.stream(stream.name).ordered_consumer() as ordered:
            for _ in range(4):
                messages = ordered.consume()
                with pytest.raises(jetsync.PluginError):
                    messages.next(10)
                assert messages.closed
                got.append(int(ordered.next(10).data))
            assert ordered.statistics().delivered == 4
        assert got == [0, 1, 2, 3]
