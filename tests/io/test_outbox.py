"""
What is sent: writes, delegated writes, posts and acks.
"""

from __future__ import annotations

import collections
import contextvars
import functools
import os
import socket
import time
import weakref

import pytest

from helpers.lanes import LONG, Background, HookedSocket, is_waited_for, soon, until
from jetsync._io.lane import OVERSIZED
from jetsync._io.mailbox import Mailbox
from jetsync._io.outbox import (
    ACK_LIMIT,
    JOIN_LIMIT,
    OUT_LIMIT,
    POST_LIMIT,
    SENDS,
    LaneState,
)
from jetsync._io.probe import Probe
from jetsync.errors import (
    ConnectionClosedError,
    ConnectionLostError,
    DisconnectedError,
    ForkedProcessError,
)
from jetsync.options import ConnectOptions


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
        assert idle.lane.outbox.size > 0
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
        with pytest.raises(DisconnectedError, match=r"does not accept more data within 0\.01 s"):
            idle.lane.outbox.wait_open(soon(0.01))
        assert not idle.lane.outbox._changed._signals
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
        with pytest.raises(DisconnectedError):
            idle.lane.outbox.wait_open(soon(0.01))
        idle.connect()
        idle.lane.write(b"late", soon())
        assert idle.receive(4) == b"late"

    def test_a_write_that_does_not_wait_in_the_loop_thread(self, idle):
        """Without a connection or room, it raises DisconnectedError as in any other thread."""
        with pytest.raises(DisconnectedError):
            idle.do(idle.lane.write, b"x", soon(0.0))
        idle.connect(buffer=8192)
        idle.lane.write(b"1" * (OUT_LIMIT + (1 << 20)), soon())
        with pytest.raises(DisconnectedError, match="does not accept more data"):
            idle.do(idle.lane.write, b"x", soon(0.0))

    def test_a_probe_without_room_for_its_ping(self, idle):
        """A server that takes no more data and sends nothing counts as gone, too."""
        idle.connect(buffer=8192)
        idle.lane.write(b"1" * (OUT_LIMIT + (1 << 20)), soon())
        options = ConnectOptions(ping_interval=0.02, max_outstanding_pings=2)
        Probe(options).begin(idle.lane, None)
        until(lambda: idle.lane.state is LaneState.DOWN, "the end of the connection")

    def test_down_until_the_replay(self, idle):
        """Until the subscriptions are written again, nothing is sent."""
        idle.connect(opened=False)
        waiting = Background(idle.lane.write, b"ours", soon())
        until(lambda: is_waited_for(idle.lane), "the wait for a connection")
        idle.do(idle.lane.outbox.flush_posted)
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
            rig.lane.write(b"x", soon(0.0), 1)
        if how == "dropped":
            assert rig.receive_all() == b""
        elif how == "replaced":
            assert rig.nothing_more()

    def test_a_publisher_writes_while_the_client_closes(self, rig):
        """While the client closes, only the blocks of publishers that finish are sent."""
        rig.lane.begin_close(ConnectionClosedError("enough"))
        rig.lane.write(b"one", soon(), 1, while_closing=True)
        with pytest.raises(ConnectionClosedError, match="enough"):
            rig.lane.write(b"two", soon(), 1)
        rig.lane.close(ConnectionClosedError("closed"))
        with pytest.raises(ConnectionClosedError, match="closed"):
            rig.lane.write(b"two", soon(), 1, while_closing=True)
        assert rig.receive(3) == b"one"
        assert rig.nothing_more()


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
        blocks = [b"%3d" % number for number in range(3 * SENDS)]
        self.delegate(rig, monkeypatch, blocks)
        assert rig.receive(1 + 9 * SENDS) == b"0" + b"".join(blocks)

    def test_the_wait_after_a_delegated_request_needs_no_lock(self, rig, monkeypatch):
        """A thread that has delegated its request can wait while the other one still sends."""
        sock, left = rig.lane.outbox.sock, []

        def request():
            rig.lane.write(b"1", soon(), may_delegate=True)
            return rig.lane.wait(Mailbox(), soon(0))

        def send(data):
            if not left:
                left.append(Background(request).get())
            return sock.send(data)

        rig.stall()
        hooked = HookedSocket(sock, send)
        rig._sockets.append(hooked)
        monkeypatch.setattr(rig.lane.outbox, "sock", hooked)
        rig.lane.write(b"0", soon())
        assert rig.receive(2) == b"01"
        assert left == [False]

    def test_ctrl_c_while_sending_announces_the_loss(self, rig, monkeypatch):
        """If Ctrl-C interrupts the thread that sends, the loss of the connection is announced."""
        with pytest.raises(KeyboardInterrupt):
            self.delegate(rig, monkeypatch, [b"1"], end=KeyboardInterrupt)
        monkeypatch.undo()
        assert rig.receive_all() == b""
        until(lambda: rig.lane.state is LaneState.DOWN, "the loss")
        rig.connect()
        rig.lane.write(b"new", soon(), may_delegate=True)
        assert rig.receive(3) == b"new"

    def test_a_block_that_comes_after_the_last_look(self, rig, monkeypatch):
        """A thread that delegates a block after the sending thread has looked sends it itself."""
        outbox, before, late = rig.lane.outbox, rig.lane.outbox.bytes_out, []

        class Looked(collections.deque):
            def __bool__(self):
                found = len(self) > 0
                if outbox.bytes_out > before:
                    late.append(Background(outbox._delegate, b"1", None).get())
                return found

        monkeypatch.setattr(outbox, "collected", Looked())
        rig.lane.write(b"0", soon())
        assert late == [0]
        assert not len(outbox.collected)

    def test_earlier_connection(self, rig):
        """A block that was delegated is not sent on the next connection."""
        rig.do(rig.lane.detach)
        # By a thread that has seen the last connection.
        rig.lane.outbox.collected.append((1, 0.0, b"old"))
        rig.connect()
        assert rig.lane.write(b"new", soon(), may_delegate=True) == 2
        assert rig.receive(3) == b"new"

    def test_a_lost_connection_frees_its_blocks(self, rig):
        """The memory of a block that was delegated may change once its connection is lost."""
        data = bytearray(b"old")
        rig.lane.outbox.collected.append((1, 0.0, memoryview(data)))
        rig.do(rig.lane.detach)
        data += b"er"


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

    def test_a_post_without_room_until_the_deadline(self, idle):
        """A post waits for room in the socket, like a write."""
        idle.connect(buffer=8192)
        idle.lane.write(bytes(OUT_LIMIT + (1 << 20)), soon())
        with pytest.raises(DisconnectedError, match="does not accept more data"):
            idle.lane.post(b"x", 0.01)
        assert not idle.lane.outbox.collected

    def test_beyond_the_limit_a_post_waits_for_the_thread_that_sends(self, rig, monkeypatch):
        """Posting threads wait while another thread is sending, and collect no more blocks."""
        outbox, writes = rig.lane.outbox, []

        def write(*arguments, **options):
            writes.append(len(outbox.collected))
            return type(outbox).write(outbox, *arguments, **options)

        rig.stall()
        monkeypatch.setattr(outbox, "write", write)
        with outbox.write_lock:
            assert Background(outbox.post, b"1" * (POST_LIMIT - 1), LONG).get() == 1
            waiting = Background(outbox.post, b"2", LONG)
            until(lambda: writes, "the write")
            assert waiting.running
        assert waiting.get() == 1
        assert writes == [1]
        assert rig.receive(POST_LIMIT) == b"1" * (POST_LIMIT - 1) + b"2"

    def test_posts_after_a_loss_are_collected_again(self, rig):
        """Blocks that were lost with their connection do not count on the next one."""

        def post_and_lose():
            rig.lane.post(b"1" * (POST_LIMIT - 1), 1.0)
            rig.lane.detach()

        rig.do(post_and_lose)
        rig.connect()
        rig.stall()
        rig.lane.post(b"2", 1.0)
        assert rig.nothing_more()

    def test_a_wrong_size_is_corrected(self, rig):
        """If two threads left a wrong size behind, posts are collected again after one write."""
        rig.stall()
        rig.lane.outbox._posted_size = POST_LIMIT
        rig.lane.post(b"1", 1.0)
        assert rig.receive(1) == b"1"
        rig.lane.post(b"2", 1.0)
        assert rig.nothing_more()

    def test_a_post_that_the_client_overtakes_when_it_closes(self, rig, monkeypatch):
        """If the client closes while a thread posts a block, it is sent, or the call raises."""
        outbox = rig.lane.outbox
        post = outbox._post

        def late(*arguments):
            rig.do(rig.lane.close, ConnectionClosedError())
            post(*arguments)

        monkeypatch.setattr(outbox, "_post", late)
        with pytest.raises(ConnectionClosedError):
            rig.lane.post(b"PUB a  1\r\nx\r\n", LONG)
        assert not outbox.collected

    def test_a_post_that_was_sent_before_the_client_closes(self, rig, monkeypatch):
        """If another thread sends the block before the client closes, it is not sent again."""
        outbox = rig.lane.outbox
        post = outbox._post

        def sent_early(*arguments):
            post(*arguments)
            outbox.flush_posted()
            rig.lane.begin_close(ConnectionClosedError())

        monkeypatch.setattr(outbox, "_post", sent_early)
        assert rig.lane.post(b"x", LONG, while_closing=True) == rig.lane.epoch
        assert rig.receive(1) == b"x"
        assert rig.nothing_more()

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

    def test_a_block_that_is_not_urgent(self, rig):
        """A block that is not urgent is sent at a tick, or in front of the next block."""
        rig.lane.post_nowait(b"one", is_urgent=False)
        assert rig.receive(3) == b"one"
        rig.stall()
        rig.lane.post_nowait(b"two", is_urgent=False)
        assert not rig.lane.outbox.flush_soon.due
        assert rig.nothing_more()
        rig.lane.write(b"block", soon())
        assert rig.receive(8) == b"twoblock"

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

    @pytest.mark.parametrize("lost", [True, False], ids=["before", "after"])
    def test_a_kept_block_is_sent_on_the_next_connection(self, rig, lost):
        """A block that may be kept follows the subscriptions, also if it was posted before."""

        def post_and_lose():
            if lost:
                rig.lane.detach()
            rig.lane.post_nowait(b"kept", keep=LONG)
            rig.lane.post_nowait(b"late", keep=1e-9)
            rig.lane.post_nowait(b"never")
            rig.lane.detach()

        rig.listen(Mailbox(b"a"))
        rig.do(post_and_lose)
        rig.connect()
        sub = rig.lane.subscriptions.sub_lines()
        assert rig.receive(len(sub) + 4) == sub + b"kept"
        assert rig.nothing_more()

    def test_kept_blocks_stay_in_order(self, rig):
        """A block that is posted while the connection is dropped follows those before it."""
        posted = []

        class Taken(collections.deque):
            def popleft(self):
                if not posted:
                    # Another thread posts a block, while those before it are being taken.
                    posted.append(b"two")
                    rig.lane.post_nowait(b"two", keep=LONG)
                return super().popleft()

        def post_and_lose():
            rig.lane.post_nowait(b"one", keep=LONG)
            rig.lane.outbox.collected = Taken(rig.lane.outbox.collected)
            rig.lane.detach()

        rig.do(post_and_lose)
        rig.connect()
        assert rig.receive(6) == b"onetwo"

    def test_a_limit_for_kept_blocks(self, idle):
        """Without a connection, blocks are kept up to a limit, and the rest is dropped."""
        for _ in range(3):
            idle.lane.post_nowait(b"1" * (OUT_LIMIT // 2), keep=LONG)
        idle.connect()
        assert idle.receive(OUT_LIMIT) == b"1" * OUT_LIMIT
        assert idle.nothing_more()

    def test_a_closed_lane_keeps_no_blocks(self, idle):
        """Once the lane is closed, it holds no blocks for a connection that never comes."""
        idle.lane.post_nowait(b"1", keep=LONG)
        idle.lane.close(ConnectionClosedError())
        assert not idle.lane.outbox.collected

    def test_a_forked_child_holds_no_blocks_of_its_parent(self, idle):
        """A forked child drops the blocks that its parent sends."""
        idle.lane.post_nowait(b"1", keep=LONG)
        idle.lane.after_fork()
        assert not idle.lane.outbox.collected
        with pytest.raises(ForkedProcessError):
            idle.lane.post(b"2", LONG)

    def test_posts_in_a_signal_handler(self, rig):
        """In a signal handler that interrupted a write of its thread, posts never wait."""
        rig.stall()
        with rig.lane.outbox.write_lock:
            rig.lane.post(b"one", LONG)
            rig.lane.post_nowait(b"two")
            rig.lane.post(bytes(POST_LIMIT), LONG)
        assert rig.lane.write(b"three", soon()) == 1
        assert rig.receive(11 + POST_LIMIT) == b"onetwo" + bytes(POST_LIMIT) + b"three"

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
            until(lambda: not rig.lane.outbox.tick.due, "the end of the timer")

    def test_acks_are_sent_before_the_block_of_the_next_write(self, rig):
        """Nothing is sent until the next write, which sends all acks before its block."""
        release = rig.stall()
        rig.lane.ack(b"1", 1.0)
        rig.lane.ack(b"2", 1.0)
        assert rig.nothing_more()
        rig.lane.write(b"block", soon())
        assert rig.receive(len(ONE + TWO) + 5) == ONE + TWO + b"block"
        release.set()

    def test_a_post_is_sent_before_a_later_ack(self, rig):
        """
        A message that a handler posts is sent before the ack that follows.

        If the connection is lost in between, the server delivers the acknowledged message again.
        """
        rig.stall()
        rig.lane.post(b"post", 1.0)
        rig.lane.ack(b"1", 1.0)
        rig.lane.write(b"block", soon())
        expected = b"post" + ONE + b"block"
        assert rig.receive(len(expected)) == expected

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
