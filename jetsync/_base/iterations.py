"""
Iterators that only one call at a time may advance.

The interpreter refuses a second call on a running generator with a bare ValueError, and without the
GIL not even reliably. So each generator that users iterate over is inside one of these classes.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat
from typing import TYPE_CHECKING, Final, TypeVar

from jetsync._base.turn import is_inside
from jetsync.errors import (
    CallInSignalHandlerError,
    ConflictingUseError,
    HandleClosedError,
    JetSyncError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

T = TypeVar("T")
Q = TypeVar("Q")

# Why an iteration is closed after Ctrl-C or another exception of a signal handler.
INTERRUPTED: Final = (
    "a call was interrupted, so items may be missing: begin again after the last one that you have"
)

# What `_free` has while no call runs the generator. Added by `+=`, which calls nothing.
ENTRY: Final = (None,)

# Errors of another call, which a generator does not expect. They end it before its end.
OF_OTHERS: Final = (CallInSignalHandlerError, ConflictingUseError)


def conflict(what: str) -> JetSyncError:
    """Return the error for a second call that takes from the same object."""
    if is_inside():
        return CallInSignalHandlerError()
    return ConflictingUseError(f"another call already takes the next item of this {what}")


def interrupted(what: str) -> HandleClosedError:
    """Return the error for a call after one that was interrupted, if items may be missing."""
    return HandleClosedError(what, reason=INTERRUPTED)


def one_by_one(take: Callable[[Q], T], queue: Q) -> Iterator[T]:
    """
    Return an iterator for ``for`` that takes one item after the other out of a queue.

    *take* is a method of the queue's class that is written in C. So Ctrl-C cannot strike between
    the removal of an item and the variable of the loop, and loses none. Errors of *take*, such as
    IndexError, do not end the iterator.
    """
    return map(take, repeat(queue))


class Iteration(Iterator[T]):
    """
    The items of a generator, for one call at a time.

    Threads: any, and signal handlers.
    Locks: none; the call that has taken the entry of ``_free`` runs the generator. No call waits
    for it.

    If Ctrl-C interrupts a call, an item may be lost, and the generator ends. Each later call raises
    HandleClosedError, which says so, until the iteration is closed. Errors of jetsync are raised
    once. The generator is closed when nothing refers to the iteration any more.

    Args:
        running: The generator.
        what: The kind of object that is iterated over, for the error.
    """

    __slots__ = ("__weakref__", "_closing", "_entry", "_free", "_running", "_what", "unfinished")

    def __init__(self, running: Generator[T, None, None], what: str) -> None:
        self._running = running
        self._what = what
        # Empty while a call runs the generator. Removing the entry is atomic, also without the GIL,
        # and no signal handler runs after that, see `one_by_one`. Measured on Python 3.11, an item
        # costs 0.2 us this way, and 1 us with a `Turn`.
        self._free: list[None] = [None]
        self._entry = one_by_one(list.pop, self._free)
        # Whether a call began and did not end, so items may be missing.
        self.unfinished: bool = False
        self._closing = False

    def __next__(self) -> T:
        """
        Return the next item.

        Raises:
            ConflictingUseError: Another thread waits for an item, or this is a hook of such a call.
            CallInSignalHandlerError: This is a signal handler that interrupted a call of jetsync.
            HandleClosedError: An earlier call was interrupted, so items may be missing.
        """
        free = self._free
        failure: Exception | None = None
        try:
            for _ in self._entry:
                break
        except IndexError:
            if self._closing:
                raise StopIteration from None
            raise conflict(self._what) from None
        try:
            # Two blocks, because Python 3.10 may run a signal handler between an error and the
            # first step of the block that catches it.
            try:
                if self.unfinished and not self._closing:
                    failure = interrupted(self._what)
                else:
                    self.unfinished = True
                    for item in self._running:
                        self.unfinished = False
                        return item
                    self.unfinished = False
            except Exception as error:  # noqa: BLE001 - raised below
                failure = error
                # Errors of other calls end the generator before its end.
                if isinstance(error, JetSyncError) and not isinstance(error, OF_OTHERS):
                    self.unfinished = False
        finally:
            free += ENTRY
            if self._closing:
                self.close()
        if failure is None:
            raise StopIteration
        try:
            raise failure
        finally:
            # Its traceback refers to this frame.
            del failure

    def close(self) -> bool:
        """
        Close the generator, or have the call that runs it do so; any thread, safe to repeat.

        Returns whether it is closed. If not, the caller has to wake the call that runs it.
        """
        # Set first: a call that has just left the generator looks at it afterwards.
        self._closing = True
        try:
            for _ in self._entry:
                break
        except IndexError:
            return False
        try:
            self._running.close()
        finally:
            self._free += ENTRY
        return True

    @property
    def is_running(self) -> bool:
        """Whether a call waits for an item."""
        return not self._free


class ListIteration(Iterator[T]):
    """
    The items of the runs that a generator yields, much faster than one item at a time.

    A call that finds an item takes it. So calls conflict only while one of them waits for more.

    Any thread and any signal handler may call it. It has no lock: an item is taken in one step, and
    the iteration that fills the list lets in one call at a time.

    Args:
        runs: Yields runs of items.
        what: The kind of object that is iterated over, for the error.
    """

    __slots__ = ("__weakref__", "_filling", "_oldest")

    def __init__(self, runs: Generator[Sequence[T], None, None], what: str) -> None:
        # The items that were not taken, the next one last.
        rest: list[T] = []
        self._oldest = one_by_one(list.pop, rest)
        self._filling = Iteration(_fill(rest, runs), what)

    def __next__(self) -> T:
        """
        Return the next item.

        Raises:
            ConflictingUseError, HandleClosedError: As in :class:`Iteration`.
        """
        while True:
            try:
                for item in self._oldest:
                    return item
            except IndexError:
                pass
            next(self._filling)

    def close(self) -> bool:
        """Close the generator as in :class:`Iteration`; it drops the items that were not taken."""
        return self._filling.close()

    @property
    def is_running(self) -> bool:
        """Whether a call waits for items."""
        return self._filling.is_running


def _fill(rest: list[T], runs: Generator[Sequence[T], None, None]) -> Generator[None, None, None]:
    """Put one run after the other into a list, in reverse order."""
    try:
        for run in runs:
            rest[:] = run[::-1]
            yield
            while rest:
                # Another call put them there after this one had found none.
                yield
    finally:
        runs.close()
        rest.clear()
