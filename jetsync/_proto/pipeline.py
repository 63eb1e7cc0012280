"""
Match the messages in flight with their acks. No encoding, no socket and no waiting here.

The number of a message is the last token of its reply subject. Messages are sent in blocks.
Time-outs and lost connections are checked once per block, so a message costs little more than a
dictionary entry. Every message ends in exactly one way: acknowledged, refused, or unknown. A 503
means that no stream took the message, so it may be sent again, under a new number.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import attrs

from jetsync._base.integers import LONGEST_DIGITS
from jetsync._base.speedups import with_twin
from jetsync._proto.ack_runs import RUN_DIGITS
from jetsync._proto.puback import is_no_responders, parse_ack, plain_prefix
from jetsync.errors import ApiError, JetSyncError
from jetsync.values.pub_acks import PubAck, PublishReport

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from jetsync._proto.ack_runs import AckRun
    from jetsync.values.frame import Frame
    from jetsync.values.pub_acks import PublishFailure

Item = TypeVar("Item")


@attrs.define(eq=False)
class Block:
    """
    Messages that were sent together.
    """

    numbers: Sequence[int]
    # The connection that carried them.
    epoch: int
    # When missing acks time out.
    due: float
    size: int = 0


@attrs.define
class Tally:
    """
    The counters of the acknowledged messages.
    """

    count: int = 0
    duplicates: int = 0
    first_sequence: int | None = None
    last_sequence: int | None = None
    # Streams whose acks were read in full.
    streams: set[str] = attrs.field(factory=set, eq=False)

    def add(self, ack: PubAck) -> None:
        """Count one acknowledgement."""
        self.streams.add(ack.stream)
        self.duplicates += ack.duplicate
        self.add_range(1, ack.sequence, ack.sequence)

    def add_range(self, count: int, least: int, greatest: int) -> None:
        """Count at least one acknowledgement, with the least and the greatest sequence."""
        self.count += count
        if self.first_sequence is None or least < self.first_sequence:
            self.first_sequence = least
        if self.last_sequence is None or greatest > self.last_sequence:
            self.last_sequence = greatest

    def report(
        self, failures: Iterable[PublishFailure], *, exhausted: bool = True, resume_at: int = 0
    ) -> PublishReport:
        """Return the outcome of a bulk publish."""
        return PublishReport(
            count=self.count,
            duplicates=self.duplicates,
            first_sequence=self.first_sequence,
            last_sequence=self.last_sequence,
            failures=tuple(sorted(failures, key=lambda failure: failure.index)),
            exhausted=exhausted,
            streams=frozenset(self.streams),
            resume_at=resume_at,
        )


class Pipeline(Generic[Item]):
    """
    The messages in flight of one publisher or bulk publish.

    Args:
        prefix: The reply subject up to the message's number.
        keep_acks: Whether to collect each ack, or only to count them.
        give_up: Called with a message without an answer before it ends.
    """

    def __init__(
        self,
        prefix: bytes,
        *,
        keep_acks: bool = False,
        give_up: Callable[[Item], object] | None = None,
    ) -> None:
        self.tally: Final = Tally()
        # The messages in flight, by their numbers. Other code only reads it, as `in_flight`.
        self._in_flight: dict[int, Item] = {}
        self.in_flight: Final[Mapping[int, Item]] = self._in_flight
        self._failed: list[tuple[int, Item, Exception | None]] = []
        # Messages that failed. None means a lost or late ack: the outcome is unknown.
        self.failed: Final[Sequence[tuple[int, Item, Exception | None]]] = self._failed
        self._refused: list[tuple[int, Item]] = []
        # Messages that no stream took (503). The caller sends them again or fails them.
        self.refused: Final[Sequence[tuple[int, Item]]] = self._refused
        # Acknowledged messages, if they are collected: plain acks as their sequence.
        self.acked: list[tuple[Item, PubAck | int]] = []

        self._keeps_acks = keep_acks
        self._give_up_item = give_up
        self._prefix_length = len(prefix)
        # How plain acks start, once one was seen. If acks are collected, this stays the prefix of
        # the first stream, because `full_ack` has one name for all plain acks.
        self.plain: bytes = b""
        self._plain_stream = ""
        # Bytes of all blocks that have messages in flight.
        self.size: int = 0

        self._blocks: deque[Block] = deque()

    def __repr__(self) -> str:
        return f"<Pipeline in_flight={len(self._in_flight)} acked={self.tally.count}>"

    def take_acked(self) -> list[tuple[Item, PubAck | int]]:
        """
        Return the acknowledged messages, and forget them.

        :meth:`full_ack` makes acks of them, because most callers look at few of them.
        """
        acked, self.acked = self.acked, []
        return acked

    def taken(self) -> None:
        """Forget the messages in ``failed`` and ``refused``, which the caller has processed."""
        self._failed.clear()
        self._refused.clear()

    def keep_acks(self) -> None:
        """Collect each ack from here on."""
        self._keeps_acks = True

    def enter(self, entries: Iterable[tuple[int, Item]]) -> None:
        """Put messages in flight, by their numbers."""
        self._in_flight.update(entries)

    def enter_staged(self, take: Callable[[dict[int, Item]], bytes]) -> bytes:
        """Put the messages of a stage in flight, and return their frames."""
        return take(self._in_flight)

    def take_back(self, numbers: Iterable[int]) -> list[tuple[int, Item]]:
        """Return those messages of *numbers* that are in flight, because they were not sent."""
        in_flight = self._in_flight
        return [(each, in_flight.pop(each)) for each in numbers if each in in_flight]

    def sent(self, numbers: Sequence[int], epoch: int, due: float, size: int = 0) -> None:
        """Add a block that was written; its messages are in ``in_flight`` already."""
        self._blocks.append(Block(numbers, epoch, due, size))
        self.size += size

    def receive(self, answers: Iterable[Frame | AckRun]) -> None:
        """
        Process answers in order.

        Args:
            answers: Frames, and runs of plain acks.
        """
        in_flight, cut, answers = self._in_flight, self._prefix_length, iter(answers)
        acked = self.acked if self._keeps_acks else None
        while True:
            answer, count, least, greatest = end_acks(in_flight, answers, cut, self.plain, acked)
            if count:
                self.tally.add_range(count, least, greatest)
            if answer is None:
                return
            # An answer belongs to a message only if it ends in a number that is in flight.
            digits = answer[0][cut:]
            is_number = digits.isdigit() and len(digits) <= LONGEST_DIGITS
            number = int(digits) if is_number else -1
            item = in_flight.pop(number, None)
            if item is not None:
                self._receive_one(number, item, answer)

    def _receive_one(self, number: int, item: Item, frame: Frame) -> None:
        """Process an answer that is not a plain ack."""
        try:
            if is_no_responders(frame):
                self._refused.append((number, item))
                return
            ack = parse_ack(frame[3])
        except JetSyncError as error:
            # The answer does not say whether the message is stored. The error becomes the cause.
            self._failed.append((number, item, error))
            return
        if isinstance(ack, ApiError):
            self._failed.append((number, item, ack))
            return
        self.tally.add(ack)
        if not self._keeps_acks:
            self.plain = plain_prefix(frame[3]) or self.plain
            return
        self.acked.append((item, ack))
        if not self.plain and ack == PubAck(ack.stream, ack.sequence):
            self.plain, self._plain_stream = plain_prefix(frame[3]) or b"", ack.stream

    def full_ack(self, ack: PubAck | int) -> PubAck:
        """Return the ack of an acknowledged message."""
        return PubAck(self._plain_stream, ack) if isinstance(ack, int) else ack

    def deny(self, numbers: Iterable[int], error: Exception) -> None:
        """Fail the messages of *numbers* that are in flight, because the server refuses them."""
        in_flight = self._in_flight
        self._failed += [
            (each, in_flight.pop(each), error) for each in numbers if each in in_flight
        ]

    def lost(self, epoch: int) -> None:
        """Fail the messages in flight on connections up to *epoch*."""
        self._drop(lambda block: block.epoch <= epoch)

    def expire(self, now: float) -> None:
        """Fail the messages whose acks are overdue."""
        blocks = self._blocks
        self._forget_done()
        while blocks and blocks[0].due <= now:
            self._give_up(blocks.popleft())
            self._forget_done()

    def next_timeout(self) -> float | None:
        """Return when the oldest message in flight times out; None if there is none."""
        self._forget_done()
        return self._blocks[0].due if self._blocks else None

    def prune(self) -> None:
        """Forget finished blocks, including those queued after an unfinished one."""
        self._drop(self._is_done)

    def _forget_done(self) -> None:
        """Forget the oldest blocks, as long as none of their messages is in flight."""
        blocks = self._blocks
        while blocks and self._is_done(blocks[0]):
            self.size -= blocks.popleft().size

    def _drop(self, is_over: Callable[[Block], bool]) -> None:
        blocks = list(self._blocks)
        self._blocks.clear()
        for block in blocks:
            if is_over(block):
                self._give_up(block)
            else:
                self._blocks.append(block)

    def _is_done(self, block: Block) -> bool:
        """Return whether no message of a block is in flight."""
        # The last one first, because acks arrive in order.
        in_flight, numbers = self._in_flight, block.numbers
        return numbers[-1] not in in_flight and in_flight.keys().isdisjoint(numbers)

    def _give_up(self, block: Block) -> None:
        """Forget a block, and fail its messages that are still in flight."""
        self.size -= block.size
        if self._in_flight.keys().isdisjoint(block.numbers):
            # The usual case. A loop over the messages would cost a fifth of the total.
            return
        for number in block.numbers:
            if number in self._in_flight:
                if self._give_up_item is not None:
                    self._give_up_item(self._in_flight[number])
                self._failed.append((number, self._in_flight.pop(number), None))


@with_twin
def end_acks(
    in_flight: dict[int, Any],
    answers: Iterator[Frame | AckRun],
    cut: int,
    plain: bytes,
    acked: list[tuple[Any, PubAck | int]] | None,
) -> tuple[Frame | None, int, int, int]:
    """
    Take messages out of *in_flight*, up to the first answer that is not a plain ack.

    Args:
        in_flight: The messages by their numbers. Other numbers are ignored.
        answers: Frames, and runs of plain acks.
        cut: How long the reply subjects are, up to the number.
        plain: How a plain ack starts. If it is empty, no frame is one.
        acked: Receives each message with its sequence, unless it is None.

    Returns:
        The first answer that is not a plain ack; None if there are no more answers. Then how many
        messages it took, and the least and the greatest of their sequences; 0 if it took none.
    """
    run: AckRun = []
    other, length = None, len(plain)
    for answer in answers:
        if isinstance(answer, list):
            run += answer
            continue
        digits, data = answer[0][cut:], answer[3]
        if plain and data.startswith(plain) and digits.isdigit() and len(digits) <= RUN_DIGITS:
            sequence = data[length:-1]
            if sequence.isdigit() and len(sequence) <= RUN_DIGITS:
                run.append((digits, sequence))
                continue
        other = answer
        break
    pop = in_flight.pop
    taken = [
        (item, int(sequence))
        for digits, sequence in run
        if (item := pop(int(digits), None)) is not None
    ]
    if not taken:
        return other, 0, 0, 0
    if acked is not None:
        acked += taken
    sequences = [sequence for _, sequence in taken]
    return other, len(sequences), min(sequences), max(sequences)
