"""
Received messages that violate their contract.
"""

from __future__ import annotations

import json
import threading

import pytest
import shop

import jetsync
from jetsync.testing import eventually
from jetsync_schema import (
    SCHEMA_ID,
    SCHEMA_VIOLATION,
    JsonSchema,
    Schemas,
    SchemaStatistics,
    ViolationError,
    violation_of,
)

pytestmark = pytest.mark.live


@pytest.fixture
def reading(connect, stream):
    """
    A factory of a plugin with a policy, JetStream with it, and a consumer of the stream.
    """

    def reading(policy, contract=shop.ORDERS, **config):
        plugin = Schemas({f"{stream.name}.orders.>": contract}, receive=policy, publish=False)
        js = connect(plugin)
        worker = js.create_or_update_consumer(stream.name, "worker", **config)
        return plugin, js, worker

    return reading


@pytest.fixture
def orders(js, stream):
    """
    Three orders in the stream, of which the second one is broken.
    """
    for data in (shop.GOOD, shop.BAD, shop.GOOD):
        js.publish(f"{stream.name}.orders.1", data)


def check_violation(error, stream):
    """
    Check that an error is the plugin's.
    """
    assert isinstance(error, jetsync.PluginError)
    assert (error.plugin, error.hook) == ("schema", "jetsync_message_received")
    assert isinstance(error.__cause__, ViolationError)
    assert error.__cause__.path == shop.PATH
    assert error.__cause__.subject == f"{stream.name}.orders.1"


def test_off_checks_nothing(reading, orders):
    """
    The default is off, and the client then has no such hook.
    """
    plugin = Schemas({">": shop.ORDERS})
    assert plugin.jetsync_message_received is None

    with pytest.raises(jetsync.ConfigurationError):
        reading("off")


def test_raise_fails_the_call_and_gives_the_message_back(reading, orders, stream):
    """
    The message is redelivered at once, then after one second, then after two and so on.
    """
    plugin, _, worker = reading("raise", ack_wait=60)
    assert worker.next(expires=5).sequence == 1
    with pytest.raises(jetsync.PluginError) as caught:
        worker.next(expires=5)
    check_violation(caught.value, stream)

    # At once, perhaps after the next one; from then on with a pause.
    taken = []
    while len(taken) < 3:
        try:
            taken.append(worker.next(expires=10).sequence)
        except jetsync.PluginError as error:
            check_violation(error, stream)
            taken.append("raised")
    assert sorted(taken, key=str) == [3, "raised", "raised"]
    assert plugin.statistics().raised == 3


def test_raise_in_a_fetch_comes_where_the_message_would(reading, orders, stream):
    """
    Earlier messages are yielded, and later ones are given back.
    """
    _, _, worker = reading("raise")
    batch = iter(worker.fetch(3, expires=5))
    assert next(batch).sequence == 1
    with pytest.raises(jetsync.PluginError) as caught:
        next(batch)

    check_violation(caught.value, stream)
    assert next(batch, None) is None


@pytest.mark.parametrize("policy", ["raise", "term"])
def test_a_fetch_without_acks_continues_after_a_violation(reading, orders, stream, policy):
    """
    Without acks nothing is redelivered, so valid messages must not be lost with an invalid one.
    """
    _, _, worker = reading(policy, ack_policy="none")
    batch = worker.fetch(3, expires=5)
    with pytest.raises(jetsync.PluginError) as caught:
        list(batch)
    check_violation(caught.value, stream)

    assert [message.sequence for message in batch] == [3]


def test_term_ends_the_message_with_the_reason(reading, orders, nats_server, stream):
    """
    The server publishes the reason in an advisory, and never redelivers the message.
    """
    plugin, _, worker = reading("term", ack_wait=60)
    advisories = "$JS.EVENT.ADVISORY.CONSUMER.MSG_TERMINATED.>"
    with jetsync.connect(nats_server.url) as client, client.subscribe(advisories) as heard:
        client.flush()
        worker.next(expires=5).ack()
        with pytest.raises(jetsync.PluginError) as caught:
            worker.next(expires=5)
        check_violation(caught.value, stream)
        said = json.loads(heard.next(timeout=10).data)["reason"]

    assert said == (
        f'contract {stream.name}.orders.>: {shop.PATH}: the value is not of type "number"'
    )
    message = worker.next(expires=5)
    assert message.sequence == 3
    message.ack_sync()
    assert worker.next(expires=0.5) is None
    info = worker.info()
    assert (info.num_ack_pending, info.num_pending, info.num_redelivered) == (0, 0, 0)
    assert plugin.statistics().terminated == 1


@pytest.mark.parametrize("policy", ["raise", "term"])
def test_nothing_is_lost_with_cumulative_acks(reading, orders, stream, policy):
    """
    An invalid message neither ends earlier ones nor is skipped: the consumption ends there.
    """
    plugin, _, worker = reading(policy, ack_policy="all")
    seen = []
    running = worker.consume(seen.append)
    assert running.wait(timeout=30)
    check_violation(running.error, stream)
    assert [message.sequence for message in seen] == [1]

    info = stream.consumer("worker").info()
    assert (info.ack_floor.stream_seq, plugin.statistics().terminated) == (0, 0)
    assert plugin.statistics().raised == 1


def test_term_with_a_handler(reading, orders):
    """
    The handler gets only the valid messages, and continues.
    """
    _, _, worker = reading("term")
    seen = []
    done = threading.Event()

    def handler(message):
        message.ack()
        seen.append(message.sequence)
        if len(seen) == 2:
            done.set()

    running = worker.consume(handler)
    try:
        assert done.wait(30)
    finally:
        running.close()
        running.wait(timeout=10)
    assert seen == [1, 3]
    eventually(lambda: worker.info().num_ack_pending == 0)


def test_mark_hands_the_message_over(reading, orders, stream):
    """
    `violation_of` returns the violation, and None for valid messages.
    """
    plugin, _, worker = reading("mark")
    found = {}
    for message in worker.fetch(3, expires=5):
        found[message.sequence] = violation_of(message)
        message.ack()

    assert [found[1], found[3]] == [None, None]
    assert isinstance(found[2], ViolationError)
    assert (found[2].path, found[2].subject) == (shop.PATH, f"{stream.name}.orders.1")
    assert found[2].contract == f"{stream.name}.orders.>"
    assert plugin.statistics().marked == 1


@pytest.mark.parametrize("said", ["mine", "5", "{}", "[" * 10_000])
def test_a_mark_of_another_program(said):
    """
    A header that is not a mark of this plugin is shown as it is, also if it is nested too deeply.
    """
    found = violation_of(
        jetsync.StoredMessage("S", "s", 1, 0, jetsync.Headers({SCHEMA_VIOLATION: said}))
    )
    assert found.contract == "unknown"
    assert said[:100] in str(found)


def test_a_second_plugin_leaves_the_mark_of_the_first(connect, orders, stream):
    """
    The result is the same in either order, also if the second plugin has no contract for the
    message.
    """
    plugins = [
        Schemas({f"{stream.name}.{rest}": shop.ORDERS}, receive="mark", publish=False, name=rest)
        for rest in ("orders.>", "trips.>")
    ]
    for both in (plugins, plugins[::-1]):
        reader = connect(*both).stream(stream.name)
        assert violation_of(reader.get_message(2)).path == shop.PATH
        worker = reader.create_consumer(filter_subject=f"{stream.name}.>")
        found = [violation_of(message) for message in worker.fetch(3, expires=5)]
        assert [each is None for each in found] == [True, False, True]


@pytest.mark.parametrize("policy", ["raise", "term", "mark"])
def test_omitted_payloads_are_not_checked(reading, orders, policy):
    """
    A consumer with ``headers_only`` delivers no payloads.
    """
    plugin, _, worker = reading(policy, headers_only=True)
    found = list(worker.fetch(3, expires=5))

    assert [message.sequence for message in found] == [1, 2, 3]
    assert [violation_of(message) for message in found] == [None] * 3
    assert plugin.statistics() == SchemaStatistics(0, 0, 0, 0)


def test_a_payload_that_was_empty_is_checked_without_it_too(reading, js, stream):
    """
    The server marks messages whose payload it has left out, and this one was empty.
    """
    js.publish(f"{stream.name}.orders.1", b"")
    _, _, worker = reading("raise", headers_only=True)
    with pytest.raises(jetsync.PluginError):
        worker.next(expires=5)


def test_names_of_keys_are_read_whatever_their_values(connect, bucket):
    """
    The payload is not read for the names of keys.
    """
    bucket.put("a", shop.GOOD)
    plugin = Schemas({f"$KV.{bucket.bucket}.>": shop.ORDERS}, receive="raise", publish=False)
    kv = connect(plugin).key_value(bucket.bucket)

    assert list(kv.keys()) == ["a"]
    with kv.watch(meta_only=True) as watch:
        assert [entry.key for entry in watch.initial(timeout=10)] == ["a"]


def test_a_mark_can_not_be_forged(reading, js, stream):
    """
    A mark that another client has sent is removed, also without a contract.
    """
    for subject in ("orders.1", "others"):
        js.publish(
            f"{stream.name}.{subject}", shop.GOOD, headers={SCHEMA_VIOLATION: "{}", "x": "1"}
        )
    _, reader, worker = reading("mark")

    for message in worker.fetch(2, expires=5):
        assert violation_of(message) is None
        assert message.headers["x"] == "1"
    stored = reader.stream(stream.name).get_message(2)
    assert violation_of(stored) is None
    assert stored.headers.keys() == ["x"]


def test_direct_reads(reading, orders, stream):
    """
    A direct read cannot end a message: raise and term both raise, and a mark is on a copy.
    """
    stream.update(allow_direct=True)
    for policy in ("raise", "term"):
        _, js, _ = reading(policy)
        with pytest.raises(jetsync.PluginError) as caught:
            js.stream(stream.name).get_message(2)
        check_violation(caught.value, stream)
    _, js, _ = reading("mark")
    found = list(js.stream(stream.name).scan())

    assert [violation_of(each) is None for each in found] == [True, False, True]
    plain = stream.get_message(2)
    assert (found[1].subject, found[1].sequence, found[1].data) == (
        plain.subject,
        plain.sequence,
        plain.data,
    )
    assert found[1].timestamp_ns == plain.timestamp_ns
    assert SCHEMA_VIOLATION not in plain.headers


def test_a_stored_message_is_not_changed():
    """
    A message that gets a mark, or loses a forged one, is a copy.
    """
    plugin = Schemas({"a": shop.ORDERS}, receive="mark")
    forged = jetsync.Headers({SCHEMA_VIOLATION: "x"})
    for data, headers in ((shop.BAD, jetsync.Headers({"x": "1"})), (shop.GOOD, forged)):
        message = jetsync.StoredMessage("S", "a", 1, 1, headers, data)
        before = headers.copy()
        found = plugin.jetsync_message_received(message)
        assert message.headers == before
        assert (violation_of(found) is None) == (data == shop.GOOD)
        assert found.timestamp_ns == 1


def test_ordered_consumers(reading, orders, stream):
    """
    With marks an ordered consumer continues; its messages cannot be ended.
    """
    _, js, _ = reading("mark")
    with js.stream(stream.name).ordered_consumer() as ordered:
        found = [violation_of(message) for message in ordered.fetch(3, expires=5)]
    assert [each is None for each in found] == [True, False, True]

    _, js, _ = reading("term")
    with (
        js.stream(stream.name).ordered_consumer() as ordered,
        pytest.raises(jetsync.PluginError),
    ):
        list(ordered.fetch(3, expires=5))


def test_markers_and_deletions_are_exempt(connect, bucket):
    """
    Markers and deletions have no document.
    """
    bucket.put("a", shop.GOOD)
    bucket.delete("a")
    bucket.purge("b")
    plugin = Schemas({f"$KV.{bucket.bucket}.>": shop.ORDERS}, receive="raise")
    kv = connect(plugin).key_value(bucket.bucket)

    with kv.watch(include_history=True) as watch:
        assert [entry.is_deleted for entry in watch.initial(timeout=10)] == [False, True, True]
    bucket.put("a", shop.BAD)
    with pytest.raises(jetsync.PluginError):
        kv.get("a")


def test_avro_is_read_by_its_header(reading, js, stream):
    """
    A document that an older schema wrote is valid if the header names that schema.
    """
    plugin, _, worker = reading("raise", shop.TRIPS)
    old = shop.OLD_TRIPS.dump({"id": "a"})
    subject = f"{stream.name}.orders.1"
    js.publish(subject, old, headers={SCHEMA_ID: shop.OLD_TRIPS.schema_id})
    js.publish(subject, old)

    assert plugin.decode(worker.next(expires=5)) == {"id": "a", "stops": []}
    with pytest.raises(jetsync.PluginError, match=r"\$\.stops"):
        worker.next(expires=5)


def test_decode_checks(js, stream, orders):
    """
    Without a policy for received messages, `decode` raises for an invalid message.
    """
    plugin = Schemas({f"{stream.name}.>": shop.ORDERS})
    assert plugin.decode(stream.get_message(1))["id"] == "1"

    with pytest.raises(ViolationError):
        plugin.decode(stream.get_message(2))


def test_two_policies_are_two_plugins(connect, js, stream):
    """
    Each plugin has its own name and subjects.
    """
    ended = Schemas({f"{stream.name}.a": shop.ORDERS}, receive="term", name="ended")
    marked = Schemas({f"{stream.name}.b": JsonSchema(False)}, receive="mark", name="marked")
    for token in "ab":
        js.publish(f"{stream.name}.{token}", shop.BAD)
    worker = connect(ended, marked).create_consumer(stream.name, "worker")

    with pytest.raises(jetsync.PluginError, match="plugin 'ended'"):
        worker.next(expires=5)
    assert violation_of(worker.next(expires=5)) is not None
