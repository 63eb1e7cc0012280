"""
OpenTelemetry for jetsync: spans, context in headers, and metrics, by the messaging conventions.

Publishers and readers only need ``jetsync.connect(plugins=["otel"])``. Wrap the handling of a
message in :func:`process`. :func:`observe` creates gauges of streams and consumers. The application
chooses the SDK, the exporters and the sampler.
"""

from jetsync_otel.carrier import HeadersGetter, HeadersSetter, extract, inject
from jetsync_otel.metrics.gauges import Gauges, observe
from jetsync_otel.plugin import OTel, process
from jetsync_otel.settings import Settings

__all__ = [
    "Gauges",
    "HeadersGetter",
    "HeadersSetter",
    "OTel",
    "Settings",
    "extract",
    "inject",
    "observe",
    "process",
]
