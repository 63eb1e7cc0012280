"""
Fast ingest: many messages into one stream, acknowledged by the hundred (ADR-50).

A fast publisher numbers its messages and keeps a bounded number of them in flight; the server says
every few hundred how far it has come. How errors come to light depends on the mode: with
``gap="fail"`` the first one ends the batch, and the next call raises it; with ``gap="ok"`` each is
reported to ``on_gap`` and the batch goes on.

Threads: one lock, which each call takes within its deadline and holds while it waits for room. The
code of users (``on_gap``, plugins, the iterable of ``add_many``) never runs with it held.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Literal

import attrs

from jetsync import events
from jetsync._base import log as _log
from jetsync._base.deadline import Deadline, Seconds
from jetsync._base.locks import Turn
from jetsync._proto.fastingest import Phase
from jetsync.errors import (
    BatchClosedError,
    CallInSignalHandlerError,
    InvalidArgumentError,
    WaitTimeoutError,
)
from jetsync.publish.encode import BLOCK_BYTES, BLOCK_MESSAGES
from jetsync.publish.fast_link import FastLink
from jetsync.publish.shared_headers import BatchPlugins
from jetsync.values.outbound import (
    BatchAck,
    Expect,
    OutboundMessage,
    message_iterator,
    with_ttl,
)

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import TracebackType

    from typing_extensions import Self

    from jetsync._api.context import Context
    from jetsync.values.headers import HeadersInput
    from jetsync.values.outbound import Payload

__all__ = ["FastPublisher", "FastStatistics"]

FLOW_LIMIT: Final = 500
"""Messages between two acks that servers give at most; more brings nothing (ADR-50)."""

FIRST_CHUNK: Final = 16
"""Messages taken from an iterable before it is known how large and how slow they are."""

CHUNK_TIME: Final = 0.05
"""Seconds for which messages of a slow iterable are collected at most, about."""

SHORT_TURN: Final = 0.1
"""Seconds that leaving by an exception waits for a call of another thread."""

_logger = _log.get_logger("jetsync.fast")


@attrs.frozen(kw_only=True)
class FastOptions:
    """
    How a fast publisher behaves.
    """

    flow: int = 500
    """Messages between two acks at most; servers give 500 at most."""

    max_outstanding_acks: int = 2
    """How many acks may be missing."""

    gap: Literal["fail", "ok"] = "fail"
    """What becomes of the batch when messages are lost or refused."""

    on_gap: Callable[[events.BatchGapEvent], object] | None = None
    ttl: Seconds | Literal["never"] | None = None
    """Time-to-live of messages that have none of their own."""

    timeout: float
    """Seconds for each call."""


@attrs.frozen
class FastStatistics:
    """
    What went through a fast publisher.
    """

    added: int
    """Messages that were sent."""

    acknowledged: int
    """Messages that the server has confirmed."""

    lost: int
    """Messages that are not stored, or not known to be."""

    pending: int
    """Messages of which nothing is known yet."""

    flow: int
    """Messages between two acks now; the server changes it."""

    batches: int
    """How many batches the server began; more than one where it forgot one."""

    pings: int
    """How often the server was asked where it is."""

    callback_errors: int
    """How often ``on_gap`` raised."""


class FastPublisher:
    """
    Put many messages into one stream, the fast way; use as a context manager.

    Any number of threads may share one; messages are stored in the order in which they were added.
    Leaving the context commits; leaving it by an exception ends the batch without waiting, and what
    was added before stays stored. A message whose ``msg_id`` the stream knows already is skipped by
    the server without a word, and counts as stored.
    """

    def __init__(self, context: Context, options: FastOptions) -> None:
        self._connection = context.connection
        self._options = options
        self._lock = threading.RLock()
        self._link = FastLink(
            context,
            self._lock,
            flow=options.flow,
            max_outstanding_acks=options.max_outstanding_acks,
            gap_ok=options.gap == "ok",
        )
        self._wrap_commit = context.plugins.wrap_batch_commit
        self._plugins = BatchPlugins(context.plugins)
        self._ack: BatchAck | None = None
        self._callback_errors = 0

    def __repr__(self) -> str:
        engine, ledger = self._link.engine, self._link.engine.ledger
        state = "closed" if self._link.closed else engine.phase.value
        name = self._link.stream.name
        stream = "" if name is None else f" {name}"
        return (
            f"<FastPublisher{stream} {state} added={ledger.added} "
            f"acknowledged={ledger.acknowledged} lost={ledger.lost}>"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        else:
            self._give_up()

    @property
    def ack(self) -> BatchAck | None:
        """The ack of the commit; None before it, and where nothing was added."""
        return self._ack

    @property
    def acknowledged(self) -> int:
        """
        How many messages the server has confirmed so far.

        It confirms some hundred at a time, and those that it skipped as duplicates, too.
        """
        return self._link.engine.ledger.acknowledged

    def statistics(self) -> FastStatistics:
        """Return the counters as they are now."""
        engine, ledger = self._link.engine, self._link.engine.ledger
        return FastStatistics(
            added=ledger.added,
            acknowledged=ledger.acknowledged,
            lost=ledger.lost,
            pending=ledger.flying,
            flow=engine.flow,
            batches=engine.batches,
            pings=engine.pings,
            callback_errors=self._callback_errors,
        )

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
    ) -> int:
        """
        Send a message and return its number, counted from 1 over the whole publisher.

        Waits while as many messages are in flight as the server allows; the first one waits for the
        server's answer. That the call returns says only that the message is on its way: what became
        of those before is raised by a later call, or reported to ``on_gap``. Any thread. After
        Ctrl-C the message may have been sent or not, and the batch notices if it was not.

        Args:
            subject: The subject; all messages have to belong to the stream of the first one.
            data: The payload; text is sent as UTF-8.
            headers: Headers; never changed.
            msg_id: Id by which the stream drops duplicates within its duplicate window.
            ttl: Time-to-live: seconds from 1 up, a ``timedelta`` or ``"never"`` (ADR-43); None is
                the publisher's.
            expect: Under which conditions to store it.
            timeout: Seconds for the whole call; None is the publisher's.

        Raises:
            InvalidArgumentError, InvalidTypeError: The message cannot be sent; nothing was.
            NotSupportedError, FastPublishDisabledError: The server or the stream cannot do it;
                nothing was sent.
            WaitTimeoutError: There was no room in time; nothing was sent, and it can be added
                again.
            NoStreamResponseError: The stream has no leader; this message is not stored.
            DisconnectedError, ConnectionClosedError: There is no connection; nothing was sent.
            BatchGapError, ApiError, PublishOutcomeUnknownError: A message added before was lost or
                refused, or what became of it is unknown; the batch is over. For the first message
                of a batch they are about itself.
            BatchClosedError: The batch was over before.
            PluginError: A plugin vetoed the message; nothing was sent.
        """
        self._connection.check()
        deadline = self._deadline(timeout)
        ttl = self._options.ttl if ttl is None else ttl
        # Most messages are no more than a pair, which costs less to make and to encode.
        item: Any = (subject, data)
        if headers is not None or msg_id is not None or ttl is not None or expect is not None:
            item = OutboundMessage(subject, data, headers, msg_id, ttl, expect)
        item = self._plugins.prepared(item, self._operation)
        link = self._link
        try:
            with Turn(self._lock, deadline):
                self._check_open()
                return link.add(item, deadline)
        finally:
            if link.untold:
                self._tell()

    def add_many(
        self,
        messages: Iterable[OutboundMessage | tuple[Any, ...]],
        *,
        timeout: Seconds | None = None,
    ) -> int:
        """
        Send what an iterable yields, in blocks, and return how many messages that were.

        The iterable is read lazily, a few hundred messages ahead at most, and fewer where it is
        slow, which may make one message wait for the next. Other threads may add between its
        blocks. An exception of the iterable, and a message that cannot be sent, are raised once all
        before it has been sent; ``statistics()`` says how many that were. Any thread.

        Args:
            messages: ``OutboundMessage``, ``(subject, data)`` or ``(subject, data, headers)``.
            timeout: Seconds to wait for room, each time; None is the publisher's.

        Raises: as :meth:`add`.
        """
        self._connection.check()
        source = message_iterator(messages)
        chunk: list[Any] = []
        count, size, more = 0, FIRST_CHUNK, True
        broken: BaseException | None = None
        while more or chunk:
            wanted = size - len(chunk)
            if more and wanted > 0:
                start, had = time.monotonic(), len(chunk)
                try:
                    # If the iterable raises, what it gave before is in the list.
                    chunk.extend(islice(source, wanted))
                except BaseException as error:  # noqa: BLE001 - raised once that has been sent.
                    broken = error
                seconds = time.monotonic() - start
                more = broken is None and len(chunk) - had == wanted
                veto = self._prepare(chunk, had)
                if veto is not None:
                    broken, more = veto, False
                size = _next_size(size, seconds, chunk)
            if chunk:
                # What there is no room for yet is filled up, so that blocks stay as large as acks.
                sent = self._add_block(chunk, timeout)
                count += sent
                del chunk[:sent]
        if broken is not None:
            try:
                raise broken
            finally:
                # An error that is raised here and known here would be a cycle.
                del broken
        return count

    def _add_block(self, chunk: list[Any], timeout: Seconds | None) -> int:
        """Send the first messages of *chunk*, and return how many."""
        deadline = self._deadline(timeout)
        try:
            with Turn(self._lock, deadline):
                self._check_open()
                return self._link.add_block(chunk, deadline)
        finally:
            if self._link.untold:
                self._tell()

    def _prepare(self, chunk: list[Any], first: int) -> Exception | None:
        """
        Do to messages, from *first* on, what the publisher and plugins do to each.

        Returns:
            Why one of them cannot be sent; it and those behind it are taken out then.
        """
        ttl, plugins = self._options.ttl, self._plugins
        if ttl is None and not plugins.active:
            return None
        for index in range(first, len(chunk)):
            try:
                message = chunk[index]
                if ttl is not None:
                    message = with_ttl(message, ttl)
                chunk[index] = plugins.prepared(message, self._operation)
            except Exception as error:  # noqa: BLE001 - raised once what is before it has been sent.
                del chunk[index:]
                return error
        return None

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
        End the batch, with a last message or without, and return its ack.

        The ack's ``size`` counts all messages but those that are known to be lost or refused, which
        its ``lost`` counts; duplicates that the server skipped are in ``size``. Its ``sequence`` is
        0 where the server has forgotten the batch (``gap="ok"``), with all accounted for. Once. Any
        thread. After Ctrl-C the outcome is unknown, and the publisher is closed.

        Args:
            subject: The last message's subject; None commits without one.
            data: Its payload.
            headers: As for :meth:`add`, and so the following ones.
            msg_id: Id by which the stream drops duplicates.
            ttl: Time-to-live.
            expect: Under which conditions to store it.
            timeout: Seconds for the whole call; None is the publisher's.

        Raises:
            InvalidArgumentError: There is nothing to commit.
            PublishOutcomeUnknownError: The commit was sent and not answered, whatever the reason:
                what was acknowledged is stored, what became of the rest is unknown.
            BatchGapError, ApiError, BatchClosedError, and others: as for :meth:`add`.
        """
        self._connection.check()
        deadline = self._deadline(timeout)
        item: OutboundMessage | None = None
        if subject is not None:
            ttl = self._options.ttl if ttl is None else ttl
            body = b"" if data is None else data
            item = OutboundMessage(subject, body, headers, msg_id, ttl, expect)
        elif any(value is not None for value in (data, headers, msg_id, ttl, expect)):
            raise InvalidArgumentError("a last message needs a subject", argument="subject")
        wrap = self._wrap_commit
        if wrap is None:
            return self._commit(item, deadline)
        size = self._link.engine.ledger.added + (item is not None)
        operation = self._operation(size, deadline.total, subject)
        return wrap(operation, lambda: self._commit(item, deadline))

    def _operation(
        self, size: int = 0, timeout: float | None = None, subject: str | None = None
    ) -> events.BatchCommitOperation:
        """Describe the batch to plugins; by default as it begins."""
        return events.BatchCommitOperation(
            kind="fast",
            stream=self._link.stream.name,
            batch_id=self._link.next_id,
            size=size,
            subject=subject,
            timeout=self._options.timeout if timeout is None else timeout,
        )

    def _commit(self, item: OutboundMessage | None, deadline: Deadline) -> BatchAck:
        if item is not None:
            item = self._plugins.prepared(item, self._operation)
        link = self._link
        try:
            with Turn(self._lock, deadline):
                self._check_open()
                link.commit(item, deadline)
                return self._finish()
        finally:
            if link.untold:
                self._tell()

    def _finish(self) -> BatchAck:
        """Return the ack of what was committed, and unsubscribe."""
        engine, ledger = self._link.engine, self._link.engine.ledger
        ack = self._ack = BatchAck(
            stream=engine.stream,
            sequence=engine.sequence,
            batch_id=ledger.batch_id,
            size=ledger.added - ledger.lost,
            lost=ledger.lost,
            duplicate=engine.duplicate,
        )
        self._link.leave()
        return ack

    def close(self, timeout: Seconds | None = None) -> None:
        """
        Commit if something was added and the batch is open; safe to repeat.

        Args:
            timeout: Seconds; None is the publisher's.

        Raises: as :meth:`commit`; also what made the batch fail, if no call has raised it yet.
        """
        if self._connection.state == "forked":
            # The lock's owner may be in the parent, and so is the connection.
            return
        deadline = self._deadline(timeout)
        link = self._link
        try:
            with Turn(self._lock, deadline):
                link.check_end(deadline)
                if link.engine.phase is Phase.DONE:
                    # Also where Ctrl-C came between the answer to the commit and its ack.
                    self._finish()
                if link.closed:
                    return
                if not link.engine.ledger.added:
                    link.abandon()
                    return
        finally:
            if link.untold:
                self._tell()
        self.commit(timeout=deadline.remaining())

    def _give_up(self) -> None:
        """End the batch without waiting, as its user has failed; raises nothing of its own."""
        if self._connection.state == "forked":
            return
        link = self._link
        try:
            with Turn(self._lock, Deadline.after(SHORT_TURN)):
                if not link.closed:
                    link.abandon()
        except (WaitTimeoutError, CallInSignalHandlerError):
            # Another call waits for room or an answer; it ends the batch when it is woken.
            link.stop()
        if link.untold:
            self._tell()

    def _deadline(self, timeout: Seconds | None) -> Deadline:
        if timeout is None:
            # Checked once, when the publisher was made.
            seconds = self._options.timeout
            return Deadline(time.monotonic() + seconds, seconds)
        return Deadline.after(timeout)

    def _check_open(self) -> None:
        """Raise if the publisher was closed; a failure is told by the link."""
        link = self._link
        if link.closed and link.engine.phase is not Phase.FAILED:
            reason = "it was committed" if link.engine.phase is Phase.DONE else None
            raise BatchClosedError("fast publisher", reason=reason)

    def _tell(self) -> None:
        """Report what got lost; the lock is not held."""
        link, on_gap = self._link, self._options.on_gap
        while link.untold:
            try:
                gap = link.untold.popleft()
            except IndexError:
                # Another thread took it.
                return
            event = events.BatchGapEvent(
                stream=link.stream.name or "",
                batch_id=gap.batch_id,
                first=gap.first,
                last=gap.last,
                error=gap.error,
            )
            self._connection.emit(event)
            if on_gap is not None:
                try:
                    on_gap(event)
                except Exception:
                    self._callback_errors += 1
                    _logger.exception(_log.CALLBACK_FAILED)


def _next_size(size: int, seconds: float, chunk: list[Any]) -> int:
    """Return how many messages to have at hand: a block's worth, and of a slow iterable fewer."""
    if seconds > CHUNK_TIME:
        size = int(size * CHUNK_TIME / seconds)
    else:
        size *= 2
    item = chunk[-1] if chunk else None
    # A guess is good enough: a block ends by its real size.
    data = item[1] if type(item) is tuple and len(item) > 1 else getattr(item, "data", None)
    each = len(data) if isinstance(data, (bytes, bytearray, str)) else 0
    return max(1, min(size, BLOCK_MESSAGES, BLOCK_BYTES // (each + 1) + 1))
