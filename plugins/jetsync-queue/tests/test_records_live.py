"""
The records of tracked jobs: how long they are kept, and what they say.
"""

from __future__ import annotations

import pytest

from jetsync_queue import JobFailedError, records
from jetsync_queue.core import Core

pytestmark = pytest.mark.live


def ttl_of(queue, job_id):
    """
    Return the time-to-live of the record of a job, in whole seconds.
    """
    return round(queue.bucket.get(f"{queue.name}.{job_id}").ttl)


def test_each_record_expires(open_queue):
    """
    A record is kept for `result_ttl` after its last change, and before that for the delay, too.
    """
    queue = open_queue(track=True, result_ttl=100)
    queue.put(1, job_id="later", delay=1000)
    queue.put(1, job_id="now")
    assert (ttl_of(queue, "later"), ttl_of(queue, "now")) == (1100, 100)
    with queue.receive() as receiver:
        found = receiver.get(timeout=30)
        assert found.begin("one")
        assert ttl_of(queue, "now") == 100
        found.ack()
        assert ttl_of(queue, "now") == 100


def test_a_requeued_job_waits(open_queue):
    """
    Its record no longer says that it runs, and another worker may begin it.
    """
    queue = open_queue(track=True)
    job = queue.put(1)
    with queue.receive() as receiver:
        found = receiver.get(timeout=30)
        assert found.begin("one")
        found.requeue()
        assert job.status().state == "waiting"
        again = receiver.get(timeout=30)
        assert again.begin("two")
        again.ack()


def test_the_last_errors_and_workers_are_kept(open_queue):
    """
    A record keeps the last 20 of each, so that it does not grow with the attempts.
    """
    queue = open_queue(track=True)
    job = queue.put(1)
    with queue.receive() as receiver:
        for number in range(22):
            found = receiver.get(timeout=30)
            assert found.begin(f"w{number}")
            found.retry(ValueError(f"e{number}"))
        receiver.get(timeout=30).ack()
    status = job.status()
    assert [each.message for each in status.errors] == [f"e{number}" for number in range(2, 22)]
    assert status.workers == tuple(f"w{number}" for number in range(2, 22))


def test_the_end_of_a_long_traceback_is_kept():
    """
    It has the line that raised, and the exception.
    """
    found = records.error_fields(ValueError("x" * 10_000 + " the end"))

    assert found["traceback"].endswith(" the end\n")
    assert len(found["traceback"]) == records.LONGEST_TRACEBACK


@pytest.mark.parametrize("track", [False, True])
def test_an_error_with_a_long_text_ends_the_job(open_queue, track):
    """
    The record has its beginning, so it fits into a message, and the job does not run again.
    """
    queue = open_queue(track=track)
    calls = []

    def fail(job):
        calls.append(job.attempt)
        raise ValueError("x" * 2_000_000)

    job = queue.put(1)
    with queue.worker(fail, retries=1, wait=0.01), pytest.raises(JobFailedError):
        job.result(timeout=30)
    assert calls == [1, 2]
    assert job.status().errors[-1].message == "x" * records.LONGEST_MESSAGE
    assert queue.statistics().open == 0


def test_a_record_that_is_too_large_keeps_its_last_error(open_queue):
    """
    On a server with a small `max_payload`, 20 errors do not fit into a message.
    """
    queue = open_queue(track=True)
    job = queue.put(1)
    error = {"type": "E", "message": "", "at": 0.0, "traceback": "x" * 600_000}
    queue._core.records.update(job.id, lambda found: found | {"errors": [error]})
    queue._core.records.update(
        job.id, lambda found: found | {"errors": [error, {**error, "type": "F"}]}
    )
    assert [each.type for each in job.status().errors] == ["F"]


def test_a_cancelled_job_of_a_queue_without_results_has_a_record(open_queue):
    """
    A tracked job has a record in any case.
    """
    queue = open_queue(track=True, results=False)
    job = queue.put(1)
    assert job.cancel()
    assert job.status().state == "cancelled"


def test_many_tracked_jobs_are_put_as_single_ones_are(open_queue):
    """
    `put_many` passes on all arguments.
    """
    queue = open_queue(track=True)
    jobs = queue.put_many([1, 2], priority=1, delay=0.2, expires=1000)
    assert [job.status().state for job in jobs] == ["waiting"] * 2
    with queue.receive(ahead=2) as receiver:
        for _ in jobs:
            found = receiver.get(timeout=30)
            assert found.priority == 1
            assert found.expires is not None
            assert (found.expires - found.enqueued).total_seconds() == pytest.approx(1000)
            assert job_after(found) >= 0.2
            found.ack()


def job_after(delivery):
    """
    Return the seconds from the put of a job to its message.
    """
    return (delivery.message.metadata.timestamp - delivery.enqueued).total_seconds()


def test_a_dead_job_has_a_record_that_waits_before_it_is_put_back(open_queue, monkeypatch):
    """
    Otherwise, a quick worker would drop it as a job that has ended.
    """
    queue, states = open_queue(track=True), []
    job = queue.put(1)
    with queue.receive() as receiver:
        receiver.get(timeout=30).reject("no")
    publish = Core.publish

    def look(*arguments, **options):
        states.append(job.status().state)
        return publish(*arguments, **options)

    monkeypatch.setattr(Core, "publish", look)
    assert job.status().state == "dead"
    assert queue.retry_dead() == 1
    assert states == ["waiting"]


def test_data_of_jobs_is_in_no_text_of_an_object(open_queue):
    """
    Programs log handles and deliveries, and data may be a secret.
    """
    queue = open_queue(track=True)
    job = queue.put({"password": "open sesame"}, headers={"Token": "open sesame"})
    with queue.receive() as receiver:
        found = receiver.get(timeout=30)
        assert found.data == {"password": "open sesame"}
        again = queue.put(1)
        receiver.get(timeout=30).ack("open sesame")
        assert again.result(timeout=30) == "open sesame"
        found.reject("no")
        texts = [
            repr(job),
            repr(found),
            repr(receiver),
            repr(queue.dead()),
            *map(repr, (job.status(), again.status())),
        ]
    assert not [text for text in texts if "sesame" in text]
