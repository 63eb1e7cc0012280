"""
Leases that are lost, and writes whose outcome is unknown.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from holding import LEASE, hold_in_a_process

from jetsync.testing import eventually
from jetsync_locks import LeaseLostError, Lock

pytestmark = pytest.mark.live


def test_the_holder_learns_of_a_partition_before_another_gets_the_lock(bucket, behind_proxy):
    """
    If renewals do not arrive, the event and the callback come before another holder.
    """
    proxy, own = behind_proxy()
    lost = []
    lock = Lock(own, "a", lease=LEASE, on_lost=lost.append).acquire()
    fence = lock.fence
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(Lock(bucket, "a", lease=LEASE).acquire)
        eventually(lambda: len(bucket.keys()) == 2)
        proxy.refuse()
        proxy.freeze()
        assert lock.lost.wait(20)
        assert not waiting.done()
        other = waiting.result(20)
    assert other.fence > fence
    assert other.release()
    with pytest.raises(LeaseLostError, match=f"'a' with fence {fence} is lost"):
        lock.check()
    assert eventually(lambda: lost)[0].fence == fence
    with pytest.raises(LeaseLostError):
        lock.release()
    proxy.accept()
    proxy.cut()
    # The object can be used again.
    with lock:
        lock.check()


def test_a_short_partition_loses_nothing(bucket, behind_proxy):
    """
    A connection that is lost and comes back within the lease does not lose it.
    """
    proxy, own = behind_proxy()
    with Lock(own, "a", lease=3) as lock:
        for _ in range(3):
            before = bucket.status().last_revision
            proxy.cut()
            eventually(lambda before=before: bucket.status().last_revision > before)
            lock.check()


def test_a_removed_key_loses_the_lease(bucket):
    """
    If the key of the holder is purged by hand, its next renewal says so.
    """

    def work() -> None:
        with Lock(bucket, "a", lease=LEASE) as lock:
            (key,) = bucket.keys()
            bucket.purge(key)
            assert lock.lost.wait(10)

    with pytest.raises(LeaseLostError, match="the server has removed it"):
        work()


def test_a_deleted_bucket_loses_the_lease(js, bucket):
    """
    If the bucket is deleted, the lease is lost.
    """
    lock = Lock(bucket, "a", lease=LEASE).acquire()
    js.delete_key_value(bucket.bucket)
    assert lock.lost.wait(10)
    with pytest.raises(LeaseLostError):
        lock.release()


def test_an_error_of_the_callback_changes_nothing(bucket, caplog):
    """
    An error of `on_lost` is logged.
    """

    def fail(_: object) -> None:
        raise ZeroDivisionError

    lock = Lock(bucket, "a", lease=LEASE, on_lost=fail).acquire()
    bucket.purge(bucket.keys()[0])
    assert lock.lost.wait(10)
    eventually(lambda: "The function on_lost raised an error" in caplog.text)
    with pytest.raises(LeaseLostError):
        lock.release()


def test_the_callback_may_release(bucket):
    """
    In `on_lost`, a release says at once that the lease is lost.
    """
    said = []

    def release(_: object) -> None:
        begin = time.monotonic()
        with pytest.raises(LeaseLostError):
            lock.release(timeout=60)
        said.append(time.monotonic() - begin)

    lock = Lock(bucket, "a", lease=LEASE, on_lost=release).acquire()
    bucket.purge(bucket.keys()[0])
    assert eventually(lambda: said)[0] < 30
    with lock:
        lock.check()


def test_an_error_of_the_block_is_not_replaced(bucket):
    """
    If the block raises after the lease was lost, its own error passes.
    """

    def work() -> None:
        with Lock(bucket, "a", lease=LEASE) as lock:
            bucket.purge(bucket.keys()[0])
            assert lock.lost.wait(10)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()


class TestUnknownOutcomes:
    """
    Answers that are lost.
    """

    def test_a_ticket_whose_answer_is_lost_is_recognised(self, bucket, behind_proxy):
        """
        If the answer to the first write is lost, the lock is acquired once, with that revision.
        """
        proxy, own = behind_proxy()
        own.status()
        proxy.pause("to_client")
        with ThreadPoolExecutor(1) as pool:
            acquired = pool.submit(Lock(own, "a", lease=5).acquire)
            eventually(bucket.keys)
            proxy.cut()
            proxy.resume("to_client")
            lock = acquired.result(30)
        (entry,) = bucket.get_many("lock.a.*").values()
        assert lock.fence <= entry.revision
        assert lock.held
        assert lock.fence == 1
        lock.release()

    def test_a_renewal_whose_answer_is_lost_is_recognised(self, bucket, behind_proxy):
        """
        If the answer to a renewal is lost, the lease continues.
        """
        proxy, own = behind_proxy()
        with Lock(own, "a", lease=3) as lock:
            (key,) = bucket.keys()
            first = bucket.get(key).revision
            proxy.pause("to_client")
            eventually(lambda: bucket.get(key).revision > first)
            proxy.cut()
            proxy.resume("to_client")
            second = bucket.get(key).revision
            eventually(lambda: bucket.get(key).revision > second)
            lock.check()

    def test_a_release_whose_answer_is_lost_is_repeated(self, bucket, behind_proxy):
        """
        If the answer to the release is lost, the call finds out that the lock is free.
        """
        proxy, own = behind_proxy()
        lock = Lock(own, "a", lease=5).acquire()
        proxy.pause("to_client")
        with ThreadPoolExecutor(1) as pool:
            released = pool.submit(lock.release, timeout=20)
            eventually(lambda: not bucket.keys())
            proxy.cut()
            proxy.resume("to_client")
            assert released.result(30) is True

    def test_a_release_without_a_server_says_that_it_is_unknown(self, bucket, behind_proxy):
        """
        A release that the server does not confirm returns False, and the lock expires.
        """
        proxy, own = behind_proxy()
        lock = Lock(own, "a", lease=LEASE).acquire()
        proxy.refuse()
        proxy.freeze()
        assert lock.release(timeout=0.1) is False
        with Lock(bucket, "a", timeout=20):
            pass


@pytest.fixture
def holder(nats_server, bucket):
    """
    A process that holds the lock, its pipe, and its fence.
    """
    here, there = multiprocessing.Pipe()
    context = multiprocessing.get_context("spawn")
    arguments = nats_server.url, bucket.bucket, there
    process = context.Process(target=hold_in_a_process, args=arguments, daemon=True)
    process.start()
    assert here.poll(60)
    yield process, here, here.recv()
    process.kill()
    process.join()


@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGSTOP")
def test_a_process_that_was_stopped_knows_that_it_lost_the_lease(bucket, holder):
    """
    After its process was stopped, the holder knows at once that the lease is lost.
    """
    process, pipe, fence = holder
    pipe.send("held?")
    assert pipe.recv() == (True, False)
    os.kill(process.pid, signal.SIGSTOP)
    with Lock(bucket, "a", lease=LEASE, timeout=30) as lock:
        assert lock.fence > fence
        pipe.send("held?")
        os.kill(process.pid, signal.SIGCONT)
        assert pipe.recv() == (False, True)
        lock.check()


def test_a_crashed_holder_is_replaced_within_its_lease(bucket, holder):
    """
    If the holder's process is killed, a waiter gets the lock within the time-to-live.
    """
    process, _, fence = holder
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(Lock(bucket, "a", lease=LEASE).acquire)
        eventually(lambda: len(bucket.keys()) == 2)
        process.kill()
        killed = time.monotonic()
        lock = waiting.result(30)
        took = time.monotonic() - killed
    assert lock.fence > fence
    # The server places its marker up to 0.3 s late, and this machine may be busy.
    assert took < LEASE + 2
    lock.release()


def test_a_waiter_that_dies_is_skipped(nats_server, bucket):
    """
    If a waiting process is killed, the one after it gets the lock once its ticket has expired.
    """
    context = multiprocessing.get_context("spawn")
    _, there = multiprocessing.Pipe()
    with Lock(bucket, "a", lease=LEASE) as lock:
        process = context.Process(
            target=hold_in_a_process, args=(nats_server.url, bucket.bucket, there), daemon=True
        )
        process.start()
        eventually(lambda: len(bucket.keys()) == 2, timeout=60)
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(Lock(bucket, "a", lease=LEASE).acquire)
            eventually(lambda: len(bucket.keys()) == 3)
            process.kill()
            process.join()
            lock.release()
            waiting.result(30).release()
            # `with` has nothing left to release.
            lock.acquire()


def test_lost_wakes_all_threads_that_wait(bucket):
    """
    Each thread that waits for `lost` returns when the lease is lost, and none before.
    """
    lock = Lock(bucket, "a", lease=LEASE).acquire()
    assert lock.lost.wait(0.01) is False
    with ThreadPoolExecutor(3) as pool:
        waiting = [pool.submit(lock.lost.wait, 20) for _ in range(3)]
        bucket.purge(bucket.keys()[0])
        assert [done.result() for done in waiting] == [True] * 3
    with pytest.raises(LeaseLostError):
        lock.release()
    assert threading.active_count() < 20
