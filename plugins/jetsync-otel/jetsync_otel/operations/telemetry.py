"""
The parts of the plugin that all operations use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.propagators.textmap import TextMapPropagator
from opentelemetry.trace import Link, Status, StatusCode, Tracer

from jetsync_otel import names
from jetsync_otel.carrier import GETTER
from jetsync_otel.errors import Faults
from jetsync_otel.metrics.instruments import Instruments
from jetsync_otel.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Iterable

    from opentelemetry.trace import Span

    import jetsync


@attrs.frozen(eq=False)
class Telemetry:
    """
    How one plugin creates spans, records metrics and reports its own errors.
    """

    tracer: Tracer
    instruments: Instruments
    propagator: TextMapPropagator
    settings: Settings
    faults: Faults

    def carried_by(self, headers: jetsync.Headers) -> Context:
        """
        Return the context that the headers of a message carry.
        """
        return self.propagator.extract(headers, context=Context(), getter=GETTER)

    def links(self, found: Iterable[Context]) -> list[Link]:
        """
        Return unique links to the spans of contexts, up to max_links.
        """
        made: dict[tuple[int, int], Link] = {}
        for context in found:
            if len(made) >= self.settings.max_links:
                break
            named = trace.get_current_span(context).get_span_context()
            if named.is_valid:
                made.setdefault((named.trace_id, named.span_id), Link(named))
        return list(made.values())


def mark_failed(span: Span, error: BaseException | None, text: str | None = None) -> None:
    """
    Give a span the error of its operation. *text* replaces that of the error.
    """
    span.set_status(Status(StatusCode.ERROR, str(error) if text is None else text))
    if error is not None:
        span.set_attribute(names.ERROR_TYPE, names.error_type(error))
        span.record_exception(error)
