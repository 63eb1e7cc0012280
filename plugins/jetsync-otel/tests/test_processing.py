"""
Spans of an application that processes messages.
"""

from __future__ import annotations

import pytest
from opentelemetry import trace
from opentelemetry.trace import SpanKind, StatusCode
from telemetry import ids

import jetsync
import jetsync_otel

pytestmark = pytest.mark.live


@pytest.fixture
def otel(telemetry):
    """
    A plugin.
    """
    return telemetry.plugin()


@pytest.fixture
def messages(otel, traced, stream, subject):
    """
    Two messages of different producers, as a consumer delivers them.
    """
    js = traced(otel)
    js.publish(subject, b"first", msg_id="1")
    js.publish(subject, b"2")
    stream.create_consumer("worker")
    return list(js.consumer(stream.name, "worker").fetch(2, expires=5))


def test_in_the_trace_of_the_producer(otel, messages, telemetry, stream, subject):
    """
    The span is current, and it is a child of the publishing span and links to it.
    """
    with otel.process(messages[0]) as current:
        assert trace.get_current_span() is current
    assert not trace.get_current_span().get_span_context().is_valid
    (span,) = telemetry.of("process")
    origin = telemetry.of("publish")[0]
    assert (span.name, span.kind) == (f"process {stream.name}", SpanKind.CONSUMER)
    assert ids(span.parent) == ids(origin.context)
    assert [ids(link.context) for link in span.links] == [ids(origin.context)]
    assert dict(span.attributes) == {
        "messaging.system": "nats",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": stream.name,
        "messaging.consumer.group.name": "worker",
        "messaging.message.id": "1",
        "messaging.message.body.size": 5,
        "messaging.nats.subject": subject,
        "messaging.nats.stream.sequence": 1,
        "messaging.nats.delivered": 1,
    }
    assert telemetry.total("messaging.process.duration") == 1


def test_the_producer_is_linked_below_a_span_of_the_application(otel, messages, telemetry):
    """
    If another span is current, it is the parent, and the span links to the producer.
    """
    with telemetry.tracer.start_as_current_span("job") as job, otel.process(messages[0]):
        pass
    (span,) = telemetry.of("process")
    assert span.parent.span_id == job.context.span_id
    assert ids(span.links[0].context) == ids(telemetry.of("publish")[0].context)


def test_several_at_a_time(otel, messages, telemetry):
    """
    A batch has several producers, so the span is not a child of any of them.
    """
    with otel.process(*messages):
        pass
    (span,) = telemetry.of("process")
    assert span.parent is None
    assert span.attributes["messaging.batch.message_count"] == 2
    assert [ids(link.context) for link in span.links] == [
        ids(each.context) for each in telemetry.of("publish")
    ]


def test_none_at_all(otel, telemetry):
    """
    An empty batch has a span, too.
    """
    with otel.process():
        pass
    assert telemetry.of("process")[0].attributes["messaging.batch.message_count"] == 0


def test_an_error_is_raised(otel, messages, telemetry):
    """
    The span has the error, which is raised unchanged.
    """
    error = ValueError("not this one")
    with pytest.raises(ValueError, match="not this one") as caught, otel.process(messages[0]):
        raise error
    assert caught.value is error
    (span,) = telemetry.of("process")
    assert span.status.status_code is StatusCode.ERROR
    assert span.attributes["error.type"] == "ValueError"
    assert telemetry.total("messaging.process.duration", type="ValueError") == 1


def test_a_handler(otel, messages, telemetry):
    """
    A wrapped handler keeps its name and its result.
    """

    @otel.handler
    def handle(message):
        """Return the payload in upper case."""
        return message.data.upper()

    assert (handle(messages[0]), handle.__name__) == (b"FIRST", "handle")
    assert len(telemetry.of("process")) == 1


def test_messages_of_other_kinds(otel, telemetry, js, stream, subject, messages):
    """
    Messages that were read directly, or have no stream, are processed like any other.
    """
    with otel.process(stream.get_message(1)):
        pass
    with otel.process(jetsync.Message(b"plain", b"", None, b"x")):
        pass
    direct, plain = telemetry.of("process")
    assert direct.attributes["messaging.nats.stream.sequence"] == 1
    assert ids(direct.parent) == ids(telemetry.of("publish")[0].context)
    assert (plain.name, plain.parent) == ("process", None)


def test_without_a_plugin(messages):
    """
    The function of the module works without an SDK, too.
    """
    with jetsync_otel.process(messages[0]) as span:
        # No span is recorded, but messages published here carry the producer's context.
        assert not span.is_recording()
        assert trace.get_current_span().get_span_context().is_valid
