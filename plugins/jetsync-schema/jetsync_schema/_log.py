"""
Logging over the standard ``logging`` module, logger ``jetsync_schema``.

Unlike jetsync itself the logger has no null handler: a broken schema in a bucket is shown on stderr
by a program that has not configured any logging at all, as only then is it not overlooked.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final, cast

import structlog

if TYPE_CHECKING:
    from collections.abc import MutableMapping

BROKEN: Final = "schema_broken"
"""A definition in the bucket can not be used; the last good one is, if there is one."""
CHANGED: Final = "schema_changed"
"""A definition in the bucket has taken effect, or was deleted."""
UNREADABLE: Final = "schemas_unreadable"
"""The bucket can not be read at the moment; what was read before holds."""
CALLBACK_FAILED: Final = "callback_failed"
"""What was to be told of a problem raised."""


def _render(
    _logger: Any, _method: str, event: MutableMapping[str, Any]
) -> tuple[tuple[str], dict[str, Any]]:
    name = str(event.pop("event", ""))
    line = " ".join([name, *(f"{key}={value!r}" for key, value in event.items())])
    return (line,), {"extra": {"event": name, "fields": dict(event)}}


def get_logger() -> structlog.stdlib.BoundLogger:
    """
    Return a logger that the application's own set-up of structlog does not apply to.
    """
    return cast(
        "structlog.stdlib.BoundLogger",
        structlog.wrap_logger(
            logging.getLogger("jetsync_schema"),
            processors=[structlog.stdlib.filter_by_level, _render],
            wrapper_class=structlog.stdlib.BoundLogger,
            context_class=dict,
            cache_logger_on_first_use=True,
        ),
    )
