"""
Parse ack subjects, the reply subjects of messages from a consumer.

An ack subject tells where the message comes from, how often it was delivered and how many follow.
"""

from __future__ import annotations

from typing import Final, NamedTuple

ACK_PREFIX: Final = b"$JS.ACK."
"""The start of the reply subject of every message from a consumer."""

# The longest reply subject in bytes. Servers accept no longer line.
LONGEST_REPLY: Final = 4096


class AckReply(NamedTuple):
    """
    The fields of the reply subject of a consumer's message.
    """

    stream: str
    consumer: str
    delivered: int
    stream_sequence: int
    consumer_sequence: int
    timestamp_ns: int
    pending: int
    domain: str | None


def parse_ack_reply(reply: bytes) -> AckReply | None:
    """
    Parse the reply subject of a consumer's message; return ``None`` if it is something else.

    Servers use 9 tokens, ``$JS.ACK.<stream>.<consumer>.<delivered>.<stream sequence>.<consumer
    sequence>.<nanoseconds>.<pending>``, with a domain too. With the feature flag ``js_ack_fc_v2``
    (2.14) the domain, or ``_``, and an account hash come before the stream, and a random token may
    follow at the end.
    """
    tokens = reply.split(b".") if len(reply) <= LONGEST_REPLY else []
    count = len(tokens)
    if count == 9:
        first, domain = 2, None
    elif count in {11, 12}:
        first, domain = 4, None if tokens[2] == b"_" else _text(tokens[2])
    else:
        return None
    numbers = tokens[first + 2 : first + 7]
    # int() also accepts spaces, signs and underscores.
    if not reply.startswith(ACK_PREFIX) or b"" in numbers or not b"".join(numbers).isdigit():
        return None
    delivered, stream_sequence, consumer_sequence, timestamp_ns, pending = map(int, numbers)
    return AckReply(
        _text(tokens[first]),
        _text(tokens[first + 1]),
        delivered,
        stream_sequence,
        consumer_sequence,
        timestamp_ns,
        pending,
        domain,
    )


def _text(token: bytes) -> str:
    return token.decode("utf-8", "surrogateescape")
