"""
Nothing that breaks its contract is sent, whichever way it is published.
"""

from __future__ import annotations

import contextlib
import threading

import attrs
import pytest
import shop

import jetsync
from jetsync_schema import SCHEMA_ID, JsonSchema, Schemas, ViolationError

pytestmark = pytest.mark.live


@pytest.fixture
def plugin(stream):
    """
    Contracts for the subjects of the stream.
    """
    return Schemas({f"{stream.name}.orders.>": shop.ORDERS, f"{stream.name}.trips.*": shop.TRIPS})


@pytest.fixture
def shopping(connect, plugin):
    """
    JetStream with the plugin.
    """
    return connect(plugin)


def check_refused(caught, stream, subject="orders.1"):
    """
    Check that an error is the plugin's, and that the stream has nothing of it.
    """
    error = caught.value
    assert isinstance(error, jetsync.PluginError)
    assert (error.plugin, error.hook) == ("schema", "jetsync_prepare_message")
    assert "$.items[3].price" in str(error)
    violation = error.__cause__
    assert isinstance(violation, ViolationError)
    assert violation.subject == f"{stream.name}.{subject}"
    assert violation.contract == f"{stream.name}.orders.>"
    assert violation.path == shop.PATH


def stored(stream):
    """
    Return how many messages a stream has.
    """
    return stream.info().state.messages


def test_publish(shopping, stream, plugin):
    """
    A single message: refused, and the next one goes through.
    """
    with pytest.raises(jetsync.PluginError) as caught:
        shopping.publish(f"{stream.name}.orders.1", shop.BAD)
    check_refused(caught, stream)

    assert shopping.publish(f"{stream.name}.orders.1", shop.GOOD).sequence == 1
    assert shopping.publish(f"{stream.name}.others", shop.BAD).sequence == 2
    assert plugin.statistics().refused == 1


def test_not_a_byte_is_sent(nats_server, plugin, stream):
    """
    The server has seen no message of the client.
    """
    with jetsync.connect(nats_server.url, plugins=[plugin]) as client:
        before = client.statistics()
        with pytest.raises(jetsync.PluginError):
            client.jetstream().publish(f"{stream.name}.orders.1", shop.BAD)
        assert client.statistics() == before


def test_publish_many(shopping, stream):
    """
    Only what breaks its contract is left out; the report says which that is.
    """
    datas = [shop.GOOD, shop.BAD, shop.GOOD, shop.BAD, shop.GOOD]
    with pytest.raises(jetsync.PublishManyError) as caught:
        shopping.publish_many((f"{stream.name}.orders.1", data) for data in datas)

    report = caught.value.report
    assert [failure.index for failure in report.failures] == [1, 3]
    assert {type(failure.error.__cause__) for failure in report.failures} == {ViolationError}
    assert (report.count, stored(stream)) == (3, 3)


def test_publisher(shopping, stream):
    """
    The future of the one message fails.
    """
    with shopping.publisher() as publisher:
        good = publisher.publish(f"{stream.name}.orders.1", shop.GOOD)
        try:
            error = publisher.publish(f"{stream.name}.orders.1", shop.BAD).exception(timeout=10)
        except jetsync.PluginError as raised:
            error = raised
        assert good.result(timeout=10).sequence == 1

    assert isinstance(error.__cause__, ViolationError)
    assert stored(stream) == 1


def test_atomic_batch(shopping, stream):
    """
    Adding fails, and with it the batch: nothing of it is stored.
    """
    stream.update(allow_atomic=True)
    subject = f"{stream.name}.orders.1"
    with pytest.raises(jetsync.PluginError) as caught:  # noqa: PT012, SIM117 - the block is what fails
        with shopping.atomic_batch() as batch:
            batch.add(subject, shop.GOOD)
            batch.add(subject, shop.BAD)
    check_refused(caught, stream)
    assert stored(stream) == 0

    with pytest.raises(jetsync.PluginError):
        shopping.publish_batch([(f"{stream.name}.orders.1", shop.BAD)])
    with shopping.atomic_batch() as batch:
        batch.add(f"{stream.name}.orders.1", shop.GOOD)
        with pytest.raises(jetsync.PluginError):
            batch.commit(f"{stream.name}.orders.1", shop.BAD)
        batch.discard()
    assert stored(stream) == 0


def test_fast_publisher(shopping, stream):
    """
    What is added before goes its way.
    """
    stream.update(allow_batched=True)
    with shopping.fast_publisher() as fast:
        fast.add(f"{stream.name}.orders.1", shop.GOOD)
        with pytest.raises(jetsync.PluginError) as caught:
            fast.add(f"{stream.name}.orders.1", shop.BAD)
        check_refused(caught, stream)
        fast.add(f"{stream.name}.orders.1", shop.GOOD)

    assert stored(stream) == 2


def test_key_value(connect, bucket):
    """
    Every way to set a key is checked, in transactions too; deleting one needs no document.
    """
    plugin = Schemas({f"$KV.{bucket.bucket}.order.*": shop.ORDERS}, unlisted="refuse")
    kv = connect(plugin).key_value(bucket.bucket)
    revision = kv.put("order.1", shop.GOOD)
    for write in (
        lambda: kv.put("order.1", shop.BAD),
        lambda: kv.create("order.2", shop.BAD),
        lambda: kv.update("order.1", shop.BAD, last=revision),
        lambda: kv.put("order.1", b""),
    ):
        with pytest.raises(jetsync.PluginError):
            write()
    transaction = kv.atomic()
    transaction.put("order.1", shop.GOOD)
    transaction.put("order.2", shop.BAD)
    with pytest.raises(jetsync.PluginError):
        transaction.commit()
    with pytest.raises(jetsync.PluginError, match="has no contract"):
        kv.put("other", shop.GOOD)
    bucket.put("other", b"1")
    kv.delete("other")
    assert kv.get("order.1").revision == revision

    kv.delete("order.1")
    kv.create("order.1", shop.GOOD)
    kv.purge("order.1")
    with kv.atomic() as transaction:
        transaction.delete("order.1")
        transaction.put("order.2", shop.GOOD)
    assert kv.keys() == ["order.2"]


def test_a_header_gets_nobody_past_a_contract(shopping, stream):
    """
    Only what has no payload may be meant to have none.
    """
    headers = {"KV-Operation": "DEL", "Nats-Incr": "1", "Nats-Marker-Reason": "Remove"}
    with pytest.raises(jetsync.PluginError):
        shopping.publish(f"{stream.name}.orders.1", shop.BAD, headers=headers)
    with pytest.raises(jetsync.PluginError):
        shopping.publish(f"{stream.name}.orders.1", b"")

    shopping.publish(f"{stream.name}.orders.1", b"", headers={"KV-Operation": "PURGE"})


def test_counters_need_no_document(connect, js, stream):
    """
    An increment is a header and no payload.
    """
    name = f"{stream.name}-counter"
    js.create_stream(name, subjects=[f"{name}.>"], allow_msg_counter=True, allow_direct=True)
    try:
        plugin = Schemas({f"{name}.>": JsonSchema({"type": "object"})})
        ack = connect(plugin).publish(f"{name}.hits", b"", headers={"Nats-Incr": "+2"})
        assert ack.value == 2
    finally:
        js.delete_stream(name)


def test_schedules_are_checked_for_their_target(shopping, stream):
    """
    The server publishes what is scheduled, where no plugin is asked any more.
    """
    stream.update(allow_msg_schedules=True)
    at = "@at 2100-01-01T00:00:00Z"
    headers = {"Nats-Schedule": at, "Nats-Schedule-Target": f"{stream.name}.orders.1"}
    with pytest.raises(jetsync.PluginError) as caught:
        shopping.publish(f"{stream.name}.schedules.1", shop.BAD, headers=headers)
    check_refused(caught, stream)

    shopping.publish(f"{stream.name}.schedules.1", shop.GOOD, headers=headers)
    # What another subject has at that time is published there, and not this, which is empty.
    source = {**headers, "Nats-Schedule-Source": f"{stream.name}.others"}
    shopping.publish(f"{stream.name}.schedules.1", b"", headers=source)
    # The header alone is nothing to a server: it gets nobody past the subject's own contract.
    headers = {"Nats-Schedule-Target": f"{stream.name}.others"}
    with pytest.raises(jetsync.PluginError):
        shopping.publish(f"{stream.name}.orders.1", shop.BAD, headers=headers)
    with pytest.raises(jetsync.PluginError):
        shopping.publish(
            f"{stream.name}.orders.1", shop.BAD, headers={**headers, "Nats-Schedule-Source": "x"}
        )


@pytest.mark.parametrize("source", ["", " ", "{}.others"])
def test_a_source_gets_no_payload_past_the_contract_of_the_target(shopping, stream, source):
    """
    The server publishes the payload where the source is blank, or has no message.
    """
    stream.update(allow_msg_schedules=True)
    headers = {
        "Nats-Schedule": "@at 2100-01-01T00:00:00Z",
        "Nats-Schedule-Target": f"{stream.name}.orders.1",
        "Nats-Schedule-Source": source.format(stream.name),
    }
    with pytest.raises(jetsync.PluginError) as caught:
        shopping.publish(f"{stream.name}.schedules.1", shop.BAD, headers=headers)
    check_refused(caught, stream)


def test_subjects_without_a_contract(connect, stream):
    """
    They are refused if that is asked for, and the text says why.
    """
    js = connect(Schemas({f"{stream.name}.orders.>": shop.ORDERS}, unlisted="refuse"))
    js.publish(f"{stream.name}.orders.1", shop.GOOD)

    with pytest.raises(jetsync.PluginError, match="has no contract, and needs one") as caught:
        js.publish(f"{stream.name}.others", b"1")
    assert caught.value.__cause__.contract is None
    assert stored(stream) == 1


def test_avro_gets_its_header(shopping, stream):
    """
    A message that does not say which schema wrote it was written by the newest; the header says so.
    """
    subject = f"{stream.name}.trips.1"
    data = shop.TRIPS.dump({"id": "a", "stops": [{"km": 2}]})
    old = shop.OLD_TRIPS.dump({"id": "a"})
    given = {"x": "1"}
    shopping.publish(subject, data, headers=given)
    shopping.publish(subject, old, headers={SCHEMA_ID: shop.OLD_TRIPS.schema_id})
    with pytest.raises(jetsync.PluginError, match=r"\$\.stops"):
        shopping.publish(subject, old)

    first, second = (stream.get_message(sequence) for sequence in (1, 2))
    assert given == {"x": "1"}
    assert (first.headers["x"], first.headers[SCHEMA_ID]) == ("1", shop.TRIPS.schema_id)
    assert second.headers.get_all(SCHEMA_ID) == [shop.OLD_TRIPS.schema_id]
    with pytest.raises(jetsync.PluginError):
        shopping.publish(subject, data, headers={SCHEMA_ID: "unknown"})


def test_encoded_messages_can_be_published(shopping, plugin, stream):
    """
    `encode` gives what `publish_many` takes, and `decode` what was meant.
    """
    document = {"id": "a", "stops": [{"km": 2.0, "note": None}]}
    shopping.publish_many([plugin.encode(f"{stream.name}.trips.1", document)])

    assert plugin.decode(stream.get_message(1)) == document


def test_sees_what_other_plugins_leave(connect, stream):
    """
    Whatever is sent in the end is what the contract is about.
    """

    class Spoiler:
        @jetsync.hookimpl
        def jetsync_prepare_message(self, message):
            return attrs.evolve(message, data=shop.BAD)

    for order in (1, -1):
        plugins = [Spoiler(), Schemas({f"{stream.name}.>": shop.ORDERS})][::order]
        with pytest.raises(jetsync.PluginError, match="schema"):
            connect(*plugins).publish(f"{stream.name}.orders.1", shop.GOOD)


def test_what_is_not_the_plugins_to_refuse(shopping, stream):
    """
    The client's own errors stay as they are.
    """
    subject = f"{stream.name}.orders.1"
    with pytest.raises(jetsync.InvalidTypeError, match="payload"):
        shopping.publish(subject, 5)
    with pytest.raises(jetsync.InvalidTypeError):
        shopping.publish(subject, shop.GOOD, headers=5)
    with pytest.raises(jetsync.InvalidArgumentError, match="UTF-8"):
        shopping.publish(f"{stream.name}.orders.1", '{"id": "\ud800"}')
    with pytest.raises(jetsync.JetSyncError):
        shopping.publish(5, shop.GOOD)
    assert stored(stream) == 0


@pytest.mark.parametrize("given", [list, iter], ids=["pairs", "iterator"])
def test_nobody_gets_past_a_contract_by_the_form_of_headers(shopping, stream, given):
    """
    Headers are headers or a mapping; where a contract could not look at them, nothing is sent.
    """
    stream.update(allow_atomic=True, allow_batched=True)
    subject = f"{stream.name}.orders.1"
    pairs = [("A", "b")]

    with pytest.raises(jetsync.JetSyncError):
        shopping.publish(subject, shop.BAD, headers=given(pairs))
    with pytest.raises(jetsync.JetSyncError):
        shopping.publish_many([(subject, shop.BAD, given(pairs))])
    with pytest.raises(jetsync.JetSyncError):
        shopping.publish_batch([(subject, shop.BAD, given(pairs))])
    with (
        shopping.publisher() as publisher,
        contextlib.suppress(jetsync.JetSyncError),
    ):
        assert publisher.publish(subject, shop.BAD, headers=given(pairs)).exception(timeout=10)
    with shopping.fast_publisher() as fast, pytest.raises(jetsync.JetSyncError):
        fast.add(subject, shop.BAD, headers=given(pairs))
    assert stored(stream) == 0


def test_nobody_gets_past_a_contract_by_another_plugin(connect, stream, plugin):
    """
    What others make of a message is looked at, whatever form it has.
    """

    class Careless:
        name = "careless"

        @jetsync.hookimpl
        def jetsync_prepare_message(self, message):
            return attrs.evolve(message, headers=[("A", "b")])

    with pytest.raises(jetsync.JetSyncError):
        connect(plugin, Careless()).publish(f"{stream.name}.orders.1", shop.BAD)
    assert stored(stream) == 0


def test_many_threads(shopping, stream, plugin):
    """
    Each of them gets its own answers, and the counts are right.
    """
    failed = []

    def work(number):
        for turn in range(50):
            try:
                shopping.publish(
                    f"{stream.name}.orders.{number}", shop.BAD if turn % 2 else shop.GOOD
                )
            except jetsync.PluginError:
                failed.append(turn % 2)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == [1] * 100
    assert (stored(stream), plugin.statistics().refused) == (100, 100)
