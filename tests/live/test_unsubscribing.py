"""
No handle leaves a subscription on the server, however it ends.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import threading
import warnings
import weakref

import attrs
import pytest

import jetsync
from helpers.interrupts import interrupted_at, steps_of
from helpers.streams import fill
from helpers.thorough import thorough_except
from helpers.waiting import eventually

TIMES = 12
"""How often each use is repeated, in case that only some ends are forgotten."""


@attrs.define
class Handles:
    """
    A client of a test, and a stream with messages.
    """

    client: jetsync.Client
    js: jetsync.JetStream
    stream: jetsync.Stream

    @property
    def subject(self) -> str:
        return f"{self.stream.name}.B"

    @property
    def consumer(self) -> jetsync.Consumer:
        """A consumer with messages. The handle keeps the subscriptions of its fetches."""
        return self.stream.consumer("busy")

    @property
    def idle(self) -> jetsync.Consumer:
        """A consumer without messages."""
        return self.stream.consumer("idle")

    @property
    def store(self) -> jetsync.KeyValue:
        return self.js.key_value(self.stream.name)

    @property
    def objects(self) -> jetsync.ObjectStore:
        """An object store with an object of more bytes than one request returns."""
        return self.js.object_store(self.stream.name)


@pytest.fixture
def handles(nats_server, js, stream, make_bucket):
    """
    A client of its own, whose subscriptions are counted.
    """
    fill(js, stream, 300)
    stream.update(allow_direct=True, allow_atomic=True, allow_batched=True)
    stream.create_consumer("busy", filter_subject=f"{stream.name}.A", ack_wait=600)
    stream.create_consumer("idle", filter_subject=f"{stream.name}.none")
    store = make_bucket(history=2)
    for number in range(5):
        store.put(f"key{number}", b"value")
    objects = js.create_object_store(stream.name, storage="memory")
    objects.put("a", bytes(9 << 20))
    with jetsync.connect(nats_server.url) as client:
        own = client.jetstream()
        yield Handles(client, own, own.stream(stream.name))
    js.delete_object_store(stream.name)


def part(messages):
    """
    Take a few messages and leave the others.
    """
    return list(itertools.islice(messages, 3))


def closed(messages):
    """
    Take a few messages, close, and return what was closed.
    """
    with messages:
        part(messages)
    return messages


def closed_unused(made):
    """
    Close a handle and return it.
    """
    made.close()
    return made


def dropped(made):
    """
    Drop a handle that warns.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        reference = weakref.ref(made)
        del made
        # A publisher is part of a cycle, and its thread refers to it for moments.
        eventually(lambda: reference() is None or gc.collect() < 0)


def requested(h):
    """
    Make a request that nothing answers.
    """
    with contextlib.suppress(jetsync.NoRespondersError):
        h.client.request(f"{h.subject}-unanswered")


def drained(h):
    """
    Unsubscribe in two steps.
    """
    subscription = h.client.subscribe(h.subject)
    subscription.unsubscribe_nowait()
    subscription.drain()
    return subscription


def while_it_waits(make):
    """
    Return the use of a handle that is closed while another thread waits for it.
    """

    def use(h):
        made = make(h)
        thread = threading.Thread(target=list, args=(made,))
        thread.start()
        made.close()
        thread.join()
        return made

    return use


def published(publisher, h):
    """
    Use a publisher and close it.
    """
    with publisher:
        publisher.publish(h.subject)
    return publisher


def added(batch, h):
    """
    Use a batch and commit it.
    """
    with batch:
        batch.add(h.subject)
    return batch


def read(h, position=0):
    """
    Read a few bytes of an object, and return the closed reader.
    """
    with h.objects.get("a") as reader:
        reader.seek(position)
        reader.read(10)
    return reader


def failed(h):
    """
    Put an object from a source that fails.
    """

    def pieces():
        yield b"x" * 300_000
        raise ZeroDivisionError

    with contextlib.suppress(ZeroDivisionError):
        h.objects.put("b", pieces())


def discarded(h):
    """
    Begin a batch and discard it.
    """
    batch = h.js.atomic_batch()
    batch.add(h.subject)
    batch.discard()
    return batch


USES = {
    "request": requested,
    "subscribe": lambda h: closed_unused(h.client.subscribe(h.subject)),
    "subscribe, drain": drained,
    "subscribe, while it waits": while_it_waits(lambda h: h.client.subscribe(h.subject)),
    "subscribe, dropped": lambda h: dropped(h.client.subscribe(h.subject)),
    "next": lambda h: h.consumer.next(20),
    "next, nothing": lambda h: h.idle.next(0.01),
    "fetch": lambda h: list(h.consumer.fetch(5)),
    "fetch, part": lambda h: part(h.consumer.fetch(10)),
    "fetch, closed": lambda h: part(closed(h.consumer.fetch(10))),
    "fetch, closed unused": lambda h: closed_unused(h.idle.fetch(10)),
    "fetch, dropped": lambda h: h.idle.fetch(10) and None,
    "fetch, while it waits": while_it_waits(lambda h: h.idle.fetch(10)),
    "consume": lambda h: closed(h.consumer.consume(max_messages=10)),
    "consume, dropped": lambda h: part(h.consumer.consume(max_messages=10)),
    "consume, stop_after": lambda h: list(h.consumer.consume(stop_after=5)),
    "consume, while it waits": while_it_waits(lambda h: h.idle.consume()),
    "ordered next": lambda h: h.stream.ordered_consumer().next(20),
    "ordered fetch": lambda h: part(closed(h.stream.ordered_consumer().fetch(10))),
    "ordered consume": lambda h: closed(h.stream.ordered_consumer().consume()),
    "ordered consume, dropped": lambda h: part(h.stream.ordered_consumer().consume()),
    "scan": lambda h: list(h.stream.scan(page=100)),
    "scan, part": lambda h: part(h.stream.scan(page=2)),
    "get_batch": lambda h: list(h.stream.get_batch(10)),
    "get_batch, part": lambda h: part(h.stream.get_batch(10)),
    "get_last_for": lambda h: list(h.stream.get_last_for(">")),
    "keys": lambda h: h.store.keys(),
    "history": lambda h: h.store.history("key1"),
    "get_many": lambda h: h.store.get_many(">"),
    "watch": lambda h: closed(h.store.watch()),
    "watch, dropped": lambda h: part(h.store.watch()),
    "get": read,
    "get, seek": lambda h: read(h, 5 << 20),
    "get, dropped": lambda h: h.objects.get("a").read(10),
    "put": lambda h: h.objects.put("b", b"data"),
    "put, failed": failed,
    "objects, watch": lambda h: closed_unused(h.objects.watch()),
    "publish": lambda h: h.js.publish(h.subject),
    "publish_many": lambda h: h.js.publish_many([(h.subject, b"")] * 5),
    "publisher": lambda h: published(h.js.publisher(), h),
    "publisher, dropped": lambda h: dropped(h.js.publisher()),
    "publish_batch": lambda h: h.js.publish_batch([(h.subject, b"")] * 3),
    "atomic_batch": lambda h: added(h.js.atomic_batch(), h),
    "atomic_batch, discarded": discarded,
    "fast_publisher": lambda h: added(h.js.fast_publisher(), h),
}
"""Uses of a client, at the end of which nothing is open. Some return what they have closed."""


@pytest.mark.parametrize("name", thorough_except({name: name for name in USES}, "consume", "put"))
def test_unsubscribing_leaves_only_the_reply_subscription(nats_server, handles, name):
    """
    Afterwards, the server has no subscription of the client but the one for replies.
    """
    handles.client.flush()

    def subscribed():
        path = f"connz?subs=1&cid={handles.client.server.client_id}"
        (connection,) = nats_server.monitor(path)["connections"]
        subjects = connection["subscriptions_list"]
        # All batches share one subscription, which lasts as long as the client.
        shared = [subject for subject in subjects if "BATCH_ABANDONED" in subject]
        assert len(shared) <= 1
        return [subject for subject in subjects if subject not in shared]

    before = subscribed()
    assert len(before) == 1
    # What was closed may live on.
    kept = [USES[name](handles) for _ in range(TIMES)]
    gc.collect()
    # No flush, which would send an UNSUB that only waits for the next block.
    eventually(lambda: subscribed() == before)
    assert len(kept) == TIMES


MADE = {
    "subscribe": lambda h: h.client.subscribe(h.subject),
    "consume": lambda h: h.consumer.consume(max_messages=10),
    "ordered consume": lambda h: h.stream.ordered_consumer().consume(),
    "watch": lambda h: h.store.watch(),
    "fast_publisher": lambda h: h.js.fast_publisher(),
}
"""Handles that unsubscribe when they are dropped."""


@pytest.mark.filterwarnings("ignore:.* was dropped:ResourceWarning")
@pytest.mark.parametrize("name", MADE)
def test_a_handle_unsubscribes_though_its_thread_is_blocked(handles, name):
    """
    A handle unsubscribes when another thread drops it, although the one that made it is blocked.
    """
    made, goes_on, kept = threading.Event(), threading.Event(), []
    before = handles.client.statistics().subscriptions

    def make():
        kept.append(MADE[name](handles))
        made.set()
        goes_on.wait()

    thread = threading.Thread(target=make)
    thread.start()
    # The collector would end it, too.
    gc.disable()
    try:
        assert made.wait(20)
        assert handles.client.statistics().subscriptions > before
        kept.clear()
        eventually(lambda: handles.client.statistics().subscriptions == before)
    finally:
        gc.enable()
        goes_on.set()
        thread.join()


INTERRUPTED = {
    "subscribe": lambda h: h.client.subscribe(h.subject),
    "request_many": lambda h: h.client.request_many(h.subject, timeout=5),
    "scan": lambda h: h.stream.scan(page=2),
}
"""Calls that subscribe, and unsubscribe at once when what they return is dropped."""


# An interrupt right before the end of a call drops what it made.
@pytest.mark.filterwarnings("ignore:.* was dropped:ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("most", [12, pytest.param(400, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("name", INTERRUPTED)
def test_a_call_that_ctrl_c_interrupts_leaves_no_subscription(handles, name, most):
    """
    After Ctrl-C at any step of a call that subscribes, the client has no more subscriptions.
    """
    client = handles.client

    def flushed():
        # The interrupt may have ended the connection.
        with contextlib.suppress(jetsync.TransportError, jetsync.RequestTimeoutError):
            client.flush(timeout=5)
            return True

    def begin():
        # Python swallows an interrupt that hits the end of a dropped object.
        kept.append(INTERRUPTED[name](handles))

    kept = []
    count = steps_of(begin)
    kept.clear()
    eventually(lambda: client.statistics().subscriptions == 1)
    for step in sorted({1 + count * number // most for number in range(most)}):
        interrupted_at(step, begin)
        kept.clear()
        eventually(flushed)
        eventually(lambda: client.statistics().subscriptions == 1)
