"""
One attempt to send an atomic batch over one connection, and what follows if it fails.

Messages are not written one by one. They are staged, and then written together, so the server works
while the caller adds more.

To *resend* a batch is to send it again as a whole, in another attempt with another id.
``AtomicBatch.resend`` does that, and so does each retry of a commit. The table in
``_proto/outcome.py`` decides whether the outcome of an attempt is unknown, and whether the batch
may be sent again. If the stream then refuses the ids as duplicates, this file reads from the stream
whether an earlier attempt was stored.
"""

from __future__ import annotations

import contextlib
import copy
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from jetsync import errors
from jetsync._api.replica_or_leader import leader_get
from jetsync._io.outbox import LaneState
from jetsync._io.replies import Waiter
from jetsync._proto.batch import Part
from jetsync._proto.frames import hpub
from jetsync._proto.outcome import Cause, Ending, cause_of, outcome_of
from jetsync.publish.advisories import forget, listen
from jetsync.publish.errors import BatchOutcomeUnknownError
from jetsync.publish.stage import MOST_STAGED, MOST_STAGED_BYTES, STAGING_PAUSE, Stage
from jetsync.values import headers as names
from jetsync.values.pub_acks import BatchAck
from jetsync.values.server_versions import MARKER_LEVEL

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from jetsync._api.context import Context
    from jetsync._api.known_streams import KnownStream
    from jetsync._base.deadline import Deadline
    from jetsync._proto.batch import AtomicBatchEngine
    from jetsync._proto.outcome import OutcomeRule
    from jetsync.publish.atomic import AtomicBatch
    from jetsync.publish.atomic_messages import AtomicOptions, BatchItem, BatchMessages
    from jetsync.values.stored import StoredMessage

# Bound here, because looking up a member of an enumeration costs a tenth of staging a message.
_OPEN: Final = LaneState.OPEN

# After these errors, the server has no batch to drop.
_REFUSALS: Final = (errors.ApiError, errors.PublishError, errors.PermissionDeniedError)

# Why a batch may be incomplete, if the server has not reported the reason.
INCOMPLETE: Final = (
    "the server drops a batch after 10 s without a message, or after a message that it refuses or"
    " does not get; servers before 2.14 drop it 10 s after its first message"
)

# The server's reason for dropping an idle batch, and what an error says for it.
TIMED_OUT: Final = "timeout"
TIMED_OUT_TEXT: Final = "timeout, which is 10 s by default"


class BatchAttempt:
    """
    Sends a batch under one id.

    Args:
        context: Context of the batch.
        engine: The engine of the batch, whose next attempt this is.
        messages: Checks the messages of the batch, and has looked up the stream.
        options: Options of the batch; None if :meth:`send` gets the complete batch. The first
            message then asks for an answer, but the call does not wait for it.
    """

    # Threads: those that have the turn of the batch, any for `stage`, and the one that reads the
    # socket for `on_advisory`.
    # Locks: none of its own.

    def __init__(
        self,
        context: Context,
        engine: AtomicBatchEngine[BatchItem],
        messages: BatchMessages,
        options: AtomicOptions | None = None,
    ) -> None:
        known = messages.known
        assert known is not None
        self.known: KnownStream = known
        self.id: str = engine.batch_id
        self.messages = messages
        self.whole: bool = options is None
        self._context = context
        self._streams = context.streams
        self.engine: AtomicBatchEngine[BatchItem] = engine
        self._epoch = known.epoch
        # The number of messages that the server accepts, if known.
        self.limit: int | None = self._streams.batch_limits.get(known.epoch)
        self._connection = context.connection
        self._lane = context.lane
        self._outbox = context.lane.outbox
        self._wire = messages.wire
        self._stage = Stage(messages.targets, b"\r\n")
        self._stage.begin_in_headers(self._wire.head)
        # A message that is added after this moment is written at once. 0, which is always in the
        # past, before the first message and after the end.
        self._due = 0.0
        # Whether the server has answered the last message. After that answer, it refuses no earlier
        # message.
        self._is_answered = True
        # Whether `discard` has made the server drop the batch.
        self._is_discarded = False
        # When the attempt began. Earlier permission errors do not concern it.
        self._since = time.monotonic()
        # Why the server has dropped the batch, if it has reported that in an advisory.
        self._abandoned: str | None = None
        if options is not None:
            engine.start(
                hold_back=known.level < MARKER_LEVEL,
                ack_first=options.ack_first,
                ack_every=options.ack_every,
                limit=self.limit,
            )
        if options is not None or context.plugins.status is not None:
            listen(self._lane, self, self._connection.session.state.emit)

    def on_advisory(self, reason: str) -> None:
        """Note an advisory; runs in the thread that reads the socket."""
        if self.is_open:
            self._abandoned = reason

    def abandoned(self, deadline: Deadline) -> errors.JetSyncError | None:
        """Return why the server has dropped the batch, if it has reported that."""
        if self._abandoned is None:
            return None
        return self._cause(errors.BatchIncompleteError(stream=self.known.name), None, deadline)

    @property
    def is_open(self) -> bool:
        """Whether this attempt is the current one, and has not ended."""
        return self.engine.ending is None and self.engine.batch_id == self.id

    @property
    def all_have_ids(self) -> bool:
        """Whether every message has an id, so that the stream cannot store the batch twice."""
        return self.messages.all_have_ids(self.engine.size)

    @property
    def size(self) -> int:
        """The number of messages, with those that are staged; any thread."""
        return max(self.engine.size, self._stage.last)

    def items(self) -> list[BatchItem]:
        """Return all messages; the stage is closed."""
        items: list[BatchItem] = []
        for each in self.engine.kept:
            items += self._wire.items(each) if isinstance(each, bytes) else (each,)
        return items

    def end(self) -> None:
        """Mark the batch as finished; never waits."""
        self._stage.stop()
        self._due = 0.0
        if self.engine.ending is None:
            self.engine.failed(Cause.INTERRUPTED, sent=True)
        if self.engine.ending is Ending.STORED:
            forget(self._lane, self)
        if not self._is_answered:
            self._note_unanswered()
        # Later: the loop first handles the refusals that came before the answer.
        self._lane.later(0.0, self._connection.refusals.batches.pop, self.id, None)

    def _note_unanswered(self) -> None:
        """Mark the messages as untracked, because the server may still refuse them."""
        for subject in list(self.messages.targets.values()):
            self._connection.refusals.add(subject)

    def discard(self) -> None:
        """End the batch and make the server drop it; never waits."""
        # The server also reports a batch that this client has discarded.
        forget(self._lane, self)
        self.end()
        engine = self.engine
        if engine.sent and engine.ending is Ending.NOT_STORED and not self._is_discarded:
            self._is_discarded = True
            # The server drops a batch with a gap at once. Otherwise it keeps the batch for 10 s,
            # and it accepts no more than 50 at a time.
            gap: Part[BatchItem] = Part(engine.sent + 2, [])
            target, header, payload = self._wire.last(gap, self.messages.targets)
            self._note_unanswered()
            self._lane.post_nowait(hpub(target, b"", header, payload), self._epoch)

    def drop(self) -> bool:
        """
        Discard an open batch that was garbage-collected; return whether it was open.

        Takes no lock that it would have to wait for.
        """
        if not self.is_open or self._outbox.reason is not None:
            return False
        self.discard()
        return True

    def stage(self, subject: Any, data: Any) -> bool:
        """
        Stage a message, or return False if :meth:`add` has to add it.

        Any thread may call this, without the turn. The staged messages are written when a message
        does not fit on the stage, when one is added more than :data:`STAGING_PAUSE` seconds after
        the last write, and by the commit. No timer is needed, because only the commit makes the
        messages visible.
        """
        outbox = self._outbox
        return (
            outbox.epoch == self._epoch
            # Before the lock of the stage is taken: in a forked child, its owner may not exist.
            and outbox.state is _OPEN
            and time.monotonic() <= self._due
            and self._stage.stage(subject, data) > 0
        )

    def stop_staging(self) -> None:
        """
        Have other threads wait for the turn, which the caller has.

        Raises:
            CallInSignalHandlerError: The calling thread stages a message.
        """
        self.engine.staged(self._stage.close())

    def add(self, item: BatchItem, deadline: Deadline) -> None:
        """Add a message, and write all that wait unless they can wait for more."""
        part, stage = self.engine.add(item), self._stage
        if part is None:
            return
        if part.asks:
            self.send([part], deadline, self._take([part]))
            return
        target, tail, payload = part.items[0]
        # Ctrl-C may have ended the last call before it opened the stage, which sets the numbers.
        stage.allow(part.first - 1, 0, 0, 0)
        stage.add(target, payload, tail, None)
        is_full = stage.count >= MOST_STAGED or stage.size >= MOST_STAGED_BYTES
        if is_full or time.monotonic() > self._due:
            self.send((), deadline, self._take(()))

    def allow_staging(self) -> None:
        """Let other threads stage from here on; the caller has the turn."""
        engine, stage = self.engine, self._stage
        places = min(engine.places, MOST_STAGED - 1 - stage.count)
        stage.allow(engine.last, places, self.messages.small, MOST_STAGED_BYTES)

    def _take(self, parts: Sequence[Part[BatchItem]]) -> bytes:
        """Return the staged frames. The engine keeps them, followed by the messages of *parts*."""
        block = self._stage.take()
        self._stage.written()
        self.engine.keep(block, parts)
        return block

    def commit(self, final: Sequence[BatchItem], deadline: Deadline) -> Callable[[], None]:
        """Add the final message, if there is one, and return a function that sends the commit."""
        parts = self.engine.commit(*final)
        send = partial(self.send, parts, deadline, self._take(parts))
        # In the same step, so that no interrupt leaves a batch that is complete and open.
        self.engine.begin_commit()
        return send

    def send(
        self, parts: Sequence[Part[BatchItem]], deadline: Deadline, staged: bytes = b""
    ) -> None:
        """
        Write *staged* and *parts*, and wait for the answers that they ask for.

        Errors are recorded in the engine before they are raised.
        """
        epoch, lane, wire = self._epoch, self._lane, self._wire
        router, targets = self._connection.router, self.messages.targets
        frames = [staged] if staged else []
        self._is_answered = False
        self._connection.refusals.batches[self.id] = partial(_uses, targets)

        def write() -> None:
            lane.write(b"".join(frames), deadline, epoch)
            frames.clear()

        # Receives the answer to the first message, for which the call does not wait.
        opening: Waiter | None = None
        reply = b""
        try:
            if self.whole and self.engine.last > 1:
                opener = parts[0].items[0]
                opening = Waiter(opener[0], in_batch=True)
                opening.epoch = epoch
                reply = router.register(opening)
                target, header, payload = wire.last(Part(1, [opener]), targets)
                frames.append(hpub(target, reply, header, payload))
            for part in parts:
                plain, first = part.items, part.first
                if part.asks:
                    plain = plain[:-1]
                if opening is not None and first == 1:
                    plain, first = plain[1:], 2
                if plain:
                    for block in wire.blocks(plain, first):
                        frames.append(block)
                        if len(block) >= MOST_STAGED_BYTES:
                            write()
                if part.asks:
                    self._ask(part, frames, deadline)
            if frames:
                write()
            self._due = time.monotonic() + STAGING_PAUSE
        except errors.JetSyncError as error:
            cause = self._cause(error, opening, deadline)
            if isinstance(cause, _REFUSALS):
                self.end()
            else:
                self.discard()
            if cause is error:
                raise
            raise cause from None
        finally:
            if opening is not None and opening.reply is None:
                router.forget(reply)

    def _ask(self, part: Part[BatchItem], frames: list[bytes], deadline: Deadline) -> None:
        """Write *frames* and the last message of *part*, and wait for the answer to it."""
        engine, epoch = self.engine, self._epoch
        target, header, payload = self._wire.last(part, self.messages.targets)
        subject = target.decode()
        engine.asked(part)
        self._is_answered = False
        try:
            frame = self._connection.exchange(
                target, header, payload, deadline, epoch=epoch, before=frames, in_batch=True
            )
            frames.clear()
            self._is_answered = True
            engine.answered(part, frame)
        except errors.NoRespondersError:
            self._is_answered = True
            engine.failed(Cause.NO_STREAM, sent=True)
            raise errors.NoStreamResponseError(subject) from None
        except errors.BatchTooLargeError as error:
            if error.limit is not None:
                self._streams.batch_limits = {epoch: error.limit}
            raise
        except errors.StreamFullError as error:
            if not (part.commit and self._is_partly_stored(deadline)):
                raise
            engine.found_part()
            raise errors.AtomicityError(self.id, stream=self.known.name) from error
        except errors.JetSyncError as error:
            if engine.ending is not None:
                # The server has answered.
                raise
            cause, sent = cause_of(error)
            if engine.failed(cause, sent=sent).ending is Ending.UNKNOWN:
                raise self._unknown(subject, deadline, error) from error
            if isinstance(error, errors.PermissionDeniedError) and not sent:
                # Other messages of the batch may be refused as well.
                with contextlib.suppress(errors.JetSyncError):
                    self._connection.flush_refusals(deadline)
                    self._is_answered = True
                    self._connection.refusals.batches.pop(self.id, None)
            raise

    def _is_partly_stored(self, deadline: Deadline) -> bool:
        """
        Return whether the stream has messages of the batch, although the server refused it.

        Servers may store the messages before the one that exceeds the limit of its subject (seen up
        to 2.15.1).
        """
        if not self.known.config.discard_new_per_subject:
            return False
        return any(True for _ in _own_messages(self._context, self, deadline))

    def _unknown(
        self, subject: str, deadline: Deadline, cause: Exception
    ) -> BatchOutcomeUnknownError:
        timed_out = isinstance(cause, errors.RequestTimeoutError)
        return BatchOutcomeUnknownError(
            subject,
            batch_id=self.id,
            has_message_ids=self.all_have_ids,
            timeout=deadline.total if timed_out else None,
            reason=None if timed_out else str(cause),
        )

    def _cause(
        self, error: errors.JetSyncError, opening: Waiter | None, deadline: Deadline
    ) -> errors.JetSyncError:
        """Return what the server has reported about the batch before *error*, or *error*."""
        if isinstance(error, errors.ConnectionLostError) and not error.sent:
            dropped = "the server dropped the batch, so none of its messages is stored"
            why = self._lane.why_lost(self._epoch)
            return errors.ConnectionLostError(
                reason=dropped if why is None else f"{dropped}: {why}", sent=False
            )
        if not isinstance(error, errors.BatchIncompleteError):
            return error
        if opening is not None and opening.reply is not None:
            try:
                self.engine.answered(Part(1, []), opening.reply)
            except (errors.ApiError, errors.PublishError) as cause:
                return cause
        # A message may exceed the current limit of the stream. The next batch looks it up.
        self._streams.forget(self.known.name)
        with contextlib.suppress(errors.JetSyncError):
            self._connection.flush_refusals(deadline)
        for at, denied in list(self._connection.refusals.denials):
            is_publish = denied.operation == "publish" and at >= self._since
            if is_publish and _uses(self.messages.targets, denied.subject.encode()):
                return copy.copy(denied)
        reason = INCOMPLETE
        if self._abandoned is not None:
            known = TIMED_OUT_TEXT if self._abandoned == TIMED_OUT else self._abandoned
            reason = f"the server dropped the batch: {known}"
        return errors.BatchIncompleteError(stream=error.stream, reason=reason)


def _uses(targets: Mapping[str, bytes], subject: bytes) -> bool:
    """Return whether a message has *subject*; any thread."""
    return subject in list(targets.values())


def retryable_failure(
    error: errors.JetSyncError,
    batch: AtomicBatch,
    attempt: BatchAttempt | None,
    number: int,
    *,
    earlier: bool,
) -> tuple[errors.JetSyncError, OutcomeRule]:
    """
    Return the error and the rule of an attempt if the batch may be sent again; raise it if not.

    Args:
        error: The error of the attempt.
        batch: The batch.
        attempt: The attempt; None if it failed before it began.
        number: Its number, counted from 1.
        earlier: Whether an earlier one may have been stored although no answer came.
    """
    failure, is_unknown, is_safe = error, False, False
    if isinstance(error, BatchOutcomeUnknownError):
        error.batch, is_unknown, is_safe = batch, True, error.has_message_ids
    cause, _ = cause_of(error)
    rule = outcome_of(cause, sent=is_unknown, earlier=earlier, safe=is_safe)
    if isinstance(error, errors.NoStreamResponseError):
        failure = errors.NoStreamResponseError(error.subject or "", attempts=number)
    if rule.ending is Ending.UNKNOWN and not is_unknown:
        failure = _still_unknown(batch, attempt, failure)
    if not rule.may_repeat_batch:
        raise failure from failure.__cause__
    return failure, rule


def ack_of_earlier_attempt(
    error: errors.DuplicateMessageIdError,
    batch: AtomicBatch,
    attempt: BatchAttempt,
    context: Context,
    deadline: Deadline,
) -> BatchAck:
    """
    Return the ack of an earlier attempt whose answer was lost, after the stream refused an id.

    Args:
        error: The refusal.
        batch: The batch.
        attempt: The last attempt.
        context: Context of the batch.
        deadline: Deadline of the call.

    Raises:
        BatchOutcomeUnknownError: Another publisher may have used the id.
    """
    ack = _find_stored(context, attempt, deadline)
    if ack is None:
        raise _still_unknown(
            batch, attempt, error, "an id is in the stream already, perhaps from another message"
        ) from error
    return ack


def _find_stored(context: Context, attempt: BatchAttempt, deadline: Deadline) -> BatchAck | None:
    """
    Return the ack of an earlier attempt if the stream has its messages; None if unsure.

    Stored messages carry the id of their batch and have consecutive sequences.

    Args:
        context: Context of the batch.
        attempt: The last attempt.
        deadline: Deadline of the call.
    """
    engine, stream = attempt.engine, attempt.known.name
    size = engine.size
    for message in _own_messages(context, attempt, deadline):
        with contextlib.suppress(KeyError, ValueError):
            batch_id = message.headers[names.BATCH_ID]
            first = message.sequence - int(message.headers[names.BATCH_SEQUENCE]) + 1
            ack = BatchAck(stream, first + size - 1, batch_id, size, first, duplicate=True)
            engine.found_stored(ack)
            return ack
    return None


def _own_messages(
    context: Context, attempt: BatchAttempt, deadline: Deadline
) -> Iterator[StoredMessage]:
    """
    Yield the last messages of the subjects of the last and of the first message, if the batch or an
    earlier attempt has stored them.
    """
    items = attempt.items()
    for subject in dict.fromkeys((items[-1][0], items[0][0])):
        # A message that cannot be read, or that another publisher wrote, proves nothing.
        with contextlib.suppress(errors.JetSyncError):
            message = leader_get(
                context, attempt.known.name, {"last_by_subj": subject.decode()}, deadline
            )
            if message.headers.get(names.BATCH_ID, "") in attempt.engine.ids:
                yield message


def _still_unknown(
    batch: AtomicBatch, attempt: BatchAttempt | None, certain: Exception, reason: str | None = None
) -> BatchOutcomeUnknownError:
    """Return the error of a batch whose last attempt failed after one with unknown outcome."""
    assert attempt is not None
    attempt.engine.in_doubt()
    error = BatchOutcomeUnknownError(
        attempt.items()[-1][0].decode(),
        batch_id=attempt.id,
        # A batch without ids is not sent again after an unknown outcome.
        has_message_ids=True,
        reason="an earlier attempt got no answer, and "
        + (reason or f"the last one failed: {certain}"),
    )
    error.batch = batch
    error.__cause__ = certain
    return error
