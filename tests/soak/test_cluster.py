"""
A cluster that repeatedly loses the leader of a stream while messages are published.

``JETSYNC_SOAK_KILLS`` is the number of kills (10).
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

import jetsync
from helpers.waiting import eventually
from jetsync.devserver import DevServer

pytestmark = pytest.mark.cluster

STREAM = "HA"


class Publisher(threading.Thread):
    """
    Publish batches with message ids, and record the report about each.
    """

    def __init__(self, js: jetsync.JetStream) -> None:
        super().__init__(name="publisher", daemon=True)
        self._js = js
        self._stop_asked = threading.Event()
        self._progress = threading.Condition()
        self.acked: dict[str, int] = {}
        """Message id to the sequence that its ack named."""
        self.failed: dict[str, Exception] = {}
        self.error: BaseException | None = None
        self.number = 0

    def stop(self) -> None:
        self._stop_asked.set()
        self.join(60)
        assert not self.is_alive(), "publish_many hangs"
        if self.error is not None:
            raise self.error

    def wait_acked(self, count: int, timeout: float = 60.0) -> None:
        """Wait until that many more messages are acknowledged."""
        with self._progress:
            wanted = len(self.acked) + count
            done = self._progress.wait_for(
                lambda: len(self.acked) >= wanted or self.error is not None, timeout
            )
            assert self.error is None, self.error
            assert done, f"{len(self.acked)} of {wanted} acknowledged, failed {len(self.failed)}"

    def run(self) -> None:
        try:
            while not self._stop_asked.is_set():
                self.publish()
        except BaseException as error:  # noqa: BLE001 - raised again by stop
            self.error = error
            with self._progress:
                self._progress.notify_all()

    def publish(self) -> None:
        taken = 0

        def messages():
            nonlocal taken
            for _ in range(2000):
                self.number += 1
                taken += 1
                message_id = f"id-{self.number}"
                yield jetsync.OutboundMessage(f"{STREAM}.x", message_id.encode(), msg_id=message_id)

        def acked(message: jetsync.OutboundMessage, ack: jetsync.PubAck) -> None:
            with self._progress:
                self.acked[str(message.msg_id)] = ack.sequence
                self._progress.notify_all()

        before = len(self.acked)
        try:
            report = self._js.publish_many(messages(), window=512, ack_timeout=5, on_ack=acked)
        except jetsync.PublishManyError as error:
            report = error.report
        for failure in report.failures:
            self.failed[str(failure.message.msg_id)] = failure.error
        assert report.count + len(report.failures) == taken
        assert len(self.acked) - before == report.count


@pytest.mark.parametrize(
    "kills",
    [
        1,
        pytest.param(int(os.environ.get("JETSYNC_SOAK_KILLS", "10")), marks=pytest.mark.soak),
    ],
)
def test_each_message_is_stored_once_if_a_leader_is_killed(kills, read_all, record_property):
    """Every message reported as stored is there exactly once, and every other one is reported."""
    with (
        DevServer(cluster=3) as servers,
        jetsync.connect(servers.urls, reconnect_wait=0.05, max_reconnect_wait=0.5) as client,
    ):
        js = client.jetstream()
        stream = js.create_stream(
            STREAM, subjects=[f"{STREAM}.>"], num_replicas=3, duplicate_window=600
        )
        publisher = Publisher(js)
        publisher.start()
        for _ in range(kills):
            publisher.wait_acked(2000)
            leader = servers.wait_stream_leader(STREAM)
            servers.kill(leader)
            servers.wait_stream_leader(STREAM, timeout=30)
            publisher.wait_acked(2000)
            servers.start(leader)
        publisher.stop()
        kinds = Counter(type(error).__name__ for error in publisher.failed.values())
        record_property("failures", dict(kinds))
        assert set(kinds) <= {
            "PublishOutcomeUnknownError",
            "NoStreamResponseError",
            "DisconnectedError",
            "ApiError",
            "JetStreamUnavailableError",
        }, kinds
        stored = read_all(stream)
        check(publisher, stored)
        # Unconfirmed messages can be sent again with the same ids: none is stored twice.
        again = [
            jetsync.OutboundMessage(f"{STREAM}.x", name.encode(), msg_id=name)
            for name in publisher.failed
        ]
        assert js.publish_many(again, window=512).failures == ()
        ids = Counter(message_id for _, _, message_id in read_all(stream).values())
        assert set(ids) == set(publisher.acked) | set(publisher.failed)
        assert set(ids.values()) == {1}


class Again:
    """
    A plugin that has every message sent again.
    """

    @jetsync.hookimpl
    def jetsync_retry(self, attempt):
        return min(0.05 * attempt, 0.5)


@pytest.mark.parametrize(
    "kills",
    [
        1,
        pytest.param(int(os.environ.get("JETSYNC_SOAK_KILLS", "10")), marks=pytest.mark.soak),
    ],
)
def test_calls_succeed_soon_after_a_leader_is_killed(kills):
    """
    Reads, and messages that a plugin has sent again, do not wait for a killed leader until their
    deadline. None of them fails.
    """
    stop = threading.Event()
    done: Counter[str] = Counter()

    def work(name, call):
        while not stop.is_set():
            try:
                call(done[name])
            except jetsync.TemporarilyUnavailableError:
                # Only reads. The server knows that there is no leader.
                assert name in {"info", "leader"}
                stop.wait(0.1)
            else:
                done[name] += 1
                stop.wait(0.01)

    def later(pool_calls, count):
        wanted = {name: done[name] + count for name in pool_calls}
        return lambda: all(done[name] >= least for name, least in wanted.items())

    with (
        DevServer(cluster=3) as servers,
        jetsync.connect(servers.urls, reconnect_wait=0.05, plugins=[Again]) as client,
        ThreadPoolExecutor(5) as pool,
    ):
        # Changes of keys are sent again if the bucket remembers ids for twice this time.
        js = client.jetstream(timeout=60)
        stream = js.create_stream(STREAM, subjects=[f"{STREAM}.>"], num_replicas=3)
        kv = js.create_key_value("ha", num_replicas=3)
        js.publish(f"{STREAM}.first", b"x")
        calls = {
            "publish": lambda number: js.publish(f"{STREAM}.x", b"x", msg_id=f"{number}"),
            "put": lambda number: kv.put("key", b"%d" % number),
            "get": lambda number: kv.get("key", default=None),
            "leader": lambda number: stream.get_last(f"{STREAM}.first", direct=False),
            "info": lambda number: stream.info(),
        }
        workers = [pool.submit(work, *each) for each in calls.items()]
        try:
            for _ in range(kills):
                eventually(later(calls, 20), timeout=60)
                leader = servers.wait_stream_leader(STREAM)
                servers.kill(leader)
                eventually(later(calls, 20), timeout=45)
                servers.start(leader)
        finally:
            stop.set()
        for worker in workers:
            worker.result(120)
        puts = kv.history("key")
        assert puts[-1].value == b"%d" % (done["put"] - 1)
        status = stream.info().state
        assert status.messages == done["publish"] + 1


def check(publisher: Publisher, stored: dict[int, tuple[str, bytes, str | None]]) -> None:
    """Compare the reports with the stream."""
    ids = Counter(message_id for _, _, message_id in stored.values())
    assert [name for name, count in ids.items() if count != 1] == []
    assert [
        name
        for name, sequence in publisher.acked.items()
        if stored.get(sequence, ("", b"", None))[2] != name
    ] == []
    assert set(ids) <= set(publisher.acked) | set(publisher.failed)
    sent = set(publisher.acked) | set(publisher.failed)
    assert sent == {f"id-{number + 1}" for number in range(publisher.number)}
