"""
The counters and measurements.
"""

from __future__ import annotations

import pytest

import jetsync
from jetsync.testing import CutProxy, eventually

pytestmark = pytest.mark.live


def test_sent_and_acknowledged(traced, telemetry, stream, subject):
    """
    Messages are counted by their outcome, for each way to publish.
    """
    js = traced()
    js.publish(subject)
    js.publish_many([(subject, b"")] * 10)
    js.publish_batch([(subject, b"")] * 5)
    sent = "messaging.client.sent.messages"
    assert telemetry.total(sent, operation_name="publish", destination_name=stream.name) == 11
    assert telemetry.total(sent, operation_name="commit", destination_name=stream.name) == 5
    assert telemetry.total("jetsync.publish.acknowledged") == 16
    assert telemetry.total("messaging.client.operation.duration") == 3


def test_consumed_and_redelivered(traced, telemetry, stream, subject):
    """
    Redelivered messages count as consumed, and also by themselves.
    """
    js = traced()
    js.publish_many([(subject, b"")] * 10)
    stream.create_consumer("worker", ack_wait=60)
    worker = js.consumer(stream.name, "worker")
    for message in worker.fetch(4, expires=5):
        message.nak()
    eventually(lambda: stream.consumer("worker").info().num_redelivered or True)
    got = list(worker.fetch(10, expires=5))
    again = sum(message.metadata.delivered > 1 for message in got)
    consumed = "messaging.client.consumed.messages"
    assert telemetry.total(consumed, consumer_group_name="worker") == 4 + len(got)
    assert telemetry.total("jetsync.consumer.redelivered") == again > 0


def test_the_backlog_and_the_age_of_messages_are_measured(traced, telemetry, stream, subject):
    """
    Pending messages are measured after each fetch, and the age of messages is sampled.
    """
    js = traced()
    js.publish_many([(subject, b"")] * 10)
    stream.create_consumer("worker")
    worker = js.consumer(stream.name, "worker")
    list(worker.fetch(4, expires=5))
    ((labels, point),) = telemetry.points("jetsync.consumer.pending")
    assert (point.value, labels["messaging.consumer.group.name"]) == (6, "worker")
    ((_, lag),) = telemetry.points("jetsync.consumer.lag")
    assert lag.count == 1
    assert 0 <= lag.sum < 60
    list(worker.fetch(6, expires=5))
    ((_, point),) = telemetry.points("jetsync.consumer.pending")
    assert point.value == 0


def test_without_names_of_consumers(traced, telemetry, stream, subject):
    """
    Consumers with random names can be left out of the labels.
    """
    js = traced(consumers=False)
    js.publish_many([(subject, b"")] * 3)
    list(js.stream(stream.name).ordered_consumer().fetch(3, expires=5))
    # Older SDKs report a gauge once.
    for metric in ("jetsync.consumer.pending", "messaging.client.consumed.messages"):
        ((labels, _),) = telemetry.points(metric)
        assert "messaging.consumer.group.name" not in labels


def test_reconnects_and_events_are_counted(nats_server, telemetry):
    """
    Each reconnect is counted, and each event by its kind.
    """
    with (
        CutProxy(nats_server.url) as proxy,
        jetsync.connect(proxy.url, plugins=[telemetry.plugin()], reconnect_wait=0.02) as client,
    ):
        client.flush()
        proxy.cut()
        eventually(lambda: telemetry.total("jetsync.client.reconnects") == 1)
    eventually(lambda: telemetry.total("jetsync.client.events") >= 3)
    kinds = {labels["jetsync.event"] for labels, _ in telemetry.points("jetsync.client.events")}
    assert {"disconnected", "reconnected", "closed"} <= kinds


def test_labels_are_few(traced, telemetry, stream, subject):
    """
    Subjects, ids and sequences are not labels: there is one series per stream, not per message.
    """
    js = traced()
    for number in range(5):
        js.publish(f"{subject}.{number}", b"", msg_id=f"{number}")
    assert len(telemetry.points("messaging.client.sent.messages")) == 1
    assert len(telemetry.points("messaging.client.operation.duration")) == 1
