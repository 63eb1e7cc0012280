"""
Samples of streams and consumers: their state, their lag, and rates between two samples.

`report` takes two samples, and `top` one after the other. A list of streams or consumers is one
request for 256 of them.
"""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import attrs

import jetsync
from jetsync.monitoring.metrics import behind
from jetsync.monitoring.monitor import age

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

PAGE: Final = 256
"""Streams or consumers in one answer of a server."""

Info = TypeVar("Info", jetsync.StreamInfo, jetsync.ConsumerInfo)


def asked_at(info: jetsync.StreamInfo | jetsync.ConsumerInfo) -> dt.datetime:
    """
    Return when the server collected an info, by its own clock.
    """
    return info.ts or dt.datetime.now(dt.timezone.utc)


@attrs.frozen
class Sample(Generic[Info]):
    """
    The info of a stream or a consumer, with the rate since the sample before.
    """

    info: Info
    at: dt.datetime
    rate: float | None = None
    """Messages per second that were stored or delivered; None if there was no sample before."""


Streams = dict[str, Sample[jetsync.StreamInfo]]
Consumers = dict[str, dict[str, Sample[jetsync.ConsumerInfo]]]
"""Consumers by their names, by streams."""


def stored(info: jetsync.StreamInfo) -> int:
    """
    Return how many messages a stream has stored since it was created.
    """
    return info.state.last_seq


def delivered(info: jetsync.ConsumerInfo) -> int:
    """
    Return how many messages a consumer has delivered, with redeliveries.
    """
    return info.delivered.consumer_seq


def sampled(info: Info, before: Sample[Info] | None, count: Callable[[Info], int]) -> Sample[Info]:
    """
    Return a sample with the rate since the one before.
    """
    at = asked_at(info)
    # Another stream or consumer of the same name counts from the beginning.
    if before is None or before.info.created != info.created:
        return Sample(info, at)
    seconds = (at - before.at).total_seconds()
    more = count(info) - count(before.info)
    # A reset moves a consumer back.
    return Sample(info, at, more / seconds if seconds > 0 and more >= 0 else None)


def lag(info: jetsync.ConsumerInfo) -> int:
    """
    Return how many messages a consumer has to deliver, or waits to be acknowledged.
    """
    return info.num_pending + info.num_ack_pending


def slowest(consumers: Consumers) -> dict[str, int]:
    """
    Return the lag of the slowest consumer of each stream that has consumers.
    """
    return {
        stream: max(lag(sample.info) for sample in found.values())
        for stream, found in consumers.items()
        if found
    }


@attrs.define
class Sampler:
    """
    Takes samples of streams and of their consumers.
    """

    js: jetsync.JetStream
    subject: str | None = None
    """Only streams whose subjects match."""

    names: frozenset[str] = frozenset()
    """Only these streams; all if empty."""

    budget: int | None = None
    """
    How many requests a round may make for consumers. The streams that were not asked keep their
    last samples and are the first of the next round. One stream is asked in each round, even if it
    has too many consumers.
    """

    streams: Streams = attrs.field(factory=dict)
    consumers: Consumers = attrs.field(factory=dict)
    waiting: list[str] = attrs.field(factory=list)
    """The streams with consumers that the last round did not ask."""

    requests: int = 0
    """The requests of the last round."""

    def round(self) -> None:
        """
        Take a sample of all streams, and of as many consumers as the budget allows.

        Raises:
            StreamNotFoundError: A stream that was named does not exist.
        """
        self._sample_streams()
        self._sample_consumers()

    def _sample_streams(self) -> None:
        before, self.streams = self.streams, {}
        if self.names:
            infos: Iterable[jetsync.StreamInfo] = (
                self.js.stream(name).cached_info for name in sorted(self.names)
            )
            self.requests = len(self.names)
        else:
            infos = (each.cached_info for each in self.js.streams(self.subject))
            self.requests = 0
        found = {info.config.name or "": info for info in infos}
        self.requests = self.requests or max(1, -(-len(found) // PAGE))
        self.streams = {
            name: sampled(info, before.get(name), stored) for name, info in found.items()
        }

    def _sample_consumers(self) -> None:
        used = [name for name, each in self.streams.items() if each.info.state.consumer_count]
        first = [name for name in self.waiting if name in {*used}]
        before, self.consumers, self.waiting = self.consumers, {}, []
        left = self.budget
        for name in dict.fromkeys(first + used):
            cost = max(1, -(-self.streams[name].info.state.consumer_count // PAGE))
            if left is not None and cost > left and left != self.budget:
                self.waiting.append(name)
                self.consumers[name] = before.get(name, {})
                continue
            self.consumers[name] = self._ask(name, before.get(name, {}))
            self.requests += cost
            left = None if left is None else left - cost

    def _ask(
        self, stream: str, before: dict[str, Sample[jetsync.ConsumerInfo]]
    ) -> dict[str, Sample[jetsync.ConsumerInfo]]:
        try:
            infos = [each.cached_info for each in self.js.stream(stream, lookup=False).consumers()]
        except jetsync.StreamNotFoundError:
            # It was removed after the list was made.
            infos = []
        return {info.name: sampled(info, before.get(info.name), delivered) for info in infos}


def rounded(number: float | None) -> float | None:
    """
    Return a measured number as `--json` prints it.
    """
    return None if number is None else round(number, 3)


def stream_dict(sample: Sample[jetsync.StreamInfo], lags: dict[str, int]) -> dict[str, Any]:
    """
    Return a stream for JSON.
    """
    info = sample.info
    name = info.config.name or ""
    return {
        "stream": name,
        "messages": info.state.messages,
        "bytes": info.state.bytes,
        "messages_per_second": rounded(sample.rate),
        "consumers": info.state.consumer_count,
        "lag": lags.get(name, 0),
        "idle_seconds": rounded(age(sample.at, info.state.last_ts)),
        "replicas": info.config.num_replicas,
        "replicas_behind": behind(info.cluster),
        "leader": info.cluster and info.cluster.leader,
        "mirror_lag": None if info.mirror is None else info.mirror.lag,
    }


def consumer_dict(sample: Sample[jetsync.ConsumerInfo]) -> dict[str, Any]:
    """
    Return a consumer for JSON.
    """
    info = sample.info
    return {
        "stream": info.stream_name,
        "consumer": info.name,
        "lag": lag(info),
        "pending": info.num_pending,
        "unacknowledged": info.num_ack_pending,
        "redelivered": info.num_redelivered,
        "waiting_pulls": info.num_waiting,
        "messages_per_second": rounded(sample.rate),
        "idle_seconds": rounded(age(sample.at, info.delivered.last_active)),
        "last_ack_seconds": rounded(age(sample.at, info.ack_floor.last_active)),
        "paused": info.paused,
        "leader": info.cluster and info.cluster.leader,
    }
