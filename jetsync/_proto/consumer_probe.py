"""
Questions to the server whether a consumer still exists.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from jetsync import errors
from jetsync.errors.answers import from_api_error
from jetsync.values.server_info import decode_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jetsync.errors import JetSyncError
    from jetsync.values.frame import Frame

# Seconds without an answer after which a probe is repeated.
PROBE_INTERVAL: Final = 1.0


class ConsumerProbe:
    """
    Questions to the server for the consumer's info, one at a time.

    Args:
        prefix: How the reply subjects of the questions start.
    """

    def __init__(self, prefix: bytes) -> None:
        self._prefix = prefix
        # Whether a question is to be asked.
        self.wanted = False
        self.asked = 0
        self._open: bytes | None = None
        self._again = 0.0

    def due(self, now: float) -> bytes | None:
        """Return the reply subject of the question to ask now, or None."""
        if not self.wanted or (self._open is not None and now < self._again):
            return None
        self.wanted = False
        self.asked += 1
        self._open = b"%b%d" % (self._prefix, self.asked)
        self._again = now + PROBE_INTERVAL
        return self._open

    def next_due(self) -> float | None:
        """Return when :meth:`due` has another question; None for no such moment."""
        return self._again if self.wanted and self._open is not None else None

    def want(self) -> None:
        """Ask as soon as possible."""
        self.wanted = True

    def lost(self) -> None:
        """Wait for no answer, because the connection was lost."""
        self._open = None

    def reset(self) -> None:
        """Ask nothing, and recognise the answers to earlier questions as late ones."""
        self.wanted, self._open = False, None

    def take(self, frames: Sequence[Frame]) -> tuple[Sequence[Frame], list[tuple[Frame, bool]]]:
        """Return the other frames, and each answer with whether it is to the last question."""
        answers = [frame for frame in frames if frame[0].startswith(self._prefix)]
        if not answers:
            return frames, []
        found = []
        for answer in answers:
            found.append((answer, answer[0] == self._open))
            if answer[0] == self._open:
                self._open = None
        return [frame for frame in frames if not frame[0].startswith(self._prefix)], found


def read_gone(
    answer: bytes, stream: str | None = None, consumer: str | None = None
) -> JetSyncError | None:
    """Return the error in a consumer info reply, or ProtocolError if the reply is malformed."""
    if not answer:
        return None
    try:
        found = decode_json(answer).get("error")
        error = None if found is None else from_api_error(found, stream, consumer)
    except errors.ProtocolError as broken:
        return broken
    return (
        error
        if isinstance(error, (errors.ConsumerNotFoundError, errors.StreamNotFoundError))
        else None
    )
