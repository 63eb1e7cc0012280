"""
Servers that deliver jobs again which a receiver has or has settled, and servers that go away.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

import jetsync
from jetsync.devserver import DevServer
from jetsync.testing import eventually
from jetsync_queue import ReceiverClosedError, WorkQueue, intake, steps
from jetsync_queue.delivery import Delivery
from jetsync_queue.steps import Step

pytestmark = pytest.mark.live


@pytest.fixture
def server():
    """
    A server that only this test uses.
    """
    with DevServer() as server:
        yield server


@pytest.fixture
def own_queue(server):
    """
    A queue of this server; its client reconnects quickly.
    """
    with jetsync.connect(server.url, reconnect_wait=0.1, max_reconnect_wait=0.2) as client:
        yield WorkQueue.open(client.jetstream(), "mail", prefix="shop", results=False)


@pytest.fixture
def client(nats_server):
    """
    A client that answers for a receiver.
    """
    with jetsync.connect(nats_server.url) as client:
        yield client


def deliver_again(queue, client, job):
    """
    Have the server deliver a job again, and wait until it has.
    """
    client.publish(job.message.reply, b"-NAK")
    consumer = queue.stream.consumer(job.message.metadata.consumer)
    eventually(
        lambda: consumer.info().delivered.consumer_seq > job.message.metadata.consumer_sequence
    )


def note_end(monkeypatch):
    """
    Return an event that is set when a receiver stops to fetch.
    """
    has_stopped = threading.Event()
    close = jetsync.Consumption.close

    def stop(consumption):
        close(consumption)
        has_stopped.set()

    monkeypatch.setattr(jetsync.Consumption, "close", stop)
    return has_stopped


class TestCopies:
    def test_a_job_that_the_receiver_has_is_not_handed_out_again(self, queue, client):
        """
        The next call gets the next job, and the first one can still be settled.
        """
        queue.put(1)
        with queue.receive() as receiver:
            first = receiver.get(timeout=30)
            deliver_again(queue, client, first)
            queue.put(2)
            second = receiver.get(timeout=30)
            assert (first.data, second.data) == (1, 2)
            assert receiver.get(timeout=0.2) is None
            for each in (first, second):
                each.ack(confirmed=True)
            assert queue.statistics().open == 0

    def test_a_job_whose_acknowledgement_was_lost_is_acknowledged_again(
        self, queue, client, monkeypatch
    ):
        """
        It is not handed out.
        """
        queue.put(1)
        with queue.receive() as receiver:
            found = receiver.get(timeout=30)
            with monkeypatch.context() as lost:
                lost.setattr(jetsync.Message, "ack", lambda _: None)
                found.ack()
            assert receiver.unsettled == 0
            assert queue.statistics().open == 1
            client.publish(found.message.reply, b"-NAK")
            eventually(lambda: queue.statistics().open == 0)
            assert receiver.get(timeout=0.2) is None

    def test_a_copy_of_a_job_that_is_being_acknowledged_is_acknowledged(
        self, queue, client, monkeypatch
    ):
        """
        A server that has forgotten a delivery ignores its acknowledgement, and delivers it again.
        """
        queue.put(1)
        began, go = threading.Event(), threading.Event()

        def wait(message, **_):
            with monkeypatch.context() as patch:
                patch.setattr(type(message), "is_acked", True)
                began.set()
                assert go.wait(30)

        with queue.receive() as receiver:
            found = receiver.get(timeout=30)
            monkeypatch.setattr(jetsync.Message, "ack_sync", wait)
            thread = threading.Thread(target=found.ack, kwargs={"confirmed": True})
            thread.start()
            assert began.wait(30)
            client.publish(found.message.reply, b"-NAK")
            eventually(lambda: queue.statistics().open == 0)
            assert receiver.get(timeout=0.2) is None
            go.set()
            thread.join()

    def test_a_job_that_could_not_be_given_back_is_still_recognised(
        self, queue, client, monkeypatch
    ):
        """
        Given back, it comes again.
        """

        def fail(_, __=None):
            raise jetsync.DisconnectedError(timeout=1.0)

        queue.put(1)
        with queue.receive() as receiver:
            found = receiver.get(timeout=30)
            with monkeypatch.context() as broken:
                broken.setattr(jetsync.Message, "nak", fail)
                with pytest.raises(jetsync.DisconnectedError):
                    found.requeue()
            deliver_again(queue, client, found)
            assert receiver.get(timeout=0.2) is None
            found.requeue()
            assert receiver.get(timeout=30).sequence == found.sequence


class TestOutages:
    def test_jobs_that_nobody_has_taken_are_dropped(self, server, own_queue):
        """
        The server delivers them again, perhaps to another worker.
        """
        own_queue.put(1)
        own_queue.put(2)
        with own_queue.receive(prefetch=1) as receiver:
            first = receiver.get(timeout=30)
            eventually(lambda: receiver.held == 1)
            server.kill()
            eventually(lambda: receiver.held == 0)
            server.start()
            first.ack(confirmed=True)
            assert receiver.get(timeout=60).data == 2

    def test_a_job_that_was_held_for_too_long_is_not_handed_out(self, queue, monkeypatch):
        """
        The keeper was late, and another worker may have the job.
        """
        queue.put(1)
        with queue.receive() as receiver:
            eventually(lambda: receiver.held == 1)
            monkeypatch.setattr(intake, "LONGEST_HOLD", 0.0)
            assert receiver.get() is None

    def test_progress_is_reported_as_soon_as_the_server_is_back(
        self, server, own_queue, monkeypatch
    ):
        """
        Not only when the next report is due, after 7.5 s.
        """
        own_queue.put(1)
        own_queue.put(2)
        reported = threading.Event()
        monkeypatch.setattr(Delivery, "extend", lambda _: reported.set())
        with own_queue.receive(prefetch=1) as receiver:
            job = receiver.get(timeout=30)
            eventually(lambda: receiver.held == 1)
            server.kill()
            eventually(lambda: receiver.held == 0)
            server.start()
            began = time.monotonic()
            assert reported.wait(30)
            assert time.monotonic() - began < 5.0
            job.ack()

    def test_nothing_is_fetched_right_after_an_outage(self, server, own_queue, monkeypatch):
        """
        Other workers get the time to acknowledge what they have done.
        """
        monkeypatch.setattr(intake, "GRACE", 60.0)
        own_queue.put(1)
        with own_queue.receive(prefetch=1) as receiver:
            eventually(lambda: receiver.held == 1)
            has_stopped = note_end(monkeypatch)
            server.kill()
            assert has_stopped.wait(30)
            server.start()
            own_queue.put(2)
            assert receiver.get(timeout=2) is None
            monkeypatch.setattr(intake, "GRACE", 0.0)
            assert receiver.get(timeout=30).data == 2

    def test_nothing_is_fetched_while_the_consumer_has_no_leader(self, queue, monkeypatch):
        """
        The next leader would deliver jobs whose acknowledgements have not arrived.
        """
        monkeypatch.setattr(intake, "KEEP_ALIVE_AFTER", 0.0)
        queue.put(1)
        with queue.receive() as receiver:
            job = receiver.get(timeout=30)
            has_stopped = note_end(monkeypatch)
            monkeypatch.setattr(Step, "is_reachable", lambda *_, **__: False)
            assert has_stopped.wait(30)
            queue.put(2)
            assert receiver.get(timeout=1) is None
            monkeypatch.setattr(Step, "is_reachable", lambda *_, **__: True)
            assert receiver.get(timeout=30).data == 2
            job.ack()

    def test_a_server_that_is_only_slow_is_reachable(self, queue, monkeypatch):
        """
        After a long silence, the receiver waits longer for an answer, and then always.
        """
        waits = []
        info = jetsync.Consumer.info

        def answer(consumer, *, timeout):
            waits.append(timeout)
            if timeout < 1.0:
                raise jetsync.RequestTimeoutError("info", timeout)
            time.sleep(0.3)
            return info(consumer)

        monkeypatch.setattr(intake, "KEEP_ALIVE_AFTER", 0.0)
        monkeypatch.setattr(intake, "LONG_SILENCE", 1.5)
        queue.put(1)
        with queue.receive() as receiver:
            job = receiver.get(timeout=30)
            has_stopped = note_end(monkeypatch)
            monkeypatch.setattr(jetsync.Consumer, "info", answer)
            assert has_stopped.wait(30)
            queue.put(2)
            assert receiver.get(timeout=30).data == 2
            eventually(lambda: waits[-1] not in {steps.ANSWER, steps.LATE_ANSWER})
            job.ack()

    def test_progress_is_reported_again_until_the_consumer_can_be_reached(self, queue, monkeypatch):
        """
        Servers do not confirm reports, and nothing gets them while there is no leader.
        """
        answers = iter([False, False, True])
        monkeypatch.setattr(Step, "is_reachable", lambda *_, **__: next(answers, True))
        monkeypatch.setattr(intake, "KEEP_ALIVE_AFTER", 0.0)
        reports = []
        monkeypatch.setattr(Delivery, "extend", lambda _: reports.append(time.monotonic()))
        queue.put(1)
        with queue.receive() as receiver:
            job = receiver.get(timeout=30)
            eventually(lambda: len(reports) >= 3)
            monkeypatch.undo()
            job.ack()

    @pytest.mark.parametrize("request_timeout", [0.5, 120])
    def test_the_timeout_of_a_result_limits_the_wait_for_a_server(self, server, request_timeout):
        """
        Neither shorter nor longer waits for other requests matter.
        """
        waits = {
            "request_timeout": request_timeout,
            "reconnect_wait": 0.1,
            "max_reconnect_wait": 0.2,
        }
        with jetsync.connect(server.url, **waits) as client, ThreadPoolExecutor(2) as pool:
            queue = WorkQueue.open(client.jetstream(), "mail", prefix="shop")
            job = queue.put(1)
            with queue.worker(lambda _: 5):
                job.result(timeout=30)
            server.kill()
            eventually(lambda: not client.is_connected)
            gives_up, waits_on = (pool.submit(job.result, timeout=each) for each in (1, 90))
            with pytest.raises((jetsync.DisconnectedError, jetsync.RequestTimeoutError)):
                gives_up.result(60)
            server.start()
            assert waits_on.result(60) == 5

    def test_a_client_that_is_closed_without_a_server_ends_its_receivers(self, server, monkeypatch):
        """
        Calls do not wait for ever, although the receiver has stopped fetching.
        """
        with jetsync.connect(server.url) as client:
            queue = WorkQueue.open(client.jetstream(), "mail", prefix="shop")
            receiver = queue.receive()
            assert receiver.get(timeout=0.5) is None
            has_stopped = note_end(monkeypatch)
            server.kill()
            assert has_stopped.wait(30)
        with pytest.raises(ReceiverClosedError):
            receiver.get(timeout=30)
        receiver.close()
