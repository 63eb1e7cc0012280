"""
Messages as a consumer delivers them, for tests without a server.
"""

from __future__ import annotations

import datetime as dt
import json
from typing import TYPE_CHECKING, Literal

import attrs

from jetsync._base.fields import whole_number
from jetsync._base.reprs import tolerant_repr
from jetsync.values.codec import time_ns
from jetsync.values.headers import Headers, block_of
from jetsync.values.message import Message
from jetsync.values.outbound import payload_bytes
from jetsync.values.subjects import validate_name, validate_subject

if TYPE_CHECKING:
    from jetsync._base.deadline import Seconds
    from jetsync.typing import Acker, HeadersInput, Payload

_KINDS: dict[bytes, Literal["ack", "nak", "in_progress", "term"]] = {
    b"+ACK": "ack",
    b"-NAK": "nak",
    b"+WPI": "in_progress",
    b"+TERM": "term",
}


@tolerant_repr
@attrs.frozen
class RecordedAck:
    """
    One acknowledgement of a message.
    """

    kind: Literal["ack", "ack_sync", "nak", "in_progress", "term"]
    """The method that the program called."""

    message: Message
    """The message."""

    delay: float | None = None
    """For ``nak``: seconds until the redelivery; ``None`` if it is immediate."""

    reason: str | None = None
    """For ``term``: the reason; ``None`` if none was given."""


@tolerant_repr
class AckRecorder:
    """
    Record how messages are acknowledged. Pass it to :func:`make_message`.

    Messages can share a recorder. Its list is changed in the thread that acknowledges.
    """

    def __init__(self) -> None:
        self.acks: list[RecordedAck] = []
        """All acknowledgements so far, oldest first."""

    @property
    def kinds(self) -> list[str]:
        """
        The kinds of all acknowledgements so far, oldest first.
        """
        return [each.kind for each in self.acks]

    def acknowledge(self, message: Message, body: bytes) -> None:
        """
        Record an acknowledgement that the message sends.
        """
        word, _, rest = body.partition(b" ")
        kind = _KINDS[word]
        delay = json.loads(rest)["delay"] / 1e9 if kind == "nak" and rest else None
        reason = rest.decode() if kind == "term" and rest else None
        self.acks.append(RecordedAck(kind, message, delay, reason))

    def acknowledge_sync(self, message: Message, body: bytes, timeout: Seconds | None) -> None:
        """
        Record an ``ack_sync``, which succeeds at once.
        """
        del body, timeout
        self.acks.append(RecordedAck("ack_sync", message))

    def __repr__(self) -> str:
        return f"<AckRecorder {self.kinds}>"


def make_message(
    subject: str = "test.1",
    data: Payload = b"",
    *,
    headers: HeadersInput | None = None,
    stream: str = "TEST",
    consumer: str = "test",
    sequence: int = 1,
    delivered: int = 1,
    pending: int = 0,
    time: dt.datetime | None = None,
    acker: Acker | None = None,
) -> Message:
    """
    Return a message as a consumer delivers it, with metadata. It needs no connection.

    Args:
        subject: The subject that it was published to.
        data: The payload.
        headers: The headers.
        stream: The stream that stores it.
        consumer: The consumer that delivers it.
        sequence: Its sequence, in the stream and among the deliveries of the consumer.
        delivered: How many times it was delivered, including this one.
        pending: How many messages the consumer has still to deliver.
        time: When it was stored, with a time zone. Default: now.
        acker: Records the acknowledgements. Default: a recorder that only this message has.

    Raises:
        InvalidSubjectError, InvalidNameError, InvalidHeaderError: A part would not be accepted by a
            server.
        InvalidArgumentError, InvalidTypeError: A number or the time is not one of a delivery.
    """
    for name, count, least in (
        ("sequence", sequence, 1),
        ("delivered", delivered, 1),
        ("pending", pending, 0),
    ):
        whole_number(name, count, least)
    moment = time_ns(dt.datetime.now(dt.timezone.utc) if time is None else time, "time")
    origin = f"{validate_name('stream', stream)}.{validate_name('consumer', consumer)}"
    reply = f"$JS.ACK.{origin}.{delivered}.{sequence}.{sequence}.{moment}.{pending}"
    block = None if headers is None else block_of(Headers(headers))
    acker = AckRecorder() if acker is None else acker
    payload = bytes(payload_bytes(data))
    return Message(validate_subject(subject).encode(), reply.encode(), block, payload, acker)
