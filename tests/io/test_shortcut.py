"""
A request that is sent and answered in one compiled call, and what that call leaves to Python.
"""

from __future__ import annotations

import contextlib
import signal
import socket
import threading
import time
from types import SimpleNamespace

import pytest

from helpers.lacking import needs_epoll
from helpers.lanes import LONG, Background, HookedSocket, msg, soon, until
from helpers.variants import COMPILED, NOT_COMPILED
from helpers.waiting import eventually
from jetsync._io.mailbox import Mailbox
from jetsync._io.replies import ReplyRouter, Waiter
from jetsync._io.shortcut import shortcut
from jetsync._proto import frames
from jetsync.errors import ConnectionClosedError

pytestmark = [pytest.mark.skipif(not COMPILED, reason=NOT_COMPILED), needs_epoll]

PREFIX = b"_INBOX.p"


class Asked(Waiter):
    """A request without a session."""

    __slots__ = ("address",)


class Asking:
    """A lane with a router, and requests that go through the compiled call."""

    def __init__(self, rig):
        self.rig, self.lane, self.router = rig, rig.lane, ReplyRouter(PREFIX)
        self.sid = rig.listen(self.router)
        self.call = shortcut(self.lane, self.router, self.sid)
        self.warm_up()

    def warm_up(self):
        """Have the loop not read, for as long as the test lasts."""
        self.lane.outbox._on_tick = lambda: True
        deadline = soon()
        while self.rig.is_watched:
            # A thread reads only if its time is not over before.
            assert not self.lane.wait(Mailbox(), soon(0.001))
            assert not deadline.expired()

    def request(self):
        asked = Asked(b"a")
        asked.address = self.router.register(asked)
        return asked

    def ask(self, asked, deadline=None, *, epoch=None):
        """Make the call, and return whether it has sent the request."""
        self.call(asked, self.frame(asked), deadline or soon(), epoch)
        return bool(asked.epoch)

    def frame(self, asked):
        return frames.pub(b"a", asked.address, b"payload")

    def answer(self, asked, payload=b"5"):
        return msg(self.sid, payload, subject=asked.address)


@pytest.fixture
def asking(rig):
    """A lane whose loop does not read."""
    return Asking(rig)


CLOSED = ConnectionClosedError("closed")

STATES = {
    "the loop reads": lambda lane, router, asked: lane.reader._gate.watch(),
    "an ack waits": lambda lane, router, asked: lane.outbox.acks.append(b"r"),
    "a block waits": lambda lane, router, asked: lane.outbox.collected.append((1, 0.0, b"PING")),
    "the socket is full": lambda lane, router, asked: vars(lane.outbox).update(size=1),
    "another request waits": lambda lane, router, asked: lane.reader._requests.add(router),
    "the reply subject is refused": lambda lane, router, asked: vars(router).update(refusal=CLOSED),
    "the request has failed": lambda lane, router, asked: asked.fail(CLOSED),
    "all requests have failed": lambda lane, router, asked: router.fail(CLOSED),
    "there is no connection": lambda lane, router, asked: lane.outbox.freeze(),
    "the lane was closed": lambda lane, router, asked: lane.close(CLOSED),
    "the client closes": lambda lane, router, asked: lane.begin_close(CLOSED),
    "the server sent invalid bytes": lambda lane, router, asked: vars(lane).update(fault=CLOSED),
    "the connection has ended": lambda lane, router, asked: vars(lane.reader._gate).update(over=1),
    "a frame is incomplete": lambda lane, router, asked: _add_rest(lane),
    "the socket has a class of its own": lambda lane, router, asked: _hide(lane),
}
"""What prevents the call."""


def _add_rest(lane):
    lane.reader._gate.splitter.feed(b"MSG a", [], [])


def _hide(lane):
    lane.reader._gate.fds = None


class TestAnswered:
    @pytest.mark.parametrize(
        ("block", "payload"),
        [(None, b"hello"), (b"NATS/1.0\r\n\r\n", b""), (b"NATS/1.0\r\n\r\n", b"x")],
    )
    def test_one_call(self, asking, rig, block, payload):
        """The call sends the request, takes its answer, and leaves nothing behind."""
        rig.stall()
        asked = asking.request()
        if block is None:
            rig.server.sendall(asking.answer(asked, payload))
        else:
            sizes = b"%d %d" % (len(block), len(block + payload))
            line = b"HMSG %b %b %b\r\n" % (asked.address, asking.sid, sizes)
            rig.server.sendall(line + block + payload + b"\r\n")
        before = asking.lane.bytes_in
        assert asking.ask(asked)
        assert asked.ready
        assert asked.reply == (asked.address, b"", block, payload)
        frame = asking.frame(asked)
        assert rig.receive(len(frame)) == frame
        assert rig.nothing_more()
        assert asking.lane.outbox.last_request == asked.address
        assert asking.lane.outbox.bytes_out == len(frame)
        assert asking.lane.bytes_in > before
        assert asking.router.pending() == 0
        assert not asking.lane.reader._requests
        assert not rig.is_led

    def test_an_answer_that_comes_later(self, asking, rig):
        """An answer that is not there yet ends the wait of the call."""
        asked = asking.request()

        def answer():
            rig.receive(len(asking.frame(asked)))
            rig.server.sendall(asking.answer(asked))

        server = Background(answer)
        assert asking.ask(asked)
        server.get()
        assert asked.ready or asking.lane.wait(asked, soon())
        assert asked.reply[3] == b"5"


class TestLeftToPython:
    @pytest.mark.parametrize("state", STATES)
    def test_nothing_is_done(self, asking, rig, state):
        """The call does nothing if anything else uses the connection, or could go wrong."""
        rig.stall()
        asked = asking.request()
        STATES[state](asking.lane, asking.router, asked)
        assert not asking.ask(asked)
        assert rig.nothing_more()
        assert asked not in asking.lane.reader._requests
        assert not rig.is_led

    @pytest.mark.parametrize("lock", ["read", "write"])
    def test_a_lock_that_another_thread_has(self, asking, rig, lock):
        """The call does not wait for another thread that reads or writes."""
        lane, asked = asking.lane, asking.request()
        held = Holding(lane.outbox.write_lock if lock == "write" else lane.reader._read_lock)
        assert not asking.ask(asked)
        held.end()
        assert rig.nothing_more()
        assert not rig.is_led

    def test_another_connection(self, asking, rig):
        """A request for one connection is sent on this one only."""
        epoch = asking.lane.outbox.epoch
        assert not asking.ask(asking.request(), epoch=epoch + 1)
        assert rig.nothing_more()
        asked = asking.request()
        assert asking.ask(asked, epoch=epoch)
        assert asked.epoch == epoch

    def test_an_interrupted_write(self, asking, rig):
        """A call that interrupts a write of its own thread does nothing, and keeps the lock."""
        with asking.lane.outbox.write_lock:
            assert not asking.ask(asking.request())
            assert asking.lane.outbox.writes_here()
        assert rig.nothing_more()

    def test_a_large_request(self, asking, rig):
        """A request that may not fit into the socket at once is left to Python."""
        asked = asking.request()
        asking.call(asked, frames.pub(b"a", asked.address, b"x" * 65_536), soon(), None)
        assert not asked.epoch
        assert rig.nothing_more()

    def test_a_deadline_that_is_near(self, asking, rig):
        """A request whose time may be over before the wait of the call is left to Python."""
        assert not asking.ask(asking.request(), soon(0.009))
        assert rig.nothing_more()

    @pytest.mark.parametrize("early", ["half", "other", "line", "twice", "sid", "large"])
    def test_what_else_arrives(self, asking, rig, early):
        """If anything but the answer arrives, the call leaves all of it in the socket."""
        asked, box = asking.request(), Mailbox()
        other = rig.listen(box)
        answer = asking.answer(asked)
        rest = b""
        if early == "half":
            answer, rest = answer[:-3], answer[-3:]
        elif early == "other":
            answer = msg(other, b"6") + answer
        elif early == "line":
            answer += b"PING\r\n"
        elif early == "twice":
            answer += answer
        elif early == "sid":
            # Another subscription of the client that includes the reply subject.
            answer = msg(other, b"6", subject=asked.address)
            rest = asking.answer(asked)
        else:
            answer = asking.answer(asked, b"x" * 9000)
        rig.server.sendall(answer)
        assert asking.ask(asked)
        assert not asked.ready
        if rest:
            rig.server.sendall(rest)
        assert asking.lane.wait(asked, soon())
        assert asked.reply[3] == (b"x" * 9000 if early == "large" else b"5")
        assert len(box.frames) == (early in {"other", "sid"})
        if early == "line":
            until(lambda: rig.foreign, "the line")

    def test_a_full_socket(self, idle):
        """If the socket takes only a part of the request, the loop sends the rest."""
        idle.connect(buffer=4096)
        asking = Asking(idle)
        asked = asking.request()
        block = frames.pub(b"a", asked.address, b"x" * 60_000)
        idle.server.sendall(asking.answer(asked))
        asking.call(asked, block, soon(), None)
        assert asked.epoch
        # A signal handler that runs meanwhile may fork, and the child must not take the answer.
        assert not asked.ready
        assert idle.receive(len(block)) == block
        assert asking.lane.wait(asked, soon())

    def test_ctrl_c_while_the_rest_is_queued(self, idle, monkeypatch):
        """If the rest of a request may not be sent, the connection ends, and nothing follows."""

        def interrupted(*_):
            raise KeyboardInterrupt

        idle.connect(buffer=4096)
        asking = Asking(idle)
        asked = asking.request()
        with monkeypatch.context() as patch:
            patch.setattr(asking.lane.outbox, "_queue", interrupted)
            call = shortcut(asking.lane, asking.router, asking.sid)
        with pytest.raises(KeyboardInterrupt):
            call(asked, frames.pub(b"a", asked.address, b"x" * 60_000), soon(), None)
        assert not asking.lane.outbox.writes_here()
        idle.server.settimeout(LONG)
        while idle.server.recv(65_536):
            pass

    def test_a_socket_that_takes_nothing(self, idle):
        """If the socket is full, nothing is sent, and Python sends it later."""
        idle.connect(buffer=4096)
        asking = Asking(idle)
        sock = asking.lane.outbox.sock
        with contextlib.suppress(BlockingIOError):
            while True:
                sock.send(b"x" * 100)
        assert not asking.ask(asking.request())

    def test_a_lost_connection(self, asking, rig):
        """A request whose connection ends is sent, and Python finds the end."""
        asked = asking.request()
        server = Background(lambda: (rig.receive(5), rig.server.close()))
        assert asking.ask(asked)
        server.get()
        assert not asked.ready or asked.is_lost
        assert asking.lane.wait(asked, soon())
        assert asked.is_lost

    def test_a_broken_connection(self, asking, rig):
        """If the socket is broken, nothing is sent, as far as the call knows."""
        rig.auto_detach = False
        asking.lane.outbox.sock.shutdown(socket.SHUT_RDWR)
        assert not asking.ask(asking.request())

    def test_a_connection_that_ends_during_the_wait(self, asking, rig):
        """Once the connection has ended, nothing more is taken from its descriptor."""
        asked, gate = asking.request(), asking.lane.reader._gate

        def end():
            rig.receive(len(asking.frame(asked)))
            # The descriptor may belong to another socket from now on.
            gate.over = True
            rig.server.sendall(asking.answer(asked))

        server = Background(end)
        assert asking.ask(asked)
        server.get()
        assert not asked.ready
        # The loop closes the gate when no thread reads. It may have been waiting for that.
        eventually(lambda: gate.closed)

    def test_a_thread_that_is_woken(self, asking):
        """A wake-up ends the wait of the call, also if it came before."""
        asking.lane.reader.wake_reader()
        seconds = []
        for _ in range(20):
            asked, begin = asking.request(), time.monotonic()
            assert asking.ask(asked)
            seconds.append(time.monotonic() - begin)
        # Without it, each wait takes 10 ms.
        assert min(seconds) < 0.005

    def test_a_close_in_another_thread(self, asking, rig):
        """A client that closes ends the wait at once, also inside of the call."""
        asked = asking.request()
        closing = Background(
            lambda: (rig.receive(5), asking.lane.begin_close(ConnectionClosedError("closed")))
        )
        assert asking.ask(asked)
        closing.get()
        assert asked.ready or asking.lane.wait(asked, soon())
        assert isinstance(asked.failure, ConnectionClosedError)


class Holding:
    """A thread that holds a lock."""

    def __init__(self, lock):
        self._held, self._release = threading.Event(), threading.Event()
        self._thread = Background(self._hold, lock)
        assert self._held.wait(LONG)

    def _hold(self, lock):
        with lock:
            self._held.set()
            assert self._release.wait(LONG)

    def end(self):
        self._release.set()
        self._thread.get()


class TestOthers:
    def test_a_thread_that_waits_for_something_else(self, asking, rig):
        """A thread that began to wait during the call gets its frames afterwards."""
        box = Mailbox()
        sid = rig.listen(box)
        asked, answered = asking.request(), []

        def serve():
            rig.receive(len(asking.frame(asked)))
            answered.append(Background(asking.lane.wait, box, soon()))
            until(lambda: box in asking.lane.reader._followers or not rig.is_led, "the follower")
            rig.server.sendall(asking.answer(asked))

        server = Background(serve)
        assert asking.ask(asked)
        server.get()
        assert asked.ready or asking.lane.wait(asked, soon())
        rig.server.sendall(msg(sid, b"6"))
        assert answered[0].get()
        assert box.drain()[0][3] == b"6"

    def test_a_thread_that_finds_the_lock_taken(self, asking, rig):
        """If the call does nothing, a thread that wanted to read meanwhile is not forgotten."""
        asking.lane.outbox.acks.append(b"r")
        # As a thread that could not take the read lock, which the call holds during its checks.
        asking.lane.reader._followers.add(Mailbox())
        assert not asking.ask(asking.request())
        assert rig.is_watched

    def test_the_loop_keeps_asleep(self, asking, rig):
        """The next tick does not have the loop read, because a thread has just read."""
        asked = asking.request()
        rig.server.sendall(asking.answer(asked))
        assert asking.lane.outbox.tick.due
        asking.lane.reader._gate.led = False
        assert asking.ask(asked)
        assert asking.lane.reader.on_tick()
        assert not rig.is_watched

    def test_the_loop_reads_again(self, asking, rig):
        """If no thread reads any more after the call, the loop does."""
        box = Mailbox()
        sid = rig.listen(box)
        asked = asking.request()
        rig.server.sendall(asking.answer(asked))
        assert asking.ask(asked)
        assert asked.ready
        asking.lane.outbox._on_tick = asking.lane.reader.on_tick
        eventually(lambda: rig.is_watched)
        rig.server.sendall(msg(sid))
        until(lambda: box.frames, "the frame")

    def test_ctrl_c(self, asking, rig):
        """A signal ends the wait of the call, so that its handler runs soon."""
        asked, main = asking.request(), threading.get_ident()
        received = []

        def handle(number, frame):
            raise KeyboardInterrupt

        def ask_and_wait(striking):
            asking.ask(asked)
            striking.get()

        def strike():
            received.append(rig.receive(len(asking.frame(asked))))
            signal.pthread_kill(main, signal.SIGINT)

        before = signal.signal(signal.SIGINT, handle)
        try:
            striking = Background(strike)
            with pytest.raises(KeyboardInterrupt):
                ask_and_wait(striking)
        finally:
            signal.signal(signal.SIGINT, before)
        assert not rig.is_led
        assert not asking.lane.reader._requests
        rig.server.sendall(asking.answer(asked))
        assert asked.ready or asking.lane.wait(asked, soon())

    def test_an_interrupt_at_its_end(self, asking, rig, monkeypatch):
        """If Ctrl-C strikes while the call lets the loop read again, the loop still does."""
        stop, calls, asked = asking.lane.reader._stop_waiting, [], asking.request()

        def interrupted(*arguments):
            # The thread that began to wait is served already: a signal handler may wait for it.
            calls.append(rig.is_watched)
            if len(calls) == 1:
                raise KeyboardInterrupt
            stop(*arguments)

        with monkeypatch.context() as patch:
            patch.setattr(asking.lane.reader, "_stop_waiting", interrupted)
            # No tick is due, so that the call has to ask for one.
            patch.setattr(asking.lane.outbox, "tick", SimpleNamespace(due=False))
            call = shortcut(asking.lane, asking.router, asking.sid)
        rig.server.sendall(asking.answer(asked))
        # Another thread that waits.
        asking.lane.reader._followers.add(Mailbox())
        with pytest.raises(KeyboardInterrupt):
            call(asked, asking.frame(asked), soon(), None)
        assert calls == [True, True]


def test_wrong_arguments(asking):
    """Wrong arguments are errors, and no lock stays held."""
    with pytest.raises(TypeError, match=r"asker\(\) takes 6 arguments, not 1"):
        COMPILED["asker"](None)
    with pytest.raises(AttributeError):
        COMPILED["asker"](*[None] * 6)
    with pytest.raises(TypeError, match=r"ask\(\) takes 4 arguments"):
        asking.call()
    for wrong in [
        (None, b"", soon(), None),
        (asking.request(), "", soon(), None),
        (asking.request(), b"", None, None),
    ]:
        with pytest.raises((TypeError, AttributeError)):
            asking.call(*wrong)
        assert not asking.rig.is_led
        assert not asking.lane.reader._requests
        asking.warm_up()


def test_a_socket_that_only_python_reads(idle):
    """The descriptors of a socket of another class, as that of TLS, are not used."""
    ours, idle.server = socket.socketpair()
    idle._sockets.append(idle.server)
    idle.attach(HookedSocket(ours, ours.send))
    assert idle.lane.reader._gate.fds is None
    assert not Asking(idle).ask(Asking(idle).request())
    ours.close()
