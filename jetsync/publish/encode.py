"""
From what a user gives to publish to the bytes that go out: checks, hooks, headers.

Everything that can be wrong with a message is found here, before a byte of it is sent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jetsync._proto.frames import check_subject
from jetsync.publish.capability import require_message
from jetsync.values.headers import SharedHeaders
from jetsync.values.outbound import (
    coerce_outbound,
    outbound_header_block,
    payload_bytes,
)
from jetsync.values.subjects import validate_subject

if TYPE_CHECKING:
    from collections.abc import Callable

    from jetsync._io.connection import Connection

KNOWN_SUBJECTS = 4096
"""How many checked subjects an encoder remembers; most programs publish to few."""


class Encoder:
    """
    Make protocol blocks of messages for one connection; one per publishing thread or call.

    Args:
        suffix: What stands behind the number in a reply subject.
    """

    __slots__ = (
        "_check_size",
        "_connection",
        "_heads",
        "_hpub",
        "_limit",
        "_pub",
        "_shared",
        "_shared_heads",
        "_shared_pub",
        "_shared_size",
        "_subjects",
        "_suffix",
        "_version",
    )

    def __init__(self, connection: Connection, suffix: bytes = b"") -> None:
        self._suffix = suffix
        self._pub = b"PUB %%b %%b%%d%b %%d\r\n%%b\r\n" % suffix
        self._hpub = b"HPUB %%b %%b%%d%b %%d %%d\r\n%%b%%b\r\n" % suffix
        self._check_size: Callable[[int], None] = connection.check_size
        self._connection = connection
        self._limit = connection.server.max_payload
        self._version = connection.server.version
        self._subjects: dict[str, bytes] = {}
        self._heads: dict[str, bytes] = {}
        self._shared_heads: dict[str, bytes] = {}
        self._shared: SharedHeaders | None = None

    def renew(self) -> bool:
        """
        Take the limit of the server that there is now, and return whether what was encoded for
        the one before has to be encoded again.

        A server closes the connection for good when it gets more than it takes, and an older one
        may ignore a header.
        """
        before, server = self._limit, self._connection.server
        changed, self._limit = server.version != self._version, server.max_payload
        self._version = server.version
        return changed or self._limit < before

    def encode(self, item: object, prefix: bytes, number: int) -> bytes:
        """
        Return the block that publishes *item*, as it is.

        Its reply subject is *prefix*, *number* and the suffix; one formatting operation less than
        to be given them joined.

        Raises:
            InvalidSubjectError, InvalidHeaderError, InvalidTtlError, MaxPayloadError,
            MaxControlLineError, InvalidTypeError, NotSupportedError: The message cannot be sent.
        """
        # A plain (subject, bytes) pair is what bulk publishing mostly gets. It is worth a path.
        if type(item) is tuple and len(item) == 2:
            subject, data = item
            payload = data if type(data) is bytes else bytes(payload_bytes(data))
            header = None
        elif type(item) is tuple and len(item) == 3 and type(item[2]) is SharedHeaders:
            subject, data, shared = item
            payload = data if type(data) is bytes else bytes(payload_bytes(data))
            if shared is not self._shared:
                self._take(shared)
            try:
                target = self._subjects[subject]
            except (KeyError, TypeError):
                target = self._learn(subject)
            size = self._shared_size + len(payload)
            if size > self._limit:
                self._check_size(size)
            return self._shared_pub % (target, prefix, number, size, payload)
        else:
            message = coerce_outbound(item)
            subject = message.subject
            payload = bytes(payload_bytes(message.data))
            header = outbound_header_block(message)
            if message.ttl is not None or message.expect is not None:
                require_message(message, self._connection.server)
        try:
            target = self._subjects[subject]
        except (KeyError, TypeError):
            target = self._learn(subject)
        size = len(payload)
        if header is None:
            if size > self._limit:
                self._check_size(size)
            return self._pub % (target, prefix, number, size, payload)
        length = len(header)
        size += length
        if size > self._limit:
            self._check_size(size)
        return self._hpub % (target, prefix, number, length, size, header, payload)

    def shared(self, shared: SharedHeaders) -> tuple[bytes, dict[str, bytes], int, int]:
        """
        Return what it takes to encode pairs with these headers, for who does that in a loop.

        Returns:
            What to format with the subject, the prefix, the number, the size and the payload; the
            subjects that are known; the size of the headers; and how large a payload may be.
        """
        if shared is not self._shared:
            self._take(shared)
        size = self._shared_size
        return self._shared_pub, self._subjects, size, self._limit - size

    def _take(self, shared: SharedHeaders) -> None:
        """Prepare for messages with these headers, which come one after another as a rule."""
        block = shared.block
        self._shared, self._shared_size = shared, len(block)
        self._shared_pub = b"HPUB %%b %%b%%d%b %d %%d\r\n%b%%b\r\n" % (
            self._suffix, len(block), block.replace(b"%", b"%%"),
        )  # fmt: skip

    def halves(self, item: object, prefix: bytes) -> tuple[bytes, bytes]:
        """
        Return what :meth:`encode` does, up to the number and from there on.

        For who gets the number later. Any thread; *prefix* is the same in all calls.
        """
        if type(item) is tuple and len(item) == 2:
            subject, data = item
            payload = data if type(data) is bytes else bytes(payload_bytes(data))
            try:
                head = self._heads[subject]
            except (KeyError, TypeError):
                head = self._learn_head(subject, prefix)
            size = len(payload)
            if size > self._limit:
                self._check_size(size)
            return head, b"%b %d\r\n%b\r\n" % (self._suffix, size, payload)
        if type(item) is tuple and len(item) == 3 and type(item[2]) is SharedHeaders:
            subject, data, shared = item
            payload = data if type(data) is bytes else bytes(payload_bytes(data))
            try:
                head = self._shared_heads[subject]
            except (KeyError, TypeError):
                head = self._learn_shared_head(subject, prefix)
            header = shared.block
            length = len(header)
            size = length + len(payload)
            if size > self._limit:
                self._check_size(size)
            return head, b"%b %d %d\r\n%b%b\r\n" % (self._suffix, length, size, header, payload)
        block = self.encode(item, prefix, 0)
        verb, target, _ = block.split(b" ", 2)
        head = b"%b %b %b" % (verb, target, prefix)
        return head, block[len(head) + 1 :]

    def _learn_head(self, subject: str, prefix: bytes) -> bytes:
        target = self._learn(subject)
        if len(self._heads) >= KNOWN_SUBJECTS:
            self._heads.clear()
        head = self._heads[subject] = b"PUB %b %b" % (target, prefix)
        return head

    def _learn_shared_head(self, subject: str, prefix: bytes) -> bytes:
        head = b"H" + self._learn_head(subject, prefix)
        if len(self._shared_heads) >= KNOWN_SUBJECTS:
            self._shared_heads.clear()
        self._shared_heads[subject] = head
        return head

    def _learn(self, subject: str) -> bytes:
        validate_subject(subject)
        if len(self._subjects) >= KNOWN_SUBJECTS:
            self._subjects.clear()
        target = subject.encode()
        check_subject(target, self._connection.inbox)
        self._subjects[subject] = target
        return target
