"""
The window of publishes in flight: what was sent, what was answered, what can no longer be.

What lives here: the messages in flight by number, the blocks they were sent in with the connection
and the time of each, the reading of acks. What may not: encoding, the socket, waiting.

A message is known by its number, which is also the last token of its reply subject. Messages are
sent in blocks; time-outs and lost connections are looked after once per block, so that a message
costs little more than its entry in a dictionary. Every message ends in exactly one way:
acknowledged, refused, or unknown. A 503 says for certain that no stream took the message, so that
one may be sent again (see :meth:`Pipeline.again`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Generic, TypeVar

import attrs

from jetsync._base.integers import LONGEST_DIGITS
from jetsync._proto.puback import is_no_responders, parse_ack, plain_prefix
from jetsync.errors import ApiError, JetSyncError
from jetsync.values.outbound import PubAck

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from jetsync.values.frame import Frame

Item = TypeVar("Item")


@attrs.define(eq=False)
class Block:
    """
    Messages that were sent together.
    """

    numbers: Sequence[int]
    epoch: int
    """The connection that they were written on."""

    due: float
    """When an ack that has not come is given up."""

    size: int = 0
    """How many bytes they were."""


@attrs.define
class Tally:
    """
    What became of the messages so far.
    """

    count: int = 0
    duplicates: int = 0
    first_sequence: int | None = None
    last_sequence: int | None = None
    stream: str | None = attrs.field(default=None, eq=False)
    """The stream that took messages; the one of an odd ack where there are several."""
    streams: set[str] = attrs.field(factory=set, eq=False)
    """All streams that took messages."""

    def add(self, ack: PubAck) -> None:
        """Count one acknowledgement."""
        self.count += 1
        self.stream = ack.stream
        self.streams.add(ack.stream)
        self.duplicates += ack.duplicate
        self.cover(ack.sequence, ack.sequence)

    def cover(self, least: int, greatest: int) -> None:
        """Widen the range of sequences."""
        if self.first_sequence is None or least < self.first_sequence:
            self.first_sequence = least
        if self.last_sequence is None or greatest > self.last_sequence:
            self.last_sequence = greatest


class Pipeline(Generic[Item]):
    """
    Keep the books of one window.

    Args:
        prefix: The reply subject up to the message's number.

        window: How many messages may be in flight.

        keep_acks: Whether to collect each ack in ``acked``, or only to count.
    """

    def __init__(self, prefix: bytes, window: int, *, keep_acks: bool = False) -> None:
        self.tally: Tally = Tally()
        self.flying: dict[int, Item] = {}
        self.failed: list[tuple[int, Item, Exception | None]] = []
        """
        Messages that ended badly; None stands for a lost or late ack, so the outcome is unknown.
        """

        self.acked: list[tuple[int, Item, PubAck]] = []
        """Messages that were acknowledged, if they are collected; the caller empties it."""

        self.refused: list[tuple[int, Item]] = []
        """Messages that no stream took (503); the caller sends them again or fails them."""

        self._window = window
        self._keep_acks = keep_acks
        self._prefix_length = len(prefix)
        self.plain: bytes = b""
        """How a plain ack starts, once one was seen, where acks are only counted."""

        self.kept_plain: bytes = b""
        """
        The same where acks are kept: how those of the first stream start, as they get its name.
        """

        self._kept_stream = ""

        self.size: int = 0
        """Bytes of all blocks of which a message may be in flight."""

        self._blocks: deque[Block] = deque()
        self._resent: dict[int, Block] = {}

    def __repr__(self) -> str:
        return f"<Pipeline flying={len(self.flying)} of {self._window} acked={self.tally.count}>"

    @property
    def room(self) -> int:
        """How many more messages may be sent now."""
        return self._window - len(self.flying)

    def sent(self, numbers: Sequence[int], epoch: int, due: float, size: int = 0) -> None:
        """Enter a block that was written; its messages are in ``flying`` already."""
        self._blocks.append(Block(numbers, epoch, due, size))
        self.size += size

    def again(self, number: int, item: Item, epoch: int, due: float, size: int = 0) -> None:
        """Enter a message that was written once more, after a 503 or an unknown outcome."""
        block = Block((number,), epoch, due, size)
        self.size += size
        self.flying[number] = item
        self._resent[number] = block
        self._blocks.append(block)

    def settle(self, frames: Iterable[Frame]) -> None:
        """Take the answers that came."""
        flying, cut, plain = self.flying, self._prefix_length, self.plain or self.kept_plain
        length = len(plain)
        run: list[tuple[bytes, bytes]] = []
        for frame in frames:
            digits = frame[0][cut:]
            data = frame[3]
            is_number = digits.isdigit() and len(digits) <= LONGEST_DIGITS
            if plain and is_number and data.startswith(plain):
                sequence = data[length:-1]
                if sequence.isdigit() and len(sequence) <= LONGEST_DIGITS:
                    run.append((digits, sequence))
                    continue
            self.settle_run(run)
            run.clear()
            # Not one of ours unless it ends in a number that is in flight.
            number = int(digits) if is_number else -1
            item = flying.pop(number, None)
            if item is not None:
                self._settle_slowly(number, item, frame)
                plain = self.plain or self.kept_plain
                length = len(plain)
        self.settle_run(run)

    def settle_run(self, run: Iterable[tuple[bytes, bytes]]) -> None:
        """Take plain acks that were read as (number, sequence), both as digits."""
        pop = self.flying.pop
        if self._keep_acks:
            sequences = []
            stream, append = self._kept_stream, self.acked.append
            for digits, sequence in run:
                number = int(digits)
                item = pop(number, None)
                if item is not None:
                    ack = PubAck(stream, int(sequence))
                    sequences.append(ack.sequence)
                    append((number, item, ack))
        else:
            sequences = [
                int(sequence) for digits, sequence in run if pop(int(digits), None) is not None
            ]
        if sequences:
            self.tally.count += len(sequences)
            self.tally.cover(min(sequences), max(sequences))

    def _settle_slowly(self, number: int, item: Item, frame: Frame) -> None:
        """Take an answer that may be anything."""
        try:
            if is_no_responders(frame):
                self.refused.append((number, item))
                return
            ack = parse_ack(frame[3])
        except JetSyncError as error:
            # Something answered, but not what it did: stored or not is unknown, and why stays
            # attached.
            self.failed.append((number, item, error))
            return
        if isinstance(ack, ApiError):
            self.failed.append((number, item, ack))
            return
        self.tally.add(ack)
        if self._keep_acks:
            self.acked.append((number, item, ack))
            # The first one stays: acks that the mailbox read by another prefix would get a wrong
            # name.
            if not self.kept_plain and ack == PubAck(ack.stream, ack.sequence):
                self.kept_plain, self._kept_stream = plain_prefix(frame[3]) or b"", ack.stream
        else:
            self.plain = plain_prefix(frame[3]) or self.plain

    def deny(self, subject: str, error: Exception, subject_of: Callable[[Item], str]) -> None:
        """Fail the messages in flight to a subject that the server refuses."""
        denied = [number for number, item in self.flying.items() if subject_of(item) == subject]
        for number in denied:
            self.failed.append((number, self.flying.pop(number), error))

    def lost(self, epoch: int) -> None:
        """Give up what was in flight on connections up to *epoch*."""
        for block in list(self._blocks):
            if block.epoch <= epoch:
                self._blocks.remove(block)
                self._give_up(block)

    def expire(self, now: float) -> None:
        """Give up what is due."""
        blocks = self._blocks
        while blocks and (blocks[0].due <= now or self._is_done(blocks[0])):
            self._give_up(blocks.popleft())

    def due(self) -> float | None:
        """Return when the oldest message in flight is given up, None if there is none."""
        while self._blocks and self._is_done(self._blocks[0]):
            self._give_up(self._blocks.popleft())
        return self._blocks[0].due if self._blocks else None

    def prune(self) -> None:
        """Forget finished blocks, including those queued after an unfinished one."""
        blocks = list(self._blocks)
        self._blocks.clear()
        for block in blocks:
            if self._is_done(block):
                self._give_up(block)
            else:
                self._blocks.append(block)

    def _is_done(self, block: Block) -> bool:
        """
        Return whether no message of a block is in flight; looks at the last one first, as acks come
        in order.
        """
        flying, numbers = self.flying, block.numbers
        return numbers[-1] not in flying and flying.keys().isdisjoint(numbers)

    def _give_up(self, block: Block) -> None:
        """Forget a block, and give up what is still in flight of it."""
        self.size -= block.size
        if not self._resent and self.flying.keys().isdisjoint(block.numbers):
            # Nearly always, and a loop over its messages would cost a fifth of all there is to do.
            return
        for number in block.numbers:
            # A message that was sent again belongs to its newest block.
            if self._resent and self._resent.get(number, block) is not block:
                continue
            self._resent.pop(number, None)
            if number in self.flying:
                self.failed.append((number, self.flying.pop(number), None))
