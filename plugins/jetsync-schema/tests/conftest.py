"""
What the tests of the plugin share; `nats_server`, `js` and `stream` are those of `jetsync.testing`.
"""

from __future__ import annotations

import contextlib

import pytest

import jetsync


@pytest.fixture
def connect(nats_server):
    """
    A factory of JetStream contexts whose clients have the plugins given; closed afterwards.
    """
    with contextlib.ExitStack() as clients:

        def connect(*plugins):
            client = jetsync.connect(nats_server.url, plugins=plugins)
            return clients.enter_context(client).jetstream()

        yield connect


@pytest.fixture
def bucket(js, stream):
    """
    A key-value bucket of the test's own that keeps five revisions, and takes transactions.
    """
    name = stream.name.replace("test", "kv")
    yield js.create_key_value(name, history=5, storage="memory", atomic=True)
    with contextlib.suppress(jetsync.BucketNotFoundError):
        js.delete_key_value(name)
