"""
OpenTelemetry for jetsync: spans, context in headers, and metrics, by the messaging conventions.

``jetsync.connect(plugins=["otel"])`` is all that producers and readers need; what handles a message
says so with :func:`process`. The SDK, its exporters and its sampling are the application's.
"""

from jetsync_otel.carrier import HeadersGetter, HeadersSetter, extract, inject
from jetsync_otel.plugin import OTel, process
from jetsync_otel.settings import Settings

__all__ = [
    "HeadersGetter",
    "HeadersSetter",
    "OTel",
    "Settings",
    "extract",
    "inject",
    "process",
]
