"""
Messages of remote control that arrived before a task are handed out before it.
"""

from __future__ import annotations

import contextlib
import threading
from typing import Any
from unittest import mock

import kombu
import pytest

from jetsync.testing import eventually
from jetsync_celery import transport
from jetsync_celery.sources import TransientQueue

pytestmark = pytest.mark.live

TASKS = kombu.Queue("tasks", durable=True)
CONTROL = kombu.Queue("control", exclusive=True, auto_delete=True)


@pytest.fixture
def got(connection: kombu.Connection) -> list[Any]:
    """
    What two consumers get: of tasks, and of remote control.
    """
    found: list[Any] = []
    for queue in (TASKS, CONTROL):
        consumer = kombu.Consumer(connection.channel(), [queue], accept=["text/plain"], no_ack=True)
        consumer.register_callback(lambda body, _: found.append(body))
        consumer.consume()
    return found


def publish(connection: kombu.Connection, queue: kombu.Queue, body: str) -> None:
    """
    Send a message.
    """
    kombu.Producer(connection.default_channel).publish(body, routing_key=queue.name)


def drain(connection: kombu.Connection, seconds: float) -> None:
    """
    Hand out what arrives in time.
    """
    with contextlib.suppress(TimeoutError):
        while True:
            connection.drain_events(timeout=seconds)


def is_behind(value: bool) -> Any:
    """
    Let queues in memory say whether they have something to read.
    """
    return mock.patch.object(
        TransientQueue, "is_behind", new_callable=mock.PropertyMock, return_value=value
    )


def test_tasks_wait_for_remote_control(connection: kombu.Connection, got: list[Any]) -> None:
    """
    While a message of remote control was received and not read, no task is handed out.
    """
    publish(connection, TASKS, "task")
    with is_behind(True), mock.patch.object(transport, "LONGEST_HOLD", 60.0):
        drain(connection, 0.5)
        assert got == []
    connection.drain_events(timeout=20)

    assert got == ["task"]


def test_all_of_remote_control_comes_first(connection: kombu.Connection, got: list[Any]) -> None:
    """
    Not only its first message.
    """
    publish(connection, TASKS, "task")
    for number in range(3):
        publish(connection, CONTROL, f"control {number}")
    queue = connection.transport.transient(CONTROL.name)
    eventually(lambda: queue.size() == 3)
    with mock.patch.object(transport, "LONGEST_HOLD", 60.0):
        drain(connection, 0.5)

    assert got == ["control 0", "control 1", "control 2", "task"]


def test_a_flood_of_remote_control_does_not_stop_tasks(
    connection: kombu.Connection, got: list[Any]
) -> None:
    """
    Tasks wait for a moment only.
    """
    publish(connection, TASKS, "task")
    with is_behind(True):
        drain(connection, 2 * transport.LONGEST_HOLD + 0.5)

    assert got == ["task"]


def test_a_queue_in_memory_is_behind_until_it_has_read_all(
    connection: kombu.Connection, got: list[Any]
) -> None:
    """
    Then its messages come in their order.
    """
    gate, receive = threading.Event(), TransientQueue._receive

    def wait(*args: Any) -> None:
        assert gate.wait(20)
        receive(*args)

    queue = connection.transport.transient(CONTROL.name)
    assert not queue.is_behind
    with mock.patch.object(TransientQueue, "_receive", wait):
        publish(connection, CONTROL, "first")
        eventually(lambda: queue.is_behind)
        publish(connection, CONTROL, "second")
        connection.transport.connected_client.flush()
        assert queue.is_behind
        gate.set()
        eventually(lambda: not queue.is_behind)
    eventually(lambda: queue.size() == 2)
    drain(connection, 0.5)

    assert got == ["first", "second"]
