"""
One connection: opening, closing, requests, acks and events.

``connect`` creates a :class:`Connection`, and every handle refers to it. The handles of a JetStream
context reach it through ``jetsync._api.context.Context``.

Any thread may call these methods, except for those that begin with ``on_``. The loop thread calls
those, so they only set values, wake waiters and queue events.
"""

from __future__ import annotations

import contextlib
import itertools
import secrets
import sys
import time
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar, cast

from jetsync import errors, events
from jetsync._base.deadline import Deadline
from jetsync._base.dropped import find_creator, when_dropped
from jetsync._base.failures import raise_failure
from jetsync._base.locks import Latch, Level, LongLock
from jetsync._base.log import beats, get_logger
from jetsync._io.bridge import Bridge
from jetsync._io.mailbox import Mailbox, take_all
from jetsync._io.nats_seam import NatsConnection
from jetsync._io.outbox import PING, LaneState
from jetsync._io.refusals import Refusals
from jetsync._io.replies import ReplyRouter, Waiter
from jetsync._io.translate import cause_of, parse_denied, translate_closed, translate_connect_error
from jetsync._proto import frames
from jetsync._proto.puback import is_no_responders
from jetsync.values.message import ACK
from jetsync.values.server_info import ServerInfo, Statistics

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Sequence

    from jetsync._base.deadline import Seconds
    from jetsync._hooks.manager import Plugins
    from jetsync._io.lane import Lane
    from jetsync.options import ConnectOptions
    from jetsync.values.frame import Frame
    from jetsync.values.message import Message

# Seconds to send the outstanding data of a client that was dropped without ``close``.
DROP_GRACE: Final = 1.0

# Seconds to wait for the thread of a client that could not connect.
BRIDGE_STOP_TIMEOUT: Final = 1.0

# Seconds to wait for any data after an ack or a heartbeat is late: much longer than a round trip,
# and much shorter than ``ping_interval``. If the server was only slow, the price is a reconnect.
PROBE_TIMEOUT: Final = 2.0

_H = TypeVar("_H")

_logger = get_logger("jetsync.connection")


class Writer(Protocol):
    """A handle that has to finish before the connection is closed."""

    def begin_finish(self) -> None:
        """
        Wake the calls that wait for room, because the client begins to close; never waits.

        The lane refuses what they would send. May raise CallInSignalHandlerError.
        """

    def finish(self, deadline: Deadline) -> str | None:
        """
        Accept no more messages. Send the outstanding ones and wait for their acks, or discard them.

        Never raises an ``Exception``. Returns one line about unconfirmed messages, or None.
        """


class Connection:
    """
    One connection to a cluster. All handles of a client share it.
    """

    def __init__(self, options: ConnectOptions, plugins: Plugins) -> None:
        self.options = options
        self.plugins = plugins
        # Whether this process is a forked child that has not connected.
        self.forked: bool = False
        # The contexts of this client.
        self.contexts: weakref.WeakSet[Any] = weakref.WeakSet()
        self._fork_lock = LongLock(Level.HANDLE)
        self._reset()

    def _reset(self) -> None:
        """Set the attributes that a forked child does not share with its parent."""
        # Random, and unique to this client.
        self._token = secrets.token_hex(8)
        self.inbox: str = f"{self.options.inbox_prefix}.{self._token}"
        self.router: ReplyRouter = ReplyRouter(self.inbox.encode())
        self.refusals: Refusals = Refusals(self.options.request_timeout)
        self.lane: Lane
        self.closed: Latch = Latch()
        # Set before `closed`, when the client begins to close.
        self.closing: Latch = Latch()
        self.reconnects: int = 0
        # The last permission errors, with the time at which each was read. They explain why a batch
        # is incomplete.
        self.denials: deque[tuple[float, errors.PermissionDeniedError]] = deque(maxlen=100)
        # Whether a signal has asked the program to stop. No pulls are sent after that.
        self.stopping: bool = False
        # Whether the time after the signal is over. Messages that were not taken are given back.
        self.stopped: bool = False
        # The mailboxes of all pulls. A signal ends the waits for them.
        self.pull_boxes: weakref.WeakSet[Mailbox] = weakref.WeakSet()
        # Consumptions to which the application holds a reference. A client drains them.
        self.consumptions: weakref.WeakSet[Any] = weakref.WeakSet()
        # Publishers and atomic batches. Each has `finish`; see `finish_writers`.
        self.writers: weakref.WeakSet[Writer] = weakref.WeakSet()
        # Whether core messages were published after the last flush that the server confirmed.
        self.has_published: bool = False
        # The core messages that the server refused since then, and how many of the `-ERR` lines
        # that were read have been handled. Only the loop thread adds to the former.
        self._refused: deque[errors.PermissionDeniedError] = deque(maxlen=100)
        self._errors_handled = 0
        self._bridge = Bridge(self.options.loop)
        self._nats: NatsConnection | None = None
        # Ends the connection and the thread if this object is dropped before it was closed.
        self._drop: weakref.finalize[..., Any] | None = None
        # When the last probe began, on the monotonic clock.
        self._probed = 0.0
        # The server that the client is connected to, or was connected to last.
        self.server: ServerInfo = ServerInfo()
        self._numbers = itertools.count(1)
        self._close_lock = LongLock(Level.TURN)
        # Whether the interpreter is exiting.
        self._exiting = False
        # Whether the thread was stopped. It still runs after nats-py has given up.
        self._stopped = False
        # Whether the last reported event was a loss, so that losses and reconnects alternate.
        self._down = False

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
        deadline = deadline or Deadline.after(self.options.connect_timeout)
        with beats(_logger, "connect", client=self.options.name):
            try:
                weak: Any = WeakCalls(self)
                self._bridge.start(weak.close_at_exit, weak.after_fork, deadline)
                self._bridge.call(self._connect, find_creator(), deadline=deadline)
            except errors.WaitTimeoutError:
                # A loop that has not started ends by itself, after its imports.
                self._stop(BRIDGE_STOP_TIMEOUT if self._nats is not None else 0.0)
                server, last = self._nats.last_failure if self._nats is not None else (None, None)
                reason = None if last is None else str(translate_connect_error(last))
                cause = None if last is None else cause_of(last)
                raise errors.ConnectTimeoutError(
                    deadline.total, server=server, reason=reason
                ) from cause
            except BaseException as error:
                if not isinstance(error, Exception):
                    # After Ctrl-C the connection may exist already.
                    self.abandon()
                self._stop(BRIDGE_STOP_TIMEOUT)
                raise

    async def _connect(self, creator: tuple[str, int]) -> None:
        options = self.options
        # The loop holds no reference to this object, so an unused client is collected and closed.
        nats = NatsConnection(cast("Connection", WeakCalls(self)), options)
        name = "client" if options.name is None else f"client {options.name!r}"
        ending = _end, self._bridge, nats, self.plugins, DROP_GRACE
        self._drop = when_dropped(self, name, self._bridge.spawn, *ending, creator=creator)
        self._nats = nats
        self.lane = nats.lane
        self.router.line = self.lane.listen(self.lane.new_sid(), self.router)
        await nats.start()

    def close(self, timeout: float) -> None:
        """
        Send outstanding data within *timeout* seconds, close the connection and end all waits.

        Can be called repeatedly. If a signal handler calls this while its own thread was reading or
        writing, the loop does the work and this returns at once.
        """
        if self.forked or self._close_lock.held_here():
            # A signal handler has interrupted close(), which continues afterwards.
            return
        if self.lane.is_busy_here():
            self.abandon(timeout)
            return
        deadline = Deadline.after(timeout)
        taken: list[bool] = []
        try:
            # In a signal handler, another thread that is closing may wait for the interrupted call.
            with contextlib.suppress(errors.CallInSignalHandlerError):
                # That thread may also wait for an answer, which the interrupted call would read.
                self.lane.prepare_wait()
                self._close_lock.take(taken, deadline)
            # If the lock is not free in time, another thread is still closing.
            if True in taken and not self._stopped:
                self._close(deadline)
        finally:
            if True in taken:
                self._close_lock.release()
        self.plugins.close(max(deadline.remaining(), 0.1))

    def _close(self, deadline: Deadline) -> None:
        """Send outstanding data, report the end, and end the connection and the thread."""
        try:
            if self.can_finish:
                self.flush(deadline, while_closing=True)
        except (errors.TransportError, errors.WaitTimeoutError):
            _logger.warning("closed", reason="some data could not be sent")
        try:
            # In the loop thread, which Ctrl-C does not interrupt.
            self._bridge.call(self._shut, deadline=deadline)
        except errors.WaitTimeoutError:
            _logger.warning("closed", reason="the connection did not close in time")
        except errors.ConnectionClosedError:
            pass  # The thread has ended.
        self._stop(max(deadline.remaining(), 0.1))
        self.on_closed(None)
        self._stopped = True

    def _stop(self, timeout: float) -> None:
        """Stop the thread, and cancel the clean-up of a dropped client."""
        self._bridge.stop(timeout)
        if self._drop is not None:
            self._drop.detach()

    async def _shut(self) -> None:
        self.on_closed(None)
        await _end(self._bridge, self._nats, self.plugins, 0.0)

    def abandon(self, grace: float = 0.0) -> None:
        """
        End the connection and the thread without waiting for either.

        Args:
            grace: Seconds to send outstanding data.
        """
        self._bridge.spawn(_end, self._bridge, self._nats, self.plugins, grace)
        if self._drop is not None:
            self._drop.detach()

    def start_threads(self, *threads: threading.Thread) -> None:
        """
        Start *threads* from the loop thread, which Ctrl-C does not interrupt.

        In ``Thread.start``, Ctrl-C may leave a thread in Python's list for ever. Ctrl-C ends this
        wait, but each thread that appears in the list runs.
        """
        self._bridge.call(_start, threads, deadline=self.deadline(None))

    def begin_close(self) -> None:
        """
        End all waits and refuse all calls, except for what :meth:`finish_writers` does.

        Does nothing in a signal handler that has interrupted a read or a write of its own thread.
        """
        if self.forked or self.lane.is_busy_here():
            return
        self.lane.begin_close(translate_closed(None))
        self.closing.set()
        for writer in list_of(self.writers):
            # The handler may have interrupted a call of this writer.
            with contextlib.suppress(errors.CallInSignalHandlerError):
                writer.begin_finish()

    def finish_writers(self, deadline: Deadline) -> list[str]:
        """Finish all publishers and batches; return a line about each with unconfirmed messages."""
        reports: list[str] = []
        # In a forked child they belong to the parent, and so may the owners of their locks.
        for writer in [] if self.forked else list_of(self.writers):
            report = writer.finish(deadline)
            if report is not None:
                _logger.warning("unconfirmed", reason=report)
                reports.append(report)
        return reports

    def close_at_exit(self, timeout: float) -> None:
        """
        Send outstanding data and end the thread, because the interpreter is exiting.

        Unlike :meth:`close`, this does not end waits. The waiting threads are daemons, and the
        interpreter would print their errors.
        """
        deadline = Deadline.after(timeout)
        # A quarter of the time is left for closing the connection.
        for report in self.finish_writers(deadline.at_most(timeout * 0.75)):
            report_at_exit(report)
        try:
            self.flush(deadline)
        except (errors.TransportError, errors.WaitTimeoutError) as error:
            if self.has_published:
                report_at_exit(f"the server did not confirm the last core messages: {error}")
        self._exiting = True
        self.lane.outbox.freeze()
        if not self.closed.is_set():
            self.emit(events.ClosedEvent())
        try:
            if self._nats is not None:
                self._bridge.call(self._nats.stop, deadline=deadline)
        finally:
            self._bridge.stop(max(deadline.remaining(), 0.1))
            self.plugins.close(max(deadline.remaining(), 0.1))

    def after_fork(self) -> None:
        """
        Leave the connection to the parent process; this one is a forked child. Takes no lock.
        """
        self.forked = True
        # A thread that does not exist here may hold the old one.
        self._fork_lock = LongLock(Level.HANDLE)
        if self._nats is not None:
            self.lane.after_fork()
        for consumption in list(self.consumptions):
            consumption.after_fork()

    def on_closed(self, cause: Exception | None) -> None:
        """End all waits and report once that the client is closed, or that nats-py gave up."""
        if self.closed.is_set() or self._exiting:
            return
        self.closing.set()
        self.closed.set()
        reason = translate_closed(cause)
        if cause is not None:
            _logger.warning("closed", reason=str(reason))
        self.lane.close(reason)
        self.emit(events.ClosedEvent(error=None if cause is None else reason))

    def check(self, *, while_closing: bool = False) -> None:
        """
        Raise if the client is closed. In a forked child, connect or raise ForkedProcessError.

        Handles that the parent has opened call the lane's ``check`` instead.
        """
        if self.forked:
            self._connect_child()
        self.lane.check(while_closing=while_closing)

    def _connect_child(self) -> None:
        """Connect in a forked child if ``after_fork`` says so, or raise ForkedProcessError."""
        if self.options.after_fork == "error":
            raise errors.ForkedProcessError
        with self._fork_lock:
            if not self.forked:
                return  # Another thread has connected.
            before = self.__dict__.copy()
            try:
                self._reset()
                if self.plugins.dispatcher is not None:
                    self.plugins.dispatcher.after_fork()
                self.connect()
            except BaseException:
                # After Ctrl-C the connection may exist already.
                self.abandon()
                self.__dict__.update(before)
                raise
            for context in list(self.contexts):
                context.lane = self.lane
            self.forked = False

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection at this moment."""
        return not self.forked and self.lane.state is LaneState.OPEN

    @property
    def can_finish(self) -> bool:
        """Whether there is a connection on which publishers can finish."""
        return not self.forked and self.lane.outbox.can_send

    @property
    def state(self) -> str:
        """The state in one word, for the repr of the client."""
        return "forked" if self.forked else self.lane.state.value

    def flush(self, deadline: Deadline, *, while_closing: bool = False) -> float:
        """
        Wait until the server has processed all earlier writes, and return the seconds it took.

        Works while the client closes only if *while_closing* is true.

        Raises:
            DisconnectedError, ConnectionLostError, WaitTimeoutError: The server did not confirm it
                before the deadline.
        """
        if not while_closing:
            self.check()
        self.lane.prepare_wait()
        start = time.perf_counter()
        pong = Waiter(b"PING")
        self.lane.write(PING, deadline, pong=pong, while_closing=while_closing)
        self.lane.wait(pong, deadline)
        seconds = time.perf_counter() - start
        if pong.reply is not None:
            return seconds
        self.check()
        if pong.is_lost:
            raise errors.ConnectionLostError(
                reason=self.lane.why_lost(pong.epoch) or "while flushing"
            )
        raise errors.WaitTimeoutError("the server's answer to a PING", deadline.total)

    def flush_core(self, deadline: Deadline) -> None:
        """
        Flush, and raise the error of the first core message that was refused since the last call.

        Raises:
            PermissionDeniedError: The server refused a core message.
            DisconnectedError, ConnectionLostError, WaitTimeoutError: As for :meth:`flush`.
        """
        self.flush(deadline)
        if not self.has_published:
            return
        self._handle_errors(deadline)
        self.has_published = False
        refused = take_all(self._refused)
        if refused:
            raise_failure(refused[0])

    def flush_refusals(self, deadline: Deadline) -> None:
        """Flush, and wait until all refusals of earlier writes have been noted; raises as flush."""
        self.flush(deadline)
        self._handle_errors(deadline)

    def _handle_errors(self, deadline: Deadline) -> None:
        """Wait until the loop has handled the lines that came before the last PONG."""
        read = self.lane.errors_read
        if read != self._errors_handled:
            self._bridge.call(_nothing, deadline=deadline)
            self._errors_handled = read

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
        lane.prepare_wait()
        lane.outbox.leave(epoch)
        lane.write(b"", deadline)

    def probe(self) -> None:
        """
        Check whether the server still answers, because an ack or a heartbeat is late.

        Returns at once. If nothing arrives within :data:`PROBE_TIMEOUT` seconds, the connection is
        dropped and a new one is made. Repeated calls are cheap.
        """
        now = time.monotonic()
        if now - self._probed > PROBE_TIMEOUT:
            self._probed = now
            self.lane.later(0.0, self._begin_probe)

    def _begin_probe(self) -> None:
        """Send a PING and check after :data:`PROBE_TIMEOUT` seconds whether data has arrived."""
        lane = self.lane
        if lane.state is not LaneState.OPEN:
            return
        # Before the write: a thread that reads may get the PONG before `write` returns.
        bytes_in = lane.bytes_in
        # If there is no room for the PING, the bytes before it get no answer either.
        with contextlib.suppress(errors.TransportError):
            lane.write(PING, Deadline.after(0.0), pong=Waiter(b"PING"))
        sent = lane.outbox.bytes_out
        lane.later(PROBE_TIMEOUT, self._end_probe, lane.epoch, bytes_in, lane.delivered(), sent)

    def _end_probe(self, epoch: int, bytes_in: int, delivered: int, sent: int) -> None:
        lane = self.lane
        if lane.epoch != epoch or lane.bytes_in != bytes_in or lane.has_input():
            return
        progress = lane.delivered()
        if delivered < sent and progress > delivered:
            # A long upload before the PING still makes progress. Later writes do not count.
            lane.later(PROBE_TIMEOUT, self._end_probe, epoch, bytes_in, progress, sent)
            return
        _logger.warning("silent", server=self.server.url, seconds=PROBE_TIMEOUT)
        lane.abort()

    def check_size(self, size: int) -> None:
        """
        Raise MaxPayloadError if headers and payload of *size* bytes exceed the server's limit.
        """
        limit = self.server.max_payload
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
    ) -> Frame:
        """
        Send one request and return the frame that answers it.

        Args:
            subject: The subject of the request.
            header: The whole header block; empty or None sends no headers.
            payload: The body.
            deadline: Deadline of the whole call.
            epoch: The only connection that may carry the request; None allows any. With an epoch,
                the caller has checked the size of the request.
            before: Blocks to write together with the request, in front of it.
            in_batch: Whether the request is a message of a batch.

        Raises:
            MaxPayloadError: The request is larger than the server accepts; it was not processed.
            DisconnectedError: No connection was available before the deadline; nothing was sent.
            ConnectionLostError: The connection was lost before the answer. If its ``sent`` is
                false, the server has not processed the request: the connection *epoch* was gone
                before, or the server refused this message or an earlier one as too large.
            ConnectionClosedError: The client is closed. If its ``sent`` is true, the request had
                been sent before.
            PermissionDeniedError: The server refused the subject, or the reply subject. If its
                ``sent`` is true, the request had been sent before.
            NoRespondersError: No client or server listens on the subject.
            RequestTimeoutError: The request was sent, but no answer came before the deadline.
        """
        if self.forked:
            self._connect_child()
        size = len(payload) + len(header or b"")
        any_epoch = epoch is None
        if any_epoch and size > self.server.max_payload:
            self.check_size(size)
        lane, router = self.lane, self.router
        # Before the write: the request must not be sent if its answer cannot be read.
        lane.prepare_wait()
        waiter = Waiter(subject, in_batch)
        reply = router.register(waiter)
        try:
            if router.refusal is not None:
                self._subscribe_again(deadline)
            if header:
                block = frames.hpub(subject, reply, header, payload)
            else:
                block = frames.pub(subject, reply, payload)
            if before:
                block = b"".join((*before, block))
            waiter.epoch = epoch = lane.write(block, deadline, epoch, shared=True, request=reply)
            if lane.lost_epoch >= epoch:
                # The connection was lost after the write. The router may have notified its waiters
                # before this one had its epoch.
                waiter.lost(epoch)
            lane.wait(waiter, deadline)
        finally:
            if waiter.reply is None:
                if waiter.may_be_refused:
                    self.refusals.add(subject)
                router.forget(reply)
        answer, failure = waiter.reply, waiter.failure
        if answer is not None:
            if answer[2] is not None and is_no_responders(answer):
                raise errors.NoRespondersError(subject.decode())
            return answer
        if isinstance(failure, errors.ConnectionClosedError):
            raise errors.ConnectionClosedError(str(failure), sent=True) from failure.__cause__
        if failure is not None:
            raise_failure(failure)
        if waiter.is_lost:
            unprocessed = lane.unprocessed == reply
            if unprocessed and any_epoch:
                # The next server says how much it accepts.
                epoch = lane.write(b"", deadline)
                self.check_size(size)
                return self.exchange(subject, header, payload, deadline, epoch=epoch)
            raise errors.ConnectionLostError(
                subject=subject.decode(), reason=lane.why_lost(epoch), sent=not unprocessed
            )
        self.probe()
        raise errors.RequestTimeoutError(subject.decode(), deadline.total)

    def _subscribe_again(self, deadline: Deadline) -> None:
        """
        Ask the server again for the replies that it refused; raise if it still refuses them.

        The permissions of the user may have changed.
        """
        lane, router = self.lane, self.router
        refusal = router.refusal
        while refusal is not None:
            line = router.ask_again()
            if line is None:
                raise_failure(refusal)
            try:
                lane.write(line, deadline)
                self.flush(deadline)
                # The loop has then handled a refusal that the server sent before the PONG.
                refusal = self._bridge.call(router.accept, refusal, deadline=deadline)
            except errors.ConnectionLostError:
                continue  # The next connection may have other permissions.
            except errors.WaitTimeoutError:
                pass
            if refusal is not None:
                raise_failure(refusal)

    def new_inbox(self) -> str:
        """Return a reply subject that was not used before."""
        # The number is not a separate token, because servers match ack subjects token by token.
        return f"{self.inbox}-{next(self._numbers):x}"

    def new_batch_id(self) -> str:
        """Return a batch id that was not used before."""
        return f"{self._token}-{next(self._numbers):x}"

    # Acks.

    def acknowledge(self, message: Message, body: bytes) -> None:
        """
        Send an ack together with others, and everything else at once; see ``Acker``.

        Works while the client closes, so that handlers can finish their messages.
        """
        if self.forked:
            self._connect_child()
        lane, timeout = self.lane, self.options.request_timeout
        if body == ACK:
            lane.ack(message.raw_reply, timeout)
            return
        self.check_size(len(body))
        block = frames.answers((message.raw_reply,), body)
        if lane.outbox.held_here():
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
        if self.plugins.dispatcher is not None:
            self.plugins.dispatcher.emit_later(event)

    def statistics(self) -> Statistics:
        """Return the current counters."""
        lane = self.lane
        return Statistics(
            bytes_in=lane.bytes_in,
            bytes_out=lane.outbox.bytes_out,
            reconnects=self.reconnects,
            requests_in_flight=self.router.pending(),
            subscriptions=len(lane.receivers()),
            strays=lane.strays,
        )

    # The connection's listener; loop thread.

    def on_connected(self) -> None:
        """Allow writes: nats-py has completed the handshake."""
        is_reconnect = self.lane.epoch > 0
        self.lane.open()
        if is_reconnect:
            self.reconnects += 1
            self._down = False
            url = self.server.url
            _logger.info("reconnected", server=url)
            self.emit(events.ReconnectedEvent(server=url, reconnects=self.reconnects))

    def on_disconnected(self) -> None:
        """Report a lost connection once. The lane has already handled the loss."""
        if self.closed.is_set() or self._exiting or self._down:
            return
        self._down = True
        _logger.info("disconnected", server=self.server.url)
        self.emit(events.DisconnectedEvent(server=self.server.url))

    def on_lame_duck(self) -> None:
        """Report that the server will close the connection soon."""
        _logger.info("lame_duck", server=self.server.url)
        self.emit(events.LameDuckEvent(server=self.server.url))

    def on_discovered(self, urls: tuple[str, ...]) -> None:
        """Report servers that have joined the cluster."""
        self.emit(events.ServersDiscoveredEvent(servers=urls))

    def on_info(self, server: ServerInfo) -> None:
        """Keep the server's last INFO."""
        self.server = server

    def on_server_error(self, text: str) -> None:
        """Fail the calls that an ``-ERR`` line of the server refuses."""
        _logger.warning("server_error", text=text, server=self.server.url)
        if "maximum payload violation" in text.lower():
            self.lane.note_oversized()
            return
        if "maximum subscriptions exceeded" in text.lower():
            self._fail_refused_subscription()
            return
        denied = parse_denied(text)
        if denied is None:
            return
        operation, subject = denied
        error = errors.PermissionDeniedError(subject, operation)
        self.denials.append((time.monotonic(), error))
        is_known = False
        if operation == "publish":
            is_known, error = self.refusals.note(error, self.lane)
        for receiver in self.lane.receivers():
            is_known |= receiver.denied(operation, subject.encode(), error)
        # Pulls and acks are not core messages of the application.
        is_own = is_known or subject.startswith("$JS.")
        if operation == "publish" and self.has_published and not is_own:
            self._refused.append(errors.PermissionDeniedError(subject, operation))
        # Wake the thread that reads the socket, because it only waits for bytes.
        self.lane.wake_reader()
        self.emit(events.PermissionDeniedEvent(subject=subject, operation=operation))

    def _fail_refused_subscription(self) -> None:
        receiver = self.lane.take_refused()
        if receiver is None:
            return
        error = errors.SubscriptionLimitError(receiver.interest.decode("utf-8", "replace"))
        receiver.fail(error)
        self.lane.wake_reader()
        self.emit(events.AsyncErrorEvent(error=error))

    def on_error(self, error: Exception) -> None:
        """Report an error that belongs to no call. nats-py continues by itself."""
        if isinstance(error, (OSError, EOFError)):
            target = self._nats.transport.attempt.target if self._nats is not None else None
            why = str(translate_connect_error(error, server=target))
            if self._down and why != self.lane.outbox.why_down:
                # Each reason is logged once per outage.
                self.lane.outbox.why_down = why
                _logger.warning("reconnect_failed", reason=why)
            if not isinstance(error, errors.ConnectError):
                # The loss was reported already.
                return
        if isinstance(error, errors.ProtocolError):
            _logger.warning("protocol_error", error=str(error))
        else:
            error = translate_connect_error(error)
        self.emit(events.AsyncErrorEvent(error=error))


async def _nothing() -> None:
    """Wait for what the loop has to do before."""


async def _start(threads: Sequence[threading.Thread]) -> None:
    for thread in threads:
        thread.start()


async def _end(bridge: Bridge, nats: NatsConnection | None, plugins: Plugins, grace: float) -> None:
    """End the connection and the thread, after at most *grace* seconds to send outstanding data."""
    try:
        if nats is not None:
            if grace:
                # Not done yet if a signal handler closes the client.
                nats.lane.begin_close(errors.ConnectionClosedError())
                await nats.flush(grace)
            await nats.stop()
    finally:
        bridge.stop(0.0)
        plugins.close(0.0)


class WeakCalls:
    """Has the methods of an object. They do nothing once the object was collected."""

    def __init__(self, target: object) -> None:
        self._target = weakref.ref(target)

    def __getattr__(self, name: str) -> Callable[..., None]:
        def call(*arguments: object) -> None:
            target = self._target()
            if target is not None:
                getattr(target, name)(*arguments)

        return call


def list_of(handles: weakref.WeakSet[_H]) -> list[_H]:
    """Return the items of *handles*, though other threads may add more meanwhile."""
    while True:
        # list() fails if another thread adds to the set meanwhile.
        with contextlib.suppress(RuntimeError):
            return list(handles)


def report_at_exit(text: str) -> None:
    """Write one line to stderr, because the program is about to end."""
    with contextlib.suppress(Exception):  # There may be no stderr.
        sys.stderr.write(f"jetsync: at exit: {text}\n")


def was_sent(error: Exception | None) -> bool:
    """Return whether an exchange that failed with *error* had sent its request."""
    if isinstance(
        error,
        (errors.ConnectionClosedError, errors.ConnectionLostError, errors.PermissionDeniedError),
    ):
        return error.sent
    return isinstance(error, errors.RequestTimeoutError)
