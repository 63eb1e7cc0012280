"""
Priority groups on real servers: overflow, pinned clients, priorities (servers from 2.11 up).
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

import jetsync
from helpers.connections import client_of
from helpers.waiting import at_some_pace, eventually, is_led, timed, unless_late
from jetsync.testing import HookRecorder

PINNING = ["2.11.11", "2.12.8", None]
"""Servers that say "not your pin" in different ways; None is the newest."""


def fill(js, stream, count, start=0):
    """
    Publish *count* messages with their numbers as payload.
    """
    js.publish_many((f"{stream.name}.A", b"%d" % number) for number in range(start, start + count))


def pull_wire(pulls):
    """
    The requests of the pulls that have arrived.
    """
    found = []
    while (message := pulls.next(timeout=0)) is not None:
        found.append(json.loads(message.data))
    return found


def ids(messages):
    """
    The pin ids of messages.
    """
    return {message.headers["Nats-Pin-Id"] for message in messages}


@pytest.fixture
def group(stream):
    """
    A factory of consumers of one group, "A".
    """

    def make(policy, **config):
        return stream.create_consumer(
            "worker", priority_groups=["A"], priority_policy=policy, **config
        )

    return make


def nothing(worker, count, **threshold):
    """
    Return whether a fetch with a threshold ends without a message.
    """
    return not unless_late(lambda: list(worker.fetch(count, group="A", expires=0.3, **threshold)))


class TestOverflow:
    def test_enough_is_pending(self, js, stream, group):
        """
        Messages are delivered only from min_pending on.
        """
        worker = group("overflow")
        fill(js, stream, 100)
        assert nothing(worker, 10, min_pending=110)
        fill(js, stream, 100, start=100)
        assert len(list(worker.fetch(10, group="A", min_pending=110, expires=5))) == 10

    def test_enough_waits_for_acks(self, js, stream, group):
        """
        Messages are delivered only from min_ack_pending on.
        """
        worker = group("overflow")
        fill(js, stream, 30)
        assert nothing(worker, 5, min_ack_pending=5)
        held = list(worker.fetch(5, group="A", expires=5))
        assert len(list(worker.fetch(5, group="A", min_ack_pending=5, expires=5))) == 5
        assert len(held) == 5

    def test_a_consumption(self, js, stream, group):
        """
        A consumption with a threshold gets the messages beyond it.
        """
        worker = group("overflow")
        fill(js, stream, 20)
        with worker.consume(group="A", min_pending=11, max_messages=5) as messages:
            for _ in range(10):
                messages.next(timeout=20).ack()
            assert messages.next(timeout=0.3) is None

    @pytest.mark.versions
    @pytest.mark.parametrize("version", ["2.11.11", "2.12.8", "2.14.6"])
    def test_both_overflow_thresholds_work_on_older_servers(self, server_for, unique, version):
        """
        Both thresholds work on older servers too.
        """
        with jetsync.connect(server_for(version).url) as client:
            js = client.jetstream()
            stream = js.create_stream(unique, subjects=[f"{unique}.>"], storage="memory")
            worker = stream.create_consumer(
                "worker", priority_groups=["A"], priority_policy="overflow"
            )
            fill(js, stream, 10)
            assert nothing(worker, 5, min_pending=11)
            assert len(list(worker.fetch(5, group="A", min_pending=6, expires=5))) == 5
            assert len(list(worker.fetch(2, group="A", min_ack_pending=5, expires=5))) == 2
            assert nothing(worker, 1, min_ack_pending=8)
            js.delete_stream(unique)


class TestErrors:
    @pytest.mark.parametrize(
        ("options", "text"),
        [
            ({}, "Priority Group missing"),
            ({"group": "B"}, "Invalid Priority Group"),
            ({"group": "A", "min_pending": 5}, "Not a Overflow Priority consumer"),
        ],
    )
    def test_options_that_do_not_fit_the_groups_are_refused(self, js, stream, group, options, text):
        """
        Options that do not fit the groups of the consumer are refused by the server and by jetsync.
        """
        worker = group("pinned_client", priority_timeout=2)
        with pytest.raises(jetsync.InvalidGroupError, match=text):
            worker.consume(**options)
        with pytest.raises(jetsync.InvalidGroupError, match=text):
            list(worker.fetch(1, expires=20, **options))

    def test_refused_by_the_server(self, js, stream, group):
        """
        A consumption whose pull the server refuses ends with the same error.
        """
        plain = stream.create_consumer("worker")
        stream.delete_consumer("worker")
        group("overflow")
        with pytest.raises(jetsync.InvalidGroupError, match="Priority Group missing"):
            next(plain.consume())

    @pytest.mark.versions
    @pytest.mark.parametrize("version", PINNING)
    @pytest.mark.parametrize("consuming", [False, True])
    def test_messages_for_a_refused_pull(self, server_for, nats_server, unique, version, consuming):
        """
        Servers before 2.14 refuse such a pull and still serve it. Its messages are given back, and
        go to a valid pull.
        """
        server = nats_server if version is None else server_for(version)
        with jetsync.connect(server.url) as client, jetsync.connect(server.url) as other:
            js = client.jetstream()
            stream = js.create_stream(unique, subjects=[f"{unique}.>"], storage="memory")
            config = {"durable_name": "worker", "priority_groups": ["A"], "ack_wait": 60}
            stale = stream.create_consumer(**config, priority_policy="overflow")
            stream.delete_consumer("worker")
            stream.create_consumer(**config, priority_policy="pinned_client", priority_timeout=1)
            options = {"group": "A", "min_pending": 1, "expires": 5}
            with pytest.raises(jetsync.InvalidGroupError):
                list(stale.consume(**options) if consuming else stale.fetch(3, **options))
            client.flush()
            fill(js, stream, 4)
            worker = other.jetstream().consumer(unique, "worker")
            got = set()
            end = time.monotonic() + 30
            while len(got) < 4 and time.monotonic() < end:
                for message in worker.fetch(4 - len(got), group="A", expires=2):
                    message.ack()
                    got.add(int(message.data))
            assert got == {0, 1, 2, 3}
            js.delete_stream(unique)


@pytest.mark.versions
@pytest.mark.parametrize("version", PINNING)
class TestPinned:
    @pytest.fixture
    def pinned(self, version, server_for, nats_server, unique):
        """
        A stream, a recorder, and a factory of consumers that returns two clients' handles.
        """
        server = nats_server if version is None else server_for(version)
        recorder = HookRecorder("jetsync_status")
        with (
            jetsync.connect(server.url, plugins=[recorder]) as one,
            jetsync.connect(server.url) as other,
        ):
            js = one.jetstream()
            stream = js.create_stream(unique, subjects=[f"{unique}.>"], storage="memory")

            def handles(seconds):
                first = stream.create_consumer(
                    f"worker{seconds}",
                    priority_groups=["A"],
                    priority_policy="pinned_client",
                    priority_timeout=seconds,
                    ack_wait=300,
                )
                return first, other.jetstream().consumer(unique, first.name)

            yield js, stream, recorder, handles
            js.delete_stream(unique)

    def test_every_pull_after_the_first_message_has_the_pin_id(self, pinned):
        """
        Every pull after the first message has the pin id, and the other client waits.
        """
        js, stream, _, handles = pinned
        first, second = handles(60)
        wire = client_of(js)
        with wire.subscribe(f"$JS.API.CONSUMER.MSG.NEXT.{stream.name}.>") as pulls:
            wire.flush()
            fill(js, stream, 50)
            with first.consume(group="A", max_messages=10) as messages:
                got = [messages.next(timeout=20) for _ in range(20)]
                with second.consume(group="A", expires=1) as others:
                    wire.flush()
                    asked = pull_wire(pulls)
                    assert others.next(timeout=0.3) is None
                    assert others.error is None
        assert len(ids(got)) == 1
        own = [pull for pull in asked if pull["batch"] <= 10]
        assert [pull.get("id") for pull in own[1:]] == [*ids(got)] * (len(own) - 1)
        assert "id" not in own[0]
        assert len(own) >= 3

    def test_each_way_to_pull(self, pinned):
        """
        Fetches, next and consumptions of one handle share the pin.
        """
        js, stream, _, handles = pinned
        worker, _ = handles(60)
        fill(js, stream, 8)
        got = []
        with timed(0.0, 5):
            for _ in range(2):
                got += list(worker.fetch(1, group="A", expires=20))
                got.append(worker.next(20, group="A"))
                with worker.consume(group="A", max_messages=2, stop_after=2) as messages:
                    got += list(messages)
        assert [int(message.data) for message in got] == list(range(8))
        assert len(ids(got)) == 1
        stream.unpin_consumer(worker.name, "A")
        fill(js, stream, 1, start=8)
        with timed(0.0, 5):
            (message,) = worker.fetch(1, group="A", expires=20)
        assert int(message.data) == 8
        assert ids([message]) != ids(got)

    def test_another_client_is_pinned(self, pinned):
        """
        A client that has lost its pin continues without the id.
        """
        js, stream, recorder, handles = pinned

        def attempt(pace):
            first, second = handles(pace)
            options = {"group": "A", "max_messages": 5, "expires": 3 * pace}
            recorder.clear()
            stream.purge()
            fill(js, stream, 30)
            with first.consume(**options) as messages:
                got = [messages.next(timeout=20)]
                with second.consume(**options) as others:
                    news = [others.next(timeout=20) for _ in range(10)]
                    assert len(ids(news)) == 1
                    assert ids(news) != ids(got)
                    # The pin is back: available messages are taken, and the next pull is refused.
                    got += [messages.next(timeout=20) for _ in range(4)]
                    assert messages.next(timeout=0.5 * pace) is None
                    events = [call["event"] for call in recorder.of("jetsync_status")]
                    assert 423 in [getattr(event, "code", None) for event in events]
                assert messages.error is None
                fill(js, stream, 5, start=30)
                again = messages.next(timeout=20)
                assert ids([again]) not in [ids(got), ids(news)]

        at_some_pace(attempt)

    def test_after_an_unpin_the_other_client_gets_messages_at_once(self, pinned):
        """
        After an unpin, the other client gets messages at once.
        """
        js, stream, _, handles = pinned
        first, second = handles(60)
        fill(js, stream, 1)
        with contextlib.ExitStack() as stack:
            pool = stack.enter_context(ThreadPoolExecutor(2))
            messages = stack.enter_context(first.consume(group="A", expires=10))
            messages.next(timeout=20).ack()
            others = stack.enter_context(second.consume(group="A", expires=10))
            waiting = [pool.submit(each.next, timeout=60) for each in (messages, others)]
            eventually(lambda: is_led(messages) and is_led(others))
            stream.unpin_consumer(first.name, "A")
            fill(js, stream, 20, start=1)
            with timed(0.0, 1):
                eventually(lambda: any(future.done() for future in waiting))
            with pytest.raises(jetsync.PriorityGroupNotFoundError):
                stream.unpin_consumer(first.name, "B")
            messages.close()
            others.close()
            for future in waiting:
                with contextlib.suppress(jetsync.ConsumptionClosedError):
                    future.result(20)
            assert (messages.error, others.error) == (None, None)


PINNED_SCRIPT = """
import sys, jetsync
client = jetsync.connect(sys.argv[1])
worker = client.jetstream().consumer(sys.argv[2], "worker")
for message in worker.consume(group="A", max_messages=10):
    print(int(message.data), flush=True)
"""


def test_another_process_gets_the_pin_of_a_killed_one(js, nats_server, stream, group):
    """
    A pinned process that is killed loses its pin, and another one gets all of its messages.
    """
    worker = group("pinned_client", priority_timeout=1, ack_wait=1)
    fill(js, stream, 20)
    process = subprocess.Popen(
        [sys.executable, "-c", PINNED_SCRIPT, nats_server.url, stream.name],
        stdout=subprocess.PIPE,
    )
    with process:
        assert process.stdout.readline().strip() == b"0"
        process.kill()
    got = set()
    with worker.consume(group="A") as messages:
        while len(got) < 20:
            message = messages.next(timeout=30)
            message.ack()
            got.add(int(message.data))
    assert got == set(range(20))


class TestPrioritized:
    @pytest.mark.parametrize(("wanted", "first", "second"), [(75, 75, 25), (100, 100, 0)])
    def test_the_lowest_number_comes_first(self, js, stream, group, wanted, first, second):
        """
        Messages go to the pull with the lower number first, and then to the other one.
        """
        worker = group("prioritized")

        def attempt(pace):
            stream.purge()
            late = worker.fetch(100, group="A", priority=1, expires=pace)
            early = worker.fetch(wanted, group="A", priority=0, expires=pace)
            fill(js, stream, 100)
            assert len(list(early)) == first
            assert len(list(late)) == second

        at_some_pace(attempt)

    @pytest.mark.versions
    @pytest.mark.parametrize("version", ["2.12.8", "2.14.6"])
    def test_priorities_work_on_all_servers_that_have_them(self, server_for, unique, version):
        """
        Priorities work on all servers that support them.
        """
        with jetsync.connect(server_for(version).url) as client:
            js = client.jetstream()
            stream = js.create_stream(unique, subjects=[f"{unique}.>"], storage="memory")
            worker = stream.create_consumer(
                "worker", priority_groups=["A"], priority_policy="prioritized"
            )

            def attempt(pace):
                stream.purge()
                late = worker.fetch(10, group="A", priority=1, expires=pace)
                early = worker.fetch(6, group="A", priority=0, expires=pace)
                fill(js, stream, 10)
                assert [len(list(early)), len(list(late))] == [6, 4]

            at_some_pace(attempt)
            js.delete_stream(unique)

    @pytest.mark.versions
    @pytest.mark.parametrize("version", ["2.10.26", "2.11.11"])
    def test_on_servers_without(self, server_for, unique, version):
        """
        Servers 2.11 refuse the policy and 2.10 ignores it, so both raise an error.
        """
        with jetsync.connect(server_for(version).url) as client:
            js = client.jetstream()
            stream = js.create_stream(unique, subjects=[f"{unique}.>"], storage="memory")
            with pytest.raises((jetsync.NotSupportedError, jetsync.InvalidJsonError)):
                stream.create_consumer(
                    "worker", priority_groups=["A"], priority_policy="prioritized"
                )
            worker = stream.create_consumer("worker")
            for call in (worker.consume, worker.next):
                with pytest.raises(jetsync.NotSupportedError, match="priority of a pull"):
                    call(priority=1)
            js.delete_stream(unique)

    def test_a_higher_number_gets_messages_once_the_lower_is_full(self, js, stream, group):
        """
        A consumption with a higher number gets messages once the other one is full.
        """
        worker = group("prioritized")
        with (
            worker.consume(group="A", priority=0, max_messages=30) as early,
            worker.consume(group="A", priority=1, max_messages=30) as late,
        ):
            fill(js, stream, 40)
            assert [int(early.next(timeout=20).data) for _ in range(10)] == list(range(10))
            assert [int(late.next(timeout=20).data) for _ in range(10)] == list(range(30, 40))

    def test_a_number_out_of_range(self, js, stream, group):
        """
        A priority out of range raises an error before anything is sent.
        """
        worker = group("prioritized")
        for priority in (-1, 10):
            with pytest.raises(ValueError, match="priority"):
                worker.consume(group="A", priority=priority)
