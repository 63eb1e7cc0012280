from __future__ import annotations

import types

import pytest

from jetsync._base.deadline import Deadline
from jetsync._proto.pull import PullRequest
from jetsync.consume.inbox import PullInbox, take_inbox
from jetsync.errors import PermissionDeniedError


class StubLane:
    """A lane that takes every block."""

    epoch = 1
    lost_epoch = 0

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


def test_one_write_for_each_pull(context):
    """The first pull also sends the subscription. Later pulls are one line and a request."""
    inbox = PullInbox(context)
    request = PullRequest(max_messages=1, expires=1.0)
    for _ in range(2):
        inbox.pull(b"next", request, Deadline.after(1))
    first, second = context.lane.written
    assert first.startswith(b"SUB _INBOX.a.*  7\r\nPUB next _INBOX.a.1 ")
    assert second.startswith(b"PUB next _INBOX.a.2 ")


def test_an_earlier_refusal_is_forgotten(context):
    """
    A refusal that arrives while the inbox is idle does not end the next fetch that uses it.
    """
    inbox = PullInbox(context)
    inbox.box.denied("publish", b"next", PermissionDeniedError("next", "publish"))
    assert take_inbox([inbox], context) is inbox
    assert not inbox.box.take_denials()


def test_the_last_one_may_be_gone(context):
    """A thread that loses the race for the last pooled inbox gets a new one."""

    class Emptied(list):
        def __bool__(self):
            return True

    assert isinstance(take_inbox(Emptied(), context), PullInbox)
    idle = PullInbox(context)
    assert take_inbox([idle], context) is idle


def test_a_message_that_arrives_while_the_inbox_is_abandoned_is_given_back(context):
    """A thread that was about to deliver a message when the inbox was abandoned gives it back."""
    inbox = PullInbox(context)
    push = inbox.box.push
    inbox.abandon(())
    push((b"_INBOX.a.1", b"$JS.ACK.S.c.1.1.1.0.0", None, b"late"))
    inbox.box.wake()
    assert context.lane.posted == [b"PUB $JS.ACK.S.c.1.1.1.0.0  4\r\n-NAK\r\n"]
