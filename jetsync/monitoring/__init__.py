"""
The figures of streams and consumers for monitoring systems, asked from the server.

:class:`Monitor` asks, and :func:`samples` returns the figures of a :class:`Reading` under the names
that ``jetsync export``, ``jetsync check --prometheus`` and the gauges of jetsync-otel share.
``import jetsync`` does not import this module.
"""

from jetsync.monitoring.metrics import METRICS, Metric, Sample, samples
from jetsync.monitoring.monitor import ConsumerReading, Monitor, Reading, StreamReading

__all__ = [
    "METRICS",
    "ConsumerReading",
    "Metric",
    "Monitor",
    "Reading",
    "Sample",
    "StreamReading",
    "samples",
]
