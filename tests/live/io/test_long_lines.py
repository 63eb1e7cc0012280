"""
Protocol lines that exceed the server's limit raise before anything is sent, and the connection
stays.
"""

from __future__ import annotations

import pytest

import jetsync
from helpers.streams import memory_stream
from jetsync.devserver import DevServer

INBOX = "_INBOX" + "x" * 100
"""A prefix with which the longest subjects exceed a line."""


@pytest.fixture
def client(nats_server):
    """
    A client with a long inbox prefix, which must keep its first connection during the test.
    """
    with jetsync.connect(nats_server.url, inbox_prefix=INBOX) as client:
        yield client
        client.flush()
        assert client.statistics().reconnects == 0


class TestLongSubjects:
    def test_each_way_to_publish_refuses_a_subject_that_is_too_long(self, client, unique):
        """
        Each way to publish refuses a subject that does not fit on a line with the inbox.
        """
        js = client.jetstream()
        subject = unique + "." + "a" * (3999 - len(unique))
        memory_stream(js, unique)
        with pytest.raises(jetsync.MaxControlLineError) as caught:
            js.publish(subject)
        assert caught.value.size > caught.value.limit == 4096
        with pytest.raises(jetsync.MaxControlLineError):
            client.request(subject)
        with pytest.raises(jetsync.PublishManyError) as many:
            js.publish_many([(subject, b"")])
        assert isinstance(many.value.report.failures[0].error, jetsync.MaxControlLineError)
        with js.publisher() as publisher, pytest.raises(jetsync.MaxControlLineError):
            publisher.publish(subject)
        # Without a reply subject there is room.
        client.publish(subject)
        js.delete_stream(unique)

    def test_batches_refuse_a_subject_that_does_not_fit_in_add(self, client, unique):
        """
        Batches refuse such a subject in add().
        """
        js = client.jetstream()
        subject = unique + "." + "a" * (3999 - len(unique))
        js.create_stream(unique, subjects=[f"{unique}.>"], allow_atomic=True, allow_batched=True)
        with pytest.raises(jetsync.MaxControlLineError):
            js.publish_batch([(subject, b"")])
        with js.fast_publisher() as publisher, pytest.raises(jetsync.MaxControlLineError):
            publisher.add(subject, b"")
        js.delete_stream(unique)

    def test_a_queue(self, client, unique):
        """
        A queue group that does not fit on a line with its subject is refused.
        """
        with pytest.raises(jetsync.MaxControlLineError):
            client.subscribe(unique, queue="q" * 4090)

    def test_a_key_that_does_not_fit_cannot_be_used(self, client, unique):
        """
        A key that does not fit cannot be put, got or deleted.
        """
        bucket = client.jetstream().create_key_value(unique, storage="memory")
        key = "k" * 3960
        for call in (bucket.delete, lambda key: bucket.put(key, b"")):
            with pytest.raises((jetsync.MaxControlLineError, jetsync.InvalidSubjectError)):
                call(key)
        with pytest.raises(jetsync.KeyNotFoundError):
            bucket.get(key)
        client.jetstream().delete_key_value(unique)

    def test_a_long_subject_is_read(self, client, unique):
        """
        If a message's subject does not fit after the API subject, it is sent in the request's body.
        """
        js = client.jetstream()
        subject = unique + "." + "a" * (3999 - len(unique))
        js.create_stream(unique, subjects=[f"{unique}.>"], allow_direct=True)
        client.publish(subject, b"here")
        client.flush()
        assert js.stream(unique).get_last(subject).data == b"here"
        js.delete_stream(unique)


class TestLongAcks:
    def test_a_reason_over_max_payload_leaves_the_message_open(self, unique):
        """
        A reason that is longer than max_payload is refused, and the message can then be terminated.
        """
        with (
            DevServer(config={"max_payload": 10_000}) as server,
            jetsync.connect(server.url) as client,
        ):
            js = client.jetstream()
            stream = memory_stream(js, unique)
            js.publish(f"{unique}.A", b"x")
            consumer = stream.create_consumer("C")
            (message,) = consumer.fetch(1)
            with pytest.raises(jetsync.MaxPayloadError):
                message.term("r" * 10_000)
            message.term("r" * 9_000)
            client.flush()
            assert client.statistics().reconnects == 0
            assert consumer.info().num_ack_pending == 0
