"""
A request as a handler gets it, and what it may return.
"""

from __future__ import annotations

from typing import Any

import attrs

import jetsync
from jetsync.typing import HeadersInput
from jetsync_services import documents
from jetsync_services.errors import BAD_REQUEST, ServiceError

__all__ = ["Request", "Response"]


@attrs.frozen(eq=False)
class Request:
    """
    A request to an endpoint. Threads may share it.
    """

    message: jetsync.Message
    """The message, which plugins of the client may have replaced."""

    endpoint: str
    """The name of the endpoint."""

    @property
    def data(self) -> bytes:
        """The payload; ``b""`` if it is empty."""
        return self.message.data

    @property
    def headers(self) -> jetsync.Headers:
        """The headers; empty if there are none."""
        return self.message.headers

    @property
    def subject(self) -> str:
        """The subject of the request, which tells more if that of the endpoint has wildcards."""
        return self.message.subject

    def json(self) -> Any:
        """
        Return the payload as the value of its JSON document.

        Raises:
            ServiceError: The payload is not JSON. The caller gets this error, with the code 400.
        """
        try:
            return self.message.json()
        except jetsync.DecodeError as error:
            raise ServiceError(BAD_REQUEST, "the payload is not JSON") from error


@attrs.frozen(eq=False)
class Response:
    """
    An answer with headers. A handler that needs none returns the data alone.
    """

    data: Any = b""
    """The payload: bytes, text, None for nothing, or anything that JSON can express."""

    headers: HeadersInput | None = attrs.field(default=None, kw_only=True)
    """The headers."""


def payload_of(data: Any) -> bytes | bytearray | memoryview | str:
    """
    Return data as a payload: bytes and text as they are, nothing for None, and else JSON.

    Raises:
        TypeError, ValueError: JSON cannot express the data.
    """
    if isinstance(data, (bytes, bytearray, memoryview, str)):
        return data
    return b"" if data is None else documents.encode(data)
