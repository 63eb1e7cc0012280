"""
Send an atomic batch, and send it again if its commit failed.

A batch is always sent again as a whole, with another id. This happens only if none of its messages
can be stored already, or if message ids prevent the stream from storing them twice.
"""

from __future__ import annotations

import contextlib
import time
import weakref
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import attrs

from jetsync._api.messages import leader_get
from jetsync._base.deadline import Deadline, Seconds
from jetsync._base.fields import check_count
from jetsync._proto.batch import BatchState
from jetsync.errors import (
    BatchIncompleteError,
    ConflictingUseError,
    ConnectionLostError,
    DisconnectedError,
    DuplicateMessageIdError,
    InvalidArgumentError,
    InvalidTypeError,
    JetSyncError,
    NoStreamResponseError,
    TemporarilyUnavailableError,
    TooManyInflightError,
)
from jetsync.publish.atomic_staging import Staging, Wire
from jetsync.publish.atomic_wire import BatchRun
from jetsync.publish.capability import find_capable, require_atomic
from jetsync.publish.errors import BatchOutcomeUnknownError
from jetsync.publish.retry import ask_retry, report_retry
from jetsync.values import headers as names
from jetsync.values.outbound import BatchAck, valid_subject
from jetsync.values.ttl import ttl_header

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from jetsync import events
    from jetsync._api.context import Context
    from jetsync._api.known_streams import KnownStream
    from jetsync.publish.atomic import AtomicBatch
    from jetsync.publish.atomic_staging import BatchItem

    FindStream: TypeAlias = Callable[[Deadline], KnownStream]

# Bytes of a batch id (ADR-50).
MAX_ID_BYTES: Final = 64

_NO_STREAM: Final = (NoStreamResponseError, TemporarilyUnavailableError)

# After these errors nothing of a batch is stored, and another attempt may succeed.
_SAFE_TO_REPEAT: Final = (
    *_NO_STREAM,
    TooManyInflightError,
    BatchIncompleteError,
    ConnectionLostError,
    DisconnectedError,
)


@attrs.frozen(kw_only=True)
class AtomicOptions:
    """The options of one atomic batch; see :meth:`jetsync.JetStream.atomic_batch`."""

    # Seconds for each call.
    timeout: float
    batch_id: str | None = None
    ack_first: bool = True
    ack_every: int = 0
    ttl: Seconds | Literal["never"] | None = None
    broken_servers: bool = False
    # How often a batch is sent again if no stream answered, and the seconds before each attempt.
    retries: int = 0
    retry_wait: float = 0.25

    def __attrs_post_init__(self) -> None:
        check_count("ack_every", self.ack_every, 0)
        check_count("retries", self.retries, 0)
        if self.batch_id is not None:
            _check_batch_id(self.batch_id)
        if self.ttl is not None:
            ttl_header(self.ttl)


def _check_batch_id(value: object) -> None:
    if not isinstance(value, str):
        raise InvalidTypeError(
            f"batch_id must be a str, not {type(value).__name__}", argument="batch_id"
        )
    # With an empty id the server would store the messages one by one.
    if not 0 < len(value.encode("utf-8", "replace")) <= MAX_ID_BYTES:
        raise InvalidArgumentError(
            f"batch_id must have 1 to {MAX_ID_BYTES} bytes", argument="batch_id"
        )
    if not value.isprintable() or value != value.strip():
        raise InvalidArgumentError(
            f"batch_id {value!r} has control characters or surrounding spaces",
            argument="batch_id",
        )


class BatchSender:
    """
    Sends one atomic batch: message by message or as a whole, and again after a failed commit.

    Not thread-safe. :class:`~jetsync.publish.atomic.AtomicBatch` makes one call at a time.

    Args:
        context: Context of the batch.
        options: Options of the batch.
        find_stream: Looks up the stream. None looks for the stream of the first message's subject.
    """

    def __init__(
        self, context: Context, options: AtomicOptions, find_stream: FindStream | None
    ) -> None:
        self._context = context
        self._options = options
        self._find_stream = find_stream
        self.id: str = options.batch_id or context.connection.new_batch_id()
        # The current attempt, None before the first message.
        self.run: BatchRun | None = None
        # The ids of all attempts.
        self._ids: set[str] = set()
        # Whether an earlier attempt may have been stored although no answer came.
        self._unknown = False

    # Adding messages.

    def find_stream(self, subject: str, deadline: Deadline) -> KnownStream:
        """Look up the stream of the batch, and raise unless it supports batches."""
        if self._find_stream is not None:
            return self._find_stream(deadline)
        return find_capable(
            partial(self._context.streams.find, subject, deadline),
            partial(
                require_atomic,
                context=self._context,
                broken_servers=self._options.broken_servers,
            ),
        )

    def stage(self, known: KnownStream, wire: Wire) -> Staging:
        """Return the object that checks and encodes the messages of the batch."""
        return Staging(self._context, known, wire.head_size, self._options.ttl)

    def admit(self, item: Any, deadline: Deadline) -> tuple[BatchRun, BatchItem]:
        """Check a message, and start the batch if it is the first one."""
        run = self.run
        if run is not None:
            run.engine.check_room()
            return run, run.staging.admit(item, deadline)
        known = self.find_stream(valid_subject(item), deadline)
        wire = Wire(self.id)
        staging = self.stage(known, wire)
        # The first valid message decides which stream the batch belongs to.
        staged = staging.admit(item, deadline)
        options = self._options
        run = BatchRun(
            self._context,
            known,
            wire,
            staging,
            whole=False,
            ack_first=options.ack_first,
            ack_every=options.ack_every,
        )
        if run.watch is not None:
            # Unsubscribe if the caller drops the batch without ending it.
            weakref.finalize(self, run.watch.close).atexit = False
        self._ids.add(self.id)
        self.run = run
        return run, staged

    # Committing.

    def begin_commit(self, item: Any, deadline: Deadline) -> Callable[[], BatchRun]:
        """
        Return a function that sends the rest of the batch, with a final message unless it is None.

        Raises:
            InvalidArgumentError: The batch is empty.
        """
        run = self.run
        final: tuple[BatchItem, ...] = ()
        if item is not None:
            run, staged = self.admit(item, deadline)
            final = (staged,)
        if run is None:
            raise InvalidArgumentError("a batch needs at least one message")
        return partial(run.send, run.engine.commit(*final), deadline)

    def begin_resend(self, deadline: Deadline) -> Callable[[], BatchRun]:
        """Return a function that sends the batch again, under the id that :attr:`id` has now."""
        run = self.run
        if run is None or run.engine.state not in {BatchState.FAILED, BatchState.UNKNOWN}:
            raise ConflictingUseError("only a batch whose commit failed can be sent again")
        self._unknown |= run.engine.state is BatchState.UNKNOWN
        if self._unknown and not run.staging.has_message_ids:
            raise InvalidArgumentError(
                "sending a batch again whose outcome is unknown needs a msg_id on every message"
            )
        # Plugins see the id of the attempt, so it is chosen before they are called.
        self.id = self._context.connection.new_batch_id()
        return partial(self._send_again, deadline)

    def send_whole(
        self,
        known: KnownStream,
        wire: Wire,
        staging: Staging,
        items: Sequence[BatchItem],
        deadline: Deadline,
    ) -> BatchRun:
        """Send all messages and the commit in one go."""
        run = BatchRun(self._context, known, wire, staging, whole=True)
        entries = run.engine.commit(*items)
        self._ids.add(self.id)
        # Another attempt takes the messages from this run, so it needs them from here on.
        self.run = run
        return run.send(entries, deadline)

    def _send_again(self, deadline: Deadline) -> BatchRun:
        """Send all messages and the commit in one go, as a batch of its own."""
        before = self.run
        assert before is not None
        self._unknown |= before.engine.state is BatchState.UNKNOWN
        before.stop_listening()
        items = before.engine.items
        known = self.find_stream(items[0][0].decode(), deadline)
        if self.id == before.id:
            self.id = self._context.connection.new_batch_id()
        wire = Wire(self.id)
        before.staging.check_again(known, wire.head_size)
        return self.send_whole(known, wire, before.staging, items, deadline)

    def commit(
        self,
        batch: AtomicBatch,
        send: Callable[[], BatchRun],
        deadline: Deadline,
        operation: events.BatchCommitOperation | None = None,
    ) -> BatchAck:
        """
        Commit, and try again as often as the options or a plugin ask for it and it is safe.

        Args:
            batch: The batch, which a BatchOutcomeUnknownError refers to.
            send: Makes the first attempt.
            deadline: Deadline of all attempts together.
            operation: The operation for plugins; None without plugins.
        """
        attempt = 1
        while True:
            failure: JetSyncError
            refused = False
            try:
                ack = send().engine.ack
                assert ack is not None
                self._unknown = False
                return ack
            except DuplicateMessageIdError as error:
                return self._after_duplicate(batch, error, deadline)
            except BatchOutcomeUnknownError as error:
                error.batch = batch
                if not error.has_message_ids:
                    raise
                self._unknown, failure = True, error
            except JetSyncError as error:
                failure, refused = error, isinstance(error, _NO_STREAM)
                if isinstance(error, NoStreamResponseError):
                    failure = NoStreamResponseError(error.subject or "", attempts=attempt)
                unsent = isinstance(error, ConnectionLostError) and not error.sent
                if unsent:
                    failure = connection_lost()
                if self._unknown:
                    failure = self._still_unknown(batch, failure)
                if not isinstance(error, _SAFE_TO_REPEAT):
                    if self._unknown:
                        raise failure from error
                    raise
                if unsent and self.run is not None and self.run.whole and not deadline.expired():
                    # The connection was lost between two steps of this call. The lookup of the
                    # stream waits for the next connection.
                    send = partial(self._send_again, deadline)
                    continue
            self._pause(failure, attempt, operation, deadline, refused=refused)
            attempt += 1
            if self.run is not None:
                send = partial(self._send_again, deadline)

    def _pause(
        self,
        failure: JetSyncError,
        attempt: int,
        operation: events.BatchCommitOperation | None,
        deadline: Deadline,
        *,
        refused: bool,
    ) -> None:
        """Wait before another attempt, or raise *failure* if there is no further attempt."""
        plugins, options = self._context.plugins, self._options
        delay = options.retry_wait if refused and attempt <= options.retries else None
        if operation is not None and plugins.retry is not None:
            elapsed = deadline.total - deadline.remaining()
            delay = ask_retry(
                plugins.retry, attrs.evolve(operation, elapsed=elapsed), failure, attempt
            )
        if delay is None or delay >= deadline.remaining():
            raise failure
        if operation is not None:
            report_retry(
                plugins,
                operation.name,
                operation.subject,
                failure,
                attempts=attempt,
                delay=delay,
                stream=operation.stream,
            )
        time.sleep(delay)

    def fail_commit(self) -> BatchAck | None:
        """Record that the commit failed, or a plugin after it, and return the ack if one came."""
        run = self.run
        if run is None:
            return None
        self._unknown |= run.engine.state is BatchState.UNKNOWN
        if run.engine.state is BatchState.OPEN:
            # A plugin or Ctrl-C prevented the first attempt.
            run.discard()
        return run.engine.ack

    def _after_duplicate(
        self, batch: AtomicBatch, error: DuplicateMessageIdError, deadline: Deadline
    ) -> BatchAck:
        """Return the ack of an earlier attempt whose answer was lost, or raise."""
        if not self._unknown:
            raise error
        # Another publisher may have used one of the ids.
        ack = self._find_stored(deadline)
        if ack is None:
            raise self._still_unknown(
                batch, error, "an id is in the stream already, perhaps from another message"
            ) from error
        self._unknown = False
        return ack

    def _find_stored(self, deadline: Deadline) -> BatchAck | None:
        """
        Return the ack of an earlier attempt if the stream has its messages; None if unsure.

        Stored messages carry the id of their batch and have consecutive sequences.
        """
        run = self.run
        assert run is not None
        engine = run.engine
        size = len(engine.items)
        for subject in dict.fromkeys((engine.items[-1][0], engine.items[0][0])):
            # A message that cannot be read, or that another publisher wrote, proves nothing.
            with contextlib.suppress(JetSyncError, KeyError, ValueError):
                request = {"last_by_subj": subject.decode()}
                message = leader_get(self._context, run.known.name, request, deadline)
                batch_id = message.headers.get(names.BATCH_ID, "")
                if batch_id in self._ids:
                    first = message.sequence - int(message.headers[names.BATCH_SEQUENCE]) + 1
                    ack = BatchAck(
                        run.known.name, first + size - 1, batch_id, size, first, duplicate=True
                    )
                    engine.state, engine.ack = BatchState.COMMITTED, ack
                    return ack
        return None

    def _still_unknown(
        self, batch: AtomicBatch, certain: Exception, reason: str | None = None
    ) -> BatchOutcomeUnknownError:
        """Return the error of a batch whose last attempt failed after one with unknown outcome."""
        run = self.run
        assert run is not None
        run.engine.state = BatchState.UNKNOWN
        error = BatchOutcomeUnknownError(
            run.engine.items[-1][0].decode(),
            batch_id=run.id,
            # A batch without ids is not sent again after an unknown outcome.
            has_message_ids=True,
            reason="an earlier attempt got no answer, and "
            + (reason or f"the last one failed: {certain}"),
        )
        error.batch = batch
        error.__cause__ = certain
        return error


def connection_lost() -> ConnectionLostError:
    """Return the error of a batch whose connection was lost before its commit was sent."""
    return ConnectionLostError(reason="the server dropped the batch, so nothing of it is stored")
