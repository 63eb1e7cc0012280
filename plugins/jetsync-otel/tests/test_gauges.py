"""
The gauges of streams and consumers, which the server answers.
"""

from __future__ import annotations

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

import jetsync
import jetsync_otel
from jetsync.devserver import DevServer
from jetsync.monitoring import METRICS
from jetsync.testing import eventually

pytestmark = pytest.mark.live

STREAM, CONSUMER = "messaging.destination.name", "messaging.consumer.group.name"


class Collected:
    """
    A meter provider whose gauges are read on demand.
    """

    def __init__(self):
        self._reader = InMemoryMetricReader()
        self.provider = MeterProvider([self._reader], shutdown_on_exit=False)

    def read(self):
        """
        Return the values by name and labels.
        """
        data = self._reader.get_metrics_data()
        found = [
            (metric, point)
            for resource in (data.resource_metrics if data else ())
            for scope in resource.scope_metrics
            for metric in scope.metrics
            for point in metric.data.data_points
        ]
        self.units = {metric.name: metric.unit for metric, _ in found}
        return {
            (
                metric.name,
                *(
                    value
                    for name, value in point.attributes.items()
                    if name not in {"messaging.system", "leader"}
                ),
            ): point.value
            for metric, point in found
        }


@pytest.fixture
def collected():
    """
    A provider, and what its reader collects.
    """
    made = Collected()
    yield made
    made.provider.shutdown()


def test_a_backlog_without_a_worker(js, stream, collected, telemetry, traced):
    """
    The gauge shows messages that no worker has received, where the one of the worker stays at 0.
    """
    stream.create_consumer("worker")
    worker = traced().consumer(stream.name, "worker")
    js.publish(f"{stream.name}.a", b"x")
    for message in worker.fetch(1, expires=5):
        message.ack_sync()
    js.publish_many((f"{stream.name}.a", b"x") for _ in range(1000))

    jetsync_otel.observe(js, streams=stream.name, meter_provider=collected.provider)

    found = collected.read()
    assert found["jetsync.consumer.num_pending", stream.name, "worker"] == 1000
    assert 0 < found["jetsync.consumer.oldest.age", stream.name, "worker"] < 60
    assert found["jetsync.stream.messages", stream.name] == 1001
    assert found["jetsync.up",] == 1
    ((_, point),) = telemetry.points("jetsync.consumer.pending")
    assert point.value == 0


def test_names_and_units(js, stream, collected):
    """
    Each figure is a gauge with its unit, and labels have the names of the conventions.
    """
    stream.create_consumer("worker")
    jetsync_otel.observe(js, meter_provider=collected.provider)

    collected.read()

    units = {metric.name: metric.unit for metric in METRICS}
    assert collected.units.items() <= units.items()
    assert {"jetsync.consumer.num_waiting", "jetsync.account.storage"} <= collected.units.keys()


def test_a_collection_takes_one_reading(js, stream, collected):
    """
    All gauges of a collection share one reading, and so do collections within the interval.
    """
    stream.create_consumer("worker")
    jetsync_otel.observe(
        js,
        streams=[stream.name],
        consumers=["worker"],
        meter_provider=collected.provider,
        interval=60,
    )
    before = js.account_info().api.total

    collected.read()
    collected.read()

    # The stream, the consumer, the account and the request of this test.
    assert js.account_info().api.total - before == 4


def test_a_server_that_does_not_answer(collected):
    """
    A collection ends in time and has 0 for `jetsync.up` alone; the next ones recover.
    """
    with DevServer() as server, jetsync.connect(server.url, reconnect_wait=0.05) as client:
        js = client.jetstream()
        js.create_stream("S", subjects=["s"])
        gauges = jetsync_otel.observe(
            js, meter_provider=collected.provider, interval=0.2, timeout=0.3
        )
        assert collected.read()["jetsync.stream.messages", "S"] == 0
        server.pause()
        assert eventually(lambda: collected.read() == {("jetsync.up",): 0})
        server.resume()
        assert eventually(lambda: collected.read().get(("jetsync.stream.messages", "S")) == 0)
        gauges.close()
        assert collected.read() == {}
        assert repr(gauges) == "<Gauges <Monitor of *, *>>"


def test_wrong_arguments(js, collected):
    """
    A wrong name is an error at once, not at each collection.
    """
    with pytest.raises(jetsync.InvalidNameError):
        jetsync_otel.observe(js, streams="a b", meter_provider=collected.provider)
    with pytest.raises(jetsync.InvalidArgumentError):
        jetsync_otel.observe(js, lookups=-1, meter_provider=collected.provider)
