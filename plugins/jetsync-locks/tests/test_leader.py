"""
Leaders, and jobs that run once.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

import jetsync
from jetsync.testing import eventually
from jetsync_locks import (
    AcquireTimeoutError,
    AlreadyHeldError,
    Leader,
    LeaseLostError,
    Lock,
    Once,
    Term,
)

pytestmark = pytest.mark.live

LEASE = 2


async def later(term):
    """
    Is never awaited.
    """


def stepwise(term):
    """
    Is never begun.
    """
    yield term


class TestLeader:
    """
    One of many programs runs a function.
    """

    def test_one_leads_at_a_time(self, bucket, another):
        """
        `run` returns the result of the work, and the next one leads after it, with a higher fence.
        """
        inside, fences = [], []

        def work(term: Term) -> int:
            inside.append(term)
            assert len(inside) == 1
            assert not term.lost.is_set()
            term.check()
            fences.append(term.fence)
            inside.pop()
            return term.fence

        with ThreadPoolExecutor(6) as pool:
            leaders = [Leader(bucket if n % 2 else another, "s") for n in range(6)]
            results = [pool.submit(leader.run, work) for leader in leaders]
            assert sorted(result.result(60) for result in results) == fences
        assert fences == sorted(set(fences))
        assert bucket.keys() == []

    def test_a_leader_that_lost_its_lease_leads_again(self, bucket):
        """
        If the lease is lost, `term.lost` is set, and the program waits for another term. The old
        term stays lost.
        """
        fences, lost, terms = [], [], []

        def work(term: Term) -> str:
            fences.append(term.fence)
            terms.append(term)
            if len(fences) == 1:
                bucket.purge(bucket.keys()[0])
                assert term.lost.wait(10)
                with pytest.raises(LeaseLostError):
                    term.check()
                assert not term.stopping
                return "dropped"
            term.check()
            with pytest.raises(LeaseLostError, match=f"fence {fences[0]} "):
                terms[0].check()
            return "done"

        leader = Leader(bucket, "s", lease=LEASE, on_lost=lost.append)
        assert leader.run(work) == "done"
        assert len(fences) == 2
        assert [error.fence for error in lost] == fences[:1]

    def test_an_error_of_the_work_ends_the_term(self, bucket):
        """
        `run` raises the error of the work, and gives the lease back.
        """

        def fail(term: Term) -> None:
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            Leader(bucket, "s").run(fail)
        assert bucket.keys() == []

    def test_another_lost_lock_of_the_work_is_an_error(self, bucket):
        """
        A LeaseLostError of a lock that the work uses is raised.
        """

        def work(term: Term) -> None:
            raise LeaseLostError("other", fence=term.fence, reason="a test")

        with pytest.raises(LeaseLostError, match="other"):
            Leader(bucket, "s").run(work)

    def test_stop_ends_the_term_and_the_wait(self, bucket, another):
        """
        `stop` sets `term.lost`, the lease is held until the work ends, and a waiter returns None.
        """
        first, second = Leader(bucket, "s"), Leader(another, "s")

        def work(term: Term) -> str:
            assert term.lost.wait(20)
            assert term.stopping
            term.check()
            return "ended"

        with ThreadPoolExecutor(2) as pool:
            leads = pool.submit(first.run, work)
            eventually(lambda: first.term)
            waits = pool.submit(second.run, work)
            eventually(lambda: len(bucket.keys()) == 2)
            with pytest.raises(AlreadyHeldError, match="another thread calls run"):
                first.run(work)
            second.stop()
            assert waits.result(20) is None
            first.stop()
            assert leads.result(20) == "ended"
        assert first.term is None
        assert first.run(lambda term: term.fence, timeout=5) > 0

    def test_waiting_has_a_timeout(self, bucket, another):
        """
        `run` raises if another program leads until the timeout.
        """
        done = threading.Event()
        with ThreadPoolExecutor(1) as pool:
            leads = pool.submit(Leader(bucket, "s").run, lambda term: done.wait(20))
            eventually(bucket.keys)
            with pytest.raises(AcquireTimeoutError):
                Leader(another, "s").run(lambda term: None, timeout=0.1)
            done.set()
            leads.result(20)

    def test_a_stop_before_a_run_ends_it(self, bucket):
        """
        A signal may come after its handler was set and before `run` is called. It ends one run.
        """
        leader = Leader(bucket, "s")
        leader.stop()
        assert leader.run(lambda term: "led") is None
        assert leader.run(lambda term: "led", timeout=20) == "led"

    def test_bad_input_is_refused(self, bucket):
        """
        Invalid arguments are refused.
        """
        with pytest.raises(jetsync.InvalidTypeError, match="work must be a function"):
            Leader(bucket, "s").run(None)
        with pytest.raises(jetsync.InvalidTypeError, match="work must be a plain function"):
            Leader(bucket, "s").run(later)
        with pytest.raises(jetsync.InvalidTypeError, match="on_lost must be a plain function"):
            Leader(bucket, "s", on_lost=later)
        with pytest.raises(jetsync.InvalidArgumentError, match="lease must be"):
            Leader(bucket, "s", lease=0)
        with pytest.raises(jetsync.InvalidArgumentError, match="name must consist"):
            Leader(bucket, "")


class TestOnce:
    """
    A job runs once per period.
    """

    def test_one_of_many_runs_the_job(self, bucket, another):
        """
        Of many calls at the same time, one runs the job, and all return when it is done.
        """
        ran = []

        def job(term: Term) -> None:
            ran.append(term.fence)

        with ThreadPoolExecutor(6) as pool:
            calls = [
                pool.submit(Once(bucket if n % 2 else another, "daily").run, "2026-11-28", job)
                for n in range(6)
            ]
            assert sorted(call.result(60) for call in calls) == [False] * 5 + [True]
        once = Once(bucket, "daily")
        assert len(ran) == 1
        assert once.is_done("2026-11-28")
        assert once.run("2026-11-28", job) is False
        assert not once.is_done("2026-11-29")
        assert once.run("2026-11-29", job) is True
        assert len(ran) == 2

    def test_a_job_that_fails_runs_again(self, bucket):
        """
        If the job raises, the period is not done.
        """

        def fail(term: Term) -> None:
            raise ZeroDivisionError

        once = Once(bucket, "daily")
        with pytest.raises(ZeroDivisionError):
            once.run("1", fail)
        assert not once.is_done("1")
        assert once.run("1", lambda term: None) is True

    def test_a_job_that_lost_its_lease_is_not_recorded(self, bucket):
        """
        If the lease is lost while the job runs, the call says so, and the period is not done.
        """

        def job(term: Term) -> None:
            bucket.purge(bucket.keys()[0])
            assert term.lost.wait(10)

        once = Once(bucket, "daily", lease=LEASE)
        with pytest.raises(LeaseLostError):
            once.run("1", job)
        assert not once.is_done("1")

    def test_the_record_is_kept_for_a_time(self, bucket):
        """
        After `keep` seconds, the period is forgotten.
        """
        once = Once(bucket, "daily", keep=1)
        assert once.run("1", lambda term: None)
        assert bucket.get("done.daily.1").ttl == 1.0
        eventually(lambda: not once.is_done("1"))

    def test_an_answer_that_is_lost_is_resolved(self, bucket, behind_proxy):
        """
        If the answer to the record is lost, it is written again, and found.
        """
        proxy, own = behind_proxy()

        def job(term: Term) -> None:
            proxy.pause("to_client")

        with ThreadPoolExecutor(1) as pool:
            ran = pool.submit(Once(own, "daily").run, "1", job)
            eventually(lambda: "done.daily.1" in bucket)
            proxy.cut()
            proxy.resume("to_client")
            assert ran.result(30) is True

    def test_waiting_has_a_timeout(self, bucket, another):
        """
        A call raises if another machine runs the job until the timeout.
        """
        done = threading.Event()
        with ThreadPoolExecutor(1) as pool:
            runs = pool.submit(Once(bucket, "daily").run, "1", lambda term: done.wait(20))
            eventually(bucket.keys)
            with pytest.raises(AcquireTimeoutError):
                Once(another, "daily").run("1", lambda term: None, timeout=0.1)
            done.set()
            assert runs.result(20) is True

    @pytest.mark.parametrize(
        ("call", "said"),
        [
            (lambda bucket: Once(bucket, "daily").run("a.b", print), "period must consist"),
            (lambda bucket: Once(bucket, "daily").run("12:00", print), "period must consist"),
            (lambda bucket: Once(bucket, "daily").run("1", None), "job must be a function"),
            (lambda bucket: Once(bucket, "daily").run("1", later), "must be a plain function"),
            (lambda bucket: Once(bucket, "daily").run("1", stepwise), "function without yield"),
            (lambda bucket: Once(bucket, "daily", keep=0.5), "keep must be at least 1"),
            (lambda bucket: Once(bucket, "daily", keep=1e9), "at most 31 years"),
            (lambda bucket: Once(None, "daily"), "the bucket must be a KeyValue"),
        ],
    )
    def test_bad_input_is_refused(self, bucket, call, said):
        """
        Nothing is recorded, so a job that cannot run is not done.
        """
        with pytest.raises((jetsync.InvalidArgumentError, jetsync.InvalidTypeError), match=said):
            call(bucket)
        assert list(bucket.keys()) == []


def test_a_lock_and_a_leader_of_one_name_are_independent(bucket):
    """
    A lock does not keep a leader of the same name from leading.
    """
    with Lock(bucket, "s"):
        assert Leader(bucket, "s").run(lambda term: "led", timeout=5) == "led"
