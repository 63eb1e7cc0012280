"""
The plugin: what each hook means for traces and metrics.

Nothing that goes wrong here reaches the traffic: it is logged once, and the message goes on.
"""

from __future__ import annotations

import functools
import threading
from typing import TYPE_CHECKING, Any, TypeVar

from opentelemetry import metrics, propagate, trace

import jetsync
from jetsync_otel import names
from jetsync_otel.errors import Faults
from jetsync_otel.metrics.instruments import Instruments, labels
from jetsync_otel.operations.processing import Processor
from jetsync_otel.operations.publishing import Sender
from jetsync_otel.operations.receiving import Receiver
from jetsync_otel.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from contextlib import AbstractContextManager

    from opentelemetry.metrics import MeterProvider
    from opentelemetry.propagators.textmap import TextMapPropagator
    from opentelemetry.trace import Span, TracerProvider

    from jetsync_otel.operations.processing import AnyMessage

T = TypeVar("T")

VERSION = "0.1.0"


class OTel:
    """
    Trace and measure what a client publishes and reads.

    For ``jetsync.connect(plugins=[OTel(...)])``; the name ``"otel"`` stands for one that is made
    without arguments. Any number of threads and clients may share one.

    Args:
        tracer_provider: Where spans go; ``None`` for the global provider, also if that is set
            later.
        meter_provider: The same for metrics.
        propagator: How context is written and read; ``None`` for the configured one, W3C unless
            ``OTEL_PROPAGATORS`` says otherwise.
        settings: What is traced; ``None`` for what the environment says.

    Raises:
        ConfigurationError: A variable of the environment makes no sense.
    """

    name = "otel"

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
        what = (tracer, self._instruments, chosen, self.settings)
        self._sender = Sender(*what)
        self._receiver = Receiver(*what, self._faults)
        self._processor = Processor(*what, self._faults)
        # A function and no method: it runs for every message, and finds all it needs in its cells.
        received = jetsync.hookimpl(self._receiver.tallies.hook())
        self.jetsync_message_received = received  # type: ignore[assignment,method-assign]
        if self.settings.granularity == "window":
            # A hook that nobody implements costs nothing per message.
            self.jetsync_prepare_message = None  # type: ignore[assignment,method-assign]

    def __repr__(self) -> str:
        return f"<OTel {self.settings}>"

    # What handles messages.

    def process(self, *messages: AnyMessage) -> AbstractContextManager[Span]:
        """
        Open a span around the handling of a message, or of several at a time.

        The span is the current one within the block, and links to the spans that published the
        messages. Where no other span is current, that of a single message is in the trace of its
        producer, as its child. An error that leaves the block is noted and goes on.

        Args:
            messages: What is handled; from a consumer, or read directly.

        Returns:
            A context manager that gives the span.
        """
        return self._processor.process(messages)

    def handler(self, handle: Callable[[AnyMessage], T]) -> Callable[[AnyMessage], T]:
        """
        Return a handler that does what another one does, in a span as of :meth:`process`.

        Args:
            handle: What handles a message; for ``consume`` for example.
        """

        @functools.wraps(handle)
        def traced(message: AnyMessage) -> T:
            with self.process(message):
                return handle(message)

        return traced

    def flush(self) -> None:
        """
        Make the spans and counts of what consumptions have handed over so far.

        Otherwise that is done with their pulls, once a second, and when the client is closed.
        """
        self._receiver.tell_all()

    # The hooks.

    @jetsync.hookimpl
    def jetsync_shared_headers(
        self, operation: jetsync.PublishOperation | jetsync.BatchCommitOperation
    ) -> dict[str, str] | None:
        """
        Give messages the context of what they are published by.
        """
        return self._faults.guarded("shared_headers", self._sender.shared, operation)

    @jetsync.hookimpl(trylast=True)
    def jetsync_prepare_message(
        self, message: jetsync.OutboundMessage
    ) -> jetsync.OutboundMessage | None:
        """
        Give each message a span of its own.
        """
        return self._faults.guarded("prepare_message", self._sender.create, message)

    @jetsync.hookimpl(wrapper=True)
    def jetsync_publish(self, operation: jetsync.PublishOperation) -> Generator[None, Any, Any]:
        """
        Have a span around a publish, or a window.
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
        Have a span around a commit.
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
        Have a span of a read once it is over.
        """
        receiver = self._receiver
        return (
            yield from self._around("read", operation, receiver.begin, receiver.end, receiver.fail)
        )

    @jetsync.hookimpl
    def jetsync_message_received(self, message: jetsync.Message | jetsync.StoredMessage) -> None:
        """
        Count a message, and remember where it came from.
        """
        # Each plugin that is made has another function in the place of this one.
        raise NotImplementedError

    @jetsync.hookimpl
    def jetsync_status(self, event: jetsync.StatusEvent) -> None:
        """
        Count events, and make the last spans of a client that is closed.
        """
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


_lock = threading.RLock()
_default: list[OTel] = []


def process(*messages: AnyMessage) -> AbstractContextManager[Span]:
    """
    Open a span around the handling of messages, as :meth:`OTel.process` of a plugin that was made
    without arguments: for programs that ask for the plugin by name.
    """
    with _lock:
        if not _default:
            _default.append(OTel())
    return _default[0].process(*messages)
