"""
Status lines that end a pull or a direct get.
"""

from __future__ import annotations

import re
from typing import ClassVar

from jetsync.errors.base import JetSyncError, trailing_number


class StatusError(JetSyncError):
    """
    A status line that ends a pull or a direct get with a fault.
    """

    #: Code and text where the client finds the fault by itself. Code 0 never comes from a server.
    usual: ClassVar[tuple[int, str]] = (0, "fault")

    def __init__(
        self,
        *,
        code: int | None = None,
        description: str | None = None,
        consumer: str | None = None,
        stream: str | None = None,
    ) -> None:
        self.code = self.usual[0] if code is None else code
        self.description = self.usual[1] if description is None else description
        self.consumer = consumer
        self.stream = stream
        text = f"{self.code} {self.description}".strip() if self.code else self.description
        where = [f"stream {stream!r}"] if stream is not None else []
        where += [f"consumer {consumer!r}"] if consumer is not None else []
        super().__init__(f"{text} ({', '.join(where)})" if where else text)


class ConsumerDeletedError(StatusError):
    """
    The consumer, or its stream, was deleted while a pull waited.
    """

    usual = (409, "Consumer Deleted")


class NotPullConsumerError(StatusError):
    """
    The consumer is a push consumer and can not be pulled from.
    """

    usual = (409, "Consumer is push based")


class ConsumerUnavailableError(StatusError):
    """
    Nobody answers for the consumer: it is gone, or it has no leader at the moment.
    """

    usual = (503, "No Responders")


class _LimitStatusError(StatusError):
    """
    A status whose text ends with the limit that was exceeded.
    """

    def __init__(
        self,
        *,
        code: int | None = None,
        description: str | None = None,
        consumer: str | None = None,
        stream: str | None = None,
    ) -> None:
        super().__init__(code=code, description=description, consumer=consumer, stream=stream)
        self.limit = trailing_number(self.description)


class MaxRequestBatchError(_LimitStatusError):
    """
    The pull asked for more messages than the consumer's ``max_batch``; ``limit`` is that number.
    """

    usual = (409, "Exceeded MaxRequestBatch")


class MaxRequestMaxBytesError(_LimitStatusError):
    """
    The pull asked for more bytes than the consumer's ``max_bytes``; ``limit`` is that number.
    """

    usual = (409, "Exceeded MaxRequestMaxBytes")


class MaxRequestExpiresError(StatusError):
    """
    The pull would live longer than the consumer's ``max_expires``; ``limit`` is the server's text,
    such as ``"2s"``.
    """

    usual = (409, "Exceeded MaxRequestExpires")

    def __init__(
        self,
        *,
        code: int | None = None,
        description: str | None = None,
        consumer: str | None = None,
        stream: str | None = None,
    ) -> None:
        super().__init__(code=code, description=description, consumer=consumer, stream=stream)
        found = re.search(r" of (\S+)\s*$", self.description)
        self.limit: str | None = found[1] if found else None


class MaxWaitingError(StatusError):
    """
    The consumer has as many waiting pulls as it takes.
    """

    usual = (409, "Exceeded MaxWaiting")


class MessageSizeExceedsMaxBytesError(StatusError):
    """
    The next message alone is larger than the pull's byte limit; repeating the pull would not end.
    """

    usual = (409, "Message Size Exceeds MaxBytes")


class LeadershipChangeError(StatusError):
    """
    The consumer moved to another server; pull again.
    """

    usual = (409, "Leadership Change")


class ServerShutdownError(StatusError):
    """
    The server of the consumer is shutting down; pull again.
    """

    usual = (409, "Server Shutdown")


class BadPullRequestError(StatusError):
    """
    The server could not use the pull request.
    """

    usual = (400, "Bad Request")


class InvalidGroupError(BadPullRequestError):
    """
    The priority group of a pull is missing, unknown, or does not fit the consumer's policy.
    """

    usual = (400, "Bad Request - Invalid Priority Group")


class PinIdMismatchError(StatusError):
    """
    Another client is pinned to the priority group.
    """

    usual = (423, "Nats-Wrong-Pin-Id")


class RequiredApiLevelError(StatusError):
    """
    The request demanded an API level that the server does not have.
    """

    usual = (412, "Required Api Level")


class NoHeartbeatError(StatusError):
    """
    Neither messages nor heartbeats came for two heartbeat times: the pull, the server or the way to
        it is dead.
    """

    usual = (0, "no heartbeat received")


class BadDirectRequestError(StatusError):
    """
    The server could not use a direct get request.
    """

    usual = (408, "Bad Request")


class TooManySubjectsError(StatusError):
    """
    More subjects match than one direct get may resolve; only narrower filters help.
    """

    usual = (413, "Too Many Results")


class UnknownStatusError(StatusError):
    """
    A status line that jetsync does not know.
    """

    usual = (0, "unknown status")
