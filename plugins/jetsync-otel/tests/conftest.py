"""
Fixtures in addition to those of jetsync: `nats_server`, `js` and `stream`.
"""

from __future__ import annotations

import contextlib

import pytest
from telemetry import Telemetry

import jetsync


@pytest.fixture
def telemetry():
    """
    Providers that record their spans and measurements.
    """
    made = Telemetry()
    yield made
    made.tracer_provider.shutdown()
    made.meter_provider.shutdown()


@pytest.fixture
def traced(nats_server, telemetry):
    """
    A function that connects with a plugin and returns JetStream; its settings are arguments.
    """
    with contextlib.ExitStack() as stack:

        def connect(*plugins, **settings):
            plugins = plugins or (telemetry.plugin(**settings),)
            client = jetsync.connect(nats_server.url, plugins=plugins)
            return stack.enter_context(client).jetstream()

        yield connect


@pytest.fixture
def subject(stream):
    """
    A subject of the test's stream, which allows batches and direct reads.
    """
    stream.update(allow_atomic=True, allow_batched=True, allow_direct=True)
    return f"{stream.name}.a"
