"""
Messages read from a stream without a consumer (ADR-31).
"""

from __future__ import annotations

import datetime as dt
import itertools
import operator
import re
from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, overload

from jetsync._base.integers import read_digits
from jetsync._base.iterations import ListIteration
from jetsync._base.speedups import with_twin
from jetsync.errors import DecodeError, InvalidArgumentError, ProtocolError
from jetsync.values.arrow import DEFAULT_COLUMNS, arrow_columns
from jetsync.values.codec import UNIX_EPOCH, parse_time_ns
from jetsync.values.frame import FrameRun, join_runs
from jetsync.values.headers import TTL, FixedHeaders, block_of, find_last, own_block
from jetsync.values.json_payloads import parse_json
from jetsync.values.outbound import payload_bytes
from jetsync.values.ttl import marker_in, marker_of, omitted_in, parse_ttl, ttl_in

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa

    from jetsync.values.frame import Frames
    from jetsync.values.headers import Headers, HeadersInput
    from jetsync.values.outbound import Payload
    from jetsync.values.ttl import MarkerReason

__all__ = ["StoredMessage", "StoredPage"]

_SUBJECT_LINE: Final = b"\r\nNats-Subject: "

# The headers that servers add to an answer, in their order, up to the end of the block. The headers
# of the message itself may contain the same text.
_ADDED_BLOCK: Final = re.compile(
    rb"\r\nNats-Subject: ([^\r\n]*)\r\nNats-Sequence: (\d{1,20})"
    rb"\r\nNats-Time-Stamp: (\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)\.?(\d{0,9})Z"
    rb"(?:\r\nNats-Num-Pending: \d+\r\nNats-Last-Sequence: \d+)?\r\n\r\n"
)


def time_of(timestamp_ns: int) -> dt.datetime:
    """
    Return nanoseconds since 1970 as an aware datetime in UTC, truncated to microseconds.
    """
    # With integers, because a float of seconds has too few digits for microseconds.
    try:
        return UNIX_EPOCH + dt.timedelta(microseconds=timestamp_ns // 1000)
    except OverflowError as error:
        raise ProtocolError(f"the time {timestamp_ns} ns is out of range") from error


def _nanoseconds(moment: dt.datetime | int) -> int:
    if isinstance(moment, int):
        return moment
    if moment.tzinfo is None:
        raise InvalidArgumentError(
            "timestamp must have a time zone, and this datetime is naive", argument="timestamp"
        )
    since = moment - UNIX_EPOCH
    return ((since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds) * 1000


@with_twin
class StoredStorage:
    """
    The storage of a :class:`StoredMessage`. Its compiled twin also has the attribute ``data``.
    """

    # A scan makes several hundred thousand messages per second, and for most of them only the data
    # is read.
    __slots__ = ("_block", "_data", "_headers", "_parts")


class StoredMessage(StoredStorage):
    """
    A message read from a stream without a consumer (ADR-31).

    Immutable, comparable, picklable and thread-safe; :meth:`replace` returns a changed copy.
    ``headers`` are those that the message was stored with. The headers that servers add to their
    answer are in the other attributes.
    """

    __slots__ = ()

    # The header block of a message from a server; the parts are read from it when they are used.
    _block: bytes | None
    _headers: Headers
    # The last one is the header block without lines of a server.
    _parts: tuple[str, str, int, int, bytes | None]

    def __init__(  # noqa: PLR0917  (the order of the documented fields)
        self,
        stream: str,
        subject: str,
        sequence: int,
        timestamp: dt.datetime | int,
        headers: Headers | None = None,
        data: bytes = b"",
        *,
        raw_headers: bytes | None = None,
    ) -> None:
        """
        Make a message from its parts.

        Args:
            stream: The stream that stores it.
            subject: The subject that it was published to.
            sequence: Its stream sequence.
            timestamp: When it was stored: an aware datetime, or nanoseconds since 1970.
            headers: The headers that it was stored with.
            data: The payload.
            raw_headers: The header block that it was stored with, instead of *headers*.
        """
        self._block = None
        self._parts = (stream, subject, sequence, _nanoseconds(timestamp), raw_headers)
        if headers is not None or raw_headers is None:
            self._headers = FixedHeaders(headers)
        self._data = data

    # As in `Message`.
    if not hasattr(StoredStorage, "data"):

        @property
        def data(self) -> bytes:
            """
            The payload.
            """
            return self._data

    @classmethod
    def from_direct(cls, header_block: bytes, data: bytes) -> StoredMessage:
        """
        Make a message from an answer to a direct get that has no status.

        The parts are decoded when they are used. If the block lacks one, that raises
        ``ProtocolError``.
        """
        message = cls.__new__(cls)
        message._block = header_block  # noqa: SLF001  (its own class)
        message._data = data  # noqa: SLF001
        return message

    @property
    def stream(self) -> str:
        """
        The stream that stores the message. If a mirror answered, this may be the mirror.
        """
        return self._parts[0] if self._block is None else _text(self._block, b"Nats-Stream")

    @property
    def subject(self) -> str:
        """
        The subject that the message was published to.
        """
        return self._parts[1] if self._block is None else _text(self._block, b"Nats-Subject")

    @property
    def sequence(self) -> int:
        """
        The stream sequence.
        """
        if self._block is None:
            return self._parts[2]
        return read_digits(_text(self._block, b"Nats-Sequence"))

    @property
    def timestamp_ns(self) -> int:
        """
        When the message was stored, in nanoseconds since 1970.
        """
        if self._block is None:
            return self._parts[3]
        return parse_time_ns(_text(self._block, b"Nats-Time-Stamp"))

    @property
    def timestamp(self) -> dt.datetime:
        """
        When the message was stored, as an aware datetime in UTC, truncated to microseconds.
        """
        return time_of(self.timestamp_ns)

    @property
    def raw_headers(self) -> bytes | None:
        """
        The header block as the server sent it; ``None`` if there is none.

        It has everything that the publisher sent, also bytes that are not valid headers. The server
        adds its own lines to the answer of a direct get, in place of the last two bytes. Use
        ``raw_headers`` to search many messages for one header.
        """
        return self._parts[4] if self._block is None else self._block

    @property
    def headers(self) -> Headers:
        """
        The headers that the message was stored with; empty if there are none.

        Each access returns the same object, which cannot be changed: change ``headers.copy()``. See
        :meth:`Headers.parse` for what is read from bytes that are not valid headers.
        """
        try:
            return self._headers
        except AttributeError:
            block = self._block
            own = (self._parts[4] or b"") if block is None else own_block(block)
            self._headers = FixedHeaders.parse(own)[2] if own else FixedHeaders()
            return self._headers

    @property
    def marker(self) -> MarkerReason | None:
        """
        Why a server stored this message as a marker in place of removed messages; ``None`` for
        ordinary messages (ADR-43).
        """
        block = self.raw_headers
        return marker_of(self.headers) if block is None else marker_in(block, self)

    @property
    def ttl(self) -> float | Literal["never"] | None:
        """
        The time-to-live in seconds, ``"never"``, or ``None`` if the message has none (ADR-43).
        """
        block = self.raw_headers
        return parse_ttl(self.headers.get(TTL)) if block is None else ttl_in(block, self)

    @property
    def omitted_bytes(self) -> int | None:
        """
        The size of the payload that the server left out, in bytes; ``None`` if it left out nothing.

        Consumers with ``headers_only`` leave out payloads, and so does ``republish`` if it says so.
        """
        return omitted_in(self._data, self.raw_headers, self)

    def replace(
        self, *, data: Payload | None = None, headers: HeadersInput | None = None
    ) -> StoredMessage:
        """
        Return a copy with another payload or other headers, for example in a hook.

        The copy has the stream, the subject, the sequence and the time of this message.

        Args:
            data: The payload of the copy. Default: that of this message.
            headers: The headers of the copy. Default: those of this message. ``{}`` removes them.

        Raises:
            InvalidTypeError, InvalidArgumentError: The payload is neither bytes nor text.
            InvalidHeaderError: A header would break the header block.
        """
        payload = self._data if data is None else bytes(payload_bytes(data))
        own = getattr(self, "_headers", None)
        if headers is None:
            parts = getattr(self, "_parts", None)
            return _copied(self._block, parts, own, payload)
        own = FixedHeaders(headers)
        about = self.stream, self.subject, self.sequence, self.timestamp_ns
        return _copied(None, (*about, block_of(own)), own, payload)

    def json(self) -> Any:
        """
        Return the payload as the value of its JSON document. Each call parses the payload.

        Raises:
            DecodeError: The payload is not JSON. The error names the stream, the sequence and the
                subject.
        """
        return parse_json(self._data, self._undecodable)

    def _undecodable(self, reason: str) -> DecodeError:
        return DecodeError(
            "payload",
            reason,
            subject=self.subject,
            stream=self.stream,
            sequence=self.sequence,
        )

    def _values(self) -> tuple[object, ...]:
        """Return what makes messages equal."""
        own = self.stream, self.subject, self.sequence, self.timestamp_ns
        return *own, self.headers, self._data

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, StoredMessage):
            return NotImplemented
        return self._values() == other._values()

    def __hash__(self) -> int:
        return hash((self.stream, self.subject, self.sequence, self.timestamp_ns, self._data))

    def __reduce__(self) -> tuple[Any, ...]:
        parts = getattr(self, "_parts", None), getattr(self, "_headers", None)
        return _copied, (self._block, *parts, self._data)

    def __repr__(self) -> str:
        where = f"stream {self.stream!r} sequence {self.sequence}"
        return f"<StoredMessage {self.subject!r} {len(self._data)} bytes, {where}>"


Run: TypeAlias = "FrameRun | Sequence[StoredMessage]"


class StoredPage(Sequence[StoredMessage]):
    """
    Messages that were read together, in their order, with their parts as columns.

    A sequence of :class:`StoredMessage`. Each column is a list of the same length. jetsync makes
    all columns together, which is much faster than a loop over the messages. A page from a server
    keeps the bytes as they arrived. Each access to a message makes a new object. Thread-safe.
    """

    __slots__ = ("_columns", "_runs")

    def __init__(self, messages: Sequence[StoredMessage]) -> None:
        """
        Make a page of messages.
        """
        self._runs: Sequence[Run] = [messages]
        self._columns: tuple[list[str], list[int], list[int]] | None = None

    def __len__(self) -> int:
        return sum(map(len, self._runs))

    def __iter__(self) -> Iterator[StoredMessage]:
        return ListIteration((messages_of(run) for run in self._runs), "page")

    @overload
    def __getitem__(self, index: int) -> StoredMessage: ...

    @overload
    def __getitem__(self, index: slice) -> StoredPage: ...

    def __getitem__(self, index: int | slice) -> StoredMessage | StoredPage:
        if isinstance(index, slice):
            return StoredPage(list(self)[index])
        place = index if index >= 0 else index + len(self)
        for run in self._runs if place >= 0 else ():
            if place < len(run):
                found = run[place]
                if isinstance(found, StoredMessage):
                    return found
                return StoredMessage.from_direct(found[2] or b"", found[3])
            place -= len(run)
        raise IndexError(f"the page has {len(self)} messages, and no message {index}")

    def __repr__(self) -> str:
        ends = f", sequences {self[0].sequence} to {self[-1].sequence}" if len(self) else ""
        return f"<StoredPage of {len(self)} messages{ends}>"

    @property
    def subjects(self) -> list[str]:
        """
        The subjects that the messages were published to.
        """
        return self._parts()[0]

    @property
    def sequences(self) -> list[int]:
        """
        The stream sequences.
        """
        return self._parts()[1]

    @property
    def timestamps_ns(self) -> list[int]:
        """
        When the messages were stored, in nanoseconds since 1970.
        """
        return self._parts()[2]

    @property
    def data(self) -> list[bytes]:
        """
        The payloads.
        """
        found: list[bytes] = []
        for run in self._runs:
            if isinstance(run, FrameRun):
                data, bounds = run.data, run.bounds
                found += [data[a:b] for a, b in zip(bounds[1::3], bounds[2::3], strict=True)]
            else:
                found += [message.data for message in run]
        return found

    def to_arrow(self, columns: Iterable[str] = DEFAULT_COLUMNS) -> pa.RecordBatch:
        """
        Return the messages as a ``pyarrow.RecordBatch``, as :meth:`StreamScan.to_arrow` does.

        Args:
            columns: As in :meth:`StreamScan.to_arrow`.

        Raises:
            ConfigurationError: pyarrow is not installed.
            InvalidArgumentError: A name is unknown or given twice, or no name is given.
            ProtocolError: A header block from the server lacks a required header.
        """
        return arrow_columns(columns).batch(len(self), self._frame_runs(), self._column)

    def _column(self, name: str) -> Sequence[Any]:
        """Return the value of each message in a column of :meth:`to_arrow`."""
        if name == "headers":
            return [message.headers for message in self]
        if name == "data":
            return self.data
        if name == "subject":
            return self.subjects
        return self.sequences if name == "sequence" else self.timestamps_ns

    @property
    def payloads(self) -> tuple[bytes, array[int]]:
        """
        The payloads in one buffer, and the start and end positions of each payload in it.

        Use it to convert many payloads without a bytes object for each. The buffer has other bytes
        between the payloads.
        """
        runs = self._frame_runs()
        begins: Sequence[int]
        ends: Sequence[int]
        if runs:
            run = join_runs(runs, lambda bounds, by: array("i", map(operator.add, bounds, by)))
            self._runs = [run]
            buffer, begins, ends = run.data, run.bounds[1::3], run.bounds[2::3]
        else:
            data = self.data
            buffer = b"".join(data)
            ends = list(itertools.accumulate(map(len, data)))
            begins = [end - len(each) for end, each in zip(ends, data, strict=True)]
        places = array("q", bytes(16 * len(ends)))
        places[0::2], places[1::2] = array("q", begins), array("q", ends)
        return buffer, places

    def _frame_runs(self) -> list[FrameRun]:
        """Return the runs; none if some messages were not read from a server."""
        # Read once, because another thread may replace them.
        runs = self._runs
        found = [run for run in runs if isinstance(run, FrameRun)]
        return found if len(found) == len(runs) else []

    def _parts(self) -> tuple[list[str], list[int], list[int]]:
        if self._columns is None:
            self._columns = _fast_columns(self._runs) or (
                [message.subject for message in self],
                [message.sequence for message in self],
                [message.timestamp_ns for message in self],
            )
        return self._columns


def _blocks(run: Run) -> list[bytes | None]:
    """Return the header blocks of messages; None for a message that was made from its parts."""
    if not isinstance(run, FrameRun):
        return [message._block for message in run]  # noqa: SLF001  (its own module)
    data, bounds = run.data, run.bounds
    return [data[a:b] for a, b in zip(bounds[0::3], bounds[1::3], strict=True)]


def _fast_columns(runs: Sequence[Run]) -> tuple[list[str], list[int], list[int]] | None:
    """
    Return subjects, sequences and times, ``None`` if a block is not as servers make it.
    """
    blocks = list(itertools.chain.from_iterable(map(_blocks, runs)))
    if not blocks or None in blocks:
        return None
    rows = _ADDED_BLOCK.findall(b"".join(blocks))  # type: ignore[arg-type]
    if len(rows) != len(blocks):
        return None
    subjects, sequences, seconds, fractions = zip(*rows, strict=True)
    # Many messages of a page share their second.
    known = {text: parse_time_ns(text.decode() + "Z") for text in set(seconds)}
    return (
        # No subject contains a line end.
        b"\n".join(subjects).decode("utf-8", "surrogateescape").split("\n"),
        list(map(int, sequences)),
        [
            known[second] + int(fraction.ljust(9, b"0"))
            for second, fraction in zip(seconds, fractions, strict=True)
        ],
    )


def quick_parts(message: StoredMessage) -> tuple[int, dt.datetime, bool]:
    """
    Return the sequence, the time, and whether the message may have headers.

    This costs a third as much as reading them one by one, because it makes one search and no
    nanoseconds.
    """
    block = message._block  # noqa: SLF001  (its own module)
    if block is None:
        return message.sequence, message.timestamp, True
    added = _ADDED_BLOCK.match(block, max(block.rfind(_SUBJECT_LINE), 0))
    if added is None:
        return message.sequence, message.timestamp, True
    seconds, fraction = added.group(3, 4)
    try:
        moment = dt.datetime.fromisoformat(f"{seconds.decode()}.{fraction[:6].decode():0<6}+00:00")
    except ValueError:  # A leap second is 60.
        moment = message.timestamp
    return int(added[2]), moment, bool(own_block(block))


def stored_messages(frames: Frames) -> list[StoredMessage]:
    """
    Make messages from a run of answers, as :meth:`StoredMessage.from_direct` makes one.
    """
    if isinstance(frames, FrameRun):
        return stored_of_run(StoredMessage, frames.data, frames.bounds)
    made = []
    new = StoredMessage.__new__
    for _, _, block, data in frames:
        message = new(StoredMessage)
        message._block = block  # noqa: SLF001  (its own module)
        message._data = data  # noqa: SLF001
        made.append(message)
    return made


@with_twin
def stored_of_run(
    kind: type[StoredMessage], data: bytes, bounds: array[int]
) -> list[StoredMessage]:
    """
    Make the messages of a run, whose parts are *data* and *bounds*.
    """
    made = []
    new = kind.__new__
    places = iter(bounds)
    for start, middle, end in zip(places, places, places):  # noqa: B905  (strict costs time)
        message = new(kind)
        message._block = data[start:middle]  # noqa: SLF001  (its own module)
        message._data = data[middle:end]  # noqa: SLF001
        made.append(message)
    return made


def page_of(runs: Sequence[Run]) -> StoredPage:
    """
    Make a page of runs that were read from a server.
    """
    page = StoredPage(())
    page._runs = runs  # noqa: SLF001  (its own module)
    return page


def messages_of(run: Run) -> list[StoredMessage]:
    """
    Return the messages of a run as a new list.
    """
    return stored_messages(run) if isinstance(run, FrameRun) else list(run)


def _copied(
    block: bytes | None,
    parts: tuple[str, str, int, int, bytes | None] | None,
    headers: Headers | None,
    data: bytes,
) -> StoredMessage:
    """Return the copy of a message, with the headers that a plugin may have replaced."""
    message = StoredMessage.from_direct(block or b"", data)
    if parts is not None:
        message._block, message._parts = None, parts  # noqa: SLF001  (its own module)
    if headers is not None:
        message._headers = headers  # noqa: SLF001  (its own module)
    return message


def _text(block: bytes, name: bytes) -> str:
    """Return the value of a header that the server added."""
    # A search from the end of the block takes a third of a microsecond. Keeping the value would
    # cost the same, and a slot in every message.
    value = find_last(block, name)
    if value is None:
        raise ProtocolError(f"an answer to a direct get lacks the header {name.decode()}")
    return value.decode("utf-8", "surrogateescape")
