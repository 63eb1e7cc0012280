"""
Publishers on real servers: the window, futures, reports and failures.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import logging
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError

import attrs
import pytest

import jetsync
from helpers.streams import memory_stream, messages_in
from helpers.waiting import at_some_pace, blocked, eventually, holds, timed
from jetsync._base.locks import SIGNAL_CHECK, Signal
from jetsync.devserver import DevServer
from jetsync.hookspecs import hookimpl
from jetsync.testing import CutProxy, HookRecorder

WORKER = "jetsync-publisher"


def workers():
    """
    Return how many publishers have a thread.
    """
    return sum(thread.name == WORKER for thread in threading.enumerate())


@pytest.fixture
def fragile(victim):
    """
    A client of that server that reconnects quickly.
    """
    with jetsync.connect(victim.url, reconnect_wait=0.05) as client:
        yield client


@pytest.fixture
def paused(victim):
    """
    A context manager that pauses the server.
    """

    @contextlib.contextmanager
    def paused():
        victim.pause()
        try:
            yield
        finally:
            victim.resume()

    return paused


@pytest.fixture
def pool():
    """
    Threads for calls that wait.
    """
    with ThreadPoolExecutor(8) as pool:
        yield pool


@pytest.fixture
def connected(nats_server):
    """
    A function that takes plugins and returns the JetStream context of a client with them.
    """
    with contextlib.ExitStack() as stack:

        def connected(*plugins):
            client = stack.enter_context(jetsync.connect(nats_server.url, plugins=plugins))
            return client.jetstream()

        yield connected


@pytest.fixture(autouse=True)
def _no_thread_is_left():
    """
    The thread of every publisher ends with it.
    """
    yield
    eventually(lambda: workers() == 0)


@pytest.fixture
def silent(js, unique):
    """
    A subject of a stream that stores messages and never acknowledges them.
    """
    js.create_stream(unique, subjects=[f"{unique}.>"], storage="memory", no_ack=True)
    yield f"{unique}.A"
    js.delete_stream(unique)


def payloads(stream):
    """
    Return the payloads of a stream in order.
    """
    return [message.data for message in messages_in(stream)]


class TestWindow:
    def test_the_window_is_never_exceeded(self, fragile, paused, pool, unique):
        """
        Four threads publish 100 messages, never more than 5 are in flight, and all are
        stored.
        """
        stream = memory_stream(fragile.jetstream(), unique)
        most = 0
        over = threading.Event()

        def sample():
            nonlocal most
            while not over.wait(0.001):
                most = max(most, publisher.pending)

        with fragile.jetstream().publisher(window=5) as publisher:
            sampler = pool.submit(sample)
            with paused():
                running = [
                    pool.submit(
                        lambda: [publisher.publish(f"{unique}.A", b"x" * 10) for _ in range(25)]
                    )
                    for _ in range(4)
                ]
                eventually(lambda: publisher.pending == 5)
                holds(lambda: publisher.pending == 5)
                assert not any(publishing.done() for publishing in running)
            futures = [future for publishing in running for future in publishing.result(20)]
            sequences = sorted(future.result(20).sequence for future in futures)
            over.set()
            sampler.result(20)
        assert most == 5
        assert sequences == list(range(1, 101))
        assert stream.info().state.messages == 100
        fragile.jetstream().delete_stream(unique)

    def test_the_window_is_limited_in_bytes(self, fragile, paused, pool, unique):
        """
        Publishing waits when the bytes in flight reach the limit, and continues as acks
        arrive.
        """
        stream = memory_stream(fragile.jetstream(), unique)
        payload = bytes(100_000)
        with fragile.jetstream().publisher(window_bytes=1_000_000) as publisher:
            publisher.publish(f"{unique}.A", payload).result(20)
            with paused():
                running = pool.submit(
                    lambda: [publisher.publish(f"{unique}.A", payload) for _ in range(50)]
                )
                eventually(lambda: publisher.pending == 10)
                with contextlib.suppress(FutureTimeoutError):
                    running.result(0.1)
                assert publisher.pending == 10
                assert not running.done()
            for future in running.result(20):
                future.result(20)
        assert stream.info().state.messages == 51
        fragile.jetstream().delete_stream(unique)

    def test_a_stall_ends_when_acks_time_out(self, js, silent):
        """
        If the window is full and no acks arrive, the next publish waits for the ack timeout.
        """

        def attempt(pace):
            publisher = js.publisher(window=5, ack_timeout=pace)
            futures = [publisher.publish(silent) for _ in range(5)]
            assert publisher.pending == 5
            with timed(0.9 * pace, 1.5 * pace):
                futures.append(publisher.publish(silent))
            assert all(future.done() for future in futures[:5])
            assert publisher.pending == 1
            eventually(lambda: publisher.pending == 0, 10 * pace)
            return publisher, futures

        publisher, futures = at_some_pace(attempt)
        publisher.publish(silent).add_done_callback(lambda _: None)
        assert publisher.pending == 1
        for future in futures:
            assert isinstance(future.exception(), jetsync.PublishOutcomeUnknownError)
        publisher.close()

    def test_a_window_of_one(self, js, stream):
        """
        A window may hold one message.
        """
        with js.publisher(window=1) as publisher:
            futures = [publisher.publish(f"{stream.name}.A", b"%d" % n) for n in range(50)]
        assert [future.result().sequence for future in futures] == list(range(1, 51))

    def test_a_message_that_was_refused_takes_no_place(self, js, stream):
        """
        A message that cannot be sent raises in publish and does not count.
        """
        subject = f"{stream.name}.A"
        with js.publisher(window=2) as publisher:
            for _ in range(5):
                with pytest.raises(jetsync.InvalidSubjectError):
                    publisher.publish("a b")
                with pytest.raises(jetsync.InvalidTypeError):
                    publisher.publish(subject, 5)
                with pytest.raises(jetsync.InvalidTtlError):
                    publisher.publish(subject, ttl=0)
            assert publisher.publish(subject).result(20).sequence == 1
            assert publisher.statistics().published == 1


class TestFuture:
    def test_a_message_that_is_stored(self, js, stream):
        """
        The future returns the ack of its message.
        """
        subject = f"{stream.name}.A"
        with js.publisher() as publisher:
            future = publisher.publish(subject, "text", headers={"A": "1"}, msg_id="one")
            ack = future.result(timeout=20)
            again = publisher.publish(subject, "text", msg_id="one").result(20)
        assert (ack.stream, ack.sequence, ack.duplicate) == (stream.name, 1, False)
        assert (again.sequence, again.duplicate) == (1, True)
        assert future.done()
        assert future.exception() is None
        assert repr(future) == f"<PublishFuture {subject} stored>"
        assert future.message == jetsync.OutboundMessage(subject, "text", {"A": "1"}, "one")

    def test_a_message_that_is_refused(self, js, stream):
        """
        Each call of result raises the error again, in any thread.
        """
        subject = f"{stream.name}.A"
        with js.publisher() as publisher:
            future = publisher.publish(subject, expect=jetsync.Expect(last_sequence=7))
            errors = []
            for _ in range(2):
                with pytest.raises(jetsync.WrongLastSequenceError) as caught:
                    future.result(20)
                errors.append(caught.value)
            assert errors[0] is not errors[1]
            assert isinstance(future.exception(), jetsync.WrongLastSequenceError)
            assert repr(future) == f"<PublishFuture {subject} failed>"

    def test_waiting_in_steps(self, js, silent, monkeypatch):
        """
        Each step of a wait is short. A signal that arrives just before a step is handled after it.
        """
        steps, wait, me = [], Signal.wait, threading.get_ident()

        def record(signal, timeout):
            if threading.get_ident() == me:
                steps.append(timeout)
            return wait(signal, timeout)

        publisher = js.publisher(ack_timeout=1.5)
        monkeypatch.setattr(Signal, "wait", record)
        assert isinstance(publisher.publish(silent).exception(), jetsync.PublishOutcomeUnknownError)
        assert len(steps) > 1
        assert max(steps) <= SIGNAL_CHECK
        publisher.close()

    def test_waiting_has_an_end(self, js, silent):
        """
        The message stays in flight when a wait times out.
        """
        publisher = js.publisher(ack_timeout=0.5)
        future = publisher.publish(silent)
        with timed(0.05, 0.3), pytest.raises(jetsync.WaitTimeoutError):
            future.result(timeout=0.05)
        with pytest.raises(TimeoutError):
            future.exception(timeout=0)
        with pytest.raises(jetsync.InvalidTypeError):
            future.result(timeout="1")
        assert not future.done()
        assert repr(future) == f"<PublishFuture {silent} pending>"
        with pytest.raises(jetsync.PublishOutcomeUnknownError):
            future.result()
        publisher.close()

    def test_many_threads_wait_for_one_message(self, fragile, paused, pool, unique):
        """
        All threads get the same ack.
        """
        js = fragile.jetstream()
        memory_stream(js, unique)
        with js.publisher() as publisher:
            with paused():
                future = publisher.publish(f"{unique}.A")
                waiting = [pool.submit(future.result, 20) for _ in range(6)]
                blocked(pool, 6)
                assert not any(wait.done() for wait in waiting)
            assert {wait.result(20).sequence for wait in waiting} == {1}
        js.delete_stream(unique)

    def test_polling_leaves_no_signals(self, fragile, paused, unique):
        """
        A thousand calls that do not wait leave no signals in the future.
        """
        js = fragile.jetstream()
        memory_stream(js, unique)

        def waiters():
            return sum(type(each).__name__ == "Signal" for each in gc.get_objects())

        with js.publisher() as publisher, paused():
            future = publisher.publish(f"{unique}.A")
            before = waiters()
            for _ in range(1000):
                with pytest.raises(jetsync.WaitTimeoutError):
                    future.result(timeout=0)
                publisher.flush(timeout=0)
            assert waiters() < before + 100
        js.delete_stream(unique)

    def test_callbacks_run_in_the_publishers_thread(self, fragile, paused, unique):
        """
        Callbacks run in the order in which they were added, or at once if the message has
        ended.
        """
        js = fragile.jetstream()
        memory_stream(js, unique)
        told = []

        def callback(name):
            return lambda future: told.append((name, future, threading.current_thread().name))

        with js.publisher() as publisher:
            with paused():
                future = publisher.publish(f"{unique}.A")
                future.add_done_callback(callback("first"))
                future.add_done_callback(callback("second"))
                assert told == []
            publisher.flush()
        assert told == [("first", future, WORKER), ("second", future, WORKER)]
        future.add_done_callback(callback("late"))
        assert told[2:] == [("late", future, threading.current_thread().name)]
        js.delete_stream(unique)

    def test_a_callback_that_raises_is_logged_and_others_run(self, fragile, paused, unique, caplog):
        """
        The error is logged and counted, and other callbacks still run, also after sys.exit.
        """
        js = fragile.jetstream()
        memory_stream(js, unique)
        told = []

        def fail(error):
            raise error

        with js.publisher() as publisher, caplog.at_level(logging.ERROR, "jetsync"):
            with paused():
                future = publisher.publish(f"{unique}.A")
                future.add_done_callback(lambda _: fail(LookupError("no use")))
                future.add_done_callback(lambda _: fail(SystemExit(1)))
                future.add_done_callback(told.append)
            assert publisher.flush(timeout=20) == 0
            assert publisher.publish(f"{unique}.A").result(20).sequence == 2
            assert eventually(lambda: publisher.statistics().report_errors == 2)
        assert told == [future]
        assert [record.event for record in caplog.records] == ["callback_failed"] * 2
        js.delete_stream(unique)

    def test_a_callback_may_publish_and_never_waits_for_itself(self, js, stream):
        """
        A call that would wait for the publisher's own thread raises or returns at once.
        """
        subject = f"{stream.name}.A"
        seen = {}
        over = threading.Event()

        def chain(report):
            # A callback of a future that is done already would run in the thread that adds it.
            if report.message.data != b"first":
                return
            try:
                second = publisher.publish(subject, b"second")
                seen["second"] = second
                for name, call in (
                    ("result", second.result),
                    ("publish", lambda: publisher.publish(subject, b"third")),
                ):
                    with pytest.raises(jetsync.WaitTimeoutError) as caught:
                        call()
                    seen[name] = str(caught.value)
                seen["flush"] = publisher.flush()
            finally:
                over.set()

        with js.publisher(window=1, on_report=chain) as publisher:
            publisher.publish(subject, b"first")
            assert over.wait(10)
        assert "only this thread" in seen["result"]
        assert "only this thread" in seen["publish"]
        assert seen["flush"] == 1
        assert seen["second"].result(20).sequence == 2
        assert payloads(stream) == [b"first", b"second"]

    def test_a_callback_may_close(self, js, stream):
        """
        The publisher then ends by itself after the messages in flight.
        """
        publisher = js.publisher()
        futures = [publisher.publish(f"{stream.name}.A") for _ in range(100)]
        futures[0].add_done_callback(lambda _: publisher.close())
        assert [future.result(20).sequence for future in futures] == list(range(1, 101))
        eventually(lambda: workers() == 0)
        with pytest.raises(jetsync.HandleClosedError):
            publisher.publish(f"{stream.name}.A")


class TestReports:
    def test_to_a_list_that_can_be_called(self, js, stream):
        """
        The function of the reports may be an object that is false while it is empty.
        """

        class Reports(list):
            __call__ = list.append

        reports = Reports()
        with js.publisher(on_report=reports) as publisher:
            publisher.publish(f"{stream.name}.A")
        assert [report.ack.sequence for report in reports] == [1]

    def test_order_and_thread(self, js, stream, pool):
        """
        Reports run in the publisher's thread, in the order in which each thread published.
        """
        reports = []

        def on_report(report):
            reports.append((report, threading.current_thread().name))

        def publish(name):
            for number in range(2000):
                publisher.publish(f"{stream.name}.{name}", b"%d" % number)

        with js.publisher(window=500, on_report=on_report) as publisher:
            for publishing in [pool.submit(publish, name) for name in "abc"]:
                publishing.result(60)
            assert publisher.flush() == 0
        assert {thread for _, thread in reports} == {WORKER}
        assert all(report.error is None for report, _ in reports)
        for name in "abc":
            subject = f"{stream.name}.{name}"
            told = [report for report, _ in reports if report.message.subject == subject]
            assert [report.message.data for report in told] == [b"%d" % n for n in range(2000)]
            sequences = [report.ack.sequence for report in told]
            assert sequences == sorted(sequences)

    def test_a_report_that_raises(self, js, stream, caplog):
        """
        The error is logged and counted, and the next reports still run.
        """
        told = []

        def on_report(report):
            told.append(report.ack.sequence)
            if len(told) % 2:
                raise LookupError("no use for it")

        with (
            caplog.at_level(logging.ERROR, "jetsync"),
            js.publisher(on_report=on_report) as publisher,
        ):
            for _ in range(10):
                publisher.publish(f"{stream.name}.A")
            publisher.close()
            assert publisher.statistics().report_errors == 5
        assert told == list(range(1, 11))
        assert len(caplog.records) == 5
        assert caplog.records[0].exc_info[0] is LookupError

    def test_an_ack_that_does_not_come(self, js, silent):
        """
        There is one report with a timeout, and the future fails.
        """
        reports = []
        with (
            js.publisher(ack_timeout=0.05, on_report=reports.append) as publisher,
            timed(0.04, 0.3),
        ):
            error = publisher.publish(silent, b"x", msg_id="id-1").exception()
        assert isinstance(error, jetsync.PublishOutcomeUnknownError)
        assert isinstance(error, TimeoutError)
        assert (error.subject, error.msg_id) == (silent, "id-1")
        (report,) = reports
        assert (report.message.data, report.ack, report.error) == (b"x", None, error)

    def test_a_slow_report_does_not_delay_messages(self, js, stream):
        """
        Messages are sent while on_report runs, including the last one.
        """
        inside, proceed = threading.Event(), threading.Event()

        def on_report(_):
            inside.set()
            assert proceed.wait(20)

        with js.publisher(on_report=on_report) as publisher:
            publisher.publish(f"{stream.name}.A")
            assert inside.wait(10)
            for _ in range(9):
                publisher.publish(f"{stream.name}.A")
            eventually(lambda: stream.info().state.messages == 10)
            proceed.set()


class TestRetry:
    def test_until_the_stream_exists(self, js, unique):
        """
        A message that no stream takes is sent again until one does.
        """
        with (
            js.publisher(window=1, retries=1000, retry_wait=0.1) as publisher,
            ThreadPoolExecutor(1) as pool,
        ):
            future = publisher.publish(f"{unique}.A")

            def make():
                # Some attempts fail first.
                time.sleep(0.3)
                memory_stream(js, unique)

            making = pool.submit(make)
            with timed(0.0, 1.0):
                assert future.result(20).sequence == 1
            making.result(20)
        js.delete_stream(unique)

    @pytest.mark.parametrize(
        ("retries", "least", "most"), [(0, 0.0, 0.3), (2, 0.2, 0.6)], ids=["none", "two"]
    )
    def test_until_they_are_used_up(self, js, unique, retries, least, most):
        """
        The message then fails, and the error has the number of attempts.
        """
        with js.publisher(window=1, retries=retries, retry_wait=0.1) as publisher:
            with timed(least, most):
                error = publisher.publish(unique).exception()
            assert isinstance(error, jetsync.NoStreamResponseError)
            assert error.attempts == retries + 1
            assert publisher.pending == 0

    def test_other_messages_continue_meanwhile(self, js, stream, unique):
        """
        Messages that wait for their retry do not delay other messages.
        """

        def attempt(pace):
            last = stream.info().state.last_seq
            with js.publisher(retries=1, retry_wait=0.5 * pace) as publisher:
                lost = [publisher.publish(f"{unique}-nowhere") for _ in range(10)]
                with timed(0.0, 0.4 * pace):
                    stored = [publisher.publish(f"{stream.name}.A") for _ in range(10)]
                    sequences = [future.result(20).sequence for future in stored]
                assert sequences == list(range(last + 1, last + 11))
                still_waiting = publisher.pending
                errors = [future.exception(20) for future in lost]
            assert still_waiting == 10
            assert {type(error) for error in errors} == {jetsync.NoStreamResponseError}

        at_some_pace(attempt)

    def test_a_plugin_decides_without_a_lock(self, connected, unique):
        """
        The plugin runs in the publisher's thread and may use the publisher.
        """
        asked = []

        class Retry:
            @hookimpl
            def jetsync_retry(self, operation, error, attempt):
                thread = threading.current_thread().name
                asked.append((operation.subject, attempt, thread, publisher.statistics().pending))
                return 0.01 if attempt < 3 else None

        with connected(Retry).publisher(retries=9) as publisher:
            assert isinstance(
                publisher.publish(unique).exception(20), jetsync.NoStreamResponseError
            )
        assert asked == [(unique, attempt, WORKER, 1) for attempt in (1, 2, 3)]

    def test_a_plugin_that_fails(self, connected, unique):
        """
        Its error is the outcome of the message.
        """

        class Retry:
            @hookimpl
            def jetsync_retry(self):
                raise LookupError("no idea")

        with connected(Retry).publisher() as publisher:
            error = publisher.publish(unique).exception(20)
        assert isinstance(error, jetsync.PluginError)
        assert isinstance(error.__cause__, LookupError)


class TestConnection:
    def test_a_restart_fails_messages_in_flight(self, victim, fragile, unique):
        """
        All futures end when the connection is lost, and later messages are stored.
        """
        js = fragile.jetstream()
        js.create_stream(unique, subjects=[f"{unique}.>"])
        silent = js.create_stream(f"{unique}-N", subjects=[f"{unique}-N.>"], no_ack=True)
        with js.publisher(ack_timeout=30) as publisher:
            futures = [publisher.publish(f"{unique}-N.A", msg_id=f"{n}") for n in range(5)]
            assert publisher.pending == 5
            # A server that is about to stop may say that it has no stream, which allows a retry.
            eventually(lambda: silent.info().state.messages == 5)
            victim.restart()
            eventually(lambda: fragile.is_connected)
            for number, future in enumerate(futures):
                error = future.exception(20)
                assert isinstance(error, jetsync.PublishOutcomeUnknownError)
                assert "connection was lost" in str(error)
                assert error.msg_id == str(number)
            assert publisher.flush() == 0
            assert publisher.pending == 0
            eventually(lambda: js.stream(unique).info().config.name == unique)
            assert publisher.publish(f"{unique}.A").result(30).sequence == 1
        js.delete_stream(unique)
        js.delete_stream(f"{unique}-N")

    def test_a_cut_in_a_stream_of_messages(self, nats_server, js, stream):
        """
        The connection is cut repeatedly, and each future has the outcome of its message.
        """
        subject = f"{stream.name}.A"
        with (
            CutProxy(nats_server.url) as proxy,
            jetsync.connect(proxy.url, reconnect_wait=0.02) as client,
            client.jetstream().publisher(window=300, ack_timeout=10) as publisher,
        ):
            futures = []
            for number in range(6000):
                if number % 1000 == 500:
                    proxy.cut_after(to_server=777)
                futures.append(publisher.publish(subject, b"%d" % number))
            assert publisher.flush(timeout=30) == 0
            assert proxy.statistics().cuts >= 3
            outcomes = [future.exception() for future in futures]
        stored = payloads(stream)
        assert len(stored) == len(set(stored))
        acked = {
            future.message.data
            for future, error in zip(futures, outcomes, strict=True)
            if error is None
        }
        assert acked <= set(stored)
        assert len(acked) >= 6000 - 6 * 300
        for error in filter(None, outcomes):
            assert isinstance(
                error, (jetsync.PublishOutcomeUnknownError, jetsync.DisconnectedError)
            )
        unsent = {
            future.message.data
            for future, error in zip(futures, outcomes, strict=True)
            if isinstance(error, jetsync.DisconnectedError)
        }
        assert not unsent & set(stored)

    def test_publish_raises_offline_and_sends_nothing_later(self, victim, fragile, pool, unique):
        """
        `publish` raises after ack_timeout, and its message is not sent later.
        """
        js = fragile.jetstream()
        stream = js.create_stream(unique, subjects=[f"{unique}.>"])
        silent = js.create_stream(f"{unique}-N", subjects=[f"{unique}-N.>"], no_ack=True)
        publisher = js.publisher(ack_timeout=8)
        flying = publisher.publish(f"{unique}-N.A")
        eventually(lambda: silent.info().state.messages == 1)
        victim.stop()
        try:
            eventually(lambda: not fragile.is_connected)
            begin = time.monotonic()
            waiting = pool.submit(publisher.publish, f"{unique}.A", b"never")
            with timed(0.0, 2.0):
                assert isinstance(flying.exception(20), jetsync.PublishOutcomeUnknownError)
            assert not waiting.done()
            with timed(0.0, 9.0), pytest.raises(jetsync.DisconnectedError):
                waiting.result(30)
            assert time.monotonic() - begin >= 8.0
            assert publisher.pending == 0
        finally:
            victim.start()
        eventually(lambda: fragile.is_connected)
        assert publisher.publish(f"{unique}.A", b"later").result(30).sequence == 1
        assert payloads(stream) == [b"later"]
        publisher.close()
        js.delete_stream(unique)
        js.delete_stream(f"{unique}-N")

    def test_a_publish_waits_for_the_connection(self, victim, fragile, pool, unique):
        """
        A message is sent if the connection returns in time. Other messages end meanwhile.
        """
        js = fragile.jetstream()
        js.create_stream(unique, subjects=[f"{unique}.>"])
        with js.publisher(ack_timeout=20) as publisher:
            publisher.publish(f"{unique}.A").result(20)
            victim.stop()
            try:
                eventually(lambda: not fragile.is_connected)
                waiting = pool.submit(publisher.publish, f"{unique}.A")
                blocked(pool)
                assert not waiting.done()
                assert publisher.flush(timeout=20) == 0
            finally:
                victim.start()
            assert waiting.result(20).result(20).sequence == 2
        js.delete_stream(unique)

    def test_no_publisher_without_a_connection(self, victim, fragile):
        """
        Creating it raises and leaves no subscription.
        """
        before = fragile.statistics().subscriptions
        victim.stop()
        try:
            eventually(lambda: not fragile.is_connected)
            with timed(0.1, 1.0), pytest.raises(jetsync.DisconnectedError):
                fragile.jetstream().publisher(ack_timeout=0.2)
        finally:
            victim.start()
        eventually(lambda: fragile.is_connected)
        assert fragile.statistics().subscriptions == before

    def test_all_futures_fail_if_the_client_is_closed_meanwhile(self, nats_server, silent, pool):
        """
        All futures fail by the timeout of close. A thread that waits for room gets an error
        at once.
        """
        client = jetsync.connect(nats_server.url)
        publisher = client.jetstream().publisher(window=10, ack_timeout=60)
        futures = [publisher.publish(silent) for _ in range(10)]
        waiting = pool.submit(publisher.publish, silent)
        blocked(pool)
        with timed(0.5, 3.0):
            client.close(timeout=0.5)
            errors = [future.exception(20) for future in futures]
            with pytest.raises(jetsync.ConnectionClosedError):
                waiting.result(20)
        assert {type(error) for error in errors} == {jetsync.PublishOutcomeUnknownError}
        assert "closed" in str(errors[0])
        with pytest.raises(jetsync.ConnectionClosedError):
            publisher.publish(silent)
        with pytest.raises(jetsync.ConnectionClosedError):
            publisher.flush()
        publisher.close()

    def test_a_refused_subject(self, unique):
        """
        The server's permission error is the outcome of the messages to that subject only.
        """
        user = {
            "user": "u",
            "password": "p",
            "permissions": {"publish": {"deny": ["secret.>"]}},
        }
        with (
            DevServer(config={"authorization": {"timeout": 30, "users": [user]}}) as server,
            jetsync.connect(server.url, user="u", password="p") as client,
        ):
            js = client.jetstream()
            memory_stream(js, unique)
            with js.publisher(ack_timeout=20) as publisher:
                futures = []
                for _ in range(20):
                    futures += [
                        publisher.publish(f"{unique}.A"),
                        publisher.publish("secret.A"),
                    ]
                with timed(0.0, 5.0):
                    errors = [future.exception(20) for future in futures]
                assert errors[::2] == [None] * 20
                for error in errors[1::2]:
                    assert isinstance(error, jetsync.PermissionDeniedError)
                    assert (error.subject, error.operation) == ("secret.A", "publish")

    def test_a_denied_inbox(self):
        """
        If the server refuses the inbox, messages end as unknown and publish raises.
        """
        user = {
            "user": "u",
            "password": "p",
            "permissions": {"subscribe": {"deny": ["_INBOX.>"]}},
        }
        with (
            DevServer(config={"authorization": {"timeout": 30, "users": [user]}}) as server,
            jetsync.connect(server.url, user="u", password="p") as client,
        ):
            publisher = client.jetstream().publisher(ack_timeout=20)
            # The publish raises its own error if the refusal arrived before the message was sent.
            expected = (jetsync.PublishError, jetsync.PermissionDeniedError)
            with timed(0.0, 5.0), pytest.raises(expected):
                publisher.publish("any.A").result(20)
            eventually(lambda: workers() == 0)
            with pytest.raises(jetsync.PermissionDeniedError):
                publisher.publish("any.A")
            publisher.close()


class TestFlush:
    def test_it_says_how_many_are_open(self, fragile, paused, unique):
        """
        `flush` returns the number of messages that have not ended by its timeout.
        """
        js = fragile.jetstream()
        memory_stream(js, unique)
        with js.publisher(ack_timeout=20) as publisher:
            futures = [publisher.publish(f"{unique}.A") for _ in range(500)]
            with paused():
                futures += [publisher.publish(f"{unique}.A") for _ in range(500)]
                with timed(0.04, 0.3):
                    still = publisher.flush(timeout=0.05)
                assert still > 0
                assert still + sum(future.done() for future in futures) == 1000
                assert publisher.flush(timeout=0) == still
            assert publisher.flush() == 0
            assert all(future.done() for future in futures)
        js.delete_stream(unique)

    def test_it_does_not_wait_for_later_messages(self, js, stream, unique):
        """
        `flush` does not wait for messages that other threads publish meanwhile.
        """
        over = threading.Event()

        def publish():
            while not over.is_set():
                publisher.publish(f"{stream.name}.A")

        with js.publisher(window=100) as publisher, ThreadPoolExecutor(1) as pool:
            publishing = pool.submit(publish)
            try:
                for _ in range(10):
                    with timed(0.0, 5.0):
                        assert publisher.flush() == 0
            finally:
                over.set()
            publishing.result(20)

    def test_messages_of_many_threads(self, js, stream, pool):
        """
        Each message gets its own ack.
        """

        def publish(name):
            ended = []
            for number in range(300):
                payload = b"%d/%d" % (name, number)
                future = publisher.publish(f"{stream.name}.{name}", payload)
                if number % 50 == 0:
                    future.result(30)
                ended.append((payload, future))
            return ended

        with js.publisher(window=64) as publisher:
            running = [pool.submit(publish, name) for name in range(8)]
            futures = [entry for publishing in running for entry in publishing.result(60)]
            assert publisher.flush() == 0
        stored = payloads(stream)
        assert len(stored) == 2400
        for payload, future in futures:
            assert stored[future.result().sequence - 1] == payload
        for name in range(8):
            own = [payload for payload in stored if payload.startswith(b"%d/" % name)]
            assert own == [b"%d/%d" % (name, number) for number in range(300)]

    def test_each_message_is_counted_once_by_its_outcome(self, js, stream, unique):
        """
        Each message is counted once, by its outcome.
        """
        subject = f"{stream.name}.A"
        with js.publisher(window=50, retries=0) as publisher:
            assert repr(publisher) == "<Publisher open pending=0 of 50>"
            publisher.publish(subject, msg_id="1")
            publisher.publish(subject, msg_id="1")
            publisher.publish(subject)
            publisher.publish(subject, expect=jetsync.Expect(stream="OTHER")).exception(20)
            publisher.publish(f"{unique}-nowhere").exception(20)
            assert publisher.flush() == 0
            assert publisher.statistics() == jetsync.PublisherStatistics(
                published=5, acknowledged=3, duplicates=1, failed=2, pending=0, report_errors=0
            )
        assert repr(publisher) == "<Publisher closed pending=0 of 50>"

    def test_acks_of_several_streams(self, js, stream, unique):
        """
        Each ack names the stream that stored the message.
        """
        other = f"{unique}-other"
        memory_stream(js, other)
        names = [stream.name, other, other, stream.name] * 100
        with js.publisher() as publisher:
            futures = [publisher.publish(f"{name}.A") for name in names]
            assert [future.result(30).stream for future in futures] == names
        js.delete_stream(other)


class TestClose:
    def test_leaving_waits_for_all(self, js, stream):
        """
        All messages are stored after the block.
        """
        with js.publisher() as publisher:
            futures = [publisher.publish(f"{stream.name}.A") for _ in range(3000)]
        assert all(future.done() for future in futures)
        assert stream.info().state.messages == 3000

    def test_leaving_raises_unread_failures(self, js, stream):
        """
        The report lists failed messages, except for those whose futures were read.
        """
        subject = f"{stream.name}.A"
        wrong = jetsync.Expect(stream="OTHER")

        def body():
            with js.publisher() as publisher:
                publisher.publish(subject)
                publisher.publish(subject, b"asked", expect=wrong).exception(20)
                publisher.publish(subject, b"told", expect=wrong).add_done_callback(lambda _: None)
                publisher.publish(subject, b"unseen", expect=wrong)
                publisher.publish(subject)

        with pytest.raises(jetsync.PublishManyError) as caught:
            body()
        report = caught.value.report
        assert (report.count, report.first_sequence, report.last_sequence) == (2, 1, 2)
        (failure,) = report.failures
        assert (failure.index, failure.message.data) == (3, b"unseen")
        assert isinstance(failure.error, jetsync.WrongStreamError)

    def test_reported_failures_are_not_raised(self, js, stream):
        """
        Failures that on_report has received are not raised again.
        """
        reports = []
        with js.publisher(on_report=reports.append) as publisher:
            publisher.publish(f"{stream.name}.A", expect=jetsync.Expect(stream="OTHER"))
        assert isinstance(reports[0].error, jetsync.WrongStreamError)

    def test_an_exception_of_the_body_is_the_callers(self, js, stream):
        """
        Failed messages do not hide it, and the published messages have ended.
        """
        futures = []

        def body():
            with js.publisher() as publisher:
                futures.append(publisher.publish(f"{stream.name}.A"))
                publisher.publish(f"{stream.name}.A", expect=jetsync.Expect(stream="OTHER"))
                raise LookupError("mine")

        with pytest.raises(LookupError, match="mine"):
            body()
        assert futures[0].done()

    def test_a_closed_publisher(self, js, stream):
        """
        `publish` raises. flush and close do nothing.
        """
        publisher = js.publisher()
        publisher.publish(f"{stream.name}.A")
        publisher.close()
        publisher.close(timeout=1)
        with pytest.raises(jetsync.HandleClosedError, match="publisher is closed"):
            publisher.publish(f"{stream.name}.A")
        assert publisher.flush() == 0
        assert stream.info().state.messages == 1

    def test_a_timeout(self, js, silent, pool):
        """
        `close` returns by its timeout, open messages are unknown, and waiting threads get an
        error.
        """
        publisher = js.publisher(window=10, ack_timeout=60)
        futures = [publisher.publish(silent, msg_id=f"{n}") for n in range(10)]
        waiting = pool.submit(publisher.publish, silent)
        with timed(0.15, 1.5), pytest.raises(jetsync.PublishManyError) as caught:
            publisher.close(timeout=0.2)
        with pytest.raises(jetsync.HandleClosedError):
            waiting.result(20)
        assert len(caught.value.report.failures) == 10
        for future in futures:
            error = future.exception(0)
            assert isinstance(error, jetsync.PublishOutcomeUnknownError)
            assert "closed" in str(error)
        assert publisher.pending == 0

    def test_a_timeout_while_messages_wait_for_another_try(self, client, js, unique):
        """
        Messages that wait for their retry fail as not stored.
        """
        publisher = js.publisher(retries=5, retry_wait=30)
        before = client.statistics().bytes_in
        future = publisher.publish(unique)
        eventually(lambda: client.statistics().bytes_in > before)
        with timed(0.0, 1.5), pytest.raises(jetsync.PublishManyError):
            publisher.close(timeout=0.1)
        assert isinstance(future.exception(0), jetsync.NoStreamResponseError)

    def test_closing_takes_no_more_messages(self, js, silent, pool):
        """
        Other threads cannot publish while the publisher closes.
        """
        publisher = js.publisher(ack_timeout=0.5)
        publisher.publish(silent).add_done_callback(lambda _: None)
        closing = pool.submit(publisher.close)
        eventually(lambda: "closed" in repr(publisher))
        with pytest.raises(jetsync.HandleClosedError):
            publisher.publish(silent)
        closing.result(20)

    def test_its_subscription_ends_with_it(self, client, js, stream):
        """
        A closed publisher leaves no subscription.
        """
        before = client.statistics().subscriptions
        for _ in range(3):
            with js.publisher() as publisher:
                publisher.publish(f"{stream.name}.A")
                assert client.statistics().subscriptions == before + 1
        assert client.statistics().subscriptions == before


class Wrapper:
    """
    Record where each wrapper was entered and left.
    """

    def __init__(self):
        self.entered = []
        self.left = []

    @hookimpl(wrapper=True)
    def jetsync_publish(self, operation):
        self.entered.append((operation, threading.current_thread().name))
        result = yield
        self.left.append((result, threading.current_thread().name))


class TestHooks:
    def test_the_future_has_the_message_that_the_plugin_prepared(self, connected, stream):
        """
        The future has the message that was sent. A veto raises, and nothing is sent.
        """

        class Guard:
            @hookimpl
            def jetsync_prepare_message(self, message):
                if message.data == b"refuse":
                    raise ValueError("refused")
                return attrs.evolve(message, headers={"Seen": "yes"})

        with connected(Guard).publisher() as publisher:
            future = publisher.publish(f"{stream.name}.A", b"x")
            with pytest.raises(jetsync.PluginError) as caught:
                publisher.publish(f"{stream.name}.A", b"refuse")
            assert isinstance(caught.value.__cause__, ValueError)
            assert future.result(20).sequence == 1
            assert publisher.statistics().published == 1
        assert future.message.headers == {"Seen": "yes"}
        assert stream.get_message(1).headers["Seen"] == "yes"
        assert stream.info().state.messages == 1

    def test_a_publisher_is_wrapped_once(self, connected, stream):
        """
        The thread that creates it enters the wrapper. The publisher's thread leaves it, with the
        final statistics, before ``close`` returns.
        """
        wrapper = Wrapper()
        with connected(wrapper).publisher(window=10) as publisher:
            ((operation, thread),) = wrapper.entered
            for _ in range(25):
                publisher.publish(f"{stream.name}.A")
            publisher.flush()
            publisher.publish(f"{stream.name}.A")
            assert wrapper.left == []
        assert len(wrapper.entered) == 1
        assert wrapper.left == [(publisher.statistics(), WORKER)]
        assert publisher.statistics().acknowledged == 26
        assert thread == threading.current_thread().name
        assert (operation.name, operation.window) == ("publisher", 10)
        assert (operation.messages, operation.subject) == (None, None)

    def test_without_messages_the_wrapper_is_entered_and_left(self, connected):
        """
        The wrapper is entered when the publisher is created, not at its first message.
        """
        wrapper = Wrapper()
        with connected(wrapper).publisher():
            pass
        ((statistics, _),) = wrapper.left
        assert statistics.published == 0

    def test_events_count_the_messages_before_the_wrapper_ends(self, connected, stream, pool):
        """
        Each message that was accepted is counted once, and those of all threads together.
        """
        order = []

        class Order:
            @hookimpl(wrapper=True)
            def jetsync_publish(self):
                yield
                order.append("end")

            @hookimpl
            def jetsync_status(self, event):
                assert threading.current_thread().name == WORKER
                order.append(event)

        subject = f"{stream.name}.A"

        def publish():
            for number in range(100):
                if number % 10 == 0:
                    with pytest.raises(jetsync.InvalidSubjectError):
                        publisher.publish("a b")
                elif number % 10 == 1:
                    expect = jetsync.Expect(last_subject_sequence=70_000)
                    future = publisher.publish(subject, expect=expect)
                    assert isinstance(future.exception(20), jetsync.WrongLastSequenceError)
                else:
                    publisher.publish(subject)

        with connected(Order).publisher(window=8) as publisher:
            for publishing in [pool.submit(publish) for _ in range(4)]:
                publishing.result(60)
        *counts, end = order
        assert end == "end"
        assert sum(event.acknowledged for event in counts) == 320
        assert sum(event.failed for event in counts) == 40
        assert {event.stream for event in counts} == {stream.name}
        assert {type(event.error) for event in counts} <= {
            jetsync.WrongLastSequenceError,
            type(None),
        }
        assert {event.publish.name for event in counts} == {"publisher"}

    def test_events_count_messages_that_close_gives_up(self, connected, js, unique):
        """
        The outcome of messages that are pending after the timeout of ``close`` is unknown.
        """
        memory_stream(js, unique, no_ack=True)
        recorder = HookRecorder("jetsync_status")
        publisher = connected(recorder).publisher()
        for _ in range(3):
            publisher.publish(f"{unique}.a")
        with pytest.raises(jetsync.PublishManyError):
            publisher.close(timeout=0.1)
        events = [call["event"] for call in recorder.wait_for("jetsync_status", timeout=20)]
        assert [(event.acknowledged, event.failed, event.unknown) for event in events] == [
            (0, 3, 3)
        ]

    def test_a_message_is_prepared_inside_the_wrapper(self, connected, stream):
        """
        A plugin that opens a span in the wrapper finds it open.
        """
        order = []

        class Around:
            @hookimpl(wrapper=True)
            def jetsync_publish(self):
                order.append("enter")
                yield
                order.append("leave")

            @hookimpl
            def jetsync_prepare_message(self, message):
                order.append(message.data)

        with connected(Around).publisher(window=2) as publisher:
            for number in range(4):
                publisher.publish(f"{stream.name}.A", b"%d" % number).result(20)
        assert order == ["enter", b"0", b"1", b"2", b"3", "leave"]

    def test_a_wrapper_that_fails_to_begin(self, connected, stream):
        """
        The call that creates the publisher raises, and the next call enters the wrapper again.
        """
        tries = itertools.count()

        class Around:
            @hookimpl(wrapper=True)
            def jetsync_publish(self):
                if next(tries) == 0:
                    raise LookupError("not yet")
                yield

        js = connected(Around)
        with pytest.raises(jetsync.PluginError) as caught:
            js.publisher()
        assert isinstance(caught.value.__cause__, LookupError)
        with js.publisher() as publisher:
            assert publisher.publish(f"{stream.name}.A").result(20).sequence == 1

    def test_a_wrapper_that_fails_at_its_end(self, connected, stream, caplog):
        """
        No call can raise such errors. They are logged once per kind, and counted.
        """

        class Around:
            @hookimpl(wrapper=True)
            def jetsync_publish(self):
                yield
                raise LookupError("too late")

        js = connected(Around)
        with caplog.at_level(logging.ERROR, "jetsync"):
            for _ in range(2):
                with js.publisher() as publisher:
                    publisher.publish(f"{stream.name}.A")
                assert publisher.statistics().report_errors == 1
        assert [record.exc_info[0] for record in caplog.records] == [jetsync.PluginError]
