"""
The consumer of a member on the server: which instance of the member may delete it.
"""

from __future__ import annotations

import pytest

from jetsync_groups import partition
from jetsync_groups.consumer import configuration, delete_if_own, pinned

pytestmark = pytest.mark.live

KEY = next(f"k{n}" for n in range(1000) if partition(f"k{n}", 4) == 0)


@pytest.fixture
def buffer(js, group):
    """
    The stream of the group.
    """
    return js.stream(group.buffer_name)


@pytest.fixture
def consumer(buffer):
    """
    The consumer of member `a`.
    """
    config = configuration("a", ["0.>"], durable=False, ack_wait=30, max_ack_pending=1)
    return buffer.create_consumer(config)


@pytest.fixture
def pin(js, orders, consumer):
    """
    The pin of an instance that has handled a message.
    """
    js.publish(f"{orders.name}.{KEY}", b"")
    message = consumer.next(group="PCG", expires=30)
    message.ack_sync()
    return message.headers["Nats-Pin-Id"]


def test_an_instance_deletes_its_own_consumer(buffer, consumer, pin):
    """
    The instance that gets the messages may delete the consumer.
    """
    info = consumer.info()
    assert pinned(info) == pin
    assert delete_if_own(buffer, consumer, info, pin, 0, timeout=30)
    assert list(buffer.consumer_names()) == []


@pytest.mark.parametrize("other", [None, "another"])
def test_an_instance_leaves_the_consumer_of_another_one(buffer, consumer, pin, other):
    """
    An instance that gets no messages, or did so before, may not.
    """
    assert not delete_if_own(buffer, consumer, consumer.info(), other, 0, timeout=30)
    assert pinned(consumer.info()) == pin


def test_a_consumer_without_an_instance_is_deleted(buffer, consumer):
    """
    If no instance gets messages, any of them may delete the consumer.
    """
    assert delete_if_own(buffer, consumer, consumer.info(), None, 0, timeout=30)
    assert list(buffer.consumer_names()) == []


def test_an_instance_that_was_faster_keeps_the_consumer(js, orders, buffer, consumer):
    """
    If another instance gets a message after the look at the consumer, it keeps the consumer, which
    goes on at once.
    """
    before = consumer.info()
    js.publish(f"{orders.name}.{KEY}", b"")
    assert consumer.next(group="PCG", expires=30) is not None

    assert not delete_if_own(buffer, consumer, before, None, 0, timeout=30)

    info = consumer.info()
    assert info.num_ack_pending == 1
    assert not info.paused
