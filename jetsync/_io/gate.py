"""
Which thread reads the socket: the loop thread, or a thread that waits for an answer.

If the loop thread read the answer, a blocking call would need two thread switches, which cost more
than the work of the call. So the waiting thread reads by itself, and the gate keeps the loop from
being woken for the same bytes.
"""

from __future__ import annotations

import contextlib
import select
import socket
from typing import TYPE_CHECKING, Final

from jetsync._base.locks import SIGNAL_CHECK
from jetsync._io.outbox import ACK_DELAY, below_tls

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from jetsync._io.outbox import Outbox
    from jetsync._proto.frames import Splitter


# Seconds after which the loop checks whether threads have stopped reading: 5 ms. That is long
# enough for the loop thread of a busy program to sleep. A PING of the server, or a message that no
# thread waits for, is read at most 10 ms late. The check also sends the acks that are collected.
CHECK_INTERVAL: Final = ACK_DELAY


class Poller:
    """
    Waits for a socket in one thread, and can be woken by others.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._fd = sock.fileno()
        self._waker, self._wakee = socket.socketpair()
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
                # Closed if a signal handler has closed the client meanwhile.
                with contextlib.suppress(OSError):
                    self._wakee.recv(4096)
        return readable

    def wake(self) -> None:
        """End the wait of another thread, or its next one; any thread."""
        # Full means that it is being woken already. Closed means that it has stopped reading.
        with contextlib.suppress(OSError):
            self._waker.send(b"!")

    def retire(self) -> None:
        """End the wait that a signal handler has interrupted, and every later one."""
        self._waker.close()

    def close(self) -> None:
        """Release the sockets, once no thread waits with them."""
        self._waker.close()
        self._wakee.close()


class ReadGate:
    """
    Decides which thread is notified when a socket is readable: the loop's or a waiting one.

    The loop watches an epoll object whose only entry is the socket. A thread that reads by itself
    disables that entry, which any thread may do, and polls the socket. The entry stays disabled
    while threads keep reading: in a burst of publishes, waking the loop for every burst of acks
    costs half of the throughput on a busy machine.

    Without epoll, the loop watches the socket itself and always reads.

    Args:
        sock: The socket.
        splitter: Splits what this socket receives, and nothing from another connection.
        loop: The event loop of the connection.
        on_readable: Reads, in the loop thread.
        watch_if_free: Calls :meth:`watch` unless a thread reads, and returns whether it did.
        outbox: Asked at each check to send what is collected.
    """

    def __init__(
        self,
        sock: socket.socket,
        splitter: Splitter,
        loop: asyncio.AbstractEventLoop,
        *,
        on_readable: Callable[[], None],
        watch_if_free: Callable[[ReadGate], bool],
        outbox: Outbox,
    ) -> None:
        self.sock = sock
        self.splitter = splitter
        # Whether the connection has ended, so that nothing more is read from it.
        self.over = False
        # Whether the loop is notified; changes under the lane's read lock.
        self.watched = True
        # Whether a thread has read since the last check.
        self.led = False
        # Whether the loop will check soon whether it has to read, and send what was posted.
        self.check_pending = False
        self.can_lead = hasattr(select, "epoll")
        self._loop = loop
        self._watch_if_free = watch_if_free
        self._outbox = outbox
        self._fd = self._loop_fd = sock.fileno()
        self._closed = False
        if self.can_lead:
            self._epoll = select.epoll()
            self._epoll.register(self._fd, select.EPOLLIN)
            self._loop_fd = self._epoll.fileno()
            # What the reading thread waits with.
            self.poller = Poller(sock)
        loop.add_reader(self._loop_fd, on_readable)

    def replace_poller(self) -> None:
        """
        End the wait that a signal handler has interrupted in this thread, and make a new poller.

        The old one is in use until the handler has returned. The thread that waits with it closes
        it then, because its file descriptors must not be reused before.
        """
        self.poller.retire()
        self.poller = Poller(self.sock)

    def unwatch(self) -> None:
        """Stop notifying the loop; the lane's read lock is held."""
        if self.watched and not self._closed:
            # Noted first: after Ctrl-C in between, a disabled entry must not look enabled.
            self.watched = False
            self._epoll.modify(self._fd, 0)

    def watch(self) -> None:
        """Notify the loop again; the lane's read lock is held."""
        if not self.watched and not self._closed:
            self._epoll.modify(self._fd, select.EPOLLIN)
            self.watched = True

    def check_later(self) -> None:
        """Have the loop check after :data:`CHECK_INTERVAL` seconds whether it has to read."""
        if not self.check_pending:
            self.check_pending = True
            try:
                self._outbox.flush_due = True
                self._loop.call_soon_threadsafe(self._check)
            except RuntimeError:
                pass  # The loop is closed.
            except BaseException:
                # Ctrl-C: one check too many does no harm, but one must come.
                self.check_pending = self._outbox.flush_due = False
                raise

    def _check(self) -> None:
        """Notify the loop again if no thread has read since the last check; loop thread."""
        # Cleared first: a thread that stops reading from here on asks for a check of its own.
        self.check_pending = False
        # Also if this connection is over: the acks of the next one may rely on it.
        self._outbox.flush_on_time()
        if self._closed or self.watched:
            return
        if self.led or not self._watch_if_free(self):
            self.led = False
            self.check_pending = self._outbox.flush_due = True
            self._loop.call_later(CHECK_INTERVAL, self._check)

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
        """Notify the loop no more; loop thread."""
        if not self._closed:
            self._loop.remove_reader(self._loop_fd)

    def close(self) -> None:
        """Release everything, once no thread reads; loop thread. Can be called repeatedly."""
        if self._closed:
            return
        self._closed = True
        self._loop.remove_reader(self._loop_fd)
        if self.can_lead:
            self._epoll.close()
            self.poller.close()
