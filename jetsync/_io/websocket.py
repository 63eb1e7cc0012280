"""
WebSocket connections, on aiohttp.

The lane reads and writes sockets, so it gets one end of a pair of sockets. Two tasks of the loop
pass the bytes between the other end and aiohttp. aiohttp is an extra, and is imported with the
first connection, in a thread of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import urlsplit

from jetsync._io.outbox import break_connection
from jetsync._io.resolve import in_thread
from jetsync._io.transport import LaneTransport
from jetsync.errors import ConfigurationError, ConnectError

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable
    from urllib.parse import ParseResult

    from jetsync._io.connection_state import ConnectionState
    from jetsync._proto.server_pool import Server
    from jetsync.options import ConnectOptions
    from jetsync.values.server_info import ServerInfo

# Bytes of one WebSocket message: 128 MiB. A server sends all pending data of a client as one
# message, up to its ``max_pending``, which is 64 MiB by default.
MAX_MESSAGE: Final = 128 << 20

# Seconds to wait for the closing handshake. A server that hangs does not take part in it.
WS_CLOSE_WAIT: Final = 1.0

# Bytes of one WebSocket message to send: 256 KiB.
CHUNK: Final = 1 << 18

# Rounds of the loop in which it closes an abandoned socket.
CLOSING_ROUNDS: Final = 3

_ENDED: Final = (
    "the server ended the connection during the WebSocket handshake:"
    " check the port, and tls_cert and tls_key if it requires a client certificate"
)


class WebSocket:
    """
    One WebSocket connection.

    Threads: the loop thread.
    Locks: none.
    """

    def __init__(self, aiohttp: Any) -> None:
        self._aiohttp = aiohttp
        tracing = aiohttp.TraceConfig()
        tracing.on_request_redirect.append(_refuse_redirect)
        self._session = aiohttp.ClientSession(trace_configs=[tracing])
        self._socket: Any = None
        # The asyncio transport that carries the WebSocket.
        self._below: Any = None
        self._tasks: list[asyncio.Task[None]] = []
        # Runs :meth:`open`.
        self.opening: asyncio.Task[socket.socket] | None = None

    async def open(
        self, url: str, ssl_context: ssl.SSLContext | None, hostname: str | None
    ) -> socket.socket:
        """
        Connect and return the socket for the lane; raises OSError. The caller limits the time.

        The certificate is checked against *hostname*, or against the host of the URL without one.
        """
        try:
            found = await self._session.ws_connect(
                url,
                ssl=True if ssl_context is None else ssl_context,
                server_hostname=hostname,
                max_msg_size=MAX_MESSAGE,
                timeout=self._aiohttp.ClientWSTimeout(ws_close=WS_CLOSE_WAIT),
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
            self._below = cast("Any", found)._response.connection.transport
        return self.carry(found)

    def carry(self, web: Any) -> socket.socket:
        """Return a socket whose bytes go to and come from the WebSocket *web* of aiohttp."""
        self._socket = web
        sock, self._pair = socket.socketpair()
        sock.setblocking(False)
        self._pair.setblocking(False)
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._send_all()), loop.create_task(self._receive_all())]
        return sock

    async def _send_all(self) -> None:
        """Send what the lane writes until it closes its end."""
        loop = asyncio.get_running_loop()
        # aiohttp has errors of its own. Each means that the connection is gone.
        with contextlib.suppress(Exception):
            while block := await loop.sock_recv(self._pair, CHUNK):
                await self._socket.send_bytes(block)
        break_connection(self._pair)

    async def _receive_all(self) -> None:
        """Pass what the server sends to the lane until the WebSocket ends."""
        loop = asyncio.get_running_loop()
        with contextlib.suppress(Exception):
            # Another type is a closing frame, an error or text. A NATS server sends no text.
            while (message := await self._socket.receive()).type is self._aiohttp.WSMsgType.BINARY:
                await loop.sock_sendall(self._pair, message.data)
        break_connection(self._pair)

    async def close(self) -> None:
        """Close the connection when it is open and what the lane has written is sent."""
        try:
            if self.opening is not None:
                await asyncio.wait({self.opening}, timeout=WS_CLOSE_WAIT)
                self.opening.cancel()
                (opened,) = await asyncio.gather(self.opening, return_exceptions=True)
                if isinstance(opened, socket.socket):
                    # The attempt had ended, so the transport has not taken the socket.
                    opened.close()
            if self._tasks:
                self._tasks[1].cancel()
                await asyncio.wait(self._tasks, timeout=WS_CLOSE_WAIT)
                with contextlib.suppress(Exception):
                    await asyncio.wait_for(self._socket.close(), WS_CLOSE_WAIT)
        finally:
            # This also runs if the loop cancels the task at its end. aiohttp would leave the end of
            # TLS to the loop, which has ended by then.
            if self._below is not None:
                self._below.abort()
            for task in self._tasks:
                task.cancel()
            if self._tasks:
                await asyncio.wait(self._tasks)
                self._pair.close()
            await self._session.close()
            for _ in range(CLOSING_ROUNDS):
                await asyncio.sleep(0)


def load_aiohttp() -> Any:
    """Import aiohttp; raises ConfigurationError if it is not installed."""
    try:
        import aiohttp
    except ImportError as error:
        raise ConfigurationError(
            "ws:// and wss:// need the extra: pip install 'jetsync[ws]'"
        ) from error
    return aiohttp


async def _refuse_redirect(*_: object) -> None:
    # aiohttp would follow it and send the login to a server that the application has not named.
    raise OSError("the server redirects to another address, which jetsync does not follow")


class WebSocketLaneTransport(LaneTransport):
    """
    A WebSocket behind the lane. It is slower than a plain socket and behaves the same.

    Threads: the loop thread.
    Locks: none.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        state: ConnectionState,
        options: ConnectOptions,
        on_exhausted: Callable[[], object],
    ) -> None:
        super().__init__(loop, state, options, on_exhausted)
        self._web: WebSocket | None = None
        self._closing: set[asyncio.Task[None]] = set()

    async def _open(self, chosen: Server) -> None:
        """Connect, with TLS from the first byte for ``wss://``."""
        self.attempt.secure = urlsplit(chosen.url).scheme == "wss"
        if self._asks_tls and not self.attempt.secure:
            raise ConnectError("ws:// has no TLS, which this client asks for: use wss://")
        context = await self._tls() if self.attempt.secure else None
        self._web = web = WebSocket(await self._in_time(in_thread(load_aiohttp)))
        web.opening = self._loop.create_task(
            web.open(chosen.url, context, self._options.tls_hostname)
        )
        # Not cancelled at the end of its time, because aiohttp would leave the socket of a TLS
        # handshake open. close() waits for it.
        sock = await self._in_time(asyncio.shield(web.opening))
        if self._web is not web:
            raise ConnectError("the connection was closed during its handshake")
        self._sock = sock

    async def connect_tls(
        self,
        uri: str | ParseResult,
        ssl_context: ssl.SSLContext,
        buffer_size: int,
        connect_timeout: float,
    ) -> None:
        """Do nothing: nats-py asks for TLS also if the scheme has decided about it."""

    def _begin_tls(self, info: dict[str, Any], server: ServerInfo) -> None:
        """Do nothing: the scheme has decided about TLS before the first byte."""

    def close(self) -> None:
        """Close the connection, or end the attempt to make one. Can be called repeatedly."""
        super().close()
        web, self._web = self._web, None
        if web is not None:
            closing = self._loop.create_task(web.close())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    async def wait_closed(self) -> None:
        """
        Wait for the closing handshakes, which must end before the loop does.

        The wait is short, because a server that hangs does not take part in them.
        """
        if self._closing:
            await asyncio.wait(self._closing, timeout=WS_CLOSE_WAIT)
