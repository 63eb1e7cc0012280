"""
The handles of a client that hold something open, and how they end with the client.
"""

from __future__ import annotations

import contextlib
import weakref
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from jetsync._base.log import get_logger
from jetsync.errors import CallInSignalHandlerError, ConflictingUseError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from jetsync._base.deadline import Deadline

_H = TypeVar("_H")

_logger = get_logger("jetsync.connection")


class Writer(Protocol):
    """A handle that has to finish before the connection is closed."""

    def begin_finish(self) -> None:
        """
        Wake the calls that wait for room, because the client begins to close; never waits.

        The lane refuses what they would send. May raise CallInSignalHandlerError.
        """

    def finish(self, deadline: Deadline) -> str | None:
        """
        Accept no more messages. Send the outstanding ones and wait for their acks, or discard them.

        Never raises an ``Exception``. Returns one line about unconfirmed messages, or None.
        """


class OpenHandles:
    """
    The open handles of one session.

    Threads: any thread.
    Locks: none; :func:`list_of` reads the sets while other threads add to them.

    The sets are weak, so that a handle can be collected, and closed, when the application drops it.
    """

    def __init__(self) -> None:
        # The cores of consumptions and fetches to which the application holds a reference. A client
        # that closes ends them. `client.drain` waits for the messages of consumptions only.
        self.consumptions: weakref.WeakSet[Any] = weakref.WeakSet()
        # Publishers and atomic batches.
        self.writers: weakref.WeakSet[Writer] = weakref.WeakSet()

    def begin_finish(self) -> None:
        """Wake the calls of publishers and batches, because the client begins to close."""
        for writer in list_of(self.writers):
            # The caller may be a signal handler that has interrupted a call of this writer.
            with contextlib.suppress(CallInSignalHandlerError, ConflictingUseError):
                writer.begin_finish()

    def finish(self, deadline: Deadline) -> list[str]:
        """Finish all publishers and batches; return a line about each with unconfirmed messages."""
        reports: list[str] = []
        for writer in list_of(self.writers):
            report = writer.finish(deadline)
            if report is not None:
                _logger.warning("unconfirmed", reason=report)
                reports.append(report)
        return reports

    def after_fork(self) -> None:
        """End the consumptions in a forked child, because they belong to the parent process."""
        for consumption in list(self.consumptions):
            consumption.after_fork()


def list_of(handles: Iterable[_H]) -> list[_H]:
    """Return the items of *handles*, though other threads may add more meanwhile."""
    while True:
        # list() fails if another thread changes the set meanwhile, or without the GIL the deque.
        with contextlib.suppress(RuntimeError):
            return list(handles)
