"""
Who may use a handle now, and what signal handlers may do: the only code that depends on at which
steps Python runs them.

Python runs a signal handler in the main thread, between two steps of the code that it interrupts.
The handler may return, and it may raise, as that of Ctrl-C does.

A handler that returns. If it interrupts a call that waits or that uses a handle, the interrupted
call cannot continue before the handler returns. So a call of the handler must not wait for it, nor
for a thread that may wait for it. Such a call raises CallInSignalHandlerError before it sends
anything. Calls that never wait work. If the handler interrupted a step between two waits, a single
request works, too, because no other thread is needed for its answer.

A handler that raises. Whatever the step, the interrupted call leaves no lock held. An engine that
was interrupted inside a step is marked as unfinished, see :meth:`Turn.step`.

The steps. Python runs handlers when a function written in Python begins, when a loop jumps back,
and after calls of functions written in C; on Python 3.14, also after the call of ``__enter__`` that
``with`` makes. On Python 3.13, a handler that raises where a ``while`` loop jumps back skips the
``except``, ``finally`` or ``with`` around the loop (CPython issue 130279). So such a loop is a
function of its own. Python 3.10 also runs handlers between a ``raise`` and the first step of the
``except``, ``finally`` or ``with`` that catches it. So ``lock.acquire()`` followed by ``try`` has a
step at which the lock stays held. So have an ``__exit__`` in Python and a ``threading.Condition``,
on Python 3.10 ``with`` and a lock around code that raises, and on Python 3.14 ``with`` and any lock
of ``threading``.

Finalizers may run at any of these steps, in any thread. They never wait.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Final, TypeVar

from jetsync._base.deadline import FOREVER, NO_WAIT
from jetsync._base.locks import SIGNAL_CHECK, holds_short_lock
from jetsync.errors import (
    CallInSignalHandlerError,
    ConflictingUseError,
    JetSyncError,
    WaitTimeoutError,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from jetsync._base.deadline import Deadline

T = TypeVar("T")


class Turn:
    """
    Lets one thread at a time use a handle.

    Threads: any, and signal handlers.

    Only :meth:`run` takes a turn. It is no context manager: on Python 3.10, one may be left without
    the call of its ``__exit__``.

    Args:
        what: What another call waits for, for the error.
    """

    __slots__ = ("_acquire", "_lock", "_release", "owned", "unfinished", "what")

    def __init__(self, what: str = "another call on this object") -> None:
        self.what = what
        # Whether a step began and did not end, so the state of the handle may be inconsistent.
        self.unfinished: bool = False
        self._lock: threading.RLock = threading.RLock()
        # Methods written in C, so that no signal handler runs inside them.
        self._acquire = self._lock.acquire
        self._release = self._lock.release
        # Whether the calling thread has this turn.
        self.owned: Callable[[], bool] = self._lock._is_owned  # type: ignore[attr-defined]  # noqa: SLF001 - `threading.Condition` relies on it in every version of Python

    def __repr__(self) -> str:
        return f"<Turn {self.what!r} {self._lock!r}>"

    def run(self, deadline: Deadline, work: Callable[..., T], *arguments: Any) -> T:
        """
        Call *work* in this turn, as soon as no other thread has it.

        Raises:
            WaitTimeoutError: Another thread had the turn until the deadline.
            CallInSignalHandlerError: This is a signal handler that interrupted a call of jetsync.
            ConflictingUseError: This is a hook or a callback, and this handle calls it.
        """
        outer = here.turn
        if outer is not None and outer.owned():
            raise CallInSignalHandlerError
        if self.owned():
            raise ConflictingUseError(f"this call would wait for itself: it is in {self.what}")
        return self._take(outer, deadline, work, arguments)

    def attempt(self, work: Callable[[], object]) -> bool:
        """
        Call *work*, which must not wait, in this turn if it is free; return whether it was.

        Any signal handler may call this.
        """
        if self.owned():
            return False
        try:
            self._take(here.turn, NO_WAIT, work, ())
        except _TakenError:
            return False
        return True

    def step(self, work: Callable[..., T], *arguments: Any) -> T:
        """
        Call *work*, which changes the handle, in the turn.

        Any error that is not a JetSyncError counts as an interrupt: ``unfinished`` stays set. The
        caller of the next step has to look at it.
        """
        self.unfinished = True
        try:
            result = work(*arguments)
        except JetSyncError:
            self.unfinished = False
            raise
        self.unfinished = False
        return result

    def _take(
        self,
        outer: Turn | None,
        deadline: Deadline,
        work: Callable[..., T],
        arguments: tuple[Any, ...],
    ) -> T:
        """Do the work of :meth:`run`. *outer* is what the thread took last."""
        result: Any = None
        failure: BaseException | None = None
        try:
            try:
                # First, so that this thread never has the turn without the mark.
                here.turn = self
                if not self._acquire(False):
                    self._wait(deadline)
                result = work(*arguments)
            except BaseException as error:  # noqa: BLE001 - raised below
                # Kept, because Python 3.10 runs signal handlers on the way to `finally`.
                failure = error
        finally:
            if outer is not None:
                # First, so that the call that has the outer turn is never without the mark. Nothing
                # is called before the release, or a signal handler could run.
                here.turn = outer
            try:  # noqa: SIM105 - the alternative has a step at which a signal handler may run
                self._release()
            except RuntimeError:
                pass  # The wait for the turn ended without it.
        if failure is not None:
            try:
                raise failure
            finally:
                # Its traceback refers to this frame.
                del failure
        return result  # type: ignore[no-any-return]

    def _wait(self, deadline: Deadline) -> None:
        """Wait until no other thread has the turn."""
        if deadline is NO_WAIT:
            # Threads that share a buffer often find that another one has the turn. Other errors
            # cost more than to take a message.
            raise _TakenError
        if deadline.expired():
            raise WaitTimeoutError(self.what, deadline.total)
        refuse_inside()
        # The wait is inside a call, too.
        waiting(self._wait_for_owner, deadline)

    def _wait_for_owner(self, deadline: Deadline) -> None:
        # In slices, because a signal does not end the wait for a lock on Windows.
        while not self._acquire(True, min(deadline.remaining(), SIGNAL_CHECK)):
            if deadline.expired():
                raise WaitTimeoutError(self.what, deadline.total)


class _TakenError(Exception):
    """Another thread has the turn."""


class _Here(threading.local):
    """What the calling thread does."""

    # The turn that this thread took last. The thread is inside a call while it has that turn.
    turn: Turn | None = None

    def __init__(self) -> None:
        # Taken by each call while it waits.
        self.own: Turn = Turn("a wait of this thread")


here: Final = _Here()


def waiting(wait: Callable[..., T], *arguments: Any) -> T:
    """
    Call a function that waits for the socket or for another thread.

    Raises:
        CallInSignalHandlerError: This is a signal handler that interrupted such a wait.
    """
    own = here.own
    if own.owned():
        raise CallInSignalHandlerError
    return own._take(here.turn, FOREVER, wait, arguments)  # noqa: SLF001 - the class is in this module


def refuse_request() -> None:
    """
    Raise CallInSignalHandlerError in a signal handler that interrupted a wait of its own thread.

    Call it before something is sent whose answer the caller waits for.
    """
    if here.own.owned():
        raise CallInSignalHandlerError


def is_inside() -> bool:
    """Return whether the calling thread waits, uses a handle or holds a short lock."""
    turn = here.turn
    return here.own.owned() or (turn is not None and turn.owned()) or holds_short_lock()


def refuse_inside() -> None:
    """
    Raise CallInSignalHandlerError in a signal handler that interrupted a call of jetsync.

    Call it before a wait for another thread, which may wait for the interrupted call.
    """
    if is_inside():
        raise CallInSignalHandlerError


def outside(call: Callable[..., T], *arguments: Any) -> T:
    """
    Call code of the application from inside a call of jetsync.

    It is no signal handler: it may use other handles, and wait for them.
    """
    turn = here.turn
    if turn is None:
        return call(*arguments)
    result: Any = None
    failure: BaseException | None = None
    # As in `Turn._take`.
    try:
        try:
            here.turn = None
            result = call(*arguments)
        except BaseException as error:  # noqa: BLE001 - raised below
            failure = error
    finally:
        here.turn = turn
    if failure is not None:
        try:
            raise failure
        finally:
            del failure
    return result  # type: ignore[no-any-return]
