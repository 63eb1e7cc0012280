"""
Fixtures of the plugin's tests; `nats_server`, `js` and `stream` are those of `jetsync.testing`.
"""

from __future__ import annotations

import contextlib

import pytest

import jetsync


@pytest.fixture
def connect(nats_server):
    """
    A factory of JetStream contexts with the given plugins; their clients are closed afterwards.
    """
    with contextlib.ExitStack() as clients:

        def connect(*plugins):
            client = jetsync.connect(nats_server.url, plugins=plugins)
            return clients.enter_context(client).jetstream()

        yield connect


@pytest.fixture
def bucket(js, stream):
    """
    A bucket for one test, with five revisions and transactions.
    """
    name = stream.name.replace("test", "kv")
    yield js.create_key_value(name, history=5, storage="memory", atomic=True)
    with contextlib.suppress(jetsync.BucketNotFoundError):
        js.delete_key_value(name)
