"""
A window for messages that come one by one: it collects them into blocks.

A write for each message costs more than the message. So a message that finds others in flight waits
in the window until the owner flushes, or until a block is full. One that finds nothing in flight is
written at once, as there is nothing that it could travel with.
"""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from jetsync._deadline import Deadline
from jetsync._handoff import AckMailbox
from jetsync._outbox import LaneState
from jetsync.errors import ConnectionClosedError, DisconnectedError
from jetsync.publish._many import BLOCK_BYTES, BLOCK_MESSAGES
from jetsync.publish._window import PATIENCE, Refused, Window

if TYPE_CHECKING:
    from jetsync._session import JetStreamSession
    from jetsync.publish._window import WindowOptions
    from jetsync.typing import Frame

    AckRun = list[tuple[bytes, bytes]]

_AT_ONCE: Final = Deadline(0.0, 0.0)


class OrderedAckMailbox(AckMailbox):
    """
    A mailbox that keeps single acks and runs of them in the order in which they came.
    """

    __slots__ = ("_acks",)

    def __init__(self, interest: bytes) -> None:
        super().__init__(interest)
        self._acks: deque[Frame | AckRun] = deque()
        self.push = self._acks.append

    @property
    def ready(self) -> bool:
        return bool(self._acks) or super().ready

    def drain_acks(self) -> list[Frame | AckRun]:
        """Take all acks that are there, oldest first; never blocks."""
        acks = self._acks
        return [acks.popleft() for _ in range(len(acks))]

    def _take_run(self, data: bytes, position: int) -> int:
        end = super()._take_run(data, position)
        if self.runs:
            self._acks.append(self.runs.popleft())
        return end


class CollectingWindow(Window):
    """
    A window that never waits for the connection, and settles in the order of the acks; not
    synchronised.
    """

    box: OrderedAckMailbox

    def __init__(self, session: JetStreamSession, options: WindowOptions) -> None:
        super().__init__(session, options, keep_acks=True)
        self.pieces: list[bytes] = []
        """What is collected."""

        self._size = 0
        self._first = self._behind = 0
        """Numbers of the first message collected, and of the one behind the last."""

        self._until = 0.0
        """When what is collected fails for want of a connection."""

    def add(self, number: int, item: Any) -> bool:
        """
        Take a message, unless there is no connection at the moment; return whether it was taken.

        Raises what the encoder does; the message was not taken then.
        """
        if self._lane.state is not LaneState.OPEN:
            return False
        piece = self.encoder.encode(item, self.prefix, number)
        if not self.pieces:
            self._first = number
            self._until = time.monotonic() + self.options.ack_timeout
        self._behind = number + 1
        self.pieces.append(piece)
        self._size += len(piece)
        # Last: an interrupt before this line leaves nothing in flight that is never written.
        self.pipeline.flying[number] = item
        if self._size >= BLOCK_BYTES or number - self._first >= BLOCK_MESSAGES:
            self.flush()
        return True

    def flush(self) -> None:
        """Write what is collected, or keep it if there is no connection at the moment."""
        if not self.pieces:
            return
        pieces, self.pieces = self.pieces, []
        numbers = range(self._first, self._behind)
        epoch = self._lane.epoch
        try:
            epoch = self._send(b"".join(pieces), numbers, _AT_ONCE)
        except DisconnectedError:
            self.pieces = pieces
            return
        except ConnectionClosedError as error:
            self.fail_unsent(numbers, error)
        except BaseException:
            # Ctrl-C: the lane has ended the connection, and nobody knows what the server got.
            self._note(numbers, epoch)
            raise
        else:
            self._note(numbers, epoch)

    def _note(self, numbers: range, epoch: int) -> None:
        self._size = 0
        self.pipeline.sent(numbers, epoch, time.monotonic() + self.options.ack_timeout)

    def _make_box(self, interest: bytes) -> AckMailbox:
        return OrderedAckMailbox(interest)

    def _take_acks(self) -> None:
        for acks in self.box.drain_acks():
            if isinstance(acks, list):
                self.pipeline.settle_run(acks)
            else:
                self.pipeline.settle((acks,))

    def due(self) -> float | None:
        due = super().due()
        if self.pieces:
            look = time.monotonic() + PATIENCE
            due = look if due is None else min(due, look)
        return due

    def account(self) -> list[Refused]:
        failure = self.box.failure
        refused = super().account()
        self.flush()
        if self.pieces:
            if failure is not None:
                self._fail_collected(failure)
            elif self._until <= time.monotonic():
                self._fail_collected(DisconnectedError(timeout=self.options.ack_timeout))
        return refused

    def _fail_collected(self, error: Exception) -> None:
        self.pieces.clear()
        self._size = 0
        self.fail_unsent(range(self._first, self._behind), error)
