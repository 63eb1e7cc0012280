"""
The plugin, which turns hook calls into spans and metrics.

Errors in telemetry are logged once and never affect the traffic.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, TypeVar

from opentelemetry import metrics, propagate, trace

import jetsync
from jetsync_otel import names
from jetsync_otel.errors import Faults
from jetsync_otel.metrics.instruments import Instruments, labels
from jetsync_otel.operations.processing import Processor
from jetsync_otel.operations.publishing import Sender
from jetsync_otel.operations.receiving import Receiver
from jetsync_otel.operations.telemetry import Telemetry
from jetsync_otel.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from contextlib import AbstractContextManager

    from opentelemetry.metrics import MeterProvider
    from opentelemetry.propagators.textmap import TextMapPropagator
    from opentelemetry.trace import Span, TracerProvider

    from jetsync_otel.operations.processing import AnyMessage

T = TypeVar("T")
M = TypeVar("M", bound="AnyMessage")

VERSION = "0.1.0"


class OTel:
    """
    Traces and measures what a client publishes and reads.

    Pass it to ``jetsync.connect(plugins=[OTel(...)])``. The name ``"otel"`` creates one without
    arguments. Threads and clients may share one object.

    Args:
        tracer_provider: The provider of tracers. None means the global one, even if it is set
            later.
        meter_provider: The provider of meters. None means the global one, likewise.
        propagator: Writes and reads context. None means the global one. Its formats are those of
            ``OTEL_PROPAGATORS``, by default those of W3C.
        settings: The settings. None reads them from the environment variables.

    Raises:
        ConfigurationError: An environment variable is invalid.
    """

    name = "otel"
    """The plugin's name in errors and logs."""

    def __init__(
        self,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
        *,
        propagator: TextMapPropagator | None = None,
        settings: Settings | None = None,
    ) -> None:
        self.settings = Settings.from_env() if settings is None else settings
        tracer = trace.get_tracer("jetsync_otel", VERSION, tracer_provider)
        meter = metrics.get_meter("jetsync_otel", VERSION, meter_provider)
        chosen = propagate.get_global_textmap() if propagator is None else propagator
        self._faults = Faults()
        self._instruments = Instruments(meter)
        telemetry = Telemetry(tracer, self._instruments, chosen, self.settings, self._faults)
        self._sender = Sender(telemetry)
        self._receiver = Receiver(telemetry)
        self._processor = Processor(telemetry)
        # This runs for every message. A closure is faster than a method.
        received = jetsync.hookimpl(self._receiver.tallies.hook())
        self.jetsync_message_received = received  # type: ignore[assignment,method-assign]
        if self.settings.granularity == "operation":
            # Without an implementation, the hook costs nothing per message.
            self.jetsync_prepare_message = None  # type: ignore[assignment,method-assign]

    def __repr__(self) -> str:
        return f"<OTel {self.settings}>"

    # Processing.

    def process(self, *messages: AnyMessage) -> AbstractContextManager[Span]:
        """
        Open a span around the handling of one or more messages.

        The span is the current one within the block, and links to the spans that published the
        messages. For a single message it is a child of the publishing span, unless another span is
        current. An error that leaves the block is recorded and re-raised.

        Args:
            messages: The messages, from a consumer or a direct read.

        Returns:
            A context manager that returns the span.
        """
        return self._processor.process(messages)

    def handler(self, handle: Callable[[M], T]) -> Callable[[M], T]:
        """
        Wrap a handler in a span, as :meth:`process` does.

        Args:
            handle: A handler of messages, for example for ``consume``.
        """

        @functools.wraps(handle)
        def traced(message: M) -> T:
            with self.process(message):
                return handle(message)

        return traced

    def flush(self) -> None:
        """
        Create the spans and counts of all messages that consumptions have delivered so far.

        Without this call, the plugin does so at most once a second while the consumptions pull, and
        when the client is closed.
        """
        self._receiver.emit_all()

    # The hooks.

    @jetsync.hookimpl
    def jetsync_shared_headers(
        self, operation: jetsync.PublishOperation | jetsync.BatchCommitOperation
    ) -> dict[str, str] | None:
        """
        Add the context of the publishing span to all messages.
        """
        return self._faults.guarded("shared_headers", self._sender.shared, operation)

    @jetsync.hookimpl(trylast=True)
    def jetsync_prepare_message(
        self, message: jetsync.OutboundMessage
    ) -> jetsync.OutboundMessage | None:
        """
        Create a span per message, with the granularity ``"message"``.
        """
        return self._faults.guarded("prepare_message", self._sender.create, message)

    @jetsync.hookimpl(wrapper=True)
    def jetsync_publish(self, operation: jetsync.PublishOperation) -> Generator[None, Any, Any]:
        """
        Create a span around a publish, a call of ``publish_many`` or a publisher.
        """
        sender = self._sender
        return (
            yield from self._around("publish", operation, sender.begin, sender.end, sender.fail)
        )

    @jetsync.hookimpl(wrapper=True)
    def jetsync_batch_commit(
        self, operation: jetsync.BatchCommitOperation
    ) -> Generator[None, Any, Any]:
        """
        Create a span around a commit.
        """
        sender = self._sender
        return (
            yield from self._around(
                "commit", operation, sender.begin_commit, sender.end_commit, sender.fail_commit
            )
        )

    @jetsync.hookimpl(wrapper=True)
    def jetsync_fetch(
        self, operation: jetsync.FetchOperation | jetsync.DirectReadOperation
    ) -> Generator[None, Any, Any]:
        """
        Create the span of a read after the read has ended.
        """
        receiver = self._receiver
        return (
            yield from self._around("read", operation, receiver.begin, receiver.end, receiver.fail)
        )

    @jetsync.hookimpl
    def jetsync_message_received(self, message: jetsync.Message | jetsync.StoredMessage) -> None:
        """
        Count a message and record its context.
        """
        # __init__ replaces this method.
        raise NotImplementedError

    @jetsync.hookimpl
    def jetsync_status(self, event: jetsync.StatusEvent) -> None:
        """
        Count messages and events, and create the last spans when the client is closed.
        """
        if isinstance(event, jetsync.PublishCountsEvent):
            self._faults.guarded("publish", self._sender.count, event)
            return
        marked = labels("status", stream=event.stream)
        marked[names.EVENT] = event.kind.value
        self._instruments.events.add(1, marked)
        if event.kind is jetsync.StatusKind.RECONNECTED:
            self._instruments.reconnects.add(1, {names.SYSTEM: names.NATS})
        elif event.kind is jetsync.StatusKind.CLOSED:
            self.flush()

    def _around(
        self,
        doing: str,
        operation: Any,
        begin: Callable[[Any], Any],
        end: Callable[[Any, Any, Any], None],
        fail: Callable[[Any, Any, BaseException], None],
    ) -> Generator[None, Any, Any]:
        begun = self._faults.guarded(doing, begin, operation)
        try:
            result = yield
        except BaseException as error:
            if begun is not None:
                self._faults.guarded(doing, fail, operation, begun, error)
            raise
        if begun is not None:
            self._faults.guarded(doing, end, operation, begun, result)
        return result


_lock = jetsync.interrupt_safe_lock()
_default: list[OTel] = []


def process(*messages: AnyMessage) -> AbstractContextManager[Span]:
    """
    Open a span around the handling of messages, for programs that load the plugin by name.

    It works like :meth:`OTel.process` of a plugin without arguments.
    """
    with _lock:
        if not _default:
            _default.append(OTel())
    return _default[0].process(*messages)
