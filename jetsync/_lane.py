"""
The lane: jetsync's own way in and out of the one socket that nats-py keeps connected.

In. Whoever reads the socket cuts it into frames and puts those of jetsync's subscriptions into
their mailboxes; the rest is nats-py's. Normally the loop thread reads. A thread that waits for a
frame takes the reading over for as long as it waits (:meth:`Lane.wait`): its answer then needs no
thread switch at all, which is what makes a blocking call here cheaper than an awaited one
elsewhere. One thread reads at a time, guarded by the read lock; the loop is kept from watching
meanwhile by disarming its epoll entry.

Out. Any thread writes a block of ready-made bytes under the write lock, straight to the socket.
What the socket does not take is left to the loop. That rest is bounded: a writer past the bound
waits, within its deadline. :meth:`Lane.post` collects small writes that nobody waits for (acks) and
sends them together.

Guarantees
- A block is written whole or, when the connection dies, not continued on the next one.
- Connections are numbered by *epoch*. A write returns the epoch it went out on; when that one is
  lost, every receiver is told, and waits for its answer end at once.
- After a reconnect all subscriptions are written again before any other block.
- No lock is held while a user's code runs, and none is waited for across a fork.

Locks are taken in this order: read lock, write lock.
"""

from __future__ import annotations

import contextlib
import enum
import itertools
import socket
import ssl
import threading
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from jetsync._deadline import Deadline
from jetsync._gate import ReadGate
from jetsync._proto import frames
from jetsync.errors import ConnectionClosedError, DisconnectedError

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable

    from jetsync._handoff import Mailbox, Receiver, ReplyRouter

READ_SIZE: Final = 1 << 17
"""
Bytes asked for in one read: 128 KiB, measured with 128-byte messages. Smaller costs more wake-ups,
larger makes the allocator map and unmap memory on each read.
"""

OUT_LIMIT: Final = 4 << 20
"""Bytes that may wait for the socket before a writer has to: 4 MiB."""

POST_LIMIT: Final = 32 << 10
"""Bytes of posted writes (acks) that are collected at most before they are sent: 32 KiB."""

_WOULD_BLOCK: Final = (
    BlockingIOError,
    InterruptedError,
    ssl.SSLWantReadError,
    ssl.SSLWantWriteError,
)


class LaneState(enum.Enum):
    """Whether jetsync's own blocks may be written."""

    DOWN = "down"
    """No connection, or its handshake and the replay of the subscriptions are not over."""
    OPEN = "open"
    CLOSED = "closed"
    """For good."""


class Lane:
    """The socket of one connection as all threads see it; survives reconnects."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, on_foreign: Callable[[bytes], None]
    ) -> None:
        self._loop = loop
        self._on_foreign = on_foreign
        self._write_lock = threading.Lock()
        self._changed = threading.Condition(self._write_lock)
        """The state changed or the out-buffer got room."""
        self._read_lock = threading.Lock()
        self._boxes: dict[bytes, Any] = {}
        self._subscriptions: dict[bytes, bytes] = {}
        """Subscription id -> the ``SUB`` line to write again after a reconnect."""
        self._splitter = frames.Splitter(self._boxes)
        self._sids = itertools.count(frames.FIRST_LANE_SID)
        self._out: deque[memoryview | bytes] = deque()
        self._out_size = 0
        self._posted: list[bytes] = []
        self._posted_size = 0
        self._post_scheduled = False
        self._writing = False
        """Whether the loop watches the socket for room."""
        self._foreign: deque[bytes] = deque()
        """What is nats-py's, in order, until the loop thread hands it over."""
        self._loop_thread = 0
        self._sock: socket.socket | None = None
        self._stream: Callable[[bytes], Awaitable[None]] | None = None
        """How to send where there is no socket of ours: a WebSocket."""
        self._gate: ReadGate | None = None
        self.eof = False
        self.state = LaneState.DOWN
        self.epoch = 0
        self.lost_epoch = 0
        self.reason: Exception | None = None
        """Why the lane is closed."""
        self.bytes_in = self.bytes_out = 0

    def __repr__(self) -> str:
        return (
            f"<Lane {self.state.value} epoch={self.epoch} subscriptions={len(self._subscriptions)} "
            f"out={self._out_size}>"
        )

    # Subscriptions.

    def new_sid(self) -> bytes:
        """Return a subscription id that no other subscription of this lane has; any thread."""
        return b"%d" % next(self._sids)

    def listen(
        self, sid: bytes, box: Mailbox | ReplyRouter, subject: bytes, queue: bytes = b""
    ) -> bytes:
        """
        Route the frames of *sid* to *box* and return the ``SUB`` line to write.

        From here on the line is written again after each reconnect. Any thread.
        """
        line = frames.sub(subject, sid, queue)
        self._boxes[sid] = box
        self._subscriptions[sid] = line
        if self.reason is not None:
            box.fail(self.reason)
        return line

    def leave(self, sid: bytes, *, linger: float = 0.0) -> None:
        """
        Unsubscribe. Never waits and never fails: without a connection there is nothing to undo.

        Frames that are still on their way reach the mailbox for *linger* seconds more; after that
        they are counted as strays. Any thread.
        """
        if self._subscriptions.pop(sid, None) is None:
            return
        self.answer(frames.unsub(sid))
        if linger and self.state is LaneState.OPEN:
            with contextlib.suppress(RuntimeError):  # The loop is closed: nothing comes any more.
                self._loop.call_soon_threadsafe(self._loop.call_later, linger, self.drop, sid)
        else:
            self.drop(sid)

    def drop(self, sid: bytes) -> None:
        """Forget the mailbox of a subscription that was left. Any thread."""
        self._boxes.pop(sid, None)

    def receivers(self) -> list[Receiver]:
        """Return all mailboxes that are listened for; any thread."""
        return list(self._boxes.values())

    @property
    def strays(self) -> int:
        """How many frames came for a subscription that had been dropped."""
        return self._splitter.strays

    # Out.

    def write(self, block: bytes, deadline: Deadline) -> int:
        """
        Hand *block* to the socket and return the epoch of the connection that took it.

        Waits, within *deadline*, for a connection and for room. Any thread; Ctrl-C in a wait leaves
        nothing written.

        Raises:
            DisconnectedError: There was no connection, or no room, until the deadline. Nothing was
                sent.
            ConnectionClosedError: The client is closed. Nothing was sent.
        """
        with self._write_lock:
            if self.state is not LaneState.OPEN or self._out_size >= OUT_LIMIT:
                self._wait_writable(deadline)
            self._send(block)
            return self.epoch

    def post(self, block: bytes, timeout: float) -> int:
        """
        Send *block* soon, together with what others post or write meanwhile; return the epoch.

        For blocks that nobody waits for. Waits up to *timeout* seconds for a connection and for
        room, and raises as :meth:`write`. Any thread.
        """
        with self._write_lock:
            if self.state is not LaneState.OPEN or self._out_size >= OUT_LIMIT:
                self._wait_writable(Deadline.after(timeout))
            self._post(block)
            return self.epoch

    def _post(self, block: bytes) -> None:
        """Collect *block*; the write lock is held."""
        self._posted.append(block)
        self._posted_size += len(block)
        if self._posted_size >= POST_LIMIT:
            self._send(b"")
        elif not self._post_scheduled:
            self._post_scheduled = True
            self._loop.call_soon_threadsafe(self._flush_posted)

    def answer(self, block: bytes) -> None:
        """
        Send *block* soon if there is a connection, and forget it if there is none; never waits.

        For what only means something on the connection that it is about. Any thread.
        """
        with self._write_lock:
            if self.state is LaneState.OPEN:
                self._post(block)

    def control(self, block: bytes) -> None:
        """
        Write bytes of nats-py's own: handshake, PING, PONG. Loop thread.

        They pass whatever the state, as it is nats-py that makes the connection.
        """
        with self._write_lock:
            self._send(block)

    def _wait_writable(self, deadline: Deadline) -> None:
        """Wait until blocks may be written; the write lock is held."""
        assert self._write_lock.locked()
        while self.state is not LaneState.OPEN or self._out_size >= OUT_LIMIT:
            if self.state is LaneState.CLOSED:
                raise self.reason or ConnectionClosedError()
            remaining = deadline.remaining()
            if remaining <= 0.0:
                reason = None if self.state is LaneState.DOWN else "the server takes no bytes"
                raise DisconnectedError(timeout=deadline.total, reason=reason)
            self._changed.wait(remaining)

    def _send(self, block: bytes) -> None:
        """
        Send posted blocks and *block*, or queue them behind what waits; the write lock is held.
        """
        assert self._write_lock.locked()
        if self._posted:
            self._posted.append(block)
            block = b"".join(self._posted)
            self._posted.clear()
            self._posted_size = 0
        if self._stream is not None and block:
            self._send_later(block)
            return
        sock = self._sock
        if sock is None or not block:
            return
        try:
            sent = 0 if self._out else self._send_now(sock, block)
            if sent == len(block):
                return
            self._out.append(memoryview(block)[sent:])
            self._out_size += len(block) - sent
            if not self._writing:
                self._writing = True
                self._loop.call_soon_threadsafe(self._watch_room, sock)
        except OSError:
            # The connection is dead. The reader sees it too and the loss is announced from there.
            self._break(sock)
        except BaseException:
            # Ctrl-C after the kernel took bytes and before the rest was queued: beyond repair.
            self._break(sock)
            raise

    def _send_later(self, block: bytes) -> None:
        """Queue *block* for the task that feeds the WebSocket; the write lock is held."""
        self._out.append(block)
        self._out_size += len(block)
        if not self._writing:
            self._writing = True
            assert self._stream is not None
            self._loop.call_soon_threadsafe(self._start_feeding, self._stream)

    def _start_feeding(self, stream: Callable[[bytes], Awaitable[None]]) -> None:
        if stream is self._stream:
            self._feeder = self._loop.create_task(self._feed_stream(stream))

    async def _feed_stream(self, stream: Callable[[bytes], Awaitable[None]]) -> None:
        """Send what is queued until nothing is; loop thread."""
        while True:
            with self._write_lock:
                if stream is not self._stream:
                    return
                block = b"".join(self._out)
                self._out.clear()
                if not block:
                    self._writing = False
                    return
            try:
                await stream(block)
            except Exception:  # noqa: BLE001 - aiohttp's errors; each means that the connection is gone.
                self.feed(b"")
                return
            with self._write_lock:
                self.bytes_out += len(block)
                self._out_size = sum(map(len, self._out))
                self._changed.notify_all()

    def _send_now(self, sock: socket.socket, block: bytes | memoryview) -> int:
        """Return how many bytes the socket took; the write lock is held."""
        try:
            sent = sock.send(block)
        except _WOULD_BLOCK:
            return 0
        self.bytes_out += sent
        return sent

    def abort(self) -> None:
        """End the connection, as its stream cannot be trusted any more; any thread."""
        sock = self._sock
        if sock is not None:
            self._break(sock)
        elif self._stream is not None:
            self.feed(b"")

    def _break(self, sock: socket.socket) -> None:
        """Make the connection end; its loss is announced once nats-py has read the end."""
        with contextlib.suppress(OSError):
            # Not the method of a TLS socket: that one forgets its keys, and a thread that still
            # reads would take ciphertext for frames.
            socket.socket.shutdown(sock, socket.SHUT_RDWR)

    def _flush_posted(self) -> None:
        """Send what was posted; loop thread."""
        with self._write_lock:
            self._post_scheduled = False
            self._send(b"")

    def _watch_room(self, sock: socket.socket) -> None:
        """Have the loop write the rest as the socket gets room; loop thread."""
        if sock is self._sock:
            self._loop.add_writer(sock.fileno(), self._on_room, sock)
        # Otherwise the connection went away with its rest meanwhile.

    def _on_room(self, sock: socket.socket) -> None:
        with self._write_lock:
            if sock is not self._sock:
                return
            if len(self._out) > 1:
                rest = memoryview(b"".join(self._out))
                self._out.clear()
                self._out.append(rest)
            try:
                while self._out:
                    piece = self._out[0]
                    sent = self._send_now(sock, piece)
                    if not sent:
                        break
                    self._out_size -= sent
                    if sent == len(piece):
                        self._out.popleft()
                    else:
                        self._out[0] = memoryview(piece)[sent:]
            except OSError:
                self._break(sock)
                self._out.clear()
                self._out_size = 0
            if self._out_size < OUT_LIMIT:
                self._changed.notify_all()
            if not self._out:
                self._writing = False
                self._loop.remove_writer(sock.fileno())

    # In.

    def wait(self, receiver: Receiver, deadline: Deadline) -> bool:
        """
        Wait until *receiver* is ready, and return whether it is.

        The calling thread reads the socket meanwhile, if no other does. Any thread; one thread per
        receiver at a time. Can be interrupted by Ctrl-C.
        """
        if self._posted:
            with self._write_lock:
                self._send(b"")
        while not receiver.ready:
            remaining = deadline.remaining()
            if remaining <= 0.0:
                return False
            gate = self._gate
            if gate is None or not gate.may_lead or not self._read_lock.acquire(blocking=False):
                receiver.signal.wait(remaining)
                continue
            try:
                if gate is self._gate and not self.eof:
                    self._lead(gate, receiver, deadline)
            finally:
                self._read_lock.release()
        return True

    def nudge(self) -> None:
        """Make a thread that reads look at its receiver again, as it was woken from elsewhere."""
        gate = self._gate
        if gate is not None:
            gate.nudge()

    def _lead(self, gate: ReadGate, receiver: Receiver, deadline: Deadline) -> None:
        """Read the socket in this thread until *receiver* is ready; the read lock is held."""
        try:
            gate.disarm()
            while not receiver.ready and not self.eof:
                remaining = deadline.remaining()
                if remaining <= 0.0:
                    return
                if gate.poll(remaining):
                    self._read(gate.sock)
        finally:
            gate.arm()

    def _on_readable(self) -> None:
        """Read the socket in the loop thread, unless a waiting thread does."""
        if not self._read_lock.acquire(blocking=False):
            return
        try:
            gate = self._gate
            if gate is not None and not self.eof:
                self._read(gate.sock)
        finally:
            self._read_lock.release()

    def _read(self, sock: socket.socket) -> None:
        """Read once and hand over all whole frames; the read lock is held."""
        try:
            try:
                data = self._receive(sock)
            except _WOULD_BLOCK:
                return
            except OSError:
                data = b""
            self.feed(data)
        except BaseException:
            # Ctrl-C before the last wake-up: what was half taken cannot be taken again.
            self._break(sock)
            raise

    def feed(self, data: bytes) -> None:
        """Hand over the frames in *data*; empty data is the end of the connection."""
        if not data:
            self.eof = True
            if self._gate is not None:
                self._gate.may_lead = False
            self._hand_foreign([b""])
            return
        self.bytes_in += len(data)
        touched: list[Any] = []
        foreign: list[bytes] = []
        try:
            self._splitter.feed(data, touched, foreign)
        except ValueError:
            # These bytes are no NATS protocol. A new connection starts afresh.
            self.abort()
        for box in touched:
            box.wake()
        if foreign:
            self._hand_foreign(foreign)

    def _receive(self, sock: socket.socket) -> bytes:
        """Return what the socket has, b"" at its end; raises if it has nothing."""
        if not isinstance(sock, ssl.SSLSocket):
            return sock.recv(READ_SIZE)
        # A TLS object is not made for two threads at once, even where they go opposite ways.
        with self._write_lock:
            parts = [sock.recv(READ_SIZE)]
            # What is left of a decrypted record waits inside the object, where no poll sees it.
            while sock.pending():
                parts.append(sock.recv(READ_SIZE))
        return b"".join(parts)

    def _hand_foreign(self, pieces: list[bytes]) -> None:
        """Give bytes to nats-py, in the order they came, in the loop thread."""
        self._foreign.extend(pieces)
        if threading.get_ident() == self._loop_thread:
            self._drain_foreign()
        else:
            with contextlib.suppress(RuntimeError):  # The loop is closed already.
                self._loop.call_soon_threadsafe(self._drain_foreign)

    def _drain_foreign(self) -> None:
        foreign = self._foreign
        while foreign:
            piece = foreign.popleft()
            if not piece and self._gate is not None:
                # A socket at its end stays readable until it is closed, perhaps seconds from now.
                self._gate.ignore()
            self._on_foreign(piece)

    # The life of a connection; all of these run in the loop thread.

    def attach(self, sock: socket.socket) -> None:
        """Start on a connected, non-blocking socket; its handshake is nats-py's."""
        self._loop_thread = threading.get_ident()
        self._splitter.reset()
        self._foreign.clear()
        self.eof = False
        with self._write_lock:
            self._sock = sock
        self._gate = ReadGate(sock, self._loop, self._on_readable)

    def attach_stream(self, stream: Callable[[bytes], Awaitable[None]]) -> None:
        """Start on a WebSocket: *stream* sends a block, :meth:`feed` is called with what comes."""
        self._loop_thread = threading.get_ident()
        self._splitter.reset()
        self._foreign.clear()
        self.eof = False
        with self._write_lock:
            self._stream = stream

    def pause(self) -> None:
        """Stop reading and writing for the TLS handshake, which needs the socket for itself."""
        gate, self._gate = self._gate, None
        if gate is not None:
            gate.close()
        with self._write_lock:
            self._sock = None

    def end_handshake(self) -> None:
        """Let threads that wait read by themselves: the socket is not nats-py's alone any more."""
        if self._gate is not None:
            self._gate.may_lead = self._gate.can_lead and not self.eof

    def open(self) -> None:
        """Write all subscriptions again and let blocks pass: the server knows us now."""
        # nats-py's read task may not have run yet, and the first answer must not pass as a foreign
        # frame.
        self.end_handshake()
        with self._write_lock:
            if self.state is LaneState.CLOSED:
                return
            self.epoch += 1
            self._send(b"".join(list(self._subscriptions.values())))
            self.state = LaneState.OPEN
            self._changed.notify_all()

    def detach(self) -> None:
        """
        Give the socket up and tell every receiver that what was in flight on it is lost.

        Safe to repeat.
        """
        gate, self._gate = self._gate, None
        sock = self._sock
        if sock is not None:
            self._break(sock)
        if gate is not None:
            gate.nudge()
        # A leader leaves at once: its poll was woken by the shutdown.
        with self._read_lock, self._write_lock:
            if sock is not None and self._writing:
                self._loop.remove_writer(sock.fileno())
            self._sock = self._stream = None
            self._writing = False
            self._out.clear()
            self._posted.clear()
            self._out_size = self._posted_size = 0
            was_open = self.state is LaneState.OPEN
            if was_open:
                self.state = LaneState.DOWN
                self.lost_epoch = self.epoch
            if gate is not None:
                gate.close()
            if sock is not None:
                sock.close()
        if was_open:
            for receiver in self.receivers():
                receiver.lost(self.lost_epoch)

    def close(self, reason: Exception) -> None:
        """End the lane for good: every wait and every write ends with *reason*."""
        with self._write_lock:
            if self.state is LaneState.CLOSED:
                return
            self.reason = reason
            self.state = LaneState.CLOSED
            self._changed.notify_all()
        for receiver in self.receivers():
            receiver.fail(reason)
        self.nudge()
