"""
All reads of the socket after the handshake, and which thread reads.

Normally the loop thread reads. A thread that waits for a frame reads by itself while it waits
(:meth:`Reader.wait`). Its answer then needs no thread switch, so a blocking call costs less than an
awaited one. If several threads wait for replies, the loop reads for all of them. The read lock lets
one thread read at a time, and :mod:`jetsync._io.gate` keeps the loop from being woken for the same
bytes.

A signal handler that interrupts a wait cannot wait for another answer: see
:mod:`jetsync._base.turn`.
"""

from __future__ import annotations

import contextlib
import ssl
import threading
import time
from typing import TYPE_CHECKING, Final

from jetsync._base.locks import use_if_free
from jetsync._base.turn import waiting
from jetsync._io.gate import ReadGate
from jetsync._io.outbox import WOULD_BLOCK, break_connection
from jetsync._io.replies import Waiter
from jetsync.errors import CallInSignalHandlerError

if TYPE_CHECKING:
    import asyncio
    import socket
    from collections.abc import Callable

    from jetsync._base.deadline import Deadline
    from jetsync._io.mailbox import Mailbox
    from jetsync._io.outbox import Outbox
    from jetsync._proto.frames import Splitter

# Bytes of one read: 128 KiB, measured with 128-byte messages. Smaller reads cost more wake-ups.
# Larger ones make the allocator map and unmap memory each time.
READ_SIZE: Final = 1 << 17

# Seconds that the loop waits for a reading thread to stop after the connection has ended. That
# thread stops at once unless a signal handler has interrupted it.
LEADER_WAIT: Final = 1.0


class Reader:
    """
    Reads the socket of a lane, in the thread that waits or in the loop thread.

    Threads: any thread; ``attach``, ``detach`` and ``stop_watching``, only the loop thread.
    Locks: the read lock, ``_read_lock``, protects a read with its delivery, and the gate's
    ``watched``.

    Args:
        loop: The event loop of the connection.
        outbox: The outbox of the lane. Its write lock is taken after the read lock.
        deliver: Called with the bytes of a read and the splitter of their connection.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        outbox: Outbox,
        deliver: Callable[[bytes, Splitter], None],
    ) -> None:
        self._loop = loop
        self._outbox = outbox
        self._deliver = deliver
        self._gate: ReadGate | None = None
        self._read_lock = threading.RLock()
        # The receivers of threads that wait while another thread reads.
        self._followers: set[object] = set()
        # The receivers of all threads that wait for one reply, including one that reads.
        self._requests: set[object] = set()

    def wait(
        self, receiver: Waiter | Mailbox, deadline: Deadline, until: float | None = None
    ) -> bool:
        """
        Wait until *receiver* is ready, and return whether it is; any thread.

        With *until*, a moment on the monotonic clock, the wait may end before the deadline.

        The calling thread reads the socket meanwhile, unless another thread reads it or several
        threads wait for replies. Only one thread at a time may wait for a receiver. Ctrl-C
        interrupts the wait.

        Raises:
            CallInSignalHandlerError: This signal handler interrupted a wait or a write.
        """
        outbox = self._outbox
        if outbox.writes_here():
            raise CallInSignalHandlerError
        # Not for delegated requests, which another thread is sending.
        if outbox.acks or outbox.flush_soon.due:
            outbox.flush_posted()
        return waiting(self._wait, receiver, deadline, until)

    def _wait(self, receiver: Waiter | Mailbox, deadline: Deadline, until: float | None) -> bool:
        followers, requests = self._followers, self._requests
        while not receiver.ready:
            remaining = deadline.remaining()
            if until is not None:
                remaining = min(remaining, until - time.monotonic())
            if remaining <= 0.0:
                return False
            led = None
            try:
                # Added before the read lock is tried. A thread that stops reading first releases
                # the lock and then checks for followers. So if this thread does not get the lock,
                # that thread finds the follower and has the loop read.
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
                    led = gate
                    if use_if_free(self._read_lock, self._lead, gate, receiver, deadline, until):
                        continue
                    led = None
                receiver.signal.wait(remaining)
            finally:
                try:
                    self._stop_waiting(receiver, led)
                except BaseException:
                    # Ctrl-C struck in between, and the other threads would wait for ever.
                    self._stop_waiting(receiver, led)
                    raise
        return True

    def _lead(
        self,
        gate: ReadGate,
        receiver: Waiter | Mailbox,
        deadline: Deadline,
        until: float | None,
    ) -> bool:
        """Read the socket in this thread until *receiver* is ready or the time is over."""
        self._followers.discard(receiver)
        gate.led = True
        if gate.watched:
            gate.unwatch()
        while not receiver.ready and not gate.over:
            remaining = deadline.remaining()
            if until is not None:
                remaining = min(remaining, until - time.monotonic())
            if remaining <= 0.0:
                break
            if gate.poller.wait(remaining):
                self._read(gate)
        if self._followers:
            # Before another thread can take the lock; see `_wait`.
            gate.watch()
        return True

    def _stop_waiting(self, receiver: Waiter | Mailbox, led: ReadGate | None) -> None:
        """
        Let other threads read, if this one has read from the gate *led*. Can be called repeatedly.

        If threads wait, the loop reads for them at once. Otherwise the loop stays asleep for a
        while, because a thread that waited once usually waits again soon.
        """
        self._followers.discard(receiver)
        self._requests.discard(receiver)
        if led is None:
            return
        if led.over:
            # The loop may have been waiting for this thread to stop.
            with contextlib.suppress(RuntimeError):  # The loop is closed.
                self._loop.call_soon_threadsafe(self._close, led)
        elif not led.watched:
            if self._followers:
                self._watch_if_free(led)
            elif not self._outbox.tick.due:
                led.led = False
                self._outbox.tick.ask()

    def _close(self, gate: ReadGate) -> None:
        """Close *gate*, of a lost connection, once no thread reads; loop thread."""
        use_if_free(self._read_lock, gate.close)
        if not gate.closed:
            # Another thread reads from the next connection.
            self._loop.call_later(LEADER_WAIT, self._close, gate)

    def on_tick(self) -> bool:
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
        use_if_free(self._read_lock, gate.watch)

    def wake_reader(self) -> None:
        """Make the reading thread check its receiver again; any thread."""
        gate = self._gate
        if gate is not None:
            gate.wake_reader()

    def _on_readable(self) -> None:
        """Read the socket in the loop thread, unless a waiting thread does."""
        gate = self._gate
        if gate is not None and not gate.over:
            use_if_free(self._read_lock, self._read, gate)

    def _read(self, gate: ReadGate) -> None:
        """Read once and deliver all whole frames."""
        sock = gate.sock
        try:
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
                self._deliver(data, gate.splitter)
                if not data:
                    # Last: after Ctrl-C in between, the next read must find the end again.
                    gate.over = True
        except BaseException:
            # Ctrl-C struck after some frames were delivered. Delivering the data again would
            # repeat them.
            break_connection(sock)
            raise

    def _receive_tls(self, sock: ssl.SSLSocket) -> bytes:
        # Two threads must not use a TLS object at once, even if one reads and the other writes.
        with self._outbox.write_lock:
            return _decrypted(sock)

    # The life of a connection; loop thread.

    def attach(self, sock: socket.socket, splitter: Splitter) -> None:
        """Read *sock* from now on."""
        self._gate = ReadGate(sock, splitter, self._loop, self._on_readable)

    def detach(self) -> None:
        """Stop reading, because the connection has ended. Can be called repeatedly."""
        gate, self._gate = self._gate, None
        if gate is not None:
            gate.over = True
            # A reading thread stops at once, because the end of the connection wakes its poll.
            gate.wake_reader()
            if self._read_lock.acquire(timeout=LEADER_WAIT):
                gate.close()
                self._read_lock.release()

    def stop_watching(self) -> None:
        """
        Do not wake the loop for this connection any more.

        A socket at its end stays readable until it is closed, perhaps seconds later. It would wake
        the loop all the time.
        """
        if self._gate is not None:
            self._gate.ignore()

    def has_input(self) -> bool:
        """Return whether bytes have arrived that no thread has read yet; loop thread."""
        return self._gate is not None and self._gate.has_input()

    def after_fork(self) -> None:
        """Leave the socket to the parent process. Takes no lock."""
        # Kept alive, because its epoll object is shared with the parent.
        self._inherited = self._gate
        self._gate = None
        self._read_lock = threading.RLock()


def _decrypted(sock: ssl.SSLSocket) -> bytes:
    """Return what has arrived, in the write lock; see :mod:`jetsync._base.turn` about loops."""
    parts = [sock.recv(READ_SIZE)]
    # The rest of a decrypted record waits inside the object, where poll does not see it.
    while sock.pending():
        parts.append(sock.recv(READ_SIZE))
    return b"".join(parts)
