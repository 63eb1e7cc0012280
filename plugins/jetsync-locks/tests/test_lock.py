"""
Acquire and release without faults.
"""

from __future__ import annotations

import datetime as dt
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

import jetsync
from jetsync.testing import eventually
from jetsync_locks import (
    AcquireCancelledError,
    AcquireTimeoutError,
    AlreadyHeldError,
    Lock,
    NotHeldError,
    Semaphore,
)

pytestmark = pytest.mark.live


def test_one_object_holds_the_lock_at_a_time(bucket):
    """
    While one object holds the lock, others wait, and each holder has a higher fence.
    """
    inside, fences = [], []

    def work() -> None:
        with Lock(bucket, "a", timeout=30) as lock:
            inside.append(1)
            assert len(inside) == 1
            fences.append(lock.fence)
            lock.check()
            inside.pop()

    with ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(work) for _ in range(40)]:
            done.result()

    assert fences == sorted(set(fences))
    assert len(fences) == 40


def test_a_released_lock_leaves_no_key_and_no_thread(bucket):
    """
    After the block, the bucket has no key and the process no thread of the lock.
    """
    lock = Lock(bucket, "a")
    with lock:
        assert lock.held
        (key,) = bucket.keys()
        assert key.startswith("lock.a.")
        assert any(t.name.startswith("jetsync-locks ") for t in threading.enumerate())

    assert not lock.held
    assert bucket.keys() == []
    assert not any(t.name.startswith("jetsync-locks ") for t in threading.enumerate())


def test_an_object_can_be_acquired_again(bucket):
    """
    The same object gets a higher fence each time, and each ticket has a key of its own.
    """
    lock = Lock(bucket, "a")
    fences = []
    for _ in range(3):
        with lock:
            fences.append(lock.fence)
    keys = {entry.key for entry in bucket.watch().initial(timeout=10)}

    assert len(keys) == 3
    assert all(key.startswith("lock.a.") for key in keys)
    assert fences == sorted(set(fences))


def test_names_and_kinds_are_independent(bucket):
    """
    Locks of other names, and a semaphore of the same name, can be held at the same time.
    """
    with (
        Lock(bucket, "a", timeout=5),
        Lock(bucket, "a.b", timeout=5),
        Lock(bucket, "b", timeout=5),
        Semaphore(bucket, "a", 1, timeout=5),
    ):
        pass


def test_acquire_ends_at_its_timeout(bucket, another):
    """
    If another object holds the lock, `acquire` raises after its timeout and leaves the queue.
    """
    with Lock(bucket, "a"):
        waiting = Lock(another, "a")
        for timeout in (0, 0.2, dt.timedelta(milliseconds=200)):
            with ThreadPoolExecutor(1) as pool:
                failed = pool.submit(waiting.acquire, timeout=timeout).exception(20)
            assert isinstance(failed, AcquireTimeoutError)
            assert "held by others (1 before this one)" in str(failed)
        assert len(bucket.keys()) == 1

    with waiting:
        pass


def test_acquire_without_time_gets_a_free_lock(bucket):
    """
    `acquire(timeout=0)` returns a lock that nobody holds.
    """
    lock = Lock(bucket, "a")
    assert lock.acquire(timeout=0) is lock
    assert lock.release() is True


def test_locks_are_not_reentrant(bucket):
    """
    The thread that holds a lock gets an error at once, with this object or another one.
    """
    with Lock(bucket, "a") as lock:
        with pytest.raises(AlreadyHeldError, match="this thread already holds it"):
            lock.acquire()
        with pytest.raises(AlreadyHeldError, match="this thread already holds it"):
            Lock(bucket, "a").acquire()
        with ThreadPoolExecutor(1) as pool, pytest.raises(AlreadyHeldError, match="of its own"):
            pool.submit(lock.acquire).result()
        assert lock.held

    with Lock(bucket, "a", timeout=5):
        pass


def test_an_object_that_waits_is_in_use(bucket, another):
    """
    A second thread cannot wait with the same object.
    """
    lock = Lock(another, "a")
    with ThreadPoolExecutor(1) as first, ThreadPoolExecutor(2) as pool:
        holder = first.submit(Lock(bucket, "a").acquire).result(20)
        waiting = pool.submit(lock.acquire)
        eventually(lambda: len(bucket.keys()) == 2)
        failed = pool.submit(lock.acquire).exception(20)
        assert isinstance(failed, AlreadyHeldError)
        assert "waits for it" in str(failed)
        lock.cancel()
        with pytest.raises(AcquireCancelledError):
            waiting.result(20)
        with pytest.raises(AcquireCancelledError):
            lock.acquire()
        holder.release()


def test_calls_that_need_the_lock_say_so(bucket):
    """
    Without the lock, its fence, its event and its release raise NotHeldError.
    """
    lock = Lock(bucket, "a")
    for call in (
        lock.release,
        lock.check,
        lambda: lock.fence,
        lambda: lock.lost,
        lambda: lock.remaining,
    ):
        with pytest.raises(NotHeldError, match="'a' is not held"):
            call()
    with lock:
        lost = lock.lost
        assert 0 < lock.remaining <= 13.5
    with pytest.raises(NotHeldError):
        lock.release()
    assert not lost.is_set()


def test_any_thread_may_release(bucket):
    """
    A lock can be released by another thread than the one that acquired it.
    """
    lock = Lock(bucket, "a").acquire()
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(lock.release).result() is True
    with Lock(bucket, "a", timeout=5):
        pass


def test_the_error_of_the_block_is_raised(bucket):
    """
    The block's own error passes, and the lock is released.
    """
    with pytest.raises(ZeroDivisionError), Lock(bucket, "a") as lock:
        1 / 0  # noqa: B018
    assert not lock.held
    assert bucket.keys() == []


def test_a_dropped_object_releases_its_lock(bucket):
    """
    If a program drops the object without a release, the lock is released.
    """
    lock = Lock(bucket, "a").acquire()
    del lock
    with Lock(bucket, "a", timeout=10):
        pass


def test_closing_the_client_loses_the_lease(nats_server, bucket):
    """
    A lock whose client is closed is lost, and waiting for another one raises ConnectionClosedError.
    """
    lost = threading.Event()
    with jetsync.connect(nats_server.url) as client:
        own = client.jetstream().key_value(bucket.bucket)
        lock = Lock(own, "a", lease=3, on_lost=lambda _: lost.set()).acquire()
        waiting = Lock(own, "a", lease=3)
        with ThreadPoolExecutor(1) as pool:
            failed = pool.submit(waiting.acquire)
            eventually(lambda: len(bucket.keys()) == 2)
            client.close()
            assert isinstance(failed.exception(20), jetsync.ConnectionClosedError)
    assert lost.wait(10)
    assert lock.lost.is_set()
    assert not lock.held


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"name": ""}, "name must consist of letters"),
        ({"name": "a b"}, "name must consist of letters"),
        ({"name": "a..b"}, "name must consist of letters"),
        ({"name": "a.*"}, "name must consist of letters"),
        ({"name": 7}, "name must be text"),
        ({"lease": 1}, "lease must be 2 to 86400 whole seconds"),
        ({"lease": 2.5}, "lease must be 2 to 86400 whole seconds"),
        ({"lease": "15"}, "lease must be seconds or a timedelta"),
        ({"lease": True}, "lease must be seconds or a timedelta"),
        ({"margin": -1}, "margin must be 0 or more seconds"),
        ({"margin": 6}, "margin must be at most a third of the lease"),
        ({"timeout": float("nan")}, "timeout must be 0 or more seconds"),
        ({"on_lost": 3}, "on_lost must be a function"),
        ({"bucket": "locks"}, "the bucket must be a KeyValue"),
    ],
)
def test_bad_input_is_refused(bucket, options, said):
    """
    Invalid arguments are refused before anything is sent.
    """
    given = {"bucket": bucket, "name": "a", **options}
    with pytest.raises((jetsync.InvalidArgumentError, jetsync.InvalidTypeError), match=said):
        Lock(**given)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({}, "it has no limit_marker_ttl"),
        ({"limit_marker_ttl": 60, "history": 5}, "it keeps 5 revisions per key"),
        ({"limit_marker_ttl": 1, "ttl": 3}, "its ttl of 3 s is shorter than the lease of 15 s"),
    ],
)
def test_buckets_that_cannot_hold_leases_are_refused(js, config, said):
    """
    A bucket with another configuration than leases need is refused with a description.
    """
    name = "refused-" + str(abs(hash(said)))
    bucket = js.create_key_value(name, **config)
    try:
        with pytest.raises(jetsync.ConfigurationError, match=said):
            Lock(bucket, "a").acquire()
        assert bucket.status().last_revision == 0
    finally:
        js.delete_key_value(name)


def test_a_bucket_that_was_changed_is_accepted(js):
    """
    The server is asked again before a bucket is refused.
    """
    bucket = js.create_key_value("changed")
    js.create_or_update_key_value("changed", limit_marker_ttl=60)
    try:
        with Lock(bucket, "a", timeout=5):
            pass
    finally:
        js.delete_key_value("changed")


def test_a_key_that_is_no_ticket_is_an_error(bucket):
    """
    If another program writes into the queue, waiting raises an error that names the key.
    """
    bucket.put("lock.a.other", b"text")
    with pytest.raises(jetsync.DecodeError, match=r"lock\.a\.other"):
        Lock(bucket, "a").acquire(timeout=5)
    bucket.put("lock.a.other", b"{}")
    with pytest.raises(jetsync.DecodeError, match="it is not a ticket"):
        Lock(bucket, "a").acquire(timeout=5)
    bucket.delete("lock.a.other")


def test_a_missing_bucket_is_an_error(js, bucket):
    """
    Without its bucket, a lock raises BucketNotFoundError.
    """
    js.delete_key_value(bucket.bucket)
    with pytest.raises(jetsync.BucketNotFoundError):
        Lock(bucket, "a").acquire(timeout=10)


def test_a_semaphore_has_as_many_holders_as_its_limit(bucket):
    """
    At most `limit` objects hold a permit, and that many do at the same time.
    """
    guard, inside, most = threading.Lock(), [], []
    full = threading.Event()

    def work(number: int) -> None:
        with Semaphore(bucket, "s", 3, timeout=30):
            with guard:
                inside.append(number)
                most.append(len(inside))
                if len(inside) == 3:
                    full.set()
            assert full.wait(20)
            with guard:
                inside.remove(number)

    with ThreadPoolExecutor(9) as pool:
        for done in [pool.submit(work, number) for number in range(30)]:
            done.result()

    assert max(most) == 3


@pytest.mark.parametrize(("limit", "error"), [(0, ValueError), (True, TypeError), ("2", TypeError)])
def test_the_limit_of_a_semaphore_is_checked(bucket, limit, error):
    """
    A limit is a number of at least 1.
    """
    with pytest.raises(error, match="limit must be"):
        Semaphore(bucket, "s", limit)
    assert Semaphore(bucket, "s", 2).limit == 2
