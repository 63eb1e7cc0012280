"""
The server pool: which server a client tries next, and when.

After a loss, all clients of a server notice it at the same moment. So the first attempt waits for a
random time, up to ``jitter`` seconds, and the server that was lost is tried last. After each failed
attempt, the wait for that server and its jitter double, each up to ``longest`` seconds. With the
default options, 500 clients of one server made at most 48 attempts within any 100 ms in 200
simulated losses, and a third as many in the second ten seconds as in the first. A jitter of 1.5 s
led to 57 attempts within 100 ms.

During the first connect, each server has the same wait, because the caller limits the time.

ADR-40, "Reconnection Strategies".
"""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import attrs

from jetsync.values.server_info import PoolServer
from jetsync.values.server_urls import address, without_login

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

# Doublings after which a wait no longer grows, so that it stays a number.
MOST_DOUBLINGS: Final = 60


@attrs.frozen(kw_only=True)
class Waits:
    """
    The times between attempts to connect, in seconds.
    """

    # After the first failure, and at most.
    first: float
    longest: float
    # The most that is added at random.
    jitter: float


@attrs.define(eq=False)
class Server:
    """
    One server, and its attempts since the last connection.
    """

    # Without a login.
    url: str
    is_discovered: bool = False
    attempts: int = 0
    # The moment before which it is not tried again.
    due: float = 0.0
    # The host that its certificate may name in place of its own, which is an IP address.
    tls_name: str | None = None
    # The options with its login: those that name it, or the server that has announced it.
    options: Any = attrs.field(default=None, repr=False)

    @property
    def public(self) -> PoolServer:
        """The server as programs see it."""
        return PoolServer(url=self.url, attempts=self.attempts, is_discovered=self.is_discovered)


class ServerPool:
    """
    The servers of a client.

    Args:
        urls: The servers of the options.
        waits: The times between attempts.
        most: Attempts for each server after a loss; less than 1 means any number.
        uniform: Returns a random number between two others.
        options: The options with the logins of the servers.
    """

    def __init__(
        self,
        urls: Iterable[str],
        waits: Waits,
        most: int,
        uniform: Callable[[float, float], float],
        options: Any = None,
    ) -> None:
        self._waits = waits
        self._most = most
        self._uniform = uniform
        # In the order in which they are tried. Only `replace` assigns it, which runs in any thread.
        # The rest changes the list that it has read once, in one step.
        self._servers = [Server(without_login(url), options=options) for url in urls]
        self._shuffle(None)
        # The server that is tried now, or that the client is connected to.
        self._current: Server | None = None
        self._is_up = False
        # No attempt begins before this moment.
        self._start = 0.0
        self.has_connected: bool = False

    @property
    def servers(self) -> tuple[Server, ...]:
        """All servers."""
        return tuple(self._servers)

    @property
    def eligible(self) -> list[Server]:
        """The servers that may be tried."""
        limited = self.has_connected and self._most > 0
        return [one for one in self.servers if not limited or one.attempts < self._most]

    def next_server(self, now: float) -> tuple[Server, float] | None:
        """Return the server to try next, and when; None if each has had all its attempts."""
        eligible = self.eligible
        if not eligible:
            return None
        # Of those that are due, the first in the list.
        server = min(eligible, key=lambda one: max(one.due, self._start, now))
        return server, self.when(server)

    def when(self, server: Server) -> float:
        """Return the moment from which a server may be tried."""
        return max(server.due, self._start)

    def find_server(self, url: str) -> Server | None:
        """Return the server with this URL, if it may be tried."""
        return next((one for one in self.eligible if one.url == url), None)

    def begin(self, server: Server) -> bool:
        """Note that an attempt begins; return False if the server has left the pool."""
        servers = self._servers
        if server not in servers:
            return False
        servers[:] = [one for one in servers if one is not server] + [server]
        server.attempts += 1
        self._current = server
        return True

    def connected(self, now: float) -> None:
        """Note that the attempt has succeeded."""
        self._is_up = self.has_connected = True
        for server in self.servers:
            server.attempts = 0
        if self._current is not None:
            # Also if the server accepts each connection and then ends it.
            self._current.due = now + self._waits.first

    def ended(self, now: float, *, asked: bool) -> None:
        """
        Note that the connection was lost, or that the attempt has failed, if there was one.

        Args:
            now: The time.
            asked: Whether the program asked for another connection, which then begins at once.
        """
        server = self._current
        if server is None:
            return
        if not self._is_up:
            server.due = now + self._wait(server.attempts)
            return
        self._is_up = False
        self._start = now if asked else now + self._uniform(0.0, self._waits.jitter)
        self._shuffle(server)

    def announce(self, addresses: Iterable[str]) -> list[str]:
        """Add the servers that the current one has announced; return the URLs of new ones."""
        if self._current is None:
            return []
        servers, current = self._servers, urlsplit(self._current.url)
        known = {address(one.url) for one in servers}
        new = []
        for one in dict.fromkeys(addresses):
            if one not in known:
                server = Server(
                    f"{current.scheme}://{one}", is_discovered=True, options=self._current.options
                )
                if _is_ip(urlsplit(server.url).hostname):
                    server.tls_name = self._current.tls_name or current.hostname
                servers.append(server)
                new.append(server.url)
        return new

    def replace(self, urls: Sequence[str], options: Any = None) -> None:
        """Use these servers from the next attempt on; any thread. Those that stay keep waiting."""
        old = {one.url: one for one in list(self._servers)}
        servers = []
        for url in map(without_login, urls):
            server = old.get(url, Server(url))
            server.is_discovered, server.options = False, options
            servers.append(server)
        self._servers = servers

    def _wait(self, attempts: int) -> float:
        """Return how long a server is left alone after its last failures."""
        waits = self._waits
        if not self.has_connected:
            return waits.first
        growth = 2.0 ** min(attempts - 1, MOST_DOUBLINGS)
        wait, jitter = (
            min(seconds * growth, max(waits.longest, seconds))
            for seconds in (waits.first, waits.jitter)
        )
        return wait + self._uniform(0.0, jitter)

    def _shuffle(self, last: Server | None) -> None:
        servers = self._servers
        servers[:] = sorted(servers, key=lambda one: (one is last, self._uniform(0.0, 1.0)))


def _is_ip(host: str | None) -> bool:
    try:
        ipaddress.ip_address(host or "")
    except ValueError:
        return False
    return True
