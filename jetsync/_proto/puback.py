"""
What a stream answers to a publish.

Three kinds of frames come back: a status 503 without payload (no stream took the message, so it is
certain that it was not stored), JSON with an error, and JSON with the stream's sequence.

Sources: facts about the shapes that servers 2.10 to 2.15 send; key on ``error``, never on a missing
field.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from jetsync._integers import parse_integer
from jetsync.errors import ApiError, ProtocolError, from_api_error
from jetsync.headers import parse_status
from jetsync.outbound import PubAck

if TYPE_CHECKING:
    from jetsync.typing import Frame

NO_RESPONDERS: Final = 503


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
    answer = _load(data)
    error, stream, sequence = answer.get("error"), answer.get("stream"), answer.get("seq")
    if isinstance(error, dict):
        return from_api_error(error, stream=stream or None)
    value = answer.get("val")
    if error is not None or not isinstance(stream, str) or not isinstance(sequence, int):
        raise ProtocolError(f"not an acknowledgement: {bytes(data[:80])!r}")
    try:
        number = None if value is None else parse_integer(str(value))
    except ValueError as problem:
        raise ProtocolError(f"not an acknowledgement: {bytes(data[:80])!r}") from problem
    return PubAck(
        stream=stream,
        sequence=sequence,
        duplicate=bool(answer.get("duplicate", False)),
        domain=answer.get("domain"),
        value=number,
        batch_id=answer.get("batch"),
        batch_size=answer.get("count"),
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


def _load(data: bytes) -> dict[str, Any]:
    try:
        answer = json.loads(data)
    except ValueError as error:
        # A zero-byte answer belongs to a batch; elsewhere it means nothing.
        raise ProtocolError(f"a publish was answered by no JSON: {data[:80]!r}") from error
    if not isinstance(answer, dict):
        raise ProtocolError(f"a publish was answered by no JSON object: {data[:80]!r}")
    return answer
