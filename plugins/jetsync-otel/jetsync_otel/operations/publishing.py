"""
Spans and metrics of publishing, and the context that messages carry.

A publish, a call of ``publish_many`` and a publisher have one span each, whose context their
messages carry. The messages of a batch are sent before the commit, outside of any wrapper hook.
They carry the context of a short span that is created with the first message, and the commit's span
links to it. With the granularity ``"message"``, each message of a bulk publish or batch carries the
context of its own short span.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final

import attrs
from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanContext, SpanKind

import jetsync
from jetsync_otel import names
from jetsync_otel.carrier import SETTER
from jetsync_otel.metrics.instruments import labels
from jetsync_otel.operations.telemetry import mark_failed

if TYPE_CHECKING:
    from jetsync_otel.metrics.instruments import Labels
    from jetsync_otel.operations.telemetry import Telemetry

KEPT: Final = 1024
"""Maximum open batches and bulk publishes whose context is remembered."""


@attrs.define(eq=False)
class Sending:
    """
    The span of a publish, a bulk publish or a new batch.
    """

    name: str
    """The operation's name."""

    span: Span
    context: Context
    """The context that the messages carry."""

    started: float
    created: list[SpanContext] = attrs.field(factory=list)
    """The spans of single messages to link to."""

    messages: int = 0
    """The messages of a bulk publish that have ended so far."""

    failed: int = 0
    """How many of them have failed."""

    error: Exception | None = None
    """The error of the first failure."""

    stream: str | None = None
    """A stream that stored messages of the bulk publish."""

    token: Any = None
    """The token that detaches the span's context."""


class Sender:
    """
    Creates the spans of one plugin. Thread-safe.
    """

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry
        self._by_message = telemetry.settings.granularity == "message"
        self._lock = jetsync.interrupt_safe_lock()
        self._open: dict[int, Sending] = {}
        """Open publishes, by the identity of their operations."""

        self._batches: OrderedDict[str, Sending] = OrderedDict()
        """Open batches, by ID."""

        self._carried: OrderedDict[int, Sending] = OrderedDict()
        """Operations whose messages get spans of their own, by the id of their span."""

    # Publishes.

    def begin(self, operation: jetsync.PublishOperation) -> Sending:
        """
        Start the span of a publish. The span of a single publish becomes the current one.
        """
        in_bulk = operation.window is not None
        links: list[SpanContext] = []
        if operation.dead_letter_headers is not None:
            origin = self._telemetry.carried_by(jetsync.Headers(operation.dead_letter_headers))
            links = [trace.get_current_span(origin).get_span_context()]
        sending = self._start(
            "publish",
            "send",
            SpanKind.CLIENT if in_bulk and self._by_message else SpanKind.PRODUCER,
            stream=operation.stream,
            subject=operation.subject,
            links=links,
        )
        if not in_bulk:
            # Any thread may use a publisher, and the iterable of `publish_many` has its own spans.
            sending.token = contexts.attach(sending.context)
        self._open[id(operation)] = sending
        return sending

    def end(self, operation: jetsync.PublishOperation, sending: Sending, result: object) -> None:
        """
        End the span of a completed publish.
        """
        self._leave(operation, sending)
        if operation.window is not None:
            self._end_bulk(operation, sending, None)
            return
        stream = None
        if isinstance(result, jetsync.PubAck):
            stream = result.stream
            sending.span.set_attribute(names.SEQUENCE, result.sequence)
            if result.duplicate:
                sending.span.set_attribute(names.DUPLICATE, value=True)
                self._telemetry.instruments.duplicates.add(1, labels("publish", stream=stream))
        self._count(sending.name, stream, 1, None)
        self._finish(sending, stream, None)

    def fail(
        self, operation: jetsync.PublishOperation, sending: Sending, error: BaseException
    ) -> None:
        """
        End the span of a publish that failed.
        """
        self._leave(operation, sending)
        if operation.window is not None:
            self._end_bulk(operation, sending, error)
            return
        mark_failed(sending.span, error)
        self._count(sending.name, operation.stream, 1, error)
        self._finish(sending, operation.stream, error)

    def count(self, event: jetsync.PublishCountsEvent) -> None:
        """
        Count messages of a bulk publish that have ended.
        """
        # After Ctrl-C, messages in flight have failed without an error of their own.
        error = event.error or jetsync.PublishOutcomeUnknownError
        self._count("publish", event.stream, event.acknowledged, None)
        self._count("publish", event.stream, event.failed, error)
        if event.duplicates:
            marked = labels("publish", stream=event.stream)
            self._telemetry.instruments.duplicates.add(event.duplicates, marked)
        sending = self._open.get(id(event.publish))
        if sending is not None:
            sending.messages += event.acknowledged + event.failed
            sending.failed += event.failed
            sending.error = sending.error or event.error
            sending.stream = event.stream

    def _end_bulk(
        self,
        operation: jetsync.PublishOperation,
        sending: Sending,
        error: BaseException | None,
    ) -> None:
        """End the span of a bulk publish, whose messages were counted before."""
        span, error = sending.span, sending.error or error
        span.set_attribute(names.COUNT, sending.messages)
        if sending.failed:
            span.set_attribute(names.FAILED, sending.failed)
            mark_failed(span, error, f"{sending.failed} messages failed")
        elif error is not None:
            mark_failed(span, error)
        # The life of a publisher says nothing about the time that publishing takes.
        self._finish(sending, sending.stream, error, measured=operation.name != "publisher")

    def _leave(self, operation: jetsync.PublishOperation, sending: Sending) -> None:
        self._open.pop(id(operation), None)
        if sending.token is not None:
            contexts.detach(sending.token)
            sending.token = None

    # Batches.

    def begin_commit(self, operation: jetsync.BatchCommitOperation) -> Sending:
        """
        Start the span of a commit, and make it the current one.
        """
        with self._lock:
            begun = self._batches.pop(operation.batch_id, None)
            if begun is not None:
                self._carried.pop(begun.span.get_span_context().span_id, None)
        context = contexts.get_current()
        links: list[SpanContext] = []
        if begun is not None:
            links = begun.created or [begun.span.get_span_context()]
            if not trace.get_current_span(context).get_span_context().is_valid:
                # Keep the batch and its commit in one trace.
                context = begun.context
        sending = self._start(
            "commit",
            "send",
            SpanKind.CLIENT,
            stream=operation.stream,
            subject=operation.subject,
            context=context,
            links=links,
        )
        sending.span.set_attribute(names.BATCH_ID, operation.batch_id)
        sending.token = contexts.attach(sending.context)
        return sending

    def end_commit(
        self, operation: jetsync.BatchCommitOperation, sending: Sending, result: object
    ) -> None:
        """
        End the span of a successful commit.
        """
        contexts.detach(sending.token)
        size, lost, stream = operation.size, 0, operation.stream
        if isinstance(result, jetsync.BatchAck):
            size, lost, stream = result.size, result.lost, result.stream
            if result.sequence:
                sending.span.set_attribute(names.SEQUENCE, result.sequence)
            if result.duplicate:
                sending.span.set_attribute(names.DUPLICATE, value=True)
        sending.span.set_attribute(names.COUNT, size + lost)
        self._count(sending.name, stream, size, None)
        if lost:
            sending.span.set_attribute(names.FAILED, lost)
            self._count(sending.name, stream, lost, jetsync.BatchGapError)
        self._finish(sending, stream, None)

    def fail_commit(
        self, operation: jetsync.BatchCommitOperation, sending: Sending, error: BaseException
    ) -> None:
        """
        End the span of a commit that failed.
        """
        contexts.detach(sending.token)
        sending.span.set_attribute(names.COUNT, operation.size)
        mark_failed(sending.span, error)
        self._count(sending.name, operation.stream, operation.size, error)
        self._finish(sending, operation.stream, error)

    def _begin_batch(self, operation: jetsync.BatchCommitOperation) -> Sending:
        """Create the short span whose context the messages of a batch carry."""
        sending = self._start("create", "create", SpanKind.PRODUCER, stream=operation.stream)
        sending.span.set_attribute(names.BATCH_ID, operation.batch_id)
        sending.span.end()
        with self._lock:
            self._batches[operation.batch_id] = sending
            if len(self._batches) > KEPT:
                self._batches.popitem(last=False)
        return sending

    # What messages carry.

    def shared(
        self, operation: jetsync.PublishOperation | jetsync.BatchCommitOperation
    ) -> dict[str, str] | None:
        """
        Return the headers of all messages of an operation.
        """
        if isinstance(operation, jetsync.BatchCommitOperation):
            sending = self._begin_batch(operation)
            single = False
        else:
            found = self._open.get(id(operation))
            if found is None:
                return None
            sending, single = found, operation.window is None
        carrier: dict[str, str] = {}
        self._telemetry.propagator.inject(carrier, context=sending.context)
        if self._by_message and not single:
            with self._lock:
                self._carried[sending.span.get_span_context().span_id] = sending
                if len(self._carried) > KEPT:
                    self._carried.popitem(last=False)
        return carrier or None

    def create(self, message: jetsync.OutboundMessage) -> jetsync.OutboundMessage | None:
        """
        Give a message the context of a span of its own; ``None`` leaves it as it is.

        A message that is published alone, or that already has a part of a context, is unchanged.
        """
        sending: Sending | None = None
        headers = jetsync.Headers(message.headers)
        before = trace.get_current_span(self._telemetry.carried_by(headers)).get_span_context()
        if before.is_valid:
            sending = self._carried.get(before.span_id)
        if sending is None and (before.is_valid or self._has_some(headers)):
            return None
        made = self._start(
            "create",
            "create",
            SpanKind.PRODUCER,
            subject=message.subject,
            context=None if sending is None else sending.context,
        )
        if message.msg_id is not None:
            made.span.set_attribute(names.MESSAGE_ID, message.msg_id)
        made.span.end()
        if sending is not None and len(sending.created) < self._telemetry.settings.max_links:
            sending.created.append(made.span.get_span_context())
        self._telemetry.propagator.inject(headers, context=made.context, setter=SETTER)
        return attrs.evolve(message, headers=headers)

    # Steps of the above.

    def _has_some(self, headers: jetsync.Headers) -> bool:
        """Tell whether there is anything in the headers that the propagator would write."""
        fields = {field.lower() for field in self._telemetry.propagator.fields}
        return any(name.lower() in fields for name in headers)

    def _start(
        self,
        name: str,
        kind: str,
        span_kind: SpanKind,
        *,
        stream: str | None = None,
        subject: str | None = None,
        context: Context | None = None,
        links: list[SpanContext] | None = None,
    ) -> Sending:
        given: Labels = {names.SYSTEM: names.NATS, names.OPERATION: name, names.TYPE: kind}
        if stream is not None:
            given[names.DESTINATION] = stream
        if subject is not None:
            given[names.SUBJECT] = subject
        if context is None:
            context = contexts.get_current()
        span = self._telemetry.tracer.start_span(
            name if stream is None else f"{name} {stream}",
            context=context,
            kind=span_kind,
            attributes=given,
            links=[trace.Link(link) for link in links or () if link.is_valid],
        )
        if span.get_span_context().is_valid:
            # Without an SDK, the current context is passed on unchanged.
            context = trace.set_span_in_context(span, context)
        return Sending(name, span, context, time.monotonic())

    def _count(
        self,
        name: str,
        stream: str | None,
        count: int,
        error: BaseException | type[BaseException] | None,
    ) -> None:
        """Count published messages with the same outcome."""
        if not count:
            return
        marked = labels(name, stream=stream, error=error)
        self._telemetry.instruments.sent.add(count, marked)
        if error is None:
            self._telemetry.instruments.acknowledged.add(count, marked)

    def _finish(
        self,
        sending: Sending,
        stream: str | None,
        error: BaseException | None,
        *,
        measured: bool = True,
    ) -> None:
        """End a span, and record its duration if *measured*. Its name now includes the stream."""
        span = sending.span
        seconds = time.monotonic() - sending.started
        if stream is not None:
            span.set_attribute(names.DESTINATION, stream)
            span.update_name(f"{sending.name} {stream}")
        with self._lock:
            self._carried.pop(span.get_span_context().span_id, None)
        for link in sending.created:
            span.add_link(link)
        span.end()
        if not measured:
            return
        self._telemetry.instruments.duration.record(
            seconds, labels(sending.name, stream=stream, error=error)
        )
