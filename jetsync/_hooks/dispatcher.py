"""
Deliver status events to `jetsync_status`, in order, in one worker thread.

The loop thread notices most events and must not run plugins, so it queues them with `emit_later`,
which does not wait. A plugin may then call any blocking method of the client, including `close`.
Events of a user's own call are reported in that user's thread by `Plugins.status`.

Guarantees:

- Plugins get one event at a time, in the order of `emit_later`.
- There is no dispatcher unless a plugin implements the hook, and no thread before the first event.
- A plugin that never returns uses a bounded amount of memory. Further events are dropped and
  counted.
"""

from __future__ import annotations

import queue
import threading
from typing import TYPE_CHECKING, Final, TypeAlias

from jetsync._base.locks import keep_interrupts, short_lock
from jetsync._base.log import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable

    from jetsync.events import StatusEvent

EVENT_THREAD: Final = "jetsync-events"

# Limits the memory that a hanging plugin can use to a few megabytes. If a plugin only waits for a
# reconnect, far fewer events are in the queue.
MAX_EVENTS: Final = 10_000

_log = get_logger("jetsync.events")


_Entry: TypeAlias = "StatusEvent | Callable[[], StatusEvent | None]"


class Dispatcher:
    """
    Deliver status events to the plugins. Thread-safe; the worker thread is a daemon.

    Args:
        status: Calls the plugins, and logs their errors.
    """

    def __init__(self, status: Callable[[StatusEvent], None]) -> None:
        self._status = status
        # Reentrant, because a signal handler may interrupt `close` and call it again.
        self._lock = short_lock()
        self._queue: queue.SimpleQueue[_Entry | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._closed = False
        self.dropped: int = 0
        """Events that were dropped because `MAX_EVENTS` others were in the queue."""

    def emit_later(self, event: _Entry) -> None:
        """
        Queue an event for the worker thread. The first event starts the thread.

        If *event* is a function, the worker thread calls it. It returns the event, or None for no
        event. Does not wait. Any thread may call this. After `close`, it does nothing.
        """
        with self._lock:
            # No plugin runs and no call waits while this lock is held.
            if self._closed:
                return
            if self._queue.qsize() < MAX_EVENTS:
                self._queue.put(event)
                self._start()
                return
            self.dropped += 1
            first = self.dropped == 1
        if first:
            _log.warning("events.dropped", pending=MAX_EVENTS)

    def close(self, timeout: float | None = 1.0) -> bool:
        """
        Deliver the queued events, then end the worker thread. Safe to repeat.

        If a plugin calls this, the thread ends once the plugin has returned.

        Args:
            timeout: Seconds to wait for the plugins. `None` waits without limit.

        Returns:
            Whether the thread has ended. It is a daemon and keeps no process alive.
        """
        with self._lock:
            if not self._closed:
                self._closed = True
                self._queue.put(None)
            thread = self._thread
        if thread is None or thread.ident is None:
            return True
        if thread is threading.current_thread():
            return False
        thread.join(timeout)
        return not thread.is_alive()

    def after_fork(self) -> None:
        """Start over in a forked child, where the worker thread does not exist."""
        Dispatcher.__init__(self, self._status)

    def __repr__(self) -> str:
        state = "closed" if self._closed else "running" if self._thread else "idle"
        return f"<Dispatcher {state}, {self._queue.qsize()} pending, {self.dropped} dropped>"

    def _start(self) -> None:
        if self._thread is not None:
            return
        # Set first, so that a signal handler that emits an event now does not start another thread.
        self._thread = threading.Thread(target=self._run, name=EVENT_THREAD, daemon=True)
        try:
            with keep_interrupts():
                self._thread.start()
        except RuntimeError:
            # The interpreter is shutting down and starts no new threads.
            self._closed = True
            self._thread = None

    def _run(self) -> None:
        while (event := self._queue.get()) is not None:
            try:
                made = event() if callable(event) else event
                if made is not None:
                    self._status(made)
            except BaseException as exc:  # noqa: BLE001 - further events have to be delivered.
                _log.error("plugin_failed", hook="jetsync_status", error=repr(exc), exc_info=exc)
