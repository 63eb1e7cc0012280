"""
A session: the thread, the lane and nats-py's connection of one process, from connect to close.

A client has one session. A forked child that reconnects makes another one and leaves that of its
parent alone; see :mod:`jetsync._io.connection`, which handles use.

The loop refers to the session. So the session must not refer to the client or its handles: a client
that the application drops is collected, and then closed.
"""

from __future__ import annotations

import _thread
import contextlib
import itertools
import secrets
import sys
import time
from typing import TYPE_CHECKING, Final

from jetsync import errors, events
from jetsync._base.deadline import Deadline
from jetsync._base.failures import raise_failure
from jetsync._base.locks import Latch
from jetsync._base.log import beats, get_logger
from jetsync._base.turn import Turn, refuse_request
from jetsync._io.bridge import Bridge
from jetsync._io.connection_state import ConnectionState
from jetsync._io.handles import OpenHandles
from jetsync._io.nats_seam import NatsConnection
from jetsync._io.outbox import PING
from jetsync._io.replies import ReplyRouter, Waiter
from jetsync._io.shortcut import shortcut
from jetsync._io.translate import shown_cause, translate_closed, translate_connect_error
from jetsync.values.server_info import Statistics

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Sequence

    from jetsync._hooks.manager import Plugins
    from jetsync._io.lane import Lane
    from jetsync._io.shortcut import Asked
    from jetsync.options import ConnectOptions
    from jetsync.values.server_info import PoolServer

# Seconds to send the outstanding data of a client that was dropped without ``close``.
DROP_GRACE: Final = 1.0

# Longest wait at exit for a loop that does not answer, in seconds.
POSTED_WAIT: Final = 1.0

# Seconds to wait for the thread of a client that could not connect.
BRIDGE_STOP_TIMEOUT: Final = 1.0

_logger = get_logger("jetsync.connection")


class Session:
    """
    One thread with one lane.

    Threads: any thread.
    Locks: the close turn, ``_closing_turn``, lets one thread at a time close; the rest is set once,
    or by that thread.
    """

    def __init__(
        self, options: ConnectOptions, plugins: Plugins, parent: Session | None = None
    ) -> None:
        self._options = options
        self._plugins = plugins
        # Random, and unique to this session.
        self.token: str = secrets.token_hex(8)
        self.inbox: str = f"{options.inbox_prefix}.{self.token}"
        self.numbers: itertools.count[int] = itertools.count(1)
        self.lane: Lane
        self.router: ReplyRouter = ReplyRouter(self.inbox.encode())
        # Sends a request and takes its answer if that is easy; None in Python.
        self.ask: Callable[[Asked, bytes, Deadline, int | None], None] | None = None
        self.handles: OpenHandles = OpenHandles()
        self.state: ConnectionState = ConnectionState(options, plugins)
        if parent is not None:
            self.state.had_tls = parent.state.had_tls
        # Whether this process is a forked child of the one that connected.
        self.forked: bool = False
        self.ends_plugins: bool = True
        self._bridge = Bridge(options.loop)
        self._nats: NatsConnection | None = None
        self._closing_turn = Turn("another call that closes the client")
        # How many of the `-ERR` lines that were read have been handled.
        self._errors_handled = 0
        # Set at the end of a close or drain that a signal handler asked for, with its deadline.
        self._ending: tuple[Latch, Deadline] | None = None
        self._is_exiting = False
        # Whether a call has ended the thread, or is ending it. If not, dropping the client does.
        self._is_ending = False
        # Whether `close` has finished. After nats-py has given up, the thread still runs.
        self._is_closed = False

    # Opening and closing.

    def connect(self, deadline: Deadline) -> None:
        """
        Start the thread and make the first connection; raises as ``Connection.connect``.
        """
        with beats(_logger, "connect", client=self._options.name):
            try:
                self._bridge.start(self._close_at_exit, self._after_fork, deadline)
                self._bridge.call(self._connect, deadline=deadline)
            except errors.WaitTimeoutError:
                # A loop that has not started ends by itself, after its imports.
                self._stop(BRIDGE_STOP_TIMEOUT if self._nats is not None else 0.0)
                server, last = self._nats.last_failure if self._nats is not None else (None, None)
                reason = None if last is None else str(translate_connect_error(last))
                cause = None if last is None else shown_cause(last)
                raise errors.ConnectTimeoutError(
                    deadline.total, server=server, reason=reason
                ) from cause
            except BaseException as error:
                if not isinstance(error, Exception):
                    # After Ctrl-C the connection may exist already.
                    self.abandon()
                self._stop(BRIDGE_STOP_TIMEOUT)
                raise

    async def _connect(self) -> None:
        self._nats = nats = NatsConnection(self.state, self._options)
        self.lane = lane = nats.lane
        subscriptions = lane.subscriptions
        sid = subscriptions.new_sid()
        self.ask = shortcut(lane, self.router, sid)
        self.router.line = subscriptions.listen(sid, self.router)
        await nats.start()

    def close(self, timeout: float) -> None:
        """
        Send outstanding data within *timeout* seconds, close the connection and end all waits.

        Can be called repeatedly.
        """
        if self.forked:
            return
        deadline = Deadline.after(timeout)
        # If the turn is not free in time, another thread is still closing.
        with contextlib.suppress(errors.WaitTimeoutError):
            self._closing_turn.run(deadline, self._close, deadline)
        self._plugins.close(max(deadline.remaining(), 0.1))

    def _close(self, deadline: Deadline) -> None:
        """
        Send outstanding data, report the end, and end the connection and the thread.

        Does nothing if another thread has done that.
        """
        if self._is_closed:
            return
        try:
            if self.lane.outbox.can_send:
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
        self.state.on_closed(None)
        self._is_closed = True

    def _run_posted(self, deadline: Deadline) -> None:
        """Wait until the loop thread has made the calls that finalizers have handed to it."""
        made = Latch()
        self.lane.later(0.0, made.set)
        made.wait(min(max(deadline.remaining(), 0.0), POSTED_WAIT))

    def _stop(self, timeout: float) -> None:
        self._bridge.stop(timeout)
        self._is_ending = True

    async def _shut(self) -> None:
        self.state.on_closed(None)
        await self._end(0.0)

    def abandon(self, grace: float = 0.0) -> None:
        """
        End the connection and the thread without waiting for either.

        Args:
            grace: Seconds to send outstanding data.
        """
        self._bridge.spawn(self._end, grace)
        self._is_ending = True

    def end_unused(self) -> bool:
        """
        End as :meth:`abandon` does, because the client was dropped; return whether that was needed.

        The garbage collector calls this in any thread.
        """
        if self._is_ending:
            return False
        self.state.is_silent = True
        self.abandon(DROP_GRACE)
        return True

    async def _end(self, grace: float) -> None:
        """End the connection and the thread, after *grace* seconds to send outstanding data."""
        try:
            nats = self._nats
            if nats is not None:
                if grace:
                    # Not done yet if a signal handler closes the client.
                    nats.lane.begin_close(errors.ConnectionClosedError())
                    await nats.flush(grace)
                await nats.stop()
        finally:
            self._bridge.stop(0.0)
            if self.ends_plugins:
                self._plugins.close(0.0)

    def end_soon(self, end: Callable[[], object], deadline: Deadline) -> None:
        """
        Call *end* in another thread, because this signal handler interrupted a call of jetsync.

        If the interpreter exits, it ends the session instead.
        """
        over = Latch()

        def run() -> None:
            try:
                end()
            except errors.JetSyncError as error:
                _logger.warning("closed", reason=str(error))
            finally:
                over.set()

        if self._is_exiting:
            return
        self._ending = over, deadline
        try:
            # Not `threading.Thread`: the interrupted code may hold a lock that its `start` takes.
            _thread.start_new_thread(run, ())
        except RuntimeError:
            self._ending = None

    def begin_close(self) -> None:
        """
        End all waits and refuse all calls, except for what publishers do to finish.
        """
        if self.forked:
            return
        self.lane.begin_close(translate_closed(None))
        self.state.closing.set()
        self.handles.begin_finish()

    def _close_at_exit(self, timeout: float) -> None:
        """
        Send outstanding data and end the thread, because the interpreter is exiting.

        Unlike :meth:`close`, this does not end waits. The waiting threads are daemons, and the
        interpreter would print their errors.
        """
        self._is_exiting = True
        if self.state.is_silent:
            return  # The loop is closing it.
        if self._ending is not None:
            over, until = self._ending
            over.wait(until.remaining())
        if self._is_closed:
            return
        deadline = Deadline.after(timeout)
        # A quarter of the time is left for closing the connection.
        for report in self.handles.finish(deadline.at_most(timeout * 0.75)):
            report_at_exit(report)
        self._run_posted(deadline)
        try:
            self.flush(deadline)
        except (errors.TransportError, errors.WaitTimeoutError) as error:
            if self.state.refusals.has_published:
                report_at_exit(f"the server did not confirm the last core messages: {error}")
        self.state.is_silent = True
        self.lane.outbox.freeze()
        if not self.state.closed.is_set():
            self.state.emit(events.ClosedEvent())
        try:
            if self._nats is not None:
                self._bridge.call(self._nats.stop, deadline=deadline)
        finally:
            self._bridge.stop(max(deadline.remaining(), 0.1))
            self._plugins.close(max(deadline.remaining(), 0.1))

    def _after_fork(self) -> None:
        """Leave the connection to the parent process; this one is a forked child. Takes no lock."""
        self.forked = True
        if self._nats is not None:
            self.lane.after_fork()
        # The answers to requests in flight belong to the parent.
        self.router.fail(errors.ForkedProcessError())
        self.handles.after_fork()

    def start_threads(self, *threads: threading.Thread) -> None:
        """
        Start *threads* from the loop thread, which Ctrl-C does not interrupt.

        In ``Thread.start``, Ctrl-C may leave a thread in Python's list for ever. Ctrl-C ends this
        wait, but each thread that appears in the list runs.
        """
        timeout = self._options.request_timeout
        self._bridge.call(_start, threads, deadline=Deadline.after(timeout))

    def flush(self, deadline: Deadline, *, while_closing: bool = False) -> float:
        """
        Wait until the server has processed all earlier writes; see ``Connection.flush``.

        Works while the client closes only if *while_closing* is true.
        """
        lane = self.lane
        # Before the write: nothing is sent whose answer cannot be read.
        refuse_request()
        start = time.perf_counter()
        pong = Waiter(b"PING")
        lane.write(PING, deadline, pong=pong, while_closing=while_closing)
        lane.wait(pong, deadline)
        seconds = time.perf_counter() - start
        if pong.reply is not None:
            return seconds
        lane.check()
        if pong.is_lost:
            raise errors.ConnectionLostError(reason=lane.why_lost(pong.epoch) or "while flushing")
        self.probe()
        raise errors.WaitTimeoutError("the server's answer to a PING", deadline.total)

    def handle_errors(self, deadline: Deadline) -> None:
        """Wait until the loop has handled the lines that came before the last PONG."""
        read = self.lane.errors_read
        if read != self._errors_handled:
            self._bridge.call(_nothing, deadline=deadline)
            self._errors_handled = read

    def subscribe_replies(self, deadline: Deadline) -> None:
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

    @property
    def server_pool(self) -> tuple[PoolServer, ...]:
        """The servers that the client may connect to."""
        nats = self._nats
        return () if nats is None else tuple(one.public for one in nats.pool.servers)

    def set_servers(self, servers: str | Sequence[str]) -> None:
        """Use these servers from the next attempt to connect on."""
        if self._nats is not None:
            self._nats.transport.set_servers(servers)

    def hasten(self) -> None:
        """Let the next attempt to connect begin at once, because the program asks for it."""
        if self._nats is not None:
            self._nats.transport.next_server.asked = True

    def probe(self) -> None:
        """Check whether the server still answers; see :class:`jetsync._io.probe.Probe`."""
        self.state.probe()

    def statistics(self) -> Statistics:
        """Return the current counters."""
        lane = self.lane
        return Statistics(
            bytes_in=lane.bytes_in,
            bytes_out=lane.outbox.bytes_out,
            reconnects=max(lane.epoch - 1, 0),
            requests_in_flight=self.router.pending(),
            subscriptions=lane.subscriptions.count(),
            strays=lane.strays,
        )


async def _nothing() -> None:
    """Do nothing. A caller that waits for this waits for what the loop has to do before."""


async def _start(threads: Sequence[threading.Thread]) -> None:
    for thread in threads:
        thread.start()


def report_at_exit(text: str) -> None:
    """Write one line to stderr, because the program is about to end."""
    with contextlib.suppress(Exception):  # There may be no stderr.
        sys.stderr.write(f"jetsync: at exit: {text}\n")
