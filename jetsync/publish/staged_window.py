"""
A window for messages that come one by one: it collects them into blocks.

A write for each message costs more than the message. So messages wait in the window until the owner
flushes. Any thread may add one; all else is the owner's, with its lock.
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
    from jetsync.publish.retry import Setback
    from jetsync.publish.window import WindowOptions

Staged: TypeAlias = "tuple[Any, Any, Encoded]"
"""A message without a number: the item, its token and its encoded parts."""

_AT_ONCE: Final = Deadline(0.0, 0.0)


class CollectingWindow(Window):
    """
    A window that never waits for the connection, and settles in the order of the acks; not
    synchronised, but that any thread may stage messages.
    """

    # A lock for each message makes four threads a fifth slower than one: who is woken with the lock
    # has to wait for the interpreter. So a message is appended to a list, which needs none, and
    # gets its number, with the owner's lock, when a block is written.

    def __init__(self, context: Context, options: WindowOptions) -> None:
        super().__init__(context, options, keep_acks=True)
        self.staged: list[Staged] = []
        """Messages that have no number yet, oldest first."""

        self.staged_bytes: int = 0
        """About how many bytes these are: threads that stage at once may miss some."""

        self.tokens: dict[int, Any] = {}
        """
        What the owner keeps for the messages that have one, in the order of the numbers; the owner
        removes them.
        """

        self.pieces: list[bytes] = []
        """What has numbers and could not be written."""

        self._collected = 0
        """How many bytes the pieces are."""

        self.numbered_bytes: int = 0
        """
        How many bytes have a number and have not ended. Kept up to date by :meth:`flush` and
        :meth:`account`, because adding it up for each message would cost too much.
        """

        self.number: int = 0
        """The next number."""

        self._first = 0
        """The number of the first piece."""

        self._until = 0.0
        """When the pieces fail for want of a connection."""

    @property
    def open_count(self) -> int:
        """How many messages have not ended."""
        return len(self.tokens) + len(self.staged)

    @property
    def open_bytes(self) -> int:
        """Bytes of the messages that are not acknowledged yet, staged ones included."""
        self._measure()
        return self.numbered_bytes + self.staged_bytes

    def _measure(self) -> None:
        self.numbered_bytes = super().open_bytes + self._collected

    @property
    def is_block(self) -> bool:
        """Whether there is so much that waiting for more is no use."""
        return len(self.staged) >= BLOCK_MESSAGES or self.staged_bytes >= BLOCK_BYTES

    def stage(self, item: Any, token: Any) -> Staged | None:
        """
        Take a message, unless there is no connection at the moment, which None says. Any thread.

        Raises what the encoder does; the message was not taken then.
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
        Write what there is and has room, or keep it if there is no connection at the moment, or if
        this is a signal handler that cannot write.
        """
        while (room := self.room) > 0 and self.staged:
            self._write(self.staged[: min(room, BLOCK_MESSAGES)])
            if self.pieces:
                return
        if self.pieces:
            self._write([])

    def _write(self, chunk: list[Staged]) -> None:
        """Give the oldest staged messages their numbers, and write all that have one."""
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
            epoch = self._send(block, range(self._first, self.number), _AT_ONCE)
            self._note(epoch)
        except (DisconnectedError, CallInSignalHandlerError):
            if not waiting:
                self._until = time.monotonic() + self.options.ack_timeout
        except ConnectionClosedError as error:
            self._fail_collected(error)
        except BaseException:
            # Ctrl-C: in the write, where the lane ends the connection and nobody knows what the
            # server got, or beside it. Whatever was done, it may be done again, but not sent again.
            if self.number == first:
                self._enter(chunk)
            self._note(epoch)
            raise
        finally:
            self._measure()

    def _enter(self, chunk: list[Staged]) -> None:
        """Give the oldest staged messages their numbers."""
        flying, tokens, first = self.pipeline.flying, self.tokens, self.number
        for number, (item, token, _) in enumerate(chunk, first):
            flying[number] = item
            tokens[number] = token
        if self.staged[:1] == chunk[:1]:
            del self.staged[: len(chunk)]
        self.staged_bytes = sum([len(parts[1]) + len(parts[2]) for _, _, parts in self.staged])
        # Last: where Ctrl-C comes before, all this is done again.
        self.number = first + len(chunk)

    def _note(self, epoch: int) -> None:
        """Note that all that has a number went out on the connection *epoch*."""
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
        """Return when something is due next, on the monotonic clock; None if nothing is."""
        due = super().due()
        if self.pieces:
            look = time.monotonic() + CONNECTION_POLL
            due = look if due is None else min(due, look)
        return due

    def account(self) -> list[Setback]:
        """Settle what the mailbox has learned; return the messages that have to be sent again."""
        failure = self.box.failure
        setbacks = super().account()
        self.flush()
        if failure is not None:
            self._fail_collected(failure)
        elif self.pieces and self._until <= time.monotonic():
            self._fail_collected(DisconnectedError(timeout=self.options.ack_timeout))
        self._measure()
        return setbacks

    def _fail_collected(self, error: Exception) -> None:
        """Fail all that was not written."""
        if not self.pieces:
            self._first = self.number
        self.pieces.clear()
        self._collected = 0
        self._enter(self.staged[:])
        self.fail_unsent(range(self._first, self.number), error)
