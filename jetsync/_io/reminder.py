"""
Have the loop thread call something.
"""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


class Reminder:
    """
    A call that the loop makes soon, once for all who ask before it begins.

    Threads: any thread asks; the loop thread makes the call, which clears ``due`` first.
    Locks: none.

    Args:
        schedule: Has the loop make the call.
        arguments: The arguments of *schedule*.
        options: Its keyword arguments.
    """

    __slots__ = ("_schedule", "due")

    def __init__(self, schedule: Callable[..., object], *arguments: Any, **options: Any) -> None:
        self._schedule = functools.partial(schedule, *arguments, **options)
        # Whether the call was asked for and has not begun.
        self.due: bool = False

    def ask(self) -> None:
        """Have the loop make the call, unless it is due already; any thread, never waits."""
        if self.due:
            return
        scheduled = False
        try:
            # First, or the call might begin before and clear it in vain.
            self.due = True
            self._schedule()
            scheduled = True
        except RuntimeError:
            pass  # The loop is closed.
        finally:
            if not scheduled:
                self.due = False
                # After Ctrl-C, another thread may rely on this call. One too many does no harm.
                with contextlib.suppress(RuntimeError):
                    self._schedule()
