"""
Atomic batches: messages of one stream that are stored together or not at all (ADR-50).

A batch belongs to one connection and to one leader of its stream. If either goes away before the
commit, the server stores nothing. The outcome is unknown only if the answer to a commit is lost.
jetsync checks that the stream supports batches before it sends anything.
"""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal

import attrs

from jetsync import errors, events
from jetsync._base.deadline import Deadline
from jetsync._base.dropped import when_dropped
from jetsync._base.pickling import refuse_copy
from jetsync._base.turn import Turn
from jetsync._proto.batch import AtomicBatchEngine, BatchPhase
from jetsync._proto.outcome import Again, Cause, outcome_of
from jetsync.publish.atomic_attempt import (
    BatchAttempt,
    ack_of_earlier_attempt,
    retryable_failure,
)
from jetsync.publish.atomic_messages import BatchMessages, for_each
from jetsync.publish.hooks import batch_hooks
from jetsync.publish.retry import wait_for_retry
from jetsync.publish.ttl_floor import report_raised_ttl
from jetsync.values.outbound import OutboundMessage, final_message, message_iterator, subject_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from typing_extensions import Self

    from jetsync._api.context import Context
    from jetsync._base.deadline import Seconds
    from jetsync.publish.atomic_messages import AtomicOptions, BatchItem
    from jetsync.values.headers import HeadersInput
    from jetsync.values.outbound import Expect, Payload
    from jetsync.values.pub_acks import BatchAck

__all__ = ["AtomicBatch"]

USED: Final = "another call on the batch"

# Errors of the stream lookup for the first message. They close the batch, because it must not be
# committed without that message.
_LOOKUP_FAILED: Final = (
    errors.NoStreamResponseError,
    errors.TemporarilyUnavailableError,
    errors.RequestTimeoutError,
    errors.TransportError,
)

_OPEN: Final = BatchPhase.OPEN


class AtomicBatch:
    """
    Messages that a stream stores together or not at all (ADR-50).

    :meth:`JetStream.atomic_batch` returns one. The end of its ``with`` block commits the batch. If
    the block raises, the batch is discarded and nothing is stored. If an ``add`` failed and closed
    the batch but the block continued, the end of the block raises BatchClosedError. An empty batch
    is not committed, and ``ack`` stays None.

    Readers of the stream see none of the messages before the commit. Afterwards the messages are in
    the stream in the order in which they were added, with no other messages between them.

    The server drops a batch if it receives no message for 10 s. Servers before 2.14 drop it 10 s
    after its first message. jetsync discards an open batch when the client closes, when the
    interpreter exits, or when your program drops the last reference to the batch. In the last case
    it emits a ResourceWarning. Any thread may add messages, one call at a time. If Ctrl-C or
    another exception of a signal handler interrupts a call that adds a message, the batch has the
    whole message or none of it. If the next call raises BatchClosedError, you can only discard the
    batch.
    """

    # Threads: any. The thread of a commit waits without the turn; its phase keeps other calls out.
    # Locks: the batch turn, `_turn`, protects all fields, but `add` stages messages without it.
    # `discard` only sets `_discarding` if another call has the turn. Plugins run without it.

    __reduce__ = refuse_copy

    def __init__(
        self, context: Context, options: AtomicOptions, creator: tuple[str, int] | None = None
    ) -> None:
        self._context = context
        self._connection = context.connection
        self._lane = context.lane
        self._options = options
        self._engine: AtomicBatchEngine[BatchItem] = AtomicBatchEngine(
            options.batch_id or context.connection.new_batch_id()
        )
        self._turn = Turn(USED)
        self._hooks = batch_hooks(context.plugins)
        # Where the application created the batch.
        self._creator = creator
        # The messages of the attempt. Before the first attempt, each call has its own: the first
        # valid message decides which stream the batch belongs to.
        self._messages: BatchMessages
        # The current attempt, None before the first message.
        self._attempt: BatchAttempt | None = None
        # Whether a discard was requested and not carried out yet. Set without the turn.
        self._discarding = False

    def __repr__(self) -> str:
        phase = self._engine.phase
        ended = phase in {BatchPhase.FAILED, BatchPhase.BROKEN, BatchPhase.DISCARDED}
        state = "closed" if ended else phase.value
        return f"<AtomicBatch {self.id} {state} size={self.size}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        phase = self._engine.phase
        if kind is not None:
            self.discard()
        elif not self._discarding and (
            phase is BatchPhase.BROKEN
            or (phase is _OPEN and (self._attempt is not None or self._turn.unfinished))
        ):
            # Raises if an add has failed or was interrupted. Leaving the block without an error
            # would suggest that the batch was stored.
            self.commit()

    @property
    def id(self) -> str:
        """The id of the batch. :meth:`resend` gives the batch a new one."""
        return self._engine.batch_id

    @property
    def size(self) -> int:
        """The number of messages added."""
        return 0 if self._attempt is None else self._attempt.size

    @property
    def ack(self) -> BatchAck | None:
        """The server's confirmation, or None before the commit."""
        return self._engine.ack

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

        The first call looks up the stream of its subject, unless jetsync knows it already. The
        server checks expectations, ids and limits of the stream at the commit. After an error that
        closes the batch, the stream has none of its messages, except after an AtomicityError.

        Args:
            subject: The subject. All subjects of a batch must belong to one stream.
            data: The payload; text is sent as UTF-8.
            headers: The headers. jetsync does not change this object.
            msg_id: Id for duplicate detection. If the stream already knows one id of the batch, it
                refuses the whole batch.
            ttl: Time-to-live; None uses that of the batch.
            expect: Conditions for storing the batch. Use ``last_sequence`` only on the first
                message and ``last_subject_sequence`` only on the first message of a subject.
                Batches do not support ``last_msg_id``.
            timeout: Seconds for this call; None uses the timeout of the batch.

        Raises:
            InvalidArgumentError, InvalidTypeError: The message is invalid, or not allowed in this
                batch. The batch is unchanged.
            WrongLastSequenceError, DuplicateMessageIdError, BatchTooLargeError: The message
                conflicts with an earlier message of the batch, or the batch has as many messages as
                the server accepts. The batch is unchanged.
            NotSupportedError, AtomicPublishDisabledError: The server or the stream does not support
                batches. Nothing was sent.
            NoStreamResponseError, RequestTimeoutError: No stream responded, or not in time. The
                batch is closed. If jetsync was only looking for the stream of a later message, the
                batch is unchanged.
            ApiError, PermissionDeniedError: The server refused this message or an earlier one. The
                batch is closed.
            ConnectionLostError, DisconnectedError: The batch is closed.
            AtomicityError: The server stored the message immediately and not as part of the batch,
                although it had announced support for batches. The batch is closed.
            BatchClosedError: The batch is closed.
            PluginError: A plugin vetoed the message. The batch is unchanged.
        """
        attempt = self._attempt
        # Most messages are plain pairs, which cost less to create and to encode.
        is_plain = headers is None and msg_id is None and ttl is None and expect is None
        if (
            attempt is not None
            and is_plain
            and timeout is None
            and self._hooks is None
            and attempt.stage(subject, data)
        ):
            return
        deadline = Deadline.after(self._options.timeout if timeout is None else timeout)
        self._lane.check()
        item: Any = (subject, data)
        if not is_plain:
            item = OutboundMessage(subject, data, headers, msg_id, ttl, expect)
        if self._hooks is not None:
            item = self._hooks.prepared(item, self._operation)
        try:
            self._turn.run(deadline, self._add, item, deadline)
        finally:
            if self._discarding:
                self._discard_now()

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
        Store the batch, with a final message if a subject is given.

        After an error, the stream has none of the messages. The exceptions are
        BatchOutcomeUnknownError and AtomicityError.

        Args:
            subject: Subject of the final message; None adds no message.
            data: Its payload.
            headers: This and the next three arguments are as for :meth:`add`.
            msg_id: Id for duplicate detection.
            ttl: Time-to-live.
            expect: Conditions for storing the batch.
            timeout: Seconds for this call; None uses the timeout of the batch.

        Raises:
            WrongLastSequenceError, DuplicateMessageIdError, StreamFullError, ...: The stream
                refused the batch.
            BatchIncompleteError: The server dropped the batch, for example after 10 s without a
                message.
            PermissionDeniedError, MessageTooLargeError: The server refused an earlier message of
                the batch.
            BatchOutcomeUnknownError: No answer arrived. The stream has either all messages or none.
            InvalidArgumentError: The batch is empty, or the final message cannot be sent. The batch
                is unchanged.
            AtomicityError: According to the answer, the messages were not stored as a batch.
            NoStreamResponseError, ConnectionLostError, DisconnectedError, RequestTimeoutError: The
                stream or the connection was not available, or the time was up before the commit was
                sent.
            BatchClosedError: The batch is closed.
        """
        deadline = Deadline.after(self._options.timeout if timeout is None else timeout)
        self._lane.check()
        item: Any = final_message(subject, data, headers, msg_id, ttl, expect)
        if item is not None and self._hooks is not None:
            item = self._hooks.prepared(item, self._operation)
        return self._commit(partial(self._begin_commit, item, deadline), deadline, subject)

    def discard(self) -> None:
        """
        Discard the batch. The stream stores none of its messages, unless a commit has begun.

        Can be called repeatedly, from any thread and from a signal handler, and never waits. If
        another call is using the batch, that call discards it when it ends. In a forked child
        process the call does nothing, because the batch belongs to the parent.
        """
        if self._lane.forked:
            return
        self._discarding = True
        self._discard_now()

    def resend(self, *, timeout: Seconds | None = None) -> BatchAck:
        """
        Send all messages again and commit them, after a commit that failed.

        After an unknown outcome every message needs an id. The stream then stores the batch once,
        whichever attempt arrived. If an earlier attempt was stored, ``duplicate`` is set in the
        returned ack. The server refuses a batch if the stream already knows one of its ids, whether
        an earlier attempt or another publisher used that id. To tell these cases apart, jetsync
        reads the newest message on the subject of the batch's last message, and then the newest on
        the subject of its first. A stored message carries the id of its batch. The outcome stays
        unknown if neither of them is from this batch. Ids protect only within the duplicate window
        of the stream.

        Args:
            timeout: Seconds for this call; None uses the timeout of the batch.

        Raises:
            InvalidArgumentError: The outcome is unknown and a message has no id.
            ConflictingUseError: The batch cannot be sent again: another call is committing it, none
                of its commits failed, an ``add`` failed, or the server stored its messages one by
                one.
            BatchOutcomeUnknownError: As for :meth:`commit`. Also raised if the stream already has
                an id of the batch and jetsync cannot tell whether this batch stored it.
            ApiError, ...: As for :meth:`commit`.
        """
        deadline = Deadline.after(self._options.timeout if timeout is None else timeout)
        self._lane.check()
        return self._commit(partial(self._begin_resend, deadline), deadline)

    def _publish(self, items: Sequence[Any], deadline: Deadline) -> BatchAck:
        """Add all messages and commit."""
        if not items:
            raise errors.InvalidArgumentError(
                "a batch needs at least one message", argument="messages"
            )
        if self._hooks is not None:
            items = for_each(partial(self._hooks.prepared, operation=self._operation), items)
        first = ""
        if self._context.plugins.infos:
            (first,) = for_each(subject_of, items[:1])

        def send() -> None:
            self._messages = BatchMessages(self._context, self._options, self._engine.batch_id)
            self._send_whole(self._messages.admit_all(items, deadline), deadline)

        return self._store(send, deadline, size=len(items), first=first)

    # Steps of the calls above.

    def _operation(self) -> events.BatchCommitOperation:
        """Return the description of the batch that plugins get."""
        return events.BatchCommitOperation(
            kind="atomic", batch_id=self.id, size=0, timeout=self._options.timeout
        )

    def _admit(self, item: Any, deadline: Deadline) -> BatchItem:
        """
        Check and encode a message; the batch does not change.

        The headers of the message may be an object of the caller, whose methods raise any error.
        """
        if self._attempt is None:
            self._messages = BatchMessages(self._context, self._options, self._engine.batch_id)
        else:
            self._engine.check_room()
        return self._messages.admit(item, deadline)

    def _begin(self) -> BatchAttempt:
        """Start the batch, because its first message is valid."""
        attempt = BatchAttempt(self._context, self._engine, self._messages, self._options)
        when_dropped(self, f"atomic batch {attempt.id!r}", attempt.drop, creator=self._creator)
        self._connection.writers.add(self)
        self._attempt = attempt
        return attempt

    def _add(self, item: Any, deadline: Deadline) -> None:
        """Add a message that ``stage`` did not accept; in the turn."""
        if self._context.lane.outbox.writes_here():
            # This signal handler interrupted a write, so it cannot wait for that write.
            raise errors.CallInSignalHandlerError
        size, attempt = 0, self._attempt
        if attempt is not None:
            attempt.stop_staging()
        self._engine.check_open(discarding=self._discarding, interrupted=self._turn.unfinished)
        if attempt is not None:
            size = attempt.size
            abandoned = attempt.abandoned(deadline)
            if abandoned is not None:
                self._lose(abandoned)
                raise abandoned
        try:
            admitted = self._admit(item, deadline)
        except _LOOKUP_FAILED as error:
            if attempt is None:
                self._lose(error)
            raise
        try:
            added = self._turn.step(self._add_admitted, admitted, deadline)
        except errors.JetSyncError as error:
            if self.size > size:
                self._lose(error)
            raise
        added.allow_staging()

    def _add_admitted(self, admitted: BatchItem, deadline: Deadline) -> BatchAttempt:
        attempt = self._attempt or self._begin()
        attempt.add(admitted, deadline)
        return attempt

    def _send_whole(self, items: list[BatchItem], deadline: Deadline) -> None:
        """Send all messages and the commit in one go."""
        attempt = BatchAttempt(self._context, self._engine, self._messages)
        parts = self._engine.commit_all(items, attempt.limit)
        # Set before the write, because another attempt takes the messages from this one.
        self._attempt = attempt
        attempt.send(parts, deadline)

    def _resend(self, deadline: Deadline) -> None:
        """Send all messages and the commit again in one go, with a new batch id."""
        before = self._attempt
        assert before is not None
        before.end()
        if self.id == before.id:
            self._engine.repeat(self._connection.new_batch_id())
        items = before.items()
        self._messages.prepare_resend(self.id, items, deadline)
        self._send_whole(items, deadline)

    def _discard_now(self) -> None:
        """Carry out a discard. If another call is using the batch, that call does it at its end."""
        while self._discarding and self._turn.attempt(self._discard_in_turn):
            pass

    def _discard_in_turn(self) -> None:
        if self._engine.phase is _OPEN and self._attempt is not None:
            self._attempt.discard()
        self._engine.discarded()
        self._discarding = False

    def begin_finish(self) -> None:
        """Discard the batch if no other call uses it, because the client begins to close."""
        self._turn.attempt(self._discard_with_client)

    def finish(self, deadline: Deadline) -> None:
        """Discard the batch if it is open, because the client or the interpreter ends."""
        with contextlib.suppress(
            errors.WaitTimeoutError, errors.CallInSignalHandlerError, errors.ConflictingUseError
        ):
            self._turn.run(deadline, self._discard_with_client)

    def _discard_with_client(self) -> None:
        if self._engine.phase is _OPEN and self._attempt is not None:
            self._attempt.discard()
            self._lose(errors.ConnectionClosedError())

    def _lose(self, error: errors.JetSyncError) -> None:
        """Close the batch because of *error*; in the turn."""
        self._engine.lost(error)
        if self._attempt is not None:
            self._attempt.end()

    def _commit(
        self,
        begin: Callable[[], Callable[[], None]],
        deadline: Deadline,
        subject: str | None = None,
    ) -> BatchAck:
        """
        Commit a batch that other calls may use.

        Args:
            begin: Called in the turn. Returns a function that sends the batch, or
                raises and leaves the batch unchanged.
            deadline: Deadline of the call.
            subject: The subject of the final message, if the commit has one.
        """
        try:
            send = self._turn.run(deadline, begin)
            return self._store(send, deadline, subject)
        finally:
            if self._discarding:
                self._discard_now()

    def _begin_commit(self, item: Any, deadline: Deadline) -> Callable[[], None]:
        """Add the final message unless it is None, and return a function that sends the commit."""
        if self._attempt is not None:
            self._attempt.stop_staging()
        self._engine.check_open(discarding=self._discarding, interrupted=self._turn.unfinished)
        final: tuple[BatchItem, ...] = ()
        if item is not None:
            final = (self._admit(item, deadline),)
        elif self._attempt is None:
            raise errors.InvalidArgumentError("a batch needs at least one message")
        return self._turn.step(self._end_messages, final, deadline)

    def _begin_resend(self, deadline: Deadline) -> Callable[[], None]:
        """Return a function that sends the batch again."""
        safe = self._attempt is not None and self._attempt.all_have_ids
        # Plugins see the id of the attempt, so it is chosen before they are called.
        self._engine.begin_resend(self._connection.new_batch_id(), safe=safe)
        return partial(self._resend, deadline)

    def _end_messages(self, final: tuple[BatchItem, ...], deadline: Deadline) -> Callable[[], None]:
        """Add the final message, if there is one, and return a function that sends the commit."""
        return (self._attempt or self._begin()).commit(final, deadline)

    def _store(
        self,
        send: Callable[[], None],
        deadline: Deadline,
        subject: str | None = None,
        *,
        size: int = 0,
        first: str = "",
    ) -> BatchAck:
        """
        Send the batch inside the wrapper hooks of plugins. Not in the turn.

        Args:
            send: Sends the batch.
            deadline: Deadline of the call.
            subject: The subject of the final message, if the commit has one.
            size: The number of messages, if *send* also adds them.
            first: The subject of the first message, likewise.
        """
        try:
            commit = partial(self._send_until_stored, send, deadline)
            plugins, attempt = self._context.plugins, self._attempt
            if plugins.infos:
                streams, epoch = self._context.streams, self._context.lane.epoch
                known = streams.kept(first, epoch) if attempt is None else attempt.known
                operation = attrs.evolve(
                    self._operation(),
                    size=self.size or size,
                    timeout=deadline.total,
                    subject=subject,
                    stream=None if known is None else known.name,
                )
                commit = partial(commit, operation)
                if plugins.enter_batch_commit is not None:
                    commit = partial(plugins.enter_batch_commit(operation).run, commit)
            ack = commit()
            attempt = self._attempt
            assert attempt is not None
            attempt.end()
            for ttl_subject, ttl in self._messages.ttls:
                report_raised_ttl(self._context, attempt.known.config, ttl_subject, ttl)
        except BaseException as error:
            # After Ctrl-C, too, the batch has to know whether it may be sent again.
            self._commit_failed(error)
            raise
        return ack

    def _commit_failed(self, error: BaseException) -> None:
        """Close the batch after *error*. A plugin may have raised it after the commit."""
        attempt = self._attempt
        if attempt is not None:
            if self._engine.ending is None:
                attempt.discard()
            attempt.end()
        self._engine.commit_failed(error)

    def _send_until_stored(
        self,
        send: Callable[[], None],
        deadline: Deadline,
        operation: events.BatchCommitOperation | None = None,
    ) -> BatchAck:
        """
        Commit, and retry while that is safe and the options or a plugin ask for it.

        Args:
            send: Makes the first attempt.
            deadline: Deadline of all attempts together.
            operation: The operation for plugins; None without plugins.
        """
        number, options = 1, self._options
        while True:
            try:
                send()
                ack = self._engine.ack
                assert ack is not None
                return ack
            except errors.DuplicateMessageIdError as error:
                rule = outcome_of(Cause.OWN_CONDITION, sent=True, earlier=self._engine.earlier)
                if rule.again is not Again.LOOK or self._attempt is None:
                    raise
                return ack_of_earlier_attempt(error, self, self._attempt, self._context, deadline)
            except errors.JetSyncError as error:
                failure, rule = retryable_failure(
                    error, self, self._attempt, number, earlier=self._engine.earlier
                )
            attempt = self._attempt
            is_whole = attempt is not None and attempt.whole and not deadline.expired()
            # The lookup of the stream waits for the next connection.
            if not (rule.repeats_whole_batch and is_whole):
                by_rule = rule.counts_batch and number <= options.retries
                wait_for_retry(
                    self._context,
                    operation,
                    failure,
                    deadline,
                    attempt=number,
                    delay=options.retry_wait if by_rule else None,
                )
                number += 1
            if attempt is not None:
                send = partial(self._resend, deadline)


def publish_batch(
    context: Context,
    messages: Iterable[Any],
    options: AtomicOptions,
    deadline: Deadline,
) -> BatchAck:
    """Store messages together or not at all; see :meth:`jetsync.JetStream.publish_batch`."""
    items = list(message_iterator(messages))
    batch = AtomicBatch(context, options)
    return batch._publish(items, deadline)  # noqa: SLF001 - the class is in this module.
