"""
Messages on their way out: what is to be published, under which conditions, and what became of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import attrs

from jetsync._base.deadline import Seconds
from jetsync.errors import InvalidArgumentError, InvalidTypeError
from jetsync.values import headers as names
from jetsync.values.headers import (
    Headers,
    HeadersInput,
    SharedHeaders,
    check_headers,
    header_pairs,
    is_headers,
)
from jetsync.values.subjects import check_text, validate_filter, validate_name, validate_subject
from jetsync.values.ttl import ttl_header

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["BatchAck", "Expect", "OutboundMessage", "PubAck", "PublishFailure", "PublishReport"]

Payload: TypeAlias = bytes | bytearray | memoryview | str
"""
What may be published: bytes-like objects as they are, text as UTF-8. Anything else is an
``InvalidTypeError``.
"""


def _sequence(_: Expect, field: attrs.Attribute[Any], value: object) -> None:
    if value is None:
        return
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidTypeError(f"{field.name} must be an integer", argument=field.name)
    if value < 0:
        raise InvalidArgumentError(f"{field.name} must not be negative", argument=field.name)


def _text(_: Expect, field: attrs.Attribute[Any], value: object) -> None:
    if value is not None and not isinstance(value, str):
        raise InvalidTypeError(f"{field.name} must be text", argument=field.name)


@attrs.frozen(slots=True)
class Expect:
    """
    What has to be true of the stream for a message to be stored; ``None`` asks for nothing.

    0 is a condition like any other: "there is none yet".
    """

    stream: str | None = attrs.field(default=None, validator=_text)
    """The message goes to this stream."""
    last_sequence: int | None = attrs.field(default=None, validator=_sequence)
    """This is the last sequence of the stream."""
    last_subject_sequence: int | None = attrs.field(default=None, validator=_sequence)
    """This is the last sequence of the message's subject."""
    last_subject_sequence_subject: str | None = attrs.field(default=None, validator=_text)
    """What ``last_subject_sequence`` is about, wildcards allowed; by default the own subject."""
    last_msg_id: str | None = attrs.field(default=None, validator=_text)
    """The last message of the stream had this id."""

    def __attrs_post_init__(self) -> None:
        if self.stream is not None:
            validate_name("stream", self.stream)
        if self.last_subject_sequence_subject is not None:
            validate_filter(self.last_subject_sequence_subject)
            if self.last_subject_sequence is None:
                raise InvalidArgumentError(
                    "last_subject_sequence_subject needs last_subject_sequence",
                    argument="last_subject_sequence_subject",
                )

    def pairs(self) -> list[tuple[str, str]]:
        """
        Return the headers that say this to a server.
        """
        said = (
            (names.EXPECTED_STREAM, self.stream),
            (names.EXPECTED_LAST_SEQUENCE, self.last_sequence),
            (names.EXPECTED_LAST_SUBJECT_SEQUENCE, self.last_subject_sequence),
            (names.EXPECTED_LAST_SUBJECT_SEQUENCE_SUBJECT, self.last_subject_sequence_subject),
            (names.EXPECTED_LAST_MSG_ID, self.last_msg_id),
        )
        return [(name, str(value)) for name, value in said if value is not None]


def _size(data: object) -> str:
    # A payload in a log line helps nobody, and may be secret. It may also be no payload at all.
    if not isinstance(data, (bytes, bytearray, memoryview, str)):
        return f"<{type(data).__name__}>"
    return f"<{len(data)} {'characters' if isinstance(data, str) else 'bytes'}>"


@attrs.define(slots=True)
class OutboundMessage:
    """
    A message to publish.

    Nothing is checked before it is encoded, so that plugins see what the caller gave. Not
    synchronised.
    """

    subject: str
    """Subject to publish to."""
    data: Payload = attrs.field(default=b"", repr=_size)
    """Payload; text is sent as UTF-8."""
    headers: HeadersInput | None = None
    """Headers; never changed in place."""
    msg_id: str | None = None
    """Id by which the stream drops duplicates within its duplicate window."""
    ttl: Seconds | Literal["never"] | None = None
    """Time-to-live: seconds from 1 up, a ``timedelta`` or ``"never"`` (ADR-43)."""
    expect: Expect | None = None
    """Under which conditions to store it."""

    def __reduce__(self) -> tuple[Any, ...]:
        # A memoryview can not be pickled, and errors that carry messages have to be.
        data = bytes(self.data) if isinstance(self.data, memoryview) else self.data
        fields = (self.subject, data, self.headers, self.msg_id, self.ttl, self.expect)
        return OutboundMessage, fields


def coerce_outbound(item: object) -> OutboundMessage:
    """
    Return what stands for a message as an ``OutboundMessage``.

    Args:
        item: An ``OutboundMessage``, ``(subject, data)`` or ``(subject, data, headers)``.

    Raises:
        InvalidTypeError: it is none of these.
    """
    if isinstance(item, OutboundMessage):
        return item
    if isinstance(item, tuple) and len(item) in {2, 3}:
        return OutboundMessage(*item)
    raise InvalidTypeError(
        "a message must be an OutboundMessage, (subject, data) or (subject, data, headers), "
        f"not {type(item).__name__}",
        argument="message",
    )


def message_of(item: object) -> OutboundMessage:
    """Return *item* as an ``OutboundMessage`` for an error report, even if it is invalid."""
    try:
        return coerce_outbound(item)
    except InvalidTypeError:
        return OutboundMessage(subject="")


def subject_of(item: Any) -> str:
    """Return the subject of an ``OutboundMessage`` or a tuple."""
    return item[0] if isinstance(item, tuple) else coerce_outbound(item).subject


def valid_subject(item: Any) -> str:
    """
    Return the subject of what stands for a message, if messages can be published to it.

    Raises:
        InvalidTypeError, InvalidSubjectError: It is no message, or the subject is invalid.
    """
    return validate_subject(coerce_outbound(item).subject)


def with_ttl(item: object, ttl: Seconds | Literal["never"]) -> OutboundMessage:
    """Return *item* as a message with this time-to-live, unless it already has one."""
    message = coerce_outbound(item)
    headers = message.headers
    if message.ttl is not None or (is_headers(headers) and names.TTL in headers):
        return message
    return attrs.evolve(message, ttl=ttl)


def check_readable(message: OutboundMessage) -> None:
    """
    Raise unless plugins know how to read a message: what cannot be sent either way is the caller's
    mistake, not theirs. Payloads are left to those who may turn them into bytes.

    Raises:
        InvalidTypeError: Its subject is not text, or its headers are neither a mapping nor None.
    """
    check_text(message.subject)
    check_headers(message)


def with_shared(item: object, shared: SharedHeaders) -> Any:
    """
    Return what stands for a message, with headers that it shares with others added to its own.

    Of a part of them that has a name that it has itself, in whatever case, it gets nothing: half of
    a trace's context would belong to another trace. What was given is not changed.

    Raises:
        InvalidHeaderError, InvalidTypeError: its own headers, or itself, are nothing of the kind.
    """
    if type(item) is tuple and len(item) == 2:
        return (*item, shared)
    message = coerce_outbound(item)
    if message.headers is None:
        return attrs.evolve(message, headers=shared)
    check_headers(message)
    own = Headers(message.headers)
    has = {name.lower() for name in own}
    added = [pair for given, part in shared.parts if has.isdisjoint(given) for pair in part]
    return attrs.evolve(message, headers=Headers([*own.items(), *added]))


def final_message(  # noqa: PLR0917 - the arguments of `commit`, in the order of OutboundMessage.
    subject: str | None,
    data: Payload | None,
    headers: HeadersInput | None,
    msg_id: str | None,
    ttl: Seconds | Literal["never"] | None,
    expect: Expect | None,
) -> OutboundMessage | None:
    """
    Return the message that commits a batch, or None if no argument was given.

    Raises:
        InvalidArgumentError: There is no subject, but another argument.
    """
    if subject is not None:
        return OutboundMessage(subject, b"" if data is None else data, headers, msg_id, ttl, expect)
    if (data, headers, msg_id, ttl, expect) != (None,) * 5:
        raise InvalidArgumentError("the final message needs a subject", argument="subject")
    return None


def message_iterator(messages: Iterable[Any]) -> Iterator[Any]:
    """
    Return an iterator over the messages that a call was given.

    Raises:
        InvalidTypeError: It is nothing that can be iterated over.
    """
    try:
        return iter(messages)
    except TypeError as error:
        raise InvalidTypeError(
            f"messages must be an iterable of messages, not {type(messages).__name__}",
            argument="messages",
        ) from error


def outbound_header_pairs(message: OutboundMessage) -> list[tuple[str, str]]:
    """
    Return names and values of all headers of a message.

    What is given as an argument of its own (``msg_id``, ``ttl``, ``expect``) takes the place of a
    header of the same name. The message and its headers are not changed.

    Raises:
        InvalidHeaderError, InvalidTtlError, InvalidArgumentError: a value that can not be sent.
        InvalidTypeError: headers or id are of a type that means nothing.
    """
    headers, msg_id, ttl, expect = message.headers, message.msg_id, message.ttl, message.expect
    own: list[tuple[str, str]] = []
    if msg_id is not None:
        own.append((names.MSG_ID, _checked_id(msg_id)))
    if ttl is not None:
        own.append((names.TTL, ttl_header(ttl)))
    if expect is not None:
        if not isinstance(expect, Expect):
            raise InvalidTypeError("expect must be an Expect", argument="expect")
        own += expect.pairs()
    if headers is None:
        return own
    if not own:
        return list(header_pairs(headers))
    replaced = {name for name, _ in own}
    return [pair for pair in header_pairs(headers) if pair[0] not in replaced] + own


def _checked_id(msg_id: object) -> str:
    if not isinstance(msg_id, str):
        raise InvalidTypeError("msg_id must be text", argument="msg_id")
    if not msg_id.strip(" "):
        # Servers leave out blanks before an id and ignore an empty one: the caller would believe in
        # a protection that is not there.
        raise InvalidArgumentError("msg_id must not be empty or blank", argument="msg_id")
    return msg_id


def payload_bytes(data: Payload) -> bytes | bytearray | memoryview:
    """
    Return a payload as something whose length is its number of bytes; bytes-like objects are not
    copied.

    Raises:
        InvalidTypeError: it is neither bytes-like nor text.
        InvalidArgumentError: it is text that has no UTF-8 form.
    """
    if isinstance(data, (bytes, bytearray)):
        return data
    if isinstance(data, str):
        try:
            return data.encode()
        except UnicodeEncodeError:
            raise InvalidArgumentError("text has no UTF-8 form", argument="data") from None
    if isinstance(data, memoryview):
        if data.itemsize == 1 and data.ndim == 1 and data.contiguous:
            return data
        # The length of other views counts items, or rows.
        return data.cast("B") if data.c_contiguous and data.nbytes else data.tobytes()
    raise InvalidTypeError(
        f"a payload must be bytes, bytearray, memoryview or str, not {type(data).__name__}",
        argument="data",
    )


@attrs.frozen(slots=True)
class PubAck:
    """
    A server's confirmation that a message is stored.
    """

    stream: str
    """Stream that took it."""
    sequence: int
    """Its place in the stream; for a duplicate, the place of the first one."""
    duplicate: bool = False
    """Whether a message with the same id was already there, so that this one was dropped."""
    domain: str | None = None
    """JetStream domain, where the server tells it."""
    value: int | None = None
    """The counter after the increment, on counter streams."""
    batch_id: str | None = None
    """The batch this commits."""
    batch_size: int | None = None
    """How many messages that batch has."""


@attrs.frozen(slots=True)
class BatchAck:
    """
    A server's confirmation that a batch has ended and is stored (ADR-50).
    """

    stream: str
    """Stream that took it."""
    sequence: int
    """Place in the stream of the last message; 0 where the server did not say."""
    batch_id: str
    """The batch's id, under which it is stored."""
    size: int
    """How many messages it has, without those that are known not to be stored."""
    first_sequence: int | None = None
    """
    Place of the first message of an atomic batch, whose messages are stored without a gap; ``None``
    after fast ingest, and where the server did not say.
    """
    lost: int = 0
    """
    How many messages of a fast batch are not stored: lost on the way, or refused. Always 0 after an
    atomic batch.
    """
    duplicate: bool = False
    """
    Whether the batch was sent again and was there already: it was read from the stream, and the
    sequences and the id are those of the attempt that had come through.
    """


@attrs.frozen(slots=True)
class PublishFailure:
    """
    A message of a bulk publish that was not acknowledged.
    """

    index: int
    """Its place among the messages given, from 0."""
    message: OutboundMessage
    """The message, to publish again if that makes sense."""
    error: Exception
    """Why."""


@attrs.frozen(slots=True)
class PublishReport:
    """
    What became of the messages of a bulk publish.
    """

    count: int
    """How many were acknowledged, duplicates included."""
    duplicates: int
    """How many of those were already in the stream."""
    first_sequence: int | None
    """Least sequence among the acknowledged; ``None`` when there are none."""
    last_sequence: int | None
    """Greatest sequence among the acknowledged; ``None`` when there are none."""
    failures: tuple[PublishFailure, ...] = ()
    """Those that were not acknowledged, in the order in which they were given."""
    exhausted: bool = True
    """
    Whether all messages were taken; not so where ``publish_many`` stopped reading its iterable, as
    too many had failed. What was not taken was not sent.
    """
    streams: frozenset[str] = attrs.field(default=frozenset(), eq=False)
    """The streams that acknowledged: which one takes a message goes by its subject."""
