"""
Looking up hosts without blocking the loop thread.
"""

from __future__ import annotations

import asyncio
import socket
import threading

import pytest

from jetsync._io.resolve import in_thread, look_up
from jetsync.errors import ConnectError


def test_a_numeric_address_needs_no_thread(monkeypatch):
    """
    Numeric addresses are looked up at once.
    """
    monkeypatch.setattr(threading.Thread, "start", lambda self: pytest.fail("a thread"))

    (found, *_) = asyncio.run(look_up("127.0.0.1", 4222, type=socket.SOCK_STREAM))

    assert found[4] == ("127.0.0.1", 4222)


def test_a_name_is_looked_up_in_a_daemon_thread(monkeypatch):
    """
    A name is looked up in a daemon thread, so a lookup that hangs does not keep the process alive.
    """
    seen = []

    def getaddrinfo(host, port, *, flags=0, **options):
        if flags & socket.AI_NUMERICHOST:
            raise socket.gaierror
        seen.append((threading.current_thread() is threading.main_thread(), host, port, options))
        assert threading.current_thread().daemon
        return ["found"]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)

    assert asyncio.run(look_up("a.example", 4222, type=socket.SOCK_STREAM)) == ["found"]
    assert seen == [(False, "a.example", 4222, {"type": socket.SOCK_STREAM})]


def test_errors_are_raised_where_the_call_is_awaited():
    """
    An Exception of the call is raised unchanged. Others become a ConnectError.
    """

    def fail(error):
        raise error

    async def call(error):
        return await in_thread(fail, error)

    with pytest.raises(socket.gaierror):
        asyncio.run(call(socket.gaierror("no such host")))
    with pytest.raises(ConnectError, match="SystemExit"):
        asyncio.run(call(SystemExit(3)))


def test_a_call_that_is_no_longer_awaited():
    """
    A result that arrives after the wait or the loop has ended is dropped.
    """
    gate, done = threading.Event(), threading.Event()

    def slow():
        gate.wait(10)
        done.set()

    async def give_up():
        with pytest.raises(asyncio.TimeoutError):  # Not a TimeoutError before Python 3.11.
            await asyncio.wait_for(asyncio.shield(in_thread(slow)), 0.01)

    asyncio.run(give_up())
    gate.set()
    assert done.wait(10)
