from __future__ import annotations

import itertools
import threading

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jetsync._io.mailbox import Mailbox, ReplyRouter, Signal, Waiter
from jetsync._proto.frames import Splitter
from jetsync._proto.pipeline import Pipeline
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


PLAIN = b'{"stream":"S","seq":'


def ack_line(token, payload, sid=SID, subject=b"_INBOX.w."):
    """Return an answer as a server writes it."""
    return b"MSG %b%b %b %d\r\n%b\r\n" % (subject, token, sid, len(payload), payload)


def plain_line(token, sequence):
    """Return a plain ack as a server writes it."""
    return ack_line(b"%d" % token, PLAIN + b"%d}" % sequence)


@pytest.fixture
def acks():
    """A mailbox of acks that has learned how plain ones start."""
    box = Mailbox(b"_INBOX.w.*", collect_denials=True)
    box.read_runs(SID, PLAIN)
    return box


class TestRuns:
    def test_run(self, acks):
        """All plain acks but the last are taken at once, as number and sequence."""
        splitter = Splitter({SID: acks})
        touched = []
        splitter.feed(plain_line(1, 11) + plain_line(2, 12) + plain_line(3, 13), touched, [])
        assert touched == [acks]
        assert acks.ready
        assert acks.drain_acks() == [
            [(b"1", b"11"), (b"2", b"12")],
            (b"_INBOX.w.3", b"", None, PLAIN + b"13}"),
        ]
        assert not acks.ready

    def test_before_it_has_learned(self):
        """Until it has seen an ack, the mailbox returns each one as a frame."""
        box = Mailbox(b"_INBOX.w.*", collect_denials=True)
        assert box.express is None
        Splitter({SID: box}).feed(plain_line(1, 1) * 3, [], [])
        assert all(isinstance(one, tuple) for one in box.drain_acks())

    def test_denials(self, acks):
        """The owner of acks learns which publishes were refused."""
        acks.denied("publish", b"a", DENIED)
        assert acks.take_denials() == [(b"a", DENIED)]

    def test_denied_messages(self, acks):
        """An owner whose messages can be found learns their numbers, not the subject."""
        acks.find_messages = lambda subject: [3] if subject == b"a" else []
        acks.denied("publish", b"a", DENIED)
        acks.refuse(acks.in_flight(b"a"), DENIED)
        assert acks.take_denials() == [([3], DENIED)]

    @pytest.mark.parametrize(
        "other",
        [
            b"PING\r\n",
            b"-ERR 'x'\r\n",
            ack_line(b"9", b'{"stream":"S","seq":9,"duplicate": true}'),
            ack_line(b"9", b'{"error":{"code":400}}'),
            ack_line(b"9", b""),
            ack_line(b"9", PLAIN + b"9}", sid=b"1000001"),
            ack_line(b"9", PLAIN + b"9}", subject=b"_INBOX.v."),
            ack_line(b"x", PLAIN + b"9}"),
            ack_line(b"9", b"hello\r\n" + plain_line(77, 77)),
            b"HMSG _INBOX.w.9 1000000 16 16\r\nNATS/1.0 503\r\n\r\n\r\n",
            b"MSG _INBOX.w.9 1000000 r 22\r\n" + PLAIN + b"9}\r\n",
        ],
    )
    def test_anything_else(self, acks, other):
        """If another frame stands between acks, no ack is lost or taken twice."""
        splitter = Splitter({SID: acks, b"1000001": Mailbox()})
        splitter.feed(plain_line(1, 1) + other + plain_line(2, 2) + plain_line(3, 3), [], [])
        assert not any(isinstance(one, list) for one in acks.frames)
        ours = [b"_INBOX.w.1", b"_INBOX.w.2", b"_INBOX.w.3"]
        assert [one[0] for one in acks.drain() if one[0] in {*ours, b"_INBOX.w.77"}] == ours

    @pytest.mark.parametrize("size", [0, 1, 21, 23, 220, 10**9])
    @pytest.mark.parametrize("place", [0, 1, 2])
    def test_wrong_sizes(self, acks, size, place):
        """An ack whose size is not the one that its line declares ends the connection."""
        lines = [plain_line(number, 5) for number in (1, 2, 3, 4)]
        lines[place] = lines[place].replace(b" 22\r\n", b" %d\r\n" % size)
        splitter = Splitter({SID: acks})
        with pytest.raises(ValueError, match=r"frame|line"):
            # A frame that is said to be larger would end in what follows.
            splitter.feed(b"".join(lines) + b"x" * 400, [], [])
        assert not any(isinstance(one, list) for one in acks.drain_acks())

    def test_longer_sequences(self, acks):
        """Acks are read in runs again after the sequences have got one more digit."""
        splitter = Splitter({SID: acks})
        for first in (7, 97, 997, 10**18 - 3, 10**18 + 3):
            numbers = range(first, first + 6)
            splitter.feed(b"".join(plain_line(number, number) for number in numbers), [], [])
            taken = acks.drain_acks()
            ends = [
                one if isinstance(one, list) else [(one[0][9:], one[3][20:-1])] for one in taken
            ]
            found = [int(sequence) for end in ends for _, sequence in end]
            assert found == [*numbers]
        assert isinstance(taken[0], list)

    @given(
        st.lists(
            st.one_of(
                st.tuples(st.just("plain"), st.integers(0, 30)),
                st.tuples(st.just("plain"), st.integers(0, 30)),
                st.tuples(st.just("duplicate"), st.integers(0, 30)),
                st.tuples(st.just("error"), st.integers(0, 30)),
                st.tuples(st.just("503"), st.integers(0, 30)),
                st.tuples(st.just("ping"), st.just(0)),
                st.tuples(st.just("other"), st.just(0)),
            ),
            max_size=30,
        ),
        st.lists(st.integers(0, 3000), max_size=5),
    )
    @settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    def test_same_books(self, answers, places):
        """Acks settle the same messages with the same sequences, read in runs or one by one."""
        pieces = []
        for sequence, (kind, number) in enumerate(answers, 1):
            token = b"%d" % number
            pieces.append(
                {
                    "plain": plain_line(number, sequence),
                    "duplicate": ack_line(token, PLAIN + b'%d,"duplicate": true}' % sequence),
                    "error": ack_line(token, b'{"error":{"code":400,"err_code":10071}}'),
                    "503": b"HMSG _INBOX.w.%b %b 16 16\r\nNATS/1.0 503\r\n\r\n\r\n" % (token, SID),
                    "ping": b"PING\r\n",
                    "other": ack_line(b"0", PLAIN + b"5}", sid=b"1000007", subject=b"o."),
                }[kind]
            )
        data = b"".join(pieces)
        cuts = [0, *sorted(place for place in places if place < len(data)), len(data)]
        books = []
        for in_runs in (True, False):
            box = Mailbox(b"_INBOX.w.*", collect_denials=True)
            if in_runs:
                box.read_runs(SID, PLAIN)
            other = Mailbox()
            splitter = Splitter({SID: box, b"1000007": other})
            pipeline = Pipeline(b"_INBOX.w.")
            pipeline.flying.update((number, f"m{number}") for number in range(31))
            foreign = []
            for start, end in itertools.pairwise(cuts):
                splitter.feed(data[start:end], [], foreign)
                pipeline.settle(box.drain_acks())
            failed = [(number, type(error)) for number, _, error in pipeline.failed]
            ends = (sorted(pipeline.flying), sorted(failed, key=str), sorted(pipeline.refused))
            books.append((ends, foreign, len(other.frames), pipeline.tally.count))
        assert books[0] == books[1]


def stored_line(page, block, payload, reply=b"", sid=SID):
    """Return a message with headers as a server writes it."""
    sizes = b"%d %d" % (len(block), len(block) + len(payload))
    arguments = b" ".join(filter(None, [b"_INBOX.p.%x" % page, sid, reply, sizes]))
    return b"HMSG %b\r\n%b%b\r\n" % (arguments, block, payload)


BLOCK = b"NATS/1.0\r\nA: b\r\n\r\n"


def page_box():
    """Return a mailbox that splits pages."""
    box = Mailbox(b"_INBOX.p.*")
    box.read_pages(SID)
    return box


def all_frames(box):
    """Take all frames, of runs and between them."""
    return list(itertools.chain.from_iterable(box.drain_pages()))


class TestPages:
    def test_page(self):
        """All whole frames are taken, and the rest when it has arrived."""
        box, touched = page_box(), []
        splitter = Splitter({SID: box})
        data = stored_line(10, BLOCK, b"1") + stored_line(10, BLOCK, b"2")
        end = stored_line(10, b"NATS/1.0 204 EOB\r\n\r\n", b"")
        splitter.feed(data + end[:-1], touched, [])
        assert touched == [box]
        first = [(b"_INBOX.p.a", b"", BLOCK, b"1"), (b"_INBOX.p.a", b"", BLOCK, b"2")]
        assert all_frames(box) == first
        splitter.feed(end[-1:], touched, [])
        assert all_frames(box) == [(b"_INBOX.p.a", b"", b"NATS/1.0 204 EOB\r\n\r\n", b"")]

    @pytest.mark.parametrize("missing", [1, 2])
    def test_cut_line(self, missing):
        """A line that is not complete is kept, whatever the payload before it contains."""
        # With line ends only, every position that a cut size points to ends a line.
        first = stored_line(10, BLOCK, b"\r\n" * 1000)
        for padding in (b"", b"x"):
            data = stored_line(10, BLOCK, padding) + first + first
            box = page_box()
            splitter = Splitter({SID: box})
            size = len(data) - len(first) + first.index(b"\r\n") + 2 - missing
            splitter.feed(data[:size], [], [])
            splitter.feed(data[size:], [], [])
            payloads = [frame[3] for frame in all_frames(box)]
            assert payloads == [padding, b"\r\n" * 1000, b"\r\n" * 1000]

    @pytest.mark.parametrize(
        "sizes", [b"9 8", b"-1 8", b"x 8", b"8 +8", b"8 1_0", b"9999999999 9999999999"]
    )
    def test_hostile_sizes(self, sizes):
        """Sizes that no server sends end the connection, also between other frames."""
        line = b"HMSG _INBOX.p.a %b %b\r\n" % (SID, sizes)
        with pytest.raises(ValueError, match=r"HMSG|bytes"):
            Splitter({SID: page_box()}).feed(stored_line(10, BLOCK, b"") + line, [], [])

    @pytest.mark.parametrize("place", [0, 1])
    def test_no_line_end(self, place):
        """A message has to end where its line says."""
        lines = [stored_line(10, BLOCK, b"1"), stored_line(10, BLOCK, b"2")]
        lines[place] = lines[place][:-2] + b"xx"
        with pytest.raises(ValueError, match="line end"):
            Splitter({SID: page_box()}).feed(b"".join(lines), [], [])

    @given(
        st.lists(
            st.one_of(
                st.tuples(st.just("stored"), st.integers(9, 11)),
                st.tuples(st.just("stored"), st.integers(9, 11)),
                st.tuples(st.just("nested"), st.integers(9, 11)),
                st.tuples(st.just("reply"), st.integers(9, 11)),
                st.tuples(st.sampled_from(["plain", "ping", "error", "other"]), st.just(0)),
            ),
            max_size=30,
        ),
        st.lists(st.integers(0, 3000), max_size=5),
    )
    @settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    def test_same_frames(self, answers, places):
        """Frames are the same, taken in a run or one by one."""
        data = b"".join(
            {
                "stored": stored_line(page, BLOCK, b"x" * page),
                "nested": stored_line(page, BLOCK, stored_line(page, BLOCK, b"y")),
                "reply": stored_line(page, BLOCK, b"z", reply=b"r"),
                "plain": b"MSG _INBOX.p.9 %b 2\r\nhi\r\n" % SID,
                "ping": b"PING\r\n",
                "error": b"-ERR 'x'\r\n",
                "other": stored_line(9, BLOCK, b"o", sid=b"1000007"),
            }[kind]
            for kind, page in answers
        )
        cuts = [0, *sorted(place for place in places if place < len(data)), len(data)]
        results = []
        for box in (page_box(), Mailbox(b"_INBOX.p.*")):
            other, foreign = Mailbox(), []
            splitter = Splitter({SID: box, b"1000007": other})
            for start, end in itertools.pairwise(cuts):
                splitter.feed(data[start:end], [], foreign)
            results.append((all_frames(box), other.drain(), foreign))
        assert results[0] == results[1]


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
