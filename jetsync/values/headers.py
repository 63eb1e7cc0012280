"""
NATS message headers: ordered, case-sensitive, with any number of values per name.

A header block is ``NATS/1.0``, an optional status, one ``name: value`` per line and an empty line.
Servers treat names as case-sensitive and ignore ``nats-ttl``, so this module does the same. Values
are UTF-8.

Servers store the bytes of a publisher's header block without a check (measured on 2.10 to 2.15). So
reading a block never raises, and building one is strict.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Final, TypeAlias, Union, overload

from jetsync.errors import InvalidHeaderError, InvalidTypeError

if TYPE_CHECKING:
    from typing import NoReturn, TypeGuard


__all__ = ["Headers"]

HeadersInput: TypeAlias = Union["Headers", Mapping[str, "str | Sequence[str]"]]
"""
Headers to publish: a ``Headers`` object, or a mapping from name to one value or a list of values.
jetsync does not change it.
"""

# Publishing.
MSG_ID: Final = "Nats-Msg-Id"
"""The id of the message. The stream drops duplicates within its duplicate window."""
TTL: Final = "Nats-TTL"
"""The time-to-live of the message (ADR-43)."""
ROLLUP: Final = "Nats-Rollup"
"""``sub`` or ``all``: remove all older messages of the subject or of the stream."""
EXPECTED_STREAM: Final = "Nats-Expected-Stream"
"""Store the message only in this stream."""
EXPECTED_LAST_SEQUENCE: Final = "Nats-Expected-Last-Sequence"
"""Store the message only if this is the last sequence of the stream."""
EXPECTED_LAST_SUBJECT_SEQUENCE: Final = "Nats-Expected-Last-Subject-Sequence"
"""Store the message only if this is the last sequence of the subject; 0 means no message."""
EXPECTED_LAST_SUBJECT_SEQUENCE_SUBJECT: Final = "Nats-Expected-Last-Subject-Sequence-Subject"
"""The subject or wildcard of the expected subject sequence. The default is the message's own."""
EXPECTED_LAST_MSG_ID: Final = "Nats-Expected-Last-Msg-Id"
"""Store the message only if the last one of the stream has this id. Not allowed in batches."""
INCREMENT: Final = "Nats-Incr"
"""The change of a counter, for example ``+5``."""
COUNTER_SOURCES: Final = "Nats-Counter-Sources"
"""On a counter that adds up others: JSON with the values of each source stream and subject."""

# Message schedules, ADR-51. Server 2.12 knows all of them unless noted.
SCHEDULE: Final = "Nats-Schedule"
"""When to publish: ``@at`` and a time. Server 2.14 adds ``@every`` and cron with six fields."""
SCHEDULE_TARGET: Final = "Nats-Schedule-Target"
"""The subject to publish to."""
SCHEDULE_TTL: Final = "Nats-Schedule-TTL"
"""The time-to-live of the published message."""
SCHEDULE_SOURCE: Final = "Nats-Schedule-Source"
"""Publish a copy of the last message of this subject. Server 2.12 ignores it; 2.14 does not."""
SCHEDULE_TIME_ZONE: Final = "Nats-Schedule-Time-Zone"
"""The IANA time zone of a cron schedule. Server 2.14 or later."""
SCHEDULE_ROLLUP: Final = "Nats-Schedule-Rollup"
"""``sub``: the published message replaces those of its subject. Server 2.14 or later."""
SCHEDULER: Final = "Nats-Scheduler"
"""On a published message: the subject of its schedule."""
SCHEDULE_NEXT: Final = "Nats-Schedule-Next"
"""On a published message: when the next one is due, or ``purge`` if it was the last."""

# Atomic batches, ADR-50.
BATCH_ID: Final = "Nats-Batch-Id"
"""The id of the batch, up to 64 bytes."""
BATCH_SEQUENCE: Final = "Nats-Batch-Sequence"
"""The place of the message in its batch, from 1 without gaps."""
BATCH_COMMIT: Final = "Nats-Batch-Commit"
"""``1``: commit with this message. ``eob``: commit without storing it (API level 4)."""

# Servers add these to stored messages in direct gets (ADR-31).
STREAM: Final = "Nats-Stream"
"""The stream that answered; for a mirror, the mirror itself."""
SUBJECT: Final = "Nats-Subject"
"""The subject of the stored message. Since server 2.12 also the subject of a 503."""
SEQUENCE: Final = "Nats-Sequence"
"""The stream sequence of the message."""
NUM_PENDING: Final = "Nats-Num-Pending"
"""How many messages follow this one."""
UP_TO_SEQUENCE: Final = "Nats-UpTo-Sequence"
"""On the end marker of a multi-subject read: the sequence up to which it is consistent."""

# Pulls and statuses, ADR-37.
PENDING_MESSAGES: Final = "Nats-Pending-Messages"
"""On a status that ends a pull: how many messages of the pull were not delivered."""
PENDING_BYTES: Final = "Nats-Pending-Bytes"
"""On a status that ends a pull: how many bytes of the pull were not delivered."""
MSG_SIZE: Final = "Nats-Msg-Size"
"""The size of a payload that the server left out, in bytes."""
PIN_ID: Final = "Nats-Pin-Id"
"""The id of the pinned client of a priority group. Its next pulls must carry it."""

# Markers and key-value, ADR-43 and ADR-8.
MARKER_REASON: Final = "Nats-Marker-Reason"
"""Why the server replaced a message by a marker: ``MaxAge``, ``Remove`` or ``Purge``."""
KV_OPERATION: Final = "KV-Operation"
"""``DEL`` or ``PURGE`` on the message that deletes a key."""

_MAGIC: Final = b"NATS/1.0"
FIRST_LINE: Final = _MAGIC + b"\r\n"
"""The first line of a message, unless its publisher sent another one."""

# The first line that servers add to a stored message in a direct get. The values of its lines have
# no spaces, so the last such text in a block is the server's.
_ADDED: Final = STREAM.encode() + b": "

# The start of the names of headers that belong to servers, in lower case.
_SERVERS: Final = "nats-"

# The start of a line that is not a header: it has no name, or it continues the line before it.
_NO_NAME: Final = frozenset({"", " ", "\t"})

_FOLD: Final = re.compile("\r\n[ \t]+")
_LINE_END: Final = re.compile("\r\n(?![ \t])")

LONGEST_STATUS: Final = 9
"""The most digits of a status code. Servers send three."""


class Headers:
    """
    Header names with their values, in order. A name may have several values.

    ``headers["name"]`` is the first value, and ``get_all`` returns all of them. Lookup is
    case-sensitive, as on servers. Iteration, ``len`` and ``keys`` use distinct names. ``items``
    returns all pairs. Not thread-safe: while one thread changes headers, no other may use them.

    The headers of a received message cannot be changed. Change a copy that :meth:`copy` makes.
    """

    __slots__ = ("_pairs",)

    def __init__(self, headers: HeadersInput | Iterable[tuple[str, str]] | None = None) -> None:
        self._pairs: list[tuple[str, str]] = []
        if headers is None:
            return
        if type(headers) in _USUAL or is_headers(headers):
            self._pairs.extend(header_pairs(headers))
            return
        if not isinstance(headers, Iterable):
            _refuse_type(headers)
        for pair in headers:
            if not isinstance(pair, tuple) or len(pair) != 2:
                raise InvalidTypeError(
                    "headers must be pairs of name and value", argument="headers"
                )
            _check(*pair)
            self._pairs.append(pair)

    @classmethod
    def parse(cls, block: bytes) -> tuple[int | None, str, Headers]:
        """
        Split a whole header block into status code, description and headers.

        The code is ``None`` for an ordinary message. One space after the colon is skipped, and
        other spaces belong to the value. Bytes that are not UTF-8 become surrogates.

        Servers store whatever a publisher sends as headers, so any bytes can be parsed. A line that
        begins with a space or a tab continues the value before it, after one space. Other lines
        without a name and a colon are left out. The first line is never a header. If it is neither
        ``NATS/1.0`` nor a status with a number, the code is ``None`` and the description is that
        text.
        """
        first, _, rest = block.partition(b"\r\n")
        code, description = _split_status(first)
        pairs: list[tuple[str, str]] = []
        text = rest.decode("utf-8", "surrogateescape")
        is_folded = "\r\n " in text or "\r\n\t" in text
        for line in _unfolded(text) if is_folded else text.split("\r\n"):
            name, colon, value = line.partition(":")
            if colon and name[:1] not in _NO_NAME:
                pairs.append((name, value[1:] if value[:1] == " " else value))
        # Without the checks of the constructor, which would double the cost.
        headers = cls()
        headers._pairs = pairs
        return code, description, headers

    @overload
    def get(self, name: str, default: None = None) -> str | None: ...

    @overload
    def get(self, name: str, default: str) -> str: ...

    def get(self, name: str, default: str | None = None) -> str | None:
        """
        Return the first value of a name, or ``default``.
        """
        for key, value in self._pairs:
            if key == name:
                return value
        return default

    @overload
    def get_last(self, name: str, default: None = None) -> str | None: ...

    @overload
    def get_last(self, name: str, default: str) -> str: ...

    def get_last(self, name: str, default: str | None = None) -> str | None:
        """
        Return the last value of a name, or ``default``.

        Servers append their own headers, so this reads the value that the server added.
        """
        for key, value in reversed(self._pairs):
            if key == name:
                return value
        return default

    def get_all(self, name: str) -> list[str]:
        """
        Return all values of a name in order; an empty list if there are none.
        """
        return [value for key, value in self._pairs if key == name]

    def add(self, name: str, value: str) -> None:
        """
        Add a value after the existing values of a name.

        Raises:
            InvalidHeaderError: The name or the value would break the header block.
        """
        _check(name, value)
        self._pairs.append((name, value))

    def set(self, name: str, value: str | Sequence[str]) -> None:
        """
        Replace all values of a name.

        Raises:
            InvalidHeaderError: The name or a value would break the header block; the headers are
                unchanged.
        """
        fresh = list(header_pairs({name: value}))
        self.discard(name)
        self._pairs.extend(fresh)

    def discard(self, name: str) -> None:
        """
        Remove all values of a name; do nothing if there are none.
        """
        self._pairs = [pair for pair in self._pairs if pair[0] != name]

    def keys(self) -> list[str]:
        """
        Return the distinct names in the order of their first appearance.
        """
        return list(dict.fromkeys(key for key, _ in self._pairs))

    def items(self) -> list[tuple[str, str]]:
        """
        Return all pairs of name and value in order.
        """
        return list(self._pairs)

    def to_dict(self) -> dict[str, list[str]]:
        """
        Return a dictionary from each name to its values.
        """
        found: dict[str, list[str]] = {}
        for key, value in self._pairs:
            found.setdefault(key, []).append(value)
        return found

    def copy(self) -> Headers:
        """
        Return an independent copy.
        """
        return Headers(self)

    def forwardable(self) -> Headers:
        """
        Return the headers to publish a copy of a received message with.

        They lack all headers that start with ``Nats-``, because servers set them or act on them. A
        server refuses ``Nats-Stream-Source``, drops a copy with the ``Nats-Msg-Id`` of a message in
        the stream, and removes older messages because of ``Nats-Rollup``. ``Nats-Sequence`` and
        others describe the original. Give the copy an id and a time-to-live of its own with
        ``msg_id`` and ``ttl``. Headers that cannot be sent, such as a name with a space, are left
        out as well.
        """
        copy = Headers()
        copy._pairs = [
            (name, value)
            for name, value in self._pairs
            if not is_for_servers(name) and _can_be_sent(name, value)
        ]
        return copy

    def __getitem__(self, name: str) -> str:
        value = self.get(name)
        if value is None:
            raise KeyError(name)
        return value

    def __setitem__(self, name: str, value: str | Sequence[str]) -> None:
        self.set(name, value)

    def __delitem__(self, name: str) -> None:
        if name not in self:
            raise KeyError(name)
        self.discard(name)

    def __contains__(self, name: object) -> bool:
        return any(key == name for key, _ in self._pairs)

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def __len__(self) -> int:
        return len({key for key, _ in self._pairs})

    def __bool__(self) -> bool:
        return bool(self._pairs)

    def __eq__(self, other: object) -> bool:
        """
        Compare the values of each name; the order of different names does not matter.
        """
        if isinstance(other, Headers):
            return self.to_dict() == other.to_dict()
        if isinstance(other, Mapping):
            try:
                return self.to_dict() == Headers(other).to_dict()
            except (InvalidHeaderError, InvalidTypeError):
                return False
        return NotImplemented

    __hash__: ClassVar[None] = None  # type: ignore[assignment]  # They can change.

    def __repr__(self) -> str:
        return f"Headers({self.to_dict()!r})"


class FixedHeaders(Headers):
    """
    Headers that cannot be changed, such as those of a received message.
    """

    __slots__ = ()

    def _refuse(self, *_: object) -> NoReturn:
        """Raise InvalidTypeError, because others may hold the message."""
        raise InvalidTypeError(
            "these headers cannot be changed: change a copy of them, headers.copy()",
            argument="headers",
        )

    add: Callable[..., NoReturn] = _refuse
    set: Callable[..., NoReturn] = _refuse
    discard: Callable[..., NoReturn] = _refuse


class SharedHeaders(FixedHeaders):
    """
    Headers that many messages share, encoded once.

    Args:
        parts: Groups of headers. A message gets all headers of a group or none.

    Raises:
        InvalidHeaderError, InvalidTypeError: As ``Headers`` and ``encode_headers``.
    """

    __slots__ = ("block", "pairs", "parts")

    def __init__(self, *parts: HeadersInput | Iterable[tuple[str, str]]) -> None:
        pairs = [Headers(part).items() for part in parts]
        super().__init__(itertools.chain.from_iterable(pairs))
        self.parts: list[tuple[set[str], list[tuple[str, str]]]] = [
            ({name.lower() for name, _ in part}, part) for part in pairs
        ]
        """The names of each group, in lower case, and its pairs."""
        self.pairs: tuple[tuple[str, str], ...] = tuple(self._pairs)
        self.block: bytes = encode_headers(self.pairs)
        """The header block of a message that has no other headers."""


_USUAL: Final = (dict, Headers, FixedHeaders, SharedHeaders)
"""The usual types, which are checked first because ``isinstance`` with ``Mapping`` is slow."""


def is_for_servers(name: str) -> bool:
    """
    Return whether servers set a header or act on it.

    New servers may act on any name that starts with ``Nats-``. Names are case-sensitive, but the
    gateway of another protocol may change their case.
    """
    return name[: len(_SERVERS)].lower() == _SERVERS


def is_headers(headers: object) -> TypeGuard[HeadersInput]:
    """
    Return whether the type is valid for the headers of a message.
    """
    return isinstance(headers, (Headers, Mapping))


def check_headers(message: object) -> None:
    """
    Raise unless plugins can read the headers of a message.

    Raises:
        InvalidTypeError: The headers are neither a mapping nor None. An iterator of pairs, for
            example, would be exhausted by the first plugin.
    """
    headers = getattr(message, "headers", None)
    if headers is None or type(headers) in _USUAL or is_headers(headers):
        return
    _refuse_type(headers)


def header_pairs(headers: object) -> Iterator[tuple[str, str]]:
    """
    Check a user's headers and yield their pairs.

    Raises:
        InvalidHeaderError: A name or a value would break the header block.
        InvalidTypeError: The argument is neither ``Headers`` nor a mapping.
    """
    if isinstance(headers, Headers):
        yield from headers.items()
        return
    if isinstance(headers, Mapping):
        for name, value in headers.items():
            if isinstance(value, str):
                _check(name, value)
                yield name, value
            elif isinstance(value, Sequence) and not isinstance(
                value, (bytes, bytearray, memoryview)
            ):
                for one in value:
                    _check(name, one)
                    yield name, one
            else:
                _check(name, value)
        return
    _refuse_type(headers)


def encode_headers(pairs: Iterable[tuple[str, str]]) -> bytes:
    """
    Return a whole header block, from ``NATS/1.0`` to the empty line.

    Raises:
        InvalidHeaderError: A name or a value would break the block.
    """
    lines = []
    for name, value in pairs:
        _check(name, value)
        lines.append(f"{name}: {value}\r\n")
    return _encoded(lines)


def block_of(headers: Headers) -> bytes | None:
    """
    Return the header block of a message with these headers; ``None`` if there are none.

    Unlike :func:`encode_headers`, it accepts what was read from a message of any publisher.

    Raises:
        InvalidHeaderError: A value cannot be encoded.
    """
    if not headers:
        return None
    return _encoded([f"{name}: {value}\r\n" for name, value in headers.items()])


def _encoded(lines: list[str]) -> bytes:
    try:
        return FIRST_LINE + "".join(lines).encode("utf-8", "surrogateescape") + b"\r\n"
    except UnicodeEncodeError as error:
        raise InvalidHeaderError(
            repr(error.object[error.start]), "it cannot be encoded as UTF-8"
        ) from None


def parse_status(block: bytes) -> tuple[int | None, str]:
    """
    Return the status code and description of a header block, as :meth:`Headers.parse` does.

    Returns ``(None, "")`` for an ordinary message.
    """
    if block.startswith(FIRST_LINE):
        return None, ""
    return _split_status(block.partition(b"\r\n")[0])


def is_status(block: bytes) -> bool:
    """
    Return whether the answer to a direct get is a status, and not a stored message.

    Servers before 2.12 store status lines of publishers, too. But they add the name of the stream
    to each message, and never to a status.
    """
    return not block.startswith(FIRST_LINE) and _ADDED not in block


def own_size(block: bytes) -> int:
    """
    Return the size of a stored message's own headers, which the server's lines follow.

    Servers replace the last two bytes of the message's block. If these were no line end, the
    server's first line begins in the middle of a line.
    """
    size = block.rfind(_ADDED)
    return len(block) if size < 0 else size


def own_block(block: bytes) -> bytes:
    """
    Return a stored message's own headers with its first line; empty for a message without headers.
    """
    own = block[: own_size(block)]
    return b"" if own == FIRST_LINE else own


def find_last(block: bytes, name: bytes) -> bytes | None:
    """
    Return the value of a header that the server has added; ``None`` if there is none.

    The block is not parsed. The header may begin in the middle of a line, see :func:`own_size`.
    """
    start = block.rfind(name + b": ")
    if start < 0:
        return None
    start += len(name) + 2
    return block[start : block.find(b"\r\n", start)]


def _unfolded(text: str) -> Iterator[str]:
    """Yield lines together with those that continue them, in time that is linear in the text."""
    for line in _LINE_END.split(text):
        # The continuation of a line without a colon is no header either.
        if ":" in line.partition("\r\n")[0]:
            yield _FOLD.sub(" ", line)


def _split_status(line: bytes) -> tuple[int | None, str]:
    text = line.removeprefix(_MAGIC).strip()
    code, _, description = text.partition(b" ")
    if not line.startswith(_MAGIC) or len(code) > LONGEST_STATUS or not code.isdigit():
        return None, text.decode("utf-8", "replace")
    return int(code), description.strip().decode("utf-8", "replace")


def _refuse_type(headers: object) -> NoReturn:
    hint = ""
    if isinstance(headers, Iterable) and not isinstance(headers, (str, bytes)):
        hint = "; use Headers(pairs) for pairs"
    raise InvalidTypeError(
        f"headers must be a mapping or Headers, not {type(headers).__name__}{hint}",
        argument="headers",
    )


def _check(name: object, value: object) -> None:
    if not isinstance(name, str) or not isinstance(value, str):
        raise InvalidHeaderError(str(name), "name and value must be text")
    if not name:
        raise InvalidHeaderError(name, "the name is empty")
    if not name.isprintable() or " " in name or ":" in name:
        raise InvalidHeaderError(name, "the name contains a space, a colon or a control character")
    if "\r" in value or "\n" in value:
        raise InvalidHeaderError(name, "the value contains a line break")


def _can_be_sent(name: str, value: str) -> bool:
    try:
        _check(name, value)
    except InvalidHeaderError:
        return False
    return True
