"""
The connection of a fast publisher to its stream: sending, waiting for answers, and keeping alive.

The publisher holds its lock while it calls. The keep-alive timer in the loop thread takes the lock
only if it is free. No code of the user runs here.
"""

from __future__ import annotations

import secrets
import time
import weakref
from collections import deque
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from jetsync._base.deadline import Deadline
from jetsync._io.connection import raise_failure
from jetsync._io.mailbox import Mailbox
from jetsync._proto import frames
from jetsync._proto.fastingest import (
    OP_COMMIT,
    OP_END,
    OP_PING,
    OP_START,
    SUFFIX,
    FastIngest,
    Phase,
)
from jetsync.errors import (
    BatchClosedError,
    CallInSignalHandlerError,
    ConnectionClosedError,
    ConnectionLostError,
    DisconnectedError,
    InvalidArgumentError,
    JetSyncError,
    NoStreamResponseError,
    PublishOutcomeUnknownError,
    WaitTimeoutError,
)
from jetsync.publish.encode import BLOCK_MESSAGES
from jetsync.publish.fast_stream import LEADER_POLL, FastStream
from jetsync.values.outbound import subject_of, valid_subject

if TYPE_CHECKING:
    import threading
    from collections.abc import Sequence

    from jetsync._api.context import Context
    from jetsync._io.lane import Lane
    from jetsync._proto.fastledger import Gap
    from jetsync.publish.fast import FastOptions

# A quiet batch is pinged after this many seconds, because the server drops it after 10.
PING_AFTER: Final = 4.0

# Seconds between two checks whether a batch is quiet.
KEEP_ALIVE_CHECK: Final = 2.0

# Seconds to wait until the server has ended a batch that failed, so that the counts are right.
END_TIMEOUT: Final = 1.0


class FastLink:
    """
    Drives the engine of one fast publisher; not thread-safe, the publisher holds *lock*.
    """

    def __init__(self, context: Context, lock: threading.RLock, options: FastOptions) -> None:
        connection = context.connection
        inbox = connection.new_inbox().encode()
        self._connection = connection
        self._lane = context.lane
        self._lock = lock
        self._box = Mailbox(inbox + b".>", collect_denials=True)
        # The SUB line is written with the first message.
        self._sid, self._line = connection.listen(self._box)
        self.engine: FastIngest = FastIngest(
            inbox,
            flow=options.flow,
            max_outstanding_acks=options.max_outstanding_acks,
            gap_ok=options.gap == "ok",
        )
        self.stream: FastStream = FastStream(context)
        # The id of the open batch, or of the next one.
        self.next_id: str = secrets.token_hex(8)
        # Lost messages that were not reported yet; taken without the lock.
        self.gaps: deque[Gap] = deque()
        self._has_timer = False
        # Whether the failure was raised.
        self._raised = False
        # The prefix of the last batch that the server was told to end.
        self._ended = b""
        self.closed: bool = False

    def __del__(self) -> None:
        if not getattr(self, "closed", True):
            self.unsubscribe()

    # Sending.

    def add(self, item: Any, deadline: Deadline) -> int:
        """Send one message as soon as there is room, and return its number."""
        engine, ledger, stream = self.engine, self.engine.ledger, self.stream
        stream.deadline = deadline
        while True:
            if self._box.ready or (engine.room <= 0 and engine.phase is not Phase.NEW):
                self._make_room(1, deadline)
            if engine.phase is Phase.NEW:
                self._start(item, deadline)
                return ledger.added
            block = stream.frame(item, engine.prefix, ledger.sent + 1)
            now = time.monotonic()
            engine.claim(1, now)
            try:
                self._lane.post(block, max(deadline.at - now, 0.0), epoch=stream.epoch)
            except ConnectionLostError:
                engine.unclaim(1)
                engine.lost_connection(now)
                continue
            except (DisconnectedError, ConnectionClosedError, CallInSignalHandlerError):
                engine.unclaim(1)
                raise
            engine.subject = item[0] if type(item) is tuple else item.subject
            return ledger.base + ledger.sent

    def add_block(self, items: Sequence[Any], deadline: Deadline) -> int:
        """Send the first of *items* in one write, and return how many were sent."""
        engine, stream = self.engine, self.stream
        stream.deadline = deadline
        room = self._make_room(min(len(items), BLOCK_MESSAGES), deadline)
        if not room:
            self._start(items[0], deadline)
            return 1
        pieces: list[bytes] = []
        invalid: JetSyncError | None = None
        try:
            stream.frames(
                islice(items, room), pieces, engine.prefix, engine.ledger.sent + 1, most=room
            )
        except JetSyncError as error:
            invalid = error
        count = len(pieces)
        if count:
            engine.claim(count, time.monotonic())
            if not self._write(b"".join(pieces), count, deadline):
                return 0
            engine.subject = subject_of(items[count - 1])
        if invalid is not None:
            # The messages before it were sent, as if each had been added by itself.
            raise invalid
        return count

    def commit(self, item: Any, deadline: Deadline) -> None:
        """Commit, with a final message unless it is None, and wait until the batch has ended."""
        engine = self.engine
        self.stream.deadline = deadline
        while engine.phase is not Phase.DONE:
            self._make_room(1, deadline)
            if engine.phase is Phase.NEW:
                if item is None and engine.ledger.added and not self.closed:
                    engine.settle(self.stream.name or "")
                    return
                self._open(None if item is None else valid_subject(item), deadline)
            block = self._commit_block(item, engine.ledger.sent + 1)
            if item is not None:
                engine.subject = subject_of(item)
            # Raises before anything is sent in a signal handler that cannot wait for the answer.
            self._lane.prepare_wait()
            try:
                engine.commit(time.monotonic(), store=item is not None)
                if self._write(self._line + block, 1, deadline):
                    self._line = b""
                    self._await_commit(item, deadline)
            except BaseException:
                if engine.phase is Phase.COMMITTING:
                    # After Ctrl-C no call waits for the answer.
                    self._lose_commit("the commit was interrupted")
                    self.abandon()
                raise

    def _commit_block(self, item: Any, seq: int) -> bytes:
        if item is None:
            return self._control(OP_END, seq)
        return self.stream.first_or_last_frame(OP_COMMIT, item, self.engine.prefix, seq)

    def _control(self, op: int, seq: int) -> bytes:
        """Return the frame of a ping or of an end, which the server does not store."""
        engine = self.engine
        reply = b"%b%d%b" % (engine.prefix, seq, SUFFIX[op])
        return frames.pub(engine.subject.encode(), reply, b"")

    def _write(self, block: bytes, count: int, deadline: Deadline) -> bool:
        """Write *count* claimed messages, and return False if their connection is lost."""
        engine = self.engine
        try:
            self._lane.write(block, deadline, epoch=self.stream.epoch)
        except ConnectionLostError:
            engine.unclaim(count)
            engine.lost_connection(time.monotonic())
            return False
        except (DisconnectedError, ConnectionClosedError, CallInSignalHandlerError):
            engine.unclaim(count)
            raise
        return True

    def _await_commit(self, item: Any, deadline: Deadline) -> None:
        """Wait for the ack of the commit, and send it again if that is safe."""
        engine = self.engine
        while engine.phase is Phase.COMMITTING:
            if self._wait(deadline):
                self.receive()
                if self.closed and engine.phase is Phase.COMMITTING:
                    self._lose_commit("the publisher was closed before the commit was answered")
            elif deadline.expired():
                self._connection.probe()
                self._lose_commit("the commit was not answered", timeout=deadline.total)
            else:
                try:
                    if self._is_connected(deadline):
                        seq = engine.take_commit(time.monotonic())
                        if seq is None:
                            self._ping(deadline)
                        else:
                            # Encoded again, because the next server may have lower limits.
                            self._resend(self._commit_block(item, seq), deadline)
                except JetSyncError as error:
                    # The error says that nothing was sent, but the commit was.
                    self._lose_commit(f"the commit was not answered, and then: {error}", error)
        if engine.phase is Phase.FAILED:
            self._raise_end(deadline)

    def _lose_commit(
        self, reason: str, cause: Exception | None = None, timeout: float | None = None
    ) -> None:
        """End without an answer to the commit."""
        engine = self.engine
        error: JetSyncError
        if engine.commit_refused:
            error = NoStreamResponseError(engine.subject)
        else:
            error = PublishOutcomeUnknownError(engine.subject, timeout=timeout, reason=reason)
        error.__cause__ = cause
        engine.fail(error)

    # Starting a batch.

    def _open(self, subject: str | None, deadline: Deadline) -> None:
        """Prepare a batch on the current connection; nothing is sent yet."""
        if self.closed:
            raise BatchClosedError
        if subject is None:
            raise InvalidArgumentError(
                "there is nothing to commit: no message was added", argument="subject"
            )
        if self._box.failure is not None:
            raise_failure(self._box.failure)
        # Refusals and losses of an earlier connection do not concern the new batch.
        if self._box.ready:
            self.receive()
        self.stream.look_up(subject, deadline, wait=self.engine.batches > 0)
        self.engine.open(self.next_id)
        if not self._has_timer:
            self._has_timer = True
            self._lane.later(KEEP_ALIVE_CHECK, _check_alive, self._lane, weakref.ref(self))

    def _start(self, item: Any, deadline: Deadline) -> None:
        """Start a batch with its first message, and wait for the server's answer."""
        engine, subject = self.engine, valid_subject(item)
        attempts = 0
        while True:
            self._open(subject, deadline)
            block = self.stream.first_or_last_frame(OP_START, item, engine.prefix, 1)
            engine.subject = subject
            # Raises before anything is sent in a signal handler that cannot wait for the answer.
            self._lane.prepare_wait()
            try:
                engine.start(time.monotonic())
                if not self._write(self._line + block, 1, deadline):
                    continue
                self._line = b""
                self._await_start(deadline)
            except BaseException:
                if engine.phase is Phase.STARTING:
                    # After Ctrl-C no call waits for the answer.
                    self._give_up_start()
                raise
            attempts += 1
            if engine.phase is not Phase.NEW:
                return
            self.next_id = secrets.token_hex(8)
            refusal = engine.take_refusal() or BatchClosedError()
            try:
                if not isinstance(refusal, NoStreamResponseError):
                    raise refusal
            finally:
                # The traceback of a raised error refers to this frame and so to the link.
                del refusal
            if deadline.remaining() <= LEADER_POLL:
                raise NoStreamResponseError(subject, attempts=attempts)
            time.sleep(LEADER_POLL)

    def _await_start(self, deadline: Deadline) -> None:
        """Wait for the answer to the first message; if no batch starts, the engine knows why."""
        engine = self.engine
        while engine.phase is Phase.STARTING:
            timeout = reason = None
            if self._lane.wait(self._box, deadline):
                self.receive()
                if not self.closed:
                    continue
                reason = "the publisher was closed before it was answered"
            else:
                self._connection.probe()
                timeout = deadline.total
            if engine.phase is Phase.STARTING:
                self._give_up_start()
                engine.refusal = PublishOutcomeUnknownError(
                    engine.subject, timeout=timeout, reason=reason
                )

    def _give_up_start(self) -> None:
        """Forget the first message. If the server has it, end its batch to free the place."""
        self.engine.give_up_start()
        self._send_end(2)
        self.next_id = secrets.token_hex(8)

    # Waiting.

    def _make_room(self, wanted: int, deadline: Deadline) -> int:
        """Wait until messages may be sent and return how many, 0 if a batch has to start first."""
        engine = self.engine
        if self._box.ready:
            self.receive()
        while True:
            over = engine.phase in {Phase.FAILED, Phase.DONE}
            if self.closed and not over:
                # Another thread left its context with an exception and did not wait for this call.
                self.abandon()
                raise BatchClosedError("fast publisher")
            room = engine.sendable(wanted)
            if room:
                return room
            if engine.phase is Phase.NEW:
                return 0
            if over:
                self._raise_end(deadline)
            if self._wait(deadline):
                self.receive()
            elif deadline.expired():
                self._connection.probe()
                if engine.recovering:
                    raise NoStreamResponseError(engine.subject, attempts=max(engine.pings, 1))
                raise WaitTimeoutError("an ack of the batch", deadline.total)
            elif self._is_connected(deadline):
                self._ping(deadline)

    def _wait(self, deadline: Deadline) -> bool:
        """Wait until frames have come (True), or the engine has something to do or time is up."""
        due = self.engine.due()
        if due is not None and due < deadline.at:
            deadline = Deadline(due, deadline.total)
        return self._lane.wait(self._box, deadline)

    def receive(self) -> None:
        """Pass everything that came to the engine."""
        box, engine = self._box, self.engine
        # Read first: the frames that came before a lost connection have to be drained first.
        lost, failure = box.take_lost(), box.failure
        now = time.monotonic()
        box.clear_interrupt()
        engine.receive(box.drain(), now)
        for subject, denial in box.take_denials():
            if self.stream.has_encoded(subject.decode()):
                engine.stop(denial)
        if lost and lost >= self.stream.epoch:
            engine.lost_connection(now)
        if failure is not None:
            engine.closed(failure)
        gaps = engine.ledger.gaps
        if gaps:
            self.gaps.extend(gaps)
            gaps.clear()
        if engine.phase is Phase.NEW and self.next_id == engine.ledger.batch_id:
            self.next_id = secrets.token_hex(8)

    def _is_connected(self, deadline: Deadline) -> bool:
        """Wait for a connection, and return whether the server may be asked before reading."""
        if self._lane.lost_epoch >= self.stream.epoch:
            self.stream.look_up(self.engine.subject, deadline, wait=True)
        return not self._box.ready

    def _ping(self, deadline: Deadline) -> None:
        """Ask the server for its state, if an ack is late."""
        seq = self.engine.take_ping(time.monotonic())
        if seq is not None:
            self._connection.probe()
            self._resend(self._control(OP_PING, seq), deadline)

    def _resend(self, block: bytes, deadline: Deadline) -> None:
        """Write a ping or a repeated commit. If it is lost, the engine sends another one."""
        try:
            self._lane.write(block, deadline, epoch=self.stream.epoch)
        except ConnectionLostError:
            self.engine.lost_connection(time.monotonic())

    def keep_alive(self) -> bool:
        """Ping a quiet batch, and return whether to check again. Runs in the loop thread."""
        if self.closed or not self._lock.acquire(blocking=False):
            # The thread that holds the lock sends, or waits and pings by itself.
            return not self.closed
        try:
            # While no call is running, nothing else reads the answers to pings.
            self.receive()
            engine, now = self.engine, time.monotonic()
            is_quiet = now - engine.quiet_since >= PING_AFTER
            if is_quiet and self._lane.epoch == self.stream.epoch:
                seq = engine.keep_alive(now)
                if seq is not None:
                    self._lane.post_nowait(self._control(OP_PING, seq), self.stream.epoch)
            return engine.phase not in {Phase.DONE, Phase.FAILED}
        finally:
            self._lock.release()

    # Ending.

    def _raise_end(self, deadline: Deadline) -> None:
        """Raise what made the batch fail the first time, and then that it is closed."""
        engine = self.engine
        failure = engine.failure
        if failure is None or self._raised:
            reason = "it was committed" if failure is None else str(failure)
            raise BatchClosedError("fast publisher", reason=reason)
        until = deadline.at_most(END_TIMEOUT)
        if engine.awaits_end:
            # The server ends the batch when it gets the message after the refused one.
            self._send_end(engine.ledger.sent + 1)
        while engine.awaits_end and not self.closed and self._box.failure is None:
            if not self._lane.wait(self._box, until):
                break
            self.receive()
        self._raised = True
        self.abandon()
        raise failure

    def check_failure(self, deadline: Deadline) -> None:
        """Raise what made the batch fail, unless a call has raised it."""
        if self.engine.failure is not None and not self._raised:
            self._raise_end(deadline)

    def abandon(self) -> None:
        """Unsubscribe, and end the batch on the server if it may be open; never waits."""
        engine = self.engine
        if engine.phase not in {Phase.NEW, Phase.DONE} and engine.ledger.sent:
            self._send_end(engine.ledger.sent + 1)
        self.unsubscribe()

    def _send_end(self, seq: int) -> None:
        engine = self.engine
        if self._ended != engine.prefix:
            self._ended = engine.prefix
            self._lane.post_nowait(self._control(OP_END, seq), self.stream.epoch)

    def stop(self) -> None:
        """End the call of the thread that holds the lock, and with it the batch; never waits."""
        self.unsubscribe()
        self._lane.interrupt(self._box)

    def unsubscribe(self) -> None:
        """Unsubscribe, because the server answers each message in flight; never waits."""
        self.closed = True
        self._lane.unsubscribe(self._sid)


def _check_alive(lane: Lane, link: weakref.ref[FastLink]) -> None:
    """Keep a batch alive while its publisher is referenced."""
    alive = link()
    if alive is not None and alive.keep_alive():
        lane.later(KEEP_ALIVE_CHECK, _check_alive, lane, link)
