"""
Acks that are lost with the connection: outcomes are unknown, and no message is sent again.
"""

from __future__ import annotations

import datetime as dt
from concurrent.futures import ThreadPoolExecutor

import pytest

import jetsync
from helpers.streams import memory_stream, messages_in
from jetsync.testing import CutProxy

MANY = 50
"""Messages of a window: enough for one in seven, and for one in 40."""


@pytest.fixture
def lossy(nats_server, js, unique, proxied):
    """
    JetStream through a proxy, its proxy, and a stream as another client sees it.
    """
    features = ["allow_atomic", "allow_batched", "allow_direct", "allow_msg_schedules"]
    stream = memory_stream(js, unique, **dict.fromkeys(features, True))
    through, proxy = proxied()
    yield through, proxy, stream
    js.delete_stream(unique)


def lose_the_next_answer(proxy):
    """
    Cut the connection in place of the next byte that the server sends.
    """
    proxy.cut_after(to_client=0, reset=True)


def window(js, subject):
    """
    Publish through a window, and return the errors.
    """
    with js.publisher() as publisher:
        futures = [publisher.publish(subject, b"%d" % number) for number in range(MANY)]
        return [future.exception() for future in futures]


ONE = {
    "publish": lambda js, subject: js.publish(subject),
    "expect": lambda js, subject: js.publish(
        subject, expect=jetsync.Expect(last_subject_sequence=0)
    ),
    "headers": lambda js, subject: js.publish(subject, headers={"A": "b"}),
    "schedule": lambda js, subject: js.schedule(
        f"{subject}.schedule",
        target=f"{subject}.target",
        at=dt.datetime(2100, 1, 1, tzinfo=dt.timezone.utc),
    ),
    "publish_batch": lambda js, subject: js.publish_batch([(subject, b"")]),
    "publish_batch of two": lambda js, subject: js.publish_batch([(subject, b"")] * 2),
}
"""Calls that store messages together or not at all."""


@pytest.mark.parametrize("name", ONE)
def test_a_publish_whose_ack_is_lost_is_stored_once(lossy, name):
    """
    The call raises PublishOutcomeUnknownError, and its message is stored once.
    """
    js, proxy, stream = lossy
    # Some calls ask for the stream before they publish the first time.
    ONE[name](js, f"{stream.name}.first")
    before = stream.info().state.messages
    lose_the_next_answer(proxy)
    with pytest.raises(jetsync.PublishOutcomeUnknownError):
        ONE[name](js, f"{stream.name}.second")
    # The same client's next message comes after a copy of the last one.
    js.publish(f"{stream.name}.end", timeout=20)
    assert stream.info().state.last_seq == 2 * before + 1


def change_two(store):
    """
    Change two keys together.
    """
    with store.atomic() as change:
        change.put("key", b"new")
        change.put("other", b"new")


KEYS = {
    "put": lambda store: store.put("key", b"new"),
    "create": lambda store: store.create("other", b"new"),
    "update": lambda store: store.update("key", b"new", last=1),
    "delete": lambda store: store.delete("key"),
    "purge": lambda store: store.purge("key"),
    "atomic": change_two,
}
"""Changes of a bucket."""


@pytest.mark.parametrize("name", KEYS)
def test_one_change_of_a_key(js, unique, proxied, name):
    """
    A change of a bucket is sent once as well.
    """
    through, proxy = proxied()
    through.create_key_value(unique, storage="memory", history=9, atomic=True)
    store = through.key_value(unique)
    assert store.put("key", b"old") == 1
    # It looks up whether the bucket supports transactions.
    with store.atomic():
        pass
    lose_the_next_answer(proxy)
    with pytest.raises(jetsync.PublishOutcomeUnknownError):
        KEYS[name](store)
    last = store.put("end", b"", timeout=20)
    assert last == (4 if name == "atomic" else 3)
    js.delete_key_value(unique)


@pytest.mark.parametrize("how", ["lost", "late"])
@pytest.mark.parametrize("on_ack", [None, lambda message, ack: None], ids=["counted", "on_ack"])
def test_each_message_whose_ack_is_lost_is_reported(lossy, on_ack, how):
    """
    Every message whose ack is lost or late is reported as a failure, and stored once.
    """
    js, proxy, stream = lossy
    messages = [(f"{stream.name}.a", b"%d" % number) for number in range(MANY)]
    if how == "lost":
        lose_the_next_answer(proxy)
    else:
        proxy.pause("to_client")
    with pytest.raises(jetsync.PublishManyError) as caught:
        js.publish_many(messages, on_ack=on_ack, ack_timeout=20 if how == "lost" else 0.1)
    report = caught.value.report
    assert (report.count, report.first_sequence, report.last_sequence) == (0, None, None)
    assert [failure.index for failure in report.failures] == list(range(MANY))
    errors = {type(failure.error) for failure in report.failures}
    assert errors == {jetsync.PublishOutcomeUnknownError}
    proxy.resume()
    js.publish(f"{stream.name}.end", timeout=20)
    assert [message.data for message in messages_in(stream)] == [
        *(data for _, data in messages),
        b"",
    ]


def test_each_future_whose_ack_is_lost_has_an_unknown_outcome(lossy):
    """
    Each future of a publisher has the unknown outcome, and each message is stored once.
    """
    js, proxy, stream = lossy
    lose_the_next_answer(proxy)
    errors = window(js, f"{stream.name}.a")
    js.publish(f"{stream.name}.end", timeout=20)
    stored = [message.data for message in messages_in(stream)][:-1]
    assert len(stored) == len(set(stored))
    lost = [error for error in errors if error is not None]
    # Some may have been published on the next connection.
    assert lost
    assert {type(error) for error in lost} == {jetsync.PublishOutcomeUnknownError}


def test_a_request(nats_server, client, unique):
    """
    A request is not repeated either: it fails, and its responder gets it once.
    """
    with (
        CutProxy(nats_server.url) as proxy,
        jetsync.connect(proxy.url, reconnect_wait=0.05) as asking,
        client.subscribe(unique) as asked,
        ThreadPoolExecutor(1) as pool,
    ):
        client.flush()
        answer = pool.submit(asking.request, unique, timeout=60)
        assert asked.next(timeout=20)
        proxy.cut()
        with pytest.raises(jetsync.ConnectionLostError):
            answer.result()
        # The same client's next message comes after a copy of the request.
        asking.publish(unique, b"end")
        assert asked.next(timeout=20).data == b"end"
