"""
Readings of real servers.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

import jetsync
from helpers.waiting import CLUSTER_CLIENT, eventually, timed
from jetsync.devserver import DevServer
from jetsync.monitoring import Monitor, samples

VERSIONS = [pytest.param("2.10.26", marks=pytest.mark.versions), None]

WORKER = """
import sys, jetsync
with jetsync.connect(sys.argv[1]) as client:
    for message in client.jetstream().consumer(sys.argv[2], "worker").consume():
        message.ack_sync()
        print("one", flush=True)
"""


def value(reading, name, *labels):
    """
    Return a value by the name of its metric without `jetsync.`, and by its labels, or None.
    """
    found = [
        each.value
        for each in samples(reading)
        if each.metric.name == f"jetsync.{name}" and tuple(each.labels.values()) == labels
    ]
    return found[0] if found else None


def requests(js):
    """
    Return how many API requests the server has had.
    """
    return js.account_info().api.total


@pytest.mark.parametrize("version", VERSIONS)
def test_a_worker_that_is_killed(nats_server, server_for, unique, version):
    """
    The next reading shows all messages that wait, although no worker is left to count them.
    """
    server = nats_server if version is None else server_for(version)
    with jetsync.connect(server.url) as client:
        js = client.jetstream()
        js.create_stream(unique, subjects=[f"{unique}.>"]).create_consumer("worker")
        with subprocess.Popen(
            [sys.executable, "-c", WORKER, server.url, unique], stdout=subprocess.PIPE, text=True
        ) as process:
            js.publish(f"{unique}.a", b"x")
            assert process.stdout.readline() == "one\n"
            os.kill(process.pid, signal.SIGKILL)
        js.publish_many((f"{unique}.a", b"x") for _ in range(1000))
        monitor = Monitor(js, streams=unique)

        first = monitor.read()

        # The server may have sent some of them to the killed worker.
        pending = value(first, "consumer.num_pending", unique, "worker")
        in_flight = value(first, "consumer.num_ack_pending", unique, "worker")
        assert pending + in_flight == 1000
        age = value(first, "consumer.oldest.age", unique, "worker")
        assert 0 <= age < 60
        eventually(lambda: value(monitor.read(), "consumer.oldest.age", unique, "worker") > age)


class TestRequests:
    def test_a_thousand_consumers_take_four_requests(self, nats_server, js, stream):
        """
        Infos of consumers come in pages, and streams without consumers take no request.
        """
        stream.update(allow_direct=True)
        for number in range(1000):
            stream.create_consumer(f"c{number}", filter_subject=f"{stream.name}.{number}")
        monitor = Monitor(js, lookups=0)
        before = requests(js)

        reading = monitor.read(timeout=30)

        # One for the list of streams and one for the account. `requests` sends one, too.
        streams = len(reading.streams) // 255 + 1
        with_consumers = sum(1 for each in reading.streams if each.info.state.consumer_count)
        assert requests(js) - before <= 3 + streams + 3 + with_consumers
        (own,) = [each for each in reading.streams if each.name == stream.name]
        assert len(own.consumers) == 1000
        assert reading.lookups == 0

    def test_names_need_no_permission_for_lists(self, js, stream, worker):
        """
        Names take one request each, and no list.
        """
        before = requests(js)

        reading = Monitor(js, streams=[stream.name], consumers=["worker"], account=False).read()

        assert requests(js) - before == 3
        assert [each.info.name for each in reading.streams[0].consumers] == ["worker"]


class TestErrors:
    def test_a_name_that_does_not_exist(self, js, stream, worker):
        """
        A missing stream or consumer has an error of its own, and does not hide the others.
        """
        found = Monitor(js, streams=["nope", stream.name], consumers=["gone", "worker"]).read()

        first, second = sorted(found.streams, key=lambda each: each.info is not None)
        assert isinstance(first.error, jetsync.StreamNotFoundError)
        assert isinstance(second.error, jetsync.ConsumerNotFoundError)
        assert [each.info.name for each in second.consumers] == ["worker"]
        assert value(found, "stream.up", "nope") == value(found, "stream.up", stream.name) == 0

    @pytest.mark.parametrize("more", ["none-*", [f"none-{number}" for number in range(16)]])
    def test_a_name_that_the_list_lacks(self, js, stream, more):
        """
        A missing stream also has an error if others come from the list.
        """
        others = [more] if isinstance(more, str) else more

        found = Monitor(js, streams=[stream.name, "nope", *others]).read()

        errors = {each.name: each.error for each in found.streams}
        assert errors[stream.name] is None
        assert isinstance(errors["nope"], jetsync.StreamNotFoundError)
        assert value(found, "stream.up", "nope") == 0
        assert errors.keys() == {stream.name, "nope", *(each for each in others if "*" not in each)}

    def test_a_stream_that_is_deleted_after_the_list(self, js, stream, worker, unique, monkeypatch):
        """
        It has an error of its own, and the others keep their figures.
        """
        gone = js.create_stream(f"{unique}-gone", subjects=[f"{unique}-gone"])
        gone.create_consumer("worker")
        monitor = Monitor(js, streams=f"{unique}*")
        ask = monitor._ask_streams

        def then_delete(deadline):
            yield from list(ask(deadline))
            js.delete_stream(gone.name)

        monkeypatch.setattr(monitor, "_ask_streams", then_delete)

        found = {each.name: each for each in monitor.read().streams}

        assert isinstance(found[gone.name].error, jetsync.StreamNotFoundError)
        assert found[gone.name].info is None
        assert [each.info.name for each in found[stream.name].consumers] == ["worker"]

    def test_a_server_that_does_not_answer(self, victim, fragile):
        """
        A reading ends within twice its timeout, with an error.
        """
        monitor = Monitor(fragile)
        assert monitor.read().error is None
        victim.pause()
        try:
            with timed(0, 1.0):
                reading = monitor.read(timeout=0.5)
        finally:
            victim.resume()
        assert isinstance(reading.error, jetsync.JetSyncError)
        assert [each.value for each in samples(reading)] == [0]
        eventually(lambda: monitor.read().error is None)

    def test_a_user_who_may_only_ask_for_infos(self):
        """
        A user without permission for messages gets everything but some ages.
        """
        allow = ["$JS.API.STREAM.INFO.S", "$JS.API.CONSUMER.INFO.S.*"]
        subscribe = {"allow": ["_INBOX.>"]}
        users = [
            {"user": "admin", "password": "x"},
            {
                "user": "monitor",
                "password": "x",
                "permissions": {"publish": {"allow": allow}, "subscribe": subscribe},
            },
        ]
        config = {"authorization": {"timeout": 30, "users": users}}
        with (
            DevServer(config=config) as server,
            jetsync.connect(server.url, user="admin", password="x") as admin,
            jetsync.connect(server.url, user="monitor", password="x") as client,
        ):
            js = admin.jetstream()
            stream = js.create_stream("S", subjects=["s.>"])
            for data in range(3):
                js.publish(f"s.{data}", b"x")
            stream.create_consumer("all")
            stream.create_consumer("one", filter_subject="s.1")
            monitor = Monitor(
                client.jetstream(), streams=["S"], consumers=["all", "one"], account=False
            )
            reading = monitor.read()
        one, other = reading.streams[0].consumers
        assert (one.info.num_pending, other.info.num_pending) == (3, 1)
        assert one.oldest_age is not None
        assert other.oldest_age is None
        assert value(reading, "oldest.unknown") == 1


def test_ephemeral_consumers(js, stream, worker):
    """
    A pattern finds durable consumers, and others on request. A name finds every consumer.
    """
    name = stream.create_consumer(inactive_threshold=60).name

    def found(**arguments):
        reading = Monitor(js, streams=stream.name, account=False, **arguments).read()
        return {each.info.name for each in reading.streams[0].consumers}

    assert found() == {"worker"}
    assert found(ephemeral=True) == {"worker", name}
    assert found(consumers=[name]) == {name}
    assert found(consumers=["w*", name]) == {"worker", name}
    assert found(consumers=()) == set()


@pytest.mark.cluster
@pytest.mark.thorough
def test_a_cluster_that_loses_servers():
    """
    Followers that are offline are behind. Streams without a leader are missing in the list.
    """
    with (
        DevServer(cluster=3, name="c") as servers,
        jetsync.connect(servers.url, **CLUSTER_CLIENT) as client,
    ):
        js = client.jetstream()
        stream = js.create_stream("R3", subjects=["r3.>"], num_replicas=3)
        stream.create_consumer("worker")
        monitor = Monitor(js)
        one = js.create_stream("R1", subjects=["r1.>"])
        one.create_consumer("worker")
        monitor = Monitor(js)

        def settled(name, *labels, timeout=60):
            """Wait until a reading has a value that is not 0."""

            def check():
                reading = monitor.read(timeout=20)
                return reading.error is None and value(reading, name, *labels)

            return eventually(check, timeout=timeout)

        settled("stream.leader", "R3", stream.info().cluster.leader)
        victim = one.info().cluster.leader
        servers.kill(int(victim.removeprefix("c-")))

        assert settled("stream.replicas.behind", "R3") == 1
        assert settled("streams.unanswered") == 1
