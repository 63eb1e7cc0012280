"""
The handshake of each connection, as the transport that nats-py uses.

nats-py only asks for the steps of a handshake. The transport connects, checks the server's first
line, starts TLS, adds the login to CONNECT and waits for the PONG. After that the lane gets the
socket: :mod:`jetsync._io.outbox` writes to it, and :mod:`jetsync._io.reader` reads from it. So
nats-py sees no secret, and no line of a server that was not checked.

The methods of :class:`LaneTransport` that nats-py calls are those of ``nats.aio.transport``.
Everything here runs in the loop thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import socket
import ssl
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import urlsplit

import attrs

from jetsync import errors
from jetsync._base.log import get_logger
from jetsync._io.lane import PONG, Lane
from jetsync._io.login import Login, make_login
from jetsync._io.next_server import NextServer
from jetsync._io.outbox import PING
from jetsync._io.resolve import in_thread, look_up
from jetsync._io.tls import asks_tls, tls_context
from jetsync._io.translate import ends_connection, is_refused_login, tls_reason
from jetsync._proto.server_pool import Server
from jetsync.errors.texts import redact_url, shown_seconds
from jetsync.values.server_info import ServerInfo, clean_info
from jetsync.values.server_urls import is_websocket

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence
    from urllib.parse import ParseResult, SplitResult

    from jetsync._io.connection_state import ConnectionState
    from jetsync.options import ConnectOptions

# Receive buffer to ask for: 1 MiB has room for a burst of frames while the last one is processed.
SOCKET_BUFFER: Final = 1 << 20

# Bytes of one read of the handshake: 16 KiB.
HANDSHAKE_READ: Final = 1 << 14

# Bytes of a line of the handshake: 1 MiB. INFO names every server of a cluster.
MAX_HANDSHAKE_LINE: Final = 1 << 20

T = TypeVar("T")

_logger = get_logger("jetsync.transport")


@attrs.define
class Attempt:
    """
    One attempt to connect, and what the server has said in it.
    """

    chosen: Server = attrs.field(factory=lambda: Server(""))
    # Its address as errors show it.
    target: str | None = None
    # When the attempt fails, on the loop's clock.
    ends: float = 0.0
    # Bytes that nats-py has written, and bytes of the server that were not read as a line yet.
    outgoing: bytearray = attrs.field(factory=bytearray)
    received: bytearray = attrs.field(factory=bytearray)
    info: ServerInfo | None = None
    # The servers of the cluster that the server has listed as ``connect_urls``.
    listed: list[str] = attrs.field(factory=list)
    # What may help if the server does not answer.
    hint: str = ""
    # The error if the time ends now. Set while the client waits for the server's first line.
    silence: errors.ConnectError | None = None
    # None until the attempt needs TLS.
    tls: ssl.SSLContext | None = None
    secure: bool = False
    login: Login | None = None
    refused: bool = False
    # The last error that the server has reported, also after the handshake.
    server_error: Exception | None = None


class LaneTransport:
    """
    A TCP connection, with TLS after or before the server's first line.

    Threads: the loop thread.
    Locks: none.

    It lives as long as the client, and nats-py connects it again after each loss.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        state: ConnectionState,
        options: ConnectOptions,
        on_exhausted: Callable[[], object],
    ) -> None:
        self.lane = state.lane = Lane(loop, self._on_control)
        self.attempt = Attempt()
        self.next_server = NextServer(state, options)
        # Called if each server has had all its attempts.
        self._on_exhausted = on_exhausted
        self._loop = loop
        self._state = state
        self._options = options
        self._options_ask_tls = asks_tls(options)
        # Seconds of one attempt, so that a silent server leaves time for the others.
        self._budget = options.connect_timeout / len(options.server_list())
        self._handshaking = False
        # Lines for nats-py, and the future that it waits with.
        self._inbound = bytearray()
        self._arrival: asyncio.Future[None] | None = None
        self._eof = True
        self._sock: socket.socket | None = None
        # How to stop watching the socket of a handshake, while a step waits for it.
        self._watch: tuple[Callable[[int], object], int, asyncio.Future[None]] | None = None
        # Whether the client is closed, so that no further connection may be made.
        self._over = False
        # The last call in another thread. It may belong to an earlier attempt and be unfinished.
        self._outside: asyncio.Future[Any] | None = None

    def __bool__(self) -> bool:
        # nats-py makes its own transport for each connection, unless it finds one that is truthy.
        return True

    # The handshake, step by step as nats-py calls it.

    async def connect(self, uri: ParseResult, buffer_size: int, connect_timeout: float) -> None:
        """
        Connect to the next server of the pool, once it is due.

        It ignores *uri*, because nats-py knows only one server.
        """
        chosen = await self._begin_attempt()
        with as_os_error():
            await self._open(chosen)

    async def _open(self, chosen: Server) -> None:
        """Connect to the first address of the host that answers."""
        if self._asks_tls:
            # First, because the files may be wrong.
            await self._tls()
        await self._in_time(self._dial(urlsplit(chosen.url)))

    async def connect_tls(
        self,
        uri: str | ParseResult,
        ssl_context: ssl.SSLContext,
        buffer_size: int,
        connect_timeout: float,
    ) -> None:
        """
        Start TLS on the connected socket.

        It ignores *uri* and *ssl_context*, because nats-py has one of each for all attempts.
        """
        chosen = self.attempt.chosen
        hostname = self._options.tls_hostname or chosen.tls_name or urlsplit(chosen.url).hostname
        with as_os_error():
            context = await self._tls()
            sock = self._sock
            if sock is None:
                raise errors.ConnectError("the connection was closed before its TLS handshake")
            self._refuse_plaintext()
            secure = context.wrap_socket(
                sock, server_hostname=hostname, do_handshake_on_connect=False
            )
            self._sock = secure
            await self._in_time(self._step(lambda _: secure.do_handshake()))
            self.attempt.secure = True

    async def readline(self) -> bytes:
        """
        Return the server's INFO, then its PONG. nats-py reads no other lines.

        Raises:
            ConnectError: The server refused, or sent a line that is not part of a handshake.
        """
        with as_os_error():
            if self.attempt.info is None:
                return await self._read_info()
            await self._read_pong()
            return PONG

    async def drain(self) -> None:
        """
        Send what nats-py has written during the handshake.

        After the handshake there is nothing to wait for, because the outbox has a limit of its own.
        """
        attempt = self.attempt
        if not self._handshaking or not attempt.outgoing:
            return
        with as_os_error():
            block = bytes(attempt.outgoing)
            attempt.outgoing.clear()
            if block.startswith(b"CONNECT "):
                block = await self._in_time(
                    self._with_login(block), "the callables and files of the options gave no login"
                )
            await self._in_time(self._send(block))

    def write(self, payload: bytes) -> None:
        """Send bytes of nats-py. After the handshake, these are its answers to PINGs."""
        if self._handshaking:
            self.attempt.outgoing += payload
        elif payload == PING:
            # The weekly one of nats-py, see `nats_seam.NEVER`. The answers of the server belong to
            # the PINGs of jetsync.
            self._inbound += PONG
            self._wake()
        else:
            self.lane.post_nowait(payload)

    def writelines(self, payload: list[bytes]) -> None:
        """Send several pieces of nats-py."""
        self.write(b"".join(payload))

    # After the handshake.

    async def read(self, buffer_size: int) -> bytes:
        """Return the next lines for nats-py; empty at the end of the connection."""
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
        """Return whether the connection has ended and nats-py has read everything."""
        return self._eof and not self._inbound

    def close(self) -> None:
        """Close the connection, or end the attempt to make one. Can be called repeatedly."""
        self._eof = True
        self._handshaking = False
        self._unwatch()
        self.lane.detach()
        sock, self._sock = self._sock, None
        if sock is not None:
            sock.close()
        self._wake()

    async def wait_closed(self) -> None:
        """Return at once, because closing a socket takes no time."""

    # For the seam.

    def finish(self) -> None:
        """Close permanently. nats-py's own close does not stop an attempt that is in progress."""
        self._over = True
        self.close()

    def set_servers(self, servers: str | Sequence[str]) -> None:
        """Use these servers from the next attempt on; any thread. Raises if they cannot be used."""
        options = self._options.evolve(servers=servers)
        urls = options.server_list()
        if is_websocket(urls) != is_websocket(self._options.server_list()):
            raise errors.InvalidArgumentError(
                "a client cannot change between WebSocket and plain servers", argument="servers"
            )
        # First, so that no attempt uses a server without TLS that should have it.
        self._options_ask_tls = self._options_ask_tls or asks_tls(options)
        self._options = options
        self._budget = options.connect_timeout / len(urls)
        self.next_server.pool.replace(urls, options)
        self.lane.later(0.0, self.next_server.on_change)

    # Steps.

    async def _begin_attempt(self) -> Server:
        """Return the next server, once it is due."""
        # After a failed handshake, nats-py tries again without closing this connection.
        self.close()
        self._check_over()
        chosen = await self.next_server.take_server(self._budget)
        self._check_over()
        if chosen is None:
            self._on_exhausted()
            # Ends nats-py's attempts.
            raise asyncio.CancelledError
        self._inbound.clear()
        target = redact_url(chosen.url)
        self.attempt = Attempt(chosen, target, self._loop.time() + self._budget)
        self._handshaking = True
        return chosen

    def _check_over(self) -> None:
        """Raise CancelledError, which ends nats-py's attempts, if the client is closed."""
        if self._over:
            self.close()
            raise asyncio.CancelledError

    def _late(self, what: str = "the server did not answer") -> errors.ConnectError:
        return errors.ConnectError(
            f"{what} within {shown_seconds(self._budget)}{self.attempt.hint}"
        )

    async def _in_time(self, step: Awaitable[T], what: str = "the server did not answer") -> T:
        """Await one step within the rest of the attempt's time."""
        try:
            result = await asyncio.wait_for(step, max(self.attempt.ends - self._loop.time(), 0.0))
        except asyncio.TimeoutError:
            raise self._late(what) from None
        # Before Python 3.12, wait_for may swallow a cancellation.
        self._check_over()
        return result

    async def _in_thread(self, call: Callable[..., T], *arguments: Any) -> T:
        """Return the result of *call*, which may read files and call code of the application."""
        if self._outside is not None:
            # A call that never returns must not cost a thread for each attempt.
            await asyncio.wait({self._outside})
        self._outside = result = in_thread(call, *arguments)
        return await asyncio.shield(result)

    async def _tls(self) -> ssl.SSLContext:
        """Return the TLS context of this attempt, made from the files as they are now."""
        attempt = self.attempt
        if attempt.tls is None:
            making = self._in_thread(tls_context, self._options)
            attempt.tls = await self._in_time(making, "the TLS files could not be read")
        return attempt.tls

    async def _dial(self, uri: SplitResult) -> None:
        if uri.hostname is None:
            raise OSError("no host in the server's address")
        addresses = await look_up(uri.hostname, uri.port or 4222, type=socket.SOCK_STREAM)
        last: OSError | None = None
        for index, (family, kind, protocol, _, address) in enumerate(addresses):
            # A silent address leaves time for the others.
            seconds = (self.attempt.ends - self._loop.time()) / (len(addresses) - index)
            try:
                await asyncio.wait_for(self._dial_one(family, kind, protocol, address), seconds)
            except asyncio.TimeoutError:
                last = self._late()
            except OSError as error:
                last = error
            else:
                self._check_over()
                return
        raise last or OSError(f"no address for {uri.hostname}")

    async def _dial_one(self, family: int, kind: int, protocol: int, address: Any) -> None:
        """Connect the socket to *address*."""
        self._sock = sock = socket.socket(family, kind, protocol)
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SOCKET_BUFFER)
            # Without the loop, because uvloop would look up the address once more.
            code = sock.connect_ex(address)
            if code in {errno.EINPROGRESS, errno.EWOULDBLOCK}:
                await self._wait_socket(writing=True)
                self._check_over()
                code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if code:
                raise OSError(code, os.strerror(code))
        except BaseException:
            self._sock = None
            sock.close()
            raise

    async def _read_info(self) -> bytes:
        """Check the server's first line and return it as nats-py gets it."""
        attempt = self.attempt
        if self._options_ask_tls and not attempt.secure:
            attempt.hint = "; if it starts TLS at once (handshake_first), use tls_first"
        silent = "the server sent no first line"
        attempt.silence = self._late(silent)
        line = await self._in_time(self._line(), silent)
        attempt.hint, attempt.silence = "", None
        if line.startswith(b"-ERR"):
            raise self._refusal(line)
        if not line.startswith(b"INFO "):
            raise errors.ConnectError(f"not a NATS server: the first line is {line[:40]!r}")
        info, server = self._clean(line)
        self._begin_tls(info, server)
        attempt.info = server
        # An attacker may have written this line, and the client would send the login to the servers
        # that it lists. The pool gets the list after the server has accepted the login.
        attempt.listed = info.pop("connect_urls", [])
        return b"INFO %b\r\n" % json.dumps(info).encode()

    @property
    def _asks_tls(self) -> bool:
        """Whether no connection without TLS may be made."""
        return self._state.had_tls or self._options_ask_tls

    def _begin_tls(self, info: dict[str, Any], server: ServerInfo) -> None:
        """Make nats-py start TLS after INFO if the server or the client asks for it."""
        if self.attempt.secure or not (info["tls_required"] or self._asks_tls):
            return
        if not info["tls_required"] and not server.raw.get("tls_available"):
            raise errors.ConnectError("the server offers no TLS, which this client asks for")
        self._refuse_plaintext()
        # nats-py starts TLS only if the server requires it.
        info["tls_required"] = True

    def _clean(self, line: bytes) -> tuple[dict[str, Any], ServerInfo]:
        """Return the fields of an INFO line for nats-py, and all fields; see ``clean_info``."""
        info, server = clean_info(line, self.attempt.target)
        if self._options.ignore_discovered_servers:
            info.pop("connect_urls", None)
        return info, server

    def _refuse_plaintext(self) -> None:
        """
        Raise if the server has sent anything between its first line and the TLS handshake.

        A server has no reason to do that. An attacker in between could insert commands, which would
        count as the server's (STARTTLS injection).
        """
        if self.attempt.received:
            raise errors.ConnectError("plaintext followed INFO although TLS is required")

    async def _read_pong(self) -> None:
        """Wait until the server has accepted the login, then hand the connection to the lane."""
        attempt = self.attempt
        while (line := await self._in_time(self._line())) != b"PONG\r\n":
            if line.startswith(b"-ERR"):
                raise self._refusal(line)
            if line.startswith(b"INFO "):
                info, attempt.info = self._clean(line)
                attempt.listed = info.get("connect_urls", attempt.listed)
            elif line == b"PING\r\n":
                await self._in_time(self._send(b"PONG\r\n"))
            elif not line.startswith(b"+OK"):
                raise errors.ConnectError(
                    f"the server sent {line[:40]!r} before it accepted the login"
                )
        self._state.had_tls |= attempt.secure
        self._handshaking = False
        self._eof = False
        assert attempt.info is not None
        self._take_info(attempt.info)
        self.next_server.pool.connected(self._loop.time())
        self.next_server.asked = False
        # The servers that are listed in the handshake cause no event.
        self.next_server.pool.announce(attempt.listed)
        sock, received = self._sock, attempt.received
        assert sock is not None
        # The rest of a decrypted record waits inside the object, where poll does not see it.
        while isinstance(sock, ssl.SSLSocket) and sock.pending():
            received += sock.recv(HANDSHAKE_READ)
        self.lane.attach(sock, bytes(received), attempt.info.max_payload)
        received.clear()

    def _refusal(self, line: bytes) -> errors.ConnectError:
        """Return the error for an ``-ERR`` line of the handshake."""
        text, reason = _error_text(line)
        # Only logged: it is not about subscriptions, which this server does not know yet.
        _logger.warning("server_error", text=text, server=self.attempt.target)
        self.attempt.refused = is_refused_login(reason)
        if not self.attempt.refused:
            return errors.ConnectError(reason)
        login = self.attempt.login
        if login is not None:
            reason += f"; the client sent {login.kind}"
        return errors.AuthenticationError(reason)

    async def _with_login(self, block: bytes) -> bytes:
        """Return nats-py's CONNECT line with the login for this server."""
        attempt = self.attempt
        assert attempt.info is not None
        line, newline, rest = block.partition(b"\r\n")
        nonce = attempt.info.raw.get("nonce") or None
        chosen = attempt.chosen
        # Not the newest options: this server may have left the pool, and must not get their login.
        making = self._in_thread(make_login, chosen.options, chosen.url, nonce)
        attempt.login = login = await making
        fields = {**json.loads(line.removeprefix(b"CONNECT ")), **login.fields}
        return b"CONNECT " + json.dumps(fields).encode() + newline + rest

    async def _line(self) -> bytes:
        """Return the next line of the handshake."""
        received, seen = self.attempt.received, 0
        while (end := received.find(b"\n", seen)) < 0:
            seen = len(received)
            if seen > MAX_HANDSHAKE_LINE:
                raise errors.ConnectError("the server sent a line longer than 1 MiB")
            data = await self._step(lambda sock: sock.recv(HANDSHAKE_READ))
            if not data:
                hint = self.attempt.hint
                raise errors.ConnectError(
                    f"the server ended the connection during the handshake{hint}"
                )
            received += data
        line = bytes(received[: end + 1])
        del received[: end + 1]
        return line

    async def _send(self, block: bytes) -> None:
        """Send bytes of the handshake."""
        # If the server has ended the connection, the lines that it sent before say why.
        with contextlib.suppress(OSError):
            while block:
                rest = block
                sent = await self._step(lambda sock: sock.send(rest), writing=True)  # noqa: B023
                block = block[sent:]

    async def _step(self, step: Callable[[socket.socket], T], *, writing: bool = False) -> T:
        """Return the result of *step*, which is repeated until it does not block."""
        while True:
            if self._sock is None:
                self._check_over()
                raise errors.ConnectError("the connection was closed during its handshake")
            try:
                return step(self._sock)
            except BlockingIOError:
                await self._wait_socket(writing=writing)
            except ssl.SSLWantReadError:
                await self._wait_socket(writing=False)
            except ssl.SSLWantWriteError:
                await self._wait_socket(writing=True)

    async def _wait_socket(self, *, writing: bool) -> None:
        """Wait until the socket is readable or writable."""
        assert self._sock is not None
        fd, loop = self._sock.fileno(), self._loop
        ready: asyncio.Future[None] = loop.create_future()
        (loop.add_writer if writing else loop.add_reader)(fd, _set_done, ready)
        remove = loop.remove_writer if writing else loop.remove_reader
        self._watch = watch = (remove, fd, ready)
        try:
            await ready
        finally:
            if self._watch is watch:
                self._unwatch()

    def _unwatch(self) -> None:
        """Stop watching the socket of a handshake: a loop must not watch a closed one."""
        if self._watch is not None:
            (remove, fd, ready), self._watch = self._watch, None
            remove(fd)
            _set_done(ready)

    def _on_control(self, line: bytes) -> None:
        """Handle a control line and pass it to nats-py. Empty bytes mean the end of the stream."""
        lane = self.lane
        if not line:
            self._eof = True
            if lane.fault is not None:
                self.attempt.server_error = lane.fault
                self._state.on_error(lane.fault)
        elif line.startswith(b"INFO "):
            try:
                info, server = self._clean(line)
            except errors.ProtocolError as error:
                self._state.on_error(error)
                return
            self._take_info(server)
            if server.lame_duck:
                self._state.on_lame_duck()
            new = self.next_server.pool.announce(info.get("connect_urls", []))
            if new:
                self._state.on_discovered(tuple(map(redact_url, new)))
        elif line.startswith(b"-ERR"):
            # nats-py would close the client because of this line, even if the server keeps the
            # connection.
            text, reason = _error_text(line)
            if ends_connection(reason):
                self.attempt.server_error = errors.ConnectError(reason)
            self._state.on_server_error(text)
        elif line in {PING, PONG}:
            # One answer suffices. A flood must not fill the memory faster than nats-py reads.
            if line not in self._inbound:
                self._inbound += line
        elif not line.startswith(b"+OK"):
            lane.fault = errors.ProtocolError(f"the server sent an unknown command: {line[:40]!r}")
            lane.abort()
        self._wake()

    def _take_info(self, info: ServerInfo) -> None:
        self.next_server.info = info
        self._state.on_info(info)

    def _wake(self) -> None:
        if self._arrival is not None:
            _set_done(self._arrival)


@contextlib.contextmanager
def as_os_error() -> Iterator[None]:
    """
    Raise every failure of an attempt to connect as an OSError; ConnectError is one.

    After an OSError, nats-py makes the next attempt. Other errors would end its reconnects.
    """
    try:
        yield
    except OSError as error:
        reason = tls_reason(error)
        if reason is not None:
            raise errors.ConnectError(reason) from error
        raise
    except (errors.ProtocolError, errors.ConfigurationError) as error:
        raise errors.ConnectError(str(error)) from error
    except Exception as error:
        _logger.exception("reconnect_failed")
        raise errors.ConnectError(f"unexpected {type(error).__name__}") from error


def _error_text(line: bytes) -> tuple[str, str]:
    """Return the text of an ``-ERR`` line, and the reason in it."""
    text = line.decode("utf-8", "replace").strip()
    return text, text.removeprefix("-ERR").strip().strip("'")


def _set_done(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
