"""
An atomic batch: what goes out for each message, and what the answers mean (ADR-50).

What lives here: the sequence of a batch, which of its messages asks for an answer, the two ways to
commit, the rules for headers, the reading of answers. What may not: encoding, the socket, waiting.

A server commits with the last message, or, from API level 4, with a marker that it does not store.
Where it cannot do the latter the engine holds one message back, so that there is always one to
commit with. Every batch ends in exactly one way: stored whole, not stored, or unknown. Sources:
ADR-50; facts about servers 2.12 to 2.15 where they differ.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Final, Generic, TypeVar

import attrs

from jetsync._proto.puback import is_no_responders, parse_ack
from jetsync.errors import (
    ApiError,
    AtomicityError,
    BatchClosedError,
    BatchRuleError,
    BatchTooLargeError,
    DuplicateMessageIdError,
    NoStreamResponseError,
    WrongLastSequenceError,
)
from jetsync.values import headers as names
from jetsync.values.outbound import BatchAck

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jetsync.values.frame import Frame

Item = TypeVar("Item")

USUAL_LIMIT: Final = 1000
"""Messages of a batch at most, unless an operator changed it (ADR-50)."""

STORED: Final = b"1"
"""The value of the commit header on a message that is stored with the batch."""

NO_COUNTERS: Final = "servers before 2.14 destroy counters that a batch changes"
"""Why a message is refused there."""

END_OF_BATCH: Final = b"eob"
"""The same on a marker that is not stored."""


class BatchState(enum.Enum):
    """
    How far a batch is.
    """

    OPEN = "open"
    COMMITTED = "committed"
    FAILED = "failed"
    """Nothing of it is stored, or an error says what is."""
    UNKNOWN = "unknown"
    """The commit went out and no answer came."""
    SPLIT = "split"
    """The server took it for no batch, and stored messages of it one by one."""


# Not frozen, which would double the cost of making one.
@attrs.define(eq=False)
class Entry(Generic[Item]):
    """
    A message of a batch on its way out.
    """

    sequence: int
    """Its place in the batch, from 1."""
    item: Item | None
    """The message; None for the marker at the end of a batch."""
    commit: bytes = b""
    """The commit header's value, empty for a message that commits nothing."""
    asks: bool = False
    """Whether the batch goes on only once the server has answered it."""


class AtomicBatchEngine(Generic[Item]):
    """
    One batch from its first message to its end.

    Args:
        batch_id: Its id.
        hold_back: Whether the last message has to commit, as the server knows no marker.
        ack_first: Whether the first message asks for an answer.
        ack_every: Ask with every so many messages; 0 for none.
        limit: How many messages the server takes, where that is known.
    """

    def __init__(
        self,
        batch_id: str,
        *,
        hold_back: bool,
        ack_first: bool = True,
        ack_every: int = 0,
        limit: int | None = None,
    ) -> None:
        self.batch_id = batch_id
        self.state = BatchState.OPEN
        self.items: list[Item] = []
        """All messages that were taken, in order."""

        self.ack: BatchAck | None = None
        self._hold_back = hold_back
        self._ack_first = ack_first
        self._ack_every = ack_every
        self._limit = limit
        self._sent = 0
        self._complete = False
        """Whether what commits it was given out; nothing can follow that."""

    def __repr__(self) -> str:
        return f"<AtomicBatchEngine {self.state.value} {self._sent} of {len(self.items)} sent>"

    @property
    def started(self) -> bool:
        """Whether the server has, or may have, messages of it."""
        return self._sent > 0

    @property
    def next_sequence(self) -> int:
        """The place that the next message would have."""
        return self._sent + 1

    def check_room(self) -> None:
        """
        Raise if the batch takes no further message.

        Raises:
            BatchClosedError: It has ended.
            BatchTooLargeError: It is as large as the server allows.
        """
        self._check(1)

    def _check(self, more: int) -> None:
        if self.state is not BatchState.OPEN or self._complete:
            raise BatchClosedError
        if self._limit is not None and len(self.items) + more > self._limit:
            # The limit comes last, as in the server's own text.
            size = len(self.items) + more
            raise BatchTooLargeError(
                description=f"a batch of {size} messages is too large: {self._limit}"
            )

    def add(self, item: Item) -> Entry[Item] | None:
        """Take a message and return what is to be written now."""
        self.check_room()
        self.items.append(item)
        if self._hold_back:
            if self._sent == len(self.items) - 1:
                return None
            item = self.items[self._sent]
        self._sent += 1
        return Entry(self._sent, item, asks=self._asks(self._sent))

    def commit(self, *items: Item) -> list[Entry[Item]]:
        """
        Take the last messages and return what is to be written to end the batch.

        Raises:
            BatchClosedError, BatchTooLargeError: As :meth:`check_room`; the batch is as it was.
        """
        self._check(len(items))
        self.items += items
        if not self.items:
            raise BatchClosedError(reason="it has no messages")
        self._complete = True
        if self._sent == len(self.items):
            return [Entry(self.next_sequence, None, END_OF_BATCH, asks=True)]
        rest = self.items[self._sent :] if self._sent else self.items
        entries = [Entry(number, item) for number, item in enumerate(rest, self._sent + 1)]
        self._sent = len(self.items)
        if self._ack_first or self._ack_every or self._sent > USUAL_LIMIT:
            for entry in entries:
                entry.asks = self._asks(entry.sequence)
        last = entries[-1]
        last.commit, last.asks = STORED, True
        return entries

    def _asks(self, sequence: int) -> bool:
        return (
            (sequence == 1 and self._ack_first)
            or (self._ack_every > 0 and sequence % self._ack_every == 0)
            # The first one that may be too many: whoever sends on would send in vain.
            or (self._limit is None and sequence == USUAL_LIMIT + 1)
        )

    def fail(self) -> None:
        """Note that nothing of the batch is stored, or will be."""
        self.state = BatchState.FAILED

    def lost(self, entry: Entry[Item]) -> BatchState:
        """Note that no answer to *entry* can come any more, or came in time."""
        self.state = BatchState.UNKNOWN if entry.commit else BatchState.FAILED
        return self.state

    def answered(self, entry: Entry[Item], frame: Frame, subject: str) -> None:
        """
        Take the answer to *entry*, which was sent to *subject*.

        Raises:
            NoStreamResponseError, ApiError: Nothing of the batch is stored; it has ended.
            AtomicityError: Its messages were stored one by one; it has ended.
            ProtocolError: Nobody knows what the answer means; it has ended, perhaps stored.
        """
        if is_no_responders(frame):
            self.state = BatchState.FAILED
            raise NoStreamResponseError(subject)
        data = frame[3]
        if not data and not entry.commit:
            return
        self.state = BatchState.UNKNOWN if entry.commit else BatchState.FAILED
        ack = parse_ack(data)
        if isinstance(ack, ApiError):
            self.state = BatchState.FAILED
            raise ack
        stored = len(self.items)
        if not entry.commit or ack.batch_id != self.batch_id or ack.batch_size != stored:
            # What a server stores that knows nothing of batches, or not enough.
            self.state = BatchState.SPLIT
            raise AtomicityError(self.batch_id, stream=ack.stream, sequence=ack.sequence)
        self.state = BatchState.COMMITTED
        self.ack = BatchAck(
            stream=ack.stream,
            sequence=ack.sequence,
            batch_id=self.batch_id,
            size=stored,
            first_sequence=ack.sequence - stored + 1,
        )


class HeaderRules:
    """
    What the headers of a batch's messages may say, given those before (facts 1.6).

    Servers check this when the batch is committed, and then refuse all of it. Checked message by
    message, the caller learns which one it is, and the batch is still good.
    """

    _MANAGED: Final = frozenset({names.BATCH_ID, names.BATCH_SEQUENCE, names.BATCH_COMMIT})

    def __init__(self, *, counters: bool) -> None:
        self._counters = counters
        self.changes_counters = False
        """Whether a message that was taken changes a counter."""

        self._subjects: set[str] = set()
        self._ids: set[str] = set()
        self._first = True

    @property
    def ids(self) -> int:
        """How many messages had an id."""
        return len(self._ids)

    def take(self, subject: str, pairs: Sequence[tuple[str, str]]) -> None:
        """
        Check a message and remember it.

        Raises:
            BatchRuleError: A header cannot be in a batch, or not on this message.
            WrongLastSequenceError: The expectation is about a subject that the batch has written.
            DuplicateMessageIdError: The id is in the batch already.
        """
        if pairs:
            self._check(subject, pairs)
            self.changes_counters |= any(name == names.INCREMENT for name, _ in pairs)
        self._subjects.add(subject)
        self._first = False

    def _check(self, subject: str, pairs: Sequence[tuple[str, str]]) -> None:
        # Of several headers of one name servers read the first.
        found = dict(reversed(pairs))
        for name in self._MANAGED & found.keys():
            raise BatchRuleError(name, "the batch itself sets it")
        if names.EXPECTED_LAST_MSG_ID in found:
            raise BatchRuleError(names.EXPECTED_LAST_MSG_ID, "atomic batches cannot have it")
        if names.EXPECTED_LAST_SEQUENCE in found and not self._first:
            raise BatchRuleError(
                names.EXPECTED_LAST_SEQUENCE, "only the first message of a batch can have it"
            )
        if names.INCREMENT in found and not self._counters:
            raise BatchRuleError(names.INCREMENT, NO_COUNTERS)
        self._check_subject_sequence(subject, found)
        self._check_rollup(subject, found)
        # Blanks before a value are none of it, and what is empty then is no id.
        message_id = found.get(names.MSG_ID, "").lstrip(" ")
        if message_id:
            if message_id in self._ids:
                raise DuplicateMessageIdError(
                    description=f"the message id {message_id!r} is in the batch already"
                )
            self._ids.add(message_id)

    def _check_subject_sequence(self, subject: str, found: dict[str, str]) -> None:
        about = found.get(names.EXPECTED_LAST_SUBJECT_SEQUENCE_SUBJECT)
        if names.EXPECTED_LAST_SUBJECT_SEQUENCE not in found:
            if about is not None:
                raise BatchRuleError(
                    names.EXPECTED_LAST_SUBJECT_SEQUENCE_SUBJECT,
                    f"it needs {names.EXPECTED_LAST_SUBJECT_SEQUENCE}",
                )
            return
        # A wildcard is compared with the stream as it was before the batch, whatever the batch has
        # written, so several messages may expect the same of it.
        if (about or subject) in self._subjects:
            raise WrongLastSequenceError(
                err_code=10164,
                description=(
                    f"wrong last sequence: {about or subject!r} is written by an earlier message of"
                    " the batch, so nothing can be expected of it"
                ),
            )

    def _check_rollup(self, subject: str, found: dict[str, str]) -> None:
        rollup = found.get(names.ROLLUP)
        if rollup == "all" and not self._first:
            raise BatchRuleError(names.ROLLUP, "'all' can only be on the first message of a batch")
        if rollup == "sub" and subject in self._subjects:
            raise BatchRuleError(
                names.ROLLUP, "'sub' can only be on the first message of a subject in a batch"
            )
