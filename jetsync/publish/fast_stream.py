"""
The stream that a fast publisher writes to, and the encoding of messages for it.

A server that does not know fast ingest would store messages, and even pings, as any others. So the
stream is asked first, once for each connection.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from jetsync._proto.fastingest import APPEND, COMMIT, START, SUFFIX
from jetsync.errors import (
    ConnectionLostError,
    FastPublishDisabledError,
    InvalidSubjectError,
    JetStreamNotEnabledError,
    NotSupportedError,
    RequestTimeoutError,
    TemporarilyUnavailableError,
)
from jetsync.publish.capability import require_fast
from jetsync.publish.encode import Encoder

if TYPE_CHECKING:
    from jetsync._api.context import Context
    from jetsync._api.known_streams import KnownStream
    from jetsync._base.deadline import Deadline

ASK_AGAIN: Final = 0.1
"""Seconds before a server that could not answer is asked again."""

ASK_LONGEST: Final = 1.0
"""Seconds for the answer to one question about the stream; without a leader none comes."""

_NOT_YET: Final = (
    RequestTimeoutError,
    ConnectionLostError,
    TemporarilyUnavailableError,
    JetStreamNotEnabledError,
)
"""What a cluster answers while it looks for a leader."""


class FastStream:
    """
    Know the stream of one publisher; not synchronised.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._encoders = {
            op: Encoder(context.connection, SUFFIX[op], self._check)
            for op in (START, APPEND, COMMIT)
        }
        self.append = self._encoders[APPEND].frame
        """Encode a message that is neither the first nor the last one."""

        self.frames = self._encoders[APPEND].frames

        self.known: KnownStream | None = None
        self.epoch = 0
        """The connection on which the stream is known to take fast ingest."""

        self.deadline: Deadline
        """Of the call that goes on."""

    @property
    def name(self) -> str | None:
        """The stream's name, where it is known yet."""
        return None if self.known is None else self.known.name

    def encode(self, op: int, item: Any, prefix: bytes, seq: int) -> bytes:
        """Return the block that publishes *item*."""
        return self._encoders[op].frame(item, prefix, seq)

    def has_sent(self, subject: str) -> bool:
        """Return whether something was encoded for *subject*."""
        return any(subject in encoder.targets for encoder in self._encoders.values())

    def admit(self, subject: str, deadline: Deadline, *, patient: bool) -> None:
        """
        Make sure that the stream takes fast ingest on the connection that there is.

        Args:
            subject: A subject of it.
            deadline: When to give up.
            patient: Whether JetStream was there before, so that its absence will pass.
        """
        while True:
            self._context.lane.write(b"", deadline)
            try:
                known = self._find(subject, deadline)
            except _NOT_YET as error:
                passes = patient or not isinstance(error, JetStreamNotEnabledError)
                if not passes or deadline.remaining() <= ASK_AGAIN:
                    raise
                time.sleep(ASK_AGAIN)
                continue
            if self.known is not None and known.name != self.known.name:
                raise self._foreign(subject, known)
            self.known = known
            self.epoch = known.epoch
            for encoder in self._encoders.values():
                encoder.renew()
            return

    def _find(self, subject: str, deadline: Deadline) -> KnownStream:
        """Ask for the stream and raise unless it can; what is not news is not refused by."""
        streams, server = self._context.streams, self._context.server.version
        known = streams.find(subject, deadline.at_most(ASK_LONGEST))
        try:
            require_fast(known, server)
        except (FastPublishDisabledError, NotSupportedError):
            known = streams.find(subject, deadline.at_most(ASK_LONGEST), fresh=True)
            require_fast(known, server)
        return known

    def _check(self, subject: str) -> None:
        """Raise if *subject* belongs to another stream than the batch."""
        known = self.known
        assert known is not None
        if known.takes(subject):
            return
        # The stream may have been given more subjects since.
        fresh = self._context.streams.find(subject, self.deadline, fresh=True)
        if fresh.name != known.name:
            raise self._foreign(subject, fresh)
        self.known = fresh

    def _foreign(self, subject: str, other: KnownStream) -> InvalidSubjectError:
        return InvalidSubjectError(
            subject, f"it belongs to stream {other.name!r}, the publisher writes to {self.name!r}"
        )
