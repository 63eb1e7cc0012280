"""
Parse ack subjects, the reply subjects of messages from a consumer.

An ack subject tells where the message comes from, how often it was delivered and how many follow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from jetsync.values.stored import time_of

if TYPE_CHECKING:
    import datetime as dt

ACK_PREFIX: Final = b"$JS.ACK."
"""The start of the reply subject of every message from a consumer."""

# The longest reply subject in bytes. Servers accept no longer line.
LONGEST_REPLY: Final = 4096

# How many tokens the usual form has.
SHORT_FORM: Final = 9


class Metadata(NamedTuple):
    """
    The origin of a consumer's message, and how it was delivered.
    """

    stream: str
    """The stream that stores the message."""
    consumer: str
    """The consumer that delivered it."""
    stream_sequence: int
    """Its sequence in the stream."""
    consumer_sequence: int
    """Its sequence among the consumer's deliveries; each redelivery has a new one."""
    delivered: int
    """How many times it was delivered, including this one."""
    pending: int
    """How many messages the consumer still had to deliver after this one."""
    timestamp_ns: int
    """When it was stored, in nanoseconds since 1970."""
    domain: str | None = None
    """The JetStream domain, if the server sends it."""

    @property
    def timestamp(self) -> dt.datetime:
        """
        When the message was stored, as an aware datetime with a resolution of 1 microsecond.
        """
        return time_of(self.timestamp_ns)


def parse_ack_reply(reply: bytes) -> Metadata | None:
    """
    Parse the reply subject of a consumer's message; return ``None`` if it is something else.

    Servers use 9 tokens, ``$JS.ACK.<stream>.<consumer>.<delivered>.<stream sequence>.<consumer
    sequence>.<nanoseconds>.<pending>``, even if they have a domain. With the feature flag
    ``js_ack_fc_v2`` (2.14) the domain, or ``_``, and an account hash come before the stream. Later
    servers may append tokens to this longer form.
    """
    tokens = reply.split(b".") if len(reply) <= LONGEST_REPLY else []
    if len(tokens) == SHORT_FORM:
        first, domain = 2, None
    elif len(tokens) >= SHORT_FORM + 2:
        first, domain = 4, None if tokens[2] == b"_" else _text(tokens[2])
    else:
        return None
    numbers = tokens[first + 2 : first + 7]
    # int() also accepts spaces, signs and underscores.
    if not reply.startswith(ACK_PREFIX) or b"" in numbers or not b"".join(numbers).isdigit():
        return None
    delivered, sequence, consumer_sequence, timestamp_ns, pending = map(int, numbers)
    stream, consumer = _text(tokens[first]), _text(tokens[first + 1])
    return Metadata(
        stream, consumer, sequence, consumer_sequence, delivered, pending, timestamp_ns, domain
    )


def _text(token: bytes) -> str:
    return token.decode("utf-8", "surrogateescape")
