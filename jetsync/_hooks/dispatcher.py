"""
How status events reach `jetsync_status`: in one worker thread, in order.

The thread that moves the bytes notices most events and must never run a plugin. It hands them over
with `emit_later`, which does not wait; a plugin may then call any blocking method of the client,
`close` included. What happens in the course of a user's own call is told in that user's thread, by
`Plugins.status` itself.

Guarantees:

- events come one at a time, in the order in which they were handed over;
- where no plugin implements the hook there is neither a dispatcher nor a thread, and where no event
  happens there is no thread;
- a plugin that never returns costs a bounded amount of memory: what no longer fits is counted.
"""

from __future__ import annotations

import queue
import threading
from typing import TYPE_CHECKING, Final, TypeAlias

import attrs

from jetsync._base.locks import keep_interrupts
from jetsync._base.log import PLUGIN_FAILED, get_logger

if TYPE_CHECKING:
    from collections.abc import Callable

    from jetsync.events import StatusEvent

EVENT_THREAD: Final = "jetsync-events"

# A storm of errors while a plugin waits for a reconnect stays far below this; it bounds the memory
# that a plugin that hangs can cost to some megabytes.
MAX_EVENTS: Final = 10_000

_log = get_logger("jetsync.events")


_Entry: TypeAlias = "StatusEvent | Callable[[], StatusEvent | None]"


@attrs.frozen
class DispatcherStatistics:
    """
    Count what went through a dispatcher.
    """

    delivered: int
    """Events that the plugins have seen."""

    pending: int
    """Events that are handed over and wait for their turn."""

    dropped: int
    """Events that found `MAX_EVENTS` others waiting."""


class Dispatcher:
    """
    Deliver status events to the plugins. Thread-safe; the worker thread is a daemon.

    Args:
        status: `Plugins.status`, which logs what a plugin raises.
    """

    def __init__(self, status: Callable[[StatusEvent], None]) -> None:
        self._status = status
        # Reentrant, since a signal handler may interrupt `close` and call it again.
        self._lock = threading.RLock()
        self._queue: queue.SimpleQueue[_Entry | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._delivered = 0
        self._dropped = 0

    def emit_later(self, event: _Entry) -> None:
        """
        Hand an event over to the worker thread; the first one starts it.

        A function is called there and returns the event, or None for none. Waits for no plugin and
        may be called from any thread. Does nothing after `close`.
        """
        with self._lock:
            # No plugin ever runs under this lock, and nothing waits under it.
            if self._closed:
                return
            if self._queue.qsize() >= MAX_EVENTS:
                self._dropped += 1
                first = self._dropped == 1
            else:
                first = False
                self._queue.put(event)
                self._start()
        if first:
            _log.warning("events.dropped", pending=MAX_EVENTS)

    def close(self, timeout: float | None = 1.0) -> bool:
        """
        Deliver what was handed over, then end the worker thread.

        Idempotent. A plugin may call it: the thread then ends once the plugin has returned.

        Args:
            timeout: how many seconds to wait for the plugins; `None` waits as long as they take.

        Returns:
            Whether the thread has ended. One that has not is a daemon and keeps no process alive.
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

    def statistics(self) -> DispatcherStatistics:
        """
        Return the counters as they are now.
        """
        return DispatcherStatistics(self._delivered, self._queue.qsize(), self._dropped)

    def __repr__(self) -> str:
        state = "closed" if self._closed else "running" if self._thread else "idle"
        return f"<Dispatcher {state}, {self._queue.qsize()} pending, {self._dropped} dropped>"

    def _start(self) -> None:
        if self._thread is not None:
            return
        # Noted first: a signal handler that hands over an event now must not start a second one.
        self._thread = threading.Thread(target=self._run, name=EVENT_THREAD, daemon=True)
        try:
            with keep_interrupts():
                self._thread.start()
        except RuntimeError:
            # The interpreter is shutting down and takes no new threads.
            self._closed = True
            self._thread = None

    def _run(self) -> None:
        while (event := self._queue.get()) is not None:
            try:
                made = event() if callable(event) else event
                if made is not None:
                    self._status(made)
            except BaseException as exc:  # noqa: BLE001 - a plugin's SystemExit ends no one else
                _log.error(PLUGIN_FAILED, hook="jetsync_status", error=repr(exc), exc_info=exc)
            self._delivered += 1
