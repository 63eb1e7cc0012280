"""
Exchanges and bindings survive restarts, and all connections see them.
"""

from __future__ import annotations

import kombu
import pytest

from jetsync_celery.topology import matches


@pytest.mark.parametrize(
    ("pattern", "key", "expected"),
    [
        ("a.b", "a.b", True),
        ("a.*", "a.b", True),
        ("a.*", "a", False),
        ("a.*", "a.b.c", False),
        ("a.#", "a", True),
        ("a.#", "a.b.c", True),
        ("#.c", "c", True),
        ("#.c", "a.b.c", True),
        ("a.#.c", "a.c", True),
        ("#", "", True),
    ],
)
def test_topic_bindings_match_as_in_amqp(pattern, key, expected):
    """
    ``*`` is one word, and ``#`` is any number of words, also none.
    """
    assert matches("topic", pattern, key) is expected


@pytest.mark.live
def test_bindings_survive_their_connection_and_are_seen_by_others(url):
    """
    A program that declares nothing reaches a queue that another one has bound and then left.
    """
    exchange = kombu.Exchange("orders", type="topic")
    queue = kombu.Queue("eu", exchange, routing_key="orders.eu.#")
    with kombu.Connection(url) as first:
        queue(first.channel()).declare()
    with kombu.Connection(url) as second:
        producer = kombu.Producer(second.channel(), exchange)
        producer.publish("chair", routing_key="orders.eu.1")
        producer.publish("table", routing_key="orders.us.1")
        got = queue(second.channel())
        message = got.get()
        message.ack()

        assert message.payload == "chair"
        assert got.get() is None
