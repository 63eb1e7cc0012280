"""
Fast ingest when connections, servers and leaders are lost.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

import jetsync
from helpers.fast_publishers import (
    end_on_server,
    fast,
    has_lost_connection,
    ranges,
    stored_in,
    unread,
)
from helpers.streams import fast_stream
from helpers.waiting import CLUSTER_CLIENT, eventually, timed
from jetsync.devserver import DevServer
from jetsync.publish import fast_link as _fast_link


class TestLoss:
    def test_connection_in_ok_mode(self, fragile, cut, unique):
        """
        A cut ends the batch, and another one goes on with the next message. Messages that were not
        reported lost are stored.
        """
        stream = fast_stream(fragile, unique)
        lost = set()

        def begin():
            batch = []
            report = lambda event: lost.update(batch[event.first - 1 : event.last])  # noqa: E731
            return fast(fragile, gap="ok", on_gap=report, timeout=10), batch

        (publisher, batch), batches = begin(), 1
        for number in range(1, 10_001):
            if number % 3000 == 1500:
                cut.cut_after(to_server=20_000)
            try:
                publisher.add(f"{unique}.a", b"%d" % number)
            except jetsync.PublishOutcomeUnknownError:
                (publisher, batch), batches = begin(), batches + 1
                publisher.add(f"{unique}.a", b"%d" % number)
            batch.append(number)
        publisher.close()
        assert cut.statistics().cuts >= 3
        assert batches >= 4
        stored = stored_in(stream)
        assert len(set(stored)) == len(stored)
        assert set(range(1, 10_001)) - lost <= set(stored)
        fragile.delete_stream(unique)

    @pytest.mark.parametrize("call", ["add", "commit"])
    def test_connection_in_fail_mode(self, fragile, cut, unique, call):
        """
        A cut ends the batch, and the error counts the confirmed messages.
        """
        stream = fast_stream(fragile, unique)
        publisher = fast(fragile, flow=10)
        for number in range(15):
            publisher.add(f"{unique}.a", b"%d" % number)
        eventually(lambda: stream.info().state.messages == 15)
        cut.cut()
        eventually(lambda: has_lost_connection(publisher))
        calls = {"add": lambda: publisher.add(f"{unique}.a", b"x"), "commit": publisher.commit}
        with pytest.raises(jetsync.PublishOutcomeUnknownError, match="10 of 15"):
            calls[call]()
        with pytest.raises(jetsync.BatchClosedError):
            publisher.commit()
        assert publisher.acknowledged == 10
        fragile.delete_stream(unique)

    @pytest.mark.parametrize("gap", ["ok", "fail"])
    @pytest.mark.parametrize(("way", "stored"), [("to_client", [0, 1]), ("to_server", [0])])
    def test_answer_of_the_commit(self, fragile, cut, unique, gap, way, stored):
        """
        A commit whose answer is lost is not repeated: its outcome is unknown.
        """
        stream = fast_stream(fragile, unique)
        publisher = fast(fragile, gap=gap)
        publisher.add(f"{unique}.a", b"0")
        cut.cut_after(**{way: 0})
        with timed(0.0, 3.0), pytest.raises(jetsync.PublishOutcomeUnknownError):
            publisher.commit(f"{unique}.a", b"1")
        assert stored_in(stream) == stored
        fragile.delete_stream(unique)

    def test_restart_of_the_server(self, victim, fragile, unique):
        """
        A server that restarts ends the batch; unconfirmed messages are reported as a gap.
        """
        stream = fast_stream(fragile, unique, storage="file")
        events = []
        publisher = fast(fragile, gap="ok", on_gap=events.append, flow=10, timeout=15)
        for number in range(1, 26):
            publisher.add(f"{unique}.a", b"%d" % number)
        eventually(lambda: stream.info().state.messages == 25)
        victim.restart()
        with pytest.raises(jetsync.PublishOutcomeUnknownError, match="20 of 25") as caught:
            publisher.add(f"{unique}.a", b"26")
        assert (ranges(events), events[0].error) == ([(21, 25)], caught.value)
        assert (publisher.acknowledged, publisher.statistics().lost) == (20, 5)
        with fast(fragile, gap="ok", timeout=15) as another:
            assert another.add(f"{unique}.a", b"26") == 1
        assert stored_in(stream) == list(range(1, 27))
        fragile.delete_stream(unique)

    def test_a_fast_call_without_a_connection_ends_by_its_deadline(self, fragile, cut, unique):
        """
        Without a connection, the first call ends by its deadline with an error that says so.
        """
        fast_stream(fragile, unique)
        former, publisher = fast(fragile, gap="ok"), fast(fragile)
        former.add(f"{unique}.a", b"0")
        cut.refuse()
        cut.cut()
        eventually(lambda: has_lost_connection(former))
        with timed(0.3, 1.0), pytest.raises(jetsync.DisconnectedError):
            publisher.add(f"{unique}.a", b"1", timeout=0.4)
        cut.accept()
        assert publisher.add(f"{unique}.a", b"1") == 1
        assert publisher.commit().size == 1
        with pytest.raises(jetsync.PublishOutcomeUnknownError):
            former.close()
        fragile.delete_stream(unique)

    def test_forgotten_commit(self, js, stream, monkeypatch):
        """
        If the server forgot the batch, the outcome of a commit without a message is unknown.
        """
        monkeypatch.setattr(_fast_link, "PING_AFTER", 1e9)
        publisher = fast(js, gap="ok")
        publisher.add(f"{stream.name}.a", b"0")
        end_on_server(js, publisher, 2)
        with pytest.raises(jetsync.PublishOutcomeUnknownError):
            publisher.commit()

    def test_a_batch_that_the_server_forgot_ends(self, js, stream):
        """
        If the server forgot the batch, it ends, and ``ok`` reports the messages in flight as a gap.
        """
        subject = f"{stream.name}.a"
        events = []
        lenient, strict = fast(js, gap="ok", on_gap=events.append), fast(js)
        for publisher in (lenient, strict):
            publisher.add(subject, b"0")
            end_on_server(js, publisher, 2)
            publisher.add(subject, b"1")
            eventually(lambda made=publisher: unread(made))
            with pytest.raises(jetsync.PublishOutcomeUnknownError, match="no such batch"):
                publisher.add(subject, b"2")
        assert ranges(events) == [(1, 2)]
        assert stored_in(stream) == [0, 0]


@pytest.mark.cluster
class TestCluster:
    @pytest.mark.thorough
    def test_leader_steps_down(self):
        """
        Messages without a leader are lost: ``ok`` reports them and continues, ``fail`` ends.
        """
        with (
            DevServer(cluster=3) as servers,
            jetsync.connect(servers.urls, **CLUSTER_CLIENT) as client,
        ):
            js = client.jetstream()
            stream = fast_stream(js, "HA", num_replicas=3)
            events = []
            stop = threading.Event()

            def numbers():
                for number in itertools.count(1):
                    if stop.is_set():
                        return
                    yield "HA.a", b"%d" % number

            with (
                fast(js, gap="ok", on_gap=events.append, timeout=20) as publisher,
                ThreadPoolExecutor(1) as pool,
            ):
                running = pool.submit(publisher.add_many, numbers())
                try:
                    for _ in range(3):
                        self._wait_for_more(publisher, running)
                        self._step_down(client, servers)
                    self._wait_for_more(publisher, running)
                finally:
                    # Without this, the thread would never end, and neither would the block.
                    stop.set()
                count = running.result(30)
            ack = publisher.ack
            lost = {n for event in events for n in range(event.first, event.last + 1)}
            assert (ack.size, ack.lost) == (count - len(lost), len(lost))
            stored = self._read(servers, stream)
            assert len(set(stored)) == len(stored)
            assert set(stored) >= set(range(1, count + 1)) - lost
            self._fail(servers, js)

    def _wait_for_more(self, publisher, running):
        """Wait until 2,000 more messages are acknowledged, or adding has failed."""
        enough = publisher.acknowledged + 2000
        eventually(lambda: running.done() or publisher.acknowledged > enough, 30)
        if running.done():
            running.result()

    def _step_down(self, client, servers):
        """Have the stream's leader step down, which needs an elected leader."""

        def stepped():
            servers.wait_stream_leader("HA", timeout=30)
            with contextlib.suppress(jetsync.RequestTimeoutError, jetsync.NoRespondersError):
                answer = client.request("$JS.API.STREAM.LEADER.STEPDOWN.HA", timeout=20)
                return json.loads(answer.data).get("success")

        eventually(stepped, 30)

    def _fail(self, servers, js):
        """The same with ``fail``, and with the leader killed."""
        strict = fast(js, timeout=20)
        stream = js.stream("HA")
        stream.purge()
        try:
            strict.add_many(self._over_a_kill(servers, stream, strict))
        except (jetsync.BatchGapError, jetsync.PublishOutcomeUnknownError):
            with pytest.raises(jetsync.BatchClosedError):
                strict.add("HA.a", b"0")
        else:
            # Replicas know of the batch. If all messages in flight reached one, it continues.
            strict.close()
            assert strict.ack.size == strict.statistics().added
        stored = self._read(servers, stream)
        assert stored == list(range(1, len(stored) + 1))
        assert len(stored) >= strict.acknowledged > 0

    def _read(self, servers, stream):
        """
        Return the stream's messages once the cluster answers; a replica may lag behind its leader.
        """
        end = time.monotonic() + 40
        while time.monotonic() < end:
            servers.wait_stream_leader("HA", timeout=30)
            with contextlib.suppress(jetsync.RequestTimeoutError, jetsync.ApiError):
                stored = stored_in(stream)
                if len(stored) == stream.info().state.messages:
                    return stored
        pytest.fail("the cluster cannot tell what it has")

    def _over_a_kill(self, servers, stream, publisher):
        """Add messages, kill the leader, and add more if the batch accepts them."""

        def leader():
            # Monitoring may name one that has stepped down; this is the leader's own answer.
            with contextlib.suppress(jetsync.RequestTimeoutError, jetsync.ApiError):
                found = stream.info(timeout=5).cluster
                return found and found.leader

        def messages():
            return (("HA.a", b"%d" % number) for number in numbers)

        numbers = itertools.count(1)
        yield from itertools.islice(messages(), 5000)
        servers.kill(int(eventually(leader, 30).rpartition("-")[2]))
        enough = publisher.acknowledged + 5000
        yield from itertools.takewhile(lambda _: publisher.acknowledged < enough, messages())
