"""
Ordered consumers on real servers: in order, without a gap or a duplicate, whatever happens.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import itertools
import shutil
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import attrs
import pytest

import jetsync
from helpers.consuming import RefusesOnce, lose_buffered
from helpers.domains import domain_link
from helpers.interrupts import Interrupt
from helpers.streams import change_creation, fill
from helpers.waiting import CLUSTER_CLIENT, at_some_pace, blocked, eventually, holds, timed
from jetsync.consume import ordered_source
from jetsync.consume.core import ConsumptionCore
from jetsync.consume.feed import Feed
from jetsync.consume.fetch import BatchIteration
from jetsync.consume.pull_feed import PullFeed
from jetsync.devserver import DevServer
from jetsync.testing import CutProxy


def take(messages, count):
    """
    The payloads of the next messages.
    """
    return [int(messages.next(timeout=20).data) for _ in range(count)]


def fetched(messages):
    """
    The payloads of a batch.
    """
    return [int(message.data) for message in messages]


class Resets:
    """
    A plugin that keeps the events of replaced consumers.
    """

    def __init__(self):
        self.seen = []

    @jetsync.hookimpl
    def jetsync_status(self, event):
        if isinstance(event, jetsync.OrderedResetEvent):
            self.seen.append(event)


class HoldsUp:
    """
    A plugin that holds up the first call that takes a message with a payload.
    """

    def __init__(self, data):
        self.data = data
        self.reached, self.go_on = threading.Event(), threading.Event()

    @jetsync.hookimpl
    def jetsync_message_received(self, message):
        if message.data == self.data and not self.reached.is_set():
            self.reached.set()
            self.go_on.wait(20)


@pytest.fixture
def ordered(stream):
    """
    An ordered consumer without filters on the test's stream.
    """
    with stream.ordered_consumer(name_prefix=f"{stream.name}-R") as ordered:
        yield ordered


class Wraps:
    """
    A plugin that wraps each fetch and changes nothing.
    """

    @jetsync.hookimpl(wrapper=True)
    def jetsync_fetch(self):
        return (yield)


class TestReset:
    def test_deleted_under_the_reader(self, js, stream, ordered):
        """
        If the consumer is deleted, the next one delivers the following messages.
        """
        fill(js, stream, 5)
        with ordered.consume() as messages:
            assert take(messages, 5) == [0, 1, 2, 3, 4]
            assert ordered.name.endswith("-R_1")
            stream.delete_consumer(ordered.name)
            fill(js, stream, 5, start=5)
            assert take(messages, 5) == [5, 6, 7, 8, 9]
            assert ordered.name.endswith("-R_2")
        assert ordered.statistics() == jetsync.OrderedStatistics(10, 10, 1)

    def test_plugins_get_events(self, nats_server, js, stream):
        """
        Each reset sends one event with the consumer, the reason and the position.
        """
        fill(js, stream, 20)
        resets = Resets()
        with jetsync.connect(nats_server.url, plugins=[resets], reconnect_wait=0.05) as client:
            own = client.jetstream().stream(stream.name)
            with own.ordered_consumer(name_prefix=f"{stream.name}-R") as ordered:
                with ordered.consume() as messages:
                    assert take(messages, 5) == [0, 1, 2, 3, 4]
                    stream.delete_consumer(ordered.name)
                    fill(js, stream, 1, start=20)
                    assert take(messages, 16) == list(range(5, 21))
                    client.reconnect()
                    # A message that is stored now may still reach the old consumer.
                    eventually(lambda: messages.next(timeout=0.1) is None and len(resets.seen) == 2)
                    fill(js, stream, 1, start=21)
                    assert take(messages, 1) == [21]
                    stream.delete_consumer(ordered.name)
                    fill(js, stream, 1, start=22)
                    assert take(messages, 1) == [22]
                assert ordered.next(0.1) is None
                stream.delete_consumer(ordered.name)
                with ordered.consume() as messages:
                    fill(js, stream, 1, start=23)
                    assert take(messages, 1) == [23]
        names = [f"{stream.name}-R_{number}" for number in range(1, 7)]
        assert [(event.before, event.consumer) for event in resets.seen] == list(
            itertools.pairwise(names)
        )
        assert [(event.reason, event.last_sequence) for event in resets.seen] == [
            ("gone", 20),
            ("reconnected", 21),
            ("gone", 22),
            ("reused", 23),
            ("gone", 23),
        ]
        assert {event.stream for event in resets.seen} == {stream.name}
        assert all(event.attempts >= 1 for event in resets.seen)
        assert resets.seen[3].attempts == 1

    @pytest.mark.parametrize("version", ["2.10.26", "2.11.11", "2.12.8", "2.14.6"])
    def test_a_deleted_ordered_consumer_is_replaced_on_every_server(
        self, server_for, unique, version
    ):
        """
        A deleted consumer is replaced on every supported server.
        """
        with jetsync.connect(server_for(version).url) as client:
            js = client.jetstream()
            stream = js.create_stream(unique, subjects=[f"{unique}.>"])
            fill(js, stream, 4)
            with stream.ordered_consumer() as ordered, ordered.consume() as messages:
                assert take(messages, 2) == [0, 1]
                stream.delete_consumer(ordered.name)
                assert take(messages, 2) == [2, 3]
                fill(js, stream, 2, start=4)
                assert take(messages, 2) == [4, 5]
            js.delete_stream(unique)

    @pytest.mark.parametrize(
        ("options", "before", "after"),
        [
            ({}, [0, 1, 2, 3, 4, 5], [6]),
            ({"opt_start_seq": 3}, [2, 3, 4, 5], [6]),
            ({"deliver_policy": "last_per_subject"}, [4, 5], [6]),
            ({"deliver_policy": "last"}, [5], [6]),
            ({"deliver_policy": "new"}, [], [6]),
            ({"filter_subjects": ["A", "C"]}, [0, 2, 4], []),
            ({"filter_subjects": "B"}, [1, 3, 5], [6]),
        ],
    )
    def test_begins_where_it_was(self, js, stream, options, before, after):
        """
        The next consumer continues at the right place, whatever the deliver policy.
        """
        if "filter_subjects" in options:
            wanted = options["filter_subjects"]
            named = [f"{stream.name}.{one}" for one in wanted]
            one = f"{stream.name}.{wanted}"
            options = {"filter_subjects": one if isinstance(wanted, str) else named}
        for number in range(6):
            fill(js, stream, 1, start=number, subject="AB"[number % 2])
        with stream.ordered_consumer(**options) as ordered:
            stream.delete_consumer(ordered.name)
            with ordered.consume() as messages:
                for number in before:
                    assert take(messages, 1) == [number]
                    if number == before[0]:
                        stream.delete_consumer(ordered.name)
                fill(js, stream, 1, start=6, subject="B")
                assert take(messages, len(after)) == after
                assert messages.next(timeout=0.05) is None

    def test_new_is_not_moved(self, js, stream):
        """
        With deliver policy "new", messages count from the creation of the first consumer.
        """
        fill(js, stream, 3)
        with stream.ordered_consumer(deliver_policy="new") as ordered:
            # The deletion may overtake the pull. Then only heartbeats reveal it.
            messages = ordered.consume(expires=2, heartbeat=0.5)
            stream.delete_consumer(ordered.name)
            fill(js, stream, 2, start=3)
            assert take(messages, 2) == [3, 4]

    def test_messages_in_flight_on_a_lost_connection_arrive_once(self, js, client, stream, ordered):
        """
        Messages that were in flight on lost connections are delivered once and in order.
        """
        fill(js, stream, 2000)
        got = []
        with ordered.consume(max_messages=100, stop_after=2000) as messages:
            for message in messages:
                got.append(message.sequence)
                if len(got) in {100, 777, 778, 1500}:
                    client.reconnect()
        assert got == list(range(1, 2001))
        assert ordered.statistics().resets >= 2

    def test_a_connection_that_does_not_come_back_soon(self, proxied, js, stream, monkeypatch):
        """
        Waiting for a connection is not an attempt, so the consumption does not give up meanwhile.
        """
        monkeypatch.setattr(ordered_source, "SHORTEST_CREATE", 0.01)
        monkeypatch.setattr(ordered_source, "CREATE_TIMEOUT", 0.01)
        fill(js, stream, 1)
        context, proxy = proxied()
        with (
            context.stream(stream.name).ordered_consumer(max_reset_attempts=1) as ordered,
            ordered.consume() as messages,
        ):
            assert take(messages, 1) == [0]
            proxy.refuse()
            proxy.cut()
            assert messages.next(timeout=0.5) is None
            monkeypatch.undo()
            proxy.accept()
            fill(js, stream, 1, start=1)
            assert take(messages, 1) == [1]

    def test_each_message_arrives_once_in_order_across_restarts(self, unique):
        """
        The consumption delivers each message once and in order across server restarts.
        """
        with DevServer() as server, jetsync.connect(server.url, reconnect_wait=0.05) as client:
            js = client.jetstream()
            stream = js.create_stream(unique, subjects=[f"{unique}.>"])
            fill(js, stream, 1000)
            got = []
            with stream.ordered_consumer() as ordered:
                for message in ordered.consume(max_messages=50, stop_after=1000):
                    got.append(message.sequence)
                    if len(got) == 400:
                        server.restart()
                assert got == list(range(1, 1001))

    def test_a_lost_message_is_delivered_by_the_next_consumer(
        self, client, js, stream, ordered, monkeypatch
    ):
        """
        The next message reveals a lost one, and the next consumer delivers it.
        """
        fill(js, stream, 1)
        messages = ordered.consume()
        assert take(messages, 1) == [0]
        receive, lost = messages._core.engine.receive, []

        def lose(frames, now):
            if frames and not lost:
                lost.append(frames.pop(0))
            return receive(frames, now)

        monkeypatch.setattr(messages._core.engine, "receive", lose)
        fill(js, stream, 2, start=1)
        assert take(messages, 2) == [1, 2]
        assert ordered.statistics().resets == 1

    def test_stop_after_counts_across_resets(self, js, stream, ordered):
        """
        ``stop_after`` counts across resets, and no further messages are pulled.
        """
        fill(js, stream, 200)
        got = []
        # The deletion may overtake a pull. Then only heartbeats reveal it.
        options = {"max_messages": 20, "expires": 2, "heartbeat": 0.5}
        for message in ordered.consume(stop_after=150, **options):
            got.append(int(message.data))
            if len(got) == 100:
                stream.delete_consumer(ordered.name)
        assert got == list(range(150))
        assert ordered.info().num_pending == 50
        assert take(ordered.consume(), 50) == list(range(150, 200))

    def test_an_exception_of_a_signal_handler_is_raised_and_the_next_call_continues(
        self, js, stream, ordered, monkeypatch
    ):
        """
        A time limit that raises in a call while it receives reaches the caller. Nothing is lost.
        """
        fill(js, stream, 3)
        messages = ordered.consume()
        assert take(messages, 3) == [0, 1, 2]

        Interrupt(monkeypatch, Feed, "step", LookupError)
        with pytest.raises(LookupError):
            messages.next(timeout=20)
        js.publish(f"{stream.name}.a", b"3")
        assert take(messages, 1) == [3]

    @pytest.mark.parametrize("how", ["next", "loop"])
    def test_a_second_ctrl_c_right_after_the_first_one_loses_no_message(
        self, js, stream, ordered, monkeypatch, how
    ):
        """
        The next call returns the message of a call that was interrupted twice.
        """
        fill(js, stream, 3)
        messages = ordered.consume()
        assert take(messages, 1) == [0]

        def again(frame, event, _):
            if event == "call" and frame.f_globals["__name__"].startswith("jetsync."):
                raise KeyboardInterrupt

        def interrupted(*_):
            sys.setprofile(again)
            raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr(ConsumptionCore, "make_taken", interrupted)
            try:
                next(messages) if how == "loop" else messages.next(timeout=20)
            except KeyboardInterrupt:
                pass
            finally:
                sys.setprofile(None)
        assert take(messages, 2) == [1, 2]


class TestEnd:
    @pytest.mark.parametrize("end", ["drain", "stop_after"])
    def test_not_before_an_interrupted_call_is_repeated(self, js, stream, ordered, end):
        """
        If Ctrl-C interrupts the call that takes the last message, the next call returns it.
        """

        def interrupted(_):
            raise KeyboardInterrupt

        fill(js, stream, 2)
        messages = ordered.consume(stop_after=None if end == "drain" else 2)
        if end == "drain":
            eventually(lambda: messages._core.refill() and len(messages._core.buffer) == 2)
            messages.drain()
        assert take(messages, 1) == [0]
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(messages._core, "make_taken", interrupted)
            with pytest.raises(KeyboardInterrupt):
                messages.next(timeout=20)
        assert not messages.closed
        assert not messages.wait(timeout=0)
        assert take(messages, 1) == [1]
        assert messages.closed
        assert messages.wait(timeout=20)

    def test_the_stream_is_missing(self, js, stream):
        """
        Starting raises an error while the stream is missing, and a reader without a position, or a
        new one, reads a new stream.
        """
        ordered, unread = stream.ordered_consumer(), stream.ordered_consumer()
        fill(js, stream, 1)
        assert fetched(ordered.fetch(1, expires=20)) == [0]
        config = stream.config
        js.delete_stream(stream.name)
        for begin in (stream.ordered_consumer, ordered.consume):
            with pytest.raises(jetsync.StreamNotFoundError, match="not found"):
                begin()
        js.create_stream(config)
        fill(js, stream, 2)
        with pytest.raises(jetsync.StreamNotFoundError, match="another one has its name"):
            ordered.consume()
        with unread:
            assert fetched(unread.fetch(2, expires=20)) == [0, 1]
        # The handle is that of the old stream.
        with stream.ordered_consumer() as ordered:
            stream.delete_consumer(ordered.name)
            assert take(ordered.consume(), 2) == [0, 1]

    def test_gives_up(self, js, stream):
        """
        The consumption ends with an error after ``max_reset_attempts`` attempts.
        """
        fill(js, stream, 1)
        with stream.ordered_consumer(max_reset_attempts=2) as ordered:
            messages = ordered.consume()
            assert take(messages, 1) == [0]
            js.delete_stream(stream.name)
            with pytest.raises(jetsync.ResetAttemptsExceededError) as caught:
                messages.next(timeout=30)
            assert caught.value.attempts == 2
            assert messages.closed
            assert list(messages) == []
            with pytest.raises(jetsync.ConsumptionClosedError):
                messages.next(timeout=1)

    def test_does_not_give_up(self, js, stream, ordered):
        """
        With -1, the consumption waits for a stream that may only be missing for a moment.
        """
        fill(js, stream, 1)
        config = stream.config
        with ordered.consume() as messages:
            assert take(messages, 1) == [0]
            js.delete_stream(stream.name)
            assert messages.next(timeout=0.3) is None
            js.create_stream(config)
            with pytest.raises(jetsync.StreamNotFoundError, match="another one has its name"):
                messages.next(timeout=20)

    @pytest.mark.parametrize("buffered", [0, 2000])
    def test_an_ordered_iteration_ends_with_its_stream(self, js, stream, ordered, buffered):
        """
        Deleting the stream ends an iteration, whether it waits or has buffered messages.
        """
        fill(js, stream, 1 + buffered)
        with ordered.consume() as messages:
            assert take(messages, 1) == [0]
            js.delete_stream(stream.name)
            came = []
            with pytest.raises(jetsync.StreamNotFoundError) as caught:
                came.extend(int(message.data) for message in messages)
            assert came == list(range(1, 1 + len(came)))
            assert caught.value.stream == stream.name
            assert isinstance(messages.error, jetsync.StreamNotFoundError)
            assert messages.closed
            with pytest.raises(jetsync.ConsumptionClosedError):
                messages.next(timeout=1)

    def test_a_dropped_reader_deletes_its_consumer(self, js, stream):
        """
        The consumer is deleted when the last reference to its reader is dropped.
        """
        fill(js, stream, 3)
        messages = stream.ordered_consumer().consume()
        assert take(messages, 3) == [0, 1, 2]
        assert len(list(stream.consumer_names())) == 1
        fill(js, stream, 1, start=3)
        assert take(messages, 1) == [3]
        del messages
        eventually(lambda: not list(stream.consumer_names()))

    def test_close_deletes(self, stream):
        """
        Closing the ordered consumer deletes its consumer at once.
        """
        ordered = stream.ordered_consumer()
        assert list(stream.consumer_names()) == [ordered.name]
        messages = ordered.consume()
        ordered.close()
        ordered.close()
        assert list(stream.consumer_names()) == []
        assert messages.closed
        assert repr(ordered).endswith(" closed>")
        with pytest.raises(jetsync.HandleClosedError):
            ordered.fetch(1)

    @pytest.mark.parametrize("lost", [False, True])
    @pytest.mark.parametrize("how", ["next", "loop"])
    def test_a_message_that_a_plugin_refuses(self, nats_server, js, stream, how, lost):
        """
        A plugin's error ends the consumption, and the next read continues at its message.
        """
        fill(js, stream, 8)
        with jetsync.connect(nats_server.url, plugins=[RefusesOnce(b"3")]) as client:
            ordered = client.jetstream().stream(stream.name).ordered_consumer()
            messages, got = ordered.consume(), []
            if lost:
                lose_buffered(client, messages, 8)
            taken = {"next": iter(lambda: messages.next(timeout=20), None), "loop": messages}
            with pytest.raises(jetsync.PluginError):
                got.extend(int(message.data) for message in taken[how])
            assert messages.closed
            assert isinstance(messages.error, jetsync.PluginError)
            assert list(messages) == []
            assert got == [0, 1, 2]
            assert fetched(ordered.fetch(5, expires=20)) == [3, 4, 5, 6, 7]

    @pytest.mark.parametrize("end", ["close", "drain"])
    def test_ended_by_a_signal_handler_while_its_consumer_is_replaced(
        self, stream, ordered, monkeypatch, end
    ):
        """
        A signal handler may close or drain a consumption whose consumer is being replaced.
        """
        connect = ConsumptionCore._connect

        def interrupted(core):
            getattr(messages, end)()
            connect(core)

        monkeypatch.setattr(ConsumptionCore, "_connect", interrupted)
        messages = ordered.consume()
        stream.delete_consumer(ordered.name)
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(list, messages)
            try:
                assert waiting.result(20) == []
            finally:
                messages.close()
        assert messages.closed

    def test_a_closed_use_replaces_no_consumer_of_the_next_one(
        self, js, stream, ordered, monkeypatch
    ):
        """
        A thread that was about to replace the consumer of a closed use leaves the next use alone.
        """
        cursor, main = ordered._source.cursor, threading.get_ident()
        next_config, reached, go_on = cursor.next_config, threading.Event(), threading.Event()

        def held_up(last):
            if threading.get_ident() != main:
                reached.set()
                go_on.wait(20)
            return next_config(last)

        monkeypatch.setattr(cursor, "next_config", held_up)
        first = ordered.consume()
        with ThreadPoolExecutor(2) as pool:
            old = pool.submit(list, first)
            eventually(lambda: first._core.reading.taker is not None)
            stream.delete_consumer(ordered.name)
            assert reached.wait(20)
            first.close()
            # Before or after the next use has its consumer.
            pool.submit(lambda: (go_on.wait(0.3), go_on.set()))
            second = ordered.consume()
            assert old.result(20) == []
        fill(js, stream, 3)
        got = [second.next(timeout=10) for _ in range(2)]
        assert [message and int(message.data) for message in got] == [0, 1]
        second.close()
        assert fetched(ordered.fetch(1, expires=20)) == [2]

    def test_a_call_of_a_closed_use_changes_no_place_of_the_next_one(self, nats_server, js, stream):
        """
        A thread that is still taking a message of a closed use does not move the next use.
        """
        fill(js, stream, 4)
        plugin = HoldsUp(b"1")
        with jetsync.connect(nats_server.url, plugins=[plugin]) as client:
            ordered = client.jetstream().stream(stream.name).ordered_consumer()
            first = ordered.consume()
            assert take(first, 1) == [0]
            with ThreadPoolExecutor(1) as pool:
                old = pool.submit(take, first, 1)
                assert plugin.reached.wait(20)
                first.close()
                with ordered.consume() as second:
                    assert take(second, 2) == [1, 2]
                    plugin.go_on.set()
                    assert old.result(20) == [1]
                    assert (second.received, ordered.statistics().last_sequence) == (2, 3)
            assert fetched(ordered.fetch(1, expires=20)) == [3]

    @pytest.mark.parametrize("end", ["close", "drain"])
    def test_ended_by_another_thread(self, ordered, end):
        """
        Closing or draining wakes a waiting thread, and its iteration ends.
        """
        messages = ordered.consume()
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(list, messages)
            blocked(pool)
            getattr(messages, end)()
            assert waiting.result(20) == []
        assert messages.wait(timeout=10)

    def test_continued_after_draining(self, js, stream, ordered):
        """
        After draining, buffered messages can be taken, and the next use continues after them.
        """
        fill(js, stream, 5)
        messages = ordered.consume()
        assert take(messages, 1) == [0]
        messages.drain()
        got = fetched(messages)
        assert messages.closed
        rest = fetched(ordered.fetch(4 - len(got), expires=20)) if len(got) < 4 else []
        assert got + rest == [1, 2, 3, 4]

    def test_a_closed_client_ends_an_ordered_iteration(self, nats_server, stream):
        """
        Closing the client ends the iteration without an error.
        """
        client = jetsync.connect(nats_server.url)
        messages = client.jetstream().stream(stream.name).ordered_consumer().consume()
        threading.Timer(0.1, client.close).start()
        assert list(messages) == []
        assert messages.error is None

    @pytest.mark.parametrize("request_name", ["create", "stream_info", "delete"])
    def test_the_client_is_closed_during_a_pause(
        self, nats_server, js, stream, monkeypatch, request_name
    ):
        """
        The pause before a request is repeated ends when the client is closed.
        """
        for pause in ("CATCH_UP", "POLL"):
            monkeypatch.setattr(ordered_source, pause, 30.0)
        monkeypatch.setattr("jetsync._base.locks.POLL", 30.0)
        monkeypatch.setattr("jetsync._proto.ordered.OrderedCursor.pause", lambda _: 30.0)
        fill(js, stream, 1)
        client = jetsync.connect(nats_server.url)
        ordered = client.jetstream(timeout=90).stream(stream.name).ordered_consumer()
        assert fetched(ordered.fetch(1, expires=20)) == [0]
        stream.delete_consumer(ordered.name)
        failures = {
            "create": jetsync.RequestTimeoutError("create", 1.0),
            "delete": jetsync.ConnectionLostError(),
        }
        emptied = stream.info()
        emptied = attrs.evolve(emptied, state=attrs.evolve(emptied.state, last_seq=0))
        admin, name = ordered_source._consumer_admin, request_name.replace("create", "send")
        if request_name == "stream_info":
            admin, name = ordered_source._stream_admin, "info"
        send = getattr(admin, name)

        def close(*_):
            monkeypatch.setattr(admin, name, send)
            client.close()
            if request_name in failures:
                raise failures[request_name]
            return emptied

        monkeypatch.setattr(admin, name, close)
        with timed(0.0, 1.0):
            if request_name == "delete":
                ordered.close()
            else:
                with pytest.raises(jetsync.ConnectionClosedError):
                    ordered.consume()

    @pytest.mark.parametrize("lost", [False, True])
    def test_the_client_is_closed(self, nats_server, js, stream, lost):
        """
        A consumption says that the client is closed, also if its consumer was lost before.
        """
        fill(js, stream, 3)
        with jetsync.connect(nats_server.url) as client:
            messages = client.jetstream().stream(stream.name).ordered_consumer().consume()
            assert messages.next(timeout=20)
            if lost:
                lose_buffered(client, messages, 2)
        with pytest.raises(jetsync.ConnectionClosedError):
            messages.next(timeout=20)
        assert messages.error is None

    def test_the_client_drains(self, nats_server, js, stream):
        """
        Draining the client waits until the buffered messages are taken, and no longer.
        """
        fill(js, stream, 500)
        client = jetsync.connect(nats_server.url)
        messages = client.jetstream().stream(stream.name).ordered_consumer().consume()
        assert take(messages, 1) == [0]
        with ThreadPoolExecutor(1) as pool:
            rest = pool.submit(fetched, messages)
            with timed(0.0, 0.9):
                client.drain()
            got = rest.result(20)
        assert got == list(range(1, len(got) + 1))
        assert messages.closed
        assert messages.error is None


class TestAnotherStream:
    """A stream is deleted, and another one with its name has other messages."""

    @pytest.fixture(params=["memory", "file"])
    def old(self, js, unique, request):
        """
        A stream with ten messages.
        """
        stream = js.create_stream(unique, subjects=[f"{unique}.>"], storage=request.param)
        fill(js, stream, 10)
        yield stream
        js.delete_stream(unique)

    @pytest.fixture(params=[15, 5, 0], ids=["more", "fewer", "empty"])
    def replace(self, js, old, request):
        """
        A function that replaces the stream by one with more or fewer messages.
        """

        def replace():
            js.delete_stream(old.name)
            js.create_stream(old.config)
            fill(js, old, request.param, start=100)

        return replace

    @pytest.mark.thorough
    @pytest.mark.parametrize("idle", [False, True])
    @pytest.mark.parametrize("way", ["fetch", "next", "consume", "iterate"])
    def test_is_not_read(self, client, old, replace, way, idle):
        """
        The open read and all later ones raise the same error as a scan, also after a reconnect.
        """
        ways = {
            "fetch": lambda: list(ordered.fetch(20, expires=20)),
            "next": lambda: ordered.next(20),
            "consume": lambda: messages.next(timeout=20),
            "iterate": lambda: next(messages),
        }
        with old.ordered_consumer() as ordered:
            if way in {"fetch", "next"}:
                assert fetched(ordered.fetch(10, expires=20)) == list(range(10))
            else:
                messages = ordered.consume()
                assert take(messages, 10) == list(range(10))
            if idle:
                replace()
                client.reconnect()
                read = ways[way]
            else:
                # The read waits for a message, and the consumer is being replaced.
                with ThreadPoolExecutor(1) as pool:
                    waiting = pool.submit(ways[way])
                    blocked(pool)
                    old.delete_consumer(ordered.name)
                    replace()
                    read = lambda: waiting.result(60)  # noqa: E731
            for again in (read, ways["fetch"], ordered.consume):
                with pytest.raises(jetsync.StreamNotFoundError, match="another one has its name"):
                    again()
                if way in {"consume", "iterate"}:
                    messages.close()
            eventually(lambda: not list(old.consumer_names()))

    @pytest.mark.parametrize("way", ["fetch", "consume"])
    def test_while_disconnected(self, proxied, old, replace, way):
        """
        The first read after an outage raises the error.
        """
        own, proxy = proxied()
        ordered = own.stream(old.name).ordered_consumer()
        assert fetched(ordered.fetch(10, expires=20)) == list(range(10))
        messages = ordered.consume() if way == "consume" else None
        proxy.refuse()
        proxy.cut()
        replace()
        proxy.accept()
        with pytest.raises(jetsync.StreamNotFoundError, match="another one has its name"):
            take(messages, 1) if messages else ordered.next(20)

    @pytest.mark.parametrize("policy", ["new", "last"])
    def test_the_new_stream_is_not_read_from_the_old_position(self, js, stream, policy):
        """
        A reader whose position is that of the old stream does not read the new one from there.
        """
        fill(js, stream, 3)
        config = stream.config
        with stream.ordered_consumer(deliver_policy=policy) as ordered:
            js.delete_stream(stream.name)
            js.create_stream(config)
            fill(js, stream, 5, start=100)
            with pytest.raises(jetsync.StreamNotFoundError, match="another one has its name"):
                ordered.next(20)

    @pytest.mark.parametrize("is_deleted", [False, True])
    @pytest.mark.parametrize("policy", ["all", "new"])
    def test_a_stream_that_was_emptied(self, monkeypatch, policy, is_deleted, unique):
        """
        A stream that has lost its messages, and has stored as many again, is another one, too.
        """
        # There is only one clock.
        monkeypatch.setattr("jetsync.consume.ordered_source.CLOCKS", dt.timedelta(0))
        with DevServer() as server, jetsync.connect(server.url, reconnect_wait=0.05) as client:
            js = client.jetstream()
            stream = js.create_stream(unique, subjects=[f"{unique}.>"])
            fill(js, stream, 3)
            ordered = stream.ordered_consumer(deliver_policy=policy)
            if policy == "all":
                assert fetched(ordered.fetch(3, expires=20)) == [0, 1, 2]
            server.stop()
            (messages,) = server.store.glob(f"**/{unique}/msgs")
            shutil.rmtree(messages)
            server.start()
            fill(js, stream, 5, start=100)
            if is_deleted:
                stream.delete_message(3)
            assert stream.info().created == stream.cached_info.created
            with pytest.raises(jetsync.StreamNotFoundError, match="has lost its messages up to"):
                ordered.next(20)

    @pytest.mark.parametrize("way", ["fetch", "next", "consume"])
    def test_a_stream_that_was_emptied_and_filled_later(self, unique, way):
        """
        Reads after the error raise it again, also once the lost sequences have other messages.
        """
        with DevServer() as server, jetsync.connect(server.url, reconnect_wait=0.05) as client:
            js = client.jetstream()
            stream = js.create_stream(unique, subjects=[f"{unique}.>"])
            fill(js, stream, 3)
            ordered = stream.ordered_consumer(deliver_policy="new")
            server.stop()
            (messages,) = server.store.glob(f"**/{unique}/msgs")
            shutil.rmtree(messages)
            server.start()
            ways = {
                "fetch": lambda: list(ordered.fetch(20, expires=20)),
                "next": lambda: ordered.next(20),
                "consume": lambda: next(ordered.consume()),
            }
            with pytest.raises(jetsync.StreamNotFoundError, match="has lost its messages up to"):
                ways[way]()
            fill(js, stream, 5, start=100)
            for again in ways.values():
                with pytest.raises(jetsync.StreamNotFoundError, match="messages up to sequence 3"):
                    again()


@pytest.fixture(scope="module")
def server():
    """
    A server before 2.14 that the tests restart.
    """
    with DevServer("2.12.8") as server:
        yield server


@pytest.mark.versions
class TestTimeOfCreation:
    """
    A server before 2.14 reports another time of creation for a stream that is still the same.
    """

    @pytest.fixture
    def js(self, server):
        """
        A context that survives the restarts.
        """
        with jetsync.connect(server.url, reconnect_wait=0.05) as client:
            yield client.jetstream()

    @pytest.fixture
    def stream(self, js, unique):
        """
        A file stream with ten messages.
        """
        stream = js.create_stream(unique, subjects=[f"{unique}.>"])
        fill(js, stream, 10)
        return stream

    @pytest.mark.parametrize("removed", ["nothing", "the last", "the first", "all"])
    @pytest.mark.parametrize("way", ["fetch", "consume"])
    def test_an_ordered_read_continues_after_the_last_message(
        self, server, js, stream, way, removed
    ):
        """
        The read continues after the last message that it has read, whether that is stored or not.
        """
        with stream.ordered_consumer() as ordered:
            messages = ordered.consume() if way == "consume" else None
            came = take(messages, 10) if messages else fetched(ordered.fetch(10, expires=20))
            if removed == "the last":
                stream.delete_message(10)
            elif removed != "nothing":
                stream.purge(keep=1 if removed == "the first" else None)
            change_creation(server, js, stream.name)
            fill(js, stream, 3, start=10)
            came += take(messages, 3) if messages else fetched(ordered.fetch(3, expires=20))
            assert came == list(range(13))
            assert ordered.statistics().resets > 0

    @pytest.mark.parametrize("policy", ["all", "new", "last"])
    def test_a_reader_that_has_read_nothing_keeps_its_place(self, server, js, stream, policy):
        """
        A reader that has read nothing keeps its place.
        """
        with stream.ordered_consumer(deliver_policy=policy) as ordered:
            change_creation(server, js, stream.name)
            fill(js, stream, 3, start=10)
            first = {"all": 0, "new": 10, "last": 9}[policy]
            assert fetched(ordered.fetch(13 - first, expires=20)) == list(range(first, 13))

    @pytest.mark.parametrize("count", [0, 5, 15])
    @pytest.mark.parametrize("is_first_gone", [False, True])
    def test_another_stream(self, server, js, stream, count, is_first_gone):
        """
        The messages of a stream that was created again are not read from the old position.
        """
        with stream.ordered_consumer() as ordered:
            assert fetched(ordered.fetch(10, expires=20)) == list(range(10))
            change_creation(server, js, stream.name)
            fill(js, stream, 1, start=10)
            assert fetched(ordered.fetch(1, expires=20)) == [10]
            js.delete_stream(stream.name)
            js.create_stream(stream.config)
            fill(js, stream, count, start=100)
            if is_first_gone and count:
                stream.delete_message(min(count, 11))
            with pytest.raises(jetsync.StreamNotFoundError, match="another one has its name"):
                ordered.next(20)


class TestThreads:
    @pytest.mark.parametrize("what", ["consumer", "batch"])
    @pytest.mark.parametrize("call", ["next", "fetch", "consume"])
    def test_closing_an_ordered_read_wakes_the_thread_that_waits(self, stream, call, what):
        """
        Closing ends the call of a thread that waits, and no consumer is created after that.
        """
        ordered = stream.ordered_consumer()
        if call == "next":
            use, wait = ordered, lambda: ordered.next(30)
        else:
            use = ordered.fetch(5, expires=30) if call == "fetch" else ordered.consume()
            wait = lambda: list(use)  # noqa: E731
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(wait)
            blocked(pool)
            with timed(0, 1):
                (use if what == "batch" else ordered).close()
                assert not waiting.result(20)
        ordered.close()
        holds(lambda: list(stream.consumer_names()) == [], 0.5)

    @pytest.mark.parametrize("call", ["fetch", "consume"])
    def test_closed_while_a_use_begins(self, call):
        """
        Closing ends a call that waits for its consumer with HandleClosedError.
        """
        with DevServer() as server, jetsync.connect(server.url) as client:
            stream = client.jetstream().create_stream("S", subjects=["s.>"])
            ordered = stream.ordered_consumer()
            # A consumer that may have sent something is replaced before the next use.
            ordered.fetch(1).close()
            begin = ordered.consume if call == "consume" else lambda: ordered.next(20)
            with ThreadPoolExecutor(1) as pool:
                server.pause()
                try:
                    waiting = pool.submit(begin)
                    blocked(pool)
                    ordered.close(timeout=0.1)
                finally:
                    server.resume()
                with timed(0, 1), pytest.raises(jetsync.HandleClosedError):
                    waiting.result(30)
            eventually(lambda: list(stream.consumer_names()) == [])

    def test_the_time_after_a_signal_is_over(self, client, js, stream, ordered):
        """
        Once the time after a signal is over, a batch yields nothing more of what has arrived.
        """
        fill(js, stream, 5)
        batch = ordered.fetch(5, expires=30)
        eventually(lambda: len(batch._fetch.core.feed.box.frames) == 5)
        messages = iter(batch)
        assert next(messages).data == b"0"
        client._stop_now()
        assert fetched(messages) == []

    def test_two_iterations_of_a_batch(self, js, stream, ordered):
        """
        A thread that iterates while another one waits for a message gets an error.
        """
        fill(js, stream, 1)
        batch = ordered.fetch(2, expires=30)
        first, second = iter(batch), iter(batch)
        assert next(first).data == b"0"
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(next, first)
            blocked(pool)
            with pytest.raises(jetsync.ConflictingUseError, match="of this batch"):
                next(second)
            fill(js, stream, 1, start=1)
            assert waiting.result(10).data == b"1"


class TestUse:
    def test_no_handler(self, ordered):
        """
        Passing a handler or a number raises an error that explains the alternative.
        """
        for given in (print, 100):
            with pytest.raises(jetsync.InvalidArgumentError, match="cannot call a handler"):
                ordered.consume(given)

    def test_a_second_use_of_an_ordered_consumer_names_the_open_one(self, js, stream, ordered):
        """
        A second use raises an error that names the open one.
        """
        fill(js, stream, 4)
        messages = ordered.consume()
        with pytest.raises(jetsync.ConflictingUseError, match="a consume of"):
            ordered.fetch(1)
        with pytest.raises(jetsync.ConflictingUseError, match="a consume of"):
            ordered.consume()
        messages.close()
        batch = ordered.fetch(2)
        with pytest.raises(jetsync.ConflictingUseError, match="a fetch of"):
            ordered.consume()
        assert fetched(batch) == [0, 1]
        assert int(ordered.next(20).data) == 2
        with ordered.consume() as messages:
            assert take(messages, 1) == [3]

    def test_a_second_thread_of_an_ordered_read_gets_an_error(self, js, stream, ordered):
        """
        A thread that takes a message while another one waits gets an error.
        """
        messages = ordered.consume()
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(messages.next, timeout=30)
            eventually(lambda: messages._core.reading.taker is not None)
            with pytest.raises(jetsync.ConflictingUseError, match="another call"):
                next(messages)
            fill(js, stream, 1)
            assert waiting.result(20).data == b"0"

    def test_pulls_before_the_buffer_is_empty(self, js, stream, ordered):
        """
        The next pull is sent when half of the buffer was taken.
        """
        fill(js, stream, 30)
        with ordered.consume(max_messages=10) as messages:
            eventually(lambda: len(messages._core.feed.box.frames) == 10)
            assert take(messages, 6) == [*range(6)]
            pulling = stream.consumer(ordered.name)
            assert eventually(lambda: pulling.info().delivered.consumer_seq > 10)

    def test_an_ordered_consumer_is_in_memory_and_needs_no_acks(self, ordered, stream):
        """
        The consumer on the server is in memory and needs no acknowledgements.
        """
        config = ordered.info().config
        assert config.ack_policy is jetsync.AckPolicy.NONE
        assert (config.mem_storage, config.num_replicas) == (True, 1)
        assert (config.inactive_threshold, config.max_deliver) == (300, 1)
        assert repr(ordered) == f"<OrderedConsumer {stream.name}/{ordered.name} last=None>"

    @pytest.mark.parametrize(
        "options",
        [
            {"opt_start_seq": 3, "opt_start_time": dt.datetime.now(dt.timezone.utc)},
            {"deliver_policy": "new", "opt_start_seq": 3},
            {"deliver_policy": "by_start_time"},
            {"opt_start_seq": 0},
            {"name_prefix": "a.b"},
            {"max_reset_attempts": -2},
        ],
    )
    def test_options_of_an_ordered_read_that_do_not_fit_are_refused(self, stream, options):
        """
        Options that exclude each other are rejected before anything is sent.
        """
        with pytest.raises(jetsync.InvalidArgumentError):
            stream.ordered_consumer(**options)
        assert list(stream.consumer_names()) == []


class TestFetch:
    def test_timeouts_keep_the_position(self, js, stream):
        """
        Empty fetches keep the position, and one consumer delivers 1,000 messages in order.
        """

        def attempt(pace):
            stream.purge()
            got = []
            with stream.ordered_consumer(name_prefix=f"{stream.name}-R") as ordered:
                for start in range(0, 1000, 250):
                    assert ordered.next(expires=0.05 * pace) is None
                    assert fetched(ordered.fetch(5, no_wait=True)) == []
                    fill(js, stream, 250, start=start)
                    while len(got) < start + 250:
                        got += fetched(ordered.fetch(99, expires=0.1 * pace))
                # If a busy server is late to end a pull, the consumer is replaced.
                assert ordered.name.endswith("_1")
            return got

        assert at_some_pace(attempt) == list(range(1000))

    @pytest.mark.parametrize("no_wait", [False, True])
    def test_the_connection_is_lost_before_its_pull(
        self, nats_server, js, stream, monkeypatch, no_wait
    ):
        """
        A fetch whose consumer is ready, and whose connection is lost, waits for the next one.
        """
        fill(js, stream, 10)
        with (
            CutProxy(nats_server.url) as proxy,
            jetsync.connect(proxy.url, reconnect_wait=0.05, max_reconnect_wait=0.1) as client,
            client.jetstream().stream(stream.name).ordered_consumer() as ordered,
            ThreadPoolExecutor(1) as pool,
        ):
            assert fetched(ordered.fetch(3)) == [0, 1, 2]
            start, lost = ordered_source.OrderedSource.start, threading.Event()

            def started(source, deadline, **options):
                start(source, deadline, **options)
                if not lost.is_set():
                    proxy.refuse()
                    proxy.cut()
                    eventually(lambda: not client.is_connected)
                    lost.set()

            monkeypatch.setattr(ordered_source.OrderedSource, "start", started)
            reading = pool.submit(lambda: fetched(ordered.fetch(4, expires=20, no_wait=no_wait)))
            assert lost.wait(20)
            proxy.accept()
            found = reading.result(30)
            # Without a connection, none is available now.
            assert found == [3, 4, 5, 6] or (no_wait and not found)
            assert int(ordered.next(20).data) == 3 + len(found)

    def test_left_early(self, js, stream, ordered):
        """
        The next fetch returns the messages that the previous one left.
        """
        fill(js, stream, 10)
        for message in ordered.fetch(5):
            assert message.data == b"0"
            break
        assert int(ordered.next(20).data) == 1
        ordered.fetch(3).close()
        ordered.fetch(3)
        assert fetched(ordered.fetch(8, expires=20)) == list(range(2, 10))

    def test_deleted_meanwhile(self, js, stream, ordered):
        """
        A fetch replaces a consumer that is deleted during or before it.
        """
        fill(js, stream, 3)
        got = []
        for message in ordered.fetch(5, expires=5):
            got.append(int(message.data))
            if len(got) == 3:
                stream.delete_consumer(ordered.name)
                fill(js, stream, 3, start=3)
        assert got == [0, 1, 2, 3, 4]
        stream.delete_consumer(ordered.name)
        assert int(ordered.next(5).data) == 5

    def test_the_count_of_a_fetch_whose_next_consumer_sends_nothing(
        self, js, stream, ordered, monkeypatch
    ):
        """
        If the first pull of the next consumer fails, the messages of earlier ones still count.
        """
        fill(js, stream, 3)
        batch = ordered.fetch(5, expires=60)
        messages = iter(batch)
        for _ in range(3):
            next(messages)

        def fail(*_):
            raise jetsync.DisconnectedError

        monkeypatch.setattr(PullFeed, "pull", fail)
        stream.delete_consumer(ordered.name)
        with pytest.raises(jetsync.DisconnectedError):
            next(messages)
        assert batch.received == 3

    @pytest.mark.parametrize("wrapped", [False, True])
    @pytest.mark.parametrize("loss", ["gone", "gap", "silent", "reconnected"])
    def test_a_fetch_that_plugins_wrap_replaces_its_consumer(
        self, nats_server, js, stream, monkeypatch, loss, wrapped
    ):
        """
        A fetch replaces a consumer that is lost, whether a plugin wraps it or not.
        """
        resets = Resets()
        plugins = [resets, Wraps()] if wrapped else [resets]
        with jetsync.connect(nats_server.url, plugins=plugins, reconnect_wait=0.05) as client:
            own = client.jetstream().stream(stream.name)
            with own.ordered_consumer() as ordered:
                fill(js, stream, 3)
                if loss == "gap":
                    # The messages that another reader takes are missing.
                    taken = stream.consumer(ordered.name).fetch(1, expires=20)
                    assert fetched(taken) == [0]
                heartbeat = 0.5 if loss == "silent" else 20
                batch = ordered.fetch(5, expires=60, heartbeat=heartbeat)
                messages, got = iter(batch), []
                if loss != "gap":
                    got = [int(next(messages).data) for _ in range(3)]
                if loss == "gone":
                    stream.delete_consumer(ordered.name)
                elif loss == "silent":
                    feed = batch._fetch.core.feed
                    monkeypatch.setattr(feed, "receive", lambda _: feed.box.frames.clear())
                elif loss == "reconnected":
                    client.reconnect()
                fill(js, stream, 3, start=3)
                got += fetched(messages)
                assert got == [0, 1, 2, 3, 4]
                assert fetched(ordered.fetch(1, expires=20)) == [5]
        assert resets.seen[0].reason == loss

    @pytest.mark.parametrize("leave", ["break", "close", "Ctrl-C", "Ctrl-C in the loop"])
    def test_a_batch_that_was_left_changes_no_position(
        self, js, stream, ordered, monkeypatch, leave
    ):
        """
        If a batch that was left early is iterated again, the next fetch still gets the messages
        that were not taken.
        """
        fill(js, stream, 30)
        batch, got = ordered.fetch(10, expires=20), []
        with contextlib.suppress(KeyboardInterrupt):
            for message in batch:
                got.append(int(message.data))
                if leave == "Ctrl-C":
                    Interrupt(monkeypatch, BatchIteration, "_make")
                elif len(got) == 3:
                    if leave == "close":
                        batch.close()
                    if leave == "Ctrl-C in the loop":
                        raise KeyboardInterrupt
                    break
        monkeypatch.undo()
        if leave == "close":
            assert fetched(batch) == []
        else:
            with pytest.raises(jetsync.HandleClosedError, match="may be missing"):
                next(iter(batch))
        rest = fetched(ordered.fetch(5, expires=20))
        assert rest == list(range(len(got), len(got) + 5))

    def test_an_ended_batch_that_is_iterated_again_changes_no_position(self, js, stream, ordered):
        """
        If an ended batch is iterated again while a newer one is open, and that one is left, no
        message is skipped.
        """
        fill(js, stream, 30)
        ended = ordered.fetch(3, expires=20)
        assert fetched(ended) == [0, 1, 2]
        batch = ordered.fetch(10, expires=20)
        messages = iter(batch)
        assert [int(next(messages).data) for _ in range(3)] == [3, 4, 5]
        assert fetched(ended) == []
        batch.close()
        assert fetched(ordered.fetch(5, expires=20)) == [6, 7, 8, 9, 10]

    def test_an_ended_batch_creates_no_consumer(self, nats_server, js, stream):
        """
        If a batch that has ended is iterated again after a reconnect, it takes no message and
        creates no consumer.
        """
        fill(js, stream, 4)
        with (
            jetsync.connect(nats_server.url, reconnect_wait=0.05) as client,
            client.jetstream().stream(stream.name).ordered_consumer() as ordered,
        ):
            ended = ordered.fetch(10, no_wait=True)
            assert fetched(ended) == [0, 1, 2, 3]
            fill(js, stream, 10, start=4)
            client.reconnect()
            name = ordered.name
            assert fetched(ended) == []
            assert ordered.name == name
            assert fetched(ordered.fetch(10, expires=20)) == list(range(4, 14))

    @pytest.mark.parametrize("when", ["before", "after"])
    def test_closed_by_another_thread_while_its_consumer_is_replaced(
        self, stream, ordered, monkeypatch, when
    ):
        """
        If another thread closes a batch while its consumer is being replaced, the iteration ends.
        """
        batch = ordered.fetch(10, expires=120)
        resume = ConsumptionCore._resume

        def close_by_another():
            with ThreadPoolExecutor(1) as pool:
                pool.submit(batch.close).result(20)

        def closing(core):
            if when == "before":
                close_by_another()
            resume(core)
            if when == "after":
                close_by_another()

        monkeypatch.setattr(ConsumptionCore, "_resume", closing)
        # Otherwise, the deletion may overtake the pull.
        eventually(lambda: ordered.info().num_waiting == 1)
        stream.delete_consumer(ordered.name)
        with timed(0, 10):
            assert fetched(batch) == []
        assert batch.closed

    def test_fetches_across_lost_connections_skip_no_message(self, client, js, stream, ordered):
        """
        Fetches across lost connections skip no message.
        """
        fill(js, stream, 300)
        got = []
        while len(got) < 300:
            for message in ordered.fetch(min(70, 300 - len(got)), expires=20):
                got.append(int(message.data))
                if len(got) in {50, 140, 141}:
                    client.reconnect()
        assert got == list(range(300))

    def test_the_stream_is_gone(self, js, stream, ordered):
        """
        A missing stream is reported when the time is over. Closing raises no error.
        """
        js.delete_stream(stream.name)

        def attempt(pace):
            for _ in range(2):
                with pytest.raises(jetsync.StreamNotFoundError):
                    ordered.next(0.5 * pace)

        at_some_pace(attempt)
        ordered.close()


class TestRetention:
    @pytest.mark.cluster
    def test_a_replicated_stream_that_keeps_messages_for_consumers(self, unique):
        """
        The server refuses consumers of such a stream that have fewer replicas than the stream.
        """
        with (
            DevServer(cluster=3) as cluster,
            jetsync.connect(cluster.url, **CLUSTER_CLIENT) as client,
        ):
            js = client.jetstream()
            stream = js.create_stream(
                unique, subjects=[f"{unique}.>"], num_replicas=3, retention="interest"
            )
            stream.create_consumer("keeper")
            fill(js, stream, 20)
            with stream.ordered_consumer() as ordered:
                assert len(ordered.info().cluster.replicas) == 2
                assert fetched(ordered.fetch(10, expires=20)) == list(range(10))
                stream.delete_consumer(ordered.name)
                assert fetched(ordered.fetch(10, expires=20)) == list(range(10, 20))

    @pytest.mark.parametrize(
        "read",
        [
            pytest.param(lambda ordered: [*ordered.fetch(5, expires=0.05)], id="fetch"),
            pytest.param(lambda ordered: ordered.next(expires=0.05), id="next"),
        ],
    )
    def test_too_little_time_to_replace_an_absent_consumer(self, js, stream, monkeypatch, read):
        """
        A fetch whose pulls no server answers does not look like one that found no message.
        """
        fill(js, stream, 5)
        ordered = stream.ordered_consumer()
        # Servers describe the consumer, but no pull reaches it, as before it has a leader.
        absent = f"$JS.API.CONSUMER.MSG.NEXT.{stream.name}.absent".encode()
        monkeypatch.setattr(ordered._source.target, "subject", absent)
        with pytest.raises(jetsync.ConsumerUnavailableError):
            read(ordered)
        assert fetched(ordered.fetch(5, expires=20)) == list(range(5))

    @pytest.mark.cluster
    @pytest.mark.thorough
    def test_the_server_of_the_consumer_is_killed(self, unique):
        """
        A fetch replaces a consumer whose only server is down, while the stream has others.
        """
        with (
            DevServer(cluster=3) as cluster,
            jetsync.connect(
                cluster.urls[0], ignore_discovered_servers=True, **CLUSTER_CLIENT
            ) as client,
        ):
            js = client.jetstream(timeout=30)
            stream = js.create_stream(unique, subjects=[f"{unique}.>"], num_replicas=3)
            fill(js, stream, 20)
            leader = 0
            while not leader:
                # Servers choose where it is.
                ordered = stream.ordered_consumer()
                leader = int(ordered.info().cluster.leader.rpartition("-")[2])
            assert fetched(ordered.fetch(5, expires=20)) == list(range(5))
            killed = ordered.name
            cluster.kill(leader)

            def is_absent():
                try:
                    client.request(f"$JS.API.CONSUMER.MSG.NEXT.{unique}.{killed}", timeout=1)
                except jetsync.NoRespondersError:
                    return True
                except jetsync.RequestTimeoutError:
                    return False

            eventually(is_absent)
            assert fetched(ordered.fetch(5, expires=60, heartbeat=29)) == list(range(5, 10))
            assert ordered.name != killed

    def test_a_work_queue_is_refused(self, js, unique):
        """
        The error names another way to read a work queue.
        """
        stream = js.create_stream(unique, subjects=[f"{unique}.>"], retention="workqueue")
        with pytest.raises(jetsync.NotSupportedError, match=r"work queue .*scan\(\)") as caught:
            stream.ordered_consumer()
        assert isinstance(caught.value.__cause__, jetsync.ApiError)
        js.delete_stream(unique)


class TestDomains:
    def test_closed_while_its_domain_is_out_of_reach(self, nats_server, client, stream):
        """
        Closing without a link to the domain leaves the deletion to the server's timeout.
        """
        with domain_link(nats_server.url):
            hub = client.jetstream(domain="hub").stream(stream.name)
            ordered = hub.ordered_consumer()
        ordered.close(timeout=0.3)
        with pytest.raises(jetsync.HandleClosedError):
            ordered.fetch(1)
