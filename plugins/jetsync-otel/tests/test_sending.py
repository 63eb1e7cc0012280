"""
Spans and contexts for each way to publish.
"""

from __future__ import annotations

import threading

import pytest
from opentelemetry import baggage, context, trace
from opentelemetry.trace import SpanKind, StatusCode
from telemetry import ids

import jetsync
from jetsync.testing import eventually
from jetsync_otel import extract, inject

pytestmark = pytest.mark.live


def carried(message):
    """
    Return the trace and the span of the context that a message carries.
    """
    return ids(trace.get_current_span(extract(message)).get_span_context())


def stored(stream):
    """
    Return the messages of the stream.
    """
    last = stream.info().state.last_seq
    return [stream.get_message(sequence) for sequence in range(1, last + 1)]


# The handler is expected to raise.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("wrapped", [True, False], ids=["in a span", "without a span"])
def test_a_dead_letter_links_to_its_message(traced, telemetry, js, stream, subject, wrapped):
    """
    The span of a dead letter links to the span that published the message, whose context the letter
    carries.
    """
    dead = js.create_stream(f"{stream.name}-dead", subjects=[f"{stream.name}-dead"])

    def give_up(message: jetsync.Message) -> None:
        raise jetsync.DeadLetter("no seat")

    try:
        otel = telemetry.plugin()
        mine = traced(otel)
        mine.publish(subject, b"1")
        handler = otel.handler(give_up) if wrapped else give_up
        worker = mine.stream(stream.name).create_consumer("worker", max_deliver=3)
        with worker.consume(handler, ack="auto", dead_letter=dead.name, stop_after=1) as running:
            assert running.wait(timeout=30)
        assert dead.info().state.messages == 1
        first = next(each for each in telemetry.spans if each.name == f"publish {stream.name}")
        span = eventually(
            lambda: next((e for e in telemetry.spans if e.name == f"publish {dead.name}"), None)
        )
        assert [ids(link.context) for link in span.links] == [ids(first.context)]
        assert carried(dead.get_last(dead.name)) == ids(first.context)
    finally:
        js.delete_stream(dead.name)


class TestPublish:
    def test_a_published_message_carries_the_context_of_its_span(
        self, traced, telemetry, stream, subject
    ):
        """
        The span has the attributes of the conventions, and the message carries its context.
        """
        ack = traced().publish(subject, b"1", msg_id="m")
        (span,) = telemetry.spans
        assert (span.name, span.kind) == (f"publish {stream.name}", SpanKind.PRODUCER)
        assert dict(span.attributes) == {
            "messaging.system": "nats",
            "messaging.operation.name": "publish",
            "messaging.operation.type": "send",
            "messaging.destination.name": stream.name,
            "messaging.nats.subject": subject,
            "messaging.nats.stream.sequence": ack.sequence,
        }
        (message,) = stored(stream)
        assert carried(message) == ids(span.context)
        assert message.headers["Nats-Msg-Id"] == "m"

    def test_the_current_span_is_the_parent_of_a_publish(self, traced, telemetry, stream, subject):
        """
        The current span is the parent, and it is current again after the publish.
        """
        js = traced()
        with telemetry.tracer.start_as_current_span("order") as order:
            js.publish(subject, b"1")
            js.publish_many([(subject, b"2")])
            with js.atomic_batch() as batch:
                batch.add(subject, b"3")
            assert trace.get_current_span() is order
        children = [span for span in telemetry.spans if span.name != "order"]
        assert [span.parent.span_id for span in children] == [order.context.span_id] * 4
        assert {span.context.trace_id for span in telemetry.spans} == {order.context.trace_id}

    def test_is_current_during_the_publish(self, telemetry, traced, subject):
        """
        Spans of other plugins during the publish are its children.
        """
        seen = []

        class Other:
            @jetsync.hookimpl
            def jetsync_prepare_message(self):
                seen.append(trace.get_current_span().get_span_context())

        traced(telemetry.plugin(), Other()).publish(subject)
        assert seen == [telemetry.spans[0].context]
        assert not trace.get_current_span().get_span_context().is_valid

    def test_a_context_of_its_own_stays(self, traced, telemetry, stream, subject):
        """
        A message that already has a context keeps it, for each way to publish.
        """
        with telemetry.tracer.start_as_current_span("origin") as origin:
            headers = inject({"A": "1"})
        for granularity in ("operation", "message"):
            js = traced(granularity=granularity)
            js.publish(subject, b"", headers=headers)
            js.publish_many([(subject, b"", headers), (subject, b"")])
        assert [carried(each) == ids(origin.context) for each in stored(stream)] == [
            True, True, False, True, True, False,
        ]  # fmt: skip

    @pytest.mark.parametrize(
        "own",
        [
            {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"},
            {"Traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"},
            {"Baggage": "of=mine"},
        ],
    )
    def test_a_context_of_its_own_stays_whole(self, own, traced, telemetry, stream, subject):
        """
        A message that has a context gets neither state nor baggage of another trace, in any case of
        the header names.
        """
        state = trace.TraceState([("vendor", "another")])
        current = trace.SpanContext(1, 2, is_remote=True, trace_state=state)
        inside = baggage.set_baggage("of", "another")
        inside = trace.set_span_in_context(trace.NonRecordingSpan(current), inside)
        for granularity in ("operation", "message"):
            js = traced(granularity=granularity)
            token = context.attach(inside)
            try:
                js.publish(subject, b"", headers=own)
                js.publish_many([(subject, b"", own)])
                js.publish_batch([(subject, b"", own)])
                with js.publisher() as publisher:
                    publisher.publish(subject, b"", headers=own)
            finally:
                context.detach(token)
        found = [each.headers.items() for each in stored(stream)]
        assert [[pair for pair in pairs if not pair[0].startswith("Nats-")] for pairs in found] == [
            list(own.items())
        ] * 8

    def test_a_duplicate_is_marked(self, traced, telemetry, subject):
        """
        The span has the attribute if the stream already had the message.
        """
        js = traced()
        js.publish(subject, b"1", msg_id="m")
        js.publish(subject, b"1", msg_id="m")
        first, second = telemetry.spans
        assert "messaging.nats.duplicate" not in first.attributes
        assert second.attributes["messaging.nats.duplicate"] is True
        assert telemetry.total("jetsync.publish.duplicates") == 1

    def test_the_span_of_a_failed_publish_has_the_error(
        self, traced, telemetry, unique_subject, subject
    ):
        """
        The span has the error, and its name has no subject.
        """
        js = traced()
        with pytest.raises(jetsync.NoStreamResponseError):
            js.publish(unique_subject, b"", retries=0)
        with pytest.raises(jetsync.WrongLastSequenceError):
            js.publish(subject, b"", expect=jetsync.Expect(last_sequence=9))
        for span, kind in zip(
            telemetry.spans, ("NoStreamResponseError", "WrongLastSequenceError"), strict=True
        ):
            assert span.name == "publish"
            assert span.status.status_code is StatusCode.ERROR
            assert span.attributes["error.type"] == f"jetsync.{kind}"
            assert [event.name for event in span.events] == ["exception"]
        assert telemetry.total("messaging.client.sent.messages") == 2
        assert telemetry.total("jetsync.publish.acknowledged") == 0


class TestBulk:
    def test_one_span_per_call(self, traced, telemetry, stream, subject):
        """
        The messages of a call carry its context, and the span counts them.
        """
        js = traced()
        for _ in range(2):
            js.publish_many([(subject, b"%d" % number) for number in range(10)], window=5)
        calls = telemetry.of("publish")
        assert [span.attributes["messaging.batch.message_count"] for span in calls] == [10, 10]
        assert {span.attributes["messaging.destination.name"] for span in calls} == {stream.name}
        assert {span.kind for span in calls} == {SpanKind.PRODUCER}
        messages = stored(stream)
        assert [carried(each) for each in messages[:10]] == [ids(calls[0].context)] * 10
        assert [carried(each) for each in messages[10:]] == [ids(calls[1].context)] * 10

    def test_failures_are_counted(self, traced, telemetry, subject):
        """
        A call with a failed message is an error that states the number of failures.
        """
        wrong = jetsync.OutboundMessage(subject, b"", expect=jetsync.Expect(last_sequence=99))
        with pytest.raises(jetsync.PublishManyError):
            traced().publish_many([(subject, b""), wrong, ("a b", b""), (subject, b"")])
        (span,) = telemetry.spans
        assert span.status.status_code is StatusCode.ERROR
        assert span.status.description == "2 messages failed"
        assert span.attributes["messaging.batch.message_count"] == 4
        assert span.attributes["messaging.nats.batch.failed_count"] == 2
        assert telemetry.total("messaging.client.sent.messages") == 4
        assert telemetry.total("jetsync.publish.acknowledged") == 2

    def test_an_iterable_that_raises(self, traced, telemetry, subject):
        """
        Messages before the error count as published, and the span has the error.
        """

        def source():
            yield from [(subject, b"")] * 3
            raise LookupError("no more rows")

        with pytest.raises(LookupError):
            traced().publish_many(source())
        (span,) = telemetry.spans
        assert span.status.description == "no more rows"
        assert span.attributes["error.type"] == "LookupError"
        assert span.attributes["messaging.batch.message_count"] == 3
        assert telemetry.total("messaging.client.sent.messages") == 3
        assert telemetry.total("jetsync.publish.acknowledged") == 3

    def test_the_iterable_is_no_part_of_it(self, traced, telemetry, subject):
        """
        The iterable's own work has its own spans.
        """

        def source():
            for number in range(3):
                with telemetry.tracer.start_as_current_span("row"):
                    yield subject, b"%d" % number

        traced().publish_many(source(), window=1)
        assert {span.parent for span in telemetry.spans if span.name == "row"} == {None}

    def test_a_publisher(self, traced, telemetry, stream, subject):
        """
        A publisher has one span: the messages of all threads carry its context.
        """
        js = traced()
        with telemetry.tracer.start_as_current_span("service") as service:
            publisher = js.publisher(window=2)
        with publisher:
            threads = [
                threading.Thread(target=publisher.publish, args=(subject, b"")) for _ in range(5)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            refused = publisher.publish(subject, expect=jetsync.Expect(last_sequence=99))
            assert isinstance(refused.exception(10), jetsync.WrongLastSequenceError)
        (span,) = telemetry.of("publish")
        assert {carried(each) for each in stored(stream)} == {ids(span.context)}
        assert span.parent.span_id == service.get_span_context().span_id
        assert span.attributes["messaging.batch.message_count"] == 6
        assert span.attributes["messaging.nats.batch.failed_count"] == 1
        assert span.attributes["messaging.destination.name"] == stream.name
        assert span.attributes["error.type"] == "jetsync.WrongLastSequenceError"
        assert span.status.description == "1 messages failed"
        assert telemetry.total("messaging.client.sent.messages") == 6
        assert telemetry.total("jetsync.publish.acknowledged") == 5

    def test_messages_of_a_publisher_are_counted_before_its_end(self, traced, telemetry, subject):
        """
        The metrics of a publisher that stays open are current, and its life is not a duration.
        """
        with traced().publisher() as publisher:
            publisher.publish(subject, msg_id="m")
            publisher.publish(subject, msg_id="m")
            eventually(lambda: telemetry.total("jetsync.publish.acknowledged") == 2)
            assert telemetry.total("jetsync.publish.duplicates") == 1
            assert telemetry.of("publish") == []
        assert telemetry.total("messaging.client.operation.duration") == 0

    def test_an_interrupt(self, traced, telemetry, subject):
        """
        After Ctrl-C, the messages in flight have failed, because their outcome is unknown.
        """

        def source():
            yield from [(subject, b"")] * 3
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            traced().publish_many(source())
        (span,) = telemetry.spans
        assert span.attributes["error.type"] == "KeyboardInterrupt"
        assert span.attributes["messaging.nats.batch.failed_count"] == 3
        assert telemetry.total("messaging.client.sent.messages") == 3
        assert telemetry.total("jetsync.publish.acknowledged") == 0

    def test_a_span_for_each_message(self, traced, telemetry, stream, subject):
        """
        With the granularity "message" the call links to the spans of its messages.
        """
        messages = [(subject, b"1"), jetsync.OutboundMessage(subject, b"2", msg_id="two")]
        traced(granularity="message", max_links=128).publish_many(messages)
        created = telemetry.of("create")
        (call,) = telemetry.of("publish")
        assert call.kind is SpanKind.CLIENT
        assert {span.kind for span in created} == {SpanKind.PRODUCER}
        assert [carried(each) for each in stored(stream)] == [ids(each.context) for each in created]
        assert [ids(link.context) for link in call.links] == [ids(each.context) for each in created]
        assert {each.parent.span_id for each in created} == {call.context.span_id}
        assert [each.attributes.get("messaging.message.id") for each in created] == [None, "two"]
        assert messages[1].headers is None

    def test_a_message_alone_has_no_second_span(self, traced, telemetry, stream, subject):
        """
        A single publish has one span, with each granularity.
        """
        traced(granularity="message").publish(subject)
        (span,) = telemetry.spans
        assert span.kind is SpanKind.PRODUCER
        assert carried(stored(stream)[0]) == ids(span.context)


class TestBatches:
    def batches(self, js, subject):
        """
        Publish a batch of two messages in each way.
        """
        with js.atomic_batch() as batch:
            batch.add(subject, b"1")
            batch.add(subject, b"2")
        js.publish_batch([(subject, b"3"), (subject, b"4")])
        with js.fast_publisher() as fast:
            fast.add(subject, b"5")
            fast.add_many([(subject, b"6")])

    def test_the_commit_links_to_the_contexts_of_the_messages(
        self, traced, telemetry, stream, subject
    ):
        """
        The spans are in one trace even without a current span.
        """
        self.batches(traced(), subject)
        begun, commits = telemetry.of("create"), telemetry.of("commit")
        assert len(begun) == len(commits) == 3
        for first, commit in zip(begun, commits, strict=True):
            assert [ids(link.context) for link in commit.links] == [ids(first.context)]
            assert commit.parent.span_id == first.context.span_id
            assert (first.kind, commit.kind) == (SpanKind.PRODUCER, SpanKind.CLIENT)
            assert commit.name == f"commit {stream.name}"
            assert commit.attributes["messaging.batch.message_count"] == 2
            assert (
                commit.attributes["messaging.nats.batch.id"]
                == first.attributes["messaging.nats.batch.id"]
            )
        expected = [ids(span.context) for span in begun for _ in range(2)]
        assert [carried(each) for each in stored(stream)] == expected
        assert telemetry.total("jetsync.publish.acknowledged", operation_name="commit") == 6

    def test_the_commit_links_to_a_span_for_each_message(self, traced, telemetry, stream, subject):
        """
        With the granularity "message", the commit links to the spans of all messages.
        """
        self.batches(traced(granularity="message"), subject)
        commits = telemetry.of("commit")
        assert [len(commit.links) for commit in commits] == [2, 2, 2]
        linked = [ids(link.context) for commit in commits for link in commit.links]
        assert [carried(each) for each in stored(stream)] == linked

    def test_a_refused_batch(self, traced, telemetry, stream, subject):
        """
        The commit has the error, and no message counts as acknowledged.
        """
        with pytest.raises(jetsync.WrongLastSequenceError):
            traced().publish_batch(
                [
                    jetsync.OutboundMessage(
                        subject, b"", expect=jetsync.Expect(last_subject_sequence=7)
                    )
                ]
            )
        (commit,) = telemetry.of("commit")
        assert commit.status.status_code is StatusCode.ERROR
        assert commit.attributes["error.type"] == "jetsync.WrongLastSequenceError"
        assert telemetry.total("messaging.client.sent.messages") == 1
        assert telemetry.total("jetsync.publish.acknowledged") == 0

    def test_a_batch_that_is_discarded(self, traced, telemetry, subject):
        """
        A discarded batch leaves no open span.
        """
        batch = traced().atomic_batch()
        batch.add(subject, b"1")
        batch.discard()
        assert [span.name for span in telemetry.spans] == ["create"]


@pytest.fixture
def unique_subject(stream):
    """
    A subject without a stream.
    """
    return f"nobody.{stream.name}"
