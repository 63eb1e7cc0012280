"""
Retries while servers are unavailable: which errors are temporary, and how long to wait.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, TypeVar

import jetsync
from jetsync_spark.common.clients import context_of, lend
from jetsync_spark.common.errors import BehindError, JetStreamSparkError, explain

if TYPE_CHECKING:
    from collections.abc import Callable

    from jetsync_spark.common.clients import Settings

__all__ = ["TEMPORARY", "Retry", "ask_with_retry", "retry_with_client"]

T = TypeVar("T")

TEMPORARY: Final = (
    BehindError,
    jetsync.BatchIncompleteError,
    jetsync.ConnectionLostError,
    jetsync.ConnectError,
    jetsync.ConsumerUnavailableError,
    jetsync.DisconnectedError,
    jetsync.NoRespondersError,
    jetsync.NoStreamResponseError,
    jetsync.PublishOutcomeUnknownError,
    jetsync.RequestTimeoutError,
    jetsync.SubjectCheckUnavailableError,
    jetsync.TemporarilyUnavailableError,
    jetsync.TooManyInflightError,
    jetsync.TooManyRequestsError,
)
"""
Errors that occur while servers restart, streams have no leader, replicas lag, or limits are
exceeded for a moment. Nothing of a batch is stored after them, unless the outcome is unknown.
"""

_LONGEST: Final = 2.0
"""Maximum seconds between two attempts."""

STARTING: Final = 3.0
"""Seconds for which a starting server may answer that it has no JetStream."""

_logger = jetsync.get_logger("jetsync.spark.retry")


class Retry:
    """
    The retries of one task. The time limit restarts after each success.

    Not thread-safe.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._since: float | None = None
        self._wait = 0.05

    def reset(self) -> None:
        """
        Restart the time limit after a success.
        """
        self._since = None
        self._wait = 0.05

    def wait_after(self, error: Exception) -> bool:
        """
        Wait before the next attempt. Return False if the error is permanent or the time is over.
        """
        seconds = self._seconds
        if isinstance(error, jetsync.JetStreamNotEnabledError):
            seconds = min(seconds, STARTING)
        elif not isinstance(error, TEMPORARY) or isinstance(error, jetsync.AuthenticationError):
            return False
        now = time.monotonic()
        if self._since is None:
            self._since = now
        if now + self._wait >= self._since + seconds:
            return False
        _logger.warning("trying_again", seconds=round(self._wait, 3), error=str(error))
        time.sleep(self._wait)
        self._wait = min(self._wait * 2, _LONGEST)
        return True

    def call(self, call: Callable[[], T], doing: str, stream: str | None = None) -> T:
        """
        Return what *call* returns. Retry it after temporary errors.

        The call may connect too: an error of :func:`~jetsync_spark.common.clients.lend` is retried
        if its cause is temporary.

        Raises:
            JetStreamSparkError: The error is permanent, or the time is over.
        """
        while True:
            try:
                return call()
            except JetStreamSparkError as error:
                if not isinstance(error.__cause__, Exception) or not self.wait_after(
                    error.__cause__
                ):
                    raise
            except jetsync.JetSyncError as error:
                if not self.wait_after(error):
                    raise explain(error, doing, stream=stream) from error


def retry_with_client(  # noqa: PLR0917 - as Retry.call, after the client.
    settings: Settings,
    name: str,
    call: Callable[[jetsync.Client], T],
    seconds: float,
    doing: str,
    stream: str | None = None,
    *,
    keep: bool = True,
) -> T:
    """
    Return what *call* returns for this process's client, as :meth:`Retry.call`.

    Args:
        settings: How to connect.
        name: The connection's name on the server.
        call: What to do with the client. Each attempt may get another one.
        seconds: How long to retry.
        doing: What the error says has failed.
        stream: The stream that the error names.
        keep: Whether the connection stays open, as for :func:`lend`.
    """

    def connected() -> T:
        with lend(settings, name, keep=keep) as client:
            return call(client)

    return Retry(seconds).call(connected, doing, stream)


def ask_with_retry(  # noqa: PLR0917 - as above.
    settings: Settings,
    name: str,
    call: Callable[[jetsync.JetStream], T],
    seconds: float,
    doing: str,
    stream: str | None = None,
    *,
    keep: bool = True,
) -> T:
    """
    Return what *call* returns for a JetStream context, as :func:`retry_with_client`.

    *call* gets the same context until the process connects again.
    """

    def ask(client: jetsync.Client) -> T:
        return call(context_of(settings, client))

    return retry_with_client(settings, name, ask, seconds, doing, stream, keep=keep)
