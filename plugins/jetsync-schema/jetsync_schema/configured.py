"""
The plugin as it is loaded by name, configured by environment variables.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any, Final

import jetsync
from jetsync.events import ClosedEvent
from jetsync_schema.schemas import Schemas

if TYPE_CHECKING:
    from jetsync.events import StatusEvent

__all__ = ["ConfiguredSchemas"]

DIRECTORY: Final = "JETSYNC_SCHEMA_DIRECTORY"
BUCKET: Final = "JETSYNC_SCHEMA_BUCKET"
PUBLISH: Final = "JETSYNC_SCHEMA_PUBLISH"
RECEIVE: Final = "JETSYNC_SCHEMA_RECEIVE"
UNLISTED: Final = "JETSYNC_SCHEMA_UNLISTED"

YES: Final = frozenset({"", "1", "true", "yes", "on"})
NO: Final = frozenset({"0", "false", "no", "off"})

_opening = threading.local()


class ConfiguredSchemas(Schemas):
    """
    A `Schemas` that the environment configures. ``jetsync.connect(plugins=["schema"])`` loads it.

    - ``$JETSYNC_SCHEMA_DIRECTORY``: the directory with ``index.json``
    - ``$JETSYNC_SCHEMA_BUCKET``: the name of the bucket, on the servers of the environment
    - ``$JETSYNC_SCHEMA_RECEIVE``: ``off``, ``raise``, ``term`` or ``mark``
    - ``$JETSYNC_SCHEMA_UNLISTED``: ``allow`` or ``refuse``
    - ``$JETSYNC_SCHEMA_PUBLISH``: ``no`` turns off the check of published messages

    The plugin closes together with its client.

    Raises: as `Schemas`.
    """

    def __init__(self) -> None:
        if getattr(_opening, "active", False):
            # $JETSYNC_PLUGINS also loads this plugin into the connection to the bucket, where it
            # has nothing to check.
            super().__init__({})
            return
        _opening.active = True
        try:
            super().__init__(**_arguments())
        finally:
            _opening.active = False

    @jetsync.hookimpl
    def jetsync_status(self, event: StatusEvent) -> None:
        """
        Close together with the client.
        """
        if isinstance(event, ClosedEvent):
            self.close()


def _arguments() -> dict[str, Any]:
    """
    Read the environment variables.

    Raises:
        ConfigurationError: A variable is missing or invalid.
    """
    said = {name: os.environ.get(name, "").strip() for name in (DIRECTORY, BUCKET)}
    if not any(said.values()):
        raise jetsync.ConfigurationError(f"set ${DIRECTORY} or ${BUCKET}, or both")
    publish = os.environ.get(PUBLISH, "").strip().lower()
    if publish not in YES | NO:
        raise jetsync.ConfigurationError(f"${PUBLISH} is yes or no, not {publish!r}")
    return {
        "directory": said[DIRECTORY] or None,
        "bucket": said[BUCKET] or None,
        "publish": publish in YES,
        "receive": os.environ.get(RECEIVE, "").strip() or "off",
        "unlisted": os.environ.get(UNLISTED, "").strip() or "allow",
    }
