"""
Messages from a consumer, a subscription or a request, and how they are acknowledged.

One is made for every message on the fastest paths there are, so nothing is decoded before somebody
looks at it. What goes out is in ``outbound.py``, what is read without a consumer in ``stored.py``;
their names can be imported from here.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final, Literal, Protocol

import attrs

from jetsync._base.deadline import as_seconds
from jetsync.errors import (
    InvalidArgumentError,
    InvalidTypeError,
    MessageAlreadyAckedError,
    NotJetStreamMessageError,
)
from jetsync.values.headers import Headers
from jetsync.values.stored import time_of
from jetsync.values.subjects import ACK_PREFIX, AckReply, parse_ack_reply
from jetsync.values.ttl import marker_in, ttl_in

if TYPE_CHECKING:
    import datetime as dt

    from jetsync._base.deadline import Seconds
    from jetsync.values.ttl import MarkerReason

__all__ = ["Message", "Metadata"]


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
            timeout: Seconds to wait, ``None`` for the client's default.

        Raises:
            RequestTimeoutError, DisconnectedError, ConnectionLostError: the server has not
                confirmed; the caller may try again.
        """


# Bodies of acknowledgements, as servers since 2.2 read them.
ACK: Final = b"+ACK"
"""Done."""
NAK: Final = b"-NAK"
"""Not done: deliver it again, at once or after a delay."""
IN_PROGRESS: Final = b"+WPI"
"""Still at it: start the ack wait anew."""
TERM: Final = b"+TERM"
"""Never deliver it again."""


def _decode(raw: bytes) -> str:
    # Subjects are any bytes to servers; those that are not UTF-8 survive as surrogates.
    return raw.decode("utf-8", "surrogateescape")


@attrs.frozen(slots=True)
class Metadata:
    """
    Where a consumer's message is from and how it was delivered.
    """

    stream: str
    """Stream the message is stored in."""
    consumer: str
    """Consumer that delivered it."""
    stream_sequence: int
    """Its place in the stream."""
    consumer_sequence: int
    """Its place among the consumer's deliveries, repeated ones counted again."""
    delivered: int
    """How often it was delivered, this time included."""
    pending: int
    """How many messages the consumer has still to deliver after this one."""
    timestamp_ns: int
    """When it was stored, in nanoseconds since 1970."""
    domain: str | None = None
    """JetStream domain, where the server tells it."""

    @property
    def timestamp(self) -> dt.datetime:
        """
        When the message was stored, as an aware datetime; microseconds are the last digit.
        """
        return time_of(self.timestamp_ns)


class Message:
    """
    A message from a consumer, a subscription or a request.

    ``data`` is there at once; everything else is decoded on first use. Threads: any number may
    read, and of several that acknowledge exactly one does so, the others get
    ``MessageAlreadyAckedError``.
    """

    # By hand and not by attrs: half of the slots stay empty until somebody asks for them, and a
    # class whose constructor is five stores is made in 0.15 us.
    __slots__ = (
        "_acker",
        "_headers",
        "_metadata",
        "_subject",
        "data",
        "raw_headers",
        "raw_reply",
    )

    _headers: Headers
    _metadata: Metadata

    # The acker is the ticket for the one terminal acknowledgement: whoever deletes the slot has
    # taken it. Deleting a slot that is empty raises, and the check and the deletion are one step to
    # other threads (one C call under the interpreter lock, a critical section without it). So no
    # message carries a lock.

    def __init__(
        self,
        subject: bytes,
        reply: bytes,
        header_block: bytes | None,
        data: bytes,
        acker: Acker | None = None,
    ) -> None:
        self._subject = subject
        self.raw_reply = reply
        """Reply subject as it came, for those who write it back to the wire."""
        self.raw_headers = header_block
        """
        Header block as it came, ``None`` when there is none, for those who look for one header in
        each of many messages.
        """
        self.data = data
        """Payload; ``b""`` for an empty one."""
        self._acker = acker

    @property
    def subject(self) -> str:
        """
        Subject the message was published to.
        """
        return _decode(self._subject)

    @property
    def reply(self) -> str:
        """
        Reply subject, ``""`` when there is none; for a consumer's message, where acknowledgements
        go.
        """
        return _decode(self.raw_reply)

    @property
    def headers(self) -> Headers:
        """
        Headers, empty when there are none; always the same object.

        Raises:
            ProtocolError: the header block can not be read.
        """
        try:
            return self._headers
        except AttributeError:
            block = self.raw_headers
            self._headers = Headers() if block is None else Headers.parse(block)[2]
            return self._headers

    @property
    def metadata(self) -> Metadata:
        """
        Stream, consumer, sequences, time and counts of a consumer's message.

        Raises:
            NotJetStreamMessageError: the message did not come from a consumer.
        """
        try:
            return self._metadata
        except AttributeError:
            said = self._ack_reply()
            self._metadata = Metadata(
                stream=said.stream,
                consumer=said.consumer,
                stream_sequence=said.stream_sequence,
                consumer_sequence=said.consumer_sequence,
                delivered=said.delivered,
                pending=said.pending,
                timestamp_ns=said.timestamp_ns,
                domain=said.domain,
            )
            return self._metadata

    @property
    def sequence(self) -> int:
        """
        Place in the stream.

        Raises:
            NotJetStreamMessageError: the message did not come from a consumer.
        """
        return self._ack_reply().stream_sequence

    @property
    def marker(self) -> MarkerReason | None:
        """
        Why a server left this message as a marker; ``None`` for ordinary messages (ADR-43).
        """
        return marker_in(self.raw_headers, self)

    @property
    def ttl(self) -> float | Literal["never"] | None:
        """
        Time-to-live in seconds, ``"never"``, or ``None`` when the message has none (ADR-43).
        """
        return ttl_in(self.raw_headers, self)

    @property
    def is_acked(self) -> bool:
        """
        Whether an acknowledgement that ends the message was sent, or is being sent.
        """
        return not hasattr(self, "_acker")

    def ack(self) -> None:
        """
        Acknowledge the message; return without the server's confirmation.

        Raises:
            NotJetStreamMessageError: the message did not come from a consumer.
            MessageAlreadyAckedError: it was acknowledged, refused or terminated before.
        """
        self._finish(ACK)

    def ack_sync(self, *, timeout: Seconds | None = None) -> None:
        """
        Acknowledge the message and wait until the server has stored that.

        When it fails, Ctrl-C included, the message counts as not acknowledged and this may be
        repeated; servers do not mind a repeated acknowledgement.

        Args:
            timeout: Seconds to wait; ``None`` for the client's default.

        Raises:
            NotJetStreamMessageError, MessageAlreadyAckedError: as ``ack``.
            RequestTimeoutError, DisconnectedError, ConnectionLostError: there is no confirmation.
            NoRespondersError: the consumer is gone, or has no leader at the moment.
            AcksNotWantedError: the consumer takes no acknowledgements, so confirms none.
        """
        if timeout is not None:
            as_seconds(timeout)
        acker = self._take_acker()
        try:
            acker.acknowledge_sync(self, ACK, timeout)
        except BaseException:
            self._acker = acker
            raise

    def nak(self, delay: Seconds | None = None) -> None:
        """
        Give the message back to be delivered again.

        Args:
            delay: Seconds to wait before that; ``None`` for at once.

        Raises:
            NotJetStreamMessageError, MessageAlreadyAckedError: as ``ack``.
            InvalidArgumentError: the delay is negative.
        """
        if delay is None:
            self._finish(NAK)
        else:
            wait = {"delay": round(as_seconds(delay, "delay") * 1e9)}
            self._finish(NAK + b" " + json.dumps(wait).encode())

    def in_progress(self) -> None:
        """
        Start the ack wait anew for work that takes longer; may be repeated.

        Raises:
            NotJetStreamMessageError, MessageAlreadyAckedError: as ``ack``.
        """
        self._check_consumer_message()
        try:
            acker = self._acker
        except AttributeError:
            raise self._already_acked() from None
        if acker is None:
            raise NotJetStreamMessageError(self.subject, self.reply)
        acker.acknowledge(self, IN_PROGRESS)

    def term(self, reason: str | None = None) -> None:
        """
        End the message: it is not delivered again, whatever ``max_deliver`` says.

        Args:
            reason: One line that the server puts into its ``MSG_TERMINATED`` advisory.

        Raises:
            NotJetStreamMessageError, MessageAlreadyAckedError: as ``ack``.
            InvalidArgumentError: the reason has a line end in it.
            MaxPayloadError: the reason is longer than the server's ``max_payload``.
        """
        if reason is None:
            self._finish(TERM)
            return
        if not isinstance(reason, str):
            raise InvalidTypeError("reason must be text", argument="reason")
        if "\r" in reason or "\n" in reason:
            raise InvalidArgumentError("reason must be a single line", argument="reason")
        self._finish((TERM + b" " + reason.encode("utf-8", "replace")) if reason else TERM)

    def _finish(self, body: bytes) -> None:
        acker = self._take_acker()
        try:
            acker.acknowledge(self, body)
        except BaseException:
            # Nothing was handed over, so the message is still the caller's to acknowledge.
            self._acker = acker
            raise

    def _take_acker(self) -> Acker:
        """
        Take the right to acknowledge, which only one thread gets.
        """
        self._check_consumer_message()
        try:
            acker = self._acker
            if acker is not None:
                del self._acker
        except AttributeError:
            raise self._already_acked() from None
        if acker is None:
            raise NotJetStreamMessageError(self.subject, self.reply)
        return acker

    def _check_consumer_message(self) -> None:
        if not self.raw_reply.startswith(ACK_PREFIX):
            raise NotJetStreamMessageError(self.subject, self.reply)

    def _already_acked(self) -> MessageAlreadyAckedError:
        return MessageAlreadyAckedError(self.subject, self.reply)

    def _ack_reply(self) -> AckReply:
        said = parse_ack_reply(self.raw_reply)
        if said is None:
            raise NotJetStreamMessageError(self.subject, self.reply)
        return said

    def __repr__(self) -> str:
        said = parse_ack_reply(self.raw_reply)
        if said is None:
            return f"<Message {self.subject!r} {len(self.data)} bytes>"
        state = "acked" if self.is_acked else "open"
        origin = f"stream {said.stream!r} sequence {said.stream_sequence}"
        delivery = f"consumer {said.consumer!r} delivery {said.delivered}"
        size = len(self.data)
        return f"<Message {self.subject!r} {size} bytes, {origin}, {delivery}, {state}>"
