"""
Options that old servers silently ignore: jetsync refuses them before it sends anything.
"""

from __future__ import annotations

import pytest

import jetsync

pytestmark = pytest.mark.versions

OLD, NEWER = "2.10.26", "2.11.11"

TTL = r"a time-to-live of a message is not supported: needs server 2\.11 or later"
ELSEWHERE = jetsync.Expect(last_subject_sequence=0, last_subject_sequence_subject="OLD.*")


@pytest.fixture
def old(server_for):
    """
    A stream on a server of version 2.10, with one message.
    """
    with jetsync.connect(server_for(OLD).url) as client:
        js = client.jetstream()
        stream = js.create_stream("OLD", subjects=["OLD.>"], storage="memory")
        js.publish("OLD.first")
        yield js, stream
        js.delete_stream("OLD")


class TestPurges:
    @pytest.mark.parametrize("storage", ["memory", "file"])
    @pytest.mark.parametrize("subject", [None, ">", "OLD.*"])
    def test_nothing_is_before_the_first_sequence(self, old, storage, subject):
        """
        A purge of all messages before sequence 1 removes nothing, and needs the stream.
        """
        js, stream = old
        js.delete_stream("OLD")
        stream = js.create_stream("OLD", subjects=["OLD.>"], storage=storage)
        js.publish("OLD.a")
        assert stream.purge(subject, sequence=1) == 0
        assert stream.info().state.messages == 1
        js.delete_stream("OLD")
        with pytest.raises(jetsync.StreamNotFoundError):
            stream.purge(subject, sequence=1)
        js.create_stream("OLD", subjects=["OLD.>"], storage=storage)

    def test_a_young_marker_at_the_first_revision(self, old):
        """
        ``purge_deletes`` keeps a young marker, although it is the first revision of the bucket.
        """
        kv = old[0].create_key_value("OLD", history=5, storage="memory")
        kv.delete("a")
        assert kv.purge_deletes() == 0
        assert [entry.is_deleted for entry in kv.history("a")] == [True]
        old[0].delete_key_value("OLD")


class TestMessages:
    @pytest.mark.parametrize(
        ("options", "text"),
        [({"ttl": 5}, TTL), ({"expect": ELSEWHERE}, "last_subject_sequence_subject")],
    )
    def test_no_publish_has_headers_that_the_server_would_ignore(self, old, options, text):
        """
        No way to publish sends a message whose headers the server would ignore.
        """
        js, stream = old
        message = jetsync.OutboundMessage("OLD.a", **options)
        with pytest.raises(jetsync.NotSupportedError, match=text) as caught:
            js.publish("OLD.a", **options)
        assert caught.value.server == OLD
        with pytest.raises(jetsync.PublishManyError) as many:
            js.publish_many([("OLD.b", b""), message])
        assert [type(each.error) for each in many.value.report.failures] == [
            jetsync.NotSupportedError
        ]
        with js.publisher() as publisher, pytest.raises(jetsync.NotSupportedError, match=text):
            publisher.publish("OLD.a", **options)
        assert stream.info().state.messages == 2

    def test_other_conditions(self, old):
        """
        Conditions that the server knows are sent.
        """
        js, _ = old
        assert js.publish("OLD.a", expect=jetsync.Expect(last_sequence=1)).sequence == 2


class TestPulls:
    @pytest.mark.parametrize(
        "options", [{"group": "A"}, {"min_pending": 5}, {"min_ack_pending": 5}, {"priority": 1}]
    )
    def test_no_pull_has_options_that_the_server_would_ignore(self, old, options):
        """
        No way to take messages sends a pull whose options the server would ignore.
        """
        _, stream = old
        consumer = stream.create_consumer("C")
        for call in (consumer.fetch, consumer.next, consumer.consume):
            arguments = (1,) if call == consumer.fetch else ()
            for _ in range(2):
                with pytest.raises(jetsync.NotSupportedError, match=next(iter(options))):
                    call(*arguments, **options)
        assert consumer.next(expires=5).subject == "OLD.first"

    def test_priority_needs_a_newer_one(self, server_for):
        """
        Server 2.11 has groups, and ignores priorities.
        """
        with jetsync.connect(server_for(NEWER).url) as client:
            stream = client.jetstream().create_stream("P", subjects=["P"], storage="memory")
            consumer = stream.create_consumer(priority_groups=["A"], priority_policy="overflow")
            with pytest.raises(jetsync.NotSupportedError, match=r"needs server 2\.12"):
                consumer.fetch(1, group="A", priority=1)
            assert list(consumer.fetch(1, group="A", no_wait=True)) == []
            client.jetstream().delete_stream("P")
