"""
What a job keeps from one attempt to the next, and what ends its attempts.
"""

from __future__ import annotations

import _thread
import signal
import time

import pytest

import jetsync
from jetsync.testing import eventually
from jetsync_queue import JobFailedError

pytestmark = pytest.mark.live


def is_stored(queue, sequence):
    """
    Return whether the stream has a message.
    """
    try:
        return bool(queue.stream.get_message(sequence, direct=False))
    except jetsync.MessageNotFoundError:
        return False


class TestAttempts:
    @pytest.mark.parametrize("delay", [0, 0.3])
    def test_the_next_attempt_keeps_the_times_of_the_job(self, queue, delay):
        """
        It was enqueued when the job was put, and the server removes it when the job expires.
        """
        queue.put(1, expires=1000, delay=0.3)
        with queue.receive() as receiver:
            first = receiver.get(timeout=30)
            first.retry(delay=delay)
            second = receiver.get(timeout=30)
            second.ack()
        assert second.attempt == 2
        assert (second.enqueued, second.expires) == (first.enqueued, first.expires)
        for each in (first, second):
            assert 900 < float(each.message.headers["Nats-TTL"].rstrip("s")) <= 1001

    def test_a_job_without_a_delay_was_enqueued_when_it_was_put(self, queue):
        """
        Also in later attempts, which have messages of their own.
        """
        queue.put(1)
        with queue.receive() as receiver:
            first = receiver.get(timeout=30)
            first.retry(delay=0.5)
            second = receiver.get(timeout=30)
            second.ack()
        assert abs(second.enqueued - first.enqueued).total_seconds() < 0.01

    def test_the_last_wait_repeats(self, queue):
        """
        A job that fails more often than there are waits waits for the last one each time.
        """
        moments = []

        def fail(_):
            moments.append(time.monotonic())
            raise ValueError

        job = queue.put(1)
        with queue.worker(fail, retries=3, wait=[0, 0.5]), pytest.raises(JobFailedError):
            job.result(timeout=30)
        assert len(moments) == 4
        assert moments[2] - moments[1] > 0.4
        assert moments[3] - moments[2] > 0.4

    @pytest.mark.parametrize(("crashes", "is_dead"), [(1, True), (2, False)])
    def test_a_job_may_end_as_many_workers_as_allowed_after_the_first_one(
        self, queue, crashes, is_dead
    ):
        """
        Three workers end with it. The first one is not counted, so it runs if two are allowed.
        """
        job, seen = queue.put(1), []
        for _ in range(3):
            with queue.receive() as receiver:
                delivery = receiver.get(timeout=30)
                assert delivery.begin("one that ends")
                seen.append(delivery.crashes)
        (starts,) = queue.bucket.keys("starts.>")
        assert queue.bucket.get(starts).ttl == 86_400
        with queue.worker(lambda _: "done", crashes=crashes) as worker:
            eventually(lambda: worker.statistics.dead + worker.statistics.succeeded)
        assert seen == [0, 0, 1]
        assert job.status().state == ("dead" if is_dead else "succeeded")

    def test_a_dead_job_that_is_put_back_does_not_expire(self, queue):
        """
        A job is often put back after it has expired.
        """
        queue.put(1, expires=1000)
        with queue.receive() as receiver:
            receiver.get(timeout=30).reject("no")
            eventually(lambda: queue.retry_dead() == 1)
            again = receiver.get(timeout=30)
            assert (again.attempt, again.expires) == (1, None)
            again.ack()


class TestSettling:
    @pytest.mark.parametrize(
        ("settle", "stores"),
        [
            ("ack", [jetsync.KeyValue, jetsync.Message]),
            ("retry", [jetsync.JetStream, jetsync.Message]),
            ("reject", [jetsync.JetStream, jetsync.KeyValue, jetsync.Message]),
            ("requeue", [jetsync.KeyValue, jetsync.Message]),
        ],
    )
    def test_a_job_is_not_settled_before_its_outcome_is_stored(
        self, open_queue, monkeypatch, settle, stores
    ):
        """
        If a step of it fails, the job stays and is kept alive, and can be settled again.
        """
        queue = open_queue(track=settle == "requeue")
        job = queue.put(1)

        def refuse(*_, **__):
            raise jetsync.DisconnectedError

        with queue.receive() as receiver:
            found = receiver.get(timeout=30)
            for kind, names in (
                (jetsync.JetStream, ["publish"]),
                (jetsync.KeyValue, ["put", "modify"]),
                (jetsync.Message, ["ack", "term", "nak"]),
            ):
                with monkeypatch.context() as patch:
                    for name in names:
                        patch.setattr(kind, name, refuse)
                    if kind in stores:
                        with pytest.raises(jetsync.DisconnectedError):
                            getattr(found, settle)()
                assert not found.is_settled
                assert receiver.unsettled == 1
                assert is_stored(queue, found.sequence)
            getattr(found, settle)()
            assert receiver.unsettled == 0
            if settle in {"retry", "requeue"}:
                receiver.get(timeout=30).ack()
        assert job.status().state == ("dead" if settle == "reject" else "succeeded")

    @pytest.mark.parametrize("track", [False, True])
    @pytest.mark.parametrize("settle", ["reject", "retry", "requeue"])
    def test_a_worker_that_is_late_does_not_change_how_a_job_has_ended(
        self, open_queue, settle, track
    ):
        """
        A process was stopped, another one ended its job, and then the first one failed with it.
        """
        queue = open_queue(track=track, ack_wait=1)
        job = queue.put(1)
        with queue.receive() as stopped:
            late = stopped.get(timeout=30)
            assert late.begin("late")
            stopped.stop()
            stopped.forget(late)
            with queue.receive() as receiver:
                again = receiver.get(timeout=30)
                assert again.begin("another")
                again.ack(5, confirmed=True)
            getattr(late, settle)()
        assert (job.status().state, job.result()) == ("succeeded", 5)
        assert (queue.dead(), queue.statistics().open) == ([], 0)

    def test_a_confirmed_job_is_gone_when_the_call_returns(self, queue):
        """
        So it does not run again, even if the process dies at once.
        """
        queue.put_many(range(20))
        with queue.receive() as receiver:
            for _ in range(20):
                found = receiver.get(timeout=30)
                found.ack(confirmed=True)
                assert not is_stored(queue, found.sequence)

    @pytest.mark.parametrize("settle", ["ack", "reject"])
    def test_large_data_stays_until_the_job_is_gone(self, queue, js, monkeypatch, settle):
        """
        If the server does not confirm the end of a job, it delivers the job again, with its data.
        """
        queue.put(b"x" * 2_000_000)
        with queue.receive() as receiver:
            found = receiver.get(timeout=30)

            def end():
                return found.ack() if settle == "ack" else found.reject(dead=False)

            def lose(*_, **__):
                raise jetsync.RequestTimeoutError("the answer is lost", timeout=1.0)

            with monkeypatch.context() as patch:
                patch.setattr(jetsync.Message, "ack_sync", lose)
                with pytest.raises(jetsync.RequestTimeoutError):
                    end()
            assert found.raw == b"x" * 2_000_000
            end()
        assert js.object_store(f"{queue.stream.name}_jobs").list() == []

    def test_large_data_stays_if_the_outcome_of_a_put_is_unknown(self, queue, monkeypatch):
        """
        The server may have the job, which needs its data.
        """
        send = jetsync.JetStream.publish

        def lose(js, subject, *arguments, **options):
            send(js, subject, *arguments, **options)
            raise jetsync.PublishOutcomeUnknownError(subject, timeout=1.0)

        with monkeypatch.context() as patch:
            patch.setattr(jetsync.JetStream, "publish", lose)
            with pytest.raises(jetsync.PublishOutcomeUnknownError):
                queue.put(b"x" * 2_000_000, job_id="a")
        assert queue.put(b"x" * 2_000_000, job_id="a").duplicate
        with queue.receive() as receiver:
            found = receiver.get(timeout=30)
            assert found.data == b"x" * 2_000_000
            found.ack()

    def test_without_results_a_handler_may_return_anything(self, open_queue):
        """
        What it returns is not stored, so it need not be JSON.
        """
        queue = open_queue(results=False)
        queue.put(1)
        with queue.worker(lambda _: object()) as worker:
            eventually(lambda: worker.statistics.succeeded + worker.statistics.dead)
        assert worker.statistics.succeeded == 1

    def test_ctrl_c_lets_running_jobs_end(self, queue):
        """
        `run` raises KeyboardInterrupt after the job that runs has ended, and starts no other one.
        """
        queue.put_many(range(3))
        began, ended = [], []

        def handle(job):
            began.append(job.data)
            _thread.interrupt_main()
            eventually(lambda: worker._receiver.closed)
            ended.append(job.data)

        worker = queue.worker(handle)
        # A shell that starts the tests in the background has SIGINT ignored.
        old = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            with pytest.raises(KeyboardInterrupt):
                worker.run()
        finally:
            signal.signal(signal.SIGINT, old)
        assert began == ended == [0]
