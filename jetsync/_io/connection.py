"""
The connection of a client: requests, flushes and acks.

``connect`` creates a :class:`Connection`, and every handle refers to it. The handles of a JetStream
context reach it through ``jetsync._api.context.Context``.

The connection lasts as long as its client, in all processes. Its
:class:`jetsync._io.session.Session` belongs to one process, and a forked child replaces it.
"""

from __future__ import annotations

import os
import time
import weakref
from typing import TYPE_CHECKING, Any

from jetsync import errors
from jetsync._base.deadline import FOREVER, Deadline
from jetsync._base.dropped import when_dropped
from jetsync._base.failures import raise_failure
from jetsync._base.turn import Turn, outside, refuse_inside
from jetsync._io.handles import list_of
from jetsync._io.outbox import LaneState
from jetsync._io.requests import Request
from jetsync._io.session import Session
from jetsync._proto import frames
from jetsync._proto.late_answers import next_attempt
from jetsync.values.message import ACK

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Sequence

    from jetsync import events
    from jetsync._base.deadline import Seconds
    from jetsync._base.locks import Latch
    from jetsync._hooks.manager import Plugins
    from jetsync._io.handles import Writer
    from jetsync._io.lane import Lane
    from jetsync._io.refusals import Refusals
    from jetsync._io.replies import ReplyRouter
    from jetsync.options import ConnectOptions
    from jetsync.values.frame import Frame
    from jetsync.values.message import Message
    from jetsync.values.server_info import PoolServer, ServerInfo, Statistics


class Connection:
    """
    The connection that all handles of a client use.

    Threads: any thread.
    Locks: the fork turn of the process, in ``_fork_turns``, is taken to replace the session.
    """

    def __init__(self, options: ConnectOptions, plugins: Plugins) -> None:
        self.options: ConnectOptions = options
        self.plugins = plugins
        self.contexts: weakref.WeakSet[Any] = weakref.WeakSet()
        # Whether a signal has asked the program to stop. No pulls are sent after that.
        self.stopping: bool = False
        # By process, because a thread that does not exist in a child may have the parent's turn.
        self._fork_turns: dict[int, Turn] = {}
        # The sessions of parent processes. Kept, because they share epoll objects with this one,
        # which would change if a copy of the loop was closed.
        self._inherited: list[Session] = []
        # Set when it is connected.
        self.lane: Lane
        self._use(Session(options, plugins))

    # Opening and closing.

    def connect(self, deadline: Deadline | None = None) -> None:
        """
        Start the thread and make the first connection, within ``connect_timeout``.

        Pass a deadline if this time has begun already. Leaves no thread behind if it fails.

        Raises:
            ConnectError: No server could be reached, or TLS failed.
            ConnectTimeoutError: No server accepted the connection in time.
            AuthenticationError: A server refused the credentials.
        """
        self._open(self.session, deadline)

    def _open(self, session: Session, deadline: Deadline | None = None) -> None:
        """Connect *session*, and end it when this connection is dropped before it was closed."""
        name = self.options.name
        session.connect(deadline or Deadline.after(self.options.connect_timeout))
        when_dropped(self, "client" if name is None else f"client {name!r}", session.end_unused)
        self.lane = session.lane
        for context in list_of(self.contexts):
            context.lane = session.lane
        self._use(session)

    def _use(self, session: Session) -> None:
        """Make *session* the one of this client."""
        # Bound here, because many calls use them.
        self.router: ReplyRouter = session.router
        self.refusals: Refusals = session.state.refusals
        self.inbox: str = session.inbox
        self.closing: Latch = session.state.closing
        self.closed: Latch = session.state.closed
        self.consumptions: weakref.WeakSet[Any] = session.handles.consumptions
        self.subscriptions: weakref.WeakSet[Any] = weakref.WeakSet()
        self.writers: weakref.WeakSet[Writer] = session.handles.writers
        # Last: until now, calls in a forked child wait for the fork turn.
        self.session: Session = session

    def close(self, timeout: float) -> None:
        """Send outstanding data and close; see :meth:`Session.close`."""
        self.session.close(timeout)

    def abandon(self) -> None:
        """End the connection and the thread without waiting for either."""
        self.session.abandon()

    def begin_close(self) -> None:
        """
        End all waits and refuse all calls, except for what :meth:`finish_writers` does.
        """
        self.session.begin_close()

    def finish_writers(self, deadline: Deadline) -> list[str]:
        """Finish all publishers and batches; return a line about each with unconfirmed messages."""
        # In a forked child they belong to the parent, and so may the owners of their locks.
        return [] if self.session.forked else self.session.handles.finish(deadline)

    def start_threads(self, *threads: threading.Thread) -> None:
        """Start *threads* so that Ctrl-C cannot interrupt it; see :meth:`Session.start_threads`."""
        self.session.start_threads(*threads)

    # Forks.

    def check(self, *, while_closing: bool = False) -> None:
        """
        Raise if the client is closed. In a forked child, connect or raise ForkedProcessError.

        Handles that the parent has opened call the lane's ``check`` instead.
        """
        session = self.session
        if session.forked:
            session = self._connect_child()
        lane = session.lane
        # Not left to `lane.check`, because every public call checks this.
        if lane.outbox.reason is not None:
            lane.check(while_closing=while_closing)

    def _connect_child(self) -> Session:
        """
        Connect in a forked child if ``after_fork`` says so, or raise ForkedProcessError.

        Returns the session of this process.
        """
        if self.options.after_fork == "error":
            raise errors.ForkedProcessError
        turn = self._fork_turns.setdefault(os.getpid(), Turn("the connection of this process"))
        # A handle of the parent may be in a turn of its own.
        session: Session = outside(turn.run, FOREVER, self._replace_session)
        return session

    def _replace_session(self) -> Session:
        parent = self.session
        if not parent.forked:
            return parent  # Another thread has connected.
        session = Session(self.options, self.plugins, parent)
        # If this fails, the plugins belong to the next attempt.
        session.ends_plugins = False
        try:
            if self.plugins.dispatcher is not None:
                self.plugins.dispatcher.after_fork()
            self.stopping = False
            self._open(session)
            self._inherited.append(parent)
            session.ends_plugins = True
        except BaseException:
            # After Ctrl-C the connection may exist already.
            self._use(parent)
            session.abandon()
            raise
        return session

    # What belongs to the session of this process.

    @property
    def server(self) -> ServerInfo:
        """The server that the client is connected to, or was connected to last."""
        return self.session.state.server

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection at this moment."""
        return not self.session.forked and self.lane.state is LaneState.OPEN

    @property
    def can_finish(self) -> bool:
        """Whether there is a connection on which publishers can finish."""
        return self.lane.outbox.can_send

    @property
    def state(self) -> str:
        """The state in one word, for the repr of the client."""
        return "forked" if self.session.forked else self.lane.state.value

    def flush(self, deadline: Deadline) -> float:
        """
        Wait until the server has processed all earlier writes, and return the seconds it took.

        Raises:
            DisconnectedError, ConnectionLostError, WaitTimeoutError: The server did not confirm it
                before the deadline.
        """
        self.check()
        return self.session.flush(deadline)

    def flush_core(self, deadline: Deadline) -> None:
        """
        Flush, and raise the error of the first core message that was refused since the last call.

        Raises:
            PermissionDeniedError: The server refused a core message.
            DisconnectedError, ConnectionLostError, WaitTimeoutError: As for :meth:`flush`.
        """
        self.flush(deadline)
        if not self.refusals.has_published:
            return
        self.session.handle_errors(deadline)
        refused = self.refusals.take_core()
        if refused:
            raise_failure(refused[0])

    def flush_refusals(self, deadline: Deadline) -> None:
        """Flush, and wait until all refusals of earlier writes have been noted; raises as flush."""
        self.flush(deadline)
        self.session.handle_errors(deadline)

    def reconnect(self, deadline: Deadline) -> None:
        """
        Drop the connection and wait for the next one, to another server if there is one.

        If the client is reconnecting already, only wait.

        Raises:
            DisconnectedError: There was no new connection before the deadline.
            ConflictingUseError: The options do not allow reconnects.
        """
        self.check()
        if self.options.max_reconnects == 0:
            raise errors.ConflictingUseError("the client cannot reconnect: max_reconnects is 0")
        lane = self.lane
        # Read first, so that calls in several threads make one new connection.
        epoch = lane.epoch
        # Before the connection is dropped: the loop cannot replace it while a signal handler has
        # interrupted a read or a write.
        refuse_inside()
        self.session.hasten()
        lane.outbox.drop_connection(epoch)
        lane.outbox.wait_open(deadline)

    @property
    def server_pool(self) -> tuple[PoolServer, ...]:
        """The servers that the client may connect to."""
        return self.session.server_pool

    def set_server_pool(self, servers: str | Sequence[str]) -> None:
        """
        Replace the servers that the client may connect to, from the next attempt on.

        Raises:
            InvalidArgumentError, InvalidTypeError: The servers cannot be used; nothing changes.
        """
        self.check()
        self.session.set_servers(servers)
        # For the sessions of forked children.
        self.options = self.options.evolve(servers=servers)

    def probe(self) -> None:
        """Drop the connection if its server is gone, because an ack or a heartbeat is late."""
        self.session.probe()

    def check_size(self, size: int) -> None:
        """
        Raise MaxPayloadError if headers and payload of *size* bytes exceed the server's limit.
        """
        limit = self.session.state.server.max_payload
        if size > limit:
            raise errors.MaxPayloadError(size, limit)

    # Requests.

    def exchange(
        self,
        subject: bytes,
        header: bytes | None,
        payload: bytes | bytearray | memoryview,
        deadline: Deadline,
        *,
        epoch: int | None = None,
        before: Sequence[bytes] = (),
        in_batch: bool = False,
        late: float | None = None,
        ask: Callable[[], float | None] | None = None,
    ) -> Frame:
        """
        Send one request and return the frame that answers it.

        With *late*, the request must do no harm if it is processed twice. It is then sent again
        until there is an answer, also on the next connection. The first answer counts.

        Args:
            subject: The subject of the request.
            header: The whole header block; empty or None sends no headers.
            payload: The body.
            deadline: Deadline of the whole call.
            epoch: The only connection that may carry the request; None allows any. With an epoch,
                the caller has checked the size of the request.
            before: Blocks to write together with the request, in front of it.
            in_batch: Whether the request is a message of a batch.
            late: Seconds without an answer after which the request is sent again; None sends it
                once.
            ask: Called before the request is sent again. It returns how long to wait for an answer
                before, in seconds, or None if the request must not be sent again. With *ask*, a
                lost connection is an error.

        Raises:
            MaxPayloadError: The request is larger than the server accepts; it was not processed.
            DisconnectedError: No connection was available before the deadline; nothing was sent.
            ConnectionLostError: The connection was lost before the answer. If its ``sent`` is
                false, the server has not processed the request. Then the connection *epoch* was
                gone before, or the server refused this message or an earlier one as too large.
            ConnectionClosedError: The client is closed. If its ``sent`` is true, the request had
                been sent before.
            PermissionDeniedError: The server refused the subject, or the reply subject. If its
                ``sent`` is true, the request had been sent before.
            NoRespondersError: No client or server listens on the subject.
            RequestTimeoutError: The request was sent, but no answer came before the deadline.
        """
        size = len(payload) + len(header or b"")
        any_epoch = epoch is None
        while True:
            session = self.session
            if session.forked:
                session = self._connect_child()
            if any_epoch and size > session.state.server.max_payload:
                self.check_size(size)
            lane = session.lane
            request = Request(session, subject, in_batch)
            try:
                if header:
                    block = frames.hpub(subject, request.address, header, payload)
                else:
                    block = frames.pub(subject, request.address, payload)
                if before:
                    block = b"".join((*before, block))
                if session.ask is not None:
                    session.ask(request, block, deadline, epoch)
                if not request.epoch:
                    request.send(block, deadline, epoch, may_delegate=True)
                if late is None:
                    if not request.ready:
                        lane.wait(request, deadline)
                elif not (request.ready or lane.wait(request, deadline, time.monotonic() + late)):
                    self._ask_again(request, block, deadline, late, ask)
            finally:
                request.end()
            if not (any_epoch and request.is_lost) or request.reply is not None:
                break
            if late is not None and ask is None and not deadline.expired():
                continue
            if not request.is_unprocessed:
                break
            # The next server says how much it accepts.
            epoch, any_epoch = lane.outbox.wait_open(deadline), False
            self.check_size(size)
        answer = request.answer()
        if answer is None:
            self.probe()
            raise errors.RequestTimeoutError(subject.decode(), deadline.total)
        return answer

    def _ask_again(
        self,
        request: Request,
        block: bytes,
        deadline: Deadline,
        late: float,
        ask: Callable[[], float | None] | None,
    ) -> None:
        """Send *request* again whenever its answer is late, until the wait for it is over."""
        lane, began = self.session.lane, time.monotonic() - late
        while not deadline.expired():
            self.probe()
            pause = 0.0 if ask is None else ask()
            if pause is None:
                lane.wait(request, deadline)
                return
            if lane.wait(request, deadline, time.monotonic() + pause) or deadline.expired():
                return
            request.send(block, deadline, may_delegate=True)
            now = time.monotonic()
            if lane.wait(request, deadline, now + next_attempt(now - began, late)):
                return

    def new_inbox(self) -> str:
        """Return a reply subject that was not used before."""
        # The number is not a separate token, because servers match ack subjects token by token.
        session = self.session
        return f"{session.inbox}-{next(session.numbers):x}"

    def new_batch_id(self) -> str:
        """Return a batch id that was not used before."""
        session = self.session
        return f"{session.token}-{next(session.numbers):x}"

    # Acks.

    def acknowledge(self, message: Message, body: bytes) -> None:
        """
        Send an ack together with others, and everything else at once; see ``Acker``.

        Works while the client closes, so that handlers can finish their messages.
        """
        session = self.session
        if session.forked:
            session = self._connect_child()
        lane, timeout = session.lane, self.options.request_timeout
        if body == ACK:
            lane.ack(message.raw_reply, timeout)
            return
        self.check_size(len(body))
        block = frames.ack_block((message.raw_reply,), body)
        if lane.outbox.writes_here():
            # This signal handler interrupted a write of its thread. The loop sends the block.
            lane.post_nowait(block, keep=timeout)
        else:
            lane.write(block, Deadline.after(timeout), while_closing=True)

    def acknowledge_sync(self, message: Message, body: bytes, timeout: Seconds | None) -> None:
        """Send an ack and wait until the server has stored it; see ``Acker``."""
        self.check()
        deadline = self.deadline(timeout)
        self.exchange(message.raw_reply, None, body, deadline)

    def deadline(self, timeout: Seconds | None) -> Deadline:
        """Start the deadline of one call; None means the option ``request_timeout``."""
        return Deadline.after(self.options.request_timeout if timeout is None else timeout)

    # Events.

    def emit(self, event: events.StatusEvent | Callable[[], events.StatusEvent | None]) -> None:
        """
        Pass *event* to the plugins in a thread of their own; never blocks.

        If creating the event takes time, pass a function, which that thread calls.
        """
        self.session.state.emit(event)

    def statistics(self) -> Statistics:
        """Return the current counters."""
        return self.session.statistics()
