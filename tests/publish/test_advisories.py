"""The subscription that the atomic batches of one stream share."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from jetsync.errors import ConnectionClosedError, PermissionDeniedError
from jetsync.publish import advisories
from jetsync.publish.advisories import ADVISORY, listen

INTEREST = (ADVISORY + "S").encode()


class Lane:
    """A lane that records the subscriptions, and runs timers when the test asks for it."""

    def __init__(self):
        self.shared = {}
        self.open = []
        self.timers = []
        self.sids = 0
        self.outbox = SimpleNamespace(epoch=1)

    def new_sid(self):
        self.sids += 1
        return b"%d" % self.sids

    def listen(self, sid, box):
        assert box.interest == INTEREST
        self.open.append(sid)
        return b"SUB %b %b\r\n" % (box.interest, sid)

    def unsubscribe(self, sid):
        self.open = [each for each in self.open if each != sid]

    def later(self, seconds, call):
        assert seconds == advisories.IDLE_CHECK
        self.timers.append(call)

    def tick(self):
        timers, self.timers = self.timers, []
        for call in timers:
            call()


class Batch:
    """An attempt to send a batch, which records the calls."""

    def __init__(self, name):
        self.id = name
        self.known = SimpleNamespace(name="S")
        self.advisories = []

    def on_advisory(self, frame):
        self.advisories.append(frame[3])


@pytest.fixture
def lane():
    """A lane without subscriptions."""
    return Lane()


def test_all_batches_of_a_stream_use_one_subscription(lane):
    """All batches of a stream use one subscription; each gets the advisories about itself."""
    first, second = Batch("1"), Batch("2")
    box = listen(lane, first)
    assert listen(lane, second) is box
    assert (lane.open, box.line) == ([b"1"], b"SUB %b 1\r\n" % INTEREST)
    advisory = b'{"batch":"2","reason":"timeout"}'
    box.push((b"", b"", None, advisory))
    assert (first.advisories, second.advisories) == ([], [advisory])


@pytest.mark.parametrize(
    ("batch_id", "text"),
    [("t-1", b"t-1"), ("a&<b>", rb"a\u0026\u003cb\u003e"), ('"\\\u00fc', b'\\"\\\\\xc3\xbc')],
)
def test_the_id_as_servers_write_it(lane, batch_id, text):
    """A batch gets its advisory whatever its id is, and none about an id that begins with it."""
    batch, longer = Batch(batch_id), Batch(f"{batch_id}2")
    listen(lane, longer)
    box = listen(lane, batch)
    advisories = [b'{"stream":"S","batch":"%b%b"}' % (text, end) for end in (b"", b"2")]
    for advisory in advisories:
        box.push((b"", b"", None, advisory))
    assert (batch.advisories, longer.advisories) == (advisories[:1], advisories[1:])


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"batch":"other"}'])
def test_an_advisory_about_another_batch_is_ignored(lane, data):
    """An advisory about another batch is ignored."""
    batch = Batch("1")
    listen(lane, batch).push((b"", b"", None, data))
    assert batch.advisories == []


def test_not_parsed_in_the_reading_thread(lane):
    """The thread that reads the socket passes an advisory on as it is, even if it is not JSON."""
    batch = Batch("id")
    listen(lane, batch).push((b"", b"", None, b'{"batch":"id"'))
    assert batch.advisories == [b'{"batch":"id"']


def test_the_subscription_ends_after_the_last_batch(lane):
    """The subscription ends with the second check after the last batch, and the next begins one."""
    batch = Batch("1")
    box = listen(lane, batch)
    for _ in range(3):
        lane.tick()
    assert lane.open == [b"1"]
    box.attempts.pop("1")
    listen(lane, Batch("2"))
    lane.tick()
    assert lane.open == [b"1"]
    lane.tick()
    assert (lane.open, lane.shared, lane.timers) == ([], {}, [])
    assert listen(lane, batch) is not box
    assert lane.open == [b"2"]


def test_a_batch_that_begins_while_the_subscription_ends(lane):
    """The subscription stays, or the batch takes another one."""
    box = listen(lane, Batch("1"))
    lane.tick()
    late = Batch("2")

    class Shared(dict):
        def pop(self, key, default):
            # The loop thread has decided to unsubscribe. Now another thread adds its batch.
            box.attempts["2"] = late
            return super().pop(key, default)

    lane.shared = Shared(lane.shared)
    lane.tick()
    assert (lane.open, lane.shared) == ([b"1"], {INTEREST: box})

    class Ends(dict):
        def get(self, key):
            # The loop thread removes the subscription after `listen` has found it.
            return super().get(key) if lane.sids > 1 else self.pop(key, None)

    lane.shared = Ends(lane.shared)
    assert listen(lane, late) is not box
    assert lane.open == [b"1", b"2"]
    assert "2" not in box.attempts


def test_a_denied_subscription_is_not_asked_for_again(lane):
    """If the server denies the subscription, no batch on that connection asks for it again."""
    box = listen(lane, Batch("1"))
    box.fail(PermissionDeniedError("subscribe", "x"))
    assert (box.line, lane.open) == (b"", [])
    lane.tick()
    assert lane.timers == []
    assert listen(lane, Batch("2")) is box
    lane.outbox.epoch = 2
    assert listen(lane, Batch("3")) is not box
    assert lane.open == [b"2"]


def test_after_another_error_the_next_batch_subscribes_again(lane):
    """After another error, the next batch subscribes again."""
    box = listen(lane, Batch("1"))
    box.fail(ConnectionClosedError("closed"))
    assert (lane.open, lane.shared) == ([], {})
    assert listen(lane, Batch("2")) is not box
