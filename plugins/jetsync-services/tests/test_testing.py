"""
The fixtures for the tests of programs with services.
"""

from __future__ import annotations

import pytest

from jetsync_services import Service, call
from jetsync_services.testing import make_request


def price(request):
    """
    A handler.
    """
    return [request.json(), request.headers.get("X-User"), request.subject, request.endpoint]


def test_a_handler_is_called_without_a_server():
    """
    make_request returns a request for a handler.
    """
    request = make_request(b'"chair"', subject="prices.get", headers={"X-User": "ann"})

    assert price(request) == ["chair", "ann", "prices.get", "test"]
    assert price(make_request(b"1", endpoint="price")) == [1, None, "test", "price"]


@pytest.mark.live
def test_services_are_started_and_stopped(service_client, start_service, name):
    """
    start_service returns the service, which runs until the test is over.
    """
    service = Service(service_client, name, version="1.0.0")
    service.endpoint("price", subject=name)(lambda request: 3)

    assert start_service(service) is service
    assert call(service_client, name).json() == 3
