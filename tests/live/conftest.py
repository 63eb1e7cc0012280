"""
Fixtures of the live tests: real servers, shared as far as tests can stand it.

One server per session (and per xdist worker) serves nearly every test; each test has a stream of
its own name and subjects on it. A test that stops, kills or configures a server makes its own
`DevServer`.
"""

from __future__ import annotations

import itertools
import os
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from jetsync.devserver import DevServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import jetsync

_HERE = Path(__file__).parent
_numbers = itertools.count(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """
    Mark everything in this folder as live.
    """
    for item in items:
        if _HERE in item.path.parents:
            item.add_marker(pytest.mark.live)


@pytest.fixture
def unique() -> str:
    """
    A name that nothing else on the server has, fit for streams, consumers and subject tokens.
    """
    return f"T{os.getpid()}-{next(_numbers)}"


@pytest.fixture(scope="session")
def nats_server() -> Iterator[DevServer]:
    """
    The newest installed server, shared by the whole session. Never stop, pause or kill this one.
    """
    with DevServer() as server:
        yield server


@pytest.fixture(scope="session")
def server_for() -> Iterator[Callable[[str], DevServer]]:
    """
    A factory of shared servers by version: ``server_for("2.10.26")``, started once per session.
    """
    servers: dict[str, DevServer] = {}
    with ExitStack() as stack:

        def server_for(version: str) -> DevServer:
            if version not in servers:
                servers[version] = stack.enter_context(DevServer(version))
            return servers[version]

        yield server_for


@pytest.fixture
def client(nats_server: DevServer) -> Iterator[jetsync.Client]:
    """
    A client of the shared server, closed after the test.
    """
    import jetsync

    with jetsync.connect(nats_server.url) as client:
        yield client


@pytest.fixture
def js(client: jetsync.Client) -> jetsync.JetStream:
    """
    JetStream of the shared server.
    """
    return client.jetstream()


@pytest.fixture
def stream(js: jetsync.JetStream, unique: str) -> Iterator[jetsync.Stream]:
    """
    A fresh stream in memory, named uniquely, over ``<its name>.>``; removed afterwards.
    """
    import jetsync

    made = js.create_stream(
        jetsync.StreamConfig(name=unique, subjects=[f"{unique}.>"], storage="memory")
    )
    yield made
    # The test may have removed it itself.
    with suppress(jetsync.StreamNotFoundError):
        js.delete_stream(unique)
