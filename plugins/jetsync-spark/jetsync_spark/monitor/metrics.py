"""
OpenTelemetry metrics of streaming queries. Needs the package ``opentelemetry-api``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from opentelemetry import metrics
from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from jetsync_spark.monitor.values import QueryProgress

__all__ = ["Metrics"]

QUERY = "jetsync.spark.query"
STREAM = "messaging.destination.name"


class Metrics:
    """
    The instruments.

    Args:
        provider: Creates the meter. None selects the global provider.
        running: Returns the progress of the running queries.
    """

    def __init__(
        self, provider: MeterProvider | None, running: Callable[[], Iterable[QueryProgress]]
    ) -> None:
        meter = metrics.get_meter("jetsync-spark", meter_provider=provider)
        self._running = running
        self._rows = meter.create_counter(
            "jetsync.spark.rows", unit="{row}", description="Rows that a query has read."
        )
        self._seconds = meter.create_histogram(
            "jetsync.spark.batch.duration", unit="s", description="Duration of micro-batches."
        )
        self._backlog = meter.create_observable_gauge(
            "jetsync.spark.backlog",
            [self._observe],
            unit="{sequence}",
            description="Sequences of a stream that a query has not read yet.",
        )

    def count(self, found: QueryProgress) -> None:
        """
        Record a micro-batch.
        """
        labels = {QUERY: found.name or found.id}
        self._rows.add(found.rows, labels)
        self._seconds.record(found.seconds, labels)

    def _observe(self, _options: CallbackOptions) -> Iterable[Observation]:
        for query in self._running():
            for each in query.streams:
                if each.backlog is not None:
                    labels = {QUERY: query.name or query.id, STREAM: each.stream}
                    yield Observation(each.backlog, labels)
