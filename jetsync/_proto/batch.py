"""
The protocol engine of atomic batches (ADR-50), with the phase, the messages and the
outcome of a batch over all attempts.

It numbers the messages of a batch, decides which of them ask for an answer, commits in one of two
ways, checks headers and reads answers. It keeps all messages. It does not encode, write or wait.

From API level 4 a batch can end with a marker that the server does not store. Older servers commit
only with a message, so the engine holds the latest message back for the commit. A batch is stored
as a whole, not stored, or unknown, or its messages were stored one by one. Sources: ADR-50; facts
about servers 2.12 to 2.15 where they differ.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Final, Generic, TypeVar

import attrs

from jetsync import errors
from jetsync._proto.outcome import Cause, Ending, outcome_of
from jetsync._proto.puback import parse_ack
from jetsync.values import headers as names
from jetsync.values.pub_acks import BatchAck

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from jetsync._proto.outcome import OutcomeRule
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
    # The last commit failed. The ending of its attempt tells whether it may be sent again.
    FAILED = "failed"
    # Adding a message failed, and the caller has not discarded the batch.
    BROKEN = "broken"
    DISCARDED = "discarded"


_COMMITTING: Final = "another call is committing the batch, or was interrupted while it did"

# Why a batch in one of these phases takes no more messages, if no error closed it.
_CLOSED: Final = {
    BatchPhase.COMMITTING: _COMMITTING,
    BatchPhase.COMMITTED: "it was committed",
}
_DISCARDED: Final = "it was discarded"
_INTERRUPTED: Final = (
    "a call was interrupted while it added a message; discard this batch and build a new one"
)

# Why a batch cannot be sent again.
_NO_RESEND: Final = {
    BatchPhase.COMMITTING: _COMMITTING,
    BatchPhase.BROKEN: (
        "an add failed, so a message of this batch may be missing: build a new batch"
    ),
}
_NO_FAILED_COMMIT: Final = "only a batch whose commit failed can be sent again"

_UNKNOWN_OUTCOME: Final = (
    "and the batch may be stored; if each message has a msg_id, resend() stores it once"
)


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
    One batch from its first message to its end, over all attempts to store it.

    Args:
        batch_id: The id of the first attempt.
    """

    def __init__(self, batch_id: str) -> None:
        # The id of the current attempt, or of the next one, and the ids of all attempts.
        self.batch_id: str = batch_id
        self.ids: Final[set[str]] = set()
        self.phase: BatchPhase = BatchPhase.OPEN
        # The error that ended the batch, as text.
        self._reason: str | None = None
        # The server's confirmation, if the batch is committed.
        self.ack: BatchAck | None = None
        # How the current attempt ended; None while it is open.
        self.ending: Ending | None = None
        # Whether an earlier attempt may be stored although no answer came.
        self.earlier: bool = False
        # All messages to write, in order, to send them again: items, and blocks of staged frames.
        self.kept: list[Item | bytes] = []
        # The message that waits for the commit.
        self._held: list[Item] = []
        # The number of the last other message, and that of the last one that was kept.
        self.last: int = 0
        self.sent: int = 0
        # Whether the commit was returned to the caller, so that nothing can follow it, and whether
        # it may have been written.
        self._complete = False
        self._may_commit = False
        # How the current attempt is sent, see :meth:`start`.
        self._hold_back = self._ack_first = False
        self._ack_every = 0
        self._limit: int | None = None

    def start(
        self,
        *,
        hold_back: bool = False,
        ack_first: bool = False,
        ack_every: int = 0,
        limit: int | None = None,
    ) -> None:
        """
        Start an attempt. Call it first, unless :meth:`commit_all` does.

        Args:
            hold_back: Whether the server needs a message for the commit.
            ack_first: Whether the first message asks for an answer.
            ack_every: One message in this many asks for an answer; 0 for none.
            limit: The number of messages that the server accepts, if known.
        """
        self.ids.add(self.batch_id)
        self._hold_back = hold_back
        self._ack_first = ack_first
        self._ack_every = ack_every
        self._limit = limit

    def __repr__(self) -> str:
        return f"<AtomicBatchEngine {self.phase.value} {self.sent} of {self.size} sent>"

    @property
    def size(self) -> int:
        """The number of messages."""
        return self.last + len(self._held)

    @property
    def places(self) -> int:
        """How many messages may be staged: they need no answer, and the server accepts them."""
        if self._hold_back:
            return 0
        end = self._next_ask(self.last + 1) - 1
        return (end if self._limit is None else min(end, self._limit)) - self.last

    @property
    def is_unknown(self) -> bool:
        """Whether this attempt or an earlier one may be stored although no answer came."""
        return self.earlier or self.ending is Ending.UNKNOWN

    # Events of the batch.

    def check_open(self, *, discarding: bool, interrupted: bool) -> None:
        """
        Raise BatchClosedError unless the batch takes messages.

        Args:
            discarding: Whether a discard is due.
            interrupted: Whether an interrupt has ended a call before it had added all of its
                message.
        """
        reason = _CLOSED.get(self.phase, _DISCARDED)
        if self.phase is BatchPhase.OPEN:
            if not discarding and not interrupted:
                return
            if interrupted:
                reason = _INTERRUPTED
        raise errors.BatchClosedError(reason=self._reason or reason)

    def begin_commit(self) -> None:
        """Begin to send the commit, because all messages are in the batch."""
        self.phase = BatchPhase.COMMITTING

    def begin_resend(self, batch_id: str, *, safe: bool) -> None:
        """
        Begin to send the batch again, with another id.

        Args:
            batch_id: The id.
            safe: Whether each message has an id, so that the stream cannot store it twice.

        Raises:
            ConflictingUseError: No commit has failed, or the server stored the messages one by one.
            InvalidArgumentError: The outcome is unknown and a message has no id.
        """
        if self.phase is not BatchPhase.FAILED:
            raise errors.ConflictingUseError(_NO_RESEND.get(self.phase, _NO_FAILED_COMMIT))
        if not self._complete or self.ending not in {Ending.NOT_STORED, Ending.UNKNOWN}:
            raise errors.ConflictingUseError(_NO_FAILED_COMMIT)
        if self.is_unknown and not safe:
            raise errors.InvalidArgumentError(
                "the outcome is unknown, so every message needs a msg_id to be sent again"
            )
        self.phase, self._reason = BatchPhase.COMMITTING, None
        self.repeat(batch_id)

    def repeat(self, batch_id: str) -> None:
        """Let the next attempt have another id. Its failure does not decide this one."""
        self.earlier = self.is_unknown
        self.batch_id = batch_id

    def lost(self, error: BaseException) -> None:
        """Close the batch after *error*: adding a message failed, or the client closes."""
        if self.phase is BatchPhase.OPEN:
            self.phase = BatchPhase.BROKEN
        self._reason = _text(error)

    def commit_failed(self, error: BaseException) -> None:
        """End a call that commits with *error*. A plugin may have raised it after the commit."""
        self._reason = _text(error)
        if self.phase is BatchPhase.COMMITTED:
            return
        self.phase = BatchPhase.FAILED
        if not isinstance(error, errors.JetSyncError):
            outcome = _UNKNOWN_OUTCOME if self.is_unknown else "and nothing is stored"
            self._reason = f"{type(error).__name__} interrupted the commit, {outcome}"

    def discarded(self) -> None:
        """Close the batch, unless a call has begun to commit it."""
        if self.phase in {BatchPhase.OPEN, BatchPhase.BROKEN}:
            self.phase = BatchPhase.DISCARDED

    # Events of an attempt.

    def check_room(self, count: int = 1) -> None:
        """
        Raise unless the batch takes *count* more messages.

        Raises:
            BatchClosedError: It has ended.
            BatchTooLargeError: It would have more messages than the server accepts.
        """
        if self.ending is not None or self._complete:
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
        self.last += 1
        return Part(self.last, [item], asks=self._next_ask(self.last) == self.last)

    def keep(self, block: bytes, parts: Iterable[Part[Item]]) -> None:
        """Keep messages, which are going to be written: a block of staged frames, then *parts*."""
        if block:
            self.kept.append(block)
        for part in parts:
            self.kept += part.items
        self.sent = self.last

    def _parts(self, items: Sequence[Item], number: int) -> list[Part[Item]]:
        """Return the parts of messages from *number* on, each up to the next one that asks."""
        parts, start = [], 0
        while start < len(items):
            asking = self._next_ask(number + start) - number
            rest = list(items[start : asking + 1])
            parts.append(Part(number + start, rest, asks=start + len(rest) > asking))
            start += len(rest)
        return parts

    def commit(self, *items: Item) -> list[Part[Item]]:
        """
        Add the last messages, and return what to keep and to write to commit the batch.

        Raises:
            BatchClosedError, BatchTooLargeError: As for :meth:`check_room`. The batch is unchanged.
        """
        self.check_room(len(items))
        if not items and not self.size:
            raise errors.BatchClosedError(reason="it has no messages")
        self._complete = True
        items = (*self._held, *items)
        self._held.clear()
        if not items:
            return [Part(self.last + 1, [], asks=True, commit=END_OF_BATCH)]
        parts = self._parts(items, self.last + 1)
        self.last += len(items)
        parts[-1].asks, parts[-1].commit = True, STORED
        return parts

    def commit_all(self, items: list[Item], limit: int | None) -> list[Part[Item]]:
        """
        Start an attempt with all messages, and return what to write to commit them.

        An interrupt at any step leaves the messages of the attempt before.

        Raises:
            BatchTooLargeError: They are more than *limit*, which the server accepts.
        """
        if limit is not None and len(items) > limit:
            raise _too_large(len(items), limit)
        self.start(limit=limit)
        self.kept = list(items)
        self.last = self.sent = len(items)
        self._complete, self.phase = True, BatchPhase.COMMITTING
        self._may_commit = False
        self.ending = None
        parts = self._parts(items, 1)
        parts[-1].asks, parts[-1].commit = True, STORED
        return parts

    def _next_ask(self, number: int) -> int:
        """Return the first message that asks for an answer, from *number* on."""
        if self._ack_first and number == 1:
            return 1
        every = self._ack_every
        ask = number + -number % every if every else UNLIMITED
        if self._limit is None and number <= USUAL_LIMIT + 1:
            # The server may refuse this one and all that follow.
            ask = min(ask, USUAL_LIMIT + 1)
        return ask

    def asked(self, part: Part[Item]) -> None:
        """Note that the last message of *part* is going to be written."""
        self._may_commit = bool(part.commit)

    def failed(self, cause: Cause, *, sent: bool) -> OutcomeRule:
        """
        End the attempt, without an answer that ends it, and return the rule for its outcome.

        Args:
            cause: Why it ends.
            sent: Whether the server may have its last message.
        """
        # Without the commit, the server stores nothing.
        rule = outcome_of(cause, sent=sent and self._may_commit)
        self.ending = rule.ending
        return rule

    def found_stored(self, ack: BatchAck) -> None:
        """Record that the stream has the messages, from this attempt or an earlier one."""
        self.ending, self.ack, self.phase = Ending.STORED, ack, BatchPhase.COMMITTED

    def found_part(self) -> None:
        """Record that the stream has a part of the batch, although the server refused it."""
        self.ending = Ending.SPLIT

    def in_doubt(self) -> None:
        """Record that the attempt failed, but an earlier one may be stored."""
        self.ending = Ending.UNKNOWN

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
            self.ending = Ending.NOT_STORED
            if isinstance(ack, errors.BatchTooLargeError) and ack.limit is not None:
                raise _too_large(self.size, ack.limit, ack.stream)
            raise ack
        stored = self.last
        if not part.commit or ack.batch_id != self.batch_id or ack.batch_size != stored:
            # A server without support for batches, or for this kind of commit.
            self.ending = Ending.SPLIT
            raise errors.AtomicityError(self.batch_id, stream=ack.stream, sequence=ack.sequence)
        first = ack.sequence - stored + 1
        self.found_stored(BatchAck(ack.stream, ack.sequence, self.batch_id, stored, first))


def _text(error: BaseException) -> str:
    return str(error) or type(error).__name__


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
