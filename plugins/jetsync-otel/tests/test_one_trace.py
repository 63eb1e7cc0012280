"""
One trace across processes: a publisher, an atomic batch, a consumer.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import TraceFlags

pytestmark = pytest.mark.live

SET_UP = """
import sys
import jetsync
import jetsync_otel
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor

name, file = sys.argv[1:]
provider = TracerProvider()
out = open(file, "w", encoding="utf-8")
exporter = ConsoleSpanExporter(out=out, formatter=lambda span: span.to_json(indent=None) + "\\n")
provider.add_span_processor(SimpleSpanProcessor(exporter))
trace.set_tracer_provider(provider)
"""

PRODUCER = """
with jetsync.connect(plugins=["otel"]) as client:
    js = client.jetstream()
    with trace.get_tracer("shop").start_as_current_span("order"):
        js.publish(f"{name}.orders", b"order")
        with js.atomic_batch() as batch:
            for number in range(5):
                batch.add(f"{name}.lines", b"%d" % number)
"""

CONSUMER = """
with jetsync.connect(plugins=["otel"]) as client:
    js = client.jetstream()
    worker = js.consumer(name, "worker")
    for message in worker.fetch(6, expires=10):
        with jetsync_otel.process(message):
            js.publish(f"{name}.done", message.data)
            message.ack()
"""


def run(script, nats_server, name, file):
    """
    Run a script in a process of its own, and return the spans that it exported.
    """
    done = subprocess.run(
        [sys.executable, "-c", SET_UP + script, name, str(file)],
        env={**os.environ, "NATS_URL": nats_server.url},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in file.read_text("utf-8").splitlines()]


def test_from_a_publisher_through_a_batch_to_a_consumer(nats_server, stream, tmp_path):
    """
    All spans of two processes are in one trace, except for the fetch, which links to it.
    """
    stream.update(allow_atomic=True)
    stream.create_consumer(
        "worker", filter_subjects=[f"{stream.name}.orders", f"{stream.name}.lines"]
    )
    produced = run(PRODUCER, nats_server, stream.name, tmp_path / "producer")
    consumed = run(CONSUMER, nats_server, stream.name, tmp_path / "consumer")

    by_id = {span["context"]["span_id"]: span for span in produced + consumed}
    (order,) = [span for span in produced if span["name"] == "order"]
    (fetch,) = [span for span in consumed if span["name"] == f"fetch {stream.name}"]
    the_trace = order["context"]["trace_id"]
    assert {span["context"]["trace_id"] for span in by_id.values() if span is not fetch} == {
        the_trace
    }

    names = [span["name"] for span in produced]
    assert sorted(names) == sorted(
        ["order", f"publish {stream.name}", "create", f"commit {stream.name}"]
    )
    (create,) = [span for span in produced if span["name"] == "create"]
    (commit,) = [span for span in produced if span["name"] == f"commit {stream.name}"]
    assert commit["links"][0]["context"]["span_id"] == create["context"]["span_id"]

    processed = [span for span in consumed if span["name"] == f"process {stream.name}"]
    parents = [by_id[span["parent_id"]]["name"] for span in processed]
    assert parents == [f"publish {stream.name}"] + ["create"] * 5
    linked = {link["context"]["span_id"] for link in fetch["links"]}
    assert linked == {span["parent_id"] for span in processed}
    assert {link["context"]["trace_id"] for link in fetch["links"]} == {the_trace}

    # The messages that the handlers published continue the trace.
    again = [span for span in consumed if span["name"] == f"publish {stream.name}"]
    assert [by_id[span["parent_id"]] for span in again] == processed


def test_a_sampled_out_trace_stays_out(nats_server, stream, telemetry, traced):
    """
    The messages carry the producer's sampling decision.
    """
    off = TracerProvider(sampler=ALWAYS_OFF, shutdown_on_exit=False)
    with off.get_tracer("shop").start_as_current_span("order"):
        traced().publish(f"{stream.name}.a", b"1")
    assert telemetry.spans == []
    message = stream.get_message(1)
    flags = message.headers["traceparent"].rpartition("-")[2]
    assert int(flags, 16) & TraceFlags.SAMPLED == 0
    with telemetry.plugin().process(message):
        assert not trace.get_current_span().is_recording()
    assert telemetry.spans == []
