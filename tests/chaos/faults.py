"""
Faults of the network and of servers, while all kinds of publishers and readers share one client.

Each trial is a round with servers of its own: over TCP, TLS, WebSocket or both, one server or a
cluster of three. Afterwards the trial compares the streams with the outcome of each call.
"""

from __future__ import annotations

import contextlib
import itertools
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

import attrs
from test_websocket import self_signed
from trial import LATE, Base, Report, memory

import jetsync
from jetsync.devserver import DevServer
from jetsync.testing import CutProxy

SECONDS = 10.0
"""Seconds in which one round makes faults."""
TIMEOUT = 4.0
LIMIT = 10.0
"""Seconds that a job may take. A job makes several calls, and a fetch waits longer than it says."""
PAUSE = 0.2
"""The longest pause between two runs of a job, in seconds; keeps the load small."""
BACK = 20.0
"""Seconds after the last fault in which the client must be connected again."""
SETTLE = 60.0
"""Seconds after reconnecting in which readers must have everything, redeliveries included."""
GROWTH = 96 << 20
"""Bytes that this process may grow by after its second round."""
ROUNDS = [
    ("tcp", 1),
    ("tls", 3),
    ("ws", 1),
    ("tcp", 3),
    ("wss", 1),
    ("ws", 3),
    ("tls", 1),
    ("wss", 3),
]


@attrs.define
class World:
    certificate: str
    key: str
    base: Base
    sizes: list[int] = attrs.field(factory=list)
    """The resident memory after each round."""


@contextlib.contextmanager
def world():
    with tempfile.TemporaryDirectory() as folder:
        with DevServer() as server, jetsync.connect(server.url):
            # The first event loop of a process opens a pipe that stays.
            pass
        yield World(*self_signed(Path(folder)), Base())


class Network:
    """
    Servers, a proxy in front of each, and how to connect to both.
    """

    def __init__(self, world: World, transport: str, size: int, stack) -> None:
        tls = {"cert_file": world.certificate, "key_file": world.key}
        config = {}
        purpose = "nats"
        if transport == "tls":
            config["tls"] = tls
        elif transport in {"ws", "wss"}:
            purpose = "websocket"
            config["websocket"] = {"port": -1} | (
                {"no_tls": True} if transport == "ws" else {"tls": tls}
            )
        if size > 1:
            # A client that learns the addresses of the servers would bypass the proxies.
            config["cluster"] = {"no_advertise": True}
        self.size = size
        self.servers = stack.enter_context(DevServer(config=config, cluster=size))
        ports = [self.servers.ports(index)[purpose] for index in range(size)]
        self.proxies = [stack.enter_context(CutProxy(port)) for port in ports]
        scheme = "nats" if transport == "tcp" else transport
        self.direct = [f"{scheme}://127.0.0.1:{port}" for port in ports]
        self.proxied = [f"{scheme}://127.0.0.1:{proxy.port}" for proxy in self.proxies]
        self.options = {"tls_ca": world.certificate} if transport in {"tls", "wss"} else {}

    def connect(self, urls, **options) -> jetsync.Client:
        return jetsync.connect(urls, connect_timeout=10, **self.options, **options)


class Ledger:
    """
    The outcome that each call reported for each message, by its payload.
    """

    def __init__(self) -> None:
        self.acked: dict[bytes, int] = {}
        """Payload to the sequence that its ack named; 0 if only the number of acks is known."""
        self.not_stored: set[bytes] = set()
        self.unknown: set[bytes] = set()
        self.batches: list[list[bytes]] = []
        """Atomic batches, of which all or nothing must be stored."""
        self.done: Counter[str] = Counter()
        """How often each job succeeded."""

    def failed(self, data: bytes, error: Exception) -> None:
        if isinstance(error, jetsync.PublishOutcomeUnknownError | jetsync.ConnectionClosedError):
            self.unknown.add(data)
        else:
            self.not_stored.add(data)


class Jobs:
    """
    All the work that uses the client at the same time, each job in a thread of its own.
    """

    def __init__(self, client: jetsync.Client, report: Report, chance) -> None:
        self.client = client
        self.report = report
        self.ledger = Ledger()
        self.js = client.jetstream(timeout=TIMEOUT)
        self.stop = threading.Event()
        self.handled: dict[str, set[int]] = {"fetch": set(), "consume": set()}
        self.in_order: list[int] = []
        self.entries: list[jetsync.Entry] = []
        jobs = (
            self.single,
            self.many,
            self.publisher,
            self.atomic,
            self.fast,
            self.fetch,
            self.put,
            self.core,
            # Two, so that replies can be mixed up.
            self.request,
            self.request,
        )
        # These wait out all faults, and end when the client is closed.
        readers = (self.consume, self.ordered, self.watch)
        self.threads = [
            threading.Thread(
                target=self._repeat, args=(job, type(chance)(chance.random())), name=job.__name__
            )
            for job in jobs
        ]
        self.readers = [
            threading.Thread(target=self._read, args=(reader,), name=reader.__name__)
            for reader in readers
        ]
        for thread in (*self.threads, *self.readers):
            thread.daemon = True
            thread.start()

    def _repeat(self, job, chance) -> None:
        name = job.__name__
        for number in itertools.count():
            if self.stop.wait(chance.random() * PAUSE):
                return
            # None stands for success.
            if self.report.call(name, lambda: job(number, chance), LIMIT) is None:  # noqa: B023
                self.ledger.done[name] += 1

    def _read(self, reader) -> None:
        try:
            reader()
        except jetsync.JetSyncError as error:
            if not self.client.is_closed:
                self.report.violation(f"{reader.__name__} ended", repr(error))
        except Exception as error:  # noqa: BLE001 - the trial looks for any error
            self.report.foreign(reader.__name__, error)

    def wait_for(self, name: str, check) -> bool:
        """Wait until a reader has everything, or has ended."""
        alive = next((t for t in self.readers if t.name == name), None)
        return wait_for(lambda: check() or (alive and not alive.is_alive()), SETTLE) and check()

    def single(self, number, chance) -> None:
        data = b"single-%d" % number
        try:
            self.ledger.acked[data] = self.js.publish("f.single", data).sequence
        except jetsync.JetSyncError as error:
            self.ledger.failed(data, error)
            raise

    def many(self, number, chance) -> None:
        payloads = [b"many-%d-%d" % (number, place) for place in range(chance.randint(1, 100))]
        taken = []

        def messages():
            for payload in payloads:
                taken.append(payload)
                yield "f.many", payload

        def acked(message, ack) -> None:
            self.ledger.acked[bytes(message.data)] = ack.sequence

        # Without on_ack, acks are only counted.
        on_ack = acked if chance.random() < 0.5 else None
        try:
            report = self.js.publish_many(
                messages(), window=128, ack_timeout=TIMEOUT, on_ack=on_ack
            )
        except jetsync.PublishManyError as error:
            report = error.report
        for failure in report.failures:
            self.ledger.failed(bytes(failure.message.data), failure.error)
        if on_ack is None:
            failed = {bytes(failure.message.data) for failure in report.failures}
            self.ledger.acked.update(dict.fromkeys(set(taken) - failed, 0))
        told = report.count + len(report.failures)
        if told != len(taken):
            self.report.violation("not reported", f"{len(taken)} taken, {told} reported")

    def publisher(self, number, chance) -> None:
        reported = 0

        def tell(outcome) -> None:
            nonlocal reported
            reported += 1
            data = bytes(outcome.message.data)
            if outcome.ack is None:
                self.ledger.failed(data, outcome.error)
            else:
                self.ledger.acked[data] = outcome.ack.sequence

        taken = 0
        try:
            with self.js.publisher(window=64, ack_timeout=TIMEOUT, on_report=tell) as publisher:
                for place in range(chance.randint(1, 100)):
                    data = b"publisher-%d-%d" % (number, place)
                    # Until it is reported: a refusal that `publish` raises is not reported a second
                    # time.
                    self.ledger.unknown.add(data)
                    publisher.publish("f.publisher", data)
                    taken += 1
        finally:
            if reported < taken:
                self.report.violation("not reported", f"{taken} published, {reported} reported")

    def atomic(self, number, chance) -> None:
        payloads = [b"atomic-%d-%d" % (number, place) for place in range(chance.randint(1, 30))]
        self.ledger.batches.append(payloads)
        try:
            self.js.publish_batch([("f.atomic", data) for data in payloads])
        except jetsync.JetSyncError as error:
            for data in payloads:
                self.ledger.failed(data, error)
            raise
        self.ledger.acked.update(dict.fromkeys(payloads, 0))

    def fast(self, number, chance) -> None:
        payloads = [b"fast-%d-%d" % (number, place) for place in range(chance.randint(1, 100))]
        publisher = self.js.fast_publisher(flow=50)
        try:
            with publisher:
                for data in payloads:
                    publisher.add("f.fast", data)
        finally:
            # In order and without a gap: confirmations cover the first messages.
            confirmed = publisher.acknowledged
            self.ledger.acked.update(dict.fromkeys(payloads[:confirmed], 0))
            self.ledger.unknown.update(payloads[confirmed:])

    def fetch(self, number, chance) -> None:
        consumer = self.js.consumer("F", "fetch")
        for message in consumer.fetch(chance.randint(1, 300), expires=1):
            self.handled["fetch"].add(message.sequence)
            message.ack()

    def put(self, number, chance) -> None:
        self.js.key_value("K").put(f"key{chance.randrange(20)}", b"%d" % number)

    def core(self, number, chance) -> None:
        # A cluster may deliver the messages of an earlier call late, after its links were down.
        subject = f"core.order.{number}"
        with self.client.subscribe(subject) as subscription:
            for place in range(20):
                self.client.publish(subject, b"%d" % place)
            found = []
            while (message := subscription.next(timeout=0.05)) is not None:
                found.append(int(message.data))
        if found != sorted(set(found)):
            self.report.violation("core out of order", repr(found))

    def request(self, number, chance) -> None:
        asked = b"%d-%s" % (number, b"x" * chance.randint(0, 2000))
        answer = self.client.request("echo", asked, timeout=1).data
        if answer != asked:
            self.report.violation("answers mixed up", f"{asked[:20]!r}: {bytes(answer)[:20]!r}")

    def consume(self) -> None:
        consumer = patiently(lambda: self.js.consumer("F", "consume"))
        with consumer.consume(expires=2) as messages:
            for message in messages:
                self.handled["consume"].add(message.sequence)
                message.ack()

    def ordered(self) -> None:
        reader = patiently(lambda: self.js.stream("F").ordered_consumer())
        for message in patiently(lambda: reader.consume(expires=2)):
            self.in_order.append(message.sequence)

    def watch(self) -> None:
        for entry in patiently(lambda: self.js.key_value("K").watch()):
            self.entries.append(entry)


def trial(world: World, chance, report: Report) -> None:
    """Run one round."""
    transport, size = ROUNDS[report.seed % len(ROUNDS)]
    report.about(f"{transport}, {size} server{'s' * (size > 1)}")
    with contextlib.ExitStack() as stack:
        network = Network(world, transport, size, stack)
        observer = stack.enter_context(
            network.connect(network.direct, reconnect_wait=0.05, max_reconnect_wait=0.5)
        )
        stream, kv = make_streams(observer, size)
        stop = threading.Event()
        echo = threading.Thread(target=answer, args=(observer, stop), daemon=True)
        echo.start()
        client = stack.enter_context(
            network.connect(
                network.proxied, reconnect_wait=0.02, max_reconnect_wait=0.5, ping_interval=0.5
            )
        )
        jobs = Jobs(client, report, chance)
        made = make_faults(network, jobs, chance, report, observer)
        settle(jobs, report, stream, kv)
        report.counts["reconnects"] += client.statistics().reconnects
        end_all(jobs, report)
        stop.set()
        echo.join(5)
    report.violations[:] = [(k, f"{t.rstrip()}\nfaults: {made}") for k, t in report.violations]
    del observer, client, jobs, stream, kv, network
    world.base.check(report)
    world.sizes.append(memory())
    growth = world.sizes[-1] - world.sizes[min(1, len(world.sizes) - 1)]
    if growth > GROWTH:
        sizes = [size >> 20 for size in world.sizes]
        report.violation("memory", f"MiB after each round: {sizes}")


def patiently(call):
    """Ask until there is an answer: a new stream or consumer may have no leader yet."""
    end = time.monotonic() + 30
    while True:
        try:
            return call()
        except jetsync.JetSyncError:
            if time.monotonic() > end:
                raise
            time.sleep(0.1)


def make_streams(observer: jetsync.Client, size: int, *, batches: bool = True):
    js = observer.jetstream()
    config = jetsync.StreamConfig(
        name="F",
        subjects=["f.>"],
        num_replicas=size,
        allow_direct=True,
        **({"allow_atomic": True, "allow_batched": True} if batches else {}),
    )
    stream = patiently(lambda: js.create_or_update_stream(config))
    for name in ("fetch", "consume"):
        consumer = jetsync.ConsumerConfig(durable_name=name, ack_wait=3, max_ack_pending=50_000)
        patiently(lambda: stream.create_or_update_consumer(consumer))  # noqa: B023 - called here
    bucket = jetsync.KeyValueConfig(bucket="K", num_replicas=size)
    return stream, patiently(lambda: js.create_or_update_key_value(bucket))


def answer(observer: jetsync.Client, stop: threading.Event) -> None:
    """Answer requests with their own payloads, over a connection without a proxy."""
    with observer.subscribe("echo") as requests:
        while not stop.is_set():
            with contextlib.suppress(jetsync.JetSyncError):
                message = requests.next(timeout=0.2)
                if message is not None:
                    observer.publish(message.reply, message.data)


def make_faults(network: Network, jobs: Jobs, chance, report: Report, observer) -> str:
    """Make one fault after the other; return a description of them."""
    faults = [*NETWORK_FAULTS * 2, *SERVER_FAULTS, *([step_down] * 2 if network.size > 1 else [])]
    made = []
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        fault = chance.choice(faults)
        made.append(fault.__name__)
        proxies = network.proxies
        if chance.random() < 0.5:
            proxies = [chance.choice(proxies)]
        if fault is step_down:
            fault(network, chance, observer)
        elif fault in SERVER_FAULTS:
            fault(network.servers, chance.randrange(network.size), chance)
        else:
            fault(proxies, chance)
        report.counts["faults"] += 1
        time.sleep(chance.random() * 0.4)
    return " ".join(made)


# Faults of the network.


def cut(proxies, chance) -> None:
    for proxy in proxies:
        proxy.cut(reset=chance.random() < 0.5)


def cut_in_a_frame(proxies, chance) -> None:
    reset = chance.random() < 0.5
    for proxy in proxies:
        way = {chance.choice(["to_server", "to_client"]): chance.randrange(50_000)}
        proxy.cut_after(**way, reset=reset)
    proxies[0].wait_cuts(proxies[0].statistics().cuts + 1, timeout=1)
    for proxy in proxies:
        proxy.cut_after()


def cut_in_handshakes(proxies, chance) -> None:
    cut(proxies, chance)
    for proxy in proxies:
        proxy.cut_after(to_server=chance.randrange(800), to_client=chance.randrange(3000))
    time.sleep(0.3)
    for proxy in proxies:
        proxy.cut_after()


def freeze(proxies, chance) -> None:
    """The peer vanishes without closing the connection: pings must notice."""
    for proxy in proxies:
        proxy.freeze()
    time.sleep(1.0)


def hold(proxies, chance) -> None:
    way = chance.choice(["to_server", "to_client", None])
    for proxy in proxies:
        proxy.pause(way)
    time.sleep(chance.random())
    for proxy in proxies:
        proxy.resume()


def delay(proxies, chance) -> None:
    for proxy in proxies:
        proxy.delay(chance.random() * 0.2)
    time.sleep(1.0)
    for proxy in proxies:
        proxy.delay(0)


def throttle(proxies, chance) -> None:
    for _ in range(20):
        for proxy in proxies:
            proxy.pause()
        time.sleep(0.04)
        for proxy in proxies:
            proxy.resume()
        time.sleep(0.005)


def refuse(proxies, chance) -> None:
    for proxy in proxies:
        proxy.refuse()
        proxy.cut()
    time.sleep(chance.random())
    for proxy in proxies:
        proxy.accept()


NETWORK_FAULTS = [cut, cut_in_a_frame, cut_in_handshakes, freeze, hold, delay, throttle, refuse]

# Faults of servers.


def restart(servers, index, chance) -> None:
    servers.restart(index)


def kill(servers, index, chance) -> None:
    servers.kill(index)
    time.sleep(chance.random())
    servers.start(index)


def sigstop(servers, index, chance) -> None:
    servers.pause(index)
    time.sleep(0.2 + 2 * chance.random())
    servers.resume(index)


def lame_duck(servers, index, chance) -> None:
    servers.lame_duck(index)
    servers.wait_exit(index)
    servers.start(index)


SERVER_FAULTS = [restart, kill, sigstop, lame_duck]


def step_down(network, chance, observer) -> None:
    subject = chance.choice(
        ["STREAM.LEADER.STEPDOWN.F", "STREAM.LEADER.STEPDOWN.KV_K", "META.LEADER.STEPDOWN"]
    )
    with contextlib.suppress(jetsync.JetSyncError):
        observer.request(f"$JS.API.{subject}", timeout=2)
    time.sleep(0.5)


# Afterwards.


def settle(jobs: Jobs, report: Report, stream, kv, wait_quiet=lambda: None) -> None:
    """
    Wait until everything works again, and compare the streams with the calls' outcomes.

    *wait_quiet* waits until no message is on its way any more, after the last call.
    """
    client, ledger = jobs.client, jobs.ledger
    end = time.monotonic() + BACK + LATE
    while True:
        try:
            client.flush(timeout=2)
            break
        except jetsync.JetSyncError as error:
            if client.is_closed or time.monotonic() > end:
                state = "closed" if client.is_closed else "not back"
                report.violation(f"client {state}", f"after {BACK:g} s: {error!r}")
                return
    before = ledger.done.copy()
    names = [thread.name for thread in jobs.threads]
    wait_for(lambda: all(ledger.done[name] > before[name] for name in names), LIMIT * 2)
    stuck = [name for name in names if ledger.done[name] <= before[name]]
    if stuck:
        report.violation("jobs do not continue", ", ".join(stuck))
    jobs.stop.set()
    for thread in jobs.threads:
        thread.join(LIMIT + LATE)
        if thread.is_alive():
            report.violation("hang", f"{thread.name} does not end")
    wait_quiet()
    stored = read_all(stream)
    report.counts["stored"] += len(stored)
    compare(ledger, stored, report)
    sequences = sorted(stored)
    for name, handled in jobs.handled.items():
        if name == "fetch":
            fetch_rest(stream, handled)
        if not jobs.wait_for(name, lambda: handled >= set(sequences)):  # noqa: B023 - called here
            missing = sorted(set(sequences) - handled)
            report.violation(f"{name} lost messages", f"{len(missing)}: {missing[:10]}")
    jobs.wait_for("ordered", lambda: len(jobs.in_order) >= len(sequences))
    if jobs.in_order != sequences:
        twice = [n for n, count in Counter(jobs.in_order).items() if count > 1]
        report.violation(
            "ordered consumer",
            f"{len(jobs.in_order)} of {len(sequences)} messages, {len(twice)} twice",
        )
    check_watch(jobs, kv, report)
    check_acks(client, report)


def wait_for(check, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while not check():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


def read_all(stream: jetsync.Stream) -> dict[int, bytes]:
    """Return the payloads of a stream by their sequence."""
    config = jetsync.ConsumerConfig(ack_policy="none", inactive_threshold=60, mem_storage=True)
    end = time.monotonic() + SETTLE
    while True:
        consumer = patiently(lambda: stream.create_consumer(config))
        left = patiently(stream.info).state.messages
        found = {}
        with contextlib.suppress(jetsync.JetSyncError):
            while left > len(found):
                before = len(found)
                for message in consumer.fetch(min(left - before, 1000), expires=5):
                    found[message.sequence] = bytes(message.data)
                if len(found) == before:
                    break
        if left == len(found):
            return found
        # A replica that catches up, or a change of leader: wait before asking again.
        assert time.monotonic() < end, f"{left - len(found)} messages do not come"


def fetch_rest(stream: jetsync.Stream, handled: set[int]) -> None:
    """Fetch the remaining messages of the consumer that the fetching job uses."""
    consumer = patiently(lambda: stream.consumer("fetch"))
    end = time.monotonic() + SETTLE
    while time.monotonic() < end:
        info = patiently(consumer.info)
        if info.num_pending == 0 and info.num_ack_pending == 0:
            return
        with contextlib.suppress(jetsync.JetSyncError):
            for message in consumer.fetch(1000, expires=1):
                handled.add(message.sequence)
                message.ack()


def compare(ledger: Ledger, stored: dict[int, bytes], report: Report) -> None:
    """Compare the outcomes that the calls reported with the streams."""
    times = Counter(stored.values())
    lost = [data for data in ledger.acked if data not in times]
    if lost:
        report.violation("acknowledged and lost", f"{len(lost)}: {lost[:5]}")
    wrong = [
        data
        for data, sequence in ledger.acked.items()
        if sequence and data in times and stored.get(sequence) != data
    ]
    if wrong:
        report.violation("stored elsewhere", f"{len(wrong)}: {wrong[:5]}")
    denied = sorted(ledger.not_stored & times.keys())
    if denied:
        report.violation("stored, but reported as not stored", f"{len(denied)}: {denied[:5]}")
    twice = [data for data, count in times.items() if count > 1]
    if twice:
        report.violation("stored twice", f"{len(twice)}: {twice[:5]}")
    unsaid = sorted(times.keys() - ledger.acked.keys() - ledger.unknown - ledger.not_stored)
    if unsaid:
        report.violation("stored, but never reported", f"{len(unsaid)}: {unsaid[:5]}")
    for batch in ledger.batches:
        count = sum(data in times for data in batch)
        if count not in {0, len(batch)}:
            report.violation("half a batch", f"{count} of {len(batch)} of {batch[0]!r}")
    report.counts["acked"] += len(ledger.acked)
    report.counts["unknown"] += len(ledger.unknown - ledger.acked.keys() - ledger.not_stored)


def check_watch(jobs: Jobs, kv: jetsync.KeyValue, report: Report) -> None:
    """A watch has seen each key's last value, and revisions in order."""
    keys = patiently(kv.keys)
    last = {key: patiently(lambda: kv.get(key)).revision for key in keys}  # noqa: B023

    def seen() -> bool:
        newest = {entry.key: entry.revision for entry in jobs.entries}
        return newest == last

    if not jobs.wait_for("watch", seen):
        report.violation("watch", f"has not all of {len(last)} keys")
    revisions = [entry.revision for entry in jobs.entries]
    if revisions != sorted(set(revisions)):
        report.violation("watch out of order", f"{len(revisions)} revisions")


def check_acks(client: jetsync.Client, report: Report) -> None:
    """Without faults, each acknowledgement of a fetch arrives."""
    stream = patiently(lambda: client.jetstream(timeout=TIMEOUT).stream("F"))
    config = jetsync.ConsumerConfig(
        ack_wait=600, max_ack_pending=-1, inactive_threshold=60, mem_storage=True
    )
    consumer = patiently(lambda: stream.create_consumer(config))
    acked = 0
    with contextlib.suppress(jetsync.JetSyncError):
        for message in consumer.fetch(300, expires=5):
            message.ack()
            acked += 1
    if not wait_for(lambda: patiently(consumer.info).num_ack_pending == 0, LIMIT):
        left = consumer.info().num_ack_pending
        report.violation("acks lost", f"{left} of {acked} without a fault")
    report.counts["acks"] += acked


def end_all(jobs: Jobs, report: Report) -> None:
    """Close the client: every thread that waits must come back."""
    jobs.stop.set()
    report.call("close", lambda: jobs.client.close(timeout=3), 3)
    end = time.monotonic() + 5 + LATE
    for thread in (*jobs.threads, *jobs.readers):
        thread.join(max(end - time.monotonic(), 0))
        if thread.is_alive():
            report.violation("waiter not woken", f"{thread.name} after close")
