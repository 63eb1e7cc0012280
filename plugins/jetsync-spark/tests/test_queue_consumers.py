"""
The consumers of queries, and what they ask of the server.
"""

import contextlib
import itertools
import json

import pytest
from streams_to_read import extend, numbered

import jetsync
from jetsync_spark.common.errors import JetStreamSparkError, OptionError

pytest.importorskip("pyspark.sql.streaming.datasource", reason="consumers need PySpark 4.2")

from queries import Rows
from queues_to_read import next_batch, queue

from jetsync_spark.read import durable, work_queue

pytestmark = pytest.mark.live


class TestConsumers:
    def test_a_consumer_of_the_query(self, js, reads):
        """A new consumer sends no payloads to the planner, and allows enough pending messages."""
        with queue(js, 3) as stream:
            query = reads(stream, maxOffsetsPerTrigger="7", ackWait="90s")
            query.begin()
            config = stream.consumer("spark").cached_info.config
            assert config.durable_name == "spark"
            assert config.headers_only
            assert (config.max_ack_pending, config.ack_wait) == (14, 90.0)

    def test_a_consumer_of_the_user(self, js, reads):
        """A consumer that exists is used as it is: its filters and its limits apply."""
        with queue(js, 40, subjects=2, size=5000) as stream:
            stream.create_consumer(
                "spark", filter_subject=f"{stream.name}.1", max_ack_pending=6, max_batch=4
            )
            found = reads(stream, createConsumer="false").all()
            assert [*map(len, found)] == [6, 6, 6, 2]
            assert [*itertools.chain.from_iterable(found)] == [*range(1, 41, 2)]

    def test_large_messages(self, js, reads, monkeypatch):
        """Without headers_only, a message larger than a pull is planned too."""
        monkeypatch.setattr(durable, "LIMITED", 10_000)
        with queue(js, 5, size=20_000) as stream:
            stream.create_consumer("spark")
            assert reads(stream).all() == [[1, 2, 3, 4, 5]]

    @pytest.mark.parametrize(
        ("fields", "options", "said"),
        [
            ({"ack_policy": "none"}, {}, "no explicit acknowledgements"),
            ({"ack_policy": "all"}, {}, "no explicit acknowledgements"),
            ({"deliver_subject": "push.here"}, {}, "pushes messages: name a pull consumer"),
            ({"name": "spark", "durable_name": None}, {}, "is ephemeral"),
            (
                {"priority_groups": ["a"], "priority_policy": "overflow"}, {},
                "has priority groups",
            ),
            ({"filter_subject": "{}.1"}, {"subjectFilter": "{}.2"}, r"has the filters \S+\.1, and"),
            ({"ack_wait": 20}, {"ackWait": "30s"}, r"has an ack_wait of 20\.0 s"),
        ],
    )  # fmt: skip
    def test_consumers_that_cannot_be_used(self, js, reads, fields, options, said):
        """Consumers that a query cannot read through are refused, and the error says why."""
        with numbered(js, 1, retention="interest") as stream:

            def named(value):
                return value.format(stream.name) if isinstance(value, str) else value

            fields = {"durable_name": "spark", **fields}
            stream.create_consumer(
                jetsync.ConsumerConfig(**{key: named(value) for key, value in fields.items()})
            )
            query = reads(stream, **{key: named(value) for key, value in options.items()})
            with pytest.raises(OptionError, match=said):
                query.begin()

    def test_a_consumer_that_must_exist(self, js, reads):
        """With createConsumer=false, a consumer that does not exist is an error."""
        with queue(js, 1) as stream:
            with pytest.raises(OptionError, match="has no consumer spark: create it, correct"):
                reads(stream, createConsumer="false").begin()
            assert [*stream.consumer_names()] == []

    def test_a_consumer_that_the_server_refuses(self, js, reads):
        """If another consumer of a work queue has the same messages, the error says so."""
        with queue(js, 1) as stream:
            stream.create_consumer("other")
            with pytest.raises(
                JetStreamSparkError, match=r"creating consumer spark failed.*overlaps"
            ):
                reads(stream).begin()

    def test_a_filter_that_matches_nothing(self, js, reads):
        """A new consumer with a filter that matches no subject of the stream is refused."""
        with (
            queue(js, 1) as stream,
            pytest.raises(OptionError, match="subjectFilter wrong matches no subject"),
        ):
            reads(stream, subjectFilter="wrong").begin()

    def test_a_filter_that_is_changed(self, js, reads):
        """If the filters of the consumer are changed, planned batches keep theirs."""
        with queue(js, 20, subjects=2) as stream:
            query = reads(stream, subjectFilter=f"{stream.name}.0")
            assert query.plan(Rows(5))
            stream.update_consumer("spark", filter_subjects=[f"{stream.name}.1"])
            del query.options["subjectFilter"]
            query.start()
            assert query.read() == [2, 4, 6, 8, 10]
            assert query.plan()
            assert query.read() == [*range(11, 21, 2)]


@contextlib.contextmanager
def requests(server):
    """
    Count the requests to the JetStream API during the block: those of the block, in a list.
    """
    with jetsync.connect(server.url) as client, client.subscribe("$JS.API.>") as api:
        client.flush()
        found = []
        yield found
        client.flush()
        found.extend(iter(lambda: api.next(timeout=0.2), None))


class TestRequests:
    def test_an_idle_query_waits_at_the_server(self, js, reads, nats_server, monkeypatch):
        """An idle query keeps one pull at the server and sends no other requests."""
        with queue(js, 1) as stream:
            query = reads(stream)
            assert query.all() == [[1]]
            monkeypatch.setattr(work_queue, "CHECK", 3600.0)
            with requests(nats_server) as sent:
                for _ in range(50):
                    assert not query.plan()
            assert [message.subject for message in sent] == [
                f"$JS.API.CONSUMER.MSG.NEXT.{stream.name}.spark"
            ]
            extend(js, stream, 3)
            assert next_batch(query) == [2, 3, 4]

    def test_requests_of_a_batch(self, js, reads, nats_server, monkeypatch):
        """A batch costs a constant number of requests, and its offset is small."""
        monkeypatch.setattr(work_queue, "CHECK", 3600.0)
        with queue(js, 2000) as stream:
            query = reads(stream)
            assert query.plan(Rows(1000))
            with requests(nats_server) as sent:
                assert query.plan(Rows(1000))
            assert len(sent) <= 5
            assert len(json.dumps(query.ends[-1])) < 400
