"""
Errors of telemetry do not reach the traffic, and missing telemetry costs little.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys

import pytest
import structlog
from opentelemetry import trace
from opentelemetry.propagators.textmap import TextMapPropagator
from opentelemetry.sdk.trace import SpanProcessor

import jetsync
from jetsync_otel import OTel, Settings

pytestmark = pytest.mark.live


class Broken(TextMapPropagator):
    """
    A propagator that always fails.
    """

    fields = frozenset({"broken"})

    def inject(self, carrier, context=None, setter=None):
        """Fail."""
        raise OSError("cannot write")

    def extract(self, carrier, context=None, getter=None):
        """Fail."""
        raise OSError("cannot read")


class BrokenProvider:
    """
    A provider whose tracer always fails.
    """

    def get_tracer(self, *_, **__):
        """Return itself, which is a tracer."""
        return self

    def start_span(self, *_, **__):
        """Fail."""
        raise OSError("no span")


def everything(js, stream, subject):
    """
    Use each way to publish and read.
    """
    js.publish(subject, b"0", headers={"broken": "1"})
    js.publish_many([(subject, b"1"), (subject, b"2")])
    js.publish_batch([(subject, b"3"), (subject, b"4")])
    with js.atomic_batch() as batch:
        batch.add(subject, b"5")
    with js.fast_publisher() as fast:
        fast.add(subject, b"6")
    with js.publisher() as publisher:
        publisher.publish(subject, b"7")
    handle = js.stream(stream.name)
    assert handle.get_last(subject).data == b"7"
    assert len(list(handle.scan())) == 8
    assert len(list(handle.ordered_consumer().fetch(8, expires=5))) == 8
    worker = handle.create_or_update_consumer("worker")
    assert worker.next(5).data == b"0"
    assert len(list(worker.fetch(3, expires=5))) == 3
    with worker.consume(stop_after=4) as messages:
        assert [message.data for message in messages] == [b"4", b"5", b"6", b"7"]
    with pytest.raises(jetsync.WrongLastSequenceError):
        js.publish(subject, expect=jetsync.Expect(last_sequence=99))


@pytest.mark.parametrize("granularity", ["operation", "message"])
@pytest.mark.parametrize("broken", ["propagator", "tracer"])
def test_errors_do_not_reach_the_traffic(
    traced, telemetry, stream, subject, caplog, granularity, broken
):
    """
    Whatever fails, all messages are sent and received, and each kind of error is logged once.
    """
    provider = BrokenProvider() if broken == "tracer" else telemetry.tracer_provider
    plugin = OTel(
        provider,
        telemetry.meter_provider,
        propagator=Broken() if broken == "propagator" else None,
        settings=Settings(granularity=granularity, empty_receives=True),
    )
    with caplog.at_level(logging.ERROR, "jetsync_otel"):
        everything(traced(plugin), stream, subject)
    lines = [record.getMessage() for record in caplog.records if record.name == "jetsync_otel"]
    assert lines
    assert len(lines) == len(set(lines))
    assert all(line.startswith("telemetry_failed") for line in lines)
    assert [record for record in caplog.records if record.name.startswith("jetsync.")] == []


class BrokenEnd(SpanProcessor):
    """
    A span processor that fails when a span ends.
    """

    def on_end(self, span):
        """Fail."""
        raise OSError("cannot export")


@pytest.mark.parametrize("broken", ["propagator", "tracer", "end"])
def test_messages_are_handled_whatever_fails(telemetry, caplog, broken):
    """
    The block runs once, in a span that records nothing, and its error is raised.
    """
    if broken == "end":
        telemetry.tracer_provider.add_span_processor(BrokenEnd())
    plugin = OTel(
        BrokenProvider() if broken == "tracer" else telemetry.tracer_provider,
        telemetry.meter_provider,
        propagator=Broken() if broken == "propagator" else None,
    )
    message = jetsync.Message(b"a", b"", None, b"x")
    error = ValueError("not this one")
    with caplog.at_level(logging.ERROR, "jetsync_otel"):
        with plugin.process(message) as span:
            span.set_attribute("a", 1)
        assert plugin.handler(lambda given: given.data)(message) == b"x"
        with pytest.raises(ValueError, match="not this one") as caught, plugin.process(message):
            raise error
    assert caught.value is error
    assert caught.value.__context__ is None
    assert trace.get_current_span() is trace.INVALID_SPAN
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("telemetry_failed doing='process'")


def test_errors_go_to_structlog(telemetry):
    """
    If the application has configured structlog, it gets the errors with their fields.
    """
    plugin = OTel(telemetry.tracer_provider, propagator=Broken())
    try:
        with structlog.testing.capture_logs() as captured:
            plugin.handler(lambda given: given.data)(jetsync.Message(b"a", b"", None, b"x"))
    finally:
        structlog.reset_defaults()
    (event,) = captured
    assert (event["event"], event["doing"]) == ("telemetry_failed", "process")
    assert event["logger"] == "jetsync_otel"


def test_all_paths_with_nothing_broken(traced, telemetry, stream, subject, caplog):
    """
    The ways that the test above uses work without errors.
    """
    with caplog.at_level(logging.ERROR, "jetsync_otel"):
        everything(traced(), stream, subject)
    assert [record.getMessage() for record in caplog.records] == []
    assert len(telemetry.spans) > 10


SCRIPT = """
import jetsync
with jetsync.connect(plugins=["otel"]) as client:
    js = client.jetstream()
    stream = js.create_stream("NOSDK", subjects=["nosdk.>"], storage="memory")
    js.publish("nosdk.a", b"1")
    js.publish_many([("nosdk.a", b"2")] * 3)
    worker = stream.create_consumer("worker")
    for message in worker.fetch(4, expires=5):
        assert message.raw_headers is None, message.headers
    js.delete_stream("NOSDK")
import sys
assert not [name for name in sys.modules if name.startswith("opentelemetry.sdk")]
"""


def test_without_an_sdk(nats_server):
    """
    Loaded by name in a program without any set-up, the plugin adds no headers, no SDK and no log.
    """
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", SCRIPT],
        env={**os.environ, "NATS_URL": nats_server.url},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
