"""
The protocol engine of atomic batches (ADR-50).

It numbers the messages of a batch, decides which of them ask for an answer, commits in one of two
ways, checks headers and reads answers. It keeps all messages. It does not encode, write or wait.

From API level 4 a batch can end with a marker that the server does not store. Older servers commit
only with a message, so the engine holds the latest message back for the commit. Every batch ends in
one of three ways: stored as a whole, not stored, or unknown. Sources: ADR-50; facts about servers
2.12 to 2.15 where they differ.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Final, Generic, TypeVar

import attrs

from jetsync import errors
from jetsync._proto.puback import parse_ack
from jetsync.values import headers as names
from jetsync.values.outbound import BatchAck

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jetsync.values.frame import Frame

Item = TypeVar("Item")

# The limit of messages in a batch, unless the operator of the server changed it (ADR-50).
USUAL_LIMIT: Final = 1000

# More messages than any batch has.
UNLIMITED: Final = 1 << 62

# Values of the commit header: on a message that is stored, and on a marker that is not stored.
STORED: Final = b"1"
END_OF_BATCH: Final = b"eob"

NO_COUNTERS: Final = "servers before 2.14 destroy counters that a batch changes"


class BatchPhase(enum.Enum):
    """The state of a batch over all attempts to store it."""

    # It takes messages.
    OPEN = "open"
    # A call commits the batch or sends it again, or was interrupted before it knew the outcome.
    COMMITTING = "committing"
    COMMITTED = "committed"
    # The last commit failed. The state of its attempt tells whether it may be sent again.
    FAILED = "failed"
    # Adding a message failed, and the caller has not discarded the batch.
    BROKEN = "broken"
    DISCARDED = "discarded"


# The phase after an event. A pair that is missing changes nothing, or its call raises an error.
NEXT_PHASE: Final = {
    (BatchPhase.OPEN, "commit"): BatchPhase.COMMITTING,
    (BatchPhase.OPEN, "lost"): BatchPhase.BROKEN,
    (BatchPhase.OPEN, "discard"): BatchPhase.DISCARDED,
    (BatchPhase.COMMITTING, "stored"): BatchPhase.COMMITTED,
    (BatchPhase.COMMITTING, "commit failed"): BatchPhase.FAILED,
    (BatchPhase.FAILED, "resend"): BatchPhase.COMMITTING,
    (BatchPhase.BROKEN, "discard"): BatchPhase.DISCARDED,
}


class BatchState(enum.Enum):
    """The state of one attempt to store a batch."""

    OPEN = "open"
    COMMITTED = "committed"
    # No message of the batch is stored, or an error says which are.
    FAILED = "failed"
    # The commit was sent and no answer came.
    UNKNOWN = "unknown"
    # The server stored messages of the batch one by one.
    SPLIT = "split"


# Not frozen, because that would double the cost of making one.
@attrs.define(eq=False)
class Part(Generic[Item]):
    """Messages of a batch that are written together."""

    # The sequence of the first one, counted from 1.
    first: int
    # Empty for the marker at the end of a batch.
    items: list[Item]
    # Whether the batch waits for the server's answer to the last one.
    asks: bool = False
    # The value of the commit header of the last one; empty if it does not commit.
    commit: bytes = b""


class AtomicBatchEngine(Generic[Item]):
    """
    One batch from its first message to its end.

    Args:
        batch_id: The id.
        hold_back: Whether the server needs a message for the commit.
        ack_first: Whether the first message asks for an answer.
        ack_every: One message in this many asks for an answer; 0 for none.
        limit: The number of messages that the server accepts, if known.
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
        self.batch_id: Final = batch_id
        self.state: BatchState = BatchState.OPEN
        # All messages to write, in order, to send them again: items, and blocks of staged frames.
        self.kept: Final[list[Item | bytes]] = []
        # The message that waits for the commit.
        self._held: list[Item] = []
        # The number of the last other message, and that of the last one that was kept.
        self.last: int = 0
        self.sent: int = 0
        # The server's confirmation, if the batch is committed.
        self.ack: BatchAck | None = None
        self._hold_back = hold_back
        self._ack_first = ack_first
        self._ack_every = ack_every
        self._limit = limit
        # Whether the commit was returned to the caller; nothing can follow it.
        self.complete: bool = False
        self._plan()

    def __repr__(self) -> str:
        return f"<AtomicBatchEngine {self.state.value} {self.sent} of {self.size} sent>"

    @property
    def size(self) -> int:
        """The number of messages."""
        return self.last + len(self._held)

    @property
    def places(self) -> int:
        """How many messages may be staged: they need no answer, and the server accepts them."""
        return 0 if self._hold_back else self._quiet - self.last

    @property
    def may_be_resent(self) -> bool:
        """Whether all messages may be sent again under another id, if they have ids or failed."""
        return self.complete and self.state in {BatchState.FAILED, BatchState.UNKNOWN}

    def check_room(self, count: int = 1) -> None:
        """
        Raise unless the batch takes *count* more messages.

        Raises:
            BatchClosedError: It has ended.
            BatchTooLargeError: It would have more messages than the server accepts.
        """
        if self.state is not BatchState.OPEN or self.complete:
            raise errors.BatchClosedError
        if self._limit is not None and self.size + count > self._limit:
            raise _too_large(self.size + count, self._limit)

    def staged(self, last: int) -> None:
        """Count the messages that were staged; *last* is the number of the last one."""
        self.last = max(self.last, last)

    def add(self, item: Item) -> Part[Item] | None:
        """
        Add a message. Return the one to stage or to write, or None if it waits for the commit.

        If the returned part asks, the caller has to write it now.
        """
        self.check_room()
        if self._hold_back:
            self._held.append(item)
            if len(self._held) == 1:
                return None
            item = self._held.pop(0)
        (part,) = self._number([item])
        return part

    def keep(self, *messages: Item | bytes) -> None:
        """Keep messages, which are going to be written: items, and blocks of staged frames."""
        self.kept.extend(messages)
        self.sent = self.last

    def _number(self, items: Sequence[Item]) -> list[Part[Item]]:
        """Return the parts of numbered messages, each up to the next message that asks."""
        parts, start = [], 0
        while start < len(items):
            stop = min(len(items), start + self._ask - self.last)
            part = Part(self.last + 1, list(items[start:stop]))
            self.last += stop - start
            part.asks = self.last == self._ask
            if part.asks:
                self._plan()
            parts.append(part)
            start = stop
        return parts

    def commit(self, *items: Item) -> list[Part[Item]]:
        """
        Add the last messages and return what to write to commit the batch.

        Raises:
            BatchClosedError, BatchTooLargeError: As for :meth:`check_room`. The batch is unchanged.
        """
        self.check_room(len(items))
        if not items and not self.size:
            raise errors.BatchClosedError(reason="it has no messages")
        self.complete = True
        items = (*self._held, *items)
        self._held.clear()
        parts = self._number(items)
        self.keep(*items)
        if not parts:
            return [Part(self.last + 1, [], asks=True, commit=END_OF_BATCH)]
        parts[-1].asks, parts[-1].commit = True, STORED
        return parts

    def _plan(self) -> None:
        """Find the next message that asks for an answer."""
        following, every, limit = self.last + 1, self._ack_every, self._limit
        ask = following + -following % every if every else UNLIMITED
        if limit is None and following <= USUAL_LIMIT + 1:
            # The server may refuse this one and all that follow.
            ask = min(ask, USUAL_LIMIT + 1)
        self._ask = 1 if self._ack_first and following == 1 else ask
        # The last message before it for which there is room.
        self._quiet = min(self._ask - 1, UNLIMITED if limit is None else limit)

    def not_stored(self) -> None:
        """Record that the stream will have no message of the batch, so that nothing follows."""
        self.state = BatchState.FAILED

    def found_stored(self, ack: BatchAck) -> None:
        """Record that the stream has the messages, from an earlier attempt with another id."""
        self.state, self.ack = BatchState.COMMITTED, ack

    def in_doubt(self) -> None:
        """Record that the commit may have been sent, or that an earlier attempt may be stored."""
        self.state = BatchState.UNKNOWN

    def answered(self, part: Part[Item], frame: Frame) -> None:
        """
        Read the answer to the last message of *part*.

        Raises:
            ApiError: The batch has ended. The stream has no message of it.
            AtomicityError: The batch has ended, and its messages were stored one by one.
            ProtocolError: The answer cannot be read. If *part* commits, the batch may be stored.
        """
        data = frame[3]
        if not data and not part.commit:
            return
        ack = parse_ack(data)
        if isinstance(ack, errors.ApiError):
            self.state = BatchState.FAILED
            if isinstance(ack, errors.BatchTooLargeError) and ack.limit is not None:
                raise _too_large(self.size, ack.limit, ack.stream)
            raise ack
        stored = self.size
        if not part.commit or ack.batch_id != self.batch_id or ack.batch_size != stored:
            # A server without support for batches, or for this kind of commit.
            self.state = BatchState.SPLIT
            raise errors.AtomicityError(self.batch_id, stream=ack.stream, sequence=ack.sequence)
        self.state = BatchState.COMMITTED
        self.ack = BatchAck(
            stream=ack.stream,
            sequence=ack.sequence,
            batch_id=self.batch_id,
            size=stored,
            first_sequence=ack.sequence - stored + 1,
        )


def _too_large(count: int, limit: int, stream: str | None = None) -> errors.BatchTooLargeError:
    # The limit comes last, as in the server's own error.
    return errors.BatchTooLargeError(
        description=f"the batch has {count} messages; the limit is {limit}", stream=stream
    )


class HeaderRules:
    """
    Checks the headers of a batch's messages against the messages before them (facts 1.6).

    The server checks them at the commit and then refuses the whole batch. A check of each message
    tells the caller which one is wrong, and the batch stays usable.
    """

    _MANAGED: Final = (names.BATCH_ID, names.BATCH_SEQUENCE, names.BATCH_COMMIT)

    def __init__(self, *, counters: bool) -> None:
        self._counters = counters
        # Whether a message of the batch changes a counter.
        self.changes_counters = False
        self._subjects: set[str] = set()
        self._ids: set[str] = set()
        # The last headers to which no rule applies. Plugins add the same ones to all messages.
        self._allowed: tuple[tuple[str, str], ...] = ()

    @property
    def ids(self) -> int:
        """The number of messages with an id."""
        return len(self._ids)

    def take(self, subject: str, pairs: Sequence[tuple[str, str]]) -> None:
        """
        Check a message and record it.

        Raises:
            BatchRuleError: A header is not allowed in a batch, or not on this message.
            WrongLastSequenceError: The batch has changed the subject of the expectation.
            DuplicateMessageIdError: The id is in the batch already.
        """
        if pairs and pairs is not self._allowed:
            self._check(subject, pairs)
            if isinstance(pairs, tuple) and not any(
                name.lower().startswith("nats-") for name, _ in pairs
            ):
                self._allowed = pairs
        self._subjects.add(subject)

    def _check(self, subject: str, pairs: Sequence[tuple[str, str]]) -> None:
        # Of several headers with one name servers read the first.
        found = dict(reversed(pairs))
        # The server ignores a name in another case, so the condition would silently not apply.
        spelled = {name.lower(): name for name in found}
        refused = dict.fromkeys(self._MANAGED, "jetsync sets it for the batch")
        refused[names.EXPECTED_LAST_MSG_ID] = "atomic batches do not support it"
        if self._subjects:
            refused[names.EXPECTED_LAST_SEQUENCE] = "only the first message of a batch can have it"
        for name, reason in refused.items():
            if name.lower() in spelled:
                raise errors.BatchRuleError(spelled[name.lower()], reason)
        if names.INCREMENT in found and not self._counters:
            raise errors.BatchRuleError(names.INCREMENT, NO_COUNTERS)
        if names.EXPECTED_LAST_SUBJECT_SEQUENCE in found:
            # The server compares a wildcard with the stream as it was before the batch, so several
            # messages may expect the same of one.
            about = found.get(names.EXPECTED_LAST_SUBJECT_SEQUENCE_SUBJECT) or subject
            if about in self._subjects:
                raise errors.WrongLastSequenceError(
                    err_code=10164,
                    description=f"wrong last sequence: an earlier message of the batch changes "
                    f"{about!r}, so no sequence of it can be expected",
                )
        elif names.EXPECTED_LAST_SUBJECT_SEQUENCE_SUBJECT in found:
            raise errors.BatchRuleError(
                names.EXPECTED_LAST_SUBJECT_SEQUENCE_SUBJECT,
                f"it needs {names.EXPECTED_LAST_SUBJECT_SEQUENCE}",
            )
        rollup = found.get(names.ROLLUP)
        if rollup == "all" and self._subjects:
            raise errors.BatchRuleError(
                names.ROLLUP, "'all' can only be on the first message of a batch"
            )
        if rollup == "sub" and subject in self._subjects:
            raise errors.BatchRuleError(
                names.ROLLUP, "'sub' can only be on the first message of a subject in a batch"
            )
        # Servers ignore spaces before a value, and an empty id.
        message_id = found.get(names.MSG_ID, "").lstrip(" ")
        if message_id:
            if message_id in self._ids:
                raise errors.DuplicateMessageIdError(
                    description=f"the message id {message_id!r} is in the batch already"
                )
            self._ids.add(message_id)
        self.changes_counters |= names.INCREMENT in found
