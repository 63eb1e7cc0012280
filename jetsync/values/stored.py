"""
Messages read from a stream without a consumer (ADR-31).
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, overload

from jetsync._base.integers import read_digits
from jetsync.errors import InvalidArgumentError, ProtocolError
from jetsync.values.codec import parse_time_ns
from jetsync.values.headers import TTL, Headers, find_last
from jetsync.values.ttl import marker_in, marker_of, parse_ttl, ttl_in

if TYPE_CHECKING:
    from jetsync.values.frame import Frame
    from jetsync.values.ttl import MarkerReason

__all__ = ["StoredMessage", "StoredPage"]

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)
_SERVER_LINES = b"\r\nNats-Stream: "

_ADDED: Final = re.compile(
    rb"\r\nNats-Subject: ([^\r]*)\r\nNats-Sequence: (\d{1,20})"
    rb"\r\nNats-Time-Stamp: (\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)\.?(\d{0,9})Z"
    rb"(?:\r\nNats-Num-Pending: \d+\r\nNats-Last-Sequence: \d+)?\r\n\r\n"
)
"""
What servers add to an answer, in the order in which they do, up to the end of the block: there is
one in each block, whatever headers the message has itself.
"""


def time_of(timestamp_ns: int) -> dt.datetime:
    """
    Return nanoseconds since 1970 as an aware datetime in UTC; what is below a microsecond is cut.
    """
    # Integers all the way: a float of seconds has lost the microseconds by now.
    try:
        return _EPOCH + dt.timedelta(microseconds=timestamp_ns // 1000)
    except OverflowError as error:
        raise ProtocolError(f"the time {timestamp_ns} ns is out of range") from error


def _nanoseconds(moment: dt.datetime | int) -> int:
    if isinstance(moment, int):
        return moment
    if moment.tzinfo is None:
        raise InvalidArgumentError("a naive datetime has no place in time", argument="timestamp")
    since = moment - _EPOCH
    return ((since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds) * 1000


class StoredMessage:
    """
    A message read from a stream without a consumer (ADR-31).

    Immutable, comparable, picklable. ``headers`` are those the message was stored with; what
    servers add on the way out is in the other attributes. Threads: any number may use it.
    """

    # By hand for the same reason as Message: a scan makes some hundred thousand of these per
    # second, and most are asked for their data and nothing else.
    __slots__ = ("_block", "_headers", "_said", "data")

    _block: bytes | None
    _headers: Headers
    _said: tuple[str, str, int, int]

    def __init__(  # noqa: PLR0917  (the order of the documented fields)
        self,
        stream: str,
        subject: str,
        sequence: int,
        timestamp: dt.datetime | int,
        headers: Headers | None = None,
        data: bytes = b"",
    ) -> None:
        """
        Make a message whose parts are known.

        Args:
            stream: Stream it is stored in.
            subject: Subject it was published to.
            sequence: Place in the stream.
            timestamp: When it was stored: an aware datetime, or nanoseconds since 1970.
            headers: The headers it was stored with.
            data: Payload.
        """
        self._block = None
        self._said = (stream, subject, sequence, _nanoseconds(timestamp))
        self._headers = Headers() if headers is None else headers
        self.data = data
        """Payload; ``b""`` for an empty one."""

    @classmethod
    def from_direct(cls, header_block: bytes, data: bytes) -> StoredMessage:
        """
        Make a message from an answer to a direct get; nothing is decoded before it is asked for.

        The caller has seen that the block has no status. A block that lacks what servers add raises
        ``ProtocolError`` on first use.
        """
        message = cls.__new__(cls)
        message._block = header_block  # noqa: SLF001  (its own class)
        message.data = data
        return message

    @property
    def stream(self) -> str:
        """
        Stream the message is stored in; behind a mirror this may be the mirror.
        """
        return self._said[0] if self._block is None else _text(self._block, b"Nats-Stream")

    @property
    def subject(self) -> str:
        """
        Subject the message was published to.
        """
        return self._said[1] if self._block is None else _text(self._block, b"Nats-Subject")

    @property
    def sequence(self) -> int:
        """
        Place in the stream.
        """
        return (
            self._said[2]
            if self._block is None
            else read_digits(_raw(self._block, b"Nats-Sequence"))
        )

    @property
    def timestamp_ns(self) -> int:
        """
        When the message was stored, in nanoseconds since 1970.
        """
        if self._block is None:
            return self._said[3]
        return parse_time_ns(_text(self._block, b"Nats-Time-Stamp"))

    @property
    def timestamp(self) -> dt.datetime:
        """
        When the message was stored, as an aware datetime; microseconds are the last digit.
        """
        return time_of(self.timestamp_ns)

    @property
    def raw_headers(self) -> bytes | None:
        """
        Header block as it came, with what the server added behind the message's own, for those who
        look for one header in each of many messages; ``None`` where it came in another form.
        """
        return self._block

    @property
    def headers(self) -> Headers:
        """
        The headers the message was stored with, empty when there are none; always the same object.
        """
        try:
            return self._headers
        except AttributeError:
            block = self._block or b""
            # Servers put their own lines behind those of the message, so theirs begin at the last
            # one.
            end = block.rfind(_SERVER_LINES)
            self._headers = Headers.parse(block if end < 0 else block[: end + 2])[2]
            return self._headers

    @property
    def marker(self) -> MarkerReason | None:
        """
        Why a server left this marker in the place of expired messages; ``None`` for ordinary ones
        (ADR-43).
        """
        return marker_of(self._headers) if self._block is None else marker_in(self._block, self)

    @property
    def ttl(self) -> float | Literal["never"] | None:
        """
        Time-to-live in seconds, ``"never"``, or ``None`` when the message has none (ADR-43).
        """
        if self._block is None:
            return parse_ttl(self._headers.get(TTL))
        return ttl_in(self._block, self)

    def _parts(self) -> tuple[str, str, int, int]:
        return self.stream, self.subject, self.sequence, self.timestamp_ns

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, StoredMessage):
            return NotImplemented
        mine, theirs = self._parts(), other._parts()
        return mine == theirs and self.data == other.data and self.headers == other.headers

    def __hash__(self) -> int:
        return hash((self._parts(), self.data))

    def __reduce__(self) -> tuple[Any, ...]:
        return StoredMessage, (*self._parts(), self.headers, self.data)

    def __repr__(self) -> str:
        where = f"stream {self.stream!r} sequence {self.sequence}"
        return f"<StoredMessage {self.subject!r} {len(self.data)} bytes, {where}>"


class StoredPage(Sequence[StoredMessage]):
    """
    Messages that were read together, in their order, with their parts as columns.

    A sequence of :class:`StoredMessage`; each column is a list as long as it. Columns are made on
    first use, all at once, much faster than by asking each message. Threads: any number may use it.
    """

    __slots__ = ("_messages", "_parts")

    def __init__(self, messages: Sequence[StoredMessage]) -> None:
        """
        Make a page of these messages.
        """
        self._messages = messages
        self._parts: tuple[list[str], list[int], list[int]] | None = None

    def __len__(self) -> int:
        return len(self._messages)

    @overload
    def __getitem__(self, index: int) -> StoredMessage: ...

    @overload
    def __getitem__(self, index: slice) -> StoredPage: ...

    def __getitem__(self, index: int | slice) -> StoredMessage | StoredPage:
        found = self._messages[index]
        return found if isinstance(found, StoredMessage) else StoredPage(found)

    def __repr__(self) -> str:
        ends = f", sequences {self[0].sequence} to {self[-1].sequence}" if self._messages else ""
        return f"<StoredPage of {len(self)} messages{ends}>"

    @property
    def subjects(self) -> list[str]:
        """
        Subjects the messages were published to.
        """
        return self._columns()[0]

    @property
    def sequences(self) -> list[int]:
        """
        Places in the stream.
        """
        return self._columns()[1]

    @property
    def timestamps_ns(self) -> list[int]:
        """
        When the messages were stored, in nanoseconds since 1970.
        """
        return self._columns()[2]

    @property
    def data(self) -> list[bytes]:
        """
        Payloads.
        """
        return [message.data for message in self._messages]

    def _columns(self) -> tuple[list[str], list[int], list[int]]:
        if self._parts is None:
            self._parts = _fast_columns(self._messages) or (
                [message.subject for message in self._messages],
                [message.sequence for message in self._messages],
                [message.timestamp_ns for message in self._messages],
            )
        return self._parts


def _fast_columns(
    messages: Sequence[StoredMessage],
) -> tuple[list[str], list[int], list[int]] | None:
    """
    Return subjects, sequences and times, ``None`` if some block is not as servers make them.
    """
    blocks = [message._block for message in messages]  # noqa: SLF001  (its own module)
    if not blocks or None in blocks:
        return None
    rows = _ADDED.findall(b"".join(blocks))  # type: ignore[arg-type]
    if len(rows) != len(blocks):
        return None
    subjects, sequences, seconds, fractions = zip(*rows, strict=True)
    # A page has few different seconds.
    known = {text: parse_time_ns(text.decode() + "Z") for text in set(seconds)}
    return (
        # No subject has a line end in it.
        b"\n".join(subjects).decode("utf-8", "surrogateescape").split("\n"),
        list(map(int, sequences)),
        [
            known[second] + int(fraction.ljust(9, b"0"))
            for second, fraction in zip(seconds, fractions, strict=True)
        ],
    )


def stored_messages(frames: Sequence[Frame]) -> list[StoredMessage]:
    """
    Return the messages of a run of answers to a direct get, as :meth:`StoredMessage.from_direct`.
    """
    made = []
    new = StoredMessage.__new__
    for _, _, block, data in frames:
        message = new(StoredMessage)
        message._block = block  # noqa: SLF001  (its own module)
        message.data = data
        made.append(message)
    return made


# Each is a search from the end of the block, a third of a microsecond. Keeping what was found would
# cost the same again, and one more slot in every message.


def _raw(block: bytes, name: bytes) -> bytes:
    value = find_last(block, name)
    if value is None:
        raise ProtocolError(f"an answer to a direct get lacks the header {name.decode()}")
    return value


def _text(block: bytes, name: bytes) -> str:
    return _raw(block, name).decode("utf-8", "surrogateescape")
