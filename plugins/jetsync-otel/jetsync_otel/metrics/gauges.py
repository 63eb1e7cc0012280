"""
Gauges of streams and consumers, which the server answers when the SDK collects.

They need no message to be current: if all workers are dead, they grow.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from opentelemetry import metrics
from opentelemetry.metrics import Observation

import jetsync
from jetsync.monitoring import METRICS, Monitor, samples
from jetsync_otel import names
from jetsync_otel.errors import Faults

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from opentelemetry.metrics import CallbackOptions, MeterProvider

LABELS = {"stream": names.DESTINATION, "consumer": names.GROUP}
"""The labels that the conventions have names for."""

INTERVAL = 5.0
"""Seconds between two readings. One collection takes less, so it takes one reading."""


class Gauges:
    """
    Observable gauges of streams and consumers; made by :func:`observe`. Thread-safe.

    They share one reading: the first gauge that is collected takes it, and the others use it.
    """

    def __init__(self, monitor: Monitor, *, interval: float, timeout: float) -> None:
        self._monitor = monitor
        self._interval = interval
        self._timeout = timeout
        self._faults = Faults()
        # A collection waits for the reading of another one. It ends within twice the timeout.
        self._lock = jetsync.interrupt_safe_lock()
        self._observations: dict[str, list[Observation]] = {}
        self._read_at = -float("inf")
        self._closed = False

    def __repr__(self) -> str:
        return f"<Gauges {self._monitor!r}>"

    def close(self) -> None:
        """
        Stop asking the server. The gauges have no values from now on.

        OpenTelemetry cannot remove instruments from a meter.
        """
        self._closed = True

    def values_of(self, name: str) -> list[Observation]:
        """
        Return the values of a gauge, and take a reading if the last one is too old.

        Args:
            name: The name of the gauge.
        """
        with self._lock:
            if self._closed:
                return []
            if time.monotonic() - self._read_at >= self._interval:
                self._faults.guarded("observe", self._read)
                self._read_at = time.monotonic()
            return self._observations.get(name, [])

    def _read(self) -> None:
        self._observations = {}
        reading = self._monitor.read(timeout=self._timeout)
        if reading.error is not None:
            self._faults.report("observe", reading.error)
        for sample in samples(reading):
            labels = {LABELS.get(name, name): text for name, text in sample.labels.items()}
            labels[names.SYSTEM] = names.NATS
            found = self._observations.setdefault(sample.metric.name, [])
            found.append(Observation(sample.value, labels))


def observe(
    js: jetsync.JetStream,
    *,
    streams: Iterable[str] = "*",
    consumers: Iterable[str] = "*",
    ephemeral: bool = False,
    account: bool = True,
    lookups: int | None = None,
    meter_provider: MeterProvider | None = None,
    interval: float = INTERVAL,
    timeout: float = 5.0,
) -> Gauges:
    """
    Create gauges of streams and consumers, which the SDK collects from the server.

    The server is asked when the SDK collects, in the thread of the SDK. One reading serves all
    gauges. If the server does not answer, ``jetsync.up`` is 0, and the other gauges have no
    values. Call it once per meter provider, for example in a process that only exports.

    Args:
        js: Where to ask.
        streams: Names of streams. A ``*`` stands for any text.
        consumers: Names of consumers, likewise.
        ephemeral: Whether a ``*`` also finds consumers that are not durable.
        account: Whether to ask for the use and the limits of the account.
        lookups: How many messages a reading looks up at most, to tell the ages of the oldest
            unacknowledged ones. The default is that of ``jetsync.monitoring.Monitor``.
        meter_provider: The provider of meters. None means the global one.
        interval: Seconds between two readings. Collections that are closer share a reading.
        timeout: Seconds for a reading.

    Raises:
        InvalidNameError, InvalidTypeError, InvalidArgumentError: An argument is not valid.
    """
    given = {} if lookups is None else {"lookups": lookups}
    monitor = Monitor(
        js, streams=streams, consumers=consumers, ephemeral=ephemeral, account=account, **given
    )
    gauges = Gauges(monitor, interval=interval, timeout=timeout)
    meter = metrics.get_meter("jetsync_otel", meter_provider=meter_provider)
    for metric in METRICS:
        meter.create_observable_gauge(
            metric.name,
            [_callback(gauges, metric.name)],
            metric.unit,
            metric.description,
        )
    return gauges


def _callback(gauges: Gauges, name: str) -> Callable[[CallbackOptions], Iterable[Observation]]:
    return lambda _: gauges.values_of(name)
