"""
Make messages of the values of rows.
"""

from __future__ import annotations

import datetime as dt
import decimal
from typing import Any

import jetsync
from jetsync_spark.common.headers import LEDGER, SERVER_PREFIX

__all__ = ["HeaderError", "message_of"]


class HeaderError(ValueError):
    """
    A header that would have an effect on the server or on readers.
    """

    def __init__(self, what: str, cure: str) -> None:
        super().__init__(what)
        self.cure = cure


def message_of(  # noqa: PLR0917 - the columns, in the order of Columns.
    subject: str, data: Any, headers: Any, msg_id: Any, ttl: Any, expected: Any
) -> jetsync.OutboundMessage:
    """
    Build a message from the values of a row.

    Args:
        subject: The subject.
        data: The payload. None means an empty payload.
        headers: A mapping, or pairs of name and value, or Kafka's list of structs. A value is text,
            UTF-8 or a list of texts.
        msg_id: The message ID.
        ttl: Seconds, an interval, or text.
        expected: The expected last sequence of the subject, or 0 if it has no message.

    Raises:
        ValueError, TypeError: A value cannot be sent.
    """
    expect = None
    if expected is not None:
        expect = jetsync.Expect(last_subject_sequence=int(expected))
    if isinstance(ttl, decimal.Decimal) or (isinstance(ttl, str) and ttl.isdigit()):
        ttl = int(ttl)
    if ttl is not None and ttl != "never":
        _check_ttl(ttl)
    if isinstance(msg_id, str) and not msg_id.strip(" "):
        raise HeaderError("the message ID is empty", "give an ID, or null")
    return jetsync.OutboundMessage(
        subject,
        b"" if data is None else data,
        None if headers is None else _headers(headers),
        msg_id,
        ttl,
        expect,
    )


def _check_ttl(ttl: Any) -> None:
    seconds = ttl.total_seconds() if isinstance(ttl, dt.timedelta) else ttl
    if not isinstance(seconds, (int, float)) or not seconds >= 1:
        raise HeaderError(
            f"the time-to-live is {ttl!r}", "give seconds from 1 up, an interval, or 'never'"
        )


def _headers(headers: Any) -> dict[str, list[str]] | None:
    """
    Return the headers of a row.

    Nulls are left out, as Spark's to_json leaves them out: a null map, list or value.
    """
    found: dict[str, list[str]] = {}
    for name, values in headers.items() if isinstance(headers, dict) else map(_pair, headers):
        if name is None:
            raise HeaderError("the name of a header is null", "drop it, or give it a name")
        if name.startswith(SERVER_PREFIX):
            raise HeaderError(
                f"header {name} would have an effect on the server",
                "drop it, as map_filter(headers, (name, _) -> name not like 'Nats-%') does; "
                "msg_id, ttl and expected_sequence are columns, and a function given to "
                "JetStreamSink may send any header",
            )
        if name == LEDGER:
            raise HeaderError(
                f"header {name} would make it a ledger message, which readers skip",
                "read without includeLedger, or drop the header",
            )
        listed = found.setdefault(name, [])
        if isinstance(values, (list, tuple)):
            listed += [value for value in values if value is not None]
        elif isinstance(values, str):
            listed.append(values)
        elif values is not None:
            listed.append(_header_text(name, values))
    # Raises before any row of the block is sent.
    jetsync.Headers(found)
    return found or None


def _pair(header: Any) -> tuple[Any, Any]:
    """Return name and value of a header of a map in Arrow, or of Kafka's type."""
    if isinstance(header, dict):
        return header["key"], header["value"]
    if header is None:
        raise HeaderError("a header is null", "drop it, for example with filter()")
    name, value = header
    return name, value


def _header_text(name: str, value: bytes) -> str:
    try:
        return bytes(value).decode()
    except UnicodeDecodeError:
        raise HeaderError(
            f"the value of header {name} is not valid UTF-8",
            "convert it to text, for example with base64()",
        ) from None
