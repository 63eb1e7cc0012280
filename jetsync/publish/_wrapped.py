"""
The plugins around the windows of a publisher (``jetsync_publish``).

A window is as many messages as may be in flight at a time. Its wrappers are entered by the thread
that publishes its first message, before that message is prepared, and left by the publisher's own
thread once all of its messages have ended. A flush lets the next message begin a new window.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from jetsync import events

if TYPE_CHECKING:
    from collections.abc import Callable

    from jetsync._hookcalls import Entered
    from jetsync.publish._window import WindowOptions


class WrappedWindow:
    """
    A place in one window, for each of its messages.
    """

    __slots__ = ("_entered", "_owner", "open", "places")

    def __init__(self, owner: WrappedWindows, entered: Entered, places: int) -> None:
        self._owner = owner
        self._entered = entered
        self.places = places
        """How many more messages it takes."""

        self.open = 0
        """How many of its messages have not ended."""

    def part(self) -> None:
        """Learn that one of its messages has ended, or could not be sent. Any thread."""
        self._owner.part(self)

    def leave(self) -> None:
        """Let the plugins go on; raises what they raise."""
        self._entered.leave(None, None)


class WrappedWindows:
    """
    The windows of one publisher; any thread. Plugins are called without the lock.
    """

    def __init__(
        self, enter: Callable[[events.PublishOperation], Entered], options: WindowOptions
    ) -> None:
        self._enter = enter
        self._options = options
        self._changed = threading.Condition()
        self._current: WrappedWindow | None = None
        self._unfinished = 0
        """Windows that were entered, or are about to be, and are not over."""

        self._entering = 0
        """The thread that enters a window."""

        self._closed = False
        self.over: list[WrappedWindow] = []
        """Windows to leave."""

    def join(self) -> WrappedWindow | None:
        """
        Take a place in the current window, or enter the next one.

        None for a message that a wrapper publishes while it is entered, which is in no window, and
        for one that comes after the end.

        Raises:
            PluginError: A wrapper failed; there is no new window.
        """
        me = threading.get_ident()
        with self._changed:
            while self._entering not in {0, me}:
                self._changed.wait()
            if self._entering == me or self._closed:
                return None
            if self._current is not None:
                return self._take_place(self._current)
            self._entering = me
            self._unfinished += 1
        try:
            entered = self._enter(
                events.PublishOperation(
                    messages=None, window=self._options.size, timeout=self._options.ack_timeout
                )
            )
        except BaseException:
            self._begin(None)
            raise
        window = WrappedWindow(self, entered, self._options.size)
        self._begin(window)
        return window

    def _begin(self, window: WrappedWindow | None) -> None:
        """Let others join the window that was entered, if it was."""
        with self._changed:
            self._entering = 0
            self._changed.notify_all()
            if window is None:
                self._unfinished -= 1
            else:
                self._current = window
                self._take_place(window)

    def _take_place(self, window: WrappedWindow) -> WrappedWindow:
        """Count a message in; the lock is held."""
        window.open += 1
        window.places -= 1
        if window.places == 0:
            self._current = None
        return window

    def part(self, window: WrappedWindow) -> None:
        """Count a message of *window* out."""
        with self._changed:
            window.open -= 1
            if self._closed:
                self._cut()
            self._look_at(window)

    def cut(self) -> None:
        """Let the next message begin a new window."""
        with self._changed:
            self._cut()

    def close(self) -> bool:
        """Let no message begin a window any more; return whether all have been left."""
        with self._changed:
            self._closed = True
            self._cut()
            return self._unfinished == 0 and not self.over

    def _cut(self) -> None:
        """Fill the current window up; the lock is held."""
        window, self._current = self._current, None
        if window is not None:
            window.places = 0
            self._look_at(window)

    def _look_at(self, window: WrappedWindow) -> None:
        """Have a window left if it is over; the lock is held."""
        if window.places == 0 and window.open == 0:
            self._unfinished -= 1
            self.over.append(window)

    def take_over(self) -> list[WrappedWindow]:
        """Return the windows that are over and were not left yet."""
        with self._changed:
            over, self.over = self.over, []
        return over
