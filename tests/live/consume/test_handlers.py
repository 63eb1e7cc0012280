"""
Consuming with a handler on real servers: its threads, its errors, its acknowledgements.
"""

from __future__ import annotations

import collections
import contextlib
import gc
import logging
import subprocess
import sys
import threading
import time

import pytest

import jetsync
from helpers.waiting import at_some_pace, eventually, holds, is_led, timed
from jetsync.testing import HookRecorder

# Handlers raise here, and jetsync reports that as Python does for threads.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")


def fill(js, stream, count, start=0, subjects=("A",)):
    """
    Publish *count* messages with their numbers as payload, on one subject after the other.
    """
    js.publish_many(
        (f"{stream.name}.{subjects[number % len(subjects)]}", b"%d" % number)
        for number in range(start, start + count)
    )


def threads():
    """
    How many threads call handlers.
    """
    return sum(thread.name.startswith("jetsync-consume") for thread in threading.enumerate())


class Log:
    """
    A handler that records its messages, and may call another handler with them.
    """

    def __init__(self, act=None):
        self.act = act
        self.numbers = []
        self.deliveries = []

    def __call__(self, message):
        self.deliveries.append(message.metadata.delivered)
        self.numbers.append(int(message.data))
        if self.act is not None:
            self.act(message)

    def wait(self, count):
        eventually(lambda: len(self.numbers) >= count)
        return self.numbers


@pytest.fixture
def observed(nats_server, stream, worker):
    """
    A recorder of events, and a consumer of the client with this recorder.
    """
    recorder = HookRecorder("jetsync_status")
    with jetsync.connect(nats_server.url, plugins=[recorder]) as client:
        yield recorder, client.jetstream().consumer(stream.name, "worker")


def errors_in(recorder):
    """
    The handler errors that a recorder saw.
    """
    events = [call["event"] for call in recorder.of("jetsync_status")]
    return [event for event in events if isinstance(event, jetsync.HandlerErrorEvent)]


class TestThreads:
    def test_one_thread_handles_all_messages_in_order(self, js, stream, worker):
        """
        One thread handles all messages in order, one at a time.
        """
        log = Log(lambda message: message.ack())
        fill(js, stream, 50)
        running = worker.consume(log)
        assert log.wait(50) == list(range(50))
        fill(js, stream, 50, start=50)
        assert log.wait(100) == list(range(100))
        running.close()
        assert running.wait(timeout=20)
        assert (running.closed, running.error) == (True, None)
        eventually(lambda: threads() == 0)

    def test_four_threads_handle_every_message_once(self, js, stream, worker):
        """
        Four threads handle every message once, at the same time.
        """
        together = threading.Barrier(4, timeout=30)

        def act(message):
            if int(message.data) < 4:
                together.wait()
            message.ack()

        log = Log(act)
        fill(js, stream, 1000)
        running = worker.consume(log, threads=4, stop_after=1000, max_messages=50)
        assert running.wait(timeout=20)
        assert sorted(log.numbers) == list(range(1000))
        eventually(lambda: worker.info().num_ack_pending == 0)

    def test_order_by_subject(self, js, stream, worker):
        """
        Messages of one subject are handled one after the other, and those of other subjects
        meanwhile.
        """
        seen = collections.defaultdict(list)
        busy = collections.Counter()
        most = collections.Counter()
        lock = threading.Lock()

        def handler(message):
            with lock:
                busy[message.subject] += 1
                busy["all"] += 1
                for key in (message.subject, "all"):
                    most[key] = max(most[key], busy[key])
                seen[message.subject].append(int(message.data))
            # Handlers that take no time would not overlap.
            time.sleep(0.001)
            with lock:
                busy[message.subject] -= 1
                busy["all"] -= 1
            message.ack()

        fill(js, stream, 400, subjects="ABCDEFGH")
        running = worker.consume(
            handler, threads=4, ordered_by="subject", stop_after=400, max_messages=40
        )
        assert running.wait(timeout=20)
        assert sum(map(len, seen.values())) == 400
        assert all(numbers == sorted(numbers) for numbers in seen.values())
        assert most.pop("all") > 1
        assert set(most.values()) == {1}

    def test_waiting_messages_count(self, js, stream, worker):
        """
        Messages that wait for a slow subject count as buffered, so the buffer does not grow.
        """
        gate = threading.Event()
        log = Log(lambda message: gate.wait(60) and message.ack())
        fill(js, stream, 200)
        running = worker.consume(log, threads=3, ordered_by="subject", max_messages=10)
        try:
            log.wait(1)
            eventually(lambda: worker.info().num_ack_pending >= 10)
            holds(lambda: worker.info().num_ack_pending <= 11)
            assert len(log.numbers) == 1
        finally:
            gate.set()
        assert log.wait(200) == list(range(200))
        running.close()
        assert running.wait(timeout=20)

    def test_it_continues_when_dropped(self, js, stream, worker):
        """
        The handler is called even if the program has dropped the consumption.
        """
        log = Log(lambda message: message.ack())
        worker.consume(log, stop_after=10)
        gc.collect()
        fill(js, stream, 10)
        log.wait(10)
        eventually(lambda: threads() == 0)

    def test_not_iterated(self, worker):
        """
        A consumption with a handler cannot be iterated over, and its handler cannot wait for
        itself.
        """
        with worker.consume(print) as running:
            with pytest.raises(jetsync.ConflictingUseError):
                next(running)
            with pytest.raises(jetsync.ConflictingUseError):
                running.next(timeout=1)

    @pytest.mark.parametrize(
        "options",
        [
            {"threads": 0},
            {"ordered_by": "sequence"},
            {"on_error": "ignore"},
            {"ack": "later"},
        ],
    )
    def test_invalid_options_of_handlers_are_refused(self, worker, options):
        """
        Options that are invalid, or do not fit each other, raise an error.
        """
        with pytest.raises(jetsync.InvalidArgumentError):
            worker.consume(print, **options)
        with pytest.raises(jetsync.InvalidTypeError):
            worker.consume("print")
        with pytest.raises(jetsync.InvalidArgumentError, match="handler"):
            worker.consume(threads=2)

    def test_all_before_it(self, stream):
        """
        ack="auto" is refused if the policy is "all", where each ack covers all earlier messages.
        """
        every = stream.create_consumer("every", ack_policy="all")
        with pytest.raises(jetsync.InvalidArgumentError, match="ack_policy is 'all'"):
            every.consume(print, ack="auto")
        assert every.info().num_waiting == 0
        every.consume(print).close()

    def test_a_number_in_its_place(self, worker):
        """
        The error for a number in place of the handler names max_messages.
        """
        with pytest.raises(jetsync.InvalidTypeError, match="did you mean max_messages=100"):
            worker.consume(100)


class TestEnd:
    @pytest.mark.parametrize("end", ["close", "drain"])
    def test_stop_discards_and_drain_delivers(self, js, stream, worker, end):
        """
        After two of five messages, close() discards the other three and drain() handles them.
        """
        gate, second = threading.Event(), threading.Event()

        def act(message):
            message.ack()
            if int(message.data) == 1:
                second.set()
                gate.wait(60)

        log = Log(act)
        fill(js, stream, 5)
        running = worker.consume(log)
        assert second.wait(20)
        eventually(lambda: running.statistics().received == 5)
        getattr(running, end)()
        assert not running.wait(timeout=0.05)
        assert not running.closed
        gate.set()
        assert running.wait(timeout=20)
        assert log.numbers == ([0, 1] if end == "close" else [0, 1, 2, 3, 4])
        if end == "close":
            with worker.consume() as rest:
                assert sorted(int(rest.next(timeout=20).data) for _ in range(3)) == [2, 3, 4]

    def test_not_iterated_while_messages_wait(self, js, stream, worker):
        """
        Messages that wait for the handler cannot be taken by iterating over the consumption.
        """
        go_on = threading.Event()
        fill(js, stream, 10)
        with worker.consume(lambda _: go_on.wait(30), stop_after=10) as running:
            try:
                eventually(lambda: running.statistics().buffered >= 5)
                before = running.statistics().buffered
                with pytest.raises(jetsync.ConflictingUseError):
                    next(running)
                assert running.statistics().buffered == before
            finally:
                go_on.set()
            assert running.wait(timeout=30)

    def test_stopped_by_its_handler(self, js, stream, worker):
        """
        A handler may close its own consumption, and the end of the block waits for the handler.
        """
        stopped = []

        def act(message):
            message.ack()
            if int(message.data) == 2:
                running.close()
                with contextlib.suppress(jetsync.ConflictingUseError):
                    running.wait()
                stopped.append(True)

        log = Log(act)
        with worker.consume(log) as running:
            fill(js, stream, 10)
            running.wait(timeout=20)
        assert (log.numbers, stopped) == ([0, 1, 2], [True])

    def test_the_consumer_is_deleted(self, js, stream, worker, caplog):
        """
        If the consumer is deleted, the threads end, and the error is kept and logged.
        """
        log = Log(lambda message: message.ack())
        with caplog.at_level(logging.WARNING, "jetsync.consume"):
            running = worker.consume(log, threads=2)
            fill(js, stream, 3)
            log.wait(3)
            worker.delete()
            assert running.wait(timeout=20)
        assert isinstance(running.error, jetsync.ConsumerDeletedError)
        assert "Consumer Deleted" in caplog.text

    def test_closing_the_client_ends_the_threads_of_handlers(self, nats_server, stream, worker):
        """
        If the client is closed, the threads end.
        """
        client = jetsync.connect(nats_server.url)
        running = client.jetstream().consumer(stream.name, "worker").consume(print, threads=3)
        eventually(lambda: is_led(running))
        client.close()
        assert running.wait(timeout=20)
        eventually(lambda: threads() == 0)


class TestDrainedClient:
    """
    Draining the client handles and acknowledges the buffered messages first.
    """

    @pytest.mark.parametrize("shape", ["handler", "iterator"])
    def test_buffered_messages_are_handled(self, nats_server, js, stream, worker, shape):
        """
        All five buffered messages are handled, even if each of them takes a while.
        """
        client = jetsync.connect(nats_server.url)

        def act(message):
            # The client drains while messages are in the buffer.
            time.sleep(0.02)
            message.ack()

        def iterate():
            for message in running:
                log(message)

        log = Log(act)
        fill(js, stream, 5)
        mine = client.jetstream().consumer(stream.name, "worker")
        running = mine.consume(log if shape == "handler" else None)
        thread = threading.Thread(target=iterate if shape == "iterator" else running.wait)
        thread.start()
        eventually(lambda: running.statistics().received == 5)
        with timed(0.0, 2):
            client.drain()
        thread.join(20)
        assert log.numbers == [0, 1, 2, 3, 4]
        assert running.closed
        eventually(lambda: worker.info().num_ack_pending == 0)
        assert running.error is None

    def test_it_takes_no_longer_than_it_may(self, nats_server, js, stream, worker):
        """
        A handler that does not return does not keep the client open.
        """
        gate = threading.Event()
        client = jetsync.connect(nats_server.url)
        fill(js, stream, 5)
        mine = client.jetstream().consumer(stream.name, "worker")
        running = mine.consume(lambda message: gate.wait(60))
        eventually(lambda: running.statistics().received == 5)
        with timed(0.0, 2):
            client.drain(timeout=0.3)
        assert client.is_closed
        gate.set()
        assert running.wait(timeout=20)


FAILING = """
import sys, threading, jetsync

def handler(message):
    raise ValueError("no lamps")

with jetsync.connect(sys.argv[1]) as client:
    worker = client.jetstream().consumer(sys.argv[2], "worker")
    running = worker.consume(handler, max_messages=3, stop_after=3, on_error="leave")
    running.wait(timeout=30)
    print(running.statistics().failures)
"""


class TestErrors:
    @staticmethod
    def third(message):
        """
        Fail at the first delivery of the third message.
        """
        if int(message.data) == 2 and message.metadata.delivered == 1:
            raise KeyError("broken")
        message.ack()

    def test_the_message_of_a_failed_handler_is_redelivered_at_once(
        self, js, stream, observed, caplog
    ):
        """
        A failure is reported and logged, other messages are handled, and the message is redelivered
        at once.
        """
        recorder, worker = observed
        log = Log(self.third)
        with caplog.at_level(logging.ERROR, "jetsync.consume"):
            running = worker.consume(log)
            fill(js, stream, 5)
            assert sorted(log.wait(6)) == [0, 1, 2, 2, 3, 4]
        (event,) = errors_in(recorder)
        assert (event.stream, event.consumer) == (stream.name, "worker")
        assert (event.subject, event.sequence) == (f"{stream.name}.A", 3)
        assert isinstance(event.error, KeyError)
        assert "handler_failed" in caplog.text
        assert "delivered=1" in caplog.text
        assert not running.closed
        running.close()
        running.wait(timeout=20)

    def test_with_leave_nothing_is_sent_for_the_message(self, js, stream, observed):
        """
        With "leave", jetsync sends nothing for the message.
        """
        recorder, worker = observed
        log = Log(self.third)
        fill(js, stream, 5)
        with worker.consume(log, on_error="leave") as running:
            assert log.wait(5) == [0, 1, 2, 3, 4]
            eventually(lambda: worker.info().num_ack_pending == 1)
            assert len(errors_in(recorder)) == 1
            assert not running.closed

    def test_with_stop_the_error_of_a_handler_ends_the_consumption(self, js, stream, observed):
        """
        With "stop", the consumption ends with the handler's error.
        """
        _, worker = observed
        log = Log(self.third)
        fill(js, stream, 5)
        running = worker.consume(log, on_error="stop")
        assert running.wait(timeout=20)
        assert log.numbers == [0, 1, 2]
        assert isinstance(running.error, KeyError)
        eventually(lambda: worker.info().num_ack_pending <= 3)
        with worker.consume() as rest:
            assert sorted(int(rest.next(timeout=20).data) for _ in range(3)) == [2, 3, 4]

    @pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
    def test_the_program_is_to_end(self, js, stream, observed, error):
        """
        KeyboardInterrupt and SystemExit end the consumption and are reported.
        """
        recorder, worker = observed

        def handler(message):
            raise error

        fill(js, stream, 1)
        running = worker.consume(handler)
        assert running.wait(timeout=20)
        assert isinstance(running.error, error)
        assert isinstance(errors_in(recorder)[0].error, error)

    def test_repeated_failures(self, js, stream, worker):
        """
        A message that always fails is redelivered at once, then after 1, 2, ... seconds. Others are
        handled meanwhile.
        """
        times = []

        def act(message):
            if message.data == b"0":
                times.append(time.monotonic())
                raise ValueError
            message.ack()

        log = Log(act)
        fill(js, stream, 20)
        with worker.consume(log):
            eventually(lambda: len(times) == 3)
        assert sorted(log.numbers[:21]) == [0, *range(20)]
        assert times[2] - times[1] >= 1.0

    def test_the_first_failure_of_each_kind_is_reported(self, js, stream, worker, monkeypatch):
        """
        `threading.excepthook` gets the first error of each type and line. Each one is counted.
        """
        reported = []
        monkeypatch.setattr(threading, "excepthook", reported.append)

        def handler(message):
            if message.data == b"0":
                raise ValueError(f"message {message.sequence}")
            if message.data == b"1":
                raise ValueError
            if message.data == b"2":
                raise KeyError
            message.ack()

        log = Log(handler)
        fill(js, stream, 5)
        with worker.consume(log) as running:
            log.wait(11)
            assert running.error is None
            assert running.statistics().failures >= 6
        assert [args.exc_type for args in reported] == [ValueError, ValueError, KeyError]
        assert str(reported[0].exc_value) == "message 1"
        assert reported[0].exc_traceback is not None
        assert reported[0].thread.name == "jetsync-consume-1"

    def test_a_broken_excepthook(self, js, stream, worker, monkeypatch):
        """
        An application's hook that raises does not end the worker.
        """
        monkeypatch.setattr(threading, "excepthook", lambda args: 1 / 0)
        log = Log(self.third)
        fill(js, stream, 5)
        with worker.consume(log):
            assert sorted(log.wait(6)) == [0, 1, 2, 2, 3, 4]

    def test_visible_without_logging(self, nats_server, js, stream, worker):
        """
        A program that has not configured logging shows the traceback once on stderr.
        """
        fill(js, stream, 3)
        done = subprocess.run(
            [sys.executable, "-c", FAILING, nats_server.url, stream.name],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        assert done.stderr.count("ValueError: no lamps") == 1
        assert "Exception in thread jetsync-consume-1" in done.stderr
        assert "line 5, in handler" in done.stderr
        assert done.stdout == "3\n"

    def test_a_plugin_that_refuses(self, nats_server, js, stream, worker):
        """
        A message that a plugin refuses is reported, and the next one is handled.
        """

        class Picky:
            @jetsync.hookimpl
            def jetsync_message_received(self, message):
                if message.data == b"0":
                    raise ValueError("no")

        recorder = HookRecorder("jetsync_status")
        fill(js, stream, 2)
        log = Log(lambda message: message.ack())
        with jetsync.connect(nats_server.url, plugins=[Picky(), recorder]) as client:
            other = client.jetstream().consumer(stream.name, "worker")
            with other.consume(log):
                assert log.wait(1) == [1]
            told = errors_in(recorder)
        assert told
        assert all(isinstance(event.error, jetsync.PluginError) for event in told)

    def test_vetoes_are_logged_once(self, nats_server, js, stream, worker, caplog):
        """
        Vetoes of a plugin are logged once per kind of error, and each one is an event.
        """

        class Picky:
            @jetsync.hookimpl
            def jetsync_message_received(self, message):
                number = int(message.data)
                if number < 40:
                    raise (
                        LookupError(f"odd {number}") if number % 2 else ValueError(f"even {number}")
                    )

        recorder = HookRecorder("jetsync_status")
        with (
            caplog.at_level(logging.ERROR, "jetsync"),
            jetsync.connect(nats_server.url, plugins=[Picky(), recorder]) as client,
        ):
            log = Log(lambda message: message.ack())
            fill(js, stream, 50)
            running = client.jetstream().consumer(stream.name, "worker").consume(log)
            assert sorted(log.wait(10)) == list(range(40, 50))
            eventually(lambda: len(errors_in(recorder)) >= 40)
            running.close()

        assert [record.fields["plugin"] for record in caplog.records] == ["Picky"] * 2
        assert {record.fields["hook"] for record in caplog.records} == {"jetsync_message_received"}
        assert all(record.exc_info[0] is jetsync.PluginError for record in caplog.records)

    def test_a_plugin_that_refuses_with_cumulative_acks(self, nats_server, js, stream):
        """
        With the policy "all", the consumption ends, because the next ack would cover the refused
        message.
        """

        class Picky:
            @jetsync.hookimpl
            def jetsync_message_received(self, message):
                if message.data == b"1":
                    raise ValueError("no")

        stream.create_consumer("all", ack_policy="all")
        fill(js, stream, 4)
        log = Log(lambda message: message.ack_sync())
        with jetsync.connect(nats_server.url, plugins=[Picky()]) as client:
            running = client.jetstream().consumer(stream.name, "all").consume(log)
            assert running.wait(timeout=30)
            assert isinstance(running.error, jetsync.PluginError)
        assert log.numbers == [0]
        again = stream.consumer("all").fetch(3, expires=30)
        assert sorted(int(message.data) for message in again) == [1, 2, 3]


class TestAcknowledgement:
    def test_a_message_is_acknowledged_once_its_handler_has_returned(self, js, stream, worker):
        """
        A message is acknowledged once its handler has returned, unless the handler acknowledged it.
        """

        def act(message):
            number = int(message.data)
            if number == 3:
                message.term()
            if number == 4:
                raise ValueError

        log = Log(act)
        fill(js, stream, 10)
        with worker.consume(log, ack="auto", threads=2, on_error="leave"):
            log.wait(10)
            eventually(lambda: worker.info().num_ack_pending == 1)
        assert worker.info().ack_floor.stream_seq == 4

    def test_the_policy_none_sends_no_acknowledgement(self, js, stream):
        """
        With the policy "none", no acknowledgement is sent.
        """
        reader = stream.create_consumer("r", ack_policy="none")
        log = Log()
        fill(js, stream, 10)
        with reader.consume(log, ack="auto", keep_alive=True):
            log.wait(10)
            # Threads of earlier tests may need a moment to end.
            eventually(
                lambda: "jetsync-consume-alive" not in {each.name for each in threading.enumerate()}
            )

    def test_a_slow_handler_keeps_its_message_alive(self, js, stream):
        """
        A handler that takes longer than the ack wait gets its message once.
        """
        fill(js, stream, 1)

        def attempt(pace):
            slow = stream.create_consumer(f"slow{pace}", ack_wait=0.5 * pace)
            # Longer than two ack waits.
            log = Log(lambda message: time.sleep(1.3 * pace))
            with slow.consume(log, ack="auto", keep_alive=True, threads=2):
                log.wait(1)
                eventually(lambda: slow.info().num_ack_pending == 0, 4 * pace)
            assert log.deliveries == [1]
            eventually(lambda: threads() == 0, 10 * pace)

        at_some_pace(attempt)

    @pytest.mark.parametrize("ordered_by", [None, "subject"])
    def test_waiting_messages_are_kept_alive(self, js, stream, ordered_by):
        """
        Messages in the buffer are kept alive too, because their ack wait begins with the delivery.
        """
        fill(js, stream, 5)
        options = {"ack": "auto", "keep_alive": True, "ordered_by": ordered_by}
        options["threads"] = 1 if ordered_by is None else 2

        def attempt(pace):
            slow = stream.create_consumer(f"slow{pace}", ack_wait=1.2 * pace)
            # Five messages take longer than the ack wait, each of them does not.
            log = Log(lambda message: time.sleep(0.5 * pace))
            with slow.consume(log, **options):
                eventually(lambda: len(log.numbers) >= 5, 10 * pace)
                eventually(lambda: slow.info().num_ack_pending == 0, 4 * pace)
            assert log.numbers == [0, 1, 2, 3, 4]
            assert log.deliveries == [1] * 5

        at_some_pace(attempt)

    def test_not_kept_alive(self, js, stream):
        """
        Without keep_alive, the message is redelivered while its handler works.
        """
        slow = stream.create_consumer("slow", ack_wait=0.4)
        redelivered = threading.Event()

        def handler(message):
            if message.metadata.delivered > 1:
                redelivered.set()
            assert redelivered.wait(30)

        log = Log(handler)
        fill(js, stream, 1)
        with slow.consume(log, ack="auto", threads=2):
            log.wait(2)
        assert log.deliveries[:2] == [1, 2]
