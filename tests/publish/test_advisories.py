"""The subscription to advisories that all atomic batches of a client use."""

from __future__ import annotations

import weakref
from types import SimpleNamespace

import pytest

from jetsync.events import BatchAbandonedEvent
from jetsync.publish.advisories import INTEREST, KEPT, forget, listen


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
        self.is_open = False

    def on_advisory(self, reason):
        self.reasons.append(reason)


@pytest.fixture
def lane():
    """A lane without subscriptions."""
    return Lane()


def receive(lane, data):
    """Deliver an advisory."""
    lane.client_wide[INTEREST].push((b"", b"", None, data))


def expect(lane, *batches):
    """Expect the advisories of batches, and return the list of the events about them."""
    emitted = []
    for batch in batches:
        listen(lane, batch, emitted.append)
    return emitted


def test_all_batches_use_one_subscription(lane):
    """All batches use one subscription, and each gets the advisories about itself."""
    batches = [Batch("1"), Batch("2"), Batch("2", "OTHER")]
    events = expect(lane, *batches)
    assert lane.sent == [b"SUB %b 7\r\n" % INTEREST]
    receive(lane, b'{"stream":"S","batch":"2","reason":"timeout"}')
    assert [batch.reasons for batch in batches] == [[], ["timeout"], []]
    assert events == [BatchAbandonedEvent(stream="S", batch_id="2", reason="timeout")]


@pytest.mark.parametrize(
    ("batch_id", "text"), [("a&<b>", rb"a\u0026\u003cb\u003e"), ('"\\\u00fc', b'\\"\\\\\xc3\xbc')]
)
def test_the_id_as_servers_write_it(lane, batch_id, text):
    """A batch gets its advisory whatever its id is."""
    batch = Batch(batch_id)
    expect(lane, batch)
    receive(lane, b'{"stream":"S","batch":"%b","reason":"large"}' % text)
    assert batch.reasons == ["large"]


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"{}", b'{"batch":"1"', b'{"stream":"S","batch":["1"]}']
)
def test_an_advisory_about_no_batch_is_ignored(lane, data):
    """An advisory that names no batch of the client, or is not JSON, is ignored."""
    batch = Batch("1")
    events = expect(lane, batch)
    receive(lane, data)
    assert (batch.reasons, events) == ([], [])


def test_advisories_are_not_parsed_if_none_is_expected(lane, monkeypatch):
    """Once no batch can be dropped any more, the reading thread does not parse advisories."""
    batch = Batch("1")
    expect(lane, batch)
    parsed = []
    monkeypatch.setattr(
        "jetsync.publish.advisories.decode_json", lambda data: parsed.append(data) or {}
    )
    receive(lane, b"1")
    forget(lane, batch)
    receive(lane, b"2")
    assert parsed == [b"1"]


def test_an_advisory_after_the_end_of_its_batch_is_reported(lane):
    """Plugins get the event about a batch that is gone. The subscription keeps no batch alive."""
    batch = Batch("1")
    events = expect(lane, batch)
    alive = weakref.ref(batch)
    del batch
    assert alive() is None
    for _ in range(2):
        receive(lane, b'{"stream":"S","batch":"1","reason":"timeout"}')
    assert events == [BatchAbandonedEvent(stream="S", batch_id="1", reason="timeout")]


def test_the_batch_learns_of_its_end_before_plugins(lane):
    """A plugin that has the event finds that the batch has ended."""
    batch, seen = Batch("1"), []
    listen(lane, batch, lambda event: seen.append(list(batch.reasons)))
    receive(lane, b'{"stream":"S","batch":"1","reason":"timeout"}')
    assert seen == [["timeout"]]


def test_the_expected_advisories_are_bounded(lane):
    """Only the advisories of the newest batches are expected, so memory does not grow."""
    batches = [Batch(str(number)) for number in range(KEPT + 5)]
    expect(lane, *batches)
    expected = lane.client_wide[INTEREST].expected
    assert list(expected) == [("S", str(number)) for number in range(5, KEPT + 5)]


def test_the_advisory_of_an_open_batch_is_expected_however_many_others_end(lane):
    """An open batch gets its advisory, also if more batches than are remembered end meanwhile."""
    opened = Batch("open")
    opened.is_open = True
    expect(lane, opened, *(Batch(str(number)) for number in range(KEPT + 5)))
    receive(lane, b'{"stream":"S","batch":"open","reason":"timeout"}')
    assert opened.reasons == ["timeout"]


def test_a_batch_that_nobody_expects_can_be_forgotten(lane):
    """A batch is forgotten without an error, also if the client has no subscription yet."""
    forget(lane, Batch("1"))
    expect(lane, Batch("2"))
    forget(lane, Batch("1"))
