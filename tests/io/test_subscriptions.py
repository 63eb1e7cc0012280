"""
The ids of subscriptions, and those that are refused or end on another thread.
"""

from __future__ import annotations

import pytest

from jetsync._io.lane import Lane
from jetsync._io.listener import Listener
from jetsync._io.mailbox import Mailbox
from jetsync._io.replies import ReplyRouter
from jetsync._io.subscriptions import SID_RANGE


class TestRefused:
    def test_the_subscription_with_most_before_it(self, idle):
        """The server refused the subscription that had the most others before it."""
        lane, boxes = idle.lane, [Mailbox(b"%d" % n) for n in range(3)]
        sids = [lane.subscriptions.new_sid() for _ in boxes]
        for sid, box in zip(sids, boxes, strict=True):
            lane.subscriptions.listen(sid, box)
        assert lane.subscriptions.take_refused() is boxes[2]
        lane.subscriptions.unsubscribe(sids[0])
        assert lane.subscriptions.take_refused() is boxes[1]
        assert lane.subscriptions.take_refused() is None

    def test_never_the_one_to_replies(self, idle):
        """The reply subscription is never taken for the refused one."""
        router = ReplyRouter(b"inbox")
        idle.lane.subscriptions.listen(idle.lane.subscriptions.new_sid(), router)
        assert idle.lane.subscriptions.take_refused() is None
        assert router in idle.lane.subscriptions.receivers()


class TestThreads:
    def test_a_weak_reference_may_outlive_an_unsubscribe(self, rig):
        """Frames in flight arrive after an unsubscribe, though its listener is dropped as well."""
        listener = Listener(rig.lane, Mailbox(b"a"))
        # Another thread may hold it for longer.
        reference = rig.lane.subscriptions._owners[listener.sid]
        sid = listener.sid
        listener.end(grace=60.0)
        del listener
        assert reference() is None
        assert sid in rig.lane.subscriptions.boxes


class TestUnsubscribe:
    @pytest.mark.parametrize(("grace", "is_urgent"), [(0.0, False), (0.0, True), (60.0, False)])
    def test_wakes_the_loop_only_if_messages_matter(self, rig, grace, is_urgent):
        """The server has to stop only those messages at once that are awaited or would be lost."""
        rig.stall()
        Listener(rig.lane, Mailbox(b"a")).end(grace=grace, is_urgent=is_urgent)
        assert rig.lane.outbox.flush_soon.due is bool(grace or is_urgent)


class TestIds:
    def test_cannot_be_guessed(self, rig):
        """Each lane starts its subscription ids at a random number."""
        first = {int(Lane(rig.loop, print).subscriptions.new_sid()) for _ in range(20)}
        assert len(first) == 20
        assert min(first) >= SID_RANGE
