"""
Messages that cannot be read do not stop those that read them.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import kombu
import pytest

import jetsync
from jetsync.testing import eventually
from jetsync_celery import envelope, sources
from jetsync_queue import WorkQueue

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from jetsync.devserver import DevServer

pytestmark = pytest.mark.live


@pytest.fixture
def client(nats_server: DevServer) -> Iterator[jetsync.Client]:
    """
    The client of another program.
    """
    with jetsync.connect(nats_server.url) as client:
        yield client


@pytest.fixture
def work_queue(client: jetsync.Client, url: str) -> WorkQueue:
    """
    What another program has of the queue ``mail``.
    """
    return WorkQueue.open(client.jetstream(), "mail", prefix=url.rpartition("/")[2], results=False)


def test_a_message_that_is_no_envelope_becomes_a_dead_job(
    connection: kombu.Connection, work_queue: WorkQueue
) -> None:
    """
    The next message is received.
    """
    with connection.SimpleQueue("mail") as queue:
        work_queue.put(b"bad", headers={envelope.ENVELOPE: "{"})
        queue.put("good")

        message = queue.get(timeout=30)
        message.ack()

        assert message.payload == "good"
        eventually(work_queue.dead)
    (dead,) = work_queue.dead()
    assert dead.data == b"bad"
    assert "JSON" in dead.reason


def test_a_message_whose_data_is_gone_becomes_a_dead_job(
    connection: kombu.Connection, client: jetsync.Client, work_queue: WorkQueue
) -> None:
    """
    For example because a server that was killed has forgotten that the task was done.
    """
    with connection.SimpleQueue("mail") as queue:
        work_queue.put(bytes(2_000_000))
        store = client.jetstream().object_store(f"{work_queue.stream.name}_jobs")
        for each in store.list():
            store.delete(each.name)
        queue.put("good")

        message = queue.get(timeout=30)
        message.ack()

        assert message.payload == "good"
        eventually(work_queue.dead)
    assert "ObjectNotFoundError" in work_queue.dead()[0].reason


def test_a_message_whose_data_cannot_be_loaded_now_is_delivered_again(
    connection: kombu.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    It is no reason to give up the connection.
    """
    monkeypatch.setattr(sources, "READ_AGAIN", 0.01)
    decode = envelope.decode
    failures = iter([jetsync.RequestTimeoutError("$JS.API", 1.0)])

    def failing(*args: Any, **kwargs: Any) -> dict[str, Any]:
        for failure in failures:
            raise failure
        return decode(*args, **kwargs)

    with connection.SimpleQueue("mail") as queue:
        queue.put("good")
        monkeypatch.setattr(envelope, "decode", failing)
        message = queue.get(timeout=30)
        message.ack()

        assert message.payload == "good"


def test_a_time_that_is_none_is_ignored(
    connection: kombu.Connection, client: jetsync.Client, url: str
) -> None:
    """
    Of a message without a stream, which any program may publish.
    """
    prefix = url.rpartition("/")[2]
    got: list[Any] = []
    queue = kombu.Queue("now", auto_delete=True)
    with connection.Consumer(queue, callbacks=[lambda body, _: got.append(body)]):
        subject = sources.core_subject(prefix, "", "now")
        message = {"body": "bad", "properties": {"delivery_info": {"routing_key": "now"}}}
        data, headers = envelope.encode(message)
        client.publish(subject, data, headers={**headers, envelope.EXPIRES: "soon"})
        client.flush()
        connection.Producer().publish("good", routing_key="now")
        while not got:
            connection.drain_events(timeout=30)

    assert got == ["good"]


def test_looking_for_a_message_leaves_no_thread(
    connect: Callable[..., kombu.Connection],
) -> None:
    """
    Whether there is one or not: after it was acknowledged, all threads of the queue end.
    """
    first, second = connect().channel(), connect().channel()
    queue = kombu.Queue("mail", durable=True)
    queue(first).declare()
    kombu.Producer(first).publish("x", routing_key="mail")
    message = first.basic_get("mail")

    assert message is not None
    assert second.basic_get("mail") is None
    message.ack()
    eventually(
        lambda: (
            not [each for each in threading.enumerate() if each.name.startswith("jetsync-queue-")]
        )
    )
