"""
Requests whose answers are awaited later.
"""

from __future__ import annotations

import time

import pytest

import jetsync
from helpers.connections import connection_of
from helpers.waiting import eventually
from jetsync._base.deadline import Deadline
from jetsync._io.requests import Request
from jetsync._proto import frames


@pytest.fixture
def connection(client):
    """
    The connection of a client of the shared server.
    """
    return connection_of(client)


def send(connection, subject, payload=b""):
    """
    Send a request, and return it.
    """
    request = Request(connection.session, subject)
    request.send(frames.pub(subject, request.address, payload), Deadline.after(20.0))
    return request


class TestRequest:
    def test_several_in_flight(self, client, connection, stream):
        """Requests in flight get their own answers, in any order, without another subscription."""
        before = client.statistics().subscriptions
        subject = f"{stream.name}.x".encode()
        requests = [send(connection, subject, b"%d" % number) for number in range(20)]
        assert client.statistics().subscriptions == before
        for request in reversed(requests):
            assert connection.lane.wait(request, Deadline.after(20.0))
            assert b'"seq":' in request.answer()[3]
            request.end()
        assert client.statistics().requests_in_flight == 0
        assert stream.info().state.messages == 20

    def test_nobody_listens(self, connection, unique):
        """A request to a subject without listeners fails as a single request does."""
        request = send(connection, unique.encode())
        connection.lane.wait(request, Deadline.after(20.0))
        with pytest.raises(jetsync.NoRespondersError, match=unique):
            request.answer()

    def test_a_lost_connection(self, proxied, unique):
        """If the connection is lost before the answer, the request fails, and it may be done."""
        js, proxy = proxied()
        connection = connection_of(js)
        proxy.pause("to_client")
        request = send(connection, unique.encode())
        proxy.cut()
        assert connection.lane.wait(request, Deadline.after(20.0))
        with pytest.raises(jetsync.ConnectionLostError) as caught:
            request.answer()
        assert caught.value.sent
        request.end()
        assert connection.statistics().requests_in_flight == 0

    def test_a_connection_that_is_lost_at_once(self, proxied, unique, monkeypatch):
        """A request fails if its connection is lost before the request knows which one it is."""
        js, proxy = proxied()
        connection = connection_of(js)
        lane, write = connection.lane, connection.lane.write
        proxy.pause("to_client")

        def write_and_lose(*arguments, **options):
            epoch = write(*arguments, **options)
            proxy.cut()
            eventually(lambda: lane.lost_epoch >= epoch)
            return epoch

        monkeypatch.setattr(lane, "write", write_and_lose)
        request = send(connection, unique.encode())
        assert request.ready
        with pytest.raises(jetsync.ConnectionLostError):
            request.answer()
        request.end()

    def test_a_caller_that_gives_up(self, client, connection, unique):
        """A request that ends before its answer is forgotten, and it may still be refused."""
        with client.subscribe(unique):
            client.flush()
            request = send(connection, unique.encode())
            assert not connection.lane.wait(request, Deadline(time.monotonic(), 0.0))
            assert client.statistics().requests_in_flight == 1
            assert unique not in connection.refusals.untracked
            request.end()
            assert client.statistics().requests_in_flight == 0
            assert unique in connection.refusals.untracked
