"""
Fixtures in addition to those of jetsync: `nats_server` and `js`.
"""

from __future__ import annotations

import contextlib
import threading
import uuid
from typing import TYPE_CHECKING

import pytest

import jetsync
from jetsync.testing import CutProxy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from jetsync.devserver import DevServer


@pytest.fixture
def bucket(js: jetsync.JetStream) -> Iterator[jetsync.KeyValue]:
    """
    A bucket that can hold leases.
    """
    name = f"locks-{uuid.uuid4().hex[:12]}"
    yield js.create_key_value(name, limit_marker_ttl=60, storage="memory")
    with contextlib.suppress(jetsync.StreamNotFoundError):
        js.delete_key_value(name)


@pytest.fixture
def another(nats_server: DevServer, bucket: jetsync.KeyValue) -> Iterator[jetsync.KeyValue]:
    """
    The bucket on another connection.
    """
    with jetsync.connect(nats_server.url) as client:
        yield client.jetstream().key_value(bucket.bucket)


@pytest.fixture
def behind_proxy(
    nats_server: DevServer, bucket: jetsync.KeyValue
) -> Iterator[Callable[[], tuple[CutProxy, jetsync.KeyValue]]]:
    """
    A function that opens the bucket through a proxy of its own.
    """
    with contextlib.ExitStack() as stack:

        def connect() -> tuple[CutProxy, jetsync.KeyValue]:
            proxy = stack.enter_context(CutProxy(nats_server.url))
            client = stack.enter_context(jetsync.connect(proxy.url, reconnect_wait=0.02))
            return proxy, client.jetstream().key_value(bucket.bucket)

        yield connect


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    """
    Each test releases what it acquires, and then no thread of a ticket is left.
    """
    yield
    for thread in threading.enumerate():
        if thread.name.startswith("jetsync-locks "):
            thread.join(10)
            assert not thread.is_alive(), thread.name
