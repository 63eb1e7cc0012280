"""
Threads, the bounded queue, time limits, and statistics that are exact.
"""

from __future__ import annotations

import concurrent.futures
import threading

import pytest

import jetsync
from jetsync.testing import eventually
from jetsync_services import Service, ServiceError, call, stats
from jetsync_services.limits import Watch

pytestmark = pytest.mark.live


class Gate:
    """
    A handler that waits until it is opened.
    """

    def __init__(self):
        self.entered = threading.Semaphore(0)
        self.opened = threading.Event()

    def __call__(self, request):
        self.entered.release()
        assert self.opened.wait(60)
        return request.data

    def wait_entered(self, count=1):
        for _ in range(count):
            assert self.entered.acquire(timeout=30)


@pytest.fixture
def gate():
    """
    A gate that is open after the test, so that no thread is left.
    """
    made = Gate()
    yield made
    made.opened.set()


@pytest.fixture
def pool():
    """
    Threads of callers.
    """
    with concurrent.futures.ThreadPoolExecutor(16) as made:
        yield made


def outcome(future):
    """
    Return the answer, or the code of the error.
    """
    try:
        return future.result(60).data
    except ServiceError as error:
        return error.code


class TestThreads:
    def test_as_many_handlers_as_threads_run_at_once(self, service, caller, gate, pool):
        """
        With 4 threads, 4 requests are handled at the same time, and the fifth waits.
        """
        service.endpoint("a", subject=service.name, threads=4)(gate)
        service.start()
        calls = [pool.submit(call, caller, service.name, timeout=60) for _ in range(5)]

        gate.wait_entered(4)
        assert not gate.entered.acquire(timeout=0.05)
        gate.opened.set()

        assert [outcome(each) for each in calls] == [b""] * 5

    def test_a_full_queue_answers_503_at_once(self, service, caller, gate, pool):
        """
        One request is handled, two wait, and the fourth gets 503 without waiting.
        """
        service.endpoint("a", subject=service.name, max_waiting=2)(gate)
        service.start()
        first = pool.submit(call, caller, service.name, timeout=60)
        gate.wait_entered()
        waiting = [pool.submit(call, caller, service.name, timeout=60) for _ in range(2)]
        (endpoint,) = service._endpoints
        eventually(lambda: endpoint.counts.held == 3)

        with pytest.raises(ServiceError, match="all threads are busy") as caught:
            call(caller, service.name, timeout=60)

        assert caught.value.code == 503
        gate.opened.set()
        assert [outcome(each) for each in (first, *waiting)] == [b""] * 3
        (counts,) = service.stats().endpoints
        assert (counts.num_requests, counts.num_errors) == (4, 1)
        assert counts.last_error == "503:all threads are busy and the queue is full"

    def test_without_a_queue_no_request_waits(self, service, caller, gate, pool):
        """
        With max_waiting=0, a request gets 503 as soon as all threads are busy.
        """
        service.endpoint("a", subject=service.name, max_waiting=0)(gate)
        service.start()
        first = pool.submit(call, caller, service.name, timeout=60)
        gate.wait_entered()

        with pytest.raises(ServiceError, match="503"):
            call(caller, service.name, timeout=60)
        gate.opened.set()
        assert outcome(first) == b""
        assert call(caller, service.name, timeout=60).data == b""

    def test_a_request_leaves_its_place_before_it_is_answered(self, service, caller):
        """
        With max_waiting=0, a caller that has its answer can call again at once.
        """
        service.endpoint("a", subject=service.name, max_waiting=0)(lambda request: b"a")
        service.start()
        (endpoint,) = service._endpoints
        held, send = [], endpoint.send

        def note(*answer):
            held.append(endpoint.counts.held)
            send(*answer)

        endpoint.send = note

        assert [call(caller, service.name, timeout=60).data for _ in range(3)] == [b"a"] * 3
        assert held == [0, 0, 0]

    def test_services_that_call_each_other_in_circles(
        self, nats_server, service_client, name, pool
    ):
        """
        Two services that call each other under load do not wait for each other for ever: every
        call ends with the result or with 503.
        """

        def step(other):
            def handle(request):
                depth = request.json()
                if not depth:
                    return 0
                return call(client, f"{name}.{other}", depth - 1, timeout=60).json() + 1

            return handle

        with (
            jetsync.connect(nats_server.url) as client,
            Service(client, name, version="1.0.0") as one,
            Service(service_client, name, version="1.0.0") as two,
        ):
            for service, own, other in ((one, "ping", "pong"), (two, "pong", "ping")):
                service.endpoint(own, subject=f"{name}.{own}", threads=4, max_waiting=0)(
                    step(other)
                )
            calls = [pool.submit(call, client, f"{name}.ping", 3, timeout=60) for _ in range(200)]
            outcomes = [outcome(each) for each in calls]

            assert set(outcomes) <= {b"3", 503}
            # A single one passes through both twice.
            assert call(client, f"{name}.ping", 3, timeout=60).json() == 3

    def test_counts_are_exact_over_8_threads(self, service, caller, pool):
        """
        After 2,000 requests over 8 threads, of which every fourth fails, the counts are exact.
        """

        def handle(request):
            if request.json() % 4 == 0:
                raise ServiceError(409, "no")

        service.endpoint("a", subject=service.name, threads=8, max_waiting=5000)(handle)
        service.start()

        def ask(number):
            try:
                call(caller, service.name, number, timeout=60)
            except ServiceError:
                return 1
            return 0

        failed = sum(pool.map(ask, range(2000)))

        (found,) = stats(caller, service.name)
        (counts,) = found.endpoints
        assert failed == 500
        assert (counts.num_requests, counts.num_errors, counts.last_error) == (2000, 500, "409:no")
        assert counts.average_processing_time == counts.processing_time // 2000


class Stuttering:
    """
    A subscription that was too slow once.
    """

    def __init__(self, subscription):
        self._subscription = subscription
        self._errors = [jetsync.SlowConsumerError("a", 7)]

    def __getattr__(self, name):
        return getattr(self._subscription, name)

    def __iter__(self):
        if self._errors:
            raise self._errors.pop()
        return iter(self._subscription)


def test_an_endpoint_that_was_too_slow_goes_on(service, caller, monkeypatch, caplog):
    """
    If the client has dropped requests, the log says so, and the endpoint handles the next ones.
    """
    service.endpoint("a", subject=service.name)(lambda request: b"a")
    subscribe = service._subscribe

    def stutter(settings):
        endpoint = subscribe(settings)
        endpoint._subscription = Stuttering(endpoint._subscription)
        return endpoint

    monkeypatch.setattr(service, "_subscribe", stutter)
    service.start()

    assert call(caller, service.name, timeout=60).data == b"a"
    assert "requests_dropped" in caplog.text
    assert service.error is None


class TestTimeLimit:
    def test_a_handler_over_its_time_is_answered_504(self, service, caller, gate, caplog):
        """
        The caller gets 504 when the time is over. The late result is dropped, and the request is
        counted once.
        """
        service.endpoint("a", subject=service.name, timeout=0.1)(gate)
        service.start()

        with pytest.raises(ServiceError, match="no result within") as caught:
            call(caller, service.name, timeout=60)
        # The handler keeps its thread.
        assert service._endpoints[0].counts.held == 1
        gate.opened.set()

        assert caught.value.code == 504
        assert call(caller, service.name, b"x", timeout=60).data == b"x"
        (counts,) = service.stats().endpoints
        assert (counts.num_requests, counts.num_errors) == (2, 1)
        assert counts.last_error == "504:no result within 0.1 seconds"
        assert "result_too_late" in caplog.text

    def test_a_shorter_limit_wakes_the_watch(self, service, caller, gate, pool):
        """
        A request with a short limit is answered in time, while the watch waits for a long one.
        """
        service.endpoint("long", subject=f"{service.name}.long", timeout=600)(gate)
        service.endpoint("short", subject=f"{service.name}.short", timeout=0.1)(gate)
        service.start()
        first = pool.submit(call, caller, f"{service.name}.long", timeout=60)
        gate.wait_entered()

        with pytest.raises(ServiceError, match="504"):
            call(caller, f"{service.name}.short", timeout=60)
        gate.opened.set()
        assert outcome(first) == b""

    def test_the_watch_forgets_requests_that_are_over(self, service, caller):
        """
        A request that was answered in time takes no memory until its time is over.
        """
        service.endpoint("a", subject=service.name, timeout=600)(lambda request: b"a")
        service.start()

        call(caller, service.name)

        eventually(lambda: not service._watch._running)

    def test_no_limit(self, service, caller):
        """
        With timeout=None, the watch does not see the request.
        """
        service.endpoint("a", subject=service.name, timeout=None)(lambda request: b"a")
        service.start()

        assert call(caller, service.name).data == b"a"

    def test_the_watch_expires_only_what_is_over(self):
        """
        Work that was removed does not expire, and the rest does in any order.
        """
        expired = []

        class Work:
            def __init__(self, ends):
                self.ends = ends

            def expire(self):
                expired.append(self)

        watch = Watch(threading.Thread.start)
        removed, late, early = Work(0.0), Work(0.0), Work(-1.0)
        watch._running[id(removed)] = removed
        watch.remove(removed)
        watch.add(late)
        watch.add(early)

        eventually(lambda: set(expired) == {late, early})
        watch.stop()
        watch.thread.join(10)
        assert not watch.thread.is_alive()
