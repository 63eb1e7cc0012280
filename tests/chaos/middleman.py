"""
A proxy that reads the server's frames one by one, and may replace them.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import threading
from collections.abc import Awaitable, Callable

import attrs

LIMIT = 8 << 20
"""The longest line that is read from the honest server."""

_SIZES = re.compile(rb"(\d+)(?: (\d+))?\r\n$")


@attrs.define
class Frame:
    """
    A frame of a server: a line, and a payload if the line announces one.
    """

    line: bytes
    """The line, with its line end."""
    headers: bytes = b""
    body: bytes = b""
    """The payload with its line end, if there is one."""

    @property
    def kind(self) -> str:
        return self.line.split(None, 1)[0].decode().upper()

    @property
    def raw(self) -> bytes:
        return self.line + self.headers + self.body


Greeting = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[object]]


class Middleman:
    """
    Forward connections to a server on loopback, with one thread; attributes may be set at any time.

    Args:
        target: The port of the server.
        frames: Whether to read frames. If not, bytes are passed on unread, as for TLS.
    """

    def __init__(self, target: int, *, frames: bool = True) -> None:
        self._target = target
        self._frames = frames
        self.change: Callable[[Frame], list[bytes] | None] | None = None
        """Returns the bytes to send instead of a frame; None ends the connection."""
        self.greet: Callable[[], Greeting | None] | None = None
        """Returns the script that serves a new connection instead of the server, or None."""
        self.accepted = 0
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._server = self._do(asyncio.start_server(self._accept, "127.0.0.1", 0, limit=LIMIT))
        self.port = self._server.sockets[0].getsockname()[1]

    def __enter__(self):
        return self

    def __exit__(self, *_: object) -> None:
        self._do(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def drop(self) -> None:
        """Cut all connections."""
        self._do(self._drop())

    def _do(self, work):
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    async def _drop(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    async def _close(self) -> None:
        self._server.close()
        await self._drop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader, writer) -> None:
        self.accepted += 1
        task = asyncio.current_task()
        self._tasks.add(task)
        self._writers.add(writer)
        try:
            greeting = self.greet() if self.greet else None
            if greeting:
                await greeting(reader, writer)
            else:
                await self._forward(reader, writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        except asyncio.CancelledError:
            # A task of asyncio's own server must not end as cancelled: it would be logged.
            pass
        finally:
            self._writers.discard(writer)
            self._tasks.discard(task)
            writer.transport.abort()

    async def _forward(self, reader, writer) -> None:
        from_server, to_server = await asyncio.open_connection(
            "127.0.0.1", self._target, limit=LIMIT
        )
        back = self._speak(from_server, writer) if self._frames else copy(from_server, writer)
        await both(back, copy(reader, to_server), to_server)

    async def _speak(self, from_server, writer) -> None:
        while True:
            frame = await read_frame(from_server)
            pieces = self.change(frame) if self.change else [frame.raw]
            if pieces is None:
                return
            for piece in pieces:
                writer.write(piece)
                await writer.drain()


async def relay(port: int, reader, writer) -> None:
    """Forward a connection to a server, except for the first line that the server sends."""
    from_server, to_server = await asyncio.open_connection("127.0.0.1", port)
    await from_server.readline()
    await both(copy(from_server, writer), copy(reader, to_server), to_server)


async def both(back, forth, to_server) -> None:
    """Forward in both directions until one ends."""
    ways = [asyncio.ensure_future(back), asyncio.ensure_future(forth)]
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)
        to_server.transport.abort()


async def copy(reader, writer) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()


async def read_frame(reader) -> Frame:
    line = await reader.readuntil(b"\r\n")
    if not line.startswith((b"MSG ", b"HMSG ")):
        return Frame(line)
    first, second = _SIZES.search(line).groups()
    if line.startswith(b"MSG"):
        return Frame(line, b"", await reader.readexactly(int(second or first) + 2))
    headers = await reader.readexactly(int(first))
    return Frame(line, headers, await reader.readexactly(int(second) - int(first) + 2))


async def swallow(reader, seconds: float) -> None:
    """Read and ignore bytes for a while, like a server that does not answer."""
    with contextlib.suppress(asyncio.TimeoutError):
        await asyncio.wait_for(reader.read(-1), seconds)
