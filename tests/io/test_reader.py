"""
Reads by the thread that waits and by the loop, and interrupts of both.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import threading
import time
import types

import pytest

from helpers.interrupts import interrupted_at, is_locked
from helpers.lacking import needs_epoll
from helpers.lanes import LONG, Background, HookedSocket, msg, soon, until
from helpers.waiting import eventually
from jetsync._api.repeats import repeated
from jetsync._base.turn import waiting
from jetsync._io import gate as _gate
from jetsync._io import reader as _reader
from jetsync._io.mailbox import Mailbox
from jetsync._io.outbox import (
    OUT_LIMIT,
    PING,
    LaneState,
)
from jetsync._io.replies import ReplyRouter, Waiter
from jetsync._io.websocket import WebSocket, load_aiohttp
from jetsync.errors import (
    CallInSignalHandlerError,
    ConnectionClosedError,
    ConnectionLostError,
    DisconnectedError,
)


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
        until(lambda: not rig.do(lambda: rig.lane.outbox.tick.due), "the last tick")
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
            lambda outbox: outbox.post(b"x", LONG),
            lambda outbox: outbox.post_nowait(b"x"),
            lambda outbox: outbox.ack(b"x", LONG),
            lambda outbox: outbox.flush_posted(),
        ],
        ids=["write", "gone", "post", "post_nowait", "ack", "flush"],
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
            rig.lane.outbox.collected.append((epoch, 0.0, b"other"))
            finished = interrupted_at(step, attempt)
            # The loop may have it for a moment.
            eventually(lambda: not is_locked(rig.lane.outbox.write_lock))
            eventually(lambda: not rig.lane.outbox._sending)
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
            if errors:
                return sock.send(block)
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
