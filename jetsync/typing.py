"""
The types that users and plugins meet in signatures.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, TypeAlias, Union

if TYPE_CHECKING:
    from jetsync.values.headers import Headers
    from jetsync.values.message import Message

__all__ = ["Acker", "Frame", "HeadersInput", "Payload", "Seconds"]

Payload: TypeAlias = bytes | bytearray | memoryview | str
"""
What may be published: bytes-like objects as they are, text as UTF-8. Anything else is an
``InvalidTypeError``.
"""

Seconds: TypeAlias = float | int | dt.timedelta
"""
A duration: seconds as a number, or a ``timedelta``.
"""

HeadersInput: TypeAlias = Union["Headers", Mapping[str, "str | Sequence[str]"]]
"""
Headers to publish: a ``Headers`` object, or a mapping from name to one value or a list of values.
Never changed in place.
"""

Frame: TypeAlias = tuple[bytes, bytes, bytes | None, bytes]
"""
One message as it came off the wire: subject, reply subject (``b""`` when there is none), header
block from ``NATS/1.0`` to the empty line (``None`` when there is none), payload. Nothing in it has
been parsed.
"""


class Acker(Protocol):
    """
    What a ``Message`` needs to acknowledge itself.

    It stands between messages and the connection, so that a message can be made in a test with
    three lines of code.
    """

    def acknowledge(self, message: Message, body: bytes) -> None:
        """
        Send ``body`` to the message's reply subject and return without an answer.
        """

    def acknowledge_sync(self, message: Message, body: bytes, timeout: Seconds | None) -> None:
        """
        Send ``body`` to the message's reply subject and return once the server has confirmed it.

        Args:
            message: The message to acknowledge.
            body: The bytes that say how.
            timeout: Seconds to wait, ``None`` for the session's default.

        Raises:
            RequestTimeoutError, DisconnectedError, ConnectionLostError: the server has not
                confirmed; the caller may try again.
        """
