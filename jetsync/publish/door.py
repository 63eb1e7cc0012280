"""
The publishing methods of a JetStream context.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

from jetsync._base.deadline import as_seconds
from jetsync._base.fields import check_count
from jetsync.errors import InvalidArgumentError
from jetsync.publish.atomic import AtomicBatch, publish_batch
from jetsync.publish.atomic_commit import AtomicOptions
from jetsync.publish.fast import FastOptions, FastPublisher
from jetsync.publish.many import BulkPublish
from jetsync.publish.one import publish_one
from jetsync.publish.publisher import Publisher
from jetsync.publish.window import DEFAULT_WINDOW, DEFAULT_WINDOW_BYTES, WindowOptions
from jetsync.values.outbound import OutboundMessage
from jetsync.values.ttl import ttl_header

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from jetsync._api.context import Context
    from jetsync._base.deadline import Seconds
    from jetsync.events import BatchGapEvent
    from jetsync.publish.publisher import DeliveryReport
    from jetsync.values.headers import HeadersInput
    from jetsync.values.outbound import BatchAck, Expect, Payload, PubAck, PublishReport

FLOW_LIMIT: Final = 500
"""Messages between two acks that servers give at most; more brings nothing (ADR-50)."""


class PublishDoor:
    """
    What a JetStream context can publish.
    """

    __slots__ = ()

    _context: Context

    def publish(
        self,
        subject: str,
        data: Payload = b"",
        *,
        headers: HeadersInput | None = None,
        msg_id: str | None = None,
        ttl: Seconds | Literal["never"] | None = None,
        expect: Expect | None = None,
        timeout: Seconds | None = None,
        retries: int = 2,
        retry_wait: Seconds = 0.25,
    ) -> PubAck:
        """
        Publish one message and wait until the stream has stored it.

        When no stream takes the subject, which is also so for moments while a stream has no leader,
        the message is sent again up to *retries* times, within *timeout*. Any other loss of the
        answer leaves the outcome unknown. Any thread. After Ctrl-C the outcome is unknown too.

        Args:
            subject: The subject; its stream is found by it.
            data: The payload; text is sent as UTF-8.
            headers: Headers; never changed.
            msg_id: Id by which the stream drops duplicates within its duplicate window.
            ttl: Time-to-live: seconds from 1 up, a ``timedelta`` or ``"never"`` (ADR-43).
            expect: Under which conditions to store it.
            timeout: Seconds for the whole call; None is the context's default.
            retries: How often to send again after "no stream".
            retry_wait: Seconds before each of these.

        Raises:
            InvalidArgumentError, InvalidTypeError: The message cannot be sent; nothing was.
            NoStreamResponseError: No stream took it; it is not stored.
            ApiError: The stream refused it, for example WrongLastSequenceError; it is not stored.
            PublishOutcomeUnknownError: It was sent and no answer came: it may be stored or not.
            PermissionDeniedError: The server refuses the subject; it is not stored.
            NotSupportedError: The server that the client is connected to is older than 2.11 and
                would ignore *ttl*, or the subject in *expect*; nothing was sent.
            DisconnectedError, ConnectionClosedError: Nothing was sent.
            PluginError: A plugin vetoed it; nothing was sent.
        """
        context = self._context
        context.connection.check()
        deadline = context.deadline(timeout)
        check_count("retries", retries, 0)
        wait = as_seconds(retry_wait, "retry_wait")
        message = OutboundMessage(subject, data, headers, msg_id, ttl, expect)
        return publish_one(context, message, deadline, retries=retries, retry_wait=wait)

    def publish_many(
        self,
        messages: Iterable[OutboundMessage | tuple[Any, ...]],
        *,
        window: int = DEFAULT_WINDOW,
        window_bytes: int = DEFAULT_WINDOW_BYTES,
        ack_timeout: Seconds | None = None,
        on_ack: Callable[[OutboundMessage, PubAck], object] | None = None,
        retries: int = 2,
        retry_wait: Seconds = 0.25,
    ) -> PublishReport:
        """
        Publish what an iterable yields, many at a time, and return once every message has ended.

        The iterable is read lazily; at most *window* messages are in flight, and only they are
        kept. Messages that no stream took are sent again, which may change their order. After as
        many failures as the window is large no further message is taken. An exception of the
        iterable itself is raised once all that it gave before has ended. Any thread; each call has
        a window of its own.

        Args:
            messages: ``OutboundMessage``, ``(subject, data)`` or ``(subject, data, headers)``.
            window: Messages in flight at most.
            window_bytes: Bytes in flight at most, 32 MiB by default. One block of up to 128 KiB, or
                one message if it is larger, may exceed it.
            ack_timeout: Seconds to wait for each ack, and for a connection; None is the context's
                default.
            on_ack: Called in this thread with each message and its ack, in no certain order. If it
                raises, no further message is taken, and its first error is raised once all that was
                taken has ended.
            retries: How often a message that no stream took is sent again.
            retry_wait: Seconds before each of these.

        Raises:
            PublishManyError: Some failed; ``error.report`` says which and why. What is not listed
                there and was taken from the iterable is stored; ``error.report.exhausted`` says
                whether all were taken.
            ConnectionClosedError: The client was closed before the call.
        """
        context = self._context
        context.connection.check()
        options = self._window_options(window, window_bytes, ack_timeout, retries, retry_wait)
        return BulkPublish(context, options, on_ack).run(messages)

    def publisher(
        self,
        *,
        window: int = DEFAULT_WINDOW,
        window_bytes: int = DEFAULT_WINDOW_BYTES,
        ack_timeout: Seconds | None = None,
        on_report: Callable[[DeliveryReport], object] | None = None,
        retries: int = 2,
        retry_wait: Seconds = 0.25,
    ) -> Publisher:
        """
        Return a publisher that keeps many messages in flight and is shared by threads.

        Args:
            window: Messages in flight at most; publishing waits while it is full.
            window_bytes: Bytes in flight at most, 32 MiB by default; publishing waits above it. One
                message of each thread may exceed it.
            ack_timeout: Seconds to wait for each ack, and for a connection; None is the context's
                default.
            on_report: Called with the :class:`DeliveryReport` of each message, in the publisher's
                own thread, in the order in which they end.
            retries: How often a message that no stream took is sent again.
            retry_wait: Seconds before each of these.
        """
        context = self._context
        context.connection.check()
        options = self._window_options(window, window_bytes, ack_timeout, retries, retry_wait)
        return Publisher(context, options, on_report)

    def atomic_batch(
        self,
        *,
        ack_first: bool = True,
        ack_every: int = 0,
        ttl: Seconds | Literal["never"] | None = None,
        timeout: Seconds | None = None,
        batch_id: str | None = None,
        broken_servers: bool = False,
    ) -> AtomicBatch:
        """
        Return an empty batch whose messages a stream stores together, or none of them (ADR-50).

        Asks and sends nothing before the first message. The stream needs ``allow_atomic`` and a
        server from 2.12.5 on.

        Args:
            ack_first: Whether adding the first message waits for the server, which then says at
                once if it takes no batch.
            ack_every: Wait so with every so many messages; 0 for none.
            ttl: Time-to-live of messages that have none of their own.
            timeout: Seconds for each call; None is the context's default.
            batch_id: The batch's id, up to 64 bytes; None makes one up.
            broken_servers: Whether to use servers whose batches are known to break: 2.12.0 checks
                expectations against the wrong subject, 2.12.1 may store a batch in part.
        """
        self._context.connection.check()
        check_count("ack_every", ack_every, 0)
        return AtomicBatch(
            self._context,
            AtomicOptions(
                batch_id=batch_id,
                ack_first=ack_first,
                ack_every=ack_every,
                ttl=ttl,
                timeout=self._seconds(timeout),
                broken_servers=broken_servers,
            ),
        )

    def publish_batch(
        self,
        messages: Iterable[OutboundMessage | tuple[Any, ...]],
        *,
        ttl: Seconds | Literal["never"] | None = None,
        timeout: Seconds | None = None,
        retries: int = 2,
        retry_wait: Seconds = 0.25,
        batch_id: str | None = None,
        broken_servers: bool = False,
    ) -> BatchAck:
        """
        Store all messages of an iterable in their stream, or none of them (ADR-50).

        Any thread. The iterable is read to its end first; if it raises, nothing is sent. When no
        stream takes the batch, it is sent again up to *retries* times within *timeout*.

        Args:
            messages: ``OutboundMessage``, ``(subject, data)`` or ``(subject, data, headers)``, as
                many as the server takes in one batch: 1000, unless an operator changed it.
            ttl: Time-to-live of messages that have none of their own.
            timeout: Seconds for the whole call; None is the context's default.
            retries: How often to send again after "no stream".
            retry_wait: Seconds before each of these.
            batch_id: The id of the first attempt; None makes one up.
            broken_servers: As for :meth:`atomic_batch`.

        Raises: as :meth:`AtomicBatch.add` and :meth:`AtomicBatch.commit`; nothing is stored, unless
            it is AtomicityError or BatchOutcomeUnknownError, whose ``batch`` can be sent again.
        """
        self._context.connection.check()
        check_count("retries", retries, 0)
        options = AtomicOptions(
            batch_id=batch_id,
            ttl=ttl,
            timeout=self._seconds(timeout),
            broken_servers=broken_servers,
            retries=retries,
            retry_wait=as_seconds(retry_wait, "retry_wait"),
        )
        return publish_batch(self._context, messages, options)

    def fast_publisher(
        self,
        *,
        flow: int = 500,
        max_outstanding_acks: int = 2,
        gap: Literal["fail", "ok"] = "fail",
        on_gap: Callable[[BatchGapEvent], object] | None = None,
        ttl: Seconds | Literal["never"] | None = None,
        timeout: Seconds | None = None,
    ) -> FastPublisher:
        """
        Return a publisher for many messages to one stream, acknowledged by the hundred (ADR-50).

        The fastest way in, for data that can be sent again: what is not acknowledged when a batch
        fails may be stored or not. Asks and sends nothing before the first message. The stream
        needs ``allow_batched`` and a server from 2.14 on.

        Args:
            flow: Messages between two acks, from 1 to 500; the server may choose fewer.
            max_outstanding_acks: How many acks may be missing, from 1 up: at most *flow* times as
                many messages are in flight.
            gap: Whether the batch ends when a message is lost or refused (``"fail"``), or goes on
                without it (``"ok"``).
            on_gap: Called with each :class:`BatchGapEvent` of ``gap="ok"``, in the thread whose
                call notices it.
            ttl: Time-to-live of messages that have none of their own.
            timeout: Seconds for each call, and for each wait for room; None is the context's
                default.
        """
        self._context.connection.check()
        check_count("flow", flow, 1)
        check_count("max_outstanding_acks", max_outstanding_acks, 1)
        if flow > FLOW_LIMIT:
            raise InvalidArgumentError(f"flow must be at most {FLOW_LIMIT}", argument="flow")
        if gap not in {"fail", "ok"}:
            raise InvalidArgumentError("gap must be 'fail' or 'ok'", argument="gap")
        if on_gap is not None and gap == "fail":
            raise InvalidArgumentError(
                "on_gap needs gap='ok': with 'fail' a gap is raised", argument="on_gap"
            )
        if ttl is not None:
            ttl_header(ttl)
        options = FastOptions(
            flow=flow,
            max_outstanding_acks=max_outstanding_acks,
            gap=gap,
            on_gap=on_gap,
            ttl=ttl,
            timeout=self._seconds(timeout),
        )
        return FastPublisher(self._context, options)

    def _seconds(self, timeout: Seconds | None) -> float:
        return as_seconds(self._context.default_timeout if timeout is None else timeout, "timeout")

    def _window_options(
        self,
        window: int,
        window_bytes: int,
        ack_timeout: Seconds | None,
        retries: int,
        retry_wait: Seconds,
    ) -> WindowOptions:
        check_count("window", window, 1)
        check_count("window_bytes", window_bytes, 1)
        check_count("retries", retries, 0)
        timeout = self._context.default_timeout if ack_timeout is None else ack_timeout
        return WindowOptions(
            size=window,
            max_bytes=window_bytes,
            ack_timeout=as_seconds(timeout, "ack_timeout"),
            retries=retries,
            retry_wait=as_seconds(retry_wait, "retry_wait"),
        )
