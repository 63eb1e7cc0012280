"""
What all handles share: one connection, its request-reply path, its plugins and its events.

``connect`` makes a :class:`Connection`, and every handle holds it, so that no handle needs the
client. The handles of a JetStream context reach it through ``jetsync._api.context.Context``.

Threads: everything here may be called from any thread, except the ``on_*`` methods, which the loop
thread calls and which therefore only set values, wake waiters and queue events.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import secrets
import threading
import time
import types
import weakref
from typing import TYPE_CHECKING, Any, Final, NoReturn

from jetsync import events
from jetsync._base import log as _log
from jetsync._base.deadline import Deadline
from jetsync._base.locks import Latch, held_here, take
from jetsync._io.bridge import Bridge
from jetsync._io.mailbox import Mailbox, ReplyRouter, Waiter
from jetsync._io.nats_seam import NatsConnection
from jetsync._io.outbox import PING, LaneState
from jetsync._io.translate import translate_closed, translate_connect_error
from jetsync._io.transport import ConnectionListener
from jetsync._proto import frames
from jetsync._proto.puback import is_no_responders
from jetsync.errors import (
    ConnectError,
    ConnectionClosedError,
    ConnectionLostError,
    ConnectTimeoutError,
    ForkedProcessError,
    MaxPayloadError,
    NoRespondersError,
    PermissionDeniedError,
    ProtocolError,
    RequestTimeoutError,
    SubscriptionLimitError,
    TransportError,
    WaitTimeoutError,
)
from jetsync.values.server_info import ServerInfo, Statistics, parse_info
from jetsync.values.server_urls import without_login

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from jetsync._base.deadline import Seconds
    from jetsync._hooks.manager import Plugins
    from jetsync._io.lane import Lane
    from jetsync.options import ConnectOptions
    from jetsync.values.frame import Frame
    from jetsync.values.message import Message

DROP_GRACE: Final = 1.0
"""Seconds to flush a client that was dropped without ``close``."""

_LISTENER: Final = tuple(name for name in vars(ConnectionListener) if name.startswith("on_"))

STOP_TIMEOUT: Final = 1.0
"""Seconds to wait for the thread of a client that could not connect."""

PROBE_TIMEOUT: Final = 2.0
"""
Seconds to wait for any data after an ack or a heartbeat is late.

Much longer than a round trip, much shorter than ``ping_interval``. If the server was only slow, the
price is a reconnect.
"""

LONG_ACK: Final = 256
"""Bytes of an ack that need no comparison with the server's ``max_payload``."""

_DENIED_PREFIX: Final = "Permissions Violation for "

_TOO_MANY_SUBSCRIPTIONS: Final = "maximum subscriptions exceeded"

_logger = _log.get_logger("jetsync.connection")


class Connection:
    """
    One connection as handles see it.
    """

    def __init__(self, options: ConnectOptions, plugins: Plugins) -> None:
        self.options = options
        self.plugins = plugins
        self._token = secrets.token_hex(8)
        """A random token, unique to this client."""
        self.inbox: str = f"{options.inbox_prefix}.{self._token}"
        self.router: ReplyRouter = ReplyRouter(self.inbox.encode())
        self.lane: Lane
        self.closed: Latch = Latch()
        self.reconnects: int = 0
        self.consumptions: weakref.WeakSet[Any] = weakref.WeakSet()
        """Those that somebody holds, for a client that drains."""
        self._bridge = Bridge(options.loop)
        self._nats: NatsConnection | None = None
        self._drop: weakref.finalize[Any, Connection] | None = None
        """Ends the connection and the thread if this object is dropped before it was closed."""
        self._probed = 0.0
        """When the server was asked for a sign of life last, on the monotonic clock."""
        self._info_line = b"INFO {}"
        self._info: tuple[bytes, str | None, ServerInfo] = (b"", None, ServerInfo())
        self._inboxes = itertools.count(1)
        self._batches = itertools.count(1)
        self._close_lock = threading.RLock()
        self._exiting = False
        """Whether the interpreter ends."""
        self._stopped = False
        """Whether the thread was told to end, which a client that gave up by itself is not."""
        self._down = False
        """Whether a loss was reported and no connection since; makes the events come in pairs."""

    # Life.

    def connect(self) -> None:
        """
        Start the thread and make the first connection, within ``connect_timeout`` in all.

        Leaves no thread behind when it fails.

        Raises:
            ConnectError: No server could be reached, or TLS failed.
            ConnectTimeoutError: The time was over first.
            AuthenticationError: A server refused the credentials.
        """
        deadline = Deadline.after(self.options.connect_timeout)
        with _log.beats(_logger, _log.CONNECT, client=self.options.name):
            try:
                self._bridge.start(_weakly(self._close_at_exit), _weakly(self._after_fork))
                self._bridge.call(self._connect, deadline=deadline)
            except WaitTimeoutError:
                self._bridge.stop(STOP_TIMEOUT)
                last = self._nats.last_error if self._nats is not None else None
                reason = None if last is None else str(translate_connect_error(last))
                raise ConnectTimeoutError(deadline.total, reason=reason) from last
            except BaseException as error:
                if not isinstance(error, Exception):
                    # Ctrl-C: the connection may be made already.
                    self.abandon()
                self._bridge.stop(STOP_TIMEOUT)
                raise

    async def _connect(self) -> None:
        options = self.options
        # The loop holds no reference to this object, so a client that is no longer used ends.
        listener = types.SimpleNamespace(
            **{name: _weakly(getattr(self, name)) for name in _LISTENER}
        )
        nats = NatsConnection(listener, options)
        self._drop = weakref.finalize(
            self, self._bridge.spawn, _end, self._bridge, nats, self.plugins, DROP_GRACE
        )
        self._drop.atexit = False
        self._nats = nats
        self.lane = nats.lane
        self.lane.listen(self.lane.new_sid(), self.router)
        await nats.start(nats_arguments(options), persist=options.retry_on_failed_connect)

    def close(self, timeout: float) -> None:
        """
        Close the connection and wake everything that waits; safe to repeat.

        What was handed over before is sent, as far as the server takes it within *timeout* seconds.
        If a signal handler calls this while its thread was reading or writing, the loop does the
        work and this returns at once.
        """
        if self._bridge.forked or held_here(self._close_lock):
            # The latter in a signal handler that interrupted close(), which continues afterwards.
            return
        if self.lane.is_busy_here():
            self.abandon(timeout)
            return
        deadline = Deadline.after(timeout)
        taken: list[bool] = []
        try:
            # Without the lock, another thread is still closing.
            if take(self._close_lock, taken, deadline.remaining()) and not self._stopped:
                self._close(deadline)
        finally:
            if True in taken:
                self._close_lock.release()
        if self.plugins.dispatcher is not None:
            self.plugins.dispatcher.close(max(deadline.remaining(), 0.1))

    def _close(self, deadline: Deadline) -> None:
        """Send what was handed over, announce the end, and end the connection and the thread."""
        try:
            if self.lane.state is LaneState.OPEN:
                self.flush(deadline)
        except (TransportError, WaitTimeoutError):
            _logger.warning(_log.CLOSED, reason="not everything could be sent")
        try:
            # In the loop thread, where Ctrl-C does not strike.
            self._bridge.call(self._shut, deadline=deadline)
        except WaitTimeoutError:
            _logger.warning(_log.CLOSED, reason="the connection did not close in time")
        except ConnectionClosedError:
            pass  # The thread has ended already.
        self._bridge.stop(max(deadline.remaining(), 0.1))
        self._finish(None)
        self._stopped = True
        if self._drop is not None:
            self._drop.detach()

    async def _shut(self) -> None:
        self._finish(None)
        await _end(self._bridge, self._nats, self.plugins, 0.0)

    def abandon(self, grace: float = 0.0) -> None:
        """
        End the connection and the thread, without waiting for either; any thread.

        Args:
            grace: Seconds to send what was handed over.
        """
        self._bridge.spawn(_end, self._bridge, self._nats, self.plugins, grace)

    def _close_at_exit(self, timeout: float) -> None:
        """
        Send what was handed over and end the thread, as the interpreter ends.

        Unlike :meth:`close`, this does not wake waiting threads. They are daemons, and the
        interpreter would print their errors.
        """
        deadline = Deadline.after(timeout)
        with contextlib.suppress(TransportError, WaitTimeoutError):
            self.flush(deadline)
        self._exiting = True
        self.lane.freeze()
        if not self.closed.is_set():
            self.emit(events.ClosedEvent())
        try:
            if self._nats is not None:
                self._bridge.call(self._nats.stop, deadline=deadline)
        finally:
            self._bridge.stop(max(deadline.remaining(), 0.1))
            self.plugins.close(max(deadline.remaining(), 0.1))

    def _after_fork(self) -> None:
        """Leave the connection to the process that made it; this one is its forked child."""
        if self._nats is not None:
            self.lane.after_fork()
        for consumption in list(self.consumptions):
            consumption.after_fork()

    def _finish(self, cause: Exception | None) -> None:
        """Announce the end, once."""
        if self.closed.is_set() or self._exiting:
            return
        self.closed.set()
        reason = translate_closed(cause)
        if cause is not None:
            _logger.warning(_log.CLOSED, reason=str(reason))
        self.lane.close(reason)
        self.emit(events.ClosedEvent(error=None if cause is None else reason))

    def check_process(self) -> None:
        """Raise if this process is a forked child of the one that connected."""
        if self._bridge.forked:
            raise ForkedProcessError

    def check(self) -> None:
        """
        Raise if the client is closed, or if this process is a forked child.
        """
        if self._bridge.forked:
            raise ForkedProcessError
        reason = self.lane.outbox.reason
        if reason is not None:
            raise_failure(reason)

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection at this moment."""
        return not self._bridge.forked and self.lane.state is LaneState.OPEN

    @property
    def state(self) -> str:
        """One word for a repr."""
        return "forked" if self._bridge.forked else self.lane.state.value

    def flush(self, deadline: Deadline) -> float:
        """
        Wait until the server has processed all that was written before; return the seconds it took.

        Raises:
            DisconnectedError, ConnectionLostError, WaitTimeoutError: The server did not answer
                before the deadline.
        """
        self.check()
        self.lane.prepare_wait()
        start = time.perf_counter()
        pong = Waiter(b"PING")
        self.lane.write(PING, deadline, pong=pong)
        self.lane.wait(pong, deadline)
        if pong.reply is not None:
            return time.perf_counter() - start
        self.check()
        if pong.is_lost:
            raise ConnectionLostError(reason="while flushing")
        raise WaitTimeoutError("the server's answer to a PING", deadline.total)

    def reconnect(self, deadline: Deadline) -> None:
        """Drop the connection and let a new one be made, to another server where there is one."""
        self.check()
        assert self._nats is not None
        self._bridge.call(self._nats.reconnect, deadline=deadline)

    def probe(self) -> None:
        """
        Ask the server for a sign of life, because something that was due has not come.

        Returns at once. If nothing arrives within :data:`PROBE_TIMEOUT` seconds, the connection is
        dropped and a new one is made. Any thread; cheap to call again.
        """
        now = time.monotonic()
        if now - self._probed > PROBE_TIMEOUT:
            self._probed = now
            self.lane.later(0.0, self._begin_probe)

    def _begin_probe(self) -> None:
        """Send a PING and look whether anything has come :data:`PROBE_TIMEOUT` later."""
        lane = self.lane
        if lane.state is not LaneState.OPEN:
            return
        # If there is no room for it either, the bytes before it get no answer.
        with contextlib.suppress(TransportError):
            lane.write(PING, Deadline.after(0.0), pong=Waiter(b"PING"))
        lane.later(PROBE_TIMEOUT, self._end_probe, lane.epoch, lane.bytes_in, lane.delivered())

    def _end_probe(self, epoch: int, bytes_in: int, delivered: int) -> None:
        lane = self.lane
        if lane.epoch != epoch or lane.bytes_in != bytes_in or lane.has_input():
            return
        progress = lane.delivered()
        if progress > delivered:
            # A long upload: the PING waits behind it.
            lane.later(PROBE_TIMEOUT, self._end_probe, epoch, bytes_in, progress)
            return
        _logger.warning(_log.SILENT, server=self.server.url, seconds=PROBE_TIMEOUT)
        lane.abort()

    # What the server said.

    @property
    def server(self) -> ServerInfo:
        """The server that the client is or was connected to last."""
        line, url, info = self._info
        current = self._nats.url if self._nats is not None else None
        if line is not self._info_line or url != current:
            line = self._info_line
            info = parse_info(line, current)
            self._info = (line, current, info)
        return info

    def check_size(self, size: int) -> None:
        """
        Raise MaxPayloadError if headers and payload of *size* bytes are more than the server takes.
        """
        if size > self._info[2].max_payload or self._info[0] is not self._info_line:
            limit = self.server.max_payload
            if size > limit:
                raise MaxPayloadError(size, limit)

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
    ) -> Frame:
        """
        Send one request and return the frame that answers it.

        Args:
            subject: The subject of the request.
            header: The whole header block; empty or None sends no headers.
            payload: The body.
            deadline: Of the whole call.
            epoch: The only connection that may carry the request; None allows any. With an epoch,
                the caller has checked the size of the request.
            before: Blocks to write together with the request, in front of it.

        Raises:
            MaxPayloadError: The request is larger than the server accepts; nothing was sent.
            DisconnectedError: There was no connection until the deadline; nothing was sent.
            ConnectionLostError: The connection was lost before the answer. If its ``sent`` is
                false, the connection *epoch* was gone before and nothing was sent.
            ConnectionClosedError: The client is closed. If its ``sent`` is true, the request had
                been sent before.
            PermissionDeniedError: The server refused the subject.
            NoRespondersError: No client or server listens on the subject.
            RequestTimeoutError: The request was sent, and no answer came until the deadline.
        """
        if self._bridge.forked:
            raise ForkedProcessError
        if epoch is None:
            self.check_size(len(payload) + len(header or b""))
        lane, router = self.lane, self.router
        # Before the write: the request must not be sent if its answer cannot be read.
        lane.prepare_wait()
        waiter = Waiter(subject)
        reply = router.register(waiter)
        try:
            if header:
                block = frames.hpub(subject, reply, header, payload)
            else:
                block = frames.pub(subject, reply, payload)
            if before:
                block = b"".join((*before, block))
            waiter.epoch = epoch = lane.write(block, deadline, epoch)
            if lane.lost_epoch >= epoch:
                # Lost since the write, so the router may have told its waiters before.
                waiter.lost(epoch)
            lane.wait(waiter, deadline)
        finally:
            if waiter.reply is None:
                router.forget(reply)
        answer, failure = waiter.reply, waiter.failure
        if answer is not None:
            if is_no_responders(answer):
                raise NoRespondersError(subject.decode())
            return answer
        if isinstance(failure, ConnectionClosedError):
            raise ConnectionClosedError(str(failure), sent=True) from failure.__cause__
        if failure is not None:
            raise_failure(failure)
        if waiter.is_lost:
            raise ConnectionLostError(subject=subject.decode())
        self.probe()
        raise RequestTimeoutError(subject.decode(), deadline.total)

    def new_inbox(self) -> str:
        """Return a reply subject that nobody has used."""
        # No level of its own: servers match reply subjects token by token, once for each ack.
        return f"{self.inbox}-{next(self._inboxes):x}"

    def new_batch_id(self) -> str:
        """Return a batch id that nobody has used."""
        return f"{self._token}-{next(self._batches):x}"

    def listen(self, box: Mailbox, queue: bytes = b"") -> tuple[bytes, bytes]:
        """
        Route a new subscription to *box*. Return its id and the line that the caller has to write.
        """
        sid = self.lane.new_sid()
        return sid, self.lane.listen(sid, box, queue)

    # Acks (the Acker of messages).

    def acknowledge(self, message: Message, body: bytes) -> None:
        """Send an ack soon, together with others."""
        if self._bridge.forked:
            raise ForkedProcessError
        if len(body) > LONG_ACK:
            self.check_size(len(body))
        block = b"PUB %b  %d\r\n%b\r\n" % (message.raw_reply, len(body), body)
        self.lane.post(block, self.options.request_timeout, lazy=True)

    def acknowledge_sync(self, message: Message, body: bytes, timeout: Seconds | None) -> None:
        """Send an ack and wait until the server has stored it."""
        self.check()
        deadline = self.deadline(timeout)
        self.exchange(message.raw_reply, None, body, deadline)

    def deadline(self, timeout: Seconds | None) -> Deadline:
        """Make the deadline of one public call; None is the client's ``request_timeout``."""
        return Deadline.after(self.options.request_timeout if timeout is None else timeout)

    # Events.

    def emit(self, event: events.StatusEvent | Callable[[], events.StatusEvent | None]) -> None:
        """
        Have the plugins told of *event*, in their own thread; never blocks.

        A function is called there, for events that take time to make.
        """
        if self.plugins.dispatcher is not None:
            self.plugins.dispatcher.emit_later(event)

    def statistics(self) -> Statistics:
        """Return the counters as they are now."""
        lane = self.lane
        return Statistics(
            bytes_in=lane.bytes_in,
            bytes_out=lane.bytes_out,
            reconnects=self.reconnects,
            requests_in_flight=self.router.pending(),
            subscriptions=len(lane.receivers()),
            strays=lane.strays,
        )

    # The connection's listener; loop thread.

    def on_connected(self) -> None:
        """Let writes pass; nats-py has greeted the server."""
        again = self.lane.epoch > 0
        self.lane.open()
        if again:
            self.reconnects += 1
            self._down = False
            url = self._nats.url if self._nats is not None else None
            _logger.info(_log.RECONNECTED, server=url)
            self.emit(events.ReconnectedEvent(server=url, reconnects=self.reconnects))

    def on_disconnected(self) -> None:
        """Tell the plugins, once per loss; the lane knows already."""
        if self.closed.is_set() or self._exiting or self._down:
            return
        self._down = True
        url = self._nats.url if self._nats is not None else None
        _logger.info(_log.DISCONNECTED, server=url)
        self.emit(events.DisconnectedEvent(server=url))

    def on_closed(self, cause: Exception | None) -> None:
        """nats-py gave up, or was told to stop."""
        self._finish(cause)

    def on_lame_duck(self) -> None:
        """Tell the plugins; the server closes the connection by itself, later."""
        url = self._nats.url if self._nats is not None else None
        _logger.info(_log.LAME_DUCK, server=url)
        self.emit(events.LameDuckEvent(server=url))

    def on_discovered(self) -> None:
        """Servers joined the cluster."""
        urls = self._nats.discovered() if self._nats is not None else ()
        self.emit(events.ServersDiscoveredEvent(servers=urls))

    def on_info(self, line: bytes) -> None:
        """Keep what the server says of itself; it is parsed when somebody asks."""
        self._info_line = line

    def on_server_error(self, text: str) -> None:
        """Give ``-ERR`` lines about permissions to the calls that they answer."""
        _logger.warning(_log.SERVER_ERROR, text=text, server=self.server.url)
        if _TOO_MANY_SUBSCRIPTIONS in text.lower():
            self._fail_refused_subscription()
            return
        denied = parse_denied(text)
        if denied is None:
            return
        operation, subject = denied
        error = PermissionDeniedError(subject, operation)
        for receiver in self.lane.receivers():
            receiver.denied(operation, subject.encode(), error)
        # The thread that reads the socket waits for bytes, not for this.
        self.lane.wake_reader()
        self.emit(events.PermissionDeniedEvent(subject=subject, operation=operation))

    def _fail_refused_subscription(self) -> None:
        receiver = self.lane.take_refused()
        if receiver is None:
            return
        error = SubscriptionLimitError(receiver.interest.decode("utf-8", "replace"))
        receiver.fail(error)
        self.lane.wake_reader()
        self.emit(events.AsyncErrorEvent(error=error))

    def _note_failure(self, error: OSError | EOFError) -> None:
        """Keep why an attempt to connect has failed, and log each reason once per outage."""
        target = self._nats.transport.attempt.target if self._nats is not None else None
        why = str(translate_connect_error(error, server=target))
        if self._down and why != self.lane.outbox.why_down:
            self.lane.outbox.why_down = why
            _logger.warning(_log.RECONNECT_FAILED, reason=why)

    def on_error(self, error: Exception) -> None:
        """Report an error that belongs to no call; nats-py continues by itself."""
        if isinstance(error, (OSError, EOFError)):
            self._note_failure(error)
            if not isinstance(error, ConnectError):
                # The loss itself was reported already.
                return
        if isinstance(error, ProtocolError):
            _logger.warning(_log.PROTOCOL_ERROR, error=str(error))
        else:
            error = translate_connect_error(error)
        self.emit(events.AsyncErrorEvent(error=error))


async def _end(bridge: Bridge, nats: NatsConnection | None, plugins: Plugins, grace: float) -> None:
    """End the connection and the thread; *grace* are seconds to send what was handed over."""
    try:
        if nats is not None:
            if grace:
                await nats.flush(grace)
            await nats.stop()
    finally:
        bridge.stop(0.0)
        if plugins.dispatcher is not None:
            plugins.dispatcher.close(0.0)


def _weakly(method: Callable[..., None]) -> Callable[..., None]:
    """Return a function that calls a bound method as long as its object exists."""
    weak = weakref.WeakMethod(method)

    def call(*arguments: object) -> None:
        bound = weak()
        if bound is not None:
            bound(*arguments)

    return call


def was_sent(error: Exception) -> bool:
    """Return whether an exchange that failed with *error* had sent its request."""
    if isinstance(error, (ConnectionClosedError, ConnectionLostError)):
        return error.sent
    return isinstance(error, RequestTimeoutError)


def raise_failure(failure: Exception) -> NoReturn:
    """
    Raise a copy of an error that several threads may get, as each raise changes its traceback.
    """
    raise copy.copy(failure) from failure.__cause__


def parse_denied(text: str) -> tuple[Any, str] | None:
    """
    Return what was refused, ("publish" | "subscribe", subject), of a server's permission error.

    The texts are ``-ERR 'Permissions Violation for Publish to "subject"'`` and ``... Subscription
    to "subject"``, the latter perhaps with `` using queue "name"`` behind it.
    """
    _, found, rest = text.partition(_DENIED_PREFIX)
    verb, to, rest = rest.partition(' to "')
    subject, quote, _ = rest.partition('"')
    if not found or not to or not quote:
        return None
    return ("publish" if verb == "Publish" else "subscribe"), subject


def nats_arguments(options: ConnectOptions) -> dict[str, Any]:
    """
    Return the arguments of nats-py's connect, one for each of our options that concerns it.

    No login is among them: the transport adds it to each connection.
    """
    return {
        "servers": [without_login(url) for url in options.server_list()],
        "name": options.name,
        "tls": options.ssl_context(),
        "tls_hostname": options.tls_hostname,
        "tls_handshake_first": options.tls_first,
        "inbox_prefix": options.inbox_prefix,
        # The transport bounds each attempt by itself, and says why one has failed.
        "connect_timeout": options.connect_timeout + 1.0,
        "reconnect_time_wait": options.reconnect_wait,
        "allow_reconnect": options.max_reconnects != 0,
        "max_reconnect_attempts": options.max_reconnects,
        "ping_interval": options.ping_interval,
        "max_outstanding_pings": options.max_outstanding_pings,
        "no_echo": not options.echo,
    }
