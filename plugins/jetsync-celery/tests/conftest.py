"""
Fixtures of the plugin's tests; `nats_server` is that of `jetsync.testing`.
"""

from __future__ import annotations

import contextlib
import itertools
from typing import TYPE_CHECKING

import kombu
import pytest
from waiting import free_port

import jetsync_celery

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from jetsync.devserver import DevServer

_numbers = itertools.count()


@pytest.fixture
def url(nats_server: DevServer) -> str:
    """
    The URL of a broker whose path, and so its queues, no other test has.
    """
    base = nats_server.url.replace("nats://", "jetstream://")
    return f"{base}/test{next(_numbers)}"


@pytest.fixture
def connect(url: str) -> Iterator[Callable[..., kombu.Connection]]:
    """
    A function that returns a connection of kombu with the given transport options.
    """
    with contextlib.ExitStack() as stack:

        def connect(**options: object) -> kombu.Connection:
            connection = kombu.Connection(url, transport_options=options)
            return stack.enter_context(connection)

        yield connect


@pytest.fixture
def connection(connect: Callable[..., kombu.Connection]) -> kombu.Connection:
    """
    A connection of kombu.
    """
    return connect()


@pytest.fixture
def invalid_connection() -> kombu.Connection:
    """
    A connection to a port where nothing listens.
    """
    return kombu.Connection(f"{jetsync_celery.SCHEMES[0]}://127.0.0.1:{free_port()}")


@pytest.fixture
def failover_connection(url: str) -> Iterator[kombu.Connection]:
    """
    A connection whose first server does not exist.
    """
    path = url.rpartition("/")[2]
    dead = f"jetstream://127.0.0.1:{free_port()}/{path}"
    with kombu.Connection(f"{dead};{url}") as connection:
        yield connection
