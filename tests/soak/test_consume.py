"""
Consuming a hundred thousand messages while connections are cut and servers are stopped, paused and
killed, and a million messages through a handler that is slower than the server.

``JETSYNC_SOAK_CONSUMED`` is the number of messages (100,000), ``JETSYNC_SOAK_FAULTS`` the number of
faults (60), and ``JETSYNC_SOAK_SLOW`` the number of messages of the slow handler (a million). The
figures of a run are its properties, which ``--junitxml`` writes down.
"""

from __future__ import annotations

import contextlib
import gc
import os
import random
import threading
import time
from pathlib import Path

import pytest

import jetsync
from helpers.waiting import eventually
from jetsync.devserver import DevServer
from jetsync.testing import CutProxy

MESSAGES = int(os.environ.get("JETSYNC_SOAK_CONSUMED", "100_000"))
FAULTS = int(os.environ.get("JETSYNC_SOAK_FAULTS", "60"))
SLOW = int(os.environ.get("JETSYNC_SOAK_SLOW", "1_000_000"))
SEED = int(os.environ.get("JETSYNC_SOAK_SEED", "1"))
HEARTBEAT = 0.5
RECONNECT = 2.0
"""Seconds that a client may take to reconnect on a busy machine."""

STALL = 2 * HEARTBEAT + RECONNECT
"""Seconds without a message, although some are available, that count as a failure."""

BUFFER = 200
BULK = 2000
"""The approximate number of messages that are stored but not yet handled."""

EASY, HARD = 0.0005, 0.02
"""
Seconds that handling a message takes, and the same during a fault: enough messages must remain to
see the consumption continue after it.
"""

FIRST = 0.2
"""The part of a run after which memory is measured, and has to stay constant."""

ALLOWED_GROWTH = 24 << 20
"""Bytes that memory may grow by from then on: the allocator's slack, and buffers of reconnects."""


def resident() -> int:
    """Return the resident memory of this process in bytes, or 0 if it is not known."""
    statm = Path("/proc/self/statm")
    if not statm.exists():
        return 0
    pages = int(statm.read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


class Record:
    """
    A handler that counts how often each message is handled, in constant memory.
    """

    def __init__(self, messages: int) -> None:
        # A message that was stored without an acknowledgement is published again, so there may be
        # more.
        self._handled = bytearray(3 * messages + 10 * BULK)
        self._delivered = bytearray(len(self._handled))
        self._lock = threading.Lock()
        self.distinct = 0
        self.total = 0
        self.effort = EASY
        """Seconds that a message takes."""

    def __call__(self, message: jetsync.Message) -> None:
        metadata = message.metadata
        with self._lock:
            sequence = metadata.stream_sequence
            self.total += 1
            self.distinct += not self._handled[sequence]
            self._handled[sequence] += 1
            self._delivered[sequence] = max(self._delivered[sequence], metadata.delivered)
        time.sleep(self.effort)

    def wait_for(self, wanted: int, timeout: float) -> float | None:
        """Wait until that many are handled; return the seconds, or None if the limit was passed."""
        begin = time.monotonic()
        while self.total < wanted:
            if time.monotonic() > begin + timeout:
                return None
            time.sleep(0.002)
        return time.monotonic() - begin

    def check(self, last: int, *, forgotten: int) -> None:
        """
        Each message was handled, and at most as often as its delivery count allows.

        Args:
            last: The last sequence of the stream.
            forgotten: The number of kills of a server, each of which forgets the latest deliveries.
        """
        handled, delivered = self._handled[: last + 1], self._delivered[: last + 1]
        assert handled.count(0) == 1, "a message was not handled"
        assert self.distinct == last
        for often, said in zip(handled, delivered, strict=True):
            assert often <= said + forgotten


class Publishing:
    """
    A thread that keeps the stream ahead of the handler until it has enough messages and all faults
    are over.
    """

    def __init__(self, js: jetsync.JetStream, record: Record, messages: int) -> None:
        self._js = js
        self._record = record
        self._messages = messages
        self._stop = threading.Event()
        self._faults_are_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(60)

    def join(self) -> None:
        """Wait until all messages are stored."""
        self._faults_are_over.set()
        self._thread.join(120)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        last = 0
        while not self._stop.is_set():
            if last >= self._messages and self._faults_are_over.is_set():
                return
            if last - self._record.distinct > BULK:
                self._stop.wait(0.01)
                continue
            with contextlib.suppress(jetsync.JetSyncError):
                # A message without an ack may be stored: the stream is checked in the end.
                self._js.publish_many(
                    ((f"S.{number % 8}", b"x" * 64) for number in range(BULK)), ack_timeout=2
                )
            with contextlib.suppress(jetsync.JetSyncError):
                # Briefly: a request during a change of leader gets no answer.
                last = self._js.stream("S", timeout=1).cached_info.state.last_seq


class Campaign:
    """
    Faults at even intervals of a run, and the measurements after each.
    """

    def __init__(self, record: Record, messages: int, faults: int) -> None:
        self._record = record
        self._messages = messages
        self._faults = faults
        self.kinds: dict[str, int] = {}
        self.stalls: list[float] = []
        self.memory: list[int] = []

    def __iter__(self):
        """Yield when the next fault is due."""
        for number in range(self._faults):
            due = (number + 1) * self._messages // (self._faults + 1)
            waited = self._record.wait_for(due, 120)
            assert waited is not None, f"no progress before fault {number}"
            if number >= FIRST * self._faults:
                gc.collect()
                self.memory.append(resident())
            self._record.effort = HARD
            yield number

    def over(self, kind: str, number: int, worker: jetsync.Consumer) -> None:
        """Note that a fault is over: available messages arrive again within the bound."""
        self.kinds[kind] = self.kinds.get(kind, 0) + 1
        self._record.effort = EASY
        wanted = self._record.total + 10
        begin = time.monotonic()
        end = begin + 120
        while True:
            stall = self._record.wait_for(wanted, max(begin + 0.5 - time.monotonic(), 0.1))
            if stall is not None:
                break
            if not something_waits(worker):
                # The publisher has not reconnected yet.
                begin = time.monotonic()
            still = f"no progress after fault {number} ({kind})"
            assert time.monotonic() < min(begin + 4 * STALL, end), still
        self.stalls.append(time.monotonic() - begin)

    def report(self, last: int, record_property) -> None:
        """Record the figures, and check their bounds."""
        gc.collect()
        self.memory.append(resident())
        figures = {
            "faults": sum(self.kinds.values()),
            "kinds": dict(sorted(self.kinds.items())),
            "messages": last,
            "handled again": self._record.total - last,
            "longest stall": round(max(self.stalls), 3),
            "memory, MiB": [round(each / 2**20, 1) for each in (self.memory[0], self.memory[-1])],
        }
        record_property("figures", figures)
        assert max(self.stalls) <= STALL
        assert self.memory[-1] - self.memory[0] <= ALLOWED_GROWTH


def something_waits(worker: jetsync.Consumer) -> bool:
    """Return whether the consumer probably has messages to deliver."""
    with contextlib.suppress(jetsync.JetSyncError):
        return worker.info(timeout=0.5).num_pending > 0
    return True


def last_sequence(js: jetsync.JetStream) -> int:
    """Ask until there is an answer: a request during a change of leader gets none."""

    def ask():
        with contextlib.suppress(jetsync.JetSyncError):
            return js.stream("S", timeout=1).cached_info.state.last_seq

    return eventually(ask, 60)


PASSING = ("cut", "reset", "cut", "reset", "restart", "pause")
"""Faults after which a server still knows its deliveries."""


def trouble(kind: str, chance: random.Random, server: DevServer, proxy: CutProxy) -> None:
    """
    Cause one fault; the server runs afterwards.
    """
    if kind in {"cut", "reset"}:
        proxy.cut(reset=kind == "reset")
    elif kind == "restart":
        server.restart()
    elif kind == "pause":
        server.pause()
        time.sleep(chance.uniform(0.1, 1.5))
        server.resume()
    else:
        server.kill()
        time.sleep(chance.uniform(0.0, 0.3))
        server.start()


LONG = pytest.param(MESSAGES, FAULTS, marks=[pytest.mark.soak, pytest.mark.timeout(1800)])


@pytest.mark.parametrize(("messages", "faults"), [(4000, 6), LONG])
@pytest.mark.parametrize("kinds", [PASSING, (*PASSING, "kill", "kill")], ids=["passing", "kills"])
def test_one_server(messages, faults, kinds, record_property):
    """
    While connections are cut and the server is restarted, stopped and killed, every message is
    handled, none too often or too late, and the buffer keeps its bound.
    """
    chance = random.Random(SEED)
    record = Record(messages)
    campaign = Campaign(record, messages, faults)
    with (
        DevServer() as server,
        CutProxy(server.port) as proxy,
        jetsync.connect(proxy.url, reconnect_wait=0.05, max_reconnect_wait=0.5) as client,
        jetsync.connect(server.url, reconnect_wait=0.05, max_reconnect_wait=0.5) as other,
    ):
        js = other.jetstream()
        stream = js.create_stream("S", subjects=["S.>"])
        known = stream.create_consumer("worker", ack_wait=5, max_ack_pending=-1)
        worker = client.jetstream().consumer("S", "worker")
        running = worker.consume(
            record, threads=3, ack="auto", expires=4, heartbeat=HEARTBEAT, max_messages=BUFFER
        )
        try:
            with Publishing(js, record, messages) as publishing:
                for number in campaign:
                    kind = chance.choice(kinds)
                    trouble(kind, chance, server, proxy)
                    campaign.over(kind, number, known)
                    statistics = running.statistics()
                    assert statistics.buffered + statistics.pending <= BUFFER
                publishing.join()
            last = last_sequence(js)
            eventually(lambda: record.distinct == last, 60)
            assert running.error is None
            record.check(last, forgotten=campaign.kinds.get("kill", 0))
        finally:
            running.close()
        assert running.wait(timeout=10)
        campaign.report(last, record_property)


def leader_of(worker: jetsync.Consumer, *gone: int) -> tuple[int] | None:
    """Return the server that leads the consumer, or None if no running one does."""
    with contextlib.suppress(jetsync.JetSyncError, AttributeError, ValueError):
        leader = int(worker.info(timeout=0.5).cluster.leader.rpartition("-")[2])
        return None if leader in gone else (leader,)
    return None


CLUSTER_LONG = pytest.param(MESSAGES, FAULTS, marks=[pytest.mark.soak, pytest.mark.timeout(3600)])


@pytest.mark.cluster
@pytest.mark.parametrize(("messages", "faults"), [(3000, 1), CLUSTER_LONG])
def test_a_consumption_survives_a_cluster_in_trouble(messages, faults, record_property):
    """
    The same while the server of the consumer's leader is killed, stopped and restarted, and the
    connection is dropped. The consumption continues with each new leader.
    """
    chance = random.Random(SEED)
    record = Record(messages)
    campaign = Campaign(record, messages, faults)
    with (
        DevServer(cluster=3) as cluster,
        jetsync.connect(cluster.urls, reconnect_wait=0.05, max_reconnect_wait=0.5) as client,
        jetsync.connect(cluster.urls, reconnect_wait=0.05, max_reconnect_wait=0.5) as other,
    ):
        js = other.jetstream(timeout=20)
        stream = js.create_stream("S", subjects=["S.>"], num_replicas=3)
        known = stream.create_consumer("worker", ack_wait=5, max_ack_pending=-1)
        worker = client.jetstream(timeout=20).consumer("S", "worker")
        running = worker.consume(
            record, threads=3, ack="auto", expires=4, heartbeat=HEARTBEAT, max_messages=BUFFER
        )
        try:
            with Publishing(js, record, messages) as publishing:
                for number in campaign:
                    (leader,) = eventually(lambda: leader_of(known), 30)
                    # The short form has only the first one.
                    kind = chance.choice(("kill", "kill", "pause", "restart", "drop"))
                    kind = kind if number else "kill"
                    if kind == "kill":
                        cluster.kill(leader)
                        # The others elect a new one, which takes up to 7 seconds.
                        eventually(lambda gone=leader: leader_of(known, gone), 30)
                    elif kind == "pause":
                        cluster.pause(leader)
                        time.sleep(chance.uniform(0.1, 1.5))
                        cluster.resume(leader)
                    elif kind == "restart":
                        cluster.restart(leader)
                    else:
                        client.reconnect(timeout=20)
                    eventually(lambda: leader_of(known), 30)
                    campaign.over(kind, number, known)
                    if kind == "kill":
                        cluster.start(leader)
                publishing.join()
            last = last_sequence(js)
            eventually(lambda: record.distinct == last, 60)
            assert running.error is None
            # A leader that stops loses deliveries that it had not replicated yet.
            moves = sum(campaign.kinds.get(kind, 0) for kind in ("kill", "pause", "restart"))
            record.check(last, forgotten=moves)
        finally:
            running.close()
        assert running.wait(timeout=10)
        campaign.report(last, record_property)


@pytest.mark.parametrize(
    "messages",
    [20_000, pytest.param(SLOW, marks=[pytest.mark.soak, pytest.mark.timeout(1800)])],
)
def test_a_slow_handler(messages, record_property):
    """
    Messages in the client and in flight never exceed the buffer, however many are pending.
    """
    buffer, threads = 50, 2
    lock = threading.Lock()
    handled = 0
    memory = []

    def handle(message):
        nonlocal handled
        with lock:
            handled += 1
            number = handled
        if number % 200 == 0:
            time.sleep(0.01)
        if number % 20 == 0:
            seen = running.statistics()
            # Each handler has one message; the rest is buffered or in flight.
            worst[0] = max(worst[0], seen.buffered + seen.pending)
        if number % (messages // 100) == 0:
            memory.append(resident())

    worst = [0]
    with (
        DevServer() as server,
        jetsync.connect(server.url) as client,
        jetsync.connect(server.url) as other,
    ):
        js = client.jetstream()
        stream = js.create_stream("S", subjects=["S.>"])
        report = js.publish_many(("S.a", b"0123456789abcdef") for _ in range(messages))
        assert report.count == messages
        worker = stream.create_consumer("worker", max_ack_pending=-1)
        watched = other.jetstream().consumer("S", "worker")
        gate = threading.Event()

        def first(message):
            gate.wait(30)
            handle(message)

        running = worker.consume(first, threads=threads, ack="auto", max_messages=buffer)
        gate.set()

        def keeps_its_bound():
            before = handled
            info = watched.info()
            # Delivered messages were handled before the answer, are being handled, are buffered or
            # in flight.
            assert info.delivered.consumer_seq <= handled + buffer + threads
            # Acknowledgements are sent together, so some handled messages may still count.
            return info.num_ack_pending <= handled - before + 2 * (buffer + threads)

        try:
            looks = 0
            while handled < messages:
                eventually(keeps_its_bound)
                looks += 1
                time.sleep(0.01 if messages < 100_000 else 0.2)
        finally:
            running.close()
        assert running.wait(timeout=10)
        assert worst[0] <= buffer
        assert running.statistics().received == messages
        eventually(lambda: watched.info().num_ack_pending == 0, 30)
        assert watched.info().num_redelivered == 0
    figures = {
        "messages": messages,
        "most": worst[0],
        "looks": looks,
        "memory, MiB": [round(each / 2**20, 1) for each in (memory[0], memory[-1], max(memory))],
    }
    record_property("figures", figures)
    assert max(memory) - memory[len(memory) // 10] <= ALLOWED_GROWTH
