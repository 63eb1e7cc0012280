"""
Logging: structured events over the standard ``logging`` module.

Silent unless the application configures logging: the logger ``jetsync`` has a null handler, nothing
is printed, and the application's own structlog set-up is neither read nor changed. Each record's
message is one line, the event followed by ``key=value`` pairs; the same keys are on the record as
``record.event`` and ``record.fields`` for handlers that want them.

Work that takes time logs in three beats: ``<event>.begin``, then ``<event>.done`` or
``<event>.failed``.
"""

from __future__ import annotations

import logging
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, cast

import structlog

if TYPE_CHECKING:
    from collections.abc import Iterator, MutableMapping

__all__ = ["beats", "get_logger"]

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


def _render(
    _logger: Any, _method: str, event: MutableMapping[str, Any]
) -> tuple[tuple[str], dict[str, Any]]:
    """
    Turn an event dictionary into the arguments of a standard logging call.
    """
    name = str(event.pop("event", ""))
    exc_info = event.pop("exc_info", None)
    line = " ".join([name, *(f"{key}={value!r}" for key, value in event.items())])
    # The standard logger would apply % to the line only if it got arguments; it gets none.
    return (line,), {"exc_info": exc_info, "extra": {"event": name, "fields": dict(event)}}


def get_logger(name: str) -> structlog.stdlib.BoundLogger:
    """
    Return a bound logger that writes to the standard logger ``jetsync.<name>``.

    Every processor is given here, so that ``structlog.configure`` of an application does not apply
    to us, nor the other way round: its configuration may print to stdout, and a library never does.
    """
    logging.getLogger("jetsync").addHandler(_NULL)
    return cast(
        "structlog.stdlib.BoundLogger",
        structlog.wrap_logger(
            logging.getLogger(f"jetsync.{name}"),
            processors=[structlog.stdlib.filter_by_level, _render],
            wrapper_class=structlog.stdlib.BoundLogger,
            context_class=dict,
            cache_logger_on_first_use=True,
        ),
    )


# One object, since addHandler ignores a handler that is already there.
_NULL = logging.NullHandler()


@contextmanager
def beats(
    log: structlog.stdlib.BoundLogger, name: str, **keys: Any
) -> Iterator[MutableMapping[str, Any]]:
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
