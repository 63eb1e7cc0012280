"""
Eight threads that use the same client and the same handles, with every result checked.

There are no faults, so each call succeeds or raises the error that its arguments ask for. After
each trial, every acknowledged message is in the stream once, and each was consumed once. No
increment of a key and no core message is lost. The part is for builds without the GIL, and runs on
every build.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import threading
import time
import traceback
import warnings
from collections import Counter

import attrs
from trial import LATE, Base, Report

import jetsync
from jetsync.devserver import DevServer

THREADS = 8
SECONDS = 6.0
"""Seconds in which the threads of a trial make calls."""
TIMEOUT = 10.0
"""The limit of each call, in seconds."""
WAIT = 0.02
"""Seconds for which calls wait for messages that may not come."""
KEYS = ["a", "b", "c"]


@attrs.define
class World:
    server: DevServer
    base: Base


@contextlib.contextmanager
def world():
    warnings.simplefilter("ignore", ResourceWarning)
    with DevServer() as running:
        # What the first client of a process opens stays open.
        jetsync.connect(running.url).close()
        yield World(running, Base())


class Work:
    """
    The shared handles of one trial, and what its threads saw.

    Lists only grow, by one step each, so that they need no lock.
    """

    def __init__(self, client: jetsync.Client, report: Report) -> None:
        self.client = client
        self.report = report
        self.name = f"S{report.seed}"
        self.js = client.jetstream(timeout=TIMEOUT)
        self.stream = self.js.create_stream(
            jetsync.StreamConfig(
                name=self.name,
                subjects=[f"{self.name}.>"],
                storage="memory",
                allow_atomic=True,
                allow_batched=True,
                allow_direct=True,
            )
        )
        self.consumer = self.stream.create_consumer("work", ack_wait=600, max_ack_pending=100_000)
        self.kv = self.js.create_key_value(
            jetsync.KeyValueConfig(bucket=self.name, storage="memory", history=5, atomic=True)
        )
        for key in KEYS:
            self.kv.put(key, b"0")
        self.messages = self.consumer.consume(max_messages=50)
        self.subscription = client.subscribe(f"core.{self.name}")
        self.watch = self.kv.watch()
        self.publisher = self.js.publisher(window=64)
        self.fast = self.js.fast_publisher(flow=20)
        self.numbers = itertools.count()
        self.stop = threading.Event()
        # The acknowledged messages, with their sequences where the ack names it.
        self.stored: list[tuple[bytes, int | None]] = []
        self.futures: list[tuple[bytes, jetsync.PublishFuture]] = []
        self.fast_sent: list[bytes] = []
        self.consumed: list[bytes] = []
        self.core_sent: list[bytes] = []
        self.core_seen: list[bytes] = []
        self.increments: list[str] = []
        self.watched: list[int] = []
        # Handles that another thread drops.
        self.dropped: list[object] = []
        self.made: list[str] = []

    def run(self, seed: float) -> None:
        """Make calls until the trial ends; one thread."""
        chance = random.Random(seed)
        while not self.stop.is_set():
            act = chance.choice(ACTS)
            begin = time.monotonic()
            try:
                act(self, chance)
            except BaseException as error:  # noqa: BLE001 - there are no faults
                trace = "".join(traceback.format_exception(error))
                self.report.violation(f"{act.__name__}: {type(error).__name__}", trace)
                return
            seconds = time.monotonic() - begin
            if seconds > TIMEOUT + LATE:
                self.report.violation("late", f"{act.__name__} took {seconds:.1f} s")
            self.made.append(act.__name__)

    def expect(self, holds: object, text: str) -> None:
        if not holds:
            self.report.violation(text.split(":", maxsplit=1)[0], text)

    def new(self, count: int = 1) -> list[tuple[str, bytes]]:
        """Return messages that no other call has."""
        numbers = itertools.islice(self.numbers, count)
        return [(f"{self.name}.{number % 10}", b"%d" % number) for number in numbers]


# Publishing.


def publish(w: Work, _):
    for subject, data in w.new(3):
        w.stored.append((data, w.js.publish(subject, data).sequence))


def publish_many(w: Work, _):
    messages = w.new(30)
    w.expect(w.js.publish_many(messages).count == 30, "publish_many: not all are stored")
    w.stored += [(data, None) for _, data in messages]


def publish_batch(w: Work, _):
    messages = w.new(5)
    ack = w.js.publish_batch(messages)
    first = ack.sequence - 4
    w.stored += [(data, first + at) for at, (_, data) in enumerate(messages)]


def atomic(w: Work, _):
    messages = w.new(4)
    with w.js.atomic_batch() as batch:
        for subject, data in messages:
            batch.add(subject, data)
    w.stored += [(data, None) for _, data in messages]


def publisher(w: Work, chance):
    for subject, data in w.new(20):
        w.futures.append((data, w.publisher.publish(subject, data)))
    if chance.random() < 0.2:
        w.publisher.flush(timeout=TIMEOUT)
    if chance.random() < 0.5:
        data, future = chance.choice(w.futures)
        w.expect(future.result(TIMEOUT).sequence > 0, f"publisher: {data!r} has no sequence")
    w.publisher.statistics()


def fast(w: Work, chance):
    for subject, data in w.new(20):
        w.fast.add(subject, data)
        w.fast_sent.append(data)
    if chance.random() < 0.2:
        w.fast.add_many(sent := w.new(20))
        w.fast_sent += [data for _, data in sent]
    w.fast.statistics()


# Reading.


def get_message(w: Work, chance):
    known = [each for each in w.stored[-50:] if each[1] is not None]
    if known:
        data, sequence = chance.choice(known)
        found = w.stream.get_message(sequence, direct=chance.choice([True, False, None]))
        w.expect(found.data == data, f"get_message: {sequence} is {found.data!r}, not {data!r}")


def get_last(w: Work, chance):
    subject = f"{w.name}.{chance.randrange(10)}"
    with contextlib.suppress(jetsync.MessageNotFoundError):
        w.expect(w.stream.get_last(subject).subject == subject, "get_last: another subject")
    with contextlib.suppress(jetsync.MessageNotFoundError):
        w.expect(w.stream.get_next(subject, 1).subject == subject, "get_next: another subject")


def in_order(w: Work, sequences, name: str):
    w.expect(sequences == sorted(set(sequences)), f"{name}: not in order: {sequences}")


def get_batch(w: Work, chance):
    start = chance.randrange(1, 200)
    found = [each.sequence for each in w.stream.get_batch(40, sequence=start)]
    w.expect(not found or found == [*range(found[0], found[0] + len(found))], "get_batch: a gap")
    in_order(w, [each.sequence for each in w.stream.get_last_for(f"{w.name}.*")], "get_last_for")


def scan(w: Work, chance):
    start = chance.randrange(1, 200)
    found = [each.sequence for each in w.stream.scan(start=start, end=start + 300, page=100)]
    w.expect(not found or found == [*range(found[0], found[0] + len(found))], "scan: a gap")


def ordered(w: Work, _):
    with w.stream.ordered_consumer() as reader:
        found = [message.sequence for message in reader.fetch(50, no_wait=True)]
    w.expect(found == [*range(1, len(found) + 1)], f"ordered: a gap: {found}")


# Consuming.


def take(w: Work, message) -> None:
    w.consumed.append(bytes(message.data))
    message.ack()


def fetch(w: Work, _):
    for message in w.consumer.fetch(20, expires=0.1):
        take(w, message)


def fetch_and_ack(w: Work, _):
    batch = w.consumer.fetch(20, no_wait=True)
    w.consumed += [bytes(message.data) for message in batch]
    batch.ack()


def next_(w: Work, _):
    message = w.consumer.next(expires=0.1)
    if message is not None:
        w.consumed.append(bytes(message.data))
        message.ack_sync(timeout=TIMEOUT)


def consume(w: Work, _):
    for _ in range(20):
        message = w.messages.next(timeout=WAIT)
        if message is None:
            break
        take(w, message)
    w.messages.statistics()


def core(w: Work, _):
    for _ in range(10):
        ((_, data),) = w.new()
        w.core_sent.append(data)
        w.client.publish(f"core.{w.name}", data)
    for _ in range(12):
        message = w.subscription.next(timeout=0)
        if message is None:
            break
        w.core_seen.append(bytes(message.data))


# Keys.


def increment(w: Work, chance):
    key = chance.choice(KEYS)
    entry = w.kv.get(key, direct=False)
    with contextlib.suppress(jetsync.WrongLastRevisionError):
        w.kv.update(key, b"%d" % (int(entry.value) + 1), last=entry.revision)
        w.increments.append(key)


def move(w: Work, chance):
    one, other = chance.sample(KEYS, 2)
    first, second = w.kv.get(one, direct=False), w.kv.get(other, direct=False)
    with contextlib.suppress(jetsync.WrongLastRevisionError), w.kv.atomic() as transaction:
        transaction.update(one, b"%d" % (int(first.value) + 1), last=first.revision)
        transaction.update(other, b"%d" % (int(second.value) + 1), last=second.revision)
    if transaction.revisions:
        w.increments += [one, other]


def keys(w: Work, chance):
    key = f"own.{chance.randrange(5)}"
    w.kv.put(key, b"x")
    own = {f"own.{number}" for number in range(5)}
    # A key that changes during the call may be missing.
    w.expect({*w.kv.keys()} <= {*KEYS, *own}, "keys: an unknown one")
    w.expect({*w.kv.get_many(KEYS)} == {*KEYS}, "get_many: one is missing")
    in_order(w, [entry.revision for entry in w.kv.history(chance.choice(KEYS))], "history")
    w.kv.delete(key)


def watch(w: Work, _):
    for _ in range(5):
        entry = w.watch.next(timeout=WAIT)
        if entry is None:
            break
        w.watched.append(entry.revision)


# Life.


def ask(w: Work, _):
    w.client.flush()
    w.client.rtt()
    w.client.statistics()
    w.stream.info()
    w.consumer.info()
    w.expect("work" in w.stream.consumer_names(), "consumer_names: one is missing")
    w.expect(b"api" in w.client.request("$JS.API.INFO").data, "request: another answer")


def drop(w: Work, chance):
    make = chance.choice(
        [
            lambda: w.client.subscribe("unused"),
            lambda: w.kv.watch(updates_only=True),
            lambda: w.stream.ordered_consumer().consume(max_messages=5),
            lambda: w.consumer.fetch(1, expires=1, no_wait=True),
        ]
    )
    w.dropped.append(make())
    if len(w.dropped) > 5:
        w.dropped.clear()


def connect(w: Work, _):
    with jetsync.connect(w.client.server.url) as client:
        client.flush()


ACTS = [
    *[publish, publish_many, publish_batch, atomic, publisher, publisher, fast, fast],
    *[get_message, get_message, get_last, get_batch, scan, ordered],
    *[fetch, fetch, fetch_and_ack, next_, consume, consume, consume, core, core],
    *[increment, increment, move, keys, watch, ask, drop],
]
"""What the threads do. Calls that others depend on are listed more often."""


def trial(world: World, chance, report: Report) -> None:
    """Run the threads once, and check what they stored, read and consumed."""
    report.about("start")
    with jetsync.connect(world.server.url, request_timeout=TIMEOUT) as client:
        work = Work(client, report)
        threads = [
            threading.Thread(target=work.run, args=(chance.random(),), daemon=True)
            for _ in range(THREADS)
        ]
        report.about("calls")
        for thread in threads:
            thread.start()
        if not work.stop.wait(SECONDS):
            work.stop.set()
        for thread in threads:
            thread.join(4 * TIMEOUT + LATE)
            if thread.is_alive():
                # Its stacks are shown when the whole trial has hung.
                report.about("a thread does not end")
                thread.join()
        if not report.violations:
            report.about("checks")
            check(work)
        report.counts["operations"] += len(work.made)
        report.counts["messages"] += len(work.stored)
        work.js.delete_key_value(work.name)
        work.stream.delete()
    del work
    world.base.check(report)


def check(w: Work) -> None:
    """Check the end of a trial, in which all calls have succeeded."""
    w.publisher.close(timeout=TIMEOUT)
    w.stored += [(data, future.result(0).sequence) for data, future in w.futures]
    w.fast.commit()
    w.stored += [(data, None) for data in w.fast_sent]
    w.expect(w.fast.statistics().lost == 0, "fast: messages were lost")

    found = {each.sequence: bytes(each.data) for each in w.stream.scan()}
    once = Counter(data for data, _ in w.stored)
    w.expect(Counter(found.values()) == once, "stream: not each acknowledged message once")
    wrong = [each for each in w.stored if each[1] is not None and found.get(each[1]) != each[0]]
    w.expect(not wrong, f"sequences: {wrong[:5]}")

    # They may hold messages.
    w.dropped.clear()
    w.messages.close()
    w.messages.wait(timeout=TIMEOUT)
    end = time.monotonic() + TIMEOUT
    while len(w.consumed) < len(found) and time.monotonic() < end:
        fetch(w, None)
    missing, more = once - Counter(w.consumed), Counter(w.consumed) - once
    w.expect(not missing and not more, f"consumed: {len(missing)} missing, {len(more)} too many")

    w.client.flush()
    while (message := w.subscription.next(timeout=WAIT)) is not None:
        w.core_seen.append(bytes(message.data))
    w.expect(Counter(w.core_seen) == Counter(w.core_sent), "core: not each message once")

    counted = {key: int(w.kv.get(key, direct=False).value) for key in KEYS}
    w.expect(counted == {key: w.increments.count(key) for key in KEYS}, f"increments: {counted}")
    w.expect(len(w.watched) == len({*w.watched}), "watch: a revision came twice")
