"""
Fixtures in addition to those of jetsync: `nats_server`, `js` and `stream`.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest

import jetsync
from jetsync.testing import CutProxy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from jetsync.devserver import DevServer


@pytest.fixture
def behind_proxy(
    nats_server: DevServer,
) -> Iterator[Callable[..., tuple[CutProxy, jetsync.JetStream]]]:
    """
    A function that connects through a proxy with plugins; returns the proxy and JetStream.
    """
    with contextlib.ExitStack() as stack:

        def connect(*plugins: object) -> tuple[CutProxy, jetsync.JetStream]:
            proxy = stack.enter_context(CutProxy(nats_server.url))
            client = jetsync.connect(proxy.url, plugins=plugins, reconnect_wait=0.02)
            return proxy, stack.enter_context(client).jetstream()

        yield connect
