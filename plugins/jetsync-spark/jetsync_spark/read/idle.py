"""
Decide when an idle streaming query asks for its streams again.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import jetsync
from jetsync_spark.common.clients import context_of, lend
from jetsync_spark.common.errors import JetStreamSparkError
from jetsync_spark.read.arrivals import Arrivals
from jetsync_spark.read.planner import DISCOVER

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jetsync_spark.common.options import ConnectSettings
    from jetsync_spark.read.options import ReadOptions
    from jetsync_spark.read.planning import Awaited
    from jetsync_spark.read.states import StreamStates

__all__ = ["IdleQuery"]

WAIT: Final = 0.2
"""
Seconds for which latestOffset waits for new messages. Without a wait, Spark asks about ninety times
a second. Other sources of the query have to wait too, so it cannot be much longer.
"""

POLLING: Final = 1.0
"""Maximum seconds between two requests of an idle query that cannot wait by consumers."""

CHECK: Final = 30.0
"""
Seconds between two requests of an idle query if consumers wait for new messages. It also makes them
if a consumer is lost, and if it looks for new streams.
"""

AT_ONCE: Final = 1.0
"""Maximum seconds between two questions of Spark for which the second one waits."""


class IdleQuery:
    """
    Waits for new messages while a query has nothing to read. Not thread-safe.

    Args:
        settings: How to connect.
        connection: The name of the connection.
        options: The streams, and the subjects of the messages.
        states: Knows the streams.
    """

    def __init__(
        self, settings: ConnectSettings, connection: str, options: ReadOptions, states: StreamStates
    ) -> None:
        self._settings = settings
        self._connection = connection
        self._states = states
        self._finds_streams = bool(options.patterns)
        self._arrivals = Arrivals(options.subject_filter)
        self._since: float | None = None
        """When there were no new messages. None after a batch."""

        self._asked_at = 0.0
        """When Spark asked last."""

        self._requested_at = 0.0
        """When the streams were requested last."""

        self._wanted: Awaited | None = None
        """What to wait for. None if other changes matter too."""

        self._woken: Awaited | None = None
        """What was expected when a message ended the last wait."""

    def asked(self) -> None:
        """
        Note that Spark's question is answered.
        """
        self._asked_at = time.monotonic()

    def requested(self) -> None:
        """
        Note that the streams were requested.
        """
        self._requested_at = time.monotonic()

    def ends(self) -> None:
        """
        Note that the query reads a batch.
        """
        self._since = self._wanted = self._woken = None

    def expects(self, wanted: Awaited | None) -> None:
        """
        Note that there is no batch.

        Args:
            wanted: What to wait for. None if other changes matter too.
        """
        if self._since is None:
            self._since = time.monotonic()
        # A message that changed nothing would be found again at once.
        self._wanted = None if wanted == self._woken else wanted
        self._woken = None

    def may_have_news(self) -> bool:
        """
        Return whether to request the streams. If the query is idle, wait for new messages first.

        Spark asks one source after the other, so the first question after a batch does not wait.
        Nor does it wait if Spark asks rarely.
        """
        now = time.monotonic()
        if self._since is None or now > self._asked_at + AT_ONCE:
            return True
        wanted = self._wanted
        if wanted is not None:
            if wanted.until is not None and now >= wanted.until:
                return True
            found = self._arrives(wanted.messages)
            self._woken = wanted if found else None
            if found is not None:
                if found and wanted.until is not None:
                    # A batch needs more than one message, so not each of them is worth a request.
                    self._sleep_until(self._requested_at + WAIT)
                check = min(CHECK, DISCOVER) if self._finds_streams else CHECK
                return found or time.monotonic() >= self._requested_at + check
            # The longer the query is idle, the less often it polls.
            pause = min(POLLING, max(WAIT, (now - self._since) / 10))
        else:
            pause = WAIT
        due = self._requested_at + pause
        self._sleep_until(due)
        return time.monotonic() >= due

    @staticmethod
    def _sleep_until(due: float) -> None:
        time.sleep(min(WAIT, max(0.0, due - time.monotonic())))

    def _arrives(self, wanted: Mapping[str, int]) -> bool | None:
        """Wait for a message from these sequences on. Return None, at once, if that fails."""
        try:
            with lend(self._settings, self._connection) as client:
                js = context_of(self._settings, client)
                return self._arrivals.wait(
                    client, wanted, WAIT, lambda name: self._states.handle(js, name)
                )
        except (JetStreamSparkError, jetsync.JetSyncError):
            # The next request retries.
            return True
