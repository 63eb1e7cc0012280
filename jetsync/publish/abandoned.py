"""
Listen for the advisory that the server sends when it drops an atomic batch.

The server reports this only in advisories. If a user may not subscribe to them, jetsync notices the
loss when the server answers the next message that asks for an answer.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from jetsync import events
from jetsync._io.mailbox import Mailbox
from jetsync.errors import PermissionDeniedError, ProtocolError
from jetsync.values.server_info import decode_json

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Callable

    from jetsync._io.connection import Connection
    from jetsync.values.frame import Frame

ADVISORY = "$JS.EVENT.ADVISORY.STREAM.BATCH_ABANDONED."


class AbandonWatch:
    """
    The advisories of one stream, filtered for one batch.

    Args:
        connection: The connection of the batch.
        stream: The stream.
        batch_id: The id of the batch.
        on_denied: Called in the loop thread if the server does not let this user subscribe.
    """

    __slots__ = (
        "_batch_id",
        "_box",
        "_connection",
        "_on_denied",
        "_stream",
        "frames",
        "line",
        "sid",
    )

    def __init__(
        self, connection: Connection, stream: str, batch_id: str, on_denied: Callable[[], None]
    ) -> None:
        self._connection = connection
        self._stream = stream
        self._batch_id = batch_id
        self._on_denied = on_denied
        self._box = Mailbox((ADVISORY + stream).encode())
        # The unread advisories of the stream.
        self.frames: deque[Frame] = self._box.frames
        self._box.push = self._receive
        self._box.on_failure = self._on_failure
        # The id of the subscription, and the SUB line to write with the first message.
        self.sid, self.line = connection.listen(self._box)

    def _on_failure(self, error: Exception) -> None:
        """If permission was denied, report it, so that later batches do not subscribe."""
        if isinstance(error, PermissionDeniedError):
            self._on_denied()

    def abandoned(self) -> str | None:
        """Return the server's reason for dropping the batch, or None."""
        for frame in self._box.drain():
            event = self._read(frame)
            if event is not None:
                return event.reason
        return None

    def _receive(self, frame: Frame) -> None:
        """Keep an advisory and report it to plugins; runs in the thread that reads the socket."""
        self.frames.append(frame)
        self._connection.emit(partial(self._read, frame))

    def _read(self, frame: Frame) -> events.BatchAbandonedEvent | None:
        try:
            advisory = decode_json(frame[3])
        except ProtocolError:
            return None
        if advisory.get("batch") != self._batch_id:
            return None
        return events.BatchAbandonedEvent(
            stream=self._stream, batch_id=self._batch_id, reason=str(advisory.get("reason", ""))
        )
