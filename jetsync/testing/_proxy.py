"""
A TCP proxy on loopback that breaks connections on purpose.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from jetsync._base.reprs import tolerant_repr
from jetsync.testing._forwarder import DIRECTIONS, Direction, Forwarder, ProxyStatistics

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Self


@tolerant_repr
class CutProxy:
    """
    Forward connections to a server, and cut, pause or delay them on request.

    The proxy listens on `url` once you enter its ``with`` block or call `start`. The servers of a
    cluster send their addresses to their clients. Configure ``no_advertise`` on these servers,
    because clients would otherwise bypass the proxy when they reconnect. Any thread may call the
    methods.

    Args:
        target: The server's URL or port. If there are several URLs, the first is used.
    """

    def __init__(self, target: str | int) -> None:
        if isinstance(target, int):
            address = ("127.0.0.1", target)
        else:
            parts = urlsplit(target.split(",")[0])
            address = (parts.hostname or "127.0.0.1", parts.port or 4222)
        self._forwarder = Forwarder(address)

    @property
    def port(self) -> int:
        """
        The port that the proxy listens on. `refuse` and `accept` do not change it.
        """
        return self._forwarder.reservation.port

    @property
    def url(self) -> str:
        """
        The URL to connect to.
        """
        return f"nats://127.0.0.1:{self.port}"

    def statistics(self) -> ProxyStatistics:
        """
        Return the counters. They include all bytes that the server or a client has received so far.
        """
        forwarder = self._forwarder
        return forwarder.do(forwarder.count) if forwarder.running else forwarder.count()

    def __repr__(self) -> str:
        s = self._forwarder.count()
        return f"<CutProxy {self.url} open={s.open} accepted={s.accepted} cuts={s.cuts}>"

    def start(self) -> None:
        """
        Listen and forward. Does nothing if the proxy is already running.
        """
        self._forwarder.start()

    def close(self) -> None:
        """
        Close all connections and stop for good. Further calls do nothing.
        """
        self._forwarder.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    # -- faults -----------------------------------------------------------------------------------

    def cut(self, *, reset: bool = False) -> int:
        """
        Close all open connections now, in both directions. The proxy still accepts new connections.

        Args:
            reset: Send RST instead of an end of stream. Both sides then lose data that they have
                not read yet.

        Returns:
            How many connections were cut.
        """
        return self._forwarder.do(lambda: self._forwarder.cut(reset=reset))

    def cut_after(
        self, *, to_server: int | None = None, to_client: int | None = None, reset: bool = False
    ) -> None:
        """
        Cut one connection after a number of further bytes in either direction.

        Exactly that many bytes pass. Then the proxy closes the connection that carried the last
        one. If both numbers are given, the first that is reached applies. With 0, the proxy cuts
        the connection instead of forwarding the next byte. A later call replaces this one, and a
        call without arguments cancels it.

        Args:
            to_server: Bytes from the client to the server, over all connections.
            to_client: Bytes from the server to the client, over all connections.
            reset: As for `cut`.
        """
        asked: dict[Direction, int | None] = {"to_server": to_server, "to_client": to_client}
        budget = {way: count for way, count in asked.items() if count is not None}
        self._forwarder.do(lambda: self._forwarder.arm(budget, reset=reset))

    def pause(self, direction: Direction | None = None) -> None:
        """
        Stop forwarding in one direction or both.

        Connections stay open, and senders get back-pressure.
        """
        self._forwarder.do(
            lambda: self._forwarder.paused.update(DIRECTIONS if direction is None else [direction])
        )

    def resume(self, direction: Direction | None = None) -> None:
        """
        Forward again in one direction or both.
        """
        ways = DIRECTIONS if direction is None else [direction]
        self._forwarder.do(lambda: self._forwarder.paused.difference_update(ways))

    def freeze(self) -> int:
        """
        Stop forwarding on the connections that are open now, in both directions.

        These connections stay open, as when the network fails. New connections work.

        Returns:
            How many connections were frozen.
        """
        return self._forwarder.do(self._forwarder.freeze)

    def delay(self, seconds: float, direction: Direction | None = None) -> None:
        """
        Delay every byte in one direction or both. The order stays the same. 0 ends the delay.
        """
        ways = DIRECTIONS if direction is None else [direction]
        self._forwarder.do(lambda: self._forwarder.delay.update(dict.fromkeys(ways, seconds)))

    def refuse(self) -> None:
        """
        Refuse new connections. Open connections continue.
        """
        self._forwarder.do(self._forwarder.refuse)

    def accept(self) -> None:
        """
        Accept new connections again.
        """
        self._forwarder.do(self._forwarder.listen)

    def wait_cuts(self, count: int, *, timeout: float = 10.0) -> bool:
        """
        Wait until *count* connections have been cut since the start.

        Args:
            count: How many.
            timeout: Seconds.

        Returns:
            Whether the number was reached in time.
        """
        return self._wait(lambda: self._forwarder.cuts >= count, timeout)

    def wait_accepted(self, count: int, *, timeout: float = 10.0) -> bool:
        """
        Wait until *count* connections have been accepted since the start.

        Args:
            count: How many.
            timeout: Seconds.

        Returns:
            Whether the number was reached in time.
        """
        return self._wait(lambda: self._forwarder.accepted >= count, timeout)

    def wait_open(self, count: int = 1, *, timeout: float = 10.0) -> bool:
        """
        Wait until *count* connections are open now.

        Args:
            count: How many.
            timeout: Seconds.

        Returns:
            Whether the number was reached in time.
        """
        return self._wait(lambda: self._forwarder.open >= count, timeout)

    def _wait(self, reached: Callable[[], bool], timeout: float) -> bool:
        with self._forwarder.lock:
            return self._forwarder.changed.wait_for(reached, timeout)
