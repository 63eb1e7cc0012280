"""
Call the plugins of a bulk publish, a publisher or a batch.

A window is as many messages as may be in flight at a time. The thread that publishes its first
message enters its wrappers (``jetsync_publish``) and asks for its shared headers. Then it prepares
the message. The owner leaves the wrappers once all messages of the window have ended. A batch is
one window without wrappers, because they wrap its commit.
"""

from __future__ import annotations

import math
import threading
from typing import TYPE_CHECKING, Any, Final

from jetsync import events
from jetsync._base.locks import Level, refuse_deadlock, refuse_reentry, short_lock
from jetsync._io.wakeups import Notifier
from jetsync.values.outbound import PubAck, coerce_outbound, with_shared

if TYPE_CHECKING:
    from collections.abc import Callable

    from jetsync._hooks.calls import Entered, FaultLog
    from jetsync._hooks.manager import Plugins
    from jetsync.values.headers import SharedHeaders


# Seconds between two checks whether another thread has entered a window.
ENTERING_POLL: Final = 1.0


class HookedWindow:
    """
    One window that plugins wrap.
    """

    __slots__ = ("_entered", "error", "failed", "open", "shared", "stream", "taken")

    def __init__(self, entered: Entered | None, shared: SharedHeaders | None) -> None:
        self._entered = entered
        # The headers that plugins add to all of its messages.
        self.shared: SharedHeaders | None = shared
        # How many messages it has, how many of them have not ended, and how many have failed.
        self.taken: int = 0
        self.open: int = 0
        self.failed: int = 0
        # The error of the first message that failed.
        self.error: Exception | None = None
        # A stream that acknowledged messages of it.
        self.stream: str | None = None

    def leave(self, broken: BaseException | None = None) -> None:
        """
        Leave the wrappers; raises what they raise.

        Args:
            broken: The error that ended the call, if one did. The wrappers get it, and no result,
                if there were no messages or if the outcome of some is unknown.
        """
        assert self._entered is not None
        if broken is not None and (self.open or not self.taken):
            self._entered.leave(None, broken)
            return
        error = self.error or (broken if isinstance(broken, Exception) else None)
        result = events.WindowResult(
            messages=self.taken, failed=self.failed, error=error, stream=self.stream
        )
        self._entered.leave(result, None)


class PublishHooks:
    """
    The plugins around the messages of one caller. Any thread. The lock is not held while they run.

    Args:
        plugins: The client's plugins.
        size: Messages in a window; None for a batch.
        prepare_wait: Called before a wait for a thread that enters a window. It lets another thread
            read the socket, because plugins may wait for answers.
    """

    def __init__(
        self,
        plugins: Plugins,
        size: int | None = None,
        prepare_wait: Callable[[], None] | None = None,
    ) -> None:
        self.faults: FaultLog = plugins.faults
        self._prepare = plugins.prepare
        self._ask_headers = plugins.shared_headers
        self._enter = None if size is None else plugins.enter_publish
        self._size = math.inf if size is None else size
        self._prepare_wait = prepare_wait
        # Whether messages belong to windows.
        self.wraps: bool = self._enter is not None or self._ask_headers is not None
        # Whether plugins see the messages at all.
        self.active: bool = self.wraps or self._prepare is not None

        self._lock = short_lock()
        # The thread that enters a window, and what wakes those that wait for it.
        self._entering = 0
        self._entered = Notifier()
        self._current: HookedWindow | None = None
        # How many windows have begun and are not over, and those that are to be left.
        self._unfinished = 0
        self.over: list[HookedWindow] = []
        self._closed = False

    def prepared(self, item: Any, operation: Callable[[], events.Operation]) -> Any:
        """
        Return a message of a batch after the plugins have prepared it.

        Args:
            item: The message.
            operation: Describes the batch. Keeping it would create a reference cycle.

        Raises:
            PluginError: A plugin vetoed the message or failed; the message is not sent.
        """
        window = None
        if self.wraps:
            window = self._current or self.join(operation)
        return self.prepared_in(window, item)

    def prepared_in(self, window: HookedWindow | None, item: Any) -> Any:
        """Return a message of *window* after the plugins have prepared it. Raises PluginError."""
        if window is not None and window.shared is not None:
            item = with_shared(item, window.shared)
        return item if self._prepare is None else self._prepare(coerce_outbound(item))

    def join(
        self,
        operation: Callable[[], events.Operation],
        joined: list[HookedWindow] | None = None,
    ) -> HookedWindow | None:
        """
        Take a place in the current window, or begin the next one.

        Return None for a message that belongs to no window. A plugin published it while a window
        began, or it comes after ``close``.

        Args:
            operation: Describes the window; called if one begins.
            joined: Receives the window, even if Ctrl-C strikes before this returns.

        Raises:
            PluginError: A plugin failed; no window begins.
        """
        me = threading.get_ident()
        window: HookedWindow | None = None
        begins = False
        joined = [] if joined is None else joined
        refuse_reentry(self._lock)
        try:
            while not begins:
                with self._lock:
                    if self._entering == me or (self._closed and not self._entering):
                        return None
                    if not self._entering:
                        window = self._current
                        if window is not None:
                            self._take_places(window, joined)
                            return window
                        begins = True
                        self._entering = me
                        self._unfinished += 1
                        break
                    entered = self._entered.listen()
                # That thread runs plugins, which may use any handle.
                refuse_deadlock(Level.TURN)
                if self._prepare_wait is not None:
                    self._prepare_wait()
                # Polled, because Ctrl-C may have struck before the notification.
                entered.wait(ENTERING_POLL)
            window = self._begin(operation())
        finally:
            if begins:
                with self._lock:
                    self._entering = 0
                    if window is None:
                        self._unfinished -= 1
                    else:
                        self._current = window
                    self._entered.notify()
                    if window is not None:
                        self._take_places(window, joined)
        return window

    def _begin(self, operation: events.Operation) -> HookedWindow:
        """Run the plugins at the beginning of a window."""
        entered = None if self._enter is None else self._enter(operation)
        try:
            shared = None if self._ask_headers is None else self._ask_headers(operation)
            return HookedWindow(entered, shared)
        except BaseException as error:
            if entered is not None:
                entered.leave(None, error)
            raise

    def _take_places(
        self, window: HookedWindow, joined: list[HookedWindow], count: int = 1
    ) -> None:
        """Count messages into the current window and record it in *joined*; the lock is held."""
        window.open += count
        window.taken += count
        if window.taken >= self._size:
            self._current = None
        # Ctrl-C cannot strike between the first step and this call into C.
        joined.append(window)

    def add(self, window: HookedWindow, count: int) -> None:
        """Count messages into *window*, the current one; if that fills it, a new one begins."""
        with self._lock:
            self._take_places(window, [], count)

    def part(self, window: HookedWindow, outcome: object, count: int = 1) -> None:
        """
        Subtract ended messages from *window*.

        Args:
            window: Their window.
            outcome: An ack, the name of their stream, or an error.
            count: How many messages.
        """
        with self._lock:
            window.open -= count
            if isinstance(outcome, PubAck):
                window.stream = outcome.stream
            elif isinstance(outcome, BaseException):
                window.failed += count
                if window.error is None and isinstance(outcome, Exception):
                    window.error = outcome
            if self._closed and window is self._current:
                # It began while the caller closed.
                self._current = None
            self._check_over(window)

    def cut(self) -> None:
        """Let the next message begin a new window."""
        refuse_reentry(self._lock)
        with self._lock:
            self._cut()

    def close(self) -> bool:
        """Begin no more windows; return whether all have been left."""
        with self._lock:
            self._closed = True
            self._cut()
            return self._unfinished == 0 and not self.over

    def _cut(self) -> None:
        window, self._current = self._current, None
        if window is not None:
            self._check_over(window)

    def _check_over(self, window: HookedWindow) -> None:
        if window is not self._current and window.open == 0:
            self._unfinished -= 1
            self.over.append(window)

    def take_over(self) -> list[HookedWindow]:
        """Return the windows that are over, once each."""
        with self._lock:
            over, self.over = self.over, []
        return over
