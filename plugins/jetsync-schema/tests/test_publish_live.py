"""
Messages that violate their contract are not sent, whichever way they are published.
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
    Check that an error is the plugin's, and that the stream has none of the messages.
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
    Return the number of messages of a stream.
    """
    return stream.info().state.messages


def test_an_invalid_message_is_refused_and_the_next_is_published(shopping, stream, plugin):
    """
    A single invalid message is refused, and the next one is published.
    """
    with pytest.raises(jetsync.PluginError) as caught:
        shopping.publish(f"{stream.name}.orders.1", shop.BAD)
    check_refused(caught, stream)

    assert shopping.publish(f"{stream.name}.orders.1", shop.GOOD).sequence == 1
    assert shopping.publish(f"{stream.name}.others", shop.BAD).sequence == 2
    assert plugin.statistics().refused == 1


def test_not_a_byte_is_sent(nats_server, plugin, stream):
    """
    The server receives no message of the client.
    """
    with jetsync.connect(nats_server.url, plugins=[plugin]) as client:
        before = client.statistics()
        with pytest.raises(jetsync.PluginError):
            client.jetstream().publish(f"{stream.name}.orders.1", shop.BAD)
        assert client.statistics() == before


def test_publish_many_leaves_out_only_invalid_messages(shopping, stream):
    """
    Only invalid messages are left out, and the report names them.
    """
    datas = [shop.GOOD, shop.BAD, shop.GOOD, shop.BAD, shop.GOOD]
    with pytest.raises(jetsync.PublishManyError) as caught:
        shopping.publish_many((f"{stream.name}.orders.1", data) for data in datas)

    report = caught.value.report
    assert [failure.index for failure in report.failures] == [1, 3]
    assert {type(failure.error.__cause__) for failure in report.failures} == {ViolationError}
    assert (report.count, stored(stream)) == (3, 3)


def test_the_future_of_an_invalid_message_fails(shopping, stream):
    """
    The future of the invalid message fails.
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
    Adding the message fails, and so does the batch: none of its messages is stored.
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
    Messages that were added before are stored.
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
    Every way to set a key is checked, also in transactions; deleting one needs no document.
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


def test_headers_do_not_bypass_a_contract(shopping, stream):
    """
    Only messages without a payload can be exempt.
    """
    headers = {"KV-Operation": "DEL", "Nats-Incr": "1", "Nats-Marker-Reason": "Remove"}
    with pytest.raises(jetsync.PluginError):
        shopping.publish(f"{stream.name}.orders.1", shop.BAD, headers=headers)
    with pytest.raises(jetsync.PluginError):
        shopping.publish(f"{stream.name}.orders.1", b"")

    shopping.publish(f"{stream.name}.orders.1", b"", headers={"KV-Operation": "PURGE"})


def test_counters_need_no_document(connect, js, stream):
    """
    An increment is a header without a payload.
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
    A schedule's payload is checked against the target, because the server publishes it without
    plugins.
    """
    stream.update(allow_msg_schedules=True)
    at = "@at 2100-01-01T00:00:00Z"
    headers = {"Nats-Schedule": at, "Nats-Schedule-Target": f"{stream.name}.orders.1"}
    with pytest.raises(jetsync.PluginError) as caught:
        shopping.publish(f"{stream.name}.schedules.1", shop.BAD, headers=headers)
    check_refused(caught, stream)

    shopping.publish(f"{stream.name}.schedules.1", shop.GOOD, headers=headers)
    # The server publishes the source's message of that time, and not this payload, which is empty.
    source = {**headers, "Nats-Schedule-Source": f"{stream.name}.others"}
    shopping.publish(f"{stream.name}.schedules.1", b"", headers=source)
    # The header alone has no meaning for a server, so the subject's own contract applies.
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
    The server publishes the payload if the source is empty or has no message, so it is checked.
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
    They are refused if the plugin is configured so, and the text gives the reason.
    """
    js = connect(Schemas({f"{stream.name}.orders.>": shop.ORDERS}, unlisted="refuse"))
    js.publish(f"{stream.name}.orders.1", shop.GOOD)

    with pytest.raises(jetsync.PluginError, match="has no contract, and needs one") as caught:
        js.publish(f"{stream.name}.others", b"1")
    assert caught.value.__cause__.contract is None
    assert stored(stream) == 1


def test_avro_gets_its_header(shopping, stream):
    """
    A message without the header counts as encoded with the newest schema, and gets its header.
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
    `publish_many` accepts the result of `encode`, and `decode` restores the document.
    """
    document = {"id": "a", "stops": [{"km": 2.0, "note": None}]}
    shopping.publish_many([plugin.encode(f"{stream.name}.trips.1", document)])

    assert plugin.decode(stream.get_message(1)) == document


def test_checks_the_results_of_other_plugins(connect, stream):
    """
    The contract applies to the message as it is sent.
    """

    class Spoiler:
        @jetsync.hookimpl
        def jetsync_prepare_message(self, message):
            return attrs.evolve(message, data=shop.BAD)

    for order in (1, -1):
        plugins = [Spoiler(), Schemas({f"{stream.name}.>": shop.ORDERS})][::order]
        with pytest.raises(jetsync.PluginError, match="schema"):
            connect(*plugins).publish(f"{stream.name}.orders.1", shop.GOOD)


def test_errors_of_the_client(shopping, stream):
    """
    The client's own errors stay unchanged.
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
def test_the_form_of_headers_does_not_bypass_a_contract(shopping, stream, given):
    """
    Headers may be Headers or a mapping. If they are neither, nothing is sent.
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


def test_another_plugin_does_not_bypass_a_contract(connect, stream, plugin):
    """
    Messages that other plugins return are checked, whatever their form is.
    """

    class Careless:
        name = "careless"

        @jetsync.hookimpl
        def jetsync_prepare_message(self, message):
            return attrs.evolve(message, headers=[("A", "b")])

    with pytest.raises(jetsync.JetSyncError):
        connect(plugin, Careless()).publish(f"{stream.name}.orders.1", shop.BAD)
    assert stored(stream) == 0


def test_each_thread_gets_its_own_results_of_validation(shopping, stream, plugin):
    """
    Each thread gets its own results, and the counts are right.
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
