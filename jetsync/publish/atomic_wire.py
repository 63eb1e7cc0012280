"""
One attempt to send an atomic batch over one connection: writing, waiting and reading the answers.

A retry uses another :class:`BatchRun` with another id.
"""

from __future__ import annotations

import copy
import time
from functools import partial
from typing import TYPE_CHECKING, Final

from jetsync._io.connection import was_sent
from jetsync._io.mailbox import Waiter
from jetsync._proto.batch import AtomicBatchEngine, BatchState, Entry
from jetsync.errors import (
    ApiError,
    BatchIncompleteError,
    BatchTooLargeError,
    NoRespondersError,
    NoStreamResponseError,
    PermissionDeniedError,
    ProtocolError,
    PublishError,
    RequestTimeoutError,
    TransportError,
)
from jetsync.publish.abandoned import AbandonWatch
from jetsync.publish.capability import MARKER_LEVEL
from jetsync.publish.errors import BatchOutcomeUnknownError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jetsync._api.context import Context
    from jetsync._api.known_streams import KnownStream
    from jetsync._base.deadline import Deadline
    from jetsync.publish.atomic_staging import BatchItem, Staging, Wire

# A batch with more bytes is written in pieces of this size, to avoid a second copy in memory.
WRITE_BYTES: Final = 1 << 20

# Seconds after which the server drops an idle batch, unless its operator changed it (ADR-50).
IDLE_LIMIT: Final = 10.0

# Seconds to wait for a permission error about the first message, once the last one is answered.
DENIAL_WAIT: Final = 0.25


class BatchRun:
    """
    Writes the messages of a batch under one id; not thread-safe.

    Args:
        context: Context of the batch.
        known: The stream, looked up on the connection that the batch uses.
        wire: Makes the frames, with the id of the attempt.
        staging: Checks the messages of the batch.
        whole: Whether :meth:`send` gets the complete batch. The first message then asks for an
            answer, but the call does not wait for it.
        ack_first, ack_every: See :class:`AtomicBatchEngine`.
    """

    def __init__(
        self,
        context: Context,
        known: KnownStream,
        wire: Wire,
        staging: Staging,
        *,
        whole: bool,
        ack_first: bool = False,
        ack_every: int = 0,
    ) -> None:
        streams = context.streams
        self.known = known
        self.staging = staging
        batch_id = wire.batch_id
        self.id: str = batch_id
        self.whole = whole
        self.engine: AtomicBatchEngine[BatchItem] = AtomicBatchEngine(
            batch_id,
            hold_back=known.level < MARKER_LEVEL,
            ack_first=ack_first,
            ack_every=ack_every,
            limit=streams.batch_limit,
        )
        self.watch: AbandonWatch | None = None
        if not whole and streams.may_listen(known):
            self.watch = AbandonWatch(
                context.connection, known.name, batch_id, partial(streams.learn_denial, known)
            )
        self._connection = context.connection
        self._streams = streams
        self._lane = context.lane
        self._wire = wire
        # Receives the answer to the first message if the call does not wait for it.
        self._opening: Waiter | None = None
        # The latest message that asked for an answer.
        self._asked: Entry[BatchItem] | None = None
        # Whether the server was told to drop the batch.
        self._dropped = False
        # When the first and the last message were sent, and the seconds before the last one.
        self._first_at = self._last_at = 0.0
        self._idle = 0.0

    def stop_listening(self) -> None:
        """Stop listening for the advisory. Can be called repeatedly."""
        if self.watch is not None:
            self.watch.close()

    def end(self) -> None:
        """Mark the batch as finished and stop listening for its advisory."""
        if self.engine.state is BatchState.OPEN:
            self.engine.state = BatchState.FAILED
        self.stop_listening()

    def discard(self) -> None:
        """End the batch and make the server drop it; never waits."""
        self.end()
        engine = self.engine
        if engine.started and engine.state is BatchState.FAILED and not self._dropped:
            self._dropped = True
            # The server drops a batch with a gap at once. Otherwise it keeps the batch for 10 s,
            # and it accepts no more than 50 at a time.
            entry: Entry[BatchItem] = Entry(engine.next_sequence + 1, None)
            block = self._wire.block(entry, engine.items[-1])
            self._lane.post_nowait(block, self.known.epoch)

    def _fail(self, error: BaseException) -> None:
        """Record a failed write or answer, and discard the batch if the server still has it."""
        engine = self.engine
        if engine.state is BatchState.OPEN:
            if self._asked is None:
                engine.state = BatchState.FAILED
            else:
                engine.lost(self._asked)
        refused = isinstance(error, (ApiError, PublishError, PermissionDeniedError))
        if engine.state is BatchState.FAILED and not refused:
            self.discard()

    def abandoned(self) -> BatchIncompleteError | None:
        """Return an error if the server has reported that it dropped the batch."""
        watch = self.watch
        reason = watch.abandoned() if watch is not None and watch.frames else None
        if reason is None:
            return None
        return BatchIncompleteError(
            stream=self.known.name, reason=f"the server dropped the batch: {reason}"
        )

    def add(self, staged: BatchItem, deadline: Deadline) -> None:
        """Write one message of the batch, and wait for the answer if it asks for one."""
        entry = self.engine.add(staged)
        if entry is None:
            return
        if entry.asks or entry.sequence == 1:
            self.send((entry,), deadline)
            return
        self._last_at = time.monotonic()
        block = self._wire.block(entry, staged)
        try:
            # No caller waits for this block, so it is sent with the next write or by the loop
            # shortly afterwards.
            self._lane.post(block, deadline.remaining(), lazy=True, epoch=self.known.epoch)
        except BaseException as error:
            self._fail(error)
            raise

    def send(self, entries: Sequence[Entry[BatchItem]], deadline: Deadline) -> BatchRun:
        """
        Write *entries*, wait for the answers that they ask for, and return this run.

        Errors are recorded in the engine before they are raised.
        """
        engine, epoch = self.engine, self.known.epoch
        lane, block, last = self._lane, self._wire.block, engine.items[-1]
        pieces: list[bytes] = [] if self.watch is None else [self.watch.take_line()]
        size = 0
        now = time.monotonic()
        self._first_at = self._first_at or now
        self._idle = now - (self._last_at or now)
        self._last_at = now
        opening = b""
        try:
            if self.whole and len(entries) > 1:
                self._opening = Waiter(engine.items[0][0])
                self._opening.epoch = epoch
                opening = self._connection.router.register(self._opening)
                pieces.append(block(entries[0], last, opening))
                entries = entries[1:]
            for entry in entries:
                if entry.asks:
                    self._ask(entry, pieces, deadline)
                    size = 0
                    continue
                piece = block(entry, last)
                pieces.append(piece)
                size += len(piece)
                if size >= WRITE_BYTES:
                    lane.write(b"".join(pieces), deadline, epoch)
                    pieces.clear()
                    size = 0
            if pieces:
                lane.post(b"".join(pieces), deadline.remaining(), lazy=True, epoch=epoch)
        except BaseException as error:
            self._fail(error)
            raise
        finally:
            if opening:
                self._connection.router.forget(opening)
        return self

    def _ask(self, entry: Entry[BatchItem], pieces: list[bytes], deadline: Deadline) -> None:
        """Write *pieces* and *entry*, and wait for the answer to *entry*."""
        engine, epoch = self.engine, self.known.epoch
        last = engine.items[-1]
        target, header, payload = self._wire.parts(entry, last)
        subject = target.decode()
        self._asked = entry
        try:
            frame = self._connection.exchange(
                target, header, payload, deadline, epoch=epoch, before=pieces
            )
        except NoRespondersError:
            engine.state = BatchState.FAILED
            raise NoStreamResponseError(subject) from None
        except (RequestTimeoutError, TransportError) as error:
            if not was_sent(error):
                engine.state = BatchState.FAILED
            elif engine.lost(entry) is BatchState.UNKNOWN:
                raise self._unknown(subject, deadline, error) from error
            raise
        except BaseException:
            # For example Ctrl-C.
            engine.lost(entry)
            raise
        finally:
            pieces.clear()
        try:
            engine.answered(entry, frame, subject)
        except BatchTooLargeError as error:
            if error.limit is not None:
                self._streams.learn_batch_limit(error.limit, epoch)
            raise
        except BatchIncompleteError as error:
            raise self._explained(error, subject, deadline) from None
        except ProtocolError as error:
            if engine.state is BatchState.UNKNOWN:
                raise self._unknown(subject, deadline, error) from error
            raise

    def _unknown(
        self, subject: str, deadline: Deadline, cause: Exception
    ) -> BatchOutcomeUnknownError:
        timed_out = isinstance(cause, RequestTimeoutError)
        return BatchOutcomeUnknownError(
            subject,
            batch_id=self.id,
            has_message_ids=self.staging.has_message_ids,
            timeout=deadline.total if timed_out else None,
            reason=None if timed_out else str(cause),
        )

    def _explained(
        self, error: BatchIncompleteError, subject: str, deadline: Deadline
    ) -> Exception:
        """Return the cause of *error* if it is known, or *error* with its likely reason."""
        opening = self._opening
        if opening is not None:
            # The loop thread reads permission errors, possibly slightly later than the answers.
            self._lane.wait(opening, deadline.at_most(DENIAL_WAIT))
            if opening.reply is not None:
                try:
                    self.engine.answered(Entry(1, None), opening.reply, subject)
                except (ApiError, PublishError) as cause:
                    return cause
            elif opening.failure is not None:
                return copy.copy(opening.failure)
        abandoned = self.abandoned()
        if abandoned is not None:
            return abandoned
        early = self.known.level < MARKER_LEVEL
        idle = self._last_at - self._first_at if early else self._idle
        if idle < IDLE_LIMIT:
            return error
        since = "its first message" if early else "the previous message"
        return BatchIncompleteError(
            code=error.code,
            err_code=error.err_code,
            description=error.description,
            stream=error.stream,
            reason=f"{idle:.1f} s have passed since {since}, and the server drops an idle batch"
            f" after {IDLE_LIMIT:g} s",
        )
