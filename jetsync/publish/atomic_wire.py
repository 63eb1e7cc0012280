"""
One batch on its way over one connection: writing, waiting for answers, knowing what they mean.

A batch that is sent again is another run, under another id.
"""

from __future__ import annotations

import copy
import time
from functools import partial
from typing import TYPE_CHECKING, Final

from jetsync._base.deadline import Deadline
from jetsync._io.connection import ClosedInFlightError
from jetsync._io.mailbox import Waiter
from jetsync._io.outbox import NeverWrittenError
from jetsync._proto.batch import AtomicBatchEngine, BatchState, Entry
from jetsync.errors import (
    ApiError,
    BatchIncompleteError,
    BatchTooLargeError,
    ConnectionClosedError,
    ConnectionLostError,
    DisconnectedError,
    PermissionDeniedError,
    ProtocolError,
    PublishError,
    RequestTimeoutError,
)
from jetsync.publish.abandoned import AbandonWatch
from jetsync.publish.atomic_staging import Wire
from jetsync.publish.capability import MARKER_LEVEL
from jetsync.publish.errors import BatchOutcomeUnknownError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jetsync._api.context import Context
    from jetsync._api.known_streams import KnownStream
    from jetsync.publish.atomic_staging import BatchItem, Staging

BLOCK_BYTES: Final = 1 << 20
"""Bytes of one write: 1 MiB. A larger batch is written in pieces, so that it is not held twice."""

IDLE_LIMIT: Final = 10.0
"""Seconds after which servers give up an idle batch, unless an operator changed it (ADR-50)."""

DENIAL_WAIT: Final = 0.25
"""Seconds to wait for why a first message got no answer, once the last one has got one."""


class BatchRun:
    """
    A batch under one id; not synchronised.

    Args:
        context: Where it goes.
        known: The stream, and the connection on which it was asked.
        batch_id: The id.
        staging: What checks its messages.
        whole: Whether all of it is sent in one go. The answer to its first message is then read,
            but not waited for.
        ack_first, ack_every: See :class:`AtomicBatchEngine`.
    """

    def __init__(
        self,
        context: Context,
        known: KnownStream,
        batch_id: str,
        staging: Staging,
        *,
        whole: bool,
        ack_first: bool = True,
        ack_every: int = 0,
    ) -> None:
        self.known = known
        self.staging = staging
        self.id = batch_id
        self.engine: AtomicBatchEngine[BatchItem] = AtomicBatchEngine(
            batch_id,
            hold_back=known.level < MARKER_LEVEL,
            ack_first=ack_first and not whole,
            ack_every=0 if whole else ack_every,
            limit=context.streams.batch_limit,
        )
        streams = context.streams
        self.watch = (
            None
            if whole or not streams.may_listen(known)
            else AbandonWatch(
                context.connection, known.name, batch_id, partial(streams.learn_denial, known)
            )
        )
        self.whole = whole
        self._context = context
        self._wire = Wire(batch_id)
        self._opening: Waiter | None = None
        """The answer to the first message, where that is not waited for."""

        self._asked: Entry[BatchItem] | None = None
        """The last message whose answer was asked for."""

        self._forgotten = False
        """Whether the server was told to forget the batch."""

        self._first_at = self._last_at = 0.0
        """When the first and the last message were sent."""

        self._idle = 0.0
        """Seconds between the last message and the one before it."""

    def leave(self) -> None:
        """Listen to nothing any more; safe to repeat."""
        if self.watch is not None:
            self.watch.close()

    def end(self) -> None:
        """Note that nothing more of it will be sent, and leave."""
        if self.engine.state is BatchState.OPEN:
            self.engine.fail()
        self.leave()

    def discard(self) -> None:
        """End it, and have the server forget it; never waits."""
        self.end()
        engine = self.engine
        if engine.started and engine.state is BatchState.FAILED and not self._forgotten:
            self._forgotten = True
            # A gap makes the server forget the batch at once; it takes no more than 50 at a time
            # and would keep this one for 10 s.
            entry: Entry[BatchItem] = Entry(engine.next_sequence + 1, None)
            block = self._wire.block(entry, engine.items[-1])
            self._context.lane.answer(block, self.known.epoch)

    def _fail(self, error: BaseException) -> None:
        """Note that *error* came between, and free the server's place where it keeps the batch."""
        engine = self.engine
        if engine.state is BatchState.OPEN:
            if self._asked is None:
                engine.fail()
            else:
                engine.lost(self._asked)
        refused = isinstance(error, (ApiError, PublishError, PermissionDeniedError))
        if engine.state is BatchState.FAILED and not refused:
            self.discard()

    def abandoned(self) -> BatchIncompleteError | None:
        """Return the error of a batch that the server has given up, None if it has not said so."""
        reason = None if self.watch is None else self.watch.abandoned()
        if reason is None:
            return None
        return BatchIncompleteError(
            stream=self.known.name, reason=f"the server gave it up: {reason}"
        )

    def send_one(self, entry: Entry[BatchItem], deadline: Deadline) -> None:
        """Write one message of many, and wait for the answer if it asks for one."""
        if entry.asks or entry.sequence == 1:
            self.send((entry,), deadline)
            return
        self._last_at = time.monotonic()
        block = self._wire.block(entry, self.engine.items[-1])
        # Nobody waits for it: it goes out with what follows, or a moment later.
        try:
            self._context.lane.post(block, deadline.remaining(), lazy=True, epoch=self.known.epoch)
        except BaseException as error:
            self._fail(error)
            raise

    def send(self, entries: Sequence[Entry[BatchItem]], deadline: Deadline) -> BatchRun:
        """
        Write *entries*, wait for the answers that they ask for, and return this run.

        Raises what goes wrong, after the engine has learned of it.
        """
        engine, epoch = self.engine, self.known.epoch
        lane, block, last = self._context.lane, self._wire.block, engine.items[-1]
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
                opening = self._context.connection.router.register(self._opening)
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
                if size >= BLOCK_BYTES:
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
                self._context.connection.router.forget(opening)
        return self

    def _ask(self, entry: Entry[BatchItem], pieces: list[bytes], deadline: Deadline) -> None:
        """Write what is collected and *entry*, and wait for the answer to that one."""
        engine, wire, epoch = self.engine, self._wire, self.known.epoch
        last = engine.items[-1]
        target = (entry.item or last)[0]
        subject = target.decode()

        def build(reply: bytes) -> bytes:
            pieces.append(wire.block(entry, last, reply))
            return b"".join(pieces)

        self._asked = entry
        try:
            frame = self._context.connection.exchange(target, build, deadline, epoch)
        except (NeverWrittenError, DisconnectedError, PermissionDeniedError):
            engine.fail()
            raise
        except (RequestTimeoutError, ConnectionLostError, ClosedInFlightError) as error:
            if engine.lost(entry) is BatchState.UNKNOWN:
                raise self._unknown(subject, deadline, error) from error
            raise
        except ConnectionClosedError:
            engine.fail()
            raise
        except BaseException:
            # Ctrl-C, above all.
            engine.lost(entry)
            raise
        finally:
            pieces.clear()
        try:
            engine.answered(entry, frame, subject)
        except BatchTooLargeError as error:
            if error.limit is not None:
                self._context.streams.learn_batch_limit(error.limit, epoch)
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
        """Return the error that is the cause of this one, or this one with what is known of it."""
        opening = self._opening
        if opening is not None:
            # A refusal is read by the loop, which may be a moment behind.
            self._context.lane.wait(opening, Deadline.after(min(DENIAL_WAIT, deadline.remaining())))
            if opening.reply is not None:
                try:
                    self.engine.answered(Entry(1, None), opening.reply, subject)
                except (ApiError, PublishError) as cause:
                    return cause
            elif opening.failure is not None:
                return copy.copy(opening.failure)
        told = self.abandoned()
        if told is not None:
            return told
        early = self.known.level < MARKER_LEVEL
        idle = self._last_at - self._first_at if early else self._idle
        if idle < IDLE_LIMIT:
            return error
        since = "its first message" if early else "the message before"
        return BatchIncompleteError(
            code=error.code,
            err_code=error.err_code,
            description=error.description,
            stream=error.stream,
            reason=f"{idle:.1f} s have passed since {since}, and servers wait for {IDLE_LIMIT:g}",
        )
