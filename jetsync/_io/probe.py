"""
Find out whether a server that is silent has gone.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Final

from jetsync._base.deadline import Deadline
from jetsync._base.log import get_logger
from jetsync._io.outbox import PING, LaneState
from jetsync._io.replies import Waiter
from jetsync.errors import TransportError

if TYPE_CHECKING:
    from jetsync._io.lane import Lane

# Seconds to wait for any data after an ack or a heartbeat is late: much longer than a round trip,
# and much shorter than ``ping_interval``. If the server was only slow, the price is a reconnect.
PROBE_TIMEOUT: Final = 2.0

_logger = get_logger("jetsync.connection")


class Probe:
    """
    Sends a PING, and ends the connection if nothing arrives within :data:`PROBE_TIMEOUT` seconds.

    Threads: any thread calls :meth:`begin`, and the loop thread the rest.
    Locks: none.
    """

    def __init__(self) -> None:
        # When the last probe began, on the monotonic clock.
        self._began = 0.0

    def begin(self, lane: Lane, server: str | None) -> None:
        """
        Check whether *server* still answers, because an ack or a heartbeat is late.

        Returns at once. Repeated calls are cheap.
        """
        now = time.monotonic()
        if now - self._began > PROBE_TIMEOUT:
            self._began = now
            lane.later(0.0, self._send, lane, server)

    def _send(self, lane: Lane, server: str | None) -> None:
        """Send a PING and check after :data:`PROBE_TIMEOUT` seconds whether data has arrived."""
        if lane.state is not LaneState.OPEN:
            return
        # Before the write: a thread that reads may get the PONG before `write` returns.
        bytes_in = lane.bytes_in
        # If there is no room for the PING, the bytes before it get no answer either.
        with contextlib.suppress(TransportError):
            lane.write(PING, Deadline.after(0.0), pong=Waiter(b"PING"))
        sent = lane.outbox.bytes_out
        before = lane.epoch, bytes_in, sent, lane.delivered()
        lane.later(PROBE_TIMEOUT, self._end, lane, server, before)

    def _end(self, lane: Lane, server: str | None, before: tuple[int, int, int, int]) -> None:
        """End the connection if nothing has arrived on it and no upload makes progress."""
        epoch, bytes_in, sent, delivered = before
        if lane.epoch != epoch or lane.bytes_in != bytes_in or lane.has_input():
            return
        progress = lane.delivered()
        if delivered < sent and progress > delivered:
            # A long upload before the PING still makes progress. Later writes do not count.
            before = epoch, bytes_in, sent, progress
            lane.later(PROBE_TIMEOUT, self._end, lane, server, before)
            return
        _logger.warning("silent", server=server, seconds=PROBE_TIMEOUT)
        lane.abort()
