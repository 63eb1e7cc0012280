"""
Fixtures in addition to those of jetsync: `nats_server`, `js` and `stream`.
"""

from __future__ import annotations

import threading
import time
import uuid
from typing import TYPE_CHECKING

import pytest

from jetsync_groups import create_elastic_group

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import jetsync
    from jetsync_groups import ElasticGroup


class Handler:
    """
    A handler that notes the messages, and may hold or refuse them.
    """

    def __init__(self) -> None:
        self.messages: list[jetsync.Message] = []
        self.entered = threading.Event()
        self.go_on = threading.Event()
        self.go_on.set()
        self.error: Exception | None = None
        self.changed = threading.Condition()

    def __call__(self, message: jetsync.Message) -> None:
        self.entered.set()
        assert self.go_on.wait(30)
        error = self.error
        with self.changed:
            self.messages.append(message)
            self.changed.notify_all()
        if error is not None:
            raise error

    def hold(self) -> None:
        """
        Make the next call wait for `go_on`.
        """
        self.entered.clear()
        self.go_on.clear()

    def wait_count(self, count: int) -> list[str]:
        """
        Wait for so many messages, and return the payloads of all.
        """
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.messages) >= count, 30), self.messages
            return [message.data.decode() for message in self.messages]


def until(condition: Callable[[], object], seconds: float = 30) -> None:
    """
    Wait until something on the server is true.
    """
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.fixture
def handler() -> Handler:
    """
    A handler that notes its messages.
    """
    return Handler()


@pytest.fixture
def another() -> Handler:
    """
    Another handler.
    """
    return Handler()


@pytest.fixture
def orders(js: jetsync.JetStream) -> Iterator[jetsync.Stream]:
    """
    A stream with the subjects ``<name>.*``, and nothing of its groups after the test.
    """
    name = f"O{uuid.uuid4().hex[:10]}"
    made = js.create_stream(name, subjects=[f"{name}.*"], storage="memory")
    yield made
    for each in list(js.stream_names()):
        if each.startswith(name):
            js.delete_stream(each)


@pytest.fixture
def group(orders: jetsync.Stream) -> ElasticGroup:
    """
    An elastic group of four partitions, by the second token.
    """
    return create_elastic_group(
        orders, "g", max_members=4, partition_by=[(f"{orders.name}.*", [1])]
    )
