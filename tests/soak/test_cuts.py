"""
Connections that are cut at random moments, in the middle of any call.

Five threads share one client: bulk publishes, single publishes, fetches with acks, requests and API
calls. A proxy cuts the connection repeatedly, after a random number of bytes in either direction.
Afterwards the test compares the stream with the outcome of each call. ``JETSYNC_SOAK_CUTS`` is the
number of cuts (1000), ``JETSYNC_SOAK_SEED`` repeats a run.
"""

from __future__ import annotations

import os
import random
import threading
import time
import traceback
from collections import Counter

import pytest

import jetsync
from jetsync.devserver import DevServer
from jetsync.testing import CutProxy

CALL_TIMEOUT = 10.0

# A lost connection ends every call at once, or after the reconnect: no call waits for its timeout.
# The exceptions are a fetch that finds nothing, and a busy machine.
CALL_LIMIT = 5.0

ACK_WAIT = 2.0


class Ledger:
    """
    Record the outcome of each call for each message; subjects name the worker.
    """

    def __init__(self) -> None:
        self.acked: dict[bytes, int] = {}
        """Payload to the sequence that its ack named."""
        self.unknown: set[bytes] = set()
        self.not_sent: set[bytes] = set()
        self.handled: Counter[int] = Counter()
        """Sequence to the number of times that a fetch delivered its message."""
        self.wrong: list[str] = []
        self.slowest: dict[str, float] = {}

    def failed(self, data: bytes, error: Exception) -> None:
        """Sort a message that was not acknowledged by the claim of its error."""
        if isinstance(error, jetsync.PublishOutcomeUnknownError):
            self.unknown.add(data)
        elif isinstance(error, jetsync.DisconnectedError | jetsync.NoStreamResponseError):
            self.not_sent.add(data)
        else:
            self.wrong.append(f"publish of {data!r}: {error!r}")


class Workers:
    """
    Use one client from several threads until stopped.
    """

    def __init__(self, client: jetsync.Client, stream: str, ledger: Ledger, seed: int) -> None:
        self._client = client
        self._js = client.jetstream(timeout=CALL_TIMEOUT)
        self._stream = stream
        self._ledger = ledger
        self._seed = seed
        self._stop = threading.Event()
        jobs = (self.bulk, self.single, self.read, self.request, self.ask)
        self._threads = [
            threading.Thread(target=self._loop, args=(job, index), name=job.__name__, daemon=True)
            for index, job in enumerate(jobs)
        ]

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(CALL_TIMEOUT)
            if thread.is_alive():
                self._ledger.wrong.append(f"{thread.name} hangs")

    def check(self) -> None:
        """Stop early if a check has failed already, or a thread has died of an error."""
        assert not self._ledger.wrong, self._ledger.wrong[:5]

    def _loop(self, job, index: int) -> None:
        chance = random.Random(self._seed + index)
        number = 0
        slowest = 0.0
        while not self._stop.is_set():
            number += 1
            begin = time.monotonic()
            try:
                job(number, chance)
            except Exception:  # noqa: BLE001 - the test reports any error
                self._ledger.wrong.append(f"{job.__name__}: {traceback.format_exc()}")
                return
            slowest = max(slowest, time.monotonic() - begin)
            if slowest > CALL_LIMIT:
                self._ledger.wrong.append(f"{job.__name__} took {slowest:.1f} s")
                return
            self._ledger.slowest[job.__name__] = slowest

    def bulk(self, number: int, chance: random.Random) -> None:
        """Publish some hundreds of messages at once."""
        subject = f"{self._stream}.bulk"
        payloads = [b"bulk-%d-%d" % (number, place) for place in range(chance.randint(1, 2000))]
        taken = []

        def messages():
            for payload in payloads:
                taken.append(payload)
                yield subject, payload

        def acked(message: jetsync.OutboundMessage, ack: jetsync.PubAck) -> None:
            self._ledger.acked[bytes(message.data)] = ack.sequence

        before = len(self._ledger.acked)
        try:
            report = self._js.publish_many(
                messages(), window=256, ack_timeout=CALL_TIMEOUT, on_ack=acked
            )
        except jetsync.PublishManyError as error:
            report = error.report
        for failure in report.failures:
            self._ledger.failed(bytes(failure.message.data), failure.error)
        told = report.count + len(report.failures)
        if told != len(taken):
            self._ledger.wrong.append(f"{len(taken)} taken, {told} reported, {before} before")

    def single(self, number: int, chance: random.Random) -> None:
        """Publish one message."""
        data = b"single-%d" % number
        try:
            ack = self._js.publish(f"{self._stream}.single", data, timeout=CALL_TIMEOUT)
        except jetsync.JetSyncError as error:
            self._ledger.failed(data, error)
        else:
            self._ledger.acked[data] = ack.sequence

    def read(self, number: int, chance: random.Random) -> None:
        """Fetch some messages and acknowledge each."""
        try:
            consumer = self._js.consumer(self._stream, "reader")
            for message in consumer.fetch(chance.randint(1, 500), expires=1):
                self._ledger.handled[message.sequence] += 1
                message.ack()
        except (jetsync.TransportError, jetsync.RequestTimeoutError):
            pass

    def request(self, number: int, chance: random.Random) -> None:
        """Send a request to a service that answers with the payload."""
        asked = b"%d-%s" % (number, b"x" * chance.randint(0, 2000))
        try:
            answer = self._client.request("soak.echo", asked, timeout=1)
        except (jetsync.TransportError, jetsync.RequestTimeoutError):
            return
        if answer.data != asked:
            self._ledger.wrong.append(f"asked {asked[:20]!r}, answered {bytes(answer.data)[:20]!r}")

    def ask(self, number: int, chance: random.Random) -> None:
        """Send different API requests in turn; the answers must not be mixed up."""
        try:
            if chance.random() < 0.5:
                name = self._js.stream(self._stream).name
            else:
                name = self._js.consumer(self._stream, "reader").stream_name
        except (jetsync.TransportError, jetsync.RequestTimeoutError):
            return
        if name != self._stream:
            self._ledger.wrong.append(f"asked for {self._stream}, got {name}")


def cut_once(proxy: CutProxy, chance: random.Random) -> None:
    """Cut the connection at a random place, and wait until the client has reconnected."""
    assert proxy.wait_open(timeout=30), "the client did not come back"
    before = proxy.statistics()
    reset = chance.random() < 0.5
    kind = chance.randrange(4)
    if kind == 0:
        if proxy.cut(reset=reset) == 0:
            # The other side had just closed it.
            return
    elif kind == 1:
        proxy.cut_after(to_server=chance.randrange(200_000), reset=reset)
    elif kind == 2:
        proxy.cut_after(to_client=chance.randrange(200_000), reset=reset)
    else:
        # Early in the next connection: in its handshake, or while subscriptions are replayed.
        proxy.cut_after(to_server=0)
        assert proxy.wait_cuts(before.cuts + 1, timeout=30), "there was no traffic to cut"
        proxy.cut_after(to_server=chance.randrange(600), to_client=chance.randrange(2000))
        assert proxy.wait_cuts(before.cuts + 2, timeout=30), "there was no handshake to cut"
    assert proxy.wait_cuts(before.cuts + 1, timeout=30), "there was no traffic to cut"
    proxy.cut_after()


def answer_requests(client: jetsync.Client, stop: threading.Event) -> None:
    """Answer every request with its own payload, over a connection that is not cut."""
    with client.subscribe("soak.echo") as requests:
        while not stop.is_set():
            try:
                request = requests.next(timeout=0.2)
            except jetsync.HandleClosedError:
                return
            if request is not None:
                client.publish(request.reply, request.data)


@pytest.mark.parametrize(
    "cuts",
    [
        20,
        pytest.param(int(os.environ.get("JETSYNC_SOAK_CUTS", "1000")), marks=pytest.mark.soak),
    ],
)
def test_random_cuts(cuts, read_all, record_property):
    """No call hangs, no answer is mixed up, and the stream matches the outcomes of the calls."""
    seed = int(os.environ.get("JETSYNC_SOAK_SEED", "0")) or random.randrange(1 << 32)
    record_property("seed", seed)
    print(f"JETSYNC_SOAK_SEED={seed}")  # noqa: T201 - shown when the test fails
    chance = random.Random(seed)
    ledger = Ledger()
    stop = threading.Event()
    with (
        DevServer() as server,
        jetsync.connect(server.url) as observer,
        CutProxy(server.url) as proxy,
        jetsync.connect(
            proxy.url, reconnect_wait=0.02, max_reconnect_wait=0.5, connect_timeout=5
        ) as client,
    ):
        stream = observer.jetstream().create_stream("CUTS", subjects=["CUTS.>"], storage="memory")
        reader = stream.create_consumer("reader", ack_wait=ACK_WAIT, max_ack_pending=100_000)
        echo = threading.Thread(target=answer_requests, args=(observer, stop), daemon=True)
        echo.start()
        with Workers(client, "CUTS", ledger, seed) as workers:
            for _ in range(cuts):
                cut_once(proxy, chance)
                workers.check()
        assert not ledger.wrong, ledger.wrong[:5]
        stop.set()
        echo.join(5)
        client.flush(timeout=CALL_TIMEOUT)
        stored = read_all(stream)
        compare(ledger, stored)
        drain(reader, ledger)
        assert set(ledger.handled) >= set(stored), "messages that no fetch ever delivered"
        record_property("stored", len(stored))
        record_property("slowest", ledger.slowest)


def compare(ledger: Ledger, stored: dict[int, tuple[str, bytes, str | None]]) -> None:
    """Compare the outcomes of the calls with the stream."""
    times = Counter(data for _, data, _ in stored.values())
    assert ledger.acked, "nothing was acknowledged at all"
    twice = [data for data, count in times.items() if count > 1]
    assert not twice, f"stored more than once: {twice[:5]}"
    mixed = [
        (data, sequence)
        for data, sequence in ledger.acked.items()
        if stored.get(sequence, ("", b"", None))[1] != data
    ]
    assert not mixed, f"acknowledged, but another message is stored there: {mixed[:5]}"
    late = ledger.not_sent & set(times)
    assert not late, f"reported as not sent, but stored: {sorted(late)[:5]}"
    unaccounted = set(times) - set(ledger.acked) - ledger.unknown
    assert not unaccounted, f"stored, but never reported: {sorted(unaccounted)[:5]}"


def drain(reader: jetsync.Consumer, ledger: Ledger) -> None:
    """Fetch the remaining messages, until all are acknowledged."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        info = reader.info()
        if info.num_pending == 0 and info.num_ack_pending == 0:
            return
        for message in reader.fetch(1000, expires=1):
            ledger.handled[message.sequence] += 1
            message.ack_sync()
    pytest.fail(f"the consumer was not drained: {reader.info()!r}")
