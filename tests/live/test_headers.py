"""
Headers over the wire: every way of reading returns the published headers.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import gc
from concurrent.futures import ThreadPoolExecutor

import pytest

import jetsync
from helpers.connections import connection_of
from helpers.traffic import sent_nothing
from helpers.waiting import eventually
from jetsync._base.deadline import Deadline
from jetsync._proto import frames

GIVEN = {
    "A": ["first", "second"],
    "b": "lower",
    "Trailing": "a space ",
    "Leading": "  two",
    "Empty": "",
    "Accent": "é",
    "Colon": "a:b: c",
    "Other": "日本 🚀",
}
"""Headers that are easily damaged in transit."""

PAIRS = [
    (name, one)
    for name, value in GIVEN.items()
    for one in (value if isinstance(value, list) else [value])
]


def readers(stream, js):
    """
    Every way to read the first message of a stream, by name.
    """
    consumer = stream.create_consumer("c")
    return {
        "next": lambda: consumer.next(expires=5),
        "direct get": lambda: stream.get_message(1, direct=True),
        "leader get": lambda: stream.get_message(1, direct=False),
        "direct last": lambda: stream.get_last(f"{stream.name}.a", direct=True),
    }


@pytest.fixture
def direct(js, unique):
    """
    A stream that allows direct gets.
    """
    made = js.create_stream(unique, subjects=[f"{unique}.>"], storage="memory", allow_direct=True)
    yield made
    js.delete_stream(unique)


def given(headers):
    """
    Return names and values in order, without those that the server adds to direct gets.
    """
    return [pair for pair in headers.items() if not pair[0].startswith("Nats-")]


class TestRoundTrip:
    @pytest.mark.parametrize("publish", ["publish", "publish_many", "request"])
    def test_headers_survive(self, client, js, direct, publish):
        """
        Values, their order, the case of names, spaces and UTF-8 survive each way of publishing and
        each way of reading.
        """
        subject = f"{direct.name}.a"
        if publish == "publish":
            js.publish(subject, b"x", headers=GIVEN)
        elif publish == "publish_many":
            js.publish_many([(subject, b"x", GIVEN)])
        else:
            client.request(subject, b"x", headers=GIVEN)
        found = {name: given(read().headers) for name, read in readers(direct, js).items()}
        assert found == dict.fromkeys(found, PAIRS)
        message = direct.get_message(1)
        assert message.headers.get_all("A") == ["first", "second"]
        assert (message.headers["b"], message.headers.get("B")) == ("lower", None)

    def test_a_core_subscription_sees_the_same(self, client, unique):
        """
        Headers survive a round trip without JetStream, as a Headers object and as a mapping.
        """
        with client.subscribe(unique) as subscription:
            for headers in (GIVEN, jetsync.Headers(GIVEN)):
                client.publish(unique, headers=headers)
                assert list(subscription.next(timeout=5).headers.items()) == PAIRS

    def test_no_headers(self, client, js, direct):
        """
        A message without headers has None, also if it was published with an empty mapping.
        """
        for headers in (None, {}):
            js.publish(f"{direct.name}.a", b"x", headers=headers)
        consumer = direct.create_consumer("c")
        for message in consumer.fetch(2, expires=5):
            assert list(message.headers.items()) == []
            assert message.data == b"x"

    def test_many_headers(self, js, direct):
        """
        A thousand values of one name and a value of 50 kB are stored: servers accept 64 kB in all.
        """
        headers = {"Many": [str(number) for number in range(1000)], "Long": "x" * 50_000}
        js.publish(f"{direct.name}.a", headers=headers)
        found = direct.get_message(1).headers
        assert found.get_all("Many") == headers["Many"]
        assert found["Long"] == headers["Long"]

    def test_more_than_the_server_stores(self, js, direct):
        """
        Beyond 64 kB of headers, the server's refusal raises its own error instead of timing out.
        """
        with pytest.raises(jetsync.ApiError) as caught:
            js.publish(f"{direct.name}.a", headers={"Long": "x" * 70_000})
        assert caught.value.err_code == 10097


class TestRefusal:
    @pytest.mark.parametrize(
        "headers",
        [
            {"A": "b\r\nInjected: 1"},
            {"A": "b\n"},
            {"A": ["good", "b\r"]},
            {"A\r\n": "b"},
            {"A\nB": "b"},
            {"A:B": "c"},
            {"": "b"},
            {"A ": "b"},
        ],
    )
    def test_line_ends_and_bad_names_send_nothing(self, client, js, direct, headers):
        """
        Each way of publishing raises ValueError before any byte is sent.
        """
        subject = f"{direct.name}.a"
        # What earlier tests have dropped may still unsubscribe.
        gc.collect()
        client.flush()
        before = client.statistics().bytes_out
        for call in (client.publish, client.request, js.publish):
            with pytest.raises(ValueError, match="header") as caught:
                call(subject, b"", headers=headers)
            assert isinstance(caught.value, jetsync.InvalidHeaderError)
        with pytest.raises(jetsync.PublishManyError) as failed:
            js.publish_many([(subject, b"", headers)])
        assert isinstance(failed.value.report.failures[0].error, jetsync.InvalidHeaderError)
        assert sent_nothing(client, before)


ODD = {
    "no colon": (b"NATS/1.0\r\nA: 1\r\njunk\r\n\r\n", [("A", "1")]),
    "continued": (b"NATS/1.0\r\nA: 1\r\n more\r\n\r\n", [("A", "1 more")]),
    "no value": (b"NATS/1.0\r\nA:\r\n: 1\r\n\r\n", [("A", "")]),
    "not UTF-8": (b"NATS/1.0\r\nA: \xff\r\n\r\n", [("A", "\udcff")]),
    "one line end": (b"NATS/1.0\r\nA: 1\r\n", [("A", "1")]),
    "no line end": (b"NATS/1.0\r\nA: 123", [("A", "123")]),
    "only a version": (b"NATS/1.0", []),
    "no version": (b"hello\r\n\r\n", []),
    "a status": (b"NATS/1.0 404 No Messages\r\nA: 1\r\n\r\n", [("A", "1")]),
    "no responders": (b"NATS/1.0 503\r\n\r\n", []),
    "no number": (b"NATS/1.0 hello\r\nA: 1\r\n\r\n", [("A", "1")]),
    "lines of a server": (
        b"NATS/1.0\r\nNats-Subject: y\r\nNats-Time-Stamp: 1970-01-01T00:00:00Z\r\n\r\n\r\n",
        [("Nats-Subject", "y"), ("Nats-Time-Stamp", "1970-01-01T00:00:00Z")],
    ),
}
"""Header blocks that servers accept from publishers, and the headers in them."""


@pytest.mark.parametrize(("block", "pairs"), ODD.values(), ids=ODD)
class TestOddHeaders:
    # Servers before 2.12 store status lines, too.
    @pytest.fixture(params=["2.11.11", None])
    def version(self, request):
        """
        A server's version; None is the newest.
        """
        return request.param

    @pytest.fixture
    def bucket(self, js_of, version, unique, block):
        """
        A bucket with an odd message before and after an ordinary one.
        """
        js = js_of(version)
        bucket = js.create_key_value(unique, storage="memory", history=2)
        exchange, deadline = connection_of(js).exchange, Deadline.after(20)
        exchange(f"$KV.{unique}.first".encode(), block, b"1", deadline)
        bucket.put("middle", b"2")
        exchange(f"$KV.{unique}.last".encode(), block, b"", deadline)
        yield bucket
        js.delete_key_value(unique)

    def test_all_entries_with_odd_headers_can_be_read(self, bucket, pairs):
        """
        All entries of a bucket can be read, whatever the headers of some of them are.
        """
        del pairs
        values = {"first": b"1", "middle": b"2", "last": b""}
        assert bucket.keys() == [*values]
        for direct in (None, False, True):
            assert {key: bucket.get(key, direct=direct).value for key in values} == values
        assert {key: entry.value for key, entry in bucket.get_many(">").items()} == values
        assert {key: bucket.history(key)[0].value for key in values} == values
        with bucket.watch() as watch:
            found = [(each.key, each.revision) for each in watch.initial(timeout=20)]
        assert found == [("first", 1), ("middle", 2), ("last", 3)]
        bucket.delete("middle")
        assert bucket.purge_deletes(older_than=0) == 1
        assert bucket.keys() == ["first", "last"]

    def test_every_read_returns_the_bytes_of_odd_headers(
        self, bucket, version, unique, block, pairs
    ):
        """
        Every way of reading returns the payload and the headers, and has the publisher's bytes.
        """
        stream = bucket._bucket.stream
        subjects = [f"$KV.{unique}.first", f"$KV.{unique}.last"]
        with stream.ordered_consumer() as ordered:
            found = {
                "ordered": ordered.next(20),
                "fetch": next(iter(stream.create_consumer("c").fetch(1, expires=20))),
                "leader get": stream.get_message(1, direct=False),
                "leader last": stream.get_last(subjects[0], direct=False),
            }
        direct = {
            "direct get": stream.get_message(1, direct=True),
            "confirmed get": stream.get_message(1),
            "direct last": stream.get_last(subjects[0], direct=True),
            "batch": next(iter(stream.get_batch(3))),
            "last for": next(iter(stream.get_last_for(subjects))),
            "scan": next(stream.scan()),
        }
        raw = found["fetch"].raw_headers
        if version is not None:
            assert raw == block
        for name, message in found.items():
            assert (message.data, message.raw_headers) == (b"1", raw), name
            assert message.headers.items() == pairs, name
        if block.endswith(b"3"):
            # The server's lines replace two bytes.
            pairs = [("A", "1")]
        for name, message in direct.items():
            assert (message.sequence, message.data) == (1, b"1"), name
            assert message.headers.items() == pairs, name
            assert message.raw_headers.startswith((raw or b"NATS/1.0\r\n\r\n")[:-2]), name
        (page,) = stream.scan().pages()
        assert (page.sequences, page.data) == ([1, 2, 3], [b"1", b"2", b""])
        rows = stream.scan().to_arrow(["sequence", "headers"]).to_pylist()
        assert [row["sequence"] for row in rows] == [1, 2, 3]
        assert [name for name, _ in rows[0]["headers"]] == [name for name, _ in pairs]


@pytest.mark.parametrize(("block", "pairs"), ODD.values(), ids=ODD)
def test_odd_headers_of_core_messages(client, unique, block, pairs):
    """
    Subscriptions and requests get the payload, the headers and the bytes of the publisher.
    """
    lane = connection_of(client).lane
    with client.subscribe(unique) as subscription:
        lane.write(frames.hpub(unique.encode(), b"", block, b"1"), Deadline.after(20))
        message = subscription.next(timeout=20)
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(client.request, unique, timeout=20)
            reply = subscription.next(timeout=20).raw_reply
            lane.write(frames.hpub(reply, b"", block, b"1"), Deadline.after(20))
            for each in (message, asked.result(20)):
                assert (each.data, each.raw_headers) == (b"1", block)
                assert each.headers.items() == pairs


def originals(client, js, unique):
    """
    Messages as servers deliver them with headers of their own, by what makes them.
    """
    config = {
        "storage": "memory",
        "allow_direct": True,
        "allow_atomic": True,
        "allow_rollup_hdrs": True,
        "allow_msg_ttl": True,
        "allow_msg_schedules": True,
        "republish": jetsync.Republish(src=">", dest=f"{unique}-again.>"),
    }
    stream = js.create_stream(unique, subjects=[f"{unique}.>"], **config)
    source = jetsync.StreamSource(name=unique)
    copies = js.create_stream(f"{unique}-2", storage="memory", sources=[source])
    with client.subscribe(f"{unique}-again.>") as republished:
        own = {"Own": "1", "Nats-Rollup": "sub"}
        js.publish(f"{unique}.a", b"x", headers=own, msg_id="id", ttl=60)
        again = republished.next(timeout=5)
        with js.atomic_batch() as batch:
            batch.add(f"{unique}.b", b"x", headers={"Own": "1"})
            batch.add(f"{unique}.c", b"x", headers={"Own": "1"})
        js.schedule(
            f"{unique}.plan",
            b"x",
            headers={"Own": "1"},
            target=f"{unique}.due",
            at=dt.datetime.now(dt.timezone.utc) + dt.timedelta(seconds=1),
        )
        consumer = stream.create_consumer(filter_subject=f"{unique}.due")
        due = consumer.next(expires=30)
    names = stream.create_consumer(headers_only=True, filter_subject=f"{unique}.a")
    eventually(lambda: copies.info().state.last_seq >= 3)
    return {
        "a source": copies.get_last(f"{unique}.a"),
        "republish": again,
        "a batch": stream.get_last(f"{unique}.b"),
        "a schedule": due,
        "headers only": names.next(expires=5),
    }


def test_copies_of_received_messages_are_stored(client, js, unique):
    """
    A copy with `Headers.forwardable` is stored wherever the message comes from, and has the headers
    of its publisher only.
    """
    target = js.create_stream(f"{unique}-3", subjects=["copies.>"], storage="memory")
    try:
        for origin, message in originals(client, js, unique).items():
            assert any(name.startswith("Nats-") for name in message.headers), origin
            js.publish("copies.one", b"x", headers=message.headers.forwardable())
            assert target.get_last("copies.one").headers == {"Own": "1"}, origin
    finally:
        for name in (f"{unique}-2", unique, f"{unique}-3"):
            with contextlib.suppress(jetsync.StreamNotFoundError):
                js.delete_stream(name)


def test_a_header_of_servers_is_refused_with_advice(js, stream):
    """
    Servers from 2.15 refuse `Nats-Stream-Source` on every publish path, and the error says what to
    do.
    """
    headers = {"Nats-Stream-Source": "A 1 > > a.1"}
    message = jetsync.OutboundMessage(f"{stream.name}.a", b"x", headers)
    with pytest.raises(jetsync.StreamSourceHeaderError, match="forwardable"):
        js.publish(message.subject, b"x", headers=headers)
    with pytest.raises(jetsync.PublishManyError) as caught:
        js.publish_many([message])
    assert isinstance(caught.value.report.failures[0].error, jetsync.StreamSourceHeaderError)
