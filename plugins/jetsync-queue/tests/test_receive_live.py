"""
Taking jobs one by one, as adapters for other frameworks do.
"""

from __future__ import annotations

import os
import select
import threading
import time

import pytest

import jetsync
from jetsync_queue import QueueStatistics, ReceiverClosedError

pytestmark = pytest.mark.live


def wait_for(condition, timeout=30):
    """
    Wait until something holds.
    """
    limit = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < limit


def running_threads():
    """
    Return the names of the threads of the plugin.
    """
    names = [thread.name for thread in threading.enumerate()]
    return [name for name in names if name.startswith("jetsync-queue-")]


class TestTaking:
    def test_polling_does_not_wait(self, queue):
        """
        Without a job, None is returned at once; a limit of time is kept.
        """
        with queue.receive() as receiver:
            assert receiver.get() is None
            began = time.monotonic()
            assert receiver.get(timeout=0.2) is None
            assert 0.1 < time.monotonic() - began < 10

    def test_the_descriptor_is_readable_while_there_may_be_a_job(self, queue):
        """
        An event loop can wait for it, and is woken for jobs that come later.
        """
        with queue.receive() as receiver:
            assert receiver.get() is None
            assert select.select([receiver], [], [], 0)[0] == []
            for number in range(3):
                queue.put(number)
                assert select.select([receiver], [], [], 30)[0] == [receiver]
                found = receiver.get()
                assert found.data == number
                found.ack()
                assert receiver.get() is None
                assert select.select([receiver], [], [], 0)[0] == []
            receiver.stop()
            assert select.select([receiver], [], [], 30)[0] == [receiver]

    def test_the_callback_tells_of_jobs(self, queue):
        """
        It is called in another thread.
        """
        ready = threading.Event()
        with queue.receive(on_ready=ready.set) as receiver:
            queue.put(1)
            assert ready.wait(30)
            receiver.get().ack()

    def test_no_more_than_prefetch_are_unsettled(self, queue):
        """
        The limit can be raised, and a settled job makes room.
        """
        queue.put_many(range(5))
        with queue.receive(prefetch=0, ahead=5) as receiver:
            assert receiver.wait_ready(timeout=30)
            assert receiver.get() is None
            receiver.prefetch = 1
            first = receiver.get(timeout=30)
            assert receiver.get(timeout=0.1) is None
            receiver.prefetch = 2
            second = receiver.get(timeout=30)
            assert receiver.get() is None
            first.ack()
            third = receiver.get(timeout=30)
            assert [each.data for each in (first, second, third)] == [0, 1, 2]
            assert receiver.unsettled == 2

    def test_threads_share_a_receiver(self, queue):
        """
        Each job goes to one of them.
        """
        queue.put_many(range(200))
        found = []

        def take():
            while (job := receiver.get(timeout=2)) is not None:
                found.append(job.data)
                job.ack()

        with queue.receive(ahead=10) as receiver:
            threads = [threading.Thread(target=take) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert sorted(found) == list(range(200))


class TestSettling:
    def test_a_job_is_settled_once(self, queue):
        """
        A second settlement is refused, and stores nothing.
        """
        job = queue.put(1)
        with queue.receive() as receiver:
            found = receiver.get(timeout=30)
            found.ack("first")
            for again in (found.ack, found.requeue, found.retry, found.reject):
                with pytest.raises(jetsync.MessageAlreadyAckedError):
                    again()
            assert receiver.unsettled == 0
        assert job.result(timeout=30) == "first"
        assert queue.dead() == []

    def test_a_confirmation_is_waited_for_as_long_as_the_caller_says(self, queue, monkeypatch):
        """
        The message gets the time.
        """
        waits = []
        monkeypatch.setattr(
            jetsync.Message, "ack_sync", lambda _, timeout=None: waits.append(timeout)
        )
        queue.put_many([1, 2])
        with queue.receive() as receiver:
            receiver.get(timeout=30).ack(confirmed=True, timeout=0.5)
            receiver.get(timeout=30).ack(confirmed=True)
        assert waits == [0.5, None]

    def test_a_requeued_job_comes_again_at_once_or_later(self, queue):
        """
        Its attempt does not count.
        """
        queue.put(1)
        with queue.receive() as receiver:
            receiver.get(timeout=30).requeue()
            again = receiver.get(timeout=30)
            began = time.monotonic()
            again.requeue(delay=0.5)
            last = receiver.get(timeout=30)
            assert time.monotonic() - began > 0.3
            assert (last.attempt, last.deliveries) == (1, 3)
            last.ack()

    def test_a_rejected_job_is_kept_or_dropped(self, queue):
        """
        As the caller wants.
        """
        for number in range(2):
            queue.put(number, job_id=f"j{number}")
        with queue.receive() as receiver:
            receiver.get(timeout=30).reject("no\nuse")
            receiver.get(timeout=30).reject("drop it", dead=False)
            wait_for(lambda: queue.statistics() == QueueStatistics(0, 0, 0, 0, 1))
        assert [(dead.id, dead.reason) for dead in queue.dead()] == [("j0", "no use")]

    def test_an_unsettled_job_is_kept_alive(self, open_queue):
        """
        Nobody else gets it while its receiver is open, and another one does once it is closed.
        """
        queue = open_queue(ack_wait=1)
        queue.put(1)
        with queue.receive() as receiver, queue.receive() as other:
            taken = receiver.get(timeout=2) or other.get(timeout=30)
            assert taken is not None
            began = time.monotonic()
            while time.monotonic() - began < 3:
                assert receiver.get() is None
                assert other.get(timeout=0.1) is None
        with queue.receive() as receiver:
            assert receiver.get(timeout=30).sequence == taken.sequence

    def test_a_forgotten_job_comes_again(self, open_queue):
        """
        After the ack wait.
        """
        queue = open_queue(ack_wait=1)
        queue.put(1)
        with queue.receive() as receiver:
            receiver.forget(receiver.get(timeout=30))
            assert receiver.unsettled == 0
            assert receiver.get(timeout=30).deliveries == 2


class TestHolding:
    def test_held_jobs_go_back_if_nobody_takes_them(self, queue):
        """
        Another receiver gets them, and the first one fetches again once it is asked.
        """
        queue.put_many(range(4))
        with queue.receive(ahead=2) as idle:
            wait_for(lambda: idle.held == 2)
            wait_for(lambda: idle.held == 0)
            with queue.receive(ahead=1) as other:
                found = [other.get(timeout=30) for _ in range(4)]
                assert sorted(each.data for each in found) == [0, 1, 2, 3]
                for each in found[1:]:
                    each.ack()
                found[0].requeue()
                other.stop()
                assert idle.get(timeout=30).data == found[0].data

    def test_a_deleted_consumer_is_made_again(self, queue):
        """
        Workers go on.
        """
        with queue.receive() as receiver:
            queue.put(1)
            receiver.get(timeout=30).ack(confirmed=True)
            for name in list(queue.stream.consumer_names()):
                queue.stream.delete_consumer(name)
            queue.put(2)
            assert receiver.get(timeout=60).data == 2

    def test_a_deleted_stream_ends_the_receiver(self, queue, js):
        """
        With an error that says so.
        """
        with queue.receive() as receiver:
            js.delete_stream(queue.stream.name)
            with pytest.raises((jetsync.StreamNotFoundError, ReceiverClosedError)):
                receiver.get(timeout=60)


class TestEnds:
    def test_a_closed_receiver_says_so(self, queue):
        """
        Also to a thread that waits; it gives back what it had.
        """
        queue.put(1)
        receiver = queue.receive()
        taken = receiver.get(timeout=30)
        threading.Timer(0.1, receiver.close).start()
        with pytest.raises(ReceiverClosedError):
            receiver.get(timeout=None)
        wait_for(lambda: taken.is_settled)
        with pytest.raises(ReceiverClosedError):
            receiver.get()
        receiver.close()
        with queue.receive() as other:
            # Before the ack wait is over.
            other.get(timeout=10).ack()

    def test_it_ends_with_its_client(self, queue, nats_server):
        """
        Calls do not wait for ever.
        """
        from jetsync_queue import WorkQueue

        with jetsync.connect(nats_server.url) as client:
            own = WorkQueue.open(client.jetstream(), "mail", prefix=queue.prefix, priorities=2)
            receiver = own.receive()
        with pytest.raises(ReceiverClosedError):
            receiver.get(timeout=30)
        receiver.close()

    def test_its_threads_end_with_the_last_job_after_a_stop(self, queue):
        """
        Also if the receiver is never closed.
        """
        queue.put(1)
        receiver = queue.receive()
        taken = receiver.get(timeout=30)
        receiver.stop()
        assert "jetsync-queue-keep" in running_threads()
        taken.ack()
        wait_for(lambda: not running_threads())

    def test_its_threads_end_with_the_client_while_a_job_runs(self, queue, nats_server):
        """
        Nothing can keep the job alive then.
        """
        from jetsync_queue import WorkQueue

        queue.put(1)
        with jetsync.connect(nats_server.url) as client:
            own = WorkQueue.open(client.jetstream(), "mail", prefix=queue.prefix, priorities=2)
            assert own.receive().get(timeout=30) is not None
        wait_for(lambda: not running_threads())

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
    def test_a_forked_child_gets_a_clear_error(self, queue):
        """
        The receiver belongs to the parent, which keeps its jobs.
        """
        with queue.receive() as receiver:
            pid = os.fork()
            if not pid:
                try:
                    receiver.get()
                except jetsync.ConflictingUseError:
                    receiver.close()
                    os._exit(7)
                finally:
                    os._exit(1)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
            queue.put(1)
            receiver.get(timeout=30).ack()


class TestTracked:
    def test_the_record_follows_the_job(self, open_queue):
        """
        From put to its end, with attempts, workers and errors.
        """
        queue = open_queue(track=True)
        job = queue.put({"a": 1}, priority=1, headers={"X": "y"}, job_id="t")
        first = job.status()
        with queue.receive() as receiver:
            found = receiver.get(timeout=30)
            assert found.begin("one")
            assert job.status().state == "running"
            found.retry(ValueError("once"))
            found = receiver.get(timeout=30)
            assert job.status().state == "retrying"
            assert found.begin("two")
            found.ack(5)
        last = job.status()

        assert (first.state, first.attempts, first.data) == ("waiting", 0, {"a": 1})
        assert (first.priority, first.headers, first.workers) == (1, {"X": "y"}, ())
        assert (last.state, last.attempts, last.value) == ("succeeded", 2, 5)
        assert (last.workers, last.worker) == (("one", "two"), "two")
        assert [(each.type, each.message) for each in last.errors] == [
            ("builtins.ValueError", "once")
        ]
        assert first.enqueued <= last.started <= last.finished
        assert last.is_finished

    def test_an_id_is_used_once_after_the_duplicate_window(self, open_queue):
        """
        The record decides, so a second job is not even stored.
        """
        queue = open_queue(track=True, duplicate_window=0.1)
        assert not queue.put(1, job_id="t").duplicate
        with queue.worker(lambda job: job.data):
            assert queue.job("t").result(timeout=30) == 1
        assert queue.put(2, job_id="t").duplicate
        assert queue.statistics().open == 0

    def test_a_repetition_of_a_job_that_has_ended_is_dropped(self, open_queue):
        """
        A put whose answer was lost may have stored the job twice, after the window.
        """
        queue = open_queue(track=True)
        queue.put(1, job_id="t")
        queue.put(1, job_id="t", msg_id="again")
        runs = []
        with queue.worker(lambda job: runs.append(job.id)) as worker:
            wait_for(lambda: worker.statistics.skipped + worker.statistics.succeeded == 2)
            # The acknowledgement of the second one is not confirmed.
            wait_for(lambda: queue.statistics().open == 0)
        assert runs == ["t"]
