"""
Messages to publish, and the conditions for storing them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import attrs

from jetsync._base.deadline import Seconds
from jetsync._base.fields import check_count, wrong_type
from jetsync._base.integers import LARGEST
from jetsync.errors import InvalidArgumentError, InvalidTypeError
from jetsync.values import headers as names
from jetsync.values.headers import (
    Headers,
    HeadersInput,
    SharedHeaders,
    check_headers,
    is_headers,
)
from jetsync.values.subjects import check_text, validate_filter, validate_name, validate_subject

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["Expect", "OutboundMessage"]

Payload: TypeAlias = bytes | bytearray | memoryview | str
"""
A payload to publish: a bytes-like object, or text, which is sent as UTF-8. Any other type raises
``InvalidTypeError``.
"""


def require_text(name: str, value: object) -> None:
    """Raise InvalidTypeError if *value*, which errors call *name*, is no text."""
    if not isinstance(value, str):
        raise wrong_type(name, "text", value)


@attrs.frozen(slots=True)
class Expect:
    """
    Conditions under which a stream stores a message. ``None`` sets no condition.

    0 as a sequence requires that the stream, or the subject, has no message yet.
    """

    stream: str | None = None
    """The name of the stream."""
    last_sequence: int | None = None
    """The last sequence of the stream."""
    last_subject_sequence: int | None = None
    """The last sequence of the message's subject."""
    last_subject_sequence_subject: str | None = None
    """Subject or wildcard of ``last_subject_sequence``. None means the message's own subject."""
    last_msg_id: str | None = None
    """The id of the last message of the stream."""

    def __attrs_post_init__(self) -> None:
        for name in ("last_sequence", "last_subject_sequence"):
            if getattr(self, name) is not None:
                check_count(name, getattr(self, name), 0, LARGEST)
        for name in ("stream", "last_subject_sequence_subject", "last_msg_id"):
            if getattr(self, name) is not None:
                require_text(name, getattr(self, name))
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
        """Return the headers that express the conditions."""
        pairs = (
            (names.EXPECTED_STREAM, self.stream),
            (names.EXPECTED_LAST_SEQUENCE, self.last_sequence),
            (names.EXPECTED_LAST_SUBJECT_SEQUENCE, self.last_subject_sequence),
            (names.EXPECTED_LAST_SUBJECT_SEQUENCE_SUBJECT, self.last_subject_sequence_subject),
            (names.EXPECTED_LAST_MSG_ID, self.last_msg_id),
        )
        return [(name, str(value)) for name, value in pairs if value is not None]


def _size(data: object) -> str:
    # Payloads may be secret, so a repr shows only their size. They are not checked yet.
    if not isinstance(data, (bytes, bytearray, memoryview, str)):
        return f"<{type(data).__name__}>"
    return f"<{len(data)} {'characters' if isinstance(data, str) else 'bytes'}>"


@attrs.define(slots=True)
class OutboundMessage:
    """
    A message to publish.

    jetsync checks the values when it sends the message, after plugins have seen them. Not
    thread-safe.
    """

    subject: str
    """The subject."""
    data: Payload = attrs.field(default=b"", repr=_size)
    """The payload. Text is sent as UTF-8."""
    headers: HeadersInput | None = None
    """The headers. jetsync does not change this object."""
    msg_id: str | None = None
    """
    Id for duplicate detection. The stream stores only the first message with an id within its
    duplicate window.
    """
    ttl: Seconds | Literal["never"] | None = None
    """Time-to-live: seconds or a ``timedelta``, at least 1 second, or ``"never"`` (ADR-43)."""
    expect: Expect | None = None
    """Conditions for storing the message."""

    def __reduce__(self) -> tuple[Any, ...]:
        # Errors carry messages and must be picklable, but a memoryview is not.
        data = bytes(self.data) if isinstance(self.data, memoryview) else self.data
        fields = (self.subject, data, self.headers, self.msg_id, self.ttl, self.expect)
        return OutboundMessage, fields


def coerce_outbound(item: object) -> OutboundMessage:
    """
    Return *item* as an ``OutboundMessage``.

    Args:
        item: An ``OutboundMessage``, ``(subject, data)`` or ``(subject, data, headers)``.

    Raises:
        InvalidTypeError: It is none of these.
    """
    if isinstance(item, OutboundMessage):
        return item
    if isinstance(item, tuple) and len(item) in {2, 3}:
        return OutboundMessage(*item)
    wanted = "an OutboundMessage, (subject, data) or (subject, data, headers)"
    raise wrong_type("a message", wanted, item, "message")


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
    Return the subject of a message after checking it.

    Raises:
        InvalidTypeError, InvalidSubjectError: *item* is not a message, or its subject is invalid.
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
    Raise if the caller gave a message that plugins cannot read.

    Payloads are not checked, because a plugin may convert any object to bytes.

    Raises:
        InvalidTypeError: The subject is not text, or the headers are neither a mapping nor None.
    """
    check_text(message.subject)
    check_headers(message)


def with_shared(item: object, shared: SharedHeaders) -> Any:
    """
    Return *item* with shared headers added to its own; *item* is not changed.

    If the message already has one header of a group, in upper or lower case, it gets none of that
    group. Otherwise it could mix the trace contexts of two traces.

    Raises:
        InvalidHeaderError, InvalidTypeError: The message or its own headers are invalid.
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
    Return the message that commits a batch; None if there are no arguments.

    Raises:
        InvalidArgumentError: Other arguments were given without a subject.
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
        InvalidTypeError: *messages* is not iterable, or is a single text or payload.
    """
    if isinstance(messages, (str, bytes, bytearray, memoryview)):
        raise wrong_type("messages", "an iterable of messages", messages)
    try:
        return iter(messages)
    except TypeError as error:
        raise wrong_type("messages", "an iterable of messages", messages) from error


def payload_bytes(data: Payload) -> bytes | bytearray | memoryview:
    """
    Return a payload as an object whose length is its size in bytes; bytes are not copied.

    Raises:
        InvalidTypeError: *data* is neither bytes-like nor text.
        InvalidArgumentError: *data* is text that cannot be encoded as UTF-8.
    """
    if isinstance(data, (bytes, bytearray)):
        return data
    if isinstance(data, str):
        try:
            return data.encode()
        except UnicodeEncodeError:
            raise InvalidArgumentError("data cannot be encoded as UTF-8", argument="data") from None
    if isinstance(data, memoryview):
        if data.itemsize == 1 and data.ndim == 1 and data.contiguous:
            return data
        # The length of other views counts items, or rows.
        return data.cast("B") if data.c_contiguous and data.nbytes else data.tobytes()
    raise wrong_type("a payload", "bytes, bytearray, memoryview or str", data, "data")
