"""
Who reads the socket: the loop thread, or a thread that waits for an answer.

A blocking call that lets the loop thread read its answer pays for two thread switches, which cost
more than the call's own work. So the waiting thread reads by itself, and this gate sees to it that
the loop is not woken for the same bytes.
"""

from __future__ import annotations

import contextlib
import select
import socket
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from jetsync._proto.frames import Splitter

LONGEST_POLL: Final = 86_400.0
"""Seconds of one poll at most: a day."""


LINGER: Final = 0.01
"""
Seconds after which the loop looks whether threads have stopped reading by themselves: 10 ms.

Long enough that a busy program's loop thread sleeps, short enough that nobody notices that a PING
or a message that nobody waits for was read 20 ms late.
"""


class Poller:
    """How one thread waits for a socket, and is woken from elsewhere meanwhile."""

    def __init__(self, sock: socket.socket) -> None:
        self._fd = sock.fileno()
        self._waker, self._wakee = socket.socketpair()
        self._wakee.setblocking(False)
        self._waker.setblocking(False)
        self._poll = select.poll()
        self._poll.register(self._fd, select.POLLIN)
        self._poll.register(self._wakee, select.POLLIN)

    def wait(self, timeout: float) -> bool:
        """Wait up to *timeout* seconds and return whether the socket has something."""
        # Rounded up: a wait that ends before its deadline would spin. Poll takes no more
        # milliseconds than an int of C has; the caller asks again.
        ready = self._poll.poll(int(min(timeout, LONGEST_POLL) * 1000.0) + 1)
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
        # Full means that it is being woken already; closed, that it has left.
        with contextlib.suppress(OSError):
            self._waker.send(b"!")

    def retire(self) -> None:
        """End the wait that a signal handler has interrupted, and every later one."""
        self._waker.close()

    def close(self) -> None:
        """Release what this holds, once no thread waits with it."""
        self._waker.close()
        self._wakee.close()


class ReadGate:
    """
    Decides which thread is told that a socket has something to read: the loop's, or one that waits.

    The loop watches an epoll object of ours, in which the socket is the only entry; a thread that
    reads by itself disarms that entry, which any thread may do, and watches the socket with a poll
    of its own. It
    stays disarmed while threads keep coming back to read: measured in a burst of publishes, waking
    the loop for every burst of acks costs half of the throughput on a busy machine.

    Where the system has no epoll the loop watches the socket itself and always reads.

    Args:
        on_readable: Reads, in the loop thread.
        arm: Arms this gate if no thread reads, and returns whether it did.
        on_look: Called in the loop thread at each look at whether threads still read.
    """

    def __init__(
        self,
        sock: socket.socket,
        splitter: Splitter,
        loop: asyncio.AbstractEventLoop,
        *,
        on_readable: Callable[[], None],
        arm: Callable[[ReadGate], bool],
        on_look: Callable[[], None] = lambda: None,
    ) -> None:
        self.sock = sock
        self.splitter = splitter
        """Cuts what this socket receives, and nothing that comes from another one."""

        self.over = False
        """Whether the connection has ended: nothing more is read from it."""

        self.armed = True
        """Whether the loop is told; changes under the lane's read lock."""

        self.can_lead = hasattr(select, "epoll")
        self._loop = loop
        self._arm_if_free = arm
        self._on_look = on_look
        self._fd = sock.fileno()
        self._closed = False
        self._led = False
        """Whether a thread has read since the loop looked last."""

        self._looking = False
        if self.can_lead:
            self._epoll = select.epoll()
            self._epoll.register(self._fd, select.EPOLLIN)
            self._watched = self._epoll.fileno()
            self.poller = Poller(sock)
            """What the thread that reads now waits with."""
        else:
            self._watched = self._fd
        loop.add_reader(self._watched, on_readable)

    def replace_poller(self) -> None:
        """
        End the wait that a signal handler has interrupted in this thread; make a new poller.

        The old one is in use until the handler has returned. Whoever waits with it closes it then:
        its file descriptors must not be reused before.
        """
        self.poller.retire()
        self.poller = Poller(self.sock)

    def disarm(self) -> None:
        """Take the socket from the loop; the lane's read lock is held."""
        self._led = True
        if self.armed and not self._closed:
            # Noted first: Ctrl-C in between must not leave a gate that only seems to be armed.
            self.armed = False
            self._epoll.modify(self._fd, 0)

    def arm(self) -> None:
        """Give the socket back to the loop; the lane's read lock is held."""
        if not self.armed and not self._closed:
            self._epoll.modify(self._fd, select.EPOLLIN)
            self.armed = True

    def linger(self) -> None:
        """
        Leave the loop alone for now; it looks after :data:`LINGER` seconds whether it is needed.
        """
        if not self._looking:
            self._looking = True
            try:
                self._loop.call_soon_threadsafe(self._look)
            except RuntimeError:
                pass  # The loop is closed.
            except BaseException:
                # Ctrl-C: one look too many does no harm, one that never comes does.
                self._looking = False
                raise

    def is_lingering(self) -> bool:
        """Return whether the loop will look soon, and do what threads left undone; any thread."""
        return self._looking

    def _look(self) -> None:
        """Arm if no thread has read since the last look; loop thread."""
        # Lowered first: a thread that stops reading from here on asks for a look of its own.
        self._looking = False
        if self._closed:
            return
        self._on_look()
        if self.armed:
            return
        if self._led or not self._arm_if_free(self):
            self._led = False
            self._looking = True
            self._loop.call_later(LINGER, self._look)

    def has_input(self) -> bool:
        """Return whether the socket has something to read, or is at its end; any thread."""
        try:
            # Not the method of a TLS socket, which takes no flags.
            socket.socket.recv(self.sock, 1, socket.MSG_PEEK)
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
        """Have the loop not told any more; loop thread."""
        if not self._closed:
            self._loop.remove_reader(self._watched)

    def close(self) -> None:
        """Stop watching; loop thread, once no thread reads any more. Safe to repeat."""
        if self._closed:
            return
        self._closed = True
        self._loop.remove_reader(self._watched)
        if self.can_lead:
            self._epoll.close()
            self.poller.close()
