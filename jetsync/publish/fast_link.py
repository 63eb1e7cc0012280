"""
What connects a fast publisher with its stream: the engine, the inbox, and who waits for what.

The link is not synchronised: its owner holds the lock while it calls, with the exception of the
timer in the loop thread, which takes the lock only when nobody has it. It runs nothing of a user's.
"""

from __future__ import annotations

import secrets
import time
import weakref
from collections import deque
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from jetsync._io.connection import raise_failure
from jetsync._io.mailbox import Mailbox
from jetsync._proto import frames
from jetsync._proto.fastingest import COMMIT, END, PING, START, SUFFIX, FastIngest, Phase
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
from jetsync.publish.fast_stream import ASK_AGAIN, FastStream
from jetsync.values.outbound import coerce_outbound, subject_of
from jetsync.values.subjects import validate_subject

if TYPE_CHECKING:
    import threading
    from collections.abc import Sequence

    from jetsync._api.context import Context
    from jetsync._base.deadline import Deadline
    from jetsync._io.lane import Lane
    from jetsync._proto.fastledger import Gap

QUIET: Final = 4.0
"""Seconds of quiet after which the server is pinged; it forgets a batch after 10."""

TICK: Final = 2.0
"""Seconds between two looks whether it is quiet."""

LAST_WORDS: Final = 1.0
"""Seconds that the server has for ending a batch that failed, so that the counts are right."""


class FastLink:
    """
    Drive the engine of one fast publisher.
    """

    def __init__(
        self,
        context: Context,
        lock: threading.RLock,
        *,
        flow: int,
        max_outstanding_acks: int,
        gap_ok: bool,
    ) -> None:
        connection = context.connection
        inbox = connection.new_inbox().encode()
        self._context = context
        self._lane = context.lane
        self._lock = lock
        self._box = Mailbox(inbox + b".>", collect_denials=True)
        self._sid, self._line = connection.listen(self._box)
        self.engine = FastIngest(
            inbox, flow=flow, max_outstanding_acks=max_outstanding_acks, gap_ok=gap_ok
        )
        self.stream = FastStream(context)
        self._encode = self.stream.append
        self.next_id = secrets.token_hex(8)
        """The id of the batch that is open, or of the next one."""

        self.untold: deque[Gap] = deque()
        """What got lost and was not reported yet; taken without the lock."""

        self._ticking = False
        self._told = False
        """Whether the failure was raised."""

        self._ended = b""
        """The prefix of the batch that the server was told to end; once is enough."""

        self.closed = False

    def __del__(self) -> None:
        if not getattr(self, "closed", True):
            self.leave()

    # Sending.

    def add(self, item: Any, deadline: Deadline) -> int:
        """Send one message, as soon as there is room; return its number."""
        engine, ledger = self.engine, self.engine.ledger
        self.stream.deadline = deadline
        while True:
            if self._box.ready or engine.room <= 0:
                self._make_room(1, deadline)
            if engine.phase is Phase.NEW:
                self._start(item, deadline)
                return ledger.added
            block = self._encode(item, engine.prefix, ledger.sent + 1)
            now = time.monotonic()
            engine.claim(1, now)
            try:
                self._lane.post(block, max(deadline.at - now, 0.0), epoch=self.stream.epoch)
            except ConnectionLostError:
                engine.unclaim(1)
                engine.lost_connection(now)
                continue
            except (DisconnectedError, ConnectionClosedError, CallInSignalHandlerError):
                engine.unclaim(1)
                raise
            engine.subject = item[0] if type(item) is tuple else subject_of(item)
            return ledger.base + ledger.sent

    def add_block(self, items: Sequence[Any], deadline: Deadline) -> int:
        """Send the first of *items* in one write, and return how many."""
        engine = self.engine
        self.stream.deadline = deadline
        room = self._make_room(min(len(items), BLOCK_MESSAGES), deadline)
        if not room:
            self._start(items[0], deadline)
            return 1
        pieces: list[bytes] = []
        wrong: JetSyncError | None = None
        try:
            self.stream.frames(
                islice(items, room), pieces, engine.prefix, engine.ledger.sent + 1, most=room
            )
        except JetSyncError as error:
            wrong = error
        count = len(pieces)
        if count:
            now = time.monotonic()
            engine.claim(count, now)
            try:
                self._lane.write(b"".join(pieces), deadline, epoch=self.stream.epoch)
            except ConnectionLostError:
                engine.unclaim(count)
                engine.lost_connection(now)
                return 0
            except (DisconnectedError, ConnectionClosedError, CallInSignalHandlerError):
                engine.unclaim(count)
                raise
            engine.subject = subject_of(items[count - 1])
        if wrong is not None:
            # What stands before it was sent, as if each had been added by itself.
            raise wrong
        return count

    def commit(self, item: Any, deadline: Deadline) -> None:
        """End the batch, with a last message or (None) without, and wait until it has ended."""
        engine = self.engine
        self.stream.deadline = deadline
        while engine.phase is not Phase.DONE:
            self._make_room(1, deadline)
            if engine.phase is Phase.NEW:
                if item is None and engine.ledger.added and not self.closed:
                    engine.settle(self.stream.name or "")
                    return
                self._open(None if item is None else _first_subject(item), deadline)
            block = self._commit_block(item, engine.ledger.sent + 1)
            if item is not None:
                engine.subject = subject_of(item)
            try:
                if self._send_commit(block, deadline, store=item is not None):
                    self._await_commit(item, deadline)
            except BaseException:
                if engine.phase is Phase.COMMITTING:
                    # Ctrl-C: nobody waits for the answer any more.
                    self._lose_commit("the commit was interrupted")
                    self.abandon()
                raise

    def _commit_block(self, item: Any, seq: int) -> bytes:
        engine = self.engine
        if item is None:
            reply = b"%b%d%b" % (engine.prefix, seq, SUFFIX[END])
            return frames.pub(engine.subject.encode(), reply, b"")
        return self.stream.encode(COMMIT, item, engine.prefix, seq)

    def _send_commit(self, block: bytes, deadline: Deadline, *, store: bool) -> bool:
        """Send the commit, and return whether it went out; there may be no batch any more."""
        # As for the first message.
        self._lane.prepare_wait()
        engine, now = self.engine, time.monotonic()
        engine.commit(now, store=store)
        try:
            self._lane.write(self._line + block, deadline, epoch=self.stream.epoch)
        except ConnectionLostError:
            engine.uncommit()
            engine.lost_connection(now)
            return False
        except (DisconnectedError, ConnectionClosedError, CallInSignalHandlerError):
            engine.uncommit()
            raise
        self._line = b""
        return True

    def _await_commit(self, item: Any, deadline: Deadline) -> None:
        """Wait for the ack of the commit; send it again where that is safe."""
        engine = self.engine
        while engine.phase is Phase.COMMITTING:
            due = engine.due()
            until = deadline if due is None else _earlier(deadline, due)
            if self._lane.wait(self._box, until):
                self.take_in()
                if self.closed and engine.phase is Phase.COMMITTING:
                    self._lose_commit("the publisher was closed before the commit was answered")
            elif deadline.expired():
                self._context.connection.probe()
                self._lose_commit("the commit was not answered", timeout=deadline.total)
            else:
                try:
                    if self._is_connected(deadline):
                        self._ask_again(item, deadline)
                except JetSyncError as error:
                    # Of asking it is said that nothing was sent; the commit was.
                    self._lose_commit(f"the commit was not answered, and then: {error}", error)
        if engine.phase is Phase.FAILED:
            self._raise_end(deadline)

    def _ask_again(self, item: Any, deadline: Deadline) -> None:
        """Send the commit again if it is time for it, or ask what became of it."""
        seq = self.engine.take_commit(time.monotonic())
        if seq is None:
            self._ping(deadline)
        else:
            # Made anew: the server may be another one, that takes less at once.
            self._send(self._commit_block(item, seq), deadline)

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
        engine.give_up_commit(error)

    # Beginning a batch.

    def _open(self, subject: str | None, deadline: Deadline) -> None:
        """Begin a batch on the connection that there is; nothing is sent yet."""
        if self.closed:
            raise BatchClosedError
        if subject is None:
            raise InvalidArgumentError(
                "there is nothing to commit: no message was added", argument="subject"
            )
        if self._box.failure is not None:
            raise_failure(self._box.failure)
        # What an earlier connection refused or lost is no news for a batch that begins now.
        self.take_in()
        patient = self.engine.batches > 0
        self.stream.admit(subject, deadline, patient=patient)
        self.engine.open(self.next_id)
        self._tick()

    def _start(self, item: Any, deadline: Deadline) -> None:
        """Begin a batch with its first message, and wait for the server's word to go on."""
        engine, subject = self.engine, _first_subject(item)
        attempts = 0
        while True:
            self._open(subject, deadline)
            block = self.stream.encode(START, item, engine.prefix, 1)
            engine.subject = subject
            try:
                if not self._send_start(block, deadline):
                    continue
                self._await_start(deadline)
            except BaseException:
                if engine.phase is Phase.STARTING:
                    # Ctrl-C: nobody waits for the answer any more.
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
                # An error that is raised here and known here would keep the link alive.
                del refusal
            if deadline.remaining() <= ASK_AGAIN:
                raise NoStreamResponseError(subject, attempts=attempts)
            time.sleep(ASK_AGAIN)

    def _send_start(self, block: bytes, deadline: Deadline) -> bool:
        """Send the first message, and return whether it went out."""
        # Raises before anything is sent in a signal handler that cannot wait for the answer.
        self._lane.prepare_wait()
        engine = self.engine
        engine.start(time.monotonic())
        try:
            self._lane.write(self._line + block, deadline, epoch=self.stream.epoch)
        except ConnectionLostError:
            engine.unclaim(1)
            return False
        except (DisconnectedError, ConnectionClosedError, CallInSignalHandlerError):
            engine.unclaim(1)
            raise
        self._line = b""
        return True

    def _await_start(self, deadline: Deadline) -> None:
        """Wait for the answer to the first message; if no batch begins, the engine knows why."""
        engine = self.engine
        while engine.phase is Phase.STARTING:
            if not self._lane.wait(self._box, deadline):
                self._context.connection.probe()
                self._lose_start(deadline.total, None)
                return
            self.take_in()
            if self.closed:
                self._lose_start(None, "the publisher was closed before it was answered")

    def _lose_start(self, timeout: float | None, reason: str | None) -> None:
        """Begin no batch, unless the answer has come, as nobody waits for it any more."""
        if self.engine.phase is Phase.STARTING:
            self._give_up_start()
            subject = self.engine.subject
            self.engine.refusal = PublishOutcomeUnknownError(
                subject, timeout=timeout, reason=reason
            )

    def _give_up_start(self) -> None:
        """Forget the first message; it may be there, and then its batch takes up a place."""
        self.engine.give_up_start()
        self._send_end(2)
        self.next_id = secrets.token_hex(8)

    # Waiting.

    def _make_room(self, wanted: int, deadline: Deadline) -> int:
        """
        Wait until messages may be sent and return how many; 0 if a batch has to begin first.
        """
        engine = self.engine
        if self._box.ready:
            self.take_in()
        while True:
            if self.closed and engine.phase not in {Phase.FAILED, Phase.DONE}:
                # Left by an exception in another thread, which could not wait for this one.
                self.abandon()
                raise BatchClosedError("fast publisher")
            room = engine.worth(wanted)
            if room:
                return room
            if engine.phase is Phase.NEW:
                return 0
            if engine.phase in {Phase.FAILED, Phase.DONE}:
                self._raise_end(deadline)
            due = engine.due()
            until = deadline if due is None else _earlier(deadline, due)
            if self._lane.wait(self._box, until):
                self.take_in()
            elif deadline.expired():
                self._context.connection.probe()
                if engine.recovering:
                    raise NoStreamResponseError(engine.subject, attempts=max(engine.pings, 1))
                raise WaitTimeoutError("an ack of the batch", deadline.total)
            elif self._is_connected(deadline):
                self._ping(deadline)

    def take_in(self) -> None:
        """Read what has come."""
        box, engine = self._box, self.engine
        # Looked at first: whatever came before the loss has been drained when it is accounted for.
        lost, failure = box.take_lost(), box.failure
        now = time.monotonic()
        box.clear_interrupt()
        engine.receive(box.drain(), now)
        for subject, denial in box.take_denials():
            name = subject.decode()
            if self.stream.has_sent(name):
                engine.denied(denial)
        if lost and lost >= self.stream.epoch:
            engine.lost_connection(now)
        if failure is not None:
            engine.closed(failure)
        gaps = engine.ledger.gaps
        if gaps:
            self.untold.extend(gaps)
            gaps.clear()
        if engine.phase is Phase.NEW and self.next_id == engine.ledger.batch_id:
            self.next_id = secrets.token_hex(8)

    def _is_connected(self, deadline: Deadline) -> bool:
        """
        See to it that the server may be asked; return False if there is something to read first.
        """
        if self._lane.lost_epoch >= self.stream.epoch:
            self.stream.admit(self.engine.subject, deadline, patient=True)
        return not self._box.ready

    def _ping(self, deadline: Deadline) -> None:
        """Ask the server where it is, if it is time."""
        seq = self.engine.take_ping(time.monotonic())
        if seq is not None:
            # An ack is late.
            self._context.connection.probe()
            self._send(self._ping_block(seq), deadline)

    def _ping_block(self, seq: int) -> bytes:
        engine = self.engine
        reply = b"%b%d%b" % (engine.prefix, seq, SUFFIX[PING])
        return frames.pub(engine.subject.encode(), reply, b"")

    def _send(self, block: bytes, deadline: Deadline) -> None:
        """Write what may be lost; then the loss is seen to."""
        try:
            self._lane.write(block, deadline, epoch=self.stream.epoch)
        except ConnectionLostError:
            self.engine.lost_connection(time.monotonic())

    # The timer; loop thread.

    def _tick(self) -> None:
        """Have the batch kept alive while its user is slow; once is enough."""
        if not self._ticking:
            self._ticking = True
            self._lane.later(TICK, _tick, self._lane, weakref.ref(self))

    def keep_alive(self) -> bool:
        """Ping a batch that has been quiet; return whether to look again. Loop thread."""
        if self.closed or not self._lock.acquire(blocking=False):
            # Who holds the lock sends, or waits and asks by itself.
            return not self.closed
        try:
            # Nobody else reads the answers to pings, and what is denied to other publishers.
            self.take_in()
            engine, now = self.engine, time.monotonic()
            if now - engine.quiet_since >= QUIET and self._lane.epoch == self.stream.epoch:
                seq = engine.keep_alive(now)
                if seq is not None:
                    self._lane.post_nowait(self._ping_block(seq), self.stream.epoch)
            return engine.phase not in {Phase.DONE, Phase.FAILED}
        finally:
            self._lock.release()

    # The end.

    def _raise_end(self, deadline: Deadline) -> None:
        """Raise why nothing can be added: what made the batch fail the first time."""
        engine = self.engine
        failure = engine.failure
        if failure is None or self._told:
            reason = "it was committed" if failure is None else str(failure)
            raise BatchClosedError("fast publisher", reason=reason)
        until = deadline.at_most(LAST_WORDS)
        if engine.awaits_end:
            # If no message follows the one that was refused, the server waits for one.
            self._send_end(engine.ledger.sent + 1)
        while engine.awaits_end and not self.closed and self._box.failure is None:
            if not self._lane.wait(self._box, until):
                break
            self.take_in()
        self._told = True
        self.abandon()
        raise failure

    @property
    def owes_failure(self) -> bool:
        """Whether it failed and nobody was told."""
        return self.engine.failure is not None and not self._told

    def check_end(self, deadline: Deadline) -> None:
        """Raise what made the batch fail, if nobody was told."""
        if self.owes_failure:
            self._raise_end(deadline)

    def abandon(self) -> None:
        """End the batch on the server if it may be open, so that its place is free; never waits."""
        engine = self.engine
        if engine.phase not in {Phase.NEW, Phase.DONE} and engine.ledger.sent:
            self._send_end(engine.ledger.sent + 1)
        self.leave()

    def _send_end(self, seq: int) -> None:
        engine = self.engine
        if self._ended != engine.prefix:
            self._ended = engine.prefix
            reply = b"%b%d%b" % (engine.prefix, seq, SUFFIX[END])
            block = frames.pub(engine.subject.encode(), reply, b"")
            self._lane.post_nowait(block, self.stream.epoch)

    def stop(self) -> None:
        """Leave while another thread has the lock; its call ends, and the batch. Never waits."""
        self.leave()
        self._lane.interrupt(self._box)

    def leave(self) -> None:
        """Unsubscribe, as each message still in flight would get an answer; never waits."""
        self.closed = True
        self._lane.unsubscribe(self._sid)


def _tick(lane: Lane, link: weakref.ref[FastLink]) -> None:
    """Look after a batch as long as somebody holds its publisher."""
    alive = link()
    if alive is not None and alive.keep_alive():
        lane.later(TICK, _tick, lane, link)


def _first_subject(item: Any) -> str:
    """Return the subject of a message before anything is asked about it."""
    return validate_subject(coerce_outbound(item).subject)


def _earlier(deadline: Deadline, moment: float) -> Deadline:
    return deadline if deadline.at <= moment else type(deadline)(moment, deadline.total)
