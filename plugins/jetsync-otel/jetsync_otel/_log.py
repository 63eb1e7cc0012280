"""
Logging over the standard ``logging`` module, logger ``jetsync_otel``.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any, TypeVar, cast

import structlog

if TYPE_CHECKING:
    from collections.abc import Callable, MutableMapping

T = TypeVar("T")


def _render(
    _logger: Any, _method: str, event: MutableMapping[str, Any]
) -> tuple[tuple[str], dict[str, Any]]:
    error = event.pop("exc_info", None)
    name = str(event.pop("event", ""))
    line = " ".join([name, *(f"{key}={value!r}" for key, value in event.items())])
    return (line,), {"exc_info": error, "extra": {"event": name, "fields": dict(event)}}


_log = cast(
    "structlog.stdlib.BoundLogger",
    structlog.wrap_logger(
        logging.getLogger("jetsync_otel"),
        processors=[structlog.stdlib.filter_by_level, _render],
        wrapper_class=structlog.stdlib.BoundLogger,
        context_class=dict,
        cache_logger_on_first_use=True,
    ),
)


class Faults:
    """
    Log what goes wrong in observing, each kind once: the traffic has to go on. Thread-safe.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._seen: set[tuple[str, type[BaseException]]] = set()

    def guarded(self, doing: str, call: Callable[..., T], *arguments: Any) -> T | None:
        """
        Call what only observes: the traffic goes on whatever becomes of it.
        """
        try:
            return call(*arguments)
        except Exception as error:  # noqa: BLE001 - see above
            self.report(doing, error)
            return None

    def report(self, doing: str, error: Exception) -> None:
        """
        Log *error*, unless the like was logged before.
        """
        kind = (doing, type(error))
        with self._lock:
            if kind in self._seen:
                return
            self._seen.add(kind)
        _log.error(
            "telemetry_failed",
            doing=doing,
            error=f"{type(error).__name__}: {error}",
            exc_info=error,
        )
