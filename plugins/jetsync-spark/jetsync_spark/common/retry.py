"""
Going on while servers are away: which errors pass by themselves, and for how long to wait.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, TypeVar

import jetsync
from jetsync_spark.common.errors import BehindError, JetStreamSparkError, explain

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["PASSING", "Patience", "patiently"]

T = TypeVar("T")

PASSING: Final = (
    BehindError,
    jetsync.BatchIncompleteError,
    jetsync.ConnectionLostError,
    jetsync.ConnectError,
    jetsync.DisconnectedError,
    jetsync.NoRespondersError,
    jetsync.NoStreamResponseError,
    jetsync.PublishOutcomeUnknownError,
    jetsync.RequestTimeoutError,
    jetsync.TemporarilyUnavailableError,
    jetsync.TooManyInflightError,
    jetsync.TooManyRequestsError,
)
"""
Errors of servers that restart, of streams that have no leader, of replicas that are behind, and of
too much at once. Of a batch nothing is stored after them, but that the outcome may be unknown.
"""

_LONGEST: Final = 2.0
"""Seconds between two tries at most."""

STARTING: Final = 3.0
"""Seconds for which a server may say that it has no JetStream: so it does while it starts."""

PAUSE: Final = 0.1
"""Seconds before a server that starts is asked again."""

_logger = jetsync.get_logger("jetsync.spark.patience")


class Patience:
    """
    The time for which one task goes on trying; begins anew with each success.

    Not synchronised.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._until: float | None = None
        self._wait = 0.05

    def went_well(self) -> None:
        """
        Note that something went well.
        """
        self._until = None
        self._wait = 0.05

    def bear(self, error: Exception) -> bool:
        """
        Wait a little and return whether to try again; not after errors that do not pass.
        """
        if not isinstance(error, PASSING) or isinstance(error, jetsync.AuthenticationError):
            return False
        now = time.monotonic()
        if self._until is None:
            self._until = now + self._seconds
        if now + self._wait >= self._until:
            return False
        _logger.warning("trying_again", seconds=round(self._wait, 3), error=str(error))
        time.sleep(self._wait)
        self._wait = min(self._wait * 2, _LONGEST)
        return True

    def keep_trying(self, call: Callable[[], T], doing: str, stream: str | None = None) -> T:
        """
        Return what *call* returns, made again after errors that pass.

        The call may connect too: an error of :func:`~jetsync_spark.common.clients.lend` is retried
        if its cause is temporary.

        Raises:
            JetStreamSparkError: it failed for another reason, or for too long.
        """
        while True:
            try:
                return call()
            except JetStreamSparkError as error:
                if not isinstance(error.__cause__, Exception) or not self.bear(error.__cause__):
                    raise
            except jetsync.JetSyncError as error:
                if not self.bear(error):
                    raise explain(error, doing, stream=stream) from error


def patiently(call: Callable[[], T], seconds: float, doing: str, stream: str) -> T:
    """
    Return what *call* returns, made again for so many seconds while servers are away or start.

    Raises: as :meth:`Patience.keep_trying`.
    """
    starting = time.monotonic() + min(seconds, STARTING)

    def started() -> T:
        while True:
            try:
                return call()
            except jetsync.JetStreamNotEnabledError:
                if time.monotonic() > starting:
                    raise
            time.sleep(PAUSE)

    return Patience(seconds).keep_trying(started, doing, stream)
