"""
The names of the figures, and their values in a reading.
"""

from __future__ import annotations

import datetime as dt
import re
from pathlib import Path

import pytest

import jetsync
from jetsync.monitoring import METRICS, ConsumerReading, Reading, StreamReading, samples
from jetsync.monitoring.metrics import behind

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "monitoring.md"
NOW = dt.datetime(2026, 11, 29, 12, tzinfo=dt.timezone.utc)
PEERS = [
    jetsync.PeerInfo(name="n2", current=True, lag=3),
    jetsync.PeerInfo(name="n3", current=False, offline=True, lag=7),
]


def ago(seconds):
    """
    Return a time before the reading.
    """
    return NOW - dt.timedelta(seconds=seconds)


def values(reading):
    """
    Return the values by the name in Prometheus, without `jetsync_`, and by the labels.
    """
    return {
        (each.metric.prometheus_name.removeprefix("jetsync_"), *each.labels.values()): each.value
        for each in samples(reading)
    }


STREAM = StreamReading(
    name="S",
    info=jetsync.StreamInfo(
        ts=NOW,
        state=jetsync.StreamState(messages=2, first_ts=ago(60), last_ts=ago(5), consumer_count=2),
        cluster=jetsync.ClusterInfo(leader="n1", replicas=PEERS),
        sources=[
            jetsync.StreamSourceInfo(name="A", lag=9, active=2.0),
            jetsync.StreamSourceInfo(name="B", lag=1),
        ],
    ),
    consumers=(
        ConsumerReading(
            info=jetsync.ConsumerInfo(
                name="w", ts=NOW, num_pending=4, cluster=jetsync.ClusterInfo(replicas=PEERS[:1])
            ),
            oldest=ago(30),
        ),
    ),
    unanswered=1,
)


def test_the_values_of_a_stream_and_its_consumers():
    """
    Ages count from the time of the server, followers and sources have a value each.
    """
    found = values(Reading(streams=(STREAM,)))

    assert found["up",] == found["stream_up", "S"] == 1
    assert found["stream_messages", "S"] == 2
    assert (found["stream_first_age_seconds", "S"], found["stream_last_age_seconds", "S"]) == (
        60,
        5,
    )
    assert found["stream_consumers_unanswered", "S"] == 1
    assert found["stream_leader", "S", "n1"] == 1
    assert (found["stream_replicas_behind", "S"], found["stream_replicas_lag", "S"]) == (1, 7)
    assert (found["stream_source_lag", "S", "A"], found["stream_source_lag", "S", "B"]) == (9, 1)
    assert found["stream_source_age_seconds", "S", "A"] == 2
    assert ("stream_source_age_seconds", "S", "B") not in found
    assert found["consumer_num_pending", "S", "w"] == 4
    assert found["consumer_oldest_age_seconds", "S", "w"] == 30
    assert found["consumer_leader", "S", "w", ""] == 0
    assert found["consumer_replicas_behind", "S", "w"] == 0
    assert ("consumer_last_ack_age_seconds", "S", "w") not in found


@pytest.mark.parametrize(
    ("peer", "count"),
    [
        ({"current": True, "active": 0.5}, 0),
        ({"current": True, "active": 10.0}, 1),
        ({"current": True, "offline": True, "active": 0.5}, 1),
        ({"current": False, "active": 0.0}, 1),
        ({"current": True}, 0),
    ],
)
def test_followers_that_are_behind(peer, count):
    """
    A follower is also behind if the leader has not seen it for 10 seconds.
    """
    assert behind(jetsync.ClusterInfo(replicas=[jetsync.PeerInfo(**peer)])) == count
    assert behind(None) == 0


def test_sources_of_the_same_name():
    """
    They are one series, with the larger values. Two would be an error in Prometheus.
    """
    sources = [
        jetsync.StreamSourceInfo(name="A", lag=1, active=9.0),
        jetsync.StreamSourceInfo(name="A", lag=7),
    ]
    info = jetsync.StreamInfo(
        config=jetsync.StreamConfig(name="S"), state=jetsync.StreamState(), sources=sources
    )

    found = list(samples(Reading(streams=(StreamReading(name="S", info=info),))))

    of_sources = {each.metric.name: each.value for each in found if "source" in each.labels}
    assert of_sources == {"jetsync.stream.source.lag": 7, "jetsync.stream.source.age": 9}
    assert len([each for each in found if "source" in each.labels]) == 2


def test_what_failed_has_no_values():
    """
    A failed reading is only 0 for `up`, and a stream that does not answer only 0 for its own.
    """
    error = jetsync.RequestTimeoutError("x", 1.0)

    assert values(Reading(error=error)) == {("up",): 0}
    found = values(Reading(streams=(StreamReading(name="S", error=error),)))
    assert found["up",] == 1
    assert [key for key in found if "S" in key] == [("stream_up", "S")]
    assert found["stream_up", "S"] == 0


def test_limits_that_an_account_does_not_have_are_left_out():
    """
    The limits of an account are values only if there are limits.
    """
    limits = jetsync.AccountLimits(max_storage=100)

    found = values(Reading(account=jetsync.AccountInfo(storage=50, limits=limits)))

    assert found["account_storage_bytes",] == 50
    assert found["account_storage_limit_bytes",] == 100
    assert ("account_memory_limit_bytes",) not in found


def test_consumers_whose_age_is_not_known_are_counted():
    """
    A missing age shows in a figure of its own.
    """
    waiting = ConsumerReading(info=jetsync.ConsumerInfo(name="w", ts=NOW, num_pending=1))
    reading = Reading(streams=(StreamReading(name="S", consumers=(waiting,)),), lookups=3)

    found = values(reading)

    assert (found["oldest_unknown",], found["oldest_lookups",]) == (1, 3)
    assert ("consumer_oldest_age_seconds", "S", "w") not in found


def test_each_sample_has_the_labels_of_its_metric():
    """
    All samples of a metric have exactly its labels, and the metric is in the list.
    """
    for sample in samples(Reading(streams=(STREAM,), account=jetsync.AccountInfo())):
        assert sample.metric in METRICS
        assert tuple(sample.labels) == sample.metric.labels


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_names_are_those_of_the_tools(metric):
    """
    A name ends with its unit in Prometheus, and the description is a sentence.
    """
    assert re.fullmatch(r"jetsync_[a-z_]+", metric.prometheus_name)
    assert metric.prometheus_name.endswith("_seconds") == (metric.unit == "s")
    assert metric.prometheus_name.endswith("_bytes") == (metric.unit == "By")
    assert metric.unit in {"s", "By", "1"} or re.fullmatch(r"\{[a-z]+\}", metric.unit)
    assert metric.description.endswith(".")


def test_the_page_has_each_metric():
    """
    The tables of the page have the name and the unit of each metric.
    """
    lines = re.findall(
        r"^\| `(jetsync_\w+)` \| ([^|]*) \| ([^|]*) \|", PAGE.read_text("utf-8"), re.MULTILINE
    )
    units = {"s": "seconds", "By": "bytes", "1": "0 or 1"}

    assert sorted(tuple(map(str.strip, line[:2])) for line in lines) == sorted(
        (each.prometheus_name, units.get(each.unit, each.unit.strip("{}") + "s"))
        for each in METRICS
    )
