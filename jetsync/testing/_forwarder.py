"""
The thread behind `CutProxy`. It owns all sockets, forwards all bytes and runs all actions.

Only `Forwarder.do` and waits on `Forwarder.changed` run on other threads. Sockets and buffers
therefore need no lock, and an action is complete when its call returns.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import struct
import sys
import threading
import time
from collections import deque
from concurrent.futures import Future
from typing import TYPE_CHECKING, Final, Literal, TypeVar

import attrs

from jetsync._base.locks import interrupt_safe_lock
from jetsync._base.reprs import tolerant_repr
from jetsync.devserver._ports import PortReservation, share_address

if TYPE_CHECKING:
    from collections.abc import Callable

Direction = Literal["to_server", "to_client"]
DIRECTIONS: Final[tuple[Direction, Direction]] = ("to_server", "to_client")

_READ_SIZE: Final = 1 << 16

# A delayed or slow direction reads no further ahead than this, so that back-pressure reaches the
# sender.
_BUFFER_LIMIT: Final = 1 << 18

# On, for 0 seconds. Windows has shorter integers here.
_NO_LINGER: Final = struct.pack("hh" if sys.platform == "win32" else "ii", 1, 0)

_CONNECT_TIMEOUT: Final = 5.0
_ACTION_TIMEOUT: Final = 10.0

T = TypeVar("T")


@tolerant_repr
@attrs.frozen
class ProxyStatistics:
    """
    The traffic through a `CutProxy` so far.
    """

    accepted: int
    """Connections that were accepted."""

    open: int
    """Connections that are open now."""

    cuts: int
    """Connections that were cut on purpose."""

    bytes_to_server: int
    """Bytes that were forwarded to the server."""

    bytes_to_client: int
    """Bytes that were forwarded to the client."""


class _Pipe:
    """
    One direction of one connection.
    """

    def __init__(self, direction: Direction, source: socket.socket, sink: socket.socket) -> None:
        self.direction: Direction = direction
        self.source = source
        self.sink = sink
        self.chunks: deque[tuple[float, memoryview]] = deque()
        self.size = 0
        self.ended = False
        self.last = False
        """Whether to cut the link once this buffer is written."""


@attrs.define(eq=False)
class _Link:
    """
    One connection through the proxy: both sockets and both directions.
    """

    client: socket.socket
    server: socket.socket
    pipes: tuple[_Pipe, _Pipe]
    frozen: bool = False
    """Whether nothing is forwarded any more."""


class Forwarder:
    """
    Forward connections on one thread.

    Args:
        target: Host and port of the server.
    """

    def __init__(self, target: tuple[str, int]) -> None:
        self._target = target
        self.reservation = PortReservation()
        self._selector = selectors.DefaultSelector()
        self._wake_read, self._wake_write = socket.socketpair()
        self._wake_read.setblocking(False)
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        self._listener: socket.socket | None = None
        self._thread: threading.Thread | None = None
        self._stopping = False
        self._actions: deque[Callable[[], None]] = deque()
        self._links: list[_Link] = []
        self.paused: set[Direction] = set()
        self.delay: dict[Direction, float] = dict.fromkeys(DIRECTIONS, 0.0)
        self.budget: dict[Direction, int] = {}
        """Bytes that may still pass before the connection is cut."""
        self.reset = False
        """Whether that cut is a reset."""
        self.lock = interrupt_safe_lock()
        self.changed = threading.Condition(self.lock)
        """Notified when a counter changes. Only the thread writes counters."""
        self.accepted = 0
        self.cuts = 0
        self._bytes: dict[Direction, int] = dict.fromkeys(DIRECTIONS, 0)

    @property
    def running(self) -> bool:
        """
        Whether the thread runs.
        """
        return self._thread is not None

    @property
    def open(self) -> int:
        """
        How many connections are open now.
        """
        return len(self._links)

    def start(self) -> None:
        """
        Listen and forward. Does nothing when it already runs.
        """
        if self._thread is None:
            self.listen()
            # A test that forgets to close the proxy must still end.
            self._thread = threading.Thread(target=self._run, name="jetsync-cutproxy", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """
        Close everything and stop. Repeating is harmless.
        """
        thread, self._thread = self._thread, None
        if self._stopping:
            return
        self._stopping = True
        if thread is not None:
            self._wake_write.send(b"x")
            thread.join()
        for link in list(self._links):
            self._drop(link, reset=False)
        self.refuse()
        self._selector.close()
        self._wake_read.close()
        self._wake_write.close()
        self.reservation.release()

    def do(self, action: Callable[[], T]) -> T:
        """
        Run *action* on the thread and return its result. Other threads have no other access.

        Raises:
            RuntimeError: The thread is not running.
        """
        if self._thread is None:
            raise RuntimeError("the proxy is not running")
        done: Future[T] = Future()

        def run() -> None:
            try:
                done.set_result(action())
            except Exception as error:  # noqa: BLE001 - raised in the caller's thread
                done.set_exception(error)

        self._actions.append(run)
        self._wake_write.send(b"x")
        return done.result(_ACTION_TIMEOUT)

    # -- actions for do ---------------------------------------------------------------------------

    def count(self) -> ProxyStatistics:
        """
        Return the counters.
        """
        return ProxyStatistics(
            accepted=self.accepted,
            open=self.open,
            cuts=self.cuts,
            bytes_to_server=self._bytes["to_server"],
            bytes_to_client=self._bytes["to_client"],
        )

    def cut(self, *, reset: bool) -> int:
        """
        Cut all connections and return how many.
        """
        links = list(self._links)
        for link in links:
            self._drop(link, reset=reset, cut=True)
        return len(links)

    def freeze(self) -> int:
        """
        Stop forwarding on the open connections and return how many there are.
        """
        for link in self._links:
            link.frozen = True
        return len(self._links)

    def arm(self, budget: dict[Direction, int], *, reset: bool) -> None:
        """
        Cut once when one of the budgets is used up. An empty *budget* cancels that.
        """
        self.budget = budget
        self.reset = reset

    def listen(self) -> None:
        """
        Accept new connections. Does nothing if they are accepted already.
        """
        if self._listener is None:
            self.reservation.let_listen()
            listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            # The listener shares the port with its reservation.
            share_address(listener)
            listener.bind(("127.0.0.1", self.reservation.port))
            listener.listen()
            listener.setblocking(False)
            self._selector.register(listener, selectors.EVENT_READ)
            self._listener = listener

    def refuse(self) -> None:
        """
        Refuse new connections. Does nothing if they are refused already.
        """
        if self._listener is not None:
            self._selector.unregister(self._listener)
            self._listener.close()
            self._listener = None

    # -- the loop ---------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopping:
            for key, _ in self._selector.select(self._arm()):
                if key.fileobj is self._wake_read:
                    with contextlib.suppress(BlockingIOError):
                        self._wake_read.recv(4096)
                elif key.fileobj is self._listener:
                    self._take()
                elif key.data is not None and key.data in self._links:
                    self._serve(key.data)
            while self._actions:
                self._actions.popleft()()
            for link in list(self._links):
                self._flush(link)

    def _arm(self) -> float | None:
        """
        Register what to wait for; return when the next delayed byte is due.
        """
        now = time.monotonic()
        due: float | None = None
        for link in self._links:
            interest = {link.client: 0, link.server: 0}
            for pipe in () if link.frozen else link.pipes:
                if self._wants_read(pipe):
                    interest[pipe.source] |= selectors.EVENT_READ
                if pipe.chunks and pipe.direction not in self.paused:
                    at = pipe.chunks[0][0]
                    if at <= now:
                        interest[pipe.sink] |= selectors.EVENT_WRITE
                    else:
                        due = at if due is None else min(due, at)
            for end, events in interest.items():
                self._watch(end, events, link)
        return None if due is None else max(0.0, due - now)

    def _watch(self, end: socket.socket, events: int, link: _Link) -> None:
        registered = self._selector.get_map().get(end)
        if not events:
            if registered is not None:
                self._selector.unregister(end)
        elif registered is None:
            self._selector.register(end, events, link)
        elif registered.events != events:
            self._selector.modify(end, events, link)

    def _wants_read(self, pipe: _Pipe) -> bool:
        return (
            not pipe.ended
            and not pipe.last
            and pipe.direction not in self.paused
            and pipe.size < _BUFFER_LIMIT
        )

    def _take(self) -> None:
        if self._listener is None:
            return
        try:
            client, _ = self._listener.accept()
        except OSError:
            # The client has disconnected already.
            return
        try:
            server = socket.create_connection(self._target, _CONNECT_TIMEOUT)
        except OSError:
            # There is no server. The client notices it when it reads, not when it connects.
            client.close()
            return
        for end in (client, server):
            end.setblocking(False)
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        pipes = (_Pipe("to_server", client, server), _Pipe("to_client", server, client))
        with self.lock:
            self._links.append(_Link(client, server, pipes))
            self.accepted += 1
            self.changed.notify_all()

    def _serve(self, link: _Link) -> None:
        for pipe in link.pipes:
            if link in self._links and self._wants_read(pipe):
                self._read(link, pipe)

    def _read(self, link: _Link, pipe: _Pipe) -> None:
        budget = self.budget.get(pipe.direction)
        # Without a budget, one byte is read to find out whether there is more to forward.
        size = _READ_SIZE if budget is None else max(1, min(_READ_SIZE, budget))
        try:
            data = pipe.source.recv(size)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            pipe.ended = True
            return
        if budget is not None:
            if budget == 0:
                self.budget = {}
                self._drop(link, reset=self.reset, cut=True)
                return
            self.budget[pipe.direction] = budget - len(data)
            if budget == len(data):
                self.budget = {}
                pipe.last = True
        pipe.chunks.append((time.monotonic() + self.delay[pipe.direction], memoryview(data)))
        pipe.size += len(data)

    def _flush(self, link: _Link) -> None:
        for pipe in link.pipes:
            if link not in self._links or link.frozen:
                return
            self._write(link, pipe)

    def _write(self, link: _Link, pipe: _Pipe) -> None:
        now = time.monotonic()
        while pipe.chunks and pipe.chunks[0][0] <= now and pipe.direction not in self.paused:
            at, data = pipe.chunks.popleft()
            try:
                sent = pipe.sink.send(data)
            except BlockingIOError:
                sent = 0
            except OSError:
                # The receiver has closed the connection.
                self._drop(link, reset=False)
                return
            pipe.size -= sent
            self._bytes[pipe.direction] += sent
            if sent < len(data):
                pipe.chunks.appendleft((at, data[sent:]))
                return
        if pipe.chunks:
            return
        if pipe.last:
            self._drop(link, reset=self.reset, cut=True)
        elif pipe.ended:
            self._drop(link, reset=False)

    def _drop(self, link: _Link, *, reset: bool, cut: bool = False) -> None:
        with self.lock:
            self._links.remove(link)
            # A peer may disconnect before its last bytes are written. That counts as a cut, so that
            # `wait_cuts` ends.
            self.cuts += cut or any(pipe.last for pipe in link.pipes)
            self.changed.notify_all()
        for end in (link.client, link.server):
            self._watch(end, 0, link)
            with contextlib.suppress(OSError):
                if reset:
                    # With a linger time of 0 s the kernel sends RST and drops unsent data.
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
                else:
                    end.shutdown(socket.SHUT_RDWR)
            end.close()
