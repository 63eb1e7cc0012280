"""
Lanes with the other ends of their sockets, for tests without a server.
"""

from __future__ import annotations

import asyncio
import importlib.util
import itertools
import os
import select
import socket
import threading
import time
import types

import pytest

from helpers.interrupts import shows_holder
from helpers.lacking import NO_EPOLL
from jetsync._base.deadline import Deadline
from jetsync._base.turn import waiting
from jetsync._io.lane import Lane
from jetsync._io.mailbox import Mailbox
from jetsync._io.websocket import WebSocket, load_aiohttp

LONG = 10.0
"""Seconds that are only reached if the code is broken."""


def soon(seconds=LONG):
    """A deadline."""
    return Deadline.after(seconds)


def until(condition, what="it"):
    """Return once another thread makes a condition true."""
    deadline = soon()
    while not condition():
        assert not deadline.expired(), f"{what} never came"
        time.sleep(0.0005)


def msg(sid, payload=b"", subject=b"s", reply=b""):
    """Return a frame as a server writes it."""
    words = [b"MSG", subject, sid, *([reply] if reply else []), b"%d" % len(payload)]
    return b" ".join(words) + b"\r\n" + payload + b"\r\n"


def is_waited_for(lane):
    """Whether a thread waits for room or for a connection."""
    return bool(lane.outbox._changed._signals)


class Background:
    """A call in its own thread."""

    def __init__(self, function, *arguments):
        self.result = self.error = None
        self._thread = threading.Thread(target=self._run, args=(function, *arguments), daemon=True)
        self._thread.start()

    def _run(self, function, *arguments):
        try:
            self.result = function(*arguments)
        except BaseException as error:  # noqa: BLE001 - handed to the test.
            self.error = error

    @property
    def running(self):
        return self._thread.is_alive()

    def get(self):
        self._thread.join(LONG)
        assert not self.running, "the thread never ended"
        if self.error is not None:
            raise self.error
        return self.result


class HookedSocket(socket.socket):
    """A copy of a socket that sends through a function of the test."""

    def __init__(self, sock, send):
        super().__init__(fileno=os.dup(sock.fileno()))
        self.setblocking(False)
        self.hook = send

    def send(self, data, flags=0):
        return self.hook(data)


class LaneOnLoop:
    """A lane on a loop in its own thread, with the other end of its socket."""

    def __init__(self, new_loop):
        self.loop = new_loop()
        # In a wait, as that of a client, so that no call of the loop can wait.
        run = (self.loop.run_forever,)
        self.thread = threading.Thread(target=waiting, args=run, daemon=True)
        self.thread.start()
        self.foreign = []
        self.auto_detach = True
        self.lane = Lane(self.loop, self._on_foreign)
        self.lane.subscriptions._sids = itertools.count(1_000_000)
        self.server = None
        self._stalled = []
        self._sockets = []

    def _on_foreign(self, data):
        """Close the transport later if the connection has ended, as nats-py does."""
        self.foreign.append((threading.get_ident(), data))
        if not data and self.auto_detach:
            self.loop.call_soon(self.lane.detach)

    def do(self, function, *arguments):
        """Call a function in the loop thread and return its result."""

        async def call():
            return function(*arguments)

        return asyncio.run_coroutine_threadsafe(call(), self.loop).result(LONG)

    def wait_for(self, coroutine):
        """Run a coroutine in the loop thread and return its result."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(LONG)

    def connect(self, *, opened=True, buffer=None):
        """Attach one end of a new pair of sockets; the test keeps the other as the server."""
        ours, self.server = socket.socketpair()
        self.server.settimeout(LONG)
        if buffer:
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer)
        self.attach(ours, opened=opened)
        self._sockets.append(self.server)
        return self.server

    def attach(self, ours, *, opened=True):
        ours.setblocking(False)
        self.do(self.lane.attach, ours)
        if opened:
            self.do(self.lane.open)

    def stall(self):
        """Keep the loop thread busy until the returned event is set."""
        stalled, release = threading.Event(), threading.Event()
        self._stalled.append(release)

        def block():
            stalled.set()
            release.wait(3 * LONG)

        self.loop.call_soon_threadsafe(block)
        assert stalled.wait(LONG)
        return release

    def settle(self):
        """Return once the loop has run all callbacks that were scheduled before."""
        self.do(lambda: None)
        self.do(lambda: None)

    def receive(self, size):
        """Return that many bytes that the server received."""
        data = b""
        while len(data) < size:
            piece = self.server.recv(min(size - len(data), 1 << 20))
            assert piece, f"the connection ended after {len(data)} bytes"
            data += piece
        return data

    def receive_all(self):
        """Return the bytes that the server receives until the connection ends."""
        data = bytearray()
        while True:
            try:
                piece = self.server.recv(1 << 20)
            except ConnectionResetError:
                piece = b""
            if not piece:
                return bytes(data)
            data += piece

    def nothing_more(self):
        """Return whether the server has received nothing now."""
        self.server.setblocking(False)
        try:
            self.server.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        else:
            return False
        finally:
            self.server.settimeout(LONG)

    def listen(self, box):
        """Register a mailbox without telling the server; return the id."""
        sid = self.lane.subscriptions.new_sid()
        if isinstance(box, Mailbox):
            box.interest = box.interest or b"s"
        self.lane.subscriptions.listen(sid, box)
        return sid

    @property
    def is_led(self):
        """Whether a waiting thread reads."""
        return shows_holder(self.lane.reader._read_lock)

    @property
    def is_watched(self):
        """Whether the loop reads."""
        return self.lane.reader._gate.watched

    def leader(self, box, deadline=None):
        """Start a thread that waits, and return it once it is the reading thread."""
        if not hasattr(select, "epoll"):
            pytest.skip(NO_EPOLL)
        waiting = Background(self.lane.wait, box, deadline or soon())
        until(lambda: self.is_led, "the leader")
        return waiting

    def close(self):
        for release in self._stalled:
            release.set()
        self.do(self.lane.detach)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(LONG)
        self.loop.close()
        for one in self._sockets:
            one.close()


LOOPS = ["asyncio"] + (["uvloop"] if importlib.util.find_spec("uvloop") else [])


class StubWeb:
    """aiohttp's side of a connection: records sent bytes, and receives the test's bytes."""

    def __init__(self):
        self.sent = bytearray()
        self.incoming = asyncio.Queue()
        self.may_send = asyncio.Event()
        self.may_send.set()
        self.failure = None
        self.closed = False

    async def send_bytes(self, block):
        await self.may_send.wait()
        if self.failure is not None:
            raise self.failure
        self.sent += block

    async def receive(self):
        return await self.incoming.get()

    def say(self, data, kind="BINARY"):
        kind = getattr(pytest.importorskip("aiohttp").WSMsgType, kind)
        self.incoming.put_nowait(types.SimpleNamespace(type=kind, data=data))

    async def close(self):
        self.closed = True


class Carried:
    """A lane on a WebSocket."""

    def __init__(self, rig):
        self.rig = rig
        self.lane = rig.lane
        self.web, self.socket, self.sock = rig.wait_for(self._open())

    async def _open(self):
        web, socket = StubWeb(), WebSocket(load_aiohttp())
        return web, socket, socket.carry(web)

    def begin(self):
        self.rig.do(self.lane.attach, self.sock)
        self.rig.do(self.lane.open)

    def close(self):
        self.rig.do(self.lane.detach)
        self.rig.wait_for(self.socket.close())
