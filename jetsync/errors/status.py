"""
Status lines that end a pull or a direct get.
"""

from __future__ import annotations

import re as _re
import typing as _t

from jetsync.errors.base import JetSyncError
from jetsync.errors.texts import trailing_number as _trailing_number


class StatusError(JetSyncError):
    """
    A status line of the server ended a pull or a direct get.

    A *status line* is an answer with a code, such as 404, in place of messages. If jetsync
    detected the failure itself, ``code`` is the one that a server would send, or 0 if there is
    none.
    """

    _usual: _t.ClassVar[tuple[int, str]] = (0, "fault")

    def __init__(
        self,
        *,
        code: int | None = None,
        description: str | None = None,
        consumer: str | None = None,
        stream: str | None = None,
    ) -> None:
        self.code: int = self._usual[0] if code is None else code
        self.description: str = self._usual[1] if description is None else description
        self.consumer = consumer
        self.stream = stream
        shown = self.description or self._usual[1]
        text = f"{self.code} {shown}" if self.code else shown
        where = [f"stream {stream!r}"] if stream is not None else []
        where += [f"consumer {consumer!r}"] if consumer is not None else []
        super().__init__(f"{text} ({', '.join(where)})" if where else text)

    def __init_subclass__(cls, *, usual: tuple[int, str] | None = None) -> None:
        """
        Set the code and text for errors that jetsync raises without a status line of the server.
        """
        if usual is not None:
            cls._usual = usual


class ConsumerDeletedError(StatusError, usual=(409, "Consumer Deleted")):
    """
    The consumer or its stream was deleted while a pull was outstanding.
    """


class NotPullConsumerError(StatusError, usual=(409, "Consumer is push based")):
    """
    The consumer is a push consumer and does not accept pull requests.
    """


class ConsumerUnavailableError(
    StatusError, usual=(503, "no server answers for the consumer, which has no leader or is gone")
):
    """
    No server answers for the consumer: it does not exist, or it has no leader at the moment.
    """


class MaxRequestBatchError(StatusError, usual=(409, "Exceeded MaxRequestBatch")):
    """
    The pull asked for more messages than the consumer's ``max_batch``.
    """

    @property
    def limit(self) -> int | None:
        """
        The consumer's ``max_batch``, or None if the server did not send it.
        """
        return _trailing_number(self.description)


class MaxRequestMaxBytesError(StatusError, usual=(409, "Exceeded MaxRequestMaxBytes")):
    """
    The pull asked for more bytes than the consumer's ``max_bytes``.
    """

    @property
    def limit(self) -> int | None:
        """
        The consumer's ``max_bytes``, or None if the server did not send it.
        """
        return _trailing_number(self.description)


class MaxRequestExpiresError(StatusError, usual=(409, "Exceeded MaxRequestExpires")):
    """
    The pull asked for a longer expiry than the consumer's ``max_expires``.
    """

    @property
    def limit(self) -> str | None:
        """
        The server's text for ``max_expires``, such as ``"2s"``, or None if it did not send one.
        """
        found = _re.search(r" of (\S+)\s*$", self.description)
        return found[1] if found else None


class MaxWaitingError(StatusError, usual=(409, "Exceeded MaxWaiting")):
    """
    The consumer already has ``max_waiting`` outstanding pulls.
    """


class MessageSizeExceedsMaxBytesError(StatusError, usual=(409, "Message Size Exceeds MaxBytes")):
    """
    The next message is larger than the pull's ``max_bytes``. Pull again with a higher limit.
    """


class LeadershipChangeError(StatusError, usual=(409, "Leadership Change")):
    """
    Another server now leads the consumer. jetsync pulls again and raises nothing;
    ``Status.error`` returns this error.
    """


class ServerShutdownError(StatusError, usual=(409, "Server Shutdown")):
    """
    The consumer's server is shutting down. jetsync pulls again and raises nothing;
    ``Status.error`` returns this error.
    """


class BadPullRequestError(StatusError, usual=(400, "Bad Request")):
    """
    The server rejected the pull request as malformed.
    """


class InvalidGroupError(BadPullRequestError):
    """
    The pull names no priority group or an unknown one, or has an option that the policy forbids.
    """


class PinIdMismatchError(StatusError, usual=(423, "Nats-Pin-Id mismatch")):
    """
    The priority group has another pinned client, which gets all messages of the group. jetsync
    pulls again and raises nothing; ``Status.error`` returns this error.
    """


class RequiredApiLevelError(StatusError, usual=(412, "Required Api Level")):
    """
    The request needs an API level that the server does not have.
    """


class NoHeartbeatError(StatusError, usual=(0, "no heartbeat received")):
    """
    Neither a message nor a heartbeat arrived for two heartbeat intervals.

    The pull, the server or the connection is broken.
    """


class BadDirectRequestError(StatusError, usual=(408, "Bad Request")):
    """
    The server rejected the direct get request as malformed.
    """


class TooManySubjectsError(StatusError, usual=(413, "Too Many Results")):
    """
    The filter of a direct get matches more than 1,024 subjects. Narrow the filter.
    """


class UnknownStatusError(StatusError, usual=(0, "unknown status")):
    """
    jetsync does not know the status line that the server sent.
    """
