"""
Messages of an atomic batch, from what a user gives to the bytes that go out.

All that can be wrong with a message is found when it is added, long before the server would say so
at the commit. What is kept of it is enough to send the batch once more, under another id.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

from jetsync._proto.batch import NO_COUNTERS, HeaderRules
from jetsync._proto.frames import check_subject
from jetsync.errors import BatchRuleError, InvalidArgumentError, InvalidSubjectError
from jetsync.publish.capability import MARKER_LEVEL
from jetsync.values import headers as names
from jetsync.values.headers import SharedHeaders, encode_headers
from jetsync.values.outbound import coerce_outbound, outbound_header_pairs, payload_bytes
from jetsync.values.subjects import validate_subject
from jetsync.values.ttl import ttl_header

if TYPE_CHECKING:
    from jetsync._api.context import Context
    from jetsync._api.known_streams import KnownStream
    from jetsync._base.deadline import Deadline, Seconds
    from jetsync._proto.batch import Entry

    Staged = tuple[bytes, bytes, bytes]
    """Subject, header lines behind those of the batch, payload."""

_MAGIC: Final = b"NATS/1.0\r\n"
_NO_HEADERS: Final = b"\r\n"
_COMMIT_SIZE: Final = len("Nats-Batch-Commit: 1\r\n")
_DIGITS: Final = 4
"""Digits of a batch sequence that sizes are checked with."""


class Wire:
    """
    Make the protocol blocks of one batch.
    """

    __slots__ = ("_head", "_plain", "_size", "head_size")

    def __init__(self, batch_id: str) -> None:
        head = b"%bNats-Batch-Id: %b\r\nNats-Batch-Sequence: " % (_MAGIC, batch_id.encode())
        self._head = head
        self._size = len(head) + len(b"\r\n")
        self.head_size = self._size + _DIGITS + _COMMIT_SIZE
        """Bytes that a batch adds to a message at most."""
        escaped = head.replace(b"%", b"%%")
        self._plain = b"HPUB %%b %%d %%d\r\n%b%%d\r\n%%b%%b\r\n" % escaped

    def block(self, entry: Entry[Staged], last: Staged, reply: bytes = b"") -> bytes:
        """
        Return the block of *entry*; *last* is the message before an entry that has none.
        """
        sequence = b"%d" % entry.sequence
        if entry.item is None:
            target, tail, payload = last[0], _NO_HEADERS, b""
        else:
            target, tail, payload = entry.item
        if not entry.commit and not reply:
            size = self._size + len(sequence) + len(tail)
            return self._plain % (
                target, size, size + len(payload), entry.sequence, tail, payload,
            )  # fmt: skip
        commit = b"Nats-Batch-Commit: %b\r\n" % entry.commit if entry.commit else b""
        header = b"%b%b\r\n%b%b" % (self._head, sequence, commit, tail)
        size = len(header)
        return b"HPUB %b %b %d %d\r\n%b%b\r\n" % (
            target, reply, size, size + len(payload), header, payload,
        )  # fmt: skip


class Staging:
    """
    Check the messages of one batch; not synchronised.

    Args:
        context: Where the batch goes.
        known: The stream it belongs to.
        head_size: How many bytes the batch adds to a message.
        ttl: The time-to-live of messages that have none of their own.
    """

    def __init__(
        self,
        context: Context,
        known: KnownStream,
        head_size: int,
        ttl: Seconds | Literal["never"] | None,
    ) -> None:
        self._context = context
        self._known = known
        self._ttl = None if ttl is None else ttl_header(ttl)
        self._rules = HeaderRules(counters=known.level >= MARKER_LEVEL)
        self._targets: dict[str, bytes] = {}
        self._head_size = head_size
        self._stream_size: int | None
        self._measure(known.config.max_msg_size)
        self._largest = 0
        """Bytes of the largest message that was taken, without what the batch adds."""

        self.count = 0
        """How many messages were taken."""

    def _measure(self, largest: int | None) -> None:
        """Set how large a message may be; *largest* is what the stream says."""
        limit = self._context.server.max_payload
        self._stream_size = largest if largest is not None and 0 < largest < limit else None
        self._room = (self._stream_size or limit) - self._head_size

    @property
    def has_message_ids(self) -> bool:
        """Whether every message has an id, so that the batch cannot be stored twice."""
        return 0 < self.count == self._rules.ids

    def check_again(self, known: KnownStream, head_size: int) -> None:
        """
        Raise if what was admitted can not go to the stream as it is led now.

        Args:
            known: The stream.
            head_size: How many bytes the batch adds to a message, with its next id.

        Raises:
            MaxPayloadError: The server takes only smaller messages, and would end the connection.
            BatchRuleError: A message changes a counter, and the server would destroy it.
        """
        self._context.connection.check_size(self._largest + head_size)
        if self._rules.changes_counters and known.level < MARKER_LEVEL:
            raise BatchRuleError(names.INCREMENT, NO_COUNTERS)

    def admit(self, item: Any, deadline: Deadline) -> Staged:
        """
        Return what is kept of a message.

        Raises:
            InvalidArgumentError, InvalidTypeError: It cannot be sent, or not in this batch.
            WrongLastSequenceError, DuplicateMessageIdError: As the server would refuse it.
        """
        if type(item) is tuple and len(item) == 2 and self._ttl is None:
            subject, data = item
            payload = data if type(data) is bytes else bytes(payload_bytes(data))
            pairs = []
            tail = _NO_HEADERS
        elif (
            type(item) is tuple
            and len(item) == 3
            and type(item[2]) is SharedHeaders
            and self._ttl is None
        ):
            subject, data, shared = item
            payload = data if type(data) is bytes else bytes(payload_bytes(data))
            pairs = shared.items()
            tail = shared.block[len(_MAGIC) :]
        else:
            message = coerce_outbound(item)
            subject = message.subject
            payload = bytes(payload_bytes(message.data))
            pairs = outbound_header_pairs(message)
            if self._ttl is not None and all(name != names.TTL for name, _ in pairs):
                pairs.append((names.TTL, self._ttl))
            tail = encode_headers(pairs)[len(_MAGIC) :] if pairs else _NO_HEADERS
        try:
            target = self._targets[subject]
        except (KeyError, TypeError):
            target = self._learn(subject, deadline)
        size = len(tail) + len(payload)
        if size > self._room:
            self._refuse_size(subject, size, deadline)
        # Last, as what it takes it remembers.
        self._rules.take(subject, pairs)
        self.count += 1
        self._largest = max(self._largest, size)
        return target, tail, payload

    def _learn(self, subject: str, deadline: Deadline) -> bytes:
        """Return the subject as bytes, if it belongs to the stream of the batch."""
        validate_subject(subject)
        encoded = subject.encode()
        check_subject(encoded, self._context.connection.inbox)
        if not self._known.takes(subject):
            # The stream may have got more subjects since it was asked.
            other = self._context.streams.find(subject, deadline, fresh=True)
            if other.name != self._known.name:
                raise InvalidSubjectError(
                    subject,
                    f"it belongs to stream {other.name!r}, and the batch to {self._known.name!r}",
                )
        self._targets[subject] = encoded
        return encoded

    def _refuse_size(self, subject: str, size: int, deadline: Deadline) -> None:
        """Raise, unless larger messages are taken by now than when the batch began."""
        size += self._head_size
        self._context.connection.check_size(size)
        if self._stream_size is not None:
            now = self._context.streams.find(subject, deadline, fresh=True)
            self._measure(now.config.max_msg_size)
        if self._stream_size is not None and size > self._stream_size:
            raise InvalidArgumentError(
                f"headers, those of the batch included, and payload take {size} bytes,"
                f" the max_msg_size of stream {self._known.name!r} is {self._stream_size}",
                argument="data",
            )
