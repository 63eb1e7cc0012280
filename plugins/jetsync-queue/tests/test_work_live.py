"""
Workers on a real server: results, retries, time limits, long jobs and stops.
"""

from __future__ import annotations

import collections
import threading
import time

import pytest

import jetsync
from jetsync.testing import eventually
from jetsync_queue import (
    JobExpiredError,
    JobFailedError,
    JobTimeoutError,
    NoResultsError,
    QueueStatistics,
    ResultTimeoutError,
    Retry,
    WorkerStatistics,
)

pytestmark = pytest.mark.live


class TestResults:
    @pytest.mark.parametrize("value", [{"sent": [1, None]}, b"\x00\xff", "text", None, 3.5])
    def test_the_value_of_the_handler_is_the_result(self, queue, value):
        """
        JSON and bytes come back as they were returned; a second call returns the same.
        """
        job = queue.put(1)
        with queue.worker(lambda _: value):
            assert job.result(timeout=30) == value
        assert job.result(timeout=0) == value
        assert queue.job(job.id).status().state == "succeeded"

    def test_a_large_result(self, queue):
        """
        A result above max_payload takes the way of objects.
        """
        value = "y" * 2_500_000
        job = queue.put(1)
        with queue.worker(lambda _: value):
            assert job.result(timeout=30) == value

    def test_a_result_expires(self, open_queue):
        """
        After result_ttl, the bucket has nothing of the job.
        """
        queue = open_queue(result_ttl=1)
        job = queue.put(1)
        with queue.worker(lambda _: 1):
            job.result(timeout=30)
        with queue.bucket.watch() as watch:
            assert any(entry.is_deleted for entry in iter(lambda: watch.next(timeout=30), None))
        assert job.status() is None

    def test_without_results_nothing_is_written(self, open_queue):
        """
        Waiting for a result is refused.
        """
        queue = open_queue(results=False)
        job, done = queue.put(1), threading.Event()
        with queue.worker(lambda _: done.set()):
            assert done.wait(30)
        with pytest.raises(NoResultsError):
            job.result()
        assert queue.bucket.keys() == []

    def test_waiting_ends_after_the_timeout(self, queue):
        """
        The job stays, and its result can be waited for again.
        """
        job = queue.put(1)
        for timeout in (0.05, 0):
            with pytest.raises(ResultTimeoutError, match=f"after {timeout} seconds"):
                job.result(timeout=timeout)
        with queue.worker(lambda _: 5):
            assert job.result(timeout=30) == 5

    def test_a_value_that_json_cannot_express_is_a_failure(self, queue):
        """
        The reason says so, and the worker goes on.
        """
        jobs = [queue.put(1), queue.put(2)]
        with queue.worker(lambda job: object() if job.data == 1 else job.data):
            with pytest.raises(JobFailedError, match="JSON"):
                jobs[0].result(timeout=30)
            assert jobs[1].result(timeout=30) == 2

    def test_an_expired_job_has_no_result(self, queue):
        """
        It is not started, and who waits is told.
        """
        job = queue.put(1, expires=0.01)
        time.sleep(0.02)
        with queue.worker(lambda _: 1) as worker, pytest.raises(JobExpiredError):
            job.result(timeout=30)
        assert worker.statistics.skipped == 1


class TestRetries:
    def test_a_job_that_fails_gets_its_retries_and_then_dies(self, queue):
        """
        The attempts are those of the handler, and the server waits between them.
        """
        attempts = []

        def fail(job):
            attempts.append((job.attempt, time.monotonic()))
            raise ValueError("no such address")

        job = queue.put({"to": "x"}, priority=1)
        with (
            queue.worker(fail, retries=2, wait=[0.5, 0]) as worker,
            pytest.raises(JobFailedError, match="no such address") as caught,
        ):
            job.result(timeout=30)
        (dead,) = queue.dead()

        assert [attempt for attempt, _ in attempts] == [1, 2, 3]
        assert attempts[1][1] - attempts[0][1] >= 0.4
        assert caught.value.attempts == 3
        assert (dead.id, dead.data, dead.attempts) == (job.id, {"to": "x"}, 3)
        assert (dead.reason, dead.priority) == ("ValueError: no such address", 1)
        assert worker.statistics.retried == 2
        assert queue.statistics() == QueueStatistics(0, 0, 0, 0, 1)

    def test_deliveries_that_reached_only_a_buffer_are_no_attempts(self, queue):
        """
        A job that was given back ten times has had no attempt.
        """
        job = queue.put(1)
        with queue.receive() as receiver:
            for _ in range(10):
                receiver.get(timeout=30).requeue()
        found = []
        with queue.worker(lambda job: found.append((job.attempt, job.deliveries, job.crashes))):
            job.result(timeout=30)

        assert found[0][0] == 1
        assert found[0][1] > 10
        assert found[0][2] == 0

    def test_an_error_after_the_handler_has_settled_its_job_is_logged(self, queue, caplog):
        """
        The job has succeeded, so nothing else would show the error.
        """

        def settle(job):
            job.ack(5)
            raise OSError("too late")

        job = queue.put(1)
        with queue.worker(settle):
            assert job.result(timeout=30) == 5
        assert "settled_job_failed" in caplog.text
        assert "too late" in caplog.text

    def test_a_handler_can_ask_for_another_attempt_and_give_up(self, queue):
        """
        Retry is not limited by retries, and DeadLetter ends them.
        """

        def handle(job):
            if job.attempt < 4:
                raise Retry("not yet", delay=0)
            raise jetsync.DeadLetter("never")

        job = queue.put(1)
        with queue.worker(handle, retries=100), pytest.raises(JobFailedError, match="never"):
            job.result(timeout=30)
        assert queue.dead()[0].attempts == 4

    def test_a_job_that_waits_for_its_retry_can_be_cancelled(self, queue):
        """
        It counts as failed meanwhile.
        """
        failed = threading.Event()

        def fail(_):
            failed.set()
            raise ValueError

        job = queue.put(1)
        with queue.worker(fail, retries=1, wait=100) as worker:
            while not worker.statistics.retried:
                failed.wait(0.01)
        # The server takes the acknowledgement of the first attempt in its own time.
        eventually(lambda: queue.statistics() == QueueStatistics(0, 0, 0, 1, 0))
        assert job.cancel()
        assert queue.statistics().open == 0

    def test_a_retry_that_would_be_too_late_kills_the_job(self, queue):
        """
        It expires before its next attempt.
        """
        job = queue.put(1, expires=20)
        with queue.worker(lambda _: 1 / 0, retries=3, wait=60), pytest.raises(JobFailedError):
            job.result(timeout=30)
        assert queue.dead()[0].reason == "it expires before its next attempt"

    def test_dead_jobs_can_be_retried_and_removed(self, queue):
        """
        With their data, priority and headers, and with attempts from 1.
        """
        jobs = [
            queue.put("x" * size, priority=1, headers={"A": "b"}, job_id=f"j{size}")
            for size in (1, 2_000_000)
        ]
        with queue.worker(lambda _: 1 / 0, retries=1, wait=0):
            for job in jobs:
                with pytest.raises(JobFailedError):
                    job.result(timeout=30)
        assert [dead.id for dead in queue.dead(limit=1)] == ["j1"]
        assert queue.retry_dead("j2000000") == 1
        assert queue.delete_dead() == 1
        found = []

        def handle(job):
            found.append((len(job.data), job.priority, job.headers, job.attempt))
            return "done"

        with queue.worker(handle):
            assert jobs[1].result(timeout=30) == "done"
        assert found == [(2_000_000, 1, {"A": "b"}, 1)]
        assert queue.dead() == []


class TestLimits:
    def test_a_handler_over_its_time_is_interrupted(self, queue):
        """
        The exception reaches the handler, which can clean up.
        """
        cleaned = []

        def slow(_):
            try:
                while True:
                    time.sleep(0.005)
            except JobTimeoutError:
                cleaned.append(1)
                raise

        jobs = queue.put_many([1, 2])
        with queue.worker(slow, timeout=0.1) as worker:
            for job in jobs:
                with pytest.raises(JobFailedError, match="JobTimeoutError"):
                    job.result(timeout=30)
        assert cleaned == [1, 1]
        assert worker.statistics.dead == 2

    def test_a_handler_that_cannot_be_interrupted_is_replaced(self, queue):
        """
        The worker goes on with another thread, and ignores the late result.
        """
        late = []

        def stuck(job):
            if job.data == "stuck":
                late.append(threading.current_thread())
                # One call of the operating system, and no lock that an exception could leave held.
                time.sleep(3)
            return job.data

        first, second = queue.put("stuck"), queue.put("quick")
        with queue.worker(stuck, timeout=0.1, grace=0.1) as worker:
            with pytest.raises(JobFailedError, match="did not end"):
                first.result(timeout=30)
            assert second.result(timeout=30) == "quick"
            late[0].join(30)
        found = worker.statistics
        assert (found.dead, found.succeeded, found.retried) == (1, 1, 0)

    def test_a_quick_handler_never_sees_the_limit(self, queue):
        """
        No late exception hits the worker itself, however close the limit is.
        """
        jobs = queue.put_many(range(300))
        counts = collections.Counter()

        def handle(job):
            until = time.monotonic() + 0.01
            while time.monotonic() < until:
                pass

        with queue.worker(handle, threads=2, timeout=0.01) as worker:
            for job in jobs:
                try:
                    job.result(timeout=30)
                    counts["done"] += 1
                except JobFailedError:
                    counts["late"] += 1
        assert sum(counts.values()) == 300
        assert worker.statistics.succeeded == counts["done"]
        assert worker.statistics.dead == counts["late"]

    def test_a_long_job_runs_once_with_two_workers(self, open_queue):
        """
        A job that takes four times ack_wait is not delivered again.
        """
        queue = open_queue(ack_wait=1)
        runs = []

        def long(job):
            runs.append(job.id)
            time.sleep(4)
            return "done"

        job = queue.put(1)
        with queue.worker(long), queue.worker(long):
            assert job.result(timeout=60) == "done"
        assert runs == [job.id]

    def test_a_busy_worker_gives_back_what_it_fetched_ahead(self, queue):
        """
        Another worker runs the jobs that a busy one would hold.
        """
        busy, release = threading.Event(), threading.Event()

        def block(_):
            busy.set()
            assert release.wait(60)

        with queue.worker(block, ahead=10):
            queue.put("long")
            assert busy.wait(30)
            jobs = queue.put_many(range(20))
            with queue.worker(lambda job: job.data):
                assert [job.result(timeout=30) for job in jobs] == list(range(20))
            release.set()


class TestStops:
    def test_a_stop_finishes_what_runs_and_gives_back_the_rest(self, queue):
        """
        Jobs that were not started are available at once.
        """
        began, release, done = threading.Event(), threading.Event(), []

        def handle(job):
            began.set()
            assert release.wait(30)
            done.append(job.data)

        queue.put_many(range(10))
        worker = queue.worker(handle, ahead=5)
        worker.start()
        assert began.wait(30)
        assert not worker.stop(timeout=0)
        release.set()
        assert worker.wait(timeout=30)
        assert done == [0]

    @pytest.mark.parametrize("stop", ["stop", "request_stop"])
    def test_a_stop_before_the_start_ends_a_worker(self, queue, stop):
        """
        A signal may come after its handler was set and before `run` is called.
        """
        queue.put(1)
        worker = queue.worker(lambda _: 1, timeout=10)
        getattr(worker, stop)()
        assert worker.run() == WorkerStatistics()
        assert queue.statistics().open == 1

    def test_a_handler_can_stop_its_worker(self, queue):
        """
        `run` returns then, with the statistics.
        """
        queue.put_many(range(3))
        worker = queue.worker(lambda _: worker.request_stop())

        assert worker.run().succeeded == 1

    def test_a_handler_cannot_wait_for_its_worker(self, queue):
        """
        The error says what to call. The worker stops nevertheless.
        """
        job = queue.put(1)
        worker = queue.worker(lambda _: worker.stop())
        worker.run()
        with pytest.raises(JobFailedError, match="request_stop"):
            job.result(timeout=30)

    def test_a_worker_ends_with_its_client(self, queue, nats_server):
        """
        It does not wait for a connection that will not come back.
        """
        from jetsync_queue import WorkQueue

        with jetsync.connect(nats_server.url) as client:
            own = WorkQueue.open(client.jetstream(), "mail", prefix=queue.prefix, priorities=2)
            worker = own.worker(lambda _: 1)
            worker.start()
        assert worker.wait(timeout=30)
        assert worker.stop()

    def test_a_handler_that_wants_to_exit_ends_the_worker(self, queue):
        """
        The attempt counts as failed.
        """
        queue.put(1)

        def leave(_):
            raise SystemExit(3)

        with pytest.raises(SystemExit):
            queue.work(leave)
        assert queue.dead()[0].reason == "SystemExit: 3"

    def test_a_worker_is_started_once(self, queue):
        """
        A second start is refused.
        """
        with queue.worker(lambda _: 1) as worker, pytest.raises(jetsync.ConflictingUseError):
            worker.start()

    @pytest.mark.parametrize(
        "options",
        [
            {"threads": 0},
            {"threads": 1.5},
            {"retries": -1},
            {"wait": ["1"]},
            {"timeout": 0},
            {"crashes": -1},
            {"ahead": 0},
            {"name": ""},
            {"name": object()},
        ],
    )
    def test_bad_options_of_a_worker_are_refused(self, queue, options):
        """
        Nothing is started.
        """
        with pytest.raises((jetsync.InvalidArgumentError, jetsync.InvalidTypeError)):
            queue.work(lambda _: 1, **options)
        with pytest.raises(jetsync.InvalidTypeError):
            queue.work("send")

    def test_a_handler_whose_call_would_run_nothing_is_refused(self, open_queue):
        """
        Without results, its jobs would count as succeeded.
        """
        queue = open_queue(results=False)

        async def later(job):
            """Is never awaited."""

        class Later:
            async def __call__(self, job):
                """Is never awaited."""

        def stepwise(job):
            yield job

        for handler in (later, Later(), stepwise):
            with pytest.raises(jetsync.InvalidTypeError, match="handler must be"):
                queue.worker(handler)
