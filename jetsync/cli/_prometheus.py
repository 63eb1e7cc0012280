"""
Figures in the text format of Prometheus, by the library `prometheus_client`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from jetsync.monitoring import Metric, Sample


def library() -> Any:
    """
    Return the library, or end the command with the line that installs it.
    """
    try:
        import prometheus_client.core
        import prometheus_client.exposition
    except ImportError as error:
        raise click.ClickException(
            "this needs prometheus_client: python -m pip install 'jetsync[export]'"
        ) from error
    return prometheus_client


def families(samples: Iterable[Sample]) -> Iterator[Any]:
    """
    Yield a family of the library for each metric, with all of its samples.
    """
    found: dict[Metric, list[Sample]] = {}
    for sample in samples:
        found.setdefault(sample.metric, []).append(sample)
    make = library().core.GaugeMetricFamily
    for metric, values in found.items():
        family = make(metric.prometheus_name, metric.description, labels=metric.labels)
        for sample in values:
            family.add_metric([sample.labels[name] for name in metric.labels], sample.value)
        yield family


def as_text(samples: Iterable[Sample]) -> str:
    """
    Return the samples as the text that Prometheus reads.
    """

    class Once:
        """A registry of these samples."""

        def collect(self) -> Iterator[Any]:
            return families(samples)

    text: bytes = library().exposition.generate_latest(Once())
    return text.decode()
