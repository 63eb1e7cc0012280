"""
Iterations that only one call at a time may advance.
"""

from __future__ import annotations

import itertools
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from helpers.interrupts import interrupted_at
from jetsync import ConfigurationError, ConflictingUseError, HandleClosedError
from jetsync._base.iterations import Iteration, ListIteration


@pytest.fixture
def many_switches():
    """
    Switch threads as often as the interpreter can.
    """
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def by_item(items, what="scan"):
    """
    Return an iteration over the items of a generator.
    """
    return Iteration(items, what)


def by_run(items, what="scan"):
    """
    Return an iteration over the items of a generator, in runs of one and, after item 4, of three.
    """

    def runs():
        for item in items:
            yield [item, *itertools.islice(items, 2 if item > 4 else 0)]

    return ListIteration(runs(), what)


KINDS = pytest.mark.parametrize("make", [by_item, by_run])


class Numbers:
    """
    The numbers from 0, from a generator that records its end.
    """

    def __init__(self, count):
        self.count = count
        self.begun = self.ended = 0

    def __iter__(self):
        self.begun += 1
        try:
            yield from range(self.count)
        finally:
            self.ended += 1


@KINDS
def test_an_iteration_in_one_thread_has_all_items_in_order(make):
    """
    The items come in their order, and no error follows the last one.
    """
    shared = make(iter(Numbers(9)))
    assert iter(shared) is shared
    assert list(shared) == [*range(9)]
    assert list(shared) == []


@KINDS
def test_a_thread_that_shares_an_iteration_gets_an_error(make):
    """
    A thread that shares the iterator gets an error, and the first one gets all items.
    """
    running, go_on = threading.Event(), threading.Event()

    def items():
        yield 0
        running.set()
        go_on.wait(10)
        yield 1

    shared = make(items())
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(list, shared)
        assert running.wait(10)
        with pytest.raises(ConflictingUseError, match="of this scan"):
            next(shared)
        go_on.set()
        assert waiting.result(10) == [0, 1]


@KINDS
@pytest.mark.usefixtures("many_switches")
def test_threads_at_the_same_moment(make):
    """
    Each item goes to one of the threads, and the others get no other error.
    """
    numbers = Numbers(20_000)
    shared = make(iter(numbers))
    start = threading.Barrier(4)

    def take():
        taken = []
        start.wait(10)
        while True:
            try:
                taken.append(next(shared))
            except StopIteration:
                return taken
            except ConflictingUseError:
                pass

    with ThreadPoolExecutor(4) as pool:
        found = [each.result(60) for each in [pool.submit(take) for _ in range(4)]]
    assert sorted(item for taken in found for item in taken) == [*range(20_000)]
    assert all(taken == sorted(taken) for taken in found)
    assert numbers.ended == 1


def test_two_threads_that_found_nothing():
    """
    The second of two calls that saw the end of a run does not drop the run that the first one got.
    """
    shared = by_run(iter(Numbers(9)))
    next(shared._filling)
    next(shared._filling)
    assert list(shared) == [*range(9)]


@KINDS
def test_its_own_thread(make):
    """
    A signal handler that interrupts its own thread's call gets an error, which ends nothing.
    """
    refused = []

    def handler(*_):
        with pytest.raises(ConflictingUseError) as caught:
            next(shared)
        refused.append(caught.value)

    def items():
        yield 0
        signal.raise_signal(signal.SIGUSR1)
        yield 1

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        shared = make(items())
        assert list(shared) == [0, 1]
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert len(refused) == 1


@KINDS
def test_its_own_errors(make):
    """
    An error of the generator itself is raised as it is, once.
    """

    def items():
        yield 0
        raise ConfigurationError("wrong")

    shared = make(items())
    assert next(shared) == 0
    with pytest.raises(ConfigurationError, match="wrong"):
        next(shared)
    assert list(shared) == []


@KINDS
@pytest.mark.parametrize(
    "error", [ValueError("of a signal handler"), ConflictingUseError("of another call")], ids=repr
)
def test_an_error_of_others_is_not_the_end(make, error):
    """
    After an error that is not the generator's own, each call says that items may be missing, until
    the iteration is closed.
    """

    def items():
        yield 0
        raise error

    shared = make(items())
    assert next(shared) == 0
    with pytest.raises(type(error), match="of a"):
        next(shared)
    for _ in range(2):
        with pytest.raises(HandleClosedError, match="interrupted, so items may be missing"):
            next(shared)
    shared.close()
    assert list(shared) == []


@KINDS
def test_an_iteration_that_was_left_can_be_continued(make):
    """
    An iteration that the caller has left can be continued.
    """
    numbers = Numbers(5)
    shared = make(iter(numbers))
    for number in shared:
        if number == 1:
            break
    assert numbers.ended == 0
    assert list(shared) == [2, 3, 4]


@KINDS
def test_a_dropped_iteration_closes_its_generator_at_once(make):
    """
    The generator is closed as soon as nothing refers to the iteration.
    """
    numbers = Numbers(5)
    shared = make(iter(numbers))
    next(shared)
    del shared
    assert numbers.ended == 1


@KINDS
def test_closing_an_iteration_drops_the_rest_and_can_be_repeated(make):
    """
    Closing closes the generator and drops the rest; it can be repeated.
    """
    numbers = Numbers(5)
    shared = make(iter(numbers))
    assert [next(shared), next(shared)] == [0, 1]
    assert shared.close()
    assert shared.close()
    assert numbers.ended == 1
    assert list(shared) == []


@KINDS
def test_closed_while_it_runs(make):
    """
    If another call runs the generator, that call closes it.
    """
    running, go_on, ended = threading.Event(), threading.Event(), threading.Event()

    def items():
        try:
            running.set()
            go_on.wait(10)
            yield 0
            yield 1
        finally:
            ended.set()

    shared = make(items())
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(next, shared, None)
        assert running.wait(10)
        assert not shared.close()
        assert not ended.is_set()
        go_on.set()
        # The run that arrived after the call is dropped.
        assert waiting.result(10) == (None if make is by_run else 0)
    assert ended.is_set()
    assert list(shared) == []


@KINDS
def test_an_interrupt_after_a_close(make):
    """
    If a call is interrupted after another one has closed the iteration, no later call says that
    items may be missing.
    """

    def items():
        yield 0
        assert not shared.close()
        raise KeyboardInterrupt

    shared = make(items())
    assert next(shared) == 0
    with pytest.raises(KeyboardInterrupt):
        next(shared)
    assert list(shared) == []


@KINDS
@pytest.mark.usefixtures("many_switches")
def test_a_generator_that_another_thread_closes_is_closed(make):
    """
    A generator that one thread runs and another one closes is closed.
    """
    with ThreadPoolExecutor(2) as pool:
        for _ in range(300):
            numbers = Numbers(10**9)
            shared = make(iter(numbers))
            start = threading.Barrier(2)

            def take(shared=shared, start=start):
                start.wait(10)
                return sum(1 for _ in shared)

            def close(shared=shared, start=start):
                start.wait(10)
                shared.close()

            taking, closing = pool.submit(take), pool.submit(close)
            closing.result(30)
            taking.result(30)
            assert numbers.ended == numbers.begun


@KINDS
def test_ctrl_c_at_any_step_of_an_iteration_leaves_no_gap(make):
    """
    Ctrl-C at any step leaves no gap: the iteration continues with the next item, or says that items
    may be missing.
    """
    said = 0
    for step in range(1, 400):
        shared = make(number for number in range(12))
        taken = []

        def take(shared=shared, taken=taken):
            for item in shared:
                taken.append(item)

        over = interrupted_at(step, take)
        try:
            taken += shared
            assert len(taken) == 12
        except HandleClosedError:
            said += 1
        assert taken == [*range(len(taken))]
        if over:
            break
    assert over
    assert said
    assert taken == [*range(12)]
    assert step > 40


@KINDS
# Python swallows an interrupt that hits the end of a generator that is dropped.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_ctrl_c_at_any_step_of_a_close(make):
    """
    After Ctrl-C at any step of a close, no call counts as running, and a second close ends it.
    """
    step, over = 0, False
    while not over:
        step += 1
        shared = make(number for number in range(5))
        next(shared)
        over = interrupted_at(step, shared.close)
        assert not shared.is_running, step
        assert shared.close()
        assert list(shared) == []
    assert step > 2
