"""
The first and the last moments of a WebSocket, which is nats-py's on aiohttp.

What is given here is always nats-py's ``WebSocketTransport``. Everything runs in the loop thread.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, Final

from jetsync.errors import redact_text

if TYPE_CHECKING:
    import ssl
    from urllib.parse import ParseResult

CLOSING_ROUNDS: Final = 3
"""Rounds of the loop in which it closes a socket that was let go of."""


async def connect_web(
    web: Any,
    uri: ParseResult,
    ssl_context: ssl.SSLContext | None,
    buffer_size: int,
    connect_timeout: float,
) -> asyncio.WriteTransport | None:
    """Make the connection and return what carries it; raises OSError."""
    try:
        if ssl_context is None:
            await web.connect(uri, buffer_size, connect_timeout)
        else:
            await web.connect_tls(uri, ssl_context, buffer_size, connect_timeout)
    except OSError:
        raise
    except Exception as error:  # noqa: BLE001 - raised in another form
        # aiohttp has errors of its own, which nats-py does not expect. They are no cause of this
        # one, because they contain the URL, and with it a token in its query.
        raise OSError(f"WebSocket handshake failed: {redact_text(str(error))}") from None
    try:
        below: asyncio.WriteTransport = web._ws._response.connection.transport
    except AttributeError:
        return None
    return below


async def close_web(web: Any, attempt: asyncio.Task[asyncio.WriteTransport | None]) -> None:
    """Close a WebSocket once the *attempt* to connect it has ended, well or not."""
    below: asyncio.WriteTransport | None = None
    try:
        await asyncio.wait({attempt})
        if not attempt.cancelled() and attempt.exception() is None:
            below = attempt.result()
        web.close()
        with contextlib.suppress(Exception):
            await web.wait_closed()
    finally:
        # Also when the loop ends first and cancels this.
        if below is not None:
            # aiohttp leaves the end of TLS to a loop that may not live as long.
            below.abort()
        if web._client is not None:
            await web._client.close()
        for _ in range(CLOSING_ROUNDS):
            await asyncio.sleep(0)
