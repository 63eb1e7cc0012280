"""
The ages of the oldest unacknowledged messages, and the reads that they take.
"""

from __future__ import annotations

import pytest

import jetsync
from helpers.waiting import eventually
from jetsync.monitoring import Monitor

VERSIONS = [pytest.param("2.10.26", marks=pytest.mark.versions), None]


@pytest.fixture(params=VERSIONS)
def stream(request, js_of, unique):
    """
    A stream with three subjects on each version.
    """
    js = js_of(request.param)
    made = js.create_stream(unique, subjects=[f"{unique}.>"], allow_direct=True)
    for number in range(30):
        js.publish(f"{unique}.{number % 3}", b"x")
    yield made
    js.delete_stream(unique)


@pytest.fixture
def monitor(stream):
    """
    A monitor of the stream.
    """
    return Monitor(stream._context and jetsync.JetStream(stream._context), streams=stream.name)


def oldest(reading):
    """
    Return the time of the oldest message by consumer.
    """
    return {each.info.name: each.oldest for each in reading.streams[0].consumers}


def stored(stream, sequence):
    """
    Return when a message was stored.
    """
    return stream.get_message(sequence).timestamp


def test_positions(stream, monitor):
    """
    The oldest message is the first one that the consumer would deliver and that has no ack.
    """
    new = stream.create_consumer("all")
    stream.create_consumer("second", filter_subject=f"{stream.name}.1")
    stream.create_consumer("two", filter_subjects=[f"{stream.name}.1", f"{stream.name}.2"])
    # Server 2.10 reports the floor 0 for these until the first ack.
    late = stream.create_consumer("late", deliver_policy="by_start_sequence", opt_start_seq=12)
    fresh = stream.create_consumer("fresh", deliver_policy="new")
    stream.create_consumer("done", deliver_policy="new", filter_subject=f"{stream.name}.0")
    jetsync.JetStream(stream._context).publish(f"{stream.name}.1", b"x")
    late.next(expires=5)
    silent = stream.create_consumer("silent", ack_policy="none")
    list(silent.fetch(4, expires=5))
    first, second, third = new.fetch(3, expires=5)
    second.ack_sync()

    reading = monitor.read()

    assert oldest(reading) == {
        "all": stored(stream, 1),
        "second": stored(stream, 2),
        "two": stored(stream, 2),
        "late": stored(stream, 12),
        "fresh": stored(stream, 31),
        "done": None,
        "silent": stored(stream, 5),
    }
    first.ack_sync()
    assert oldest(monitor.read())["all"] == stored(stream, 3)
    # The last message of a stream takes no read.
    third.ack_sync()
    for message in new.fetch(27, expires=5):
        message.ack_sync()
    assert oldest(monitor.read())["all"] == stored(stream, 31)
    for message in fresh.fetch(1, expires=5):
        message.ack_sync()
    assert oldest(monitor.read())["fresh"] is None


def test_messages_are_looked_up_once(stream, monitor):
    """
    A message is read once for all consumers of a filter, and not again while it is the answer.
    """
    for number in range(5):
        stream.create_consumer(f"c{number}", filter_subject=f"{stream.name}.2")
    assert monitor.read().lookups == 1
    assert monitor.read().lookups == 0
    worker = stream.consumer("c3")
    before = oldest(monitor.read())
    worker.next(expires=5).ack_sync()
    after = monitor.read()
    assert after.lookups == 1
    assert oldest(after) == {**before, "c3": stored(stream, 6)}


def test_a_deleted_message_is_no_answer(stream, monitor):
    """
    If a purge or a limit of the stream removes it, the next message of the filter is the oldest.
    """
    stream.create_consumer("worker", filter_subject=f"{stream.name}.1")
    assert oldest(monitor.read())["worker"] == stored(stream, 2)
    stream.purge(sequence=4)
    assert oldest(monitor.read())["worker"] == stored(stream, 5)
    stream.update(max_msgs=24)
    assert stream.info().state.first_seq == 7
    assert oldest(monitor.read())["worker"] == stored(stream, 8)


def test_lookups_are_limited(stream, monitor):
    """
    A reading makes no more lookups than allowed, and begins with the oldest acknowledgement.
    """
    js = jetsync.JetStream(stream._context)
    for number in range(3):
        stream.create_consumer(f"c{number}", filter_subject=f"{stream.name}.{number}")
        stream.create_consumer(f"d{number}", deliver_policy="by_start_sequence", opt_start_seq=5)
    stream.consumer("c0").next(expires=5).ack_sync()
    for name in ("c2", "c1"):
        eventually(lambda name=name: stream.consumer(name).next(expires=5)).ack_sync()
    few = Monitor(js, streams=stream.name, consumers="c*", lookups=2)

    first = few.read()

    assert first.lookups == 2
    assert oldest(first) == {"c0": stored(stream, 4), "c2": stored(stream, 6), "c1": None}
    second = few.read()
    assert second.lookups == 1
    assert oldest(second)["c1"] == stored(stream, 5)
    assert Monitor(js, streams=stream.name, lookups=0).read().lookups == 0


def test_large_messages_end_the_lookups(stream, monitor, monkeypatch):
    """
    After 8 MiB of payloads, a reading looks up no further message.
    """
    monkeypatch.setattr("jetsync.monitoring.oldest.MAX_BYTES", 1)
    for number in range(3):
        stream.create_consumer(f"c{number}", filter_subject=f"{stream.name}.{number}")
    reading = monitor.read()
    assert reading.lookups == 1
    assert sorted(each is None for each in oldest(reading).values()).count(True) in {1, 2}
