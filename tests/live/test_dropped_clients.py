"""
Clients and core subscriptions that are dropped without being closed.
"""

from __future__ import annotations

import contextlib
import gc
import threading
import warnings
from pathlib import Path

import pytest

import jetsync
from helpers.waiting import eventually
from jetsync.testing import CutProxy


def test_a_dropped_client_is_closed_at_once(nats_server, unique):
    """A used client closes when its last handle is dropped, without the cycle collector."""

    def use():
        js = jetsync.connect(nats_server.url).jetstream()
        stream = js.create_stream(unique, subjects=[unique])
        js.publish(unique, b"1")
        for message in stream.create_consumer().fetch(1, expires=20):
            message.ack()
        stream.delete()

    def ours():
        return {one for one in threading.enumerate() if one.name.startswith("jetsync-")}

    gc.collect()
    before = ours()
    gc.disable()
    try:
        with pytest.warns(ResourceWarning, match="client was dropped without being closed"):
            use()
        assert eventually(lambda: ours() <= before)
    finally:
        gc.enable()


@pytest.mark.parametrize("while_", ["waiting", "connecting"])
@pytest.mark.parametrize("loop", ["asyncio", "auto"])
def test_a_client_that_is_dropped_while_it_reconnects_leaves_nothing(nats_server, loop, while_):
    """Its thread ends, and neither a connection nor a socket is left."""
    with CutProxy(nats_server.url) as proxy:
        wait = 60.0 if while_ == "waiting" else 0.0
        options = {"loop": loop, "reconnect_wait": wait, "max_reconnect_wait": 60.0}
        made = [jetsync.connect(proxy.url, **options)]
        thread = made[0]._connection.session._bridge._thread
        if while_ == "connecting":
            # The next connection is accepted, and its server sends nothing until it is dropped.
            proxy.pause("to_client")
        proxy.cut()
        eventually(lambda: not made[0].is_connected)
        if while_ == "connecting":
            assert proxy.wait_accepted(2)

        def drop():
            made.clear()
            gc.collect()
            proxy.resume()
            thread.join(10)
            # The sockets that nothing closes warn when they are collected.
            gc.collect()

        with pytest.warns(ResourceWarning) as warned:
            drop()
        assert [str(each.message).partition(" was")[0] for each in warned] == ["client"]
        assert proxy.wait_open(0)


def server_connections(server):
    """Return the server's monitoring of its connections."""
    return server.monitor("connz")["connections"]


def drop(handles):
    """Drop all handles of a list."""
    handles.clear()
    gc.collect()


class TestForgottenClient:
    """
    A client that is dropped without `close`.
    """

    @pytest.mark.parametrize("kept", ["client", "context", "subscription"])
    def test_a_forgotten_client_warns_and_leaves_nothing(self, nats_server, unique, kept):
        """
        Python warns and names the line that connected. No thread, no descriptor and no connection
        is left, whichever handle was dropped last.
        """
        # The first event loop of a process opens a pipe that stays.
        jetsync.connect(nats_server.url).close()
        gc.collect()
        threads, files = set(threading.enumerate()), set(Path("/proc/self/fd").iterdir())

        def connect():
            client = jetsync.connect(nats_server.url, name=unique)
            subscription = client.subscribe(unique)
            context = client.jetstream()
            context.account_info()
            client.publish(unique)
            subscription.next(timeout=20)
            if kept != "subscription":
                subscription.close()
            return {"client": client, "context": context, "subscription": subscription}[kept]

        handles = [connect() for _ in range(10)]
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            drop(handles)
        clients = [each for each in caught if str(each.message).startswith("client")]
        line = connect.__code__.co_firstlineno + 1
        assert [(each.filename, each.lineno) for each in clients] == [(__file__, line)] * 10
        eventually(lambda: set(threading.enumerate()) <= threads)
        eventually(lambda: set(Path("/proc/self/fd").iterdir()) <= files)
        # The server notices the end of a connection a little later.
        eventually(
            lambda: unique not in [each.get("name") for each in server_connections(nats_server)]
        )

    def test_a_failed_connect_is_no_handle(self):
        """
        A connect that failed leaves no client to close.
        """
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with contextlib.suppress(jetsync.ConnectError):
                jetsync.connect("nats://127.0.0.1:1")
            gc.collect()
        assert caught == []


class TestForgottenSubscription:
    """
    A subscription that is dropped without `close`.
    """

    def test_it_unsubscribes(self, client, unique):
        """
        Python warns, the server removes the subscription, and the client stays usable.
        """
        handles = [client.subscribe(unique)]
        client.flush()
        with pytest.warns(ResourceWarning, match=f"subscription to '{unique}'") as caught:
            drop(handles)
        assert [each.filename for each in caught] == [__file__]
        with pytest.raises(jetsync.NoRespondersError):
            client.request(unique, timeout=20)

    def test_no_warning(self, nats_server, client, unique):
        """There is no warning if the subscription or its client was closed."""
        with jetsync.connect(nats_server.url) as other:
            handles = [client.subscribe(unique), other.subscribe(unique)]
        handles[0].close()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            drop(handles)
        assert caught == []

    def test_its_client_ends(self, nats_server, unique):
        """
        A client without references closes in the background.
        """
        before = set(threading.enumerate())
        client = jetsync.connect(nats_server.url)
        subscriptions = [client.subscribe(unique), client.subscribe(unique, max_pending=1)]
        for _ in range(3):
            client.publish(unique)
        client.flush()
        handles = [client, *subscriptions]
        del client, subscriptions
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            drop(handles)
        eventually(lambda: set(threading.enumerate()) <= before)
