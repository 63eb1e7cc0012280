"""
What the seam and the transport report about the connections of a session.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jetsync import errors, events
from jetsync._base.locks import Latch
from jetsync._base.log import get_logger
from jetsync._io.probe import Probe
from jetsync._io.refusals import Refusals
from jetsync._io.translate import parse_denied, translate_closed, translate_connect_error
from jetsync.values.server_info import ServerInfo

if TYPE_CHECKING:
    from collections.abc import Callable

    from jetsync._hooks.manager import Plugins
    from jetsync._io.lane import Lane
    from jetsync.options import ConnectOptions

_logger = get_logger("jetsync.connection")


class ConnectionState:
    """
    The state of a session's connections, as calls and plugins see it.

    Threads: any thread; methods that begin with ``on_``, only the loop thread.
    Locks: none; the loop sets the fields, or they are set once.
    """

    def __init__(self, options: ConnectOptions, plugins: Plugins) -> None:
        # Set when it is made, by the transport.
        self.lane: Lane
        # The server that the client is connected to, or was connected to last.
        self.server: ServerInfo = ServerInfo()
        # Whether a connection of this process or of a parent had TLS. A later one must have it too.
        self.had_tls: bool = False
        self.closed: Latch = Latch()
        # Set before `closed`, when the client begins to close.
        self.closing: Latch = Latch()
        # Whether the end is not reported, because the interpreter exits or the client was dropped.
        self.is_silent: bool = False
        self.refusals: Refusals = Refusals(options.request_timeout)
        self._plugins = plugins
        self._probe = Probe(options)
        # Whether the last reported event was a loss, so that losses and reconnects alternate.
        self._down = False

    def probe(self) -> None:
        """Check whether the server still answers; see :class:`Probe`."""
        self._probe.begin(self.lane, self.server.url)

    def emit(self, event: events.StatusEvent | Callable[[], events.StatusEvent | None]) -> None:
        """Pass *event*, or the one that it returns, to the plugins in a thread of their own."""
        if self._plugins.dispatcher is not None:
            self._plugins.dispatcher.emit_later(event)

    # The loop thread. These methods only set values, wake waiters and queue events.

    def on_connected(self) -> None:
        """Allow writes: nats-py has completed the handshake."""
        is_reconnect = self.lane.epoch > 0
        self.lane.open()
        self._probe.watch(self.lane, self.server.url)
        if is_reconnect:
            self._down = False
            url = self.server.url
            _logger.info("reconnected", server=url)
            self.emit(events.ReconnectedEvent(server=url, reconnects=self.lane.epoch - 1))

    def on_disconnected(self) -> None:
        """Report a lost connection once. The lane has already handled the loss."""
        if self.closed.is_set() or self.is_silent or self._down:
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
        if denied is not None:
            operation, subject = denied
            self.refusals.deny(operation, subject, self.lane)
            self.emit(events.PermissionDeniedEvent(subject=subject, operation=operation))

    def _fail_refused_subscription(self) -> None:
        receiver = self.lane.subscriptions.take_refused()
        if receiver is None:
            return
        error = errors.SubscriptionLimitError(receiver.interest.decode("utf-8", "replace"))
        receiver.fail(error)
        self.lane.reader.wake_reader()
        self.emit(events.AsyncErrorEvent(error=error))

    def on_error(self, error: Exception, target: str | None = None) -> None:
        """
        Report an error that belongs to no call. nats-py continues by itself.

        Args:
            error: The error.
            target: The server of the attempt that has failed.
        """
        if isinstance(error, (OSError, EOFError)):
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

    def on_closed(self, cause: Exception | None) -> None:
        """End all waits and report once that the client is closed, or that nats-py gave up."""
        if self.closed.is_set() or self.is_silent:
            return
        self.closing.set()
        self.closed.set()
        reason = translate_closed(cause)
        if cause is not None:
            _logger.warning("closed", reason=str(reason))
        self.lane.close(reason)
        self.emit(events.ClosedEvent(error=None if cause is None else reason))
