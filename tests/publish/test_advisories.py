"""The subscription to advisories that all atomic batches of a client use."""

from __future__ import annotations

import weakref
from types import SimpleNamespace

import pytest

from jetsync.publish.advisories import INTEREST, listen


class Lane:
    """A lane that records the blocks that it is to send."""

    def __init__(self):
        self.subscriptions = self
        self.client_wide = {}
        self.sent = []

    def new_sid(self):
        return b"7"

    def listen(self, sid, box):
        return b"SUB %b %b\r\n" % (box.interest, sid)

    def post_nowait(self, block):
        self.sent.append(block)


class Batch:
    """An attempt to send a batch, which records the reasons that it gets."""

    def __init__(self, batch_id, stream="S"):
        self.id = batch_id
        self.known = SimpleNamespace(name=stream)
        self.reasons = []

    def on_advisory(self, reason):
        self.reasons.append(reason)


@pytest.fixture
def lane():
    """A lane without subscriptions."""
    return Lane()


def receive(lane, data):
    """Deliver an advisory."""
    lane.client_wide[INTEREST].push((b"", b"", None, data))


def test_all_batches_use_one_subscription(lane):
    """All batches use one subscription, and each gets the advisories about itself."""
    batches = [Batch("1"), Batch("2"), Batch("2", "OTHER")]
    for batch in batches:
        listen(lane, batch)
    assert lane.sent == [b"SUB %b 7\r\n" % INTEREST]
    receive(lane, b'{"stream":"S","batch":"2","reason":"timeout"}')
    assert [batch.reasons for batch in batches] == [[], ["timeout"], []]


@pytest.mark.parametrize(
    ("batch_id", "text"), [("a&<b>", rb"a\u0026\u003cb\u003e"), ('"\\\u00fc', b'\\"\\\\\xc3\xbc')]
)
def test_the_id_as_servers_write_it(lane, batch_id, text):
    """A batch gets its advisory whatever its id is."""
    batch = Batch(batch_id)
    listen(lane, batch)
    receive(lane, b'{"stream":"S","batch":"%b","reason":"large"}' % text)
    assert batch.reasons == ["large"]


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"{}", b'{"batch":"1"', b'{"stream":"S","batch":["1"]}']
)
def test_an_advisory_about_no_batch_is_ignored(lane, data):
    """An advisory that names no batch of the client, or is not JSON, is ignored."""
    batch = Batch("1")
    listen(lane, batch)
    receive(lane, data)
    assert batch.reasons == []


def test_advisories_are_not_parsed_without_a_batch(lane, monkeypatch):
    """While the client has no batch, the reading thread does not parse advisories."""
    batch = Batch("1")
    listen(lane, batch)
    parsed = []
    monkeypatch.setattr(
        "jetsync.publish.advisories.decode_json", lambda data: parsed.append(data) or {}
    )
    receive(lane, b"1")
    del batch
    receive(lane, b"2")
    assert parsed == [b"1"]


def test_batches_are_not_kept_alive(lane):
    """The subscription keeps no batch alive."""
    batch = Batch("1")
    listen(lane, batch)
    alive = weakref.ref(batch)
    del batch
    assert alive() is None
    receive(lane, b'{"stream":"S","batch":"1","reason":"timeout"}')
