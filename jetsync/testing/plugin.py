"""
Fixtures for the test suites of programs that use jetsync. pytest loads them automatically.

``nats_server`` is one server per session (and per xdist worker). ``js`` is JetStream on it, and
``stream`` is a new stream for each test. Fixtures of the suite with the same names take precedence.
The ini option ``jetsync_server_version`` chooses the server's version. Nothing is started before a
fixture is used. ``pytest -v`` shows jetsync's version, and whether its compiled core runs.
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


def pytest_report_header(config: pytest.Config) -> str | None:
    """
    Name the version and the variant of jetsync with ``-v``.
    """
    if config.getoption("verbose") < 1:
        return None
    import jetsync
    from jetsync._base.speedups import VARIANT

    return f"jetsync: {jetsync.__version__}, {VARIANT}"


@pytest.fixture(scope="session")
def nats_server(request: pytest.FixtureRequest) -> Iterator[DevServer]:
    """
    Run a nats-server with JetStream: a `DevServer`. Pass its ``url`` to `jetsync.connect`.
    """
    from jetsync.devserver import DevServer

    version = request.config.getini(_INI) or None
    with DevServer(version) as server:
        yield server


@pytest.fixture
def js(nats_server: DevServer) -> Iterator[jetsync.JetStream]:
    """
    Return JetStream on a new connection, which is closed after the test.
    """
    import jetsync

    with jetsync.connect(nats_server.url) as client:
        yield client.jetstream()


@pytest.fixture
def stream(js: jetsync.JetStream) -> Iterator[jetsync.Stream]:
    """
    Create a memory stream with a unique name and the subjects ``<name>.>``. It is deleted after the
    test.
    """
    import jetsync

    name = f"test-{uuid.uuid4().hex[:12]}"
    made = js.create_stream(
        jetsync.StreamConfig(name=name, subjects=[f"{name}.>"], storage="memory")
    )
    yield made
    # The test may have deleted it.
    with contextlib.suppress(jetsync.StreamNotFoundError):
        js.delete_stream(name)
