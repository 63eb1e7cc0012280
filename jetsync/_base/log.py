"""
Log events have a name and fields. They go to structlog or the standard ``logging`` module.

If the application has configured structlog, events go through its processors. Otherwise each event
becomes a record of the standard logger. Its message is the event followed by ``key=value`` pairs,
and handlers find both in ``record.event`` and ``record.fields``. The logger ``jetsync`` has a null
handler, so log events appear only if the application configures structlog or ``logging``.

Operations that take time log two events: ``<event>.begin``, then ``<event>.done`` or
``<event>.failed``.

Your handlers can rely on these events:

- ``connect``: The first connection. Logged when it begins and when it is done or has failed.
- ``disconnected``: The connection was lost; reconnecting.
- ``reconnect_failed``: An attempt to connect failed, and another one follows. Logged once for
  each reason.
- ``reconnected``: The client has reconnected and restored its subscriptions.
- ``closed``: The client is closed and will not reconnect.
- ``silent``: The server did not answer a probe, so the client drops the connection.
- ``protocol_error``: The server violated the NATS protocol.
- ``unconfirmed``: The client closed or the interpreter exited while messages of a publisher were
  not confirmed.
- ``lame_duck``: The server announced that it is about to shut down.
- ``server_error``: The server sent ``-ERR``.
- ``slow_consumer``: Messages of a subscription were dropped.
- ``pull_status``: The server answered a pull with a status line.
- ``pulls_refused``: The server refused several pulls of a consumption in a row. The consumption
  retries.
- ``messages_lost``: Messages of a push consumer without acks did not reach the client.
- ``heartbeat_missed``: Neither a message nor a heartbeat arrived for two heartbeat intervals.
- ``consumer_reset``: An ordered consumer has replaced its consumer on the server.
- ``consumption_ended``: An error ended a consumption with a handler.
- ``ack_ignored``: An acknowledgement was wanted for a consumer that takes none. Logged once for
  each consumer object.
- ``handler_failed``: A message handler raised an exception.
- ``advisory_outdated``: The server gave up a message of an earlier consumer of the same name, so it
  gets no dead letter.
- ``dead_letter_stored``, ``dead_letter_failed``: The dead letter of a message is stored, or is not
  known to be stored.
- ``dead_letter_gone``: The stream no longer has a message that was to become a dead letter.
- ``dead_letters_may_be_missing``: Messages may have been given up while nobody listened, and this
  kind of stream does not tell which.
- ``advisory_invalid``: A message on the subject of advisories is not an advisory.
- ``callback_failed``: A callback of the application raised an exception.
- ``plugin_failed``: A plugin raised an exception, and there is no call that could raise it in your
  code, for example because the hook only observes.
- ``drain``: The client finishes open work and closes. Logged when it begins and when it is done
  or has failed. Also logged if messages of a subscription are dropped because the ``timeout`` of
  ``stop_on_signal`` has passed.
- ``filter_outside_subjects``: A consumer was created with a filter that matches no subject of the
  stream.
- ``list_incomplete``: A list of streams or consumers is incomplete, for example because some
  servers are down.
- ``ttl_raised``: The server stores a longer time-to-live than the message asks for.
- ``chunks_left``: An object was replaced or deleted, but its old chunks could not be removed.
  ``ObjectStore.collect_garbage`` removes them.
- ``object_not_written``: A file of the fsspec file system was closed while an exception ended its
  block, so the object was not stored.
- ``object_unreadable``: The description of an object is not valid, so a list or a watch leaves it
  out.
- ``report_refused``: A server refused a request of the system account, and others have answered it.
- ``events.dropped``: Plugins handle events too slowly, so some events were dropped.
- ``bridge.failed``, ``bridge.loop_error``: The background thread, or a callback in it, has failed.
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
