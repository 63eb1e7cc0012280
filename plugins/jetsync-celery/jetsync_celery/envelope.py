"""
Messages of kombu as data and headers of NATS, and back.

The body is the data as it is, so every tool of NATS shows it. The rest of the message is one header
with JSON.
"""

from __future__ import annotations

import datetime as dt
import time
from typing import TYPE_CHECKING, Any, Final

from kombu.utils.json import dumps, loads

if TYPE_CHECKING:
    from collections.abc import Mapping

ENVELOPE: Final = "Kombu-Message"
"""The header with everything but the body."""

EXPIRES: Final = "Kombu-Expires"
"""The header with the time at which a message without a stream expires, as a Unix time."""


def encode(message: Mapping[str, Any]) -> tuple[bytes, dict[str, str]]:
    """
    Return the data and the headers of a message of kombu.
    """
    body = message["body"]
    rest = {name: value for name, value in message.items() if name != "body"}
    data = body.encode() if isinstance(body, str) else bytes(body or b"")
    return data, {ENVELOPE: dumps(rest)}


def decode(
    data: bytes, headers: Mapping[str, str], tag: str, *, redelivered: bool = False
) -> dict[str, Any]:
    """
    Return a message as kombu expects it from a virtual transport.

    Messages that other programs have put into a queue have no envelope and become plain bytes.

    Args:
        data: The body.
        headers: The headers.
        tag: The delivery tag, which names the delivery in acks.
        redelivered: Whether the message may have been delivered before.
    """
    text = headers.get(ENVELOPE)
    message: dict[str, Any] = (
        loads(text) if text else {"content-type": "application/data", "headers": {}}
    )
    properties = message.setdefault("properties", {})
    properties["delivery_tag"] = tag
    properties.pop("body_encoding", None)
    info = properties.setdefault("delivery_info", {})
    if redelivered:
        info["redelivered"] = True
    message["body"] = data
    return message


def eta_of(headers: Mapping[str, Any]) -> dt.datetime | None:
    """
    Return the whole second from which on a task may be delivered; None for at once.

    The worker waits for the rest of the second.
    """
    text = headers.get("eta")
    if not text:
        return None
    eta = text if isinstance(text, dt.datetime) else _parsed(str(text))
    if eta is None:
        return None
    eta = eta.replace(microsecond=0, tzinfo=eta.tzinfo or dt.timezone.utc)
    return eta if eta > dt.datetime.now(dt.timezone.utc) else None


def expiration_of(properties: Mapping[str, Any]) -> float | None:
    """
    Return the seconds until a message expires; None for never.
    """
    milliseconds = properties.get("expiration")
    if milliseconds in (None, ""):
        return None
    return max(float(str(milliseconds)) / 1000.0, 0.001)


def has_expired(headers: Mapping[str, str]) -> bool:
    """
    Return whether a message without a stream has expired.
    """
    text = headers.get(EXPIRES)
    return text is not None and float(text) <= time.time()


def _parsed(text: str) -> dt.datetime | None:
    try:
        # Python 3.10 does not know the Z.
        return dt.datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        return None  # The worker reports it.
