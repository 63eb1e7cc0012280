"""
The seam to nats-py, which decides where to connect and keeps the connection.

This is the only file that imports nats. It gives nats-py a transport of ours, so that every byte
passes the lane, and turns nats-py's callbacks and errors into jetsync's.

What the seam takes from nats-py that is not public, all of it:

- ``Client.options["connect_timeout"]``, which bounds one attempt, may be changed between attempts
  (:func:`NatsConnection.start`).
- ``Client._transport`` may be set before ``connect``; nats-py keeps a transport that is true and
calls its
  ``connect`` again for every new connection (:func:`NatsConnection.start`).
- ``WebSocketTransport._ws`` with what is below it in aiohttp, and ``._client``
  (:mod:`jetsync._websocket`).
- ``Client._send_ping`` takes the future that the PONG resolves (:meth:`NatsConnection.flush`).

Everything here runs in the loop thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import time
from typing import TYPE_CHECKING, Any, Final, Protocol

import nats.aio.client
import nats.errors
from nats.aio.transport import Transport, WebSocketTransport

from jetsync._lane import Lane
from jetsync._translate import no_server_error, translate_connect_error
from jetsync._websocket import close_web, connect_web
from jetsync.errors import (
    AuthenticationError,
    ConfigurationError,
    ConnectError,
    ConnectionLostError,
    redact_url,
)
from jetsync.server_info import requiring_tls

if TYPE_CHECKING:
    from collections.abc import Mapping
    from urllib.parse import ParseResult

SOCKET_BUFFER: Final = 1 << 20
"""
Receive buffer asked for, 1 MiB: room for a burst of frames while their reader is busy with the last
one.
"""

CLOSING_WAIT: Final = 1.0
"""Seconds to wait for the end of a WebSocket."""


class ConnectionListener(Protocol):
    """
    Who wants to know what happens to the connection; called in the loop thread, must not block.
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

    def __init__(self, loop: asyncio.AbstractEventLoop, listener: ConnectionListener) -> None:
        self.lane = Lane(loop, self._take)
        self._loop = loop
        self._listener = listener
        self._inbound = bytearray()
        self._arrival: asyncio.Future[None] | None = None
        self._eof = True
        self._sock: socket.socket | None = None
        self._over = False
        """Whether there is to be no further connection."""

        self.target: str | None = None
        """The server that is connected to, or was tried last, without a login."""

        self.insist_on_tls = False
        """Whether a connection without TLS must not be used."""

    def __bool__(self) -> bool:
        # nats-py makes a transport of its own for each connection unless it finds one that is true.
        return True

    # What nats-py calls.

    async def connect(self, uri: ParseResult, buffer_size: int, connect_timeout: float) -> None:
        """Connect to the first address of the host that answers."""
        # nats-py goes on to the next server after a failed handshake without closing this one.
        self.close()
        self.check_over()
        self.target = redact_url(uri.geturl())
        sock = await asyncio.wait_for(self._dial(uri), connect_timeout)
        self._start(sock)

    async def connect_tls(
        self,
        uri: str | ParseResult,
        ssl_context: ssl.SSLContext,
        buffer_size: int,
        connect_timeout: float,
    ) -> None:
        """Put TLS on the connected socket."""
        hostname = uri if isinstance(uri, str) else uri.hostname
        self.lane.pause()
        sock = self._sock
        if sock is None:
            raise OSError("not connected")
        secure = ssl_context.wrap_socket(
            sock, server_hostname=hostname, do_handshake_on_connect=False
        )
        self._sock = secure
        try:
            await asyncio.wait_for(self._handshake(secure), connect_timeout)
        except ssl.SSLError as error:
            # nats-py goes on to the next server after an OSError, which this is; keep its reason
            # readable.
            secure.close()
            # What is wrong with a certificate is in an attribute that only this kind of error has.
            text = getattr(error, "verify_message", None) or error.reason or error
            raise ConnectError(f"TLS handshake failed: {text}") from error
        except BaseException:
            secure.close()
            raise
        self._start(secure)

    def write(self, payload: bytes) -> None:
        self.lane.control(payload)

    def writelines(self, payload: list[bytes]) -> None:
        self.lane.control(b"".join(payload))

    async def drain(self) -> None:
        """Return at once: the lane bounds what waits for the socket."""

    async def read(self, buffer_size: int) -> bytes:
        """Return the next bytes that are nats-py's; empty at the end of the connection."""
        self.lane.end_handshake()
        await self._wait_inbound()
        data = bytes(self._inbound)
        self._inbound.clear()
        return data

    async def readline(self) -> bytes:
        """Return the next line of the handshake, which is all that nats-py reads by lines."""
        while b"\n" not in self._inbound and not self._eof:
            await self._wait_arrival()
        line, newline, rest = bytes(self._inbound).partition(b"\n")
        if not newline:
            # nats-py would take an empty line for the end of a handshake that went well.
            raise ConnectError("the server ended the connection during the handshake")
        self._inbound[:] = rest
        line += newline
        if self.insist_on_tls and line.startswith(b"INFO ") and not self._is_secure():
            return requiring_tls(line)
        return line

    def at_eof(self) -> bool:
        return self._eof and not self._inbound

    def close(self) -> None:
        self._eof = True
        self.lane.detach()
        sock, self._sock = self._sock, None
        if sock is not None:
            sock.close()
        self._wake()

    async def wait_closed(self) -> None:
        """Return at once: closing a socket takes no time."""

    # Ours.

    def finish(self) -> None:
        """Close for good: nats-py may be about to connect again, and its own close let it."""
        self._over = True
        self.close()

    def check_over(self) -> None:
        """Raise what ends nats-py's attempts if there is to be no further connection."""
        if self._over:
            raise asyncio.CancelledError

    def _is_secure(self) -> bool:
        return isinstance(self._sock, ssl.SSLSocket)

    async def _dial(self, uri: ParseResult) -> socket.socket:
        if uri.hostname is None:
            raise OSError("no host in the server's address")
        addresses = await self._loop.getaddrinfo(
            uri.hostname, uri.port or 4222, type=socket.SOCK_STREAM
        )
        last: OSError | None = None
        for family, kind, protocol, _, address in addresses:
            sock = socket.socket(family, kind, protocol)
            try:
                sock.setblocking(False)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SOCKET_BUFFER)
                await self._loop.sock_connect(sock, address)
            except OSError as error:
                sock.close()
                last = error
            except BaseException:
                sock.close()
                raise
            else:
                return sock
        raise last or OSError(f"no address for {uri.hostname}")

    async def _handshake(self, secure: ssl.SSLSocket) -> None:
        while True:
            try:
                secure.do_handshake()
            except ssl.SSLWantReadError:
                await self._wait_socket(self._loop.add_reader, self._loop.remove_reader, secure)
            except ssl.SSLWantWriteError:
                await self._wait_socket(self._loop.add_writer, self._loop.remove_writer, secure)
            else:
                return

    async def _wait_socket(self, add: Any, remove: Any, sock: socket.socket) -> None:
        """Wait until the loop says that the socket is ready for what *add* watches."""
        ready: asyncio.Future[None] = self._loop.create_future()
        fd = sock.fileno()

        def wake() -> None:
            if not ready.done():
                ready.set_result(None)

        add(fd, wake)
        try:
            await ready
        finally:
            remove(fd)

    def _start(self, sock: socket.socket) -> None:
        if self._over:
            sock.close()
        self.check_over()
        self._sock = sock
        self._inbound.clear()
        self._eof = False
        self.lane.attach(sock)

    def _take(self, data: bytes) -> None:
        """Keep a line, or a frame, for nats-py; empty bytes are the end."""
        if not data:
            self._eof = True
        elif data.startswith(b"INFO "):
            self._listener.on_info(data)
            self._inbound += data
        elif data.startswith(b"-ERR"):
            # nats-py makes errors of its own of them, with less in them.
            self._listener.on_server_error(data.decode("utf-8", "replace").strip())
            self._inbound += data
        else:
            self._inbound += data
        self._wake()

    def _wake(self) -> None:
        arrival = self._arrival
        if arrival is not None and not arrival.done():
            arrival.set_result(None)

    async def _wait_inbound(self) -> None:
        while not self._inbound and not self._eof:
            await self._wait_arrival()

    async def _wait_arrival(self) -> None:
        self._arrival = self._loop.create_future()
        try:
            await self._arrival
        finally:
            self._arrival = None


class NatsConnection:
    """One nats-py client on a transport of ours, with callbacks and errors translated."""

    def __init__(self, listener: ConnectionListener, *, websocket: bool) -> None:
        loop = asyncio.get_running_loop()
        self._listener = listener
        self._client = nats.aio.client.Client()
        self.transport: LaneTransport = (
            WebSocketLaneTransport(loop, listener) if websocket else LaneTransport(loop, listener)
        )
        self.lane = self.transport.lane
        self._attempts_left: int | None = None
        """How many failures the first connect may still meet; None once it succeeded."""
        self._refusals_left = 0
        """How often the login may still be refused."""
        self._failures: list[tuple[str | None, Exception]] = []
        """What the first connect met, server by server."""

        self._last_error: Exception | None = None
        self._lost: asyncio.Future[Any] = loop.create_future()
        """Done once the connection that stands now is gone."""
        self._url: str | None = None
        self._known: set[str] = set()
        """The servers of the cluster that were announced before, or found on connecting."""

    async def start(self, arguments: Mapping[str, Any], *, persist: bool) -> None:
        """
        Connect for the first time.

        Each server is tried once, or with *persist* again and again until all have refused the
        login; the caller bounds the time. Raises ConnectError or AuthenticationError.
        """
        servers = arguments["servers"]
        self._attempts_left = None if persist else len(servers)
        self._refusals_left = len(servers)
        # A server that says nothing may use its share of the budget, and not that of the others.
        total = arguments["connect_timeout"]
        arguments = {**arguments, "connect_timeout": total / len(servers)}
        self._first = True
        self.transport.insist_on_tls = arguments["tls"] is not None
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
            raise no_server_error(self._failures) from failed.cause
        except nats.errors.Error as error:
            await self._abandon()
            raise translate_connect_error(error) from error
        except ImportError as error:
            await self._abandon()
            raise ConfigurationError(
                f"this login needs {error.name}:"
                " install the extra, as in python -m pip install 'jetsync[nkeys]'"
            ) from error
        except BaseException:
            # The budget is over, or the caller was interrupted.
            self.transport.close()
            raise
        self._client.options["connect_timeout"] = total
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

    async def flush(self, timeout: float) -> float:
        """
        Return once the server has processed all that was written before, with the round trip's
        seconds.
        """
        # Not the loop's clock: uvloop's has whole milliseconds.
        start = time.perf_counter()
        pong: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        # nats-py's own flush cancels this future when the time is up; the PONG that still comes
        # then ends nats-py's reader, and with it the connection's life. wait() cancels nothing.
        lost = self._lost
        await self._client._send_ping(pong)
        await asyncio.wait({pong, lost}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        if pong.done():
            return time.perf_counter() - start
        if lost.done():
            raise ConnectionLostError(reason="while flushing")
        raise asyncio.TimeoutError

    async def reconnect(self) -> None:
        """Drop the connection and make a new one."""
        await self._client.force_reconnect()

    @property
    def url(self) -> str | None:
        """The address of the server, or of the last one, without user name and password."""
        return self._url

    def discovered(self) -> tuple[str, ...]:
        """Return the servers of the cluster that this method has not returned before."""
        urls = (redact_url(url.geturl()) for url in self._client.discovered_servers)
        new = tuple(url for url in urls if url not in self._known)
        self._known.update(new)
        return new

    def _note_connection(self) -> None:
        """Keep what nats-py tells of a new connection only as long as it stands."""
        self._lost = asyncio.get_running_loop().create_future()
        url = self._client.connected_url
        if url is not None:
            self._url = url._replace(netloc=url.netloc.rpartition("@")[2]).geturl()
        # What the server lists in its first INFO is not news.
        self.discovered()

    @property
    def last_error(self) -> Exception | None:
        """What went wrong last, while connecting or connected."""
        return self._last_error

    async def _abandon(self) -> None:
        with contextlib.suppress(Exception):
            await self._client.close()
        self.transport.close()
        await self.transport.wait_closed()

    # nats-py's callbacks.

    async def _on_error(self, error: Exception) -> None:
        self._last_error = error
        if not self._first:
            # The end of a connection has an event of its own.
            if not isinstance(error, nats.errors.UnexpectedEOF):
                self._listener.on_error(error)
            return
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

    async def _on_disconnected(self) -> None:
        if not self._lost.done():
            self._lost.set_result(None)
        if not self._first:
            self._listener.on_disconnected()

    async def _on_reconnected(self) -> None:
        self._note_connection()
        self._listener.on_connected()

    async def _on_closed(self) -> None:
        if not self._first:
            self._listener.on_closed(self._client.last_error)

    async def _on_discovered(self) -> None:
        self._listener.on_discovered()

    async def _on_lame_duck(self) -> None:
        self._listener.on_lame_duck()


class WebSocketLaneTransport(LaneTransport):
    """
    nats-py's own WebSocket transport behind the same splitter.

    Writes go through the loop and no thread reads by itself: slower than a socket, the same
    behaviour.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, listener: ConnectionListener) -> None:
        super().__init__(loop, listener)
        self._web: WebSocketTransport | None = None
        self._reader: asyncio.Task[None] | None = None
        self._attempt: asyncio.Task[asyncio.WriteTransport | None] | None = None
        """The handshake, which yields what carries the WebSocket."""
        self._closing: set[asyncio.Task[None]] = set()

    async def connect(self, uri: ParseResult, buffer_size: int, connect_timeout: float) -> None:
        self.target = redact_url(uri.geturl())
        await self._begin(uri, None, buffer_size, connect_timeout)

    async def connect_tls(
        self,
        uri: str | ParseResult,
        ssl_context: ssl.SSLContext,
        buffer_size: int,
        connect_timeout: float,
    ) -> None:
        if isinstance(uri, str):
            # nats-py asks for an upgrade after INFO; a wss:// connection has TLS from its first
            # byte.
            return
        self.target = redact_url(uri.geturl())
        await self._begin(uri, ssl_context, buffer_size, connect_timeout)

    async def _begin(
        self,
        uri: ParseResult,
        ssl_context: ssl.SSLContext | None,
        buffer_size: int,
        connect_timeout: float,
    ) -> None:
        self.close()
        self.check_over()
        try:
            web = WebSocketTransport()
        except ImportError as error:
            raise ConfigurationError(
                "ws:// and wss:// need the extra: pip install 'jetsync[ws]'"
            ) from error
        self._web = web
        self._attempt = attempt = self._loop.create_task(
            connect_web(web, uri, ssl_context, buffer_size, connect_timeout)
        )
        # A TLS handshake that is cancelled leaves a socket that nobody can close.
        await asyncio.shield(attempt)
        if self._web is not web:
            raise OSError("closed while connecting")
        self._inbound.clear()
        self._eof = False
        self.lane.attach_stream(self._send)
        self._reader = self._loop.create_task(self._read_web(web))

    async def _send(self, block: bytes) -> None:
        web = self._web
        if web is None:
            raise OSError("not connected")
        web.write(block)  # type: ignore[no-untyped-call]
        await web.drain()  # type: ignore[no-untyped-call]

    async def _read_web(self, web: WebSocketTransport) -> None:
        data = b"-"
        while data:
            try:
                data = await web.readline()  # type: ignore[no-untyped-call]
            except (OSError, RuntimeError):
                data = b""
            self.lane.feed(data)

    def _is_secure(self) -> bool:
        # Here it is the scheme that decides, and before the first byte.
        return True

    def close(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.cancel()
        web, self._web = self._web, None
        attempt, self._attempt = self._attempt, None
        if web is not None and attempt is not None:
            closing = self._loop.create_task(close_web(web, attempt))
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


class _FirstConnectFailedError(Exception):
    """Carries a failure of the first connect out of nats-py's loop of attempts."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause = cause
