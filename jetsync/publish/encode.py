"""
Encode the messages that are published.

All ways to publish use this encoder. It raises an error for an invalid message before any byte of
the message is sent. It returns a whole frame, a block of frames, or the encoded parts for callers
that add the reply subject or headers later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias

from jetsync._base.fields import wrong_type
from jetsync._proto.frames import check_subject
from jetsync.errors import InvalidArgumentError, JetSyncError
from jetsync.values.headers import MSG_ID, TTL, SharedHeaders, encode_headers, header_pairs
from jetsync.values.outbound import (
    Expect,
    coerce_outbound,
    payload_bytes,
    require_text,
    with_shared,
)
from jetsync.values.server_versions import require_message
from jetsync.values.subjects import validate_subject
from jetsync.values.ttl import ttl_header

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from jetsync._io.connection import Connection
    from jetsync.publish.stage import Stage
    from jetsync.values.outbound import OutboundMessage

Encoded: TypeAlias = "tuple[bytes, bytes, bytes, Sequence[tuple[str, str]]]"
"""
An encoded message: subject, header block (empty if there are no headers), payload, header pairs.
"""

KNOWN_SUBJECTS: Final = 4096
"""How many valid subjects an encoder remembers. Most programs publish to few subjects."""

BLOCK_MESSAGES: Final = 512
"""The most messages in one write. Smaller blocks need more system calls, and larger ones let the
server idle while they are encoded."""

BLOCK_BYTES: Final = 128 << 10
"""A block is complete once its messages have this many bytes: 128 KiB."""


class Encoder:
    """
    Encode messages for one connection. Any thread may encode; one at a time may call ``renew``.

    Args:
        connection: The connection whose limits apply.
        suffix: The end of each reply subject, after the number.
        check: Called once with each new valid subject. May raise.
    """

    __slots__ = (
        "_check", "_connection", "_hpub", "_pub", "_version",
        "forgotten", "has_ttl", "limit", "targets",
    )  # fmt: skip

    def __init__(
        self,
        connection: Connection,
        suffix: bytes = b"",
        check: Callable[[str], None] | None = None,
    ) -> None:
        self._connection = connection
        self._check = check
        server = connection.server
        self.limit: int = server.max_payload
        self._version = server.version
        # Formats of frames: subject, reply prefix, number, sizes, (headers,) payload.
        self._pub = b"PUB %%b %%b%%d%b %%d\r\n%%b\r\n" % suffix
        self._hpub = b"HPUB %%b %%b%%d%b %%d %%d\r\n%%b%%b\r\n" % suffix
        # Whether a message with a time-to-live was encoded.
        self.has_ttl: bool = False
        # Not empty once `targets` has dropped subjects. A list, because `Refusals.batches` keeps it
        # and must not keep the encoder.
        self.forgotten: list[bool] = []
        self.targets: dict[str, bytes] = {}
        """The valid subjects, as bytes."""

    def renew(self) -> bool:
        """
        Adopt the limits of the current server; return whether earlier frames must be encoded again.

        A server closes the connection for good if it receives more than its ``max_payload``, and an
        older server may ignore a header.
        """
        before, server = self.limit, self._connection.server
        changed, self.limit = server.version != self._version, server.max_payload
        self._version = server.version
        return changed or self.limit < before

    def knows(self, subject: object) -> bool:
        """Return whether a message with *subject* was encoded; not after its subject is dropped."""
        return type(subject) is str and subject in self.targets

    def encode(self, item: Any) -> Encoded:
        """
        Check *item* and return its encoded parts.

        Raises:
            InvalidSubjectError, InvalidHeaderError, InvalidTtlError, MaxPayloadError,
            MaxControlLineError, InvalidTypeError, NotSupportedError: The message cannot be sent.
        """
        header: bytes = b""
        pairs: Sequence[tuple[str, str]] = ()
        # Bulk publishing mostly gets (subject, bytes) pairs, so they are checked for first.
        if type(item) is tuple and len(item) == 2:
            subject, data = item
        elif type(item) is tuple and len(item) == 3 and type(item[2]) is SharedHeaders:
            subject, data, shared = item
            header, pairs = shared.block, shared.pairs
        else:
            message = coerce_outbound(item)
            subject, data = message.subject, message.data
            header, pairs = encode_message_headers(message, self._connection)
            if message.ttl is not None:
                self.has_ttl = True
        payload = data if type(data) is bytes else bytes(payload_bytes(data))
        target: bytes | None
        try:
            target = self.targets[subject]
        except (KeyError, TypeError):
            target = None
        # Not in the `except` block, so that errors about the subject have no context.
        if target is None:
            target = self._learn(subject)
        size = len(header) + len(payload)
        if size > self.limit:
            self._connection.check_size(size)
        return target, header, payload, pairs

    def frame(self, item: Any, prefix: bytes, number: int) -> bytes:
        """
        Return the frame that publishes *item*; its reply subject is *prefix* + *number* + suffix.

        Raises: as for :meth:`encode`.
        """
        target, header, payload, _ = self.encode(item)
        size = len(payload)
        if not header:
            return self._pub % (target, prefix, number, size, payload)
        length = len(header)
        return self._hpub % (target, prefix, number, length, length + size, header, payload)

    def fill(
        self,
        stage: Stage,
        items: Iterator[Any],
        prefix: bytes,
        last: int,
        *,
        failures: list[tuple[int, Any, Exception]],
        shared_headers: SharedHeaders | None = None,
        prepare: Callable[[OutboundMessage], OutboundMessage] | None = None,
    ) -> bool:
        """
        Append *items* to a closed stage, up to one block.

        Args:
            stage: The stage, which has the known subjects of this encoder.
            items: The messages, which become the entries.
            prefix: The start of the reply subjects, as in the stage.
            last: The number of the last one to take.
            failures: Receives the place, counted from 0, the item and the error of each message
                that cannot be sent. Its frame is empty.
            shared_headers: Headers that plugins add to all items.
            prepare: The plugins' hook for each message.

        Returns:
            Whether *items* is exhausted.
        """
        block = b"" if shared_headers is None else shared_headers.block
        # No pair is plain if plugins prepare it.
        limit = self.limit - len(block) if prepare is None else -1
        while True:
            is_exhausted, item = stage.extend(
                items, last, BLOCK_BYTES, limit, block, shared_headers
            )
            if is_exhausted is not None:
                return is_exhausted
            try:
                final = item if shared_headers is None else with_shared(item, shared_headers)
                if prepare is not None:
                    final = prepare(coerce_outbound(final))
                frame = self.frame(final, prefix, stage.last + 1)
            except JetSyncError as error:
                failures.append((stage.last, item, error))
                stage.append(b"")
            else:
                stage.append(frame, final)
            if stage.last >= last or stage.size >= BLOCK_BYTES:
                return False

    def _learn(self, subject: str) -> bytes:
        validate_subject(subject)
        target = subject.encode()
        check_subject(target, self._connection.inbox)
        if self._check is not None:
            self._check(subject)
        if len(self.targets) >= KNOWN_SUBJECTS:
            self.forgotten[:] = [True]
            self.targets.clear()
        self.targets[subject] = target
        return target


def encode_message_headers(
    message: OutboundMessage, connection: Connection
) -> tuple[bytes, Sequence[tuple[str, str]]]:
    """
    Return the header block of a message and its pairs, both empty if it has no headers.

    Raises:
        InvalidHeaderError, InvalidTtlError, InvalidArgumentError, InvalidTypeError: A value cannot
            be sent.
        NotSupportedError: The server would ignore the time-to-live or a condition.
    """
    headers, ttl, expect = message.headers, message.ttl, message.expect
    if ttl is None and expect is None and message.msg_id is None:
        if headers is None:
            return b"", ()
        if type(headers) is SharedHeaders:
            return headers.block, headers.pairs
    pairs = outbound_header_pairs(message)
    if ttl is not None or expect is not None:
        require_message(message, connection.server)
    return (encode_headers(pairs), pairs) if pairs else (b"", ())


def outbound_header_pairs(message: OutboundMessage) -> list[tuple[str, str]]:
    """
    Return the names and values of all headers of a message.

    ``msg_id``, ``ttl`` and ``expect`` replace headers of the same name.

    Raises:
        InvalidHeaderError, InvalidTtlError, InvalidArgumentError: A value cannot be sent.
        InvalidTypeError: A value has the wrong type.
    """
    headers, msg_id, ttl, expect = message.headers, message.msg_id, message.ttl, message.expect
    own: list[tuple[str, str]] = []
    if msg_id is not None:
        require_text("msg_id", msg_id)
        if not msg_id.strip(" "):
            # Servers strip spaces and ignore an empty id, so there would be no deduplication.
            raise InvalidArgumentError("msg_id must not be empty or only spaces", argument="msg_id")
        own.append((MSG_ID, msg_id))
    if ttl is not None:
        own.append((TTL, ttl_header(ttl)))
    if expect is not None:
        if not isinstance(expect, Expect):
            raise wrong_type("expect", "an Expect", expect)
        own += expect.pairs()
    if headers is None:
        return own
    if not own:
        return list(header_pairs(headers))
    replaced = {name for name, _ in own}
    return [pair for pair in header_pairs(headers) if pair[0] not in replaced] + own
