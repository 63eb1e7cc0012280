"""
Fast ingest: messages in flight, threads, and long batches.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import time
import tracemalloc
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest

import jetsync
from helpers.fast_publishers import fast, stored_in, subscriptions
from helpers.forks import fork
from helpers.interrupts import handled_at
from helpers.streams import fast_stream
from helpers.waiting import blocked, eventually, timed
from jetsync import OutboundMessage
from jetsync._base.deadline import NO_WAIT, Deadline
from jetsync._base.turn import outside
from jetsync.publish import fast_link as _fast_link
from jetsync.publish.fast_stream import FastStream


class TestFlow:
    @pytest.mark.parametrize("how", ["add", "add_many"])
    def test_staged_messages_do_not_wait_for_the_lookup_of_a_subject(
        self, js, stream, monkeypatch, how
    ):
        """
        Messages are sent before the stream of a new subject is looked up, which may take long.
        """
        look_up, found = FastStream._check, []

        def slow(fast_stream, subject):
            if subject.endswith(".new"):
                found.append(outside(eventually, lambda: stored_in(stream) == [1, 2]))
            look_up(fast_stream, subject)

        monkeypatch.setattr(FastStream, "_check", slow)
        with fast(js) as publisher:
            publisher.add(f"{stream.name}.old", b"1")
            # Staged, not written.
            publisher.add(f"{stream.name}.old", b"2")
            if how == "add":
                publisher.add(f"{stream.name}.new", b"3")
            else:
                publisher.add_many([(f"{stream.name}.new", b"3")])
        assert found
        assert stored_in(stream) == [1, 2, 3]

    def test_small_window(self, js, stream):
        """
        At most flow times outstanding acks are in flight, and message counts that are multiples do
        not stall.
        """
        publisher = fast(js, flow=2)
        subject = f"{stream.name}.a"
        ahead = []
        for number in range(9):
            publisher.add(subject, b"%d" % number)
            ahead.append(publisher.statistics().pending)
        assert max(ahead) <= 4
        assert publisher.commit().size == 9
        for outstanding, count in itertools.product((1, 2, 3), (8, 12, 13)):
            with timed(0.0, 0.9), fast(js, flow=4, max_outstanding_acks=outstanding) as publisher:
                publisher.add_many((subject, b"%d" % n) for n in range(count))
            assert publisher.ack.size == count
            assert publisher.statistics().pings == 0

    def test_larger_messages_wait_in_a_run(self, js, stream, monkeypatch):
        """
        A message of a kilobyte does not cost a write of its own by the caller's thread.
        """
        subject, caller, written = f"{stream.name}.a", threading.get_ident(), []
        with fast(js) as publisher:
            publisher.add(subject, b"0")
            lane = publisher._lane
            write = lane.write

            def counted(*arguments, **options):
                if threading.get_ident() == caller:
                    written.append(arguments)
                return write(*arguments, **options)

            monkeypatch.setattr(lane, "write", counted)
            for number in range(1, 20):
                publisher.add(subject, b"%01000d" % number)
            assert written == []
        assert stored_in(stream) == [*range(20)]

    def test_hundred_thousand(self, js, stream):
        """
        All messages arrive in order, and memory stays flat.
        """
        count = 100_000
        subject = f"{stream.name}.a"
        # The first run does all one-time work.
        with fast(js) as publisher:
            publisher.add_many((subject, b"%d" % n) for n in range(count))
        assert (publisher.ack.size, publisher.ack.sequence) == (count, count)
        assert stored_in(stream) == list(range(count))
        stream.purge()
        tracemalloc.start()
        try:
            with fast(js) as publisher:
                publisher.add_many((subject, b"x") for _ in range(count // 4))
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 2_000_000

    def test_an_iterable_is_not_read_ahead(self, js, stream):
        """
        A message is added before the iterable is asked for the next one.
        """
        publisher, ahead = fast(js), set()

        def counted():
            for number in range(1500):
                ahead.add(number - publisher.statistics().added)
                yield f"{stream.name}.a", b"%d" % number

        with publisher:
            assert publisher.add_many(counted()) == 1500
        assert ahead == {0}
        assert stored_in(stream) == list(range(1500))

    @pytest.mark.parametrize("how", ["add", "add_many"])
    @pytest.mark.parametrize("headers", [None, {"A": "b"}])
    def test_messages_of_any_size_wait_for_others(self, js, stream, monkeypatch, how, headers):
        """
        Messages that are smaller than a block are staged and written together.
        """
        subject, calls = f"{stream.name}.a", []
        with fast(js) as publisher:
            publisher.add(subject, b"0")
            call = _fast_link.FastLink.add
            monkeypatch.setattr(
                _fast_link.FastLink, "add", lambda *given: (calls.append(1), call(*given))[1]
            )
            for _ in range(10):
                for size in (513, 2000, 5000):
                    if how == "add":
                        publisher.add(subject, bytes(size), headers=headers)
                    else:
                        publisher.add_many([OutboundMessage(subject, bytes(size), headers)])
        assert publisher.ack.size == 31
        # Each fills the stage, or comes after an answer of the server or a pause.
        assert len(calls) < 15

    def test_iterable_that_raises(self, js, stream):
        """
        Messages that the iterable yielded before the error are sent.
        """

        def broken():
            for number in range(700):
                yield f"{stream.name}.a", b"%d" % number
            raise LookupError

        with fast(js) as publisher:
            with pytest.raises(LookupError):
                publisher.add_many(broken())
            assert publisher.statistics().added == 700
        assert stored_in(stream) == list(range(700))

    def test_large_messages(self, js, stream):
        """
        Blocks also have a limit in bytes.
        """
        subject = f"{stream.name}.a"
        body = bytes(300_000)
        with fast(js) as publisher:
            assert publisher.add_many((subject, body) for _ in range(40)) == 40
        assert publisher.ack.size == 40
        assert stream.info().state.bytes > 40 * len(body)

    def test_many_publishers(self, js, stream):
        """
        Servers divide the flow among batches, and increase it when one ends; all messages are
        stored.
        """
        subject = f"{stream.name}.a"
        publishers = [fast(js, flow=500) for _ in range(5)]
        flows = set()
        for turn in range(40):
            for publisher in publishers:
                publisher.add_many((subject, b"%d" % turn) for _ in range(25))
                flows.add(publisher.statistics().flow)
        for publisher in publishers:
            assert publisher.commit().size == 1000
        assert min(flows) < 500
        assert stream.info().state.messages == 5000

    def test_four_threads(self, js, stream):
        """
        Threads share one publisher: each number is given once, and each thread's order is kept.
        """
        subject = f"{stream.name}.a"
        numbers = [[] for _ in range(4)]

        def work(mine):
            for n in range(1500):
                numbers[mine].append(publisher.add(subject, b"%d" % (mine * 10_000 + n)))
            return publisher.add_many(
                (subject, b"%d" % (mine * 10_000 + n)) for n in range(1500, 3000)
            )

        with fast(js) as publisher, ThreadPoolExecutor(4) as pool:
            assert list(pool.map(work, range(4))) == [1500] * 4
        assert publisher.ack.size == 12_000
        given = [number for each in numbers for number in each]
        assert len(set(given)) == 6000
        assert all(each == sorted(each) for each in numbers)
        stored = stored_in(stream)
        for mine in range(4):
            own = [n for n in stored if n // 10_000 == mine]
            assert own == list(range(mine * 10_000, mine * 10_000 + 3000))

    def test_without_acks_a_fast_call_ends_by_its_deadline_unsent(self, fragile, cut, unique):
        """
        Without acks a call ends by its deadline, none of its messages was sent, and it can be
        repeated.
        """
        stream = fast_stream(fragile, unique)
        subject = f"{unique}.a"
        with fast(fragile, flow=5) as publisher:
            publisher.add(subject, b"0")
            cut.pause()
            for number in range(1, 10):
                publisher.add(subject, b"%d" % number)
            with timed(0.3, 1.0), pytest.raises(jetsync.WaitTimeoutError):
                publisher.add(subject, b"x", timeout=0.4)
            with timed(0.2, 0.8), pytest.raises(jetsync.WaitTimeoutError):
                publisher.add_many([(subject, b"x")], timeout=0.3)
            with ThreadPoolExecutor(1) as pool:
                waiting = pool.submit(publisher.add, subject, b"10", timeout=30)
                blocked(pool)
                with timed(0.1, 0.6), pytest.raises(jetsync.WaitTimeoutError, match="another call"):
                    publisher.add(subject, b"x", timeout=0.2)
                cut.resume()
                assert waiting.result() == 11
        assert publisher.ack.size == 11
        assert stored_in(stream) == list(range(11))
        fragile.delete_stream(unique)


class TestStaging:
    """
    Small messages are staged, and sent together.
    """

    def test_sent_without_a_further_call(self, js, stream):
        """
        The loop sends staged messages in order, even if the caller only waits.
        """
        publisher = fast(js)
        for number in range(150):
            assert publisher.add(f"{stream.name}.a", b"%d" % number) == number + 1
        eventually(lambda: stream.info().state.messages == 150)
        assert publisher.statistics().pings == 0
        # The loop has stopped, and starts again.
        eventually(lambda: not publisher._link.stage.places)
        publisher.add(f"{stream.name}.a", b"150")
        eventually(lambda: stream.info().state.messages == 151)
        assert publisher.commit().size == 151
        assert stored_in(stream) == list(range(151))

    def test_all_kinds_in_order(self, js, stream):
        """
        Pairs, messages with headers, large ones and blocks are stored in the order of the calls.
        """
        subject = f"{stream.name}.a"
        with fast(js, flow=50) as publisher:
            for number in range(0, 600, 4):
                publisher.add(subject, b"%d" % number)
                publisher.add(subject, b"%d" % (number + 1), headers={"A": "b"})
                publisher.add(subject, b"0" * 2000 + b"%d" % (number + 2))
                publisher.add_many([(subject, b"%d" % (number + 3))])
        assert publisher.ack.size == 600
        assert stored_in(stream) == list(range(600))

    def test_signal_handler(self, js, stream):
        """
        A call of a signal handler that interrupts ``add`` at any step is refused or has its effect.
        """
        subject, stored = f"{stream.name}.a", {}
        publisher = fast(js)
        publisher.add(subject, b"0")

        def add(data):
            stored[publisher.add(subject, b"%d" % data)] = data

        def handler():
            with contextlib.suppress(jetsync.CallInSignalHandlerError):
                add(-1)

        # A large message takes the turn.
        for data in (1, 10**600):
            ended, steps = False, itertools.count(1)
            while not ended:
                ended, _ = handled_at(next(steps), lambda data=data: add(data), handler)
        assert publisher.commit().size == len(stored) + 1
        assert stored_in(stream) == [0, *(stored[number] for number in sorted(stored))]

    def test_the_loop_sends_what_calls_leave(self, js, stream, monkeypatch):
        """
        The loop does not wait for a call of another thread, and sends what that call leaves.
        """
        publisher = fast(js)
        publisher.add(f"{stream.name}.a", b"0")
        link, ticks, done = publisher._link, [], threading.Event()
        tick = link._tick
        monkeypatch.setattr(link, "_tick", lambda: (ticks.append(None), tick()))

        def leave():
            link.call(link.add, (f"{stream.name}.a", b"1"), Deadline.after(20))
            return done.wait(20)

        with ThreadPoolExecutor(1) as pool:
            turn = pool.submit(link.turn.run, Deadline.after(20), leave)
            eventually(lambda: len(ticks) >= 5)
            assert publisher._link.stage.count == 1
            done.set()
            assert turn.result(20)
        eventually(lambda: stream.info().state.messages == 2)
        assert publisher.commit().size == 2

    def test_the_loop_tries_again_if_nothing_can_be_written(self, js, stream, monkeypatch):
        """
        If the connection accepts no bytes at the moment, the staged messages are sent later.
        """
        subject = f"{stream.name}.a"
        publisher = fast(js)
        publisher.add(subject, b"0")
        lane, refused = publisher._link._lane, []
        write = lane.write

        def full(block, deadline, *arguments, **options):
            # Of the loop thread.
            if deadline is NO_WAIT and len(refused) < 3:
                refused.append(block)
                raise jetsync.DisconnectedError(reason="no room")
            return write(block, deadline, *arguments, **options)

        monkeypatch.setattr(lane, "write", full)
        publisher.add(subject, b"1")
        publisher.add(subject, b"2")
        eventually(lambda: stream.info().state.messages == 3)
        assert len(refused) == 3
        assert publisher.commit().size == 3
        assert stored_in(stream) == [0, 1, 2]

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
    def test_forked_child(self, js, stream):
        """
        A forked child stages nothing.
        """
        publisher = fast(js)
        publisher.add(f"{stream.name}.a", b"0")
        publisher.add(f"{stream.name}.a", b"1")
        child = fork()
        if not child:
            status = 1
            try:
                publisher.add(f"{stream.name}.a", b"2")
            except jetsync.ForkedProcessError:
                status = 0
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert publisher.commit().size == 2


class TestQuiet:
    @pytest.mark.clause("FI-26")
    def test_a_fast_publisher_that_pauses_is_kept_alive(self, js, stream):
        """
        A publisher whose user pauses for more than 10 s is kept alive.
        """
        subject = f"{stream.name}.a"
        with fast(js, gap="ok") as lenient, fast(js, gap="fail") as strict:
            for publisher in (lenient, strict):
                publisher.add(subject, b"0")
            # The server forgets a batch after 10 s without a message.
            time.sleep(10.6)
            for publisher in (lenient, strict):
                publisher.add(subject, b"1")
        for publisher in (lenient, strict):
            assert (publisher.ack.size, publisher.ack.lost) == (2, 0)
            assert publisher.statistics().pings in range(1, 10)
        assert stored_in(stream) == [0, 0, 1, 1]

    @pytest.mark.parametrize("paused", [False, True])
    def test_forgotten_publisher(self, client, js, stream, monkeypatch, paused):
        """
        A publisher without references is not kept alive, and unsubscribes, even if it waits for a
        leader.
        """
        monkeypatch.setattr(_fast_link, "PING_AFTER", 0.05)
        before = subscriptions(client)
        held = [fast(js)]
        held[0].add(f"{stream.name}.a", b"0")
        eventually(lambda: held[0].statistics().pings >= 3)
        gone = weakref.ref(held[0]._link)
        if paused:
            reply = held[0]._link.engine.prefix + b"1.1.$FI"
            no_leader = (reply, b"", b"NATS/1.0 503\r\n\r\n", b"")
            held[0]._link.engine.receive(no_leader, time.monotonic())
        with pytest.warns(ResourceWarning, match="fast publisher") as caught:
            # No cycle keeps it.
            held.clear()
        assert caught[0].filename.endswith("fast_publishers.py")
        eventually(lambda: gone() is None)
        eventually(lambda: subscriptions(client) == before)
        # The batch was ended, so it does not reduce the flow of the next one.
        with fast(js, flow=500) as other:
            other.add(f"{stream.name}.a", b"1")
            assert other.statistics().flow == 500
        assert stored_in(stream) == [0, 1]

    def test_a_ping_does_not_overtake_staged_messages(self, js, stream, monkeypatch):
        """
        While messages wait to be written, a pause sends no ping, so the server misses none of them.
        """
        monkeypatch.setattr(_fast_link, "STAGING_PAUSE", 60.0)
        with fast(js, gap="ok") as publisher:
            for number in range(3):
                publisher.add(f"{stream.name}.a", b"%d" % number)
            link = publisher._link
            assert link.stage.count
            link.added_before = link.added
            assert link.turn.attempt(link.keep_alive)
        assert (publisher.ack.size, publisher.ack.lost) == (3, 0)
        assert stored_in(stream) == [0, 1, 2]

    def test_the_lane_ends_the_batch_first(self, client, js, stream, monkeypatch):
        """
        A dropped publisher warns even if its batch has ended before the finalizer returns.
        """
        lane = client._connection.lane
        held = [fast(js)]
        held[0].add(f"{stream.name}.a", b"0")
        link = held[0]._link
        later = type(lane).later

        def at_once(_, *call):
            later(lane, *call)
            eventually(lambda: link.closed)

        monkeypatch.setattr(type(lane), "later", at_once)
        with pytest.warns(ResourceWarning, match="fast publisher"):
            held.clear()


@pytest.mark.parametrize(("name", "most"), [("flow", 500), ("max_outstanding_acks", 3)])
def test_limits_of_the_options(js, name, most):
    """
    The flow and the outstanding acks have the limits of the protocol.
    """
    for value in (0, most + 1):
        with pytest.raises(jetsync.InvalidArgumentError, match=f"{name} must be at"):
            js.fast_publisher(**{name: value})
    for value in (1, most):
        js.fast_publisher(**{name: value}).close()
