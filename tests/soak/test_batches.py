"""
Servers that are killed while batches are published: the stored messages must match the reports.

``JETSYNC_SOAK_MOMENTS`` is the number of kills (200). Each kill meets atomic batches on one stream
and fast ingest on another at a random moment.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections import defaultdict
from contextlib import contextmanager

import attrs
import pytest

import jetsync
from jetsync.devserver import DevServer

MOMENTS = int(os.environ.get("JETSYNC_SOAK_MOMENTS", "200"))
ATOMIC = "ATOMIC"
FAST = "FAST"
CERTAIN = (
    jetsync.NoStreamResponseError,
    jetsync.BatchIncompleteError,
    jetsync.ConnectionLostError,
    jetsync.DisconnectedError,
    jetsync.TooManyInflightError,
)
"""Errors that promise that no message of the batch is in the stream."""

PASSING = (jetsync.RequestTimeoutError, jetsync.ApiError)
"""Errors of the lookup of the stream, before a batch begins."""


@attrs.define
class Round:
    """
    The attempts between two kills, and their reports.
    """

    number: int
    acked: dict[str, jetsync.BatchAck] = attrs.Factory(dict)
    certain: set[str] = attrs.Factory(set)
    unknown: dict[str, jetsync.AtomicBatch] = attrs.Factory(dict)
    sizes: dict[str, int] = attrs.Factory(dict)
    fast_sent: int = 0
    fast_acknowledged: int = 0
    fast_ack: jetsync.BatchAck | None = None


class Publishing:
    """
    Two threads that publish until the server is gone.
    """

    def __init__(self, js: jetsync.JetStream, this: Round, seed: int) -> None:
        self._js = js
        self._round = this
        self._random = random.Random(seed)
        self._stop = threading.Event()
        self.errors: list[BaseException] = []
        self.moving = threading.Event()
        self._threads = [
            threading.Thread(target=self._guarded, args=(work,), daemon=True)
            for work in (self._atomic, self._fast)
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive(), "a publishing thread hangs"
        if self.errors:
            raise self.errors[0]

    def _guarded(self, work) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - raised by stop
            self.errors.append(error)

    def _atomic(self) -> None:
        this, count = self._round, 0
        while not self._stop.is_set():
            count += 1
            name = f"{this.number}-{count}"
            size = this.sizes[name] = self._random.randint(1, 60)
            messages = [
                jetsync.OutboundMessage(
                    f"{ATOMIC}.{i % 3}", f"{name} {i}".encode(), msg_id=f"{name} {i}"
                )
                for i in range(size)
            ]
            try:
                if count % 2:
                    this.acked[name] = self._js.publish_batch(messages, timeout=20, retries=0)
                else:
                    with self._js.atomic_batch(timeout=20, ack_every=7) as batch:
                        for message in messages:
                            batch.add(message.subject, message.data, msg_id=message.msg_id)
                    this.acked[name] = batch.ack
                self.moving.set()
            except jetsync.BatchOutcomeUnknownError as error:
                this.unknown[name] = error.batch
                return
            except CERTAIN:
                this.certain.add(name)
                return
            except PASSING:
                this.certain.add(name)
                return

    def _fast(self) -> None:
        this = self._round
        fast = self._js.fast_publisher(flow=self._random.choice([10, 100, 500]), timeout=20)
        try:
            while not self._stop.is_set():
                this.fast_sent += 1
                text = f"{this.number} {this.fast_sent}"
                fast.add(f"{FAST}.x", text.encode(), msg_id=text)
            this.fast_ack = fast.commit()
        except jetsync.JetSyncError:
            pass
        finally:
            this.fast_acknowledged = fast.acknowledged


def read_from(stream: jetsync.Stream, start: int) -> dict[int, bytes]:
    """Return the data of all messages from a sequence on."""
    last = stream.info().state.last_seq
    if last < start:
        return {}
    consumer = stream.create_consumer(
        jetsync.ConsumerConfig(
            ack_policy="none",
            inactive_threshold=60,
            mem_storage=True,
            deliver_policy="by_start_sequence",
            opt_start_seq=start,
        )
    )
    found: dict[int, bytes] = {}
    until = time.monotonic() + 60
    while (max(found, default=0)) < last:
        for message in consumer.fetch(1000, expires=2, no_wait=False):
            found[message.sequence] = bytes(message.data)
            if message.sequence >= last:
                break
        assert time.monotonic() < until, f"{len(found)} messages of {start} to {last}"
    consumer.delete()
    return found


def check_atomic(this: Round, stored: dict[int, bytes]) -> None:
    """Every batch is stored whole or not at all, as it was reported."""
    batches: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for sequence, data in stored.items():
        name, _, place = data.decode().partition(" ")
        batches[name].append((sequence, int(place)))
    for name, messages in batches.items():
        assert name not in this.certain, f"{name} was reported as not stored"
        first = messages[0][0]
        whole = [(first + place, place) for place in range(this.sizes[name])]
        assert messages == whole, f"{name} is stored in part, or twice"
    assert set(this.acked) <= set(batches)
    for name, ack in this.acked.items():
        if not ack.duplicate:
            assert batches[name][0][0] == ack.first_sequence
            assert batches[name][-1][0] == ack.sequence
    assert set(this.unknown) <= set(batches), "a batch that was sent again is not there"


def check_fast(this: Round, stored: dict[int, bytes]) -> None:
    """Acknowledged messages are stored once and in order."""
    places = [int(data.split()[1]) for data in stored.values()]
    assert places == list(range(1, len(places) + 1)), "not a run from the first one on"
    assert this.fast_acknowledged <= len(places) <= this.fast_sent
    if this.fast_ack is not None:
        assert len(places) == this.fast_ack.size


class Campaign:
    """
    Rounds of publishing that end with a kill.
    """

    def __init__(self, js: jetsync.JetStream, replicas: int) -> None:
        self._js = js
        self._random = random.Random(20)
        self._next = {ATOMIC: 1, FAST: 1}
        self.batches = self.unknown = self.duplicates = self.fast = 0
        for name in (ATOMIC, FAST):
            js.create_stream(
                name,
                subjects=[f"{name}.>"],
                num_replicas=replicas,
                allow_atomic=name == ATOMIC,
                allow_batched=name == FAST,
                duplicate_window=600,
            )

    def __str__(self) -> str:
        return (
            f"{self.batches} batches acknowledged, {self.unknown} unknown and sent again, of which"
            f" {self.duplicates} were there; {self.fast} messages by fast ingest"
        )

    @contextmanager
    def publishing(self, number: int):
        """Publish while the block ends the server, then resend unknown batches and check."""
        this = Round(number)
        publishing = Publishing(self._js, this, number)
        assert publishing.moving.wait(30)
        time.sleep(self._random.uniform(0.0, 0.15))
        yield
        publishing.stop()
        for name, batch in this.unknown.items():
            # Because of the ids it is safe to send it again: it is stored once.
            ack = eventually(lambda batch=batch: batch.resend(timeout=20))
            this.acked[name] = ack
            self.duplicates += ack.duplicate
        check_atomic(this, self._read(ATOMIC))
        check_fast(this, self._read(FAST))
        self.batches += len(this.acked)
        self.unknown += len(this.unknown)
        self.fast += this.fast_sent

    def _read(self, name: str) -> dict[int, bytes]:
        stream = eventually(lambda: self._js.stream(name))
        found = eventually(lambda: read_from(stream, self._next[name]))
        self._next[name] = max(found, default=self._next[name] - 1) + 1
        # A server that starts reads its whole store.
        eventually(stream.purge)
        return found


def eventually(call):
    """Call again until the server answers, for at most a minute."""
    until = time.monotonic() + 60
    while True:
        try:
            return call()
        except jetsync.JetSyncError:
            if time.monotonic() > until:
                raise
            time.sleep(0.1)


MOMENTS_OR_FEW = [3, pytest.param(MOMENTS, marks=pytest.mark.soak)]


@pytest.mark.parametrize("moments", MOMENTS_OR_FEW)
def test_server_is_killed(moments, record_property, tmp_path):
    """Acknowledged batches are stored whole, and of other batches there is no part."""
    with (
        DevServer(store=tmp_path) as server,
        jetsync.connect(server.url, reconnect_wait=0.02, max_reconnect_wait=0.5) as client,
    ):
        campaign = Campaign(client.jetstream(), replicas=1)
        for number in range(moments):
            with campaign.publishing(number):
                server.kill()
                server.start()
        record_property("campaign", str(campaign))
        assert campaign.batches >= moments


@pytest.mark.cluster
@pytest.mark.parametrize("moments", [1, pytest.param(MOMENTS, marks=pytest.mark.soak)])
def test_batches_survive_a_killed_leader(moments, record_property):
    """The same if the leader of the streams is killed and another server takes over."""
    with (
        DevServer(cluster=3) as servers,
        jetsync.connect(servers.urls, reconnect_wait=0.02, max_reconnect_wait=0.5) as client,
    ):
        campaign = Campaign(client.jetstream(), replicas=3)
        for number in range(moments):
            with campaign.publishing(number):
                leader = servers.wait_stream_leader(ATOMIC, timeout=30)
                servers.kill(leader)
                servers.wait_stream_leader(ATOMIC, timeout=30)
                servers.start(leader)
        record_property("campaign", str(campaign))
        assert campaign.batches >= moments
