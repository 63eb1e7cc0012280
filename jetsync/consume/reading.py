"""
The common part of all handles that messages are taken from: who takes, and how it ended.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from jetsync import errors
from jetsync._base.failures import raise_failure
from jetsync._base.iterations import conflict, one_by_one
from jetsync._base.locks import Latch
from jetsync._base.turn import Turn, is_inside, waiting

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from jetsync._base.deadline import Deadline
    from jetsync._io.connection import Connection

T = TypeVar("T")


def is_own_close(error: BaseException | None) -> bool:
    """Return whether *error* only says that the application closed the client."""
    return isinstance(error, errors.ConnectionClosedError) and error.__cause__ is None


def shown(error: BaseException | None) -> BaseException | None:
    """Return *error*, or None if the application caused it by closing the client."""
    return None if is_own_close(error) else error


class Reading:
    """
    Who takes messages from one handle, and how that ended.

    Threads: any, and signal handlers.
    Locks: the reading turn, ``turn``, is that of the thread that waits for messages on behalf of
    all. The other fields change in one step each, so no lock protects them.

    Args:
        what: The kind of handle, for errors.
        connection: Its connection.
    """

    def __init__(self, what: str, connection: Connection) -> None:
        self._what = what
        self._connection = connection
        self._lane = connection.lane
        self.turn: Turn = Turn(f"another call on the {what}")
        # Where one call at a time may take, empty while one does; as in `Iteration`. A turn would
        # add a third to the time that a message takes.
        self.free: list[None] = [None]
        self.entry: Iterator[None] = one_by_one(list.pop, self.free)
        # The thread of that call.
        self.taker: int | None = None
        # What each thread has taken and not returned yet. If Ctrl-C interrupts a call at its end,
        # the next call of the same thread returns it.
        self.held: dict[int, Any] = {}
        # Set once no more messages will be handed out.
        self.over: Latch = Latch()
        # Why, unless the application ended it. Set before `over`.
        self.error: BaseException | None = None
        # Empty once the error was raised. Removing the entry is atomic.
        self._unraised: list[None] = [None]

    # Who takes.

    def run(self, deadline: Deadline, work: Callable[..., T], *arguments: Any) -> T:
        """Call *work* in the turn; raises as :meth:`Turn.run`, and in a forked child."""
        self.check()
        return self.turn.run(deadline, work, *arguments)

    def check(self) -> None:
        """Raise in a forked child."""
        if self._lane.forked:
            raise errors.ForkedProcessError

    def take(self, work: Callable[[Deadline, int], T | None], deadline: Deadline) -> T:
        """
        Return the item that *work* holds for this thread, in the turn.

        *work* returns what :attr:`held` has for the thread, after it has waited for it. Raises
        StopIteration if *work* returns None, or at the deadline.

        Call it by a ``for`` over ``map(reading.take, ...)``. Because ``map`` is written in C, no
        signal handler runs between the return from here and the variable of the loop.
        """
        me, held = threading.get_ident(), self.held
        while True:
            if self._lane.forked:
                raise errors.ForkedProcessError
            try:
                item = self.turn.run(deadline, work, deadline, me)
            except errors.WaitTimeoutError:
                item = None
            if item is None:
                raise StopIteration
            # No call between this and the caller, so that no signal handler runs. If one has taken
            # the item before, there is another one.
            if me in held:
                del held[me]
                return item

    def conflict(self) -> errors.JetSyncError:
        """Return the error for a call that takes a message at the same time as another one."""
        return conflict(self._what)

    def is_taking_here(self) -> bool:
        """Return whether a plugin or a signal handler runs inside a call that takes a message."""
        return self.turn.owned() or threading.get_ident() == self.taker

    def wait(self, latch: Latch, seconds: float) -> bool:
        """
        Wait until other threads have set a latch by taking messages, and return whether it is set.

        Raises:
            ForkedProcessError: This is a forked child, which does not have these threads.
            CallInSignalHandlerError: This is a signal handler that interrupted a call of jetsync.
            ConflictingUseError: This is a plugin that is called while its own thread takes
                messages.
        """
        if latch.is_set():
            return True
        self.check()
        if is_inside() or self.is_taking_here():
            raise self.conflict()
        return waiting(latch.wait, seconds)

    # How it ended.

    def end(self, error: BaseException | None = None) -> None:
        """Record that no more messages are handed out, and why; the first error counts."""
        if self.error is None:
            self.error = error
        self.over.set()

    def mark_raised(self) -> None:
        """Raise no error in later calls, because the caller raises it."""
        self._unraised.clear()

    def raise_once(self) -> None:
        """Raise why it ended, in the first call after that; return if it is open."""
        if not isinstance(self.error, Exception):
            return
        try:
            self._unraised.pop()
        except IndexError:
            return
        raise_failure(self.error)

    def end_loop(self) -> NoReturn:
        """End a loop: with the error in the first call, and silently if the client was closed."""
        if not is_own_close(self.error):
            self.raise_once()
        raise StopIteration

    def end_next(self, kind: type[errors.HandleClosedError] = errors.HandleClosedError) -> None:
        """Raise why there is no next message, unless a signal is ending the program."""
        self.raise_once()
        if not self._connection.stopping:
            raise kind(self._what, reason=None if self.error is None else str(self.error))

    def after_fork(self) -> None:
        """End it in a forked child; takes no lock, because threads of the parent may hold them."""
        self.turn = Turn(self.turn.what)
        self.end(errors.ForkedProcessError())
