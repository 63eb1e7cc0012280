"""
Consumptions from push consumers on real servers: flow control, heartbeats, losses and sharing.
"""

from __future__ import annotations

import collections
import itertools
import logging
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

import jetsync
from helpers.connections import connection_of
from helpers.consuming import seen
from helpers.interrupts import Interrupt
from helpers.lacking import needs_fork
from helpers.streams import fill, fill_in_trouble
from helpers.traffic import sent_nothing
from helpers.waiting import CLUSTER_CLIENT, eventually
from jetsync._proto.push import PushEngine
from jetsync.consume.push import PushFeed
from jetsync.devserver import DevServer
from jetsync.testing import HookRecorder

FLOW = {"flow_control": True, "idle_heartbeat": 0.5}


def push(stream, name="p", **config):
    """
    Create a push consumer that delivers to a subject with its own name.
    """
    return stream.create_consumer(name, deliver_subject=f"to-{stream.name}-{name}", **config)


def numbers(messages, count, timeout=20):
    """
    Return the payloads of the next messages.
    """
    got = []
    while len(got) < count:
        message = messages.next(timeout=timeout)
        assert message is not None, f"only {len(got)} messages came"
        got.append(int(message.data))
    return got


def publish(js, stream, count, size=0, start=0):
    """
    Publish numbered messages of a size.
    """
    js.publish_many(
        (f"{stream.name}.A", b"%d" % number + b" " * size) for number in range(start, start + count)
    )


@pytest.fixture
def distant(proxy):
    """
    A recorder and a client behind the proxy.
    """
    recorder = HookRecorder("jetsync_status", "jetsync_message_received")
    with jetsync.connect(proxy.url, reconnect_wait=0.05, plugins=[recorder]) as client:
        yield recorder, client


class TestDelivery:
    @pytest.mark.versions
    @pytest.mark.parametrize("version", ["2.10.26", "2.11.11", "2.12.8", "2.14.6", None])
    @pytest.mark.parametrize("policy", ["none", "explicit", "all"])
    def test_all_messages_arrive_in_order(self, js_of, unique, version, policy):
        """
        More messages than one window of flow control arrive, on all servers and ack policies.
        """
        js = js_of(version)
        stream = js.create_stream(unique, subjects=[f"{unique}.>"], storage="memory")
        consumer = push(stream, ack_policy=policy, **FLOW)
        with consumer.consume(ack="auto") as messages:
            publish(js, stream, 3000, size=3000)
            assert numbers(messages, 3000) == list(range(3000))
            assert messages.next(timeout=0) is None
            statistics = messages.statistics()
        assert (statistics.received, statistics.lost, statistics.pulls) == (3000, 0, 0)
        assert messages.closed
        if policy != "none":
            eventually(lambda: consumer.info().num_ack_pending == 0)
        stream.delete()

    def test_the_handler_form(self, js, stream):
        """
        Threads call the handler, one message of a subject at a time, and acknowledge.
        """
        consumer = push(stream, ack_wait=1, **FLOW)
        busy, handled = collections.Counter(), []

        def handle(message):
            busy[message.subject] += 1
            assert busy[message.subject] == 1
            time.sleep(0.002)  # Work, so that messages of one subject meet.
            busy[message.subject] -= 1
            handled.append(int(message.data))

        options = {"ack": "auto", "threads": 4, "ordered_by": "subject", "keep_alive": True}
        with consumer.consume(handle, **options) as running:
            js.publish_many((f"{stream.name}.{n % 3}", b"%d" % n) for n in range(1000))
            eventually(lambda: len(handled) == 1000)
        assert sorted(handled) == list(range(1000))
        assert running.statistics().failures == 0
        eventually(lambda: consumer.info().num_ack_pending == 0)

    def test_messages_that_were_not_taken_are_given_back(self, js, stream):
        """
        A close gives the messages back, and the next consumption gets them long before `ack_wait`.
        """
        consumer = push(stream, ack_wait=60, **FLOW)
        fill(js, stream, 10)
        with consumer.consume() as messages:
            message = messages.next(timeout=20)
            message.ack_sync()
            eventually(lambda: messages.next(timeout=0) is not None)
        with consumer.consume() as messages:
            again = [messages.next(timeout=20) for _ in range(8)]
        assert message.data == b"0"
        assert {int(each.data) for each in again} <= set(range(1, 10))

    def test_stop_after(self, js, stream):
        """
        The consumption ends after so many messages, and gives back those that came after them.
        """
        consumer = push(stream, ack_wait=60, **FLOW)
        fill(js, stream, 10)
        with consumer.consume(stop_after=3, ack="auto") as messages:
            assert [int(message.data) for message in messages] == [0, 1, 2]
        assert messages.closed
        with consumer.consume(ack="auto") as messages:
            again = [messages.next(timeout=20) for _ in range(7)]
            assert sorted(int(message.data) for message in again) == list(range(3, 10))
            # None was redelivered to the subscription that has ended.
            assert {message.metadata.delivered for message in again} == {2}

    def test_a_drain(self, js, stream):
        """
        After a drain, the messages that have arrived can be taken, and no more come.
        """
        consumer = push(stream, **FLOW)
        fill(js, stream, 10)
        messages = consumer.consume(ack="auto")
        eventually(lambda: messages._core.refill() and messages.statistics().received == 10)
        messages.drain()
        fill(js, stream, 10, start=10)
        assert [int(message.data) for message in messages] == list(range(10))
        assert messages.wait(timeout=20)
        eventually(lambda: not consumer.info().push_bound)

    def test_core_messages_to_the_deliver_subject(self, client, js, stream):
        """
        A message that another client publishes to the deliver subject is not handed out.
        """
        consumer = push(stream, ack_policy="none", idle_heartbeat=0.5)
        subject = consumer.cached_info.config.deliver_subject
        with consumer.consume() as messages:
            client.publish(subject, b"7")
            fill(js, stream, 1)
            assert numbers(messages, 1) == [0]
            assert messages.statistics().lost == 0


class TestFlowControl:
    def test_an_answer_waits_until_messages_are_taken(self, client, js, stream):
        """
        A program that takes nothing sends no answer, so the server stops; then everything comes.
        """
        consumer = push(stream, ack_policy="none", **FLOW)
        publish(js, stream, 200, size=60_000)
        with (
            client.subscribe(f"$JS.FC.{stream.name}.>") as answers,
            consumer.consume() as messages,
        ):
            assert numbers(messages, 1) == [0]
            # Longer than the heartbeat, so that heartbeats name the request.
            assert answers.next(timeout=1.5) is None
            delivered = consumer.info().delivered.consumer_seq
            assert 10 < delivered < 80
            assert numbers(messages, 199) == list(range(1, 200))
            assert answers.next(timeout=20) is not None

    def test_a_lost_answer_is_repeated(self, js, stream, monkeypatch):
        """
        If an answer is lost, the server's next heartbeat shows it, and the delivery continues.
        """
        due, lost = PushEngine.answer_due, []

        def loses(self):
            subject = due(self)
            if subject is None or lost:
                return subject
            lost.append(subject)
            self.answered()
            return None

        monkeypatch.setattr(PushEngine, "answer_due", loses)
        consumer = push(stream, ack_policy="none", **FLOW)
        publish(js, stream, 200, size=60_000)
        with consumer.consume() as messages:
            assert numbers(messages, 200) == list(range(200))
        assert len(lost) == 1

    def test_a_request_that_another_client_left_open(self, client, js, stream):
        """
        A client that subscribed before did not answer: the consumption answers for it.
        """
        consumer = push(stream, ack_policy="explicit", max_ack_pending=-1, ack_wait=2, **FLOW)
        publish(js, stream, 200, size=60_000)
        with client.subscribe(consumer.cached_info.config.deliver_subject) as other:
            eventually(lambda: other.next(timeout=20).reply.startswith("$JS.FC."))
        found = set()
        with consumer.consume(ack="auto") as messages:
            while len(found) < 200:
                found.update(numbers(messages, 1))

    def test_the_end_answers_a_waiting_request(self, client, js, stream):
        """
        A consumption that ends early leaves no request open for the next subscriber.
        """
        consumer = push(stream, ack_policy="none", **FLOW)
        publish(js, stream, 100, size=60_000)
        with client.subscribe(f"$JS.FC.{stream.name}.>") as answers:
            with consumer.consume() as messages:
                eventually(lambda: messages._core.refill() and messages._core.engine._request)
            assert answers.next(timeout=20) is not None

    @pytest.mark.parametrize("policy", ["explicit", "none"])
    def test_the_end_answers_a_request_that_was_not_read(self, client, js, stream, policy):
        """
        The same if the request is still in the mailbox, among messages that are given back.
        """
        consumer = push(stream, ack_policy=policy, max_ack_pending=None, **FLOW)
        publish(js, stream, 100, size=60_000)
        with client.subscribe(f"$JS.FC.{stream.name}.>") as answers:
            messages = consumer.consume()
            waiting = messages._core.feed.box.frames
            eventually(lambda: any(frame[1].startswith(b"$JS.FC.") for frame in waiting.copy()))
            messages.close()
            assert answers.next(timeout=20) is not None

    def test_heartbeats_need_no_memory(self, js, stream):
        """
        Of the heartbeats that arrive while no thread takes messages, the newest is kept.
        """
        consumer = push(stream, ack_policy="none", flow_control=True, idle_heartbeat=0.1)
        with consumer.consume() as messages:
            box = messages._core.feed.box
            assert messages.next(timeout=0.3) is None
            before = connection_of(js).lane.bytes_in
            eventually(lambda: connection_of(js).lane.bytes_in > before + 1500)
            heard = len(box.frames)
        assert heard == 1


class TestWithoutFlowControl:
    def test_a_buffer_that_overflows(self, js, stream, nats_server):
        """
        Messages up to the limit can be taken. Then the consumption ends with an error.
        """
        recorder = HookRecorder("jetsync_status")
        with jetsync.connect(nats_server.url, plugins=[recorder]) as client:
            consumer = push(client.jetstream().stream(stream.name), ack_policy="none")
            with consumer.consume(max_messages=100) as messages:
                fill(js, stream, 1000)
                # The subscription ends before the program notices.
                eventually(lambda: not consumer.info().push_bound)
                client.flush()
                assert numbers(messages, 100) == list(range(100))
                with pytest.raises(jetsync.SlowConsumerError, match="flow_control") as caught:
                    messages.next(timeout=20)
            assert (caught.value.consumer, messages.statistics().received) == ("p", 100)
            # The server also counts messages that it could not send any more.
            assert 0 < caught.value.dropped <= consumer.info().delivered.consumer_seq - 100
            assert [event.dropped for event in seen(recorder, "slow_consumer")] == [
                caught.value.dropped
            ]

    def test_bytes_count_as_well(self, js, stream):
        """
        The limit in bytes counts what waits, not what was taken before.
        """
        consumer = push(stream, ack_policy="none")
        with consumer.consume(max_bytes=10_000) as messages:
            for start in range(0, 50, 5):
                publish(js, stream, 5, size=1000, start=start)
                assert numbers(messages, 5) == list(range(start, start + 5))
            publish(js, stream, 50, size=1000)
            eventually(lambda: messages._core.feed.box.dropped)
            assert numbers(messages, 9) == list(range(9))
            with pytest.raises(jetsync.SlowConsumerError):
                messages.next(timeout=20)

    def test_parked_messages_count_as_well(self, js, stream):
        """
        The limit also counts messages that wait until another one of their subject is handled.
        """
        consumer, release = push(stream, ack_policy="none"), threading.Event()
        messages = consumer.consume(
            lambda _: release.wait(), threads=2, ordered_by="subject", max_messages=10
        )
        for start in range(0, 50, 5):
            publish(js, stream, 5, start=start)
            eventually(lambda: messages.error or messages.statistics().received == start + 5)  # noqa: B023
        release.set()
        assert messages.wait(timeout=20)
        assert isinstance(messages.error, jetsync.SlowConsumerError)
        assert messages.statistics().received <= 11

    def test_heartbeats_fit_into_a_full_buffer(self, js, stream):
        """
        Heartbeats do not count, so a slow program takes as many messages as the limit allows.
        """
        consumer = push(stream, max_ack_pending=5, idle_heartbeat=0.1)
        with consumer.consume(max_messages=5, ack="auto") as messages:
            assert messages.next(timeout=0.3) is None
            before = connection_of(js).lane.bytes_in
            publish(js, stream, 5)
            eventually(lambda: connection_of(js).lane.bytes_in > before + 2000)
            publish(js, stream, 5, start=5)
            assert numbers(messages, 10) == list(range(10))

    def test_acks_limit_the_server(self, js, stream):
        """
        With acks, the server sends at most `max_ack_pending` messages, so nothing overflows.
        """
        consumer = push(stream, max_ack_pending=50)
        fill(js, stream, 1000)
        with consumer.consume(max_messages=50, ack="auto") as messages:
            assert numbers(messages, 1) == [0]
            eventually(lambda: consumer.info().num_ack_pending == 50)
            assert numbers(messages, 999) == list(range(1, 1000))


class TestSharing:
    def test_a_second_subscriber_is_refused(self, js, stream, nats_server):
        """
        Both would get all messages. The consumer is free again as soon as the first one leaves.
        """
        consumer = push(stream, **FLOW)
        messages = consumer.consume()
        with jetsync.connect(nats_server.url) as other:
            there = other.jetstream().consumer(stream.name, "p")
            with pytest.raises(jetsync.ConsumerInUseError, match="deliver_group") as caught:
                there.consume()
            assert (caught.value.consumer, caught.value.stream) == ("p", stream.name)
            with pytest.raises(jetsync.ConflictingUseError):
                consumer.consume()
            messages.close()
            with there.consume():
                pass
        with consumer.consume():
            pass

    def test_a_group_shares_the_messages(self, js, stream, nats_server):
        """
        The members of a deliver group get each message once, together.
        """
        consumer = push(stream, deliver_group="workers", max_ack_pending=20)
        got, clients = [[], [], []], [jetsync.connect(nats_server.url) for _ in range(3)]
        members = [
            client.jetstream()
            .consumer(stream.name, "p")
            .consume(lambda message, mine=mine: mine.append(int(message.data)), ack="auto")
            for client, mine in zip(clients, got, strict=True)
        ]
        for client in clients:
            client.flush()
        fill(js, stream, 600)
        eventually(lambda: sum(map(len, got)) == 600)
        assert sorted(itertools.chain(*got)) == list(range(600))
        assert all(got)
        for member, client in zip(members, clients, strict=True):
            member.close()
            client.close()
        assert consumer.info().delivered.consumer_seq == 600


class TestFailures:
    def test_a_deleted_consumer(self, js, stream):
        """
        The server does not say that a push consumer is deleted; its missing heartbeats do.
        """
        consumer = push(stream, ack_policy="none", flow_control=True, idle_heartbeat=0.2)
        with consumer.consume() as messages:
            assert messages.next(timeout=0.3) is None
            consumer.delete()
            with pytest.raises(jetsync.ConsumerNotFoundError):
                messages.next(timeout=20)
            assert messages.closed
        with pytest.raises(jetsync.ConsumerNotFoundError):
            consumer.consume()

    def test_a_consumer_that_now_delivers_elsewhere(self, js, stream):
        """
        If the consumer was replaced by one that delivers to another subject, it ends.
        """
        consumer = push(stream, ack_policy="none", flow_control=True, idle_heartbeat=0.2)
        with consumer.consume() as messages:
            consumer.delete()
            stream.create_consumer("p", deliver_subject=f"else-{stream.name}")
            with pytest.raises(jetsync.ConsumptionClosedError, match="delivery was changed"):
                messages.next(timeout=20)

    def test_a_server_that_is_silent(self, victim, unique, caplog):
        """
        Missed heartbeats are reported, and the consumption continues when the server is back.
        """
        recorder = HookRecorder("jetsync_status")
        with jetsync.connect(victim.url, reconnect_wait=0.05, plugins=[recorder]) as client:
            js = client.jetstream()
            stream = js.create_stream(unique, subjects=[f"{unique}.>"])
            consumer = push(stream, flow_control=True, idle_heartbeat=0.2)
            with consumer.consume(ack="auto") as messages, caplog.at_level(logging.WARNING):
                fill(js, stream, 1)
                assert numbers(messages, 1) == [0]
                victim.pause()
                try:
                    while not messages.statistics().heartbeats_missed:
                        assert messages.next(timeout=0.1) is None
                finally:
                    victim.resume()
                fill(js, stream, 1, start=1)
                assert numbers(messages, 1) == [1]
            stream.delete()
        assert seen(recorder, "heartbeat_missed")[0].heartbeat == 0.2

    def test_a_lost_connection_with_acks(self, js, stream, proxy, distant):
        """
        Messages in flight on a connection that is lost are redelivered, also without an answer.
        """
        _, client = distant
        push(stream, ack_wait=0.5, max_ack_pending=-1, **FLOW)
        publish(js, stream, 1000, size=20_000)
        found = set()
        with client.jetstream().consumer(stream.name, "p").consume() as messages:
            while len(found) < 1000:
                message = messages.next(timeout=20)
                found.add(int(message.data))
                message.ack()
                if len(found) in {100, 400, 700}:
                    proxy.cut()
            assert messages.statistics().connections_lost >= 1
        assert found == set(range(1000))

    def test_a_lost_connection_without_acks(self, js, stream, proxy, distant, caplog):
        """
        Messages in flight on a connection that is lost do not come again, and their number is told.
        """
        recorder, client = distant
        consumer = push(stream, ack_policy="none", **FLOW)
        with client.jetstream().consumer(stream.name, "p").consume() as messages:
            fill(js, stream, 5)
            assert numbers(messages, 5) == list(range(5))
            proxy.pause("to_client")
            fill(js, stream, 10, start=5)
            eventually(lambda: consumer.info().delivered.consumer_seq == 15)
            proxy.cut()
            proxy.resume()
            eventually(lambda: client.statistics().reconnects == 1)
            fill(js, stream, 1, start=15)
            assert numbers(messages, 1) == [15]
            assert messages.statistics().lost == 10
        eventually(lambda: [event.messages for event in seen(recorder, "messages_lost")] == [10])
        assert "messages_lost" in caplog.text

    def test_a_user_who_may_only_subscribe(self):
        """
        Without permission to ask for the consumer's info, messages arrive all the same.
        """
        deny = {"publish": {"deny": ["$JS.API.CONSUMER.INFO.S.p"]}}
        users = [
            {"user": "admin", "password": "p"},
            {"user": "reader", "password": "p", "permissions": deny},
        ]
        with (
            DevServer(config={"authorization": {"users": users}}) as server,
            jetsync.connect(server.url, user="admin", password="p") as admin,
            jetsync.connect(server.url, user="reader", password="p") as reader,
        ):
            js = admin.jetstream()
            stream = js.create_stream("S", subjects=["S.>"])
            push(stream, ack_policy="none", idle_heartbeat=0.5)
            (consumer,) = reader.jetstream().stream("S").consumers()
            with consumer.consume() as messages:
                fill(js, stream, 1)
                assert numbers(messages, 1) == [0]

    def test_the_client_closes(self, nats_server, stream):
        """
        A client that closes ends the consumption.
        """
        push(stream, **FLOW)
        with jetsync.connect(nats_server.url) as client:
            messages = client.jetstream().consumer(stream.name, "p").consume()
            assert messages.next(timeout=0.1) is None
        assert messages.closed
        with pytest.raises(jetsync.ConnectionClosedError):
            messages.next(timeout=20)

    @pytest.mark.parametrize("name", ["receive", "send"])
    def test_ctrl_c(self, js, stream, monkeypatch, name):
        """
        Ctrl-C inside of the consumption ends it, and its next call says why.
        """
        consumer = push(stream, ack_wait=60, **FLOW)
        with consumer.consume() as messages:
            Interrupt(monkeypatch, PushFeed, name)
            fill(js, stream, 1)
            with pytest.raises(KeyboardInterrupt):
                messages.next(timeout=20)
            with pytest.raises(jetsync.ConsumptionClosedError, match="interrupted"):
                numbers(messages, 3)
        eventually(lambda: not consumer.info().push_bound)

    def test_a_consumption_that_is_dropped(self, js, stream):
        """
        Dropping the last reference unsubscribes and gives the messages back.
        """
        consumer = push(stream, **FLOW)
        messages = consumer.consume()
        eventually(lambda: consumer.info().push_bound)
        del messages
        eventually(lambda: not consumer.info().push_bound)

    @needs_fork
    @pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
    def test_a_forked_child(self, js, stream):
        """
        A forked child gets no message of its parent.
        """
        consumer = push(stream, **FLOW)
        with consumer.consume(ack="auto") as messages:
            fill(js, stream, 2)
            assert numbers(messages, 1) == [0]
            pid = os.fork()
            if not pid:
                try:
                    messages.next(timeout=5)
                except jetsync.ForkedProcessError:
                    os._exit(0)
                os._exit(1)
            assert os.waitpid(pid, 0)[1] == 0
            assert numbers(messages, 1) == [1]

    @needs_fork
    @pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
    def test_a_loop_in_a_forked_child(self, js, stream):
        """
        A loop in a forked child gets no message either, although some are in the buffer.
        """
        consumer = push(stream, **FLOW)
        with consumer.consume() as messages:
            fill(js, stream, 10)
            eventually(lambda: messages._core.refill() and messages.statistics().buffered == 10)
            pid = os.fork()
            if not pid:
                try:
                    next(messages)
                except jetsync.ForkedProcessError:
                    os._exit(0)
                os._exit(1)
            assert os.waitpid(pid, 0)[1] == 0
            assert [int(next(messages).data) for _ in range(10)] == list(range(10))


class TestOptions:
    @pytest.mark.parametrize(
        ("config", "options", "text"),
        [
            ({}, {"expires": 5}, "expires is an option of pulls"),
            ({}, {"heartbeat": 1}, "heartbeat is an option of pulls"),
            ({}, {"threshold_messages": 1}, "threshold_messages is an option"),
            ({}, {"group": "g"}, "group is an option"),
            ({}, {"priority": 1}, "priority is an option"),
            ({}, {"max_messages": 0}, "max_messages must be"),
            (FLOW, {"max_messages": 5}, "flow control limits the buffer"),
            (FLOW, {"max_bytes": 5}, "flow control limits the buffer"),
            ({"ack_policy": "none"}, {"stop_after": 5}, "would lose the messages"),
        ],
    )
    def test_options_that_do_not_fit(self, client, stream, config, options, text):
        """
        Options of pulls are refused before anything is sent.
        """
        consumer = push(stream, **config)
        before = client.statistics().bytes_out
        with pytest.raises(jetsync.InvalidArgumentError, match=text):
            consumer.consume(**options)
        assert sent_nothing(client, before)

    @pytest.mark.parametrize(
        ("config", "argument"),
        [
            ({"flow_control": True}, "flow_control"),
            ({"idle_heartbeat": 5}, "idle_heartbeat"),
            ({"rate_limit_bps": 5}, "rate_limit_bps"),
            ({"deliver_group": "g"}, "deliver_group"),
            ({"deliver_subject": "d", "flow_control": True}, "idle_heartbeat"),
            ({"deliver_subject": "d", "idle_heartbeat": 0.05}, "idle_heartbeat"),
            ({"deliver_subject": "d", "max_waiting": 5}, "max_waiting"),
            ({"deliver_subject": "d", "priority_groups": ["A"]}, "priority_groups"),
            (
                {"deliver_subject": "d", "ack_policy": "none", "max_ack_pending": 5},
                "max_ack_pending",
            ),
            ({"deliver_subject": "d.*"}, "subject"),
            ({"deliver_subject": "d e"}, "subject"),
            ({"deliver_subject": "d", "deliver_group": "a b"}, "queue"),
        ],
    )
    def test_configurations_that_servers_refuse(self, client, stream, config, argument):
        """
        A configuration that no server accepts is refused before anything is sent.
        """
        before = client.statistics().bytes_out
        with pytest.raises(jetsync.InvalidArgumentError) as caught:
            stream.create_consumer("p", **config)
        assert caught.value.argument == argument
        assert sent_nothing(client, before)

    def test_flow_control_as_acknowledgement(self, js, stream):
        """
        A consumer for servers that source the stream is not for programs.
        """
        consumer = push(stream, ack_policy="flow_control", max_ack_pending=10)
        with pytest.raises(jetsync.NotSupportedError, match="flow_control"):
            consumer.consume()


@pytest.mark.cluster
class TestCluster:
    def test_leaders_come_and_go(self, unique):
        """
        If the consumer's leader steps down, or its server stops, all messages arrive nevertheless.
        """
        with (
            DevServer(cluster=3) as cluster,
            jetsync.connect(cluster.url, **CLUSTER_CLIENT) as client,
        ):
            js = client.jetstream()
            stream = js.create_stream(unique, subjects=[f"{unique}.>"], num_replicas=3)
            consumer = push(stream, ack_wait=2, **FLOW)
            got = set()

            def take_up_to(count):
                while len(got) < count:
                    got.update(numbers(messages, 1, timeout=60))

            with consumer.consume(ack="auto") as messages, ThreadPoolExecutor(1) as pool:
                fill_in_trouble(js, stream, 10)
                take_up_to(10)
                for turn in range(1, 3):
                    rest = pool.submit(take_up_to, 10 * turn + 10)
                    client.request(f"$JS.API.CONSUMER.LEADER.STEPDOWN.{unique}.p", b"")
                    fill_in_trouble(js, stream, 10, start=10 * turn)
                    rest.result(60)
                index = cluster.wait_stream_leader(unique)
                rest = pool.submit(take_up_to, 40)
                cluster.stop(index)
                fill_in_trouble(js, stream, 10, start=30)
                rest.result(60)
                assert messages.error is None
            assert got == set(range(40))
