"""
The plugins that are measured: whatever is installed, at work.

A plugin that has nothing to do costs nothing worth measuring, so those of this repository are set
up as a program would: tracing with an SDK that records and exports, contracts that every message
has to keep. Others are loaded by name, as they are.
"""

from __future__ import annotations

import importlib.metadata
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from opentelemetry.sdk.trace import ReadableSpan

DOCUMENT = {
    "type": "object",
    "properties": {"number": {"type": "integer", "minimum": 0}, "text": {"type": "string"}},
    "required": ["number", "text"],
    "additionalProperties": False,
}
"""What the payloads of these rows are, see ``benchmarks.jobs.payload_of``."""


def installed() -> list[str]:
    """
    Return the names of the plugins that are installed.
    """
    return sorted({entry.name for entry in importlib.metadata.entry_points(group="jetsync")})


def make(name: str) -> object:
    """
    Return a plugin that is set up to work, or its name where nothing is known about it.
    """
    known: dict[str, Callable[[], object]] = {"otel": _otel, "schema": _schema}
    return known[name]() if name in known else name


def _otel() -> object:
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import (
        BatchSpanProcessor,
        SpanExporter,
        SpanExportResult,
    )

    from jetsync_otel import OTel

    class Nowhere(SpanExporter):
        """
        Take spans, and send them to nobody.
        """

        def export(self, spans: Sequence[ReadableSpan]) -> Any:
            """
            Say that all went well.
            """
            return SpanExportResult.SUCCESS if spans is not None else SpanExportResult.FAILURE

    tracing = TracerProvider()
    tracing.add_span_processor(BatchSpanProcessor(Nowhere()))
    return OTel(tracing, MeterProvider([InMemoryMetricReader()]))


def _schema() -> object:
    from jetsync_schema import JsonSchema, Schemas

    return Schemas({"bench.>": JsonSchema(DOCUMENT)}, receive="raise")
