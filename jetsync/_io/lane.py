"""
The lane: jetsync's own way in and out of the one socket that nats-py keeps connected.

In. Whoever reads the socket cuts it into frames and puts those of jetsync's subscriptions into
their mailboxes; the rest is nats-py's. Normally the loop thread reads. A thread that waits for a
frame takes the reading over for as long as it waits (:meth:`Lane.wait`): its answer then needs no
thread switch at all, which is what makes a blocking call here cheaper than an awaited one
elsewhere. One thread reads at a time, guarded by the read lock; :mod:`jetsync._io.gate` keeps the
loop from being woken for the same bytes.

Out. See :mod:`jetsync._io.outbox`.

Nothing arrives here before the handshake of a connection is over (:mod:`jetsync._io.nats_seam`), so
a frame can only come from a server that has passed TLS and accepted the login.

Signal handlers. A handler may call jetsync while its own thread reads for an interrupted call. If
that thread only waits for the socket, the handler takes the reading over (:meth:`Lane.step_down`);
the interrupted call competes for it again afterwards. If the thread is cutting frames, the handler
gets CallInSignalHandlerError.

Guarantees
- Connections are numbered by *epoch*. A write returns the epoch it went out on; when that one is
  lost, every receiver is told, and waits for its answer end at once.
- After a reconnect all subscriptions are written again before any other block.
- No lock is held while a user's code runs, and none is waited for across a fork.

Locks are taken in this order: read lock, write lock.
"""

from __future__ import annotations

import contextlib
import itertools
import secrets
import ssl
import sys
import threading
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from jetsync._base.locks import owner_check, take
from jetsync._io.gate import ReadGate
from jetsync._io.mailbox import Mailbox
from jetsync._io.outbox import WOULD_BLOCK, LaneState, Outbox, break_connection
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
    from collections.abc import Awaitable, Callable

    from jetsync._base.deadline import Deadline
    from jetsync._io.mailbox import ReplyRouter, Waiter

_AT_ONCE: Final = (False,)
_NO_ARGUMENTS: Final = ((),)
"""How a lock is tried without waiting, and released, by one call into C; see :meth:`Lane.wait`."""

READ_SIZE: Final = 1 << 17
"""
Bytes asked for in one read: 128 KiB, measured with 128-byte messages. Smaller costs more wake-ups,
larger makes the allocator map and unmap memory on each read.
"""

LEADER_WAIT: Final = 1.0
"""
Seconds that the loop waits for a reading thread to leave a connection that has ended.

It leaves at once, unless a signal handler keeps it.
"""

SID_RANGE: Final = 1 << 32
"""Where the first subscription id of a client is drawn from, so that it cannot be guessed."""

PONG: Final = b"PONG\r\n"


class Lane:
    """The socket of one connection as all threads see it; survives reconnects."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, on_foreign: Callable[[bytes], None]
    ) -> None:
        self._loop = loop
        self._on_foreign = on_foreign
        self.outbox = Outbox(loop, lambda: self.feed(b""), self.abort)
        self.ping = self.outbox.ping
        # Bound here, so that a write costs no second call.
        self.write = self.outbox.write
        self.post = self.outbox.post
        self.post_nowait = self.outbox.post_nowait
        self.control = self.outbox.control
        self._own_lock()
        self._leading: tuple[ReadGate, list[bool | None]] | None = None
        """The reading thread's gate, and the list that records whether it holds the read lock."""
        self._cutting = False
        """Whether the reading thread has taken bytes that it has not handed over yet."""
        self._owing: ReadGate | None = None
        """A gate whose reader has stopped before checking for waiting threads."""
        self._followers: set[object] = set()
        """Who waits while another thread reads."""

        self._boxes: dict[bytes, Any] = {}
        self._subscriptions: dict[bytes, bytes] = {}
        """Subscription id -> the ``SUB`` line to write again after a reconnect."""
        self._ranks: dict[bytes, int] = {}
        """Subscription id -> how many subscriptions the connection had before it."""
        self._splitter = frames.Splitter(self._boxes)
        self._strays = 0
        self._sids = itertools.count(secrets.randbelow(SID_RANGE) + SID_RANGE)
        self._foreign: deque[bytes] = deque()
        """What is nats-py's, in order, until the loop thread hands it over."""
        self._gate: ReadGate | None = None
        self.fault: ProtocolError | None = None
        """What the server sent that is no NATS protocol, on the last connection."""
        self.lost_epoch = 0
        """The highest epoch whose connection is gone."""

        self.bytes_in = 0

    def _own_lock(self) -> None:
        """Make the lock. Its owner check is bound here because each wait makes it."""
        self._read_lock = threading.RLock()
        self.reads_here = owner_check(self._read_lock)

    def __repr__(self) -> str:
        return (
            f"<Lane {self.state.value} epoch={self.epoch} subscriptions={len(self._subscriptions)} "
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

    @property
    def reason(self) -> Exception | None:
        """Why the lane is closed, None while it is not."""
        return self.outbox.reason

    @property
    def bytes_out(self) -> int:
        """How many bytes were sent."""
        return self.outbox.bytes_out

    # Subscriptions.

    def new_sid(self) -> bytes:
        """Return a subscription id that no other subscription of this lane has; any thread."""
        return b"%d" % next(self._sids)

    def listen(self, sid: bytes, box: Mailbox | ReplyRouter, queue: bytes = b"") -> bytes:
        """
        Route the frames of *sid* to *box* and return the ``SUB`` line to write.

        From here on the line is written again after each reconnect. Any thread.
        """
        line = frames.sub(box.interest, sid, queue)
        self._boxes[sid] = box
        self._ranks[sid] = len(self._subscriptions)
        self._subscriptions[sid] = line
        if self.reason is not None:
            box.fail(self.reason)
        return line

    def unsubscribe(self, sid: bytes, *, grace: float = 0.0) -> None:
        """
        Unsubscribe; any thread. Never waits and never fails.

        Frames in flight reach the mailbox for *grace* seconds more. After that, they count as
        strays.
        """
        self._ranks.pop(sid, None)
        if self._subscriptions.pop(sid, None) is None:
            return
        self.post_nowait(frames.unsub(sid))
        if grace and self.state is LaneState.OPEN:
            with contextlib.suppress(RuntimeError):  # The loop is closed: nothing comes any more.
                self._loop.call_soon_threadsafe(self._loop.call_later, grace, self.drop, sid)
        else:
            self.drop(sid)

    def drop(self, sid: bytes) -> None:
        """Forget the mailbox of a subscription; any thread."""
        self._boxes.pop(sid, None)

    def receivers(self) -> list[Mailbox | ReplyRouter]:
        """Return all mailboxes that are listened for; any thread."""
        return list(self._boxes.values())

    @property
    def strays(self) -> int:
        """How many frames came for a subscription that had been dropped."""
        return self._strays + self._splitter.strays

    def take_refused(self) -> Mailbox | None:
        """
        Return the subscription that the server refused because there are too many; any thread.

        The server does not name it. It counts in the order in which it is written to, so it refused
        the one that had the most others before it. That one is left. If several threads subscribe
        at the same moment, another one of theirs may be taken for it. The subscription to replies,
        which everything depends on, never is.
        """
        last, before = None, -1
        for sid, count in list(self._ranks.items()):
            if count > before and isinstance(self._boxes.get(sid), Mailbox):
                last, before = sid, count
        if last is None:
            return None
        self._ranks.pop(last, None)
        self._subscriptions.pop(last, None)
        box: Mailbox | None = self._boxes.pop(last, None)
        return box

    # In.

    def wait(self, receiver: Waiter | Mailbox, deadline: Deadline) -> bool:
        """
        Wait until *receiver* is ready, and return whether it is.

        The calling thread reads the socket meanwhile, if no other does. Any thread; one thread per
        receiver at a time. Can be interrupted by Ctrl-C.

        Raises:
            CallInSignalHandlerError: As :meth:`prepare_wait`.
        """
        if self.reads_here() or self.outbox.held_here() or self._owing is not None:
            self.prepare_wait()
        if self.outbox.posted:
            self.outbox.flush_posted()
        followers = self._followers
        while not receiver.ready:
            remaining = deadline.remaining()
            if remaining <= 0.0:
                return False
            # Ctrl-C may come between the lock's being taken and the next step here, and a lock that
            # nobody knows of would end all reading. It never comes inside of one call into C, so
            # that call takes the lock and notes it in the list.
            taken: list[bool | None] = []
            gate = None
            try:
                # Registered before the lock is tried: a thread that stops reading checks for
                # followers after it has released the lock, so one of the two sees the other.
                followers.add(receiver)
                gate = self._gate
                if gate is not None and gate.can_lead and not gate.over:
                    taken.extend(map(self._read_lock.acquire, _AT_ONCE))
                if gate is None or True not in taken:
                    receiver.signal.wait(remaining)
                    continue
                followers.discard(receiver)
                self._lead(gate, receiver, deadline, taken)
                self._leave_reading(gate, taken)
            except BaseException:
                followers.discard(receiver)
                if gate is not None and True in taken:
                    self._leave_reading(gate, taken)
                raise
            finally:
                followers.discard(receiver)
        return True

    def _lead(
        self,
        gate: ReadGate,
        receiver: Waiter | Mailbox,
        deadline: Deadline,
        taken: list[bool | None],
    ) -> None:
        """Read the socket in this thread until *receiver* is ready; the read lock is held."""
        gate.disarm()
        poller = gate.poller
        # From here on until the gate is armed again, a signal handler may take the reading over.
        self._leading = gate, taken
        try:
            # If one has, it has noted that in the list.
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

    def _leave_reading(self, gate: ReadGate, taken: list[bool | None]) -> None:
        """
        Stop reading and hand over to another thread.

        Releases the read lock if it is in *taken*, and notes there that it did; continues where an
        earlier call was interrupted. Threads that wait are served by the loop, at once. Otherwise
        the loop is left alone for a while, as a thread that waited once mostly waits again soon.
        """
        if taken == [True]:
            self._leading = None
            if self._followers:
                gate.arm()
            self._owing = gate
            # Released and noted in one step, as it was taken.
            taken.extend(itertools.starmap(self._read_lock.release, _NO_ARGUMENTS))
        if gate.over:
            # The loop may have been waiting for this thread to leave.
            self.later(0.0, gate.close)
        elif not gate.armed:
            self._serve_followers(gate)
        self._owing = None

    def _serve_followers(self, gate: ReadGate) -> None:
        """Have the loop read for threads that wait; without any, leave it alone for a while."""
        if self._followers:
            self._arm(gate)
        else:
            gate.linger()

    def prepare_wait(self) -> None:
        """
        Take the reading over if a signal handler has interrupted a call that reads in this thread.

        To be called before anything is sent whose answer is waited for.

        Raises:
            CallInSignalHandlerError: The interrupted call is processing received bytes or writing.
                Other threads, whose work the handler may wait for, could not write either.
        """
        if self.reads_here() or self.outbox.held_here():
            if self._leading is None or self.is_busy_here():
                raise CallInSignalHandlerError
            gate, taken = self._leading
            gate.replace_poller()
            self._leave_reading(gate, taken)
        elif self._owing is not None:
            self._serve_followers(self._owing)

    def is_busy_here(self) -> bool:
        """
        Return whether a signal handler has interrupted a read or a write of its own thread.
        """
        return self.outbox.held_here() or (
            self.reads_here() and (self._cutting or self._leading is None)
        )

    def _arm(self, gate: ReadGate) -> bool:
        """Have the loop read, unless some thread does; return whether it does now."""
        taken: list[bool] = []
        try:
            if take(self._read_lock, taken):
                gate.arm()
        finally:
            if True in taken:
                self._read_lock.release()
        return True in taken

    def later(self, seconds: float, call: Callable[..., object], *arguments: object) -> None:
        """
        Have the loop thread call something that only moves bytes, in so many seconds.

        Any thread. Does nothing once the loop is closed.
        """
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._loop.call_later, seconds, call, *arguments)

    def interrupt(self, box: Mailbox) -> None:
        """End the wait for *box* because its owner has something else to do; any thread."""
        box.interrupt()
        self.wake_reader()

    def wake_reader(self) -> None:
        """Have the thread that reads look at its receiver again; any thread."""
        gate = self._gate
        if gate is not None:
            gate.wake_reader()

    def _flush_posted(self) -> None:
        """Send the acks of threads that have not come back to read."""
        if self.outbox.posted:
            self.outbox.flush_posted()

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
        """Read once and hand over all whole frames; the read lock is held."""
        sock = gate.sock
        try:
            self._cutting = True
            try:
                data = self._receive(sock)
            except WOULD_BLOCK:
                return
            except OSError:
                data = b""
            # The connection may have ended while a signal handler kept this thread.
            if not gate.over:
                gate.over = not data
                self._take(data, gate.splitter)
        except BaseException:
            # Ctrl-C before the last wake-up: what was half taken cannot be taken again.
            break_connection(sock)
            raise
        finally:
            self._cutting = False

    def feed(self, data: bytes) -> None:
        """Hand over what a WebSocket has received; empty data is the end of the connection."""
        self._take(data, self._splitter)

    def _take(self, data: bytes, splitter: frames.Splitter) -> None:
        """Hand over the frames in *data*; empty data is the end of the connection."""
        if not data:
            self._hand_foreign([b""])
            return
        self.bytes_in += len(data)
        if self.fault is not None:
            return
        touched: list[Any] = []
        foreign: list[bytes] = []
        try:
            splitter.feed(data, touched, foreign)
        except ValueError as error:
            # Nothing that follows can be trusted. A new connection starts afresh.
            self.fault = ProtocolError(f"invalid NATS protocol from the server: {error}")
            self.abort()
        for box in touched:
            box.wake()
        # A PONG of ours is no reason to wake the loop.
        if foreign := [line for line in foreign if not self._answer_ping(line)]:
            self._hand_foreign(foreign)

    def _answer_ping(self, line: bytes) -> bool:
        """Wake the waiter of our oldest PING. Return whether *line* was its PONG."""
        if line != PONG or not self.outbox.pings:
            return False
        waiter = self.outbox.pings.popleft()
        if waiter is None:
            return False
        waiter.deliver((b"", b"", None, b""))
        return True

    def _receive(self, sock: socket.socket) -> bytes:
        """Return what the socket has, b"" at its end; raises if it has nothing."""
        if not isinstance(sock, ssl.SSLSocket):
            return sock.recv(READ_SIZE)
        # A TLS object is not made for two threads at once, even where they go opposite ways.
        with self.outbox.lock:
            parts = [sock.recv(READ_SIZE)]
            # What is left of a decrypted record waits inside the object, where no poll sees it.
            while sock.pending():
                parts.append(sock.recv(READ_SIZE))
        return b"".join(parts)

    def _hand_foreign(self, pieces: list[bytes]) -> None:
        """
        Give bytes to nats-py, in the order they came, in the loop thread.

        Always later: they are logged, and a log handler must not run under the read lock.
        """
        self._foreign.extend(pieces)
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

    def attach(self, sock: socket.socket, received: bytes = b"", max_payload: int = 0) -> None:
        """
        Start on a connected, non-blocking socket whose handshake is over.

        Args:
            sock: The socket.
            received: What the server has sent since the end of the handshake.
            max_payload: The limit that the server announced, in bytes.
        """
        self._begin(max_payload)
        self.outbox.attach(sock=sock)
        if received:
            self.feed(received)
        self._gate = ReadGate(
            sock,
            self._splitter,
            self._loop,
            on_readable=self._on_readable,
            arm=self._arm,
            on_look=self._flush_posted,
        )
        self.outbox.visited = self._gate.is_lingering

    def attach_stream(
        self, stream: Callable[[bytes], Awaitable[None]], max_payload: int = 0
    ) -> None:
        """Start on a WebSocket: *stream* sends a block, :meth:`feed` is called with what comes."""
        self._begin(max_payload)
        self.outbox.attach(stream=stream)

    def _begin(self, max_payload: int) -> None:
        # A new one: a thread kept by a signal handler may still use the one of the last connection.
        self._strays += self._splitter.strays
        self._splitter = frames.Splitter(self._boxes, max_payload)
        self._foreign.clear()
        self.fault = None

    def open(self) -> None:
        """Write all subscriptions again and let blocks pass: the server knows us now."""
        lines = dict(self._subscriptions)
        self._ranks = {sid: count for count, sid in enumerate(lines)}
        self.outbox.open(b"".join(lines.values()))

    def detach(self) -> None:
        """
        Give the socket up and tell every receiver that what was in flight on it is lost.

        Safe to repeat.
        """
        gate, self._gate = self._gate, None
        self.abort()
        if gate is not None:
            gate.over = True
            # A leader leaves at once: its poll was woken by the end of the connection.
            gate.wake_reader()
            if self._read_lock.acquire(timeout=LEADER_WAIT):
                gate.close()
                self._read_lock.release()
        was_open = self.outbox.detach()
        if was_open:
            self.lost_epoch = self.epoch
            for receiver in self.receivers():
                receiver.lost(self.lost_epoch)
        pings = self.outbox.pings
        while pings:
            waiter = pings.popleft()
            if waiter is not None:
                waiter.lost(waiter.epoch)

    def freeze(self) -> None:
        """
        Let nobody write any more and tell nobody: the process ends, and all that wait end with it.
        """
        self.outbox.freeze()

    def after_fork(self) -> None:
        """
        Touch the socket no more: this process is a forked child, and the socket is its parent's.

        Every write raises ForkedProcessError from now on. Takes no lock.
        """
        # Kept, as what it watches with is shared with the parent.
        self._inherited = self._gate
        self._gate = self._leading = None
        self._cutting = False
        self._own_lock()
        self.outbox.after_fork()

    def close(self, reason: Exception) -> None:
        """End the lane for good: every wait and every write ends with *reason*."""
        if not self.outbox.close(reason):
            return
        for receiver in (*self.receivers(), *filter(None, list(self.outbox.pings))):
            receiver.fail(reason)
        self.wake_reader()

    def delivered(self) -> int:
        """Return how many sent bytes the server's system has confirmed, where the system tells."""
        sock = self.outbox.sock
        if sock is None or fcntl is None:
            return self.bytes_out
        with contextlib.suppress(OSError, ValueError):
            waiting = fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, bytes(4))
            return self.bytes_out - int.from_bytes(waiting, sys.byteorder)
        return self.bytes_out

    def has_input(self) -> bool:
        """Return whether bytes have come that no thread has read yet; loop thread."""
        gate = self._gate
        return gate is not None and gate.has_input()

    def abort(self) -> None:
        """End the connection, as its stream cannot be trusted any more; any thread."""
        sock = self.outbox.sock
        if sock is not None:
            break_connection(sock)
        elif self.outbox.stream is not None:
            self.feed(b"")
