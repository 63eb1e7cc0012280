from __future__ import annotations

import datetime as dt

import pytest

import jetsync
from jetsync.testing import AckRecorder, make_message

NOON = dt.datetime(2026, 11, 28, 12, 0, 0, 123456, tzinfo=dt.timezone.utc)


def test_a_message_has_what_the_test_gives_it():
    """
    The subject, the payload, the headers and the metadata are those of the arguments.
    """
    message = make_message(
        "orders.1",
        "two chairs",
        headers={"A": ["1", "2"]},
        stream="ORDERS",
        consumer="worker",
        sequence=17,
        delivered=3,
        pending=5,
        time=NOON,
    )
    assert (message.subject, message.data) == ("orders.1", b"two chairs")
    assert message.headers.get_all("A") == ["1", "2"]
    about = message.metadata
    assert (about.stream, about.consumer, about.stream_sequence) == ("ORDERS", "worker", 17)
    assert (about.delivered, about.pending, about.timestamp) == (3, 5, NOON)


def test_the_defaults():
    """
    Without arguments, the message is delivered for the first time and can be acknowledged.
    """
    message = make_message()
    assert (message.sequence, message.metadata.delivered, message.headers) == (1, 1, {})
    message.ack()
    assert message.is_acked


def test_acknowledgements_are_recorded():
    """
    The recorder has each kind with its message, also of a copy, and refuses a second one.
    """
    acks = AckRecorder()
    first = make_message(acker=acks)
    first.in_progress()
    first.nak(1.5)
    others = [make_message(sequence=number, acker=acks) for number in range(2, 6)]
    others[0].nak()
    others[1].term("why")
    others[2].ack_sync(timeout=1)
    others[3].replace(data=b"x").ack()
    assert acks.kinds == ["in_progress", "nak", "nak", "term", "ack_sync", "ack"]
    assert [each.delay for each in acks.acks] == [None, 1.5, None, None, None, None]
    assert (acks.acks[3].reason, acks.acks[0].reason) == ("why", None)
    assert [each.message for each in acks.acks] == [first, first, *others]
    with pytest.raises(jetsync.MessageAlreadyAckedError):
        first.ack()


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"subject": "a b"}, jetsync.InvalidSubjectError),
        ({"stream": "a.b"}, jetsync.InvalidNameError),
        ({"consumer": ""}, jetsync.InvalidNameError),
        ({"headers": {"A": "x\r\n"}}, jetsync.InvalidHeaderError),
        ({"data": 5}, jetsync.InvalidTypeError),
        ({"sequence": 0}, jetsync.InvalidArgumentError),
        ({"delivered": 0}, jetsync.InvalidArgumentError),
        ({"pending": -1}, jetsync.InvalidArgumentError),
        ({"pending": 1.5}, jetsync.InvalidTypeError),
        ({"time": NOON.replace(tzinfo=None)}, jetsync.InvalidArgumentError),
        ({"time": "now"}, jetsync.InvalidTypeError),
    ],
)
def test_a_message_that_no_server_would_deliver(change, error):
    """
    Parts that a server would not accept are refused.
    """
    with pytest.raises(error):
        make_message(**change)
