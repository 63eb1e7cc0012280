"""
Symptoms of programs that publish, and that create streams and consumers.

`docs/howto/symptoms.md` has the words that each test sees.
"""

from __future__ import annotations

import logging
import threading

import pytest

import jetsync
from helpers.symptoms import names, shows
from helpers.waiting import eventually
from jetsync.devserver import DevServer


@pytest.fixture
def own_stream(js, unique):
    """
    A stream that a test may configure, deleted afterwards.
    """

    def make(**fields):
        made.add(unique)
        return js.create_stream(unique, subjects=[f"{unique}.>"], storage="memory", **fields)

    made = set()
    yield make
    for name in made:
        js.delete_stream(name)


class TestPublish:
    def test_no_stream(self, js, unique, own_stream):
        """
        A subject that no stream captures is refused, and `stream_names` shows who captures one.
        """
        heading = "NoStreamResponseError: no stream has this subject"
        with pytest.raises(jetsync.NoStreamResponseError) as caught:
            js.publish(unique, b"")
        shows(heading, caught.value, "no stream has this subject, or its leader is away")
        own_stream()
        assert list(js.stream_names(subject=f"{unique}.eu")) == [unique]
        names(heading, "js.stream_names(subject=")

    def test_core_publish(self, client, js, unique, own_stream):
        """
        `client.publish` returns None, also if no stream captures the subject.
        """
        heading = "Nothing is stored, and no error appears"
        assert client.publish(unique, b"") is None
        client.flush()
        own_stream()
        shows(heading, repr(js.publish(f"{unique}.a", b"")), "PubAck")
        names(heading, "client.publish", "js.publish")

    def test_core_publish_without_permission(self, caplog):
        """
        `client.publish` is refused later: in the log, and by the next flush.
        """
        heading = "client.publish is refused silently"
        user = {"user": "u", "password": "p", "permissions": {"publish": {"deny": ["orders.>"]}}}
        block = {"timeout": 30, "users": [user]}
        with (
            DevServer(jetstream=False, config={"authorization": block}) as server,
            jetsync.connect(server.url, user="u", password="p") as client,
        ):
            client.publish("orders.eu", b"")
            with pytest.raises(jetsync.PermissionDeniedError) as caught:
                client.flush()
        shows(heading, caught.value, "permission denied: may not publish to")
        shows(heading, caplog.text, "server_error", "Permissions Violation for Publish")

    def test_a_full_stream(self, js, unique, own_stream):
        """
        A stream that discards new messages refuses them once it is full.
        """
        heading = "StreamFullError: maximum messages exceeded"
        stream = own_stream(max_msgs=1, discard="new")
        js.publish(f"{unique}.a", b"")
        with pytest.raises(jetsync.StreamFullError) as caught:
            js.publish(f"{unique}.a", b"")
        shows(heading, caught.value, "maximum messages exceeded")
        assert stream.info().state.messages == 1
        stream.update(max_msgs=2)
        js.publish(f"{unique}.a", b"")
        names(heading, "stream.update(max_msgs=", "`discard`", "`new`", "stream.info().state")

    def test_a_large_message(self, js, stream):
        """
        A message above `max_payload` is refused before it is sent.
        """
        with pytest.raises(jetsync.MaxPayloadError) as caught:
            js.publish(f"{stream.name}.a", bytes(2_000_000))
        heading = "MaxPayloadError: the server's max_payload is 1048576"
        shows(heading, caught.value, "the server's max_payload is 1048576")

    def test_a_wrong_sequence(self, js, make_bucket, stream):
        """
        A condition that no longer holds names the present sequence.
        """
        heading = "WrongLastSequenceError: wrong last sequence"
        js.publish(f"{stream.name}.a", b"")
        with pytest.raises(jetsync.WrongLastSequenceError) as caught:
            js.publish(f"{stream.name}.a", b"", expect=jetsync.Expect(last_sequence=9))
        shows(heading, caught.value, "wrong last sequence: 1")
        with pytest.raises(jetsync.WrongLastRevisionError) as caught:
            make_bucket().update("a", b"", last=9)
        shows(heading, caught.value)

    def test_a_killed_server(self, caplog):
        """
        If the server dies before its acknowledgement, the outcome is unknown.
        """
        heading = "PublishOutcomeUnknownError"
        caplog.set_level(logging.INFO, "jetsync")
        with DevServer() as server, jetsync.connect(server.url) as client:
            js = client.jetstream()
            caught = []

            def publish():
                try:
                    js.publish("s", b"")
                except jetsync.JetSyncError as error:
                    caught.append(error)

            # A subscriber that does not answer, so that the publish waits.
            with client.subscribe("s") as taken:
                thread = threading.Thread(target=publish)
                thread.start()
                assert taken.next(timeout=10) is not None
                server.kill()
                thread.join()
        shows(heading, caught[0], "outcome of the publish to")
        shows(heading, caplog.text, "disconnected")

    def test_a_duplicate_after_the_window(self, js, unique, own_stream):
        """
        A stream stores a `msg_id` again when its `duplicate_window` is over.
        """
        heading = "A message with the same msg_id is stored twice"
        stream = own_stream(duplicate_window=0.1)
        js.publish(f"{unique}.a", b"", msg_id="order-1")
        again = eventually(
            lambda: not (ack := js.publish(f"{unique}.a", b"", msg_id="order-1")).duplicate and ack
        )
        shows(heading, repr(again), "duplicate=False")
        assert stream.info().config.duplicate_window == 0.1
        names(heading, "stream.info().config.duplicate_window", "2 minutes")
        assert js.create_stream(f"{unique}x", subjects=[]).info().config.duplicate_window == 120
        js.delete_stream(f"{unique}x")

    def test_a_ttl(self, js, stream):
        """
        A stream has to allow a time-to-live.
        """
        heading = "MessageTtlDisabledError: per-message TTL is disabled"
        with pytest.raises(jetsync.MessageTtlDisabledError) as caught:
            js.publish(f"{stream.name}.a", b"", ttl=5)
        words = ("per-message TTL is disabled", "the stream needs allow_msg_ttl=True")
        shows(heading, caught.value, *words)
        stream.update(allow_msg_ttl=True)
        js.publish(f"{stream.name}.a", b"", ttl=5)
        names(heading, "stream.update(allow_msg_ttl=True)", "cannot be turned off")
        with pytest.raises(jetsync.ApiError):
            stream.update(allow_msg_ttl=False)

    @pytest.mark.versions
    def test_an_old_server(self, server_for, unique):
        """
        A server of version 2.10 has no atomic batches.
        """
        heading = "NotSupportedError: needs server 2.12 or later"
        with jetsync.connect(server_for("2.10.26").url) as client:
            js = client.jetstream()
            js.create_stream(unique, subjects=[unique], storage="memory")
            with pytest.raises(jetsync.NotSupportedError) as caught:
                js.publish_batch([(unique, b"")])
            js.delete_stream(unique)
        shows(heading, caught.value, "needs server 2.12 or later")

    def test_a_stream_without_batches(self, js, stream):
        """
        A stream has to allow atomic batches.
        """
        heading = "NotSupportedError: needs server 2.12 or later"
        with pytest.raises(jetsync.AtomicPublishDisabledError) as caught:
            js.publish_batch([(f"{stream.name}.a", b"")])
        shows(heading, caught.value, "allow_atomic=True")


class TestConfigurations:
    def test_overlapping_subjects(self, js, unique, own_stream):
        """
        A subject belongs to one stream.
        """
        heading = "SubjectOverlapError: subjects overlap with an existing stream"
        own_stream()
        with pytest.raises(jetsync.SubjectOverlapError) as caught:
            js.create_stream(f"{unique}x", subjects=[f"{unique}.eu"])
        shows(heading, caught.value, "subjects overlap with an existing stream")
        assert list(js.stream_names(subject=f"{unique}.eu")) == [unique]
        names(heading, "js.stream_names(subject=")

    def test_another_stream_of_that_name(self, js, unique, own_stream):
        """
        `create_stream` does not change a stream.
        """
        heading = "StreamNameInUseError: already in use with a different configuration"
        own_stream()
        own_stream()
        with pytest.raises(jetsync.StreamNameInUseError) as caught:
            js.create_stream(unique, subjects=[f"{unique}.eu"], storage="memory")
        shows(heading, caught.value, "already in use with a different configuration")
        names(heading, "stream.update(", "js.create_or_update_stream(")
        assert js.create_or_update_stream(unique, subjects=[f"{unique}.eu"], storage="memory")

    def test_another_consumer_of_that_name(self, stream):
        """
        `create_consumer` does not change a consumer.
        """
        heading = "ConsumerExistsError: already exists on stream"
        stream.create_consumer("worker", ack_wait=30)
        with pytest.raises(jetsync.ConsumerExistsError) as caught:
            stream.create_consumer("worker", ack_wait=60)
        shows(heading, caught.value, "already exists on stream")
        stream.create_or_update_consumer("worker", ack_wait=60)
        names(heading, "stream.create_or_update_consumer(", "`deliver_policy`")
        with pytest.raises(jetsync.ApiError):
            stream.create_or_update_consumer("worker", deliver_policy="new")

    def test_two_consumers_of_a_work_queue(self, own_stream):
        """
        A work queue has one consumer for each subject.
        """
        heading = "multiple non-filtered consumers not allowed on workqueue stream"
        jobs = own_stream(retention="workqueue")
        jobs.create_consumer("a")
        with pytest.raises(jetsync.ApiError) as caught:
            jobs.create_consumer("b")
        shows(heading, str(caught.value), heading)

    def test_direct_reads(self, stream):
        """
        A stream has to allow direct reads.
        """
        heading = "DirectNotSupportedError: needs allow_direct=True on the stream"
        with pytest.raises(jetsync.DirectNotSupportedError) as caught:
            list(stream.scan())
        shows(heading, caught.value, "needs allow_direct=True on the stream")
        stream.update(allow_direct=True)
        assert list(stream.scan()) == []
        names(heading, "stream.update(allow_direct=True)")
