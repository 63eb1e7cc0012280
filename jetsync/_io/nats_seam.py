"""
The seam to nats-py, which decides when to connect and keeps the connection.

This is the only file of the client that imports nats. It gives nats-py a transport of jetsync
(:mod:`jetsync._io.transport`), and turns nats-py's callbacks and errors into jetsync's.

These are all the names of nats-py in use that are not public:

- ``Client._transport`` may be set before ``connect``. nats-py keeps a truthy transport and
  calls its ``connect`` again for every new connection (:meth:`NatsConnection.start`).
- ``Client._attempt_reconnect`` is the task that makes a new connection (:class:`_Client`).

Everything here runs in the loop thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import re
import ssl
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from jetsync import errors
from jetsync._base.deadline import NO_WAIT
from jetsync._base.log import get_logger
from jetsync._io.deferred import deferred
from jetsync._io.outbox import PING
from jetsync._io.replies import Waiter
from jetsync._io.translate import no_server_error, shown_cause, translate_connect_error
from jetsync._io.transport import LaneTransport
from jetsync._io.websocket import WebSocketLaneTransport
from jetsync.options import seed_path
from jetsync.values.server_urls import is_websocket

with deferred("aiohttp", "multidict", "nats.js"):
    import nats.aio.client
    import nats.aio.transport
    import nats.errors

if TYPE_CHECKING:
    from collections.abc import Callable

    from jetsync._io.connection_state import ConnectionState
    from jetsync.options import ConnectOptions

# Seconds between two checks whether a PONG has arrived.
PONG_CHECK: Final = 0.005

# Seconds between the pings of nats-py, which cannot be turned off: a week.
NEVER: Final = 7 * 24 * 3600.0

# The oldest and the newest version of nats-py that the tests run with.
OLDEST: Final = (2, 10)
NEWEST: Final = (2, 16)
TESTED: Final = "{}.{} to {}.{}".format(*OLDEST, *NEWEST)

# The arguments of nats-py's connect that the seam uses.
CONNECT_ARGUMENTS: Final = frozenset(
    {
        *("servers", "name", "tls", "tls_hostname", "tls_handshake_first", "inbox_prefix"),
        *("connect_timeout", "reconnect_time_wait", "max_reconnect_attempts"),
        *("ping_interval", "no_echo"),
        *("error_cb", "disconnected_cb", "reconnected_cb", "closed_cb"),
    }
)

# The only server of nats-py. The transport connects to those of the pool.
PLACEHOLDER: Final = "nats://pool.invalid:4222"

# Options that are paths of files. Their converter has made them str.
_FILES: Final = ("credentials", "tls_ca", "tls_cert", "tls_key")

_logger = get_logger("jetsync.transport")


def minor_version(version: str) -> tuple[int, int] | None:
    """Return the first two numbers of a version of nats-py, None if it is not known."""
    # Without its metadata, as in some frozen applications, nats-py says 0.0.0.
    found = re.match(r"([1-9]\d*)\.(\d+)", version)
    return None if found is None else (int(found[1]), int(found[2]))


def check_nats_py(version: str, client: Any, transport: Any) -> None:
    """
    Raise ImportError if this nats-py is too old, or lacks what the seam uses.

    A newer version than the tested ones is accepted if it lacks nothing. An upper bound in the
    metadata would keep applications from every new version, and this check only from those that
    cannot work.
    """
    found = minor_version(version)
    if found is not None and found < OLDEST:
        problems = ["is too old"]
    else:
        problems = _changes(client, transport)
    if problems:
        bounds = ">={}.{},<{}.{}".format(*OLDEST, NEWEST[0], NEWEST[1] + 1)
        raise ImportError(
            f"jetsync was tested with nats-py {TESTED}. nats-py {version}"
            f" {', '.join(problems)}. Install another version:"
            f" python -m pip install 'nats-py{bounds}'"
        )


def _changes(client: Any, transport: Any) -> list[str]:
    """Return how nats-py's client and transport differ from what the seam needs."""
    names = ("_attempt_reconnect", "close", "connect", "last_error")
    changes = [f"has no Client.{name}" for name in names if not hasattr(client, name)]
    if changes:
        return changes
    code = getattr(client.__init__, "__code__", None)
    if code is None or "_transport" not in code.co_names:
        changes.append("has no Client._transport")
    unknown = CONNECT_ARGUMENTS - inspect.signature(client.connect).parameters.keys()
    changes += [f"has no argument {name} of Client.connect" for name in sorted(unknown)]
    # Of ABCMeta. nats-py calls these methods of its transport.
    new: frozenset[str] = getattr(transport, "__abstractmethods__", frozenset())
    return changes + [
        f"needs the method Transport.{name}" for name in sorted(new - set(dir(LaneTransport)))
    ]


check_nats_py(nats.aio.client.__version__, nats.aio.client.Client, nats.aio.transport.Transport)


class _Client(nats.aio.client.Client):
    """
    nats-py's client. Its attempts to reconnect continue after every error.

    Threads: the loop thread.
    Locks: none.
    """

    def __init__(
        self,
        options: ConnectOptions,
        on_unexpected: Callable[[Exception], None],
        on_last_loss: Callable[[], None],
    ) -> None:
        super().__init__()
        self._most = options.max_reconnects
        self._wait = options.reconnect_wait
        self._on_unexpected = on_unexpected
        self._on_last_loss = on_last_loss

    async def _attempt_reconnect(self) -> None:
        if self._most == 0:
            # nats-py before 2.15 calls no callbacks if its own option allow_reconnect is False.
            self._on_last_loss()
            return
        failures = 0
        while True:
            try:
                await super()._attempt_reconnect()
            except asyncio.InvalidStateError:
                # nats-py cancelled this task and started another one, whose future it then set.
                return
            except Exception as error:  # noqa: BLE001 - nats-py expects some errors; others would end its task for good.
                failures += 1
                self._on_unexpected(error)
                if 0 < self._most < failures:
                    await self.close()
                    return
                await asyncio.sleep(self._wait)
            else:
                return


class NatsConnection:
    """
    A nats-py client on the lane's transport, with callbacks and errors translated.

    Threads: the loop thread.
    Locks: none.
    """

    def __init__(self, state: ConnectionState, options: ConnectOptions) -> None:
        loop = asyncio.get_running_loop()
        self._loop = loop
        self._state = state
        # $NATS_URL is read once, because it may change, and its login is needed for reconnects.
        # Each attempt reads the files, also after the program has changed its folder.
        options = options.evolve(servers=options.server_list(), **absolute_paths(options))
        self._options = options
        self._client = _Client(options, self._on_unexpected, self._on_last_loss)
        websocket = is_websocket(options.server_list())
        kind = WebSocketLaneTransport if websocket else LaneTransport
        self.transport: LaneTransport = kind(loop, state, options, self._on_exhausted)
        self.pool = self.transport.next_server.pool
        self.lane = self.transport.lane
        # Failed attempts and refused logins that the first connect still allows. None: any number.
        self._attempts_left: int | None = None
        self._refusals_left = 0
        # Errors of the first connect, with the server of each.
        self._failures: list[tuple[str | None, Exception]] = []
        # The logins that servers have refused since the last connection.
        self._refused_logins: dict[str | None, bytes] = {}
        self._given_up: Exception | None = None
        self._close_task: asyncio.Task[None] | None = None
        self._last_error: Exception | None = None

    async def start(self) -> None:
        """
        Connect for the first time.

        Tries each server once. With the option ``retry_on_failed_connect``, tries repeatedly until
        all have refused the login. The caller limits the time. Raises ConnectError or
        AuthenticationError.
        """
        arguments = nats_arguments(self._options)
        servers = self._options.server_list()
        self._attempts_left = None if self._options.retry_on_failed_connect else len(servers)
        self._refusals_left = len(servers)
        self._first = True
        # nats-py calls the methods of its Transport, and does not check the class.
        self._client._transport = cast("Any", self.transport)
        try:
            await self._client.connect(
                error_cb=self._on_error,
                disconnected_cb=self._on_disconnected,
                reconnected_cb=self._on_reconnected,
                closed_cb=self._on_closed,
                **arguments,
            )
        except _FirstConnectFailedError as failed:
            await self.stop()
            if isinstance(failed.cause, errors.ConfigurationError):
                raise failed.cause from failed.cause.__cause__
            raise no_server_error(self._failures) from shown_cause(failed.cause)
        except nats.errors.Error as error:
            await self.stop()
            raise translate_connect_error(error) from shown_cause(error)
        except BaseException:
            # The time is over, or the caller was interrupted.
            self.transport.finish()
            raise
        self._first = False
        self._state.on_connected()

    async def stop(self) -> None:
        """Close the connection. The system still sends what the socket has accepted."""
        try:
            with contextlib.suppress(nats.errors.Error, OSError, asyncio.TimeoutError):
                await self._client.close()
        finally:
            # Also if this is cancelled because the time for closing is over.
            self.transport.finish()
        await self.transport.wait_closed()

    async def flush(self, timeout: float) -> None:
        """Wait until the server has processed what was written, up to *timeout* seconds."""
        ends = self._loop.time() + timeout
        pong = Waiter(b"PING")
        with contextlib.suppress(errors.TransportError):
            self.lane.write(PING, NO_WAIT, pong=pong, while_closing=True)
            while not pong.ready and self._loop.time() < ends:  # noqa: ASYNC110
                # Its signal wakes threads, not tasks.
                await asyncio.sleep(PONG_CHECK)

    @property
    def last_failure(self) -> tuple[str | None, Exception | None]:
        """The server and the error of the last failed attempt of the first connect."""
        if self._failures:
            return self._failures[-1]
        return self.transport.attempt.target, self.transport.attempt.silence

    # nats-py's callbacks.

    async def _on_error(self, error: Exception) -> None:
        self._last_error = error
        if not self._first:
            # The end of a connection has an event of its own.
            if not isinstance(error, nats.errors.UnexpectedEOF):
                self._state.on_error(error, self.transport.attempt.target)
                self._count_refusal(error)
            return
        if isinstance(error.__cause__, errors.ConfigurationError):
            # A missing package stays missing in the next attempt.
            raise _FirstConnectFailedError(error.__cause__)
        # A server may fail many times. The last reason of each suffices.
        target = self.transport.attempt.target
        self._failures = [each for each in self._failures if each[0] != target]
        self._failures.append((target, error))
        if isinstance(translate_connect_error(error), errors.AuthenticationError):
            self._refusals_left -= 1
        if self._attempts_left is not None:
            self._attempts_left -= 1
        if self._attempts_left == 0 or self._refusals_left == 0:
            # nats-py would continue for minutes. An error in its error callback ends its attempts.
            raise _FirstConnectFailedError(error)

    def _count_refusal(self, error: Exception) -> None:
        """Give up if the same server has refused the same login twice in a row."""
        attempt = self.transport.attempt
        if not attempt.refused or attempt.login is None:
            return
        repeated = self._refused_logins.get(attempt.target) == attempt.login.identity
        self._refused_logins[attempt.target] = attempt.login.identity
        if repeated and not self._options.retry_refused_logins and self._close_task is None:
            self._give_up(error)

    def _on_last_loss(self) -> None:
        """Give up, because the option ``max_reconnects`` is 0."""
        lost = errors.ConnectError("the connection was lost, and max_reconnects is 0")
        self._give_up(self.transport.attempt.server_error or lost)

    def _on_exhausted(self) -> None:
        """Give up, because each server has had ``max_reconnects`` attempts."""
        reason = f"gave up reconnecting after max_reconnects={self._options.max_reconnects}"
        if self._last_error is not None:
            last = translate_connect_error(self._last_error, server=self.transport.attempt.target)
            reason += f" attempts; the last failed: {last}"
        self._give_up(errors.ConnectError(reason))

    def _give_up(self, reason: Exception) -> None:
        self._given_up = reason
        # A task of its own, because nats-py's close cancels the tasks that lead here.
        self._close_task = self._loop.create_task(self._client.close())

    def _on_unexpected(self, error: Exception) -> None:
        _logger.error("reconnect_failed", exc_info=error)
        self._state.on_error(errors.ConnectError(f"unexpected {type(error).__name__}"))

    async def _on_disconnected(self) -> None:
        if not self._first:
            self._state.on_disconnected()

    async def _on_reconnected(self) -> None:
        self._refused_logins.clear()
        self._state.on_connected()

    async def _on_closed(self) -> None:
        if self._first:
            return
        attempt = self.transport.attempt
        error = self._given_up or attempt.server_error or self._client.last_error
        self._state.on_closed(error)


class _FirstConnectFailedError(Exception):
    """Ends nats-py's attempts with a failure of the first connect."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause = cause


def absolute_paths(options: ConnectOptions) -> dict[str, Any]:
    """Return the options that are relative paths of files, as absolute ones."""
    given = {name: getattr(options, name) for name in _FILES}
    if options.nkey_seed is not None:
        given["nkey_seed"] = seed_path(options.nkey_seed)
    return {
        name: str(Path(path).absolute())
        for name, path in given.items()
        if isinstance(path, (str, Path))
    }


def nats_arguments(options: ConnectOptions) -> dict[str, Any]:
    """
    Return the arguments of nats-py's connect.

    The login is not among them, because the transport adds it to each connection.
    """
    return {
        "servers": [PLACEHOLDER],
        "name": options.name,
        # It trusts no certificate, and the transport ignores it. Without one, nats-py would read
        # the authorities of the system for each handshake.
        "tls": ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),
        "tls_hostname": options.tls_hostname,
        "tls_handshake_first": options.tls_first,
        "inbox_prefix": options.inbox_prefix,
        # The transport limits each attempt by itself, and reports why one has failed.
        "connect_timeout": options.connect_timeout + 1.0,
        # The pool waits and counts: see `NextServer`.
        "reconnect_time_wait": 0.0,
        "max_reconnect_attempts": -1,
        # jetsync sends its own pings: see `Probe`.
        "ping_interval": NEVER,
        "no_echo": not options.echo,
    }
