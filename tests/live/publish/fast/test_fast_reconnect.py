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
from jetsync import errors
from jetsync._proto.fastingest import OP_PING, SUFFIX
from jetsync.devserver import DevServer
from jetsync.publish import fast_link as _fast_link
from jetsync.publish.staged_run import StagedRun


class TestLoss:
    def test_connection_in_ok_mode(self, fragile, cut, unique):
        """
        After a cut, the batch continues on the next connection. Messages that are not reported lost
        are stored.
        """
        stream = fast_stream(fragile, unique)
        events = []

        def numbers():
            for number in range(1, 30_001):
                if number % 10_000 == 5000:
                    cut.cut_after(to_server=20_000)
                yield f"{unique}.a", b"%d" % number

        with fast(fragile, gap="ok", on_gap=events.append, timeout=10) as publisher:
            publisher.add_many(numbers())
        ack = publisher.ack
        lost = {n for event in events for n in range(event.first, event.last + 1)}
        assert cut.statistics().cuts >= 3
        assert (ack.size, ack.lost) == (30_000 - len(lost), len(lost))
        stored = stored_in(stream)
        assert len(set(stored)) == len(stored)
        assert set(range(1, 30_001)) - lost == set(stored)
        fragile.delete_stream(unique)

    def test_staged_after_a_reconnect(self, fragile, cut, unique, monkeypatch):
        """
        Messages that are staged after a reconnect are sent on the next connection.
        """
        stream = fast_stream(fragile, unique)
        publisher = fast(fragile, gap="ok")
        publisher.add(f"{unique}.a", b"0")
        eventually(lambda: stream.info().state.messages == 1)
        # As if the loop thread sent the run at once.
        monkeypatch.setattr(StagedRun, "arm", StagedRun._send)
        cut.cut()
        eventually(lambda: has_lost_connection(publisher))
        publisher.add(f"{unique}.a", b"1")
        ack = publisher.commit()
        assert (ack.size, ack.lost) == (2, 0)
        assert stored_in(stream) == [0, 1]
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
    def test_answer_of_the_commit(self, fragile, cut, unique, gap):
        """
        A commit whose answer is lost is not repeated: its outcome is unknown.
        """
        stream = fast_stream(fragile, unique)
        publisher = fast(fragile, gap=gap)
        publisher.add(f"{unique}.a", b"0")
        cut.cut_after(to_client=0)
        with timed(0.0, 3.0), pytest.raises(jetsync.PublishOutcomeUnknownError):
            publisher.commit(f"{unique}.a", b"1")
        assert stored_in(stream) == [0, 1]
        fragile.delete_stream(unique)

    @pytest.mark.parametrize("gap", ["ok", "fail"])
    def test_commit_that_never_arrived(self, fragile, cut, unique, gap):
        """
        A commit that never arrived is sent again once, with its message.
        """
        stream = fast_stream(fragile, unique)
        publisher = fast(fragile, gap=gap)
        publisher.add(f"{unique}.a", b"0")
        cut.cut_after(to_server=0)
        with timed(0.0, 3.0):
            ack = publisher.commit(f"{unique}.a", b"1")
        assert (ack.size, ack.lost) == (2, 0)
        assert stored_in(stream) == [0, 1]
        fragile.delete_stream(unique)

    def test_restart_of_the_server(self, victim, fragile, unique):
        """
        A server that has forgotten the batch gets a new one; unconfirmed messages are reported.
        """
        stream = fast_stream(fragile, unique, storage="file")
        events = []
        with fast(fragile, gap="ok", on_gap=events.append, flow=10, timeout=15) as publisher:
            for number in range(1, 26):
                publisher.add(f"{unique}.a", b"%d" % number)
            eventually(lambda: stream.info().state.messages == 25)
            victim.restart()
            assert publisher.add(f"{unique}.a", b"26") == 26
            assert publisher.statistics().batches == 2
        assert ranges(events) == [(21, 25)]
        assert isinstance(events[0].error, errors.FastBatchUnknownError)
        assert (publisher.ack.size, publisher.ack.lost) == (21, 5)
        assert publisher.acknowledged == 21
        assert stored_in(stream) == list(range(1, 27))
        fragile.delete_stream(unique)

    def test_a_fast_call_without_a_connection_ends_by_its_deadline(self, fragile, cut, unique):
        """
        Without a connection, a call ends by its deadline with an error that says so.
        """
        fast_stream(fragile, unique)
        publisher = fast(fragile, gap="ok")
        publisher.add(f"{unique}.a", b"0")
        cut.refuse()
        cut.cut()
        eventually(lambda: has_lost_connection(publisher))
        with timed(0.3, 1.0), pytest.raises(jetsync.DisconnectedError):
            publisher.add(f"{unique}.a", b"1", timeout=0.4)
        with timed(0.3, 1.0), pytest.raises(jetsync.DisconnectedError):
            fast(fragile).add(f"{unique}.a", b"1", timeout=0.4)
        cut.accept()
        assert publisher.add(f"{unique}.a", b"1") == 2
        assert publisher.commit().size == 2
        fragile.delete_stream(unique)

    def test_connection_at_a_ping(self, fragile, cut, unique, monkeypatch):
        """
        If the next connection is lost before the server is asked, it is asked again. Messages in
        flight are reported as lost, because the outcome of the first question is unknown.
        """
        stream = fast_stream(fragile, unique)
        events = []
        publisher = fast(fragile, gap="ok", on_gap=events.append)
        publisher.add(f"{unique}.a", b"0")
        lane = publisher._link._lane
        write, lost = lane.write, []

        def writes(block, *arguments, **named):
            if SUFFIX[OP_PING] in block and not lost:
                lost.append(block)
                raise jetsync.ConnectionLostError
            return write(block, *arguments, **named)

        monkeypatch.setattr(lane, "write", writes)
        cut.cut_after(to_server=0)
        ack = publisher.commit(f"{unique}.a", b"1")
        assert (ack.size, ack.lost, len(lost)) == (1, 1, 1)
        assert ranges(events) == [(1, 1)]
        assert stored_in(stream) == [0, 1]
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

    def test_a_batch_that_the_server_forgot_ends_or_begins_again(self, js, stream):
        """
        If the server forgot the batch, ``ok`` begins another one, and ``fail`` ends.
        """
        subject = f"{stream.name}.a"
        events = []
        publisher = fast(js, gap="ok", on_gap=events.append)
        publisher.add(subject, b"0")
        end_on_server(js, publisher, 2)
        publisher.add(subject, b"1")
        eventually(lambda: unread(publisher))
        publisher.add(subject, b"2")
        ack = publisher.commit()
        assert (ack.size, ack.lost, ranges(events)) == (1, 2, [(1, 2)])
        strict = fast(js)
        strict.add(subject, b"3")
        end_on_server(js, strict, 2)
        strict.add(subject, b"4")
        with pytest.raises(jetsync.PublishOutcomeUnknownError):
            strict.commit()
        assert stored_in(stream) == [0, 2, 3]


@pytest.mark.cluster
class TestCluster:
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
