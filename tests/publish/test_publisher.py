"""
The publisher with a scripted lane: answers that are early, late or missing.
"""

from __future__ import annotations

import contextlib
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

import jetsync
from helpers.acks import acks_of
from helpers.interrupts import interrupted_at
from helpers.scripted_lane import PLAIN, ScriptedContext, ScriptedLane
from helpers.variants import VARIANTS, use_variant
from helpers.waiting import LATE, eventually, timed
from jetsync._base.deadline import FOREVER, Deadline
from jetsync._io.mailbox import Mailbox
from jetsync._io.outbox import OUT_LIMIT, LaneState
from jetsync._proto import ack_runs, frames
from jetsync.publish import hooks
from jetsync.publish import stage as _stage
from jetsync.publish.flight import Flight, FlightOptions
from jetsync.publish.future import PublishFuture
from jetsync.publish.many import BLOCK_MESSAGES
from jetsync.publish.publisher import KEPT_FAILURES, Publisher
from jetsync.testing import HookRecorder
from jetsync.values.pub_acks import PubAck

NO_RESPONDERS = b"NATS/1.0 503\r\n\r\n"


@pytest.fixture
def lane():
    """
    A lane that acknowledges nothing unless the test does.
    """
    return ScriptedLane()


@pytest.fixture
def make(lane):
    """
    A function that makes publishers, which are closed after the test.
    """
    made = []

    def make(*, on_report=None, size=4096, ack_timeout=20.0, plugins=(), **options):
        options = FlightOptions(size=size, ack_timeout=ack_timeout, **options)
        made.append(Publisher(ScriptedContext(lane, plugins), options, on_report))
        return made[-1]

    yield make
    for publisher in made:
        publisher._close(0)


class Wrapper:
    """
    A plugin that counts the publishers that it wraps, and keeps the errors that ended them.
    """

    name = "wrapper"

    def __init__(self):
        self.entered = self.left = 0
        self.errors = []

    @jetsync.hookimpl(wrapper=True)
    def jetsync_publish(self):
        self.entered += 1
        try:
            return (yield)
        except BaseException as error:
            self.errors.append(error)
            raise
        finally:
            self.left += 1


def reason(future):
    """
    Return the error of a future that has ended.
    """
    return future.exception(5)


def stage(window, item, owner=None):
    """
    Add a message as ``publish`` does, without writing it; return its future.
    """
    future = PublishFuture(owner, item)
    assert window.add(future)
    return future


def stage_in(publisher, item):
    """
    Stage a message in the window of a publisher; return its future.
    """
    return stage(publisher._flight, item, publisher._owner)


@contextlib.contextmanager
def held(publisher):
    """
    Keep the thread of a publisher from working, and yield its window.
    """
    with publisher._turn._lock:
        yield publisher._flight


@pytest.fixture
def window(lane):
    """
    The window of a publisher without a worker.
    """

    def window(**options):
        return Flight(ScriptedContext(lane), FlightOptions(**options), keep_acks=True)

    return window


class TestRaces:
    def test_an_ack_before_the_write_returns(self, lane, make):
        """
        The message ends once, and no state is left of it.
        """
        lane.on_write = lane.ack
        reports = []
        publisher = make(on_report=reports.append)
        futures = []
        for number in range(50):
            futures.append(publisher.publish("a.b", b"%d" % number))
            futures[-1].result(20)
        assert publisher.pending == 0
        eventually(lambda: len(reports) == 50)
        assert publisher._flight.pipeline.next_timeout() is None

    def test_a_second_ack_changes_nothing(self, lane, make):
        """
        The first ack counts.
        """
        publisher = make()
        future = publisher.publish("a.b")
        publisher.publish("a.b")
        publisher.flush(timeout=0)
        first, second = lane.transport.published()
        lane.ack([first, first], 7)
        assert future.result(20).sequence == 7
        assert publisher.flush(timeout=0) == 1
        lane.ack([second], 9)
        assert publisher.flush(timeout=20) == 0
        assert publisher.statistics().acknowledged == 2

    def test_waiting_for_an_ack(self, lane, make):
        """
        The publisher's thread waits for an ack in the lane, and does not poll.
        """
        future = make().publish("a.b")
        eventually(lambda: lane.waits)
        assert not future.done()
        assert lane.waits < 5

    def test_an_ack_of_nothing(self, lane, make):
        """
        An ack of a message that has ended, or that was never sent, is ignored.
        """
        publisher = make()
        publisher.publish("a.b").add_done_callback(lambda _: None)
        (command,) = lane.transport.published()
        lane.box.push((command.reply.encode() + b"77", b"", None, PLAIN % 1))
        lane.ack([command], 2)
        assert publisher.flush(timeout=20) == 0

    def test_a_loss_right_after_the_write(self, lane, make):
        """
        Messages without an ack are unknown as soon as the connection is lost.
        """

        def lose(commands):
            lane.ack(commands[:1])
            lane.lose()

        publisher = make()
        lane.on_write = lose
        first = publisher.publish("a.b")
        assert first.result(20).sequence == 1
        lane.reconnect()
        lane.on_write = lambda _: lane.lose()
        second = publisher.publish("a.b", msg_id="id")
        error = reason(second)
        assert isinstance(error, jetsync.PublishOutcomeUnknownError)
        assert (error.msg_id, publisher.pending) == ("id", 0)

    @pytest.mark.parametrize("limit", [1, 1 << 20])
    def test_a_message_that_was_not_processed(self, lane, make, limit):
        """
        If the server has refused a message as too large, only the last one is sent again.
        """
        publisher = make()
        server = publisher._flight.encoder._connection.server

        def lose(commands):
            lane.on_write = lane.ack
            lane.unprocessed, lane.why = commands[-1].reply.encode(), "too large"
            server.max_payload = limit
            lane.lose()

        lane.on_write = lose
        with held(publisher) as window:
            futures = [stage_in(publisher, ("a.b", data)) for data in (b"1", b"22")]
            window.flush()
            lane.reconnect()
        assert isinstance(reason(futures[0]), jetsync.PublishOutcomeUnknownError)
        assert "too large" in str(reason(futures[0]))
        if limit == 1:
            assert isinstance(reason(futures[1]), jetsync.MaxPayloadError)
        else:
            assert futures[1].result(20).sequence == 1
            assert lane.payloads == [b"1", b"22", b"22"]

    def test_a_message_that_is_not_processed_again(self, lane, make):
        """
        It is sent only once more, and the error says that it is not stored.
        """
        publisher = make()
        lost = threading.Semaphore(0)

        def lose(commands):
            lane.unprocessed, lane.why = commands[-1].reply.encode(), "too large"
            lane.lose()
            lost.release()

        lane.on_write = lose
        future = publisher.publish("a.b", b"1")
        for _ in range(2):
            assert lost.acquire(timeout=20)
            lane.reconnect()
        error = reason(future)
        assert isinstance(error, jetsync.ConnectionLostError)
        assert not error.sent
        assert "too large" in str(error)
        assert lane.payloads == [b"1", b"1"]

    def test_acks_that_came_before_the_loss_count(self, lane, make):
        """
        They count even if the publisher notices both at the same time.
        """
        publisher = make()
        # Nothing is settled meanwhile.
        with held(publisher) as window:
            for number in range(10):
                stage_in(publisher, ("a.b", b"%d" % number))
            window.flush()
            lane.ack(lane.transport.published()[:6])
            lane.lose()
            window.process_outcomes()
            acked = [future.item[1] for future, _ in window.pipeline.acked]
            failed = [number for number, *_ in window.failures]
            assert (acked, failed) == ([b"%d" % n for n in range(6)], list(range(6, 10)))

    def test_only_the_lost_connections_messages_are_lost(self, lane, make):
        """
        Messages of the next connection wait for their acks.
        """
        publisher = make()
        before = publisher.publish("a.b", b"before")
        publisher.flush(timeout=0)
        lane.lose()
        lane.reconnect()
        after = publisher.publish("a.b", b"after")
        assert isinstance(reason(before), jetsync.PublishOutcomeUnknownError)
        publisher.flush(timeout=0)
        assert not after.done()
        lane.ack(lane.transport.published()[1:], 5)
        assert after.result(20).sequence == 5


class TestBlocks:
    def test_many_messages_are_few_writes(self, lane, make):
        """
        Messages keep their order, and share writes.
        """
        publisher = make(size=100_000)
        for number in range(20_000):
            publisher.publish("a.b", b"%d" % number)
        publisher.flush(timeout=0)
        assert lane.payloads == [b"%d" % number for number in range(20_000)]
        assert len(lane.writes) < 10_000

    def test_a_single_message_is_written_at_once(self, lane, make):
        """
        The publishing thread writes it.
        """
        publisher = make()
        for number in range(5):
            time.sleep(0.02)
            # The worker waits a moment for more messages, which may be long on a busy machine.
            eventually(lambda: not publisher._write_at)
            publisher.publish("a.b")
            assert lane.writes == [1] * (number + 1)

    def test_the_last_message_of_a_burst_is_written(self, lane, make):
        """
        It needs no flush and no further message.
        """
        publisher = make()
        for burst in range(1, 20):
            for _ in range(burst):
                publisher.publish("a.b")
            eventually(lambda: sum(lane.writes) == publisher.pending, 2.0)

    def test_a_server_that_accepts_no_data(self, lane, make, monkeypatch):
        """
        Only the worker tries again to write the staged messages, because each try copies them all.
        """
        publisher, tries = make(size=100_000), []

        def refuse(block, *arguments, **options):
            tries.append(len(block))
            raise jetsync.DisconnectedError(timeout=0.0)

        with monkeypatch.context() as patch:
            patch.setattr(lane, "write", refuse)
            for number in range(5000):
                publisher.publish("a.b", b"%d" % number)
            assert len(tries) < 1000
        eventually(lambda: len(lane.payloads) == 5000)
        assert lane.payloads == [b"%d" % number for number in range(5000)]

    def test_a_stalled_server_costs_no_copies(self, lane, make, monkeypatch):
        """
        While the socket has no room, the worker does not copy the staged messages to try again.
        """
        publisher = make()
        flight, taken, looked = publisher._flight, [], []
        take, due = flight._take_staged, flight.due

        def refuse(*arguments, **options):
            lane.size = OUT_LIMIT
            raise jetsync.DisconnectedError(timeout=0.0)

        with monkeypatch.context() as patch:
            patch.setattr(lane, "write", refuse)
            patch.setattr(flight, "_take_staged", lambda: (taken.append(1), take())[1])
            patch.setattr(flight, "due", lambda: (looked.append(flight.stalled), due())[1])
            publisher.publish("a.b", b"1")
            eventually(lambda: looked and looked[-1])
            del looked[:]
            eventually(lambda: len(looked) >= 3)
            assert taken == [1]
            lane.size = 0
        eventually(lambda: lane.payloads == [b"1"])

    def test_a_stalled_retry_that_fails(self, lane, make, monkeypatch):
        """
        The next message is written at once, although no write has worked since the retry failed.
        """
        publisher = make(retry_wait=0.01)
        server, tries = publisher._flight.encoder._connection.server, []

        def refuse(block, *arguments, **options):
            tries.append(len(block))
            raise jetsync.DisconnectedError(timeout=0.0)

        def answer(commands):
            monkeypatch.setattr(lane, "write", refuse)
            lane.answer(commands[-1], b"", NO_RESPONDERS)

        write, lane.on_write = lane.write, answer
        future = publisher.publish("a.b", b"x" * 200)
        eventually(lambda: tries)
        with held(publisher):
            lane.lose()
            server.max_payload = 100
            lane.reconnect()
        assert isinstance(reason(future), jetsync.JetSyncError)
        eventually(lambda: publisher._idle)
        monkeypatch.setattr(lane, "write", write)
        lane.on_write = lane.ack
        future = publisher.publish("a.b", b"1")
        eventually(lambda: publisher.pending == 0, 2.0)
        assert future.done()

    def test_acks_are_waited_for_one_by_one(self, lane, make):
        """
        A call of result does not wait until the block is full.
        """
        lane.on_write = lane.ack
        publisher = make()
        with timed(0.0, 2.0):
            for _ in range(200):
                publisher.publish("a.b")
                publisher.publish("a.b").result(20)


class TestStaging:
    def test_a_message_during_close_is_refused(self, lane, make, monkeypatch):
        """
        A message that is staged after the last flush raises and is not sent.
        """
        publisher = make()
        publisher.publish("a.b", b"0")
        stage_it = publisher._stage

        def late(*message):
            publisher._close(0)
            return stage_it(*message)

        monkeypatch.setattr(publisher, "_stage", late)
        with pytest.raises(jetsync.HandleClosedError):
            publisher.publish("a.b")
        assert lane.payloads == [b"0"]

    def test_a_message_that_was_written_during_close(self, lane, make, monkeypatch):
        """
        A message that the last flush has written cannot be taken back, and its ack counts.
        """
        publisher = make()
        lane.on_write = lane.ack
        publisher.publish("a.b", b"0").result(20)
        stage_it = publisher._stage

        def early(*message):
            number = stage_it(*message)
            publisher.close()
            return number

        monkeypatch.setattr(publisher, "_stage", early)
        assert publisher.publish("a.b", b"1").result(20).sequence == 1
        assert lane.payloads == [b"0", b"1"]

    @pytest.mark.parametrize("forks", [True, False])
    def test_a_message_after_the_end_of_the_connection(self, lane, window, forks):
        """
        No message is staged after a loss or a fork, until the owner has looked.
        """
        window = window(ack_timeout=20.0)
        stage(window, ("a.b", b"1"))
        window.flush()
        assert window.stage.stage("a.b", b"2", b"", PublishFuture(None, ("a.b", b"2"))) == 2
        if forks:
            # As `Lane.after_fork` does.
            lane.state = LaneState.CLOSED
            window.box.failure = jetsync.ForkedProcessError()
            window.box.wake()
        else:
            lane.lose()
        assert window.stage.stage("a.b", b"3") == 0
        window.permit()
        assert window.stage.stage("a.b", b"3") == 0
        assert window.add(PublishFuture(None, ("a.b", b"3"))) == 0
        assert window.open_count == 2

    def test_no_more_than_the_window_is_in_flight(self, lane, make):
        """
        A message beyond the window is sent when there is room.
        """
        publisher, futures = make(size=3), []

        def publish():
            futures.extend(publisher.publish("a.b", b"%d" % number) for number in range(5))

        thread = threading.Thread(target=publish)
        thread.start()
        eventually(lambda: len(lane.payloads) == 3 and publisher._room._signals)
        lane.ack(lane.transport.published())
        eventually(lambda: len(lane.payloads) == 5)
        thread.join(20)
        lane.ack(lane.transport.published()[3:], 4)
        assert [future.result(20).sequence for future in futures] == [1, 2, 3, 4, 5]

    def test_messages_that_are_not_small(self, lane, window):
        """
        Messages of all sizes are staged in order, and their bytes are counted.
        """
        window = window(size=8, ack_timeout=20.0)
        limit = window.encoder.limit
        stage(window, ("a.b", b"1"))
        window.permit()
        assert window.stage.stage("a.b", b"22", b"", PublishFuture(None, ("a.b", b"22"))) == 2
        stage(window, ("a.b", b"3" * limit))
        before = window.stage.size
        assert before == 3 + limit
        stage(window, ("a.b", b"4", {"A": "b"}))
        assert window.stage.size > before + 1
        with pytest.raises(jetsync.MaxPayloadError):
            stage(window, ("a.b", b"5" * (limit + 1)))
        window.flush()
        assert lane.payloads == [b"1", b"22", b"3" * limit, b"4"]
        assert (window.stage.size, list(window.pipeline.in_flight)) == (0, [1, 2, 3, 4])

    def test_an_interrupt_after_the_write(self, lane, make, monkeypatch):
        """
        The outcome of the block is unknown, and no message is lost or sent twice.
        """
        publisher = make(ack_timeout=3)
        in_flight = publisher._flight.pipeline.in_flight

        sent = type(publisher._flight.pipeline).sent

        def interrupt(*arguments):
            monkeypatch.undo()
            sent(*arguments)
            raise KeyboardInterrupt

        with held(publisher) as window:
            futures = [stage_in(publisher, ("a.b", b"%d" % number)) for number in range(3)]
            monkeypatch.setattr(type(window.pipeline), "sent", interrupt)
            with pytest.raises(KeyboardInterrupt):
                window.flush()
        lane.on_write = lane.ack
        assert publisher.publish("a.b", b"next").result(20).sequence == 1
        errors = [reason(future) for future in futures]
        assert [type(error) for error in errors] == [jetsync.PublishOutcomeUnknownError] * 3
        assert (lane.payloads, in_flight) == ([b"0", b"1", b"2", b"next"], {})


class SameHash:
    """
    A key that calls a function when a subject with its hash is looked up.
    """

    def __init__(self, subject):
        self.subject = subject
        self.call = lambda: None

    def __hash__(self):
        return hash(self.subject)

    def __eq__(self, other):
        self.call()
        return False


class TestClosing:
    """
    A publisher closes while another thread is inside ``publish``.
    """

    @pytest.fixture
    def publisher(self, lane, make, variant_name, monkeypatch):
        """
        A publisher of a variant whose messages are acknowledged.
        """
        use_variant(variant_name, monkeypatch)
        # Nobody reads acks any more once the publisher has ended.
        lane.on_write = lambda commands: lane.box and lane.ack(commands)
        return make()

    @pytest.mark.parametrize("variant_name", VARIANTS)
    def test_while_the_subject_is_looked_up(self, lane, publisher):
        """
        The message is refused, and nothing is left of it.
        """
        key = SameHash("a.b")
        publisher._flight.encoder.targets[key] = b""
        publisher.publish("a.b", b"0").result(20)

        def close():
            key.call = lambda: None
            with ThreadPoolExecutor(1) as pool:
                pool.submit(publisher.close).result(20)

        key.call = close
        with pytest.raises(jetsync.HandleClosedError):
            publisher.publish("a.b", b"1")
        assert (lane.payloads, publisher.pending) == ([b"0"], 0)

    @pytest.mark.parametrize("variant_name", ["python"])
    @pytest.mark.parametrize("options", [{"headers": {"A": "b"}}, {"data": bytes(10_000)}])
    def test_before_a_message_is_added(self, lane, publisher, monkeypatch, options):
        """
        A message that is large or has headers is refused, and nothing is left of it.
        """
        publisher.publish("a.b", b"0").result(20)
        look, me = _stage.refuse_reentry, threading.get_ident()

        def end(lock):
            if threading.get_ident() == me:
                monkeypatch.setattr(_stage, "refuse_reentry", look)
                with ThreadPoolExecutor(1) as pool:
                    pool.submit(publisher.close).result(20)
            look(lock)

        monkeypatch.setattr(_stage, "refuse_reentry", end)
        with pytest.raises(jetsync.HandleClosedError):
            publisher.publish("a.b", **options)
        assert (lane.payloads, publisher.pending) == ([b"0"], 0)

    @pytest.mark.parametrize("variant_name", ["python"])
    @pytest.mark.parametrize("options", [{}, {"headers": {"A": "b"}}])
    def test_while_a_message_is_staged(self, lane, publisher, monkeypatch, options):
        """
        The close waits until the message is staged, and the message ends.
        """
        publisher.publish("a.b", b"0").result(20)
        # Otherwise, the worker may wait for this thread before the close.
        eventually(lambda: publisher._idle)
        owner, struck, closing = type(publisher._flight.stage), threading.Event(), []
        add, close = owner._add, owner.close

        def adding(*arguments):
            if not closing:
                closing.append(pool.submit(publisher.close))
                # The worker waits for this thread. Otherwise, it would have ended.
                eventually(lambda: struck.is_set() or closing[0].done())
            return add(*arguments)

        def close_stage(stage):
            struck.set()
            return close(stage)

        monkeypatch.setattr(owner, "_add", adding)
        monkeypatch.setattr(owner, "close", close_stage)
        with ThreadPoolExecutor(1) as pool:
            future = publisher.publish("a.b", b"1", **options)
            eventually(future.done)
            closing[0].result(20)
        assert future.result(20).sequence == 1
        assert (lane.payloads, publisher.pending) == ([b"0", b"1"], 0)


class GivesUp:
    """
    The turn of a publisher whose worker begins a callback when a thread gives up its wait.
    """

    def __init__(self, turn, begin_callback):
        self._turn = turn
        self._begin_callback = begin_callback

    def __getattr__(self, name):
        return getattr(self._turn, name)

    def run(self, deadline, work, *arguments):
        """
        Give up each wait that has a limit.
        """
        if deadline is not FOREVER:
            self._begin_callback()
            raise jetsync.WaitTimeoutError("another call", deadline.total)
        return self._turn.run(deadline, work, *arguments)


class TestCallbacks:
    @pytest.mark.parametrize("options", [{}, {"headers": {"A": "b"}}])
    def test_a_thread_that_gives_up_when_a_callback_begins(self, lane, make, monkeypatch, options):
        """
        Messages of other threads are written while the worker is in a callback, also if a thread
        gave up its wait for the turn when the callback began.
        """
        running, over = threading.Event(), threading.Event()

        def on_report(_):
            running.set()
            assert over.wait(60)

        publisher = make(on_report=on_report)
        lane.on_write = lane.ack
        publisher.publish("a.b", b"0")
        assert running.wait(20)
        lane.on_write = lambda commands: None

        def begin_callback():
            # As the worker does.
            publisher._in_callback = True
            publisher._write_at = 0

        # As if the worker had not begun the callback yet, and messages were frequent.
        publisher._in_callback, publisher._write_at = False, 1
        monkeypatch.setattr(publisher, "_turn", GivesUp(publisher._turn, begin_callback))
        try:
            for number in range(1, 4):
                publisher.publish("a.b", b"%d" % number, **options)
                assert lane.payloads == [b"%d" % each for each in range(number + 1)]
        finally:
            over.set()
            lane.ack(lane.transport.published()[1:], 2)


class TestRoom:
    def test_blocks_are_forgotten_only_in_the_turn(self, lane, make, monkeypatch):
        """
        A thread that waits for room forgets finished blocks only while it has the turn.

        The worker changes the list of blocks at the same time.
        """
        lane.on_write = lane.ack
        publisher = make(size=100, max_bytes=300)
        pipeline, held = publisher._flight.pipeline, []
        prune = pipeline.prune

        def watched():
            held.append(publisher._turn.owned())
            prune()

        monkeypatch.setattr(type(pipeline), "prune", lambda _: watched())
        for _ in range(20):
            publisher.publish("a.b", bytes(100))
        assert publisher.flush(timeout=20) == 0
        assert held
        assert all(held)


class TestInterrupts:
    @pytest.mark.parametrize("size", [1, 100])
    def test_after_ctrl_c_at_any_step_the_publisher_still_works(self, lane, make, size):
        """
        After Ctrl-C at any step, the publisher still works, and no message is sent twice.
        """
        lane.on_write = lane.ack
        publisher = make(size=size, ack_timeout=0.05)
        step, finished = 0, False
        while not finished:
            step += 1

            def publish(payload=b"%d" % step):
                publisher.publish("a.b")
                publisher.publish("a.b", payload).result(20)

            finished = interrupted_at(step, publish)
            assert publisher.publish("a.b", b"after %d" % step).result(20)
            assert publisher.flush(timeout=20) == 0
            assert publisher.pending == 0
        payloads = [payload for payload in lane.payloads if payload]
        assert len(payloads) == len(set(payloads))
        assert step > 50

    def test_in_a_publisher_that_plugins_wrap(self, lane, make):
        """
        After Ctrl-C at any step, the publisher can be closed, and the wrapper is left once.
        """
        lane.on_write = lane.ack
        step, finished = 0, False
        while not finished:
            step += 1
            plugin = Wrapper()
            publisher = make(size=2, ack_timeout=0.05, plugins=[plugin])
            finished = interrupted_at(step, lambda made=publisher: made.publish("a.b"))
            publisher.publish("a.b").result(20)
            with timed(0.0, 4.0):
                publisher._close(5)
            assert not publisher._worker.is_alive(), step
            assert (plugin.entered, plugin.left) == (1, 1), step
        assert step > 50

    @pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
    def test_an_error_that_ends_the_thread_reaches_the_wrapper(self, lane, make, monkeypatch):
        """
        If the publisher's thread ends with an error, it leaves the wrapper with this error.
        """
        plugin = Wrapper()
        publisher = make(plugins=[plugin])
        future = publisher.publish("a.b")
        assert (plugin.entered, plugin.left) == (1, 0)

        def fail():
            raise LookupError("a bug")

        monkeypatch.setattr(publisher._flight, "process_outcomes", fail)
        lane.box.interrupt()
        assert isinstance(reason(future), jetsync.PublishOutcomeUnknownError)
        publisher._worker.join(5)
        assert (plugin.entered, plugin.left) == (1, 1)
        assert [type(error) for error in plugin.errors] == [LookupError]

    def test_a_publisher_that_cannot_start_leaves_the_wrapper(self, lane, make, monkeypatch):
        """
        If the acks cannot be subscribed to, the wrapper gets the error of the call.
        """
        plugin = Wrapper()
        error = jetsync.DisconnectedError(timeout=1.0)

        def refuse(*_, **__):
            raise error

        monkeypatch.setattr(lane, "write", refuse)
        with pytest.raises(jetsync.DisconnectedError):
            make(plugins=[plugin])
        assert (plugin.entered, plugin.left, plugin.errors) == (1, 1, [error])

    def test_an_idle_publisher_reports_within_the_interval(self, lane, make, monkeypatch):
        """
        Outcomes are reported although no further message wakes the publisher's thread.
        """
        monkeypatch.setattr(hooks, "REPORT_INTERVAL", 0.05)
        recorder = HookRecorder("jetsync_status")
        lane.on_write = lane.ack
        publisher = make(plugins=[recorder])
        publisher.publish("a.b").result(20)
        (call,) = recorder.wait_for("jetsync_status", timeout=20)
        assert (call["event"].acknowledged, call.thread) == (1, "jetsync-publisher")


class TestFailures:
    def test_the_client_is_closed_before_the_write(self, lane, make):
        """
        Staged messages fail with ConnectionClosedError; they were not sent.
        """
        publisher = make()
        with held(publisher):
            future = stage_in(publisher, ("a.b", b""))
            lane.close()
        assert publisher.flush(timeout=20) == 0
        assert isinstance(reason(future), jetsync.ConnectionClosedError)
        assert lane.payloads == []
        with pytest.raises(jetsync.ConnectionClosedError):
            publisher.publish("a.b")
        assert publisher.pending == 0

    def test_the_client_is_closed_while_a_message_is_in_flight(self, lane, make):
        """
        The message fails at once, and not when its ack is overdue.
        """
        future = make(ack_timeout=60.0).publish("a.b")
        eventually(lambda: lane.writes)
        lane.close()
        assert isinstance(reason(future), jetsync.PublishOutcomeUnknownError)

    def test_the_connection_is_lost_before_the_write(self, lane, make):
        """
        Staged messages are sent on the next connection, before later ones.
        """
        publisher = make()
        publisher.publish("a.b", b"0")
        with held(publisher) as window:
            for number in range(1, 4):
                stage_in(publisher, ("a.b", b"%d" % number))
            lane.lose()
            window.flush()
            assert window.stage.count == 3
        time.sleep(0.1)
        lane.reconnect()
        publisher.publish("a.b", b"4")
        publisher.flush(timeout=0)
        assert lane.payloads == [b"%d" % number for number in range(5)]

    def test_the_next_server_accepts_less(self, lane, make):
        """
        Staged messages that are too large for it fail, and the others are sent.
        """
        publisher = make()
        window, server = publisher._flight, publisher._flight.encoder._connection.server
        with held(publisher):
            futures = [
                stage_in(publisher, ("a.b", b"x" * size))
                for size in [1] * BLOCK_MESSAGES + [200, 2, 300]
            ]
            lane.lose()
            server.max_payload = 100
            lane.reconnect()
            window.flush()
        assert [len(payload) for payload in lane.payloads] == [1] * BLOCK_MESSAGES + [2]
        for future in (futures[-3], futures[-1]):
            assert isinstance(reason(future), jetsync.MaxPayloadError)

    def test_the_next_server_accepts_less_of_a_block(self, lane, window):
        """
        Messages of a block that are too large for the next server fail, and the others are sent.
        """
        window = window(size=8, ack_timeout=20.0)
        items = [("a.b", b"1"), ("a.b", b"x" * 200), ("a.b", b"2")]
        futures = [stage(window, item) for item in items]
        lane.lose()
        window.encoder._connection.server.max_payload = 100
        lane.reconnect()
        window.send()
        ((place, future, error),) = window.failures
        assert (place, future, type(error)) == (1, futures[1], jetsync.MaxPayloadError)
        assert lane.payloads == [b"1", b"2"]
        assert list(window.pipeline.in_flight) == [1, 3]

    def test_all_messages_are_abandoned(self, lane, window):
        """
        After a bug, the outcome of messages that were sent is unknown. No other is sent later.
        """
        window = window(ack_timeout=20.0)
        stage(window, ("a.b", b"1"))
        window.flush()
        stage(window, ("a.b", b"2"))
        bug = LookupError("a bug")
        window.abandon(bug)
        (_, _, second), (_, _, first) = window.failures
        assert isinstance(first, jetsync.PublishOutcomeUnknownError)
        assert second is bug
        assert window.open_count == 0
        window.flush()
        assert lane.payloads == [b"1"]

    def test_staged_messages_without_a_connection_fail_as_not_sent(self, lane, window):
        """
        Staged messages fail as not sent within the ack_timeout.
        """
        window = window(ack_timeout=0.2)
        stage(window, ("a.b", b""))
        lane.state = LaneState.DOWN
        window.flush()
        start = time.monotonic()
        while not window.failures:
            assert time.monotonic() - start < 2.0 + LATE
            time.sleep(max(0.0, window.due() - time.monotonic()))
            window.process_outcomes()
        ((number, _, error),) = window.failures
        assert number == 0
        assert isinstance(error, jetsync.DisconnectedError)
        assert 0.15 < time.monotonic() - start < 1.0 + LATE
        lane.reconnect()
        window.process_outcomes()
        assert lane.payloads == []
        assert window.open_count == 0

    def test_publish_without_a_connection(self, lane, make):
        """
        `publish` raises after ack_timeout, and the message does not count.
        """
        publisher = make(ack_timeout=3)
        lane.lose()
        with pytest.raises(jetsync.DisconnectedError):
            publisher.publish("a.b")
        assert publisher.pending == 0
        assert lane.payloads == []
        lane.reconnect()
        lane.on_write = lane.ack
        assert publisher.publish("a.b").result(20).sequence == 1

    def test_an_interrupt_in_the_write(self, lane, make):
        """
        The caller gets it, the message is unknown, and its number is not used again.
        """
        publisher = make(ack_timeout=3)

        def interrupt(_):
            raise KeyboardInterrupt

        lane.on_write = interrupt
        with pytest.raises(KeyboardInterrupt):
            publisher.publish("a.b", b"interrupted")
        lane.on_write = lane.ack
        future = publisher.publish("a.b", b"next")
        assert future.result(20).sequence == 1
        assert publisher.flush(timeout=20) == 0
        replies = {command.reply for command in lane.transport.published()}
        assert len(replies) == 2

    def test_an_answer_that_is_no_ack(self, lane, make):
        """
        The outcome is unknown, with the reason. Other messages are not affected.
        """
        publisher = make()
        broken, fine = publisher.publish("a.b"), publisher.publish("a.b")
        publisher.flush(timeout=0)
        first, second = lane.transport.published()
        lane.answer(first, b"no JSON")
        lane.ack([second], 3)
        error = reason(broken)
        assert isinstance(error, jetsync.PublishOutcomeUnknownError)
        assert isinstance(error.__cause__, jetsync.ProtocolError)
        assert fine.result(20).sequence == 3

    @pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
    def test_the_worker_itself_fails(self, lane, make, monkeypatch):
        """
        All open messages end, and no thread waits forever.
        """
        publisher = make(size=2)
        futures = [publisher.publish("a.b"), publisher.publish("a.b")]
        waiting = []

        def wait_for_room():
            with pytest.raises(jetsync.HandleClosedError) as caught:
                publisher.publish("a.b")
            waiting.append(caught.value)

        thread = threading.Thread(target=wait_for_room)
        thread.start()

        def fail():
            raise LookupError("a bug")

        monkeypatch.setattr(publisher._flight, "process_outcomes", fail)
        lane.box.interrupt()
        thread.join(5)
        assert "a bug" in str(waiting[0])
        for future in futures:
            assert isinstance(reason(future), jetsync.PublishOutcomeUnknownError)
        assert publisher.flush() == 0
        assert publisher.statistics().failed == 2

    @pytest.mark.parametrize(("count", "noun"), [(1, "message"), (2, "messages"), (0, None)])
    def test_what_a_client_says_that_ends(self, lane, make, count, noun):
        """
        A client that ends says how many messages of a publisher were not acknowledged.
        """
        publisher = make()
        for _ in range(count):
            publisher.publish("a.b")
        text = publisher.finish(Deadline.after(0.0))
        expected = f"{count} {noun} of a publisher may not be stored"
        assert text is None if noun is None else text.partition(";")[0] == expected

    def test_failures_are_kept_within_bounds(self, lane, make):
        """
        A publisher keeps a limited number of failures whose futures were not read.
        """
        lane.on_write = lambda commands: [
            lane.answer(command, b'{"error":{"code":400,"err_code":10071,"description":"no"}}')
            for command in commands
        ]
        publisher = make()
        for number in range(KEPT_FAILURES + 500):
            future = publisher.publish("a.b", b"%d" % number)
            if number % 2:
                future.observed = True
        assert publisher.flush(timeout=10) == 0
        with pytest.raises(jetsync.PublishManyError) as caught:
            publisher.close()
        kept = [failure.index for failure in caught.value.report.failures]
        assert kept == list(range(0, KEPT_FAILURES + 500, 2))

    def test_leaving_a_publisher_in_a_forked_child_does_not_wait(self, lane, make):
        """
        Leaving the block does not wait, because the thread belongs to the parent.
        """
        publisher = make()
        publisher.publish("a.b")
        lane.forked = True
        publisher.close()
        assert publisher.pending == 1
        lane.forked = False


class TestRefused:
    def test_one_that_is_sent_again(self, lane, make):
        """
        The message is sent again with its own number, and its ack is its outcome.
        """
        recorder = HookRecorder("jetsync_status")
        publisher = make(retry_wait=0.01, plugins=[recorder])
        future = publisher.publish("a.b", b"x")
        (first,) = lane.transport.published()
        assert recorder.of("jetsync_status") == []
        lane.answer(first, b"", NO_RESPONDERS)
        _, second = eventually(lambda: len(lane.payloads) == 2 and lane.transport.published())
        assert second.reply != first.reply
        assert second.data == b"x"
        (event,) = [call["event"] for call in recorder.of("jetsync_status")]
        assert (event.subject, event.messages, event.attempts) == ("a.b", 1, 1)
        lane.ack([second], 4)
        assert future.result(20).sequence == 4
        assert publisher.flush(timeout=20) == 0
        assert publisher._flight.entries() == []

    def test_a_retry_waits_for_a_connection_for_the_ack_timeout(self, lane, window):
        """
        The retry waits for a connection, at most for the ack timeout.
        """
        window = window(ack_timeout=20, retry_wait=0.0)
        for number in range(2):
            stage(window, ("a.b", b"%d" % number))
        window.flush()
        lane.state = LaneState.DOWN
        for command in lane.transport.published():
            lane.answer(command, b"", NO_RESPONDERS)
        window.settle()
        window.settle()
        assert (window.open_count, window.failures) == (2, [])
        lane.reconnect()
        time.sleep(max(0.0, window.due() - time.monotonic()))
        window.settle()
        assert lane.payloads == [b"0", b"1"] * 2

    def test_a_retry_without_a_connection_fails_as_not_stored(self, lane, window):
        """
        The message then fails with that error: it is not stored.
        """
        window = window(ack_timeout=0.1, retry_wait=0.0)
        stage(window, ("a.b", b""))
        window.flush()
        lane.state = LaneState.DOWN
        lane.answer(*lane.transport.published(), b"", NO_RESPONDERS)
        start = time.monotonic()
        while not window.failures:
            assert time.monotonic() - start < 2.0 + LATE
            window.settle()
            time.sleep(0.01)
        ((_, _, error),) = window.failures
        assert isinstance(error, jetsync.DisconnectedError)
        assert window.due() is None


class TestAckOrder:
    def test_runs_and_single_acks_keep_their_order(self):
        """
        Acks are processed in order, however the bytes are split.
        """
        box = Mailbox(b"_INBOX.x.*")
        splitter = frames.Splitter({b"1000": box})
        box.express = ack_runs.ack_taker(box.push, b"_INBOX.x.", b"1000", b'{"stream":"S","seq":')
        expected = list(range(300))
        data = b""
        for number in expected:
            payload = PLAIN % number
            if number % 37 == 5:
                payload = b'{"stream":"S","seq":%d,"duplicate":true}' % number
            data += b"MSG _INBOX.x.%d 1000 %d\r\n%b\r\n" % (number, len(payload), payload)
        for start in range(0, len(data), 700):
            splitter.feed(data[start : start + 700], [], [])
        came = []
        runs = 0
        for acks in box.drain():
            if isinstance(acks, list):
                runs += 1
                came += [number for number, _ in acks_of(acks)]
            else:
                came.append(int(acks[0].rpartition(b".")[2]))
        assert came == expected
        assert runs > 3
        assert not box.ready

    def test_kept_acks_of_a_run(self, lane, window):
        """
        They name the stream and keep their order among single acks.
        """
        window = window(ack_timeout=5.0)
        for number in range(6):
            stage(window, ("a.b", b"%d" % number))
        window.flush()
        commands = lane.transport.published()
        lane.ack(commands[:1])
        window.process_outcomes()
        box = window.box
        box.frames.append([(b"2", b"2"), (b"3", b"3")])
        lane.answer(commands[3], b'{"stream":"T","seq":9}')
        box.frames.append([(b"5", b"4"), (b"6", b"5")])
        window.process_outcomes()
        pipeline = window.pipeline
        acks = [(future.item[1], pipeline.full_ack(ack)) for future, ack in pipeline.acked]
        assert acks == [
            (b"0", PubAck("S", 1)),
            (b"1", PubAck("S", 2)),
            (b"2", PubAck("S", 3)),
            (b"3", PubAck("T", 9)),
            (b"4", PubAck("S", 4)),
            (b"5", PubAck("S", 5)),
        ]
