"""
Fast ingest: publish many messages to one stream, with one ack for a few hundred messages (ADR-50).

A fast publisher numbers its messages and keeps a bounded number of them in flight. The server
acknowledges a few hundred at a time. With ``gap="fail"`` the first error ends the batch, and the
next call raises it. With ``gap="ok"`` each error is reported to ``on_gap`` and the batch continues.
A lost connection and an interrupted call end the batch in both modes.

A call takes the turn of the publisher within its deadline and keeps it while it waits for room.
``add`` stages messages without it while there is room. No code of the user (``on_gap``,
plugins, the iterable of ``add_many``) runs in the turn.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

import attrs

from jetsync import errors, events
from jetsync._base.deadline import Deadline, Seconds
from jetsync._base.dropped import disown, when_dropped
from jetsync._base.fields import check_count
from jetsync._base.html import html_table
from jetsync._base.log import get_logger
from jetsync._base.pickling import refuse_copy
from jetsync._proto.fastingest import Phase
from jetsync.publish.fast_link import FastLink
from jetsync.publish.hooks import batch_hooks, refuse_staging
from jetsync.publish.ttl_floor import RaisedTtls
from jetsync.values.outbound import (
    Expect,
    OutboundMessage,
    coerce_outbound,
    final_message,
    message_iterator,
    subject_of,
    with_ttl,
)
from jetsync.values.ttl import ttl_header

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import TracebackType

    from typing_extensions import Self

    from jetsync._api.context import Context
    from jetsync.values.headers import HeadersInput
    from jetsync.values.outbound import Payload
    from jetsync.values.pub_acks import BatchAck

__all__ = ["FastPublisher", "FastStatistics"]

# The largest flow of a server, and the most acks that may be outstanding (ADR-50).
FLOW_LIMIT: Final = 500
ACKS_LIMIT: Final = 3

# Seconds to wait for a call of another thread when an exception ends the context.
EXIT_WAIT: Final = 0.1

_logger = get_logger("jetsync.fast")

T = TypeVar("T")


@attrs.frozen(kw_only=True)
class FastOptions:
    """The options of one fast publisher; see :meth:`jetsync.JetStream.fast_publisher`."""

    flow: int
    max_outstanding_acks: int
    gap: Literal["fail", "ok"]
    on_gap: Callable[[events.BatchGapEvent], object] | None
    ttl: Seconds | Literal["never"] | None
    # Seconds for each call.
    timeout: float

    def __attrs_post_init__(self) -> None:
        check_count("flow", self.flow, 1, FLOW_LIMIT)
        check_count("max_outstanding_acks", self.max_outstanding_acks, 1, ACKS_LIMIT)
        if self.gap not in {"fail", "ok"}:
            raise errors.InvalidArgumentError(
                f"gap must be 'fail' or 'ok', not {self.gap!r}", argument="gap"
            )
        if self.on_gap is not None and self.gap == "fail":
            raise errors.InvalidArgumentError(
                "on_gap needs gap='ok': with gap='fail' a gap raises an error", argument="on_gap"
            )
        if self.ttl is not None:
            ttl_header(self.ttl)


@attrs.frozen
class FastStatistics:
    """
    Counters of a fast publisher.
    """

    # For notebooks.
    _repr_html_ = html_table

    added: int
    """Messages sent."""

    acknowledged: int
    """Messages that the server has confirmed."""

    lost: int
    """Messages that are not stored, or not known to be stored."""

    pending: int
    """Messages in flight."""

    flow: int
    """Messages per ack at present; the server adjusts it."""

    pings: int
    """How often jetsync asked the server for the state of the batch."""

    callback_errors: int
    """How often ``on_gap`` raised."""


class FastPublisher:
    """
    Publish many messages to one stream with few acks. Use it as a context manager.

    Any number of threads may share one. Messages are stored in the order in which they were added.
    The end of the ``with`` block commits. If the block raises, the batch ends without a commit.
    Messages that the server has received stay stored. If the publisher is still open when the
    client closes or the interpreter exits, jetsync commits too. If your program drops an open
    publisher, jetsync ends the batch and emits a ResourceWarning. The server silently skips a
    message whose ``msg_id`` the stream already knows, and such a message counts as stored.

    A *gap* is a message that was lost or refused, or several in a row. The arguments ``gap`` and
    ``on_gap`` of :meth:`JetStream.fast_publisher` decide what happens then. A lost connection ends
    the batch, and the outcome of messages in flight is unknown.
    """

    # Threads: any.
    # Locks: the publisher turn, that of `_link`, protects it and its engine, also during waits.
    # `add` stages messages without it. Plugins, `on_gap` and iterables of the user run without it.

    __reduce__ = refuse_copy

    def __init__(self, context: Context, options: FastOptions) -> None:
        self._connection = context.connection
        self._lane = context.lane
        self._options = options
        plugins = context.plugins
        self._enter_commit = plugins.enter_batch_commit
        self._hooks = batch_hooks(plugins)
        self._raised_ttls = RaisedTtls(context)
        self._link = link = FastLink(
            context,
            flow=options.flow,
            max_outstanding_acks=options.max_outstanding_acks,
            gap_ok=options.gap == "ok",
        )
        self._ledger = link.ledger
        # Whether messages are sent unchanged, because there is no default ttl and no plugin.
        self._is_plain = options.ttl is None and self._hooks is None
        # Stages what `add` may stage without a further step.
        self._stage = link.stage.stage if self._is_plain else refuse_staging
        # One for each error of `on_gap`. Appending is one step, and `+=` would not be.
        self._callback_errors: list[None] = []
        self._connection.writers.add(self)
        link.dropped = when_dropped(self, f"fast publisher {link.key!r}", link.drop)
        disown(self._lane.later, self)

    def __repr__(self) -> str:
        engine, ledger = self._link.engine, self._ledger
        state = "closed" if self._link.closed else engine.phase.value
        stream = f" {ledger.stream}" if ledger.stream else ""
        return (
            f"<FastPublisher{stream} {state} added={self._link.added} "
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
            self._end_after_error()

    @property
    def ack(self) -> BatchAck | None:
        """The ack of the commit; None before the commit, or if nothing was added."""
        return self._link.engine.ack

    @property
    def acknowledged(self) -> int:
        """
        The number of messages that the server has confirmed so far.

        It confirms a few hundred messages at a time. Duplicates that it skipped are included.
        """
        return self._ledger.acknowledged

    def statistics(self) -> FastStatistics:
        """Return the current counters."""
        engine, ledger, added = self._link.engine, self._ledger, self._link.added
        return FastStatistics(
            added=added,
            acknowledged=ledger.acknowledged,
            lost=ledger.lost,
            pending=added - ledger.acknowledged - ledger.lost,
            flow=engine.flow,
            pings=engine.pings,
            callback_errors=len(self._callback_errors),
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
        Send a message and return its number, counted from 1.

        The first call waits for the server's answer. A later call waits only if too many messages
        are in flight: ``flow`` times ``max_outstanding_acks``, two arguments of
        :meth:`JetStream.fast_publisher`. jetsync also collects messages for up to 4 ms. So
        the message may not be stored yet when the call returns. If a message fails, a later call
        raises its error, or ``on_gap`` gets it. Any thread may add. Ctrl-C may end the batch: the
        outcome of messages in flight is then unknown, and the next call raises an error that says
        so.

        Args:
            subject: The subject. All messages belong to the stream of the first one.
            data: The payload; text is sent as UTF-8.
            headers: The headers. jetsync does not change this object.
            msg_id: Id by which the stream drops duplicates within its duplicate window.
            ttl: Time-to-live: seconds or a ``timedelta``, at least 1 second, or ``"never"``
                (ADR-43). None uses that of the publisher.
            expect: Conditions for storing the message.
            timeout: Seconds for this call; None uses the timeout of the publisher.

        Raises:
            InvalidArgumentError, InvalidTypeError: The message is invalid. Nothing was sent.
            NotSupportedError, FastPublishDisabledError: The server or the stream does not support
                fast ingest. Nothing was sent.
            WaitTimeoutError: The allowed number of messages was in flight until the timeout.
                Nothing was sent, and you can add the message again.
            NoStreamResponseError: The stream has no leader. The message is not stored.
            DisconnectedError, ConnectionClosedError: There is no connection. Nothing was sent.
            BatchGapError, ApiError, PublishOutcomeUnknownError: An earlier message was lost or
                refused, or its outcome is unknown. The batch is closed. If this is the first
                message of a batch, these errors are about this message.
            BatchClosedError: The batch is closed.
            PluginError: A plugin vetoed the message. Nothing was sent.
        """
        if (
            headers is None
            and msg_id is None
            and ttl is None
            and expect is None
            and timeout is None
            and (number := self._stage(subject, data))
        ):
            return number
        # A plain pair is faster to create and to encode.
        item: Any = (subject, data)
        if headers is not None or msg_id is not None or ttl is not None or expect is not None:
            item = OutboundMessage(subject, data, headers, msg_id, ttl, expect)
        return self._add(item, timeout)

    def _add(self, item: Any, timeout: Seconds | None) -> int:
        """Send any message and return its number; as :meth:`add`."""
        self._lane.check()
        deadline = Deadline.after(self._options.timeout if timeout is None else timeout)
        if not self._is_plain:
            item = self._prepared(item)
        subject = subject_of(item)
        encoder, stage, number = self._link.stream.encoder, self._link.stage, 0
        if stage.places > 0 and encoder.knows(subject):
            _, header, payload, _ = encoder.encode(item)
            number = stage.stage(subject, payload, header)
        if not number:
            number = self._call(self._link.add, deadline, item)
        if encoder.has_ttl:
            self._raised_ttls.check((item,))
        return number

    def add_many(
        self,
        messages: Iterable[OutboundMessage | tuple[Any, ...]],
        *,
        timeout: Seconds | None = None,
    ) -> int:
        """
        Send the messages of an iterable one after another, and return their number.

        jetsync reads no message ahead, and sends each one as :meth:`add` does. Other threads may
        add messages meanwhile. If the iterable raises, or yields an invalid message, the messages
        before it are sent. ``statistics()`` shows how many messages were sent. Thread-safe.

        Args:
            messages: ``OutboundMessage``, ``(subject, data)`` or ``(subject, data, headers)``.
            timeout: Seconds for each wait at the limit of messages in flight. None uses the timeout
                of the publisher.

        Raises: as :meth:`add`.
        """
        self._lane.check()
        stage, count = self._stage, 0
        for item in message_iterator(messages):
            if type(item) is not tuple or len(item) != 2:
                self._add(coerce_outbound(item), timeout)
            elif not stage(*item):
                self._add(item, timeout)
            count += 1
        return count

    def _call(self, call: Callable[..., T], deadline: Deadline, *arguments: Any) -> T:
        """
        Make a call of the link in the turn, then report lost messages.

        As :meth:`FastLink.call`.
        """
        try:
            result: T = self._link.turn.run(deadline, self._link.call, call, *arguments, deadline)
            return result
        finally:
            if self._ledger.gaps:
                self._report_gaps()

    def _prepared(self, item: Any) -> Any:
        """Return a message with the publisher's ttl and the changes that plugins make."""
        if self._options.ttl is not None:
            item = with_ttl(item, self._options.ttl)
        return item if self._hooks is None else self._hooks.prepared(item, self._operation)

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
        End the batch, with a final message if a subject is given, and return its ack.

        The ack's ``size`` counts all messages except those known to be lost or refused, which
        ``lost`` counts. Duplicates that the server skipped are part of ``size``. A publisher
        commits once. Any thread may commit. After Ctrl-C the outcome is unknown, and the publisher
        is closed.

        Args:
            subject: Subject of the final message; None adds no message.
            data: Its payload.
            headers: This and the next three arguments are as for :meth:`add`.
            msg_id: Id by which the stream drops duplicates.
            ttl: Time-to-live.
            expect: Conditions for storing the message.
            timeout: Seconds for this call; None uses the timeout of the publisher.

        Raises:
            InvalidArgumentError: No message was added.
            PublishOutcomeUnknownError: The commit was sent, but no answer arrived. Acknowledged
                messages are stored. The outcome of the others is unknown.
            BatchGapError, ApiError, BatchClosedError, and others: as for :meth:`add`.
        """
        self._lane.check()
        deadline = Deadline.after(self._options.timeout if timeout is None else timeout)
        item = final_message(subject, data, headers, msg_id, ttl, expect)
        if item is not None:
            item = self._prepared(item)
        return self._commit(item, deadline)

    def _commit(self, item: OutboundMessage | None, deadline: Deadline) -> BatchAck:
        """Commit inside the wrapper hooks of plugins."""
        if self._enter_commit is None:
            return self._commit_now(item, deadline)
        size = self._link.added + (item is not None)
        operation = self._operation(size, deadline.total, None if item is None else item.subject)
        return self._enter_commit(operation).run(lambda: self._commit_now(item, deadline))

    def _operation(
        self, size: int = 0, timeout: float | None = None, subject: str | None = None
    ) -> events.BatchCommitOperation:
        """Return the description of the batch that plugins get; by default that of a new batch."""
        return events.BatchCommitOperation(
            kind="fast",
            stream=self._ledger.stream or None,
            batch_id=self._link.engine.batch_id,
            size=size,
            subject=subject,
            timeout=self._options.timeout if timeout is None else timeout,
        )

    def _commit_now(self, item: OutboundMessage | None, deadline: Deadline) -> BatchAck:
        self._call(self._link.commit, deadline, item)
        self._raised_ttls.check((item,))
        ack = self.ack
        assert ack is not None
        return ack

    def close(self, *, timeout: Seconds | None = None) -> None:
        """
        Commit the batch if it is open and has messages. Can be called repeatedly.

        Args:
            timeout: Seconds for this call; None uses the timeout of the publisher.

        Raises: as :meth:`commit`, and the error that made the batch fail if no call has raised it.
        """
        if self._lane.forked:
            # The connection belongs to the parent process, and so may the thread that has the turn.
            return
        deadline = Deadline.after(self._options.timeout if timeout is None else timeout)
        if self._call(self._close, deadline):
            # Plugins run without the turn.
            self._commit(None, deadline)

    def _close(self, deadline: Deadline) -> bool:
        """
        Commit or end the batch; in the turn.

        Returns whether the caller has to commit, because plugins wrap the commit.
        """
        link, engine = self._link, self._link.engine
        if not self._ledger.sent or engine.phase is Phase.DONE:
            link.abandon()
        elif engine.phase in {Phase.ENDING, Phase.FAILED}:
            link.raise_end(deadline)
        if link.closed:
            return False
        self._lane.check(while_closing=True)
        if self._enter_commit is None:
            link.commit(None, deadline)
        return self._enter_commit is not None

    def begin_finish(self) -> None:
        """Wake the calls that wait for room, because the client begins to close."""
        self._link.wake()

    def finish(self, deadline: Deadline) -> str | None:
        """
        Close because the client or the interpreter ends; return a warning if messages may be lost.

        A later call of your code still raises the error.
        """
        link, ledger = self._link, self._ledger
        if link.closed:
            return None
        try:
            self.close(timeout=deadline.remaining())
        except Exception as error:  # noqa: BLE001 - reported, also if a plugin raised it.
            link.engine.not_raised()
            count = link.added - ledger.acknowledged
            total = f"{link.added} messages of a fast publisher"
            return f"{count} of {total} are not confirmed: {error}"
        return None

    def _end_after_error(self) -> None:
        """
        End the batch without a commit after an exception in the user's block; never raises.

        Waits up to :data:`EXIT_WAIT` seconds for a call of another thread, and for no answer.
        """
        if self._lane.forked:
            return
        link = self._link
        try:
            self._link.turn.run(Deadline.after(EXIT_WAIT), link.call, link.abandon_open)
        except (errors.WaitTimeoutError, errors.CallInSignalHandlerError):
            # Another call is waiting for room or an answer. It ends the batch when it wakes up.
            link.stop()
        if self._ledger.gaps:
            self._report_gaps()

    def _report_gaps(self) -> None:
        """Report lost messages to ``on_gap`` and plugins; not in the turn."""
        on_gap = self._options.on_gap
        while (event := self._ledger.take_gap()) is not None:
            self._connection.emit(event)
            if on_gap is not None:
                try:
                    on_gap(event)
                except Exception:
                    self._callback_errors.append(None)
                    _logger.exception("callback_failed")
