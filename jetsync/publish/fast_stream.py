"""
The stream of a fast publisher, and the encoding of messages for it.

A server without fast ingest would store the messages, and even the pings, as ordinary messages. So
the stream is looked up before the first message of each connection.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from jetsync._proto import frames
from jetsync._proto.fastingest import OP_APPEND, SUFFIX
from jetsync.errors import (
    ConnectionLostError,
    JetStreamNotEnabledError,
    RequestTimeoutError,
    TemporarilyUnavailableError,
)
from jetsync.publish.capability import (
    check_same_stream,
    find_capable,
    require_fast,
    stream_for,
)
from jetsync.publish.encode import Encoder

if TYPE_CHECKING:
    from jetsync._api.context import Context
    from jetsync._api.known_streams import KnownStream
    from jetsync._base.deadline import Deadline

# Seconds before a request is repeated that the server could not answer yet.
LEADER_POLL: Final = 0.1

# Seconds for one lookup of the stream. A stream without a leader does not answer.
LOOKUP_TIMEOUT: Final = 1.0

# Answers of a cluster that is electing a leader.
_NOT_YET: Final = (
    RequestTimeoutError,
    ConnectionLostError,
    TemporarilyUnavailableError,
    JetStreamNotEnabledError,
)


class FastStream:
    """
    Looks up the stream of one publisher and encodes messages for it; not thread-safe.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._encoder = Encoder(context.connection, SUFFIX[OP_APPEND], self._check)
        # Encode a message, or a block of messages, that neither begins nor ends a batch.
        self.frame: Final = self._encoder.frame
        self.frames: Final = self._encoder.frames
        self.known: KnownStream | None = None
        # The connection on which the stream is known to support fast ingest.
        self.epoch: int = 0
        # Deadline of the current call.
        self.deadline: Deadline

    @property
    def name(self) -> str | None:
        """The name of the stream, if it is known already."""
        return None if self.known is None else self.known.name

    def first_or_last_frame(self, op: int, item: Any, prefix: bytes, seq: int) -> bytes:
        """Return the frame of a message that begins or ends a batch."""
        target, header, payload, _ = self._encoder.encode(item)
        return frames.message(
            target, b"%b%d%b" % (prefix, seq, SUFFIX[op]), header or None, payload
        )

    def has_encoded(self, subject: str) -> bool:
        """Return whether a message for *subject* was encoded."""
        return subject in self._encoder.targets

    def look_up(self, subject: str, deadline: Deadline, *, wait: bool) -> None:
        """
        Make sure that the stream supports fast ingest on the current connection.

        Args:
            subject: A subject of the stream.
            deadline: Deadline of the call.
            wait: Whether to wait for JetStream if no server offers it, as it was there before.
        """
        while True:
            self._context.lane.write(b"", deadline)
            try:
                known = find_capable(
                    lambda **fresh: self._context.streams.find(
                        subject, deadline.at_most(LOOKUP_TIMEOUT), **fresh
                    ),
                    partial(require_fast, context=self._context),
                )
            except _NOT_YET as error:
                temporary = wait or not isinstance(error, JetStreamNotEnabledError)
                if not temporary or deadline.remaining() <= LEADER_POLL:
                    raise
                time.sleep(LEADER_POLL)
                continue
            if self.known is not None:
                check_same_stream(subject, self.known, known)
            self.known = known
            self.epoch = known.epoch
            self._encoder.renew()
            return

    def _check(self, subject: str) -> None:
        """Raise if *subject* belongs to another stream."""
        assert self.known is not None
        self.known = stream_for(subject, self.known, self._context, self.deadline)
