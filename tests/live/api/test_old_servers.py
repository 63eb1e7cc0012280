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
