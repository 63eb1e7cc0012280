"""
Handles that are made without a lookup, for users with few permissions.
"""

from __future__ import annotations

import pytest

import jetsync
from helpers.waiting import timed
from jetsync.devserver import DevServer

STREAM, WORKER, SUBJECT = "ORDERS", "worker", "orders.eu"

# What each user may publish to.
ALLOWED = {
    "puller": [f"$JS.API.CONSUMER.MSG.NEXT.{STREAM}.{WORKER}", f"$JS.ACK.{STREAM}.{WORKER}.>"],
    "reader": [f"$JS.API.DIRECT.GET.{STREAM}.{SUBJECT}"],
    "leader_reader": [f"$JS.API.STREAM.MSG.GET.{STREAM}"],
}


@pytest.fixture(scope="module", params=[pytest.param("2.10.26", marks=pytest.mark.versions), None])
def connect(request):
    """
    A function that connects a user of a server with a stream of three messages and a consumer.
    """
    users = [
        {
            "user": name,
            "password": "x",
            "permissions": {"publish": {"allow": subjects}, "subscribe": {"allow": ["_INBOX.>"]}},
        }
        for name, subjects in ALLOWED.items()
    ]
    users.append({"user": "admin", "password": "x"})
    config = {"authorization": {"timeout": 30, "users": users}}
    clients = []
    with DevServer(request.param, config=config) as server:

        def connect(name):
            clients.append(jetsync.connect(server.url, user=name, password="x"))
            return clients[-1]

        js = connect("admin").jetstream()
        js.create_stream(STREAM, subjects=["orders.>"], allow_direct=True).create_consumer(WORKER)
        for data in (b"1", b"2", b"3"):
            js.publish(SUBJECT, data)
        yield connect
        for client in clients:
            client.close()


class TestConsumer:
    """
    `consumer(..., lookup=False)` needs no permission for the consumer's info.
    """

    @pytest.mark.clause("SC-102")
    def test_a_user_who_may_only_pull(self, connect):
        """
        A user who may only pull and acknowledge reads every message in all ways.
        """
        js = connect("puller").jetstream()
        worker = js.consumer(STREAM, WORKER, lookup=False)
        got = []
        for message in worker.fetch(1, expires=5):
            message.ack()
            got.append(message.data)
        message = worker.next(expires=5)
        message.ack()
        got.append(message.data)
        with worker.consume(stop_after=1) as messages:
            for message in messages:
                message.ack()
                got.append(message.data)
        assert got == [b"1", b"2", b"3"]

    def test_with_a_lookup_the_error_is_immediate(self, connect):
        """
        Without `lookup=False`, such a user learns at once what is not allowed.
        """
        js = connect("puller").jetstream()
        with timed(0, 2), pytest.raises(jetsync.PermissionDeniedError, match=r"CONSUMER\.INFO"):
            js.consumer(STREAM, WORKER)

    def test_nothing_is_sent(self, connect):
        """
        Making the handles sends nothing, their info has the names, and invalid names are refused.
        """
        client = connect("puller")
        js = client.jetstream()
        before = client.statistics().bytes_out
        stream = js.stream(STREAM, lookup=False)
        worker = stream.consumer(WORKER, lookup=False)
        assert client.statistics().bytes_out == before
        assert (stream.name, worker.name, worker.stream_name) == (STREAM, WORKER, STREAM)
        info = worker.cached_info
        assert (info.stream_name, info.name) == (STREAM, WORKER)
        for make in (
            lambda: js.stream("a.b", lookup=False),
            lambda: js.consumer(STREAM, "a b", lookup=False),
        ):
            with pytest.raises(jetsync.InvalidNameError):
                make()

    def test_a_consumer_that_does_not_exist(self, connect):
        """
        If there is no such consumer, the first read says so.
        """
        js = connect("admin").jetstream()
        nothing = js.consumer(STREAM, "nothing", lookup=False)
        with pytest.raises(jetsync.JetSyncError) as caught:
            list(nothing.fetch(1, expires=2))
        assert isinstance(caught.value, jetsync.ConsumerNotFoundError)


class TestStream:
    """
    `stream(..., lookup=False)` needs no permission for the stream's info.
    """

    @pytest.mark.clause("DG-32")
    def test_a_user_who_may_read_one_subject_directly(self, connect):
        """
        Such a user reads the last message of the subject.
        """
        stream = connect("reader").jetstream().stream(STREAM, lookup=False)
        assert stream.get_last(SUBJECT).data == b"3"
        assert stream.get_last(SUBJECT, direct=True).data == b"3"

    def test_a_user_who_may_only_ask_the_leader(self, connect):
        """
        Such a user reads from the leader.
        """
        stream = connect("leader_reader").jetstream().stream(STREAM, lookup=False)
        assert stream.get_last(SUBJECT, direct=False).data == b"3"

    def test_a_stream_without_direct_gets(self, connect):
        """
        If no server answers direct gets, the leader is asked.
        """
        js = connect("admin").jetstream()
        js.create_stream("LOGS", subjects=["logs"], allow_direct=False)
        js.publish("logs", b"here")
        assert js.stream("LOGS", lookup=False).get_last("logs").data == b"here"

    def test_another_subject_is_refused(self, connect):
        """
        A read that is not allowed raises at once and names the subject.
        """
        stream = connect("reader").jetstream().stream(STREAM, lookup=False)
        with timed(0, 2), pytest.raises(jetsync.PermissionDeniedError, match=r"orders\.us"):
            stream.get_last("orders.us")

    def test_its_repr_has_no_counts(self, connect):
        """
        The handle does not claim that the stream is empty.
        """
        js = connect("admin").jetstream()
        stream = js.stream(STREAM, lookup=False)
        assert repr(stream) == "<Stream 'ORDERS'>"
        stream.info()
        assert "3 messages" in repr(stream)
