"""
Publishers that are open when the client closes or the interpreter exits.
"""

from __future__ import annotations

import gc
import os
import threading

import pytest

import jetsync
from helpers.exits import EXIT_SECONDS, run_to_exit
from helpers.interrupts import interrupted_at
from helpers.waiting import eventually, timed
from jetsync.testing import HookRecorder


def collect_publishers():
    """
    Collect garbage until no publisher has a thread.
    """

    def is_over():
        # The thread of a publisher may hold the last reference to it.
        gc.collect()
        return "jetsync-publisher" not in [thread.name for thread in threading.enumerate()]

    eventually(is_over)


@pytest.fixture
def silent(js, unique):
    """
    A subject of a stream that acknowledges nothing.
    """
    stream = js.create_stream(unique, subjects=[f"{unique}.>"], storage="memory", no_ack=True)
    yield f"{unique}.a"
    js.delete_stream(stream.name)


class TestClientCloses:
    @pytest.mark.parametrize("how", ["close", "drain"])
    def test_all_accepted_messages_are_acknowledged_before_the_close(
        self, nats_server, stream, how
    ):
        """
        All messages that were accepted are acknowledged before the client closes.
        """
        with jetsync.connect(nats_server.url) as client:
            publisher = client.jetstream().publisher()
            futures = [publisher.publish(f"{stream.name}.A", b"%d" % n) for n in range(5000)]
            getattr(client, how)()
            assert [future.result(0).sequence for future in futures] == list(range(1, 5001))
            with pytest.raises(jetsync.ConnectionClosedError):
                publisher.publish(f"{stream.name}.A")
            publisher.close()

    def test_no_ack_in_time(self, nats_server, silent):
        """
        Messages without an ack are unknown after the timeout, and their publisher raises.
        """
        client = jetsync.connect(nats_server.url)
        publisher = client.jetstream().publisher()
        future = publisher.publish(silent)
        with timed(0.4, 2.0):
            client.close(timeout=0.5)
        with pytest.raises(jetsync.PublishManyError, match="1 of 1"):
            publisher.close()
        assert isinstance(future.exception(0), jetsync.PublishOutcomeUnknownError)

    def test_a_callback_that_does_not_return(self, nats_server, stream):
        """
        The client closes by its timeout while a callback of the publisher runs.
        """
        client = jetsync.connect(nats_server.url)
        running, over = threading.Event(), threading.Event()

        def on_report(_):
            running.set()
            over.wait(10)

        publisher = client.jetstream().publisher(on_report=on_report)
        publisher.publish(f"{stream.name}.A")
        assert running.wait(5)
        try:
            with timed(0.0, 1.0):
                client.close(timeout=0.5)
        finally:
            over.set()
        publisher.close()

    def test_a_client_with_publishers_closes_at_once_offline(self, victim, unique):
        """
        Without a connection the client closes at once.
        """
        client = jetsync.connect(victim.url)
        client.jetstream().create_stream(unique, subjects=[f"{unique}.>"], no_ack=True)
        publisher = client.jetstream().publisher()
        future = publisher.publish(f"{unique}.a")
        client.flush()
        try:
            victim.kill()
            eventually(lambda: not client.is_connected)
            with timed(0.0, 1.5):
                client.close()
        finally:
            victim.start()
        assert isinstance(future.exception(0), jetsync.PublishOutcomeUnknownError)


class TestExit:
    @pytest.mark.parametrize("last", ["", "del publisher"])
    def test_a_script_without_close_has_all_its_messages_stored(self, nats_server, stream, last):
        """
        A script that ends without closing its publisher has all its messages stored.
        """
        # The interpreter does not switch threads, so the messages are still staged at the end.
        script = f"""
            publisher = jetsync.connect(sys.argv[1]).jetstream().publisher()
            sys.setswitchinterval(100)
            for number in range(500):
                publisher.publish(sys.argv[2] + ".A", b"%d" % number)
            {last}
        """
        status, errors, seconds = run_to_exit(script, nats_server.url, stream.name)
        assert (status, errors) == (0, "")
        assert seconds < EXIT_SECONDS
        assert stream.info().state.messages == 500

    def test_unconfirmed_messages_are_counted_on_stderr_at_exit(self, nats_server, silent):
        """
        A line on stderr counts the messages that were not acknowledged in time.
        """
        script = """
            publisher = jetsync.connect(sys.argv[1]).jetstream().publisher()
            for number in range(10):
                publisher.publish(sys.argv[2])
        """
        status, errors, seconds = run_to_exit(script, nats_server.url, silent)
        assert status == 0
        assert errors.startswith("jetsync: at exit: 10 messages of a publisher may not be stored; ")
        assert errors.count("\n") == 1
        assert seconds < EXIT_SECONDS

    def test_failures_without_a_reader_are_reported(self, nats_server, unique):
        """
        A line on stderr counts the messages that no stream took and whose futures were not read.
        """
        script = """
            publisher = jetsync.connect(sys.argv[1]).jetstream().publisher(retries=0)
            publisher.publish(sys.argv[2])
            publisher.flush()
        """
        status, errors, _ = run_to_exit(script, nats_server.url, unique)
        assert status == 0
        assert errors.startswith("jetsync: at exit: 1 message of a publisher may not be stored; ")
        assert "no stream" in errors

    @pytest.mark.skipif(os.name == "nt", reason="needs SIGSTOP")
    def test_core_messages_are_reported(self, victim, unique):
        """
        A line on stderr says that core messages may not have been sent.
        """
        script = """
            client = jetsync.connect(sys.argv[1])
            hang(client, sys.argv[3])
            client.publish(sys.argv[2], b"x")
        """
        try:
            status, errors, seconds = run_to_exit(script, victim.url, unique, str(victim.pids[0]))
        finally:
            victim.resume()
        assert status == 0
        assert errors.startswith("jetsync: at exit: the server did not confirm")
        assert seconds < EXIT_SECONDS


class TestDropped:
    @pytest.mark.parametrize("plugins", [(), (HookRecorder("jetsync_publish"),)])
    def test_a_dropped_publisher_leaves_no_thread(self, nats_server, stream, plugins):
        """
        A dropped publisher warns and leaves no thread, no subscription and no open wrapper.
        """
        with jetsync.connect(nats_server.url, plugins=plugins) as client:
            before = client.statistics().subscriptions
            publisher = client.jetstream().publisher()
            future = publisher.publish(f"{stream.name}.A")
            publisher.flush()
            del publisher, future
            with pytest.warns(ResourceWarning, match="publisher was dropped") as caught:
                collect_publishers()
            assert caught[0].filename == __file__
            eventually(lambda: client.statistics().subscriptions == before)
            for plugin in plugins:
                (call,) = plugin.of("jetsync_publish")
                eventually(lambda call=call: call.finished)

    def test_with_messages_in_flight(self, fragile, victim, unique):
        """
        It ends after its messages have ended.
        """
        stream = fragile.create_stream(unique, subjects=[f"{unique}.>"], storage="memory")
        publisher = fragile.publisher()
        victim.pause()
        try:
            publisher.publish(f"{unique}.a")
            del publisher
            gc.collect()
        finally:
            victim.resume()
        eventually(lambda: stream.info().state.messages == 1)
        with pytest.warns(ResourceWarning, match="publisher was dropped"):
            collect_publishers()


@pytest.mark.filterwarnings("ignore:publisher was dropped:ResourceWarning")
def test_ctrl_c_while_it_is_made(js):
    """
    Wherever Ctrl-C strikes while a publisher is made or closed, its thread ends.
    """

    def is_over():
        gc.collect()
        new = set(threading.enumerate()) - before
        return "jetsync-publisher" not in [thread.name for thread in new]

    before = set(threading.enumerate())
    step, ended = 0, False
    while not ended:
        step += 1
        ended = interrupted_at(step, lambda: js.publisher().close())
    eventually(is_over)
