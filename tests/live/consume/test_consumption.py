"""
Consumptions on real servers: what they deliver, how they end, and which failures they survive.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

import jetsync
from helpers.consuming import seen
from helpers.streams import fill, fill_in_trouble
from helpers.waiting import (
    CLUSTER_CLIENT,
    LATE,
    at_some_pace,
    blocked,
    eventually,
    is_led,
    timed,
)
from jetsync._base.locks import Latch
from jetsync._proto.consume import ConsumeEngine
from jetsync.devserver import DevServer
from jetsync.testing import HookRecorder


def take(messages, count):
    """
    The payloads of the next messages, acknowledged.
    """
    got = []
    for _ in range(count):
        message = messages.next(timeout=20)
        message.ack()
        got.append(int(message.data))
    return got


@pytest.fixture
def fragile(victim, unique):
    """
    A recorder, a client of the server that may be stopped, a stream in a file, its consumer.
    """
    recorder = HookRecorder("jetsync_status", "jetsync_fetch")
    with jetsync.connect(victim.url, reconnect_wait=0.05, plugins=[recorder]) as client:
        js = client.jetstream()
        stream = js.create_stream(unique, subjects=[f"{unique}.>"])
        worker = stream.create_consumer("worker", ack_wait=30)
        yield recorder, client, js, stream, worker
        with contextlib.suppress(jetsync.JetSyncError):
            js.delete_stream(unique)


class TestIterator:
    def test_the_next_pull_is_sent_before_the_buffer_is_empty(self, js, stream, worker):
        """
        Iterating sends the next pull once few messages are left in the buffer.
        """
        fill(js, stream, 100)
        with worker.consume(max_messages=100) as messages:
            next(messages)
            eventually(lambda: messages._core.refill() or messages.statistics().received == 100)
            for _ in range(80):
                next(messages)
            assert messages.statistics().buffered == 19
            assert messages.statistics().pulls > 1

    def test_all_that_is_there_and_all_that_comes(self, js, stream, worker):
        """
        Five messages from before the start and five from after it arrive in order.
        """
        fill(js, stream, 5)
        with worker.consume() as messages:
            assert take(messages, 5) == [0, 1, 2, 3, 4]
            fill(js, stream, 5, start=5)
            assert take(messages, 5) == [5, 6, 7, 8, 9]
            assert messages.statistics().pulls == 1
        assert messages.closed

    @pytest.mark.clause("SC-55")
    @pytest.mark.parametrize(("size", "least", "most"), [(4, 25, 51), (1, 100, 101)])
    def test_pulls_of_a_small_buffer(self, js, stream, worker, size, least, most):
        """
        Each pull fills the buffer, also a buffer of one message.
        """
        fill(js, stream, 100)
        with worker.consume(max_messages=size) as messages:
            assert take(messages, 100) == list(range(100))
            assert least <= messages.statistics().pulls <= most

    def test_nothing_is_done_while_nothing_arrives(self, worker, monkeypatch):
        """
        A call that waits for a message looks at the consumption only when something is due.
        """
        looks, next_look = [], ConsumeEngine.next_look
        with worker.consume() as messages:
            monkeypatch.setattr(
                ConsumeEngine, "next_look", lambda self: looks.append(1) or next_look(self)
            )
            assert messages.next(timeout=0.3) is None
        assert 0 < len(looks) < 20

    @pytest.mark.parametrize(("limit", "least"), [(1, 10), (2, 5)])
    def test_a_buffer_of_few_bytes_delivers_all_messages_in_order(
        self, js, stream, worker, limit, least
    ):
        """
        A buffer in bytes that holds one or two messages delivers all messages in order.
        """
        fill(js, stream, 10, size=60)
        size = 60 + len(f"{stream.name}.A") + 80 + len(stream.name)
        with worker.consume(max_bytes=limit * size) as messages:
            got = []
            for message in messages:
                message.ack()
                got.append(int(message.data))
                statistics = messages.statistics()
                assert statistics.pending_bytes <= limit * size
                if len(got) == 10:
                    break
            assert got == list(range(10))
            assert statistics.pulls >= least

    @pytest.mark.clause("SC-68")
    def test_pulls_that_are_full_before_their_bytes(self, nats_server, js, stream):
        """
        Later messages of any size arrive after a pull that reached its message limit.
        """
        recorder = HookRecorder("jetsync_status", "jetsync_fetch")
        stream.create_consumer("few", max_batch=2)
        with jetsync.connect(nats_server.url, plugins=[recorder]) as client:
            few = client.jetstream().consumer(stream.name, "few")
            with few.consume(max_bytes=1024, threshold_bytes=0) as messages:
                fill(js, stream, 10)
                assert take(messages, 10) == list(range(10))
                pulls = [call["operation"] for call in recorder.of("jetsync_fetch")]
                assert {pull.max_bytes for pull in pulls} == {1024}
                assert len(pulls) in {5, 6}
                js.publish_many((f"{stream.name}.A", b"%-900d" % number) for number in range(10))
                assert take(messages, 10) == list(range(10))
        texts = {event.description for event in seen(recorder, "pull_status")}
        assert "Batch Completed" in texts

    def test_a_buffer_in_bytes_is_filled_up_at_its_threshold(self, nats_server, js, stream):
        """
        After a pull whose rest was too small for the next message, the next pull is due at half of
        the buffer, and asks for what it lacks.
        """
        recorder = HookRecorder("jetsync_fetch")
        fill(js, stream, 200, size=250)
        with jetsync.connect(nats_server.url, plugins=[recorder]) as client:
            reader = client.jetstream().stream(stream.name).create_consumer(ack_policy="none")
            with reader.consume(max_bytes=10_000, stop_after=200) as messages:
                assert [int(message.data) for message in messages] == list(range(200))
        asked = [call["operation"].max_bytes for call in recorder.of("jetsync_fetch")]
        assert min(asked) < 6_000

    @pytest.mark.clause("SC-88")
    def test_a_message_larger_than_the_buffer(self, js, stream, worker):
        """
        A message larger than the buffer ends the consumption, because it would block all later
        ones.
        """
        fill(js, stream, 1)
        fill(js, stream, 1, start=1, size=2000)
        got = []
        with pytest.raises(jetsync.MessageSizeExceedsMaxBytesError):
            got.extend(int(message.data) for message in worker.consume(max_bytes=1000))
        assert got == [0]

    def test_exactly_stop_after_messages_are_delivered(self, js, stream, worker):
        """
        Exactly stop_after messages are delivered and acknowledged, and no pull is left on the
        server.
        """
        fill(js, stream, 100)
        messages = worker.consume(max_messages=40, stop_after=50)
        got = []
        for message in messages:
            message.ack()
            got.append(int(message.data))
        assert got == list(range(50))
        assert messages.wait(timeout=10)
        js.account_info()
        info = eventually(lambda: (i := worker.info()).num_ack_pending == 0 and i)
        assert (info.num_pending, info.num_waiting) == (50, 0)

    def test_two_at_once(self, js, stream, worker):
        """
        Two consumptions of one consumer share its messages.
        """
        fill(js, stream, 100)
        with worker.consume(max_messages=10) as one, worker.consume(max_messages=10) as other:
            first, second = take(one, 1), take(other, 1)
            with ThreadPoolExecutor(2) as pool:
                rest = [
                    pool.submit(lambda m=m: [int(x.data) for x in m if not x.ack()])
                    for m in (one, other)
                ]
                eventually(lambda: worker.info().num_ack_pending == 0 == worker.info().num_pending)
                one.close()
                other.close()
                parts = [first + rest[0].result(20), second + rest[1].result(20)]
        assert sorted(parts[0] + parts[1]) == list(range(100))

    def test_threads_share_an_iterator(self, js, stream, worker):
        """
        Each message goes to one thread, and each thread is woken at the end.
        """
        fill(js, stream, 2000)
        messages = worker.consume(max_messages=50, stop_after=2000)

        def work():
            got = []
            for message in messages:
                message.ack()
                got.append(int(message.data))
            return got

        with ThreadPoolExecutor(4) as pool:
            parts = [future.result(20) for future in [pool.submit(work) for _ in range(4)]]
        assert sorted(number for part in parts for number in part) == list(range(2000))

    @pytest.mark.parametrize("count", [1, 5])
    def test_another_thread_takes_the_last_message_while_one_drives(
        self, js, stream, worker, monkeypatch, count
    ):
        """
        A thread that decides what to do ends, or sends the next pull, if others take all meanwhile.
        """
        fill(js, stream, count)
        messages = worker.consume(stop_after=count, max_messages=1)
        core, taken = messages._core, []
        drive = core._drive

        def drive_slowly():
            drive()
            while core.buffer:
                taker = threading.Thread(target=lambda: taken.append(next(messages)))
                taker.start()
                taker.join(20)

        monkeypatch.setattr(core, "_drive", drive_slowly)
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(list, messages).result(20) == []
        assert len(taken) == count

    def test_no_more_than_the_buffer_is_sent_to_a_slow_user(self, js, stream, worker):
        """
        Buffered messages count, so the server never sends more than the buffer holds.
        """
        fill(js, stream, 300)
        with worker.consume(max_messages=20) as messages:
            for taken in range(1, 101):
                messages.next(timeout=20).ack()
                if taken % 10 == 0:
                    # Not num_ack_pending: the server may send before it counts the last acks.
                    sent = worker.info().delivered.consumer_seq
                    assert sent <= taken + 20

    def test_acknowledged_when_the_next_one_is_taken(self, js, stream, worker):
        """
        With ack="auto", the end of the block acknowledges the last message, unless the block
        raised.
        """
        fill(js, stream, 10)
        with worker.consume(ack="auto", max_messages=5) as messages:
            assert [int(next(messages).data) for _ in range(5)] == [0, 1, 2, 3, 4]
        eventually(lambda: worker.info().ack_floor.stream_seq == 5)
        with contextlib.suppress(KeyError), worker.consume(ack="auto") as messages:
            next(messages)
            raise KeyError
        assert worker.info().ack_floor.stream_seq == 5

    def test_a_thread_that_died(self, js, stream, worker):
        """
        A later thread with the same ident does not acknowledge the last message of a thread that
        died.
        """
        fill(js, stream, 2)
        idents = []

        def take_one():
            ident = threading.get_ident()
            if not idents or ident == idents[0]:
                idents.append(ident)
                next(messages)

        with worker.consume(ack="auto") as messages:
            for _ in range(100):
                thread = threading.Thread(target=take_one)
                thread.start()
                thread.join()
                if len(idents) == 2:
                    break
            eventually(lambda: messages.statistics().received == 2)
            js.account_info()
            assert worker.info().ack_floor.stream_seq == 0

    def test_plugins_wrap_each_pull_once_and_see_each_message(self, nats_server, stream, js):
        """
        Plugins wrap each pull once, from its start to its end, and see each message.
        """
        fill(js, stream, 10)
        recorder = HookRecorder("jetsync_fetch", "jetsync_message_received")
        with jetsync.connect(nats_server.url, plugins=[recorder]) as client:
            reader = client.jetstream().stream(stream.name).create_consumer(ack_policy="none")
            list(reader.consume(max_messages=5, stop_after=10))
        pulls = [call["operation"] for call in recorder.of("jetsync_fetch")]
        assert {operation.name for operation in pulls} == {"consume"}
        assert sum(operation.max_messages for operation in pulls) == 10
        assert all(call.finished for call in recorder.of("jetsync_fetch"))
        assert len(recorder.of("jetsync_message_received")) == 10


class TestEnd:
    def test_waiting_for_the_end(self, worker):
        """
        A thread that takes no messages can wait until another one closes the consumption.
        """
        messages = worker.consume()
        with ThreadPoolExecutor(1) as pool:
            call = pool.submit(messages.wait, timeout=60)
            blocked(pool)
            assert not call.done()
            messages.close()
            assert call.result(20) is True

    def test_stop_redelivers(self, js, stream, worker):
        """
        Messages that were not taken are redelivered at once.
        """
        fill(js, stream, 10)
        with worker.consume() as messages:
            assert take(messages, 5) == [0, 1, 2, 3, 4]
        with timed(0, 2), worker.consume() as messages:
            assert sorted(take(messages, 5)) == [5, 6, 7, 8, 9]

    def test_statistics_count_messages_that_no_thread_has_asked_for(self, js, stream, worker):
        """
        statistics() counts the messages that have arrived, before and after the first one is taken.
        """
        with worker.consume() as messages:
            fill(js, stream, 5)
            eventually(lambda: messages.statistics().received == 5)
            assert messages.statistics().buffered == 5
            assert take(messages, 1) == [0]
            fill(js, stream, 5, start=5)
            eventually(lambda: messages.statistics().buffered == 9)

    def test_stop_discards(self, js, stream, worker):
        """
        close() after two of five messages ends the iteration.
        """
        fill(js, stream, 5)
        messages = worker.consume()
        take(messages, 2)
        eventually(lambda: messages.statistics().pending == 495)
        messages.close()
        with pytest.raises(jetsync.ConsumptionClosedError):
            messages.next()
        assert list(messages) == []
        assert (messages.closed, messages.error, messages.wait(timeout=0)) == (True, None, True)
        messages.close()
        messages.drain()
        assert "closed" in repr(messages)

    def test_drain_delivers(self, js, stream, worker):
        """
        drain() after two of five messages delivers the other three and ends the iteration.
        """
        fill(js, stream, 5)
        messages = worker.consume()
        take(messages, 2)
        eventually(lambda: messages.statistics().pending == 495)
        messages.drain()
        fill(js, stream, 5, start=5)
        assert not messages.closed
        assert "ending" in repr(messages)
        assert [int(message.data) for message in messages] == [2, 3, 4]
        assert messages.wait(timeout=10)
        with pytest.raises(jetsync.ConsumptionClosedError):
            messages.next()

    def test_the_client_waits_once_for_all(self, nats_server, js, stream, monkeypatch):
        """
        A client that drains waits 1 s for threads with a last message, not 1 s per consumption.
        """
        fill(js, stream, 5)
        waited = []
        wait = Latch.wait

        def noted(latch, timeout=threading.TIMEOUT_MAX):
            if any(latch is each._core.end_seen for each in running):
                waited.append(timeout)
            return wait(latch, timeout)

        with jetsync.connect(nats_server.url) as client:
            mine = client.jetstream().stream(stream.name)
            running = [mine.create_consumer(f"c{number}").consume() for number in range(5)]
            for messages in running:
                take(messages, 5)
            monkeypatch.setattr(Latch, "wait", noted)
            client.drain()
        assert len(waited) == 5
        assert sum(waited) <= 1.0

    def test_a_client_does_not_wait_for_a_block_that_was_left(
        self, nats_server, stream, worker, monkeypatch
    ):
        """
        A client that drains does not wait for the messages of a `with` block that has ended.
        """
        monkeypatch.setattr("jetsync.client.CLOSING_WAIT", 60.0)
        with jetsync.connect(nats_server.url) as client:
            consumer = client.jetstream().consumer(stream.name, worker.name)
            fill(client.jetstream(), stream, 3)
            with consumer.consume() as messages:
                next(messages).ack()
            # The program still refers to the consumption.
            with timed(0, 20):
                client.drain(timeout=50)

    def test_stop_after_drain(self, js, stream, worker):
        """
        close() ends a drain, and the remaining messages are redelivered at once.
        """
        fill(js, stream, 5)
        messages = worker.consume()
        take(messages, 2)
        messages.drain()
        messages.close()
        assert messages.closed
        with timed(0, 2), worker.consume() as again:
            assert sorted(take(again, 3)) == [2, 3, 4]

    @pytest.mark.parametrize("end", ["close", "drain"])
    @pytest.mark.parametrize("threads", [1, 3])
    def test_waiting_threads_are_woken(self, worker, end, threads):
        """
        Threads that wait in next() are woken at once.
        """
        messages = worker.consume()

        def wait():
            with pytest.raises(jetsync.ConsumptionClosedError):
                messages.next(timeout=20)

        with ThreadPoolExecutor(threads) as pool:
            waiting = [pool.submit(wait) for _ in range(threads)]
            eventually(lambda: is_led(messages))
            with timed(0, 0.5):
                getattr(messages, end)()
                for future in waiting:
                    future.result(20)

    def test_next_returns_none_after_its_timeout(self, js, stream, worker):
        """
        next() returns None after its timeout, and a later call gets the next message.
        """
        messages = worker.consume()
        with timed(0.1, 0.3):
            assert messages.next(timeout=0.1) is None
        assert messages.next(timeout=0) is None
        fill(js, stream, 1)
        assert take(messages, 1) == [0]
        messages.close()

    def test_a_closed_client_ends_the_iteration_over_a_consumption(
        self, nats_server, stream, worker
    ):
        """
        next() raises an error at once, and an iteration ends.
        """
        client = jetsync.connect(nats_server.url)
        messages = client.jetstream().consumer(stream.name, "worker").consume()
        other = client.jetstream().consumer(stream.name, "worker").consume()
        with ThreadPoolExecutor(2) as pool:
            waiting = pool.submit(messages.next)
            iterating = pool.submit(list, other)
            eventually(lambda: is_led(messages) and is_led(other))
            with timed(0, 1):
                client.close()
                assert isinstance(waiting.exception(20), jetsync.ConnectionClosedError)
                assert iterating.result(20) == []
        assert messages.error is None

    def test_a_dropped_consumption_gives_its_messages_back(self, client, js, stream, worker):
        """
        A dropped consumption gives its messages back and leaves no subscription.
        """
        fill(js, stream, 5)
        before = client.statistics().subscriptions
        messages = worker.consume()
        take(messages, 1)
        assert client.statistics().subscriptions == before + 1
        del messages
        gc.collect()
        eventually(lambda: client.statistics().subscriptions == before)
        with timed(0, 2), worker.consume(max_messages=4) as messages:
            assert sorted(take(messages, 4)) == [1, 2, 3, 4]


class TestGone:
    def test_buffered_messages_are_delivered_after_a_deletion(
        self, nats_server, js, stream, worker
    ):
        """
        After a deletion, the buffered messages are delivered. The error is raised and reported
        once.
        """
        recorder = HookRecorder("jetsync_status")
        fill(js, stream, 3)
        with jetsync.connect(nats_server.url, plugins=[recorder]) as client:
            messages = client.jetstream().consumer(stream.name, "worker").consume()
            assert take(messages, 1) == [0]
            eventually(lambda: messages.statistics().received == 3)
            worker.delete()
            assert take(messages, 2) == [1, 2]
            with timed(0, 1), pytest.raises(jetsync.ConsumerDeletedError):
                messages.next(timeout=20)
            with pytest.raises(jetsync.ConsumptionClosedError, match="Consumer Deleted"):
                messages.next(timeout=20)
            assert list(messages) == []
            assert messages.closed
            assert isinstance(messages.error, jetsync.ConsumerDeletedError)
            assert [event.outcome.value for event in seen(recorder, "pull_status")] == ["failed"]

    def test_a_consumption_ends_with_its_stream(self, js, stream, worker):
        """
        A consumption ends with its stream, whether the stream is deleted before or during a wait.
        """
        waiting, late = worker.consume(), worker.consume()
        assert waiting.next(timeout=0) is None
        # The server does not answer a pull that reaches it during the deletion.
        eventually(lambda: worker.info().num_waiting)
        js.delete_stream(stream.name)
        gone = (jetsync.ConsumerDeletedError, jetsync.StreamNotFoundError)
        for messages in (waiting, late, worker.consume()):
            with timed(0, 1), pytest.raises(gone):
                next(messages)
            assert messages.closed

    def test_gone_before(self, js, stream, worker):
        """
        If the consumer is gone at the start, one info request finds that out.
        """
        worker.delete()
        with timed(0, 1), pytest.raises(jetsync.ConsumerNotFoundError):
            next(worker.consume())

    @pytest.mark.clause("SC-109")
    def test_deleted_while_disconnected(self, victim, fragile):
        """
        If the consumer is gone after a reconnect, one info request finds that out.
        """
        _recorder, client, js, stream, worker = fragile
        messages = worker.consume(expires=2, heartbeat=1)
        fill(js, stream, 1)
        assert take(messages, 1) == [0]
        with jetsync.connect(victim.url) as other:
            client.reconnect()
            other.jetstream().delete_consumer(stream.name, "worker")
        with (
            timed(0, 2.5),
            pytest.raises(
                (
                    jetsync.ConsumerNotFoundError,
                    jetsync.ConsumerDeletedError,
                )
            ),
        ):
            messages.next(timeout=30)
        assert messages.closed

    def test_the_client_gives_up(self, unique):
        """
        If the client gives up reconnecting, the consumption ends with that error.
        """
        recorder = HookRecorder("jetsync_status")
        with DevServer() as server:
            client = jetsync.connect(
                server.url, reconnect_wait=0.05, max_reconnects=2, plugins=[recorder]
            )
            stream = client.jetstream().create_stream(unique, subjects=[f"{unique}.>"])
            messages = stream.create_consumer("w").consume()
            server.kill()
            with timed(0, 10), pytest.raises(jetsync.ConnectionClosedError):
                for _ in messages:
                    pass
        kinds = [call["event"].kind.value for call in recorder.of("jetsync_status")]
        assert kinds[0] == "disconnected"
        assert messages.closed
        client.close()


class TestTrouble:
    def test_a_restart(self, victim, fragile):
        """
        After a restart of the server, one new pull gets all messages once.
        """
        recorder, _client, js, stream, worker = fragile
        messages = worker.consume(expires=30, heartbeat=10)
        fill(js, stream, 1)
        assert take(messages, 1) == [0]
        before = messages.statistics().pulls
        with ThreadPoolExecutor(1) as pool:
            first = pool.submit(messages.next, timeout=20)
            eventually(lambda: is_led(messages))
            victim.restart()
            fill_in_trouble(js, stream, 10, start=1)
            with timed(0, 2):
                message = first.result(20)
            message.ack()
        got = [int(message.data), *take(messages, 9)]
        if 0 in got:
            # The server may have stopped before it stored the acknowledgement.
            got.remove(0)
            got += take(messages, 1)
        assert got == list(range(1, 11))
        statistics = messages.statistics()
        assert (statistics.pulls, statistics.connections_lost) == (before + 1, 1)
        assert not seen(recorder, "heartbeat_missed")
        messages.close()

    def test_missed_heartbeats_of_a_consumption_are_reported(self, victim, fragile):
        """
        Missed heartbeats are reported, the consumption continues, and later messages arrive.
        """
        recorder, _client, js, stream, worker = fragile
        messages = worker.consume(expires=10, heartbeat=0.5)
        fill(js, stream, 1)
        assert take(messages, 1) == [0]
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(messages.next, timeout=20)
            eventually(lambda: is_led(messages))
            victim.pause()
            try:
                with timed(0, 1.6):
                    eventually(lambda: seen(recorder, "heartbeat_missed"))
            finally:
                victim.resume()
            fill(js, stream, 1, start=1)
            assert int(waiting.result(20).data) == 1
        (event, *_) = seen(recorder, "heartbeat_missed")
        assert event.heartbeat == 0.5
        assert 0.9 <= event.silent_for <= 1.6 + LATE
        assert messages.error is None
        assert messages.statistics().heartbeats_missed >= 1
        messages.close()

    def test_a_slow_user(self, js, stream, nats_server):
        """
        Heartbeats that arrive while the program is busy are not reported as missed.
        """

        def attempt(pace):
            stream.purge()
            stream.create_or_update_consumer("w", ack_wait=60)
            recorder = HookRecorder("jetsync_status")
            with jetsync.connect(nats_server.url, plugins=[recorder]) as client:
                reader = client.jetstream().consumer(stream.name, "w")
                messages = reader.consume(expires=pace, heartbeat=0.5 * pace, max_messages=2)
                fill(js, stream, 3)
                for number in range(3):
                    message = messages.next(timeout=20)
                    assert (int(message.data), message.metadata.delivered) == (number, 1)
                    # Longer than the pull and its heartbeats.
                    time.sleep(1.2 * pace)
                    message.ack()
                assert messages.next(timeout=0.2) is None
                assert not seen(recorder, "heartbeat_missed")
                assert messages.statistics().pulls <= 6
                messages.close()

        at_some_pace(attempt)

    def test_the_connection_is_lost_while_the_user_is_away(self, fragile):
        """
        After a loss while the program is busy, the next wait sends a new pull.
        """
        _recorder, client, js, stream, worker = fragile
        messages = worker.consume(max_messages=10)
        fill(js, stream, 1)
        assert take(messages, 1) == [0]
        client.reconnect()
        eventually(lambda: client.is_connected and client.statistics().reconnects == 1)
        fill(js, stream, 5, start=1)
        with timed(0, 2):
            assert take(messages, 5) == [1, 2, 3, 4, 5]
        messages.close()

    def test_stop_while_disconnected(self, victim, fragile):
        """
        close() wakes a thread that waits for the connection.
        """
        _recorder, client, _js, _stream, worker = fragile
        messages = worker.consume()
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(list, messages)
            eventually(lambda: is_led(messages))
            victim.kill()
            try:
                eventually(lambda: not client.is_connected)
                with timed(0, 0.5):
                    messages.close()
                    assert waiting.result(20) == []
            finally:
                victim.start()
        eventually(lambda: client.is_connected)

    def test_a_pull_that_expires(self, nats_server, js, stream):
        """
        The pull after one that expired asks for no more than the buffer can hold.
        """
        recorder = HookRecorder("jetsync_status", "jetsync_fetch")
        stream.create_consumer("w")
        with jetsync.connect(nats_server.url, plugins=[recorder]) as client:
            reader = client.jetstream().consumer(stream.name, "w")
            messages = reader.consume(expires=1, max_messages=500)
            fill(js, stream, 200)
            assert take(messages, 1) == [0]
            with ThreadPoolExecutor(1) as pool:
                got = pool.submit(take, messages, 200)
                recorder.wait_for("jetsync_fetch", 2)
                eventually(lambda: seen(recorder, "pull_status"))
                assert messages.statistics().pending <= 500
                fill(js, stream, 1, start=200)
                assert got.result(10) == list(range(1, 201))
            messages.close()
        first = seen(recorder, "pull_status")[0]
        assert (first.code, first.outcome.value) == (408, "ended")

    def test_pulls_keep_to_limits_that_are_lowered_meanwhile(self, js, stream):
        """
        Pulls keep to the limits of the consumer, also if one is lowered meanwhile.
        """
        small = stream.create_consumer("w", max_batch=10, max_expires=2)
        fill(js, stream, 100)
        with small.consume() as messages:
            assert take(messages, 30) == list(range(30))
            stream.update_consumer("w", max_batch=3, max_expires=2)
            assert sorted(take(messages, 70)) == list(range(30, 100))
            assert messages.error is None

    def test_a_time_that_was_lowered(self, js, stream, worker):
        """
        If max_expires is lowered, one pull is refused, and later ones are shorter.
        """
        fill(js, stream, 3)
        stream.update_consumer("worker", max_expires=2)
        with worker.consume() as messages, timed(0, 2):
            assert take(messages, 3) == [0, 1, 2]

    def test_repeated_refusals(self, client, stream, worker, caplog):
        """
        Repeated refusals of pulls are logged as a warning, and the consumption continues.
        """
        elsewhere = client.jetstream(prefix="nobody.listens.here")
        lost = jetsync.Consumer(elsewhere._context, stream.name, worker.cached_info)
        with caplog.at_level(logging.WARNING, "jetsync.consume"), lost.consume() as messages:
            eventually(
                lambda: messages.next(timeout=0.1) is None and "pulls_refused" in caplog.text, 60
            )
            assert messages.next(timeout=1) is None
            assert caplog.text.count("pulls_refused") == 1
            assert (
                "description='the consumer has no leader at the moment, or is gone'" in caplog.text
            )
            assert messages.error is None


@pytest.mark.versions
@pytest.mark.parametrize("version", ["2.10.26", "2.11.11", "2.12.8", "2.14.6"])
class TestVersions:
    """
    Servers of different versions send different statuses for pulls.
    """

    @pytest.fixture
    def older(self, version, server_for, unique):
        """
        A context on that server, a stream and its consumer.
        """
        with jetsync.connect(server_for(version).url) as client:
            js = client.jetstream()
            stream = js.create_stream(unique, subjects=[f"{unique}.>"], storage="memory")
            yield js, stream, stream.create_consumer("worker")
            js.delete_stream(unique)

    def test_everything_comes(self, older):
        """
        All messages arrive with buffers of one, a few and many messages, in bytes, and after a pull
        expired.
        """
        js, stream, worker = older
        fill(js, stream, 400)
        for number, options in enumerate(
            (
                {"max_messages": 1},
                {"max_messages": 3},
                {},
                {"max_bytes": 500},
            )
        ):
            with worker.consume(stop_after=100, **options) as messages:
                assert take(messages, 100) == list(range(100 * number, 100 * number + 100))

        def after_a_pull_expired(pace):
            stream.purge()
            with worker.consume(expires=pace, heartbeat=0.5 * pace) as messages:
                assert messages.next(timeout=1.2 * pace) is None
                fill(js, stream, 1, start=400)
                assert take(messages, 1) == [400]
                assert messages.statistics().heartbeats_missed == 0

        at_some_pace(after_a_pull_expired)

    def test_a_consumption_ends_if_its_consumer_is_deleted(self, older):
        """
        The consumption ends if the consumer is deleted before it or during it.
        """
        _, _, worker = older
        messages = worker.consume()
        assert messages.next(timeout=0.1) is None
        worker.delete()
        with timed(0, 1), pytest.raises(jetsync.ConsumerDeletedError):
            next(messages)
        with timed(0, 1), pytest.raises(jetsync.ConsumerNotFoundError):
            next(worker.consume())


class TestBounds:
    @pytest.mark.parametrize(
        "options",
        [
            {"max_messages": 0},
            {"max_messages": -1},
            {"max_messages": 10, "max_bytes": 1000},
            {"max_bytes": 0},
            {"expires": 0.9},
            {"expires": 2, "heartbeat": 1.1},
            {"heartbeat": 0.4},
            {"expires": 120, "heartbeat": 31},
            {"threshold_messages": 501},
            {"threshold_bytes": 10},
            {"max_bytes": 100, "threshold_bytes": 101},
            {"max_bytes": 100, "threshold_messages": 1},
            {"stop_after": 0},
            {"priority": 10},
            {"priority": -1},
            {"ack": "maybe"},
        ],
    )
    def test_invalid_options_of_a_consumption_send_nothing(self, worker, options):
        """
        Invalid options raise an error before anything is sent.
        """
        with pytest.raises(ValueError, match=r"\w+"):
            worker.consume(**options)

    def test_a_consumption_holds_500_messages_by_default(self, nats_server, stream, worker):
        """
        The defaults are 500 messages, 30 seconds and a heartbeat every 15 seconds.
        """
        recorder = HookRecorder("jetsync_fetch")
        with jetsync.connect(nats_server.url, plugins=[recorder]) as client:
            with client.jetstream().consumer(stream.name, "worker").consume() as messages:
                assert messages._core.engine.options.threshold == 250
            (call,) = recorder.of("jetsync_fetch")
        operation = call["operation"]
        assert (operation.max_messages, operation.max_bytes) == (500, None)
        assert (operation.expires, operation.heartbeat) == (30.0, 15.0)


@pytest.mark.cluster
class TestCluster:
    def test_leaders_come_and_go(self, unique):
        """
        A leader that steps down, or whose server stops, is reported and does not end the
        consumption.
        """
        recorder = HookRecorder("jetsync_status")
        with (
            DevServer(cluster=3) as cluster,
            jetsync.connect(cluster.url, plugins=[recorder], **CLUSTER_CLIENT) as client,
        ):
            js = client.jetstream()
            stream = js.create_stream(unique, subjects=[f"{unique}.>"], num_replicas=3)
            worker = stream.create_consumer("worker")
            fill(js, stream, 10)
            messages = worker.consume(max_messages=20, expires=10, heartbeat=1)
            got = set()

            def take_up_to(count):
                # A new leader may not know the latest deliveries of the previous one.
                while len(got) < count:
                    got.update(take(messages, 1))

            take_up_to(10)
            with ThreadPoolExecutor(1) as pool:
                for turn in range(1, 3):
                    rest = pool.submit(take_up_to, 10 * turn + 10)
                    client.request(f"$JS.API.CONSUMER.LEADER.STEPDOWN.{unique}.worker", b"")
                    fill_in_trouble(js, stream, 10, start=10 * turn)
                    rest.result(30)
                index = cluster.wait_stream_leader(unique)
                rest = pool.submit(take_up_to, 40)
                cluster.stop(index)
                fill_in_trouble(js, stream, 10, start=30)
                rest.result(30)
            assert got == set(range(40))
            assert messages.error is None
            outcomes = {event.outcome.value for event in seen(recorder, "pull_status")}
            assert outcomes <= {"retried", "ended", "ignored"}
            assert "retried" in outcomes
            messages.close()


def test_threads_are_not_started(js, stream, worker):
    """
    An iterator has no thread of its own.
    """
    before = threading.active_count()
    with worker.consume():
        assert threading.active_count() == before
