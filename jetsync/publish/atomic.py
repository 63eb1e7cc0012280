"""
Atomic batches: messages of one stream that are stored together or not at all (ADR-50).

A batch lives on one connection and on one leader of its stream; whatever interrupts either, nothing
of it is stored. Only the loss of the answer to a commit leaves its outcome unknown. Nothing is sent
before the stream has been asked whether it takes batches.
"""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any, Final, Literal

import attrs

from jetsync import events
from jetsync._deadline import Deadline, as_seconds
from jetsync._outbox import NeverWrittenError
from jetsync._proto.batch import BatchState
from jetsync.errors import (
    BatchClosedError,
    BatchIncompleteError,
    BatchOutcomeUnknownError,
    ConflictingUseError,
    ConnectionLostError,
    DisconnectedError,
    DuplicateMessageIdError,
    InvalidArgumentError,
    InvalidTypeError,
    NoStreamResponseError,
    TooManyInflightError,
    WaitTimeoutError,
)
from jetsync.outbound import BatchAck, OutboundMessage, coerce_outbound
from jetsync.publish._batch_run import BatchRun
from jetsync.publish._capability import require_atomic
from jetsync.publish._staging import Staging, Wire
from jetsync.ttl import ttl_header
from jetsync.typing import Seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from typing_extensions import Self

    from jetsync._session import JetStreamSession
    from jetsync.outbound import Expect
    from jetsync.publish._staging import Staged
    from jetsync.typing import HeadersInput, Payload

__all__ = ["AtomicBatch"]

ID_BYTES: Final = 64
"""Bytes of a batch id at most (ADR-50)."""

_SAFE_TO_REPEAT: Final = (
    NoStreamResponseError,
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


class AtomicBatch:
    """
    Messages that a stream stores together, or none of them (ADR-50).

    Made by :meth:`JetStream.atomic_batch`. Leaving its ``with`` block commits; an exception in the
    block discards it and nothing is stored. Nothing of it can be seen in the stream before the
    commit, and after it the messages stand there in the order in which they were added, with no
    other between them.

    A server gives up a batch that is idle for 10 s; servers before 2.14 give it up 10 s after its
    first message. Any thread may add; messages are taken one at a time. After Ctrl-C in a call the
    batch is over.
    """

    def __init__(self, session: JetStreamSession, options: AtomicOptions) -> None:
        self._session = session
        self._options = options
        self._lock = threading.Lock()
        self._id = options.batch_id or session.core.new_batch_id()
        self._run: BatchRun | None = None
        """The batch on the wire; None before its first message."""

        self._ack: BatchAck | None = None
        self._over: str | None = None
        """Why the batch takes no more messages."""

    def __repr__(self) -> str:
        state = "committed" if self._ack is not None else "closed" if self._over else "open"
        return f"<AtomicBatch {self._id} {state} size={self.size}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self.discard()
        elif self._over is None and self.size:
            self.commit()

    @property
    def id(self) -> str:
        """The batch's id; sending it again gives it another one."""
        return self._id

    @property
    def size(self) -> int:
        """How many messages were added."""
        return 0 if self._run is None else len(self._run.engine.items)

    @property
    def ack(self) -> BatchAck | None:
        """The server's confirmation; None before the commit."""
        return self._ack

    def add(
        self,
        subject: str,
        data: Payload = b"",
        *,
        headers: HeadersInput | None = None,
        msg_id: str | None = None,
        ttl: Seconds | Literal["never"] | None = None,
        expect: Expect | None = None,
        timeout: Seconds | None = None,
    ) -> None:
        """
        Add a message.

        The first one asks the server about its stream, unless that is known from before. What a
        stream checks against its content (expectations, ids, limits) it checks at the commit.

        Args:
            subject: The subject; all subjects of a batch belong to one stream.
            data: The payload; text is sent as UTF-8.
            headers: Headers; never changed.
            msg_id: Id by which the stream refuses duplicates: one in the batch refuses all of it.
            ttl: Time-to-live; None is that of the batch.
            expect: Under which conditions to store the batch. ``last_sequence`` only on the first
                message, ``last_subject_sequence`` only on the first message of a subject,
                ``last_msg_id`` not at all.
            timeout: Seconds for the call; None is the batch's.

        Raises:
            InvalidArgumentError, InvalidTypeError: The message cannot be sent, or not in this
                batch; the batch is as it was before. So it is after WrongLastSequenceError,
                DuplicateMessageIdError and BatchTooLargeError for what the batch itself tells.
            NotSupportedError, AtomicPublishDisabledError: The stream takes no batches; nothing was
                sent.
            ApiError, NoStreamResponseError: The server refused the batch; nothing of it is stored.
            ConnectionLostError, RequestTimeoutError: The batch is lost; nothing of it is stored.
            AtomicityError: The server does not know batches, against what it said.
            BatchClosedError: The batch is over.
            PluginError: A plugin vetoed the message; the batch is as it was before.
        """
        deadline = self._deadline(timeout)
        self._session.core.check()
        item = self._prepared(_item(subject, data, headers, msg_id, ttl, expect))
        with self._locked(deadline):
            self._check_open()
            run, staged = self._admit(item, deadline)
            entry = run.engine.add(staged)
            if entry is not None:
                try:
                    run.send_one(entry, deadline)
                except BaseException as error:
                    # Ctrl-C, too: a message of it may be missing.
                    self._end(error)
                    raise

    def commit(
        self,
        subject: str | None = None,
        data: Payload | None = None,
        *,
        headers: HeadersInput | None = None,
        msg_id: str | None = None,
        ttl: Seconds | Literal["never"] | None = None,
        expect: Expect | None = None,
        timeout: Seconds | None = None,
    ) -> BatchAck:
        """
        Store the batch, with one more message where a subject is given.

        Args:
            subject: Of the last message; None adds none.
            data: Its payload.
            headers: As for :meth:`add`, and so are the next three.
            msg_id: Its id.
            ttl: Its time-to-live.
            expect: Its conditions.
            timeout: Seconds for the call; None is the batch's.

        Raises:
            WrongLastSequenceError, DuplicateMessageIdError, MaxMessagesError, ...: The stream
                refused the batch; nothing of it is stored.
            BatchIncompleteError: The server does not have it any more, as after 10 s without a
                message; nothing of it is stored.
            BatchOutcomeUnknownError: No answer came: all of it is stored, or nothing.
            InvalidArgumentError: The batch is empty, or the last message cannot be sent; the batch
                is as it was before.
            AtomicityError: The answer says that the messages were not stored as a batch.
            NoStreamResponseError, ConnectionLostError, DisconnectedError: Nothing of it is stored.
            BatchClosedError: The batch is over.
        """
        deadline = self._deadline(timeout)
        self._session.core.check()
        if subject is None and any(
            each is not None for each in (data, headers, msg_id, ttl, expect)
        ):
            raise InvalidArgumentError("the last message needs a subject", argument="subject")
        last: tuple[Staged, ...] = ()
        if subject is not None:
            item = self._prepared(
                _item(subject, b"" if data is None else data, headers, msg_id, ttl, expect)
            )
        with self._locked(deadline):
            self._check_open()
            run = self._run
            if subject is not None:
                run, staged = self._admit(item, deadline)
                last = (staged,)
            if run is None or not (last or run.engine.items):
                raise InvalidArgumentError("a batch needs at least one message")
            entries = run.engine.commit(*last)
            # From here on the batch is this call's alone, and no lock is held while plugins run.
            self._over = "it was committed"
        return self._finish(lambda: run.send(entries, deadline), subject, deadline)

    def discard(self) -> None:
        """
        Give the batch up; nothing of it is stored. Safe to repeat, and never waits for the server.
        """
        with self._lock:
            if self._over is None:
                self._over = "it was discarded"
                if self._run is not None:
                    self._run.discard()

    def resend(self, timeout: Seconds | None = None) -> BatchAck:
        """
        Send all messages of a batch that failed once more, and commit it.

        After an unknown outcome this needs an id on every message. The stream then stores the batch
        once, whichever of the attempts came through; if an earlier one had, ``duplicate`` is set
        in the answer, which then cannot tell the sequences. Ids protect within the stream's
        duplicate window, and only if nobody else uses them.

        Args:
            timeout: Seconds for the call; None is the batch's.

        Raises:
            InvalidArgumentError: A message has no id, and the outcome is unknown.
            ConflictingUseError: The batch has not failed.
            BatchOutcomeUnknownError, ApiError, ...: As :meth:`commit`.
        """
        deadline = self._deadline(timeout)
        self._session.core.check()
        with self._locked(deadline):
            run = self._run
            if self._over is None or self._ack is not None or run is None:
                raise ConflictingUseError("only a batch that failed can be sent again")
            if run.engine.state is BatchState.OPEN:
                raise ConflictingUseError("another thread commits the batch")
            unknown = run.engine.state is BatchState.UNKNOWN
            if unknown and not run.staging.has_message_ids:
                raise InvalidArgumentError(
                    "sending a batch again whose outcome is unknown needs a msg_id on every message"
                )
            # Open, for other threads, as long as this call lasts.
            run.engine.state = BatchState.OPEN
        return self._finish(self._again(unknown, deadline), None, deadline, unknown=unknown)

    def publish(self, items: Sequence[Any], deadline: Deadline) -> BatchAck:
        """
        Add all messages and commit, in one write where they are not many megabytes.

        For the one call of ``publish_batch``.
        """
        if not items:
            raise InvalidArgumentError("a batch needs at least one message", argument="messages")
        if self._session.plugins.prepare is not None:
            items = [self._prepared(item) for item in items]
        run = self._begin(_subject_of(items[0]), deadline, whole=True)
        admit = run.staging.admit
        entries = run.engine.commit(*[admit(item, deadline) for item in items])
        self._over = "it was committed"
        return self._finish(lambda: run.send(entries, deadline), None, deadline)

    # Steps of the above.

    def _deadline(self, timeout: Seconds | None) -> Deadline:
        return Deadline.after(
            self._options.timeout if timeout is None else as_seconds(timeout, "timeout")
        )

    @contextlib.contextmanager
    def _locked(self, deadline: Deadline) -> Iterator[None]:
        lock = self._lock
        if not (lock.acquire(blocking=False) or lock.acquire(timeout=deadline.remaining())):
            raise WaitTimeoutError("another thread's use of the batch", deadline.total)
        try:
            yield
        finally:
            self._lock.release()

    def _end(self, error: BaseException) -> None:
        self._over = str(error) or type(error).__name__
        if self._run is not None:
            self._run.end()

    def _check_open(self) -> None:
        if self._over is not None:
            raise BatchClosedError(reason=self._over)
        error = None if self._run is None else self._run.abandoned()
        if error is not None:
            self._end(error)
            raise error

    def _prepared(self, item: Any) -> Any:
        prepare = self._session.plugins.prepare
        return item if prepare is None else prepare(coerce_outbound(item))

    def _admit(self, item: Any, deadline: Deadline) -> tuple[BatchRun, Staged]:
        """Check a message; the lock is held."""
        run = self._run
        if run is None:
            run = self._begin(_subject_of(item), deadline, whole=False)
        run.engine.check_room()
        return run, run.staging.admit(item, deadline)

    def _begin(
        self, subject: str, deadline: Deadline, *, whole: bool, staging: Staging | None = None
    ) -> BatchRun:
        """
        Ask for the stream, and set up what sends to it.

        With *staging* it is for messages that were checked before.
        """
        session, options = self._session, self._options
        known = session.streams.find(subject, deadline)
        require_atomic(known, session.server.version, broken_servers=options.broken_servers)
        run = BatchRun(
            session,
            known,
            self._id,
            staging or Staging(session, known, Wire(self._id).head_size, options.ttl),
            whole=whole,
            ack_first=options.ack_first,
            ack_every=options.ack_every,
        )
        if run.watch is not None:
            # For a batch that is forgotten rather than ended.
            weakref.finalize(self, run.watch.close).atexit = False
        self._run = run
        return run

    # The commit, and what plugins have a say in.

    def _finish(
        self,
        send: Callable[[], BatchRun],
        subject: str | None,
        deadline: Deadline,
        *,
        unknown: bool = False,
    ) -> BatchAck:
        """Commit inside the plugins' wrappers; the lock is not held."""
        run, plugins = self._run, self._session.plugins
        assert run is not None
        operation = events.BatchCommitOperation(
            kind="atomic",
            batch_id=run.id,
            size=len(run.engine.items),
            subject=subject,
            stream=run.known.name,
            timeout=deadline.total,
        )
        try:
            if plugins.wrap_batch_commit is None:
                ack = self._attempts(send, operation, deadline, unknown=unknown)
            else:
                ack = plugins.wrap_batch_commit(
                    operation, lambda: self._attempts(send, operation, deadline, unknown=unknown)
                )
        except BaseException as error:
            self._end(error)
            raise
        if self._run is not None:
            self._run.leave()
        self._ack = ack
        return ack

    def _attempts(
        self,
        send: Callable[[], BatchRun],
        operation: events.BatchCommitOperation,
        deadline: Deadline,
        *,
        unknown: bool,
    ) -> BatchAck:
        """
        Commit, as often as somebody asks for another try and it can do no harm.

        *unknown* is whether an attempt was made before whose outcome is.
        """
        attempt = 1
        run = self._run
        assert run is not None
        while True:
            failure: Exception
            try:
                run = send()
            except NeverWrittenError:
                if not run.whole or deadline.expired():
                    raise
                # Lost between two steps of this call; asking for the stream waits for the next one.
                send = self._again(unknown, deadline)
                continue
            except _SAFE_TO_REPEAT as error:
                failure = error
            except BatchOutcomeUnknownError as error:
                unknown, failure = True, error
                error.batch = self
                if not error.has_message_ids:
                    raise
            else:
                assert run.engine.ack is not None
                return run.engine.ack
            delay = self._delay(operation, failure, attempt)
            if delay is None or delay >= deadline.remaining():
                raise failure
            time.sleep(delay)
            attempt += 1
            send = self._again(unknown, deadline)

    def _delay(
        self, operation: events.BatchCommitOperation, error: Exception, attempt: int
    ) -> float | None:
        retry, options = self._session.plugins.retry, self._options
        if retry is not None:
            return retry(operation, error, attempt)
        if isinstance(error, NoStreamResponseError) and attempt <= options.retries:
            return options.retry_wait
        return None

    def _again(self, unknown: bool, deadline: Deadline) -> Callable[[], BatchRun]:  # noqa: FBT001
        """Return what sends everything as a batch of its own."""

        def send() -> BatchRun:
            before = self._run
            assert before is not None
            before.leave()
            items = before.engine.items
            self._id = self._session.core.new_batch_id()
            try:
                run = self._begin(
                    items[0][0].decode(), deadline, whole=True, staging=before.staging
                )
            except BaseException:
                before.engine.state = BatchState.UNKNOWN if unknown else BatchState.FAILED
                raise
            engine = run.engine
            entries = engine.commit(*items)
            try:
                run.send(entries, deadline)
            except DuplicateMessageIdError:
                if not unknown:
                    raise
                engine.state = BatchState.COMMITTED
                engine.ack = BatchAck(run.known.name, 0, run.id, len(items), duplicate=True)
            except BaseException:
                if unknown:
                    # A refusal says nothing of the attempt before.
                    engine.state = BatchState.UNKNOWN
                raise
            return run

        return send


def _subject_of(item: Any) -> str:
    return item[0] if isinstance(item, tuple) else coerce_outbound(item).subject


def _item(  # noqa: PLR0917 - the arguments of a message, as users give them.
    subject: str,
    data: Payload,
    headers: HeadersInput | None,
    msg_id: str | None,
    ttl: Seconds | Literal["never"] | None,
    expect: Expect | None,
) -> Any:
    """Return a message, as a pair where that says it all: it costs less to make and to check."""
    if headers is None and msg_id is None and ttl is None and expect is None:
        return subject, data
    return OutboundMessage(subject, data, headers, msg_id, ttl, expect)


def publish_batch(
    session: JetStreamSession, messages: Iterable[Any], options: AtomicOptions
) -> BatchAck:
    """Store messages together or not at all; see :meth:`jetsync.JetStream.publish_batch`."""
    deadline = Deadline.after(options.timeout)
    return AtomicBatch(session, options).publish(list(messages), deadline)
