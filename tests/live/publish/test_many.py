"""
publish_many on real servers: the window, the report and failures.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from functools import partial

import attrs
import pytest

import jetsync
from helpers.connections import answers, client_of
from helpers.interrupts import interrupted_at
from helpers.streams import memory_stream, messages_in
from helpers.traffic import sent_nothing
from helpers.waiting import eventually, holds, timed
from jetsync import Expect, OutboundMessage, PublishReport
from jetsync.devserver import DevServer
from jetsync.events import PublishCountsEvent
from jetsync.hookspecs import hookimpl
from jetsync.publish import hooks
from jetsync.testing import HookRecorder

VERSIONS = ["2.10.26", "2.11.11", "2.12.8", "2.14.6", None]
"""Servers whose acks differ; None is the newest."""


def failed(caught):
    """
    Return the indexes that a PublishManyError reports.
    """
    return [failure.index for failure in caught.value.report.failures]


def stored(stream, subject):
    """
    Return the payloads that the stream has on a subject.
    """
    return [message.data for message in messages_in(stream, filter_subject=subject)]


def keep_report(js, messages, reports):
    """
    Publish with a small window, so that some are stored while others are not sent.
    """
    try:
        reports.append(js.publish_many(messages, window=4))
    except KeyboardInterrupt as interrupt:
        # There is none if nothing was sent yet.
        reports.extend(report for report in [getattr(interrupt, "report", None)] if report)
        raise


class Numbered:
    """
    Messages with numbers as payload. Counts how many were taken and acknowledged.
    """

    def __init__(self, name, count, size=0):
        self.name = name
        self.padding = bytes(size)
        self.count = count
        self.taken = 0
        self.acked = 0
        self.ahead = 0
        """The most messages that were taken and not acknowledged at the same time."""

    def __iter__(self):
        for number in range(self.count):
            self.taken += 1
            self.ahead = max(self.ahead, self.taken - self.acked)
            yield f"{self.name}.A", b"%d" % number + self.padding

    def on_ack(self, message, ack):
        self.acked += 1


class TestReport:
    @pytest.mark.versions
    @pytest.mark.parametrize("version", VERSIONS)
    def test_every_form_of_an_ack_is_counted(self, server_for, nats_server, unique, version):
        """
        Count, duplicates and range are the same for all forms of acks.
        """
        server = nats_server if version is None else server_for(version)
        with jetsync.connect(server.url) as client:
            js = client.jetstream()
            memory_stream(js, unique)
            messages = [OutboundMessage(f"{unique}.A", msg_id=f"{n % 300}") for n in range(400)]
            expected = PublishReport(400, 100, 1, 300, ())
            assert js.publish_many(messages) == expected
            plain = PublishReport(500, 0, 301, 800, ())
            assert js.publish_many((f"{unique}.A", b"x") for _ in range(500)) == plain
            js.delete_stream(unique)

    def test_a_hundred_thousand_messages_are_one_range(self, js, stream):
        """
        All are stored in the order of the iterable, without a gap.
        """
        subject = f"{stream.name}.A"
        report = js.publish_many((subject, b"%d" % number) for number in range(100_000))
        assert report == PublishReport(100_000, 0, 1, 100_000, ())
        state = stream.info().state
        assert (state.messages, state.first_seq, state.last_seq) == (100_000, 1, 100_000)
        payloads = [message.data for message in messages_in(stream)]
        assert payloads == [b"%d" % number for number in range(100_000)]

    def test_which_streams_have_taken_messages(self, js, unique):
        """
        The report names all streams, in any order of acks.
        """
        for each in "AB":
            js.create_stream(f"{unique}-{each}", subjects=[f"{unique}.{each}"])
        try:
            runs = ("A" * 300, "B" * 300, "AB" * 300)
            found = [js.publish_many((f"{unique}.{to}", b"") for to in run).streams for run in runs]
        finally:
            for each in "AB":
                js.delete_stream(f"{unique}-{each}")

        assert found == [{f"{unique}-A"}, {f"{unique}-B"}, {f"{unique}-A", f"{unique}-B"}]
        assert js.publish_many([]).streams == frozenset()

    def test_nothing_to_publish(self, js):
        """
        An empty iterable gives an empty report.
        """
        assert js.publish_many([]) == PublishReport(0, 0, None, None, ())

    def test_all_kinds_of_messages(self, js, unique):
        """
        Tuples and objects with headers, ids, conditions and a time-to-live are stored.
        """
        stream = memory_stream(js, unique, allow_msg_ttl=True)
        headers = {"A": ["1", "2"]}
        messages = [
            (f"{unique}.A", "text"),
            (f"{unique}.A", bytearray(b"array"), headers),
            OutboundMessage(f"{unique}.B", memoryview(b"view"), ttl=60),
            OutboundMessage(f"{unique}.C", b"id", msg_id="id-1"),
            OutboundMessage(f"{unique}.D", expect=Expect(last_subject_sequence=0, stream=unique)),
            OutboundMessage(f"{unique}.E", headers=headers, ttl="never"),
        ]
        assert js.publish_many(messages) == PublishReport(6, 0, 1, 6, ())
        stored = [stream.get_message(sequence) for sequence in range(1, 7)]
        assert [(m.subject[-1], m.data) for m in stored] == [
            ("A", b"text"),
            ("A", b"array"),
            ("B", b"view"),
            ("C", b"id"),
            ("D", b""),
            ("E", b""),
        ]
        assert stored[1].headers.get_all("A") == ["1", "2"]
        assert [m.ttl for m in stored] == [None, None, 60.0, None, None, "never"]
        assert stored[3].headers["Nats-Msg-Id"] == "id-1"
        assert headers == {"A": ["1", "2"]}
        js.delete_stream(unique)

    def test_on_ack_gets_each_ack(self, js, stream):
        """
        on_ack gets each message with its own ack, in the calling thread.
        """
        told = []
        threads = set()

        def on_ack(message, ack):
            threads.add(threading.get_ident())
            told.append((message, ack.sequence))

        js.publish_many(
            ((f"{stream.name}.A", b"%d" % number) for number in range(1000)), on_ack=on_ack
        )
        assert threads == {threading.get_ident()}
        assert {(int(message.data) + 1, type(message)) for message, _ in told} == {
            (sequence, OutboundMessage) for _, sequence in told
        }
        assert sorted(sequence for _, sequence in told) == list(range(1, 1001))

    def test_an_on_ack_that_raises(self, js, stream):
        """
        The call raises its error after all messages that were taken have ended.
        """
        messages = Numbered(stream.name, 100)

        def on_ack(message, ack):
            raise LookupError("no use for it")

        with pytest.raises(LookupError, match="no use for it"):
            js.publish_many(messages, window=10, on_ack=on_ack)
        assert stream.info().state.messages == messages.taken <= 20

    def test_wrong_arguments_of_publish_many_take_no_message(self, client, js, stream):
        """
        Invalid arguments raise before a message is taken or sent.
        """
        messages = Numbered(stream.name, 3)
        before = client.statistics().bytes_out
        for fields in ({"window": 0}, {"window": -1}, {"ack_timeout": -1}):
            with pytest.raises(jetsync.InvalidArgumentError):
                js.publish_many(messages, **fields)
        for fields in ({"window": 1.5}, {"window": True}, {"ack_timeout": "1"}):
            with pytest.raises(jetsync.InvalidTypeError):
                js.publish_many(messages, **fields)
        for wrong in (5, stream.name, b"x"):
            with pytest.raises(jetsync.InvalidTypeError, match="an iterable of messages"):
                js.publish_many(wrong)
        assert messages.taken == 0
        assert sent_nothing(client, before)


class TestWindow:
    @pytest.mark.parametrize("window", [1, 2, 3, 10, 100, 1000])
    def test_no_more_than_the_window_is_taken(self, js, stream, window):
        """
        The iterable is never further ahead of the acks than the size of the window.
        """
        messages = Numbered(stream.name, 2 * window + 50)
        report = js.publish_many(messages, window=window, on_ack=messages.on_ack)
        assert report.count == messages.acked == messages.count
        assert 1 <= messages.ahead <= window

    def test_it_is_lazy_while_nothing_is_acknowledged(self, victim, fragile, unique):
        """
        While the server is paused, exactly one window is taken.
        """
        memory_stream(fragile, unique)
        fragile.publish(f"{unique}.warm")
        messages = Numbered(unique, 500)
        victim.pause()
        with ThreadPoolExecutor(1) as pool:
            try:
                running = pool.submit(fragile.publish_many, messages, window=40)
                eventually(lambda: messages.taken == 40)
                holds(lambda: (messages.taken, running.done()) == (40, False))
            finally:
                victim.resume()
            assert running.result(20).count == 500
        fragile.delete_stream(unique)

    def test_messages_that_wait_for_another_try_count(self, js, unique):
        """
        Messages that no stream took stay in the window, so memory is bounded.
        """
        messages = Numbered(unique, 10_000)
        with pytest.raises(jetsync.PublishManyError) as caught:
            js.publish_many(messages, window=30)
        assert messages.taken <= 60
        assert failed(caught) == list(range(messages.taken))

    def test_no_more_than_the_bytes_are_taken(self, js, stream):
        """
        The iterable is ahead of the acks by the bytes of the window and one message at
        most.
        """
        messages = Numbered(stream.name, 40, size=300_000)
        report = js.publish_many(messages, window_bytes=1_000_000, on_ack=messages.on_ack)
        assert report.count == messages.acked == 40
        assert 1 <= messages.ahead <= 4
        messages = Numbered(stream.name, 10, size=300_000)
        assert js.publish_many(messages, window_bytes=1, on_ack=messages.on_ack).count == 10
        assert messages.ahead == 1

    def test_bytes_that_wait_for_another_try_count(self, js, unique):
        """
        The bytes of messages that wait for their retry count.
        """
        messages = Numbered(unique, 12, size=300_000)
        most = 0

        def take():
            nonlocal most
            for message in messages:
                most = messages.taken
                yield message

        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(
                js.publish_many, take(), window_bytes=1_000_000, retries=1000, retry_wait=0.05
            )
            eventually(lambda: most == 4)
            with pytest.raises(FutureTimeoutError):
                running.result(0.3)
            assert most == 4
            memory_stream(js, unique)
            assert running.result(20).count == 12
        js.delete_stream(unique)

    @pytest.mark.thorough
    def test_large_messages_in_the_default_window(self, unique):
        """
        The default window stays below the 128 MiB at which a stream refuses messages.
        """
        payload = bytes(8_000_000)
        with (
            DevServer(config={"max_payload": 8 << 20}) as server,
            jetsync.connect(server.url) as client,
        ):
            js = client.jetstream()
            js.create_stream(unique, subjects=[unique], storage="memory", max_msgs=2)
            report = js.publish_many(((unique, payload) for _ in range(100)), ack_timeout=30)
            assert report.count == 100
            with js.publisher(ack_timeout=30) as publisher:
                for _ in range(100):
                    publisher.publish(unique, payload)
            assert publisher.statistics().acknowledged == 100

    def test_a_bad_window_of_bytes(self, js):
        """
        A window has room for at least one byte.
        """
        with pytest.raises(jetsync.InvalidArgumentError, match="window_bytes"):
            js.publish_many([], window_bytes=0)


class TestFailures:
    def test_one_refusal_is_reported_and_the_rest_is_stored(self, js, stream):
        """
        The report has the index, message and error of each failure. Count and range exclude
        them.
        """
        messages = [OutboundMessage(f"{stream.name}.A", b"%d" % n) for n in range(200)]
        wrong = attrs.evolve(messages[50], expect=Expect(last_sequence=7_000))
        messages[50] = wrong
        messages[120] = attrs.evolve(messages[120], expect=Expect(stream="OTHER"))
        with pytest.raises(jetsync.PublishManyError) as caught:
            js.publish_many(messages, window=16)
        report = caught.value.report
        assert [(f.index, type(f.error)) for f in report.failures] == [
            (50, jetsync.WrongLastSequenceError),
            (120, jetsync.WrongStreamError),
        ]
        assert report.failures[0].message is wrong
        assert (report.count, report.first_sequence, report.last_sequence) == (198, 1, 198)
        expected = [b"%d" % n for n in range(200) if n not in {50, 120}]
        assert [message.data for message in messages_in(stream)] == expected
        assert "2 of 200" in str(caught.value)

    def test_items_that_cannot_be_sent(self, client, js, stream):
        """
        Each invalid message is reported with its error, and the valid ones are stored.
        """
        subject = f"{stream.name}.A"
        invalid = {
            1: ("a b", b"x"),
            2: (subject, 5),
            3: "no message",
            4: (subject, b"x", {"A": "x\n"}),
            5: OutboundMessage(subject, ttl=0),
            6: (None, b"x"),
            7: (subject, bytes(client.server.max_payload + 1)),
            8: OutboundMessage(subject, msg_id=5),
            9: (subject,),
            10: (b"bytes", b"x"),
            11: ([], b"x"),
            12: None,
        }
        messages = [invalid.get(number, (subject, b"%d" % number)) for number in range(20)]
        with pytest.raises(jetsync.PublishManyError) as caught:
            js.publish_many(messages)
        assert failed(caught) == list(invalid)
        for failure in caught.value.report.failures:
            assert isinstance(failure.error, (ValueError, TypeError)), failure
            assert isinstance(failure.error, jetsync.JetSyncError), failure
            assert isinstance(failure.message, OutboundMessage)
        expected = [b"%d" % number for number in range(20) if number not in invalid]
        assert [message.data for message in messages_in(stream)] == expected
        assert client.statistics().reconnects == 0

    def test_messages_before_an_error_of_the_iterable_are_stored(self, js, stream):
        """
        The messages that it returned before are stored, and the call raises its error.
        """

        def broken():
            for number in range(777):
                yield f"{stream.name}.A", b"%d" % number
            raise LookupError("no more rows")

        with pytest.raises(LookupError, match="no more rows"):
            js.publish_many(broken())
        assert stream.info().state.messages == 777

    def test_only_messages_without_a_stream_fail(self, js, stream, unique):
        """
        These messages fail after three attempts, and the others are stored.
        """
        messages = [
            (f"nobody.{unique}" if number % 10 == 5 else f"{stream.name}.A", b"x")
            for number in range(100)
        ]
        with timed(0.5, 2.0), pytest.raises(jetsync.PublishManyError) as caught:
            js.publish_many(messages)
        assert failed(caught) == list(range(5, 100, 10))
        errors = {type(f.error): f.error.attempts for f in caught.value.report.failures}
        assert errors == {jetsync.NoStreamResponseError: 3}
        assert stream.info().state.messages == 90

    def test_a_stream_that_appears_meanwhile_takes_all(self, js, unique):
        """
        A stream that is created after 300 ms gets all messages.
        """
        timer = threading.Timer(0.3, memory_stream, (js, unique))
        timer.start()
        report = js.publish_many(((f"{unique}.A", b"%d" % n) for n in range(2000)), retries=100)
        timer.join()
        assert report == PublishReport(2000, 0, 1, 2000, ())
        stored = messages_in(js.stream(unique))
        assert sorted(int(message.data) for message in stored) == list(range(2000))
        js.delete_stream(unique)

    def test_an_endless_iterable_without_a_stream_ends(self, js, unique):
        """
        Nothing more is taken after as many failures as the size of the window.
        """
        endless = ((f"nobody.{unique}", b"%d" % number) for number in itertools.count())
        with timed(0.5, 3.0), pytest.raises(jetsync.PublishManyError) as caught:
            js.publish_many(endless, window=50)
        taken = int(next(endless)[1])
        assert failed(caught) == list(range(taken))
        assert 50 <= taken <= 100
        assert not caught.value.report.exhausted
        assert "the rest of the iterable was not read" in str(caught.value)

    def test_publish_many_without_acks_reports_unknown_outcomes(self, js, unique):
        """
        All outcomes are unknown after the timeout, and all messages are stored.
        """
        stream = memory_stream(js, unique, no_ack=True)
        with timed(0.3, 1.0), pytest.raises(jetsync.PublishManyError) as caught:
            js.publish_many(((f"{unique}.A", b"x") for _ in range(300)), ack_timeout=0.3)
        report = caught.value.report
        assert (report.count, report.first_sequence, report.last_sequence) == (0, None, None)
        assert failed(caught) == list(range(300))
        assert report.exhausted
        assert {type(f.error) for f in report.failures} == {jetsync.PublishOutcomeUnknownError}
        assert stream.info().state.messages == 300
        js.delete_stream(unique)

    def test_only_messages_to_a_denied_subject_fail_at_once(self, unique):
        """
        Its messages fail at once with the server's error, and the others are stored.
        """
        users = [{"user": "u", "password": "p", "permissions": {"publish": {"deny": ["*.secret"]}}}]
        with (
            DevServer(config={"authorization": {"timeout": 30, "users": users}}) as server,
            jetsync.connect(server.url, user="u", password="p") as client,
        ):
            js = client.jetstream()
            stream = memory_stream(js, unique)
            messages = [(f"{unique}.{'secret' if n % 4 == 1 else 'open'}", b"x") for n in range(40)]
            with timed(0.0, 2.0), pytest.raises(jetsync.PublishManyError) as caught:
                js.publish_many(messages)
            assert failed(caught) == list(range(1, 40, 4))
            errors = {type(f.error) for f in caught.value.report.failures}
            assert errors == {jetsync.PermissionDeniedError}
            assert stream.info().state.messages == 30


class TestConnection:
    def test_messages_not_reported_after_a_restart_are_stored_once(self, victim, fragile, unique):
        """
        Each message that is not reported is stored exactly once. With ids the others can be
        repeated.
        """
        stream = fragile.create_stream(unique, subjects=[f"{unique}.>"])
        counted = Numbered(unique, 20_000)
        settled = []

        def restart():
            # Until nothing moves. All answers from before the pause are counted by then, and all
            # messages that are taken and not acknowledged are in flight.
            def still():
                settled.append((counted.taken, counted.acked))
                # No event shows that nothing moves.
                time.sleep(0.1)
                in_flight = counted.taken - counted.acked
                return in_flight and len(settled) > 3 and len({*settled[-3:]}) == 1

            try:
                eventually(still)
            finally:
                victim.kill()
                victim.start()

        def messages():
            for number, (subject, data) in enumerate(counted):
                if number == 5_000:
                    # With the server stopped short, much is in flight when it is killed.
                    victim.pause()
                    restarting.append(pool.submit(restart))
                yield OutboundMessage(subject, data, msg_id=f"id-{number}")

        source = messages()
        restarting = []
        with ThreadPoolExecutor(1) as pool:
            with pytest.raises(jetsync.PublishManyError) as caught:
                fragile.publish_many(source, window=1000, ack_timeout=20, on_ack=counted.on_ack)
            restarting[0].result(30)
        report = caught.value.report
        taken = counted.taken
        assert taken == report.count + len(report.failures)
        missing = {failure.index for failure in report.failures}
        assert {type(f.error) for f in report.failures} == {jetsync.PublishOutcomeUnknownError}
        stored = Counter(int(message.data) for message in messages_in(stream))
        assert set(stored.values()) == {1}
        assert set(range(taken)) - missing <= set(stored) <= set(range(taken))
        again = fragile.publish_many(failure.message for failure in report.failures)
        assert again.count == len(missing)
        rest = fragile.publish_many(source)
        stored = [int(message.data) for message in messages_in(stream)]
        assert sorted(stored) == list(range(20_000))
        assert rest.count == 20_000 - taken
        fragile.delete_stream(unique)

    def test_publish_many_without_a_connection_sends_nothing_later(self, victim, fragile, unique):
        """
        Nothing is sent, then or later, and the messages are reported as not sent.
        """
        stream = fragile.create_stream(unique, subjects=[f"{unique}.>"])
        victim.stop()
        messages = Numbered(unique, 100_000)
        try:
            eventually(lambda: not client_of(fragile).is_connected)
            with timed(0.3, 1.0), pytest.raises(jetsync.PublishManyError) as caught:
                fragile.publish_many(messages, window=64, ack_timeout=0.3)
        finally:
            victim.start()
        assert failed(caught) == list(range(messages.taken))
        assert messages.taken <= 64
        errors = {type(failure.error) for failure in caught.value.report.failures}
        assert errors == {jetsync.DisconnectedError}
        assert stream.info().state.messages == 0
        fragile.delete_stream(unique)

    def test_publish_many_ends_soon_if_the_client_is_closed(self, victim, unique):
        """
        The call ends soon, and all messages in flight are reported as unknown.
        """
        client = jetsync.connect(victim.url)
        js = client.jetstream()
        memory_stream(js, unique, no_ack=True)
        messages = Numbered(unique, 50)
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(js.publish_many, messages, ack_timeout=20)
            eventually(lambda: messages.taken == 50)
            client.close()
            with timed(0.0, 2.0), pytest.raises(jetsync.PublishManyError) as caught:
                running.result(20)
        assert failed(caught) == list(range(50))
        with pytest.raises(jetsync.ConnectionClosedError):
            js.publish_many(messages)


class TestHooks:
    def test_a_call_is_wrapped_once(self, nats_server, stream):
        """
        The wrapper gets the report, however many messages there are. None is a call, too.
        """
        recorder = HookRecorder("jetsync_publish")
        with jetsync.connect(nats_server.url, plugins=[recorder]) as client:
            for count in (1000, 0):
                report = client.jetstream().publish_many(
                    ((f"{stream.name}.A", b"x") for _ in range(count)), window=100
                )
                call = recorder.of("jetsync_publish")[-1]
                assert (call.result, call.finished, report.count) == (report, True, count)
        assert len(recorder.calls) == 2
        operation = call["operation"]
        assert (operation.name, operation.window) == ("publish_many", 100)
        assert (operation.messages, operation.subject) == (None, None)
        assert call.thread == threading.current_thread().name

    def test_the_wrapper_gets_the_error_of_the_call(self, nats_server, unique):
        """
        Wrappers end if messages failed or the iterable raised.
        """
        recorder = HookRecorder("jetsync_publish")

        def broken():
            yield f"nobody.{unique}", b"x"
            raise LookupError

        with jetsync.connect(nats_server.url, plugins=[recorder]) as client:
            js = client.jetstream()
            with pytest.raises(LookupError):
                js.publish_many(broken())
            with pytest.raises(jetsync.PublishManyError) as caught:
                js.publish_many([(f"nobody.{unique}", b"x")])
        first, second = recorder.of("jetsync_publish")
        assert (first.finished, type(first.error)) == (True, LookupError)
        assert (second.finished, second.error) == (True, caught.value)

    def test_events_count_the_messages_before_the_wrapper_ends(self, nats_server, stream, unique):
        """
        Stored, refused and invalid messages are counted once, before the wrapper ends.
        """
        order = []

        class Order:
            @hookimpl(wrapper=True)
            def jetsync_publish(self, operation):
                order.append(operation)
                try:
                    return (yield)
                finally:
                    order.append("end")

            @hookimpl
            def jetsync_status(self, event):
                if isinstance(event, jetsync.PublishCountsEvent):
                    order.append(event)

        subject = f"{stream.name}.A"
        wrong = OutboundMessage(subject, b"", expect=Expect(last_subject_sequence=70))
        messages = [
            (f"nobody.{unique}", b""),
            *[(subject, b"")] * 20,
            wrong,
            ("a b", b""),
            *[OutboundMessage(subject, b"", msg_id="id")] * 2,
        ]
        with (
            jetsync.connect(nats_server.url, plugins=[Order]) as client,
            pytest.raises(jetsync.PublishManyError) as caught,
        ):
            client.jetstream().publish_many(messages, window=10, retry_wait=0.01)
        assert (failed(caught), caught.value.report.count) == ([0, 21, 22], 22)
        operation, *counts, end = order
        assert end == "end"
        assert all(event.publish is operation for event in counts)
        assert {event.stream for event in counts} == {stream.name}
        assert sum(event.acknowledged for event in counts) == 22
        assert sum(event.duplicates for event in counts) == 1
        assert sum(event.failed for event in counts) == 3
        assert sum(event.unknown for event in counts) == 0
        errors = {failure.error for failure in caught.value.report.failures}
        assert {event.error for event in counts} & errors

    def test_events_come_while_the_call_waits(self, nats_server, stream, js, unique, monkeypatch):
        """
        Stored messages are reported while others wait for their acks.
        """
        monkeypatch.setattr(hooks, "REPORT_INTERVAL", 0.05)
        silent = memory_stream(js, f"{unique}S", no_ack=True)
        recorder = HookRecorder("jetsync_status")
        client = jetsync.connect(nats_server.url, plugins=[recorder])
        messages = [(f"{stream.name}.A", b"")] * 5 + [(f"{silent.name}.a", b"")]

        def reported():
            events = [call["event"] for call in recorder.of("jetsync_status")]
            return [event for event in events if type(event) is PublishCountsEvent]

        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(client.jetstream().publish_many, messages, ack_timeout=60)
            eventually(lambda: sum(event.acknowledged for event in reported()) == 5)
            assert not running.done()
            client.close()
            with pytest.raises(jetsync.PublishManyError):
                running.result(20)
        last = reported()[-1]
        assert (last.acknowledged, last.failed, last.unknown) == (0, 1, 1)
        js.delete_stream(silent.name)

    def test_an_interrupt_with_messages_in_flight(self, nats_server, js, unique):
        """
        After Ctrl-C, plugins get the interrupt and no result, and an event counts unknown outcomes.
        """
        recorder = HookRecorder("jetsync_publish", "jetsync_status")

        def interrupted():
            for _ in range(150):
                yield f"{unique}.silent", b"x"
            raise KeyboardInterrupt

        stream = js.create_stream(unique, subjects=[f"{unique}.silent"], no_ack=True)
        with (
            jetsync.connect(nats_server.url, plugins=[recorder]) as client,
            pytest.raises(KeyboardInterrupt),
        ):
            client.jetstream().publish_many(interrupted(), window=1000)
        (call,) = recorder.of("jetsync_publish")
        assert (call.result, type(call.error)) == (None, KeyboardInterrupt)
        event = recorder.of("jetsync_status")[0]["event"]
        assert (event.acknowledged, event.failed, event.unknown, event.error) == (0, 150, 150, None)
        js.delete_stream(stream.name)

    def test_messages_that_were_sent_when_it_was_interrupted(self, nats_server, stream):
        """
        If Ctrl-C strikes after the messages were sent, plugins hear of unknown outcomes.
        """
        recorder = HookRecorder("jetsync_status")
        reported = 0
        with jetsync.connect(nats_server.url, plugins=[recorder], reconnect_wait=0.01) as client:
            js = client.jetstream()
            js.publish_many([(f"{stream.name}.0", b"")] * 10)
            step, over = 1, False
            while not over:
                recorder.clear()
                # A subject of its own, because messages of the step before may still arrive.
                subject = f"{stream.name}.{step}"
                messages = [(subject, b"")] * 10
                over = interrupted_at(step, partial(js.publish_many, messages))
                # An interrupt in the middle of a write ends the connection.
                eventually(lambda: client.is_connected)
                with contextlib.suppress(jetsync.ConnectionLostError):
                    client.flush()
                stored = stream.info(subjects_filter=subject).state.subjects.get(subject, 0)
                for call in recorder.of("jetsync_status"):
                    event = call["event"]
                    if event.kind is jetsync.StatusKind.PUBLISH_COUNTS and event.failed:
                        reported += 1
                        assert stored <= 10 - (event.failed - event.unknown), step
                step += 1
        assert reported

    def test_a_time_limit_that_strikes_at_any_step_ends_the_call(self, nats_server, stream):
        """
        If a signal handler raises an ordinary exception at any step, the call ends with it soon.
        """

        class TimeLimitError(Exception):
            pass

        messages = [(f"{stream.name}.A", b"")] * 10
        with jetsync.connect(nats_server.url, reconnect_wait=0.01) as client:
            js = client.jetstream()
            step, over = 1, False
            while not over:
                # An interrupt in the middle of a write ends the connection.
                eventually(lambda: answers(client))

                def publish():
                    with contextlib.suppress(jetsync.PublishManyError):
                        js.publish_many(messages, ack_timeout=0.2)

                with timed(0.0, 5.0):
                    over = interrupted_at(step, publish, TimeLimitError)
                step += 1
            assert step > 50

    @pytest.mark.thorough
    @pytest.mark.parametrize("plain", [True, False])
    def test_the_interrupt_carries_a_report_at_any_step(self, nats_server, stream, plain):
        """
        Wherever Ctrl-C strikes, all messages before `resume_at` are stored, and all can be resumed.
        """
        places = Counter()
        with jetsync.connect(nats_server.url, reconnect_wait=0.01) as client:
            js = client.jetstream()
            step, over = 1, False
            while not over:
                # An interrupt in the middle of a write ends the connection.
                eventually(lambda: answers(client))
                subject = f"{stream.name}.{step}"
                messages = [
                    (subject, b"%d" % n) if plain else OutboundMessage(subject, b"%d" % n)
                    for n in range(10)
                ]
                reports = []
                over = interrupted_at(step, partial(keep_report, js, messages, reports))
                if reports:
                    (report,) = reports
                    eventually(partial(answers, client))
                    there = Counter(stored(stream, subject))
                    places[report.resume_at] += 1
                    assert report.count <= len(there)
                    for n in range(report.resume_at):
                        assert there[b"%d" % n] == 1, step
                    js.publish_many(messages[report.resume_at :])
                    assert set(stored(stream, subject)) == {b"%d" % n for n in range(10)}
                step += 1
        assert {0, 10} <= set(places)
        assert set(places) - {0, 10}

    # The interpreter reports an interrupt that hits the generator in the error's text.
    @pytest.mark.thorough
    @pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
    def test_a_refused_message_is_not_passed_at_any_step(self, nats_server, js, unique):
        """
        Wherever Ctrl-C strikes, `resume_at` is not after a message that the stream refused.
        """
        places = Counter()
        stream = js.create_stream(unique, subjects=[f"{unique}.*"], max_msg_size=100)
        messages = [(f"{unique}.A", b"")] * 5 + [(f"{unique}.A", bytes(200))] * 2
        with jetsync.connect(nats_server.url, reconnect_wait=0.01) as client:
            step, over = 1, False
            # How many steps a call has varies, so it may end before an early step.
            while not over or step < 300:
                eventually(lambda: answers(client))
                reports = []
                run = partial(keep_report, client.jetstream(), messages, reports)
                try:
                    interrupted_at(step, run)
                except jetsync.PublishManyError as error:
                    reports.append(error.report)
                    over = True
                places.update(report.resume_at for report in reports)
                step += 1
        assert 4 <= max(places) <= 5
        js.delete_stream(stream.name)

    @pytest.mark.parametrize("count", [0, 3, 700])
    def test_an_interrupt_without_a_connection(self, count):
        """
        If Ctrl-C strikes while there is no connection, the call does not wait for one.
        """
        with (
            DevServer() as server,
            jetsync.connect(server.url, reconnect_wait=60) as client,
        ):
            js = client.jetstream()
            js.create_stream("S", subjects=["s"], storage="memory")

            def messages():
                for n in range(count):
                    yield "s", b"%d" % n
                server.kill()
                eventually(lambda: not client.is_connected)
                raise KeyboardInterrupt

            with pytest.raises(KeyboardInterrupt) as caught, timed(0.0, 60.0):
                js.publish_many(messages(), ack_timeout=1000)
            report = caught.value.report
            assert report.resume_at <= count
            assert report.count + len(report.failures) == count

    def test_the_report_names_the_messages_of_unknown_outcome(self, js, unique):
        """
        Messages in flight are in the report with an unknown outcome, and are not counted.
        """

        def messages():
            for n in range(150):
                yield f"{unique}.silent", b"%d" % n
            raise KeyboardInterrupt

        stream = js.create_stream(unique, subjects=[f"{unique}.silent"], no_ack=True)
        with pytest.raises(KeyboardInterrupt) as caught:
            js.publish_many(messages())
        report = caught.value.report
        assert (report.count, report.resume_at, report.exhausted) == (0, 0, False)
        assert [failure.index for failure in report.failures] == [*range(150)]
        assert report.failures[7].message.data == b"7"
        for failure in report.failures:
            assert isinstance(failure.error, jetsync.PublishOutcomeUnknownError)
            assert "interrupted" in str(failure.error)
        js.delete_stream(stream.name)

    @pytest.mark.parametrize("place", ["iterable", "on_ack"])
    @pytest.mark.parametrize("refused", [(), (1,)])
    def test_the_error_of_another_call_is_the_cause(self, js, stream, place, refused):
        """
        The PublishManyError of an inner call is the cause of one with the report of the outer call.
        """
        inner = []

        def fail(*_):
            if not inner:
                try:
                    js.publish_many([(f"{stream.name}.inner", b"")] * 2 + [("", b"")])
                except jetsync.PublishManyError as error:
                    inner.append(error)
                    raise

        def messages():
            for number in range(3):
                yield "" if number in refused else f"{stream.name}.a", b""
            if place == "iterable":
                fail()

        with pytest.raises(jetsync.PublishManyError) as caught:
            js.publish_many(messages(), on_ack=fail if place == "on_ack" else None)
        report = caught.value.report
        assert caught.value.__cause__ is inner[0]
        assert failed(caught) == [*refused]
        assert (report.count, report.resume_at) == (3 - len(refused), refused[0] if refused else 3)
        assert inner[0].report.count == 2
        text = "1 of 3 messages were" if refused else "the iterable or on_ack raised .*; 3 messages"
        assert re.match(text, str(caught.value))

    def test_an_error_of_the_iterable_carries_the_report(self, js, stream):
        """
        If the iterable or `on_ack` raises, its error has the report of what was published before.
        """
        subject = f"{stream.name}.A"

        def messages():
            yield from [(subject, b"")] * 7
            raise LookupError("line 8")

        with pytest.raises(LookupError, match="line 8") as caught:
            js.publish_many(messages())
        report = caught.value.report
        assert (report.count, report.resume_at, report.failures) == (7, 7, ())

        def refuse(message, ack):
            raise LookupError(str(ack.sequence))

        with pytest.raises(LookupError) as caught:
            js.publish_many([(subject, b"")] * 3, on_ack=refuse)
        assert (caught.value.report.count, caught.value.report.resume_at) == (3, 3)

    def test_where_to_resume_after_failures_and_retries(self, js, stream, unique):
        """
        `resume_at` is the number of the messages, or the place of the first failure.
        """
        subject = f"{stream.name}.A"
        assert js.publish_many([(subject, b"")] * 5000, window=100).resume_at == 5000
        assert js.publish_many([]).resume_at == 0
        mixed = [(subject, b"")] * 20
        mixed[7] = (f"nowhere.{unique}", b"")
        mixed[3] = (f"elsewhere.{unique}", b"")
        with pytest.raises(jetsync.PublishManyError) as caught:
            js.publish_many(mixed, retries=1, retry_wait=0.01)
        assert failed(caught) == [3, 7]
        assert caught.value.report.resume_at == 3

    def test_a_message_that_waits_for_a_retry_is_not_passed(self, js, stream, unique):
        """
        After Ctrl-C, the work resumes at the message that no stream has taken yet.
        """
        subject = f"{stream.name}.A"
        seen = []

        def stop(message, ack):
            seen.append(ack.sequence)
            if len(seen) == 19:
                raise KeyboardInterrupt

        mixed = [(subject, b"")] * 20
        mixed[4] = (f"nowhere.{unique}", b"")
        with pytest.raises(KeyboardInterrupt) as caught:
            js.publish_many(mixed, retries=5, retry_wait=60, on_ack=stop, window=5)
        assert caught.value.report.resume_at <= 4

    def test_each_message_is_prepared_once(self, nats_server, js, unique):
        """
        Plugins do not get a message again when it is sent again.
        """

        class Count:
            @hookimpl
            def jetsync_prepare_message(self, message):
                headers = jetsync.Headers(message.headers or {})
                headers.add("Prepared", "yes")
                return attrs.evolve(message, headers=headers)

        timer = threading.Timer(0.1, memory_stream, (js, unique))
        with jetsync.connect(nats_server.url, plugins=[Count()]) as client:
            timer.start()
            messages = ((f"{unique}.A", b"%d" % n) for n in range(50))
            client.jetstream().publish_many(messages, retries=100)
        timer.join()
        stored = messages_in(js.stream(unique))
        assert [message.headers.get_all("Prepared") for message in stored] == [["yes"]] * 50
        js.delete_stream(unique)

    def test_a_veto_fails_one_message(self, nats_server, stream):
        """
        The others are stored, and the failure names the plugin.
        """

        class Odd:
            name = "odd"

            @hookimpl
            def jetsync_prepare_message(self, message):
                if int(message.data) % 2:
                    raise ValueError("odd")

        with (
            jetsync.connect(nats_server.url, plugins=[Odd()]) as client,
            pytest.raises(jetsync.PublishManyError) as caught,
        ):
            client.jetstream().publish_many((f"{stream.name}.A", b"%d" % n) for n in range(10))
        assert failed(caught) == [1, 3, 5, 7, 9]
        assert {f.error.plugin for f in caught.value.report.failures} == {"odd"}
        assert stream.info().state.messages == 5


class TestCallbackThatRaises:
    def test_on_ack_gets_all_acks_and_its_first_error_is_raised(self, js, stream):
        """on_ack gets all acks. Its first error is raised after all messages have ended."""
        subject = f"{stream.name}.x"
        told = []

        def on_ack(message, ack):
            told.append(ack.sequence)
            raise LookupError(ack.sequence)

        with pytest.raises(LookupError, match="1"):
            js.publish_many([(subject, b"%d" % number) for number in range(5)], on_ack=on_ack)

        assert sorted(told) == [1, 2, 3, 4, 5]
