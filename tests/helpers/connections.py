"""
The connection behind the public handles, for tests that hold its locks or need its counters.
"""

from __future__ import annotations

import contextlib

import jetsync


def client_of(js):
    """
    Return a client with the connection of a JetStream handle.
    """
    return jetsync.Client(connection_of(js))


def connection_of(handle):
    """
    Return the connection of a client or a JetStream handle, which is internal.
    """
    return handle._connection if isinstance(handle, jetsync.Client) else handle._context.connection


def redirect(proxy, port):
    """
    Let a proxy connect to another port of this machine from now on.
    """
    proxy._forwarder._target = ("127.0.0.1", port)


def answers(client):
    """
    Return whether the server answers the client now, and not only before its connection was lost.
    """
    with contextlib.suppress(jetsync.TransportError):
        client.flush()
        return True
    return False
