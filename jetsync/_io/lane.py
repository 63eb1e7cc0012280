"""
The lane reads and writes the one socket of a client. nats-py connects and reconnects it.

In. The thread that reads the socket splits the bytes into frames. It puts the frames of jetsync's
subscriptions into their mailboxes, and passes everything else to nats-py. Normally the loop thread
reads. A thread that waits for a frame reads by itself while it waits (:meth:`Lane.wait`). Its
answer then needs no thread switch, so a blocking call costs less than an awaited one. If several
threads wait for replies, the loop reads for all of them. The read lock lets one thread read at a
time, and :mod:`jetsync._io.gate` keeps the loop from being woken for the same bytes.

Out. See :mod:`jetsync._io.outbox`.

The lane gets a socket after the handshake (:mod:`jetsync._io.transport`), so every frame comes from
a server that has passed TLS and accepted the login.

Signal handlers. A handler may call jetsync while its own thread reads for an interrupted call. If
that thread only waits for the socket, the handler takes the reading over
(:meth:`Lane.prepare_wait`). Afterwards the interrupted call tries to read again. If the
thread is processing frames, the handler gets CallInSignalHandlerError.

Guarantees

- Connections are numbered by *epoch*. A write returns the epoch that it was sent on. If that
  connection is lost, all receivers are notified, and waits for its answers end at once.
- After a reconnect, all subscriptions are written before any other block.
- No lock is held while code of the application runs. A forked child waits for no lock of its
  parent.

Locks are taken in this order: read lock, write lock.
"""

from __future__ import annotations

import contextlib
import itertools
import ssl
import sys
import threading
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from jetsync._base.failures import raise_failure
from jetsync._base.locks import owner_check, take
from jetsync._io.gate import ReadGate
from jetsync._io.mailbox import Mailbox
from jetsync._io.outbox import WOULD_BLOCK, LaneState, Outbox, break_connection
from jetsync._io.replies import Waiter
from jetsync._io.subscriptions import Subscriptions
from jetsync._proto import frames
from jetsync.errors import CallInSignalHandlerError, ProtocolError

try:
    import fcntl
    import termios
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

if TYPE_CHECKING:
    import asyncio
    import socket
    from collections.abc import Callable

    from jetsync._base.deadline import Deadline

# Arguments to try a lock without waiting, and to release it, in one call into C; see Lane.wait.
_WITHOUT_WAITING: Final = (False,)
_NO_ARGUMENTS: Final = ((),)

# Bytes of one read: 128 KiB, measured with 128-byte messages. Smaller reads cost more wake-ups.
# Larger ones make the allocator map and unmap memory each time.
READ_SIZE: Final = 1 << 17

# Seconds that the loop waits for a reading thread to stop after the connection has ended. That
# thread stops at once unless a signal handler has interrupted it.
LEADER_WAIT: Final = 1.0

PONG: Final = b"PONG\r\n"

OVERSIZED: Final = "the server refused a message that is larger than its max_payload"


class Lane:
    """
    All reads and writes of one session. The lane survives reconnects.

    Callers: any thread; what stands under "The life of a connection", only the loop thread.
    Lock: the read lock protects the splitter, the gate's ``watched`` and the delivery of frames.

    Receivers are listed in sets and dictionaries that change by single calls into C. The lock of
    the outbox protects writes.

    Args:
        loop: The event loop of the connection.
        on_control: Called in the loop thread with each line that nats-py has to handle, and with
            empty bytes when a connection ends.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, on_control: Callable[[bytes], None]
    ) -> None:
        self._loop = loop
        self._on_control = on_control
        self.outbox: Outbox = Outbox(loop, self._on_tick)
        # Bound here, so that a call of the lane costs no second call.
        self.write: Final = self.outbox.write
        self.write_nowait: Final = self.outbox.write_nowait
        self.post: Final = self.outbox.post
        self.ack: Final = self.outbox.ack
        self.post_nowait: Final = self.outbox.post_nowait
        self.control: Final = self.outbox.control
        self.subscriptions: Subscriptions = Subscriptions(self.outbox, self.later)
        self.shared: Final = self.subscriptions.shared
        self.new_sid: Final = self.subscriptions.new_sid
        self.listen: Final = self.subscriptions.listen
        self.end_with: Final = self.subscriptions.end_with
        self.unsubscribe: Final = self.subscriptions.unsubscribe
        self.receivers: Final = self.subscriptions.receivers
        self._own_lock()
        # The reading thread's gate, and the list that records whether it holds the read lock.
        self._leading: tuple[ReadGate, list[bool | None]] | None = None
        # Whether the reading thread has received bytes that it has not delivered yet.
        self._delivering = False
        # A gate whose reader was interrupted before it checked for waiting threads.
        self._unchecked: ReadGate | None = None
        # The receivers of threads that wait while another thread reads.
        self._followers: set[object] = set()
        # The receivers of all threads that wait for one reply, including one that reads.
        self._requests: set[object] = set()
        self._splitter = frames.Splitter(self.subscriptions.boxes)
        self._strays = 0
        # Lines for nats-py, in order, until the loop thread passes them on.
        self._control: deque[bytes] = deque()
        # How many `-ERR` lines were read. Only the reading thread changes it.
        self.errors_read: int = 0
        self._gate: ReadGate | None = None
        # The error if the server sent bytes that are not NATS protocol on the last connection.
        self.fault: ProtocolError | None = None
        # The highest epoch whose connection is gone.
        self.lost_epoch: int = 0
        # The connection that the server ended because of a message above its max_payload, and the
        # request that was written last on it. The server has not processed that request.
        self._oversized_epoch = -1
        self.unprocessed: bytes = b""
        self.bytes_in: int = 0
        # Whether this process is a forked child of the one that connected.
        self.forked: bool = False

    def _own_lock(self) -> None:
        self._read_lock = threading.RLock()
        # Bound here because each wait calls it.
        self.reads_here: Callable[[], bool] = owner_check(self._read_lock)

    def __repr__(self) -> str:
        return (
            f"<Lane {self.state.value} epoch={self.epoch} subscriptions={len(self.subscriptions)} "
            f"out={self.outbox.size}>"
        )

    @property
    def state(self) -> LaneState:
        """Whether blocks may be written."""
        return self.outbox.state

    @property
    def epoch(self) -> int:
        """The number of the connection, counted from 1; 0 before the first."""
        return self.outbox.epoch

    def check(self, *, while_closing: bool = False) -> None:
        """
        Raise if the client is closed or closes, or if this process is a forked child.

        With *while_closing*, a client that still closes is fine.
        """
        reason = self.outbox.reason
        if reason is not None and not (while_closing and self.state is not LaneState.CLOSED):
            raise_failure(reason)

    @property
    def strays(self) -> int:
        """How many frames arrived for dropped subscriptions."""
        return self._strays + self._splitter.strays

    # In.

    def wait(self, receiver: Waiter | Mailbox, deadline: Deadline) -> bool:
        """
        Wait until *receiver* is ready, and return whether it is; any thread.

        The calling thread reads the socket meanwhile, unless another thread reads it or several
        threads wait for replies. Only one thread at a time may wait for a receiver. Ctrl-C
        interrupts the wait.

        Raises:
            CallInSignalHandlerError: See :meth:`prepare_wait`.
        """
        if self.reads_here() or self.outbox.held_here() or self._unchecked is not None:
            self.prepare_wait()
        outbox = self.outbox
        if outbox.acks or outbox.posted:
            outbox.flush_posted()
        followers, requests = self._followers, self._requests
        while not receiver.ready:
            remaining = deadline.remaining()
            if remaining <= 0.0:
                return False
            # Ctrl-C may strike between two steps of Python code. If it struck after the lock was
            # taken and before that was recorded, the lock would never be released. Ctrl-C never
            # strikes inside one call into C, so such a call takes the lock and records that.
            taken: list[bool | None] = []
            gate = None
            try:
                # Added before the lock is tried. A thread that stops reading first releases the
                # lock and then checks for followers. So if this thread does not get the lock, that
                # thread finds the follower and has the loop read.
                followers.add(receiver)
                if isinstance(receiver, Waiter):
                    requests.add(receiver)
                gate = self._gate
                if (
                    gate is not None
                    and gate.can_lead
                    and not gate.over
                    # If several threads wait for replies, the loop continues to read. A thread
                    # would soon stop again, and 4 threads would get a third fewer replies.
                    and not (gate.watched and len(requests) > 1)
                ):
                    taken.extend(map(self._read_lock.acquire, _WITHOUT_WAITING))
                if gate is None or True not in taken:
                    receiver.signal.wait(remaining)
                    continue
                followers.discard(receiver)
                self._lead(gate, receiver, deadline, taken)
                self._stop_leading(gate, taken)
            except BaseException:
                followers.discard(receiver)
                requests.discard(receiver)
                if gate is not None and True in taken:
                    self._stop_leading(gate, taken)
                raise
            finally:
                followers.discard(receiver)
                requests.discard(receiver)
        return True

    def _lead(
        self,
        gate: ReadGate,
        receiver: Waiter | Mailbox,
        deadline: Deadline,
        taken: list[bool | None],
    ) -> None:
        """Read the socket in this thread until *receiver* is ready; the read lock is held."""
        assert self.reads_here()
        gate.led = True
        if gate.watched:
            gate.unwatch()
        poller = gate.poller
        # From here until the loop watches again, a signal handler may take over the reading. It
        # records that in `taken`.
        self._leading = gate, taken
        try:
            while not receiver.ready and not gate.over and taken == [True]:
                remaining = deadline.remaining()
                if remaining <= 0.0:
                    return
                if poller.wait(remaining) and taken == [True]:
                    self._read(gate)
        finally:
            if taken == [True]:
                self._leading = None
            if poller is not gate.poller:
                poller.close()

    def _stop_leading(self, gate: ReadGate, taken: list[bool | None]) -> None:
        """
        Stop reading and let another thread read.

        If *taken* says that this thread holds the read lock, release it and record that in *taken*.
        After Ctrl-C the call can be repeated. If threads wait, the loop reads for them at once.
        Otherwise the loop stays asleep for a while, because a thread that waited once usually waits
        again soon.
        """
        if taken == [True]:
            self._leading = None
            if self._followers:
                gate.watch()
            self._unchecked = gate
            # Released and recorded by one call into C, as it was taken.
            taken.extend(itertools.starmap(self._read_lock.release, _NO_ARGUMENTS))
        if gate.over:
            # The loop may have been waiting for this thread to stop.
            self.later(0.0, gate.close)
        elif not gate.watched and (self._followers or not self.outbox.tick_due):
            self._serve_followers(gate)
        self._unchecked = None

    def _serve_followers(self, gate: ReadGate) -> None:
        """Have the loop read for waiting threads at once, or at a tick if there are none."""
        if self._followers:
            self._watch_if_free(gate)
        else:
            gate.led = False
            self.outbox.tick_later()

    def _on_tick(self) -> bool:
        """Have the loop read if no thread has read since the last tick; return whether one has."""
        gate = self._gate
        if gate is None or gate.watched:
            return False
        led, gate.led = gate.led, False
        if not led:
            # If a thread has been reading since before the last tick, it asks for a tick when it
            # stops. Ticks during a long wait would cost 2% of a processor.
            self._watch_if_free(gate)
        return led

    def _watch_if_free(self, gate: ReadGate) -> None:
        """Have the loop read, unless a thread is reading."""
        taken: list[bool] = []
        try:
            if take(self._read_lock, taken):
                gate.watch()
        finally:
            if True in taken:
                self._read_lock.release()

    def prepare_wait(self) -> None:
        """
        Take over the reading if this signal handler interrupted a call that reads the socket.

        Call this before you send a request and wait for its answer.

        Raises:
            CallInSignalHandlerError: The interrupted call is processing received bytes or writing.
                Other threads cannot write either, so the handler must not wait for them.
        """
        if self.reads_here() or self.outbox.held_here():
            if self._leading is None or self.is_busy_here():
                raise CallInSignalHandlerError
            gate, taken = self._leading
            gate.replace_poller()
            self._stop_leading(gate, taken)
        elif self._unchecked is not None:
            self._serve_followers(self._unchecked)

    def is_busy_here(self) -> bool:
        """
        Return whether a signal handler has interrupted a read or a write of its own thread.
        """
        return self.outbox.held_here() or (
            self.reads_here() and (self._delivering or self._leading is None)
        )

    def later(self, seconds: float, call: Callable[..., object], *arguments: object) -> None:
        """
        Call *call* in the loop thread after *seconds*; any thread.

        *call* has to return quickly. Does nothing if the loop is closed.
        """
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._loop.call_later, seconds, call, *arguments)

    def interrupt(self, box: Mailbox) -> None:
        """End the wait for *box* because its owner has something else to do; any thread."""
        box.interrupt()
        self.wake_reader()

    def wake_reader(self) -> None:
        """Make the reading thread check its receiver again; any thread."""
        gate = self._gate
        if gate is not None:
            gate.wake_reader()

    def _on_readable(self) -> None:
        """Read the socket in the loop thread, unless a waiting thread does."""
        if not self._read_lock.acquire(blocking=False):
            return
        try:
            gate = self._gate
            if gate is not None and not gate.over:
                self._read(gate)
        finally:
            self._read_lock.release()

    def _read(self, gate: ReadGate) -> None:
        """Read once and deliver all whole frames; the calling thread has the read lock."""
        sock = gate.sock
        try:
            self._delivering = True
            if not self.reads_here():
                return  # A signal handler has taken over the reading at the last moment.
            try:
                if isinstance(sock, ssl.SSLSocket):
                    data = self._receive_tls(sock)
                else:
                    data = sock.recv(READ_SIZE)
            except WOULD_BLOCK:
                return
            except OSError:
                data = b""
            # The connection may have ended while a signal handler interrupted this thread.
            if not gate.over:
                gate.over = not data
                self._deliver(data, gate.splitter)
        except BaseException:
            # Ctrl-C struck after some frames were delivered. Delivering the data again would
            # repeat them.
            break_connection(sock)
            raise
        finally:
            self._delivering = False

    def _receive_tls(self, sock: ssl.SSLSocket) -> bytes:
        # Two threads must not use a TLS object at once, even if one reads and the other writes.
        with self.outbox.lock:
            parts = [sock.recv(READ_SIZE)]
            # The rest of a decrypted record waits inside the object, where poll does not see it.
            while sock.pending():
                parts.append(sock.recv(READ_SIZE))
        return b"".join(parts)

    def _deliver(self, data: bytes, splitter: frames.Splitter) -> None:
        """Deliver the frames in *data*; empty data is the end of the connection."""
        if not data:
            self._pass_control([b""])
            return
        self.bytes_in += len(data)
        if self.fault is not None:
            return
        touched: list[Any] = []
        control: list[bytes] = []
        try:
            splitter.feed(data, touched, control)
        except ValueError as error:
            # Nothing that follows can be trusted.
            self.fault = ProtocolError(f"invalid NATS protocol from the server: {error}")
            self.abort()
        for box in touched:
            box.wake()
        if control:
            # A PONG for jetsync does not wake the loop.
            pongs: list[Waiter] = []
            control = [line for line in control if not self._take_pong(line, pongs)]
            if control:
                self._pass_control(control)
            # Last, so that the loop knows of the errors that came before a PONG.
            for waiter in pongs:
                waiter.deliver((b"", b"", None, b""))

    def _take_pong(self, line: bytes, pongs: list[Waiter]) -> bool:
        """Add the waiter of the oldest PING if *line* answers it; return whether it does."""
        if line != PONG or not self.outbox.pings:
            return False
        waiter = self.outbox.pings.popleft()
        if waiter is None:
            return False
        pongs.append(waiter)
        return True

    def _pass_control(self, lines: list[bytes]) -> None:
        """
        Pass lines to nats-py in the loop thread, in the order in which they arrived.

        This thread does not pass them on itself: they are logged, and log handlers must not run
        under the read lock.
        """
        self._control.extend(lines)
        self.errors_read += sum([line.startswith(b"-ERR") for line in lines])
        with contextlib.suppress(RuntimeError):  # The loop is closed already.
            self._loop.call_soon_threadsafe(self._drain_control)

    def _drain_control(self) -> None:
        control = self._control
        while control:
            line = control.popleft()
            if not line and self._gate is not None:
                # A socket at its end stays readable until it is closed, perhaps seconds later. It
                # would wake the loop all the time.
                self._gate.ignore()
            self._on_control(line)

    # The life of a connection; all of these run in the loop thread.

    def attach(self, sock: socket.socket, received: bytes = b"", max_payload: int = 0) -> None:
        """
        Use a connected, non-blocking socket whose handshake is complete.

        Args:
            sock: The socket.
            received: The bytes that the server has sent since the handshake.
            max_payload: The limit that the server announced, in bytes.
        """
        # A new splitter, because an interrupted thread may still use that of the last connection.
        self._strays += self._splitter.strays
        self._splitter = frames.Splitter(self.subscriptions.boxes, max_payload)
        self._control.clear()
        self.fault = None
        self.outbox.attach(sock)
        if received:
            self._deliver(received, self._splitter)
        self._gate = ReadGate(
            sock,
            self._splitter,
            self._loop,
            self._on_readable,
            self.reads_here,
        )

    def open(self) -> None:
        """Write all subscriptions again and allow writes: the server has accepted the login."""
        self.outbox.open(self.subscriptions.repeat())

    def detach(self) -> None:
        """
        Close the socket and tell every receiver that its requests in flight are lost.

        Can be called repeatedly.
        """
        gate, self._gate = self._gate, None
        self.abort()
        if gate is not None:
            gate.over = True
            # A reading thread stops at once, because the end of the connection wakes its poll.
            gate.wake_reader()
            if self._read_lock.acquire(timeout=LEADER_WAIT):
                gate.close()
                self._read_lock.release()
        if self.outbox.detach():
            if self._oversized_epoch == self.epoch:
                self.unprocessed = self.outbox.last_request
            self.lost_epoch = self.epoch
            for receiver in self.receivers():
                receiver.lost(self.lost_epoch)
        pings = self.outbox.pings
        while pings:
            waiter = pings.popleft()
            if waiter is not None:
                waiter.lost(waiter.epoch)

    def after_fork(self) -> None:
        """
        Leave the socket to the parent process; each call raises ForkedProcessError from now on.

        Takes no lock.
        """
        self.forked = True
        # Kept alive, because its epoll object is shared with the parent.
        self._inherited = self._gate
        self._gate = self._leading = None
        self._delivering = False
        self._own_lock()
        self.outbox.after_fork()
        # A fast publisher stages no message after this wake-up. Its next call raises.
        for receiver in self.receivers():
            receiver.failure = receiver.failure or self.outbox.reason
            receiver.wake()

    def begin_close(self, reason: Exception) -> None:
        """
        End every wait and every write with *reason*, now and later, but let publishers finish.

        They use mailboxes and writes that are marked with ``while_closing``.
        """
        if not self.outbox.begin_close(reason):
            return
        for receiver in (*self.receivers(), *filter(None, list(self.outbox.pings))):
            if not (isinstance(receiver, Mailbox) and receiver.while_closing):
                receiver.fail(reason)
        self.wake_reader()

    def close(self, reason: Exception) -> None:
        """End every wait and every write, now and later, with *reason*."""
        if not self.outbox.close(reason):
            return
        for receiver in (*self.receivers(), *filter(None, list(self.outbox.pings))):
            receiver.fail(reason)
        self.wake_reader()

    def note_oversized(self) -> None:
        """Note that the server ends the connection because of a message above its max_payload."""
        self._oversized_epoch = self.epoch

    def why_lost(self, epoch: int) -> str | None:
        """Return why the server ended the connection *epoch*, if that is known."""
        return OVERSIZED if epoch == self._oversized_epoch else None

    def delivered(self) -> int:
        """Return how many bytes the server's kernel has received; all sent bytes if unknown."""
        sock = self.outbox.sock
        if sock is not None and fcntl is not None:
            with contextlib.suppress(OSError, ValueError):
                waiting = fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, bytes(4))
                return self.outbox.bytes_out - int.from_bytes(waiting, sys.byteorder)
        return self.outbox.bytes_out

    def has_input(self) -> bool:
        """Return whether bytes have arrived that no thread has read yet; loop thread."""
        gate = self._gate
        return gate is not None and gate.has_input()

    def abort(self) -> None:
        """End the connection, for example because it sends invalid bytes; any thread."""
        sock = self.outbox.sock
        if sock is not None:
            break_connection(sock)
