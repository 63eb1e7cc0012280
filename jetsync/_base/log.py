"""
Log events have a name and fields. They go to structlog or the standard ``logging`` module.

If the application has configured structlog, events go through its processors. Otherwise each event
becomes a record of the standard logger. Its message is the event followed by ``key=value`` pairs,
and handlers find both in ``record.event`` and ``record.fields``. The logger ``jetsync`` has a null
handler, so log events appear only if the application configures structlog or ``logging``.

Operations that take time log two events: ``<event>.begin``, then ``<event>.done`` or
``<event>.failed``.

Log handlers of applications can rely on the events that ``docs/reference/logs.md`` lists.
"""

from __future__ import annotations

import logging
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, MutableMapping

logging.getLogger("jetsync").addHandler(logging.NullHandler())


class EventLogger:
    """
    Log events with fields; made by :func:`get_logger`.

    The field ``exc_info`` adds a traceback. It is an exception, or ``True`` for the exception that
    is being handled. You choose all other fields.
    """

    __slots__ = ("_name", "_standard", "_structlog")

    def __init__(self, name: str) -> None:
        self._name = name
        self._standard = logging.getLogger(name)
        self._structlog: Any = None

    def __repr__(self) -> str:
        return f"<EventLogger {self._name}>"

    def debug(self, event: str, /, **fields: Any) -> None:
        """Log an event that helps with debugging."""
        self._log(logging.DEBUG, "debug", event, fields)

    def info(self, event: str, /, **fields: Any) -> None:
        """Log an event of normal operation."""
        self._log(logging.INFO, "info", event, fields)

    def warning(self, event: str, /, **fields: Any) -> None:
        """Log an event that may need attention."""
        self._log(logging.WARNING, "warning", event, fields)

    def error(self, event: str, /, **fields: Any) -> None:
        """Log a failure."""
        self._log(logging.ERROR, "error", event, fields)

    def exception(self, event: str, /, **fields: Any) -> None:
        """Log a failure with the traceback of the exception that is being handled."""
        self._log(logging.ERROR, "error", event, {"exc_info": True, **fields})

    def _log(self, level: int, method: str, event: str, fields: dict[str, Any]) -> None:
        # An application that has not imported structlog cannot have configured it.
        structlog = sys.modules.get("structlog")
        # While another thread imports structlog, the module exists without its functions.
        is_configured = getattr(structlog, "is_configured", None)
        if structlog is not None and is_configured is not None and is_configured():
            try:
                if self._structlog is None:
                    self._structlog = structlog.get_logger(self._name)
                log = getattr(self._structlog, method)
                log(event, **{"logger": self._name, **fields})
            except Exception:  # noqa: BLE001 - in the loop thread it would end the connection
                self._standard.exception("jetsync could not log %r through structlog", event)
        elif self._standard.isEnabledFor(level):
            error = fields.pop("exc_info", None)
            line = " ".join([event, *(f"{key}={value!r}" for key, value in fields.items())])
            # A line without arguments is not formatted, so it may contain "%".
            extra = {"event": event, "fields": fields}
            self._standard.log(level, line, exc_info=error, extra=extra, stacklevel=3)


def get_logger(name: str) -> EventLogger:
    """
    Return a logger that sends events to structlog or the standard ``logging`` module.

    If the application has configured structlog, its processors get each event and its fields, with
    the logger's name as ``logger``. Otherwise the event goes to the standard logger *name*, with
    ``event`` and ``fields`` as attributes of the record. The choice is made for each event, so the
    application may configure structlog later.

    Args:
        name: The name of the standard logger. Plugins use the name of their package.
    """
    return EventLogger(name)


@contextmanager
def beats(log: EventLogger, name: str, **keys: Any) -> Iterator[MutableMapping[str, Any]]:
    """
    Log ``<name>.begin``, then ``<name>.done`` or ``<name>.failed`` with the seconds it took.

    Yields a dictionary whose items become fields of the second event. Exceptions are logged as a
    failure and pass through unchanged. This includes ``KeyboardInterrupt``.
    """
    outcome: dict[str, Any] = {}
    begin, done, failed = (f"{name}.{beat}" for beat in ("begin", "done", "failed"))
    log.debug(begin, **keys)
    start = time.monotonic()
    try:
        yield outcome
    except BaseException as error:
        seconds = round(time.monotonic() - start, 6)
        log.debug(failed, **{**keys, **outcome}, seconds=seconds, error=repr(error))
        raise
    seconds = round(time.monotonic() - start, 6)
    log.debug(done, **{**keys, **outcome}, seconds=seconds)
