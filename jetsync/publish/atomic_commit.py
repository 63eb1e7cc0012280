"""
Committing an atomic batch: which stream it goes to, how often it is sent, and what is known then.

What lives here is behind the methods of :class:`jetsync.AtomicBatch`. A batch is sent again, whole
and under another id, only where nothing of it can be stored, or where ids keep it from being stored
twice.
"""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any, Final, Literal, cast

import attrs

from jetsync import events
from jetsync._api.messages import leader_get
from jetsync._base.deadline import Deadline, Seconds
from jetsync._base.locks import Turn
from jetsync._io.outbox import NeverWrittenError
from jetsync._proto.batch import BatchState
from jetsync.errors import (
    AtomicPublishDisabledError,
    BatchIncompleteError,
    CallInSignalHandlerError,
    ConnectionLostError,
    DisconnectedError,
    DuplicateMessageIdError,
    InvalidArgumentError,
    InvalidTypeError,
    JetSyncError,
    NoStreamResponseError,
    NotSupportedError,
    TemporarilyUnavailableError,
    TooManyInflightError,
    WaitTimeoutError,
)
from jetsync.publish.atomic_staging import Staging, Wire
from jetsync.publish.atomic_wire import BatchRun
from jetsync.publish.capability import require_atomic
from jetsync.publish.errors import BatchOutcomeUnknownError
from jetsync.publish.retry import ask_retry, tell_retry
from jetsync.publish.shared_headers import BatchPlugins
from jetsync.values import headers as names
from jetsync.values.outbound import BatchAck
from jetsync.values.subjects import validate_subject
from jetsync.values.ttl import ttl_header

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from jetsync._api.context import Context
    from jetsync._api.known_streams import KnownStream
    from jetsync.publish.atomic import AtomicBatch
    from jetsync.publish.atomic_staging import BatchItem

ID_BYTES: Final = 64
"""Bytes of a batch id at most (ADR-50)."""

DISCARDED: Final = "it was discarded"
"""Why a batch takes no more messages."""

FAILED: Final = (BatchState.FAILED, BatchState.UNKNOWN)
"""How a batch has ended that can be sent again."""

_NO_STREAM: Final = (NoStreamResponseError, TemporarilyUnavailableError)
"""Errors of a stream that is not there, or has no leader at the moment."""

_GONE: Final = "the batch is gone with it; nothing of it is stored"

_SAFE_TO_REPEAT: Final = (
    *_NO_STREAM,
    TooManyInflightError,
    BatchIncompleteError,
    ConnectionLostError,
    DisconnectedError,
)
"""Errors after which nothing of a batch is stored, and another attempt may go well."""


def _batch_id(_: AtomicOptions, field: attrs.Attribute[Any], value: object) -> None:
    if value is None:
        return
    if not isinstance(value, str):
        raise InvalidTypeError("batch_id must be text", argument=field.name)
    if not value or len(value.encode("utf-8", "replace")) > ID_BYTES:
        # An empty one would make servers store the messages one by one.
        raise InvalidArgumentError(f"batch_id must have 1 to {ID_BYTES} bytes", argument=field.name)
    if not value.isprintable() or value != value.strip():
        raise InvalidArgumentError("batch_id has blanks or control characters", argument=field.name)


def _ttl(_: AtomicOptions, __: attrs.Attribute[Any], value: Any) -> None:
    if value is not None:
        ttl_header(value)


@attrs.frozen(kw_only=True)
class AtomicOptions:
    """
    How a batch behaves.
    """

    batch_id: str | None = attrs.field(default=None, validator=_batch_id)
    ack_first: bool = True
    ack_every: int = 0
    ttl: Seconds | Literal["never"] | None = attrs.field(default=None, validator=_ttl)
    timeout: float
    """Seconds for each call."""
    broken_servers: bool = False
    retries: int = 0
    """How often a batch that no stream took is sent again."""
    retry_wait: float = 0.25
    """Seconds before each of these."""


class AtomicCommit:
    """
    The state of an atomic batch, and the steps of committing it.
    """

    def __init__(self, context: Context, options: AtomicOptions) -> None:
        self._context = context
        self._options = options
        self._lock = threading.RLock()
        """Held while one call uses the batch, but not while plugins run, nor during a commit."""

        self._id = options.batch_id or context.connection.new_batch_id()
        self._plugins = BatchPlugins(context.plugins)
        self._ids: set[str] = set()
        """The ids of all attempts."""

        self._run: BatchRun | None = None
        """The batch on the wire; None before its first message."""

        self._ack: BatchAck | None = None
        self._over: str | None = None
        """Why the batch takes no more messages."""

        self._lost = False
        """Whether it ended before its user had it committed or discarded."""

        self._complete = False
        """Whether a commit was tried: all its messages are known."""

        self._committing: object = None
        """Stands for the call that commits it at this moment."""

        self._unknown = False
        """Whether an attempt may have come through that nobody saw come through."""

        self._discarded = False
        """Whether somebody asked for a discard that is not done yet."""

    def _prepared(self, item: Any) -> Any:
        """Return what stands for a message, as the plugins leave it."""
        return self._plugins.prepared(item, self._begun)

    def _begun(self) -> events.BatchCommitOperation:
        """Describe the batch as it begins."""
        return events.BatchCommitOperation(
            kind="atomic", batch_id=self._id, size=0, timeout=self._options.timeout
        )

    def _turn(self, deadline: Deadline) -> Turn:
        """Return the right to use the batch, within *deadline*; a context manager."""
        return Turn(self._lock, deadline, "the batch")

    @contextlib.contextmanager
    def _then_discard(self) -> Iterator[None]:
        """Discard the batch at the end of the block, if another call asked for that meanwhile."""
        try:
            yield
        finally:
            self._discard_if_asked()

    def _discard_if_asked(self) -> None:
        """
        Do what ``discard`` asked for; never waits.

        If another call uses the batch, that one does it as it ends.
        """
        while self._discarded:
            try:
                with Turn(self._lock, Deadline.after(0.0)):
                    self._lost = False
                    if self._over is None:
                        self._over = DISCARDED
                        if self._run is not None:
                            self._run.discard()
                    self._discarded = False
            except (WaitTimeoutError, CallInSignalHandlerError):
                return

    def _lose(self, error: BaseException) -> None:
        """Take no more messages, as adding one went wrong; the lock is held."""
        self._lost = True
        if self._run is not None and not isinstance(error, Exception):
            # The server may have it, and would keep it for 10 s.
            self._run.discard()
        self._end(error)

    def _end(self, error: BaseException) -> None:
        self._over = str(error) or type(error).__name__
        if self._run is not None:
            self._run.end()

    def _stream(self, subject: str, deadline: Deadline) -> KnownStream:
        """Ask for the stream of a subject, and raise unless it takes batches."""
        validate_subject(subject)
        streams, version = self._context.streams, self._context.server.version
        broken = self._options.broken_servers
        known = streams.find(subject, deadline)
        try:
            require_atomic(known, version, broken_servers=broken)
        except (NotSupportedError, AtomicPublishDisabledError):
            # It may have been allowed since the stream was asked.
            known = streams.find(subject, deadline, fresh=True)
            require_atomic(known, version, broken_servers=broken)
        return known

    def _staging(self, known: KnownStream) -> Staging:
        return Staging(self._context, known, Wire(self._id).head_size, self._options.ttl)

    def _start(self, known: KnownStream, staging: Staging) -> BatchRun:
        """Set up what sends single messages to the stream."""
        options = self._options
        run = BatchRun(
            self._context,
            known,
            self._id,
            staging,
            whole=False,
            ack_first=options.ack_first,
            ack_every=options.ack_every,
        )
        if run.watch is not None:
            # For a batch that is forgotten rather than ended.
            weakref.finalize(self, run.watch.close).atexit = False
        self._ids.add(self._id)
        self._run = run
        return run

    def _send_whole(
        self, known: KnownStream, staging: Staging, items: Sequence[BatchItem], deadline: Deadline
    ) -> BatchRun:
        """Send all messages, and the commit, in one go."""
        run = BatchRun(self._context, known, self._id, staging, whole=True)
        entries = run.engine.commit(*items)
        self._ids.add(self._id)
        # Only now, as what is sent again is taken from here.
        self._run = run
        return run.send(entries, deadline)

    # The commit, and what plugins have a say in.

    def _commit(
        self,
        begin: Callable[[], tuple[Callable[[], BatchRun], int]],
        subject: str | None,
        deadline: Deadline,
        *,
        stream: str | None = None,
    ) -> BatchAck:
        """
        Commit as the only call that uses the batch, without its lock while plugins run.

        Args:
            begin: Called with the lock held. Returns what sends the batch, and its size, or raises
                and leaves the batch as it is.
            subject: The subject of the last message, where there is one at the commit.
            deadline: Of the whole call.
            stream: The stream's name, where it is known before there is a run.
        """
        mine = object()
        try:
            with self._then_discard(), self._turn(deadline):
                try:
                    send, size = begin()
                    self._committing = mine
                    self._over = "it was committed"
                    self._complete = True
                except BaseException as error:
                    if not isinstance(error, Exception):
                        # Ctrl-C: who knows how far it got.
                        self._lose(error)
                    raise
            self._ack = ack = self._finish(send, size, subject, deadline, stream)
        except BaseException as error:
            if self._committing is mine:
                self._fail(error)
            raise
        finally:
            if self._committing is mine:
                self._committing = None
        if self._run is not None:
            self._run.end()
        return ack

    def _fail(self, error: BaseException) -> None:
        """Note that the commit failed, or a plugin after it had gone well."""
        run = self._run
        if run is not None:
            self._ack = run.engine.ack
            self._unknown |= run.engine.state is BatchState.UNKNOWN
            if run.engine.state is BatchState.OPEN:
                # Not even tried, as a plugin or Ctrl-C came between.
                run.discard()
        self._end(error)

    def _finish(
        self,
        send: Callable[[], BatchRun],
        size: int,
        subject: str | None,
        deadline: Deadline,
        stream: str | None,
    ) -> BatchAck:
        """Commit inside the plugins' wrappers; the lock is not held."""
        run, plugins = self._run, self._context.plugins
        operation = events.BatchCommitOperation(
            kind="atomic",
            batch_id=self._id,
            size=size,
            subject=subject,
            stream=stream if run is None else run.known.name,
            timeout=deadline.total,
        )
        if plugins.wrap_batch_commit is None:
            return self._attempts(send, operation, deadline)
        return plugins.wrap_batch_commit(
            operation, lambda: self._attempts(send, operation, deadline)
        )

    def _attempts(
        self,
        send: Callable[[], BatchRun],
        operation: events.BatchCommitOperation,
        deadline: Deadline,
    ) -> BatchAck:
        """Commit, as often as somebody asks for another try and it can do no harm."""
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
                return self._refused_by_id(error, deadline)
            except BatchOutcomeUnknownError as error:
                error.batch = cast("AtomicBatch", self)
                if not error.has_message_ids:
                    raise
                self._unknown, failure = True, error
            except JetSyncError as error:
                failure, refused = error, isinstance(error, _NO_STREAM)
                if isinstance(error, NoStreamResponseError):
                    failure = NoStreamResponseError(error.subject or "", attempts=attempt)
                elif isinstance(error, NeverWrittenError):
                    failure = gone()
                if self._unknown:
                    failure = self._still_unknown(failure)
                if not isinstance(error, _SAFE_TO_REPEAT):
                    if self._unknown:
                        raise failure from error
                    raise
                if (
                    isinstance(error, NeverWrittenError)
                    and self._run is not None
                    and self._run.whole
                    and not deadline.expired()
                ):
                    # Lost between two steps of this call; asking for the stream waits for the next
                    # connection.
                    send = self._again(deadline)
                    continue
            elapsed = deadline.total - deadline.remaining()
            delay = self._delay(
                attrs.evolve(operation, elapsed=elapsed), failure, attempt, refused=refused
            )
            if delay is None or delay >= deadline.remaining():
                raise failure
            tell_retry(
                self._context.plugins,
                operation.name,
                operation.subject,
                failure,
                attempts=attempt,
                delay=delay,
                stream=operation.stream,
            )
            time.sleep(delay)
            attempt += 1
            if self._run is not None:
                send = self._again(deadline)

    def _delay(
        self,
        operation: events.BatchCommitOperation,
        error: Exception,
        attempt: int,
        *,
        refused: bool,
    ) -> float | None:
        """
        Return the seconds until the next attempt, None to give up.

        *refused* is whether no stream took the batch.
        """
        retry, options = self._context.plugins.retry, self._options
        if retry is not None:
            return ask_retry(retry, operation, error, attempt)
        return options.retry_wait if refused and attempt <= options.retries else None

    def _refused_by_id(self, error: DuplicateMessageIdError, deadline: Deadline) -> BatchAck:
        """Return the ack of an attempt that had come through unseen, or raise what is known."""
        if not self._unknown or self._run is None:
            raise error
        # Either that is so, or somebody else has used an id.
        ack = self._stored_before(self._run, deadline)
        if ack is None:
            raise self._still_unknown(
                error, "an id of it is in the stream already, and whose is not to be seen"
            ) from error
        self._unknown = False
        return ack

    def _stored_before(self, run: BatchRun, deadline: Deadline) -> BatchAck | None:
        """
        Return the ack of an earlier attempt if it is stored, None if that cannot be told.

        Messages keep the id of their batch, and stand in the stream next to each other.
        """
        engine, stream = run.engine, run.known.name
        size = len(engine.items)
        for subject in dict.fromkeys((engine.items[-1][0], engine.items[0][0])):
            # What cannot be read, or is somebody else's by now, tells nothing.
            with contextlib.suppress(JetSyncError, KeyError, ValueError):
                request = {"last_by_subj": subject.decode()}
                message = leader_get(self._context, stream, request, deadline)
                batch_id = message.headers.get(names.BATCH_ID, "")
                if batch_id in self._ids:
                    place = int(message.headers[names.BATCH_SEQUENCE])
                    first = message.sequence - place + 1
                    ack = BatchAck(stream, first + size - 1, batch_id, size, first, duplicate=True)
                    engine.state, engine.ack = BatchState.COMMITTED, ack
                    return ack
        return None

    def _still_unknown(
        self, certain: Exception, reason: str | None = None
    ) -> BatchOutcomeUnknownError:
        """
        Make the error of a batch whose last attempt failed, and an earlier one is unknown.

        Only a batch with ids is sent again then.
        """
        run = self._run
        assert run is not None
        run.engine.state = BatchState.UNKNOWN
        error = BatchOutcomeUnknownError(
            run.engine.items[-1][0].decode(),
            batch_id=run.id,
            has_message_ids=True,
            reason="an earlier attempt got no answer, and "
            + (reason or f"the last one failed: {certain}"),
        )
        error.batch = cast("AtomicBatch", self)
        error.__cause__ = certain
        return error

    def _again(self, deadline: Deadline) -> Callable[[], BatchRun]:
        """Return what sends everything as a batch of its own."""

        def send() -> BatchRun:
            before = self._run
            assert before is not None
            self._unknown |= before.engine.state is BatchState.UNKNOWN
            before.leave()
            items = before.engine.items
            known = self._stream(items[0][0].decode(), deadline)
            if self._id == before.id:
                self._id = self._context.connection.new_batch_id()
            before.staging.check_again(known, Wire(self._id).head_size)
            return self._send_whole(known, before.staging, items, deadline)

        return send


def gone() -> ConnectionLostError:
    """Make the error of a batch whose connection is gone before its commit was sent."""
    return ConnectionLostError(reason=_GONE)
