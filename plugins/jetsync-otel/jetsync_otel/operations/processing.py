"""
Spans and metrics of the processing of messages.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, TypeAlias

from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.trace import SpanKind

import jetsync
from jetsync_otel import names
from jetsync_otel.carrier import GETTER
from jetsync_otel.metrics.instruments import labels
from jetsync_otel.operations.telemetry import mark_failed

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from contextvars import Token

    from opentelemetry.context import Context
    from opentelemetry.trace import Span

    from jetsync_otel.metrics.instruments import Labels
    from jetsync_otel.operations.telemetry import Telemetry

    AnyMessage: TypeAlias = jetsync.Message | jetsync.StoredMessage


class Processor:
    """
    Creates the spans of one plugin. Thread-safe.
    """

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry

    @contextlib.contextmanager
    def process(self, messages: Sequence[AnyMessage]) -> Iterator[Span]:
        """
        Open a span around the handling of messages and make it the current one.
        """
        begun = self._telemetry.faults.guarded("process", self._begin, messages)
        if begun is None:
            # The messages are still handled.
            yield trace.INVALID_SPAN
            return
        span, token, whose = begun
        started = time.monotonic()
        try:
            yield span
        except BaseException as error:
            self._telemetry.faults.guarded("process", _note_error, span, whose, error)
            raise
        finally:
            contexts.detach(token)
            self._telemetry.faults.guarded("process", span.end)
            taken = time.monotonic() - started
            self._telemetry.faults.guarded(
                "process", self._telemetry.instruments.process_duration.record, taken, whose
            )

    def _begin(self, messages: Sequence[AnyMessage]) -> tuple[Span, Token[Context], Labels]:
        """Start a span and make it the current one. Return also the labels of its duration."""
        context = contexts.get_current()
        given: Labels = {
            names.SYSTEM: names.NATS,
            names.OPERATION: "process",
            names.TYPE: "process",
        }
        stream, consumer = _describe(messages, given)
        if len(messages) == 1:
            ambient = trace.get_current_span(context).get_span_context()
            if not ambient.is_valid:
                # Continue the trace of the publisher, with its baggage.
                context = self._telemetry.propagator.extract(messages[0].headers, context, GETTER)
        span = self._telemetry.tracer.start_span(
            "process" if stream is None else f"process {stream}",
            context=context,
            kind=SpanKind.CONSUMER,
            attributes=given,
            links=self._telemetry.links(
                self._telemetry.carried_by(message.headers) for message in messages
            ),
        )
        if span.get_span_context().is_valid:
            # Without an SDK, the publisher's context is passed on unchanged.
            context = trace.set_span_in_context(span, context)
        shown = consumer if self._telemetry.settings.consumers else None
        whose = labels("process", stream=stream, consumer=shown)
        return span, contexts.attach(context), whose


def _note_error(span: Span, whose: Labels, error: BaseException) -> None:
    whose[names.ERROR_TYPE] = names.error_type(error)
    mark_failed(span, error)


def _describe(messages: Sequence[AnyMessage], given: Labels) -> tuple[str | None, str | None]:
    """
    Add attributes of the messages. Return their stream and consumer, if known.
    """
    stream = consumer = None
    with contextlib.suppress(jetsync.NotJetStreamMessageError, IndexError):
        message = messages[0]
        if isinstance(message, jetsync.Message):
            metadata = message.metadata
            stream, consumer = metadata.stream, metadata.consumer
            if len(messages) == 1:
                given[names.DELIVERED] = metadata.delivered
        else:
            stream = message.stream
    if stream is not None:
        given[names.DESTINATION] = stream
    if consumer is not None:
        given[names.GROUP] = consumer
    if len(messages) != 1:
        given[names.COUNT] = len(messages)
        return stream, consumer
    (message,) = messages
    given[names.SUBJECT] = message.subject
    given[names.BODY_SIZE] = len(message.data)
    if stream is not None:
        given[names.SEQUENCE] = message.sequence
    msg_id = message.headers.get("Nats-Msg-Id")
    if msg_id is not None:
        given[names.MESSAGE_ID] = msg_id
    return stream, consumer
