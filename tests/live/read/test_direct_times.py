"""
Times that the clock of servers cannot represent, in every call that takes one.
"""

from __future__ import annotations

import datetime as dt

import pytest

import jetsync
from helpers.waiting import eventually

UTC = dt.timezone.utc

# Servers count nanoseconds in 64 bits: from September 1677 to April 2262.
EARLY = [
    dt.datetime.min.replace(tzinfo=UTC),
    dt.datetime(1600, 1, 1, tzinfo=UTC),
    dt.datetime(1677, 9, 21, tzinfo=UTC),
]
LATE = [
    dt.datetime(2262, 4, 12, tzinfo=UTC),
    dt.datetime(2600, 1, 1, tzinfo=UTC),
    dt.datetime.max.replace(tzinfo=UTC),
]


def get_at(stream, time):
    """
    Return the messages from the first one since a time.
    """
    try:
        return list(range(stream.get_at(time).sequence, 4))
    except jetsync.MessageNotFoundError:
        return []


def of_consumer(stream, time):
    """
    Return how many messages a new consumer reads.
    """
    consumer = stream.create_consumer(deliver_policy="by_start_time", opt_start_time=time)
    return [message.metadata.stream_sequence for message in consumer.fetch(10, no_wait=True)]


def of_ordered(stream, time):
    """
    Return what an ordered consumer reads.
    """
    with stream.ordered_consumer(opt_start_time=time) as ordered:
        return [each.metadata.stream_sequence for each in ordered.fetch(10, no_wait=True)]


STARTS = {
    "get_at": get_at,
    "get_batch": lambda stream, time: numbers(stream.get_batch(10, start_time=time)),
    "scan": lambda stream, time: numbers(stream.scan(start_time=time)),
    "consumer": of_consumer,
    "ordered": of_ordered,
}


def numbers(messages):
    """
    Return the sequences of stored messages.
    """
    return [message.sequence for message in messages]


@pytest.fixture(params=["memory", "file"])
def bucket(js, unique, request):
    """
    A bucket with three revisions of two keys.
    """
    made = js.create_key_value(unique, storage=request.param, history=5)
    for key in ("a", "b", "a"):
        made.put(key, b"value")
    yield made
    js.delete_key_value(unique)


@pytest.mark.parametrize("name", STARTS)
def test_a_start_outside_the_clock(bucket, name):
    """A start before the clock of servers reads everything, and one after it nothing."""
    read = STARTS[name]
    assert [read(bucket.stream, time) for time in EARLY] == [[1, 2, 3]] * 3
    assert [read(bucket.stream, time) for time in LATE] == [[]] * 3


def test_an_end_outside_the_clock(bucket):
    """An end before the clock of servers reads nothing, and one after it everything."""
    subjects = f"$KV.{bucket.bucket}.>"
    for time in EARLY:
        assert numbers(bucket.stream.get_last_for(subjects, up_to_time=time)) == []
        assert bucket.get_many(["a", "b"], at=time) == {}
    for time in LATE:
        assert numbers(bucket.stream.get_last_for(subjects, up_to_time=time)) == [2, 3]
        assert sorted(bucket.get_many(["a", "b"], at=time)) == ["a", "b"]


def test_a_source_from_a_time_outside_the_clock(js, bucket, unique):
    """A source copies everything from a time before the clock, and nothing from one after it."""
    sources = [
        jetsync.StreamSource(name=bucket.stream.name, opt_start_time=time)
        for time in (EARLY[0], LATE[-1])
    ]
    copies = [js.create_stream(f"{unique}-{n}", sources=[each]) for n, each in enumerate(sources)]
    try:
        assert eventually(lambda: copies[0].info().state.messages == 3)
        assert copies[1].info().state.messages == 0
    finally:
        for each in copies:
            each.delete()


def test_a_pause_until_a_time_outside_the_clock(bucket):
    """A pause until a time after the clock of servers has no end, and one before it is over."""
    stream = bucket.stream
    consumer = stream.create_consumer("worker")
    for times, paused in ((EARLY, False), (LATE, True)):
        for time in times:
            stream.pause_consumer("worker", time)
            assert consumer.info().paused is paused
            made = stream.create_consumer(pause_until=time)
            assert made.info().paused is paused
