from __future__ import annotations

import threading

from jetsync._io.mailbox import Mailbox
from jetsync.errors import ConnectionClosedError, DisconnectedError, PermissionDeniedError

DENIED = PermissionDeniedError("x", "publish")


def frame(subject=b"s", data=b""):
    """A frame."""
    return (subject, b"", None, data)


class TestMailbox:
    def test_draining_returns_all_frames_in_order(self):
        """Draining returns all frames in the order of arrival."""
        box = Mailbox(b"a.*")
        assert box.drain() == []
        assert not box.ready
        box.push(frame(data=b"1"))
        box.push(frame(data=b"2"))
        assert box.ready
        assert repr(box) == "<Mailbox a.* frames=2>"
        assert box.drain() == [frame(data=b"1"), frame(data=b"2")]
        assert not box.ready

    def test_a_loss_ends_one_wait_and_keeps_the_frames(self):
        """A loss ends a wait once; frames that arrived before it are still there."""
        box = Mailbox()
        box.push(frame())
        box.lost(1)
        assert box.signal.wait(0)
        assert (box.take_lost(), box.take_lost()) == (1, 0)
        assert box.drain() == [frame()]
        assert not box.ready
        box.lost(1)
        assert not box.ready
        box.lost(3)
        assert box.ready
        assert box.take_lost() == 3

    def test_into_another_mailbox(self):
        """A frame for a mailbox that fills another one is put there, and wakes its owner."""
        box = Mailbox()
        answers = Mailbox(into=box)
        answers.push(frame())
        answers.wake()
        assert box.signal.wait(0)
        assert box.drain() == [frame()]

    def test_sink(self):
        """A sink gets the frames instead of the queue."""
        taken = []
        box = Mailbox(sink=taken.append)
        box.push(frame())
        assert (taken, box.ready) == ([frame()], False)

    def test_the_first_failure_of_a_mailbox_ends_every_later_wait(self):
        """The first failure is kept, and ends every later wait."""
        box = Mailbox()
        first = ConnectionClosedError()
        box.fail(first)
        assert box.signal.wait(0)
        box.fail(DisconnectedError())
        assert box.failure is first
        assert box.ready
        box.drain()
        assert box.ready

    def test_refused_subscription(self):
        """A subscription that the server refuses ends its own mailbox, and no other."""
        box = Mailbox(b"a.*")
        box.denied("subscribe", b"b.*", DENIED)
        assert box.failure is None
        box.denied("subscribe", b"a.*", DENIED)
        assert box.failure is DENIED

    def test_refused_publish(self):
        """Mailboxes that registered for refused publishes get them once; no other is woken."""
        box = Mailbox(b"a", collect_denials=True)
        box.denied("publish", b"a", DENIED)
        assert (box.failure, box.ready) == (None, True)
        assert box.signal.wait(0)
        assert box.take_denials() == [(b"a", DENIED)]
        assert box.take_denials() == []
        assert not box.ready
        deaf = Mailbox(b"a")
        deaf.denied("publish", b"a", DENIED)
        assert not deaf.ready
        assert not deaf.signal.wait(0)

    def test_denied_messages(self):
        """An owner whose messages can be found learns their numbers, not the subject."""
        box = Mailbox(b"a.*", collect_denials=True)
        box.find_messages = lambda subject: [3] if subject == b"a" else []
        box.denied("publish", b"a", DENIED)
        box.refuse(box.in_flight(b"a"), DENIED)
        assert box.take_denials() == [([3], DENIED)]

    def test_a_mailbox_loses_and_doubles_nothing_between_threads(self):
        """Nothing is lost or taken twice while one thread pushes and another drains."""
        box, taken = Mailbox(), []

        def push():
            for number in range(20_000):
                box.push(frame(data=b"%d" % number))

        thread = threading.Thread(target=push)
        thread.start()
        while thread.is_alive():
            taken += box.drain()
        thread.join()
        taken += box.drain()
        assert [int(one[3]) for one in taken] == list(range(20_000))
