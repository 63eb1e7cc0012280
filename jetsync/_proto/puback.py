"""
What a stream answers to a publish.

Three kinds of frames come back: a status 503 without payload (no stream took the message, so it is
certain that it was not stored), JSON with an error, and JSON with the stream's sequence.

Sources: facts about the shapes that servers 2.10 to 2.15 send; key on ``error``, never on a missing
field.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from jetsync._base.integers import parse_integer, read_count
from jetsync.errors import ApiError, ProtocolError, from_api_error
from jetsync.values.headers import parse_status
from jetsync.values.outbound import PubAck
from jetsync.values.server_info import decode_json

if TYPE_CHECKING:
    from jetsync.values.frame import Frame

NO_RESPONDERS: Final = 503

_TEXTS: Final = ("stream", "val", "domain", "batch")


def is_no_responders(frame: Frame) -> bool:
    """Return whether the server says that nobody listens on the subject."""
    header = frame[2]
    return header is not None and not frame[3] and parse_status(header)[0] == NO_RESPONDERS


def parse_ack(data: bytes) -> PubAck | ApiError:
    """
    Return the acknowledgement, or the error that stands in its place; it is not raised.

    Raises:
        ProtocolError: It is neither.
    """
    answer = decode_json(data)
    try:
        return _read(answer)
    except (TypeError, ValueError, ProtocolError) as problem:
        raise ProtocolError(f"not an acknowledgement: {data[:80]!r}") from problem


def _read(answer: dict[str, Any]) -> PubAck | ApiError:
    texts = stream, value, domain, batch_id = tuple(map(answer.get, _TEXTS))
    for text in texts:
        if text is not None and not isinstance(text, str):
            raise TypeError
    error, count = answer.get("error"), answer.get("count")
    if error is not None:
        return from_api_error(error, stream=stream or None)
    duplicate = answer.get("duplicate", False)
    if stream is None or not isinstance(duplicate, bool):
        raise TypeError
    return PubAck(
        stream=stream,
        sequence=read_count(answer.get("seq"), "seq"),
        duplicate=duplicate,
        domain=domain,
        value=None if value is None else parse_integer(value),
        batch_id=batch_id,
        batch_size=None if count is None else read_count(count, "count"),
    )


def plain_prefix(data: bytes) -> bytes | None:
    """
    Return how all plain acks of the same stream start, if *data* is one: ``{"stream":"S","seq":``.

    An ack that has this prefix and then only digits and a brace says nothing but its sequence,
    which makes reading thousands of them cheap.
    """
    start, found, number = data.rpartition(b'"seq":')
    if not found or not data.endswith(b"}") or not number[:-1].isdigit():
        return None
    return start + found
