"""
How status events reach `jetsync_status` and the listeners: in one worker thread, in order.

The thread that moves the bytes notices most events and must never run a handler. It hands them over
with `emit_later`, which neither waits nor starts a thread; a handler may then call any blocking
method of the client, `close` included. What happens in the course of a user's own call is told in
that user's thread with `emit_now`.

Guarantees:

- events that are handed over come one at a time, in the order in which they were handed over;
- a handler that raises is logged, once per kind of error, and the others are told all the same;
- where nobody listens there is no thread, and an event costs one test;
- a handler that never returns costs a bounded amount of memory: what no longer fits is counted.
"""

from __future__ import annotations

import queue
import threading
from typing import TYPE_CHECKING, Final

import attrs

from jetsync._hookcalls import FaultLog
from jetsync._log import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable

    from jetsync.events import StatusEvent

THREAD_NAME: Final = "jetsync-events"

# A storm of errors while a handler waits for a reconnect stays far below this; it bounds the memory
# that a handler that hangs can cost to some megabytes.
MAX_PENDING: Final = 10_000

_log = get_logger("events")


@attrs.frozen
class DispatcherStatistics:
    """
    Count what went through a dispatcher.
    """

    delivered: int
    """Events that all handlers have seen."""

    pending: int
    """Events that are handed over and wait for their turn."""

    dropped: int
    """Events that found `MAX_PENDING` others waiting."""

    listeners: int
    """Handlers: the plugins count as one."""


class Dispatcher:
    """
    Deliver status events to the plugins and to registered listeners.

    Thread-safe. The worker thread is a daemon and is started when the first handler comes.

    Args:
        status: `Plugins.status`, or `None` where no plugin implements the hook.
    """

    def __init__(self, status: Callable[[StatusEvent], None] | None = None) -> None:
        self._status = status
        self._faults = FaultLog()
        self._lock = threading.Lock()
        self._listeners: tuple[Callable[[StatusEvent], None], ...] = ()
        self._queue: queue.SimpleQueue[StatusEvent | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._delivered = 0
        self._dropped = 0
        if status is not None:
            self._start()

    @property
    def wanted(self) -> bool:
        """
        Tell whether anybody listens, so that an event that nobody wants need not be made.
        """
        return self._status is not None or bool(self._listeners)

    def add_listener(self, listener: Callable[[StatusEvent], None]) -> Callable[[], None]:
        """
        Register a function that is told every event from now on.

        Returns:
            A function that removes it again; calling that more than once does nothing.
        """
        with self._lock:
            self._listeners = (*self._listeners, listener)
            self._start()
        registered = [listener]

        def remove() -> None:
            with self._lock:
                if registered:
                    kept = list(self._listeners)
                    kept.remove(registered.pop())
                    self._listeners = tuple(kept)

        return remove

    def emit_later(self, event: StatusEvent) -> None:
        """
        Hand an event over to the worker thread.

        Never blocks, starts no thread and takes no lock that a handler may hold. Does nothing where
        nobody listens, and after `close`.
        """
        if not self.wanted or self._closed:
            return
        if self._queue.qsize() >= MAX_PENDING:
            # Approximate under contention, which is all that a bound on memory needs to be.
            self._dropped += 1
            if self._dropped == 1:
                _log.warning("events.dropped", pending=MAX_PENDING, kind=event.kind.value)
            return
        self._queue.put(event)

    def emit_now(self, event: StatusEvent) -> None:
        """
        Tell an event in the calling thread, which must be a user's, with no lock held.

        An `Exception` of a handler is logged and does not come out.
        """
        if self._status is not None:
            self._status(event)
        for listener in self._listeners:
            try:
                listener(event)
            except Exception as exc:  # noqa: BLE001 - traffic goes on whatever a listener does
                name = getattr(listener, "__qualname__", type(listener).__name__)
                self._faults.report(name, "listener", exc)

    def close(self, timeout: float | None = 1.0) -> bool:
        """
        Deliver what was handed over, then end the worker thread.

        Idempotent. A handler may call it: the thread then ends once the handler has returned.

        Args:
            timeout: how many seconds to wait for the handlers; `None` waits as long as they take.

        Returns:
            Whether the thread has ended. One that has not is a daemon and does not keep the
            process.
        """
        with self._lock:
            first = not self._closed
            self._closed = True
            thread = self._thread
        if thread is None:
            return True
        if first:
            self._queue.put(None)
        if thread is threading.current_thread():
            return False
        thread.join(timeout)
        return not thread.is_alive()

    def statistics(self) -> DispatcherStatistics:
        """
        Return the counters as they are now.
        """
        listeners = len(self._listeners) + (self._status is not None)
        return DispatcherStatistics(self._delivered, self._queue.qsize(), self._dropped, listeners)

    def __repr__(self) -> str:
        state = "closed" if self._closed else "running" if self._thread else "idle"
        numbers = self.statistics()
        return f"<Dispatcher {state}, {numbers.listeners} listeners, {numbers.pending} pending>"

    def _start(self) -> None:
        if self._thread is None and not self._closed:
            self._thread = threading.Thread(target=self._run, name=THREAD_NAME, daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while (event := self._queue.get()) is not None:
            try:
                self.emit_now(event)
            except BaseException as exc:  # noqa: BLE001 - a handler's SystemExit ends no one else
                self._faults.report(THREAD_NAME, "jetsync_status", exc)
            self._delivered += 1
