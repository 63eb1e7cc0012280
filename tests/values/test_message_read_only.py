"""
What was received cannot be changed: messages, their headers, and the other values of an answer.
"""

from __future__ import annotations

import copy
import datetime as dt
import os
import pickle
import subprocess
import sys
from array import array

import attrs
import pytest

import jetsync
from jetsync.objects.info import describe
from jetsync.values.frame import FrameRun
from jetsync.values.message import Message, plain_maker
from jetsync.values.stored import StoredMessage, StoredPage, stored_messages

REPLY = b"$JS.ACK.ORDERS.worker.2.35.7.1700000000123456789.4"
BLOCK = b"NATS/1.0\r\nA: 1\r\n\r\n"
DIRECT = (
    b"NATS/1.0\r\nA: 1\r\nNats-Stream: S\r\nNats-Subject: s\r\nNats-Sequence: 5\r\n"
    b"Nats-Time-Stamp: 2026-11-20T16:38:27.7Z\r\n\r\n"
)
MOMENT = dt.datetime(2026, 11, 20, tzinfo=dt.timezone.utc)


class OwnMessage(Message):
    """A subclass whose objects have a dictionary."""


class OwnStored(StoredMessage):
    """As above."""


def received():
    """Make one value of each kind, and in each way, by name."""
    message = Message(b"a", REPLY, BLOCK, b"x")
    run = FrameRun(b"s", DIRECT + b"x", array("i", [0, len(DIRECT), len(DIRECT) + 1]))
    stored = StoredMessage("S", "s", 5, MOMENT, jetsync.Headers({"A": "1"}), b"x")
    document = {"headers": {"A": ["1"]}, "options": {"link": {"bucket": "B", "name": "n"}}}
    described = describe("B", "$O.B.M.bmFtZQ==", 3, MOMENT, document)
    return {
        "made": plain_maker(Message, None)((b"a", REPLY, BLOCK, b"x")),
        "constructed": message,
        "core": Message(b"a", b"", None, b""),
        "own": plain_maker(OwnMessage, None)((b"a", REPLY, BLOCK, b"x")),
        "copied": copy.copy(message),
        "unpickled": pickle.loads(pickle.dumps(message)),
        "replaced": message.replace(headers={"A": "1"}, data=b"y"),
        "metadata": message.metadata,
        "direct": StoredMessage.from_direct(DIRECT, b"x"),
        "of a run": stored_messages(run)[0],
        "stored": stored,
        "stored block": StoredMessage("S", "s", 5, MOMENT, raw_headers=BLOCK),
        "own stored": OwnStored.from_direct(DIRECT, b"x"),
        "stored copied": copy.copy(stored),
        "stored unpickled": pickle.loads(pickle.dumps(stored)),
        "stored replaced": stored.replace(headers={"A": "1"}, data=b"y"),
        "page": StoredPage([stored]),
        "entry": jetsync.Entry("B", "key", b"x", 1, MOMENT),
        "object": described,
        "link": described.link,
        "ack": jetsync.PubAck("S", 5),
        "batch ack": jetsync.BatchAck("S", 5, "id", 2),
    }


def attributes(value):
    """Return the names of the public attributes."""
    kind = type(value)
    return [name for name in dir(kind) if name[0] != "_" and not callable(getattr(kind, name))]


WITH_HEADERS = [name for name, value in received().items() if hasattr(value, "headers")]

CHANGES = {
    "add": lambda headers: headers.add("B", "2"),
    "set": lambda headers: headers.set("A", "2"),
    "discard": lambda headers: headers.discard("A"),
    "assign": lambda headers: headers.__setitem__("A", "2"),
    "delete": lambda headers: headers.__delitem__("A"),
}

FOR_JETSYNC = {
    "ConsumerConfig", "ConsumerLimits", "ExternalStream", "OutboundMessage", "Placement",
    "Republish", "SourceConsumer", "StreamConfig", "StreamSource", "SubjectTransform",
}  # fmt: skip
"""What users make and change before they pass it to jetsync."""


@pytest.mark.parametrize(
    ("name", "attribute"),
    [(name, each) for name, value in received().items() for each in attributes(value)],
)
def test_public_attributes_are_read_only(variant, name, attribute):
    """A public attribute of a received value can be neither set nor deleted."""
    value = received()[name]
    before = pickle.dumps(value)
    with pytest.raises(AttributeError):
        setattr(value, attribute, b"other")
    with pytest.raises(AttributeError):
        delattr(value, attribute)
    assert pickle.dumps(value) == before


def test_messages_have_the_attributes_of_their_documentation():
    """The parametrised test covers the attributes that are in the storage."""
    values = received()
    assert {"data", "raw_headers", "raw_reply", "subject"} <= {*attributes(values["made"])}
    assert {"data", "raw_headers", "sequence", "subject"} <= {*attributes(values["direct"])}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("name", WITH_HEADERS)
def test_headers_are_read_only(name, change):
    """Received headers refuse a change and say what to do. A copy of them can be changed."""
    value = received()[name]
    before = value.headers.items()
    if before or change is not CHANGES["delete"]:
        with pytest.raises(jetsync.InvalidTypeError, match=r"change a copy of them, headers.copy"):
            change(value.headers)
    copied = value.headers.copy()
    copied.add("A", "3")
    change(copied)
    assert value.headers.items() == before


def test_headers_that_a_message_was_made_of_are_its_own():
    """A message does not change with the headers that it was made of."""
    headers = jetsync.Headers({"A": "1"})
    stored = StoredMessage("S", "s", 5, MOMENT, headers)
    replaced = [each.replace(headers=headers) for each in (stored, Message(b"a", b"", None, b""))]
    headers["A"] = "2"
    assert [each.headers for each in (stored, *replaced)] == [{"A": "1"}] * 3


def test_copies_with_changes():
    """Values that are not messages are changed by making a copy of them."""
    values = received()
    assert attrs.evolve(values["entry"], value=b"y").value == b"y"
    assert attrs.evolve(values["object"], description="new").headers == {"A": "1"}
    assert values["metadata"]._replace(delivered=3).delivered == 3


def test_only_what_users_make_can_be_changed():
    """A public class with fields is frozen, unless users make its objects for jetsync."""
    classes = {name: getattr(jetsync, name) for name in jetsync.__all__}
    mutable = {
        name
        for name, kind in classes.items()
        if isinstance(kind, type)
        and attrs.has(kind)
        and not issubclass(kind, BaseException)
        and kind.__setattr__ is not jetsync.PubAck.__setattr__
    }
    assert mutable == FOR_JETSYNC


def test_with_the_storage_in_python():
    """With the storage in Python, messages have the same attributes, which are read-only, too."""
    code = """if True:
        from jetsync import Message, StoredMessage
        for value in (Message(b"a", b"", None, b"x"), StoredMessage("S", "s", 5, 1)):
            kind = type(value)
            for name in dir(kind):
                if name[0] != "_" and not callable(getattr(kind, name)):
                    try:
                        setattr(value, name, b"other")
                    except AttributeError:
                        print(kind.__name__, name)
    """
    environment = {**os.environ, "JETSYNC_SPEEDUPS": "0"}
    output = subprocess.check_output([sys.executable, "-c", code], env=environment, text=True)
    values = received()
    assert output.splitlines() == [
        f"{type(values[each]).__name__} {name}"
        for each in ("made", "direct")
        for name in attributes(values[each])
    ]
