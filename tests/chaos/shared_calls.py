"""
The calls that the threads of the part `shared` make, each with a check of its result.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import time
from typing import TYPE_CHECKING

import jetsync

if TYPE_CHECKING:
    from shared import Work

WAIT = 0.02
"""Seconds for which calls wait for messages that may not come."""
KEYS = ["a", "b", "c"]
OWN = [f"own.{number}" for number in range(5)]


@contextlib.contextmanager
def refused(w: Work, error: type[jetsync.JetSyncError], what: str):
    """Expect that the block raises an error."""
    try:
        yield
    except error:
        return
    w.expect(False, f"{what}: no {error.__name__}")


@contextlib.contextmanager
def ending():
    """Let pass what servers answer while they delete the stream or the consumer."""
    try:
        yield
    except jetsync.ApiError as error:
        # "consumer closed" and "stream not valid".
        if error.err_code not in {10012, 10096}:
            raise


# Publishing.


def publish(w: Work, _):
    for subject, data in w.new(3):
        with w.publishing(data):
            w.stored.append((data, w.js.publish(subject, data).sequence))


def publish_many(w: Work, _):
    messages = w.new(30)

    def note(message, ack) -> None:
        w.stored.append((bytes(message.data), ack.sequence))

    try:
        count = w.js.publish_many(messages, on_ack=note).count
    except jetsync.PublishManyError as error:
        for failure in error.report.failures:
            if not isinstance(failure.error, jetsync.PublishOutcomeUnknownError):
                w.not_stored.append(bytes(failure.message.data))
        raise
    w.expect(count == 30, "publish_many: not all are stored")


def publish_batch(w: Work, _):
    messages = w.new(5)
    payloads = [data for _, data in messages]
    w.batches.append(payloads)
    with w.publishing(*payloads):
        first = w.js.publish_batch(messages).sequence - 4
    w.stored += [(data, first + at) for at, data in enumerate(payloads)]


def atomic(w: Work, _):
    messages = w.new(4)
    payloads = [data for _, data in messages]
    w.batches.append(payloads)
    with w.publishing(*payloads), w.js.atomic_batch() as batch:
        for subject, data in messages:
            batch.add(subject, data)
    w.stored += [(data, None) for data in payloads]


def discard(w: Work, _):
    payloads = []
    batch = w.js.atomic_batch()
    for subject, data in w.new(2):
        payloads.append(data)
        batch.add(subject, data)
    batch.discard()
    w.not_stored += payloads


def publisher(w: Work, chance):
    for subject, data in w.new(20):
        w.futures.append((data, w.publisher.publish(subject, data)))
    if chance.random() < 0.2:
        w.publisher.flush(timeout=w.timeout)
    if chance.random() < 0.5:
        data, future = chance.choice(w.futures)
        w.expect(future.result(w.timeout).sequence > 0, f"publisher: {data!r} has no sequence")
    w.publisher.statistics()


def own_publisher(w: Work, _):
    reports = []
    taken = 0
    try:
        with w.js.publisher(window=16, on_report=reports.append) as own:
            for subject, data in w.new(40):
                own.publish(subject, data)
                taken += 1
    finally:
        for report in reports:
            data = bytes(report.message.data)
            if report.ack is not None:
                w.stored.append((data, report.ack.sequence))
            elif not isinstance(report.error, jetsync.PublishOutcomeUnknownError):
                w.not_stored.append(data)
        # A message that `publish` refused may be reported, too.
        w.expect(taken <= len(reports) <= taken + 1, f"reports: {len(reports)} of {taken}")


def fast(w: Work, chance):
    current = w.fast
    try:
        for subject, data in w.new(20):
            current.sent.append(data)
            current.publisher.add(subject, data)
        if chance.random() < 0.2:
            more = w.new(20)
            current.sent += [data for _, data in more]
            current.publisher.add_many(more)
    except jetsync.JetSyncError as error:
        if not w.calm:
            w.renew_fast(current)
        # Another thread has seen the error that ended the publisher.
        if w.calm or not isinstance(error, jetsync.HandleClosedError):
            raise
    current.publisher.statistics()


def own_fast(w: Work, _):
    messages = w.new(30)
    own = w.js.fast_publisher(flow=10)
    try:
        for subject, data in messages:
            own.add(subject, data)
        w.expect(own.commit().size == 30, "own_fast: another size")
    finally:
        # In order and without a gap: confirmations cover the first messages.
        w.stored += [(data, None) for _, data in messages[: own.acknowledged]]
        with contextlib.suppress(jetsync.JetSyncError):
            own.close(timeout=w.timeout)


def schedule(w: Work, _):
    data = b"%d" % next(w.numbers)
    subject = f"plans.{w.name}.at.{data.decode()}"
    # In the past, which means now.
    w.js.schedule(subject, data, target=f"plans.{w.name}.out", at=1)
    w.planned.append(data)


def count(w: Work, chance):
    w.added.append(w.total.add())
    if chance.random() < 0.3:
        known = len(w.added)
        w.expect(w.total.load() >= known, "counter: an addition is missing")
        w.expect({*w.totals.counters()} == {w.total.subject}, "counters: another subject")


# Reading.


def get_message(w: Work, chance):
    known = [each for each in w.stored[-50:] if each[1] is not None]
    if known:
        data, sequence = chance.choice(known)
        found = w.stream.get_message(sequence, direct=chance.choice([True, False, None]))
        w.expect(found.data == data, f"get_message: {sequence} is {found.data!r}, not {data!r}")
        later = w.stream.get_at(found.timestamp)
        w.expect(later.sequence <= sequence, f"get_at: {later.sequence} is after {sequence}")


def get_last(w: Work, chance):
    subject = f"{w.name}.{chance.randrange(10)}"
    with contextlib.suppress(jetsync.MessageNotFoundError):
        w.expect(w.stream.get_last(subject).subject == subject, "get_last: another subject")
    with contextlib.suppress(jetsync.MessageNotFoundError):
        w.expect(w.stream.get_next(subject, 1).subject == subject, "get_next: another subject")


def in_order(w: Work, sequences, name: str):
    w.expect(sequences == sorted(set(sequences)), f"{name}: not in order: {sequences}")


def without_gap(w: Work, found: list[int], name: str):
    whole = [*range(found[0], found[0] + len(found))] if found else []
    w.expect(found == whole, f"{name}: a gap: {found}")


def get_batch(w: Work, chance):
    start = chance.randrange(1, 200)
    found = [each.sequence for each in w.stream.get_batch(40, sequence=start)]
    without_gap(w, found, "get_batch")
    in_order(w, [each.sequence for each in w.stream.get_last_for(f"{w.name}.*")], "get_last_for")


def scan(w: Work, chance):
    start = chance.randrange(1, 200)
    found = [each.sequence for each in w.stream.scan(start=start, end=start + 300, page=100)]
    without_gap(w, found, "scan")
    subject = f"{w.name}.{chance.randrange(10)}"
    pages = w.stream.scan(subject=subject, start=start, end=start + 300, page=10).pages()
    some = [each for page in pages for each in page]
    in_order(w, [each.sequence for each in some], "scan of a subject")
    w.expect({each.subject for each in some} <= {subject}, "scan of a subject: another one")


def ordered(w: Work, _):
    with w.stream.ordered_consumer() as reader:
        found = [message.sequence for message in reader.fetch(50, no_wait=True)]
    w.expect(found == [*range(1, len(found) + 1)], f"ordered: a gap: {found}")


def ordered_consume(w: Work, _):
    found = []
    with w.stream.ordered_consumer() as reader, reader.consume(max_messages=20) as messages:
        while len(found) < 60 and (message := messages.next(timeout=5 * WAIT)) is not None:
            found.append(message.sequence)
        reader.statistics()
    w.expect(found == [*range(1, len(found) + 1)], f"ordered_consume: a gap: {found}")


# Consuming.


def take(w: Work, message) -> None:
    w.consumed.append(bytes(message.data))
    message.ack()


def fetch(w: Work, _):
    for message in w.consumer.fetch(20, expires=0.1):
        take(w, message)


def fetch_and_ack(w: Work, chance):
    batch = w.consumer.fetch(20, no_wait=True)
    messages = [*batch]
    w.consumed += [bytes(message.data) for message in messages]
    if chance.random() < 0.5:
        w.expect(batch.ack() == len(messages), "batch.ack: another number")
    else:
        w.expect(jetsync.ack_many(messages) == len(messages), "ack_many: another number")


def fetch_some(w: Work, _):
    batch = w.consumer.fetch(20, no_wait=True)
    for message in batch:
        take(w, message)
        break
    batch.close()


def next_(w: Work, _):
    message = w.consumer.next(expires=0.1)
    if message is not None:
        w.consumed.append(bytes(message.data))
        message.ack_sync(timeout=w.timeout)


def answers(w: Work, chance):
    for message in w.consumer.fetch(6, no_wait=True):
        how = chance.choice([message.nak, message.term, message.ack, message.in_progress])
        if how != message.nak:
            w.consumed.append(bytes(message.data))
        how()
        if how == message.in_progress:
            message.ack()


def consume(w: Work, _):
    for _ in range(20):
        message = w.messages.next(timeout=WAIT)
        if message is None:
            break
        take(w, message)
    w.messages.statistics()


def own_consume(w: Work, _):
    with w.consumer.consume(ack="auto", stop_after=15, max_messages=15, expires=1) as messages:
        for _ in range(15):
            message = messages.next(timeout=WAIT)
            if message is None:
                break
            w.consumed.append(bytes(message.data))


def handlers(w: Work, chance):
    seen = []

    def handle(message) -> None:
        w.consumed.append(bytes(message.data))
        seen.append(message.sequence)
        with contextlib.suppress(*w.allowed):
            message.ack()

    running = w.consumer.consume(
        handle,
        threads=3,
        stop_after=40,
        max_messages=20,
        expires=1,
        ordered_by=chance.choice([None, "subject"]),
    )
    running.wait(timeout=0.2)
    if chance.random() < 0.5:
        running.close()
    else:
        running.drain()
    w.expect(running.wait(timeout=w.timeout), "handlers: do not end")
    statistics = running.statistics()
    w.expect(statistics.failures == 0, "handlers: one has failed")
    w.expect(len(seen) <= 40, f"handlers: {len(seen)} messages, 40 were asked for")


# Core NATS.


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


def own_core(w: Work, _):
    subject = f"own.{next(w.numbers)}"
    with w.client.subscribe(subject, queue="q") as own:
        for number in range(5):
            w.client.publish(subject, b"%d" % number)
        w.client.flush()
        own.drain()
        found = [int(message.data) for message in own]
    w.expect(found == [*range(5)] if w.calm else found == sorted({*found}), f"own_core: {found}")


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
    key = chance.choice(OWN)
    w.kv.put(key, b"x")
    # A key that changes during the call may be missing.
    w.expect({*w.kv.keys(*KEYS, "own.*")} <= {*KEYS, *OWN}, "keys: an unknown one")
    w.expect({*w.kv.get_many(KEYS)} == {*KEYS}, "get_many: one is missing")
    in_order(w, [entry.revision for entry in w.kv.history(chance.choice(KEYS))], "history")
    w.kv.delete(key)


def create(w: Work, _):
    key = f"once.{next(w.numbers)}"
    revision = w.kv.create(key, b"1")
    with refused(w, jetsync.KeyExistsError, "create"):
        w.kv.create(key, b"2")
    entry = w.kv.get(key, direct=False)
    w.expect((entry.value, entry.revision) == (b"1", revision), f"create: {entry!r}")
    w.kv.purge(key, last=revision)
    with refused(w, jetsync.KeyNotFoundError, "purge"):
        w.kv.get(key, direct=False)


def race(w: Work, _):
    """Create a key that other threads create at the same time."""
    key = f"race.{time.monotonic() // 0.05:.0f}"
    with contextlib.suppress(jetsync.KeyExistsError):
        w.kv.create(key, b"x")
        w.created.append(key)


def tidy(w: Work, _):
    w.kv.purge_deletes(0)
    status = w.kv.status()
    w.expect(status.bucket == w.name, "status: another bucket")
    w.expect(w.name in w.js.key_value_names(), "key_value_names: one is missing")


def watch(w: Work, _):
    for _ in range(5):
        entry = w.watch.next(timeout=WAIT)
        if entry is None:
            break
        w.watched.append((entry.key, entry.revision))


def own_watch(w: Work, chance):
    key = f"seen.{chance.randrange(3)}"
    with w.kv.watch(*KEYS, key) as own:
        # Keys that change meanwhile may come later.
        seen = {entry.key: entry.revision for entry in own.initial(timeout=w.timeout)}
        w.expect({*seen} <= {*KEYS, key}, f"watch.initial: another key: {seen}")
        w.expect(own.wait_current(timeout=0), "watch: not current")
        revision = w.kv.put(key, b"x")
        while not {*KEYS} <= {*seen} or seen.get(key, 0) < revision:
            entry = own.next(timeout=w.timeout)
            if entry is None:
                w.expect(False, f"watch: {key} {revision} or a key did not come: {seen}")
                return
            w.expect(
                entry.revision > max(seen.values(), default=0), f"watch: {entry!r} after {seen}"
            )
            seen[entry.key] = entry.revision


# Streams and consumers.


def streams(w: Work, chance):
    name = f"{w.name}-{next(w.numbers)}"
    subject = f"admin.{name}"
    stream = w.js.create_stream(name, subjects=[f"{subject}.>"], storage="memory")
    with refused(w, jetsync.StreamNameInUseError, "create_stream"):
        w.js.create_stream(name, subjects=[f"{subject}.other"], storage="memory")
    w.expect(name in w.js.stream_names(), "stream_names: one is missing")
    w.expect(name in {each.name for each in w.js.streams()}, "streams: one is missing")
    found = w.js.stream_name_by_subject(f"{subject}.x")
    w.expect(found == name, f"stream_name_by_subject: {found}, not {name}")
    count = chance.randrange(2, 20)
    w.js.publish_many([(f"{subject}.{number % 2}", b"x") for number in range(count)])
    stream.delete_message(1)
    state = stream.info().state
    w.expect((state.first_seq, state.messages) == (2, count - 1), f"delete_message: {state}")
    with refused(w, jetsync.MessageNotFoundError, "delete_message"):
        stream.get_message(1)
    stream.update(max_msgs=1000)
    w.expect(w.js.stream(name).config.max_msgs == 1000, "update: not stored")
    w.expect(stream.purge(f"{subject}.1") == count // 2, "purge: another number")
    w.expect(stream.purge() == count - 1 - count // 2, "purge: another number")
    w.expect(stream.info().state.messages == 0, "purge: a message is left")
    stream.delete()
    with refused(w, jetsync.StreamNotFoundError, "delete_stream"):
        w.js.stream(name)


def consumers(w: Work, _):
    name = f"own-{next(w.numbers)}"
    own = w.stream.create_consumer(name, inactive_threshold=60, mem_storage=True)
    w.expect(name in w.stream.consumer_names(), "consumer_names: one is missing")
    w.expect(name in {each.name for each in w.stream.consumers()}, "consumers: one is missing")
    w.stream.update_consumer(name, max_ack_pending=77)
    config = w.js.consumer(w.name, name).cached_info.config
    w.expect(config.max_ack_pending == 77, "update_consumer: not stored")
    until = dt.datetime.now(dt.timezone.utc) + dt.timedelta(minutes=5)
    w.expect(w.stream.pause_consumer(name, until).paused, "pause_consumer: not paused")
    w.expect(not [*own.fetch(1, expires=WAIT)], "pause_consumer: a message came")
    w.expect(not w.stream.resume_consumer(name).paused, "resume_consumer: still paused")
    found = [message.sequence for message in own.fetch(5, no_wait=True)]
    w.stream.reset_consumer(name, 1)
    again = [message.sequence for message in own.fetch(5, no_wait=True)]
    for each in (found, again):
        w.expect(len(each) <= 5, f"fetch: 5 were asked for: {found}, {again}")
        # Messages that were sent on a lost connection come again after `ack_wait`.
        whole = each == [*range(1, len(each) + 1)]
        w.expect(whole or w.mode == "cut", f"own consumer: a gap: {each}")
    own.delete()
    with refused(w, jetsync.ConsumerNotFoundError, "delete_consumer"):
        own.info()


def same_names(w: Work, chance):
    """Change and delete a stream and a consumer, as other threads do at the same time."""
    limit = chance.randrange(1, 1000)
    config = jetsync.StreamConfig(
        name=f"{w.name}-same", subjects=[f"same.{w.name}"], storage="memory", max_msgs=limit
    )
    gone = (
        jetsync.StreamNotFoundError,
        jetsync.StreamNameInUseError,
        jetsync.ConsumerNotFoundError,
    )
    with contextlib.suppress(*gone), ending():
        stream = w.js.create_or_update_stream(config)
        # The answer may show the limit of another thread, because the server answers later.
        w.expect(stream.name == config.name, "create_or_update_stream: another stream")
        consumer = stream.create_or_update_consumer("same", max_ack_pending=limit)
        w.expect(consumer.name == "same", "create_or_update_consumer: another consumer")
        stream.delete_consumer("same")
        if chance.random() < 0.3:
            stream.delete()


# Life.


def ask(w: Work, _):
    w.client.flush()
    w.client.rtt()
    w.client.statistics()
    w.stream.info()
    w.consumer.info()
    w.js.account_info()
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


def connect(w: Work, chance):
    with jetsync.connect(w.client.server.url) as client:
        client.subscribe("unused")
        client.flush()
        if chance.random() < 0.5:
            client.drain(timeout=w.timeout)


def reconnect(w: Work, _):
    w.client.reconnect(timeout=w.timeout)


ACTS = [
    *[publish, publish, publish_many, publish_batch, atomic, discard],
    *[publisher, publisher, own_publisher, fast, fast, own_fast, schedule, count],
    *[get_message, get_message, get_last, get_batch, scan, ordered, ordered_consume],
    *[fetch, fetch, fetch_and_ack, fetch_and_ack, fetch_some, next_, answers],
    *[consume, consume, consume, own_consume, handlers, core, core, own_core],
    *[increment, increment, move, keys, create, race, tidy, watch, watch, own_watch],
    *[streams, consumers, same_names, ask, ask, drop, connect],
]
"""What the threads do. Calls that others depend on are listed more often."""
