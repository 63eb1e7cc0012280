"""
Putting and cancelling jobs on a real server.
"""

from __future__ import annotations

import datetime as dt
import time

import pytest

import jetsync
from jetsync.testing import eventually
from jetsync_queue import JobCancelledError, QueueError, QueueStatistics, WorkQueue

pytestmark = pytest.mark.live


def take(queue, count=1):
    """
    Take jobs, acknowledge them, and return them.
    """
    with queue.receive() as receiver:
        found = [receiver.get(timeout=30) for _ in range(count)]
        for delivery in found:
            # Large data is removed with the job.
            assert delivery.data is not delivery
            delivery.ack(confirmed=True)
        assert receiver.get() is None
    return found


class TestPut:
    @pytest.mark.parametrize("data", [b"\x00raw", "text", {"to": ["ä", 1, None]}, 7, None, []])
    def test_data_arrives_as_it_was_put(self, queue, data):
        """
        Bytes stay bytes, and all else is JSON.
        """
        job = queue.put(data, headers={"Shop": "12"})
        (found,) = take(queue)

        assert (found.data, found.id, found.headers) == (data, job.id, {"Shop": "12"})
        assert (found.attempt, found.deliveries, found.sequence) == (1, 1, job.sequence)
        assert abs(dt.datetime.now(dt.timezone.utc) - found.enqueued) < dt.timedelta(minutes=5)
        assert queue.statistics() == QueueStatistics(0, 0, 0, 0, 0)

    @pytest.mark.parametrize(
        "options",
        [
            {"priority": 2},
            {"priority": -1},
            {"priority": 1.0},
            {"delay": -1},
            {"expires": 0},
            {"expires": 5, "delay": 6},
            {"job_id": ""},
            {"job_id": 7},
            {"headers": {"Nats-TTL": "1s"}},
            {"headers": {"jetsync-job-id": "1"}},
            {"headers": {"Shop": ["1", "2"]}},
            {"headers": jetsync.Headers({"Shop": ["1", "2"]})},
            {"data": object()},
            {"data": float("nan")},
        ],
    )
    def test_bad_arguments_store_nothing(self, queue, options):
        """
        The error names the argument.
        """
        data = options.pop("data", 1)
        with pytest.raises((jetsync.InvalidArgumentError, jetsync.InvalidTypeError)):
            queue.put(data, **options)

        assert queue.statistics().open == 0

    def test_an_id_is_used_once(self, queue):
        """
        A second job with the same id is not stored, whether the first one waits or has a delay.
        """
        first = queue.put(1, job_id="a@b.c")
        assert not first.duplicate
        assert first.sequence == queue.stream.info().state.last_seq
        assert not queue.put(2, job_id="later", delay=100, msg_id="one").duplicate

        again = queue.put(1, job_id="a@b.c")
        assert (again.duplicate, again.sequence) == (True, None)
        assert queue.put(2, job_id="later", delay=50, msg_id="two").duplicate
        assert queue.statistics() == QueueStatistics(1, 0, 1, 0, 0)

    def test_a_message_id_of_its_own_lets_jobs_with_one_id_follow(self, queue):
        """
        Only the message id decides then.
        """
        jobs = [queue.put(number, job_id="same", msg_id=f"try-{number % 2}") for number in range(3)]

        assert [job.duplicate for job in jobs] == [False, False, True]

    def test_many_jobs_are_put_at_once(self, queue):
        """
        The handles are in the order of the data.
        """
        jobs = queue.put_many(range(50))
        found = take(queue, 50)

        assert [(each.data, each.id) for each in found] == [
            (number, job.id) for number, job in enumerate(jobs)
        ]

    def test_large_data_takes_the_way_of_objects(self, queue, js):
        """
        Data above max_payload arrives, and its object is removed with the job.
        """
        data = "x" * 3_000_000
        queue.put(data, job_id="big")
        (found,) = take(queue)

        assert found.data == data
        store = js.object_store(f"{queue.stream.name}_jobs")
        assert store.list() == []
        first = queue.put(data, job_id="again")
        assert queue.put(data, job_id="again").duplicate
        assert len(store.list()) == 1
        assert first.cancel()
        assert store.list() == []

    def test_queues_of_a_prefix_do_not_mix(self, queue, open_queue, js):
        """
        Names that differ only in special characters are different queues.
        """
        other = open_queue("mail.x@y")
        queue.put(1)
        other.put(2)

        assert [each.data for each in take(other)] == [2]
        assert [each.data for each in take(queue)] == [1]
        assert WorkQueue.names(js, prefix=queue.prefix) == ["mail", "mail.x@y"]

    def test_a_queue_that_exists_is_opened_as_it_is(self, queue, open_queue):
        """
        Options of the stream count only for the program that makes it.
        """
        again = open_queue(storage="file", duplicate_window=60)

        assert again.stream.config.storage == queue.stream.config.storage
        assert again.stream.config.duplicate_window == 120

    def test_another_stream_of_the_name_is_refused(self, open_queue, js):
        """
        It would store a job with a delay as one without.
        """
        js.create_stream("QUEUE_foreign", subjects=["foreign.>"], storage="memory")
        try:
            with pytest.raises(QueueError, match="no work queue"):
                open_queue(prefix="foreign")
        finally:
            js.delete_stream("QUEUE_foreign")


class TestTime:
    def test_a_delayed_job_comes_on_time_and_leaves_nothing(self, queue):
        """
        No worker holds it meanwhile, and the schedule is gone afterwards.
        """
        due = dt.datetime.now(dt.timezone.utc) + dt.timedelta(seconds=1)
        queue.put("later", at=due)
        assert queue.statistics() == QueueStatistics(0, 0, 1, 0, 0)
        with queue.receive() as receiver:
            found = receiver.get(timeout=30)
            late = dt.datetime.now(dt.timezone.utc) - due
            found.ack(confirmed=True)

        assert found.data == "later"
        assert dt.timedelta(0) <= late < dt.timedelta(seconds=5)
        assert found.enqueued < due
        assert queue.statistics().open == 0

    def test_the_highest_priority_comes_first(self, open_queue):
        """
        Whatever the order in which jobs were put.
        """
        queue = open_queue(priorities=4)
        for priority in (0, 2, 1, 3, 0, 3):
            queue.put(priority, priority=priority)
        found = []
        with queue.receive(ahead=5) as receiver:
            while receiver.held < 6:
                pass
            found = [receiver.get() for _ in range(6)]
            for each in found:
                each.ack()

        assert [each.priority for each in found] == [3, 3, 2, 1, 0, 0]

    def test_an_expired_job_is_not_started(self, queue):
        """
        The exact time counts, although the server keeps whole seconds.
        """
        job = queue.put(1, expires=0.05)
        with queue.receive() as receiver:
            found = receiver.get(timeout=30)
            while not found.is_expired:
                pass
            assert not found.begin()

        assert found.is_settled
        assert job.status().state == "expired"
        # The acknowledgement is not confirmed.
        eventually(lambda: queue.statistics().open == 0)

    def test_the_server_removes_expired_jobs(self, queue):
        """
        A job that nobody takes does not stay.
        """
        queue.put(1, expires=0.5)
        sequence = queue.stream.info().state.last_seq

        def is_stored():
            try:
                return bool(queue.stream.get_message(sequence, direct=False))
            except jetsync.MessageNotFoundError:
                return False

        limit = time.monotonic() + 30
        while is_stored():
            assert time.monotonic() < limit


class TestCancel:
    @pytest.mark.parametrize("delay", [None, 100])
    @pytest.mark.parametrize("how", ["handle", "id"])
    def test_a_cancelled_job_is_gone_from_the_server(self, queue, delay, how):
        """
        With its handle or its id, whether it waits or has a delay.
        """
        queue.put("other")
        job = queue.put("x", delay=delay, job_id="j.1")
        sequence = queue.stream.info().state.last_seq

        assert queue.cancel(job if how == "handle" else "j.1")
        with pytest.raises(jetsync.MessageNotFoundError):
            queue.stream.get_message(sequence, direct=False)
        assert queue.statistics() == QueueStatistics(1, 0, 0, 0, 0)
        assert not queue.cancel(job)
        with pytest.raises(JobCancelledError):
            job.result(timeout=5)

    def test_only_scheduled_jobs_are_cancelled_if_asked_for(self, queue):
        """
        An available job stays.
        """
        queue.put("x", job_id="now")
        queue.put("x", job_id="later", delay=3600)

        assert not queue.cancel("now", scheduled_only=True)
        assert queue.cancel("later", scheduled_only=True)
        assert queue.statistics() == QueueStatistics(1, 0, 0, 0, 0)

    def test_nothing_is_removed_for_an_unknown_id(self, queue):
        """
        Other jobs stay.
        """
        queue.put(1)

        assert not queue.cancel("unknown")
        assert queue.statistics().waiting == 1

    def test_purge_and_delete_remove_only_jobs_of_the_queue(self, queue, open_queue, js):
        """
        Other queues of the prefix keep theirs.
        """
        other = open_queue("other")
        for each in (queue, other):
            each.put(1)
            each.put(2, delay=50)

        assert queue.purge() == 2
        queue.put(3)
        take(queue)
        queue.delete()
        assert queue.statistics() == QueueStatistics(0, 0, 0, 0, 0)
        assert WorkQueue.names(js, prefix=queue.prefix) == ["other"]
        assert other.statistics() == QueueStatistics(1, 0, 1, 0, 0)
