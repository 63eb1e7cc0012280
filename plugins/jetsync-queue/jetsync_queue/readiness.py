"""
Telling a caller that there may be a job: a callback, and a file descriptor.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

import jetsync

if TYPE_CHECKING:
    from collections.abc import Callable


class Readiness:
    """
    A flag that can be waited for with ``select``.

    Threads: any. Locks: ``_lock`` protects the pipe and the flag.
    """

    def __init__(self, on_ready: Callable[[], object] | None) -> None:
        self._on_ready = on_ready
        self._lock = jetsync.interrupt_safe_lock()
        # Made when the first caller asks for it.
        self._pipe: tuple[int, int] | None = None
        self._is_set = False
        self._is_closed = False

    def set(self) -> None:
        """Make the descriptor readable, and call the callback."""
        with self._lock:
            if not self._is_set:
                self._is_set = True
                if self._pipe is not None:
                    os.write(self._pipe[1], b"!")
        if self._on_ready is not None and not self._is_closed:
            self._on_ready()

    def clear(self) -> None:
        """Make the descriptor unreadable."""
        with self._lock:
            if self._is_set:
                self._is_set = False
                if self._pipe is not None:
                    with contextlib.suppress(BlockingIOError):
                        os.read(self._pipe[0], 1)

    def fileno(self) -> int:
        """Return the descriptor to wait for."""
        with self._lock:
            if self._is_closed:
                raise ValueError("the receiver is closed")
            if self._pipe is None:
                self._pipe = os.pipe()
                for end in self._pipe:
                    os.set_blocking(end, False)
                if self._is_set:
                    os.write(self._pipe[1], b"!")
            return self._pipe[0]

    def close(self) -> None:
        """Close the descriptor."""
        with self._lock:
            self._is_closed = True
            pipe, self._pipe = self._pipe, None
        for end in pipe or ():
            os.close(end)
