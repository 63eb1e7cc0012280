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
    A window that never waits for the connection and processes acks in the order of their arrival.
    """

    # With a lock per message, four threads are a fifth slower than one: the thread that gets the
    # lock still has to wait for the GIL. So a message is appended to a list, which needs no lock,
    # and gets its number under the owner's lock when a block is written.

    def __init__(self, context: Context, options: WindowOptions) -> None:
        super().__init__(context, options, keep_acks=True)
        # Messages without a number, oldest first.
        self.staged: list[Staged] = []
        # Their approximate size: threads that stage at the same moment may miss some.
        self.staged_bytes: int = 0
        # The owner's tokens of the messages with a number, in that order. The owner removes them.
        self.tokens: dict[int, Any] = {}
        # Frames that have numbers and could not be written, and their size.
        self.pieces: list[bytes] = []
        self._collected = 0
        # Bytes that have a number and have not ended. Only :meth:`flush` and :meth:`account` update
        # this, because a sum per message would cost too much.
        self.numbered_bytes: int = 0
        # The next number, and the number of the first of the pieces.
        self.number: int = 0
        self._first = 0
        # When the pieces fail if there is no connection.
        self._until = 0.0

    @property
    def open_count(self) -> int:
        """How many messages have not ended."""
        return len(self.tokens) + len(self.staged)

    @property
    def open_bytes(self) -> int:
        """Bytes of the messages that have not ended, including staged ones."""
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

        Raises: as :meth:`Encoder.encode`; the message is not staged.
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

        Keeps them if there is no connection now, or in a signal handler that cannot write.
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
            # Ctrl-C. If it struck in the write, the lane ends the connection, and the server may
            # have received anything. The bookkeeping may be repeated, the write may not.
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
        # Last, because after Ctrl-C before this line all of it is repeated.
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
        """Do what :meth:`Window.account` does, flush, and fail what has waited too long."""
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
        """Fail everything that was not written."""
        if not self.pieces:
            self._first = self.number
        self.pieces.clear()
        self._collected = 0
        self._enter(self.staged[:])
        self.fail_unsent(range(self._first, self.number), error)
