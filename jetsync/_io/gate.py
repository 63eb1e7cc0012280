"""
Which thread is woken when the socket is readable: the loop thread, or one that waits for an answer.

If the loop thread read the answer, a blocking call would need two thread switches, which cost more
than the work of the call. So the waiting thread reads by itself, and the gate keeps the loop from
being woken for the same bytes.
"""

from __future__ import annotations

import contextlib
import select
import socket
from typing import TYPE_CHECKING

from jetsync._base.locks import SIGNAL_CHECK
from jetsync._io.outbox import below_tls

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from jetsync._proto.frames import Splitter


class Poller:
    """
    Waits for a socket in one thread, and can be woken by others.

    Threads: the thread that reads the socket waits, and any thread wakes it.
    Locks: the read lock, except for :meth:`wake`, which needs none.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._fd = sock.fileno()
        self._waker, self._wakee = socket.socketpair()
        # The two descriptors that `wait` waits for.
        self.fds: tuple[int, int] = (self._fd, self._wakee.fileno())
        self._wakee.setblocking(False)
        self._waker.setblocking(False)
        self._poll = select.poll()
        self._poll.register(self._fd, select.POLLIN)
        self._poll.register(self._wakee, select.POLLIN)

    def wait(self, timeout: float) -> bool:
        """Wait up to *timeout* seconds and return whether the socket is readable."""
        # Rounded up, because a wait that ends before its deadline would spin.
        ready = self._poll.poll(int(min(timeout, SIGNAL_CHECK) * 1000.0) + 1)
        readable = False
        for fd, _ in ready:
            if fd == self._fd:
                readable = True
            else:
                self._wakee.recv(4096)
        return readable

    def wake(self) -> None:
        """End the wait of another thread, or its next one; any thread."""
        # If the socket is full, a wake-up is pending. If it is closed, the thread does not read.
        with contextlib.suppress(OSError):
            self._waker.send(b"!")

    def close(self) -> None:
        """Release the sockets, once no thread waits with them."""
        self._waker.close()
        self._wakee.close()


class ReadGate:
    """
    Decides which thread is notified when a socket is readable: the loop's or a waiting one.

    Threads: any thread; opening and closing, only the loop thread.
    Locks: the read lock protects ``watched`` and the entry of the epoll object.

    The loop watches an epoll object whose only entry is the socket. A thread that reads by itself
    disables that entry, which any thread may do, and polls the socket. The entry stays disabled
    while threads keep reading. On a busy machine, publishes would have half of the throughput if
    every burst of acks woke the loop.

    Without epoll, the loop watches the socket itself and always reads.

    Args:
        sock: The socket.
        splitter: Splits what this socket receives, and nothing from another connection.
        loop: The event loop of the connection.
        on_readable: Reads, in the loop thread.
    """

    def __init__(
        self,
        sock: socket.socket,
        splitter: Splitter,
        loop: asyncio.AbstractEventLoop,
        on_readable: Callable[[], None],
    ) -> None:
        self.sock = sock
        self.splitter = splitter
        # Whether the connection has ended, so that nothing more is read from it.
        self.over = False
        # Whether the loop is notified.
        self.watched = True
        # Whether a thread has read since the last tick.
        self.led = False
        self.can_lead = hasattr(select, "epoll")
        self._loop = loop
        self._fd = self._loop_fd = sock.fileno()
        self.closed = False
        if self.can_lead:
            self._epoll = select.epoll()
            self._epoll.register(self._fd, select.EPOLLIN)
            self._loop_fd = self._epoll.fileno()
            # What the reading thread waits with.
            self.poller = Poller(sock)
        # What `asker` uses: the descriptors that the poller waits for, and that of the epoll.
        # None if only Python can read the socket.
        is_plain = self.can_lead and type(sock) is socket.socket
        self.fds: tuple[int, int, int] | None = (
            (*self.poller.fds, self._loop_fd) if is_plain else None
        )
        loop.add_reader(self._loop_fd, on_readable)

    def unwatch(self) -> None:
        """Stop notifying the loop; the caller has the read lock."""
        if self.watched and not self.closed:
            # Noted first: after Ctrl-C in between, a disabled entry must not look enabled.
            self.watched = False
            self._epoll.modify(self._fd, 0)

    def watch(self) -> None:
        """Notify the loop again; the caller has the read lock."""
        if not self.watched and not self.closed:
            self._epoll.modify(self._fd, select.EPOLLIN)
            self.watched = True

    def has_input(self) -> bool:
        """Return whether the socket is readable, or at its end; any thread."""
        try:
            # The method of a TLS socket accepts no flags.
            below_tls(self.sock).recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            pass
        return True

    def wake_reader(self) -> None:
        """Wake the thread that reads, if there is one; any thread."""
        if self.can_lead:
            self.poller.wake()

    def ignore(self) -> None:
        """Stop notifying the loop for the rest of the gate's life; loop thread."""
        if not self.closed:
            self._loop.remove_reader(self._loop_fd)

    def close(self) -> None:
        """Release everything, once no thread reads; loop thread. Can be called repeatedly."""
        if self.closed:
            return
        self.closed = True
        self._loop.remove_reader(self._loop_fd)
        if self.can_lead:
            self._epoll.close()
            self.poller.close()
