"""
Calls from signal handlers: a handler may interrupt any call, at any step, and make any call.

Each pair of an outer and an inner call runs many times, and the inner call runs at another step of
the outer one each time. The inner call works or raises an error of jetsync at once. The outer call
is not disturbed. Afterwards both work, and no message is lost or delivered twice.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

import jetsync
from helpers.connections import connection_of
from helpers.interrupts import handled_at, is_locked
from helpers.lacking import needs_epoll
from helpers.thorough import thorough_except
from helpers.waiting import eventually

_FEWER = os.environ.get("JETSYNC_TEST_SET", "full") != "full"
STRIKES = int(os.environ.get("JETSYNC_TEST_STRIKES", "4" if _FEWER else "12"))
"""Steps of an outer call at which each inner call runs, spread evenly; 0 for every step."""

HANGS_AFTER = 20
"""Seconds after which a call counts as hanging: every wait of the calls below is shorter."""

DATA = b"some data"
"""The data of each object."""


class Rig:
    """
    The handles of one client, and the outcome of the messages that went through them.
    """

    def __init__(self, client, other, name):
        self.client, self.other, self.name = client, other, name
        self.js = client.jetstream(timeout=5)
        self.stream = self.js.create_stream(
            name,
            subjects=[f"{name}.>"],
            storage="memory",
            allow_direct=True,
            allow_atomic=True,
            allow_batched=True,
        )
        self.kv = self.js.create_key_value(name, storage="memory")
        self.objects = self.js.create_object_store(name, storage="memory")
        self.out = f"{name}.out"
        filled = {"filter_subject": f"{name}.in", "ack_wait": 60, "max_ack_pending": -1}
        self.consumer = self.stream.create_consumer("C", **filled)
        self.puller = self.stream.create_consumer("P", **filled)
        self.filled = 0
        """The number of messages for each reader."""

        self.done = {"C": [], "P": []}
        """The acknowledged messages of each consumer."""

        self.late = []
        """Messages that still have to be acknowledged."""

        self.read = []
        """Messages that arrived in order."""

        self.stored = self.unknown = 0
        """The number of stored messages, and of messages with an unknown outcome."""

        self.open()

    def open(self):
        """
        Make the handles that a handler may end.
        """
        self.ordered = self.stream.ordered_consumer(
            filter_subjects=f"{self.name}.in", opt_start_seq=None if not self.read else self.at + 1
        )
        self.consumption = self.consumer.consume(expires=5)
        self.reading = self.ordered.consume(expires=5)
        self.watch = self.kv.watch(updates_only=True)
        self.subscription = self.client.subscribe(f"core.{self.name}")
        self.publisher = self.js.publisher()
        self.batch = None
        self.client.flush(timeout=5)

    def close(self):
        """
        End these handles.
        """
        self.consumption.close()
        self.reading.close()
        self.ordered.close()
        self.watch.close()
        self.subscription.close()
        self.publisher.close(timeout=5)

    def fill(self):
        """
        Have the other client publish something for every reader.
        """
        self.filled += 1
        body = b"%d" % self.filled
        js = self.other.jetstream()
        js.publish(f"{self.name}.in", body)
        js.key_value(self.name).put("key", body)
        self.other.publish(f"core.{self.name}", body)
        self.other.flush(timeout=5)

    def settle(self, message, done):
        """
        Acknowledge a message, later if a signal handler cannot do it.
        """
        try:
            message.ack()
        except jetsync.CallInSignalHandlerError:
            self.late.append(message)
        self.done[done].append(int(message.data))

    def note(self, message):
        """
        Note a message that arrived in order.
        """
        self.at = message.sequence
        self.read.append(int(message.data))

    def check(self):
        """
        Assert that no message was lost or delivered twice.
        """
        self.consumption.close()
        assert self.consumption.wait(timeout=10)
        for message in self.late:
            message.ack()
        self.client.flush(timeout=5)
        for name, done in self.done.items():
            consumer = self.js.consumer(self.name, name)
            while len(done) < self.filled:
                message = consumer.next(expires=5)
                assert message is not None, f"{name} has {sorted(done)} of {self.filled}"
                self.settle(message, name)
            assert sorted(done) == list(range(1, self.filled + 1))
        while len(self.read) < self.filled:
            self.note(self.reading.next(timeout=5))
        assert self.read == list(range(1, self.filled + 1))
        assert self.publisher.flush(timeout=5) == 0
        stored = self.stream.info(subjects_filter=self.out).state.subjects.get(self.out, 0)
        assert self.stored <= stored <= self.stored + self.unknown
        self.check_objects()

    def check_objects(self):
        """
        Assert that the object store has the chunks of its objects only, and these whole.
        """
        objects = self.objects.list()
        for info in objects:
            assert self.objects.get_bytes(info.name) == DATA
        found = self.objects.stream.info(subjects_filter=f"$O.{self.name}.C.>").state.subjects
        assert {subject.rpartition(".")[2]: count for subject, count in found.items()} == {
            info.nuid: info.chunks for info in objects
        }


# The calls. Each reader has a message to read; published messages are counted.


def publish(rig):
    """
    Publish one message.
    """
    rig.js.publish(rig.out)
    rig.stored += 1


def publish_many(rig):
    """
    Publish three messages in a window.
    """
    report = rig.js.publish_many([(rig.out, b"")] * 3)
    rig.stored += report.count


def publisher_publish(rig):
    """
    Publish with the shared publisher, and wait for the ack.
    """
    future = rig.publisher.publish(rig.out)
    rig.unknown += 1
    future.result(5)
    rig.stored, rig.unknown = rig.stored + 1, rig.unknown - 1


def publisher_flush(rig):
    """
    Wait until the publisher has nothing in flight.
    """
    assert rig.publisher.flush(timeout=5) == 0


def atomic_batch(rig):
    """
    Commit a batch of one message.
    """
    with rig.js.atomic_batch() as batch:
        batch.add(rig.out)
    # Read first: a call that interrupts this one counts, too.
    size = batch.ack.size
    rig.stored += size


def fast_publisher(rig):
    """
    Commit a fast batch of one message.
    """
    rig.unknown += 1
    with rig.js.fast_publisher() as fast:
        fast.add(rig.out)
    size = fast.ack.size
    rig.stored, rig.unknown = rig.stored + size, rig.unknown - 1


def fetch(rig):
    """
    Fetch a message that is available.
    """
    rig.batch = rig.puller.fetch(1, expires=1)
    for message in rig.batch:
        rig.settle(message, "P")


def fetch_now(rig):
    """
    Fetch without waiting.
    """
    for message in rig.puller.fetch(1, no_wait=True):
        rig.settle(message, "P")


def next_(rig):
    """
    Take one message.
    """
    message = rig.puller.next(expires=1)
    if message is not None:
        rig.settle(message, "P")


def consumption_next(rig, timeout=1):
    """
    Take one message of the consumption.
    """
    message = rig.consumption.next(timeout=timeout)
    if message is not None:
        rig.settle(message, "C")


def ordered_next(rig, timeout=1):
    """
    Take the next message in order.
    """
    message = rig.reading.next(timeout=timeout)
    if message is not None:
        rig.note(message)


def watch_next(rig, timeout=1):
    """
    Take the next change of the bucket.
    """
    rig.watch.next(timeout=timeout)


def subscription_next(rig, timeout=1):
    """
    Take a core message.
    """
    rig.subscription.next(timeout=timeout)


def kv_put(rig):
    """
    Set a key.
    """
    rig.kv.put("other", b"")


def kv_get(rig):
    """
    Read a key.
    """
    rig.kv.get("key")


def object_put(rig, name="a"):
    """
    Store an object of two chunks.
    """
    rig.objects.put(name, DATA, chunk_size=len(DATA) - 1)


def client_flush(rig):
    """
    Wait for a round trip.
    """
    rig.client.flush(timeout=5)


OUTER = {
    "publish": publish,
    "publish_many": publish_many,
    "publisher_publish": publisher_publish,
    "publisher_flush": publisher_flush,
    "atomic_batch": atomic_batch,
    "fast_publisher": fast_publisher,
    "fetch": fetch,
    "next": next_,
    "consumption_next": consumption_next,
    "ordered_next": ordered_next,
    "watch_next": watch_next,
    "subscription_next": subscription_next,
    "kv_put": kv_put,
    "kv_get": kv_get,
    "object_put": object_put,
    "client_flush": client_flush,
}

INNER = {
    **OUTER,
    "fetch": fetch_now,
    "next": fetch_now,
    "consumption_next": lambda rig: consumption_next(rig, 0),
    "ordered_next": lambda rig: ordered_next(rig, 0),
    "watch_next": lambda rig: watch_next(rig, 0),
    "subscription_next": lambda rig: subscription_next(rig, 0),
    "object_put": lambda rig: object_put(rig, "b"),
    "client_publish": lambda rig: rig.client.publish(f"nobody.{rig.name}"),
    "client_request": lambda rig: rig.client.request(f"nobody.{rig.name}", timeout=5),
    "request_many": lambda rig: list(rig.client.request_many(f"nobody.{rig.name}", timeout=5)),
    "new_subscription": lambda rig: rig.client.subscribe(f"nobody.{rig.name}").close(),
    "stop": lambda rig: rig.consumption.close(),
    "drain": lambda rig: rig.consumption.drain(),
    "wait": lambda rig: rig.consumption.wait(timeout=0),
    "statistics": lambda rig: (rig.consumption.statistics(), rig.publisher.statistics()),
    "batch_close": lambda rig: rig.batch and rig.batch.close(),
    "reading_stop": lambda rig: rig.reading.close(),
    "ordered_close": lambda rig: rig.ordered.close(),
    "watch_close": lambda rig: rig.watch.close(),
    "subscription_close": lambda rig: rig.subscription.close(),
    "publisher_close": lambda rig: rig.publisher.close(timeout=5),
}

ENDING = frozenset(
    {
        "batch_close",
        "drain",
        "ordered_close",
        "publisher_close",
        "reading_stop",
        "stop",
        "subscription_close",
        "watch_close",
    }
)
"""Inner calls that close a handle."""

ENDED = (jetsync.ConsumptionClosedError, jetsync.HandleClosedError)
"""Errors that an outer call raises if the handler closed its handle."""

UNKNOWN = (jetsync.PublishOutcomeUnknownError, jetsync.PublishManyError)


@pytest.fixture
def rig(nats_server, unique):
    """
    The handles of a client.
    """
    with jetsync.connect(nats_server.url) as client, jetsync.connect(nats_server.url) as other:
        rig = Rig(client, other, unique)
        yield rig
        rig.close()
        other.jetstream().delete_stream(unique)
        other.jetstream().delete_key_value(unique)
        other.jetstream().delete_object_store(unique)


@contextlib.contextmanager
def no_hang(what):
    """
    Fail if the block hangs.
    """

    def tell(*_):
        pytest.fail(f"{what} hangs")

    before = signal.signal(signal.SIGALRM, tell)
    signal.setitimer(signal.ITIMER_REAL, HANGS_AFTER)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def strike(rig, outer, inner, step):
    """
    Make an inner call at one step of an outer one.
    """

    def handler():
        try:
            INNER[inner](rig)
        except jetsync.JetSyncError as error:
            # These may include three messages of a window.
            rig.unknown += 3 * isinstance(error, UNKNOWN)

    def call():
        # The handler may have taken the messages.
        with contextlib.suppress(jetsync.WaitTimeoutError, *(ENDED if inner in ENDING else ())):
            OUTER[outer](rig)

    # Each pull gets a message of its own. Without one it would wait for a server that is busy.
    for _ in range(2 if {outer, inner} <= {"fetch", "next"} else 1):
        rig.fill()
    handled_at(step, call, handler)
    if inner in ENDING:
        rig.close()
        rig.open()


def steps_of(rig, outer):
    """
    Return the approximate number of steps of an outer call.
    """
    steps = []

    def look(frame, event, argument):
        if event in {"call", "c_return"}:
            steps.append(event)

    rig.fill()
    sys.setprofile(look)
    try:
        OUTER[outer](rig)
    finally:
        sys.setprofile(None)
    return len(steps)


PAIRS = {f"{outer}-{inner}": (outer, inner) for outer in OUTER for inner in INNER}


@pytest.mark.parametrize(
    "pair",
    thorough_except(
        PAIRS,
        "publish-publish",
        "fetch-publish",
        "publisher_publish-kv_get",
        "publish-object_put",
        "object_put-publish",
    ),
)
def test_any_call_in_any_other(rig, pair):
    """
    A call in a signal handler works or raises, and does not affect the call that it interrupted.
    """
    outer, inner = pair
    with no_hang(f"{inner} in {outer}"):
        total = steps_of(rig, outer)
    stride = max(total // STRIKES, 1) if STRIKES else 1
    # Each pair interrupts at other steps.
    first = 1 + sum(map(ord, outer + inner)) % stride
    for step in range(first, total + 1, stride):
        with no_hang(f"{inner} at step {step} of {outer}"):
            strike(rig, outer, inner, step)
    with no_hang(f"what follows {inner} in {outer}"):
        rig.check()


class Handles:
    """
    One handle of each kind that has a lock for several threads.
    """

    def __init__(self, client, name):
        self.client, self.name = client, name
        js = client.jetstream(timeout=5)
        stream = js.create_stream(
            name, subjects=[f"{name}.>"], storage="memory", allow_atomic=True, allow_batched=True
        )
        self.publisher = js.publisher()
        self.future = self.publisher.publish(f"{name}.one")
        self.future.result(5)
        self.fast = js.fast_publisher(timeout=5)
        self.fast.add(f"{name}.two")
        self.batch = js.atomic_batch(timeout=5)
        self.batch.add(f"{name}.two")
        consumer = stream.create_consumer("C", filter_subject=f"{name}.one")
        self.message = consumer.next(expires=5)
        self.consumption = consumer.consume(expires=5)
        self.ordered = stream.ordered_consumer()
        self.watch = js.create_key_value(name, storage="memory").watch(updates_only=True)
        self.subscription = client.subscribe(f"core.{name}")
        self.answers = client.request_many(f"core.{name}", timeout=60)
        client.flush(timeout=5)

    def close(self):
        """End all calls and all handles."""
        reading = self.consumption, self.watch, self.subscription, self.answers, self.ordered
        for handle in reading:
            handle.close()
        self.batch.discard()
        self.publisher.close(timeout=5)
        with contextlib.suppress(jetsync.BatchClosedError):
            self.fast.close(timeout=5)

    def publish(self):
        """Have another thread wait in the publisher for its turn to write."""
        for _ in range(300):
            self.future = self.publisher.publish(f"{self.name}.two", b"x" * 1000)


# What another thread does, and what the signal handler does meanwhile, without a limit of time.
MEETINGS = {
    "publish": (Handles.publish, lambda h: h.publisher.publish(f"{h.name}.two")),
    "publisher.statistics": (Handles.publish, lambda h: h.publisher.statistics()),
    "publisher.flush": (Handles.publish, lambda h: h.publisher.flush()),
    "publisher.close": (Handles.publish, lambda h: h.publisher.close()),
    "future.result": (Handles.publish, lambda h: h.future.result()),
    "future.add_done_callback": (Handles.publish, lambda h: h.future.add_done_callback(print)),
    "fast.add": (
        lambda h: h.fast.add(f"{h.name}.two", headers={"a": "b"}, timeout=30),
        lambda h: h.fast.add(f"{h.name}.two", timeout=60),
    ),
    "fast.commit": (lambda h: h.fast.commit(), lambda h: h.fast.commit(timeout=60)),
    "batch.add": (
        lambda h: h.batch.add(f"{h.name}.two", b"x" * 10000),
        lambda h: h.batch.add(f"{h.name}.three", b"x" * 10000, timeout=60),
    ),
    "consumption.next": (
        lambda h: h.consumption.next(timeout=30),
        lambda h: next(h.consumption),
    ),
    "consumption.wait": (
        lambda h: h.consumption.next(timeout=30),
        lambda h: h.consumption.wait(timeout=60),
    ),
    "ordered.fetch": (
        lambda h: h.ordered.fetch(1, expires=30),
        lambda h: h.ordered.fetch(1, expires=60),
    ),
    "watch.next": (lambda h: h.watch.next(timeout=30), lambda h: next(h.watch)),
    "subscription.next": (
        lambda h: h.subscription.next(timeout=30),
        lambda h: next(h.subscription),
    ),
    "answers.next": (lambda h: list(h.answers), lambda h: next(h.answers)),
}


class TestOtherThreads:
    """
    A handler that interrupts a write meets a thread that waits for that write.
    """

    @pytest.mark.parametrize("meeting", MEETINGS)
    def test_a_handler_never_waits_for_a_thread_that_waits_for_it(
        self, nats_server, unique, meeting
    ):
        """
        A call of a handler works or raises at once if another thread waits for the interrupted one.
        """
        other, handler = MEETINGS[meeting]
        with jetsync.connect(nats_server.url) as client, ThreadPoolExecutor(1) as pool:
            handles = Handles(client, unique)
            lane = connection_of(client).lane
            # As the main thread does when a signal arrives during a write.
            with no_hang(meeting), lane.outbox.write_lock:
                # Threads that read send it before they wait.
                handles.message.ack()
                waiting = pool.submit(other, handles)
                eventually(waits_to_write, 10)
                with contextlib.suppress(jetsync.CallInSignalHandlerError):
                    handler(handles)
            handles.close()
            waiting.exception(10)
            client.jetstream().delete_stream(unique)
            client.jetstream().delete_key_value(unique)

    def test_a_callback_that_waits_for_the_interrupted_call(self, nats_server, unique):
        """
        A call that would wait for a publisher's thread raises if that may wait for another handle.
        """
        with jetsync.connect(nats_server.url) as client:
            js = client.jetstream(timeout=5)
            js.create_stream(unique, subjects=[unique], storage="memory")
            interrupted, called = js.publisher(), threading.Event()

            def report(_):
                called.set()
                interrupted.statistics()

            publisher = js.publisher(on_report=report)
            # As the main thread does when a signal arrives while it uses the other publisher.
            with no_hang("the handler"), interrupted._lock:
                publisher.publish(unique)
                assert called.wait(10)
                future = publisher.publish(unique)
                for call in (future.result, publisher.flush, publisher.close):
                    with pytest.raises(jetsync.CallInSignalHandlerError):
                        call()
            publisher.publish(unique).result(10)
            publisher.close(timeout=10)
            assert future.result(10).stream == unique

    def test_the_worker_writes_what_a_handler_has_staged(self, nats_server, unique):
        """
        A message of a handler that cannot write is sent soon, without another call.
        """
        with jetsync.connect(nats_server.url) as client:
            js = client.jetstream(timeout=5)
            stream = js.create_stream(unique, subjects=[unique], storage="memory")
            publisher = js.publisher()
            # As the main thread does when a signal arrives while it uses the publisher.
            with publisher._lock:
                publisher.publish(unique)
            eventually(lambda: stream.info().state.messages == 1, 10)
            publisher.close(timeout=5)

    @pytest.mark.parametrize("call", ["consumption.wait", "reading.wait", "watch.wait_current"])
    def test_a_wait_for_a_thread_that_may_wait_for_the_interrupted_call(
        self, nats_server, unique, call
    ):
        """
        A handler waits for no thread that takes messages, because plugins may use another handle.
        """
        with jetsync.connect(nats_server.url) as client:
            handles = Handles(client, unique)
            bucket = client.jetstream().key_value(unique)
            bucket.put("key", b"")
            ordered = client.jetstream().stream(unique).ordered_consumer()
            with bucket.watch() as watch, ordered.consume() as reading:
                wait = {
                    "consumption.wait": handles.consumption.wait,
                    "reading.wait": reading.wait,
                    "watch.wait_current": watch.wait_current,
                }[call]
                # As the main thread does when a signal arrives while it uses the publisher.
                with (
                    no_hang("the handler"),
                    handles.publisher._lock,
                    pytest.raises(jetsync.CallInSignalHandlerError),
                ):
                    wait()
            handles.close()

    def test_a_message_that_was_staged_while_the_publisher_closed(self, nats_server, unique):
        """
        A call that has staged a message returns its future, also if it cannot take the lock.
        """
        with jetsync.connect(nats_server.url) as client, ThreadPoolExecutor(1) as pool:
            js = client.jetstream(timeout=5)
            stream = js.create_stream(unique, subjects=[unique], storage="memory")
            publisher = js.publisher()
            free, stage, stopped = threading.Event(), publisher._window.stage, threading.Event()

            def hold():
                with publisher._lock:
                    publisher._stopped = jetsync.HandleClosedError("publisher")
                    stopped.set()
                    free.wait(10)

            def stage_as_it_closes(future):
                assert stage(future)
                closing.append(pool.submit(hold))
                return stopped.wait(10)

            closing = []
            publisher._window.stage = stage_as_it_closes
            with no_hang("the handler"), connection_of(client).lane.outbox.write_lock:
                future = publisher.publish(unique)
            free.set()
            assert future.result(10).sequence == 1
            closing[0].result(10)
            publisher.close(timeout=10)
            assert stream.info().state.messages == 1


@needs_epoll
class TestReading:
    """
    A handler interrupts the thread that reads, and waits for a thread that needs an answer.
    """

    @pytest.fixture
    def in_a_read(self, nats_server, unique):
        """
        Make a call in a handler that interrupts a read of the main thread; return its result.
        """

        def in_a_read(client, call):
            lane, results = connection_of(client).lane, []
            owner = f"owner={threading.main_thread().ident} "

            def interrupt():
                eventually(
                    lambda: (
                        lane.reader._leading is not None and owner in repr(lane.reader._read_lock)
                    ),
                    10,
                )
                signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)

            before = signal.signal(signal.SIGUSR1, lambda *_: results.append(call()))
            try:
                with no_hang("the handler"), ThreadPoolExecutor(1) as pool:
                    with client.subscribe(f"quiet.{unique}") as subscription:
                        interrupted = pool.submit(interrupt)
                        while not results:
                            with contextlib.suppress(jetsync.ConnectionClosedError):
                                subscription.next(timeout=0.1)
                    interrupted.result(10)
            finally:
                signal.signal(signal.SIGUSR1, before)
            return results[0]

        return in_a_read

    def test_two_threads_close_the_client(self, nats_server, in_a_read):
        """
        If another thread is closing the client, the handler lets it finish.
        """
        client = jetsync.connect(nats_server.url)
        closing = threading.Thread(target=client.close, kwargs={"timeout": 60})

        def close():
            closing.start()
            eventually(lambda: is_locked(connection_of(client).session._close_lock), 10)
            client.close(timeout=60)
            return client.is_closed

        assert in_a_read(client, close)
        closing.join(20)

    def test_headers_that_another_thread_asks_a_plugin_for(self, nats_server, unique, in_a_read):
        """
        A batch waits until the plugin of another thread, which needs an answer, has returned.
        """
        asked, answers = threading.Event(), []

        class Asks:
            @jetsync.hookimpl
            def jetsync_shared_headers(self):
                asked.set()
                answers.append(client.rtt(timeout=60))

        with (
            jetsync.connect(nats_server.url, plugins=[Asks()]) as client,
            ThreadPoolExecutor(1) as pool,
        ):
            js = client.jetstream()
            stream = js.create_stream(
                unique, subjects=[unique], storage="memory", allow_batched=True
            )
            batch = js.fast_publisher()

            def add():
                first = pool.submit(batch.add, unique)
                assert asked.wait(10)
                batch.add(unique)
                return first

            in_a_read(client, add).result(10)
            batch.commit()
            assert stream.info().state.messages == 2
            assert len(answers) == 1

    def test_the_callback_of_a_publisher(self, nats_server, unique, in_a_read):
        """
        Closing a publisher lets its callback, which needs an answer, return.
        """
        started, go_on, outcomes = threading.Event(), threading.Event(), []

        def report(_):
            started.set()
            assert go_on.wait(20)
            outcomes.append(consumer.info(timeout=60).num_pending)

        with jetsync.connect(nats_server.url) as client:
            js = client.jetstream()
            stream = js.create_stream(unique, subjects=[unique], storage="memory")
            consumer = stream.create_consumer("C")
            publisher = js.publisher(on_report=report)
            publisher.publish(unique)
            # All messages have ended, and the publisher's thread runs the callback.
            assert started.wait(20)
            assert publisher.pending == 0

            def close():
                go_on.set()
                publisher.close()
                return outcomes

            assert in_a_read(client, close) == [1]

    def test_a_wait_for_a_consumption(self, nats_server, unique, in_a_read):
        """
        A wait lets the handlers of a consumption, which need answers, return.
        """
        started, go_on = threading.Event(), threading.Event()

        def handle(message):
            started.set()
            assert go_on.wait(20)
            message.ack_sync(timeout=60)

        with jetsync.connect(nats_server.url) as client:
            js = client.jetstream()
            stream = js.create_stream(unique, subjects=[unique], storage="memory")
            js.publish(unique)
            consumer = stream.create_consumer("C")
            consumption = consumer.consume(handle)
            assert started.wait(20)

            def wait():
                go_on.set()
                consumption.drain()
                return consumption.wait(timeout=60)

            assert in_a_read(client, wait)
            assert consumer.info().num_ack_pending == 0


def waits_to_write():
    """
    Return whether a thread other than this one and those of the client waits for the write lock.
    """
    me = threading.get_ident()
    for thread in threading.enumerate():
        if thread.ident == me or thread.name == "jetsync-loop":
            continue
        frame = sys._current_frames().get(thread.ident)
        if frame is not None and frame.f_code.co_name == "__enter__":
            frame = frame.f_back  # On Python 3.14, the locks have one in Python.
        if frame is not None and frame.f_code.co_filename.endswith("outbox.py"):
            return True
    return False
