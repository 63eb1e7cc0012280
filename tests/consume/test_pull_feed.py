from __future__ import annotations

import types
import weakref

import pytest

from jetsync._proto.fetch import FetchEngine
from jetsync._proto.ordered import OrderedCursor
from jetsync._proto.origin import Origin
from jetsync._proto.pull_request import NO_PRIORITIES, PullRequest
from jetsync.consume.feed import SIFTED_FRAMES
from jetsync.consume.pull_feed import ConsumerKeeper, PullFeed, take_feed
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
        self.urgent_ends = []

    def new_sid(self):
        return b"7"

    def listen(self, sid, box, queue, owner):
        return b"SUB %b  %b\r\n" % (box.interest, sid)

    def unsubscribe(self, sid, *, grace, is_urgent):
        self.urgent_ends.append(is_urgent)

    def post_nowait(self, block, *, keep):
        self.posted.append(block)

    def write(self, block, deadline):
        self.written.append(block)
        return self.epoch


@pytest.fixture
def context():
    """A context with an inbox and a lane that are stubs."""
    connection = types.SimpleNamespace(new_inbox=lambda: "_INBOX.a")
    plugins = types.SimpleNamespace(enter_fetch=None)
    return types.SimpleNamespace(connection=connection, lane=StubLane(), plugins=plugins)


class StubTarget(types.SimpleNamespace):
    """A consumer without idle feeds."""

    stream, consumer, subject = "S", "c", b"next"
    wants_acks = True


@pytest.fixture
def target(context):
    """A consumer without idle feeds."""
    return StubTarget(context=context, pool=[], origin=Origin("S", "c"))


def begun(target, request):
    """A feed that serves a fetch of *request*."""
    feed = take_feed(target)
    options = {"now": 0.0, "wait": 1.0, "subject": target.subject}
    feed.begin(target, FetchEngine(feed.pulls, request, {}, **options))
    return feed


def test_one_write_for_each_pull(context, target):
    """The first pull also sends the subscription. Later pulls are one line and a request."""
    request = PullRequest(max_messages=1, expires=1.0)
    feed = begun(target, request)
    for _ in range(2):
        assert feed.pull(request)
    first, second = context.lane.written
    assert first.startswith(b"SUB _INBOX.a.*  7\r\nPUB next _INBOX.a.1 ")
    assert second.startswith(b"PUB next _INBOX.a.2 ")


def test_an_earlier_refusal_is_forgotten(target):
    """
    A refusal that arrives while the feed is idle does not end the next fetch that uses it.
    """
    feed = PullFeed(target)
    feed.box.denied("publish", b"next", PermissionDeniedError("next", "publish"))
    target.pool.append(feed)
    assert take_feed(target) is feed
    assert not feed.box.take_denials()


def test_an_idle_feed_does_not_keep_its_consumer(target):
    """A feed in the pool refers to no consumer, so that a dropped consumer is freed at once."""
    feed = begun(target, PullRequest(max_messages=1, expires=1.0))
    feed.engine.drain()
    for _ in range(2):
        # An interrupt may follow the first one.
        feed.end(closing=True)
    feed.return_to_pool()
    assert target.pool == [feed]
    assert target not in vars(feed).values()
    assert not [each for each in vars(feed).values() if isinstance(each, FetchEngine)]


@pytest.mark.parametrize("wants_acks", [True, False])
def test_a_feed_that_has_given_up_a_pull_is_not_used_again(target, wants_acks):
    """A feed that gave up a pull does not go to the pool, also if its end is repeated."""
    request = PullRequest(max_messages=1, expires=1.0)
    target.wants_acks = wants_acks
    for repeats in range(1, 4):
        feed = begun(target, request)
        assert feed.pull(request)
        feed.engine.drain()
        for _ in range(repeats):
            # An interrupt may follow each of them but the last.
            feed.end(closing=True)
        feed.return_to_pool()
        assert target.pool == []


@pytest.mark.parametrize("is_ordered", [True, False])
def test_no_message_goes_to_a_pull_that_was_given_up(context, target, is_ordered):
    """Without acks, the server would not redeliver it. An ordered read would find it missing."""
    request = PullRequest(max_messages=1, expires=1.0)
    target.wants_acks = False
    feed = begun(target, request)
    if is_ordered:
        feed.engine.order = OrderedCursor({}, "c")
    assert feed.pull(request)
    feed.engine.drain()
    feed.end(closing=True)
    assert context.lane.urgent_ends == [not is_ordered]


def test_the_last_one_may_be_gone(target):
    """A thread that loses the race for the last pooled feed gets a new one."""

    class Emptied(list):
        def __bool__(self):
            return True

    target.pool = Emptied()
    assert isinstance(take_feed(target), PullFeed)
    idle = PullFeed(target)
    target.pool.append(idle)
    assert take_feed(target) is idle


def test_a_message_that_arrives_while_the_feed_is_abandoned_is_given_back(context, target):
    """A thread that was about to deliver a message when the feed was abandoned gives it back."""
    request = PullRequest(max_messages=1, expires=1.0)
    feed = begun(target, request)
    push = feed.box.push
    assert feed.pull(request)
    feed.end(closing=True)
    push((b"_INBOX.a.1", b"$JS.ACK.S.c.1.1.1.0.0", None, b"late"))
    feed.box.wake()
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
    def test_a_flood_does_not_fill_a_mailbox(self, context, target, size, most, pulling):
        """A mailbox that no thread reads keeps what was asked for, and little of a flood."""
        request = PullRequest(max_messages=1, expires=1.0)
        feed = begun(target, request)
        if pulling:
            feed.pull(request)
        foreign = (b"_INBOX.a.1", b"", None, bytes(size))
        wanted = (b"s", b"$JS.ACK.S.c.1.1.1.0.0", None, b"wanted")
        count = 2 * most
        for number in range(count):
            feed.box.push(wanted if number == 5 else foreign)
            context.lane.bytes_in += size
            feed.box.wake()
            assert len(feed.box.frames) <= most + 2
        assert (wanted in feed.box.frames) is pulling
        dropped = sum(feed.pulls.sifted.report().values())
        assert dropped + len(feed.box.frames) == count

    def test_messages_that_were_asked_for_are_kept(self, context, target):
        """A mailbox is not sifted for each read of the socket while a large pull is served."""
        count = 4 * SIFTED_FRAMES
        request = PullRequest(max_messages=count, expires=1.0)
        feed, sifted = begun(target, request), []
        feed.pull(request)
        feed.box._choose = lambda frames: (sifted.append(1), feed.pulls.sift(frames))[1]
        for number in range(count):
            feed.box.push((b"s", b"$JS.ACK.S.c.1.1.1.0.0", None, b"%d" % number))
            feed.box.wake()
        assert [frame[3] for frame in feed.box.frames] == [b"%d" % n for n in range(count)]
        assert len(sifted) <= 2
