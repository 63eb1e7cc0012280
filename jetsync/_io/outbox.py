"""
The way out of a lane: blocks from any thread to one socket, whole and in order.

A block goes straight to the socket, in the thread that writes it. What the socket does not take
waits here for
the loop, and is bounded: a writer past the bound waits, within its deadline. Blocks that nobody
waits for (acks) are collected and sent together.

Guarantees
- Blocks are written whole, one behind the other, or not continued when the connection dies.
- A write returns the epoch, the number of the connection, that took it.
- Nothing is sent before the lane is open, except what makes the connection
(:meth:`Outbox.control`).
"""

from __future__ import annotations

import contextlib
import copy
import enum
import socket
import ssl
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Final

from jetsync._base.deadline import Deadline
from jetsync._base.locks import owner_check, take
from jetsync._io.mailbox import Notifier
from jetsync.errors import (
    CallInSignalHandlerError,
    ConnectionClosedError,
    ConnectionLostError,
    DisconnectedError,
    ForkedProcessError,
)

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable

    from jetsync._io.mailbox import Signal, Waiter

OUT_LIMIT: Final = 4 << 20
"""Bytes that may wait for the socket before a writer has to: 4 MiB."""

POST_LIMIT: Final = 32 << 10
"""Bytes of posted writes (acks) that are collected at most before they are sent: 32 KiB."""

PING: Final = b"PING\r\n"


WOULD_BLOCK: Final = (
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


class Outbox:
    """
    What waits to be sent, and the lock around sending.

    Args:
        on_stream_lost: Called in the loop thread when a WebSocket takes no more.
        on_ping_lost: Called in the loop thread when Ctrl-C interrupted a PING.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        on_stream_lost: Callable[[], None],
        on_ping_lost: Callable[[], None],
    ) -> None:
        self._own_lock()
        self._changed = Notifier()
        """Notifies when the state has changed or there is room again."""

        self.pings: deque[Waiter | None] = deque()
        """The PINGs that wait for a PONG, oldest first; None for those of nats-py."""

        self.state = LaneState.DOWN
        self.epoch = 0
        self.reason: Exception | None = None
        """Why the lane is closed."""

        self.why_down: str | None = None
        """Why the last attempt to connect has failed, None while there is a connection."""

        self.sock: socket.socket | None = None
        self.stream: Callable[[bytes], Awaitable[None]] | None = None
        """How to send where there is no socket of ours: a WebSocket."""

        self.size = 0
        """Bytes that wait for the socket."""

        self.posted: list[bytes] = []
        self.bytes_out = 0
        self._loop = loop
        self._on_stream_lost = on_stream_lost
        self._on_ping_lost = on_ping_lost
        self._out: deque[memoryview | bytes] = deque()
        self.visited: Callable[[], bool] = lambda: False
        """Whether somebody will flush what is posted soon, without being asked to."""

        self._kept: list[tuple[float, bytes]] = []
        """What goes out first on the next connection, and until when that makes sense."""

        self._kept_size = 0
        self._posted_size = 0
        self._post_scheduled = False
        self._writing = False
        """Whether the loop watches the socket for room."""

    def _own_lock(self) -> None:
        """Make the lock. Its owner check is bound here because each write makes it."""
        self.lock = threading.RLock()
        self.held_here = owner_check(self.lock)
        """Whether the calling thread holds the lock: it is a signal handler, or a finalizer."""

    def write(self, block: bytes, deadline: Deadline, epoch: int | None = None) -> int:
        """
        Hand *block* to the socket and return the epoch of the connection that took it.

        Waits, within *deadline*, for a connection and for room; with an *epoch*, only for room on
        that connection. Any thread; Ctrl-C in a wait leaves nothing written.

        Raises:
            CallInSignalHandlerError: The caller interrupted a write of its own thread.
            DisconnectedError: There was no connection, or no room, until the deadline. Nothing was
                sent.
            ConnectionLostError: The connection *epoch* is gone. Nothing was sent.
            ConnectionClosedError: The client is closed. Nothing was sent.
        """
        while True:
            if self.held_here():
                raise CallInSignalHandlerError
            with self.lock:
                if self._may_write(epoch):
                    self._send(block)
                    return self.epoch
                changed = self._changed.listen()
            self._wait(changed, deadline)

    def ping(self, waiter: Waiter, deadline: Deadline) -> None:
        """
        Send a PING whose PONG answers *waiter*; waits and raises as :meth:`write`.
        """
        while True:
            if self.held_here():
                raise CallInSignalHandlerError
            with self.lock:
                try:
                    if self._may_write(None):
                        waiter.epoch = self.epoch
                        self.pings.append(waiter)
                        self._send(PING)
                        return
                except BaseException:
                    # Ctrl-C before the PING was sent: later PONGs would go to the wrong waiters.
                    if waiter in self.pings:
                        self._loop.call_soon_threadsafe(self._on_ping_lost)
                    raise
                changed = self._changed.listen()
            self._wait(changed, deadline)

    def post(
        self, block: bytes, timeout: float, *, lazy: bool = False, epoch: int | None = None
    ) -> int:
        """
        Send *block* soon, together with what others post or write meanwhile; return the epoch.

        For blocks that no caller waits for. Waits up to *timeout* seconds for a connection and for
        room, and raises as :meth:`write`. Any thread. If a signal handler interrupted a write of
        its own thread, the loop sends the block.
        """
        deadline = None
        while True:
            if self.held_here():
                self.post_nowait(block, epoch, keep=timeout)
                return self.epoch
            with self.lock:
                if self._may_write(epoch):
                    self._post(block, lazy=lazy)
                    return self.epoch
                changed = self._changed.listen()
            deadline = deadline or Deadline.after(timeout)
            self._wait(changed, deadline)

    def _post(self, block: bytes, *, lazy: bool = False) -> None:
        """Collect *block*; the write lock is held."""
        self.posted.append(block)
        self._posted_size += len(block)
        if self._posted_size >= POST_LIMIT:
            self._send(b"")
        elif not self._post_scheduled and not (lazy and self.visited()):
            # In this order: after Ctrl-C in between, the next block is scheduled once more.
            self._loop.call_soon_threadsafe(self.flush_posted)
            self._post_scheduled = True

    def post_nowait(self, block: bytes, epoch: int | None = None, *, keep: float = 0.0) -> None:
        """
        Send *block* soon if there is a connection, and forget it if there is none; never waits.

        For blocks that are only valid on this connection; with an *epoch*, on that one alone. With
        *keep*, a block is stored for the next connection for that many seconds, up to
        :data:`OUT_LIMIT` bytes in all. Any thread.
        """
        taken: list[bool] = []
        try:
            # The garbage collector, which ends the fetches and consumers that are no longer used,
            # and signal handlers may run in a thread that holds the lock.
            if not self.held_here() and take(self.lock, taken):
                self._post_or_keep(block, epoch, keep)
            else:
                with contextlib.suppress(RuntimeError):  # The loop is closed: nothing can be sent.
                    self._loop.call_soon_threadsafe(self._post_later, block, epoch, keep)
        finally:
            if True in taken:
                self.lock.release()

    def _post_later(self, block: bytes, epoch: int | None, keep: float) -> None:
        """Do what :meth:`post_nowait` could not do at once; loop thread."""
        with self.lock:
            self._post_or_keep(block, epoch, keep)

    def _post_or_keep(self, block: bytes, epoch: int | None, keep: float) -> None:
        """Post *block*, or keep it for the next connection; the write lock is held."""
        if self.state is LaneState.OPEN:
            if epoch is None or epoch == self.epoch:
                self._post(block)
        elif keep and self.state is LaneState.DOWN and self._kept_size + len(block) <= OUT_LIMIT:
            self._kept.append((time.monotonic() + keep, block))
            self._kept_size += len(block)

    def control(self, block: bytes) -> None:
        """
        Write bytes of nats-py's own, such as PING and PONG. Loop thread.

        They pass whatever the state is, because nats-py makes the connection.
        """
        with self.lock:
            if block == PING:
                self.pings.append(None)
            self._send(block)

    def _may_write(self, epoch: int | None) -> bool:
        """
        Return whether a block may be written now, on any connection or on number *epoch*.

        Raises as :meth:`write` if it never may. The write lock is held.
        """
        if self.state is LaneState.OPEN and (epoch is None or epoch == self.epoch):
            return self.size < OUT_LIMIT
        if self.state is LaneState.CLOSED:
            reason = self.reason or ConnectionClosedError()
            # A copy: each raise of the same one would make its traceback longer.
            raise copy.copy(reason) from reason.__cause__
        if epoch is not None:
            raise ConnectionLostError(sent=False)
        return False

    def _wait(self, changed: Signal, deadline: Deadline) -> None:
        """Wait for a change of state or for room; the write lock is not held."""
        if not changed.wait(deadline.remaining()) and deadline.expired():
            self._changed.forget(changed)
            if self.state is LaneState.DOWN:
                raise DisconnectedError(timeout=deadline.total, last_attempt=self.why_down)
            raise DisconnectedError(timeout=deadline.total, reason="the server takes no bytes")

    def _send(self, block: bytes) -> None:
        """
        Send posted blocks and *block*, or queue them behind what waits; the write lock is held.
        """
        assert self.held_here()
        if self.posted:
            self.posted.append(block)
            block = b"".join(self.posted)
            self.posted.clear()
            self._posted_size = 0
        if self.stream is not None and block:
            self._send_later(block)
            return
        sock = self.sock
        if sock is None or not block:
            return
        try:
            sent = 0
            # More than one turn is for TLS, which takes one record of 16 KiB at a time.
            while not self._out and sent < len(block):
                taken = self._send_now(sock, memoryview(block)[sent:] if sent else block)
                if not taken:
                    break
                sent += taken
            if sent == len(block):
                return
            self._out.append(memoryview(block)[sent:])
            self.size += len(block) - sent
            if not self._writing:
                self._writing = True
                self._loop.call_soon_threadsafe(self._watch_room, sock)
        except OSError:
            # The connection is dead. The reader sees it too and the loss is announced from there.
            break_connection(sock)
        except BaseException:
            # Ctrl-C after the kernel took bytes and before the rest was queued: beyond repair.
            break_connection(sock)
            raise

    def _send_later(self, block: bytes) -> None:
        """Queue *block* for the task that feeds the WebSocket; the write lock is held."""
        self._out.append(block)
        self.size += len(block)
        if not self._writing:
            assert self.stream is not None
            # In this order, because of Ctrl-C: the feeder needs the lock, so it cannot end before.
            self._loop.call_soon_threadsafe(self._start_feeding, self.stream)
            self._writing = True

    def _start_feeding(self, stream: Callable[[bytes], Awaitable[None]]) -> None:
        if stream is self.stream:
            self._feeder = self._loop.create_task(self._feed_stream(stream))

    async def _feed_stream(self, stream: Callable[[bytes], Awaitable[None]]) -> None:
        """Send what is queued until nothing is; loop thread."""
        while True:
            with self.lock:
                if stream is not self.stream:
                    return
                block = b"".join(self._out)
                self._out.clear()
                if not block:
                    self._writing = False
                    return
            try:
                await stream(block)
            except Exception:  # noqa: BLE001 - aiohttp's errors; each means that the connection is gone.
                # A feeder may outlive its connection, and must not end the next one.
                if stream is self.stream:
                    self._on_stream_lost()
                return
            with self.lock:
                self.bytes_out += len(block)
                self.size = sum(map(len, self._out))
                self._changed.notify()

    def _send_now(self, sock: socket.socket, block: bytes | memoryview) -> int:
        """Return how many bytes the socket took; the write lock is held."""
        try:
            sent = sock.send(block)
        except WOULD_BLOCK:
            return 0
        self.bytes_out += sent
        return sent

    def flush_posted(self) -> None:
        """Send what was posted; any thread. A write that was interrupted sends it by itself."""
        if self.held_here():
            return
        with self.lock:
            self._post_scheduled = False
            self._send(b"")

    def _watch_room(self, sock: socket.socket) -> None:
        """Have the loop write the rest as the socket gets room; loop thread."""
        if sock is self.sock:
            self._loop.add_writer(sock.fileno(), self._on_room, sock)
        # Otherwise the connection went away with its rest meanwhile.

    def _on_room(self, sock: socket.socket) -> None:
        with self.lock:
            if sock is not self.sock:
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
                    self.size -= sent
                    if sent == len(piece):
                        self._out.popleft()
                    else:
                        self._out[0] = memoryview(piece)[sent:]
            except OSError:
                break_connection(sock)
                self._out.clear()
                self.size = 0
            if self.size < OUT_LIMIT:
                self._changed.notify()
            if not self._out:
                self._writing = False
                self._loop.remove_writer(sock.fileno())

    # The life of a connection; loop thread.

    def attach(
        self,
        sock: socket.socket | None = None,
        stream: Callable[[bytes], Awaitable[None]] | None = None,
    ) -> None:
        """Send on this from now on; only what makes the connection, until :meth:`open`."""
        with self.lock:
            self.sock, self.stream = sock, stream

    def open(self, block: bytes) -> None:
        """Send *block* before all others, and let them pass."""
        with self.lock:
            if self.state is LaneState.CLOSED:
                return
            self.epoch += 1
            now = time.monotonic()
            kept = [answer for until, answer in self._kept if now <= until]
            self._kept.clear()
            self._kept_size = 0
            self._send(b"".join([block, *kept]))
            self.state = LaneState.OPEN
            self.why_down = None
            self._changed.notify()

    def detach(self) -> bool:
        """Forget the connection and what waits for it; return whether it was open."""
        with self.lock:
            if self.sock is not None:
                if self._writing:
                    self._loop.remove_writer(self.sock.fileno())
                self.sock.close()
            self.sock = self.stream = None
            self._writing = False
            self._out.clear()
            self.posted.clear()
            self.size = self._posted_size = 0
            was_open = self.state is LaneState.OPEN
            if was_open:
                self.state = LaneState.DOWN
            # A write that waits for a connection of its own never gets it.
            self._changed.notify()
            return was_open

    def freeze(self) -> None:
        """
        Let nobody write any more and tell nobody: the process ends, and all that wait end with it.
        """
        with self.lock:
            if self.state is LaneState.OPEN:
                self.state = LaneState.DOWN

    def after_fork(self) -> None:
        """
        Raise ForkedProcessError for every write: the socket is that of the parent process.

        Takes no lock, as threads that hold one do not exist here.
        """
        # Kept, as closing what is shared is the parent's business too.
        self._inherited = self.sock
        self.sock = self.stream = None
        self._own_lock()
        self._changed = Notifier()
        self.reason = ForkedProcessError()
        self.state = LaneState.CLOSED

    def close(self, reason: Exception) -> bool:
        """End every write, now and later, with *reason*; return whether this is the first time."""
        with self.lock:
            if self.state is LaneState.CLOSED:
                return False
            self.reason = reason
            self.state = LaneState.CLOSED
            self._kept.clear()
            self._changed.notify()
            return True


def break_connection(sock: socket.socket) -> None:
    """Make a connection end; its loss is announced once its end has been read."""
    with contextlib.suppress(OSError):
        # Not the method of a TLS socket: that one forgets its keys, and a thread that still reads
        # would take ciphertext for frames.
        socket.socket.shutdown(sock, socket.SHUT_RDWR)
