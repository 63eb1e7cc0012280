"""
Atomic batches: messages of one stream that are stored together or not at all (ADR-50).

A batch lives on one connection and on one leader of its stream; whatever interrupts either, nothing
of it is stored. Only the loss of the answer to a commit leaves its outcome unknown. Nothing is sent
before the stream has been asked whether it takes batches.
"""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from jetsync._base.deadline import Deadline, as_seconds
from jetsync._io.outbox import NeverWrittenError
from jetsync._proto.batch import BatchState
from jetsync.errors import (
    BatchClosedError,
    ConflictingUseError,
    ForkedProcessError,
    InvalidArgumentError,
    InvalidTypeError,
)
from jetsync.publish.atomic_commit import (
    DISCARDED,
    FAILED,
    AtomicCommit,
    AtomicOptions,
    gone,
)
from jetsync.values.outbound import OutboundMessage, coerce_outbound, message_iterator
from jetsync.values.subjects import validate_subject

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from typing_extensions import Self

    from jetsync._api.context import Context
    from jetsync._base.deadline import Seconds
    from jetsync.publish.atomic_staging import BatchItem
    from jetsync.publish.atomic_wire import BatchRun
    from jetsync.values.headers import HeadersInput
    from jetsync.values.outbound import BatchAck, Expect, Payload

__all__ = ["AtomicBatch"]


class AtomicBatch(AtomicCommit):
    """
    Messages that a stream stores together, or none of them (ADR-50).

    Made by :meth:`JetStream.atomic_batch`. Leaving its ``with`` block commits; an exception in the
    block discards it and nothing is stored. Where an ``add`` lost the batch and the block went on
    all the same, leaving it raises BatchClosedError. Nothing of it can be seen in the stream before
    the commit, and after it the messages stand there in the order in which they were added, with
    no other between them. A block in which nothing is added commits nothing, and ``ack`` stays
    None.

    A server gives up a batch that is idle for 10 s; servers before 2.14 give it up 10 s after its
    first message. Any thread may add; messages are taken one at a time. After Ctrl-C in a call the
    batch is over.
    """

    def __repr__(self) -> str:
        state = "committed" if self._ack is not None else "closed" if self._over else "open"
        return f"<AtomicBatch {self._id} {state} size={self.size}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self.discard()
        elif self._lost:
            # Told already, to a caller who went on. What is left silently would look stored.
            raise BatchClosedError(reason=self._over)
        elif self._over is None and not self._discarded and self.size:
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
            ConnectionLostError, DisconnectedError, RequestTimeoutError: The batch is lost; nothing
                of it is stored.
            AtomicityError: The server does not know batches, against what it said.
            BatchClosedError: The batch is over.
            PluginError: A plugin vetoed the message; the batch is as it was before.
        """
        deadline = self._deadline(timeout)
        self._context.connection.check()
        item = self._prepared(_item(subject, data, headers, msg_id, ttl, expect))
        with self._then_discard(), self._turn(deadline):
            self._check_open()
            self._check_kept()
            taken = False
            try:
                run, staged = self._admit(item, deadline)
                taken = True
                entry = run.engine.add(staged)
                if entry is not None:
                    run.send_one(entry, deadline)
            except NeverWrittenError:
                lost = gone()
                self._lose(lost)
                raise lost from None
            except BaseException as error:
                # Ctrl-C, too: a message of it may be missing.
                if taken or not isinstance(error, Exception):
                    self._lose(error)
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
            NoStreamResponseError, ConnectionLostError, DisconnectedError, RequestTimeoutError:
                Nothing of it is stored: the stream, the connection or the time was gone before
                the commit was sent.
            BatchClosedError: The batch is over.
        """
        deadline = self._deadline(timeout)
        self._context.connection.check()
        if subject is None and any(
            each is not None for each in (data, headers, msg_id, ttl, expect)
        ):
            raise InvalidArgumentError("the last message needs a subject", argument="subject")
        if subject is not None:
            item = self._prepared(
                _item(subject, b"" if data is None else data, headers, msg_id, ttl, expect)
            )

        def begin() -> tuple[Callable[[], BatchRun], int]:
            self._check_open()
            run = self._run
            last: tuple[BatchItem, ...] = ()
            if subject is not None:
                run, staged = self._admit(item, deadline)
                last = (staged,)
            if run is None or not (last or run.engine.items):
                raise InvalidArgumentError("a batch needs at least one message")
            entries = run.engine.commit(*last)
            return partial(run.send, entries, deadline), len(run.engine.items)

        return self._commit(begin, subject, deadline)

    def discard(self) -> None:
        """
        Give the batch up; nothing of it is stored, unless a commit of it has begun.

        Safe to repeat, and from any thread or signal handler: it never waits. If another call uses
        the batch at that moment, the batch is over as soon as that call ends. Does nothing in a
        forked child, as the batch is its parent's.
        """
        try:
            self._context.connection.check_process()
        except ForkedProcessError:
            return
        self._discarded = True
        self._discard_if_asked()

    def resend(self, timeout: Seconds | None = None) -> BatchAck:
        """
        Send all messages of a batch whose commit failed once more, and commit it.

        After an unknown outcome this needs an id on every message. The stream then stores the batch
        once, whichever of the attempts came through; if an earlier one had, ``duplicate`` is set
        in the answer. To tell that from an id that somebody else used, the last message on the
        subject of the batch's last message, or of its first, is read: it has the id of its batch.
        If somebody has written to both since, or the messages are gone, the outcome stays unknown.
        Ids protect within the stream's duplicate window.

        Args:
            timeout: Seconds for the call; None is the batch's.

        Raises:
            InvalidArgumentError: A message has no id, and the outcome is unknown.
            ConflictingUseError: No commit of it has failed, or the server stored its
                messages one by one.
            BatchOutcomeUnknownError: As :meth:`commit`, or an id of the batch is in the stream
                already, and it cannot be told whether with this batch.
            ApiError, ...: As :meth:`commit`.
        """
        deadline = self._deadline(timeout)
        self._context.connection.check()

        def begin() -> tuple[Callable[[], BatchRun], int]:
            run = self._run
            if self._committing is not None:
                raise ConflictingUseError("another call commits the batch")
            if self._lost and not self._complete:
                raise ConflictingUseError("build the batch anew: its messages are not all known")
            if not self._complete or run is None or run.engine.state not in FAILED:
                raise ConflictingUseError("only a batch whose commit failed can be sent again")
            self._unknown |= run.engine.state is BatchState.UNKNOWN
            if self._unknown and not run.staging.has_message_ids:
                raise InvalidArgumentError(
                    "sending a batch again whose outcome is unknown needs a msg_id on every message"
                )
            # Now, so that plugins are told of the id that it goes out with.
            self._id = self._context.connection.new_batch_id()
            return self._again(deadline), len(run.engine.items)

        return self._commit(begin, None, deadline)

    def _publish(self, items: Sequence[Any], deadline: Deadline) -> BatchAck:
        """
        Add all messages and commit, in one write where they are not many megabytes.

        For the one call of ``publish_batch``.
        """
        if not items:
            raise InvalidArgumentError("a batch needs at least one message", argument="messages")
        if self._plugins.active:
            prepared: list[Any] = []
            with _numbered(prepared.__len__):
                prepared.extend(map(self._prepared, items))
            items = prepared
        with _numbered(lambda: 0):
            first = _subject_of(items[0])
            validate_subject(first)
        kept = self._context.streams.kept(first, self._context.lane.epoch)

        def send() -> BatchRun:
            known = self._stream(first, deadline)
            staging = self._staging(known)
            admit = staging.admit
            with _numbered(lambda: staging.count):
                staged = [admit(item, deadline) for item in items]
            return self._send_whole(known, staging, staged, deadline)

        stream = None if kept is None else kept.name
        return self._commit(lambda: (send, len(items)), None, deadline, stream=stream)

    # Steps of the above.

    def _deadline(self, timeout: Seconds | None) -> Deadline:
        return Deadline.after(
            self._options.timeout if timeout is None else as_seconds(timeout, "timeout")
        )

    def _check_open(self) -> None:
        if self._over is not None or self._discarded:
            raise BatchClosedError(reason=self._over or DISCARDED)

    def _check_kept(self) -> None:
        """Raise if the server has given the batch up; the lock is held."""
        error = None if self._run is None else self._run.abandoned()
        if error is not None:
            self._lose(error)
            raise error

    def _admit(self, item: Any, deadline: Deadline) -> tuple[BatchRun, BatchItem]:
        """Check a message; the lock is held."""
        run = self._run
        if run is not None:
            run.engine.check_room()
            return run, run.staging.admit(item, deadline)
        known = self._stream(_subject_of(item), deadline)
        staging = self._staging(known)
        # Which stream the batch belongs to is settled by the first message that is good.
        staged = staging.admit(item, deadline)
        return self._start(known, staging), staged


@contextlib.contextmanager
def _numbered(number: Callable[[], int]) -> Iterator[None]:
    """Have errors about a message of ``publish_batch`` say which one it is, counted from 0."""
    try:
        yield
    except (InvalidArgumentError, InvalidTypeError) as error:
        error.args = (f"messages[{number()}]: {error}",)
        raise


def _subject_of(item: Any) -> str:
    plain = type(item) is tuple and len(item) == 2
    return item[0] if plain else coerce_outbound(item).subject


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


def publish_batch(context: Context, messages: Iterable[Any], options: AtomicOptions) -> BatchAck:
    """Store messages together or not at all; see :meth:`jetsync.JetStream.publish_batch`."""
    deadline = Deadline.after(options.timeout)
    items = list(message_iterator(messages))
    return AtomicBatch(context, options)._publish(items, deadline)  # noqa: SLF001 - of this module.
