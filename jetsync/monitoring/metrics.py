"""
The names, units and labels of the figures.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

import attrs

from jetsync.monitoring.monitor import ConsumerReading, Reading, StreamReading, age

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from jetsync.values.account import AccountInfo
    from jetsync.values.stream_info import ClusterInfo, StreamInfo, StreamSourceInfo

Labels: TypeAlias = dict[str, str]

_SUFFIXES: Final = {"s": "_seconds", "By": "_bytes"}


@attrs.frozen(kw_only=True)
class Metric:
    """
    A figure: its name, its unit and what it means. All of them are gauges.
    """

    name: str
    """Its name in OpenTelemetry, such as ``jetsync.consumer.num_pending``."""

    unit: str
    """Its unit as in OpenTelemetry: ``s``, ``By``, ``1``, or what is counted in braces."""

    description: str
    """What it measures."""

    labels: tuple[str, ...] = ()
    """The names of its labels."""

    @property
    def prometheus_name(self) -> str:
        """
        Its name in Prometheus, such as ``jetsync_consumer_num_pending``, with the unit at its end.
        """
        return self.name.replace(".", "_") + _SUFFIXES.get(self.unit, "")


@attrs.frozen
class Sample:
    """
    A value of a metric.
    """

    metric: Metric
    """The metric."""

    labels: dict[str, str]
    """Values of the labels, by name."""

    value: float
    """The value, in the unit of the metric."""


SILENT: Final = 10.0
"""
Seconds after which a follower that the leader has not seen counts as behind. Leaders hear from
followers each second. A follower that was killed stays up to date in the server's answers until the
next message is stored.
"""

Values: TypeAlias = "Iterable[tuple[Labels, float | None]]"
"""Values with the labels that follow those of the stream or consumer."""


_LABELS: Final[Mapping[str, tuple[str, ...]]] = {
    "stream": ("stream",),
    "consumer": ("stream", "consumer"),
}
"""The labels that figures have, by the first part of their names."""

F = TypeVar("F")


def _figure(name: str, unit: str, description: str, values: F, *labels: str) -> tuple[Metric, F]:
    """Return a metric, with the function that returns its values."""
    own = _LABELS.get(name.partition(".")[0], ())
    metric = Metric(
        name=f"jetsync.{name}", unit=unit, description=description, labels=(*own, *labels)
    )
    return metric, values


def behind(cluster: ClusterInfo | None) -> int:
    """
    Return how many followers are offline, not up to date, or silent for :data:`SILENT` seconds.
    """
    followers = cluster.replicas if cluster else ()
    return sum(
        each.offline or not each.current or (each.active or 0.0) >= SILENT for each in followers
    )


def replica_lag(cluster: ClusterInfo | None) -> int:
    """
    Return how many operations the slowest follower still has to apply.
    """
    return max((each.lag for each in (cluster.replicas if cluster else ())), default=0)


def leader(cluster: ClusterInfo | None) -> str | None:
    """
    Return the name of the leader. It may be empty on a single server, and is ``None`` without one.
    """
    return "" if cluster is None else cluster.leader or None


def _leads(cluster: ClusterInfo | None) -> Values:
    name = leader(cluster)
    yield {"leader": name or ""}, float(name is not None)


def _of_sources(info: StreamInfo, value: Callable[[StreamSourceInfo], float | None]) -> Values:
    """
    Return the largest value of each mirror or source. A stream may have several sources of a name,
    with other filters. Two values with the same labels would be an error in Prometheus.
    """
    found: dict[str, float] = {}
    for each in (*([info.mirror] if info.mirror else ()), *info.sources):
        number = value(each)
        if number is not None:
            found[each.name] = max(number, found.get(each.name, number))
    return [({"source": name}, number) for name, number in found.items()]


def _unknown(reading: Reading) -> int:
    return sum(
        consumer.oldest_age is None for stream in reading.streams for consumer in stream.consumers
    )


def _limit(number: int) -> float | None:
    """Return a limit of an account, None if there is none."""
    return None if number <= 0 else float(number)


_UP: Final = Metric(name="jetsync.up", unit="1", description="Whether the last reading succeeded.")

_READING_METRICS: Final[tuple[tuple[Metric, Callable[[Reading], float]], ...]] = (
    _figure(
        "streams.unanswered",
        "{stream}",
        "Streams of the account that the list lacks, for example because they have no leader.",
        lambda found: found.unanswered,
    ),
    _figure(
        "oldest.unknown",
        "{consumer}",
        "Consumers with waiting messages whose oldest age is not known.",
        _unknown,
    ),
    _figure(
        "oldest.lookups",
        "{message}",
        "Messages that the reading looked up, to tell the ages.",
        lambda found: found.lookups,
    ),
)

_ACCOUNT_METRICS: Final[tuple[tuple[Metric, Callable[[AccountInfo], float | None]], ...]] = (
    _figure("account.storage", "By", "Bytes on disk.", lambda found: found.storage),
    _figure(
        "account.storage.limit",
        "By",
        "Limit of the bytes on disk; missing if there is none.",
        lambda found: _limit(found.limits.max_storage),
    ),
    _figure("account.memory", "By", "Bytes in memory.", lambda found: found.memory),
    _figure(
        "account.memory.limit",
        "By",
        "Limit of the bytes in memory; missing if there is none.",
        lambda found: _limit(found.limits.max_memory),
    ),
    _figure("account.streams", "{stream}", "Streams.", lambda found: found.streams),
    _figure("account.consumers", "{consumer}", "Consumers.", lambda found: found.consumers),
)

_STREAM_UP: Final = Metric(
    name="jetsync.stream.up",
    unit="1",
    description="Whether the stream and its consumers answered.",
    labels=_LABELS["stream"],
)

_STREAM_METRICS: Final[
    tuple[tuple[Metric, Callable[[StreamReading, StreamInfo], float | Values | None]], ...]
] = (
    _figure("stream.messages", "{message}", "Messages.", lambda _, info: info.state.messages),
    _figure("stream.size", "By", "Bytes of the messages.", lambda _, info: info.state.bytes),
    _figure("stream.subjects", "{subject}", "Subjects.", lambda _, info: info.state.num_subjects),
    _figure(
        "stream.deleted",
        "{message}",
        "Sequences between the first and the last one that have no message.",
        lambda _, info: info.state.num_deleted,
    ),
    _figure(
        "stream.last_sequence",
        "{message}",
        "Sequence of the last message. Its rate is that of the stored messages.",
        lambda _, info: info.state.last_seq,
    ),
    _figure(
        "stream.first.age",
        "s",
        "Age of the first message; missing if the stream is empty.",
        lambda _, info: age(info.ts, info.state.first_ts) if info.state.messages else None,
    ),
    _figure(
        "stream.last.age",
        "s",
        "Time since the last message was stored; missing if there never was one.",
        lambda _, info: age(info.ts, info.state.last_ts),
    ),
    _figure(
        "stream.consumers", "{consumer}", "Consumers.", lambda _, info: info.state.consumer_count
    ),
    _figure(
        "stream.consumers.unanswered",
        "{consumer}",
        "Consumers that the list lacks, for example because they have no leader.",
        lambda found, _: found.unanswered,
    ),
    _figure(
        "stream.leader",
        "1",
        "1 with the name of the leader, which may be empty on a single server. 0 without a leader.",
        lambda _, info: _leads(info.cluster),
        "leader",
    ),
    _figure(
        "stream.replicas.behind",
        "{replica}",
        "Followers that are offline, not up to date, or not seen for 10 seconds.",
        lambda _, info: behind(info.cluster),
    ),
    _figure(
        "stream.replicas.lag",
        "{operation}",
        "Operations that the slowest follower still has to apply.",
        lambda _, info: replica_lag(info.cluster),
    ),
    _figure(
        "stream.source.lag",
        "{message}",
        "Messages that a mirror or source has not copied yet.",
        lambda _, info: _of_sources(info, lambda source: source.lag),
        "source",
    ),
    _figure(
        "stream.source.age",
        "s",
        "Time since anything arrived from the source; missing if nothing ever did.",
        lambda _, info: _of_sources(info, lambda source: source.active),
        "source",
    ),
)

_CONSUMER_METRICS: Final[
    tuple[tuple[Metric, Callable[[ConsumerReading], float | Values | None]], ...]
] = (
    _figure(
        "consumer.num_pending",
        "{message}",
        "Messages that the consumer has not delivered yet.",
        lambda found: found.info.num_pending,
    ),
    _figure(
        "consumer.num_ack_pending",
        "{message}",
        "Messages that were delivered and are not acknowledged yet.",
        lambda found: found.info.num_ack_pending,
    ),
    _figure(
        "consumer.num_redelivered",
        "{message}",
        "Those of them that were delivered more than once.",
        lambda found: found.info.num_redelivered,
    ),
    _figure(
        "consumer.num_waiting",
        "{request}",
        "Pulls that wait at the server. 0 if no worker is ready.",
        lambda found: found.info.num_waiting,
    ),
    _figure(
        "consumer.oldest.age",
        "s",
        "Age of the oldest message that is not acknowledged. 0 if none waits, missing if the age"
        " is not known.",
        lambda found: found.oldest_age,
    ),
    _figure(
        "consumer.last_delivery.age",
        "s",
        "Time since the last delivery; missing if there never was one.",
        lambda found: age(found.info.ts, found.info.delivered.last_active),
    ),
    _figure(
        "consumer.last_ack.age",
        "s",
        "Time since the last acknowledgement; missing if there never was one.",
        lambda found: age(found.info.ts, found.info.ack_floor.last_active),
    ),
    _figure(
        "consumer.delivered_sequence",
        "{message}",
        "Number of deliveries so far. Its rate is that of the deliveries.",
        lambda found: found.info.delivered.consumer_seq,
    ),
    _figure(
        "consumer.paused",
        "1",
        "Whether the consumer is paused.",
        lambda found: float(found.info.paused),
    ),
    _figure(
        "consumer.leader",
        "1",
        "1 with the name of the leader, which may be empty on a single server. 0 without a leader.",
        lambda found: _leads(found.info.cluster),
        "leader",
    ),
    _figure(
        "consumer.replicas.behind",
        "{replica}",
        "Followers that are offline, not up to date, or not seen for 10 seconds.",
        lambda found: behind(found.info.cluster),
    ),
    _figure(
        "consumer.replicas.lag",
        "{operation}",
        "Operations that the slowest follower still has to apply.",
        lambda found: replica_lag(found.info.cluster),
    ),
)

METRICS: Final = (
    _UP,
    *(metric for metric, _ in _READING_METRICS),
    *(metric for metric, _ in _ACCOUNT_METRICS),
    _STREAM_UP,
    *(metric for metric, _ in _STREAM_METRICS),
    *(metric for metric, _ in _CONSUMER_METRICS),
)
"""All figures that :func:`samples` returns, in their order."""


def samples(reading: Reading) -> Iterator[Sample]:
    """
    Return the values of all figures that are known.

    If the reading failed, that is only ``jetsync.up`` with the value 0.

    Args:
        reading: The reading.
    """
    yield Sample(_UP, {}, float(reading.error is None))
    if reading.error is not None:
        return
    for metric, of_reading in _READING_METRICS:
        yield Sample(metric, {}, of_reading(reading))
    if reading.account is not None:
        for metric, of_account in _ACCOUNT_METRICS:
            yield from _labelled(metric, {}, of_account(reading.account))
    for stream in reading.streams:
        labels = {"stream": stream.name}
        yield Sample(_STREAM_UP, labels, float(stream.error is None))
        if stream.info is not None:
            for metric, of_stream in _STREAM_METRICS:
                yield from _labelled(metric, labels, of_stream(stream, stream.info))
        for consumer in stream.consumers:
            labels = {"stream": stream.name, "consumer": consumer.info.name}
            for metric, of_consumer in _CONSUMER_METRICS:
                yield from _labelled(metric, labels, of_consumer(consumer))


def _labelled(metric: Metric, labels: Labels, values: float | Values | None) -> Iterator[Sample]:
    if values is None:
        return
    if isinstance(values, (int, float)):
        yield Sample(metric, labels, values)
        return
    for more, value in values:
        if value is not None:
            yield Sample(metric, {**labels, **more}, value)
