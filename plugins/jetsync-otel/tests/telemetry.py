"""
Providers for one test, and their records.
"""

from __future__ import annotations

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from jetsync_otel import OTel, Settings


class Telemetry:
    """
    Providers for one test, and their records.
    """

    def __init__(self):
        self.exporter = InMemorySpanExporter()
        self.tracer_provider = TracerProvider(shutdown_on_exit=False)
        self.tracer_provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.reader = InMemoryMetricReader()
        self.meter_provider = MeterProvider([self.reader], shutdown_on_exit=False)
        self.tracer = self.tracer_provider.get_tracer("test")

    def plugin(self, **settings):
        """
        Make a plugin that uses the providers.
        """
        return OTel(self.tracer_provider, self.meter_provider, settings=Settings(**settings))

    @property
    def spans(self):
        """
        Return the spans that have ended, in the order in which they began.
        """
        return sorted(self.exporter.get_finished_spans(), key=lambda span: span.start_time)

    def of(self, operation):
        """
        Return the spans of one operation, in the order in which they began.
        """
        name = "messaging.operation.name"
        return [span for span in self.spans if span.attributes.get(name) == operation]

    def points(self, metric):
        """
        Return the data points of a metric, each with its labels.
        """
        data = self.reader.get_metrics_data()
        return [
            (dict(point.attributes), point)
            for resource in (data.resource_metrics if data else ())
            for scope in resource.scope_metrics
            for each in scope.metrics
            if each.name == metric
            for point in each.data.data_points
        ]

    def total(self, metric, **labels):
        """
        Return the sum of a counter, or the number of a histogram's values, over points with labels.

        Labels are given by the last part of their name.
        """
        return sum(
            getattr(point, "value", None) or getattr(point, "count", 0)
            for found, point in self.points(metric)
            if all(
                any(
                    key.split(".", 1)[1].replace(".", "_") == name and value == wanted
                    for key, value in found.items()
                )
                for name, wanted in labels.items()
            )
        )


def ids(context):
    """
    Return the trace and the span of a context.
    """
    return context.trace_id, context.span_id
