"""
What plugins cost: programs pay for the hooks that a plugin implements, and for no others.

Calls are counted, because times depend on the machine.
"""

from __future__ import annotations

import sys

import pytest

import jetsync
from jetsync.testing import HookRecorder

HOOK_FILES = ("jetsync/_hooks/", "jetsync/publish/hooks.py", "jetsync/testing/_recorder.py")

READING = ("jetsync_fetch", "jetsync_message_received", "jetsync_ttl_marker")
WRITING = (
    "jetsync_batch_commit",
    "jetsync_prepare_message",
    "jetsync_publish",
    "jetsync_retry",
    "jetsync_shared_headers",
)

FEW, MANY = 3, 60


@pytest.fixture
def connected(nats_server, unique):
    """
    A factory of a client with a plugin that implements some hooks, and of a stream.
    """
    clients = []

    def connected(*hooks):
        clients.append(jetsync.connect(nats_server.url, plugins=[HookRecorder(*hooks)]))
        js = clients[-1].jetstream()
        stream = js.create_stream(
            unique,
            subjects=[f"{unique}.>"],
            storage="memory",
            allow_direct=True,
            allow_atomic=True,
            allow_batched=True,
        )
        return js, stream

    yield connected
    clients[0].jetstream().delete_stream(unique)
    for client in clients:
        client.close()


def calls_of(work, *arguments):
    """
    Return how many functions of plugins, and of the code around them, a call runs in this thread.
    """
    count = 0

    def profile(frame, event, _):
        nonlocal count
        name = frame.f_code.co_filename.replace("\\", "/")
        if event == "call" and any(each in name for each in HOOK_FILES):
            count += 1

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        work(*arguments)
    finally:
        sys.setprofile(before)
    return count


def publish_many(js, message, count):
    """
    Publish in bulk.
    """
    js.publish_many([message] * count)


def publisher(js, message, count):
    """
    Publish with a future per message.
    """
    with js.publisher() as publisher:
        for _ in range(count):
            publisher.publish(*message)


def publish_batch(js, message, count):
    """
    Publish an atomic batch in one call.
    """
    js.publish_batch([message] * count)


def atomic_add(js, message, count):
    """
    Publish an atomic batch message by message.
    """
    with js.atomic_batch() as batch:
        for _ in range(count):
            batch.add(*message)


def fast_add(js, message, count):
    """
    Publish by fast ingest message by message.
    """
    with js.fast_publisher() as fast:
        for _ in range(count):
            fast.add(*message)


def fast_add_many(js, message, count):
    """
    Publish by fast ingest in bulk.
    """
    with js.fast_publisher() as fast:
        fast.add_many([message] * count)


def fetch_ack(consumer, count):
    """
    Fetch and acknowledge each message.
    """
    for message in consumer.fetch(count, expires=30):
        message.ack()


def fetch_batch_ack(consumer, count):
    """
    Fetch and acknowledge all messages at once.
    """
    batch = consumer.fetch(count, expires=30)
    assert len(list(batch)) == count
    assert batch.ack() == count


def consume_ack(consumer, count):
    """
    Consume and acknowledge each message.
    """
    with consumer.consume(stop_after=count) as messages:
        for message in messages:
            message.ack()


def ordered(stream, count):
    """
    Read in order.
    """
    with stream.ordered_consumer() as reader:
        assert len(list(reader.consume(stop_after=count))) == count


def scan(stream, count):
    """
    Read directly.
    """
    assert len(list(stream.scan(end=count))) == count


@pytest.mark.parametrize(
    "write", [publish_many, publisher, publish_batch, atomic_add, fast_add, fast_add_many]
)
def test_publishing_does_not_pay_per_message_for_plugins_that_read(connected, write):
    """
    A publish with 60 messages makes as many calls for plugins as one with 3.
    """
    js, stream = connected(*READING)
    message = f"{stream.name}.A", b"x"
    write(js, message, FEW)
    few = calls_of(write, js, message, FEW)
    assert calls_of(write, js, message, MANY) == few


@pytest.mark.parametrize("read", [fetch_ack, fetch_batch_ack, consume_ack])
def test_consumers_do_not_pay_for_plugins_that_publish(connected, read):
    """
    Reading and acknowledging makes no call for plugins that only look at publishes.
    """
    js, stream = connected(*WRITING)
    js.publish_many([(f"{stream.name}.A", b"x")] * MANY)
    assert calls_of(read, stream.create_consumer("worker"), MANY) == 0


@pytest.mark.parametrize("read", [ordered, scan])
def test_streams_do_not_pay_for_plugins_that_publish(connected, read):
    """
    The same holds without a consumer of your own.
    """
    js, stream = connected(*WRITING)
    js.publish_many([(f"{stream.name}.A", b"x")] * MANY)
    assert calls_of(read, stream, MANY) == 0


@pytest.mark.parametrize("read", [fetch_ack, fetch_batch_ack])
def test_fetches_call_their_wrappers_once(connected, read):
    """
    A plugin that wraps fetches makes as many calls for 60 messages as for 3.
    """
    js, stream = connected("jetsync_fetch")
    js.publish_many([(f"{stream.name}.A", b"x")] * (MANY + FEW))
    consumer = stream.create_consumer("worker")
    few = calls_of(read, consumer, FEW)
    assert few > 0
    assert calls_of(read, consumer, MANY) == few


@pytest.mark.parametrize("write", [publish_batch, atomic_add, fast_add, fast_add_many])
def test_batches_call_their_wrappers_once(connected, write):
    """
    A plugin that wraps commits makes as many calls for 60 messages as for 3.
    """
    js, stream = connected("jetsync_batch_commit")
    message = f"{stream.name}.A", b"x"
    write(js, message, FEW)
    few = calls_of(write, js, message, FEW)
    assert few > 0
    assert calls_of(write, js, message, MANY) == few


@pytest.mark.parametrize("write", [publish_many, publisher])
def test_bulk_publishes_call_their_wrappers_once(connected, write):
    """
    A plugin that wraps bulk publishes makes as many calls for 60 messages as for 3.
    """
    js, stream = connected("jetsync_publish")
    message = f"{stream.name}.A", b"x"
    write(js, message, FEW)
    few = calls_of(write, js, message, FEW)
    assert few > 0
    assert calls_of(write, js, message, MANY) == few
