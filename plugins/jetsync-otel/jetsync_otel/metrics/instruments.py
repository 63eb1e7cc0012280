"""
The instruments of one plugin.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

from jetsync_otel import names

if TYPE_CHECKING:
    from opentelemetry.metrics import Meter

    Labels: TypeAlias = dict[str, str | int | bool]

BUCKETS: Final = (
    0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
)  # fmt: skip
"""Histogram boundaries of the conventions, in seconds."""

LAG_BUCKETS: Final = (0.001, 0.005, 0.025, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 1800.0, 7200.0)
"""Histogram boundaries of the lag, which ranges from milliseconds to hours."""


class Instruments:
    """
    The instruments. Thread-safe.
    """

    def __init__(self, meter: Meter) -> None:
        self.duration = meter.create_histogram(
            names.DURATION,
            "s",
            "Duration of a client operation.",
            explicit_bucket_boundaries_advisory=BUCKETS,
        )
        self.process_duration = meter.create_histogram(
            names.PROCESS_DURATION,
            "s",
            "Duration of processing messages.",
            explicit_bucket_boundaries_advisory=BUCKETS,
        )
        self.sent = meter.create_counter(names.SENT, "{message}", "Messages passed to a publish.")
        self.acknowledged = meter.create_counter(
            names.ACKNOWLEDGED, "{message}", "Published messages that a stream acknowledged."
        )
        self.duplicates = meter.create_counter(
            names.DUPLICATES,
            "{message}",
            "Published messages that the stream dropped as duplicates.",
        )
        self.consumed = meter.create_counter(
            names.CONSUMED, "{message}", "Messages delivered to the application."
        )
        self.redelivered = meter.create_counter(
            names.REDELIVERED, "{message}", "Delivered messages that had been delivered before."
        )
        self.pending = meter.create_gauge(
            names.PENDING, "{message}", "Messages that a consumer has not sent yet."
        )
        self.lag = meter.create_histogram(
            names.LAG,
            "s",
            "Age of messages at delivery, sampled.",
            explicit_bucket_boundaries_advisory=LAG_BUCKETS,
        )
        self.reconnects = meter.create_counter(
            names.RECONNECTS, "{reconnect}", "Number of reconnects."
        )
        self.events = meter.create_counter(
            names.EVENTS, "{event}", "Statuses, connection events and warnings."
        )


def labels(
    operation: str,
    *,
    stream: str | None = None,
    consumer: str | None = None,
    error: BaseException | type[BaseException] | None = None,
) -> Labels:
    """
    Return the labels of a metric.
    """
    made: Labels = {names.SYSTEM: names.NATS, names.OPERATION: operation}
    if stream:
        made[names.DESTINATION] = stream
    if consumer:
        made[names.GROUP] = consumer
    if error is not None:
        made[names.ERROR_TYPE] = names.error_type(error)
    return made
