from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import importlib.util
import itertools
import os
import select
import shutil
import signal
import socket
import ssl
import subprocess
import threading
import time
import types
import weakref

import pytest

from helpers.interrupts import interrupted_at, is_locked, shows_holder
from helpers.lacking import NO_EPOLL, needs_epoll
from helpers.waiting import eventually
from jetsync._api.repeats import repeated
from jetsync._base.deadline import Deadline
from jetsync._base.turn import waiting
from jetsync._io import gate as _gate
from jetsync._io import reader as _reader
from jetsync._io.lane import OVERSIZED, Lane
from jetsync._io.mailbox import Listener, Mailbox
from jetsync._io.outbox import (
    ACK_LIMIT,
    DELEGATED_SENDS,
    JOIN_LIMIT,
    OUT_LIMIT,
    PING,
    POST_LIMIT,
    LaneState,
)
from jetsync._io.replies import ReplyRouter, Waiter
from jetsync._io.subscriptions import SID_RANGE
from jetsync._io.websocket import WebSocket, load_aiohttp
from jetsync.errors import (
    CallInSignalHandlerError,
    ConnectionClosedError,
    ConnectionLostError,
    DisconnectedError,
)

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


class Rig:
    """A lane on a loop in its own thread, with the other end of its socket."""

    def __init__(self, new_loop):
        self.loop = new_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
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


@pytest.fixture(params=LOOPS)
def idle(request):
    """A lane that was never connected."""
    if request.param == "uvloop":
        import uvloop

        rig = Rig(uvloop.new_event_loop)
    else:
        rig = Rig(asyncio.SelectorEventLoop)
    yield rig
    rig.close()


@pytest.fixture
def rig(idle):
    """A lane that is open."""
    idle.connect()
    return idle


class TestWrite:
    def test_a_block_is_sent_when_the_write_returns(self, rig):
        """A block has been sent when the call returns, from any thread, without the loop."""
        rig.stall()
        assert rig.lane.write(b"PUB a  1\r\nx\r\n", soon()) == 1
        assert rig.receive(13) == b"PUB a  1\r\nx\r\n"
        assert rig.lane.outbox.bytes_out == 13

    def test_full_socket(self, idle):
        """If the socket does not take all bytes at once, the rest follows in order."""
        idle.connect(buffer=8192)
        blocks = [b"%d" % number * 300_000 for number in range(5)]
        for block in blocks:
            idle.lane.write(block, soon())
        assert idle.lane.outbox.size > 0
        # The loop is told once.
        assert idle.lane.outbox._writing
        assert idle.receive(5 * 300_000) == b"".join(blocks)
        until(lambda: not idle.lane.outbox._out, "the end of the rest")
        assert (idle.lane.outbox.size, idle.lane.outbox.bytes_out) == (0, 1_500_000)

    def test_a_full_socket_keeps_no_context_variables(self, idle):
        """While the rest of a block waits for room, the context of its writer is free."""

        class Value:
            pass

        idle.connect(buffer=8192)
        value, context = Value(), contextvars.Context()
        reference = weakref.ref(value)
        context.run(contextvars.ContextVar("value").set, value)
        context.run(idle.lane.write, bytes(1_500_000), soon())
        del value, context
        assert idle.lane.outbox._writing
        until(lambda: reference() is None, "the end of the context")
        assert idle.lane.outbox.size > 0

    def test_only_small_blocks_are_joined(self, idle):
        """Small blocks that wait are sent with few system calls, and large ones are not copied."""
        ours, server = socket.socketpair()
        sent, is_full = [], True

        def send(data):
            if is_full:
                raise BlockingIOError
            sent.append(bytes(data))
            return len(data)

        with HookedSocket(ours, send) as hooked, ours, server:
            idle.attach(hooked)
            release = idle.stall()
            blocks = [b"%04d" % number * 250 for number in range(200)]
            blocks[50] = memoryview(os.urandom(3 * JOIN_LIMIT))
            for block in blocks:
                idle.lane.write(block, soon())
            is_full = False
            release.set()
            until(lambda: not idle.lane.outbox.size, "the end of the rest")
            idle.do(idle.lane.detach)
        assert b"".join(sent) == b"".join(blocks)
        assert blocks[50] in sent
        assert len(sent) < 10
        assert max(len(each) for each in sent if each != blocks[50]) <= JOIN_LIMIT

    def test_a_part_of_the_waiting_blocks_is_sent(self, idle):
        """If the socket accepts a part of the waiting blocks, the rest still counts."""
        ours, server = socket.socketpair()
        sent, room = [], 0

        def send(data):
            nonlocal room
            if not room:
                raise BlockingIOError
            part = bytes(data[:room])
            room -= len(part)
            sent.append(part)
            return len(part)

        with HookedSocket(ours, send) as hooked, ours, server:
            idle.attach(hooked)
            release = idle.stall()
            blocks = [os.urandom(100_000) for _ in range(3)]
            for block in blocks:
                idle.lane.write(block, soon())
            room = 150_000
            release.set()
            until(lambda: idle.lane.outbox.size == 150_000, "half of the bytes")
            room = 150_000
            until(lambda: not idle.lane.outbox.size, "the end of the rest")
            idle.do(idle.lane.detach)
        assert b"".join(sent) == b"".join(blocks)

    def test_waiting_blocks_of_a_dead_connection(self, idle):
        """If the connection turns out to be dead, the waiting blocks are dropped at once."""
        ours, server = socket.socketpair()
        error = BlockingIOError

        def send(data):
            raise error

        idle.auto_detach = False
        with HookedSocket(ours, send) as hooked, ours, server:
            idle.attach(hooked)
            idle.lane.write(b"1" * 1000, soon())
            error = ConnectionResetError
            until(lambda: not idle.lane.outbox.size, "the end of the block")
            idle.do(idle.lane.detach)

    def test_a_writer_beyond_the_limit_waits_for_room(self, idle):
        """Beyond the limit a writer waits for room, and its block is then sent whole."""
        idle.connect(buffer=8192)
        first, second = b"1" * (OUT_LIMIT + (1 << 20)), b"2" * 100_000
        idle.lane.write(first, soon())
        waiting = Background(idle.lane.write, second, soon())
        until(lambda: is_waited_for(idle.lane), "the wait for room")
        assert waiting.running
        assert idle.lane.outbox.size <= len(first)
        assert idle.receive(len(first) + len(second)) == first + second
        assert waiting.get() == 1

    def test_no_room_until_the_deadline(self, idle):
        """A writer that gets no room until its deadline raises, and none of its bytes are sent."""
        idle.connect(buffer=8192)
        first = b"1" * (OUT_LIMIT + (1 << 20))
        idle.lane.write(first, soon())
        with pytest.raises(DisconnectedError, match=r"does not accept more data within 0\.02 s"):
            idle.lane.write(b"2222", soon(0.02))
        reading = Background(idle.receive, len(first) + 3)
        idle.lane.write(b"333", soon())
        assert reading.get() == first + b"333"

    def test_down_until_the_deadline(self, idle):
        """While disconnected, a write fails at its deadline, and nothing is sent."""
        started = time.monotonic()
        with pytest.raises(DisconnectedError) as caught:
            idle.lane.write(b"early", soon(0.03))
        assert 0.03 <= time.monotonic() - started < LONG
        assert caught.value.timeout == 0.03
        with pytest.raises(DisconnectedError):
            idle.lane.post(b"early", 0.01)
        idle.connect()
        idle.lane.write(b"late", soon())
        assert idle.receive(4) == b"late"

    def test_down_until_the_replay(self, idle):
        """Until the subscriptions are written again, only nats-py's bytes pass."""
        idle.connect(opened=False)
        waiting = Background(idle.lane.write, b"ours", soon())
        until(lambda: is_waited_for(idle.lane), "the wait for a connection")
        idle.do(idle.lane.outbox.control, b"CONNECT {}\r\nPING\r\n")
        assert idle.receive(18) == b"CONNECT {}\r\nPING\r\n"
        assert idle.nothing_more()
        idle.do(idle.lane.open)
        assert waiting.get() == 1
        assert idle.receive(4) == b"ours"

    def test_dead_socket(self, rig):
        """A write into a dead connection raises nothing; the loss is announced."""
        box = Mailbox()
        rig.listen(box)
        release = rig.stall()
        rig.server.close()
        assert rig.lane.write(b"x", soon()) == 1
        release.set()
        assert rig.lane.wait(box, soon())
        assert box.take_lost() == 1
        assert rig.lane.lost_epoch == 1

    def test_interrupted_send(self, rig, monkeypatch):
        """An interrupt after the kernel took part of a block ends the connection."""

        def send(block):
            raise KeyboardInterrupt

        with HookedSocket(rig.lane.outbox.sock, send) as hooked:
            monkeypatch.setattr(rig.lane.outbox, "sock", hooked)
            with pytest.raises(KeyboardInterrupt):
                rig.lane.write(b"abc", soon())
            monkeypatch.undo()
        assert rig.receive_all() == b""
        until(lambda: rig.lane.state is LaneState.DOWN, "the loss")

    def test_interrupted_between_send_and_queue(self, rig, monkeypatch):
        """An interrupt before the rest of a block is queued ends the connection too."""

        class Interrupted:
            def call_soon_threadsafe(self, *_, **_options):
                raise KeyboardInterrupt

            def __getattr__(self, name):
                return getattr(rig.loop, name)

        monkeypatch.setattr(rig.lane.outbox, "_loop", Interrupted())
        with pytest.raises(KeyboardInterrupt):
            rig.lane.write(b"1" * (4 << 20), soon())
        assert len(rig.receive_all()) < 4 << 20
        monkeypatch.undo()
        until(lambda: rig.lane.state is LaneState.DOWN, "the loss")


class TestWriteNowait:
    """A write that waits for nothing, not even for the lock."""

    def test_write_nowait_sends_at_once_while_the_client_closes(self, rig):
        """A block is sent at once, also while the client closes."""
        assert rig.lane.outbox.write_nowait(b"one", 1)
        rig.lane.begin_close(ConnectionClosedError())
        assert rig.lane.outbox.write_nowait(b"two", 1)
        assert rig.receive(6) == b"onetwo"

    def test_write_nowait_beyond_the_limit_sends_nothing(self, idle):
        """Beyond the limit, nothing is sent."""
        idle.connect(buffer=8192)
        first = b"1" * (OUT_LIMIT + (1 << 20))
        idle.lane.write(first, soon())
        assert not idle.lane.outbox.write_nowait(b"2", 1)
        assert idle.receive(len(first)) == first
        until(lambda: idle.lane.outbox.size == 0, "the end of the block")
        assert idle.lane.outbox.write_nowait(b"3", 1)
        assert idle.receive(1) == b"3"

    def test_a_thread_that_writes(self, rig):
        """While a thread holds the lock, nothing is sent, also if it is the calling thread."""
        with rig.lane.outbox.write_lock:
            assert not rig.lane.outbox.write_nowait(b"x", 1)
            assert not Background(rig.lane.outbox.write_nowait, b"x", 1).get()
        assert rig.nothing_more()

    @pytest.mark.parametrize("how", ["dropped", "lost", "replaced"])
    def test_a_block_for_a_lost_connection_is_never_sent(self, rig, how):
        """A block for a connection that is gone, or was dropped, is not sent on any connection."""
        if how == "dropped":
            # The loop does not know of it yet.
            rig.stall()
            rig.lane.outbox.drop_connection(1)
        else:
            rig.do(rig.lane.detach)
            if how == "replaced":
                rig.connect()
        with pytest.raises(ConnectionLostError, match="before the request was sent"):
            rig.lane.outbox.write_nowait(b"x", 1)
        if how == "dropped":
            assert rig.receive_all() == b""
        elif how == "replaced":
            assert rig.nothing_more()

    def test_write_nowait_on_a_closed_lane_raises_the_reason(self, rig):
        """A closed lane raises the reason."""
        rig.lane.close(ConnectionClosedError("enough"))
        with pytest.raises(ConnectionClosedError, match="enough"):
            rig.lane.outbox.write_nowait(b"x", 1)


class TestDelegated:
    """A thread sends the blocks that others delegate to it while it is in the system call."""

    def delegate(self, rig, monkeypatch, blocks, end=None, before=lambda: None):
        """
        Write ``0``. During each send, another thread calls *before* and delegates one of *blocks*.
        """
        sock, left = rig.lane.outbox.sock, iter(blocks)

        def leave(block):
            before()
            return rig.lane.write(block, soon(), may_delegate=True)

        def send(data):
            block = next(left, None)
            if block is not None:
                assert Background(leave, block).get() == 1
            if end is not None:
                raise end
            return sock.send(data)

        hooked = HookedSocket(sock, send)
        rig._sockets.append(hooked)
        monkeypatch.setattr(rig.lane.outbox, "sock", hooked)
        assert rig.lane.write(b"0", soon()) == 1

    def test_delegated_blocks_are_sent_in_order_without_the_loop(self, rig, monkeypatch):
        """The blocks are sent in order, without the loop."""
        rig.stall()
        self.delegate(rig, monkeypatch, [b"11", b"222"])
        assert rig.receive(6) == b"011222"

    def test_acks_are_sent_before_the_requests_of_their_thread(self, rig, monkeypatch):
        """The acks of a thread are sent before the requests that it leaves."""
        rig.stall()
        self.delegate(rig, monkeypatch, [b"1", b"2"], before=lambda: rig.lane.ack(b"r", LONG))
        ack = b"PUB r  4\r\n+ACK\r\n"
        expected = b"0" + ack + b"1" + ack + b"2"
        assert rig.receive(len(expected)) == expected

    def test_a_thread_that_sent_much_for_others_leaves_the_rest(self, rig, monkeypatch):
        """A thread that has sent for others many times leaves the rest to the loop."""
        blocks = [b"%3d" % number for number in range(3 * DELEGATED_SENDS)]
        self.delegate(rig, monkeypatch, blocks)
        assert rig.receive(1 + 9 * DELEGATED_SENDS) == b"0" + b"".join(blocks)

    def test_ctrl_c_while_sending_announces_the_loss(self, rig, monkeypatch):
        """If Ctrl-C interrupts the thread that sends, the loss of the connection is announced."""
        with pytest.raises(KeyboardInterrupt):
            self.delegate(rig, monkeypatch, [b"1"], end=KeyboardInterrupt)
        monkeypatch.undo()
        assert rig.receive_all() == b""
        until(lambda: rig.lane.state is LaneState.DOWN, "the loss")
        rig.connect()
        rig.lane.write(b"new", soon())
        assert rig.receive(3) == b"new"

    def test_earlier_connection(self, rig):
        """A block that was delegated is not sent on the next one, or before it."""
        rig.do(rig.lane.detach)
        rig.lane.outbox._delegated.append((1, b"old"))
        rig.connect(opened=False)
        rig.do(rig.lane.outbox.control, b"CONNECT {}\r\n")
        rig.lane.outbox._delegated.append((1, b"old"))
        rig.do(rig.lane.open)
        assert rig.lane.write(b"new", soon(), may_delegate=True) == 2
        assert rig.receive(15) == b"CONNECT {}\r\nnew"


class TestOversized:
    """The server ends the connection because of a message that is larger than it accepts."""

    @pytest.mark.parametrize(
        ("follows", "unprocessed"),
        [
            (lambda lane: None, b"i.1"),
            (lambda lane: lane.write(b"", soon()), b"i.1"),
            (lambda lane: lane.outbox.flush_posted(), b"i.1"),
            (lambda lane: lane.write(b"PUB a i.2 0\r\n\r\n", soon(), request=b"i.2"), b"i.2"),
            (lambda lane: lane.write(b"PUB a  0\r\n\r\n", soon()), b""),
            (lambda lane: lane.write(b"PUB a  0\r\n\r\n", soon(), may_delegate=True), b""),
            (lambda lane: lane.post(b"PUB a  0\r\n\r\n", LONG), b""),
            (lambda lane: lane.ack(b"r", LONG), b""),
        ],
    )
    def test_the_last_request(self, rig, follows, unprocessed):
        """The request that was sent last was certainly not processed."""
        lane = rig.lane
        lane.write(b"PUB a i.1 0\r\n\r\n", soon(), request=b"i.1")
        follows(lane)
        lane.outbox.flush_posted()
        rig.do(lane.note_oversized)
        rig.do(lane.detach)
        assert lane.unprocessed == unprocessed
        assert lane.why_lost(1) == OVERSIZED
        assert lane.why_lost(0) is None

    def test_another_loss(self, rig):
        """If the connection is lost for another reason, the server may have processed it."""
        lane = rig.lane
        rig.do(lane.note_oversized)
        rig.do(lane.detach)
        rig.connect()
        lane.write(b"PUB a i.1 0\r\n\r\n", soon(), request=b"i.1")
        rig.do(lane.detach)
        assert lane.unprocessed == b""
        assert (lane.why_lost(1), lane.why_lost(2)) == (OVERSIZED, None)

    def test_left_to_another_thread(self, rig, monkeypatch):
        """A request that another thread sends after its own may have been processed."""
        rig.stall()
        sock, lane, left = rig.lane.outbox.sock, rig.lane, []

        def send(data):
            if not left:
                left.append(b"1")
                leave = functools.partial(lane.write, b"1", soon(), may_delegate=True)
                assert Background(leave).get() == 1
            return sock.send(data)

        hooked = HookedSocket(sock, send)
        rig._sockets.append(hooked)
        monkeypatch.setattr(lane.outbox, "sock", hooked)
        lane.write(b"0", soon(), request=b"i.1")
        assert rig.receive(2) == b"01"
        assert lane.outbox.last_request == b""


class TestPost:
    def test_collected_for_the_loop(self, rig):
        """Posted blocks are collected, and the loop sends them in one write."""
        release = rig.stall()
        for block in (b"a", b"b", b"c"):
            rig.lane.post(block, 1.0)
        assert rig.nothing_more()
        assert rig.lane.outbox.posted == [b"a", b"b", b"c"]
        release.set()
        assert rig.receive(3) == b"abc"

    def test_a_wait_sends_posted_blocks_first(self, rig):
        """
        A thread that starts to wait first sends posted blocks, since answers may depend on them.
        """
        rig.stall()
        rig.lane.post(b"ack", 1.0)
        assert not rig.lane.wait(Mailbox(), soon(0))
        assert rig.receive(3) == b"ack"

    def test_sent_before_a_write(self, rig):
        """A write also sends the blocks that were posted before it."""
        rig.stall()
        rig.lane.post(b"first", 1.0)
        rig.lane.write(b"second", soon())
        assert rig.receive(11) == b"firstsecond"

    def test_beyond_the_limit_the_posting_thread_sends_itself(self, rig):
        """Beyond the limit, the posting thread sends the blocks itself."""
        rig.stall()
        rig.lane.post(b"1" * POST_LIMIT, 1.0)
        assert rig.receive(POST_LIMIT) == b"1" * POST_LIMIT
        assert rig.lane.outbox._posted_size == 0

    def test_a_post_waits_for_a_connection(self, idle):
        """A post waits for a connection, like a write."""
        waiting = Background(idle.lane.post, b"x", LONG)
        until(lambda: is_waited_for(idle.lane), "the wait for a connection")
        idle.connect()
        waiting.get()
        assert idle.receive(1) == b"x"

    def test_an_answer_is_dropped_without_a_connection(self, rig):
        """An answer is sent if there is a connection, and dropped otherwise."""
        rig.lane.post_nowait(b"now")
        assert rig.receive(3) == b"now"
        rig.do(rig.lane.detach)
        rig.lane.post_nowait(b"never")
        rig.connect()
        rig.lane.write(b"later", soon())
        assert rig.receive(5) == b"later"

    def test_answer_on_one_connection(self, rig):
        """An answer for one connection is never sent on another, and never waits."""
        epoch = rig.lane.epoch
        rig.lane.post_nowait(b"now", epoch)
        assert rig.receive(3) == b"now"
        with rig.lane.outbox.write_lock:
            rig.lane.post_nowait(b"soon", epoch)
        assert rig.receive(4) == b"soon"
        rig.do(rig.lane.detach)
        rig.connect()
        rig.lane.post_nowait(b"never", epoch)
        rig.lane.write(b"later", soon())
        assert rig.receive(5) == b"later"

    def test_lost_with_the_connection(self, rig):
        """Blocks posted for one connection are not sent on the next."""
        old, (ours, theirs) = rig.server, socket.socketpair()
        ours.setblocking(False)
        rig._sockets.append(theirs)

        def post_and_reconnect():
            # In one callback, so that the loop can only send the posted blocks afterwards.
            rig.lane.post(b"old", 1.0)
            rig.lane.detach()
            rig.lane.attach(ours)
            rig.lane.open()

        rig.do(post_and_reconnect)
        assert old.recv(10) == b""
        rig.server = theirs
        theirs.settimeout(LONG)
        rig.lane.write(b"new", soon())
        rig.settle()
        assert rig.receive(3) == b"new"
        assert rig.nothing_more()


ONE, TWO = b"PUB 1  4\r\n+ACK\r\n", b"PUB 2  4\r\n+ACK\r\n"


class TestAcks:
    def test_sent_by_the_loop(self, rig):
        """The loop sends acks if no thread sends anything, and sends later acks again."""
        for ack in (ONE, TWO):
            rig.lane.ack(ack[4:5], 1.0)
            assert rig.receive(len(ack)) == ack
            until(lambda: not rig.lane.outbox.tick_due, "the end of the timer")

    def test_acks_are_sent_before_the_block_of_the_next_write(self, rig):
        """Nothing is sent until the next write, which sends all acks before its block."""
        release = rig.stall()
        rig.lane.ack(b"1", 1.0)
        rig.lane.ack(b"2", 1.0)
        assert rig.nothing_more()
        rig.lane.write(b"block", soon())
        assert rig.receive(len(ONE + TWO) + 5) == ONE + TWO + b"block"
        release.set()

    def test_a_wait_for_messages_sends_the_acks_first(self, rig):
        """A thread that begins to wait for messages sends the acks first."""
        rig.stall()
        rig.lane.ack(b"1", 1.0)
        assert not rig.lane.wait(Mailbox(), soon(0))
        assert rig.receive(len(ONE)) == ONE

    def test_the_acknowledging_thread_sends_after_128_acks(self, rig):
        """The acknowledging thread itself sends after every 128 acks."""
        rig.stall()
        for _ in range(ACK_LIMIT):
            rig.lane.ack(b"1", 1.0)
        assert rig.receive(len(ONE) * ACK_LIMIT) == ONE * ACK_LIMIT

    def test_kept_for_the_next_connection(self, rig):
        """Acks that were not sent before a loss follow the subscriptions on the next connection."""
        box = Mailbox(b"a")
        sub = rig.lane.subscriptions.listen(rig.lane.subscriptions.new_sid(), box)

        def ack_and_lose():
            rig.lane.ack(b"1", 1.0)
            rig.lane.detach()

        rig.do(ack_and_lose)
        rig.connect()
        assert rig.receive(len(sub + ONE)) == sub + ONE

    def test_an_ack_waits_for_a_connection(self, idle):
        """An ack waits for a connection. If it fails, nothing is left to send."""
        with pytest.raises(DisconnectedError):
            idle.lane.ack(b"1", 0.01)
        waiting = Background(idle.lane.ack, b"2", LONG)
        until(lambda: is_waited_for(idle.lane), "the wait for a connection")
        idle.connect()
        waiting.get()
        assert idle.receive(len(TWO)) == TWO
        assert idle.nothing_more()

    def test_an_ack_on_a_closed_lane_raises(self, rig):
        """An ack on a closed lane raises."""
        rig.lane.close(ConnectionClosedError())
        with pytest.raises(ConnectionClosedError):
            rig.lane.ack(b"1", 1.0)


class TestRefused:
    def test_the_subscription_with_most_before_it(self, idle):
        """The server refused the subscription that had the most others before it."""
        lane, boxes = idle.lane, [Mailbox(b"%d" % n) for n in range(3)]
        sids = [lane.subscriptions.new_sid() for _ in boxes]
        for sid, box in zip(sids, boxes, strict=True):
            lane.subscriptions.listen(sid, box)
        assert lane.subscriptions.take_refused() is boxes[2]
        lane.subscriptions.unsubscribe(sids[0])
        assert lane.subscriptions.take_refused() is boxes[1]
        assert lane.subscriptions.take_refused() is None

    def test_never_the_one_to_replies(self, idle):
        """The reply subscription is never taken for the refused one."""
        router = ReplyRouter(b"inbox")
        idle.lane.subscriptions.listen(idle.lane.subscriptions.new_sid(), router)
        assert idle.lane.subscriptions.take_refused() is None
        assert router in idle.lane.subscriptions.receivers()


class TestReconnect:
    def test_half_a_block(self, idle):
        """The rest of a half-written block is not continued on the next connection."""
        idle.connect(buffer=8192)
        idle.lane.write(b"1" * 1_000_000, soon())
        assert idle.lane.outbox.size > 0
        descriptor = idle.lane.outbox.sock.fileno()
        idle.do(idle.lane.detach)
        # The next socket may get the same number.
        assert not idle.do(idle.loop.remove_writer, descriptor)
        assert 0 < len(idle.receive_all()) < 1_000_000
        idle.connect()
        assert idle.lane.write(b"whole", soon()) == 2
        assert idle.receive(5) == b"whole"
        idle.settle()
        assert idle.nothing_more()

    def test_subscriptions_come_first(self, idle):
        """After a reconnect all subscriptions are written again, in order, before other blocks."""
        lane = idle.lane
        lines = [
            lane.subscriptions.listen(lane.subscriptions.new_sid(), Mailbox(b"a.%d" % n))
            for n in range(3)
        ]
        lines.append(
            lane.subscriptions.listen(lane.subscriptions.new_sid(), Mailbox(b"q"), b"group")
        )
        assert lines[0] == b"SUB a.0  1000000\r\n"
        assert lines[3] == b"SUB q group 1000003\r\n"
        for epoch in (1, 2):
            waiting = Background(lane.write, b"block", soon())
            until(lambda: is_waited_for(lane), "the wait for a connection")
            idle.connect()
            assert waiting.get() == epoch
            expected = b"".join(lines) + b"block"
            assert idle.receive(len(expected)) == expected
            idle.server.close()
            until(lambda: lane.state is LaneState.DOWN, "the loss")

    def test_writes_wait_for_the_connection_after_a_given_up_one(self, rig):
        """After a connection is dropped, writes wait for the next one, though the loop is late."""
        box = Mailbox()
        rig.listen(box)
        rig.lane.write(b"old", soon())
        release = rig.stall()
        rig.lane.outbox.drop_connection(1)
        for call in (
            lambda: rig.lane.write(b"x", soon(0.01)),
            lambda: rig.lane.write(b"x", soon(0.01), may_delegate=True),
            lambda: rig.lane.post(b"x", 0.01),
        ):
            with pytest.raises(DisconnectedError, match="no connection to a server within"):
                call()
        with pytest.raises(ConnectionLostError, match="before the request was sent"):
            rig.lane.write(b"x", soon(), 1)
        assert rig.lane.outbox._delegate(b"x", None) == 0
        release.set()
        assert rig.receive_all() == b"old"
        assert rig.lane.wait(box, soon())
        assert (box.take_lost(), rig.lane.lost_epoch) == (1, 1)
        waiting = Background(rig.lane.write, b"new", soon())
        until(lambda: is_waited_for(rig.lane), "the wait for a connection")
        rig.connect()
        assert waiting.get() == 2
        assert rig.receive(19) == b"SUB s  1000000\r\nnew"

    def test_collected_blocks_of_a_connection_that_is_given_up(self, rig):
        """Posted blocks and acks are sent before the connection ends."""
        release = rig.stall()
        rig.lane.post(b"posted", LONG)
        rig.lane.ack(b"r", LONG)
        rig.lane.outbox.drop_connection(1)
        release.set()
        assert rig.receive_all() == b"postedPUB r  4\r\n+ACK\r\n"

    def test_an_earlier_connection_is_given_up(self, rig):
        """Giving up a connection that is gone does not affect the next one."""
        rig.do(rig.lane.detach)
        rig.connect()
        rig.lane.outbox.drop_connection(1)
        rig.settle()
        assert rig.lane.write(b"new", soon()) == 2
        assert rig.receive(3) == b"new"

    def test_interrupted_while_a_connection_is_dropped(self, rig):
        """After Ctrl-C at any step the connection is used or ends. No write waits for ever."""
        step, ended = 0, False
        while not ended:
            step += 1
            epoch = rig.lane.epoch
            ended = interrupted_at(step, lambda: rig.lane.outbox.drop_connection(epoch))  # noqa: B023
            rig.settle()
            if rig.lane.state is LaneState.DOWN:
                until(lambda: rig.lane.lost_epoch == epoch, "the loss")  # noqa: B023
                rig.connect()
            rig.lane.write(b"x", soon())
        assert step > 2

    def test_ended_subscriptions_are_not_restored(self, rig):
        """A subscription that has ended is not written again."""
        sid = rig.listen(Mailbox())
        rig.lane.subscriptions.unsubscribe(sid)
        rig.lane.subscriptions.unsubscribe(sid)
        assert rig.receive(15) == b"UNSUB 1000000\r\n"
        assert rig.lane.subscriptions.receivers() == []
        rig.do(rig.lane.detach)
        rig.connect()
        rig.lane.write(b"x", soon())
        assert rig.receive(1) == b"x"

    def test_unsubscribe_during_a_write(self, rig):
        """If another thread has the lock, the UNSUB is sent as soon as it is free."""
        sid = rig.listen(Mailbox())
        with rig.lane.outbox.write_lock:
            Background(rig.lane.subscriptions.unsubscribe, sid).get()
        assert rig.receive(15) == b"UNSUB 1000000\r\n"

    def test_interrupted_unsubscribe(self, rig):
        """After Ctrl-C in the middle, a repeated call unsubscribes and drops the mailbox."""
        sid = rig.listen(Mailbox())
        del rig.lane.subscriptions._lines[sid]
        rig.lane.subscriptions.unsubscribe(sid)
        assert rig.receive(15) == b"UNSUB 1000000\r\n"
        assert rig.lane.subscriptions.receivers() == []

    @needs_epoll
    def test_receivers_learn_of_a_loss(self, rig):
        """Every receiver learns of the loss, and waiting threads wake up."""
        boxes = [Mailbox() for _ in range(3)]
        for box in boxes:
            rig.listen(box)
        router = ReplyRouter(b"i")
        rig.listen(router)
        waiter = Waiter(b"x")
        router.register(waiter)
        waiter.epoch = 1
        waiting = [Background(rig.lane.wait, one, soon()) for one in (*boxes, waiter)]
        until(lambda: rig.is_led, "the leader")
        rig.server.close()
        assert [one.get() for one in waiting] == [True] * 4
        assert [box.take_lost() for box in boxes] == [1, 1, 1]
        assert waiter.is_lost

    def test_unsent_requests_continue(self, rig):
        """A request that was not written yet survives the loss of the connection."""
        router = ReplyRouter(b"i")
        rig.listen(router)
        waiter = Waiter(b"x")
        router.register(waiter)
        rig.do(rig.lane.detach)
        assert (waiter.is_lost, waiter.ready) == (False, False)

    def test_announced_once(self, rig):
        """Closing twice announces one loss, and a failed handshake announces none."""
        box = Mailbox()
        rig.listen(box)
        rig.do(rig.lane.detach)
        assert box.take_lost() == 1
        rig.do(rig.lane.detach)
        rig.connect(opened=False)
        rig.do(rig.lane.detach)
        assert (box.take_lost(), rig.lane.epoch, rig.lane.lost_epoch) == (0, 1, 1)

    def test_half_a_frame(self, rig):
        """The next connection's bytes do not continue half a frame of the previous one."""
        box = Mailbox()
        sid = rig.listen(box)
        rig.server.sendall(msg(sid, b"whole") + msg(sid, b"half")[:-4])
        assert rig.lane.wait(box, soon())
        rig.server.close()
        until(lambda: rig.lane.state is LaneState.DOWN, "the loss")
        server = rig.connect()
        server.sendall(msg(sid, b"new"))
        until(lambda: len(box.frames) == 2, "the frame")
        assert [frame[3] for frame in box.drain()] == [b"whole", b"new"]

    def test_no_thread_spins_at_the_end(self, rig):
        """Waiting costs no CPU time between the end of a connection and nats-py's close of it."""
        rig.auto_detach = False
        waiting = rig.leader(Mailbox())
        rig.server.close()
        until(lambda: rig.foreign, "the end")
        rig.settle()
        before = time.process_time()
        assert not rig.lane.wait(Mailbox(), soon(0.1))
        assert time.process_time() - before < 0.05
        assert waiting.running
        rig.do(rig.lane.close, ConnectionClosedError())

    def test_the_loop_does_not_spin_at_the_end(self, idle, monkeypatch):
        """The loop reads the end of a connection once, though nats-py closes it later."""
        calls, read = [], idle.lane.reader._on_readable
        monkeypatch.setattr(idle.lane.reader, "_on_readable", lambda: calls.append(read()))
        idle.auto_detach = False
        idle.connect()
        idle.server.close()
        until(lambda: idle.foreign, "the end")
        idle.settle()
        before = len(calls)
        idle.settle()
        assert (len(calls), bool(before)) == (before, True)

    def test_readable_after_the_end(self, rig):
        """The loop may be notified of a socket that was closed in the same round."""
        rig.do(rig.lane.detach)
        rig.do(rig.lane.reader._on_readable)
        assert rig.lane.state is LaneState.DOWN


class TestRead:
    def test_loop_reads(self, rig):
        """While no thread waits, the loop reads and delivers frames to their mailboxes."""
        box, other = Mailbox(), Mailbox()
        sid, other_sid = rig.listen(box), rig.listen(other)
        rig.server.sendall(msg(sid, b"1") + msg(other_sid, b"2", reply=b"r") + msg(sid, b"3"))
        until(lambda: len(box.frames) == 2, "the frames")
        assert box.drain() == [(b"s", b"", None, b"1"), (b"s", b"", None, b"3")]
        assert other.drain() == [(b"s", b"r", None, b"2")]
        assert rig.lane.strays == 0

    def test_foreign_bytes(self, rig):
        """Bytes for nats-py reach it in order and in the loop thread, whichever thread reads."""
        box = Mailbox()
        sid = rig.listen(box)
        loop_thread = rig.do(threading.get_ident)
        rig.server.sendall(b"PING\r\n" + msg(b"7", b"x"))
        until(lambda: len(rig.foreign) == 1, "the foreign bytes")
        waiting = rig.leader(box)
        rig.server.sendall(b"PONG\r\n" + msg(sid) + b"-ERR 'no'\r\n")
        assert waiting.get()
        until(lambda: len(rig.foreign) == 3, "the foreign bytes")
        assert rig.foreign == [
            (loop_thread, b"PING\r\n"),
            (loop_thread, b"PONG\r\n"),
            (loop_thread, b"-ERR 'no'\r\n"),
        ]
        assert rig.lane.strays == 1

    def test_strays_of_all_connections(self, rig):
        """Frames of dropped subscriptions are counted over all connections."""
        for count in (1, 2, 3):
            rig.server.sendall(msg(b"1000099"))
            until(lambda: rig.lane.strays == count, "the stray")  # noqa: B023
            rig.server.close()
            until(lambda: rig.lane.state is LaneState.DOWN, "the loss")
            rig.connect()
        assert rig.lane.strays == 3

    def test_a_waiting_thread_reads_by_itself(self, rig):
        """A waiting thread reads by itself, so its answer needs no loop."""
        box = Mailbox()
        sid = rig.listen(box)
        rig.stall()
        waiting = rig.leader(box)
        rig.server.sendall(msg(sid, b"answer"))
        assert waiting.get() is True
        assert [frame[3] for frame in box.drain()] == [b"answer"]

    def test_loop_reads_for_requests(self, rig):
        """If several threads wait for replies, the loop reads for all of them."""
        router = ReplyRouter(b"i")
        sid = rig.listen(router)
        waiters = [Waiter(b"x") for _ in range(4)]
        replies = [msg(sid, subject=router.register(waiter)) for waiter in waiters]
        first = rig.leader(waiters[0])
        others = [Background(rig.lane.wait, waiter, soon()) for waiter in waiters[1:3]]
        until(lambda: len(rig.lane.reader._requests) == 3, "the waits")
        rig.server.sendall(replies[0])
        assert first.get()
        others.append(Background(rig.lane.wait, waiters[3], soon()))
        until(lambda: len(rig.lane.reader._requests) == 3, "the wait")
        rig.server.sendall(b"".join(replies[1:]))
        assert [one.get() for one in others] == [True] * 3
        assert rig.is_watched
        assert not rig.lane.reader._requests

    def test_loop_reads_again(self, rig):
        """After each kind of wait the loop reads again."""
        box, other = Mailbox(), Mailbox()
        sid, other_sid = rig.listen(box), rig.listen(other)
        waiting = rig.leader(box)
        rig.server.sendall(msg(sid))
        assert waiting.get()
        rig.server.sendall(msg(other_sid, b"1"))
        until(lambda: other.frames, "the loop's frame")
        assert not rig.lane.wait(Mailbox(), soon(0.01))
        rig.server.sendall(msg(other_sid, b"2"))
        until(lambda: len(other.frames) == 2, "the loop's frame")

    def test_two_wait(self, rig):
        """If two threads wait, one reads for both, and both get their answers."""
        first, second = Mailbox(), Mailbox()
        sids = rig.listen(first), rig.listen(second)
        leader = rig.leader(first)
        follower = Background(rig.lane.wait, second, soon())
        rig.server.sendall(msg(sids[1], b"2"))
        assert follower.get() is True
        assert leader.running
        rig.server.sendall(msg(sids[0], b"1"))
        assert leader.get() is True
        assert [box.drain()[0][3] for box in (first, second)] == [b"1", b"2"]

    def test_follower_outlives_the_leader(self, rig):
        """After the leader has its answer, the follower still gets its own."""
        first, second = Mailbox(), Mailbox()
        sids = rig.listen(first), rig.listen(second)
        leader = rig.leader(first)
        follower = Background(rig.lane.wait, second, soon())
        rig.server.sendall(msg(sids[0]))
        assert leader.get() is True
        rig.server.sendall(msg(sids[1]))
        assert follower.get() is True

    def test_loop_is_left_alone(self, rig):
        """
        A thread that has read returns the socket to the loop with a delay: it may wait again soon.
        """
        assert rig.is_watched
        box = Mailbox()
        sid = rig.listen(box)
        release = rig.stall()
        waiting = rig.leader(box)
        rig.server.sendall(msg(sid))
        assert waiting.get() is True
        assert not rig.is_watched
        release.set()
        until(lambda: rig.is_watched, "the loop's turn")

    def test_loop_sleeps_during_a_long_wait(self, rig):
        """While a thread waits for bytes, the loop does not tick; later it reads again."""
        assert not rig.lane.wait(Mailbox(), soon(0.001))
        box = Mailbox()
        sid = rig.listen(box)
        waiting = rig.leader(box)
        until(lambda: not rig.do(lambda: rig.lane.outbox.tick_due), "the last tick")
        assert not rig.is_watched
        rig.server.sendall(msg(sid))
        assert waiting.get() is True
        until(lambda: rig.is_watched, "the loop's turn")

    def test_loop_is_called_for_a_follower(self, rig):
        """If another thread waits, the loop gets the socket back at once."""
        first, second = Mailbox(), Mailbox()
        sid = rig.listen(first)
        rig.stall()
        leader = rig.leader(first)
        follower = Background(rig.lane.wait, second, soon())
        until(lambda: second in rig.lane.reader._followers, "the follower")
        rig.server.sendall(msg(sid))
        assert leader.get() is True
        assert rig.is_watched
        second.fail(ConnectionClosedError())
        assert follower.get() is True
        assert not rig.lane.reader._followers

    def test_many_requests(self, rig):
        """Threads that make requests at the same time all get their own answers."""
        router = ReplyRouter(b"i")
        sid = rig.listen(router)

        def serve(count):
            stream = rig.server.makefile("rb")
            for _ in range(count):
                words = stream.readline().split()
                size = int(words[-1])
                payload = stream.read(size + 2)[:size]
                rig.server.sendall(msg(sid, payload, subject=words[2]))
            stream.close()

        def ask(name):
            for number in range(50):
                waiter = Waiter(b"x")
                reply = router.register(waiter)
                payload = b"%d.%d" % (name, number)
                block = b"PUB x %b %d\r\n%b\r\n" % (reply, len(payload), payload)
                waiter.epoch = rig.lane.write(block, soon())
                assert rig.lane.wait(waiter, soon())
                assert waiter.reply[3] == payload

        serving = Background(serve, 8 * 50)
        for asking in [Background(ask, name) for name in range(8)]:
            asking.get()
        serving.get()
        assert router.pending() == 0

    def test_a_read_that_reaches_its_deadline_returns_false(self, rig):
        """A wait that reaches its deadline returns False."""
        started = time.monotonic()
        assert rig.lane.wait(Mailbox(), soon(0.02)) is False
        assert 0.02 <= time.monotonic() - started < LONG

    def test_very_long_wait(self, rig):
        """A wait may be longer than the milliseconds that poll accepts."""
        box = Mailbox()
        sid = rig.listen(box)
        waiting = rig.leader(box, soon(90 * 86400))
        rig.server.sendall(msg(sid))
        assert waiting.get() is True

    def test_ready_already(self, rig):
        """A receiver that has something returns at once, whatever the deadline is."""
        box = Mailbox()
        box.push((b"s", b"", None, b""))
        assert rig.lane.wait(box, soon(0)) is True

    def test_wake_reader(self, rig, monkeypatch):
        """Waking a receiver makes its reading thread leave the socket."""
        # The thread also looks at its receiver now and then.
        monkeypatch.setattr(_gate, "SIGNAL_CHECK", 3 * LONG)
        box = Mailbox()
        waiting = rig.leader(box)
        box.fail(ConnectionClosedError())
        rig.lane.reader.wake_reader()
        assert waiting.get() is True
        assert rig.lane.state is LaneState.OPEN

    def test_large_frame(self, rig):
        """A frame that needs many reads arrives whole."""
        box = Mailbox()
        sid = rig.listen(box)
        payload = os.urandom(3_000_000)
        sending = Background(rig.server.sendall, msg(sid, payload) + msg(sid, b"end"))
        while len(box.frames) < 2:
            assert rig.lane.wait(box, soon())
        sending.get()
        assert [frame[3] for frame in box.drain()] == [payload, b"end"]
        assert rig.lane.bytes_in == len(msg(sid, payload)) + len(msg(sid, b"end"))

    def test_unsubscribe_with_grace(self, rig):
        """Frames in flight still arrive for a while after their subscription has ended."""
        box = Mailbox()
        sid = rig.listen(box)
        rig.lane.subscriptions.unsubscribe(sid, grace=0.05)
        rig.server.sendall(msg(sid))
        until(lambda: box.frames, "the late frame")
        until(lambda: not rig.lane.subscriptions.receivers(), "the end of the grace time")
        rig.server.sendall(msg(sid))
        until(lambda: rig.lane.strays == 1, "the stray")
        assert len(box.frames) == 1

    def test_without_epoll(self, idle, monkeypatch):
        """Without epoll the loop reads, also while threads wait."""
        monkeypatch.delattr(_gate.select, "epoll", raising=False)
        server = idle.connect()
        box = Mailbox()
        sid = idle.listen(box)
        assert not idle.lane.reader._gate.can_lead
        waiting = Background(idle.lane.wait, box, soon())
        server.sendall(msg(sid))
        assert waiting.get() is True
        server.close()
        until(lambda: idle.lane.state is LaneState.DOWN, "the loss")

    @pytest.mark.parametrize("led", [False, True], ids=["loop", "leader"])
    @pytest.mark.parametrize(
        "garbage",
        [b"MSG 5\r\n", b"MSG a 1000000 -9\r\n", b"HMSG x\r\n", b"MSG a 1 one\r\n", b"M\r\n"],
    )
    def test_bytes_that_are_not_the_protocol_end_the_connection(self, rig, led, garbage):
        """
        Bytes that are not the protocol end the connection, and no caller gets a parser exception.
        """
        box = Mailbox()
        sid = rig.listen(box)
        waiting = rig.leader(box) if led else None
        rig.server.sendall(msg(sid, b"good") + garbage)
        if waiting is not None:
            assert waiting.get() is True
        assert rig.receive_all() == b""
        until(box.take_lost, "the loss")
        assert [frame[3] for frame in box.drain()] == [b"good"]


class Interrupting(Mailbox):
    """A mailbox whose wake-up raises KeyboardInterrupt once."""

    __slots__ = ("struck",)

    def __init__(self):
        super().__init__()
        self.struck = False

    @property
    def ready(self):
        return self.lost_epoch > 0

    def wake(self):
        if not self.struck:
            self.struck = True
            raise KeyboardInterrupt
        super().wake()


class TestInterrupts:
    @needs_epoll
    def test_in_a_wake_up(self, rig):
        """An interrupt during the delivery of frames ends the connection and keeps the order."""
        first, second = Interrupting(), Mailbox()
        sids = rig.listen(first), rig.listen(second)
        release = rig.stall()
        rig.server.sendall(msg(sids[0]) + msg(sids[1], b"never woken") + b"PING\r\n")
        with pytest.raises(KeyboardInterrupt):
            rig.lane.wait(second, soon())
        follower = Background(rig.lane.wait, first, soon())
        release.set()
        assert rig.receive_all() == b""
        assert follower.get() is True
        assert not rig.is_led
        eventually(lambda: second.lost_epoch)
        assert (first.lost_epoch, second.take_lost()) == (1, 1)
        server = rig.connect()
        lines = rig.receive(len(b"SUB s  1000000\r\n") * 2)
        assert lines == b"SUB s  1000000\r\nSUB s  1000001\r\n"
        second.drain()
        server.sendall(msg(sids[1], b"in step"))
        assert rig.lane.wait(second, soon())
        assert second.drain()[0][3] == b"in step"

    @needs_epoll
    def test_before_the_bookkeeping(self, rig, monkeypatch):
        """An interrupt between a read and the parsing of its bytes ends the connection."""

        def take(data, splitter):
            raise KeyboardInterrupt

        monkeypatch.setattr(rig.lane.reader, "_deliver", take)
        rig.stall()
        rig.server.sendall(b"PING\r\n")
        with pytest.raises(KeyboardInterrupt):
            rig.lane.wait(Mailbox(), soon())
        assert rig.receive_all() == b""
        monkeypatch.undo()

    @pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="signals to one thread")
    @needs_epoll
    def test_in_the_wait_itself(self, rig):
        """Ctrl-C ends a wait at once and does not affect the connection."""
        box = Mailbox()
        sid = rig.listen(box)
        main = threading.get_ident()
        assert threading.current_thread() is threading.main_thread()

        def strike():
            until(lambda: rig.is_led, "the wait")
            signal.pthread_kill(main, signal.SIGINT)

        striking = Background(strike)
        started = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            rig.lane.wait(box, soon())
        assert time.monotonic() - started < LONG / 2
        striking.get()
        assert not rig.is_led
        rig.server.sendall(msg(sid))
        until(lambda: box.frames, "the loop's frame")
        assert rig.lane.write(b"x", soon()) == 1

    @needs_epoll
    def test_ctrl_c_at_any_step_of_a_read_lets_others_read_on(self, rig):
        """After Ctrl-C at any step of a reading wait, the loop or another thread reads on."""
        box = Mailbox()
        sid = rig.listen(box)
        step, finished = 0, False
        while not finished:
            release = rig.stall()
            rig.server.sendall(msg(sid))
            step += 1
            deadline = soon()
            finished = interrupted_at(step, lambda: rig.lane.wait(box, deadline))  # noqa: B023
            release.set()
            # Between a read and the end of its bookkeeping, only ending the connection is safe.
            if rig.nothing_more():
                until(lambda: box.frames, f"the frame at {step}")
            else:
                until(box.take_lost, f"the loss at {step}")
                rig.connect()
                rig.receive(len(b"SUB s  1000000\r\n"))
            box.drain()
            rig.server.sendall(msg(sid))
            until(lambda: box.frames, f"the frame after {step}")
            box.drain()
            until(lambda: not rig.is_led, f"the lock after {step}")
            assert not rig.lane.reader._followers
        assert step > 20

    @needs_epoll
    def test_ctrl_c_at_any_step_of_a_read_does_not_hide_the_end(self, rig):
        """After Ctrl-C at any step of the read that finds the end, the loss is announced."""
        box = Mailbox()
        rig.listen(box)
        step, finished = 0, False
        while not finished:
            # Or the loop thread could find the end first.
            release, gate, over = rig.stall(), rig.lane.reader._gate, threading.Event()

            def free(release=release, gate=gate, over=over):
                until(lambda: gate.over or over.is_set())
                release.set()

            freeing = Background(free)
            rig.server.shutdown(socket.SHUT_RDWR)
            step += 1
            deadline = soon()
            finished = interrupted_at(step, lambda: rig.lane.wait(box, deadline))  # noqa: B023
            over.set()
            freeing.get()
            until(box.take_lost, f"the loss at {step}")
            rig.settle()
            box.drain()
            rig.connect()
        assert step > 20

    @needs_epoll
    def test_ctrl_c_at_any_step_of_a_read_serves_the_threads_that_wait(self, rig):
        """
        After Ctrl-C at any step of a reading wait, a thread that waits meanwhile gets its frame,
        though no other thread calls anything.
        """
        reader, other = rig.lane.reader, Mailbox()
        sid = rig.listen(other)
        step, finished = 0, False
        while not finished:
            step += 1
            pong, over = Waiter(b"PING"), threading.Event()
            rig.lane.write(PING, soon(), pong=pong)
            rig.receive(len(PING))

            def serve(over=over):
                until(lambda: rig.is_led or over.is_set())
                following = Background(rig.lane.wait, other, soon())
                until(lambda: other in reader._followers or (over.is_set() and rig.is_led))
                rig.server.sendall(b"PONG\r\n")
                return following

            serving, deadline = Background(serve), soon()
            finished = interrupted_at(step, lambda: rig.lane.wait(pong, deadline))  # noqa: B023
            over.set()
            following = serving.get()
            is_lost = not rig.nothing_more()
            if not is_lost:
                rig.server.sendall(msg(sid))
            assert following.get() is True, step
            assert len(other.drain()) == (not is_lost), step
            assert not reader._followers, step
            assert not reader._requests, step
            if is_lost:
                until(other.take_lost, f"the loss at {step}")
                rig.settle()
                rig.connect()
                rig.receive(len(b"SUB s  1000000\r\n"))
        assert step > 20

    @pytest.mark.parametrize(
        "call",
        [
            lambda outbox: outbox.write(b"x", soon()),
            lambda outbox: outbox.write(b"x", soon(), 99),
            lambda outbox: outbox.write_nowait(b"x", outbox.epoch),
            lambda outbox: outbox.write_nowait(b"x", 99),
            lambda outbox: outbox.post(b"x", LONG),
            lambda outbox: outbox.post_nowait(b"x"),
            lambda outbox: outbox.ack(b"x", LONG),
            lambda outbox: outbox.flush_posted(),
        ],
        ids=["write", "gone", "nowait", "nowait-gone", "post", "post_nowait", "ack", "flush"],
    )
    def test_ctrl_c_at_any_step_of_a_write_loses_no_block_of_others(self, rig, call):
        """
        After Ctrl-C at any step of a write, the lock is free, and the collected blocks of other
        threads are sent, or the connection ends.
        """
        step, finished = 0, False

        def attempt():
            with contextlib.suppress(ConnectionLostError):
                call(rig.lane.outbox)

        while not finished:
            step += 1
            epoch = rig.lane.epoch
            # Not with `post`, because the loop would send it soon.
            rig.lane.outbox.posted.append(b"other")
            finished = interrupted_at(step, attempt)
            # The loop may have it for a moment.
            eventually(lambda: not is_locked(rig.lane.outbox.write_lock))
            assert not rig.lane.outbox._sending, step
            with contextlib.suppress(ConnectionLostError):
                rig.lane.write(b"|", soon(), epoch)
            data = b""
            while not data.endswith(b"|"):
                piece = rig.server.recv(1 << 16)
                if not piece:
                    until(lambda: rig.lane.state is LaneState.DOWN, f"the loss at {step}")
                    rig.settle()
                    rig.connect()
                    break
                data += piece
            else:
                assert b"other" in data, step
        assert step > 5

    def test_ctrl_c_at_any_step_of_a_ping_mixes_no_answers(self, rig):
        """
        After Ctrl-C at any step of a PING, each PONG answers its own PING, or the connection ends.
        """
        step, finished = 0, False
        while not finished:
            step += 1
            pong, deadline = Waiter(b"PING"), soon()
            finished = interrupted_at(
                step,
                lambda: rig.lane.write(PING, deadline, pong=pong),  # noqa: B023
            )
            is_sent = not rig.nothing_more() and bool(rig.server.recv(len(PING)))
            if rig.nothing_more():
                assert list(rig.lane.outbox.pings) == ([pong] if is_sent else []), step
                rig.server.sendall(b"PONG\r\n" * is_sent)
                until(lambda: pong.ready or not is_sent, f"the answer at {step}")  # noqa: B023
            else:
                until(lambda: rig.lane.state is LaneState.DOWN, f"the loss at {step}")
                rig.settle()
                rig.connect()
        assert step > 5


class TestThreads:
    def test_a_weak_reference_may_outlive_an_unsubscribe(self, rig):
        """Frames in flight arrive after an unsubscribe, though its listener is dropped as well."""
        listener = Listener(rig.lane, Mailbox(b"a"))
        # Another thread may hold it for longer.
        reference = rig.lane.subscriptions._owners[listener.sid]
        sid = listener.sid
        listener.end(grace=60.0)
        del listener
        assert reference() is None
        assert sid in rig.lane.subscriptions.boxes


class TestPing:
    def test_a_pong_answers_the_oldest_ping(self, rig):
        """A PONG answers the oldest PING. Answers to nats-py's PINGs go to nats-py."""
        ours, later = Waiter(b"PING"), Waiter(b"PING")
        rig.lane.write(PING, soon(), pong=ours)
        rig.do(rig.lane.outbox.control, b"PING\r\n")
        rig.lane.write(PING, soon(), pong=later)
        assert rig.receive(18) == b"PING\r\n" * 3
        rig.server.sendall(b"PONG\r\n" * 2)
        assert rig.lane.wait(ours, soon())
        until(lambda: rig.foreign, "the PONG of nats-py")
        rig.settle()
        assert [data for _, data in rig.foreign] == [b"PONG\r\n"]
        assert not later.ready
        rig.server.sendall(b"PONG\r\n" * 2)
        assert rig.lane.wait(later, soon())
        until(lambda: len(rig.foreign) == 2, "a PONG without a PING")

    def test_a_ping_whose_connection_ends_is_lost(self, rig):
        """If the connection ends before the PONG, the PING is lost."""
        pong = Waiter(b"PING")
        rig.lane.write(PING, soon(), pong=pong)
        rig.server.close()
        assert rig.lane.wait(pong, soon())
        assert pong.is_lost

    def test_a_ping_waits_for_a_connection_like_a_write(self, idle):
        """A PING waits for a connection, like a write."""
        with pytest.raises(DisconnectedError):
            idle.lane.write(PING, soon(0.02), pong=Waiter(b"PING"))


class TestIds:
    def test_cannot_be_guessed(self, rig):
        """Each lane starts its subscription ids at a random number."""
        first = {int(Lane(rig.loop, print).subscriptions.new_sid()) for _ in range(20)}
        assert len(first) == 20
        assert min(first) >= SID_RANGE


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="signals to one thread")
class TestSignalHandlers:
    def strike(self, rig, handler):
        """Run a handler in the main thread as soon as a thread reads."""
        self.before = signal.signal(signal.SIGUSR1, lambda *_: handler())
        main = threading.get_ident()

        def send():
            until(lambda: rig.is_led, "the wait")
            signal.pthread_kill(main, signal.SIGUSR1)

        return Background(send)

    @pytest.fixture(autouse=True)
    def _restored(self):
        self.before = None
        yield
        if self.before is not None:
            signal.signal(signal.SIGUSR1, self.before)

    def test_wait_inside_a_wait(self, rig):
        """
        A wait in a signal handler that interrupted a wait is refused at once, and the interrupted
        wait continues.
        """
        rig.stall()
        outer, refused = Mailbox(), []
        sid = rig.listen(outer)

        def handle():
            with pytest.raises(CallInSignalHandlerError) as caught:
                rig.lane.wait(Mailbox(), soon())
            refused.append(caught.value)
            rig.server.sendall(msg(sid, b"outer"))

        striking = self.strike(rig, handle)
        assert rig.lane.wait(outer, soon())
        striking.get()
        assert len(refused) == 1
        assert outer.drain()[0][3] == b"outer"
        assert not rig.is_led

    @pytest.mark.parametrize("call", ["write", "wait_open", "repeated"])
    def test_no_wait_for_a_connection_inside_a_wait(self, idle, call):
        """
        Without a connection, a handler that interrupted a wait waits for none.
        """
        outbox = idle.lane.outbox
        context = types.SimpleNamespace(
            lane=idle.lane, connection=types.SimpleNamespace(check=idle.lane.check)
        )
        calls = {
            "write": lambda: outbox.write(b"x", soon()),
            "wait_open": lambda: outbox.wait_open(soon()),
            "repeated": lambda: repeated(context, pytest.fail, soon()),
        }
        with pytest.raises(CallInSignalHandlerError):
            waiting(calls[call])

    def test_write_inside_a_write(self, rig, monkeypatch):
        """A write, a PING or a wait that interrupts work of its own lane is refused at once."""
        errors, sock = [], rig.lane.outbox.sock

        def interrupted(block):
            monkeypatch.undo()
            for call in (
                lambda: rig.lane.write(b"x", soon()),
                lambda: rig.lane.write(PING, soon(), pong=Waiter(b"PING")),
            ):
                with pytest.raises(CallInSignalHandlerError) as caught:
                    call()
                errors.append(caught.value)
            rig.lane.post(b"posted", 1.0)
            return sock.send(block)

        with HookedSocket(sock, interrupted) as hooked:
            monkeypatch.setattr(rig.lane.outbox, "sock", hooked)
            rig.lane.write(b"outer", soon())
        assert rig.receive(11) == b"outerposted"
        assert len(errors) == 2

    @needs_epoll
    def test_wait_while_frames_are_cut(self, rig):
        """A wait in a handler that interrupts the parsing of frames is refused at once."""
        rig.stall()
        errors = []

        class Handled(Mailbox):
            __slots__ = ()

            def wake(self):
                super().wake()
                if self.frames:
                    with pytest.raises(CallInSignalHandlerError) as caught:
                        rig.lane.wait(Mailbox(), soon())
                    errors.append(caught.value)

        box = Handled()
        sid = rig.listen(box)
        rig.server.sendall(msg(sid))
        assert rig.lane.wait(box, soon())
        assert len(errors) == 1
        box.drain()


class TestClose:
    def test_wakes_everybody(self, idle):
        """Closing ends every wait and every write, present and later, with the reason."""
        idle.connect(buffer=8192)
        lane = idle.lane
        boxes = [Mailbox() for _ in range(3)]
        for box in boxes:
            idle.listen(box)
        lane.write(b"1" * (OUT_LIMIT + (1 << 20)), soon())
        writing = Background(lane.write, b"2", soon())
        until(lambda: is_waited_for(lane), "the wait for room")
        waiting = [idle.leader(boxes[0])]
        waiting += [Background(lane.wait, box, soon()) for box in boxes[1:]]
        reason = ConnectionClosedError("enough")
        lane.close(reason)
        lane.close(ConnectionClosedError("again"))
        assert [one.get() for one in waiting] == [True] * 3
        assert [box.failure for box in boxes] == [reason] * 3
        for call in (writing.get, lambda: lane.write(b"3", soon()), lambda: lane.post(b"4", 1.0)):
            with pytest.raises(ConnectionClosedError, match="enough"):
                call()
        late = Mailbox()
        idle.listen(late)
        assert late.failure is reason
        assert lane.wait(late, soon()) is True

    def test_publishers_may_finish(self, rig):
        """While the client closes, only acks and marked mailboxes and writes work."""
        lane = rig.lane
        box, marked, router = Mailbox(), Mailbox(b"m", while_closing=True), ReplyRouter(b"inbox")
        rig.listen(box)
        sid = rig.listen(marked)
        rig.listen(router)
        waiter, ping = Waiter(b"a"), Waiter(b"PING")
        router.register(waiter)
        lane.write(PING, soon(), pong=ping)
        release = rig.stall()
        lane.ack(b"r", LONG)
        waiting = rig.leader(box), Background(lane.wait, marked, soon())
        reason = ConnectionClosedError("enough")
        lane.begin_close(reason)
        lane.begin_close(ConnectionClosedError("again"))
        assert waiting[0].get() is True
        assert (box.failure, waiter.failure, ping.failure) == (reason,) * 3
        for call in (
            lambda: lane.write(b"x", soon()),
            lambda: lane.write(b"x", soon(), 1, may_delegate=True),
            lambda: lane.post(b"x", 1.0),
            lane.check,
        ):
            with pytest.raises(ConnectionClosedError, match="enough"):
                call()
        release.set()
        lane.check(while_closing=True)
        lane.ack(b"s", 1.0)
        assert lane.write(b"last", soon(), 1, while_closing=True) == 1
        lane.post_nowait(b"posted")
        expected = PING + b"PUB r  4\r\n+ACK\r\nPUB s  4\r\n+ACK\r\nlast" + b"posted"
        assert rig.receive(len(expected)) == expected
        rig.server.sendall(msg(sid, subject=b"m"))
        assert waiting[1].get() is True
        assert [frame[0] for frame in marked.drain()] == [b"m"]
        assert lane.state is LaneState.CLOSING
        lane.close(ConnectionClosedError("closed"))
        assert str(marked.failure) == "closed"
        with pytest.raises(ConnectionClosedError, match="closed"):
            lane.write(b"x", soon(), while_closing=True)

    @pytest.mark.parametrize("lost", ["before", "after"])
    def test_publishers_may_finish_on_the_next_connection(self, rig, lost):
        """A connection that is lost before or while the client closes does not end that."""
        lane = rig.lane
        if lost == "before":
            rig.do(lane.detach)
            waiting = Background(lane.write, b"x", soon())
            until(lambda: is_waited_for(lane), "the wait for a connection")
            lane.begin_close(ConnectionClosedError("enough"))
            with pytest.raises(ConnectionClosedError, match="enough"):
                waiting.get()
        else:
            lane.begin_close(ConnectionClosedError("enough"))
            rig.do(lane.detach)
        with pytest.raises(ConnectionLostError):
            lane.write(b"last", soon(), 1, while_closing=True)
        with pytest.raises(DisconnectedError):
            lane.write(b"last", soon(0.0), while_closing=True)
        last = Background(lambda: lane.write(b"last", soon(), while_closing=True))
        until(lambda: is_waited_for(lane), "the wait for a connection")
        rig.connect()
        assert last.get() == 2
        assert rig.receive(4) == b"last"
        assert lane.lost_epoch == 1
        assert lane.state is LaneState.CLOSING
        with pytest.raises(ConnectionClosedError, match="enough"):
            lane.write(b"x", soon())

    def test_stays_closed(self, rig):
        """A connection that is made during a close does not reopen the lane."""
        rig.do(rig.lane.detach)
        rig.lane.close(ConnectionClosedError())
        rig.connect()
        assert rig.lane.state is LaneState.CLOSED
        assert rig.nothing_more()

    def test_each_write_raises_its_own(self, rig):
        """
        Each write to a closed lane raises its own error, because a shared traceback would grow.
        """
        reason = ConnectionClosedError()
        rig.lane.close(reason)
        for call in (rig.lane.write, lambda block, _: rig.lane.post(block, 0.0)):
            with pytest.raises(ConnectionClosedError) as caught:
                call(b"x", soon(0.0))
            assert caught.value is not reason
        assert reason.__traceback__ is None

    def test_the_repr_shows_the_state_of_the_lane(self, rig):
        """The repr shows the state of the lane."""
        rig.listen(Mailbox())
        assert repr(rig.lane) == "<Lane open epoch=1 subscriptions=1 out=0>"


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


@pytest.fixture
def carried(idle):
    """A lane on a WebSocket that has not started yet."""
    pytest.importorskip("aiohttp")
    carried = Carried(idle)
    yield carried
    carried.close()
    assert carried.web.closed


class TestWebSocket:
    """A WebSocket: the lane has a socket, and aiohttp sends and receives."""

    def test_both_ways(self, carried):
        """Blocks reach the server in order, and received bytes are split as on a socket."""
        box = Mailbox()
        sid = carried.rig.listen(box)
        carried.begin()
        carried.lane.write(b"a", soon())
        carried.lane.write(b"b", soon())
        until(lambda: carried.web.sent == b"SUB s  %b\r\nab" % sid, "the blocks")
        carried.rig.do(carried.web.say, msg(sid, b"x") + b"PING\r\n")
        assert carried.lane.wait(box, soon())
        assert box.drain()[0][3] == b"x"
        until(lambda: carried.rig.foreign, "the line of nats-py")
        assert carried.rig.foreign[0][1] == b"PING\r\n"

    def test_writers_of_a_websocket_wait_for_a_slow_server(self, carried):
        """If the server does not read, writers wait, as on a plain socket."""
        carried.begin()
        carried.rig.do(carried.web.may_send.clear)
        for _ in range(3):
            carried.lane.write(b"1" * (OUT_LIMIT // 2), soon())
        until(lambda: carried.lane.outbox.size > OUT_LIMIT, "the full outbox")
        with pytest.raises(DisconnectedError):
            carried.lane.write(b"2", soon(0.01))
        carried.rig.do(carried.web.may_send.set)
        assert carried.lane.write(b"3", soon()) == 1

    def test_rest_is_sent(self, carried):
        """Bytes that were written before the lane closes its end are still sent."""
        carried.begin()
        carried.rig.do(carried.web.may_send.clear)
        carried.lane.write(b"last words", soon())
        carried.rig.do(carried.lane.detach)
        carried.rig.do(carried.web.may_send.set)
        carried.rig.wait_for(carried.socket.close())
        assert carried.web.sent == b"last words"

    @pytest.mark.parametrize("end", ["send", "receive", "text"])
    def test_the_end_of_a_websocket_ends_the_connection(self, carried, end):
        """An error of aiohttp, or the end of the WebSocket, ends the connection."""
        box = Mailbox()
        carried.rig.listen(box)
        if end == "send":
            carried.web.failure = RuntimeError("closed")
        carried.begin()
        if end != "send":
            kind = "TEXT" if end == "text" else "CLOSED"
            carried.rig.do(carried.web.say, b"", kind)
        assert carried.lane.wait(box, soon())
        assert box.take_lost() == 1

    def test_bytes_that_are_not_nats_end_a_websocket(self, carried):
        """Bytes that are not the NATS protocol end the connection as they do on a socket."""
        carried.begin()
        carried.rig.do(carried.web.say, b"MSG 5\r\n")
        until(lambda: carried.lane.state is LaneState.DOWN, "the loss")

    @pytest.mark.parametrize("failure", [OSError("refused"), asyncio.CancelledError()])
    def test_closed_after_a_failed_attempt(self, idle, failure):
        """Closing a WebSocket that could not be opened raises nothing."""
        pytest.importorskip("aiohttp")

        async def attempt():
            async def fail():
                raise failure

            socket = WebSocket(load_aiohttp())
            socket.opening = asyncio.ensure_future(fail())
            await socket.close()
            return socket._session.closed

        assert idle.wait_for(attempt())


@pytest.fixture(scope="session")
def certificate(tmp_path_factory):
    """A self-signed certificate with its key, in one file."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("there is no openssl to make a certificate with")
    folder = tmp_path_factory.mktemp("tls")
    key, found = folder / "key.pem", folder / "both.pem"
    command = f"{openssl} req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"
    command += f" -subj /CN=localhost -addext subjectAltName=DNS:localhost -keyout {key}"
    subprocess.run([*command.split(), "-out", found], check=True, capture_output=True)
    with found.open("a") as file:
        file.write(key.read_text())
    return found


@pytest.fixture
def secure(idle, certificate):
    """A lane that is open over TLS; its server speaks TLS too."""
    server_context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_context.load_cert_chain(certificate)
    client_context = ssl.create_default_context(cafile=certificate)
    ours, theirs = socket.socketpair()
    theirs.settimeout(LONG)
    accepting = Background(lambda: server_context.wrap_socket(theirs, server_side=True))
    secured = client_context.wrap_socket(ours, server_hostname="localhost")
    idle.server = accepting.get()
    idle.server.settimeout(LONG)
    idle._sockets.append(idle.server)
    idle.attach(secured)
    return idle


class TestTls:
    def test_a_waiting_thread_decrypts_by_itself(self, secure):
        """A waiting thread reads by itself, including decrypted bytes in the TLS object."""
        box = Mailbox()
        sid = secure.listen(box)
        secure.stall()
        waiting = secure.leader(box)
        secure.server.sendall(msg(sid, b"one"))
        assert waiting.get() is True
        assert box.drain()[0][3] == b"one"

    @pytest.mark.parametrize("led", [False, True], ids=["loop", "leader"])
    def test_many_records(self, secure, led):
        """Frames of many records arrive whole and in order, whichever thread reads."""
        box = Mailbox()
        sid = secure.listen(box)
        payloads = [os.urandom(size) for size in (0, 1, 16_383, 16_384, 16_385, 400_000, 5)]
        sending = Background(secure.server.sendall, b"".join(msg(sid, one) for one in payloads))
        if led:
            while len(box.frames) < len(payloads):
                assert secure.lane.wait(box, soon())
        else:
            until(lambda: len(box.frames) == len(payloads), "the frames")
        sending.get()
        assert [frame[3] for frame in box.drain()] == payloads

    def test_large_read_of_a_small_record(self, secure, monkeypatch):
        """
        Bytes that a read leaves in the TLS object, where poll does not see them, are read at once.
        """
        monkeypatch.setattr(_reader, "READ_SIZE", 10)
        box = Mailbox()
        sid = secure.listen(box)
        secure.server.sendall(msg(sid, b"x" * 100))
        until(lambda: box.frames, "the frame")
        assert box.drain()[0][3] == b"x" * 100

    def test_large_blocks_are_sent_over_tls_whole_and_in_order(self, secure):
        """Blocks larger than a TLS record and the socket's buffer are sent whole and in order."""
        blocks = [b"%d" % number * 300_000 for number in range(3)]
        for block in blocks:
            secure.lane.write(block, soon())
        assert secure.receive(900_000) == b"".join(blocks)

    def test_both_ways_at_once(self, secure):
        """One thread writes while another reads, and neither disturbs the other."""
        box = Mailbox()
        sid = secure.listen(box)
        waiting = secure.leader(box)
        echoing = Background(secure.receive, 200_000)
        for _ in range(200):
            secure.lane.write(b"y" * 1000, soon())
        assert echoing.get() == b"y" * 200_000
        secure.server.sendall(msg(sid))
        assert waiting.get() is True

    def test_the_end_of_a_tls_connection_is_a_loss(self, secure):
        """The end of a TLS connection is a loss, whether the peer announces it or not."""
        box = Mailbox()
        secure.listen(box)
        waiting = secure.leader(box)
        secure.server.close()
        assert waiting.get() is True
        assert box.take_lost() == 1
