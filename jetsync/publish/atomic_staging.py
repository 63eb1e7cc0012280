"""
Messages of an atomic batch, from what a user gives to the bytes that go out.

All that can be wrong with a message is found when it is added, long before the server would say so
at the commit. What is kept of it is enough to send the batch once more, under another id.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

from jetsync._proto.batch import NO_COUNTERS, HeaderRules
from jetsync._proto.frames import hpub
from jetsync.errors import BatchRuleError, InvalidArgumentError, InvalidSubjectError
from jetsync.publish.capability import MARKER_LEVEL
from jetsync.publish.encode import Encoder
from jetsync.values import headers as names
from jetsync.values.outbound import subject_of, with_ttl

if TYPE_CHECKING:
    from jetsync._api.context import Context
    from jetsync._api.known_streams import KnownStream
    from jetsync._base.deadline import Deadline, Seconds
    from jetsync._proto.batch import Entry

    BatchItem = tuple[bytes, bytes, bytes]
    """Subject, header lines that follow those of the batch, payload."""

_MAGIC: Final = b"NATS/1.0\r\n"
_NO_HEADERS: Final = b"\r\n"
_COMMIT_SIZE: Final = len("Nats-Batch-Commit: 1\r\n")
_DIGITS: Final = 4
"""Digits of a batch sequence that sizes are checked with."""


class Wire:
    """
    Make the protocol blocks of one batch.
    """

    __slots__ = ("_head", "_plain", "_size", "batch_id", "head_size")

    def __init__(self, batch_id: str) -> None:
        self.batch_id: str = batch_id
        head = b"%bNats-Batch-Id: %b\r\nNats-Batch-Sequence: " % (_MAGIC, batch_id.encode())
        self._head = head
        self._size = len(head) + len(b"\r\n")
        self.head_size: int = self._size + _DIGITS + _COMMIT_SIZE
        """Bytes that a batch adds to a message at most."""
        escaped = head.replace(b"%", b"%%")
        self._plain = b"HPUB %%b %%d %%d\r\n%b%%d\r\n%%b%%b\r\n" % escaped

    def block(self, entry: Entry[BatchItem], last: BatchItem, reply: bytes = b"") -> bytes:
        """
        Return the block of *entry*; *last* is the message before an entry that has none.
        """
        if entry.item is not None and not entry.commit and not reply:
            target, tail, payload = entry.item
            size = self._size + len(b"%d" % entry.sequence) + len(tail)
            return self._plain % (
                target, size, size + len(payload), entry.sequence, tail, payload,
            )  # fmt: skip
        target, header, payload = self.parts(entry, last)
        return hpub(target, reply, header, payload)

    def parts(self, entry: Entry[BatchItem], last: BatchItem) -> tuple[bytes, bytes, bytes]:
        """
        Return the subject, the header block and the payload of *entry*.
        """
        target, tail, payload = entry.item or (last[0], _NO_HEADERS, b"")
        commit = b"Nats-Batch-Commit: %b\r\n" % entry.commit if entry.commit else b""
        return target, b"%b%d\r\n%b%b" % (self._head, entry.sequence, commit, tail), payload


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
        self._ttl = ttl
        self._rules = HeaderRules(counters=known.level >= MARKER_LEVEL)
        self._encoder = Encoder(context.connection, check=self._check_stream)
        self._deadline: Deadline
        self._head_size = head_size
        self._stream_size: int | None
        self._measure(known.config.max_msg_size)
        self._largest = 0
        """Bytes of the largest message that was taken, without what the batch adds."""

        self.count: int = 0
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

    def admit(self, item: Any, deadline: Deadline) -> BatchItem:
        """
        Return what is kept of a message.

        Raises:
            InvalidArgumentError, InvalidTypeError: It cannot be sent, or not in this batch.
            WrongLastSequenceError, DuplicateMessageIdError: As the server would refuse it.
        """
        if self._ttl is not None:
            item = with_ttl(item, self._ttl)
        self._deadline = deadline
        target, header, payload, pairs = self._encoder.encode(item)
        tail = header[len(_MAGIC) :] or _NO_HEADERS
        subject = subject_of(item)
        size = len(tail) + len(payload)
        if size > self._room:
            self._refuse_size(subject, size, deadline)
        # Last, as what it takes it remembers.
        self._rules.take(subject, pairs)
        self.count += 1
        self._largest = max(self._largest, size)
        return target, tail, payload

    def _check_stream(self, subject: str) -> None:
        """Raise unless *subject* belongs to the stream of the batch."""
        if not self._known.takes(subject):
            # The stream may have been given more subjects since it was looked up.
            other = self._context.streams.find(subject, self._deadline, fresh=True)
            if other.name != self._known.name:
                raise InvalidSubjectError(
                    subject,
                    f"it belongs to stream {other.name!r}, and the batch to {self._known.name!r}",
                )

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
