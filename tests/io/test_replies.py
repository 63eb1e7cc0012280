from __future__ import annotations

import threading

from hypothesis import given
from hypothesis import strategies as st

from jetsync._io.replies import ReplyRouter, Waiter
from jetsync.errors import ConnectionClosedError, PermissionDeniedError

DENIED = PermissionDeniedError("x", "publish")


def frame(subject=b"s", data=b""):
    """A frame."""
    return (subject, b"", None, data)


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

    def test_a_late_or_second_reply_is_dropped(self):
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

    def test_a_loss_ends_only_requests_that_were_written(self):
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

    def test_a_failure_ends_all_present_and_later_requests(self):
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

    def test_a_refusal_ends_the_requests_on_its_subject(self):
        """A refusal ends the requests that are found on its subject, and is not found again."""
        router = ReplyRouter(b"i")
        refused, other = Waiter(b"x"), Waiter(b"y")
        router.register(refused)
        router.register(other)
        router.refuse(router.in_flight(b"x"), DENIED)
        assert (refused.failure, other.failure) == (DENIED, None)
        assert router.in_flight(b"x") == []

    def test_threads_that_register_and_leave_do_not_disturb(self):
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
