"""
Waiting: the order, the number of requests, and what a wake-up costs.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from jetsync.testing import eventually
from jetsync_locks import Lock, Semaphore
from jetsync_locks._record import rival_of

pytestmark = pytest.mark.live

WAITERS = 100


def queue_of(bucket) -> list[str]:
    """
    Return the keys of all tickets in their order.
    """
    rivals = sorted(rival_of(entry) for entry in bucket.get_many("lock.*.*").values())
    return [rival.key for rival in rivals]


def test_waiters_get_the_lock_in_the_order_in_which_they_asked(bucket, another):
    """
    The lock goes from one waiter to the next, in the order of their tickets.
    """
    order: list[int] = []
    start = Lock(bucket, "a", timeout=60).acquire()
    with ThreadPoolExecutor(10) as pool:

        def wait(number: int) -> None:
            with Lock(another if number % 2 else bucket, "a", timeout=60):
                order.append(number)

        done = []
        for number in range(10):
            done.append(pool.submit(wait, number))
            eventually(lambda number=number: len(bucket.keys()) == number + 2)
        start.release()
        for one in done:
            one.result()

    assert order == [*range(10)]


def test_a_waiter_that_gives_up_is_skipped(bucket, another):
    """
    If a waiter in the middle gives up, the one after it waits for the holder.
    """
    with ThreadPoolExecutor(2) as pool:
        first = Lock(bucket, "a").acquire()
        middle, last = Lock(another, "a"), Lock(another, "a")
        gives_up = pool.submit(middle.acquire)
        eventually(lambda: len(bucket.keys()) == 2)
        waits = pool.submit(last.acquire)
        eventually(lambda: len(bucket.keys()) == 3)
        middle.cancel()
        assert gives_up.exception(20) is not None
        assert len(bucket.keys()) == 2
        assert not waits.done()
        first.release()
        assert waits.result(20).release()


def test_a_hundred_waiters_cause_no_storm(nats_server, js, bucket):
    """
    A release wakes one waiter: the server sends a few messages, not one to each waiter.
    """
    sent = []
    counted = threading.Barrier(2)
    with ThreadPoolExecutor(WAITERS) as pool:
        start = Lock(bucket, "a", lease=600, timeout=100).acquire()

        def wait() -> None:
            with Lock(bucket, "a", lease=600, timeout=100):
                counted.wait(60)
                counted.wait(60)

        done = [pool.submit(wait) for _ in range(WAITERS)]
        eventually(lambda: len(bucket.keys()) == WAITERS + 1, timeout=60)
        eventually(lambda: js.stream(bucket.stream.name).info().state.consumer_count == WAITERS)
        start.release()
        for number in range(WAITERS):
            counted.wait(60)
            if number == 1:
                before = nats_server.monitor("varz")["out_msgs"]
            elif number == 11:
                sent.append((nats_server.monitor("varz")["out_msgs"] - before) / 10)
            counted.wait(60)
        for one in done:
            one.result(60)

    # The answers to a renewal, to a purge, and to the end of a watch, its marker and its pull; and
    # the heartbeats of all watches meanwhile. With a message to all waiters, it would be more.
    assert sent[0] < WAITERS


def test_an_uncontended_lock_needs_three_round_trips(nats_server, bucket, behind_proxy):
    """
    Acquiring a free lock takes two requests, and one more if it was released a moment ago.
    Releasing it takes one.
    """
    proxy, own = behind_proxy()
    for _ in range(2):
        with Lock(own, "a"):
            pass
    taken = []
    for name in ("b", "a"):
        before = nats_server.monitor("varz")["in_msgs"]
        with Lock(own, name):
            acquired = nats_server.monitor("varz")["in_msgs"]
        released = nats_server.monitor("varz")["in_msgs"]
        taken.append((acquired - before, released - acquired))

    assert taken == [(2, 1), (3, 1)]
    assert proxy.statistics().accepted == 1


def test_a_released_lock_is_passed_on_without_a_request(nats_server, bucket, behind_proxy):
    """
    The next waiter has the lock when the marker of the release arrives: it asks nothing.
    """
    proxy, own = behind_proxy()
    holder = Lock(bucket, "a", lease=3).acquire()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(Lock(own, "a", timeout=30).acquire)
        eventually(lambda: bucket.stream.info().state.consumer_count == 1)
        # The first renewal says that the ticket holds.
        eventually(lambda: any(e.json().get("holds") for e in bucket.get_many(">").values()))
        eventually(lambda: len(bucket.keys()) == 2)
        # Nothing that the waiter sends from now on arrives.
        proxy.pause("to_server")
        holder.release()
        lock = waiting.result(20)
        assert lock.held
        proxy.resume("to_server")
        lock.release()


def test_a_lost_marker_delays_a_waiter_but_does_not_forget_it(bucket, another):
    """
    If a key is removed without a marker, the waiter looks again once the lease must have ended.
    """
    lock = Lock(bucket, "a", lease=2).acquire()
    (key,) = bucket.keys()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(Lock(another, "a", lease=2, timeout=60).acquire)
        eventually(lambda: len(bucket.keys()) == 2)
        bucket.stream.purge(f"$KV.{bucket.bucket}.{key}")
        assert waiting.result(30).release()
    assert lock.lost.wait(10)
    assert not lock.held


def test_the_permits_of_a_semaphore_go_to_the_waiters_in_order(bucket):
    """
    Each release of a permit lets the next waiter in, whichever holder releases.
    """
    holders = [Semaphore(bucket, "s", 3).acquire() for _ in range(3)]
    order: list[int] = []
    kept: list[Semaphore] = []

    def wait(number: int) -> None:
        kept.append(Semaphore(bucket, "s", 3, timeout=60).acquire())
        order.append(number)

    with ThreadPoolExecutor(3) as pool:
        for number in range(3):
            pool.submit(wait, number)
            eventually(lambda number=number: len(bucket.keys()) == number + 4)
        for number, position in enumerate((1, 0, 2)):
            holders[position].release()
            eventually(lambda number=number: len(order) == number + 1)
    for permit in kept:
        permit.release()
    assert order == [0, 1, 2]
