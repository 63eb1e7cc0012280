"""
Fixtures for the tests of programs with services, for pytest.

Add ``pytest_plugins = ["jetsync_services.testing"]`` to the ``conftest.py`` of the tests. Besides
these fixtures, :func:`make_request` makes a request for a handler without a server.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest

import jetsync
from jetsync_services.request import Request

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from jetsync.devserver import DevServer
    from jetsync.typing import HeadersInput
    from jetsync_services.service import Service

__all__ = ["make_request", "service_client", "start_service"]


def make_request(
    data: bytes = b"",
    *,
    subject: str = "test",
    headers: HeadersInput | None = None,
    endpoint: str = "test",
) -> Request:
    """
    Return a request, to call a handler in a test.

    Args:
        data: The payload.
        subject: The subject.
        headers: The headers.
        endpoint: The name of the endpoint.
    """
    message = jetsync.Message(subject.encode(), b"", None, data)
    if headers is not None:
        message = message.replace(headers=headers)
    return Request(message, endpoint)


@pytest.fixture
def service_client(nats_server: DevServer) -> Iterator[jetsync.Client]:
    """
    Return a client of the server of ``nats_server``, for services and their callers.
    """
    with jetsync.connect(nats_server.url) as client:
        yield client


@pytest.fixture
def start_service() -> Iterator[Callable[[Service], Service]]:
    """
    Return a function that starts a service and returns it. The services stop after the test, which
    fails if an endpoint has ended before.
    """
    with contextlib.ExitStack() as stack:
        yield stack.enter_context
