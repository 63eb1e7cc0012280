"""
Headers over the wire: every way of reading returns the published headers.
"""

from __future__ import annotations

import pytest

import jetsync

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
        before = client.statistics().bytes_out
        for call in (client.publish, client.request, js.publish):
            with pytest.raises(ValueError, match="header") as caught:
                call(subject, b"", headers=headers)
            assert isinstance(caught.value, jetsync.InvalidHeaderError)
        with pytest.raises(jetsync.PublishManyError) as failed:
            js.publish_many([(subject, b"", headers)])
        assert isinstance(failed.value.report.failures[0].error, jetsync.InvalidHeaderError)
        assert client.statistics().bytes_out == before
