"""
A program for each role of `jetsync permissions`, and what it needs on the server.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any
from unittest import mock

import attrs

import jetsync
from jetsync.monitoring import Monitor

MANY = 3000
"""More values than a watch reads ahead."""

DATA = bytes(300_000)
"""The data of an object with several chunks."""


@attrs.frozen
class Use:
    """
    A run of a program.
    """

    js: jetsync.JetStream
    name: str
    """The name of the stream or bucket, which no other run has."""

    admin: jetsync.JetStream
    """For what other programs do meanwhile."""


@attrs.frozen
class Program:
    """
    A program, and the arguments of `jetsync permissions` for its user. `NAME` is its stream or
    bucket.
    """

    arguments: str
    run: Callable[[Use], Any]
    prepare: Callable[[jetsync.JetStream, str], Any]
    needs: tuple[int, int] = (2, 10)
    """The first version of the server."""


def a_stream(js, name, **fields):
    """
    Create a stream with three messages.
    """
    stream = js.create_stream(name, subjects=[f"{name}.>"], allow_direct=True, **fields)
    for data in (b"1", b"2", b"3"):
        js.publish(f"{name}.eu", data)
    return stream


def a_pull_consumer(js, name):
    """
    Create a stream with a pull consumer.
    """
    a_stream(js, name).create_consumer("billing")


def a_failing_consumer(js, name):
    """
    Create a stream with a consumer that delivers once, and a stream for its dead letters.
    """
    a_stream(js, name).create_consumer("billing", max_deliver=1)
    js.create_stream(f"{name}-dead", subjects=[f"{name}-dead.>"])


def a_push_consumer(js, name, size=1, **fields):
    """
    Create a stream with a push consumer.
    """
    stream = js.create_stream(name, subjects=[f"{name}.>"])
    js.publish_many([(f"{name}.eu", bytes(size))] * 3)
    stream.create_consumer("billing", deliver_subject=f"to.{name}", **fields)


def with_flow_control(js, name):
    """
    Create a stream with a push consumer that needs answers to its flow control.
    """
    # The server asks for an answer after some hundred kilobytes.
    a_push_consumer(js, name, 500_000, flow_control=True, idle_heartbeat=0.5)


def an_atomic_stream(js, name):
    """
    Create a stream for atomic batches.
    """
    a_stream(js, name, allow_atomic=True)


def a_fast_stream(js, name):
    """
    Create a stream for fast ingest.
    """
    a_stream(js, name, allow_batched=True)


def a_bucket(js, name):
    """
    Create a bucket with two keys, and one that was deleted.
    """
    bucket = js.create_key_value(name, history=5)
    for key in ("eu.1", "eu.2", "us.1"):
        bucket.put(key, b"1")
    bucket.delete("us.1")


def a_watched_stream(js, name):
    """
    Create a stream with a consumer whose next message is neither the first nor the last one.
    """
    stream = a_stream(js, name)
    js.publish(f"{name}.us", b"4")
    js.publish(f"{name}.eu", b"5")
    stream.create_consumer("billing", filter_subject=f"{name}.us")


def an_atomic_bucket(js, name):
    """
    Create a bucket for transactions.
    """
    js.create_key_value(name, atomic=True)


def a_store(js, name):
    """
    Create an object store with an object.
    """
    store = js.create_object_store(name)
    store.put("big", DATA)


# --------------------------------------------------------------------------------------------------


def publish(use):
    """
    Publish in three ways.
    """
    assert use.js.publish(f"{use.name}.eu", b"4").sequence == 4
    assert use.js.publish_many([(f"{use.name}.eu", b"5")] * 3).count == 3
    with use.js.publisher() as publisher:
        assert publisher.publish(f"{use.name}.eu", b"6").result(5).sequence == 8


def publish_batch(use):
    """
    Publish an atomic batch.
    """
    assert use.js.publish_batch([(f"{use.name}.eu", b"4"), (f"{use.name}.us", b"5")]).sequence == 5
    with use.js.atomic_batch() as batch:
        batch.add(f"{use.name}.eu", b"6")


def publish_fast(use):
    """
    Publish with fast ingest.
    """
    with use.js.fast_publisher() as publisher:
        for number in range(20):
            publisher.add(f"{use.name}.eu", b"%d" % number)


def read(consumer):
    """
    Read all messages in three ways, and acknowledge them.
    """
    first = consumer.next(expires=5)
    first.ack_sync()
    got = [first.data]
    for message in consumer.fetch(1, expires=5):
        message.ack_sync()
        got.append(message.data)
    with consumer.consume(stop_after=1) as messages:
        for message in messages:
            message.ack_sync()
            got.append(message.data)
    assert got == [b"1", b"2", b"3"]
    assert consumer.info().num_pending == 0


def work(use):
    """
    Work on a consumer that exists.
    """
    read(use.js.consumer(use.name, "billing"))


def create_and_work(use):
    """
    Create the consumer.
    """
    read(use.js.stream(use.name, lookup=False).create_consumer("billing"))


def create_filtered_and_work(use):
    """
    Create the consumer with a filter.
    """
    stream = use.js.stream(use.name, lookup=False)
    read(stream.create_consumer("billing", filter_subject=f"{use.name}.eu"))


def store_dead_letters(use):
    """
    Fail to handle each message.
    """

    def fail(message):
        raise ValueError(message.data)

    consumer = use.js.consumer(use.name, "billing")
    options = {"ack": "auto", "dead_letter": f"{use.name}-dead.x", "stop_after": 3}
    # The errors of handlers would be printed.
    with (
        mock.patch.object(threading, "excepthook"),
        consumer.consume(fail, **options) as running,
    ):
        running.wait(timeout=5)
    consumer.info()
    assert use.admin.stream(f"{use.name}-dead").info().state.messages == 3


def work_on_pushed(use):
    """
    Work on a push consumer.
    """
    consumer = use.js.consumer(use.name, "billing")
    with consumer.consume(stop_after=3) as messages:
        for _ in range(3):
            messages.next(timeout=3).ack_sync()


def read_in_order(use, **options):
    """
    Read with an ordered consumer, in two ways.
    """
    with use.js.stream(use.name).ordered_consumer(**options) as ordered:
        with ordered.consume(stop_after=2) as messages:
            assert [message.data for message in messages] == [b"1", b"2"]
        assert ordered.next(expires=5).data == b"3"


def read_a_part_in_order(use):
    """
    Read a part of the stream with an ordered consumer.
    """
    read_in_order(use, filter_subjects=f"{use.name}.eu")


def read_directly(use):
    """
    Read single messages, also one that does not exist.
    """
    stream = use.js.stream(use.name)
    assert stream.get_last(f"{use.name}.eu").data == b"3"
    assert stream.get_message(1).data == b"1"
    assert stream.get_next(f"{use.name}.eu", 2).data == b"2"
    with contextlib.suppress(jetsync.MessageNotFoundError):
        stream.get_message(99)


def scan(use):
    """
    Read all messages.
    """
    read_directly(use)
    assert [message.data for message in use.js.stream(use.name).scan()] == [b"1", b"2", b"3"]


def read_the_last(use):
    """
    Read the last message of a subject.
    """
    assert use.js.stream(use.name, lookup=False).get_last(f"{use.name}.eu").data == b"3"


def get(use):
    """
    Read a key, and one that does not exist.
    """
    bucket = use.js.key_value(use.name)
    assert bucket.get("eu.1").value == b"1"
    assert bucket.get("no.1", default=None) is None


def get_many(use):
    """
    Read two keys at once.
    """
    get(use)
    bucket = use.js.key_value(use.name)
    assert len(bucket.get_many(["eu.1", "eu.2"])) == 2


def watch(use):
    """
    Read the keys, a history and the current values.
    """
    get(use)
    bucket = use.js.key_value(use.name)
    assert sorted(bucket.keys()) == ["eu.1", "eu.2"]
    assert len(bucket.history("eu.1")) == 1
    with bucket.watch() as changes:
        assert len([*changes.initial()]) >= 2
    see_that_values_are_gone(use)


def see_that_values_are_gone(use):
    """
    Watch while values are removed that the server was about to send.
    """
    other = use.admin.key_value(use.name)
    use.admin.publish_many((f"$KV.{use.name}.us.{number}", b"1") for number in range(MANY))
    with use.js.key_value(use.name).watch("us.*") as changes:
        next(changes.initial(timeout=5))
        other.stream.purge()
        assert len([*changes.initial(timeout=5)]) < MANY


def watch_several(use):
    """
    Read the keys that match two patterns.
    """
    assert len(use.js.key_value(use.name).keys("eu.1", "eu.2")) == 2
    watch(use)


def get_a_part(use):
    """
    Read a key of the part that the user may read.
    """
    assert use.js.key_value(use.name).get("eu.1").value == b"1"


def put(use):
    """
    Write keys in all ways.
    """
    bucket = use.js.key_value(use.name)
    revision = bucket.put("eu.1", b"2")
    revision = bucket.update("eu.1", b"3", last=revision)
    bucket.create("eu.3", b"1")
    bucket.delete("eu.3")
    bucket.purge("eu.2")


def create_again(use):
    """
    Create a key that was deleted, and modify it.
    """
    put(use)
    use.js.key_value(use.name).create("us.1", b"2")
    use.js.key_value(use.name).modify("us.1", lambda entry: entry.value + b"3")


def change_together(use):
    """
    Change two keys in a transaction.
    """
    with use.js.key_value(use.name).atomic() as changes:
        changes.put("eu.1", b"2")
        changes.put("eu.2", b"2")


def get_object(use):
    """
    Read an object and the list, and look for one that does not exist.
    """
    store = use.js.object_store(use.name)
    assert store.get_bytes("big") == DATA
    assert [info.name for info in store.list()] == ["big"]
    with contextlib.suppress(jetsync.ObjectNotFoundError):
        store.get_bytes("none")


def watch_objects(use):
    """
    Read a part of an object, and wait for changes.
    """
    get_object(use)
    store = use.js.object_store(use.name)
    with store.get("big") as data:
        data.seek(290_000)
        assert data.read() == bytes(10_000)
    with store.watch() as changes:
        assert changes.next(timeout=5).name == "big"


def put_object(use):
    """
    Replace, store and delete objects.
    """
    store = use.js.object_store(use.name)
    store.put("big", b"less")
    store.put("other", DATA)
    store.delete("other")


def monitor(use, *, lookups=1, **options):
    """
    Read the figures, also those of one consumer, and also if the stream allows no direct reads.
    """
    one = {"streams": use.name, "consumers": "billing", "account": False}
    for allow_direct, given in ((True, options), (False, options), (False, one)):
        use.admin.stream(use.name).update(allow_direct=allow_direct)
        reading = Monitor(use.js, lookups=lookups, **given).read()
        assert reading.error is None, reading.error
        (stream,) = reading.streams
        assert stream.error is None, stream.error
        assert [each.info.name for each in stream.consumers] == ["billing"]
        assert (stream.consumers[0].oldest is not None) is bool(lookups)


def monitor_a_pattern(use):
    """
    Read the figures of the streams that the account has, and those of the account.
    """
    # Other programs have streams, too.
    monitor(use, streams=f"{use.name}*")


def monitor_a_stream(use):
    """
    Read the figures of a stream and its consumers.
    """
    monitor(use, streams=use.name)


def monitor_a_consumer(use):
    """
    Read the figures of a consumer.
    """
    monitor(use, streams=use.name, consumers="billing")


def monitor_less(use):
    """
    Read the figures without messages and without the account.
    """
    monitor(use, streams=f"{use.name}*", account=False, lookups=0)


def administer(use):
    """
    Create and delete streams, a consumer and a bucket.
    """
    use.js.create_stream(f"{use.name}-new", subjects=[f"{use.name}-new"]).create_consumer("billing")
    use.js.create_key_value(f"{use.name}-new")
    assert use.js.stream(f"{use.name}-new").consumer("billing").info().name == "billing"
    assert f"{use.name}-new" in [*use.js.stream_names()]
    use.js.delete_stream(f"{use.name}-new")


PROGRAMS = {
    "publisher": Program("publisher NAME.>", publish, a_stream),
    "atomic-publisher": Program(
        "atomic-publisher NAME NAME.>", publish_batch, an_atomic_stream, (2, 12)
    ),
    "fast-publisher": Program("fast-publisher NAME NAME.>", publish_fast, a_fast_stream, (2, 14)),
    "worker": Program("worker NAME billing", work, a_pull_consumer),
    "worker --create": Program("worker NAME billing --create", create_and_work, a_stream),
    "worker --filter": Program(
        "worker NAME billing --filter NAME.eu", create_filtered_and_work, a_stream
    ),
    "worker --dead-letter": Program(
        "worker NAME billing --dead-letter NAME-dead.x", store_dead_letters, a_failing_consumer
    ),
    "push-worker": Program("push-worker NAME billing to.NAME", work_on_pushed, a_push_consumer),
    "push-worker --flow-control": Program(
        "push-worker NAME billing to.NAME --flow-control", work_on_pushed, with_flow_control
    ),
    "reader": Program("reader NAME", read_in_order, a_stream),
    "reader --filter": Program("reader NAME --filter NAME.eu", read_a_part_in_order, a_stream),
    "reader --delete": Program("reader NAME --delete", read_in_order, a_stream),
    "direct-reader": Program("direct-reader NAME", read_directly, a_stream),
    "direct-reader, many": Program("direct-reader NAME", scan, a_stream, (2, 11)),
    "direct-reader --last": Program("direct-reader NAME --last NAME.eu", read_the_last, a_stream),
    "kv-reader": Program("kv-reader NAME", get, a_bucket),
    "kv-reader --key": Program("kv-reader NAME --key eu.*", get_a_part, a_bucket),
    "kv-reader --many": Program("kv-reader NAME --many", get_many, a_bucket, (2, 11)),
    "kv-reader --watch": Program("kv-reader NAME --watch", watch, a_bucket),
    "kv-reader --watch --delete": Program("kv-reader NAME --watch --delete", watch, a_bucket),
    "kv-reader --watch --several": Program(
        "kv-reader NAME --watch --several", watch_several, a_bucket
    ),
    "kv-writer": Program("kv-writer NAME", put, a_bucket),
    "kv-writer --create": Program("kv-writer NAME --create", create_again, a_bucket),
    "kv-writer --atomic": Program(
        "kv-writer NAME --atomic", change_together, an_atomic_bucket, (2, 12)
    ),
    "kv-writer --key": Program("kv-writer NAME --key eu.*", put, a_bucket),
    "object-reader": Program("object-reader NAME", get_object, a_store, (2, 11)),
    "object-reader --watch": Program("object-reader NAME --watch", watch_objects, a_store),
    "object-reader --watch --delete": Program(
        "object-reader NAME --watch --delete", watch_objects, a_store
    ),
    "object-writer": Program("object-writer NAME", put_object, a_store),
    "monitor": Program("monitor", monitor_a_pattern, a_watched_stream),
    "monitor --stream": Program("monitor --stream NAME", monitor_a_stream, a_watched_stream),
    "monitor --stream --consumer": Program(
        "monitor --stream NAME --consumer billing", monitor_a_consumer, a_watched_stream
    ),
    "monitor --no-account --no-lookups": Program(
        "monitor --no-account --no-lookups", monitor_less, a_watched_stream
    ),
    "administrator": Program("administrator", administer, a_stream),
}
"""Programs by what they show."""
