"""
Fast ingest (ADR-50): the books of one publisher's batches.

What lives here: the numbers of messages, how many may be in flight, the reading of what the server
says, what is lost, when the server has to be asked, and how it ends. What may not: encoding, the
socket, the clock, waiting.

Who counts the messages is the :class:`~jetsync._proto.fastledger.Ledger`. A publisher has one batch
after the other on the server: a second one begins only where gaps are allowed and the server has
forgotten the first.

What servers say (2.14.6, 2.15.1)
- An ack covers all up to its sequence and gives the flow: how many messages lie between acks.
- A gap names the first sequence that is missing and the one that came in its place. A ping that is
  ahead of what arrived gets the same, with the sequence behind its own.
- A refused message is counted as if it were stored, and no ack comes for it alone: what is known to
  be lost or refused is therefore not in flight.
- A sequence that goes backwards ends the batch. Hence none is ever given twice, but the commit's,
  after it is certain that the server does not have it.
- The batch is forgotten after 10 s of silence. Everything for one that it does not know it answers
  with error 10208, except a ping with sequence 1, which begins a batch and reports a gap from 1 on.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any, Final

from jetsync._base.integers import read_count, read_digits
from jetsync._proto.fastledger import Ledger
from jetsync._proto.puback import is_no_responders
from jetsync.errors import (
    BatchClosedError,
    BatchGapError,
    FastBatchIdInvalidError,
    FastBatchUnknownError,
    FastPatternInvalidError,
    FastPublishDisabledError,
    NoStreamResponseError,
    NotSupportedError,
    ProtocolError,
    PublishOutcomeUnknownError,
    from_api_error,
)
from jetsync.values.server_info import decode_json

if TYPE_CHECKING:
    from collections.abc import Iterable

    from jetsync.values.frame import Frame

START: Final = 0
APPEND: Final = 1
COMMIT: Final = 2
END: Final = 3
PING: Final = 4
"""What a message does; the last but one token of its reply subject. END commits and stores none."""

SUFFIX: Final = {op: b".%d.$FI" % op for op in (START, APPEND, COMMIT, END, PING)}
"""What stands behind the sequence in a reply subject."""

LATE: Final = 1.0
"""Seconds without an answer that is waited for after which the server is asked."""

FIRST_PATIENCE: Final = 0.1
"""Seconds before a server without a leader is asked again; doubled each time."""

PATIENCE: Final = 1.0
"""Seconds between two such questions at most."""

HIGHEST_FLOW: Final = 65_535
"""Servers count in 16 bits; they give 500 at most."""

_BATCH_IS_OVER: Final = (
    FastBatchUnknownError,
    FastPublishDisabledError,
    FastPatternInvalidError,
    FastBatchIdInvalidError,
)
"""Refusals that concern the batch and not one message."""

_API_LEVEL: Final = 412


class Phase(enum.Enum):
    """
    Where a publisher is.
    """

    NEW = "new"
    """No batch is open: the next message begins one."""
    STARTING = "starting"
    """The first message was sent, and nothing else may be until it is answered."""
    OPEN = "open"
    COMMITTING = "committing"
    DONE = "done"
    """Committed."""
    FAILED = "failed"


class FastIngest:
    """
    Keep the books of one publisher.

    Args:
        inbox: The subject that replies come below.
        flow: How many messages may lie between two acks at most.
        max_outstanding_acks: How many acks may be missing.
        gap_ok: Whether the batch goes on when messages are lost.
    """

    def __init__(self, inbox: bytes, *, flow: int, max_outstanding_acks: int, gap_ok: bool) -> None:
        self._inbox = inbox
        self._asked_flow = flow
        self._outstanding = max_outstanding_acks
        self._gap_ok = gap_ok
        self.phase = Phase.NEW
        self.ledger = Ledger()
        self.batches = 0
        """How many the server has begun, as its answers say."""

        self.prefix = b""
        """The reply subject up to the sequence."""

        self.flow = 1
        """Messages between two acks now."""

        self.subject = ""
        """Where the last message went, for questions and errors; its owner sets it."""

        self.pings = 0
        self.stream = ""
        self.sequence = 0
        """Where the last message is stored, as the commit's ack says."""

        self.duplicate = False
        self.failure: Exception | None = None
        """Why it failed; :attr:`phase` is FAILED."""

        self.refusal: Exception | None = None
        """Why no batch began; :attr:`phase` is NEW again."""

        self.awaits_end = False
        """Whether the server, too, ends the batch that failed, and has not said so yet."""

        self.recovering = False
        """Whether the server has to answer before more is sent."""

        self._committed = 0
        """The sequence of the commit."""

        self._commit_due: float | None = None
        """When the commit has to be sent again."""

        self._commits_out = 0
        """How often the commit was sent without its being certain that nobody took it."""

        self._quiet_since = 0.0
        self._patience = FIRST_PATIENCE
        self._ask_at = 0.0

    def __repr__(self) -> str:
        return (
            f"<FastIngest {self.phase.value} batch={self.batches} flying={self.ledger.flying} "
            f"acknowledged={self.ledger.acknowledged} lost={self.ledger.lost}>"
        )

    @property
    def room(self) -> int:
        """How many more messages may be sent now."""
        if self.phase is not Phase.OPEN or self.recovering:
            return 0
        return self.flow * self._outstanding - self.ledger.flying

    @property
    def window(self) -> int:
        """How many messages may be in flight now."""
        return self.flow * self._outstanding

    def worth(self, wanted: int) -> int:
        """
        Return how many messages to send now, 0 to wait for an ack first.

        A handful of free places is not worth a write: half a window is, if so many messages are
        *wanted*. But only a whole flow brings an ack, so none is waited for with less in flight.
        """
        room = self.room
        if room >= min(wanted, max(self.window // 2, 1)) or self.ledger.flying < self.flow:
            return max(min(room, wanted), 0)
        return 0

    @property
    def quiet_since(self) -> float:
        """When something was sent or came last."""
        return self._quiet_since

    # What the owner does.

    def open(self, batch_id: str) -> None:
        """Begin a batch: what is encoded from now on belongs to it."""
        self.ledger.batch_id = batch_id
        gap = b"ok" if self._gap_ok else b"fail"
        self.prefix = b"%b.%b.%d.%b." % (self._inbox, batch_id.encode(), self._asked_flow, gap)
        self.flow = 1
        self.refusal = None
        self.recovering = False
        self._patience = FIRST_PATIENCE

    def start(self, now: float) -> None:
        """Note that the first message, which does not commit, goes out."""
        self.phase = Phase.STARTING
        self.claim(1, now)

    def claim(self, count: int, now: float) -> None:
        """Note that so many messages go out; before they do, so that none is ever sent twice."""
        self.ledger.sent += count
        self._quiet_since = now

    def unclaim(self, count: int) -> None:
        """Take a claim back, as it is certain that nothing went out."""
        self.ledger.sent -= count
        if self.phase is Phase.STARTING:
            self.phase = Phase.NEW

    def give_up_start(self) -> None:
        """Forget a batch whose first message was not answered; that message is not counted."""
        self.phase = Phase.NEW
        self.ledger.sent = 0

    def take_refusal(self) -> Exception | None:
        """Return why no batch began, and forget it: once raised, it holds all that raised it."""
        refusal, self.refusal = self.refusal, None
        return refusal

    def commit(self, now: float, *, store: bool) -> int:
        """Note that the commit goes out, with a last message or without; return its sequence."""
        # Wherever Ctrl-C comes, it finds a commit that may have gone out.
        self.phase = Phase.COMMITTING
        self._committed = self.ledger.sent + 1
        if store:
            self.ledger.sent += 1
        self._commit_due = None
        self._commits_out = 1
        self._quiet_since = now
        return self._committed

    def uncommit(self) -> None:
        """Take a commit back, as it is certain that nothing went out."""
        self.ledger.sent = self._committed - 1
        self.phase = Phase.OPEN if self.ledger.sent else Phase.NEW

    def take_commit(self, now: float) -> int | None:
        """Return the sequence of a commit that has to be sent again now, None if none has."""
        if self.phase is not Phase.COMMITTING or self._commit_due is None or now < self._commit_due:
            return None
        self._commit_due = None
        self._commits_out += 1
        self._quiet_since = now
        return self._committed

    @property
    def commit_refused(self) -> bool:
        """Whether it is certain that the server does not have the commit."""
        return not self._commits_out

    def take_ping(self, now: float) -> int | None:
        """
        Return the sequence with which the server has to be asked now, None if it has not.

        To be called while something is waited for.
        """
        due = self._ping_due()
        if due is None or now < due:
            return None
        self._quiet_since = now
        if self.recovering:
            self._put_off(now)
        return self._ping(now)

    def keep_alive(self, now: float) -> int | None:
        """Return the sequence of a ping for a batch that is quiet; None where none is open."""
        return self._ping(now) if self.phase is Phase.OPEN else None

    def _ping(self, now: float) -> int:
        self.pings += 1
        self._quiet_since = now
        return self._reached

    @property
    def _reached(self) -> int:
        """The sequence that the server must have seen; never the commit's, which may go again."""
        return self._committed - 1 if self.phase is Phase.COMMITTING else self.ledger.sent

    def due(self) -> float | None:
        """Return when somebody who waits has something to do even if nothing comes."""
        if self._commit_due is not None:
            return self._commit_due
        return self._ping_due()

    def _ping_due(self) -> float | None:
        if self.phase not in {Phase.OPEN, Phase.COMMITTING} or not self._reached:
            return None
        return self._ask_at if self.recovering else self._quiet_since + LATE

    def give_up_commit(self, error: Exception) -> None:
        """End without an answer to the commit."""
        self._fail(error)

    def settle(self, stream: str) -> None:
        """
        End without a commit, where the server has ended the batch already.

        What became of each message is known as well as it ever will be: it was confirmed, or
        reported lost when the server had forgotten the batch.
        """
        self.stream = stream
        self.phase = Phase.DONE

    # What comes.

    def lost_connection(self, now: float) -> None:
        """Learn that the connection is gone that everything so far was sent on."""
        if self.phase is Phase.STARTING:
            self.give_up_start()
            self.refusal = self._unknown("the connection was lost")
        elif self.phase is Phase.OPEN and not self._gap_ok:
            self._fail(self._unknown("the connection was lost"))
        elif self.phase is Phase.COMMITTING and not self._reached:
            self._fail(self._unknown("the connection was lost before the commit was answered"))
        elif self.phase in {Phase.OPEN, Phase.COMMITTING}:
            self._recover(now, now)

    def denied(self, error: Exception) -> None:
        """Learn that the server refuses a subject, so that what was sent to it went nowhere."""
        if self.phase is Phase.STARTING:
            self.give_up_start()
            self.refusal = error
        elif self.phase in {Phase.OPEN, Phase.COMMITTING}:
            self._fail(error)

    def closed(self, error: Exception) -> None:
        """Learn that nothing will ever come any more: the client was closed, or may not listen."""
        unknown = self._unknown(str(error))
        unknown.__cause__ = error
        if self.phase is Phase.STARTING:
            self.give_up_start()
            self.refusal = unknown
        elif self.phase in {Phase.OPEN, Phase.COMMITTING}:
            self._fail(unknown)

    def receive(self, frames: Iterable[Frame], now: float) -> None:
        """Take what came below the inbox; an answer that means nothing ends the batch."""
        try:
            self._receive(frames, now)
        except ProtocolError as error:
            self.closed(error)

    def _receive(self, frames: Iterable[Frame], now: float) -> None:
        for frame in frames:
            prefix = self.prefix
            if self.phase in {Phase.NEW, Phase.DONE} or not frame[0].startswith(prefix):
                # An echo of a batch that is over.
                continue
            place = frame[0][len(prefix) :].split(b".", 2)
            if len(place) != 3 or not (place[0].isdigit() and place[1].isdigit()):
                continue
            seq, op = read_digits(place[0]), read_digits(place[1])
            if is_no_responders(frame):
                self._on_no_leader(seq, op, now)
                continue
            answer = decode_json(frame[3])
            kind = answer.get("type")
            if kind is not None and self.phase is Phase.STARTING:
                self.phase = Phase.OPEN
                self.batches += 1
            if kind == "ack":
                self._on_ack(_number(answer, "seq"), _number(answer, "msgs"), op, now)
            elif kind == "gap":
                self._on_gap(_number(answer, "last_seq"), _number(answer, "seq"), op)
            elif answer.get("error") is not None:
                stream = answer.get("stream")
                error = from_api_error(
                    answer["error"], stream=stream if isinstance(stream, str) else None
                )
                if kind == "err":
                    self._on_error(_number(answer, "seq"), error)
                else:
                    self._on_refusal(seq, op, error, now)
            elif isinstance(answer.get("stream"), str):
                self._on_end(answer)

    def _on_ack(self, seq: int, flow: int, op: int, now: float) -> None:
        if self.phase is Phase.FAILED:
            self.ledger.cover(min(seq, self.ledger.sent))
            return
        if op == PING:
            self.recovering = False
            self._patience = FIRST_PATIENCE
            if self.phase is Phase.COMMITTING and self._commit_due is None:
                # Still open: the commit did not arrive, or is about to be answered, and then
                # another one changes nothing.
                self._commit_due = now
        if seq < self.ledger.covered:
            return
        self._quiet_since = now
        self.flow = max(1, min(flow, HIGHEST_FLOW))
        self.ledger.cover(min(seq, self.ledger.sent))

    def _on_gap(self, first: int, seq: int, op: int) -> None:
        last = min(seq - 1, self.ledger.sent)
        if not 0 < first <= last or self.phase is Phase.FAILED:
            return
        if op == PING and first == 1:
            # The first message has been answered, so the server knew this batch once.
            self._forgotten(FastBatchUnknownError(stream=self.stream or None))
        elif self._gap_ok:
            self.ledger.lose(first, last, None)
        else:
            gap = BatchGapError(
                self.ledger.base + first, self.ledger.base + last + 1, batch_id=self.ledger.batch_id
            )
            self._fail(gap, awaits_end=True)

    def _on_error(self, seq: int, error: Exception) -> None:
        if self._gap_ok:
            self.ledger.lose(seq, seq, error)
        elif self.phase is not Phase.FAILED:
            self._fail(error, awaits_end=True)

    def _on_refusal(self, seq: int, op: int, error: Exception, now: float) -> None:
        """Take an error that stands in the place of an ack."""
        over = isinstance(error, _BATCH_IS_OVER) or getattr(error, "code", 0) == _API_LEVEL
        if self.phase is Phase.FAILED:
            self.awaits_end = self.awaits_end and not over
        elif self.phase is Phase.STARTING:
            self.give_up_start()
            self.refusal = error
        elif isinstance(error, FastBatchUnknownError):
            self._forgotten(error)
        elif not self._gap_ok or (self.phase is Phase.COMMITTING and op in {COMMIT, END}):
            # The server ends it with the next message that it gets, and says what it has.
            self._fail(error, awaits_end=not self._gap_ok and not over)
        elif over:
            self._forgotten(error)
        elif op == PING:
            self._recover(now, now + self._patience)
        else:
            self.ledger.lose(seq, seq, error)

    def _on_no_leader(self, seq: int, op: int, now: float) -> None:
        """Take it that a message is certainly not stored, as nobody was there to take it."""
        if self.phase is Phase.STARTING:
            self.give_up_start()
            self.refusal = NoStreamResponseError(self.subject)
        elif self.phase is Phase.COMMITTING and op in {COMMIT, END} and seq == self._committed:
            self._commits_out = max(self._commits_out - 1, 0)
            self._commit_due = now + self._patience
            self._patience = min(self._patience * 2.0, PATIENCE)
        elif self.phase in {Phase.OPEN, Phase.COMMITTING} and not self.recovering:
            # The messages are not given up yet: the server tells which are missing.
            self._recover(now, now + self._patience)

    def _on_end(self, answer: dict[str, Any]) -> None:
        """Take the ack that ends a batch, whether it was asked for or not."""
        if "batch" not in answer:
            if self.phase is Phase.STARTING:
                self.give_up_start()
            self._stored_singly(answer)
            return
        count = min(_number(answer, "count"), self.ledger.sent)
        if self.phase is Phase.FAILED:
            self.ledger.cover(count)
            self.awaits_end = False
            return
        self.stream = answer["stream"]
        if self.phase is Phase.COMMITTING:
            self.sequence = _number(answer, "seq")
            self.duplicate = bool(answer.get("duplicate", False))
            self._finish(count)
            return
        # A message came late, over another way, and servers take that for the end.
        self.ledger.cover(count)
        if self._gap_ok:
            self._restart(None)
        else:
            self._fail(BatchClosedError(reason="the server ended the batch"))

    def _finish(self, count: int) -> None:
        """Take the ack of the commit."""
        if self._committed == 1:
            # Nothing was answered before: this batch began and ended with one message.
            self.batches += 1
        missing = self.ledger.sent - count
        self.ledger.cover(count)
        if missing and not self._gap_ok:
            first, behind = self.ledger.base + count + 1, self.ledger.base + self.ledger.sent + 1
            self._fail(BatchGapError(first, behind, batch_id=self.ledger.batch_id))
            return
        self.ledger.lose(count + 1, self.ledger.sent, None)
        self.ledger.cover(self.ledger.sent)
        self.phase = Phase.DONE

    def _stored_singly(self, answer: dict[str, Any]) -> None:
        """End it: a server that does not know fast ingest has stored a message as any other."""
        error = NotSupportedError(
            "fast ingest",
            needs="server 2.14 or later; a message was stored as an ordinary one, at sequence "
            f"{_number(answer, 'seq')} of stream {answer['stream']!r}",
        )
        if self.phase is Phase.NEW:
            self.refusal = error
        else:
            self._fail(error)

    # Steps.

    def _recover(self, now: float, ask_at: float) -> None:
        """Send nothing more until the server has said where it is."""
        self.recovering = True
        self._ask_at = ask_at
        self._quiet_since = now

    def _put_off(self, now: float) -> None:
        """Ask again later, each time later, if no answer comes."""
        self._ask_at = now + self._patience
        self._patience = min(self._patience * 2.0, PATIENCE)

    def _forgotten(self, error: Exception) -> None:
        """End the batch, of which the server knows nothing any more."""
        if self.phase is Phase.COMMITTING:
            self._fail(self._unknown("the batch ended before the commit was answered"), error)
        elif self._gap_ok:
            self._restart(error)
        else:
            self._fail(self._unknown("the server has no such batch any more"), error)

    def _restart(self, error: Exception | None) -> None:
        """Close the books of a batch that is over; the next message begins another one."""
        self.ledger.close_batch(error)
        self.recovering = False
        self.phase = Phase.NEW

    def _fail(
        self, error: Exception, cause: Exception | None = None, *, awaits_end: bool = False
    ) -> None:
        if cause is not None:
            error.__cause__ = cause
        self.failure = error
        self.phase = Phase.FAILED
        self.recovering = False
        self.awaits_end = awaits_end
        self._commit_due = None

    def _unknown(self, reason: str) -> PublishOutcomeUnknownError:
        reason = (
            f"{reason}; {self.ledger.acknowledged} of {self.ledger.added} messages are acknowledged"
        )
        return PublishOutcomeUnknownError(self.subject, reason=reason)


def _number(answer: dict[str, Any], key: str) -> int:
    return read_count(answer.get(key, 0), f"the {key} of a batch's answer")
