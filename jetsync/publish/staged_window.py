"""
The window of a ``Publisher``, which gets its messages one by one and collects them into blocks.

A write costs more than encoding a message, so messages are staged until the owner flushes. Any
thread may stage a message. The owner calls everything else and holds its lock.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from jetsync._base.deadline import Deadline
from jetsync._io.outbox import LaneState
from jetsync.errors import (
    CallInSignalHandlerError,
    ConnectionClosedError,
    DisconnectedError,
)
from jetsync.publish.encode import BLOCK_BYTES, BLOCK_MESSAGES
from jetsync.publish.window import CONNECTION_POLL, Window

if TYPE_CHECKING:
    from jetsync._api.context import Context
    from jetsync.publish.encode import Encoded
    from jetsync.publish.retry import FailedAttempt
    from jetsync.publish.window import WindowOptions

# A message without a number: the item, its token and its encoded parts.
Staged: TypeAlias = "tuple[Any, Any, Encoded]"

_NO_WAIT: Final = Deadline(0.0, 0.0)


class CollectingWindow(Window):
    """
    A window that never waits for the connection and processes acks in the order in which they
    arrive.
    """

    # With a lock per message, four threads are a fifth slower than one: the thread that gets the
    # lock still has to wait for the GIL. So a message is appended to a list, which needs no lock,
    # and gets its number under the owner's lock when a block is written.

    def __init__(self, context: Context, options: WindowOptions) -> None:
        super().__init__(context, options, keep_acks=True)
        # Messages without a number, oldest first.
        self.staged: list[Staged] = []
        # Their approximate size: it is too small if several threads stage at the same moment.
        self.staged_bytes: int = 0
        # The owner's tokens of the numbered messages, by number. The owner removes them.
        self.tokens: dict[int, Any] = {}
        # Numbered frames that could not be written yet, and their size.
        self.pieces: list[bytes] = []
        self._collected = 0
        # Bytes of the numbered messages that are still open. Only :meth:`flush` and :meth:`account`
        # update this, because adding up the size of each message would cost too much.
        self.numbered_bytes: int = 0
        # The next number, and the number of the first piece.
        self.number: int = 0
        self._first = 0
        # When the pieces fail, unless the connection is back by then.
        self._until = 0.0

    @property
    def open_count(self) -> int:
        """How many messages are neither acknowledged nor failed, including staged ones."""
        return len(self.tokens) + len(self.staged)

    @property
    def open_bytes(self) -> int:
        """Bytes of the open messages, including staged ones."""
        self._measure()
        return self.numbered_bytes + self.staged_bytes

    def _measure(self) -> None:
        self.numbered_bytes = super().open_bytes + self._collected

    @property
    def is_block(self) -> bool:
        """Whether a whole block is staged."""
        return len(self.staged) >= BLOCK_MESSAGES or self.staged_bytes >= BLOCK_BYTES

    def stage(self, item: Any, token: Any) -> Staged | None:
        """
        Encode and stage a message, or return None if there is no connection now. Any thread.

        Raises: as for :meth:`Encoder.encode`; the message is not staged.
        """
        if self._lane.state is not LaneState.OPEN:
            return None
        encoded = self.encoder.encode(item)
        entry = (item, token, encoded)
        self.staged_bytes += len(encoded[1]) + len(encoded[2])
        self.staged.append(entry)
        return entry

    def flush(self) -> None:
        """
        Write the staged messages for which the window has room.

        Without a connection, or in a signal handler that cannot write, they stay staged.
        """
        while (room := self.room) > 0 and self.staged:
            self._write(self.staged[: min(room, BLOCK_MESSAGES)])
            if self.pieces:
                return
        if self.pieces:
            self._write([])

    def _write(self, chunk: list[Staged]) -> None:
        """Give the oldest staged messages numbers, and write everything that has a number."""
        pieces, first, epoch = self.pieces, self.number, self._lane.epoch
        waiting = bool(pieces)
        if not waiting:
            self._first = first
        try:
            self._enter(chunk)
            pub, hpub, prefix = self.encoder.pub, self.encoder.hpub, self.prefix
            for number, (_, _, (target, header, payload, _)) in enumerate(chunk, first):
                size = len(payload)
                if not header:
                    frame = pub % (target, prefix, number, size, payload)
                else:
                    length = len(header)
                    frame = hpub % (target, prefix, number, length, length + size, header, payload)
                pieces.append(frame)
            block = b"".join(pieces)
            self._collected = len(block)
            epoch = self._send(block, range(self._first, self.number), _NO_WAIT)
            self._note(epoch)
        except (DisconnectedError, CallInSignalHandlerError):
            if not waiting:
                self._until = time.monotonic() + self.options.ack_timeout
        except ConnectionClosedError as error:
            self._fail_collected(error)
        except BaseException:
            # Ctrl-C. If it interrupted the write, the lane ends the connection, and the server may
            # have received any part of the block. So only the bookkeeping is repeated.
            if self.number == first:
                self._enter(chunk)
            self._note(epoch)
            raise
        finally:
            self._measure()

    def _enter(self, chunk: list[Staged]) -> None:
        """Give the oldest staged messages numbers."""
        flying, tokens, first = self.pipeline.flying, self.tokens, self.number
        for number, (item, token, _) in enumerate(chunk, first):
            flying[number] = item
            tokens[number] = token
        if self.staged[:1] == chunk[:1]:
            del self.staged[: len(chunk)]
        self.staged_bytes = sum([len(parts[1]) + len(parts[2]) for _, _, parts in self.staged])
        # This line comes last: if Ctrl-C arrives before it, the whole method is repeated.
        self.number = first + len(chunk)

    def _note(self, epoch: int) -> None:
        """Record that everything with a number was written on the connection *epoch*."""
        self.pieces.clear()
        size, self._collected = self._collected, 0
        numbers = range(self._first, self.number)
        self.pipeline.sent(numbers, epoch, time.monotonic() + self.options.ack_timeout, size)

    def _take_acks(self) -> None:
        for acks in self.box.drain_acks():
            if isinstance(acks, list):
                self.pipeline.settle_run(acks)
            else:
                self.pipeline.settle((acks,))

    def due(self) -> float | None:
        """Return when :meth:`account` is due even if no answer arrives; None if it is not."""
        due = super().due()
        if self.pieces:
            poll = time.monotonic() + CONNECTION_POLL
            due = poll if due is None else min(due, poll)
        return due

    def account(self) -> list[FailedAttempt]:
        """Extend :meth:`Window.account`: also flush, and fail messages that waited too long."""
        failure = self.box.failure
        failed_attempts = super().account()
        self.flush()
        if failure is not None:
            self._fail_collected(failure)
        elif self.pieces and self._until <= time.monotonic():
            self._fail_collected(DisconnectedError(timeout=self.options.ack_timeout))
        self._measure()
        return failed_attempts

    def _fail_collected(self, error: Exception) -> None:
        """Fail all messages that were not written."""
        if not self.pieces:
            self._first = self.number
        self.pieces.clear()
        self._collected = 0
        self._enter(self.staged[:])
        self.fail_unsent(range(self._first, self.number), error)
