"""
Spans for each way to receive messages, and their links.
"""

from __future__ import annotations

import threading
import time

import pytest
from opentelemetry.trace import SpanKind, StatusCode
from telemetry import ids

import jetsync
from jetsync.testing import eventually

pytestmark = pytest.mark.live


@pytest.fixture
def worker(traced, stream, subject):
    """
    A consumer of an empty stream.
    """
    stream.create_consumer("worker", ack_wait=60)
    return traced().consumer(stream.name, "worker")


@pytest.fixture
def producer(traced, telemetry):
    """
    JetStream with spans that link to the contexts of messages.
    """
    return traced()


def linked(span):
    """
    Return the trace and the span of each link.
    """
    return [ids(link.context) for link in span.links]


class TestPulls:
    def test_the_span_of_a_fetch_links_to_each_publisher(
        self, worker, producer, telemetry, stream, subject
    ):
        """
        A fetch is one span, which links to each span that published its messages.
        """
        producer.publish(subject, b"1")
        producer.publish_many([(subject, b"2")] * 3)
        batch = worker.fetch(4, expires=5)
        assert len(list(batch)) == 4
        (span,) = telemetry.of("fetch")
        assert (span.name, span.kind) == (f"fetch {stream.name}", SpanKind.CLIENT)
        assert dict(span.attributes) == {
            "messaging.system": "nats",
            "messaging.operation.name": "fetch",
            "messaging.operation.type": "receive",
            "messaging.destination.name": stream.name,
            "messaging.consumer.group.name": "worker",
            "messaging.batch.message_count": 4,
        }
        assert linked(span) == [ids(each.context) for each in telemetry.of("publish")]

    def test_fetch_in_a_span_of_the_application(self, worker, producer, telemetry, subject):
        """
        The span that is current when a fetch begins is the parent. Processing is not part of the
        fetch.
        """
        producer.publish(subject, b"1")
        with telemetry.tracer.start_as_current_span("job") as job:
            for _ in worker.fetch(1, expires=5):
                with telemetry.tracer.start_as_current_span("work"):
                    pass
        (span,) = telemetry.of("fetch")
        (work,) = [each for each in telemetry.spans if each.name == "work"]
        assert span.parent.span_id == work.parent.span_id == job.context.span_id

    def test_the_span_of_one_message_has_its_sequence_and_no_count(
        self, worker, producer, telemetry, subject
    ):
        """
        The span of a single message has its sequence and no count.
        """
        producer.publish(subject, b"1")
        assert worker.next(5).data == b"1"
        (span,) = telemetry.of("next")
        assert span.attributes["messaging.nats.stream.sequence"] == 1
        assert "messaging.batch.message_count" not in span.attributes
        assert linked(span) == [ids(telemetry.of("publish")[0].context)]

    def test_an_empty_pull_is_a_span_only_on_request(self, traced, worker, telemetry, stream):
        """
        A pull without messages is a span only if the settings ask for it.
        """
        assert list(worker.fetch(5, no_wait=True)) == []
        assert telemetry.spans == []
        js = traced(empty_receives=True)
        assert list(js.consumer(stream.name, "worker").fetch(5, no_wait=True)) == []
        (span,) = telemetry.spans
        assert span.attributes["messaging.batch.message_count"] == 0
        assert span.status.status_code is StatusCode.UNSET

    def test_a_failed_fetch_is_a_span_without_messages(self, worker, telemetry, stream):
        """
        A fetch that fails is a span even without messages.
        """
        batch = worker.fetch(5, expires=20)
        eventually(lambda: stream.consumer("worker").info().num_waiting)
        stream.delete_consumer("worker")
        with pytest.raises(jetsync.ConsumerDeletedError):
            list(batch)
        (span,) = telemetry.spans
        assert span.attributes["error.type"] == "jetsync.ConsumerDeletedError"
        assert span.status.status_code is StatusCode.ERROR

    @pytest.mark.parametrize("name", ["traceparent", "Traceparent", "TraceParent", "TRACEPARENT"])
    def test_of_another_client(self, worker, js, telemetry, subject, name):
        """
        Messages without a context have no links, and header names are matched in any case.
        """
        trace_id, span_id = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
        js.publish(subject, b"1")
        js.publish(subject, b"2", headers={name: "nonsense"})
        js.publish(subject, b"3", headers={name: f"00-{trace_id}-{span_id}-01"})
        assert len(list(worker.fetch(3, expires=5))) == 3
        (span,) = telemetry.of("fetch")
        assert linked(span) == [(int(trace_id, 16), int(span_id, 16))]

    def test_limit_of_links(self, traced, producer, telemetry, stream, subject):
        """
        The number of links is limited, because each costs memory until it is exported.
        """
        for _ in range(5):
            producer.publish(subject)
        stream.create_consumer("few")
        few = traced(max_links=2).consumer(stream.name, "few")
        assert len(list(few.fetch(5, expires=5))) == 5
        (span,) = telemetry.of("fetch")
        assert linked(span) == [ids(each.context) for each in telemetry.of("publish")[:2]]

    def test_limit_of_links_of_several_threads(self, traced, producer, telemetry, stream, subject):
        """
        The messages of several threads are reported in one span.
        """
        for _ in range(4):
            producer.publish(subject)
        stream.create_consumer("few")
        few = traced(max_links=2).consumer(stream.name, "few")
        together = threading.Barrier(4)

        def handler(message):
            together.wait(30)
            message.ack()

        with few.consume(handler, threads=4, stop_after=4) as running:
            assert running.wait(timeout=30)
        count = "messaging.batch.message_count"
        eventually(lambda: sum(span.attributes[count] for span in telemetry.of("consume")) == 4)
        assert all(len(span.links) <= 2 for span in telemetry.of("consume"))

    def test_two_fetches_at_a_time(self, worker, producer, telemetry, stream, subject):
        """
        Each fetch counts its own messages, also of different consumers in one thread.
        """
        stream.create_consumer("other", ack_wait=60)
        other = producer.consumer(stream.name, "other")
        producer.publish_many([(subject, b"")] * 6)
        for _ in zip(worker.fetch(6, expires=5), other.fetch(6, expires=5), strict=True):
            pass
        counted = [
            span.attributes["messaging.batch.message_count"] for span in telemetry.of("fetch")
        ]
        assert counted == [6, 6]


class TestConsumptions:
    def test_delivered_messages_are_counted(self, worker, producer, telemetry, stream, subject):
        """
        Spans count delivered messages exactly, and not those in the buffer.
        """
        producer.publish_many([(subject, b"")] * 50, window=25)
        with worker.consume(max_messages=20) as messages:
            for count, message in enumerate(messages, 1):
                message.ack()
                if count == 30:
                    break
        worker_spans = eventually(lambda: self.spans_of(telemetry, 30))
        assert {span.name for span in worker_spans} == {f"consume {stream.name}"}
        found = {link for span in worker_spans for link in linked(span)}
        assert found == {ids(each.context) for each in telemetry.of("publish")}

    def spans_of(self, telemetry, count):
        """
        Return the spans of consumptions once they have counted that many messages, or else nothing.
        """
        spans = telemetry.of("consume")
        counts = [span.attributes["messaging.batch.message_count"] for span in spans]
        return spans if sum(counts) == count else None

    def test_a_busy_one_has_few_spans(self, worker, producer, telemetry, subject):
        """
        There is one span per second, however many pulls are sent.
        """
        producer.publish_many([(subject, b"")] * 3000)
        start = time.monotonic()
        with worker.consume(max_messages=20, stop_after=3000) as messages:
            for message in messages:
                message.ack()
        spans = eventually(lambda: self.spans_of(telemetry, 3000))
        assert len(spans) <= time.monotonic() - start + 3

    def test_handlers_in_threads(self, nats_server, producer, telemetry, stream, subject):
        """
        All threads count together; the rest is reported when the client closes.
        """
        producer.publish_many([(subject, b"")] * 40)
        stream.create_consumer("worker")
        seen, enough = [], threading.Event()

        def handle(message):
            seen.append(message.sequence)
            if len(seen) == 40:
                enough.set()

        with jetsync.connect(nats_server.url, plugins=[telemetry.plugin()]) as client:
            worker = client.jetstream().consumer(stream.name, "worker")
            with worker.consume(handle, threads=4, ack="auto"):
                assert enough.wait(20)
        eventually(lambda: self.spans_of(telemetry, 40))
        assert telemetry.total("messaging.client.consumed.messages") == 40

    def test_an_ordered_consumer_has_spans_like_any_other(
        self, producer, telemetry, stream, subject
    ):
        """
        An ordered consumer has spans like any other.
        """
        producer.publish_many([(subject, b"")] * 3)
        reader = producer.stream(stream.name).ordered_consumer()
        assert len(list(reader.fetch(3, expires=5))) == 3
        assert (
            sum(span.attributes["messaging.batch.message_count"] for span in telemetry.of("fetch"))
            == 3
        )


class TestDirectReads:
    def test_the_span_of_a_direct_get_links_to_the_publisher(
        self, producer, telemetry, stream, subject
    ):
        """
        The span links to the one that published the message.
        """
        producer.publish(subject, b"1")
        handle = producer.stream(stream.name)
        for read in (
            lambda: handle.get_last(subject),
            lambda: handle.get_message(1),
            lambda: handle.get_message(1, direct=False),
            lambda: handle.get_next(subject),
        ):
            read()
        spans = [span for span in telemetry.spans if span.name.startswith("get_")]
        assert [span.name.split()[0] for span in spans] == [
            "get_last", "get_message", "get_message", "get_next",
        ]  # fmt: skip
        for span in spans:
            assert linked(span) == [ids(telemetry.of("publish")[0].context)]
            assert span.attributes["messaging.operation.type"] == "receive"
            assert span.attributes["messaging.nats.stream.sequence"] == 1
        assert telemetry.total("messaging.client.consumed.messages") == 4

    def test_a_missing_message_is_a_result_and_no_error(self, producer, telemetry, stream, subject):
        """
        A missing message is a result and no error.
        """
        with pytest.raises(jetsync.MessageNotFoundError):
            producer.stream(stream.name).get_last(subject)
        (span,) = telemetry.of("get_last")
        assert span.status.status_code is StatusCode.UNSET
        assert "error.type" not in span.attributes
        assert telemetry.total("messaging.client.consumed.messages") == 0

    def test_each_page_is_one_span_with_its_number_of_messages(
        self, producer, telemetry, stream, subject
    ):
        """
        Each page is one span with its number of messages.
        """
        producer.publish_many([(subject, b"")] * 25)
        assert len(list(producer.stream(stream.name).scan(page=10))) == 25
        pages = telemetry.of("scan")
        assert sum(page.attributes["messaging.batch.message_count"] for page in pages) == 25
        assert len(pages) >= 3
        assert telemetry.total("messaging.client.consumed.messages", operation_name="scan") == 25

    def test_a_bucket_has_spans_like_any_stream(self, producer, telemetry, stream):
        """
        Writes and reads of a bucket have spans like those of any stream.
        """
        bucket = f"B{stream.name.replace('-', '')}"
        kv = producer.create_key_value(bucket)
        try:
            kv.put("a", b"1")
            assert kv.get("a").value == b"1"
        finally:
            producer.delete_key_value(bucket)
        names = [span.name for span in telemetry.spans]
        assert f"publish KV_{bucket}" in names
        assert any(name.endswith(f" KV_{bucket}") and not name.startswith("pub") for name in names)
