"""
Iterators that several calls use at the same moment: threads, and signal handlers.

The test file finds every public iterator by itself. A new one needs a row in one of the tables.
"""

from __future__ import annotations

import inspect
import re
import sys
import threading
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import suppress

import pytest

import jetsync
import jetsync.devserver
import jetsync.testing

COUNT = 5


class Gate:
    """
    A plugin that holds a thread inside the call that hands out its first message.
    """

    def __init__(self):
        self.inside, self.go_on = threading.Event(), threading.Event()
        self.within = None
        """Called in the thread that is inside."""

    @jetsync.hookimpl
    def jetsync_message_received(self, message):
        if self.within is not None:
            within, self.within = self.within, None
            within()
            self.inside.set()
            assert self.go_on.wait(30)


class Filled:
    """
    A stream, a bucket and an object store with five messages, values and objects.
    """

    def __init__(self, client, name):
        self.client, self.name = client, name
        self.js = client.jetstream()
        self.stream = self.js.create_stream(
            name, subjects=[f"{name}.*"], storage="memory", allow_direct=True
        )
        self.kv = self.js.create_key_value(name, storage="memory")
        self.objects = self.js.create_object_store(name, storage="memory")
        self.subscription = client.subscribe(f"core.{name}")
        self.answers = client.request_many(f"core.{name}", timeout=60)
        self.reply = self.subscription.next(timeout=20).reply
        self.fill()

    def fill(self):
        for number in range(COUNT):
            self.js.publish(f"{self.name}.{number}", b"x")
            self.kv.put(f"key{number}", b"x")
            self.objects.put(f"object{number}", b"x" * COUNT, chunk_size=1)
            self.client.publish(f"core.{self.name}", b"%d" % number)
            self.client.publish(self.reply, b"%d" % number)
        self.client.flush()

    def close(self):
        self.subscription.close()
        self.answers.close()
        self.stream.delete()
        self.js.delete_key_value(self.name)
        self.js.delete_object_store(self.name)


READS = {
    "DirectBatch.__iter__": lambda rig: iter(rig.stream.get_batch(COUNT)),
    "MessageBatch.__iter__": lambda rig: iter(rig.stream.create_consumer("c").fetch(COUNT)),
    "ObjectWatch.initial": lambda rig: rig.objects.watch().initial(),
    "OrderedBatch.__iter__": lambda rig: iter(rig.stream.ordered_consumer().fetch(COUNT)),
    "OrderedConsumption.__next__": lambda rig: rig.stream.ordered_consumer().consume(
        stop_after=COUNT
    ),
    "StreamScan.__iter__": lambda rig: iter(rig.stream.scan()),
    "StreamScan.__next__": lambda rig: rig.stream.scan(),
    "StreamScan.pages": lambda rig: rig.stream.scan().pages(),
    "StreamScan.to_batches": lambda rig: rig.stream.scan().to_batches(),
    "StreamScan.to_reader": lambda rig: rig.stream.scan().to_reader(),
    "Watch.initial": lambda rig: rig.kv.watch().initial(),
}
"""Iterators over messages that one call at a time may use."""

LISTS = {
    "JetStream.key_value_names": lambda rig: rig.js.key_value_names(),
    "JetStream.object_stores": lambda rig: rig.js.object_stores(),
    "JetStream.stream_names": lambda rig: rig.js.stream_names(),
    "JetStream.streams": lambda rig: rig.js.streams(),
    "ObjectReader.chunks": lambda rig: rig.objects.get("object0").chunks(),
    "Stream.consumer_names": lambda rig: rig.stream.consumer_names(),
    "Stream.consumers": lambda rig: rig.stream.consumers(),
}
"""Iterators over what the server sends only when it is asked; the same holds for them."""

SHARED = {
    "Answers.__next__": lambda rig: rig.answers,
    "Consumption.__next__": lambda rig: rig.stream.create_consumer("c").consume(),
    "ObjectWatch.__next__": lambda rig: rig.objects.watch(),
    "Subscription.__next__": lambda rig: rig.subscription,
    "Watch.__next__": lambda rig: rig.kv.watch(),
}
"""Iterators that threads may share."""

ELSEWHERE = {"Stream.dead_letters"}
"""One call at a time may use it; see ``consume/test_dead_workers.py``."""

IN_MEMORY = {
    "Headers.__iter__": lambda: (jetsync.Headers({f"name{n}": "x" for n in range(200)}), 200),
    "HookRecorder.__iter__": lambda: (recorder(200), 200),
    "StoredPage.__iter__": lambda: (jetsync.StoredPage([stored(n) for n in range(200)]), 200),
}
"""Containers. A thread that shares one of their iterators is never refused without a reason."""


def recorder(count):
    """
    Return a recorder with that number of calls.
    """
    made = jetsync.testing.HookRecorder()
    for _ in range(count):
        made.jetsync_status(jetsync.SlowConsumerEvent(subject="s", dropped=1))
    return made


def stored(number):
    """
    Return a stored message.
    """
    return jetsync.StoredMessage("S", "s", number + 1, 0)


def public_functions():
    """
    Yield the names and functions of everything public.
    """
    for module in (jetsync, jetsync.testing, jetsync.devserver):
        for name in module.__all__:
            value = getattr(module, name)
            if not inspect.isclass(value):
                yield name, value
                continue
            for cls in value.__mro__:
                if cls.__module__.startswith("jetsync"):
                    for attribute, member in vars(cls).items():
                        if attribute[0] != "_" or attribute in {"__iter__", "__next__"}:
                            yield f"{name}.{attribute}", member


def public_iterators():
    """
    Return the names of the functions that return an iterator, or an item of one.
    """
    found = set()
    for name, member in public_functions():
        function = getattr(member, "fget", getattr(member, "__func__", member))
        # Hooks are generators for pluggy, and not for users.
        # That of a consumption may be compiled.
        if name.endswith(".__next__"):
            found.add(name)
        if not inspect.isfunction(function) or ".jetsync_" in name:
            continue
        returned = str(function.__annotations__.get("return"))
        is_iterator = inspect.isgeneratorfunction(function)
        if is_iterator or re.search(r"\b(Iterator|Generator|RecordBatchReader)\b", returned):
            found.add(name)
    return found


def test_every_public_iterator_is_tested():
    """
    Each public iterator has a row in one of the tables above.
    """
    assert public_iterators() == {*READS, *LISTS, *SHARED, *IN_MEMORY, *ELSEWHERE}


@pytest.fixture
def gate():
    """
    A plugin of the test's client.
    """
    return Gate()


@pytest.fixture
def rig(nats_server, gate, unique):
    """
    The stream, the bucket and the object store, with a client that has the plugin.
    """
    with jetsync.connect(nats_server.url, plugins=[gate]) as client:
        made = Filled(client, unique)
        yield made
        gate.go_on.set()
        made.close()


@pytest.mark.parametrize("name", sorted(READS))
def test_reads_refuse_a_second_call(rig, gate, name):
    """
    A second call, of the same thread or another one, is refused, and the first one gets all.
    """
    if name in {"StreamScan.to_batches", "StreamScan.to_reader"}:
        pytest.importorskip("pyarrow")
    shared = READS[name](rig)
    refused = []

    def refused_here():
        with pytest.raises((jetsync.ConflictingUseError, jetsync.CallInSignalHandlerError)) as got:
            next(shared)
        refused.append(got.value)

    gate.within = refused_here
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(list, shared)
        assert gate.inside.wait(30)
        assert len(refused) == 1
        with pytest.raises(jetsync.ConflictingUseError):
            next(shared)
        gate.go_on.set()
        found = reading.result(30)
    in_pages = name in {"StreamScan.pages", "StreamScan.to_batches", "StreamScan.to_reader"}
    assert (sum(map(len, found)) if in_pages else len(found)) == COUNT


@pytest.mark.parametrize("name", sorted(LISTS))
def test_lists_refuse_a_second_call(victim, unique, name):
    """
    Of two threads that ask for a page at the same moment, one is refused, and the other gets it.
    """
    with jetsync.connect(victim.url) as client, ThreadPoolExecutor(2) as pool:
        rig = Filled(client, unique)
        for number in range(COUNT):
            rig.stream.create_consumer(f"c{number}")
        expected = len(list(LISTS[name](rig)))
        shared = LISTS[name](rig)
        victim.pause()
        try:
            calls = [pool.submit(next, shared) for _ in range(2)]
            done, waiting = wait(calls, 30, FIRST_COMPLETED)
        finally:
            victim.resume()
        assert [type(each.exception()) for each in done] == [jetsync.ConflictingUseError]
        assert waiting.pop().exception(30) is None
        assert 1 + len(list(shared)) == expected
        rig.close()


@pytest.mark.parametrize("name", sorted(SHARED))
def test_threads_share_a_handle(rig, name):
    """
    Each of two threads that wait at the same moment gets a message.
    """
    shared = SHARED[name](rig)
    first = [next(shared) for _ in range(COUNT)]
    with ThreadPoolExecutor(2) as pool:
        calls = [pool.submit(next, shared) for _ in range(2)]
        rig.fill()
        rest = [each.result(30) for each in calls]
    assert len({id(each) for each in [*first, *rest]}) == COUNT + 2
    shared.close()


@pytest.mark.parametrize("name", sorted(IN_MEMORY))
def test_iterators_over_memory(name):
    """
    Threads that share an iterator over a container get each item once.
    """
    container, count = IN_MEMORY[name]()
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(20):
            shared = iter(container)
            start = threading.Barrier(3)

            def take(shared=shared, start=start):
                taken = []
                start.wait(10)
                while True:
                    with suppress(jetsync.ConflictingUseError):
                        item = next(shared, None)
                        if item is None:
                            return taken
                        taken.append(item)

            with ThreadPoolExecutor(3) as pool:
                found = [each.result(30) for each in [pool.submit(take) for _ in range(3)]]
            assert sum(map(len, found)) == count
    finally:
        sys.setswitchinterval(before)
