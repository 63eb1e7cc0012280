"""
All kinds of reads that can be continued after Ctrl-C, on one server, for tests that interrupt them.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable

import attrs

import jetsync
from helpers.streams import memory_stream
from helpers.waiting import eventually

KINDS: dict[str, Callable[[Sources], Read]] = {}
"""A function for each kind of read, by its name. It begins the read and returns it."""

COUNT = 12
"""The items of each read."""

PIECE = 10_000
"""The bytes of each chunk of the object."""


def kind(begin):
    """
    Add a kind of read.
    """
    KINDS[begin.__name__[1:]] = begin
    return begin


def flat(found):
    """
    Return the items of runs of items.
    """
    return [*itertools.chain.from_iterable(found)]


@attrs.define
class Read:
    """
    One read with its handle. The test may interrupt `take` and then calls `rest`.
    """

    want: list
    """What the read has to bring, in this order."""
    take: Callable[[list], None]
    """Appends each item that it takes, in a step that no signal handler can interrupt."""
    ids: Callable[[list], list]
    """Returns what `want` has, from the items that were taken."""
    rest: Callable[[list], None] | None = None
    """Continues with the same handle, and ends even if items are missing. By default, `take`."""
    close: Callable[[], object] = lambda: None
    losses: Callable[[], int] = lambda: 0
    """How often the connection was lost. An interrupt inside a read of the socket ends it, and then
    messages in flight are lost if the server does not keep them."""

    def missing(self, got):
        """
        Continue after an interrupt, and return what is wrong with the outcome; empty if nothing is.
        """
        said = False
        try:
            (self.rest or self.take)(got)
        except jetsync.TransportError:
            # An interrupted write ends the connection.
            said = True
        except jetsync.JetSyncError as error:
            said = "interrupted" in str(error)
            if not said:
                return f"the error does not say that a call was interrupted: {error!r}"
        found = self.ids(got)
        if self.losses() and found == sorted({*found} & {*self.want}):
            return ""
        if found != (self.want[: len(found)] if said else self.want):
            return f"{found} instead of {self.want}, said={said}"
        return ""


class Sources:
    """
    What the reads read: streams, consumers, buckets and an object.
    """

    def __init__(self, client, name):
        self.client, self.name = client, name
        self.js = js = client.jetstream(timeout=10)
        self.stream = memory_stream(js, name, allow_direct=True)
        self.sequences = [*range(1, COUNT + 1)]
        self.subjects = [f"{name}.{each:02}" for each in self.sequences]
        js.publish_many((subject, b"x") for subject in self.subjects)
        self.acking = {"ack_wait": 60, "max_ack_pending": -1}
        self.kv = js.create_key_value(name, storage="memory", history=5)
        self.keys = [f"k{each:02}" for each in self.sequences]
        for key in self.keys:
            self.kv.put(key, b"v")
        self.objects = js.create_object_store(name, storage="memory")
        for key in self.keys:
            self.objects.put(key, b"small")
        self.store = js.create_object_store(f"{name}-data", storage="memory")
        lines = b"".join(b"%07d\n" % each for each in range(COUNT * PIECE // 8))
        self.data = lines[: COUNT * PIECE]
        self.store.put("data", self.data, chunk_size=PIECE)
        self.numbers = itertools.count(1)
        self.last = None

    def close(self):
        """
        Remove all of it.
        """
        for name in (self.name, f"KV_{self.name}", f"OBJ_{self.name}", f"OBJ_{self.name}-data"):
            with contextlib.suppress(jetsync.StreamNotFoundError):
                self.js.delete_stream(name)

    def consumer(self, **config):
        """
        Return a new consumer of all messages, in place of the last one.

        A stream has at most 1,000 consumers, which fast machines make before any ends by itself.
        """
        if self.last is not None:
            with contextlib.suppress(jetsync.ConsumerNotFoundError):
                self.last.delete()
        self.last = self.stream.create_consumer(inactive_threshold=30, **config)
        return self.last


def looped(iterable, want, ids, close=None):
    """
    Return the read of an iterable that ends.
    """

    def take(got):
        for item in iterable:
            got += [item]

    return Read(want, take, ids, close=close or (lambda: None))


def endless(handle, want, ids, *, loop, until=None, close=None):
    """
    Return the read of an iterator without end: by a loop, or by calls of ``next``.
    """

    def by_next(got, timeout=5):
        while len(got) < len(want):
            item = handle.next(timeout=timeout)
            if item is None:
                return
            got += [item]

    def by_loop(got):
        if len(got) == len(want):
            return
        for item in handle:
            got += [item]
            if len(got) == len(want):
                return

    def rest(got):
        by_next(got, 1.0)

    if until is not None:
        eventually(until)
    return Read(want, by_loop if loop else by_next, ids, rest, close or handle.close)


def lossy(consumption, rig):
    """
    Return the read of a consumption whose messages may be lost with the connection.
    """
    read = endless(consumption, rig.sequences, sequences, loop=True)
    read.losses = lambda: consumption.statistics().connections_lost
    return read


def sequences(found):
    """
    Return the stream sequences of messages.
    """
    return [message.sequence for message in found]


# Reads without a consumer.


@kind
def _scan(rig):
    made = rig.stream.scan(page=5)
    return looped(made, rig.sequences, sequences, made.close)


@kind
def _scan_next(rig):
    made = rig.stream.scan(page=5)

    def take(got):
        with contextlib.suppress(StopIteration):
            while True:
                item = made.__next__()
                got += [item]

    return Read(rig.sequences, take, sequences, close=made.close)


@kind
def _scan_pages(rig):
    made = rig.stream.scan(page=5)
    return looped(made.pages(), rig.sequences, lambda got: sequences(flat(got)), made.close)


def in_arrow(found):
    """
    Return the sequences in Arrow tables or batches.
    """
    return flat(each.column("sequence").to_pylist() for each in found)


@kind
def _scan_batches(rig):
    made = rig.stream.scan(page=5)
    return looped(made.to_batches(), rig.sequences, in_arrow, made.close)


@kind
def _scan_table(rig):
    made = rig.stream.scan(page=5)

    def take(got):
        table = made.to_arrow()
        got += [table]

    return Read(rig.sequences, take, in_arrow, close=made.close)


@kind
def _page(rig):
    made = rig.stream.scan()
    (found,) = made.pages()
    return looped(iter(found), rig.sequences, sequences, made.close)


@kind
def _get_batch(rig):
    made = rig.stream.get_batch(COUNT)
    return looped(made, rig.sequences, sequences, made.close)


@kind
def _get_last_for(rig):
    made = rig.stream.get_last_for(f"{rig.name}.>")
    return looped(made, rig.sequences, sequences, made.close)


# Lists.


@kind
def _streams(rig):
    made = rig.js.streams(f"{rig.name}.>")
    return looped(made, [rig.name], lambda got: [each.name for each in got])


@kind
def _stream_names(rig):
    return looped(rig.js.stream_names(f"{rig.name}.>"), [rig.name], list)


@kind
def _key_value_names(rig):
    return looped(
        rig.js.key_value_names(), [rig.name], lambda got: [each for each in got if each == rig.name]
    )


@kind
def _object_stores(rig):
    want = [rig.name, f"{rig.name}-data"]
    return looped(
        rig.js.object_stores(),
        want,
        lambda got: sorted(each.bucket for each in got if each.bucket in want),
    )


@kind
def _consumers(rig):
    for number in range(4):
        rig.stream.create_consumer(f"list{number}")
    made = rig.stream.consumers()
    return looped(made, [f"list{number}" for number in range(4)], listed)


@kind
def _consumer_names(rig):
    for number in range(4):
        rig.stream.create_consumer(f"list{number}")
    made = rig.stream.consumer_names()
    return looped(made, [f"list{number}" for number in range(4)], listed)


def listed(found):
    """
    Return the names of the listed consumers.
    """
    names = [each if isinstance(each, str) else each.name for each in found]
    return [each for each in names if each.startswith("list")]


# Buckets and object stores.


def keys_of(found):
    """
    Return the keys of entries.
    """
    return [entry.key for entry in found]


def names_of(found):
    """
    Return the names of objects.
    """
    return [info.name for info in found]


@kind
def _initial(rig):
    made = rig.kv.watch()
    return looped(made.initial(), rig.keys, keys_of, made.close)


@kind
def _initial_again(rig):
    made = rig.kv.watch()

    def take(got):
        for entry in made.initial():
            got += [entry]

    return Read(rig.keys, take, keys_of, close=made.close)


@kind
def _watch(rig):
    return endless(rig.kv.watch(), rig.keys, keys_of, loop=True)


@kind
def _watch_next(rig):
    return endless(rig.kv.watch(), rig.keys, keys_of, loop=False)


@kind
def _object_initial(rig):
    made = rig.objects.watch()
    return looped(made.initial(), rig.keys, names_of, made.close)


@kind
def _object_initial_again(rig):
    made = rig.objects.watch()

    def take(got):
        for info in made.initial():
            got += [info]

    return Read(rig.keys, take, names_of, close=made.close)


@kind
def _object_watch(rig):
    return endless(rig.objects.watch(), rig.keys, names_of, loop=True)


@kind
def _object_watch_next(rig):
    return endless(rig.objects.watch(), rig.keys, names_of, loop=False)


def whole(call, want, ids):
    """
    Return the read of a call that returns everything.
    """

    def take(got):
        found = call()
        got[:] = found

    return Read(want, take, ids)


@kind
def _keys(rig):
    return whole(rig.kv.keys, rig.keys, sorted)


@kind
def _history(rig):
    return whole(lambda: rig.kv.history(rig.keys[0]), rig.keys[:1], keys_of)


@kind
def _object_list(rig):
    return whole(rig.objects.list, rig.keys, lambda got: sorted(names_of(got)))


@attrs.define
class Data(Read):
    """
    The read of an object, whose items are bytes.
    """

    def missing(self, got):
        """
        As for other reads, but the parts may be cut elsewhere.
        """
        said = False
        try:
            self.take(got)
        except jetsync.JetSyncError as error:
            said = isinstance(error, jetsync.TransportError) or "interrupted" in str(error)
            if not said:
                return repr(error)
        found, want = b"".join(map(bytes, got)), self.want[0]
        if said:
            return "" if want.startswith(found) else "other data"
        return "" if found == want else f"{len(found)} bytes instead of {len(want)}"


@kind
def _object_read(rig, size=40_000, method="read"):
    made = rig.store.get("data")
    call = getattr(made, method)

    def take(got):
        while True:
            part = call(size)
            if part == b"":
                return
            got += [part]

    return Data([rig.data], take, list, close=made.close)


@kind
def _object_read1(rig):
    return _object_read(rig, method="read1")


@kind
def _object_readline(rig):
    made = rig.store.get("data")

    def take(got):
        for line in made:
            got += [line]
            if len(got) > 12:
                break
        part = made.read()
        got += [part]

    return Data([rig.data], take, list, close=made.close)


@kind
def _object_peek(rig):
    made = rig.store.get("data")

    def take(got):
        while True:
            made.peek(100)
            part = made.read(40_000)
            if part == b"":
                return
            got += [part]

    return Data([rig.data], take, list, close=made.close)


@kind
def _object_readinto(rig):
    made = rig.store.get("data")

    def take(got):
        while True:
            buffer = bytearray(40_000)
            count = made.readinto(buffer)
            got += [buffer[:count]]
            if not count:
                return

    return Data([rig.data], take, list, close=made.close)


@kind
def _object_chunks(rig):
    made = rig.store.get("data")
    chunks = made.chunks()

    def take(got):
        for part in chunks:
            got += [part]

    return Data([rig.data], take, list, close=made.close)


@kind
def _object_chunks_again(rig):
    made = rig.store.get("data")

    def take(got):
        for part in made.chunks():
            got += [part]

    return Data([rig.data], take, list, close=made.close)


# Reads with a consumer.


@kind
def _fetch(rig, policy="none", *, kept=False):
    batch = rig.consumer(ack_policy=policy).fetch(COUNT, expires=5)
    return looped(iter(batch) if kept else batch, rig.sequences, sequences, batch.close)


@kind
def _fetch_kept(rig):
    return _fetch(rig, kept=True)


@kind
def _fetch_acked(rig):
    return _fetch(rig, "explicit")


@kind
def _consume(rig, *, loop=True, policy="none", **options):
    made = rig.consumer(ack_policy=policy).consume(**options)
    return endless(
        made,
        rig.sequences,
        sequences,
        loop=loop,
        until=lambda: made.closed or made.statistics().buffered == COUNT,
    )


@kind
def _consume_next(rig):
    return _consume(rig, loop=False)


@kind
def _consume_waiting(rig):
    return lossy(rig.consumer(ack_policy="none").consume(), rig)


@kind
def _consume_low(rig):
    return lossy(rig.consumer(ack_policy="none").consume(max_messages=4), rig)


@kind
def _consume_acked(rig):
    return _consume(rig, policy="all")


@kind
def _push(rig):
    made = rig.consumer(ack_policy="none", deliver_subject=f"push.{rig.name}").consume()
    return endless(
        made,
        rig.sequences,
        sequences,
        loop=True,
        until=lambda: made.closed or made.statistics().buffered == COUNT,
    )


@kind
def _ordered(rig, *, loop=True):
    reader = rig.stream.ordered_consumer()
    return endless(reader.consume(), rig.sequences, sequences, loop=loop, close=reader.close)


@kind
def _ordered_next_of_consume(rig):
    return _ordered(rig, loop=False)


@kind
def _ordered_stop_after(rig):
    reader = rig.stream.ordered_consumer()
    made = reader.consume(stop_after=COUNT)
    return looped(made, rig.sequences, sequences, reader.close)


@kind
def _ordered_again(rig):
    reader = rig.stream.ordered_consumer()

    def take(got):
        while len(got) < COUNT:
            with reader.consume() as messages:
                for message in messages:
                    got += [message]
                    if len(got) % 5 == 0 or len(got) == COUNT:
                        break

    return Read(rig.sequences, take, sequences, close=reader.close)


@kind
def _ordered_dropped(rig):
    reader = rig.stream.ordered_consumer()

    def take(got):
        while len(got) < COUNT:
            for message in reader.consume():
                got += [message]
                if len(got) % 5 == 0 or len(got) == COUNT:
                    break

    return Read(rig.sequences, take, sequences, close=reader.close)


@kind
def _ordered_fetch(rig):
    reader = rig.stream.ordered_consumer()

    def take(got):
        while len(got) < COUNT:
            before = len(got)
            with reader.fetch(4, expires=1) as batch:
                for message in batch:
                    got += [message]
            if len(got) == before:
                return

    return Read(rig.sequences, take, sequences, close=reader.close)


@kind
def _ordered_batch(rig, *, kept=False):
    reader = rig.stream.ordered_consumer()
    batch = reader.fetch(COUNT, expires=5)
    return looped(iter(batch) if kept else batch, rig.sequences, sequences, reader.close)


@kind
def _ordered_batch_kept(rig):
    return _ordered_batch(rig, kept=True)


@kind
def _ordered_next(rig):
    reader = rig.stream.ordered_consumer()

    def take(got):
        while len(got) < COUNT:
            message = reader.next(expires=1)
            if message is None:
                return
            got += [message]

    return Read(rig.sequences, take, sequences, close=reader.close)


# Core NATS.


@kind
def _subscription(rig, *, loop=True):
    subject = f"core.{rig.name}"
    made = rig.client.subscribe(subject)
    for number in rig.sequences:
        rig.client.publish(subject, b"%d" % number)
    return endless(
        made,
        rig.sequences,
        lambda got: [int(each.data) for each in got],
        loop=loop,
        until=lambda: made.pending == COUNT,
    )


@kind
def _subscription_next(rig):
    return _subscription(rig, loop=False)


@kind
def _answers(rig):
    subject = f"ask.{rig.name}.{next(rig.numbers)}"
    requests = rig.client.subscribe(subject)
    made = rig.client.request_many(subject, max_messages=COUNT, timeout=5)
    request = requests.next(timeout=5)
    assert request is not None
    for number in rig.sequences:
        rig.client.publish(request.reply, b"%d" % number)
    requests.close()
    eventually(lambda: len(made._box.frames) == COUNT)
    return looped(made, rig.sequences, lambda got: [int(each.data) for each in got], made.close)
