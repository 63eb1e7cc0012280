"""
Consuming while connections are cut and servers stop, stand still and are killed.

``JETSYNC_SOAK_FAULTS`` is how often (100), ``JETSYNC_SOAK_KILLS`` how often a cluster loses the
server of the consumer's leader (10).
"""

from __future__ import annotations

import contextlib
import os
import random
import threading
import time
from collections import Counter

import pytest

import jetsync
from jetsync.devserver import DevServer
from jetsync.testing import CutProxy

FAULTS = int(os.environ.get("JETSYNC_SOAK_FAULTS", "100"))
KILLS = int(os.environ.get("JETSYNC_SOAK_KILLS", "10"))
SEED = int(os.environ.get("JETSYNC_SOAK_SEED", "1"))
HEARTBEAT = 0.5
BUFFER = 200
BULK = 2000
STALL = 2 * HEARTBEAT + 2.0
"""Seconds without a message, while there are some, that a healthy server may let pass."""


class Publishing:
    """
    A thread that publishes as much as is handled, and knows what is stored.
    """

    def __init__(self, js: jetsync.JetStream, stream: str, handled: Counter[int]) -> None:
        self._js = js
        self._stream = stream
        self._handled = handled
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(60)

    def _run(self) -> None:
        last = 0
        while not self._stop.is_set():
            if last - len(self._handled) > BULK:
                self._stop.wait(0.01)
                continue
            with contextlib.suppress(jetsync.JetSyncError):
                subjects = (f"{self._stream}.{number % 8}" for number in range(BULK))
                # What is not acknowledged may be stored: the stream is asked in the end.
                self._js.publish_many(((subject, b"x" * 64) for subject in subjects), ack_timeout=2)
            with contextlib.suppress(jetsync.JetSyncError):
                last = self._js.stream(self._stream).cached_info.state.last_seq


class Handler:
    """
    Count what is handled, and see that nothing stands still.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.handled: Counter[int] = Counter()
        self.delivered: Counter[int] = Counter()

    def __call__(self, message: jetsync.Message) -> None:
        metadata = message.metadata
        with self._lock:
            sequence = metadata.stream_sequence
            self.handled[sequence] += 1
            self.delivered[sequence] = max(self.delivered[sequence], metadata.delivered)
        time.sleep(0.0005)

    def wait_for(self, more: int, timeout: float) -> bool:
        """Wait until so many more were handled."""
        wanted = self.handled.total() + more
        end = time.monotonic() + timeout
        while self.handled.total() < wanted:
            if time.monotonic() > end:
                return False
            time.sleep(0.005)
        return True

    def check(self, js: jetsync.JetStream, stream: str, timeout: float, *, counted: bool) -> None:
        """
        All that is stored was handled; if deliveries were *counted*, nothing more often than that.
        """
        last = last_sequence(js, stream)
        end = time.monotonic() + timeout
        while len(self.handled) < last:
            assert time.monotonic() < end, f"{len(self.handled)} of {last} were handled"
            time.sleep(0.02)
        assert set(self.handled) == set(range(1, last + 1))
        if counted:
            assert all(count <= self.delivered[each] for each, count in self.handled.items())


def last_sequence(js: jetsync.JetStream, stream: str) -> int:
    """Ask until there is an answer: a request that meets a change of leader gets none."""
    end = time.monotonic() + 60
    while True:
        try:
            return js.stream(stream, timeout=1).cached_info.state.last_seq
        except jetsync.JetSyncError:
            if time.monotonic() > end:
                raise


PASSING = ("cut", "reset", "cut", "reset", "restart", "pause")
"""Faults after which a server still knows what it has delivered."""


def trouble(kind: str, chance: random.Random, server: DevServer, proxy: CutProxy) -> None:
    """
    Do one of the things that happen; the server runs afterwards.
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


@pytest.mark.parametrize("faults", [6, pytest.param(FAULTS, marks=pytest.mark.soak)])
@pytest.mark.parametrize("kinds", [PASSING, (*PASSING, "kill", "kill")], ids=["passing", "kills"])
def test_one_server(faults, kinds):
    """
    Every message is handled, none stays away for long, and the buffer keeps its bound.
    """
    chance = random.Random(SEED)
    handler = Handler()
    with (
        DevServer() as server,
        CutProxy(server.port) as proxy,
        jetsync.connect(proxy.url, reconnect_wait=0.05) as client,
        jetsync.connect(server.url, reconnect_wait=0.05) as other,
    ):
        js = other.jetstream()
        stream = js.create_stream(name="S", subjects=["S.>"])
        stream.create_consumer(durable_name="worker", ack_wait=5, max_ack_pending=-1)
        worker = client.jetstream().consumer("S", "worker")
        running = worker.consume(
            handler, threads=3, ack="auto", expires=4, heartbeat=HEARTBEAT, max_messages=BUFFER
        )
        with Publishing(js, "S", handler.handled):
            for number in range(faults):
                assert handler.wait_for(50, 10), f"stands still before fault {number}"
                trouble(chance.choice(kinds), chance, server, proxy)
                assert handler.wait_for(10, STALL), f"stands still after fault {number}"
                statistics = running.statistics()
                assert statistics.buffered + statistics.pending <= BUFFER
        handler.check(js, "S", 30, counted="kill" not in kinds)
        assert running.error is None
        running.stop()
        assert running.wait(5)


@pytest.mark.cluster
@pytest.mark.parametrize("kills", [1, pytest.param(KILLS, marks=pytest.mark.soak)])
def test_the_leader_is_killed(kills):
    """
    A consumer that moves to another server goes on there, as soon as there is one.
    """
    handler = Handler()
    with (
        DevServer(cluster=3) as cluster,
        jetsync.connect(cluster.urls, reconnect_wait=0.05) as client,
    ):
        js = client.jetstream(timeout=20)
        stream = js.create_stream(name="S", subjects=["S.>"], num_replicas=3)
        worker = stream.create_consumer(durable_name="worker", ack_wait=5, max_ack_pending=-1)
        running = worker.consume(
            handler, threads=2, ack="auto", expires=4, heartbeat=HEARTBEAT, max_messages=BUFFER
        )
        with Publishing(js, "S", handler.handled):
            for number in range(kills):
                assert handler.wait_for(500, 30), f"stands still before kill {number}"
                leader = None
                while leader is None:
                    with contextlib.suppress(jetsync.JetSyncError, AttributeError):
                        leader = worker.info(timeout=0.5).cluster.leader
                index = int(leader.rpartition("-")[2])
                cluster.kill(index)
                # A new leader is elected after up to 7 seconds.
                assert handler.wait_for(10, 15), f"stands still after kill {number}"
                cluster.start(index)
        handler.check(js, "S", 60, counted=False)
        assert running.error is None
        running.stop()
        assert running.wait(5)
