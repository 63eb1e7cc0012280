"""
The connection of a fast publisher to its stream: sending, waiting for answers, and keeping alive.

The publisher has its turn while it calls, except for messages that it stages. No code
of the user runs here. The loop thread only sends staged messages, and the ping of a quiet batch.
"""

from __future__ import annotations

import secrets
import time
import weakref
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from jetsync import errors
from jetsync._base.deadline import NO_WAIT
from jetsync._base.failures import raise_failure
from jetsync._base.turn import Turn
from jetsync._io.listener import Listener
from jetsync._io.mailbox import Mailbox
from jetsync._proto import frames
from jetsync._proto.fastingest import (
    OP_APPEND,
    OP_COMMIT,
    OP_END,
    OP_PING,
    OP_START,
    SUFFIX,
    FastIngest,
    Phase,
)
from jetsync.publish.fast_stream import LEADER_POLL, FastStream
from jetsync.publish.flight import NOT_SENT
from jetsync.publish.stage import MOST_STAGED_BYTES, STAGING_PAUSE, Stage
from jetsync.values.outbound import subject_of, valid_subject

if TYPE_CHECKING:
    from collections.abc import Callable

    from jetsync._api.context import Context
    from jetsync._base.deadline import Deadline
    from jetsync._io.lane import Lane

T = TypeVar("T")

# Messages in a full block of staged ones. Half as many need twice as many writes, which cost the
# server 0.4 us per message. With twice as many, nothing is gained.
BLOCK: Final = 256

# A batch is pinged if nothing was added for this many seconds. The server drops it after 10.
PING_AFTER: Final = 3.0

# Seconds to wait until the server has ended a batch that failed, so that the counts are right.
END_TIMEOUT: Final = 1.0

# The phases in which the engine waits for an answer.
_UNANSWERED: Final = (Phase.STARTING, Phase.COMMITTING)


class FastMailbox(Mailbox):
    """
    The answers to one publisher. Each arrival stops the stage, so that the next call reads it.
    """

    def __init__(self, interest: bytes, stage: Stage) -> None:
        super().__init__(interest, collect_denials=True, while_closing=True)
        self._stage = stage

    def wake(self) -> None:
        """Have the next call look at what arrived, and wake the waiting thread."""
        self._stage.stop()
        self.signal.set()


class FastLink:
    """
    Drives the engine of one fast publisher.

    Other threads may stage messages in *stage* between two calls. While they may, or a staged
    message waits, the loop thread looks every :data:`STAGING_PAUSE` seconds for messages to send.
    """

    # Threads: those that have the turn of the publisher, as does the loop thread in `_tick` and
    # `keep_alive`. Any thread calls `wake`, `stop` and, if it collects the publisher, `drop`. After
    # that, the loop thread makes the last call.
    # Locks: the publisher turn, `turn`, protects the link and its engine, also during waits.

    def __init__(
        self, context: Context, *, flow: int, max_outstanding_acks: int, gap_ok: bool
    ) -> None:
        connection = context.connection
        inbox = connection.new_inbox().encode()
        self._connection = connection
        self._lane = context.lane
        self.engine: Final = FastIngest(
            inbox,
            secrets.token_hex(8),
            flow=flow,
            max_outstanding_acks=max_outstanding_acks,
            gap_ok=gap_ok,
        )
        self.ledger: Final = self.engine.ledger
        self.stream: Final = FastStream(context)
        self.stage: Final = Stage(self.stream.encoder.targets, SUFFIX[OP_APPEND])
        self._box = FastMailbox(inbox + b".>", self.stage)
        # The SUB line is written with the first message.
        self._listener = Listener(self._lane, self._box)
        # The connection of the batch.
        self.epoch = 0
        # Whether `_tick` is going to run.
        self._ticks = False
        # Whether a call has written since the last tick.
        self._has_written = False
        # The key of the batch in `_batches`, while the server may still refuse its messages.
        self.key: Final[str] = self.engine.batch_id
        self._batches = connection.refusals.batches
        self.turn: Final = Turn("another call on the publisher")
        # How many messages there were when the loop thread last looked.
        self.added_before: int = 0
        # Whether it has unsubscribed; any thread sets it.
        self.closed: bool = False
        # The finalizer that ends the batch of a dropped publisher. It keeps this object. After a
        # failure, this object has a traceback that refers to the publisher. So the finalizer is
        # detached once the batch has ended: it would keep the publisher from being collected.
        self.dropped: weakref.finalize[..., object] | None = None

    @property
    def added(self) -> int:
        """The number of messages added; any thread."""
        return max(self.ledger.sent, self.stage.last)

    # Calls.

    def call(self, work: Callable[..., T], *arguments: Any) -> T:
        """
        Call a method of this link, in its turn.

        Any error that is not a JetSyncError counts as an interrupt. The next call notices that, and
        ends the batch.
        """
        self.ledger.staged(self.stage.close())
        if self.turn.unfinished:
            # The interrupted call may have written what it has taken.
            self.stage.written()
            self.engine.interrupted()
        return self.turn.step(work, *arguments)

    def abandon_open(self) -> None:
        """End the batch without a commit if it is open."""
        if not self.closed:
            self.abandon()

    def add(self, item: Any, deadline: Deadline) -> int:
        """Stage one message as soon as there is room, and return its number."""
        engine, stage, stream = self.engine, self.stage, self.stream
        stream.deadline = deadline
        while self._make_room(deadline):
            is_full = stage.count >= BLOCK or stage.size >= MOST_STAGED_BYTES
            # Staged messages do not wait for the lookup of a new subject's stream.
            is_new = not stream.encoder.knows(subject_of(item))
            if (is_full or (is_new and stage.count)) and not self._write(b"", deadline):
                continue
            frame = stream.encoder.frame(item, engine.prefix, self.ledger.sent + 1)
            engine.claim(time.monotonic(), subject_of(item))
            stage.append(frame)
            break
        else:
            self._start(item, deadline)
        self._open_stage()
        return self.ledger.sent

    def commit(self, item: Any, deadline: Deadline) -> None:
        """Commit, with a final message unless it is None, and wait until the batch has ended."""
        engine, ledger = self.engine, self.ledger
        self.stream.deadline = deadline
        while True:
            self._make_room(deadline, while_closing=True)
            if engine.phase is Phase.NEW:
                if item is None:
                    raise errors.InvalidArgumentError(
                        "there is nothing to commit: no message was added", argument="subject"
                    )
                self._open(valid_subject(item), deadline)
            op = OP_END if item is None else OP_COMMIT
            block = self._frame(op, ledger.sent + 1, item)
            subject = None if item is None else subject_of(item)
            engine.commit(time.monotonic(), subject)
            if self._write(block, deadline):
                break
        self._await_answer(deadline, item)
        if engine.phase is not Phase.DONE:
            self.raise_end(deadline)
        self.unsubscribe()

    def _frame(self, op: int, seq: int, item: Any = None) -> bytes:
        """Return the frame of the first or last message, or of one that is not stored."""
        engine = self.engine
        reply = b"%b%d%b" % (engine.prefix, seq, SUFFIX[op])
        if item is None:
            # No longer than the line of a message, whose length was checked.
            return b"PUB %b %b 0\r\n\r\n" % (engine.subject.encode(), reply)
        target, header, payload, _ = self.stream.encoder.encode(item)
        return frames.message(target, reply, header or None, payload)

    def _write(self, block: bytes, deadline: Deadline) -> bool:
        """
        Write the staged messages, and then *block*; return False if the connection is lost.
        """
        stage, listener = self.stage, self._listener
        block = listener.line + stage.take() + block
        try:
            self._lane.write(block, deadline, self.epoch, while_closing=True)
        except NOT_SENT as error:
            self.engine.unsent()
            if not isinstance(error, errors.ConnectionLostError):
                raise
            self._lose_connection()
            return False
        stage.written()
        listener.line = b""
        self._has_written = True
        return True

    # Staging.

    def _open_stage(self) -> None:
        """Let other threads stage messages while there is room."""
        stage = self.stage
        if not self._ticks:
            # Before the stage is open, which needs the ticks.
            self._lane.later(0.0 if stage.count else STAGING_PAUSE, self._tick)
            self._ticks = True
        places = min(self.engine.room, BLOCK - stage.count)
        stage.allow(self.ledger.sent, places, self.stream.encoder.limit, MOST_STAGED_BYTES)
        if self.closed or self._box.ready or self._lane.outbox.reason is not None:
            stage.stop()

    def _tick(self) -> None:
        """Send the messages that no call has sent; loop thread."""
        if not self.turn.attempt(self._send_staged):
            # The call that has the turn may leave messages.
            self._lane.later_from_loop(STAGING_PAUSE, self._tick)

    def _send_staged(self) -> None:
        """Send what was staged, and look again after a pause unless nothing was."""
        stage = self.stage
        # Calls that add one message after another send full blocks. Sending smaller ones here, and
        # starting the ticks for each block, cost a tenth of the CPU of such a program.
        if self._has_written:
            self._has_written = False
        elif stage.close_if_empty() or not self._send():
            self._ticks = False
            return
        self._lane.later_from_loop(STAGING_PAUSE, self._tick)

    def _send(self) -> bool:
        """Send what was staged if that is possible at once; return False if it never will be."""
        stage = self.stage
        if self.turn.unfinished:
            # As in `call`.
            stage.written()
        try:
            self._lane.write(stage.take(), NO_WAIT, self.epoch, while_closing=True)
            stage.written()
        except errors.DisconnectedError:
            pass  # There is no room.
        except errors.TransportError:
            # The connection is lost. The publisher reports the messages as lost.
            stage.stop()
            return False
        return True

    # Starting a batch.

    def _open(self, subject: str, deadline: Deadline) -> None:
        """Prepare a batch on the current connection; nothing is sent yet."""
        if self.closed:
            raise errors.BatchClosedError
        self._lane.check()
        if self._box.failure is not None:
            raise_failure(self._box.failure)
        # Refusals and losses of an earlier connection do not concern the new batch.
        if self._box.ready:
            self.receive()
        stream = self.stream
        self.epoch = stream.look_up(subject, deadline)
        assert stream.known is not None
        self.engine.open(stream.known.name)
        self.stage.begin(self.engine.prefix)

    def _start(self, item: Any, deadline: Deadline) -> None:
        """Start a batch with its first message, and wait for the server's answer."""
        engine, subject = self.engine, valid_subject(item)
        attempts = 0
        while True:
            self._open(subject, deadline)
            block = self._frame(OP_START, 1, item)
            encoder = self.stream.encoder
            self._batches[self.key] = partial(_uses, encoder.targets, encoder.forgotten)
            engine.start(time.monotonic(), subject)
            if not self._write(block, deadline):
                continue
            self._await_answer(deadline)
            attempts += 1
            if engine.phase is not Phase.NEW:
                self._lane.later(PING_AFTER, _keep_alive, self._lane, weakref.ref(self))
                return
            # The traceback of a raised error refers to this frame and so to the link.
            refusal = engine.take_refusal() or errors.BatchClosedError()
            if isinstance(refusal, errors.PublishOutcomeUnknownError):
                # The server may have started the batch, which counts against its limit of open
                # batches. This ends it.
                self._send_end(2)
            try:
                if not isinstance(refusal, errors.NoStreamResponseError):
                    raise refusal
            finally:
                del refusal
            if deadline.remaining() <= LEADER_POLL:
                raise errors.NoStreamResponseError(subject, attempts=attempts)
            self._connection.closing.wait(LEADER_POLL)

    # Waiting.

    def _await_answer(self, deadline: Deadline, item: Any = None) -> None:
        """Wait for the answer to the first message, or to the commit with its message *item*."""
        engine = self.engine
        while engine.phase in _UNANSWERED:
            try:
                in_time = self._advance(deadline, item)
            except errors.JetSyncError as error:
                # The error may say that nothing was sent, but the message was.
                engine.unanswered(error=error)
                return
            if not in_time:
                engine.unanswered(timeout=deadline.total)
            elif self.closed:
                engine.unanswered()

    def _make_room(self, deadline: Deadline, *, while_closing: bool = False) -> bool:
        """
        Wait until a message may be sent and return True, or False if a batch has to start first.

        Raise if the client begins to close, unless *while_closing* is true.
        """
        engine = self.engine
        if self._box.ready:
            self.receive()
        while True:
            if self.closed and not engine.is_over:
                # Another thread left its context with an exception and did not wait for this call.
                self.abandon()
            if engine.phase is Phase.NEW:
                return False
            if engine.room > 0:
                return True
            if engine.is_over:
                self.raise_end(deadline)
            if not while_closing:
                self._lane.check()
            if not self._advance(deadline):
                if engine.phase is Phase.PAUSED:
                    raise errors.NoStreamResponseError(
                        engine.subject, attempts=max(engine.pings, 1)
                    )
                raise errors.WaitTimeoutError("an ack of the batch", deadline.total)

    def _advance(self, deadline: Deadline, item: Any = None) -> bool:
        """
        Wait until answers arrive or a frame is due, and handle them; return False at the deadline.

        Args:
            deadline: Deadline of the call.
            item: The message of the commit that may have to be sent again.
        """
        if self.stage.count:
            # The server answers only what it gets.
            self._write(b"", deadline)
            return True
        if self._lane.wait(self._box, deadline, self.engine.next_timeout()):
            self.receive()
        elif deadline.expired():
            self._connection.probe()
            return False
        else:
            self._ask(deadline, item)
        return True

    def receive(self) -> None:
        """Pass the answers that have arrived to the engine."""
        box, engine = self._box, self.engine
        # Read first, so that every answer that arrived before the loss is processed before the
        # loss.
        lost, failure = box.take_lost(), box.failure
        now = time.monotonic()
        box.interrupted = False
        while box.frames:
            engine.receive(box.frames.popleft(), now)
        for subject, denial in box.take_denials():
            if subject.decode() in self.stream.encoder.targets:
                if engine.phase is Phase.STARTING and not denial.sent:
                    # The first message is sent alone.
                    self._batches.pop(self.key, None)
                engine.denied(denial)
        if lost and lost >= self.epoch:
            self._lose_connection()
        if failure is not None:
            engine.closed(failure)

    def _ask(self, deadline: Deadline, item: Any = None) -> None:
        """Send the ping that is due, or the commit once more."""
        engine = self.engine
        # Answers that have arrived are read first.
        due = None if self._box.ready else engine.poll(time.monotonic())
        if due is None:
            return
        op, seq = due
        if op == OP_PING:
            self._connection.probe()
            item = None
        elif item is None:
            op = OP_END
        block = self._frame(op, seq, item)
        try:
            self._lane.write(block, deadline, self.epoch, while_closing=True)
        except errors.ConnectionLostError:
            self._lose_connection()

    def keep_alive(self) -> None:
        """
        Read the answers, and ping the batch if nothing was added since the last call; never waits.
        """
        if self.turn.unfinished:
            # An interrupted call leaves a batch that the server may drop.
            return
        added = self.added
        # First, as in `call`: answers and losses may concern these messages.
        self.ledger.staged(added)
        if self._box.ready:
            self.receive()
        # The server reports every missing message up to the sequence of a ping as lost. So a ping
        # must not overtake staged messages.
        if added == self.added_before and not self.stage.count and not self.engine.is_over:
            self._lane.post_nowait(self._frame(OP_PING, self.engine.ping()), self.epoch)
        self.added_before = added

    def _lose_connection(self) -> None:
        self.engine.lost_connection(self._lane.why_lost(self.epoch))

    # Ending.

    def raise_end(self, deadline: Deadline) -> None:
        """Raise the error that made the batch fail; on later calls, raise that it is closed."""
        engine = self.engine
        if engine.phase is Phase.ENDING:
            self._await_end(deadline.at_most(END_TIMEOUT))
        failure = engine.take_failure()
        if failure is None:
            is_done = engine.phase is Phase.DONE
            reason = "it was committed" if is_done else str(engine.failure or "")
            raise errors.BatchClosedError("fast publisher", reason=reason)
        self.abandon()
        why = self._lane.why_lost(self.epoch)
        if why is not None and failure.__cause__ is None:
            # Also if it is about messages that did not arrive.
            raise failure from errors.ConnectionLostError(reason=why)
        raise failure

    def _await_end(self, deadline: Deadline) -> None:
        """Have the server end a batch that failed, and wait, so that the counts are right."""
        # The server ends the batch when it gets the message after the refused one.
        self._send_end(self.ledger.sent + 1)
        while self.engine.phase is Phase.ENDING and not self.closed and self._box.failure is None:
            if not self._advance(deadline):
                return

    def abandon(self) -> None:
        """Unsubscribe, and end the batch on the server if it may be open; never waits."""
        if self.engine.phase is not Phase.DONE and self.ledger.sent:
            self._send_end(self.ledger.sent + 1)
        self.engine.abandoned()
        self.unsubscribe()

    def _send_end(self, seq: int) -> None:
        """Send the staged messages, and end the batch after them; never waits."""
        block = self.stage.take() + self._frame(OP_END, seq)
        self._lane.post_nowait(block, self.epoch)
        self.stage.written()

    def drop(self) -> bool:
        """End the batch of a garbage-collected publisher, and return whether it was open."""
        if self.closed or self._box.failure is not None:
            return False
        # The lane may end the batch before this returns.
        was_open = self.engine.phase in {Phase.OPEN, Phase.PAUSED}
        # Later: the garbage collector may run where the lane waits for a lock of this thread.
        self._lane.later(0.0, self.call, self.abandon_open)
        return was_open

    def stop(self) -> None:
        """
        End the call that has the turn, and with it the batch; never waits.
        """
        self.unsubscribe()
        self.wake()

    def wake(self) -> None:
        """Wake a call that waits, so that it checks whether the client closes; never waits."""
        self._lane.interrupt(self._box)

    def unsubscribe(self) -> None:
        """Unsubscribe, because the server answers each message in flight; never waits."""
        self.closed = True
        self.stage.stop()
        if self.key in self._batches and self.engine.phase is not Phase.DONE:
            for subject in list(self.stream.encoder.targets.values()):
                self._connection.refusals.add(subject)
        # Later: the loop first handles the refusals that came before the last answer.
        self._lane.later(0.0, self._batches.pop, self.key, None)
        self._listener.end()
        if self.dropped is not None:
            self.dropped.detach()


def _uses(targets: dict[str, bytes], forgotten: list[bool], subject: bytes) -> bool:
    """Return whether a message of a publisher may have *subject*; any thread."""
    return bool(forgotten) or subject.decode() in targets


def _keep_alive(lane: Lane, reference: weakref.ref[FastLink]) -> None:
    """
    Ping the batch of a publisher that is in use and idle; loop thread.
    """
    link = reference()
    if link is not None and not link.closed:
        # While a call has the turn, the batch is not idle.
        link.turn.attempt(link.keep_alive)
        lane.later(PING_AFTER, _keep_alive, lane, reference)
