"""
A WebSocket on aiohttp: connecting, whole messages in and out, closing.

Everything runs in the loop thread. aiohttp is imported with the first connection: it is an extra.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, Final

from jetsync.errors import ConfigurationError

if TYPE_CHECKING:
    import ssl

MAX_MESSAGE: Final = 128 << 20
"""
Bytes of one WebSocket message at most, 128 MiB.

A server sends all pending data of a client as one message. That is bounded by its ``max_pending``,
64 MiB by default.
"""

CLOSING_WAIT: Final = 1.0
"""Seconds to wait for the closing handshake; a server that hangs does not take part in it."""

CLOSING_ROUNDS: Final = 3
"""Rounds of the loop in which it closes an abandoned socket."""

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
        self._below: Any = None
        """The asyncio transport that carries the WebSocket."""

    async def open(
        self, url: str, ssl_context: ssl.SSLContext | None, hostname: str | None
    ) -> None:
        """
        Connect, within the time that the caller bounds; raises OSError.

        The certificate is checked against *hostname*, or else against the host of the URL.
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
            # The errors of aiohttp show the URL, which may have a token in it.
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
        # A closing frame, an error, or text, which no NATS server sends.
        return b""

    async def send(self, block: bytes) -> None:
        """Send *block* as one message."""
        if self._socket is None:
            raise OSError("not connected")
        await self._socket.send_bytes(block)

    async def close(self) -> None:
        """Close the connection; safe to repeat."""
        try:
            if self._socket is not None:
                with contextlib.suppress(Exception):
                    await asyncio.wait_for(self._socket.close(), CLOSING_WAIT)
        finally:
            # Also when the loop ends first and cancels this. aiohttp leaves the end of TLS to a
            # loop that may not live as long.
            if self._below is not None:
                self._below.abort()
            await self._session.close()
            for _ in range(CLOSING_ROUNDS):
                await asyncio.sleep(0)


async def _refuse_redirect(*_: object) -> None:
    # aiohttp would follow it, and the login would go to a server that nobody has named.
    raise OSError("the server redirects to another address, which jetsync does not follow")
