"""
Logging: events with fields, over structlog or the standard ``logging`` module.

If the application has configured structlog, events go through its processors. Otherwise each event
becomes a record of the standard logger: its message is the event followed by ``key=value`` pairs,
and handlers find the same in ``record.event`` and ``record.fields``. The logger ``jetsync`` has a
null handler, so jetsync is silent unless the application configures one of the two.

Work that takes time logs in three beats: ``<event>.begin``, then ``<event>.done`` or
``<event>.failed``.
"""

from __future__ import annotations

import logging
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, MutableMapping

__all__ = ["EventLogger", "beats", "get_logger"]

logging.getLogger("jetsync").addHandler(logging.NullHandler())

# Event names. One place, so that documentation and handlers can rely on them.
CONNECT: Final = "connect"
"""In three beats: the first connection."""
DISCONNECTED: Final = "disconnected"
"""The connection was lost; reconnecting."""
RECONNECT_FAILED: Final = "reconnect_failed"
"""An attempt to connect failed; the next one follows. Logged once for each reason."""
RECONNECTED: Final = "reconnected"
"""The connection is back, subscriptions are replayed."""
CLOSED: Final = "closed"
"""The client is closed and will not reconnect."""
SILENT: Final = "silent"
"""The server did not answer a probe; the connection is dropped."""
PROTOCOL_ERROR: Final = "protocol_error"
"""The server sent something that is no NATS protocol."""
LAME_DUCK: Final = "lame_duck"
"""The server announced that it is going away."""
SERVER_ERROR: Final = "server_error"
"""The server sent ``-ERR``."""
SLOW_CONSUMER: Final = "slow_consumer"
"""Messages of a subscription were dropped."""
PULL_STATUS: Final = "pull_status"
"""A pull got a status line."""
PULLS_REFUSED: Final = "pulls_refused"
"""A consumption's pulls were refused several times in a row; it goes on trying."""
HEARTBEAT_MISSED: Final = "heartbeat_missed"
"""Neither messages nor heartbeats came for two heartbeat times."""
CONSUMER_RESET: Final = "consumer_reset"
"""An ordered consumer was made again."""
CONSUMPTION_ENDED: Final = "consumption_ended"
"""A consumption with a handler can not go on."""
HANDLER_FAILED: Final = "handler_failed"
"""A message handler raised."""
CALLBACK_FAILED: Final = "callback_failed"
"""A callback of the application raised."""
PLUGIN_FAILED: Final = "plugin_failed"
"""A plugin raised where it may only observe."""
DRAIN: Final = "drain"
"""In three beats: finishing what was handed over before closing."""
TTL_RAISED: Final = "ttl_raised"
"""The server keeps a message longer than its time-to-live says."""


class EventLogger:
    """
    Log events with fields; made by :func:`get_logger`.

    The field ``exc_info`` adds a traceback: ``True`` for the exception that is being handled, or an
    exception. All other fields are up to you.
    """

    __slots__ = ("_name", "_standard", "_structlog")

    def __init__(self, name: str) -> None:
        self._name = name
        self._standard = logging.getLogger(name)
        self._structlog: Any = None

    def __repr__(self) -> str:
        return f"<EventLogger {self._name}>"

    def debug(self, event: str, /, **fields: Any) -> None:
        """Log an event that helps to find a fault."""
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
        # While another thread imports structlog, the module is there without its functions.
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
    Return a logger that writes events with fields where the application expects them.

    If the application has configured structlog, its processors get each event and its fields, with
    the logger's name as ``logger``. Otherwise the event goes to the standard logger *name*, with
    ``event`` and ``fields`` as attributes of the record. The choice is made for each event, so the
    application may configure structlog later.

    Args:
        name: The name of the standard logger, for a plugin that of its package.
    """
    return EventLogger(name)


@contextmanager
def beats(log: EventLogger, name: str, **keys: Any) -> Iterator[MutableMapping[str, Any]]:
    """
    Log ``<name>.begin``, then ``<name>.done`` or ``<name>.failed`` with the seconds it took.

    Yields a dictionary; what is put into it is added to the last beat. An exception passes through
    unchanged, and so does ``KeyboardInterrupt``, which is logged as a failure too.
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
