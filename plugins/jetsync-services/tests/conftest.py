"""
Fixtures in addition to those of jetsync and of jetsync_services: `caller` and `service`.
"""

from __future__ import annotations

import uuid

import pytest

import jetsync
from jetsync_services import Service

pytest_plugins = ["jetsync_services.testing"]


@pytest.fixture
def caller(nats_server):
    """
    A second client, so that callers and services have connections of their own.
    """
    with jetsync.connect(nats_server.url) as client:
        yield client


@pytest.fixture
def name():
    """
    A name that no other test uses.
    """
    return f"test-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def service(service_client, name):
    """
    A service that was not started. It stops after the test.
    """
    made = Service(
        service_client, name, version="1.2.0", description="Prices", metadata={"team": "shop"}
    )
    yield made
    made.stop()
