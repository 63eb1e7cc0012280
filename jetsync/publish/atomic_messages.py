"""
The options and the messages of an atomic batch. Messages are checked and encoded when they are
added.

Invalid messages are found long before the server would refuse them at the commit. The encoded
messages are kept, so that the batch can be sent again under another id.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import attrs
from attrs.validators import optional

from jetsync._api.known_streams import KnownStream
from jetsync._base.deadline import Deadline, Seconds
from jetsync._base.fields import wrong_type
from jetsync._proto.batch import NO_COUNTERS, HeaderRules, Part
from jetsync.errors import BatchRuleError, InvalidArgumentError, InvalidTypeError, JetSyncError
from jetsync.publish.batch_support import find_capable, require_atomic, stream_for
from jetsync.publish.encode import Encoder
from jetsync.publish.stage import MOST_STAGED_BYTES, Stage
from jetsync.values import headers as names
from jetsync.values.outbound import with_ttl
from jetsync.values.server_versions import MARKER_LEVEL
from jetsync.values.ttl import ttl_header

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from jetsync._api.context import Context

# Subject, header lines that follow those of the batch, payload.
BatchItem: TypeAlias = tuple[bytes, bytes, bytes]

_FIRST_LINE: Final = b"NATS/1.0\r\n"
_NO_HEADERS: Final = b"\r\n"

# Bytes of a batch id (ADR-50).
MAX_ID_BYTES: Final = 64


def _check_batch_id(_options: object, _field: object, value: Any) -> None:
    if not isinstance(value, str):
        raise wrong_type("batch_id", "a str", value)
    # With an empty id the server would store the messages one by one.
    if not 0 < len(value.encode("utf-8", "replace")) <= MAX_ID_BYTES:
        raise InvalidArgumentError(
            f"batch_id must have 1 to {MAX_ID_BYTES} bytes", argument="batch_id"
        )
    if not value.isprintable() or value != value.strip():
        raise InvalidArgumentError(
            f"batch_id {value!r} has control characters or surrounding spaces",
            argument="batch_id",
        )


def _check_ttl(_options: object, _field: object, value: Seconds | Literal["never"]) -> None:
    ttl_header(value)


@attrs.frozen(kw_only=True)
class AtomicOptions:
    """The options of one atomic batch; see :meth:`jetsync.JetStream.atomic_batch`."""

    # Seconds for each call.
    timeout: float
    batch_id: str | None = attrs.field(default=None, validator=optional(_check_batch_id))
    ack_first: bool = True
    ack_every: int = 0
    ttl: Seconds | Literal["never"] | None = attrs.field(
        default=None, validator=optional(_check_ttl)
    )
    broken_servers: bool = False
    # Looks up the stream of the batch by the subject of its first message; None asks the server.
    find_stream: Callable[[str, Deadline], KnownStream] | None = None
    # How often a batch is sent again if no stream answered, and the seconds before each attempt.
    retries: int = 0
    retry_wait: float = 0.25


class Wire:
    """The frames of one batch."""

    __slots__ = ("added", "head")

    def __init__(self, batch_id: str) -> None:
        # What comes before the sequence in the header block.
        self.head: bytes = b"%bNats-Batch-Id: %b\r\nNats-Batch-Sequence: " % (
            _FIRST_LINE, batch_id.encode()
        )  # fmt: skip
        # The most bytes that the batch adds to a message. A sequence has at most four digits.
        self.added: int = len(self.head) + len(b"1000\r\nNats-Batch-Commit: 1\r\n")

    def blocks(self, items: Iterable[BatchItem], first: int) -> Iterator[bytes]:
        """
        Return the frames of messages that need no answer, in blocks; *first* is their sequence.

        All blocks but the last one have at least :data:`MOST_STAGED_BYTES`.
        """
        stage = Stage({}, b"\r\n")
        stage.begin_in_headers(self.head)
        stage.allow(first - 1, 0, 0, 0)
        # Not one by one, which takes twice as long.
        messages, is_exhausted = iter(items), False
        while not is_exhausted:
            is_exhausted = stage.add_all(messages, MOST_STAGED_BYTES)
            if stage.count:
                yield stage.take()
                stage.written()

    def items(self, block: bytes) -> Iterator[BatchItem]:
        """Return the messages of a block of frames of this batch."""
        at = 0
        while at < len(block):
            start = block.index(b"\r\n", at) + 2
            _, target, header, size = block[at:start].split()
            payload, at = start + int(header), start + int(size) + 2
            tail = block.index(b"\r\n", start + len(self.head)) + 2
            yield target, block[tail:payload], block[payload : at - 2]

    def last(self, part: Part[BatchItem], targets: Mapping[str, bytes]) -> BatchItem:
        """
        Return the subject, the header block and the payload of the last message of *part*.

        A part without messages ends with a marker, which the server does not store. It goes to the
        first subject of the batch, which *targets* has.
        """
        if part.items:
            target, tail, payload = part.items[-1]
        else:
            target, tail, payload = next(iter(targets.values())), _NO_HEADERS, b""
        commit = b"Nats-Batch-Commit: %b\r\n" % part.commit if part.commit else b""
        number = part.first + max(len(part.items), 1) - 1
        return target, b"%b%d\r\n%b%b" % (self.head, number, commit, tail), payload


class BatchMessages:
    """
    Checks and encodes the messages of one batch.

    Args:
        context: Context of the batch.
        options: Options of the batch.
        batch_id: The id of the first attempt.
    """

    # Threads: those that have the turn of the batch. Staging reads `targets` without it.
    # Locks: none of its own.

    def __init__(self, context: Context, options: AtomicOptions, batch_id: str) -> None:
        # None before the first message.
        self.known: KnownStream | None = None
        self._context = context
        self._options = options
        self._find_stream = options.find_stream or partial(
            find_capable,
            context.streams.find,
            partial(require_atomic, context=context, broken_servers=options.broken_servers),
        )
        # Made when the stream is known.
        self._rules: HeaderRules
        self._encoder = Encoder(context.connection, check=self._check_stream)
        # The times-to-live of the batch, for each subject. The dictionary is an ordered set.
        self.ttls: dict[tuple[str, Any], None] = {}
        # The subjects of the batch, as text and as bytes.
        self.targets: dict[str, bytes] = {}
        self._deadline: Deadline
        self.wire: Wire = Wire(batch_id)
        # The largest payload of a pair that needs no further check.
        self.small: int = -1

    def _set_limits(self, max_msg_size: int | None) -> None:
        """Set the limits for headers and payload from the stream and the server."""
        limit = self._context.connection.server.max_payload
        # The limit of the stream; 0 if it has none, or if the server's limit is lower.
        self._stream_size = 0
        if max_msg_size is not None and 0 < max_msg_size < limit:
            self._stream_size = limit = max_msg_size
        self._room = limit - self.wire.added
        if self._options.ttl is None:
            self.small = self._room - len(_NO_HEADERS)

    def all_have_ids(self, count: int) -> bool:
        """Return whether all *count* messages have an id, so that none can be stored twice."""
        return 0 < count == self._rules.ids

    def prepare_resend(self, batch_id: str, items: Iterable[BatchItem], deadline: Deadline) -> None:
        """
        Look up the stream again, and raise unless its server accepts the messages.

        Args:
            batch_id: The id of the next attempt.
            items: All messages of the batch.
            deadline: Deadline of the call.

        Raises:
            MaxPayloadError: A message is too large. The server would close the connection.
            BatchRuleError: A message changes a counter, and this server would destroy the counter.
        """
        subject = next(iter(self.targets))
        known = self._find_stream(subject, deadline)
        wire = Wire(batch_id)
        largest = max(len(tail) + len(payload) for _, tail, payload in items)
        self._context.connection.check_size(largest + wire.added)
        if self._rules.changes_counters and known.level < MARKER_LEVEL:
            raise BatchRuleError(names.INCREMENT, NO_COUNTERS)
        self.known, self.wire = known, wire

    def admit_all(self, items: Iterable[Any], deadline: Deadline) -> list[BatchItem]:
        """Check messages as :meth:`admit` does; errors name the message, counted from 0."""
        targets, admitted = self.targets, []
        try:
            for item in items:
                # A small message needs no further check if the batch has its subject already.
                if type(item) is tuple and len(item) == 2:
                    subject, data = item
                    if type(data) is bytes and len(data) <= self.small and type(subject) is str:
                        target = targets.get(subject)
                        if target is not None:
                            admitted.append((target, _NO_HEADERS, data))
                            continue
                admitted.append(self.admit(item, deadline))
        except (InvalidArgumentError, InvalidTypeError) as error:
            _number(error, len(admitted))
            raise
        return admitted

    def admit(self, item: Any, deadline: Deadline) -> BatchItem:
        """
        Check a message and return its encoded parts.

        Raises:
            InvalidArgumentError, InvalidTypeError: It cannot be sent, or not in this batch.
            WrongLastSequenceError, DuplicateMessageIdError: The server would refuse it.
        """
        if self._options.ttl is not None:
            item = with_ttl(item, self._options.ttl)
        self._deadline = deadline
        target, header, payload, pairs = self._encoder.encode(item)
        tail = header[len(_FIRST_LINE) :] or _NO_HEADERS
        subject = target.decode()
        size = len(tail) + len(payload)
        if size > self._room:
            self._refuse_size(subject, size, deadline)
        # Last, because it records the message.
        self._rules.take(subject, pairs)
        self.targets[subject] = target
        ttl = getattr(item, "ttl", None)
        if ttl is not None:
            self.ttls[subject, ttl] = None
        return target, tail, payload

    def _check_stream(self, subject: str) -> None:
        if self.known is not None:
            stream_for(subject, self.known, self._context, self._deadline)
            return
        self.known = known = self._find_stream(subject, self._deadline)
        self._rules = HeaderRules(counters=known.level >= MARKER_LEVEL)
        self._set_limits(known.config.max_msg_size)

    def _refuse_size(self, subject: str, size: int, deadline: Deadline) -> None:
        """Raise unless the stream or the server has a higher limit by now."""
        size += self.wire.added
        self._context.connection.check_size(size)
        if not self._stream_size:
            return
        now = self._context.streams.find(subject, deadline, fresh=True)
        self._set_limits(now.config.max_msg_size)
        if 0 < self._stream_size < size:
            raise InvalidArgumentError(
                f"headers, with those of the batch, and payload have {size} bytes, but the"
                f" max_msg_size of stream {now.name!r} is {self._stream_size}",
                argument="data",
            )


def for_each(step: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
    """Apply *step* to messages of ``publish_batch``; errors name the message, counted from 0."""
    done: list[Any] = []
    try:
        # If a step raises, the list has the results of the steps before it.
        done.extend(map(step, items))
    except (InvalidArgumentError, InvalidTypeError) as error:
        _number(error, len(done))
        raise
    return done


def _number(error: JetSyncError, index: int) -> None:
    """Name the message of ``publish_batch`` in its error."""
    error.args = (f"messages[{index}]: {error}",)
