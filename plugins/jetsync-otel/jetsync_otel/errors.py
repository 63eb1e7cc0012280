"""
Errors in telemetry, which are logged once each to ``jetsync_otel`` and never raised.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import jetsync

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

_logger = jetsync.get_logger("jetsync_otel")


class Faults:
    """
    Logs each kind of error once, so that telemetry never affects the traffic. Thread-safe.
    """

    def __init__(self) -> None:
        self._lock = jetsync.interrupt_safe_lock()
        self._seen: set[tuple[str, type[BaseException]]] = set()

    def guarded(self, doing: str, call: Callable[..., T], *arguments: Any) -> T | None:
        """
        Call a function, and log its error instead of raising it.
        """
        try:
            return call(*arguments)
        except Exception as error:  # noqa: BLE001 - see above
            self.report(doing, error)
            return None

    def report(self, doing: str, error: Exception) -> None:
        """
        Log *error*, unless an error of this kind was logged before.
        """
        kind = (doing, type(error))
        with self._lock:
            if kind in self._seen:
                return
            self._seen.add(kind)
        _logger.error(
            "telemetry_failed",
            doing=doing,
            error=f"{type(error).__name__}: {error}",
            exc_info=error,
        )
