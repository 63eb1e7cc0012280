"""
What goes wrong: handlers that misbehave, Ctrl-C, forks, servers that restart or are too old.
"""

from __future__ import annotations

import collections
import itertools
import os
import random
import signal
import threading
import time

import pytest

import jetsync
from jetsync.devserver import DevServer
from jetsync.testing import eventually
from jetsync_queue import JobFailedError, Retry, WorkQueue

pytestmark = pytest.mark.live


class UnprintableError(Exception):
    """
    An exception that has no text.
    """

    def __str__(self):
        raise RuntimeError("no text")


class TestHandlers:
    @pytest.mark.parametrize(
        ("make", "reason"),
        [
            (UnprintableError, "UnprintableError"),
            (lambda: Retry(delay=-1), "delay must be"),
            (lambda: Retry(delay="5"), "delay must be"),
        ],
    )
    def test_whatever_a_handler_raises_its_thread_goes_on(self, queue, make, reason):
        """
        The job is dead, with a reason, and the next job runs.
        """

        def handle(job):
            if job.data == "bad":
                raise make()
            return job.data

        bad, good = queue.put("bad"), queue.put("good")
        with queue.worker(handle) as worker:
            with pytest.raises(JobFailedError, match=reason):
                bad.result(timeout=30)
            assert good.result(timeout=30) == "good"
        assert worker.statistics.unsettled == 0

    def test_a_job_that_was_cancelled_while_it_ran_gets_no_further_attempt(self, queue):
        """
        It runs once, also if it fails and has retries left.
        """
        began, go, attempts = threading.Event(), threading.Event(), []

        def fail(job):
            attempts.append(job.attempt)
            began.set()
            assert go.wait(30)
            raise ValueError

        job = queue.put(1)
        with queue.worker(fail, retries=2, wait=0) as worker:
            assert began.wait(30)
            assert queue.cancel(job)
            go.set()
            eventually(lambda: worker.statistics.retried)
        assert attempts == [1]
        assert queue.statistics().open == 0

    def test_a_job_that_is_done_leaves_no_attempt_of_a_worker_that_died(
        self, open_queue, monkeypatch
    ):
        """
        The worker had stored the next attempt, and died before it settled the first one.
        """
        queue = open_queue(ack_wait=1, results=False)
        queue.put(1)
        with queue.receive() as receiver:
            found = receiver.get(timeout=30)
            monkeypatch.setattr(found, "_settle", lambda _: receiver.forget(found))
            found.retry(ValueError(), delay=100)
        assert queue.statistics().failed == 1
        with queue.worker(lambda _: None) as worker:
            eventually(lambda: worker.statistics.succeeded)
            eventually(lambda: not queue.statistics().open)
        # The starts of a job that was delivered twice were counted meanwhile.
        assert queue.bucket.keys() == []

    def test_a_spoilt_record_does_not_end_the_worker(self, open_queue):
        """
        The job is left to the server, and the next one runs.
        """
        queue = open_queue(track=True)
        queue.put("spoilt", job_id="one")
        queue.bucket.put("mail.one", b"no JSON")
        with queue.worker(lambda job: job.data) as worker:
            assert queue.put("next").result(timeout=30) == "next"
            eventually(lambda: worker.statistics.unsettled)
        assert worker.error is None


class TestTracked:
    @pytest.mark.parametrize("is_done", [False, True])
    def test_the_next_attempt_may_begin_before_it_is_recorded(
        self, open_queue, monkeypatch, is_done
    ):
        """
        It runs, although the record says that an earlier attempt runs, and its state stays.
        """
        queue = open_queue(track=True)
        job = queue.put(1)
        with queue.receive() as receiver:
            first = receiver.get(timeout=30)
            assert first.begin("one")
            record, following = first._record, []

            def record_late(change, error):
                following.append(receiver.get(timeout=30))
                assert following[0].begin("two")
                if is_done:
                    following[0].ack(5)
                record(change, error)

            monkeypatch.setattr(first, "_record", record_late)
            first.retry(ValueError("once"))
            assert job.status().state == ("succeeded" if is_done else "running")
            assert following[0].attempt == 2
            if not is_done:
                following[0].ack(5)
        last = job.status()
        assert (last.state, last.value, last.attempts) == ("succeeded", 5, 2)
        assert [each.message for each in last.errors] == ["once"]

    def test_a_change_of_a_record_ends_in_time(self, open_queue, nats_server):
        """
        If others change the record all the time, the attempts end with the client's timeout.
        """
        core = open_queue(track=True)._core
        with jetsync.connect(nats_server.url, request_timeout=0.3) as client:
            hasty = WorkQueue.open(client.jetstream(), "mail", prefix=core.names.prefix)

            def change(record):
                core.records.put("t", {"state": "running"})
                return record

            core.records.put("t", {"state": "waiting"})
            with pytest.raises(jetsync.WrongLastRevisionError):
                hasty._core.records.update("t", change)
        assert core.records.read("t") == {"state": "running"}

    def test_a_copy_of_a_job_that_runs_is_dropped(self, open_queue):
        """
        The record tells it from a redelivery by its place in the stream.
        """
        queue = open_queue(track=True)
        queue.put(1, job_id="t")
        queue.put(1, job_id="t", msg_id="again")
        with queue.receive() as receiver:
            first, second = receiver.get(timeout=30), receiver.get(timeout=30)
            assert first.begin("one")
            assert not second.begin("two")
            assert second.is_settled
            first.ack("done")
        assert queue.job("t").result(timeout=30) == "done"

    @pytest.mark.parametrize(
        "options",
        [
            {"job_id": "a\nb"},
            {"job_id": "\ud800"},
            {"msg_id": 7},
            {"msg_id": ""},
            {"msg_id": "a\nb"},
            {"headers": {"A": "b\nc"}},
            {"headers": {"A b": "c"}},
            {"headers": {"A": 5}},
        ],
    )
    def test_bad_arguments_store_no_record(self, open_queue, options):
        """
        Neither a job nor its record is stored.
        """
        queue = open_queue(track=True)
        errors = (
            jetsync.InvalidArgumentError,
            jetsync.InvalidHeaderError,
            jetsync.InvalidTypeError,
        )
        with pytest.raises(errors):
            queue.put(1, **options)
        assert queue.bucket.keys() == []
        assert queue.statistics().open == 0

    def test_a_job_is_not_dropped_because_of_an_old_record(self, open_queue, monkeypatch):
        """
        A server of a cluster that lags behind may still say that a retried dead job is dead.
        """
        queue = open_queue(track=True)
        job = queue.put(1)
        with queue.worker(lambda _: 1 / 0), pytest.raises(JobFailedError):
            job.result(timeout=30)
        get, old = jetsync.KeyValue.get, queue.bucket.get(f"mail.{job.id}")

        def get_old(bucket, key, *args, direct=None, **options):
            if direct is False or key != old.key:
                return get(bucket, key, *args, direct=direct, **options)
            return old

        monkeypatch.setattr(jetsync.KeyValue, "get", get_old)
        assert queue.retry_dead() == 1
        runs = []
        with queue.worker(lambda job: runs.append(job.id)) as worker:
            eventually(lambda: worker.statistics.succeeded + worker.statistics.skipped)
        assert runs == [job.id]


class TestInterrupts:
    @pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs setitimer")
    def test_an_interrupt_between_any_two_steps_leaves_a_usable_receiver(self, queue):
        """
        As Ctrl-C does: no lock stays held, the threads go on, and no job is lost.
        """

        class Interrupt(BaseException):
            pass

        def interrupt(*_):
            raise Interrupt

        hits, found = 0, set()
        old = signal.signal(signal.SIGALRM, interrupt)
        receiver = queue.receive(ahead=10)
        try:
            for number in range(4000):
                if number % 40 == 0:
                    queue.put(number)
                delivery = None
                try:
                    signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-6, 5e-5))
                    delivery = receiver.get()
                    signal.setitimer(signal.ITIMER_REAL, 0)
                except Interrupt:
                    hits += 1
                if delivery is not None:
                    found.add(delivery.data)
                    delivery.ack()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, old)
        assert hits > 100
        taken = threading.Thread(target=lambda: receiver.wait_ready(timeout=0), daemon=True)
        taken.start()
        taken.join(10)
        assert not taken.is_alive()
        # A job that `get` had returned when the interrupt came is unsettled until the close.
        receiver.close()
        with queue.receive(ahead=10) as other:
            while queue.statistics().open:
                if (delivery := other.get(timeout=0.5)) is not None:
                    found.add(delivery.data)
                    delivery.ack(confirmed=True)
        assert found == set(range(0, 4000, 40))

    @pytest.mark.parametrize("last", range(1, 6))
    def test_a_start_that_fails_leaves_no_thread(self, queue, monkeypatch, last):
        """
        Ctrl-C, or the system has no further thread: those that were started end.
        """
        start, count = threading.Thread.start, itertools.count(1)

        def start_some(thread):
            if thread.name.startswith("jetsync-queue") and next(count) == last:
                raise RuntimeError("can't start new thread")
            start(thread)

        monkeypatch.setattr(threading.Thread, "start", start_some)
        worker = queue.worker(lambda _: 1, threads=2, timeout=5)
        with pytest.raises(RuntimeError, match="new thread"):
            worker.start()
        assert worker.stop()

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
    def test_a_forked_child_gives_nothing_back(self, js, nats_server):
        """
        Its `with` block ends, and the parent keeps its jobs, also those that are held.
        """
        with jetsync.connect(nats_server.url, after_fork="reconnect") as client:
            queue = WorkQueue.open(
                client.jetstream(), "mail", prefix="fork", priorities=1, storage="memory"
            )
            queue.put_many(range(3))
            with queue.receive(ahead=2) as receiver:
                first = receiver.get(timeout=30)
                eventually(lambda: receiver.held)
                pid = os.fork()
                if not pid:
                    status = 1
                    try:
                        receiver.stop()
                        receiver.close()
                        status = 7
                    finally:
                        os._exit(status)
                assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
                rest = [receiver.get(timeout=30) for _ in range(2)]
                assert [each.deliveries for each in (first, *rest)] == [1, 1, 1]
                for each in (first, *rest):
                    each.ack(confirmed=True)
            js.delete_stream("QUEUE_fork")
            js.delete_key_value("QUEUE_fork")


class TestServers:
    def test_work_goes_on_after_the_server_was_killed_and_restarted(self):
        """
        Every job is done, and the results are there.
        """
        with DevServer() as server, jetsync.connect(server.url) as client:
            queue = WorkQueue.open(
                client.jetstream(), "mail", prefix="shop", priorities=2, ack_wait=2
            )
            jobs = queue.put_many(range(300))
            runs, some = collections.Counter(), threading.Event()

            def handle(job):
                runs[job.data] += 1
                time.sleep(0.002)
                if len(runs) >= 50:
                    some.set()
                return job.data

            with queue.worker(handle, threads=4) as worker:
                assert some.wait(30)
                server.kill()
                server.start()
                assert [job.result(timeout=60) for job in jobs] == list(range(300))
                assert queue.put("later").result(timeout=60) == "later"
                eventually(lambda: not queue.statistics().open)
        # Four jobs ran when the server was killed, and a few acknowledgements were on their way.
        assert sum(runs.values()) - len(runs) <= 50
        assert worker.statistics.dead == 0

    @pytest.mark.parametrize("version", ["2.10.26", "2.11.11"])
    def test_a_server_that_is_too_old_is_refused(self, version):
        """
        Before anything is stored: no stream is left that could not be used after an update.
        """
        with DevServer(version) as server, jetsync.connect(server.url) as client:
            js = client.jetstream()
            with pytest.raises(jetsync.NotSupportedError, match=r"2\.12"):
                WorkQueue.open(js, "mail", prefix="shop")
            assert list(js.stream_names()) == []
