"""
Fixtures of the live tests: real servers, shared where possible.

One server per session (and per xdist worker) serves nearly every test. Each test has a stream with
a unique name and subjects. A test that stops, kills or configures a server makes its own
`DevServer`.
"""

from __future__ import annotations

import itertools
import os
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import jetsync
from helpers.streams import Batches
from jetsync.devserver import DevServer
from jetsync.testing import CutProxy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

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
    A unique name for streams, consumers and subject tokens.
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
    A new memory stream with a unique name and the subjects ``<name>.>``, deleted afterwards.
    """
    made = js.create_stream(
        jetsync.StreamConfig(name=unique, subjects=[f"{unique}.>"], storage="memory")
    )
    yield made
    # The test may have deleted it.
    with suppress(jetsync.StreamNotFoundError):
        js.delete_stream(unique)


@pytest.fixture
def make_bucket(js: jetsync.JetStream, unique: str) -> Iterator[Callable[..., jetsync.KeyValue]]:
    """
    A function that makes a bucket in memory, removed after the test.
    """

    def make(**fields: object) -> jetsync.KeyValue:
        return js.create_key_value(**{"bucket": unique, "storage": "memory", **fields})

    yield make
    with suppress(jetsync.BucketNotFoundError):
        js.delete_key_value(unique)


@pytest.fixture
def worker(stream: jetsync.Stream) -> jetsync.Consumer:
    """
    A durable pull consumer of the test's stream.
    """
    return stream.create_consumer("worker")


@pytest.fixture
def js_of(
    server_for: Callable[[str], DevServer], nats_server: DevServer
) -> Iterator[Callable[[str | None], jetsync.JetStream]]:
    """
    A factory of JetStream contexts by server version; None is the newest.
    """
    with ExitStack() as stack:

        def js_of(version: str | None) -> jetsync.JetStream:
            server = nats_server if version is None else server_for(version)
            return stack.enter_context(jetsync.connect(server.url)).jetstream()

        yield js_of


# Servers and connections that tests may break.


@pytest.fixture
def own(request: pytest.FixtureRequest) -> Iterator[tuple[DevServer, jetsync.JetStream]]:
    """
    A server for this test alone, of the version in the parameter, and its JetStream.
    """
    with (
        DevServer(getattr(request, "param", None)) as server,
        jetsync.connect(server.url) as client,
    ):
        yield server, client.jetstream(timeout=20)


@pytest.fixture
def proxy(nats_server: DevServer) -> Iterator[CutProxy]:
    """
    A proxy between a client and the server that can cut the connection.
    """
    with CutProxy(nats_server.url) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def victim() -> Iterator[DevServer]:
    """
    A server that tests may pause, stop and kill. Each test leaves it running.
    """
    with DevServer() as server:
        yield server


@pytest.fixture
def fragile(victim: DevServer) -> Iterator[jetsync.JetStream]:
    """
    JetStream on that server, with a client that reconnects quickly.
    """
    with jetsync.connect(victim.url, reconnect_wait=0.05) as client:
        yield client.jetstream()


@pytest.fixture
def proxied(
    nats_server: DevServer,
) -> Iterator[Callable[..., tuple[jetsync.JetStream, CutProxy]]]:
    """
    A factory of JetStream contexts with plugins, and of proxies that can cut their connections.
    """
    with ExitStack() as stack:

        def proxied(*plugins: object) -> tuple[jetsync.JetStream, CutProxy]:
            proxy = stack.enter_context(CutProxy(nats_server.url))
            client = jetsync.connect(proxy.url, plugins=plugins, reconnect_wait=0.05)
            return stack.enter_context(client).jetstream(), proxy

        yield proxied


# Atomic batches.


@pytest.fixture
def batches(js: jetsync.JetStream, unique: str) -> Iterator[Batches]:
    """
    A stream for batches on the newest server.
    """
    made = Batches(js, unique)
    yield made
    with suppress(jetsync.StreamNotFoundError):
        js.delete_stream(unique)


@pytest.fixture(params=["2.12.8", "2.14.6", None])
def everywhere(
    request: pytest.FixtureRequest,
    js_of: Callable[[str | None], jetsync.JetStream],
    unique: str,
) -> Iterator[Batches]:
    """
    A stream for batches on each version whose batches differ.
    """
    made = Batches(js_of(request.param), unique)
    yield made
    made.js.delete_stream(unique)
