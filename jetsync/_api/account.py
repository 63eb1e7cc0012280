"""
Requests to the JetStream of one account or domain.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from jetsync._base.deadline import MAX_SECONDS, Deadline
from jetsync._proto.late_answers import LATE
from jetsync.errors import JetStreamNotEnabledError, NoRespondersError
from jetsync.errors.answers import from_api_error
from jetsync.values.server_info import decode_json, encode_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jetsync._base.deadline import Seconds
    from jetsync._io.connection import Connection
    from jetsync._io.lane import Lane
    from jetsync.values.server_info import ServerInfo

# The beginnings of the endpoints that only read.
READS: Final = (
    "INFO",
    "STREAM.INFO.",
    "STREAM.LIST",
    "STREAM.NAMES",
    "STREAM.MSG.GET.",
    "CONSUMER.INFO.",
    "CONSUMER.LIST.",
    "CONSUMER.NAMES.",
)

# Reads that may take servers seconds: they ask the leaders of all streams or consumers, or look at
# all subjects or all deleted messages of a stream.
SLOW_ENDPOINTS: Final = ("STREAM.LIST", "CONSUMER.LIST.")
SLOW_FIELDS: Final = frozenset({"subjects_filter", "deleted_details"})


class Account:
    """
    The JetStream that a connection reaches with one API prefix. Thread-safe.
    """

    __slots__ = (
        "__weakref__",
        "connection",
        "default_timeout",
        "domain",
        "lane",
        "plugins",
        "prefix",
    )

    def __init__(
        self, connection: Connection, *, prefix: str, domain: str | None, default_timeout: float
    ) -> None:
        self.connection: Connection = connection
        # In this order: a forked child that connects replaces the lanes.
        connection.contexts.add(self)
        self.lane: Lane = connection.lane
        self.plugins: Final = connection.plugins
        self.prefix: str = prefix
        self.domain: str | None = domain
        # Capped, because locks reject longer waits.
        self.default_timeout: float = min(default_timeout, MAX_SECONDS)

    @property
    def server(self) -> ServerInfo:
        """The server that the client is connected to."""
        return self.connection.server

    def deadline(self, timeout: Seconds | None) -> Deadline:
        """Start the deadline of one public call; None means the context's default timeout."""
        if timeout is None:
            return Deadline(time.monotonic() + self.default_timeout, self.default_timeout)
        return Deadline.after(timeout)

    def api(
        self,
        endpoint: str,
        body: Mapping[str, Any] | None,
        deadline: Deadline,
        *,
        stream: str | None = None,
        consumer: str | None = None,
    ) -> dict[str, Any]:
        """
        Send one request to the JetStream API and return its JSON answer.

        A request that only reads is sent again if its answer is late or its connection is lost.

        Args:
            endpoint: The subject after the API prefix.
            body: The request; None sends an empty payload.
            deadline: Deadline of the public call.
            stream: Name of the stream, for errors.
            consumer: Name of the consumer, for errors.

        Raises:
            ApiError: The server refused; ``err_code`` selects the subclass.
            JetStreamNotEnabledError: No server answers under this domain or prefix.
            RequestTimeoutError: No answer came.
            ConnectionLostError: The connection was lost during a request that may change something.
            DisconnectedError, ConnectionClosedError, PermissionDeniedError: As for
                :meth:`Connection.exchange`.
        """
        payload = b""
        if body is not None:
            payload = encode_json(body)
        try:
            subject = f"{self.prefix}.{endpoint}".encode()
            late = late_after(endpoint, body, deadline)
            frame = self.connection.exchange(subject, None, payload, deadline, late=late)
        except NoRespondersError as refusal:
            raise JetStreamNotEnabledError(
                description=f"no server with JetStream answers on {refusal.subject!r}",
                stream=stream,
            ) from refusal
        answer = decode_json(frame[3])
        error = answer.get("error")
        if error is not None:
            raise from_api_error(error, stream, consumer)
        answer.pop("type", None)
        return answer


def late_after(endpoint: str, body: Mapping[str, Any] | None, deadline: Deadline) -> float | None:
    """
    Return the seconds after which a request to the API is sent again; None if it may change data.

    Slow requests are sent again after half of their time, because asking for them more often would
    make the server slower still.
    """
    if not endpoint.startswith(READS):
        return None
    if endpoint.startswith(SLOW_ENDPOINTS) or (body and not SLOW_FIELDS.isdisjoint(body)):
        return max(LATE, deadline.remaining() / 2.0)
    return LATE
