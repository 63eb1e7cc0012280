from __future__ import annotations

import pytest

from jetsync.consume.ack_many import ack_many, acknowledge_all
from jetsync.errors import DisconnectedError, MessageAlreadyAckedError, NotJetStreamMessageError
from jetsync.values.message import Message

REPLY = b"$JS.ACK.ORDERS.worker.2.35.7.1700000000123456789.4"


class RecordingAcker:
    """
    An acker of the application: keeps the acks that it has to send, or raises ``error``.
    """

    def __init__(self, error=None):
        self.replies = []
        self.error = error

    def acknowledge(self, message, body):
        assert body == b"+ACK"
        if self.error is not None:
            raise self.error
        self.replies.append(message.raw_reply)


@pytest.fixture
def acker():
    """
    An acker that works.
    """
    return RecordingAcker()


@pytest.fixture
def messages(acker):
    """
    Four messages of a consumer.
    """
    return [Message(b"a", b"$JS.ACK.S.C.1.%d.%d.5.0" % (i, i), None, b"", acker) for i in range(4)]


def test_skips_acked(acker, messages):
    """
    Messages that were acknowledged one by one are left out, the others are sent in order.
    """
    messages[1].ack()
    assert acknowledge_all(messages, None, skip_acked=True) == 3
    replies = [message.raw_reply for message in messages]
    assert acker.replies == [replies[1], replies[0], replies[2], replies[3]]
    assert all(message.is_acked for message in messages)
    assert acknowledge_all(messages, None, skip_acked=True) == 0


def test_copies_of_acked_messages(acker, messages):
    """
    A copy of an acknowledged message counts as acknowledged, before anything is sent.
    """
    copies = [message.replace(data=b"x") for message in messages]
    messages[1].ack()
    with pytest.raises(MessageAlreadyAckedError):
        ack_many(copies)
    assert acker.replies == [messages[1].raw_reply]
    assert acknowledge_all(copies, None, skip_acked=True) == 3
    assert all(message.is_acked for message in messages)


def test_one_is_acked(acker, messages):
    """
    ack_many acknowledges nothing if one of the messages was acknowledged before.
    """
    messages[3].ack()
    with pytest.raises(MessageAlreadyAckedError):
        ack_many(messages)
    assert len(acker.replies) == 1
    assert [message.is_acked for message in messages] == [False, False, False, True]


def test_several_ackers(acker, messages):
    """
    If one acker fails, the messages of the others stay acknowledged, and its own do not.
    """
    other = Message(b"a", REPLY, None, b"", RecordingAcker(DisconnectedError()))
    with pytest.raises(DisconnectedError):
        ack_many([*messages, other])
    assert all(message.is_acked for message in messages)
    assert not other.is_acked


def test_unhashable_acker():
    """
    Ackers of the application need not be hashable.
    """

    class Unhashable(RecordingAcker):
        __hash__ = None

    acker = Unhashable()
    assert ack_many(Message(b"a", REPLY, None, b"", acker) for _ in range(3)) == 3
    assert acker.replies == [REPLY] * 3


def test_messages_of_no_consumer_acknowledge_nothing(acker, messages):
    """
    Nothing is acknowledged if one of the messages is not from a consumer.
    """
    with pytest.raises(NotJetStreamMessageError):
        ack_many([*messages, Message(b"a", b"", None, b"")])
    assert not any(message.is_acked for message in messages)
    assert ack_many(messages) == 4


def test_after_ctrl_c_every_message_can_still_be_acknowledged(acker, messages):
    """
    After Ctrl-C in the middle, every message can still be acknowledged.
    """

    def interrupted():
        yield messages[0]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ack_many(interrupted())
    messages[0].ack()
    assert acker.replies == [messages[0].raw_reply]
