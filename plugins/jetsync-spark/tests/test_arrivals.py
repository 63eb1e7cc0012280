"""
How an idle query waits for new messages, without Spark.
"""

import contextlib
import pickle
import threading
import time

import pytest
from requests_to_server import asked
from streams_to_read import extend, numbered
from waiting import eventually

import jetsync
from jetsync.devserver import DevServer
from jetsync_spark.read import arrivals
from jetsync_spark.read.arrivals import Arrivals

pytest.importorskip("pyspark.sql.datasource", reason="PySpark 3.5 has no data sources in Python")

from queries import Query

from jetsync_spark.read import idle

pytestmark = pytest.mark.live

LONG = 30.0
"""Seconds for events that occur at once, but not on a busy machine."""


@contextlib.contextmanager
def later(function, *args):
    """
    Call a function in a thread while the block runs.
    """
    thread = threading.Thread(target=function, args=args)
    thread.start()
    try:
        yield
    finally:
        thread.join()


class TestWait:
    def test_for_the_next_message(self, js, client):
        """A message ends the wait; earlier ones and those of other subjects do not."""
        with numbered(js, 10) as stream:
            waits = Arrivals((f"{stream.name}.0", f"{stream.name}.>"))
            assert waits.wait(client, {stream.name: 11}, 0.0) is False
            with later(extend, js, stream, 1):
                assert waits.wait(client, {stream.name: 11}, LONG) is True
            assert waits.wait(client, {stream.name: 11}, LONG) is True
            assert waits.wait(client, {stream.name: 12}, 0.01) is False
            # The query has read some messages meanwhile.
            extend(js, stream, 30)
            assert waits.wait(client, {stream.name: 42}, 0.05) is False
            with later(extend, js, stream, 1):
                assert waits.wait(client, {stream.name: 42}, LONG) is True
            filtered = Arrivals((f"{stream.name}.1",))
            assert filtered.wait(client, {stream.name: 43}, 0.0) is False
            js.publish(f"{stream.name}.2", b"")
            assert filtered.wait(client, {stream.name: 43}, 0.05) is False
            js.publish(f"{stream.name}.1", b"")
            assert filtered.wait(client, {stream.name: 43}, LONG) is True

    def test_only_headers_are_sent(self, js, client):
        """One consumer per stream waits, without payloads, and the server will delete it."""
        with numbered(js, 3) as stream:
            waits = Arrivals(())
            waits.wait(client, {stream.name: 4}, 0.0)
            (consumer,) = stream.consumers()
            config = consumer.cached_info.config
            assert config.headers_only is True
            assert config.mem_storage is True
            assert config.inactive_threshold == arrivals.INACTIVE
            assert config.durable_name is None

    def test_after_a_large_batch(self, js, client, monkeypatch):
        """The consumer is replaced instead of skipping many messages, but not all the time."""
        monkeypatch.setattr(arrivals, "SKIPPED", 10)
        with numbered(js, 1) as stream:
            waits = Arrivals(())
            assert waits.wait(client, {stream.name: 2}, 0.0) is False
            (first,) = stream.consumer_names()
            extend(js, stream, 50)
            assert waits.wait(client, {stream.name: 52}, LONG) is None
            monkeypatch.setattr(arrivals, "PAUSE", 0.0)
            waits._not_before.clear()
            assert waits.wait(client, {stream.name: 52}, 0.0) is False
            (second,) = stream.consumer_names()
            assert first != second

    def test_for_one_of_several(self, js, client):
        """A message of any stream ends the wait."""
        with numbered(js, 1) as one, numbered(js, 2) as other:
            waits = Arrivals(())
            expected = {one.name: 2, other.name: 3}
            assert waits.wait(client, expected, 0.01) is False
            with later(extend, js, other, 1):
                assert waits.wait(client, expected, LONG) is True
            assert waits.wait(client, {one.name: 2, other.name: 4}, 0.01) is False
            with later(extend, js, one, 1):
                assert waits.wait(client, {one.name: 2, other.name: 4}, LONG) is True
            # A stream that the query no longer reads needs no consumer.
            assert waits.wait(client, {one.name: 3}, 0.0) is False
            assert not [*other.consumer_names()]

    def test_for_many(self, js, client, monkeypatch):
        """Each call creates a few consumers, and a message of any of many streams ends the wait."""
        monkeypatch.setattr(arrivals, "FEW", 2)
        with contextlib.ExitStack() as stack:
            streams = [stack.enter_context(numbered(js, n)) for n in range(5)]
            waits = Arrivals(())
            expected = {stream.name: n + 1 for n, stream in enumerate(streams)}
            assert waits.wait(client, expected, LONG) is None
            assert waits.wait(client, expected, LONG) is None
            assert waits.wait(client, expected, 0.0) is False
            assert [len([*stream.consumer_names()]) for stream in streams] == [1] * 5
            for number in (4, 0, 2):
                with later(extend, js, streams[number], 1):
                    assert waits.wait(client, expected, LONG) is True
                expected[streams[number].name] += 1
                assert waits.wait(client, dict(expected), 0.01) is False

    def test_for_none(self, client):
        """Without streams, there is nothing to wait for."""
        assert Arrivals(()).wait(client, {}, LONG) is None

    def test_with_few_places(self, js, client):
        """A stream that limits its consumers is asked instead, so that others find a place."""
        with numbered(js, 1, max_consumers=1) as stream:
            assert Arrivals(()).wait(client, {stream.name: 2}, LONG) is None
            assert not [*stream.consumer_names()]

    def test_a_deleted_stream(self, js, client):
        """The end of a consumer ends the wait, because the stream may have changed."""
        with numbered(js, 1) as stream:
            waits = Arrivals(())
            assert waits.wait(client, {stream.name: 2}, 0.0) is False
            with later(stream.delete):
                assert waits.wait(client, {stream.name: 2}, LONG) is True
            assert waits.wait(client, {stream.name: 2}, LONG) is None

    def test_another_client(self, js, nats_server, client):
        """Consumers belong to one client, and are not pickled."""
        with numbered(js, 1) as stream:
            waits = Arrivals(())
            with jetsync.connect(nats_server.url) as other:
                assert waits.wait(other, {stream.name: 2}, 0.0) is False
            waits._not_before.clear()
            assert waits.wait(client, {stream.name: 2}, 0.0) is False
            with later(extend, js, stream, 1):
                assert waits.wait(client, {stream.name: 2}, LONG) is True
            assert pickle.loads(pickle.dumps(waits)).wait(client, {}, 0.0) is None

    @pytest.mark.parametrize("denied", ["CREATE", "MSG.NEXT"])
    def test_without_permission(self, denied, monkeypatch):
        """A user who may not create or pull a consumer asks for the stream instead."""
        config = (
            "authorization { users = [{user: admin, password: x}, {user: reader, password: x, "
            f'permissions: {{publish: {{deny: "$JS.API.CONSUMER.{denied}.>"}}}}}}] }}'
        )
        with (
            DevServer(config=config) as server,
            jetsync.connect(server.url, user="admin", password="x") as admin,
            jetsync.connect(server.url, user="reader", password="x") as reader,
        ):
            admin.jetstream().create_stream("S", subjects=["s"])
            monkeypatch.setattr(arrivals, "PAUSE", 0.0)
            waits = Arrivals(())
            found = waits.wait(reader, {"S": 1}, LONG)
            if found:
                # The pull was denied after the consumer was created.
                found = waits.wait(reader, {"S": 1}, LONG)
            assert found is None


class TestQuery:
    @pytest.fixture(autouse=True)
    def patient(self, monkeypatch):
        """
        Wait until a message arrives.
        """
        monkeypatch.setattr(idle, "WAIT", LONG)
        monkeypatch.setattr(idle, "AT_ONCE", LONG)
        monkeypatch.setattr(idle, "CHECK", 1000.0)

    def test_a_message_ends_the_wait(self, js, nats_server):
        """A query that has read everything waits for the next message."""
        with numbered(js, 5) as stream:
            query = Query(nats_server, stream, startingOffsets="earliest")
            assert query.plan()
            # The first question after a batch does not wait, because other sources may have news.
            assert not query.plan()
            for number in range(6, 9):
                with later(extend, js, stream, 1):
                    assert query.plan()
                assert query.read() == [number]
                query.reader.commit(query.ends[-1])
                assert not query.plan()

    def test_few_requests(self, js, nats_server, client, monkeypatch):
        """An idle query sends no requests while its consumer waits."""
        monkeypatch.setattr(idle, "WAIT", 0.01)
        with numbered(js, 5) as stream:
            query = Query(nats_server, stream, startingOffsets="earliest")
            query.all()
            assert not query.plan()

            def plan_often():
                for _ in range(50):
                    assert not query.plan()

            assert not [each for each in asked(client, plan_often) if "MSG.NEXT" not in each]

    def test_a_query_without_a_consumer_polls_less_and_less_often(
        self, js, nats_server, client, monkeypatch
    ):
        """Without a consumer, a query polls less and less often, and finds new messages."""
        monkeypatch.setattr(idle, "WAIT", 0.02)
        monkeypatch.setattr(idle, "POLLING", 0.1)
        with numbered(js, 5, max_consumers=1) as stream:
            query = Query(nats_server, stream, startingOffsets="earliest")
            query.all()
            began = time.monotonic()

            def plan_often():
                while time.monotonic() < began + 1.0:
                    assert not query.plan()

            found = asked(client, plan_often)
            assert 1 <= len(found) <= 50 * (time.monotonic() - began) + 1
            assert {*found} == {f"$JS.API.STREAM.INFO.{stream.name}"}
            extend(js, stream, 1)
            eventually(query.plan)
            assert query.read() == [6]

    def test_an_idle_query_of_many_streams_sends_no_requests(
        self, js, nats_server, client, unique, monkeypatch
    ):
        """However many streams a query reads, it waits for the next message without a request."""
        monkeypatch.setattr(idle, "WAIT", 0.01)
        with contextlib.ExitStack() as stack:
            streams = [stack.enter_context(numbered(js, 2, prefix=unique)) for _ in range(40)]
            query = Query(nats_server, f"{unique}*", startingOffsets="earliest")
            query.all()

            def plan_often():
                for _ in range(50):
                    assert not query.plan()

            eventually(lambda: not asked(client, plan_often), LONG)
            monkeypatch.setattr(idle, "WAIT", LONG)
            with later(extend, js, streams[33], 1):
                assert query.plan()
            assert query.ranges() == [(streams[33].name, 3, 4)]

    def test_a_query_finds_messages_after_its_consumer_is_lost(self, monkeypatch):
        """A query finds messages that arrive after the server has lost its consumer."""
        monkeypatch.setattr(idle, "WAIT", 0.1)
        monkeypatch.setattr(idle, "CHECK", 1.0)
        with DevServer() as server, jetsync.connect(server.url, reconnect_wait=0.05) as client:
            js = client.jetstream()
            with numbered(js, 5, storage="file") as stream:
                query = Query(server, stream, startingOffsets="earliest")
                query.all()
                assert not query.plan()
                server.restart()
                eventually(lambda: client.is_connected, LONG)
                extend(js, stream, 1)
                eventually(query.plan, LONG)
                assert query.read() == [6]

    def test_a_fixed_end(self, js, nats_server):
        """A run to a fixed end does not wait."""
        with numbered(js, 5) as stream:
            query = Query(nats_server, stream, startingOffsets="earliest")
            query.reader.prepareForTriggerAvailableNow()
            assert query.all() == [[*range(1, 6)]]
            began = time.monotonic()
            for _ in range(5):
                assert not query.plan()
            assert time.monotonic() < began + LONG
            assert not [*stream.consumer_names()]
