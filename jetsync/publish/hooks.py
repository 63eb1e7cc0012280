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
from jetsync._base.locks import refuse_reentry
from jetsync.values.outbound import PubAck

if TYPE_CHECKING:
    from collections.abc import Callable

    from jetsync._hooks.calls import Entered
    from jetsync.publish.window import WindowOptions
    from jetsync.values.headers import SharedHeaders


class WrappedWindow:
    """
    A place in one window, for each of its messages.
    """

    __slots__ = (
        "_entered",
        "_owner",
        "error",
        "failed",
        "open",
        "places",
        "shared",
        "stream",
        "taken",
    )

    def __init__(
        self, owner: WrappedWindows, entered: Entered, places: int, shared: SharedHeaders | None
    ) -> None:
        self._owner = owner
        self._entered = entered
        self.shared = shared
        """What plugins give to all of its messages."""

        self.stream: str | None = None
        """The stream that took messages of it."""

        self.taken = 0
        """How many messages have got a place."""

        self.failed = 0
        self.error: Exception | None = None
        """Why the first of those failed."""

        self.places = places
        """How many more messages it takes."""

        self.open = 0
        """How many of its messages have not ended."""

    def part(self, outcome: object) -> None:
        """Learn the ack of one of its messages, or why it failed. Any thread."""
        self._owner.part(self, outcome)

    def leave(self) -> None:
        """Let the plugins go on; raises what they raise."""
        result = events.WindowResult(
            messages=self.taken, failed=self.failed, error=self.error, stream=self.stream
        )
        self._entered.leave(result, None)


class WrappedWindows:
    """
    The windows of one publisher; any thread. Plugins are called without the lock.
    """

    def __init__(
        self,
        enter: Callable[[events.PublishOperation], Entered],
        ask_headers: Callable[[events.PublishOperation], SharedHeaders | None] | None,
        options: WindowOptions,
    ) -> None:
        self._enter = enter
        self._ask_headers = ask_headers
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
        refuse_reentry(self._changed)
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
            window = self._make()
        except BaseException:
            self._begin(None)
            raise
        self._begin(window)
        return window

    def _make(self) -> WrappedWindow:
        """Run the plugins that a new window is to have."""
        operation = events.PublishOperation(
            messages=None, window=self._options.size, timeout=self._options.ack_timeout
        )
        entered = self._enter(operation)
        shared: SharedHeaders | None = None
        if self._ask_headers is not None:
            try:
                shared = self._ask_headers(operation)
            except BaseException as error:
                entered.leave(None, error)
                raise
        return WrappedWindow(self, entered, self._options.size, shared)

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
        window.taken += 1
        window.places -= 1
        if window.places == 0:
            self._current = None
        return window

    def part(self, window: WrappedWindow, outcome: object) -> None:
        """Count a message of *window* out."""
        with self._changed:
            window.open -= 1
            if isinstance(outcome, PubAck):
                window.stream = outcome.stream
            elif isinstance(outcome, BaseException):
                window.failed += 1
                if window.error is None and isinstance(outcome, Exception):
                    window.error = outcome
            if self._closed:
                self._cut()
            self._look_at(window)

    def cut(self) -> None:
        """Let the next message begin a new window."""
        refuse_reentry(self._changed)
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
