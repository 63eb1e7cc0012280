from __future__ import annotations

import threading

from hypothesis import given
from hypothesis import strategies as st

from jetsync._io.mailbox import Mailbox, ReplyRouter, Signal, Waiter
from jetsync.errors import ConnectionClosedError, DisconnectedError, PermissionDeniedError

DENIED = PermissionDeniedError("x", "publish")
SID = b"1000000"


def frame(subject=b"s", data=b""):
    """A frame."""
    return (subject, b"", None, data)


class TestSignal:
    def test_remembered_once(self):
        """A raise while no thread waits ends the next wait, and only that one."""
        signal = Signal()
        assert signal.wait(0) is False
        signal.set()
        signal.set()
        assert signal.wait(0) is True
        assert signal.wait(0) is False

    def test_wakes(self):
        """A raise wakes the thread that waits."""
        signal, result = Signal(), []
        thread = threading.Thread(target=lambda: result.append(signal.wait(10.0)))
        thread.start()
        signal.set()
        thread.join(10.0)
        assert result == [True]

    def test_negative(self):
        """A deadline that has passed ends the wait at once."""
        assert Signal().wait(-1.0) is False


class TestMailbox:
    def test_queue(self):
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

    def test_lost(self):
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

    def test_fail(self):
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

    def test_two_threads(self):
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


class TestReplyRouter:
    def test_each_to_its_own(self):
        """A reply goes to the waiter with its token, in any order."""
        router = ReplyRouter(b"_INBOX.x")
        assert router.interest == b"_INBOX.x.*"
        waiters = [Waiter(b"a") for _ in range(20)]
        replies = [router.register(waiter) for waiter in waiters]
        assert len(set(replies)) == 20
        assert all(reply.startswith(b"_INBOX.x.") and b"." not in reply[9:] for reply in replies)
        assert router.pending() == 20
        for reply in reversed(replies):
            router.push(frame(reply, reply))
        assert not waiters[0].ready
        router.wake()
        assert [waiter.reply[3] for waiter in waiters] == replies
        assert all(waiter.ready and waiter.signal.wait(0) for waiter in waiters)
        assert router.pending() == 0

    def test_forgotten(self):
        """A reply is dropped if its caller has left, or if it is the second one."""
        router = ReplyRouter(b"i")
        first, second = Waiter(b"a"), Waiter(b"a")
        gone, there = router.register(first), router.register(second)
        router.forget(gone)
        router.forget(gone)
        for reply in (gone, there, there, b"i.unknown"):
            router.push(frame(reply, b"1" if second.reply is None else b"2"))
        router.wake()
        router.push(frame(there, b"late"))
        router.wake()
        assert first.reply is None
        assert second.reply[3] == b"1"

    @given(
        st.lists(
            st.tuples(st.sampled_from(["ask", "answer", "leave", "wake"]), st.integers(0, 4)),
            min_size=10,
            max_size=30,
        )
    )
    def test_any_order(self, steps):
        """No caller gets the reply of another one, whoever leaves or is answered twice."""
        router, asked, left = ReplyRouter(b"i"), [], set()
        answered = []
        for step, number in steps:
            if step == "ask":
                waiter = Waiter(b"a")
                asked.append((waiter, router.register(waiter)))
            elif step == "wake":
                router.wake()
            elif number < len(asked):
                waiter, reply = asked[number]
                if step == "answer":
                    router.push(frame(reply, reply))
                    answered.append(reply)
                else:
                    # What has arrived before is delivered or not.
                    router.wake()
                    router.forget(reply)
                    left |= {reply} - set(answered)
        router.wake()
        for waiter, reply in asked:
            expected = reply if reply in answered and reply not in left else None
            assert (waiter.reply and waiter.reply[3]) == expected
        assert router.pending() == len(asked) - len(left | set(answered))

    def test_lost(self):
        """A loss ends requests that were written on that connection. Unwritten ones continue."""
        router = ReplyRouter(b"i")
        old, new, unsent, answered = (Waiter(b"a") for _ in range(4))
        replies = [router.register(one) for one in (old, new, unsent, answered)]
        old.epoch, new.epoch, answered.epoch = 1, 2, 1
        router.push(frame(replies[3]))
        router.wake()
        router.lost(1)
        assert [one.is_lost for one in (old, new, unsent, answered)] == [True, False, False, False]
        assert [one.ready for one in (old, new, unsent, answered)] == [True, False, False, True]

    def test_fail(self):
        """A failure ends all present and later requests."""
        router = ReplyRouter(b"i")
        waiter, late = Waiter(b"a"), Waiter(b"a")
        router.register(waiter)
        error = ConnectionClosedError()
        router.fail(error)
        router.register(late)
        assert waiter.failure is late.failure is error
        assert waiter.ready
        assert late.ready

    def test_refuse(self):
        """A refusal ends the requests that are found on its subject, and is not found again."""
        router = ReplyRouter(b"i")
        refused, other = Waiter(b"x"), Waiter(b"y")
        router.register(refused)
        router.register(other)
        router.refuse(router.in_flight(b"x"), DENIED)
        assert (refused.failure, other.failure) == (DENIED, None)
        assert router.in_flight(b"x") == []

    def test_many_threads(self):
        """Threads that register and leave at the same time do not disturb each other."""
        router = ReplyRouter(b"i")

        def use():
            for _ in range(2000):
                waiter = Waiter(b"a")
                reply = router.register(waiter)
                assert router._waiters[reply] is waiter
                router.forget(reply)

        threads = [threading.Thread(target=use) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert router.pending() == 0
        assert router.register(Waiter(b"a")) == b"i.%x" % 8001
