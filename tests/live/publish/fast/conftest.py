"""
Fixtures of the tests of fast ingest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import jetsync
from jetsync.testing import CutProxy

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jetsync.devserver import DevServer


@pytest.fixture
def stream_fields() -> dict[str, bool]:
    """
    Let the stream accept fast ingest.
    """
    return {"allow_batched": True}


@pytest.fixture
def cut(victim: DevServer) -> Iterator[CutProxy]:
    """
    A proxy in front of a server that tests may stop, to cut connections.
    """
    with CutProxy(victim.url) as proxy:
        yield proxy


@pytest.fixture
def fragile(cut: CutProxy) -> Iterator[jetsync.JetStream]:
    """
    JetStream through the proxy, over a client that reconnects soon.
    """
    with jetsync.connect(cut.url, reconnect_wait=0.05) as client:
        yield client.jetstream()
