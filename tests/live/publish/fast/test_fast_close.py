"""
Fast publishers that are open when the client closes or the interpreter exits.
"""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

import jetsync
from helpers.exits import EXIT_SECONDS, run_to_exit
from helpers.fast_publishers import fast, stored_in
from helpers.streams import fast_stream
from helpers.waiting import eventually, timed
from jetsync._api.known_streams import StreamCache
from jetsync._proto.fastingest import OP_END, SUFFIX
from jetsync.publish import fast_stream as fast_stream_module


class TestClientCloses:
    @pytest.mark.parametrize("how", ["close", "drain"])
    def test_the_client_commits_open_fast_batches_before_it_closes(self, victim, unique, how):
        """
        The client commits open batches before it closes. A publisher without messages sends
        nothing.
        """
        with jetsync.connect(victim.url) as client:
            js = client.jetstream()
            fast_stream(js, unique)
            publisher, unused = fast(js), fast(js)
            for number in range(5):
                publisher.add(f"{unique}.a", b"%d" % number)
            getattr(client, how)()
            assert (publisher.ack.size, unused.ack) == (5, None)
            with pytest.raises(jetsync.ConnectionClosedError):
                publisher.add(f"{unique}.a", b"5")
            publisher.close()
        with jetsync.connect(victim.url) as client:
            assert stored_in(client.jetstream().stream(unique)) == list(range(5))

    def test_in_the_block_of_a_publisher(self, victim, unique):
        """
        The block ends without an error if everything was confirmed.
        """
        with jetsync.connect(victim.url) as client:
            fast_stream(client.jetstream(), unique)
            with fast(client.jetstream()) as publisher:
                publisher.add(f"{unique}.a", b"0")
                client.close()
            assert publisher.ack.size == 1

    def test_a_close_without_an_answer_is_unknown(self, cut, unique):
        """
        If the server does not answer in time, the block raises that the outcome is unknown.
        """
        client = jetsync.connect(cut.url)
        fast_stream(client.jetstream(), unique)
        publisher = fast(client.jetstream())
        publisher.add(f"{unique}.a", b"0")
        cut.pause("to_client")
        with timed(0.3, 1.5):
            client.close(timeout=0.4)
        with pytest.raises(jetsync.ConnectionClosedError):
            publisher.add(f"{unique}.a", b"1")
        with pytest.raises(jetsync.PublishOutcomeUnknownError, match="commit"):
            publisher.close()
        assert (publisher.ack, publisher.acknowledged) == (None, 0)

    def test_a_client_with_fast_batches_closes_at_once_offline(self, cut, unique):
        """
        Without a connection the client closes at once.
        """
        client = jetsync.connect(cut.url)
        fast_stream(client.jetstream(), unique)
        publisher = fast(client.jetstream(), gap="ok")
        publisher.add(f"{unique}.a", b"0")
        cut.refuse()
        cut.cut()
        eventually(lambda: not client.is_connected)
        with timed(0.0, 1.0):
            client.close()
        with pytest.raises((jetsync.ConnectionClosedError, jetsync.PublishOutcomeUnknownError)):
            publisher.close()

    def test_a_call_that_waits_for_a_leader_ends_with_the_client(
        self, nats_server, stream, monkeypatch
    ):
        """
        A call that waits for a leader before its next attempt ends as soon as the client closes.
        """
        asked = threading.Event()

        def find(*_, **__):
            asked.set()
            raise jetsync.TemporarilyUnavailableError

        monkeypatch.setattr(StreamCache, "find", find)
        monkeypatch.setattr(fast_stream_module, "LEADER_POLL", 60.0)
        client = jetsync.connect(nats_server.url)
        publisher = fast(client.jetstream(), timeout=100)
        with ThreadPoolExecutor(1) as pool:
            call = pool.submit(publisher.add, f"{stream.name}.a", b"0")
            assert asked.wait(10)
            with timed(0.0, 10.0):
                client.close()
                with pytest.raises(jetsync.ConnectionClosedError):
                    call.result(20)


def test_an_exception_in_the_block_ends_the_call_of_another_thread(
    fragile, cut, unique, monkeypatch
):
    """
    If an exception ends the block while another thread waits for room, the batch ends on the server
    and that thread's call raises BatchClosedError.
    """
    stream = fast_stream(fragile, unique)
    publisher = fast(fragile, flow=1, max_outstanding_acks=1, timeout=60.0)
    publisher.add(f"{unique}.a", b"0")
    lane, posted, waits = publisher._link._lane, [], threading.Event()
    post, wait = lane.post_nowait, lane.wait

    def posts(block, *arguments):
        posted.append(block)
        post(block, *arguments)

    def waiting(*arguments):
        waits.set()
        return wait(*arguments)

    monkeypatch.setattr(lane, "post_nowait", posts)
    monkeypatch.setattr(lane, "wait", waiting)
    cut.pause("to_client")
    with ThreadPoolExecutor(1) as pool:
        adding = pool.submit(publisher.add_many, [(f"{unique}.a", b"1")] * 50)
        assert waits.wait(20)
        with pytest.raises(LookupError), publisher:
            raise LookupError
        with pytest.raises(jetsync.BatchClosedError):
            adding.result(20)
    cut.resume()
    assert any(SUFFIX[OP_END] in block for block in posted)
    stream.delete()


def test_a_call_that_misses_the_end_of_the_block(js, stream, monkeypatch):
    """
    If a call of another thread ends just before it would notice that the block has ended, the next
    call ends the batch on the server.
    """
    publisher = fast(js)
    publisher.add(f"{stream.name}.a", b"0")
    lane, posted = publisher._link._lane, []
    post = lane.post_nowait

    def posts(block, *arguments):
        posted.append(block)
        post(block, *arguments)

    publisher._link.stop()
    monkeypatch.setattr(lane, "post_nowait", posts)
    for _ in range(2):
        with pytest.raises(jetsync.BatchClosedError):
            publisher.add(f"{stream.name}.a", b"1")
    assert sum(SUFFIX[OP_END] in block for block in posted) == 1


class TestExit:
    def test_a_script_without_close_has_its_fast_messages_stored(self, nats_server, js, stream):
        """
        A script that ends without closing its publisher has all its messages stored.
        """
        script = """
            publisher = jetsync.connect(sys.argv[1]).jetstream().fast_publisher()
            for number in range(777):
                publisher.add(sys.argv[2] + ".a", b"%d" % number)
        """
        status, errors, seconds = run_to_exit(script, nats_server.url, stream.name)
        assert (status, errors) == (0, "")
        assert seconds < EXIT_SECONDS
        assert stored_in(stream) == list(range(777))
        # The batch was committed, so it does not reduce the flow of the next one.
        with fast(js) as publisher:
            publisher.add(f"{stream.name}.a", b"777")
            assert publisher.statistics().flow == 500

    def test_dropped_publisher(self, nats_server, stream):
        """
        Messages of a publisher that was dropped are sent, too.
        """
        script = """
            js = jetsync.connect(sys.argv[1]).jetstream()
            publisher = js.fast_publisher()
            for number in range(50):
                publisher.add(sys.argv[2] + ".a", b"%d" % number)
            del publisher
        """
        assert run_to_exit(script, nats_server.url, stream.name)[:2] == (0, "")
        assert stored_in(stream) == list(range(50))

    @pytest.mark.parametrize("end", ["", "client.close()"])
    def test_a_publisher_that_is_dropped_last(self, nats_server, stream, end):
        """
        A publisher that is dropped right before the end sends its messages, also if the loop of
        the client is late.
        """
        script = f"""
            import time
            client = jetsync.connect(sys.argv[1])
            publisher = client.jetstream().fast_publisher()
            for number in range(50):
                publisher.add(sys.argv[2] + ".a", b"%d" % number)
            client._connection.lane.later(0.0, time.sleep, 0.3)
            del publisher
            {end}
        """
        assert run_to_exit(script, nats_server.url, stream.name)[:2] == (0, "")
        assert stored_in(stream) == list(range(50))

    @pytest.mark.skipif(os.name == "nt", reason="needs SIGSTOP")
    def test_unconfirmed_fast_messages_are_reported_at_exit(self, victim, unique):
        """
        A server that does not answer leaves a line on stderr that counts the messages.
        """
        with jetsync.connect(victim.url) as client:
            fast_stream(client.jetstream(), unique)
        script = """
            client = jetsync.connect(sys.argv[1])
            publisher = client.jetstream().fast_publisher()
            publisher.add(sys.argv[2] + ".a", b"0")
            hang(client, sys.argv[3])
            for number in range(9):
                publisher.add(sys.argv[2] + ".a", b"1")
        """
        try:
            status, errors, seconds = run_to_exit(script, victim.url, unique, str(victim.pids[0]))
        finally:
            victim.resume()
        assert status == 0
        assert errors.startswith(
            "jetsync: at exit: 10 of 10 messages of a fast publisher are not confirmed: "
        )
        assert errors.count("\n") == 1
        assert seconds < EXIT_SECONDS
