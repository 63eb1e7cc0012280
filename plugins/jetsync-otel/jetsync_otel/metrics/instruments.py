"""
The metrics, one set for each plugin.
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
"""Seconds at which the conventions have histograms cut."""

LAG_BUCKETS: Final = (0.001, 0.005, 0.025, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 1800.0, 7200.0)
"""The same for the lag, which is milliseconds or hours."""


class Instruments:
    """
    Hold the instruments; any thread.
    """

    def __init__(self, meter: Meter) -> None:
        self.duration = meter.create_histogram(
            names.DURATION,
            "s",
            "Duration of an operation of a client.",
            explicit_bucket_boundaries_advisory=BUCKETS,
        )
        self.process_duration = meter.create_histogram(
            names.PROCESS_DURATION,
            "s",
            "Duration of processing messages.",
            explicit_bucket_boundaries_advisory=BUCKETS,
        )
        self.sent = meter.create_counter(
            names.SENT, "{message}", "Messages that were to be published."
        )
        self.acknowledged = meter.create_counter(
            names.ACKNOWLEDGED, "{message}", "Published messages that a stream confirmed."
        )
        self.duplicates = meter.create_counter(
            names.DUPLICATES, "{message}", "Published messages that were in their stream before."
        )
        self.consumed = meter.create_counter(
            names.CONSUMED, "{message}", "Messages that were handed to the application."
        )
        self.redelivered = meter.create_counter(
            names.REDELIVERED, "{message}", "Messages of those that had been delivered before."
        )
        self.pending = meter.create_gauge(
            names.PENDING, "{message}", "Messages that a consumer has still to deliver."
        )
        self.lag = meter.create_histogram(
            names.LAG,
            "s",
            "How long messages had been stored when they were handed over, sampled.",
            explicit_bucket_boundaries_advisory=LAG_BUCKETS,
        )
        self.reconnects = meter.create_counter(
            names.RECONNECTS, "{reconnect}", "How often a connection was restored."
        )
        self.events = meter.create_counter(
            names.EVENTS, "{event}", "Statuses, events of connections and warnings."
        )


def labels(operation: str, **more: str | None) -> Labels:
    """
    Return the labels of a metric: the operation, and what else is known.
    """
    made: Labels = {names.SYSTEM: names.NATS, names.OPERATION: operation}
    if more.get("stream"):
        made[names.DESTINATION] = str(more["stream"])
    if more.get("consumer"):
        made[names.GROUP] = str(more["consumer"])
    if more.get("error"):
        made[names.ERROR_TYPE] = str(more["error"])
    return made
