"""
A server that mutates its frames, and attackers that answer in place of a TLS server.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
import tempfile
import threading
import time
import traceback
from collections import Counter
from pathlib import Path

import attrs
import calls
from middleman import Frame, Middleman, relay, swallow
from mutations import mutate
from test_websocket import self_signed
from trial import LATE, Base, Report, forget_peak, memory

import jetsync
from jetsync.devserver import DevServer

WAIT = 0.3
"""Seconds that each call of the work may wait for an answer."""
LIMIT = 5.0
"""Seconds that a whole call may take: some calls make several requests in a row."""
BACK = 15.0
"""Seconds in which a client must work again after reaching an honest server."""
MEMORY = 64 << 20
"""Bytes that hostile frames may make this process use: both sides' buffers, and parsed JSON."""
GUESSES = [*range(1, 20), *range(1_000_000, 1_000_020)]
"""Ids that subscriptions have in clients whose ids can be predicted."""
OPTIONS = {
    "request_timeout": WAIT,
    "reconnect_wait": 0.05,
    "max_reconnect_wait": 0.5,
    "connect_timeout": 2.0,
    "ping_interval": 0.5,
}


@attrs.define
class World:
    port: int
    tls_port: int
    certificate: str
    base: Base


@contextlib.contextmanager
def world():
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        certificate, key = self_signed(folder)
        url = stack.enter_context(calls.server()).url
        tls = {"cert_file": certificate, "key_file": key}
        secure = stack.enter_context(DevServer(config={"tls": tls}))
        yield World(int(url.rsplit(":", 1)[1]), secure.port, certificate, Base())


def trial(world: World, chance, report: Report) -> None:
    """Talk to a server that is honest, then hostile, then honest again."""
    if chance.random() < 0.2:
        with Middleman(world.tls_port, frames=False) as middleman:
            starttls(world, chance, report, middleman)
    else:
        with Middleman(world.port) as middleman:
            hostile(chance, report, middleman)
    world.base.check(report)


def hostile(chance, report: Report, middleman: Middleman) -> None:
    """Mutate the frames of a server while one thread works and others wait."""
    share = chance.choice([0.02, 0.1, 0.3])
    sent = collections.deque(maxlen=6)
    # The proxy's thread has random numbers of its own, so that each is used in order.
    own = type(chance)(chance.random())

    def change(frame: Frame) -> list[bytes] | None:
        if own.random() >= share:
            return [frame.raw]
        name, pieces = mutate(own, frame)
        report.counts["hostile frames"] += 1
        more = "..." if len(pieces) > 1 or len(pieces[0]) > 100 else ""
        sent.append(f"{frame.kind} {name}: {pieces[0][:100]!r}{more}")
        return None if own.random() < 0.05 else pieces

    report.about(f"mutate {share:.0%} of the frames")
    forget_peak()
    before = memory()
    if chance.random() < 0.3:
        # From the first INFO on.
        middleman.change = change
    found = len(report.violations)
    client = report.call(
        "connect", lambda: jetsync.connect(f"nats://127.0.0.1:{middleman.port}", **OPTIONS), LIMIT
    )
    if isinstance(client, jetsync.Client):
        with Waiters(client, report):
            middleman.change = change
            work(client, chance, report, time.monotonic() + 1.5)
            middleman.change = None
            recover(client, report, middleman, chance)
            report.call("close", lambda: client.close(timeout=3), 3)
    peak = memory("VmHWM") - before
    if peak > MEMORY:
        report.violation("memory", f"{peak >> 20} MiB more at the peak")
    # The frames that were sent last explain most findings.
    tail = "\n".join(["the last hostile frames:", *sent])
    report.violations[found:] = [
        (kind, f"{text.rstrip()}\n{tail}") for kind, text in report.violations[found:]
    ]


class Waiters:
    """
    Threads that wait for messages of a client, and must end with it.
    """

    def __init__(self, client: jetsync.Client, report: Report) -> None:
        self._report = report
        self._client = client
        self._threads = [
            threading.Thread(target=self._run, args=(wait,), name=wait.__name__, daemon=True)
            for wait in (self._subscription, self._consumption)
        ]

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        end = time.monotonic() + LIMIT + LATE
        for thread in self._threads:
            thread.join(max(end - time.monotonic(), 0))
            if thread.is_alive():
                self._report.violation("waiter not woken", f"{thread.name} after close")

    def _run(self, wait) -> None:
        while not self._client.is_closed:
            try:
                wait()
            except jetsync.JetSyncError:
                time.sleep(0.02)
            except Exception as error:  # noqa: BLE001 - the trial looks for any error
                self._report.foreign(wait.__name__, error)
                return

    def _subscription(self) -> None:
        with self._client.subscribe("chaos.>") as subscription:
            for _ in subscription:
                pass

    def _consumption(self) -> None:
        js = self._client.jetstream()
        with js.stream("CHAOS").ordered_consumer() as reader, reader.consume(expires=1) as messages:
            for message in messages:
                _ = message.metadata, message.headers


def work(client: jetsync.Client, chance, report: Report, end: float) -> None:
    """Make random calls until a time."""
    js = client.jetstream()
    made = {}
    config = jetsync.ConsumerConfig(inactive_threshold=5, mem_storage=True)
    makers = {
        # In this order: a consumer needs its stream.
        "stream": lambda: js.stream("CHAOS"),
        "consumer": lambda: made["stream"].create_consumer(config),
        "kv": lambda: js.key_value("kv"),
    }

    def read(batch):
        for message in itertools.islice(batch, 50):
            _ = message.metadata, message.headers
            message.ack()

    jobs = {
        "publish": lambda: js.publish("chaos.one", b"x", headers={"A": "b"}),
        "publish_many": lambda: js.publish_many([("chaos.one", b"x")] * 20, ack_timeout=WAIT),
        "atomic": lambda: js.publish_batch([("chaos.one", b"x")] * 3),
        "fast": lambda: fast(js),
        "core": lambda: client.publish("chaos.core", b"x", headers={"A": "b"}),
        "request": lambda: client.request("$JS.API.INFO"),
        "flush": client.flush,
        "rtt": client.rtt,
        "account_info": js.account_info,
        "stream_names": lambda: list(js.stream_names()),
        "streams": lambda: list(js.streams()),
        "server": lambda: (client.server, client.statistics(), repr(client)),
        "stream.info": lambda: made["stream"].info(timeout=WAIT),
        "stream.get": lambda: made["stream"].get_message(1),
        "stream.get_last": lambda: made["stream"].get_last("chaos.one").headers,
        "stream.get_batch": lambda: list(made["stream"].get_batch(20)),
        "stream.get_last_for": lambda: list(made["stream"].get_last_for(["chaos.>"])),
        "stream.scan": lambda: list(itertools.islice(made["stream"].scan(page=20), 40)),
        "consumer.fetch": lambda: read(made["consumer"].fetch(50, expires=WAIT)),
        "consumer.next": lambda: made["consumer"].next(expires=WAIT),
        "consumer.info": lambda: made["consumer"].info(timeout=WAIT),
        "kv.put": lambda: made["kv"].put("key1", b"x"),
        "kv.get": lambda: made["kv"].get("key1"),
        "kv.keys": lambda: made["kv"].keys("key1", timeout=2),
        "kv.history": lambda: made["kv"].history("key1", timeout=2),
        "kv.watch": lambda: watch(made["kv"]),
    }
    while time.monotonic() < end and not client.is_closed:
        for name, make in makers.items():
            # Make a handle again now and then: that is a call like the others.
            if (name in made and chance.random() < 0.7) or (
                name == "consumer" and "stream" not in made
            ):
                continue
            result = report.call(name, make, LIMIT)
            if not isinstance(result, jetsync.JetSyncError | None):
                made[name] = result
        for name in chance.sample(list(jobs), 8):
            if "." not in name or name.partition(".")[0] in made:
                report.call(name, jobs[name], LIMIT)


def fast(js: jetsync.JetStream) -> None:
    with js.fast_publisher() as publisher:
        for _ in range(10):
            publisher.add("chaos.fast", b"x")


def watch(kv: jetsync.KeyValue) -> None:
    with kv.watch() as entries:
        for _ in entries.initial(timeout=WAIT):
            pass


def recover(client: jetsync.Client, report: Report, middleman: Middleman, chance) -> None:
    """
    At an honest server, a client works again in time or is closed.

    Half of the time the connection stays, and the client has to find out by itself.
    """
    if chance.random() < 0.5:
        middleman.drop()
    end = time.monotonic() + BACK + LATE
    while not client.is_closed:
        try:
            client.flush(timeout=2)
        except jetsync.JetSyncError as error:
            last = error
        except Exception as error:  # noqa: BLE001 - the trial looks for any error
            report.foreign("flush", error)
            return
        else:
            break
        if time.monotonic() > end:
            text = f"not back within {BACK:g} s: flush: {last!r}"
            report.violation("open but dead", text)
            return
        time.sleep(0.05)
    report.counts["closed" if client.is_closed else "back"] += 1
    if not client.is_closed:
        # The last INFO may have been forged: a new connection has an honest one.
        middleman.drop()
        check_works(client, report)
    report.call("repr", lambda: repr(client), 1)


def check_works(client: jetsync.Client, report: Report) -> None:
    """Send a message to the stream and to a subscription."""
    end = time.monotonic() + BACK + LATE
    while True:
        try:
            client.flush(timeout=2)
            with client.subscribe("works") as subscription:
                client.publish("works", b"yes")
                assert subscription.next(timeout=5).data == b"yes"
            return
        except Exception:  # noqa: BLE001 - the campaign continues
            if time.monotonic() > end:
                report.violation("does not work afterwards", traceback.format_exc())
                return
            time.sleep(0.05)


def starttls(world: World, chance, report: Report, middleman: Middleman) -> None:
    """Answer reconnects of a TLS client in plain text, with messages of an attacker."""
    report.about("plaintext in place of TLS")
    client = report.call(
        "connect",
        lambda: jetsync.connect(
            f"tls://127.0.0.1:{middleman.port}", tls_ca=world.certificate, **OPTIONS
        ),
        LIMIT,
    )
    if not isinstance(client, jetsync.Client):
        report.violation("no connection", repr(client))
        return
    subscription = client.subscribe("payments")
    client.flush(timeout=5)
    sent = Counter()

    async def attack(reader, writer) -> None:
        sent["attacks"] += 1
        first = b'INFO {"server_name":"forged","tls_required":%b,"max_payload":1048576}\r\n'
        sids = b"".join(b"MSG payments %d 4\r\nEVIL\r\n" % sid for sid in GUESSES)
        forged = b'INFO {"server_name":"forged","version":"6.6.6"}\r\n'
        kind = chance.randrange(5)
        writer.write(first % (b"true" if kind else b"false"))
        if kind == 2:
            # After bytes that look like the beginning of the handshake.
            await reader.read(1)
        writer.write(sids + forged + (b"PONG\r\n" if kind == 3 else b""))
        await writer.drain()
        if kind == 4:
            # In front of the handshake of the honest server.
            await relay(world.tls_port, reader, writer)
        else:
            await swallow(reader, 0.2)

    middleman.greet = lambda: attack
    middleman.drop()
    end = time.monotonic() + 1.0
    while time.monotonic() < end and not client.is_closed:
        report.call("server", lambda: (client.server, repr(client)), 1)
        if client.server.server_name == "forged":
            report.violation("forged INFO", f"client.server is {client.server!r}")
            end = 0
        message = report.call("next", lambda: subscription.next(timeout=0.1), 1)
        if isinstance(message, jetsync.Message):
            report.violation("forged message", f"{message!r} was delivered without TLS")
            end = 0
    report.counts.update(sent)
    middleman.greet = None
    with Waiters(client, report):
        recover(client, report, middleman, chance)
        report.call("close", lambda: client.close(timeout=3), 3)
