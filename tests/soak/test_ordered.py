"""
Ordered reads of a hundred thousand messages while connections are cut, the leader of the stream
changes and consumers are deleted.

``JETSYNC_SOAK_ORDERED`` is the number of messages (100,000), ``JETSYNC_SOAK_FAULTS`` the number of
faults (60), ``JETSYNC_SOAK_SEED`` repeats a run.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import threading
from collections import Counter

import pytest

import jetsync
from jetsync.devserver import DevServer
from jetsync.testing import CutProxy

MESSAGES = int(os.environ.get("JETSYNC_SOAK_ORDERED", "100_000"))
FAULTS = int(os.environ.get("JETSYNC_SOAK_FAULTS", "60"))
SEED = int(os.environ.get("JETSYNC_SOAK_SEED", "1"))
KINDS = ("cut", "cut in a frame", "step down", "delete", "kill")
PASSING = (
    jetsync.ConsumerUnavailableError,
    jetsync.RequestTimeoutError,
    jetsync.TemporarilyUnavailableError,
    jetsync.TransportError,
)
"""Errors of a bounded read during a change of leader. The next read continues."""

QUICK = {"reconnect_wait": 0.05, "max_reconnect_wait": 0.5}


def consumed(ordered, messages):
    """
    Read with one consumption.
    """
    with ordered.consume(max_messages=200, expires=4, heartbeat=0.5) as running:
        yield from itertools.islice(running, messages)


def fetched(ordered, messages):
    """
    Read with one fetch after the other.
    """
    while messages:
        with contextlib.suppress(*PASSING):
            for message in ordered.fetch(min(messages, 300), expires=4, heartbeat=0.5):
                messages -= 1
                yield message


def asked(ordered, messages):
    """
    Read with one call for each message.
    """
    while messages:
        message = None
        with contextlib.suppress(*PASSING):
            message = ordered.next(4)
        if message is not None:
            messages -= 1
            yield message


class Reading:
    """
    A thread that reads, and that waits for the fault before the last one that was due.
    """

    def __init__(self, read, ordered, messages: int, faults: int) -> None:
        self.due, self.over = threading.Semaphore(0), threading.Semaphore(0)
        self.done = threading.Event()
        self.last = 0
        self.names: set[str] = set()
        self.error: BaseException | None = None
        self._read, self._ordered = read, ordered
        self._messages, self._faults = messages, faults
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def join(self) -> None:
        """Wait for the last message, and raise the reader's error."""
        self.over.release()
        ended = self.done.wait(300)
        if self.error is not None:
            raise self.error
        assert ended, f"no progress after message {self.last}"

    def wait_due(self) -> bool:
        """Wait until the next fault is due; return False if the reader has ended."""
        assert self.due.acquire(timeout=300), f"no progress after message {self.last}"
        return not self.done.is_set()

    def _run(self) -> None:
        every = self._messages // (self._faults + 1)
        self.over.release()
        try:
            for message in self._read(self._ordered, self._messages):
                sequence = message.sequence
                assert sequence == self.last + 1
                assert message.data == b"%d" % sequence
                self.last = sequence
                if not sequence % every:
                    self.names.add(self._ordered.name)
                    self.due.release()
                    # Most of the fault happens while it reads the messages until the next one.
                    assert self.over.acquire(timeout=300), "the fault before is not over"
        except BaseException as error:  # noqa: BLE001 - raised by the test's own thread
            self.error = error
        finally:
            self.done.set()
            self.due.release()


def trouble(kind, chance, servers, proxies, observer, ordered) -> None:
    """
    Cause one fault; all servers run afterwards.
    """
    if kind == "cut":
        for proxy in proxies:
            proxy.cut(reset=chance.random() < 0.5)
    elif kind == "cut in a frame":
        for proxy in proxies:
            proxy.cut_after(to_client=chance.randrange(200_000))
    elif kind == "kill":
        leader = servers.wait_stream_leader("S", timeout=60)
        servers.kill(leader)
        servers.wait_stream_leader("S", timeout=60)
        servers.start(leader)
    else:
        request = {
            "step down": "$JS.API.STREAM.LEADER.STEPDOWN.S",
            "delete": f"$JS.API.CONSUMER.DELETE.S.{ordered.name}",
        }[kind]
        with contextlib.suppress(jetsync.JetSyncError):
            observer.request(request, b"", timeout=5)


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("messages", "faults"),
    [
        (3000, 5),
        pytest.param(MESSAGES, FAULTS, marks=[pytest.mark.soak, pytest.mark.timeout(1800)]),
    ],
)
@pytest.mark.parametrize("read", [consumed, fetched, asked])
def test_no_gap_and_no_repetition(read, messages, faults, record_property):
    """
    Whatever replaces the consumer, a reader gets each message once and in order.
    """
    chance = random.Random(SEED)
    with contextlib.ExitStack() as stack:
        servers = stack.enter_context(
            DevServer(config={"cluster": {"no_advertise": True}}, cluster=3)
        )
        proxies = [stack.enter_context(CutProxy(url)) for url in servers.urls]
        client = stack.enter_context(jetsync.connect([proxy.url for proxy in proxies], **QUICK))
        observer = stack.enter_context(jetsync.connect(servers.urls, **QUICK))
        js = observer.jetstream(timeout=30)
        js.create_stream("S", subjects=["S.>"], num_replicas=3)
        report = js.publish_many(
            ((f"S.{number % 8}", b"%d" % number) for number in range(1, messages + 1)),
            ack_timeout=30,
        )
        assert report.failures == ()
        ordered = stack.enter_context(client.jetstream(timeout=30).stream("S").ordered_consumer())
        reading = Reading(read, ordered, messages, faults)
        kinds: Counter[str] = Counter()
        for number in range(faults):
            if not reading.wait_due():
                break
            kind = KINDS[number] if number < len(KINDS) else chance.choice(KINDS)
            kinds[kind] += 1
            trouble(kind, chance, servers, proxies, observer, ordered)
            reading.over.release()
        reading.join()
        assert reading.last == messages
        assert len(reading.names) > 1, "no consumer was replaced"
        record_property("figures", {**kinds, "consumers": ordered.name})
