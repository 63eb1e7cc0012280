from __future__ import annotations

import types
import weakref

import pytest

from jetsync._base.deadline import Deadline
from jetsync._proto.pull import NO_PRIORITIES, PullRequest
from jetsync.consume.inbox import SIFTED_FRAMES, ConsumerKeeper, PullInbox, take_inbox
from jetsync.errors import PermissionDeniedError


class StubLane:
    """A lane that takes every block."""

    epoch = 1
    lost_epoch = 0
    bytes_in = 0

    def __init__(self):
        self.subscriptions = self
        self.written = []
        self.posted = []

    def new_sid(self):
        return b"7"

    def end_with(self, listener):
        pass

    def listen(self, sid, box, queue):
        return b"SUB %b  %b\r\n" % (box.interest, sid)

    def unsubscribe(self, sid, *, grace):
        pass

    def post_nowait(self, block, *, keep):
        self.posted.append(block)

    def write(self, block, deadline):
        self.written.append(block)
        return self.epoch


@pytest.fixture
def context():
    """A context with an inbox and a lane that are stubs."""
    connection = types.SimpleNamespace(new_inbox=lambda: "_INBOX.a", pull_boxes=set())
    return types.SimpleNamespace(connection=connection, lane=StubLane())


@pytest.fixture
def target(context):
    """A consumer without idle inboxes."""
    return types.SimpleNamespace(context=context, stream="S", consumer="c", pool=[])


def test_one_write_for_each_pull(context, target):
    """The first pull also sends the subscription. Later pulls are one line and a request."""
    inbox = PullInbox(target)
    request = PullRequest(max_messages=1, expires=1.0)
    for _ in range(2):
        inbox.pull(b"next", request, Deadline.after(1))
    first, second = context.lane.written
    assert first.startswith(b"SUB _INBOX.a.*  7\r\nPUB next _INBOX.a.1 ")
    assert second.startswith(b"PUB next _INBOX.a.2 ")


def test_an_earlier_refusal_is_forgotten(target):
    """
    A refusal that arrives while the inbox is idle does not end the next fetch that uses it.
    """
    inbox = PullInbox(target)
    inbox.box.denied("publish", b"next", PermissionDeniedError("next", "publish"))
    target.pool.append(inbox)
    assert take_inbox(target) is inbox
    assert not inbox.box.take_denials()


def test_the_last_one_may_be_gone(target):
    """A thread that loses the race for the last pooled inbox gets a new one."""

    class Emptied(list):
        def __bool__(self):
            return True

    target.pool = Emptied()
    assert isinstance(take_inbox(target), PullInbox)
    idle = PullInbox(target)
    target.pool.append(idle)
    assert take_inbox(target) is idle


def test_a_message_that_arrives_while_the_inbox_is_abandoned_is_given_back(context, target):
    """A thread that was about to deliver a message when the inbox was abandoned gives it back."""
    inbox = PullInbox(target)
    push = inbox.box.push
    inbox.abandon(())
    push((b"_INBOX.a.1", b"$JS.ACK.S.c.1.1.1.0.0", None, b"late"))
    inbox.box.wake()
    assert context.lane.posted == [b"PUB $JS.ACK.S.c.1.1.1.0.0  4\r\n-NAK\r\n"]


def test_a_timer_does_not_keep_a_dropped_consumption(target):
    """The timer that keeps a consumer on the server ends when nothing refers to its owner."""
    timers, sent = [], []
    target.subject = b"next"
    target.lane = types.SimpleNamespace(
        later=lambda *timer: timers.append(timer), post_nowait=sent.append
    )
    keeper = ConsumerKeeper(target, NO_PRIORITIES, 3.0)
    for count in (1, 2):
        seconds, tick, *arguments = timers[-1]
        tick(*arguments)
        assert (seconds, len(sent), len(timers)) == (1.0, count, count + 1)
    reference = weakref.ref(keeper)
    del keeper
    assert reference() is None
    _, tick, *arguments = timers[-1]
    tick(*arguments)
    assert (len(sent), len(timers)) == (2, 3)


class TestFlood:
    @pytest.mark.parametrize(("size", "most"), [(10, SIFTED_FRAMES), (1 << 20, 16)])
    @pytest.mark.parametrize("pulling", [True, False])
    def test_a_flood_does_not_fill_an_inbox(self, context, target, size, most, pulling):
        """An inbox that no thread reads keeps what was asked for, and little of a flood."""
        inbox = PullInbox(target)
        if pulling:
            inbox.pull(b"next", PullRequest(max_messages=1, expires=1.0), Deadline.after(1))
        foreign = (b"_INBOX.a.1", b"", None, bytes(size))
        wanted = (b"s", b"$JS.ACK.S.c.1.1.1.0.0", None, b"wanted")
        count = 2 * most
        for number in range(count):
            inbox.box.push(wanted if number == 5 else foreign)
            context.lane.bytes_in += size
            inbox.box.wake()
            assert len(inbox.box.frames) <= most + 2
        assert (wanted in inbox.box.frames) is pulling
        dropped = sum(inbox.engine.sifted.report().values())
        assert dropped + len(inbox.box.frames) == count

    def test_messages_that_were_asked_for_are_kept(self, context, target):
        """An inbox is not sifted for each read of the socket while a large pull is served."""
        inbox, sifted = PullInbox(target), []
        count = 4 * SIFTED_FRAMES
        inbox.pull(b"next", PullRequest(max_messages=count, expires=1.0), Deadline.after(1))
        inbox.box._choose = lambda frames: (sifted.append(1), inbox.engine.sift(frames))[1]
        for number in range(count):
            inbox.box.push((b"s", b"$JS.ACK.S.c.1.1.1.0.0", None, b"%d" % number))
            inbox.box.wake()
        assert [frame[3] for frame in inbox.box.frames] == [b"%d" % n for n in range(count)]
        assert len(sifted) <= 2
