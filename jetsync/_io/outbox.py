"""
All writes to the socket after the handshake: blocks from any thread, whole and in order.

The thread that writes a block also sends it. The loop sends what the socket does not accept at
once. Up to :data:`OUT_LIMIT` bytes may wait for the socket; after that, a writer waits within its
deadline. Blocks that no caller waits for, such as acks, are collected, and go out with the next
block. While another thread is sending, a request can be delegated to that thread in the same way.

Guarantees

- Blocks are sent whole and in order. If the connection dies, a block is not continued on the next.
- A write returns the epoch of the connection that accepted it, which is the connection's number.
- Before the lane is open, only the subscriptions are sent.
"""

from __future__ import annotations

import contextlib
import enum
import socket
import ssl
import time
from collections import deque
from contextvars import Context
from typing import TYPE_CHECKING, Any, Final

from jetsync import errors
from jetsync._base.deadline import Deadline
from jetsync._base.failures import raise_failure
from jetsync._base.locks import Notifier, short_lock, use_if_free
from jetsync._base.turn import waiting
from jetsync._io.mailbox import take_all
from jetsync._io.reminder import Reminder
from jetsync._proto import frames
from jetsync.values.message import ACK

if TYPE_CHECKING:
    import asyncio
    import threading
    from collections.abc import Callable

    from jetsync._io.replies import Waiter

# Bytes that may wait for the socket before a writer has to wait: 4 MiB.
OUT_LIMIT: Final = 4 << 20

# Bytes of posted blocks that are collected before the posting thread sends them: 32 KiB.
POST_LIMIT: Final = 32 << 10

# Waiting blocks are joined up to this many bytes for one system call: 64 KiB. Joining all of them
# took up to 8 MiB more memory. At 100 MB/s, it took as much CPU as the writes of blocks of 128 KiB.
JOIN_LIMIT: Final = 64 << 10

# Acks that are collected before the acknowledging thread sends them. The server reads them while
# this thread handles the next messages. With 128, a client that consumes and acknowledges needed a
# tenth more CPU. With 512, a fetch of 1000 messages that acknowledges each one took 15% longer,
# because the server had to read more acks before the next pull.
ACK_LIMIT: Final = 256

# Seconds between two ticks: 5 ms. At a tick, the loop sends what no thread has sent, and reads the
# socket if threads have stopped reading it. Between two ticks, it can sleep. So a PING of the
# server, or a message that no thread waits for, is read at most 10 ms late.
TICK: Final = 0.005

# How often a thread sends what was collected while it was sending, before the loop has to.
SENDS: Final = 8

# In place of the moment after which a collected block is dropped: another thread has delegated it.
DELEGATED: Final = -1.0

PING: Final = b"PING\r\n"

WOULD_BLOCK: Final = (
    BlockingIOError,
    InterruptedError,
    ssl.SSLWantReadError,
    ssl.SSLWantWriteError,
)


class LaneState(enum.Enum):
    """
    Whether blocks may be written.

    ``DOWN`` lasts until the handshake is complete and the subscriptions have been written again.
    While the client closes, ``CLOSING`` replaces ``OPEN``: only publishers may write, to finish.
    """

    DOWN = "down"
    OPEN = "open"
    CLOSING = "closing"
    CLOSED = "closed"


_OPEN: Final = LaneState.OPEN
_CLOSING: Final = LaneState.CLOSING
_CAN_SEND: Final = (_OPEN, _CLOSING)


class Outbox:
    """
    The blocks that wait to be sent.

    Threads: any thread; the life of a connection, only the loop thread.
    Locks: the write lock, ``write_lock``, protects all fields, except for ``acks`` and
    ``collected``, to which threads append without it.

    Args:
        loop: The event loop of the connection.
        on_tick: Called at each tick in the loop thread. Returns whether another tick has to follow.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, on_tick: Callable[[], bool]) -> None:
        self._own_lock()
        self.state: LaneState = LaneState.DOWN
        self.epoch: int = 0
        # Whether this connection was opened, so that its loss has to be announced.
        self._has_opened = False
        # Why the lane is closed, or closes.
        self.reason: Exception | None = None
        # Why the last attempt to connect failed, None while there is a connection.
        self.why_down: str | None = None
        self.sock: socket.socket | None = None
        # The PINGs that wait for a PONG, oldest first.
        self.pings: deque[Waiter] = deque()
        # The reply subjects of messages to acknowledge. Threads append without the write lock.
        self.acks: deque[bytes] = deque()
        self.bytes_out: int = 0
        # The reply subject of the request that was sent last; empty after any other block.
        self.last_request: bytes = b""
        # Has the loop call `_tick` within :data:`TICK` seconds. If two threads ask at the same
        # moment, the loop ticks twice, which does no harm.
        self.tick: Reminder = Reminder(
            loop.call_soon_threadsafe, loop.call_later, TICK, self._tick, context=Context()
        )
        # Has the loop send what was posted.
        self.flush_soon: Reminder = Reminder(
            loop.call_soon_threadsafe, self.flush_posted, context=Context()
        )
        self._loop = loop
        self._on_tick = on_tick
        # Notifies if the state has changed or there is room again.
        self._changed = Notifier()
        # The blocks that wait for the socket, and their size in bytes.
        self._out: list[memoryview | bytes] = []
        self.size: int = 0
        # Blocks that go out in front of the next one: the epoch of the connection that may carry
        # each, the moment until which a later one may as well, and the block. Threads append
        # without the write lock.
        self.collected: deque[tuple[int, float, bytes | memoryview]] = deque()
        # The bytes of the posted ones. It may be wrong if two threads change it at the same moment.
        self._posted_size = 0

    def _own_lock(self) -> None:
        self.write_lock: threading.RLock = short_lock()
        # Whether the calling thread holds it. True in a signal handler or a finalizer that
        # interrupted a write of its own thread.
        self.writes_here: Callable[[], bool] = self.write_lock._is_owned  # type: ignore[attr-defined]  # noqa: SLF001 - as in `refuse_reentry`
        # Whether a thread is in the system call that sends.
        self._sending = False

    @property
    def can_send(self) -> bool:
        """Whether there is a connection on which jetsync may send blocks."""
        return self.state in _CAN_SEND

    def write(
        self,
        block: bytes | memoryview,
        deadline: Deadline,
        epoch: int | None = None,
        *,
        pong: Waiter | None = None,
        may_delegate: bool = False,
        while_closing: bool = False,
        request: bytes = b"",
    ) -> int:
        """
        Send *block* and return the epoch of the connection that accepted it; any thread.

        Waits, within *deadline*, for a connection and for room. If Ctrl-C interrupts the wait,
        nothing was sent.

        Args:
            block: The encoded protocol bytes. The memory of a view must not change before the
                server has answered, or the connection is lost.
            deadline: How long to wait.
            epoch: The only connection that may carry the block. The call then waits only for room.
            pong: If *block* is a PING, the receiver of the answer.
            may_delegate: Whether another thread that is sending may send this block as well. The
                caller has to wait for an answer next.
            while_closing: Whether to send the block even while the client closes.
            request: The reply subject of the last message of *block*, for :attr:`last_request`.

        Raises:
            CallInSignalHandlerError: The caller interrupted a write of its own thread.
            DisconnectedError: There was no connection, or no room, until the deadline. Nothing was
                sent.
            ConnectionLostError: The connection *epoch* is gone. Nothing was sent.
            ConnectionClosedError: The client is closed. Nothing was sent.
        """
        while True:
            if self.writes_here():
                raise errors.CallInSignalHandlerError
            if may_delegate and self._sending:
                accepted = self._delegate(block, epoch)
                if accepted:
                    return accepted
            with self.write_lock:
                if (
                    (self.state is _OPEN or (while_closing and self.state is _CLOSING))
                    and self.size < OUT_LIMIT
                    and (epoch is None or epoch == self.epoch)
                ):
                    self._send(block, request, pong)
                    return self.epoch
                gone = self._why_gone(epoch, while_closing=while_closing)
                if gone is None:
                    changed = self._changed.listen()
            # Raised without the lock, which Python 3.10 could leave held.
            if gone is not None:
                raise_failure(gone)
            # Looked at before the wait: the loop thread, which cannot wait, makes writes whose time
            # is over, and so may a signal handler.
            if deadline.expired():
                self._changed.forget(changed)
                if self.state is LaneState.DOWN:
                    raise errors.DisconnectedError(
                        timeout=deadline.total, last_attempt=self.why_down
                    )
                raise errors.DisconnectedError(
                    timeout=deadline.total, reason="the server does not accept more data"
                )
            if not waiting(changed.wait, deadline.remaining()):
                self._changed.forget(changed)

    def wait_open(self, deadline: Deadline) -> int:
        """Wait for a connection and for room, and return the epoch; raises as :meth:`write`."""
        if self.state is _OPEN and self.size < OUT_LIMIT:
            return self.epoch
        return self.write(b"", deadline)

    def _delegate(self, block: bytes | memoryview, epoch: int | None) -> int:
        """
        Have the thread that is sending send *block* too; return the epoch, or 0 if that fails.

        Waiting for the write lock would take two more thread switches, and a system call for each
        block. With this, 16 threads publish 1.4 times as many messages per second, one at a time.
        """
        current = self.epoch
        if self.state is not _OPEN or self.size >= OUT_LIMIT or epoch not in {None, current}:
            return 0
        entry = (current, DELEGATED, block)
        self.collected.append(entry)
        # The other thread clears the flag before it looks for blocks. If the flag is still set
        # now, it will find this block. If not, it may have looked before, so take the block back.
        return 0 if not self._sending and self._take_back(entry) else current

    def _take_back(self, entry: tuple[int, float, bytes | memoryview]) -> bool:
        """Remove a collected block; return False if another thread has taken it."""
        try:
            self.collected.remove(entry)
        except ValueError:
            return False
        return True

    def _why_gone(self, epoch: int | None, *, while_closing: bool) -> Exception | None:
        """
        Return the error if a write can never succeed, because the lane or connection *epoch* is
        gone; None otherwise.
        """
        if self.reason is not None and (self.state is LaneState.CLOSED or not while_closing):
            return self.reason
        if epoch is not None and (self.state is LaneState.DOWN or epoch != self.epoch):
            return errors.ConnectionLostError(sent=False)
        return None

    def post(
        self,
        block: bytes,
        timeout: float,
        *,
        epoch: int | None = None,
        while_closing: bool = False,
    ) -> int:
        """
        Send *block* soon, together with other blocks, and return the epoch; any thread.

        For blocks that no caller waits for. Waits up to *timeout* seconds for a connection and for
        room, and raises as :meth:`write` does. If a signal handler interrupted a write of its own
        thread, that thread or the loop sends the block.
        """
        current = self.epoch
        if (
            self.state is _OPEN
            and self.size < OUT_LIMIT
            and epoch in {None, current}
            and (self._posted_size + len(block) < POST_LIMIT or self.writes_here())
        ):
            self._post(current, 0.0, block, self.flush_soon)
            # Checked after the block is listed. A client that closes sends what was listed before.
            if self.reason is None or not self._take_back((current, 0.0, block)):
                return current
        # This waits for a thread that is sending. Otherwise 8 threads that publish 64 KiB each time
        # collect 500 MB, because the sending thread gets the GIL too rarely.
        return self.write(block, Deadline.after(timeout), epoch, while_closing=while_closing)

    def _post(self, epoch: int, until: float, block: bytes, sender: Reminder) -> None:
        """Collect *block* for the next send, or that of *sender*; any thread, never waits."""
        self.collected.append((epoch, until, block))
        self._posted_size += len(block)
        if self._posted_size >= POST_LIMIT and self.can_send:
            use_if_free(self.write_lock, self._send, b"")
        # Also if the write lock is taken: its holder may have looked for blocks before.
        if self.collected:
            sender.ask()

    def ack(self, reply: bytes, timeout: float) -> None:
        """
        Acknowledge a message with the next block, in at most :data:`TICK` seconds.

        Any thread. If there is no connection, or no room, waits up to *timeout* seconds as
        :meth:`post` does.
        """
        acks = self.acks
        acks.append(reply)
        # Checked after the ack is listed: a tick clears the flag before it takes the acks.
        if self.tick.due and self.state is _OPEN and len(acks) < ACK_LIMIT:
            return
        if self.state in _CAN_SEND and self.size < OUT_LIMIT:
            if len(acks) >= ACK_LIMIT:
                use_if_free(self.write_lock, self._send, b"")
            self.tick.ask()
            return
        with contextlib.suppress(ValueError):  # Another thread has just sent it.
            acks.remove(reply)
            self.post(frames.ack_block((reply,), ACK), timeout, while_closing=True)

    def post_nowait(
        self,
        block: bytes,
        epoch: int | None = None,
        *,
        keep: float = 0.0,
        is_urgent: bool = True,
    ) -> None:
        """
        Send *block* soon if there is a connection, and drop it if not; any thread, never waits.

        With an *epoch*, only that connection may carry the block. With *keep*, the next connection
        may carry it for that many seconds, unless :data:`OUT_LIMIT` bytes wait for it already. If
        it is not urgent, it may wait :data:`TICK` seconds for the next block.
        """
        current = self.epoch
        if self.state in _CAN_SEND:
            if epoch not in {None, current}:
                return
        elif not keep or self.state is LaneState.CLOSED or self._posted_size >= OUT_LIMIT:
            return
        # A later block of this thread must come after it. If this is an UNSUB, the server must not
        # deliver a later request to the subscription that has ended.
        until = time.monotonic() + keep if keep else 0.0
        self._post(current, until, block, self.flush_soon if is_urgent else self.tick)

    def flush_posted(self) -> None:
        """Send acks and posted blocks; any thread."""
        # First: a block that is posted from here on asks for another flush.
        self.flush_soon.due = False
        with self.write_lock:
            self._send(b"")

    def _tick(self) -> None:
        """Send what waits, and have the lane check the reading threads; loop thread."""
        # Cleared first, see `ack`. A thread that stops reading from here on asks for a tick itself.
        self.tick.due = False
        if self.acks or self.collected:
            self.flush_posted()
        if self._on_tick() and not self.tick.due:
            self.tick.due = True
            self._loop.call_later(TICK, self._tick)

    def _send(
        self, block: bytes | memoryview, request: bytes = b"", pong: Waiter | None = None
    ) -> None:
        """
        Send acks, collected blocks and *block*, or queue them; the write lock is held.

        If *block* is a PING, *pong* gets the answer.
        """
        # Asserted here, where all that is sent passes.
        assert self.writes_here()
        sock, acks, collected = self.sock, self.acks, self.collected
        if sock is None:
            return
        try:
            if pong is not None:
                pong.epoch = self.epoch
                self.pings.append(pong)
            for _ in range(SENDS):
                # After this, the size is right again, see `_posted_size`.
                if acks or collected or self._posted_size:
                    block = self._take() + block
                if not block:
                    return
                sent = 0
                self.last_request = request
                self._sending = True
                # TLS accepts one record of 16 KiB at a time.
                while not self._out and sent < len(block):
                    try:
                        count = sock.send(memoryview(block)[sent:] if sent else block)
                    except WOULD_BLOCK:
                        break
                    self.bytes_out += count
                    sent += count
                # Before the look for collected blocks, see `_delegate`.
                self._sending = False
                if sent < len(block):
                    self._queue(memoryview(block)[sent:], sock)
                if not collected:
                    return
                block = request = b""
            # The loop sends the rest, because this thread has its own work to do.
            self.flush_soon.ask()
        except OSError:
            # The connection is dead. The reader notices it as well and announces the loss.
            break_connection(sock)
        except BaseException:
            # Ctrl-C may have struck before all blocks that were taken were sent or queued. Other
            # threads may wait for their answers. PONGs would go to the wrong waiters.
            break_connection(sock)
            raise
        finally:
            self._sending = False

    def _take(self) -> bytes:
        """
        Take the acks, and the blocks that this connection may carry; the write lock is held.

        Blocks for an earlier connection are lost with it.
        """
        if self.state not in _CAN_SEND:
            return b""  # Not before the lane is open, because the subscriptions are sent first.
        self._posted_size = 0
        posted: list[bytes | memoryview] = []
        delegated: list[bytes | memoryview] = []
        if self.collected:
            current, now = self.epoch, time.monotonic()
            for epoch, until, block in take_all(self.collected):
                if epoch == current or now <= until:
                    (delegated if until == DELEGATED else posted).append(block)
        # Last, and in the middle: a handler acknowledges a message after it has posted others, and
        # a thread lists its ack before it delegates its next request.
        if self.acks:
            posted.append(frames.ack_block(take_all(self.acks), ACK))
        return b"".join((*posted, *delegated))

    def _queue(self, rest: memoryview, sock: socket.socket) -> None:
        """Have the loop send *rest* once the socket has room; the write lock is held."""
        self._out.append(rest)
        self.size += len(rest)
        if len(self._out) == 1:
            self._loop.call_soon_threadsafe(self._watch_room, sock, context=Context())

    def _watch_room(self, sock: socket.socket) -> None:
        """Have the loop send the rest once the socket has room; loop thread."""
        if sock is self.sock:
            self._loop.add_writer(sock.fileno(), self._on_room, sock)

    def _on_room(self, sock: socket.socket) -> None:
        with self.write_lock:
            if sock is not self.sock:
                return
            out = self._out
            try:
                while out:
                    self._join_first()
                    count = sock.send(out[0])
                    self.bytes_out += count
                    self.size -= count
                    out[0] = memoryview(out[0])[count:]
                    if not out[0]:
                        del out[0]
            except WOULD_BLOCK:
                pass
            except OSError:
                break_connection(sock)
                out.clear()
            if not out:
                self.size = 0
                self._loop.remove_writer(sock.fileno())
            if self.size < OUT_LIMIT:
                self._changed.notify()

    def _join_first(self) -> None:
        """Join the first waiting blocks if they are small; the write lock is held."""
        out, size, count = self._out, 0, 0
        for block in out:
            size += len(block)
            if size > JOIN_LIMIT:
                break
            count += 1
        if count > 1:
            out[:count] = [b"".join(out[:count])]

    def drop_connection(self, epoch: int) -> None:
        """
        Send what is collected, and drop the connection *epoch*; any thread.

        Does nothing if it is gone. From now on, writes wait for the next connection.
        """
        with self.write_lock:
            if self.state in _CAN_SEND and epoch == self.epoch and self.sock is not None:
                self._send(b"")
                # First, so that after Ctrl-C no write waits for a connection that never ends.
                break_connection(self.sock)
                self.state = LaneState.DOWN

    # The life of a connection; loop thread.

    def attach(self, sock: socket.socket) -> None:
        """Send on this connection from now on. Until :meth:`open`, only nats-py does."""
        with self.write_lock:
            self.sock = sock

    def open(self, block: bytes) -> None:
        """Send *block* before all others, and allow writes."""
        with self.write_lock:
            if self.state is LaneState.CLOSED:
                return
            self.epoch += 1
            self._send(block)
            self._has_opened = True
            self.state = LaneState.OPEN if self.reason is None else LaneState.CLOSING
            # Acks and kept blocks that were not sent on the last connection.
            self._send(b"")
            self.why_down = None
            self._changed.notify()

    def detach(self) -> bool:
        """Drop the connection and what waits for it; return whether to announce its loss."""
        with self.write_lock:
            if self.sock is not None:
                if self._out:
                    self._loop.remove_writer(self.sock.fileno())
                self.sock.close()
            self.sock = None
            self._out.clear()
            self.size = 0
            kept = [each for each in take_all(self.collected) if each[1]]
            self.collected.extendleft(reversed(kept))
            self._posted_size = sum([len(block) for _, _, block in kept])
            is_lost = self._has_opened
            self.freeze()
            # A write that waits for this very connection fails.
            self._changed.notify()
            return is_lost

    def freeze(self) -> None:
        """
        Let all writes wait from now on, without an error, and announce no loss.

        At the end of the process, the threads that wait end with it.
        """
        with self.write_lock:
            self._has_opened = False
            if self.state in _CAN_SEND:
                self.state = LaneState.DOWN

    def after_fork(self) -> None:
        """
        Leave the socket to the parent process; each write raises ForkedProcessError from now on.

        Takes no lock, because threads that hold one do not exist in the child.
        """
        # Kept alive: closing it would affect the parent.
        self._inherited = self.sock
        self.sock = None
        self._own_lock()
        self.acks = deque()
        self.collected = deque()
        self._changed = Notifier()
        self.reason = errors.ForkedProcessError()
        self.state = LaneState.CLOSED

    def begin_close(self, reason: Exception) -> bool:
        """
        End every write without ``while_closing``, now and later, with *reason*.

        Returns whether this is the first time.
        """
        with self.write_lock:
            if self.reason is not None:
                return False
            self.reason = reason
            if self.state is LaneState.OPEN:
                self.state = LaneState.CLOSING
            self._changed.notify()
            return True

    def close(self, reason: Exception) -> bool:
        """End every write, now and later, with *reason*; return whether this is the first time."""
        with self.write_lock:
            if self.state is LaneState.CLOSED:
                return False
            self.reason = reason
            self.state = LaneState.CLOSED
            self.collected.clear()
            self.acks.clear()
            self._changed.notify()
            return True


def break_connection(sock: socket.socket) -> None:
    """Make a connection end. Its loss is announced once the end has been read."""
    with contextlib.suppress(OSError):
        # The method of a TLS socket drops its keys, and a thread that still reads would take
        # ciphertext for frames.
        below_tls(sock).shutdown(socket.SHUT_RDWR)


def below_tls(sock: socket.socket) -> Any:
    """Return the methods that *sock* has without TLS."""
    return super(ssl.SSLSocket, sock) if isinstance(sock, ssl.SSLSocket) else sock
