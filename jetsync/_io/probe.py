"""
Find out whether a server that is silent has gone.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Final

from jetsync._base.deadline import NO_WAIT
from jetsync._base.log import get_logger
from jetsync._io.outbox import PING, LaneState
from jetsync._io.replies import Waiter
from jetsync.errors import TransportError

if TYPE_CHECKING:
    from jetsync._io.lane import Lane
    from jetsync.options import ConnectOptions

# Seconds to wait for any data after each PING: much longer than a round trip. If the server was
# only slow, the price is a reconnect.
PING_WAIT: Final = 1.0

_logger = get_logger("jetsync.connection")


class Probe:
    """
    Sends PINGs, and ends the connection if nothing arrives.

    A probe begins every ``ping_interval`` seconds, whatever the threads of the application wait
    for, and at once when an answer is late. It sends a PING each :data:`PING_WAIT` seconds, or each
    ``ping_interval`` if that is shorter. It ends the connection when ``max_outstanding_pings`` of
    them have no answer and nothing else has arrived. nats-py's own pings would take
    ``max_outstanding_pings`` + 1 intervals.

    Threads: any thread calls :meth:`begin`, and the loop thread the rest.
    Locks: none.
    """

    def __init__(self, options: ConnectOptions) -> None:
        self._interval = options.ping_interval
        self._most = options.max_outstanding_pings
        # When the last probe began, on the monotonic clock.
        self._began = 0.0

    @property
    def _wait(self) -> float:
        """Seconds between two PINGs of a probe."""
        return min(PING_WAIT, self._interval)

    def watch(self, lane: Lane, server: str | None) -> None:
        """Probe the connection that has just opened, every ``ping_interval`` seconds."""
        lane.later(self._interval, self._tick, lane, server, lane.epoch)

    def _tick(self, lane: Lane, server: str | None, epoch: int) -> None:
        if lane.epoch == epoch and lane.state is LaneState.OPEN:
            self.begin(lane, server)
            lane.later(self._interval, self._tick, lane, server, epoch)

    def begin(self, lane: Lane, server: str | None) -> None:
        """
        Check whether *server* still answers.

        Returns at once. Repeated calls are cheap.
        """
        now = time.monotonic()
        if now - self._began > self._most * self._wait:
            self._began = now
            lane.later(0.0, self._start, lane, server)

    def _start(self, lane: Lane, server: str | None) -> None:
        """Send the first PING of a probe."""
        if lane.state is not LaneState.OPEN:
            return
        # Before the write: a thread that reads may get the PONG before `write` returns. And the
        # PING itself is no upload that makes progress.
        bytes_in, sent = lane.bytes_in, lane.outbox.bytes_out + lane.outbox.size
        self._send(lane, server, (lane.epoch, bytes_in, sent, lane.delivered()), 0)

    def _send(
        self, lane: Lane, server: str | None, before: tuple[int, int, int, int], pings: int
    ) -> None:
        """Send a PING after *pings* others, and check later whether data has arrived."""
        # If there is no room for the PING, the bytes before it get no answer either.
        with contextlib.suppress(TransportError):
            lane.write(PING, NO_WAIT, before[0], pong=Waiter(b"PING"))
        lane.later(self._wait, self._check, lane, server, before, pings + 1)

    def _check(
        self, lane: Lane, server: str | None, before: tuple[int, int, int, int], pings: int
    ) -> None:
        """Continue the probe if nothing has arrived, and end the connection after its last PING."""
        epoch, bytes_in, sent, delivered = before
        if lane.epoch != epoch or lane.bytes_in != bytes_in or lane.reader.has_input():
            return
        progress = lane.delivered()
        if delivered < sent and progress > delivered:
            # A long upload before the PING still makes progress. Later writes do not count.
            before = epoch, bytes_in, sent, progress
            lane.later(self._wait, self._check, lane, server, before, pings)
        elif pings < self._most:
            self._send(lane, server, before, pings)
        else:
            _logger.warning("silent", server=server, seconds=round(pings * self._wait, 3))
            lane.abort()
