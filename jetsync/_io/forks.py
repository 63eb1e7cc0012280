"""
Fork detection.

A forked child has copies of its parent's clients, but not their threads, and must not touch their
sockets. So each running client is marked in the child before any other code runs there. Its next
call raises ForkedProcessError, or opens a connection of the child's own; see
:meth:`jetsync._io.connection.Connection.check`.
"""

from __future__ import annotations

import os
import weakref
from typing import Final, Protocol


class Inherited(Protocol):
    """
    An object whose thread exists only in the process that started it.
    """

    def after_fork(self) -> None:
        """Mark this as the copy in a forked child. Takes no lock, whose owner may not exist."""


_running: Final[weakref.WeakSet[Inherited]] = weakref.WeakSet()


def watch(running: Inherited) -> None:
    """Call ``after_fork`` of *running* in each child that is forked from now on."""
    _running.add(running)


def forget(running: Inherited) -> None:
    """End :func:`watch`, because the thread has ended. Can be called repeatedly."""
    _running.discard(running)


def _mark_forked() -> None:
    for running in list(_running):
        running.after_fork()
    _running.clear()


if hasattr(os, "register_at_fork"):  # Not on Windows.
    os.register_at_fork(after_in_child=_mark_forked)
