"""
WebSocket connections, on aiohttp.

Everything runs in the loop thread. aiohttp is an extra, and is imported with the first connection.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from jetsync._io.transport import LaneTransport, retryable
from jetsync.errors import ConfigurationError, ConnectError

if TYPE_CHECKING:
    import ssl
    from urllib.parse import ParseResult

    from jetsync._io.transport import ConnectionListener
    from jetsync.options import ConnectOptions

# Bytes of one WebSocket message: 128 MiB. A server sends all pending data of a client as one
# message, up to its ``max_pending``, which is 64 MiB by default.
MAX_MESSAGE: Final = 128 << 20

# Seconds to wait for the closing handshake. A server that hangs does not take part in it.
CLOSING_WAIT: Final = 1.0

# Rounds of the loop in which it closes an abandoned socket.
CLOSING_ROUNDS: Final = 3

_ENDED: Final = (
    "the server ended the connection during the WebSocket handshake:"
    " check the port, and tls_cert and tls_key if it requires a client certificate"
)


class WebSocket:
    """One WebSocket connection."""

    def __init__(self) -> None:
        try:
            import aiohttp
        except ImportError as error:
            raise ConfigurationError(
                "ws:// and wss:// need the extra: pip install 'jetsync[ws]'"
            ) from error
        self._aiohttp = aiohttp
        tracing = aiohttp.TraceConfig()
        tracing.on_request_redirect.append(_refuse_redirect)
        self._session = aiohttp.ClientSession(trace_configs=[tracing])
        self._socket: Any = None
        # The asyncio transport that carries the WebSocket.
        self._below: Any = None

    async def open(
        self, url: str, ssl_context: ssl.SSLContext | None, hostname: str | None
    ) -> None:
        """
        Connect; raises OSError. The caller limits the time.

        The certificate is checked against *hostname*, or against the host of the URL without one.
        """
        try:
            self._socket = await self._session.ws_connect(
                url,
                ssl=True if ssl_context is None else ssl_context,
                server_hostname=hostname,
                max_msg_size=MAX_MESSAGE,
                timeout=self._aiohttp.ClientWSTimeout(ws_close=CLOSING_WAIT),
            )
        except (ConnectionResetError, self._aiohttp.ServerDisconnectedError) as error:
            raise OSError(_ENDED) from error
        except OSError:
            raise
        except Exception as error:  # noqa: BLE001 - aiohttp has errors of its own.
            # The errors of aiohttp show the URL, which may contain a token.
            if isinstance(error, self._aiohttp.WSServerHandshakeError):
                reason = f"HTTP status {error.status}; check whether the port is for ws or wss"
            elif isinstance(error, self._aiohttp.ClientResponseError):
                reason = "the server does not speak HTTP here: check the port"
            else:
                reason = type(error).__name__
            raise OSError(f"WebSocket handshake failed: {reason}") from None
        with contextlib.suppress(AttributeError):
            self._below = self._socket._response.connection.transport

    async def receive(self) -> bytes:
        """Return the next message; empty at the end of the connection."""
        if self._socket is None:
            return b""
        message = await self._socket.receive()
        if message.type is self._aiohttp.WSMsgType.BINARY:
            data: bytes = message.data
            return data
        # A closing frame, an error or text. A NATS server sends no text.
        return b""

    async def send(self, block: bytes) -> None:
        """Send *block* as one message."""
        if self._socket is None:
            raise OSError("not connected")
        await self._socket.send_bytes(block)

    async def close(self) -> None:
        """Close the connection. Can be called repeatedly."""
        try:
            if self._socket is not None:
                with contextlib.suppress(Exception):
                    await asyncio.wait_for(self._socket.close(), CLOSING_WAIT)
        finally:
            # Also if the loop ends first and cancels this. aiohttp leaves the end of TLS to a loop
            # that may have ended by then.
            if self._below is not None:
                self._below.abort()
            await self._session.close()
            for _ in range(CLOSING_ROUNDS):
                await asyncio.sleep(0)


async def _refuse_redirect(*_: object) -> None:
    # aiohttp would follow it and send the login to a server that the application has not named.
    raise OSError("the server redirects to another address, which jetsync does not follow")


class WebSocketLaneTransport(LaneTransport):
    """
    A WebSocket behind the lane.

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
        self._opening: asyncio.Task[None] | None = None
        self._closing: set[asyncio.Task[None]] = set()

    async def connect(self, uri: ParseResult, buffer_size: int, connect_timeout: float) -> None:
        """Connect, with TLS from the first byte for ``wss://``."""
        self._begin_attempt(uri)
        # The scheme decides about TLS, so nats-py must not start it.
        self.attempt.secure = True
        with retryable():
            address = self.resolve(uri)
            self._scheme = address.scheme
            context = self.ssl_context if address.scheme == "wss" else None
            self._web = web = WebSocket()
            self._opening = opening = self._loop.create_task(
                web.open(address.geturl(), context, self._options.tls_hostname)
            )
            # Not cancelled at the end of its time, because aiohttp would leave the socket of a TLS
            # handshake open. close() waits for it.
            await self._in_time(asyncio.shield(opening))
            if self._web is not web:
                raise ConnectError("the connection was closed during its handshake")

    async def connect_tls(
        self,
        uri: str | ParseResult,
        ssl_context: ssl.SSLContext,
        buffer_size: int,
        connect_timeout: float,
    ) -> None:
        """Connect for ``tls_first``. nats-py also asks for TLS after INFO, with a host name."""
        if not isinstance(uri, str):
            await self.connect(uri, buffer_size, connect_timeout)

    def resolve(self, uri: ParseResult) -> ParseResult:
        """Return *uri*, as a WebSocket if nats-py took it from the list of a cluster."""
        if uri.scheme in {"ws", "wss"}:
            return uri
        return uri._replace(scheme=self._scheme)

    async def _receive(self) -> bytes:
        return await self._connected(self._web).receive()

    async def _send(self, block: bytes) -> None:
        if self._web is None:
            raise OSError("not connected")
        # If the server has ended the connection, the lines that it sent before say why.
        with contextlib.suppress(OSError):
            await self._web.send(block)

    def _attach(self) -> None:
        web = self._web
        assert web is not None
        self.lane.attach_stream(web.send, self.attempt.max_payload)
        if self.attempt.received:
            self.lane.feed(bytes(self.attempt.received))
            self.attempt.received.clear()
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

    def close(self) -> None:
        """Close the connection, or end the attempt to make one. Can be called repeatedly."""
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.cancel()
        web, self._web = self._web, None
        opening, self._opening = self._opening, None
        if web is not None and opening is not None:
            closing = self._loop.create_task(_close_web(web, opening))
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)
        super().close()

    async def wait_closed(self) -> None:
        """
        Wait for the closing handshakes, which must end before the loop does.

        The wait is short, because a server that hangs does not take part in them.
        """
        if self._closing:
            await asyncio.wait(self._closing, timeout=CLOSING_WAIT)


async def _close_web(web: WebSocket, opening: asyncio.Task[None]) -> None:
    """Close a WebSocket once the task that opens it has ended."""
    try:
        await asyncio.wait({opening}, timeout=CLOSING_WAIT)
        if not opening.done():
            opening.cancel()
            await asyncio.wait({opening})
        if not opening.cancelled():
            opening.exception()
    finally:
        await web.close()
