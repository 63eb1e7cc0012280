"""
The stream of a fast publisher: looked up before the batch starts.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from jetsync import errors
from jetsync._proto.fastingest import OP_APPEND, SUFFIX
from jetsync.publish.batch_support import check_same_stream, find_capable, require_fast, stream_for
from jetsync.publish.encode import Encoder

if TYPE_CHECKING:
    from jetsync._api.context import Context
    from jetsync._api.known_streams import KnownStream
    from jetsync._base.deadline import Deadline

# Seconds before a request is retried that the server could not answer yet.
LEADER_POLL: Final = 0.1

# Seconds for one lookup of the stream. A stream without a leader does not answer.
LOOKUP_TIMEOUT: Final = 1.0

# Answers of a cluster that is electing a leader.
_NOT_YET: Final = (
    errors.RequestTimeoutError,
    errors.ConnectionLostError,
    errors.TemporarilyUnavailableError,
)


class FastStream:
    """
    Looks up the stream of one publisher and encodes messages for it; not thread-safe.

    A server without fast ingest would store the messages, and even the pings, as ordinary messages.
    So the stream is looked up before the first message, on the connection that is to carry it.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self.encoder: Final = Encoder(context.connection, SUFFIX[OP_APPEND], self._check)
        self.known: KnownStream | None = None
        # The subject by which the stream was found.
        self._found_by = ""
        # Deadline of the current call.
        self.deadline: Deadline

    def look_up(self, subject: str, deadline: Deadline) -> int:
        """
        Look up the stream, and return the epoch of the connection on which it was looked up.

        Raises unless the stream supports fast ingest on that connection.

        Args:
            subject: A subject of the stream.
            deadline: Deadline of the call.
        """
        context, find = self._context, self._context.streams.find
        while True:
            context.lane.outbox.wait_open(deadline)
            try:
                known = find_capable(
                    find,
                    partial(require_fast, context=context),
                    subject,
                    deadline.at_most(LOOKUP_TIMEOUT),
                )
            except _NOT_YET:
                if deadline.remaining() <= LEADER_POLL:
                    raise
                context.connection.closing.wait(LEADER_POLL)
                continue
            if self.known is not None:
                check_same_stream(subject, self.known, known)
            self.known = known
            self._found_by = subject
            self.encoder.renew()
            return known.epoch

    def _check(self, subject: str) -> None:
        """Raise if *subject* belongs to another stream."""
        if subject != self._found_by:
            assert self.known is not None
            self.known = stream_for(subject, self.known, self._context, self.deadline)
