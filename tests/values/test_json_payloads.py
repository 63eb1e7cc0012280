"""
JSON payloads of messages and values of entries.
"""

from __future__ import annotations

import datetime as dt

import pytest

import jetsync

NOW = dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc)
REPLY = b"$JS.ACK.ORDERS.worker.1.17.3.1767225600000000000.0"


def delivered(data):
    """
    Make a message from a consumer.
    """
    return jetsync.Message(b"orders.1", REPLY, None, data)


def stored(data):
    """
    Make a message read without a consumer.
    """
    return jetsync.StoredMessage("ORDERS", "orders.1", 17, NOW, data=data)


def entry(data):
    """
    Make an entry of a bucket.
    """
    return jetsync.Entry("STOCK", "chairs.oak", data, 17, NOW)


MAKERS = [delivered, stored, entry]


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize(
    ("data", "value"),
    [(b'{"a": [1, "\xc3\xbc"]}', {"a": [1, "ü"]}), (b" null ", None), (b"1.5", 1.5)],
)
def test_json_is_read(make, data, value):
    """
    Messages and entries return the value of their JSON document.
    """
    assert make(data).json() == value


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "it is empty"),
        (b'{"password": s3cret}', "it is not JSON: Expecting value: line 1 column 14 (char 13)"),
        (b'"s3cret\xff"', "it is not UTF-8"),
        (b"[" * 1_000_000, "it is nested too deeply"),
        (b"1" * 100_000, "it is not JSON: "),
    ],
)
def test_the_error_gives_the_reason_and_no_data(make, data, reason):
    """
    Data that is not JSON raises an error that quotes nothing of the data.
    """
    with pytest.raises(jetsync.DecodeError) as caught:
        make(data).json()
    error = caught.value

    assert error.reason.startswith(reason)
    assert isinstance(error, ValueError)
    assert error.sequence == 17
    assert "s3cret" not in repr(error)
    assert error.__cause__ is None
    assert error.__context__ is None


def test_the_error_says_which_message_it_was():
    """
    The error names the stream, the sequence and the subject of a message, or the key of an entry.
    """
    texts = {
        delivered: "the payload of message 17 on 'orders.1' in stream 'ORDERS'",
        stored: "the payload of message 17 on 'orders.1' in stream 'ORDERS'",
        entry: "the value of key 'chairs.oak' in bucket 'STOCK', revision 17",
        lambda data: jetsync.Message(b"ping", b"", None, data): (
            "the payload of the message on 'ping'"
        ),
    }
    for make, text in texts.items():
        with pytest.raises(jetsync.DecodeError) as caught:
            make(b"").json()
        assert str(caught.value) == f"cannot decode {text}: it is empty"
