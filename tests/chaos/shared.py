"""
Eight threads that use the same client and the same handles, with every result checked.

In every second trial there are no faults, so each call succeeds or raises the error that its
arguments ask for. After such a trial, every acknowledged message is in the stream once, and each
was consumed once. No increment of a key and no core message is lost.

In the other trials, a proxy cuts and holds the connection, or the main thread closes or drains the
client, while the threads make calls. Then calls may also raise errors of the connection. Each
acknowledged message is stored once, no message is stored that was reported as not stored, atomic
batches are whole, and each stored message is consumed. No thread hangs.

The part is for builds without the GIL, and runs on every build. The calls are in
`shared_calls.py`.
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
from faults import cut, cut_in_a_frame, cut_in_handshakes, hold, patiently, refuse, throttle
from shared_calls import ACTS, KEYS, WAIT, fetch, reconnect
from trial import LATE, Base, Report

import jetsync
from jetsync.devserver import DevServer
from jetsync.testing import CutProxy

THREADS = 8
SECONDS = 6.0
"""Seconds in which the threads of a trial make calls."""
TIMEOUT = 10.0
"""The limit of each call, in seconds."""
ACK_WAIT = 2.0
"""Seconds until a message is redelivered whose acknowledgement a fault has lost."""
FAULTS = [cut, cut, cut_in_a_frame, cut_in_handshakes, hold, throttle, refuse]
MODES = ["calm", "cut", "calm", "close"]
"""What happens to the connection, by the seed of the trial."""
LOST = (
    jetsync.TransportError,
    jetsync.RequestTimeoutError,
    jetsync.PublishOutcomeUnknownError,
    jetsync.PublishManyError,
    jetsync.NoHeartbeatError,
)
"""The errors of calls while the connection is cut."""
CLOSED = (jetsync.HandleClosedError, *LOST)
"""The errors of calls while the client is closed."""


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


class Fast:
    """
    A fast publisher that all threads use, and the messages that they tried to add.
    """

    def __init__(self, js: jetsync.JetStream) -> None:
        self.publisher = js.fast_publisher(flow=20)
        self.sent: list[bytes] = []


class Work:
    """
    The shared handles of one trial, and what its threads saw.

    Lists only grow, by one step each, so that they need no lock.
    """

    def __init__(self, client: jetsync.Client, report: Report, mode: str) -> None:
        self.client = client
        self.report = report
        self.mode = mode
        self.timeout = TIMEOUT
        self.closing = False
        self.name = f"S{report.seed}"
        self.js = client.jetstream(timeout=TIMEOUT)
        self.stream = self.js.create_stream(
            self.name,
            subjects=[f"{self.name}.>"],
            storage="memory",
            allow_atomic=True,
            allow_batched=True,
            allow_direct=True,
        )
        self.consumer = self.stream.create_consumer(
            "work", ack_wait=600 if mode == "calm" else ACK_WAIT, max_ack_pending=100_000
        )
        self.kv = self.js.create_key_value(self.name, storage="memory", history=5, atomic=True)
        for key in KEYS:
            self.kv.put(key, b"0")
        self.totals = self.js.create_stream(
            f"{self.name}-totals",
            subjects=[f"totals.{self.name}.>"],
            storage="memory",
            allow_msg_counter=True,
            allow_direct=True,
        )
        self.plans = self.js.create_stream(
            f"{self.name}-plans",
            subjects=[f"plans.{self.name}.>"],
            storage="memory",
            allow_msg_schedules=True,
            allow_direct=True,
        )
        self.total = self.totals.counter(f"totals.{self.name}.one")
        self.messages = self.consumer.consume(max_messages=50)
        self.subscription = client.subscribe(f"core.{self.name}")
        self.watch = self.kv.watch()
        self.publisher = self.js.publisher(window=64)
        self.fast = Fast(self.js)
        self.fasts = [self.fast]
        self.lock = threading.Lock()
        self.numbers = itertools.count()
        self.stop = threading.Event()
        # The acknowledged messages, with their sequences where the ack names it.
        self.stored: list[tuple[bytes, int | None]] = []
        self.not_stored: list[bytes] = []
        self.batches: list[list[bytes]] = []
        self.futures: list[tuple[bytes, jetsync.PublishFuture]] = []
        self.consumed: list[bytes] = []
        self.core_sent: list[bytes] = []
        self.core_seen: list[bytes] = []
        self.increments: list[str] = []
        self.created: list[str] = []
        self.added: list[int] = []
        self.planned: list[bytes] = []
        self.watched: list[tuple[str, int]] = []
        # Handles that another thread drops.
        self.dropped: list[object] = []
        self.made: list[str] = []
        self.failed: list[str] = []

    @property
    def calm(self) -> bool:
        return self.mode == "calm"

    @property
    def allowed(self) -> tuple[type[jetsync.JetSyncError], ...]:
        """The errors that calls may raise now, whatever their arguments are."""
        if self.mode == "cut":
            return LOST
        return CLOSED if self.closing else ()

    def run(self, seed: float) -> None:
        """Make calls until the trial ends; one thread."""
        chance = random.Random(seed)
        acts = [*ACTS, reconnect] if self.mode == "cut" else ACTS
        limit = TIMEOUT if self.calm else 3 * TIMEOUT
        while not self.stop.is_set():
            act = chance.choice(acts)
            begin = time.monotonic()
            try:
                act(self, chance)
                self.made.append(act.__name__)
            except BaseException as error:  # noqa: BLE001 - the trial looks for any error
                if not isinstance(error, self.allowed):
                    trace = "".join(traceback.format_exception(error))
                    self.report.violation(f"{act.__name__}: {type(error).__name__}", trace)
                    return
                self.failed.append(act.__name__)
                if self.client.is_closed:
                    return
            seconds = time.monotonic() - begin
            if seconds > limit + LATE:
                self.report.violation("late", f"{act.__name__} took {seconds:.1f} s")

    def expect(self, holds: object, text: str) -> None:
        if not holds:
            self.report.violation(text.split(":", maxsplit=1)[0], text)

    def new(self, count: int = 1) -> list[tuple[str, bytes]]:
        """Return messages that no other call has."""
        numbers = itertools.islice(self.numbers, count)
        return [(f"{self.name}.{number % 10}", b"%d" % number) for number in numbers]

    @contextlib.contextmanager
    def publishing(self, *payloads: bytes):
        """Note the messages as not stored if the call raises an error that says so."""
        try:
            yield
        except jetsync.PublishOutcomeUnknownError:
            raise
        except jetsync.JetSyncError:
            self.not_stored += payloads
            raise

    def renew_fast(self, failed: Fast) -> None:
        """Replace a fast publisher that a fault has ended, once for all threads."""
        with self.lock:
            if self.fast is failed:
                self.fast = Fast(self.js)
                self.fasts.append(self.fast)

    def settle(self) -> None:
        """End the publishers, and note the outcomes of their messages."""
        if self.mode == "cut":
            patiently(self.client.flush)
        with contextlib.suppress(*self.allowed):
            self.publisher.close(timeout=TIMEOUT)
        for data, future in self.futures:
            error = future.exception(0)
            if error is None:
                self.stored.append((data, future.result(0).sequence))
            elif not isinstance(error, jetsync.PublishOutcomeUnknownError):
                self.not_stored.append(data)
        if self.calm:
            self.fast.publisher.commit()
            self.stored += [(data, None) for data in self.fast.sent]
            lost = self.fast.publisher.statistics().lost
            self.expect(lost == 0, "fast: messages were lost")
        for fast in self.fasts:
            with contextlib.suppress(jetsync.JetSyncError):
                fast.publisher.close(timeout=TIMEOUT)

    def reopen(self, client: jetsync.Client) -> None:
        """Use another client, after that of the trial was closed."""
        self.client = client
        self.js = client.jetstream(timeout=TIMEOUT)
        self.stream = self.js.stream(self.name)
        self.plans = self.js.stream(self.plans.name)
        self.consumer = self.stream.consumer("work")
        self.kv = self.js.key_value(self.name)
        self.total = self.js.stream(self.totals.name).counter(self.total.subject)


def disturb(work: Work, proxy: CutProxy, chance) -> None:
    """Do to the connection what the mode of the trial says."""
    end = time.monotonic() + SECONDS
    if work.mode == "cut":
        while time.monotonic() < end:
            time.sleep(chance.random() * 0.8)
            chance.choice(FAULTS)([proxy], chance)
            work.report.counts["faults"] += 1
    elif work.mode == "close":
        time.sleep(chance.random() * SECONDS / 2)
        how = chance.choice([work.client.close, work.client.drain])
        work.report.about(how.__name__)
        work.report.counts["closed clients"] += 1
        work.closing = True
        how(timeout=TIMEOUT)
    else:
        work.stop.wait(SECONDS)


def trial(world: World, chance, report: Report) -> None:
    """Run the threads once, and check what they stored, read and consumed."""
    mode = MODES[report.seed % len(MODES)]
    report.about(f"{mode}: start")
    options = {
        "request_timeout": TIMEOUT,
        "reconnect_wait": 0.02,
        "max_reconnect_wait": 0.5,
        "ping_interval": 0.5,
    }
    with (
        CutProxy(world.server.url) as proxy,
        jetsync.connect(world.server.url, request_timeout=TIMEOUT) as direct,
        jetsync.connect(proxy.url if mode == "cut" else world.server.url, **options) as client,
    ):
        work = Work(client, report, mode)
        threads = [
            threading.Thread(target=work.run, args=(chance.random(),), daemon=True)
            for _ in range(THREADS)
        ]
        report.about(f"{mode}: calls")
        for thread in threads:
            thread.start()
        disturb(work, proxy, chance)
        work.stop.set()
        for thread in threads:
            thread.join(4 * TIMEOUT + LATE)
            if thread.is_alive():
                # Its stacks are shown when the whole trial has hung.
                report.about(f"{mode}: a thread does not end")
                thread.join()
        if not report.violations:
            report.about(f"{mode}: checks")
            work.settle()
            if mode == "close":
                work.reopen(direct)
            check(work)
        report.counts["operations"] += len(work.made)
        report.counts["failed operations"] += len(work.failed)
        report.counts["messages"] += len(work.stored)
        report.counts["reconnects"] += client.statistics().reconnects
        js = direct.jetstream(timeout=TIMEOUT)
        for name in [*js.stream_names()]:
            js.delete_stream(name)
    del work, client, direct, js, proxy
    world.base.check(report)


def check(w: Work) -> None:
    """Check the end of a trial."""
    found = check_stored(w)
    check_consumed(w, found)
    if w.mode != "close":
        check_core(w)
        check_watched(w)
    check_changes(w)


def check_stored(w: Work) -> dict[int, bytes]:
    """Compare the stream with the outcomes of the calls, and return its messages."""
    found = {each.sequence: bytes(each.data) for each in w.stream.scan()}
    times = Counter(found.values())
    once = Counter(data for data, _ in w.stored)
    if w.calm:
        w.expect(times == once, "stream: not each acknowledged message once")
    w.expect(once <= times, f"stream: lost: {[*(once - times)][:5]}")
    w.expect(max(times.values(), default=1) == 1, "stream: a message twice")
    wrong = [each for each in w.stored if each[1] is not None and found.get(each[1]) != each[0]]
    w.expect(not wrong, f"sequences: {wrong[:5]}")
    denied = [data for data in w.not_stored if data in times]
    w.expect(not denied, f"stored, but reported as not stored: {denied[:5]}")
    half = [batch for batch in w.batches if 0 < sum(data in times for data in batch) < len(batch)]
    w.expect(not half, f"half a batch: {half[:1]}")
    for fast in w.fasts:
        count = sum(data in times for data in fast.sent)
        confirmed = fast.publisher.acknowledged
        w.expect(confirmed <= count, f"fast: {count} stored, {confirmed} acknowledged")
    return found


def check_consumed(w: Work, found: dict[int, bytes]) -> None:
    # They may hold messages.
    w.dropped.clear()
    w.messages.close()
    w.expect(w.messages.wait(timeout=TIMEOUT), "consume: does not end")
    end = time.monotonic() + 3 * TIMEOUT
    while not {*found.values()} <= {*w.consumed} and time.monotonic() < end:
        fetch(w, None)
    once = Counter(found.values())
    missing, more = once - Counter(w.consumed), Counter(w.consumed) - once
    w.expect(not missing, f"consumed: {len(missing)} missing: {[*missing][:5]}")
    w.expect(not (w.calm and more), f"consumed: {len(more)} too many")
    w.expect({*w.consumed} <= {*found.values()}, "consumed: a message that is not stored")


def check_core(w: Work) -> None:
    w.client.flush()
    while (message := w.subscription.next(timeout=WAIT)) is not None:
        w.core_seen.append(bytes(message.data))
    sent, seen = Counter(w.core_sent), Counter(w.core_seen)
    w.expect(seen == sent if w.calm else seen <= sent, "core: not each message once")


def check_watched(w: Work) -> None:
    last = {key: w.kv.get(key, direct=False).revision for key in KEYS}
    end = time.monotonic() + TIMEOUT
    while not {*last.items()} <= {*w.watched} and time.monotonic() < end:
        entry = w.watch.next(timeout=WAIT)
        if entry is not None:
            w.watched.append((entry.key, entry.revision))
    w.expect({*last.items()} <= {*w.watched}, "watch: the last revision did not come")
    w.expect(len(w.watched) == len({*w.watched}), "watch: a revision came twice")


def check_changes(w: Work) -> None:
    """Check the sums, and what can happen only once."""
    counted = {key: int(w.kv.get(key, direct=False).value) for key in KEYS}
    known = {key: w.increments.count(key) for key in KEYS}
    w.expect(all(counted[key] >= known[key] for key in KEYS), f"increments lost: {counted}")
    w.expect(not w.calm or counted == known, f"increments: {counted}, not {known}")
    w.expect(len(w.created) == len({*w.created}), "create: two threads created a key")
    w.expect(len(w.added) == len({*w.added}), "counter: two threads got the same value")
    if w.added:
        total = w.total.load()
        most = len(w.added) if w.calm else total
        w.expect(max(w.added) <= total and len(w.added) <= total <= most, f"counter: {total}")
    end = time.monotonic() + TIMEOUT
    published: set[bytes] = set()
    while not {*w.planned} <= published and time.monotonic() < end:
        out = w.plans.scan(subject=f"plans.{w.name}.out")
        published = {bytes(each.data) for each in out}
    w.expect({*w.planned} <= published, f"schedules: {len({*w.planned} - published)} missing")
