"""
The waits of public calls end with the timeout of the call, and with Ctrl-C.

The waits are skipped, so these tests measure no time and need little.
"""

from __future__ import annotations

import datetime as dt
import gc
import inspect
import itertools
import threading
import time
import warnings
from pathlib import Path

import attrs
import pytest

import jetsync
from helpers.public_calls import public_functions
from helpers.skipped_time import SkippedTime
from helpers.waiting import at_some_pace, eventually
from jetsync._io.replies import Waiter
from jetsync._proto.open_pulls import GRACE
from jetsync.backups import BUILDING
from jetsync.kv import bucket as kv_bucket
from jetsync.testing import CutProxy

T = 0.5
"""The timeout of each call, in seconds."""

WINDOW = 2
"""The most messages in flight of a publisher."""

SLACK = 0.25
"""Seconds by which the waits of a call may exceed it, such as a last wait for a thread."""

LONGER = {
    # The server gets two seconds to end a pull that has expired.
    "Consumer.fetch": GRACE,
    "Consumer.next": GRACE,
    "OrderedConsumer.fetch": GRACE,
    "OrderedConsumer.next": GRACE,
    "Stream.schedules": GRACE,
    # The consumer may be about to be replaced.
    "OrderedConsumption.next": 0.5,
    "ObjectWatch.initial": 0.75,
    "ObjectWatch.next": 0.5,
    "Watch.initial": 0.75,
    "Watch.next": 0.5,
    # The timeout is for each request.
    "ObjectStore.collect_garbage": T,
    "ObjectStore.list": T,
    "ObjectStore.list, with a watch": T,
    # The timeout is for each wait without an answer.
    "ObjectStore.get_bytes": T,
    "ObjectStore.get_bytes, with a consumer": T,
    "ObjectStore.get_file": T,
    # The timeout is for each wait without progress. After that, a put that fails removes its data.
    "ObjectStore.put": 2 * T,
    "ObjectStore.put_file": 2 * T,
    # The same. A restore waits longer for the server to build the stream from all data. If it fails
    # before, it removes what the server has made.
    "Stream.backup": T,
    "JetStream.restore_stream": BUILDING + T,
    # The thread gets a second to end, which a busy machine may use.
    "connect": 1.0,
    # The time of an ack begins when the message is written. The thread that writes it may have
    # skipped as much time before.
    "Publisher.close, without a timeout": T,
    # Closing gets at least a second.
    "Client.drain": 1.0,
    "Client.drain, with a message": 1.0,
    "Client.drain, with a publisher": 1.0,
}
"""The calls that may take longer, and by how many seconds."""

TIMES = {"timeout", "ack_timeout", "expires", "connect_timeout"}
"""The keywords for the seconds of a call."""

LATER = {
    "Acker.acknowledge_sync": "messages call it",
    "Client.jetstream": "for the calls of the context",
    "Client.system": "for the calls of the object",
    "Client.stop_on_signal": "for what follows the signal",
    "Consumer.consume": "for the pulls",
    "JetStream.atomic_batch": "for the calls of the batch",
    "JetStream.fast_publisher": "for the calls of the publisher",
    "OrderedConsumer.consume": "for the pulls",
}
"""Calls whose seconds are not for the call itself."""


@attrs.define
class Handles:
    """
    The client of a test, through a proxy, and a stream.
    """

    client: jetsync.Client
    proxy: CutProxy
    clock: SkippedTime
    js: jetsync.JetStream
    stream: jetsync.Stream
    seconds: float = T
    """The timeout of a call."""
    ack_timeout: float = 10.0 * T
    """That of a publisher, so that the call ends first."""
    folder: Path = Path()
    """For files."""
    made: object = None
    """The object of the call. It lives as long as the client, so that none is dropped."""

    @property
    def name(self) -> str:
        return self.stream.name

    @property
    def subject(self) -> str:
        return f"{self.name}.a"

    @property
    def new(self) -> str:
        """A name that no stream and no bucket has."""
        return f"{self.name}-new"

    def call(self, name: str) -> object:
        """Make a call, and return its result or its error."""
        try:
            return CALLS[name](self.made, self)
        except jetsync.JetSyncError as error:
            return error


# What makes the object of a call, while the server still answers.


def batch(h):
    """
    Return an open batch.
    """
    made = h.js.atomic_batch()
    made.add(h.subject, msg_id="1")
    return made


def next_batch(h):
    """Return a batch whose stream is known, so that it makes no request before the message."""
    batch(h).commit()
    return h.js.atomic_batch()


def lost_batch(h):
    """Return a batch whose commit failed."""
    made = batch(h)
    h.proxy.pause("to_client")
    with h.clock.measuring():
        h.clock.skip()
        with pytest.raises(jetsync.BatchOutcomeUnknownError):
            made.commit()
    h.proxy.resume()
    return made


def bucket(h):
    """
    Return a bucket with one key.
    """
    made = h.js.create_key_value(h.name, storage="memory", atomic=True, history=2)
    made.put("key", "value")
    return made


def consumer(h):
    """
    Return a consumer that has no messages.
    """
    return h.stream.create_consumer("c")


def counter(h):
    """
    Return a counter, of a stream of its own.
    """
    subjects = [f"{h.name}-counters.>"]
    fields = {"storage": "memory", "allow_msg_counter": True, "allow_direct": True}
    stream = h.js.create_stream(f"{h.name}-counters", subjects=subjects, **fields)
    made = stream.counter(f"{h.name}-counters.a")
    made.add(1)
    return made


def fast(h):
    """
    Return a fast publisher that waits for each acknowledgement.
    """
    made = h.js.fast_publisher(flow=1, max_outstanding_acks=1)
    made.add(h.subject)
    return made


def message(h):
    """
    Return a message of a consumer.
    """
    h.js.publish(h.subject)
    return consumer(h).next(expires=20)


def objects(h):
    """
    Return an object store with one object of several chunks.
    """
    made = h.js.create_object_store(h.name, storage="memory")
    made.put("a", b"1" * 30, chunk_size=10)
    return made


def indirect_objects(h):
    """Return an object store that is read with consumers, because it allows no direct gets."""
    objects(h).stream.update(allow_direct=False)
    return h.js.object_store(h.name)


def object_watch(h):
    """
    Return a watch from which all current descriptions were taken.
    """
    made = objects(h).watch()
    assert made.next(timeout=20)
    return made


def giving_up(h):
    """
    Return a stream with a consumer that gives messages up.
    """
    h.stream.create_consumer("c", max_deliver=1, filter_subject=h.subject)
    return h.stream


def ordered(h):
    """
    Return an ordered consumer.
    """
    made = h.stream.ordered_consumer()
    made.info()
    return made


def publisher(h):
    """
    Return a publisher, with few messages in flight.
    """
    return h.js.publisher(ack_timeout=h.ack_timeout, window=WINDOW)


def backed_up(h):
    """Return the context, after a backup of the stream."""
    h.stream.backup(h.folder / "backup")
    return h.js


def limiting_publisher(h):
    """Return a publisher whose ``ack_timeout`` ends calls without a timeout."""
    return publisher(attrs.evolve(h, ack_timeout=T))


def transaction(h):
    """
    Return an open transaction.
    """
    made = bucket(h).atomic()
    made.put("key", "other")
    return made


def waiting_message(h):
    """
    Return a subscription with a message that no call takes.
    """
    made = h.client.subscribe("waiting")
    h.client.publish("waiting")
    eventually(lambda: made.pending)
    return made


def watch(h):
    """
    Return a watch from which all current entries were taken.
    """
    made = bucket(h).watch()
    assert made.next(timeout=20)
    return made


MAKERS = {
    "AtomicBatch": batch,
    "AtomicBatch.add": next_batch,
    "AtomicBatch.resend": lost_batch,
    "Client": lambda h: h.client,
    "Client.close, with a publisher": publisher,
    "Client.close, with a fast publisher": fast,
    "Client.drain, with a publisher": publisher,
    "Client.drain, with a message": waiting_message,
    "Consumer": consumer,
    "Consumption": lambda h: consumer(h).consume(),
    "Consumption.wait, with a handler": lambda h: consumer(h).consume(print),
    "Counter": counter,
    "FastPublisher": fast,
    "JetStream": lambda h: h.js,
    "JetStream.restore_stream": backed_up,
    "KeyValue": bucket,
    "Message": message,
    "ObjectStore": objects,
    "ObjectStore.get_bytes, with a consumer": indirect_objects,
    "ObjectStore.list, with a watch": indirect_objects,
    "ObjectWatch": object_watch,
    "ObjectWatch.initial": lambda h: objects(h).watch(),
    "ObjectWatch.wait_current": lambda h: objects(h).watch(),
    "OrderedConsumer": ordered,
    "OrderedConsumption": lambda h: ordered(h).consume(),
    "PublishFuture": publisher,
    "Publisher": publisher,
    "Publisher.close, without a timeout": limiting_publisher,
    "Publisher.publish": limiting_publisher,
    "StopSignal": lambda h: h.client.stop_on_signal(),
    "Stream": lambda h: h.stream,
    "Stream.dead_letters": giving_up,
    "Subscription": lambda h: h.client.subscribe("quiet"),
    "Transaction": transaction,
    "Watch": watch,
    "Watch.initial": lambda h: bucket(h).watch(),
    "Watch.wait_current": lambda h: bucket(h).watch(),
    "ack_many": message,
    "connect": lambda h: None,
}


def publish_until_full(made, h):
    """Publish until there is no room, and then one more message."""
    while made.pending < WINDOW:
        made.publish(h.subject)
    made.publish(h.subject)


def add_until_full(made, h):
    """
    Add messages to a fast publisher until it waits for an acknowledgement.
    """
    for _ in range(3):
        made.add(h.subject, timeout=h.seconds)


CALLS = {
    "AtomicBatch.add": lambda made, h: made.add(h.subject, timeout=h.seconds),
    "AtomicBatch.commit": lambda made, h: made.commit(timeout=h.seconds),
    "AtomicBatch.resend": lambda made, h: made.resend(timeout=h.seconds),
    "Client.close": lambda made, h: made.close(timeout=h.seconds),
    "Client.close, with a publisher": lambda made, h: (
        made.publish(h.subject),
        h.client.close(timeout=h.seconds),
    ),
    "Client.close, with a fast publisher": lambda made, h: h.client.close(timeout=h.seconds),
    "Client.drain": lambda made, h: made.drain(timeout=h.seconds),
    "Client.drain, with a publisher": lambda made, h: (
        made.publish(h.subject),
        h.client.drain(timeout=h.seconds),
    ),
    "Client.drain, with a message": lambda made, h: h.client.drain(timeout=h.seconds),
    "Client.flush": lambda made, h: made.flush(timeout=h.seconds),
    "Client.publish": lambda made, h: made.publish(h.subject),
    "Client.reconnect": lambda made, h: made.reconnect(timeout=h.seconds),
    "Client.request": lambda made, h: made.request("quiet", timeout=h.seconds),
    "Client.request_many": lambda made, h: list(made.request_many("quiet", timeout=h.seconds)),
    "Client.rtt": lambda made, h: made.rtt(timeout=h.seconds),
    "Client.subscribe": lambda made, h: made.subscribe(h.subject).close(),
    "Consumer.delete": lambda made, h: made.delete(timeout=h.seconds),
    "Consumer.fetch": lambda made, h: list(made.fetch(5, expires=h.seconds)),
    "Consumer.info": lambda made, h: made.info(timeout=h.seconds),
    "Consumer.next": lambda made, h: made.next(expires=h.seconds),
    "Consumption.next": lambda made, h: made.next(timeout=h.seconds),
    "Consumption.wait": lambda made, h: made.wait(timeout=h.seconds),
    "Consumption.wait, with a handler": lambda made, h: made.wait(timeout=h.seconds),
    "Counter.add": lambda made, h: made.add(1, timeout=h.seconds),
    "Counter.entry": lambda made, h: made.entry(timeout=h.seconds),
    "Counter.load": lambda made, h: made.load(timeout=h.seconds),
    "FastPublisher.add": add_until_full,
    "FastPublisher.add_many": lambda made, h: made.add_many(
        [(h.subject, b"")] * 3, timeout=h.seconds
    ),
    "FastPublisher.close": lambda made, h: made.close(timeout=h.seconds),
    "FastPublisher.commit": lambda made, h: made.commit(timeout=h.seconds),
    "JetStream.account_info": lambda made, h: made.account_info(timeout=h.seconds),
    "JetStream.consumer": lambda made, h: made.consumer(h.name, "c", timeout=h.seconds),
    "JetStream.create_consumer": lambda made, h: made.create_consumer(h.name, timeout=h.seconds),
    "JetStream.create_key_value": lambda made, h: made.create_key_value(h.new, timeout=h.seconds),
    "JetStream.create_or_update_consumer": lambda made, h: made.create_or_update_consumer(
        h.name, "c", timeout=h.seconds
    ),
    "JetStream.create_or_update_key_value": lambda made, h: made.create_or_update_key_value(
        h.new, timeout=h.seconds
    ),
    "JetStream.create_or_update_stream": lambda made, h: made.create_or_update_stream(
        h.new, timeout=h.seconds
    ),
    "JetStream.create_stream": lambda made, h: made.create_stream(h.new, timeout=h.seconds),
    "JetStream.delete_consumer": lambda made, h: made.delete_consumer(
        h.name, "c", timeout=h.seconds
    ),
    "JetStream.delete_key_value": lambda made, h: made.delete_key_value(h.new, timeout=h.seconds),
    "JetStream.create_object_store": lambda made, h: made.create_object_store(
        h.new, timeout=h.seconds
    ),
    "JetStream.create_or_update_object_store": lambda made, h: made.create_or_update_object_store(
        h.new, timeout=h.seconds
    ),
    "JetStream.delete_object_store": lambda made, h: made.delete_object_store(
        h.new, timeout=h.seconds
    ),
    "JetStream.object_store": lambda made, h: made.object_store(h.new, timeout=h.seconds),
    "JetStream.object_stores": lambda made, h: list(made.object_stores(timeout=h.seconds)),
    "JetStream.update_object_store": lambda made, h: made.update_object_store(
        h.new, timeout=h.seconds
    ),
    "JetStream.delete_stream": lambda made, h: made.delete_stream(h.new, timeout=h.seconds),
    "JetStream.key_value": lambda made, h: made.key_value(h.new, timeout=h.seconds),
    "JetStream.key_value_names": lambda made, h: list(made.key_value_names(timeout=h.seconds)),
    "JetStream.publish": lambda made, h: made.publish(h.subject, timeout=h.seconds),
    "JetStream.publish_batch": lambda made, h: made.publish_batch(
        [(h.subject, b"")], timeout=h.seconds
    ),
    "JetStream.publish_many": lambda made, h: made.publish_many(
        [(h.subject, b"")], ack_timeout=h.seconds
    ),
    "JetStream.publisher": lambda made, h: made.publisher(ack_timeout=h.seconds),
    "JetStream.restore_stream": lambda made, h: made.restore_stream(
        h.folder / "backup", h.new, subjects=[h.new], timeout=h.seconds
    ),
    "JetStream.schedule": lambda made, h: made.schedule(
        h.subject, target=f"{h.name}.b", every=60, timeout=h.seconds
    ),
    "JetStream.stream": lambda made, h: made.stream(h.name, timeout=h.seconds),
    "JetStream.stream_name_by_subject": lambda made, h: made.stream_name_by_subject(
        h.subject, timeout=h.seconds
    ),
    "JetStream.stream_names": lambda made, h: list(made.stream_names(timeout=h.seconds)),
    "JetStream.streams": lambda made, h: list(made.streams(timeout=h.seconds)),
    "JetStream.update_consumer": lambda made, h: made.update_consumer(
        h.name, "c", timeout=h.seconds
    ),
    "JetStream.update_key_value": lambda made, h: made.update_key_value(h.new, timeout=h.seconds),
    "JetStream.update_stream": lambda made, h: made.update_stream(h.name, timeout=h.seconds),
    "KeyValue.atomic": lambda made, h: made.atomic(timeout=h.seconds),
    "KeyValue.create": lambda made, h: made.create(h.new, "value", timeout=h.seconds),
    "KeyValue.delete": lambda made, h: made.delete("key", timeout=h.seconds),
    "KeyValue.get": lambda made, h: made.get("key", timeout=h.seconds),
    "KeyValue.get_many": lambda made, h: made.get_many(["key"], timeout=h.seconds),
    "KeyValue.history": lambda made, h: made.history("key", timeout=h.seconds),
    "KeyValue.keys": lambda made, h: made.keys(timeout=h.seconds),
    "KeyValue.modify": lambda made, h: made.modify("key", lambda _: "value", timeout=h.seconds),
    "KeyValue.purge": lambda made, h: made.purge("key", timeout=h.seconds),
    "KeyValue.purge_deletes": lambda made, h: made.purge_deletes(timeout=h.seconds),
    "KeyValue.put": lambda made, h: made.put("key", "value", timeout=h.seconds),
    "KeyValue.status": lambda made, h: made.status(timeout=h.seconds),
    "KeyValue.update": lambda made, h: made.update("key", "value", last=1, timeout=h.seconds),
    "KeyValue.watch": lambda made, h: made.watch(timeout=h.seconds),
    "Message.ack": lambda made, h: made.ack(),
    "Message.ack_sync": lambda made, h: made.ack_sync(timeout=h.seconds),
    "Message.nak": lambda made, h: made.nak(),
    "ObjectStore.add_link": lambda made, h: made.add_link("b", "a", timeout=h.seconds),
    "ObjectStore.add_store_link": lambda made, h: made.add_store_link("b", "c", timeout=h.seconds),
    "ObjectStore.collect_garbage": lambda made, h: made.collect_garbage(0, timeout=h.seconds),
    "ObjectStore.delete": lambda made, h: made.delete("a", timeout=h.seconds),
    "ObjectStore.get": lambda made, h: made.get("a", timeout=h.seconds).close(),
    "ObjectStore.get_bytes": lambda made, h: made.get_bytes("a", timeout=h.seconds),
    "ObjectStore.get_bytes, with a consumer": lambda made, h: made.get_bytes(
        "a", timeout=h.seconds
    ),
    "ObjectStore.get_file": lambda made, h: made.get_file(
        "a", h.folder / "file", timeout=h.seconds
    ),
    "ObjectStore.info": lambda made, h: made.info("a", timeout=h.seconds),
    "ObjectStore.list": lambda made, h: made.list(timeout=h.seconds),
    "ObjectStore.list, with a watch": lambda made, h: made.list(timeout=h.seconds),
    "ObjectStore.purge_deletes": lambda made, h: made.purge_deletes(0, timeout=h.seconds),
    "ObjectStore.put": lambda made, h: made.put("a", b"12", timeout=h.seconds),
    "ObjectStore.put_file": lambda made, h: made.put_file("a", __file__, timeout=h.seconds),
    "ObjectStore.rename": lambda made, h: made.rename("a", "b", timeout=h.seconds),
    "ObjectStore.seal": lambda made, h: made.seal(timeout=h.seconds),
    "ObjectStore.status": lambda made, h: made.status(timeout=h.seconds),
    "ObjectStore.update_meta": lambda made, h: made.update_meta(
        "a", description="other", timeout=h.seconds
    ),
    "ObjectStore.watch": lambda made, h: made.watch(timeout=h.seconds),
    "ObjectWatch.initial": lambda made, h: list(made.initial(timeout=h.seconds)),
    "ObjectWatch.next": lambda made, h: made.next(timeout=h.seconds),
    "ObjectWatch.wait_current": lambda made, h: made.wait_current(timeout=h.seconds),
    "OrderedConsumer.close": lambda made, h: made.close(timeout=h.seconds),
    "OrderedConsumer.fetch": lambda made, h: list(made.fetch(5, expires=h.seconds)),
    "OrderedConsumer.info": lambda made, h: made.info(timeout=h.seconds),
    "OrderedConsumer.next": lambda made, h: made.next(expires=h.seconds),
    "OrderedConsumption.next": lambda made, h: made.next(timeout=h.seconds),
    "OrderedConsumption.wait": lambda made, h: made.wait(timeout=h.seconds),
    "PublishFuture.exception": lambda made, h: made.publish(h.subject).exception(timeout=h.seconds),
    "PublishFuture.result": lambda made, h: made.publish(h.subject).result(timeout=h.seconds),
    "Publisher.close": lambda made, h: (made.publish(h.subject), made.close(timeout=h.seconds)),
    "Publisher.close, without a timeout": lambda made, h: (made.publish(h.subject), made.close()),
    "Publisher.flush": lambda made, h: (made.publish(h.subject), made.flush(timeout=h.seconds)),
    "Publisher.publish": publish_until_full,
    "StopSignal.wait": lambda made, h: made.wait(timeout=h.seconds),
    "Stream.backup": lambda made, h: made.backup(h.folder / "backup", timeout=h.seconds),
    "Stream.cancel_schedule": lambda made, h: made.cancel_schedule(h.subject, timeout=h.seconds),
    "Stream.consumer": lambda made, h: made.consumer("c", timeout=h.seconds),
    "Stream.consumer_names": lambda made, h: list(made.consumer_names(timeout=h.seconds)),
    "Stream.consumers": lambda made, h: list(made.consumers(timeout=h.seconds)),
    "Stream.counters": lambda made, h: made.counters(timeout=h.seconds),
    "Stream.create_consumer": lambda made, h: made.create_consumer(timeout=h.seconds),
    "Stream.create_or_update_consumer": lambda made, h: made.create_or_update_consumer(
        "c", timeout=h.seconds
    ),
    "Stream.dead_letters": lambda made, h: made.dead_letters("c", f"{h.name}.b", timeout=h.seconds),
    "Stream.delete": lambda made, h: made.delete(timeout=h.seconds),
    "Stream.delete_consumer": lambda made, h: made.delete_consumer("c", timeout=h.seconds),
    "Stream.delete_message": lambda made, h: made.delete_message(1, timeout=h.seconds),
    "Stream.get_at": lambda made, h: made.get_at(1, timeout=h.seconds),
    "Stream.get_batch": lambda made, h: list(made.get_batch(5, timeout=h.seconds)),
    "Stream.get_last": lambda made, h: made.get_last(h.subject, timeout=h.seconds),
    "Stream.get_last_for": lambda made, h: list(made.get_last_for(">", timeout=h.seconds)),
    "Stream.get_message": lambda made, h: made.get_message(1, timeout=h.seconds),
    "Stream.get_next": lambda made, h: made.get_next(h.subject, timeout=h.seconds),
    "Stream.info": lambda made, h: made.info(timeout=h.seconds),
    "Stream.info, without a timeout": lambda made, h: made.info(),
    "Stream.ordered_consumer": lambda made, h: made.ordered_consumer(timeout=h.seconds),
    "Stream.pause_consumer": lambda made, h: made.pause_consumer(
        "c", dt.datetime.now(dt.timezone.utc), timeout=h.seconds
    ),
    "Stream.purge": lambda made, h: made.purge(timeout=h.seconds),
    "Stream.reset_consumer": lambda made, h: made.reset_consumer("c", timeout=h.seconds),
    "Stream.resume_consumer": lambda made, h: made.resume_consumer("c", timeout=h.seconds),
    "Stream.scan": lambda made, h: list(made.scan(timeout=h.seconds)),
    "Stream.schedules": lambda made, h: made.schedules(timeout=h.seconds),
    "Stream.unpin_consumer": lambda made, h: made.unpin_consumer("c", "group", timeout=h.seconds),
    "Stream.update": lambda made, h: made.update(timeout=h.seconds),
    "Stream.update_consumer": lambda made, h: made.update_consumer("c", timeout=h.seconds),
    "Subscription.next": lambda made, h: made.next(timeout=h.seconds),
    "Transaction.commit": lambda made, h: made.commit(timeout=h.seconds),
    "Watch.initial": lambda made, h: list(made.initial(timeout=h.seconds)),
    "Watch.next": lambda made, h: made.next(timeout=h.seconds),
    "Watch.wait_current": lambda made, h: made.wait_current(timeout=h.seconds),
    "ack_many": lambda made, h: jetsync.ack_many([made], timeout=h.seconds),
    "connect": lambda made, h: jetsync.connect(h.proxy.url, connect_timeout=h.seconds).close(),
}


"""
How to make each call, with the object that `MAKERS` has made.

Calls without a keyword for their seconds have those of the client, the context or the publisher.
"""

AT_ONCE = {
    "Client.publish",
    "Client.reconnect",
    "Client.subscribe",
    "JetStream.publisher",
    "Message.ack",
    "Message.nak",
    "ack_many",
}
"""Calls that wait for no answer."""

LOST = {
    "AtomicBatch.commit",
    "Client.close",
    "Client.close, with a fast publisher",
    "Client.reconnect",
    "FastPublisher.add",
    "FastPublisher.add_many",
    "FastPublisher.close",
    "FastPublisher.commit",
    "connect",
}
"""Calls that do not wait for a connection, because the batch was lost with the last one."""


QUIET = {"ObjectWatch.initial", "Watch.initial"}
"""Calls that may have all that they wait for before the server is silent."""

MAKING = {"Client.subscribe", "JetStream.publisher", "connect"}
"""Calls that make an object with a warning, which is dropped if they are interrupted."""


@pytest.fixture
def clock(monkeypatch):
    """
    The time of jetsync, which skips waits if it is asked to.
    """
    made = SkippedTime()
    made.install(monkeypatch)
    return made


@pytest.fixture
def handles(clock, nats_server, js, unique, monkeypatch, tmp_path):
    """
    A client whose waits can be skipped, and that does not drop a silent connection.
    """
    monkeypatch.setattr("jetsync._io.probe.PING_WAIT", 600.0)
    features = ["allow_atomic", "allow_batched", "allow_direct", "allow_msg_schedules"]
    fields = {"subjects": [f"{unique}.>"], "storage": "memory"} | dict.fromkeys(features, True)
    with (
        CutProxy(nats_server.url) as proxy,
        jetsync.connect(proxy.url, request_timeout=20, reconnect_wait=0.05) as client,
    ):
        own = client.jetstream()
        yield Handles(
            client, proxy, clock, own, own.create_stream(unique, **fields), folder=tmp_path
        )
        # The server gets nothing of what the silent connection holds.
        cut_off(proxy, client)
        client.close()
    for name in js.stream_names():
        if name in {unique, f"KV_{unique}", f"OBJ_{unique}", f"{unique}-counters"}:
            js.delete_stream(name)


def cut_off(proxy, client):
    """
    Cut the connection and refuse others.
    """
    proxy.refuse()
    proxy.cut()
    eventually(lambda: not client.is_connected)


def prepare(handles, name):
    """
    Make the object of a call, and give calls without a timeout of their own the same one.
    """
    handles.made = (MAKERS.get(name) or MAKERS[name.partition(".")[0]])(handles)
    connection = handles.client._connection
    connection.options = attrs.evolve(connection.options, request_timeout=T)
    handles.js._context.default_timeout = T


def check(name, seconds, outcome):
    """
    Assert that a call has not waited longer than its timeout.
    """
    assert seconds <= T + SLACK + LONGER.get(name, 0.0), outcome


def call_until_silence(clock, handles, name, monkeypatch, number=1):
    """
    Make a call, and check its time. The server is silent from the answer of that number on, and
    half of the timeout is over then.
    """
    deliver, answers = Waiter.deliver, itertools.count(1)

    def deliver_and_stop(waiter, frame):
        if next(answers) == number:
            handles.proxy.pause()
            clock.skip(T / 2)
        deliver(waiter, frame)

    monkeypatch.setattr(Waiter, "deliver", deliver_and_stop)
    with clock.measuring() as skipped:
        outcome = handles.call(name)
        seconds = skipped()
    monkeypatch.setattr(Waiter, "deliver", deliver)
    check(name, seconds, outcome)


@pytest.mark.parametrize("name", CALLS)
class TestTimeout:
    def test_a_call_waits_for_an_answer_for_its_timeout(self, clock, handles, name):
        """
        A call waits for an answer for the whole of its timeout, and no longer.
        """
        prepare(handles, name)
        handles.proxy.pause()
        with clock.measuring() as skipped:
            clock.skip()
            outcome = handles.call(name)
            seconds = skipped()
        check(name, seconds, outcome)
        assert seconds >= T - SLACK or name in AT_ONCE or name in QUIET, outcome

    @pytest.mark.thorough
    def test_silence_after_an_answer(self, clock, handles, name, monkeypatch):
        """
        All requests of a call have one timeout together.
        """
        prepare(handles, name)
        call_until_silence(clock, handles, name, monkeypatch)

    @pytest.mark.thorough
    def test_a_call_that_waits_for_another_thread_ends_in_time(self, clock, handles, name):
        """
        A call also ends in time if another thread reads the socket or holds a lock.
        """
        prepare(handles, name)
        handles.proxy.pause()
        longer = attrs.evolve(handles, seconds=10.0 * T)
        thread = threading.Thread(target=longer.call, args=(name,), daemon=True)
        with clock.measuring() as skipped:
            thread.start()
            eventually(lambda: clock.waits(thread) or not thread.is_alive())
            clock.skip()
            outcome = handles.call(name)
            seconds = skipped()
            clock.end(thread)
        check(name, seconds, outcome)

    @pytest.mark.thorough
    def test_a_call_waits_for_a_connection_for_its_timeout(self, clock, handles, name):
        """
        A call waits for a connection for the whole of its timeout, and no longer.
        """
        # Publishing waits for the connection, too.
        handles.ack_timeout = T
        prepare(handles, name)
        cut_off(handles.proxy, handles.client)
        with clock.measuring() as skipped:
            clock.skip()
            outcome = handles.call(name)
            seconds = skipped()
        check(name, seconds, outcome)
        assert seconds >= T - SLACK or name in LOST or name in QUIET, outcome


READS = {
    "KeyValue.history": bucket,
    "KeyValue.keys": bucket,
    "KeyValue.purge_deletes": bucket,
    "KeyValue.watch": bucket,
    "ObjectStore.get_bytes, with a consumer": indirect_objects,
    "ObjectStore.list, with a watch": indirect_objects,
    "ObjectStore.watch": objects,
}


@pytest.mark.parametrize("number", range(1, 6))
@pytest.mark.parametrize("name", READS)
def test_silence_after_a_later_answer(clock, handles, name, number, monkeypatch):
    """
    The consumer of a call is created, asked about, read and deleted within the call's timeout.
    """
    prepare(handles, name)
    # Only the timeout of the call may end it.
    handles.js._context.default_timeout = 100.0
    monkeypatch.setattr("jetsync.kv.watch.INFO_TIMEOUT", 100.0)
    call_until_silence(clock, handles, name, monkeypatch, number)


def test_silence_after_a_page(clock, handles, monkeypatch):
    """
    All pages of a snapshot of a bucket have one timeout together.
    """
    kv = bucket(handles)
    for number in range(5):
        # The next page is requested before the messages of a page are returned.
        kv.put(f"key{number}", "value")
    monkeypatch.setattr("jetsync.read.last.PAGE_BYTES", 1)
    make, made = kv_bucket.stored_entry, []

    def make_and_stop(*arguments):
        if not made:
            handles.proxy.pause()
            clock.skip(5 * T)
        made.append(make(*arguments))
        return made[-1]

    monkeypatch.setattr(kv_bucket, "stored_entry", make_and_stop)
    with clock.measuring() as skipped:
        with pytest.raises(jetsync.RequestTimeoutError):
            kv.get_many(">", timeout=10 * T)
        seconds = skipped()
    assert made
    assert seconds <= 10 * T + SLACK


@pytest.mark.parametrize("name", CALLS)
class TestInterrupt:
    """
    Ctrl-C arrives inside the system call in which a call waits.
    """

    def test_ctrl_c_ends_a_wait_for_an_answer(self, clock, handles, name):
        """
        A call that waits for an answer raises KeyboardInterrupt.
        """
        prepare(handles, name)
        handles.proxy.pause()
        with clock.measuring():
            interrupt(clock, handles, name)

    @pytest.mark.thorough
    def test_ctrl_c_ends_a_wait_for_another_thread(self, clock, handles, name):
        """
        A call that waits for another thread raises KeyboardInterrupt.
        """
        prepare(handles, name)
        handles.proxy.pause()
        longer = attrs.evolve(handles, seconds=10.0 * T)
        thread = threading.Thread(target=longer.call, args=(name,), daemon=True)
        with clock.measuring():
            thread.start()
            eventually(lambda: clock.waits(thread) or not thread.is_alive())
            interrupt(clock, handles, name)
            clock.end(thread)

    @pytest.mark.thorough
    def test_ctrl_c_ends_a_wait_for_a_connection(self, clock, handles, name):
        """
        A call that waits for a connection raises KeyboardInterrupt.
        """
        handles.ack_timeout = T
        prepare(handles, name)
        cut_off(handles.proxy, handles.client)
        with clock.measuring():
            interrupt(clock, handles, name)


@pytest.mark.parametrize("number", [2, 3, 4])
@pytest.mark.parametrize(
    "name",
    [
        "Client.close",
        "Consumer.fetch",
        "JetStream.publisher",
        "KeyValue.keys",
        "OrderedConsumer.close",
        "Publisher.close",
        "Watch.next",
        "connect",
    ],
)
def test_an_interrupt_of_a_later_wait(clock, handles, name, number):
    """
    A call that waits several times can be interrupted each time.
    """
    prepare(handles, name)
    handles.proxy.pause()
    with clock.measuring():
        interrupt(clock, handles, name, number)


def interrupt(clock, handles, name, number=1):
    """
    Interrupt a call in one of its waits, if it waits that often.
    """
    clock.skip()
    clock.interrupt_wait(number)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        try:
            outcome = handles.call(name)
        except KeyboardInterrupt:
            if name in MAKING:
                gc.collect()
            return
    assert not clock.forget_interrupt(), f"Ctrl-C was lost: {outcome!r}"


PULLS = {
    "fetch": lambda reader, seconds: list(reader.fetch(1, expires=seconds)),
    "next": lambda reader, seconds: reader.next(expires=seconds),
}


@pytest.mark.parametrize("make", ["create_consumer", "ordered_consumer"])
@pytest.mark.parametrize("pull", PULLS)
def test_a_pull_ends_when_it_expires(stream, make, pull):
    """
    A server that has no messages ends a pull when it expires, and the call ends with it.
    """
    reader = getattr(stream, make)()

    def attempt(pace):
        begin = time.monotonic()
        assert not PULLS[pull](reader, 0.1 * pace)
        # Less than the grace period after which the call would give up by itself. The margin stays
        # the same, so a call that always ends later fails at each pace.
        assert time.monotonic() - begin < 0.1 * pace + GRACE

    at_some_pace(attempt)


def test_a_call_that_only_looks_at_the_clock_ends():
    """
    A call that polls for seconds too long fails its test within 100,000 looks at the clock.
    """
    clock = SkippedTime()
    with clock.measuring() as skipped:
        clock.skip()
        looks = sum(1 for _ in iter(lambda: skipped() > 3.0 + T, True))
    assert 1_000 < looks < 100_000


def test_every_call_with_a_timeout_is_tested():
    """
    Each public call that takes seconds for itself is among those that are tested.
    """
    limited = {
        name
        for name, function in public_functions()
        if TIMES & inspect.signature(function).parameters.keys()
    }
    assert limited - CALLS.keys() == LATER.keys()
