"""
Parse the answer of a stream to a publish.

A stream answers in three ways: a status 503 without payload (no stream took the message, so it is
not stored), JSON with an error, or JSON with the sequence of the message. The ``error`` key decides
which of the last two it is. Sources: answers of servers 2.10 to 2.15.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import attrs

from jetsync._base.integers import parse_integer, read_count
from jetsync._base.makers import maker
from jetsync.errors import ApiError, ProtocolError
from jetsync.errors.answers import from_api_error
from jetsync.values.headers import is_status, parse_status
from jetsync.values.pub_acks import PubAck
from jetsync.values.server_info import decode_json

if TYPE_CHECKING:
    from jetsync.values.frame import Frame

NO_RESPONDERS: Final = 503

# The usual ack of a message or an atomic batch, with names that JSON does not escape: read without
# building a JSON object.
_PLAIN_ACK: Final = re.compile(
    rb'\{"stream":"([!#-\[\]-~]+)","seq":([0-9]{1,19})'
    rb'(?:,"batch":"([!#-\[\]-~]+)","count":([0-9]{1,19}))?\}'
)

_make_ack: Final = maker(PubAck, tuple(attrs.fields_dict(PubAck)))

_TEXTS: Final = ("stream", "domain", "val", "batch")


def is_no_responders(frame: Frame) -> bool:
    """Return whether the frame is a 503: no client or server listens on the subject."""
    header = frame[2]
    if header is None or frame[3] or parse_status(header)[0] != NO_RESPONDERS:
        return False
    # A direct get may answer with a message that has such a status line itself.
    return is_status(header)


def parse_ack(data: bytes) -> PubAck | ApiError:
    """
    Return the acknowledgement, or the error that takes its place; the error is not raised.

    Raises:
        ProtocolError: It is neither.
    """
    plain = _PLAIN_ACK.fullmatch(data)
    if plain is not None:
        stream, sequence, batch, count = plain.groups()
        batch_id, size = (None, None) if batch is None else (batch.decode(), int(count))
        return _make_ack(stream.decode(), int(sequence), False, None, None, batch_id, size)
    answer = decode_json(data)
    try:
        stream, domain, value, batch = texts = tuple(map(answer.get, _TEXTS))
        duplicate, count = answer.get("duplicate", False), answer.get("count")
        for text in texts:
            if text is not None and not isinstance(text, str):
                raise TypeError
        error = answer.get("error")
        if error is not None:
            return from_api_error(error, stream=stream or None)
        if stream is None or not isinstance(duplicate, bool):
            raise TypeError
        return PubAck(
            stream=stream,
            sequence=read_count(answer.get("seq"), "seq"),
            duplicate=duplicate,
            domain=domain,
            value=None if value is None else parse_integer(value),
            batch_id=batch,
            batch_size=None if count is None else read_count(count, "count"),
        )
    except (TypeError, ValueError, ProtocolError) as problem:
        raise ProtocolError(f"not an acknowledgement: {data[:80]!r}") from problem


def plain_prefix(data: bytes) -> bytes | None:
    """
    Return how the plain acks of a stream start, if *data* is one: ``{"stream":"S","seq":``.

    An ack with this prefix, digits and a brace holds nothing but its sequence. Reading only the
    digits makes thousands of acks cheap.
    """
    start, found, number = data.rpartition(b'"seq":')
    if not found or not data.endswith(b"}") or not number[:-1].isdigit():
        return None
    return start + found
