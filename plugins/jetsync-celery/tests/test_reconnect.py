"""
A restart of the server loses no acknowledgement and leaves no message with a reader that is gone.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any

import kombu
import pytest

from jetsync.devserver import DevServer
from jetsync.testing import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.live

OPTIONS = {"ack_wait": 1.0, "connect": {"request_timeout": 1.0}}
QUEUE = kombu.Queue("orders", durable=True)


@pytest.fixture
def server() -> Iterator[DevServer]:
    """
    A server that only this test uses.
    """
    with DevServer() as server:
        yield server


@pytest.fixture
def connection(server: DevServer) -> Iterator[kombu.Connection]:
    """
    A connection with a short ack wait.
    """
    url = server.url.replace("nats://", "jetstream://")
    with kombu.Connection(url, transport_options=OPTIONS) as connection:
        yield connection


def consume(connection: kombu.Connection, got: list[Any]) -> kombu.Consumer:
    """
    Start to take one message at a time.
    """
    channel = connection.channel()
    consumer = kombu.Consumer(channel, [QUEUE], on_message=got.append, accept=["text/plain"])
    consumer.qos(prefetch_count=1)
    consumer.consume()
    return consumer


def drain_until(connection: kombu.Connection, got: list[Any], count: int) -> None:
    """
    Drain until that many messages have arrived.
    """

    def arrived() -> bool:
        with contextlib.suppress(TimeoutError):
            connection.drain_events(timeout=0.2)
        return len(got) >= count

    eventually(arrived, timeout=20)


def put(connection: kombu.Connection, *bodies: str) -> None:
    """
    Put messages into the queue.
    """
    producer = kombu.Producer(connection.channel())
    for body in bodies:
        producer.publish(body, routing_key=QUEUE.name, declare=[QUEUE], retry=True)


@pytest.mark.parametrize("pause", [0.0, 1.5], ids=["short", "longer than the ack wait"])
def test_an_acknowledgement_without_a_connection_is_sent_when_it_is_back(
    server: DevServer, connection: kombu.Connection, pause: float
) -> None:
    """
    It does not block, the message does not come again, and the next one comes.

    After a pause that is longer than the ack wait, the server may deliver the message again before
    it has the acknowledgement.
    """
    put(connection, "chair", "table")
    got: list[Any] = []
    consume(connection, got)
    drain_until(connection, got, 1)
    server.kill()
    eventually(lambda: not connection.transport.connected_client.is_connected)
    began = time.monotonic()
    got[0].ack()

    assert time.monotonic() - began < 1.0

    # The time without a server is the subject.
    time.sleep(pause)
    server.start()
    drain_until(connection, got, 2)
    got[1].ack()

    assert [message.payload for message in got] == ["chair", "table"]
    queue = connection.transport.work_queue("orders")
    eventually(lambda: queue.statistics().open == 0)


def test_messages_of_a_channel_that_was_closed_without_a_connection_come_again(
    server: DevServer, connection: kombu.Connection
) -> None:
    """
    Nothing keeps the messages of a closed channel alive after the connection is back.
    """
    put(connection, "chair")
    first: list[Any] = []
    consumer = consume(connection, first)
    drain_until(connection, first, 1)
    server.kill()
    eventually(lambda: not connection.transport.connected_client.is_connected)
    consumer.channel.close()
    server.start()
    second: list[Any] = []
    consume(connection, second)
    drain_until(connection, second, 1)

    assert second[0].payload == "chair"
    second[0].ack()
