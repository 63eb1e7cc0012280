"""
The protocol engine of fast ingest (ADR-50): one publisher and its batch.

It numbers messages, decides how many may be in flight, reads the server's answers, notices losses,
decides when to ask the server, and ends the batch. It does not encode, write, wait or read the
clock. The :class:`Ledger` counts the messages by their sequences in the batch, from 1 on.

A publisher has one batch. If that does not start, the next message tries again, with another id.
The batch belongs to one connection: if that is lost, the batch has failed.

Behaviour of servers 2.14.6 and 2.15.1:

- An ack covers everything up to its sequence and sets the flow, the number of messages per ack.
- A gap names the first missing sequence and the one that arrived instead. A ping that is ahead of
  the messages gets the same answer, with the sequence that follows its own.
- A refused message counts as stored, and no ack comes for it alone. Messages that are known to be
  lost or refused are therefore not in flight.
- A sequence that goes backwards ends the batch. So jetsync never reuses a sequence, except for a
  commit that the server certainly does not have.
- The server forgets a batch after 10 s of silence. It answers each message of an unknown batch with
  error 10208. The exception is a ping with sequence 1, which starts a batch and reports a gap from
  1 on.
"""

from __future__ import annotations

import enum
import sys
from collections import deque
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

import attrs

from jetsync import errors
from jetsync._base.integers import read_count, read_digits
from jetsync._proto.outcome import Cause, Ending, outcome_of
from jetsync._proto.puback import is_no_responders
from jetsync.errors.answers import from_api_error
from jetsync.events import BatchGapEvent
from jetsync.values.pub_acks import BatchAck
from jetsync.values.server_info import decode_json

if TYPE_CHECKING:
    from jetsync.values.frame import Frame

# The operation of a message: the last but one token of its reply subject. END commits the batch
# without storing its own message.
OP_START: Final = 0
OP_APPEND: Final = 1
OP_COMMIT: Final = 2
OP_END: Final = 3
OP_PING: Final = 4

# The end of a reply subject, which follows the sequence.
SUFFIX: Final = {op: b".%d.$FI" % op for op in (OP_START, OP_APPEND, OP_COMMIT, OP_END, OP_PING)}
_OPS: Final = {b"%d" % op: op for op in SUFFIX}

# The server is asked if an expected answer is late by this many seconds.
ACK_TIMEOUT: Final = 1.0

# Seconds before a server without a leader is asked again, doubled each time up to the limit.
FIRST_ASK_WAIT: Final = 0.1
ASK_WAIT_LIMIT: Final = 1.0

# Servers count in 16 bits, and set a flow of 500 or less.
HIGHEST_FLOW: Final = 65_535

# Errors about the batch and not about one message.
_BATCH_IS_OVER: Final = (
    errors.FastBatchUnknownError,
    errors.FastPublishDisabledError,
    errors.FastPatternInvalidError,
    errors.FastBatchIdInvalidError,
)
_API_LEVEL: Final = 412

_NUMBER: Final = "a number in a batch's answer"

# Why a batch failed whose call was interrupted.
INTERRUPTED: Final = "a call was interrupted while it changed the batch, so begin another batch"

# How far behind the last ack a message can still be reported lost. Acks may overtake such reports
# while the leader changes.
LOSS_HORIZON: Final = 4096


class Phase(enum.Enum):
    """The state of a publisher."""

    # The batch has not started: the next message starts it.
    NEW = "new"
    # The first message was sent, and nothing else may be sent until it is answered.
    STARTING = "starting"
    OPEN = "open"
    # The stream has no leader, and nothing may be sent until a ping is answered.
    PAUSED = "paused"
    COMMITTING = "committing"
    DONE = "done"
    # It has failed, and the server still has to report the end of the batch.
    ENDING = "ending"
    # It has failed, and no call has raised the failure.
    FAILED = "failed"
    # A call has raised the failure, or the owner gave up a batch that had not failed.
    CLOSED = "closed"


class Event(enum.Enum):
    """What changes the phase of a publisher."""

    START = "the first message is about to be sent"
    REFUSED = "the first message started no batch"
    STARTED = "the server has the first message"
    NO_LEADER = "the stream has no leader"
    PING_ANSWERED = "a ping was answered"
    COMMIT = "the commit is about to be sent"
    COMMIT_UNSENT = "the commit was certainly not sent"
    NOTHING_SENT = "no message of the batch was sent"
    COMMITTED = "the batch was committed"
    BROKEN = "the batch has failed, and the server ends it at the next message"
    FAILED = "the batch has failed"
    INTERRUPTED = "a call was interrupted"
    ENDED = "the server has no such batch any more"
    ABANDONED = "the owner has given up the batch"
    RAISED = "a call raises the failure"
    NOT_RAISED = "the failure did not reach the application"


# The phase after each event. An event changes nothing in the other phases.
PHASES: Final[dict[Event, dict[Phase, Phase]]] = {
    Event.START: {Phase.NEW: Phase.STARTING},
    Event.REFUSED: {Phase.STARTING: Phase.NEW},
    Event.STARTED: {Phase.STARTING: Phase.OPEN},
    Event.NO_LEADER: {Phase.OPEN: Phase.PAUSED},
    Event.PING_ANSWERED: {Phase.PAUSED: Phase.OPEN},
    Event.COMMIT: {Phase.NEW: Phase.COMMITTING, Phase.OPEN: Phase.COMMITTING},
    Event.COMMIT_UNSENT: {Phase.COMMITTING: Phase.OPEN},
    Event.NOTHING_SENT: {Phase.STARTING: Phase.NEW, Phase.COMMITTING: Phase.NEW},
    Event.COMMITTED: {Phase.COMMITTING: Phase.DONE},
    Event.BROKEN: dict.fromkeys((Phase.OPEN, Phase.PAUSED, Phase.COMMITTING), Phase.ENDING),
    Event.FAILED: dict.fromkeys(
        (Phase.STARTING, Phase.OPEN, Phase.PAUSED, Phase.COMMITTING), Phase.FAILED
    ),
    Event.INTERRUPTED: dict.fromkeys(
        (Phase.NEW, Phase.STARTING, Phase.OPEN, Phase.PAUSED, Phase.COMMITTING), Phase.FAILED
    ),
    Event.ENDED: {Phase.ENDING: Phase.FAILED},
    Event.ABANDONED: {
        **dict.fromkeys(
            (Phase.NEW, Phase.STARTING, Phase.OPEN, Phase.PAUSED, Phase.COMMITTING), Phase.CLOSED
        ),
        Phase.ENDING: Phase.FAILED,
    },
    Event.RAISED: {Phase.ENDING: Phase.CLOSED, Phase.FAILED: Phase.CLOSED},
    Event.NOT_RAISED: {Phase.CLOSED: Phase.FAILED},
}

# The batch was committed, has failed, or was given up.
_OVER: Final = frozenset({Phase.DONE, Phase.ENDING, Phase.FAILED, Phase.CLOSED})


@attrs.define(eq=False)
class Ledger:
    """
    Counts the messages of one publisher: confirmed, lost or in flight, and each lost only once.
    """

    stream: str = ""
    batch_id: str = ""
    # The sequence of the last message sent, and the one up to which the server has confirmed.
    sent: int = 0
    covered: int = 0
    # Messages that are not stored, or not known to be stored.
    lost: int = 0
    # Losses that the owner has not reported yet.
    gaps: deque[BatchGapEvent] = attrs.field(factory=deque)
    # Lost and refused sequences that the server may report again, and the number of those above
    # the sequence that it has confirmed.
    _lost_seqs: set[int] = attrs.field(factory=set, init=False, repr=False)
    _lost_ahead: int = attrs.field(default=0, init=False, repr=False)
    # The last sequence that may be confirmed.
    _end: int = attrs.field(default=sys.maxsize, init=False, repr=False)

    @property
    def acknowledged(self) -> int:
        """The number of messages that the server has confirmed."""
        return self.covered - self.lost + self._lost_ahead

    @property
    def in_flight(self) -> int:
        """The number of messages that are neither confirmed nor lost."""
        return self.sent - self.covered - self._lost_ahead

    def staged(self, last: int) -> None:
        """Count the messages up to the sequence *last*, which were staged; repeating it is safe."""
        self.sent = max(self.sent, last)

    def take_gap(self) -> BatchGapEvent | None:
        """Return the oldest loss that was not reported; None if all were. Any thread."""
        try:
            return self.gaps.popleft()
        except IndexError:
            return None

    def cover(self, seq: int) -> None:
        """Confirm everything up to *seq* except what is known to be lost."""
        covered, lost = self.covered, self._lost_seqs
        seq = min(seq, self._end)
        if seq <= covered:
            return
        if lost:
            self._lost_ahead = sum(each > seq for each in lost)
            if len(lost) > LOSS_HORIZON and min(lost) <= seq - LOSS_HORIZON:
                self._lost_seqs = {each for each in lost if each > seq - LOSS_HORIZON}
        self.covered = seq

    def lose(self, first: int, last: int, error: Exception | None) -> None:
        """Record lost messages, and report those that were not known to be lost."""
        first = max(first, self.covered - LOSS_HORIZON + 1, 1)
        known = self._lost_seqs
        new = [seq for seq in range(first, min(last, self.sent) + 1) if seq not in known]
        ahead = sum(seq > self.covered for seq in new)
        # Sequences in a row differ from their places in the list by the same number.
        for _, group in groupby(enumerate(new), lambda pair: pair[1] - pair[0]):
            row = [seq for _, seq in group]
            gap = BatchGapEvent(
                stream=self.stream, batch_id=self.batch_id, first=row[0], last=row[-1], error=error
            )
            self.gaps.append(gap)
        self.lost += len(new)
        self._lost_ahead += ahead
        known.update(new)

    def refused(self, seq: int) -> None:
        """Confirm nothing from *seq* on: the refusal of this message has ended the publisher."""
        self._end = min(self._end, max(seq - 1, 0))
        self.covered = min(self.covered, self._end)


class FastIngest:
    """
    The batch of one publisher.

    Args:
        inbox: The prefix of all reply subjects.
        token: The beginning of the id of the batch. A number follows, one for each start.
        flow: The number of messages between two acks that jetsync asks for.
        max_outstanding_acks: How many acks may be missing.
        gap_ok: Whether the batch continues when messages are lost.
    """

    def __init__(
        self, inbox: bytes, token: str, *, flow: int, max_outstanding_acks: int, gap_ok: bool
    ) -> None:
        # The reply subject around the id of the batch, up to the sequence.
        self._around_id = inbox + b".", b".%d.%b." % (flow, b"ok" if gap_ok else b"fail")
        self._token = token
        # How often a batch was prepared.
        self._opened = 0
        self._outstanding = max_outstanding_acks
        self._gap_ok = gap_ok
        self.phase: Phase = Phase.NEW
        self.ledger: Final = Ledger()
        # The reply subject up to the sequence.
        self.prefix: bytes = b""
        # Messages between two acks now.
        self.flow: int = 1
        # Subject of the last message, for pings and errors.
        self.subject: str = ""
        self.pings: int = 0
        # The ack of the commit, if the phase is DONE.
        self.ack: BatchAck | None = None
        # Why the publisher failed, or why no batch started, if the phase is NEW.
        self.failure: Exception | None = None
        # The sequence of the commit, and when it has to be sent again.
        self._committed = 0
        self._commit_due: float | None = None
        # Whether a ping followed the commit. The answer to an earlier one does not say whether the
        # commit has arrived.
        self._commit_pinged = False
        # Copies of the commit that the server may have; 0 if it certainly has none.
        self._commits_out = 0
        # When the server is asked, unless something is sent or received before.
        self._ask_at = 0.0
        self._ask_wait = FIRST_ASK_WAIT

    def __repr__(self) -> str:
        return (
            f"<FastIngest {self.phase.value} in_flight={self.ledger.in_flight} "
            f"acknowledged={self.ledger.acknowledged} lost={self.ledger.lost}>"
        )

    def _happened(self, event: Event) -> None:
        """Set the phase after *event*; no other line sets it."""
        self.phase = PHASES[event].get(self.phase, self.phase)

    @property
    def is_over(self) -> bool:
        """Whether the batch was committed, has failed or was given up."""
        return self.phase in _OVER

    @property
    def room(self) -> int:
        """How many more messages may be sent now."""
        if self.phase is not Phase.OPEN:
            return 0
        return self.flow * self._outstanding - self.ledger.in_flight

    # Calls of the owner.

    @property
    def batch_id(self) -> str:
        """The id of the batch, or of the one that starts next."""
        return f"{self._token}{self._opened + (self.phase is Phase.NEW)}"

    def open(self, stream: str) -> None:
        """Prepare a batch on *stream*. Messages that are encoded after this call belong to it."""
        self.ledger.stream = stream
        self.ledger.batch_id = batch_id = self.batch_id
        self._opened += 1
        self.prefix = batch_id.encode().join(self._around_id)
        self.flow = 1

    def start(self, now: float, subject: str) -> None:
        """Record that the first message is about to be sent."""
        self._happened(Event.START)
        self.claim(now, subject)

    def claim(self, now: float, subject: str) -> None:
        """Assign the next number to a message before it is sent, so that none is used twice."""
        self.subject = subject
        self.ledger.sent += 1
        self._ask_at = now + ACK_TIMEOUT

    def unsent(self) -> None:
        """Take back a start or a commit that was certainly not sent."""
        if self.phase is Phase.STARTING:
            self.ledger.sent = 0
        elif self.phase is Phase.COMMITTING:
            self.ledger.sent = self._committed - 1
        self._happened(Event.COMMIT_UNSENT if self.ledger.sent else Event.NOTHING_SENT)

    def take_refusal(self) -> Exception | None:
        """Return why no batch started, and forget it: its traceback refers to its callers."""
        refusal, self.failure = self.failure, None
        return refusal

    def commit(self, now: float, subject: str | None = None) -> int:
        """
        Record that a commit is about to be sent, and return its sequence.

        It is a message to *subject* or, if that is None, one that is not stored.
        """
        self._happened(Event.COMMIT)
        self._committed = self.ledger.sent + 1
        if subject is not None:
            self.subject = subject
            self.ledger.sent += 1
        self._commit_due = None
        self._commit_pinged = False
        self._commits_out = 1
        self._ask_at = now + ACK_TIMEOUT
        return self._committed

    def next_timeout(self) -> float | None:
        """Return when :meth:`poll` is due even if no answer comes, or None."""
        if self.phase is Phase.COMMITTING:
            # Before the first message arrives, there is nothing to ask about.
            asks_at = self._ask_at if self._committed > 1 else None
            return asks_at if self._commit_due is None else self._commit_due
        return self._ask_at if self.phase in {Phase.OPEN, Phase.PAUSED} else None

    def poll(self, now: float) -> tuple[int, int] | None:
        """
        Return the operation and the sequence of what a waiting call has to send now, or None.

        The operation is ``OP_COMMIT`` to repeat the commit, or ``OP_PING`` to ask the server.
        """
        due = self.next_timeout()
        if due is None or now < due:
            return None
        self._ask_at = self._next_ask(now) if self.phase is Phase.PAUSED else now + ACK_TIMEOUT
        if self._commit_due is not None:
            self._commit_due = None
            self._commits_out += 1
            return OP_COMMIT, self._committed
        return OP_PING, self.ping()

    def ping(self) -> int:
        """Count a ping, and return its sequence: the last one that the server must have."""
        self.pings += 1
        # A commit does not count: it may be repeated.
        if self.phase is not Phase.COMMITTING:
            return self.ledger.sent
        self._commit_pinged = True
        return self._committed - 1

    # Answers and failures.

    def lost_connection(self, why: str | None = None) -> None:
        """
        Handle the loss of the connection over which all messages so far were sent.

        It leaves unknown which messages in flight are stored. *why* says why the server ended the
        connection, if that is known.
        """
        lost = "the connection was lost"
        if self.phase is Phase.COMMITTING:
            lost += " before the commit was answered"
        self.stop(_error(Cause.LOST, self._unknown(lost if why is None else f"{lost}: {why}")))

    def interrupted(self) -> None:
        """Fail the batch, because an exception interrupted a call while it changed the batch."""
        closed = errors.BatchClosedError("fast publisher", reason=INTERRUPTED)
        error = _error(
            Cause.INTERRUPTED, self._unknown(INTERRUPTED), closed, sent=self.ledger.sent > 0
        )
        self.fail(error, Event.INTERRUPTED)

    def unanswered(
        self, *, timeout: float | None = None, error: errors.JetSyncError | None = None
    ) -> None:
        """
        Refuse the start or fail the commit, because no call waits for its answer any more.

        The call has waited for *timeout* seconds, or *error* ended its wait. If both are None, the
        publisher was closed.
        """
        if self.phase is Phase.STARTING:
            what, is_sent = "the first message", True
        elif self.phase is Phase.COMMITTING:
            # No stream took the commits that the server has answered.
            what, is_sent = "the commit", self._commits_out > 0
        else:
            return
        reason = f"{what} was not answered"
        if error is not None:
            reason += f", and then: {error}"
        elif timeout is None:
            reason = f"the publisher was closed before {what} was answered"
        unknown = errors.PublishOutcomeUnknownError(self.subject, timeout=timeout, reason=reason)
        failure = _error(
            Cause.SILENT, unknown, errors.NoStreamResponseError(self.subject), sent=is_sent
        )
        failure.__cause__ = error
        self.stop(failure)

    def denied(self, denial: errors.PermissionDeniedError) -> None:
        """Stop because the server has refused a message, or may have refused it."""
        unknown = errors.PublishOutcomeUnknownError(denial.subject, reason=str(denial))
        unknown.__cause__ = denial
        self.stop(_error(Cause.DENIED, unknown, denial, sent=denial.sent))

    def closed(self, error: Exception) -> None:
        """Fail the batch because no more answers can arrive, for example after a close."""
        unknown = self._unknown(str(error))
        unknown.__cause__ = error
        is_unreadable = isinstance(error, errors.ProtocolError)
        self.stop(_error(Cause.UNREADABLE if is_unreadable else Cause.CLOSED, unknown))

    def stop(self, error: Exception) -> None:
        """Refuse the batch that is starting, or fail the one that is open."""
        if self.phase is not Phase.STARTING:
            self.fail(error)
            return
        # The message is not counted.
        self.ledger.sent = 0
        self.failure = error
        self._happened(Event.REFUSED)

    def abandoned(self) -> None:
        """End the publisher, because its owner has given it up. A failure can still be raised."""
        self._happened(Event.ABANDONED)

    def take_failure(self) -> Exception | None:
        """Return the failure if no call has raised it. The caller raises it."""
        failure = self.failure if self.phase in PHASES[Event.RAISED] else None
        self._happened(Event.RAISED)
        return failure

    def not_raised(self) -> None:
        """Let a later call raise the failure again, because no code of the application got it."""
        if self.failure is not None:
            self._happened(Event.NOT_RAISED)

    def receive(self, frame: Frame, now: float) -> None:
        """Read a frame that came below the inbox. An unreadable answer ends the batch."""
        # Otherwise it answers a batch that is over.
        if self.phase not in {Phase.NEW, Phase.DONE} and frame[0].startswith(self.prefix):
            try:
                self._receive(frame, now)
            except errors.ProtocolError as error:
                self.closed(error)

    def _receive(self, frame: Frame, now: float) -> None:
        place = frame[0][len(self.prefix) :].split(b".", 2)
        if len(place) != 3 or not place[0].isdigit() or place[1] not in _OPS:
            return
        op = _OPS[place[1]]
        if frame[2] is not None and is_no_responders(frame):
            self._on_no_leader(read_digits(place[0]), op, now)
            return
        answer = decode_json(frame[3])
        kind, seq = answer.get("type"), read_count(answer.get("seq", 0), _NUMBER)
        if kind is not None:
            self._happened(Event.STARTED)
        if kind == "ack":
            self._on_ack(seq, read_count(answer.get("msgs", 0), _NUMBER), op, now)
        elif kind == "gap":
            self._on_gap(read_count(answer.get("last_seq", 0), _NUMBER), seq, op)
        elif answer.get("error") is not None:
            error = from_api_error(answer["error"], stream=self.ledger.stream)
            if kind != "err":
                self._on_refusal(read_digits(place[0]), op, error, now)
            elif self._gap_ok:
                self.ledger.lose(seq, seq, error)
            else:
                self.ledger.refused(seq)
                self.fail(error, Event.BROKEN)
        elif isinstance(answer.get("stream"), str):
            self._on_end(answer, seq)

    def _on_ack(self, seq: int, flow: int, op: int, now: float) -> None:
        if not self.is_over:
            if op == OP_PING:
                self._happened(Event.PING_ANSWERED)
                self._ask_wait = FIRST_ASK_WAIT
                is_committing = self.phase is Phase.COMMITTING
                if is_committing and self._commit_pinged and self._commit_due is None:
                    # The batch is still open, so the commit did not arrive. If its answer is in
                    # flight, another commit changes nothing.
                    self._commit_due = now
            if seq < self.ledger.covered:
                return
            if self.phase is not Phase.PAUSED:
                self._ask_at = now + ACK_TIMEOUT
            self.flow = max(1, min(flow, HIGHEST_FLOW))
        self.ledger.cover(min(seq, self.ledger.sent))

    def _on_gap(self, first: int, seq: int, op: int) -> None:
        last = min(seq - 1, self.ledger.sent)
        if not 0 < first <= last or self.is_over:
            return
        if op == OP_PING and first == 1:
            # The first message was answered, so the server knew this batch once.
            self._forgotten(errors.FastBatchUnknownError(stream=self.ledger.stream))
        elif self._gap_ok:
            self.ledger.lose(first, last, None)
        else:
            self.fail(self._gap(first, last), Event.BROKEN)

    def _on_refusal(self, seq: int, op: int, error: Exception, now: float) -> None:
        """Handle an error in the place of an ack."""
        over = isinstance(error, _BATCH_IS_OVER) or getattr(error, "code", 0) == _API_LEVEL
        if self.is_over:
            if over:
                self._happened(Event.ENDED)
        elif self.phase is Phase.STARTING:
            self.stop(error)
        elif isinstance(error, errors.FastBatchUnknownError):
            self._forgotten(error)
        elif (
            over
            or not self._gap_ok
            or (self.phase is Phase.COMMITTING and op in {OP_COMMIT, OP_END})
        ):
            # The server ends the batch at the next message and reports what it has. Or it goes on,
            # and confirms later messages together with the refused one (seen up to 2.15.1).
            if not self._gap_ok and op != OP_PING:
                self.ledger.refused(seq)
            self.fail(error, Event.FAILED if self._gap_ok or over else Event.BROKEN)
        elif op == OP_PING:
            self._pause(op, now)
        else:
            self.ledger.lose(seq, seq, error)

    def _on_no_leader(self, seq: int, op: int, now: float) -> None:
        """Handle a message that is certainly not stored, because the stream has no leader."""
        if self.phase is Phase.STARTING:
            self.stop(errors.NoStreamResponseError(self.subject))
        elif (
            self.phase is Phase.COMMITTING and op in {OP_COMMIT, OP_END} and seq == self._committed
        ):
            self._commits_out = max(self._commits_out - 1, 0)
            self._commit_due = self._next_ask(now)
        else:
            # The messages are not lost yet: the server reports which are missing.
            self._pause(op, now)

    def _on_end(self, answer: dict[str, Any], sequence: int) -> None:
        """Read the ack that ends a batch, which the server also sends unasked."""
        if "batch" not in answer:
            error = errors.NotSupportedError(
                "fast ingest",
                needs="server 2.14 or later; a message was stored as an ordinary one, at "
                f"sequence {sequence} of stream {answer['stream']!r}",
            )
            if self.phase is Phase.STARTING:
                self.stop(error)
            else:
                self.fail(error)
            return
        ledger = self.ledger
        count = min(read_count(answer.get("count", 0), _NUMBER), ledger.sent)
        ledger.cover(count)
        if self.is_over:
            self._happened(Event.ENDED)
        elif self.phase is not Phase.COMMITTING:
            # A message arrived late over another route, and the server took it for the end.
            self.fail(errors.BatchClosedError(reason="the server ended the batch"))
        elif count < ledger.sent and not self._gap_ok:
            self.fail(self._gap(count + 1, ledger.sent))
        else:
            if count < ledger.sent:
                ledger.lose(count + 1, ledger.sent, None)
                ledger.cover(ledger.sent)
            self.ack = BatchAck(
                stream=ledger.stream,
                sequence=sequence,
                batch_id=ledger.batch_id,
                size=ledger.sent - ledger.lost,
                lost=ledger.lost,
                duplicate=bool(answer.get("duplicate", False)),
            )
            self._happened(Event.COMMITTED)

    # Steps of the calls above.

    def _pause(self, op: int, now: float) -> None:
        """Send nothing more until the server has reported its state; ask it soon."""
        if self.phase is not Phase.PAUSED:
            # Each ping that follows a commit and is refused in this way makes the next one later.
            self._ask_at = self._next_ask(now) if op == OP_PING else now + self._ask_wait
            self._happened(Event.NO_LEADER)

    def _next_ask(self, now: float) -> float:
        """Return when to ask again if no answer comes; the wait grows each time."""
        at = now + self._ask_wait
        self._ask_wait = min(self._ask_wait * 2.0, ASK_WAIT_LIMIT)
        return at

    def _forgotten(self, error: Exception) -> None:
        """Handle that the server does not have the batch any more, as after a lost connection."""
        unknown = self._unknown(
            "the batch ended before the commit was answered"
            if self.phase is Phase.COMMITTING
            else "the server has no such batch any more"
        )
        unknown.__cause__ = error
        self.fail(_error(Cause.LOST, unknown))

    def fail(self, error: Exception, event: Event = Event.FAILED) -> None:
        """
        End the publisher with *error*, if the table has a phase after *event*.

        If gaps are allowed, the messages in flight become one. So every message that is not
        reported as lost is stored.
        """
        if self.phase not in PHASES[event]:
            return
        if self._gap_ok:
            self.ledger.lose(self.ledger.covered + 1, self.ledger.sent, error)
        self.failure = error
        self._happened(event)

    def _gap(self, first: int, last: int) -> errors.BatchGapError:
        return errors.BatchGapError(first, last + 1, batch_id=self.ledger.batch_id)

    def _unknown(self, reason: str) -> errors.PublishOutcomeUnknownError:
        ledger = self.ledger
        return errors.PublishOutcomeUnknownError(
            self.subject,
            reason=f"{reason}; {ledger.acknowledged} of {ledger.sent} messages are acknowledged",
        )


def _error(
    cause: Cause,
    unknown: errors.PublishOutcomeUnknownError,
    certain: errors.JetSyncError | None = None,
    *,
    sent: bool = True,
) -> errors.JetSyncError:
    """Return the error that the table of outcomes selects. A batch is never sent again."""
    if outcome_of(cause, sent=sent).ending is Ending.UNKNOWN:
        return unknown
    assert certain is not None
    return certain
