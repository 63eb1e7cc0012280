"""
The seam to nats-py, which decides where to connect and keeps the connection.

This is the only file that imports nats. It gives nats-py a transport of ours, so that every byte
passes the lane, and turns nats-py's callbacks and errors into jetsync's.

The transport makes the whole handshake, and nats-py only asks for its steps: it dials, checks the
server's first line, starts TLS, adds the login to CONNECT and waits for the PONG. The lane gets the
socket after that. nats-py therefore sees no secret, and no line of a server that was not checked.

What the seam takes from nats-py that is not public, all of it:

- ``Client._transport`` may be set before ``connect``; nats-py keeps a transport that is true and
  calls its ``connect`` again for every new connection (:func:`NatsConnection.start`).
- ``Client._attempt_reconnect`` is the task that makes a new connection (:class:`_Client`).

Everything here runs in the loop thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import ssl
import threading
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar
from urllib.parse import urlsplit

import nats.aio.client
import nats.errors
from nats.aio.transport import Transport

from jetsync._base import log as _log
from jetsync._base.deadline import Deadline
from jetsync._io.lane import Lane
from jetsync._io.login import make_login
from jetsync._io.mailbox import Waiter
from jetsync._io.outbox import PING
from jetsync._io.translate import (
    ends_connection,
    is_refused_login,
    no_server_error,
    tls_reason,
    translate_connect_error,
)
from jetsync._io.websocket import CLOSING_WAIT, WebSocket
from jetsync.errors import (
    AuthenticationError,
    ConfigurationError,
    ConnectError,
    ProtocolError,
    TransportError,
    redact_url,
)
from jetsync.values.server_info import clean_info

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping
    from urllib.parse import ParseResult

    from jetsync._io.login import Login
    from jetsync.options import ConnectOptions

SOCKET_BUFFER: Final = 1 << 20
"""
Receive buffer asked for, 1 MiB: room for a burst of frames while their reader is busy with the last
one.
"""

HANDSHAKE_READ: Final = 1 << 14
"""Bytes asked for in one read of the handshake: 16 KiB."""

MAX_HANDSHAKE_LINE: Final = 1 << 20
"""Bytes of one line of the handshake at most: 1 MiB. INFO names every server of a cluster."""

FLUSH_LOOK: Final = 0.005
"""Seconds between two looks at whether a PONG has come."""

T = TypeVar("T")

_logger = _log.get_logger("jetsync.transport")


class ConnectionListener(Protocol):
    """
    Learns what happens to the connection; called in the loop thread, must not block.
    """

    def on_connected(self) -> None: ...
    def on_disconnected(self) -> None: ...
    def on_closed(self, cause: Exception | None) -> None: ...
    def on_lame_duck(self) -> None: ...
    def on_discovered(self) -> None: ...
    def on_info(self, line: bytes) -> None: ...
    def on_server_error(self, text: str) -> None: ...
    def on_error(self, error: Exception) -> None: ...


class LaneTransport(Transport):
    """
    nats-py's transport over the lane: TCP, and TLS after or before the server's first line.

    It lives as long as the client and is connected again and again.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        listener: ConnectionListener,
        options: ConnectOptions,
    ) -> None:
        self.lane = Lane(loop, self._take)
        self._loop = loop
        self._listener = listener
        self._options = options
        servers = options.server_list()
        self._budget = options.connect_timeout / len(servers)
        """Seconds of one attempt, so that a silent server leaves the others their share."""

        self._attempt_ends = 0.0
        self._inbound = bytearray()
        self._arrival: asyncio.Future[None] | None = None
        self._eof = True
        self._sock: socket.socket | None = None
        self._watch: tuple[Callable[[int], object], int, asyncio.Future[None]] | None = None
        """How to stop watching the socket of a handshake, while a step waits for it."""

        self._handshaking = False
        self._outgoing = bytearray()
        """What nats-py has written during the handshake."""

        self._received = bytearray()
        """What the server has sent during the handshake and was not looked at."""

        self._info: dict[str, Any] | None = None
        """What the server has said about itself in this handshake."""

        self._greeting: dict[str, Any] = {}
        """What nats-py was given of that."""

        self._listed: list[str] = []
        """The servers that the server has listed in this handshake, as ``connect_urls``."""

        self.known: set[str] = set()
        """Addresses of the cluster's servers that are no news."""

        self._hint = ""
        """What may help if the server does not say what is due."""

        self.silence: ConnectError | None = None
        """What is wrong if the time is over now: set while the server's first line is due."""

        self._secure = False
        self._over = False
        """Whether there is to be no further connection."""

        self.ssl_context: ssl.SSLContext | None = None
        """The context of the options, None if they do not ask for TLS."""

        self._had_tls = False
        """Whether an earlier connection had TLS: a later one must have it too."""

        self.target: str | None = None
        """The server that is connected to, or was tried last, without a login."""

        self.login: Login | None = None
        """The login of the last attempt."""

        self._making: asyncio.Future[Login] | None = None
        """The login that was begun last; it may be that of an earlier attempt, and unfinished."""

        self.refused = False
        """Whether the server refused the login of the last attempt."""

        self.server_error: Exception | None = None
        """The last error that the server reported on this connection."""

    def __bool__(self) -> bool:
        # nats-py makes a transport of its own for each connection unless it finds one that is true.
        return True

    # The handshake, step by step as nats-py calls it.

    async def connect(self, uri: ParseResult, buffer_size: int, connect_timeout: float) -> None:
        """Connect to the first address of the host that answers."""
        self._begin_attempt(uri)
        with _retryable():
            await self._in_time(self._dial(uri))

    async def connect_tls(
        self,
        uri: str | ParseResult,
        ssl_context: ssl.SSLContext,
        buffer_size: int,
        connect_timeout: float,
    ) -> None:
        """Put TLS on the connected socket."""
        hostname = uri if isinstance(uri, str) else uri.hostname
        with _retryable():
            sock = self._sock
            if sock is None:
                raise ConnectError("the connection was closed before its TLS handshake")
            self._refuse_plaintext()
            secure = ssl_context.wrap_socket(
                sock, server_hostname=hostname, do_handshake_on_connect=False
            )
            self._sock = secure
            await self._in_time(self._start_tls(secure))
            self._secure = True

    async def readline(self) -> bytes:
        """
        Return the server's INFO, then its PONG: all that nats-py reads by lines.

        Raises:
            ConnectError: The server refused, or said something that has no place in a handshake.
        """
        with _retryable():
            if self._info is None:
                return await self._read_info()
            await self._read_pong()
            return b"PONG\r\n"

    async def drain(self) -> None:
        """Send what nats-py has written during the handshake; later the lane bounds what waits."""
        if not self._handshaking or not self._outgoing:
            return
        with _retryable():
            block = bytes(self._outgoing)
            self._outgoing.clear()
            if block.startswith(b"CONNECT "):
                block = await self._in_time(
                    self._with_login(block), "the callables and files of the options gave no login"
                )
            await self._in_time(self._send(block))

    def write(self, payload: bytes) -> None:
        if self._handshaking:
            self._outgoing += payload
        else:
            self.lane.control(payload)

    def writelines(self, payload: list[bytes]) -> None:
        self.write(b"".join(payload))

    # After the handshake.

    async def read(self, buffer_size: int) -> bytes:
        """Return the next bytes that are nats-py's; empty at the end of the connection."""
        while not self._inbound and not self._eof:
            self._arrival = self._loop.create_future()
            try:
                await self._arrival
            finally:
                self._arrival = None
        data = bytes(self._inbound)
        self._inbound.clear()
        return data

    def at_eof(self) -> bool:
        return self._eof and not self._inbound

    def close(self) -> None:
        self._eof = True
        self._handshaking = False
        self._unwatch()
        self.lane.detach()
        sock, self._sock = self._sock, None
        if sock is not None:
            sock.close()
        self._wake()

    async def wait_closed(self) -> None:
        """Return at once: closing a socket takes no time."""

    # Ours.

    def finish(self) -> None:
        """Close permanently. nats-py's own close does not stop an attempt that is in progress."""
        self._over = True
        self.close()

    def check_over(self) -> None:
        """Raise CancelledError, which ends nats-py's attempts, if the client is closed."""
        if self._over:
            raise asyncio.CancelledError

    def resolve(self, uri: ParseResult) -> ParseResult:
        """Return the address that *uri*, which nats-py may have made itself, stands for."""
        return uri

    def _begin_attempt(self, uri: ParseResult) -> None:
        # nats-py goes on to the next server after a failed handshake without closing this one.
        self.close()
        self.check_over()
        self.target = redact_url(self.resolve(uri).geturl())
        self._server = uri.geturl()
        self._attempt_ends = self._loop.time() + self._budget
        self._handshaking = True
        self._outgoing.clear()
        self._received.clear()
        self._inbound.clear()
        self._info = None
        self._listed = []
        self._hint, self.silence = "", None
        self._secure = self.refused = False
        self.login = self.server_error = None

    def _late(self, what: str = "the server did not answer") -> ConnectError:
        return ConnectError(f"{what} within {self._budget:.3g} s{self._hint}")

    async def _in_time(self, step: Awaitable[T], what: str = "the server did not answer") -> T:
        """Await one step of an attempt, within what is left of its time."""
        try:
            result = await asyncio.wait_for(step, max(self._attempt_ends - self._loop.time(), 0.0))
            if self._over:
                # Before Python 3.12, the cancellation may have been swallowed there.
                self.close()
                self.check_over()
            return result
        except asyncio.TimeoutError:
            raise self._late(what) from None

    async def _dial(self, uri: ParseResult) -> None:
        if uri.hostname is None:
            raise OSError("no host in the server's address")
        # Not the executor of the loop: the interpreter would not end before a hanging lookup does.
        addresses = await _in_thread(
            socket.getaddrinfo, uri.hostname, uri.port or 4222, 0, socket.SOCK_STREAM
        )
        last: OSError | None = None
        for index, (family, kind, protocol, _, address) in enumerate(addresses):
            # A silent address leaves the others their share.
            share = (self._attempt_ends - self._loop.time()) / (len(addresses) - index)
            try:
                self._sock = await asyncio.wait_for(
                    self._dial_one(family, kind, protocol, address), share
                )
            except asyncio.TimeoutError:
                last = self._late()
            except OSError as error:
                last = error
            else:
                if self._over:
                    # Closed meanwhile. Before Python 3.12, a cancellation may be swallowed.
                    self.close()
                    self.check_over()
                return
        raise last or OSError(f"no address for {uri.hostname}")

    async def _dial_one(self, family: int, kind: int, protocol: int, address: Any) -> socket.socket:
        """Return a socket that is connected to *address*."""
        sock = socket.socket(family, kind, protocol)
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SOCKET_BUFFER)
            await self._loop.sock_connect(sock, address)
        except BaseException:
            sock.close()
            raise
        return sock

    async def _start_tls(self, secure: ssl.SSLSocket) -> None:
        while True:
            try:
                secure.do_handshake()
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as want:
                await self._wait_socket(want)
            else:
                return

    async def _read_info(self) -> bytes:
        """Return the server's first line as nats-py gets it, checked."""
        if self.ssl_context is not None and not self._is_secure():
            self._hint = "; if it starts TLS at once (handshake_first), use tls_first"
        self.silence = ConnectError(f"the server sends no first line{self._hint}")
        line = await self._in_time(self._line())
        self._hint, self.silence = "", None
        if line.startswith(b"-ERR"):
            raise self._refusal(line)
        if not line.startswith(b"INFO "):
            raise ConnectError(f"not a NATS server: the first line is {line[:40]!r}")
        info, raw = clean_info(line)
        required = info["tls_required"] or self._had_tls or self.ssl_context is not None
        if required and not self._is_secure():
            if not info["tls_required"] and not raw.get("tls_available"):
                raise ConnectError("the server offers no TLS, which this client asks for")
            self._refuse_plaintext()
            # nats-py starts TLS only where the server insists on it.
            info["tls_required"] = True
        self._info, self._info_line = raw, line
        # An attacker may have written this line, and nats-py would send the login to the servers
        # that it lists. It gets them after the server has accepted the login.
        self._listed = info.pop("connect_urls", [])
        self._greeting = info
        return b"INFO %b\r\n" % json.dumps(info).encode()

    def _refuse_plaintext(self) -> None:
        """
        Raise if the server has sent anything between its first line and the TLS handshake.

        It has no reason to. An attacker in between could put commands there that would count as the
        server's (STARTTLS injection).
        """
        if self._received:
            raise ConnectError("plaintext followed INFO although TLS is required")

    async def _read_pong(self) -> None:
        """Wait until the server has accepted the login, then hand the connection to the lane."""
        while (line := await self._in_time(self._line())) != b"PONG\r\n":
            if line.startswith(b"-ERR"):
                raise self._refusal(line)
            if line.startswith(b"INFO "):
                info, _ = clean_info(line)
                self._listed = info.get("connect_urls", self._listed)
                self._info_line = line
            elif line == b"PING\r\n":
                await self._in_time(self._send(b"PONG\r\n"))
            elif not line.startswith(b"+OK"):
                raise ConnectError(f"the server sent {line[:40]!r} before it accepted the login")
        self._had_tls = self._had_tls or self._secure
        self._handshaking = False
        self._eof = False
        self._listener.on_info(self._info_line)
        if self._listed:
            self._tell({**self._greeting, "connect_urls": self._listed, "ldm": False})
            self.known.update(self._listed)
        self._hand_over()

    def _hand_over(self) -> None:
        """Let the lane read and write from now on."""
        sock = self._sock
        assert sock is not None
        # What is left of a decrypted record waits inside the object, where no poll sees it.
        while isinstance(sock, ssl.SSLSocket) and sock.pending():
            self._received += sock.recv(HANDSHAKE_READ)
        self.lane.attach(sock, bytes(self._received), self._max_payload())
        self._received.clear()

    def _max_payload(self) -> int:
        assert self._info is not None
        limit: int = self._info.get("max_payload") or 0
        return limit

    def _refusal(self, line: bytes) -> ConnectError:
        """Return the error for an ``-ERR`` line of the handshake."""
        text = line.decode("utf-8", "replace").strip()
        # Only logged: it is not about the subscriptions, which this server does not know yet.
        _logger.warning(_log.SERVER_ERROR, text=text, server=self.target)
        reason = text.removeprefix("-ERR").strip().strip("'")
        self.refused = is_refused_login(reason)
        return AuthenticationError(reason) if self.refused else ConnectError(reason)

    async def _with_login(self, block: bytes) -> bytes:
        """Return nats-py's CONNECT line with the login for this server."""
        line, newline, rest = block.partition(b"\r\n")
        assert self._info is not None
        # In a thread of its own: it may read files, and call functions of the application.
        if self._making is not None:
            # Of an earlier attempt. One that never returns must not cost a thread per attempt.
            await asyncio.wait({self._making})
        self._making = _in_thread(
            make_login, self._options, self._server, self._info.get("nonce") or None
        )
        self.login = login = await asyncio.shield(self._making)
        fields = {**json.loads(line.removeprefix(b"CONNECT ")), **login.fields}
        return b"CONNECT " + json.dumps(fields).encode() + newline + rest

    async def _line(self) -> bytes:
        """Return the next line of the handshake."""
        received, seen = self._received, 0
        while (end := received.find(b"\n", seen)) < 0:
            seen = len(received)
            if seen > MAX_HANDSHAKE_LINE:
                raise ConnectError("the server sent a line longer than 1 MiB")
            data = await self._receive()
            if not data:
                raise ConnectError(
                    f"the server ended the connection during the handshake{self._hint}"
                )
            received += data
        line = bytes(received[: end + 1])
        del received[: end + 1]
        return line

    async def _receive(self) -> bytes:
        """Return what the server sends next in the handshake; empty at the end."""
        while True:
            sock = self._connected()
            try:
                return sock.recv(HANDSHAKE_READ)
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError) as want:
                await self._wait_socket(want)

    async def _send(self, block: bytes) -> None:
        """Send bytes of the handshake."""
        while block:
            sock = self._connected()
            try:
                block = block[sock.send(block) :]
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError) as want:
                await self._wait_socket(want, writing=True)
            except OSError:
                # The server has ended the connection. What it said before that says why.
                return

    def _connected(self) -> socket.socket:
        if self._sock is None:
            self.check_over()
            raise ConnectError("the connection was closed during its handshake")
        return self._sock

    async def _wait_socket(self, want: Exception, *, writing: bool = False) -> None:
        """Wait until the socket is ready for what *want* says that it lacks."""
        sock = self._connected()
        writing = isinstance(want, ssl.SSLWantWriteError) or (
            writing and not isinstance(want, ssl.SSLWantReadError)
        )
        add, remove = (
            (self._loop.add_writer, self._loop.remove_writer)
            if writing
            else (self._loop.add_reader, self._loop.remove_reader)
        )
        fd = sock.fileno()
        ready: asyncio.Future[None] = self._loop.create_future()
        add(fd, _settle, ready)
        self._watch = watch = (remove, fd, ready)
        try:
            await ready
        finally:
            if self._watch is watch:
                self._unwatch()

    def _unwatch(self) -> None:
        """Stop watching the socket of a handshake: a loop must not watch what is closed."""
        if self._watch is not None:
            (remove, fd, ready), self._watch = self._watch, None
            remove(fd)
            _settle(ready)

    def _is_secure(self) -> bool:
        return self._secure

    def _take(self, line: bytes) -> None:
        """Handle a control line and pass it to nats-py. Empty bytes mean the end of the stream."""
        if not line:
            self._eof = True
            if self.lane.fault is not None:
                self.server_error = self.lane.fault
                self._listener.on_error(self.lane.fault)
        elif line.startswith(b"INFO "):
            try:
                info, _ = clean_info(line)
            except ProtocolError as error:
                self._listener.on_error(error)
                return
            self._listener.on_info(line)
            self._tell(info)
        elif line.startswith(b"-ERR"):
            # Not for nats-py, which would close the client. If the connection cannot continue, the
            # server ends it, and that is noticed.
            text = line.decode("utf-8", "replace").strip()
            reason = text.removeprefix("-ERR").strip().strip("'")
            if ends_connection(reason):
                self.server_error = ConnectError(reason)
            self._listener.on_server_error(text)
        elif line in {b"PING\r\n", b"PONG\r\n"}:
            # One answer will do. A flood must not fill the memory faster than nats-py reads.
            if line not in self._inbound:
                self._inbound += line
        elif not line.startswith(b"+OK"):
            self.lane.fault = ProtocolError(f"the server sent an unknown command: {line[:40]!r}")
            self.lane.abort()
        self._wake()

    def _tell(self, info: dict[str, Any]) -> None:
        """Give nats-py an INFO line of a connection that it has."""
        self._inbound += b"INFO %b\r\n" % json.dumps(info).encode()

    def _wake(self) -> None:
        if self._arrival is not None:
            _settle(self._arrival)


class WebSocketLaneTransport(LaneTransport):
    """
    A WebSocket behind the same splitter.

    The loop does all reads and writes. This is slower than a plain socket but behaves the same.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        listener: ConnectionListener,
        options: ConnectOptions,
    ) -> None:
        super().__init__(loop, listener, options)
        self._scheme = urlsplit(options.server_list()[0]).scheme
        self._web: WebSocket | None = None
        self._reader: asyncio.Task[None] | None = None
        self._attempt: asyncio.Task[None] | None = None
        self._closing: set[asyncio.Task[None]] = set()

    async def connect(self, uri: ParseResult, buffer_size: int, connect_timeout: float) -> None:
        await self._open(uri)

    async def connect_tls(
        self,
        uri: str | ParseResult,
        ssl_context: ssl.SSLContext,
        buffer_size: int,
        connect_timeout: float,
    ) -> None:
        # nats-py asks for an upgrade after INFO; a wss:// connection has TLS from its first byte.
        if not isinstance(uri, str):
            await self._open(uri)

    def resolve(self, uri: ParseResult) -> ParseResult:
        # nats-py takes the servers that a cluster announces for plain ones.
        if uri.scheme in {"ws", "wss"}:
            return uri
        return uri._replace(scheme=self._scheme)

    async def _open(self, uri: ParseResult) -> None:
        self._begin_attempt(uri)
        with _retryable():
            address = self.resolve(uri)
            self._scheme = address.scheme
            context = self.ssl_context if address.scheme == "wss" else None
            self._web = web = WebSocket()
            hostname = self._options.tls_hostname
            self._attempt = attempt = self._loop.create_task(
                web.open(address.geturl(), context, hostname)
            )
            # Not cancelled at the end of its time: aiohttp would leave the socket of a TLS
            # handshake open. close() waits for it.
            await self._in_time(asyncio.shield(attempt))
            if self._web is not web:
                raise ConnectError("the connection was closed during its handshake")

    async def _receive(self) -> bytes:
        if self._web is None:
            self.check_over()
            raise ConnectError("the connection was closed during its handshake")
        return await self._web.receive()

    async def _send(self, block: bytes) -> None:
        if self._web is None:
            raise OSError("not connected")
        # If the server has ended the connection, what it said before that says why.
        with contextlib.suppress(OSError):
            await self._web.send(block)

    def _hand_over(self) -> None:
        web = self._web
        assert web is not None
        self.lane.attach_stream(web.send, self._max_payload())
        if self._received:
            self.lane.feed(bytes(self._received))
            self._received.clear()
        self._reader = self._loop.create_task(self._read_web(web))

    async def _read_web(self, web: WebSocket) -> None:
        data = b"-"
        while data:
            try:
                data = await web.receive()
            except (OSError, RuntimeError):
                data = b""
            if web is not self._web:
                return
            self.lane.feed(data)

    def _is_secure(self) -> bool:
        # The scheme decides, before the first byte.
        return True

    def close(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.cancel()
        web, self._web = self._web, None
        attempt, self._attempt = self._attempt, None
        if web is not None and attempt is not None:
            closing = self._loop.create_task(_close_web(web, attempt))
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)
        super().close()

    async def wait_closed(self) -> None:
        """
        Wait for the closing handshakes, which the loop must not end before.

        Not for long: a server that hangs does not take part in them.
        """
        if self._closing:
            await asyncio.wait(self._closing, timeout=CLOSING_WAIT)


async def _close_web(web: WebSocket, attempt: asyncio.Task[None]) -> None:
    """Close a WebSocket once the *attempt* to connect it has ended, well or not."""
    try:
        await asyncio.wait({attempt}, timeout=CLOSING_WAIT)
        if not attempt.done():
            attempt.cancel()
            await asyncio.wait({attempt})
        if not attempt.cancelled():
            attempt.exception()
    finally:
        await web.close()


class _Client(nats.aio.client.Client):
    """nats-py's client, whose reconnect survives every error."""

    def __init__(self, on_unexpected: Callable[[Exception], None]) -> None:
        super().__init__()
        self._on_unexpected = on_unexpected

    async def _attempt_reconnect(self) -> None:
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
                if 0 < self.options["max_reconnect_attempts"] < failures:
                    await self.close()
                    return
                await asyncio.sleep(self.options["reconnect_time_wait"])
            else:
                return


class NatsConnection:
    """One nats-py client on a transport of ours, with callbacks and errors translated."""

    def __init__(self, listener: ConnectionListener, options: ConnectOptions) -> None:
        loop = asyncio.get_running_loop()
        self._loop = loop
        self._listener = listener
        # $NATS_URL is read once: it may change, and a login in it is needed again later.
        options = options.evolve(servers=options.server_list())
        self._options = options
        self._client = _Client(self._on_unexpected)
        websocket = urlsplit(options.server_list()[0]).scheme in {"ws", "wss"}
        kind = WebSocketLaneTransport if websocket else LaneTransport
        self.transport: LaneTransport = kind(loop, listener, options)
        self.lane = self.transport.lane
        self._attempts_left: int | None = None
        """Failed attempts that are left for the first connect; None means any number."""
        self._refusals_left = 0
        """How often the login may still be refused."""
        self._failures: list[tuple[str | None, Exception]] = []
        """Errors of the first connect, by server."""

        self._refused: dict[str | None, bytes] = {}
        """The logins that servers have refused since the last connection."""
        self._given_up: Exception | None = None
        self._closing: asyncio.Task[None] | None = None
        self._last_error: Exception | None = None
        self._url: str | None = None

    async def start(self, arguments: Mapping[str, Any], *, persist: bool) -> None:
        """
        Connect for the first time.

        Each server is tried once, or with *persist* again and again until all have refused the
        login; the caller bounds the time. Raises ConnectError or AuthenticationError.
        """
        servers = arguments["servers"]
        self._attempts_left = None if persist else len(servers)
        self._refusals_left = len(servers)
        self._first = True
        self.transport.ssl_context = arguments["tls"]
        self._client._transport = self.transport
        try:
            await self._client.connect(
                error_cb=self._on_error,
                disconnected_cb=self._on_disconnected,
                reconnected_cb=self._on_reconnected,
                closed_cb=self._on_closed,
                discovered_server_cb=self._on_discovered,
                lame_duck_mode_cb=self._on_lame_duck,
                **arguments,
            )
        except _FirstConnectFailedError as failed:
            await self._abandon()
            if isinstance(failed.cause, ConfigurationError):
                raise failed.cause from failed.cause.__cause__
            raise no_server_error(self._failures) from failed.cause
        except nats.errors.Error as error:
            await self._abandon()
            raise translate_connect_error(error) from error
        except BaseException:
            # The budget is over, or the caller was interrupted.
            self.transport.finish()
            raise
        self._first = False
        self._note_connection()
        self._listener.on_connected()

    async def stop(self) -> None:
        """Close the connection; what the socket has taken is sent."""
        try:
            with contextlib.suppress(nats.errors.Error, OSError, asyncio.TimeoutError):
                await self._client.close()
        finally:
            # Also when the time for closing is up, and this is cancelled.
            self.transport.finish()
        await self.transport.wait_closed()

    async def flush(self, timeout: float) -> None:
        """Wait until the server has processed what was written, up to *timeout* seconds."""
        ends = self._loop.time() + timeout
        pong = Waiter(b"PING")
        with contextlib.suppress(TransportError):
            self.lane.write(PING, Deadline.after(0.0), pong=pong)
            while not pong.ready and self._loop.time() < ends:  # noqa: ASYNC110
                # Its signal wakes threads, not tasks.
                await asyncio.sleep(FLUSH_LOOK)

    async def reconnect(self) -> None:
        """Drop the connection and make a new one."""
        await self._client.force_reconnect()

    @property
    def url(self) -> str | None:
        """The address of the server, or of the last one, without user name and password."""
        return self._url

    def discovered(self) -> tuple[str, ...]:
        """Return the servers of the cluster that this method has not returned before."""
        new = self._new_servers()
        self.transport.known.update(url.netloc for url in new)
        return tuple(redact_url(self.transport.resolve(url).geturl()) for url in new)

    def _new_servers(self) -> list[ParseResult]:
        known = self.transport.known
        return [url for url in self._client.discovered_servers if url.netloc not in known]

    def _note_connection(self) -> None:
        """Keep what is known of a new connection."""
        self._refused.clear()
        self._url = self.transport.target

    @property
    def last_error(self) -> Exception | None:
        """What went wrong last, while connecting or connected."""
        return self._last_error or self.transport.silence

    async def _abandon(self) -> None:
        with contextlib.suppress(Exception):
            await self._client.close()
        self.transport.finish()
        await self.transport.wait_closed()

    # nats-py's callbacks.

    async def _on_error(self, error: Exception) -> None:
        self._last_error = error
        if not self._first:
            # The end of a connection has an event of its own.
            if not isinstance(error, nats.errors.UnexpectedEOF):
                self._listener.on_error(error)
                self._count_refusal(error)
            return
        if isinstance(error.__cause__, ConfigurationError):
            # No further attempt helps against a package that is missing.
            raise _FirstConnectFailedError(error.__cause__)
        # With *persist* a server fails many times; the last reason of each is enough.
        self._failures = [each for each in self._failures if each[0] != self.transport.target]
        self._failures.append((self.transport.target, error))
        if isinstance(translate_connect_error(error), AuthenticationError):
            self._refusals_left -= 1
        if self._attempts_left is not None:
            self._attempts_left -= 1
        if self._attempts_left == 0 or self._refusals_left == 0:
            # nats-py would go on for minutes. An error out of its error callback ends its attempts.
            raise _FirstConnectFailedError(error)

    def _count_refusal(self, error: Exception) -> None:
        """Give up if the same server has refused the same login twice in a row."""
        transport = self.transport
        if not transport.refused or transport.login is None:
            return
        again = self._refused.get(transport.target) == transport.login.identity
        self._refused[transport.target] = transport.login.identity
        if again and not self._options.retry_refused_logins and self._closing is None:
            self._given_up = error
            self._closing = self._loop.create_task(self._client.close())

    def _on_unexpected(self, error: Exception) -> None:
        _logger.error(_log.RECONNECT_FAILED, exc_info=error)
        self._listener.on_error(ConnectError(f"unexpected {type(error).__name__}"))

    async def _on_disconnected(self) -> None:
        if not self._first:
            self._listener.on_disconnected()

    async def _on_reconnected(self) -> None:
        self._note_connection()
        self._listener.on_connected()

    async def _on_closed(self) -> None:
        if not self._first:
            self._listener.on_closed(
                self._given_up or self.transport.server_error or self._client.last_error
            )

    async def _on_discovered(self) -> None:
        # The servers that a server lists when it is connected to are no news.
        if self._new_servers():
            self._listener.on_discovered()

    async def _on_lame_duck(self) -> None:
        self._listener.on_lame_duck()


class _FirstConnectFailedError(Exception):
    """Carries a failure of the first connect out of nats-py's loop of attempts."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause = cause


@contextlib.contextmanager
def _retryable() -> Iterator[None]:
    """
    Turn every failure of an attempt into one that nats-py answers with the next attempt.

    Those are OSError, which ConnectError is, and nats-py's own. Any other would end its reconnects.
    """
    try:
        yield
    except (OSError, nats.errors.Error) as error:
        reason = tls_reason(error)
        if reason is not None:
            raise ConnectError(reason) from error
        raise
    except (ProtocolError, ConfigurationError) as error:
        raise ConnectError(str(error)) from error
    except Exception as error:
        _logger.exception(_log.RECONNECT_FAILED)
        raise ConnectError(f"unexpected {type(error).__name__}") from error


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _in_thread(call: Callable[..., T], *arguments: Any) -> asyncio.Future[T]:
    """
    Return a future for what *call* returns in a thread of its own.

    A daemon: a call that never returns must not keep the loop or the process from ending.
    """
    loop = asyncio.get_running_loop()
    result: asyncio.Future[T] = loop.create_future()

    def settle(value: T | None, error: Exception | None) -> None:
        if result.done():
            return
        if error is not None:
            result.set_exception(error)
        else:
            result.set_result(value)  # type: ignore[arg-type]

    def run() -> None:
        value, failure = None, None
        try:
            value = call(*arguments)
        except Exception as error:  # noqa: BLE001 - raised where it is awaited.
            failure = error
        except BaseException as error:  # noqa: BLE001 - must not end the loop.
            failure = ConnectError(f"unexpected {type(error).__name__}")
        with contextlib.suppress(RuntimeError):  # The loop is closed.
            loop.call_soon_threadsafe(settle, value, failure)

    threading.Thread(target=run, name=f"jetsync-{call.__name__}", daemon=True).start()
    return result
