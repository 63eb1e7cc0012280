"""
The core of everything that messages are taken from.
"""

from __future__ import annotations

import threading
import types
from concurrent.futures import ThreadPoolExecutor

import pytest

import jetsync
from helpers.interrupts import is_locked
from helpers.waiting import eventually
from jetsync._base.deadline import FOREVER, Deadline
from jetsync._base.turn import outside
from jetsync.consume.reading import Reading, shown


@pytest.fixture
def connection():
    """
    The part of a connection that the core uses.
    """
    lane = types.SimpleNamespace(forked=False)
    return types.SimpleNamespace(lane=lane, stopping=False)


@pytest.fixture
def reading(connection):
    """
    The core of a watch.
    """
    return Reading("watch", connection)


class TestTakers:
    def test_threads_wait_for_their_turn(self, reading):
        """
        Of two threads, the second one is let in when the first one leaves, or gets a timeout.
        """

        def second(seconds):
            return reading.run(Deadline.after(seconds), bool, 1)

        def first():
            late, waiting = pool.submit(second, 0.0), pool.submit(second, 30.0)
            with pytest.raises(jetsync.WaitTimeoutError, match="another call on the watch"):
                late.result(10)
            return waiting

        with ThreadPoolExecutor(2) as pool:
            assert reading.run(Deadline.after(0.0), first).result(10)
        assert not is_locked(reading.turn._lock)

    def test_a_hook_inside_a_call_is_refused(self, reading):
        """
        A plugin that is called inside a call for a message can neither take nor wait.
        """

        def hook():
            assert reading.is_taking_here()
            for call in (
                lambda: reading.run(Deadline.after(30), bool),
                lambda: reading.wait(reading.over, 30.0),
            ):
                with pytest.raises(jetsync.ConflictingUseError):
                    call()
            return True

        assert reading.run(FOREVER, outside, hook)

    def test_a_signal_handler_inside_a_call_is_refused(self, reading):
        """
        A signal handler that interrupts a call for a message can neither take nor wait.
        """

        def handler():
            with pytest.raises(jetsync.CallInSignalHandlerError):
                reading.run(Deadline.after(30), bool)
            with pytest.raises(jetsync.CallInSignalHandlerError):
                reading.wait(reading.over, 30.0)
            return True

        assert reading.run(FOREVER, handler)

    def test_one_taker(self, reading):
        """
        Inside a call that lets in one taker, no other call of its thread waits.
        """
        reading.taker = threading.get_ident()
        with pytest.raises(jetsync.ConflictingUseError, match="of this watch"):
            reading.wait(reading.over, 30.0)

    def test_another_thread_may_wait(self, reading):
        """
        While one thread takes, the others may wait for the end.
        """

        def end():
            waiting = pool.submit(reading.wait, reading.over, 30.0)
            reading.end()
            return waiting.result(10)

        with ThreadPoolExecutor(1) as pool:
            assert reading.run(FOREVER, end)

    def test_a_forked_child(self, reading, connection):
        """
        In a forked child, calls raise at once instead of waiting for threads of the parent.
        """
        with ThreadPoolExecutor(1) as pool:
            pool.submit(reading.turn._lock.acquire).result(10)
            connection.lane.forked = True
            for call in (
                lambda: reading.run(Deadline.after(None), bool),
                lambda: reading.wait(reading.over, 30.0),
            ):
                with pytest.raises(jetsync.ForkedProcessError):
                    call()
            reading.after_fork()
            assert reading.over.is_set()
            assert not is_locked(reading.turn._lock)


class TestEnd:
    def test_the_error_is_raised_once(self, reading):
        """
        Of many threads, one gets the error, and the others learn that the handle is closed.
        """
        reading.end(jetsync.ConsumerDeletedError())

        def ask():
            with pytest.raises(jetsync.JetSyncError) as caught:
                reading.end_next()
            return type(caught.value)

        with ThreadPoolExecutor(4) as pool:
            seen = [each.result(10) for each in [pool.submit(ask) for _ in range(20)]]
        assert seen.count(jetsync.ConsumerDeletedError) == 1
        assert seen.count(jetsync.HandleClosedError) == 19

    def test_the_first_error_counts(self, reading):
        """
        Later ends do not replace the error, and later calls name it as the reason.
        """
        first = jetsync.ConsumerDeletedError()
        reading.end(first)
        reading.end(jetsync.ForkedProcessError())
        assert reading.error is first
        with pytest.raises(jetsync.ConsumerDeletedError):
            reading.end_loop()
        with pytest.raises(jetsync.ConsumptionClosedError, match=str(first)):
            reading.end_next(jetsync.ConsumptionClosedError)
        with pytest.raises(StopIteration):
            reading.end_loop()

    def test_the_application_closes_the_client(self, reading):
        """
        A loop ends silently, and a call for the next message raises.
        """
        reading.end(jetsync.ConnectionClosedError())
        with pytest.raises(StopIteration):
            reading.end_loop()
        assert shown(reading.error) is None
        with pytest.raises(jetsync.ConnectionClosedError):
            reading.end_next()

    def test_a_signal_ends_the_program(self, reading, connection):
        """
        After a signal, a call for the next message returns nothing instead of raising.
        """
        connection.stopping = True
        reading.end()
        assert reading.end_next() is None

    def test_an_error_that_the_caller_raises(self, reading):
        """
        An error that a call has raised itself is not raised again.
        """
        reading.mark_raised()
        reading.end(jetsync.ConsumerDeletedError())
        with pytest.raises(StopIteration):
            reading.end_loop()

    def test_waiting_threads_are_woken(self, reading):
        """
        The end wakes the threads that wait for it.
        """
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(reading.over.wait, 30)
            eventually(lambda: reading.over._waiting)
            reading.end()
            assert waiting.result(10)

    def test_a_call_before_the_end_keeps_the_error(self, reading):
        """
        A call before the end raises nothing, and leaves the error to the first call after it.
        """
        reading.raise_once()
        reading.end(jetsync.ConsumerDeletedError())
        with pytest.raises(jetsync.ConsumerDeletedError):
            reading.raise_once()
        reading.raise_once()
