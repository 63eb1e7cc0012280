"""
Metrics of OpenTelemetry about written rows, in the process that commits a write.

Spark shows no metrics of Python sinks in ``lastProgress``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["count_written"]

OUTCOMES = ("stored", "duplicates", "skipped", "invalid")


def count_written(stream: str, query: str | None, tasks: Iterable[Any]) -> dict[str, int]:
    """
    Count the rows of a write, and return the counts.

    Args:
        stream: The name of the stream.
        query: The query, or the ID of the write, if there is one.
        tasks: The counts of each task, with the fields of :class:`Written`.
    """
    done = list(tasks)
    counts = {name: sum(getattr(each, name) for each in done) for name in OUTCOMES}
    try:
        from opentelemetry.metrics import get_meter
    except ImportError:
        return counts
    counter = get_meter("jetsync-spark").create_counter(
        "jetsync.spark.written", unit="{row}", description="Rows of writes, by their outcome."
    )
    labels = {"messaging.destination.name": stream}
    if query is not None:
        labels["jetsync.spark.query"] = query
    for outcome, rows in counts.items():
        if rows:
            counter.add(rows, {**labels, "jetsync.spark.outcome": outcome})
    return counts
