"""
Calls from signal handlers: a handler that interrupts a call of jetsync must not wait.

A call that would wait raises CallInSignalHandlerError at once and sends nothing. Every other call
works. The interrupted call is not disturbed. Afterwards all handles work, and no message is lost or
delivered twice.
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
from helpers import interrupts
from helpers.connections import connection_of
from helpers.lacking import needs_epoll
from helpers.thorough import thorough_except
from helpers.waiting import eventually
from jetsync._base.deadline import FOREVER
from jetsync._io.handles import list_of

_FEWER = os.environ.get("JETSYNC_TEST_SET", "full") != "full"
STRIKES = int(os.environ.get("JETSYNC_TEST_STRIKES", "4" if _FEWER else "6"))
"""Steps of an outer call at which each inner call runs, spread evenly; 0 for every step."""

HANGS_AFTER = 60
"""Seconds after which a call counts as hanging: every wait of the calls below is shorter."""

DATA = b"some data"
"""The data of each object."""


class OwnHandles:
    """
    The handles of one client, and the outcome of the messages that went through them.
    """

    def __init__(self, url, client, other, name):
        self.url, self.client, self.other, self.name = url, client, other, name
        self.js = client.jetstream(timeout=20)
        self.patience = 1
        """Seconds that a call waits for a message."""

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
    future.result(20)
    rig.stored, rig.unknown = rig.stored + 1, rig.unknown - 1


def publisher_flush(rig):
    """
    Publish with the shared publisher, and wait until it has nothing in flight.
    """
    rig.unknown += 1
    rig.publisher.publish(rig.out)
    assert rig.publisher.flush(timeout=20) == 0
    rig.stored, rig.unknown = rig.stored + 1, rig.unknown - 1


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
    rig.batch = rig.puller.fetch(1, expires=rig.patience)
    for message in rig.batch:
        rig.settle(message, "P")
    return rig.batch.received


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
    message = rig.puller.next(expires=rig.patience)
    if message is not None:
        rig.settle(message, "P")
    return message


def consumption_next(rig, timeout=None):
    """
    Take one message of the consumption.
    """
    message = rig.consumption.next(timeout=rig.patience if timeout is None else timeout)
    if message is not None:
        rig.settle(message, "C")
    return message


def ordered_next(rig, timeout=None):
    """
    Take the next message in order.
    """
    message = rig.reading.next(timeout=rig.patience if timeout is None else timeout)
    if message is not None:
        rig.note(message)
    return message


def watch_next(rig, timeout=None):
    """
    Take the next change of the bucket.
    """
    return rig.watch.next(timeout=rig.patience if timeout is None else timeout)


def subscription_next(rig, timeout=None):
    """
    Take a core message.
    """
    return rig.subscription.next(timeout=rig.patience if timeout is None else timeout)


def kv_put(rig):
    """
    Set a key.
    """
    rig.kv.put("other", b"")


def kv_get(rig):
    """
    Read a key.
    """
    with contextlib.suppress(jetsync.KeyNotFoundError):  # It may not be set yet.
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
    rig.client.flush(timeout=20)


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

NEVER_WAITS = ENDING - {"publisher_close"} | {"client_publish"}
"""Inner calls that no handler may be refused."""

ENDED = (jetsync.ConsumptionClosedError, jetsync.HandleClosedError)
"""Errors that an outer call raises if the handler closed its handle."""

UNKNOWN = (jetsync.PublishOutcomeUnknownError, jetsync.PublishManyError)


@pytest.fixture
def rig(nats_server, unique):
    """
    The handles of a client.
    """
    with jetsync.connect(nats_server.url) as client, jetsync.connect(nats_server.url) as other:
        rig = OwnHandles(nats_server.url, client, other, unique)
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
        except (jetsync.CallInSignalHandlerError, jetsync.ConflictingUseError):
            assert inner not in NEVER_WAITS
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
    interrupts.handled_at(step, call, handler)
    if inner in ENDING:
        rig.close()
        rig.open()


def steps_of(rig, outer):
    """
    Return the approximate number of steps of an outer call.
    """
    rig.fill()
    return interrupts.steps_of(lambda: OUTER[outer](rig))


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


# Waits. The server is paused, so each of these calls waits until the handler has returned.


def publisher_room(rig):
    """
    Publish more than the window has room for.
    """
    rig.unknown += 2
    with rig.js.publisher(window=1, retries=0) as publisher:
        for _ in range(2):
            publisher.publish(rig.out)
    rig.stored, rig.unknown = rig.stored + 2, rig.unknown - 2


def loop(rig):
    """
    Take one message of the consumption in a loop.
    """
    for message in rig.consumption:
        rig.settle(message, "C")
        return message
    return None


def batch_loop(rig):
    """
    Take one message of a fetch in a loop.
    """
    for message in rig.puller.fetch(1, expires=rig.patience):
        rig.settle(message, "P")
        return message
    return None


def connect(rig):
    """
    Connect another client.
    """
    jetsync.connect(rig.url, connect_timeout=20).close()


READS = {
    "batch_loop": batch_loop,
    "consumption_next": consumption_next,
    "fetch": fetch,
    "loop": loop,
    "next": next_,
    "ordered_next": ordered_next,
    "subscription_next": subscription_next,
    "watch_next": watch_next,
}
"""Calls that wait for a message and return it."""

WAITS = {
    **OUTER,
    **READS,
    "publisher_room": publisher_room,
    "connect": connect,
    "request": lambda rig: rig.client.request("$JS.API.INFO", timeout=20),
    "rtt": lambda rig: rig.client.rtt(timeout=20),
    "scan": lambda rig: list(rig.stream.scan()),
}
"""Calls that wait."""

SHORTEST_REQUEST = 64
"""The bytes of any request or message with a reply subject are more than this."""

REFUSED = {
    **{name: call for name, call in WAITS.items() if not name.startswith("publisher_")},
    "fetch_now": fetch_now,
    "next_now": lambda rig: consumption_next(rig, 0),
    "subscription_now": lambda rig: subscription_next(rig, 0),
    "request_many": lambda rig: list(rig.client.request_many("$JS.API.INFO", max_messages=1)),
    "consumption_wait": lambda rig: rig.consumption.wait(timeout=rig.patience),
    "reading_wait": lambda rig: rig.reading.wait(timeout=rig.patience),
    "ordered_fetch": lambda rig: rig.spare.ordered.fetch(1, expires=rig.patience),
    "publisher_flush": lambda rig: rig.publisher.flush(timeout=20),
    "publisher_close": lambda rig: rig.publisher.close(timeout=20),
    "batch_commit": lambda rig: rig.spare.batch.commit(timeout=20),
    "fast_commit": lambda rig: rig.spare.fast.commit(timeout=20),
    "fast_close": lambda rig: rig.spare.fast.close(timeout=20),
    "ack_sync": lambda rig: rig.spare.messages[0].ack_sync(timeout=20),
    "reconnect": lambda rig: rig.client.reconnect(timeout=20),
}
"""Calls that a handler cannot make while its own thread waits in another one."""


class Spare:
    """
    Handles that the interrupted call does not use.
    """

    def __init__(self, rig):
        rig.js.publish_many([(f"{rig.name}.spare", b"")] * 4)
        consumer = rig.stream.create_consumer("S", filter_subject=f"{rig.name}.spare", ack_wait=60)
        self.consumer = consumer
        self.messages = list(consumer.fetch(4, expires=20))
        self.consumptions = [rig.puller.consume(max_messages=1, expires=30) for _ in range(2)]
        self.ordered = rig.stream.ordered_consumer(filter_subjects=f"{rig.name}.none")
        self.reading = rig.stream.ordered_consumer(filter_subjects=f"{rig.name}.none").consume()
        self.subscriptions = [rig.client.subscribe(f"spare.{rig.name}") for _ in range(2)]
        self.watch = rig.kv.watch(updates_only=True)
        self.answers = rig.client.request_many(f"spare.{rig.name}", timeout=60)
        self.heard = rig.other.subscribe(f"heard.{rig.name}")
        rig.other.flush(timeout=20)
        self.batch = rig.js.atomic_batch(timeout=20)
        self.batch.add(f"{rig.name}.batch")
        self.fast = rig.js.fast_publisher(timeout=20)
        self.fast.add(f"{rig.name}.fast")
        self.publisher = rig.js.publisher(window=1)
        self.future = self.publisher.publish(f"{rig.name}.first")
        self.future.result(20)

    def use(self, rig):
        """
        Make every call that never waits.
        """
        for consumption in self.consumptions:
            assert not consumption.closed
            consumption.statistics()
        self.consumptions[0].close()
        self.consumptions[1].drain()
        self.reading.close()
        self.ordered.close()
        self.watch.close()
        self.answers.close()
        self.subscriptions[0].close()
        self.subscriptions[1].drain()
        rig.client.subscribe(f"spare.{rig.name}").close()
        self.batch.discard()
        first, second, third, fourth = self.messages
        first.ack()
        second.term()
        third.in_progress()
        third.ack()
        fourth.nak(delay=60)
        rig.client.publish(f"heard.{rig.name}")
        self.future = self.publisher.publish(f"{rig.name}.spare")
        for call in (self.future.result, self.publisher.flush):
            with pytest.raises(jetsync.CallInSignalHandlerError):
                call(timeout=20)
        # The window is full.
        with pytest.raises(jetsync.CallInSignalHandlerError):
            self.publisher.publish(f"{rig.name}.spare")
        assert self.fast.statistics().added == 1
        assert rig.client.is_connected
        assert rig.client.statistics().reconnects == 0

    def check(self, rig):
        """
        Assert that all these calls had their effect.
        """
        assert all(consumption.wait(timeout=20) for consumption in self.consumptions)
        assert self.reading.closed
        assert self.watch.closed
        assert self.heard.next(timeout=20) is not None
        assert self.future.result(20).stream == rig.name
        self.publisher.close(timeout=20)
        self.fast.close(timeout=20)
        eventually(lambda: self.consumer.info().num_ack_pending == 1)
        subjects = rig.stream.info(subjects_filter=f"{rig.name}.*").state.subjects
        assert f"{rig.name}.batch" not in subjects


def waits():
    """
    Return whether the main thread waits inside a call of jetsync.
    """
    frame = sys._current_frames()[threading.main_thread().ident]
    names = set()
    if frame.f_code.co_filename.endswith("turn.py"):
        return False  # About to begin or to end the wait.
    while frame is not None:
        names.add(frame.f_code.co_name)
        frame = frame.f_back
    return "waiting" in names


def interrupted_wait(rig, server, wait, handle):
    """
    Return what *wait* returns, which a signal handler interrupts that calls *handle*.

    The server is paused until the handler has returned. After that, a message arrives for each
    reader.
    """
    outcome = []

    def handler(*_):
        try:
            outcome.append(handle())
        except Exception as error:  # noqa: BLE001 - raised below
            outcome.append(error)

    def interrupt():
        try:
            eventually(waits, 20)
            signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)
            eventually(lambda: outcome, 20)
        finally:
            server.resume()
        rig.fill()

    before = signal.signal(signal.SIGUSR1, handler)
    server.pause()
    try:
        with no_hang("the interrupted call"), ThreadPoolExecutor(1) as pool:
            interrupting = pool.submit(interrupt)
            try:
                result = wait()
            finally:
                interrupting.result(30)
    finally:
        signal.signal(signal.SIGUSR1, before)
        server.resume()
        if outcome and isinstance(outcome[0], Exception):
            raise outcome[0]
    return result


@pytest.fixture
def rig_of_victim(victim, unique):
    """
    The handles of a client of a server that may be paused.
    """
    with jetsync.connect(victim.url) as client, jetsync.connect(victim.url) as other:
        rig = OwnHandles(victim.url, client, other, unique)
        rig.patience = 20
        yield rig
        if not client.is_closed:
            rig.close()
        other.jetstream().delete_stream(unique)
        other.jetstream().delete_key_value(unique)
        other.jetstream().delete_object_store(unique)


@needs_epoll
class TestWaits:
    """
    A handler interrupts a call that waits.
    """

    @pytest.mark.parametrize("wait", WAITS)
    def test_only_calls_that_never_wait_work(self, victim, rig_of_victim, wait):
        """
        Calls that would wait raise and send nothing, all others work, and the wait continues.
        """
        rig = rig_of_victim
        rig.spare = spare = Spare(rig)
        refused, sent = {}, []

        def handle():
            sent.append(rig.client.statistics().bytes_out)
            stored, unknown = rig.stored, rig.unknown
            for name, call in REFUSED.items():
                try:
                    refused[name] = call(rig)
                except jetsync.JetSyncError as error:
                    refused[name] = type(error)
            rig.stored, rig.unknown = stored, unknown
            sent.append(rig.client.statistics().bytes_out)
            spare.use(rig)

        result = interrupted_wait(rig, victim, lambda: WAITS[wait](rig), handle)
        assert refused == dict.fromkeys(REFUSED, jetsync.CallInSignalHandlerError)
        # Handles that end send UNSUB.
        assert sent[1] - sent[0] < SHORTEST_REQUEST
        assert result or wait not in READS
        spare.check(rig)
        rig.check()


# What a handler calls while its own thread waits for a message of the same handle.
CLOSES = {
    "consumption.close": ("consumption_next", lambda rig: rig.consumption.close()),
    "consumption.drain": ("consumption_next", lambda rig: rig.consumption.drain()),
    "consumption.close in a loop": ("loop", lambda rig: rig.consumption.close()),
    "batch.close": ("fetch", lambda rig: rig.batch.close()),
    "reading.close": ("ordered_next", lambda rig: rig.reading.close()),
    "reading.drain": ("ordered_next", lambda rig: rig.reading.drain()),
    "ordered.close": ("ordered_next", lambda rig: rig.ordered.close()),
    "watch.close": ("watch_next", lambda rig: rig.watch.close()),
    "subscription.close": ("subscription_next", lambda rig: rig.subscription.close()),
    "subscription.drain": ("subscription_next", lambda rig: rig.subscription.drain()),
}

ENDS = {
    **WAITS,
    "client_close": lambda rig: rig.client.close(timeout=60),
    "client_drain": lambda rig: rig.client.drain(timeout=60),
}
"""Calls that wait, and that a handler interrupts to close the client."""

LEFT = (jetsync.ConnectionClosedError, *UNKNOWN, *ENDED)
"""How a call may end whose client a handler closes."""

ALWAYS = ("publish", "loop", "publisher_publish", "fetch", "client_close", "client_drain")


@needs_epoll
class TestEnd:
    """
    A handler interrupts a call that waits, and closes what the call uses.
    """

    @pytest.mark.parametrize("close", CLOSES)
    def test_closing_a_handle_ends_the_interrupted_call(self, victim, rig_of_victim, close):
        """
        Closing or draining a handle in a signal handler ends the wait for its messages.
        """
        wait, end = CLOSES[close]
        rig = rig_of_victim

        def call():
            with contextlib.suppress(*ENDED):
                return WAITS[wait](rig)

        assert not interrupted_wait(rig, victim, call, lambda: end(rig))

    @pytest.mark.parametrize("end", ["close", "drain"])
    @pytest.mark.parametrize("wait", thorough_except({name: name for name in ENDS}, *ALWAYS))
    def test_the_client_closes_when_the_handler_has_returned(
        self, victim, rig_of_victim, wait, end
    ):
        """
        `close` and `drain` return at once, and another thread closes the client within its time.
        """
        rig, pending = rig_of_victim, []

        def call():
            pending.append(rig.publisher.publish(rig.out))
            try:
                return ENDS[wait](rig)
            except LEFT as error:
                return type(error)

        def handle():
            assert not pending[0].done()
            # A client that is closing is not drained.
            with contextlib.suppress(*LEFT[: wait == "client_close"]):
                getattr(rig.client, end)(timeout=60)

        left = interrupted_wait(rig, victim, call, handle)
        # It can be repeated, and then lasts until the client is closed.
        rig.client.close(timeout=60)
        assert rig.client.is_closed
        assert pending[0].result(0).stream == rig.name
        if wait == "loop":
            assert left not in LEFT
        elif end == "close" and wait in {"publish", "kv_put", "publish_many"}:
            # On a busy machine the answer may come before the other thread has begun to close.
            unknown = jetsync.PublishOutcomeUnknownError
            assert left in {None, jetsync.PublishManyError if wait == "publish_many" else unknown}

    def test_another_thread_closes_the_client(self, victim, rig_of_victim):
        """
        `close` returns at once in a handler, also if another thread is already closing the client.
        """
        rig = rig_of_victim

        def handle():
            closing = pool.submit(rig.client.close, timeout=60)
            eventually(connection_of(rig.client).closing.is_set)
            rig.client.close(timeout=60)
            return closing

        with ThreadPoolExecutor(1) as pool, contextlib.suppress(jetsync.ConnectionClosedError):
            interrupted_wait(rig, victim, lambda: loop(rig), handle)
        eventually(lambda: rig.client.is_closed)

    @pytest.mark.parametrize("end", ["close", "drain"])
    def test_the_client_closes_at_every_step_of_a_close(self, nats_server, unique, end):
        """
        A handler may close a client at any step of a call that closes it.
        """
        clients = []

        def call():
            clients.append(jetsync.connect(nats_server.url))
            clients[-1].close(timeout=20)

        def handler():
            with contextlib.suppress(jetsync.ConnectionClosedError):
                getattr(clients[-1], end)(timeout=20)

        total = interrupts.steps_of(call)
        for step in range(1, total, max(total // STRIKES, 1) if STRIKES else 1):
            clients.append(clients[0])
            with no_hang(f"step {step}"):
                interrupts.handled_at(step, call, handler)
                eventually(lambda: clients[-1].is_closed)


def filled_subscription(rig, count):
    """
    A subscription, how it takes an item without a wait, and what it has to hand out.
    """
    client = rig.client
    found = client.subscribe(f"{rig.name}-a")
    for number in range(count):
        client.publish(f"{rig.name}-a", b"%d" % number)
    eventually(lambda: found.pending == count)
    return found, lambda one: one.next(timeout=0), lambda item: int(item.data)


def filled_answers(rig, count):
    """
    As above, for the answers to a request.
    """
    subject = f"{rig.name}-q"
    asked = rig.other.subscribe(subject)
    rig.other.flush()
    found = rig.client.request_many(subject, timeout=30, max_messages=count)
    reply = asked.next(timeout=20).reply
    for number in range(count):
        rig.other.publish(reply, b"%d" % number)
    asked.close()
    return found, lambda one: next(one, None), lambda item: int(item.data)


def filled_watch(rig, count):
    """
    As above, for a watch.
    """
    for number in range(count):
        rig.kv.put(f"k.{number}", b"%d" % number)
    found = rig.kv.watch("k.>")
    return found, lambda one: one.next(timeout=0), lambda item: int(item.value)


def filled_object_watch(rig, count):
    """
    As above, for a watch of objects.
    """
    for number in range(count):
        rig.objects.put(f"{number}", b"")
    found = rig.objects.watch()
    return found, lambda one: one.next(timeout=0), lambda item: int(item.name)


def filled_ordered(rig, count):
    """
    As above, for an ordered consumer.
    """
    subject = f"{rig.name}.ordered"
    rig.stream.purge(subject)
    for number in range(count):
        rig.js.publish(subject, b"%d" % number)
    found = rig.stream.ordered_consumer(filter_subjects=[subject])
    return found, lambda one: one.next(expires=0.3), lambda item: int(item.data)


FILLED = {
    "ordered.next": (filled_ordered, lambda one: one.next(expires=20)),
    "subscription": (filled_subscription, next),
    "subscription.next": (filled_subscription, lambda one: one.next(timeout=20)),
    "answers": (filled_answers, next),
    "watch": (filled_watch, next),
    "watch.next": (filled_watch, lambda one: one.next(timeout=20)),
    "object watch": (filled_object_watch, next),
    "object watch.next": (filled_object_watch, lambda one: one.next(timeout=20)),
}


REFUSALS = (jetsync.CallInSignalHandlerError, jetsync.ConflictingUseError)
"""A watch reads outside its turn, and so takes a handler in a read for a hook."""


@pytest.mark.parametrize(
    "name", thorough_except({name: name for name in FILLED}, *(FILLED.keys() - {"ordered.next"}))
)
def test_a_handler_takes_the_items_that_the_interrupted_call_does_not(rig, name):
    """
    A handler may take from the object that it interrupts, and each item is handed out once.
    """
    fill, take = FILLED[name]
    count, got = 3, []
    found, take_now, number = fill(rig, count)
    total = interrupts.steps_of(lambda: got.append(number(take(found))))

    def handler():
        with contextlib.suppress(*REFUSALS):
            item = take_now(found)
            if item is not None:
                got.append(number(item))

    found.close()
    assert got == [0]
    # The last steps, at which the call is not inside jetsync any more.
    for step in range(max(total - 12, 1), total + 1):
        found, take_now, number = fill(rig, count)
        got.clear()
        _, item = interrupts.handled_at(step, lambda: take(found), handler)  # noqa: B023
        got.append(number(item))
        while len(got) < count:
            got.append(number(take(found)))
        found.close()
        assert sorted(got) == [*range(count)]


def test_a_fetch_that_is_drained_while_it_begins(js, unique):
    """
    A signal handler may drain a fetch at any step of the call that begins it.

    `stop_on_signal` drains all reads of a client.
    """
    stream = js.create_stream(unique, subjects=[unique], storage="memory")
    js.publish_many((unique, b"%d" % number) for number in range(10))
    worker = stream.create_consumer()

    def handler():
        for each in list_of(js._context.connection.consumptions):
            each.drain()

    total = interrupts.steps_of(lambda: worker.fetch(1, no_wait=True).close())
    for step in range(1, total + 1):
        _, batch = interrupts.handled_at(step, lambda: worker.fetch(1, no_wait=True), handler)
        assert len(list(batch)) <= 1, step
        batch.close()
    stream.delete()


def test_a_handler_in_plain_code_may_make_every_call(rig):
    """
    A handler that interrupts no call of jetsync waits as any other code.
    """
    rig.patience, rig.spare = 0.2, Spare(rig)
    for consumption in rig.spare.consumptions:
        consumption.close()
    calls, failures = {**WAITS, **REFUSED}, {}

    def handler(*_):
        try:
            calls[name](rig)
        except jetsync.JetSyncError as error:
            failures[name] = error

    before = signal.signal(signal.SIGINT, handler)
    try:
        for name in calls:  # noqa: B007 - the handler reads it
            rig.fill()
            signal.raise_signal(signal.SIGINT)
        assert not failures
        rig.spare.fast = rig.js.fast_publisher()
        rig.close()
        rig.open()
        rig.check()
        calls, name = {"close": lambda rig: rig.client.close(timeout=20)}, "close"
        signal.raise_signal(signal.SIGINT)
        assert rig.client.is_closed
        assert not failures
    finally:
        signal.signal(signal.SIGINT, before)


def flood(rig):
    """
    Wait in the publisher for its turn to write.
    """
    for _ in range(300):
        rig.spare.future = rig.publisher.publish(rig.out, b"x" * 1000)


# What another thread does, and what the signal handler does meanwhile, without a limit of time.
MEETINGS = {
    "publish": (flood, lambda rig: rig.publisher.publish(rig.out)),
    "publisher.statistics": (flood, lambda rig: rig.publisher.statistics()),
    "publisher.flush": (flood, lambda rig: rig.publisher.flush()),
    "publisher.close": (flood, lambda rig: rig.publisher.close()),
    "future.result": (flood, lambda rig: rig.spare.future.result()),
    "future.add_done_callback": (flood, lambda rig: rig.spare.future.add_done_callback(print)),
    "fast.add": (
        lambda rig: rig.spare.fast.add(rig.out, headers={"a": "b"}, timeout=30),
        lambda rig: rig.spare.fast.add(rig.out, timeout=60),
    ),
    "fast.commit": (
        lambda rig: rig.spare.fast.commit(),
        lambda rig: rig.spare.fast.commit(timeout=60),
    ),
    "batch.add": (
        lambda rig: rig.spare.batch.add(rig.out, b"x" * 10000),
        lambda rig: rig.spare.batch.add(f"{rig.name}.two", b"x" * 10000, timeout=60),
    ),
    "consumption.next": (lambda rig: rig.consumption.next(timeout=30), loop),
    "consumption.wait": (
        lambda rig: rig.consumption.next(timeout=30),
        lambda rig: rig.consumption.wait(timeout=60),
    ),
    "ordered.fetch": (
        lambda rig: rig.spare.ordered.fetch(1, expires=30),
        lambda rig: rig.spare.ordered.fetch(1, expires=60),
    ),
    "watch.next": (lambda rig: rig.watch.next(timeout=30), lambda rig: next(rig.watch)),
    "subscription.next": (
        lambda rig: rig.subscription.next(timeout=30),
        lambda rig: next(rig.subscription),
    ),
    "answers.next": (
        lambda rig: list(rig.spare.answers),
        lambda rig: next(rig.spare.answers),
    ),
}


class TestOtherThreads:
    """
    A handler that interrupts a write meets a thread that waits for that write.
    """

    @pytest.mark.parametrize("meeting", MEETINGS)
    def test_a_handler_never_waits_for_a_thread_that_waits_for_it(self, rig, meeting):
        """
        A call of a handler works or raises at once if another thread waits for the interrupted one.
        """
        other, handler = MEETINGS[meeting]
        rig.spare = spare = Spare(rig)
        with ThreadPoolExecutor(1) as pool:
            # As the main thread does when a signal arrives during a write.
            with no_hang(meeting), connection_of(rig.client).lane.outbox.write_lock:
                # Threads that read send it before they wait.
                spare.messages[0].ack()
                waiting = pool.submit(other, rig)
                eventually(waits_to_write, 10)
                with contextlib.suppress(jetsync.CallInSignalHandlerError):
                    handler(rig)
            spare.answers.close()
            rig.close()
            waiting.exception(30)

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

            def handler():
                publisher.publish(unique)
                assert called.wait(10)
                future = publisher.publish(unique)
                for call in (future.result, publisher.flush, publisher.close):
                    with pytest.raises(jetsync.CallInSignalHandlerError):
                        call()
                return future

            # As the main thread does when a signal arrives while it uses the other publisher.
            with no_hang("the handler"):
                future = interrupted._turn.run(FOREVER, handler)
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
            publisher._turn.run(FOREVER, publisher.publish, unique)
            eventually(lambda: stream.info().state.messages == 1, 10)
            publisher.close(timeout=5)

    def test_a_wait_for_a_thread_that_may_wait_for_the_interrupted_call(self, rig):
        """
        A handler waits for no thread that takes messages, because plugins may use another handle.
        """
        rig.kv.put("key", b"")
        with rig.kv.watch() as watch, no_hang("the handler"):
            for wait in (rig.consumption.wait, rig.reading.wait, watch.wait_current):
                # As the main thread does when a signal arrives while it uses the publisher.
                with pytest.raises(jetsync.CallInSignalHandlerError):
                    rig.publisher._turn.run(FOREVER, wait)

    def test_a_message_that_was_staged_while_the_publisher_closed(self, nats_server, unique):
        """
        A call that has staged a message returns its future, also if it cannot take the lock.
        """
        with jetsync.connect(nats_server.url) as client, ThreadPoolExecutor(1) as pool:
            js = client.jetstream(timeout=5)
            stream = js.create_stream(unique, subjects=[unique], storage="memory")
            publisher = js.publisher()
            free, add, stopped = threading.Event(), publisher._flight.add, threading.Event()

            def hold():
                with publisher._turn._lock:
                    publisher._stopped = jetsync.HandleClosedError("publisher")
                    stopped.set()
                    free.wait(10)

            def add_as_it_closes(future):
                number = add(future)
                closing.append(pool.submit(hold))
                return number if stopped.wait(10) else 0

            closing = []
            publisher._flight.add = add_as_it_closes
            with no_hang("the handler"), connection_of(client).lane.outbox.write_lock:
                future = publisher.publish(unique)
            free.set()
            assert future.result(10).sequence == 1
            closing[0].result(10)
            publisher.close(timeout=10)
            assert stream.info().state.messages == 1


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
