"""
Fixtures for the test suites of programs that use jetsync. pytest finds them by itself.

``nats_server`` is one server per session (and per xdist worker), ``js`` is JetStream on it, and
``stream`` a stream of the test's own. Whatever a suite defines under these names itself takes
precedence. The ini option ``jetsync_server_version`` chooses the server's version. Nothing is
imported or started before a fixture is used.
"""

from __future__ import annotations

import contextlib
import uuid
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    import jetsync
    from jetsync.devserver import DevServer

__all__ = ["js", "nats_server", "stream"]

_INI = "jetsync_server_version"


def pytest_addoption(parser: pytest.Parser) -> None:
    """
    Add the ini option that chooses the server's version.
    """
    parser.addini(
        _INI, "nats-server version of the fixture nats_server (default: the installed one)"
    )


@pytest.fixture(scope="session")
def nats_server(request: pytest.FixtureRequest) -> Iterator[DevServer]:
    """
    Run a nats-server with JetStream; its ``url`` is what `jetsync.connect` takes.
    """
    from jetsync.devserver import DevServer

    version = request.config.getini(_INI) or None
    with DevServer(version) as server:
        yield server


@pytest.fixture
def js(nats_server: DevServer) -> Iterator[jetsync.JetStream]:
    """
    Give JetStream over a connection of the test's own, closed afterwards.
    """
    import jetsync

    with jetsync.connect(nats_server.url) as client:
        yield client.jetstream()


@pytest.fixture
def stream(js: jetsync.JetStream) -> Iterator[jetsync.Stream]:
    """
    Make a stream in memory with a unique name over the subjects ``<its name>.>``; remove it
    afterwards.
    """
    import jetsync

    name = f"test-{uuid.uuid4().hex[:12]}"
    made = js.create_stream(
        jetsync.StreamConfig(name=name, subjects=[f"{name}.>"], storage="memory")
    )
    yield made
    # The test may have removed it itself.
    with contextlib.suppress(jetsync.StreamNotFoundError):
        js.delete_stream(name)
