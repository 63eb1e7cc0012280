"""
What the handles of one JetStream context share: a connection, the API prefix, the default timeout.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from jetsync._api.known_streams import StreamCache
from jetsync._base.deadline import Deadline
from jetsync.errors import from_api_error
from jetsync.values.server_info import decode_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jetsync._base.deadline import Seconds
    from jetsync._hooks.manager import Plugins
    from jetsync._io.connection import Connection
    from jetsync._io.lane import Lane
    from jetsync.values.frame import Frame
    from jetsync.values.server_info import ServerInfo


class Context:
    """
    A connection with the API prefix and the default timeout of one JetStream context.
    """

    __slots__ = ("connection", "default_timeout", "domain", "prefix", "streams")

    def __init__(
        self, connection: Connection, *, prefix: str, domain: str | None, default_timeout: float
    ) -> None:
        self.connection = connection
        self.prefix = prefix
        self.domain = domain
        self.default_timeout = default_timeout
        self.streams = StreamCache(self)

    @property
    def server(self) -> ServerInfo:
        """The server that the client is connected to."""
        return self.connection.server

    @property
    def plugins(self) -> Plugins:
        """The client's plugins."""
        return self.connection.plugins

    @property
    def lane(self) -> Lane:
        """The client's way in and out."""
        return self.connection.lane

    def deadline(self, timeout: Seconds | None) -> Deadline:
        """Make the deadline of one public call; None is the context's default."""
        return Deadline.after(self.default_timeout if timeout is None else timeout)

    def request(self, subject: str, body: bytes, deadline: Deadline) -> Frame:
        """Send one request to a whole subject and return the frame that answers it."""
        return self.connection.request(subject, body, deadline)

    def api(
        self, endpoint: str, body: Mapping[str, Any] | bytes | None, deadline: Deadline
    ) -> dict[str, Any]:
        """
        Send one request to the JetStream API and return its JSON answer.

        Raises:
            ApiError: The answer is an error; the subclass is chosen by ``err_code``.
            NoRespondersError: Nobody serves that endpoint: no JetStream, an older server, or no
                leader.
            RequestTimeoutError, ConnectionLostError: No answer came.
            DisconnectedError, ConnectionClosedError, PermissionDeniedError: As their names say.
        """
        if body is None:
            payload = b""
        elif isinstance(body, bytes):
            payload = body
        else:
            payload = json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode()
        frame = self.connection.request(f"{self.prefix}.{endpoint}", payload, deadline)
        answer = decode_json(frame[3])
        error = answer.get("error")
        if error is not None:
            raise from_api_error(error)
        return answer
