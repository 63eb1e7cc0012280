"""
Fixtures of the tests of clauses: real servers of several versions, and what passes over the wire.
"""

from __future__ import annotations

import itertools
import os
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import jetsync
from helpers.wire import Wire
from jetsync.devserver import DevServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_HERE = Path(__file__).parent
_numbers = itertools.count(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """
    Mark the tests that use a server as live, and those of older servers as such.
    """
    for item in items:
        if _HERE in item.path.parents and "server_for" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.live)
            parameters = item.callspec.params if hasattr(item, "callspec") else {}
            if any(parameters.get(name) is not None for name in ("version", "rig")):
                item.add_marker(pytest.mark.versions)


@pytest.fixture
def unique() -> str:
    """
    A unique name for streams, consumers and subject tokens.
    """
    return f"C{os.getpid()}-{next(_numbers)}"


@pytest.fixture(scope="session")
def server_for() -> Iterator[Callable[[str | None], DevServer]]:
    """
    A factory of shared servers by version, started once per session; None is the newest.
    """
    servers: dict[str | None, DevServer] = {}
    with ExitStack() as stack:

        def server_for(version: str | None) -> DevServer:
            if version not in servers:
                servers[version] = stack.enter_context(DevServer(version))
            return servers[version]

        yield server_for


class Rig:
    """
    A client whose traffic is recorded, on a shared server.
    """

    def __init__(self, name: str, version: str | None, wire: Wire, client: jetsync.Client) -> None:
        self.name = name
        self.version = version
        self.wire = wire
        self.client = client
        self.js = client.jetstream()

    def __call__(self, token: str) -> str:
        """
        Return a subject of the test's streams.
        """
        return f"{self.name}.{token}"

    def stream(self, **fields: object) -> jetsync.Stream:
        """
        Create a stream in memory with all subjects of the test.
        """
        config = {"subjects": [f"{self.name}.>"], "storage": "memory", **fields}
        return self.js.create_stream(self.name, **config)


@pytest.fixture
def rig_on(
    server_for: Callable[[str | None], DevServer], unique: str
) -> Iterator[Callable[..., Rig]]:
    """
    A factory of rigs by the server's version. The streams with the test's name are deleted.
    """
    made: list[Rig] = []
    with ExitStack() as stack:

        def rig_on(version: str | None = None, **options: object) -> Rig:
            wire = stack.enter_context(Wire(server_for(version).url))
            client = jetsync.connect(wire.url, **{"reconnect_wait": 0.05, **options})
            made.append(Rig(unique, version, wire, stack.enter_context(client)))
            return made[-1]

        yield rig_on
        for version in {rig.version for rig in made}:
            with jetsync.connect(server_for(version).url) as client:
                js = client.jetstream()
                for name in list(js.stream_names()):
                    if name.removeprefix("KV_").startswith(unique):
                        js.delete_stream(name)


@pytest.fixture
def rig(rig_on: Callable[..., Rig], request: pytest.FixtureRequest) -> Rig:
    """
    A client whose traffic is recorded, on the newest server, or on that of the parameter.
    """
    return rig_on(getattr(request, "param", None))
