"""
Retries while servers are unavailable: which errors are temporary, and how long to wait.

Every connection and every request of the package goes through :class:`Retry`, on the driver and in
tasks, with the option ``retryTimeoutMs``. The exceptions are ``progress`` and requests whose
failure stops nothing, such as those of an idle query.
"""

from __future__ import annotations

import contextlib
import ssl
import time
from typing import TYPE_CHECKING, Final, TypeVar

import jetsync
from jetsync_spark.common.clients import context_of, lend
from jetsync_spark.common.errors import BehindError, JetStreamSparkError, explain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from jetsync_spark.common.clients import Settings

__all__ = ["Retry", "ask_with_retry", "is_temporary", "lend_with_retry", "retry_with_client"]

T = TypeVar("T")

_TEMPORARY: Final = (
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
    jetsync.WaitTimeoutError,
)
"""
Errors that occur while servers restart, streams have no leader, replicas lag, or limits are
exceeded for a moment. Nothing of a batch is stored after them, unless the outcome is unknown.
"""

_OFFLINE: Final = frozenset({10118, 10119})
"""
The answers of a cluster's leader while all servers that have a stream or a consumer are away.
"""

_BROKEN_OFF: Final = (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError)
"""Errors of TLS if the server ends the connection, perhaps because it stops."""

_REFUSALS: Final = ("not a NATS server", "the server offers no TLS")
"""How reasons begin if a server answers and will not answer differently. They have no class."""

_LONGEST: Final = 2.0
"""Maximum seconds between two attempts."""

STARTING: Final = 3.0
"""Seconds for which a starting server may answer that it has no JetStream."""

# Not below "jetsync", which has a null handler. In Spark's workers nobody configures logging, and
# Python then writes warnings to the standard error, which Spark keeps.
_logger = jetsync.get_logger("jetsync_spark.retry")


def is_temporary(error: BaseException | None) -> bool:
    """
    Return whether a later attempt may succeed, because servers are away, busy or without a leader.
    """
    if isinstance(error, jetsync.ResetAttemptsExceededError):
        return is_temporary(error.__cause__)
    if isinstance(error, jetsync.ConnectError):
        return not (isinstance(error, jetsync.AuthenticationError) or _is_refusal(error))
    if isinstance(error, jetsync.JetStreamNotEnabledError):
        # Servers without JetStream, such as leaf nodes, may stand before those that are away.
        return isinstance(error.__cause__, jetsync.NoRespondersError)
    if isinstance(error, jetsync.ApiError) and error.err_code in _OFFLINE:
        return True
    return isinstance(error, _TEMPORARY)


def _is_refusal(error: jetsync.ConnectError) -> bool:
    """Return whether a server answers, and refuses any connection with these options."""
    cause = error.__cause__
    if isinstance(cause, ssl.SSLError):
        return not isinstance(cause, _BROKEN_OFF)
    return error.reason.startswith(_REFUSALS)


class Retry:
    """
    The retries of one task or plan. The time limit begins with the first error after a success.

    Not thread-safe.

    Args:
        seconds: The time limit.
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
        if not is_temporary(error):
            if not isinstance(error, jetsync.JetStreamNotEnabledError):
                return False
            seconds = min(seconds, STARTING)
        now = time.monotonic()
        is_first = self._since is None
        if self._since is None:
            self._since = now
        left = self._since + seconds - now
        if left <= 0:
            return False
        # The last attempt is at the end of the time.
        wait = min(self._wait, left)
        if is_first:
            _logger.warning("waiting_for_servers", at_most=seconds, error=str(error))
        else:
            _logger.info("trying_again", seconds=round(wait, 3), error=str(error))
        time.sleep(wait)
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


@contextlib.contextmanager
def lend_with_retry(settings: Settings, name: str, retry: Retry) -> Iterator[jetsync.Client]:
    """
    Lend this process's client to a task, as :func:`lend`. Wait for unavailable servers first.

    Args:
        settings: How to connect.
        name: The connection's name on the server.
        retry: The retries of the task.

    Raises:
        JetStreamSparkError: The connection failed.
    """
    with contextlib.ExitStack() as stack:
        client = retry.call(lambda: stack.enter_context(lend(settings, name)), "connecting failed")
        retry.reset()
        yield client


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
