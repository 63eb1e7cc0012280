"""
Counters: integers of any size that the server adds to, one for each subject of a stream (ADR-49).

A message to such a subject changes the counter, and the server stores the new value in it. So the
last message of the subject is the counter. Needs server 2.12 and a stream with
``allow_msg_counter``.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

import attrs

from jetsync import errors
from jetsync._base.fields import wrong_type
from jetsync._base.integers import integer_text, parse_integer
from jetsync._base.pickling import refuse_copy
from jetsync.publish.one import publish_one
from jetsync.values.headers import COUNTER_SOURCES, INCREMENT
from jetsync.values.outbound import OutboundMessage
from jetsync.values.server_info import decode_json
from jetsync.values.server_versions import COUNTER_LEVEL
from jetsync.values.subjects import validate_subject

if TYPE_CHECKING:
    from jetsync._api.context import Context
    from jetsync._base.deadline import Deadline, Seconds
    from jetsync.values.pub_acks import PubAck
    from jetsync.values.stored import StoredMessage
    from jetsync.values.stream_config import StreamConfig

__all__ = ["Counter", "CounterEntry"]


class CountingStream(Protocol):
    """
    What counters need of the handle of their stream, whose class is in a higher layer.
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
    The state of a counter after its last change.
    """

    stream: str
    """The stream that it was read from."""

    subject: str
    """The subject of the counter."""

    value: int
    """The value."""

    increment: int
    """The last increment."""

    sequence: int
    """The stream sequence of that change."""

    timestamp: dt.datetime
    """When that change was stored."""

    sources: Mapping[str, Mapping[str, int]] = attrs.field(factory=dict, hash=False)
    """
    For a counter that sums counters of other streams: the value of each, by stream and then by its
    subject there. Empty if all increments were added in this stream.
    """


class Counter:
    """
    One counter. Made by ``Stream.counter``.

    The handle holds no resources. Any number of threads and clients may add at the same time,
    because the server does the addition. The ``timeout`` of a call is in seconds. The default is
    that of the :class:`JetStream` object.
    """

    __slots__ = ("_context", "_stream", "_subject")

    __reduce__ = refuse_copy

    def __init__(self, context: Context, stream: CountingStream, subject: str) -> None:
        self._context = context
        self._stream = stream
        self._subject = validate_subject(subject)

    def __repr__(self) -> str:
        return f"<Counter {self._subject!r} of stream {self._stream.name!r}>"

    @property
    def subject(self) -> str:
        """
        The subject of the counter.
        """
        return self._subject

    @property
    def stream_name(self) -> str:
        """
        The name of the stream that holds the counter.
        """
        return self._stream.name

    def add(
        self, value: int = 1, *, msg_id: str | None = None, timeout: Seconds | None = None
    ) -> int:
        """
        Add to the counter and return the new value. A counter that does not exist starts at 0.

        If the answer is lost, it is unknown whether the value was added. With a *msg_id*, you can
        repeat the call within the stream's duplicate window, and the server adds the value once.

        Args:
            value: An integer of any size; negative to subtract. 0 creates the counter if it does
                not exist.
            msg_id: The id by which the stream recognizes a repeated call.
            timeout: Seconds for the whole call.

        Raises:
            InvalidTypeError: The value is not an integer; nothing was sent.
            InvalidArgumentError: The stream does not store the subject; nothing was sent.
            CounterDisabledError: The stream does not hold counters; nothing was sent.
            NotSupportedError: The stream's server is older than 2.12; nothing was sent.
            PublishOutcomeUnknownError: The value was sent, but no answer arrived.
            ApiError, TransportError: As for ``publish``. The value was not added.
        """
        if isinstance(value, bool) or not isinstance(value, int):
            raise wrong_type("value", "a whole number", value)
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
        # Stored as an ordinary message, because the server or the stream changed meanwhile.
        raise errors.NotSupportedError(
            "a counter", needs="server 2.12 or later", server=context.server.version
        )

    def load(self, *, timeout: Seconds | None = None) -> int:
        """
        Return the value of the counter.

        If the stream allows direct gets, a replica or a mirror may answer, and its value may lag
        slightly behind the leader's.

        Raises:
            MessageNotFoundError: The counter does not exist.
            CounterDisabledError: The stream does not hold counters.
        """
        return self.entry(timeout=timeout).value

    def entry(self, *, timeout: Seconds | None = None) -> CounterEntry:
        """
        Return the counter with its last change. If it sums counters of other streams, also return
        their values.

        Raises:
            MessageNotFoundError: The counter does not exist.
            CounterDisabledError: The stream does not hold counters.
        """
        return read_entry(self._stream.get_last(self._subject, timeout=timeout), self._stream)

    def _check_stream(self, deadline: Deadline) -> None:
        """Raise if the stream would store an increment as an ordinary message."""
        streams, name = self._context.streams, self._stream.name
        known = streams.named(name, deadline)
        if not known.config.allow_msg_counter or not known.takes(self._subject):
            known = streams.named(name, deadline, fresh=True)
        if known.level < COUNTER_LEVEL:
            server = known.version or self._context.server.version
            raise errors.NotSupportedError("a counter", needs="server 2.12 or later", server=server)
        if not known.config.allow_msg_counter:
            raise _disabled(name)
        if not known.takes(self._subject):
            raise errors.InvalidArgumentError(
                f"stream {name!r} does not store subject {self._subject!r}", argument="subject"
            )

    def _value_of(self, ack: PubAck, deadline: Deadline) -> int:
        """Return the value after an increment that an earlier call has added."""
        try:
            message = self._stream.get_message(ack.sequence, timeout=deadline.remaining())
        except errors.MessageNotFoundError:
            # Others have added since, and the stream keeps only the last messages.
            return self.load(timeout=deadline.remaining())
        return read_entry(message, self._stream).value


def read_entry(message: StoredMessage, stream: CountingStream) -> CounterEntry:
    """
    Read a counter from its last message.

    Raises:
        CounterDisabledError: The stream does not hold counters.
        ProtocolError: The stream holds counters, and the message is not one.
    """
    try:
        value = parse_integer(decode_json(message.data)["val"])
        sources = _sources(message.headers.get(COUNTER_SOURCES))
        increment = message.headers.get(INCREMENT)
        added = value if increment is None else parse_integer(increment.strip())
    except (errors.ProtocolError, ValueError, TypeError, LookupError, AttributeError) as error:
        if not stream.config.allow_msg_counter:
            raise _disabled(stream.name) from None
        raise errors.ProtocolError(
            f"message {message.sequence} of subject {message.subject!r} in stream "
            f"{stream.name!r} is not a counter"
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


def _sources(text: str | None) -> Mapping[str, Mapping[str, int]]:
    """Read the header that lists the parts of a sum."""
    if text is None:
        return {}
    found: dict[str, dict[str, str]] = decode_json(text.encode())
    return {
        stream: {subject: parse_integer(value) for subject, value in values.items()}
        for stream, values in found.items()
    }


def _disabled(stream: str) -> errors.CounterDisabledError:
    return errors.CounterDisabledError(
        description="message counters is disabled: the stream needs allow_msg_counter=True",
        stream=stream,
    )
