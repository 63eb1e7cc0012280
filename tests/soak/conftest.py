"""
Helpers of the long runs. Each test has a short form, which runs with the thorough tests.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

import jetsync

_HERE = Path(__file__).parent


def pytest_collection_modifyitems(items):
    """
    Mark everything in this folder as live and thorough.
    """
    for item in items:
        if _HERE in item.path.parents:
            item.add_marker(pytest.mark.live)
            item.add_marker(pytest.mark.thorough)


def patiently(call):
    """Repeat a request until it is answered, since a leader change may drop it."""
    end = time.monotonic() + 60
    while True:
        try:
            return call()
        except (jetsync.RequestTimeoutError, jetsync.TemporarilyUnavailableError):
            if time.monotonic() > end:
                raise


@pytest.fixture
def read_all():
    """
    A function that returns every message of a stream, by sequence: subject, data and message id.
    """

    def read_all(stream: jetsync.Stream) -> dict[int, tuple[str, bytes, str | None]]:
        consumer = patiently(
            lambda: stream.create_consumer(
                jetsync.ConsumerConfig(ack_policy="none", inactive_threshold=60, mem_storage=True)
            )
        )
        found = {}
        # The consumer may be on a replica that still catches up: only the stream's leader knows the
        # number of messages.
        left = patiently(stream.info).state.messages
        while left:
            before = left
            for message in consumer.fetch(min(left, 1000), expires=10):
                message_id = message.headers.get("Nats-Msg-Id") if message.headers else None
                found[message.sequence] = (message.subject, bytes(message.data), message_id)
                left -= 1
            assert left < before, f"{left} messages do not come"
        consumer.delete()
        return found

    return read_all
