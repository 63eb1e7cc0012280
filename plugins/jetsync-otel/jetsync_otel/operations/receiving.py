"""
Spans and metrics of receiving, with links to the publishing spans.

A span is created when a fetch or pull ends, so the sampler sees all of its attributes and links.
Its start time is that of the fetch. For a consumption it is the delivery of the first message to
the application, because buffered messages do not count as received.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final, TypeAlias

import attrs
from opentelemetry import context as contexts
from opentelemetry.context import Context
from opentelemetry.trace import SpanKind

import jetsync
from jetsync_otel import names
from jetsync_otel.metrics.counts import Deliveries, Tallies, sequences
from jetsync_otel.metrics.instruments import labels
from jetsync_otel.operations.telemetry import mark_failed

if TYPE_CHECKING:
    from opentelemetry.trace import Link, Span

    from jetsync_otel.metrics.instruments import Labels
    from jetsync_otel.operations.telemetry import Telemetry

    ReadOperation: TypeAlias = jetsync.FetchOperation | jetsync.DirectReadOperation


INTERVAL: Final = 1.0
"""Minimum seconds between two spans of a busy consumption."""

MANY: Final = 256
"""Number of known consumptions above which those without pulls are dropped."""


@attrs.define(eq=False)
class Receiving:
    """
    The start of a read, for its span.
    """

    context: Context
    started_ns: int
    started: float


class Receiver:
    """
    Creates the spans of one plugin. Thread-safe.
    """

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry
        self._lock = jetsync.interrupt_safe_lock()
        self._pulls: dict[tuple[str, str], tuple[int, float]] = {}
        """The open pulls of each consumption, and the time of its last span."""

        self._timers: set[tuple[str, str]] = set()
        """Consumptions with a pending timer."""

        self.tallies = Tallies(
            telemetry.settings.max_links,
            set(telemetry.propagator.fields),
            self._note_first,
            telemetry.faults.report,
        )

    def begin(self, operation: ReadOperation) -> Receiving:
        """
        Record the start of a read.
        """
        if operation.name == "consume" and isinstance(operation, jetsync.FetchOperation):
            # A new pull means that many messages of the previous ones were delivered.
            self._emit_if_due((operation.stream, operation.consumer), 1)
        return Receiving(contexts.get_current(), time.time_ns(), time.monotonic())

    def end(self, operation: ReadOperation, receiving: Receiving, result: object) -> None:
        """
        Create the span of a completed read.
        """
        if isinstance(operation, jetsync.FetchOperation):
            self._end_pull(operation, receiving, None)
        elif isinstance(result, jetsync.StoredMessage):
            links = self._telemetry.links([self._telemetry.carried_by(result.headers)])
            self._end_read(operation, receiving, 1, None, result, links)
        else:
            self._end_read(operation, receiving, result if isinstance(result, int) else 0, None)

    def fail(self, operation: ReadOperation, receiving: Receiving, error: BaseException) -> None:
        """
        Create the span of a failed read. A missing message is not an error.
        """
        if isinstance(operation, jetsync.FetchOperation):
            self._end_pull(operation, receiving, error)
        else:
            missing = isinstance(error, jetsync.MessageNotFoundError)
            self._end_read(operation, receiving, 0, None if missing else error)

    def _emit_if_due(self, source: tuple[str, str], pulls: int) -> None:
        """
        Create the span of a consumption whose number of open pulls changes, at most once a second.

        A busy consumption sends a pull every few milliseconds. If no pull is open, there may be no
        later call, so a timer creates the span.
        """
        now = time.monotonic()
        with self._lock:
            count, emitted = self._pulls.get(source, (0, 0.0))
            count = max(count + pulls, 0)
            due = now - emitted >= INTERVAL
            if source not in self._pulls and len(self._pulls) >= MANY:
                for each in [each for each, state in list(self._pulls.items()) if not state[0]]:
                    self._pulls.pop(each, None)
            self._pulls[source] = count, now if due else emitted
        if due:
            self.emit(*source)
        elif count == 0:
            self._emit_later(source)

    def _emit_later(self, source: tuple[str, str]) -> None:
        """Start a timer for a consumption that may never pull again."""
        with self._lock:
            if source in self._timers or self._pulls.get(source, (1, 0.0))[0]:
                return
            self._timers.add(source)
        timer = threading.Timer(INTERVAL, self._emit_from_timer, (source,))
        timer.name = "jetsync-otel"
        timer.daemon = True
        timer.start()

    def _emit_from_timer(self, source: tuple[str, str]) -> None:
        with self._lock:
            self._timers.discard(source)
        try:
            self.emit(*source)
        except Exception as error:  # noqa: BLE001 - a timer thread would lose it
            self._telemetry.faults.report("read", error)

    def emit(self, stream: str, consumer: str) -> None:
        """
        Create the span of the messages that a consumption has delivered since the last span.
        """
        deliveries = self.tallies.of_all((stream, consumer))
        if deliveries is not None:
            self._span_of_pull("consume", stream, consumer, deliveries, None, None)

    def emit_all(self) -> None:
        """
        Create the spans of all delivered messages.
        """
        for stream, consumer in self.tallies.sources():
            self.emit(stream, consumer)

    def _end_pull(
        self,
        operation: jetsync.FetchOperation,
        receiving: Receiving,
        error: BaseException | None,
    ) -> None:
        stream, consumer = operation.stream, operation.consumer
        if operation.name == "consume":
            self._emit_if_due((stream, consumer), -1)
            if error is None:
                return
            deliveries = None
        else:
            deliveries = self.tallies.of_thread((stream, consumer))
            self._note_duration(operation, receiving, error)
        if deliveries is not None or error is not None or self._telemetry.settings.empty_receives:
            self._span_of_pull(operation.name, stream, consumer, deliveries, receiving, error)

    def _span_of_pull(  # noqa: PLR0917 - one private step.
        self,
        name: str,
        stream: str,
        consumer: str,
        deliveries: Deliveries | None,
        receiving: Receiving | None,
        error: BaseException | None,
    ) -> None:
        given = self._attributes(name, stream, consumer)
        if name != "next":
            given[names.COUNT] = 0 if deliveries is None else deliveries.count
        elif deliveries is not None:
            given[names.SEQUENCE] = sequences(deliveries.reply)[1]
        started = time.time_ns()
        if receiving is not None:
            started = receiving.started_ns
        elif deliveries is not None:
            started = deliveries.first_ns
        span = self._telemetry.tracer.start_span(
            f"{name} {stream}",
            # A consumption has no calling span.
            context=contexts.Context() if receiving is None else receiving.context,
            kind=SpanKind.CLIENT,
            attributes=given,
            # Each thread may have collected max_links contexts.
            links=[]
            if deliveries is None
            else self._telemetry.links(map(self._context_of, deliveries.blocks)),
            start_time=started,
        )
        _end(span, error)
        if deliveries is not None:
            marked = labels(name, stream=stream, consumer=self._shown(consumer))
            self._telemetry.instruments.consumed.add(deliveries.count, marked)
            whose = labels("consume", stream=stream, consumer=self._shown(consumer))
            if deliveries.redelivered:
                self._telemetry.instruments.redelivered.add(deliveries.redelivered, whose)
            self._telemetry.instruments.pending.set(sequences(deliveries.reply)[0], whose)

    def _end_read(  # noqa: PLR0917 - one private step.
        self,
        operation: jetsync.DirectReadOperation,
        receiving: Receiving,
        count: int,
        error: BaseException | None,
        message: jetsync.StoredMessage | None = None,
        links: list[Link] | None = None,
    ) -> None:
        name, stream = operation.name, operation.stream
        given = self._attributes(name, stream, None)
        if len(operation.subjects) == 1:
            given[names.SUBJECT] = operation.subjects[0]
        if operation.batch is not None:
            given[names.COUNT] = count
        elif message is not None:
            given[names.SEQUENCE] = message.sequence
        elif operation.sequence is not None:
            given[names.SEQUENCE] = operation.sequence
        span = self._telemetry.tracer.start_span(
            f"{name} {stream}",
            context=receiving.context,
            kind=SpanKind.CLIENT,
            attributes=given,
            links=links,
            start_time=receiving.started_ns,
        )
        _end(span, error)
        if count:
            self._telemetry.instruments.consumed.add(count, labels(name, stream=stream))
        self._note_duration(operation, receiving, error)

    def _attributes(self, name: str, stream: str, consumer: str | None) -> Labels:
        given: Labels = {
            names.SYSTEM: names.NATS,
            names.OPERATION: name,
            names.TYPE: "receive",
            names.DESTINATION: stream,
        }
        if consumer is not None:
            given[names.GROUP] = consumer
        return given

    def _context_of(self, block: bytes) -> Context:
        return self._telemetry.carried_by(jetsync.Headers.parse(block)[2])

    def _shown(self, consumer: str) -> str | None:
        return consumer if self._telemetry.settings.consumers else None

    def _note_first(self, source: tuple[str, str], stored_ns: int) -> None:
        stream, consumer = source
        lag = max(time.time_ns() - stored_ns, 0) / 1e9
        marked = labels("consume", stream=stream, consumer=self._shown(consumer))
        self._telemetry.instruments.lag.record(lag, marked)
        self._emit_later(source)

    def _note_duration(
        self, operation: ReadOperation, receiving: Receiving, error: BaseException | None
    ) -> None:
        consumer = None
        if isinstance(operation, jetsync.FetchOperation):
            consumer = self._shown(operation.consumer)
        marked = labels(operation.name, stream=operation.stream, consumer=consumer, error=error)
        self._telemetry.instruments.duration.record(time.monotonic() - receiving.started, marked)


def _end(span: Span, error: BaseException | None) -> None:
    """
    End a span, with its error if it failed.
    """
    if error is not None:
        mark_failed(span, error)
    span.end()
