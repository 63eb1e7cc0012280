"""
The messages of an atomic batch, from what the caller gives to the bytes that are sent.

Invalid messages are found when they are added, long before the server would refuse them at the
commit. The encoded messages are kept, so that the batch can be sent again under another id.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

from jetsync._proto.batch import NO_COUNTERS, HeaderRules
from jetsync._proto.frames import hpub
from jetsync.errors import BatchRuleError, InvalidArgumentError
from jetsync.publish.capability import MARKER_LEVEL, stream_for
from jetsync.publish.encode import Encoder
from jetsync.values import headers as names
from jetsync.values.outbound import subject_of, with_ttl

if TYPE_CHECKING:
    from jetsync._api.context import Context
    from jetsync._api.known_streams import KnownStream
    from jetsync._base.deadline import Deadline, Seconds
    from jetsync._proto.batch import Entry

    # Subject, header lines that follow those of the batch, payload.
    BatchItem = tuple[bytes, bytes, bytes]

_FIRST_LINE: Final = b"NATS/1.0\r\n"
_NO_HEADERS: Final = b"\r\n"

# Bytes of the commit header, and of the largest sequence of a batch.
_COMMIT_SIZE: Final = len("Nats-Batch-Commit: 1\r\n")
_SEQUENCE_SIZE: Final = 4


class Wire:
    """The frames of one batch."""

    __slots__ = ("_head", "_plain", "_size", "batch_id", "head_size")

    def __init__(self, batch_id: str) -> None:
        self.batch_id: str = batch_id
        head = b"%bNats-Batch-Id: %b\r\nNats-Batch-Sequence: " % (_FIRST_LINE, batch_id.encode())
        self._head = head
        self._size = len(head) + len(b"\r\n")
        self.head_size: int = self._size + _SEQUENCE_SIZE + _COMMIT_SIZE
        """Bytes that a batch adds to a message at most."""
        escaped = head.replace(b"%", b"%%")
        self._plain = b"HPUB %%b %%d %%d\r\n%b%%d\r\n%%b%%b\r\n" % escaped

    def block(self, entry: Entry[BatchItem], last: BatchItem, reply: bytes = b"") -> bytes:
        """Return the frame of *entry*; *last* is the message before an entry without one."""
        if entry.item is not None and not entry.commit and not reply:
            target, tail, payload = entry.item
            size = self._size + len(b"%d" % entry.sequence) + len(tail)
            return self._plain % (
                target, size, size + len(payload), entry.sequence, tail, payload,
            )  # fmt: skip
        target, header, payload = self.parts(entry, last)
        return hpub(target, reply, header, payload)

    def parts(self, entry: Entry[BatchItem], last: BatchItem) -> tuple[bytes, bytes, bytes]:
        """Return the subject, the header block and the payload of *entry*."""
        target, tail, payload = entry.item or (last[0], _NO_HEADERS, b"")
        commit = b"Nats-Batch-Commit: %b\r\n" % entry.commit if entry.commit else b""
        return target, b"%b%d\r\n%b%b" % (self._head, entry.sequence, commit, tail), payload


class Staging:
    """
    Checks and encodes the messages of one batch; not thread-safe.

    Args:
        context: Context of the batch.
        known: Stream of the batch.
        head_size: The most bytes that the batch adds to a message.
        ttl: Time-to-live of messages without one.
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
        self._ttl = ttl
        self._rules = HeaderRules(counters=known.level >= MARKER_LEVEL)
        self._encoder = Encoder(context.connection, check=self._check_stream)
        self._deadline: Deadline
        self._head_size = head_size
        self._measure(known.config.max_msg_size)
        # Bytes of the largest message, without what the batch adds.
        self._largest = 0
        # Messages admitted.
        self.count: int = 0

    def _measure(self, max_msg_size: int | None) -> None:
        """Set the limits for headers and payload from the stream and the server."""
        limit = self._context.server.max_payload
        # None if the server's limit is lower.
        self._stream_size: int | None = None
        if max_msg_size is not None and 0 < max_msg_size < limit:
            self._stream_size = limit = max_msg_size
        self._room = limit - self._head_size

    @property
    def has_message_ids(self) -> bool:
        """Whether every message has an id, so that the stream cannot store the batch twice."""
        return 0 < self.count == self._rules.ids

    def check_again(self, known: KnownStream, head_size: int) -> None:
        """
        Raise if the current server does not accept the messages, before they are sent again.

        Args:
            known: The stream as it is now.
            head_size: The most bytes that the batch adds to a message, with its next id.

        Raises:
            MaxPayloadError: A message is too large. The server would close the connection.
            BatchRuleError: A message changes a counter, which the server would destroy.
        """
        self._context.connection.check_size(self._largest + head_size)
        if self._rules.changes_counters and known.level < MARKER_LEVEL:
            raise BatchRuleError(names.INCREMENT, NO_COUNTERS)

    def admit(self, item: Any, deadline: Deadline) -> BatchItem:
        """
        Check a message and return its encoded parts.

        Raises:
            InvalidArgumentError, InvalidTypeError: It cannot be sent, or not in this batch.
            WrongLastSequenceError, DuplicateMessageIdError: The server would refuse it.
        """
        if self._ttl is not None:
            item = with_ttl(item, self._ttl)
        self._deadline = deadline
        target, header, payload, pairs = self._encoder.encode(item)
        tail = header[len(_FIRST_LINE) :] or _NO_HEADERS
        subject = subject_of(item)
        size = len(tail) + len(payload)
        if size > self._room:
            self._refuse_size(subject, size, deadline)
        # Last, because it records the message.
        self._rules.take(subject, pairs)
        self.count += 1
        self._largest = max(self._largest, size)
        return target, tail, payload

    def _check_stream(self, subject: str) -> None:
        stream_for(subject, self._known, self._context, self._deadline)

    def _refuse_size(self, subject: str, size: int, deadline: Deadline) -> None:
        """Raise unless the stream or the server has a higher limit by now."""
        size += self._head_size
        self._context.connection.check_size(size)
        if self._stream_size is not None:
            now = self._context.streams.find(subject, deadline, fresh=True)
            self._measure(now.config.max_msg_size)
        if self._stream_size is not None and size > self._stream_size:
            raise InvalidArgumentError(
                f"headers, with those of the batch, and payload have {size} bytes, but the"
                f" max_msg_size of stream {self._known.name!r} is {self._stream_size}",
                argument="data",
            )
