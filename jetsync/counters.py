"""
Counters: integers of any size that a server adds to, one to each subject of a stream.

A message to such a subject changes its counter and becomes its new value; the last message of the
subject is the counter. Servers have them from 2.12, on streams with ``allow_msg_counter`` (ADR-49).
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, Protocol

import attrs

from jetsync._base.integers import integer_text, parse_integer
from jetsync.errors import (
    CounterDisabledError,
    InvalidArgumentError,
    InvalidTypeError,
    MessageNotFoundError,
    NotSupportedError,
    ProtocolError,
)
from jetsync.publish.one import publish_one
from jetsync.values.headers import COUNTER_SOURCES, INCREMENT
from jetsync.values.outbound import OutboundMessage
from jetsync.values.server_info import decode_json
from jetsync.values.subjects import validate_subject

if TYPE_CHECKING:
    from collections.abc import Iterable

    from jetsync._api.context import Context
    from jetsync._base.deadline import Deadline, Seconds
    from jetsync.values.outbound import PubAck
    from jetsync.values.stored import StoredMessage
    from jetsync.values.stream_config import StreamConfig

__all__ = ["Counter", "CounterEntry"]

COUNTER_LEVEL: Final = 2
"""API level from which servers have counters."""


class CountingStream(Protocol):
    """
    What counters need of the handle of their stream.
    """

    @property
    def name(self) -> str:
        """The name of the stream."""

    @property
    def config(self) -> StreamConfig:
        """The configuration as the handle knows it."""

    def get_message(self, sequence: int, *, timeout: Seconds | None) -> StoredMessage:
        """Read one message."""

    def get_last(self, subject: str, *, timeout: Seconds | None) -> StoredMessage:
        """Read the last message of a subject."""


@attrs.frozen
class CounterEntry:
    """
    A counter as it was stored last.
    """

    stream: str
    """Stream that it was read from."""

    subject: str
    """Subject that it is under."""

    value: int
    """What it has come to."""

    increment: int
    """What was added last."""

    sequence: int
    """Place of that in the stream."""

    timestamp: dt.datetime
    """When that was stored."""

    sources: Mapping[str, Mapping[str, int]] = attrs.field(factory=dict, hash=False)
    """
    Where a stream that sums others has it from: stream, then subject there, then the value. Empty
    where all was added here.
    """


class Counter:
    """
    One counter; made by ``Stream.counter``.

    Holds no resources; any number of threads and clients may add at the same time, as it is the
    server that adds. Every call has a ``timeout`` in seconds, None for the context's default.
    """

    __slots__ = ("_context", "_stream", "_subject")

    def __init__(self, context: Context, stream: CountingStream, subject: str) -> None:
        self._context = context
        self._stream = stream
        self._subject = validate_subject(subject)

    def __repr__(self) -> str:
        return f"<Counter {self._subject!r} of stream {self._stream.name!r}>"

    @property
    def subject(self) -> str:
        """
        The subject that it is under.
        """
        return self._subject

    @property
    def stream_name(self) -> str:
        """
        The stream that holds it.
        """
        return self._stream.name

    def add(
        self, value: int = 1, *, msg_id: str | None = None, timeout: Seconds | None = None
    ) -> int:
        """
        Add to the counter and return what it has come to; one that is not there begins at 0.

        If the answer is lost it is unknown whether this was counted. With a *msg_id* the call can
        be repeated then, within the stream's duplicate window, and counts once.

        Args:
            value: What to add; negative to subtract, of any size. 0 makes the counter if there is
                none.
            msg_id: Id by which the stream drops duplicates.
            timeout: Seconds for the whole call.

        Raises:
            InvalidTypeError: The value is not an integer; nothing was sent.
            InvalidArgumentError: The stream does not take the subject; nothing was sent.
            CounterDisabledError: The stream does not hold counters; nothing was sent.
            NotSupportedError: Its server is older than 2.12; nothing was sent.
            PublishOutcomeUnknownError: It was sent and no answer came.
            ApiError, TransportError: As for ``publish``; it was not counted.
        """
        if isinstance(value, bool) or not isinstance(value, int):
            raise InvalidTypeError(
                f"a counter takes integers, not {type(value).__name__}", argument="value"
            )
        context = self._context
        context.connection.check()
        deadline = context.deadline(timeout)
        self._check_stream(deadline)
        text = integer_text(value)
        headers = {INCREMENT: text if value < 0 else f"+{text}"}
        message = OutboundMessage(self._subject, b"", headers, msg_id)
        ack = publish_one(context, message, deadline)
        if ack.value is not None:
            return ack.value
        if ack.duplicate:
            return self._value_of(ack, deadline)
        # Stored as an ordinary message, by a server or a stream that has changed meanwhile.
        raise NotSupportedError(
            "a counter", needs="server 2.12 or later", server=context.server.version
        )

    def load(self, *, timeout: Seconds | None = None) -> int:
        """
        Return what the counter has come to.

        Any replica or mirror of the stream may answer, and be a moment behind, if the stream allows
        direct gets.

        Raises:
            MessageNotFoundError: There is no such counter.
            CounterDisabledError: The stream does not hold counters.
        """
        return self.entry(timeout=timeout).value

    def entry(self, *, timeout: Seconds | None = None) -> CounterEntry:
        """
        Return the counter with its last change, and where a sum has come from.

        Raises:
            MessageNotFoundError: There is no such counter.
            CounterDisabledError: The stream does not hold counters.
        """
        return read_entry(self._stream.get_last(self._subject, timeout=timeout), self._stream)

    def _check_stream(self, deadline: Deadline) -> None:
        """Raise unless an increment is added by the stream, and not stored as it is."""
        streams, name = self._context.streams, self._stream.name
        known = streams.named(name, deadline)
        if not known.config.allow_msg_counter or not known.takes(self._subject):
            known = streams.named(name, deadline, fresh=True)
        if known.level < COUNTER_LEVEL:
            server = known.version or self._context.server.version
            raise NotSupportedError("a counter", needs="server 2.12 or later", server=server)
        if not known.config.allow_msg_counter:
            raise _disabled(name)
        if not known.takes(self._subject):
            raise InvalidArgumentError(
                f"stream {name!r} takes no messages on {self._subject!r}", argument="subject"
            )

    def _value_of(self, ack: PubAck, deadline: Deadline) -> int:
        """Return the value behind an increment that was counted before."""
        try:
            message = self._stream.get_message(ack.sequence, timeout=deadline.remaining())
        except MessageNotFoundError:
            # Others have added since, and the stream keeps the last ones only.
            return self.load(timeout=deadline.remaining())
        return read_entry(message, self._stream).value


def read_entry(message: StoredMessage, stream: CountingStream) -> CounterEntry:
    """
    Read a counter from the message that it is.

    Raises:
        CounterDisabledError: The stream does not hold counters.
        ProtocolError: The message is none, though the stream holds them.
    """
    try:
        value = parse_integer(decode_json(message.data)["val"])
        sources = _sources(message.headers.get(COUNTER_SOURCES))
        increment = message.headers.get(INCREMENT)
        added = value if increment is None else parse_integer(increment.strip())
    except (ProtocolError, ValueError, TypeError, LookupError, AttributeError) as error:
        if not stream.config.allow_msg_counter:
            raise _disabled(stream.name) from None
        raise ProtocolError(
            f"message {message.sequence} on {message.subject!r} is no counter"
        ) from error
    return CounterEntry(
        stream=message.stream,
        subject=message.subject,
        value=value,
        increment=added,
        sequence=message.sequence,
        timestamp=message.timestamp,
        sources=sources,
    )


def read_entries(
    messages: Iterable[StoredMessage], stream: CountingStream
) -> dict[str, CounterEntry]:
    """
    Read counters by subject; raises as :func:`read_entry`.
    """
    return {message.subject: read_entry(message, stream) for message in messages}


def _sources(text: str | None) -> Mapping[str, Mapping[str, int]]:
    """Read the header that says what a sum consists of."""
    if text is None:
        return {}
    found: dict[str, dict[str, str]] = decode_json(text.encode())
    return {
        stream: {subject: parse_integer(value) for subject, value in values.items()}
        for stream, values in found.items()
    }


def _disabled(stream: str) -> CounterDisabledError:
    return CounterDisabledError(
        description="message counters is disabled: the stream needs allow_msg_counter=True",
        stream=stream,
    )
